"""Produce requests of one connection that came together: appended by one write for each partition.

A run has the outcome of its requests one after the other. What is not plain (a sequence that is not the next one, a
codec, a topic that is not led here, a segment that is full) ends it and is left to :mod:`brokers.api.produce`, request
by request. Figures: ADR 0012.
"""

from __future__ import annotations

import functools

from _native.batch import parse_header
from brokers.api.base import Context, Done, Park
from brokers.api.leaders import endpoints_of
from brokers.api.produce import ALL, LEADER, named, refusal
from brokers.cluster.partition import Partition
from brokers.log import Admitted, AppendInfo
from brokers.log.plain import unstamp
from brokers.model import INTERNAL_TOPICS, TopicPartition
from wire.errors import ErrorCode
from wire.hot import (
    Frames,
    ProduceOutcome,
    ProducePart,
    ProduceRun,
    encode_produce_response,
    encode_produce_run,
    framed,
)
from wire.messages import encode_response_header

PRODUCE = 0


def handle_produce_run(run: ProduceRun, context: Context) -> tuple[int, Done | Park] | None:
    """How many requests were executed, from the first on, and their answers; None if the first is not for this way."""
    services = context.services
    now_ms = services.clock.wall_ms()
    transactional = run.transactional_id is not None
    partitions: list[Partition | None] = []
    admitted: list[list[Admitted]] = []
    whole = True
    for part, batches in zip(run.parts, run.batches, strict=True):
        partition = _led_here(part, context)
        found = [] if partition is None else partition.admit_run(
            batches, acks=run.acks, transactional=transactional, now_ms=now_ms
        )  # fmt: skip
        partitions.append(partition)
        admitted.append(found)
        whole = whole and len(found) == len(batches)
    taken = len(run.groups) if whole else _cut(run, admitted)
    if not taken:
        return None
    refusals = [
        _append(partition, batches, found, now_ms, context) if partition is not None and found else None
        for partition, batches, found in zip(partitions, run.batches, admitted, strict=True)
    ]
    return taken, _Answers(run, admitted, partitions, refusals, context).given()


def handle_produce_runs(runs: list[ProduceRun], contexts: list[Context]) -> list[Done | Park] | int:
    """As :func:`handle_produce_run` for one connection after the other, but with one write for each partition.

    If a request of theirs is not for this way, nothing has happened, and the number of its run is returned.
    """
    now_ms = contexts[0].services.clock.wall_ms()
    transactional = runs[0].transactional_id is not None
    acks = ALL if any(run.acks == ALL for run in runs) else LEADER
    together: dict[Partition, list[memoryview]] = {}
    places: list[list[tuple[Partition, int]]] = []
    for number, (run, context) in enumerate(zip(runs, contexts, strict=True)):
        if (run.transactional_id is not None) != transactional:
            return number
        place: list[tuple[Partition, int]] = []
        for part, batches in zip(run.parts, run.batches, strict=True):
            partition = _led_here(part, context)
            if partition is None:
                return number
            before = together.setdefault(partition, [])
            place.append((partition, len(before)))
            before += batches
        places.append(place)
    admitted: dict[Partition, list[Admitted]] = {}
    for partition, batches in together.items():
        found = partition.admit_run(batches, acks=acks, transactional=transactional, now_ms=now_ms)
        admitted[partition] = found
        if len(found) != len(batches):
            for one, stamped in admitted.items():
                for batch in together[one][: len(stamped)]:
                    unstamp(batch)
            return _whose(places, partition, len(found))
    refused = {
        partition: _append(partition, batches, admitted[partition], now_ms, contexts[0])
        for partition, batches in together.items()
    }
    outcomes: list[Done | Park] = []
    for run, place, context in zip(runs, places, contexts, strict=True):
        partitions: list[Partition | None] = [partition for partition, _ in place]
        own = [
            admitted[partition][begin : begin + len(batches)]
            for (partition, begin), batches in zip(place, run.batches, strict=True)
        ]
        answers = _Answers(run, own, partitions, [refused[partition] for partition, _ in place], context)
        outcomes.append(answers.given())
    return outcomes


def _whose(places: list[list[tuple[Partition, int]]], partition: Partition, batch: int) -> int:
    """The number of the run that has a partition's batch."""
    begun = [number for number, place in enumerate(places) for to, begin in place if to is partition and begin <= batch]
    return begun[-1]


def _append(
    partition: Partition, batches: list[memoryview], admitted: list[Admitted], now_ms: int, context: Context
) -> AppendInfo | None:
    """Append what was admitted by one write: None, or the refusal of all of it."""
    services = context.services
    refused = partition.append_run(batches, admitted, now_ms=now_ms)
    if refused is not None or partition.turned_away.first:
        _remember(partition, batches, refused, services.clock.mono_ms())
    if refused is None:
        services.metrics.records_in.value += admitted[-1][1] + 1 - admitted[0][0]
        services.metrics.appended_bytes.value += sum(map(len, batches))
    return refused


