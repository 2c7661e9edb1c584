"""The tree as it must become so that it knows everything that the brokers have on their disks. Pure.

The logs are right where they and the tree differ, because the tree is the older one. Of a partition's replicas the one
whose log reaches furthest (the latest leader epoch, then the highest end) has every committed record: it and those that
are equal to it become the in-sync set, in a leader epoch above all that were used.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.image import MetadataImage
from fleetlog.brokers.metadata.inventories import Inventory, LogSummary
from fleetlog.brokers.metadata.marks import ClusterMarks
from fleetlog.brokers.metadata.znodes import TopicZnode
from fleetlog.brokers.model import INTERNAL_TOPICS, NO_LEADER, BrokerId, PartitionState, TopicPartition
from fleetlog.coordination.store import Create, Delete, Operation, SetData

BELIEVED_IDS = 10_000_000
"""A producer id in a log that is further above the allocated ones than this was made up by a client."""
EPOCHS_LEFT_OUT = 100
"""Elections in which nothing was appended leave no trace in a log: their epochs are not used again, either."""
KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The settings of a topic whose own are lost: nothing of it is deleted before somebody says what to keep."""


class TierReach(NamedTuple):
    """What the bucket's newest manifest of a partition says: the leader epoch that wrote it, and whether it names
    records."""

    topic: str
    leader_epoch: int
    has_records: bool


Tiers = Mapping[uuid.UUID, Mapping[int, TierReach]]
"""By topic id and partition."""


class CannotRepair(Exception):
    """What is missing, and what to do about it."""


@dataclass(slots=True)
class RepairPlan:
    """What is going to be written: one list of operations for each topic, and the numbers of the tree."""

    lines: list[str] = field(default_factory=list)
    """For a person, one line for each change."""
    done: int = 0
    """Topics that are right already: an earlier run of the same repair wrote them."""
    chosen: dict[str, uuid.UUID] = field(default_factory=dict)
    """The ids of topics of which there are logs with several, by name: once written, the tree does not tell why."""
    topics: dict[str, list[Operation]] = field(default_factory=dict)
    generation: int = 1
    controller_epoch: int = 1
    producer_id: int = -1
    incarnations: dict[int, int] = field(default_factory=dict)
    """Of each broker the registration that its znode must show before the broker registers again."""
    tiers: Tiers = field(default_factory=dict)
    """What is in the bucket."""


def plan_repair(
    image: MetadataImage,
    inventories: Sequence[Inventory],
    tree: Mapping[int, ClusterMarks],
    *,
    known_brokers: Iterable[int] = (),
    without: Iterable[int] = (),
    allocated_id: int = -1,
    chosen: Mapping[str, uuid.UUID] = MappingProxyType({}),
    tiers: Tiers = MappingProxyType({}),
) -> RepairPlan:
    """``tree`` has the tree's numbers for each broker. Raises CannotRepair if a broker or a directory is missing.

    ``without`` are brokers that do not come back; ``allocated_id`` is the highest producer id that the tree has given,
    ``chosen`` what a run that was broken off has chosen, ``tiers`` what is in the bucket.
    """
    _insist_on_all(image, inventories, known_brokers, without)
    plan = RepairPlan(tiers=tiers)
    marks = [inventory.marks for inventory in inventories]
    plan.generation = 1 + max(one.generation for one in (*marks, *tree.values()))
    plan.controller_epoch = 1 + max(0, *(one.controller_epoch for one in (*marks, *tree.values())))
    plan.producer_id = _producer_id(plan, inventories, allocated_id)
    for inventory in inventories:
        seen = max(inventory.marks.incarnation, tree[inventory.broker_id].incarnation)
        plan.incarnations[inventory.broker_id] = seen
    held = _by_topic(inventories)
    plan.chosen = {name: topic_id for name, topic_id in chosen.items() if topic_id in held.get(name, {})}
    for name in sorted(held.keys() | image.topics.keys()):
        _plan_topic(plan, image, name, held.get(name, {}))
    logs = {topic_id for topics in held.values() for topic_id in topics}
    for topic_id in sorted(tiers.keys() - logs):
        if _has_records(plan, topic_id):
            name = next(iter(tiers[topic_id].values())).topic
            plan.lines.append(f"topic {name} (id {topic_id}): the bucket alone has records of it, and they stay there")
    return plan


def _insist_on_all(
    image: MetadataImage, inventories: Sequence[Inventory], known_brokers: Iterable[int], without: Iterable[int]
) -> None:
    present = {inventory.broker_id for inventory in inventories}
    assigned = {b for topic in image.topics.values() for state in topic.partitions for b in state.replicas}
    missing = sorted({*assigned, *known_brokers} - present - {*without})
    if not present:
        raise CannotRepair("no broker says that ZooKeeper is older than its logs: there is nothing to repair")
    if missing:
        raise CannotRepair(
            f"broker(s) {', '.join(map(str, missing))} have not told what they have: start them, or name those that"
            " do not come back with --without; what only they have is then lost"
        )
    for inventory in inventories:
        if inventory.offline:
            raise CannotRepair(f"broker {inventory.broker_id}: log directory {inventory.offline[0]} is offline: repair"
                               " its disk, or take the broker out with --without")  # fmt: skip


