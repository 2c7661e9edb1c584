"""The Kubernetes manifests: against the API's schemas, and against each other and the broker."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from brokers.config import load_config

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.37")
"""The oldest that the base is meant for, and the newest whose schemas are at hand."""
CUSTOM = {"ServiceMonitor"}
"""Not of Kubernetes itself: the schemas don't have them."""

Manifest = dict[str, Any]


def manifests(folder: str = "*") -> list[Manifest]:
    paths = sorted(path for path in DIRECTORY.glob(f"{folder}/*.yaml") if path.name != "kustomization.yaml")
    found = [one for path in paths for one in yaml.safe_load_all(path.read_text())]
    assert found
    return found


ALL = manifests()


def name_of(one: Manifest) -> str:
    return f"{one['kind']}/{one['metadata']['name']}"


def the(kind: str, name: str) -> Manifest:
    (found,) = [one for one in ALL if name_of(one) == f"{kind}/{name}"]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", [one for one in ALL if one["kind"] not in CUSTOM], ids=name_of)
def test_the_api_accepts_it(manifest: Manifest, version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_an_unknown_field_is_found() -> None:
    wrong = the("PodDisruptionBudget", "fleetlog") | {"spec": {"maxUnavailble": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_every_file_belongs_to_a_kustomization() -> None:
    for path in DIRECTORY.glob("*/kustomization.yaml"):
        content = yaml.safe_load(path.read_text())
        named = [*content.get("resources", []), *content.get("components", [])]
        named += [file for one in content.get("configMapGenerator", []) for file in one["files"]]
        assert all((path.parent / one).exists() for one in named)
        beside = {other.name for other in path.parent.iterdir()} - {path.name}
        assert beside <= set(named), "left out"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kubectl_renders_all_of_it() -> None:
    command = ["kubectl", "kustomize", str(DIRECTORY / "example")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    rendered = list(yaml.safe_load_all(done.stdout))
    assert len(rendered) == len(ALL) + 1, "and the settings"
    for one in rendered:
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
    (settings,) = [one for one in rendered if one["kind"] == "ConfigMap"]
    (brokers,) = [one for one in rendered if name_of(one) == "StatefulSet/fleetlog"]
    (volume,) = brokers["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == settings["metadata"]["name"], "new settings are a rolling update"
    assert [one["image"] for one in brokers["spec"]["template"]["spec"]["containers"]] == ["fleetlog:0.1.0"]


def labels_of_pods() -> list[Manifest]:
    return [one["spec"]["template"]["metadata"]["labels"] for one in ALL if one["kind"] == "StatefulSet"]


def selectors() -> list[tuple[str, dict[str, str]]]:
    found = []
    for one in ALL:
        spec = one.get("spec", {})
        for key in ("selector", "podSelector"):
            chosen = spec.get(key)
            if chosen is not None and one["kind"] != "ServiceMonitor":
                found.append((name_of(one), chosen.get("matchLabels", chosen)))
    return found


@pytest.mark.parametrize(("what", "labels"), selectors(), ids=[what for what, _ in selectors()])
def test_selectors_select_pods(what: str, labels: dict[str, str]) -> None:
    assert any(labels.items() <= pod.items() for pod in labels_of_pods()), what


def test_names_and_ports_exist() -> None:
    services = {one["metadata"]["name"]: one["spec"] for one in ALL if one["kind"] == "Service"}
    for one in ALL:
        if one["kind"] != "StatefulSet":
            continue
        spec = one["spec"]
        assert services[spec["serviceName"]]["clusterIP"] == "None"
        (container,) = spec["template"]["spec"]["containers"]
        ports = {port["name"] for port in container["ports"]}
        for service in services.values():
            if service["selector"].items() <= spec["template"]["metadata"]["labels"].items():
                assert {port["targetPort"] for port in service["ports"]} <= ports
        volumes = {volume["name"] for volume in spec["template"]["spec"].get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    monitor, watched = the("ServiceMonitor", "fleetlog")["spec"], the("Service", "fleetlog-brokers")
    assert monitor["selector"]["matchLabels"].items() <= watched["metadata"]["labels"].items()
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= {one["name"] for one in watched["spec"]["ports"]}


def test_probes_ask_for_pages_that_a_broker_has() -> None:
    (container,) = the("StatefulSet", "fleetlog")["spec"]["template"]["spec"]["containers"]
    probes = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert probes == {
        "startupProbe": "/health/live", "livenessProbe": "/health/live", "readinessProbe": "/health/caught-up",
    }  # fmt: skip
    served = "".join((ROOT / "brokers" / name).read_text() for name in ("app.py", "server/admin.py"))
    assert all(f'b"{path}"' in served for path in probes.values())


def test_a_broker_takes_the_settings() -> None:
    (container,) = the("StatefulSet", "fleetlog")["spec"]["template"]["spec"]["containers"]
    fields = {
        "metadata.labels['apps.kubernetes.io/pod-index']": "2", "metadata.name": "fleetlog-2",
        "metadata.namespace": "fleet", "spec.nodeName": "node-7",
    }  # fmt: skip
    environment: dict[str, str] = {}
    for one in container["env"]:
        value = one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for name, known in environment.items():
            value = value.replace(f"$({name})", known)
        environment[one["name"]] = value
    text = (DIRECTORY / "base" / "broker.properties").read_text()
    config = load_config(text, "broker.properties", environment)
    assert config.broker_id == 2
    assert config.failure_domain == "node-7"
    (endpoint,) = config.advertised_endpoints()
    assert (endpoint.host, endpoint.port) == ("fleetlog-2.fleetlog-brokers.fleet.svc", 9092)
    ports = {port["containerPort"] for port in container["ports"]}
    assert ports == {config.listener_endpoints()[0].port, config.admin_endpoint()[1]}
    (data,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "data"]
    assert all(path.startswith(data) for path in config.log_dirs), "all else is read-only"
