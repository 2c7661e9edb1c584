"""``fleetlog topics``: create, list, describe, alter, analyze, trim, compact, delete."""

from __future__ import annotations

from typing import Any

import click
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType

from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.client import (
    PartitionsOf,
    Target,
    admin,
    client_options,
    complete_topic_settings,
    complete_topics,
    known_partitions,
    raise_for_code,
    reworded,
    wait_for_topics,
    warn_of_minimum,
)
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.options import PARTITION_COUNT, REPLICA_COUNT, pairs
from fleetlog.brokers.cli.output import CliError, Output, confirm, count_text, table, visible, warn
from fleetlog.brokers.cli.overview import (
    PATIENCE_S,
    Overview,
    PartitionOverview,
    fetch_overview,
    own_settings,
    read_directories,
    topic_setting,
)
from fleetlog.wire.errors import ErrorCode

READ_UNCOMMITTED, NO_EPOCH = 0, -1
EARLIEST, LATEST = -2, -1
_LATER = {
    "analyze": ("fleetlog.brokers.cli.topic_records", "analyze_topic"),
    "trim": ("fleetlog.brokers.cli.topic_records", "trim_topic"),
    "compact": ("fleetlog.brokers.cli.compact", "compact_topics"),
    "reassign": ("fleetlog.brokers.cli.reassign", "reassign"),
    "elect": ("fleetlog.brokers.cli.reassign", "elect_leaders"),
}


@click.group(cls=CommandGroup, later=_LATER)
def topics() -> None:
    """Topics: create, list, describe, alter, analyze, trim, compact, reassign, elect, delete."""


@topics.command("list")
@click.option("--internal", is_flag=True, help="Also show internal topics.")
@client_options
def list_topics(target: Target, out: Output, internal: bool) -> None:
    """List topics with their partitions and problems."""
    with admin(target) as client:
        overview = fetch_overview(client, directories=False)
    rows = []
    for name in sorted({p.topic for p in overview.partitions.values()}):
        partitions = overview.of_topic(name)
        if partitions[0].internal and not internal:
            continue
        factor = max(len(p.target) for p in partitions)
        counted = [
            sum(p.offline for p in partitions),
            sum(p.under_replicated for p in partitions),
            sum(p.under_min_in_sync for p in partitions),
        ]
        rows.append([name, len(partitions), factor, *counted])
    out.rows(["topic", "partitions", "replication", "offline", "under-replicated", "under min ISR"], rows)


_settings_option = click.option(
    "--set", "-s", "--config", "-c", "settings", multiple=True, callback=pairs, metavar="NAME=VALUE",
    shell_complete=complete_topic_settings, help="A setting of the topic.",
)  # fmt: skip


