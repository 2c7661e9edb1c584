"""``fleetlog schemas from-model``: a model of pydantic's becomes a JSON Schema that the registry takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fleetlog.brokers.cli import options
from fleetlog.brokers.schemas import client
from fleetlog.brokers.schemas.registry import RegistryState
from tests.support.schema_registry import FakeRegistry

MODELS = '''
from datetime import datetime
from decimal import Decimal
from pydantic import BaseModel, Field

class Line(BaseModel):
    sku: str
    count: int = Field(ge=1)

class Order(BaseModel):
    """What a shop sells."""
    id: int
    at: datetime
    price: Decimal | None = None
    lines: list[Line] = []
    class Inner:
        pass

class Endless(BaseModel):
    most: float = float("inf")

class Failing(BaseModel):
    model_config = {"json_schema_extra": lambda schema: 1 / 0}

number = 1
'''


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    server = FakeRegistry()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "shop_models.py").write_text(MODELS)
    (tmp_path / "broken_models.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("shop_models", None)


def run(registry: FakeRegistry, *words: str) -> Result:
    given = ["from-model", *words, "--registry", registry.url, "--bootstrap", "127.0.0.1:1", "--json"]
    return CliRunner().invoke(client.schemas, given)


def test_a_models_schema_is_registered(registry: FakeRegistry) -> None:
    done = run(registry, "shop_models:Order")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"id": 1, "subject": "Order"}
    assert json.loads(run(registry, "shop_models:Order", "--subject", "orders-value").stdout)["id"] == 1
    ((kind, text),) = registry.schemas
    assert (kind, registry.subjects) == ("JSON", {"Order": [1], "orders-value": [1]})
    schema = json.loads(text)
    assert schema["properties"]["lines"]["items"] == {"$ref": "#/$defs/Line"}
    assert schema["required"] == ["id", "at"]
    assert json.loads(run(registry, "shop_models:Order", "--print").stdout) == schema
    assert RegistryState().register("s", {"schema": text, "schemaType": "JSON"}, normalize=False).answer == {"id": 1}


@pytest.mark.parametrize(
    ("place", "code", "told"),
    [
        ("shop_models", 2, "is not MODULE:CLASS"),
        ("shop_models:Gone", 1, "shop_models:Gone cannot be imported: AttributeError"),
        ("gone_models:X", 1, "cannot be imported: ModuleNotFoundError"),
        ("broken_models:X", 1, "cannot be imported: ZeroDivisionError"),
        ("shop_models:number", 1, "is no class"),
        ("shop_models:Order.Inner", 1, "has no JSON Schema"),
        ("shop_models:Failing", 1, "shop_models:Failing has no JSON Schema: ZeroDivisionError: division by zero"),
        ("shop_models:Endless", 1, "shop_models:Endless has no JSON Schema: ValueError: Out of range float values"),
    ],
)
def test_what_is_no_model_is_told_in_a_sentence(registry: FakeRegistry, place: str, code: int, told: str) -> None:
    done = run(registry, place)
    assert done.exit_code == code
    assert told in done.output or told in str(done.exception)
    assert registry.schemas == []


def test_without_pydantic_it_says_how_to_install_it(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_is_installed", lambda name: name != "pydantic")
    done = run(registry, "shop_models:Order")
    assert done.exit_code == 1
    assert "a model needs pydantic: pip install '.[models]'" in done.output + str(done.exception)
