"""Replication on real brokers: acknowledged records survive crashes, pauses, lost disks and ZooKeeper outages."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import READ_COMMITTED, Confluent, KafkaPython, Message
from tests.support.copies import Cables, Cluster, Load, Transactions, read_all
from tests.support.fleet import Broker, Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

SESSION_MS, LAG_MS = 8_000, 12_000

client = Confluent()


def new_fleet(directory: Path, **settings: object) -> Fleet:
    chosen = {
        "zookeeper_session_timeout_ms": SESSION_MS,
        "replica_lag_time_max_ms": LAG_MS,
        "default_replication_factor": 3,
        "min_insync_replicas": 2,
        "log_flush_offset_checkpoint_interval_ms": 1_000,
        **settings,
    }
    return Fleet(directory, brokers=3, **chosen)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers of the test's own, started."""
    fleet = new_fleet(tmp_path)
    try:
        cluster = Cluster(fleet.start())
        yield cluster
        assert not cluster.mistakes()
    finally:
        fleet.close()


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers with two log directories each, and no follower is put out for its lag."""
    fleet = new_fleet(tmp_path, replica_lag_time_max_ms=600_000)
    for broker in fleet.brokers:
        kept = [line for line in broker.config_file.read_text().splitlines() if not line.startswith("log.dirs=")]
        kept.append(f"log.dirs={broker.directory / 'data1'},{broker.directory / 'data2'}")
        broker.config_file.write_text("\n".join(kept) + "\n")
    try:
        cluster = Cluster(fleet.start())
        yield cluster
        assert not cluster.mistakes()
    finally:
        fleet.close()


def messages(first: int, count: int, partition: int = 0) -> list[Message]:
    return [Message(b"%d" % n, partition=partition) for n in range(first, first + count)]


# ---- copies ----------------------------------------------------------------------------------------------------------


def test_a_rolling_restart_refuses_no_topic(cluster: Cluster) -> None:
    """Not even the internal topics, which come with the first group and the first transaction."""
    away = cluster.broker(3)
    away.stop()
    living = ",".join(broker.address for broker in cluster.running)
    cluster.create("t", 3)
    producer = client.transactional(living, "writer")
    producer.begin()
    producer.send("t", Message(b"one", partition=0))
    producer.commit()
    assert [m.value for m in client.consume(living, "t", 1, isolation=READ_COMMITTED)] == [b"one"]
    eventually(lambda: cluster.coordinator("readers") in (1, 2), "the group has a coordinator")
    away.start()
    away.wait_ready()
    for topic in ("t", "__consumer_offsets", "__transaction_state"):
        cluster.wait_isr(topic, {1, 2, 3})


def test_replicas_are_the_same_bytes_whatever_is_written(cluster: Cluster) -> None:
    bootstrap = cluster.alive
    cluster.create("t", 3, segment_bytes=100_000)
    for partition, (codec, acks) in enumerate([("none", "all"), ("zstd", "1"), ("lz4", "0")]):
        for _ in range(5):
            big = [Message(b"%d" % n + b"x" * 300, key=b"k", partition=partition) for n in range(200)]
            client.produce(bootstrap, "t", big, compression=codec, acks=acks)
    KafkaPython().produce(bootstrap, "t", messages(0, 50, 1), idempotent=True)
    producer = client.transactional(bootstrap, "writer")
    for number in range(4):
        producer.begin()
        for partition in range(3):
            producer.send("t", Message(b"in transaction %d" % number, partition=partition))
        producer._producer.flush(30)  # otherwise aborted records would never be sent
        producer.abort() if number % 2 else producer.commit()
    producer.close()
    cluster.wait_equal("t", 3)
    first = cluster.fleet.brokers[0]
    for partition in range(3):
        assert len(cluster.segments(first, "t", partition)) > 1 or partition > 0
        assert len({tuple(cluster.epochs(broker, "t", partition)) for broker in cluster.fleet.brokers}) == 1
        offsets = [header.base_offset for header in cluster.batches(first, "t", partition)]
        assert offsets == sorted(offsets)
        found = read_all(bootstrap, "t", partition, READ_COMMITTED)
        assert [v for _, v in found if v.startswith(b"in")] == [b"in transaction 0", b"in transaction 2"]
    assert len(read_all(bootstrap, "t", 0)) == 1_004


def test_a_killed_follower_leaves_the_in_sync_set_and_comes_back_equal(cluster: Cluster) -> None:
    cluster.create("t", segment_bytes=100_000)
    leader = cluster.leader("t")
    follower = next(broker for broker in cluster.fleet.brokers if broker is not leader)
    with Load(cluster.alive, "t").running() as load:
        load.wait_acks(500, "records before")
        follower.kill()
        cluster.wait_isr("t", {1, 2, 3} - {follower.id})
        load.wait_acks(2_000, "records meanwhile")
        follower.start()
        follower.wait_ready()
        cluster.wait_isr("t", {1, 2, 3})
        load.wait_acks(200, "records after")
    load.check(cluster.alive)
    cluster.wait_equal("t")


def test_clients_that_take_every_connection_do_not_keep_a_broker_from_following(tmp_path: Path) -> None:
    """One listener, one address, and nothing left of either cap: a broker that restarts comes in all the same."""
    fleet = new_fleet(tmp_path, max_connections=40, max_connections_per_ip=30)
    idle: list[socket.socket] = []
    try:
        cluster = Cluster(fleet.start())
        cluster.create("t")
        client.produce(cluster.alive, "t", messages(0, 100))
        leader = cluster.leader("t")
        follower = next(broker for broker in fleet.brokers if broker is not leader)
        follower.kill()
        cluster.wait_isr("t", {1, 2, 3} - {follower.id})
        full = {broker.id for broker in fleet.brokers} - {follower.id}
        for number in full:
            idle += [socket.create_connection(("127.0.0.1", cluster.broker(number).port)) for _ in range(60)]
            eventually(lambda number=number: "is reached" in cluster.broker(number).output(), "a cap is reached")
        follower.start()
        follower.wait_ready()
        eventually(
            lambda: (state := cluster.state("t", 0, follower)) and set(state.isrs) == {1, 2, 3},
            "the broker is in sync again",
        )
        assert not cluster.mistakes()
    finally:
        for sock in idle:
            sock.close()
        fleet.close()


def test_followers_that_cannot_reach_their_leader_leave_by_their_lag(tmp_path: Path) -> None:
    """All sessions stay valid, so only the leader can shrink the ISR; with two members out nothing is acknowledged."""
    from confluent_kafka import KafkaError, Producer

    fleet = new_fleet(tmp_path)
    cables = Cables(fleet)
    try:
        cluster = Cluster(fleet.start())
        cluster.create("t")
        client.produce(cluster.alive, "t", messages(0, 100))
        leader = cluster.leader("t")
        cables.cut(leader)
        errors: list[int] = []
        once = Producer({"bootstrap.servers": leader.address, "acks": "all", "retries": 0, "linger.ms": 0})
        once.produce("t", b"100", partition=0, on_delivery=lambda error, _: errors.append(error.code()))
        once.poll(1)
        with Load(cluster.alive, "t").running() as load:
            cluster.wait_isr("t", {leader.id}, timeout_s=LAG_MS / 1000 + 20)
            acked = len(load.acked)
            time.sleep(1)
            assert len(load.acked) == acked == 0, "acknowledged by one replica where two are asked for"
            assert once.flush(10) == 0
            assert errors == [KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
            assert cluster.leader("t") is leader
            cables.mend(leader)
            cluster.wait_isr("t", {1, 2, 3}, timeout_s=LAG_MS / 1000 + 20)
            load.wait_acks(100, "goes on")
        cluster.wait_equal("t")
        first, *values = [int(value) for _, value in read_all(cluster.alive, "t")][100:]
        assert first == 100, "not acknowledged, but not lost either"
        assert values == sorted(set(values))
        assert set(load.acked) <= set(values)
        assert not cluster.mistakes()
    finally:
        fleet.close()
        cables.close()


def test_deleted_records_and_topics_go_everywhere(cluster: Cluster) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    cluster.create("t")
    client.produce(cluster.alive, "t", messages(0, 500))
    cluster.wait_equal("t")
    admin = AdminClient({"bootstrap.servers": cluster.alive})
    tp = TopicPartition("t", 0, 321)
    admin.delete_records([tp])[tp].result(30)

    def starts() -> set[str]:
        lines = set()
        for broker in cluster.fleet.brokers:
            file = broker.directory / "data" / "log-start-offset-checkpoint"
            text = file.read_text() if file.exists() else ""
            lines.add(next((line for line in text.splitlines() if line.startswith("t 0 ")), "none yet"))
        return lines

    eventually(lambda: starts() == {"t 0 321"}, "every replica starts at 321")
    client.delete_topic(cluster.alive, "t")
    eventually(
        lambda: not any(list(broker.directory.glob("data/t-0")) for broker in cluster.fleet.brokers),
        "every replica's directory is gone",
    )


def test_a_replica_that_begins_within_a_batch(cluster: Cluster) -> None:
    """A broker that lost its disk fetches a log whose first record is inside a batch."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    cluster.create("t")
    client.produce(cluster.alive, "t", messages(0, 1_000), compression="zstd")
    cluster.wait_equal("t")
    leader = cluster.leader("t")
    inside = next(
        header.base_offset + 1 for header in cluster.batches(leader, "t") if header.last_offset > header.base_offset + 1
    )
    admin = AdminClient({"bootstrap.servers": cluster.alive})
    tp = TopicPartition("t", 0, inside)
    admin.delete_records([tp])[tp].result(30)
    empty = next(broker for broker in cluster.fleet.brokers if broker is not leader)
    empty.kill()
    shutil.rmtree(empty.directory / "data")
    empty.start()
    empty.wait_ready()
    cluster.wait_isr("t", {1, 2, 3})
    cluster.broker(leader.id).stop()
    third = next(broker for broker in cluster.fleet.brokers if broker not in (leader, empty))
    third.stop()
    found = eventually(lambda: read_all(empty.address, "t"), "the one that was empty serves")
    assert [offset for offset, _ in found] == list(range(inside, 1_000))


