"""Addresses as ACLs spell them: as Java writes them, so that entries written for Kafka match.

IPv4 as usual; IPv6 with all eight groups, none shortened (``0:0:0:0:0:0:0:1``); an IPv4 address inside an IPv6 one as
the IPv4 address that it is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


def host_as_acls_have_it(address: str) -> str:
    """The address in that spelling; what is no address (a ``*``, a name) stays as it is."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in found.exploded.split(":"))


def why_no_client_has(host: str, listening: Iterable[str]) -> str | None:
    """Why an ACL with that host never counts at a broker that listens on these addresses; None where it can."""
    if host == "*":
        return None
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return "is no address, and names are not looked up"
    spelled = host_as_acls_have_it(host)
    if spelled != host:
        return f"is compared as it is written: write {spelled}"
    if version == 6 and not any(":" in address for address in listening):
        return "is an IPv6 address, and this broker's listeners are IPv4"
    return None
