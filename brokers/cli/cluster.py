"""``fleetlog cluster``: brokers and their partitions, problems, and moving load between brokers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetlog.brokers.cli.client import Target, admin, client_options
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.options import config_file_argument, move_options, numbers, override_option
from fleetlog.brokers.cli.output import CliError, Output, bytes_text, count_text, table
from fleetlog.brokers.cli.overview import (
    Overview,
    PartitionOverview,
    fetch_overview,
    read_domains,
    read_incarnations,
)
from fleetlog.brokers.model import BrokerId

if TYPE_CHECKING:
    from fleetlog.brokers.cli.diagnosis import FleetHealth

PROBLEMS_SHOWN = 50
WATCH_S = 1.0
EXIT_CODES = {"good": 0, "warning": 3, "bad": 4}
"""As doctor's."""


@click.group(cls=CommandGroup, later={"config": ("fleetlog.brokers.cli.cluster_config", "cluster_config")})
def cluster() -> None:
    """The fleet: brokers, their load, settings, problems, and moving load."""


@cluster.command("describe")
@client_options
def describe_cluster(target: Target, out: Output) -> None:
    """Show brokers, their replicas and leaderships, partitions with problems, moves under way and log directories.

    Each broker is asked, and what doctor finds of brokers, disks, ZooKeeper and partitions is shown; doctor itself
    looks at more, and says what to do.

    A dead or paused broker is not waited for; what only it knows is left out.
    """
    from fleetlog.brokers.cli.doctor import judged

    with admin(target) as client:
        overview = fetch_overview(client)
        read_incarnations(client, overview)
        _, health = judged(client, overview)
    if out.as_json:
        out.value(overview_value(overview, health))
        return
    _print(overview, health)


@cluster.command("health")
@click.option("--watch", "-w", is_flag=True, help="Look every second, and write what changes, until Ctrl-C.")
@click.option("--exit-when-healthy", "-e", "until", is_flag=True, help="With --watch: end when nothing is wrong.")
@client_options
def cluster_health(target: Target, out: Output, watch: bool, until: bool) -> None:
    """Say whether something is wrong with brokers, disks, ZooKeeper and partitions: what `doctor` says first.

    Exit code: 0 if nothing is wrong, 3 with warnings, 4 with errors, 1 if no broker answers; --watch waits for one, and
    Ctrl-C ends it with the code of what was last.

    \b
      fleetlog cluster health
      timeout 300 fleetlog cluster health --watch --exit-when-healthy
    """
    if until and not watch:
        raise click.UsageError("--exit-when-healthy goes with --watch")
    if watch and out.as_json and not until:
        raise click.UsageError("--watch never ends, and --json is one value: add --exit-when-healthy")
    shown: FleetHealth | None = None
    try:
        while True:
            health = _health(target, watch)
            done = not watch or (until and health.level == "good")
            if out.as_json and done:
                out.value(health._asdict())
            elif not out.as_json and health != shown:
                click.echo("\n".join([f"{health.level}: {health.words[0]}", *map("  {}".format, health.words[1:])]))
            shown = health
            if done:
                break
            time.sleep(WATCH_S)
    except KeyboardInterrupt:
        if not watch or until or shown is None:  # what was waited for did not come
            raise
    click.get_current_context().exit(EXIT_CODES[shown.level])


def _health(target: Target, patient: bool) -> FleetHealth:
    """The verdict now; ``patient`` makes one of no answer. Raises CliError."""
    from fleetlog.brokers.cli.doctor import judged

    try:
        with admin(target) as client:
            return judged(client, fetch_overview(client))[1]
    except CliError as error:
        if not patient:
            raise
        return FleetHealth("bad", [error.message])


