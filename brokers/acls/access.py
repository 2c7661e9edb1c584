"""The door to topics, groups, transactional ids and the cluster: may this client do this operation on that resource?

Handlers ask through their ``Context``; nothing else decides it. Without an authorizer everything is allowed, and asking
costs the look at one attribute. The row of an API says what its handler asks (``tests/api/test_access.py`` compares
them), but for what Metadata and the describe requests look up only to tell a client what it may do (KIP-430).

Order matters: a transactional id before the group before topics, and nothing that shows whether a resource exists
before it may be described. Source: KafkaApis and ControllerApis of Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from fleetlog.brokers.acls.decisions import AclRules, Question
from fleetlog.brokers.acls.hosts import host_as_acls_have_it
from fleetlog.brokers.acls.image import AclOperation, ResourceType
from fleetlog.wire.errors import ErrorCode


class Need(NamedTuple):
    """An operation on a kind of resource. A row names it; a handler asks ``context.refusal(*READ_TOPIC, name)``."""

    operation: AclOperation
    resource: ResourceType


READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
IDEMPOTENT_WRITE = AclOperation.IDEMPOTENT_WRITE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

OPERATIONS_OF: Mapping[ResourceType, tuple[AclOperation, ...]] = {
    TOPIC: (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER: (CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE),
    TRANSACTIONAL_ID: (WRITE, DESCRIBE, AclOperation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""The operations that a resource has; AuthorizedOperations fields (KIP-430) tell which of them are allowed."""
NOT_ASKED = -(2**31)
"""The bit field of operations of a client that did not ask for it."""

AUTHORIZATION_ERRORS = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_NONE_DENIED: frozenset[str] = frozenset()

ALTER_CLUSTER, ALTER_TOPIC = Need(ALTER, CLUSTER), Need(ALTER, TOPIC)
ALTER_CONFIGS_CLUSTER, ALTER_CONFIGS_TOPIC = Need(ALTER_CONFIGS, CLUSTER), Need(ALTER_CONFIGS, TOPIC)
ALTER_CONFIGS_GROUP, CLUSTER_ACTION_CLUSTER = Need(ALTER_CONFIGS, GROUP), Need(CLUSTER_ACTION, CLUSTER)
CREATE_CLUSTER, CREATE_TOPIC = Need(CREATE, CLUSTER), Need(CREATE, TOPIC)
DELETE_GROUP, DELETE_TOPIC = Need(DELETE, GROUP), Need(DELETE, TOPIC)
DESCRIBE_CLUSTER, DESCRIBE_TOPIC = Need(DESCRIBE, CLUSTER), Need(DESCRIBE, TOPIC)
DESCRIBE_GROUP, DESCRIBE_TRANSACTIONAL_ID = Need(DESCRIBE, GROUP), Need(DESCRIBE, TRANSACTIONAL_ID)
DESCRIBE_CONFIGS_CLUSTER, DESCRIBE_CONFIGS_TOPIC = Need(DESCRIBE_CONFIGS, CLUSTER), Need(DESCRIBE_CONFIGS, TOPIC)
DESCRIBE_CONFIGS_GROUP, IDEMPOTENT_WRITE_CLUSTER = Need(DESCRIBE_CONFIGS, GROUP), Need(IDEMPOTENT_WRITE, CLUSTER)
READ_GROUP, READ_TOPIC = Need(READ, GROUP), Need(READ, TOPIC)
WRITE_TOPIC, WRITE_TRANSACTIONAL_ID = Need(WRITE, TOPIC), Need(WRITE, TRANSACTIONAL_ID)


class Login(Protocol):
    """A connection, as far as an authorizer knows it."""

    @property
    def principal(self) -> str:
        """``User:name``."""

    @property
    def peer_host(self) -> str:
        """The address of the client."""


class AskingClient(Protocol):
    """What an authorizer knows of a client and its request."""

    @property
    def connection(self) -> Login:
        """How the request came."""

    @property
    def api_key(self) -> int:
        """The API that is asked."""


class DecisionLog(Protocol):
    """Keeps what was decided."""

    @property
    def keeps_allowed(self) -> bool:
        """Whether it gets what is allowed, too."""

    def note(
        self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str, *, allowed: bool
    ) -> bool:
        """One decision; False: it must be kept and cannot be, so nothing is allowed."""


class Access:
    """Asks the authorizer; without one everything is allowed.

    ``decisions`` keeps what was decided, but for questions that only filter what an answer shows (``logged=False``).
    """

    __slots__ = ("_quiet", "authorizer", "decisions", "granted")

    def __init__(self, authorizer: AclRules | None = None, decisions: DecisionLog | None = None) -> None:
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
        self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str, logged: bool = True
    ) -> bool:
        """Whether the client may do the operation on that resource."""
        authorizer = self.authorizer
        if authorizer is None:
            return True
        login = client.connection
        if self.granted.get((login.principal, login.peer_host, operation, resource, name)):
            return True  # as decided before, and not kept in the log
        allowed = authorizer.allows(login.principal, host_as_acls_have_it(login.peer_host), operation, resource, name)
        if allowed and self._quiet:
            return True
        if logged and self.decisions is not None:
            allowed = self.decisions.note(client, operation, resource, name, allowed=allowed) and allowed
        return allowed

    @property
    def tells_brokers(self) -> bool:
        """Whether ClusterAction tells brokers from clients: without it, a client may claim to be one."""
        return self.authorizer is not None

    def allows_any(self, client: AskingClient, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether the client may do the operation on some resource of that type."""
        authorizer, login = self.authorizer, client.connection
        return authorizer is None or authorizer.allows_any(
            login.principal, host_as_acls_have_it(login.peer_host), operation, resource
        )

    def denied(
        self,
        client: AskingClient,
        operation: AclOperation,
        resource: ResourceType,
        names: Iterable[str],
        logged: bool = True,
    ) -> frozenset[str]:
        """Those names on which the client may not do the operation; each is asked for once."""
        if self.authorizer is None:
            return _NONE_DENIED
        return frozenset(name for name in set(names) if not self.allows(client, operation, resource, name, logged))

    def operations(self, client: AskingClient, resource: ResourceType, name: str) -> tuple[AclOperation, ...]:
        """All that the client may do on that resource."""
        return OPERATIONS_OF[resource] if self.authorizer is None else self._allowed_of(client, resource, name)

    def _allowed_of(self, client: AskingClient, resource: ResourceType, name: str) -> tuple[AclOperation, ...]:
        every = OPERATIONS_OF[resource]
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
        self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str, logged: bool = True
    ) -> bool:
        """Whether the client may do the operation: all but ClusterAction, unless it is a broker."""
        if operation is not CLUSTER_ACTION or client.connection.principal in self._brokers:
            return True
        if logged and self.decisions is not None:
            self.decisions.note(client, operation, resource, name, allowed=False)
        return False

    def operations(self, client: AskingClient, resource: ResourceType, name: str) -> tuple[AclOperation, ...]:
        """All that the client may do on that resource."""
        return self._allowed_of(client, resource, name)


def bits(operations: tuple[AclOperation, ...]) -> set[int]:
    """The operations as the message library takes a bit field."""
    return {int(operation) for operation in operations}


def mask(operations: tuple[AclOperation, ...]) -> int:
    """The operations as a number, for fields the library keeps as int32."""
    return sum(1 << operation for operation in operations)
