import java.io.FileReader;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;

/** Restores the store "store" from its changelog; the argument is a file of settings. Prints records and ms. */
public final class Restore {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            settings.load(file);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("input", Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey()
            .reduce((older, newer) -> newer, Materialized.as("store"));
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        AtomicLong start = new AtomicLong(Long.MAX_VALUE);
        AtomicLong end = new AtomicLong();
        AtomicLong restored = new AtomicLong();
        CountDownLatch running = new CountDownLatch(1);
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            @Override
            public void onRestoreStart(TopicPartition partition, String store, long first, long last) {
                start.accumulateAndGet(System.nanoTime(), Math::min);
            }

            @Override
            public void onBatchRestored(TopicPartition partition, String store, long last, long count) { }

            @Override
            public void onRestoreEnd(TopicPartition partition, String store, long count) {
                end.accumulateAndGet(System.nanoTime(), Math::max);
                restored.addAndGet(count);
            }
        });
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                running.countDown();
            }
        });
        streams.start();
        running.await();
        System.out.println("restored " + restored.get() + " " + (end.get() - start.get()) / 1_000_000);
        streams.close(Duration.ofSeconds(30));
    }
}
