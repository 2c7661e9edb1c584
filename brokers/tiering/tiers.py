"""A broker's tiers: the partitions that it leads and whose topics are tiered.

Every second those whose time has come get a step of work, some at once: each copies a segment after the other, then
retention, here and in the bucket. A leader takes its manifest over as soon as it leads; until then nobody knows where
the log begins, and reads below what is here wait.

Source: KIP-405 (names, ListOffsets, retention of both); docs/adr/0023-tiered-storage.md says what is other.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog._native.batch import crc32c
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.log import DiskError, DiskPort, LogOffline, ReadResult
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.metadata.features import TIERING_VERSION
from fleetlog.brokers.metadata.loading import children_or_none, read_many
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.model import PROTECTED_TOPICS, Clock, TopicPartition
from fleetlog.brokers.tiering.bucket import ForeignBucket, ObjectBucket, Pace, SegmentParts, own
from fleetlog.brokers.tiering.cold_reads import AskedRange, Cold, ColdReads, Named, TierUnavailable, aborted_of
from fleetlog.brokers.tiering.decisions import (
    CopyLag,
    LocalLog,
    LocalSegment,
    TierLimits,
    copy_lag,
    epoch_at,
    first_offset,
)
from fleetlog.brokers.tiering.leader import (
    BucketError,
    NoSuchObject,
    TierFigures,
    TierLeader,
    TierOvertaken,
    Uploaded,
    folder_of,
    prefix_of,
    remove_partition,
)
from fleetlog.brokers.tiering.manifest import BadObject, Manifest, ManifestEpoch, encode_index
from fleetlog.coordination.store import NoNode, Store, StoreError

if TYPE_CHECKING:
    from fleetlog.brokers.replication.partition import Partition
    from fleetlog.brokers.replication.replicas import ReplicaManager

logger = logging.getLogger(__name__)

TICK_S = 1.0
AT_ONCE = 4
"""Partitions whose work waits for the bucket at the same time."""
AGAIN_MS = 5_000
"""After a failure; sooner if the task's interval is shorter."""
CACHE_DIRECTORY = "remote-log-index-cache"
"""The one directory beside those of partitions that Kafka passes over in log.dirs."""
NAMED = 5
OWNED_MS, OWNER_MS = 10_000, 60_000
"""How long a bucket that said whose it is need not be asked again: when a leader takes a manifest over, and later."""
REMOVED_MS = 30_000
"""Time between two looks for deleted topics; shorter if the task's interval is."""
PER_TURN = 500
"""Partitions that are looked at without a pause."""


def is_tiered(partition: Partition, metadata: MetadataCache) -> bool:
    """Whether its topic is tiered, whatever this broker has of a bucket."""
    if not partition.log.config.tiers or partition.tp.topic in PROTECTED_TOPICS:
        return False
    return metadata.features.get(TIERING_VERSION, 0) >= 1


def tier_troubles(tiers: Tiers | None, metadata: MetadataCache, replicas: ReplicaManager) -> list[str]:
    """What a broker's tiers cannot do, in words; ``tiers`` is None where it has no bucket."""
    if tiers is not None:
        return tiers.troubles()
    if metadata.features.get(TIERING_VERSION, 0) < 1:
        return []  # at once: an overview asks
    if not any(is_tiered(partition, metadata) for partition in replicas.all()):
        return []
    return ["it has no bucket, and topics are tiered: see remote.log.storage.system.enable"]


