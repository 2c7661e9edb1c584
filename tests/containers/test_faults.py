"""What is acknowledged stays, whatever happens to containers; and service comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import fleetlog.wire.messages as m
from fleetlog._native.batch import Record, encode_batch
from fleetlog.wire.errors import ErrorCode
from tests.containers.fleet import BROKERS, OUTSIDE_PORT, PAUSE_S, ZOOKEEPERS, Fleet
from tests.containers.workload import Workload, create_topic, in_sync, read_all, wait_in_sync
from tests.support.clients import CLIENTS, Message
from tests.support.harness import Client
from tests.support.waiting import eventually

pytestmark = pytest.mark.containers
SESSION_S = 6.0
"""zookeeper.session.timeout.ms: after this long, a broker that is silent is dead."""


@pytest.fixture
def work(fleet: Fleet, say: Callable[[str], None]) -> Iterator[Workload]:
    """A workload on a new topic while the test runs; afterwards the fleet is healed and the account settled."""
    topic = create_topic(fleet.bootstrap)
    with Workload(fleet.bootstrap, topic) as work:
        yield work
        fleet.heal()
        wait_in_sync(fleet.bootstrap, topic)
        work.wait_progress()
        say(work.finish())


def leaders(fleet: Fleet, topic: str, asked: str) -> dict[int, str]:
    """Partition: its leader's container, as this broker sees it."""
    seen = in_sync(fleet.address(asked), topic)
    return {partition: f"broker-{leader}" for partition, (leader, _) in seen.items()}


def wait_moved(fleet: Fleet, topic: str, name: str) -> None:
    """Wait until the other brokers have given away everything that ``name`` led."""
    for other in BROKERS:
        if other != name:
            eventually(
                lambda other=other: name not in leaders(fleet, topic, other).values(),
                f"{name} leads nothing",
                pause_s=PAUSE_S,
            )


def test_a_killed_broker_comes_back_into_the_in_sync_sets(fleet: Fleet, work: Workload) -> None:
    """SIGKILL, with what it had not written gone: the others go on, and it comes back into the in-sync sets."""
    fleet.kill("broker-1")
    wait_moved(fleet, work.topic, "broker-1")
    work.wait_progress()
    fleet.start_again("broker-1")
    wait_in_sync(fleet.bootstrap, work.topic)


def test_kill_and_start_at_once(fleet: Fleet, work: Workload) -> None:
    """Back before its session ended, without its tail: it must not go on as the leader it was."""
    fleet.kill("broker-2")
    fleet.start_again("broker-2")
    work.wait_progress()


def test_a_clean_stop_moves_leadership_first(fleet: Fleet, work: Workload) -> None:
    assert fleet.stop("broker-3") == 0
    wait_moved(fleet, work.topic, "broker-3")
    work.wait_progress()


def test_pause_longer_than_the_session(fleet: Fleet, work: Workload) -> None:
    """Frozen without noticing: when it wakes up, others lead, and it must not believe what it remembers."""
    fleet.pause("broker-1")
    wait_moved(fleet, work.topic, "broker-1")
    work.wait_progress()
    fleet.unpause("broker-1")
    wait_in_sync(fleet.bootstrap, work.topic)


def test_pause_shorter_than_the_session(fleet: Fleet, work: Workload) -> None:
    for name in BROKERS:
        fleet.pause(name)
        time.sleep(SESSION_S / 3)
        fleet.unpause(name)
        work.wait_progress()


def test_cut_off_from_everything(fleet: Fleet, work: Workload) -> None:
    """The cable is pulled: no connection is closed, nothing arrives."""
    fleet.disconnect("broker-2")
    wait_moved(fleet, work.topic, "broker-2")
    work.wait_progress()
    fleet.connect("broker-2")
    fleet.wait_ready("broker-2")
    wait_in_sync(fleet.bootstrap, work.topic)


def test_cut_off_from_the_fleet_but_not_from_clients(fleet: Fleet, work: Workload) -> None:
    """The dangerous one: clients still reach a leader that ZooKeeper and the other brokers have lost."""
    fleet.disconnect("broker-3", "fleet")
    wait_moved(fleet, work.topic, "broker-3")
    work.wait_progress()
    fleet.connect("broker-3", "fleet")
    wait_in_sync(fleet.bootstrap, work.topic)


