"""The brokers of one machine, derived from one properties file. No I/O but a look into the log directories.

Broker i of N has the file's ``broker.id`` + i, the ports of the file's listeners + i steps, and a directory
``broker-ID`` in each of ``log.dirs``. ``admin.listener`` is the unit's own; broker i has its port + 1 + i. Rack and
failure domain are the file's for all of them (without ``failure.domain``, the host's name), so replicas of a partition
keep away from brokers that stop with the same machine. What clashes is refused before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fleetlog.brokers.addresses import address_text
from fleetlog.brokers.config import BrokerConfig, ConfigError, load_config
from fleetlog.brokers.inert_settings import ADMIN_TLS_PREFIX
from fleetlog.brokers.properties import parse_properties

BROKERS_MAX = 64
REGISTRY_PORT = 8081
_LISTENER = re.compile(r"(.*://.*:)(\d+)")
_DIRECTORY = re.compile(r"broker-(\d+)")
_WILDCARDS = ("0.0.0.0", "::", "")


def local_address(host: str, port: int) -> tuple[str, int]:
    """Where this machine reaches what is bound to that address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


class PlannedBroker(NamedTuple):
    """One broker: its id, what stands above the properties file for it, and its whole configuration."""

    id: int
    overrides: dict[str, str]
    config: BrokerConfig

    def admin_address(self) -> tuple[str, int]:
        """Where its own pages are read from this machine."""
        return local_address(*self.config.admin_endpoint())


class PlannedRegistry(NamedTuple):
    """A schema registry beside the brokers: the file of ``fleetlog registry --config``, and what it says of where."""

    file: str
    address: tuple[str, int]
    tls: bool


class HostPlan(NamedTuple):
    """The unit: its own address for pages, the directory that has its lock, its brokers, and a registry, if any."""

    admin: tuple[str, int]
    directory: Path
    brokers: tuple[PlannedBroker, ...]
    registry: PlannedRegistry | None = None


def plan_host(
    text: str,
    source: str,
    environment: Mapping[str, str],
    overrides: Mapping[str, str],
    count: int,
    step: int = 1,
    *,
    check_directories: bool = True,
) -> HostPlan:
    """Derive the brokers; raises ConfigError with what clashes, and what to change."""
    base = load_config(text, source, environment, overrides)
    if not 1 <= count <= BROKERS_MAX:
        raise ConfigError("--brokers", str(count), f"must be from 1 to {BROKERS_MAX}")
    if not base.admin_listener:
        raise ConfigError("admin.listener", "", "is required: the brokers are watched through it", source)
    admin = base.admin_endpoint()
    if not admin[1]:
        raise ConfigError("admin.listener", base.admin_listener, "must name a port: the brokers' own are the next ones")
    for name, _ in base.given:
        if name.startswith(ADMIN_TLS_PREFIX + "ssl."):
            raise ConfigError(
                name, "", "is not served for several brokers: bind admin.listener to the loopback, and put a proxy with"
                " TLS before it",
            )  # fmt: skip
    planned = []
    for index in range(count):
        own = _derived(base, admin, index, step)
        try:
            config = load_config(text, source, environment, {**overrides, **own})
        except ConfigError as error:
            if error.name not in own:
                raise
            raise ConfigError(
                error.name, error.value, f"{error.allowed}; this is derived for broker {own['broker.id']} of --brokers"
                f" {count}: change the file's {error.name}, or --brokers", source,
            ) from None  # fmt: skip
        planned.append(PlannedBroker(config.broker_id, own, config))
    plan = HostPlan(admin, Path(base.log_dirs[0]), tuple(planned))
    _check_ports(plan)
    if check_directories:
        _check_directories(base, plan)
    return plan


def with_registry(plan: HostPlan, text: str, file: str) -> HostPlan:
    """The plan with the registry of that file. Raises ConfigError; the other options are looked at by the registry."""
    options = {name: value for name, (value, _) in parse_properties(text, file).items()}
    host, port = options.get("listen", "127.0.0.1").strip("[]"), options.get("port", str(REGISTRY_PORT))
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ConfigError("port", port, "must be from 1 to 65535", file)
    if host == "localhost":
        host = "127.0.0.1"
    changed = plan._replace(registry=PlannedRegistry(file, (host, int(port)), "tls-certificate" in options))
    _check_ports(changed)
    return changed