def _led_here(part: ProducePart, context: Context) -> Partition | None:
    """The partition, if this broker leads it and clients may write to it."""
    services = context.services
    topic = part.topic if part.topic_id is None else services.view.topic_names.get(part.topic_id)
    if topic is None or topic in INTERNAL_TOPICS:
        return None
    partition = services.replicas.get(named(TopicPartition, (topic, part.partition)))
    return partition if partition is not None and partition.is_leader else None


def _cut(run: ProduceRun, admitted: list[list[Admitted]]) -> int:
    """Shorten the run to the requests before the first that was not admitted; how many these are."""
    turns = [0] * len(admitted)
    taken = 0
    for group in run.groups:
        if turns[group] == len(admitted[group]):
            break
        turns[group] += 1
        taken += 1
    for batches, found, turn in zip(run.batches, admitted, turns, strict=True):
        for batch in batches[turn : len(found)]:
            unstamp(batch)
        del batches[turn:], found[turn:]
    for requests in (run.groups, run.correlation_ids, run.ends):
        del requests[taken:]
    return taken


def _remember(partition: Partition, batches: list[memoryview], refused: AppendInfo | None, now_ms: int) -> None:
    """What became of idempotent batches: the next ones are answered by it. See :class:`TurnedAway`."""
    error = ErrorCode.NONE if refused is None else refused.error
    for batch in batches:
        partition.turned_away.answer(parse_header(batch), error, now_ms)


class _Answers:
    """What is answered to the requests of a run, all at once."""

    __slots__ = ("admitted", "context", "partitions", "refusals", "run")

    def __init__(
        self,
        run: ProduceRun,
        admitted: list[list[Admitted]],
        partitions: list[Partition | None],
        refusals: list[AppendInfo | None],
        context: Context,
    ) -> None:
        self.run = run
        self.admitted = admitted
        self.partitions = partitions
        self.refusals = refusals
        self.context = context

    def given(self) -> Done | Park:
        """The outcome: the answers, or what they wait for."""
        services = self.context.services
        if self.run.acks == ALL or not services.replicas.lease_valid():
            waits: list[tuple[int, Partition, int]] = []
            for group, (partition, found) in enumerate(zip(self.partitions, self.admitted, strict=True)):
                if partition is None or not found or self.refusals[group] is not None:
                    continue
                last_offset = found[-1][1]
                if not partition.is_committed(last_offset):
                    waits.append((group, partition, last_offset))
            if waits:
                return self.wait(waits)
        return named(Done, (self.now(),))

    def now(self) -> Frames:
        """The answers, if whatever was appended is good."""
        if any(self.refusals):
            return self.frames({})
        starts = [partition.log.log_start_offset if partition is not None else -1 for partition in self.partitions]
        return Frames(encode_produce_run(self.run, starts, self.admitted))

    def frames(self, errors: dict[int, ErrorCode]) -> Frames:
        """The answers one by one. In a partition with an error, what is not committed gets that."""
        run, context = self.run, self.context
        turns = [iter(found) for found in self.admitted]
        frames: list[bytes] = []
        for group, correlation_id in zip(run.groups, run.correlation_ids, strict=True):
            outcome = self._outcome(group, next(turns[group]), errors.get(group, ErrorCode.NONE))
            endpoints = endpoints_of(context, [outcome.current_leader])
            body = encode_produce_response(run.version, [(run.parts[group], outcome)], endpoints=endpoints)
            header = encode_response_header(PRODUCE, run.version, correlation_id)
            frames += framed(header, [body])
        return Frames(b"".join(frames))

    def _outcome(self, group: int, batch: Admitted, error: ErrorCode) -> ProduceOutcome:
        partition, refused = self.partitions[group], self.refusals[group]
        assert partition is not None, "nothing is admitted without a partition"
        if refused is not None:
            return refusal(refused.error, partition.tp, self.context, message=refused.error_message)
        first_offset, last_offset = batch[:2]
        appended = ProduceOutcome(ErrorCode.NONE, first_offset, -1, partition.log.log_start_offset)
        if error is ErrorCode.NONE or last_offset < partition.log.high_watermark:
            return appended
        if error is ErrorCode.REQUEST_TIMED_OUT:
            return appended._replace(error=error)
        return refusal(error, partition.tp, self.context)

    def wait(self, waits: list[tuple[int, Partition, int]]) -> Park:
        """acks=all: the answers come when the last batch of each partition is committed, or will not be."""
        self.run = self.run._replace(batches=[])  # the frames are used up: who waits keeps no view on them
        missing = {group for group, _, _ in waits}
        errors: dict[int, ErrorCode] = {}

        def expired() -> Frames:
            return self.frames(errors | dict.fromkeys(missing, ErrorCode.REQUEST_TIMED_OUT))

        park = Park(max(0, self.run.timeout_ms), expired)

        def committed(group: int, error: ErrorCode) -> None:
            missing.discard(group)
            if error is not ErrorCode.NONE:
                errors[group] = error
            if not missing and not park.done:
                park.complete(self.frames(errors) if errors else self.now())

        for group, partition, last_offset in waits:
            partition.wait_for(last_offset, functools.partial(committed, group), gives_up=True)
        return park
