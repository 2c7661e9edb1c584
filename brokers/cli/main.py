"""``fleetlog``, the command line. Each subject is a module that declares one click group or command."""

from __future__ import annotations

import click

from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.core_dumps import switch_core_dumps_off

# Subjects are imported on first use: `fleetlog broker` must not pay for the tables and clients of the others.
_SUBJECTS = {
    "acls": "Access control lists: list, add, set, remove.",
    "apply": "Make the fleet what a file says: topics, users, ACLs, quotas.",
    "broker": "Run one broker from a properties file.",
    "brokers": "Single brokers: config, drain, replace, unregister, levels of their loggers.",
    "bucket": "The bucket of tiered storage: status, enable, verify, sweep, take.",
    "cluster": "The fleet: describe, health, config, rebalance.",
    "completion": "Print the shell completion script.",
    "config": "List every setting of a broker or a topic.",
    "console": "A console for browsers: fleet, topics, messages, groups.",
    "consume": "Read records.",
    "debug": "Help others to help: a bundle of what a fleet shows.",
    "dev": "A local fleet with a ZooKeeper server: up, status, kill, add, down.",
    "dlq": "Dead letters of share groups: list, show, replay, purge.",
    "doctor": "Say what is wrong with the fleet, why, and what to do.",
    "features": "Finalized features: describe, upgrade.",
    "groups": "Consumer groups: list, lag, describe, reset, delete.",
    "host": "All brokers of one machine as one unit: run, restart, status.",
    "log": "Read the files of log directories.",
    "logs": "The newest lines of the brokers' logs: tail.",
    "mcp": "Tools for programs that speak the Model Context Protocol.",
    "plan": "What a fleet needs for a load: brokers, cores, network, disks.",
    "produce": "Write records.",
    "profile": "Fleets by name: create, use, list, show, edit, delete.",
    "quotas": "Client quotas: list, set, remove.",
    "records": "Single records: write one, copy one.",
    "registry": "A schema registry that keeps its schemas in the fleet.",
    "schemas": "Schemas of a registry: list, show, register, check, compatibility, diff, delete.",
    "sinks": "Exactly-once sinks: list, describe, reset.",
    "spark": "Spark: pack an archive for executors.",
    "topics": "Topics: create, describe, alter, analyze, trim, reassign, elect, delete.",
    "users": "Users that log in by SCRAM: add, list, remove.",
    "transactions": "Transactions: list, describe, fence, producers.",
}
"""What each is for; its module and its command have its name, but for those that stand elsewhere."""
_ELSEWHERE = {
    "brokers": ("fleetlog.brokers.cli.fleet_brokers", "brokers"),
    "config": ("fleetlog.brokers.cli.broker", "config"),
    "console": ("fleetlog.brokers.console.command", "console"),
    "log": ("fleetlog.brokers.cli.logs", "log"),
    "logs": ("fleetlog.brokers.cli.broker_logs", "logs"),
    "mcp": ("fleetlog.brokers.cli.model_context", "serve_tools"),
    "plan": ("fleetlog.brokers.cli.plan", "plan_fleet"),
    "registry": ("fleetlog.brokers.schemas.command", "registry"),
    "schemas": ("fleetlog.brokers.schemas.client", "schemas"),
}


class _Subjects(CommandGroup):
    """A group whose help imports none of its commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_SUBJECTS.items()))


@click.command(
    cls=_Subjects,
    later={name: _ELSEWHERE.get(name, (f"fleetlog.brokers.cli.{name}", name)) for name in _SUBJECTS},
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
