"""The audit topic on real brokers: what is recorded, and that no client can tamper with it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from fleetlog.brokers.api.rows import api_table
from fleetlog.brokers.audit.events import EventType
from fleetlog.brokers.model import AUDIT_TOPIC
from fleetlog.wire import messages
from fleetlog.wire.apis import APIS
from fleetlog.wire.errors import ErrorCode
from tests.support.audited import (
    ADMIN,
    ADMIN_PASSWORD,
    AuditReader,
    Event,
    audited_fleet,
    client,
    logged_in,
    of_api,
)
from tests.support.filled import SECRET, codes, filled
from tests.support.fleet import Fleet
from tests.support.secured import BROKER_PASSWORD, PASSWORD, USER, confluent
from tests.support.waiting import eventually

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper, pytest.mark.xdist_group("audit")]

AS_ALICE = confluent("SCRAM-SHA-256")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = audited_fleet(tmp_path_factory.mktemp("audited"))
    try:
        yield found.start()
    finally:
        found.close()


@pytest.fixture(scope="module")
def reader(fleet: Fleet) -> Iterator[AuditReader]:
    found = AuditReader(fleet)
    yield found
    found.close()


@pytest.fixture(scope="module")
def admin(fleet: Fleet) -> AdminClient:
    return AdminClient(client(fleet))


def made(admin: AdminClient) -> str:
    name = f"t-{next(_numbers)}"
    admin.create_topics([NewTopic(name, 1, 3)])[name].result(20)
    return name


def who(event: Event) -> tuple[str, str]:
    return event["actor"]["user"]["name"], event["src_endpoint"]["ip"]


def test_a_topic_is_created_altered_and_deleted(fleet: Fleet, admin: AdminClient, reader: AuditReader) -> None:
    name = made(admin)
    entry = ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)
    admin.delete_topics([name])[name].result(20)
    reader.wait(of_api("DeleteTopics", name), "the deletion")
    for api in ("CreateTopics", "IncrementalAlterConfigs", "DeleteTopics"):
        (event,) = filter(of_api(api, name), reader.events)
        assert who(event) == (ADMIN, "127.0.0.1")
        assert event["resources"] == [{"name": name, "type": "Topic"}]
        assert (event["status_id"], event["status_code"], event["count"]) == (1, "NONE", 1)
    (altered,) = filter(of_api("IncrementalAlterConfigs", name), reader.events)
    assert altered["status_detail"] == "set retention.ms"


@pytest.mark.parametrize("user", [USER, ADMIN])
@pytest.mark.parametrize(
    "key", [row.key for row in api_table().values() if row.kind is EventType.MANAGEMENT and row.key != 7]
)
def test_each_management_request_is_one_event(fleet: Fleet, reader: AuditReader, key: int, user: str) -> None:
    """Of a client without rights, which is refused, and of the operator, at the broker that is asked."""
    api, version = APIS[key], APIS[key].max_version
    before = len(list(filter(of_api(api.name), reader.read())))
    request = filled(key, version)
    connection = logged_in(fleet.brokers[0], user, PASSWORD if user == USER else ADMIN_PASSWORD)
    try:
        connection.send(key, version, request)
        answer = connection.answer(key, version)
    finally:
        connection.close()
    found = eventually(lambda: list(filter(of_api(api.name), reader.read()))[before:], f"an event of {api.name}")
    (event,) = found
    assert who(event) == (user, "127.0.0.1")
    result = ErrorCode[event["status_code"]]
    assert event["status_id"] == (1 if result is ErrorCode.NONE else 2)
    answered = set(codes(answer)) or {ErrorCode.NONE}
    assert result in answered or key == 12000, "whose errors are those of single partitions"
    if user == USER:
        assert result.name.endswith("_AUTHORIZATION_FAILED") or result is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    (resource,) = event["resources"]
    if resource["type"] == "DelegationToken":
        return
    assert resource["type"] in {"Topic", "Group", "Cluster", "TransactionalId", "User", "ClientQuota", "Unknown", "Any"}
    assert SECRET in resource["name"] or resource["name"] in {"kafka-cluster", "1", "1=1"}


def test_logins_are_recorded(fleet: Fleet, reader: AuditReader) -> None:
    logged_in(fleet.brokers[0], USER, PASSWORD).close()
    found = reader.wait(lambda event: event["class_uid"] == 3002 and event["user"]["name"] == USER, "alice's login")
    assert found[0]["status_id"] == 1
    assert found[0]["auth_protocol"] == "SASL_PLAINTEXT/SCRAM-SHA-256"
    with pytest.raises(AssertionError):
        logged_in(fleet.brokers[0], USER, "wrong")
    refused = reader.wait(lambda event: event["class_uid"] == 3002 and event["status_id"] == 2, "a refused login")
    assert refused[0]["src_endpoint"]["ip"] == "127.0.0.1"
    assert USER in refused[0]["status_detail"]


def produced(fleet: Fleet, topic: str, settings: dict[str, Any] | None = None) -> KafkaError | None:
    errors: list[KafkaError | None] = []
    producer = Producer(client(fleet, settings, acks="all"))
    producer.produce(topic, b"forged", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    return errors[0]


def test_the_topic_cannot_be_tampered_with(fleet: Fleet, admin: AdminClient, reader: AuditReader) -> None:
    """Not even by a super user."""
    refused = produced(fleet, AUDIT_TOPIC)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        admin.delete_topics([AUDIT_TOPIC])[AUDIT_TOPIC].result(20)
    gone = TopicPartition(AUDIT_TOPIC, 0, 1)
    with pytest.raises(KafkaException, match=r"TOPIC_AUTHORIZATION_FAILED"):
        admin.delete_records([gone])[gone].result(20)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        admin.create_topics([NewTopic(AUDIT_TOPIC, 1, 1)])[AUDIT_TOPIC].result(20)
    for setting, value in {"retention.ms": "1000", "cleanup.policy": "compact", "max.message.bytes": "100"}.items():
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, AUDIT_TOPIC, incremental_configs=[entry])
        with pytest.raises(KafkaException, match="audit topic"):
            admin.incremental_alter_configs([resource])[resource].result(20)
    entry = ConfigEntry("retention.ms", str(30 * 86_400_000), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, AUDIT_TOPIC, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)
    tried = reader.wait(of_api("DeleteTopics", AUDIT_TOPIC), "the attempt")
    assert [event["status_code"] for event in tried] == ["TOPIC_AUTHORIZATION_FAILED"]
    assert not [event for event in reader.events if "forged" in json.dumps(event)]


def test_reading_needs_an_acl(fleet: Fleet) -> None:
    connection = logged_in(fleet.brokers[0], USER, PASSWORD)
    try:
        request = filled(3, 12)
        request.topics[0].name = AUDIT_TOPIC
        connection.send(3, 12, request)
        assert connection.answer(3, 12).topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    finally:
        connection.close()


def creation(*names: str, partitions: int = 1) -> Any:
    kind = messages.request_class(19)
    rows = [
        kind.CreatableTopic(
            version=6, name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        for name in names
    ]
    return kind(version=6, topics=rows, timeout_ms=20_000, validate_only=False)


def limit(fleet: Fleet, controller: int, rate: float | None) -> None:
    """How many partitions a second the operator may create."""
    kind = messages.request_class(49)
    row = kind.EntryData
    entity = [row.EntityData(version=1, entity_type="user", entity_name=ADMIN)]
    ops = [row.OpData(version=1, key="controller_mutation_rate", value=rate or 0.0, remove=rate is None)]
    connection = logged_in(fleet.brokers[controller - 1], ADMIN, ADMIN_PASSWORD)
    connection.send(49, 1, kind(version=1, entries=[row(version=1, entity=entity, ops=ops)], validate_only=False))
    assert [entry.error_code for entry in connection.answer(49, 1).entries] == [ErrorCode.NONE]
    connection.close()


def test_a_quota_for_partitions_holds_for_what_is_recorded(
    fleet: Fleet, admin: AdminClient, reader: AuditReader
) -> None:
    controller = eventually(lambda: admin.list_topics(timeout=10).controller_id, "a controller")
    first, second = (f"t-{next(_numbers)}" for _ in range(2))
    limit(fleet, controller, 1.0)
    connection = logged_in(fleet.brokers[controller - 1], ADMIN, ADMIN_PASSWORD)
    try:
        connection.send(19, 6, creation(first, partitions=40))
        assert [row.error_code for row in connection.answer(19, 6).topics] == [ErrorCode.NONE], "it may overdraw once"
        connection.send(19, 6, creation(second))
        answer = connection.answer(19, 6)
    finally:
        connection.close()
        limit(fleet, controller, None)
    assert [row.error_code for row in answer.topics] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert answer.throttle_time_ms > 10_000
    (event,) = reader.wait(of_api("CreateTopics", second), "the attempt")
    assert event["status_code"] == "THROTTLING_QUOTA_EXCEEDED"


def test_what_is_begun_for_a_client_that_leaves_is_done_and_recorded(
    fleet: Fleet, admin: AdminClient, reader: AuditReader
) -> None:
    controller = eventually(lambda: admin.list_topics(timeout=10).controller_id, "a controller")
    names = [f"t-{next(_numbers)}" for _ in range(40)]
    connection = logged_in(fleet.brokers[controller - 1], ADMIN, ADMIN_PASSWORD)
    connection.send(19, 6, creation(*names))
    connection.close()
    (event,) = reader.wait(of_api("CreateTopics", names[-1]), "the last topic's event")
    assert event["status_code"] == "NONE"
    assert set(admin.list_topics(timeout=10).topics) >= set(names)


def test_no_event_has_a_secret(fleet: Fleet, reader: AuditReader) -> None:
    """After all of the above, and what sends passwords on purpose."""
    connection = logged_in(fleet.brokers[0], ADMIN, ADMIN_PASSWORD)
    try:
        connection.send(51, 0, filled(51, 0, salt=b"of-salt", salted_password=b"of-hash", iterations=4096))
        connection.answer(51, 0)
        request = filled(44, 1, name="sasl.jaas.config", value='password="of-jaas";', config_operation=0)
        connection.send(44, 1, request)
        connection.answer(44, 1)
    finally:
        connection.close()
    admin_only = of_api("IncrementalAlterConfigs")
    reader.wait(lambda event: admin_only(event) and "sasl.jaas.config" in json.dumps(event), "the attempt")
    text = json.dumps(reader.events)
    for one in (PASSWORD, ADMIN_PASSWORD, BROKER_PASSWORD, "of-salt", "of-hash", "of-jaas", "b2Ytc2FsdA", 'wrong"'):
        assert one not in text
    assert not re.search(r"password\s*=|credential=|stored_key|LoginModule", text, re.IGNORECASE)
