"""Pictures: what changes do, in order, late, twice, and across a topic's deaths."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

from brokers.cluster.picture import Delta, Picture, difference
from brokers.cluster.znodes import Change, ConfigChanged, StatesChanged, TopicChanged, TopicDeleted, TopicZnode
from brokers.model import BrokerId, PartitionState, TopicPartition

A, B = uuid.UUID(int=10), uuid.UUID(int=11)


def topic(topic_id: uuid.UUID, *replicas: int) -> TopicZnode:
    return TopicZnode(topic_id, tuple((BrokerId(b),) for b in replicas))


def led(leader: int, version: int, epoch: int = 0) -> PartitionState:
    return PartitionState((BrokerId(9),), leader, epoch, (BrokerId(leader),), version, 1, 1, (1,))


def applied(*changes: Change, picture: Picture | None = None) -> tuple[Picture, Delta]:
    picture, delta = picture or Picture(), Delta()
    picture.apply(changes, delta)
    return picture, delta


def test_a_topic_comes_to_be() -> None:
    picture, delta = applied(
        TopicChanged("t", topic(A, 1, 2), 0),
        StatesChanged("t", A, {0: led(1, 0)}),
        ConfigChanged("topics", "t", 0, {"retention.ms": "5"}),
    )
    found = picture.topics["t"]
    assert (found.id, found.configs) == (A, {"retention.ms": "5"})
    assert found.partitions[0].leader == 1
    assert found.partitions[0].replicas == (1,), "the assignment is the topic's word"
    assert found.partitions[1].leader == -1
    assert delta.topics_changed == {"t"}
    assert delta.partitions_changed == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert picture.topic_names == {A: "t"}
    assert picture.partition(TopicPartition("t", 2)) is None
    assert picture.partition(TopicPartition("t", -1)) is None
    assert picture.partition(TopicPartition("u", 0)) is None


def test_old_versions_change_nothing() -> None:
    picture, _ = applied(
        TopicChanged("t", topic(A, 1, 2), 3),
        StatesChanged("t", A, {0: led(2, 7)}),
        ConfigChanged("topics", "t", 4, {"a": "new"}),
    )
    _, delta = applied(
        TopicChanged("t", topic(A, 1), 2),
        StatesChanged("t", A, {0: led(1, 6)}),
        StatesChanged("t", A, {0: led(1, 7)}),
        ConfigChanged("topics", "t", 4, {"a": "old"}),
        picture=picture,
    )
    assert not delta
    assert picture.topics["t"].partitions[0].leader == 2
    assert picture.topics["t"].configs == {"a": "new"}
    assert len(picture.topics["t"].partitions) == 2


def test_news_of_a_dead_topic_do_not_touch_its_successor() -> None:
    picture, _ = applied(TopicChanged("t", topic(B, 1), 0), StatesChanged("t", B, {0: led(1, 0)}))
    _, delta = applied(StatesChanged("t", A, {0: led(2, 50)}), TopicDeleted("t", A), picture=picture)
    assert not delta.deleted
    assert not delta.partitions_changed
    assert picture.topics["t"].id == B
    assert picture.topics["t"].partitions[0].leader == 1


def test_deleted_and_created_again_in_one_step() -> None:
    picture, _ = applied(TopicChanged("t", topic(A, 1, 2), 5), ConfigChanged("topics", "t", 8, {"a": "1"}))
    _, delta = applied(
        TopicDeleted("t", A),
        TopicChanged("t", topic(B, 3), 0),
        StatesChanged("t", B, {0: led(3, 0)}),
        ConfigChanged("topics", "t", 0, {}),
        picture=picture,
    )
    assert [gone.id for gone in delta.deleted] == [A]
    assert delta.topics_changed == {"t"}
    assert delta.partitions_changed == {TopicPartition("t", 0)}
    assert picture.topics["t"].configs == {}
    assert picture.topic_names == {B: "t"}


def test_a_topic_gone_before_its_config_leaves_nothing() -> None:
    picture, delta = applied(
        TopicChanged("t", topic(A, 1), 0),
        ConfigChanged("topics", "t", 0, {"a": "1"}),
        TopicDeleted("t", A),
    )
    assert (picture, delta.topics_changed, delta.partitions_changed) == (Picture(), set(), set())


def _history(seed: int, length: int = 60) -> list[list[Change]]:
    """A random true history of entries for two names, as a controller would write it."""
    rng = random.Random(seed)
    ids = (uuid.UUID(int=1000 + i) for i in range(1000))
    alive: dict[str, dict[str, object]] = {}
    entries: list[list[Change]] = []
    for _ in range(length):
        name = rng.choice("xy")
        now = alive.get(name)
        if now is None:
            made = {"id": next(ids), "parts": [1], "v": 0, "s": {0: 0}, "c": 0}
            alive[name] = made
            entries.append(
                [
                    TopicChanged(name, topic(made["id"], 1), 0),
                    StatesChanged(name, made["id"], {0: led(1, 0)}),
                    ConfigChanged("topics", name, 0, {}),
                ]
            )
            continue
        kind = rng.randrange(4)
        if kind == 0:
            del alive[name]
            entries.append([TopicDeleted(name, now["id"])])
        elif kind == 1:
            now["v"] += 1
            now["parts"].append(1)
            index = len(now["parts"]) - 1
            now["s"][index] = 0
            entries.append(
                [
                    TopicChanged(name, topic(now["id"], *now["parts"]), now["v"]),
                    StatesChanged(name, now["id"], {index: led(1, 0)}),
                ]
            )
        elif kind == 2:
            index = rng.randrange(len(now["parts"]))
            now["s"][index] += 1
            entries.append([StatesChanged(name, now["id"], {index: led(rng.randrange(4), now["s"][index])})])
        else:
            now["c"] += 1
            entries.append([ConfigChanged("topics", name, now["c"], {"k": str(rng.random())})])
    return entries


def _after(entries: list[list[Change]]) -> Picture:
    picture = Picture()
    for entry in entries:
        picture.apply(entry, Delta())
    return picture


def test_a_reload_joined_with_the_tail_equals_the_whole_history() -> None:
    """Whatever moment each part was read at, the entries after the first listing bring all parts to one moment."""
    for seed in range(400):
        entries = _history(seed, 30)
        rng = random.Random(seed)
        first, last = sorted(rng.sample(range(len(entries) + 1), 2))
        moments = [_after(entries[:cut]) for cut in range(first, last + 1)]
        read = Picture()
        for name in "xy":  # each topic is read at a moment of its own
            seen = rng.choice(moments)
            if name in seen.topics:
                states = {i: s for i, s in enumerate(seen.topics[name].partitions) if s.partition_epoch >= 0}
                info = seen.topics[name]
                assignment = TopicZnode(info.id, tuple(s.replicas for s in info.partitions))
                changes = [
                    TopicChanged(name, assignment, seen.topic_versions[name]),
                    StatesChanged(name, info.id, states),
                ]
                read.apply(changes, Delta())
            seen = rng.choice(moments)
            if ("topics", name) in seen.configs:
                key = ("topics", name)
                read.apply([ConfigChanged(*key, seen.config_versions[key], seen.configs[key])], Delta())
        for entry in entries[first:last]:
            read.apply(entry, Delta())
        wanted = moments[-1]
        assert read.topics.keys() == wanted.topics.keys()
        assert read.topic_versions == wanted.topic_versions
        assert read.topics == wanted.topics
        assert read.configs == wanted.configs


def test_difference_finds_what_replaying_would() -> None:
    for seed in range(100):
        entries = _history(seed)
        cut = seed % len(entries)
        old, new = _after(entries[:cut]), _after(entries)
        delta = difference(old, new)
        for name, info in new.topics.items():
            before = old.topics.get(name)
            same_id = before is not None and before.id == info.id
            for index, state in enumerate(info.partitions):
                known = before.partitions[index] if same_id and index < len(before.partitions) else None
                assert (TopicPartition(name, index) in delta.partitions_changed) == (known != state)
        gone = {info.id for info in old.topics.values()} - {info.id for info in new.topics.values()}
        assert {info.id for info in delta.deleted} == gone
    same = _after(_history(1))
    assert not difference(same, replace(same))
