import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * What two consoles for Kafka ask when their pages are opened, and what they change. Arguments: bootstrap, topic, a group
 * that has stopped, a group with a member. Prints NAME = VALUE for each answer; any error ends the program.
 */
public final class Consoles {
    private static final long PATIENCE_NS = 30_000_000_000L;

    private interface Ask {
        Object get() throws Exception;
    }

    private final Admin admin;
    private final String topic;
    private final TopicPartition first;

    private Consoles(Admin admin, String topic) {
        this.admin = admin;
        this.topic = topic;
        this.first = new TopicPartition(topic, 0);
    }

    private static void say(String name, Ask ask) throws Exception {
        try {
            System.out.println(name + " = " + ask.get());
        } catch (Exception refused) {
            throw new Exception(name, refused);
        }
    }

    /** Says what is told once it is what is wanted: a broker may not have heard of a change yet. */
    private static void until(String name, Object wanted, Ask ask) throws Exception {
        Object told = null;
        for (long end = System.nanoTime() + PATIENCE_NS; System.nanoTime() < end; Thread.sleep(50)) {
            try {
                told = ask.get();
            } catch (ExecutionException refused) {
                if (!(refused.getCause() instanceof UnknownTopicOrPartitionException)) {
                    throw new Exception(name, refused);
                }
                told = refused;
            }
            if (wanted.equals(told)) {
                break;
            }
        }
        System.out.println(name + " = " + told);
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("request.timeout.ms", "30000");
        try (Admin admin = Admin.create(settings)) {
            Consoles consoles = new Consoles(admin, arguments[1]);
            consoles.cluster();
            consoles.topics();
            consoles.offsets(settings);
            consoles.groups(arguments[2], arguments[3]);
            consoles.security();
            consoles.changeTopics();
            consoles.changeGroups(arguments[2]);
        }
        System.out.println("done");
    }

    private static ConfigResource broker(int id) {
        return new ConfigResource(ConfigResource.Type.BROKER, String.valueOf(id));
    }

    private void cluster() throws Exception {
        var cluster = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
        List<Integer> brokers = cluster.nodes().get().stream().map(Node::id).sorted().collect(Collectors.toList());
        int controller = cluster.controller().get().id();
        say("brokers", () -> brokers);
        say("cluster id", () -> cluster.clusterId().get().length());
        say("controller is one of them", () -> brokers.contains(controller));
        say("operations", () -> new TreeSet<>(cluster.authorizedOperations().get()));
        say("settings that tell a version", () -> admin.describeConfigs(List.of(broker(controller))).all().get()
            .get(broker(controller)).entries().stream().map(ConfigEntry::name)
            .filter(one -> one.contains("inter.broker.protocol.version")).collect(Collectors.toList()));
        say("brokers' ids in their settings", () -> new TreeSet<>(admin.describeConfigs(brokers.stream()
            .map(Consoles::broker).collect(Collectors.toList())).all().get().values().stream()
            .map(one -> one.get("broker.id").value()).collect(Collectors.toList())));
        say("directories with the topic", () -> admin.describeLogDirs(brokers).allDescriptions().get().values().stream()
            .flatMap(one -> one.values().stream())
            .filter(one -> one.error() == null && one.replicaInfos().containsKey(first)).count());
        say("bytes of the partition", () -> admin.describeLogDirs(brokers).allDescriptions().get().values().stream()
            .flatMap(one -> one.values().stream()).filter(one -> one.replicaInfos().containsKey(first))
            .map(one -> one.replicaInfos().get(first).size()).collect(Collectors.toCollection(TreeSet::new)));
        say("features", () ->
            new TreeSet<>(admin.describeFeatures().featureMetadata().get().finalizedFeatures().keySet()));
    }

    private TopicDescription described(String name) throws Exception {
        return admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
    }

