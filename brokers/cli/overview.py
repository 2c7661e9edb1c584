"""A fleet as commands see it: brokers, partitions, moves under way, log directories. Read with deadlines.

A broker that does not answer in time is shown as such and never waited for: these commands are what one types when
something is broken.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import kafka.errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.admin import DescribeConfigsRequest

from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.output import CliError, bytes_text, count_text
from fleetlog.brokers.controller.placement import Place
from fleetlog.brokers.model import TopicPartition, has_room

PATIENCE_S = 2.0
"""How long one broker may take to answer what only it knows."""
PAGE = 2_000
MISSING_NAMED = 5
MIN_IN_SYNC = "min.insync.replicas"
TIERING_WAITS = "fleetlog.tiering.waits"
FAILURE_DOMAIN = "failure.domain"


@dataclass(frozen=True, slots=True)
class PartitionOverview:
    """One partition as the controller last wrote it. ``leader`` is -1 if there is none.

    ``min_in_sync`` is 1 where all replicas are in sync: then it is not asked for.
    """

    topic: str
    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_leader: int = -1
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    min_in_sync: int = 1
    internal: bool = False

    @property
    def tp(self) -> TopicPartition:
        """Its name."""
        return TopicPartition(self.topic, self.index)

    @property
    def moving(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)

    @property
    def settled(self) -> tuple[int, ...]:
        """The replicas except those that a move is still adding."""
        return tuple(b for b in self.replicas if b not in self.adding) if self.adding else self.replicas

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once the move is over."""
        return tuple(b for b in self.replicas if b not in self.removing) if self.removing else self.replicas

    @property
    def under_replicated(self) -> bool:
        """Fewer in sync than there should be; those that a move adds don't count (KIP-455)."""
        return len(self.isr) < len(self.settled)

    @property
    def under_min_in_sync(self) -> bool:
        """Too few in sync for acks=all."""
        return len(self.isr) < min(self.min_in_sync, max(1, len(self.replicas)))

    @property
    def offline(self) -> bool:
        """There is no leader."""
        return self.leader < 0

    @property
    def led_by_preferred(self) -> bool:
        """Whether the first replica leads."""
        return bool(self.replicas) and self.leader == self.target[0]

    @property
    def untroubled(self) -> bool:
        """All replicas are in sync, one of them leads, none moves: said at once, as it is asked of all partitions."""
        return self.leader in self.isr and len(self.isr) == len(self.replicas) and not (self.adding or self.removing)

    @property
    def problem(self) -> str | None:
        """The worst problem, as text; None if there is none."""
        if self.leader >= 0 and len(self.isr) >= max(1, len(self.replicas)):
            return None  # at once, since an overview asks it of all partitions
        if self.offline:
            return "offline"
        if self.under_min_in_sync:
            return "under min ISR"
        return "under-replicated" if self.under_replicated else None


@dataclass(frozen=True, slots=True)
class Directory:
    """One log directory of a broker. Bytes are -1 where they are unknown."""

    path: str
    error: int
    total_bytes: int
    usable_bytes: int
    sizes: dict[TopicPartition, int]
    tiered: dict[TopicPartition, int] = field(default_factory=dict)
    """Bytes in the bucket, of partitions that the broker leads."""

    @property
    def used_bytes(self) -> int:
        """Bytes of its partitions."""
        return sum(self.sizes.values())

    @property
    def state(self) -> str:
        """The state in one or two words."""
        if self.error:
            return "offline"
        return "online" if self.trouble is None else "nearly full" if self.usable_bytes else "full"

    @property
    def trouble(self) -> str | None:
        """The problem, as text; None if there is none."""
        if self.error:
            return f"log directory {self.path} is offline: its disk failed; repair it and restart the broker"
        if self.total_bytes < 0 or has_room(self.total_bytes, self.usable_bytes):
            return None
        if not self.usable_bytes:
            return f"log directory {self.path} is full: writes fail there for want of room, of quota or of open files"
        free, volume = bytes_text(self.usable_bytes), bytes_text(self.total_bytes)
        return f"log directory {self.path} is nearly full: {free} of {volume} free"


