"""Charts as SVG that the server draws: lines over time on a scale of 1, 2 and 5, small ones, and a map of partitions.

What is zero is a line at the bottom; where nothing is known there is no line, and the ground is hatched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from statistics import linear_regression
from typing import Any, Final, NamedTuple

from markupsafe import Markup, escape

from fleetlog.brokers.cli.output import bytes_text, count_text
from fleetlog.brokers.console.history import MEAN, MOST, STEP_S, Points, folded

BYTES, BYTES_S, PER_S, SECONDS, NUMBER, COUNT = "bytes", "bytes/s", "/s", "seconds", "number", "count"
"""Units. A count is a whole number."""


class TimeRange(NamedTuple):
    """A time range of all charts of a page: how long, in which tier, and how much of it a point stands for."""

    name: str
    words: str
    seconds: int
    step_s: int
    point_s: int


RANGES: Final = (
    TimeRange("15m", "15 min", 900, STEP_S, 10),
    TimeRange("1h", "1 h", 3_600, STEP_S, 30),
    TimeRange("6h", "6 h", 21_600, 60, 180),
    TimeRange("3d", "3 d", 259_200, 600, 2_400),
)


FRESH_STEPS: Final = 3


class Line(NamedTuple):
    """One line of a chart; ``most`` says that a point of several steps is the highest, not the mean."""

    name: str
    points: Points
    most: bool = False


class TimeFrame(NamedTuple):
    """The times that a chart shows, in s; a figure that is older than ``fresh_since`` is not how it is now."""

    since: int
    until: int
    point_s: int
    fresh_since: int

    @classmethod
    def of(cls, shown: TimeRange, now_s: float) -> TimeFrame:
        """The range that ends with the point under way."""
        until = -(-int(now_s) // shown.point_s) * shown.point_s
        return cls(until - shown.seconds, until, shown.point_s, int(now_s) - FRESH_STEPS * shown.step_s)

    def sampled(self, line: Line) -> list[float]:
        """One figure for each point of time; nan where nothing is known."""
        sorted_in: list[list[float]] = [[] for _ in range((self.until - self.since) // self.point_s)]
        for at, figure in line.points:
            index = (at - self.since - 1) // self.point_s
            if 0 <= index < len(sorted_in):
                sorted_in[index].append(figure)
        return [folded(some, MOST if line.most else MEAN) for some in sorted_in]

    def now(self, line: Line) -> float | None:
        """The newest figure, if it is of now: what a broker did before it was killed is not what it does."""
        at, figure = next(((at, one) for at, one in reversed(line.points) if not math.isnan(one)), (0, math.nan))
        return None if math.isnan(figure) or at < self.fresh_since else figure

    def time_of(self, index: int) -> int:
        """When the point ends."""
        return self.since + (index + 1) * self.point_s


def figure_text(figure: float, unit: str) -> str:
    """A figure with its unit, about three digits; a dash where there is none."""
    if math.isnan(figure):
        return "–"
    if unit in (BYTES, BYTES_S):
        return bytes_text(round(figure)) + unit.removeprefix(BYTES)
    if unit == SECONDS:
        if 0 < figure < 1:
            return f"{_digits(figure * 1000)} ms"
        return f"{_digits(figure)} s" if figure < 3600 else f"{_digits(figure / 3600)} h"
    if unit == COUNT:
        return _digits(round(figure))
    return _digits(figure) + ("/s" if unit == PER_S else "")


def _digits(figure: float) -> str:
    size = abs(figure)
    if size >= 10_000:
        for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if size >= factor:
                return f"{figure / factor:.4g} {letter}"
    return f"{figure:,.0f}" if size >= 1000 or figure == int(figure) else f"{figure:.3g}"


def ticks(highest: float, least: float = 0.0) -> list[float]:
    """Round figures from zero to at least the highest: two to six of them, in steps of 1, 2 or 5, ``least`` or more."""
    if not highest > 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(highest / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * 4 >= highest * 0.999)
    step = max(step, least)
    return [step * number for number in range(math.ceil(highest / step * 0.999) + 1)]


_CLOCK: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


def _time_ticks(frame: TimeFrame, at_most: int = 6) -> list[tuple[int, str]]:
    step = next(one for one in _CLOCK if (frame.until - frame.since) / one <= at_most)
    first = -(-frame.since // step) * step
    form = "%d %b" if step >= 86_400 else "%H:%M"
    return [(at, datetime.fromtimestamp(at, UTC).strftime(form)) for at in range(first, frame.until + 1, step)]


def time_text(at_s: int, frame: TimeFrame) -> str:
    """A time of the frame, in UTC."""
    form = "%H:%M:%S" if frame.point_s < 60 else "%H:%M" if frame.until - frame.since <= 86_400 else "%d %b %H:%M"
    return datetime.fromtimestamp(at_s, UTC).strftime(form)


LEFT, TOP, WIDE, HIGH = 62, 8, 410, 120
"""Of the plot: where it begins, and its size. Narrow, since a chart may be as wide as a phone."""
COLOURS: Final = 6
ROWS: Final = 30
"""Of the table beside a chart."""


def chart_value(
    title: str, unit: str, lines: Sequence[Line], frame: TimeFrame, *,
    marks: Mapping[int, str] | None = None, ceiling: float = 0.0, words: str = "",
) -> dict[str, Any]:  # fmt: skip
    """A chart as pages and their JSON have it: figures by point of time and ``now``, null where nothing is known.

    ``marks`` are times with what happened then; the scale reaches to ``ceiling``, whatever the lines are.
    """
    return {
        "title": title, "unit": unit, "words": words, "ceiling": ceiling, **frame._asdict(),
        "lines": [
            {
                "name": line.name, "most": line.most, "now": frame.now(line),
                "values": [None if math.isnan(one) else one for one in frame.sampled(line)],
            }
            for line in lines
        ],
        "marks": [[at, text] for at, text in sorted((marks or {}).items()) if frame.since < at <= frame.until],
    }  # fmt: skip


class _Drawing(NamedTuple):
    """A chart while it is drawn."""

    unit: str
    frame: TimeFrame
    names: list[str]
    most: list[bool]
    rows: list[list[float]]
    now: list[float]
    marks: list[tuple[int, str]]

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> _Drawing:
        lines = value["lines"]
        rows = [[math.nan if one is None else one for one in line["values"]] for line in lines]
        frame = TimeFrame(value["since"], value["until"], value["point_s"], value["fresh_since"])
        now = [math.nan if line["now"] is None else line["now"] for line in lines]
        return cls(
            value["unit"], frame, [line["name"] for line in lines], [line["most"] for line in lines], rows, now,
            [(at, text) for at, text in value["marks"]],
        )  # fmt: skip


def drawn(value: Mapping[str, Any]) -> Markup:
    """A figure with its title, the lines' last values, the picture and a table of what it shows."""
    drawing = _Drawing.of(value)
    unit, frame, rows = drawing.unit, drawing.frame, drawing.rows
    known = [one for row in rows for one in row if not math.isnan(one)]
    scale = ticks(max([value["ceiling"], *known]), 1.0 if unit == COUNT else 0.0)
    legend = Markup("").join(
        Markup('<li class="c{}">{} <b>{}</b></li>').format(number % COLOURS, name, figure_text(now, unit))
        for number, (name, now) in enumerate(zip(drawing.names, drawing.now, strict=True))
    )
    label = "; ".join(f"{name} {_summary(drawing, number)}" for number, name in enumerate(drawing.names))
    parts = [_grid(scale, unit, frame), _unknown(drawing)]

    def place(index: int, figure: float) -> tuple[float, float]:
        return _x(index, len(rows[0])), _y(figure, scale[-1])

    parts += [
        Markup('<path class="line c{}" d="{}"/>').format(number % COLOURS, _path(row, place, "h.01"))
        for number, row in enumerate(rows)
    ]
    parts += [_marks(drawing), _hover(drawing)]
    if not known:
        middle = Markup('<text class="nothing" x="{}" y="{}" text-anchor="middle">{}</text>')
        parts.append(middle.format(LEFT + WIDE / 2, TOP + HIGH / 2, "nothing is known of this time"))
    return Markup(
        '<figure class="plot"><figcaption><strong>{}</strong>{}<ul>{}</ul></figcaption>'
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
        '<output class="at" aria-hidden="true"></output>{}</figure>'
    ).format(
        value["title"], Markup(' <span class="small none">{}</span>').format(value["words"]) if value["words"] else "",
        legend, LEFT + WIDE + 8, TOP + HIGH + 22, f"{value['title']}: {label}", Markup("").join(parts), _table(drawing),
    )  # fmt: skip


