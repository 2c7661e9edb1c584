"""Alert rules and dashboards: against the pages of a real broker, against the runbook, and by Prometheus' own tools."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy.alerts import FAULTS
from tests.deploy.panels import dashboards, filled
from tests.support.fleet import Fleet
from tests.support.needs import needs, program
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RULES = MONITORING / "fleetlog.rules.yaml"
register_default_plugins()
PROMTOOL = program("promtool")
NOT_OF_EVERY_BROKER = {
    "fleetlog_audit": "audit.enable",
    "fleetlog_certificate_refused": "a listener with TLS",
    "fleetlog_certificate_seconds": "a listener with TLS",
    "fleetlog_host_broker_starts_total": "`fleetlog host`",
    "fleetlog_tier_held_partitions": "a bucket",
    "fleetlog_tier_stalled_seconds": "a bucket",
    "fleetlog_tier_troubled_partitions": "a bucket",
    "fleetlog_registry_read_age_seconds": "`fleetlog registry`",
    "fleetlog_registry_requests_total": "`fleetlog registry`",
}
"""Families that a broker with default settings does not have, and what they come with."""

NAME = re.compile(r"\b(?:fleetlog|kafka|process)_\w+")
SELECTOR = re.compile(r"\b(fleetlog_\w+)\{([^}]*)\}")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def shown() -> list[str]:
    return [target["expr"] for one in dashboards() for panel in one["panels"] for target in panel["targets"]]


def expressions() -> list[str]:
    return [*(rule["expr"] for rule in rules()), *shown()]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), brokers=1, **{"group.lag.interval.ms": 200})
    address = f"http://127.0.0.1:{fleet.brokers[0].admin_port}/metrics"
    try:
        fleet.start()
        admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
        admin.create_topics([NewTopic("t", 1, config={"max.message.bytes": "1000"})])["t"].result(30)
        refused: list[KafkaError] = []
        producer = Producer({"bootstrap.servers": fleet.bootstrap, "log_level": 0})
        producer.produce("t", bytes(5_000), on_delivery=lambda error, _: refused.append(error))
        assert producer.flush(30) == 0
        assert [error.code() for error in refused] == [KafkaError.MSG_SIZE_TOO_LARGE]
        Producer({"bootstrap.servers": fleet.bootstrap, "transactional.id": "t", "log_level": 0}).init_transactions(30)
        consumer = Consumer({"bootstrap.servers": fleet.bootstrap, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
        consumer.close()
        yield eventually(
            lambda: urlopen(address, timeout=30).read().decode(), "the lag of the group is known",
            good=lambda page: "\nfleetlog_group_lag_records{" in page,
        )  # fmt: skip
    finally:
        fleet.close()


def names_on(page: str) -> set[str]:
    """Names of samples that the page has, or has a family for."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE):
        found |= {name, *(f"{name}{end}" for end in ("_bucket", "_sum", "_count") if kind == "histogram")}
    return found


@pytest.mark.zookeeper
def test_what_rules_and_dashboards_ask_for_is_there(page: str) -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(asked) > 20
    assert asked - names_on(page) - set(NOT_OF_EVERY_BROKER) == set()
    assert set(NOT_OF_EVERY_BROKER) <= asked
    assert not set(NOT_OF_EVERY_BROKER) & names_on(page)


@pytest.mark.zookeeper
def test_what_the_owner_watches_is_there_and_its_alerts_exist(page: str) -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    table = text[text.index("| question | figure | alert |") : text.index("The rest, by subject")]
    named = {name for quoted in re.findall(r"`([^`]+)`", table) for name in NAME.findall(quoted)}
    assert len(named) > 30
    assert named - names_on(page) == set()
    figures = {name for expression in shown() for name in NAME.findall(expression)}
    missing = {name for name in named if not figures & {name, f"{name}_bucket"}}
    assert missing == {"kafka_consumergroup_lag"}, "the others are on a dashboard; this is lag by partition"
    alerts = set(re.findall(r"\bFleetlog[A-Z]\w+", table))
    assert len(alerts) > 15
    assert alerts - {rule["alert"] for rule in rules()} == set()


