"""The load generator: it counts what happened, and what should have happened while a server stalled."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetlog._native.batch import scan
from fleetlog.wire import hot, messages
from perf import generator
from perf.generator import Flow, GeneratorError, Latency
from perf.generator.frames import batch_of, fetch_frame, produce_frame
from perf.load import KIB, MIB, Load, Pace, Prepared, merged, numbers, send_all
from perf.targets.floor import Floor

TOPIC = "a-topic"


@pytest.fixture
def floor(tmp_path: Path) -> Iterator[Floor]:
    with Floor(tmp_path).running() as floor:
        floor.create_topic(TOPIC, 2)
        yield floor


def answer(key: int, version: int, body: bytes) -> bytes:
    return messages.encode_response_header(key, version, 1) + body


@pytest.mark.parametrize("size", [100, KIB, 16 * KIB, 128 * KIB])
@pytest.mark.parametrize("record", [100, KIB])
def test_batches_have_the_size_that_was_asked_for(size: int, record: int) -> None:
    batch, count = batch_of(size, record)
    (found,) = scan(batch)
    assert found[1].record_count == count == max(1, size // record)
    assert 0.9 * size - 70 <= len(batch) <= size + 70


def test_the_place_of_a_produce_error() -> None:
    frame = produce_frame(TOPIC, 3, batch_of(KIB, KIB)[0])
    request = hot.decode_produce(
        11, memoryview(frame.data)[4 + messages.parse_request_header(memoryview(frame.data)[4:]).body :]
    )
    body = hot.encode_produce_response(11, [(request.parts[0], hot.ProduceOutcome(87))])
    assert int.from_bytes(answer(0, 11, body)[frame.error_at :][:2], "big") == 87


def test_the_places_in_a_fetch_answer() -> None:
    frame = fetch_frame(TOPIC, 3, batch_bytes=KIB, batch_records=1, max_bytes=MIB, offset=77)
    assert int.from_bytes(frame.data[frame.offset_at :][:8], "big") == 77
    header = messages.parse_request_header(memoryview(frame.data)[4:])
    (part,) = hot.decode_fetch(12, memoryview(frame.data)[4 + header.body :]).parts
    assert (part.topic, part.partition, part.fetch_offset) == (TOPIC, 3, 77)
    encoded = hot.encode_fetch_response(12, [(part, hot.FetchOutcome(6, 1, 1, 0))])
    whole = answer(1, 12, b"".join(encoded.chunks))
    assert int.from_bytes(whole[frame.error_at :][:2], "big") == 6
    assert whole[frame.records_at] == 1, "no records: a compact length of nothing"


def test_a_closed_loop_counts_what_the_server_did(floor: Floor) -> None:
    batch, _ = batch_of(KIB, KIB)
    frames = [produce_frame(TOPIC, number, batch) for number in range(2)]
    flow = Flow("p", *floor.leaders(TOPIC)[0], frames, connections=2, depth=4)
    result = generator.run([flow], pids=floor.pids, warmup_s=0, measure_s=0.5)
    (found,) = result.flows
    written = sum(path.stat().st_size for path in floor.home.rglob("*.log") if path.parent.name == "data") // len(batch)
    assert found.payload_bytes == found.requests * len(batch)
    assert found.latency.total == found.requests
    # what was under way when the window closed is written, but not counted
    assert found.requests <= written <= found.requests + 2 * 4
    assert result.processes[0].pid == floor.pids[0]
    assert result.processes[0].cpu_s >= 0


def test_fetches_go_round_and_round(floor: Floor) -> None:
    load = Load(
        "f", fetch=True, batch_bytes=4 * KIB, partitions=2, connections=2, max_bytes=64 * KIB, hot_bytes=512 * KIB
    )
    prepared = Prepared(floor, load)
    row = numbers(prepared.run(Pace(0.0, 0.5)), load)
    batch, _ = batch_of(4 * KIB, KIB)
    per_answer = 64 * KIB // len(batch)
    payload_per_request = row["mb_s"] * 1e6 / row["requests_s"]
    assert payload_per_request == pytest.approx(per_answer * len(batch)), "every answer is full, also after the end"


def test_errors_are_not_measured_as_success(floor: Floor) -> None:
    batch, _ = batch_of(KIB, KIB)
    frame = produce_frame(TOPIC, 0, batch)
    broken = frame._replace(data=frame.data[:-20] + b"x" * 10 + frame.data[-10:])
    flow = Flow("p", *floor.leaders(TOPIC)[0], [broken], depth=1)
    with pytest.raises(GeneratorError, match=r"error codes \{2: "):
        generator.run([flow], warmup_s=0, measure_s=0.2)
    with pytest.raises(Exception, match="error code 2"):
        send_all(floor.leaders(TOPIC)[0], broken, 3)


@contextmanager
def stalling_server(stall_s: float, after: int) -> Iterator[int]:
    """Answers every request at once, but once, after so many, with a pause."""
    body = hot.encode_produce_response(11, [(hot.ProducePart(TOPIC, None, 0, None), hot.ProduceOutcome(0, 0))])
    reply = answer(0, 11, body)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = listener.accept()
        with sock, sock.makefile("rb") as requests:
            seen = 0
            while head := requests.read(4):
                requests.read(int.from_bytes(head, "big"))
                seen += 1
                if seen == after:
                    time.sleep(stall_s)
                sock.sendall(len(reply).to_bytes(4, "big") + reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    thread.join(10)
    listener.close()


def test_what_was_due_during_a_stall_is_counted_as_late() -> None:
    """No coordinated omission: a stall of 400 ms at 500 requests/s delays about 200 requests, not one."""
    rate, stall_s = 500.0, 0.4
    with stalling_server(stall_s, after=100) as port:
        frame = produce_frame(TOPIC, 0, batch_of(100, 100)[0])
        flow = Flow("p", "127.0.0.1", port, [frame], rate=rate)
        result = generator.run([flow], warmup_s=0, measure_s=1.5, forgive=True)
    (found,) = result.flows
    assert found.requests == pytest.approx(rate * 1.5, abs=2), "all that were due are counted"
    late = sum(count for value, count in found.latency.counts if value > 0.1 * 1e9)
    assert late >= 0.6 * rate * (stall_s - 0.1)
    assert found.latency.percentile_ms(100) >= stall_s * 1000 * 0.9


def test_percentiles_are_those_of_all_processes_together() -> None:
    latency = merged([Latency([(1_000_000, 98), (5_000_000, 1)]), Latency([(9_000_000, 1)])])
    assert [latency.percentile_ms(share) for share in (50, 98, 99, 100)] == [1, 1, 5, 9]
    assert math.isnan(Latency([]).percentile_ms(50))


def test_a_flow_is_closed_or_open() -> None:
    frame = produce_frame(TOPIC, 0, batch_of(100, 100)[0])
    flow = Flow("p", "127.0.0.1", 1, [frame])
    for wrong in (flow, replace(flow, depth=1, rate=1.0)):
        with pytest.raises(AssertionError, match="closed or open"):
            wrong.line(Path("frames"))


def test_no_server_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: Any = probe.getsockname()[1]
    frame = produce_frame(TOPIC, 0, batch_of(100, 100)[0])
    with pytest.raises(GeneratorError, match="connect"):
        generator.run([Flow("p", "127.0.0.1", port, [frame], depth=1)])
