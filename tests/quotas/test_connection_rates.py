"""New connections: by address, by listener, by broker."""

from __future__ import annotations

from fleetlog.brokers.quotas.image import CONNECTION_CREATION_RATE, DEFAULT, Entity, QuotaImage
from fleetlog.brokers.quotas.metering import Acceptance, ConnectionRates

NAME = CONNECTION_CREATION_RATE.name
TEN_FOR_ALL = QuotaImage({Entity(ip=DEFAULT): {NAME: 10_000}, Entity(ip="10.0.0.9"): {NAME: 1_000}})


def accepted(rates: ConnectionRates, quotas: QuotaImage, ip: str, count: int, now: int = 0) -> list[Acceptance]:
    return [rates.accept(quotas, "EXTERNAL", ip, now) for _ in range(count)]


def test_an_address_over_its_rate_is_held_and_closed() -> None:
    rates = ConnectionRates()
    answers = accepted(rates, TEN_FOR_ALL, "10.0.0.1", 110)
    assert set(answers[:100]) == {Acceptance()}
    assert set(answers[100:]) == {Acceptance(close_after_ms=100)}
    assert accepted(rates, TEN_FOR_ALL, "10.0.0.2", 1) == [Acceptance()]
    # Those that were closed counted for nothing: 100 in 10.1 s is within the rate again.
    assert accepted(rates, TEN_FOR_ALL, "10.0.0.1", 1, now=11_000) == [Acceptance()]


def test_an_address_may_have_its_own_rate() -> None:
    answers = accepted(ConnectionRates(), TEN_FOR_ALL, "10.0.0.9", 11)
    assert answers.count(Acceptance()) == 10
    assert answers[10].close_after_ms == 1000


def test_without_quotas_nothing_is_kept() -> None:
    rates = ConnectionRates()
    assert set(accepted(rates, QuotaImage(), "10.0.0.1", 1000)) == {Acceptance()}
    assert rates.addresses == 0


def test_a_listener_over_its_rate_waits() -> None:
    rates = ConnectionRates(listener_rates={"EXTERNAL": 1})
    answers = accepted(rates, QuotaImage(), "10.0.0.1", 11)
    assert answers[9] == Acceptance()
    assert answers[10] == Acceptance(wait_ms=1000)
    assert rates.accept(QuotaImage(), "INTERNAL", "10.0.0.1", 0) == Acceptance()


def test_the_broker_counts_all_listeners() -> None:
    rates = ConnectionRates(broker_rate=2, listener_rates={"EXTERNAL": 100})
    for _ in range(10):
        assert rates.accept(QuotaImage(), "EXTERNAL", "10.0.0.1", 0) == Acceptance()
        assert rates.accept(QuotaImage(), "OTHER", "10.0.0.2", 0) == Acceptance()
    assert rates.accept(QuotaImage(), "OTHER", "10.0.0.2", 0).wait_ms == 500


def test_those_closed_for_their_address_do_not_count_for_the_broker() -> None:
    rates = ConnectionRates(broker_rate=2)
    accepted(rates, TEN_FOR_ALL, "10.0.0.9", 500)
    assert rates.accept(TEN_FOR_ALL, "EXTERNAL", "10.0.0.1", 0) == Acceptance()


def test_what_counts_as_one_address() -> None:
    rates = ConnectionRates()
    for ip in ("2001:db8::1", "2001:db8::ffff:1", "2001:DB8:0:0:1::", "2001:db8::7%eth0"):
        rates.accept(TEN_FOR_ALL, "L", ip, 0)
    assert rates.addresses == 1
    for ip in ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8:0:1::1", "no address"):
        rates.accept(TEN_FOR_ALL, "L", ip, 0)
    assert rates.addresses == 4
    mapped = accepted(rates, TEN_FOR_ALL, "::ffff:10.0.0.9", 11)
    assert mapped[10].close_after_ms == 1000


def test_addresses_are_bounded() -> None:
    rates = ConnectionRates(addresses_max=5)
    for number in range(100):
        rates.accept(TEN_FOR_ALL, "L", f"10.1.0.{number}", 0)
        assert rates.addresses <= 5
