"""The audit's queue: data events in minutes, a killed broker, and a full queue under both policies, on real brokers."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
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

from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode
from tests.support.acl_requests import DESCRIBE_ACLS, DESCRIBE_ACLS_VERSION, count_of_acls, describe_acls
from tests.support.audited import ADMIN, ADMIN_PASSWORD, AuditReader, audited_fleet, client, flood, logged_in, of_api
from tests.support.fleet import Broker, Fleet
from tests.support.sasl_wire import RawLogin
from tests.support.secured import USER, confluent
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.xdist_group("audit queue")]

QUEUE_BYTES = 65_536
AS_ALICE = confluent("SCRAM-SHA-256")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two brokers; the audit topic needs both."""
    found = audited_fleet(tmp_path_factory.mktemp("audited"), 2, **{
        "audit.event.types": "management,authenticate,admin,produce,consume",
        "audit.queue.max.bytes": QUEUE_BYTES,
    })  # fmt: skip
    try:
        yield found.start()
    finally:
        found.close()


def gauge(broker: Broker, what: str) -> float:
    page = urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=30).read().decode()
    found = re.search(rf'^fleetlog_audit{{what="{what}"}} (\S+)$', page, re.MULTILINE)
    assert found is not None
    return float(found[1])


def allow(fleet: Fleet, admin: AdminClient, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    """Brokers other than the one that was asked follow soon after its answer: wait for all of them."""
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for future in admin.create_acls(bindings).values():
        future.result(20)
    asked = describe_acls(
        AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ANY, AclPermissionType.ALLOW
        )
    )
    for broker in fleet.brokers:
        with contextlib.closing(logged_in(broker, ADMIN, ADMIN_PASSWORD)) as operator:

            def count(operator: RawLogin = operator) -> int:
                operator.send(DESCRIBE_ACLS, DESCRIBE_ACLS_VERSION, asked)
                return count_of_acls(operator.answer(DESCRIBE_ACLS, DESCRIBE_ACLS_VERSION))

            eventually(count, f"broker {broker.id} knows the ACLs", good=len(operations).__eq__)


def test_data_requests_are_counted(fleet: Fleet) -> None:
    admin = AdminClient(client(fleet))
    admin.create_topics([NewTopic("data", 1, 2)])["data"].result(20)
    allow(fleet, admin, ResourceType.TOPIC, "data", AclOperation.READ, AclOperation.WRITE)
    allow(fleet, admin, ResourceType.GROUP, "readers", AclOperation.READ)
    producer = Producer(client(fleet, AS_ALICE, **{"enable.idempotence": False, "linger.ms": 0}))
    for _ in range(10):  # one request each
        producer.produce("data", b"value", partition=0)
        assert producer.flush(20) == 0
    consumer = Consumer(client(fleet, AS_ALICE, **{"group.id": "readers", "enable.auto.commit": False}))
    consumer.assign([TopicPartition("data", 0, 0)])
    assert eventually(lambda: consumer.poll(1), "a record").error() is None
    for offset in (1, 2, 3):
        consumer.commit(offsets=[TopicPartition("data", 0, offset)], asynchronous=False)
    consumer.close()
    for broker in fleet.brokers:  # a stop writes what was counted
        assert broker.stop() == 0
        broker.start()
        broker.wait_ready()
        eventually(broker.caught_up, f"broker {broker.id} is in sync: what the next one writes needs both")
    reader = AuditReader(fleet)
    for api, name, requests in (("Produce", "data", 10), ("OffsetCommit", "data", 3), ("OffsetCommit", "readers", 3)):
        found = reader.wait(of_api(api, name), f"{api} of {name}")
        assert {event["actor"]["user"]["name"] for event in found} == {USER}
        assert sum(event["count"] for event in found) == requests
        assert len(found) <= 2, "one for each minute"
    assert sum(event["count"] for event in reader.wait(of_api("Fetch", "data"), "fetches")) >= 1
    eventually(
        lambda: sorted(event["activity_id"] for event in reader.read() if event["class_uid"] == 6002),
        "two brokers started twice and stopped once",
        good=[3, 3, 3, 3, 4, 4].__eq__,
    )
    reader.close()


def test_a_full_queue_drops_then_refuses_and_recovers(fleet: Fleet) -> None:
    first, second = fleet.brokers
    second.kill()
    flood(first, 20)
    eventually(lambda: gauge(first, "dropped") > 0, "dropped events")
    assert 0 < gauge(first, "queued_bytes") <= QUEUE_BYTES
    eventually(lambda: "audit queue is full" in first.log_file.read_text(), "a line in the log")
    assert gauge(first, "refused") == 0

    first.kill()
    first.start("audit.on.full=refuse")
    first.wait_ready()
    admin = logged_in(first, ADMIN, ADMIN_PASSWORD)
    flood(first, 2)  # refused all the same: alice has no right
    flood(first, 80, 1)
    eventually(lambda: gauge(first, "refused") > 0, "refused requests")
    assert gauge(first, "dropped") == 0
    kind = messages.request_class(19)
    topic = kind.CreatableTopic(
        version=7, name="unrecorded", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    admin.send(19, 7, kind(version=7, topics=[topic], timeout_ms=1000, validate_only=False))
    assert admin.answer(19, 7).topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    admin.close()
    with pytest.raises(EOFError):
        logged_in(first, ADMIN, ADMIN_PASSWORD)

    second.start()
    second.wait_ready()
    eventually(lambda: gauge(first, "queued_bytes") == 0, "the queue is written")
    operator = AdminClient(client(fleet))
    operator.create_topics([NewTopic("recorded", 1, 1)])["recorded"].result(20)
    assert "unrecorded" not in operator.list_topics(timeout=20).topics
    reader = AuditReader(fleet)
    assert len(reader.wait(of_api("CreateTopics", "recorded"), "the creation")) == 1
    assert not [event for event in reader.events if "unrecorded" in json.dumps(event)]
    reader.close()
