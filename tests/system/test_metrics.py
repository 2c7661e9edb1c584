"""The pages of metrics of a live fleet: what people's dashboards query is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.clients import Confluent, Message
from tests.support.fleet import Broker, Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

client = Confluent()
TOPIC = "orders"

STRIMZI_KAFKA: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kafka_server_replicamanager_leadercount", ()),
    ("kafka_server_replicamanager_partitioncount", ()),
    ("kafka_server_replicamanager_underreplicatedpartitions", ()),
    ("kafka_server_replicamanager_underminisrpartitioncount", ()),
    ("kafka_server_replicamanager_isrshrinks_total", ()),
    ("kafka_server_replicamanager_isrexpands_total", ()),
    ("kafka_controller_kafkacontroller_activecontrollercount", ()),
    ("kafka_controller_kafkacontroller_offlinepartitionscount", ()),
    ("kafka_controller_kafkacontroller_preferredreplicaimbalancecount", ()),
    ("kafka_controller_controllerstats_uncleanleaderelections_total", ()),
    ("kafka_cluster_partition_replicascount", ("topic", "partition")),
    ("kafka_cluster_partition_atminisr", ("topic", "partition")),
    ("kafka_cluster_partition_underminisr", ("topic", "partition")),
    ("kafka_cluster_partition_underreplicated", ("topic", "partition")),
    ("kafka_server_brokertopicmetrics_bytesin_total", ("topic",)),
    ("kafka_server_brokertopicmetrics_bytesin_total", ()),
    ("kafka_server_brokertopicmetrics_bytesout_total", ("topic",)),
    ("kafka_server_brokertopicmetrics_messagesin_total", ("topic",)),
    ("kafka_server_brokertopicmetrics_totalproducerequests_total", ("topic",)),
    ("kafka_server_brokertopicmetrics_failedproducerequests_total", ("topic",)),
    ("kafka_server_brokertopicmetrics_totalfetchrequests_total", ("topic",)),
    ("kafka_server_brokertopicmetrics_failedfetchrequests_total", ("topic",)),
    ("kafka_network_socketserver_networkprocessoravgidle_percent", ()),
    ("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", ()),
    ("kafka_network_requestmetrics_totaltimems", ("request", "quantile")),
    ("kafka_network_requestmetrics_localtimems", ("request", "quantile")),
    ("kafka_network_requestmetrics_remotetimems", ("request", "quantile")),
    ("kafka_network_requestmetrics_throttletimems", ("request", "quantile")),
    ("kafka_server_socket_server_metrics_connection_count", ("listener",)),
    (
        "kafka_server_socket_server_metrics_connections_software",
        ("clientSoftwareName", "clientSoftwareVersion", "listener"),
    ),
    ("kafka_server_kafkaserver_linux_disk_read_bytes", ()),
    ("kafka_server_kafkaserver_linux_disk_write_bytes", ()),
    ("kafka_server_kafkaserver_brokerstate", ()),
    ("kafka_server_sessionexpirelistener_zookeepersyncconnects_total", ()),
    ("kafka_server_sessionexpirelistener_zookeeperdisconnects_total", ()),
    ("kafka_server_sessionexpirelistener_zookeeperexpires_total", ()),
    ("kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms", ("quantile",)),
    ("kafka_log_log_size", ("topic", "partition")),
    ("kafka_log_log_logstartoffset", ("topic", "partition")),
    ("kafka_log_log_logendoffset", ("topic", "partition")),
)
"""Metric names of the expressions of Strimzi's Kafka dashboard and alerts, with the labels that they use."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    running = Fleet(tmp_path_factory.mktemp("metrics"), 2).start()
    try:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 2, 2)])[TOPIC].result(60)
        client.produce(running.bootstrap, TOPIC, [Message(b"v" * 100, partition=n % 2) for n in range(20)])
        for partition in (0, 1):
            assert len(client.consume(running.bootstrap, TOPIC, 10, partition=partition)) == 10
        yield running
    finally:
        running.close()


def page(broker: Broker, path: str) -> list[Sample]:
    request = Request(f"http://127.0.0.1:{broker.admin_port}{path}")
    with urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def total(fleet: Fleet, path: str, name: str, **labels: str) -> float:
    found = [sample for broker in fleet.brokers for sample in page(broker, path) if sample.name == name]
    assert found, f"{path} has no {name}"
    return sum(one.value for one in found if labels.items() <= one.labels.items())


