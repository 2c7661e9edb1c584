"""Schemas of strangers stay within their bounds, and a bound that is gone is seen."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from fleetlog.brokers.schemas import formats
from tests.cli.shell import ROOT
from tests.schemas import hostile

SEEDS = "0-59"


def test_a_registry_bears_what_strangers_send() -> None:
    """In a process of its own, whose memory is limited."""
    command = [sys.executable, "-m", "tests.schemas.hostile", SEEDS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3_000:]
    assert "0 failed" in done.stdout
    for status in ("200: ", "409: ", "422: "):
        assert status in done.stdout, "some are taken, some do not fit, some are refused"


def nested(depth: int, leaf: str) -> Any:
    """Each level compares all parts of one side with all of the other."""
    if depth == 0:
        return {"type": leaf}
    return {"oneOf": [{"type": "array", "items": nested(depth - 1, leaf), "maxItems": n} for n in range(1, 6)]}


def test_a_comparison_without_a_bound_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [{"schema": json.dumps(nested(4, leaf)), "schemaType": "JSON"} for leaf in ("string", "number")]
    monkeypatch.setattr(formats, "COMPARISONS_MAX", 2_000)
    bounded = hostile.send(bodies, random.Random(1), "bounded")
    monkeypatch.setattr(hostile, "CPU_S", bounded["cpu_s"] + 0.8)
    monkeypatch.setattr(formats, "COMPARISONS_MAX", 1_000_000)
    with pytest.raises(hostile.Violation, match="s of CPU"):
        hostile.send(bodies, random.Random(1), "with another bound")
