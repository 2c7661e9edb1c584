"""Spark in processes of its own, to be killed."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from fleetlog.spark import spark_environment
from tests.spark.matrix.sessions import signal_all, within
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0
CONF = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.streaming.stopTimeout": "60s",
}
"""Of each session: small, on this machine, and with a bound for ``stop()`` of a query, which has none by itself."""
SUBMIT = ["--master", "local[2,4]", *(word for name, value in CONF.items() for word in ("--conf", f"{name}={value}"))]
"""Of a driver on a small machine, as spark-submit takes it."""


class SparkProcess:
    """A command, with the JVM and the Python processes that it starts; what they say is in one file."""

    def __init__(self, command: list[str], log_file: Path) -> None:
        self.log_file = log_file
        self.temporary = Path(tempfile.mkdtemp(prefix="spark-process-"))
        env = spark_environment(
            {**os.environ, "PYSPARK_SUBMIT_ARGS": shlex.join([*SUBMIT, "pyspark-shell"]), "SPARK_LOCAL_IP": "127.0.0.1"}
        )
        env = within(env, self.temporary)
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=env,
                start_new_session=True,
            )  # fmt: skip

    def log(self) -> str:
        """What it said so far."""
        return self.log_file.read_text(errors="replace")

    def wait(self, text: str = "") -> bool:
        """Waits for a text in its log, or for the end; whether the text came. AssertionError when neither does."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            if text and text in self.log():
                return True
            if ended:
                return False
            time.sleep(0.02)
        raise AssertionError(f"neither came what was waited for, nor the end, see {self.log_file}")

    def wait_for(self, file: Path) -> bool:
        """Waits for a file, or for the end; whether there is the file. AssertionError when neither comes."""
        eventually(lambda: file.exists() or self.exit_code is not None, f"{file}, see {self.log_file}", LIMIT_S)
        return file.exists()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def was_too_slow(self) -> bool:
        """Spark gives a new Python worker ten seconds to call back, which a busy machine may not keep."""
        return "worker failed to connect back" in self.log()

    def kill(self) -> None:
        """SIGKILL to Python, JVM and workers; what they left in ``temporary`` is removed."""
        signal_all(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)
