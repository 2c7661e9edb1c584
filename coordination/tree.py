"""Initializes a ZooKeeper tree for fleetlog: the mark, the cluster id and the required parents.

One multi creates the mark and the id before any other fleetlog data, so brokers may start concurrently on an empty
tree. A tree with a Kafka cluster's data but without the mark is never changed: two kinds of brokers that manage the
same topics would destroy each other's logs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping

from fleetlog.coordination.store import Create, MultiFailed, NodeExists, NoNode, Store, StoreError, UnknownOutcome

MARK = "/fleetlog"
CLUSTER_ID = "/cluster/id"
CHANGES = "/fleetlog/changes"
BROKER_IDS = "/brokers/ids"
INCARNATIONS = "/brokers/incarnations"
FORMAT = 1

_PARENTS = (CHANGES, BROKER_IDS, INCARNATIONS)
_KAFKA_DATA = (
    "/feature", CLUSTER_ID, BROKER_IDS, "/brokers/topics", "/controller_epoch", "/config/topics", "/migration",
)  # fmt: skip
_ATTEMPTS = 20
_NO_NAME = re.compile("[/\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class ForeignTree(StoreError):
    """The tree belongs to another program or a newer fleetlog; nothing was written."""


def may_be_named(name: str) -> bool:
    """Whether a znode can have this name.

    Source: ZooKeeper's PathUtils, which sees characters above U+FFFF as surrogates.
    """
    return name not in {"", ".", ".."} and _NO_NAME.search(name) is None


async def adopt(
    store: Store,
    new_cluster_id: Callable[[], str],
    parents: Iterable[str] = (),
    seeds: Mapping[str, bytes] | None = None,
) -> str:
    """Return the cluster id; on an empty tree write the mark and the id of ``new_cluster_id()`` first.

    ``seeds`` (path to data, directly below the root) are created in the same multi as the mark: initial data of new
    clusters, which older ones do not get.

    Also creates the missing persistent ``parents`` (and this package's own). Raises ForeignTree, and the store's
    exceptions other than UnknownOutcome, which is decided by reading again.
    """
    for _ in range(_ATTEMPTS):
        try:
            if await store.exists(MARK) is None:
                await _mark(store, new_cluster_id(), seeds or {})
            cluster_id = await _read_marked(store)
            for path in (*_PARENTS, *parents):
                await ensure(store, path)
            return cluster_id
        except UnknownOutcome:
            await store.sync("/")
    raise StoreError("ZooKeeper loses each connection before it answers", MARK)


async def ensure(store: Store, path: str) -> None:
    """Create a persistent znode and its parents unless it is there."""
    if await store.exists(path) is None:
        try:
            await store.create(path, parents=True)
        except NodeExists:
            pass


async def _mark(store: Store, cluster_id: str, seeds: Mapping[str, bytes]) -> None:
    for path in _KAFKA_DATA:
        if await store.exists(path) is not None:
            if await store.exists(MARK) is not None:
                return  # another fleetlog broker was faster: it wrote this in the same multi as the mark
            raise ForeignTree(
                f"the ZooKeeper tree has {path} but not fleetlog's mark {MARK}: it belongs to an Apache Kafka cluster;"
                " use another ensemble, or a path of its own (zookeeper.connect=host:port/fleetlog)",
                path,
            )
    operations = [
        Create(MARK, _dump({"format": FORMAT, "cluster_id": cluster_id})),
        Create(CLUSTER_ID, _dump({"version": "1", "id": cluster_id})),
    ]
    if await store.exists("/cluster") is None:
        operations.insert(1, Create("/cluster"))
    operations += [Create(path, data) for path, data in seeds.items()]
    try:
        await store.multi(operations)
    except MultiFailed as failed:
        if not isinstance(failed.cause, NodeExists):
            raise
        # Another writer was faster: a fleetlog broker, or else the next read finds the foreign data.


async def _read_marked(store: Store) -> str:
    try:
        mark, _ = await store.get(MARK)
        identity, _ = await store.get(CLUSTER_ID)
    except NoNode as error:
        raise ForeignTree(f"the ZooKeeper tree is damaged: {error.path} is missing", error.path) from None
    try:
        format_ = json.loads(mark)["format"]
        marked_id = json.loads(mark)["cluster_id"]
        cluster_id = json.loads(identity)["id"]
    except (ValueError, KeyError, TypeError) as error:
        raise ForeignTree(f"the ZooKeeper tree's mark cannot be read: {mark!r}, {identity!r}", MARK) from error
    if format_ != FORMAT:
        raise ForeignTree(f"the ZooKeeper tree has format {format_!r}; this fleetlog knows {FORMAT}", MARK)
    if cluster_id != marked_id:
        raise ForeignTree(f"{CLUSTER_ID} names {cluster_id!r}, fleetlog's mark {marked_id!r}", CLUSTER_ID)
    return str(cluster_id)


def _dump(document: dict[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
