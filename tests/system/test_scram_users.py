"""SCRAM users on three brokers that log in at each other by SCRAM: altered by a stock client, followed by all."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient

from fleetlog.brokers.cli.main import cli
from fleetlog.brokers.logins.scram import ScramMechanism as Scram
from fleetlog.coordination.ports import free_ports
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode
from tests.support.fleet import Broker, Fleet
from tests.support.sasl_wire import RawLogin
from tests.support.secured import BROKER_PASSWORD, BROKER_USER, PASSWORD, USER, confluent, secured_fleet, users
from tests.support.waiting import eventually

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

REAUTH_MS = 8_000
EFFECT_S = 1.0
"""A bound for the quickest of equal changes: any one of them may come while the machine stands still."""
TIMES = 3


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = secured_fleet(
        tmp_path_factory.mktemp("scram"), 3, **{"connections.max.reauth.ms": REAUTH_MS, "num.partitions": 3}
    )
    try:
        yield found.start()
    finally:
        found.close()


def admin(fleet: Fleet, mechanism: str = "SCRAM-SHA-256") -> AdminClient:
    return AdminClient({"bootstrap.servers": fleet.bootstrap, **confluent(mechanism)})


def logs_in(broker: Broker, user: str, password: str) -> bool:
    with contextlib.closing(RawLogin(broker.port)) as raw:
        return raw.scram(user, password) == ErrorCode.NONE


def knows(broker: Broker, topic: str) -> bool:
    asked = messages.request_class(3).MetadataRequestTopic(version=12, name=topic)
    with contextlib.closing(RawLogin(broker.port)) as raw:
        assert raw.scram(USER, PASSWORD) == ErrorCode.NONE
        raw.send(3, 12, messages.request_class(3)(version=12, topics=[asked], allow_auto_topic_creation=False))
        (row,) = raw.answer(3, 12).topics
    return bool(row.error_code == ErrorCode.NONE)


def followed(fleet: Fleet, user: str, password: str, expected: bool) -> float:
    """After how many seconds from now that login is accepted, or else refused, by every broker."""
    began = time.monotonic()
    for broker in fleet.brokers:
        eventually(
            partial(logs_in, broker, user, password), f"broker {broker.id} has followed", good=expected.__eq__,
            pause_s=0.02,
        )  # fmt: skip
    return time.monotonic() - began


def alter(fleet: Fleet, *alterations: Any) -> None:
    client = admin(fleet)
    for future in client.alter_user_scram_credentials(list(alterations)).values():
        future.result(30)


def test_a_stock_admin_client_adds_describes_and_removes(fleet: Fleet) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    client, accepted, refused = admin(fleet), [], []
    for _ in range(TIMES):
        alter(fleet, UserScramCredentialUpsertion("bob é/%", info, b"of-bob", b"salt-of-bob"))
        accepted.append(followed(fleet, "bob é/%", "of-bob", expected=True))
        found = client.describe_user_scram_credentials(["bob é/%"])["bob é/%"].result(30)
        assert [(one.mechanism, one.iterations) for one in found.scram_credential_infos] == [
            (ScramMechanism.SCRAM_SHA_256, 8192)
        ]
        everyone = client.describe_user_scram_credentials().result(30)
        assert {BROKER_USER, USER, "bob é/%"} <= set(everyone)
        assert "bob é/%" in users(fleet, "list")
        alter(fleet, UserScramCredentialDeletion("bob é/%", ScramMechanism.SCRAM_SHA_256))
        refused.append(followed(fleet, "bob é/%", "of-bob", expected=False))
    assert min(accepted) < EFFECT_S
    assert min(refused) < EFFECT_S
    with pytest.raises(Exception, match="does not exist"):
        alter(fleet, UserScramCredentialDeletion("bob é/%", ScramMechanism.SCRAM_SHA_256))


def test_what_is_refused_and_changes_nothing(fleet: Fleet) -> None:
    """DescribeUserScramCredentials and AlterUserScramCredentials answer with Kafka's errors."""
    raw = RawLogin(fleet.brokers[1].port)
    assert raw.scram(USER, PASSWORD) == ErrorCode.NONE
    request = messages.request_class(51)

    def new(name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"s", keys: int = 32) -> Any:
        return request.ScramCredentialUpsertion(
            version=0, name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=bytes(keys)
        )

    gone = [request.ScramCredentialDeletion(version=0, name="not-there", mechanism=1)]
    wanted = [
        new(""), new("few", iterations=4095), new("many", iterations=16_385), new("third", 3), new("short", keys=31),
        new("saltless", salt=b""), new("twice"), new("twice"), new("x" * 2_000),
    ]  # fmt: skip
    raw.send(51, 0, request(version=0, deletions=gone, upsertions=wanted))
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert {row.user[:10]: row.error_code for row in raw.answer(51, 0).results} == {
        "not-there": ErrorCode.RESOURCE_NOT_FOUND,
        "": unacceptable,
        "few": unacceptable,
        "many": unacceptable,
        "third": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "short": unacceptable,
        "saltless": unacceptable,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "x" * 10: unacceptable,
    }
    asked = [messages.request_class(50).UserName(version=0, name=one) for one in ("few", USER, "twice", "twice")]
    raw.send(50, 0, messages.request_class(50)(version=0, users=asked))
    assert {row.user: row.error_code for row in raw.answer(50, 0).results} == {
        "few": ErrorCode.RESOURCE_NOT_FOUND,
        USER: ErrorCode.NONE,
        "twice": ErrorCode.DUPLICATE_RESOURCE,
    }


