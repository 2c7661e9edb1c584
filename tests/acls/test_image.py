"""Decisions over ACLs: examples, a naive model, and sequences of creations and deletions."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog.brokers.acls import image as acls
from fleetlog.brokers.acls.access import OPERATIONS_OF
from fleetlog.brokers.acls.hosts import network_of
from fleetlog.brokers.acls.image import (
    CLUSTER_NAME,
    EVERYBODY,
    IMPLIED_BY,
    OPERATIONS,
    RESOURCE_TYPES,
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclImage,
    AclOperation,
    InvalidAcl,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    Verdict,
    check_binding,
    check_filter,
    entries_with,
    entries_without,
)
from tests.support.draw import examples

TOPIC = ResourceType.TOPIC
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
ALICE = "User:alice"


def acl(
    name: str,
    operation: AclOperation = READ,
    permission: Permission = ALLOW,
    pattern: PatternType = LITERAL,
    principal: str = ALICE,
    host: str = "*",
    kind: ResourceType = TOPIC,
) -> AclBinding:
    return AclBinding(ResourcePattern(kind, name, pattern), AccessControlEntry(principal, host, operation, permission))


def image_of(*bindings: AclBinding) -> AclImage:
    entries: dict[ResourcePattern, frozenset[AccessControlEntry]] = {}
    for pattern, entry in bindings:
        entries[pattern] = entries_with(entries.get(pattern, frozenset()), [entry])
    return AclImage(entries)


def asks(image: AclImage, name: str, operation: AclOperation = READ, host: str = "10.0.0.1") -> Verdict:
    return image.decide(ALICE, host, operation, TOPIC, name)


# ---------------------------------------------------------------- examples


def test_no_acl_for_the_resource_is_told_apart_from_a_refusal() -> None:
    image = image_of(acl("orders", principal="User:bob"))
    assert asks(image, "other") is Verdict.NO_ACL
    assert asks(image, "orders") is Verdict.DENIED
    assert image.decide(ALICE, "h", READ, ResourceType.GROUP, "orders") is Verdict.NO_ACL


def test_a_deny_wins_wherever_it_stands() -> None:
    for pattern, name in ((LITERAL, "orders"), (LITERAL, "*"), (PREFIXED, "ord"), (PREFIXED, "orders")):
        image = image_of(acl("orders"), acl(name, READ, DENY, pattern))
        assert asks(image, "orders") is Verdict.DENIED, (pattern, name)


def test_a_deny_of_everybody_counts_for_each_principal() -> None:
    assert asks(image_of(acl("orders"), acl("orders", READ, DENY, principal=EVERYBODY)), "orders") is Verdict.DENIED


def test_a_prefix_longer_than_the_name_does_not_apply() -> None:
    image = image_of(acl("orders-", pattern=PREFIXED))
    assert asks(image, "orders-") is Verdict.ALLOWED
    assert asks(image, "orders-eu") is Verdict.ALLOWED
    assert asks(image, "orders") is Verdict.NO_ACL
    assert asks(image, "") is Verdict.NO_ACL


def test_a_literal_is_no_prefix_and_a_prefix_of_a_star_is_no_wildcard() -> None:
    assert asks(image_of(acl("ord")), "orders") is Verdict.NO_ACL
    assert asks(image_of(acl("*", pattern=PREFIXED)), "orders") is Verdict.NO_ACL
    assert asks(image_of(acl("*")), "orders") is Verdict.ALLOWED


def test_hosts_are_compared_as_text() -> None:
    image = image_of(acl("orders", host="10.0.0.1"))
    assert asks(image, "orders", host="10.0.0.1") is Verdict.ALLOWED
    assert asks(image, "orders", host="10.0.0.10") is Verdict.DENIED


RANGES = (
    ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"), ("10.1.2.3/8", "10.0.0.1", "9.255.255.255"),
    ("10.0.0.0/08", "10.0.0.1", "1.0.0.1"), ("1.2.3.4/32", "1.2.3.4", "1.2.3.5"), ("1.2.3.4/31", "1.2.3.5", "1.2.3.6"),
    ("0.0.0.0/0", "9.9.9.9", "0:0:0:0:0:0:0:1"), ("2001:db8::/32", "2001:db8:0:0:0:0:0:5", "2001:db9:0:0:0:0:0:5"),
    ("2001:DB8::7/32", "2001:db8:0:0:0:0:0:5", "10.0.0.1"), ("::/0", "fe80:0:0:0:0:0:0:1", "10.0.0.1"),
    ("::1/128", "0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:2"),
)  # fmt: skip


@pytest.mark.parametrize("permission", [ALLOW, DENY])
@pytest.mark.parametrize(("host", "within", "beside"), RANGES)
def test_ranges_of_addresses(host: str, within: str, beside: str, permission: Permission) -> None:
    binding = acl("orders", permission=permission, host=host)
    check_binding(binding)
    image = image_of(binding, acl("orders", principal="User:bob"), *([acl("orders")] if permission is DENY else []))
    wanted = [Verdict.ALLOWED, Verdict.DENIED] if permission is ALLOW else [Verdict.DENIED, Verdict.ALLOWED]
    assert [asks(image, "orders", host=one) for one in (within, beside)] == wanted


def test_a_range_that_another_program_wrote_and_nobody_can_read_has_no_address() -> None:
    image = image_of(acl("orders", host="10.0.0.0/99"), acl("orders", host="a/b"))
    assert asks(image, "orders", host="10.0.0.1") is Verdict.DENIED


def test_many_ranges_are_looked_up_once_for_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    image = image_of(*(acl("orders", host=f"10.{n // 256}.{n % 256}.0/{24 + n % 3}") for n in range(3000)))
    looked = []

    def counted(address: int, version: int, bits: int) -> int:
        looked.append(bits)
        return network_of(address, version, bits)

    monkeypatch.setattr(acls, "network_of", counted)
    assert asks(image, "orders", host="192.168.0.1") is Verdict.DENIED
    assert sorted(looked) == [24, 25, 26]
    assert asks(image, "orders", host="10.11.183.1") is Verdict.ALLOWED


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_each_operation_grants(operation: AclOperation) -> None:
    image = image_of(acl("orders", operation))
    granted = {asked for asked in OPERATIONS if asks(image, "orders", asked) is Verdict.ALLOWED}
    if operation is AclOperation.ALL:
        assert granted == set(OPERATIONS)
    else:
        implied = {DESCRIBE} if operation in {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER} else set()
        implied |= {AclOperation.DESCRIBE_CONFIGS} if operation is AclOperation.ALTER_CONFIGS else set()
        assert granted == {operation} | implied


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_deny_implies_nothing_but_all(operation: AclOperation) -> None:
    image = image_of(acl("orders", AclOperation.ALL), acl("orders", operation, DENY))
    refused = {asked for asked in OPERATIONS if asks(image, "orders", asked) is Verdict.DENIED}
    assert refused == (set(OPERATIONS) if operation is AclOperation.ALL else {operation})


# ---------------------------------------------------------------- a naive model


# No letter is a prefix of nothing: with two letters many names are prefixes of each other.
NAMES = st.text("ab", min_size=1, max_size=4) | st.just("*")
PRINCIPALS = st.sampled_from([ALICE, "User:bob", "Group:alice", EVERYBODY])
HOSTS = st.sampled_from(["*", "10.0.0.1", "10.0.0.2"])
KINDS = st.sampled_from([TOPIC, ResourceType.GROUP])
ENTRIES = st.builds(
    AccessControlEntry, PRINCIPALS, HOSTS, st.sampled_from(OPERATIONS), st.sampled_from([ALLOW, ALLOW, DENY])
)
PATTERNS = st.builds(ResourcePattern, KINDS, NAMES, st.sampled_from([LITERAL, PREFIXED]))
BINDINGS = st.builds(AclBinding, PATTERNS, ENTRIES)


def naive(
    bindings: set[AclBinding], principal: str, host: str, operation: AclOperation, kind: ResourceType, name: str
) -> Verdict:
    """The rules as the documentation says them, over a plain set."""
    covering = {
        entry
        for (of, pattern, pattern_type), entry in bindings
        if of is kind and (name[: len(pattern)] == pattern if pattern_type is PREFIXED else pattern in {"*", name})
    }
    mine = {e for e in covering if e.principal in {principal, "User:*"} and e.host in {host, "*"}}
    if any(e.permission is DENY and e.operation in {operation, AclOperation.ALL} for e in mine):
        return Verdict.DENIED
    enough = IMPLIED_BY.get(operation, set()) | {operation, AclOperation.ALL}
    if any(e.permission is ALLOW and e.operation in enough for e in mine):
        return Verdict.ALLOWED
    return Verdict.DENIED if covering else Verdict.NO_ACL


@settings(max_examples=examples(300))
@given(st.sets(BINDINGS, max_size=14), st.data())
def test_decisions_equal_the_naive_model(bindings: set[AclBinding], data: st.DataObject) -> None:
    image = image_of(*bindings)
    for _ in range(5):
        question = (
            data.draw(st.sampled_from([ALICE, "User:bob", "Group:alice"])),
            data.draw(st.sampled_from(["10.0.0.1", "10.0.0.2"])),
            data.draw(st.sampled_from(OPERATIONS)),
            data.draw(KINDS),
            data.draw(NAMES),
        )
        assert image.decide(*question) is naive(bindings, *question)


def naive_any(bindings: set[AclBinding], principal: str, host: str, operation: AclOperation) -> Verdict:
    mine = {
        (pattern, entry.permission)
        for pattern, entry in bindings
        if pattern.type is TOPIC
        and entry.principal in {principal, "User:*"}
        and entry.host in {host, "*"}
        and entry.operation in {operation, AclOperation.ALL}
    }
    denied = {pattern for pattern, permission in mine if permission is DENY}
    if ResourcePattern(TOPIC, "*") in denied:
        return Verdict.DENIED
    for pattern, permission in mine:
        star = pattern == ResourcePattern(TOPIC, "*")
        prefixed = any(d.pattern_type is PREFIXED and pattern.name.startswith(d.name) for d in denied)
        same = pattern.pattern_type is LITERAL and pattern in denied
        if permission is ALLOW and (star or not (prefixed or same)):
            return Verdict.ALLOWED
    everywhere = any(pattern == ResourcePattern(TOPIC, "*") for pattern, _ in bindings)
    return Verdict.DENIED if everywhere else Verdict.NO_ACL


@settings(max_examples=examples(300))
@given(st.sets(BINDINGS, max_size=10), st.sampled_from([WRITE, READ]))
def test_the_question_about_any_topic_equals_its_naive_model(bindings: set[AclBinding], asked: AclOperation) -> None:
    image = image_of(*bindings)
    verdict = image.decide_any(ALICE, "10.0.0.1", asked, TOPIC)
    assert verdict is naive_any(bindings, ALICE, "10.0.0.1", asked)
    if verdict is not Verdict.ALLOWED:
        names = ["".join(letters) for size in range(1, 6) for letters in product("ab", repeat=size)]
        assert all(image.decide(ALICE, "10.0.0.1", asked, TOPIC, name) is not Verdict.ALLOWED for name in names)


def test_a_denied_literal_below_an_allowed_prefix_leaves_other_topics() -> None:
    image = image_of(acl("or", WRITE, pattern=PREFIXED), acl("or", WRITE, DENY))
    assert image.decide_any(ALICE, "h", WRITE, TOPIC) is Verdict.ALLOWED
    image = image_of(acl("or", WRITE, pattern=PREFIXED), acl("o", WRITE, DENY, PREFIXED))
    assert image.decide_any(ALICE, "h", WRITE, TOPIC) is Verdict.NO_ACL


def test_a_literal_that_is_denied_too_is_no_topic_that_may_be_written() -> None:
    for denied, pattern in (("or", LITERAL), ("o", PREFIXED), ("or", PREFIXED)):
        image = image_of(acl("or", WRITE), acl(denied, WRITE, DENY, pattern))
        assert image.decide_any(ALICE, "h", WRITE, TOPIC) is Verdict.NO_ACL
    image = image_of(acl("or", WRITE), acl("orders", WRITE, DENY), acl("x", WRITE, DENY, PREFIXED))
    assert image.decide_any(ALICE, "h", WRITE, TOPIC) is Verdict.ALLOWED


# ---------------------------------------------------------------- changes


CHANGES = st.lists(
    st.tuples(st.booleans(), BINDINGS, st.sampled_from(["exactly", "pattern", "principal", "match"])), max_size=20
)


def matching(image: AclImage, asked: AclFilter) -> dict[ResourcePattern, list[AccessControlEntry]]:
    """The ACLs that a filter asks for, sorted."""
    meant = {
        p: sorted(filter(asked.matches_entry, image.entries[p]))
        for p in sorted(image.entries)
        if asked.matches_pattern(p)
    }
    return {pattern: entries for pattern, entries in meant.items() if entries}


def filter_for(binding: AclBinding, kind: str) -> AclFilter:
    pattern, entry = binding
    if kind == "exactly":
        return AclFilter(*pattern, *entry)
    if kind == "pattern":
        return AclFilter(*pattern)
    if kind == "match":
        return AclFilter(pattern.type, pattern.name, PatternType.MATCH, operation=entry.operation)
    return AclFilter(principal=entry.principal, permission=entry.permission)


@settings(max_examples=examples(200))
@given(CHANGES, st.lists(st.tuples(st.sampled_from(OPERATIONS), NAMES), min_size=3, max_size=3))
def test_creations_and_deletions_lose_nothing_else(
    changes: list[tuple[bool, AclBinding, str]], questions: list[tuple[AclOperation, str]]
) -> None:
    """CVE-2024-27309: of several ACLs of a resource one was removed, and others went with it."""
    image, model = AclImage(), set[AclBinding]()
    for created, binding, how in changes:
        before = image
        if created:
            model.add(binding)
            entries = entries_with(image.entries.get(binding.pattern, frozenset()), [binding.entry])
            image = image.updated({binding.pattern: entries})
        else:
            asked = filter_for(binding, how)
            gone = {AclBinding(p, entry) for p, found in matching(image, asked).items() for entry in found}
            assert gone == {b for b in model if asked.matches_pattern(b.pattern) and asked.matches_entry(b.entry)}
            model -= gone
            image = image.updated({p: entries_without(p, found, [asked]) for p, found in image.entries.items()})
        assert image.version == before.version + 1
        assert {AclBinding(p, entry) for p, found in image.entries.items() for entry in found} == model
        assert all(image.entries.values())
        for operation, name in questions:
            verdict = naive(model, ALICE, "10.0.0.1", operation, TOPIC, name)
            assert image.decide(ALICE, "10.0.0.1", operation, TOPIC, name) is verdict
            assert image_of(*model).decide(ALICE, "10.0.0.1", operation, TOPIC, name) is verdict


def test_an_image_does_not_change_when_the_next_one_is_made() -> None:
    first = image_of(acl("orders"), acl("or", pattern=PREFIXED))
    second = first.updated(
        {ResourcePattern(TOPIC, "orders"): frozenset(), ResourcePattern(TOPIC, "or", PREFIXED): frozenset()}
    )
    assert asks(first, "orders") is Verdict.ALLOWED
    assert asks(second, "orders") is Verdict.NO_ACL
    assert (first.version, second.version) == (0, 1)
    assert not second.entries


# ---------------------------------------------------------------- filters


def test_match_finds_the_patterns_that_cover_a_name() -> None:
    image = image_of(
        acl("orders"), acl("*"), acl("ord", pattern=PREFIXED), acl("orders-", pattern=PREFIXED), acl("other")
    )
    found = matching(image, AclFilter(TOPIC, "orders", PatternType.MATCH))
    assert {(p.name, p.pattern_type) for p in found} == {("orders", LITERAL), ("*", LITERAL), ("ord", PREFIXED)}


def test_any_takes_the_name_as_it_is_written() -> None:
    image = image_of(acl("ord"), acl("ord", pattern=PREFIXED), acl("*"), acl("ord", kind=ResourceType.GROUP))
    assert {p.pattern_type for p in matching(image, AclFilter(TOPIC, "ord"))} == {LITERAL, PREFIXED}
    assert len(matching(image, AclFilter(name="ord"))) == 3
    assert list(matching(image, AclFilter(TOPIC, None, PREFIXED))) == [ResourcePattern(TOPIC, "ord", PREFIXED)]
    assert len(matching(image, AclFilter())) == 4


def test_filters_do_not_know_implied_operations_or_wildcards() -> None:
    image = image_of(acl("orders", READ, principal=EVERYBODY))
    assert not matching(image, AclFilter(operation=DESCRIBE))
    assert not matching(image, AclFilter(principal=ALICE))
    assert not matching(image, AclFilter(host="10.0.0.1"))
    assert not matching(image, AclFilter(permission=DENY))
    assert matching(image, AclFilter(operation=READ, principal=EVERYBODY, host="*", permission=ALLOW))


BAD_RANGES = (
    "10.0.0.0/33", "10.0.0.0/", "/8", "10.0.0/8", "10.0.0.0/8 ", "10.0.0.256/8", "10.0.0.0/255.0.0.0", "10.0.0.0/-1",
    "10.0.0.0/8/8", "::ffff:10.0.0.0/104", "2001:db8::/129", "2001:db8::/", "1::2::3/8", "host/8", "*/8", ":/8",
)  # fmt: skip


@pytest.mark.parametrize("host", BAD_RANGES)
def test_a_bad_range_is_refused_with_a_sentence(host: str) -> None:
    with pytest.raises(InvalidAcl, match=f"^Invalid CIDR notation '{re.escape(host)}': .*\\.$"):
        check_binding(acl("t", host=host))


@pytest.mark.parametrize(
    "bad",
    [
        acl("t", kind=ResourceType.ANY),
        acl("t", kind=ResourceType.UNKNOWN),
        acl("t", pattern=PatternType.MATCH),
        acl("t", pattern=PatternType.ANY),
        acl("t", AclOperation.ANY),
        acl("t", AclOperation.UNKNOWN),
        acl("t", READ, Permission.ANY),
        acl(""),
        acl("cluster", kind=ResourceType.CLUSTER),
        acl("*", kind=ResourceType.CLUSTER),
        acl("t", principal="alice"),
        acl("t", principal="User:"),
        acl("t", principal="User:alice\u3000"),
        acl("t", principal="User: alice"),
        acl("t", host=""),
        *(acl("t", host=host) for host in BAD_RANGES),
    ],
)
def test_acls_that_cannot_be(bad: AclBinding) -> None:
    with pytest.raises(InvalidAcl):
        check_binding(bad)


def test_acls_that_can_be() -> None:
    check_binding(acl(CLUSTER_NAME, AclOperation.CLUSTER_ACTION, kind=ResourceType.CLUSTER))
    check_binding(acl("*"))
    for name in ("\u00e9\u20ac\uffef", "a/b", ".", "..", "a\0", "a\x7f", "\ue000", "\ufff0", "\U0001f600"):
        check_binding(acl(name, kind=ResourceType.GROUP))
    check_binding(acl("t", pattern=PREFIXED, principal="User:CN=a,O=b:c"))


def test_filters_with_unknown_codes() -> None:
    check_filter(AclFilter())
    for bad in (
        AclFilter(type=ResourceType.UNKNOWN),
        AclFilter(pattern_type=PatternType.UNKNOWN),
        AclFilter(operation=AclOperation.UNKNOWN),
        AclFilter(permission=Permission.UNKNOWN),
    ):
        with pytest.raises(InvalidAcl):
            check_filter(bad)


def test_each_type_has_operations() -> None:
    assert set(OPERATIONS_OF) == set(RESOURCE_TYPES)
    assert {one for found in OPERATIONS_OF.values() for one in found} == set(OPERATIONS) - {AclOperation.ALL}
