"""Histories of a tiered partition; and each rule left out, which some history must show."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import pytest

from fleetlog.brokers.tiering import decisions, leader
from fleetlog.brokers.tiering.decisions import Listed, LocalLog, LocalSegment, TierLimits
from fleetlog.brokers.tiering.leader import BucketError, BucketPort, NameTaken, NoSuchObject, disowned
from fleetlog.brokers.tiering.manifest import MANIFESTS, Manifest, decode_manifest, generation_of, manifest_name
from tests.tiering.tier_world import SimulatedBucket, Violation, World, run

SEEDS = 150
PLANTED_SEEDS = 1600
"""Within so many histories a planted fault is found; most are found in the first ones."""
FOUND = (317, 664, 1488)
"""What is found late otherwise: segments that go before older ones, an orphan that is swept too early, a gap."""


def many(seeds: int) -> None:
    for seed in (*FOUND, *range(seeds)):
        run(seed)


def test_histories() -> None:
    many(SEEDS)


def counted_late() -> None:
    """The manifest that counts the first copy is written after the topic is copied no more, and after retention."""
    world = World(0)
    world.limits = TierLimits(retention_bytes=0, local_bytes=0)
    led = world.leader
    world.append()
    led.replica.roll()
    world.append()
    work = led.tier.step()
    call = work.send(None)
    while not led.tier.manifest or len(world.bucket.held) < 3:  # its first manifest, the segment and its index
        try:
            outcome = call.apply()
        except NoSuchObject as wrong:
            call = work.throw(wrong)
        else:
            call = work.send(outcome)
    reads = work.throw(BucketError("lost"))
    with pytest.raises(NoSuchObject) as absent:
        reads.apply()
    with pytest.raises(BucketError):
        work.throw(absent.value)
    world.limits = world.limits._replace(copies=False)
    world.floor = led.replica.bases[-1]
    world.complete(led.tier.step)
    world.judge()
    with contextlib.suppress(NameTaken):
        call.apply()
    world.complete(led.tier.sweep)  # it looks which manifest is the newest
    world.judge()
    assert led.replica.start == world.floor, "the closed segment went"


def test_a_copy_that_is_counted_late(monkeypatch: pytest.MonkeyPatch) -> None:
    counted_late()
    monkeypatch.setattr(leader, "local_start", though_a_copy_may_count)
    monkeypatch.setattr(leader, "retained", without_a_word)
    with pytest.raises(Violation, match="begins at 0, after it began"):
        counted_late()


def replaces(self: SimulatedBucket, name: str, data: bytes) -> None:
    self.held[name] = data, self.world.now_ms


def too_early(listed: Iterable[Listed], manifest: Manifest, now_ms: int, grace_ms: int) -> list[str]:
    return decisions.orphans(listed, manifest, now_ms, -1)


def by_age_alone(listed: Iterable[Listed], manifest: Manifest, now_ms: int, grace_ms: int) -> list[str]:
    return [entry.name for entry in listed if entry.name.endswith("log") and now_ms - entry.modified_ms > grace_ms]


def whatever_is_there(manifest: Manifest, local: LocalLog) -> Manifest:
    return manifest


def uncounted(manifest: Manifest, local: LocalLog, limits: TierLimits, now_ms: int) -> int:
    behind = manifest._replace(segments=manifest.segments[:1], log_start=manifest.log_start)
    if behind.segments:
        behind = behind._replace(segments=(behind.segments[0]._replace(end=local.end),))
    return decisions.local_start(behind, local, limits, now_ms)


def from_its_segment_on(manifest: Manifest, local: LocalLog, limits: TierLimits, now_ms: int) -> LocalSegment | None:
    """The segment that holds the end counts as copied."""
    part = decisions.next_copy(manifest, local, limits, now_ms)
    if part is None or part.start in {segment.start for segment in local.segments}:
        return part
    return next((segment for segment in local.segments if segment.start >= part.end), None)


async def as_listed(bucket: BucketPort, prefix: str) -> Manifest | None:
    names = [entry.name for entry in await bucket.objects(f"{prefix}{MANIFESTS}")]
    generation = max((generation_of(name.removeprefix(prefix)) for name in names), default=0)
    try:
        return decode_manifest(await bucket.get(prefix + manifest_name(generation)), "")
    except NoSuchObject:
        return None


def too_much(manifest: Manifest, local: LocalLog, limits: TierLimits, log_start: int, now_ms: int) -> Manifest:
    return decisions.retained(
        manifest, local, limits._replace(retention_bytes=limits.retention_bytes // 2), log_start, now_ms
    )


def names_them_still(manifest: Manifest, local: LocalLog) -> Manifest:
    return manifest


def though_something_is_in_the_bucket(manifest: Manifest, local: LocalLog, limits: TierLimits, now_ms: int) -> int:
    """Where nothing is copied any more, segments go from here while older ones are in the bucket."""
    start = decisions.local_start(manifest, local, limits, now_ms)
    return start if limits.copies else decisions.behind_limits(local, limits, start, local.stable, now_ms)


def though_a_copy_may_count(manifest: Manifest, local: LocalLog, limits: TierLimits, now_ms: int) -> int:
    """Where nothing is copied any more, segments go from here without a word in the manifest."""
    start = decisions.local_start(manifest, local, limits, now_ms)
    if limits.copies or manifest.segments:
        return start
    return decisions.behind_limits(local, limits, start, local.stable, now_ms)


def without_a_word(manifest: Manifest, local: LocalLog, limits: TierLimits, log_start: int, now_ms: int) -> Manifest:
    return decisions.retained(manifest, local, limits._replace(copies=True), log_start, now_ms)


def names_what_goes(manifest: Manifest, now_ms: int) -> Manifest:
    return disowned(manifest, now_ms)._replace(segments=manifest.segments)


def broken(manifest: Manifest, local: LocalLog) -> Manifest:
    return manifest


PLANTED: dict[str, tuple[object, str, Callable[..., object]]] = {
    "a generation is taken though it is there": (SimulatedBucket, "write_new", replaces),
    "an orphan is swept too early": (leader, "orphans", too_early),
    "what a manifest names is swept": (leader, "orphans", by_age_alone),
    "lineage is ignored": (leader, "fitted", whatever_is_there),
    "a local segment goes before its copy counts": (leader, "local_start", uncounted),
    "the rest of a segment is not copied": (leader, "next_copy", from_its_segment_on),
    "a tier that ends names what it deletes": (leader, "emptied", names_them_still),
    "what is copied no more goes before what is older": (leader, "local_start", though_something_is_in_the_bucket),
    "a tier goes on though what it has ends before the log": (leader, "unbroken", broken),
    "a deleted topic's manifest names what goes": (leader, "disowned", names_what_goes),
    "retention takes more than it may": (leader, "retained", too_much),
    "the newest manifest is the newest that is listed": (leader, "newest_manifest", as_listed),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[fault])
    with pytest.raises(Violation):
        many(PLANTED_SEEDS)
