"""Patterns from strangers: RE2's syntax, in bounded time and memory."""

from __future__ import annotations

import re
import time

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.txn.patterns import MAX_STEPS, BadPattern, Pattern

ATOMS = ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "(?:a|b)", "(ab|a|)", "^", "$", "-", "[a-c]", r"\.", "é"]
QUANTIFIERS = ["", "", "*", "+", "?", "{2}", "{1,3}", "*?", "{2,}"]
patterns = st.lists(
    st.builds(lambda atom, quantifier: atom + ("" if atom in "^$" else quantifier), st.sampled_from(ATOMS),
              st.sampled_from(QUANTIFIERS)), max_size=6
).map("".join)  # fmt: skip
WIDE = "".join(chr(0x4E00 + 7 * n) for n in range(985))


@given(patterns, st.text("abcé1-._", max_size=10))
def test_as_pythons_fullmatch(pattern: str, text: str) -> None:
    assert Pattern(pattern).matches(text) == (re.fullmatch(pattern, text, re.ASCII) is not None)


@pytest.mark.parametrize("pattern", [
    "billing-7", "billing-.*", r"\Qbilling-7\E", "(?i)BILLING-.*", "[[:alpha:]]+-[0-9]+", r"billing-\d+", r"\pL+-.*",
    "(?P<a>bill)ing.*", "bil{2}ing-[[:digit:]]+", r"billing-\d+\z", "(?s)billing.*", r"billing-(?:\d{1})+.*",
    r"\Abilling.*", r"\x62illing.*", "|billing-7", r"\p{Greek}*billing-\C",
])  # fmt: skip
def test_syntax_of_re2(pattern: str) -> None:
    assert Pattern(pattern).matches("billing-7")
    assert not Pattern(pattern).matches("a billing-7 b")


@pytest.mark.parametrize("pattern", [
    "(", "[", "*", "a{2,1}", r"(a)\1", "(?=a)a", "(?<!a)b", "(?P<n>a)(?P=n)", "((((a{50}){50}){50}){50})", "a" * 1_001,
    "é" * 501, "(" * 900, "a{1001}", "(?>a+)", "a++", "(?u)x", r"\Z", f"[{WIDE}]{{990}}", r"\pL{300}",
])  # fmt: skip
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        Pattern(pattern)


def cpu_ms(pattern: str, text: str) -> float:
    """The least of three: compiling and matching once."""
    taken = []
    for _ in range(3):
        began = time.thread_time()
        try:
            Pattern(pattern).matches(text)
        except BadPattern:
            pass
        taken.append((time.thread_time() - began) * 1_000)
    return min(taken)


@pytest.mark.parametrize("pattern", [
    f"[{WIDE[:330]}]{{990}}", r"\pL" * 333, r"(?i)\pL?" * 100, "(?:a|b)*a(?:a|b){999}c", "(.|a|.a|a.){60}x", "(a+)+b",
    "(?:a*)*(?:a|b){50}.*b(?:a*)*(?:a|b){300}", ".?" * 480, "(?:" * 200 + "a" + ")*" * 200,
])  # fmt: skip
def test_a_pattern_and_a_text_take_no_longer_than_they_may(pattern: str) -> None:
    """80 ms at the most; a slow machine may take longer, and an engine without bounds seconds."""
    drawn = "".join("ab"[n * n % 7 % 2] for n in range(30_000))
    assert max(cpu_ms(pattern, text) for text in (drawn, drawn[:5_000], "a" * 30_000)) < 300


def test_what_would_take_longer_is_refused() -> None:
    pattern = Pattern("(?:a|b){300}c")
    assert not pattern.matches("a" * 10_000)
    with pytest.raises(BadPattern, match="too long"):
        pattern.matches("a" * (MAX_STEPS // 300))


def test_nothing_is_kept_of_patterns_that_were_compiled() -> None:
    Pattern("kept?")
    assert re2._Regexp._make.cache_info().currsize == 0
