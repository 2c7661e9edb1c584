"""Asks the process that checks payloads by JSON Schema and Protobuf (:mod:`brokers.schemas.payloads`).

On the loop alone. A broker has one such process, from the first question on until none came for a while. It is asked
one batch at a time. What it may take is bounded: time for a batch, memory (it bounds that itself), and what waits. One
that does not answer in time, or ends, is killed and started again, and the batch may be sent again; a batch that ended
it twice is refused, and so are records of a schema that ended it several times, for a while.

A question is a frame: the lengths of two parts, as 4 bytes each, JSON, and the batch's records. The answer is one of
JSON alone. Schemas are named by their digest, and sent along only if the process says that it lacks them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from fleetlog.brokers.log.door import HEADERS, CheckerCounts, Fault, Judgement, Outside, PayloadQuestion

logger = logging.getLogger(__name__)

MODULE: Final = "fleetlog.brokers.schemas.payloads"
BOUND_S: Final = 10.0
"""Of one exchange. The process ends itself a second earlier, also if this broker is gone by then."""
WAIT_S: Final = 20.0
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
IDLE_S: Final = 300.0
RESTART_S: Final = 1.0
"""Between two starts."""
BATCH_ENDS: Final = 2
SCHEMA_ENDS: Final = 5
"""So many ends of the process are laid to a batch, and to a schema, before these are refused."""
BLAMED_S: Final = 600.0
BLAMED_MAX: Final = 1_000
ROUNDS: Final = 3
"""A question and what it lacked."""
ANSWER_MAX: Final = 16 * 1024 * 1024


class _Gone(Exception):
    """The process does not answer, and has been ended."""


class PayloadChecks:
    """See the module. ``counts`` tells how often the process was started, and what waits for it."""

    def __init__(self, counts: CheckerCounts, command: Sequence[str] = (sys.executable, "-P", "-m", MODULE)) -> None:
        self._command = command
        self._counts = counts
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._started_s = -RESTART_S
        self._asked = 0
        self._idle: asyncio.Task[None] | None = None
        self._blamed: OrderedDict[int | str, tuple[int, float]] = OrderedDict()
        """How often a batch (its hash) or a schema (its digest) ended the process, and when last."""

    async def judge(self, question: PayloadQuestion) -> Judgement:
        """What the process says of a batch; that nothing can be said now if it fails, or too much waits."""
        size = len(question.payload)
        if self._counts.waiting_bytes + size > WAITING_BYTES_MAX and self._counts.waiting_bytes:
            return Judgement(why="too many records wait for their payloads to be checked")
        if (refused := self._refused(question)) is not None:
            return refused
        self._counts.waiting_bytes += size
        try:
            async with asyncio.timeout(WAIT_S):
                await self._turn.acquire()
        except TimeoutError:
            return Judgement(why="other records wait for their payloads to be checked")
        else:
            try:
                return await self._answered(question)
            finally:
                self._turn.release()
        finally:
            self._counts.waiting_bytes -= size

    def _refused(self, question: PayloadQuestion) -> Judgement | None:
        """The refusal of what ended the process before."""
        now_s = time.monotonic()
        if self._ends(hash(question.payload), now_s) >= BATCH_ENDS:
            side, number = next((side, number) for side in question.sides for number in side.schemas)
            return Judgement((Fault(0, side.of_keys, number, "", "is in a batch that is too much to check"),))
        for side in question.sides:
            for number, schema in side.schemas.items():
                if self._ends(schema.key, now_s) >= SCHEMA_ENDS:
                    why = "cannot be checked: that took too much time or memory several times"
                    return Judgement((Fault(0, side.of_keys, number, "", why),))
        return None

    def _ends(self, culprit: int | str, now_s: float) -> int:
        count, since_s = self._blamed.get(culprit, (0, now_s))
        return count if now_s - since_s < BLAMED_S else 0

    def _blame(self, question: PayloadQuestion) -> None:
        now_s = time.monotonic()
        culprits: set[int | str] = {one.key for side in question.sides for one in side.schemas.values()}
        culprits.add(hash(question.payload))
        for culprit in culprits:
            self._blamed[culprit] = self._ends(culprit, now_s) + 1, now_s
            self._blamed.move_to_end(culprit)
        while len(self._blamed) > BLAMED_MAX:
            self._blamed.popitem(last=False)

    async def _answered(self, question: PayloadQuestion) -> Judgement:
        self._asked += 1
        try:
            if self._streams is None and (why := await self._start()):
                return Judgement(why=why)
            return await self._exchanged(question)
        except _Gone as problem:
            logger.error("the process that checks payloads is started again: %s", problem)
            self._blame(question)
            return Judgement(why="the process that checks payloads is started again")

    async def _until_idle(self) -> None:
        """End the process when nothing was asked for a while."""
        asked = -1
        while asked != self._asked or self._turn.locked():
            asked = self._asked
            await asyncio.sleep(IDLE_S)
        self._idle = None
        self._end()

    async def _exchanged(self, question: PayloadQuestion) -> Judgement:
        schemas = {schema.key: schema for side in question.sides for schema in side.schemas.values()}
        sent: list[str] = []
        for _ in range(ROUNDS):
            answer = await self._answer(_frame(question, [schemas[key] for key in sent]))
            sent = [key for key in answer.get("lacks", ()) if key in schemas]
            if not sent:
                break
        if sent or answer.get("more"):
            return Judgement(why="the schemas are being compiled")
        rows = (
            (index, of_keys, bytes.fromhex(number), path, why) for index, of_keys, number, path, why in answer["faults"]
        )
        return Judgement(tuple(Fault(*row) for row in rows))

    async def _answer(self, pieces: Iterable[bytes]) -> Any:
        """Raises _Gone."""
        assert self._streams is not None, "started before"
        reader, writer = self._streams
        try:
            async with asyncio.timeout(BOUND_S):
                writer.writelines(pieces)
                await writer.drain()
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > ANSWER_MAX:
                    raise _Gone(f"it answers {size} bytes")
                return json.loads(await reader.readexactly(size))
        except (TimeoutError, OSError, EOFError, ValueError) as problem:
            raise _Gone(f"{type(problem).__name__} {problem}") from None
        finally:
            if sys.exc_info()[0] is not None:  # also when the broker stops: the rest of an answer is nobody's
                self._end()

    async def _start(self) -> str:
        """Start it; returns why that is not possible now."""
        now_s = time.monotonic()
        if now_s - self._started_s < RESTART_S:
            return "the process that checks payloads is started again"
        self._started_s = now_s
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                self._process = await asyncio.to_thread(self._begin, theirs)
            self._streams = await asyncio.open_connection(sock=ours, limit=ANSWER_MAX)
        except OSError as problem:
            ours.close()
            logger.error("the process that checks payloads cannot be started: %s", problem)
            return "the process that checks payloads cannot be started"
        self._counts.starts += 1
        self._idle = asyncio.get_running_loop().create_task(self._until_idle(), name="checks of payloads are idle")
        return ""

    def _begin(self, connection: socket.socket) -> subprocess.Popen[bytes]:
        """Start it without what this broker's environment has besides; raises OSError."""
        known = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "TMPDIR") if name in os.environ}
        command = [*self._command, str(BOUND_S - 1)]
        return subprocess.Popen(command, stdin=connection.fileno(), stdout=subprocess.DEVNULL, env=known)

    def _end(self) -> None:
        """End it, if there is one."""
        process, streams, idle = self._process, self._streams, self._idle
        self._process = self._streams = self._idle = None
        if idle is not None:
            idle.cancel()
        if streams is not None:
            streams[1].transport.abort()
        if process is not None:
            process.kill()
            asyncio.get_running_loop().run_in_executor(None, process.wait)

    def close(self) -> None:
        """End the process; nothing is asked any more."""
        self._end()


def _frame(question: PayloadQuestion, sent: Iterable[Outside]) -> list[bytes]:
    sides = [
        {
            "keys": side.of_keys,
            "header": HEADERS[side.of_keys].decode(),
            "schemas": {number.hex(): schema.key for number, schema in side.schemas.items()},
        }
        for side in question.sides
    ]
    texts = {one.key: [one.source.kind, one.source.text, {name: part.text for name, part in one.named}] for one in sent}
    told = {"batch": list(question.header), "most": question.most, "sides": sides, "texts": texts}
    text = json.dumps(told).encode()
    return [len(text).to_bytes(4, "big"), len(question.payload).to_bytes(4, "big"), text, question.payload]
