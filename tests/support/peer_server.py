"""A peer for calls of a broker: speaks the framing over a socket, with TLS or without, and answers as a test says."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from fleetlog.wire import messages

KEY = 60


class Server:
    """Speaks the framing; ``behave(correlation id, writer)`` answers each request."""

    def __init__(
        self, behave: Callable[[int, asyncio.StreamWriter], Awaitable[None]], context: ssl.SSLContext | None = None
    ) -> None:
        self.behave, self.context = behave, context
        self.connections = 0
        self.seen: list[int] = []

    async def __aenter__(self) -> Server:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=self.context)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                header = messages.parse_request_header(memoryview(await reader.readexactly(size)))
                self.seen.append(header.correlation_id)
                await self.behave(header.correlation_id, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def answer(correlation_id: int, cluster_id: str = "") -> bytes:
    response = messages.response_class(KEY)(version=0, cluster_id=cluster_id or str(correlation_id), brokers=[])
    frame = messages.encode_response_header(KEY, 0, correlation_id) + messages.encode_response(response, KEY, 0)
    return struct.pack(">i", len(frame)) + frame


async def prompt(correlation_id: int, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(correlation_id))


def request() -> Any:
    return messages.request_class(KEY)(version=0)
