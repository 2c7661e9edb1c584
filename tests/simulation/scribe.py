"""Writes a history down for people: who said what to whom, what was written, what followed.

Its lines name no times. Those of the same moment of virtual time, which are about different processes, stand in the
order of these processes' names, so that only another behaviour makes another text.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, scan
from fleetlog._native.wire import FetchPart, decode_fetch, decode_fetch_response
from fleetlog.brokers.groups.records import GroupKey, OffsetKey, decode_group, decode_group_key, decode_offset
from fleetlog.brokers.log.append import Appender
from fleetlog.brokers.log.log import Truncation
from fleetlog.brokers.log.validation import batch_records
from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, TopicPartition
from fleetlog.brokers.replication.partition import Partition
from fleetlog.coordination.store import Create, Delete, SetData, StoreError
from fleetlog.coordination.tree import BROKER_IDS
from fleetlog.txn.records import decode_transaction, decode_transaction_key
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from tests.simulation.clients import INFLATE_LIMIT, Batch, batches_of
from tests.simulation.invariants import Hook
from tests.simulation.network import Wire
from tests.simulation.zookeeper import SimZooKeeper

if TYPE_CHECKING:
    from tests.simulation.world import World

WIDTH, WHO = 120, 16
ZOOKEEPER = "ZooKeeper"
PASSING = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER})
"""What a fetch is told while one of the two brokers has not heard of the new leader."""
MARKERS = {0: "ABORT", 1: "COMMIT"}
PLURAL = re.compile(r"^(append|follow|cut|hear|read)s\b")


@dataclass
class Line:
    """``moment`` is the virtual time in microseconds; ``of`` is whose line it is, with what stands around its name."""

    moment: int
    of: str
    before: str
    after: str
    text: str


class Scribe:
    """Between :meth:`begin` and the end of its history it notes what is worth a line, under the headings of a course.

    A fetch has a line where it asks for something else than the one before, and its answer where it brings something.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps: list[tuple[str, list[Line]]] = []
        self._asked: dict[tuple[str, str, TopicPartition], tuple[int, int]] = {}
        self._brought: dict[tuple[str, TopicPartition], tuple[int, int, int]] = {}
        self._sent: dict[tuple[str, bytes], int] = {}

    def begin(self, heading: str) -> None:
        """What happens from now on belongs under this heading."""
        self._steps.append((heading, []))

    def text(self, title: str, *paragraphs: str) -> str:
        """The transcript, below its title and these paragraphs."""
        parts = [f"{title}\n{'=' * len(title)}\n", *(f"\n{textwrap.fill(text, WIDTH)}\n" for text in paragraphs)]
        for heading, lines in self._steps:
            parts.append("\n" + textwrap.fill(heading, WIDTH, initial_indent="* ", subsequent_indent="  ") + "\n")
            parts += [_laid_out(who, text) for who, text in _in_order(lines)]
        return "".join(parts)

    def says(self, speaker: str, hearer: str, text: str) -> None:
        """One asks the other, or writes to it."""
        self._note(Line(self._world.loop.now_us, speaker, "", f" -> {hearer}", text))

    def hears(self, hearer: str, speaker: str, text: str) -> None:
        """An answer has come."""
        self._note(Line(self._world.loop.now_us, hearer, f"{speaker} -> ", "", text))

    def does(self, who: str, text: str) -> None:
        self._note(Line(self._world.loop.now_us, who, "", "", text))

    def _note(self, line: Line) -> None:
        if self._steps:
            self._steps[-1][1].append(line)

    def present(self) -> str:
        """The broker or client that acts now."""
        return self._world.loop.current().name.partition("#")[0]

    # ---- requests

    def exchanged(self, wire: Wire, key: int, version: int, body: bytes, future: Any) -> None:
        """A request is sent: it and its answer have a line each, where they are worth one."""
        if key == api_keys.FETCH:
            self._fetches(wire, version, body, future)
            return
        tell = TELLERS.get(key)
        if tell is None:
            return
        request = m.decode_request(key, version, memoryview(body))
        says = tell(request, None)
        if key == api_keys.PRODUCE:
            times = self._sent[wire.name, body] = self._sent.get((wire.name, body), 0) + 1
            says += ", again" if times > 1 else ""
        if says:
            self.says(wire.name, wire.server, says)

        def answered(done: Any) -> None:
            if done.cancelled() or done.exception() is not None:
                if key == api_keys.PRODUCE:
                    self.does(wire.name, f"hears nothing from {wire.server}")
                return
            told = tell(request, m.decode_response(key, version, done.result()))
            if told:
                self.hears(wire.name, wire.server, told)

        future.add_done_callback(answered)

    def _fetches(self, wire: Wire, version: int, body: bytes, future: Any) -> None:
        names = {topic.id: name for name, topic in self._world.oracle._topics.items()}
        request = decode_fetch(version, body)
        asked = [(TopicPartition(names.get(part.topic_id, "?"), part.partition), part) for part in request.parts]
        says = [f"{tp} from {part.fetch_offset}" for tp, part in asked
                if self._asks_anew(wire, tp, part)]  # fmt: skip
        if says:
            self.says(wire.name, wire.server, f"Fetch {', '.join(says)}")

        def answered(done: Any) -> None:
            if done.cancelled() or done.exception() is not None:
                return
            for part in decode_fetch_response(version, done.result()).parts:
                tp = TopicPartition(names.get(part.topic_id, "?"), part.partition)
                before = self._brought.get((wire.name, tp))
                if part.error not in PASSING:
                    self._brought[wire.name, tp] = now = part.error, part.high_watermark, part.last_stable_offset
                    if tp.topic not in INTERNAL_TOPICS and (part.records or part.diverging or now != before):
                        self.hears(wire.name, wire.server, f"{tp}: {_of_fetched(part)}")

        future.add_done_callback(answered)

    def _asks_anew(self, wire: Wire, tp: TopicPartition, part: FetchPart) -> bool:
        key, now = (wire.name, wire.server, tp), (part.fetch_offset, part.current_leader_epoch)
        before, self._asked[key] = self._asked.get(key), now
        return before != now and tp.topic not in INTERNAL_TOPICS

    # ---- ZooKeeper

    def committed(self, operations: Sequence[Any], writer: str, outcome: Any) -> None:
        """A write reached ZooKeeper's leader."""
        if not self._steps:
            return
        gone = sorted(operation.path for operation in operations if isinstance(operation, Delete))
        ids = [path.rpartition("/")[2] for path in gone if path.startswith(BROKER_IDS)]
        if ids:
            self.does(ZOOKEEPER, f"ends the session of b{ids[0]}, which takes {' and '.join(gone)} with it")
            return
        refused = " (refused)" if isinstance(outcome, StoreError) else ""
        for operation in operations:
            text = self._of_broker(operation.path) if isinstance(operation, Create) else ""
            text = text or _of_znode(operation)
            if text:
                self.says(writer, ZOOKEEPER, text + refused)
                if refused:
                    return

    def _of_broker(self, path: str) -> str:
        """A broker's registration: which incarnation begins, and since which one it has lost nothing."""
        if not path.startswith(BROKER_IDS + "/"):
            return ""
        one = self._world.oracle._live_brokers()[int(path.rpartition("/")[2])]
        return f"{path}  incarnation {one.incarnation}, intact since {one.intact_since}"

    # ---- logs

    def appended(self, partition: Any, data: bytes) -> None:
        """A replica wrote batches to its log."""
        tp, me = partition.tp, self.present()
        for batch, text in _told(data):
            if tp.topic not in INTERNAL_TOPICS:
                self.does(me, f"appends {tp} {text}, epoch {batch.epoch}")
            elif partition.is_leader:
                for record in batch.records:
                    text = _of_internal(tp.topic, record)
                    if text:
                        self.does(me, f"appends to {tp.topic}: {text}")

    def hooks(self) -> list[Hook]:
        """What it hears of the product's classes, and of the simulated network and ZooKeeper."""

        def told(text: Callable[[Any], str | None]) -> Callable[..., Any]:
            def hook(self_: Any, original: Any, *args: Any, **options: Any) -> Any:
                before = text(self_)
                result = original(self_, *args, **options)
                after = text(self_)
                if after is not None and after != before:
                    self.does(self.present(), after)
                return result

            return hook

        def watermark(appender: Any) -> str | None:
            log = appender._log
            internal = log.topic_partition.topic in INTERNAL_TOPICS
            return None if internal else f"high watermark of {log.topic_partition} is {log.high_watermark}"

        def role(partition: Any) -> str | None:
            tp, state = partition.tp, partition.state
            if partition.is_leader:
                return f"leads {tp} in epoch {partition.leader_epoch}, its log ends at {partition.log.log_end_offset}"
            if state.leader == partition._broker_id:
                return f"no longer leads {tp}"
            leader = "nobody" if state.leader < 0 else f"b{state.leader}"
            return f"follows {leader} in {tp}, epoch {partition.leader_epoch}"

        def cut(truncation: Any, original: Any, offset: int, **options: Any) -> Any:
            log = truncation._log
            before = log.log_end_offset
            result = original(truncation, offset, **options)
            if log.log_end_offset < before:
                self.does(self.present(), f"cuts {log.topic_partition} from {before} to {log.log_end_offset}")
            return result

        def write(appender: Any, original: Any, pieces: Any, *rest: Any) -> Any:
            log = appender._log
            before = log.log_end_offset
            result = original(appender, pieces, *rest)
            partition = self._world.oracle.shadow_of(log).partition
            if self._steps and log.log_end_offset > before and partition is not None:
                self.appended(partition, b"".join(pieces))
            return result

        def send(wire: Any, original: Any, key: int, version: int, body: bytes) -> Any:
            future = original(wire, key, version, body)
            self.exchanged(wire, key, version, body, future)
            return future

        def commit(zookeeper: Any, original: Any, operations: Any, session_id: int, reply_to: Any = None) -> None:
            original(zookeeper, operations, session_id, reply_to)
            writer = reply_to.store.name if reply_to is not None else ""
            self.committed(operations, writer, zookeeper.log[-1].outcome)

        return [
            (Appender, "set_high_watermark", told(watermark)),
            *((Partition, name, told(role)) for name in ("become_leader", "become_follower", "resign")),
            (Truncation, "truncate_to", cut),
            (Truncation, "restart_at", cut),
            (Appender, "_write", write),
            (Wire, "send", send),
            (SimZooKeeper, "commit", commit),
        ]