def test_each_series_of_strimzis_dashboard_is_there(fleet: Fleet) -> None:
    found = {(one.name, *sorted(one.labels)) for broker in fleet.brokers for one in page(broker, "/metrics/kafka")}
    missing = [(name, labels) for name, labels in STRIMZI_KAFKA if (name, *sorted(labels)) not in found]
    assert not missing


def test_numbers_are_those_of_what_was_done(fleet: Fleet) -> None:
    kafka, name = "/metrics/kafka", "kafka_server_brokertopicmetrics_messagesin_total"
    assert total(fleet, kafka, name, topic=TOPIC) == 20
    assert total(fleet, kafka, "kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert total(fleet, kafka, "kafka_cluster_partition_replicascount", topic=TOPIC) == 4
    assert total(fleet, "/metrics", "fleetlog_topic_produced_records_total", topic=TOPIC) == 20
    assert total(fleet, "/metrics", "fleetlog_topic_leaders", topic=TOPIC) == 2
    assert total(fleet, "/metrics/partitions", "fleetlog_partition_log_end_offset", topic=TOPIC) == 40
    size = total(fleet, "/metrics", "fleetlog_topic_produced_bytes_total", topic=TOPIC)
    assert total(fleet, "/metrics", "fleetlog_topic_fetched_bytes_total", topic=TOPIC) >= size
    assert total(fleet, "/metrics", "fleetlog_topic_log_bytes", topic=TOPIC) == 2 * size
    for broker in fleet.brokers:
        numbers = {one.name: one.value for one in page(broker, "/metrics") if not one.labels}
        assert 0 <= numbers["fleetlog_cpu_busy"] <= 1
        assert numbers["process_open_fds"] > 10
        disks = {one.name: one.value for one in page(broker, "/metrics") if "directory" in one.labels}
        assert disks["fleetlog_disk_total_bytes"] >= disks["fleetlog_disk_usable_bytes"] > 0
        assert disks["fleetlog_disk_offline"] == 0
        assert numbers["fleetlog_zookeeper_request_seconds_count"] > 10
        assert numbers["fleetlog_zookeeper_connected"] == 1
        assert numbers["fleetlog_fsync_seconds_count"] > 0
    waited = total(fleet, "/metrics", "fleetlog_request_part_seconds_count", api="Produce", part="remote")
    assert waited == total(fleet, "/metrics", "fleetlog_request_seconds_count", api="Produce")


def test_fetches_of_followers_are_told_from_those_of_consumers(fleet: Fleet) -> None:
    name = "kafka_network_requestmetrics_requests_total"
    numbers = dict.fromkeys(("Fetch", "FetchFollower", "FetchConsumer"), 0.0)
    for broker in fleet.brokers:
        found = {one.labels["request"]: one.value for one in page(broker, "/metrics/kafka") if one.name == name}
        numbers = {request: number + found[request] for request, number in numbers.items()}
    assert numbers["FetchFollower"] > 10, "followers fetch all the time"
    assert numbers["FetchConsumer"] >= 2
    assert numbers["Fetch"] == numbers["FetchFollower"] + numbers["FetchConsumer"]
    for request in ("FetchFollower", "FetchConsumer"):
        for part in ("totaltimems", "localtimems", "remotetimems"):
            total(fleet, "/metrics/kafka", f"kafka_network_requestmetrics_{part}", request=request)


def test_fetches_of_idle_followers_wait(fleet: Fleet) -> None:
    name = "kafka_network_requestmetrics_remotetimems"

    def waited_ms() -> float:
        samples = [sample for broker in fleet.brokers for sample in page(broker, "/metrics/kafka")]
        followers = [one for one in samples if one.name == name and one.labels["request"] == "FetchFollower"]
        return max(one.value for one in followers)

    eventually(waited_ms, "an idle follower's fetch waits for half a second", good=lambda found: found > 100)


def test_errors_are_counted_of_every_api(fleet: Fleet) -> None:
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    errors = "fleetlog_errors_total"
    assert total(fleet, "/metrics", errors, api="CreateTopics", error="TOPIC_ALREADY_EXISTS") >= 1
    consumer = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": "figures"})
    with pytest.raises(KafkaException):
        consumer.commit(offsets=[TopicPartition("nothing", 0, 1)], asynchronous=False)
    consumer.close()
    assert total(fleet, "/metrics", errors, api="OffsetCommit", error="UNKNOWN_TOPIC_OR_PARTITION") >= 1


def counted(fleet: Fleet, name: str, group: str) -> float:
    """A figure of a group, 0 before its coordinator tells it."""
    found = (one for broker in fleet.brokers for one in page(broker, "/metrics") if one.name == name)
    return sum(one.value for one in found if one.labels["group"] == group)


def test_a_group_that_rebalances_is_counted(fleet: Fleet) -> None:
    consumer = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": "counted"})
    consumer.subscribe([TOPIC])
    eventually(lambda: consumer.poll(0.2) is None and len(consumer.assignment()) == 2, "it has its partitions")
    assert total(fleet, "/metrics", "fleetlog_group_rebalance_seconds_count") >= 1
    eventually(lambda: total(fleet, "/metrics", "fleetlog_group_rebalance_longest_seconds") == 0, "none is under way")
    name = "fleetlog_group_rebalances_total"
    eventually(lambda: counted(fleet, name, "counted") >= 1, "the group is told")
    consumer.close()


def test_a_follower_that_is_away_is_behind_and_its_return_is_counted(fleet: Fleet) -> None:
    before = total(fleet, "/metrics/kafka", "kafka_server_replicamanager_isrexpands_total")
    lag = [f"fleetlog_follower_lag_{what}" for what in ("records", "bytes", "seconds")]
    eventually(lambda: all(total(fleet, "/metrics", name) == 0 for name in lag[:2]), "nothing lacks")
    one, two = fleet.brokers
    two.stop()
    client.produce(one.address, TOPIC, [Message(b"v" * 100, partition=n % 2) for n in range(30)])

    def behind(name: str) -> float:
        found = (sample for sample in page(one, "/metrics") if sample.name == name)
        return sum(sample.value for sample in found if sample.labels["follower"] == "2")

    eventually(lambda: behind(lag[2]) > 1, "seconds pass")
    assert behind(lag[0]) >= 30
    assert behind(lag[1]) >= 30 * 100
    two.start()
    two.wait_ready()

    def back() -> bool:
        return total(fleet, "/metrics", "fleetlog_missing_in_sync_replicas") == 0

    eventually(back, "both replicas in sync", 30)
    assert total(fleet, "/metrics/kafka", "kafka_server_replicamanager_isrexpands_total") > before
    eventually(lambda: behind(lag[0]) == behind(lag[1]) == 0, "it has caught up")
    numbers = {sample.name: sample.value for sample in page(two, "/metrics") if not sample.labels}
    assert numbers["fleetlog_start_logs_done"] >= 2
    assert numbers["fleetlog_start_logs_left"] == numbers["fleetlog_shortened_logs"] == 0


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("confluent", "kafka_server_brokertopicmetrics_bytesinpersec"),
        ("bitnami", "kafka_server_brokertopicmetrics_bytesinpersec_count"),
    ],
)
def test_other_spellings_have_the_same_numbers(fleet: Fleet, names: str, expected: str) -> None:
    text = {}
    for query in ("strimzi", names):
        url = f"http://127.0.0.1:{fleet.brokers[0].admin_port}/metrics/kafka?names={query}"
        text[query] = urlopen(url, timeout=30).read().decode()
    plain = re.findall(r"^kafka_server_brokertopicmetrics_bytesin_total(\S*) (\S+)$", text["strimzi"], re.MULTILINE)
    assert plain
    assert re.findall(rf"^{expected}(\S*) (\S+)$", text[names], re.MULTILINE) == plain


def test_unknown_spellings_and_pages_are_refused(fleet: Fleet) -> None:
    for path, status in (("/metrics/kafka?names=else", 400), ("/metrics/else", 404)):
        with pytest.raises(HTTPError) as error:
            urlopen(f"http://127.0.0.1:{fleet.brokers[0].admin_port}{path}", timeout=30)
        assert error.value.code == status
