"""What the tests of coordination share: async tests, a proxy that cuts connections at the worst moment."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from fleetlog.coordination.store import SessionEvent, SessionState
from fleetlog.coordination.zookeeper import ZookeeperStore

HEARD_S = 2.0
"""After that a store's client has heard that its session is over; if not, it has taken the session back."""


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own; nothing may be left running on it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 120))

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


class Stores:
    """Makes stores and closes them all at the end of the block."""

    def __init__(self) -> None:
        self.all: list[ZookeeperStore] = []

    async def __aenter__(self) -> Stores:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(store.close() for store in self.all))

    async def open(self, connect: str, timeout_ms: int = 6000) -> ZookeeperStore:
        store = ZookeeperStore(connect, session_timeout_ms=timeout_ms)
        self.all.append(store)
        await store.start(20_000)
        return store


async def expire(store: Any, by: Any) -> None:
    """End the session of a store by the hand of another one.

    The store's client, which lost its connection to the visitor, may take the session back before the visitor closes
    it; the session then goes on, and is ended again.
    """
    loop = asyncio.get_running_loop()
    credentials = store.credentials()
    assert credentials is not None
    while store.credentials() == credentials:
        assert await by.end_session(*credentials)
        until = loop.time() + HEARD_S
        while store.credentials() == credentials and loop.time() < until:
            await asyncio.sleep(0.01)


def record_session(store: ZookeeperStore) -> list[SessionEvent]:
    events: list[SessionEvent] = []
    store.on_session(events.append)
    return events


def states(events: list[SessionEvent]) -> list[SessionState]:
    return [event.state for event in events]


class Proxy:
    """A TCP proxy on the test's loop. ``requests`` and ``answers`` say what is passed on; ``cut`` ends connections."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.requests = True
        self.answers = True
        self.accepting = True
        self.port = 0
        self.swallowed = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Close every connection, now; bytes on their way are lost."""
        for writer in list(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        self.requests = self.answers = self.accepting = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.accepting:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.target_port)
        self._writers |= {writer, back}
        for source, sink, which in ((reader, back, "requests"), (there, writer, "answers")):
            task = asyncio.get_running_loop().create_task(self._pump(source, sink, which))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, which: str) -> None:
        try:
            while data := await source.read(65536):
                if getattr(self, which):
                    sink.write(data)
                else:
                    self.swallowed += len(data)
        except OSError:
            pass
        finally:
            sink.transport.abort()
            self._writers.discard(sink)
