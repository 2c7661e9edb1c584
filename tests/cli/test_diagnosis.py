"""What facts of a fleet are found to mean, where no real fleet is needed to gather them."""

from __future__ import annotations

import pytest

from brokers.cli.diagnosis import BrokerHealth, FleetFacts, Thresholds, findings_of
from brokers.cli.overview import Overview

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("offsets_s", "told"),
    [
        ([0.4], []),
        ([-7], ["broker 1: its clock is 7.0 s behind, compared with this machine's clock"]),
        ([7], ["broker 1: its clock is 7.0 s ahead, compared with this machine's clock"]),
        ([0, -7], ["broker 2: its clock is 7.0 s behind, compared with the other brokers"]),
        ([7, 0], ["broker 1: its clock is 7.0 s ahead, compared with the other brokers"]),
        ([60, 60, 53], ["broker 3: its clock is 7.0 s behind, compared with the other brokers"]),
    ],
)
def test_the_clock_that_is_wrong_is_named(offsets_s: list[float], told: list[str]) -> None:
    facts = FleetFacts(Overview("fleet", 1), NOW_MS)
    for broker_id, offset_s in enumerate(offsets_s, 1):
        facts.health[broker_id] = BrokerHealth(NOW_MS + int(offset_s * 1000), 1_000, 6_000, 50, -1, ())
    found = [one for one in findings_of(facts, Thresholds()) if one.check == "clock"]
    assert [f"{one.where}: {one.what}, {one.why.partition(';')[0]}" for one in found] == told
