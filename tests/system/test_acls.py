"""ACLs on real brokers: written to ZooKeeper, followed by all of them, and decided by for each request.

Without a login every client is ``User:ANONYMOUS``; clients differ by their address. The brokers themselves come from
127.0.0.1 and hold nothing but ClusterAction there.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kazoo.client import KazooClient

import fleetlog.wire.messages as m
from fleetlog.brokers.api.rows import api_table
from fleetlog.brokers.cli.main import cli
from fleetlog.spark.client.connections import Client as KafkaClient
from fleetlog.spark.client.failures import FenceError
from fleetlog.spark.client.producer import MemberProducer, WriteSettings
from fleetlog.spark.sink.batch_transactions import BatchTransactions
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.support.acl_requests import DESCRIBE_ACLS_VERSION, count_of_acls, describe_acls
from tests.support.filled import SECRET, codes, filled
from tests.support.fleet import Broker, Fleet
from tests.support.footprint import footprint_of, settled
from tests.support.harness import Client
from tests.support.waiting import eventually
from tests.system.standing import Standing, fetches, produces

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.xdist_group("acls")]

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ANONYMOUS, HERE, ELSEWHERE = "User:ANONYMOUS", "127.0.0.1", "127.0.0.2"
EFFECT_S = 1.0
"""A bound for the quickest of equal changes: any one of them may come while the machine stands still."""
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
BROKER_ACL = (ResourceType.BROKER, "kafka-cluster", LITERAL, AclOperation.CLUSTER_ACTION)
TESTS_ACLS = (
    BROKER_ACL,
    (ResourceType.BROKER, "kafka-cluster", LITERAL, AclOperation.ALTER),
    (ResourceType.BROKER, "kafka-cluster", LITERAL, AclOperation.DESCRIBE),
    (ResourceType.TOPIC, "t-", PREFIXED, AclOperation.ALL),
    (ResourceType.TOPIC, SECRET, LITERAL, AclOperation.ALL),
    (ResourceType.GROUP, "t-", PREFIXED, AclOperation.ALL),
    (ResourceType.TRANSACTIONAL_ID, "t-", PREFIXED, AclOperation.ALL),
)
_numbers = itertools.count()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three brokers with the rights of ``TESTS_ACLS``, and no super user but a name that no client has."""
    fleet = Fleet(tmp_path_factory.mktemp("guarded"), authorizer_class_name=AUTHORIZER, super_users="User:admin")
    try:
        for broker in fleet.brokers:
            broker.start(f"super.users={ANONYMOUS}")
        for broker in fleet.brokers:
            broker.wait_ready()
        first = admin_of(fleet)
        write(first, *(binding(*acl, host=HERE) for acl in TESTS_ACLS))
        for broker in fleet.brokers:
            broker.stop()
        yield fleet.start()
    finally:
        fleet.close()


