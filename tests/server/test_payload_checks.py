"""The process that checks payloads, as a broker asks it: verdicts, bounds, what becomes of one that hangs or dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fleetlog._native.batch import HEADER_SIZE, Record, encode_batch, parse_header
from fleetlog.brokers.log.door import CheckerCounts, Judgement, Outside, PayloadQuestion, SchemaText, Side, packed
from fleetlog.brokers.server import payload_checks
from fleetlog.brokers.server.payload_checks import PayloadChecks

SEVEN = (7).to_bytes(4, "big")
SCHEMA = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})


def question(*payloads: bytes, schema: str = SCHEMA, key: str = "k") -> PayloadQuestion:
    rows = [Record(at, 0, None, b"\0" + SEVEN + payload, ()) for at, payload in enumerate(payloads)]
    data = encode_batch(rows)
    outside = Outside(key, SchemaText("JSON", packed(schema)), ())
    return PayloadQuestion(bytes(data[HEADER_SIZE:]), parse_header(data), (Side(False, {SEVEN: outside}),), len(rows))


def on_loop(case: Callable[[PayloadChecks], Coroutine[Any, Any, None]], checks: Callable[[], PayloadChecks]) -> None:
    async def run() -> None:
        made = checks()
        try:
            async with asyncio.timeout(60):
                await case(made)
        finally:
            made.close()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_checks, "RESTART_S", 0.0)


def stub(tmp_path: Path, body: str) -> tuple[str, ...]:
    """A process in the checker's place: ``stream`` is what it is asked on."""
    path = tmp_path / "stub.py"
    path.write_text(f"import os, socket, sys, time\nstream = socket.socket(fileno=0).makefile('rwb')\n{body}\n")
    return sys.executable, str(path)


def test_a_batch_is_judged_and_the_schema_sent_once() -> None:
    counts = CheckerCounts()

    async def case(checks: PayloadChecks) -> None:
        assert await checks.judge(question(b'{"id": 1}', b"{}")) == Judgement()
        verdict = await checks.judge(question(b'{"id": 1}', b'{"id": "x"}', b"[]"))
        assert [(one.record, one.number, one.path, one.reason) for one in verdict.faults] == [
            (1, SEVEN, "id", 'is not of type "integer"'), (2, SEVEN, "", 'is not of type "object"')
        ]  # fmt: skip
        assert (counts.starts, counts.waiting_bytes) == (1, 0)

    on_loop(case, lambda: PayloadChecks(counts))


def test_the_loop_goes_on_while_a_batch_is_checked(tmp_path: Path) -> None:
    command = stub(tmp_path, "time.sleep(60)")

    async def case(checks: PayloadChecks) -> None:
        asked = asyncio.ensure_future(checks.judge(question(b"{}")))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not asked.done()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    on_loop(case, lambda: PayloadChecks(CheckerCounts(), command))


@pytest.mark.parametrize(
    "body", ["sys.exit(3)", "time.sleep(60)", "stream.write(b'\\xff' * 8); stream.flush(); time.sleep(60)"]
)
def test_a_process_that_ends_hangs_or_babbles_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(payload_checks, "BOUND_S", 0.5)
    counts, command = CheckerCounts(), stub(tmp_path, body)

    async def case(checks: PayloadChecks) -> None:
        for turn in range(2):
            verdict = await checks.judge(question(b"{}"))
            assert (verdict.faults, verdict.why) == ((), "the process that checks payloads is started again")
            assert counts.starts == turn + 1
        verdict = await checks.judge(question(b"{}"))
        assert [one.reason for one in verdict.faults] == ["is in a batch that is too much to check"]
        assert counts.starts == 2, "what ended it twice is not tried again"
        for turn in range(3):
            assert (await checks.judge(question(b"{}", b"%d" % turn))).why
        verdict = await checks.judge(question(b"{}", b"another batch"))
        assert "several times" in verdict.faults[0].reason
        assert (await checks.judge(question(b"{}", b"", key="another schema"))).why, "others are tried"

    on_loop(case, lambda: PayloadChecks(counts, command))


