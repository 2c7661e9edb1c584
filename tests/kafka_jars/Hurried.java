import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Commits, begins, sends without a flush and aborts, without a pause: arguments are bootstrap, topic, cycles. */
public final class Hurried {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", "hurried-java");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (int cycle = 0; cycle < Integer.parseInt(arguments[2]); cycle++) {
                producer.beginTransaction();
                for (int partition = 0; partition < 3; partition++) {
                    producer.send(new ProducerRecord<>(arguments[1], partition, null, "kept-" + cycle));
                }
                producer.commitTransaction();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(arguments[1], cycle % 3, null, "dropped-" + cycle));
                producer.abortTransaction();
                producer.beginTransaction();
                producer.abortTransaction();
            }
        }
        System.out.println("done");
    }
}
