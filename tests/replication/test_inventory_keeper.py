"""What a broker knows of its cluster before it has asked ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from fleetlog.brokers.config import load_config
from fleetlog.brokers.log import LogStore, RealDisk
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.replication.inventory_keeper import InventoryKeeper, cluster_id_of
from fleetlog.coordination.tree import adopt, ensure
from tests.support.clocks import ManualClock
from tests.support.stores import Stores, on_loop


def test_a_directory_that_cannot_be_read_has_no_say_in_the_cluster(tmp_path: Path) -> None:
    good, broken = tmp_path / "good", tmp_path / "broken"
    (good / "t-0").mkdir(parents=True)
    (good / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=ours\n")
    broken.write_text("no directory\n")
    assert cluster_id_of(RealDisk(), [str(broken), str(good)]) == "ours"
    assert cluster_id_of(RealDisk(), [str(broken)]) is None


@on_loop
async def test_a_broker_that_may_not_read_what_others_tell_asks_again(
    connect: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = load_config(f"broker.id=1\nlog.dirs={tmp_path}\nzookeeper.connect={connect}\n")
    logs = LogStore(config, RealDisk(), ManualClock(), cluster_id="cluster")
    async with Stores() as stores:
        store = await stores.open(connect)
        await adopt(store, lambda: "cluster")
        await ensure(store, znodes.INVENTORIES)
        operator = KazooClient(connect)
        operator.start()
        operator.set_acls(znodes.INVENTORIES, [make_acl("world", "anyone", create=True, admin=True)])
        keeper = InventoryKeeper(store, 1, RealDisk(), logs, {})
        running = asyncio.create_task(keeper.run())
        while "is not told in ZooKeeper yet" not in caplog.text:
            await asyncio.sleep(0.05)
        operator.set_acls(znodes.INVENTORIES, [make_acl("world", "anyone", all=True)])
        operator.create(znodes.inventory_path(2, 0, 0, proven=True))
        async with asyncio.timeout(20):
            while keeper.guard.behind != "broker 2 says so":
                await asyncio.sleep(0.05)
        running.cancel()
        operator.stop()
        operator.close()
