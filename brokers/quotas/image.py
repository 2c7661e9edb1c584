"""Client quotas: which one governs a client, and how long a client over its rate is muted. Integers, no clock.

Times are milliseconds of a monotonic clock that the caller gives. Rates are thousandths of a unit per second, because
``request_percentage`` and ``controller_mutation_rate`` may have fractions. A client over its rate is answered at once
with ``throttle_time_ms``, and its connection is not read for that time (KIP-219). Quotas are per broker.

Source: Kafka's quota documentation, KIP-13, KIP-124, KIP-219, KIP-599 and KIP-612.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

SAMPLES: Final = 11
"""``quota.window.num``."""
WINDOW_MS: Final = 1000
"""``quota.window.size.seconds``."""
BUCKETS_MAX: Final = 65_536
"""The most clients or addresses of a kind that are counted; the one idle longest gives way."""
THROTTLE_MS_MAX: Final = 2**31 - 1
"""What the field ``throttle_time_ms`` can hold."""

_MICRO: Final = 1_000_000
_PERCENT_SECOND_NS: Final = 10_000_000
"""One per cent of one second of the loop."""


class QuotaKey(NamedTuple):
    """A quota that may be set. ``whole``: only integers; others may have fractions."""

    name: str
    whole: bool


PRODUCER_BYTE_RATE: Final = QuotaKey("producer_byte_rate", True)
CONSUMER_BYTE_RATE: Final = QuotaKey("consumer_byte_rate", True)
REQUEST_PERCENTAGE: Final = QuotaKey("request_percentage", False)
CONTROLLER_MUTATION_RATE: Final = QuotaKey("controller_mutation_rate", False)
CONNECTION_CREATION_RATE: Final = QuotaKey("connection_creation_rate", True)
MEASURED: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
"""What is counted for every request; all in windows."""


# ---------------------------------------------------------------- which quota governs


class Default(Enum):
    """The entity for all that have no quota of their own; no text, so that no name can be mistaken for it."""

    ENTITY = "<default>"


DEFAULT: Final = Default.ENTITY
Name = str | Default | None
"""The name in an entity; None: the entity doesn't name this type."""


class Entity(NamedTuple):
    """What quotas are set for: a user, a client id, both, or an address."""

    user: Name = None
    client_id: Name = None
    ip: Name = None


class Bucket(NamedTuple):
    """The clients that share one quota: all of a user, all of a client id, or those of a pair."""

    user: str | None
    client_id: str | None


class Governing(NamedTuple):
    """The quota in force for a client, and the clients that share it."""

    rate_milli: int
    bucket: Bucket


Quotas = Mapping[str, int]
"""Rates in thousandths by the quota's name."""


class QuotaImage:
    """All quotas at one moment; immutable. Names are plain, not as in paths."""

    __slots__ = ("_by_key", "entities", "version")

    def __init__(self, entities: Mapping[Entity, Quotas] | None = None, version: int = 0) -> None:
        self.entities: Mapping[Entity, Quotas] = {
            entity: of_entity for entity, of_entity in (entities or {}).items() if of_entity
        }
        self.version = version
        self._by_key: dict[str, dict[Entity, int]] = {}
        for entity, quotas in self.entities.items():
            for name, rate_milli in quotas.items():
                self._by_key.setdefault(name, {})[entity] = rate_milli

    def updated(self, changes: Mapping[Entity, Quotas]) -> QuotaImage:
        """The image in which these entities have these quotas and no others."""
        return QuotaImage({**self.entities, **changes}, self.version + 1)

    def has(self, key: QuotaKey) -> bool:
        """Whether any entity has that quota; if not, nothing need be counted."""
        return key.name in self._by_key

    def governing(self, key: QuotaKey, user: str, client_id: str) -> Governing | None:
        """The quota in force for a client; None: there is none. The first of these that is set:

        (user, client id), (user, default client), user, (default user, client id), (default user, default client),
        default user, client id, default client.
        """
        rates = self._by_key.get(key.name)
        if not rates:
            return None
        pair, whole_user = Bucket(user, client_id), Bucket(user, None)
        order: tuple[tuple[Name, Name, Bucket], ...] = (
            (user, client_id, pair),
            (user, DEFAULT, pair),
            (user, None, whole_user),
            (DEFAULT, client_id, pair),
            (DEFAULT, DEFAULT, pair),
            (DEFAULT, None, whole_user),
            (None, client_id, Bucket(None, client_id)),
            (None, DEFAULT, Bucket(None, client_id)),
        )
        for user_name, client_name, bucket in order:
            rate = rates.get(Entity(user_name, client_name))
            if rate is not None:
                return Governing(rate, bucket)
        return None

    def may_concern(self, user: str) -> bool:
        """Whether a quota of clients may govern what that user sends."""
        return any(
            entity.user is None or entity.user is DEFAULT or entity.user == user
            for key in (*MEASURED, CONTROLLER_MUTATION_RATE)
            for entity in self._by_key.get(key.name, ())
        )

    def connection_rate_milli(self, ip: str) -> int | None:
        """How many connections per second an address may create, in thousandths; None: no limit."""
        rates = self._by_key.get(CONNECTION_CREATION_RATE.name, {})
        rate = rates.get(Entity(ip=ip))
        return rates.get(Entity(ip=DEFAULT)) if rate is None else rate


