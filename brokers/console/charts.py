"""Charts as SVG in the page: bars, whose lengths are attributes, since a strict policy forbids inline styles."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT, GAP = 420, 18, 4
"""Narrow, since a chart is as wide as a phone, and its text must be readable there."""
LABEL, NAME_MAX = 130, 17
"""The part of the width that names have, and how many characters fit into it; of longer ones the end is shown."""


def share_bar(part: float, whole: float, title: str) -> Markup:
    """One bar: how much of the whole is used."""
    share = 0.0 if whole <= 0 else min(max(part / whole, 0.0), 1.0)
    level = "bad" if share >= 0.95 else "warning" if share >= 0.85 else "good"
    return Markup(
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{0}">'
        "<title>{0}</title>"
        '<rect class="track" width="100" height="8"/><rect class="{1}" width="{2:.1f}" height="8"/></svg>'
    ).format(title, level, share * 100)


def bars(rows: Sequence[tuple[str, float, str]], label: str) -> Markup:
    """Horizontal bars of (name, number, its text), on the scale of the largest."""
    if not rows:
        return Markup("")
    largest = max(number for _, number, _ in rows) or 1.0
    height = len(rows) * (HEIGHT + GAP)
    drawn = [
        Markup(
            '<text x="{0}" y="{1}" text-anchor="end">{9}</text>'
            '<rect class="bar" x="{3}" y="{4}" width="{5:.1f}" height="{6}"><title>{2}: {7}</title></rect>'
            '<text x="{8:.1f}" y="{1}">{7}</text>'
        ).format(
            LABEL - 6, at + HEIGHT - 5, name, LABEL, at, width := number / largest * (WIDTH - LABEL - 70), HEIGHT,
            text, LABEL + width + 5, name if len(name) <= NAME_MAX else "…" + name[1 - NAME_MAX :],
        )
        for at, (name, number, text) in ((i * (HEIGHT + GAP), row) for i, row in enumerate(rows))
    ]  # fmt: skip
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, escape(label), Markup("").join(drawn)
    )
