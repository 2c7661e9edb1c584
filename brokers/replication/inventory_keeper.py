"""What a broker keeps of ZooKeeper's tree beside its logs, and tells there of its logs while the tree is older.

Log continuity: whether a starting broker still has everything that its logs held. Each log directory's clean stop is
compared with the broker's last registration in ZooKeeper; :func:`intact_since` is pure.

A clean stop is valid for the incarnation that it ended. An older copy of a directory (a restored snapshot, another
mount) has a clean stop as well, but lacks the records acknowledged since.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from fleetlog.brokers.log import DiskError, DiskPort, Log, LogStore
from fleetlog.brokers.log.directories.directories import MarkFiles, hold_partitions
from fleetlog.brokers.log.disk.checkpoints import META_PROPERTIES, CleanStop, decode_properties
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.inventories import Inventory, LogSummary, encode_inventory
from fleetlog.brokers.metadata.marks import MARKS_FILE, ClusterMarks, decode_marks, encode_marks, newest
from fleetlog.brokers.metadata.tree_guard import TreeGuard
from fleetlog.brokers.model import TopicInfo
from fleetlog.coordination.registration import LastRegistration
from fleetlog.coordination.store import NodeExists, NoNode, Store, StoreError, WatchEvent
from fleetlog.coordination.tree import ensure

logger = logging.getLogger(__name__)

LOOK_S = 0.5
NAMED_MAX = 3


def intact_since(
    stops: Mapping[str, CleanStop | None], last: LastRegistration, missing: Mapping[str, str] = MappingProxyType({})
) -> int | None:
    """The incarnation since which no directory has lost records; None if one of them may have.

    ``stops`` has the clean stop of each log directory; None for one that was not closed cleanly or is offline, or is
    new where nothing tells which ones there were. ``missing`` are those that the broker had, and that are not here.
    """
    if missing:
        return None
    clean_stops = [stop for stop in stops.values() if stop is not None and not _is_stale(stop, last)]
    if not clean_stops or len(clean_stops) < len(stops) or any(stop.intact_since < 0 for stop in clean_stops):
        return None
    return max(stop.intact_since for stop in clean_stops)


def stale_directories(broker_id: int, stops: Mapping[str, CleanStop | None], last: LastRegistration) -> list[str]:
    """One log message per directory whose clean stop is not the one that ended the last incarnation."""
    known = (
        f"was last registered in incarnation {last.incarnation} (broker epoch {last.broker_epoch})"
        if last.incarnation
        else "has never been registered in this ZooKeeper"
    )
    return [
        f"log directory {path} is an older copy: it was closed in incarnation {stop.incarnation} (broker epoch"
        f" {stop.broker_epoch}), but broker {broker_id} {known}. Was a snapshot restored, or another volume mounted?"
        " Records acknowledged since are considered lost on this broker: it leads no partition that another in-sync"
        " replica can lead, and fetches the missing records. If the right volume exists, stop this broker and mount it"
        " before other leaders are elected"
        for path, stop in sorted(stops.items())
        if stop is not None and stop.incarnation >= 0 and _is_stale(stop, last)
    ]


def _is_stale(stop: CleanStop, last: LastRegistration) -> bool:
    """Kafka's clean stops have no incarnation; those of earlier fleetlog versions have no broker epoch."""
    if stop.incarnation < 0:
        return False
    return stop.incarnation != last.incarnation or stop.broker_epoch not in (-1, last.broker_epoch)


