"""Producers that end, begin and abort without a pause, over three brokers and to the end of their epochs, again and
again: none is refused, and exactly the committed records are visible.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.clients import READ_COMMITTED, Confluent, Message
from tests.support.fleet import Fleet
from tests.support.raw_transactions import RawProducer

pytestmark = pytest.mark.interop

PARTITIONS, TRANSACTIONS, LAST_EPOCH = 3, 60, 5


@pytest.fixture(scope="module")
def few_epochs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    fleet = Fleet(tmp_path_factory.mktemp("few"), transaction_last_producer_epoch=LAST_EPOCH)
    try:
        yield fleet.start().bootstrap
    finally:
        fleet.close()


def together(*works: Callable[[], None]) -> None:
    """All at once; the first that fails fails the test."""
    wrong: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
        assert not thread.is_alive()
    if wrong:
        raise wrong[0]


def shown(bootstrap: str, topic: str, partition: int, count: int) -> list[bytes | None]:
    """What read_committed shows of a partition; one more is asked for than there should be."""
    stock = Confluent()
    values = [m.value for m in stock.consume(bootstrap, topic, count, partition=partition, isolation=READ_COMMITTED)]
    more = stock.consume(
        bootstrap, topic, count + 1, partition=partition, isolation=READ_COMMITTED, timeout_s=1.0
    )  # fmt: skip
    assert len(more) <= count, more[count:]
    return values


def test_protocol_two_is_never_refused(few_epochs: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("hurried")
    Confluent().create_topic(few_epochs, topic, PARTITIONS)
    producers = [RawProducer(few_epochs, fresh("raw"), topic, PARTITIONS, seed) for seed in range(3)]

    def hurry(producer: RawProducer) -> Callable[[], None]:
        def work() -> None:
            for number in range(TRANSACTIONS):
                producer.transaction(number)

        return work

    together(*map(hurry, producers))
    for producer in producers:
        producer.close()
        assert max(epoch for _, epoch in producer.producers) == LAST_EPOCH
        assert len({number for number, _ in producer.producers}) == -(-(TRANSACTIONS + 1) // (LAST_EPOCH + 1))
    for partition in range(PARTITIONS):
        expected = [producer.committed[partition] for producer in producers]
        found = shown(few_epochs, topic, partition, sum(map(len, expected)))
        for producer, values in zip(producers, expected, strict=True):
            assert [v for v in found if v and v.startswith(producer.id.encode() + b"/")] == values


def test_protocol_one_is_never_refused(few_epochs: str, fresh: Callable[[str], str]) -> None:
    """librdkafka: its epoch stays over an end and rises with every new instance."""
    topic = fresh("hurried")
    stock = Confluent()
    stock.create_topic(few_epochs, topic)
    name = fresh("stock")
    expected = []
    for instance in range(LAST_EPOCH + 3):
        producer = stock.transactional(few_epochs, name)
        for number in range(6):
            producer.begin()
            value = b"%d/%d" % (instance, number)
            if number % 3:
                producer.send(topic, Message(value))
            if number % 2:
                producer.abort()
            else:
                producer.commit()
                expected += [value] if number % 3 else []
        producer.close()
    assert shown(few_epochs, topic, 0, len(expected)) == expected
