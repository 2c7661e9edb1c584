"""Filters of records: what they mean, what is refused, and that their work is bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.cli.record_filter import LENGTH_MAX, FilteredRecord, FilterError, parse_filter

VALUE = {
    "price": 12.5, "name": "tea", "items": [{"unit price": 3}, 4, "x"], "n": None, "yes": True, "no": False, "zero": 0,
    "big": 2**63, "digits": "007", "half": "\ud800",
}  # fmt: skip


def record(**changed: Any) -> FilteredRecord:
    fields: dict[str, Any] = {
        "topic": "orders", "partition": 3, "offset": 41, "time_ms": 1_000_000, "key": b"eu-1",
        "value": json.dumps(VALUE).encode(),
        "headers": [("a", b"old"), ("a", b"new"), ("trace-id", b"5"), ("none", None)],
    }  # fmt: skip
    return FilteredRecord(**(fields | changed))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("value.price > 10 && key startsWith 'eu-'", True),
        ("value.price > 10 && key startsWith 'us-'", False),
        ("value.price<=12.5", True),
        ("value.price == 1.25e1", True),
        ("value.name < 'tee' && value.name >= \"tea\"", True),
        ("value.name > 5", False),
        ("value.digits == 7", True),
        ("7 == value.digits", True),
        ("value.digits == '7'", False),
        ("value.items[0]['unit price'] == 3", True),
        ("value.items contains 4 && !(value.items contains 5)", True),
        ("value.items[9] == null && value.items[0].x.y == null", True),
        ("value contains 'unit price'", True),
        ("value.items[0] contains 'unit price'", True),
        ("value.n == null && value.missing == null && value.price != null", True),
        ("value.yes && !value.no && !value.zero && !value.n", True),
        ("value.yes == 1", False),
        ("value.yes == true", True),
        ("value.big == 9223372036854775808", True),
        ("headers.a == 'new' && headers['trace-id'] == 5 && headers.trace-id < 6", True),
        ("headers.none == null", True),
        ("topic endsWith 'ers' && partition == 3 && offset >= 41", True),
        ("time == '@000001000000' && time < '1970-01-01T01:00' && '-1h' > time", True),
        ("key matches '^(eu|us)-\\\\d$'", True),
        ("key matches '^e' && key matches '1$' && !(key matches '^u')", True),
        ("value.half matches '.'", True),
        ("false || true && false", False),
        ("(false || true) && !false", True),
        (r"'it\'s' contains '\''", True),
        ("key", True),
        ("null", False),
    ],
)
def test_what_a_filter_means(text: str, wanted: bool) -> None:
    assert parse_filter(text)(record()) is wanted


@pytest.mark.parametrize("raw", [None, b"", b"\xff\xfe", b"[" * 100_000, b"1" * 5_000, b"{"])
def test_what_is_no_json_has_no_parts(raw: bytes | None) -> None:
    assert parse_filter("value.a == null && !value.a && !(value.a > 1)")(record(value=raw)) is True
    assert parse_filter("value == null")(record(value=raw)) is (raw is None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "character 1"),
        ("value.price >", "there is the end"),
        ("value.price > > 1", "character 15"),
        ("price > 1", "character 1: key, value, headers"),
        ("value.price = 1", "character 13: '= 1' is not understood"),
        ("value.'a'", "['...']"),
        ("value[-1]", "a number or a 'text'"),
        ("value[0", "] is expected"),
        ("offset.a == 1", "offset has no parts"),
        ("(key", ") is expected"),
        ("key key", "&& or ||"),
        ("'open", "is not understood"),
        ("key matches 5", "an 'expression'"),
        ("key matches '('", "no expression of RE2"),
        ("key matches '((a{1000}){1000}){1000}'", "no expression of RE2"),
        (f"key matches '{'a' * 501}'", "500 characters"),
        ("time > 'yesterday'", "a time is like"),
        ("!" * 30 + "key", "20 deep"),
        ("(" * 30 + "key" + ")" * 30, "20 deep"),
        (" || ".join(["key"] * 101), "100 fields"),
        ("key" + ".a" * 101, "100 fields"),
        ("key == '" + "a" * LENGTH_MAX + "'", "2000 characters"),
        ("__import__('os')", "character 1"),
    ],
)
def test_a_filter_that_is_none_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(FilterError) as refused:
        parse_filter(text)
    assert reason in str(refused.value)


@given(st.text(alphabet="key valu.[]()!&|=<>'\\\"0123-etimofs\n", max_size=60))
def test_any_text_is_a_filter_or_an_error(text: str) -> None:
    try:
        assert parse_filter(text)(record()) in {True, False}
    except FilterError:
        pass


EVIL = "(?:a|b)*a(?:a|b){480}c"
"""An expression that RE2 cannot make an automaton of: each character costs all of its instructions."""


def test_a_filter_takes_a_second_of_a_record_at_most() -> None:
    with pytest.raises(FilterError, match="at most 1500: repeat less"):
        parse_filter(" || ".join([f"value matches '{EVIL}'"] * 4))
    evil = parse_filter(f"value matches '{EVIL}'")
    assert evil(record(value=b"ab" * 5_000)) is False
    with pytest.raises(
        FilterError, match=r"orders-3, offset 41: a text of 1000000 characters is too long .* 487 instr"
    ):
        evil(record(value=b"ab" * 500_000))
    many = parse_filter(" || ".join(["value matches 'a{20}c'"] * 40))
    with pytest.raises(FilterError, match=r"of 200000 characters is too long for expressions of [0-9]+ instructions"):
        many(record(value=b"a" * 200_000))
    assert parse_filter(r"value matches '\\pL+' && key matches '.*'")(record(value=b"x", key=b"k")) is True


def test_the_work_of_a_filter_is_linear_in_the_record() -> None:
    """An expression that takes other engines years, and the deepest filter, on a record of a megabyte."""
    evil = parse_filter("value matches '^(a+)+$'")
    large = record(value=b"a" * 1_000_000 + b"!")
    assert evil(large) is False
    assert parse_filter("(" * 19 + "key" + ")" * 19)(large) is True