# ---- acknowledgements ------------------------------------------------------------------------------------------------


def test_too_few_replicas_refuse_all_but_not_one(cluster: Cluster) -> None:
    from confluent_kafka import KafkaError, Producer

    cluster.create("t")
    client.produce(cluster.alive, "t", messages(0, 10))
    leader = cluster.leader("t")
    followers = [broker for broker in cluster.fleet.brokers if broker is not leader]
    for follower in followers:
        follower.kill()
    cluster.wait_isr("t", {leader.id})
    errors: list[int] = []
    once = {"acks": "all", "message.timeout.ms": 30_000, "retries": 0}
    producer = Producer({"bootstrap.servers": leader.address, **once})
    producer.produce("t", b"refused", partition=0, on_delivery=lambda error, _: errors.append(error.code()))
    producer.flush(30)
    assert errors == [KafkaError.NOT_ENOUGH_REPLICAS]
    client.produce(leader.address, "t", messages(10, 5), acks="1")
    assert [value for _, value in read_all(leader.address, "t")] == [b"%d" % n for n in range(10)], "not committed"
    followers[0].start()
    followers[0].wait_ready()
    eventually(lambda: len(read_all(cluster.alive, "t")) == 15, "with a second replica the rest is committed")
    client.produce(cluster.alive, "t", messages(15, 5))
    followers[1].start()
    followers[1].wait_ready()
    cluster.wait_isr("t", {1, 2, 3})
    cluster.wait_equal("t")
    assert [value for _, value in read_all(cluster.alive, "t")] == [b"%d" % n for n in range(20)]


