"""What a fleet has stored, as far as requests can change it: to be compared before and after."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import fleetlog.wire.messages as m
from tests.support.fleet import Fleet
from tests.support.harness import Client

LOG_DIRS, OFFSET_FETCH = 35, 9
_ZOOKEEPERS_OWN = "/zookeeper"
_QUIET_S, _QUIET_WITHIN_S = 1.0, 30.0


class Footprint(NamedTuple):
    """``znodes``: (version, mzxid) by path, without ephemeral ones. ``logs``: bytes by (broker, topic, partition).

    ``offsets``: what a group has committed, by (topic, partition).
    """

    znodes: dict[str, tuple[int, int]]
    logs: dict[tuple[int, str, int], int]
    offsets: dict[tuple[str, int], int]


def footprint_of(fleet: Fleet, group: str) -> Footprint:
    """As it is now. The client of 127.0.0.1 may describe the cluster and the group."""
    return Footprint(_znodes(fleet.zookeeper_connect), _logs(fleet), _offsets(fleet, group))


def settled(fleet: Fleet, group: str) -> Footprint:
    """The footprint once nothing moves any more."""
    until = time.monotonic() + _QUIET_WITHIN_S
    before = footprint_of(fleet, group)
    while True:
        time.sleep(_QUIET_S)
        now = footprint_of(fleet, group)
        if now == before:
            return now
        assert time.monotonic() < until, "the fleet goes on writing by itself"
        before = now


def _znodes(address: str) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    client = KazooClient(address)
    client.start()
    try:
        paths = ["/"]
        while paths:
            path = paths.pop()
            try:
                children, stat = client.get_children(path, include_data=True)
            except NoNodeError:
                continue
            if not stat.ephemeralOwner:
                found[path] = (stat.version, stat.mzxid)
            below = [f"{path.rstrip('/')}/{child}" for child in children]
            paths += [one for one in below if one != _ZOOKEEPERS_OWN]
    finally:
        client.stop()
        client.close()
    return found


def _logs(fleet: Fleet) -> dict[tuple[int, str, int], int]:
    found: dict[tuple[int, str, int], int] = {}
    request = m.request_class(LOG_DIRS)(version=4, topics=None)
    for broker in fleet.brokers:
        answer = _asked(broker.port, request, 4)
        assert answer.error_code == 0, answer
        for result in answer.results:
            for topic in result.topics:
                for part in topic.partitions:
                    found[broker.id, topic.name, part.partition_index] = part.partition_size
    return found


def _offsets(fleet: Fleet, group: str) -> dict[tuple[str, int], int]:
    """Of the broker that coordinates the group: the others say that they do not."""
    kind = m.request_class(OFFSET_FETCH)
    for broker in fleet.brokers:
        request = kind(version=8, groups=[kind.OffsetFetchRequestGroup(version=8, group_id=group, topics=None)])
        (row,) = _asked(broker.port, request, 8).groups
        if row.error_code == 0:
            return {
                (topic.name, part.partition_index): part.committed_offset
                for topic in row.topics
                for part in topic.partitions
            }
    raise AssertionError(f"no broker coordinates {group}")


def _asked(port: int, request: Any, version: int) -> Any:
    client = Client(port, "127.0.0.1")
    try:
        return client.ask(request, version)
    finally:
        client.close()
