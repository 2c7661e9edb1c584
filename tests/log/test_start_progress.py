"""How far the start is with the logs, while it loads them and no loop moves."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from fleetlog.brokers.config import load_config
from fleetlog.brokers.log import LogStore, RealDisk
from fleetlog.brokers.log.log import Log
from fleetlog.brokers.log.store import TOLD_MS
from fleetlog.brokers.metrics.registry import Metrics, StartFigures
from fleetlog.brokers.server.admin import Admin
from tests.support.clocks import ManualClock
from tests.support.stage import Stage

SIZES = (3, 5, 7)


def filled(directory: Path) -> int:
    """Logs of three partitions that no stop has closed; returns their bytes."""
    stage = Stage(directory)
    stage.topic("t", len(SIZES))
    for index, count in enumerate(SIZES):
        stage.append("t", count, index)
    total = sum(stage.partition("t", index).log.size_bytes for index in range(len(SIZES)))
    stage.logs.close(clean=False)
    return total


def store(directory: Path, figures: StartFigures, clock: ManualClock) -> LogStore:
    settings = {"broker.id": "1", "zookeeper.connect": "none:1", "log.dirs": str(directory / "data")}
    return LogStore(load_config(overrides=settings), RealDisk(), clock, start_figures=figures)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int, bool]]:
    """What the figures are when a log is opened."""
    found: list[tuple[int, int, int, bool]] = []
    opened = Log.open.__func__  # type: ignore[attr-defined]

    def noted(cls: type[Log], *given: object, **more: object) -> Log:
        one = FIGURES[-1]
        found.append((one.logs_done, one.logs_left, one.bytes_left, one.under_way))
        CLOCKS[-1].now_ms += TOLD_MS
        log: Log = opened(cls, *given, **more)
        return log

    monkeypatch.setattr(Log, "open", classmethod(noted))
    return found


FIGURES: list[StartFigures] = []
CLOCKS: list[ManualClock] = []


def test_logs_and_bytes_are_counted_down(
    tmp_path: Path, seen: list[tuple[int, int, int, bool]], caplog: pytest.LogCaptureFixture
) -> None:
    FIGURES.append(StartFigures())
    CLOCKS.append(ManualClock())
    total = filled(tmp_path)
    seen.clear()
    caplog.set_level(logging.INFO)
    figures = FIGURES[-1]
    logs = store(tmp_path, figures, CLOCKS[-1])
    logs.load()
    assert [(done, left, under_way) for done, left, _, under_way in seen] == [(0, 3, True), (1, 2, True), (2, 1, True)]
    sizes = [size for _, _, size, _ in seen]
    assert sizes[0] == total > sizes[1] > sizes[2] > 0
    assert (figures.logs_done, figures.logs_left, figures.bytes_left, figures.under_way) == (3, 0, 0, False)
    assert figures.seconds == 3 * TOLD_MS / 1000
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("loading logs: ")]
    assert [line.split(", at most")[0] for line in told] == [
        "loading logs: 1 done, 2 left", "loading logs: 2 done, 1 left",
    ]  # fmt: skip
    logs.close(clean=True)
    seen.clear()
    store(tmp_path, figures, CLOCKS[-1]).load()
    assert [size for _, _, size, _ in seen] == [0, 0, 0], "after a clean stop nothing is checked"


def test_the_endpoint_tells_it_while_the_loop_stands_still() -> None:
    metrics = Metrics()

    async def scraped() -> tuple[bytes, bytes]:
        admin = Admin(metrics, lambda: "starting")
        admin._main = asyncio.new_event_loop()  # it never runs
        metrics.start.under_way, metrics.start.logs_left, metrics.start.bytes_left = True, 7, 2_500
        try:
            page = await admin.answer(b"GET /metrics HTTP/1.1\r\n\r\n")
            ready = await admin.answer(b"GET /health/ready HTTP/1.1\r\n\r\n")
        finally:
            admin._main.close()
        return page, ready

    page, ready = asyncio.run(scraped())
    assert page.startswith(b"HTTP/1.1 200 OK")
    assert b"\nfleetlog_start_logs_left 7.0\n" in page
    assert b"\nfleetlog_start_bytes_left 2500.0\n" in page
    assert b"fleetlog_requests" not in page
    assert ready.startswith(b"HTTP/1.1 503")
    assert b"not ready: loading logs: 0 done, 7 left, 2500 bytes of these to check\n" in ready
