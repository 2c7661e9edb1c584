"""Bars in SVG, drawn by hand: nothing to install, small files, readable in a light and in a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from perf.results import Spread, number

WIDTH, LABEL, BAR, GAP, HEAD = 760, 210, 16, 14, 46
COLOURS = {"fleetlog": "#2a78c8", "cython": "#2a78c8", "kafka": "#d9822b", "floor": "#7a7f87", "pure": "#7a7f87"}
OTHER = "#5aa469"

Group = tuple[str, Sequence[tuple[str, Spread]]]
"""A case, and each server's measurements."""


def bars(title: str, unit: str, groups: Sequence[Group]) -> str:
    """Horizontal bars of the medians, thin lines from the lowest to the highest; each case has a scale of its own."""
    height = HEAD + sum(len(bars) * (BAR + 2) + GAP for _, bars in groups)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" font-size="12">',
        "<style>text{fill:#333;font-family:sans-serif}@media(prefers-color-scheme:dark){text{fill:#ccc}}</style>",
        f'<text x="0" y="18" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="0" y="35">{escape(unit)}; bars: medians, lines: lowest to highest</text>',
    ]
    top = HEAD
    room = WIDTH - LABEL - 190
    for case, values in groups:
        largest = max((spread.high for _, spread in values), default=0.0) or 1.0
        out.append(f'<text x="0" y="{top + 12}">{escape(case)}</text>')
        for server, spread in values:
            middle = top + BAR / 2
            out.append(
                f'<rect x="{LABEL}" y="{top}" width="{spread.median / largest * room:.1f}" height="{BAR}" '
                f'fill="{COLOURS.get(server, OTHER)}"/>'
            )
            low, high = (LABEL + value / largest * room for value in (spread.low, spread.high))
            out.append(f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#888" stroke-width="2"/>')
            out.append(
                f'<text x="{LABEL + room + 8}" y="{top + 13}">{escape(server)} {escape(number(spread.median))}</text>'
            )
            top += BAR + 2
        top += GAP
    return "\n".join([*out, "</svg>", ""])
