"""``fleetlog groups``: list, lag, describe, reset offsets, change settings, delete."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import click
from kafka.admin import AlterConfigOp, ConfigResourceType
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

from fleetlog.brokers.cli.client import (
    PartitionsOf,
    Target,
    admin,
    client_options,
    complete_groups,
    explained,
    first_and_end,
    named_partitions,
    names_told,
    offsets_at,
    raise_for_code,
    reworded,
    topic_partitions,
)
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.group_lags import lag_of_groups
from fleetlog.brokers.cli.options import pairs
from fleetlog.brokers.cli.output import CliError, Output, confirm, table, visible, warn
from fleetlog.brokers.cli.overview import PATIENCE_S
from fleetlog.brokers.cli.times import DurationType, Point, PointType, TimeType
from fleetlog.wire.errors import ErrorCode

MEMBERLESS = {"Empty", "Dead"}


@click.group(cls=CommandGroup, later={"seek": ("fleetlog.brokers.cli.groups", "reset_group_offsets")})
def groups() -> None:
    """Consumer and share groups: list, lag, describe, reset, alter, delete."""


@groups.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only groups in this state, such as Stable.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only this type: classic, consumer, share.")
@client_options
def list_groups(target: Target, out: Output, states: tuple[str, ...], types: tuple[str, ...]) -> None:
    """List groups, their states and types."""
    wanted, kinds = ({one.lower() for one in given} for given in (states, types))
    with admin(target) as client:
        listed = client.list_groups()
    rows = [
        [g["group_id"], g.get("group_state", ""), g.get("group_type") or "classic", g["protocol_type"]]
        for g in sorted(listed, key=lambda g: str(g["group_id"]))
        if (not wanted or g.get("group_state", "").lower() in wanted)
        and (not kinds or (g.get("group_type") or "classic").lower() in kinds)
    ]
    out.rows(["group", "state", "type", "protocol"], rows)


# --- lag --------------------------------------------------------------------------------------------------------


@groups.command("lag")
@click.argument("names", nargs=-1, metavar="[GROUP...]", shell_complete=complete_groups)
@client_options
def group_lag(target: Target, out: Output, names: tuple[str, ...]) -> None:
    """Show how far groups are behind, in records and in seconds, and whether they make progress.

    The fleet's coordinators compute this every few seconds, by Burrow's rules: OK, WARN (consumes, but falls
    behind), ERR (stopped, stalled or rewound). With names each partition is shown. All is as old as age_s says, in
    seconds; `groups describe` counts the lag when it is asked.
    """
    if "" in names:
        raise_for_code("groups lag", ErrorCode.INVALID_GROUP_ID)
    with admin(target, " ".join(names)) as client:
        lags, unknown = lag_of_groups(client, names)
    for text in unknown:
        warn(text)
    if out.as_json:
        out.value(lags)
    elif names:
        columns = ["group", "topic", "partition", "status", "committed", "end", "lag", "seconds", "age_s"]
        rows = [{"group": one["group"], "age_s": one["age_s"], **row} for one in lags for row in one["partitions"]]
        table(columns, [[row[column] for column in columns] for row in rows])
    else:
        columns = ["group", "status", "lag", "seconds", "worst", "age_s"]
        table(columns, [[one[column] for column in columns] for one in lags])
    early = [one["group"] for one in lags if names and not one["status"]]
    if early:
        warn(f"{', '.join(early)}: not computed yet; coordinators do it every group.lag.interval.ms, 5 s by default")
    missing = set(names) - {one["group"] for one in lags}
    if missing:
        raise CliError(f"no coordinator knows a lag of {', '.join(sorted(missing))}")


# --- describe ---------------------------------------------------------------------------------------------------


@groups.command("describe")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@client_options
def describe_groups(target: Target, out: Output, names: tuple[str, ...]) -> None:
    """Show members, committed offsets and lag: what is in the log behind them, so deleted records count no more.

    Of a share group: where it begins in each partition, and how many records from there on are not finished.
    """
    with admin(target) as client:
        described = [_describe_one(client, name) for name in names]
    if out.as_json:
        out.value(described)
        return
    for group in described:
        head = f"{group['group']}  {group['state']}  coordinator {group['coordinator']}  lag {group['lag']}"
        click.echo(visible(head))
        columns = ["topic", "partition", "committed", "end", "lag", "member", "metadata"]
        if group["type"] == "share":
            columns = ["topic", "partition", "start", "end", "lag", "out", "waiting", "held_back_by"]
            _tell_holders(group["offsets"])
        table(columns, [[row[c] for c in columns] for row in group["offsets"]])
        if group["members"]:
            columns = ["member", "client", "host", "instance", "assigned"]
            table(columns, [[row[c] for c in columns] for row in group["members"]], title="")
        click.echo()


def _tell_holders(rows: list[dict[str, Any]]) -> None:
    """Which record keeps a partition of a share group from moving on, in words."""
    for row in rows:
        holder = row["held_back_by"]
        if holder is not None:
            key = "" if holder["key"] is None else f" of key {holder['key']}"
            whose = f" {holder['member']}" if holder["member"] is not None else ""
            times = f", delivered {holder['deliveries']} times" if holder["deliveries"] > 1 else ""
            row["held_back_by"] = visible(f"offset {holder['offset']}{key}: {holder['state']}{whose}{times}")


def _share_windows(client: Any, name: str) -> dict[Any, Any]:
    """What leaders have of a share group: nothing of those that it does not read at present, or that do not tell."""
    from fleetlog.wire import messages

    request = messages.DescribeShareWindowsRequest(version=0, group_id=name)
    answers = client.ask_each({one.node_id: request for one in client._manager.cluster.brokers()}, PATIENCE_S)
    return {
        TopicPartition(topic.name, row.partition_index): row
        for answer in answers.values()
        for topic in (answer.topics if answer is not None and answer.error_code == 0 else ())
        for row in topic.partitions
    }


def _holder(row: Any) -> dict[str, Any] | None:
    if row is None or row.holder < 0:
        return None
    key = None if row.holder_key is None else row.holder_key.decode("utf-8", "backslashreplace")
    return {
        "offset": row.holder, "state": row.holder_state, "deliveries": row.holder_deliveries,
        "member": row.holder_member, "key": key,
    }  # fmt: skip


def _described(client: Any, name: str) -> dict[str, Any]:
    """The group as DescribeGroups tells it, also one of the consumer protocol or a share group, which it does not know.

    Members of a share group have the same partitions: they own none.
    """
    described: dict[str, Any] = client.describe_groups([name])[name]
    if described["group_state"] != "Dead":
        return described
    from fleetlog.wire import messages

    coordinator = client._manager.cluster.get_coordinator(name)
    kinds = (messages.ConsumerGroupDescribeRequest, messages.ShareGroupDescribeRequest)
    for kind in kinds if coordinator is not None else ():
        request = kind(version=1, group_ids=[name], include_authorized_operations=False)
        answer = client.ask_each({coordinator: request}, PATIENCE_S)[coordinator]
        for group in answer.groups if answer is not None else ():
            if group.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                raise_for_code(f"group {name}", group.error_code, group.error_message)
                return {
                    "group_state": group.group_state,
                    "protocol_data": group.assignor_name,
                    "members": [_as_described(member) for member in group.members],
                    "shares": kind is messages.ShareGroupDescribeRequest,
                }
    return described


def _as_described(member: Any) -> dict[str, Any]:
    topics = member.assignment.topic_partitions
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "group_instance_id": getattr(member, "instance_id", None),
        "member_assignment": {
            "assigned_partitions": [{"topic": row.topic_name, "partitions": row.partitions} for row in topics]
        },
    }


def share_starts(client: Any, name: str) -> dict[Any, tuple[int, int]]:
    """Where a share group begins in each partition that it has begun in, and its lag there, -1 if that is not known."""
    from fleetlog.wire import messages

    kind = messages.DescribeShareGroupOffsetsRequest
    group = kind.DescribeShareGroupOffsetsRequestGroup(version=1, group_id=name, topics=None)
    answer = _ask_coordinator(client, name, kind(version=1, groups=[group]))
    (group,) = answer.groups
    raise_for_code(f"group {name}", group.error_code, group.error_message)
    starts = {}
    for topic in group.topics:
        for row in topic.partitions:
            raise_for_code(f"group {name}, {topic.topic_name}:{row.partition_index}", row.error_code)
            if row.start_offset >= 0:
                starts[TopicPartition(topic.topic_name, row.partition_index)] = row.start_offset, row.lag
    return starts


def _ask_coordinator(client: Any, name: str, request: Any) -> Any:
    async def send() -> Any:
        return await client._manager.send(request, node_id=await client._find_coordinator_id(name))

    return client._manager.run(send)


def _describe_share(client: Any, name: str, described: dict[str, Any]) -> dict[str, Any]:
    starts = share_starts(client, name)
    ends, windows = log_ends(client, sorted(starts)), _share_windows(client, name)
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "start": start,
            "end": ends[tp][1] if tp in ends else None,
            "lag": lag if lag >= 0 else None,
            "out": windows[tp].locked if tp in windows else None,
            "waiting": windows[tp].waiting if tp in windows else None,
            "held_back_by": _holder(windows.get(tp)),
        }
        for tp, (start, lag) in sorted(starts.items())
    ]
    return _told(client, name, described, [_member(member) for member in described["members"]], rows)


def _describe_one(client: Any, name: str) -> dict[str, Any]:
    described = _described(client, name)
    if described.get("shares"):
        return _describe_share(client, name, described)
    committed = client.list_group_offsets({name: None})[name]
    dead = described["group_state"] == "Dead"
    if dead and not committed:
        raise_for_code(f"group {name}", ErrorCode.GROUP_ID_NOT_FOUND)
    if described.get("error") and not dead:
        raise CliError(f"group {name}: {reworded(described['error'])}")
    members = [_member(member) for member in described["members"]]
    owners = {tp: member["member"] for member in members for tp in member["partitions"]}
    partitions = sorted({*committed, *owners})
    ends = log_ends(client, partitions)
    rows = []
    for tp in partitions:
        offset = committed[tp].offset if tp in committed and committed[tp].offset >= 0 else None
        begin, end = ends.get(tp, (0, None))
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": offset,
                "end": end,
                "lag": None if offset is None or end is None else max(end - max(offset, begin), 0),
                "member": owners.get(tp),
                "metadata": committed[tp].metadata if tp in committed else None,
            }
        )
    return _told(client, name, described, members, rows)


def _told(
    client: Any, name: str, described: dict[str, Any], members: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    for member in members:
        member["assigned"] = _spans(member.pop("partitions"))
    return {
        "group": name,
        "type": "share" if described.get("shares") else "consumer",
        "state": described["group_state"],
        "protocol": described["protocol_data"],
        "coordinator": client._manager.cluster.get_coordinator(name),
        "lag": sum(row["lag"] or 0 for row in rows),
        "members": members,
        "offsets": rows,
    }


def _member(member: dict[str, Any]) -> dict[str, Any]:
    assigned = member["member_assignment"]
    partitions = []
    if isinstance(assigned, dict):  # a consumer's; other protocols' assignments stay opaque bytes
        for topic in assigned.get("assigned_partitions") or ():
            partitions += [TopicPartition(topic["topic"], p) for p in topic["partitions"]]
    return {
        "member": member["member_id"],
        "client": member["client_id"],
        "host": member["client_host"],
        "instance": member.get("group_instance_id"),
        "partitions": partitions,
    }


def _spans(partitions: list[Any]) -> list[str]:
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return [f"{topic}:{','.join(map(str, listed))}" for topic, listed in by_topic.items()]


def log_ends(client: Any, partitions: list[Any]) -> dict[Any, tuple[int, int]]:
    """The first offset and the end of those partitions that exist and have a leader."""
    if not partitions:
        return {}
    existing = {
        TopicPartition(topic["name"], p["partition_index"])
        for topic in client.describe_topics(sorted({tp.topic for tp in partitions}))
        if not topic["error_code"]
        for p in topic["partitions"]
        if p["leader_id"] >= 0
    }
    wanted = [tp for tp in partitions if tp in existing]
    begins, ends = first_and_end(client, wanted)
    return {tp: (begins[tp], ends[tp]) for tp in wanted}


# --- reset ------------------------------------------------------------------------------------------------------


class OffsetReset(NamedTuple):
    """What a reset does to one partition."""

    partition: Any
    committed: int | None
    new: int


@groups.command("reset")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic",
    "wanted",
    multiple=True,
    callback=topic_partitions,
    metavar="TOPIC[:P,...]",
    help="Topics or partitions to reset.  [default: all that the group has committed]",
)
@click.option("--to-earliest", is_flag=True, help="The first record.")
@click.option("--to-latest", is_flag=True, help="The end, after the last record.")
@click.option("--to-offset", type=click.IntRange(0, 2**63 - 1), metavar="OFFSET", help="This offset.")
@click.option(
    "--to-datetime", type=TimeType(), metavar="TIME", help="The first record at or after this time: 2013-01-31T12:00."
)
@click.option("--by-duration", type=DurationType(), metavar="SPAN", help="The first record of the last 90s, 1h30m, ...")
@click.option("--to", type=PointType(), metavar="POSITION",
              help="As `consume --from` has them: beginning, end, end-10, an offset, a time, -1h.")  # fmt: skip
@click.option("--shift-by", type=int, metavar="N", help="N records forward, or back when negative.")
@click.option("--execute", is_flag=True, help="Perform the reset. Without it, only show the plan.")
@client_options
def reset_group_offsets(
    target: Target, out: Output, name: str, wanted: list[PartitionsOf], execute: bool, **how: Any
) -> None:
    """Move a group's committed offsets, or where a share group begins. Shows the plan; --execute performs it.

    `seek` is another name of `reset`.
    """
    chosen = [key for key, value in how.items() if value is not None and value is not False]
    if len(chosen) != 1:
        options = ", ".join("--" + key.replace("_", "-") for key in how)
        raise click.UsageError(f"give exactly one of {options}")
    with admin(target, f"group {name}") as client:
        described = _described(client, name)
        state, shares = described["group_state"], bool(described.get("shares"))
        moves = _plan(client, name, wanted, chosen[0], how[chosen[0]], shares)
        if execute:
            if state not in MEMBERLESS:
                raise CliError(f"group {name} has active members (it is {state}); stop them first (NON_EMPTY_GROUP)")
            (_begin_at if shares else _commit)(client, name, moves)
    _show(out, moves, execute)
    if not execute and state not in MEMBERLESS:
        click.echo(f"fleetlog: the group is {state}: its members must stop before --execute", err=True)


_POINTS: Final[dict[str, Callable[[Any], Point]]] = {
    "to_earliest": lambda _: Point("beginning"),
    "to_latest": lambda _: Point("end"),
    "to_offset": partial(Point, "offset"),
    "to_datetime": partial(Point, "timestamp"),
    "by_duration": lambda span_ms: Point("timestamp", time.time_ns() // 1_000_000 - span_ms),
    "to": lambda point: point,
}
"""What each option means, but --shift-by, which counts from what is committed."""


def _plan(client: Any, name: str, wanted: list[PartitionsOf], how: str, value: Any, shares: bool) -> list[OffsetReset]:
    if shares:
        committed = {tp: start for tp, (start, _) in share_starts(client, name).items()}
    else:
        committed = {tp: c.offset for tp, c in client.list_group_offsets({name: None})[name].items() if c.offset >= 0}
    if not wanted and not committed:
        raise CliError(f"group {name} has no committed offsets; name topics with --topic")
    topics = wanted or [PartitionsOf(topic, None) for topic in sorted({tp.topic for tp in committed})]
    partitions = [tp for tp in named_partitions(client, topics) if wanted or tp in committed]
    begins, ends = first_and_end(client, partitions)
    if how != "shift_by":
        goals = offsets_at(client, _POINTS[how](value), begins, ends)
    elif missing := [tp for tp in partitions if tp not in committed]:
        raise CliError(f"--shift-by: nothing is committed for {missing[0].topic}:{missing[0].partition}")
    else:
        goals = {tp: committed[tp] + value for tp in partitions}
    # An offset outside the partition cannot be read: take the nearest end.
    return [OffsetReset(tp, committed.get(tp), min(max(goals[tp], begins[tp]), ends[tp])) for tp in sorted(partitions)]


def _commit(client: Any, name: str, moves: list[OffsetReset]) -> None:
    offsets = {move.partition: OffsetAndMetadata(move.new, "", -1) for move in moves}
    for tp, error in client.alter_group_offsets(name, offsets).items():
        code = getattr(error, "errno", 0)
        raise_for_code(f"group {name}, {tp.topic}:{tp.partition}", code)


def _begin_at(client: Any, name: str, moves: list[OffsetReset]) -> None:
    """A share group begins at these offsets."""
    from fleetlog.wire import messages

    kind, by_topic = messages.AlterShareGroupOffsetsRequest, dict[str, list[Any]]()
    for move in moves:
        part = kind.AlterShareGroupOffsetsRequestTopic.AlterShareGroupOffsetsRequestPartition
        row = part(partition_index=move.partition.partition, start_offset=move.new)
        by_topic.setdefault(move.partition.topic, []).append(row)
    topics = [
        kind.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=rows) for topic, rows in by_topic.items()
    ]
    answer = _ask_coordinator(client, name, kind(version=0, group_id=name, topics=topics))
    raise_for_code(f"group {name}", answer.error_code, answer.error_message)
    for topic in answer.responses:
        for row in topic.partitions:
            raise_for_code(f"group {name}, {topic.topic_name}:{row.partition_index}", row.error_code)


def _show(out: Output, moves: list[OffsetReset], execute: bool) -> None:
    columns = ["topic", "partition", "committed", "new", "change"]
    rows = [
        [
            m.partition.topic,
            m.partition.partition,
            m.committed,
            m.new,
            None if m.committed is None else m.new - m.committed,
        ]
        for m in moves
    ]
    out.rows(columns, rows)
    if not execute:
        click.echo("fleetlog: nothing was changed; add --execute to perform the reset", err=True)


# --- settings ---------------------------------------------------------------------------------------------------


def settings_of_group(client: Any, name: str) -> list[Any]:
    """Each setting of a group, as DescribeConfigs has it. Raises CliError."""
    resource = ConfigResourceType.GROUP.value, name, None
    (result,) = client.ask_any(DescribeConfigsRequest(resources=[resource], include_documentation=True)).results
    raise_for_code(f"group {name}", result.error_code, result.error_message)
    return list(result.configs)


def _complete_settings(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    mark = "=" if "=" in (parameter.metavar or "") else ""
    name = ctx.params.get("name") or "any"  # all groups have the same ones
    return names_told(ctx, incomplete, lambda client: [f"{one.name}{mark}" for one in settings_of_group(client, name)])


@groups.command("alter")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option("--set", "-s", "--config", "-c", "settings", multiple=True, callback=pairs, metavar="NAME=VALUE",
              shell_complete=_complete_settings, help="A setting of the group.")  # fmt: skip
@click.option("--unset", "-u", multiple=True, metavar="NAME", shell_complete=_complete_settings,
              help="Reset to the default.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only let the broker check the request.")
@client_options
def alter_group(
    *, target: Target, out: Output, name: str, settings: dict[str, str], unset: tuple[str, ...], dry_run: bool
) -> None:
    """Change settings of a group. It need not be there yet: its members find them when they come.

    \b
      fleetlog groups alter thumbnails --set share.auto.offset.reset=earliest
    """
    if not settings and not unset:
        raise click.UsageError("nothing to change: give --set or --unset")
    changes: list[Any] = [(key, AlterConfigOp.SET.value, value) for key, value in settings.items()]
    changes += [(key, AlterConfigOp.DELETE.value, None) for key in unset]
    resource = ConfigResourceType.GROUP.value, name, changes
    with admin(target, f"group {name}") as client:
        now = {row.name: row.value for row in settings_of_group(client, name)} if dry_run else {}
        for row in client.ask_any(
            IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry_run)
        ).responses:
            raise_for_code(f"group {name}", row.error_code, row.error_message)
    done = [f"{key}={value}" for key, value in settings.items()] + [f"{key} back to its default" for key in unset]
    value: dict[str, Any] = {"group": name, "set": settings, "unset": list(unset), "dry_run": dry_run}
    value |= {"now": {key: now.get(key) for key in (*settings, *unset)}} if dry_run else {}
    out.done(f"group {name} {'would have' if dry_run else 'has now'} {', '.join(done)}", value)


# --- delete -----------------------------------------------------------------------------------------------------


@groups.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@click.option(
    "--topic",
    "wanted",
    multiple=True,
    callback=topic_partitions,
    metavar="TOPIC[:P,...]",
    help="Delete only the offsets of these topics or partitions.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@client_options
def delete_groups(target: Target, out: Output, names: tuple[str, ...], wanted: list[PartitionsOf], yes: bool) -> None:
    """Delete groups with their committed offsets (or only offsets of some topics)."""
    what = "offsets of " if wanted else ""
    confirm(f"Delete {what}{', '.join(names)}?", yes)
    with admin(target) as client:
        for name in names:
            if wanted and _described(client, name).get("shares"):
                _forget_topics(client, name, wanted)
            elif wanted:
                with explained(target, f"group {name}"):
                    answer = client.delete_group_offsets(name, named_partitions(client, wanted))
                for tp, failure in answer.items():
                    raise_for_code(f"group {name}, {tp.topic}:{tp.partition}", getattr(failure, "errno", 0))
            else:
                _delete_group(client, name)
    out.done("\n".join(f"{what}{name}: deleted" for name in names), list(names))


def _forget_topics(client: Any, name: str, wanted: list[PartitionsOf]) -> None:
    """Of a share group whole topics are forgotten."""
    from fleetlog.wire import messages

    if any(one.partitions is not None for one in wanted):
        raise CliError(f"group {name} is a share group: its offsets are deleted by topic")
    kind = messages.DeleteShareGroupOffsetsRequest
    topics = [kind.DeleteShareGroupOffsetsRequestTopic(topic_name=one.topic) for one in wanted]
    answer = _ask_coordinator(client, name, kind(version=0, group_id=name, topics=topics))
    raise_for_code(f"group {name}", answer.error_code, answer.error_message)
    for row in answer.responses:
        raise_for_code(f"group {name}, {row.topic_name}", row.error_code)


def _delete_group(client: Any, name: str) -> None:
    from fleetlog.wire.messages import DeleteGroupsRequest

    for result in _ask_coordinator(client, name, DeleteGroupsRequest(groups_names=[name])).results:
        raise_for_code(f"group {name}", result.error_code)
