"""What ``fleetlog doctor``, and the console's page of it, find at a fleet that is in trouble."""

from __future__ import annotations

import json
import time
from html.parser import HTMLParser
from typing import Any

from click.testing import CliRunner

from fleetlog.brokers.cli.main import cli
from tests.console.served import Visitor
from tests.support.troubles import Trouble, TroubledFleet

PATIENCE_S = 60.0
LIMITS = ("--transaction-s", "1", "--sync-ms", "500", "--hot-mb", "0.1", "--loop-ms", "60000")
PAGE = "/doctor?transaction_s=1&sync_ms=500&hot_mb=0.1&loop_ms=60000"
"""The console's page with the same limits."""
COLUMNS = ("severity", "check", "where", "what", "why", "todo")
Findings = list[dict[str, Any]]


def examined(troubled: TroubledFleet, *options: str) -> Findings:
    """All findings but notes."""
    command = ["doctor", "--json", "-b", troubled.fleet.bootstrap, *LIMITS, *options]
    done = CliRunner().invoke(cli, command, catch_exceptions=False)
    found: Findings = json.loads(done.stdout)
    return [one for one in found if one["severity"] != "note"]


def found_by_doctor(troubled: TroubledFleet, sought: Trouble) -> tuple[dict[str, Any], Findings]:
    """The finding that names the cause, and the others; it is waited for. Raises AssertionError."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        found = examined(troubled)
        for one in found:
            if (one["check"], one["where"]) == sought[:2] and sought.words in f"{one['what']}; {one['why']}":
                return one, [other for other in found if other is not one]
        assert time.monotonic() < deadline_s, f"{sought} is not among {found}"


def until_nothing_is_wrong(troubled: TroubledFleet) -> None:
    """Wait until the trouble before is over; a slow disk is told for two minutes more. Raises AssertionError."""
    deadline_s = time.monotonic() + 3 * PATIENCE_S
    while found := examined(troubled, "--sync-ms", "100000"):
        assert time.monotonic() < deadline_s, f"these do not go away: {found}"


class _Rows(HTMLParser):
    """The cells of a page's tables, as one reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._within = False

    def handle_starttag(self, tag: str, _attributes: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
            self._within = True

    def handle_endtag(self, tag: str) -> None:
        self._within = self._within and tag != "td"

    def handle_data(self, data: str) -> None:
        if self._within:
            self.rows[-1][-1] += data


def findings_on(page: str) -> Findings:
    """The findings that the console's page shows, from its HTML."""
    reader = _Rows()
    reader.feed(page)
    return [dict(zip(COLUMNS, row, strict=True)) for row in reader.rows if row]


def found_by_console(console: Visitor, sought: Trouble) -> dict[str, Any]:
    """The finding of the console's page that names the cause; it is waited for. Raises AssertionError."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        found = findings_on(console.page(PAGE))
        for one in found:
            if (one["check"], one["where"]) == sought[:2] and sought.words in f"{one['what']}; {one['why']}":
                return one
        assert time.monotonic() < deadline_s, f"{sought} is not among {found}"