@pytest.mark.zookeeper
def test_the_values_of_labels_are_there(page: str) -> None:
    checked = 0
    for expression in expressions():
        for name, labels in SELECTOR.findall(expression):
            for label, value in re.findall(r'\b(what|api|state|source)="(\w+)"', labels):
                if name not in NOT_OF_EVERY_BROKER:
                    assert re.search(rf'^{name}{{.*{label}="{value}"', page, re.MULTILINE), (name, label, value)
                    checked += 1
    assert checked > 5


@pytest.mark.parametrize("name", sorted(NOT_OF_EVERY_BROKER))
def test_a_family_that_comes_with_a_setting_stands_in_the_code(name: str) -> None:
    sources = [*(ROOT / "brokers").rglob("*.py")]
    family = f'"{name.removesuffix("_total")}"', f'"{name}"'
    texts = [path.read_text() for path in sources]
    assert any(one in text for text in texts for one in family)


def sections() -> dict[str, str]:
    """The runbook's pages by their headings."""
    parts = re.split(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_alert_has_its_page() -> None:
    names = [rule["alert"] for rule in rules()]
    assert sorted(sections()) == sorted(set(names))
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "warn", "info")
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"]


@pytest.mark.parametrize("name", sorted(sections()))
def test_a_page_says_what_to_do(name: str) -> None:
    for part in ("**Users feel**", "**See more**", "**Do**"):
        assert part in sections()[name]


def test_each_alert_is_tested() -> None:
    tests = yaml.safe_load((MONITORING / "fleetlog.rules.test.yaml").read_text())["tests"]
    assert [f"Fleetlog{one['name']}" for one in tests] == [rule["alert"] for rule in rules()]
    for one in tests:
        values = [sample["value"] for asked in one["promql_expr_test"] for sample in asked["exp_samples"]]
        assert values[-1] == 0, f"{one['name']} goes away"
        assert 1 in values, f"{one['name']} fires"


def test_each_alert_is_fired_by_a_fault() -> None:
    """By hand: ``python -m tests.deploy.alerts``."""
    fired = {f"Fleetlog{name}" for alerts in FAULTS.values() for name in alerts}
    assert fired == {rule["alert"] for rule in rules()}


needs_promtool = needs("promtool")


def promtool(*words: str, directory: Path = MONITORING) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None, "Debian's package prometheus has promtool"
    return subprocess.run([PROMTOOL, *words], cwd=directory, capture_output=True, text=True, timeout=240, check=False)


@needs_promtool
def test_prometheus_evaluates_the_rules() -> None:
    for words in (("check", "rules", RULES.name), ("test", "rules", "fleetlog.rules.test.yaml")):
        done = promtool(*words)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_parses_what_panels_show(tmp_path: Path) -> None:
    """Each expression is a rule for once, with what Grafana puts in the place of its variables."""
    asked = [filled(expression) for expression in shown()]
    assert len(asked) > 100
    made = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(asked)]
    for rules_ in (made, [*made, {"record": "panel:wrong", "expr": "sum(fleetlog_leaders"}]):
        (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules_}]}))
        done = promtool("check", "rules", "panels.yaml", directory=tmp_path)
        assert (done.returncode == 0) == (rules_ is made), done.stdout + done.stderr


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboards", MONITORING / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_dashboards_are_as_their_script_writes_them() -> None:
    written = {path.name: path.read_text() for path in (MONITORING / "dashboards").iterdir()}
    assert written == generator().files(), "run python deploy/monitoring/dashboards.py"


def units_of_grafana() -> set[object]:
    return {value for name, value in vars(units).items() if not name.startswith("_")}


