"""Performs a plan of moves: a few partitions at a time, watched until the last replica is in sync.

The controller keeps the moves that have begun, also across failovers, so this only requests and polls. If the command
is ended, the moves that have begun finish by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import kafka.errors as kafka_errors
from kafka.protocol.admin import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition as ClientPartition

from fleetlog.brokers.cli.admin_client import GONE, AdminClient
from fleetlog.brokers.cli.client import KNOWN_POLL_S, explain
from fleetlog.brokers.cli.moves import ReplicaMove
from fleetlog.brokers.cli.output import CliError, bytes_text, progress
from fleetlog.brokers.cli.overview import PATIENCE_S, Overview, fetch_overview, read_directories
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
    topic_row = AlterPartitionReassignmentsRequest.ReassignableTopic
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=timeout_ms,
        topics=[
            topic_row(
                name=topic,
                partitions=[topic_row.ReassignablePartition(partition_index=p, replicas=r) for p, r in listed],
            )
            for topic, listed in topics.items()
        ],
    )
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
    topics = sorted({tp.topic for tp in wanted})
    rows = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    deadline = time.monotonic() + timeout_s
    while True:
        requests = {
            broker.node_id: MetadataRequest(topics=rows, allow_auto_topic_creation=False)
            for broker in client._manager.cluster.brokers()
        }
        answers = client.ask_each(requests, PATIENCE_S).values()
        if all(_shows(answer, wanted) for answer in answers if answer is not None):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(KNOWN_POLL_S)


def _shows(answer: Any, wanted: Mapping[TopicPartition, Sequence[int]]) -> bool:
    shown = {
        TopicPartition(topic.name, one.partition_index): tuple(one.replica_nodes)
        for topic in answer.topics
        for one in topic.partitions
    }
    return all(shown.get(tp) == tuple(replicas) for tp, replicas in wanted.items())


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
