"""A fleet of the version before becomes one of this version, one broker at a time, while it is used."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.containers.fleet import BROKERS, Fleet
from tests.containers.images import Images
from tests.containers.workload import Workload, create_topic, wait_in_sync
from tests.support.clients import CLIENTS, READ_COMMITTED, Message, TransactionalProducer

pytestmark = pytest.mark.containers

ROOT = Path(__file__).parents[2]
INTERNAL = ("__consumer_offsets", "__transaction_state")


@pytest.fixture
def old_fleet(images: Images) -> Iterator[Fleet]:
    fleet = Fleet(images, broker_image=images.previous)
    try:
        yield fleet.start()
    finally:
        fleet.close()


class Shop:
    """One group and one transactional producer that live through the upgrade: each order is booked once."""

    def __init__(self, fleet: Fleet) -> None:
        self._bootstrap = fleet.bootstrap
        self.topics = [create_topic(fleet.bootstrap, 1) for _ in range(2)]
        self._orders, self._booked = self.topics
        # Not librdkafka: once a group's coordinator has been away for a moment, its send_offsets_to_transaction may not
        # return any more, with any broker (confluentinc/librdkafka#5511).
        self._producer: TransactionalProducer = CLIENTS[1].transactional(fleet.bootstrap, "shop")
        self._numbers = itertools.count()
        self._ordered = 0

    def trade(self, count: int = 20) -> None:
        """Write orders, then book them in transactions with the group's offset; every third one takes two attempts."""
        client = CLIENTS[1]
        client.produce(self._bootstrap, self._orders, [Message(b"%d" % next(self._numbers)) for _ in range(count)])
        self._ordered += count
        place = client.committed(self._bootstrap, "shop", self._orders) or 0
        orders = client.consume(self._bootstrap, self._orders, self._ordered - place, offset=place)
        assert [int(order.value or b"") for order in orders] == list(range(place, self._ordered))
        for order in orders:
            if order.offset % 3 == 0:
                self._book(order)
                self._producer.abort()
            self._book(order)
            self._producer.commit()

    def _book(self, order: Message) -> None:
        self._producer.begin()
        self._producer.send(self._booked, Message(order.value))
        self._producer.send_offsets({(self._orders, 0): order.offset + 1}, "shop")

    def close(self) -> None:
        """Everything was booked once, in order."""
        self._producer.close()
        booked = CLIENTS[2].consume(self._bootstrap, self._booked, self._ordered, isolation=READ_COMMITTED)
        assert [int(message.value or b"") for message in booked] == list(range(self._ordered))


def upgrade(fleet: Fleet, name: str, image: str, work: Workload) -> float:
    """The procedure of docs/upgrading.md for one broker; the seconds it took."""
    begun = time.monotonic()
    assert fleet.replace(name, image) == 0, f"{name} did not stop cleanly"
    fleet.wait_ready(name)
    wait_in_sync(fleet.bootstrap, work.topic)
    work.wait_progress()
    return time.monotonic() - begun


def look_with_this_version(fleet: Fleet, directory: Path) -> None:
    """Commands of this version at a fleet whose other brokers do not know what it asks: they say so, and go on."""
    numbers = {number for number, _ in enumerate(BROKERS, 1)}
    tail, bundle = (
        subprocess.run(
            [sys.executable, "-m", "fleetlog.brokers.cli.main", *words, "-b", fleet.bootstrap],
            capture_output=True, text=True, timeout=120, check=True, cwd=ROOT,
        )
        for words in (["logs", "tail", "-n", "200", "--json"], ["debug", "bundle", "-o", str(directory / "b.zip")])
    )  # fmt: skip
    told = {json.loads(line)["broker"] for line in tail.stdout.splitlines()}
    assert len(told) == 1, "the new one alone"
    for number in numbers - told:
        assert f"broker {number} does not tell its log" in tail.stderr
    assert "Traceback" not in bundle.stderr
    with zipfile.ZipFile(directory / "b.zip") as files:
        names = files.namelist()
        why = {row["file"]: row["why"] for row in json.loads(files.read("errors.json"))}
    assert {f"logs/broker-{number}.txt" for number in told} == {one for one in names if one.startswith("logs/")}
    for number in numbers - told:
        assert "older than this command" in why[f"logs/broker-{number}.txt"]


def test_rolling_upgrade_and_a_step_back(
    old_fleet: Fleet, images: Images, say: Callable[[str], None], tmp_path: Path
) -> None:
    fleet = old_fleet
    shop = Shop(fleet)
    shop.trade()
    topic = create_topic(fleet.bootstrap)
    took = []
    with Workload(fleet.bootstrap, topic) as work:
        # The first broker goes back once, as an operator does that has seen something odd.
        for image in (images.broker, images.previous, images.broker):
            took.append(upgrade(fleet, BROKERS[0], image, work))
            shop.trade()
        look_with_this_version(fleet, tmp_path)
        for name in BROKERS[1:]:
            create_topic(fleet.bootstrap, 3)  # returns when it is whole on every broker of the mixed fleet
            took.append(upgrade(fleet, name, images.broker, work))
            shop.trade()
            fleet.kill(name)
            work.wait_progress()
            shop.trade()
            fleet.heal()
            for known in (topic, *shop.topics, *INTERNAL):
                wait_in_sync(fleet.bootstrap, known)
        say(f"{work.finish()}; one broker takes {max(took):.1f} s")
    shop.close()