@cluster.command("rebalance")
@click.option("--plan", "how", flag_value="plan", help="Only show what would move.")
@click.option("--execute", "how", flag_value="execute", help="Move it, and wait until everything is in sync.")
@click.option(
    "--brokers", "chosen", callback=numbers, metavar="1,2,3",
    help="Only these brokers keep replicas; the others are emptied.  [default: all that are alive]",
)  # fmt: skip
@move_options
@client_options
def rebalance_cluster(
    *, target: Target, out: Output, how: str | None, chosen: tuple[int, ...] | None, **moving: Any
) -> None:
    """Spread replicas and leaders evenly, to brokers that were added or away from brokers that are to leave.

    Nothing moves without need: replicas leave brokers that must not keep any, separate where they share a rack or a
    failure domain, and move from the fullest to the emptiest broker. Producers and consumers keep working. The throttle
    is removed at the end, also after Ctrl-C; moves that have begun then continue by themselves.

    \b
      fleetlog cluster rebalance --plan
      fleetlog cluster rebalance --execute --throttle 20MB
      fleetlog cluster rebalance --execute --brokers 1,2,3      # before broker 4 leaves
    """
    from fleetlog.brokers.cli.moves import moves_to  # late: what describes moves nothing
    from fleetlog.brokers.cli.reassign import execute
    from fleetlog.brokers.controller.balance import propose

    if how is None:
        raise click.UsageError("give --plan or --execute")
    with admin(target) as client:
        overview = fetch_overview(client)
        read_domains(client, overview)
        live = {broker.id: broker for broker in overview.live_brokers()}
        overview.need_alive(chosen or ())
        where = {BrokerId(b): live[b].place for b in sorted(chosen or live)}
        wanted = propose({tp: p.target for tp, p in overview.partitions.items()}, where)
        listed = moves_to(overview, wanted)
        execute(client, target, out, overview, listed, dry_run=how == "plan", lead_everywhere=True, **moving)


def _counts(partitions: Iterable[PartitionOverview]) -> dict[str, int]:
    listed = list(partitions)
    short = [p for p in listed if len(p.isr) < max(1, len(p.replicas))]
    return {
        "partitions": len(listed),
        "offline": sum(p.leader < 0 for p in listed),
        "under_min_isr": sum(p.under_min_in_sync for p in short),
        "under_replicated": sum(p.under_replicated for p in short),
        "not_led_by_preferred": sum(not p.led_by_preferred for p in listed),
        "moving": sum(p.moving for p in listed),
    }


LOAD = ("replicas", "leads", "first_replica_of", "not_in_sync")


def _loads(overview: Overview) -> dict[int, dict[str, int]]:
    """What each broker holds and leads, by one walk over the partitions."""
    loads = {broker_id: dict.fromkeys(LOAD, 0) for broker_id in overview.brokers}
    for p in overview.partitions.values():
        for broker_id in p.replicas:
            load = loads[broker_id]
            load["replicas"] += 1
            if broker_id not in p.isr and broker_id not in p.adding:
                load["not_in_sync"] += 1
        if p.leader in p.replicas:
            loads[p.leader]["leads"] += 1
        for broker_id in p.target[:1]:
            loads[broker_id]["first_replica_of"] += 1
    return loads


def overview_value(overview: Overview, health: FleetHealth) -> dict[str, Any]:
    """The fleet as JSON: health, counts, brokers with their log directories, troubles, partitions with problems,
    moves."""
    loads = _loads(overview)
    return {
        "health": health._asdict(),
        "cluster_id": overview.cluster_id,
        "controller": overview.controller,
        "topics": len({p.topic for p in overview.partitions.values()}),
        **_counts(overview.partitions.values()),
        "brokers": [
            {
                "id": broker.id,
                "alive": broker.alive,
                "state": broker.state,
                "address": broker.address,
                "rack": broker.rack,
                "incarnation": broker.incarnation,
                **loads[broker.id],
                "log_dirs": None if broker.directories is None else [_directory(d) for d in broker.directories],
            }
            for _, broker in sorted(overview.brokers.items())
        ],
        "troubles": [{"broker": broker_id, "trouble": text} for broker_id, text in overview.troubles()],
        "problems": [
            {
                "topic": p.topic,
                "partition": p.index,
                "problem": p.problem,
                "leader": None if p.offline else p.leader,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "elr": list(p.elr),
            }
            for p in _troubled(overview)
        ],
        "moves": [
            {
                "topic": p.topic,
                "partition": p.index,
                "adding": list(p.adding),
                "removing": list(p.removing),
                "copied_bytes": copied[0] if (copied := overview.copied(p)) else None,
                "bytes": copied[1] if copied else None,
            }
            for p in overview.moving()
        ],
    }


def _directory(directory: Any) -> dict[str, Any]:
    return {
        "path": directory.path,
        "offline": bool(directory.error),
        "partitions": len(directory.sizes),
        "used_bytes": directory.used_bytes,
        "free_bytes": directory.usable_bytes,
        "total_bytes": directory.total_bytes,
    }


def _troubled(overview: Overview) -> list[PartitionOverview]:
    order = ["offline", "under min ISR", "under-replicated"]
    return sorted(overview.troubled(), key=lambda p: order.index(p.problem or ""))


