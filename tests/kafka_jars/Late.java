import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Commits a transaction that its timeout has ended, then aborts and goes on: arguments are bootstrap, topic, ms. */
public final class Late {
    private static String outcome(Runnable call) {
        try {
            call.run();
            return "fine";
        } catch (RuntimeException problem) {
            return problem.getClass().getSimpleName();
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", "late");
        settings.put("transaction.timeout.ms", "5000");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        for (String end : new String[] {"commit", "abort", "send"}) {
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(arguments[1], 0, null, "lost")).get();
                Thread.sleep(Long.parseLong(arguments[2]));
                if (end.equals("send")) {
                    System.out.println("send: " + outcome(() -> {
                        try {
                            producer.send(new ProducerRecord<>(arguments[1], 0, null, "lost, too")).get();
                        } catch (java.util.concurrent.ExecutionException problem) {
                            throw (RuntimeException) problem.getCause();
                        } catch (InterruptedException problem) {
                            throw new IllegalStateException(problem);
                        }
                    }));
                }
                System.out.println(end.equals("abort")
                    ? "abort: " + outcome(producer::abortTransaction)
                    : end + ", commit: " + outcome(producer::commitTransaction));
                System.out.println(end + ", next: " + outcome(() -> {
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(arguments[1], 0, null, "kept-" + end));
                    producer.commitTransaction();
                }));
            }
        }
    }
}
