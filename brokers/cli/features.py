"""``fleetlog features``: what all brokers support and the fleet counts on (KIP-584)."""

from __future__ import annotations

from typing import Any

import click

from fleetlog.brokers.cli.client import Target, admin, client_options, raise_for_code
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.output import CliError, Output, table
from fleetlog.wire import messages


@click.group(cls=CommandGroup)
def features() -> None:
    """Finalized features: what every broker supports, so that brokers and clients count on it."""


@features.command("describe")
@client_options
def describe_features(target: Target, out: Output) -> None:
    """Show each feature with the levels that the broker supports, and the level that is finalized."""
    with admin(target) as client:
        answer = _versions(client)
    finalized = {row.name: row.max_version_level for row in answer.finalized_features or ()}
    rows = [
        {"feature": row.name, "supported": [row.min_version, row.max_version], "finalized": finalized.get(row.name, 0)}
        for row in answer.supported_features or ()
    ]
    epoch = answer.finalized_features_epoch
    if out.as_json:
        out.value({"epoch": epoch, "features": rows})
        return
    shown = [[row["feature"], "{} to {}".format(*row["supported"]), row["finalized"]] for row in rows]
    table(["feature", "supported", "finalized"], shown)
    click.echo(f"epoch {epoch}")


@features.command("upgrade")
@click.argument("wanted", nargs=-1, metavar="[NAME=LEVEL]...")
@click.option("--dry-run", is_flag=True, help="Only say whether it is possible.")
@client_options
def upgrade_features(*, target: Target, out: Output, wanted: tuple[str, ...], dry_run: bool) -> None:
    """Finalize levels of features, by default the newest of all, once every broker runs the new version.

    It is refused while a registered broker lacks a level. Afterwards a broker of a version that lacks it cannot
    start any more.

    \b
      fleetlog features upgrade --dry-run
      fleetlog features upgrade transaction.version=2
    """
    levels = dict(_level(word) for word in wanted)
    with admin(target) as client:
        if not levels:
            levels = {row.name: row.max_version for row in _versions(client).supported_features or ()}
        request = messages.UpdateFeaturesRequest
        updates = [request.FeatureUpdateKey(feature=name, max_version_level=to) for name, to in levels.items()]
        answer = client.ask_any(
            request(timeout_ms=target.timeout_ms, feature_updates=updates, validate_only=dry_run, min_version=1)
        )
    for row in [answer, *(answer.results or ())]:
        raise_for_code("the features stay as they are", row.error_code, row.error_message)
    what = ", ".join(f"{name} at level {level}" for name, level in levels.items())
    out.done(f"{what}: {'possible' if dry_run else 'finalized'}", {"features": levels, "finalized": not dry_run})


def _level(word: str) -> tuple[str, int]:
    name, _, level = word.partition("=")
    if not name or not level.isdecimal():
        raise click.UsageError(f"{word}: write it as NAME=LEVEL")
    return name, int(level)


def _versions(client: Any) -> Any:
    """ApiVersions of a broker; version 3 leaves features out whose lowest level is 0."""
    request = messages.ApiVersionsRequest
    answer = client.ask_any(request(client_software_name="fleetlog", client_software_version="1", min_version=4))
    if answer.error_code:
        raise CliError("the broker does not say which features it supports")
    return answer