# ---- leaders that die, sleep, or lose ZooKeeper ----------------------------------------------------------------------


def test_leaders_killed_one_after_the_other_lose_and_double_nothing(cluster: Cluster) -> None:
    bootstrap = cluster.alive
    cluster.create("t", segment_bytes=262_144)
    with Load(bootstrap, "t").running() as load:
        load.wait_acks(500, "records before")
        for _ in range(3):
            leader = cluster.leader("t")
            leader.kill()
            cluster.leader("t", other_than=leader.id)
            load.wait_acks(500, "records under the next leader")
            leader.start()
            leader.wait_ready()
            cluster.wait_isr("t", {1, 2, 3})
            load.wait_acks(100, "records with all of them")
    load.check(bootstrap)
    cluster.wait_equal("t")
    assert len(cluster.epochs(cluster.fleet.brokers[0], "t")) >= 4
    assert cluster.lost_commits() == 0


def test_transactions_stay_whole_while_brokers_are_killed(cluster: Cluster) -> None:
    """Each broker in turn: leaders of the data and of the coordinator's log among them."""
    bootstrap = cluster.alive
    cluster.create("t", 3)
    with Transactions(bootstrap, "t", 3).running() as load:
        load.wait_commits(20, "transactions before")
        for broker in cluster.fleet.brokers:
            broker.kill()
            load.wait_commits(20, f"transactions without broker {broker.id}")
            broker.start()
            broker.wait_ready()
            for partition in range(3):
                cluster.wait_isr("t", {1, 2, 3}, partition)
            load.wait_commits(10, "transactions with all of them")
    load.check(bootstrap)
    cluster.wait_equal("t", 3)
    assert cluster.lost_commits() == 0


