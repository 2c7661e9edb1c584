"""Calls to peers over TLS, against Python's own TLS and against peers that refuse, dawdle and lie."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from fleetlog.brokers.model import BrokerId, BrokerInfo, Endpoint
from fleetlog.brokers.peers.calls import Peers, PeerUnavailable
from fleetlog.brokers.tls.contexts import CertificateFiles, FollowedContexts, client_context, server_context
from fleetlog.brokers.tls.machine import HANDSHAKE_BYTES_MAX, TlsEngine
from fleetlog.brokers.tls.settings import TlsSettings
from fleetlog.coordination.ports import free_ports
from tests.support.certificates import Authority
from tests.support.clocks import running_timers
from tests.support.peer_server import KEY, Server, answer, prompt, request
from tests.support.tls_terminator import TlsTerminator


class TlsFiles:
    """Certificates of two authorities, and the sides of a connection that use them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority, self.stranger = Authority(directory, "authority"), Authority(directory, "stranger")
        self.one = self.authority.pair("/CN=one").store(directory / "one.pem")
        self.mallory = self.stranger.pair("/CN=mallory").store(directory / "mallory.pem")
        self.elsewhere = self.authority.pair("/CN=one", names="DNS:b.example").store(directory / "elsewhere.pem")

    def settings(self, own: str, **more: str) -> TlsSettings:
        dotted = {"ssl." + name.replace("_", "."): text for name, text in more.items()}
        return TlsSettings.of({
            "ssl.keystore.type": "PEM", "ssl.keystore.location": own,
            "ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.file, **dotted,
        })  # fmt: skip

    def server(self, own: str, auth: str = "required", **more: str) -> ssl.SSLContext:
        return server_context(self.settings(own, client_auth=auth, **more), time.time()).context

    def peers(self, port: int, own: str = "", host: str = "127.0.0.1", **more: str) -> Peers:
        files = CertificateFiles(self.settings(own or self.one, **more), client_context, time.time())
        brokers = {0: BrokerInfo(BrokerId(0), 1, 1, (Endpoint("INSIDE", host, port),))}
        contexts = FollowedContexts(files, time.time, "connections to other brokers")
        metadata = cast(Any, SimpleNamespace(brokers=brokers))
        return Peers(metadata, running_timers(), "INSIDE", "test", contexts=contexts)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def calling(tls: TlsFiles, port: int, own: str = "", **more: str) -> AsyncIterator[Peers]:
    peers = tls.peers(port, own, **more)
    try:
        yield peers
    finally:
        await peers.close()


