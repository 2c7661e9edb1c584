"""``fleetlog topics reassign`` and ``fleetlog topics elect``: a topic's replicas, and which of them leads."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

import click

from fleetlog.brokers.cli import moves as plans
from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.client import (
    PartitionsOf,
    Target,
    admin,
    client_options,
    complete_topics,
    explain,
    known_partitions,
)
from fleetlog.brokers.cli.interrupts import Interrupted, interrupts
from fleetlog.brokers.cli.moves import ReplicaMove
from fleetlog.brokers.cli.moving import (
    KNOWN_S,
    PREFERRED,
    UNCLEAN,
    Moved,
    alter_reassignments,
    clear_throttles,
    perform,
    request_elections,
    throttled,
    wait_for_reassignments,
)
from fleetlog.brokers.cli.options import move_options, numbers, yes_option
from fleetlog.brokers.cli.output import CliError, Output, bytes_text, confirm, count_text, table, warn
from fleetlog.brokers.cli.overview import Overview, PartitionOverview, fetch_overview, read_domains
from fleetlog.brokers.model import TopicPartition
from fleetlog.wire.errors import ErrorCode

EXIT_MOVING = 3
EXIT_INTERRUPTED = 130


@click.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.option("--partition", "-p", "indexes", type=int, multiple=True, help="Only this partition (several times).")
@click.option(
    "--replicas", callback=numbers, metavar="1,2,3",
    help="The brokers, the preferred leader first; with several partitions each list starts one broker later.",
)  # fmt: skip
@click.option(
    "--replication-factor", "-r", "factor", type=click.IntRange(min=1), help="The number of replicas of each partition."
)
@click.option("--cancel", is_flag=True, help="Cancel the moves that are under way.")
@click.option(
    "--verify", is_flag=True, help="Only show the state; removes throttles that are left. Exit code 3 while moving."
)
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@move_options
@client_options
def reassign(
    *,
    target: Target,
    out: Output,
    name: str,
    indexes: tuple[int, ...],
    replicas: tuple[int, ...] | None,
    factor: int | None,
    cancel: bool,
    verify: bool,
    **how: Any,
) -> None:
    """Move a topic's replicas to other brokers, or change their number.

    Producers and consumers keep working. The command shows the plan, starts it and waits. The throttle is removed at
    the end, also after Ctrl-C; the moves then continue by themselves. --cancel cancels the moves that are under way.

    \b
      fleetlog topics reassign orders --replication-factor 3 --throttle 20MB
      fleetlog topics reassign orders -p 0 --replicas 4,2,3
      fleetlog topics reassign orders --verify
    """
    if sum((replicas is not None, factor is not None, cancel, verify)) != 1:
        raise click.UsageError("give exactly one of --replicas, --replication-factor, --cancel and --verify")
    with admin(target, f"topic {name}") as client:
        known_partitions(client, [PartitionsOf(name, indexes or None)])
        overview = fetch_overview(client)
        chosen = [p for p in overview.of_topic(name) if not indexes or p.index in indexes]
        if cancel:
            _cancel(client, target, out, chosen, overview)
        elif verify:
            _verify(client, out, chosen, overview)
        else:
            read_domains(client, overview)
            wanted: dict[TopicPartition, Any] = (
                dict(plans.spelled_out(chosen, replicas))
                if replicas is not None
                else dict(plans.with_factor(chosen, factor or 1, overview))
            )
            overview.need_alive(broker for p in chosen for broker in set(wanted[p.tp]) - set(p.replicas))
            listed = plans.moves_to(overview, wanted)
            execute(client, target, out, overview, listed, **how)


def execute(
    client: AdminClient,
    target: Target,
    out: Output,
    overview: Overview,
    listed: Sequence[ReplicaMove],
    *,
    throttle: int | None,
    at_once: int,
    dry_run: bool,
    yes: bool,
    lead_everywhere: bool = False,
) -> None:
    """Show the plan, ask, and perform it; exits with 1 if a partition did not move, 130 after Ctrl-C.

    At the end the preferred leaders of the moved partitions, or of all, are elected.
    """
    if not out.as_json:
        show(overview, listed, throttle)
    if dry_run or not listed:
        if out.as_json:
            out.value({"moves": plans.as_value(listed), "done": [], "failed": {}})
        return
    if not yes and sys.stdin.isatty():
        click.confirm("Start?", abort=True, err=True)
    interrupts.catch()
    say = _quiet if out.as_json else click.echo
    live = [broker.id for broker in overview.live_brokers()]
    result = Moved()
    try:
        with throttled(client, listed, throttle, live):
            result = perform(
                client,
                overview,
                listed,
                at_once=at_once,
                timeout_ms=target.timeout_ms,
                say=say,
                shown=not out.as_json,
            )
        _lead(client, target, None if lead_everywhere else [move.tp for move in result.done])
        interrupts.check()
    except Interrupted:
        click.echo("interrupted; moves that have begun continue without a throttle, `--cancel` cancels them", err=True)
        sys.exit(EXIT_INTERRUPTED)
    failed = {str(tp): reason for tp, reason in sorted(result.failed.items())}
    out.done(
        "\n".join(f"{tp}: {reason}" for tp, reason in failed.items()) or f"{len(result.done)} moved",
        {"moves": plans.as_value(listed), "done": [str(move.tp) for move in result.done], "failed": failed},
    )
    if failed:
        raise CliError(f"{len(failed)} of {count_text(len(listed), 'partition')} did not move")


def _lead(client: AdminClient, target: Target, moved: Sequence[TopicPartition] | None) -> None:
    """Elect the preferred leaders of these partitions (None: of all)."""
    answers = request_elections(client, moved, PREFERRED, target.timeout_ms) if moved is None or moved else {}
    for tp, (code, message) in sorted(answers.items()):
        if code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
            warn(f"{tp} is not led by its preferred replica: {explain(code, message)}")


def _quiet(_: str) -> None:
    """Print progress to stderr; not with --json."""


def show(overview: Overview, listed: Sequence[ReplicaMove], throttle: int | None) -> None:
    """Print the plan for users."""
    if not listed:
        click.echo("nothing to move")
        return
    table(plans.COLUMNS, plans.rows(listed))
    click.echo()
    table(plans.LOAD_COLUMNS, plans.load_rows(overview, listed))
    click.echo(f"\n{plans.summary(listed, throttle)}")


def _cancel(
    client: AdminClient, target: Target, out: Output, chosen: Sequence[PartitionOverview], overview: Overview
) -> None:
    moving = [p.tp for p in chosen if p.moving]
    answers = alter_reassignments(client, dict.fromkeys(moving), target.timeout_ms) if moving else {}
    fine = (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)  # the latter: the move had finished before
    failed = {str(tp): explain(code, text) for tp, (code, text) in answers.items() if code not in fine}
    cancelled = [str(tp) for tp, (code, _) in sorted(answers.items()) if code == ErrorCode.NONE]
    before = {p.tp: p.settled for p in chosen}
    wait_for_reassignments(
        client, {tp: before[tp] for tp, (code, _) in answers.items() if code == ErrorCode.NONE}, KNOWN_S
    )
    cleared = _clear(client, chosen, fetch_overview(client, directories=False))
    lines = [f"{tp}: cancelled" for tp in cancelled] or ["nothing is under way"]
    out.done("\n".join([*lines, *_cleared(cleared)]), {"cancelled": cancelled, "failed": failed, "cleared": cleared})
    if failed:
        raise CliError("; ".join(f"{tp}: {reason}" for tp, reason in failed.items()))


def _verify(client: AdminClient, out: Output, chosen: Sequence[PartitionOverview], overview: Overview) -> None:
    rows = []
    for p in chosen:
        copied = overview.copied(p)
        share = f"{copied[0] / copied[1]:.0%}" if copied and copied[1] else None
        behind = [b for b in p.settled if b not in p.isr]
        state = "moving" if p.moving else "not in sync" if behind else "in place"
        rows.append([p.index, p.leader, list(p.replicas), list(p.isr), list(p.adding), list(p.removing), share, state])
    columns = ["partition", "leader", "replicas", "isr", "adding", "removing", "copied", "state"]
    moving = any(p.moving for p in chosen)
    cleared = _clear(client, chosen, overview)
    if out.as_json:
        listed = [dict(zip(columns, row, strict=True)) for row in rows]
        out.value({"moving": moving, "partitions": listed, "cleared": cleared})
    else:
        table(columns, rows)
        for line in _cleared(cleared):
            click.echo(line)
    if moving:
        sys.exit(EXIT_MOVING)


def _clear(client: AdminClient, chosen: Collection[PartitionOverview], overview: Overview) -> list[str]:
    """Remove throttles that no move needs: the topic's if it does not move, the brokers' if nothing does."""
    moving = overview.moving()
    topics = {p.topic for p in chosen} - {p.topic for p in moving}
    return clear_throttles(client, topics, [] if moving else [broker.id for broker in overview.live_brokers()])


def _cleared(cleared: Sequence[str]) -> list[str]:
    return [f"throttle cleared: {', '.join(cleared)}"] if cleared else []


@click.command(name="elect")
@click.argument("names", nargs=-1, metavar="[TOPIC...]", shell_complete=complete_topics)
@click.option("--partition", "-p", "indexes", type=int, multiple=True, help="Only this partition (several times).")
@click.option("--preferred", "kind", flag_value="preferred", help="Elect each partition's first replica.")
@click.option("--unclean", "kind", flag_value="unclean", help="Elect a replica that may lack records. LOSES DATA.")
@yes_option
@client_options
def elect_leaders(
    *, target: Target, out: Output, names: tuple[str, ...], indexes: tuple[int, ...], kind: str | None, yes: bool
) -> None:
    """Elect leaders: the preferred ones, of some topics or of all, or unclean ones where no other replica is left.

    An unclean election gives up every record that the elected replica does not have. It is the last resort for a
    partition that is offline and whose in-sync replicas will not come back.
    """
    if kind is None:
        raise click.UsageError("give --preferred or --unclean")
    if kind == "unclean" and not names:
        raise click.UsageError("--unclean needs the topics by name")
    if indexes and len(names) != 1:
        raise click.UsageError("--partition needs exactly one topic")
    if kind == "unclean":
        confirm(f"Elect leaders of {', '.join(names)} that may lack records, for good?", yes)
    with admin(target) as client:
        wanted = None
        if names:
            known = known_partitions(client, [PartitionsOf(name, indexes or None) for name in names])
            wanted = [TopicPartition(topic, p["partition_index"]) for topic, rows in known.items() for p in rows]
        answers = request_elections(client, wanted, UNCLEAN if kind == "unclean" else PREFERRED, target.timeout_ms)
    rows: list[list[Any]] = []
    failed = 0
    for tp, (code, message) in sorted(answers.items()):
        needless = code == ErrorCode.ELECTION_NOT_NEEDED
        failed += bool(code) and not needless
        result = "elected" if not code else "not needed" if needless else explain(code, message)
        rows.append([tp.topic, tp.partition, result])
    if not rows and not out.as_json:
        click.echo("every partition is led by its preferred replica")
    else:
        out.rows(["topic", "partition", "result"], rows)
    if failed:
        raise CliError(f"{failed} of {count_text(len(rows), 'election')} failed")


def describe_moves(overview: Overview) -> list[list[Any]]:
    """The moves under way, with what they have copied."""
    rows = []
    for p in overview.moving():
        copied = overview.copied(p)
        done = f"{bytes_text(copied[0])} of {bytes_text(copied[1])}" if copied else None
        rows.append([p.topic, p.index, list(p.adding), list(p.removing), done])
    return rows
