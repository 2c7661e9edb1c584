"""A fleet with logins, an authorizer and the audit topic, and a reader of that topic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from fleetlog.brokers.model import AUDIT_TOPIC
from fleetlog.wire import messages
from tests.support.fleet import Broker, Fleet
from tests.support.sasl_wire import RawLogin
from tests.support.secured import PASSWORD, USER, confluent, secured_fleet, users
from tests.support.waiting import eventually

ADMIN, ADMIN_PASSWORD = "admin", "of-the-operator-9"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
AS_ADMIN = confluent("SCRAM-SHA-256", ADMIN, ADMIN_PASSWORD)

Event = dict[str, Any]


def audited_fleet(directory: Path, brokers: int = 3, **more: object) -> Fleet:
    """Not started. ``User:admin`` and the brokers' user are super users."""
    fleet = secured_fleet(directory, brokers, **{
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:broker;User:admin",
        "audit.enable": "true",
        "audit.topic.num.partitions": 3,
        "audit.topic.replication.factor": min(3, brokers),
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.num.partitions": 2,
        "offsets.topic.replication.factor": min(3, brokers),
        "transaction.state.log.replication.factor": min(3, brokers),
        "transaction.state.log.min.isr": min(2, brokers),
        "group.initial.rebalance.delay.ms": 0,
        **more,
    })  # fmt: skip
    users(fleet, "add", ADMIN, "--password-stdin", password=ADMIN_PASSWORD)
    return fleet


def client(fleet: Fleet, user_settings: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Settings of librdkafka; the operator's, where no user is named."""
    return {"bootstrap.servers": fleet.bootstrap, "log_level": 0, **(user_settings or AS_ADMIN), **more}


class AuditReader:
    """Reads the audit topic from its begin, again and again."""

    def __init__(self, fleet: Fleet) -> None:
        self._consumer = Consumer(client(fleet, **{"group.id": "auditors", "enable.auto.commit": False}))
        self.events: list[Event] = []
        parts = eventually(
            lambda: self._consumer.list_topics(AUDIT_TOPIC, timeout=20).topics[AUDIT_TOPIC].partitions,
            "the audit topic",
        )
        self._consumer.assign([TopicPartition(AUDIT_TOPIC, index, 0) for index in parts])

    def read(self) -> list[Event]:
        """All events so far."""
        while (message := self._consumer.poll(0.2)) is not None:
            assert message.error() is None, message.error()
            self.events.append(json.loads(message.value()))
        return self.events

    def wait(self, wanted: Callable[[Event], bool], what: str) -> list[Event]:
        """Those events that are wanted, once there is one; and what comes with it."""
        return eventually(lambda: [event for event in self.read() if wanted(event)], what)

    def close(self) -> None:
        self._consumer.close()


def of_api(api: str, name: str | None = None) -> Callable[[Event], bool]:
    """Whether it is an event of that API, about that resource."""

    def wanted(event: Event) -> bool:
        if event.get("api", {}).get("operation") != api:
            return False
        return name is None or event["resources"][0]["name"] == name

    return wanted


def logged_in(broker: Broker, user: str, password: str) -> RawLogin:
    """A connection of that user."""
    connection = RawLogin(broker.port)
    assert connection.scram(user, password) == 0
    return connection


def flood(broker: Broker, requests: int, topics: int = 50) -> None:
    """Requests to delete so many topics each, which are refused one by one."""
    connection = logged_in(broker, USER, PASSWORD)
    try:
        kind = messages.request_class(20)
        names = [
            kind.DeleteTopicState(version=6, name=f"{'x' * 200}-{number}", topic_id=None) for number in range(topics)
        ]
        for _ in range(requests):
            connection.send(20, 6, kind(version=6, topics=names, timeout_ms=1000))
            assert {row.error_code for row in connection.answer(20, 6).responses} == {29}
    finally:
        connection.close()
