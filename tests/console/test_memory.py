"""What a console does not load, and that it gives back what pages leave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from fleetlog.brokers.console import memory
from fleetlog.brokers.console.memory import SpareMemory, trim_function
from tests.console.served import Served, Visitor
from tests.support.needs import having

UNNEEDED = (
    "fleetlog.brokers.config",  # the settings of brokers: 3 MB
    "fleetlog.brokers.log",
    "fleetlog.brokers.node",
    "confluent_kafka",
    "cryptography",
    "kafka.consumer.group",  # the client's consumer and producer, and what they load: 8 MB
    "kafka.producer.kafka",
    "numpy",
    "pyarrow",
    "rich",
)


def test_a_console_loads_nothing_that_only_others_need() -> None:
    check = (
        "import sys, fleetlog.brokers.cli.main, fleetlog.brokers.console.command, fleetlog.brokers.console.serving;"
        f"print(*(name for name in {UNNEEDED!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_a_running_console_has_no_library_that_it_can_do_without() -> None:
    console = Served("127.0.0.1:1")
    try:
        assert Visitor(console).get("/alive").value == {"alive": True}
        mapped = Path(f"/proc/{console.process.pid}/maps").read_text()
        assert "/_native/" in mapped
        assert not [name for name in ("confluent_kafka", "numpy", "pyarrow", "uvloop") if f"/{name}/" in mapped]
    finally:
        console.close()


FREED = """
import threading
from pathlib import Path
from fleetlog.brokers.console.memory import trim_function

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

kept = []
def page():
    records = [bytes(1000) for _ in range(60_000)]
    kept.append(records[-1])  # behind the others: what stands before it is not given back by itself

thread = threading.Thread(target=page)
thread.start()
thread.join()
before = resident_mb()
trim_function()()
print(before - resident_mb())
"""


@having("memory given back", trim_function() is not None)
def test_what_pages_used_is_given_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) > 50


def test_memory_is_given_back_once_after_several_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "QUIET_S", 0.05)
    trimmed: list[bool] = []

    async def pages() -> None:
        spare = SpareMemory(lambda: trimmed.append(True))
        async with anyio.create_task_group() as group:
            group.start_soon(spare.run)
            await anyio.sleep(0.2)
            assert trimmed == [], "no page, no work"
            for expected in (1, 2):
                for _ in range(5):
                    spare.page_ended()
                with anyio.fail_after(60):
                    while len(trimmed) < expected:
                        await anyio.sleep(0.01)
            await anyio.sleep(0.2)
            assert len(trimmed) == 2
            group.cancel_scope.cancel()

    anyio.run(pages)