class FleetAdmin(AdminClient):
    """A client for ACLs that can ask each broker of the fleet what it has read."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__({"bootstrap.servers": fleet.bootstrap, "socket.timeout.ms": 10_000, "log_level": 0})
        self._fleet = fleet

    def followed(self, asked: AclBindingFilter, good: Callable[[int], bool]) -> None:
        """Wait until the number of ACLs that match is good on every broker."""
        request = describe_acls(asked)
        for broker in self._fleet.brokers:
            client = Client(broker.port, HERE)

            def count(client: Client = client) -> int:
                return count_of_acls(client.ask(request, DESCRIBE_ACLS_VERSION))

            eventually(count, f"broker {broker.id} has read the change", good=good)
            client.close()


def admin_of(fleet: Fleet) -> FleetAdmin:
    return FleetAdmin(fleet)


@pytest.fixture(scope="module")
def admin(guarded: Fleet) -> FleetAdmin:
    return admin_of(guarded)


def binding(
    kind: Any, name: str, pattern: Any, operation: Any, permission: Any = ALLOW, *, host: str = "*"
) -> AclBinding:
    return AclBinding(kind, name, pattern, ANONYMOUS, host, operation, permission)


def of_topic(name: str, pattern: Any = LITERAL, host: str | None = None) -> AclBindingFilter:
    return AclBindingFilter(ResourceType.TOPIC, name, pattern, None, host, AclOperation.ANY, AclPermissionType.ANY)


def write(admin: AdminClient, *bindings: AclBinding) -> None:
    """Create ACLs. Brokers other than the one that was asked follow soon after the answer."""
    for future in admin.create_acls(list(bindings)).values():
        future.result(20)


def create(admin: FleetAdmin, *bindings: AclBinding) -> None:
    """Create ACLs, and wait until every broker has read them."""
    write(admin, *bindings)
    for one in bindings:
        asked = AclBindingFilter(
            one.restype, one.name, one.resource_pattern_type, one.principal, one.host, one.operation,
            one.permission_type,
        )  # fmt: skip
        admin.followed(asked, lambda found: found > 0)


def remove(admin: AdminClient, asked: AclBindingFilter) -> list[AclBinding]:
    """Delete ACLs. Brokers other than the one that was asked follow soon after the answer."""
    (future,) = admin.delete_acls([asked]).values()
    return list(future.result(20))


def delete(admin: FleetAdmin, asked: AclBindingFilter) -> list[AclBinding]:
    """Delete ACLs, and wait until every broker has read that."""
    found = remove(admin, asked)
    admin.followed(asked, lambda left: left == 0)
    return found


@pytest.fixture
def topic(admin: FleetAdmin) -> str:
    """A topic of three partitions, each of which has another leader."""
    name = f"t-{next(_numbers)}"
    (future,) = admin.create_topics([NewTopic(name, 3, 3)]).values()
    future.result(20)
    eventually(
        lambda: sorted(p.leader for p in admin.list_topics(name, timeout=10).topics[name].partitions.values()),
        "each broker leads a partition",
        good=lambda leaders: leaders == [1, 2, 3],
    )
    return name


def produced(fleet: Fleet, topic: str, **settings: Any) -> KafkaError | None:
    """The error of one record, acknowledged by all replicas; None: it was written."""
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "log_level": 0, "acks": "all", **settings})
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"value", partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    assert errors, "no answer in time"
    return errors[0]


def may(broker: Broker, topic: str, host: str = HERE) -> bool:
    """Whether that broker lets a client describe the topic."""
    client = Client(broker.port, host)
    asked = m.request_class(3).MetadataRequestTopic(version=12, name=topic)
    request = m.request_class(3)(
        version=12, topics=[asked], allow_auto_topic_creation=False, include_topic_authorized_operations=True
    )
    (row,) = client.ask(request, 12).topics
    client.close()
    denied: bool = row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert denied or row.error_code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return not denied


def takes_effect(fleet: Fleet, topic: str, wanted: bool, host: str = ELSEWHERE) -> float:
    """After how many seconds from now every broker decides so."""
    began = time.monotonic()
    for broker in fleet.brokers:
        eventually(lambda broker=broker: may(broker, topic, host), "the effect", good=lambda now: now is wanted)
    return time.monotonic() - began


# ---------------------------------------------------------------- rights


def test_brokers_with_cluster_action_alone_replicate_and_coordinate(
    guarded: Fleet, admin: FleetAdmin, topic: str
) -> None:
    """Internal topics are created, all replicas acknowledge, and a transaction's markers reach other brokers."""
    assert produced(guarded, topic) is None
    producer = Producer({"bootstrap.servers": guarded.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce(topic, b"together", partition=partition)
    producer.commit_transaction(30)
    consumer = Consumer(
        {"bootstrap.servers": guarded.bootstrap, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    seen: list[bytes] = []
    while len(seen) < 4:
        (message,) = consumer.consume(1, 30)
        assert message.error() is None
        seen.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    assert sorted(seen) == [b"together"] * 3 + [b"value"]


def test_the_recipe_for_a_spark_job_is_enough(guarded: Fleet, admin: FleetAdmin) -> None:
    """docs/security.md: Read on what is read, Write on what is written and on the sink's name."""
    name, sink = f"job-{next(_numbers)}", f"sink-{next(_numbers)}"
    making = binding(ResourceType.TOPIC, name, LITERAL, AclOperation.CREATE, host=HERE)
    create(admin, making)
    (future,) = admin.create_topics([NewTopic(name, 1, 3)]).values()
    future.result(20)
    delete(admin, of_topic(name))
    client = KafkaClient({"bootstrap_servers": guarded.bootstrap.split(",")})
    sinks = BatchTransactions(client, sink)
    with pytest.raises(FenceError) as denied:
        sinks.begin(60_000)
    assert "authorization" in str(denied.value).lower()
    create(
        admin,
        binding(ResourceType.TOPIC, name, LITERAL, AclOperation.WRITE, host=HERE),
        binding(ResourceType.TRANSACTIONAL_ID, sink, LITERAL, AclOperation.WRITE, host=HERE),
    )
    batch = sinks.begin(60_000)
    (member,) = sinks.enlist(batch)
    producer = MemberProducer(client, sink, member, WriteSettings(name))
    producer.write(pa.record_batch([pa.array(["total"])], ["value"]))
    producer.flush()
    sinks.commit(batch, "query", 0, "", [member])
    client.close()
    create(admin, binding(ResourceType.TOPIC, name, LITERAL, AclOperation.READ, host=HERE))
    consumer = Consumer({"bootstrap.servers": guarded.bootstrap, "group.id": "t-any", "log_level": 0})
    consumer.assign([TopicPartition(name, 0, 0)])
    (message,) = consumer.consume(1, 30)
    consumer.close()
    assert message.value() == b"total"


def test_acls_are_created_described_and_deleted(admin: FleetAdmin) -> None:
    name = f"t-acl-{next(_numbers)}"
    exact = binding(ResourceType.TOPIC, name, LITERAL, AclOperation.READ, host="10.0.0.7")
    prefix = binding(ResourceType.TOPIC, name[:-1], PREFIXED, AclOperation.WRITE, DENY, host="10.0.0.7")
    create(admin, exact, prefix)
    create(admin, exact)
    everywhere = of_topic(name, ResourcePatternType.MATCH, "10.0.0.7")
    assert set(admin.describe_acls(everywhere).result(20)) == {exact, prefix}
    assert delete(admin, of_topic(name)) == [exact]
    assert delete(admin, of_topic(name)) == []
    assert admin.describe_acls(everywhere).result(20) == [prefix]
    assert delete(admin, everywhere) == [prefix]


def test_a_denied_client_neither_produces_nor_fetches_nor_sees_the_topic(
    guarded: Fleet, admin: FleetAdmin, topic: str
) -> None:
    assert produced(guarded, topic) is None
    create(admin, binding(ResourceType.TOPIC, topic, LITERAL, AclOperation.WRITE, DENY))
    error = produced(guarded, topic)
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer = Consumer({"bootstrap.servers": guarded.bootstrap, "group.id": topic, "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    (message,) = consumer.consume(1, 20)
    assert message.value() == b"value"
    create(admin, binding(ResourceType.TOPIC, topic, LITERAL, AclOperation.READ, DENY))
    denied = eventually(lambda: consumer.poll(1), "a fetch is refused", good=lambda got: got is not None)
    assert denied.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
    assert topic in admin.list_topics(timeout=10).topics
    create(admin, binding(ResourceType.TOPIC, topic, LITERAL, AclOperation.DESCRIBE, DENY))
    assert topic not in admin.list_topics(timeout=10).topics
    assert admin.list_topics(topic, timeout=10).topics[topic].error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert delete(admin, of_topic(topic))
    assert produced(guarded, topic) is None


def test_a_change_has_effect_on_every_broker_within_a_second(guarded: Fleet, admin: FleetAdmin, topic: str) -> None:
    for broker in guarded.brokers:
        assert not may(broker, topic, ELSEWHERE)
    allowed, denied = [], []
    for _ in range(5):
        write(admin, binding(ResourceType.TOPIC, topic, LITERAL, AclOperation.READ, host=ELSEWHERE))
        allowed.append(takes_effect(guarded, topic, True))
        remove(admin, of_topic(topic, host=ELSEWHERE))
        denied.append(takes_effect(guarded, topic, False))
    assert min(allowed) < EFFECT_S
    assert min(denied) < EFFECT_S


@pytest.mark.parametrize("operation", [AclOperation.WRITE, AclOperation.READ])
def test_a_right_that_is_denied_ends_the_work_of_standing_clients_within_a_second(
    guarded: Fleet, admin: FleetAdmin, topic: str, operation: AclOperation
) -> None:
    """On every broker and on the connections that are open; the others' requests go on."""
    leaders = {p.id: p.leader for p in admin.list_topics(topic, timeout=10).topics[topic].partitions.values()}
    clients: dict[AclOperation, list[Standing]] = {AclOperation.WRITE: [], AclOperation.READ: []}
    try:
        for partition, leader in leaders.items():
            clients[AclOperation.WRITE].append(Standing(guarded.brokers[leader - 1], produces(topic, partition)))
            clients[AclOperation.READ].append(Standing(guarded.brokers[leader - 1], fetches(topic, partition)))
        every = [client for both in clients.values() for client in both]
        assert {client.broker.id for client in clients[operation]} == {1, 2, 3}

        def all_say(asked: list[Standing], wanted: int) -> float:
            """After how many seconds from now all were answered so, and nothing else any more."""
            began = time.monotonic()
            for client in asked:
                eventually(
                    lambda client=client: client.errors_from(began), f"answers of broker {client.broker.id}",
                    good=lambda found: found and found[-1] == wanted,
                )  # fmt: skip
            return max(client.last_other(began, wanted) for client in asked) - began

        all_say(every, 0)
        began = time.monotonic()
        denied, allowed = [], []
        for _ in range(3):
            write(admin, binding(ResourceType.TOPIC, topic, LITERAL, operation, DENY))
            denied.append(all_say(clients[operation], ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            remove(admin, of_topic(topic))
            allowed.append(all_say(clients[operation], 0))
        assert min(denied) < EFFECT_S
        assert min(allowed) < EFFECT_S
        others = [client for client in every if client not in clients[operation]]
        for client in others:
            errors = eventually(partial(client.errors_from, began), f"answers of broker {client.broker.id}")
            assert set(errors) == {0}
    finally:
        for both in clients.values():
            for client in both:
                client.close()


def test_a_client_is_told_what_it_may_do(guarded: Fleet, admin: FleetAdmin, topic: str) -> None:
    create(admin, binding(ResourceType.TOPIC, topic, LITERAL, AclOperation.READ, host=ELSEWHERE))
    takes_effect(guarded, topic, True)
    client = Client(guarded.brokers[0].port, ELSEWHERE)
    asked = m.request_class(3).MetadataRequestTopic(version=12, name=topic)
    request = m.request_class(3)(version=12, topics=[asked], include_topic_authorized_operations=True)
    (row,) = client.ask(request, 12).topics
    client.close()
    assert row.authorized_operations == {int(AclOperation.READ.value), int(AclOperation.DESCRIBE.value)}
    delete(admin, of_topic(topic, host=ELSEWHERE))


def test_what_no_acl_can_be_is_refused(guarded: Fleet, admin: FleetAdmin) -> None:
    client = Client(guarded.brokers[0].port)
    creation = m.request_class(30).AclCreation
    fields = {
        "resource_type": 2, "resource_name": "t-x", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip
    wrong = [
        {"resource_type": 99}, {"resource_type": 4}, {"resource_name": ""},
        {"resource_pattern_type": 2}, {"principal": "alice"}, {"host": ""}, {"operation": 1}, {"permission_type": 0},
    ]  # fmt: skip
    answer = client.ask(m.request_class(30)(creations=[creation(**fields | one) for one in wrong]), 3)
    assert [one.error_code for one in answer.results] == [ErrorCode.INVALID_REQUEST] * len(wrong)
    assert all(one.error_message for one in answer.results)
    everything = {
        "resource_type_filter": 0, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    assert client.ask(m.request_class(29)(**everything), 3).error_code == ErrorCode.INVALID_REQUEST
    filters = [m.request_class(31).DeleteAclsFilter(**everything)]
    (result,) = client.ask(m.request_class(31)(filters=filters), 3).filter_results
    assert result.error_code == ErrorCode.INVALID_REQUEST
    client.close()


def test_many_acls_at_once(guarded: Fleet, admin: FleetAdmin) -> None:
    """More patterns than one write of ZooKeeper's takes, and change nodes that are removed again."""
    names = [f"t-many-{number}" for number in range(300)]
    create(admin, *(binding(ResourceType.TOPIC, one, LITERAL, AclOperation.READ, host=ELSEWHERE) for one in names))
    takes_effect(guarded, names[-1], True)
    everything = of_topic("t-many-0", ResourcePatternType.ANY, ELSEWHERE)
    assert len(delete(admin, everything)) == 1
    filters = [of_topic(one, host=ELSEWHERE) for one in names[1:]]
    deleted = [future.result(20) for future in admin.delete_acls(filters).values()]
    assert sum(map(len, deleted)) == len(names) - 1
    takes_effect(guarded, names[-1], False)


# ---------------------------------------------------------------- every API


LISTS = {16, 66}
TOLD = {key for key, row in api_table().items() if not row.needs}


@pytest.mark.parametrize("key", sorted(APIS))
def test_a_client_without_rights_is_refused_by_every_api(guarded: Fleet, admin: FleetAdmin, key: int) -> None:
    """At each version; what it named does not come into being."""
    row = APIS[key]
    for version in range(row.lowest, row.max_version + 1):
        client = Client(guarded.brokers[version % 3].port, ELSEWHERE)
        answer = client.ask(filled(key, version), version)
        client.close()
        shown = set(codes(answer))
        if key in TOLD:
            continue
        assert shown <= {
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            *((ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if _by_id(key, version) else ()),
        }, f"version {version}"
        if key not in LISTS | {60} and not (key == 35 and version < 3):
            assert shown, f"version {version}"
        else:
            lists = [value for name, value in answer.to_dict().items() if isinstance(value, list) and name != "brokers"]
            assert not any(lists), f"version {version}"
    assert SECRET not in admin.list_topics(timeout=10).topics


def test_what_a_client_without_rights_asks_leaves_no_trace(guarded: Fleet, admin: FleetAdmin) -> None:
    """Each API in each version at each broker, where what it names exists: logs, offsets and znodes stay."""
    kinds = (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    create(admin, *(binding(kind, SECRET, LITERAL, AclOperation.ALL, host=HERE) for kind in kinds))
    (made,) = admin.create_topics([NewTopic(SECRET, 1, 3)]).values()
    made.result(20)
    try:
        assert produced(guarded, SECRET) is None
        Producer({"bootstrap.servers": guarded.bootstrap, "transactional.id": SECRET}).init_transactions(30)
        consumer = Consumer({"bootstrap.servers": guarded.bootstrap, "group.id": SECRET, "log_level": 0})
        consumer.commit(offsets=[TopicPartition(SECRET, 0, 1)], asynchronous=False)
        consumer.close()
        before = settled(guarded, SECRET)
        assert before.offsets == {(SECRET, 0): 1}
        assert all(before.logs[broker.id, SECRET, 0] for broker in guarded.brokers)
        assert f"/brokers/topics/{SECRET}" in before.znodes
        for broker in guarded.brokers:
            for key, row in sorted(APIS.items()):
                client = Client(broker.port, ELSEWHERE)
                for version in range(row.lowest, row.max_version + 1):
                    client.ask(filled(key, version), version)
                client.close()
        after = footprint_of(guarded, SECRET)
        assert after.logs == before.logs
        assert after.offsets == before.offsets
        assert after.znodes == before.znodes
        assert produced(guarded, SECRET) is None
        assert footprint_of(guarded, SECRET).logs != before.logs, "what a client with rights does is seen"
    finally:
        (deleted,) = admin.delete_topics([SECRET]).values()
        deleted.result(20)
        for kind in kinds:
            delete(admin, AclBindingFilter(kind, SECRET, LITERAL, None, HERE, AclOperation.ANY, AclPermissionType.ANY))


def _by_id(key: int, version: int) -> bool:
    """Topics named by an id that does not exist: that is no secret."""
    return (key, version) in {(0, 13), (20, 6), (3, 12), (3, 13), *((1, v) for v in range(13, 19))}


# ---------------------------------------------------------------- the log, and the command line


def test_denials_are_logged_as_by_kafka(guarded: Fleet, topic: str) -> None:
    may(guarded.brokers[0], topic, ELSEWHERE)
    line = (
        f"INFO kafka.authorizer.logger Principal = {ANONYMOUS} is Denied Operation = Describe from host = {ELSEWHERE} "
        f"on resource = Topic:LITERAL:{topic} for request = Metadata with resourceRefCount = 1"
    )
    eventually(lambda: line in guarded.brokers[0].output(), "the line")
    client = Client(guarded.brokers[0].port, ELSEWHERE)
    names = [f"t-log-{number}" for number in range(1000)]
    topics = [m.request_class(3).MetadataRequestTopic(version=12, name=name) for name in names]
    client.ask(m.request_class(3)(version=12, topics=topics), 12)
    time.sleep(1.1)
    client.ask(m.request_class(3)(version=12, topics=topics[:1]), 12)
    client.close()
    log, counted = guarded.brokers[0].log_file, r"(\d+) more denied within that second"
    eventually(
        lambda: max(map(int, re.findall(counted, log.read_text())), default=0) >= 700,
        "what is not in the log is counted",
    )


def test_the_command_line(guarded: Fleet) -> None:
    def run(*arguments: str, code: int = 0) -> Any:
        found = CliRunner().invoke(cli, ["acls", *arguments, "--bootstrap", guarded.bootstrap], prog_name="fleetlog")
        assert found.exit_code == code, found.output
        return found

    name = f"t-cli-{next(_numbers)}"
    added = run(
        "add", "--allow", "--principal", "User:alice", "--principal", "User:bob", "--operation", "read",
        "--operation", "Describe", "--topic", name, "--group", name, "--host", "::1", "--json",
    )  # fmt: skip
    assert len(json.loads(added.stdout)) == 8
    listed = json.loads(run("list", "--topic", name, "--principal", "User:bob", "--json").stdout)
    assert [row["operation"] for row in listed] == ["Describe", "Read"]
    assert listed[0] == {
        "resource": "Topic", "name": name, "pattern": "literal", "permission": "Allow", "operation": "Describe",
        "principal": "User:bob", "host": "0:0:0:0:0:0:0:1",
    }  # fmt: skip
    assert name in run("list").stdout
    assert "--yes" in run("remove", "--topic", name, code=1).stderr
    removed = json.loads(run("remove", "--topic", name, "--group", name, "--yes", "--json").stdout)
    assert len(removed) == 8
    assert "no ACL matches" in run("remove", "--topic", name, "--yes", code=1).stderr
    assert "without one all ACLs would go" in run("remove", "--yes", code=2).stderr
    assert "--principal is missing" in run("add", "--deny", "--topic", name, code=2).stderr
    assert "write it as Type:name" in run("list", "--principal", "alice", code=2).stderr


def test_a_range_of_addresses_decides_on_every_broker(guarded: Fleet, admin: FleetAdmin, topic: str) -> None:
    create(admin, binding(ResourceType.TOPIC, topic, LITERAL, AclOperation.DESCRIBE, host="127.0.0.2/31"))
    for broker in guarded.brokers:
        assert [may(broker, topic, host) for host in ("127.0.0.2", "127.0.0.3", "127.0.0.4")] == [True, True, False]
    create(admin, binding(ResourceType.TOPIC, topic, LITERAL, AclOperation.ALL, DENY, host="127.0.0.3/32"))
    for broker in guarded.brokers:
        assert [may(broker, topic, host) for host in ("127.0.0.2", "127.0.0.3")] == [True, False]
    assert [one.host for one in delete(admin, of_topic(topic, host="127.0.0.2/31"))] == ["127.0.0.2/31"]
    assert not may(guarded.brokers[0], topic, "127.0.0.2")
    with pytest.raises(KafkaException, match=r"Invalid CIDR notation '10\.0\.0\.0/33': an IPv4 address has 32 bits"):
        write(admin, binding(ResourceType.TOPIC, topic, LITERAL, AclOperation.READ, host="10.0.0.0/33"))
    command = ["acls", "add", "--bootstrap", guarded.bootstrap, "--allow", "--principal", ANONYMOUS, "--topic", topic]
    done = CliRunner().invoke(
        cli, [*command, "--operation", "Describe", "--host", "127.0.0.9/28"], prog_name="fleetlog"
    )
    assert "127.0.0.0/28" in done.output, "the first address of the range stands for it"
    assert takes_effect(guarded, topic, True, "127.0.0.7") >= 0


def test_no_range_is_made_while_an_older_broker_is_registered(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 1, authorizer_class_name=AUTHORIZER, super_users=ANONYMOUS)
    zookeeper = KazooClient(fleet.zookeeper_connect)
    try:
        fleet.start()
        zookeeper.start()
        admin = admin_of(fleet)
        registration = json.loads(zookeeper.get("/brokers/ids/1")[0])
        assert registration.pop("matches_ranges")
        zookeeper.create("/brokers/ids/2", json.dumps(registration).encode(), ephemeral=True)
        asked = binding(ResourceType.TOPIC, "t", LITERAL, AclOperation.READ, host="10.0.0.0/8")

        def outcome() -> str:
            try:
                write(admin, asked)
            except KafkaException as error:
                return str(error)
            return "made"

        refused = eventually(outcome, "it is known", good=lambda told: told != "made")
        assert "UNSUPPORTED_VERSION" in refused
        assert "first upgrade 2" in refused
        write(admin, binding(ResourceType.TOPIC, "t", LITERAL, AclOperation.READ, host="10.0.0.1"))
        zookeeper.delete("/brokers/ids/2")
        assert eventually(outcome, "it is gone", good=lambda told: told == "made")
    finally:
        zookeeper.stop()
        fleet.close()


# ---------------------------------------------------------------- settings, and ZooKeeper


def test_a_broker_that_could_not_replicate_does_not_start(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, brokers=1, authorizer_class_name=AUTHORIZER, super_users="User:admin")
    try:
        (broker,) = fleet.brokers
        broker.start()
        assert broker.process is not None
        assert broker.process.wait(30) == 1
        assert "broker 1 cannot start: the authorizer does not let the brokers replicate" in broker.output()
        broker.start("allow.everyone.if.no.acl.found=true")
        broker.wait_ready()
        admin = admin_of(fleet)
        write(admin, binding(*BROKER_ACL[:3], AclOperation.ALL, host="10.0.0.1"))
        eventually(
            lambda: "ERROR fleetlog.brokers.api.authorizer the authorizer does not let" in broker.output(), "it is said"
        )
        with pytest.raises(KafkaException) as denied:
            write(admin, binding(*BROKER_ACL))
        assert denied.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    finally:
        fleet.close()


def test_without_an_authorizer_nothing_is_authorized_and_it_is_said(fleet: Fleet, tmp_path: Path) -> None:
    admin = admin_of(fleet)
    with pytest.raises(KafkaException) as refused:
        write(admin, binding(*BROKER_ACL))
    assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED
    alone = Fleet(tmp_path, brokers=1, super_users="User:admin")
    try:
        alone.start()
        assert "super.users have no effect without authorizer.class.name" in alone.brokers[0].output()
    finally:
        alone.close()


def test_without_zookeeper_the_last_acls_decide(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, brokers=1, authorizer_class_name=AUTHORIZER, allow_everyone_if_no_acl_found="true")
    try:
        (broker,) = fleet.start().brokers
        admin = admin_of(fleet)
        write(admin, binding(ResourceType.TOPIC, "t-closed", LITERAL, AclOperation.READ, host=HERE))
        assert not may(broker, "t-closed", ELSEWHERE)
        fleet.zookeeper.kill()
        changes = admin.create_acls(
            [binding(ResourceType.TOPIC, "t-closed", LITERAL, AclOperation.READ)], request_timeout=60
        )
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert not may(broker, "t-closed", ELSEWHERE)
            time.sleep(0.2)
        (change,) = changes.values()
        assert not change.done(), "nothing is acknowledged that is not written"
        fleet.zookeeper.start()
        change.result(70)
        eventually(lambda: may(broker, "t-closed", ELSEWHERE), "the change has effect")
    finally:
        fleet.close()


def test_brokers_read_schemas_with_rights_of_brokers(guarded: Fleet, admin: FleetAdmin) -> None:
    """A leader needs ClusterAction for it, and no right on ``_schemas``, which a client without one is not told of."""
    for operation in (AclOperation.CREATE, AclOperation.WRITE):
        write(admin, binding(ResourceType.TOPIC, "_schemas", LITERAL, operation, host=HERE))
    admin.followed(of_topic("_schemas"), lambda count: count == 2)
    first, second = guarded.brokers[:2]
    asked = {"cleanup.policy": "compact"}, {"fleetlog.schema.validation": "id"}
    for name, leader, config in (("_schemas", first, asked[0]), ("t-checked", second, asked[1])):
        created = admin.create_topics([NewTopic(name, 1, replica_assignment=[[leader.id]], config=config)])
        created[name].result(30)
    key = b'{"keytype":"SCHEMA","subject":"t-checked-value","version":1,"magic":1}'
    assert sent(guarded, "_schemas", b'{"id": 7, "schema": "\\"string\\"", "deleted": false}', key) == 0
    assert sent(guarded, "t-checked", b"\0\0\0\0\7\2x", b"k") == 0
    assert sent(guarded, "t-checked", b"plain", b"k") == KafkaError.INVALID_RECORD
    client = Client(first.port, ELSEWHERE)
    topic = m.ListOffsetsRequest.ListOffsetsTopic
    part = topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    answer = client.ask(m.ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[topic(name="_schemas", partitions=[part])]
    ), 6)  # fmt: skip
    client.close()
    assert answer.topics[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def sent(fleet: Fleet, topic: str, value: bytes, key: bytes) -> int:
    """The code of the error that the producer hears, 0 if none."""
    codes: list[int] = []
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "message.timeout.ms": 30_000, "log_level": 0})
    producer.produce(topic, value, key, on_delivery=lambda error, _: codes.append(0 if error is None else error.code()))
    assert producer.flush(60) == 0
    return codes[0]
