"""Addresses as ACLs spell them: as Java writes them, so that entries written for Kafka match.

IPv4 as usual; IPv6 with all eight groups, none shortened (``0:0:0:0:0:0:0:1``); an IPv4 address inside an IPv6 one as
the IPv4 address that it is. A range of addresses is ``10.0.0.0/8`` or ``2001:db8::/32``, as in Kafka from 4.4 on.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

_WIDTHS: Final = {4: 32, 6: 128}
_IPV4_RANGE: Final = re.compile(r"([0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3})/([0-9]{1,2})")
_IPV6_RANGE: Final = re.compile(r"([0-9A-Fa-f:.]{2,45})/([0-9]{1,3})")


class BadRange(ValueError):
    """A host with a slash that is no range; the text is meant for the client."""


class HostRange(NamedTuple):
    """The addresses of an IP version whose first ``bits`` are those of the number ``first``."""

    version: int
    bits: int
    first: int

    def __str__(self) -> str:
        kind = ipaddress.IPv4Address if self.version == 4 else ipaddress.IPv6Address
        return f"{kind(self.first)}/{self.bits}"


def network_of(address: int, version: int, bits: int) -> int:
    """The address with all but its first bits zero."""
    rest = _WIDTHS[version] - bits
    return address >> rest << rest


def range_of(host: str) -> HostRange | None:
    """The range that an ACL's host is; None without a slash. Raises BadRange."""
    if "/" not in host:
        return None
    version = 6 if ":" in host else 4
    match = (_IPV6_RANGE if version == 6 else _IPV4_RANGE).fullmatch(host)
    if match is None:
        raise BadRange(f"Invalid CIDR notation '{host}': write an address and a number of bits, as in 10.0.0.0/8.")
    bits = int(match[2])
    if bits > _WIDTHS[version]:
        raise BadRange(f"Invalid CIDR notation '{host}': an IPv{version} address has {_WIDTHS[version]} bits.")
    try:
        plain = ".".join(str(int(part)) for part in match[1].split(".")) if version == 4 else match[1]
        address = ipaddress.ip_address(plain)
    except ValueError as problem:
        raise BadRange(f"Invalid CIDR notation '{host}': {problem}.") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise BadRange(f"Invalid CIDR notation '{host}': clients with IPv4 addresses are in an IPv4 range only.")
    return HostRange(version, bits, network_of(int(address), version, bits))


@lru_cache(4096)
def address_of(host: str) -> tuple[int, int] | None:
    """A client's address as (IP version, number); None if it is none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return address.version, int(address)


def host_as_acls_have_it(address: str) -> str:
    """The address in that spelling, a range by its first address; what is neither (a ``*``, a name) stays as it is."""
    if "/" in address:
        try:
            return str(range_of(address))
        except BadRange:
            return address
    if ":" not in address:
        return address
    try:
        ipv6 = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if ipv6.ipv4_mapped is not None:
        return str(ipv6.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in ipv6.exploded.split(":"))


def why_no_client_has(host: str, listening: Iterable[str]) -> str | None:
    """Why an ACL with that host never counts at a broker that listens on these addresses; None where it can."""
    if host == "*":
        return None
    listens_on_ipv6 = any(":" in address for address in listening)
    if "/" in host:
        return _why_no_client_is_in(range_of(host), listens_on_ipv6)
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return "is no address, and names are not looked up"
    spelled = host_as_acls_have_it(host)
    if spelled != host:
        return f"is compared as it is written: write {spelled}"
    if version == 6 and not listens_on_ipv6:
        return "is an IPv6 address, and this broker's listeners are IPv4"
    return None


def _why_no_client_is_in(found: HostRange | None, listens_on_ipv6: bool) -> str | None:
    if found is None:
        return None
    network = ipaddress.ip_network(str(found))
    if network.version == 6 and not listens_on_ipv6:
        return "is a range of IPv6, and this broker's listeners are IPv4"
    if network.is_multicast or (
        network.version == 4 and (network.is_reserved or (found.bits >= 8 and not found.first))
    ):
        return "is a range of addresses that no host has"
    return None
