"""The brokers of one machine: what is derived from the file, what is refused, and the joined metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleetlog.brokers.cli.host_pages import join_metrics
from fleetlog.brokers.cli.host_plan import HostPlan, PlannedRegistry, plan_host, same_unit, with_registry
from fleetlog.brokers.config import ConfigError
from fleetlog.brokers.metrics.exposition import RowFamily, Rows, exposition_text


def plan(
    tmp_path: Path, count: int = 3, step: int = 1, environment: dict[str, str] | None = None, **settings: Any
) -> HostPlan:
    values = {
        "broker.id": 4, "zookeeper.connect": "zookeeper:2181", "admin.listener": "127.0.0.1:9644",
        "listeners": "PLAINTEXT://127.0.0.1:9092", "log.dirs": tmp_path / "data",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }  # fmt: skip
    text = "".join(f"{name}={value}\n" for name, value in values.items() if value is not None)
    return plan_host(text, "f.properties", environment or {}, {}, count, step)


def test_ids_ports_and_directories_are_derived(tmp_path: Path) -> None:
    two = f"{tmp_path}/a,{tmp_path}/b"
    found = plan(
        tmp_path, step=10, listeners="A://0.0.0.0:9092,B://[::1]:9093", broker_rack="zone-a", log_dirs=two,
        listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT", advertised_listeners="A://h:9092,B://[::1]:9093",
        node_id=4,
    )  # fmt: skip
    assert found.admin == ("127.0.0.1", 9644)
    last = found.brokers[2].config
    assert (last.broker_id, last.broker_rack, last.failure_domain) == (6, "zone-a", "")
    assert last.listeners == ("A://0.0.0.0:9112", "B://[::1]:9113")
    assert last.advertised_listeners == ("A://h:9112", "B://[::1]:9113")
    assert last.log_dirs == (f"{tmp_path}/a/broker-6", f"{tmp_path}/b/broker-6")
    assert [broker.admin_address() for broker in found.brokers] == [("127.0.0.1", 9645 + i) for i in range(3)]


def test_the_environment_counts_before_the_file(tmp_path: Path) -> None:
    found = plan(tmp_path, environment={"FLEETLOG_CONFIG_BROKER_ID": "40", "FLEETLOG_CONFIG_NUM_PARTITIONS": "7"})
    assert [broker.id for broker in found.brokers] == [40, 41, 42]
    assert {broker.config.num_partitions for broker in found.brokers} == {7}


def test_a_registry_is_planned_from_its_file(tmp_path: Path) -> None:
    found = with_registry(plan(tmp_path), "bootstrap=h:9092\n", "r.properties").registry
    assert found == PlannedRegistry("r.properties", ("127.0.0.1", 8081), False)
    text = "listen=[::1]\nport=9444\ntls-certificate=c.pem\ntls-key=k.pem\n"
    found = with_registry(plan(tmp_path), text, "r.properties").registry
    assert found == PlannedRegistry("r.properties", ("::1", 9444), True)
    for text, said in (
        ("port=0\n", "from 1 to 65535"),
        ("port=x\n", "from 1"),
        ("port=9093\n", "broker 5 and by the sch"),
    ):
        with pytest.raises(ConfigError, match=said):
            with_registry(plan(tmp_path, 2), text, "r.properties")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listeners": "A://127.0.0.1:9092,B://127.0.0.1:9094",
          "listener_security_protocol_map": "A:PLAINTEXT,B:PLAINTEXT"},
         "port 9094.*listener B of broker 4 and by listener A of broker 6.*--port-step"),
        ({"listeners": "PLAINTEXT://127.0.0.1:9643"}, "port 9644.*admin.listener of the unit and by listener"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9646", "advertised_listeners": "PLAINTEXT://h:9646"}, "port 9646"),
        ({"listeners": "PLAINTEXT://127.0.0.1:65534"},
         "^f.properties: listeners=.*:65536': the port must be a number .* derived for broker 6 of --brokers 3"),
        ({"admin_listener": "127.0.0.1:65535"}, "^f.properties: admin.listener=.* derived for broker 4 of --brokers 3"),
        ({"admin_listener": None}, "admin.listener.*is required"),
        ({"admin_listener": "127.0.0.1:0"}, "must name a port"),
        ({"admin_ssl_keystore_location": "/x"}, "admin.ssl.keystore.location.*proxy"),
        ({"count": 0}, "--brokers"),
        ({"count": 65}, "--brokers"),
    ],
)  # fmt: skip
def test_what_clashes_is_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(tmp_path, **settings)


def test_no_data_is_left_out(tmp_path: Path) -> None:
    for number in (4, 5, 6):
        (tmp_path / "data" / f"broker-{number}").mkdir(parents=True)
        (tmp_path / "data" / f"broker-{number}" / "meta.properties").touch()
    plan(tmp_path, 3)
    with pytest.raises(ConfigError, match="holds the data of broker 6, which is none of 4 to 5"):
        plan(tmp_path, 2)
    (tmp_path / "data" / "meta.properties").touch()
    with pytest.raises(ConfigError, match=r"of a broker that ran alone.*broker-4"):
        plan(tmp_path, 3)


def test_what_a_rolling_restart_can_change(tmp_path: Path) -> None:
    old = plan(tmp_path)
    assert same_unit(old, plan(tmp_path, num_partitions=3, listeners="PLAINTEXT://127.0.0.1:9192")) is None
    for changed in ({"broker_id": 5}, {"admin_listener": "127.0.0.1:9700"}, {"log_dirs": tmp_path / "else"}):
        reason = same_unit(old, plan(tmp_path, **changed))
        assert reason is not None
        assert "has changed: stop the unit" in reason


def test_metrics_are_joined() -> None:
    one = (
        '# HELP a_total A "doc".\n# TYPE a_total counter\na_total{api="Fetch {broker=\\"x\\"}"} 1.0\n'
        "# HELP b B.\n# TYPE b histogram\n"
        'b_bucket{le="1.0"} 2.0\nb_bucket{le="+Inf"} 3.0\nb_count 3.0\nb_sum 1.5\n'
    )
    two = (
        '# HELP b B.\n# TYPE b histogram\nb_bucket{le="+Inf"} 0.0\nb_count 0.0\nb_sum 0.0\n'
        '# HELP c C.\n# TYPE c gauge\nc{broker="9",x="y"} 4.0\nc{} 5.0\nc{x="y",broker="8"} 6.0\nlonely 1.0\n'
    )
    families = list(text_string_to_metric_families(join_metrics({1: one, 2: two})))
    assert [(family.name, family.type) for family in families] == [
        ("a", "counter"), ("b", "histogram"), ("c", "gauge"), ("lonely", "unknown"),
    ]  # fmt: skip
    samples = {name: [(s.name, s.labels, s.value) for s in f.samples] for f in families for name in [f.name]}
    assert samples["a"] == [("a_total", {"broker": "1", "api": 'Fetch {broker="x"}'}, 1.0)]
    assert ("b_count", {"broker": "2"}, 0.0) in samples["b"]
    assert ("b_bucket", {"broker": "1", "le": "1.0"}, 2.0) in samples["b"]
    assert samples["c"] == [
        ("c", {"broker": "2", "exported_broker": "9", "x": "y"}, 4.0),
        ("c", {"broker": "2"}, 5.0),
        ("c", {"broker": "2", "exported_broker": "8", "x": "y"}, 6.0),
    ]
    assert samples["lonely"] == [("lonely", {"broker": "2"}, 1.0)]


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\r", "\x0b", "\x0c", "\x1c", "\n"])
def test_a_label_may_have_what_ends_a_line_elsewhere(end: str) -> None:
    group = f"a{end}b 1.0"
    rows = Rows(("group",), [RowFamily("lag", "gauge", "Lag.")], [((group,), (2.0,))])
    (family,) = text_string_to_metric_families(join_metrics({1: exposition_text([rows]).decode()}))
    label = group.encode("unicode_escape").decode()  # what is not printable would reach screens
    assert [(one.labels, one.value) for one in family.samples] == [({"broker": "1", "group": label}, 2.0)]