def test_the_command_removes_a_user_on_every_broker(fleet: Fleet) -> None:
    accepted, refused = [], []
    for _ in range(TIMES):
        users(fleet, "add", "carol", "--password-stdin", password="of-carol")
        accepted.append(followed(fleet, "carol", "of-carol", expected=True))
        users(fleet, "remove", "carol", "--yes")
        refused.append(followed(fleet, "carol", "of-carol", expected=False))
    assert min(accepted) < EFFECT_S
    assert min(refused) < EFFECT_S


def test_the_command_asks_the_brokers(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "admin.properties"
    login = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{USER}" password="{PASSWORD}";'
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={login}\n")

    def run(*words: str, at: str = fleet.bootstrap, password: str = "", code: int = 0) -> str:
        command = ["users", *words, "--bootstrap", at, "--command-config", str(file)]
        done = CliRunner().invoke(cli, command, input=password, env={"FLEETLOG_ZOOKEEPER": None})
        assert done.exit_code == code, done.output
        return done.output

    asked = sum(broker.answered("AlterUserScramCredentials") for broker in fleet.brokers)
    run("add", "gina", "--password-stdin", "-m", "SCRAM-SHA-256", "--iterations", "5000", password="of-gina")
    followed(fleet, "gina", "of-gina", True)
    rows = json.loads(run("list", "--json"))
    assert {"user": "gina", "mechanism": "SCRAM-SHA-256", "iterations": 5000} in rows
    assert {row["user"] for row in rows} >= {USER, BROKER_USER}
    run("remove", "gina", "--yes")
    followed(fleet, "gina", "of-gina", False)
    assert sum(broker.answered("AlterUserScramCredentials") for broker in fleet.brokers) == asked + 2
    assert "has no such credential" in run("remove", "gina", "--yes", code=1)
    (closed,) = free_ports(1)
    assert "before its first broker: --zookeeper" in run("list", at=f"127.0.0.1:{closed}", code=1)
    assert "which is missing" in run("list", "--zk-tls-config-file", str(file), code=2)


def test_connections_of_a_removed_user_are_closed_on_every_broker(fleet: Fleet) -> None:
    """Also of one whose password was changed; those by another mechanism, or of another user, stay."""
    client, info = admin(fleet), ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    client.list_topics(timeout=10)
    alterations = {
        "of-frank": UserScramCredentialUpsertion("frank", info, b"another", b"salt"),
        "another": UserScramCredentialDeletion("frank", ScramMechanism.SCRAM_SHA_256),
    }
    took: dict[str, list[float]] = {present: [] for present in alterations}
    for _ in range(TIMES):
        users(fleet, "add", "frank", "--password-stdin", password="of-frank")
        followed(fleet, "frank", "of-frank", expected=True)
        for present, alteration in alterations.items():
            by_256, by_512, other = ([RawLogin(broker.port) for broker in fleet.brokers] for _ in range(3))
            for raw in by_256:
                assert raw.scram("frank", present) == ErrorCode.NONE
            for raw in by_512:
                assert raw.scram("frank", "of-frank", Scram.SHA_512) == ErrorCode.NONE
            for raw in other:
                assert raw.scram(USER, PASSWORD) == ErrorCode.NONE
            client.alter_user_scram_credentials([alteration])["frank"].result(30)
            changed = time.monotonic()
            for raw in by_256:
                raw.closed_within(60)
            took[present].append(time.monotonic() - changed)
            for raw in (*by_512, *other):
                assert raw.metadata()
                raw.close()
    assert max(map(min, took.values())) < EFFECT_S, took


def test_nothing_tells_that_a_user_does_not_exist(fleet: Fleet) -> None:
    """The salt of a name is the same on all brokers, and after a restart, whether the name exists or not."""

    def challenges(user: str) -> set[tuple[str, str]]:
        found = set()
        for broker in fleet.brokers:
            for _ in range(2):
                with contextlib.closing(RawLogin(broker.port)) as raw:
                    found.add(raw.challenge(user))
        return found

    before = challenges(USER), challenges("does-not-exist")
    assert [len(found) for found in before] == [1, 1]
    assert len({iterations for ((_, iterations),) in before}) == 1
    fleet.brokers[2].stop()
    fleet.brokers[2].start()
    fleet.brokers[2].wait_ready()
    assert (challenges(USER), challenges("does-not-exist")) == before


def test_what_kafkas_own_tool_writes_is_followed(fleet: Fleet) -> None:
    """Its znodes, written as ``kafka-configs --zookeeper`` does: first the user, then the entry of the list."""
    zookeeper = KazooClient(fleet.zookeeper_connect)
    zookeeper.start()
    refused = []
    try:
        for _ in range(TIMES):
            users(fleet, "add", "dave", "--password-stdin", password="of-dave")
            followed(fleet, "dave", "of-dave", expected=True)
            zookeeper.set("/config/users/dave", b'{"version":1,"config":{"producer_byte_rate":"1024"}}')
            zookeeper.create(
                "/config/changes/config_change_", b'{"version":2,"entity_path":"users/dave"}', sequence=True
            )  # fmt: skip
            refused.append(followed(fleet, "dave", "of-dave", expected=False))
        users(fleet, "add", "dave", "--password-stdin", password="again")
        kept, _ = zookeeper.get("/config/users/dave")
        assert b'"producer_byte_rate":"1024"' in kept, "quotas stand in the same map"
    finally:
        zookeeper.stop()
        zookeeper.close()
    followed(fleet, "dave", "again", expected=True)
    assert min(refused) < EFFECT_S


def test_a_session_ends_unless_it_is_renewed(fleet: Fleet) -> None:
    users(fleet, "add", "erin", "--password-stdin", password="of-erin")
    followed(fleet, "erin", "of-erin", expected=True)
    port = fleet.brokers[0].port
    renewing, expiring, changing = (RawLogin(port) for _ in range(3))
    for raw in (renewing, expiring, changing):
        assert raw.scram(USER, PASSWORD) == ErrorCode.NONE
        assert raw.lifetime_ms == REAUTH_MS
        assert raw.metadata()
    time.sleep(REAUTH_MS / 2000)
    assert renewing.scram(USER, PASSWORD) == ErrorCode.NONE
    assert renewing.metadata()
    assert changing.scram("erin", "of-erin") == ErrorCode.SASL_AUTHENTICATION_FAILED
    time.sleep(REAUTH_MS / 2000 + 0.2)
    assert renewing.metadata()
    with pytest.raises(EOFError):
        expiring.metadata()


def test_brokers_replicate_beyond_their_sessions_and_a_kill(fleet: Fleet) -> None:
    client = admin(fleet)
    client.create_topics([NewTopic("t", 3, 3, config={"min.insync.replicas": "2"})])["t"].result(30)
    undelivered: list[Any] = []
    producer = Producer({
        "bootstrap.servers": fleet.bootstrap, "acks": "all", **confluent("SCRAM-SHA-512"),
    })  # fmt: skip

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            undelivered.append(error)

    def send(first: int, last: int) -> None:
        for number in range(first, last):
            producer.produce(
                "t", b"%d" % number, on_delivery=lambda error, _: undelivered.append(error) if error else 0
            )
            producer.poll(0)
            time.sleep(0.01)

    def in_sync() -> set[int]:
        return {len(one.isrs) for one in client.list_topics("t", timeout=20).topics["t"].partitions.values()}

    send(0, 900)  # more than one session of the brokers and of the client
    fleet.brokers[2].kill()
    send(900, 1300)
    assert producer.flush(60) == 0
    assert undelivered == []
    fleet.brokers[2].start()
    fleet.brokers[2].wait_ready()
    eventually(in_sync, "all replicas in sync", 60, good=lambda found: found == {3})
    consumer = Consumer({
        "bootstrap.servers": fleet.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
        **confluent("PLAIN"),
    })  # fmt: skip
    consumer.subscribe(["t"])
    found: set[int] = set()

    def read() -> int:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.add(int(message.value()))
        return len(found)

    eventually(read, "all records", 60, good=lambda count: count == 1300, pause_s=0)
    consumer.close()
    log = "".join(broker.log_file.read_text() for broker in fleet.brokers)
    assert "the login of user" not in log, "no broker has refused another"


def test_what_only_brokers_do_is_for_their_user_alone(fleet: Fleet) -> None:
    """Without an authorizer, too: a client that has logged in does not fetch as a replica, nor stop a broker."""
    client = admin(fleet)
    client.create_topics([NewTopic("replicated", 1, 3)])["replicated"].result(30)
    eventually(lambda: knows(fleet.brokers[0], "replicated"), "broker 1 knows the topic")
    fetch = messages.request_class(1)
    asked = fetch.FetchTopic.FetchPartition(
        version=12, partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=1024,
    )  # fmt: skip
    topic = fetch.FetchTopic(version=12, topic="replicated", partitions=[asked])

    def codes_of(user: str, password: str) -> list[int]:
        found: list[int] = []
        with contextlib.closing(RawLogin(fleet.brokers[0].port)) as raw:
            assert raw.scram(user, password) == ErrorCode.NONE
            for replica_id in (-1, 2):
                raw.send(1, 12, fetch(
                    version=12, replica_id=replica_id, max_wait_ms=0, min_bytes=0, max_bytes=1024, isolation_level=0,
                    session_id=0, session_epoch=-1, topics=[topic], forgotten_topics_data=[], rack_id="",
                ))  # fmt: skip
                answer = raw.answer(1, 12)
                found.append(answer.error_code or answer.responses[0].partitions[0].error_code)
            raw.send(7, 3, messages.request_class(7)(version=3, broker_id=99, broker_epoch=1))
            found.append(raw.answer(7, 3).error_code)
            raw.send(12000, 0, messages.request_class(12000)(version=0, topics=[]))
            found.append(raw.answer(12000, 0).error_code)
        return found

    of_cluster = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    of_client = codes_of(USER, PASSWORD)
    assert of_client[1:] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, of_cluster, of_cluster]
    assert of_client[0] in {ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER}
    refusals = {*of_client[1:]}
    assert not refusals & {*codes_of(BROKER_USER, BROKER_PASSWORD)}
    assert "Principal = User:alice is Denied Operation = ClusterAction" in fleet.brokers[0].log_file.read_text()


def test_names_that_zookeeper_cannot_store_are_refused_and_the_rest_is_done(fleet: Fleet) -> None:
    request = messages.request_class(51)
    upsertions = [
        request.ScramCredentialUpsertion(
            version=0, name=name, mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)
        )
        for name in ("", ".", "..", "dots")
    ]
    with contextlib.closing(RawLogin(fleet.brokers[0].port)) as raw:
        assert raw.scram(BROKER_USER, BROKER_PASSWORD) == 0
        raw.send(51, 0, request(version=0, deletions=[], upsertions=upsertions))
        refused = ErrorCode.UNACCEPTABLE_CREDENTIAL
        assert [one.error_code for one in raw.answer(51, 0).results] == [refused, refused, refused, ErrorCode.NONE]
        asked = messages.request_class(50)
        raw.send(50, 0, asked(version=0, users=[asked.UserName(version=0, name=name) for name in ("..", "dots")]))
        found = {one.user: one.error_code for one in raw.answer(50, 0).results}
        assert found == {"..": ErrorCode.RESOURCE_NOT_FOUND, "dots": ErrorCode.NONE}
