"""``fleetlog sinks``: exactly-once sinks and their fences (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from brokers.cli.admin_client import Admin
from brokers.cli.client import Target, admin, check, client_options
from brokers.cli.output import CliError, Output, iso
from wire.errors import ErrorCode
from wire.messages import request_class

FIND_COORDINATOR, TRANSACTION = 10, 1
DESCRIBE_SINKS, RESET_SINK = 12006, 12007


@click.group()
def sinks() -> None:
    """Exactly-once sinks: list, describe, reset."""


@sinks.command("list")
@client_options
def list_sinks(target: Target, out: Output) -> None:
    """List all sinks with the batch that each committed last."""
    with admin(target) as client:
        brokers = sorted(broker.node_id for broker in client._manager.cluster.brokers())
        asked = [(broker_id, request_class(DESCRIBE_SINKS)(sink_ids=None)) for broker_id in brokers]
        answers = client.ask_all(asked, target.timeout_s)
    rows = []
    for broker_id, answer in zip(brokers, answers, strict=True):
        if answer is None:
            raise CliError(f"broker {broker_id} did not answer: the list would not be whole; try again")
        check(f"broker {broker_id}", answer.error_code, answer.error_message)
        rows += [[one.sink_id, broker_id, one.state, *_fence(one.fence)] for one in answer.sinks]
    out.rows(["sink", "coordinator", "state", "query", "batch", "committed"], sorted(rows))


@sinks.command()
@click.argument("names", nargs=-1, required=True, metavar="SINK...")
@client_options
def describe(target: Target, out: Output, names: tuple[str, ...]) -> None:
    """Show what sinks are doing: members and partitions of the open batch, and the fence."""
    rows = []
    with admin(target) as client:
        for name in names:
            answer = _ask(client, target, name, request_class(DESCRIBE_SINKS)(sink_ids=[name]))
            check(f"sink {name}", answer.error_code, answer.error_message)
            (one,) = answer.sinks
            check(f"sink {name}", one.error_code)
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


@sinks.command()
@click.argument("name", metavar="SINK")
@click.argument("replaces", metavar="QUERY_ID")
@click.option("--query", metavar="QUERY_ID", help="Whose fence it is from now on; without it there is none.")
@click.option("--batch", type=click.IntRange(0), help="The last batch of that query that counts as committed.")
@client_options
def reset(target: Target, out: Output, name: str, replaces: str, query: str | None, batch: int | None) -> None:
    """Move a sink's fence, so that a query with a new checkpoint may write. QUERY_ID is the one it holds now.

    Stop the query first. Without --query the fence is taken away, and the next query begins with its batch 0; one that
    goes on with a checkpoint says fence.onMissing=adopt. What an older query wrote is not looked for.
    """
    if (query is None) != (batch is None):
        raise CliError("--query and --batch go together")
    request = request_class(RESET_SINK)(
        sink_id=name, expected_query_id=replaces, query_id=query, batch_id=-1 if batch is None else batch
    )
    with admin(target) as client:
        answer = _ask(client, target, name, request)
    check(f"sink {name}", answer.error_code, answer.error_message)
    out.rows(["sink", "query", "batch", "committed"], [[name, *_fence(answer.fence)]])


def _ask(client: Admin, target: Target, name: str, request: Any) -> Any:
    """The answer of the sink's coordinator."""
    kind = request_class(FIND_COORDINATOR)
    brokers = sorted(broker.node_id for broker in client._manager.cluster.brokers())
    find = kind(key_type=TRANSACTION, key=name, coordinator_keys=[name], min_version=4)
    for found in client.ask_all([(broker_id, find) for broker_id in brokers], target.timeout_s):
        coordinator = found.coordinators[0] if found is not None else None
        if coordinator is not None and coordinator.error_code == ErrorCode.NONE:
            (answer,) = client.ask_all([(coordinator.node_id, request)], target.timeout_s)
            if answer is not None:
                return answer
    raise CliError(f"sink {name}: its coordinator does not answer; try again in a moment")


def _fence(fence: Any) -> Sequence[Any]:
    return [None, None, None] if fence is None else [fence.query_id, fence.batch_id, iso(fence.committed_ms)]