    private String setting(String name, String key) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
        ConfigEntry entry = admin.describeConfigs(List.of(resource), new DescribeConfigsOptions().includeSynonyms(true))
            .all().get().get(resource).get(key);
        return entry.value() + " by " + entry.source() + ", before " + entry.synonyms().size();
    }

    private String value(String name, String key) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(key).value();
    }

    private Set<String> names(boolean internal) throws Exception {
        return admin.listTopics(new ListTopicsOptions().listInternal(internal)).names().get();
    }

    private void topics() throws Exception {
        say("internal topics are listed", () -> names(true).contains("__consumer_offsets"));
        say("internal topics are left out", () -> !names(false).contains("__consumer_offsets"));
        say("topic is listed", () -> names(false).contains(topic));
        say("partitions", () -> described(topic).partitions().size());
        say("replicas", () -> described(topic).partitions().stream().map(one -> one.replicas().size())
            .collect(Collectors.toList()));
        say("leader is in sync", () -> described(topic).partitions().stream()
            .allMatch(one -> one.isr().contains(one.leader())));
        say("internal", () -> described("__consumer_offsets").isInternal());
        say("setting", () -> setting(topic, "retention.ms"));
        say("default", () -> setting(topic, "segment.ms"));
    }

    private void offsets(Properties settings) throws Exception {
        say("ends", () -> admin.listOffsets(Map.of(first, OffsetSpec.latest(), new TopicPartition(topic, 1),
            OffsetSpec.latest())).all().get().values().stream().map(one -> one.offset()).sorted()
            .collect(Collectors.toList()));
        say("newest time", () -> admin.listOffsets(Map.of(first, OffsetSpec.maxTimestamp())).all().get().get(first)
            .offset());
        Properties reading = new Properties();
        reading.putAll(settings);
        reading.put("key.deserializer", ByteArrayDeserializer.class.getName());
        reading.put("value.deserializer", ByteArrayDeserializer.class.getName());
        try (var consumer = new KafkaConsumer<byte[], byte[]>(reading)) {
            say("a consumer's bounds", () -> consumer.beginningOffsets(List.of(first)).get(first) + " to "
                + consumer.endOffsets(List.of(first)).get(first));
        }
    }

    private Set<String> groupNames() throws Exception {
        return admin.listConsumerGroups().all().get().stream().map(one -> one.groupId()).collect(Collectors.toSet());
    }

    private Map<Integer, Long> committed(String group) throws Exception {
        var found = new TreeMap<Integer, Long>();
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach((at, offset) -> {
            if (offset != null) {
                found.put(at.partition(), offset.offset());
            }
        });
        return found;
    }

    private void groups(String stopped, String live) throws Exception {
        say("groups are listed", () -> groupNames().containsAll(Set.of(stopped, live)));
        Map<String, ConsumerGroupDescription> both = admin.describeConsumerGroups(List.of(stopped, live)).all().get();
        say("stopped group", () -> both.get(stopped).groupState() + " with " + both.get(stopped).members().size());
        ConsumerGroupDescription group = both.get(live);
        say("live group", () -> group.groupState() + " with " + group.members().size() + " by "
            + group.partitionAssignor());
        var member = group.members().iterator().next();
        say("member", () -> member.clientId() + " at " + member.host());
        say("its partitions", () -> new TreeSet<>(member.assignment().topicPartitions().stream()
            .map(TopicPartition::toString).collect(Collectors.toList())));
        say("coordinator is known", () -> group.coordinator().port() > 0);
        say("committed", () -> committed(stopped));
    }

    private void security() throws Exception {
        try {
            Collection<?> found = admin.describeAcls(AclBindingFilter.ANY).values().get();
            throw new Exception("ACLs without an authorizer: " + found);
        } catch (ExecutionException refused) {  // both consoles show an empty page then
            say("ACLs", () -> refused.getCause() instanceof SecurityDisabledException);
        }
    }

    private void changeTopics() throws Exception {
        String other = topic + "-other";
        var at = new TopicPartition(other, 0);
        admin.createTopics(List.of(new NewTopic(other, 1, (short) 3).configs(Map.of("retention.ms", "1000000")))).all()
            .get();
        until("created", 1, () -> described(other).partitions().size());
        until("made with", "1000000", () -> value(other, "retention.ms"));
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, other);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
            new ConfigEntry("retention.ms", "2000000"), AlterConfigOp.OpType.SET)))).all().get();
        until("altered", "2000000", () -> value(other, "retention.ms"));
        admin.createPartitions(Map.of(other, NewPartitions.increaseTo(2))).all().get();
        until("extended", 2, () -> described(other).partitions().size());
        List<Integer> wanted = described(other).partitions().get(0).replicas().get(0).id() == 3
            ? List.of(1, 2, 3) : List.of(3, 1, 2);
        admin.alterPartitionReassignments(Map.of(at, Optional.of(new NewPartitionReassignment(wanted)))).all().get();
        while (!admin.listPartitionReassignments(Set.of(at)).reassignments().get().isEmpty()) {
            Thread.sleep(50);
        }
        until("moved as wanted", true, () -> described(other).partitions().get(0).replicas().stream().map(Node::id)
            .collect(Collectors.toList()).equals(wanted));
        say("emptied to", () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(2))).lowWatermarks()
            .get(first).get().lowWatermark());
        say("begins at", () -> admin.listOffsets(Map.of(first, OffsetSpec.earliest())).all().get().get(first).offset());
        admin.deleteTopics(List.of(other)).all().get();
        until("deleted", true, () -> !names(true).contains(other));
    }

    private void changeGroups(String group) throws Exception {
        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(4))).all().get();
        say("offsets moved", () -> committed(group));
        admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get();
        say("offsets forgotten", () -> committed(group));
        admin.deleteConsumerGroups(List.of(group)).all().get();
        say("group deleted", () -> !groupNames().contains(group));
    }
}
