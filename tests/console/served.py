"""A console as a process of its own, and a client of HTTP that keeps its cookies."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


def scram_config(directory: Path) -> Path:
    """A --command-config whose own login is not used: users log in."""
    file = directory / "command.properties"
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="none" password="none";'
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={login}\n", "utf-8"
    )
    return file


class Got(NamedTuple):
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def value(self) -> Any:
        return json.loads(self.body)


class Served:
    """``fleetlog console`` at any free port, with the options given. ``log`` gets what it logs."""

    def __init__(self, bootstrap: str, *options: str, log: Path | None = None) -> None:
        command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "console", "--port", "0", "--json", *options]
        self._state = tempfile.TemporaryDirectory()
        environment = {**os.environ, "FLEETLOG_BOOTSTRAP": bootstrap, "XDG_STATE_HOME": self._state.name}
        with log.open("wb") if log is not None else contextlib.nullcontext() as file:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, env=environment, cwd=ROOT)
        assert self.process.stdout is not None
        head = b""
        while not head.rstrip().endswith(b"}"):
            line = self.process.stdout.readline()
            assert line, f"the console ended with {self.process.wait()}"
            head += line
        self.url = json.loads(head)["url"]

    def close(self) -> int:
        """SIGINT, as from the keyboard; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self._state.cleanup()


class Visitor:
    """A browser without JavaScript: cookies, forms, redirects only where they are followed."""

    def __init__(self, served: Served) -> None:
        self.address = urlsplit(served.url).netloc
        self.cookies: dict[str, str] = {}

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Got:
        sent = {"Host": self.address, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            for cookie in answer.headers.get_all("set-cookie") or ():
                name, _, value = cookie.split(";")[0].partition("=")
                self.cookies[name] = value
            return Got(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Got:
        return self.send("GET", path, **headers)

    def page(self, path: str) -> str:
        """The page's HTML; it must be there."""
        got = self.get(path)
        assert got.status == 200, f"{path}: {got.status} {got.text[:2000]}"
        return got.text

    def json(self, path: str) -> Any:
        """The page's JSON twin."""
        got = self.get(path, Accept="application/json")
        assert got.status == 200, f"{path}: {got.status} {got.text[:2000]}"
        return got.value

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Got:
        kind = {"Content_Type": "application/x-www-form-urlencoded", **headers}
        return self.send("POST", path, urlencode(fields).encode(), **kind)

    def token(self, page: str) -> str:
        """The token in a page's form."""
        found = re.search(r'name="form_token" value="([0-9a-f]+)"', page)
        assert found is not None, page[:2000]
        return unescape(found[1])


def log_in(visitor: Visitor, user: str, password: str, onward: str = "/topics") -> Got:
    token = visitor.token(visitor.page(f"/login?next={onward}"))
    return visitor.post(f"/login?next={onward}", {"form_token": token, "user": user, "password": password})


def sent_back(address: str) -> str:
    """Where the issuer sends a browser that comes to that address."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 302
        return str(answer.headers["Location"])
    finally:
        connection.close()
