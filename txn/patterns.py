"""Regular expressions of untrusted clients: RE2's, whose work is proportional to the text, whatever the pattern.

ListTransactions v2 filters ids by a pattern of the client (KIP-1152); Kafka takes RE2/J's for it, the same syntax.
"""

from __future__ import annotations

import re2

__all__ = ["BadPattern", "Pattern"]

MAX_PATTERN_BYTES = 1_000
MEMORY_BYTES = 1024 * 1024
"""The most that a compiled pattern takes, and what it notes while it matches. Compiling takes 30 ms at the most."""
MAX_STEPS = 5_000_000
"""The most that matching one text may need, in instructions of the program times bytes of the text: 50 ms at the most.

A text of 4,000 bytes may be matched with a program of 1,200 instructions, which is what ``\\pL`` has (``.*`` has 12).
"""


class BadPattern(ValueError):
    """Not a regular expression, or one that is too long, too large, or takes too long."""


class Pattern:
    """A compiled pattern; ``matches`` applies to the whole text. Both raise BadPattern."""

    __slots__ = ("_compiled",)

    def __init__(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > MAX_PATTERN_BYTES:
            raise BadPattern(f"a pattern of {len(data)} bytes")
        options = re2.Options()
        options.max_mem, options.never_capture, options.log_errors = MEMORY_BYTES, True, False
        try:
            self._compiled = re2.compile(data, options)
        except re2.error as error:
            raise BadPattern(str(error)) from error
        finally:
            re2.purge()  # the library keeps 128 of them for the next who has the same pattern

    def steps(self, text: str) -> int:
        """What matching the text may need at most, in instructions times bytes."""
        return len(text.encode("utf-8", "surrogatepass")) * int(self._compiled.programsize)

    def matches(self, text: str) -> bool:
        """Whether the pattern matches the whole text."""
        data = text.encode("utf-8", "surrogatepass")
        if len(data) * self._compiled.programsize > MAX_STEPS:
            raise BadPattern("takes too long")
        return self._compiled.fullmatch(data) is not None
