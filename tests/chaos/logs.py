"""The logs as the clients saw them: which client wrote what, what lies at which offset, which readers must see it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.history import COMPACTED, RC, RU, History, Op, Records, Send


class Logs:
    """Indexes over a history. A key's log is put together from acknowledged sends and from everything that was read.

    ``visible`` has, per isolation and key, the offsets that every reader of that isolation must be shown.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.writer: dict[str, dict[str, Send]] = defaultdict(dict)
        self.twice: list[Send] = []
        for op in history.ops:
            for send in op.sends:
                if send.value in self.writer[send.key]:
                    self.twice.append(send)
                self.writer[send.key][send.value] = send
        self.read: dict[str, dict[str, set[str]]] = {RC: defaultdict(set), RU: defaultdict(set)}
        self.cells: dict[str, dict[int, dict[str, str]]] = defaultdict(dict)
        for proc, isolation, key, records in self.readings():
            seen, cells = self.read[isolation][key], self.cells[key]
            for offset, value in records:
                seen.add(value)
                cells.setdefault(offset, {}).setdefault(value, proc)
        for op in history.ops:
            for send in op.sends:
                if send.offset is not None:
                    self.cells[send.key].setdefault(send.offset, {}).setdefault(send.value, f"acknowledged to {op}")
        self.offsets: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for key, cells in self.cells.items():
            for offset in sorted(cells):
                for value in cells[offset]:
                    self.offsets[key][value].append(offset)
        self._committed = {id(op): self._is_committed(op) for op in history.ops}
        self.trimmed: dict[str, int] = defaultdict(int)
        """Records below this offset of a key may be gone: DeleteRecords was asked for."""
        for trim in history.trims:
            self.trimmed[trim.key] = max(self.trimmed[trim.key], trim.offset)
        self.superseded = {key: _superseded(cells, key) for key, cells in self.cells.items()}
        """Offsets of a compacted topic with a later record of the same key: those may be gone."""
        self.disagreeing: list[str] = []
        self.visible = {RC: self._visible(RC), RU: self._visible(RU)}
        self.final = {isolation: self._final(isolation) for isolation in (RC, RU)}

    def readings(self) -> Iterator[tuple[str, str, str, Records]]:
        """Everything that was read: (reader, isolation, key, records)."""
        for poll in self.history.polls:
            for key, records in poll.records.items():
                yield poll.proc, poll.isolation, key, records
        for given in self.history.givens:
            yield given.proc, RU, given.key, [(given.offset, given.value)]
        for final in self.history.finals:
            for key, records in final.records.items():
                yield final.proc, final.isolation, key, records

    def _is_committed(self, op: Op) -> bool:
        if op.outcome != "info":
            return op.outcome == "ok"
        kinds = (RC,) if op.kind == "txn" else (RC, RU)
        return any(send.value in self.read[kind][send.key] for kind in kinds for send in op.sends)

    def committed(self, op: Op) -> bool:
        """Did it succeed, or was it shown to a reader as if it had?"""
        return self._committed[id(op)]

    def _visible(self, isolation: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for key, cells in self.cells.items():
            writers = self.writer[key]
            found[key] = [
                offset
                for offset in sorted(cells.keys() - self.superseded[key])
                if isolation == RU
                or any((send := writers.get(value)) is not None and self.committed(send.op) for value in cells[offset])
            ]
        return found

    def _final(self, isolation: str) -> dict[str, dict[str, list[int]]]:
        """key -> value -> offsets of the full reads, only for keys that were read; the first reader's word counts."""
        found: dict[str, dict[str, list[int]]] = {}
        for final in self.history.finals:
            if final.isolation == isolation:
                for key, records in final.records.items():
                    values: dict[str, list[int]] = defaultdict(list)
                    for offset, value in records:
                        values[value].append(offset)
                    if self._lasting(key, found.setdefault(key, values)) != self._lasting(key, values):
                        self.disagreeing.append(f"{key}: {final.proc} and another reader ({isolation}) differ")
        return found

    def _lasting(self, key: str, values: dict[str, list[int]]) -> dict[str, list[int]]:
        """Without what a pass of compaction may have removed between two reads."""
        superseded = self.superseded.get(key)
        if not superseded:
            return values
        return {value: offsets for value, offsets in values.items() if not superseded.issuperset(offsets)}

    def between(self, isolation: str, key: str, low: int, high: int) -> list[int]:
        """Offsets that a reader must be shown strictly between two offsets."""
        low = max(low, self.trimmed.get(key, 0) - 1)
        visible = self.visible[isolation].get(key, [])
        return visible[bisect_right(visible, low) : bisect_left(visible, high)]

    def may_be_gone(self, key: str, value: str) -> bool:
        """Whether all that is known of where a value lies is below what DeleteRecords was asked to remove, or has a
        later record of the same key in a compacted topic.
        """
        offsets = self.offsets[key].get(value, [])
        if not offsets:
            return False
        return offsets[-1] < self.trimmed.get(key, 0) or offsets[-1] in self.superseded.get(key, ())

    def values_at(self, key: str, offsets: list[int]) -> str:
        """Some of the offsets with what lies there, for a message."""
        shown = [f"{offset}={'|'.join(self.cells[key][offset])}" for offset in offsets[:5]]
        return ", ".join(shown) + (f" and {len(offsets) - 5} more" if len(offsets) > 5 else "")


def _superseded(cells: dict[int, dict[str, str]], key: str) -> set[int]:
    """Offsets with a later record of the same key, by the names of the values."""
    if key.rpartition("/")[0] != COMPACTED:
        return set()
    last = {value.rpartition("@")[2]: offset for offset in sorted(cells) for value in cells[offset]}
    return {offset for offset, values in cells.items() if all(last[v.rpartition("@")[2]] > offset for v in values)}
