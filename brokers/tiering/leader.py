"""A leader's work on one partition's tier: it takes the manifest over, copies, deletes here and there, and sweeps.

Everything that counts goes through :meth:`TierLeader._commit`, which writes the generation after the one it knows, and
only if nobody has written it. An answer may be lost though the write was applied: the generation is read again, and
whatever stands there is taken as what is true. A generation of a later leader ends this one's work.

The bucket and the log are ports, and every step waits for one call at most, so that the simulation decides what comes
between two calls.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fleetlog.brokers.tiering.decisions import (
    Listed,
    LocalLog,
    LocalSegment,
    TierLimits,
    counted,
    emptied,
    fitted,
    local_start,
    next_copy,
    orphans,
    retained,
    unbroken,
)
from fleetlog.brokers.tiering.manifest import (
    MANIFESTS,
    BadObject,
    Manifest,
    TieredSegment,
    decode_manifest,
    encode_manifest,
    generation_of,
    manifest_name,
)

ATTEMPTS = 100
"""At finding the next generation: each one that is taken is another leader's change."""


NOBODY = -1
"""The broker of a deleted topic's last manifest."""
DELETED_TOGETHER = 100
"""Objects, by one call."""


class BucketError(Exception):
    """A call to the bucket failed, or its answer is lost: it may have been applied, now or later."""


class NoSuchObject(Exception):
    """There is no object of that name."""


class NameTaken(Exception):
    """There is an object of that name, and it stays as it is."""


class TierOvertaken(Exception):
    """A later leader has written a manifest, or this one leads no longer: it must change nothing any more."""


class BucketPort(Protocol):
    """Objects by name. All raise BucketError, ``get`` NoSuchObject, ``put_new`` NameTaken."""

    async def put_new(self, name: str, data: bytes) -> None:
        """Write an object only if there is none of that name."""

    async def get(self, name: str, start: int = 0, size: int = -1) -> bytes:
        """Bytes of an object; all of them without a size."""

    async def objects(self, prefix: str) -> list[Listed]:
        """Objects whose names begin with that folder, in any order; one that was written just now may be missing."""

    async def delete(self, names: list[str]) -> None:
        """Remove objects; absent ones don't matter."""


class Uploaded(NamedTuple):
    """What an upload wrote: sizes in bytes, the index's checksum, and how many aborted transactions it has."""

    size: int
    index_size: int
    index_crc: int
    aborted: int


class TieredLog(Protocol):
    """The leader's log, as its tier sees it."""

    def view(self) -> LocalLog:
        """The log as it is now. Raises TierOvertaken where this broker leads no longer in the epoch that it had."""

    def limits(self) -> TierLimits:
        """The topic's retention."""

    async def upload(self, segment: LocalSegment, log_name: str, index_name: str) -> Uploaded:
        """Copy a part of a closed segment. Raises BucketError, TierOvertaken."""

    def begin_at(self, offset: int) -> None:
        """The log begins there from now on: what is before it goes. Raises TierOvertaken."""


async def newest_manifest(bucket: BucketPort, prefix: str) -> Manifest | None:
    """The highest generation of a partition; None if it has none. Raises BucketError, BadObject.

    A listing may be late, so the generations after its last one are asked for by their names.
    """
    generations = [
        generation_of(entry.name.removeprefix(prefix)) for entry in await bucket.objects(f"{prefix}{MANIFESTS}")
    ]
    generation, manifest = max(generations, default=0), None
    while True:
        name = prefix + manifest_name(generation)
        try:
            manifest = decode_manifest(await bucket.get(name), name)
        except NoSuchObject:
            if generation:
                return manifest
        else:
            if manifest.generation != generation:
                raise BadObject(f"{name}: it says that it is generation {manifest.generation}")
        generation += 1


def disowned(manifest: Manifest, now_ms: int) -> Manifest:
    """The next generation of a deleted topic's: it names nothing, and a leader that does not know yet ends at it."""
    return manifest._replace(
        generation=manifest.generation + 1, leader_epoch=manifest.leader_epoch + 1, broker_id=NOBODY, written_ms=now_ms,
        log_start=max(manifest.log_start, manifest.end), segments=(),
    )  # fmt: skip


