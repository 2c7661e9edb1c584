"""What is wrong with the fleet, why, and what to do: the findings of ``fleetlog doctor``."""

from __future__ import annotations

from brokers.cli.diagnosis import Severity, Thresholds, findings_of
from brokers.cli.doctor import gathered
from brokers.console.asking import Answer, Asking

LEVELS = {Severity.ERROR: "bad", Severity.WARNING: "warning", Severity.NOTE: "good"}


def doctor_page(asking: Asking) -> Answer:
    """All findings, the worst first; what cannot be asked in two seconds is a finding, too."""
    facts = gathered(asking.client)
    found = findings_of(facts, Thresholds())
    return {
        "brokers": len(facts.overview.live_brokers()),
        "partitions": len(facts.overview.partitions),
        "findings": [
            {**one._asdict(), "severity": one.severity.name.lower(), "level": LEVELS[one.severity]} for one in found
        ],
    }