def _summary(drawing: _Drawing, number: int) -> str:
    """One line in words: how it is now or since when that is unknown, and from where to where it went."""
    row, now, unit, frame = drawing.rows[number], drawing.now[number], drawing.unit, drawing.frame
    known = [(index, one) for index, one in enumerate(row) if not math.isnan(one)]
    if not known:
        return "nothing is known"
    figures = [one for _, one in known]
    spread = f"{figure_text(min(figures), unit)} to {figure_text(max(figures), unit)}"
    if math.isnan(now):
        return f"unknown since {time_text(frame.time_of(known[-1][0]), frame)}, {spread} before"
    return f"{figure_text(now, unit)} now, {spread}"


def _x(index: float, count: int) -> float:
    return LEFT + WIDE * (index + 0.5) / count


def _y(figure: float, highest: float) -> float:
    return TOP + HIGH * (1 - min(figure / highest, 1.0)) if highest else TOP + HIGH


def _grid(scale: Sequence[float], unit: str, frame: TimeFrame) -> Markup:
    parts = [
        Markup('<path class="grid" d="M{0} {1:.1f}H{2}"/><text class="y" x="{3}" y="{4:.1f}">{5}</text>').format(
            LEFT, _y(tick, scale[-1]), LEFT + WIDE, LEFT - 6, _y(tick, scale[-1]) + 4, figure_text(tick, unit)
        )
        for tick in scale
    ]
    for at, text in _time_ticks(frame):
        x = LEFT + WIDE * (at - frame.since) / (frame.until - frame.since)
        anchor = "start" if x < LEFT + 16 else "end" if x > LEFT + WIDE - 16 else "middle"
        parts.append(Markup(
            '<path class="tick" d="M{0:.1f} {1}v4"/><text x="{0:.1f}" y="{2}" text-anchor="{3}">{4}</text>'
        ).format(x, TOP + HIGH, TOP + HIGH + 17, anchor, text))  # fmt: skip
    return Markup("").join(parts)