async def failure(peers: Peers, timeout_ms: int = 5_000) -> str:
    with pytest.raises(PeerUnavailable) as refused:
        await peers.call(0, KEY, 0, request(), timeout_ms)
    return str(refused.value)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_answers_of_all_sizes(tls: TlsFiles, version: str, run: Any) -> None:
    """Both sides show a certificate; requests of all sizes are answered by the bytes that they sent."""
    sizes = [10, 70_000, 65_532, 65_531, 200_000, 1, 3_000_000, 66_000, 199_999, 0, 65_533] * 2

    async def sized(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        frame = struct.pack(">i", correlation_id) + b"\0" + bytes([correlation_id]) * sizes[correlation_id - 1]
        writer.write(struct.pack(">i", len(frame)) + frame)

    async def work() -> None:
        async with (
            Server(sized, tls.server(tls.one, enabled_protocols=version)) as server,
            calling(tls, server.port) as peers,
        ):
            encoded = request().encode(version=0)
            bodies = await asyncio.gather(*(peers.exchange(0, KEY, 0, encoded + bytes(size), 20_000) for size in sizes))
            for number, size in enumerate(sizes, start=1):
                assert bodies[number - 1] == bytes([number]) * size
            assert server.connections == 1

    run(work())


def test_a_link_that_ends_is_followed_by_another(tls: TlsFiles) -> None:
    async def hang_up(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        if server.connections == 1:
            writer.close()
        else:
            await prompt(correlation_id, writer)

    async def work() -> None:
        nonlocal server
        async with Server(hang_up, tls.server(tls.one)) as server, calling(tls, server.port) as peers:
            assert "closed the connection" in await failure(peers)
            assert (await peers.call(0, KEY, 0, request(), 5_000)).cluster_id
            assert server.connections == 2

    server: Any = None
    uvloop.run(work())


def test_nothing_is_sent_to_a_peer_with_another_certificate(tls: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    async def never(_correlation_id: int, _writer: asyncio.StreamWriter) -> None:
        raise AssertionError("a request was sent")

    async def work() -> None:
        stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        stranger.load_cert_chain(tls.mallory)
        async with Server(never, stranger) as server, calling(tls, server.port) as peers:
            assert "the peer's certificate is not accepted: unable to get local issuer" in await failure(peers)
            await failure(peers)
        other = tls.server(tls.elsewhere)
        async with Server(never, other) as server, calling(tls, server.port) as peers:
            assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in await failure(peers)
        async with (
            Server(prompt, other) as server,
            calling(tls, server.port, endpoint_identification_algorithm="") as peers,
        ):
            assert (await peers.call(0, KEY, 0, request(), 5_000)).cluster_id

        async def plain(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\0\0\0\x0a1234567890")
            writer.close()

        without = await asyncio.start_server(plain, "127.0.0.1", 0)
        async with calling(tls, without.sockets[0].getsockname()[1]) as peers:
            assert "TLS failed: the peer does not speak TLS" in await failure(peers)
        without.close()

    uvloop.run(work())
    warnings = [one.getMessage() for one in caplog.records if "unable to get local issuer" in one.getMessage()]
    assert len(warnings) == 1, "each attempt fails alike"
    assert warnings[0].startswith("no connection to broker 0: TLS failed:")


def test_a_peer_refuses_our_certificate(tls: TlsFiles) -> None:
    async def work() -> None:
        (port,) = free_ports(1)
        async with Server(prompt) as server:
            terminator = TlsTerminator(tls.server(tls.one), port, server.port)
            try:
                for version in ("TLSv1.2", "TLSv1.3"):  # in 1.3, the handshake is over when the refusal arrives
                    async with calling(tls, port, tls.mallory, enabled_protocols=version) as peers:
                        assert "the peer refused TLS: TLSV1_ALERT_UNKNOWN_CA" in await failure(peers)
                async with calling(tls, port) as peers:
                    assert (await peers.call(0, KEY, 0, request(), 5_000)).cluster_id
            finally:
                terminator.close()

    asyncio.run(work())


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x03\x40\x00" + bytes(HANDSHAKE_BYTES_MAX * 2)], ids=["no", "much"])
def test_a_handshake_without_end_is_given_up(tls: TlsFiles, sent: bytes) -> None:
    """By the call's deadline, or the bound on bytes; the loop goes on meanwhile, and nothing stays behind."""

    async def work() -> None:
        hung_up = asyncio.Event()

        async def dawdle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(sent)
                while await reader.read(1000):
                    pass
            hung_up.set()
            writer.close()

        server = await asyncio.start_server(dawdle, "127.0.0.1", 0)
        async with calling(tls, server.sockets[0].getsockname()[1]) as peers:
            text = await failure(peers, 20_000 if sent else 500)
            assert ("no answer within 500 ms" if not sent else "TLS failed") in text
            await asyncio.wait_for(hung_up.wait(), 60)
        server.close()

    uvloop.run(work())


def test_no_step_of_a_handshake_runs_on_the_loop(tls: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature takes milliseconds, with an RSA key of 3,072 bits; how many is the machine's affair."""
    threads: list[int] = []
    step = TlsEngine.handshake

    def noted(engine: TlsEngine) -> bool:
        threads.append(threading.get_ident())
        return step(engine)

    monkeypatch.setattr(TlsEngine, "handshake", noted)

    async def work() -> None:
        async with Server(prompt, tls.server(tls.one)) as server, calling(tls, server.port) as peers:
            assert (await peers.call(0, KEY, 0, request(), 5_000)).cluster_id

    asyncio.run(work())
    assert len(threads) >= 2, "a question and what answers the other side's"
    assert threading.get_ident() not in threads


def test_new_links_take_new_certificates_and_bad_ones_change_nothing(
    tls: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    own = Path(tls.authority.pair("/CN=two").store(tls.directory / "two.pem"))
    shown: list[Any] = []

    async def show(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("peercert")
        shown.append(certificate["serialNumber"])
        writer.write(answer(correlation_id))
        writer.close()

    async def work() -> None:
        async with Server(show, tls.server(tls.one)) as server, calling(tls, server.port, str(own)) as peers:
            await peers.call(0, KEY, 0, request(), 5_000)
            await asyncio.sleep(0.1)
            own.write_text("-----BEGIN CERTIFICATE-----\n")
            await peers.call(0, KEY, 0, request(), 5_000)
            await asyncio.sleep(0.1)
            tls.authority.pair("/CN=two").store(own)
            await peers.call(0, KEY, 0, request(), 5_000)

    asyncio.run(work())
    assert shown[0] == shown[1] != shown[2]
    assert "go on with the certificates of before: ssl.keystore.location=" in caplog.text
