"""The compose file: it is valid, it is what these tests start, and it says what the documents say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from urllib.request import Request, urlopen

import pytest

from fleetlog.brokers.config import ENVIRONMENT_PREFIX, load_config
from fleetlog.brokers.schemas.command import registry
from tests.containers.fleet import BROKERS, OUTSIDE_PORT, PAUSE_S, REGISTRY, ZOOKEEPERS, Fleet
from tests.containers.images import ROOT
from tests.containers.topology import COMPOSE_FILE, interpolate, read
from tests.support.waiting import eventually

pytestmark = pytest.mark.containers


def test_compose_itself_reads_the_file() -> None:
    """Debian has no `docker compose`; where there is one it must agree with the reader of these tests."""
    topology = read({})
    assert set(topology.services) == {*BROKERS, *ZOOKEEPERS, REGISTRY}
    known = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
    if known and shutil.which("docker"):
        command = ["docker", "compose", "-f", COMPOSE_FILE, "config", "--format", "json"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        services = json.loads(told)["services"]
        for name, service in topology.services.items():
            assert services[name]["environment"] == service.environment
            assert services[name]["image"] == service.image
            assert set(services[name]["networks"]) == set(service.networks)


def test_each_broker_would_start_with_these_settings() -> None:
    ids = set()
    for name in BROKERS:
        environment = read({}).services[name].environment
        settings = (ROOT / "deploy/broker.properties").read_text()
        config = load_config(settings, "deploy/broker.properties", environment)
        ids.add(config.broker_id)
        assert config.inter_broker_listener() == "BROKERS"
        assert {end.listener for end in config.advertised_endpoints()} == {"BROKERS", "CLIENTS", "OUTSIDE"}
        assert all(key.startswith(ENVIRONMENT_PREFIX) for key in environment), "a broker reads nothing else"
    assert ids == {1, 2, 3}


def test_only_the_machine_itself_connects_unless_configured() -> None:
    for service in read({}).services.values():
        assert {address for address, _ in service.ports.values()} <= {"127.0.0.1"}
    opened = read({"FLEETLOG_BIND": "192.0.2.1", "FLEETLOG_HOST": "fleet.example.org"})
    for name in BROKERS:
        service = opened.services[name]
        address, port = service.ports[f"{OUTSIDE_PORT}/tcp"]
        assert address == "192.0.2.1"
        advertised = service.environment["FLEETLOG_CONFIG_ADVERTISED_LISTENERS"]
        assert f"OUTSIDE://fleet.example.org:{port}" in advertised


def test_a_server_lost_is_data_kept() -> None:
    """Each server has volumes of its own for all that it must not forget, and comes back by itself."""
    topology = read({})
    volumes = [volume for service in topology.services.values() for volume in service.volumes]
    assert sorted(volumes) == sorted(topology.volumes), "each volume belongs to one server"
    for name in ZOOKEEPERS:
        assert set(topology.services[name].volumes.values()) == {"/data", "/datalog"}
    for name in BROKERS:
        assert set(topology.services[name].volumes.values()) == {"/var/lib/fleetlog"}
    assert {service.restart for service in topology.services.values()} == {"unless-stopped"}


def test_variables_of_the_file_are_in_the_guide() -> None:
    used = set(re.findall(r"\$\{(\w+):-", COMPOSE_FILE.read_text()))
    guide = (ROOT / "deploy/README.md").read_text()
    for name in used:
        pattern = re.sub(r"_[123]$", "_N", name)
        assert pattern in guide, f"deploy/README.md does not mention {pattern}"


def test_the_reader_refuses_what_it_would_not_start() -> None:
    with pytest.raises(AssertionError, match="interpolation"):
        interpolate("${NAME:?required}", {})
    assert interpolate("$$ ${A:-b} ${C:-}", {"C": "d"}) == "$ b d"
    changed = COMPOSE_FILE.read_text().replace("restart: unless-stopped", "privileged: true")
    other = ROOT / "build" / "compose-changed.yaml"
    other.parent.mkdir(exist_ok=True)
    other.write_text(changed)
    with pytest.raises(AssertionError, match="privileged"):
        read({}, other)


def test_a_registry_takes_its_command() -> None:
    service = read({}).services[REGISTRY]
    with registry.make_context("registry", list(service.command[1:])) as context:
        options = context.params
    assert service.command[0] == "registry"
    assert service.ports == {f"{options['port']}/tcp": ("127.0.0.1", 18081)}
    assert {address.split(":")[0] for address in options["bootstrap"].split(",")} == set(service.depends_on)
    assert not service.volumes, "it keeps nothing"


def test_the_engine_reports_all_seven_healthy(fleet: Fleet) -> None:
    for name in (*ZOOKEEPERS, *BROKERS, REGISTRY):
        fleet.wait_healthy(name)


def test_a_schema_is_registered_from_outside_and_a_registry_that_is_killed_comes_back(fleet: Fleet) -> None:
    address = f"http://127.0.0.1:{fleet.topology.services[REGISTRY].host_port(8081)}"
    body = json.dumps({"schema": '"string"'}).encode()
    request = Request(f"{address}/subjects/s/versions", body, {"Content-Type": "application/json"}, method="POST")
    with urlopen(request, timeout=60) as answer:
        number = json.load(answer)["id"]
    before = fleet.container(REGISTRY).attrs["RestartCount"]
    fleet.container(REGISTRY).exec_run(["python3", "-c", "import os, signal; os.kill(1, signal.SIGTERM)"])
    eventually(
        lambda: fleet.container(REGISTRY).attrs["RestartCount"], "the engine starts it again",
        good=lambda count: count > before, pause_s=PAUSE_S,
    )  # fmt: skip
    fleet.wait_healthy(REGISTRY)
    with urlopen(f"{address}/schemas/ids/{number}", timeout=60) as answer:
        assert json.load(answer)["schema"] == '"string"'
