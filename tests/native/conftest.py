"""Every kernel test runs on both twins. A missing compiled twin is an error, not a skip: the tests are about it."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest


def _twins(kernel: str) -> list[ModuleType]:
    return [importlib.import_module(f"fleetlog._native.{kernel}_{twin}") for twin in ("py", "cy")]


@pytest.fixture(params=["pure", "cython"])
def batch(request: pytest.FixtureRequest) -> ModuleType:
    return _twins("batch")[request.param == "cython"]


@pytest.fixture(params=["pure", "cython"])
def columns(request: pytest.FixtureRequest) -> ModuleType:
    return _twins("columns")[request.param == "cython"]


@pytest.fixture(params=["pure", "cython"])
def compact(request: pytest.FixtureRequest) -> ModuleType:
    return _twins("compact")[request.param == "cython"]


@pytest.fixture(params=["pure", "cython"])
def schemas(request: pytest.FixtureRequest) -> ModuleType:
    return _twins("schemas")[request.param == "cython"]


@pytest.fixture(params=["pure", "cython"])
def wire_kernel(request: pytest.FixtureRequest) -> ModuleType:
    return _twins("wire")[request.param == "cython"]


@pytest.fixture(params=["pure", "cython"])
def io(request: pytest.FixtureRequest) -> ModuleType:
    return _twins("io")[request.param == "cython"]
