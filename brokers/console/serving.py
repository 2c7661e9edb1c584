"""Runs the console and the registry by uvicorn, which is plain Python and needs only h11 and click."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.tls.contexts import FileStamp, file_stamp, in_memory_file, read_store

logger = logging.getLogger(__name__)

OPEN_MAX: Final = 200
"""Connections that are open at the same time. For one more, the one that has waited longest for its request makes way;
where none waits, it is answered with 503."""
OPEN_PER_ADDRESS_MAX: Final = 64
"""The same, of one address. A browser has six; behind a proxy all visitors have one address."""
BACKLOG: Final = 64
_REFUSALS: Final = {
    400: "this is no request of HTTP\n",
    431: "the address and the headers of a request may have 64 KiB; shorten the filter\n",
}
REQUEST_S: Final = 10.0
"""For the head of a request, for its body, and for taking some of the answer: a connection that is later is closed."""
LOOK_S: Final = 1.0
RENEWAL_TICKS: Final = 50
"""Between two looks at the files of the certificate: five seconds."""


class TimedConnection(H11Protocol):
    """A connection whose requests must arrive in time, the first one, too, and whose answers must be taken."""

    _refused = False
    _stage: tuple[object, ...] = ()
    _stage_began_s = 0.0
    _looking: asyncio.Task[None]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """By asyncio."""
        super().connection_made(transport)
        self._stage_began_s = self.loop.time()
        self._make_room()
        self._looking = self.loop.create_task(self._close_when_late())

    def data_received(self, data: bytes) -> None:
        """By asyncio."""
        if self._refused:  # read to its end, or the peer's system throws the answer away
            return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """By asyncio."""
        super().connection_lost(exc)
        self._looking.cancel()

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
        """Whether all of a request is here and the answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _make_room(self) -> None:
        """Too many connections: the longest that waits for its peer is closed, of the address first."""
        address = self.client[0] if self.client else None
        everyone = cast("set[TimedConnection]", self.connections)
        own = {peer for peer in everyone if (peer.client[0] if peer.client else None) == address}
        for present, most in ((own, OPEN_PER_ADDRESS_MAX), (everyone, OPEN_MAX - 1)):
            if len(present & everyone) <= most:
                continue
            waiting = [peer for peer in present & everyone if peer is not self and not peer._is_answering]
            if not waiting:
                self.app = service_unavailable
                return
            longest = min(waiting, key=lambda peer: peer._stage_began_s)
            everyone.discard(longest)
            longest.transport.abort()

    async def _close_when_late(self) -> None:
        """Look once in a second whether the peer has kept this connection waiting for too long."""
        while True:
            now_s, unsent = self.loop.time(), self.transport.get_write_buffer_size()
            stage = (self.cycle, self._is_answering, unsent)
            if stage != self._stage or (self._is_answering and not unsent):
                self._stage, self._stage_began_s = stage, now_s
            elif now_s - self._stage_began_s >= REQUEST_S:
                if unsent or self.transport.is_closing():
                    self.transport.abort()
                else:
                    self.transport.close()
            await asyncio.sleep(LOOK_S)


class ServerCertificate:
    """A certificate's file and its key's. What they are when they change is what new connections get."""

    def __init__(self, certificate: str, key: str) -> None:
        self._paths = certificate, key
        self._stamps = self._present()
        self._refused = ""

    def _present(self) -> list[FileStamp | None]:
        return [file_stamp(path) for path in self._paths]

    def renew(self, context: ssl.SSLContext) -> None:
        """Take the files into the context if they are others; what cannot be a pair leaves it as it is."""
        stamps = self._present()
        if stamps == self._stamps:
            return
        try:
            texts = [read_store(path) for path in self._paths]
            with in_memory_file(texts[0]) as certificate, in_memory_file(texts[1]) as key:
                for one in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):  # a try comes first
                    one.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            if str(error) != self._refused:
                logger.error("the certificate of before stays: %s and %s: %s", *self._paths, error)
            self._refused = str(error)
            return
        self._stamps, self._refused = stamps, ""
        logger.warning("new connections get the certificate that is in %s now", self._paths[0])


class _Server(uvicorn.Server):
    """Looks from time to time whether the certificate is another one."""

    certificate: ServerCertificate | None = None

    async def on_tick(self, counter: int) -> bool:
        """By uvicorn, ten times in a second."""
        if self.certificate is not None and self.config.ssl is not None and counter % RENEWAL_TICKS == 0:
            self.certificate.renew(self.config.ssl)
        return await super().on_tick(counter)


def serve(
    *,
    app: Any,
    host: str,
    port: int,
    certificate: tuple[str, str] | None,
    stop_s: int,
    ready: Callable[[int], None],
) -> None:
    """Serve an ASGI application on the main thread until SIGINT or SIGTERM; ``ready`` is told the port.

    Raises CliError.
    """
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
        app,
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
    server = _Server(config)
    server.certificate = ServerCertificate(*certificate) if certificate is not None else None
    ready(listening.getsockname()[1])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # uvicorn raises a signal again once it has ended by it
    with contextlib.suppress(KeyboardInterrupt), listening:
        server.run(sockets=[listening])
