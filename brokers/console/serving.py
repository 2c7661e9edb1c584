"""Runs the console by uvicorn, which is plain Python and needs only h11 and click: a console serves a few people."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from brokers.cli.output import CliError
from brokers.console.web import ConsoleSettings, create_console

OPEN_MAX: Final = 200
"""Connections that are open at the same time; more are answered with 503."""
BACKLOG: Final = 64
_REFUSALS: Final = {
    400: "this is no request of HTTP\n",
    431: "the address and the headers of a request may have 64 KiB; shorten the filter\n",
}
REQUEST_S: Final = 10.0
"""A connection that has not sent the head of a request by then is closed: it would count among the open ones."""


class TimedConnection(H11Protocol):
    """A connection whose requests must arrive in time, the first one, too."""

    _waiting: asyncio.Task[None] | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """By asyncio."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """By asyncio."""
        if self._refused:  # read to its end, or the peer's system throws the answer away
            return
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """By asyncio."""
        super().connection_lost(exc)
        self._stop_watching()

    def send_400_response(self, msg: str) -> None:
        """By uvicorn, while it handles the error of what is no request, or has too large a head."""
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        text = _REFUSALS.get(status, msg).encode()
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        head = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
        for event in (head, h11.Data(data=text), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self._refused = True
        self.transport.write_eof()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        if self._is_answering:
            self._stop_watching()
        elif self._waiting is None:
            self._waiting = self.loop.create_task(self._close_when_late())

    def _stop_watching(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    async def _close_when_late(self) -> None:
        await asyncio.sleep(REQUEST_S)
        self._waiting = None
        if not self._is_answering:
            self.transport.close()


def serve(
    *,
    settings: ConsoleSettings,
    host: str,
    port: int,
    certificate: tuple[str, str] | None,
    stop_s: int,
    ready: Callable[[int], None],
) -> None:
    """Listen, call ``ready`` with the port, and serve until SIGINT or SIGTERM. Raises CliError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise CliError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    config = uvicorn.Config(
        create_console(settings),
        http=TimedConnection,
        loop="asyncio",  # the same everywhere, whatever else is installed
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=OPEN_MAX,
        timeout_graceful_shutdown=stop_s,
        ssl_certfile=certificate[0] if certificate is not None else None,
        ssl_keyfile=certificate[1] if certificate is not None else None,
    )
    ready(listening.getsockname()[1])
    with contextlib.suppress(KeyboardInterrupt), listening:
        uvicorn.Server(config).run(sockets=[listening])
