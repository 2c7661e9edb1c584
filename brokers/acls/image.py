"""Kafka's access control lists as values: resources, entries, filters, and the image of all ACLs that decides.

The rules for one question (principal, host, operation, resource name):

1. The ACLs that apply are those of the literal name, of the literal ``*`` and of every prefix of the name.
2. A Deny whose operation is the one asked, or All, refuses. Nothing else is implied on the side of Deny.
3. An Allow grants its operation; All grants every one; Read, Write, Delete and Alter grant Describe, too, and
   AlterConfigs grants DescribeConfigs.
4. What no entry grants is refused. Where no ACL at all applies, the caller's default decides.

Source: Kafka's AclOperation, ResourceType, PatternType and the ACL chapters of its documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from fleetlog.brokers.acls.hosts import BadRange, address_of, network_of, range_of
from fleetlog.brokers.logins.principals import BadPrincipal, granted_principal, parse_principal


class ResourceType(IntEnum):
    """What an ACL is about, numbered as on the wire."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL names resources, numbered as on the wire; ANY and MATCH stand in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Operations, numbered as on the wire; ANY stands in filters only."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """What an ACL does, numbered as on the wire; ANY stands in filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


WILDCARD: Final = "*"
"""As a literal resource name: every resource of the type. As a host: every host."""
EVERYBODY: Final = "User:*"
"""As the principal of an entry: every principal."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type Cluster."""

RESOURCE_TYPES: Final = tuple(kind for kind in ResourceType if kind > ResourceType.ANY)
OPERATIONS: Final = tuple(operation for operation in AclOperation if operation > AclOperation.ANY)

IMPLIED_BY: Final[Mapping[AclOperation, frozenset[AclOperation]]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS}),
}
"""Which operations an Allow may name, besides All, to grant one of these; all others are granted by themselves."""


class AccessControlEntry(NamedTuple):
    """What a principal may or may not do from a host: ``*``, the text of one address, or a range (10.0.0.0/8)."""

    principal: str
    host: str
    operation: AclOperation
    permission: Permission


