"""Hostile bytes on the port: the broker never ends, hangs or grows, and serves others throughout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import uvloop

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import Done
from fleetlog.wire.apis import APIS
from tests.server.canary import Canary, create_topics
from tests.server.fuzzing import Report, frames, storm
from tests.server.memory import rss_mib
from tests.support.fleet import Fleet
from tests.support.harness import Client, RunningServer
from tests.support.message_defaults import assert_defaults_untouched
from tests.support.waiting import eventually

FRAMES = 100_000  # 80 % and more of them pass framing
WARM_UP = 15_000
GROWTH_MIB_MAX = 64
PEAK_MIB_MAX = 256
CHUNK = 5_000


def _run(port: int, source: Any, report: Report, patience_s: float = 0.25) -> None:
    uvloop.run(storm(port, source, report, patience_s))


def test_the_mix_passes_framing_and_covers_everything() -> None:
    kinds = [(kind, frame) for kind, frame in frames(1, 4000)]
    framed = [frame for kind, frame in kinds if kind != "framing"]
    assert len(framed) >= 0.8 * len(kinds)
    assert all(int.from_bytes(frame[:4], "big") == len(frame) - 4 for frame in framed)
    headers = {(int.from_bytes(f[4:6], "big"), int.from_bytes(f[6:8], "big")) for f in framed}
    for key, row in APIS.items():
        assert all((key, version) in headers for version in range(row.lowest, row.max_version + 1))


def test_a_small_storm_on_the_dispatcher_alone() -> None:
    """Without handlers: framing, headers, decoding, connections. Whatever decodes is answered by its API's error."""

    def handler(request: Any, context: Any) -> Done:
        return Done(m.response_class(context.api_key)(version=context.api_version))

    report = Report()
    with RunningServer(dict.fromkeys(APIS, handler)) as server:
        _run(server.endpoint().port, frames(2, 3000), report, patience_s=20.0)
        assert server.client().ask(m.ApiVersionsRequest(version=0), 0).error_code == 0
        server.until(lambda: len(server.server) <= 1, "the end of the fuzzed connections")
        assert server.call(lambda: server.server.budget.used) == 0
    assert sum(report.sent.values()) == 3000
    assert report.busy <= report.sent["framing"], "a whole frame was neither answered nor refused"
    assert report.answered > 300
    assert report.closed > 300
    assert_defaults_untouched()


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_frames_on_a_real_broker(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, brokers=1)
    try:
        broker = fleet.start().brokers[0]
        process = broker.process
        assert process is not None
        create_topics(broker.port)
        report = Report()
        source = frames(20_261_121, FRAMES)
        with Canary(broker.port) as canary:
            _run(broker.port, (next(source) for _ in range(WARM_UP)), report)
            warm = rss_mib(process.pid)
            sung = canary.rounds
            for _ in range(WARM_UP, FRAMES, CHUNK):
                _run(broker.port, (next(source) for _ in range(CHUNK)), report)
                assert process.poll() is None, broker.output()
                assert canary.failure is None, f"{canary.failure}\n{broker.output()}"
                assert canary.rounds > sung, "the canary was not served while the storm went on"
                sung = canary.rounds
            after = rss_mib(process.pid)
        assert canary.failure is None, canary.failure
        print(f"{report}; canary {canary.rounds} rounds, {canary.retries} retries, slowest {canary.slowest_s:.2f} s; "
              f"memory {warm:.0f} -> {after:.0f} MiB, peak {rss_mib(process.pid, 'VmHWM'):.0f}")  # fmt: skip
        assert sum(report.sent.values()) == FRAMES
        assert FRAMES - report.sent["framing"] >= 0.8 * FRAMES
        assert after - warm < GROWTH_MIB_MAX
        assert rss_mib(process.pid, "VmHWM") < PEAK_MIB_MAX
        eventually(
            lambda: Client(broker.port).ask(m.ApiVersionsRequest(version=0), 0).error_code == 0, "the broker answers"
        )
        traces = [line for line in broker.log_file.read_text(errors="replace").splitlines() if "Traceback" in line]
        assert not traces, f"{len(traces)} handlers failed, see {broker.log_file}:\n{broker.output()}"
        assert broker.stop() == 0, broker.output()
    finally:
        fleet.close()
