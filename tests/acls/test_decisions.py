"""Super users, the default, and verdicts that are remembered only as long as the ACLs stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.acls import decisions as module
from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.acls.image import (
    AccessControlEntry,
    AclImage,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

READ, WRITE = AclOperation.READ, AclOperation.WRITE
ORDERS = ResourcePattern(ResourceType.TOPIC, "orders")


def entry(principal: str = "User:alice", permission: Permission = Permission.ALLOW) -> AccessControlEntry:
    return AccessControlEntry(principal, "*", READ, permission)


def reads(rules: AclRules, principal: str = "User:alice", name: str = "orders") -> bool:
    return rules.allows(principal, "10.0.0.1", READ, ResourceType.TOPIC, name)


def test_super_users_may_do_what_is_denied() -> None:
    image = AclImage({ORDERS: frozenset({entry("User:*", Permission.DENY)})})
    rules = AclRules(image, super_users={"User:admin"})
    assert reads(rules, "User:admin")
    assert rules.allows_any("User:admin", "h", WRITE, ResourceType.TOPIC)
    assert not reads(rules, "User:Admin")


@pytest.mark.parametrize("default", [False, True])
def test_the_default_decides_only_where_no_acl_applies(default: bool) -> None:
    rules = AclRules(AclImage({ORDERS: frozenset({entry("User:bob")})}), allow_if_no_acl=default)
    assert reads(rules, name="other") is default
    assert not reads(rules)
    assert rules.allows_any("User:alice", "h", READ, ResourceType.TOPIC) is default


def test_an_acl_of_all_topics_stands_above_the_default() -> None:
    everywhere = ResourcePattern(ResourceType.TOPIC, "*")
    rules = AclRules(AclImage({everywhere: frozenset({entry(permission=Permission.DENY)})}), allow_if_no_acl=True)
    # And an ACL of all topics leaves none without ACLs, so that the default is for none.
    for principal in ("User:alice", "User:bob"):
        assert not rules.allows_any(principal, "h", READ, ResourceType.TOPIC)
        assert not reads(rules, principal)


def test_a_change_counts_at_once() -> None:
    rules = AclRules(AclImage({ORDERS: frozenset({entry()})}))
    version = rules.image.version
    assert reads(rules)
    rules.replace(rules.image.updated({ORDERS: frozenset({entry(permission=Permission.DENY), entry()})}))
    assert not reads(rules)
    assert rules.image.version > version
    rules.replace(rules.image.updated({ORDERS: frozenset({entry()})}))
    assert reads(rules)


def test_an_older_image_is_refused() -> None:
    first = AclImage({ORDERS: frozenset({entry()})})
    rules = AclRules(first)
    rules.replace(first.updated({ORDERS: frozenset()}))
    for image in (first, rules.image):
        with pytest.raises(ValueError, match="version"):
            rules.replace(image)
    assert not reads(rules)


def test_remembered_verdicts_are_bounded_and_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_MAX", 8)
    prefix = ResourcePattern(ResourceType.TOPIC, "a", PatternType.PREFIXED)
    rules = AclRules(AclImage({prefix: frozenset({entry()})}))
    for _ in range(2):
        for number in range(50):
            assert reads(rules, name=f"a{number}")
            assert not reads(rules, name=f"b{number}")
            assert len(rules.verdicts) <= 8


def test_names_longer_than_those_of_topics_are_decided_and_not_kept() -> None:
    prefix = ResourcePattern(ResourceType.TOPIC, "a", PatternType.PREFIXED)
    rules = AclRules(AclImage({prefix: frozenset({entry()})}))
    for length in (249, 250, 32_000):
        assert reads(rules, name="a" * length)
        assert not reads(rules, name="b" * length)
    assert len(rules.verdicts) == 2


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.sampled_from("ab")), max_size=12))
def test_asking_twice_gives_what_the_image_says(steps: list[tuple[str, bool, str]]) -> None:
    rules = AclRules(AclImage())
    for name, allowed, asked in steps:
        pattern = ResourcePattern(ResourceType.TOPIC, name)
        entries = frozenset({entry()}) if allowed else frozenset[AccessControlEntry]()
        rules.replace(rules.image.updated({pattern: entries}))
        fresh = reads(AclRules(AclImage(rules.image.entries)), name=asked)
        assert reads(rules, name=asked) is fresh
        assert reads(rules, name=asked) is fresh