def _producer_id(plan: RepairPlan, inventories: Sequence[Inventory], allocated_id: int) -> int:
    allocated = max(allocated_id, *(inventory.marks.producer_id for inventory in inventories))
    believed = [i.producer_id for i in inventories if i.producer_id <= max(allocated, 0) + BELIEVED_IDS]
    highest = max(allocated, *believed) if believed else allocated
    if highest > allocated_id:
        plan.lines.append(f"producer ids: up to {highest} are in use, ZooKeeper knows of {allocated_id}")
    return highest


_Held = dict[uuid.UUID, dict[int, dict[int, LogSummary]]]


def _by_topic(inventories: Sequence[Inventory]) -> dict[str, _Held]:
    """Logs by topic, topic id, partition and broker."""
    held: dict[str, _Held] = {}
    for inventory in inventories:
        for log in inventory.logs:
            partitions = held.setdefault(log.topic, {}).setdefault(log.topic_id, {})
            partitions.setdefault(log.partition, {})[inventory.broker_id] = log
    return held


def _plan_topic(plan: RepairPlan, image: MetadataImage, name: str, held: _Held) -> None:
    known = image.topics.get(name)
    later = {topic_id: logs for topic_id, logs in held.items() if known is None or topic_id != known.id}
    if later:  # a topic id that the tree does not know is later than the one that it knows
        most = max(later, key=lambda one: (sum(map(len, later[one].values())), one.int))
        topic_id = plan.chosen.setdefault(name, most) if len(held) > 1 else most
        for other in sorted(later.keys() - {topic_id}):
            plan.lines.append(f"topic {name}: the logs of id {other} are put aside; id {topic_id} was chosen")
        if known is None:
            plan.topics[name] = _created(plan, name, topic_id, later[topic_id])
            if (znodes.CONFIG_TOPICS, name) in image.config_versions:  # left over: it is replaced
                plan.topics[name].insert(0, Delete(znodes.config_path(znodes.CONFIG_TOPICS, name)))
        elif known.id == topic_id:
            _mend(plan, image, name, held[topic_id])
        else:
            plan.lines.append(f"topic {name}: id {known.id} was deleted and the topic was made again: id {topic_id}")
            plan.topics[name] = [*_removed(image, name), *_created(plan, name, topic_id, later[topic_id])]
    elif known is not None and not held:
        plan.lines.append(f"topic {name}: no broker has a log of it: it was deleted, and is removed")
        plan.topics[name] = _removed(image, name)
    elif known is not None:
        _mend(plan, image, name, held[known.id])


def _removed(image: MetadataImage, name: str) -> list[Operation]:
    operations: list[Operation] = []
    if (znodes.CONFIG_TOPICS, name) in image.config_versions:
        operations.append(Delete(znodes.config_path(znodes.CONFIG_TOPICS, name)))
    for index, state in enumerate(image.topics[name].partitions):
        if state.partition_epoch >= 0:
            tp = TopicPartition(name, index)
            operations += [Delete(znodes.state_path(tp)), Delete(znodes.partition_path(tp))]
    return [*operations, Delete(znodes.partitions_path(name)), Delete(znodes.topic_path(name))]


def _created(
    plan: RepairPlan, name: str, topic_id: uuid.UUID, held: Mapping[int, Mapping[int, LogSummary]]
) -> list[Operation]:
    everyone = sorted({broker for logs in held.values() for broker in logs})
    assignment, states = [], []
    for index in range(max(held) + 1):
        logs = held.get(index, {})
        if not logs:
            plan.lines.append(f"topic {name}: no broker has a log of partition {index}: it will be empty")
        replicas = _ordered(logs) or everyone[:1]
        assignment.append(tuple(map(BrokerId, replicas)))
        states.append(_state(plan, replicas, logs, max(-1, _tier_epoch(plan, topic_id, index))))
    logs_of_it = [log for logs in held.values() for log in logs.values()]
    config = {} if name in INTERNAL_TOPICS else dict(KEPT)
    tiered = _has_records(plan, topic_id)
    if name in INTERNAL_TOPICS or any(log.compacted for log in logs_of_it):
        config["cleanup.policy"] = "compact"
    elif tiered:
        config["remote.storage.enable"] = "true"
    lost = "" if name in INTERNAL_TOPICS else "; its settings are lost: nothing of it is deleted until you set them"
    lost += ", and it is tiered, as its records in the bucket say" if tiered else ""
    plan.lines.append(f"topic {name} (id {topic_id}) is made, partitions: {len(assignment)}{lost}")
    operations: list[Operation] = [
        Create(znodes.topic_path(name), znodes.encode_topic(TopicZnode(topic_id, tuple(assignment)))),
        Create(znodes.partitions_path(name)),
        Create(znodes.config_path(znodes.CONFIG_TOPICS, name), znodes.encode_config(config)),
    ]
    for index, state in enumerate(states):
        tp = TopicPartition(name, index)
        operations += [Create(znodes.partition_path(tp)), Create(znodes.state_path(tp), znodes.encode_state(state))]
    return operations


