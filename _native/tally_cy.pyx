# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The fast twin of ``tally_py``: same class, same numbers."""

from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef extern from *:
    int _leading_zeros "__builtin_clzll"(unsigned long long) noexcept nogil

cdef enum:
    CLASSES = 33
    BOUNDS = 14
SIZE_CLASSES = CLASSES
cdef double[BOUNDS] _bounds
_bounds[:] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]
TIME_BOUNDS_S = tuple(_bounds[n] for n in range(BOUNDS))


cdef class Tally:
    """See ``tally_py``."""

    cdef public int64_t records_in, bytes_in, batches_in, fetches, bytes_out, replicated_out
    cdef int64_t[CLASSES] _sizes

    @property
    def sizes(self):
        """The batches that were appended, by the number of bits of their size."""
        cdef int n
        return [self._sizes[n] for n in range(CLASSES)]

    cdef inline void _count(self, int64_t records, int64_t size) noexcept:
        cdef int bits = 64 - _leading_zeros(<uint64_t>size) if size else 0
        self.records_in += records
        self.bytes_in += size
        self.batches_in += 1
        self._sizes[bits if bits < CLASSES else CLASSES - 1] += 1

    def appended(self, batches):
        """Count batches of producers that are in a log."""
        cdef int64_t first, last, size
        for batch in batches:
            if not isinstance(batch, tuple) or len(batch) < 4:
                raise TypeError(f"no batch: {batch!r}")
            first, last = <object>PyTuple_GET_ITEM(batch, 0), <object>PyTuple_GET_ITEM(batch, 1)
            size = <object>PyTuple_GET_ITEM(batch, 3)
            self._count(last + 1 - first, size)

    def appended_records(self, int64_t records, int64_t size):
        """Count one batch of that many records and bytes."""
        self._count(records, size)

    cdef inline void _fetched(self, int64_t size, bint follower) noexcept:
        if follower:
            self.replicated_out += size
        elif size:
            self.bytes_out += size
            self.fetches += 1

    def fetched(self, int64_t size, bint follower):
        """Count an answer with bytes of a partition, to a follower or a consumer; without bytes it is none."""
        self._fetched(size, follower)

    def add(self, Tally other not None):
        """Add what another one has counted."""
        cdef int n
        self.records_in += other.records_in
        self.bytes_in += other.bytes_in
        self.batches_in += other.batches_in
        self.fetches += other.fetches
        self.bytes_out += other.bytes_out
        self.replicated_out += other.replicated_out
        for n in range(CLASSES):
            self._sizes[n] += other._sizes[n]


cdef class Times:
    """See ``tally_py``."""

    cdef int64_t[BOUNDS + 1] _counts
    cdef public double total

    @property
    def counts(self):
        """By class: as many as there are bounds, and one."""
        cdef int n
        return [self._counts[n] for n in range(BOUNDS + 1)]

    @counts.setter
    def counts(self, counts):
        cdef int n
        if len(counts) != BOUNDS + 1:
            raise ValueError(f"{len(counts)} classes, there are {BOUNDS + 1}")
        for n in range(BOUNDS + 1):
            self._counts[n] = counts[n]

    cdef inline void _observe(self, double seconds, int64_t count) noexcept:
        cdef int n = 0
        while n < BOUNDS and seconds > _bounds[n]:
            n += 1
        self._counts[n] += count
        self.total += seconds * count

    def observe(self, double seconds, int64_t count=1):
        """Count one, or several that took the same time."""
        self._observe(seconds, count)

    def since(self, double started, int64_t count=1):
        """Count what began at that moment of ``time.perf_counter``, and ends now."""
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        self._observe(now.tv_sec + now.tv_nsec * 1e-9 - started, count)


def count_fetched(found, bint follower):
    """See ``tally_py``."""
    cdef Py_ssize_t failed = 0
    for pair in found:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"no part with its outcome: {pair!r}")
        outcome = <object>PyTuple_GET_ITEM(pair, 1)
        if not isinstance(outcome, tuple) or len(outcome) < 7:
            raise TypeError(f"no outcome: {outcome!r}")
        if <object>PyTuple_GET_ITEM(outcome, 0):
            failed += 1
            continue
        partition = (<object>PyTuple_GET_ITEM(pair, 0)).partition
        if partition is not None:
            figures = partition.figures
            if figures is not None:
                (<Tally?>figures)._fetched(<object>PyTuple_GET_ITEM(outcome, 6), follower)
    return failed
