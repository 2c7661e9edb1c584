"""Pages of commands, docs/operations.md and others: the commands, as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def blocks(page: Path = PAGE) -> dict[str, list[str]]:
    """The page's commands by the headings that have some, in their order."""
    parts = re.split(r"^## (.+)$", page.read_text(), flags=re.MULTILINE)[1:]
    found = {
        heading: re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }
    return {heading: commands for heading, commands in found.items() if commands}
