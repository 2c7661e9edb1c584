"""The JSON of the tree: round trips, Kafka's own documents, and nonsense."""

from __future__ import annotations

import json
import uuid

import pytest

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.znodes import (
    BadZnode,
    ConfigChanged,
    StatesChanged,
    TopicChanged,
    TopicDeleted,
    TopicZnode,
)
from fleetlog.brokers.model import BrokerId, Endpoint, PartitionState, id_text
from fleetlog.coordination.registration import Advertisement, ListenerAddress, encode_registration

ID = uuid.UUID("12345678-9abc-4def-8123-456789abcdef")
STATE = PartitionState(
    replicas=(BrokerId(1), BrokerId(2)),
    leader=2,
    leader_epoch=3,
    isr=(BrokerId(2),),
    partition_epoch=8,
    controller_epoch=4,
    leader_incarnation=6,
    isr_incarnations=(6,),
)


def test_topic_ids_are_spelled_as_kafka_does() -> None:
    assert id_text(uuid.UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert znodes.topic_id_from(id_text(ID)) == ID


def test_topics_are_read_as_written_here_and_by_kafka() -> None:
    topic = TopicZnode(ID, ((BrokerId(1), BrokerId(2)), (BrokerId(2), BrokerId(3))))
    assert znodes.decode_topic("/t", znodes.encode_topic(topic)) == topic
    kafka = b'{"removing_replicas":{},"partitions":{"1":[3],"0":[2]},"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ",'
    kafka += b'"adding_replicas":{},"version":3}'
    assert znodes.decode_topic("/t", kafka) == TopicZnode(uuid.UUID(int=1), ((BrokerId(2),), (BrokerId(3),)))


def test_states_are_read_as_written_here_and_by_kafka() -> None:
    data = znodes.encode_state(STATE)
    assert znodes.decode_state("/s", data, STATE.replicas, 8) == STATE
    document = json.loads(data)
    assert {k: document[k] for k in ("version", "leader", "leader_epoch", "controller_epoch", "isr")} == {
        "version": 1,
        "leader": 2,
        "leader_epoch": 3,
        "controller_epoch": 4,
        "isr": [2],
    }
    kafka = b'{"controller_epoch":9,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}'
    found = znodes.decode_state("/s", kafka, (BrokerId(1),), 0)
    assert (found.leader, found.leader_incarnation, found.isr_incarnations) == (1, -1, (-1,))


def test_registrations_are_read_as_coordination_writes_them() -> None:
    listeners = [ListenerAddress("PLAINTEXT", "::1", 9092), ListenerAddress("INSIDE", "10.0.0.1", 9093)]
    data = encode_registration(Advertisement(7, listeners, rack="r1"), 1, 12, 6000)
    broker = znodes.decode_broker("/brokers/ids/7", data, czxid=99, incarnation=3)
    assert (broker.id, broker.epoch, broker.incarnation, broker.rack) == (7, 99, 12, "r1")
    assert broker.endpoint("PLAINTEXT") == Endpoint("PLAINTEXT", "::1", 9092)
    assert broker.endpoint("INSIDE") == Endpoint("INSIDE", "10.0.0.1", 9093)
    assert broker.endpoint("OTHER") is None


def test_changes_are_read_as_written() -> None:
    changes = [
        TopicChanged("t", TopicZnode(ID, ((BrokerId(1),),)), 3),
        StatesChanged("t", ID, {1: STATE, 12: STATE}),
        ConfigChanged("topics", "t", 2, {"retention.ms": "1"}),
        ConfigChanged("brokers", "<default>", -1),
        TopicDeleted("ü", ID),
    ]
    assert znodes.decode_changes("/c", znodes.encode_changes(changes)) == changes


def test_a_change_has_the_number_in_its_path() -> None:
    assert znodes.change_sequence(znodes.change_path(17)) == 17
    assert znodes.change_sequence("c_2147483648") == 2147483648
    with pytest.raises(BadZnode):
        znodes.change_sequence("c_x")


NONSENSE = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"\xff",
    b'{"version":1}',
    b'{"partitions":{"1":[1]},"topic_id":"AA"}',
    b"1" * 5000,
]


@pytest.mark.parametrize("data", NONSENSE)
def test_nonsense_is_refused(data: bytes) -> None:
    readers = [
        lambda: znodes.decode_topic("/t", data),
        lambda: znodes.decode_state("/s", data, (), 0),
        lambda: znodes.decode_config("/c", data),
        lambda: znodes.decode_broker("/brokers/ids/1", data, 1, 1),
        lambda: znodes.decode_changes("/c", data),
        lambda: znodes.decode_controller(data),
        lambda: znodes.decode_cluster_id(data),
    ]
    for read in readers:
        with pytest.raises(BadZnode):
            read()


def test_an_unknown_kind_of_change_is_refused() -> None:
    with pytest.raises(BadZnode):
        znodes.decode_changes("/c", b'{"version":1,"changes":[{"moon":"full"}]}')