class LedTier:
    """The tier of a partition that is led here, in one epoch: the log's side of a TierLeader."""

    def __init__(self, tiers: Tiers, partition: Partition, incarnation: int, broker_id: int) -> None:
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.busy = False
        self.due_ms = -1
        self.trouble = ""
        self.lag = CopyLag()
        """What was still to be copied when that was last looked at."""
        self._overtaken = False
        self._stalled: tuple[int, int] | None = None
        """The manifest's end, and since when a segment behind it has been due, on the monotonic clock."""
        self._tiers = tiers
        tp = partition.tp
        self.prefix = prefix_of(tp.topic, partition.topic_id, tp.partition)
        between_ms = tiers.orphan_ms // 4
        self.sweep_ms = tiers.clock.mono_ms() + crc32c(self.prefix.encode()) % between_ms  # not all at the same time
        mine = Manifest(
            partition.topic_id, tp.partition, leader_epoch=self.epoch, broker_id=broker_id, incarnation=incarnation
        )
        self.leader = TierLeader(
            tiers.bucket, self.prefix, self, mine, now_ms=tiers.clock.wall_ms, new_id=uuid.uuid4,
            grace_ms=tiers.orphan_ms, figures=tiers.figures.setdefault(tp.topic, TierFigures()),
        )  # fmt: skip

    @property
    def leads(self) -> bool:
        """Whether the partition is still led here, in the same epoch."""
        partition = self.partition
        return partition.is_leader and not partition.deleted and partition.leader_epoch == self.epoch

    def view(self) -> LocalLog:
        """See TieredLog: without its lease a leader may have a successor."""
        partition, log = self.partition, self.partition.log
        if not self.leads or not partition.lease_valid() or log.offline:
            raise TierOvertaken(f"{partition.tp} is not led here any more, or not for certain")
        rows, released = [], 0
        for index, segment in enumerate(log.segments):
            end = log.segments.end_of(index, log.log_end_offset)
            if segment is log.segments.active:
                continue
            if end <= log.log_start_offset:  # its files go with the logs' upkeep
                released += segment.size
            else:
                begin = max(segment.base_offset, log.log_start_offset)
                rows.append(LocalSegment(begin, end, segment.size, segment.retention_timestamp()))
        return LocalLog(
            log.log_start_offset,
            log.log_end_offset,
            min(log.last_stable_offset, log.high_watermark, log.recovery_point),
            log.size_bytes - released,
            tuple(rows),
            tuple(ManifestEpoch(*entry) for entry in log.epochs.entries),
        )

    def limits(self) -> TierLimits:
        """See TieredLog."""
        config = self.partition.log.config
        total = config.retention_ms, config.retention_bytes
        here = total if config.remote_log_copy_disable else config.kept_here
        lags = config.remote_copy_lag_ms, config.remote_copy_lag_bytes
        lag_ms, lag_bytes = (kept if lag == -1 else lag for lag, kept in zip(lags, here, strict=True))
        return TierLimits(*total, *here, lag_ms, lag_bytes, not config.remote_log_copy_disable, config.ends_tier)

    async def upload(self, segment: LocalSegment, log_name: str, index_name: str) -> Uploaded:
        """See TieredLog."""
        source = self.partition.log.segments.floor(segment.start)
        position = 0 if segment.start <= source.base_offset else source.position_of(segment.start)
        if position is None:
            raise BucketError(f"{source.log.path} has no batch with offset {segment.start}")
        size = source.size - position
        aborted = aborted_of(source, segment.start)
        parts = SegmentParts(source.log.path, position, size, self._tiers.pace)
        await self._tiers.bucket.put_parts(log_name, iter(parts), size)
        index = encode_index(parts.chunks, aborted)
        await self._tiers.bucket.put_new(index_name, index)
        return Uploaded(size, len(index), crc32c(index), len(aborted))

    def begin_at(self, offset: int) -> None:
        """See TieredLog: followers begin there, too, and the files go with the logs' upkeep."""
        self.view()
        self.partition.log.truncation.raise_start(offset)
        self.partition.log.truncation.save_start()
        self.partition.committed()

    async def work(self, interval_ms: int) -> None:
        """Steps until nothing is due; what fails is said, and tried again."""
        clock, knew = self._tiers.clock, self.leader.manifest is not None
        trouble, self.due_ms = "", clock.mono_ms() + interval_ms
        overtaken, self._overtaken = self._overtaken, False
        try:
            await self._tiers.still_owned(OWNED_MS if not knew else OWNER_MS)
            while await self.leader.step():
                await self._tiers.still_owned(OWNER_MS)
            if clock.mono_ms() >= self.sweep_ms:
                await self.leader.sweep()
                self.sweep_ms = clock.mono_ms() + self._tiers.orphan_ms // 4
        except TierOvertaken as wrong:
            self._overtaken = True
            if overtaken and self._surely_leads():  # once is a leader that does not know yet
                trouble = (
                    f"the tier of {self.partition.tp} rests: {wrong}, and this leader's is {self.epoch}: ZooKeeper is"
                    " older than the bucket (docs/zookeeper-backup.md)"
                )
            if trouble != self.trouble or not trouble:
                logger.log(logging.ERROR if trouble else logging.INFO, "%s", trouble or f"{self.partition.tp}: {wrong}")
        except (BucketError, BadObject, CorruptBatch, ForeignBucket, NoSuchObject, LogOffline, DiskError) as wrong:
            trouble = f"the tier of {self.partition.tp} rests: {wrong}"
            if trouble != self.trouble:
                logger.error("%s", trouble)
            self.due_ms = clock.mono_ms() + min(interval_ms, AGAIN_MS)
        self.trouble = trouble
        if self.leader.gap:
            logger.warning("%s: %s", self.partition.tp, self.leader.gap)
            self.leader.gap = ""
        self._measure()
        if trouble or not knew:
            self.partition.committed()  # who waits for what is below the log's start looks again

    def _surely_leads(self) -> bool:
        try:
            self.view()
        except TierOvertaken:
            return False
        return True

    def _measure(self) -> None:
        """How far copies are behind; while a manifest is not known, as far as is known."""
        if self.leader.manifest is None or not self._surely_leads():
            return
        local = self.view()
        manifest, log, clock = self.leader.manifest, self.partition.log, self._tiers.clock
        lag = copy_lag(manifest, local, self.limits(), clock.wall_ms())
        self.lag = lag._replace(held=lag.held and log.last_stable_offset < log.high_watermark)
        if not lag.due:
            self._stalled = None
        elif self._stalled is None or self._stalled[0] != manifest.end:
            self._stalled = manifest.end, clock.mono_ms()

    @property
    def stalled_s(self) -> float:
        """For how long a segment has been due, and none was copied, in seconds."""
        return 0.0 if self._stalled is None else (self._tiers.clock.mono_ms() - self._stalled[1]) / 1000


