"""Fixed work for ``perf.budget``: one broker's connection, dispatch, produce and fetch, driven without an event loop.

``python -m perf.counted LIBRARY PLANT DIRECTORY`` runs below callgrind. Sockets, logs and server are real ones; time
stands still, so that the same instructions run every time. PLANT spends instructions in every request: what a
regression does.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import select
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetlog._native.batch import scan
from fleetlog.brokers.metadata.features import GROUP_VERSION
from fleetlog.brokers.timers import Timers
from fleetlog.wire import messages
from fleetlog.wire.api_keys import CONSUMER_GROUP_HEARTBEAT
from harness.turns import TurnClient, TurnLoop
from perf.generator.frames import (
    ORDER,
    Frame,
    batch_of,
    checked_batch,
    fetch_frame,
    framed_batch,
    produce_frame,
    sourced_batch,
)

if TYPE_CHECKING:
    from perf.stage import LoneLeader

KIB = 1024
LENGTH = 4
WARMUP, REQUESTS = 30, 100
SPECIALISED = 200
"""Requests after which the interpreter has made what it will of code that was not passed before."""
FETCHES = 8
SESSION_AT = 4 + 1 + 4 + 2
"""Where the answer of a Fetch names its session: behind correlation id, header tags, throttle and error."""
TAIL = 3
"""Bytes behind the records of an answer: no tags of partition, topic and answer."""
AT_ONCE = 10
"""Requests sent together where a client doesn't wait for each answer."""
CROWD = 4
"""Connections that send in the same turn of the loop."""
AUTHORIZED = ("produce 1 KiB", "produce 1 KiB, 10 at once", "fetch 64 KiB", "fetch 64 KiB in a session")
"""The works that are counted with an authorizer, too."""
BOTH = ("produce 1 KiB", "produce 1 KiB, 10 at once", "fetch 64 KiB")
"""The works that are counted with figures and without. Both come late, when the interpreter has made of all code what
it will.
"""
ACLS = 1000
QUOTA = 1 << 50
SPEND, SPENT = "spend", 100
IDLE_PARTITIONS = 100
IDLE = f"an idle second of {IDLE_PARTITIONS} partitions"
"""What is no request."""
MEMBERS, MOVES_MS = 4, 1000
"""Members of the group that rests; before that, so much time is between two requests."""
HEARTBEAT_ERROR_AT = 4 + 1 + 4
"""Where the answer of a ConsumerGroupHeartbeat has its error: behind correlation id, header tags and throttle."""
TOPIC, TOPIC_ID = "counted", uuid.UUID(int=7)
SOURCED = {"": {}, ", each once": {"fleetlog.dedup": "source"}}
"""Topics for records that say where they come from, by how their work is called: a plain one, and one that drops
duplicates."""
SMALL_RECORDS = 200
PARTITIONS = 4
IN_TRANSACTION, TRANSACTIONAL = 3, 0x10
"""A producer id, and the attribute of its batches."""
FIRST_PRODUCER = 1000
NOW_MS = 1_700_000_000_000
"""What the stage's clock says."""


class Client(TurnClient):
    """Receives into a buffer that is there already: what is counted is the server's work."""

    def __init__(self, loop: TurnLoop, port: int, listener: int) -> None:
        super().__init__(loop, port, listener)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.buffer = bytearray(1 << 20)

    def exchange(self, requests: bytes, count: int) -> memoryview:
        """Send, let the server work, and receive so many answers: valid until the next ones."""
        self.sock.sendall(requests)
        return self.receive(count)

    def receive(self, count: int) -> memoryview:
        """So many answers, for which the server gets as many turns as it needs."""
        have = end = 0
        while count:
            # an answer may need several turns, but nothing is asked in vain: the count would depend on the kernel
            readable = [fd for fd, _ in self.poll.poll()]
            if self.fd in readable:
                self.loop.turn(self.fd)
            if (self.fd, select.POLLOUT) in self.loop.callbacks:
                self.loop.callbacks[self.fd, select.POLLOUT][0]()
            if self.sock.fileno() in readable:
                have += self.sock.recv_into(memoryview(self.buffer)[have:])
            while count and have >= end + LENGTH + int.from_bytes(self.buffer[end : end + LENGTH], "big"):
                end += LENGTH + int.from_bytes(self.buffer[end : end + LENGTH], "big")
                count -= 1
        return memoryview(self.buffer)[:have]