def _print(overview: Overview, health: FleetHealth) -> None:
    counted = _counts(overview.partitions.values())
    topics = len({p.topic for p in overview.partitions.values() if not p.internal})
    internal = len({p.topic for p in overview.partitions.values() if p.internal})
    live = overview.live_brokers()
    alive = f"{len(live)} of {count_text(len(overview.brokers), 'broker')} alive"
    if cut_off := sum(broker.cut_off for broker in live):
        alive = f"{alive} when last known: ZooKeeper answers {cut_off} of them nothing"
    click.echo(f"cluster {overview.cluster_id}, controller {overview.controller}, {alive}")
    good = health.level == "good"
    words = _words(counted) or ("no problems" if good else "no partition has a problem")
    suffix = "" if good else f"; {count_text(len(health.words), 'problem')}, see below"
    both = f"{count_text(topics, 'topic')} and {count_text(internal, 'internal one')}"
    click.echo(f"{both} with {count_text(counted['partitions'], 'partition')}: {words}{suffix}\n")
    _print_brokers(overview)
    if not good:
        click.echo("\n" + "\n".join([*health.words, "fleetlog doctor says more, and what to do"]))
    troubled = _troubled(overview)
    if troubled:
        click.echo()
        rows: list[list[Any]] = [
            [p.topic, p.index, p.problem, None if p.offline else p.leader, list(p.replicas), list(p.isr), list(p.elr)]
            for p in troubled[:PROBLEMS_SHOWN]
        ]
        table(["topic", "partition", "problem", "leader", "replicas", "isr", "elr"], rows)
        if len(troubled) > PROBLEMS_SHOWN:
            click.echo(f"... and {len(troubled) - PROBLEMS_SHOWN} more; --json lists them all")
    if overview.moving():
        from fleetlog.brokers.cli.reassign import describe_moves

        click.echo()
        table(["topic", "partition", "adding", "removing", "copied"], describe_moves(overview))


def _print_brokers(overview: Overview) -> None:
    rows: list[list[Any]] = []
    loads = _loads(overview)
    for broker_id, broker in sorted(overview.brokers.items()):
        load = loads[broker_id].values()
        rows.append([broker_id, broker.address, broker.rack, broker.state, broker.incarnation, *load])
    columns = ["broker", "address", "rack", "state", "incarnation"]
    table([*columns, "replicas", "leads", "first replica of", "not in sync"], rows)
    rows = [
        [
            broker.id,
            d.path,
            d.state,
            len(d.sizes),
            bytes_text(d.used_bytes),
            bytes_text(d.usable_bytes) if d.usable_bytes >= 0 else None,
            bytes_text(d.total_bytes) if d.total_bytes >= 0 else None,
        ]
        for broker in overview.live_brokers()
        for d in broker.directories or ()
    ]
    click.echo()
    table(["broker", "log directory", "state", "replicas", "used", "free", "volume"], rows)


def _words(counted: dict[str, int]) -> str:
    names = {
        "offline": "offline",
        "under_min_isr": "under min ISR",
        "under_replicated": "under-replicated",
        "not_led_by_preferred": "not led by their preferred replica",
        "moving": "moving",
    }
    return ", ".join(f"{counted[key]} {words}" for key, words in names.items() if counted[key])


@cluster.command("repair")
@config_file_argument
@override_option
@click.option("--execute", is_flag=True, help="Write it.  [default: only show what would be written]")
@click.option("--without", callback=numbers, metavar="4,5", help="Brokers that do not come back.")
@click.option("--without-bucket", is_flag=True, help="Do not read the bucket of tiered topics.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def repair_cluster(
    config_file: Path,
    override: dict[str, str],
    *,
    execute: bool,
    without: tuple[int, ...] | None,
    without_bucket: bool,
    yes: bool,
) -> None:
    """Make ZooKeeper know again what the brokers have, after it was restored from an older copy or replaced.

    CONFIG_FILE is the properties of any broker: where ZooKeeper is, and how to log in there. All brokers must run;
    those that find ZooKeeper older than their logs tell there what they have. Topics, their ids, replicas and leader
    epochs, the controller epoch and the producer ids are made from that. Settings, ACLs, users and quotas stay as they
    are in ZooKeeper. Where the properties name a bucket, leader epochs are also above those of its manifests.

    \b
      fleetlog cluster repair broker.properties
      fleetlog cluster repair broker.properties --execute
    """
    from fleetlog.brokers.cli.repair import repair

    repair(config_file, override, execute=execute, without=without or (), without_bucket=without_bucket, yes=yes)
