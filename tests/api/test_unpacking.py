"""What compressed batches unpack to: a turn of the loop has a share, a request a bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetlog._native.batch import Record, encode_batch
from fleetlog.brokers.api import unpacking
from fleetlog.brokers.api.base import InSlices
from fleetlog.brokers.api.produce import handle_produce
from fleetlog.brokers.api.unpacking import BYTES_PER_TURN, PATIENCE, PAUSE, Unpacking, is_compressed
from fleetlog.brokers.log import validation
from fleetlog.brokers.log.validation import cost_of_looking
from fleetlog.brokers.quotas.metering import timed_work
from fleetlog.wire import compression
from fleetlog.wire.errors import ErrorCode
from tests.support.producing import answer, request
from tests.support.stage import Stage

VERSION = 9
SIZE, MIB = 100_000, 1024 * 1024


def packed(stage: Stage, codec: int = compression.ZSTD, size: int = SIZE) -> bytes:
    return stage.batch(size=size, attributes=codec, compress=lambda data: compression.compress(codec, data))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    stage.topic("t", 8)
    stage.services.unpacking.count_on(stage.services.loop.call_soon)
    return stage


def test_a_turn_has_its_share() -> None:
    soon: deque[Callable[[], None]] = deque()
    share = Unpacking()
    share.count_on(soon.append)
    share.spend(BYTES_PER_TURN - 1)
    assert (share.exhausted, len(soon)) == (False, 1)
    share.spend(1)
    assert (share.exhausted, len(soon)) == (True, 1)
    soon.popleft()()
    assert not share.exhausted
    share.spend(1)
    assert (share.exhausted, len(soon)) == (False, 1)


def test_without_a_loop_nothing_is_counted() -> None:
    share = Unpacking()
    share.spend(BYTES_PER_TURN)
    assert not share.exhausted


@pytest.mark.parametrize("codec", sorted(compression.NAMES))
def test_a_codec_is_seen_in_the_header(stage: Stage, codec: int) -> None:
    batch = packed(stage, codec)
    assert is_compressed(batch) == is_compressed(memoryview(batch)) == (codec != compression.NONE)
    assert not is_compressed(batch[:22])
    assert not is_compressed(None)


@pytest.mark.parametrize("codec", sorted(set(compression.NAMES) - {compression.NONE}))
def test_what_was_unpacked_is_counted(stage: Stage, codec: int) -> None:
    found: list[int] = []
    stage.services.unpacking = SimpleNamespace(spend=found.append, exhausted=False)
    (ok,) = answer(stage, VERSION, request(("t", 0, packed(stage, codec))))
    damaged = stage.batch(attributes=codec)
    (bad,) = answer(stage, VERSION, request(("t", 0, damaged)))
    assert (ok.error_code, bad.error_code) == (0, ErrorCode.CORRUPT_MESSAGE)
    assert 0 <= found[0] - cost_of_looking(SIZE, 1) < 10_000
    assert found[1] >= stage.config.decompressed_batch_max_bytes, "how far it came is unknown"


def test_others_have_their_turn_between_two_compressed_batches(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "BYTES_PER_TURN", SIZE)
    parts = [("t", number, packed(stage) if number % 3 else stage.batch()) for number in range(8)]
    ends: list[list[int]] = []
    work = handle_produce(request(*parts), stage.context(0, VERSION))
    pauses = 0
    assert isinstance(work, InSlices)
    for place in _steps(work.work):
        ends.append([stage.partition("t", number).log.log_end_offset for number in range(8)])
        if place is PAUSE:
            pauses += 1
            stage.turn()
    assert ends[-1] == [1] * 8
    assert pauses == 4, "five have a codec, and the first turn has something left for one of them"
    at_pauses = [sum(one[number] for number in range(8) if number % 3) for one in ends[:pauses]]
    assert at_pauses == [1, 2, 3, 4]


def _steps(work: Any) -> Any:
    while True:
        try:
            yield next(work)
        except StopIteration:
            return


def test_nothing_of_others_stops_a_request_for_ever(stage: Stage) -> None:
    stage.services.unpacking.spend(BYTES_PER_TURN)
    work = handle_produce(request(("t", 0, packed(stage))), stage.context(0, VERSION))
    assert isinstance(work, InSlices)
    assert [place is PAUSE for place in _steps(work.work)].count(True) == PATIENCE
    assert stage.partition("t").log.log_end_offset == 1


def test_one_batch_is_appended_at_once_while_the_turn_has_its_share(stage: Stage) -> None:
    outcome = handle_produce(request(("t", 0, packed(stage))), stage.context(0, VERSION))
    assert not isinstance(outcome, InSlices)
    assert stage.partition("t").log.log_end_offset == 1


def test_batches_without_a_codec_do_not_wait(stage: Stage) -> None:
    stage.services.unpacking.spend(BYTES_PER_TURN)
    outcome = handle_produce(request(("t", 0, stage.batch()), ("t", 1, stage.batch())), stage.context(0, VERSION))
    assert not isinstance(outcome, InSlices)
    assert stage.partition("t").log.log_end_offset == 1


def test_what_a_request_unpacks_to_is_bounded(tmp_path: Path) -> None:
    stage = Stage(tmp_path, **{"decompressed.request.max.bytes": str(MIB)})
    stage.topic("t", 8)
    parts = [("t", number, packed(stage, size=MIB * 2 // 5)) for number in range(5)]
    found = answer(stage, VERSION, request(*parts, ("t", 5, stage.batch())))
    too_large = ErrorCode.MESSAGE_TOO_LARGE
    assert [one.error_code for one in found] == [0, 0, 0, too_large, too_large, 0]
    assert "decompressed.request.max.bytes" in found[3].error_message
    assert [one.error_code for one in answer(stage, VERSION, request(*parts[3:]))] == [0, 0], "each request has its own"


def test_a_connection_with_a_quota_waits_as_the_others_do() -> None:
    def work() -> Iterator[object]:
        yield
        yield PAUSE

    spent: list[tuple[float, float]] = []
    timed: Any = timed_work(work(), lambda begun, ended: spent.append((begun, ended)), lambda: 0.0)  # type: ignore[arg-type]
    assert list(_steps(timed)) == [None, PAUSE]
    assert len(spent) == 3


@pytest.mark.parametrize("too_old", [False, True])
def test_times_of_many_records_are_looked_at_without_objects(
    stage: Stage, too_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "decode_records", None)
    stage.topic("aged", message_timestamp_before_max_ms="1000")
    stamp = stage.clock.wall_ms() - (5_000 if too_old else 0)
    count = validation.MAX_EXPLAINED_RECORDS + 1
    rows = [Record(n, stamp, b"k", b"", ()) for n in range(count)]
    (found,) = answer(stage, VERSION, request(("aged", 0, encode_batch(rows))))
    assert found.error_code == (ErrorCode.INVALID_TIMESTAMP if too_old else 0)
    assert too_old == ("is before" in (found.error_message or ""))
