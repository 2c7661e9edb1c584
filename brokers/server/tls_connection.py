"""A connection whose bytes pass TLS: only its sending differs, since the kernel sends what it is given."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from fleetlog._native import io
from fleetlog.brokers.api.base import ClientConnection
from fleetlog.brokers.log import SliceGone
from fleetlog.brokers.server.connection import SEND_BYTES_PER_TURN, Connection, Environment

if TYPE_CHECKING:
    from fleetlog.brokers.server.login import ConnectionLogin
    from fleetlog.brokers.server.tls_transport import TlsTransport

_DISK = io.Stop.DISK


class TlsConnection(Connection):
    """See the module; ``transport`` stands before loop and socket."""

    def __init__(
        self,
        environment: Environment,
        sock: socket.socket,
        peer: ClientConnection,
        login: ConnectionLogin | None,
        transport: TlsTransport,
    ) -> None:
        self._transport = transport
        super().__init__(environment, sock, peer, login, transport)
        transport.on_lost(self.close)

    @property
    def tls(self) -> tuple[str, str]:
        """Cipher and version of TLS."""
        return self._transport.tls

    @property
    def held_in_all(self) -> int:
        """What this connection holds in memory, with what waits between TLS and its socket."""
        return self.held + self._transport.held

    def _send(self) -> None:
        outbox = self._outbox
        try:
            sent, stop = self._transport.send_slices(outbox.parts(), SEND_BYTES_PER_TURN)
        except (OSError, SliceGone) as error:
            self.close(f"send failed: {error}")
            return
        if sent:
            outbox.sent(sent)
            counter = self._env.sent
            if counter is not None:
                counter.value += sent
            self.last_active_ms = self._env.clock.mono_ms()
        if stop == _DISK:
            self._read_ahead()
            if self.closed:
                return
        if outbox.pending or self._writing:
            self._want_writable(bool(outbox.pending) and not self._reads.pending)