def test_a_client_that_clings_to_a_cut_off_leader(fleet: Fleet) -> None:
    """It asks for no metadata and writes on at the old leader, acks=all and acks=1: it is not told that all is well."""
    topic = create_topic(fleet.bootstrap, partitions=1)
    CLIENTS[0].produce(fleet.bootstrap, topic, [Message(b"before")])
    name = leaders(fleet, topic, BROKERS[0])[0]
    client = Client(fleet.topology.services[name].host_port(OUTSIDE_PORT))
    try:
        fleet.disconnect(name, "fleet")
        wait_moved(fleet, topic, name)
        for acks in (-1, 1):
            assert produce(client, topic, b"lost on purpose", acks) != ErrorCode.NONE
        shown = fetch(client, topic)
        assert b"before" in shown
        assert b"on purpose" not in shown, "a reader is shown what will be gone"
        CLIENTS[1].produce(fleet.address(next(o for o in BROKERS if o != name)), topic, [Message(b"after")])
        fleet.connect(name, "fleet")
        wait_in_sync(fleet.bootstrap, topic)
        assert b"on purpose" not in fetch(client, topic), "what is gone is shown"
    finally:
        client.close()
    assert [value for _, value in sorted(read_all(fleet.bootstrap, topic, 1).items())] == [b"before", b"after"]


def produce(client: Client, topic: str, value: bytes, acks: int) -> int:
    """One record to partition 0 of this very broker; the error it answers."""
    batch = encode_batch([Record(0, int(time.time() * 1000), b"k", value, ())])
    row = m.ProduceRequest.TopicProduceData
    data = [row(name=topic, partition_data=[row.PartitionProduceData(index=0, records=batch)])]
    answer = client.ask(m.ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=data), 9)
    return int(answer.responses[0].partition_responses[0].error_code)


def fetch(client: Client, topic: str) -> bytes:
    """The batches that this very broker shows of partition 0, from its beginning; nothing when it refuses."""
    row = m.FetchRequest.FetchTopic
    places = [row.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    request = m.FetchRequest(max_wait_ms=200, min_bytes=1, topics=[row(topic=topic, partitions=places)])
    return bytes(client.ask(request, 11).responses[0].partitions[0].records or b"")


def test_two_brokers_die_in_turn(fleet: Fleet, work: Workload) -> None:
    """One after the other, the second as soon as the first is in sync again."""
    for name in ("broker-1", "broker-2"):
        fleet.kill(name)
        wait_moved(fleet, work.topic, name)
        fleet.start_again(name)
        wait_in_sync(fleet.bootstrap, work.topic)
    work.wait_progress()


def test_all_brokers_are_killed(fleet: Fleet, work: Workload) -> None:
    """Processes die, the machines stay: what the kernel has was written, and all of it is there afterwards."""
    for name in BROKERS:
        fleet.kill(name)
    for name in BROKERS:
        fleet.start_again(name)
    for name in BROKERS:
        fleet.wait_ready(name)
    work.wait_progress()


@pytest.mark.parametrize("harm", ["kill", "pause", "disconnect"])
def test_one_zookeeper(fleet: Fleet, work: Workload, harm: str) -> None:
    """A majority is left: the brokers move their sessions over and no client notices."""
    getattr(fleet, harm)(zookeeper_leader(fleet))
    work.wait_progress()
    time.sleep(SESSION_S)
    work.wait_progress()


def test_the_majority_of_zookeeper_is_away_until_all_sessions_are_over(fleet: Fleet, work: Workload) -> None:
    """No leadership moves meanwhile; afterwards everything goes on."""
    before = leaders(fleet, work.topic, BROKERS[0])
    for name in ZOOKEEPERS[:2]:
        fleet.kill(name)
    time.sleep(2 * SESSION_S)
    for name in BROKERS:
        assert leaders(fleet, work.topic, name) == before, "leadership moved without ZooKeeper"
    for name in ZOOKEEPERS[:2]:
        fleet.start_again(name)
    work.wait_progress()


def zookeeper_leader(fleet: Fleet) -> str:
    command = ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/2181 && printf srvr >&3 && grep ^Mode: <&3"]

    def look() -> list[str]:
        """On a busy machine the engine may lose what a short program says."""
        return [name for name in ZOOKEEPERS if b"leader" in fleet.container(name).exec_run(command).output]

    return eventually(look, "a ZooKeeper server leads", pause_s=PAUSE_S)[0]
