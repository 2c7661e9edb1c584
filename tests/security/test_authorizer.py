"""Super users, the default, and verdicts that are remembered only as long as the ACLs stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.security import authorizer as module
from brokers.security.acls import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclImage,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from brokers.security.authorizer import Authorizer

READ, WRITE = AclOperation.READ, AclOperation.WRITE
ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")


def entry(principal: str = "User:alice", permission: Permission = Permission.ALLOW) -> AccessControlEntry:
    return AccessControlEntry(principal, "*", READ, permission)


def reads(authorizer: Authorizer, principal: str = "User:alice", name: str = "orders") -> bool:
    return authorizer.allows(principal, "10.0.0.1", READ, ResourceType.TOPIC, name)


def test_super_users_may_do_what_is_denied() -> None:
    image = AclImage({ORDERS: frozenset({entry("User:*", Permission.DENY)})})
    authorizer = Authorizer(image, super_users={"User:admin"})
    assert reads(authorizer, "User:admin")
    assert authorizer.allows_any("User:admin", "h", WRITE, ResourceType.TOPIC)
    assert not reads(authorizer, "User:Admin")


@pytest.mark.parametrize("default", [False, True])
def test_the_default_decides_only_where_no_acl_applies(default: bool) -> None:
    authorizer = Authorizer(AclImage({ORDERS: frozenset({entry("User:bob")})}), allow_if_no_acl=default)
    assert reads(authorizer, name="other") is default
    assert not reads(authorizer)
    assert authorizer.allows_any("User:alice", "h", READ, ResourceType.TOPIC) is default


def test_an_acl_of_all_topics_stands_above_the_default() -> None:
    everywhere = ResourcePattern(ResourceType.TOPIC, "*")
    authorizer = Authorizer(
        AclImage({everywhere: frozenset({entry(permission=Permission.DENY)})}), allow_if_no_acl=True
    )
    # And an ACL of all topics leaves none without ACLs, so that the default is for none.
    for principal in ("User:alice", "User:bob"):
        assert not authorizer.allows_any(principal, "h", READ, ResourceType.TOPIC)
        assert not reads(authorizer, principal)


def test_a_change_counts_at_once() -> None:
    authorizer = Authorizer(AclImage({ORDERS: frozenset({entry()})}))
    version = authorizer.version
    assert reads(authorizer)
    authorizer.replace(authorizer.image.updated({ORDERS: frozenset({entry(permission=Permission.DENY), entry()})}))
    assert not reads(authorizer)
    assert authorizer.version > version
    authorizer.replace(authorizer.image.updated({ORDERS: frozenset({entry()})}))
    assert reads(authorizer)


def test_an_older_image_is_refused() -> None:
    first = AclImage({ORDERS: frozenset({entry()})})
    authorizer = Authorizer(first)
    authorizer.replace(first.updated({ORDERS: frozenset()}))
    for image in (first, authorizer.image):
        with pytest.raises(ValueError, match="version"):
            authorizer.replace(image)
    assert not reads(authorizer)


def test_remembered_verdicts_are_bounded_and_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_MAX", 8)
    prefix = ResourcePattern(ResourceType.TOPIC, "a", PatternType.PREFIXED)
    authorizer = Authorizer(AclImage({prefix: frozenset({entry()})}))
    for _ in range(2):
        for number in range(50):
            assert reads(authorizer, name=f"a{number}")
            assert not reads(authorizer, name=f"b{number}")
            assert len(authorizer.verdicts) <= 8


def test_names_longer_than_those_of_topics_are_decided_and_not_kept() -> None:
    prefix = ResourcePattern(ResourceType.TOPIC, "a", PatternType.PREFIXED)
    authorizer = Authorizer(AclImage({prefix: frozenset({entry()})}))
    for length in (249, 250, 32_000):
        assert reads(authorizer, name="a" * length)
        assert not reads(authorizer, name="b" * length)
    assert len(authorizer.verdicts) == 2


def test_allowed_operations() -> None:
    allow = {
        AccessControlEntry("User:alice", "*", one, Permission.ALLOW) for one in (WRITE, AclOperation.ALTER_CONFIGS)
    }
    authorizer = Authorizer(AclImage({ORDERS: frozenset(allow)}), {"User:admin"})
    found = authorizer.allowed_operations("User:alice", "h", ResourceType.TOPIC, "orders")
    configs = {AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS}
    assert set(found) == {WRITE, AclOperation.DESCRIBE} | configs
    assert authorizer.allowed_operations("User:alice", "h", ResourceType.CLUSTER, CLUSTER_NAME) == ()
    assert len(authorizer.allowed_operations("User:admin", "h", ResourceType.CLUSTER, CLUSTER_NAME)) == 7


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.sampled_from("ab")), max_size=12))
def test_asking_twice_gives_what_the_image_says(steps: list[tuple[str, bool, str]]) -> None:
    authorizer = Authorizer(AclImage())
    for name, allowed, asked in steps:
        pattern = ResourcePattern(ResourceType.TOPIC, name)
        entries = frozenset({entry()}) if allowed else frozenset[AccessControlEntry]()
        authorizer.replace(authorizer.image.updated({pattern: entries}))
        fresh = reads(Authorizer(AclImage(authorizer.image.entries)), name=asked)
        assert reads(authorizer, name=asked) is fresh
        assert reads(authorizer, name=asked) is fresh