def test_a_group_resumes_where_it_was_when_its_coordinator_is_killed(cluster: Cluster) -> None:
    from confluent_kafka import Consumer

    bootstrap = cluster.alive
    cluster.create("t")
    client.produce(bootstrap, "t", messages(0, 100))
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False,
         "auto.offset.reset": "earliest", "session.timeout.ms": 30_000}
    )  # fmt: skip
    consumer.subscribe(["t"])
    seen: list[bytes] = []

    def poll(goal: int) -> bool:
        for message in consumer.consume(100, 0.2):
            if message.error() is None:
                seen.append(message.value())
                consumer.commit(message=message, asynchronous=False)
        return len(seen) >= goal

    eventually(lambda: poll(100), "the group reads")
    coordinator = cluster.broker(int(cluster.coordinator("readers")))
    coordinator.kill()
    eventually(
        lambda: cluster.coordinator("readers") not in (coordinator.id, -1), "another broker coordinates the group"
    )
    alive = cluster.alive
    assert client.committed(alive, "readers", "t") == 100
    client.produce(alive, "t", messages(100, 50))
    eventually(lambda: poll(150), "the group goes on")
    consumer.close()
    assert seen == [b"%d" % n for n in range(150)]
    assert client.committed(alive, "readers", "t") == 150