@dataclass(slots=True)
class BrokerOverview:
    """One broker; ``host`` is None when it is only known as a replica. ``directories`` is None if it did not
    answer.

    ``lacks`` names what its process lacks: file descriptors. ``cut_off``: it said that ZooKeeper answers it nothing.
    """

    id: int
    host: str | None = None
    port: int = -1
    rack: str | None = None
    domain: str = ""
    incarnation: int | None = None
    directories: list[Directory] | None = None
    lacks: list[str] = field(default_factory=list)
    cut_off: bool = False

    @property
    def state(self) -> str:
        """The state in one or two words."""
        if not self.alive:
            return "down"
        if self.directories is None:
            return "no answer"
        return "no ZooKeeper" if self.cut_off else "up"

    @property
    def alive(self) -> bool:
        """Whether it is registered."""
        return self.host is not None

    @property
    def address(self) -> str | None:
        """``host:port``."""
        return None if self.host is None else f"{self.host}:{self.port}"

    @property
    def place(self) -> Place:
        """Its rack and failure domain, for the planners."""
        rack = self.rack if self.rack is not None else f"\0{self.id}"
        return Place(rack, self.domain or self.host or f"\0{self.id}")

    def size_of(self, tp: TopicPartition) -> int | None:
        """Bytes of its replica of the partition; None if it has none or did not answer."""
        for directory in self.directories or ():
            if tp in directory.sizes:
                return directory.sizes[tp]
        return None


@dataclass(slots=True)
class Overview:
    """A fleet at one moment."""

    cluster_id: str
    controller: int
    brokers: dict[int, BrokerOverview] = field(default_factory=dict)
    partitions: dict[TopicPartition, PartitionOverview] = field(default_factory=dict)

    def live_brokers(self) -> list[BrokerOverview]:
        """The registered brokers, by id."""
        return [broker for _, broker in sorted(self.brokers.items()) if broker.alive]

    def need_alive(self, brokers: Iterable[int]) -> None:
        """Raises CliError where one of them is not alive."""
        live = {broker.id for broker in self.live_brokers()}
        for broker in sorted(set(brokers) - live):
            raise CliError(f"broker {broker} is not alive; there are {', '.join(map(str, sorted(live)))}")

    def of_topic(self, topic: str) -> list[PartitionOverview]:
        """The topic's partitions in order."""
        return sorted((p for p in self.partitions.values() if p.topic == topic), key=lambda p: p.index)

    def moving(self) -> list[PartitionOverview]:
        """The partitions with a reassignment under way, in order."""
        return sorted((p for p in self.partitions.values() if p.adding or p.removing), key=lambda p: p.tp)

    def troubled(self) -> list[PartitionOverview]:
        """The partitions with a problem, in order."""
        short = (p for p in self.partitions.values() if p.leader < 0 or len(p.isr) < max(1, len(p.replicas)))
        return sorted((p for p in short if p.problem is not None), key=lambda p: p.tp)

    def size_of(self, partition: PartitionOverview) -> int | None:
        """Bytes of the partition: at its leader, or the most that a replica has; None if no broker answered."""
        tp = partition.tp
        for group in ((partition.leader,), partition.replicas):
            known = [size for b in group if b in self.brokers and (size := self.brokers[b].size_of(tp)) is not None]
            if known:
                return max(known)
        return None

    def troubles(self) -> list[tuple[int, str]]:
        """Problems of brokers, as far as their directories were asked for: (broker, text)."""
        troubles = []
        for broker_id, broker in sorted(self.brokers.items()):
            if not broker.alive:
                troubles.append((broker_id, "not registered: stopped, dead, or cut off from ZooKeeper"))
            elif broker.directories is None:
                why = "killed just now, paused, cut off, or out of file descriptors"
                troubles.append((broker_id, f"registered, but does not answer: {why}; see its log"))
            else:
                troubles += [(broker_id, text) for text in broker.lacks]
                troubles += [(broker_id, text) for d in broker.directories if (text := d.trouble) is not None]
                there = {tp for d in broker.directories for tp in d.sizes}
                held = (tp for tp, p in self.partitions.items() if tp not in there and broker_id in p.settled)
                missing = sorted(held)
                if missing:
                    named = ", ".join(map(str, missing[:MISSING_NAMED]))
                    more = f" and {len(missing) - MISSING_NAMED} more" if len(missing) > MISSING_NAMED else ""
                    lacks = f"no log of {count_text(len(missing), 'replica')} assigned to it"
                    troubles.append((broker_id, f"{lacks}: {named}{more}"))
        return troubles

    def copied(self, partition: PartitionOverview) -> tuple[int, int] | None:
        """Bytes that the added replicas have, and bytes that they should have; None if that is unknown."""
        size = self.size_of(partition)
        if size is None or not partition.adding:
            return None
        have = [self.brokers[b].size_of(partition.tp) if b in self.brokers else None for b in partition.adding]
        return sum(min(one or 0, size) for one in have), size * len(have)


