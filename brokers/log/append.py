"""The one way into a log: admission, one write, and everything that follows from what is in the log then.

Batches come from clients, from coordinators of this broker, or from the leader. For each of a leader's batches the
kernel answers that it is ready, checked and stamped, or leaves it for a closer look: :mod:`brokers.log.validation` and
:meth:`ProducerState.check`. Both are written, indexed and counted by the same :meth:`Appender._write`: those that are
ready by one write, up to the next that needs a closer look.

An append is checked, placed and analysed before anything changes, then written, then made true in memory, so that a
refused or failed one leaves no trace. If the disk doesn't take another segment, its beginning is undone. Figures: ADR
0015.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from fleetlog._native.batch import (
    HEADER_SIZE,
    Admitted,
    BatchHeader,
    admit,
    crc32c,
    parse_header,
    stamp,
    validate_batch,
)
from fleetlog._native.compact import Gathered, PagePositions
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.config import TopicConfig
from fleetlog.brokers.log.admission import COORDINATOR, Terms, check_request
from fleetlog.brokers.log.dedup import Kept, accept, all_new, keep_new, positions_of, refused_transaction
from fleetlog.brokers.log.disk.failures import DiskFailed, DiskFull, LogOffline
from fleetlog.brokers.log.disk.files import Buffer
from fleetlog.brokers.log.door import Elsewhere
from fleetlog.brokers.log.flush import Flusher
from fleetlog.brokers.log.producers.entries import ProducerEntry
from fleetlog.brokers.log.producers.markers import NO_MARKERS, Marker
from fleetlog.brokers.log.producers.rejected import BatchOrder
from fleetlog.brokers.log.producers.snapshots import snapshot_path
from fleetlog.brokers.log.producers.state import Duplicate, Refusal, admitted_of
from fleetlog.brokers.log.rewrite import Thinned, without_records
from fleetlog.brokers.log.segment import MAX_POSITION, Segment
from fleetlog.brokers.log.state import AppendInfo, LogState, guarded
from fleetlog.brokers.log.validation import (
    MAX_BATCH_RECORDS,
    Checked,
    Rejected,
    check_for_leader,
    read_marker,
    takes_as_they_are,
)
from fleetlog.wire.compression import CodecError
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import NO_PRODUCER_ID

logger = logging.getLogger(__name__)


NOT_ASKED = "payloads of such schemas are checked for what clients send alone"
_MAX_TIMESTAMP, _NO_TIMESTAMP = 2**63 - 1, -(2**63)


class SegmentRoom:
    """What the active segment takes before the log rolls, and which batches need no closer look.

    ``batches`` is how many the indexes have room for, should each of them become an entry; at most a thousand until
    they are asked anew. ``max_bytes`` is how large a client's batch may be, ``own_max_bytes`` one of a coordinator,
    whose records all have keys; -1 where each needs a closer look.
    """

    __slots__ = (
        "after_ms", "batches", "before_ms", "config", "end_offset", "end_position", "max_bytes", "newest",
        "own_max_bytes", "segment", "steady",
    )  # fmt: skip

    def __init__(self, active: Segment, config: TopicConfig, newest: int) -> None:
        self.segment = active
        self.config = config
        self.end_position = min(config.segment_bytes, MAX_POSITION)
        self.end_offset = active.base_offset + MAX_POSITION
        self.newest = newest
        begun = active.first_timestamp
        self.steady = begun is not None and begun >= 0  # else the newest timestamp depends on the clock
        self.batches = max(0, min(1000, active.index_room(config.segment_index_bytes)))
        self.after_ms = config.message_timestamp_after_max_ms
        self.before_ms = config.message_timestamp_before_max_ms  # below, the earliest timestamp is before the epoch
        own = self.steady and self.batches and takes_as_they_are(config)
        self.own_max_bytes = min(config.max_message_bytes, config.segment_bytes) if own else -1
        self.max_bytes = -1 if "compact" in config.cleanup_policy else self.own_max_bytes

    def takes(self, size: int, last_offset: int, newest: int) -> bool:
        """Whether batches of so many bytes, up to that offset and timestamp, still go into the segment."""
        fits = self.segment.log.size + size <= self.end_position and last_offset <= self.end_offset
        return fits and self.batches > 0 and newest <= self.newest


class Roller:
    """The rolls of a log."""

    __slots__ = ("_begun", "_log")

    def __init__(self, log: LogState) -> None:
        self._log = log
        self._begun = -1
        """Where the newest roll was to begin, or began, a segment."""

    def room(self, now_ms: int) -> SegmentRoom:
        """What the active segment still takes. Raises DiskFull, DiskFailed, CorruptBatch."""
        active = self._log.segments.active
        return SegmentRoom(active, self._log._config, self._newest_for(active, now_ms))

    def segment_for(self, placed: Sequence[Admitted], now_ms: int) -> Segment:
        """The active segment, after a roll if it is full, too old, or can't address the batches.

        Raises DiskFull, DiskFailed, CorruptBatch.
        """
        log = self._log
        active = log.segments.active
        first_offset = placed[0].first_offset
        if not active.size and active.base_offset == first_offset:
            active.created_ms = now_ms
            return active
        room = self.room(now_ms)
        size, newest = sum([one.size for one in placed]), max([one.max_timestamp for one in placed])
        if room.takes(size, placed[-1].last_offset, newest):
            return active
        # Behind a hole, too, it begins where the log ends, unless its offsets have too many bits then: another leader
        # may have what is missing here.
        far = placed[-1].last_offset - log.log_end_offset > MAX_POSITION
        return self.roll(first_offset if far else log.log_end_offset, now_ms)

    def take_back(self) -> None:
        """Remove what a roll left above the log's end: it was made for batches that the disk did not take."""
        log, active = self._log, self._log.segments.active
        if active.base_offset > log.log_end_offset:
            log.take_out(active)
            active.remove()
        if self._begun > log.log_end_offset:
            log.disk.remove(snapshot_path(log.directory, self._begun))

    def roll(self, offset: int, now_ms: int) -> Segment:
        """Begin a segment there, or at the log's end; the active one stays if it is empty and begins there.

        Raises DiskFull, DiskFailed.
        """
        log = self._log
        active = log.segments.active
        offset = max(offset, log.log_end_offset)
        if not active.size and active.base_offset == offset:
            return active
        active.seal()
        self._begun = offset
        log.disk.replace(snapshot_path(log.directory, offset), log.producers.to_snapshot(), durable=False)
        fresh = Segment(log.disk, log.directory, offset, create=True, now_ms=now_ms)
        if fresh.size:  # left by a roll that failed half-way before a restart
            fresh.log.truncate(0)
        fresh.reset_indexes()
        log.segments.add(fresh)
        log.dirty_names = True
        log.keep_warm(active)
        return fresh

    def _newest_for(self, active: Segment, now_ms: int) -> int:
        """The largest timestamp that the active segment still takes, by segment.ms.

        Kafka's rule: by the records' own time if they have any, else by the segment's age.
        """
        begun = active.first_timestamp
        if not active.size or begun is None:
            return _MAX_TIMESTAMP
        longest = _segment_ms(self._log._config) - self._jitter_ms(active)
        if begun >= 0:
            return min(begun + longest, _MAX_TIMESTAMP)
        return _MAX_TIMESTAMP if now_ms - active.created_ms <= longest else _NO_TIMESTAMP

    def _jitter_ms(self, segment: Segment) -> int:
        config = self._log._config
        jitter = config.segment_jitter_ms
        if not jitter:
            return 0
        jitter = min(jitter, _segment_ms(config))
        return crc32c(f"{self._log.directory}/{segment.base_offset}".encode()) % jitter if jitter else 0


