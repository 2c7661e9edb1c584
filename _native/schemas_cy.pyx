# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The fast twin of ``schemas_py``: same functions, results and errors. Records are walked without the GIL."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from fleetlog._native.batch import validate_records
from fleetlog._native.errors import CorruptBatch
from fleetlog._native.schemas_py import Unfit

include "varints.pxi"
include "walk.pxi"

cdef enum:
    NOTHING, BOOLEAN, INT, LONG, FIXED, BYTES, STRING, UUID
    ENUM, TIME_MILLIS, TIME_MICROS, DECIMAL, ARRAY, MAP, UNION, RECORD
cdef enum:
    UNKNOWN, CUT_OFF_CODE, NUMBER, LENGTH, TEXT, TRUTH, SYMBOL, BRANCH, LEFT_OVER, BLOCK, DEPTH, EMPTY, DIGITS, TIME
    UUID_TEXT
cdef enum:
    DEPTH_MAX = 200
    EMPTY_ITEMS = 10_000
    TRAIL_MAX = 16
    DAY_MS = 86_400_000


cdef Py_ssize_t _row_of(const uint8_t *table, Py_ssize_t size, Py_ssize_t width, const uint8_t *row) noexcept nogil:
    """The number of this row in the table, whose rows are sorted, or -1."""
    cdef Py_ssize_t low = 0, high = size // width, middle
    cdef int order
    while low < high:
        middle = (low + high) >> 1
        order = memcmp(table + middle * width, row, <size_t>width)
        if order == 0:
            return middle
        if order < 0:
            low = middle + 1
        else:
            high = middle
    return -1


cdef Py_ssize_t _schema_id(const Walk *w, const Span *s, bint of_keys, Py_ssize_t *place) noexcept nogil:
    """The size of the id that the last record carries, 4 or 16, and where it stands; 0: none, -1: none is needed.

    In a header it may be followed by more, which names a message of a Protobuf file.
    """
    cdef Py_ssize_t start = s.key if of_keys else s.value, size = s.key_size if of_keys else s.value_size
    if size < 0:
        return -1
    if w.found > 0:
        start, size = w.value, <Py_ssize_t>w.value_size
    place[0] = start + 1
    if size >= 5 and w.p[start] == 0:
        return 4
    if size >= 17 and w.p[start] == 1:
        return 16
    return 0


cdef struct Tables:
    const uint8_t *ids
    Py_ssize_t ids_size
    const uint8_t *guids
    Py_ssize_t guids_size
    Py_ssize_t last  # where the id stands that was found last, or -1
    Py_ssize_t last_width


cdef int64_t _misfit(
    Walk *w, Tables *t, bint of_keys, int64_t index, int64_t count, Py_ssize_t *place, Py_ssize_t *width
) noexcept nogil:
    """The first record from ``index`` on whose id is in no table; ``count`` if there is none, -1 if one is broken."""
    cdef Span s
    while index < count:
        if not _next(w, &s):
            return -1
        width[0] = _schema_id(w, &s, of_keys, place)
        if width[0] == 0:
            return index
        if width[0] > 0 and not (
            width[0] == t.last_width and memcmp(w.p + t.last, w.p + place[0], <size_t>width[0]) == 0
        ):
            if width[0] == 4 and _row_of(t.ids, t.ids_size, 4, w.p + place[0]) < 0:
                return index
            if width[0] == 16 and _row_of(t.guids, t.guids_size, 16, w.p + place[0]) < 0:
                return index
            t.last, t.last_width = place[0], width[0]
        index += 1
    return count


def misfits(payload, header, bytes name not None, bint of_keys, bytes ids not None, bytes guids not None, int64_t most):
    cdef Py_buffer view
    cdef Walk w
    cdef Tables t
    cdef int64_t count = max(0, header.record_count), index = 0
    cdef Py_ssize_t place = 0, width = 0
    cdef list wrong = []
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _begin(&w, &view, header, name)
        t.ids, t.ids_size, t.guids, t.guids_size = ids, len(ids), guids, len(guids)
        t.last, t.last_width = 0, -1
        if count > view.len // 7:
            validate_records(payload, header)
        while True:
            if view.len < RELEASE_GIL_FROM:
                index = _misfit(&w, &t, of_keys, index, count, &place, &width)
            else:
                with nogil:
                    index = _misfit(&w, &t, of_keys, index, count, &place, &width)
            if index < 0 or index == count or len(wrong) == most:
                break
            wrong.append((index, PyBytes_FromStringAndSize(<const char *>w.p + place, width)))
            index += 1
        if index < 0 or index == count:
            _check_end(&w, index >= 0, payload, header)
        return wrong
    finally:
        PyBuffer_Release(&view)


