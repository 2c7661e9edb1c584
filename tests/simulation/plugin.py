"""``pytest -p tests.simulation.plugin``: ordinary tests with the deliberate bug that MUTATION names."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from tests.simulation.mutations import MUTATIONS, mutated


def pytest_configure(config: pytest.Config) -> None:
    """Put the bug in; it stays until the run is over."""
    name = os.environ["MUTATION"]
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == name)
    stack = ExitStack()
    stack.enter_context(mutated(mutation))
    config.add_cleanup(stack.close)
