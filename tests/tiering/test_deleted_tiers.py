"""Objects of deleted topics go by the marks in ZooKeeper, and by nothing else."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.tiering.bucket import ForeignBucket, ObjectBucket
from fleetlog.brokers.tiering.leader import prefix_of
from fleetlog.brokers.tiering.manifest import Manifest, TieredSegment, encode_manifest, manifest_name
from fleetlog.brokers.tiering.tiers import DeletedTiers
from fleetlog.coordination.store import Store
from fleetlog.coordination.tree import ensure
from tests.support.clocks import RealClock
from tests.support.stores import Stores, on_loop

pytestmark = pytest.mark.zookeeper

GONE, LIVES = uuid.UUID(int=1), uuid.UUID(int=2)
GRACE_MS = 3_600_000
SEGMENT = TieredSegment(uuid.UUID(int=3), 0, 10, 5, 5, 0, 0, 0)


class Stage:
    """A folder with objects of a deleted topic and of one that lives, and marks in ZooKeeper."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        self.bucket = ObjectBucket(f"file://{folder}")
        self.clock = RealClock()
        self.known = {LIVES}
        self.foreign = ""
        self.segments: list[tuple[str, int]] = []
        self.tiers = DeletedTiers(
            self.bucket, store, self.clock, grace_ms=GRACE_MS, known=self.known.__contains__, owned=self.owned,
            removed=lambda topic, segments: self.segments.append((topic, segments)),
        )  # fmt: skip

    async def owned(self) -> None:
        if self.foreign:
            raise ForeignBucket(self.foreign)

    async def fill(self, topic: str, topic_id: uuid.UUID, partitions: int = 1) -> None:
        for partition in range(partitions):
            prefix = prefix_of(topic, topic_id, partition)
            manifest = Manifest(topic_id, partition, 1, 5, segments=(SEGMENT,))
            for name in SEGMENT.log_name, SEGMENT.index_name:
                await self.bucket.put_new(prefix + name, b"12345")
            await self.bucket.put_new(prefix + manifest_name(1), encode_manifest(manifest))

    async def mark(self, topic: str, topic_id: uuid.UUID) -> str:
        path = znodes.deleted_tier_path(topic_id)
        await ensure(self.store, znodes.DELETED_TIERS)
        await self.store.create(path, znodes.encode_deleted_tier(topic, topic_id))
        return path

    def held(self, topic: str) -> tuple[int, int]:
        """Objects with records or indexes, and manifests."""
        manifests = [
            path.parent.name == "manifest" for path in self.folder.glob(f"topics/{topic}.*/**/*") if path.is_file()
        ]
        return len(manifests) - sum(manifests), sum(manifests)


@on_loop
async def test_what_has_a_mark_goes_and_nothing_else(connect: str, tmp_path: Path) -> None:
    async with Stores() as stores:
        stage = Stage(tmp_path, await stores.open(connect))
        await stage.fill("gone", GONE, partitions=2)
        await stage.fill("unknown", uuid.UUID(int=9))
        await stage.fill("lives", LIVES)
        await stage.tiers.look()
        assert stage.held("gone") == (4, 2), "there is no mark, and not even the parent of marks"
        gone, lives = await stage.mark("gone", GONE), await stage.mark("lives", LIVES)
        await stage.tiers.look()
        assert [stage.held(topic) for topic in ("gone", "unknown", "lives")] == [(0, 2), (2, 1), (2, 1)]
        assert stage.segments == [("gone", 2)]
        assert await stage.store.exists(gone), "a broker that stood still may write yet"
        await stage.bucket.put_new(prefix_of("gone", GONE, 0) + SEGMENT.log_name, b"12345")
        stage.clock.ahead_ms = GRACE_MS // 2
        await stage.tiers.look()
        assert stage.held("gone") == (0, 2)
        stage.clock.ahead_ms = GRACE_MS + 1_000
        await stage.tiers.look()
        assert stage.held("gone") == (0, 0)
        await stage.tiers.look()
        assert await stage.store.exists(gone) is None
        assert await stage.store.exists(lives), "its topic lives"
        assert stage.tiers.trouble == ""
        stage.bucket.close()


@on_loop
async def test_what_a_broker_may_not_know_yet_and_what_is_not_ours_stays(connect: str, tmp_path: Path) -> None:
    async with Stores() as stores:
        stage = Stage(tmp_path, await stores.open(connect))
        await stage.fill("gone", GONE)
        await stage.mark("gone", GONE)
        await ensure(stage.store, znodes.DELETED_TOPICS)
        taken = znodes.deleted_topic_path("gone")
        await stage.store.create(taken, znodes.encode_delete_mark(GONE))
        await stage.tiers.look()
        assert stage.held("gone") == (2, 1), "live brokers have not confirmed its deletion"
        await stage.store.delete(taken)
        stage.foreign = "it was taken"
        await stage.tiers.look()
        assert stage.held("gone") == (2, 1)
        assert stage.tiers.trouble == "objects of deleted topics stay: it was taken"
        stage.foreign = ""
        bad = f"{znodes.DELETED_TIERS}/bad"
        await stage.store.create(bad, b'{"version": 1, "topic": "../lives"}')
        await stage.tiers.look()
        assert stage.held("gone") == (0, 1), "a mark that cannot be read does not keep the others"
        assert bad in stage.tiers.trouble
        stage.bucket.close()


@on_loop
async def test_a_damaged_manifest_goes_too(connect: str, tmp_path: Path) -> None:
    async with Stores() as stores:
        stage = Stage(tmp_path, await stores.open(connect))
        await stage.fill("gone", GONE)
        damaged = encode_manifest(Manifest(GONE, 0, 2))
        await stage.bucket.put_new(prefix_of("gone", GONE, 0) + manifest_name(2), damaged[:-1] + b"?")
        await stage.mark("gone", GONE)
        await stage.tiers.look()
        assert (stage.held("gone"), stage.tiers.trouble) == ((0, 0), "")
        stage.bucket.close()
