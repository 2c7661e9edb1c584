"""``perf scale``: how cost grows with partitions, connections, message sizes and brokers. fleetlog alone.

``--only partitions`` (or connections, sizes, brokers) runs a part; ``--partitions`` and such are not options, because
the goals name 10,000 partitions and 11,000 connections.
"""

from __future__ import annotations

import resource
import signal
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

from fleetlog.wire import messages
from perf import generator
from perf.clients import cpu_s
from perf.generator import Flow
from perf.generator.frames import batch_of, fetch_frame, produce_frame
from perf.load import KIB, MIB, Load, Pace, merged
from perf.options import Options
from perf.peers import rss_mib
from perf.results import Results
from perf.rounds import interleave
from perf.targets import Address, TargetError
from perf.targets.fleetlog import Fleetlog

METADATA, METADATA_VERSION = 3, 12
PARTITIONS = (100, 1000, 10_000)
PARTITIONS_PER_TOPIC = 100
CONNECTIONS = (110, 1100, 11_000)
SIZES = ((100, "100 B"), (KIB, "1 KiB"), (10 * KIB, "10 KiB"), (100 * KIB, "100 KiB"), (MIB, "1 MiB"))
IDLE_S = 10.0
FETCH_WAIT_MS = 10_000
PRODUCE_RATE = 200.0
START_LIMIT_S = 180.0


def run(options: Options) -> Results:
    """All parts, or those that ``--only`` names."""
    results = Results.begin("scale", rounds=options.rounds, seconds=options.measure_s)
    parts: dict[str, Callable[[Results, Options], None]] = {
        "partitions": _partitions, "connections": _connections, "sizes": _sizes, "brokers": _brokers,
    }  # fmt: skip
    for name, part in parts.items():
        if options.wanted(name):
            part(results, options)
    return results


# ---- partitions


def _partitions(results: Results, options: Options) -> None:
    for count in PARTITIONS:
        with options.fleetlog().running() as cluster:
            results.add(f"{count} partitions", "fleetlog", _with_partitions(cluster, count, options))