def _derived(base: BrokerConfig, admin: tuple[str, int], index: int, step: int) -> dict[str, str]:
    broker_id = base.broker_id + index
    own = {
        "broker.id": str(broker_id),
        "listeners": _moved("listeners", base.listeners, index * step),
        "admin.listener": address_text(admin[0], admin[1] + 1 + index),
        "log.dirs": ",".join(str(Path(path) / f"broker-{broker_id}") for path in base.log_dirs),
    }
    if base.advertised_listeners:
        own["advertised.listeners"] = _moved("advertised.listeners", base.advertised_listeners, index * step)
    if any(name == "node.id" for name, _ in base.given):
        own["node.id"] = str(broker_id)
    return own


def _moved(name: str, items: tuple[str, ...], by: int) -> str:
    """The listeners with ports that much higher. Port 0, any free one, stays."""
    moved = []
    for item in items:
        parts = _LISTENER.fullmatch(item)
        if parts is None:
            raise ConfigError(name, item, "must be NAME://host:port")
        port = int(parts[2])
        moved.append(f"{parts[1]}{port + by if port else 0}")
    return ",".join(moved)


def _check_ports(plan: HostPlan) -> None:
    """Each address has one listener; raises ConfigError."""
    wanted = [("admin.listener of the unit", "admin.listener", *plan.admin)]
    for broker in plan.brokers:
        wanted.append((f"admin.listener of broker {broker.id}", "admin.listener", *broker.config.admin_endpoint()))
        wanted += [
            (f"listener {endpoint.listener} of broker {broker.id}", "listeners", endpoint.host, endpoint.port)
            for endpoint in broker.config.listener_endpoints()
            if endpoint.port
        ]
    if plan.registry is not None:
        wanted.append(("the schema registry", "port", *plan.registry.address))
    taken: dict[int, list[tuple[str, str]]] = {}
    for what, setting, host, port in wanted:
        for other, other_host in taken.get(port, []):
            if host == other_host or host in _WILDCARDS or other_host in _WILDCARDS:
                raise ConfigError(
                    setting, f"port {port}", f"is wanted by {other} and by {what}: set the ports of the file further"
                    f" apart than {len(plan.brokers)}, or change --port-step",
                )  # fmt: skip
        taken.setdefault(port, []).append((what, host))


def _check_directories(base: BrokerConfig, plan: HostPlan) -> None:
    """No data stands where none of these brokers would find it; raises ConfigError."""
    ids = {broker.id for broker in plan.brokers}
    for name in base.log_dirs:
        path = Path(name)
        if (path / "meta.properties").exists():
            raise ConfigError(
                "log.dirs", name, "holds the data of a broker that ran alone: stop it, and move all that stands in it"
                f" to {path / f'broker-{base.broker_id}'}",
            )  # fmt: skip
        present = path.iterdir() if path.is_dir() else ()
        parts = (_DIRECTORY.fullmatch(one.name) for one in present if (one / "meta.properties").exists())
        left_out = sorted({int(one[1]) for one in parts if one is not None} - ids)
        if left_out:
            raise ConfigError(
                "log.dirs", name, f"holds the data of broker {left_out[0]}, which is none of {min(ids)} to {max(ids)}:"
                " change --brokers or broker.id; move replicas off a broker before it goes"
                " (`fleetlog cluster rebalance`), then remove its directory",
            )  # fmt: skip


def same_unit(old: HostPlan, new: HostPlan) -> str | None:
    """Why brokers cannot change from the old plan to the new one by one; None if they can."""
    if [broker.id for broker in old.brokers] != [broker.id for broker in new.brokers]:
        return "broker.id has changed: stop the unit and start it again"
    if old.admin != new.admin:
        return "admin.listener has changed: stop the unit and start it again"
    if any(mine.config.log_dirs != other.config.log_dirs for mine, other in zip(old.brokers, new.brokers, strict=True)):
        return "log.dirs has changed: stop the unit and start it again"
    return None