async def remove_partition(bucket: BucketPort, prefix: str, now_ms: Callable[[], int], *, last: bool) -> list[str]:
    """Remove a deleted topic's partition: a manifest that names nothing first, then all behind it.

    That manifest stays until the ``last`` time, so that a former leader, which may write yet, comes to its end. Returns
    the names of what was removed. Raises BucketError.
    """
    try:
        known = await newest_manifest(bucket, prefix)
    except BadObject:  # it names nothing that can be read
        known = None
    if known is not None and (known.segments or known.broker_id != NOBODY):
        known = disowned(known, now_ms())
        try:
            await bucket.put_new(prefix + manifest_name(known.generation), encode_manifest(known))
        except NameTaken as wrong:
            raise BucketError(f"{prefix}: a leader that does not know of the deletion wrote meanwhile") from wrong
    kept = prefix + manifest_name(known.generation) if known is not None and not last else ""
    names = [entry.name for entry in await bucket.objects(prefix) if entry.name != kept]
    # the newest manifest comes last: one before it names what is gone
    names.sort(key=lambda name: generation_of(name.removeprefix(prefix)))
    for first in range(0, len(names), DELETED_TOGETHER):
        await bucket.delete(names[first : first + DELETED_TOGETHER])
    return names


@dataclass(slots=True)
class TierFigures:
    """What was done for a topic's partitions since the broker's start: bytes, and segments as Kafka counts requests."""

    copied_bytes: int = 0
    copied_segments: int = 0
    copies: int = 0
    copy_errors: int = 0
    deletes: int = 0
    delete_errors: int = 0
    fetched_bytes: int = 0
    fetches: int = 0
    fetch_errors: int = 0
    signed_bytes: int = 0
    swept: int = 0


