"""What a page gets to answer from: a client, the names in its address, and the values of its form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.cli.schema_values import SchemaRegistry
from fleetlog.brokers.console.collector import FigureCollector
from fleetlog.brokers.console.masking import Masks

TOPIC_CHARS_MAX: Final = 249
NAME_BYTES_MAX: Final = 32_767
"""The longest text of the protocol's requests."""
_STATUS = {
    "UNKNOWN_TOPIC_OR_PARTITION": 404,
    "GROUP_ID_NOT_FOUND": 404,
    "TRANSACTIONAL_ID_NOT_FOUND": 404,
    "INVALID_TOPIC_EXCEPTION": 404,
    "RESOURCE_NOT_FOUND": 404,
    "OFFSET_OUT_OF_RANGE": 404,
    "NON_EMPTY_GROUP": 409,
    "GROUP_SUBSCRIBED_TO_TOPIC": 409,
    "UNKNOWN_MEMBER_ID": 409,
    "REBALANCE_IN_PROGRESS": 409,
    "TOPIC_ALREADY_EXISTS": 409,
    "INVALID_REQUEST": 400,
    "INVALID_CONFIG": 400,
    "UNACCEPTABLE_CREDENTIAL": 400,
}


class PageError(Exception):
    """A page that cannot be shown: ``status`` is HTTP's, the text says what to do.

    ``page`` is what is shown of it all the same, with the text: its form, to be filled in otherwise.
    """

    def __init__(self, status: int, text: str, page: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status, self.page = status, page

    @classmethod
    def of(cls, error: CliError) -> PageError:
        """The fleet's refusal, with the status that says the same."""
        text = error.format_message()
        if refused := re.search(r"\((4[0-9]{2})([0-9]{2})?\)$", text):  # a registry's code: HTTP's, and two digits
            return cls(int(refused[1]), text)
        named = re.search(r"\(([A-Z_]+)\)", text)
        name = named[1] if named else ""
        return cls(_STATUS.get(name, 403 if name.endswith("AUTHORIZATION_FAILED") else 502), text)


@dataclass(frozen=True, slots=True)
class Asking:
    """One page that is asked for.

    ``name`` is the topic or broker in its address; raises PageError where none can be so long.
    """

    client: Any
    target: Target
    params: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    registry: SchemaRegistry | None = None
    masks: Masks = field(default_factory=Masks)
    collector: FigureCollector | None = None
    closed: str = ""
    """Why there are no pages of schemas; empty: there are."""

    def __post_init__(self) -> None:
        if len(self.name) > TOPIC_CHARS_MAX:
            raise PageError(404, f"a topic's name has 1 to {TOPIC_CHARS_MAX} letters, digits, '.', '_' and '-'")

    def text(self, name: str, default: str = "") -> str:
        """A value of the form, without spaces at its ends."""
        return self.params.get(name, default).strip()

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number of the form; raises PageError."""
        text = self.text(name)
        if not text:
            return default
        if re.fullmatch("-?[0-9]{1,19}", text) is None or not low <= int(text) <= high:
            raise PageError(400, f"{name} must be a whole number from {low} to {high}, not {text[:40]!r}")
        return int(text)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """One of the values, by default the first; raises PageError."""
        text = self.text(name, allowed[0]) or allowed[0]
        if text not in allowed:
            raise PageError(400, f"{name} must be one of {', '.join(allowed)}, not {text[:40]!r}")
        return text


Answer = dict[str, Any]
"""What a page shows. All of it is in the page's JSON twin."""
PageFunction = Callable[[Asking], Answer]