def fetch_overview(client: AdminClient, topics: Sequence[str] | None = None, *, directories: bool = True) -> Overview:
    """Ask the fleet: of all topics or of some. Topics that don't exist are left out. Raises KafkaError."""
    cluster = client.describe_cluster()
    overview = Overview(cluster["cluster_id"], cluster["controller_id"])
    for row in cluster["brokers"]:
        overview.brokers[row["broker_id"]] = BrokerOverview(row["broker_id"], row["host"], row["port"], row["rack"])
    fill = _begin_directories(client, overview, None) if directories else None
    told = _told_partitions(client, topics)
    partitions = overview.partitions
    for part in told:
        partitions.update(part.partitions)
    try:
        moves = client.list_partition_reassignments()
    except kafka_errors.ClusterAuthorizationFailedError:  # a user that may see topics, but not the cluster
        moves = {}
    minimum = topic_setting(client, sorted(frozenset().union(*(part.short for part in told))), MIN_IN_SYNC)
    if minimum:
        for tp, p in partitions.items():
            if tp.topic in minimum:
                partitions[tp] = replace(p, min_in_sync=int(minimum[tp.topic]))
    for tp in partitions.keys() & moves.keys():
        adding, removing = (tuple(moves[tp].get(f"{how}_replicas", ())) for how in ("adding", "removing"))
        partitions[tp] = replace(partitions[tp], adding=adding, removing=removing)
    for broker_id in sorted(frozenset().union(*(part.brokers for part in told)) - {-1}):
        overview.brokers.setdefault(broker_id, BrokerOverview(broker_id))
    if fill is not None:
        fill()
    return overview


class _ToldPartitions(NamedTuple):
    """What one answer says, without moves and settings; ``short`` are topics that lack replicas in sync."""

    partitions: dict[TopicPartition, PartitionOverview]
    short: frozenset[str]
    brokers: frozenset[int]

    @classmethod
    def of(cls, partitions: Iterable[PartitionOverview]) -> _ToldPartitions:
        """Of these."""
        told = {p.tp: p for p in partitions}
        short = frozenset(p.topic for p in told.values() if len(p.isr) < max(1, len(p.replicas)))
        return cls(told, short, frozenset(b for p in told.values() for b in (*p.replicas, *p.isr, *p.elr)))


_lately: Final[deque[tuple[Any, _ToldPartitions]]] = deque(maxlen=8)
"""What was made of the newest answers about all topics: a console gets the same answer again for the same bytes."""


def _told_by(page: Any) -> _ToldPartitions:
    for known, told in tuple(_lately):
        if known is page:
            return told
    told = _ToldPartitions.of(_rows_of(page))
    _lately.append((page, told))
    return told


def _rows_of(page: Any) -> Iterator[PartitionOverview]:
    for topic in page.topics:
        if topic.error_code:
            continue
        for row in topic.partitions:
            yield PartitionOverview(
                topic.name, row.partition_index, row.leader_id, row.leader_epoch, tuple(row.replica_nodes),
                tuple(row.isr_nodes), tuple(row.eligible_leader_replicas or ()),
                next(iter(row.last_known_elr or ()), -1), internal=topic.is_internal,
            )  # fmt: skip


def _told_partitions(client: AdminClient, topics: Sequence[str] | None) -> list[_ToldPartitions]:
    """By DescribeTopicPartitions, which has eligible leaders, else by Metadata."""
    from kafka.protocol.admin.topics import DescribeTopicPartitionsRequest

    cursor, names = None, [(name,) for name in topics or ()]
    told: list[_ToldPartitions] = []
    if topics is not None and not topics:
        return told
    try:
        while True:
            request = DescribeTopicPartitionsRequest(topics=names, response_partition_limit=PAGE, cursor=cursor)
            page = client.ask_any(request)
            told.append(_told_by(page) if topics is None else _ToldPartitions.of(_rows_of(page)))
            cursor = page.next_cursor
            if cursor is None:
                return told
    except kafka_errors.IncompatibleBrokerVersion:
        rows = client.describe_topics(list(topics) if topics is not None else None)
        return [_ToldPartitions.of(
            PartitionOverview(
                topic["name"], row["partition_index"], row["leader_id"], row["leader_epoch"],
                tuple(row["replica_nodes"]), tuple(row["isr_nodes"]), internal=topic["is_internal"],
            )
            for topic in rows
            if not topic["error_code"]
            for row in topic["partitions"]
        )]  # fmt: skip


