"""What a page asks of the brokers: as many requests however many topics there are, and few."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kafka.net.manager import KafkaConnectionManager

from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.console import pages
from fleetlog.brokers.console.asking import Asking
from fleetlog.brokers.console.clients import FleetClients
from fleetlog.brokers.console.web import PageFunction
from tests.cli.shell import Shell
from tests.support.fleet import Fleet

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The names of requests that clients send."""
    counted: Counter[str] = Counter()
    send = KafkaConnectionManager.send

    def counting(self: Any, request: Any, *given: Any, **named: Any) -> Any:
        counted[type(request).__name__] += 1
        return send(self, request, *given, **named)

    monkeypatch.setattr(KafkaConnectionManager, "send", counting)
    return counted


@pytest.mark.parametrize(("page", "most", "configs"), [
    (pages.fleet_page, 13, 0), (pages.topics_page, 7, 0), (pages.partitions_page, 4, 0), (pages.controller_page, 10, 0),
    (pages.doctor_page, 30, 7),
], ids=["fleet", "topics", "partitions", "controller", "doctor"])  # fmt: skip
def test_pages_ask_no_more_for_more_topics(
    fleet: Fleet, sent: Counter[str], page: PageFunction, most: int, configs: int
) -> None:
    target, shell = Target(fleet.bootstrap, 30.0, {}), Shell(fleet)
    clients = FleetClients(target, lambda _: True)
    totals = []
    shell.run("topics", "create", f"{page.__name__}-first", "-p", "1")  # of no topic nothing is asked
    try:
        for name in ("few", "more", "most"):
            with clients.lend(None) as client:
                page(Asking(client, target))
                sent.clear()
                page(Asking(client, target))
                totals.append(Counter(sent))
            for number in range(5):
                shell.run("topics", "create", f"{page.__name__}-{name}-{number}", "-p", "1")
    finally:
        clients.close()
    assert totals[0] == totals[1] == totals[2]
    assert totals[0].total() <= most, totals[0]
    assert totals[0]["DescribeConfigsRequest"] <= configs, totals[0]