class InventoryKeeper:
    """See the module. The znodes are ephemeral: they tell of brokers that live."""

    def __init__(
        self, store: Store, broker_id: int, disk: DiskPort, logs: LogStore, stopped: Mapping[str, CleanStop | None]
    ) -> None:
        """``stopped`` are the clean stops of the log directories."""
        self._store = store
        self._broker_id = broker_id
        self._logs = logs
        self._files = MarkFiles(disk, logs.directories, MARKS_FILE)
        self.guard = TreeGuard(store, broker_id, marks_before(self._files, stopped, logs))
        self._told: tuple[int, bool, list[str]] | None = None
        """Session of what was told, whether as proven, and its znodes."""
        self._listens = 0
        """The session in which a watch says when others tell something; 0 if none does."""

    def save(self) -> None:
        """Save what was seen of the tree; call it about every second."""
        self._files.save(encode_marks(self.guard.marks))

    def save_now(self) -> None:
        """Save it before the process ends."""
        self._files.save_now(encode_marks(self.guard.marks))

    async def run(self) -> None:
        """Tell and take back, until cancelled."""
        while True:
            try:
                await self._look()
            except StoreError as problem:
                logger.info("what this broker has is not told in ZooKeeper yet: %s", problem)
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        session = self._store.session()
        if session is None:
            return
        if self.guard.behind is None:
            if self._told is not None:
                await self._take_back(self._told[2])
                self._told = None
            if self._listens != session.session_id:
                self._listens = session.session_id
                try:
                    await self.guard.listen(self._heard)
                except StoreError:
                    self._listens = 0
                    raise
        elif self._told is None or self._told[:2] != (session.session_id, self.guard.proven):
            if self._told is not None:
                await self._take_back(self._told[2])
            proven = self.guard.proven
            self._told = session.session_id, proven, await self._tell(proven=proven)

    def _heard(self, _event: WatchEvent) -> None:
        self._listens = 0

    async def _tell(self, *, proven: bool) -> list[str]:
        parts = encode_inventory(inventory_of(self._broker_id, self._logs, self.guard.marks))
        generation = await self._generation()
        await ensure(self._store, znodes.INVENTORIES)
        paths = [znodes.inventory_path(self._broker_id, generation, n, proven=proven) for n in range(len(parts))]
        await self._take_back(paths)  # of a session that has not ended yet
        for path, part in zip(paths, parts, strict=True):
            try:
                await self._store.create(path, part, ephemeral=True)
            except NodeExists:
                pass  # an answer was lost
        return paths

    async def _generation(self) -> int:
        try:
            data, _ = await self._store.get(znodes.GENERATION)
        except NoNode:
            return 0
        return znodes.decode_number(znodes.GENERATION, data)

    async def _take_back(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                await self._store.delete(path)
            except NoNode:
                pass


def inventory_of(broker_id: int, logs: LogStore, marks: ClusterMarks) -> Inventory:
    """What the broker has. Nothing is appended meanwhile: it leads and follows nothing."""
    listed = list(logs.all().values())
    ids = [max(log.producers.entries) for log in listed if log.producers.entries]
    return Inventory(
        broker_id,
        marks,
        [_summary(log, log.topic_partition in logs.cleaner.progress()) for log in listed if log.topic_id is not None],
        logs.offline_directories,
        [log.directory for log in listed if log.topic_id is None],
        max(ids, default=-1),
    )


def _summary(log: Log, compacted: bool) -> LogSummary:
    assert log.topic_id is not None, "the caller leaves others out"
    tp = log.topic_partition
    return LogSummary(
        tp.topic, tp.partition, log.topic_id, log.epochs.latest, log.log_start_offset, log.log_end_offset, compacted,
        log.producers.positions is not None,
    )  # fmt: skip


def marks_before(files: MarkFiles, stopped: Mapping[str, CleanStop | None], logs: LogStore) -> ClusterMarks:
    """What the process before this one has seen of the cluster. A directory without the file says little or nothing."""
    seen = []
    for path, data in files.read().items():
        try:
            seen.append(decode_marks(data))
        except ValueError as wrong:
            logger.warning("%s: %s; ignored", path, wrong)
    if not seen and logs.all():
        seen.append(ClusterMarks(controller_epoch=1))  # a tree that never had a controller knows of no log
    marks = newest(seen)
    if marks.generation == 0:
        registrations = [stop.incarnation for stop in stopped.values() if stop is not None]
        marks = marks._replace(incarnation=max(marks.incarnation, *registrations, 0))
    return marks


def later_epochs(topics: Mapping[str, TopicInfo], logs: LogStore) -> str | None:
    """Logs with records of leader epochs that are later than their partitions' states; None if there are none.

    Call before this broker leads or follows: what it read of ZooKeeper is newer than its logs then.
    """
    ahead = []
    for tp, log in logs.all().items():
        topic = topics.get(tp.topic)
        if topic is None or topic.id != log.topic_id or tp.partition >= len(topic.partitions):
            continue
        epoch = topic.partitions[tp.partition].leader_epoch
        if log.epochs.latest > epoch:
            ahead.append(f"{tp} in leader epoch {epoch}, its log in {log.directory} has epoch {log.epochs.latest}")
    if not ahead:
        return None
    named = "; ".join(ahead[:NAMED_MAX]) + ("; ..." if len(ahead) > NAMED_MAX else "")
    return f"it has {len(ahead)} partition(s) in an older leader epoch than their logs: {named}"


def cluster_id_of(disk: DiskPort, paths: Iterable[str]) -> str | None:
    """The cluster id of the log directories that hold logs, if they agree; only for a tree that has none yet.

    One that cannot be read has no say: the broker starts without it.
    """
    ids = set()
    for path in paths:
        with contextlib.suppress(DiskError):
            data = disk.read(f"{path}/{META_PROPERTIES}")
            if data is not None and hold_partitions(disk, path):
                ids.add(decode_properties(data).get("cluster.id"))
    return ids.pop() if len(ids) == 1 else None
