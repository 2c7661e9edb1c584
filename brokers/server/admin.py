"""A small HTTP endpoint for operators: ``/health/live``, ``/health/ready``, and the pages of metrics for Prometheus.

GET only, one request per connection, with TLS where ``admin.ssl.*`` are set, loopback unless ``admin.listener`` says
otherwise. It is no general web server: a request may be 8 KiB long and take five seconds with its handshake. Of more
than ``ROOM`` connections the one that has sent no head for longest makes way for the newest, so silent ones shut out no
probe; 32 pages of metrics may be under way at once, and take no place from the pages of health.

It has a thread and a loop of its own, so that ``/health/live`` answers while the broker's loop stands still, and says
for how long. The other pages read the data of the broker's loop, and on it: metrics a slice at a time, and their text
is made here. Scrapes of a page that overlap share what was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.inert_settings import ADMIN_TLS_PREFIX
from fleetlog.brokers.kafka_names import RENAMED, renamed_text
from fleetlog.brokers.metrics.exposition import Exposition, exposition_text
from fleetlog.brokers.metrics.registry import Metrics
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.tls.contexts import CertificateFiles, FollowedContexts, server_context
from fleetlog.brokers.tls.settings import TlsSettings

logger = logging.getLogger(__name__)


def admin_contexts(config: BrokerConfig, now_s: Callable[[], float]) -> FollowedContexts | None:
    """The contexts of connections to ``admin.listener``; None without TLS. Raises ConfigError.

    ``admin.ssl.*`` mean what ``ssl.*`` mean for listeners. ``now_s`` is the time in seconds since 1970.
    """
    prefix = ADMIN_TLS_PREFIX + "ssl."
    given = {name.removeprefix(ADMIN_TLS_PREFIX): text for name, text in config.given if name.startswith(prefix)}
    if not given:
        return None
    if not config.admin_listener:
        name, text = next(iter(given.items()))
        raise ConfigError(ADMIN_TLS_PREFIX + name, text, "there is no admin.listener: set it, or remove this")
    files = CertificateFiles(TlsSettings.of(given, ADMIN_TLS_PREFIX), server_context, now_s())
    return FollowedContexts(files, now_s, "connections to admin.listener")


MAX_REQUEST = 8 * 1024
MAX_SCRAPES = 32
ROOM = 256
BACKLOG = 256
ACCEPT_PAUSE_S = 0.001
"""After each connection: what arrived of the earlier ones is read before the next can displace them."""
TIMEOUT_SECONDS = 5.0
"""For a request and its answer, and for the end of the connection: asyncio would wait 30 s for that of TLS."""
LOOP_SECONDS = 2.0
"""How long a page that is made on the broker's loop is waited for."""
METRICS_SECONDS = 4.0
"""The same for a page of metrics, which is read in many turns of it."""
COMPRESSED_BYTES = 16 * 1024
"""Longer pages are compressed for those that take it."""
_PLAIN = "text/plain; charset=utf-8"

