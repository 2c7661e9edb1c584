"""What the members of a group were assigned, read from the bytes that the group's leader wrote. Pure.

Source: Kafka's ConsumerProtocolAssignment v0 to 3, which begin alike.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


class AssignmentUnreadable(ValueError):
    """The bytes are something else."""


def assigned_counts(assignment: bytes) -> Iterator[tuple[str, int]]:
    """Topics, each with a number of its partitions; a topic may come again. Raises AssignmentUnreadable, also later."""
    try:
        (topics,) = _I32.unpack_from(assignment, 2)
        position = 6
        for _ in range(topics):
            (size,) = _I16.unpack_from(assignment, position)
            position += 2
            name = assignment[position : position + size].decode()
            (count,) = _I32.unpack_from(assignment, position + size)
            position += size + 4 + 4 * count
            if size < 0 or count < 0 or position > len(assignment):
                raise AssignmentUnreadable(f"it ends at byte {len(assignment)}, before the partitions of topic {name}")
            yield name, count
    except (struct.error, UnicodeDecodeError) as wrong:
        raise AssignmentUnreadable(str(wrong)) from wrong
