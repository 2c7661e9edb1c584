"""Calls to peers, against sockets that answer, dawdle, lie and hang up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from fleetlog.brokers.model import BrokerId, BrokerInfo, Endpoint
from fleetlog.brokers.peers.calls import PeerLink, Peers, PeerUnavailable
from fleetlog.wire import messages
from tests.support.clocks import running_timers
from tests.support.peer_server import KEY, Server, answer, prompt, request
from tests.support.stores import on_loop


def peers_to(*ports: int) -> tuple[Peers, Any]:
    brokers = {
        i: BrokerInfo(BrokerId(i), 1, 1, (Endpoint("PLAINTEXT", "127.0.0.1", port),)) for i, port in enumerate(ports)
    }
    metadata = SimpleNamespace(brokers=brokers)
    return Peers(cast(Any, metadata), running_timers(), "PLAINTEXT", "test"), metadata


@on_loop
async def test_calls_share_one_connection_and_get_their_own_answers() -> None:
    waiting: list[tuple[int, asyncio.StreamWriter]] = []

    async def in_batches(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        waiting.append((correlation_id, writer))
        if len(waiting) == 10:  # nothing is answered before ten are there: they must be in flight together
            for one, sink in waiting:
                sink.write(answer(one))
            waiting.clear()

    async with Server(in_batches) as server:
        peers, _ = peers_to(server.port)
        found = await asyncio.gather(*(peers.call(0, KEY, 0, request(), 5_000) for _ in range(50)))
        assert [response.cluster_id for response in found] == [str(one) for one in server.seen]
        assert server.connections == 1
        await peers.close()


@on_loop
async def test_a_call_without_answer_ends_the_connection_and_the_next_opens_another() -> None:
    asked: list[int] = []

    async def deaf_once(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        asked.append(correlation_id)
        if len(asked) != 2:
            await prompt(correlation_id, writer)

    async with Server(deaf_once) as server:
        peers, _ = peers_to(server.port)
        assert (await peers.call(0, KEY, 0, request(), 60_000)).cluster_id
        with pytest.raises(PeerUnavailable, match="no answer within 500 ms"):
            await peers.call(0, KEY, 0, request(), 500)
        assert (await peers.call(0, KEY, 0, request(), 60_000)).cluster_id
        assert server.connections == 2
        await peers.close()


@on_loop
async def test_a_call_waits_no_longer_for_room_in_the_send_buffer() -> None:
    """A paused peer reads nothing, and the request before, which it has no room for, may wait for minutes."""
    link = PeerLink(7, asyncio.get_running_loop(), running_timers())
    link.pause_writing()
    soon = asyncio.get_running_loop().time() + 0.1
    with pytest.raises(PeerUnavailable, match="took no request within 100 ms"):
        await link.call(KEY, 0, b"", "test", soon, 100, raw=True)


@pytest.mark.parametrize(
    "nonsense",
    [
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", -5),
        struct.pack(">i", 3) + b"abc",
        answer(10_000),
        struct.pack(">i", 8) + b"\0\0\0\1\xff\xff\xff\xff",
        b"",
    ],
    ids=["huge", "negative", "short", "another id", "garbage", "closed"],
)
@on_loop
async def test_a_peer_that_lies_is_hung_up_on(nonsense: bytes) -> None:
    async def lie(_correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.write(nonsense)
        writer.close()

    async with Server(lie) as server:
        peers, _ = peers_to(server.port)
        with pytest.raises(PeerUnavailable):
            await peers.call(0, KEY, 0, request(), 5_000)
        await peers.close()


@on_loop
async def test_unknown_and_unreachable_brokers() -> None:
    async with Server(prompt) as server:
        gone = server.port
    peers, metadata = peers_to(gone)
    with pytest.raises(PeerUnavailable, match="not registered"):
        await peers.call(7, KEY, 0, request(), 1_000)
    with pytest.raises(PeerUnavailable):
        await peers.call(0, KEY, 0, request(), 1_000)
    async with Server(prompt) as server:  # it comes back at another address
        metadata.brokers[0] = BrokerInfo(BrokerId(0), 2, 2, (Endpoint("PLAINTEXT", "127.0.0.1", server.port),))
        assert (await peers.call(0, KEY, 0, request(), 5_000)).cluster_id
        metadata.brokers[0] = BrokerInfo(BrokerId(0), 3, 3, (Endpoint("OTHER", "127.0.0.1", server.port),))
        with pytest.raises(PeerUnavailable, match="no listener"):
            await peers.call(0, KEY, 0, request(), 5_000)
        await peers.close()


@on_loop
async def test_closing_fails_what_is_in_flight() -> None:
    async def deaf(_correlation_id: int, _writer: asyncio.StreamWriter) -> None:
        return

    async with Server(deaf) as server:
        peers, _ = peers_to(server.port)
        call = asyncio.create_task(peers.call(0, KEY, 0, request(), 10_000))
        while not server.seen:
            await asyncio.sleep(0.01)
        await peers.close()
        with pytest.raises(PeerUnavailable):
            await call


@on_loop
async def test_a_cancelled_call_does_not_shift_the_answers() -> None:
    release = asyncio.Event()

    async def slow(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await prompt(correlation_id, writer)

    async with Server(slow) as server:
        peers, _ = peers_to(server.port)
        one = asyncio.create_task(peers.call(0, KEY, 0, request(), 10_000))
        while not server.seen:
            await asyncio.sleep(0.01)
        two = asyncio.create_task(peers.call(0, KEY, 0, request(), 10_000))
        await asyncio.sleep(0)
        one.cancel()
        release.set()
        assert (await two).cluster_id == "2"
        await peers.close()


@on_loop
async def test_an_exchange_passes_bodies_through() -> None:
    async with Server(prompt) as server:
        peers, _ = peers_to(server.port)
        body = await peers.exchange(0, KEY, 0, request().encode(version=0), 5_000)
        response = messages.response_class(KEY)(version=0, cluster_id="1", brokers=[])
        assert body == messages.encode_response(response, KEY, 0)
        call, exchange = await asyncio.gather(
            peers.call(0, KEY, 0, request(), 5_000), peers.exchange(0, KEY, 0, request().encode(version=0), 5_000)
        )
        assert call.cluster_id == "2"
        assert messages.decode_response(KEY, 0, exchange).cluster_id == "3"
        assert server.connections == 1
        await peers.close()


@on_loop
async def test_an_exchange_waits_no_longer_than_its_timeout() -> None:
    async def deaf(_correlation_id: int, _writer: asyncio.StreamWriter) -> None:
        return

    async with Server(deaf) as server:
        peers, _ = peers_to(server.port)
        with pytest.raises(PeerUnavailable, match="no answer within 100 ms"):
            await peers.exchange(0, KEY, 0, request().encode(version=0), 100)
        await peers.close()


@on_loop
async def test_a_long_answer_comes_whole() -> None:
    long = "x" * 5_000_000

    async def lengthy(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        frame = struct.pack(">i", correlation_id) + b"\0" + long.encode()
        for start in range(0, len(frame), 1_000_000):  # in pieces, as a network would
            writer.write((struct.pack(">i", len(frame)) if start == 0 else b"") + frame[start : start + 1_000_000])
            await writer.drain()

    async with Server(lengthy) as server:
        peers, _ = peers_to(server.port)
        body = await peers.exchange(0, KEY, 0, request().encode(version=0), 10_000)
        assert body == long.encode()
        await peers.close()


async def answers_of_all_sizes() -> None:
    """Each is kept while the next ones arrive in the same buffers."""
    sizes = [10, 70_000, 65_532, 65_531, 200_000, 1, 3_000_000, 66_000, 199_999, 0, 65_533] * 3

    async def sized(correlation_id: int, writer: asyncio.StreamWriter) -> None:
        frame = struct.pack(">i", correlation_id) + b"\0" + bytes([correlation_id]) * sizes[correlation_id - 1]
        writer.write(struct.pack(">i", len(frame)) + frame)

    async with Server(sized) as server:
        peers, _ = peers_to(server.port)
        encoded = request().encode(version=0)
        bodies = await asyncio.gather(*(peers.exchange(0, KEY, 0, encoded, 20_000) for _ in sizes))
        for number, size in enumerate(sizes, start=1):
            assert bodies[number - 1] == bytes([number]) * size
        assert server.connections == 1
        await peers.close()


@pytest.mark.parametrize("timeout_ms", [1, 5_000], ids=["after we gave up", "in time"])
def test_a_name_that_means_nothing_is_an_unavailable_peer_and_no_more(timeout_ms: int) -> None:
    """On the broker's own loop, where an abandoned look-up raises no warning."""
    complaints: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        endpoint = Endpoint("PLAINTEXT", "nowhere.invalid", 1)
        metadata = SimpleNamespace(brokers={0: BrokerInfo(BrokerId(0), 1, 1, (endpoint,))})
        peers = Peers(cast(Any, metadata), running_timers(), "PLAINTEXT", "test")
        with pytest.raises(PeerUnavailable):
            await peers.call(0, KEY, 0, request(), timeout_ms)
        await peers.close()
        with contextlib.suppress(OSError):  # the resolver has answered by then
            await asyncio.get_running_loop().getaddrinfo("nowhere.invalid", 1)

    uvloop.run(run())
    gc.collect()
    assert complaints == []


def test_answers_of_all_sizes_stay_as_they_came() -> None:
    asyncio.run(answers_of_all_sizes())


def test_answers_of_all_sizes_on_the_brokers_own_loop() -> None:
    uvloop.run(answers_of_all_sizes())
