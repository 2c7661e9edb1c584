"""A small HTTP endpoint for operators: ``/metrics`` for Prometheus, ``/health/live`` and ``/health/ready``.

GET only, one request per connection, with TLS where ``admin.ssl.*`` are set, loopback unless ``admin.listener`` says
otherwise. It is no general web server: a request may be 8 KiB long and take five seconds with its handshake, and 32 may
be open at once.

It has a thread and a loop of its own, so that ``/health/live`` answers while the broker's loop stands still, and says
for how long. The other pages are made on the broker's loop, whose data they read.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from brokers.metrics import Metrics

logger = logging.getLogger(__name__)

MAX_REQUEST = 8 * 1024
MAX_OPEN = 32
TIMEOUT_SECONDS = 5.0
"""For a request and its answer, and for the end of the connection: asyncio would wait 30 s for that of TLS."""
LOOP_SECONDS = 2.0
"""How long a page that is made on the broker's loop is waited for."""
_PLAIN = "text/plain; charset=utf-8"


_T = TypeVar("_T")


class Admin:
    """Serves the endpoint. ``ready`` returns None, or why the broker is not ready yet.

    ``troubles`` names what is wrong with a broker that serves all the same: sending clients elsewhere because of a full
    disk would take from them what can still be read.

    ``standing_ms`` says for how long the broker's loop has not moved, on any thread; ``dead_ms`` is how long that may
    be until the broker isn't live any more: by then it has lost its session and leads nothing.

    ``more`` are further health pages by their paths: each says None for 200, or the reason of a 503.
    """

    def __init__(
        self,
        metrics: Metrics,
        ready: Callable[[], str | None],
        troubles: Callable[[], list[str]] = list,
        *,
        standing_ms: Callable[[], int] = lambda: 0,
        dead_ms: int = 60_000,
        more: Mapping[bytes, Callable[[], str | None]] = MappingProxyType({}),
    ) -> None:
        self._metrics = metrics
        self._ready = ready
        self._troubles = troubles
        self._standing_ms = standing_ms
        self._dead_ms = dead_ms
        self._more = more
        self._server: asyncio.Server | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._open = 0
        self._newest_context: Callable[[], ssl.SSLContext] | None = None

    async def start(self, host: str, port: int, newest_context: Callable[[], ssl.SSLContext] | None = None) -> int:
        """Listen; returns the port. With ``newest_context``, which the endpoint's thread calls, connections are TLS.

        Raises:
            OSError: the address is taken or not ours.

        """
        self._newest_context = newest_context
        self._main = asyncio.get_running_loop()
        self._own = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._own.run_forever, name="admin", daemon=True)
        self._thread.start()
        try:
            self._server = await self._there(asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST))
        except BaseException:
            await self.close()
            raise
        chosen: int = self._server.sockets[0].getsockname()[1]
        logger.info("metrics and health on %s://%s:%d", "https" if newest_context else "http", host, chosen)
        return chosen

    async def _there(self, work: Coroutine[Any, Any, _T]) -> _T:
        assert self._own is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._own))

    async def close(self) -> None:
        """Stop listening and end the thread. What is being answered gets no answer."""
        own, self._own = self._own, None
        if own is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(own), own)
        await self._main.run_in_executor(None, self._thread.join)
        own.close()

    async def _end(self, own: asyncio.AbstractEventLoop) -> None:
        if self._server is not None:
            self._server.close()
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        own.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        answered = False
        try:
            if self._open > MAX_OPEN:
                return
            async with asyncio.timeout(TIMEOUT_SECONDS):
                if self._newest_context is not None:
                    await writer.start_tls(self._newest_context())  # before the first byte is read
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self.answer(head))
                await writer.drain()
            answered = True
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            pass  # by _end; asyncio's streams would log it as an error
        finally:
            try:
                if answered:
                    await _closed(writer)
            finally:
                writer.transport.abort()  # no-op where it is closed
                self._open -= 1

    async def answer(self, head: bytes) -> bytes:
        """The whole HTTP answer to a request's head."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            status, kind, body = "405 Method Not Allowed", _PLAIN, b"only GET\n"
        else:
            status, kind, body = await self._page(words[1].split(b"?", 1)[0])
        top = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return top.encode() + (b"" if words[0] == b"HEAD" else body)

    async def _page(self, path: bytes) -> tuple[str, str, bytes]:
        if path == b"/health/live":
            return self._live()
        make = {b"/metrics": self._metrics_page, b"/health/ready": self._ready_page}.get(path)
        if make is None and path in self._more:
            make = functools.partial(_verdict, self._more[path])
        if make is None:
            return (
                "404 Not Found",
                _PLAIN,
                b"there are /metrics, /health/live, /health/ready, /health/caught-up and /health/stoppable\n",
            )
        made = asyncio.run_coroutine_threadsafe(_called(make), self._main)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(made), LOOP_SECONDS)
        except TimeoutError:
            standing_s = max(self._standing_ms() / 1000, LOOP_SECONDS)
            text = f"not ready: the event loop has stood still for {standing_s:.1f} s\n"
            return "503 Service Unavailable", _PLAIN, text.encode()

    def _live(self) -> tuple[str, str, bytes]:
        standing_ms = self._standing_ms()
        if standing_ms < 1000:
            return "200 OK", _PLAIN, b"live\n"
        status = "200 OK" if standing_ms < self._dead_ms else "503 Service Unavailable"
        return status, _PLAIN, f"the event loop has stood still for {standing_ms / 1000:.1f} s\n".encode()

    def _metrics_page(self) -> tuple[str, str, bytes]:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST  # imported with the first page

        return "200 OK", CONTENT_TYPE_LATEST, self._metrics.render()

    def _ready_page(self) -> tuple[str, str, bytes]:
        missing = self._ready()
        if missing is None:
            return "200 OK", _PLAIN, "\n".join(["ready", *(f"but: {one}" for one in self._troubles()), ""]).encode()
        return "503 Service Unavailable", _PLAIN, f"not ready: {missing}\n".encode()


def _verdict(reason: Callable[[], str | None]) -> tuple[str, str, bytes]:
    missing = reason()
    if missing is None:
        return "200 OK", _PLAIN, b"yes\n"
    return "503 Service Unavailable", _PLAIN, f"no: {missing}\n".encode()


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Send what is left, and the end; the peer's is waited for, but not long. A slow one may still read."""
    writer.close()
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass


async def _called(make: Callable[[], _T]) -> _T:
    return make()
