"""ACLs in ZooKeeper: Kafka 3.9's paths and JSON, and content that cannot be read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.acls.image import (
    OPERATIONS,
    RESOURCE_TYPES,
    AccessControlEntry,
    AclImage,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from fleetlog.brokers.acls.znodes import (
    ACL_PARENTS,
    DENIED_TO_ALL,
    OPERATION_NAMES,
    TYPE_NAMES,
    acl_path,
    change_node,
    changed_pattern,
    decode_entries,
    encode_entries,
    pattern_at,
)
from fleetlog.brokers.metadata.znodes import BadZnode, desanitised, sanitised
from fleetlog.coordination.tree import may_be_named

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")


def test_the_document_is_kafkas() -> None:
    entry = AccessControlEntry("User:alice", "*", AclOperation.READ, Permission.ALLOW)
    text = b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"}]}'
    assert encode_entries(frozenset({entry})) == text
    assert decode_entries("/kafka-acl/Topic/orders", text) == {entry}


def test_names_are_kafkas() -> None:
    assert list(TYPE_NAMES.values()) == ["Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User"]
    assert OPERATION_NAMES[AclOperation.IDEMPOTENT_WRITE] == "IdempotentWrite"
    assert OPERATION_NAMES[AclOperation.TWO_PHASE_COMMIT] == "TwoPhaseCommit"
    assert "/kafka-acl-extended/prefixed/TransactionalId" in ACL_PARENTS


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (ORDERS, "/kafka-acl/Topic/orders"),
        (ResourcePattern(ResourceType.TOPIC, "*"), "/kafka-acl/Topic/*"),
        (ResourcePattern(ResourceType.GROUP, "a b", PREFIXED), "/kafka-acl-extended/prefixed/Group/a b"),
        (ResourcePattern(ResourceType.CLUSTER, "kafka-cluster"), "/kafka-acl/Cluster/kafka-cluster"),
        (ResourcePattern(ResourceType.GROUP, "team%2Fapp"), "/kafka-acl/Group/team%2Fapp"),
        (ResourcePattern(ResourceType.GROUP, "team/app"), "/fleetlog/acls/literal/Group/team%2Fapp"),
        (ResourcePattern(ResourceType.TOPIC, ".", PREFIXED), "/fleetlog/acls/prefixed/Topic/%2E"),
        (ResourcePattern(ResourceType.TOPIC, ".."), "/fleetlog/acls/literal/Topic/%2E%2E"),
        (ResourcePattern(ResourceType.TOPIC, "..."), "/kafka-acl/Topic/..."),
        (ResourcePattern(ResourceType.TRANSACTIONAL_ID, "a\0\U0001f600*"),
         "/fleetlog/acls/literal/TransactionalId/a%00%F0%9F%98%80%2A"),
    ],
)  # fmt: skip
def test_each_pattern_has_a_path(pattern: ResourcePattern, path: str) -> None:
    assert acl_path(pattern) == path
    *root, kind, child = path.split("/")
    assert kind == TYPE_NAMES[pattern.type]
    assert pattern_at("/".join(root), pattern.type, pattern.pattern_type, child) == pattern


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.sampled_from([LITERAL, PREFIXED]))
def test_any_name_has_a_znode_and_comes_back(name: str, shape: PatternType) -> None:
    """Also what tells of its change: by an older version that is unreadable where it would ask for a path in vain."""
    pattern = ResourcePattern(ResourceType.GROUP, name, shape)
    *root, kind, child = acl_path(pattern).split("/")
    assert kind == "Group"
    assert may_be_named(child)
    assert pattern_at("/".join(root), pattern.type, shape, child) == pattern
    path, data = change_node(pattern)
    assert changed_pattern(path + "1", data) == pattern
    assert (b"ESCAPED_" in data) == (not may_be_named(name))


@pytest.mark.parametrize("child", ["%ff", "a", "a%2fb", "%", "%41"])
def test_znodes_that_no_name_gets(child: str) -> None:
    """Another spelling of a name would be a second place for its entries."""
    assert pattern_at("/fleetlog/acls/literal", ResourceType.GROUP, LITERAL, child) is None


ENTRIES = st.frozensets(
    st.builds(
        AccessControlEntry,
        st.text(st.characters(codec="utf-8"), min_size=1).map(lambda name: f"User:{name}"),
        st.sampled_from(["*", "10.0.0.1", "::1"]),
        st.sampled_from(OPERATIONS),
        st.sampled_from([Permission.ALLOW, Permission.DENY]),
    ),
    max_size=8,
)


@given(ENTRIES)
def test_entries_come_back(entries: frozenset[AccessControlEntry]) -> None:
    assert decode_entries("/kafka-acl/Topic/t", encode_entries(entries)) == entries


def document(**changes: object) -> bytes:
    entry = {"principal": "User:a", "permissionType": "Deny", "operation": "Read", "host": "*"} | changes
    return json.dumps({"version": 1, "acls": [entry]}).encode()


def test_the_permission_is_read_without_regard_to_case() -> None:
    (entry,) = decode_entries("/kafka-acl/Topic/t", document(permissionType="DENY"))
    assert entry.permission is Permission.DENY


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"version":2,"acls":[]}',
        b'{"version":1,"acls":[7]}',
        b'{"version":1,"acls":{"a":1}}',
        document(operation="Fly"),
        document(operation="Any"),
        document(operation=["Read"]),
        document(permissionType="Perhaps"),
        document(principal="alice"),
        document(principal=7),
        document(host=None),
        document(host=""),
    ],
)
def test_what_cannot_be_read_is_never_left_out(data: bytes) -> None:
    with pytest.raises(BadZnode):
        decode_entries("/kafka-acl/Topic/t", data)


def test_what_cannot_be_read_is_denied_to_all_but_super_users() -> None:
    everywhere = ResourcePattern(ResourceType.TOPIC, "*")
    allowed = frozenset({AccessControlEntry("User:a", "*", AclOperation.ALL, Permission.ALLOW)})
    rules = AclRules(AclImage({ORDERS: DENIED_TO_ALL, everywhere: allowed}), {"User:root"})
    for principal, name, expected in (
        ("User:a", "orders", False),
        ("User:root", "orders", True),
        ("User:a", "other", True),
    ):
        assert rules.allows(principal, "10.0.0.1", AclOperation.READ, ResourceType.TOPIC, name) is expected


@pytest.mark.parametrize("kind", RESOURCE_TYPES)
@pytest.mark.parametrize("pattern_type", [LITERAL, PREFIXED])
def test_change_nodes_come_back(kind: ResourceType, pattern_type: PatternType) -> None:
    pattern = ResourcePattern(kind, "a:b", pattern_type)
    prefix, data = change_node(pattern)
    assert changed_pattern(f"{prefix}0000000007", data) == pattern


def test_change_nodes_are_kafkas() -> None:
    assert change_node(ORDERS) == ("/kafka-acl-changes/acl_changes_", b"TOPIC:orders")
    path, data = change_node(ORDERS._replace(pattern_type=PREFIXED))
    assert path == "/kafka-acl-extended-changes/acl_changes_"
    assert data == b'{"version":1,"resourceType":"TOPIC","name":"orders","patternType":"PREFIXED"}'
    # Kafka writes the names of its case objects in some versions, which are in Pascal case.
    assert changed_pattern("/kafka-acl-changes/acl_changes_1", b"TransactionalId:x").name == "x"


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/kafka-acl-changes/acl_changes_1", b"orders"),
        ("/kafka-acl-changes/acl_changes_1", b"TOPIC:"),
        ("/kafka-acl-changes/acl_changes_1", b"TABLE:orders"),
        ("/kafka-acl-changes/acl_changes_1", b"\xff:a"),
        ("/kafka-acl-extended-changes/acl_changes_1", b"TOPIC:orders"),
        ("/kafka-acl-extended-changes/acl_changes_1", b'{"resourceType":"TOPIC","name":"a","patternType":"MATCH"}'),
        ("/kafka-acl-extended-changes/acl_changes_1", b'{"resourceType":"TOPIC","patternType":"PREFIXED"}'),
        ("/kafka-acl-extended-changes/acl_changes_1", b'{"resourceType":["a"],"name":"a","patternType":"PREFIXED"}'),
    ],
)
def test_change_nodes_that_cannot_be_read(path: str, data: bytes) -> None:
    with pytest.raises(BadZnode):
        changed_pattern(path, data)


def test_sanitised_names() -> None:
    assert sanitised("a b*c/d~é=,") == "a%20b%2Ac%2Fd%7E%C3%A9%3D%2C"
    assert sanitised("CN=a-b_c.d") == "CN%3Da-b_c.d"


@given(st.text(st.characters(codec="utf-8")))
def test_sanitised_names_come_back(name: str) -> None:
    assert desanitised(sanitised(name)) == name
    assert not set(sanitised(name)) & set("/*+ ~")