def topic_setting(client: AdminClient, topics: Collection[str], setting: str) -> dict[str, str]:
    """What a setting is in each of these topics, of those that tell it. Raises KafkaError."""
    return topic_settings(client, topics, setting)[setting]


def topic_settings(client: AdminClient, topics: Collection[str], *settings: str) -> dict[str, dict[str, str]]:
    """The same for several settings, by one request."""
    asked: dict[str, dict[str, str]] = {name: {} for name in settings}
    kind, names = ConfigResourceType.TOPIC.value, list(settings)
    resources = [(kind, topic, names) for topic in topics]
    results = client.ask_any(DescribeConfigsRequest(resources=resources)).results if resources else ()
    for told in results:
        for row in told.configs:
            asked[row.name][told.resource_name] = row.value
    return asked


def own_settings(client: AdminClient, topic: str) -> dict[str, str]:
    """The settings that a topic has of its own. Raises KafkaError."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    rows = client.describe_configs([resource], config_filter="modified").get("topic", {}).get(topic, {})
    return {key: row["value"] for key, row in rows.items() if "TOPIC" in str(row.get("config_source", "TOPIC"))}


def settings_told(
    client: AdminClient, brokers: Iterable[int], names: Sequence[str] | None, timeout_s: float = PATIENCE_S
) -> dict[int, Any]:
    """What each broker that answers tells of its settings: its result of DescribeConfigs, which may be an error."""
    kind = ConfigResourceType.BROKER.value
    requests = {b: DescribeConfigsRequest(resources=[(kind, str(b), names)]) for b in brokers}
    answers = client.ask_each(requests, timeout_s)
    return {b: answer.results[0] for b, answer in answers.items() if answer is not None}


def read_incarnations(client: AdminClient, overview: Overview) -> None:
    """Ask each broker for its incarnation: a Kafka broker has none, and a login without rights is told none."""
    from fleetlog.wire import messages  # as much as all else together, and most commands ask nothing of ours

    ends = messages.ReplicaEndsRequest
    requests = {broker.id: ends(version=0, topics=[]) for broker in overview.live_brokers()}
    for broker_id, answer in client.ask_each(requests, PATIENCE_S).items():
        overview.brokers[broker_id].incarnation = (
            None if answer is None or answer.incarnation < 0 else answer.incarnation
        )


def read_domains(client: AdminClient, overview: Overview) -> None:
    """Ask each broker for its failure domain; without an answer it is the broker's host."""
    live = [broker.id for broker in overview.live_brokers()]
    for broker_id, told in settings_told(client, live, [FAILURE_DOMAIN]).items():
        for one in told.configs:
            if one.name == FAILURE_DOMAIN and one.value:
                overview.brokers[broker_id].domain = one.value


def read_directories(client: AdminClient, overview: Overview, topics: Collection[TopicPartition] | None = None) -> None:
    """Fill in the contents of the brokers' log directories: of all partitions or of some."""
    _begin_directories(client, overview, topics)()


def _begin_directories(
    client: AdminClient, overview: Overview, topics: Collection[TopicPartition] | None
) -> Callable[[], None]:
    """Ask for the directories of the brokers that are known; the function that it returns waits, and fills them in."""
    from fleetlog.wire.messages import DescribeLogDirsRequest  # its answer says what a broker lacks

    wanted = None
    if topics is not None:
        names = sorted({tp.topic for tp in topics})
        wanted = [(name, sorted(tp.partition for tp in topics if tp.topic == name)) for name in names]
    requests = {broker.id: DescribeLogDirsRequest(topics=wanted) for broker in overview.live_brokers()}
    answers = client.begin_each(requests, PATIENCE_S)

    def fill() -> None:
        looked_s = time.monotonic()
        for broker_id, answer in answers().items():
            broker = overview.brokers[broker_id]
            broker.directories = None if answer is None else [_directory(d) for d in answer.results]
            broker.lacks = list(getattr(answer, "troubles", None) or ())
        if topics is None:
            client.looked = looked_s, overview.brokers

    return fill


def _directory(row: Any) -> Directory:
    sizes = {
        TopicPartition(topic.name, one.partition_index): one.partition_size
        for topic in row.topics
        for one in topic.partitions
        if not one.is_future_key
    }
    total, usable = getattr(row, "total_bytes", -1), getattr(row, "usable_bytes", -1)
    tiered = {
        TopicPartition(topic.name, one.partition_index): size
        for topic in row.topics
        for one in topic.partitions
        if (size := getattr(one, "tiered_bytes", -1)) >= 0
    }
    return Directory(row.log_dir, row.error_code, total, usable, sizes, tiered)
