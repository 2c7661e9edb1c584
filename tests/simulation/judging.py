"""Stands for the process that checks payloads beside a broker: it takes its time, and now and then it ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from fleetlog._native.batch import decode_records
from fleetlog.brokers.log.door import CheckerCounts, Fault, Judgement, PayloadQuestion

ENDS = 0.1
"""How often nothing can be said."""


def is_json_text(payload: bytes | str) -> bool:
    """Whether it is a string of JSON, as far as values here tell."""
    mark = b'"' if isinstance(payload, bytes) else '"'
    return len(payload) >= 2 and payload[:1] == mark and payload[-1:] == mark  # type: ignore[operator]


def judge(name: str) -> Callable[[CheckerCounts, PayloadQuestion], Awaitable[Judgement]]:
    """The process beside one broker, whose schemas ask for strings."""
    rng = random.Random(f"payloads {name}")

    async def judged(counts: CheckerCounts, question: PayloadQuestion) -> Judgement:
        await asyncio.sleep(rng.choice((0.001, 0.02, 0.5)))
        if rng.random() < ENDS:
            counts.starts += 1
            return Judgement(why="it is started again")
        (side,) = question.sides
        faults = []
        for index, row in enumerate(decode_records(question.payload, question.header)):
            value = bytes(row.value or b"")
            if value[1:5] in side.schemas and not is_json_text(value[5:]):
                faults.append(Fault(index, False, value[1:5], "", "is no text"))
        return Judgement(tuple(faults))

    return judged
