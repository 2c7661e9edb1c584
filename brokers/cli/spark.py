"""``fleetlog spark``: what Spark's clusters need."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.output import count_text


@click.group(cls=CommandGroup)
def spark() -> None:
    """Spark: an archive with all that executors need."""


@spark.command()
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False), default="fleetlog-spark.tar.gz")
@click.option("--add", "more", metavar="PACKAGE", multiple=True, help="One more installed package. May be repeated.")
def pack(archive: Path, more: tuple[str, ...]) -> None:
    """Write an ARCHIVE for `spark-submit --archives`, and print how to submit with it.

    It holds this Python, fleetlog with compiled kernels, and what Spark's side of it requires: executors need nothing
    installed but Spark. They need the operating system and the processor of this machine.
    """
    from fleetlog.spark import packing  # late: the other commands do not look for installed packages

    try:
        packed = packing.write_archive(archive, more)
    except packing.PackError as problem:
        raise click.ClickException(str(problem)) from problem
    version = ".".join(map(str, sys.version_info[:3]))
    packages = count_text(len(packed.packages), "package")
    click.echo(f"{archive}: Python {version}, {packages}, {packed.bytes / 2**20:.0f} MiB")
    click.echo("To submit with the driver on this machine:")
    click.echo(f"  mkdir -p fleetlog && tar xzf {archive} -C fleetlog")
    click.echo(f"  PYSPARK_PYTHON=./fleetlog/bin/python spark-submit --archives {archive}#fleetlog JOB.py")
    click.echo("With the driver in the cluster (--deploy-mode cluster) the first line is not needed.")