# ---------------------------------------------------------------- windows


class WindowedRate:
    """A sum over the last windows, and how long its use is above a rate.

    The sum is divided by at least all windows but the newest: an idle client may use about ten seconds' worth at once.
    """

    __slots__ = ("_starts_ms", "_sums", "_total", "samples", "window_ms")

    def __init__(self, samples: int = SAMPLES, window_ms: int = WINDOW_MS) -> None:
        self.samples = samples
        self.window_ms = window_ms
        self._starts_ms: list[int] = []
        self._sums: list[int] = []
        self._total = 0

    def record(self, amount: int, mono_ms: int) -> None:
        """Counts; a negative amount takes back what was counted before."""
        if not self._starts_ms or mono_ms - self._starts_ms[-1] >= self.window_ms:
            self._forget_obsolete(mono_ms)
            self._starts_ms.append(mono_ms)
            self._sums.append(0)
        self._sums[-1] += amount
        self._total += amount

    def _forget_obsolete(self, mono_ms: int) -> None:
        oldest_ms = mono_ms - self.samples * self.window_ms
        while self._starts_ms and self._starts_ms[0] <= oldest_ms:
            self._total -= self._sums[0]
            del self._starts_ms[0], self._sums[0]

    def measure(self, mono_ms: int) -> tuple[int, int]:
        """What was counted in windows that are not obsolete, and the ms it is divided by."""
        self._forget_obsolete(mono_ms)
        elapsed_ms = mono_ms - self._starts_ms[0] if self._starts_ms else 0
        missing = self.samples - 1 - elapsed_ms // self.window_ms
        if missing > 0:
            elapsed_ms += missing * self.window_ms
        return self._total, max(elapsed_ms, 1)

    def throttle_ms(self, rate_milli: int, mono_ms: int) -> int:
        """How long to wait until the rate is kept, if nothing more is counted: 0 while it is kept.

        That is (measured - rate) / rate * elapsed.
        """
        total, elapsed_ms = self.measure(mono_ms)
        rate_milli = max(rate_milli, 1)
        needed_ms = (2 * total * _MICRO + rate_milli) // (2 * rate_milli)
        return min(max(needed_ms - elapsed_ms, 0), THROTTLE_MS_MAX)

    def window_left_ms(self, mono_ms: int) -> int:
        """How long the newest window still lasts."""
        return max(0, self._starts_ms[-1] + self.window_ms - mono_ms) if self._starts_ms else 0


_LONG_AGO: Final = -math.inf


