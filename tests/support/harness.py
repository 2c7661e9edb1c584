"""A real server on real sockets with the handlers of a test, its loop in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import uvloop

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import Done
from fleetlog.brokers.api.disconnects import Disconnects
from fleetlog.brokers.api.unpacking import Unpacking
from fleetlog.brokers.audit.recorder import Audit
from fleetlog.brokers.config import load_config
from fleetlog.brokers.logins.sasl import SaslListener
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.model import Endpoint
from fleetlog.brokers.server.listener import Server
from fleetlog.brokers.timers import Timers
from fleetlog.brokers.tls.listeners import TlsListener
from fleetlog.brokers.tls.machine import is_cut_off
from tests.support.clocks import RealClock
from tests.support.waiting import eventually


def beat(_: Any, context: Any) -> Done:
    """A handler of Heartbeat: an answer without an error, at once."""
    return Done(m.HeartbeatResponse(version=context.api_version, error_code=0))


class RunningServer:
    """Context manager; ``settings`` are broker properties, ``tls`` its listeners with TLS, at ports of their own."""

    def __init__(
        self,
        handlers: dict[int, Callable[[Any, Any], Any]],
        settings: dict[str, str] | None = None,
        tls: list[TlsListener] | None = None,
        logins: dict[str, SaslListener] | None = None,
    ) -> None:
        overrides = {"broker.id": "1", "zookeeper.connect": "none:1", "listeners": "PLAINTEXT://127.0.0.1:0"}
        self.config = load_config(overrides=overrides | (settings or {}))
        self.handlers = handlers
        self.clock = RealClock()
        self.metrics = Metrics()
        self.metadata = SimpleNamespace(effective=self.config, brokers={})
        self.server = Server(self.config)
        self.tls = {one.name: one for one in tls or []}
        self.logins = logins or {}
        self.audit: Audit | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started: Future[None] = Future()
        self.loop: asyncio.AbstractEventLoop | None = None

    def _run(self) -> None:
        self.loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self.loop)
        try:
            configured = self.config.listener_endpoints()
            names = {endpoint.listener for endpoint in configured}
            secured = [
                Endpoint(one.name, "127.0.0.1", 0, one.protocol) for one in self.tls.values() if one.name not in names
            ]
            self.server.bind([*configured, *secured])
            services: Any = SimpleNamespace(
                config=self.config,
                clock=self.clock,
                loop=self.loop,
                timers=Timers(self.loop, self.clock),
                metrics=self.metrics,
                metadata=self.metadata,
                replicas=None,
                audit=self.audit,
                disconnects=Disconnects(),
                metering=None,
                unpacking=Unpacking(),
            )
            self.server.serve(services, self.handlers, self.logins, self.tls)
            self._started.set_result(None)
        except BaseException as error:
            self._started.set_exception(error)
            raise
        self.loop.run_forever()
        self.server.close()
        self.loop.close()

    def __enter__(self) -> RunningServer:
        self._thread.start()
        self._started.result(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the loop hangs"

    def call(self, function: Callable[[], Any]) -> Any:
        """Run it on the loop's thread and return what it returns."""
        assert self.loop is not None
        outcome: Future[Any] = Future()

        def run() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:
                outcome.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return outcome.result(10)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition, asked on the loop's thread, holds."""
        eventually(lambda: self.call(condition), what, pause_s=0.005)

    def endpoint(self, listener: str = "PLAINTEXT") -> Endpoint:
        return next(e for e in self.server.endpoints if e.listener == listener)

    def client(self, listener: str = "PLAINTEXT", context: ssl.SSLContext | None = None) -> Client:
        return Client(self.endpoint(listener).port, context=context)

    def refused(self, reason: str) -> float:
        return self.metrics.refused.labels(reason).value


class Client:
    """A blocking client that sends and reads frames."""

    def __init__(self, port: int, source: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> None:
        """``source`` is the address that the server sees; with a ``context`` the client speaks TLS."""
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))
        if context is not None:
            self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
        self._buffer = b""
        self.sent: dict[int, tuple[int, int]] = {}

    def send(self, message: Any, version: int, correlation_id: int) -> None:
        self.sent[correlation_id] = (message.API_KEY, version)
        self.raw(m.encode_request(message.API_KEY, version, correlation_id, "test", message))

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            data = self.sock.recv(min(count, 1 << 20))
            if not data:
                raise ConnectionResetError("the server closed the connection")
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def frame(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def receive(self) -> tuple[int, Any]:
        """Correlation id and message of the next answer."""
        frame = self.frame()
        key, version = self.sent[int.from_bytes(frame[:4], "big")]
        correlation_id, body = m.split_response(key, version, frame)
        return correlation_id, m.decode_response(key, version, body)

    def ask(self, message: Any, version: int, correlation_id: int = 1) -> Any:
        self.send(message, version, correlation_id)
        found, answer = self.receive()
        assert found == correlation_id
        return answer

    def closed(self) -> bool:
        """Whether the server closes the connection (waits for it)."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True
        except ssl.SSLError as error:
            return is_cut_off(error)

    def close(self) -> None:
        self.sock.close()
