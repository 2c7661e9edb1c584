"""``fleetlog apply``: makes a fleet what ``fleet.yaml`` says, or tells how it differs."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType

from fleetlog.brokers.acls.image import PatternType
from fleetlog.brokers.acls.znodes import OPERATION_NAMES, PERMISSION_NAMES, TYPE_NAMES
from fleetlog.brokers.cli.acls import EVERYTHING, acl_rows
from fleetlog.brokers.cli.client import (
    Target,
    admin,
    client_options,
    raise_for_code,
    reworded,
    wait_for_topics,
    warn_of_minimum,
)
from fleetlog.brokers.cli.fleet_changes import (
    AddPartitions,
    AlterAcl,
    AlterQuota,
    AlterTopic,
    CreateTopic,
    FleetChange,
    FleetFound,
    Impossible,
    SetPassword,
    TopicFound,
    differences,
)
from fleetlog.brokers.cli.fleet_file import AclRow, Entity, FleetFile, UserWanted, read_fleet
from fleetlog.brokers.cli.output import CliError, Output, confirm, count_text
from fleetlog.brokers.cli.overview import own_settings
from fleetlog.brokers.cli.quotas import ALL_OTHERS, alter_quotas, quota_rows
from fleetlog.brokers.cli.users import alter_users_at, upsertions, users_at
from fleetlog.wire import messages
from fleetlog.wire.errors import ErrorCode

DRIFT = 3
"""The exit code of --check when the fleet differs."""
_TYPES = {name: kind for kind, name in TYPE_NAMES.items()}
_OPERATIONS = {name: operation for operation, name in OPERATION_NAMES.items()}
_PERMISSIONS = {name: permission for permission, name in PERMISSION_NAMES.items()}


@click.command()
@click.option(
    "--file", "-f", "file", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Topics, users, ACLs and quotas, as YAML or (NAME.json) JSON.",
)  # fmt: skip
@click.option("--check", is_flag=True, help=f"Only tell what differs: exit code {DRIFT} if something does, 0 if not.")
@click.option(
    "--prune", is_flag=True,
    help="Also remove settings of topics, ACLs of principals and quotas of entities that the file names, but not has.",
)  # fmt: skip
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@client_options
def apply(file: Path, check: bool, prune: bool, yes: bool, target: Target, out: Output) -> None:
    """Make the fleet what a file says: topics, users, ACLs, quotas.

    Shows what it will do, and asks. What the file doesn't name stays as it is; no topic and no user is ever deleted.
    A second run finds nothing to do.
    """
    try:
        wanted = read_fleet(file.read_text("utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{file}: {getattr(error, 'strerror', None) or 'no text in UTF-8'}") from error
    with admin(target) as client:
        changes = differences(wanted, found_in(client, wanted), prune)
        lines = [str(change) for change in changes]
        if check or not changes:
            out.done("\n".join(lines) or "nothing to do", {"changes": lines, "applied": False})
            sys.exit(DRIFT if changes else 0)
        impossible = [str(change) for change in changes if isinstance(change, Impossible)]
        if impossible:
            raise CliError("nothing was changed: " + "; ".join(impossible).replace("! ", ""))
        passwords = {one.name: password_of(one.name, one.wanted) for one in changes if isinstance(one, SetPassword)}
        if not out.as_json:
            click.echo("\n".join(lines))
        confirm(f"Make {count_text(len(changes), 'change')}?", yes)
        make(client, changes, passwords, target)
    out.done(f"made {count_text(len(changes), 'change')}", {"changes": lines, "applied": True})


def password_of(name: str, wanted: UserWanted) -> str:
    """The password of a user that needs one; raises CliError."""
    if wanted.password_env is not None:
        password = os.environ.get(wanted.password_env, "")
        where = f"the variable {wanted.password_env}"
    else:
        where = str(wanted.password_file)
        try:
            password = Path(where).read_text("utf-8").split("\n", 1)[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not a text file in UTF-8"
            raise CliError(f"user {name}: no password in {where}: {why}") from error
    if not password or "\0" in password:
        raise CliError(f"user {name}: no password in {where}")
    return password


# ---- what there is ----------------------------------------------------------------------------------------------


def found_in(client: Any, wanted: FleetFile) -> FleetFound:
    """What the fleet has of the sections that are in the file. Raises CliError."""
    return FleetFound(
        _topics_found(client, list(wanted.topics)) if wanted.topics else {},
        users_at(client, list(wanted.users)) if wanted.users else {},
        _acls_found(client) if wanted.acls is not None else (),
        _quotas_found(client) if wanted.quotas is not None else {},
    )


def _topics_found(client: Any, names: list[str]) -> dict[str, TopicFound]:
    topics = {}
    for topic in client.describe_topics(names):
        if topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        raise_for_code(f"topic {topic['name']}", topic["error_code"])
        factors = frozenset(len(partition["replica_nodes"]) for partition in topic["partitions"])
        topics[topic["name"]] = TopicFound(len(topic["partitions"]), factors, own_settings(client, topic["name"]))
    return topics


def _acls_found(client: Any) -> list[AclRow]:
    return [(row[0], row[1], row[2], row[3], row[4], row[5], row[6]) for row in acl_rows(client, EVERYTHING)]


def _quotas_found(client: Any) -> dict[Entity, dict[str, float]]:
    quotas: dict[Entity, dict[str, float]] = defaultdict(dict)
    for user, client_id, address, key, value in quota_rows(client, []):
        quotas[user, client_id, address][key] = float(value)
    return dict(quotas)


# ---- making it so -----------------------------------------------------------------------------------------------


def make(client: Any, changes: Sequence[FleetChange], passwords: dict[str, str], target: Target) -> None:
    """Make the changes in their order. Raises CliError at the first one that fails: a second run does the rest."""
    settings: dict[str, list[AlterTopic]] = defaultdict(list)
    for one in changes:
        if isinstance(one, AlterTopic):
            settings[one.name].append(one)
    for number, change in enumerate(changes):
        try:
            _make_one(client, change, settings, passwords, target)
        except CliError as error:
            if not number:
                raise
            rest = "mend this one, and run the command again for the rest"
            those = f"{number} of {count_text(len(changes), 'change', 'are')} made"
            raise CliError(f"{error}; {those}, and stay: {rest}") from error
    created = [change.name for change in changes if isinstance(change, CreateTopic)]
    if created:
        wait_for_topics(client, created, target.timeout_s)


def _make_one(
    client: Any, change: FleetChange, settings: dict[str, list[AlterTopic]], passwords: dict[str, str], target: Target
) -> None:
    match change:
        case CreateTopic():
            _create_topic(client, change, target)
        case AddPartitions():
            answer = client.create_partitions({change.name: change.wanted}, target.timeout_ms, raise_errors=False)
            for result in answer.results:
                raise_for_code(f"topic {change.name}", result.error_code, result.error_message)
        case AlterTopic():
            _alter_topic(client, change.name, settings.pop(change.name, []))
        case SetPassword():
            new = upsertions(change.name, passwords[change.name], change.mechanisms, change.wanted.iterations)
            alter_users_at(client, [], new)
        case AlterAcl():
            _alter_acl(client, change)
        case AlterQuota():
            _alter_quota(client, change)
        case Impossible():
            raise CliError(str(change))


def _create_topic(client: Any, change: CreateTopic, target: Target) -> None:
    spec = {
        "num_partitions": change.wanted.partitions or -1, "replication_factor": change.wanted.replication or -1,
        "configs": change.wanted.config,
    }  # fmt: skip
    answer = client.create_topics({change.name: spec}, target.timeout_ms, raise_errors=False)
    for topic in answer["topics"]:
        raise_for_code(f"topic {change.name}", topic["error_code"], topic.get("error_message"))
        if topic.get("replication_factor", -1) > 0:
            warn_of_minimum(change.wanted.config, topic["replication_factor"], change.name)


def _alter_topic(client: Any, name: str, changes: Sequence[AlterTopic]) -> None:
    """All settings of the topic in one request: some are only allowed together. Nothing, if they are made already."""
    if not changes:
        return
    configs = {
        one.setting: (AlterConfigOp.DELETE if one.wanted is None else AlterConfigOp.SET, one.wanted) for one in changes
    }
    resource = ConfigResource(ConfigResourceType.TOPIC, name, configs=configs)
    answer = client.alter_configs([resource], raise_on_unknown=False, incremental=True)
    result = answer.get("topic", {}).get(name, "no answer")
    if result != "OK":
        raise CliError(f"topic {name}: {reworded(result)}")
    wanted = {one.setting: one.wanted for one in changes if one.wanted is not None}
    if "min.insync.replicas" in wanted:
        (topic,) = client.describe_topics([name])
        warn_of_minimum(wanted, min(len(one["replica_nodes"]) for one in topic["partitions"]), name)


def _alter_acl(client: Any, change: AlterAcl) -> None:
    kind_name, name, pattern, verdict, operation, principal, host = change.row
    kind, pattern_type = int(_TYPES[kind_name]), int(PatternType[pattern.upper()])
    rest = {"operation": int(_OPERATIONS[operation]), "permission_type": int(_PERMISSIONS[verdict])}
    if change.removed:
        request = messages.DeleteAclsRequest
        one = request.DeleteAclsFilter(
            resource_type_filter=kind, resource_name_filter=name, pattern_type_filter=pattern_type,
            principal_filter=principal, host_filter=host, **rest,
        )  # fmt: skip
        results = client.ask_any(request(filters=[one])).filter_results
    else:
        request = messages.CreateAclsRequest
        created = request.AclCreation(
            resource_type=kind, resource_name=name, resource_pattern_type=pattern_type, principal=principal, host=host,
            **rest,
        )  # fmt: skip
        results = client.ask_any(request(creations=[created])).results
    for result in results:
        raise_for_code(str(change)[2:], result.error_code, result.error_message)


def _alter_quota(client: Any, change: AlterQuota) -> None:
    named = [
        (kind, None if name == ALL_OTHERS else name)
        for kind, name in zip(("user", "client-id", "ip"), change.entity, strict=True)
        if name
    ]
    alter_quotas(client, named, {change.key: change.wanted})