@pytest.mark.parametrize("one", dashboards(), ids=lambda one: str(one["uid"]))
def test_grafana_knows_each_field(one: dict[str, Any]) -> None:
    """Read and written again by Grafana's own model, which leaves out what it does not know."""
    read = Dashboard.from_json(one)
    written = json.loads(JSONEncoder().encode(read))
    for variable in one["templating"]["list"]:
        variable.pop("definition", None)  # what a variable's list shows of it in the editor, newer than the model
    assert within(one, written) == []
    for panel in one["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"] in units_of_grafana()


def within(part: Any, whole: Any, at: str = "") -> list[str]:
    """Where the part has something that the whole lacks or has otherwise."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return [
            place for key, value in part.items() for place in within(value, whole.get(key, "missing"), f"{at}.{key}")
        ]
    if isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        return [
            place
            for index, (one, other) in enumerate(zip(part, whole, strict=True))
            for place in within(one, other, f"{at}[{index}]")
        ]
    return [] if part == whole else [f"{at}: {part!r}, not {whole!r}"]


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    wrong = dashboards()[0] | {"refreshes": "15s"}
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(wrong)))
    assert ".refreshes: '15s', not 'missing'" in within(wrong, written)


def test_there_are_four_and_each_has_the_variables_that_it_uses() -> None:
    assert len(dashboards()) == 4
    for one in dashboards():
        text = " ".join(target["expr"] for panel in one["panels"] for target in panel["targets"])
        asked = set(re.findall(r"\$([a-z]\w*)", text))
        assert {given["name"] for given in one["templating"]["list"]} == {"datasource", *asked}
        titles = [panel["title"] for panel in one["panels"]]
        assert len(set(titles)) == len(titles)


def test_panels_lie_beside_each_other() -> None:
    for one in dashboards():
        taken: set[tuple[int, int]] = set()
        for panel in one["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            assert place["x"] + place["w"] <= 24
            taken |= cells
        assert len({panel["id"] for panel in one["panels"]}) == len(one["panels"])


def test_compose_mounts_what_is_there() -> None:
    services = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert service["profiles"] == ["monitoring"]
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / "deploy" / source).exists(), "paths are from the first file's directory"
    targets = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"][0][
        "targets"
    ]
    fleet = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    assert {target.split(":")[0] for target in targets} == {name for name in fleet if name.startswith("broker-")}


def test_what_compose_mounts_is_where_prometheus_and_grafana_look() -> None:
    services = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
    mounted = {
        name: {Path(inside): source for source, inside in (one.split(":")[:2] for one in service["volumes"])}
        for name, service in services.items()
    }
    grafana = mounted["grafana"]
    for folder, file in (("datasources", "datasource.yaml"), ("dashboards", "dashboards.yaml")):
        assert grafana[Path("/etc/grafana/provisioning", folder, "fleetlog.yaml")] == f"./monitoring/grafana/{file}"
    (provider,) = yaml.safe_load((MONITORING / "grafana" / "dashboards.yaml").read_text())["providers"]
    assert grafana[Path(provider["options"]["path"])] == "./monitoring/dashboards"
    (source,) = yaml.safe_load((MONITORING / "grafana" / "datasource.yaml").read_text())["datasources"]
    assert (source["type"], urlsplit(source["url"]).hostname) == ("prometheus", "prometheus")
    assert set(services["grafana"]["networks"]) & set(services["prometheus"]["networks"])
    (rules_file,) = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())["rule_files"]
    assert mounted["prometheus"][Path(rules_file)] == f"./monitoring/{RULES.name}"


@needs_promtool
def test_prometheus_takes_the_settings_of_the_compose_file(tmp_path: Path) -> None:
    settings = (MONITORING / "prometheus.yaml").read_text()
    (tmp_path / "prometheus.yaml").write_text(settings.replace("/etc/prometheus/", f"{MONITORING}/"))
    done = promtool("check", "config", "prometheus.yaml", directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout
