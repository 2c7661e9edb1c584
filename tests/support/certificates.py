"""Authorities and certificates of a test, by the ``openssl`` command."""

from __future__ import annotations

import socket
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

NAMES = "DNS:localhost,IP:127.0.0.1"


def openssl(*words: str, stdin: str = "") -> str:
    done = subprocess.run(["openssl", *words], input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


class Pair(NamedTuple):
    """A certificate with its private key, both PEM."""

    chain: str
    key: str

    def store(self, path: Path) -> str:
        """Key and chain in one file that only its owner can read; its path."""
        path.write_text(self.key + self.chain)
        path.chmod(0o600)
        return str(path)


class Authority:
    """Signs certificates."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory / name
        self.directory.mkdir()
        self._key, self.file = str(self.directory / "ca.key"), str(self.directory / "ca.pem")
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
            "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.file,
        )  # fmt: skip

    @property
    def pem(self) -> str:
        return Path(self.file).read_text()

    def pair(self, subject: str, *, names: str = NAMES, days: int = 30, password: str = "", rsa: int = 0) -> Pair:
        """``subject`` as ``/O=fleet/CN=broker``; a negative number of ``days`` makes an expired one."""
        kind = [f"rsa:{rsa}"] if rsa else ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        secret = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        key, request, extensions = (str(self.directory / name) for name in ("one.key", "one.csr", "one.ext"))
        openssl("req", "-new", "-newkey", *kind, *secret, "-subj", subject, "-keyout", key, "-out", request)
        Path(extensions).write_text(f"subjectAltName={names}\n" if names else "basicConstraints=CA:FALSE\n")
        chain = openssl(
            "x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key, "-CAcreateserial",
            "-days", str(days), "-extfile", extensions,
        )  # fmt: skip
        return Pair(chain, Path(key).read_text())


def serial_of(pair: Pair) -> int:
    shown = openssl("x509", "-noout", "-serial", stdin=pair.chain)
    return int(shown.strip().removeprefix("serial="), 16)


def shown_serial(port: int, context: ssl.SSLContext) -> int:
    """Of the certificate that the server at the port shows."""
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with context.wrap_socket(plain, server_hostname="localhost") as sock:
        shown = sock.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


def replaced(path: str, text: str) -> None:
    """Write a store as a certificate manager does it: whole, beside the old one first."""
    fresh = Path(path + ".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    fresh.rename(path)
