"""The metadata image: changes in order, late, twice, and across deletions of a topic."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

from fleetlog.brokers.metadata.image import MetadataDelta, MetadataImage, difference
from fleetlog.brokers.metadata.znodes import (
    Change,
    ConfigChanged,
    StatesChanged,
    TopicChanged,
    TopicDeleted,
    TopicZnode,
)
from fleetlog.brokers.model import BrokerId, PartitionState, TopicPartition

A, B = uuid.UUID(int=10), uuid.UUID(int=11)


def topic(topic_id: uuid.UUID, *replicas: int) -> TopicZnode:
    return TopicZnode(topic_id, tuple((BrokerId(b),) for b in replicas))


def led(leader: int, version: int, epoch: int = 0) -> PartitionState:
    return PartitionState((BrokerId(9),), leader, epoch, (BrokerId(leader),), version, 1, 1, (1,))


def applied(*changes: Change, image: MetadataImage | None = None) -> tuple[MetadataImage, MetadataDelta]:
    image, delta = image or MetadataImage(), MetadataDelta()
    image.apply(changes, delta)
    return image, delta


def test_a_topic_comes_to_be() -> None:
    image, delta = applied(
        TopicChanged("t", topic(A, 1, 2), 0),
        StatesChanged("t", A, {0: led(1, 0)}),
        ConfigChanged("topics", "t", 0, {"retention.ms": "5"}),
    )
    found = image.topics["t"]
    assert (found.id, found.configs) == (A, {"retention.ms": "5"})
    assert found.partitions[0].leader == 1
    assert found.partitions[0].replicas == (1,), "the assignment is the topic's word"
    assert found.partitions[1].leader == -1
    assert delta.topics_changed == {"t"}
    assert delta.partitions_changed == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert image.topic_names == {A: "t"}
    assert image.partition(TopicPartition("t", 2)) is None
    assert image.partition(TopicPartition("t", -1)) is None
    assert image.partition(TopicPartition("u", 0)) is None


def test_old_versions_change_nothing() -> None:
    image, _ = applied(
        TopicChanged("t", topic(A, 1, 2), 3),
        StatesChanged("t", A, {0: led(2, 7)}),
        ConfigChanged("topics", "t", 4, {"a": "new"}),
    )
    _, delta = applied(
        TopicChanged("t", topic(A, 1), 2),
        StatesChanged("t", A, {0: led(1, 6)}),
        StatesChanged("t", A, {0: led(1, 7)}),
        ConfigChanged("topics", "t", 4, {"a": "old"}),
        image=image,
    )
    assert not delta
    assert image.topics["t"].partitions[0].leader == 2
    assert image.topics["t"].configs == {"a": "new"}
    assert len(image.topics["t"].partitions) == 2


def test_news_of_a_dead_topic_do_not_touch_its_successor() -> None:
    image, _ = applied(TopicChanged("t", topic(B, 1), 0), StatesChanged("t", B, {0: led(1, 0)}))
    _, delta = applied(StatesChanged("t", A, {0: led(2, 50)}), TopicDeleted("t", A), image=image)
    assert not delta.deleted
    assert not delta.partitions_changed
    assert image.topics["t"].id == B
    assert image.topics["t"].partitions[0].leader == 1


def test_deleted_and_created_again_in_one_step() -> None:
    image, _ = applied(TopicChanged("t", topic(A, 1, 2), 5), ConfigChanged("topics", "t", 8, {"a": "1"}))
    _, delta = applied(
        TopicDeleted("t", A),
        TopicChanged("t", topic(B, 3), 0),
        StatesChanged("t", B, {0: led(3, 0)}),
        ConfigChanged("topics", "t", 0, {}),
        image=image,
    )
    assert [gone.id for gone in delta.deleted] == [A]
    assert delta.topics_changed == {"t"}
    assert delta.partitions_changed == {TopicPartition("t", 0)}
    assert image.topics["t"].configs == {}
    assert image.topic_names == {B: "t"}


def test_a_topic_gone_before_its_config_leaves_nothing() -> None:
    image, delta = applied(
        TopicChanged("t", topic(A, 1), 0),
        ConfigChanged("topics", "t", 0, {"a": "1"}),
        TopicDeleted("t", A),
    )
    assert (image, delta.topics_changed, delta.partitions_changed) == (MetadataImage(), set(), set())


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


def _after(entries: list[list[Change]]) -> MetadataImage:
    image = MetadataImage()
    for entry in entries:
        image.apply(entry, MetadataDelta())
    return image


def test_a_reload_joined_with_the_tail_equals_the_whole_history() -> None:
    """Whatever moment each part was read at, the entries after the first listing bring all parts to one moment."""
    for seed in range(400):
        entries = _history(seed, 30)
        rng = random.Random(seed)
        first, last = sorted(rng.sample(range(len(entries) + 1), 2))
        moments = [_after(entries[:cut]) for cut in range(first, last + 1)]
        read = MetadataImage()
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
                read.apply(changes, MetadataDelta())
            seen = rng.choice(moments)
            if ("topics", name) in seen.configs:
                key = ("topics", name)
                read.apply([ConfigChanged(*key, seen.config_versions[key], seen.configs[key])], MetadataDelta())
        for entry in entries[first:last]:
            read.apply(entry, MetadataDelta())
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
