"""librdkafka reuses a sequence whose answer was lost and whose transaction it aborted (protocol 1: same epoch)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.relay import Relay
from tests.support.clients import READ_COMMITTED, Confluent
from tests.support.copies import read_all
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.interop


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[tuple[Fleet, Relay]]:
    """One broker that is reached through a relay."""
    relay = Relay()
    fleet = Fleet(tmp_path, brokers=1, **{"advertised.listeners": f"PLAINTEXT://{relay.address}"})
    relay.target = fleet.brokers[0].port
    try:
        yield fleet.start(), relay
    finally:
        relay.close()
        fleet.close()


def test_nothing_is_lost_and_the_producer_continues(relayed: tuple[Fleet, Relay]) -> None:
    from confluent_kafka import KafkaException, Producer

    fleet, relay = relayed
    stock = Confluent()
    stock.create_topic(relay.address, "t")
    told: dict[bytes, Any] = {}

    def delivered(error: Any, message: Any) -> None:
        told[message.value()] = error

    def send(*values: bytes) -> None:
        for value in values:
            producer.produce("t", value, partition=0, on_delivery=delivered)
        producer.poll(0)

    def appended(value: bytes) -> bool:
        return any(value in path.read_bytes() for path in (fleet.brokers[0].directory / "data" / "t-0").glob("*.log"))

    producer = Producer({
        "bootstrap.servers": relay.address, "transactional.id": "x", "linger.ms": 5, "log_level": 0,
        "reconnect.backoff.max.ms": 200, "transaction.timeout.ms": 60_000,
    })  # fmt: skip
    producer.init_transactions(60)
    producer.begin_transaction()
    send(b"first")
    producer.commit_transaction(60)
    producer.begin_transaction()
    send(b"aborted")
    assert producer.flush(60) == 0
    relay.holding.set()
    send(b"lost-1", b"lost-2")
    eventually(lambda: appended(b"lost-2"), "both are appended, and their answer is held")
    relay.cut()
    relay.holding.clear()
    eventually(lambda: relay.refused >= 3, "the client sees that its connections are gone")
    aborting = threading.Thread(target=lambda: producer.abort_transaction(60))
    aborting.start()
    eventually(lambda: {b"lost-1", b"lost-2"} <= told.keys(), "what waits to be sent again is given up")
    relay.closed.clear()
    aborting.join(60)
    assert told[b"lost-1"] is not None

    producer.begin_transaction()
    send(b"new-1", b"new-2")
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(60)
    assert refused.value.args[0].txn_requires_abort(), "it can go on, in a new epoch"
    producer.abort_transaction(60)
    producer.begin_transaction()
    send(b"new-1", b"new-2")
    producer.commit_transaction(60)
    wanted = [b"first", b"new-1", b"new-2"]
    shown = stock.consume(relay.address, "t", 3, isolation=READ_COMMITTED)
    assert [message.value for message in shown] == wanted
    assert [value for _, value in read_all(relay.address, "t", isolation=READ_COMMITTED)] == wanted, "and no more"
