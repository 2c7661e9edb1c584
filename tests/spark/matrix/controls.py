"""Negative controls: a scenario on brokers that lack one safeguard must show the anomaly named for it.

The same scenario passes in the matrix with the safeguard on. The verification *guard* alone has no control here: the
model shows that another rule covers it (tests/txn/batch_model.py, SPARE: "no verification guard"), and that the absence
of both leaves rows that hang (BROKEN: "the same, and no verification guard"). What Spark can show is verification
itself.
"""

from __future__ import annotations

from typing import NamedTuple


class Control(NamedTuple):
    """``missing``: the safeguard, by its name in ``broken_broker``. ``anomalies``: the verdicts that are right.

    ``alone``: one run at a time. Where a transaction's time-out is short, a frame that is held until others have come
    as far is of an epoch that is over, and something else than the missing safeguard refuses it.
    """

    name: str
    missing: str
    scenario: str
    anomalies: tuple[str, ...]
    alone: bool = False


CONTROLS = (
    Control("control: no fence", "fence", "driver killed after CommitBatch", ("DUP",)),
    Control("control: no winners list", "winners", "Python worker killed after writing", ("DUP",)),
    Control(
        "control: no epoch bump",
        "epoch bump",
        "Produce of a killed driver arrives in the next ones batch",
        ("DUP", "MISSING", "MIXED"),
    ),
    Control(
        "control: no verification",
        "verification",
        "Produce of a dead driver arrives when the sink rests",
        ("HANGING", "DUP", "MIXED"),
        alone=True,
    ),
)
