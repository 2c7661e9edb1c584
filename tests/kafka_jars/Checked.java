import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/** Sends numbers, each in a batch of its own and some without the id of a schema: arguments are bootstrap, topic, id. */
public final class Checked {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("enable.idempotence", "true");
        settings.put("max.in.flight.requests.per.connection", "5");
        settings.put("batch.size", "0");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        int schema = Integer.parseInt(arguments[2]);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int number = 0; number < 200; number++) {
                int id = number % 40 == 17 ? schema + 1 : schema;
                byte[] value = ByteBuffer.allocate(100).put((byte) 0).putInt(id).putInt(number).array();
                sent.add(producer.send(new ProducerRecord<>(arguments[1], 0, null, value)));
            }
            for (int number = 0; number < 200; number++) {
                try {
                    sent.get(number).get();
                } catch (ExecutionException problem) {
                    Throwable why = problem.getCause();
                    System.out.println(number + " " + why.getClass().getSimpleName() + ": " + why.getMessage());
                }
            }
        }
    }
}
