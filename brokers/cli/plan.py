"""``fleetlog plan``: what a fleet needs for a load, from what perf measured. It asks no broker."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from itertools import pairwise
from typing import Any

import click

from fleetlog.brokers.cli.options import REPLICA_COUNT
from fleetlog.brokers.cli.output import Output, bytes_text, table
from fleetlog.brokers.cli.times import DurationType

_NUMBER = r"([0-9]{1,3}(?:,[0-9]{3}){1,4}|[0-9]{1,15}(?:\.[0-9]{1,9})?)"
_RATE = re.compile(_NUMBER + r"([kM]?)(?:/s)?")
_SIZE = re.compile(_NUMBER + r" ?(?:([kmgt])(i?))?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
RATE_MAX, SIZE_MAX = 10**12, 2**31 - 1
DAY_S, MONTH_DAYS = 86_400, 30
DISK_FULL = 0.8
"""How full disks may be: retention removes whole segments, and a broker that is replaced takes its time."""
USUAL_MAX_BYTES = 1_048_588
"""Kafka's default of ``max.message.bytes``."""
SEGMENT_BYTES, PART_BYTES, CHUNK_BYTES = 1 << 30, 8 << 20, 4 << 20
"""Of a bucket: a segment, the parts in which it is sent, and what one GET of a reader brings."""
COPY_CPU_S_GB = 0.4
"""What copying a GB into a bucket is to cost at most, by the design of tiering."""


def _rate(_: click.Context, __: click.Parameter, value: str) -> float:
    match = _RATE.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a rate of messages such as 1000000/s or 1.5M/s")
    rate = float(match[1].replace(",", "")) * {"": 1, "k": 10**3, "M": 10**6}[match[2]]
    if not 0 < rate <= RATE_MAX:
        raise click.BadParameter(f"{value!r}: the rate must be above 0 and at most {RATE_MAX:.0e}/s")
    return rate


def _size(_: click.Context, __: click.Parameter, value: str) -> int:
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size such as 1000, 1KB (1000 bytes) or 16KiB (16384)")
    base = 1024 if match[3] else 1000
    size = round(float(match[1].replace(",", "")) * float(base ** _POWERS[(match[2] or "").lower()]))
    if not 0 < size <= SIZE_MAX:
        raise click.BadParameter(f"{value!r}: the size must be from 1 byte to 2 GiB less one")
    return size


