"""``perf console`` measures every page that the console has, each at an address that is one."""

from __future__ import annotations

from fleetlog.brokers.console.web import PAGES as ROUTES
from perf.console import FILLED, OF_A_REGISTRY, PAGES


def test_every_page_of_the_console_is_measured() -> None:
    routes = {route for route, _, _ in ROUTES}
    assert routes >= OF_A_REGISTRY | FILLED.keys(), "a page that is gone"
    assert routes - PAGES.keys() == OF_A_REGISTRY
    assert [path for path in PAGES.values() if "{" in path] == [], "a parameter that nobody filled"