# ---- payloads


cdef struct Payload:
    const uint8_t *p
    Py_ssize_t position
    Py_ssize_t end
    const int32_t *words
    int64_t empty
    int code
    int trail
    int32_t places[TRAIL_MAX]
    int32_t fields[TRAIL_MAX]


cdef inline bint _wrong(Payload *c, int code) noexcept nogil:
    c.code = code
    return False


cdef inline bint _wrong_at(Payload *c, int code, Py_ssize_t position) noexcept nogil:
    c.code = code
    c.position = position
    return False


cdef inline bint _number(Payload *c, int bits, int64_t *value) noexcept nogil:
    cdef Py_ssize_t at = c.position
    cdef uint64_t raw = 0
    cdef int wrong
    if at < c.end and c.p[at] < 0x80:
        raw = c.p[at]
        at += 1
    else:
        wrong = _read_varint(c.p, &at, c.end, bits, &raw)
        if wrong:
            return _wrong(c, CUT_OFF_CODE if wrong == CUT_OFF else NUMBER)
    c.position = at
    value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    return True


cdef inline bint _fixed(Payload *c, int64_t size) noexcept nogil:
    if size > c.end - c.position:
        return _wrong(c, CUT_OFF_CODE)
    c.position += <Py_ssize_t>size
    return True


cdef inline bint _bytes(Payload *c, int64_t *size) noexcept nogil:
    cdef Py_ssize_t before = c.position
    if not _number(c, 64, size):
        return False
    if size[0] < 0 or size[0] > c.end - c.position:
        return _wrong_at(c, LENGTH, before)
    c.position += <Py_ssize_t>size[0]
    return True


cdef bint _is_utf8(const uint8_t *p, const uint8_t *end) noexcept nogil:
    """As Python decodes it: no surrogates, nothing longer than it must be, nothing above U+10FFFF."""
    cdef uint64_t word
    cdef uint8_t first, second
    cdef int more
    while p < end:
        while end - p >= 8:
            memcpy(&word, p, 8)
            if word & 0x8080808080808080ull:
                break
            p += 8
        if p == end:
            break
        first = p[0]
        p += 1
        if first < 0x80:
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if end - p < more:
            return False
        second = p[0]
        if (
            (second & 0xC0) != 0x80
            or (first == 0xE0 and second < 0xA0)
            or (first == 0xED and second > 0x9F)
            or (first == 0xF0 and second < 0x90)
            or (first == 0xF4 and second > 0x8F)
        ):
            return False
        if more > 1 and (p[1] & 0xC0) != 0x80:
            return False
        if more > 2 and (p[2] & 0xC0) != 0x80:
            return False
        p += more
    return True


cdef inline bint _text(Payload *c, int64_t *size) noexcept nogil:
    cdef Py_ssize_t before = c.position
    if not _bytes(c, size):
        return False
    if not _is_utf8(c.p + c.position - size[0], c.p + c.position):
        return _wrong_at(c, TEXT, before)
    return True


cdef bint _is_uuid(const uint8_t *p, int64_t size) noexcept nogil:
    cdef int n
    cdef uint8_t letter
    if size != 36:
        return False
    for n in range(36):
        letter = p[n]
        if n == 8 or n == 13 or n == 18 or n == 23:
            if letter != 0x2D:
                return False
        elif not (0x30 <= letter <= 0x39 or 0x61 <= (letter | 0x20) <= 0x66):
            return False
    return True


