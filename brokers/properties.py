"""Properties files: one ``name=value`` for each line, with the escapes of Java's."""

from __future__ import annotations

import re
from typing import Final

from fleetlog.brokers.setting_kinds import HIDDEN, ConfigError, secret

_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_NAME: Final = re.compile(r"((?:[^\\=:]|\\.)+)[=:](.*)")


def parse_properties(text: str, source: str) -> dict[str, tuple[str, str]]:
    r"""A properties file's entries: name -> (value, "file:line"). Comments start with # or !, \ joins lines.

    A backslash is written twice. One before t, n, r or f is that control character, ``\uXXXX`` a character by its
    number, and one before any other character is left out. Blanks around names and values are, too.

    Raises ConfigError, which does not quote what may be a secret.
    """
    found: dict[str, tuple[str, str]] = {}
    pending, first_line = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not pending:
            first_line = number
            if not line or line[0] in "#!":
                continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        line, pending = pending + line, ""
        where = f"{source}:{first_line}"
        parts = _NAME.fullmatch(line)
        if parts is None:
            raise ConfigError(HIDDEN if secret(line) else line, "", "must be name=value", where)
        name, value = _unescaped(parts[1].strip(), where), _unescaped(parts[2].strip(), where)
        if name in found:
            raise ConfigError(name, value, f"stands twice, first at {found[name][1]}", where)
        found[name] = (value, where)
    return found


def _unescaped(text: str, where: str) -> str:
    """Raises ConfigError."""

    def plain(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise ConfigError(HIDDEN, "", r"\u must be followed by four hexadecimal digits", where)
        return _CONTROLS.get(match[2], match[2])

    return _ESCAPE.sub(plain, text) if "\\" in text else text
