"""What the leaders of share partitions ask the share coordinator (KIP-932, keys 83 to 87): states, read and persisted.

Not advertised: brokers know it of each other by ``share.version``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import CLUSTER_ACTION_CLUSTER
from fleetlog.brokers.api.base import Context, Done, Outcome
from fleetlog.brokers.api.changes import changes_of_brokers
from fleetlog.brokers.api.rows import Cost, Recorded, Row
from fleetlog.brokers.api.share_groups import shares_served
from fleetlog.brokers.api.waiting import JoinedResponse
from fleetlog.brokers.coordinators.share_states import Within
from fleetlog.brokers.shares.coordinator import ShareShard, ShareWrite, StateAnswer, coordinator_key
from fleetlog.brokers.shares.state import RecordState, ShareKey, StateBatch
from fleetlog.txn.commands import CommandFailed, Now, Result, Ticket
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)

ANSWER_MS = 8_000
Rendered = Callable[[StateAnswer], dict[str, Any]]


Command = Callable[[ShareShard, Now, Ticket], Result]


class Asked(NamedTuple):
    """One share partition of a request; None for one that cannot be."""

    topic_id: Any
    row: Any
    key: ShareKey | None


def _asked(request: Any) -> Iterator[Asked]:
    for topic in request.topics:
        for row in topic.partitions:
            fits = topic.topic_id is not None and row.partition >= 0 and request.group_id
            key = ShareKey(request.group_id, topic.topic_id.bytes, row.partition) if fits else None
            yield Asked(topic.topic_id, row, key)


def _answered(
    request: Any, context: Context, command: Callable[[ShareKey, Any], Command | ShareWrite | None], response: Any,
    result: Any, render: Rendered, within: Within | None = None,
) -> Outcome:  # fmt: skip
    """Ask the shards, and answer when all have. ``command`` of a share partition and its row: None if it cannot be.

    With ``within`` it is what is to be written in that transaction.
    """
    services, asked = context.services, list(_asked(request))
    error = context.refusal(*CLUSTER_ACTION_CLUSTER)
    if error is ErrorCode.NONE and (not shares_served(context) or services.share_states is None):
        error = ErrorCode.UNSUPPORTED_VERSION

    def rows(answers: list[StateAnswer | CommandFailed]) -> Any:
        topics: dict[Any, list[Any]] = {}
        for one, answer in zip(asked, answers, strict=True):
            if isinstance(answer, CommandFailed):
                answer = StateAnswer(answer.error)
            row = result.PartitionResult(
                partition=one.row.partition,
                error_code=int(answer.error),
                error_message=answer.message,
                **render(answer),
            )
            topics.setdefault(one.topic_id, []).append(row)
        results = [result(topic_id=topic_id, partitions=some) for topic_id, some in topics.items()]
        return response(version=context.api_version, results=results)

    if error is not ErrorCode.NONE:
        return Done(rows([CommandFailed(error) for _ in asked]))
    late: list[StateAnswer | CommandFailed] = [CommandFailed(ErrorCode.COORDINATOR_NOT_AVAILABLE) for _ in asked]
    joined, runtime = JoinedResponse(late, rows, ANSWER_MS), services.share_states
    assert runtime is not None, "it was asked for"
    for index, one in enumerate(asked):
        work = command(one.key, one.row) if one.key is not None else None
        if one.key is None or work is None:
            joined.take(index, StateAnswer(ErrorCode.INVALID_REQUEST))
            continue
        if isinstance(work, ShareWrite):
            shares = services.share_partitions
            assert shares is not None, "it was asked for"
            assert within is not None, "else it is a command"
            shares.run(_taken(shares.states.write_here(work, within), partial(joined.take, index)), one.key)
            continue
        runtime.submit(coordinator_key(one.key), work).on_done(partial(joined.take, index))
    return joined.outcome()


async def _taken(work: Awaitable[StateAnswer], take: Callable[[StateAnswer], None]) -> None:
    answer = StateAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    try:
        async with asyncio.timeout(ANSWER_MS / 1000):
            answer = await work
    except TimeoutError:
        pass  # it may be written all the same: the transaction decides
    finally:
        take(answer)


def _nothing(answer: StateAnswer) -> dict[str, Any]:
    return {}


@Row(
    api_keys.INITIALIZE_SHARE_GROUP_STATE, (CLUSTER_ACTION_CLUSTER,), Recorded(changes_of_brokers), brokers_from=0
)  # fmt: skip
def handle_initialize_share_group_state(request: InitializeShareGroupStateRequest, context: Context) -> Outcome:
    """InitializeShareGroupState v0: a new state epoch with its start."""

    def command(key: ShareKey, row: Any) -> Command:
        return lambda shard, now, ticket: shard.initialize(key, row.state_epoch, row.start_offset, now, ticket)

    kind = m.InitializeShareGroupStateResponse
    return _answered(request, context, command, kind, kind.InitializeStateResult, _nothing)


@Row(api_keys.READ_SHARE_GROUP_STATE, (CLUSTER_ACTION_CLUSTER,), Recorded(changes_of_brokers), brokers_from=0)
def handle_read_share_group_state(request: ReadShareGroupStateRequest, context: Context) -> Outcome:
    """ReadShareGroupState v0: the state, for the leader of an epoch; earlier ones are fenced."""

    def command(key: ShareKey, row: Any) -> Command:
        return lambda shard, now, ticket: shard.read(key, row.leader_epoch, now, ticket)

    kind = m.ReadShareGroupStateResponse
    result = kind.ReadStateResult

    def render(answer: StateAnswer) -> dict[str, Any]:
        state = answer.state
        batches = [
            result.PartitionResult.StateBatch(
                first_offset=first, last_offset=last, delivery_state=int(persisted), delivery_count=count
            )
            for first, last, persisted, count in state.batches
        ]
        return {"state_epoch": state.state_epoch, "start_offset": state.start, "state_batches": batches}

    return _answered(request, context, command, kind, result, render)


@Row(api_keys.WRITE_SHARE_GROUP_STATE, (CLUSTER_ACTION_CLUSTER,), Recorded(changes_of_brokers), brokers_from=0)
def handle_write_share_group_state(request: WriteShareGroupStateRequest, context: Context) -> Outcome:
    """WriteShareGroupState v0-v1: what has changed of a share partition; ours: in a transaction, with dead letters."""
    within: Within | None = None
    if context.api_version >= 1 and request.transactional_id:
        within = Within(request.transactional_id, (request.producer_id, request.producer_epoch))

    def command(key: ShareKey, row: Any) -> Command | ShareWrite | None:
        states = {int(state): state for state in RecordState}
        if any(batch.delivery_state not in states for batch in row.state_batches):
            return None
        batches = tuple(
            StateBatch(b.first_offset, b.last_offset, states[b.delivery_state], b.delivery_count)
            for b in row.state_batches
        )
        complete = row.delivery_complete_count if context.api_version >= 1 else -1
        write = ShareWrite(key, row.state_epoch, row.leader_epoch, row.start_offset, complete, batches)
        if within is not None:
            return write
        return lambda shard, now, ticket: shard.write(write, now, ticket)

    kind = m.WriteShareGroupStateResponse
    return _answered(request, context, command, kind, kind.WriteStateResult, _nothing, within)


@Row(api_keys.DELETE_SHARE_GROUP_STATE, (CLUSTER_ACTION_CLUSTER,), Recorded(changes_of_brokers), brokers_from=0)
def handle_delete_share_group_state(request: DeleteShareGroupStateRequest, context: Context) -> Outcome:
    """DeleteShareGroupState v0: the group or the topic is gone."""

    def command(key: ShareKey, row: Any) -> Command:
        return lambda shard, now, ticket: shard.delete(key, now, ticket)

    kind = m.DeleteShareGroupStateResponse
    return _answered(request, context, command, kind, kind.DeleteStateResult, _nothing)


@Row(
    api_keys.READ_SHARE_GROUP_STATE_SUMMARY, (CLUSTER_ACTION_CLUSTER,), Recorded(changes_of_brokers), cost=Cost.CHEAP,
    brokers_from=0,
)  # fmt: skip
def handle_read_share_group_state_summary(request: ReadShareGroupStateSummaryRequest, context: Context) -> Outcome:
    """ReadShareGroupStateSummary v0-v1: how far a group is, for those who do not lead the partition."""

    def command(key: ShareKey, row: Any) -> Command:
        return lambda shard, now, ticket: Result(response=StateAnswer(ErrorCode.NONE, shard.summary(key)))

    def render(answer: StateAnswer) -> dict[str, Any]:
        state = answer.state
        return {
            "state_epoch": state.state_epoch,
            "leader_epoch": state.leader_epoch,
            "start_offset": state.start,
            "delivery_complete_count": state.complete,
        }

    kind = m.ReadShareGroupStateSummaryResponse
    return _answered(request, context, command, kind, kind.ReadStateSummaryResult, render)
