"""TLS under a link to another broker: stands between the socket's transport and the link, and is a transport to it.

Each step of the handshake runs in a worker, because it computes a signature or checks a chain of certificates. What
comes after it is decrypted straight into the link's buffers, on the loop.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast

from fleetlog.brokers.peers.link import PeerLink
from fleetlog.brokers.security.tls import HANDSHAKE_BYTES_MAX, TlsEngine, TlsFailure, TlsProblem, TlsState

RECEIVE_BYTES: Final = 64 * 1024


class TlsLink(asyncio.BufferedProtocol):
    """The protocol of the socket, and the transport of its link. :meth:`shake_hands` first."""

    def __init__(self, link: PeerLink, context: ssl.SSLContext, host: str, loop: asyncio.AbstractEventLoop) -> None:
        """``host`` is the name or address that the other broker's certificate must have."""
        self._link = link
        self._engine = TlsEngine(context, server_side=False, server_name=host)
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._area = memoryview(bytearray(RECEIVE_BYTES))
        self._open = False
        self._arrived = bytearray()
        self._ended = False
        self._news = asyncio.Event()

    async def shake_hands(self) -> None:
        """Raises TlsFailure, after which the connection is closed. Cancelled, it closes the connection, too."""
        assert self._transport is not None, "connected before"
        try:
            while not await self._loop.run_in_executor(None, self._engine.handshake):
                self._flush()
                await self._news.wait()
                self._news.clear()
                self._feed()
        except BaseException as problem:
            if isinstance(problem, TlsFailure):
                self._flush()  # the alert
            self._transport.close()
            raise
        self._flush()
        self._open = True
        self._link.connection_made(self)  # type: ignore[arg-type]
        self._feed()
        self._pass_on()

    def _feed(self) -> None:
        """Raises TlsFailure."""
        arrived, self._arrived = self._arrived, bytearray()
        self._engine.feed(arrived)
        if self._ended:
            self._engine.feed_eof()

    def _flush(self) -> None:
        assert self._transport is not None, "connected before"
        if self._engine.outgoing_bytes and not self._transport.is_closing():
            self._transport.write(self._engine.take())

    def _pass_on(self) -> None:
        """Decrypt what is at hand into the link's buffers."""
        link = self._link
        try:
            while link.open:
                buffer = link.get_buffer(-1)
                count = self._engine.read_into(buffer)
                if count:
                    link.buffer_updated(count)
                if count < len(buffer):
                    break
        except TlsFailure as failure:
            link.close(str(failure))
            return
        if self._engine.state is not TlsState.OPEN:
            link.close("closed the connection")
        elif link.open:
            self._flush()  # an answer to the other side's change of keys

    # ---- called by the link

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        rest = memoryview(data)
        try:
            while rest:
                count = self._engine.write(rest)
                if not count:
                    raise TlsFailure(TlsProblem.OTHER, "nothing can be encrypted")
                rest = rest[count:]
                self._flush()
        except TlsFailure as failure:
            self._link.close(str(failure))

    def abort(self) -> None:
        """Close the connection at once."""
        assert self._transport is not None, "connected before"
        self._transport.abort()

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, problem: Exception | None) -> None:
        """End the handshake, or the link."""
        self._ended = True
        self._news.set()
        if self._open:
            self._link.connection_lost(problem)

    def pause_writing(self) -> None:
        """Hold further calls of the link."""
        self._link.pause_writing()

    def resume_writing(self) -> None:
        """Release the link's held calls."""
        self._link.resume_writing()

    def get_buffer(self, _size_hint: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._area

    def buffer_updated(self, size: int) -> None:
        """Handle ``size`` received bytes."""
        if self._open:
            try:
                self._engine.feed(self._area[:size])
            except TlsFailure as failure:
                self._link.close(str(failure))
            else:
                self._pass_on()
            return
        self._arrived += self._area[:size]
        if len(self._arrived) > HANDSHAKE_BYTES_MAX:
            self.abort()  # a worker is at work, and the other side sends on
        self._news.set()
