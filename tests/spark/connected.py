"""Spark Connect in processes of its own, to be killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyspark

from tests.spark.processes import SUBMIT, SparkProcess
from tests.support.ports import free_port

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class Connected:
    """A server of Spark Connect, which is the driver of its clients' queries, and a client of it.

    ``program``: of Python, which is told the server's address and ``given``.
    """

    def __init__(self, directory: Path, name: str, program: list[str], **given: Any) -> None:
        port = free_port()
        submit = str(Path(str(pyspark.__file__)).parent / "bin" / "spark-submit")
        settings = {"binding.port": port, "binding.address": "127.0.0.1"}
        conf = [word for name, value in settings.items() for word in ("--conf", f"spark.connect.grpc.{name}={value}")]
        command = [submit, "--class", SERVER, *SUBMIT, *conf, "spark-internal"]
        self.server = SparkProcess(command, directory / f"{name}-server.log")
        self._command = [sys.executable, *program, f"sc://127.0.0.1:{port}", json.dumps(given)]
        self._client_log = directory / f"{name}-client.log"
        self._started: SparkProcess | None = None

    @property
    def client(self) -> SparkProcess:
        """Started when the server listens: one that is refused tries again after ever longer pauses."""
        if self._started is None:
            assert self.server.wait("Spark Connect server started at"), self.server.log()[-4000:]
            self._started = SparkProcess(self._command, self._client_log)
        return self._started

    def kill(self) -> None:
        """Both."""
        for process in (self.server, self._started):
            if process is not None:
                process.kill()
