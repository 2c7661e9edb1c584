"""What is copied to the bucket, what is deleted here and there, and what counts. Pure.

A new leader takes over what its predecessors have copied as far as their epochs are its own (KIP-405 calls it the
lineage): up to the first offset at which another epoch has appended here, or at which this log ends. What lies before
this log's start is compared with nothing: it was deleted here because the manifest counted it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fleetlog.brokers.tiering.manifest import Manifest, ManifestEpoch, TieredSegment, generation_of

KEPT_GENERATIONS = 3
"""Of a manifest; older ones go when they have the age of orphans."""


class LocalSegment(NamedTuple):
    """A closed segment of the leader's log; ``max_timestamp`` in ms, ``size`` in bytes."""

    start: int
    end: int
    size: int
    max_timestamp: int


class LocalLog(NamedTuple):
    """The leader's log at one moment. Below ``stable`` it is committed, decided and durable."""

    start: int
    end: int
    stable: int
    size: int
    segments: tuple[LocalSegment, ...]
    """Closed ones, in order."""
    epochs: tuple[ManifestEpoch, ...]


class TierLimits(NamedTuple):
    """A topic's retention, here and in all; -1 is for ever. What is closed is copied once it has either lag."""

    retention_ms: int = -1
    retention_bytes: int = -1
    local_ms: int = -1
    local_bytes: int = -1
    lag_ms: int = 0
    lag_bytes: int = -1
    """-1: that lag does not count; 0: at once."""
    copies: bool = True
    ends: bool = False
    """The tier is to be deleted."""


class Listed(NamedTuple):
    """An object of the bucket, by its name below the partition's prefix."""

    name: str
    size: int
    modified_ms: int


def epoch_at(epochs: Sequence[ManifestEpoch], offset: int) -> int:
    """The epoch that appended the offset; -1 if none is known."""
    above = bisect_right(epochs, offset, key=lambda entry: entry.start_offset)
    return epochs[above - 1].epoch if above else -1


def agreed_until(manifest: Manifest, local: LocalLog) -> int:
    """The offset up to which the manifest and the log are of one lineage: at most what the manifest speaks of."""
    reach = max(manifest.end, manifest.log_start)
    if reach <= local.start:
        return reach
    until = min(reach, local.end)
    starts = {entry.start_offset for entry in (*manifest.epochs, *local.epochs)}
    for offset in sorted({local.start, *(start for start in starts if local.start < start < until)}):
        if epoch_at(manifest.epochs, offset) != epoch_at(local.epochs, offset):
            return min(offset, until)
    return until


def fitted(manifest: Manifest, local: LocalLog) -> Manifest:
    """Without what is not of the leader's lineage; a segment that is so in part ends earlier, whatever its object has.

    Epochs and logs begin and end where batches do.
    """
    until = agreed_until(manifest, local)
    segments = tuple(
        segment if segment.end <= until else _shorter(segment, until)
        for segment in manifest.segments
        if segment.start < until
    )
    epochs = chain(manifest.epochs, local.epochs, until)
    # where another leader's retention had come to beyond that, other records stand now
    return manifest._replace(segments=segments, epochs=epochs, log_start=min(manifest.log_start, until))


def _shorter(segment: TieredSegment, end: int) -> TieredSegment:
    """Its size is its offsets' share: retention by size is the only one that asks."""
    share = segment.size * (end - segment.start) // (segment.end - segment.start)
    return segment._replace(end=end, size=max(1, share))


def chain(known: Sequence[ManifestEpoch], own: Sequence[ManifestEpoch], end: int) -> tuple[ManifestEpoch, ...]:
    """All epochs below ``end``: the leader's own, before these those that it has forgotten."""
    if own:
        first = own[0]
        known = [entry for entry in known if entry.epoch <= first.epoch and entry.start_offset <= first.start_offset]
        if known and known[-1].epoch == first.epoch:  # a log that began in the middle of an epoch has it from there on
            own = own[1:]
    return tuple(entry for entry in (*known, *own) if entry.start_offset < end)


def next_copy(manifest: Manifest, local: LocalLog, limits: TierLimits, now_ms: int) -> LocalSegment | None:
    """The part of a closed segment that is copied next; None if nothing is to be copied now.

    Segments of other replicas have other bounds, so the first one may begin in the middle, where a batch does.
    """
    if not limits.copies:
        return None
    begin = max(manifest.end, manifest.log_start, local.start)
    newer = local.size
    for segment in local.segments:
        newer -= segment.size
        if segment.end > local.stable:
            return None
        if segment.end > begin:
            at_once = 0 in (limits.lag_ms, limits.lag_bytes)  # whatever its records' times are
            behind = 0 < limits.lag_ms <= now_ms - segment.max_timestamp or 0 < limits.lag_bytes <= newer
            return segment._replace(start=max(segment.start, begin)) if at_once or behind else None
    return None


class CopyLag(NamedTuple):
    """Closed segments that are not in the bucket: how many, their bytes, whether the oldest one is due, and whether it
    waits for an open transaction, or for followers."""

    segments: int = 0
    size: int = 0
    due: bool = False
    held: bool = False