class Fixture:
    """A broker that leads one topic."""

    def __init__(self, directory: Path, plant: int = 0, *, figures: bool = True) -> None:
        from fleetlog.brokers.metrics import registry as metrics
        from fleetlog.brokers.model import Endpoint
        from fleetlog.brokers.server.listener import Server
        from perf.stage import LoneLeader

        self.stage = stage = LoneLeader(directory, NOW_MS, figures=figures)
        stage.topic(TOPIC, 2 * PARTITIONS, topic_id=TOPIC_ID)
        for index in range(PARTITIONS, 2 * PARTITIONS):  # a transaction that goes on: sequence 0 is the next one
            stage.append(
                TOPIC, index=index, producer_id=IN_TRANSACTION, producer_epoch=0, base_sequence=2**31 - 1,
                attributes=TRANSACTIONAL,
            )  # fmt: skip
        self.loop = TurnLoop()
        stage.services.loop = self.loop  # type: ignore[assignment]
        stage.services.timers = Timers(self.loop, stage.clock)
        if plant:
            _plant(metrics.Histogram, plant)
        server = Server(stage.config)
        (endpoint,) = server.bind([Endpoint("PLAINTEXT", "127.0.0.1", 0)])
        server.serve(stage.services)
        server._dispatcher._pacing._now = lambda: 0.0  # a busy machine makes no slice of paced work end early
        listener = next(fd for (fd, _), (_, args) in self.loop.callbacks.items() if args)  # the others take none
        self.client = Client(self.loop, endpoint.port, listener)
        self.crowd = [Client(self.loop, endpoint.port, listener) for _ in range(CROWD)]
        self._server = server

    def check(self, frames: list[Frame]) -> None:
        """Requests sent together; an answer with an error is a fault of the fixture."""
        _check(frames, self.client.exchange(b"".join([frame.data for frame in frames]), len(frames)))

    def check_crowd(self, frames: list[Frame]) -> None:
        """The same requests sent by each of several connections, in one turn of the loop."""
        requests = b"".join([frame.data for frame in frames])
        for client in self.crowd:
            client.sock.sendall(requests)
        self.crowd_turn()
        for client in self.crowd:
            _check(frames, client.receive(len(frames)))

    def crowd_turn(self) -> None:
        """What the crowd has sent is received and executed."""
        for client in self.crowd:
            client.arrive()
        self.loop.run_soon()

    def coordinate(self) -> None:
        """Coordinate groups of both protocols."""
        self.stage.coordinate(self.loop)
        self.stage.metadata.features[GROUP_VERSION] = 1
        self.stage.metadata._sequence = 0  # it knows the topics
        self.loop.run_soon()

    def close(self) -> None:
        """Give sockets back."""
        self._server.close()
        for client in (self.client, *self.crowd):
            client.sock.close()


def _check(frames: list[Frame], answers: memoryview) -> None:
    for frame in frames:
        error = int.from_bytes(answers[LENGTH + frame.error_at : LENGTH + frame.error_at + 2], "big")
        assert not error, f"answered with error code {error}"
        answers = answers[LENGTH + int.from_bytes(answers[:LENGTH], "big") :]


def _plant(histogram: Any, rounds: int) -> None:
    """A regression: every request does something for nothing. Whatever way it takes, its time is observed."""
    since = histogram.since

    def slower(self: Any, started: float, count: int = 1) -> None:
        since(self, started, count)
        spend(rounds * count)

    histogram.since = slower


def spend(rounds: int) -> None:
    """Instructions, in proportion to ``rounds``."""
    for _ in range(rounds):
        pass


def works() -> dict[str, Iterator[list[Frame]]]:
    """Writing: name, and requests without end, those that are sent together in one list."""
    small, _ = batch_of(KIB, KIB, NOW_MS)
    medium, _ = batch_of(16 * KIB, KIB, NOW_MS)
    large, _ = batch_of(128 * KIB, KIB, NOW_MS)
    numbers = range(PARTITIONS)
    repeated = {
        "produce 1 KiB": [[produce_frame(TOPIC, number, small)] for number in numbers],
        "produce 16 KiB": [[produce_frame(TOPIC, number, medium)] for number in numbers],
        "produce 128 KiB": [[produce_frame(TOPIC, number, large)] for number in numbers],
        "produce 1 KiB, 10 at once": [[produce_frame(TOPIC, number, small)] * AT_ONCE for number in numbers],
        "produce 1 KiB, 20 at once to 4": [[produce_frame(TOPIC, number, small) for number in numbers] * 5],
        "produce 16 KiB, 8 at once to 4": [[produce_frame(TOPIC, number, medium) for number in numbers] * 2],
    }
    return {
        **{work: itertools.cycle(rounds) for work, rounds in repeated.items()},
        "produce 1 KiB, idempotent": _of_producer(1, 1),
        "produce 1 KiB, first of its producer": firsts(),
        "produce 1 KiB, 10 at once, idempotent": _of_producer(2, AT_ONCE),
        "produce 1 KiB, 10 at once, transactional": _of_producer(IN_TRANSACTION, AT_ONCE, "counted"),
    }


