"""Hostile bytes on a listener with TLS: before the handshake, in the middle of it, and behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import Done
from fleetlog.wire.apis import APIS
from tests.server.canary import Canary, create_topics
from tests.server.fuzzing import Report, frames, handshake_storm, hellos, storm
from tests.server.memory import rss_mib
from tests.support.harness import RunningServer
from tests.support.tls_fleet import TlsFleet
from tests.support.tls_listeners import Certificates, engines, hello, waiting

FRAMES = 3_000
HANDSHAKES = 3_000
GROWTH_MIB_MAX = 64


def empty(_: Any, context: Any) -> Done:
    return Done(m.response_class(context.api_key)(version=context.api_version))


@pytest.mark.parametrize("auth", ["none", "required"])
def test_hostile_handshakes_leave_nothing(
    certificates: Certificates, auth: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningServer(dict.fromkeys(APIS, empty), tls=[certificates.listener("SSL", auth)]) as server:
        answered = uvloop.run(handshake_storm(server.endpoint("SSL").port, hellos(hello(certificates), 3, 600)))
        assert answered > 250
        server.until(lambda: waiting(server) == 0 and engines(server) == 0, "the end of all handshakes")
        client = server.client("SSL", certificates.client(certificates.alice))
        assert client.ask(m.ApiVersionsRequest(version=0), 0).error_code == 0
        assert "a handshake failed" not in caplog.text
        assert "Traceback" not in caplog.text
        assert server.call(lambda: server.server.held_bytes) == 0


def test_a_small_storm_behind_the_handshake(certificates: Certificates) -> None:
    report = Report()
    with RunningServer(dict.fromkeys(APIS, empty), tls=[certificates.listener()]) as server:
        port, context = server.endpoint("SSL").port, certificates.client()
        uvloop.run(storm(port, frames(4, 900), report, 20.0, context=context))
        assert server.client("SSL", context).ask(m.ApiVersionsRequest(version=0), 0).error_code == 0
        server.until(lambda: len(server.server) <= 1, "the end of the fuzzed connections")
        assert server.call(lambda: server.server.budget.used) == 0
        assert server.call(lambda: server.server.held_bytes) == 0
    assert sum(report.sent.values()) == 900
    assert report.busy <= report.sent["framing"], "a whole frame was neither answered nor refused"
    assert report.answered > 90
    assert report.closed > 90


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.timeout(600)
def test_a_storm_of_frames_and_handshakes_on_a_real_broker(certificates: Certificates, tmp_path: Path) -> None:
    fleet = TlsFleet(tmp_path, certificates)
    try:
        broker = fleet.start().brokers[0]
        process, context = broker.process, certificates.client()
        assert process is not None
        create_topics(broker.port)
        began, report = hello(certificates), Report()

        async def both(seed: int, share: int) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    storm(fleet.ports["ONEWAY"], frames(seed, FRAMES // share), report, 0.25, context=context)
                )
                for kind in ("ONEWAY", "MUTUAL", "LOGIN", "BOTH"):
                    source = hellos(began, seed, HANDSHAKES // share // 4)
                    group.create_task(handshake_storm(fleet.ports[kind], source, workers=12))

        with Canary(fleet.ports["ONEWAY"], context) as canary:
            uvloop.run(both(1, 5))
            warm = rss_mib(process.pid)
            for seed in range(2, 6):
                sung = canary.rounds
                uvloop.run(both(seed, 5))
                assert process.poll() is None, broker.output()
                assert canary.failure is None, f"{canary.failure}\n{broker.output()}"
                assert canary.rounds > sung, "the canary was not served while the storm went on"
            after = rss_mib(process.pid)
        assert canary.failure is None, canary.failure
        print(f"{report}; canary {canary.rounds} rounds, slowest {canary.slowest_s:.2f} s; "
              f"memory {warm:.0f} -> {after:.0f} MiB")  # fmt: skip
        assert after - warm < GROWTH_MIB_MAX
        text = broker.log_file.read_text(errors="replace")
        assert "Traceback" not in text, broker.output()
        assert len(text) < 2_000_000, "the log grows with what peers send"
        assert broker.stop() == 0, broker.output()
    finally:
        fleet.close()
