"""Batch transactions are safe in the model's small bounds, and each of their rules is there for a reason."""

from __future__ import annotations

import pytest

from tests.txn.batch_model import BROKEN, FULL, SAFE, SPARE, Bounds, Rules, explore


@pytest.mark.parametrize("bounds", SAFE.values(), ids=SAFE.keys())
def test_the_full_protocol_is_safe_within_bounds(bounds: Bounds) -> None:
    verdict = explore(FULL, bounds)
    assert verdict.violation is None, verdict.trace[-1]
    assert verdict.complete
    assert verdict.finished, "no path commits everything: the model is idle"


@pytest.mark.parametrize(("rules", "bounds", "anomaly"), BROKEN.values(), ids=BROKEN.keys())
def test_without_a_rule_it_breaks(rules: Rules, bounds: Bounds, anomaly: str) -> None:
    verdict = explore(rules, bounds)
    assert verdict.violation is not None
    assert verdict.violation.startswith(anomaly), verdict.trace[-1]
    intact = explore(FULL, bounds, limit=verdict.states)
    assert intact.violation is None, "with the rule, the same search finds nothing"


@pytest.mark.parametrize(("rules", "bounds"), SPARE.values(), ids=SPARE.keys())
def test_rules_that_another_one_covers(rules: Rules, bounds: Bounds) -> None:
    verdict = explore(rules, bounds)
    assert verdict.violation is None, verdict.trace[-1]
    assert verdict.complete