class DeletedTiers:
    """Deleted topics whose objects are in the bucket: the broker of the controller removes them.

    The mark of a topic was written with its deletion, so that a topic is not taken for deleted whose ZooKeeper was
    rolled back. Mark and newest manifests, which name nothing, stay until they have the age of an orphan: a broker that
    stood still meanwhile ends at them, and what it had begun to write is removed then.
    """

    def __init__(
        self,
        bucket: ObjectBucket,
        store: Store,
        clock: Clock,
        *,
        grace_ms: int,
        known: Callable[[uuid.UUID], bool],
        owned: Callable[[], Awaitable[None]],
        removed: Callable[[str, int], None],
    ) -> None:
        """``known``: whether there is a topic of that id; ``owned`` raises ForeignBucket where the bucket is another
        fleet's; ``removed`` is told of a topic's segments that went."""
        self.trouble = ""
        self._bucket = bucket
        self._store = store
        self._clock = clock
        self._grace_ms = grace_ms
        self._known = known
        self._owned = owned
        self._removed = removed
        self._looked_ms: dict[str, int] = {}
        """When nothing was left of them, by the names of their marks, on the monotonic clock."""

    async def look(self) -> None:
        """Remove what there is; what fails is said, and tried again."""
        trouble = ""
        try:
            await self._remove_all()
        except (BucketError, ForeignBucket, NoSuchObject, StoreError, BadZnode) as wrong:
            trouble = f"objects of deleted topics stay: {wrong}"
            if trouble != self.trouble:
                logger.error("%s", trouble)
        self.trouble = trouble

    async def _remove_all(self) -> None:
        names = await children_or_none(self._store, znodes.DELETED_TIERS)
        self._looked_ms = {name: self._looked_ms[name] for name in names if name in self._looked_ms}
        now_ms, again_ms = self._clock.mono_ms(), self._grace_ms // 4
        due = [name for name in names if now_ms - self._looked_ms.get(name, now_ms - again_ms) >= again_ms]
        if not due:
            return
        taken = await children_or_none(self._store, znodes.DELETED_TOPICS)  # a live broker may not know of it yet
        paths = [f"{znodes.DELETED_TIERS}/{name}" for name in due]
        damaged: BadZnode | None = None
        for name, path, row in zip(due, paths, await read_many(self._store, paths), strict=True):
            if row is None:
                continue
            try:
                topic, topic_id = znodes.decode_deleted_tier(path, row[0])
            except BadZnode as wrong:
                damaged = wrong
                continue
            if topic in taken or self._known(topic_id):
                continue
            last = self._clock.wall_ms() - row[1].created_ms > self._grace_ms
            if not await self._remove(topic, topic_id, last=last):
                self._looked_ms[name] = now_ms
                if last:
                    with suppress(NoNode):
                        await self._store.delete(path)
        if damaged is not None:
            raise damaged

    async def _remove(self, topic: str, topic_id: uuid.UUID, *, last: bool) -> int:
        """Returns how many objects went; ``last``: nothing stays."""
        folder = folder_of(topic, topic_id)
        listed = [entry.name.removeprefix(folder) for entry in await self._bucket.objects(folder)]
        removed: list[str] = []
        for partition in sorted({name.partition("/")[0] for name in listed}):
            await self._owned()
            removed += await remove_partition(self._bucket, f"{folder}{partition}/", self._clock.wall_ms, last=last)
        if removed:
            self._removed(topic, sum(name.endswith(".log") for name in removed))
            logger.info("removed %d objects of topic %s (id %s), which was deleted", len(removed), topic, topic_id)
        return len(removed)


