"""``fleetlog``, the command line. Each subject is a module that declares one click group or command."""

from __future__ import annotations

import click

from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.core_dumps import switch_core_dumps_off

# Subjects are imported on first use: `fleetlog broker` must not pay for the tables and clients of the others.
_SUBJECTS = {
    "acls": ("fleetlog.brokers.cli.acls", "acls", "Access control lists: list, add, remove."),
    "apply": ("fleetlog.brokers.cli.apply", "apply", "Make the fleet what a file says: topics, users, ACLs, quotas."),
    "broker": ("fleetlog.brokers.cli.broker", "broker", "Run one broker from a properties file."),
    "brokers": (
        "fleetlog.brokers.cli.fleet_brokers",
        "brokers",
        "Single brokers: drain, replace, unregister, levels of their loggers.",
    ),
    "cluster": ("fleetlog.brokers.cli.cluster", "cluster", "The fleet: describe, health, config, rebalance."),
    "completion": ("fleetlog.brokers.cli.completion", "completion", "Print the shell completion script."),
    "config": ("fleetlog.brokers.cli.broker", "config", "List every setting of a broker or a topic."),
    "console": (
        "fleetlog.brokers.console.command",
        "console",
        "A console for browsers: fleet, topics, messages, groups.",
    ),
    "consume": ("fleetlog.brokers.cli.consume", "consume", "Read records."),
    "debug": ("fleetlog.brokers.cli.debug", "debug", "Help others to help: a bundle of what a fleet shows."),
    "dev": ("fleetlog.brokers.cli.dev", "dev", "A local fleet with a ZooKeeper server: up, status, kill, add, down."),
    "doctor": ("fleetlog.brokers.cli.doctor", "doctor", "Say what is wrong with the fleet, why, and what to do."),
    "features": ("fleetlog.brokers.cli.features", "features", "Finalized features: describe, upgrade."),
    "groups": ("fleetlog.brokers.cli.groups", "groups", "Consumer groups: list, lag, describe, reset, delete."),
    "host": ("fleetlog.brokers.cli.host", "host", "All brokers of one machine as one unit: run, restart, status."),
    "log": ("fleetlog.brokers.cli.logs", "log", "Read the files of log directories."),
    "mcp": (
        "fleetlog.brokers.cli.model_context",
        "serve_tools",
        "Tools for programs that speak the Model Context Protocol.",
    ),
    "produce": ("fleetlog.brokers.cli.produce", "produce", "Write records."),
    "profile": ("fleetlog.brokers.cli.profile", "profile", "Fleets by name: create, use, list, show, edit, delete."),
    "quotas": ("fleetlog.brokers.cli.quotas", "quotas", "Client quotas: list, set, remove."),
    "records": ("fleetlog.brokers.cli.records", "records", "Single records: write one, copy one."),
    "registry": (
        "fleetlog.brokers.schemas.command",
        "registry",
        "A schema registry that keeps its schemas in the fleet.",
    ),
    "sinks": ("fleetlog.brokers.cli.sinks", "sinks", "Exactly-once sinks: list, describe, reset."),
    "spark": ("fleetlog.brokers.cli.spark", "spark", "Spark: pack an archive for executors."),
    "topics": (
        "fleetlog.brokers.cli.topics",
        "topics",
        "Topics: create, describe, alter, analyze, trim, reassign, elect, delete.",
    ),
    "users": ("fleetlog.brokers.cli.users", "users", "Users that log in by SCRAM: add, list, remove."),
    "transactions": (
        "fleetlog.brokers.cli.transactions",
        "transactions",
        "Transactions: list, describe, fence, producers.",
    ),
}


class _Subjects(CommandGroup):
    """A group whose help imports none of its commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row[2]) for name, row in sorted(_SUBJECTS.items())])


@click.command(
    cls=_Subjects,
    later={name: row[:2] for name, row in _SUBJECTS.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="fleetlog", prog_name="fleetlog")
def cli() -> None:
    """A fleet of brokers that speak the Kafka protocol, coordinated by ZooKeeper."""


def main() -> None:
    """Entry point of the ``fleetlog`` script."""
    switch_core_dumps_off()
    cli(prog_name="fleetlog")


if __name__ == "__main__":
    main()