def copy_lag(manifest: Manifest, local: LocalLog, limits: TierLimits, now_ms: int) -> CopyLag:
    """What is still to be copied, of a topic that is copied at all."""
    if not limits.copies:
        return CopyLag()
    begin = max(manifest.end, manifest.log_start, local.start)
    behind = [segment for segment in local.segments if segment.end > begin]
    if not behind:
        return CopyLag()
    due = next_copy(manifest, local._replace(stable=local.end), limits, now_ms) is not None
    return CopyLag(len(behind), sum(segment.size for segment in behind), due, due and behind[0].end > local.stable)


def emptied(manifest: Manifest, local: LocalLog) -> Manifest:
    """Of a topic that is tiered no longer: all that there is begins where the log does."""
    start = max(manifest.log_start, local.start)
    return manifest._replace(segments=(), log_start=start, epochs=chain(manifest.epochs, local.epochs, start))


def unbroken(manifest: Manifest, local: LocalLog) -> Manifest:
    """Without what ends before the log begins: nobody can read on behind it. So it is where a tier was switched off,
    the log went on by its own retention, and the tier is on again before what is in the bucket was deleted."""
    return emptied(manifest, local) if 0 <= manifest.end < local.start else manifest


def counted(manifest: Manifest, segment: TieredSegment, local: LocalLog) -> Manifest:
    """With one more segment, which was copied from that log."""
    return manifest._replace(
        segments=(*manifest.segments, segment), epochs=chain(manifest.epochs, local.epochs, segment.end)
    )


def local_start(manifest: Manifest, local: LocalLog, limits: TierLimits, now_ms: int) -> int:
    """Where the log may begin here: closed segments go, the oldest first, once the manifest counts them."""
    start = max(local.start, min(manifest.log_start, local.stable))
    return behind_limits(local, limits, start, manifest.end, now_ms)


def behind_limits(local: LocalLog, limits: TierLimits, start: int, until: int, now_ms: int) -> int:
    """Behind the closed segments before ``until`` that the limits of what is here take; ``start`` if they take none."""
    excess = local.size - limits.local_bytes if limits.local_bytes >= 0 else 0
    for segment in local.segments:
        if segment.end > until:
            break
        too_old = limits.local_ms >= 0 and now_ms - segment.max_timestamp > limits.local_ms
        if not (too_old or excess >= segment.size > 0):
            break
        excess -= segment.size
        start = max(start, segment.end)
    return start


def first_offset(manifest: Manifest, begin: int, log_start: int) -> int:
    """The first one that clients may read, of a log that begins here at ``begin``; ``log_start`` as of retention."""
    start = min(manifest.segments[0].start, begin) if manifest.end >= begin else begin
    return max(start, manifest.log_start, log_start)


def retained(manifest: Manifest, local: LocalLog, limits: TierLimits, log_start: int, now_ms: int) -> Manifest:
    """Without segments that retention takes, or that end before ``log_start``: a client has set it, or it is -1.

    Where nothing is copied any more, and nothing older is in the bucket, what is here only goes as in a topic without a
    tier; the manifest says so first, because a copy whose answer was lost may still be counted.
    """
    start = max(manifest.log_start, log_start)
    excess = manifest.size + _only_here(manifest, local) - limits.retention_bytes if limits.retention_bytes >= 0 else 0
    gone = 0
    for segment in manifest.segments:
        too_old = limits.retention_ms >= 0 and now_ms - segment.max_timestamp > limits.retention_ms
        if not (segment.end <= start or too_old or excess >= segment.size > 0):
            break
        excess -= segment.size
        start = max(start, segment.end)
        gone += 1
    if not limits.copies and gone == len(manifest.segments):
        here = behind_limits(local, limits, local.start, local.stable, now_ms)
        start = max(start, here) if here > local.start else start
    if start == manifest.log_start:
        return manifest
    epochs = chain(manifest.epochs, local.epochs, max(start, manifest.end))
    return manifest._replace(log_start=start, segments=manifest.segments[gone:], epochs=epochs)


def _only_here(manifest: Manifest, local: LocalLog) -> int:
    """Bytes of the log behind the manifest's end; of a segment that is there in part, its offsets' share."""
    begin = local.segments[-1].end if local.segments else local.start
    active = LocalSegment(begin, local.end, local.size - sum(segment.size for segment in local.segments), -1)
    return sum(
        segment.size * (segment.end - max(segment.start, manifest.end)) // (segment.end - segment.start)
        for segment in (*local.segments, active)
        if segment.end > max(manifest.end, segment.start)
    )


def orphans(listed: Iterable[Listed], manifest: Manifest, now_ms: int, grace_ms: int) -> list[str]:
    """Names of objects that may go: no manifest names them, and they are old enough that no upload is under way.

    ``manifest`` is the highest generation. Some before it stay, and one that is old enough: a listing that does not
    have the newest ones yet has that.
    """
    listed = list(listed)
    named = set(manifest.names())
    old = [generation_of(entry.name) for entry in listed if now_ms - entry.modified_ms > grace_ms]
    least = min(max(old, default=0), manifest.generation + 1 - KEPT_GENERATIONS)
    names = []
    for name, _, modified_ms in listed:
        generation = generation_of(name)
        kept = name in named if generation < 0 else generation >= least
        if not kept and now_ms - modified_ms > grace_ms:
            names.append(name)
    return names
