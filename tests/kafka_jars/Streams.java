import java.io.FileReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;

/**
 * Word count (over all time and by window) and a windowed join, until it is ended: the argument is a file of settings.
 *
 * <p>"lines" goes through a repartition topic to "counts" and "windowed"; "left" and "right" are joined to "pairs".
 * Prints its states.
 */
public final class Streams {
    static final Duration WINDOW = Duration.ofSeconds(10);
    static final Duration GRACE = Duration.ofHours(12);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            settings.load(file);
        }
        Consumed<String, String> texts = Consumed.with(Serdes.String(), Serdes.String());
        StreamsBuilder builder = new StreamsBuilder();

        KGroupedStream<String, String> words = builder.stream("lines", texts)
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .map((key, word) -> KeyValue.pair(word, word))
            .groupByKey(Grouped.with("words", Serdes.String(), Serdes.String()));
        words.count(Materialized.as("counted")).toStream()
            .mapValues(count -> Long.toString(count))
            .to("counts", Produced.with(Serdes.String(), Serdes.String()));
        words.windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, GRACE)).count(Materialized.as("counted-by-window")).toStream()
            .map((key, count) -> KeyValue.pair(key.key() + "@" + key.window().start(), Long.toString(count)))
            .to("windowed", Produced.with(Serdes.String(), Serdes.String()));

        KStream<String, String> left = builder.stream("left", texts);
        KStream<String, String> right = builder.stream("right", texts);
        left.join(right, (one, other) -> one + "|" + other, JoinWindows.ofTimeDifferenceAndGrace(WINDOW, GRACE),
                StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String()).withName("joined"))
            .to("pairs", Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setUncaughtExceptionHandler(problem -> {
            problem.printStackTrace(System.out);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(30))));
        streams.start();
    }
}
