"""The throttle of a move beside others' throttles: what stood there before stands there afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.admin import ConfigResourceType
from kafka.protocol.admin import DescribeConfigsRequest

from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.moves import ReplicaMove
from fleetlog.brokers.cli.moving import RATES, SENDERS, TAKERS, throttled
from fleetlog.brokers.model import TopicPartition

Resource = tuple[int, str]
TOPIC, BROKER = ConfigResourceType.TOPIC.value, ConfigResourceType.BROKER.value
SET, DELETE, APPEND, SUBTRACT = range(4)


class ConfigTable:
    """Dynamic settings as IncrementalAlterConfigs changes them and DescribeConfigs tells them."""

    def __init__(self, settings: dict[Resource, dict[str, str]]) -> None:
        self.settings = settings

    def ask_any(self, request: Any) -> Any:
        return self.describe(request) if isinstance(request, DescribeConfigsRequest) else self.alter(request)

    def ask_each(self, requests: dict[int, Any], _patience_s: float) -> dict[int, Any]:
        return {broker_id: self.describe(request) for broker_id, request in requests.items()}

    def describe(self, request: Any) -> Any:
        rows = []
        for kind, name, wanted in map(_fields, request.resources):
            source = 1 if kind == TOPIC else 2
            here = self.settings.get((kind, name), {})
            configs = [SimpleNamespace(name=k, value=here[k], config_source=source) for k in wanted if k in here]
            rows.append(SimpleNamespace(resource_type=kind, resource_name=name, error_code=0, configs=configs))
        return SimpleNamespace(results=rows)

    def alter(self, request: Any) -> Any:
        rows = []
        for kind, name, changes in map(_fields, request.resources):
            here = self.settings.setdefault((kind, name), {})
            for key, operation, value in map(_fields, changes):
                present = [one for one in here.get(key, "").split(",") if one]
                given = [one for one in (value or "").split(",") if one]
                match operation:
                    case 0:
                        here[key] = value
                    case 1:
                        here.pop(key, None)
                    case 2:
                        here[key] = ",".join([*present, *(one for one in given if one not in present)])
                    case 3:
                        here[key] = ",".join(one for one in present if one not in given)
            rows.append(SimpleNamespace(resource_type=kind, resource_name=name, error_code=0, error_message=None))
        return SimpleNamespace(responses=rows)


def _fields(row: Any) -> tuple[Any, ...]:
    return tuple(row) if isinstance(row, tuple) else tuple(getattr(row, name) for name in row.fields)


@pytest.mark.parametrize("others", [False, True])
def test_what_others_have_throttled_stays_throttled(others: bool) -> None:
    before: dict[Resource, dict[str, str]] = {}
    if others:
        before[TOPIC, "t"] = {SENDERS: "5:1", TAKERS: "5:2"}
        before[BROKER, "1"] = dict.fromkeys(RATES, "777")
    table = ConfigTable({where: dict(values) for where, values in before.items()})
    move = ReplicaMove(TopicPartition("t", 0), (1,), (2,), size=10)
    with throttled(cast("AdminClient", table), [move], 1000, (1, 2)):
        assert "0:1" in table.settings[TOPIC, "t"][SENDERS].split(",")
        assert "0:2" in table.settings[TOPIC, "t"][TAKERS].split(",")
        assert [table.settings[BROKER, name] for name in ("1", "2")] == [dict.fromkeys(RATES, "1000")] * 2
    assert {where: values for where, values in table.settings.items() if values} == before