def _unknown(drawing: _Drawing, left: int = LEFT, top: int = TOP, wide: int = WIDE, high: int = HIGH) -> Markup:
    """The times of which no line knows anything, on a plot of that place and size."""
    count = len(drawing.rows[0]) if drawing.rows else 0
    blank = [all(math.isnan(row[index]) for row in drawing.rows) for index in range(count)]
    parts, begin = [], None
    for index, is_blank in enumerate([*blank, False]):
        if is_blank and begin is None:
            begin = index
        elif not is_blank and begin is not None:
            parts.append(Markup('<rect class="unknown" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>').format(
                left + wide * begin / count, top, wide * (index - begin) / count, high
            ))  # fmt: skip
            begin = None
    return Markup("").join(parts)


def _path(row: Sequence[float], place: Callable[[int, float], tuple[float, float]], dot: str = "") -> str:
    """A line that is broken where nothing is known; with a ``dot`` at each beginning a point between gaps is seen."""
    words, joined = [], False
    for index, figure in enumerate(row):
        if not math.isnan(figure):
            x, y = place(index, figure)
            words.append(f"L{x:.1f} {y:.1f}" if joined else f"M{x:.1f} {y:.1f}{dot}")
        joined = not math.isnan(figure)
    return "".join(words)


def _marks(drawing: _Drawing) -> Markup:
    since, until = drawing.frame.since, drawing.frame.until
    return Markup("").join(
        Markup('<path class="mark" d="M{0:.1f} {1}v{2}m-4 0h8l-4 -7z"/>').format(
            LEFT + WIDE * (at - since) / (until - since), TOP, HIGH
        )
        for at, _ in drawing.marks
    )


