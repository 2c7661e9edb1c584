"""Runs the brokers of one machine, and a schema registry if wanted, as children: one log stream, restarts with backoff,
rolling restarts, one page.

The children end with this process, however it ends: the kernel sends them SIGTERM, which is a clean stop.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import fleetlog
from fleetlog.brokers.cli.host_pages import TEXT, Page, PageServer, fetch_page, gauge, join_metrics
from fleetlog.brokers.cli.host_plan import HostPlan, PlannedBroker, PlannedRegistry, local_address, same_unit
from fleetlog.brokers.cli.output import count_text
from fleetlog.brokers.config import ConfigError
from fleetlog.brokers.server.service_manager import ServiceManager
from fleetlog.coordination.ensemble import ends_with_parent

logger = logging.getLogger(__name__)

EXIT_CONFIG = 2
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SETTLED_S = 60.0
"""A broker that was ready for this long begins at the shortest backoff again."""
LOOK_S = 0.5
WATCH_S = 2.0
LIVE_EVERY = 5
"""Every how many looks ``/health/live`` is asked."""
STOP_S = 60.0
ROLL_S = 600.0
"""How long a rolling restart waits for one broker until it is given up."""
LINE_MAX = 256 * 1024
LOCK_FILE = "host.pid"
_MAIN = (sys.executable, "-m", "fleetlog.brokers.cli.main")


class Child:
    """A broker, or the registry: its process, and what is known of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: asyncio.subprocess.Process | None = None
        self.ready = False
        self.ever_ready = False
        self.starts = 0
        self.said = "not started"
        self.ready_since = 0.0
        self.failures = 0
        self.stop_wanted = False
        """Its process is to end, and the end is no failure."""
        self.changed = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if the process runs."""
        if self.process is not None and self.running:
            self.process.send_signal(number)

    async def fetch(self, path: str, timeout_s: float) -> Page:
        """One of its pages. Raises OSError."""
        raise NotImplementedError


class BrokerChild(Child):
    """One broker."""

    def __init__(self, plan: PlannedBroker) -> None:
        super().__init__(f"broker {plan.id}")
        self.plan = plan

    async def fetch(self, path: str, timeout_s: float) -> Page:
        """One of its pages. Raises OSError."""
        return await fetch_page(self.plan.admin_address(), path, timeout_s)


class RegistryChild(Child):
    """The schema registry."""

    def __init__(self, plan: PlannedRegistry) -> None:
        super().__init__("registry")
        self.plan = plan

    async def fetch(self, path: str, timeout_s: float) -> Page:
        """One of its pages; of this machine's own process, whoever its certificate is for. Raises OSError."""
        context = ssl._create_unverified_context() if self.plan.tls else None
        return await fetch_page(local_address(*self.plan.address), path, timeout_s, context)


