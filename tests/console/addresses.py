"""An address of each of the console's pages, as its routes name them: a page that is new is looked at, too."""

from __future__ import annotations

from fleetlog.brokers.console.web import PAGES


def addresses(topic: str, group: str, subject: str) -> dict[str, str]:
    """By route, in the routes' order; below the console's address. Raises KeyError for a route whose path has a
    parameter that is not filled here; a page that misses one of its query says so in an alert."""
    filled = {
        "/brokers/{name}": "/brokers/1", "/brokers/{name}/setting": "/brokers/1/setting?name=log.retention.ms",
        "/topics/{name}/record": f"/topics/{topic}/record?partition=0&offset=0",
        "/topics/{name}/setting": f"/topics/{topic}/setting?name=retention.ms",
        "/find": f"/find?q={topic[:4]}", "/group": f"/group?name={group}",
        "/group/setting": f"/group/setting?group={group}&name=share.auto.offset.reset",
        "/schema": f"/schema?name={subject}",
    }  # fmt: skip
    for route, _, _ in PAGES:
        if route.startswith("/topics/{name}"):
            filled.setdefault(route, route.replace("{name}", topic))
    return {route: (filled[route] if "{" in route else filled.get(route, route))[1:] for route, _, _ in PAGES}