class ResourcePattern(NamedTuple):
    """Resources of a type: the one with the name, all (``*``), or those whose names start with it."""

    type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def covers(self, name: str) -> bool:
        """Whether a resource of the type with that name is meant."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in {name, WILDCARD}


class AclBinding(NamedTuple):
    """One ACL."""

    pattern: ResourcePattern
    entry: AccessControlEntry


class InvalidAcl(ValueError):
    """An ACL or a filter that cannot be stored or asked for; the text is meant for the client."""


def check_binding(binding: AclBinding) -> None:
    """Raises InvalidAcl for what CreateAcls refuses: unknown codes, those of filters, and names that cannot be."""
    kind, name, pattern_type = binding.pattern
    if kind not in RESOURCE_TYPES:
        raise InvalidAcl(f"The resource type {kind.name} cannot be given in an ACL.")
    if pattern_type not in {PatternType.LITERAL, PatternType.PREFIXED}:
        raise InvalidAcl(f"The pattern type {pattern_type.name} cannot be given in an ACL.")
    if not name:
        raise InvalidAcl("The resource name is empty.")
    if kind is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise InvalidAcl(f"The only valid name for a resource of type CLUSTER is {CLUSTER_NAME}.")
    check_entry(binding.entry)
    try:
        granted_principal(binding.entry.principal)
    except BadPrincipal as problem:
        raise InvalidAcl(str(problem)) from None


def check_entry(entry: AccessControlEntry) -> None:
    """Raises InvalidAcl for an entry with an unknown code or one of filters, no host or a bad one, a bad principal."""
    if entry.operation not in OPERATIONS:
        raise InvalidAcl(f"The operation {entry.operation.name} cannot be given in an ACL.")
    if entry.permission not in {Permission.ALLOW, Permission.DENY}:
        raise InvalidAcl(f"The permission type {entry.permission.name} cannot be given in an ACL.")
    if not entry.host:
        raise InvalidAcl("The host is empty.")
    try:
        range_of(entry.host)
        parse_principal(entry.principal)
    except (BadRange, BadPrincipal) as problem:
        raise InvalidAcl(str(problem)) from None


# ---------------------------------------------------------------- filters


class AclFilter(NamedTuple):
    """What DescribeAcls and DeleteAcls ask for; None and ANY match everything.

    With MATCH the name is that of a resource, and the patterns that cover it are meant.
    """

    type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: Permission = Permission.ANY

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        """Whether ACLs of that pattern are asked for."""
        if self.type is not ResourceType.ANY and self.type is not pattern.type:
            return False
        if self.pattern_type is PatternType.MATCH:
            return self.name is None or pattern.covers(self.name)
        if self.pattern_type is not PatternType.ANY and self.pattern_type is not pattern.pattern_type:
            return False
        return self.name is None or self.name == pattern.name

    def matches_entry(self, entry: AccessControlEntry) -> bool:
        """Whether that entry is asked for; operations are compared as they are, without implied ones."""
        return (
            (self.principal is None or self.principal == entry.principal)
            and (self.host is None or self.host == entry.host)
            and (self.operation is AclOperation.ANY or self.operation is entry.operation)
            and (self.permission is Permission.ANY or self.permission is entry.permission)
        )


def check_filter(asked: AclFilter) -> None:
    """Raises InvalidAcl where the filter contains an unknown code."""
    codes = (asked.type, asked.pattern_type, asked.operation, asked.permission)
    if any(code == 0 for code in codes):
        raise InvalidAcl("The filter contains elements with unknown values.")


# ---------------------------------------------------------------- the image


Entries = frozenset[AccessControlEntry]


class Verdict(Enum):
    """What the ACLs say: ``NO_ACL`` where none applies to the resource."""

    ALLOWED = "allowed"
    DENIED = "denied"
    NO_ACL = "no acl"


_Operations = set[AclOperation]


class _Hosts:
    """One principal's operations by host. However many ranges there are, an address is looked up once for each length
    of them."""

    __slots__ = ("_hosts", "_ranges")

    def __init__(self) -> None:
        self._hosts: dict[str, _Operations] = {}
        self._ranges: dict[tuple[int, int], dict[int, _Operations]] = {}

    def add(self, host: str, operation: AclOperation) -> None:
        """A range that cannot be read, which another program may have written, has no address."""
        self._hosts.setdefault(host, set()).add(operation)
        try:
            addresses = range_of(host)
        except BadRange:
            return
        if addresses is not None:
            same_length = self._ranges.setdefault((addresses.version, addresses.bits), {})
            same_length.setdefault(addresses.first, set()).add(operation)

    def has_one_of(self, operations: frozenset[AclOperation], host: str) -> bool:
        """Whether one of the operations is among those of the client's address."""
        for name in (WILDCARD, host):
            allowed = self._hosts.get(name)
            if allowed is not None and not operations.isdisjoint(allowed):
                return True
        address = address_of(host) if self._ranges else None
        if address is None:
            return False
        version, number = address
        return any(
            not operations.isdisjoint(same_length.get(network_of(number, version, bits), ()))
            for (of_version, bits), same_length in self._ranges.items()
            if of_version == version
        )


class _Rules(NamedTuple):
    """One pattern's entries by principal."""

    deny: dict[str, _Hosts]
    allow: dict[str, _Hosts]


def _rules_of(entries: Entries) -> _Rules:
    rules = _Rules({}, {})
    for entry in entries:
        side = rules.deny if entry.permission is Permission.DENY else rules.allow
        side.setdefault(entry.principal, _Hosts()).add(entry.host, entry.operation)
    return rules


def _one_applies(rules: Mapping[str, _Hosts], principal: str, host: str, operations: frozenset[AclOperation]) -> bool:
    for name in (principal, EVERYBODY):
        rule = rules.get(name)
        if rule is not None and rule.has_one_of(operations, host):
            return True
    return False


_EXACTLY: Final = {operation: frozenset({operation, AclOperation.ALL}) for operation in AclOperation}
_GRANTING: Final = {
    operation: IMPLIED_BY.get(operation, frozenset({operation})) | {AclOperation.ALL} for operation in AclOperation
}


class _Index(NamedTuple):
    """The patterns of one resource type: a question looks up the name, ``*``, and one prefix for each length."""

    literals: Mapping[str, _Rules]
    prefixes: Mapping[str, _Rules]
    lengths: tuple[int, ...]

    def covering(self, name: str) -> list[_Rules]:
        covering = []
        for literal in (name, WILDCARD) if name != WILDCARD else (WILDCARD,):
            rules = self.literals.get(literal)
            if rules is not None:
                covering.append(rules)
        for length in self.lengths:
            if length > len(name):
                break
            rules = self.prefixes.get(name[:length])
            if rules is not None:
                covering.append(rules)
        return covering


_EMPTY_INDEX: Final = _Index({}, {}, ())