def _hover(drawing: _Drawing) -> Markup:
    """A column for each point, whose title has its figures."""
    rows, unit, several = drawing.rows, drawing.unit, len(drawing.rows) > 1
    count = len(rows[0]) if rows else 0
    marked: dict[int, list[str]] = {}
    for at, text in drawing.marks:
        marked.setdefault((at - drawing.frame.since - 1) // drawing.frame.point_s, []).append(text)
    parts = []
    for index in range(count):
        if all(math.isnan(row[index]) for row in rows):
            continue
        texts = [
            (f"{name} " if several else "") + figure_text(row[index], unit)
            for name, row in zip(drawing.names, rows, strict=True)
        ]
        text = f"{time_text(drawing.frame.time_of(index), drawing.frame)} · {', '.join(texts + marked.get(index, []))}"
        place = f'x="{LEFT + index * WIDE / count:.1f}" y="{TOP}" width="{WIDE / count:.2f}" height="{HIGH}"'
        parts.append(f'<rect class="at" {place}><title>{escape(text)}</title></rect>')
    return Markup("".join(parts))


def _table(drawing: _Drawing) -> Markup:
    frame, unit = drawing.frame, drawing.unit
    count = len(drawing.rows[0]) if drawing.rows else 0
    every = max(1, -(-count // ROWS))
    head = Markup("").join(Markup('<th class="n">{}</th>').format(name) for name in drawing.names)
    rows = []
    for end in range(count, 0, -every):
        cells = []
        for most, row in zip(drawing.most, drawing.rows, strict=True):
            figure = folded(row[max(0, end - every) : end], MOST if most else MEAN)
            cells.append(f'<td class="n">{escape(figure_text(figure, unit))}</td>')
        rows.append(f"<tr><td>{escape(time_text(frame.time_of(end - 1), frame))}</td>{''.join(cells)}</tr>")
    happened = "; ".join(f"{time_text(at, frame)} {text}" for at, text in drawing.marks)
    return Markup(
        '<details><summary>Values</summary>{}<div class="wide"><table><thead><tr><th>Until, UTC</th>{}</tr></thead>'
        "<tbody>{}</tbody></table></div></details>"
    ).format(Markup("<p>{}</p>").format(happened) if happened else "", head, Markup("".join(rows)))


SMALL_WIDE, SMALL_HIGH = 120, 26


def drawn_small(value: Mapping[str, Any]) -> Markup:
    """The first line of a chart without a scale, as wide as a cell of a table, and its last value."""
    drawing = _Drawing.of(value)
    row, unit = drawing.rows[0], drawing.unit
    highest = max([value["ceiling"], *(one for one in row if not math.isnan(one))]) or 1.0

    def place(index: int, figure: float) -> tuple[float, float]:
        return SMALL_WIDE * (index + 0.5) / len(row), 2 + (SMALL_HIGH - 4) * (1 - figure / highest)

    label = f"{value['title']}: {_summary(drawing, 0)}"
    return Markup(
        '<svg class="small" viewBox="0 0 {0} {1}" preserveAspectRatio="none" role="img" aria-label="{2}">'
        '<title>{2}</title>{3}<path class="grid" d="M0 {4}H{0}"/><path class="line c0" d="{5}"/></svg> '
        "<span{6}>{7}</span>"
    ).format(
        SMALL_WIDE, SMALL_HIGH, label, _unknown(drawing, 0, 0, SMALL_WIDE, SMALL_HIGH), SMALL_HIGH - 1,
        _path(row, place), Markup(' class="none"') if math.isnan(drawing.now[0]) else "",
        figure_text(drawing.now[0], unit),
    )  # fmt: skip


DAY_S: Final = 86_400.0


def days_until_full(used: Points, total: float) -> float | None:
    """By the straight line that fits best: in how many days ``used`` reaches ``total``; None: not in sight.

    An hour must be known, and the line must rise by what a disk's noise does not explain: to full within ten years.
    """
    known = [(at, figure) for at, figure in used if not math.isnan(figure)]
    if len(known) < 2 or known[-1][0] - known[0][0] < 3_600 or not total > 0:
        return None
    slope = linear_regression(*zip(*known, strict=True)).slope
    if slope <= 0:
        return None
    days = max(0.0, (total - known[-1][1]) / slope) / DAY_S
    return days if days < 3_650 else None


def days_text(days: float) -> str:
    """About how long."""
    if days < 1:
        return f"{max(1, round(days * 24))} h"
    return count_text(round(days), "day")


SQUARE, PER_ROW = 7, 25
"""Of the map: a partition's square with the gap beside it, and how many stand in one row."""
STATES: Final = ("leader", "follower", "behind", "moving")


@lru_cache(10_000)
def _square(place: int) -> str:
    """The path of one square, of which a map has thousands."""
    return f"M{place % PER_ROW * SQUARE} {place // PER_ROW * SQUARE}h6v6h-6z"


def replicas_cell(broker_id: int, count: int, states: Iterable[tuple[int, str]]) -> Markup:
    """A topic's replicas on one broker: a square for each (partition, state), at the partition's place."""
    squares: dict[str, list[str]] = {state: [] for state in STATES}
    for partition, state in states:
        squares[state].append(_square(partition))
    words = [f"{len(drawn)} {state}" for state, drawn in squares.items() if drawn]
    if not words:
        return Markup("")
    wide, high = min(count, PER_ROW) * SQUARE, -(-count // PER_ROW) * SQUARE
    paths = [
        Markup('<path class="{}" d="{}"/>').format(state, "".join(drawn)) for state, drawn in squares.items() if drawn
    ]
    return Markup(
        '<svg class="map" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
        "<title>{2}</title>{3}</svg>"
    ).format(wide, high, f"broker {broker_id}: {', '.join(words)}", Markup("").join(paths))