class TierLeader:
    """One leader epoch's work. :meth:`step` again and again; it raises BucketError, BadObject, TierOvertaken."""

    def __init__(
        self,
        bucket: BucketPort,
        prefix: str,
        log: TieredLog,
        mine: Manifest,
        *,
        now_ms: Callable[[], int],
        new_id: Callable[[], uuid.UUID],
        grace_ms: int,
        figures: TierFigures | None = None,
    ) -> None:
        """``prefix``: of the partition's objects, with the slash; ``mine``: topic, partition, epoch, broker and
        incarnation of what is written here."""
        self.manifest: Manifest | None = None
        """What is true, once this leader has taken over."""
        self.deleted_before = -1
        """The log start that a client has set."""
        self.ended = False
        """The topic is not tiered any more, and nothing of the partition is left in the bucket."""
        self.gap = ""
        """What was deleted because nobody could read on behind it, in words, until somebody has said so."""
        self._figures = figures if figures is not None else TierFigures()
        self._bucket = bucket
        self._prefix = prefix
        self._log = log
        self._mine = mine
        self._now_ms = now_ms
        self._new_id = new_id
        self._grace_ms = grace_ms

    async def step(self) -> bool:
        """Do what is due: one segment at most is copied. Returns whether there is more to do at once."""
        if self._log.limits().ends:
            await self._end()
            return False
        if self.manifest is None:
            await self._take_over()
        await self._mend()
        copied = await self._copy()
        await self._retain()
        return copied

    async def _mend(self) -> None:
        """Before a copy would follow what nobody can read on behind."""
        assert self.manifest is not None, "taken over before"
        before = self.manifest
        if unbroken(before, self._log.view()) == before:
            return
        if self.deleted_before < before.end:  # else a client has deleted it
            self.gap = f"what is in the bucket, up to {before.end}, ends before this log begins: it is deleted"
        await self._commit(before, lambda manifest: unbroken(manifest, self._log.view()))
        await self._delete(sorted(set(before.names()).difference(self.manifest.names())))

    async def _take_over(self) -> None:
        """Write a generation of this epoch, which a former leader's next one cannot follow."""
        known = await newest_manifest(self._bucket, self._prefix)
        if known is None:
            known = self._mine
        elif (known.topic_id, known.partition) != (self._mine.topic_id, self._mine.partition):
            raise BadObject(f"{self._prefix}: a manifest of {known.topic_id} partition {known.partition}")
        await self._commit(known, lambda manifest: fitted(manifest, self._log.view()), always=True)

    async def _end(self) -> None:
        """Of a topic that is not tiered any more: the manifest names nothing, then its objects go."""
        if self.ended:
            return
        if self.manifest is None:
            if await newest_manifest(self._bucket, self._prefix) is None:
                self.ended = True
                return
            await self._take_over()
        assert self.manifest is not None, "taken over"
        # listed before: what a later leader copies, whose topic is tiered again, comes after a manifest of its epoch
        listed = [entry.name.removeprefix(self._prefix) for entry in await self._bucket.objects(self._prefix)]
        # always: it may name nothing, and a copy whose answer was lost be counted late
        await self._commit(self.manifest, lambda manifest: emptied(manifest, self._log.view()), always=True)
        await self._delete([name for name in listed if generation_of(name) < 0])
        self.ended = True

    async def _delete(self, names: list[str]) -> None:
        """Objects that the newest manifest does not name."""
        if not names:
            return
        segments = sum(name.endswith(".log") for name in names)
        self._figures.deletes += segments
        try:
            await self._bucket.delete([self._prefix + name for name in names])
        except BucketError:
            self._figures.delete_errors += segments
            raise

    async def _copy(self) -> bool:
        assert self.manifest is not None, "taken over before"
        local, limits, now_ms = self._log.view(), self._log.limits(), self._now_ms()
        part = next_copy(self.manifest, local, limits, now_ms)
        if part is None:
            return False
        self._figures.copies += 1
        try:
            await self._copy_part(part, local, lambda manifest: next_copy(manifest, local, limits, now_ms) == part)
        except (BucketError, BadObject):
            self._figures.copy_errors += 1
            raise
        self._figures.copied_segments += 1
        return True

    async def _copy_part(self, part: LocalSegment, local: LocalLog, still_next: Callable[[Manifest], bool]) -> None:
        assert self.manifest is not None, "taken over before"
        segment = TieredSegment(self._new_id(), part.start, part.end, part.size, 0, 0, 0, part.max_timestamp)
        done = await self._log.upload(part, self._prefix + segment.log_name, self._prefix + segment.index_name)
        segment = segment._replace(**done._asdict())

        def change(manifest: Manifest) -> Manifest:
            wanted = still_next(manifest) and segment.end >= self._log.view().start  # it may have gone meanwhile
            return counted(manifest, segment, local) if wanted else manifest

        await self._commit(self.manifest, change)
        self._figures.copied_bytes += done.size

    async def _retain(self) -> None:
        """Manifest first, objects later: what is gone from there is read by nobody who begins after it."""
        assert self.manifest is not None, "taken over before"
        before, now_ms, limits = self.manifest, self._now_ms(), self._log.limits()
        await self._commit(
            before,
            lambda manifest: retained(manifest, self._log.view(), limits, self.deleted_before, now_ms),
        )
        start = local_start(self.manifest, self._log.view(), limits, now_ms)
        if start > self._log.view().start:
            self._log.begin_at(start)
        await self._delete(sorted(set(before.names()).difference(self.manifest.names())))

    async def sweep(self) -> int:
        """Remove what no manifest names and is old enough; returns how many objects."""
        if self.manifest is None:
            return 0
        listed = [
            entry._replace(name=entry.name.removeprefix(self._prefix))
            for entry in await self._bucket.objects(self._prefix)
        ]
        manifest = await newest_manifest(self._bucket, self._prefix)  # as it is after the listing
        if manifest is None:
            return 0
        self._refuse_later(manifest)
        self._settle(manifest)  # a change whose answer was lost counts, and readers follow it before objects go
        names = orphans(listed, manifest, self._now_ms(), self._grace_ms)
        if names:
            await self._bucket.delete([self._prefix + name for name in names])
            self._figures.swept += len(names)
        return len(names)

    async def _commit(self, known: Manifest, change: Callable[[Manifest], Manifest], *, always: bool = False) -> None:
        """Make a change the newest generation, decided anew on whatever generation is found to be there."""
        for _ in range(ATTEMPTS):
            self._refuse_later(known)
            wanted = change(known)
            if wanted == known and not always:
                self._settle(known)
                return
            wanted = wanted._replace(
                generation=known.generation + 1, leader_epoch=self._mine.leader_epoch, broker_id=self._mine.broker_id,
                incarnation=self._mine.incarnation, written_ms=self._now_ms(),
            )  # fmt: skip
            name = self._prefix + manifest_name(wanted.generation)
            try:
                await self._bucket.put_new(name, encode_manifest(wanted))
            except (NameTaken, BucketError) as wrong:
                standing = await self._stands(name)
                if standing is None:
                    raise BucketError(f"{name} is not written: {wrong}") from wrong
                if standing != wanted:
                    known = standing  # another leader's, or this one's of a call whose answer was lost
                    continue
            self._settle(wanted)
            return
        raise BucketError(f"{self._prefix}: {ATTEMPTS} generations were taken one after the other")

    async def _stands(self, name: str) -> Manifest | None:
        try:
            return decode_manifest(await self._bucket.get(name), name)
        except NoSuchObject:
            return None

    def _refuse_later(self, manifest: Manifest) -> None:
        if manifest.writer > self._mine.writer:
            raise TierOvertaken(f"{self._prefix}: leader epoch {manifest.leader_epoch} has written generation"
                            f" {manifest.generation}")  # fmt: skip

    def _settle(self, manifest: Manifest) -> None:
        """That is true; unless this leader was deposed while it wrote, for then a later one may not have seen it."""
        self._log.view()
        self.manifest = manifest


def folder_of(topic: str, topic_id: uuid.UUID) -> str:
    """Of a topic's objects, with the slash."""
    return f"topics/{topic}.{topic_id.hex}/"


def prefix_of(topic: str, topic_id: uuid.UUID, partition: int) -> str:
    """Of a partition's objects."""
    return f"{folder_of(topic, topic_id)}{partition}/"
