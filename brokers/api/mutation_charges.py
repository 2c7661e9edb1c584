"""What a request that creates or deletes partitions is charged (KIP-599), at the controller, which does it.

A topic is charged before the controller is asked, and gets back what could not be done. Above its quota a client is
told so for each topic that was not done, if its version of the request knows that error; else all is done, and its
connection is muted.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from fleetlog.brokers.api.base import Context
from fleetlog.brokers.controller.requests import TopicOutcome
from fleetlog.wire.errors import ErrorCode

CREATE_STRICT, DELETE_STRICT, PARTITIONS_STRICT = 6, 5, 3
"""The versions from which on CreateTopics, DeleteTopics and CreatePartitions know THROTTLING_QUOTA_EXCEEDED."""


def throttled_outcome(name: str, topic_id: uuid.UUID | None = None) -> TopicOutcome:
    """Nothing was done: the client's quota is used up."""
    message = "The throttling quota has been exceeded."
    return TopicOutcome(name, ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, None, topic_id)


class MutationCharge:
    """The charges of one request. ``free``: nothing is done, or this broker is not the controller."""

    def __init__(self, context: Context, *, free: bool, strict_from: int) -> None:
        self._context = context
        self._strict = context.api_version >= strict_from
        self._free = free or context.meter is None or not context.services.controller.is_active
        self._charged: dict[str, int] = {}
        self._refused: list[str] = []

    def takes(self, topic: str, partitions: int) -> bool:
        """Charges a topic; False: it must not be done."""
        if self._free or partitions <= 0:
            return True
        if not self._context.may_mutate(partitions, strict=self._strict):
            self._refused.append(topic)
            return False
        self._charged[topic] = self._charged.get(topic, 0) + partitions
        return True

    def kept(self, outcomes: Iterable[TopicOutcome]) -> list[TopicOutcome]:
        """The outcomes; what could not be done is given back."""
        rows = list(outcomes)
        for outcome in rows:
            charged = 0 if outcome.ok else self._charged.pop(outcome.name, 0)
            if charged:
                self._context.may_mutate(-charged, strict=False)
        return rows

    def settled(self, outcomes: Iterable[TopicOutcome]) -> Iterable[TopicOutcome]:
        """The outcomes, and those of topics that were not done."""
        if self._free:
            return outcomes
        return [*self.kept(outcomes), *map(throttled_outcome, self._refused)]
