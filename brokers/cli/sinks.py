"""``fleetlog sinks``: exactly-once sinks and their fences (docs/protocol.md)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from fleetlog.brokers.cli.admin_client import COORDINATOR_MOVES, PAUSE_S, AdminClient, error_codes
from fleetlog.brokers.cli.client import Target, admin, client_options, raise_for_code
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.output import CliError, Output, iso
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import Encodable


@click.group(cls=CommandGroup)
def sinks() -> None:
    """Exactly-once sinks: list, describe, reset."""


@sinks.command("list")
@client_options
def list_sinks(target: Target, out: Output) -> None:
    """List all sinks and the last committed batch of each."""
    with admin(target) as client:
        brokers = sorted(broker.node_id for broker in client._manager.cluster.brokers())
        asked = [(broker_id, messages.DescribeSinksRequest(sink_ids=None)) for broker_id in brokers]
        answers = _loaded(client, asked, target.timeout_s)
    rows = []
    for broker_id, answer in zip(brokers, answers, strict=True):
        if answer is None:
            raise CliError(f"broker {broker_id} did not answer: the list would be incomplete; try again")
        raise_for_code(f"broker {broker_id}", answer.error_code, answer.error_message)
        rows += [[one.sink_id, broker_id, one.state, *_fence(one.fence)] for one in answer.sinks]
    out.rows(["sink", "coordinator", "state", "query", "batch", "committed"], sorted(rows))


@sinks.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="SINK...")
@client_options
def describe_sinks(target: Target, out: Output, names: tuple[str, ...]) -> None:
    """Show the state of sinks: members and partitions of the open batch, and the fence."""
    rows = []
    with admin(target) as client:
        for name in names:
            answer = _ask(client, target, name, messages.DescribeSinksRequest(sink_ids=[name]))
            (one,) = answer.sinks
            raise_for_code(f"sink {name}", one.error_code)
            partitions = sum(len(topic.partitions) for topic in one.topics)
            since = iso(one.start_ms) if one.state == "Ongoing" else None
            rows.append(
                [
                    name,
                    one.state,
                    one.producer_id,
                    one.producer_epoch,
                    one.members,
                    partitions,
                    since,
                    *_fence(one.fence),
                ]
            )
    columns = ["sink", "state", "producer id", "epoch", "members", "partitions", "open since"]
    out.rows([*columns, "query", "batch", "committed"], rows)


@sinks.command("reset")
@click.argument("name", metavar="SINK")
@click.argument("replaces", metavar="QUERY_ID")
@click.option("--query", metavar="QUERY_ID", help="The query of the new fence; without it there is no fence.")
@click.option("--batch", type=click.IntRange(0), help="The last batch of that query that counts as committed.")
@client_options
def reset_sink(target: Target, out: Output, name: str, replaces: str, query: str | None, batch: int | None) -> None:
    """Move a sink's fence, so that a query with a new checkpoint may write. QUERY_ID is the one in the fence now.

    Stop the query first. Without --query the fence is removed, and the next query begins with its batch 0; one that
    continues from a checkpoint needs fence.onMissing=adopt. Records of an older query are not searched for.
    """
    if (query is None) != (batch is None):
        raise CliError("--query and --batch go together")
    request = messages.ResetSinkRequest(
        sink_id=name, expected_query_id=replaces, query_id=query, batch_id=-1 if batch is None else batch
    )
    with admin(target) as client:
        answer = _ask(client, target, name, request)
    out.rows(["sink", "query", "batch", "committed"], [[name, *_fence(answer.fence)]])


def _ask(client: AdminClient, target: Target, name: str, request: Encodable) -> Any:
    """The answer of the sink's coordinator. Raises CliError."""
    answer = client.ask_coordinator(name, request, target.timeout_s)
    if answer is None:
        raise CliError(f"sink {name}: its coordinator does not answer; try again in a moment")
    if ErrorCode.TRANSACTIONAL_ID_NOT_FOUND in error_codes(answer):
        raise CliError(f"sink {name}: there is no such sink; see `fleetlog sinks list` (TRANSACTIONAL_ID_NOT_FOUND)")
    raise_for_code(f"sink {name}", answer.error_code, answer.error_message)
    return answer


def _loaded(client: AdminClient, asked: Sequence[tuple[int, Encodable]], timeout_s: float) -> list[Any]:
    """The answers of coordinators that have loaded and do not move; the last ones at the deadline. None: no answer."""
    deadline = time.monotonic() + timeout_s
    while True:
        answers = client.ask_all(asked, timeout_s)
        moves = [one is not None and COORDINATOR_MOVES.intersection(error_codes(one)) for one in answers]
        if not any(moves) or time.monotonic() + PAUSE_S >= deadline:
            return answers
        time.sleep(PAUSE_S)


def _fence(fence: Any) -> Sequence[Any]:
    return [None, None, None] if fence is None else [fence.query_id, fence.batch_id, iso(fence.committed_ms)]
