"""deploy/compose.yaml as values: what the tests start is what the file says, or they fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

COMPOSE_FILE = Path(__file__).parents[2] / "deploy" / "compose.yaml"
SERVICE_KEYS = {
    "image", "restart", "networks", "healthcheck", "environment", "ports", "volumes", "depends_on", "stop_grace_period",
    "read_only", "tmpfs", "cap_drop", "security_opt", "command",
}  # fmt: skip
NANOSECONDS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9}


class Service(NamedTuple):
    """One service, as the Docker API wants it."""

    name: str
    image: str
    environment: dict[str, str]
    networks: dict[str, tuple[str, ...]]
    """Network: the service's further names in it."""
    ports: dict[str, tuple[str, int]]
    """Container's port: (address, port) on the host."""
    volumes: dict[str, str]
    """Volume: where it is mounted."""
    depends_on: tuple[str, ...]
    """Services that must be healthy first."""
    healthcheck: dict[str, Any] | None
    """In the API's form; None: the image's own."""
    restart: str
    stop_grace_s: int
    confined: dict[str, Any]
    """What is taken from the container: ``read_only``, ``cap_drop``, ``security_opt``."""
    tmpfs: tuple[str, ...]
    """Directories in memory."""
    command: tuple[str, ...] = ()
    """Instead of the image's own."""

    def host_port(self, container_port: int) -> int:
        return self.ports[f"{container_port}/tcp"][1]


class Topology(NamedTuple):
    services: dict[str, Service]
    networks: dict[str, bool]
    """Network: is it internal?"""
    volumes: tuple[str, ...]


def read(variables: Mapping[str, str], path: Path = COMPOSE_FILE) -> Topology:
    """The file's topology with these variables; fails on anything in it that the tests would not start."""
    document = yaml.safe_load(interpolate(path.read_text(), variables))
    unknown = {key for key in document if not key.startswith("x-")} - {"name", "services", "networks", "volumes"}
    assert not unknown, f"{path.name} has {unknown}, which the tests don't know"
    for name, volume in document["volumes"].items():
        assert not volume, f"volume {name} has options that the tests don't know"
    for name, network in document["networks"].items():
        assert set(network or {}) <= {"internal"}, f"network {name} has options that the tests don't know"
    networks = {name: bool((network or {}).get("internal")) for name, network in document["networks"].items()}
    topology = Topology(
        {name: _service(name, entry) for name, entry in document["services"].items()},
        networks,
        tuple(document["volumes"]),
    )
    for service in topology.services.values():
        assert set(service.networks) <= set(networks), f"{service.name} joins a network that is not declared"
        assert set(service.volumes) <= set(topology.volumes), f"{service.name} mounts a volume that is not declared"
        assert set(service.depends_on) <= set(topology.services), (
            f"{service.name} waits for a service that is not there"
        )
    return topology


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Compose's ``${NAME:-default}`` and ``$$``; the file uses no other form. Comments are left alone."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        assert match[1] is not None, (
            f"a form of interpolation that the tests don't know, near {match.string[match.start() :][:40]!r}"
        )
        return variables.get(match[1]) or match[2]

    return re.sub(r"\$\$|\$\{(\w+):-([^}]*)\}|\$", value, text)


def _service(name: str, entry: Mapping[str, Any]) -> Service:
    unknown = set(entry) - SERVICE_KEYS
    assert not unknown, f"service {name} has {unknown}, which the tests would not start"
    depends_on = entry.get("depends_on", {})
    assert all(need == {"condition": "service_healthy"} for need in depends_on.values()), f"{name}: {depends_on}"
    networks = entry["networks"]
    if isinstance(networks, list):
        networks = dict.fromkeys(networks)
    aliases = {}
    for network, options in networks.items():
        assert set(options or {}) <= {"aliases"}, f"{name} in {network}: {options}"
        aliases[network] = tuple((options or {}).get("aliases", ()))
    return Service(
        name=name,
        image=entry["image"],
        environment={key: _text(value) for key, value in entry.get("environment", {}).items()},
        networks=aliases,
        ports=dict(_port(item) for item in entry.get("ports", [])),
        volumes=dict(item.split(":") for item in entry.get("volumes", [])),
        depends_on=tuple(depends_on),
        healthcheck=_healthcheck(entry["healthcheck"]) if "healthcheck" in entry else None,
        restart=entry.get("restart", "no"),
        stop_grace_s=_duration(entry.get("stop_grace_period", "10s")) // 10**9,
        confined={key: entry[key] for key in ("read_only", "cap_drop", "security_opt") if key in entry},
        tmpfs=tuple(entry.get("tmpfs", [])),
        command=tuple(entry.get("command", [])),
    )


def _text(value: object) -> str:
    assert isinstance(value, str | int), f"{value!r}: write it as text, YAML has its own mind about it"
    assert not isinstance(value, bool), f"{value!r}: compose refuses it, write it in quotes"
    return str(value)


def _port(item: str) -> tuple[str, tuple[str, int]]:
    address, host_port, container_port = item.split(":")
    return f"{container_port}/tcp", (address, int(host_port))


def _duration(text: str) -> int:
    match = re.fullmatch(r"(\d+)(ms|s|m)", text)
    assert match is not None, f"{text!r} is no duration that the tests know"
    return int(match[1]) * NANOSECONDS[match[2]]


def _healthcheck(entry: Mapping[str, Any]) -> dict[str, Any]:
    assert set(entry) <= {"test", "interval", "timeout", "retries", "start_period"}, entry
    return {key: _duration(value) if isinstance(value, str) else value for key, value in entry.items()}
