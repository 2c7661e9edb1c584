"""``fleetlog brokers``: single brokers of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from brokers.cli.client import Target, admin, client_options, raise_for_code
from brokers.cli.options import pairs
from brokers.cli.output import CliError, Output
from brokers.cli.overview import PATIENCE_S

BROKER_LOGGER = 8
SET, DELETE = 0, 1


@click.group()
def brokers() -> None:
    """Single brokers: levels of their loggers."""


@brokers.command("loggers")
@click.argument("broker_id", type=click.IntRange(0, 2**31 - 1), metavar="BROKER")
@click.option(
    "--set", "levels", multiple=True, callback=pairs, metavar="LOGGER=LEVEL",
    help="FATAL, ERROR, WARN, INFO, DEBUG or TRACE, until the broker ends.",
)  # fmt: skip
@click.option("--unset", "unset", multiple=True, metavar="LOGGER", help="Back to the level of the logger above it.")
@click.option("--all", "everything", is_flag=True, help="Show the loggers of libraries, too.")
@client_options
def broker_loggers(
    target: Target, out: Output, broker_id: int, levels: dict[str, str], unset: Sequence[str], everything: bool
) -> None:
    """Show the levels of a broker's loggers, or change some; a room's name stands for all its modules."""
    with admin(target) as client:
        if levels or unset:
            changes: list[Any] = [(name, SET, level.upper()) for name, level in levels.items()]
            changes += [(name, DELETE, None) for name in unset]
            request = IncrementalAlterConfigsRequest(
                resources=[(BROKER_LOGGER, str(broker_id), changes)], validate_only=False
            )
            (row,) = _answer(client, broker_id, request).responses
            raise_for_code(f"broker {broker_id}", row.error_code, row.error_message)
        request = DescribeConfigsRequest(resources=[(BROKER_LOGGER, str(broker_id), None)])
        (row,) = _answer(client, broker_id, request).results
        raise_for_code(f"broker {broker_id}", row.error_code, row.error_message)
    changed = {*levels, *unset}
    own = ("brokers", "coordination", "txn", "kafka", "root")
    rows = [
        [one.name, one.value]
        for one in row.configs
        if (one.name in changed if changed else everything or one.name.partition(".")[0] in own)
    ]
    out.rows(["logger", "level"], rows)


def _answer(client: Any, broker_id: int, request: Any) -> Any:
    """What that broker answers; raises CliError where it does not."""
    answer = client.ask_each({broker_id: request}, PATIENCE_S)[broker_id]
    if answer is None:
        raise CliError(f"broker {broker_id} does not answer; fleetlog cluster describe shows the brokers")
    return answer
