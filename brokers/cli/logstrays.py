"""``fleetlog log strays``: what brokers have put aside instead of deleting it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import click

from fleetlog.brokers.cli.output import CliError, bytes_text, confirm, count_text, table
from fleetlog.brokers.log.directories.directories import STRAY_DIRECTORY
from fleetlog.brokers.log.disk.checkpoints import PARTITION_METADATA, DamagedFile, decode_partition_metadata
from fleetlog.brokers.model import id_text


class Stray(NamedTuple):
    """A directory that was put aside, with the bytes of its segments; ``topic_id`` is None where no file tells it."""

    path: Path
    partition: str
    topic_id: str | None
    bytes: int


@click.command("strays")
@click.argument(
    "paths", nargs=-1, required=True, metavar="DIRECTORY...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)  # fmt: skip
@click.option("--remove", is_flag=True, help="Remove them, with all their records.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value, for programs.")
def log_strays(*, paths: tuple[Path, ...], remove: bool, yes: bool, as_json: bool) -> None:
    """List the logs that lie aside in log directories, with their sizes, or remove them.

    A broker renames the log of a topic that is missing in ZooKeeper to orders-0.ID-stray, unless it has seen that the
    topic was deleted. Brokers may run meanwhile: they do not look at these.

    \b
      fleetlog log strays /var/lib/fleetlog/a /var/lib/fleetlog/b
      fleetlog log strays /var/lib/fleetlog/a --remove
    """
    strays = [stray for path in paths for stray in strays_in(path)]
    total = sum(stray.bytes for stray in strays)
    if as_json:
        click.echo(json.dumps([{**stray._asdict(), "path": str(stray.path)} for stray in strays]))
    elif strays:
        table(["partition", "topic id", "size", "directory"],
              [[one.partition, one.topic_id, bytes_text(one.bytes), str(one.path)] for one in strays])  # fmt: skip
        click.echo(f"{count_text(len(strays), 'log', 'lie')} aside, {bytes_text(total)}")
    else:
        click.echo("no log lies aside")
    if not remove or not strays:
        return
    confirm(f"Remove {count_text(len(strays), 'log')}, {bytes_text(total)}? Their records are gone then.", yes)
    for stray in strays:
        try:
            shutil.rmtree(stray.path)
        except OSError as error:
            raise CliError(f"{error.filename or stray.path}: {error.strerror or error}") from error


def strays_in(directory: Path) -> list[Stray]:
    """Those of one log directory, by name."""
    strays = []
    for path in sorted(directory.iterdir()):
        match = STRAY_DIRECTORY.fullmatch(path.name)
        if match and path.is_dir():
            size = sum(file.stat().st_size for file in path.glob("*.log"))
            strays.append(Stray(path, match["partition"], _topic_id(path), size))
    return strays


def _topic_id(directory: Path) -> str | None:
    try:
        return id_text(decode_partition_metadata((directory / PARTITION_METADATA).read_bytes()))
    except (OSError, DamagedFile):
        return None