@topics.command("create")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--partitions", "-p", type=PARTITION_COUNT, help="The number of partitions.  [default: the broker's]")
@click.option("--replication-factor", "-r", type=REPLICA_COUNT, help="Replicas of each.  [default: the broker's]")
@_settings_option
@click.option("--if-not-exists", is_flag=True, help="Not an error if it exists.")
@click.option("--dry-run", is_flag=True, help="Only let the broker check the request.")
@client_options
def create_topics(
    *,
    target: Target,
    out: Output,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    settings: dict[str, str],
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create topics."""
    spec = {"num_partitions": partitions or -1, "replication_factor": replication_factor or -1, "configs": settings}
    with admin(target) as client:
        wanted = dict.fromkeys(names, spec)
        answer = client.create_topics(wanted, target.timeout_ms, validate_only=dry_run, raise_errors=False)
        created = [topic["name"] for topic in answer["topics"] if not topic["error_code"] and not dry_run]
        unheard = wait_for_topics(client, created, target.timeout_s) if created else []
    copies = [one["replication_factor"] for one in answer["topics"] if one.get("replication_factor", -1) > 0]
    if copies:
        warn_of_minimum(settings, min(copies), ", ".join(names))
    for name in unheard:
        warn(f"topic {name} was created, but not every broker knows its leaders yet")
    results = []
    for topic in answer["topics"]:
        code = topic["error_code"]
        # a deleted topic's name is taken until all brokers have read of that; only the text tells, here as in Kafka
        deleted = "marked for deletion" in (topic.get("error_message") or "")
        existed = code == ErrorCode.TOPIC_ALREADY_EXISTS and not deleted
        if not (existed and if_not_exists):
            raise_for_code(f"topic {topic['name']}", code, topic.get("error_message"))
        results.append(
            {
                "topic": topic["name"],
                "created": not existed and not dry_run,
                "partitions": topic.get("num_partitions", -1),
                "replication_factor": topic.get("replication_factor", -1),
            }
        )
    verb = "could be created" if dry_run else "created"
    lines = [
        f"{r['topic']}: {'exists already' if not r['created'] and not dry_run else verb}"
        + (f", {count_text(count, 'partition')}, {count_text(r['replication_factor'], 'copy')}" if count > 0 else "")
        for r in results
        for count in [r["partitions"]]
    ]
    out.done("\n".join(lines), results)


@topics.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@client_options
def describe_topics(target: Target, out: Output, names: tuple[str, ...]) -> None:
    """Show partitions, leaders, replicas, offsets and settings that differ from the default.

    Of a compacted topic each broker's copy is shown, too: brokers compact their own. Of a tiered one the bytes in the
    leader's log directories, and in the bucket.

    ISR are the replicas in sync; ELR, while fewer than min.insync.replicas are in sync, those that may lead as well
    without loss. Offsets come from the leader; a leader that does not answer is not waited for.
    """
    with admin(target) as client:
        known_partitions(client, [PartitionsOf(name, None) for name in names])
        ids = {topic["name"]: topic.get("topic_id") for topic in client.describe_topics(list(names))}
        overview = fetch_overview(client, list(dict.fromkeys(names)), directories=False)
        read_directories(client, overview, overview.partitions)
        ends = fetch_ends(client, list(overview.partitions.values()))
        figures = _figures(client, overview)
        described = [topic_value(client, name, overview, ids.get(name), ends, figures) for name in names]
    if out.as_json:
        out.value(described)
        return
    for topic in described:
        click.echo(f"{topic['topic']}  id {topic['topic_id']}")
        for setting, value in sorted(topic["configs"].items()):
            click.echo(visible(f"  {setting}={value}"))
        columns = ["partition", "leader", "replicas", "isr", "elr", "first_offset", "end_offset", "records", "problem"]
        if any(p["tiered_bytes"] is not None for p in topic["partitions"]):
            columns[-1:-1] = ["local_bytes", "tiered_bytes"]
        table([c.replace("_", " ") for c in columns], [[p[c] for c in columns] for p in topic["partitions"]])
        if topic["compaction"]:
            from fleetlog.brokers.cli.compact import COLUMNS, figure_rows

            table(COLUMNS, figure_rows(figures, topic["topic"]))
        for trouble in topic["troubles"]:
            click.echo(f"  broker {trouble['broker']}: {trouble['trouble']}")
        click.echo()


def _figures(client: AdminClient, overview: Overview) -> dict[Any, Any]:
    """How far the copies of compacted topics are clean; nobody is asked where there is none."""
    names = sorted({partition.topic for partition in overview.partitions.values()})
    if not any("compact" in str(policy) for policy in topic_setting(client, names, "cleanup.policy").values()):
        return {}
    from fleetlog.brokers.cli.compact import compaction_of  # as much as all else together

    return compaction_of(client, overview)


Ends = dict[tuple[str, int], tuple[int | None, int | None]]


def fetch_ends(client: AdminClient, partitions: list[PartitionOverview]) -> Ends:
    """First and end offset of each partition whose leader answers now; None where it does not."""
    by_leader: dict[int, dict[str, list[int]]] = {}
    for p in partitions:
        if not p.offline:
            by_leader.setdefault(p.leader, {}).setdefault(p.topic, []).append(p.index)
    asked = [
        (leader, _offsets_request(topics, spec)) for spec in (EARLIEST, LATEST) for leader, topics in by_leader.items()
    ]
    answers = client.ask_all(asked, PATIENCE_S)
    first: dict[tuple[str, int], int] = {}
    end: dict[tuple[str, int], int] = {}
    for number, answer in enumerate(answers):
        offsets = first if number < len(by_leader) else end
        for topic in answer.topics if answer is not None else ():
            offsets.update(((topic.name, p.partition_index), p.offset) for p in topic.partitions if not p.error_code)
    return {tp: (first.get(tp), end.get(tp)) for tp in ((p.topic, p.index) for p in partitions)}


def _offsets_request(topics: dict[str, list[int]], time: int) -> Any:
    """One for all: the client's own way asks which version each partition needs."""
    from kafka.protocol.consumer import ListOffsetsRequest

    return ListOffsetsRequest(
        isolation_level=READ_UNCOMMITTED, min_version=4,  # the first with an epoch of the leader
        topics=[(name, [(index, NO_EPOCH, time) for index in indexes]) for name, indexes in topics.items()],
    )  # fmt: skip


def topic_value(
    client: AdminClient, name: str, overview: Overview, topic_id: Any, ends: Ends, figures: dict[Any, Any]
) -> dict[str, Any]:
    """A topic as JSON: settings that differ from the default, partitions, troubles of the brokers that hold it."""
    partitions = overview.of_topic(name)
    holding = {b for p in partitions for b in p.replicas}
    rows = []
    for p in partitions:
        begin, stop = ends[p.topic, p.index]
        held = overview.brokers[p.leader].directories or () if p.leader in overview.brokers else ()
        rows.append(
            {
                "partition": p.index,
                "leader": None if p.offline else p.leader,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "elr": list(p.elr),
                "adding": list(p.adding),
                "removing": list(p.removing),
                "first_offset": begin,
                "end_offset": stop,
                "records": stop - begin if stop is not None and begin is not None else None,
                "local_bytes": next((d.sizes[p.tp] for d in held if p.tp in d.sizes), None),
                "tiered_bytes": next((d.tiered[p.tp] for d in held if p.tp in d.tiered), None),
                "under_replicated": p.under_replicated,
                "problem": p.problem or ("moving" if p.moving else None),
            }
        )
    troubles = [{"broker": b, "trouble": text} for b, text in overview.troubles() if b in holding]
    return {
        "topic": name,
        "topic_id": str(topic_id) if topic_id else None,
        "configs": own_settings(client, name),
        "partitions": rows,
        "compaction": [
            {"partition": copy.partition, "broker": copy.broker, **one._asdict()}
            for copy, one in sorted(figures.items())
            if copy.topic == name
        ],
        "troubles": troubles,
    }


@topics.command("alter")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--partitions", "-p", type=PARTITION_COUNT, help="The new number of partitions (it can only grow).")
@_settings_option
@click.option("--unset", "-u", multiple=True, metavar="NAME", shell_complete=complete_topic_settings,
              help="Reset to the default.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only let the broker check the request.")
@client_options
def alter_topic(
    *,
    target: Target,
    out: Output,
    names: tuple[str, ...],
    partitions: int | None,
    settings: dict[str, str],
    unset: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Change settings of topics, or add partitions.

    Each topic is changed for itself: what is refused for one is done for the others.
    """
    if not (partitions or settings or unset):
        raise click.UsageError("nothing to change: give --set (or --config), --unset or --partitions")
    changes: dict[str, Any] = {key: (AlterConfigOp.SET, value) for key, value in settings.items()}
    changes |= dict.fromkeys(unset, (AlterConfigOp.DELETE, None))
    names, now = tuple(dict.fromkeys(names)), {}
    with admin(target, f"topic {', '.join(names)}") as client:
        known = known_partitions(client, [PartitionsOf(name, None) for name in names])
        for name in names:
            warn_of_minimum(settings, min(len(one["replica_nodes"]) for one in known[name]), name)
        if changes:
            resources = [ConfigResource(ConfigResourceType.TOPIC, name, configs=changes) for name in names]
            answer = client.alter_configs(resources, validate_only=dry_run, raise_on_unknown=False, incremental=True)
            results = {name: answer.get("topic", {}).get(name, "no answer") for name in names}
            refused = [f"topic {name}: {reworded(one)}" for name, one in results.items() if one != "OK"]
            if refused:
                raise CliError("\n".join(refused))
        if dry_run and changes:
            described = [ConfigResource(ConfigResourceType.TOPIC, name, configs=list(changes)) for name in names]
            now = client.describe_configs(described, config_filter="all").get("topic", {})
        if partitions:
            wanted = dict.fromkeys(names, partitions)
            response = client.create_partitions(wanted, target.timeout_ms, validate_only=dry_run, raise_errors=False)
            for one in response.results:
                raise_for_code(f"topic {one.name}", one.error_code, one.error_message)
    done = [f"{key}={value}" for key, value in settings.items()] + [f"{key} back to its default" for key in unset]
    done += [count_text(partitions, "partition")] if partitions else []
    verb = "would have" if dry_run else "has now"
    rows: list[dict[str, Any]] = [
        {"topic": name, "set": settings, "unset": list(unset), "partitions": partitions, "dry_run": dry_run}
        | ({"now": {key: one["value"] for key, one in now.get(name, {}).items()}} if dry_run else {})
        for name in names
    ]
    text = "\n".join(f"{name} {verb} {', '.join(done)}" for name in names)
    out.done(text, rows[0] if len(rows) == 1 else rows)


@topics.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="Not an error if it does not exist.")
@click.option("--internal", is_flag=True, help="Also delete internal topics.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@client_options
def delete_topics(
    target: Target, out: Output, names: tuple[str, ...], if_exists: bool, internal: bool, yes: bool
) -> None:
    """Delete topics with all their records."""
    confirm(f"Delete {', '.join(names)} with all records?", yes)
    with admin(target) as client:
        if not internal:
            kept = [topic["name"] for topic in client.describe_topics(list(names)) if topic["is_internal"]]
            if kept:
                raise CliError(
                    f"{kept[0]} is an internal topic (committed offsets, transactions): without it groups start anew"
                    " and transactions are lost. --internal deletes it; nothing was deleted"
                )
        answer = client.delete_topics(list(names), target.timeout_ms, raise_errors=False)
    deleted = []
    for topic in answer["topics"]:
        code = topic["error_code"]
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and if_exists:
            continue
        raise_for_code(f"topic {topic['name']}", code, topic.get("error_message"))
        deleted.append(topic["name"])
    out.done("\n".join(f"{name}: deleted" for name in deleted) or "nothing to delete", deleted)
