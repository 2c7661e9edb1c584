"""Log directories of a stopped broker that go and come back, are not mounted, move or are swapped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from tests.simulation.fleet import SimBroker


class Directories:
    """A change that was made to a broker's log directories; ``undo`` brings back what went."""

    WAYS = ("taken out", "taken out", "not mounted", "not mounted", "moved", "swapped", "one more")

    def __init__(self, broker: SimBroker, way: str, rng: random.Random) -> None:
        self._broker, self._before = broker, broker.config.log_dirs
        self._hidden: dict[str, str] = {}
        """Where what is not mounted is meanwhile, by its path."""
        paths = list(self._before)
        chosen = rng.choice(paths)
        others = [path for path in paths if path != chosen]
        if way == "taken out":
            self._configure(others)
        elif way == "not mounted":
            self._hidden[chosen] = f"/hidden{chosen}"
            broker.medium.move(chosen, self._hidden[chosen])
        elif way == "moved":
            broker.medium.move(chosen, f"/{broker.name}/moved")
            self._before = (*others, f"/{broker.name}/moved")
            self._configure(self._before)
        elif way == "swapped":
            broker.medium.move(chosen, "/between")
            broker.medium.move(others[0], chosen)
            broker.medium.move("/between", others[0])
        else:
            self._before = (*paths, f"/{broker.name}/d")
            self._configure(self._before)

    def _configure(self, paths: list[str] | tuple[str, ...]) -> None:
        self._broker.config = replace(self._broker.config, log_dirs=tuple(paths))

    def undo(self) -> None:
        """All directories are there and listed again; what was begun in a place that was empty is gone."""
        self._configure(self._before)
        for path, hidden in self._hidden.items():
            self._broker.medium.remove_tree(path)
            self._broker.medium.move(hidden, path)
