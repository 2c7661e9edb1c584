"""What the checker says: anomalies, notes, counts; and the words in which it says them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

SHOWN = 8


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that must not be. ``kind`` is a name of the table in docs/reliability.md.

    ``key`` and ``offsets`` name the places in a log whose batches tell more, if any.
    """

    kind: str
    text: str
    key: str = ""
    offsets: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class Report:
    """The outcome of a check. ``anomalies`` are violations, ``unknown`` are reasons why nothing can be said."""

    anomalies: list[Anomaly] = field(default_factory=list)
    unknown: list[Anomaly] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """No anomaly, and enough happened to say so: unknown is not a pass."""
        return not self.anomalies and not self.unknown

    @property
    def kinds(self) -> set[str]:
        """Names of what was found, the unknown included."""
        return {found.kind for found in (*self.anomalies, *self.unknown)}

    def bad(self, kind: str, text: str, key: str = "", offsets: tuple[int, ...] = ()) -> None:
        """A violation."""
        self.anomalies.append(Anomaly(kind, text, key, offsets))

    def vague(self, kind: str, text: str) -> None:
        """A reason why this run proves nothing."""
        self.unknown.append(Anomaly(kind, text))

    def render(self) -> str:
        """All of it as lines of text, at most a few examples per kind."""
        lines = []
        by_kind = defaultdict(list)
        for found in (*self.anomalies, *self.unknown):
            by_kind[found.kind].append(found.text)
        for kind, texts in sorted(by_kind.items()):
            lines.append(f"{kind} ({len(texts)})")
            lines += [f"  {text}" for text in texts[:SHOWN]]
        if self.notes:
            lines.append("allowed: " + ", ".join(f"{kind} {count}" for kind, count in sorted(self.notes.items())))
        lines.append("counts: " + ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items())))
        lines += [f"error {text}: {count}" for text, count in sorted(self.errors.items())]
        lines.append("verdict: " + ("ok" if self.ok else "unknown" if not self.anomalies else "ANOMALIES"))
        return "\n".join(lines)
