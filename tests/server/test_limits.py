"""What a peer can make the broker hold is bounded: memory, connections, time."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import tempfile
import time
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.io import FilePart
from fleetlog.brokers.api.base import DelayedResponse, Done
from fleetlog.brokers.config import ConfigError, load_config
from fleetlog.brokers.logins.plain import PlainServer, verifier
from fleetlog.brokers.logins.sasl import FRAME_BYTES_MAX, SaslListener
from fleetlog.brokers.metadata.cache import effective_config
from fleetlog.brokers.server.limits import ConnectionCaps
from fleetlog.brokers.server.listener import CONNECTIONS_PER_BROKER, MAX_WAITING, Server
from fleetlog.wire import hot
from tests.support.harness import RunningServer

HEARTBEAT, FETCH = 12, 1
MIB = 1024 * 1024
SMALL = {"broker.id": "1", "zookeeper.connect": "none:1"}


def heartbeat(padding: int = 0) -> Any:
    return m.HeartbeatRequest(group_id="g" * padding, generation_id=1, member_id="m")


def beat(context: Any) -> Done:
    return Done(m.HeartbeatResponse(version=context.api_version, error_code=0))


def unsent(server: RunningServer) -> int:
    return max((c.unsent for c in server.server.connections.values()), default=0)


def test_a_slow_reader_stops_its_own_requests_and_loses_nothing() -> None:
    executed: list[int] = []

    def handler(request: Any, context: Any) -> Done:
        executed.append(request.generation_id)
        return Done(bytes([request.generation_id % 251]) * MIB)

    with RunningServer({HEARTBEAT: handler}, {"connection.outbox.max.bytes": str(2 * MIB)}) as server:
        client = server.client()
        for number in range(100):
            client.raw(m.encode_request(HEARTBEAT, 4, number, "c", m.HeartbeatRequest(
                group_id="g", generation_id=number, member_id="m")))  # fmt: skip
        server.until(lambda: unsent(server) > 2 * MIB, "a full outbox")
        for _ in range(20):
            assert server.call(lambda: unsent(server)) <= 3 * MIB + 100
            time.sleep(0.005)
        assert len(executed) < 40, "requests ran although their answers cannot leave"
        for number in range(100):
            frame = client.frame()
            assert int.from_bytes(frame[:4], "big") == number
            assert frame[5:] == bytes([number % 251]) * MIB
        assert executed == list(range(100))


def test_many_slow_readers_together_are_bounded_and_the_greediest_goes() -> None:
    def handler(request: Any, context: Any) -> Done:
        return Done(b"x" * (request.generation_id * MIB))

    with RunningServer({HEARTBEAT: handler}, {"queued.max.request.bytes": str(20 * MIB)}) as server:
        clients = [server.client() for _ in range(12)]
        for size, client in enumerate(clients):
            client.send(m.HeartbeatRequest(group_id="g", generation_id=size + 1, member_id="m"), 0, 1)
        server.until(lambda: server.refused("memory") > 0, "a closed connection")
        server.until(lambda: server.server.held_bytes <= 20 * MIB, "the bound")
        alive = 0
        for size, client in enumerate(clients):
            try:
                alive += len(client.frame()) == 4 + (size + 1) * MIB
            except ConnectionError:
                assert size > 3, "a small one was closed before the large ones"
        assert alive == 12 - server.refused("memory")
        server.until(lambda: server.server.held_bytes == 0, "an empty outbox everywhere")


class Piece:
    """A file slice that counts its release."""

    def __init__(self, file: Any, position: int, length: int) -> None:
        self.file, self.position, self.length, self.released = file, position, length, 0

    def fileno(self) -> int:
        return int(self.file.fileno())

    def part(self, position: int, length: int) -> FilePart:
        return FilePart(self.fileno(), position, length)

    def release(self) -> None:
        self.released += 1


@pytest.mark.parametrize("sizes", [(10,), (70_000,), (5 * MIB, 3), (100, 200_000, 1, 64 * 1024)])
def test_slices_of_files_are_sent_between_the_bytes(sizes: tuple[int, ...]) -> None:
    content = os.urandom(12 * MIB)
    pieces: list[Piece] = []
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()

        def handler(request: Any, context: Any) -> Done:
            found: list[Any] = []
            position = 17
            for size in sizes:
                pieces.append(Piece(file, position, size))
                found += [b"<", pieces[-1], b">"]
                position += size
            return Done(hot.Encoded(found))

        with RunningServer({HEARTBEAT: handler}) as server:
            client = server.client()
            for number in range(3):
                client.send(heartbeat(), 0, number)
            for number in range(3):
                frame = client.frame()
                expected, position = number.to_bytes(4, "big"), 17
                for size in sizes:
                    expected += b"<" + content[position : position + size] + b">"
                    position += size
                assert frame == expected
            server.until(lambda: all(piece.released == 1 for piece in pieces), "the release")


def test_a_client_that_leaves_amid_a_slice_lets_the_file_go() -> None:
    pieces: list[Piece] = []
    with tempfile.TemporaryFile() as file:
        file.truncate(50 * MIB)

        def handler(request: Any, context: Any) -> Done:
            pieces.append(Piece(file, 0, 50 * MIB))
            return Done(hot.Encoded([b"x", pieces[-1]]))

        with RunningServer({HEARTBEAT: handler}) as server:
            client = server.client()
            client.send(heartbeat(), 0, 1)
            client.sock.recv(100)
            client.close()
            server.until(lambda: bool(pieces) and pieces[0].released == 1, "the release")


def test_a_slice_of_a_file_that_was_cut_closes_the_connection() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"short")
        file.flush()
        for size in (1000, 100_000):
            piece = Piece(file, 0, size)
            with RunningServer({HEARTBEAT: lambda *_, p=piece: Done(hot.Encoded([b"x", p]))}) as server:
                client = server.client()
                client.send(heartbeat(), 0, 1)
                with pytest.raises(ConnectionError):
                    client.frame()
                server.until(lambda p=piece: p.released == 1, "the release")


def test_requests_wait_while_too_many_bytes_are_in_flight() -> None:
    delayed: list[DelayedResponse] = []

    def handler(request: Any, context: Any) -> Any:
        if not request.group_id:
            return beat(context)
        delayed.append(DelayedResponse(600_000, lambda: None))
        return delayed[-1]

    with RunningServer({HEARTBEAT: handler}, {"queued.max.request.bytes": str(MIB)}) as server:
        clients = [server.client() for _ in range(60)]
        for number, client in enumerate(clients):
            client.send(heartbeat(30_000), 0, number)
        server.until(lambda: len(delayed) == 34, "34 requests of 30 KB are a megabyte")
        time.sleep(0.05)
        assert server.call(lambda: (len(delayed), server.server.budget.used <= MIB)) == (34, True)
        for number in range(60):
            server.until(lambda number=number: len(delayed) > number, "the next request")
            server.call(lambda number=number: delayed[number].complete(m.HeartbeatResponse(version=0, error_code=0)))
        for number, client in enumerate(clients):
            assert client.receive()[0] == number
        assert server.call(lambda: server.server.budget.used) == 0


def test_before_a_login_a_size_reserves_nothing() -> None:
    """Connections that only tell a size keep no others waiting; frames that come in parts are answered as ever."""
    sasl = SaslListener({"PLAIN": lambda: PlainServer(verifier({"bob": "secret"}))})
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "queued.max.request.bytes": str(MIB)}
    versions = m.request_class(18)(version=3, client_software_name="t", client_software_version="1")
    with RunningServer({18: lambda *_: Done(b"?")}, settings, logins={"SASL_PLAINTEXT": sasl}) as server:
        idlers = [server.client("SASL_PLAINTEXT") for _ in range(40)]
        for idler in idlers:
            idler.raw(FRAME_BYTES_MAX.to_bytes(4, "big") + b"\0\x12")
        begun = lambda: sum(c.frame_since_ms is not None for c in server.server.connections.values())  # noqa: E731
        server.until(lambda: begun() == len(idlers), "their partial frames")
        told = 6 * len(idlers)
        assert server.call(lambda: (server.server.budget.used, server.server.held_bytes)) == (0, told)
        for size in (1_000, 20_000, FRAME_BYTES_MAX):
            begin = m.encode_request(18, 3, 7, "c", versions)[4:-1] + b"\1\5"  # an unknown tagged field fills it
            rest = size - len(begin) - 3
            frame = begin + bytes([rest & 127 | 128, rest >> 7 & 127 | 128, rest >> 14]) + bytes(rest)
            client = server.client("SASL_PLAINTEXT")
            client.raw(size.to_bytes(4, "big") + frame[: size // 2])
            server.until(lambda size=size: server.server.held_bytes == told + 4 + size // 2, "its first part")
            client.raw(frame[size // 2 :])
            assert client.frame() == b"\0\0\0\7?"
        assert server.call(lambda: (server.server.budget.used, server.server.held_bytes)) == (0, told)


def test_one_request_larger_than_the_budget_still_passes() -> None:
    with RunningServer({HEARTBEAT: lambda _, context: beat(context)}, {"queued.max.request.bytes": str(MIB)}) as server:
        client = server.client()
        big = m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        body = m.encode_request(HEARTBEAT, 4, 1, "c", big)
        tag = b"\x01\x05\x80\x80\x60" + bytes(0x180000)  # an unknown tagged field of 1.5 MiB
        frame = body[4:-1] + tag
        client.raw(len(frame).to_bytes(4, "big") + frame)
        assert client.frame()[:4] == b"\0\0\0\1"


@pytest.mark.parametrize("size", [-1, 2**31 - 1, 1_000_001])
def test_impossible_frames_close_the_connection(size: int) -> None:
    with RunningServer({HEARTBEAT: lambda _, c: beat(c)}, {
        "socket.request.max.bytes": "1000000", "message.max.bytes": "100000",
    }) as server:  # fmt: skip
        client = server.client()
        client.raw(size.to_bytes(4, "big", signed=True))
        assert client.closed()
        assert server.client().ask(heartbeat(), 4).error_code == 0


def test_a_tls_client_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="broker")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = sent.read()
    with RunningServer({HEARTBEAT: lambda _, c: beat(c)}) as server:

        def handshake() -> None:
            with socket.create_connection(("127.0.0.1", server.endpoint().port)) as plain:
                plain.sendall(hello)
                assert plain.recv(1) == b""

        def lines() -> list[str]:
            return [record.getMessage() for record in caplog.records if "TLS" in record.getMessage()]

        for _ in range(5):
            handshake()
        (line,) = lines()
        assert line.startswith("127.0.0.1: the client speaks TLS, this listener is PLAINTEXT: set security.protocol")
        assert server.refused("frame") == 5
        server.clock.ahead_ms += 60_000
        handshake()
        assert len(lines()) == 2
        assert server.client().ask(heartbeat(), 4).error_code == 0


def test_connections_are_capped_in_all_and_per_address() -> None:
    handlers = {HEARTBEAT: lambda _, context: beat(context)}
    with RunningServer(handlers, {"max.connections": "3"}) as server:
        clients = [server.client() for _ in range(3)]
        for client in clients:
            assert client.ask(heartbeat(), 4).error_code == 0
        assert server.client().closed()
        clients[0].close()
        server.until(lambda: len(server.server) == 2, "the close")
        assert server.client().ask(heartbeat(), 4).error_code == 0
        assert server.refused("connections") == 1
    with RunningServer(handlers, {"max.connections.per.ip": "1"}) as server:
        first = server.client()
        assert first.ask(heartbeat(), 4).error_code == 0
        assert server.client().closed()
        with socket.create_connection(("127.0.0.1", server.endpoint().port), source_address=("127.0.0.2", 0)) as other:
            other.sendall(m.encode_request(HEARTBEAT, 0, 9, "c", heartbeat()))
            assert other.recv(8)[4:] == b"\0\0\0\x09"


def test_single_addresses_have_caps_of_their_own() -> None:
    def other() -> socket.socket:
        address = ("127.0.0.1", server.endpoint().port)
        connected = socket.create_connection(address, timeout=10, source_address=("127.0.0.2", 0))
        connected.sendall(m.encode_request(HEARTBEAT, 0, 9, "c", heartbeat()))
        return connected

    settings = {"max.connections.per.ip": "1", "max.connections.per.ip.overrides": "127.0.0.2:2, 10.0.0.1:7"}
    with RunningServer({HEARTBEAT: lambda _, context: beat(context)}, settings) as server:
        first = server.client()
        assert first.ask(heartbeat(), 4).error_code == 0
        assert server.client().closed()
        others = [other() for _ in range(2)]
        for one in others:
            assert one.recv(8)[4:] == b"\0\0\0\x09"
        with other() as refused, contextlib.suppress(ConnectionResetError):
            assert refused.recv(8) == b""
        assert server.refused("connections") == 2
        server.metadata.effective = effective_config(
            server.config, {"max.connections.per.ip.overrides": "127.0.0.1:2"}, {}
        )
        assert server.client().ask(heartbeat(), 4).error_code == 0
        with other() as refused, contextlib.suppress(ConnectionResetError):
            assert refused.recv(8) == b"", "the override is gone, two are there, and one may be"
        for one in others:
            one.close()


@pytest.mark.parametrize(
    ("item", "host"),
    [("10.0.0.1:0", "10.0.0.1"), ("10.0.0.1:0", "::ffff:10.0.0.1"), ("::1:0", "::1"), ("[::1]:0", "::1"),
     ("[2001:DB8:0:0:0:0:0:1]:0", "2001:db8::1")],
)  # fmt: skip
def test_an_override_is_of_an_address_however_it_is_written(item: str, host: str) -> None:
    caps = ConnectionCaps(10, 5, load_config(overrides=SMALL | {"max.connections.per.ip.overrides": item})
                          .max_connections_per_ip_overrides)  # fmt: skip
    assert caps.admit(host) == "max.connections.per.ip.overrides"
    assert caps.admit("10.0.0.2") is None


@pytest.mark.parametrize("wrong", ["somehost:5", "10.0.0.1", "10.0.0.1:", "10.0.0.1:-1", "10.0.0.1:many", ":5"])
def test_an_override_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"ADDRESS:COUNT with commas; names are not looked up"):
        load_config(overrides=SMALL | {"max.connections.per.ip.overrides": wrong})


def test_a_listener_lets_as_many_wait_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    listen = socket.socket.listen

    def listened(sock: socket.socket, backlog: int) -> None:
        told.append(backlog)
        listen(sock, backlog)

    monkeypatch.setattr(socket.socket, "listen", listened)
    for settings, backlog in (({}, 1024), ({"socket.listen.backlog.size": "3"}, 3)):
        server = Server(load_config(overrides=SMALL | {"listeners": "PLAINTEXT://127.0.0.1:0"} | settings))
        server.bind(server.config.listener_endpoints())
        server.listen()
        server.close()
        assert told.pop() == backlog


def named(client_id: str) -> bytes:
    return m.encode_request(HEARTBEAT, 4, 5, client_id, heartbeat())


def with_brokers(server: RunningServer, *numbers: int) -> None:
    server.call(lambda: setattr(server.metadata, "brokers", dict.fromkeys(numbers)))


@pytest.mark.parametrize("cap", ["max.connections", "max.connections.per.ip"])
def test_other_brokers_have_room_beside_the_caps(cap: str) -> None:
    with RunningServer({HEARTBEAT: lambda _, context: beat(context)}, {cap: "2"}) as server:
        with_brokers(server, 1, 2, 3)
        idle = [server.client() for _ in range(2)]
        server.until(lambda: len(server.server) == 2, "the idle ones")
        for number, client_id in enumerate(("broker-1", "broker-4", "broker-2x", "client", "")):
            stranger = server.client()
            stranger.raw(named(client_id))
            assert stranger.closed(), client_id
            assert server.refused("connections") == number + 1
        links = [server.client() for _ in range(CONNECTIONS_PER_BROKER)]
        for link in links:
            link.raw(named("broker-2"))
            assert link.frame()[:4] == b"\0\0\0\x05"
        more = server.client()
        more.raw(named("replica-2"))
        assert more.closed(), "one broker doesn't take the room of the others"
        other = server.client()
        other.raw(named("replica-3"))
        assert other.frame()[:4] == b"\0\0\0\x05"
        links.pop().close()
        server.until(lambda: len(server.server) == 2 + CONNECTIONS_PER_BROKER, "the close")
        again = server.client()
        again.raw(named("replica-2"))
        assert again.frame()[:4] == b"\0\0\0\x05"
        idle.pop().close()
        server.until(lambda: server.server.caps.count == 1, "room for a client")
        assert server.client().ask(heartbeat(), 4).error_code == 0


def test_silent_ones_above_a_cap_neither_stay_nor_keep_a_broker_out() -> None:
    with RunningServer({HEARTBEAT: lambda _, context: beat(context)}, {"max.connections": "1"}) as server:
        with_brokers(server, 1, 2)
        first = server.client()
        server.until(lambda: len(server.server) == 1, "the first")
        silent = [server.client() for _ in range(MAX_WAITING + 10)]
        server.until(lambda: server.refused("connections") == 10, "those that waited longest")
        link = server.client()
        link.raw(named("broker-2"))
        assert link.frame()[:4] == b"\0\0\0\x05"
        for one in silent:
            assert one.closed()
        assert server.refused("connections") == len(silent)
        assert first.ask(heartbeat(), 4).error_code == 0


def test_the_caps_on_connections_change_while_the_broker_runs() -> None:
    with RunningServer({HEARTBEAT: lambda _, context: beat(context)}, {"max.connections": "1"}) as server:
        first = server.client()
        assert first.ask(heartbeat(), 4).error_code == 0
        assert server.client().closed()
        server.metadata.effective = effective_config(server.config, {"max.connections": "2"}, {})
        second = server.client()
        assert second.ask(heartbeat(), 4).error_code == 0
        assert server.client().closed()


def test_the_brokers_own_listener_is_not_shut_by_clients() -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:0", "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT", "max.connections": "1",
    }  # fmt: skip
    with RunningServer({HEARTBEAT: lambda _, context: beat(context)}, settings) as server:
        first = server.client()
        assert first.ask(heartbeat(), 4).error_code == 0
        assert server.client().closed()
        for _ in range(3):
            assert server.client("INTERNAL").ask(heartbeat(), 4).error_code == 0


def test_a_frame_that_never_ends_and_an_idle_connection_are_closed() -> None:
    delayed: list[DelayedResponse] = []

    def handler(request: Any, context: Any) -> Any:
        if request.group_id == "wait":
            delayed.append(DelayedResponse(3_600_000, lambda: None))
            return delayed[-1]
        return beat(context)

    with RunningServer({HEARTBEAT: handler}, {"connections.max.idle.ms": "120000"}) as server:
        slow, idle, waiting = server.client(), server.client(), server.client()
        idle.ask(heartbeat(), 4)
        waiting.send(m.HeartbeatRequest(group_id="wait", generation_id=1, member_id="m"), 4, 1)
        slow.raw(b"\0\0\1\0ab")
        partial = lambda: any(c.frame_since_ms is not None for c in server.server.connections.values())  # noqa: E731
        server.until(lambda: bool(delayed) and partial(), "the partial frame")
        server.clock.ahead_ms += 31_000
        assert slow.closed()
        assert server.call(lambda: len(server.server)) == 2
        server.clock.ahead_ms += 100_000
        assert idle.closed()
        assert server.call(lambda: len(server.server)) == 1, "a request is being worked on there"


@pytest.mark.parametrize("leaves", [True, False])
def test_a_muted_connection_stays_no_longer_than_an_idle_one(leaves: bool) -> None:
    settings = {"connections.max.idle.ms": "120000"}
    with RunningServer({HEARTBEAT: lambda _, context: beat(context)}, settings) as server:
        client = server.client()
        client.ask(heartbeat(), 4)
        (connection,) = server.call(server.server.connections.values)
        server.call(lambda: connection.mute(24 * 86_400_000))
        if leaves:
            client.close()
        server.clock.ahead_ms += 119_000
        server.call(server.server._sweep)
        assert server.call(lambda: len(server.server)) == 1, "it is muted"
        server.clock.ahead_ms += 2_000
        server.call(server.server._sweep)
        assert server.call(lambda: len(server.server)) == 0
        assert leaves or client.closed()


def test_a_frame_that_waited_behind_a_long_request_gets_its_full_time() -> None:
    delayed: list[DelayedResponse] = []

    def handler(request: Any, context: Any) -> Any:
        if delayed:
            return beat(context)
        delayed.append(DelayedResponse(3_600_000, lambda: None))
        return delayed[0]

    with RunningServer({HEARTBEAT: handler}) as server:
        client = server.client()
        client.send(heartbeat(), 4, 1)
        second = m.encode_request(HEARTBEAT, 4, 2, "test", heartbeat())
        client.raw(second[:9])
        server.until(lambda: bool(delayed), "the first request")
        server.clock.ahead_ms += 100_000
        server.call(lambda: delayed[0].complete(m.HeartbeatResponse(version=4, error_code=0)))
        assert client.receive()[0] == 1
        server.call(server.server._sweep)
        client.sent[2] = (HEARTBEAT, 4)
        client.raw(second[9:])
        assert client.receive()[0] == 2


def test_a_thousand_connections_with_half_a_frame_do_not_keep_others_out() -> None:
    with RunningServer({HEARTBEAT: lambda _, context: beat(context)}) as server:
        idlers = [server.client() for _ in range(400)]
        for idler in idlers:
            idler.raw(b"\0\0\0\x50abc")
        client = server.client()
        for number in range(50):
            assert client.ask(heartbeat(), 4, number).error_code == 0
        for idler in idlers:
            idler.close()
