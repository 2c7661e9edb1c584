import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;

/**
 * A member of a group until it is ended: arguments are bootstrap, group, protocol, topic (or ~pattern) and settings.
 * It prints what it gets, "done" when that is committed, and what it is assigned. With a transactional.id it copies
 * what it gets to the topic with -copy behind its name, exactly once.
 */
public final class Member implements ConsumerRebalanceListener {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("group.protocol", arguments[2]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        for (String setting : List.of(arguments).subList(4, arguments.length)) {
            settings.put(setting.split("=", 2)[0], setting.split("=", 2)[1]);
        }
        KafkaProducer<String, String> producer = producer(settings);
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.wakeup();
            try {
                main.join(30_000);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        Member member = new Member();
        if (arguments[3].startsWith("~")) {
            consumer.subscribe(new SubscriptionPattern(arguments[3].substring(1)), member);
        } else {
            consumer.subscribe(List.of(arguments[3]), member);
        }
        try {
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                for (ConsumerRecord<String, String> record : records) {
                    System.out.println("got " + record.topic() + " " + record.partition() + " " + record.offset());
                }
                try {
                    if (producer == null) {
                        consumer.commitSync();
                    } else if (!records.isEmpty()) {
                        copy(records, consumer, producer);
                    }
                    System.out.println("done");
                } catch (CommitFailedException | RebalanceInProgressException e) {
                    System.out.println("again " + e.getMessage());
                }
            }
        } catch (WakeupException e) {
            System.out.println("leaves");
        } finally {
            consumer.close();
            System.out.println("left");
        }
    }

    private static KafkaProducer<String, String> producer(Properties settings) {
        Object id = settings.remove("transactional.id");
        if (id == null) {
            return null;
        }
        Properties own = new Properties();
        own.put("bootstrap.servers", settings.get("bootstrap.servers"));
        own.put("transactional.id", id);
        own.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        own.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        KafkaProducer<String, String> producer = new KafkaProducer<>(own);
        producer.initTransactions();
        return producer;
    }

    private static void copy(
        ConsumerRecords<String, String> records,
        KafkaConsumer<String, String> consumer,
        KafkaProducer<String, String> producer
    ) {
        producer.beginTransaction();
        try {
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(record.topic() + "-copy", record.partition(), null, record.value()));
            }
            producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
            producer.commitTransaction();
        } catch (CommitFailedException e) {
            producer.abortTransaction();
            Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
            for (TopicPartition partition : consumer.assignment()) {
                OffsetAndMetadata last = committed.get(partition);
                consumer.seek(partition, last == null ? 0 : last.offset());
            }
            throw e;
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        System.out.println("assigned " + partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        System.out.println("revoked " + partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        System.out.println("lost " + partitions);
    }
}