def _indexes_after(
    indexes: Mapping[ResourceType, _Index], changes: Mapping[ResourcePattern, Entries]
) -> dict[ResourceType, _Index]:
    """The indexes once these patterns have these entries; those of other patterns are shared."""
    after = dict(indexes)
    for kind in {pattern.type for pattern in changes}:
        before = indexes.get(kind, _EMPTY_INDEX)
        literals, prefixes = dict(before.literals), dict(before.prefixes)
        for pattern, entries in changes.items():
            if pattern.type is kind:
                side = prefixes if pattern.pattern_type is PatternType.PREFIXED else literals
                if entries:
                    side[pattern.name] = _rules_of(entries)
                else:
                    side.pop(pattern.name, None)
        after[kind] = _Index(literals, prefixes, tuple(sorted({len(prefix) for prefix in prefixes})))
    return after


class AclImage:
    """All ACLs at one moment. Immutable; :meth:`updated` gives the next one, with the next version."""

    __slots__ = ("_indexes", "entries", "version")

    def __init__(self, entries: Mapping[ResourcePattern, Entries] | None = None, version: int = 0) -> None:
        self.entries: Mapping[ResourcePattern, Entries] = {p: rules for p, rules in (entries or {}).items() if rules}
        self.version = version
        self._indexes = _indexes_after({}, self.entries)

    def updated(self, changes: Mapping[ResourcePattern, Entries]) -> AclImage:
        """The image in which these patterns have these entries and no others; a pattern without entries goes."""
        image = AclImage.__new__(AclImage)
        entries = {**self.entries, **changes}
        for pattern, present in changes.items():
            if not present:
                del entries[pattern]
        image.entries = entries
        image.version = self.version + 1
        image._indexes = _indexes_after(self._indexes, changes)
        return image

    def decide(self, principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str) -> Verdict:
        """The verdict for one operation on the resource with that name."""
        covering = self._indexes.get(kind, _EMPTY_INDEX).covering(name)
        if not covering:
            return Verdict.NO_ACL
        asked = _EXACTLY[operation]
        for rules in covering:
            if rules.deny and _one_applies(rules.deny, principal, host, asked):
                return Verdict.DENIED
        granting = _GRANTING[operation]
        for rules in covering:
            if rules.allow and _one_applies(rules.allow, principal, host, granting):
                return Verdict.ALLOWED
        return Verdict.DENIED

    def decide_any(self, principal: str, host: str, operation: AclOperation, kind: ResourceType) -> Verdict:
        """Whether the operation is granted on any resource of the type at all (KIP-679).

        A Deny on ``*`` refuses (``DENIED``). An Allow counts unless it is on a literal that is denied, too, or a
        denied prefix covers its whole pattern. Implied operations don't count. Where no Allow counts: ``NO_ACL``,
        unless ``*`` has ACLs, so that there is no resource without any.
        """
        index = self._indexes.get(kind, _EMPTY_INDEX)
        asked = _EXACTLY[operation]

        def denied(rules: _Rules | None) -> bool:
            return rules is not None and _one_applies(rules.deny, principal, host, asked)

        def covered(name: str) -> bool:
            prefixes = (name[:length] for length in index.lengths if length <= len(name))
            return any(denied(index.prefixes.get(prefix)) for prefix in prefixes)

        if denied(index.literals.get(WILDCARD)):
            return Verdict.DENIED
        for name, rules in index.literals.items():
            if _one_applies(rules.allow, principal, host, asked) and (
                name == WILDCARD or not (denied(rules) or covered(name))
            ):
                return Verdict.ALLOWED
        for name, rules in index.prefixes.items():
            if _one_applies(rules.allow, principal, host, asked) and not covered(name):
                return Verdict.ALLOWED
        return Verdict.DENIED if WILDCARD in index.literals else Verdict.NO_ACL


# ---------------------------------------------------------------- what the ACL requests write


def entries_with(entries: Entries, created: Iterable[AccessControlEntry]) -> Entries:
    """A pattern's entries after CreateAcls: what was there stays."""
    return entries | frozenset(created)


def entries_without(pattern: ResourcePattern, entries: Entries, filters: Iterable[AclFilter]) -> Entries:
    """A pattern's entries after DeleteAcls: those that no filter matches."""
    meant = [asked for asked in filters if asked.matches_pattern(pattern)]
    return frozenset(entry for entry in entries if not any(asked.matches_entry(entry) for asked in meant))
