"""Many znodes by one request: ZooKeeper's multiRead (3.6, ZOOKEEPER-1962), which kazoo lacks.

The server answers each operation separately: a missing znode fails only its own read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kazoo.exceptions import EXCEPTIONS, MarshallingError, NoNodeError

from fleetlog.coordination.store import Stat

_GET_DATA = 4
_ERROR = -1
_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">iBi")  # type of the operation, whether this is the end, error
_STAT = struct.Struct(">qqqqiiiqiiq")
_HEADER_OF_GET = _HEADER.pack(_GET_DATA, 0, -1)
_END = _HEADER.pack(-1, 1, -1)


class GetMany:
    """A kazoo request: data and Stat of each path, None where there is no znode."""

    type = 22

    __slots__ = ("paths",)

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __repr__(self) -> str:
        return f"GetMany({len(self.paths)} paths)"

    def serialize(self) -> bytes:
        """The body of the request."""
        parts: list[bytes] = []
        for path in self.paths:
            encoded = path.encode()
            parts += (_HEADER_OF_GET, _LENGTH.pack(len(encoded)), encoded, b"\0")  # no watch
        parts.append(_END)
        return b"".join(parts)

    def deserialize(self, answer: bytes, offset: int) -> list[tuple[bytes, Stat] | None]:
        """Decode the response's body. Raises kazoo's exception of the first error other than a missing znode."""
        rows: list[tuple[bytes, Stat] | None] = []
        try:
            while True:
                kind, done, _ = _HEADER.unpack_from(answer, offset)
                offset += _HEADER.size
                if done:
                    break
                (number,) = _LENGTH.unpack_from(answer, offset)
                offset += _LENGTH.size
                if kind == _ERROR:
                    if number != NoNodeError.code:
                        raise EXCEPTIONS[number]
                    rows.append(None)
                    continue
                end = offset + max(0, number)
                czxid, mzxid, created_ms, _, version, _, _, owner, _, children, _ = _STAT.unpack_from(answer, end)
                rows.append((answer[offset:end], Stat(version, czxid, mzxid, owner, children, created_ms)))
                offset = end + _STAT.size
        except struct.error:
            raise MarshallingError("no answer to a multiRead: ZooKeeper is older than 3.6") from None
        if len(rows) != len(self.paths):
            raise MarshallingError(f"{len(rows)} answers to a multiRead of {len(self.paths)}")
        return rows