def _segment_ms(config: TopicConfig) -> int:
    """How long a segment is appended to; in a compacted topic no longer than its records may wait for a pass."""
    if "compact" in config.cleanup_policy:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


_NONE = ErrorCode.NONE
"""Looked up once: an enum's metaclass takes a thousand instructions to find a member."""

Appended = tuple[list[Admitted | AppendInfo], bool]
"""What became of a leader's batches, in their order, and whether all that is to be said is where they are in the log.

An outcome is the batch as it stands in the log if there is no more to say, else the AppendInfo. Fewer than there were
batches: the transaction of the next one must be verified first.
"""


class Appender:
    """The appending part of a log."""

    __slots__ = ("_flusher", "_log", "_roller", "_room")

    def __init__(self, log: LogState, flusher: Flusher) -> None:
        self._log = log
        self._flusher = flusher
        self._room: SegmentRoom | None = None
        self._roller = Roller(log)

    def append(
        self,
        batches: Sequence[Buffer],
        leader_epoch: int,
        now_ms: int,
        terms: Terms = COORDINATOR,
        order: BatchOrder | None = None,
        refusal: ErrorCode = _NONE,
    ) -> Appended:
        """Append batches as the leader: offsets and leader epoch are assigned here. Each succeeds or fails by itself.

        A writable buffer is stamped in place. ``order`` knows of batches that were refused before these; ``refusal`` is
        why none of them is appended, after the closer look that may find something else wrong. Those that the kernel
        admits together the disk takes all or none. Never raises for what is in the batches or for a failing disk.
        """
        log = self._log
        outcomes: list[Admitted | AppendInfo] = []
        plain = True
        sets = log.producers.positions if terms.client else None
        door = log.door if terms.client else None
        fresh: list[Gathered] = []
        while True:
            calm = order is None or not (order.refused or order.refused_early)
            ready: list[Admitted] = []
            produced = 0
            if refusal is _NONE and not log.offline:
                if door is not None:  # of a topic that drops duplicates, too, each batch is looked at
                    if sets is None and (passing := door.passing(batches)):
                        ready, produced = self._ready(batches[:passing], leader_epoch, now_ms, terms, calm)
                elif sets is None:
                    ready, produced = self._ready(batches, leader_epoch, now_ms, terms, calm)
                elif fresh := all_new(sets, batches, now_ms):
                    ready, produced = self._ready(batches[: len(fresh)], leader_epoch, now_ms, terms, calm, fresh)
            if not ready:
                outcome = self._look_closer(batches[0], leader_epoch, now_ms, terms, order, refusal)
                if outcome is None:
                    return outcomes, plain
                if type(outcome) is not Admitted:
                    plain = False
                outcomes.append(outcome)
                batches = batches[1:]
            else:
                some, batches = batches, batches[len(ready) :]
                if batches:
                    some = some[: len(ready)]
                failed = self._write(some, ready, produced, now_ms, NO_MARKERS, None)
                if sets is not None and log.log_end_offset > ready[-1].last_offset:  # also if only its flush failed
                    for admitted, gathered in zip(ready, fresh, strict=False):
                        sets.accept(gathered.pages, admitted.first_offset, now_ms, exact=True)
                if order is not None and not (calm and failed is None):
                    error = ErrorCode.NONE if failed is None else failed.error
                    for batch in some:
                        order.answer(parse_header(batch), error)
                if failed is None:
                    outcomes += ready
                else:
                    plain = False
                    outcomes += [failed] * len(ready)
            if not batches:
                return outcomes, plain

    def _ready(
        self,
        batches: Sequence[Buffer],
        leader_epoch: int,
        now_ms: int,
        terms: Terms,
        unknown: bool,
        gathered: Sequence[Gathered] | None = None,
    ) -> tuple[list[Admitted], int]:
        """Those batches, from the first on, that need no closer look, and how many of them have a producer id.

        They are stamped, to be written next. With ``unknown`` the first ones of producers that the log does not know
        are among them. ``gathered`` are their positions, if their records were looked at for those.
        """
        log = self._log
        active, config = log.segments.active, log._config
        room = self._room
        if room is None or room.segment is not active or room.config is not config or room.batches < len(batches):
            try:
                room = self._room = self._roller.room(now_ms)
            except DiskFailed as wrong:
                log.fail(wrong)
                return [], 0
            except (DiskFull, CorruptBatch):  # a closer look meets the same, and answers
                return [], 0
            if room.batches < len(batches):
                batches = batches[: room.batches]
        client = terms.client
        max_bytes = room.max_bytes if client else room.own_max_bytes
        epochs, position, end = log.epochs, active.log.size, log.log_end_offset
        if (
            max_bytes < 0
            or not position  # the first batch of a segment decides how long it lasts
            or now_ms > room.before_ms
            or epochs.dirty
            or epochs.latest != leader_epoch
        ):
            return [], 0
        space, latest = room.end_position - position, now_ms + room.after_ms
        if space > room.end_offset - end:
            space = room.end_offset - end  # a record has more than one byte
        if latest > room.newest:
            latest = room.newest
        producers: Mapping[int, ProducerEntry] = log.producers.entries if client else {}
        if client and terms.guards:
            begins = log.producers.beginning(batches[0], terms.guards)
            if begins is not None:
                producers, batches = begins, batches[:1]
        return admit(
            batches, end, leader_epoch, latest, MAX_BATCH_RECORDS, max_bytes, space, producers, terms.transactional,
            unknown and client, None if gathered is None else [one.max_timestamp for one in gathered],
        )  # fmt: skip

    # ---- a closer look

    def _look_closer(
        self, batch: Buffer, leader_epoch: int, now_ms: int, terms: Terms, order: BatchOrder | None, refusal: ErrorCode
    ) -> Admitted | AppendInfo | None:
        """Validate, then append; None if the batch's transaction, or its payloads elsewhere, must be verified first."""
        if not terms.client or not terms.whole_request:
            alone = self._append_checked(batch, leader_epoch, now_ms, terms, refusal)
            return self.refused(ErrorCode.INVALID_RECORD, NOT_ASKED) if alone is None else alone
        header = check_request(batch, terms)
        if isinstance(header, Rejected):
            return self.refused(header.error, header.message)
        if header.codec and terms.unpacked >= terms.unpack:
            return self.refused(ErrorCode.MESSAGE_TOO_LARGE, terms.why_too_large)
        if header.is_transactional and self._log.producers.positions is not None:
            return self.refused(refused_transaction().error, refused_transaction().message)
        if (
            header.is_transactional
            and terms.guards is None
            and refusal is ErrorCode.NONE
            and self._log.producers.needs_verification(header.producer_id, header.producer_epoch)
        ):
            return None
        if order is not None and 0 <= header.producer_id not in self._log.producers.entries:
            overtaken = order.overtaken(header)
            if overtaken is not ErrorCode.NONE:
                return self.refused(overtaken, None)
        unpacked = terms.unpacked
        outcome = self._append_checked(batch, leader_epoch, now_ms, terms, refusal)
        if outcome is None:
            terms.unpacked = unpacked
            return None
        if isinstance(outcome, AppendInfo) and outcome.record_errors:
            terms.explained(header.record_count)
        if order is not None and header.producer_id >= 0:
            info = self.info(outcome)
            error = order.answer(header, info.error)
            if error is not info.error:
                return info._replace(error=error)
        return outcome

    def _append_checked(
        self, records: Buffer, leader_epoch: int, now_ms: int, terms: Terms, refusal: ErrorCode
    ) -> Admitted | AppendInfo | None:
        """As :meth:`_look_closer`; None if another process must be asked of payloads first."""
        log = self._log
        if refusal is not ErrorCode.NONE:
            return self.refused(refusal, None)
        if log.offline:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.directory} is offline")
        config = log._config
        sets = log.producers.positions if terms.client else None
        door = log.door if terms.client else None
        payloads: list[Buffer] | None = None if sets is None and door is None else []
        checked = check_for_leader(
            records,
            origin=terms.origin,
            config=config,
            now_ms=now_ms,
            inflate_limit=log.settings.inflate_limit,
            compacted="compact" in config.cleanup_policy,
            explain=terms.explain,
            payloads=payloads,
            unpacked=terms.unpack_more,
        )
        if isinstance(checked, Rejected):
            return self.refused(checked.error, checked.message, checked.record_errors)
        buffer = checked.buffer
        if len(buffer) > config.segment_bytes:
            return self.refused(
                ErrorCode.RECORD_LIST_TOO_LARGE, f"{len(buffer)} bytes pass segment.bytes {config.segment_bytes}"
            )
        append_time = now_ms if config.message_timestamp_type == "LogAppendTime" else -1
        headers = self._place(checked, leader_epoch, append_time)
        touched = [
            (header, marker)
            for header, (_, _, marker) in zip(headers, checked.batches, strict=True)
            if header.producer_id != NO_PRODUCER_ID
        ]
        if touched:
            outcome = log.producers.check(
                touched,
                origin=terms.origin,
                guards=terms.guards or {},
                transaction_version=terms.transaction_version,
            )
            if isinstance(outcome, Duplicate):
                return self._duplicate(outcome, append_time, touched[-1][0].is_transactional)
            if isinstance(outcome, Refusal):
                return self.refused(outcome.error, outcome.message)
        places = [position for position, _, _ in checked.batches]
        kept, whole = None, True
        if payloads is not None:
            sifted = self._sifted(buffer, places, headers, payloads, now_ms, terms)
            if isinstance(sifted, Rejected):
                return self.refused(sifted.error, sifted.message, sifted.record_errors)
            if isinstance(sifted, Elsewhere):
                return None
            if sifted is not None:
                buffer, headers, places = sifted.buffer, sifted.headers, sifted.places
                kept = sifted if isinstance(sifted, Kept) else None
                whole = kept is not None and not kept.dropped
        for position, header in zip(places, headers, strict=True):
            stamp(buffer, position, header.base_offset, leader_epoch, -1 if header.is_control else append_time)
        placed = [admitted_of(header) for header in headers]
        markers = {header.base_offset: marker for header, marker in touched if header.is_control}
        epochs = ((leader_epoch, placed[0].first_offset),)
        failed = self._write((buffer,), placed, len(touched), now_ms, markers, epochs)
        if kept is not None and log.log_end_offset > placed[-1].last_offset:  # also if only its flush failed
            accept(log.producers.positions, kept, now_ms)
        if failed is not None:
            return failed
        if len(placed) == 1 and append_time < 0 and whole:
            return placed[0]
        records_in = sum(header.record_count for header in headers)
        return self._info(placed[0].first_offset, records_in, len(buffer), append_time)

    def _sifted(
        self,
        buffer: bytearray | memoryview,
        places: list[int],
        headers: list[BatchHeader],
        payloads: list[Buffer],
        now_ms: int,
        terms: Terms,
    ) -> Kept | Thinned | Rejected | Elsewhere | None:
        """What the topic's door, and the positions that it has accepted, say of the records; None: all stay."""
        log = self._log
        door, sets = log.door, log.producers.positions
        try:
            said = None if door is None else door.check(payloads, headers, terms.explain, terms.judging)
            if door is not None and door.reads_payloads:
                terms.unpack_more(0, 2 * sum(map(len, payloads)))
            if isinstance(said, Rejected) and not said.record_errors:  # those that are named count elsewhere
                terms.explained(headers[0].record_count)
            stamped = log._config.message_timestamp_type == "LogAppendTime"
            if isinstance(said, list):
                return without_records(buffer, places, headers, payloads, said, stamped=stamped)
            if said is not None or sets is None:
                return said
            return keep_new(sets, buffer, places, headers, payloads, now_ms, stamped=stamped, explain=terms.explain)
        except CorruptBatch as wrong:
            return Rejected(ErrorCode.CORRUPT_MESSAGE, str(wrong))

    def _place(self, checked: Checked, leader_epoch: int, append_time: int) -> list[BatchHeader]:
        """The batches' final headers."""
        placed: list[BatchHeader] = []
        offset = self._log.log_end_offset
        for _, header, _ in checked.batches:
            largest = header.max_timestamp if append_time < 0 or header.is_control else append_time
            placed.append(
                header._replace(base_offset=offset, partition_leader_epoch=leader_epoch, max_timestamp=largest)
            )
            offset += header.last_offset_delta + 1
        return placed

    # ---- what a leader has sent

    def append_as_follower(self, records: Buffer, *, now_ms: int | None = None) -> AppendInfo:
        """Append batches as the leader has them, offsets included; a torn last batch is left out.

        CORRUPT_MESSAGE for damage, OFFSET_OUT_OF_RANGE when the batches don't follow this log's end.
        """
        log = self._log
        if log.offline:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        now_ms = log.last_now_ms if now_ms is None else now_ms
        sets = log.producers.positions
        accepted: list[tuple[int, list[PagePositions]]] = []
        placed: list[Admitted] = []
        epochs: list[tuple[int, int]] = []
        markers: dict[int, Marker | None] = {}
        expected, position, end, count = log.log_end_offset, 0, len(records), 0
        try:
            while end - position >= HEADER_SIZE and parse_header(records, position).size <= end - position:
                header = validate_batch(records, position)
                if header.base_offset < expected:
                    return self.refused(
                        ErrorCode.OFFSET_OUT_OF_RANGE, f"batch at {header.base_offset} where {expected} was expected"
                    )
                if placed and header.last_offset - log.log_end_offset > MAX_POSITION:
                    break  # one segment can't address them all: the next fetch begins here
                if header.base_offset > expected and log.calls.on_hole is not None:
                    try:
                        log.calls.on_hole(log)
                    except (DiskFull, DiskFailed) as wrong:
                        return self._unwritten(wrong)
                placed.append(admitted_of(header))
                epochs.append((header.partition_leader_epoch, header.base_offset))
                if header.producer_id != NO_PRODUCER_ID and header.is_control:
                    markers[header.base_offset] = read_marker(records, position, header)
                if sets is not None:
                    accepted.append((header.base_offset, positions_of(records, position, header)))
                expected = header.last_offset + 1
                position += header.size
                count += header.record_count
        except (CorruptBatch, CodecError) as wrong:
            return self.refused(ErrorCode.CORRUPT_MESSAGE, str(wrong))
        if not placed:
            return self._info(log.log_end_offset, 0, 0)
        # the next fetch tells the leader what is safe here, so it is flushed as an append of the leader's
        failed = self._write((memoryview(records)[:position],), placed, len(placed), now_ms, markers, epochs)
        if sets is not None and log.log_end_offset == expected:  # also if only its flush failed
            for offset, mine in accepted:
                sets.accept(mine, offset, now_ms, exact=False)
        return self._info(placed[0].first_offset, count, position) if failed is None else failed

    # ---- writing

    def _write(
        self,
        pieces: Sequence[Buffer],
        placed: Sequence[Admitted],
        produced: int,
        now_ms: int,
        markers: Mapping[int, Marker | None],
        epochs: Sequence[tuple[int, int]] | None,
    ) -> AppendInfo | None:
        """Write batches that follow on the log's end, then make everything true in memory; the refusal if it fails.

        ``produced``: how many of them have a producer id, or may have one. ``markers``: see ``ProducerState.appended``.
        ``epochs`` are their leader epochs, each with its first offset; None, and there is room for them in the active
        segment, if :meth:`_ready` says so.
        """
        log, config = self._log, self._log._config
        end = placed[-1][1] + 1
        try:
            if epochs is None:
                assert self._room is not None, "they were admitted by it"
                segment = self._room.segment
                self._room.batches -= len(placed)
            else:
                self._room = None
                segment = self._roller.segment_for(placed, now_ms)
            segment.append(pieces, placed, config.index_interval_bytes)
            if produced:
                for aborted in log.producers.appended(placed, now_ms, markers):
                    segment.add_aborted(aborted)
        except (DiskFull, DiskFailed) as wrong:
            return self._unwritten(wrong)
        except CorruptBatch as wrong:  # what stands there, while its largest timestamp was looked for
            log.failure(wrong)
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, f"damaged batch: {wrong}")
        log.log_end_offset = end
        log.settled = False
        if now_ms > log.last_now_ms:
            log.last_now_ms = now_ms
        if log.unflushed_since_ms is None:
            log.unflushed_since_ms = now_ms
        if epochs is not None:
            for epoch, first_offset in epochs:
                if epoch > log.epochs.latest:
                    log.epochs.assign(epoch, first_offset)
            if log.epochs.dirty:
                log.save_epochs()
        if log.settings.flush_each_append or end - log.recovery_point >= config.flush_messages:
            return self._flushed()
        return None

    @guarded
    def roll(self, now_ms: int) -> Segment:
        """Start a new segment at the log's end, unless the active one is empty. Raises DiskFull or LogOffline."""
        return self._roller.roll(self._log.log_end_offset, now_ms)

    def set_high_watermark(self, offset: int) -> None:
        """Records below ``offset`` are replicated; kept between the log's start and end."""
        log = self._log
        if offset < log.log_start_offset:
            offset = log.log_start_offset
        if offset > log.log_end_offset:
            offset = log.log_end_offset
        log.high_watermark = offset
        if log.producers.unreplicated:
            log.producers.high_watermark_moved(offset)

    # ---- outcomes

    def _unwritten(self, wrong: DiskFull | DiskFailed) -> AppendInfo:
        """The refusal of what the disk did not take."""
        log = self._log
        try:
            if isinstance(wrong, DiskFull):
                self._roller.take_back()
        except (DiskFull, DiskFailed) as again:
            wrong = again
        if isinstance(wrong, DiskFull):
            # as text: an exception that is kept keeps its frames, and the views of what was received in them
            logger.log(
                logging.DEBUG if log.crowded else logging.ERROR,
                "%s: append refused: %s",
                log.topic_partition,
                str(wrong),
            )
            log.no_room(wrong)
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, f"no room: {wrong.reason}")
        log.fail(wrong)
        return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, str(wrong))

    def _flushed(self) -> AppendInfo | None:
        """Flush; the refusal if that fails. Without room for an index the records are still in the log, and safe."""
        try:
            self._flusher.flush()
        except DiskFull as wrong:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, f"no room: {wrong.reason}")
        except LogOffline as wrong:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR, str(wrong))
        return None

    def refused(
        self, error: ErrorCode, message: str | None, record_errors: tuple[tuple[int, str | None], ...] = ()
    ) -> AppendInfo:
        """The answer to an append that changed nothing."""
        return AppendInfo(-1, -1, -1, self._log.log_start_offset, 0, 0, False, error, message, record_errors)

    def info(self, outcome: Admitted | AppendInfo) -> AppendInfo:
        """All that can be said of an outcome."""
        if isinstance(outcome, AppendInfo):
            return outcome
        first_offset, last_offset, _, size, _, _, _, _ = outcome
        return AppendInfo(
            first_offset, last_offset, -1, self._log.log_start_offset, last_offset + 1 - first_offset, size, False,
            ErrorCode.NONE, None,
        )  # fmt: skip

    def _info(self, first_offset: int, record_count: int, size: int, append_time: int = -1) -> AppendInfo:
        log = self._log
        return AppendInfo(
            first_offset, log.log_end_offset - 1, append_time, log.log_start_offset, record_count, size, False,
            ErrorCode.NONE, None,
        )  # fmt: skip

    def _duplicate(self, duplicate: Duplicate, append_time: int, in_transaction: bool) -> AppendInfo:
        batch = duplicate.batch
        return AppendInfo(
            batch.first_offset,
            batch.last_offset,
            batch.timestamp if append_time >= 0 else -1,
            self._log.log_start_offset,
            batch.offset_delta + 1,
            0,
            True,
            ErrorCode.NONE,
            None,
            in_transaction=in_transaction,
        )
