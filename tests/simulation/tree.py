"""ZooKeeper's data tree: znodes, versions, sequence numbers, multis, and which watches a change fires.

Rules from ZooKeeper's PrepRequestProcessor and DataTree; ``test_zookeeper`` compares them with a real server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fleetlog.coordination.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OperationResult,
    SetData,
    Stat,
    StoreError,
    WatchEvent,
    WatchKind,
)


class Znode:
    """One znode; ``made`` counts the children ever created, which is what sequence numbers come from."""

    __slots__ = ("children", "czxid", "data", "made", "mzxid", "owner", "version")

    def __init__(self, data: bytes, zxid: int, owner: int) -> None:
        self.data = data
        self.version = 0
        self.czxid = self.mzxid = zxid
        self.owner = owner
        self.made = 0
        self.children: dict[str, None] = {}

    def stat(self) -> Stat:
        return Stat(self.version, self.czxid, self.mzxid, self.owner, len(self.children))


class Tree:
    """The znodes of one server. ``commit`` is all or nothing."""

    def __init__(self) -> None:
        self._nodes: dict[str, Znode] = {"/": Znode(b"", 0, 0)}

    def find(self, path: str) -> Znode:
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(f"NoNode: {path}", path)
        return node

    def ephemerals(self, session_id: int) -> list[str]:
        """Paths of the session's ephemerals, oldest first."""
        return [path for path, node in self._nodes.items() if node.owner == session_id]

    def commit(
        self, operations: Sequence[Operation], zxid: int, session_id: int
    ) -> tuple[list[OperationResult], list[WatchEvent]]:
        """Perform all; raises MultiFailed (with nothing done) for the first that cannot be."""
        results: list[OperationResult] = []
        events: list[WatchEvent] = []
        undo: list[Callable[[], None]] = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._perform(operation, zxid, session_id, events, undo))
            except StoreError as error:
                for step in reversed(undo):
                    step()
                raise MultiFailed(index, error) from None
        return results, events

    def _perform(
        self, operation: Operation, zxid: int, session_id: int, events: list[WatchEvent], undo: list[Callable[[], None]]
    ) -> OperationResult:
        match operation:
            case Create(path, data, ephemeral, sequence):
                return self._create(path, data, session_id if ephemeral else 0, sequence, zxid, events, undo)
            case SetData(path, data, version):
                return self._set(path, data, version, zxid, events, undo)
            case Delete(path, version):
                return self._delete(path, version, events, undo)
            case Check(path, version):
                self._versioned(path, version)
                return OperationResult(path, None)

    def _versioned(self, path: str, version: int) -> Znode:
        node = self.find(path)
        if version not in (-1, node.version):
            raise BadVersion(f"BadVersion: {path}", path)
        return node

    def _create(
        self, asked: str, data: bytes, owner: int, sequence: bool, zxid: int, events: list[WatchEvent],
        undo: list[Callable[[], None]],
    ) -> OperationResult:  # fmt: skip
        above = parent_of(asked)
        parent = self._nodes.get(above)
        if parent is None:
            raise NoNode(f"NoNode: {asked}", asked)
        path = f"{asked}{parent.made:010d}" if sequence else asked
        if path in self._nodes:
            raise NodeExists(f"NodeExists: {asked}", asked)
        if parent.owner:
            raise StoreError(f"ZooKeeper: NoChildrenForEphemerals: {asked}", asked)
        name = path.rpartition("/")[2]
        parent.made += 1
        parent.children[name] = None
        self._nodes[path] = Znode(data, zxid, owner)

        def back() -> None:
            parent.made -= 1
            del parent.children[name], self._nodes[path]

        undo.append(back)
        events += [WatchEvent(WatchKind.CREATED, path), WatchEvent(WatchKind.CHILDREN, above)]
        return OperationResult(path, None)

    def _set(
        self, path: str, data: bytes, version: int, zxid: int, events: list[WatchEvent], undo: list[Callable[[], None]]
    ) -> OperationResult:
        node = self._versioned(path, version)
        previous = node.data, node.version, node.mzxid

        def back() -> None:
            node.data, node.version, node.mzxid = previous

        undo.append(back)
        node.data, node.version, node.mzxid = data, node.version + 1, zxid
        events.append(WatchEvent(WatchKind.CHANGED, path))
        return OperationResult(path, node.stat())

    def _delete(
        self, path: str, version: int, events: list[WatchEvent], undo: list[Callable[[], None]]
    ) -> OperationResult:
        node = self._versioned(path, version)
        if node.children:
            raise NotEmpty(f"NotEmpty: {path}", path)
        above, name = parent_of(path), path.rpartition("/")[2]
        parent = self._nodes[above]
        del parent.children[name], self._nodes[path]

        def back() -> None:
            parent.children[name] = None
            self._nodes[path] = node

        undo.append(back)
        events += [WatchEvent(WatchKind.DELETED, path), WatchEvent(WatchKind.CHILDREN, above)]
        return OperationResult(path, None)


def parent_of(path: str) -> str:
    """The path above."""
    return path.rpartition("/")[0] or "/"


class Watches:
    """What one connection watches at its server: each fires once."""

    def __init__(self) -> None:
        self._data: set[str] = set()
        self._children: set[str] = set()

    def add(self, path: str, *, children: bool) -> None:
        (self._children if children else self._data).add(path)

    def fires(self, event: WatchEvent) -> bool:
        """Whether the connection is told of the event; the watch is gone then."""
        kind, path = event
        told = False
        if kind is not WatchKind.CHILDREN and path in self._data:
            self._data.discard(path)
            told = True
        if kind in (WatchKind.CHILDREN, WatchKind.DELETED) and path in self._children:
            self._children.discard(path)
            told = True
        return told
