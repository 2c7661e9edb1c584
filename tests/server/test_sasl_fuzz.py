"""Hostile frames on listeners with logins, with and without TLS: before a login, in the middle of it, and behind it.

``make test`` sends some; FLEETLOG_SASL_FRAMES says how many, and 50,000 are the whole.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import uvloop

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import Done
from fleetlog.brokers.logins.plain import PlainServer, verifier
from fleetlog.brokers.logins.sasl import SaslListener
from fleetlog.brokers.logins.scram import ScramMechanism, ScramServer
from fleetlog.wire.apis import APIS
from tests.server.canary import Canary, create_topics
from tests.server.fuzzing import Report, frames, login_preambles, storm
from tests.server.memory import rss_mib
from tests.support.harness import RunningServer
from tests.support.secured import PASSWORD, USER
from tests.support.tls_fleet import TlsFleet
from tests.support.tls_listeners import Certificates

FRAMES = int(os.environ.get("FLEETLOG_SASL_FRAMES", "1000"))
WHOLE = 50_000
SMALL = 260
PARTS = 5
GROWTH_MIB_MAX = 64
PEAK_MIB_MAX = 256
STATES = login_preambles(USER, PASSWORD)
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLEAR://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLEAR:SASL_PLAINTEXT",
    "connection.failed.authentication.delay.ms": "20",
}


def empty(_: Any, context: Any) -> Done:
    return Done(m.response_class(context.api_key)(version=context.api_version))


def logins() -> SaslListener:
    def scram(mechanism: ScramMechanism) -> ScramServer:
        return ScramServer(mechanism, lambda _: None, lambda: "nonce", b"secret")

    return SaslListener({
        "PLAIN": lambda: PlainServer(verifier({USER: PASSWORD})),
        "SCRAM-SHA-256": lambda: scram(ScramMechanism.SHA_256),
        "SCRAM-SHA-512": lambda: scram(ScramMechanism.SHA_512),
    })  # fmt: skip


@pytest.mark.parametrize("listener", ["CLEAR", "SASL_SSL"])
@pytest.mark.parametrize("state", STATES)
def test_a_small_storm_at_each_state_of_a_login(certificates: Certificates, listener: str, state: str) -> None:
    report, context = Report(), certificates.client() if listener == "SASL_SSL" else None
    sasl = dict.fromkeys(("CLEAR", "SASL_SSL"), logins())
    with RunningServer(dict.fromkeys(APIS, empty), SETTINGS, [certificates.listener("SASL_SSL")], sasl) as server:
        port = server.endpoint(listener).port
        uvloop.run(storm(port, frames(5, SMALL), report, 20.0, context=context, preamble=STATES[state]))
        server.until(lambda: len(server.server) == 0, "the end of the fuzzed connections")
        assert server.call(lambda: server.server.budget.used) == 0
        assert server.call(lambda: server.server.held_bytes) == 0
    assert sum(report.sent.values()) == SMALL
    assert report.busy <= report.sent["framing"], "a whole frame was neither answered nor refused"
    assert report.closed > SMALL // 10
    if state == "logged in":
        assert report.answered > SMALL // 10
    else:
        assert report.answered < SMALL // 20, "ApiVersions before a handshake, at most"


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.timeout(3600)
def test_a_storm_of_frames_around_logins_on_a_real_broker(certificates: Certificates, tmp_path: Path) -> None:
    fleet = TlsFleet(tmp_path, certificates, connection_failed_authentication_delay_ms=20)
    try:
        broker = fleet.start().brokers[0]
        process = broker.process
        assert process is not None
        create_topics(broker.port)
        contexts, report, resident = {"CLEAR": None, "LOGIN": certificates.client()}, Report(), []
        refused, served = frames(1, FRAMES), frames(2, FRAMES)

        def part() -> None:
            """Half of the frames behind a login."""
            for state, preamble in STATES.items():
                source, share = (served, 2) if state == "logged in" else (refused, 2 * (len(STATES) - 1))
                for name, context in contexts.items():
                    some = itertools.islice(source, FRAMES // PARTS // len(contexts) // share)
                    uvloop.run(storm(fleet.ports[name], some, report, 1.0, context=context, preamble=preamble))
            resident.append(rss_mib(process.pid))

        with Canary(broker.port) as canary:
            for _ in range(PARTS):
                sung = canary.rounds
                part()
                assert process.poll() is None, broker.output()
                assert canary.failure is None, f"{canary.failure}\n{broker.output()}"
                assert canary.rounds > sung, "the canary was not served while the storm went on"
        print(f"{report}; canary {canary.rounds} rounds, slowest {canary.slowest_s:.2f} s; "
              f"memory {[round(mib) for mib in resident]} MiB, peak {rss_mib(process.pid, 'VmHWM'):.0f}")  # fmt: skip
        assert report.answered > FRAMES // 40, "the logins are not done"
        assert rss_mib(process.pid, "VmHWM") < PEAK_MIB_MAX
        if FRAMES >= WHOLE:  # the first part has had all APIs in all versions several times
            assert resident[-1] - resident[0] < GROWTH_MIB_MAX
        text = broker.log_file.read_text(errors="replace")
        assert "Traceback" not in text, broker.output()
        assert PASSWORD not in text
        assert len(text) < 2_000_000, "the log grows with what peers send"
        assert broker.stop() == 0, broker.output()
    finally:
        fleet.close()
