"""Faults of tiered storage, for the alerts that they fire."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from confluent_kafka import Producer

from tests.cli.shell import Shell
from tests.deploy.alert_stage import PATIENCE_S, Stage, nothing
from tests.support.waiting import eventually

_TIERED = {"remote.storage.enable": "true", "segment.bytes": "10000", "local.retention.bytes": "10000"}


def _tiered(stage: Stage, topic: str) -> None:
    Shell(stage.fleet).run("features", "upgrade", "fleetlog.tiering.version=2")
    stage.topic(topic, [1], **_TIERED)


def lost_bucket(stage: Stage) -> Iterator[Callable[[], None]]:
    """The bucket's folder goes while something is to be copied."""
    _tiered(stage, "archived")
    broker = stage.fleet.brokers[0]
    stage.produce("archived", 1_000)
    eventually(lambda: broker.figure("fleetlog_tier_troubled_partitions") == 0, "its tier works", PATIENCE_S)
    bucket, away = stage.bucket, stage.bucket.with_name("away")
    bucket.rename(away)
    bucket.write_text("no folder")

    def write() -> None:
        stage.produce("archived", 200)
        nothing()

    yield write
    bucket.unlink()
    away.rename(bucket)


def held_copies(stage: Stage) -> Iterator[Callable[[], None]]:
    """A transaction stays open, and segments are closed behind it."""
    _tiered(stage, "held")
    producer = Producer({"bootstrap.servers": stage.fleet.bootstrap, "transactional.id": "holds",
                         "transaction.timeout.ms": 900_000})  # fmt: skip
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("held", b"half")
    assert producer.flush(60) == 0
    stage.produce("held", 1_000)
    yield nothing
    producer.abort_transaction(PATIENCE_S)
