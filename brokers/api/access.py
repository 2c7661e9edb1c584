"""The door to topics, groups, transactional ids and the cluster: may this client do this operation on that resource?

Handlers ask through their ``Context``; nothing else decides it. Without an authorizer everything is allowed, and asking
costs the look at one attribute. ``NEEDS`` says what each API asks (``tests/api/test_access.py`` compares it with what
the handlers do). Operations are also what Metadata and the describe requests tell a client that it may do (KIP-430).

Order matters: a transactional id before the group before topics, and nothing that shows whether a resource exists
before it may be described. Source: KafkaApis and ControllerApis of Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from brokers.security.acl_rules import Question
from brokers.security.acls import OPERATIONS_OF, AclOperation, ResourceType
from wire.errors import ErrorCode


class Need(NamedTuple):
    """An operation on a kind of resource."""

    operation: AclOperation
    resource: ResourceType


READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
IDEMPOTENT_WRITE = AclOperation.IDEMPOTENT_WRITE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""

NOT_ASKED = -(2**31)
"""The bit field of operations of a client that did not ask for it."""

_ERRORS = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_NONE_DENIED: frozenset[str] = frozenset()
_NONE = ErrorCode.NONE
"""Looking a member up in its enum runs a Python function each time."""


def _needs(*pairs: tuple[AclOperation, ResourceType]) -> tuple[Need, ...]:
    return tuple(Need(operation, resource) for operation, resource in pairs)


_ON_GROUP = _needs((READ, GROUP))
_ON_MEMBER_OF_NEW_GROUP = _needs((READ, GROUP), (DESCRIBE, TOPIC))
_ON_TRANSACTION = _needs((WRITE, TRANSACTIONAL_ID))
_ON_CONFIGS = _needs((ALTER_CONFIGS, TOPIC), (ALTER_CONFIGS, GROUP), (ALTER_CONFIGS, CLUSTER))

NEEDS: dict[int, tuple[Need, ...]] = {
    0: _needs((WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC)),  # the id only for transactional batches
    1: _needs((READ, TOPIC), (CLUSTER_ACTION, CLUSTER)),  # consumers, replicas
    2: _needs((DESCRIBE, TOPIC)),
    3: _needs((DESCRIBE, TOPIC), (CREATE, CLUSTER), (CREATE, TOPIC), (DESCRIBE, CLUSTER)),  # one of both to create
    7: _needs((CLUSTER_ACTION, CLUSTER)),
    8: _needs((READ, GROUP), (READ, TOPIC)),
    9: _needs((DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
    10: _needs((DESCRIBE, GROUP), (DESCRIBE, TRANSACTIONAL_ID)),  # by the type of the key
    11: _ON_GROUP,
    12: _ON_GROUP,
    13: _ON_GROUP,
    14: _ON_GROUP,
    15: _needs((DESCRIBE, GROUP)),
    16: _needs((DESCRIBE, CLUSTER), (DESCRIBE, GROUP)),  # all groups, or those that may be described
    17: (),
    18: (),
    19: _needs(  # one of the first three (brokers create internal topics); configs of the answer
        (CREATE, CLUSTER), (CREATE, TOPIC), (CLUSTER_ACTION, CLUSTER), (DESCRIBE_CONFIGS, TOPIC)
    ),
    20: _needs((DELETE, TOPIC), (DESCRIBE, TOPIC)),  # DESCRIBE to see the name of an id
    21: _needs((DELETE, TOPIC)),
    22: _needs((WRITE, TRANSACTIONAL_ID), (IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC)),  # without an id: one of both
    23: _needs((CLUSTER_ACTION, CLUSTER), (DESCRIBE, TOPIC)),  # one of both
    24: _needs((WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC), (CLUSTER_ACTION, CLUSTER)),  # from version 4 on the last one
    25: _needs((WRITE, TRANSACTIONAL_ID), (READ, GROUP)),
    26: _ON_TRANSACTION,
    27: _needs((ALTER, CLUSTER), (CLUSTER_ACTION, CLUSTER)),  # one of both
    28: _needs((WRITE, TRANSACTIONAL_ID), (READ, GROUP), (READ, TOPIC)),
    29: _needs((DESCRIBE, CLUSTER)),
    30: _needs((ALTER, CLUSTER)),
    31: _needs((ALTER, CLUSTER)),
    32: _needs((DESCRIBE_CONFIGS, TOPIC), (DESCRIBE_CONFIGS, GROUP), (DESCRIBE_CONFIGS, CLUSTER)),
    33: _ON_CONFIGS,
    34: _needs((ALTER, CLUSTER)),
    35: _needs((DESCRIBE, CLUSTER), (CLUSTER_ACTION, CLUSTER)),  # one of both: brokers look for room
    36: (),
    37: _needs((ALTER, TOPIC)),
    38: (),
    39: (),
    40: (),
    41: (),
    42: _needs((DELETE, GROUP)),
    43: _needs((ALTER, CLUSTER)),
    44: _ON_CONFIGS,
    45: _needs((ALTER, CLUSTER)),
    46: _needs((DESCRIBE, CLUSTER)),
    47: _needs((DELETE, GROUP), (READ, TOPIC)),
    48: _needs((DESCRIBE_CONFIGS, CLUSTER)),
    49: _needs((ALTER_CONFIGS, CLUSTER)),
    50: _needs((DESCRIBE, CLUSTER)),
    51: _needs((ALTER, CLUSTER)),
    60: _needs((DESCRIBE, CLUSTER)),  # for the operations of the answer
    61: _needs((READ, TOPIC)),
    65: _needs((DESCRIBE, TRANSACTIONAL_ID), (DESCRIBE, TOPIC)),
    66: _needs((DESCRIBE, TRANSACTIONAL_ID)),
    68: _ON_MEMBER_OF_NEW_GROUP,
    74: _needs((DESCRIBE_CONFIGS, CLUSTER)),
    75: _needs((DESCRIBE, TOPIC)),
    76: _ON_MEMBER_OF_NEW_GROUP,
    12000: _needs((CLUSTER_ACTION, CLUSTER)),
    12001: _ON_TRANSACTION,  # a sink's name is a transactional id
    12002: _ON_TRANSACTION,
    12003: _ON_TRANSACTION,
    12004: _ON_TRANSACTION,
    12005: _ON_TRANSACTION,
    12006: _needs((DESCRIBE, TRANSACTIONAL_ID)),
    12007: _needs((WRITE, TRANSACTIONAL_ID), (ALTER, CLUSTER)),  # rows may be written twice: an operator's decision
    12008: _needs((ALTER, TOPIC)),
    12009: _needs((DESCRIBE, TOPIC)),
    12010: _needs((CLUSTER_ACTION, CLUSTER)),
    12011: _needs((DESCRIBE, GROUP)),  # topics that may not be described are left out
    12012: _needs((DESCRIBE, CLUSTER)),
    12013: _needs((DESCRIBE, CLUSTER)),
    12014: _needs((DESCRIBE, CLUSTER)),
}
"""By API key. Operations that Metadata and others look up only to tell a client what it may do are not listed."""


class Login(Protocol):
    """A connection, as far as an authorizer knows it."""

    @property
    def principal(self) -> str:
        """``User:name``."""
        ...

    @property
    def peer_host(self) -> str:
        """The address of the client."""
        ...


class Client(Protocol):
    """What an authorizer knows of a client and its request."""

    @property
    def connection(self) -> Login:
        """How the request came."""
        ...

    @property
    def api_key(self) -> int:
        """The API that is asked."""
        ...


class Authorizer(Protocol):
    """Decides from rules that it has in memory: it is asked on the loop, for each request."""

    @property
    def verdicts(self) -> Mapping[Question, bool]:
        """What it decided since the rules changed; always the same object, so a caller may look here first."""
        ...

    def allows(self, client: Client, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Whether the client may do the operation on that resource."""
        ...

    def allows_any(self, client: Client, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether there can be a resource of that type on which the client may do the operation."""
        ...


class DecisionLog(Protocol):
    """Keeps what was decided."""

    @property
    def keeps_allowed(self) -> bool:
        """Whether it is told of what is allowed, too."""
        ...

    def note(
        self, client: Client, operation: AclOperation, resource: ResourceType, name: str, *, allowed: bool
    ) -> bool:
        """One decision; False: it must be kept and cannot be, so nothing is allowed."""
        ...


class Access:
    """Asks the authorizer; without one everything is allowed.

    ``decisions`` keeps what was decided, but for questions that only filter what an answer shows (``logged=False``).
    """

    __slots__ = ("_quiet", "authorizer", "decisions", "granted")

    def __init__(self, authorizer: Authorizer | None = None, decisions: DecisionLog | None = None) -> None:
        self.authorizer = authorizer
        self.keep_decisions(decisions)

    def keep_decisions(self, decisions: DecisionLog | None) -> None:
        """Tell ``decisions`` what is decided from now on."""
        self.decisions = decisions
        self._quiet = decisions is None or not decisions.keeps_allowed
        authorizer = self.authorizer
        self.granted: Mapping[Question, bool] = authorizer.verdicts if authorizer is not None and self._quiet else {}
        """What was decided before, where nothing is kept of what is allowed: True there needs no further question."""

    def levels_changed(self) -> None:
        """Log levels have: ask again what is kept of what is allowed."""
        self.keep_decisions(self.decisions)

    def allows(
        self, client: Client, operation: AclOperation, resource: ResourceType, name: str, logged: bool = True
    ) -> bool:
        """Whether the client may do the operation on that resource."""
        authorizer = self.authorizer
        if authorizer is None:
            return True
        login = client.connection
        if self.granted.get((login.principal, login.peer_host, operation, resource, name)):
            return True  # as decided before, and not kept in the log
        allowed = authorizer.allows(client, operation, resource, name)
        if allowed and self._quiet:
            return True
        if logged and self.decisions is not None:
            allowed = self.decisions.note(client, operation, resource, name, allowed=allowed) and allowed
        return allowed

    @property
    def tells_brokers(self) -> bool:
        """Whether ClusterAction tells brokers from clients: without it, a client may claim to be one."""
        return self.authorizer is not None

    def allows_any(self, client: Client, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether the client may do the operation on some resource of that type."""
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows_any(client, operation, resource)

    def refusal(self, client: Client, operation: AclOperation, resource: ResourceType, name: str) -> ErrorCode:
        """NONE, or the authorization error of that type of resource."""
        return _NONE if self.allows(client, operation, resource, name) else _ERRORS[resource]

    def denied(
        self,
        client: Client,
        operation: AclOperation,
        resource: ResourceType,
        names: Iterable[str],
        logged: bool = True,
    ) -> frozenset[str]:
        """Those names on which the client may not do the operation; each is asked for once."""
        if self.authorizer is None:
            return _NONE_DENIED
        return frozenset(name for name in set(names) if not self.allows(client, operation, resource, name, logged))

    def operations(self, client: Client, resource: ResourceType, name: str) -> tuple[AclOperation, ...]:
        """All that the client may do on that resource."""
        every = OPERATIONS_OF[resource]
        if self.authorizer is None:
            return every
        return tuple(one for one in every if self.allows(client, one, resource, name, logged=False))


class OpenAccess(Access):
    """Without an authorizer, where brokers log in at each other: what only brokers do is for their principals alone.

    Everything else is allowed, and costs what it costs with :class:`Access`: the handlers of data ask it nothing.
    """

    __slots__ = ("_brokers",)

    def __init__(self, brokers: frozenset[str], decisions: DecisionLog) -> None:
        super().__init__(None, decisions)
        self._brokers = brokers

    @property
    def tells_brokers(self) -> bool:
        """It does: without an authorizer, too."""
        return True

    def allows(
        self, client: Client, operation: AclOperation, resource: ResourceType, name: str, logged: bool = True
    ) -> bool:
        """Whether the client may do the operation: all but ClusterAction, unless it is a broker."""
        if operation is not CLUSTER_ACTION or client.connection.principal in self._brokers:
            return True
        if logged and self.decisions is not None:
            self.decisions.note(client, operation, resource, name, allowed=False)
        return False

    def operations(self, client: Client, resource: ResourceType, name: str) -> tuple[AclOperation, ...]:
        """All that the client may do on that resource."""
        every = OPERATIONS_OF[resource]
        return tuple(one for one in every if self.allows(client, one, resource, name, logged=False))


def bits(operations: tuple[AclOperation, ...]) -> set[int]:
    """The operations as the message library takes a bit field."""
    return {int(operation) for operation in operations}


def mask(operations: tuple[AclOperation, ...]) -> int:
    """The operations as a number, for fields the library keeps as int32."""
    return sum(1 << operation for operation in operations)
