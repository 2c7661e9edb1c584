"""Certificates that are stored for listeners: each listener has its own outcome."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog.brokers.app import SystemClock, tls_listeners
from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.tls.dynamic_settings import DynamicTls
from fleetlog.brokers.tls.listeners import TlsListener
from tests.support.certificates import Authority
from tests.support.tls_listeners import Certificates

ONE, TWO, GONE = (f"listener.name.{name}.ssl.keystore.location" for name in ("one", "two", "gone"))


class Stored:
    """What is stored for the broker; ``put`` changes it."""

    def __init__(self, **own: str) -> None:
        self.own = own
        self.tell: Callable[[Any], None] = lambda change: None

    def dynamic_config(self, kind: str, entity: str) -> dict[str, str]:
        assert (kind, entity) == ("brokers", "1")
        return dict(self.own)

    def subscribe(self, tell: Callable[[Any], None]) -> None:
        self.tell = tell

    def put(self, own: dict[str, str]) -> None:
        self.own = own
        self.tell(SimpleNamespace(reloaded=True))


class Broker:
    """Two listeners with TLS, and ``inside`` for the brokers, by the same file."""

    def __init__(self, directory: Path, own: dict[str, str], inside: str = "INSIDE") -> None:
        self.files = Certificates(directory)
        self.directory = directory
        self.config = BrokerConfig(
            broker_id=1,
            listeners=("ONE://127.0.0.1:1", "TWO://127.0.0.1:2", "INSIDE://127.0.0.1:3"),
            listener_security_protocol_map=("ONE:SSL", "TWO:SSL", "INSIDE:PLAINTEXT"),
            inter_broker_listener_name=inside,
            given=tuple(self.files.settings("none", truststore_type="PEM",
                                            truststore_location=self.files.authority.file).items()),
        )  # fmt: skip
        self.listeners: dict[str, TlsListener] = tls_listeners(self.config, SystemClock())
        self.stored = Stored(**own)
        self.tls = DynamicTls(self.config, self.listeners, None, SystemClock())

    async def start(self) -> None:
        await self.tls.start(self.stored)  # type: ignore[arg-type]

    async def put(self, own: dict[str, str]) -> None:
        self.stored.put(own)
        await self.tls.applied()

    def contexts(self) -> list[Any]:
        return [one.context for one in self.listeners.values()]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another pair of the broker."""
    directory = tmp_path_factory.mktemp("pair")
    return Authority(directory, "authority").pair("/O=fleet/CN=broker").store(directory / "other.pem")


def on_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_what_is_stored_for_a_listener_of_before_stops_no_other(tmp_path: Path, pair: str) -> None:
    broker = Broker(tmp_path, {ONE: pair, GONE: "/any.pem"})
    one, two = broker.contexts()

    async def scenario() -> None:
        await broker.start()
        assert broker.contexts()[0] is not one, "its pair is in use"
        assert broker.contexts()[1] is two
        assert GONE in (broker.tls.left_over or "")
        await broker.tls.check({ONE: pair, GONE: "/any.pem", TWO: pair})
        with pytest.raises(ConfigError, match="there is no listener 'gone'"):
            await broker.tls.check({ONE: pair, GONE: "/any.pem", GONE.replace("location", "type"): "PEM"})
        await broker.put({ONE: pair})
        assert broker.tls.left_over is None

    on_loop(scenario)


def test_settings_that_cannot_be_are_the_listeners_own_refusal(tmp_path: Path, pair: str) -> None:
    broker = Broker(tmp_path, {})

    async def scenario() -> None:
        await broker.start()
        one, two = broker.contexts()
        bad = {ONE.replace("location", "type"): "JKS"}
        await broker.put({**bad, TWO: pair})
        assert broker.contexts()[0] is one
        assert broker.contexts()[1] is not two, "the other's pair is in use"
        refusals = [listener.refusal for listener in broker.listeners.values()]
        assert "JKS" in (refusals[0] or "")
        assert refusals[1] is None
        assert not any(listener.withheld for listener in broker.listeners.values()), "what was in use stays"
        await broker.tls.applied()
        assert broker.listeners["ONE"].refusal == refusals[0], "another look is no cure"
        await broker.tls.check({**bad, TWO: broker.files.broker_file})
        await broker.put({TWO: pair})
        assert broker.listeners["ONE"].refusal is None

    on_loop(scenario)


def test_at_a_start_the_files_own_pair_is_no_substitute(tmp_path: Path, pair: str) -> None:
    stored = tmp_path / "stored.pem"
    broker = Broker(tmp_path, {ONE: str(stored)})

    async def scenario() -> None:
        await broker.start()
        one, two = broker.listeners["ONE"], broker.listeners["TWO"]
        assert (one.withheld, two.withheld) == (True, False)
        assert "cannot be read" in (one.refusal or "")
        shutil.copy(pair, stored)
        await broker.tls.applied()
        assert (one.withheld, one.refusal) == (False, None)

    on_loop(scenario)


def test_the_brokers_own_listener_ends_the_start(tmp_path: Path) -> None:
    broker = Broker(tmp_path, {ONE: str(tmp_path / "none.pem")}, inside="ONE")
    with pytest.raises(ConfigError, match=r"none\.pem.*cannot be read"):
        on_loop(broker.start)
