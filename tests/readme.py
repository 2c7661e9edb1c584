"""The README's snippets, for tests that run them as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def snippets(heading: str, language: str = "") -> list[str]:
    """The fenced blocks of a language below a heading, in their order."""
    text = (ROOT / "README.md").read_text()
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the README has no heading {heading}"
    blocks = re.findall(r"^```([a-z]*)\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)
    return [block for kind, block in blocks if kind == language]
