"""Which records may be given out so that none overtakes another of its key."""

from __future__ import annotations

from fleetlog.brokers.shares.keys import KeyOrder


class Records:
    """Records of which some are out."""

    def __init__(self, *keys: bytes | None) -> None:
        self.out: set[int] = set()
        self.order = KeyOrder(10, lambda offset: offset not in self.out)
        for offset, key in enumerate(keys, 10):
            self.order.learn(offset, key)

    def give(self) -> list[int]:
        """All that may be given out now."""
        given = []
        while (offset := self.order.next()) is not None:
            assert self.order.pop() == offset
            self.out.add(offset)
            given.append(offset)
        return given


def test_the_first_one_of_each_key_and_all_without_one() -> None:
    records = Records(b"a", b"b", b"a", None, None, b"b", b"c")
    assert records.give() == [10, 11, 13, 14, 16]
    records.order.finished(10, 11)
    assert records.give() == [12, 15]
    assert len(records.order) == 5


def test_what_is_given_back_comes_before_those_behind_it() -> None:
    records = Records(b"a", b"a", b"b")
    assert records.give() == [10, 12]
    records.out.remove(10)
    records.order.freed(10, 12)
    assert records.give() == [10]
    records.order.finished(10, 10)
    assert records.give() == [11]


def test_records_behind_one_of_their_key_may_end_first() -> None:
    """What retention takes, or what was finished before a leader came."""
    records = Records(b"a", b"a", b"a", b"b")
    records.order.finished(11, 11)
    assert records.give() == [10, 13]
    records.order.finished(10, 10)
    assert records.give() == [12]
    records.order.begin(20)
    assert records.order.end == 20
    records.order.learn(20, b"a")
    assert records.give() == [], "12 is out"
    records.order.finished(12, 13)
    assert records.give() == [20]
    records.order.finished(20, 20)
    assert len(records.order) == 0


def test_what_is_behind_and_before() -> None:
    order = KeyOrder(0, lambda offset: True)
    for offset, key in enumerate((b"a", b"b", None, b"a", None, b"a")):
        order.learn(offset, key)
        assert order.before(offset) == {3: 0, 5: 3}.get(offset)
    assert [order.behind(offset) for offset in range(7)] == [[3, 5], [], [], [5], [], [], []]


def test_the_next_one_is_taken_out_with_the_one_before_it() -> None:
    records = Records(b"a", b"b", b"a", None)
    assert records.order.pop() == 10
    assert not records.order.pop_if(12), "it is behind another one of its key"
    assert records.order.pop_if(11)
    assert not records.order.pop_if(11), "it is out"
    assert not records.order.pop_if(12)
    assert records.order.pop() == 13
