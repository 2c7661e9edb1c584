"""``/metrics`` of brokers, where their ``admin.listener`` can be reached from here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.cluster_config import settings_of_brokers

METRICS_S: Final = 5.0
"""How long a broker's endpoint may be silent."""
PAGE_S: Final = 9.0
"""How long a whole page may take: less than a step of the console's figures."""
BLOCK_BYTES: Final = 64 * 1024
LINE_BYTES_MAX: Final = 64 * 1024


def metrics_address(client: AdminClient, broker_id: int, host: str) -> tuple[str, int]:
    """Where the broker, whose host that is, has its metrics. Raises ValueError where nowhere, CliError."""
    row = settings_of_brokers(client, ("admin.listener",), broker_id)["admin.listener"][broker_id]
    listening, _, port = (row.value or "").rpartition(":")
    if not listening or not port.isdecimal():
        raise ValueError("admin.listener is not set")
    return (host if listening in {"0.0.0.0", "[::]"} else listening).strip("[]"), int(port)


def metrics_lines(address: tuple[str, int], bytes_max: int, page_s: float = PAGE_S) -> Iterator[bytes]:
    """The lines of a broker's page, without their ends, ``bytes_max`` of it. Raises ValueError, OSError.

    So it does for a page that takes over ``page_s``, and one that ends early: what is missing of it is not zero.
    """
    import http.client  # which most commands do without

    host, port = address
    connection = http.client.HTTPConnection(host, port, timeout=METRICS_S)
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(page_s, end)
    timer.daemon = True
    try:
        connection.connect()
        stream = connection.sock
        timer.start()
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"/metrics answers {answer.status}")
        left, rest = bytes_max, b""
        while left > 0 and (block := answer.read(min(left, BLOCK_BYTES))):
            left -= len(block)
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
            if len(rest) > LINE_BYTES_MAX:
                raise ValueError(f"/metrics has a line of more than {LINE_BYTES_MAX} bytes")
        if rest:
            yield rest
        if late.is_set() or (left > 0 and answer.length):
            raise ValueError(f"{host}:{port} did not end its page" + (f" within {page_s:g} s" if late.is_set() else ""))
    except http.client.HTTPException as error:
        if late.is_set():
            raise ValueError(f"{host}:{port} did not answer within {page_s:g} s") from None
        raise ValueError(f"{host}:{port} answers no HTTP: {error}") from None
    finally:
        timer.cancel()
        connection.close()
