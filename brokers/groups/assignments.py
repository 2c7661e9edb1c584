"""What the members of a group were assigned, read from the bytes that the group's leader wrote. Pure.

Source: Kafka's ConsumerProtocolAssignment v0 to 3, which begin alike.
"""

from __future__ import annotations

import struct

from brokers.groups.members import CONSUMER_PROTOCOL_TYPE, Group

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


def assigned_counts(assignment: bytes) -> dict[str, int]:
    """Partitions by topic; nothing where the bytes are something else."""
    found: dict[str, int] = {}
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
                return {}
            found[name] = found.get(name, 0) + count
    except (struct.error, UnicodeDecodeError):
        return {}
    return found


def assignments_of(group: Group) -> list[dict[str, int]]:
    """Of each member of a consumer group, its partitions by topic."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return []
    return [assigned_counts(member.assignment) for member in group.members.values()]