cdef bint _decimal(Payload *c, Py_ssize_t at) noexcept nogil:
    cdef Py_ssize_t before = c.position
    cdef int32_t larger = c.words[at + 2], smaller = c.words[at + 3]
    cdef int64_t size = c.words[at + 1]
    cdef const uint8_t *limit = <const uint8_t *>(c.words + at + 4)
    cdef const uint8_t *p
    cdef uint8_t sign
    if not (_bytes(c, &size) if size < 0 else _fixed(c, size)):
        return False
    p = c.p + c.position - size
    if size == 0:
        return _wrong_at(c, DIGITS, before)
    sign = 0xFF if p[0] & 0x80 else 0
    while size > 1 and p[0] == sign and (p[1] & 0x80) == (sign & 0x80):
        p += 1
        size -= 1
    if sign:
        limit += larger
        if size > smaller or (size == smaller and memcmp(p, limit, <size_t>size) < 0):
            return _wrong_at(c, DIGITS, before)
    elif size > larger or (size == larger and memcmp(p, limit, <size_t>size) > 0):
        return _wrong_at(c, DIGITS, before)
    return True


cdef bint _collection(Payload *c, Py_ssize_t at, int depth) noexcept nogil:
    cdef bint is_map = c.words[at] == MAP
    cdef Py_ssize_t items = c.words[at + 1], before, stop
    cdef int64_t count = 0, size = 0
    cdef uint64_t many, _n
    if depth > DEPTH_MAX:
        return _wrong(c, DEPTH)
    while True:
        before = c.position
        stop = -1
        if not _number(c, 64, &count):
            return False
        if count == 0:
            return True
        many = <uint64_t>count
        if count < 0:
            many = 0 - many
            if not _number(c, 64, &size):
                return False
            if size < 0 or size > c.end - c.position:
                return _wrong_at(c, LENGTH, before)
            stop = c.position + <Py_ssize_t>size
        if c.words[items] == NOTHING and not is_map:
            if many > <uint64_t>(EMPTY_ITEMS - c.empty):
                return _wrong_at(c, EMPTY, before)
            c.empty += <int64_t>many
        else:
            if many > <uint64_t>(c.end - c.position):
                return _wrong_at(c, LENGTH, before)
            for _n in range(many):
                if is_map and not _text(c, &size):
                    return False
                if not _value(c, items, depth):
                    return False
        if stop >= 0 and c.position != stop:
            return _wrong_at(c, BLOCK, before)


cdef bint _record(Payload *c, Py_ssize_t at, int depth) noexcept nogil:
    cdef int32_t number, count = c.words[at + 1]
    if depth > DEPTH_MAX:
        return _wrong(c, DEPTH)
    for number in range(count):
        if not _value(c, c.words[at + 2 + number], depth):
            if c.trail < TRAIL_MAX:
                c.places[c.trail] = <int32_t>at
                c.fields[c.trail] = number
                c.trail += 1
            return False
    return True


cdef bint _value(Payload *c, Py_ssize_t at, int depth) noexcept nogil:
    cdef Py_ssize_t before = c.position
    cdef int64_t number = 0
    cdef int32_t operation = c.words[at]
    if operation == UNION:
        if not _number(c, 64, &number):
            return False
        if number < 0 or number >= c.words[at + 1]:
            return _wrong_at(c, BRANCH, before)
        at = c.words[at + 2 + number]
        operation = c.words[at]
        before = c.position
    if operation == STRING:
        return _text(c, &number)
    elif operation == LONG:
        return _number(c, 64, &number)
    elif operation == INT:
        return _number(c, 32, &number)
    elif operation == FIXED:
        return _fixed(c, c.words[at + 1])
    elif operation == BOOLEAN:
        if not _fixed(c, 1):
            return False
        return True if c.p[before] < 2 else _wrong_at(c, TRUTH, before)
    elif operation == RECORD:
        return _record(c, at, depth + 1)
    elif operation == BYTES:
        return _bytes(c, &number)
    elif operation == ENUM:
        if not _number(c, 32, &number):
            return False
        return True if 0 <= number < c.words[at + 1] else _wrong_at(c, SYMBOL, before)
    elif operation == ARRAY or operation == MAP:
        return _collection(c, at, depth + 1)
    elif operation == NOTHING:
        return True
    elif operation == UUID:
        if not _text(c, &number):
            return False
        return True if _is_uuid(c.p + c.position - number, number) else _wrong_at(c, UUID_TEXT, before)
    elif operation == TIME_MILLIS:
        if not _number(c, 32, &number):
            return False
        return True if 0 <= number < DAY_MS else _wrong_at(c, TIME, before)
    elif operation == TIME_MICROS:
        if not _number(c, 64, &number):
            return False
        return True if 0 <= number < <int64_t>DAY_MS * 1000 else _wrong_at(c, TIME, before)
    return _decimal(c, at)