def _place(line: Line) -> tuple[int, str]:
    return line.moment, line.of


def _in_order(lines: Iterable[Line]) -> Iterator[tuple[str, str]]:
    """Who and what, in order; several that say or do the same at the same moment have one line, and none has two."""
    ordered: list[Line] = []
    for _, some in groupby(sorted(lines, key=_place), lambda line: (_place(line), line.before != "")):
        ordered += sorted(some, key=lambda line: line.before)  # answers of several brokers at once
    together: dict[tuple[int, str, str, str], list[str]] = {}
    for line in ordered:
        names = together.setdefault((line.moment, line.before, line.after, line.text), [])
        if line.of not in names:
            names.append(line.of)
    seen = set[tuple[str, str]]()
    for (_, before, after, text), names in together.items():
        if len(names) > 1 and not before and not after:
            text = PLURAL.sub(r"\1", text)
        one = f"{before}{', '.join(names)}{after}", text
        if one not in seen:
            seen.add(one)
            yield one


def _laid_out(who: str, text: str) -> str:
    first = f"  {who:<{WHO}}  "
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first)) + "\n"


# ---- what is said


def _of_error(code: int) -> str:
    return ErrorCode(code).name


def _of_offsets(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _told(data: bytes) -> list[tuple[Batch, str]]:
    """The batches in there, and what a line says of each."""
    found = []
    for batch, (at, header) in zip(batches_of(data), scan(data), strict=True):
        text = _values(batch)
        if batch.control:
            (record,) = batch_records(data, at, header, INFLATE_LIMIT)
            text = MARKERS[(record.key or b"")[-1]]
        found.append((batch, f"{_of_offsets(batch.base_offset, batch.last_offset)} {text}"))
    return found


def _values(batch: Batch) -> str:
    return f"[{' '.join((record.value or b'').decode(errors='replace') for record in batch.records)}]"


def _of_fetched(part: Any) -> str:
    if part.error:
        return f"{_of_error(part.error)}"
    if part.diverging is not None:
        return f"diverges: epoch {part.diverging[0]} ends at {part.diverging[1]} here"
    records = "".join(f"{text}, " for _, text in _told(bytes(part.records)))
    stable = part.last_stable_offset
    return f"{records}high watermark {part.high_watermark}{_of_stable(stable, part.high_watermark)}"


def _of_stable(stable: int, high_watermark: int) -> str:
    return f", last stable offset {stable}" if 0 <= stable < high_watermark else ""


def _of_znode(operation: Any) -> str:
    path = operation.path
    if not isinstance(operation, (Create, SetData)):
        return ""
    if path == znodes.CONTROLLER:
        return f"{path}  b{znodes.decode_controller(operation.data)}"
    if path == znodes.CONTROLLER_EPOCH:
        return f"{path}  {operation.data.decode()}"
    if path.endswith("/state") and path.startswith(znodes.TOPICS):
        state = znodes.decode_state(path, operation.data, (), 0)
        eligible = f", eligible {_brokers(sorted(state.elr))}" if state.elr else ""
        leader = f"leader b{state.leader}" if state.leader >= 0 else "no leader"
        return f"{path}  {leader}, epoch {state.leader_epoch}, in sync {_brokers(sorted(state.isr))}{eligible}"
    if path.startswith(znodes.TOPICS) and path.count("/") == znodes.TOPICS.count("/") + 1:
        topic = znodes.decode_topic(path, operation.data)
        each = (_of_assignment(topic, index) for index in range(len(topic.assignment)))
        return f"{path}  {'; '.join(each)}"
    return ""


def _of_assignment(topic: znodes.TopicZnode, index: int) -> str:
    text = f"{index}: replicas {_brokers(topic.assignment[index])}"
    for what, brokers in (("adding", topic.adding.get(index)), ("removing", topic.removing.get(index))):
        text += f", {what} {_brokers(brokers)}" if brokers else ""
    return text


def _brokers(ids: Iterable[int]) -> str:
    return " ".join(f"b{one}" for one in ids)


def _of_internal(topic: str, record: Record) -> str:
    """A coordinator's record."""
    if topic == TRANSACTION_STATE_TOPIC:
        name = decode_transaction_key(record.key or b"")
        transaction = decode_transaction(record.value or b"")
        if name is None or transaction is None:
            return ""
        partitions = " ".join(sorted(str(tp) for tp in transaction.partitions))
        return (
            f"{name} is {transaction.state.label}, epoch {transaction.producer_epoch}{partitions and ', '}{partitions}"
        )
    assert topic == GROUP_METADATA_TOPIC
    key = decode_group_key(record.key or b"")
    if isinstance(key, OffsetKey):
        offset = decode_offset(record.value or b"")
        return "" if offset is None else f"{key.group_id} has {key.partition} at {offset.offset}"
    if isinstance(key, GroupKey):
        group = decode_group(record.value or b"")
        return (
            "" if group is None else f"{key.group_id} is in generation {group.generation}, {len(group.members)} members"
        )
    return ""


def _produce(request: Any, answer: Any) -> str:
    if answer is not None:
        parts = [f"{topic.name}-{part.index}: {_of_produced(part)}"
                 for topic in answer.responses for part in topic.partition_responses]  # fmt: skip
        return ", ".join(parts)
    parts = []
    for topic in request.topic_data:
        for part in topic.partition_data:
            parts += [f"{topic.name}-{part.index} {_values(batch)}" for batch in batches_of(part.records)]
    name = f" of {request.transactional_id}" if request.transactional_id else ""
    return f"Produce{name} {', '.join(parts)}"


def _of_produced(part: Any) -> str:
    return f"acknowledged at {part.base_offset}" if part.error_code == 0 else _of_error(part.error_code)


def _moves(request: Any, answer: Any) -> str:
    parts = [f"{topic.name}-{part.partition_index} to {_brokers(part.replicas)}"
             for topic in request.topics for part in topic.partitions]  # fmt: skip
    return f"AlterPartitionReassignments {', '.join(parts)}" if answer is None else _plain(answer.error_code)


def _elects(request: Any, answer: Any) -> str:
    parts = [f"{topic.topic}-{index}" for topic in request.topic_partitions for index in topic.partitions]
    return f"ElectLeaders {', '.join(parts)}" if answer is None else _plain(answer.error_code)


def _stops(request: Any, answer: Any) -> str:
    return f"ControlledShutdown b{request.broker_id}" if answer is None else _plain(answer.error_code)


def _hears_ends(request: Any, answer: Any) -> str:
    """The controller asks replicas for the ends of their logs, and a leader to act as without a lease."""
    if answer is None:
        return f"ReplicaEnds{'; it is to waive its lease' if request.waive_lease else ''}"
    return ", ".join(
        f"the log ends at {part.log_end_offset}, in epoch {part.last_epoch}"
        if part.last_epoch >= 0
        else "the log is empty"
        for topic in answer.topics
        for part in topic.partitions
        if part.error_code == 0
    )


def _plain(error: int) -> str:
    return "done" if error == 0 else _of_error(error)


def _begins(request: Any, answer: Any) -> str:
    if request.transactional_id is None:
        return ""
    if answer is None:
        return f"InitProducerId {request.transactional_id}"
    return f"epoch {answer.producer_epoch}" if answer.error_code == 0 else _of_error(answer.error_code)


def _adds(request: Any, answer: Any) -> str:
    """A leader asks the coordinator on behalf of a producer."""
    if answer is None:
        parts = [
            f"AddPartitionsToTxn {one.transactional_id}"
            f" {' '.join(f'{topic.name}-{index}' for topic in one.topics for index in topic.partitions)}"
            f"{', verify only' if one.verify_only else ''}"
            for one in request.transactions
        ]
        return "; ".join(parts)
    errors = {
        part.partition_error_code
        for one in answer.results_by_transaction
        for topic in one.topic_results
        for part in topic.results_by_partition
    }
    return ", ".join(_plain(error) for error in sorted(errors))


def _ends(request: Any, answer: Any) -> str:
    if answer is None:
        return f"EndTxn {request.transactional_id}, {'commit' if request.committed else 'abort'}"
    return f"done, epoch {answer.producer_epoch} is next" if answer.error_code == 0 else _of_error(answer.error_code)


def _marks(request: Any, answer: Any) -> str:
    if answer is None:
        return "; ".join(
            f"WriteTxnMarkers {MARKERS[int(marker.transaction_result)]}"
            f" {' '.join(f'{topic.name}-{index}' for topic in marker.topics for index in topic.partition_indexes)}"
            for marker in request.markers
        )
    errors = {
        part.error_code for marker in answer.markers for topic in marker.topics for part in topic.partitions
    }  # fmt: skip
    return ", ".join(_plain(error) for error in sorted(errors))


def _finds(request: Any, answer: Any) -> str:
    if answer is None:
        return ""
    return "; ".join(f"b{one.node_id} coordinates {one.key}" for one in answer.coordinators if one.error_code == 0)


def _joins(request: Any, answer: Any) -> str:
    if answer is None:
        return f"JoinGroup {request.group_id}{', with the member id' if request.member_id else ''}"
    return f"generation {answer.generation_id}" if answer.error_code == 0 else _of_error(answer.error_code)


def _syncs(request: Any, answer: Any) -> str:
    if answer is None:
        return f"SyncGroup {request.group_id}, generation {request.generation_id}"
    return _plain(answer.error_code)


def _beats(request: Any, answer: Any) -> str:
    if answer is None:
        return f"Heartbeat {request.group_id}, generation {request.generation_id}"
    return _plain(answer.error_code)


def _commits(request: Any, answer: Any) -> str:
    if answer is None:
        parts = [f"{topic.name}-{part.partition_index} at {part.committed_offset}"
                 for topic in request.topics for part in topic.partitions]  # fmt: skip
        return f"OffsetCommit {request.group_id} {', '.join(parts)}"
    return ", ".join(_plain(part.error_code) for topic in answer.topics for part in topic.partitions)


def _looks(request: Any, answer: Any) -> str:
    if answer is None:
        return f"OffsetFetch {' '.join(group.group_id for group in request.groups)}"
    if answer.groups[0].error_code:
        return _of_error(answer.groups[0].error_code)
    return ", ".join(
        f"{topic.name}-{part.partition_index} at {part.committed_offset}"
        for group in answer.groups for topic in group.topics for part in topic.partitions
    )  # fmt: skip


TELLERS: dict[int, Callable[[Any, Any], str]] = {
    api_keys.ADD_PARTITIONS_TO_TXN: _adds,
    api_keys.ALTER_PARTITION_REASSIGNMENTS: _moves,
    api_keys.CONTROLLED_SHUTDOWN: _stops,
    api_keys.ELECT_LEADERS: _elects,
    api_keys.END_TXN: _ends,
    api_keys.FIND_COORDINATOR: _finds,
    api_keys.HEARTBEAT: _beats,
    api_keys.INIT_PRODUCER_ID: _begins,
    api_keys.JOIN_GROUP: _joins,
    api_keys.OFFSET_COMMIT: _commits,
    api_keys.OFFSET_FETCH: _looks,
    api_keys.PRODUCE: _produce,
    api_keys.REPLICA_ENDS: _hears_ends,
    api_keys.SYNC_GROUP: _syncs,
    api_keys.WRITE_TXN_MARKERS: _marks,
}
"""What a request says, and with its answer what that says; "" where it is not worth a line."""
