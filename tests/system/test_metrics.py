"""The pages of metrics of a live fleet: what people's dashboards query is there, and what is there is in the docs.

``python -m tests.system.test_metrics`` writes docs/metric-names.md anew.
"""

from __future__ import annotations

import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fleetlog.brokers.controller.elections import ElectionReason
from tests.support.clients import Confluent, Message
from tests.support.families import LEFT_OUT, STRIMZI_KAFKA, STRIMZI_REST
from tests.support.fleet import Broker, Fleet
from tests.support.secured import USER
from tests.support.tls_fleet import TlsFleet
from tests.support.tls_listeners import Certificates
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

client = Confluent()
TOPIC = "orders"


DOCS = Path(__file__).parents[2] / "docs"
DOC, NAMES = DOCS / "metrics.md", DOCS / "metric-names.md"
PAGES = ("/metrics", "/metrics/partitions", "/metrics/kafka")
SOURCED = "sourced"
ONLY_WITH = {"fleetlog_audit": ("gauge", "Audit events, by what became of them; only with `audit.enable`.")}
"""What the fleet of these tests has no page for."""
TOP = """# Names of metrics

Every metric of the three pages that [metrics.md](metrics.md) describes, with its type and its own explanation.
`python -m tests.system.test_metrics` writes this page from a live fleet, a test compares it with one.
"""


@contextmanager
def running_fleet(directory: Path) -> Iterator[Fleet]:
    """Two brokers with listeners of all kinds that have had some of everything to do."""
    bucket = {"remote.log.storage.system.enable": "true", "fleetlog.bucket.url": f"file://{directory}/bucket"}
    fleet = TlsFleet(directory / "fleet", Certificates(directory), 2, group_lag_interval_ms=500, **bucket)
    try:
        fleet.start()
        admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
        made = admin.create_topics(
            [NewTopic(TOPIC, 2, 2), NewTopic(SOURCED, 1, 2, config={"fleetlog.dedup": "source"})]
        )  # fmt: skip
        for one in made.values():
            one.result(60)
        client.produce(fleet.bootstrap, TOPIC, [Message(b"v" * 100, partition=n % 2) for n in range(20)])
        for partition in (0, 1):
            assert len(client.consume(fleet.bootstrap, TOPIC, 10, partition=partition)) == 10
        member = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": "steady"})
        member.subscribe([TOPIC])
        eventually(lambda: member.poll(0.2) is None and len(member.assignment()) == 2, "it has its partitions")
        member.commit(offsets=[TopicPartition(TOPIC, n, 10) for n in (0, 1)], asynchronous=False)
        secured = AdminClient(fleet.confluent("LOGIN"))
        assert TOPIC in secured.list_topics(timeout=30).topics
        eventually(lambda: "kafka_consumergroup_lag" in names_of(fleet), "the lag is computed")
        with (
            socket.create_connection(("127.0.0.1", fleet.ports["ONEWAY"])) as sock,
            fleet.certificates.client().wrap_socket(sock, server_hostname="localhost"),  # stays connected
        ):
            yield fleet
        member.close()
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("metrics")) as running:
        yield running


def text_of(broker: Broker, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{broker.admin_port}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def names_of(fleet: Fleet) -> dict[str, tuple[str, str]]:
    """Type and explanation by name, of all pages of all brokers."""
    found = dict(ONLY_WITH)
    for broker in fleet.brokers:
        for path in PAGES:
            text = text_of(broker, path)
            kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
            for name, meaning in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE):
                found[name] = (kinds[name], meaning)
    return {name: found[name] for name in found if not name.endswith("_created")}


def names_page(fleet: Fleet) -> str:
    """docs/metric-names.md."""
    rows = [f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in sorted(names_of(fleet).items())]
    return "\n".join([TOP, "| name | type | meaning |", "|---|---|---|", *rows, ""])


def page(broker: Broker, path: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text_of(broker, path)) for sample in family.samples]


def total(fleet: Fleet, path: str, name: str, **labels: str) -> float:
    found = [sample for broker in fleet.brokers for sample in page(broker, path) if sample.name == name]
    assert found, f"{path} has no {name}"
    return sum(one.value for one in found if labels.items() <= one.labels.items())


def test_each_series_of_strimzis_dashboard_is_there(fleet: Fleet) -> None:
    found = {(one.name, *sorted(one.labels)) for broker in fleet.brokers for one in page(broker, "/metrics/kafka")}
    wanted = {**STRIMZI_KAFKA, **STRIMZI_REST}
    missing = [(name, labels) for name, labels in wanted.items() if (name, *sorted(labels)) not in found]
    assert not missing
    assert ("kafka_server_brokertopicmetrics_bytesin_total",) in found, "the sum over all topics has no label"


