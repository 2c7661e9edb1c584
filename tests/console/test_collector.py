"""What the collector makes of brokers' pages: rates, sums that are left out, starts, quantiles, names in labels."""

from __future__ import annotations

import math
import socket
import threading
from contextlib import suppress

import pytest

from fleetlog.brokers.cli.broker_metrics import metrics_lines
from fleetlog.brokers.cli.client import Target
from fleetlog.brokers.console.asking import Asking
from fleetlog.brokers.console.collector import Differences, FigureCollector, Figures, Scrape, figures_of, p99
from fleetlog.brokers.console.history import KINDS
from fleetlog.brokers.console.pictures import FIGURES_MISSING, Pictures

PAGE = """# HELP fleetlog_connections Open connections.
fleetlog_connections 5.0
fleetlog_cpu_busy 0.25
fleetlog_under_replicated_partitions 1.0
fleetlog_disk_total_bytes{{directory="/a"}} 1000
fleetlog_disk_total_bytes{{directory="/b"}} 1000
fleetlog_disk_usable_bytes{{directory="/a"}} 400
fleetlog_disk_usable_bytes{{directory="/b"}} 500
fleetlog_topic_produced_bytes_total{{topic="orders"}} {bytes}
fleetlog_topic_log_bytes{{topic="orders"}} 70
fleetlog_coordinators{{what="open_transactions"}} 7
fleetlog_coordinators{{what="transactions_open"}} 2
fleetlog_group_members{{group="a \\"b\\"\\n\\\\"}} 2
fleetlog_group_lag_records{{group="a \\"b\\"\\n\\\\",topic="orders"}} 3
fleetlog_group_lag_records{{group="a \\"b\\"\\n\\\\",topic="other"}} 4
fleetlog_group_lag_seconds{{group="a \\"b\\"\\n\\\\",topic="orders"}} 8
fleetlog_group_lag_seconds{{group="a \\"b\\"\\n\\\\",topic="other"}} 5
fleetlog_request_seconds_bucket{{api="Produce",le="0.1"}} {quick}
fleetlog_request_seconds_bucket{{api="Produce",le="0.2"}} {all}
fleetlog_request_seconds_bucket{{api="Produce",le="+Inf"}} {all}
kafka_topic_partition_current_offset{{partition="0",topic="orders"}} {end}
"""


def scraped(at_s: float, *, sent: int = 0, quick: int = 0, every: int = 0, end: int = 0) -> Scrape:
    text = PAGE.format(bytes=sent, quick=quick, all=every, end=end)
    return Scrape(text.encode().splitlines(keepends=True), at_s)


def named(figures: Figures, kind: str, name: str) -> dict[str, float]:
    return dict(zip((column.name for column in KINDS[kind]), figures[kind, name], strict=True))


def test_a_step_has_rates_sums_and_quantiles() -> None:
    one = Differences(scraped(0.0), scraped(10.0, sent=500, quick=100, every=100, end=20))
    two = Differences(scraped(0.0), scraped(10.0, sent=100, quick=0, every=100, end=20))
    figures = figures_of({1: one, 2: two}, complete=True)
    fleet = named(figures, "fleet", "")
    assert (fleet["bytes_in"], fleet["connections"], fleet["under_replicated"]) == (60.0, 10.0, 2.0)
    assert (fleet["disk_used"], fleet["disk_total"]) == (2_200.0, 4_000.0)
    assert fleet["open_transactions"] == 4.0, "those of transactions' coordinators; groups count offsets that wait"
    assert fleet["produce_p99_s"] == pytest.approx(0.198)
    broker = named(figures, "broker", "1")
    assert (broker["bytes_in"], broker["disk_used"]) == (50.0, 1_100.0)
    assert named(figures, "topic", "orders")["size"] == 140.0
    assert named(figures, "partition", "orders/0")["records_in"] == 2.0
    group = named(figures, "group", 'a "b"\n\\')
    assert (group["lag"], group["lag_s"], group["members"]) == (7.0, 8.0, 2.0)


def test_a_broker_that_tells_nothing_takes_all_sums_away() -> None:
    one = Differences(scraped(0.0), scraped(10.0, sent=500))
    figures = figures_of({1: one}, complete=False)
    assert list(figures) == [("broker", "1")]
    assert figures_of({}, complete=True) == {}


@pytest.mark.parametrize(
    ("before", "now"),
    [(None, scraped(10.0, sent=500)), (scraped(0.0), scraped(60.0, sent=500)), (scraped(0.0, sent=900), scraped(10.0))],
    ids=["the first page", "long ago", "a start between them"],
)
def test_what_is_not_known_is_no_rate(before: Scrape | None, now: Scrape) -> None:
    figures = figures_of({1: Differences(before, now)}, complete=True)
    assert math.isnan(named(figures, "fleet", "")["bytes_in"])
    assert math.isnan(named(figures, "topic", "orders")["bytes_in"])
    assert named(figures, "fleet", "")["connections"] == 5.0


def test_p99_is_in_proportion_between_the_bounds() -> None:
    assert p99({0.1: 50.0, 0.2: 100.0, math.inf: 100.0}) == pytest.approx(0.198)
    assert p99({0.1: 0.0, math.inf: 10.0}) == 0.1, "beyond the last bound nothing is known"
    assert math.isnan(p99({}))
    assert math.isnan(p99({0.1: 0.0, math.inf: 0.0}))


def test_pages_of_topics_and_groups_tell_nobody_where_the_brokers_figures_are() -> None:
    target = Target("localhost:1", 1.0, {})
    collector = FigureCollector(target)
    asking = Asking(None, target, collector=collector)
    pictures = Pictures(asking)
    for collector.trouble, collector.troubles in (("the login of user console failed", {}), (None, {1: "10.0.0.1:80"})):
        assert pictures.of_topic("t", 1)["notes"] == pictures.of_group(asking, "g")["notes"] == [FIGURES_MISSING]
    collector.troubles = {}
    assert pictures.of_topic("t", 1)["notes"] == []


@pytest.mark.parametrize(("head", "part", "words"), [
    (b"HTTP/1.1 200 OK\r\n\r\n", b"a", "did not end its page within 0.5 s"),
    (b"HTTP/1.1 200 OK\r\n", b"X-Slow: 1\r\n", "within 0.5 s"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfleetlog_connections 5\n", b"", "did not end its page"),
], ids=["a page", "its head", "a page that is cut"])  # fmt: skip
def test_a_page_that_does_not_end_is_given_up(head: bytes, part: bytes, words: str) -> None:
    def drip() -> None:
        peer, _ = listening.accept()
        with peer, suppress(OSError):
            peer.recv(4096)
            peer.sendall(head)
            while part and not over.wait(0.05):
                peer.sendall(part)

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises((ValueError, OSError), match=words):
                list(metrics_lines(listening.getsockname(), 1 << 20, 0.5))
        finally:
            over.set()
            thread.join()


def test_the_topics_of_a_groups_lag_are_known() -> None:
    assert scraped(0.0).group_topics == {'a "b"\n\\': {"orders", "other"}}
