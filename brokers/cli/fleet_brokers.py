"""``fleetlog brokers``: single brokers of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from kafka.admin import AlterConfigOp, ConfigResourceType
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from fleetlog.brokers.cli.client import Target, admin, client_options, raise_for_code
from fleetlog.brokers.cli.cluster_config import everything_option, name_argument, show_settings
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.handing_over import Assigned, away_from, taken_over, without_source
from fleetlog.brokers.cli.moves import moves_to
from fleetlog.brokers.cli.options import BROKER_ID, move_options, pairs
from fleetlog.brokers.cli.output import CliError, Output, count_text, warn
from fleetlog.brokers.cli.overview import PATIENCE_S, Overview, fetch_overview, read_domains
from fleetlog.brokers.cli.reassign import execute

if TYPE_CHECKING:
    from fleetlog.brokers.cli.admin_client import AdminClient
    from fleetlog.wire.messages import Encodable

dry_run_option = click.option("--plan", "dry_run", is_flag=True, help="Only show what would move.")


@click.group(cls=CommandGroup)
def brokers() -> None:
    """Single brokers: config, drain, replace, unregister, levels of their loggers."""


@brokers.command("config")
@click.argument("broker_id", type=BROKER_ID, metavar="BROKER")
@name_argument
@everything_option
@client_options
def show_config(target: Target, out: Output, broker_id: int, names: tuple[str, ...], everything: bool) -> None:
    """Show a broker's settings and where they come from; without names those that are not at their defaults.

    `fleetlog cluster config` compares those of all brokers, and changes them.
    """
    show_settings(target, out, names, broker_id, everything)


@brokers.command("loggers")
@click.argument("broker_id", type=BROKER_ID, metavar="BROKER")
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
    resource = ConfigResourceType.BROKER_LOGGER.value, str(broker_id)
    with admin(target) as client:
        if levels or unset:
            changes: list[Any] = [(name, AlterConfigOp.SET.value, level.upper()) for name, level in levels.items()]
            changes += [(name, AlterConfigOp.DELETE.value, None) for name in unset]
            request = IncrementalAlterConfigsRequest(resources=[(*resource, changes)], validate_only=False)
            (row,) = _answer(client, broker_id, request).responses
            raise_for_code(f"broker {broker_id}", row.error_code, row.error_message)
        request = DescribeConfigsRequest(resources=[(*resource, None)])
        (row,) = _answer(client, broker_id, request).results
        raise_for_code(f"broker {broker_id}", row.error_code, row.error_message)
    changed = {*levels, *unset}
    own = ("fleetlog", "kafka", "root")
    rows = [
        [one.name, one.value]
        for one in row.configs
        if (one.name in changed if changed else everything or one.name.partition(".")[0] in own)
    ]
    out.rows(["logger", "level"], rows)


# ---------------------------------------------------------------- draining and replacing


@brokers.command("drain")
@click.argument("broker_id", type=BROKER_ID, metavar="BROKER")
@dry_run_option
@move_options
@client_options
def drain_broker(*, target: Target, out: Output, broker_id: int, **how: Any) -> None:
    """Move all replicas of a broker to the others, so that it can be taken away for good.

    Replicas go where racks, failure domains and load leave most room; what has no replica there does not move. The
    broker may be dead: then the copies come from the other replicas. Producers and consumers keep working.

    \b
      fleetlog brokers drain 3 --plan
      fleetlog brokers drain 3 --throttle 20MB
    """
    _hand_over(target, out, broker_id, lambda overview: away_from(overview, broker_id), **how)


@brokers.command("replace")
@click.argument("broker_id", type=BROKER_ID, metavar="BROKER")
@click.option("--with", "new", type=BROKER_ID, required=True, metavar="BROKER",
              help="The broker that takes its place; it must be alive.")  # fmt: skip
@dry_run_option
@move_options
@client_options
def replace_broker(*, target: Target, out: Output, broker_id: int, new: int, **how: Any) -> None:
    """Give all replicas of a broker, alive or dead, to a new one, which leads where the old one should.

    \b
      fleetlog brokers replace 3 --with 7 --plan
      fleetlog brokers replace 3 --with 7 --throttle 20MB
    """
    if new == broker_id:
        raise click.UsageError("--with must name another broker")
    _hand_over(target, out, broker_id, lambda overview: taken_over(overview, broker_id, new), **how)


@brokers.command("unregister")
@click.argument("broker_id", type=BROKER_ID, metavar="BROKER")
@client_options
def unregister_broker(target: Target, out: Output, broker_id: int) -> None:
    """Forget a broker that is gone for good: no new topic is placed on it, and its id is free for another machine.

    It must be stopped, and hold no replica: drain it first.
    """
    from fleetlog.wire.messages import UnregisterBrokerRequest

    with admin(target, f"broker {broker_id}") as client:
        answer = client.ask_any(UnregisterBrokerRequest(version=0, broker_id=broker_id))
    raise_for_code(f"broker {broker_id} stays registered", answer.error_code, answer.error_message)
    out.done(f"broker {broker_id} is no longer registered", {"broker": broker_id, "registered": False})


def _hand_over(target: Target, out: Output, broker_id: int, plan: Callable[[Overview], Assigned], **how: Any) -> None:
    with admin(target, f"broker {broker_id}") as client:
        overview = fetch_overview(client)
        if broker_id not in overview.brokers:
            known = ", ".join(map(str, sorted(overview.brokers)))
            raise CliError(f"there is no broker {broker_id}, alive or with replicas; there are {known}")
        read_domains(client, overview)
        listed = moves_to(overview, plan(overview))
        stuck = without_source(overview, broker_id)
        execute(client, target, out, overview, listed, **how)
    if stuck:
        those = f"{count_text(len(stuck), 'partition', 'have')} no leader to copy from, such as {stuck[0].tp}"
        warn(f"{those}: nothing moves them; see doctor")


# ---------------------------------------------------------------- levels


def _answer(client: AdminClient, broker_id: int, request: Encodable) -> Any:
    """What that broker answers; raises CliError where it does not."""
    answer = client.ask_each({broker_id: request}, PATIENCE_S)[broker_id]
    if answer is None:
        raise CliError(f"broker {broker_id} does not answer; fleetlog cluster describe shows the brokers")
    return answer
