import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.errors.WakeupException;

/**
 * A member of a share group until it is ended: arguments are bootstrap, group, topic and settings. It prints what it
 * gets with the count of its deliveries, accepts it after a moment, and prints what was accepted. A record whose value
 * begins with "bad" it rejects, one with "later" it gives back the first time.
 */
public final class ShareMember {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        for (String setting : List.of(arguments).subList(3, arguments.length)) {
            settings.put(setting.split("=", 2)[0], setting.split("=", 2)[1]);
        }
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join(30_000);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        consumer.subscribe(List.of(arguments[2]));
        try {
            while (true) {
                work(consumer);
            }
        } catch (WakeupException e) {
            System.out.println("leaves");
        } finally {
            consumer.close();
            System.out.println("left");
        }
    }

    private static void work(KafkaShareConsumer<String, String> consumer) throws InterruptedException {
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
        StringBuilder done = new StringBuilder();
        for (ConsumerRecord<String, String> record : records) {
            int count = record.deliveryCount().orElse((short) 0);
            System.out.println("got " + record.value() + " " + count);
            AcknowledgeType type = AcknowledgeType.ACCEPT;
            if (record.value().startsWith("bad")) {
                type = AcknowledgeType.REJECT;
            } else if (record.value().startsWith("later") && count == 1) {
                type = AcknowledgeType.RELEASE;
            }
            consumer.acknowledge(record, type);
            if (type != AcknowledgeType.RELEASE) {
                done.append("done ").append(record.value()).append("\n");
            }
            Thread.sleep(5);
        }
        if (records.isEmpty()) {
            return;
        }
        Map<TopicIdPartition, Optional<KafkaException>> answers = consumer.commitSync();
        if (answers.values().stream().allMatch(Optional::isEmpty)) {
            System.out.print(done);
        } else {
            System.out.println("failed " + answers);
        }
    }
}
