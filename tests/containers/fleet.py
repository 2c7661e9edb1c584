"""The fleet of deploy/compose.yaml in containers, and what can be done to them."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Self

from docker.models.containers import Container
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from fleetlog.coordination.ports import free_ports
from tests.containers.images import Images
from tests.containers.topology import Topology, read
from tests.support.fleet import says_ready
from tests.support.waiting import eventually

ADMIN_PORT = 9644
OUTSIDE_PORT = 9094
READY_TIMEOUT_S = 150.0
PAUSE_S = 0.2
"""Between two questions to the engine."""
RESTARTS_MAX = 5
BROKERS = ("broker-1", "broker-2", "broker-3")
ZOOKEEPERS = ("zookeeper-1", "zookeeper-2", "zookeeper-3")
REGISTRY = "registry"


class Fleet:
    """Seven containers, two networks and nine volumes, all gone after :meth:`close`."""

    def __init__(self, images: Images, *, broker_image: str = "") -> None:
        self.prefix = f"fleetlog-{os.urandom(4).hex()}"
        ports = free_ports(2 * len(BROKERS) + 1)
        variables = {"FLEETLOG_IMAGE": broker_image or images.broker, "ZOOKEEPER_IMAGE": images.zookeeper}
        for number in range(1, len(BROKERS) + 1):
            variables[f"FLEETLOG_PORT_{number}"] = str(ports.pop())
            variables[f"FLEETLOG_ADMIN_PORT_{number}"] = str(ports.pop())
        variables["FLEETLOG_REGISTRY_PORT"] = str(ports.pop())
        self.topology: Topology = read(variables)
        self._networks: dict[str, Network] = {}
        self._containers: dict[str, DockerContainer] = {}

    @property
    def bootstrap(self) -> str:
        """For clients on this machine."""
        return ",".join(self.address(name) for name in BROKERS)

    def address(self, name: str) -> str:
        """One broker's address for clients on this machine."""
        return f"127.0.0.1:{self.topology.services[name].host_port(OUTSIDE_PORT)}"

    def start(self) -> Self:
        for name, internal in self.topology.networks.items():
            network = Network(docker_network_kw={"internal": internal})
            self._networks[name] = network.create()
        for name, service in self.topology.services.items():
            for need in service.depends_on:
                self.wait_healthy(need)
            self._start(name, service.image)
        for name in BROKERS:
            self.wait_ready(name)
        return self

    def close(self) -> None:
        """Remove everything, whatever state it is in."""
        client = None
        for container in self._containers.values():
            client = container.get_docker_client().client
            with contextlib.suppress(Exception):
                container.stop()
        for network in self._networks.values():
            with contextlib.suppress(Exception):
                network.remove()
        for volume in self.topology.volumes if client is not None else ():
            with contextlib.suppress(Exception):
                client.volumes.get(self._volume(volume)).remove()

    def container(self, name: str) -> Container:
        """The container of a service, with its present attributes."""
        container = self._containers[name].get_wrapped_container()
        container.reload()
        return container

    def health(self, name: str) -> str:
        """What the image's or the file's health check says."""
        return str(self.container(name).attrs["State"]["Health"]["Status"])

    def log(self, name: str, lines: int = 60) -> str:
        """The end of what it said; empty when there is no such container."""
        if name not in self._containers:
            return ""
        return self.container(name).logs(tail=lines).decode(errors="replace")

    def wait_healthy(self, name: str) -> None:
        eventually(
            lambda: self.health(name), f"{name} is healthy", READY_TIMEOUT_S,
            good=lambda health: health == "healthy", pause_s=PAUSE_S,
        )  # fmt: skip

    def ready(self, name: str) -> bool:
        """Does the broker itself say it is ready?"""
        return says_ready(self.topology.services[name].host_port(ADMIN_PORT))

    def wait_ready(self, name: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.ready(name):
            container = self.container(name)
            hopeful = time.monotonic() < deadline and container.attrs["RestartCount"] < RESTARTS_MAX
            assert hopeful, f"{name} is {container.status}, not ready:\n{self.log(name)}"
            time.sleep(0.1)

    # What can be done to them

    def kill(self, name: str) -> None:
        """SIGKILL; the engine does not start it again by itself."""
        self.container(name).kill()

    def stop(self, name: str) -> int:
        """``docker stop``: SIGTERM and the file's time to end; the exit code."""
        container = self.container(name)
        container.stop(timeout=self.topology.services[name].stop_grace_s)
        return int(container.wait()["StatusCode"])

    def start_again(self, name: str) -> None:
        self.container(name).start()

    def pause(self, name: str) -> None:
        """Freeze all its processes: no signal, no closed connection, no answer."""
        self.container(name).pause()

    def unpause(self, name: str) -> None:
        self.container(name).unpause()

    def disconnect(self, name: str, *networks: str) -> None:
        """Take the container off networks (all of its own when none is named)."""
        for network in networks or tuple(self.topology.services[name].networks):
            self._docker_network(name, network).disconnect(self.container(name))

    def connect(self, name: str, *networks: str) -> None:
        """Put it back, with its names."""
        service = self.topology.services[name]
        for network in networks or tuple(service.networks):
            self._docker_network(name, network).connect(
                self.container(name), aliases=[name, *service.networks[network]]
            )

    def replace(self, name: str, image: str) -> int:
        """Stop it cleanly, and start a container of another image on its volumes and ports; the old one's exit code."""
        code = self.stop(name)
        self._containers.pop(name).stop()
        self._start(name, image)
        return code

    def heal(self) -> None:
        """Whatever was done to them: all of them run, unpaused and on their networks, and the brokers are ready."""
        for name, service in self.topology.services.items():
            container = self.container(name)
            if container.status == "paused":
                container.unpause()
            on = set(container.attrs["NetworkSettings"]["Networks"])
            missing = [network for network in service.networks if self._networks[network].name not in on]
            if missing:
                self.connect(name, *missing)
            if container.status in ("exited", "created"):
                container.start()
        for name in ZOOKEEPERS:
            self.wait_healthy(name)
        for name in BROKERS:
            self.wait_ready(name)

    def _start(self, name: str, image: str) -> None:
        service = self.topology.services[name]
        first, *others = sorted(service.networks, key=lambda network: not self.topology.networks[network])
        container = DockerContainer(image).with_name(f"{self.prefix}-{name}").with_envs(**service.environment)
        container.with_network(self._networks[first])
        container.with_network_aliases(name, *service.networks[first])
        container.ports.update(service.ports)  # type: ignore[arg-type]  # (address, port), as the Docker API takes it
        for volume, path in service.volumes.items():
            container.with_volume_mapping(self._volume(volume), path, "rw")
        for path in service.tmpfs:
            container.with_tmpfs_mount(path)
        further: dict[str, Any] = {"restart_policy": {"Name": service.restart}, **service.confined}
        if service.command:
            container.with_command(list(service.command))
        if service.healthcheck is not None:
            further["healthcheck"] = service.healthcheck
        self._containers[name] = container.with_kwargs(**further)
        container.start()
        self.connect(name, *others) if others else None

    def _volume(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def network(self, name: str) -> str:
        """The engine's name of a network of the file."""
        return str(self._networks[name].name)

    def _docker_network(self, name: str, network: str) -> Any:
        return self._containers[name].get_docker_client().client.networks.get(self.network(network))
