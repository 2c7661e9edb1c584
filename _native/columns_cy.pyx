# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The fast twin of ``columns_py``. Two passes over the records: one measures, one copies; no object per row."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from fleetlog._native.columns_py import Columns, Runs
from fleetlog._native.errors import CorruptBatch

include "varints.pxi"
include "records.pxi"

cdef int64_t INT32_MAX = 2147483647


# ---- keys to partitions ---------------------------------------------------------------------------------------------

cdef int32_t _murmur2(const uint8_t *p, Py_ssize_t length) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>length
    cdef uint32_t k
    cdef Py_ssize_t whole = length & ~3
    cdef Py_ssize_t i = 0
    while i < whole:
        memcpy(&k, p + i, 4)  # little-endian, as the hash wants it
        k = k * m
        k = k ^ (k >> 24)
        h = (h * m) ^ (k * m)
        i += 4
    if length - whole >= 3:
        h = h ^ (<uint32_t>p[whole + 2] << 16)
    if length - whole >= 2:
        h = h ^ (<uint32_t>p[whole + 1] << 8)
    if length - whole >= 1:
        h = (h ^ p[whole]) * m
    h = h ^ (h >> 13)
    h = h * m
    h = h ^ (h >> 15)
    return <int32_t>h


def murmur2(key):
    cdef Py_buffer view
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    try:
        return _murmur2(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


def partition_for_key(key, int32_t partitions):
    cdef Py_buffer view
    if partitions <= 0:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    try:
        return (_murmur2(<const uint8_t *>view.buf, view.len) & 0x7FFFFFFF) % partitions
    finally:
        PyBuffer_Release(&view)


cdef class _Run:
    """A column of byte runs as the caller gave it, checked once so that rows need no checks."""

    cdef Py_buffer buffers[3]
    cdef int held
    cdef const uint8_t *validity
    cdef const uint8_t *offsets
    cdef const uint8_t *data

    def __cinit__(self, column, Py_ssize_t rows, Py_ssize_t size=-1):
        cdef Py_ssize_t row
        cdef int32_t bound, previous = 0
        self.held = 0
        self.validity = NULL
        if rows < 0:
            raise ValueError(f"a column of {rows} rows")
        for part in (column.offsets, column.data, column.validity):
            if part is not None:
                PyObject_GetBuffer(part, &self.buffers[self.held], PyBUF_SIMPLE)
                self.held += 1
        if self.buffers[0].len // 4 < rows + 1 or (self.held == 3 and self.buffers[2].len * 8 < rows):
            raise ValueError(f"a column is shorter than {rows} rows")
        self.offsets = <const uint8_t *>self.buffers[0].buf
        self.data = <const uint8_t *>self.buffers[1].buf
        if self.held == 3:
            self.validity = <const uint8_t *>self.buffers[2].buf
        for row in range(rows + 1):
            bound = self.bound(row)
            if bound < previous or bound > (self.buffers[1].len if size < 0 else size):
                raise ValueError(f"a column's offset {bound} does not fit")
            previous = bound

    def __dealloc__(self):
        cdef int n
        for n in range(self.held):
            PyBuffer_Release(&self.buffers[n])

    cdef inline int32_t bound(self, Py_ssize_t row) noexcept nogil:
        cdef int32_t v
        memcpy(&v, self.offsets + 4 * row, 4)
        return v

    cdef inline bint valid(self, Py_ssize_t row) noexcept nogil:
        return self.validity == NULL or (self.validity[row >> 3] >> (row & 7)) & 1


cdef class _Lists:
    """The headers of rows, checked once, of the rows that are asked for."""

    cdef _Run lists
    cdef _Run names
    cdef _Run values

    def __cinit__(self, headers, Py_ssize_t first, Py_ssize_t last):
        cdef Py_ssize_t row, n, total
        self.lists = _Run(Runs(headers.validity, headers.offsets, b""), last, INT32_MAX)
        total = self.lists.bound(last)
        self.names = _Run(headers.names, total)
        self.values = _Run(headers.values, total)
        for row in range(first, last):
            if self.lists.valid(row):
                for n in range(self.lists.bound(row), self.lists.bound(row + 1)):
                    self.check(n)

    cdef int check(self, Py_ssize_t n) except -1:
        cdef Py_ssize_t start = self.names.bound(n)
        if not self.names.valid(n):
            raise ValueError("a header without a name")
        try:
            _check_name(self.names.data, start, self.names.bound(n + 1) - start)
        except CorruptBatch:
            raise ValueError("a header name is not UTF-8") from None
        return 0

    cdef inline int32_t begin(self, Py_ssize_t row) noexcept nogil:
        return self.lists.bound(row)

    cdef inline int32_t end(self, Py_ssize_t row) noexcept nogil:
        return self.lists.bound(row + 1) if self.lists.valid(row) else self.lists.bound(row)

    cdef Py_ssize_t size(self, Py_ssize_t row) noexcept nogil:
        """Bytes of a row's headers, their count included."""
        cdef Py_ssize_t n
        cdef Py_ssize_t total = _varint_size(_zigzag(self.end(row) - self.begin(row)))
        for n in range(self.begin(row), self.end(row)):
            total += _run_size(_length(self.names, n)) + _run_size(_length(self.values, n))
        return total

    cdef uint8_t *write(self, uint8_t *p, Py_ssize_t row) noexcept nogil:
        cdef Py_ssize_t n
        p = _put_varint(p, _zigzag(self.end(row) - self.begin(row)))
        for n in range(self.begin(row), self.end(row)):
            p = _write_row(p, self.names, n, _length(self.names, n))
            p = _write_row(p, self.values, n, _length(self.values, n))
        return p


def hash_runs(column, Py_ssize_t rows, int32_t partitions=0):
    cdef _Run run
    cdef Py_ssize_t row
    cdef int32_t start, hashed
    cdef bytes out
    cdef char *p
    if partitions < 0:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    run = _Run(column, rows)
    out = PyBytes_FromStringAndSize(NULL, 4 * rows)
    p = PyBytes_AS_STRING(out)
    with nogil:
        for row in range(rows):
            if run.valid(row):
                start = run.bound(row)
                hashed = _murmur2(run.data + start, run.bound(row + 1) - start)
                if partitions:
                    hashed = (hashed & 0x7FFFFFFF) % partitions
            else:
                hashed = -1 if partitions else 0
            memcpy(p + 4 * row, &hashed, 4)
    return out


# ---- batches to columns ---------------------------------------------------------------------------------------------

cdef class _Growing:
    """A column under construction: growing offsets, validity and data."""

    cdef bytearray offsets
    cdef bytearray validity
    cdef bytearray data
    cdef Py_ssize_t rows
    cdef Py_ssize_t used
    cdef Py_ssize_t nulls

    def __cinit__(self):
        self.offsets = bytearray(256)
        self.validity = bytearray(8)
        self.data = bytearray(512)
        self.rows = 0
        self.used = 0
        self.nulls = 0

    cdef int add(self, const uint8_t *p, Py_ssize_t length) except -1:
        """Append a run; a negative length is a null."""
        cdef int32_t end
        cdef Py_ssize_t room
        if 4 * (self.rows + 2) > len(self.offsets):
            self.offsets.extend(bytes(len(self.offsets)))
            self.validity.extend(bytes(len(self.validity)))
        if length < 0:
            self.nulls += 1
        else:
            if self.used + length > INT32_MAX:
                raise CorruptBatch("a column passes 2 GiB", 0)
            room = len(self.data)
            if self.used + length > room:
                self.data.extend(bytes(max(room, length)))
            memcpy(<char *>self.data + self.used, p, <size_t>length)
            self.used += length
            (<char *>self.validity)[self.rows >> 3] |= <char>(1 << (self.rows & 7))
        self.rows += 1
        end = <int32_t>self.used
        memcpy(<char *>self.offsets + 4 * self.rows, &end, 4)
        return 0

    cdef object finish(self):
        return Runs(
            bytes(self.validity[: (self.rows + 7) // 8]) if self.nulls else None,
            bytes(self.offsets[: 4 * (self.rows + 1)]),
            bytes(self.data[: self.used]),
        )


cdef inline int _push64(bytearray out, Py_ssize_t row, int64_t value) except -1:
    if 8 * (row + 1) > len(out):
        out.extend(bytes(len(out)))
    memcpy(<char *>out + 8 * row, &value, 8)
    return 0


cdef inline int _push32(bytearray out, Py_ssize_t row, int32_t value) except -1:
    if 4 * (row + 1) > len(out):
        out.extend(bytes(len(out)))
    memcpy(<char *>out + 4 * row, &value, 4)
    return 0


def decode_columns(parts, object start=0, object end=2**63 - 1, bint headers=False):
    cdef int64_t first = max(start, -(2**63)), last_wanted = min(end, 2**63 - 1)
    cdef bytearray offsets = bytearray(512), times = bytearray(512), kinds = bytearray(256)
    cdef bytearray bounds = bytearray(256)
    cdef _Growing keys = _Growing(), values = _Growing(), names = _Growing(), texts = _Growing()
    cdef Py_buffer view
    cdef Cursor c
    cdef Py_ssize_t rows = 0, stop, key_at = 0, value_at = 0, at = 0, key_length, value_length, length
    cdef int64_t count, _n, _h, timestamp, base_offset, base_timestamp, max_timestamp, offset, number
    cdef int32_t last
    cdef bint appended, wanted
    for payload, header in parts:
        count = header.record_count
        last = header.last_offset_delta
        base_offset = header.base_offset
        base_timestamp = header.base_timestamp
        max_timestamp = header.max_timestamp
        appended = header.is_log_append_time
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            _open(&c, <const uint8_t *>view.buf, view.len, count)
            for _n in range(count):
                stop = _begin(&c)
                timestamp = _timestamp(&c, base_timestamp)
                offset = base_offset + _delta(&c, last)
                wanted = first <= offset < last_wanted
                key_length = _span(&c, &key_at)
                value_length = _span(&c, &value_at)
                number = _headers(&c, stop)
                for _h in range(number):
                    length = _span(&c, &at)
                    if length < 0:
                        raise CorruptBatch("a header without a name", c.position)
                    _check_name(c.p, at, length)
                    if wanted and headers:
                        names.add(c.p + at, length)
                    length = _span(&c, &at)
                    if wanted and headers:
                        texts.add(c.p + at, length)
                _end(&c, stop, view.len)
                if not wanted:
                    continue
                _push64(offsets, rows, offset)
                _push64(times, rows, max_timestamp if appended else timestamp)
                _push32(kinds, rows, 1 if appended else 0)
                keys.add(c.p + key_at, key_length)
                values.add(c.p + value_at, value_length)
                rows += 1
                if headers:
                    _push32(bounds, rows, <int32_t>names.rows)
            _end_payload(&c)
        finally:
            PyBuffer_Release(&view)
    return Columns(
        rows,
        bytes(offsets[: 8 * rows]),
        bytes(times[: 8 * rows]),
        bytes(kinds[: 4 * rows]),
        keys.finish(),
        values.finish(),
        bytes(bounds[: 4 * (rows + 1)]) if headers else None,
        names.finish() if headers else None,
        texts.finish() if headers else None,
    )


# ---- columns to batches ---------------------------------------------------------------------------------------------

cdef inline Py_ssize_t _run_size(int64_t length) noexcept nogil:
    if length < 0:
        return 1
    return _varint_size(_zigzag(length)) + <Py_ssize_t>length


cdef inline uint8_t *_write_run(uint8_t *p, const uint8_t *data, int64_t length) noexcept nogil:
    p = _put_varint(p, _zigzag(length))
    if length > 0:
        memcpy(p, data, <size_t>length)
        p += length
    return p


cdef inline uint8_t *_write_row(uint8_t *p, _Run run, Py_ssize_t row, int64_t length) noexcept nogil:
    if length < 0:
        return _write_run(p, NULL, -1)
    return _write_run(p, run.data + run.bound(row), length)


cdef inline int64_t _length(_Run run, Py_ssize_t row) noexcept nogil:
    if run.valid(row):
        return run.bound(row + 1) - run.bound(row)
    return -1


cdef inline Py_ssize_t _record_size(
    int64_t shift, int64_t delta, int64_t key, int64_t value, Py_ssize_t extra
) noexcept nogil:
    """Bytes of a record behind its length; ``extra`` are its headers'."""
    return 1 + _varint_size(_zigzag(shift)) + _varint_size(_zigzag(delta)) + _run_size(key) + _run_size(value) + extra


cdef inline Py_ssize_t _row_at(const uint8_t *order, Py_ssize_t place) noexcept nogil:
    cdef int32_t row
    if order == NULL:
        return place
    memcpy(&row, order + 4 * place, 4)
    return row


def encode_columns(
    keys, values, timestamps, Py_ssize_t first, Py_ssize_t last, int64_t base_timestamp, headers=None, order=None,
    Py_ssize_t room=0
):
    cdef Py_buffer times
    cdef Py_buffer chosen
    PyObject_GetBuffer(timestamps, &times, PyBUF_SIMPLE)
    try:
        if order is None:
            return _encode_columns(keys, values, &times, first, last, base_timestamp, headers, NULL, room)
        PyObject_GetBuffer(order, &chosen, PyBUF_SIMPLE)
        try:
            return _encode_columns(keys, values, &times, first, last, base_timestamp, headers, &chosen, room)
        finally:
            PyBuffer_Release(&chosen)
    finally:
        PyBuffer_Release(&times)


cdef object _encode_columns(
    keys, values, Py_buffer *times, Py_ssize_t first, Py_ssize_t last, int64_t base_timestamp, headers,
    Py_buffer *chosen, Py_ssize_t room
):
    cdef const uint8_t *t = <const uint8_t *>times.buf
    cdef const uint8_t *order = NULL
    cdef _Run key = None, value
    cdef _Lists lists = None
    cdef Py_ssize_t place, row, size, total = 0, extra = 1, there = times.len // 8, low = first, high = last
    cdef int64_t time = 0, shift = 0, key_length, value_length
    cdef object out
    cdef uint8_t *p
    cdef bint keyed = keys is not None
    if times.len % 8 or (chosen != NULL and chosen.len % 4):
        raise ValueError("bytes length not a multiple of item size")
    if not 0 <= first <= last <= (there if chosen == NULL else chosen.len // 4):
        raise ValueError(f"rows {first} to {last} of {there if chosen == NULL else chosen.len // 4}")
    if room < 0:
        raise ValueError(f"room for {room} bytes")
    if chosen != NULL:
        order = <const uint8_t *>chosen.buf
        low, high = 0, there
        for place in range(first, last):
            if not 0 <= _row_at(order, place) < there:
                raise ValueError(f"the order names a row beyond the {there} there are")
    if keyed:
        key = _Run(keys, high)
    value = _Run(values, high)
    if headers is not None:
        lists = _Lists(headers, low, high)
    for place in range(first, last):
        row = _row_at(order, place)
        memcpy(&time, t + 8 * row, 8)
        if fl_sub_overflows(time, base_timestamp, &shift):
            raise ValueError("a timestamp is too far from the batch's")
        if lists is not None:
            extra = lists.size(row)
        size = _record_size(shift, place - first, _length(key, row) if keyed else -1, _length(value, row), extra)
        total += _varint_size(_zigzag(size)) + size
    if room:
        out = PyByteArray_FromStringAndSize(NULL, room + total)
        p = <uint8_t *>PyByteArray_AS_STRING(out)
        memset(p, 0, <size_t>room)
        p += room
    else:
        out = PyBytes_FromStringAndSize(NULL, total)
        p = <uint8_t *>PyBytes_AS_STRING(out)
    for place in range(first, last):
        row = _row_at(order, place)
        memcpy(&time, t + 8 * row, 8)
        shift = time - base_timestamp
        key_length = _length(key, row) if keyed else -1
        value_length = _length(value, row)
        if lists is not None:
            extra = lists.size(row)
        p = _put_varint(p, _zigzag(_record_size(shift, place - first, key_length, value_length, extra)))
        p[0] = 0
        p = _put_varint(p + 1, _zigzag(shift))
        p = _put_varint(p, _zigzag(place - first))
        p = _write_row(p, key, row, key_length)
        p = _write_row(p, value, row, value_length)
        if lists is not None:
            p = lists.write(p, row)
        else:
            p[0] = 0
            p += 1
    return out


# ---- rows to partitions ---------------------------------------------------------------------------------------------

def group_rows(partitions, int32_t count):
    cdef Py_buffer view
    cdef Py_ssize_t rows, row
    cdef int32_t partition, at
    cdef const uint8_t *p
    cdef bytes order
    cdef bytearray ends
    cdef char *out
    cdef char *next_at
    PyObject_GetBuffer(partitions, &view, PyBUF_SIMPLE)
    try:
        if view.len % 4:
            raise ValueError("bytes length not a multiple of item size")
        if count < 0:
            raise ValueError(f"{count} partitions")
        rows = view.len // 4
        p = <const uint8_t *>view.buf
        ends = bytearray(4 * (<Py_ssize_t>count + 2))  # place n + 2 counts n, then place n + 1 is where n continues
        next_at = <char *>ends
        for row in range(rows):
            memcpy(&partition, p + 4 * row, 4)
            if not 0 <= partition < count:
                raise ValueError(f"partition {partition} of {count}")
            _add(next_at + 4 * (<Py_ssize_t>partition + 2), 1)
        for row in range(2, <Py_ssize_t>count + 2):
            memcpy(&at, next_at + 4 * (row - 1), 4)
            _add(next_at + 4 * row, at)
        order = PyBytes_FromStringAndSize(NULL, 4 * rows)
        out = PyBytes_AS_STRING(order)
        for row in range(rows):
            memcpy(&partition, p + 4 * row, 4)
            memcpy(&at, next_at + 4 * (<Py_ssize_t>partition + 1), 4)
            _put(out + 4 * <Py_ssize_t>at, <int32_t>row)
            _add(next_at + 4 * (<Py_ssize_t>partition + 1), 1)
    finally:
        PyBuffer_Release(&view)
    starts = [0]
    for row in range(count):
        memcpy(&at, next_at + 4 * (row + 1), 4)
        starts.append(at)
    return order, starts


cdef inline void _put(char *p, int32_t value) noexcept nogil:
    memcpy(p, &value, 4)


cdef inline void _add(char *p, int32_t more) noexcept nogil:
    cdef int32_t value
    memcpy(&value, p, 4)
    _put(p, value + more)
