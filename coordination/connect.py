"""``zookeeper.connect``: its syntax, and the diagnosis of addresses without a ZooKeeper."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fleetlog.coordination.store import StoreError

DEFAULT_PORT = 2181


class CannotConnect(StoreError):
    """No session could be opened; the message names each address and its error."""


class ConnectString(NamedTuple):
    """A parsed ``zookeeper.connect``. ``chroot`` is empty or starts with a slash."""

    hosts: tuple[tuple[str, int], ...]
    chroot: str = ""

    def addresses(self) -> str:
        """The hosts without the chroot, for messages and for the client."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)

    def absolute(self, path: str) -> str:
        """The full path in ZooKeeper of a path below the chroot."""
        if not self.chroot:
            return path
        return self.chroot if path == "/" else self.chroot + path

    def relative(self, path: str) -> str:
        """The path below the chroot of a full path in ZooKeeper."""
        return path[len(self.chroot) :] or "/" if self.chroot else path


@dataclass(frozen=True, slots=True)
class ConnectionSecurity:
    """How a store connects to ZooKeeper, and what it keeps from others there.

    ``newest_context`` gives the TLS context of a new connection, on any thread; None: without TLS. ``logins`` are
    pairs of scheme and credential. With ``owns_znodes``, what is created is writable by this login only, and below
    ``secret_paths`` also readable by it only.
    """

    newest_context: Callable[[], ssl.SSLContext] | None = None
    logins: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    owns_znodes: bool = False
    secret_paths: tuple[str, ...] = ()

    def is_secret(self, path: str) -> bool:
        """Whether others may not read a path below the chroot."""
        return any(path == secret or path.startswith(secret + "/") for secret in self.secret_paths)


def parse_connect(text: str) -> ConnectString:
    """Parse ``host:port,host:port/chroot`` as Kafka's ``zookeeper.connect``; raises CannotConnect if malformed."""
    addresses, slash, rest = text.strip().partition("/")
    chroot = "/" + rest.rstrip("/") if slash and rest.rstrip("/") else ""
    if "//" in chroot or any(part in (".", "..") for part in chroot.split("/")) or "," in chroot:
        raise CannotConnect(
            f"zookeeper.connect={text!r}: the path {chroot!r} is not one; write host:port,host:port/path"
        )
    hosts = tuple(_parse_address(text, address.strip()) for address in addresses.split(","))
    return ConnectString(hosts, chroot)


def _parse_address(text: str, address: str) -> tuple[str, int]:
    host, port_text = address, ""
    if address.startswith("["):
        host, bracket, tail = address[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise CannotConnect(f"zookeeper.connect={text!r}: {address!r} is not [address]:port")
        port_text = tail[1:]
    elif address.count(":") == 1:
        host, _, port_text = address.partition(":")
    elif ":" in address:
        raise CannotConnect(f"zookeeper.connect={text!r}: {address!r} is not host:port (IPv6 needs brackets)")
    if not host or any(c.isspace() for c in host):
        raise CannotConnect(f"zookeeper.connect={text!r}: {address!r} has no host; write host:port,host:port/path")
    if not port_text:
        return host, DEFAULT_PORT
    if not port_text.isascii() or not port_text.isdigit() or not 0 < int(port_text) < 65536:
        raise CannotConnect(f"zookeeper.connect={text!r}: {port_text!r} is not a port (1 to 65535)")
    return host, int(port_text)


async def diagnose(host: str, port: int, context: ssl.SSLContext | None = None) -> str:
    """The error of an address, as text."""
    where = f"{host}:{port}"
    name = None if context is None else host
    try:
        opening = asyncio.open_connection(host, port, ssl=context, server_hostname=name)
        reader, writer = await asyncio.wait_for(opening, 2)
    except TimeoutError:
        return f"{where} does not answer"
    except ssl.SSLError as error:
        return f"{where} {_tls_problem(error)}"
    except ConnectionResetError:
        if context is None:
            return f"{where} cannot be reached (connection reset)"
        return f"{where} ended the connection within the TLS handshake: connect to its secureClientPort"
    except OSError as error:
        return f"{where} cannot be reached ({error.strerror or error})"
    try:
        writer.write(b"srvr")
        answer = await asyncio.wait_for(reader.read(4096), 2)
    except ssl.SSLError as error:
        return f"{where} {_tls_problem(error)}"
    except (OSError, TimeoutError):
        answer = b""
    finally:
        writer.close()
    if b"Mode:" in answer:
        return f"{where} is a ZooKeeper that serves, but refused the session (an older state than one seen before?)"
    if b"not currently serving" in answer:
        return f"{where} is a ZooKeeper without a quorum"
    tls = "" if context is not None else ", at least not without TLS (zookeeper.ssl.client.enable)"
    return f"{where} is reached but does not answer like a ZooKeeper{tls}"


def _tls_problem(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"has a certificate that is not accepted ({error.verify_message}): see zookeeper.ssl.truststore.location,"
            " and zookeeper.ssl.endpoint.identification.algorithm for its names"
        )
    if "ALERT" in (error.reason or ""):
        return f"refused TLS ({error.reason}): see zookeeper.ssl.keystore.location, and what ZooKeeper trusts"
    return f"failed in the TLS handshake ({error.reason or error}): connect to its secureClientPort"
