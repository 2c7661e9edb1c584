"""Draws the rooms as the import contract has them, into docs/ARCHITECTURE.md (``make generate``)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "ARCHITECTURE.md"
CONTRACT = "The house: a room may use the rooms below it"
BEGIN, END = "<!-- rooms: make generate -->", "<!-- /rooms -->"


def floors() -> list[list[str]]:
    """The contract's layers from the top to the bottom, each with its rooms' names below ``fleetlog``."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == CONTRACT)
    return [[room.strip().removeprefix("fleetlog.") for room in layer.split("|")] for layer in layers]


def picture() -> str:
    """A flowchart in Mermaid's words: a floor for each layer, an arrow from each floor to the one it stands on."""
    lines = ["```mermaid", "flowchart TB"]
    for number, rooms in enumerate(floors()):
        lines.append(f'  floor{number}["{" | ".join(rooms)}"]')
        if number:
            lines.append(f"  floor{number - 1} --> floor{number}")
    return "\n".join([*lines, "```"])


def drawn(page: str) -> str:
    """The page with today's picture between its marks. ValueError if it has none."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"{PAGE.name} has no {BEGIN} and {END}: the picture stands between them")
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", f"{BEGIN}\n{picture()}\n{END}", page, flags=re.DOTALL)
