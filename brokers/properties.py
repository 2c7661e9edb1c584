"""Properties files: one ``name=value`` for each line."""

from __future__ import annotations

from brokers.setting_kinds import HIDDEN, ConfigError, secret


def parse_properties(text: str, source: str) -> dict[str, tuple[str, str]]:
    """A properties file's entries: name -> (value, "file:line"). Comments start with # or !, \\ joins lines."""
    found: dict[str, tuple[str, str]] = {}
    pending, first_line = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not pending:
            first_line = number
            if not line or line[0] in "#!":
                continue
        if line.endswith("\\") and not line.endswith("\\\\"):
            pending += line[:-1]
            continue
        line, pending = pending + line, ""
        split = min((line.find(mark) for mark in "=:" if mark in line), default=-1)
        if split <= 0:
            raise ConfigError(HIDDEN if secret(line) else line, "", "must be name=value", f"{source}:{first_line}")
        name, value = line[:split].strip(), line[split + 1 :].strip()
        if name in found:
            raise ConfigError(name, value, f"stands twice, first at {found[name][1]}", f"{source}:{first_line}")
        found[name] = (value, f"{source}:{first_line}")
    return found
