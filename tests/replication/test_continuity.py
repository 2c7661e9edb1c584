"""Which clean stops a starting broker may rely on."""

from __future__ import annotations

import pytest

from fleetlog.brokers.log.disk.checkpoints import CleanStop, decode_clean_stop, encode_clean_stop
from fleetlog.brokers.replication.inventory_keeper import intact_since, stale_directories
from fleetlog.coordination.registration import LastRegistration

LAST = LastRegistration(incarnation=5, broker_epoch=120, process="p")
GOOD = CleanStop(broker_epoch=120, incarnation=5, intact_since=3)


def test_the_clean_stop_of_the_last_incarnation_counts() -> None:
    assert intact_since({"/a": GOOD}, LAST) == 3
    assert intact_since({"/a": GOOD, "/b": GOOD}, LAST) == 3
    assert stale_directories(1, {"/a": GOOD}, LAST) == []


@pytest.mark.parametrize(
    "stale",
    [
        GOOD._replace(incarnation=4, broker_epoch=80),  # an earlier clean stop
        GOOD._replace(incarnation=6),  # ZooKeeper was put back
        GOOD._replace(broker_epoch=119),  # another ZooKeeper that has counted as far
    ],
)
def test_an_older_copy_does_not(stale: CleanStop) -> None:
    assert intact_since({"/a": stale}, LAST) is None
    assert intact_since({"/a": GOOD, "/b": stale}, LAST) is None, "one directory is enough"
    (line,) = stale_directories(1, {"/a": GOOD, "/b": stale}, LAST)
    assert line.startswith("log directory /b is an older copy")
    assert "last registered in incarnation 5 (broker epoch 120)" in line


def test_a_broker_id_that_was_never_registered_has_no_past() -> None:
    never = LastRegistration(0, -1, "")
    assert intact_since({"/a": GOOD}, never) is None
    assert "never been registered in this ZooKeeper" in stale_directories(1, {"/a": GOOD}, never)[0]


@pytest.mark.parametrize("stop", [None, CleanStop(), CleanStop(broker_epoch=120)])
def test_a_crash_and_kafkas_own_files_start_anew_without_a_message(stop: CleanStop | None) -> None:
    assert intact_since({"/a": GOOD, "/b": stop}, LAST) is None
    assert stale_directories(1, {"/a": GOOD, "/b": stop}, LAST) == []


def test_the_version_before_wrote_no_broker_epoch() -> None:
    assert intact_since({"/a": GOOD._replace(broker_epoch=-1)}, LAST) == 3
    assert intact_since({"/a": CleanStop(-1, 4, 3)}, LAST) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'{"incarnation": null}', b'{"version":0,"brokerEpoch":"x"}'])
def test_what_cannot_be_read_says_nothing(data: bytes) -> None:
    assert decode_clean_stop(data) == CleanStop()


def test_what_was_written_is_read() -> None:
    assert decode_clean_stop(encode_clean_stop(GOOD)) == GOOD
    assert decode_clean_stop(encode_clean_stop(CleanStop(7))) == CleanStop(7)
