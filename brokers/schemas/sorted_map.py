"""A map in the order of its keys that never changes: what changes it returns another one.

Both share all but the nodes from the root to one leaf, so a change costs the logarithm of the size, and whoever has a
map keeps it for nothing. A B+ tree whose nodes are tuples; Okasaki's Purely Functional Data Structures (1998) says why.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar, overload

WIDTH: Final = 32
"""Keys in a node, at most."""

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class TreeNode(NamedTuple):
    """Of a leaf the keys and their values; of others the least key of each node below, and those."""

    keys: tuple[Any, ...]
    parts: tuple[Any, ...]


_EMPTY: Final = TreeNode((), ())


class SortedMap(Generic[K, V]):
    """Keys must be comparable with each other. For any thread."""

    __slots__ = ("_depth", "_root")

    def __init__(self) -> None:
        self._root, self._depth = _EMPTY, 0

    def _made(self, root: TreeNode, depth: int) -> SortedMap[K, V]:
        made: SortedMap[K, V] = SortedMap()
        made._root, made._depth = root, depth
        return made

    def __bool__(self) -> bool:
        return bool(self._root.keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedMap) and list(self.items()) == list(other.items())

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, key: K) -> bool:
        return self.get(key, _EMPTY) is not _EMPTY

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The key's value."""
        node = self._root
        for _ in range(self._depth):
            node = node.parts[max(bisect_right(node.keys, key) - 1, 0)]
        at = bisect_left(node.keys, key)
        return node.parts[at] if at < len(node.keys) and node.keys[at] == key else default

    def items(self, first: K | None = None) -> Iterator[tuple[K, V]]:
        """In the order of the keys, from ``first`` on."""
        return _items(self._root, self._depth, first)

    def keys(self, first: K | None = None) -> Iterator[K]:
        """In their order, from ``first`` on."""
        return (key for key, _ in self.items(first))

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def values(self) -> Iterator[V]:
        """In the order of their keys."""
        return (value for _, value in self.items())

    def last(self) -> K | None:
        """The greatest key."""
        node = self._root
        for _ in range(self._depth):
            node = node.parts[-1]
        return node.keys[-1] if node.keys else None

    def with_item(self, key: K, value: V) -> SortedMap[K, V]:
        """The map with the key's value, which replaces the one that it has."""
        made = _with(self._root, self._depth, key, value)
        depth, root = self._depth, made[0]
        if len(made) > 1:
            depth, root = depth + 1, TreeNode(tuple(one.keys[0] for one in made), made)
        return self._made(root, depth)

    def without(self, key: K) -> SortedMap[K, V]:
        """The map without the key; itself if it has none such."""
        if key not in self:
            return self
        depth, root = self._depth, _without(self._root, self._depth, key)
        while depth and len(root.parts) == 1:
            depth, root = depth - 1, root.parts[0]
        return self._made(root, depth if root.keys else 0)

    def nodes(self) -> Iterator[TreeNode]:
        """All nodes; what two maps share is the same node in both."""
        waiting = [(self._root, self._depth)]
        while waiting:
            node, depth = waiting.pop()
            yield node
            waiting += [(part, depth - 1) for part in node.parts] if depth else []


def _items(node: TreeNode, depth: int, first: Any) -> Iterator[tuple[Any, Any]]:
    keys, parts = node
    if not depth:
        begin = 0 if first is None else bisect_left(keys, first)
        yield from zip(keys[begin:], parts[begin:], strict=True)
        return
    begin = 0 if first is None else max(bisect_right(keys, first) - 1, 0)
    for part in parts[begin:]:
        yield from _items(part, depth - 1, first)
        first = None


def _with(node: TreeNode, depth: int, key: Any, value: Any) -> tuple[TreeNode, ...]:
    """The node with the item; two where it was full."""
    keys, parts = node
    if depth:
        at, taken = max(bisect_right(keys, key) - 1, 0), 1
        made = _with(parts[at], depth - 1, key, value)
        firsts: tuple[Any, ...] = tuple(one.keys[0] for one in made)
    else:
        at, firsts, made = bisect_left(keys, key), (key,), (value,)
        taken = int(at < len(keys) and keys[at] == key)
    keys, parts = keys[:at] + firsts + keys[at + taken :], parts[:at] + made + parts[at + taken :]
    if len(keys) <= WIDTH:
        return (TreeNode(keys, parts),)
    half = len(keys) // 2
    return TreeNode(keys[:half], parts[:half]), TreeNode(keys[half:], parts[half:])


def _without(node: TreeNode, depth: int, key: Any) -> TreeNode:
    """The node without the key, which it has; a node below that is empty goes with it."""
    keys, parts = node
    made: tuple[Any, ...] = ()
    firsts: tuple[Any, ...] = ()
    if depth:
        at = max(bisect_right(keys, key) - 1, 0)
        left = _without(parts[at], depth - 1, key)
        if left.keys:
            firsts, made = (left.keys[0],), (left,)
    else:
        at = bisect_left(keys, key)
    return TreeNode(keys[:at] + firsts + keys[at + 1 :], parts[:at] + made + parts[at + 1 :])
