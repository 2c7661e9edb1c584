import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.storage.internals.log.LogConfig;
import scala.Option;

/** What Kafka says of a topic's settings together, or, if told so, of a broker's, or of altering those with a + in a broker with the others:
 * a line of name=value with tabs between, answered by ok or the reason. */
public final class Together {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder answers = new StringBuilder();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Map<String, String> settings = new LinkedHashMap<>();
            for (String pair : line.split("\t", -1)) {
                int end = pair.indexOf('=');
                settings.put(pair.substring(0, end), pair.substring(end + 1));
            }
            String said = "ok";
            try {
                if (arguments.length > 0) {
                    Properties broker = new Properties(), altered = new Properties();
                    settings.forEach((name, value) -> (name.startsWith("+") ? altered : broker).put(name.replace("+", ""), value));
                    KafkaConfig config = new KafkaConfig(broker, false);
                    config.dynamicConfig().initialize(Option.empty());
                    config.dynamicConfig().validate(altered, true);
                } else LogConfig.validate(Map.of(), settings, Map.of("min.insync.replicas", "1"), true); // with defaults, as of a topic
            } catch (ConfigException | ApiException | IllegalArgumentException wrong) {
                said = String.valueOf(wrong.getMessage()).replace('\n', ' ');
            }
            answers.append(said).append('\n');
        }
        System.out.print(answers);
    }
}
