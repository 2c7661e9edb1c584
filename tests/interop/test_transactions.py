"""Transactions of stock clients: committed, aborted, fenced, with offsets, and the reads of each isolation level."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.clients import CLIENTS, READ_COMMITTED, Client, Fenced, Message
from tests.support.copies import read_all

pytestmark = pytest.mark.interop


def _values(messages: list[Message]) -> list[bytes | None]:
    return [m.value for m in messages]


def test_committed_is_seen_and_aborted_is_not(
    client: Client, bootstrap: str, topic: str, fresh: Callable[[str], str]
) -> None:
    producer = client.transactional(bootstrap, fresh("txn"))
    for number in range(6):
        producer.begin()
        for part in (b"a", b"b", b"c"):
            producer.send(topic, Message(b"%d%s" % (number, part)))
        if number % 2:
            producer.abort()
        else:
            producer.commit()
    producer.close()
    committed = [b"%d%s" % (n, part) for n in (0, 2, 4) for part in (b"a", b"b", b"c")]
    for reader in CLIENTS:
        seen = reader.consume(bootstrap, topic, len(committed), isolation=READ_COMMITTED)
        assert _values(seen) == committed, reader.name
    assert {value for _, value in read_all(bootstrap, topic)} >= set(committed)


def test_an_open_transaction_holds_readers_back(
    client: Client, bootstrap: str, topic: str, fresh: Callable[[str], str]
) -> None:
    client.produce(bootstrap, topic, [Message(b"before", partition=0)])
    producer = client.transactional(bootstrap, fresh("txn"))
    producer.begin()
    producer.send(topic, Message(b"inside"))
    producer.commit()
    producer.begin()
    producer.send(topic, Message(b"open"))
    assert _values(client.consume(bootstrap, topic, 2, isolation=READ_COMMITTED)) == [b"before", b"inside"]
    assert client.consume(bootstrap, topic, 3, isolation=READ_COMMITTED, timeout_s=4)[2:] == []
    producer.commit()
    seen = _values(client.consume(bootstrap, topic, 3, isolation=READ_COMMITTED))
    assert seen == [b"before", b"inside", b"open"]
    producer.close()


def test_an_empty_transaction_commits(client: Client, bootstrap: str, topic: str, fresh: Callable[[str], str]) -> None:
    producer = client.transactional(bootstrap, fresh("txn"))
    producer.begin()
    producer.commit()
    producer.begin()
    producer.abort()
    producer.begin()
    producer.send(topic, Message(b"v"))
    producer.commit()
    producer.close()
    assert _values(client.consume(bootstrap, topic, 1, isolation=READ_COMMITTED)) == [b"v"]


def test_the_older_producer_is_fenced(client: Client, bootstrap: str, topic: str, fresh: Callable[[str], str]) -> None:
    transactional_id = fresh("txn")
    older = client.transactional(bootstrap, transactional_id)
    older.begin()
    older.send(topic, Message(b"from the older"))
    newer = client.transactional(bootstrap, transactional_id)
    newer.begin()
    newer.send(topic, Message(b"from the newer"))
    newer.commit()
    with pytest.raises(Fenced):
        older.commit()
    newer.close()
    older.close()
    assert _values(client.consume(bootstrap, topic, 1, isolation=READ_COMMITTED)) == [b"from the newer"]
    assert [value for _, value in read_all(bootstrap, topic, isolation=READ_COMMITTED)] == [b"from the newer"]


def test_offsets_in_a_transaction(client: Client, bootstrap: str, topic: str, fresh: Callable[[str], str]) -> None:
    group = fresh("group")
    producer = client.transactional(bootstrap, fresh("txn"))
    producer.begin()
    producer.send(topic, Message(b"out"))
    producer.send_offsets({(topic, 0): 41}, group)
    producer.abort()
    assert client.committed(bootstrap, group, topic) in (None, -1)
    producer.begin()
    producer.send(topic, Message(b"out"))
    producer.send_offsets({(topic, 0): 42}, group)
    producer.commit()
    producer.close()
    for reader in CLIENTS:
        assert reader.committed(bootstrap, group, topic) == 42, reader.name


def test_a_transaction_spans_partitions(client: Client, bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("wide")
    client.create_topic(bootstrap, topic, 6)
    producer = client.transactional(bootstrap, fresh("txn"))
    producer.begin()
    for partition in range(6):
        producer.send(topic, Message(b"keep", partition=partition))
    producer.commit()
    producer.begin()
    for partition in range(6):
        producer.send(topic, Message(b"drop", partition=partition))
    producer.abort()
    producer.begin()
    for partition in range(6):
        producer.send(topic, Message(b"keep too", partition=partition))
    producer.commit()
    producer.close()
    for partition in range(6):
        seen = client.consume(bootstrap, topic, 2, partition=partition, isolation=READ_COMMITTED)
        assert _values(seen) == [b"keep", b"keep too"]
