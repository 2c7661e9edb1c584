"""The pages of a unit of brokers: each broker's ``/metrics`` joined into one, and small HTTP on both sides.

Joined series have the label ``broker``. A ``broker`` of the series' own becomes ``exported_broker``, as Prometheus
itself names a label that a scrape's own one hides.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from fleetlog.brokers.cli.output import number_text

PAGE_MAX = 64 * 1024 * 1024
REQUEST_MAX = 8 * 1024
OPEN_MAX = 32
FETCH_S = 10.0
SERVE_S = 30.0
_SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_created", "_info")
_OWN_BROKER = re.compile(r'(?<=[{,])broker=(?=")')


class Page(NamedTuple):
    """An HTTP answer: status, content type, body."""

    status: int
    kind: str
    body: bytes


TEXT = "text/plain; charset=utf-8"
REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 502: "Bad Gateway", 503: "Service Unavailable"}


class _Joined:
    """One family: its HELP and TYPE lines, and the samples of all brokers."""

    __slots__ = ("comments", "samples")

    def __init__(self) -> None:
        self.comments: dict[str, str] = {}
        self.samples: list[str] = []


def join_metrics(pages: Mapping[int, str]) -> str:
    """Prometheus text pages by broker id as one page; each family stands once, with the first broker's description."""
    families: dict[str, _Joined] = {}
    for broker_id, text in pages.items():
        family, name = _Joined(), ""
        for line in text.split("\n"):  # what else ends a line in Python may stand in a label: U+2028 in a group's id
            if line.startswith(("# HELP ", "# TYPE ")):
                _, kind, name, _ = (*line.split(" ", 3), "")[:4]
                family = families.setdefault(name, _Joined())
                family.comments.setdefault(kind, line)
            elif line and line[0] != "#":
                own = re.match(r"[^{ ]+", line)
                if own is None:
                    continue
                if not _belongs(own[0], name):
                    name = own[0]
                    family = families.setdefault(name, _Joined())
                family.samples.append(_labelled(line, own.end(), broker_id))
    lines: list[str] = []
    for family in families.values():
        lines += family.comments.values()
        lines += family.samples
    return "\n".join([*lines, ""])


def _belongs(sample: str, family: str) -> bool:
    return sample == family or any(sample == family + suffix for suffix in _SUFFIXES)


def _labelled(line: str, end: int, broker_id: int) -> str:
    """The sample with the label; ``end`` is where its name ends."""
    if not line.startswith("{", end):
        return f'{line[:end]}{{broker="{broker_id}"}}{line[end:]}'
    labels = line[end:]
    if 'broker="' in labels:
        labels = _OWN_BROKER.sub("exported_broker=", labels, count=1)
    comma = "" if labels.startswith("{}") else ","
    return f'{line[:end]}{{broker="{broker_id}"{comma}{labels[1:]}'


def gauge(name: str, doc: str, values: Iterable[tuple[str, float]], kind: str = "gauge") -> str:
    """The text of one family of the unit's own; values by their labels, as text without braces."""
    rows = [
        f"{name}{{{labels}}} {number_text(value)}" if labels else f"{name} {number_text(value)}"
        for labels, value in values
    ]
    described = name.removesuffix("_total") if kind == "counter" else name
    return "\n".join([f"# HELP {described} {doc}", f"# TYPE {described} {kind}", *rows, ""])


async def fetch_page(
    address: tuple[str, int], path: str, timeout_s: float = FETCH_S, tls: ssl.SSLContext | None = None
) -> Page:
    """GET over plain HTTP, or TLS. Raises OSError, also without a whole answer in time."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(*address, limit=REQUEST_MAX, ssl=tls)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {address[0]}\r\nConnection: close\r\n\r\n".encode())
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                status, length = int(head[0].split(" ")[1]), int(fields.get("content-length", "0"))
                if length > PAGE_MAX:
                    raise OSError(f"a page of {length} bytes")
                body = await reader.readexactly(length)
            finally:
                writer.transport.abort()
    except (TimeoutError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
        raise OSError(f"no whole answer from {address[0]}:{address[1]}: {error or type(error).__name__}") from error
    return Page(status, fields.get("content-type", TEXT), body)


class PageServer:
    """Serves GET on one address; ``answer`` makes the page of a path with its query."""

    def __init__(self, answer: Callable[[str], Awaitable[Page]]) -> None:
        self._answer = answer
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_MAX)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > OPEN_MAX:
                return
            async with asyncio.timeout(SERVE_S):
                words = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0].split(b" ")
                if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
                    page = Page(405, TEXT, b"only GET\n")
                else:
                    page = await self._answer(words[1].decode("latin-1"))
                top = (
                    f"HTTP/1.1 {page.status} {REASONS.get(page.status, '')}\r\nContent-Type: {page.kind}\r\n"
                    f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(top.encode() + (b"" if words[0] == b"HEAD" else page.body))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            pass  # the unit ends; asyncio's streams would log it as an error
        finally:
            writer.transport.abort()
            self._open -= 1
