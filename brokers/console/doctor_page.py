"""What is wrong with the fleet, why, and what to do: the findings of ``fleetlog doctor``."""

from __future__ import annotations

import re
from typing import Any

from fleetlog.brokers.cli.diagnosis import Severity, Thresholds, findings_of
from fleetlog.brokers.cli.doctor import gathered
from fleetlog.brokers.cli.output import number_text
from fleetlog.brokers.console.asking import Answer, Asking, PageError

LEVELS = {Severity.ERROR: "bad", Severity.WARNING: "warning", Severity.NOTE: "good"}


def doctor_page(asking: Asking) -> Answer:
    """All findings, the worst first; what cannot be asked in two seconds is a finding, too. Raises PageError."""
    limits = thresholds(asking)
    facts = gathered(asking.client)
    findings = findings_of(facts, limits)
    given = limits._asdict()
    changed = [name for name, default in Thresholds()._asdict().items() if given[name] != default]
    return {
        "brokers": len(facts.overview.live_brokers()),
        "partitions": len(facts.overview.partitions),
        "limits": given,
        "command": " ".join(
            ["fleetlog doctor", *(f"--{name.replace('_', '-')}={number_text(given[name])}" for name in changed)]
        ),
        "findings": [
            {**one._asdict(), "severity": one.severity.name.lower(), "level": LEVELS[one.severity]} for one in findings
        ],
    }


def thresholds(asking: Asking) -> Thresholds:
    """From when on something is a trouble: the command's options by their names with underscores; raises PageError."""
    limits: dict[str, Any] = {}
    for name, default in Thresholds()._asdict().items():
        text = asking.text(name)
        if isinstance(default, int):
            limits[name] = asking.number(name, default, 1, 10**9)
        elif not text:
            limits[name] = default
        elif re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text):
            limits[name] = float(text)
        else:
            raise PageError(400, f"{name} must be a number such as 0.5, not {text[:40]!r}")
    return Thresholds(**limits)
