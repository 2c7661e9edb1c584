"""The Kubernetes manifests: against the API's schemas, and against each other and the broker."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from fleetlog.brokers.config import BrokerConfig, load_config
from fleetlog.brokers.schemas.command import registry
from tests.support.needs import having

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.37")
"""The oldest that the base is meant for, and the newest whose schemas are at hand."""
CUSTOM = {"ServiceMonitor"}
"""Not of Kubernetes itself: the schemas don't have them."""

Manifest = dict[str, Any]


PATCHES = {"racks/rack.yaml", "registry-login/secrets.yaml"}
"""Parts of manifests, which are whole where they are rendered."""


def manifests() -> list[Manifest]:
    apart = {DIRECTORY / one for one in PATCHES}
    paths = sorted(path for path in DIRECTORY.glob("*/*.yaml") if path.name != "kustomization.yaml")
    paths = [path for path in paths if path not in apart]
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
    for path in DIRECTORY.rglob("kustomization.yaml"):
        content = yaml.safe_load(path.read_text())
        named = [*content.get("resources", []), *content.get("components", [])]
        named += [file for one in content.get("configMapGenerator", []) for file in one["files"]]
        named += [one["path"] for one in content.get("patches", []) if "path" in one]
        assert all((path.parent / one).exists() for one in named)
        beside = {other.name for other in path.parent.iterdir()} - {path.name}
        assert beside <= set(named), "left out"