class Allowance:
    """What the clients that share a quota may use.

    Most amounts are only taken from what may be used until the newest window ends without a look at the rate. They are
    counted, in that window, by the next look. Amounts are bytes, or nanoseconds of the loop.

    Before ``until_s``, on the clock that :meth:`spend` is asked with, and before ``until_ms``, on that of the windows,
    ``left`` may be used, and be lowered by what is used, without a call.
    """

    __slots__ = ("_granted", "_granted_ms", "_rate", "left", "rate_milli", "until_ms", "until_s")

    def __init__(self, rate: WindowedRate) -> None:
        self._rate = rate
        self.rate_milli = 0
        self._granted = self.left = 0
        self._granted_ms = self.until_ms = 0
        self.until_s = _LONG_AGO

    def limit(self, rate_milli: int) -> None:
        """The rate from now on, in thousandths of an amount per second."""
        if rate_milli != self.rate_milli:
            self.rate_milli = rate_milli
            self._end_grant()

    def spend(self, amount: int, now_s: float, mono_ms: Callable[[], int]) -> int:
        """Counts; returns how long to mute (ms). ``now_s`` is any monotonic clock's, ``mono_ms`` the windows' clock."""
        if now_s < self.until_s:
            left = self.left - amount
            if left >= 0:
                self.left = left
                return 0
        return self.renew(amount, now_s, mono_ms())

    def renew(self, amount: int, now_s: float, present_ms: int) -> int:
        """The same with a look at the rate; ``now_s`` may be earlier, which lets ``until_s`` come earlier."""
        throttle_ms = self.record(amount, present_ms)
        if not throttle_ms:
            total, elapsed_ms = self._rate.measure(present_ms)
            self._granted = self.left = max(0, self.rate_milli * elapsed_ms // _MICRO - total)
            self._granted_ms = present_ms
            left_ms = self._rate.window_left_ms(present_ms)
            self.until_s, self.until_ms = now_s + left_ms / 1000, present_ms + left_ms
        return throttle_ms

    def _end_grant(self) -> None:
        self.until_s, self.until_ms = _LONG_AGO, 0

    def _settle(self) -> None:
        spent = self._granted - self.left
        self._granted = self.left = 0
        self._end_grant()
        if spent:
            self._rate.record(spent, self._granted_ms)

    def record(self, amount: int, mono_ms: int) -> int:
        """Counts; a negative amount takes back what was counted before. Returns how long to mute (ms)."""
        self._settle()
        self._rate.record(amount, mono_ms)
        return self._rate.throttle_ms(self.rate_milli, mono_ms)

    def used(self, mono_ms: int) -> int:
        """What was counted in windows that are not obsolete."""
        self._settle()
        return self._rate.measure(mono_ms)[0]


class TokenBucket:
    """Tokens that come in at a rate, up to all windows' worth; the last ones may be overdrawn (KIP-599).

    Amounts are kept in millionths. A rate of 0 counts as the smallest.
    """

    __slots__ = ("_refilled_ms", "_tokens_micro", "samples", "window_ms")

    def __init__(self, samples: int = SAMPLES, window_ms: int = WINDOW_MS) -> None:
        self.samples = samples
        self.window_ms = window_ms
        self._tokens_micro: int | None = None
        self._refilled_ms = 0

    def _refill(self, rate_milli: int, mono_ms: int) -> int:
        most = self.samples * self.window_ms * rate_milli
        if self._tokens_micro is None:
            tokens = most
        else:
            tokens = min(most, self._tokens_micro + max(mono_ms - self._refilled_ms, 0) * rate_milli)
        self._tokens_micro, self._refilled_ms = tokens, mono_ms
        return tokens

    def throttle_ms(self, rate_milli: int, mono_ms: int) -> int:
        """How long until nothing is overdrawn any more."""
        rate_milli = max(rate_milli, 1)
        tokens = self._refill(rate_milli, mono_ms)
        return min(-(tokens // rate_milli), THROTTLE_MS_MAX) if tokens < 0 else 0

    def spend(self, amount: int, rate_milli: int, mono_ms: int) -> None:
        """Takes tokens, also where there are too few."""
        self._tokens_micro = self._refill(max(rate_milli, 1), mono_ms) - amount * _MICRO


# ---------------------------------------------------------------- clients


Key = TypeVar("Key")
Counter = TypeVar("Counter")


class LeastRecentlyUsed(Generic[Key, Counter]):
    """Counters by bucket, at most so many: the one used longest ago gives way."""

    def __init__(self, make: Callable[[], Counter], most: int) -> None:
        self._make = make
        self._most = most
        self._counters: OrderedDict[Key, Counter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counters)

    def of(self, key: Key) -> Counter:
        """The counter of a bucket; a new one if there is none."""
        counter = self._counters.get(key)
        if counter is None:
            if len(self._counters) >= self._most:
                self._counters.popitem(last=False)
            counter = self._counters[key] = self._make()
        else:
            self._counters.move_to_end(key)
        return counter


class ClientQuotas:
    """What all clients of this broker have used. Every method takes a user's name and a client id as they are.

    Traffic between brokers is exempt: its requests are not recorded here.
    """

    def __init__(
        self,
        image: QuotaImage | None = None,
        samples: int = SAMPLES,
        window_ms: int = WINDOW_MS,
        buckets_max: int = BUCKETS_MAX,
        mutation_windows: tuple[int, int] = (SAMPLES, WINDOW_MS),
    ) -> None:
        """``mutation_windows`` are the number and length (ms) of those of partitions created and deleted."""
        self._image = image or QuotaImage()
        self._samples = samples
        self._window_ms = window_ms
        self._buckets_max = buckets_max
        self._governing: dict[tuple[str, str, str], Governing | None] = {}
        self._allowances: dict[str, LeastRecentlyUsed[Bucket, Allowance]] = {
            key.name: LeastRecentlyUsed(lambda: Allowance(WindowedRate(samples, window_ms)), buckets_max)
            for key in MEASURED
        }
        mutation_samples, mutation_window_ms = mutation_windows
        self._mutations: LeastRecentlyUsed[Bucket, TokenBucket] = LeastRecentlyUsed(
            lambda: TokenBucket(mutation_samples, mutation_window_ms), buckets_max
        )

    @property
    def image(self) -> QuotaImage:
        """The quotas in force."""
        return self._image

    def replace(self, image: QuotaImage) -> None:
        """Other quotas from now on; what was used stays counted."""
        self._image = image
        self._governing.clear()

    def _quota(self, key: QuotaKey, user: str, client_id: str) -> Governing | None:
        if not self._image.has(key):
            return None
        question = (key.name, user, client_id)
        if question not in self._governing:
            if len(self._governing) >= self._buckets_max:
                self._governing.clear()
            self._governing[question] = self._image.governing(key, user, client_id)
        return self._governing[question]

    def allowance(self, key: QuotaKey, user: str, client_id: str) -> Allowance | None:
        """What a client may use of one of ``MEASURED``; None without a quota. To be asked again with other quotas."""
        quota = self._quota(key, user, client_id)
        if quota is None:
            return None
        allowance = self._allowances[key.name].of(quota.bucket)
        allowance.limit(quota.rate_milli * (_PERCENT_SECOND_NS if key is REQUEST_PERCENTAGE else 1))
        return allowance

    def fetch_bytes_max(self, user: str, client_id: str) -> int | None:
        """The most bytes that one Fetch may ask for without being over its rate by itself; None: no limit."""
        quota = self._quota(CONSUMER_BYTE_RATE, user, client_id)
        return None if quota is None else max(quota.rate_milli * (self._samples - 1) * self._window_ms // _MICRO, 1)

    def record_mutations(
        self, user: str, client_id: str, partitions: int, mono_ms: int, strict: bool
    ) -> tuple[bool, int]:
        """Counts partitions to be created or deleted; returns whether that may be done, and how long to mute (ms).

        Strict (versions of requests that know error 89): refused, and not counted, while an earlier one is overdrawn.
        Otherwise always done. One request may overdraw.
        """
        quota = self._quota(CONTROLLER_MUTATION_RATE, user, client_id)
        if quota is None:
            return True, 0
        bucket = self._mutations.of(quota.bucket)
        overdrawn_ms = bucket.throttle_ms(quota.rate_milli, mono_ms)
        if strict and overdrawn_ms:
            return False, overdrawn_ms
        bucket.spend(partitions, quota.rate_milli, mono_ms)
        return True, 0 if strict else bucket.throttle_ms(quota.rate_milli, mono_ms)
