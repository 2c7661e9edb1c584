"""The ZooKeeper tree: paths, and the JSON of each znode, as Kafka 3.9 writes it plus a few fields of fleetlog.

Pure. Readers ignore unknown fields, so Kafka's own tools can read the tree and newer writers can add fields. Added:

* partition state: ``leader_incarnation``, ``isr_incarnations`` (the incarnations that the election relied on),
  ``elr``, ``elr_incarnations``, ``last_known_leader`` (KIP-966, which Kafka has without ZooKeeper only),
  ``unclean_epoch``;
* broker registration: ``incarnation``, ``intact_since``, ``failure_domain``, ``waives_leases``,
  ``tells_positions``, ``matches_ranges``, ``session_timeout_ms``;
* ``/fleetlog/changes/c_<seq>``: the change log. Each multi that changes topics, states or configs creates one entry
  with the *new* contents and znode versions, so that readers need not read the znodes again.

Source: kafka/zk/ZkData.scala of Kafka 3.9 for names and versions of the JSON documents.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from fleetlog.brokers.model import NO_LEADER, BrokerId, BrokerInfo, Endpoint, PartitionState, TopicPartition, id_text
from fleetlog.coordination.tree import BROKER_IDS, INCARNATIONS

BROKERS: Final = "/brokers"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CLUSTER_ID: Final = "/cluster/id"
DELETE_TOPICS: Final = "/admin/delete_topics"
CONFIG: Final = "/config"
FEATURE: Final = "/feature"
CHANGES: Final = "/fleetlog/changes"
DELETED_TOPICS: Final = "/fleetlog/deleted_topics"
"""Those that a broker may still know: their names are taken until all have confirmed that they are gone."""
DELETED_TIERS: Final = "/fleetlog/deleted_tiers"
"""Tiered topics that were deleted, by their ids, until nothing of them is in the bucket."""
GENERATION: Final = "/fleetlog/generation"
"""How often the tree was repaired; missing before the first time."""
REPAIR: Final = "/fleetlog/repair"
"""The topic ids that a repair which is under way has chosen among several."""
INVENTORIES: Final = "/fleetlog/inventories"
"""What the brokers have that find ZooKeeper older than their logs; ephemeral."""
PROVEN: Final = "proven"
CHANGE_PREFIX: Final = "/fleetlog/changes/c_"

DEFAULT_ENTITY: Final = "<default>"
CONFIG_TOPICS: Final = "topics"
CONFIG_BROKERS: Final = "brokers"
CONFIG_GROUPS: Final = "groups"
CONFIG_KINDS: Final = (CONFIG_TOPICS, CONFIG_BROKERS, CONFIG_GROUPS)

PERSISTENT_PATHS: Final = (
    BROKER_IDS,
    INCARNATIONS,
    TOPICS,
    DELETE_TOPICS,
    "/config/topics",
    "/config/brokers",
    "/config/groups",
    "/config/clients",
    "/config/users",
    "/config/ips",
    "/config/changes",
    CHANGES,
    DELETED_TOPICS,
    DELETED_TIERS,
)
"""Parents that exist in every cluster; the first broker creates them."""


class BadZnode(Exception):
    """A znode's content is invalid for its path: another program or a newer fleetlog wrote it. Holds no secret."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


# ---------------------------------------------------------------- paths


def topic_path(topic: str) -> str:
    """A topic's assignment and id."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """Parent of a topic's partitions."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(tp: TopicPartition) -> str:
    """Parent of one partition's state."""
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}"


def state_path(tp: TopicPartition) -> str:
    """One partition's leader, epoch and ISR; the znode's version is the partition epoch."""
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}/state"


def config_path(kind: str, entity: str) -> str:
    """The dynamic configuration of a topic, broker (or ``<default>``) or group."""
    return f"{CONFIG}/{kind}/{entity}"


def delete_topic_path(topic: str) -> str:
    """The mark of a topic whose deletion has begun."""
    return f"{DELETE_TOPICS}/{topic}"


def deleted_topic_path(topic: str) -> str:
    """The mark of a deleted topic whose name is still taken."""
    return f"{DELETED_TOPICS}/{topic}"


def deleted_tier_path(topic_id: uuid.UUID) -> str:
    """The mark of a deleted topic that has objects in the bucket."""
    return f"{DELETED_TIERS}/{topic_id.hex}"


def change_path(sequence: int) -> str:
    """One entry of the change log, as ZooKeeper names sequential znodes."""
    return f"{CHANGE_PREFIX}{sequence:010d}"


def change_sequence(name: str) -> int:
    """The sequence number in a change's name or path; raises BadZnode."""
    digits = name.rpartition("c_")[2]
    if not digits.isdigit():
        raise BadZnode(name, "not a change-log entry")
    return int(digits)


