"""``fleetlog transactions``: list, describe, fence, and the producers of a partition (KIP-664)."""

from __future__ import annotations

import time
from typing import Any

import click

from fleetlog.brokers.cli.admin_client import COORDINATOR_MOVES
from fleetlog.brokers.cli.client import (
    PartitionsOf,
    Target,
    admin,
    client_options,
    named_partitions,
    raise_for_code,
    topic_partitions,
)
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.output import CliError, Output, confirm, iso, table, visible
from fleetlog.brokers.cli.times import DurationType
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import request_class

INIT_PRODUCER_ID = 22
FENCED_MS = 60_000
"""The transaction timeout of a fenced id, until its next producer says its own."""
_STILL_OPEN = COORDINATOR_MOVES | {ErrorCode.CONCURRENT_TRANSACTIONS}

STATES = ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence"]


@click.group(cls=CommandGroup)
def transactions() -> None:
    """Transactions: list, describe, fence, producers."""


@transactions.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only transactions in this state.",
)
@click.option("--producer-id", "producer_ids", multiple=True, type=int, help="Only of this producer.")
@click.option("--longer-than", type=DurationType(), metavar="SPAN", help="Only open for longer than 90s, 1h30m, ...")
@click.option("--pattern", help="Only transactional ids that match this regular expression.")
@client_options
def list_transactions(
    *,
    target: Target,
    out: Output,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than: int | None,
    pattern: str | None,
) -> None:
    """List transactional ids, their coordinators and states."""
    with admin(target) as client:
        listed = client.list_transactions(
            producer_id_filters=producer_ids,
            state_filters=states,
            duration_filter_ms=longer_than,
            transactional_id_pattern=pattern,
        )
    rows = [
        [one.transactional_id, broker_id, one.producer_id, one.state.value]
        for broker_id, of_broker in listed.items()
        for one in of_broker
    ]
    out.rows(["transactional id", "coordinator", "producer id", "state"], sorted(rows))


@transactions.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@client_options
def describe_transactions(target: Target, out: Output, names: tuple[str, ...]) -> None:
    """Show the state of transactions and the partitions they have written to."""
    described = []
    for name in names:
        with admin(target, f"transactional id {name}") as client:
            description = client.describe_transactions([name])[name]
        described.append(_description(name, description))
    if out.as_json:
        out.value(described)
        return
    columns = [column for column in described[0] if column != "partitions"]
    table([c.replace("_", " ") for c in columns], [[one[c] for c in columns] for one in described])
    for one in described:
        if one["partitions"]:
            click.echo(visible(f"{one['transactional_id']} has written to {', '.join(one['partitions'])}"))


def _description(name: str, found: Any) -> dict[str, Any]:
    start_ms = found.transaction_start_time_ms
    open_for = round(time.time() - start_ms / 1000, 1) if start_ms >= 0 else None
    return {
        "transactional_id": name,
        "coordinator": found.coordinator_id,
        "producer_id": found.producer_id,
        "epoch": found.producer_epoch,
        "state": found.state.value,
        "timeout_ms": found.transaction_timeout_ms,
        "started": iso(start_ms),
        "open_s": open_for,
        "partitions": [f"{tp.topic}:{tp.partition}" for tp in sorted(found.topic_partitions)],
    }


@transactions.command("fence")
@click.argument("name", metavar="TRANSACTIONAL_ID")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@client_options
def fence_transaction(target: Target, out: Output, name: str, yes: bool) -> None:
    """Abort the open transaction of TRANSACTIONAL_ID, and fence its producer: its next request fails.

    For a producer that hangs. One that is alive stops with an error, and its application must start it again.
    """
    with admin(target, f"transactional id {name}") as client:
        before = client.describe_transactions([name])[name]
        confirm(f"{name} is {before.state.value}. Abort what is open and fence its producer?", yes)
        request = request_class(INIT_PRODUCER_ID)(
            transactional_id=name, transaction_timeout_ms=FENCED_MS, max_version=4
        )
        answer = client.ask_coordinator(name, request, target.timeout_s, again=_STILL_OPEN)
    if answer is None:
        raise CliError(f"transactional id {name}: its coordinator does not answer; try again in a moment")
    raise_for_code(f"transactional id {name}", answer.error_code)
    state = before.state.value
    out.done(
        f"{name} was {state}; its producer is fenced",
        {"transactional_id": name, "state_before": state, "epoch": answer.producer_epoch},
    )


@transactions.command("producers")
@click.argument("wanted", nargs=-1, required=True, callback=topic_partitions, metavar="TOPIC[:P,...]...")
@click.option("--open", "only_open", is_flag=True, help="Only producers inside a transaction.")
@client_options
def list_producers(target: Target, out: Output, wanted: list[PartitionsOf], only_open: bool) -> None:
    """Show the producers in the partitions' state, and the first offsets of their open transactions."""
    with admin(target) as client:
        described = client.describe_producers(named_partitions(client, wanted))
    rows = [
        [
            tp.topic,
            tp.partition,
            p.producer_id,
            p.producer_epoch,
            p.last_sequence,
            iso(p.last_timestamp),
            p.current_transaction_start_offset if p.current_transaction_start_offset >= 0 else None,
        ]
        for tp in sorted(described)
        for p in described[tp].active_producers
        if not only_open or p.current_transaction_start_offset >= 0
    ]
    columns = ["topic", "partition", "producer id", "epoch", "last sequence", "last write", "transaction from"]
    out.rows(columns, rows)
