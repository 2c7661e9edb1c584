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

from fleetlog.brokers.security.acl_rules import Question
from fleetlog.brokers.security.acls import OPERATIONS_OF, AclOperation, ResourceType
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode


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

AUTHORIZATION_ERRORS = {
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
    api_keys.PRODUCE: _needs((WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC)),  # the id only for transactional batches
    api_keys.FETCH: _needs((READ, TOPIC), (CLUSTER_ACTION, CLUSTER)),  # consumers, replicas
    api_keys.LIST_OFFSETS: _needs((DESCRIBE, TOPIC)),
    api_keys.METADATA: _needs(
        (DESCRIBE, TOPIC), (CREATE, CLUSTER), (CREATE, TOPIC), (DESCRIBE, CLUSTER)
    ),  # one of both to create
    api_keys.CONTROLLED_SHUTDOWN: _needs((CLUSTER_ACTION, CLUSTER)),
    api_keys.OFFSET_COMMIT: _needs((READ, GROUP), (READ, TOPIC)),
    api_keys.OFFSET_FETCH: _needs((DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
    api_keys.FIND_COORDINATOR: _needs((DESCRIBE, GROUP), (DESCRIBE, TRANSACTIONAL_ID)),  # by the type of the key
    api_keys.JOIN_GROUP: _ON_GROUP,
    api_keys.HEARTBEAT: _ON_GROUP,
    api_keys.LEAVE_GROUP: _ON_GROUP,
    api_keys.SYNC_GROUP: _ON_GROUP,
    api_keys.DESCRIBE_GROUPS: _needs((DESCRIBE, GROUP)),
    api_keys.LIST_GROUPS: _needs((DESCRIBE, CLUSTER), (DESCRIBE, GROUP)),  # all groups, or those that may be described
    api_keys.SASL_HANDSHAKE: (),
    api_keys.API_VERSIONS: (),
    api_keys.CREATE_TOPICS: _needs(  # one of the first three (brokers create internal topics); configs of the answer
        (CREATE, CLUSTER), (CREATE, TOPIC), (CLUSTER_ACTION, CLUSTER), (DESCRIBE_CONFIGS, TOPIC)
    ),
    api_keys.DELETE_TOPICS: _needs((DELETE, TOPIC), (DESCRIBE, TOPIC)),  # DESCRIBE to see the name of an id
    api_keys.DELETE_RECORDS: _needs((DELETE, TOPIC)),
    api_keys.INIT_PRODUCER_ID: _needs(
        (WRITE, TRANSACTIONAL_ID), (IDEMPOTENT_WRITE, CLUSTER), (WRITE, TOPIC)
    ),  # without an id: one of both
    api_keys.OFFSET_FOR_LEADER_EPOCH: _needs((CLUSTER_ACTION, CLUSTER), (DESCRIBE, TOPIC)),  # one of both
    api_keys.ADD_PARTITIONS_TO_TXN: _needs(
        (WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC), (CLUSTER_ACTION, CLUSTER)
    ),  # from version 4 on the last one
    api_keys.ADD_OFFSETS_TO_TXN: _needs((WRITE, TRANSACTIONAL_ID), (READ, GROUP)),
    api_keys.END_TXN: _ON_TRANSACTION,
    api_keys.WRITE_TXN_MARKERS: _needs((ALTER, CLUSTER), (CLUSTER_ACTION, CLUSTER)),  # one of both
    api_keys.TXN_OFFSET_COMMIT: _needs((WRITE, TRANSACTIONAL_ID), (READ, GROUP), (READ, TOPIC)),
    api_keys.DESCRIBE_ACLS: _needs((DESCRIBE, CLUSTER)),
    api_keys.CREATE_ACLS: _needs((ALTER, CLUSTER)),
    api_keys.DELETE_ACLS: _needs((ALTER, CLUSTER)),
    api_keys.DESCRIBE_CONFIGS: _needs(
        (DESCRIBE_CONFIGS, TOPIC), (DESCRIBE_CONFIGS, GROUP), (DESCRIBE_CONFIGS, CLUSTER)
    ),
    api_keys.ALTER_CONFIGS: _ON_CONFIGS,
    api_keys.ALTER_REPLICA_LOG_DIRS: _needs((ALTER, CLUSTER)),
    api_keys.DESCRIBE_LOG_DIRS: _needs(
        (DESCRIBE, CLUSTER), (CLUSTER_ACTION, CLUSTER)
    ),  # one of both: brokers look for room
    api_keys.SASL_AUTHENTICATE: (),
    api_keys.CREATE_PARTITIONS: _needs((ALTER, TOPIC)),
    api_keys.CREATE_DELEGATION_TOKEN: (),
    api_keys.RENEW_DELEGATION_TOKEN: (),
    api_keys.EXPIRE_DELEGATION_TOKEN: (),
    api_keys.DESCRIBE_DELEGATION_TOKEN: (),
    api_keys.DELETE_GROUPS: _needs((DELETE, GROUP)),
    api_keys.ELECT_LEADERS: _needs((ALTER, CLUSTER)),
    api_keys.INCREMENTAL_ALTER_CONFIGS: _ON_CONFIGS,
    api_keys.ALTER_PARTITION_REASSIGNMENTS: _needs((ALTER, CLUSTER)),
    api_keys.LIST_PARTITION_REASSIGNMENTS: _needs((DESCRIBE, CLUSTER)),
    api_keys.OFFSET_DELETE: _needs((DELETE, GROUP), (READ, TOPIC)),
    api_keys.DESCRIBE_CLIENT_QUOTAS: _needs((DESCRIBE_CONFIGS, CLUSTER)),
    api_keys.ALTER_CLIENT_QUOTAS: _needs((ALTER_CONFIGS, CLUSTER)),
    api_keys.DESCRIBE_USER_SCRAM_CREDENTIALS: _needs((DESCRIBE, CLUSTER)),
    api_keys.ALTER_USER_SCRAM_CREDENTIALS: _needs((ALTER, CLUSTER)),
    api_keys.UPDATE_FEATURES: _needs((ALTER, CLUSTER)),
    api_keys.DESCRIBE_CLUSTER: _needs((DESCRIBE, CLUSTER)),  # for the operations of the answer
    api_keys.DESCRIBE_PRODUCERS: _needs((READ, TOPIC)),
    api_keys.DESCRIBE_TRANSACTIONS: _needs((DESCRIBE, TRANSACTIONAL_ID), (DESCRIBE, TOPIC)),
    api_keys.LIST_TRANSACTIONS: _needs((DESCRIBE, TRANSACTIONAL_ID)),
    api_keys.CONSUMER_GROUP_HEARTBEAT: _ON_MEMBER_OF_NEW_GROUP,
    api_keys.LIST_CONFIG_RESOURCES: _needs((DESCRIBE_CONFIGS, CLUSTER)),
    api_keys.DESCRIBE_TOPIC_PARTITIONS: _needs((DESCRIBE, TOPIC)),
    api_keys.SHARE_GROUP_HEARTBEAT: _ON_MEMBER_OF_NEW_GROUP,
    api_keys.REPLICA_ENDS: _needs((CLUSTER_ACTION, CLUSTER)),
    api_keys.BEGIN_BATCH: _ON_TRANSACTION,  # a sink's name is a transactional id
    api_keys.ENLIST_PRODUCER: _ON_TRANSACTION,
    api_keys.COMMIT_BATCH: _ON_TRANSACTION,
    api_keys.HEARTBEAT_BATCH: _ON_TRANSACTION,
    api_keys.ABORT_BATCH: _ON_TRANSACTION,
    api_keys.DESCRIBE_SINKS: _needs((DESCRIBE, TRANSACTIONAL_ID), (DESCRIBE, TOPIC)),
    api_keys.RESET_SINK: _needs(
        (WRITE, TRANSACTIONAL_ID), (ALTER, CLUSTER)
    ),  # rows may be written twice: an operator's decision
    api_keys.COMPACT_TOPICS: _needs((ALTER, TOPIC)),
    api_keys.DESCRIBE_COMPACTION: _needs((DESCRIBE, TOPIC)),
    api_keys.LOG_POSITIONS: _needs((CLUSTER_ACTION, CLUSTER)),
    api_keys.DESCRIBE_LAG: _needs((DESCRIBE, GROUP)),  # topics that may not be described are left out
    api_keys.DESCRIBE_HEALTH: _needs((DESCRIBE, CLUSTER)),
    api_keys.DESCRIBE_CONNECTIONS: _needs((DESCRIBE, CLUSTER)),
    api_keys.DESCRIBE_ELECTIONS: _needs((DESCRIBE, CLUSTER)),
    api_keys.ACCEPTED_POSITIONS: _needs((CLUSTER_ACTION, CLUSTER)),
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


class AskingClient(Protocol):
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

    def allows(self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Whether the client may do the operation on that resource."""
        ...

    def allows_any(self, client: AskingClient, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether there can be a resource of that type on which the client may do the operation."""
        ...


class DecisionLog(Protocol):
    """Keeps what was decided."""

    @property
    def keeps_allowed(self) -> bool:
        """Whether it gets what is allowed, too."""
        ...

    def note(
        self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str, *, allowed: bool
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
        self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str, logged: bool = True
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

    def allows_any(self, client: AskingClient, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether the client may do the operation on some resource of that type."""
        authorizer = self.authorizer
        return authorizer is None or authorizer.allows_any(client, operation, resource)

    def refusal(self, client: AskingClient, operation: AclOperation, resource: ResourceType, name: str) -> ErrorCode:
        """NONE, or the authorization error of that type of resource."""
        return _NONE if self.allows(client, operation, resource, name) else AUTHORIZATION_ERRORS[resource]

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
        every = OPERATIONS_OF[resource]
        return tuple(one for one in every if self.allows(client, one, resource, name, logged=False))


def bits(operations: tuple[AclOperation, ...]) -> set[int]:
    """The operations as the message library takes a bit field."""
    return {int(operation) for operation in operations}


def mask(operations: tuple[AclOperation, ...]) -> int:
    """The operations as a number, for fields the library keeps as int32."""
    return sum(1 << operation for operation in operations)
