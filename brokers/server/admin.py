"""A small HTTP endpoint for operators: ``/metrics`` for Prometheus, ``/health/live`` and ``/health/ready``.

GET only, one request per connection, loopback unless ``admin.listener`` says otherwise. It is no general web server:
a request may be 8 KiB long and take five seconds, and 32 may be open at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from brokers.metrics import Metrics

logger = logging.getLogger(__name__)

MAX_REQUEST = 8 * 1024
MAX_OPEN = 32
TIMEOUT_SECONDS = 5.0
_PLAIN = "text/plain; charset=utf-8"


class Admin:
    """Serves the endpoint. ``ready`` returns None, or why the broker is not ready yet."""

    def __init__(self, metrics: Metrics, ready: Callable[[], str | None]) -> None:
        self._metrics = metrics
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port.

        Raises:
            OSError: the address is taken or not ours.

        """
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_REQUEST)
        chosen: int = self._server.sockets[0].getsockname()[1]
        logger.info("metrics and health on http://%s:%d", host, chosen)
        return chosen

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > MAX_OPEN:
                return
            async with asyncio.timeout(TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open -= 1
            writer.close()

    def answer(self, head: bytes) -> bytes:
        """The whole HTTP answer to a request's head."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            status, kind, body = "405 Method Not Allowed", _PLAIN, b"only GET\n"
        else:
            status, kind, body = self._page(words[1].split(b"?", 1)[0])
        top = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return top.encode() + (b"" if words[0] == b"HEAD" else body)

    def _page(self, path: bytes) -> tuple[str, str, bytes]:
        if path == b"/metrics":
            from prometheus_client.exposition import CONTENT_TYPE_LATEST  # imported with the first page

            return "200 OK", CONTENT_TYPE_LATEST, self._metrics.render()
        if path == b"/health/live":
            return "200 OK", _PLAIN, b"live\n"
        if path == b"/health/ready":
            missing = self._ready()
            if missing is None:
                return "200 OK", _PLAIN, b"ready\n"
            return "503 Service Unavailable", _PLAIN, f"not ready: {missing}\n".encode()
        return "404 Not Found", _PLAIN, b"there are /metrics, /health/live and /health/ready\n"
