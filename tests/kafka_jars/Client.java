import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.utils.AppInfoParser;

/** Administrates, produces, and consumes by both protocols; prints what came of it: arguments are bootstrap, topic. */
public final class Client {
    private static final String TEXT = "org.apache.kafka.common.serialization.String";
    private static String topic;
    private static Map<String, Object> base;

    public static void main(String[] arguments) throws Exception {
        base = Map.of("bootstrap.servers", arguments[0]);
        topic = arguments[1];
        System.out.println("version " + AppInfoParser.getVersion());
        try (Admin admin = Admin.create(base)) {
            admin.createTopics(List.of(new NewTopic(topic, Optional.of(2), Optional.empty()))).all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            System.out.println("partitions " + partitions(admin));
            produce();
            for (String protocol : new String[] {"classic", "consumer"}) {
                System.out.println(protocol + " " + consume(protocol) + " " + committed(admin, protocol));
            }
            configure(admin);
            delete(admin);
        }
    }

    private static int partitions(Admin admin) throws Exception {
        for (int tries = 0; tries < 300; tries++) {  // a broker may hear of the third a moment later
            int count = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
            if (count == 3) {
                return count;
            }
            Thread.sleep(100);
        }
        throw new IllegalStateException("the third partition is not told");
    }

    private static Map<String, Object> with(Object... more) {
        Map<String, Object> settings = new HashMap<>(base);
        for (int at = 0; at < more.length; at += 2) {
            settings.put((String) more[at], more[at + 1]);
        }
        return settings;
    }

    private static void produce() throws Exception {
        Map<String, Object> settings = with("key.serializer", TEXT + "Serializer", "value.serializer", TEXT + "Serializer",
            "compression.type", "zstd", "linger.ms", 20);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int number = 0; number < 90; number++) {
                ProducerRecord<String, String> record = new ProducerRecord<>(topic, number % 3, "k", "v" + number);
                record.headers().add("h", new byte[] {1});
                producer.send(record);
            }
            producer.flush();
        }
        settings.put("transactional.id", topic);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, "k", "aborted")).get();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 1, "k", "committed"));
            producer.commitTransaction();
        }
    }

    private static String consume(String protocol) {
        Map<String, Object> settings = with("group.id", topic + "-" + protocol, "group.protocol", protocol,
            "auto.offset.reset", "earliest", "isolation.level", "read_committed", "enable.auto.commit", false,
            "key.deserializer", TEXT + "Deserializer", "value.deserializer", TEXT + "Deserializer");
        Map<String, Integer> values = new TreeMap<>();
        int headers = 0;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            long deadline = System.nanoTime() + Duration.ofSeconds(120).toNanos();
            while ((values.size() < 91 || !atEnd(consumer)) && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    values.merge(record.value(), 1, Integer::sum);
                    headers += record.headers().lastHeader("h") == null ? 0 : 1;
                }
            }
            consumer.commitSync();
        }
        boolean once = values.values().stream().allMatch(count -> count == 1) && !values.containsKey("aborted");
        return values.size() + " values, each once: " + once + ", with a header: " + headers;
    }

    private static boolean atEnd(KafkaConsumer<String, String> consumer) {
        return consumer.endOffsets(consumer.assignment()).entrySet().stream()
            .allMatch(end -> consumer.position(end.getKey()) == end.getValue());
    }

    private static String committed(Admin admin, String protocol) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets =
            admin.listConsumerGroupOffsets(topic + "-" + protocol).partitionsToOffsetAndMetadata().get();
        Map<Integer, Long> found = new TreeMap<>();
        offsets.forEach((partition, offset) -> found.put(partition.partition(), offset.offset()));
        return "committed " + found;
    }

    private static void configure(Admin admin) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        ConfigEntry entry = new ConfigEntry("retention.ms", "1234567");
        admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET)))).all().get();
        for (int tries = 0; tries < 300; tries++) {  // whichever broker is asked hears of it in a moment
            String value = admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value();
            if (value.equals("1234567")) {
                System.out.println("retention.ms " + value);
                return;
            }
            Thread.sleep(100);
        }
        throw new IllegalStateException("retention.ms is not told");
    }

    private static void delete(Admin admin) throws Exception {
        TopicPartition first = new TopicPartition(topic, 0);
        admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(10))).all().get();
        for (OffsetSpec spec : new OffsetSpec[] {OffsetSpec.earliest(), OffsetSpec.latest()}) {
            System.out.println("offset " + admin.listOffsets(Map.of(first, spec)).partitionResult(first).get().offset());
        }
        System.out.println("brokers " + admin.describeCluster().nodes().get().size());
        List<String> groups = List.of(topic + "-classic", topic + "-consumer");
        admin.describeConsumerGroups(groups).all().get().values().stream().sorted((a, b) -> a.groupId().compareTo(b.groupId()))
            .forEach(group -> System.out.println("group " + group.type() + " " + group.groupState()));
        admin.deleteConsumerGroups(groups).all().get();
        admin.deleteTopics(List.of(topic)).all().get();
        System.out.println("deleted");
    }
}
