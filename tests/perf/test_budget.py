"""What a request costs, in instructions: a guard that no noisy machine can fool."""

from __future__ import annotations

import pytest

from perf import budget
from perf.counted import IDLE, SPEND
from tests.support.needs import needs

pytestmark = [pytest.mark.slow, needs("valgrind"), pytest.mark.xdist_group("budget")]  # a worker shares what it counts

REGRESSION = 0.05


@pytest.fixture(scope="module")
def counted() -> dict[str, int]:
    return budget.count()


def test_requests_stay_within_their_budget(counted: dict[str, int]) -> None:
    allowed = budget.load()
    assert set(allowed["instructions"]) == set(counted) - {SPEND}, "every work has a budget"
    lines = budget.over(counted, allowed["instructions"], allowed["tolerance"])
    assert not lines, "\n".join(["", *lines, "if it must be so: python -m perf.budget --write, and say why"])


def test_a_topic_that_drops_duplicates_costs_little_more(counted: dict[str, int]) -> None:
    assert counted["produce 200 records, each once"] < 1.6 * counted["produce 200 records"]


def test_ids_of_schemas_cost_little_more(counted: dict[str, int]) -> None:
    assert counted["produce 16 KiB, ids of schemas"] < 1.25 * counted["produce 16 KiB"]
    assert counted["produce 16 KiB, payloads of schemas"] < 2.5 * counted["produce 16 KiB"]


def test_an_authorizer_with_quotas_and_figures_cost_little(counted: dict[str, int]) -> None:
    lines = budget.dearer(counted)
    assert not lines, "\n".join(["", *lines])
    assert budget.dearer({f"fetch{budget.SECURED}": 104, "fetch": 100}), "it would be seen"
    assert budget.dearer({f"fetch{budget.FIGURES_ON}": 1021, f"fetch{budget.FIGURES_OFF}": 1000}), "so would that"


def test_the_budget_is_not_wider_than_needed(counted: dict[str, int]) -> None:
    """What became cheaper is written down, or the next regression hides in what was saved."""
    allowed = budget.load()["instructions"]
    wide = [
        f"{work}: {counted[work]:,}, budget {limit:,}" for work, limit in allowed.items() if counted[work] < 0.9 * limit
    ]
    assert not wide, "\n".join(["", *wide, "cheaper than the budget: python -m perf.budget --write"])


def test_a_planted_regression_is_found(counted: dict[str, int]) -> None:
    """5 % of the dearest request, spent in every request, is over the budget of each of them."""
    works = {work: total for work, total in counted.items() if work not in (SPEND, IDLE)}
    rounds = int(REGRESSION * max(works.values()) / counted[SPEND]) + 1
    tolerance = budget.load()["tolerance"]
    assert not budget.over(works, works, tolerance), "the same count is within itself"
    planted = budget.count(plant=rounds)
    assert not budget.over({IDLE: planted[IDLE]}, {IDLE: counted[IDLE]}, tolerance), "that is no request"
    lines = budget.over(planted, works, tolerance)
    seen = [work for work in works if not work.endswith(budget.FIGURES_OFF)]  # it is planted where figures are counted
    assert [line.split(":")[0] for line in lines] == seen, lines
    assert all("instructions per request" in line for line in lines)
