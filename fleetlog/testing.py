"""A fleetlog broker in a container, for tests of programs that use Kafka: the extra ``testcontainers``.

It follows the ``KafkaContainer`` of testcontainers, so that a test changes one line. docs/containers.md has an example.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError

from testcontainers.core.container import DockerContainer
from testcontainers.core.exceptions import ContainerStartException
from testcontainers.core.network import Network

from fleetlog.brokers.cli.dev_security import ADMIN, APP, LISTENER, NAMES, PROTOCOL, DevSecurity, load_or_make

__all__ = ["FleetlogContainer"]

OUTSIDE_PORT = 9094
INSIDE_PORT = 9092
ADMIN_PORT = 9644
_START_SCRIPT = "/tmp/fleetlog-start.sh"
_SECURITY = "/tmp/fleetlog-security"
_SECURE_PROPERTIES = "/tmp/fleetlog-secure.properties"
_LOG_LINES = 40


class FleetlogContainer(DockerContainer):
    """One broker, and one ZooKeeper beside it in a container of its own; both end with it.

    Clients on this machine connect to :meth:`get_bootstrap_server`; clients in other containers join the network given
    to ``with_network`` and connect to :meth:`get_internal_bootstrap_server`. One broker: topics have one replica.

    Args:
        image: fleetlog's image; default ``$FLEETLOG_IMAGE``, else ``fleetlog:latest`` (built by ``deploy/build.sh``).
        zookeeper_image: default ``$ZOOKEEPER_IMAGE``, else the official ``zookeeper:3.9``.
        settings: the broker's settings, by their names: ``{"num.partitions": 3}``.
        secure: TLS, logins and ACLs; :meth:`client_settings` has what clients need. Takes the ``openssl`` command.
        start_timeout_s: how long :meth:`start` waits until the broker is ready, in seconds.
        kwargs: what testcontainers' ``DockerContainer`` takes.

    """

    def __init__(
        self,
        image: str | None = None,
        *,
        zookeeper_image: str | None = None,
        settings: Mapping[str, object] | None = None,
        secure: bool = False,
        start_timeout_s: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(image or os.environ.get("FLEETLOG_IMAGE", "fleetlog:latest"), **kwargs)
        self._zookeeper_image = zookeeper_image or os.environ.get("ZOOKEEPER_IMAGE", "zookeeper:3.9")
        self._start_timeout_s = start_timeout_s
        self._zookeeper: DockerContainer | None = None
        self._own_network: Network | None = None
        self._secure = secure
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._security: DevSecurity | None = None
        self.with_exposed_ports(OUTSIDE_PORT, ADMIN_PORT)
        self.with_setting("broker.id", 1)
        self._inside = LISTENER if secure else "INSIDE"
        protocol = PROTOCOL if secure else "PLAINTEXT"
        self.with_setting("listeners", f"{self._inside}://0.0.0.0:{INSIDE_PORT},OUTSIDE://0.0.0.0:{OUTSIDE_PORT}")
        self.with_setting("listener.security.protocol.map", f"{self._inside}:{protocol},OUTSIDE:{protocol}")
        self.with_setting("inter.broker.listener.name", self._inside)
        self.with_setting("admin.listener", f"0.0.0.0:{ADMIN_PORT}")
        self.with_setting("zookeeper.connection.timeout.ms", 60_000)
        # One broker, and a test that wants to be quick.
        for name in ("default.replication.factor", "min.insync.replicas", "offsets.topic.replication.factor",
                     "share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.min.isr",
                     "transaction.state.log.replication.factor", "transaction.state.log.min.isr"):  # fmt: skip
            self.with_setting(name, 1)
        for name in ("offsets.topic.num.partitions", "transaction.state.log.num.partitions",
                     "share.coordinator.state.topic.num.partitions"):  # fmt: skip
            self.with_setting(name, 3)
        self.with_setting("group.initial.rebalance.delay.ms", 0)
        for name, value in (settings or {}).items():
            self.with_setting(name, value)

    def with_setting(self, name: str, value: object) -> Self:
        """Set one of the broker's settings, by its name (``fleetlog config`` lists them)."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return self.with_env("FLEETLOG_CONFIG_" + name.upper().replace(".", "_"), text)

    def get_bootstrap_server(self) -> str:
        """``host:port`` for clients on the machine that runs the test."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(OUTSIDE_PORT)}"

    def get_internal_bootstrap_server(self) -> str:
        """``host:port`` for clients in containers on the same network."""
        return f"{self._inside_name()}:{INSIDE_PORT}"

    def client_settings(self, user: str = APP) -> dict[str, str]:
        """Settings of librdkafka for clients on this machine: ``app`` may use all topics, ``admin`` may do everything.

        Of a container that is not secured these are the servers alone.
        """
        if self._security is None:
            return {"bootstrap.servers": self.get_bootstrap_server()}
        return self._security.librdkafka(self.get_bootstrap_server(), user)

    def java_settings(self, user: str = APP) -> dict[str, str]:
        """The same by the names that Java's clients use, and Spark behind ``kafka.``."""
        if self._security is None:
            return {"bootstrap.servers": self.get_bootstrap_server()}
        return self._security.java(self.get_bootstrap_server(), user)

    def start(self) -> Self:
        """Start both containers and wait until the broker is ready.

        Raises:
            ContainerStartException: the broker ended, or was not ready in time; with the end of its log.

        """
        try:
            self._start()
        except BaseException:
            with contextlib.suppress(Exception):
                self.stop()
            raise
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """End and remove the broker, its ZooKeeper, and the network if it is their own."""
        if self._container is not None:  # `with` stops once more what a failed start has stopped
            super().stop(force, delete_volume)
            self._container = None
        zookeeper, self._zookeeper = self._zookeeper, None
        if zookeeper is not None:
            zookeeper.stop(force, delete_volume)
        network, self._own_network = self._own_network, None
        if network is not None:
            network.remove()
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.cleanup()

    def _start(self) -> None:
        if self._network is None:
            self._own_network = Network().create()
            self.with_network(self._own_network)
        assert self._network is not None
        if not self._network_aliases:
            self.with_network_aliases(f"fleetlog-{os.urandom(4).hex()}")
        zookeeper_name = f"zookeeper-{self._inside_name()}"
        zookeeper = DockerContainer(self._zookeeper_image).with_env("ZOO_TICK_TIME", "500")
        self._zookeeper = zookeeper.with_network(self._network).with_network_aliases(zookeeper_name)
        self._zookeeper.start()
        connect = f"{zookeeper_name}:2181"
        self.with_setting("zookeeper.connect", connect)
        # The address that clients are told has the port on this machine, which is known once the container runs.
        self.with_kwargs(**{**self._kwargs, "entrypoint": ["sh", "-c"]})
        self.with_command([f"while [ ! -s {_START_SCRIPT} ]; do sleep 0.05; done; . {_START_SCRIPT}"])
        super().start()
        advertised = f"{self._inside}://{self.get_internal_bootstrap_server()},OUTSIDE://{self.get_bootstrap_server()}"
        before = self._put_security(connect) if self._secure else ""
        file = _SECURE_PROPERTIES if self._secure else "/etc/fleetlog/broker.properties"
        self._put(
            _START_SCRIPT,
            f"export FLEETLOG_CONFIG_ADVERTISED_LISTENERS='{advertised}'\n{before}exec fleetlog broker {file}\n",
        )
        self._wait_ready()
        if self._secure:
            self._allow_programs()

    def _put_security(self, zookeeper: str) -> str:
        """Put certificates and settings into the container; returns what adds the users before the broker starts."""
        host = self.get_container_host_ip()
        kind = "IP" if host.replace(".", "").isdigit() or ":" in host else "DNS"
        self._directory = tempfile.TemporaryDirectory()
        names = dict.fromkeys((*NAMES, f"{kind}:{host}", f"DNS:{self._inside_name()}"))
        security = self._security = load_or_make(Path(self._directory.name), tuple(names))
        # The listeners' names and protocols stand in the environment, which counts first.
        text = "".join(f"{name}={value}\n" for name, value in security.broker_settings(replicas=1).items())
        self._put(f"{_SECURITY}/secure.properties", text.replace(str(security.directory), _SECURITY))
        for name in ("ca.pem", "broker.pem"):
            self._put(f"{_SECURITY}/{name}", (security.directory / name).read_text())
        admin = security.java(f"127.0.0.1:{INSIDE_PORT}", ADMIN)
        text = "".join(f"{name}={value}\n" for name, value in admin.items())
        self._put(f"{_SECURITY}/admin.properties", text.replace(str(security.directory), _SECURITY))
        users = "".join(
            f"printf '%s\\n' '{password}' | fleetlog users add {user} --zookeeper {zookeeper} --password-stdin\n"
            for user, password in security.passwords.items()
        )
        return f"cat /etc/fleetlog/broker.properties {_SECURITY}/secure.properties > {_SECURE_PROPERTIES}\n{users}"

    def _allow_programs(self) -> None:
        """``User:app`` may use all topics, groups and transactional ids, and describe the cluster."""
        every = "--topic '*' --group '*' --transactional-id '*'"
        for operation, resources in (("All", every), ("Describe", "--cluster")):
            command = (
                f"fleetlog acls add --allow --principal User:{APP} --operation {operation} {resources}"
                f" -b 127.0.0.1:{INSIDE_PORT} --command-config {_SECURITY}/admin.properties"
            )
            done = self.exec(["sh", "-c", command])
            if done.exit_code != 0:
                raise ContainerStartException(f"the ACLs cannot be made: {done.output.decode(errors='replace')}")

    def _inside_name(self) -> str:
        if not self._network_aliases:
            raise ContainerStartException("the name inside the network is known once the container has started")
        return self._network_aliases[0]

    def _put(self, path: str, text: str) -> None:
        """Write a file into the container."""
        data = text.encode()
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
        self.get_wrapped_container().put_archive("/", archive.getvalue())

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            with contextlib.suppress(URLError, OSError):  # a container that has ended has no ports: ConnectionError
                url = f"http://{self.get_container_host_ip()}:{self.get_exposed_port(ADMIN_PORT)}/health/ready"
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        return
            container = self.get_wrapped_container()
            container.reload()
            if container.status == "exited" or time.monotonic() > deadline:
                log = container.logs(tail=_LOG_LINES).decode(errors="replace")
                raise ContainerStartException(f"the broker in {self.image} is {container.status}, not ready:\n{log}")
            time.sleep(0.1)
