"""Offsets of share groups over real logs: described, altered, deleted, refused; and what nobody may meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import GROUP, Access
from fleetlog.brokers.coordinators.lags import LagWatch
from fleetlog.brokers.coordinators.share_offsets import unfinished
from fleetlog.brokers.groups.lag import LogPosition
from fleetlog.brokers.shares.coordinator import StateAnswer
from fleetlog.brokers.shares.state import ShareKey, ShareState
from fleetlog.wire.errors import ErrorCode as E
from tests.support.clocks import ManualClock
from tests.support.coordinator_broker import Broker
from tests.support.share_members import KEY, TOPIC, Member, beats, served
from tests.support.stage import ME

DESCRIBE, ALTER, DELETE, DELETE_GROUPS = 90, 91, 92, 42
JOINS, LEAVES = 0, -1


async def described(broker: Broker, *indexes: int, group: str = "g", topic: str = "t", version: int = 1) -> Any:
    """The group's row; of all its partitions without indexes."""
    kind = m.DescribeShareGroupOffsetsRequest
    inner = kind.DescribeShareGroupOffsetsRequestGroup
    named = inner.DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=list(indexes))
    request = kind(version=version, groups=[inner(group_id=group, topics=[named] if indexes else None)])
    return (await broker.call(DESCRIBE, version, request)).groups[0]


async def offsets(broker: Broker, *indexes: int, **said: Any) -> list[tuple[int, int, int]]:
    """Partition, start and lag."""
    group = await described(broker, *indexes, **said)
    assert group.error_code == 0, group
    return [(row.partition_index, row.start_offset, row.lag) for topic in group.topics for row in topic.partitions]


async def alter(broker: Broker, starts: dict[int, int], group: str = "g", topic: str = "t") -> Any:
    kind = m.AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    part = kind.AlterShareGroupOffsetsRequestPartition
    rows = [part(partition_index=index, start_offset=start) for index, start in starts.items()]
    topics = [kind(topic_name=topic, partitions=rows)]
    return await broker.call(
        ALTER, 0, m.AlterShareGroupOffsetsRequest(version=0, group_id=group, topics=topics)
    )  # fmt: skip


async def altered(broker: Broker, starts: dict[int, int], **said: Any) -> dict[int, int]:
    answer = await alter(broker, starts, **said)
    assert answer.error_code == 0, answer
    return {row.partition_index: row.error_code for topic in answer.responses for row in topic.partitions}


