"""Where ACLs stand in ZooKeeper, and how: Kafka 3.9's tree, so that its tools and a take-over of its directory work.

===================== ========================================== =================================================
what                  path                                       content
===================== ========================================== =================================================
literal               ``/kafka-acl/<Type>/<name>``               ``{"version":1,"acls":[...]}``
prefixed              ``/kafka-acl-extended/prefixed/<Type>/..`` the same
changes of a literal  ``/kafka-acl-changes/acl_changes_<n>``     ``TOPIC:<name>``
changes of a prefix   ``/kafka-acl-extended-changes/acl_...``    ``{"version":1,"resourceType":...}``
any, by a name that    ``/fleetlog/acls/<shape>/<Type>/<quoted>`` the same; the name is URL-encoded
no znode can have
changes of these       ``/kafka-acl-extended-changes/acl_...``    ``{...,"patternType":"ESCAPED_..."}``
===================== ========================================== =================================================

Kafka has names with a slash, ``.`` or control characters in KRaft only. Versions of fleetlog that do not know the last
two rows take such a change for an unreadable one, and read all other ACLs again.

What cannot be read raises: an entry that were left out could be a Deny.
"""

from __future__ import annotations

from typing import Any, Final

from fleetlog.brokers.acls.image import (
    EVERYBODY,
    OPERATIONS,
    RESOURCE_TYPES,
    WILDCARD,
    AccessControlEntry,
    AclOperation,
    Entries,
    InvalidAcl,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    check_entry,
)
from fleetlog.brokers.metadata.znodes import BadZnode, desanitised, dump_document, load_document, sanitised
from fleetlog.coordination.tree import may_be_named

LITERAL_ACLS: Final = "/kafka-acl"
PREFIXED_ACLS: Final = "/kafka-acl-extended/prefixed"
LITERAL_CHANGES: Final = "/kafka-acl-changes"
EXTENDED_CHANGES: Final = "/kafka-acl-extended-changes"
_ESCAPED_ACLS: Final = "/fleetlog/acls"
_ESCAPED: Final = "ESCAPED_"
ACL_ROOTS: Final = (
    (LITERAL_ACLS, PatternType.LITERAL),
    (PREFIXED_ACLS, PatternType.PREFIXED),
    (f"{_ESCAPED_ACLS}/literal", PatternType.LITERAL),
    (f"{_ESCAPED_ACLS}/prefixed", PatternType.PREFIXED),
)
"""Where patterns stand, below the names of their types."""
CHANGE_NAME: Final = "acl_changes_"


