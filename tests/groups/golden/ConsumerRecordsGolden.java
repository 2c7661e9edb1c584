// Writes records of the consumer protocol in __consumer_offsets with Kafka's own generated classes: "name hex" a line.
import java.nio.ByteBuffer;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.group.generated.*;

public class ConsumerRecordsGolden {
    static final Uuid ONE = new Uuid(0x0001020304050607L, 0x08090a0b0c0d0e0fL);
    static final Uuid TWO = new Uuid(0x1001020304050607L, 0x08090a0b0c0d0e0fL);

    static void print(String name, int prefix, Message message) {
        ByteBuffer body = MessageUtil.toByteBufferAccessor(message, (short) 0).buffer();
        StringBuilder hex = new StringBuilder(String.format("%04x", prefix));
        while (body.hasRemaining()) hex.append(String.format("%02x", body.get()));
        System.out.println(name + " " + hex);
    }

    static ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions have(Uuid topic, List<Integer> indexes, List<Integer> epochs) {
        return new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions()
            .setTopicId(topic).setPartitions(indexes).setAssignmentEpochs(epochs);
    }

    public static void main(String[] args) {
        print("group-key", 3, new ConsumerGroupMetadataKey().setGroupId("größe"));
        print("member-key", 5, new ConsumerGroupMemberMetadataKey().setGroupId("g").setMemberId("m-1"));
        print("target-key", 6, new ConsumerGroupTargetAssignmentMetadataKey().setGroupId("g"));
        print("member-target-key", 7, new ConsumerGroupTargetAssignmentMemberKey().setGroupId("g").setMemberId("m-1"));
        print("current-key", 8, new ConsumerGroupCurrentMemberAssignmentKey().setGroupId("g").setMemberId("m-1"));
        print("regex-key", 16, new ConsumerGroupRegularExpressionKey().setGroupId("g").setRegularExpression("a.*"));
        print("group", 0, new ConsumerGroupMetadataValue().setEpoch(7).setMetadataHash(-3));
        print("group-plain", 0, new ConsumerGroupMetadataValue().setEpoch(7));
        print("member", 0, new ConsumerGroupMemberMetadataValue().setInstanceId("i").setRackId("r").setClientId("c")
            .setClientHost("/h").setSubscribedTopicNames(List.of("a", "b")).setSubscribedTopicRegex("a.*")
            .setRebalanceTimeoutMs(300000).setServerAssignor("range"));
        print("member-plain", 0, new ConsumerGroupMemberMetadataValue().setInstanceId(null).setRackId(null)
            .setClientId("").setClientHost("/h").setSubscribedTopicNames(List.of()).setSubscribedTopicRegex(null)
            .setRebalanceTimeoutMs(-1).setServerAssignor(null));
        print("target", 0, new ConsumerGroupTargetAssignmentMetadataValue().setAssignmentEpoch(7)
            .setAssignmentTimestamp(1_700_000_000_123L));
        print("member-target", 0, new ConsumerGroupTargetAssignmentMemberValue().setTopicPartitions(List.of(
            new ConsumerGroupTargetAssignmentMemberValue.TopicPartition().setTopicId(ONE).setPartitions(List.of(0, 300)),
            new ConsumerGroupTargetAssignmentMemberValue.TopicPartition().setTopicId(TWO).setPartitions(List.of(1)))));
        print("current", 0, new ConsumerGroupCurrentMemberAssignmentValue().setMemberEpoch(7).setPreviousMemberEpoch(6)
            .setState((byte) 1).setAssignedPartitions(List.of(have(ONE, List.of(0, 300), List.of(5, 7))))
            .setPartitionsPendingRevocation(List.of(have(TWO, List.of(1), List.of(6)))));
        print("current-old", 0, new ConsumerGroupCurrentMemberAssignmentValue().setMemberEpoch(7)
            .setPreviousMemberEpoch(-2).setState((byte) 0).setAssignedPartitions(List.of(have(ONE, List.of(0), null)))
            .setPartitionsPendingRevocation(List.of()));
        print("regex", 0, new ConsumerGroupRegularExpressionValue().setTopics(List.of("a", "ab")).setVersion(12)
            .setTimestamp(1_700_000_000_123L));
    }
}