def test_what_dashboards_ask_for_and_a_broker_does_not_have_is_in_the_doc(fleet: Fleet) -> None:
    found = {one.name for path in PAGES for one in page(fleet.brokers[0], path)}
    for name in LEFT_OUT:
        assert name not in found
        assert f"`{name}`" in DOC.read_text()


def test_the_names_in_the_docs_are_those_of_a_live_fleet(fleet: Fleet) -> None:
    """In both directions; and what the doc says of a metric is said of one that exists."""
    assert names_page(fleet).splitlines() == NAMES.read_text().splitlines(), "python -m tests.system.test_metrics"
    known = {bare(name) for name in (*names_of(fleet), *LEFT_OUT)}
    written = re.findall(r"`((?:fleetlog|kafka|process)_\w*\w)[`{]", DOC.read_text())
    named = {bare(name) for name in written if not name.startswith("fleetlog_registry_")}  # of another process
    assert named <= known, named - known


def bare(name: str) -> str:
    """A family's name without what its samples or its type add."""
    return re.sub(r"_(bucket|sum|count|total)$", "", name)


def test_logins_are_counted_by_listener_and_mechanism(fleet: Fleet) -> None:
    assert isinstance(fleet, TlsFleet)
    name, kafka = "fleetlog_authentications_total", "kafka_server_socket_server_metrics"
    well = {"listener": "LOGIN", "mechanism": "SCRAM-SHA-512", "result": "success"}
    assert total(fleet, "/metrics", name, **well) >= 1
    wrong = AdminClient({**fleet.confluent("LOGIN"), "sasl.password": "wrong"})
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=3)
    assert total(fleet, "/metrics", name, **{**well, "result": "failure"}) >= 1
    assert total(fleet, "/metrics/kafka", f"{kafka}_failed_authentication_total", listener="LOGIN") >= 1
    assert total(fleet, "/metrics/kafka", f"{kafka}_successful_authentication_total", listener="LOGIN") >= 1
    assert total(fleet, "/metrics/kafka", f"{kafka}_connection_creation_rate", listener="LOGIN") > 0
    one_way = AdminClient(fleet.confluent("ONEWAY"))
    assert TOPIC in one_way.list_topics(timeout=30).topics
    assert total(fleet, "/metrics", name, listener="ONEWAY", mechanism="TLS", result="success") >= 1
    stranger = AdminClient({**fleet.confluent("ONEWAY"), "ssl.ca.location": fleet.certificates.stranger.file})
    with pytest.raises(KafkaException):
        stranger.list_topics(timeout=3)
    assert total(fleet, "/metrics", name, listener="ONEWAY", mechanism="TLS", result="failure") >= 1
    assert USER not in text_of(fleet.brokers[0], "/metrics"), "no principal is a label"


def test_elections_and_checkpoints_are_counted(fleet: Fleet) -> None:
    reasons = {
        one.labels["reason"] for broker in fleet.brokers for one in page(broker, "/metrics")
        if one.name == "fleetlog_elections_total"
    }  # fmt: skip
    assert reasons == {reason.value for reason in ElectionReason}
    assert total(fleet, "/metrics", "fleetlog_coordinators", what="sinks") == 0


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
    lag = [f"fleetlog_follower_lag_{what}" for what in ("records", "bytes", "seconds")]
    eventually(lambda: all(total(fleet, "/metrics", name) == 0 for name in lag[:2]), "nothing lacks")
    one, two = fleet.brokers

    def expansions() -> float:  # of the broker that stays: the other's numbers begin anew
        samples = page(one, "/metrics/kafka")
        return sum(each.value for each in samples if each.name == "kafka_server_replicamanager_isrexpands_total")

    before = expansions()
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
    assert expansions() > before
    eventually(lambda: behind(lag[0]) == behind(lag[1]) == 0, "it has caught up")
    numbers = {sample.name: sample.value for sample in page(two, "/metrics") if not sample.labels}
    assert numbers["fleetlog_start_logs_done"] >= 2
    assert numbers["fleetlog_start_logs_left"] == numbers["fleetlog_shortened_logs"] == 0


def test_a_silent_transaction_is_seen_by_the_leader_of_its_log(fleet: Fleet) -> None:
    name = "fleetlog_silent_transaction_seconds"
    assert total(fleet, "/metrics", name) == 0
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": "silent"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(TOPIC, b"v", partition=0)
    assert producer.flush(60) == 0
    eventually(lambda: total(fleet, "/metrics", name) > 1, "it is silent")
    producer.commit_transaction(60)
    eventually(lambda: total(fleet, "/metrics", name) == 0, "it has ended")


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


def main() -> None:
    """Write docs/metric-names.md."""
    with tempfile.TemporaryDirectory(prefix="metrics-") as name, running_fleet(Path(name)) as running:
        NAMES.write_text(names_page(running))


if __name__ == "__main__":
    sys.exit(main())