class TierSize(NamedTuple):
    """How a topic's partitions that are led here are: what is to be copied, and what is in the bucket."""

    lag_bytes: int = 0
    lag_segments: int = 0
    size: int = 0
    segments: int = 0


class Tiers:
    """See the module. On the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        bucket: ObjectBucket,
        *,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        disk: DiskPort,
        store: Store,
        clock: Clock,
        cluster_id: str,
        incarnation: Callable[[], int],
    ) -> None:
        self.bucket = bucket
        self.clock = clock
        self.pace = Pace(config.remote_log_manager_copy_max_bytes_per_second)
        self.orphan_ms = config.fleetlog_bucket_orphan_ms
        self.refusal = ""
        """Why nothing is copied or read at all."""
        directory = f"{config.log_dirs[0].rstrip('/')}/{CACHE_DIRECTORY}"
        self.cold = ColdReads(bucket, disk, directory, config.fleetlog_bucket_cache_bytes, clock)
        self.by_partition: dict[TopicPartition, LedTier] = {}
        self.figures: dict[str, TierFigures] = {}
        """By topic; of those that are gone, too."""
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._cluster_id = cluster_id
        self._incarnation = incarnation
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self.owned_ms = -OWNED_MS
        """When the bucket last said that it is this fleet's, on the monotonic clock."""
        self._owned = False
        self._claim_ms = -1
        self._unowned = ""
        """Why the bucket is not known to be this fleet's."""
        self._deleted = DeletedTiers(
            bucket, store, clock, grace_ms=self.orphan_ms, known=lambda topic_id: topic_id in metadata.topic_names,
            owned=lambda: self.still_owned(OWNED_MS), removed=self._count_removed,
        )  # fmt: skip
        self._deleted_ms = -1
        """When deleted topics are looked for, on the monotonic clock."""

    # ---- for request handlers

    def of(self, partition: Partition) -> LedTier | None:
        """The tier of a partition that is led here; None if it has none, or not yet."""
        tier = self.by_partition.get(partition.tp)
        if tier is None or tier.partition is not partition or not tier.leads or partition.log.config.ends_tier:
            return None
        return tier

    def start_of(self, partition: Partition) -> tuple[int, int] | None:
        """The first offset that clients may read of a tiered partition, and its epoch; None while it is not known."""
        tier = self.of(partition)
        if tier is None or tier.leader.manifest is None:
            return None
        manifest, log = tier.leader.manifest, partition.log
        start = first_offset(manifest, log.log_start_offset, tier.leader.deleted_before)
        if start >= log.log_start_offset:
            return start, log.epochs.epoch_at(start)
        return start, epoch_at(manifest.epochs, start)

    def log_start(self, partition: Partition) -> int:
        """The first offset that clients may read, as far as it is known, of any partition."""
        start = self.start_of(partition)
        return partition.log.log_start_offset if start is None else start[0]

    def end_of(self, partition: Partition) -> tuple[int, int] | None:
        """The highest offset that is in the bucket, and its epoch; (-1, -1) without one, None while it is not known."""
        tier = self.of(partition)
        if tier is None or tier.leader.manifest is None:
            return None
        manifest = tier.leader.manifest
        return (manifest.end - 1, epoch_at(manifest.epochs, manifest.end - 1)) if manifest.segments else (-1, -1)

    def read(self, partition: Partition, offset: int, room: int, one: bool) -> ReadResult | None:
        """What the bucket has from an offset on that is in range; None while it is on its way. Raises
        TierUnavailable."""
        figures = self.figures.setdefault(partition.tp.topic, TierFigures())
        try:
            cold = self._cold(partition)
            result = None if cold is None else self.cold.read(cold, offset, room, one)
        except TierUnavailable:
            figures.fetch_errors += 1
            raise
        if result is not None:
            figures.fetches += 1
            figures.fetched_bytes += result.size
        return result

    def aborted(self, partition: Partition, read: ReadResult) -> list[tuple[int, int]] | None:
        """Aborted transactions among what was read; None while they are on their way. Raises TierUnavailable,
        LogOffline."""
        cold = self._cold(partition)
        if cold is None:
            return None
        return self.cold.aborted(cold, partition.log, read.first_offset, read.next_offset)

    async def named(self, partition: Partition, wanted: AskedRange) -> Named:
        """Where the bucket has a range, also what is here still. Raises TierUnavailable, LogOffline."""
        cold = self._cold(partition)
        if cold is None:
            raise TierUnavailable(f"{partition.tp}: what is in the bucket is not known yet")
        return await self.cold.named(cold, partition.log, wanted)

    async def sign(self, partition: Partition, named: Named, lifetime_ms: int, size: int) -> list[str]:
        """A URL for each of the segments, by which ``size`` bytes are to be read. Raises BucketError."""
        prefix = prefix_of(partition.tp.topic, partition.topic_id, partition.tp.partition)
        urls = await self.bucket.sign([prefix + one.segment.log_name for one in named.segments], lifetime_ms)
        self.figures.setdefault(partition.tp.topic, TierFigures()).signed_bytes += size
        return urls

    def _cold(self, partition: Partition) -> Cold | None:
        tier = self.of(partition)
        if self.refusal or (self._unowned and not self._owned):
            raise TierUnavailable(self.refusal or self._unowned)
        if tier is None:
            return None
        if tier.leader.manifest is None:
            if tier.trouble:
                raise TierUnavailable(tier.trouble)
            return None
        return Cold(tier.prefix, tier.leader.manifest, partition.committed)

    def may_hold(self, partition: Partition, timestamp: int) -> bool | None:
        """Whether what is in the bucket only may have records of that time or later; None while it is not known."""
        tier = self.of(partition)
        if tier is None or tier.leader.manifest is None:
            return None
        begin = partition.log.log_start_offset
        return any(s.max_timestamp >= timestamp and s.start < begin for s in tier.leader.manifest.segments)

    def newest_times(self, partition: Partition) -> list[int]:
        """The newest times of the segments that are in the bucket only, the largest first; of none where that is not
        known."""
        tier = self.of(partition)
        if tier is None or tier.leader.manifest is None:
            return []
        begin = partition.log.log_start_offset
        return sorted({s.max_timestamp for s in tier.leader.manifest.segments if s.start < begin}, reverse=True)

    async def at_time(self, partition: Partition, timestamp: int) -> tuple[int, int, int] | None:
        """Offset, timestamp and leader epoch of the bucket's first record of at least that time. Raises
        TierUnavailable."""
        cold, start = self._cold(partition), self.start_of(partition)
        if cold is None or start is None:
            raise TierUnavailable(f"{partition.tp}: what is in the bucket is not known yet")
        return await self.cold.at_time(cold, timestamp, start[0], partition.log.settings.inflate_limit)

    def delete_before(self, partition: Partition, offset: int) -> bool:
        """A client deletes what is before the offset; False if that cannot be said of the bucket yet."""
        tier = self.of(partition)
        if tier is None or tier.leader.manifest is None:
            return False
        tier.leader.deleted_before = max(tier.leader.deleted_before, offset)
        tier.due_ms = -1
        return True

    def has_deleted(self, partition: Partition) -> bool:
        """Whether the manifest says all that clients deleted."""
        tier = self.of(partition)
        return (
            tier is None
            or tier.leader.manifest is None
            or (tier.leader.manifest.log_start >= tier.leader.deleted_before)
        )

    def troubles(self) -> list[str]:
        """In words, for whoever looks at the broker."""
        if self.refusal or (self._unowned and not self._owned):
            return [f"its bucket is of no use: {self.refusal or self._unowned}"]
        troubles = sorted(tier.trouble for tier in self.by_partition.values() if tier.trouble)[:NAMED]
        return [*troubles, *([self._deleted.trouble] if self._deleted.trouble else ())]

    def watch(self, metrics: Metrics) -> None:
        """Show what was asked of the bucket, copied and read."""

        def copied(count: str) -> float:
            return float(sum(getattr(figures, count) for figures in self.figures.values()))

        def lag(part: str) -> float:
            return float(sum(getattr(tier.lag, part) for tier in self.by_partition.values()))

        bucket, cold = self.bucket, self.cold
        metrics.watch_counters(
            "fleetlog_bucket_requests", "Requests to the bucket.", ("kind",),
            lambda: {(kind,): float(count) for kind, count in bucket.requests.items()},
        )  # fmt: skip
        metrics.watch_counters(
            "fleetlog_bucket_failed_requests", "Requests to the bucket that failed, or had no answer in time.", (),
            lambda: {(): float(bucket.failures)},
        )  # fmt: skip
        metrics.watch_family(
            "fleetlog_tier_copied",
            "Segments and bytes copied, bytes read for consumers, and bytes that they got URLs for, since the start.",
            "what",
            lambda: {"segments": copied("copied_segments"), "bytes": copied("copied_bytes"),
                     "read": copied("fetched_bytes"), "signed": copied("signed_bytes")},
        )  # fmt: skip
        metrics.watch_family(
            "fleetlog_tier_cache", "Chunks from the bucket: found in the cache, loaded, and the cache's bytes.", "what",
            lambda: {"hits": float(cold.hits), "loads": float(cold.misses), "bytes": float(cold.bytes)},
        )  # fmt: skip
        metrics.watch_family(
            "fleetlog_tier_lag", "Closed segments of led partitions that are not in the bucket, their bytes.", "what",
            lambda: {"segments": lag("segments"), "bytes": lag("size")},
        )  # fmt: skip
        metrics.watch(
            "fleetlog_tier_stalled_seconds", "Longest time for which a led partition had to copy, and did not.",
            lambda: max((tier.stalled_s for tier in self.by_partition.values()), default=0.0),
        )  # fmt: skip
        metrics.watch(
            "fleetlog_tier_held_partitions", "Led partitions whose next copy waits for a transaction to end.",
            lambda: lag("held"),
        )  # fmt: skip
        metrics.watch(
            "fleetlog_tier_troubled_partitions", "Led partitions whose tier rests, because something failed.",
            lambda: float(sum(bool(tier.trouble) for tier in self.by_partition.values())),
        )  # fmt: skip

    def size_of(self, tp: TopicPartition) -> int:
        """Bytes in the bucket of a partition that is led here; -1 if it has no tier, or that is not known."""
        tier = self.by_partition.get(tp)
        if tier is None or not tier.leads or tier.leader.manifest is None or tier.leader.ended:
            return -1
        return tier.leader.manifest.size

    def sizes(self) -> dict[str, TierSize]:
        """By topic."""
        sizes: dict[str, TierSize] = {}
        for tp, tier in self.by_partition.items():
            manifest, lag = tier.leader.manifest, tier.lag
            held = (manifest.size, len(manifest.segments)) if manifest is not None else (0, 0)
            both = zip(sizes.get(tp.topic, TierSize()), (lag.size, lag.segments, *held), strict=True)
            sizes[tp.topic] = TierSize(*map(sum, both))
        return sizes

    # ---- work

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            self._open()
            while True:
                if not self.refusal and (self._owned or await self._claim()) and self._finalized():
                    await self._begin()
                    self._begin_removals()
                await asyncio.sleep(TICK_S)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.cold.close()
            self.bucket.close()

    def _open(self) -> None:
        try:
            self.cold.open()
        except DiskError as wrong:
            self.refusal = f"old records cannot be read: {wrong}"
            logger.error("%s", self.refusal)

    def _finalized(self) -> bool:
        return self._metadata.features.get(TIERING_VERSION, 0) >= 1

    async def own(self, *, claim: bool) -> None:
        """See that the bucket is this fleet's. Raises ForeignBucket, BucketError."""
        await own(self.bucket, self._cluster_id, self.clock.wall_ms(), claim=claim)
        self.owned_ms = self.clock.mono_ms()

    async def still_owned(self, within_ms: int) -> None:
        """See that it was this fleet's not long ago: another one may have taken it. Raises ForeignBucket,
        BucketError."""
        if self.clock.mono_ms() - self.owned_ms > within_ms:
            try:
                await self.own(claim=False)
            except ForeignBucket as wrong:
                self._lose(wrong)
                raise

    def _lose(self, why: ForeignBucket) -> None:
        """Until it is this fleet's again, what is known of it counts for nothing."""
        if str(why) != self._unowned or self._owned:
            logger.critical("%s", why)
        self._unowned, self._owned = str(why), False
        self._claim_ms = self.clock.mono_ms() + OWNED_MS
        self.by_partition.clear()

    async def _claim(self) -> bool:
        if self.clock.mono_ms() < self._claim_ms:
            return False
        tiered = self._finalized() and any(self._metadata.topic_config(name).tiers for name in self._metadata.topics)
        try:
            await self.own(claim=not tiered)
        except ForeignBucket as wrong:
            self._lose(wrong)
        except (BucketError, NoSuchObject) as wrong:
            if str(wrong) != self._unowned:
                logger.error("nothing is copied, and old records are not read: %s", wrong)
            self._unowned = str(wrong)
        else:
            self._owned = True
        return self._owned

    async def _begin(self) -> None:
        """Work on what is due."""
        effective = self._metadata.effective
        self.pace.bytes_s = effective.remote_log_manager_copy_max_bytes_per_second
        self.cold.pace.bytes_s = effective.remote_log_manager_fetch_max_bytes_per_second
        now_ms, led = self.clock.mono_ms(), set()
        for number, partition in enumerate(list(self._replicas.all())):
            if number % PER_TURN == PER_TURN - 1:
                await asyncio.sleep(0)
            tiered = partition.is_leader and is_tiered(partition, self._metadata)
            if not tiered and not (partition.is_leader and partition.log.config.ends_tier):
                continue
            led.add(partition.tp)
            tier = self.by_partition.get(partition.tp)
            again = tier is not None and tier.leader.ended and tiered
            if tier is None or tier.partition is not partition or not tier.leads or again:
                tier = LedTier(self, partition, self._incarnation(), self._config.broker_id)
                self.by_partition[partition.tp] = tier
            if not tier.busy and now_ms >= tier.due_ms and not tier.leader.ended:
                tier.busy = True
                self._start(self._work(tier))
        for tp in self.by_partition.keys() - led:
            del self.by_partition[tp]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="tier")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _count_removed(self, topic: str, segments: int) -> None:
        self.figures.setdefault(topic, TierFigures()).deletes += segments

    def _begin_removals(self) -> None:
        now_ms = self.clock.mono_ms()
        if self._metadata.controller_id != self._config.broker_id:
            self._deleted.trouble = ""
        elif now_ms >= self._deleted_ms:
            self._deleted_ms = sys.maxsize  # until it is done
            self._start(self._remove_deleted())

    async def _remove_deleted(self) -> None:
        interval_ms = min(REMOVED_MS, self._config.remote_log_manager_task_interval_ms)
        try:
            await self._deleted.look()
        finally:
            self._deleted_ms = self.clock.mono_ms() + interval_ms

    async def _work(self, tier: LedTier) -> None:
        try:
            async with self._room:
                await tier.work(self._config.remote_log_manager_task_interval_ms)
        except Exception:
            logger.exception("%s: a bug in its tier", tier.partition.tp)
            tier.due_ms = self.clock.mono_ms() + AGAIN_MS
        finally:
            tier.busy = False
