"""Charts without a fleet: scales, units, gaps, the table beside them, the forecast and the map's squares."""

from __future__ import annotations

import math

import pytest

from fleetlog.brokers.cli.overview import PartitionOverview
from fleetlog.brokers.console.charts import (
    BYTES,
    BYTES_S,
    COUNT,
    NUMBER,
    PER_S,
    RANGES,
    SECONDS,
    Line,
    TimeFrame,
    chart_value,
    days_text,
    days_until_full,
    drawn,
    drawn_small,
    figure_text,
    replicas_cell,
    ticks,
)
from fleetlog.brokers.console.pages import map_rows

NOW = 1_764_493_200
FRAME = TimeFrame.of(RANGES[0], NOW)


def points(*figures: float) -> list[tuple[int, float]]:
    """The last steps of the frame."""
    return [(NOW - 10 * (len(figures) - 1 - number), figure) for number, figure in enumerate(figures)]


@pytest.mark.parametrize("highest", [0.0003, 0.7, 1, 3, 4.1, 9.99, 10, 51, 1e6, 8.1e11])
def test_ticks_are_round_and_reach_the_highest(highest: float) -> None:
    found = ticks(highest)
    assert 2 <= len(found) - 1 <= 5
    assert found[0] == 0
    assert found[-1] >= highest * 0.999 > found[-2] * 0.99
    step = found[1]
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9)) in {1, 2, 5}


def test_nothing_and_whole_numbers_have_a_scale() -> None:
    assert ticks(0) == [0.0, 1.0]
    assert ticks(math.nan) == [0.0, 1.0]
    assert ticks(1, 1.0) == [0.0, 1.0]
    assert ticks(3, 1.0) == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("figure", "unit", "text"),
    [
        (0.0, BYTES, "0 B"), (1_536_000, BYTES_S, "1.5 MB/s"), (0.0123, SECONDS, "12.3 ms"), (2.5, SECONDS, "2.5 s"),
        (7200, SECONDS, "2 h"), (0, SECONDS, "0 s"), (12.34, PER_S, "12.3/s"), (123_456, PER_S, "123.5 k/s"),
        (7.5, COUNT, "8"), (1_234, NUMBER, "1,234"), (math.nan, BYTES, "–"),
    ],
)  # fmt: skip
def test_figures_have_units(figure: float, unit: str, text: str) -> None:
    assert figure_text(figure, unit) == text


def test_zero_is_a_line_and_what_is_unknown_is_a_gap() -> None:
    html = drawn(chart_value("Bytes", BYTES_S, [Line("in", points(0.0, 0.0, math.nan, 0.0))], FRAME))
    assert html.count('class="unknown"') == 2, "before the first figure, and between them"
    assert html.split('class="line c0"')[1].split('"/>')[0].count("M") == 2, "the line is broken"
    assert "nothing is known" not in html
    empty = drawn(chart_value("Bytes", BYTES_S, [Line("in", [])], FRAME))
    assert "nothing is known of this time" in empty
    assert '<rect class="at"' not in empty


def test_values_are_in_titles_and_in_a_table() -> None:
    value = chart_value(
        "Lag", COUNT, [Line("a<b>", points(1, 2, 30), most=True)], FRAME, marks={NOW: "1 rebalance", 5: "long ago"}
    )  # fmt: skip
    assert value["marks"] == [[NOW, "1 rebalance"]]
    html = drawn(value)
    assert f"<title>{'09:00:00'} · 30, 1 rebalance</title>" in html
    assert "a&lt;b&gt; <b>30</b>" in html
    assert 'role="img" aria-label="Lag: a&lt;b&gt; 30 now, 1 to 30"' in html
    assert '<tr><td>09:00:00</td><td class="n">30</td></tr>' in html
    assert html.count('class="mark"') == 1
    assert 'aria-label="Lag: 30 now, 1 to 30"' in drawn_small(value)


def test_what_a_dead_broker_did_last_is_not_what_it_does_now() -> None:
    hour = TimeFrame.of(RANGES[1], NOW)
    for age_s, now in ((20, 7.0), (90, None)):
        value = chart_value("Bytes", BYTES_S, [Line("in", [(NOW - age_s - 600, 5.0), (NOW - age_s, 7.0)])], hour)
        assert value["lines"][0]["now"] == now
    assert drawn_small(value).endswith('<span class="none">–</span>')
    assert 'aria-label="Bytes: unknown since 08:58:30, 5 B/s to 7 B/s before"' in drawn_small(value)
    assert 'class="unknown"' in drawn_small(value)
    assert "in <b>–</b>" in drawn(value)


def test_a_point_of_several_steps_is_their_mean_or_the_highest() -> None:
    hour = TimeFrame.of(RANGES[1], NOW)
    figures = points(1.0, 2.0, 6.0)
    assert hour.sampled(Line("x", figures))[-1] == 3.0
    assert hour.sampled(Line("x", figures, most=True))[-1] == 6.0
    assert len(hour.sampled(Line("x", []))) == 120


def test_the_forecast_is_a_straight_line() -> None:
    rising = [(NOW + 600 * number, 1e9 + 1e6 * number) for number in range(100)]  # 144 MB a day
    days = days_until_full(rising, 1e9 + 99e6 + 144e6 * 9)
    assert days is not None
    assert days == pytest.approx(9.0, rel=0.01)
    assert days_text(days) == "9 days"
    assert days_text(0.1) == "2 h"
    assert days_text(1.2) == "1 day"
    assert days_until_full(rising[:5], 1e12) is None, "not even an hour is known"
    assert days_until_full([(at, 1e9) for at, _ in rising], 1e12) is None, "nothing fills"
    assert days_until_full([(at, 2e9 - used) for at, used in rising], 1e12) is None, "it empties"
    assert days_until_full(rising, 1e15) is None, "not in ten years"
    assert days_until_full([], 1.0) is None


def test_a_replica_stands_at_its_partitions_place() -> None:
    html = replicas_cell(2, 30, [(0, "leader"), (1, "behind"), (26, "leader")])
    assert 'class="leader" d="M0 0h6v6h-6zM7 7h6v6h-6z"' in html
    assert 'class="behind" d="M7 0h6v6h-6z"' in html
    assert "broker 2: 2 leader, 1 behind" in html
    assert replicas_cell(2, 30, []) == ""


def _topic(name: str, partitions: int = 1, isr: tuple[int, ...] = (1, 2)) -> tuple[str, list[PartitionOverview]]:
    return name, [PartitionOverview(name, index, 1, 0, (1, 2), isr) for index in range(partitions)]


def test_the_map_has_a_row_for_many_topics_of_one_partition() -> None:
    names = [*(f"orders-{number}" for number in range(7)), "a.b", "c", "d", "e", "f"]
    topics = dict([*map(_topic, names), _topic("large", 3), _topic("orders-ill", isr=(1,))])
    rows = {(row.name, row.topics): [p.topic for p in row.partitions] for row in map_rows(topics, fold=True)}
    assert rows == {
        ("orders-", 7): names[:7], ("", 5): names[7:], ("large", 1): ["large"] * 3, ("orders-ill", 1): ["orders-ill"],
    }, "what has a problem stands by itself"  # fmt: skip
    assert len(map_rows(topics, fold=False)) == len(topics)
    few = dict(map(_topic, names[:4]))
    assert [row.topics for row in map_rows(few, fold=True)] == [1] * 4, "four rows are no crowd"