def _pascal(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


TYPE_NAMES: Final = {kind: _pascal(kind.name) for kind in RESOURCE_TYPES}
"""A resource type as paths spell it, e.g. ``TransactionalId``."""
OPERATION_NAMES: Final = {operation: _pascal(operation.name) for operation in OPERATIONS}
"""An operation as the entries spell it, e.g. ``DescribeConfigs``."""
PERMISSION_NAMES: Final = {Permission.ALLOW: "Allow", Permission.DENY: "Deny"}

_TYPES: Final = {name.lower(): kind for kind, name in TYPE_NAMES.items()} | {k.name.lower(): k for k in RESOURCE_TYPES}
_OPERATIONS: Final = {name: operation for operation, name in OPERATION_NAMES.items()}
_PERMISSIONS: Final = {name: permission for permission, name in PERMISSION_NAMES.items()}

ACL_PARENTS: Final = (
    *(f"{root}/{name}" for root, _ in ACL_ROOTS for name in TYPE_NAMES.values()),
    LITERAL_CHANGES,
    EXTENDED_CHANGES,
)
"""Parents that exist once an authorizer has been on."""


def acl_path(pattern: ResourcePattern) -> str:
    """The znode with the entries of a pattern."""
    if may_be_named(pattern.name):
        root = PREFIXED_ACLS if pattern.pattern_type is PatternType.PREFIXED else LITERAL_ACLS
        return f"{root}/{TYPE_NAMES[pattern.type]}/{pattern.name}"
    quoted = sanitised(pattern.name) if pattern.name.strip(".") else pattern.name.replace(".", "%2E")
    return f"{_ESCAPED_ACLS}/{pattern.pattern_type.name.lower()}/{TYPE_NAMES[pattern.type]}/{quoted}"


def pattern_at(root: str, kind: ResourceType, shape: PatternType, child: str) -> ResourcePattern | None:
    """The pattern of a znode below one of ``ACL_ROOTS``; None for a name that :func:`acl_path` gives to none."""
    if not root.startswith(_ESCAPED_ACLS):
        return ResourcePattern(kind, child, shape)
    try:
        pattern = ResourcePattern(kind, desanitised(child), shape)
    except ValueError:
        return None
    return pattern if acl_path(pattern) == f"{root}/{TYPE_NAMES[kind]}/{child}" else None


def encode_entries(entries: Entries) -> bytes:
    """JSON version 1, sorted so that equal entries are equal bytes."""
    return dump_document(
        {
            "version": 1,
            "acls": [
                {
                    "principal": entry.principal,
                    "permissionType": PERMISSION_NAMES[entry.permission],
                    "operation": OPERATION_NAMES[entry.operation],
                    "host": entry.host,
                }
                for entry in sorted(entries)
            ],
        }
    )


def decode_entries(path: str, data: bytes) -> Entries:
    """The entries in the znode at that path; raises BadZnode where one of them cannot be read."""
    document = load_document(path, data)
    if document.get("version") != 1:
        raise BadZnode(path, f"ACLs of version {document.get('version')!r}, expected 1")
    try:
        entries = frozenset(_entry_from(part) for part in document["acls"])
        for entry in entries:
            check_entry(entry)
    except (KeyError, TypeError, AttributeError, InvalidAcl) as problem:
        raise BadZnode(path, f"not ACLs of version 1 ({problem!r})") from problem
    return entries


DENIED_TO_ALL: Final = frozenset({AccessControlEntry(EVERYBODY, WILDCARD, AclOperation.ALL, Permission.DENY)})
"""What decides, and is never written, where entries cannot be read: super users can repair them."""


def _entry_from(part: dict[str, Any]) -> AccessControlEntry:
    # Kafka's own reader compares the permission without regard to case.
    permission = _PERMISSIONS[part["permissionType"].capitalize()]
    return AccessControlEntry(
        principal=_text(part["principal"]),
        host=_text(part["host"]),
        operation=_OPERATIONS[part["operation"]],
        permission=permission,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is expected, not {type(value).__name__}")
    return value


# ---------------------------------------------------------------- change nodes


def change_node(pattern: ResourcePattern) -> tuple[str, bytes]:
    """The path (to be completed by ZooKeeper's sequence number) and content that tell of a changed pattern."""
    escaped = "" if may_be_named(pattern.name) else _ESCAPED
    if pattern.pattern_type is PatternType.LITERAL and not escaped:
        return f"{LITERAL_CHANGES}/{CHANGE_NAME}", f"{pattern.type.name}:{pattern.name}".encode()
    document = {
        "version": 1,
        "resourceType": pattern.type.name,
        "name": pattern.name,
        "patternType": escaped + pattern.pattern_type.name,
    }
    return f"{EXTENDED_CHANGES}/{CHANGE_NAME}", dump_document(document)


def changed_pattern(path: str, data: bytes) -> ResourcePattern:
    """Which pattern a change node tells of; raises BadZnode."""
    if path.startswith(f"{LITERAL_CHANGES}/"):
        try:
            kind, colon, literal = data.decode().partition(":")
        except UnicodeDecodeError:
            raise BadZnode(path, "not UTF-8") from None
        if not colon or not literal:
            raise BadZnode(path, "not a type and a name")
        return ResourcePattern(_type_named(path, kind), literal, PatternType.LITERAL)
    document = load_document(path, data)
    kind_name, name = document.get("resourceType"), document.get("name")
    if not isinstance(kind_name, str) or not isinstance(name, str) or not name:
        raise BadZnode(path, "not a change of ACLs")
    shape = _CHANGED_SHAPES.get(str(document.get("patternType")))
    if shape is None:
        raise BadZnode(path, "not a change of prefixed ACLs")
    return ResourcePattern(_type_named(path, kind_name), name, shape)


_CHANGED_SHAPES: Final = {
    PatternType.PREFIXED.name: PatternType.PREFIXED,
    _ESCAPED + PatternType.LITERAL.name: PatternType.LITERAL,
    _ESCAPED + PatternType.PREFIXED.name: PatternType.PREFIXED,
}


def _type_named(path: str, text: str) -> ResourceType:
    kind = _TYPES.get(text.lower())
    if kind is None:
        raise BadZnode(path, f"unknown resource type {text[:40]!r}")
    return kind
