"""A Produce to many partitions, some dozens of them at a time, with everything else of the loop in between.

Batches with a codec come one at a time, and when the turn of the loop has unpacked enough they wait for another
(``brokers.api.unpacking``).

The outcome is that of doing it in one go: what the request has for a partition is appended in its order, and its
connection's next request begins when all of it is appended. Once begun all of it is appended, although the client has
gone (``brokers.server.dispatch``): with acks=0 a client closes its connection behind its last request.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from fleetlog.brokers.api.base import Context, Done
from fleetlog.brokers.api.fetch_answers import slices_of
from fleetlog.brokers.api.leaders import endpoints_of
from fleetlog.brokers.api.produce_work import NONE, Work, Worked, denied_transaction, last_offset_of, run_of
from fleetlog.brokers.api.unpacking import is_compressed
from fleetlog.brokers.replication.partition import Partition
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import Encoded, ProduceOutcome, ProducePart, ProduceRequest
from fleetlog.wire.topic_pieces import produce_response_pieces

LONG_PARTS = 256
"""A Produce to more partitions is executed in slices: some milliseconds of work."""

Answers = list[tuple[ProducePart, ProduceOutcome]]


def produce_in_slices(request: ProduceRequest, context: Context) -> Worked:
    """As ``brokers.api.produce.handle_produce``, with pauses."""
    work = _LongWork(run_of(request._replace(parts=[]), context), context)
    yield from work.append_in_slices(request, whole=len(request.parts) <= LONG_PARTS)
    return (yield from work.outcome_in_slices())


def _slices(parts: Sequence[ProducePart]) -> Iterator[Sequence[ProducePart]]:
    """Some dozens of parts at a time, those with a codec by themselves."""
    first = 0
    for at, part in enumerate(parts):
        if is_compressed(part.records):
            yield from slices_of(parts[first:at])
            yield parts[at : at + 1]
            first = at + 1
    yield from slices_of(parts[first:])


class _LongWork(Work):
    """The work of all slices. A partition that is named in several of them has a group in each."""

    __slots__ = ("_committed_to", "epochs")

    def append_in_slices(self, request: ProduceRequest, *, whole: bool) -> Generator[Any, None, None]:
        """Append what there is; what is behind a batch of its partition that must be verified is left, too.

        ``whole``: without a pause, as long as the turn has something left to be unpacked.
        """
        stopped: set[Partition | None] = set()
        batches = ((part.records,) for part in request.parts if part.records is not None)
        denied = denied_transaction(self.context, request.transactional_id, batches)
        self.epochs: list[int] = []
        self._committed_to: dict[int, int] = {}
        for parts in _slices(request.parts):
            if not whole:
                yield
            if is_compressed(parts[0].records):
                yield from self.context.services.unpacking.share()
            work = Work(run_of(request._replace(parts=list(parts)), self.context), self.context, denied)
            work.terms = self.terms
            behind = [group for group, partition in enumerate(work.partitions) if partition in stopped]
            held = {group: work.partitions[group] for group in behind}
            for group in behind:
                work.partitions[group] = None
            work.append()
            for group, partition in held.items():
                work.partitions[group] = partition
                work.appended(group, [], False)
            first = len(self.partitions)
            self.run.parts.extend(work.run.parts)
            self.run.groups.extend(first + group for group in work.run.groups)
            self.partitions += work.partitions
            self.outcomes += work.outcomes
            self.epochs += work._epochs()
            for group, left in work.unverified.items():
                self.unverified[first + group] = left
                stopped.add(self._led(first + group))

    def outcome_in_slices(self) -> Worked:
        """What to answer; with acks=all once all is committed, or the in-sync set has become too small for that."""
        if self.unverified:
            return self._verified_in_slices()
        acks = self.run.acks
        if acks == NONE:
            return Done(self.one_response((yield from self._answers({}))))
        waits: list[tuple[int, Partition, int]] = []
        for groups in slices_of(range(len(self.partitions))):
            yield
            for group in groups:
                self._disown(group, self.epochs[group])
                partition = self.partitions[group]
                if partition is not None:
                    last_offset = max(map(last_offset_of, self.outcomes[group]))
                    if partition.must_wait(acks, last_offset):
                        waits.append((group, partition, last_offset))
        if not waits:
            return Done(self._response({}))
        delayed, committed = self.waiting({group for group, _, _ in waits})
        for some in slices_of(waits):
            yield
            for group, partition, last_offset in some:
                self._disown(group, self.epochs[group])
                if self.partitions[group] is None:
                    committed(group, ErrorCode.NONE)  # its outcome says that it is not
                else:
                    partition.wait_for(last_offset, functools.partial(committed, group), gives_up=True)
        return delayed

    async def _verified_in_slices(self) -> Worked:
        await self._verify()
        return self.outcome_in_slices()

    def committed_to(self, group: int, partition: Partition) -> int:
        return self._committed_to.get(group, partition.log.high_watermark)

    def _response(self, errors: dict[int, ErrorCode]) -> Generator[None, None, Encoded]:
        """All answers, made and encoded in slices; what is committed is decided now: later another may lead."""
        for group in errors:
            partition = self.partitions[group]
            if partition is not None:
                self._committed_to[group] = partition.log.high_watermark
        return self._encoded(errors)

    def _encoded(self, errors: dict[int, ErrorCode]) -> Generator[None, None, Encoded]:
        answers = yield from self._answers(errors)
        leaders = dict.fromkeys(outcome.current_leader for _, outcome in answers)
        endpoints = endpoints_of(self.context, leaders)
        return Encoded((yield from produce_response_pieces(self.run.version, answers, endpoints)))

    def _answers(self, errors: dict[int, ErrorCode]) -> Generator[None, None, Answers]:
        turns = [iter(found) for found in self.outcomes]
        answers: Answers = []
        for groups in slices_of(self.run.groups):
            yield
            outcomes = [self.answer_of(group, next(turns[group]), errors.get(group)) for group in groups]
            self._count_errors(groups, outcomes)
            answers += zip((self.run.parts[group] for group in groups), outcomes, strict=True)
        return answers
