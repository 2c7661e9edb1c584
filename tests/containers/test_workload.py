"""The account that the container tests settle must not come out even by itself: each kind of wrong is told."""

from __future__ import annotations

import pytest

from tests.containers import workload
from tests.containers.workload import Workload

pytestmark = pytest.mark.containers
KEPT = {(0, 0): b"0", (0, 1): b"1", (1, 0): b"0"}


def ended(monkeypatch: pytest.MonkeyPatch, kept: dict[tuple[int, int], bytes]) -> Workload:
    """Two records acknowledged and three shown, of which ``kept`` is found in the end."""
    work = Workload("nowhere:1", "t", 2)
    for thread in work._threads:
        monkeypatch.setattr(thread, "join", lambda _: None)
    work.acknowledged.update({(0, 0): b"0", (1, 0): b"0"})
    work.shown.update(KEPT)
    monkeypatch.setattr(workload, "read_all", lambda *_: kept)
    return work


def test_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, KEPT).finish().startswith("2 acknowledged")


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ({**KEPT, (0, 0): b"7"}, "acknowledged records are gone"),
        ({(0, 0): b"0", (0, 1): b"1"}, "acknowledged records are gone"),
        ({(0, 0): b"0", (1, 0): b"0"}, "were shown and are gone"),
        ({**KEPT, (0, 2): b"1"}, "duplicates"),
        ({**KEPT, (1, 1): b"5", (1, 2): b"4"}, "wrong order"),
    ],
)
def test_what_is_wrong_is_reported(
    monkeypatch: pytest.MonkeyPatch, kept: dict[tuple[int, int], bytes], told: str
) -> None:
    with pytest.raises(AssertionError, match=told):
        ended(monkeypatch, kept).finish()


class Implied:
    """A record of partition 1 that librdkafka takes for acknowledged because a later one is: it has no offset."""

    def __init__(self, value: bytes) -> None:
        self.value, self.partition, self.offset = lambda: value, lambda: 1, lambda: None


@pytest.mark.parametrize(("value", "good"), [(b"0", True), (b"3", False)])
def test_a_record_without_an_offset_is_looked_up_by_its_value(
    monkeypatch: pytest.MonkeyPatch, value: bytes, good: bool
) -> None:
    work = ended(monkeypatch, KEPT)
    work.answered(None, Implied(value))
    if good:
        work.finish()
    else:
        with pytest.raises(AssertionError, match="whose acknowledgement was implied are gone"):
            work.finish()
