"""Sets the throttle of a move, and takes it away again whatever happens.

Named are the replicas that send and those that are made (KIP-73); each of their brokers gets the rate. What stood
there before is put back, for another move may be under way beside ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from kafka.admin import ConfigResourceType
from kafka.errors import KafkaError
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from brokers.cli.admin_client import Admin
from brokers.cli.client import check
from brokers.cli.interrupts import interrupts
from brokers.cli.moves import Move
from brokers.cli.output import CliError, warn

SENDERS = "leader.replication.throttled.replicas"
TAKERS = "follower.replication.throttled.replicas"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
DYNAMIC_TOPIC_CONFIG = 1
DYNAMIC_BROKER_CONFIG = 2
PATIENCE_S = 5.0


class _Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _Resource(NamedTuple):
    kind: int
    name: str

    def __str__(self) -> str:
        return f"{'topic' if self.kind == ConfigResourceType.TOPIC.value else 'broker'} {self.name}"


_Change = tuple[str, _Operation, str | None]


@contextmanager
def throttled(client: Admin, moves: Sequence[Move], rate: int | None, brokers: Collection[int]) -> Iterator[None]:
    """Inside, replication for these moves keeps to ``rate`` bytes per second and broker (None: no limit).

    ``brokers`` are the living ones. Raises CliError if the throttle can't be set; if it can't be taken away, a warning
    says what to do.
    """
    copying = [move for move in moves if move.brings]
    if rate is None or not copying:
        yield
        return
    topics, involved = _replicas_of(copying), {b for m in copying for b in (*m.before, *m.brings)} & set(brokers)
    before = _own_rates(client, sorted(involved))
    try:
        _alter(client, {_topic(t): [(k, _Operation.APPEND, v) for k, v in named] for t, named in topics.items()})
        _alter(client, {_broker(b): [(k, _Operation.SET, str(rate)) for k in RATES] for b in involved})
        yield
    finally:
        with interrupts.held():
            for restore in (partial(_restore_topics, client, topics), partial(_restore_brokers, client, before)):
                try:
                    restore()
                except (CliError, KafkaError) as error:
                    # told, not raised: the error that brought us here must not be hidden
                    warn(
                        f"a throttle could not be taken away ({error}); `fleetlog topics reassign TOPIC --verify` does"
                    )


def _replicas_of(moves: Iterable[Move]) -> dict[str, list[tuple[str, str]]]:
    """By topic: who sends and who takes, as the two settings spell it."""
    senders: dict[str, list[str]] = {}
    takers: dict[str, list[str]] = {}
    for move in moves:
        senders.setdefault(move.tp.topic, []).extend(f"{move.tp.partition}:{b}" for b in move.before)
        takers.setdefault(move.tp.topic, []).extend(f"{move.tp.partition}:{b}" for b in move.brings)
    return {topic: [(SENDERS, ",".join(senders[topic])), (TAKERS, ",".join(takers[topic]))] for topic in senders}


def _restore_topics(client: Admin, topics: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Take our replicas out of the settings; a setting that has no others goes."""
    present = _own_values(client, topics)
    changes: dict[_Resource, list[_Change]] = {}
    for topic, named in topics.items():
        for name, ours in named:
            others = set(present.get(topic, {}).get(name, "").split(",")) - set(ours.split(",")) - {""}
            operation = _Operation.SUBTRACT if others else _Operation.DELETE
            changes.setdefault(_topic(topic), []).append((name, operation, ours if others else None))
    _alter(client, changes)


def _restore_brokers(client: Admin, before: Mapping[int, Mapping[str, str]]) -> None:
    _alter(
        client,
        {
            _broker(broker_id): [
                (name, _Operation.SET, rates[name]) if name in rates else (name, _Operation.DELETE, None)
                for name in RATES
            ]
            for broker_id, rates in before.items()
        },
    )


def clear_throttles(client: Admin, topics: Collection[str], brokers: Collection[int]) -> list[str]:
    """Take away throttles that a move left behind; returns what was cleared, in words. Raises CliError."""
    cleared = []
    found = {_topic(t): values for t, values in _own_values(client, topics).items() if values}
    found |= {_broker(b): values for b, values in _own_rates(client, brokers).items() if values}
    if found:
        _alter(client, {where: [(name, _Operation.DELETE, None) for name in values] for where, values in found.items()})
        cleared = [str(resource) for resource in found]
    return cleared


def _own_values(client: Admin, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The topics' throttled replicas, where they are set; topics that are gone are left out."""
    resources = [(ConfigResourceType.TOPIC.value, topic, [SENDERS, TAKERS]) for topic in topics]
    if not resources:
        return {}
    answer = client._manager.run(_describe, client, DescribeConfigsRequest(resources=resources))
    return {row.resource_name: _set_here(row, DYNAMIC_TOPIC_CONFIG) for row in answer.results if not row.error_code}


def _own_rates(client: Admin, brokers: Iterable[int]) -> dict[int, dict[str, str]]:
    """The brokers' throttle rates, where they are set; a broker that doesn't answer counts as one without."""
    requests = {
        broker_id: DescribeConfigsRequest(resources=[(ConfigResourceType.BROKER.value, str(broker_id), list(RATES))])
        for broker_id in brokers
    }
    answers = client.ask_each(requests, PATIENCE_S) if requests else {}
    return {
        broker_id: _set_here(answer.results[0], DYNAMIC_BROKER_CONFIG) if answer is not None else {}
        for broker_id, answer in answers.items()
    }


def _set_here(row: Any, source: int) -> dict[str, str]:
    return {one.name: one.value or "" for one in row.configs if one.config_source == source}


async def _describe(client: Admin, request: Any) -> Any:
    return await client._manager.send(request)


def _alter(client: Admin, changes: Mapping[_Resource, Sequence[_Change]]) -> None:
    if not changes:
        return
    request = IncrementalAlterConfigsRequest(
        resources=[
            (where.kind, where.name, [(name, int(operation), value) for name, operation, value in listed])
            for where, listed in changes.items()
        ],
        validate_only=False,
    )
    answer = client._manager.run(_describe, client, request)
    for row in answer.responses:
        check(f"throttle of {_Resource(row.resource_type, row.resource_name)}", row.error_code, row.error_message)


def _topic(name: str) -> _Resource:
    return _Resource(ConfigResourceType.TOPIC.value, name)


def _broker(broker_id: int) -> _Resource:
    return _Resource(ConfigResourceType.BROKER.value, str(broker_id))
