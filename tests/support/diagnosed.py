"""What ``fleetlog doctor`` finds at a fleet that is in trouble."""

from __future__ import annotations

import json
import time
from typing import Any

from click.testing import CliRunner

from brokers.cli.main import cli
from tests.support.troubles import Trouble, TroubledFleet

PATIENCE_S = 60.0
LIMITS = ("--transaction-s", "1", "--sync-ms", "500", "--hot-mb", "0.1")
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