def crowds() -> dict[str, Iterator[list[Frame]]]:
    """Writing of several connections in the same turn: name, and what each of them sends."""
    small, _ = batch_of(KIB, KIB, NOW_MS)
    frames = [produce_frame(TOPIC, number, small) for number in range(PARTITIONS)]
    return {
        f"produce 1 KiB, {CROWD} connections": itertools.cycle([[frame] for frame in frames]),
        f"produce 1 KiB, 5 at once to 4, {CROWD} connections": itertools.cycle([[*frames, frames[0]]]),
    }


def firsts() -> Iterator[list[Frame]]:
    """The first batch of a producer, always another one, in a partition that has others."""
    for turn in itertools.count():
        producer_id, number = FIRST_PRODUCER + turn, PARTITIONS + turn % PARTITIONS
        batch, _ = batch_of(KIB, KIB, NOW_MS, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        yield [produce_frame(TOPIC, number, batch)]


def sourced(fixture: Fixture) -> dict[str, Iterator[list[Frame]]]:
    """Writing of records with positions: name, and requests without end. The topics are made for them."""
    found = {}
    for number, (name, settings) in enumerate(SOURCED.items()):
        topic = f"sourced-{number}"
        fixture.stage.topic(topic, PARTITIONS, topic_id=uuid.UUID(int=8 + number), settings=settings)
        found[f"produce {SMALL_RECORDS} records{name}"] = _with_positions(topic)
    return found


def framed(fixture: Fixture) -> dict[str, Iterator[list[Frame]]]:
    """Writing to topics that ask for schemas: as "produce 16 KiB", but each value begins with an id.

    The second topic's payloads are checked, too.
    """
    from fleetlog.brokers.log.door import SchemaText, Table, Want, packed

    for number, (topic, check) in enumerate((("framed", "id"), ("checked", "full"))):
        fixture.stage.topic(
            topic, PARTITIONS, topic_id=uuid.UUID(int=20 + number), settings={"fleetlog.schema.validation": check}
        )  # fmt: skip
    ids = b"".join(number.to_bytes(4, "big") for number in range(1, 1001))
    of_orders = Table(ids, sources={(500).to_bytes(4, "big"): SchemaText("AVRO", packed(json.dumps(ORDER)))})
    fixture.stage.logs.schemas.learn(
        {Want("framed-value"): Table(ids), Want("checked-value", texts=True): of_orders}, 0
    )
    batches = {"framed": framed_batch(16, KIB - 9, 500, NOW_MS), "checked": checked_batch(16, 500, NOW_MS)}
    frames = {
        topic: itertools.cycle([[produce_frame(topic, number, batch)] for number in range(PARTITIONS)])
        for topic, batch in batches.items()
    }
    return {
        "produce 16 KiB, ids of schemas": frames["framed"],
        "produce 16 KiB, payloads of schemas": frames["checked"],
    }


def _with_positions(topic: str) -> Iterator[list[Frame]]:
    """Small records that say where they come from, always new ones."""
    for turn in itertools.count():
        number = turn % PARTITIONS
        batch = sourced_batch(SMALL_RECORDS, 100, turn // PARTITIONS * SMALL_RECORDS, NOW_MS, step=PARTITIONS)
        yield [produce_frame(topic, number, batch)]


def _of_producer(producer_id: int, at_once: int, transactional_id: str | None = None) -> Iterator[list[Frame]]:
    """Requests of one producer, whose sequences follow on each other in each of the partitions that take turns.

    These partitions are not those of the requests without a producer id, which must not pay for idempotent producers.
    """
    for turn in itertools.count():
        first, number = turn // PARTITIONS * at_once, PARTITIONS + turn % PARTITIONS
        batches = [
            batch_of(
                KIB, KIB, NOW_MS, producer_id=producer_id, producer_epoch=0, base_sequence=first + n,
                attributes=TRANSACTIONAL if transactional_id else 0,
            )[0]
            for n in range(at_once)
        ]  # fmt: skip
        yield [produce_frame(TOPIC, number, batch, transactional_id=transactional_id) for batch in batches]


def reading(fixture: Fixture, max_bytes: int, count: int = FETCHES) -> list[list[Frame]]:
    """The requests of a consumer that reads what is there, from the first record on, again and again."""
    return [[frame] for frame in itertools.islice(_sequence(fixture, max_bytes), count)]


def _sequence(fixture: Fixture, max_bytes: int) -> Iterator[Frame]:
    """Fetches that follow on each other, each of which is answered before it is found."""
    offset = 0
    while True:
        frame = _fetch(max_bytes, offset)
        answer = fixture.client.exchange(frame.data, 1)
        begin = LENGTH + frame.records_at
        while answer[begin] & 0x80:  # the records' size, a varint
            begin += 1
        batches = scan(answer[begin + 1 : len(answer) - TAIL])
        yield frame
        offset = batches[-1][1].last_offset + 1


def _fetch(max_bytes: int, offset: int, session_id: int = 0, session_epoch: int = -1) -> Frame:
    return fetch_frame(
        TOPIC, 0, batch_bytes=1, batch_records=1, max_bytes=max_bytes, max_wait_ms=0, offset=offset,
        session_id=session_id, session_epoch=session_epoch,
    )  # fmt: skip


def reading_in_session(fixture: Fixture, max_bytes: int, count: int = FETCHES) -> Iterator[list[Frame]]:
    """The same in a session: each request names the partition, for its position has moved."""
    offsets = [
        int.from_bytes(frame.data[frame.offset_at : frame.offset_at + 8], "big")
        for (frame,) in reading(fixture, max_bytes, count)
    ]
    answer = fixture.client.exchange(_fetch(max_bytes, 0, 0, 0).data, 1)
    session_id = int.from_bytes(answer[LENGTH + SESSION_AT : LENGTH + SESSION_AT + 4], "big")
    for epoch, offset in enumerate(itertools.cycle(offsets), 1):
        yield [_fetch(max_bytes, offset, session_id, epoch)]


def resting(fixture: Fixture) -> Iterator[list[Frame]]:
    """Heartbeats of members of the consumer protocol that have what they shall have, by turns."""
    key, group_id = CONSUMER_GROUP_HEARTBEAT, "counted"
    fixture.coordinate()
    kind = messages.request_class(key)
    owned = kind.TopicPartitions

    def frame(member_id: str, **said: Any) -> Frame:
        message = kind(version=1, group_id=group_id, member_id=member_id, **said)
        return Frame(messages.encode_request(key, 1, 1, "perf", message), HEARTBEAT_ERROR_AT)

    said: dict[str, dict[str, Any]] = {
        str(uuid.UUID(int=number)): {
            "member_epoch": 0, "rebalance_timeout_ms": 60_000, "subscribed_topic_names": [TOPIC], "topic_partitions": []
        }
        for number in range(MEMBERS)
    }  # fmt: skip
    moves = True
    while moves:
        moves = False
        for member_id, before in said.items():
            fixture.stage.clock.now_ms += MOVES_MS
            asked = frame(member_id, **before)
            answered = bytes(fixture.client.exchange(asked.data, 1))
            _check([asked], memoryview(answered))
            _, body = messages.split_response(key, 1, answered[LENGTH:])
            answer = messages.decode_response(key, 1, body)
            now: dict[str, Any] = {"member_epoch": answer.member_epoch}
            if answer.assignment is not None:
                rows = answer.assignment.topic_partitions
                now["topic_partitions"] = [owned(topic_id=row.topic_id, partitions=row.partitions) for row in rows]
            moves = moves or now != {"member_epoch": before["member_epoch"]}
            said[member_id] = now
    return itertools.cycle([[frame(member_id, **at)] for member_id, at in said.items()])


def idle(directory: Path) -> LoneLeader:
    """A broker that leads so many partitions with a record each, a few ticks after they were written."""
    from perf.stage import LoneLeader

    stage = LoneLeader(directory, NOW_MS)
    for number in range(IDLE_PARTITIONS // PARTITIONS):
        stage.topic(f"idle-{number}", PARTITIONS, topic_id=uuid.UUID(int=number + 1))
        for index in range(PARTITIONS):
            stage.append(f"idle-{number}", index=index)
    for _ in range(WARMUP):
        tick(stage)
    return stage


def tick(stage: LoneLeader) -> None:
    """What a broker does once in a second for its partitions and logs."""
    stage.clock.now_ms += 1_000
    stage.replicas.tick(stage.clock.now_ms)
    stage.logs.tick(stage.clock.now_ms)


def late_works(fixture: Fixture) -> Iterator[tuple[str, Callable[[list[Frame]], None], list[list[Frame]]]]:
    """What is counted with figures and without, of a broker of its own: name, and what is asked how."""
    kinds = works()
    for frames in itertools.islice(kinds["produce 128 KiB"], WARMUP):
        fixture.check(frames)  # what is read below
    kinds["fetch 64 KiB"] = itertools.cycle(reading(fixture, 64 * KIB))
    for work in BOTH:
        for frames in itertools.islice(kinds[work], SPECIALISED):
            fixture.check(frames)
        gc.collect()
        gc.freeze()
        yield work, fixture.check, _some(kinds[work])
    fixture.close()


def main() -> None:
    """Count every work once, and how much ``spend`` costs."""
    library, plant, directory = ctypes.CDLL(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    time.perf_counter = itertools.count(0.0, 1e-6).__next__
    fixture = Fixture(directory, plant)
    kinds = works()
    for rounds in kinds.values():
        for frames in itertools.islice(rounds, WARMUP):
            fixture.check(frames)
    for size in (4, 64, 128):
        kinds[f"fetch {size} KiB"] = itertools.cycle(reading(fixture, size * KIB))
    kinds["fetch 64 KiB in a session"] = reading_in_session(fixture, 64 * KIB)
    gc.collect()
    gc.freeze()
    gc.disable()

    def count(work: str, ask: Callable[[list[Frame]], None], counted: list[list[Frame]]) -> None:
        library.begin_counting()
        for frames in counted:
            ask(frames)
        library.end_counting(work.encode())

    for work, rounds in kinds.items():
        count(work, fixture.check, _some(rounds))
    for work, rounds in crowds().items():
        for frames in itertools.islice(rounds, WARMUP):
            fixture.check_crowd(frames)
        count(work, fixture.check_crowd, _some(rounds, CROWD))
    for work, rounds in (sourced(fixture) | framed(fixture)).items():
        for frames in itertools.islice(rounds, WARMUP):
            fixture.check(frames)
        count(work, fixture.check, _some(rounds))
    fixture.stage.authorize(ACLS)
    for work in AUTHORIZED:
        for frames in itertools.islice(kinds[work], SPECIALISED):  # the first decision reads the ACLs
            fixture.check(frames)
        count(f"{work}, authorized", fixture.check, _some(kinds[work]))
    fixture.stage.limit_clients(QUOTA)
    for work in AUTHORIZED:
        for frames in itertools.islice(kinds[work], SPECIALISED):
            fixture.check(frames)
        count(f"{work}, authorized and measured", fixture.check, _some(kinds[work]))
    fixture.close()
    for name, figures in (("on", True), ("off", False)):
        for work, ask, late in late_works(Fixture(directory / name, figures=figures)):
            count(f"{work}, figures {name}", ask, late)
    fixture = Fixture(directory / "groups")
    beats = resting(fixture)
    for frames in itertools.islice(beats, SPECIALISED):
        fixture.check(frames)
    gc.collect()
    gc.freeze()
    count("heartbeat at rest", fixture.check, _some(beats))
    fixture.close()
    stage = idle(directory / "idle")
    gc.collect()
    gc.freeze()
    count(IDLE, lambda _: tick(stage), [[]] * REQUESTS)
    library.begin_counting()
    spend(REQUESTS * SPENT)
    library.end_counting(SPEND.encode())


def _some(rounds: Iterator[list[Frame]], clients: int = 1) -> list[list[Frame]]:
    """The next rounds that make ``REQUESTS``, if each of the clients sends them."""
    found: list[list[Frame]] = []
    while clients * sum(map(len, found)) < REQUESTS:
        found.append(next(rounds))
    return found


if __name__ == "__main__":
    main()
