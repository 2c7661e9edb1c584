"""The scenarios' register: a name, where it runs, and what it does. Each notes what really happened, or fails."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from tests.spark.matrix.rig import Rig


class Scenario(NamedTuple):
    """``run`` does everything up to the verdict."""

    name: str
    where: str
    run: Callable[[Rig], None]
    about: str
    together: bool = True
    """Whether several runs of it may share a fleet, drivers and the fault."""
    fault: str = ""
    """What is done once to all runs of a group. Scenarios with the same may be in one group."""


DRIVER_KILLED = "the driver is killed, once, and another goes on"
SCENARIOS: dict[str, Scenario] = {}


def scenario(
    where: str = "local", together: bool = True, fault: str = ""
) -> Callable[[Callable[[Rig], None]], Callable[[Rig], None]]:
    """Registers a function under its name with blanks for underscores."""

    def register(run: Callable[[Rig], None]) -> Callable[[Rig], None]:
        name = run.__name__.replace("_", " ").strip()
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(name, where, run, (run.__doc__ or "").split("\n")[0], together, fault)
        return run

    return register


def load() -> dict[str, Scenario]:
    """All scenarios, in the order in which they run: those of one kind of Spark together."""
    for part in ("of_tasks", "of_fleet", "of_drivers", "of_checkpoints", "of_cluster"):
        importlib.import_module(f"tests.spark.matrix.{part}")
    return dict(sorted(SCENARIOS.items(), key=lambda item: item[1].where == "cluster"))
