"""The simulated event loop runs asyncio as asyncio is meant, on virtual time, and the same way each time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.loop import SimLoop, Stuck
from tests.simulation.runs import bounded

ROOT = Path(__file__).parents[2]


def test_time_jumps_and_asyncio_works() -> None:
    loop = SimLoop(1)
    seen: list[object] = []

    async def other(event: asyncio.Event) -> str:
        await asyncio.sleep(100)
        event.set()
        return "slept"

    async def main() -> None:
        event = asyncio.Event()
        task = asyncio.create_task(other(event))
        start = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7.5):
                await event.wait()
        seen.append(loop.time() - start)
        await asyncio.wait_for(event.wait(), 500)
        seen.append(await task)
        seen.append(await asyncio.gather(*(asyncio.sleep(10 - i, i) for i in range(5))))
        done, pending = await asyncio.wait({asyncio.create_task(asyncio.sleep(i)) for i in (1, 50)}, timeout=10)
        seen.append((len(done), len(pending)))
        lock, gate = asyncio.Lock(), asyncio.Semaphore(2)
        async with lock, gate:
            await asyncio.sleep(0)
        seen.append(loop.time() - start)

    loop.run_coroutine(loop.world, main())
    loop.close()
    assert seen == [7.5, "slept", [0, 1, 2, 3, 4], (1, 1), 120.0]
    assert not loop.errors


def test_what_is_never_woken_is_stuck() -> None:
    loop = SimLoop(1)
    with pytest.raises(Stuck):
        loop.run_coroutine(loop.world, asyncio.Event().wait(), 10)
    loop.close()


def test_tasks_belong_to_the_process_that_started_them_whoever_wakes_them() -> None:
    loop = SimLoop(1)
    broker, client = loop.owner("broker"), loop.owner("client")
    seen: list[str] = []
    futures: list[asyncio.Future[None]] = []

    async def child() -> None:
        futures.append(asyncio.get_running_loop().create_future())
        await futures[0]
        seen.append(loop.current().name)

    async def parent() -> None:
        await asyncio.create_task(child())
        seen.append(loop.current().name)

    async def waker() -> None:
        await asyncio.sleep(1)
        futures[0].set_result(None)

    loop.spawn(broker, parent())
    loop.spawn(client, waker())
    loop.run_until(lambda: len(seen) == 2, 10_000_000)
    loop.close()
    assert seen == ["broker", "broker"]


def test_a_crash_runs_no_finally_block_and_a_pause_holds_everything() -> None:
    loop = SimLoop(1)
    doomed, paused = loop.owner("doomed"), loop.owner("paused")
    seen: list[tuple[str, float]] = []

    async def ticks(name: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append((name, loop.time()))
        finally:
            seen.append((name + " ended", loop.time()))

    loop.spawn(doomed, ticks("doomed"))
    loop.spawn(paused, ticks("paused"))
    loop.call_later(2.5, loop.crash, doomed)
    loop.call_later(2.5, loop.pause, paused)
    loop.call_later(10, loop.resume, paused)
    loop.run_until(lambda: False, 13_500_000)
    assert [time for name, time in seen if name == "doomed"] == [2, 3]
    assert [time for name, time in seen if name == "paused"] == [2, 3, 11, 12, 13]
    assert not any("ended" in name for name, _ in seen)
    loop.close()


def test_one_process_keeps_its_order_and_the_seed_mixes_the_others() -> None:
    def history(seed: int) -> list[tuple[str, int]]:
        loop = SimLoop(seed)
        seen: list[tuple[str, int]] = []
        for name in "abc":
            owner = loop.owner(name)
            for number in range(20):
                loop.call_soon(lambda n=name, i=number: seen.append((n, i)), context=owner.context)
        loop.run_until(lambda: True, loop.now_us)
        loop.close()
        return seen

    for name in "abc":
        assert [i for n, i in history(1) if n == name] == list(range(20))
    assert history(1) == history(1)
    assert history(1) != history(2)


ORDER_OF_SETS = """
import asyncio
from tests.simulation.loop import SimLoop
loop = SimLoop(5)
seen = []
async def one(i):
    await asyncio.sleep(i % 7 / 10)
    seen.append(i)
async def main():
    junk = [object() for _ in range({junk})]
    tasks = {{asyncio.create_task(one(i)) for i in range(50)}}
    for task in list(tasks)[::3]:
        task.cancel()
    done, _ = await asyncio.wait(tasks)
    seen.extend(task.cancelled() for task in done)
loop.run_coroutine(loop.world, main())
loop.close()
print(seen, loop.steps)
"""


def test_neither_addresses_nor_hash_seeds_show() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", ORDER_OF_SETS.format(junk=seed * 1000)],
            cwd=ROOT, env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in (1, 2, 3)
    }  # fmt: skip
    assert len(outputs) == 1


def test_a_callback_that_does_not_end_is_an_error_of_its_history() -> None:
    """Virtual time stands still in it, so that no deadline of the run is ever reached."""
    loop = SimLoop(1)
    with bounded(0.05):
        loop.call_soon(_for_ever)
        loop.run_until(lambda: bool(loop.errors), 1_000_000)
    assert "a callback of it does not end" in loop.errors[0]
    assert "test_loop.py" in loop.errors[0]
    loop.close()


def _for_ever() -> None:
    while True:
        pass
