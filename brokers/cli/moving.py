"""Performs a plan of moves: a few partitions at a time, watched until the last replica is in sync.

The controller keeps the moves that have begun, also across failovers, so this only requests and polls. If the command
is ended, the moves that have begun finish by themselves.

The throttle of a move names the replicas that send and those that are added (KIP-73); each of their brokers gets the
rate. It is always removed again, to the values before it, because another move may be under way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import kafka.errors as kafka_errors
from kafka.admin import AlterConfigOp, ConfigResourceType
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    DescribeConfigsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.structs import TopicPartition as ClientPartition

from fleetlog.brokers.cli.admin_client import GONE, AdminClient
from fleetlog.brokers.cli.client import explain, raise_for_code, wait_for_metadata
from fleetlog.brokers.cli.interrupts import interrupts
from fleetlog.brokers.cli.moves import ReplicaMove
from fleetlog.brokers.cli.output import CliError, bytes_text, progress, warn
from fleetlog.brokers.cli.overview import Overview, fetch_overview, read_directories, settings_told
from fleetlog.brokers.model import TopicPartition
from fleetlog.wire.errors import ErrorCode

POLL_S = 0.5
SILENCE_S = 60.0
"""How long no broker may answer before the command gives up: longer than any failover."""
DOUBT_S = 5.0
KNOWN_S = 5.0
PREFERRED, UNCLEAN = 0, 1

Say = Callable[[str], None]
Answer = tuple[int, str | None]


@dataclass(slots=True)
class Moved:
    """The outcome of the moves. ``failed`` has the reasons."""

    done: list[ReplicaMove] = field(default_factory=list)
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    left: list[ReplicaMove] = field(default_factory=list)
    doubted: dict[TopicPartition, float] = field(default_factory=dict)
    """Since when a finished move does not show its target: the asked broker may not know it yet."""


def alter_reassignments(
    client: AdminClient, wanted: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: int
) -> dict[TopicPartition, Answer]:
    """Request moves of the controller (None cancels one): (error code, message) for each. Raises KafkaError."""
    topics: dict[str, list[tuple[int, list[int] | None]]] = {}
    for tp, replicas in wanted.items():
        topics.setdefault(tp.topic, []).append((tp.partition, None if replicas is None else list(replicas)))
    request = AlterPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=list(topics.items()))
    answer = client._manager.run(client._send_request_to_controller, request, _reassignment_errors)
    return {
        TopicPartition(topic.name, one.partition_index): (one.error_code, one.error_message)
        for topic in answer.responses
        for one in topic.partitions
    }


def _reassignment_errors(answer: Any) -> Iterable[type[Exception]]:
    yield kafka_errors.for_code(answer.error_code)
    if any(p.error_code == ErrorCode.NOT_CONTROLLER for topic in answer.responses for p in topic.partitions):
        yield kafka_errors.NotControllerError


def request_elections(
    client: AdminClient, wanted: Collection[TopicPartition] | None, kind: int, timeout_ms: int
) -> dict[TopicPartition, Answer]:
    """Request elections (None: of all partitions): (error code, message) for each.

    Raises KafkaError, also when none was held in time.
    """
    rows = None
    if wanted is not None:
        names = sorted({tp.topic for tp in wanted})
        rows = [(name, sorted(tp.partition for tp in wanted if tp.topic == name)) for name in names]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=rows, timeout_ms=timeout_ms)
    answer = client._manager.run(
        client._send_request_to_controller, request, lambda found: [kafka_errors.for_code(found.error_code)]
    )
    answers = {
        TopicPartition(topic.topic, one.partition_id): (one.error_code, one.error_message)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    }
    if {code for code, _ in answers.values()} == {kafka_errors.RequestTimedOutError.errno}:
        raise kafka_errors.RequestTimedOutError
    return answers


def perform(
    client: AdminClient,
    overview: Overview,
    moves: Sequence[ReplicaMove],
    *,
    at_once: int,
    timeout_ms: int,
    say: Say,
    shown: bool,
) -> Moved:
    """Begin the moves, ``at_once`` at a time, and wait until all are over. Raises CliError when no broker answers."""
    result = Moved(left=list(moves))
    running: dict[TopicPartition, ReplicaMove] = {}
    total = sum(move.bytes_copied for move in moves)
    heard = time.monotonic()
    with progress(shown) as bar:
        task = bar.add_task("moving", total=len(moves))
        while result.left or running:
            try:
                _begin(client, result, running, at_once, timeout_ms)
                copied = _look(client, overview, result, running, say)
                heard = time.monotonic()
            except GONE as error:
                if time.monotonic() - heard > SILENCE_S:
                    raise CliError(
                        f"no answer for {SILENCE_S:.0f} s; the moves continue by themselves, "
                        "see `fleetlog cluster describe`"
                    ) from error
                copied = 0
            copied += sum(move.bytes_copied for move in result.done)
            text = f"{bytes_text(copied)} of {bytes_text(max(total, copied))} copied"
            bar.update(task, completed=len(result.done) + len(result.failed), description=text)
            if running:
                time.sleep(POLL_S)
    wait_for_reassignments(client, {move.tp: move.after for move in result.done}, KNOWN_S)
    return result


def wait_for_reassignments(
    client: AdminClient, wanted: Mapping[TopicPartition, Sequence[int]], timeout_s: float
) -> bool:
    """Wait until every broker that answers shows these replicas: the next command may ask any of them."""

    def missing(answer: Any) -> set[TopicPartition]:
        shown = {
            TopicPartition(topic.name, one.partition_index): tuple(one.replica_nodes)
            for topic in answer.topics
            for one in topic.partitions
        }
        return {tp for tp, replicas in wanted.items() if shown.get(tp) != tuple(replicas)}

    return not wait_for_metadata(client, sorted({tp.topic for tp in wanted}), missing, timeout_s)


def _begin(
    client: AdminClient, result: Moved, running: dict[TopicPartition, ReplicaMove], at_once: int, timeout_ms: int
) -> None:
    free = at_once - len(running)
    batch = {move.tp: move for move in result.left[: max(free, 0)]}
    if not batch:
        return
    answers = alter_reassignments(client, {tp: move.after for tp, move in batch.items()}, timeout_ms)
    result.left = [move for move in result.left if move.tp not in batch]
    for tp, move in batch.items():
        code, message = answers.get(tp, (int(ErrorCode.UNKNOWN_SERVER_ERROR), "no answer for this partition"))
        if code:
            result.failed[tp] = explain(code, message)
        else:
            running[tp] = move


def _look(
    client: AdminClient, overview: Overview, result: Moved, running: dict[TopicPartition, ReplicaMove], say: Say
) -> int:
    """Remove finished moves from ``running``; returns the bytes that the others have copied so far."""
    if not running:
        return 0
    under_way = client.list_partition_reassignments([ClientPartition(*tp) for tp in running])
    over = [tp for tp in running if tp not in under_way]
    if over:
        now = fetch_overview(client, sorted({tp.topic for tp in over}), directories=False)
        for tp in over:
            move, state = running[tp], now.partitions.get(tp)
            if state is not None and state.moving:
                continue  # the broker that was asked first did not know it yet
            if state is not None and state.replicas == move.after:
                del running[tp]
                result.done.append(move)
                say(f"{tp}: now on {_listed(move.after)}")
            elif time.monotonic() - result.doubted.setdefault(tp, time.monotonic()) > DOUBT_S:
                del running[tp]
                has = "the topic is gone" if state is None else f"it is on {_listed(state.replicas)}"
                result.failed[tp] = f"was cancelled or changed meanwhile: {has}"
    read_directories(client, overview, list(running))
    copied = 0
    for move in running.values():
        have = [overview.brokers[b].size_of(move.tp) if b in overview.brokers else 0 for b in move.brings]
        copied += sum(min(one or 0, max(move.size, 0)) for one in have)
    return copied


def _listed(replicas: Iterable[int]) -> str:
    return ",".join(str(one) for one in replicas)


# --- throttles -------------------------------------------------------------------------------------------------------


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
                except (CliError, kafka_errors.KafkaError) as error:
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
