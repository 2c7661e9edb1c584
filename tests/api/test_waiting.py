"""Responses of several parts: complete with the last part, or at the deadline with what stands for the others."""

from __future__ import annotations

from fleetlog.brokers.api.base import Done
from fleetlog.brokers.api.waiting import JoinedResponse


def joined(parts: int, **more: object) -> JoinedResponse:
    return JoinedResponse(["missing"] * parts, list, 1_000, **more)  # type: ignore[arg-type]


def test_a_response_of_several_parts_comes_with_the_last_one() -> None:
    response, told = joined(3), list[list[str]]()
    response.on_done(told.append)
    assert response.outcome() is response
    for index in (2, 0, 1):
        assert told == []
        response.take(index, str(index))
    assert told == [["0", "1", "2"]]


def test_at_the_deadline_the_missing_parts_are_named() -> None:
    response, told = joined(2), list[list[str]]()
    response.on_done(told.append)
    response.take(1, "1")
    response.expire()
    response.take(0, "late")
    assert told == [["missing", "1"]]


def test_the_answer_at_the_deadline_may_be_another_one() -> None:
    response = joined(2, on_deadline=lambda: "all failed")
    response.take(1, "1")
    response.expire()
    assert response.outcome() == Done("all failed")


def test_without_parts_the_response_is_there_at_once() -> None:
    assert joined(0).outcome() == Done([])


def test_parts_that_come_at_once_make_the_response_at_once() -> None:
    response = joined(1)
    response.take(0, "0")
    assert response.outcome() == Done(["0"])