Page = tuple[str, str, bytes]
"""Status, content type, body."""


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
        self._own: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._open: dict[asyncio.StreamWriter, bool] = {}
        """The connections, the oldest first, and whether their head is there and their answer under way."""
        self._scraping = 0
        self._accepting: list[asyncio.Task[None]] = []
        self._scrapes: dict[Exposition, asyncio.Future[bytes]] = {}
        """The scrapes under way."""
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
            chosen = await self._there(self._listen(host, port))
        except BaseException:
            await self.close()
            raise
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

    async def _listen(self, host: str, port: int) -> int:
        bound = await asyncio.start_server(self._serve, host, port, start_serving=False)
        listening = [address.dup() for address in bound.sockets]
        bound.close()
        for address in listening:
            address.listen(BACKLOG)
            self._accepting.append(asyncio.create_task(self._accept(address)))
        return int(listening[0].getsockname()[1])

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError:  # no descriptor is left, which the broker's own listeners report
                    self._make_room(0)
                    await asyncio.sleep(1)
                    continue
                with contextlib.suppress(OSError):
                    await loop.connect_accepted_socket(self._stream, connection)
                await asyncio.sleep(ACCEPT_PAUSE_S)

    def _stream(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(MAX_REQUEST), self._serve)

    def _make_room(self, most: int) -> None:
        """Close one of more than ``most`` connections: the oldest of those that are not being answered."""
        if len(self._open) > most:
            silent = (writer for writer, answering in self._open.items() if not answering)
            oldest = next(silent, next(iter(self._open)))
            oldest.transport.abort()
            del self._open[oldest]

    async def _end(self, own: asyncio.AbstractEventLoop) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        own.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = False
        self._make_room(ROOM)
        answered = False
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                if self._newest_context is not None:
                    await writer.start_tls(self._newest_context())  # before the first byte is read
                head = await reader.readuntil(b"\r\n\r\n")
                self._open[writer] = True
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
                    self._open[writer] = False
                    await _closed(writer)
            finally:
                writer.transport.abort()  # no-op where it is closed
                self._open.pop(writer, None)

    async def answer(self, head: bytes) -> bytes:
        """The whole HTTP answer to a request's head."""
        line, _, fields = head.partition(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            status, kind, body = "405 Method Not Allowed", _PLAIN, b"only GET\n"
        else:
            status, kind, body = await self._page(*words[1].split(b"?", 1)[:2])
        coding = ""
        if len(body) > COMPRESSED_BYTES and _takes_gzip(fields):
            body, coding = gzip.compress(body, 1), "Content-Encoding: gzip\r\n"
        top = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{coding}Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return top.encode() + (b"" if words[0] == b"HEAD" else body)

    async def _page(self, path: bytes, query: bytes = b"") -> Page:
        if path == b"/health/live":
            return self._live()
        exposition = self._metrics.pages.get(path.decode("latin-1"))
        try:
            if exposition is not None and self._metrics.enabled:
                if self._metrics.start.under_way:  # the loop stands still, perhaps for minutes
                    return "200 OK", _PLAIN, self._metrics.start.text()
                if self._scraping >= MAX_SCRAPES:
                    return "503 Service Unavailable", _PLAIN, b"too many scrapes are under way\n"
                self._scraping += 1
                try:
                    return self._renamed(await self._metrics_page(exposition), query)
                finally:
                    self._scraping -= 1
            make = self._ready_page if path == b"/health/ready" else None
            if path in self._more:
                make = functools.partial(_verdict, self._more[path])
            if make is not None:
                return await self._made(_called(make), LOOP_SECONDS)
        except TimeoutError:
            if self._metrics.start.under_way and self._metrics.start.logs_left:
                return "503 Service Unavailable", _PLAIN, f"not ready: {self._metrics.start.words()}\n".encode()
            standing_s = max(self._standing_ms() / 1000, LOOP_SECONDS)
            text = f"not ready: the event loop has stood still for {standing_s:.1f} s\n"
            return "503 Service Unavailable", _PLAIN, text.encode()
        if exposition is not None:
            return "404 Not Found", _PLAIN, b"there are no metrics: metrics.enable is false\n"
        pages = ", ".join([*self._metrics.pages, "/health/live", "/health/ready", "/health/caught-up"])
        return "404 Not Found", _PLAIN, f"there are {pages} and /health/stoppable\n".encode()

    @staticmethod
    def _renamed(page: Page, query: bytes) -> Page:
        """The page in the spelling that ``names=`` of the query asks for."""
        name, _, names = query.decode("latin-1").partition("=")
        if name != "names" or names == "strimzi":
            return page
        if names not in RENAMED:
            text = f"names= is one of strimzi, {', '.join(RENAMED)}\n"
            return "400 Bad Request", _PLAIN, text.encode()
        return page[0], page[1], renamed_text(page[2].decode(), names).encode()

    async def _made(self, work: Coroutine[Any, Any, _T], limit_s: float) -> _T:
        """What is made on the broker's loop. Raises TimeoutError."""
        made = asyncio.run_coroutine_threadsafe(work, self._main)
        return await asyncio.wait_for(asyncio.wrap_future(made), limit_s)

    def _live(self) -> Page:
        standing_ms = self._standing_ms()
        if standing_ms < 1000:
            return "200 OK", _PLAIN, b"live\n"
        status = "200 OK" if standing_ms < self._dead_ms else "503 Service Unavailable"
        return status, _PLAIN, f"the event loop has stood still for {standing_ms / 1000:.1f} s\n".encode()

    async def _metrics_page(self, exposition: Exposition) -> Page:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST  # imported with the first page

        under_way = self._scrapes.get(exposition)
        if under_way is None:
            under_way = asyncio.ensure_future(self._text_of(exposition))
            self._scrapes[exposition] = under_way
            under_way.add_done_callback(lambda _: self._scrapes.pop(exposition))
        return "200 OK", CONTENT_TYPE_LATEST, await asyncio.shield(under_way)

    async def _text_of(self, exposition: Exposition) -> bytes:
        return exposition_text(await self._made(exposition.collect(), METRICS_SECONDS))

    def _ready_page(self) -> Page:
        missing = self._ready()
        if missing is None:
            return "200 OK", _PLAIN, "\n".join(["ready", *(f"but: {one}" for one in self._troubles()), ""]).encode()
        return "503 Service Unavailable", _PLAIN, f"not ready: {missing}\n".encode()


def _verdict(reason: Callable[[], str | None]) -> Page:
    missing = reason()
    if missing is None:
        return "200 OK", _PLAIN, b"yes\n"
    return "503 Service Unavailable", _PLAIN, f"no: {missing}\n".encode()


def _takes_gzip(fields: bytes) -> bool:
    """Whether an HTTP request's header says that the answer may be compressed."""
    for line in fields.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"accept-encoding":
            return any(one.strip().split(b";")[0] == b"gzip" for one in value.split(b",") if b"q=0" not in one)
    return False


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
