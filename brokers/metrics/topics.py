"""What is counted by topic: plain numbers that all partitions of a topic on this broker share.

The table is bounded. The first topics up to the bound get numbers of their own, and keep them until the topic is
deleted; the rest share those of :data:`OTHER_TOPICS`. What a deleted topic had is added to these, so no sum over the
topics falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import attrgetter

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric

from fleetlog._native.tally import Tally
from fleetlog.brokers.metrics.exposition import SLICE, RowFamily, Rows, by_slices

OTHER_TOPICS = "_other"
"""The label of topics beyond the bound, and of deleted ones: no topic that clients create has it before the bound."""


BATCH_BYTES = tuple(1 << power for power in range(7, 25))
"""Bounds of the histogram of batch sizes: 128 bytes to 16 MiB, by powers of two."""


class TopicFigures(Tally):
    """The numbers of one topic, or of those that share them. Bytes are those of record batches."""

    __slots__ = (
        "damaged",
        "duplicates",
        "failed_fetches",
        "failed_produces",
        "isr_expands",
        "isr_shrinks",
        "lost_records",
        "replicated_in",
    )

    def __init__(self) -> None:
        super().__init__()
        self.damaged = self.duplicates = self.failed_fetches = self.failed_produces = self.replicated_in = 0
        self.isr_shrinks = self.isr_expands = self.lost_records = 0

    def merge(self, other: TopicFigures) -> None:
        """Add another topic's numbers to these."""
        self.add(other)
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


COUNTED_BY_TOPIC = (
    ("records_in", "produced_records", "Records appended by producers."),
    ("bytes_in", "produced_bytes", "Bytes appended by producers."),
    ("batches_in", "produced_batches", "Batches appended by producers."),
    ("failed_produces", "failed_produces", "Batches of producers that were refused."),
    ("bytes_out", "fetched_bytes", "Bytes sent to consumers."),
    ("fetches", "fetches", "Answers with records to consumers, by partition."),
    ("failed_fetches", "failed_fetches", "Answers with an error to consumers and followers, by partition."),
    ("replicated_in", "replicated_in_bytes", "Bytes that this broker's followers appended."),
    ("replicated_out", "replicated_out_bytes", "Bytes sent to followers."),
    ("duplicates", "duplicate_batches", "Batches that idempotence recognized as sent twice."),
    ("isr_shrinks", "isr_shrinks", "Changes of in-sync sets by this broker as leader that took a replica out."),
    ("isr_expands", "isr_expands", "Changes of in-sync sets by this broker as leader that took a replica in."),
    ("lost_records", "lost_records", "Committed records that replicas here cut off: an unclean election's."),
    ("damaged", "damaged_batches", "Batches of producers refused for their checksum or format."),
)
"""Attribute, name without fleetlog_topic_ and _total, and meaning."""


class TopicTable:
    """The numbers of the topics on this broker, of ``most`` topics by name."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: dict[str, TopicFigures] = {}
        self.others = TopicFigures()

    def of(self, topic: str) -> TopicFigures:
        """The numbers of a topic that has a replica here; keep them rather than ask again."""
        figures = self._named.get(topic)
        if figures is None:
            if len(self._named) >= self._most or topic == OTHER_TOPICS:
                return self.others
            figures = self._named[topic] = TopicFigures()
        return figures

    def known(self, topic: str | None) -> TopicFigures:
        """Those of a topic that a client named: of one without a replica here, the others'."""
        return self.others if topic is None else self._named.get(topic, self.others)

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        gone = self._named.pop(topic, None)
        if gone is not None:
            self.others.merge(gone)

    def label(self, topic: str) -> str:
        """The topic's label: its name, or that of the rest."""
        return topic if topic in self._named else OTHER_TOPICS

    def all(self) -> dict[str, TopicFigures]:
        """By label."""
        return {**self._named, OTHER_TOPICS: self.others}

    def total(self, attribute: str) -> int:
        """The sum of a number over all topics."""
        return sum(getattr(figures, attribute) for figures in self.all().values())

    def collect(self) -> Iterator[Metric | Rows | None]:
        """The families, a slice of topics at a time, and the broker's sums."""
        families = [RowFamily(f"fleetlog_topic_{name}_total", "counter", doc) for _, name, doc in COUNTED_BY_TOPIC]
        read = attrgetter(*(attribute for attribute, _, _ in COUNTED_BY_TOPIC))
        rows, records, size = Rows(("topic",), families), 0, 0
        sizes: list[Iterable[int]] = []
        for some in by_slices(self.all().items(), SLICE):
            rows.rows += [((topic,), read(figures)) for topic, figures in some]
            records += sum(figures.records_in for _, figures in some)
            size += sum(figures.bytes_in for _, figures in some)
            sizes.append([*map(sum, zip(*(figures.sizes for _, figures in some), strict=True))])
            yield None
        yield rows
        yield CounterMetricFamily("fleetlog_appended_records", "Records appended by producers.", records)
        yield CounterMetricFamily("fleetlog_appended_bytes", "Bytes appended by producers.", size)
        counts = list(accumulate(map(sum, zip(*sizes, strict=True))))
        # a size below a power of two has at most its bits
        buckets = [(str(bound), float(counts[bound.bit_length() - 1])) for bound in BATCH_BYTES]
        yield HistogramMetricFamily(
            "fleetlog_batch_bytes", "Sizes of batches that producers appended, in bytes.",
            [*buckets, ("+Inf", float(counts[-1]))], size,
        )  # fmt: skip
