"""What the assignors promise, for any members and topics."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetlog.brokers.groups.consumer.assignors import ASSIGNORS, Subscriber, Targets, in_ranges, uniform

TOPICS = [bytes([number]) * 16 for number in range(4)]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1)
subscriptions = st.frozensets(st.sampled_from(TOPICS), min_size=1)
groups = st.lists(subscriptions, min_size=1, max_size=8)


def members_of(group: list[frozenset[bytes]], before: Targets | None = None) -> dict[str, Subscriber]:
    names = {f"m{number}": topics for number, topics in enumerate(group)}
    return {name: Subscriber(topics, (before or {}).get(name, ())) for name, topics in names.items()}


@given(st.sampled_from(sorted(ASSIGNORS)), groups, groups, counts, counts)
def test_each_partition_goes_once_to_one_that_subscribes(
    name: str, first: list[frozenset[bytes]], then: list[frozenset[bytes]], old: dict[bytes, int], new: dict[bytes, int]
) -> None:
    before = ASSIGNORS[name](members_of(first), old)
    members = members_of(then, before)
    after = ASSIGNORS[name](members, new)
    assert after == ASSIGNORS[name](members, new), "deterministic"
    assert after.keys() == members.keys()
    given_out = [partition for own in after.values() for partition in own]
    wanted = {
        (topic, index) for topic, count in new.items() for index in range(count) if any(topic in own for own in then)
    }
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == wanted
    assert all(topic in members[member].topics for member, own in after.items() for topic, _ in own)
    assert all(own == tuple(sorted(own)) for own in after.values())


@given(st.integers(1, 9), st.integers(1, 9), subscriptions, counts, counts)
def test_uniform_is_balanced_and_moves_no_more_than_it_must(
    first: int, then: int, topics: frozenset[bytes], old: dict[bytes, int], new: dict[bytes, int]
) -> None:
    before = uniform(members_of([topics] * first), old)
    after = uniform(members_of([topics] * then, before), new)
    sizes = sorted(len(own) for own in after.values())
    assert sizes[-1] - sizes[0] <= 1
    # what is there, and was with a member that is still there, moves only off a member above its share
    least, extras = divmod(sum(sizes), then)
    present = {partition for own in after.values() for partition in own}
    had = sorted((len(present & set(before.get(name, ()))) for name in after), reverse=True)
    may_stay = sum(min(size, least + (place < extras)) for place, size in enumerate(had))
    kept = sum(len(set(own) & set(before.get(name, ()))) for name, own in after.items())
    assert kept == may_stay


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 20), st.integers(1, 20))
def test_range_gives_the_same_indexes_of_like_topics(first: int, then: int, old: int, new: int) -> None:
    topics = frozenset(TOPICS[:3])
    before = in_ranges(members_of([topics] * first), dict.fromkeys(topics, old))
    after = in_ranges(members_of([topics] * then, before), dict.fromkeys(topics, new))
    for own in after.values():
        by_topic = [sorted(index for topic, index in own if topic == wanted) for wanted in topics]
        assert by_topic[0] == by_topic[1] == by_topic[2]
        assert new // then <= len(by_topic[0]) <= new // then + 1
    again = in_ranges(members_of([topics] * then, after), dict.fromkeys(topics, new))
    assert again == after, "sticky"


@settings(max_examples=50)
@given(groups, counts)
def test_uneven_groups_are_as_even_as_one_move_can_make_them(
    group: list[frozenset[bytes]], topics: dict[bytes, int]
) -> None:
    members = members_of(group)
    after = uniform(members, topics)
    for name, own in after.items():
        for topic, _ in own:
            others = [len(after[other]) for other, member in members.items() if topic in member.topics]
            assert len(after[name]) - min(others) <= 1


def test_first_ranges_are_in_a_row() -> None:
    members = members_of([frozenset(TOPICS[:1])] * 3)
    after = in_ranges(members, {TOPICS[0]: 7})
    assert [[index for _, index in own] for own in after.values()] == [[0, 1, 2], [3, 4], [5, 6]]
