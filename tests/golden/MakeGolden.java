// Writes golden bytes with Apache Kafka's own classes: java -cp 'LIBS/*' MakeGolden.java OUT_DIR (see README.md).
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.FetchRequestData;
import org.apache.kafka.common.message.ProduceRequestData;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.Utils;

public class MakeGolden {
    static Path out;

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static void save(String name, ByteBuffer buffer) throws IOException {
        byte[] copy = new byte[buffer.remaining()];
        buffer.duplicate().get(copy);
        Files.write(out.resolve(name), copy);
    }

    static SimpleRecord[] records() {
        Header[] headers = {new RecordHeader("h1", bytes("x")), new RecordHeader("ü", null)};
        return new SimpleRecord[] {
            new SimpleRecord(1700000000000L, bytes("key"), bytes("value"), headers),
            new SimpleRecord(1700000000005L, null, bytes("no key")),
            new SimpleRecord(1699999999999L, bytes("tombstone"), null),
            new SimpleRecord(1700000000010L, bytes(""), bytes("long ".repeat(60))),
        };
    }

    static MemoryRecords batch(CompressionType type, TimestampType time, long append, long pid, boolean transactional) {
        ByteBuffer buffer = ByteBuffer.allocate(4096);
        MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, RecordBatch.MAGIC_VALUE_V2,
            Compression.of(type).build(), time, 42L, append, pid, (short) (pid < 0 ? -1 : 3), pid < 0 ? -1 : 17,
            transactional, 9);
        for (SimpleRecord record : records()) builder.append(record);
        return builder.build();
    }

    static void save(String name, Message message, short version) throws IOException {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        buffer.flip();
        save(name + "-v" + version + ".bin", buffer);
    }

    static ProduceRequestData produce(short version) {
        MemoryRecords records = batch(CompressionType.NONE, TimestampType.CREATE_TIME, -1L, -1L, false);
        ProduceRequestData.TopicProduceData topic = new ProduceRequestData.TopicProduceData();
        if (version >= 13) topic.setTopicId(new Uuid(1L, 2L));
        else topic.setName("topic");
        topic.setPartitionData(List.of(
            new ProduceRequestData.PartitionProduceData().setIndex(7).setRecords(records),
            new ProduceRequestData.PartitionProduceData().setIndex(8).setRecords(null)));
        ProduceRequestData.TopicProduceDataCollection topics = new ProduceRequestData.TopicProduceDataCollection();
        topics.add(topic);
        return new ProduceRequestData().setTransactionalId("id").setAcks((short) -1).setTimeoutMs(30000)
            .setTopicData(topics);
    }

    static FetchRequestData fetch(short version) {
        FetchRequestData.FetchPartition partition = new FetchRequestData.FetchPartition().setPartition(3)
            .setFetchOffset(1234567890123L).setPartitionMaxBytes(1048576);
        if (version >= 5) partition.setLogStartOffset(5L);
        if (version >= 9) partition.setCurrentLeaderEpoch(4);
        if (version >= 12) partition.setLastFetchedEpoch(2);
        if (version >= 17) partition.setReplicaDirectoryId(new Uuid(5L, 6L));
        if (version >= 18) partition.setHighWatermark(77L);
        FetchRequestData.FetchTopic topic = new FetchRequestData.FetchTopic().setPartitions(List.of(partition));
        FetchRequestData.ForgottenTopic forgotten = new FetchRequestData.ForgottenTopic().setPartitions(List.of(1, 2));
        if (version >= 13) {
            topic.setTopicId(new Uuid(1L, 2L));
            forgotten.setTopicId(new Uuid(3L, 4L));
        } else {
            topic.setTopic("topic");
            forgotten.setTopic("gone");
        }
        FetchRequestData data = new FetchRequestData().setMaxWaitMs(500).setMinBytes(1).setMaxBytes(52428800)
            .setIsolationLevel((byte) 1).setTopics(List.of(topic));
        if (version >= 7) data.setSessionId(11).setSessionEpoch(12).setForgottenTopicsData(List.of(forgotten));
        if (version >= 11) data.setRackId("rack");
        if (version >= 12) data.setClusterId("cluster");
        if (version >= 15) data.setReplicaState(new FetchRequestData.ReplicaState().setReplicaId(6).setReplicaEpoch(8L));
        return data;
    }

    public static void main(String[] arguments) throws IOException {
        out = Path.of(arguments[0]);
        Files.createDirectories(out);
        for (CompressionType type : List.of(CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY,
                CompressionType.LZ4, CompressionType.ZSTD))
            save("batch-" + type.name + ".bin", batch(type, TimestampType.CREATE_TIME, -1L, -1L, false).buffer());
        save("batch-transactional.bin", batch(CompressionType.NONE, TimestampType.CREATE_TIME, -1L, 4711L, true).buffer());
        save("batch-log-append-time.bin",
            batch(CompressionType.NONE, TimestampType.LOG_APPEND_TIME, 1700000009999L, -1L, false).buffer());
        for (ControlRecordType type : List.of(ControlRecordType.COMMIT, ControlRecordType.ABORT))
            save("marker-" + type.name().toLowerCase() + ".bin", MemoryRecords.withEndTransactionMarker(42L,
                1700000000000L, 9, 4711L, (short) 3, new EndTransactionMarker(type, 21)).buffer());
        for (short version = 3; version <= 13; version++) save("produce", produce(version), version);
        for (short version = 4; version <= 18; version++) save("fetch", fetch(version), version);
        StringBuilder vectors = new StringBuilder();
        for (String key : List.of("", "a", "ab", "abc", "abcd", "21", "foobar", "N14228", "ключ", "x".repeat(100)))
            vectors.append(key).append('\t').append(Utils.murmur2(bytes(key))).append('\t')
                .append(Utils.toPositive(Utils.murmur2(bytes(key))) % 6).append('\n');
        Files.writeString(out.resolve("murmur2.tsv"), vectors);
    }
}