def test_a_leader_that_slept_past_its_session_is_fenced_and_cuts_its_tail(cluster: Cluster) -> None:
    """Its tail was acknowledged by itself only (acks=1). No reader ever sees it, then or later."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    cluster.create("t")
    bootstrap = cluster.alive
    client.produce(bootstrap, "t", messages(0, 100))
    cluster.wait_equal("t")
    leader = cluster.leader("t")
    followers = [broker for broker in cluster.fleet.brokers if broker is not leader]
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    seen: list[bytes] = []

    def poll() -> int:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            seen.append(message.value())
        return len(seen)

    eventually(lambda: poll() == 100, "the consumer has read everything")
    isolated = Producer({"bootstrap.servers": leader.address, "acks": "1", "linger.ms": 0})
    isolated.list_topics("t", timeout=30)
    for follower in followers:
        follower.signal(signal.SIGSTOP)
    ghosts: list[int] = []
    for _ in range(4):  # the first may still be on its way to the followers; those after it are not
        isolated.produce("t", b"ghost", partition=0, on_delivery=lambda e, m: ghosts.append(m.offset()) if not e else 0)
        assert isolated.flush(30) == 0
    leader.signal(signal.SIGSTOP)
    for follower in followers:
        follower.signal(signal.SIGCONT)
    assert len(ghosts) == 4
    successor = cluster.broker(
        eventually(
            lambda: next(
                (s.leader for f in followers if (s := cluster.state("t", 0, f)) and s.leader not in (-1, leader.id)), 0
            ),
            "a follower leads",
        )
    )
    assert successor is not leader
    alive = ",".join(follower.address for follower in followers)
    client.produce(alive, "t", messages(100, 50))
    leader.signal(signal.SIGCONT)
    cluster.wait_isr("t", {1, 2, 3})
    client.produce(bootstrap, "t", messages(150, 50))
    cluster.wait_equal("t")
    found = [value for _, value in read_all(bootstrap, "t")]
    kept = found.count(b"ghost")
    assert kept <= 1, "only what had reached a follower's socket may stay"
    assert [value for value in found if value != b"ghost"] == [b"%d" % n for n in range(200)]
    eventually(lambda: poll() == len(found), "the consumer goes on by itself")
    assert seen == found
    consumer.close()
    assert "truncating from offset" in leader.output()
    assert cluster.lost_commits() == 0


def test_without_zookeeper_leaders_continue_and_afterwards_everything_does(cluster: Cluster) -> None:
    cluster.create("t", 3)
    with Load.many(cluster.alive, "t", 3) as loads:
        for load in loads:
            load.wait_acks(200, "records before")
        cluster.fleet.zookeeper.kill()
        time.sleep(2.5 * SESSION_MS / 1000)  # every session has expired, though no server can report it
        for load in loads:
            load.wait_acks(200, "records without ZooKeeper")
        cluster.fleet.zookeeper.restart()
        for broker in cluster.fleet.brokers:
            broker.wait_ready()
        for load in loads:
            load.wait_acks(200, "records with ZooKeeper again")
        cluster.create("u")
        client.produce(cluster.alive, "u", messages(0, 10))
    for partition, load in enumerate(loads):
        cluster.wait_isr("t", {1, 2, 3}, partition)
        load.check(cluster.alive)
    cluster.wait_equal("t", 3)


def test_a_leader_killed_while_zookeeper_is_away(cluster: Cluster) -> None:
    """There is no election then; acknowledged records are there when ZooKeeper is back."""
    cluster.create("t")
    bootstrap = cluster.alive
    with Load(bootstrap, "t").running() as load:
        load.wait_acks(200, "records before")
        cluster.fleet.zookeeper.kill()
        load.wait_acks(200, "records without ZooKeeper")
        leader = cluster.leader("t")
        leader.kill()
        cluster.fleet.zookeeper.restart()
        cluster.leader("t", other_than=leader.id)
        load.wait_acks(200, "records under another leader")
        leader.start()
        leader.wait_ready()
    cluster.wait_isr("t", {1, 2, 3})
    load.check(bootstrap)
    cluster.wait_equal("t")


def test_all_killed_at_once_keep_what_was_acknowledged(cluster: Cluster) -> None:
    cluster.create("t", 2)
    bootstrap = cluster.alive
    with Load.many(bootstrap, "t", 2) as loads:
        for load in loads:
            load.wait_acks(500, "records before")
        for broker in cluster.fleet.brokers:
            broker.kill()
        for broker in reversed(cluster.fleet.brokers):
            broker.start()
        for broker in cluster.fleet.brokers:
            broker.wait_ready()
        for load in loads:
            load.wait_acks(200, "records after")
    for partition, load in enumerate(loads):
        cluster.wait_isr("t", {1, 2, 3}, partition)
        load.check(bootstrap)
    cluster.wait_equal("t", 2)


def test_an_unclean_election_is_made_only_where_it_is_allowed(cluster: Cluster) -> None:
    """Records that only the crashed leader has are lost if the topic allows it; otherwise the partition waits."""
    for topic, allowed in (("risky", "true"), ("safe", "false")):
        cluster.create(topic, min_insync_replicas=1, unclean_leader_election_enable=allowed)
        client.produce(cluster.alive, topic, messages(0, 10))
        cluster.wait_equal(topic)
    survivor = next(
        b for b in cluster.fleet.brokers if b.id not in (cluster.leader("risky").id, cluster.leader("safe").id)
    )
    others = [broker for broker in cluster.fleet.brokers if broker is not survivor]
    survivor.kill()
    for topic in ("risky", "safe"):
        cluster.wait_isr(topic, {broker.id for broker in others})
        client.produce(cluster.alive, topic, messages(10, 10))
    for broker in others:
        broker.kill()
    survivor.start()
    survivor.wait_ready()
    eventually(lambda: cluster.leader("risky") is survivor, "the survivor leads where it may")
    assert [value for _, value in read_all(survivor.address, "risky")] == [b"%d" % n for n in range(10)]
    state = cluster.state("safe")
    assert state is not None
    assert state.leader == -1
    client.produce(survivor.address, "risky", messages(100, 5))
    for broker in others:
        broker.start()
    for broker in others:
        broker.wait_ready()
    for topic, kept in (("risky", [*range(10), *range(100, 105)]), ("safe", list(range(20)))):
        cluster.wait_isr(topic, {1, 2, 3})
        cluster.wait_equal(topic)
        assert [value for _, value in read_all(cluster.alive, topic)] == [b"%d" % n for n in kept]


# ---- disks -----------------------------------------------------------------------------------------------------------


def _ruin(cluster: Cluster, broker: Broker, topic: str) -> Path:
    """Take the topic's log directory away from under a running broker; returns where it is now."""
    (held,) = {path.parent.parent for path in cluster.segments(broker, topic)}
    aside = held.with_name(f"lost-{held.name}")
    held.rename(aside)
    held.write_text("no directory\n")
    return aside


