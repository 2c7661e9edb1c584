"""What the kernel counts of a TCP connection: nothing is counted for it on the path of a request."""

from __future__ import annotations

import socket
import struct
from typing import Final

from fleetlog.brokers.model import Carried

_INFO_BYTES: Final = 136
_ROUND_TRIP, _BYTES = struct.Struct("=I"), struct.Struct("=QQ")
_ROUND_TRIP_AT, _BYTES_AT = 68, 120
"""Of ``struct tcp_info`` (linux/tcp.h): tcpi_rtt, and tcpi_bytes_acked with tcpi_bytes_received (Linux 4.1)."""


def carried_by(descriptor: int) -> Carried:
    """The figures of a connection that is open; -1 each where the kernel has none."""
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
        try:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        finally:
            sock.detach()  # the connection goes on
    except OSError:
        return Carried()
    if len(info) < _BYTES_AT + _BYTES.size:
        return Carried()
    sent, received = _BYTES.unpack_from(info, _BYTES_AT)
    return Carried(received, sent, _ROUND_TRIP.unpack_from(info, _ROUND_TRIP_AT)[0])