async def forgotten(broker: Broker, *topics: str, group: str = "g") -> tuple[int, dict[str, int]]:
    kind = m.DeleteShareGroupOffsetsRequest
    rows = [kind.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    answer = await broker.call(DELETE, 0, kind(version=0, group_id=group, topics=rows))
    return answer.error_code, {row.topic_name: row.error_code for row in answer.responses}


async def read_some(broker: Broker) -> None:
    """Five records, of which the first two and the last one are finished; the member has left."""
    assert await beats(broker, JOINS) == 0
    broker.append("t", 5)
    one = Member(broker)
    assert await one.taken(0) == [(0, 4, 1)]
    assert await one.said(0, 1, 1) == 0
    assert await one.said(4, 4, 3) == 0
    assert await one.said(2, 2, 2, epoch=-1) == 0
    assert await beats(broker, LEAVES) == 0


def test_start_and_lag(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await read_some(broker)
        assert await offsets(broker) == [(0, 2, 2), (1, -1, -1)], "two records of five are not finished"
        assert await offsets(broker, 0, 0, version=0) == [(0, 2, -1)], "version 0 has no lag"
        broker.append("t", 3)
        assert await offsets(broker, 0, 7) == [(0, 2, 5), (7, -1, -1)]
        assert await offsets(broker, 0, topic="other") == [(0, -1, -1)]

    served(tmp_path, story)


def test_where_the_log_begins_later_its_records_are_what_is_left() -> None:
    state = ShareState(start=10, complete=3)
    assert unfinished(state, LogPosition(0, 20, 20)) == 7
    assert unfinished(state, LogPosition(18, 20, 20)) == 2
    assert unfinished(state, LogPosition(20, 20, 20)) == 0
    assert unfinished(state, None) == -1
    assert unfinished(ShareState(), LogPosition(0, 20, 20)) == -1


def test_a_group_begins_where_it_is_told(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await read_some(broker)
        assert await altered(broker, {0: 1, 1: 0, 5: 0, -1: 0}) == {
            0: 0, 1: 0, 5: E.UNKNOWN_TOPIC_OR_PARTITION, -1: E.UNKNOWN_TOPIC_OR_PARTITION
        }  # fmt: skip
        assert await offsets(broker) == [(0, 1, 4), (1, 0, 0)]
        two = Member(broker, "two")
        assert await two.taken(0) == [(1, 4, 1)], "also what was finished"
        assert await altered(broker, {0: -5}) == {0: E.INVALID_REQUEST}
        assert await altered(broker, {0: 0}, topic="other") == {0: E.UNKNOWN_TOPIC_OR_PARTITION}
        assert await altered(broker, {0: 0}, topic="__consumer_offsets") == {0: E.INVALID_REQUEST}

    served(tmp_path, story)


def test_a_leader_of_before_the_reset_gives_out_nothing_that_counts(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        broker.append("t", 3)
        await beats(broker, JOINS)
        await beats(broker, LEAVES)
        one = Member(broker)
        assert await one.taken(0) == [(0, 2, 1)], "a member that has left still has its session"
        assert await altered(broker, {0: 2}) == {0: 0}
        assert await one.said(0, 0, 1) == E.FENCED_STATE_EPOCH
        assert await one.taken() == [(2, 2, 1)]

    served(tmp_path, story)


def test_what_a_group_has_of_a_topic_is_forgotten(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await read_some(broker)
        assert await forgotten(broker, "t", "other") == (0, {"t": 0, "other": E.UNKNOWN_TOPIC_OR_PARTITION})
        assert (await described(broker)).topics == []
        assert states_of(broker) == set()
        assert await forgotten(broker, "t") == (0, {"t": 0}), "asked again"
        assert await beats(broker, JOINS) == 0
        assert await Member(broker, "two").taken(0) == [(0, 4, 1)], "it begins anew"

    served(tmp_path, story)


def states_of(broker: Broker) -> set[ShareKey]:
    return {key for shard in broker.services.share_states.shards() for key in shard.states}


def test_groups_that_have_members_or_are_none(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        assert (await described(broker, group="none")).error_code == E.GROUP_ID_NOT_FOUND
        assert (await alter(broker, {0: 0}, group="none")).error_code == E.GROUP_ID_NOT_FOUND
        assert (await forgotten(broker, "t", group="none"))[0] == E.GROUP_ID_NOT_FOUND
        assert await beats(broker, JOINS) == 0
        assert (await alter(broker, {0: 0})).error_code == E.NON_EMPTY_GROUP
        assert (await forgotten(broker, "t"))[0] == E.NON_EMPTY_GROUP
        broker.metadata.features = {}
        assert (await described(broker)).error_code == E.UNSUPPORTED_VERSION
        assert (await alter(broker, {0: 0})).error_code == E.UNSUPPORTED_VERSION
        assert (await forgotten(broker, "t"))[0] == E.UNSUPPORTED_VERSION

    served(tmp_path, story)


def test_rights(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await read_some(broker)

        def permit(*kinds: Any) -> None:
            some = SimpleNamespace(allows=lambda who, host, what, kind, name: kind in kinds, verdicts={})
            broker.services.access = Access(some)  # type: ignore[arg-type]

        permit()
        assert (await described(broker)).error_code == E.GROUP_AUTHORIZATION_FAILED
        assert (await alter(broker, {0: 0})).error_code == E.GROUP_AUTHORIZATION_FAILED
        assert (await forgotten(broker, "t"))[0] == E.GROUP_AUTHORIZATION_FAILED
        permit(GROUP)
        assert (await described(broker)).topics == [], "topics that it may not see are left out"
        assert (await described(broker, 0)).topics[0].partitions[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
        assert await altered(broker, {0: 0}) == {0: E.TOPIC_AUTHORIZATION_FAILED}
        assert await forgotten(broker, "t") == (0, {"t": E.TOPIC_AUTHORIZATION_FAILED})
        broker.services.access = Access()
        assert await offsets(broker, 0) == [(0, 2, 2)], "nothing has changed"

    served(tmp_path, story)


def test_nobody_joins_while_offsets_are_changed(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await read_some(broker)
        states = broker.services.share_partitions.states
        initialize, joined = states.initialize, []

        async def meanwhile(*asked: Any) -> Any:
            joined.append(await beats(broker, JOINS))
            joined.append((await alter(broker, {0: 0})).error_code)
            return await initialize(*asked)

        states.initialize = meanwhile
        assert await altered(broker, {0: 0}) == {0: 0}
        assert joined == [E.COORDINATOR_NOT_AVAILABLE] * 2
        assert await beats(broker, JOINS) == 0, "and afterwards"

    served(tmp_path, story)


def test_a_group_that_is_deleted_loses_no_states_to_a_member_that_joins(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await read_some(broker)
        states = broker.services.share_partitions.states
        delete, joined = states.delete, []

        async def meanwhile(key: ShareKey) -> Any:
            joined.append(await beats(broker, JOINS))
            return await delete(key)

        states.delete = meanwhile
        request = m.DeleteGroupsRequest(version=2, groups_names=["g"])
        assert (await broker.call(DELETE_GROUPS, 2, request)).results[0].error_code == 0
        assert set(joined) == {E.COORDINATOR_NOT_AVAILABLE}
        assert states_of(broker) == set()
        assert (await described(broker)).error_code == E.GROUP_ID_NOT_FOUND
        assert await beats(broker, JOINS) == 0, "a later group of the name"
        answer = await broker.call(DELETE_GROUPS, 2, request)
        assert answer.results[0].error_code == E.NON_EMPTY_GROUP
        assert not joined[2:]

    served(tmp_path, story)


def test_lag_of_share_groups_is_computed_as_that_of_others(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await read_some(broker)
        await broker.services.lags.round()
        lag = broker.services.lags.groups["g"]
        assert {tp.partition: (one.committed, one.records) for tp, one in lag.partitions.items()} == {0: (2, 2)}
        assert (lag.state, lag.protocol_type) == ("Empty", "share")
        answer = await broker.call(m.DescribeLagRequest.API_KEY, 0, m.DescribeLagRequest(version=0, group_ids=["g"]))
        assert answer.groups[0].topics[0].partitions[0].lag == 2
        broker.append("t", 4)
        await broker.services.lags.round()
        assert [one.records for one in broker.services.lags.groups["g"].partitions.values()] == [6]

    served(tmp_path, story)


def test_the_topic_id_is_told(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await read_some(broker)
        assert (await described(broker)).topics[0].topic_id == TOPIC
        assert states_of(broker) == {KEY}

    served(tmp_path, story)


def test_lag_asks_for_the_states_of_a_group_at_rest_once_a_minute_and_when_they_were_changed(tmp_path: Path) -> None:
    clock = ManualClock()
    asked: list[set[ShareKey]] = []
    error = E.COORDINATOR_LOAD_IN_PROGRESS

    class Shares:
        changed: ClassVar[set[str]] = set()

        async def summaries(self, keys: Iterable[ShareKey]) -> dict[ShareKey, StateAnswer]:
            asked.append(set(keys))
            return {key: StateAnswer(error, ShareState(start=0, complete=0)) for key in asked[-1]}

    async def story(broker: Broker) -> None:
        nonlocal error
        services, both = broker.services, {KEY, KEY._replace(partition=1)}
        peers, shares = SimpleNamespace(), Shares()
        watch = LagWatch(ME, 5_000, services.groups, broker.metadata, broker.replicas, peers, clock, shares)  # type: ignore[arg-type]

        async def round_(after_ms: int = 5_000) -> set[ShareKey]:
            clock.now_ms += after_ms
            asked.clear()
            await watch.round()
            return asked[0] if asked else set()

        assert await round_() == both
        error = E.NONE
        assert await round_() == both, "nobody had answered"
        assert await round_() == set()
        assert {tp.partition for tp in watch.groups["g"].partitions} == {0, 1}
        shares.changed.add("g")
        assert await round_() == both
        assert await round_() == set()
        assert await round_(60_000) == both
        assert await beats(broker, JOINS) == 0
        assert [await round_(), await round_()] == [both, both]
        assert await beats(broker, LEAVES) == 0
        assert [await round_(), await round_()] == [both, set()]

    served(tmp_path, story)