def _mend(plan: RepairPlan, image: MetadataImage, name: str, held: Mapping[int, Mapping[int, LogSummary]]) -> None:
    topic = image.topics[name]
    assignment: list[tuple[BrokerId, ...]] = []
    changed = False
    operations: list[Operation] = []
    for index in range(max(len(topic.partitions), *(partition + 1 for partition in held))):
        tp, logs = TopicPartition(name, index), held.get(index, {})
        known = topic.partitions[index] if index < len(topic.partitions) else None
        before = known.replicas if known is not None else ()
        replicas = _ordered(logs, before)[: len(before) or None] or list(before) or sorted(
            {broker for those in held.values() for broker in those}
        )[:1]  # fmt: skip
        replicas += [broker for broker in before if broker not in replicas][: max(0, len(before) - len(replicas))]
        assignment.append(tuple(map(BrokerId, replicas)))
        tiered = _tier_epoch(plan, topic.id, index)
        state = _state(plan, replicas, logs, max(tiered, known.leader_epoch if known is not None else -1))
        changed |= known is None or tiered > known.leader_epoch or not _is_written(plan, known, state)
        if tuple(replicas) != before:
            plan.lines.append(f"{tp}: replicas {list(before)} become {replicas}")
        if logs:
            latest = max(log.last_epoch for log in logs.values())
            if known is not None and latest > known.leader_epoch:
                plan.lines.append(f"{tp}: leader epoch {known.leader_epoch}, its logs have {latest}")
        if known is not None and tiered > known.leader_epoch:
            plan.lines.append(f"{tp}: leader epoch {known.leader_epoch}, its manifest in the bucket has {tiered}")
        if known is not None and known.partition_epoch >= 0:
            operations.append(SetData(znodes.state_path(tp), znodes.encode_state(state)))
        else:
            operations += [Create(znodes.partition_path(tp)), Create(znodes.state_path(tp), znodes.encode_state(state))]
    if not changed:
        plan.done += 1
        return
    head = SetData(znodes.topic_path(name), znodes.encode_topic(TopicZnode(topic.id, tuple(assignment))))
    plan.topics[name] = [head, *operations]


def _has_records(plan: RepairPlan, topic_id: uuid.UUID) -> bool:
    return any(reach.has_records for reach in plan.tiers.get(topic_id, {}).values())


def _tier_epoch(plan: RepairPlan, topic_id: uuid.UUID, partition: int) -> int:
    """Of the manifest's writer, which a leader must be later than; -1 without one."""
    reach = plan.tiers.get(topic_id, {}).get(partition)
    return -1 if reach is None else reach.leader_epoch


def _is_written(plan: RepairPlan, known: PartitionState, state: PartitionState) -> bool:
    """Whether an earlier run of this repair has written the state: nobody else writes with its controller epoch."""
    ours = replace(state, leader_epoch=known.leader_epoch, partition_epoch=known.partition_epoch)
    return known.controller_epoch == plan.controller_epoch and known == ours


def _ordered(logs: Mapping[int, LogSummary], before: Sequence[int] = ()) -> list[int]:
    """The brokers with a log, those that reach furthest first, and of equal ones those that were replicas before."""
    place: Callable[[int], int] = lambda b: list(before).index(b) if b in before else len(before)  # noqa: E731
    return sorted(logs, key=lambda b: (*(-n for n in logs[b].reach), place(b), b))


def _state(
    plan: RepairPlan, replicas: Sequence[int], logs: Mapping[int, LogSummary], known_epoch: int
) -> PartitionState:
    """Without a leader, in a new epoch; in sync are those that have everything, as they register next."""
    furthest = max((logs[broker].reach for broker in replicas if broker in logs), default=None)
    complete = [b for b in replicas if b in plan.incarnations and (furthest is None or _reach(logs, b) == furthest)]
    in_sync = complete or list(replicas[:1])
    return PartitionState(
        replicas=tuple(map(BrokerId, replicas)),
        leader=NO_LEADER,
        leader_epoch=EPOCHS_LEFT_OUT + max([known_epoch, *(log.last_epoch for log in logs.values())]),
        isr=tuple(map(BrokerId, in_sync)),
        partition_epoch=0,
        controller_epoch=plan.controller_epoch,
        isr_incarnations=tuple(plan.incarnations.get(broker, -2) + 1 for broker in in_sync),
    )


def _reach(logs: Mapping[int, LogSummary], broker: int) -> tuple[int, int] | None:
    return logs[broker].reach if broker in logs else None