def rendered(folder: str) -> list[Manifest]:
    """What kubectl would apply."""
    command = ["kubectl", "kustomize", str(DIRECTORY / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = list(yaml.safe_load_all(done.stdout))
    for one in found:
        if one["kind"] not in CUSTOM:
            for version in VERSIONS:
                kubernetes_validate.validate(one, version, strict=True)
    return found


def settings_are_shared(found: list[Manifest]) -> bool:
    """Whether all brokers have the settings by the name that changes with them: new settings are an update."""
    (settings,) = [one for one in found if one["kind"] == "ConfigMap" and "broker.properties" in one["data"]]
    brokers = [one for one in found if one["kind"] == "StatefulSet" and one["metadata"]["name"].startswith("fleetlog")]
    volumes = [one["spec"]["template"]["spec"]["volumes"] for one in brokers]
    return bool(brokers) and all(volume["configMap"]["name"] == settings["metadata"]["name"] for (volume,) in volumes)


needs_kubectl = having("kubectl", shutil.which("kubectl") is not None)


@needs_kubectl
def test_kubectl_renders_all_of_it() -> None:
    found = rendered("example")
    assert len(found) == len(ALL) + 2, "and the settings of both"
    (brokers,) = [one for one in found if name_of(one) == "StatefulSet/fleetlog"]
    assert settings_are_shared(found)
    assert [one["image"] for one in brokers["spec"]["template"]["spec"]["containers"]] == ["fleetlog:0.1.0"]


@needs_kubectl
def test_each_rack_has_brokers_of_its_own_and_one_budget_is_for_all() -> None:
    found = rendered("racks")
    assert settings_are_shared(found)
    sets = [one for one in found if one["kind"] == "StatefulSet"]
    assert [name_of(one) for one in sets] == [f"StatefulSet/fleetlog-{letter}" for letter in "abc"]
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in sets]
    for one, labels in zip(sets, pods, strict=True):
        chosen = one["spec"]["selector"]["matchLabels"]
        assert [chosen.items() <= other.items() for other in pods].count(True) == 1, "no other rack's pods"
        assert chosen.items() <= labels.items()
        spec = one["spec"]["template"]["spec"]
        nodes = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (zone,) = nodes["nodeSelectorTerms"][0]["matchExpressions"]
        assert (zone["key"], zone["values"]) == ("topology.kubernetes.io/zone", [labels["fleetlog-rack"]])
        assert "topologySpreadConstraints" not in spec
        assert "podAntiAffinity" in spec["affinity"], "brokers of a rack keep to different nodes"
        assert one["spec"]["updateStrategy"] == {"type": "OnDelete"}, "three sets do not wait for each other"
    assert len({labels["fleetlog-rack"] for labels in pods}) == 3
    for kind in ("PodDisruptionBudget", "NetworkPolicy", "Service"):
        for one in [one for one in found if one["kind"] == kind]:
            selector = one["spec"].get("selector") or one["spec"]["podSelector"]
            assert all(selector.get("matchLabels", selector).items() <= labels.items() for labels in pods), name_of(one)
    (budget,) = [one for one in found if one["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["maxUnavailable"] == 1


@needs_kubectl
def test_brokers_of_racks_have_their_own_ids_and_say_their_rack() -> None:
    """Also where each rack has grown to a hundred brokers."""
    found = rendered("racks")
    (settings,) = [one["data"]["broker.properties"] for one in found if one["kind"] == "ConfigMap"]
    services = {one["metadata"]["name"] for one in found if one["kind"] == "Service"}
    ids: list[int] = []
    for one in [one for one in found if one["kind"] == "StatefulSet"]:
        first, name = one["spec"]["ordinals"]["start"], one["metadata"]["name"]
        assert one["spec"]["serviceName"] in services
        ids += [config_of(one, number, settings).broker_id for number in range(first, first + 100)]
        config = config_of(one, first, settings)
        assert config.broker_rack == one["spec"]["template"]["metadata"]["labels"]["fleetlog-rack"]
        (endpoint,) = config.advertised_endpoints()
        assert endpoint.host == f"{name}-{first}.fleetlog-brokers.fleet.svc"
    assert len(ids) == len(set(ids)) == 300


def labels_of_pods() -> list[Manifest]:
    kinds = {"StatefulSet", "Deployment"}
    return [one["spec"]["template"]["metadata"]["labels"] for one in ALL if one["kind"] in kinds]


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


def registry_options(file: Path) -> dict[str, Any]:
    """What `fleetlog registry` makes of the file, whose other files need not be there."""
    text = file.read_text()
    for line in text.splitlines():
        if not line.startswith("#") and "=/etc/" in line:
            text = text.replace(line, f"{line.partition('=')[0]}={file}")
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as changed:
        changed.write(text)
        changed.flush()
        with registry.make_context("registry", ["--config", changed.name]) as context:
            return context.params


def test_a_registry_takes_its_options_and_its_probes_ask_for_pages_that_it_has() -> None:
    spec = the("Deployment", "fleetlog-registry")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["args"] == ["registry", "--config", "/etc/fleetlog/registry.properties"]
    options = registry_options(DIRECTORY / "registry" / "registry.properties")
    (port,) = [port["containerPort"] for port in container["ports"]]
    (service,) = the("Service", "fleetlog-registry")["spec"]["ports"]
    assert (options["host"], options["port"], options["bootstrap"]) == ("0.0.0.0", port, "fleetlog:9092")
    assert service["port"] == port
    probes = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert probes == {"startupProbe": "/", "livenessProbe": "/", "readinessProbe": "/health/ready"}
    labels = the("Deployment", "fleetlog-registry")["spec"]["template"]["metadata"]["labels"]
    assert labels["fleetlog-client"] == "true", "it is let to the brokers"
    secured = registry_options(DIRECTORY / "registry-login" / "registry.properties")
    assert secured["mechanisms"] == ("SCRAM-SHA-512",)
    assert secured["command_config"] is not None
    assert secured["tls_certificate"] is not None


@needs_kubectl
def test_a_registry_with_logins_has_its_secrets_in_files(tmp_path: Path) -> None:
    folder = tmp_path / "kubernetes"
    shutil.copytree(DIRECTORY, folder)
    (folder / "secured").mkdir()
    (folder / "secured" / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        "resources: [../base]\ncomponents: [../registry, ../registry-login]\n"
    )
    found = rendered(str(folder / "secured"))
    (one,) = [one for one in found if name_of(one) == "Deployment/fleetlog-registry"]
    spec = one["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert "env" not in container
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounted["/etc/fleetlog-login"]["secret"]["secretName"] == "fleetlog-registry-login"
    assert mounted["/etc/fleetlog-tls"]["secret"]["secretName"] == "fleetlog-registry-tls"
    (settings,) = [one for one in found if one["kind"] == "ConfigMap" and "registry.properties" in one["data"]]
    assert mounted["/etc/fleetlog"]["configMap"]["name"] == settings["metadata"]["name"], "new options are an update"
    files = [line.partition("=")[2] for line in settings["data"]["registry.properties"].splitlines() if "=/etc" in line]
    assert all(str(Path(file).parent) in mounted for file in files)
    assert {container[name]["httpGet"]["scheme"] for name in container if name.endswith("Probe")} == {"HTTPS"}


def config_of(brokers: Manifest, number: int, settings: str) -> BrokerConfig:
    """The configuration of a StatefulSet's pod: the number is in its name, and in the label of its index."""
    template = brokers["spec"]["template"]
    (container,) = template["spec"]["containers"]
    fields = {
        "metadata.labels['apps.kubernetes.io/pod-index']": str(number),
        "metadata.name": f"{brokers['metadata']['name']}-{number}",
        "metadata.namespace": "fleet", "spec.nodeName": "node-7",
        **{f"metadata.labels['{name}']": value for name, value in template["metadata"]["labels"].items()},
    }  # fmt: skip
    environment: dict[str, str] = {}
    for one in container["env"]:
        value = one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for name, known in environment.items():
            value = value.replace(f"$({name})", known)
        environment[one["name"]] = value
    return load_config(settings, "broker.properties", environment)


def test_a_broker_takes_the_settings() -> None:
    brokers = the("StatefulSet", "fleetlog")
    (container,) = brokers["spec"]["template"]["spec"]["containers"]
    config = config_of(brokers, 2, (DIRECTORY / "common" / "broker.properties").read_text())
    assert config.broker_id == 2
    assert config.failure_domain == "node-7"
    (endpoint,) = config.advertised_endpoints()
    assert (endpoint.host, endpoint.port) == ("fleetlog-2.fleetlog-brokers.fleet.svc", 9092)
    ports = {port["containerPort"] for port in container["ports"]}
    assert ports == {config.listener_endpoints()[0].port, config.admin_endpoint()[1]}
    (data,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "data"]
    assert all(path.startswith(data) for path in config.log_dirs), "all else is read-only"