@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_failing_log_directory_takes_only_its_partitions(disks: Cluster, role: str) -> None:
    disks.create("t", 4, segment_bytes=100_000)
    bootstrap = disks.alive
    leader = disks.leader("t")
    victim = leader if role == "leader" else next(b for b in disks.fleet.brokers if b is not leader)
    with Load(bootstrap, "t").running() as load:
        load.wait_acks(300, "records before")
        (held,) = {path.parent.parent for path in victim.directory.glob("data*/t-0/*.log")}
        inside = {int(path.name.rpartition("-")[2]) for path in held.glob("t-*")}
        outside = set(range(4)) - inside
        assert outside, "both directories hold partitions"
        lost = _ruin(disks, victim, "t")
        disks.wait_isr("t", {1, 2, 3} - {victim.id})
        disks.leader("t", other_than=victim.id)
        load.wait_acks(300, "records without the directory")
    load.check(bootstrap)
    for partition in outside:
        client.produce(bootstrap, "t", messages(0, 10, partition))
        state = disks.state("t", partition)
        assert state is not None
        assert set(state.isrs) == {1, 2, 3}, "the other directory's partitions go on"
    assert victim.process is not None
    assert victim.process.poll() is None
    assert "is offline, with" in victim.log_file.read_text()
    victim.stop()
    victim.start()
    victim.wait_ready()  # without that disk: its replicas are copied to the other one
    for partition in range(4):
        disks.wait_isr("t", {1, 2, 3}, partition)
    load.check(bootstrap)
    disks.wait_equal("t", 4)
    client.produce(bootstrap, "t", messages(10_000_000, 10))
    victim.stop()
    held.unlink()
    lost.rename(held)  # the disk is back, with old copies of the other one's replicas
    victim.start()
    victim.wait_ready()
    for partition in range(4):
        disks.wait_isr("t", {1, 2, 3}, partition)
    client.produce(bootstrap, "t", messages(20_000_000, 10))
    disks.wait_equal("t", 4)


def test_all_killed_and_one_comes_back_without_its_disk(disks: Cluster) -> None:
    """No replica is known to have everything, and one has no disk to report: the partition waits for that disk."""
    disks.create("t")
    bootstrap = disks.alive
    with Load(bootstrap, "t").running() as load:
        load.wait_acks(300, "records before")
        victim = disks.leader("t")
        (held,) = {path.parent.parent for path in disks.segments(victim, "t")}
        for broker in disks.fleet.brokers:
            broker.kill()
        lost = _ruin(disks, victim, "t")
        for broker in disks.fleet.brokers:
            broker.start()
        for broker in disks.fleet.brokers:
            broker.wait_ready()
        time.sleep(3)
        assert {disks.state("t", 0, broker).leader for broker in disks.fleet.brokers} == {-1}
        victim.stop()
        held.unlink()
        lost.rename(held)
        victim.start()
        victim.wait_ready()
        disks.wait_isr("t", {1, 2, 3})
        load.wait_acks(100, "records after")
    load.check(bootstrap)
    disks.wait_equal("t")
