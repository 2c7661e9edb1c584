import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;
import org.apache.kafka.common.utils.internals.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.internals.CidrUtils;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;

/** Kafka's own authorizer and principal mapper, asked by lines on standard input, answering one line for each question. */
public final class Decisions {
    private record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() { return "EXTERNAL"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.SASL_SSL; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return "client"; }
        public int correlationId() { return 1; }
    }

    private static Context context(String principal, String host) throws Exception {
        return new Context(SecurityUtils.parseKafkaPrincipal(principal), InetAddress.getByName(host));
    }

    private static String orNull(String text) {
        return text.isEmpty() ? null : text;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        StandardAuthorizer authorizer = null;
        StringBuilder answers = new StringBuilder();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] part = line.split("\t", -1);
            switch (part[0]) {
                case "acl" -> acls.put(Uuid.randomUuid(), new StandardAcl(ResourceType.valueOf(part[1]), part[2],
                    PatternType.valueOf(part[3]), part[4], part[5], AclOperation.valueOf(part[6]),
                    AclPermissionType.valueOf(part[7])));
                case "load" -> {
                    authorizer = new StandardAuthorizer();
                    authorizer.configure(Map.of("super.users", part[1], "allow.everyone.if.no.acl.found", part[2]));
                    authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
                    authorizer.loadSnapshot(acls);
                    authorizer.completeInitialLoad();
                    acls.clear();
                }
                case "ask" -> {
                    ResourcePattern pattern =
                        new ResourcePattern(ResourceType.valueOf(part[4]), part[5], PatternType.LITERAL);
                    Action action = new Action(AclOperation.valueOf(part[3]), pattern, 1, false, false);
                    answers.append(authorizer.authorize(context(part[1], part[2]), List.of(action)).get(0)).append('\n');
                }
                case "any" -> answers.append(authorizer.authorizeByResourceType(context(part[1], part[2]),
                    AclOperation.valueOf(part[3]), ResourceType.valueOf(part[4]))).append('\n');
                case "filter" -> {
                    AclBindingFilter filter = new AclBindingFilter(
                        new ResourcePatternFilter(ResourceType.valueOf(part[1]), orNull(part[2]),
                            PatternType.valueOf(part[3])),
                        new AccessControlEntryFilter(orNull(part[4]), orNull(part[5]), AclOperation.valueOf(part[6]),
                            AclPermissionType.valueOf(part[7])));
                    TreeSet<String> found = new TreeSet<>();
                    for (AclBinding binding : authorizer.acls(filter)) {
                        found.add(String.join(":", binding.pattern().resourceType().name(), binding.pattern().name(),
                            binding.pattern().patternType().name(), binding.entry().principal(),
                            binding.entry().host(), binding.entry().operation().name(),
                            binding.entry().permissionType().name()));
                    }
                    answers.append(String.join("|", found)).append('\n');
                }
                case "range" -> {
                    String within = "bad";
                    try {
                        CidrUtils.validate(part[1]);
                        within = Arrays.stream(part).skip(2).filter(host -> CidrUtils.isInRange(host, part[1]))
                            .collect(Collectors.joining(" "));
                    } catch (IllegalArgumentException wrong) {
                        // as CreateAcls refuses it
                    }
                    answers.append(within).append('\n');
                }
                case "name" -> {
                    String name;
                    try {
                        name = SslPrincipalMapper.fromRules(part[1]).getName(part[2]);
                    } catch (java.io.IOException noRule) {
                        name = "";
                    }
                    answers.append(name).append('\n');
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.out.print(answers);
    }
}
