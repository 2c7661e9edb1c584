"""A broker whose loop stands still while its threads run: another one leads, and it comes back as a follower."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.copies import Cluster, Load
from tests.support.fleet import Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

SESSION_MS = 3_000
CLIENT_TIMEOUTS = {"socket.timeout.ms": 5_000, "request.timeout.ms": 5_000}
"""A request that the held broker has is sent to its successor after that time; by default after a minute."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    fleet = Fleet(tmp_path, brokers=3, zookeeper_session_timeout_ms=SESSION_MS, min_insync_replicas=2)
    for broker in fleet.brokers:
        broker.module = "tests.system.held"
    try:
        yield Cluster(fleet.start())
    finally:
        fleet.close()


def get(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_a_loop_that_stands_still_loses_its_leadership_and_does_not_lead_when_it_resumes(cluster: Cluster) -> None:
    from confluent_kafka import Producer

    cluster.create("t")
    held = cluster.leader("t")
    others = [broker for broker in cluster.fleet.brokers if broker is not held]
    live = f"http://127.0.0.1:{held.admin_port}/health/live"
    assert get(live) == (200, "live\n")
    isolated = Producer({"bootstrap.servers": held.address, "acks": "1", "linger.ms": 0, "retries": 0,
                       "socket.timeout.ms": 60_000, "message.timeout.ms": 120_000})  # fmt: skip
    told: list[object] = []

    def report(error: object, _message: object) -> None:
        told.append(error)

    isolated.produce("t", b"-1", partition=0, on_delivery=report)
    assert isolated.flush(30) == 0
    assert told == [None]
    hold = held.config_file.with_suffix(".hold")
    others_addresses = ",".join(broker.address for broker in others)
    with Load(others_addresses, "t", **CLIENT_TIMEOUTS).running() as load:
        load.wait_acks(200, "before")
        hold.touch()
        held.signal(signal.SIGUSR1)
        # Its process runs and its kazoo thread, too: without the loop's proof it would be the leader for ever.
        eventually(
            lambda: (state := cluster.state("t", 0, others[0])) and state.leader not in (-1, held.id), "another leads"
        )
        _, text = get(live)
        assert "the event loop has stood still for" in text
        eventually(lambda: get(live)[0] == 503, "a broker that stands for two session timeouts isn't live")
        assert "stood still" in get(live.replace("live", "ready"))[1]
        load.wait_acks(200, "while it stands")
        isolated.produce("t", b"-2", partition=0, on_delivery=report)  # waits in its socket
        isolated.poll(1)
        assert "hold_the_loop" in held.output()
        assert "the event loop has stood still" in held.output()
        hold.unlink()
        assert isolated.flush(60) == 0
        cluster.wait_isr("t", {1, 2, 3})
        load.wait_acks(200, "after")
    if told[1] is not None:  # refused, as its lease was over
        assert "-2" not in {value.decode() for _, value in _read(cluster)}
    assert get(live) == (200, "live\n")
    eventually(lambda: "incarnation 2" in held.output(), "it registers again")
    assert "the event loop moves again" in held.output()
    cluster.wait_equal("t")
    found = [int(value) for _, value in _read(cluster)]
    numbers = [value for value in found if value >= 0]
    assert numbers == list(range(len(numbers)))
    assert len(load.acked) == load.sent == len(numbers)
    assert not load.failed
    assert cluster.lost_commits() == 0
    assert not [said for said in cluster.mistakes() if "hold_the_loop" not in said]


def _read(cluster: Cluster) -> list[tuple[int, bytes]]:
    from tests.support.copies import read_all

    return read_all(cluster.alive, "t")
