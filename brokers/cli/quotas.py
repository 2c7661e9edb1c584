"""``fleetlog quotas``: how much clients may use, by user, client id, both, or address. Names are Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from fleetlog.brokers.cli.client import Target, admin, client_options, raise_for_code
from fleetlog.brokers.cli.command_group import CommandGroup, together
from fleetlog.brokers.cli.output import CliError, Output, confirm
from fleetlog.brokers.quotas.entities import CLIENT_ID, CLIENT_KEYS, IP, IP_KEYS, USER, MatchType
from fleetlog.wire.messages import request_class

DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
COLUMNS = ["user", "client id", "address", "quota", "value"]
ALL_OTHERS = "<default>"
"""What the list shows for the entity of all that have no quota of their own."""

_KINDS = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}
_QUOTAS = {**CLIENT_KEYS, **IP_KEYS}
_Named = list[tuple[str, str | None]]


_entity_options = together(
    click.option("--user", metavar="NAME", help="A user."),
    click.option("--user-default", is_flag=True, help="All users without a quota of their own."),
    click.option("--client-id", metavar="ID", help="A client id; with a user: of that user."),
    click.option("--client-id-default", is_flag=True, help="All client ids without a quota of their own."),
    click.option("--ip", metavar="ADDRESS", help="A client's address."),
    click.option("--ip-default", is_flag=True, help="All addresses without a quota of their own."),
    client_options,
)


def _entity(options: dict[str, Any]) -> _Named:
    """Type and name (None: the default) of what the options name."""
    parts: _Named = []
    for kind, option in _KINDS.items():
        name, default = options.pop(option), options.pop(f"{option}_default")
        if name is not None and default:
            raise click.UsageError(f"--{kind} and --{kind}-default exclude each other")
        if name is not None or default:
            parts.append((kind, name))
    if len(parts) > 1 and parts[-1][0] == IP:
        raise click.UsageError("an address has quotas of its own: give --ip alone")
    return parts


def _needed(options: dict[str, Any]) -> _Named:
    entity = _entity(options)
    if not entity:
        raise click.UsageError("name a user, a client id or an address, or one of the defaults")
    return entity


def _rates(_context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]) -> dict[str, float]:
    rates = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in _QUOTAS:
            raise click.BadParameter(f"{name}: quotas are {', '.join(_QUOTAS)}")
        try:
            rates[name] = float(text)
        except ValueError:
            raise click.BadParameter(f"{word}: write it as {name}=NUMBER") from None
    return rates


@click.group(cls=CommandGroup)
def quotas() -> None:
    """Client quotas: list, set, remove. They hold at each broker by itself.

    producer_byte_rate and consumer_byte_rate: bytes per second. request_percentage: of one broker's time.
    controller_mutation_rate: partitions created or deleted per second. connection_creation_rate: per second, of an
    address.
    """


@quotas.command("list")
@_entity_options
def list_quotas(target: Target, out: Output, **options: Any) -> None:
    """List quotas: all, or those of what the options name, and of nothing else."""
    named = _entity(options)
    with admin(target) as client:
        out.rows(COLUMNS, quota_rows(client, named))


@quotas.command("set")
@click.argument("rates", nargs=-1, required=True, metavar="QUOTA=NUMBER...", callback=_rates)
@_entity_options
def set_quotas(rates: dict[str, float], target: Target, out: Output, **options: Any) -> None:
    """Set quotas, for example: fleetlog quotas set --user alice producer_byte_rate=1048576."""
    named = _needed(options)
    with admin(target) as client:
        alter_quotas(client, named, rates)
        out.rows(COLUMNS, quota_rows(client, named), title="now")


@quotas.command("remove")
@click.argument("names", nargs=-1, metavar="[QUOTA...]")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@_entity_options
def remove_quotas(names: tuple[str, ...], yes: bool, target: Target, out: Output, **options: Any) -> None:
    """Remove quotas of a user, client id or address; without names: all that it has."""
    named = _needed(options)
    with admin(target) as client:
        present = [row[3] for row in quota_rows(client, named)]
        gone = [name for name in names or present if name in present]
        if not gone:
            raise CliError("there is no such quota; see `fleetlog quotas list`")
        confirm(f"Remove {', '.join(gone)}?", yes)
        alter_quotas(client, named, dict.fromkeys(gone))
        out.rows(COLUMNS, quota_rows(client, named), title="left")


def quota_rows(client: Any, named: _Named) -> list[list[Any]]:
    """The rows of the list: of what is named and of nothing else, or of all. Raises CliError."""
    kind = request_class(DESCRIBE_QUOTAS)
    components = [
        kind.ComponentData(
            entity_type=entity_type,
            match_type=int(MatchType.DEFAULT if name is None else MatchType.EXACT),
            match=name,
        )
        for entity_type, name in named
    ]
    answer = client.ask_any(kind(components=components, strict=bool(named)))
    raise_for_code("quotas", answer.error_code, answer.error_message)
    rows = []
    for entry in answer.entries:
        names = {one.entity_type: ALL_OTHERS if one.entity_name is None else one.entity_name for one in entry.entity}
        rows += [[*(names.get(one, "") for one in _KINDS), value.key, _number(value.value)] for value in entry.values]
    return rows


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def alter_quotas(client: Any, named: _Named, rates: Mapping[str, float | None]) -> None:
    """Set quotas of one entity, and remove those of None. Raises CliError."""
    kind = request_class(ALTER_QUOTAS)
    entity = [kind.EntryData.EntityData(entity_type=one, entity_name=name) for one, name in named]
    ops = [kind.EntryData.OpData(key=key, value=rate or 0.0, remove=rate is None) for key, rate in rates.items()]
    answer = client.ask_any(kind(entries=[kind.EntryData(entity=entity, ops=ops)], validate_only=False))
    for entry in answer.entries:
        raise_for_code("quotas", entry.error_code, entry.error_message)
