"""``fleetlog cluster repair`` that is broken off between two writes and given again, against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.cli.repair import AT_ONCE, PRODUCER_IDS, read_plan, write_plan, written_at_once
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.inventories import Inventory, LogSummary, encode_inventory
from fleetlog.brokers.metadata.marks import ClusterMarks
from fleetlog.brokers.metadata.repair import EPOCHS_LEFT_OUT, TierReach
from fleetlog.brokers.metadata.znodes import TopicZnode
from fleetlog.brokers.model import BrokerId, PartitionState, TopicPartition
from fleetlog.brokers.tiering.bucket import BucketOwner, ObjectBucket, owner_name
from fleetlog.brokers.tiering.leader import prefix_of
from fleetlog.brokers.tiering.manifest import Manifest, TieredSegment, encode_manifest, manifest_name
from fleetlog.coordination.registration import UNREGISTERED, incarnation_path
from fleetlog.coordination.store import Create, Delete, Operation, SetData, Store
from fleetlog.coordination.tree import adopt, ensure
from fleetlog.coordination.zookeeper import ZookeeperStore
from tests.support.stores import Stores

pytestmark = pytest.mark.zookeeper

KEPT, EARLIER, LATER, WIDE, GONE = (uuid.UUID(int=n) for n in range(1, 6))
BOTH = (BrokerId(1), BrokerId(2))
PARTITIONS = 200
"""More than are written at once."""
MARKS = ClusterMarks(0, 9, 100, 7, 4999)


def _topic(name: str, topic_id: uuid.UUID) -> list[Operation]:
    tp = TopicPartition(name, 0)
    return [
        Create(znodes.topic_path(name), znodes.encode_topic(TopicZnode(topic_id, (BOTH,)))),
        Create(znodes.partitions_path(name)),
        Create(znodes.config_path(znodes.CONFIG_TOPICS, name), znodes.encode_config({"retention.ms": "1000"})),
        Create(znodes.partition_path(tp)),
        Create(znodes.state_path(tp), znodes.encode_state(PartitionState(BOTH, 1, 3, BOTH, 0, 4, 1, (1, 1)))),
    ]


async def _restore(connect: str, *, new: bool) -> None:
    """A tree that is older than what two brokers have, or (``new``) that was made for them; and what they tell."""
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "cluster", znodes.PERSISTENT_PATHS)
        if not new:
            for name, topic_id in (("kept", KEPT), ("again", EARLIER), ("gone", GONE)):
                await store.multi(_topic(name, topic_id))
            await store.create(znodes.CONTROLLER_EPOCH, b"4")
            await ensure(store, incarnation_path(1))
        await ensure(store, znodes.INVENTORIES)
        kept = LogSummary("kept", 0, KEPT, 6, 0, 90)
        again = [LogSummary("again", 0, topic_id, 6, 0, 90) for topic_id in (EARLIER, LATER)]
        wide = [LogSummary("wide", index, WIDE, 6, 0, 90) for index in range(PARTITIONS)]
        for inventory in (
            Inventory(1, MARKS, [kept, again[1], *wide], producer_id=5100),
            Inventory(2, MARKS, [kept._replace(end=80), again[0]]),
        ):
            (part,) = encode_inventory(inventory)
            await store.create(znodes.inventory_path(inventory.broker_id, 0, 0, proven=True), part)


async def _dump(connect: str) -> dict[str, Any]:
    """The tree: data by path, of registrations the number of their writes; states without leader epochs."""
    found: dict[str, Any] = {}

    async def walk(store: Store, path: str) -> None:
        data, stat = await store.get(path)
        found[path] = data
        if path.startswith("/brokers/incarnations/"):
            found[path] = stat.version
        elif path.endswith("/state"):
            document = json.loads(data)
            assert document.pop("leader_epoch") >= 6 + EPOCHS_LEFT_OUT
            found[path] = document
        elif path != znodes.CHANGES:
            for name in await store.children(path):
                await walk(store, f"{path.rstrip('/')}/{name}")

    async with Stores() as stores:
        await walk(await stores.open(connect), "/")
    return found


def _config(directory: Path, connect: str) -> str:
    file = directory / "broker.properties"
    file.write_text(f"broker.id=1\nlog.dirs={directory}\nzookeeper.connect={connect}\n")
    return str(file)


def _break_off(config: str, writes: int) -> None:
    """Run the command in this process, which kills itself before the next write."""
    left = writes

    def counted(name: str) -> None:
        write = getattr(ZookeeperStore, name)

        async def wrapped(self: ZookeeperStore, *args: Any, **options: Any) -> Any:
            nonlocal left
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return await write(self, *args, **options)

        setattr(ZookeeperStore, name, wrapped)

    for name in ("create", "set", "multi"):
        counted(name)
    cli(["cluster", "repair", config, "--execute", "--yes"])


def _repair(config: str, *options: str) -> str:
    done = CliRunner().invoke(cli, ["cluster", "repair", config, *options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("new", [False, True], ids=["an older tree", "a new tree"])
def test_a_repair_that_was_broken_off_is_gone_on_with(connect: str, tmp_path: Path, new: bool) -> None:
    """SIGKILL before each of its writes, one after the other; the tree becomes what an unbroken repair makes."""
    asyncio.run(_restore(f"{connect}/whole", new=new))
    config = _config(tmp_path, f"{connect}/whole")
    first = _repair(config, "--execute", "--yes")
    assert "topic wide (id " in first
    whole = asyncio.run(_dump(f"{connect}/whole"))
    assert whole[znodes.GENERATION] == b"1"
    assert znodes.REPAIR not in whole
    assert znodes.decode_topic("", whole["/brokers/topics/again"]).id == LATER
    assert "5100" in whole[PRODUCER_IDS].decode()
    assert whole["/brokers/incarnations/1"] == MARKS.incarnation
    assert "/brokers/topics/gone" not in whole
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tests.cli.test_repair"])
    left = []
    for writes in range(60):
        tree = f"{connect}/{writes}"
        asyncio.run(_restore(tree, new=new))
        config = _config(tmp_path, tree)
        broken = forks.Process(target=_break_off, args=(config, writes))
        broken.start()
        broken.join(60)
        assert broken.exitcode in {0, -signal.SIGKILL}
        if broken.exitcode == 0:
            break
        plan = _repair(config)
        left.append([line for line in plan.splitlines() if line in first.splitlines()])
        _repair(config, "--execute", "--yes")
        assert asyncio.run(_dump(tree)) == whole, f"broken off after {writes} writes"
    else:
        pytest.fail("the repair has more writes")
    assert len(left[0]) > len(left[-1]), "the plan names what is left"
    assert not any("is made" in line or line.startswith(("kept-0", "producer ids")) for line in left[-1])
    assert " right already" in plan


@pytest.mark.parametrize(("record", "code"), [(UNREGISTERED, 0), (b"", 1)], ids=["unregistered", "away"])
def test_a_broker_that_was_unregistered_is_not_waited_for(
    connect: str, tmp_path: Path, record: bytes, code: int
) -> None:  # fmt: skip
    async def remember() -> None:
        async with Stores() as stores:
            await (await stores.open(connect)).create(incarnation_path(9), record)

    asyncio.run(_restore(connect, new=False))
    asyncio.run(remember())
    done = CliRunner().invoke(cli, ["cluster", "repair", _config(tmp_path, connect)])
    assert (done.exit_code, "broker(s) 9 have not told" in done.output) == (code, bool(code))


def test_leader_epochs_are_above_those_of_manifests(connect: str, tmp_path: Path) -> None:
    asyncio.run(_restore(connect, new=False))
    url = f"file://{tmp_path}/bucket"

    async def fill(cluster_id: str, generation: int) -> None:
        bucket = ObjectBucket(url)
        mine = BucketOwner(generation, cluster_id, 0)
        await bucket.put_new(owner_name(generation), mine.encode())
        if generation == 1:
            segment = TieredSegment(uuid.UUID(int=9), 0, 10, 5, 5, 0, 0, 0)
            for topic, topic_id in (("kept", KEPT), ("wide", WIDE), ("gone", GONE)):
                manifest = Manifest(topic_id, 0, 4, 500, segments=(segment,))
                await bucket.put_new(prefix_of(topic, topic_id, 0) + manifest_name(4), encode_manifest(manifest))
            await bucket.put_new(prefix_of("again", LATER, 0) + manifest_name(1), b"damaged")
        bucket.close()

    async def states(topic: str) -> tuple[int, dict[str, str]]:
        async with Stores() as stores:
            store = await stores.open(connect)
            state, _ = await store.get(znodes.state_path(TopicPartition(topic, 0)))
            config, _ = await store.get(znodes.config_path(znodes.CONFIG_TOPICS, topic))
            return json.loads(state)["leader_epoch"], znodes.decode_config("", config)

    config = _config(tmp_path, connect)
    with Path(config).open("a") as file:
        file.write(f"remote.log.storage.system.enable=true\nfleetlog.bucket.url={url}\n")
    missing = CliRunner().invoke(cli, ["cluster", "repair", config])
    assert missing.exit_code == 1
    assert "there is no folder" in missing.output
    assert "--without-bucket" in missing.output
    assert "manifest" not in _repair(config, "--without-bucket")
    asyncio.run(fill("cluster", 1))
    plan = _repair(config)
    assert "kept-0: leader epoch 3, its manifest in the bucket has 500" in plan
    assert f"topic gone (id {GONE}): the bucket alone has records of it" in plan
    assert "no object of this kind, or cut off" in plan
    assert "it is tiered" in next(line for line in plan.splitlines() if line.startswith("topic wide "))
    _repair(config, "--without-bucket", "--execute", "--yes")
    assert asyncio.run(states("kept"))[0] < 500
    asyncio.run(fill("another", 2))
    assert "the bucket is of cluster another, and this one is cluster: not looked at" in _repair(config)


def test_a_repair_writes_epochs_above_those_of_manifests(connect: str, tmp_path: Path) -> None:
    asyncio.run(_restore(connect, new=False))

    async def steps() -> None:
        async with Stores() as stores:
            store = await stores.open(connect)
            known = TierReach("kept", 500, True)
            wide = {0: known._replace(topic="wide"), 7: known._replace(topic="wide", leader_epoch=900)}
            await write_plan(store, await read_plan(store, (), {KEPT: {0: known}, WIDE: wide}))

            async def epoch(topic: str, partition: int) -> int:
                state, _ = await store.get(znodes.state_path(TopicPartition(topic, partition)))
                return int(json.loads(state)["leader_epoch"])

            assert (await epoch("kept", 0), await epoch("wide", 0), await epoch("wide", 7)) == (600, 600, 1_000)
            assert await epoch("wide", 1) < 500
            config, _ = await store.get(znodes.config_path(znodes.CONFIG_TOPICS, "wide"))
            assert znodes.decode_config("", config)["remote.storage.enable"] == "true"

    asyncio.run(steps())


def test_no_piece_ends_between_a_znode_and_its_parent() -> None:
    made: list[Operation] = [Create("/t"), Create("/t/partitions"), Create("/config/t")]
    gone: list[Operation] = []
    for index in range(PARTITIONS):
        made += [Create(f"/t/partitions/{index}"), Create(f"/t/partitions/{index}/state")]
        gone += [Delete(f"/t/partitions/{index}/state"), Delete(f"/t/partitions/{index}")]
    for operations in (made, [*gone, Delete("/t/partitions"), Delete("/t")], [*gone[1:], SetData("/t", b"")]):
        found = list(written_at_once(operations))
        assert [one for piece in found for one in piece] == operations
        assert all(AT_ONCE <= len(piece) < AT_ONCE + 4 for piece in found[:-1])
        for piece, after in pairwise(found):
            assert not after[0].path.startswith(piece[-1].path + "/")
            assert not piece[-1].path.startswith(after[0].path + "/")
