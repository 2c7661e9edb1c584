"""Stock clients write and read: every codec, keys, headers, nulls, timestamps, positions, idempotence."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import confluent_kafka
import pytest

from tests.support.clients import CLIENTS, Client, Confluent, Message

pytestmark = pytest.mark.interop

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
T0 = (int(time.time()) - 3_600) * 1000
"""Of this day: a broker deletes records that are older than ``retention.ms`` at one of its rounds."""


def _payloads(count: int) -> list[Message]:
    source = random.Random(count)
    return [
        Message(
            value=None if n % 11 == 5 and n % 7 != 3 else source.randbytes(n % 50) + b"x" * (n % 300),
            key=None if n % 7 == 3 else b"key-%d" % n,
            headers=(("trace", b"%d" % n), ("empty", b""), ("trace", b"again")) if n % 3 == 0 else (),
            timestamp=T0 + n,
            partition=0,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_keeps_every_byte(client: Client, bootstrap: str, topic: str, codec: str) -> None:
    messages = _payloads(400)
    placed = client.produce(bootstrap, topic, messages, compression=codec)
    assert placed == [(0, n) for n in range(400)]
    assert client.consume(bootstrap, topic, 400) == messages


def test_what_one_client_writes_the_others_read(client: Client, bootstrap: str, topic: str) -> None:
    written = []
    for codec in CODECS:
        batch = _payloads(20)
        client.produce(bootstrap, topic, batch, compression=codec)
        written += batch
    for reader in CLIENTS:
        assert reader.consume(bootstrap, topic, len(written)) == written, reader.name


def test_reading_starts_at_any_offset(client: Client, bootstrap: str, topic: str) -> None:
    messages = _payloads(300)
    client.produce(bootstrap, topic, messages)
    for offset in (0, 1, 137, 299):
        found = client.consume(bootstrap, topic, 300 - offset, offset=offset)
        assert [m.offset for m in found] == list(range(offset, 300))
        assert found == messages[offset:]


def test_offsets_by_timestamp(client: Client, bootstrap: str, topic: str) -> None:
    client.produce(bootstrap, topic, [Message(b"v", timestamp=T0 + 10 * n, partition=0) for n in range(50)])
    assert client.offset_for_time(bootstrap, topic, T0 - 5) == 0
    assert client.offset_for_time(bootstrap, topic, T0 + 100) == 10
    assert client.offset_for_time(bootstrap, topic, T0 + 101) == 11
    assert client.offset_for_time(bootstrap, topic, T0 + 10_000) is None


@pytest.mark.parametrize("acks", ["1", "all"])
def test_records_are_acknowledged_with_their_offsets(client: Client, bootstrap: str, topic: str, acks: str) -> None:
    placed = client.produce(bootstrap, topic, _payloads(10), acks=acks)
    assert [offset for _, offset in placed] == list(range(10))


def test_idempotent_producer(client: Client, bootstrap: str, topic: str) -> None:
    messages = _payloads(1000)
    placed = client.produce(bootstrap, topic, messages, idempotent=True, compression="lz4")
    assert [offset for _, offset in placed] == list(range(1000))
    assert client.consume(bootstrap, topic, 1000) == messages


def test_keys_spread_over_partitions_as_kafka_spreads_them(
    client: Client, bootstrap: str, fresh: Callable[[str], str]
) -> None:
    topic = fresh("spread")
    client.create_topic(bootstrap, topic, 4)
    placed = client.produce(bootstrap, topic, [Message(b"v", key=b"k%d" % n) for n in range(60)])
    assert {partition for partition, _ in placed} == {0, 1, 2, 3}
    again = client.produce(bootstrap, topic, [Message(b"v", key=b"k%d" % n) for n in range(60)])
    assert [partition for partition, _ in again] == [partition for partition, _ in placed]


def test_a_missing_topic_is_created_on_first_use(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("auto")
    placed = client.produce(bootstrap, topic, [Message(b"first", partition=0)])
    assert placed == [(0, 0)]
    assert [m.value for m in client.consume(bootstrap, topic, 1)] == [b"first"]


def test_large_records(client: Client, bootstrap: str, topic: str) -> None:
    value = random.Random(1).randbytes(900_000)
    client.produce(bootstrap, topic, [Message(value, timestamp=T0, partition=0)])
    (found,) = client.consume(bootstrap, topic, 1)
    assert found.value == value


def test_a_record_over_the_limit_is_refused(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("small")
    client.create_topic(bootstrap, topic, 1, max_message_bytes="2000")
    with pytest.raises(Exception, match=r"(?i)size|large|10"):
        client.produce(bootstrap, topic, [Message(random.Random(2).randbytes(5000), partition=0)])
    client.produce(bootstrap, topic, [Message(b"fits", partition=0)])
    assert [m.value for m in client.consume(bootstrap, topic, 1)] == [b"fits"]


def test_every_bad_record_of_a_batch_is_reported(bootstrap: str, fresh: Callable[[str], str]) -> None:
    """librdkafka reports the records that the answer does not name as good ones beside bad ones."""
    topic = fresh("bad")
    Confluent().create_topic(bootstrap, topic, 1, message_timestamp_after_max_ms="1000")
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 500, "retries": 0})
    found: dict[bytes, int] = {}
    now = int(time.time() * 1000)
    for number in range(250):
        ahead = 0 if number % 10 > 6 else 3_600_000
        producer.produce(
            topic,
            b"%d" % number,
            partition=0,
            timestamp=now + ahead,
            on_delivery=lambda error, message: found.__setitem__(message.value(), error.code() if error else 0),
        )
    assert producer.flush(30) == 0
    assert len(found) == 250
    wrong = {int(value) for value, code in found.items() if code == confluent_kafka.KafkaError.INVALID_RECORD}
    assert wrong == {number for number in range(250) if number % 10 <= 6}, "which of them to correct"
