"""Output of commands: tables for users or JSON for programs on stdout, everything else on stderr.

Exit codes: 0 done, 1 it did not work, 2 the command line is wrong (click's own).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.progress import Progress

_BEYOND_ASCII = re.compile(r"[^\x00-\x7e]")
PIPED_WIDTH = 10_000
"""A table that goes to a file or a pipe is never cut."""


class CliError(click.ClickException):
    """A command failed: one line on stderr, exit code 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line."""
        click.echo(_visible_lines(f"fleetlog: {self.format_message()}"), file=file or sys.stderr)


_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)


def warn(text: str) -> None:
    """One line for the user, on stderr; or, within :func:`heard_warnings`, for who runs the command."""
    heard = _heard.get()
    if heard is not None:
        heard.append(text)
    else:
        click.echo(_visible_lines(f"fleetlog: {text}"), err=True)


@contextmanager
def heard_warnings() -> Iterator[list[str]]:
    """What commands that this thread runs in the block warn of."""
    heard: list[str] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


def visible(text: str) -> str:
    """What a terminal would obey, turn round or not show, as an escape: control characters, marks of direction, blanks.

    Names of groups, members, transactions and users are what clients choose.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _visible_lines(text: str) -> str:
    return "\n".join(map(visible, text.split("\n")))


def json_escaped(text: str) -> str:
    """Beyond ASCII what :func:`visible` escapes, in JSON's way: JSON stays the same value."""
    return text if text.isascii() else _BEYOND_ASCII.sub(_json_escape, text)


def _json_escape(match: re.Match[str]) -> str:
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def confirm(question: str, yes: bool) -> None:
    """Continue only with ``yes`` (the option --yes) or a yes at the terminal; raises CliError without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError(f"{question} Without a terminal this needs --yes. Nothing was changed")
    click.confirm(question, abort=True, err=True)


class Output:
    """Where a command's result goes. ``as_json``: exactly one JSON value, no matter how many rows."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
        """A table; in JSON a list of objects named by the columns."""
        listed = [list(row) for row in rows]
        if self.as_json:
            names = [column.lower().replace(" ", "_").replace("-", "_") for column in columns]
            self.value([dict(zip(names, row, strict=True)) for row in listed])
            return
        table(columns, listed, title)

    def value(self, value: Any) -> None:
        """One JSON value."""
        click.echo(json_escaped(json.dumps(value, indent=2, default=str, ensure_ascii=False)))

    def done(self, text: str, value: Any) -> None:
        """What was done: a line for users, a value for programs."""
        if self.as_json:
            self.value(value)
        else:
            click.echo(_visible_lines(text))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print a table for users; numbers are right-aligned."""
    listed = [list(row) for row in rows]
    if not sys.stdout.isatty() and _plain(columns, listed, title):
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)
    out = Table(title=visible(title) or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[index], int | float | None) for row in listed)
        out.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        out.add_row(*(text(cell) for cell in row))
    console.print(out)


def _plain(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str) -> bool:
    """Print what a file or pipe gets, without rich, whose import costs more than most commands; False if it is wide.

    A letter of ASCII takes one column of a terminal; what others take is known to rich.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    if not all(word.isascii() for line in (columns, [title], *cells) for word in line):
        return False
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    if sum(widths) + 2 * len(widths) > PIPED_WIDTH:
        return False
    right = [bool(rows) and all(isinstance(row[at], int | float | None) for row in rows) for at in range(len(columns))]
    lines = [visible(title)] if title else []
    for line in (columns, *cells):
        padded = [
            word.rjust(width) if to_right else word.ljust(width)
            for word, width, to_right in zip(line, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    click.echo("\n".join(lines))
    return True


def text(cell: Any) -> str:
    """A table's cell for rich, where brackets are data and no markup."""
    return _cell(cell).replace("[", "\\[")


def _cell(cell: Any) -> str:
    """A table's cell; nothing is a dash."""
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, list | tuple):
        return visible(",".join(str(one) for one in cell)) or "-"
    return visible(str(cell))


def number_text(number: float) -> str:
    """A number for users with all its digits, never with an exponent; whole ones without a point."""
    return f"{number:.0f}" if float(number).is_integer() else f"{Decimal(repr(number)):f}"


_IRREGULAR = {"are": "is", "have": "has", "were": "was"}


def _with_s(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("y") and word[-2] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("ch", "s", "x")) else f"{word}s"


def count_text(count: int, noun: str, verb: str = "") -> str:
    """A number of things, and what they do: 1 topic takes, 2 topics take."""
    if count == 1:
        return f"1 {noun} {_with_s(verb)}" if verb else f"1 {noun}"
    return f"{count} {_with_s(noun)} {verb}".rstrip()


def bytes_text(size: int) -> str:
    """A number of bytes for users: about three digits, and a unit."""
    if size < 1000:
        return f"{size} B"
    value, units = float(size), iter(("kB", "MB", "GB", "TB", "PB"))
    unit = ""
    while value >= 999.5:
        value, unit = value / 1000, next(units, "EB")
    return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:.1f} {unit}"


class NoProgress:
    """A progress bar that nobody sees, without rich."""

    def __enter__(self) -> NoProgress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_task(self, description: str, total: float | None = None) -> Any:
        """By rich."""

    def update(self, task: Any, **_: object) -> None:
        """By rich."""


def progress(shown: bool = True) -> Progress | NoProgress:
    """A progress bar on stderr; silent where stderr is not a terminal, or unless ``shown``."""
    if not (shown and sys.stderr.isatty()):
        return NoProgress()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def iso(timestamp_ms: int) -> str | None:
    """Milliseconds since the epoch as ISO 8601 in UTC; None for "no timestamp"."""
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