def _prices(_: click.Context, __: click.Parameter, value: str) -> tuple[float, ...]:
    words = value.split(",")
    if len(words) != 3 or not all(re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", word.strip()) for word in words):
        raise click.BadParameter(f"{value!r} is not three prices like 0.023,0.005,0.0004: of a GB a month, PUTs, GETs")
    return tuple(float(word) for word in words)


def _lasting(_: click.Context, __: click.Parameter, value: int | None) -> int | None:
    if value is not None and value <= 0:
        raise click.BadParameter("a time above 0, such as 7d; for data without an end no disk is large enough")
    return value


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked: messages a second, bytes, copies, how often all is read, and what is assumed of the producers."""

    rate: float
    size: int
    retention_ms: int
    replicas: int
    readers: int
    batch: int
    busy: float

    @property
    def written(self) -> float:
        """Bytes a second, one copy."""
        return self.rate * self.size

    @property
    def request(self) -> int:
        """Bytes that come to a partition by one request."""
        return max(self.size, self.batch)


class Measured:
    """The CPU seconds a GB that perf measured, by case; ``missing`` are sentences on what lies between or beyond."""

    def __init__(self, figures: dict[str, Any]) -> None:
        self.suites = figures
        self.missing: list[str] = []

    def cpu(self, suite: str, case: str) -> float:
        """CPU seconds of all brokers for a GB that is written, or read."""
        return float(self.suites[suite]["cpu_s_gb"][case])

    def produce(self, size: int, replicas: int) -> float:
        """CPU seconds for a GB that comes in requests of a size, with all copies of it."""
        alone = self._of_requests("peers", size)
        if replicas == 1:
            return alone
        each = (self._of_requests("peers-3", size) - alone) / 2
        if replicas != 3:
            self.missing.append(f"CPU of {replicas} replicas: on the line through the measured 1 and 3")
        return alone + each * (replicas - 1)

    def _of_requests(self, suite: str, size: int) -> float:
        known = sorted((1024 * kib, self.cpu(suite, f"produce {kib} KiB")) for kib in (1, 16, 128))
        if size <= known[0][0]:
            self._note(size < known[0][0], f"CPU of requests of {size} B: each as dear as one of 1 KiB")
            return known[0][1] * known[0][0] / size
        if size >= known[-1][0]:
            self._note(size > known[-1][0], f"CPU of requests of {bytes_text(size)}: a GB as dear as in 128 KiB")
            return known[-1][1]
        self._note(size not in dict(known), f"CPU of requests of {bytes_text(size)}: between the measured sizes")
        low, high = next(pair for pair in pairwise(known) if pair[0][0] <= size <= pair[1][0])
        part = math.log(size / low[0]) / math.log(high[0] / low[0])
        return float(low[1] * (high[1] / low[1]) ** part)

    def _note(self, true: bool, text: str) -> None:
        if true and text not in self.missing:
            self.missing.append(text)


def planned(load: Load, measured: Measured, bucket: bool = False) -> dict[str, Any]:
    """Cores, brokers, network and disks; cores and brokers from what was measured, the rest by multiplying."""
    produce = measured.produce(load.request, load.replicas)
    read = measured.cpu("peers", "fetch 64 KiB")
    cores = load.written / 1e9 * (produce + load.readers * read + bucket * COPY_CPU_S_GB)
    spare = int(load.replicas > 1)
    brokers = max(load.replicas, math.ceil(cores / load.busy - 1e-9) + spare)
    seen = measured.suites["peers-3" if spare else "peers"]["mb_s"]["produce 128 KiB"]
    if load.written > seen * 1e6:
        measured.missing.append(f"a load of {bytes_text(round(load.written))}/s: {seen:g} MB/s were measured at most")
    if brokers > 3:
        measured.missing.append(f"{brokers:,} brokers: at most 3 were measured, on one machine without a network")
    came, left = load.written * load.replicas, load.written * (load.replicas - 1 + load.readers + bucket)
    copy = load.written * load.retention_ms / 1000
    working, each = brokers - spare, max(brokers - spare, load.replicas)  # a broker has one copy of a partition at most
    kept = copy * load.replicas
    return {
        "written_bytes_s": load.written,
        "cpu_s_gb": {"produce": produce, "read": read},
        "cores": cores,
        "brokers": brokers,
        "network_bytes_s": {"in": came, "out": left, "broker_in": came / each, "broker_out": left / working},
        "disk_bytes": {"kept": kept, "needed": kept / DISK_FULL, "broker": kept / DISK_FULL / each},
        "disk_write_bytes_s": {"all": came, "broker": came / each},
    }


def bucket_plan(load: Load, prices: tuple[float, ...]) -> dict[str, Any]:
    """Objects, requests and cost of a bucket by the design of tiering, full segments taken for granted."""
    segments = load.written * DAY_S / SEGMENT_BYTES
    requests = SEGMENT_BYTES // PART_BYTES + 2 + 1 + 1  # parts, begin and end; the indexes; the manifest
    kept = load.written * load.retention_ms / 1000
    puts_gb, gets_gb = requests / SEGMENT_BYTES * 1e9, 1e9 / CHUNK_BYTES
    month_gb = load.written * DAY_S * MONTH_DAYS / 1e9
    return {
        "kept_bytes": kept,
        "objects_day": segments * 3,
        "requests_gb": {"copied": puts_gb, "read": gets_gb},
        "usd_month": {"kept": kept / 1e9 * prices[0], "copying": month_gb * puts_gb / 1000 * prices[1]},
        "usd_tb_read": 1000 * gets_gb / 1000 * prices[2],
        "prices_usd": dict(zip(("gb_month", "thousand_puts", "thousand_gets"), prices, strict=True)),
    }


def _shown(load: Load, plan: dict[str, Any], local_ms: int) -> list[tuple[str, str, str]]:
    net, disk, cpu = plan["network_bytes_s"], plan["disk_bytes"], plan["cpu_s_gb"]

    def size(number: float) -> str:
        return bytes_text(round(number))

    down = "one of them may be down" if load.replicas > 1 else "with one replica none may be down"
    per_gb = f"a GB: {cpu['produce']:.3g} CPU s to write, {cpu['read']:.3g} to read"
    each = f"a broker: {size(net['broker_in'])}/s in, {size(net['broker_out'])}/s out"
    rows = [
        ("written", f"{size(load.written)}/s", f"{load.rate:,.15g} messages/s of {size(load.size)}, as they are sent"),
        ("CPU", _cores(plan["cores"]), per_gb),
        ("brokers", f"{plan['brokers']:,}", f"a core each, {load.busy:.0%} busy; {down}"),
        ("network", f"{size(net['in'])}/s in, {size(net['out'])}/s out", each),
        ("disks", size(disk["needed"]), f"{size(disk['kept'])} for {_days(local_ms)}, {DISK_FULL:.0%} full at most"),
        ("a broker's disks", size(disk["broker"]), f"{size(plan['disk_write_bytes_s']['broker'])}/s written"),
    ]
    if bucket := plan.get("bucket"):
        usd, requests = bucket["usd_month"], bucket["requests_gb"]
        back = f"and USD {bucket['usd_tb_read']:.2f} for the requests of each TB that is read back"
        rows += [
            ("bucket", size(bucket["kept_bytes"]), f"one copy of {_days(load.retention_ms)}"),
            ("objects a day", f"{bucket['objects_day']:,.0f}", "log, indexes and manifest of each segment of 1 GiB"),
            ("requests a GB", f"{requests['copied']:.0f} to copy, {requests['read']:.0f} to read", "of 8 and 4 MiB"),
            ("cost a month", f"USD {usd['kept']:,.0f} kept, {usd['copying']:,.0f} copying", back),
        ]
    return rows


def _cores(number: float) -> str:
    return f"{number:,.0f} cores" if number >= 100 else f"{number:.1f} cores" if number >= 0.1 else "below 0.1 cores"


def _days(ms: int) -> str:
    return f"{ms / 1000 / DAY_S:.3g} days" if ms >= 2 * DAY_S * 1000 else f"{ms / 3_600_000:.3g} hours"


def _of(callback: Callable[..., Any], name: str, **options: Any) -> Callable[[Any], Any]:
    return click.option(name, callback=callback, show_default="default" in options, **options)


@click.command("plan")
@_of(_rate, "--rate", required=True, metavar="MESSAGES/s", help="Messages that are written: 1000000/s, 1M/s.")
@_of(_size, "--size", required=True, help="Of a message as it is sent, compressed: 1KB (1000 bytes), 1KiB (1024).")
@_of(_lasting, "--retention", type=DurationType(), default="7d", help="How long messages are kept.")
@click.option("--replicas", type=REPLICA_COUNT, default=3, show_default=True, help="Copies of each partition.")
@click.option("--readers", type=click.IntRange(0, 10_000), default=1, show_default=True, help="How often all is read.")
@_of(_size, "--batch", default="16KiB", help="What a producer sends to a partition at once (its batch.size).")
@click.option("--busy", type=click.IntRange(1, 90), default=50, show_default=True, help="Percent of a core in use.")
@click.option("--bucket", is_flag=True, help="With tiered storage: its costs are the design's, not measured.")
@_of(_lasting, "--local-retention", type=DurationType(), help="With --bucket: time on disks.  [default: 1d]")
@_of(_prices, "--prices", default="0.023,0.005,0.0004", help="USD for a GB a month, 1,000 PUTs, 1,000 GETs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def plan_fleet(
    *, rate: float, size: int, retention: int, replicas: int, readers: int, batch: int, busy: int, bucket: bool,
    local_retention: int | None, prices: tuple[float, ...], as_json: bool,
) -> None:  # fmt: skip
    """Say what a fleet needs for a load: brokers, cores, network, disks.

    \b
      fleetlog plan --rate 1000000/s --size 1KB --retention 7d --replicas 3 --readers 5

    CPU is what perf measured; where and when is shown, and what lies beyond is named. No broker is asked.
    """
    if local_retention is not None and not bucket:
        raise click.UsageError("--local-retention is what disks keep beside a bucket: add --bucket")
    if local_retention is not None and local_retention > retention:
        raise click.UsageError("--local-retention is longer than --retention: disks keep nothing that is deleted")
    local_ms = min(local_retention or DAY_S * 1000, retention) if bucket else retention
    load = Load(rate, size, retention, replicas, readers, batch, busy / 100)
    measured = Measured(json.loads((files("fleetlog.brokers.cli") / "plan_figures.json").read_text()))
    answer = planned(replace(load, retention_ms=local_ms), measured, bucket)
    if bucket:
        answer["bucket"] = bucket_plan(load, prices)
    if size > USUAL_MAX_BYTES:
        measured.missing.append(f"messages of {bytes_text(size)}, which take a larger max.message.bytes")
    sources = {name: suite["about"] for name, suite in measured.suites.items() if name == "peers" or replicas > 1}
    if as_json:
        asked = {**asdict(load), "local_retention_ms": local_ms}
        answer |= {"asked": asked, "measured": sources, "not_measured": measured.missing, "bucket_is_planned": bucket}
        Output(as_json=True).value(answer)
        return
    table(["what", "needed", "that is"], _shown(load, answer, local_ms))
    for source in sources.values():
        click.echo(f"Measured: {source}.")
    for text in measured.missing:
        click.echo(f"Not measured: {text}.")
    if bucket:
        click.echo("Not measured: the bucket; this is what its design costs.")
