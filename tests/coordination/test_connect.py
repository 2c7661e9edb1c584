"""``zookeeper.connect``: spelling, and clear errors within seconds."""

from __future__ import annotations

import asyncio

import pytest

from fleetlog.coordination.connect import CannotConnect, parse_connect
from fleetlog.coordination.store import Create
from fleetlog.coordination.zookeeper import ZookeeperStore
from tests.support.ports import free_port
from tests.support.stores import Proxy, Stores, on_loop


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("zk", (("zk", 2181),), ""),
        ("zk:1", (("zk", 1),), ""),
        ("a:1, b:2", (("a", 1), ("b", 2)), ""),
        ("a:1,b:2/", (("a", 1), ("b", 2)), ""),
        ("a:1,b:2/x/y/", (("a", 1), ("b", 2)), "/x/y"),
        ("[::1]:7,[fe80::1]", (("::1", 7), ("fe80::1", 2181)), ""),
    ],
)
def test_good_strings(text: str, hosts: tuple[tuple[str, int], ...], chroot: str) -> None:
    parsed = parse_connect(text)
    assert parsed.hosts == hosts
    assert parsed.chroot == chroot
    assert parse_connect(parsed.addresses() + parsed.chroot) == parsed


@pytest.mark.parametrize(
    "text",
    ["", ",", "a:b", "a:0", "a:65536", "a:-1", "a:1,", "::1", "[::1", "[::1]x", "a b:1", "a:1//x", "a:1/..", ":1"],
)
def test_nonsense_is_named(text: str) -> None:
    with pytest.raises(CannotConnect, match=r"zookeeper\.connect"):
        parse_connect(text)


def test_paths_go_there_and_back() -> None:
    for chroot in ("", "/x/y"):
        parsed = parse_connect("a:1" + chroot)
        for path in ("/", "/a", "/a/b"):
            assert parsed.relative(parsed.absolute(path)) == path


async def _refused(connect: str) -> str:
    store = ZookeeperStore(connect)
    with pytest.raises(CannotConnect) as caught:
        await asyncio.wait_for(store.start(1500), 20)
    await store.close()
    return str(caught.value)


@on_loop
async def test_an_address_without_a_server_is_named() -> None:
    port = free_port()
    message = await _refused(f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port} cannot be reached" in message


@on_loop
async def test_the_name_is_unknown() -> None:
    assert "no-such-host.invalid:2181" in await _refused("no-such-host.invalid:2181")


@on_loop
async def test_another_server_listens() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(http, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    message = await _refused(f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port} is reached but does not answer like a ZooKeeper" in message
    server.close()


@on_loop
async def test_a_silent_address_is_named_too() -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert f"127.0.0.1:{port}" in await _refused(f"127.0.0.1:{port}")
    server.close()


@pytest.mark.zookeeper
@on_loop
async def test_one_good_address_among_bad_ones_is_enough(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(f"127.0.0.1:{free_port()},{connect}")
        await store.create("/here")


@pytest.mark.zookeeper
@on_loop
async def test_the_chroot_is_created_and_hides_the_rest(connect: str) -> None:
    async with Stores() as stores:
        outer = await stores.open(connect)
        inner = await stores.open(connect + "/deep/down")
        assert await inner.create("/a/b", b"x", parents=True) == "/a/b"
        assert (await outer.get("/deep/down/a/b"))[0] == b"x"
        results = await inner.multi([Create("/a/c_", sequence=True)])
        assert results[0].path.startswith("/a/c_")
        assert await inner.children("/") == ["a"]
        again = await stores.open(connect + "/deep/down")
        assert await again.children("/") == ["a"]


@pytest.mark.zookeeper
@on_loop
async def test_an_ensemble_without_quorum_is_named(connect: str) -> None:
    port = int(connect.partition("/")[0].rpartition(":")[2])
    async with Proxy(port) as proxy:
        proxy.answers = False
        assert proxy.address in await _refused(proxy.address)
