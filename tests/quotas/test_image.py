"""Quotas: precedence against a table, windows and buckets against exact arithmetic, and what clients share."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlog.brokers.quotas.image import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    SAMPLES,
    THROTTLE_MS_MAX,
    WINDOW_MS,
    Allowance,
    Bucket,
    ClientQuotas,
    Entity,
    Governing,
    QuotaImage,
    QuotaKey,
    TokenBucket,
    WindowedRate,
)

MB = 1_000_000
PRODUCER = PRODUCER_BYTE_RATE.name


def produce_quota(rate: int, *entities: Entity) -> QuotaImage:
    return QuotaImage({entity: {PRODUCER: rate * 1000} for entity in entities})


# ---------------------------------------------------------------- precedence


ORDER = [
    (Entity("u", "c"), Bucket("u", "c")),
    (Entity("u", DEFAULT), Bucket("u", "c")),
    (Entity("u"), Bucket("u", None)),
    (Entity(DEFAULT, "c"), Bucket("u", "c")),
    (Entity(DEFAULT, DEFAULT), Bucket("u", "c")),
    (Entity(DEFAULT), Bucket("u", None)),
    (Entity(None, "c"), Bucket(None, "c")),
    (Entity(None, DEFAULT), Bucket(None, "c")),
]


@pytest.mark.parametrize("present", list(product([False, True], repeat=8)))
def test_the_first_quota_in_kafkas_order_governs(present: tuple[bool, ...]) -> None:
    others = {Entity("v"): {PRODUCER: 1}, Entity("u", "d"): {PRODUCER: 2}, Entity(ip="u"): {PRODUCER: 3}}
    found = {ORDER[i][0]: {PRODUCER: 10 + i} for i in range(8) if present[i]}
    governing = QuotaImage(others | found).governing(PRODUCER_BYTE_RATE, "u", "c")
    if not any(present):
        assert governing is None
    else:
        first = present.index(True)
        assert governing == Governing(10 + first, ORDER[first][1])


def test_a_more_specific_entity_without_this_quota_does_not_count() -> None:
    image = QuotaImage({Entity("u", "c"): {CONSUMER_BYTE_RATE.name: 1}, Entity(None, "c"): {PRODUCER: 2}})
    governing = image.governing(PRODUCER_BYTE_RATE, "u", "c")
    assert governing is not None
    assert governing.rate_milli == 2


def test_a_user_called_default_is_not_the_default() -> None:
    assert produce_quota(1, Entity("<default>")).governing(PRODUCER_BYTE_RATE, "u", "c") is None


def test_an_address_has_its_own_limit_or_the_default() -> None:
    name = CONNECTION_CREATION_RATE.name
    image = QuotaImage({Entity(ip="10.0.0.1"): {name: 5}, Entity(ip=DEFAULT): {name: 7}})
    assert image.connection_rate_milli("10.0.0.1") == 5
    assert image.connection_rate_milli("10.0.0.2") == 7
    assert QuotaImage().connection_rate_milli("10.0.0.1") is None


def test_an_update_makes_another_image() -> None:
    first = produce_quota(1, Entity("u"))
    second = first.updated({Entity("u"): {}, Entity("v"): {PRODUCER: 4}})
    assert first.governing(PRODUCER_BYTE_RATE, "u", "c")
    assert second.governing(PRODUCER_BYTE_RATE, "u", "c") is None
    assert list(second.entities) == [Entity("v")]
    assert second.version == first.version + 1
    assert second.has(PRODUCER_BYTE_RATE)
    assert not second.updated({Entity("v"): {}}).has(PRODUCER_BYTE_RATE)


# ---------------------------------------------------------------- windows


class SlowRate:
    """The same from its description, over all that was ever recorded."""

    def __init__(self) -> None:
        self.windows: list[list[int]] = []

    def record(self, amount: int, now: int) -> None:
        if not self.windows or now - self.windows[-1][0] >= WINDOW_MS:
            self.windows.append([now, 0])
        self.windows[-1][1] += amount

    def throttle(self, rate_milli: int, now: int) -> Fraction:
        kept = [window for window in self.windows if now - window[0] < SAMPLES * WINDOW_MS]
        elapsed = now - kept[0][0] if kept else 0
        while elapsed < (SAMPLES - 1) * WINDOW_MS:
            elapsed += WINDOW_MS
        rate = Fraction(sum(amount for _, amount in kept) * 1000, elapsed)
        limit = Fraction(rate_milli, 1000)
        return max((rate - limit) / limit * elapsed, Fraction(0))


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 5000)), min_size=1, max_size=60),
    st.integers(1, 3_000_000),
)
def test_throttles_equal_exact_arithmetic(steps: list[tuple[int, int]], rate_milli: int) -> None:
    rate, slow, now = WindowedRate(), SlowRate(), 77
    for after, amount in steps:
        now += after
        rate.record(amount, now)
        slow.record(amount, now)
        exact = slow.throttle(rate_milli, now)
        assert abs(rate.throttle_ms(rate_milli, now) - min(exact, THROTTLE_MS_MAX)) <= Fraction(1, 2)
        assert len(rate._sums) <= SAMPLES


def test_the_edges_of_a_window() -> None:
    """The next one begins when one is over to the millisecond, and counts until the last sample is."""
    rate = WindowedRate()
    for amount, mono_ms in ((1, 0), (2, WINDOW_MS - 1), (4, WINDOW_MS), (8, 2 * WINDOW_MS - 1)):
        rate.record(amount, mono_ms)
    assert rate.window_left_ms(2 * WINDOW_MS - 1) == 1
    first_is_over = SAMPLES * WINDOW_MS
    totals = {mono_ms: rate.measure(mono_ms)[0] for mono_ms in range(first_is_over - 1, first_is_over + WINDOW_MS + 1)}
    assert totals.pop(first_is_over - 1) == 15
    assert totals.pop(first_is_over + WINDOW_MS) == 0
    assert set(totals.values()) == {12}


def test_ten_seconds_worth_may_be_used_at_once() -> None:
    rate = WindowedRate()
    rate.record(10 * MB, 0)
    assert rate.throttle_ms(1000 * MB, 0) == 0
    rate.record(1 * MB, 0)
    assert rate.throttle_ms(1000 * MB, 0) == 1000


@given(st.integers(1, 500), st.integers(20, 200))
def test_a_client_that_obeys_gets_its_rate(kilobytes: int, requests: int) -> None:
    """A client that always sends, and waits as it is asked to."""
    rate, now, sent = WindowedRate(), 0, 0
    for _ in range(requests):
        rate.record(kilobytes * 1000, now)
        sent += kilobytes * 1000
        now += rate.throttle_ms(100_000 * 1000, now) + 1
    allowed = 100_000 * (now + 10_000) // 1000 + kilobytes * 1000
    assert sent <= allowed * 12 // 10


def test_what_is_taken_back_does_not_count() -> None:
    rate = WindowedRate()
    rate.record(100 * MB, 0)
    assert rate.throttle_ms(1000 * MB, 0) > 0
    rate.record(-100 * MB, 0)
    assert rate.throttle_ms(1000 * MB, 0) == 0
    assert rate.throttle_ms(1000 * MB, 20_000) == 0


def test_a_throttle_fits_its_field() -> None:
    rate = WindowedRate()
    rate.record(2**40, 0)
    assert rate.throttle_ms(1, 0) == THROTTLE_MS_MAX
    assert rate.throttle_ms(0, 0) == THROTTLE_MS_MAX


# ---------------------------------------------------------------- the token bucket


def test_the_bucket_may_be_overdrawn_once_and_fills_again() -> None:
    bucket = TokenBucket()
    rate_milli = 2000  # 2 a second: 22 at most
    assert bucket.throttle_ms(rate_milli, 0) == 0
    bucket.spend(42, rate_milli, 0)
    assert bucket.throttle_ms(rate_milli, 0) == 10_000
    assert bucket.throttle_ms(rate_milli, 9_999) == 1
    assert bucket.throttle_ms(rate_milli, 10_000) == 0
    bucket.spend(22, rate_milli, 10**9)
    assert bucket.throttle_ms(rate_milli, 10**9) == 0
    bucket.spend(1, rate_milli, 10**9)
    assert bucket.throttle_ms(rate_milli, 10**9) == 500


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 40)), max_size=40), st.integers(1, 10_000))
def test_the_bucket_equals_exact_arithmetic(steps: list[tuple[int, int]], rate_milli: int) -> None:
    bucket, now = TokenBucket(), 5
    rate = Fraction(rate_milli, 1000)
    most = SAMPLES * WINDOW_MS * rate / 1000
    tokens = most
    for after, amount in steps:
        now += after
        tokens = min(most, tokens + rate * after / 1000) - amount
        bucket.spend(amount, rate_milli, now)
        wait = max(-tokens / rate * 1000, Fraction(0))
        assert 0 <= bucket.throttle_ms(rate_milli, now) - min(wait, THROTTLE_MS_MAX) < 1


# ---------------------------------------------------------------- clients


def used(quotas: ClientQuotas, key: QuotaKey, user: str, client_id: str, amount: int) -> int:
    """How long to mute the client then (ms)."""
    allowance = quotas.allowance(key, user, client_id)
    return 0 if allowance is None else allowance.record(amount, 0)


def test_clients_of_one_user_share_and_others_do_not() -> None:
    quotas = ClientQuotas(produce_quota(MB, Entity("u"), Entity(DEFAULT)))
    assert used(quotas, PRODUCER_BYTE_RATE, "u", "a", 10 * MB) == 0
    assert used(quotas, PRODUCER_BYTE_RATE, "u", "b", 2 * MB) == 2000
    assert used(quotas, PRODUCER_BYTE_RATE, "v", "a", 10 * MB) == 0
    quotas = ClientQuotas(produce_quota(MB, Entity(None, "c")))
    used(quotas, PRODUCER_BYTE_RATE, "u", "c", 10 * MB)
    assert used(quotas, PRODUCER_BYTE_RATE, "v", "c", 2 * MB) == 2000
    assert used(quotas, PRODUCER_BYTE_RATE, "v", "d", 200 * MB) == 0


def test_without_quotas_nothing_is_counted() -> None:
    quotas = ClientQuotas()
    assert used(quotas, PRODUCER_BYTE_RATE, "u", "c", 10**12) == 0
    assert used(quotas, CONSUMER_BYTE_RATE, "u", "c", 10**12) == 0
    assert used(quotas, REQUEST_PERCENTAGE, "u", "c", 10**12) == 0
    assert quotas.record_mutations("u", "c", 10**6, 0, strict=True) == (True, 0)
    assert quotas.fetch_bytes_max("u", "c") is None
    assert not quotas._governing


def test_a_quota_that_is_halved_counts_from_the_next_request_on() -> None:
    quotas = ClientQuotas(produce_quota(2 * MB, Entity("u")))
    assert used(quotas, PRODUCER_BYTE_RATE, "u", "c", 12 * MB) == 0
    quotas.replace(quotas.image.updated({Entity("u"): {PRODUCER: MB * 1000}}))
    assert used(quotas, PRODUCER_BYTE_RATE, "u", "c", 0) == 2000
    quotas.replace(quotas.image.updated({Entity("u"): {}}))
    assert used(quotas, PRODUCER_BYTE_RATE, "u", "c", 100 * MB) == 0


def test_a_fetch_that_is_throttled_is_taken_back() -> None:
    quotas = ClientQuotas(QuotaImage({Entity("u"): {CONSUMER_BYTE_RATE.name: MB * 1000}}))
    assert quotas.fetch_bytes_max("u", "c") == 10 * MB
    assert used(quotas, CONSUMER_BYTE_RATE, "u", "c", 10 * MB) == 0
    assert used(quotas, CONSUMER_BYTE_RATE, "u", "c", 5 * MB) == 5000
    assert used(quotas, CONSUMER_BYTE_RATE, "u", "c", -5 * MB) == 0


def test_request_time_is_a_percentage_of_one_loop() -> None:
    quotas = ClientQuotas(QuotaImage({Entity("u"): {REQUEST_PERCENTAGE.name: 50_000}}))
    assert used(quotas, REQUEST_PERCENTAGE, "u", "c", 5_000_000_000) == 0
    assert used(quotas, REQUEST_PERCENTAGE, "u", "c", 100_000_000) == 200


def test_mutations_strict_and_permissive() -> None:
    quotas = ClientQuotas(QuotaImage({Entity("u"): {CONTROLLER_MUTATION_RATE.name: 1000}}))
    assert quotas.record_mutations("u", "c", 21, 0, strict=True) == (True, 0)
    assert quotas.record_mutations("u", "c", 1, 0, strict=True) == (False, 10_000)
    assert quotas.record_mutations("u", "c", 1, 0, strict=False) == (True, 11_000)
    assert quotas.record_mutations("u", "c", 1, 11_000, strict=True) == (True, 0)


def test_counters_are_bounded() -> None:
    image = QuotaImage({Entity(DEFAULT): {PRODUCER: MB * 1000, CONTROLLER_MUTATION_RATE.name: 1000}})
    quotas = ClientQuotas(image, buckets_max=10)
    for number in range(100):
        used(quotas, PRODUCER_BYTE_RATE, "kept", "c", MB)
        used(quotas, PRODUCER_BYTE_RATE, f"u{number}", "c", MB)
        quotas.record_mutations(f"u{number}", "c", 1, 0, strict=True)
        assert len(quotas._governing) <= 10
    assert {len(counters) for counters in quotas._allowances.values()} == {0, 10}
    assert len(quotas._mutations) == 10
    assert used(quotas, PRODUCER_BYTE_RATE, "kept", "c", 0) == 90_000


# ---------------------------------------------------------------- what may be used without a look at the rate


@given(
    st.integers(1, 1_000).map(lambda rate: rate * 1_000),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 4_000)), max_size=60),
)
def test_an_allowance_throttles_as_its_rate_does(rate_milli: int, amounts: list[tuple[int, int]]) -> None:
    """What is taken without a look is counted in the window in which it was taken."""
    allowance, rate = Allowance(WindowedRate(3, 1000)), WindowedRate(3, 1000)
    allowance.limit(rate_milli)
    mono_ms, looks, taken = 0, 0, 0
    for pause_ms, amount in amounts:
        mono_ms += pause_ms

        def look(now_ms: int = mono_ms) -> int:
            nonlocal looks
            looks += 1
            return now_ms

        before = looks
        found = allowance.spend(amount, mono_ms / 1000, look)
        rate.record(amount, mono_ms)
        expected = rate.throttle_ms(rate_milli, mono_ms)
        if looks > before:
            assert found == expected
        else:
            taken += amount
            assert found == 0
            assert expected <= 1000, "the end of a window may have been counted as one more"
    assert allowance.used(mono_ms) == rate.measure(mono_ms)[0]


def test_an_allowance_looks_once_in_a_window() -> None:
    allowance, looks = Allowance(WindowedRate()), []
    allowance.limit(1000 * MB)
    for number in range(1000):
        assert allowance.spend(1000, number / 1000, lambda number=number: looks.append(number) or number) == 0
    assert looks == [0]
    assert allowance.used(1000) == 1_000_000


def test_the_edges_of_what_may_be_used_without_a_look() -> None:
    """All that is left, until the window is over."""
    looks: list[int] = []

    def spend(amount: int, mono_ms: int) -> int:
        return allowance.spend(amount, mono_ms / 1000, lambda: looks.append(mono_ms) or mono_ms)

    allowance = Allowance(WindowedRate())
    allowance.limit(1000 * MB)
    assert spend(0, 0) == 0
    assert allowance.left == 10 * MB
    assert spend(10 * MB, WINDOW_MS - 1) == 0
    assert looks == [0]
    assert spend(1, WINDOW_MS - 1) == 0, "most of another second has passed"
    assert looks == [0, WINDOW_MS - 1]
    allowance = Allowance(WindowedRate())
    allowance.limit(1000 * MB)
    for mono_ms in (0, WINDOW_MS - 1, WINDOW_MS):
        assert spend(1, mono_ms) == 0
    assert looks == [0, WINDOW_MS - 1, 0, WINDOW_MS]


def test_a_lower_rate_counts_from_the_next_request_on() -> None:
    quotas = ClientQuotas(produce_quota(MB, Entity("u")))
    allowance = quotas.allowance(PRODUCER_BYTE_RATE, "u", "c")
    assert allowance is not None
    assert allowance.spend(MB, 0.0, lambda: 0) == 0
    assert allowance.spend(MB, 0.1, lambda: 100) == 0
    quotas.replace(produce_quota(MB // 10, Entity("u")))
    assert quotas.allowance(PRODUCER_BYTE_RATE, "u", "c") is allowance
    assert allowance.spend(0, 0.2, lambda: 200) > 9_000, "2 MB at 0.1 MB per second"


def test_only_users_that_a_quota_may_govern_are_measured() -> None:
    rate = {PRODUCER_BYTE_RATE.name: 1}
    assert not QuotaImage({Entity(ip="10.0.0.1"): {"connection_creation_rate": 1}}).may_concern("u")
    assert not QuotaImage({Entity("v"): rate, Entity("v", "c"): rate}).may_concern("u")
    for entity in (Entity("u"), Entity("u", "c"), Entity(DEFAULT), Entity(None, "c"), Entity(None, DEFAULT)):
        assert QuotaImage({entity: rate}).may_concern("u")
