"""Hostile frames made from the schemas, and the storm that sends them."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, crc32c, encode_batch
from tests.support.samples import ALL_VERSIONS, request

PROBE_ID = 0x7FF1_0001
PARTIAL_S = 0.25
"""How long we wait on a frame that may be incomplete, before we leave the connection."""


def _mutated(body: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.randrange(1, 5)):
        if body:
            body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))
    return bytes(body)


def _bombed(body: bytearray, rng: random.Random) -> bytes:
    """A huge count or length somewhere, with some bytes behind it."""
    bomb = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x80" * 6, b"\x7f\xff"))
    position = rng.randrange(len(body) + 1)
    return bytes(body[:position]) + bomb + bytes(body[position:]) + bytes(rng.randrange(2000))


def _resized(body: bytearray, rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return bytes(body[: rng.randrange(len(body) + 1)])
    return bytes(body) + rng.randbytes(rng.randrange(1, 50))


def _tagged(body: bytearray, rng: random.Random) -> bytes:
    """More tagged fields than any message has, instead of the last section."""
    count = rng.randrange(1, 120)
    return bytes(body[:-1]) + bytes([count]) + b"".join(bytes([rng.randrange(128), 1, 0]) for _ in range(count))


def _lying_batch(rng: random.Random) -> bytes:
    """A record batch with wrong contents and, mostly, a right checksum, so that the lie is looked at."""
    records = [
        Record(i, rng.choice((-1, 0, 1 << 40)), rng.choice((None, b"k")), rng.choice((None, b"v" * 30)), ())
        for i in range(rng.randrange(1, 5))
    ]
    batch = bytearray(
        encode_batch(
            records,
            attributes=rng.choice((0, 0, 1, 2, 3, 4, 7, 8, 16, 32, 48)),
            producer_id=rng.choice((-1, 5)),
            producer_epoch=rng.choice((-1, 0, 1)),
            base_sequence=rng.choice((-1, 0, 1, 2**31 - 1)),
        )
    )
    for _ in range(rng.randrange(4)):
        batch[rng.randrange(len(batch))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    if rng.random() < 0.2:
        del batch[rng.randrange(21, len(batch)) :]
    if rng.random() < 0.9:
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        batch[16] = 2
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


def _produce(version: int, rng: random.Random) -> bytes:
    """A whole Produce, of any version that names its topic, with lying batches for a topic that exists."""
    topic = m.ProduceRequest.TopicProduceData
    parts = [topic.PartitionProduceData(index=rng.randrange(2), records=_lying_batch(rng)) for _ in range(2)]
    message = m.ProduceRequest(
        version=version, transactional_id=rng.choice((None, None, "id")), acks=rng.choice((-1, 0, 1)),
        timeout_ms=100, topic_data=[topic(name="lies", partition_data=parts)],
    )  # fmt: skip
    return bytes(message.encode(version=version))


def frames(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """``count`` pairs of kind and bytes; all but the kind "framing" are whole frames with a true length prefix.

    The first pass goes over every API and version; the rest is drawn at random.
    """
    rng = random.Random(seed)
    for number in range(count):
        key, version = ALL_VERSIONS[number % len(ALL_VERSIONS)]
        kind = rng.choices(
            ("valid", "mutated", "bombed", "resized", "tagged", "random", "header", "framing", "batch"),
            (14, 30, 12, 10, 6, 8, 6, 8, 6),
        )[0]
        if kind == "batch" and number >= len(ALL_VERSIONS):
            key, version = 0, rng.randrange(3, 13)
        head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + rng.randbytes(4) + b"\0\4fuzz"
        if m.is_flexible(key, version):
            head += b"\0"
        body = bytearray(request(key, version, rng).encode(version=version))
        match kind:
            case "batch" if key == 0 and version < 13:
                payload = head + _produce(version, rng)
            case "mutated":
                payload = head + _mutated(body, rng)
            case "bombed":
                payload = head + _bombed(body, rng)
            case "resized":
                payload = head + _resized(body, rng)
            case "tagged":
                payload = head + _tagged(body, rng)
            case "random":
                payload = head + rng.randbytes(rng.randrange(300))
            case "header":
                payload = _mutated(bytearray(head), rng) + bytes(body)
            case "framing":
                yield kind, rng.choice((
                    rng.randbytes(rng.randrange(1, 200)),
                    (rng.randrange(1 << 31)).to_bytes(4, "big") + rng.randbytes(30),
                    b"\xff\xff\xff" + rng.randbytes(1),
                    (len(head) + len(body) + 50).to_bytes(4, "big") + head + bytes(body),
                ))  # fmt: skip
                continue
            case _:
                payload = head + bytes(body)
        yield kind, len(payload).to_bytes(4, "big") + payload


@dataclass
class Report:
    """What became of the frames. ``busy`` connections were left while the broker still worked or waited."""

    sent: Counter[str] = field(default_factory=Counter)
    closed: int = 0
    answered: int = 0
    busy: int = 0
    refused_connections: int = 0


async def storm(
    port: int,
    source: Iterator[tuple[str, bytes]],
    report: Report,
    patience_s: float,
    workers: int = 48,
    context: ssl.SSLContext | None = None,
    preamble: bytes = b"",
) -> None:
    """Send all frames over ``workers`` connections at a time, each followed by a request that must be answered.

    ``patience_s`` is how long a whole frame may keep its connection busy before it is left. With a ``context`` the
    connections have TLS. The ``preamble`` goes before each frame: requests of a login, all at once.
    """
    probe = m.encode_request(18, 0, PROBE_ID, "probe", m.ApiVersionsRequest(version=0))
    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(_worker(port, source, report, preamble, probe, patience_s, context))


async def _worker(
    port: int,
    source: Iterator[tuple[str, bytes]],
    report: Report,
    preamble: bytes,
    probe: bytes,
    patience_s: float,
    context: ssl.SSLContext | None,
) -> None:
    name = None if context is None else "localhost"
    for kind, frame in source:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
                break
            except OSError:
                report.refused_connections += 1
                await asyncio.sleep(0.05)
        try:
            writer.write(preamble + frame + probe)
            report.sent[kind] += 1
            async with asyncio.timeout(PARTIAL_S if kind == "framing" else patience_s):
                await _until_probed(reader)
            report.answered += 1
        except TimeoutError:
            report.busy += 1
        except (OSError, EOFError):
            report.closed += 1
        finally:
            writer.transport.abort()


def login_preambles(user: str, password: str) -> dict[str, bytes]:
    """What stands before the hostile frame, by the state of the login that it meets; the last one is logged in."""

    def handshake(mechanism: str, version: int = 1) -> bytes:
        return m.encode_request(17, version, 1, "fuzz", m.SaslHandshakeRequest(version=version, mechanism=mechanism))

    def token(data: bytes) -> bytes:
        return m.encode_request(36, 2, 2, "fuzz", m.SaslAuthenticateRequest(version=2, auth_bytes=data))

    return {
        "before": b"",
        "PLAIN chosen": handshake("PLAIN"),
        "raw tokens": handshake("SCRAM-SHA-512", version=0),
        "challenged": handshake("SCRAM-SHA-256") + token(f"n,,n={user},r=fuzz".encode()),
        "logged in": handshake("PLAIN") + token(f"\0{user}\0{password}".encode()),
    }


def hellos(hello: bytes, seed: int, count: int) -> Iterator[bytes]:
    """``count`` hostile beginnings of a handshake, made of a true first message; few are complete."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(hello)
        match rng.randrange(8):
            case 0:
                yield rng.randbytes(rng.randrange(1, 400))
            case 1:
                yield bytes(data[: rng.randrange(1, len(data))])
            case 2:
                yield _mutated(data, rng)
            case 3:
                yield b"\x16\x03\x01" + rng.randbytes(rng.randrange(2, 3_000))
            case 4:
                head = bytes([rng.choice((0x14, 0x15, 0x16, 0x17)), 3, 3])
                yield bytes(data) + head + (size := rng.randrange(1, 17_000)).to_bytes(2, "big") + rng.randbytes(size)
            case 5:
                yield bytes(data) + bytes(data)
            case 6:
                data[6:9] = rng.randrange(1 << 24).to_bytes(3, "big")  # the message's length
                yield bytes(data) + rng.randbytes(rng.randrange(100))
            case _:
                yield bytes(data)


async def handshake_storm(port: int, source: Iterator[bytes], workers: int = 48) -> int:
    """Send all over ``workers`` connections at a time, and leave each when it is answered or closed; how many were."""
    answered = 0

    async def one() -> None:
        nonlocal answered
        for data in source:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(data)
                async with asyncio.timeout(PARTIAL_S):
                    await reader.read(4_096)
                answered += 1
            except (TimeoutError, OSError):
                pass
            finally:
                writer.transport.abort()

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(one())
    return answered


async def _until_probed(reader: asyncio.StreamReader) -> None:
    while True:
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = await reader.readexactly(size)
        if answer[:4] == PROBE_ID.to_bytes(4, "big"):
            return
