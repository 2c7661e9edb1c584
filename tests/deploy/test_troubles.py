"""Some of the ten troubles of ``python -m tests.deploy.troubles``; ``tests/cli/test_doctor.py`` has most others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.console.served import Served, Visitor
from tests.support.diagnosed import found_by_console, found_by_doctor
from tests.support.troubles import TROUBLES, TroubledFleet

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TroubledFleet]:
    fleet = TroubledFleet(tmp_path_factory.mktemp("troubled"))
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture(scope="module")
def console(troubled: TroubledFleet) -> Iterator[Visitor]:
    served = Served(troubled.fleet.bootstrap)
    try:
        yield Visitor(served)
    finally:
        served.close()


@pytest.mark.parametrize("trouble", ["hot_partition", "slow_disk", "full_disk"])
def test_doctor_and_the_console_name_the_cause(troubled: TroubledFleet, console: Visitor, trouble: str) -> None:
    with getattr(troubled, trouble)() as sought:
        one, _ = found_by_doctor(troubled, sought)
        shown = found_by_console(console, sought)
    assert one["todo"]
    same = ("severity", "check", "where", "todo")
    assert {name: shown[name] for name in same} == {name: one[name] for name in same}
    assert shown["what"]
    assert shown["why"]


def test_there_are_ten() -> None:
    assert len(set(TROUBLES)) == 10
    assert all(callable(getattr(TroubledFleet, name)) for name in TROUBLES)
