"""The records of the consumer protocol in __consumer_offsets, byte for byte as Kafka's own classes write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetlog.brokers.groups.consumer import embedded
from fleetlog.brokers.groups.consumer import records as r
from fleetlog.brokers.groups.records import BadRecord, ConsumerKey, ConsumerKind, consumer_key, decode_group_key
from fleetlog.brokers.groups.requests import Protocol

GOLDEN = {
    name: bytes.fromhex(value)
    for name, value in (
        line.split()
        for line in (Path(__file__).parent / "golden" / "consumer_records_4.4.0.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}
ONE, TWO = bytes(range(16)), bytes([16, *range(1, 16)])
TIME_MS = 1_700_000_000_123
KEYS = {
    "group-key": ConsumerKey(ConsumerKind.GROUP, "größe"),
    "member-key": ConsumerKey(ConsumerKind.MEMBER, "g", "m-1"),
    "target-key": ConsumerKey(ConsumerKind.TARGET, "g"),
    "member-target-key": ConsumerKey(ConsumerKind.MEMBER_TARGET, "g", "m-1"),
    "current-key": ConsumerKey(ConsumerKind.CURRENT, "g", "m-1"),
    "regex-key": ConsumerKey(ConsumerKind.REGEX, "g", "a.*"),
}
VALUES: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "group": ((7, -3), lambda pair: r.epoch_value(*pair), r.decode_epoch),
    "group-plain": ((7, 0), lambda pair: r.epoch_value(*pair), r.decode_epoch),
    "member": (
        r.MemberValue("i", "r", "c", "/h", ("a", "b"), "a.*", 300_000, "range"), r.member_value, r.decode_member,
    ),
    "member-classic": (
        r.MemberValue(None, "r", "c", "/h", ("a", "b"), None, 60_000, None,
                      r.Classic(10_000, (Protocol("range", b"\1\2\3"), Protocol("cooperative-sticky", b"")))),
        r.member_value, r.decode_member,
    ),
    "member-plain": (r.MemberValue(None, None, "", "/h", (), None, -1, None), r.member_value, r.decode_member),
    "target": ((7, TIME_MS), lambda pair: r.epoch_value(*pair), r.decode_epoch),
    "member-target": (((ONE, 0), (ONE, 300), (TWO, 1)), r.member_target_value, r.decode_member_target),
    "current": (
        r.Current(7, 6, r.UNREVOKED, {(ONE, 0): 5, (ONE, 300): 7}, {(TWO, 1): 6}), r.current_value, r.decode_current,
    ),
    "regex": (r.Resolved(("a", "ab"), 12, TIME_MS), r.regex_value, r.decode_regex),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str) -> None:
    assert consumer_key(KEYS[name]) == GOLDEN[name]
    assert decode_group_key(GOLDEN[name]) == KEYS[name]


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    value, encode, decode = VALUES[name]
    assert encode(value) == GOLDEN[name]
    assert decode(GOLDEN[name]) == value
    assert decode(b"\0\1" + GOLDEN[name][2:]) is None, "a newer version"
    for size in range(2, len(GOLDEN[name])):
        try:
            decode(GOLDEN[name][:size])
        except BadRecord:
            continue


def test_all_of_kafkas_are_compared() -> None:
    ours = {f"{name}-{version}" for name in ("subscription", "assignment") for version in range(4)}
    assert GOLDEN.keys() == {*KEYS, *VALUES, "current-old", *ours}


def test_an_assignment_of_an_older_coordinator_is_of_the_members_epoch() -> None:
    """Before KIP-1251 no record said since when a member has a partition."""
    assert r.decode_current(GOLDEN["current-old"]) == r.Current(7, -2, r.STABLE, {(ONE, 0): 7}, {})


SAID = embedded.Subscription(0, ("a", "b"), (("a", 0), ("a", 2)), None)


@pytest.mark.parametrize("version", range(4))
def test_what_classic_members_say_and_hear(version: int) -> None:
    said = SAID._replace(version=version, owned=SAID.owned if version else (), rack_id="r" if version == 3 else None)
    assert embedded.decode_subscription(GOLDEN[f"subscription-{version}"]) == said
    heard = GOLDEN[f"assignment-{version}"]
    assert embedded.assignment_bytes([(ONE, 0), (TWO, 4), (ONE, 2)], {ONE: "a"}, version) == heard
    assert embedded.decode_assignment(heard) == embedded.Assignment((("a", 0), ("a", 2)), user_data=False)


def test_what_is_not_of_a_consumer_is_told() -> None:
    newest = GOLDEN["subscription-3"]
    assert embedded.decode_subscription(b"\0\x09" + newest[2:] + b"more") == SAID._replace(version=3, rack_id="r")
    assert embedded.decode_assignment(b"") == embedded.Assignment((), user_data=False)
    assert embedded.decode_assignment(GOLDEN["assignment-0"][:-4] + b"\0\0\0\1x").user_data
    wrong = (b"", b"\0", b"\xff\xff" + newest[2:], b"\0\1\x7f\xff\xff\xff")
    for text in (*wrong, *(newest[:size] for size in range(2, len(newest)))):
        with pytest.raises(BadRecord):
            embedded.decode_subscription(text)
