"""``fleetlog cluster repair``: bring ZooKeeper and the brokers' logs together again after ZooKeeper went back."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import click

from fleetlog.brokers.cli.options import settings_text
from fleetlog.brokers.cli.output import CliError, confirm, count_text, warn
from fleetlog.brokers.config import BrokerConfig, ConfigError, load_config
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.inventories import Inventory, decode_inventory
from fleetlog.brokers.metadata.loading import children_or_none, load_metadata, read_many, read_or_none
from fleetlog.brokers.metadata.repair import CannotRepair, RepairPlan, Tiers, plan_repair
from fleetlog.brokers.metadata.tree_guard import read_marks
from fleetlog.brokers.metadata.znodes import BadZnode
from fleetlog.brokers.tls.zookeeper import ZookeeperSettings
from fleetlog.coordination.changes import entry
from fleetlog.coordination.registration import UNREGISTERED, incarnation_path
from fleetlog.coordination.store import Create, Delete, Operation, SetData, Store, StoreError
from fleetlog.coordination.tree import INCARNATIONS, ensure
from fleetlog.coordination.zookeeper import ZookeeperStore
from fleetlog.txn.producer_ids import Block, decode_block, encode_block

PRODUCER_IDS = "/latest_producer_id_block"
AT_ONCE = 400


class InBucket(NamedTuple):
    """What the manifests say; ``owner`` is the cluster id of the bucket's owner."""

    owner: str = ""
    tiers: Tiers = MappingProxyType({})


def repair(
    config_file: Path,
    override: dict[str, str],
    *,
    execute: bool,
    without: Sequence[int],
    without_bucket: bool,
    yes: bool,
) -> None:
    """The command. Raises CliError."""
    try:
        config = load_config(settings_text(config_file), str(config_file), os.environ, override)
        tiered = config.remote_log_storage_system_enable and config.fleetlog_bucket_url
        in_bucket = _read_bucket(config.fleetlog_bucket_url) if tiered and not without_bucket else InBucket()
        asyncio.run(_repair(config, in_bucket, execute=execute, without=without, yes=yes))
    except (ConfigError, StoreError, CannotRepair, BadZnode) as error:
        raise CliError(str(error)) from error


def _read_bucket(url: str) -> InBucket:
    from fleetlog.brokers.cli.bucket import tier_reaches

    try:
        owner, tiers, problems = tier_reaches(url)
    except CliError as wrong:
        raise CliError(f"{wrong}\nManifests tell leader epochs that a tiered topic's next leader must be above. If the"
                       " bucket is gone for good: --without-bucket") from wrong  # fmt: skip
    for problem in problems:
        warn(problem)
    return InBucket(owner, tiers)


async def _repair(
    config: BrokerConfig, in_bucket: InBucket, *, execute: bool, without: Sequence[int], yes: bool
) -> None:
    security = ZookeeperSettings.of(dict(config.given)).connection(time.time)
    store = ZookeeperStore(
        config.zookeeper_connect, session_timeout_ms=config.zookeeper_session_timeout_ms, security=security
    )
    await store.start(config.zookeeper_connection_timeout_ms)
    try:
        plan = await read_plan(store, without, await _own_tiers(store, in_bucket))
        for line in plan.lines:
            click.echo(line)
        if plan.done:
            click.echo(f"{count_text(plan.done, 'topic', 'are')} right already: a repair that broke off wrote them")
        click.echo(
            f"{count_text(len(plan.topics), 'topic', 'are')} written anew, each partition in a new leader epoch;"
            f" controller epoch {plan.controller_epoch}, generation {plan.generation}"
        )
        if not execute:
            click.echo("nothing was written; --execute writes it")
            return
        confirm("Write this to ZooKeeper?", yes)
        await write_plan(store, plan)
        click.echo("done: the brokers register again by themselves")
    finally:
        await store.close()


async def _own_tiers(store: Store, in_bucket: InBucket) -> Tiers:
    """What the bucket has of this fleet."""
    if not in_bucket.tiers:
        return in_bucket.tiers
    identity = await read_or_none(store, znodes.CLUSTER_ID)
    cluster_id = znodes.decode_cluster_id(identity[0]) if identity is not None else ""
    if cluster_id == in_bucket.owner:
        return in_bucket.tiers
    warn(f"the bucket is of cluster {in_bucket.owner or 'nobody'}, and this one is {cluster_id}: not looked at")
    return MappingProxyType({})


