"""The histories in docs/histories are what the brokers do, and a bug changes them."""

from __future__ import annotations

import difflib

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.replacing import mutated
from tests.simulation.runs import story
from tests.simulation.transcripts import COURSES, FOLDER, Course, transcript

RENEWED = "if that is meant, renew them by: python -m tests.simulation.transcripts --write"


def _kept(name: str) -> str:
    path = FOLDER / f"{name}.txt"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("course", COURSES, ids=[course.name for course in COURSES])
def test_it_is_as_it_was_kept(course: Course) -> None:
    report, text = transcript(course)
    assert report.ok, story(report)
    kept = _kept(course.name)
    if text != kept:
        changed = difflib.unified_diff(kept.splitlines(), text.splitlines(), "as kept", "as it goes now", lineterm="")
        pytest.fail("\n".join((f"docs/histories/{course.name}.txt has changed; {RENEWED}", *changed)), pytrace=False)


def test_no_other_histories_are_kept() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {course.name for course in COURSES}


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        ("logs are not compared by epoch", "03-the-leader-dies"),
        ("acks=all is answered before the record is committed", "02-a-follower-dies"),
        ("a broker counts as intact after an unclean restart", "14-the-last-member-lost-its-tail"),
    ],
)
def test_a_bug_changes_what_is_told(bug: str, name: str) -> None:
    course = next(course for course in COURSES if course.name == name)
    with mutated(next(mutation for mutation in MUTATIONS if mutation.name == bug)):
        _, text = transcript(course)
    assert text != _kept(name)