def _with_partitions(cluster: Fleetlog, count: int, options: Options) -> dict[str, Any]:
    (broker,) = cluster.brokers
    started = time.monotonic()
    batch, _ = batch_of(KIB, KIB)
    for number in range(count // PARTITIONS_PER_TOPIC):
        cluster.create_topic(f"many-{number}", PARTITIONS_PER_TOPIC)
    created_s = time.monotonic() - started
    for number in range(count // PARTITIONS_PER_TOPIC):
        write_each(broker.address, [produce_frame(f"many-{number}", p, batch) for p in range(PARTITIONS_PER_TOPIC)])
    time.sleep(2)
    before = cpu_s(cluster)
    time.sleep(IDLE_S / 2 if options.short else IDLE_S)
    idle = (cpu_s(cluster) - before) / (IDLE_S / 2 if options.short else IDLE_S)
    found: dict[str, Any] = {"create_s": created_s, "rss_mib": rss_mib(cluster), "idle_cores": idle}
    found |= _metadata(cluster, broker.address)
    for how, number in (("clean", signal.SIGTERM), ("killed", signal.SIGKILL)):
        broker.end(number)
        started = time.monotonic()
        cluster.launch(broker)
        cluster.wait_serving(broker, START_LIMIT_S, 0.005)
        found[f"start_{how}_s"] = time.monotonic() - started
        _wait_led(broker.address, count, started)
        found[f"led_{how}_s"] = time.monotonic() - started
    found["rss_restarted_mib"] = rss_mib(cluster)
    return found


def write_each(address: Address, frames: list[Any]) -> None:
    """One request after the other. Raises TargetError for an answer with an error."""
    with socket.create_connection(address, timeout=60) as sock, sock.makefile("rb") as answers:
        for frame in frames:
            sock.sendall(frame.data)
            answer = answers.read(int.from_bytes(answers.read(4), "big"))
            error = int.from_bytes(answer[frame.error_at : frame.error_at + 2], "big")
            if error:
                raise TargetError(f"a Produce was answered with error code {error}")


def _ask_metadata(address: Address) -> bytes:
    request = messages.request_class(METADATA)(version=METADATA_VERSION, topics=None, allow_auto_topic_creation=False)
    frame = messages.encode_request(METADATA, METADATA_VERSION, 1, "perf", request)
    with socket.create_connection(address, timeout=60) as sock, sock.makefile("rb") as answers:
        sock.sendall(frame)
        return answers.read(int.from_bytes(answers.read(4), "big"))


def _metadata(cluster: Fleetlog, address: Address, times: int = 30) -> dict[str, float]:
    """Metadata of everything: how long an answer takes, and how long it keeps the loop."""
    _ask_metadata(address)
    before, walls = cpu_s(cluster), []
    for _ in range(times):
        started = time.monotonic()
        size = len(_ask_metadata(address))
        walls.append((time.monotonic() - started) * 1000)
    return {
        "metadata_ms": statistics.median(walls),
        "metadata_cpu_ms": (cpu_s(cluster) - before) / times * 1000,
        "metadata_kib": size / 1024,
    }


def _wait_led(address: Address, count: int, started: float) -> None:
    """Until all partitions have a leader again."""
    while True:
        _, body = messages.split_response(METADATA, METADATA_VERSION, _ask_metadata(address))
        answer = messages.decode_response(METADATA, METADATA_VERSION, body)
        led = sum(
            partition.leader_id >= 0 and not partition.error_code
            for topic in answer.topics
            for partition in topic.partitions
        )
        if led >= count:
            return
        if time.monotonic() - started > START_LIMIT_S:
            raise TargetError(f"only {led} of {count} partitions are led after {START_LIMIT_S:.0f} s")
        time.sleep(0.05)


# ---- connections


def _connections(results: Results, options: Options) -> None:
    """A producer for ten consumers that wait for data: each batch is fetched by the ten of its partition."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for count in CONNECTIONS:
        if hard < count + 2000:
            raise TargetError(f"{count} connections need `ulimit -n` above {count + 2000}; here it is {hard}")
        with options.fleetlog(max_connections=20_000, max_connections_per_ip=20_000).running() as cluster:
            results.add(f"{count} connections", "fleetlog", _with_connections(cluster, count, options))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _with_connections(cluster: Fleetlog, count: int, options: Options) -> dict[str, Any]:
    producers, consumers = count // 11, count - count // 11
    partitions = producers  # so that a partition has ten consumers
    (broker,) = cluster.brokers
    cluster.create_topic("fan", partitions)
    batch, records = batch_of(KIB, KIB)
    writes = [produce_frame("fan", number, batch) for number in range(partitions)]
    write_each(broker.address, writes)
    batches: dict[str, Any] = {"batch_bytes": len(batch), "batch_records": records, "max_bytes": MIB}
    reads = [fetch_frame("fan", number, max_wait_ms=FETCH_WAIT_MS, **batches) for number in range(partitions)]
    before = rss_mib(cluster)
    rate = PRODUCE_RATE * producers / 1000
    flows = [
        Flow("consumers", *broker.address, reads, connections=consumers, depth=1),
        Flow("producers", *broker.address, writes, connections=producers, rate=rate),
    ]
    result = generator.run(
        flows, pids=cluster.pids, warmup_s=FETCH_WAIT_MS / 1000, measure_s=2 * options.measure_s, drain_s=2.0
    )
    produced, consumed = result.flow("producers"), result.flow("consumers")
    latency = merged([produced.latency])
    return {
        "produces_s": produced.requests / result.seconds,
        "fetches_s": consumed.requests / result.seconds,
        "p50_ms": latency.percentile_ms(50),
        "p99_ms": latency.percentile_ms(99),
        "cores": result.cpu_s / result.seconds,
        "connection_kib": (result.processes[0].rss_kib - before * 1024) / count,
        "rss_mib": result.processes[0].rss_kib / 1024,
        "unanswered": produced.unanswered,
        "others_cores": result.others_share,
    }


# ---- sizes and brokers


def _sizes(results: Results, options: Options) -> None:
    loads = [Load(f"messages of {name}", batch_bytes=size, record_bytes=size) for size, name in SIZES]
    with options.fleetlog().running() as cluster:
        interleave(results, [cluster], loads, options.pace, options.rounds)


def _brokers(results: Results, options: Options) -> None:
    """The same load on one, two and three brokers, with one replica and with as many as there are brokers."""
    pace = Pace(options.warmup_s, options.measure_s)
    for count in (1, 2, 3):
        with options.fleetlog(count).running() as cluster:
            loads = [Load(f"{count} brokers, 1 replica", partitions=6, connections=6)]
            if count > 1:
                loads.append(Load(f"{count} brokers, {count} replicas", partitions=6, connections=6, replicas=count))
            interleave(results, [cluster], loads, pace, options.rounds)
