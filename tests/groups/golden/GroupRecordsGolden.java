// Writes records of __consumer_offsets with Kafka's own generated classes, one "name version hex" a line.
import java.nio.ByteBuffer;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.group.generated.GroupMetadataKey;
import org.apache.kafka.coordinator.group.generated.GroupMetadataValue;
import org.apache.kafka.coordinator.group.generated.GroupMetadataValue.MemberMetadata;
import org.apache.kafka.coordinator.group.generated.LegacyOffsetCommitKey;
import org.apache.kafka.coordinator.group.generated.OffsetCommitKey;
import org.apache.kafka.coordinator.group.generated.OffsetCommitValue;

public class GroupRecordsGolden {
    static final long TIME = 1_700_000_000_123L;

    static void print(String name, int version, Message message) {
        print(name, version, version, message);
    }

    static void print(String name, int prefix, int version, Message message) {
        ByteBuffer body = MessageUtil.toByteBufferAccessor(message, (short) version).buffer();
        StringBuilder hex = new StringBuilder(String.format("%04x", prefix));
        while (body.hasRemaining()) hex.append(String.format("%02x", body.get()));
        System.out.println(name + " v" + prefix + " " + hex);
    }

    static OffsetCommitValue offset(String metadata) {
        return new OffsetCommitValue().setOffset(42).setLeaderEpoch(5).setMetadata(metadata).setCommitTimestamp(TIME);
    }

    static MemberMetadata member(String id) {
        return new MemberMetadata().setMemberId(id).setClientId("client").setClientHost("/127.0.0.1")
            .setRebalanceTimeout(60000).setSessionTimeout(10000)
            .setSubscription(new byte[] {0, 1, 2}).setAssignment(new byte[] {3, 4});
    }

    static GroupMetadataValue group(List<MemberMetadata> members) {
        return new GroupMetadataValue().setProtocolType("consumer").setGeneration(4).setMembers(members);
    }

    public static void main(String[] args) {
        print("offset-key", 0, new LegacyOffsetCommitKey().setGroup("my-group").setTopic("flights").setPartition(7));
        // The schema's only version is 0 inside; the record type 1 stands before it.
        print("offset-key", 1, 0, new OffsetCommitKey().setGroup("my-group").setTopic("flights").setPartition(7));
        print("umlaut-key", 1, 0, new OffsetCommitKey().setGroup("größe").setTopic("t").setPartition(2147483647));
        print("group-key", 2, 0, new GroupMetadataKey().setGroup("my-group"));
        for (int version = 0; version <= 4; version++) {
            OffsetCommitValue plain = offset("noté");
            if (version == 1) plain.setExpireTimestamp(TIME + 60000);
            print("offset", version, plain);
        }
        print("offset-with-topic-id", 4, offset("").setTopicId(new Uuid(0x0001020304050607L, 0x08090a0b0c0d0e0fL)));
        for (int version = 0; version <= 4; version++) {
            GroupMetadataValue stable = group(List.of(member("m-1"), member("m-2")))
                .setProtocol("range").setLeader("m-1");
            if (version >= 2) stable.setCurrentStateTimestamp(TIME);
            if (version >= 3) stable.members().get(1).setGroupInstanceId("i-2");
            print("stable", version, stable);
            GroupMetadataValue empty = group(List.of()).setProtocol(null).setLeader(null);
            if (version >= 2) empty.setCurrentStateTimestamp(TIME);
            print("empty", version, empty);
        }
    }
}
