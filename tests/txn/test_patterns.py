"""Patterns from strangers: the same answers as Python's engine, in bounded time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txn.patterns import BadPattern, Pattern

ATOMS = ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "(?:a|b)", "(ab|a|)", "^", "$", "-", "[a-c]", r"\."]
QUANTIFIERS = ["", "", "*", "+", "?", "{2}", "{1,3}", "*?", "{2,}"]
patterns = st.lists(
    st.builds(lambda atom, quantifier: atom + ("" if atom in "^$" else quantifier), st.sampled_from(ATOMS),
              st.sampled_from(QUANTIFIERS)), max_size=6
).map("".join)  # fmt: skip


@given(patterns, st.text("abc1-._", max_size=10))
def test_as_pythons_fullmatch(pattern: str, text: str) -> None:
    assert Pattern(pattern).matches(text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a{2,1}", r"(a)\1", "(?=a)a", "(?<!a)b", "(?i)a", "(?P<n>a)(?P=n)",
                                     "((((a{50}){50}){50}){50})", "a" * 2_000, "(" * 900, "a{99999999999}",
                                     r"(?>a+)", "a++", "(?a)(?u)x", "(?u)(?L)x"])  # fmt: skip
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        Pattern(pattern)


def test_no_backtracking() -> None:
    assert not Pattern("(a+)+b").matches("a" * 5_000)


def test_work_is_bounded_over_all_texts() -> None:
    pattern = Pattern("(.|a|.a|a.){60}x")

    def match_many() -> None:
        for _ in range(1_000):
            pattern.matches("a" * 1_000)

    with pytest.raises(BadPattern, match="too long"):
        match_many()