def test_a_killed_process_takes_only_its_batch_along(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = CheckerCounts()
    started: list[int] = []
    popen = payload_checks.subprocess.Popen

    def noted(*words: Any, **more: Any) -> Any:
        process = popen(*words, **more)
        started.append(process.pid)
        return process

    monkeypatch.setattr(payload_checks.subprocess, "Popen", noted)

    async def case(checks: PayloadChecks) -> None:
        assert await checks.judge(question(b"{}")) == Judgement()
        os.kill(started[0], signal.SIGKILL)
        assert (await checks.judge(question(b"{}"))).why
        assert await checks.judge(question(b"{}")) == Judgement()
        assert counts.starts == 2

    on_loop(case, lambda: PayloadChecks(counts))


def test_the_process_ends_itself_if_a_batch_takes_too_long(tmp_path: Path) -> None:
    """Also where its broker is gone: its own timer ends it, in whatever library it is."""
    body = """
from fleetlog.brokers.schemas import payloads
payloads.Checker.answer = lambda self, asked, payload: time.sleep(60)
stream.detach()
payloads.answer_questions(0.2)
"""
    path = tmp_path / "stub.py"
    path.write_text(f"import time, io\nstream = io.BytesIO()\n{body}")

    async def case(checks: PayloadChecks) -> None:
        begun = asyncio.get_running_loop().time()
        assert (await checks.judge(question(b"{}"))).why
        assert asyncio.get_running_loop().time() - begun < 9, "the broker's own bound was not needed"

    on_loop(case, lambda: PayloadChecks(CheckerCounts(), (sys.executable, str(path))))


def test_memory_of_the_process_is_bounded() -> None:
    deep = json.dumps({"items": {"type": "array"}})

    async def case(checks: PayloadChecks) -> None:
        huge = b"[" + b"[[]]," * 10_000_000 + b"[]]"  # so many lists of lists take more than the process may have
        assert (await checks.judge(question(huge, schema=deep))).why
        assert await checks.judge(question(b"[[]]", schema=deep)) == Judgement()

    on_loop(case, lambda: PayloadChecks(CheckerCounts()))


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = stub(tmp_path, "time.sleep(60)")
    monkeypatch.setattr(payload_checks, "WAITING_BYTES_MAX", 1000)
    counts = CheckerCounts()

    async def case(checks: PayloadChecks) -> None:
        asked = [asyncio.ensure_future(checks.judge(question(b"x" * 900)))]
        await asyncio.sleep(0)
        assert counts.waiting_bytes > 900
        assert (
            await checks.judge(question(b"x" * 900))
        ).why == "too many records wait for their payloads to be checked"
        monkeypatch.setattr(payload_checks, "WAIT_S", 0.01)
        assert (await checks.judge(question(b"x"))).why == "other records wait for their payloads to be checked"
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert counts.waiting_bytes == 0

    on_loop(case, lambda: PayloadChecks(counts, command))


def test_a_process_that_is_not_needed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_checks, "IDLE_S", 0.05)
    counts = CheckerCounts()

    async def case(checks: PayloadChecks) -> None:
        assert await checks.judge(question(b"{}")) == Judgement()
        await asyncio.sleep(0.3)
        assert await checks.judge(question(b"{}")) == Judgement(), "and is started when it is"
        assert counts.starts == 2

    on_loop(case, lambda: PayloadChecks(counts))


def test_a_command_that_cannot_be_started_is_no_verdict() -> None:
    async def case(checks: PayloadChecks) -> None:
        assert (await checks.judge(question(b"{}"))).why == "the process that checks payloads cannot be started"

    on_loop(case, lambda: PayloadChecks(CheckerCounts(), ("/nowhere",)))
