import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.coordinator.transaction.generated.*;

public class TransactionStateGolden {
    static String hex(ByteBuffer b) { StringBuilder s = new StringBuilder(); while (b.hasRemaining()) s.append(String.format("%02x", b.get())); return s.toString(); }
    static TransactionLogValue.PartitionsSchema part(String t, Integer... ps) { return new TransactionLogValue.PartitionsSchema().setTopic(t).setPartitionIds(Arrays.asList(ps)); }
    static void show(String name, short v, TransactionLogValue m) { System.out.println(name + " v" + v + " " + hex(MessageUtil.toVersionPrefixedByteBuffer(v, m))); }
    public static void main(String[] a) {
        System.out.println("key my-app " + hex(MessageUtil.toVersionPrefixedByteBuffer((short) 0, new TransactionLogKey().setTransactionalId("my-app"))));
        System.out.println("key umlaut " + hex(MessageUtil.toVersionPrefixedByteBuffer((short) 0, new TransactionLogKey().setTransactionalId("\u00e4\u20ac\ud83d\ude00"))));
        TransactionLogValue empty = new TransactionLogValue().setProducerId(4000).setProducerEpoch((short) 0).setTransactionTimeoutMs(60000).setTransactionStatus((byte) 0).setTransactionPartitions(null).setTransactionLastUpdateTimestampMs(1700000000123L).setTransactionStartTimestampMs(-1);
        show("empty", (short) 0, empty); show("empty", (short) 1, empty);
        List<TransactionLogValue.PartitionsSchema> parts = new ArrayList<>(List.of(part("__consumer_offsets", 17), part("flights", 0, 3, 5)));
        TransactionLogValue ongoing = new TransactionLogValue().setProducerId(4000).setProducerEpoch((short) 7).setTransactionTimeoutMs(60000).setTransactionStatus((byte) 1).setTransactionPartitions(parts).setTransactionLastUpdateTimestampMs(1700000000456L).setTransactionStartTimestampMs(1700000000400L);
        show("ongoing", (short) 0, ongoing); show("ongoing", (short) 1, ongoing);
        TransactionLogValue rot = new TransactionLogValue().setProducerId(4000).setPreviousProducerId(4000).setNextProducerId(1L << 40).setProducerEpoch((short) 32767).setTransactionTimeoutMs(900000).setTransactionStatus((byte) 2).setTransactionPartitions(parts).setTransactionLastUpdateTimestampMs(1700000000789L).setTransactionStartTimestampMs(1700000000400L).setClientTransactionVersion((short) 2);
        show("rotating", (short) 1, rot);
        TransactionLogValue done = new TransactionLogValue().setProducerId(1L << 40).setPreviousProducerId(4000).setProducerEpoch((short) 0).setTransactionTimeoutMs(900000).setTransactionStatus((byte) 4).setTransactionPartitions(new ArrayList<>()).setTransactionLastUpdateTimestampMs(1700000000999L).setTransactionStartTimestampMs(1700000000400L).setClientTransactionVersion((short) 2);
        show("complete", (short) 0 == 1 ? 0 : (short) 1, done);
        List<Integer> many = new ArrayList<>(); for (int i = 0; i < 300; i++) many.add(i);
        TransactionLogValue big = new TransactionLogValue().setProducerId(1).setProducerEpoch((short) 1).setTransactionTimeoutMs(1).setTransactionStatus((byte) 3).setTransactionPartitions(new ArrayList<>(List.of(new TransactionLogValue.PartitionsSchema().setTopic("t".repeat(249)).setPartitionIds(many)))).setTransactionLastUpdateTimestampMs(0).setTransactionStartTimestampMs(0);
        show("big", (short) 1, big);
        for (String s : new String[]{"", "a", "group-1", "my-transactional-id", "\u00e4\u20ac\ud83d\ude00", "polygenelubricants", "spark-sink-0b9f"}) System.out.println("hash " + s + " " + s.hashCode() + " " + (org.apache.kafka.common.utils.Utils.abs(s.hashCode()) % 50));
    }
}
