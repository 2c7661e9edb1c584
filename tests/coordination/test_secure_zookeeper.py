"""Sessions over TLS with a real ZooKeeper, logins there, and znodes that belong to the login."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from fleetlog.brokers.tls.contexts import server_context
from fleetlog.brokers.tls.settings import TlsSettings
from fleetlog.brokers.tls.zookeeper import ZookeeperSettings
from fleetlog.coordination.connect import CannotConnect, ConnectionSecurity
from fleetlog.coordination.ports import free_ports
from fleetlog.coordination.store import Create, SessionState, SetData, StoreError
from fleetlog.coordination.zookeeper import LoopHandler, ZookeeperStore
from tests.support.certificates import Authority
from tests.support.secure_zookeeper import SecureZooKeeper
from tests.support.stores import Proxy, on_loop, record_session, states
from tests.support.tls_terminator import TlsTerminator
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.zookeeper


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    found = SecureZooKeeper(tmp_path_factory.mktemp("zookeeper")).start()
    yield found
    found.stop()


def security(settings: dict[str, str], **more: str) -> ConnectionSecurity:
    named = {"zookeeper." + name.replace("_", "."): text for name, text in more.items()}
    return ZookeeperSettings.of({**settings, **named}).connection(time.time)


async def opened(connect: str, found: ConnectionSecurity) -> ZookeeperStore:
    store = ZookeeperStore(connect, session_timeout_ms=6_000, security=found)
    await store.start(60_000)
    return store


@on_loop
async def test_a_session_over_tls_survives_a_cut(server: SecureZooKeeper, tmp_path: Path) -> None:
    found = security(server.settings(tmp_path))
    async with Proxy(server.secure_port) as proxy:
        store = await opened(f"{proxy.address}/survives", found)
        events, fired = record_session(store), asyncio.Event()
        data = bytes(300_000)  # many TLS records
        await store.multi([Create("/a", data), Create("/b"), Create("/c", b"", ephemeral=True)])
        assert (await store.get("/a", lambda _: fired.set()))[0] == data
        proxy.cut()
        await store.sync("/")
        await asyncio.wait_for(fired.wait(), 60)
        assert [one is not None for one in await store.get_many(["/a", "/b", "/c", "/d"])] == [True, True, True, False]
        for number in range(200):
            await store.multi([SetData("/b", str(number).encode()), SetData("/a", bytes(number))])
        assert SessionState.EXPIRED not in states(events)
        await store.close()


@on_loop
async def test_many_answers_at_once(server: SecureZooKeeper, tmp_path: Path) -> None:
    """Answers share TLS records: none may wait for the next ping."""
    found = security(server.settings(tmp_path))
    store = ZookeeperStore(f"{server.address}/many", session_timeout_ms=60_000, security=found)
    await store.start(60_000)
    await store.create("/a")
    for _ in range(5):
        began = time.monotonic()
        await asyncio.gather(*(store.get("/a") for _ in range(200)))
        assert time.monotonic() - began < 15, "pings come every 20 s"
    await store.close()


def test_what_is_decrypted_is_readable(tmp_path: Path) -> None:
    """Two answers in one TLS record: after the first, the socket has nothing, and the second is at hand."""
    pair = Authority(tmp_path, "one").pair("/CN=one").store(tmp_path / "one.pem")
    settings = TlsSettings.of({"ssl.keystore.type": "PEM", "ssl.keystore.location": pair})
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    async def run() -> None:
        loop = asyncio.get_running_loop()
        handler = LoopHandler(loop, 1.0)
        left, right = socket.socketpair()
        idle, other = socket.socketpair()
        context = server_context(settings, time.time()).context
        serving = loop.run_in_executor(None, lambda: context.wrap_socket(left, server_side=True))
        client = await loop.run_in_executor(None, lambda: trusting.wrap_socket(right))
        with idle, other, client, await serving as peer:
            peer.sendall(b"onetwo")
            assert client.recv(3) == b"one"
            began = time.monotonic()
            assert handler.select([client, idle], [], [], 60)[0] == [client]
            assert time.monotonic() - began < 30
            assert client.recv(3) == b"two"
            assert handler.select([client, idle], [], [], 0.01)[0] == []

    asyncio.run(run())


async def refusal(connect: str, found: ConnectionSecurity) -> str:
    """Why there is no session. A server that is late is said not to answer, within the two seconds that it is given."""
    store = ZookeeperStore(connect, session_timeout_ms=6_000, security=found)
    with pytest.raises(CannotConnect) as refused:
        await store.start(1_500)
    return str(refused.value)


@on_loop
async def test_what_is_wrong_is_named(server: SecureZooKeeper, tmp_path: Path) -> None:
    settings = server.settings(tmp_path)
    stranger = Authority(tmp_path, "stranger")
    mallory = stranger.pair("/CN=mallory").store(tmp_path / "mallory.pem")
    without = {name: text for name, text in settings.items() if "keystore" not in name}
    for connect, found, text in (
        (server.address, security({**settings, "zookeeper.ssl.truststore.location": stranger.file}),
         "has a certificate that is not accepted (unable to get local issuer certificate"),
        (server.address.replace("127.0.0.1", "127.0.0.2"), security(settings), "cannot be reached"),
        (server.address, security(without), "zookeeper.ssl.keystore.location"),
        (server.address, security({**settings, "zookeeper.ssl.keystore.location": mallory}),
         "zookeeper.ssl.keystore.location"),
        (server.node.address, security(settings), "secureClientPort"),
        (server.address, ConnectionSecurity(), "at least not without TLS (zookeeper.ssl.client.enable)"),
    ):  # fmt: skip
        await eventually_async(
            partial(refusal, connect, found),
            text,
            good=lambda said, text=text: text in said,  # type: ignore[misc]
        )


@on_loop
async def test_a_name_is_checked_unless_that_is_off(server: SecureZooKeeper, tmp_path: Path) -> None:
    settings, (port,) = server.settings(tmp_path), free_ports(1)
    other = server.authority.pair("/CN=zookeeper", names="DNS:zookeeper.example").store(tmp_path / "other.pem")
    pair = TlsSettings.of({"ssl.keystore.type": "PEM", "ssl.keystore.location": other})
    terminator = TlsTerminator(server_context(pair, time.time()).context, port, server.node.port)
    try:
        text = "IP address mismatch, certificate is not valid for"
        await eventually_async(
            partial(refusal, f"127.0.0.1:{port}", security(settings)), text, good=lambda said: text in said
        )
        found = security(settings, ssl_endpoint_identification_algorithm="")
        await (await opened(f"127.0.0.1:{port}", found)).close()
    finally:
        terminator.close()


@pytest.mark.parametrize("login", ["certificate", "digest"])
@on_loop
async def test_znodes_belong_to_the_login(server: SecureZooKeeper, tmp_path: Path, login: str) -> None:
    """As Kafka makes them: its own login may do all, others read what is no secret."""
    settings, digest = server.settings(tmp_path), {"zookeeper.digest.credentials": "fleet:s3cret"}
    plain = server.node.address
    connect = f"{server.address if login == 'certificate' else plain}/{login}"
    found = security(settings if login == "certificate" else digest, set_acl="true")
    store = await opened(connect, found)
    await store.multi([Create("/config"), Create("/config/users"), Create("/config/users/alice", b"secret")])
    await store.create("/config/topics/t", b"open", parents=True)
    await store.create("/controller", b"1", ephemeral=True)
    assert (await store.get("/config/users/alice"))[0] == b"secret"

    def look() -> None:
        other = KazooClient(plain)
        other.start(10)
        try:
            acls = {path: other.get_acls(f"/{login}{path}")[0] for path in ("", "/config/topics/t", "/controller")}
            for one in acls.values():
                ids = {(acl.id.scheme, acl.perms) for acl in one}
                assert ids == {("x509" if login == "certificate" else "digest", 31), ("world", 1)}
            assert other.get(f"/{login}/config/topics/t")[0] == b"open"
            for refused in (
                lambda: other.get(f"/{login}/config/users/alice"),
                lambda: other.get_children(f"/{login}/config/users"),
                lambda: other.set(f"/{login}/config/topics/t", b"mine"),
                lambda: other.create(f"/{login}/config/topics/u"),
                lambda: other.delete(f"/{login}/controller"),
            ):
                with pytest.raises(NoAuthError):
                    refused()
        finally:
            other.stop()
            other.close()

    await asyncio.get_running_loop().run_in_executor(None, look)
    await store.close()
    another = await opened(connect, found)  # the same login in another session
    await another.set("/config/users/alice", b"changed")
    await another.close()
    if login == "certificate":
        stranger = await opened(connect, security(server.settings(tmp_path / "bob", "/CN=bob")))
        with pytest.raises(StoreError, match="NoAuth: /config/users/alice"):
            await stranger.get("/config/users/alice")
        await stranger.close()


@on_loop
async def test_a_new_certificate_is_taken_at_the_next_connection(
    server: SecureZooKeeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settings = server.settings(tmp_path)
    own = Path(settings["zookeeper.ssl.keystore.location"])
    async with Proxy(server.secure_port) as proxy:
        store = await opened(f"{proxy.address}/renewed", security(settings))
        old = own.read_text()
        server.authority.pair("/CN=fleet").store(own)
        assert own.read_text() != old
        proxy.cut()
        await store.sync("/")
        await store.create("/a")
        own.write_text("nothing")  # a bad one changes nothing
        proxy.cut()
        await store.sync("/")
        assert (await store.get("/a"))[0] == b""
        await store.close()
    said = [one.getMessage() for one in caplog.records if one.name == "fleetlog.brokers.tls.contexts"]
    assert said[0] == "connections to ZooKeeper use the new certificates from now on"
    assert said[1].startswith("connections to ZooKeeper go on with the certificates of before: zookeeper.ssl.keystore")


@on_loop
async def test_no_level_shows_what_is_secret(server: SecureZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    """Logins, the session's own password, and what is written and read, by each kind of request."""
    name = "fleetlog.coordination.zookeeper.kazoo"
    caplog.set_level(1, logger=name)
    store = await opened(f"{server.node.address}/silent", security({"zookeeper.digest.credentials": "fleet:s3cret"}))
    await store.create("/a", b"h1dden")
    await store.set("/a", b"h1dden too")
    await store.multi([SetData("/a", b"h1dden"), Create("/b", b"h1dden")])
    assert (await store.get("/a"))[0] == b"h1dden"
    assert await store.get_many(["/a", "/b"])
    credentials = store.credentials()
    assert credentials is not None
    await store.close()
    lines = [one.getMessage() for one in caplog.records if one.name == name]
    assert any("SetData /silent/a" in line for line in lines), "requests are in the log, by their kind and path"
    for secret in ("s3cret", "h1dden", credentials[1].hex(), repr(credentials[1])[2:-1]):
        assert not [line for line in lines if secret in line]