cdef bint _check(Payload *c, const Walk *w, const Span *s, bint of_keys, Py_ssize_t width) noexcept nogil:
    """Whether the last record's payload is what the program says."""
    cdef Py_ssize_t prefix = 0 if w.found > 0 else 1 + width
    c.p = w.p + (s.key if of_keys else s.value) + prefix
    c.position = 0
    c.end = (s.key_size if of_keys else s.value_size) - prefix
    c.empty = 0
    c.code = 0
    c.trail = 0
    if not _value(c, c.words[0], 0):
        return False
    if c.position != c.end:
        return _wrong(c, LEFT_OVER)
    return True


cdef struct Programs:
    const uint8_t *ids
    Py_ssize_t ids_size
    const uint8_t *guids
    Py_ssize_t guids_size
    const int32_t **words  # of each id, then of each GUID


cdef int64_t _first_unfit(
    Walk *w, Payload *c, Programs *t, bint of_keys, int64_t index, int64_t count, Py_ssize_t *place, Py_ssize_t *width
) noexcept nogil:
    """The first record from ``index`` on that is not of its schema; ``count`` if there is none, -1 if one is broken."""
    cdef Span s
    cdef Py_ssize_t row, last = 0, last_width = -1
    while index < count:
        if not _next(w, &s):
            return -1
        width[0] = _schema_id(w, &s, of_keys, place)
        if width[0] >= 0:
            if not (width[0] == last_width and memcmp(w.p + last, w.p + place[0], <size_t>width[0]) == 0):
                row = -1
                if width[0] == 4:
                    row = _row_of(t.ids, t.ids_size, 4, w.p + place[0])
                elif width[0] == 16:
                    row = _row_of(t.guids, t.guids_size, 16, w.p + place[0])
                    if row >= 0:
                        row += t.ids_size // 4
                c.code = UNKNOWN
                c.position = 0
                c.trail = 0
                if row < 0:
                    return index
                c.words = t.words[row]
                last, last_width = place[0], width[0]
            if not _check(c, w, &s, of_keys, width[0]):
                return index
        index += 1
    return count


cdef object _row(const Walk *w, const Payload *c, int64_t index, Py_ssize_t place, Py_ssize_t width):
    cdef int n
    trail = tuple([(c.places[n], c.fields[n]) for n in range(c.trail)])
    return Unfit(index, PyBytes_FromStringAndSize(<const char *>w.p + place, width), c.code, c.position, trail)


def unfit(
    payload, header, bytes name not None, bint of_keys, bytes ids not None, bytes guids not None,
    tuple programs not None, int64_t most,
):
    cdef Py_buffer view
    cdef Walk w
    cdef Payload c
    cdef Programs t
    cdef int64_t count = max(0, header.record_count), index = 0
    cdef Py_ssize_t place = 0, width = 0, row
    cdef list wrong = []
    t.ids, t.ids_size, t.guids, t.guids_size = ids, len(ids), guids, len(guids)
    if len(programs) != t.ids_size // 4 + t.guids_size // 16:
        raise ValueError("there is a program for each id")
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    t.words = <const int32_t **>malloc(<size_t>(len(programs) + 1) * sizeof(void *))
    try:
        if t.words == NULL:
            raise MemoryError()
        for row in range(len(programs)):
            t.words[row] = <const int32_t *>PyBytes_AS_STRING(<bytes?>programs[row])
        _begin(&w, &view, header, name)
        if count > view.len // 7:
            validate_records(payload, header)
        while len(wrong) < most:
            if view.len < RELEASE_GIL_FROM:
                index = _first_unfit(&w, &c, &t, of_keys, index, count, &place, &width)
            else:
                with nogil:
                    index = _first_unfit(&w, &c, &t, of_keys, index, count, &place, &width)
            if index < 0 or index == count:
                break
            wrong.append(_row(&w, &c, index, place, width))
            index += 1
        if index < 0 or index == count:
            _check_end(&w, index >= 0, payload, header)
        return wrong
    finally:
        free(t.words)
        PyBuffer_Release(&view)