async def read_plan(store: Store, without: Sequence[int], tiers: Tiers = MappingProxyType({})) -> RepairPlan:
    """What the brokers have told, and the tree, make this plan. Raises CannotRepair, BadZnode, StoreError."""
    names = await children_or_none(store, znodes.INVENTORIES)
    parts: dict[int, dict[int, bytes]] = {}
    for name in names:
        broker_id, _generation, number = map(int, name.split("-")[:3])
        part = await read_or_none(store, f"{znodes.INVENTORIES}/{name}")
        if part is not None and broker_id not in without:
            parts.setdefault(broker_id, {})[number] = part[0]
    inventories: list[Inventory] = [
        decode_inventory(f"{znodes.INVENTORIES}/{broker_id}", row) for broker_id, row in sorted(parts.items())
    ]
    click.echo(f"brokers that have told what they have: {', '.join(map(str, sorted(parts))) or 'none'}")
    loaded = await load_metadata(store)
    if loaded.deleting:
        raise CannotRepair(f"the deletion of topic {loaded.deleting[0]} is not finished in ZooKeeper: remove"
                           f" {znodes.delete_topic_path(loaded.deleting[0])} first")  # fmt: skip
    chosen = await read_or_none(store, znodes.REPAIR)
    stored = await read_or_none(store, PRODUCER_IDS)
    allocated = decode_block(stored[0]).block.last if stored is not None and stored[0] else -1
    ids = [int(name) for name in await children_or_none(store, INCARNATIONS)]
    records = zip(ids, await read_many(store, [incarnation_path(b) for b in ids]), strict=True)
    return plan_repair(
        loaded.image, inventories, {one.broker_id: await read_marks(store, one.broker_id) for one in inventories},
        known_brokers=[b for b, row in records if row is None or row[0] != UNREGISTERED], without=without,
        allocated_id=allocated,
        chosen=znodes.decode_topic_ids(znodes.REPAIR, chosen[0]) if chosen is not None else {},
        tiers=tiers,
    )  # fmt: skip


async def write_plan(store: Store, plan: RepairPlan) -> None:
    """The generation comes last: until then brokers refuse, and the command may be given again."""
    for path in znodes.PERSISTENT_PATHS:
        await ensure(store, path)
    if plan.chosen:
        await store.multi([await _put(store, znodes.REPAIR, znodes.encode_topic_ids(plan.chosen))])
    for operations in plan.topics.values():
        for some in written_at_once(operations):
            await store.multi(some)
    if plan.producer_id >= 0:
        block = Block(max(0, plan.producer_id - 999), plan.producer_id)
        await store.multi([await _put(store, PRODUCER_IDS, encode_block(block, -1, "repair"))])
    for broker_id, incarnation in plan.incarnations.items():
        path = incarnation_path(broker_id)
        await ensure(store, path)
        record, present = await store.get(path)
        for count in _runs(incarnation - present.version):
            await store.multi([SetData(path, record)] * count)
    last = [
        await _put(store, znodes.CONTROLLER_EPOCH, str(plan.controller_epoch).encode()),
        await _put(store, znodes.GENERATION, str(plan.generation).encode()),
    ]
    if await store.exists(znodes.REPAIR) is not None:
        last.append(Delete(znodes.REPAIR))
    await store.multi([*last, entry(znodes.encode_changes([], "repair"))])


async def _put(store: Store, path: str, data: bytes) -> Operation:
    """Write that data whether or not the znode is there."""
    return Create(path, data) if await store.exists(path) is None else SetData(path, data)


def written_at_once(operations: Sequence[Operation]) -> Iterator[Sequence[Operation]]:
    """Each is written at once. None ends between a znode and its parent: a plan can be made of what is there then."""
    start = 0
    while start < len(operations):
        end = start + AT_ONCE
        while end < len(operations) and _are_kin(operations[end - 1].path, operations[end].path):
            end += 1
        yield operations[start:end]
        start = end


def _are_kin(path: str, other: str) -> bool:
    return path.startswith(other + "/") or other.startswith(path + "/")


def _runs(count: int) -> Iterator[int]:
    while count > 0:
        yield min(count, AT_ONCE)
        count -= AT_ONCE