def inventory_path(broker_id: int, generation: int, part: int, *, proven: bool) -> str:
    """One part of what a broker has while the tree of this generation is behind; ``proven`` by what it has itself."""
    return f"{INVENTORIES}/{broker_id}-{generation}-{part}-{PROVEN if proven else 'heard'}"


# ---------------------------------------------------------------- ids and names


def topic_id_from(text: str) -> uuid.UUID:
    """Inverse of :func:`id_text`; raises ValueError."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return uuid.UUID(bytes=raw)


def sanitised(name: str) -> str:
    """A principal's or client's name as Kafka writes it in a path: URL-encoded UTF-8, ``*`` and space as well."""
    return quote(name, safe="-_.").replace("~", "%7E")


def desanitised(text: str) -> str:
    """Inverse of :func:`sanitised`; raises ValueError where the bytes are no UTF-8."""
    return unquote_to_bytes(text).decode()


# ---------------------------------------------------------------- documents


def dump_document(document: Mapping[str, Any]) -> bytes:
    """Compact JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def load_document(path: str, data: bytes) -> dict[str, Any]:
    """Raises BadZnode where the bytes are no JSON object."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise BadZnode(path, f"not JSON ({problem})") from problem
    if not isinstance(document, dict):
        raise BadZnode(path, "not a JSON object")
    return document


@dataclass(frozen=True, slots=True)
class TopicZnode:
    """``/brokers/topics/<t>``: ``assignment[i]`` is the replica list of partition i.

    ``adding`` and ``removing`` (by partition, only where not empty) are the replicas that a reassignment in progress
    adds and removes; the assignment contains both until it completes (KIP-455).
    """

    id: uuid.UUID
    assignment: tuple[tuple[BrokerId, ...], ...]
    adding: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)


def encode_topic(topic: TopicZnode) -> bytes:
    """JSON version 3."""
    return dump_document(
        {
            "version": 3,
            "topic_id": id_text(topic.id),
            "partitions": {str(index): list(replicas) for index, replicas in enumerate(topic.assignment)},
            "adding_replicas": _by_index(topic.adding),
            "removing_replicas": _by_index(topic.removing),
        }
    )


def _by_index(replicas: Mapping[int, tuple[BrokerId, ...]]) -> dict[str, list[BrokerId]]:
    return {str(index): list(ids) for index, ids in sorted(replicas.items()) if ids}


def _replica_lists(document: Mapping[str, Any] | None) -> dict[int, tuple[BrokerId, ...]]:
    return {int(index): tuple(BrokerId(int(b)) for b in ids) for index, ids in (document or {}).items() if ids}


def decode_topic(path: str, data: bytes) -> TopicZnode:
    """Raises BadZnode, also where partitions aren't numbered from 0 without gaps."""
    document = load_document(path, data)
    try:
        partitions = {int(index): replicas for index, replicas in document["partitions"].items()}
        assignment = tuple(tuple(BrokerId(int(b)) for b in partitions[i]) for i in range(len(partitions)))
        return TopicZnode(
            topic_id_from(document["topic_id"]),
            assignment,
            _replica_lists(document.get("adding_replicas")),
            _replica_lists(document.get("removing_replicas")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise BadZnode(path, f"not a topic of version 3 ({problem!r})") from problem


def _state_document(state: PartitionState) -> dict[str, Any]:
    document: dict[str, Any] = {
        "version": 1,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "controller_epoch": state.controller_epoch,
        "isr": list(state.isr),
        "leader_recovery_state": state.leader_recovery_state,
        "leader_incarnation": state.leader_incarnation,
        "isr_incarnations": list(state.isr_incarnations),
    }
    if state.elr:
        document["elr"] = list(state.elr)
        document["elr_incarnations"] = list(state.elr_incarnations)
    if state.last_known_leader != NO_LEADER:
        document["last_known_leader"] = state.last_known_leader
    if state.unclean_epoch >= 0:
        document["unclean_epoch"] = state.unclean_epoch
    return document


def encode_state(state: PartitionState) -> bytes:
    """JSON version 1; replicas and partition epoch are elsewhere (assignment, znode version)."""
    return dump_document(_state_document(state))


def _state_from(document: Mapping[str, Any], replicas: tuple[BrokerId, ...], partition_epoch: int) -> PartitionState:
    isr, incarnations = _members(document, "isr")
    elr, elr_incarnations = _members(document, "elr")
    return PartitionState(
        replicas=replicas,
        leader=int(document["leader"]),
        leader_epoch=int(document["leader_epoch"]),
        isr=isr,
        partition_epoch=partition_epoch,
        controller_epoch=int(document["controller_epoch"]),
        leader_incarnation=int(document.get("leader_incarnation", -1)),
        isr_incarnations=incarnations,
        leader_recovery_state=int(document.get("leader_recovery_state", 0)),
        elr=elr,
        elr_incarnations=elr_incarnations,
        last_known_leader=int(document.get("last_known_leader", NO_LEADER)),
        unclean_epoch=int(document.get("unclean_epoch", -1)),
    )


def _members(document: Mapping[str, Any], name: str) -> tuple[tuple[BrokerId, ...], tuple[int, ...]]:
    """A set of brokers with their incarnations; -1 for all if the writer named none."""
    members = tuple(BrokerId(int(b)) for b in (document["isr"] if name == "isr" else document.get(name, ())))
    incarnations = tuple(int(i) for i in document.get(f"{name}_incarnations", ()))
    return members, incarnations if len(incarnations) == len(members) else (-1,) * len(members)


def decode_state(path: str, data: bytes, replicas: tuple[BrokerId, ...], partition_epoch: int) -> PartitionState:
    """Raises BadZnode."""
    document = load_document(path, data)
    try:
        return _state_from(document, replicas, partition_epoch)
    except (KeyError, TypeError, ValueError) as problem:
        raise BadZnode(path, f"not a partition state of version 1 ({problem!r})") from problem


def encode_config(config: Mapping[str, str]) -> bytes:
    """JSON version 1; names sorted so that equal configurations are equal bytes."""
    return dump_document({"version": 1, "config": dict(sorted(config.items()))})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """Raises BadZnode."""
    config = load_document(path, data).get("config")
    if not isinstance(config, dict):
        raise BadZnode(path, "no config object")
    return {str(name): str(value) for name, value in config.items()}


def encode_delete_mark(topic_id: uuid.UUID) -> bytes:
    """Contains the topic id, so that a mark cannot delete a later topic of the same name (Kafka writes no data)."""
    return dump_document({"version": 1, "topic_id": id_text(topic_id)})


def decode_delete_mark(path: str, data: bytes) -> uuid.UUID:
    """The deleted topic's id; raises BadZnode."""
    try:
        return topic_id_from(str(load_document(path, data).get("topic_id")))
    except ValueError as problem:
        raise BadZnode(path, f"no topic id: {problem}") from problem


def encode_deleted_tier(topic: str, topic_id: uuid.UUID) -> bytes:
    """Names the folder in the bucket, too."""
    return dump_document({"version": 1, "topic": topic, "topic_id": id_text(topic_id)})


def decode_deleted_tier(path: str, data: bytes) -> tuple[str, uuid.UUID]:
    """Name and id of the deleted topic; raises BadZnode."""
    topic = load_document(path, data).get("topic")
    if not isinstance(topic, str) or not topic or "/" in topic:
        raise BadZnode(path, "no name of a topic")
    return topic, decode_delete_mark(path, data)


def decode_broker(path: str, data: bytes, czxid: int, incarnation: int) -> BrokerInfo:
    """A registration (JSON version 5); raises BadZnode. ``incarnation`` in the document overrides the argument."""
    document = load_document(path, data)
    try:
        protocols: Mapping[str, str] = document.get("listener_security_protocol_map") or {}
        endpoints = tuple(_endpoint(text, protocols) for text in document["endpoints"])
        rack, domain = document.get("rack"), document.get("failure_domain")
        return BrokerInfo(
            id=BrokerId(int(path.rpartition("/")[2])),
            epoch=czxid,
            incarnation=int(document.get("incarnation", incarnation)),
            endpoints=endpoints,
            rack=None if rack is None else str(rack),
            intact_since=int(document.get("intact_since", -1)),
            failure_domain=None if domain is None else str(domain),
            waives_leases=document.get("waives_leases") is True,
            tells_positions=document.get("tells_positions") is True,
            matches_ranges=document.get("matches_ranges") is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise BadZnode(path, f"not a broker registration of version 5 ({problem!r})") from problem


def _endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon:
        raise ValueError(f"endpoint {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return Endpoint(listener, host, int(port), protocols.get(listener, listener))


def encode_topic_ids(ids: Mapping[str, uuid.UUID]) -> bytes:
    """The content of :data:`REPAIR`, by the names of the topics."""
    return dump_document({"version": 1, "topics": {name: id_text(topic_id) for name, topic_id in ids.items()}})


def decode_topic_ids(path: str, data: bytes) -> dict[str, uuid.UUID]:
    """Inverse of :func:`encode_topic_ids`; raises BadZnode."""
    try:
        return {str(name): topic_id_from(text) for name, text in load_document(path, data)["topics"].items()}
    except (KeyError, ValueError, TypeError, AttributeError) as problem:
        raise BadZnode(path, f"not topic ids by name ({problem!r})") from problem


def decode_number(path: str, data: bytes) -> int:
    """A znode that is a number as text; raises BadZnode."""
    try:
        return int(data)
    except ValueError as problem:
        raise BadZnode(path, f"not a number: {data[:40]!r}") from problem


def decode_cluster_id(data: bytes) -> str:
    """The id in ``/cluster/id``; raises BadZnode."""
    value = load_document(CLUSTER_ID, data).get("id")
    if not isinstance(value, str) or not value:
        raise BadZnode(CLUSTER_ID, "no id")
    return value


def encode_features(levels: Mapping[str, int]) -> bytes:
    """The znode of finalized features, Kafka's JSON version 2."""
    features = {name: {"max_version_level": level} for name, level in levels.items()}
    return dump_document({"version": 2, "status": 1, "features": features})


def decode_features(data: bytes) -> dict[str, int]:
    """Finalized features: name to level; raises BadZnode."""
    features = load_document(FEATURE, data).get("features", {})
    try:
        return {str(name): int(levels["max_version_level"]) for name, levels in features.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise BadZnode(FEATURE, "not finalized features of version 2") from problem


def decode_controller(data: bytes) -> int:
    """The broker id in ``/controller``; raises BadZnode."""
    try:
        return int(load_document(CONTROLLER, data)["brokerid"])
    except (KeyError, TypeError, ValueError) as problem:
        raise BadZnode(CONTROLLER, "no brokerid") from problem


# ---------------------------------------------------------------- the change log


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A topic was created, extended or re-assigned; ``version`` is its znode's new version."""

    name: str
    topic: TopicZnode
    version: int


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic with this id is deleted, or its deletion is in progress: it must not be used any more."""

    name: str
    id: uuid.UUID


@dataclass(frozen=True, slots=True)
class StatesChanged:
    """New states of partitions of one topic; the versions are in the states (``partition_epoch``)."""

    name: str
    id: uuid.UUID
    states: Mapping[int, PartitionState]


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """The complete configuration of an entity; ``version`` -1: the znode was deleted."""

    kind: str
    entity: str
    version: int
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeaturesChanged:
    """The finalized features, all of them; ``version`` is their epoch."""

    version: int
    levels: Mapping[str, int]


Change = TopicChanged | TopicDeleted | StatesChanged | ConfigChanged | FeaturesChanged


def encode_changes(changes: Sequence[Change], origin: str = "") -> bytes:
    """One entry of the change log. ``origin`` names the writer."""
    return dump_document({"version": 1, "origin": origin, "changes": [_change_document(change) for change in changes]})


def _change_document(change: Change) -> dict[str, Any]:
    match change:
        case TopicChanged(name, topic, version):
            return {
                "topic": name,
                "id": id_text(topic.id),
                "version": version,
                "assignment": [list(replicas) for replicas in topic.assignment],
                "adding": _by_index(topic.adding),
                "removing": _by_index(topic.removing),
            }
        case TopicDeleted(name, topic_id):
            return {"deleted": name, "id": id_text(topic_id)}
        case StatesChanged(name, topic_id, states):
            return {
                "states": name,
                "id": id_text(topic_id),
                "partitions": [
                    [index, state.partition_epoch, list(state.replicas), _state_document(state)]
                    for index, state in sorted(states.items())
                ],
            }
        case ConfigChanged(kind, entity, version, config):
            return {"config": kind, "entity": entity, "version": version, "values": dict(config)}
        case FeaturesChanged(version, levels):
            return {"features": dict(levels), "version": version}


def decode_changes(path: str, data: bytes) -> list[Change]:
    """Raises BadZnode, also for unknown kinds of changes; the reader then reloads everything."""
    document = load_document(path, data)
    try:
        return [_change_from(part) for part in document["changes"]]
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise BadZnode(path, f"not a change-log entry of version 1 ({problem!r})") from problem


def _change_from(part: Mapping[str, Any]) -> Change:
    if "topic" in part:
        assignment = tuple(tuple(BrokerId(int(b)) for b in replicas) for replicas in part["assignment"])
        znode = TopicZnode(
            topic_id_from(part["id"]),
            assignment,
            _replica_lists(part.get("adding")),
            _replica_lists(part.get("removing")),
        )
        return TopicChanged(str(part["topic"]), znode, int(part["version"]))
    if "deleted" in part:
        return TopicDeleted(str(part["deleted"]), topic_id_from(part["id"]))
    if "states" in part:
        states = {
            int(index): _state_from(document, tuple(BrokerId(int(b)) for b in replicas), int(version))
            for index, version, replicas, document in part["partitions"]
        }
        return StatesChanged(str(part["states"]), topic_id_from(part["id"]), states)
    if "config" in part:
        values = {str(name): str(value) for name, value in part["values"].items()}
        return ConfigChanged(str(part["config"]), str(part["entity"]), int(part["version"]), values)
    if "features" in part:
        return FeaturesChanged(int(part["version"]), {str(name): int(lv) for name, lv in part["features"].items()})
    raise ValueError(f"unknown change {sorted(part)}")
