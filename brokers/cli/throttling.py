"""Sets the throttle of a move, and always removes it again.

It names the replicas that send and those that are added (KIP-73); each of their brokers gets the rate. Earlier values
are restored, because another move may be under way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from kafka.admin import AlterConfigOp, ConfigResourceType
from kafka.errors import KafkaError
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.client import raise_for_code
from fleetlog.brokers.cli.interrupts import interrupts
from fleetlog.brokers.cli.moves import ReplicaMove
from fleetlog.brokers.cli.output import CliError, warn
from fleetlog.brokers.cli.overview import settings_told

SENDERS = "leader.replication.throttled.replicas"
TAKERS = "follower.replication.throttled.replicas"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
DYNAMIC_TOPIC_CONFIG = 1
DYNAMIC_BROKER_CONFIG = 2
PATIENCE_S = 5.0


class _Resource(NamedTuple):
    kind: int
    name: str

    def __str__(self) -> str:
        return f"{'topic' if self.kind == ConfigResourceType.TOPIC.value else 'broker'} {self.name}"


_Change = tuple[str, AlterConfigOp, str | None]


@contextmanager
def throttled(
    client: AdminClient, moves: Sequence[ReplicaMove], rate: int | None, brokers: Collection[int]
) -> Iterator[None]:
    """Inside, replication of these moves is limited to ``rate`` bytes per second and broker (None: no limit).

    ``brokers`` are the live ones. Raises CliError if the throttle cannot be set; if it cannot be removed, a warning
    says what to do.
    """
    copying = [move for move in moves if move.brings]
    if rate is None or not copying:
        yield
        return
    topics, involved = _replicas_of(copying), {b for m in copying for b in (*m.before, *m.brings)} & set(brokers)
    before = _own_rates(client, sorted(involved))
    try:
        _alter(client, {_topic(t): [(k, AlterConfigOp.APPEND, v) for k, v in named] for t, named in topics.items()})
        _alter(client, {_broker(b): [(k, AlterConfigOp.SET, str(rate)) for k in RATES] for b in involved})
        yield
    finally:
        with interrupts.held():
            for restore in (partial(_restore_topics, client, topics), partial(_restore_brokers, client, before)):
                try:
                    restore()
                except (CliError, KafkaError) as error:
                    # a warning, because an exception would hide the error that ended the block
                    warn(f"a throttle is left ({error}); `fleetlog topics reassign TOPIC --verify` removes it")


def _replicas_of(moves: Iterable[ReplicaMove]) -> dict[str, list[tuple[str, str]]]:
    """By topic: the sending and the added replicas, in the format of the two settings."""
    senders: dict[str, list[str]] = {}
    takers: dict[str, list[str]] = {}
    for move in moves:
        senders.setdefault(move.tp.topic, []).extend(f"{move.tp.partition}:{b}" for b in move.before)
        takers.setdefault(move.tp.topic, []).extend(f"{move.tp.partition}:{b}" for b in move.brings)
    return {topic: [(SENDERS, ",".join(senders[topic])), (TAKERS, ",".join(takers[topic]))] for topic in senders}


def _restore_topics(client: AdminClient, topics: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Remove these moves' replicas from the settings; a setting without others is deleted."""
    present = _own_values(client, topics)
    changes: dict[_Resource, list[_Change]] = {}
    for topic, named in topics.items():
        for name, own in named:
            others = set(present.get(topic, {}).get(name, "").split(",")) - set(own.split(",")) - {""}
            operation = AlterConfigOp.SUBTRACT if others else AlterConfigOp.DELETE
            changes.setdefault(_topic(topic), []).append((name, operation, own if others else None))
    _alter(client, changes)


def _restore_brokers(client: AdminClient, before: Mapping[int, Mapping[str, str]]) -> None:
    _alter(
        client,
        {
            _broker(broker_id): [
                (name, AlterConfigOp.SET, rates[name]) if name in rates else (name, AlterConfigOp.DELETE, None)
                for name in RATES
            ]
            for broker_id, rates in before.items()
        },
    )


def clear_throttles(client: AdminClient, topics: Collection[str], brokers: Collection[int]) -> list[str]:
    """Remove throttles that a move left; returns what was cleared, as text. Raises CliError."""
    cleared = []
    limits = {_topic(t): values for t, values in _own_values(client, topics).items() if values}
    limits |= {_broker(b): values for b, values in _own_rates(client, brokers).items() if values}
    if limits:
        _alter(
            client, {where: [(name, AlterConfigOp.DELETE, None) for name in values] for where, values in limits.items()}
        )
        cleared = [str(resource) for resource in limits]
    return cleared


def _own_values(client: AdminClient, topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """The topics' throttled replicas, where they are set; topics that are gone are left out."""
    resources = [(ConfigResourceType.TOPIC.value, topic, [SENDERS, TAKERS]) for topic in topics]
    if not resources:
        return {}
    answer = client.ask_any(DescribeConfigsRequest(resources=resources))
    return {row.resource_name: _set_here(row, DYNAMIC_TOPIC_CONFIG) for row in answer.results if not row.error_code}


def _own_rates(client: AdminClient, brokers: Iterable[int]) -> dict[int, dict[str, str]]:
    """The brokers' throttle rates, where they are set; a broker that doesn't answer counts as one without."""
    told = settings_told(client, brokers, RATES, PATIENCE_S)
    return {b: _set_here(told[b], DYNAMIC_BROKER_CONFIG) if b in told else {} for b in brokers}


def _set_here(row: Any, source: int) -> dict[str, str]:
    return {one.name: one.value or "" for one in row.configs if one.config_source == source}


def _alter(client: AdminClient, changes: Mapping[_Resource, Sequence[_Change]]) -> None:
    if not changes:
        return
    request = IncrementalAlterConfigsRequest(
        resources=[
            (where.kind, where.name, [(name, int(operation), value) for name, operation, value in listed])
            for where, listed in changes.items()
        ],
        validate_only=False,
    )
    answer = client.ask_any(request)
    for row in answer.responses:
        raise_for_code(
            f"throttle of {_Resource(row.resource_type, row.resource_name)}", row.error_code, row.error_message
        )


def _topic(name: str) -> _Resource:
    return _Resource(ConfigResourceType.TOPIC.value, name)


def _broker(broker_id: int) -> _Resource:
    return _Resource(ConfigResourceType.BROKER.value, str(broker_id))
