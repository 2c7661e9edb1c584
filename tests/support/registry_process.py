"""``fleetlog registry`` as a process, and a client of HTTP that asks it."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.cli.shell import ROOT

CONTENT = {"Content-Type": "application/vnd.schemaregistry.v1+json"}


class RegistryProcess:
    """``fleetlog registry`` as a process of its own."""

    def __init__(self, bootstrap: str, *options: str, log: IO[bytes] | None = None) -> None:
        command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "registry", "--port", "0", "--json"]
        environment = {**os.environ, "FLEETLOG_BOOTSTRAP": bootstrap}
        self.process = subprocess.Popen(
            [*command, "--timeout", "60", *options], stdout=subprocess.PIPE, stderr=log, env=environment, cwd=ROOT
        )
        assert self.process.stdout is not None
        head = b""
        while not head.rstrip().endswith(b"}"):
            line = self.process.stdout.readline()
            assert line, f"the registry ended with {self.process.wait()}"
            head += line
        self.url = json.loads(head)["url"]
        self.tls: ssl.SSLContext | None = None

    def client(self, **more: Any) -> SchemaRegistryClient:
        return SchemaRegistryClient({"url": self.url, "timeout": 60, **more})

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The answer; for an error its code."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}{path}", data, {**CONTENT, **headers}, method=method)
        try:
            with urlopen(request, timeout=60, context=self.tls) as answer:
                return json.load(answer)
        except HTTPError as error:
            return json.load(error)["error_code"]

    def close(self) -> int:
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
