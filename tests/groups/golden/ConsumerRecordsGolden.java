// Writes records of the consumer protocol in __consumer_offsets with Kafka's own generated classes: "name hex" a line.
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.ConsumerProtocolAssignment;
import org.apache.kafka.common.message.ConsumerProtocolSubscription;
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

    /** What a classic consumer says in JoinGroup and hears in SyncGroup; these have their version in front. */
    static void embedded(short version) {
        ConsumerProtocolSubscription said = new ConsumerProtocolSubscription().setTopics(List.of("a", "b"));
        if (version >= 1) said.ownedPartitions().add(
            new ConsumerProtocolSubscription.TopicPartition().setTopic("a").setPartitions(List.of(0, 2)));
        if (version >= 2) said.setGenerationId(7);
        if (version >= 3) said.setRackId("r");
        ConsumerProtocolAssignment heard = new ConsumerProtocolAssignment();
        heard.assignedPartitions().add(
            new ConsumerProtocolAssignment.TopicPartition().setTopic("a").setPartitions(List.of(0, 2)));
        HexFormat hex = HexFormat.of();
        System.out.println("subscription-" + version + " " + hex.formatHex(MessageUtil.toVersionPrefixedBytes(version, said)));
        System.out.println("assignment-" + version + " " + hex.formatHex(MessageUtil.toVersionPrefixedBytes(version, heard)));
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
        print("member-classic", 0, new ConsumerGroupMemberMetadataValue().setInstanceId(null).setRackId("r")
            .setClientId("c").setClientHost("/h").setSubscribedTopicNames(List.of("a", "b")).setSubscribedTopicRegex(null)
            .setRebalanceTimeoutMs(60000).setServerAssignor(null).setClassicMemberMetadata(
                new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata().setSessionTimeoutMs(10000)
                    .setSupportedProtocols(List.of(
                        new ConsumerGroupMemberMetadataValue.ClassicProtocol().setName("range")
                            .setMetadata(new byte[] {1, 2, 3}),
                        new ConsumerGroupMemberMetadataValue.ClassicProtocol().setName("cooperative-sticky")
                            .setMetadata(new byte[0])))));
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
        for (short version = 0; version <= 3; version++) embedded(version);
    }
}
