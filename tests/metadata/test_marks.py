"""What a broker has seen of the tree, compared with the tree as it is."""

from __future__ import annotations

import pytest

from fleetlog.brokers.metadata.marks import ClusterMarks, decode_marks, encode_marks, lower, newest

SEEN = ClusterMarks(generation=1, controller_epoch=9, change=100, incarnation=7, producer_id=1999)


def test_the_file_keeps_all_of_it() -> None:
    assert decode_marks(encode_marks(SEEN)) == SEEN
    assert decode_marks(b"{}") == ClusterMarks(), "what an older version does not know accepts any tree"
    assert decode_marks(b'{"change":5,"later":[]}') == ClusterMarks(change=5)
    for damaged in (b"", b"[]", b'{"change":null}', b'{"change":"x"}'):
        with pytest.raises((ValueError, TypeError)):
            decode_marks(damaged)


def test_the_highest_of_the_newest_generation_counts() -> None:
    before_the_repair = ClusterMarks(0, 50, 5000, 60, 2999)
    other = ClusterMarks(1, 8, 101, 7, -1)
    assert newest([before_the_repair, SEEN, other]) == ClusterMarks(1, 9, 101, 7, 2999)
    assert newest([]) == ClusterMarks()


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (SEEN, None),
        (SEEN._replace(controller_epoch=10, change=101, incarnation=8), None),
        (SEEN._replace(controller_epoch=8), "controller epoch 8, 9 was seen"),
        (SEEN._replace(change=99), "change number 99, 100 was seen"),
        (SEEN._replace(incarnation=6, controller_epoch=20), "registration 6, 7 was seen"),
        (SEEN._replace(producer_id=-1), None),
        (ClusterMarks(generation=2), None),
        (SEEN._replace(generation=0, controller_epoch=20), "generation 0, generation 1 was seen"),
    ],
)
def test_a_tree_is_behind_if_one_number_is_lower(found: ClusterMarks, named: str | None) -> None:
    wrong = lower(SEEN, found)
    assert (named is None) == (wrong is None)
    assert named is None or named in (wrong or "")


def test_a_broker_that_has_seen_nothing_accepts_any_tree() -> None:
    assert lower(ClusterMarks(), ClusterMarks()) is None
    assert lower(ClusterMarks(), SEEN) is None
