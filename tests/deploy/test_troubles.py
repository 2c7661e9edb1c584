"""Some of the ten troubles of ``python -m tests.deploy.troubles``; ``tests/cli/test_doctor.py`` has most others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.diagnosed import found_by_doctor
from tests.support.troubles import TROUBLES, TroubledFleet

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TroubledFleet]:
    fleet = TroubledFleet(tmp_path_factory.mktemp("troubled"))
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.mark.parametrize("trouble", ["hot_partition", "slow_disk", "full_disk"])
def test_doctor_names_the_cause(troubled: TroubledFleet, trouble: str) -> None:
    with getattr(troubled, trouble)() as sought:
        one, _ = found_by_doctor(troubled, sought)
    assert one["todo"]


def test_there_are_ten() -> None:
    assert len(set(TROUBLES)) == 10
    assert all(callable(getattr(TroubledFleet, name)) for name in TROUBLES)
