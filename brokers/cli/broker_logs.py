"""``fleetlog logs``: the newest lines of brokers' logs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from fleetlog.brokers.cli.client import Target, admin, client_options, raise_for_code
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.options import BROKER_ID
from fleetlog.brokers.cli.output import CliError, Output, iso, visible, warn
from fleetlog.brokers.log_levels import LEVELS

if TYPE_CHECKING:
    from fleetlog.brokers.cli.admin_client import AdminClient

LINES_MAX: Final = 200
"""Of one answer."""
KEPT_MAX: Final = 10_000
"""More than a broker keeps: while one writes faster than it is read, the reading ends."""
LOOK_S: Final = 1.0
UNTOLD: Final = "broker {} does not tell its log: it does not answer, or is older than this command"
TELLS: Final = (
    "brokers' logs name topics, groups, principals and addresses of clients; what looks like a secret, and the audit's"
    " lines, are left out"
)


@click.group(cls=CommandGroup)
def logs() -> None:
    """The brokers' logs: tail."""


@logs.command()
@click.option("--broker", "wanted", type=BROKER_ID, multiple=True, help="Only this one; may be repeated.")
@click.option("--lines", "-n", type=click.IntRange(1, LINES_MAX), default=20, show_default=True, help="Of each broker.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "--level",
    type=click.Choice(tuple(reversed(LEVELS)), case_sensitive=False),
    default="TRACE",
    help="From this level on.",
)
@click.option("--logger", "prefix", default="", metavar="NAME", help="Only loggers that begin so.")
@client_options
def tail(
    *, target: Target, out: Output, wanted: tuple[int, ...], lines: int, follow: bool, level: str, prefix: str
) -> None:
    """Show the newest lines of brokers' logs, merged by time, which brokers keep in memory since their start.

    It needs the right to describe the cluster. Lines name topics, groups, principals and addresses of clients; one that
    looks as if it had a secret comes without its text, and the lines of the audit do not come.
    """
    tails = _Tails(wanted, lines)
    least = LEVELS[level.upper()]
    with admin(target, "logs") as client:
        if not out.as_json:
            warn(TELLS)
        try:
            while True:
                for broker_id, one in tails.fetched(client, target.timeout_s):
                    if LEVELS[one.level] >= least and one.logger.startswith(prefix):
                        _show(out, broker_id, one)
                if not follow:
                    return
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            return


def kept_lines(client: AdminClient, broker_id: int, timeout_s: float) -> list[str]:
    """All lines that a broker keeps, the oldest first. Raises CliError where it tells none, with the reason."""
    from fleetlog.wire import messages  # which few commands need

    lines: list[Any] = []
    while True:
        number = lines[-1].number if lines else 0
        request = messages.DescribeLogLinesRequest(version=0, after_number=number, limit=LINES_MAX)
        answer = client.ask_each({broker_id: request}, timeout_s)[broker_id]
        if answer is None:
            raise CliError(UNTOLD.format(broker_id))
        raise_for_code(f"the log of broker {broker_id}", answer.error_code)
        lines += answer.lines
        if len(answer.lines) < LINES_MAX or len(lines) >= KEPT_MAX:
            return [f"{iso(one.time_ms)} {one.level} {one.logger} {one.message}" for one in lines]


def _show(out: Output, broker_id: int, one: Any) -> None:
    if out.as_json:
        row = {"time": iso(one.time_ms), "level": one.level, "logger": one.logger, "broker": broker_id}
        click.echo(json.dumps(row | {"message": one.message}, ensure_ascii=False))
        return
    click.echo(f"{iso(one.time_ms)} {broker_id} {one.level} {one.logger} {visible(one.message)}")


class _Tails:
    """How far each broker's log is shown."""

    def __init__(self, wanted: tuple[int, ...], lines: int) -> None:
        self._wanted, self._lines = wanted, lines
        self._shown: dict[int, tuple[int, int]] = {}
        self._silent: set[int] = set()

    def fetched(self, client: AdminClient, timeout_s: float) -> Iterable[tuple[int, Any]]:
        """What is new, by time. Raises CliError where nothing may be, or is, told."""
        from fleetlog.wire import messages  # which few commands need

        known = {row["broker_id"] for row in client.describe_cluster()["brokers"]}
        if missing := sorted(set(self._wanted) - known):
            raise CliError(f"there is no live broker {missing[0]}; see `fleetlog cluster describe`")
        requests = {}
        for broker_id in sorted(set(self._wanted) or known):
            _, number = self._shown.get(broker_id, (0, -1))
            limit = self._lines if number < 0 else LINES_MAX
            requests[broker_id] = messages.DescribeLogLinesRequest(version=0, after_number=number, limit=limit)
        rows: list[tuple[int, Any]] = []
        for broker_id, answer in client.ask_each(requests, timeout_s).items():
            if answer is None:
                self._tell(broker_id)
                continue
            raise_for_code(f"broker {broker_id}", answer.error_code)
            self._silent.discard(broker_id)
            before = self._shown.get(broker_id)
            if before is not None and before[0] != answer.since_ms:  # it has started again: all of it is new
                warn(f"broker {broker_id} has started again")
                self._shown[broker_id] = answer.since_ms, 0
                continue
            last = answer.lines[-1].number if answer.lines else before[1] if before is not None else 0
            self._shown[broker_id] = answer.since_ms, last
            rows += [(broker_id, one) for one in answer.lines]
        if len(self._silent) == len(requests):
            raise CliError("no broker tells its log: they do not answer, or are older than this command")
        return sorted(rows, key=lambda row: (row[1].time_ms, row[0], row[1].number))

    def _tell(self, broker_id: int) -> None:
        """Once for each time that it is silent."""
        if broker_id not in self._silent:
            self._silent.add(broker_id)
            warn(UNTOLD.format(broker_id))