class Unit:
    """The brokers of a host. ``command`` is what starts a broker, before its overrides; ``again`` reads the plan anew
    before a rolling restart, and raises ConfigError.
    """

    def __init__(
        self,
        plan: HostPlan,
        command: Callable[[PlannedBroker], list[str]],
        again: Callable[[], HostPlan],
        out: IO[bytes],
    ) -> None:
        self._plan = plan
        self._command = command
        self._again = again
        self._out = out
        self._children = [BrokerChild(one) for one in plan.brokers]
        self._registry = RegistryChild(plan.registry) if plan.registry is not None else None
        self._all: list[Child] = [*self._children, *([] if self._registry is None else [self._registry])]
        self._pages = PageServer(self._page)
        self._stopping = asyncio.Event()
        self._exit_code = 0
        self._lost = 0
        """Lines of brokers that the log has not taken."""
        self._rolling: asyncio.Task[None] | None = None
        self._rolls = 0
        self._roll_said = "none yet"
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, manager: ServiceManager) -> int:
        """Run until :meth:`stop`; returns the exit code. Raises OSError if its pages cannot be served."""
        loop = asyncio.get_running_loop()
        await self._pages.start(*self._plan.admin)
        self._tasks = [loop.create_task(self._keep(child), name=child.name) for child in self._all]
        self._tasks.append(loop.create_task(self._watch(manager), name="all brokers"))
        for task in self._tasks:
            task.add_done_callback(self._on_task_end)
        await self._stopping.wait()
        manager.stopping()
        if self._rolling is not None:
            self._rolling.cancel()
        for child in self._all:
            child.stop_wanted = True
            child.signal(signal.SIGTERM)
        ended = [loop.create_task(self._ended(child, STOP_S)) for child in self._all]
        clean = await asyncio.gather(*ended)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pages.close()
        return self._exit_code or (0 if all(clean) else 1)

    def stop(self) -> None:
        """Stop all brokers, and then :meth:`run`."""
        self._stopping.set()

    # ---- children ------------------------------------------------------------------------------------------------

    async def _keep(self, child: Child) -> None:
        """Start it; start it again when it ends, later each time."""
        while not self._stopping.is_set():
            if child is self._registry and not any(one.ready for one in self._children):
                await self._pause(LOOK_S)
                continue
            code, child.said = await self._one_run(child)
            child.ready = False
            child.changed.set()
            if self._stopping.is_set():
                return
            if child.stop_wanted:
                child.stop_wanted = False
                continue
            if code == EXIT_CONFIG and not any(one.ever_ready for one in self._children):
                logger.error("%s refuses its settings: the unit stops", child.name)
                self._exit_code = EXIT_CONFIG
                self.stop()
                return
            if child.ready_since and time.monotonic() - child.ready_since > SETTLED_S:
                child.failures = 0
            pause_s = BACKOFF_S[min(child.failures, len(BACKOFF_S) - 1)]
            child.failures += 1
            logger.error("%s %s; it is started again in %g s", child.name, child.said, pause_s)
            await self._pause(pause_s)

    async def _one_run(self, child: Child) -> tuple[int | None, str]:
        """From the start of a process to its end: the exit code, None if there was no process, and what to say."""
        try:
            process = await self._start(child)
        except (OSError, subprocess.SubprocessError) as error:  # too many processes, no memory
            return None, f"could not be started: {error}"
        await asyncio.gather(process.wait(), self._relay(child, process))
        return process.returncode, f"ended with {process.returncode}"

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """Brokers that nothing looks after are worse than a unit that is started anew."""
        if not self._stopping.is_set() and not task.cancelled():
            logger.error("nothing looks after %s any more: the unit stops", task.get_name(), exc_info=task.exception())
            self._exit_code = 1
            self.stop()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _start(self, child: Child) -> asyncio.subprocess.Process:
        root = str(Path(fleetlog.__file__).parents[1])
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        child.ready_since, child.ready, child.said = 0.0, False, "starting"
        child.starts += 1
        child.process = process = await asyncio.create_subprocess_exec(
            *self._words(child),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C goes to the unit alone
            preexec_fn=ends_with_parent(signal.SIGTERM),
            env=environment,
        )
        logger.info("%s has process %d", child.name, process.pid)
        return process

    def _words(self, child: Child) -> list[str]:
        if isinstance(child, BrokerChild):
            return self._command(child.plan)
        assert self._registry is not None
        return [*_MAIN, "registry", "--config", self._registry.plan.file]

    async def _relay(self, child: Child, process: asyncio.subprocess.Process) -> None:
        """Copy its output, each line behind its name, so that lines of two brokers stay apart."""
        assert process.stdout is not None
        name, rest = f"[{child.name}] ".encode(), b""
        while data := await process.stdout.read(65_536):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_MAX:
                lines, rest = [*lines, rest], b""
            self._write(b"".join(name + line + b"\n" for line in lines))
        if rest:
            self._write(name + rest + b"\n")

    def _write(self, lines: bytes) -> None:
        """A log that takes nothing (full disk, closed pipe) costs lines, not brokers: their pipes are read on."""
        try:
            self._out.write(lines)
            self._out.flush()
        except OSError:
            self._lost += lines.count(b"\n")
            return
        if self._lost:
            logger.warning("the log took no lines for a while: about %d are lost", self._lost)
            self._lost = 0

    async def _ended(self, child: Child, patience_s: float) -> bool:
        """Wait for the end of the process; kill it when it takes too long. Whether that was not necessary."""
        if child.process is None:
            return True
        try:
            await asyncio.wait_for(child.process.wait(), patience_s)
            return True
        except TimeoutError:
            logger.error("%s has not stopped in %g s: killed", child.name, patience_s)
            child.signal(signal.SIGKILL)
            await child.process.wait()
            return False

    # ---- health ----------------------------------------------------------------------------------------------------

    async def _watch(self, manager: ServiceManager) -> None:
        """See which brokers are ready, and kill one whose loop stands still for too long.

        The start is complete when each broker was ready or has failed: those that serve don't depend on the others.
        """
        manager.feed_watchdog(asyncio.get_running_loop())
        logged, looks, complete = "", 0, False
        while True:
            looks += 1
            await asyncio.gather(*(self._look(child, looks % LIVE_EVERY == 0) for child in self._all))
            count = sum(child.ready for child in self._children)
            failing = [str(child.plan.id) for child in self._children if child.failures and not child.ready]
            status = f"{count} of {count_text(len(self._children), 'broker')} ready"
            if failing:
                status += f"; failed, and started again: broker {', '.join(failing)}"
            if self._registry is not None:
                status += f"; registry {'ready' if self._registry.ready else 'not ready'}"
            if not complete and all(child.ever_ready or child.failures for child in self._children):
                complete = True
                manager.ready(status)
            elif status != logged:
                manager.status(status)
            if status != logged:
                logger.info("%s", status)
                logged = status
            await asyncio.sleep(WATCH_S if count == len(self._children) else LOOK_S)

    async def _look(self, child: Child, also_live: bool) -> None:
        if not child.running:
            return
        page = await self._ask(child, "/health/ready")
        ready = page is not None and page.status == 200
        if ready and not child.ready:
            child.ready_since = time.monotonic()
            child.ever_ready = True
        child.ready = ready
        if page is not None:
            child.said = page.body.decode(errors="replace").strip()
        if also_live and child.running and isinstance(child, BrokerChild):
            live = await self._ask(child, "/health/live")
            if live is not None and live.status == 503:
                logger.error("%s: %s: killed", child.name, live.body.decode(errors="replace").strip())
                child.signal(signal.SIGKILL)

    async def _ask(self, child: Child, path: str, timeout_s: float = 5.0) -> Page | None:
        try:
            return await child.fetch(path, timeout_s)
        except OSError:
            return None

    # ---- rolling restart -----------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Restart all brokers, one at a time, with the settings as they stand in the file now."""
        if self._rolling is not None and not self._rolling.done():
            logger.warning("a rolling restart is under way; this one is not begun")
            return
        try:
            plan = self._again()
        except (ConfigError, OSError, UnicodeError) as error:
            self._give_up(f"the settings cannot be used: {error}")
            return
        reason = same_unit(self._plan, plan)
        if reason is not None:
            self._give_up(reason)
            return
        self._plan = plan
        for child, one in zip(self._children, plan.brokers, strict=True):
            child.plan = one
        if self._registry is not None and plan.registry is not None:
            self._registry.plan = plan.registry
        self._rolls += 1
        self._roll_said = "under way"
        self._rolling = asyncio.get_running_loop().create_task(self._roll(), name="rolling restart")

    def _give_up(self, reason: str) -> None:
        self._rolls += 1
        self._roll_said = f"given up: {reason}"
        logger.error("rolling restart given up: %s", reason)

    async def _roll(self) -> None:
        try:
            for child in await self._controller_last():
                if child.running:
                    await self._until(child, "/health/stoppable", "cannot be stopped now")
                await self._restart(child, "/health/caught-up")
            if self._registry is not None:
                await self._restart(self._registry, "/health/ready")
        except TimeoutError as error:
            self._give_up(str(error))
            self._rolls -= 1
        else:
            self._roll_said = "done"
            logger.info("rolling restart: done")

    async def _restart(self, child: Child, page: str) -> None:
        """Stop it, and wait until its page says that it is back. Raises TimeoutError."""
        logger.info("rolling restart: %s stops", child.name)
        child.stop_wanted, starts = True, child.starts
        child.signal(signal.SIGTERM)
        await self._ended(child, STOP_S)
        await self._until(child, page, "is not back", beyond=starts)
        logger.info("rolling restart: %s is back", child.name)

    async def _controller_last(self) -> list[BrokerChild]:
        """Each election of a controller costs time: the broker that is it comes last."""
        pages = await asyncio.gather(*(self._ask(child, "/metrics") for child in self._children))
        leading = [page is not None and b"\nfleetlog_controller 1" in page.body for page in pages]
        return [child for _, child in sorted(zip(leading, self._children, strict=True), key=lambda pair: pair[0])]

    async def _until(self, child: Child, path: str, what: str, beyond: int = -1) -> None:
        """Wait until the page says 200, from a process started after the first ``beyond``. Raises TimeoutError."""
        deadline, said, named = time.monotonic() + ROLL_S, "no answer", time.monotonic() + 10
        while True:
            page = await self._ask(child, path) if child.starts > beyond and child.running else None
            if page is not None and page.status == 200:
                return
            said = page.body.decode(errors="replace").strip() if page is not None else "no answer"
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"{child.name} {what}: {said}")
            if now > named:
                logger.warning("rolling restart: %s %s: %s", child.name, what, said)
                named = now + 30
            await asyncio.sleep(LOOK_S)

    # ---- pages -----------------------------------------------------------------------------------------------------

    async def _page(self, path: str) -> Page:
        plain = path.partition("?")[0]
        if plain == "/metrics" or plain.startswith("/metrics/"):
            return await self._metrics(path)
        if plain == "/health/live":
            return Page(200, TEXT, b"live\n")
        if plain in ("/health/ready", "/health/caught-up", "/health/stoppable"):
            return await self._all_say(plain)
        if plain == "/brokers":
            return Page(200, "application/json", json.dumps(self.state()).encode())
        return Page(404, TEXT, b"there are /metrics, /health/live, /health/ready, /health/caught-up and /brokers\n")

    def state(self) -> dict[str, Any]:
        """What ``/brokers`` tells."""
        rows = [
            {
                "id": child.plan.id, "process": child.process.pid if child.process and child.running else None,
                "ready": child.ready, "starts": child.starts, "said": child.said,
                "listeners": child.plan.overrides["listeners"],
            }
            for child in self._children
        ]  # fmt: skip
        told = {"brokers": rows, "rolling_restarts": self._rolls, "last_rolling_restart": self._roll_said}
        if (child := self._registry) is not None:
            process = child.process.pid if child.process and child.running else None
            told["registry"] = {
                "process": process, "ready": child.ready, "starts": child.starts, "said": child.said,
            }  # fmt: skip
        return told

    async def _all_say(self, path: str) -> Page:
        asked = self._all if path == "/health/ready" else self._children
        pages = await asyncio.gather(*(self._ask(child, path) for child in asked))
        missing = [
            f"{child.name}: {page.body.decode(errors='replace').strip() if page else 'no answer'}\n"
            for child, page in zip(asked, pages, strict=True)
            if page is None or page.status != 200
        ]
        return Page(503 if missing else 200, TEXT, "".join(missing or ["ready\n"]).encode())

    async def _metrics(self, path: str) -> Page:
        pages = await asyncio.gather(*(self._ask(child, path, 10.0) for child in self._children))
        texts = {
            child.plan.id: page.body.decode(errors="replace")
            for child, page in zip(self._children, pages, strict=True)
            if page is not None and page.status == 200
        }
        kinds = [page.kind for page in pages if page is not None and page.status == 200]
        if not texts and path != "/metrics":
            return next((page for page in pages if page is not None), Page(503, TEXT, b"no broker answers\n"))
        own = "" if path != "/metrics" else self._own_metrics(set(texts))
        return Page(200, kinds[0] if kinds else TEXT, (join_metrics(texts) + own).encode())

    def _own_metrics(self, answered: set[int]) -> str:
        labels = [(f'broker="{child.plan.id}"', child) for child in self._children]
        return "".join(
            (
                gauge("fleetlog_host_broker_up", "1 if the broker of this host answered this scrape.",
                      [(label, child.plan.id in answered) for label, child in labels]),
                gauge("fleetlog_host_broker_starts_total", "Starts of the broker's process since the unit began.",
                      [(label, child.starts) for label, child in labels], "counter"),
            )
        )  # fmt: skip


def lock(plan: HostPlan) -> IO[str]:
    """The unit's lock: of two units with the same directory the second refuses. Raises ConfigError.

    Its file has the process id, for ``fleetlog host restart``; it is locked as long as the file is open.
    """
    plan.directory.mkdir(parents=True, exist_ok=True)
    file = (plan.directory / LOCK_FILE).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError("log.dirs", str(plan.directory), "is used by another `fleetlog host` that runs") from None
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def running_unit(plan: HostPlan) -> int | None:
    """The process id of the unit that runs on the plan's directory; None without one."""
    try:
        with (plan.directory / LOCK_FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(file.read())
    except (FileNotFoundError, ValueError):
        pass
    return None


def broker_command(
    config_file: Path, overrides: dict[str, str], log_level: str
) -> Callable[[PlannedBroker], list[str]]:
    """What starts a broker of the unit from this file."""
    start = [*_MAIN, "broker", str(config_file), "--log-level", log_level]

    def command(plan: PlannedBroker) -> list[str]:
        values = {**overrides, **plan.overrides}
        return [*start, *(word for name, value in values.items() for word in ("--override", f"{name}={value}"))]

    return command
