"""``fleetlog log verify``: whether the files of log directories are whole. Nothing is changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from fleetlog.brokers.cli.output import CliError, bytes_text, count_text, progress, warn
from fleetlog.brokers.log.segment import LOG_SUFFIX
from fleetlog.brokers.log.verify import Verified, partition_of, verify_partition


@click.command("verify")
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIRECTORY...",
)
@click.option("--records", "-r", is_flag=True, help="Also decompress and decode every record.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per partition and line, for programs.")
def verify_logs(*, paths: tuple[Path, ...], records: bool, as_json: bool) -> None:
    """Read every batch and compare checksums, offsets, indexes, leader epochs and producer snapshots.

    DIRECTORY is a log directory or a partition's directory (orders-0). Brokers may run meanwhile. Exits with 1 if
    anything is damaged, and says what to do.
    """
    directories = [directory for path in paths for directory in _partitions(path)]
    total = sum(_size(directory) for directory in directories)
    damaged = 0
    with progress(not as_json or sys.stdout.isatty()) as bar:
        task = bar.add_task("MB read", total=total // 1_000_000)
        done = 0

        def advance(read: int) -> None:
            nonlocal done
            done += read
            bar.update(task, completed=done // 1_000_000)

        for directory in directories:
            try:
                verified = verify_partition(directory, records=records, progress=advance)
            except OSError as error:
                raise CliError(f"{error.filename or directory}: {error.strerror or error}") from error
            damaged += bool(verified.problems)
            if as_json:
                click.echo(json.dumps(_row(verified)))
            else:
                _tell(verified)
    if damaged:
        warn(
            f"{damaged} of {count_text(len(directories), 'partition', 'are')} damaged. Where others are in sync, stop"
            " the broker, move the partition's directory away and start the broker: it fetches the partition again"
        )
        sys.exit(1)


def _partitions(path: Path) -> list[Path]:
    if partition_of(path.resolve()) is not None and any(path.glob("*" + LOG_SUFFIX)):
        return [path.resolve()]
    directories = sorted(one for one in path.iterdir() if one.is_dir() and partition_of(one) is not None)
    if not directories:
        raise CliError(f"{path} is neither a log directory nor a partition's directory (TOPIC-PARTITION)")
    return directories


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*" + LOG_SUFFIX))


def _row(found: Verified) -> dict[str, Any]:
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "directory": found.directory,
        "start": found.start,
        "end": found.end,
        "segments": found.segments,
        "batches": found.batches,
        "bytes": found.size,
        "unfinished_bytes": found.unfinished,
        "problems": [problem._asdict() for problem in found.problems],
        "more_problems": found.more,
    }


def _tell(found: Verified) -> None:
    tp = found.partition
    verdict = count_text(len(found.problems) + found.more, "problem") if found.problems else "whole"
    end = f", {count_text(found.unfinished, 'byte')} behind the last whole batch" if found.unfinished else ""
    stored = f"{count_text(found.batches, 'batch')} in {count_text(found.segments, 'segment')}"
    click.echo(
        f"{tp.topic}-{tp.partition}: {verdict}; offsets {found.start} to {found.end}, {stored},"
        f" {bytes_text(found.size)}{end}"
    )
    for problem in found.problems:
        at = f" offset {problem.offset}:" if problem.offset >= 0 else ""
        click.echo(f"  {problem.file}:{at} {problem.what}")
    if found.more:
        click.echo(f"  ... and {found.more} more")
