"""Which operations a client may perform, as Metadata and the describe requests tell it (KIP-430).

Without an authorizer everybody may do everything that there is for the resource.
"""

from __future__ import annotations

from enum import IntEnum


class AclOperation(IntEnum):
    """Operations, numbered as on the wire."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


TOPIC_OPERATIONS = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS = (
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
GROUP_OPERATIONS = (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE)
NOT_ASKED = -(2**31)


def bits(operations: tuple[AclOperation, ...]) -> set[int]:
    """The operations as the message library takes a bit field."""
    return {int(operation) for operation in operations}


def mask(operations: tuple[AclOperation, ...]) -> int:
    """The operations as a number, for fields the library keeps as int32."""
    return sum(1 << operation for operation in operations)
