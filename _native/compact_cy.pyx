# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The fast twin of ``compact_py``: same functions, results and errors. Records are walked without the GIL."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

cimport cython

from fleetlog._native.batch import validate_records
from fleetlog._native.compact_py import Gathered, Kept, PagePositions
from fleetlog._native.errors import CorruptBatch

include "varints.pxi"

SLOT_BYTES = 24
PAGE_BITS = 12
cdef enum:
    PAGE_SHIFT = 12
    PAGE_BYTES = 512

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    #include <string.h>

    typedef struct { uint64_t first, second, offset; } fl_slot;

    #define FL_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
    #define FL_ROUND \
        v0 += v1; v1 = FL_ROTL(v1, 13); v1 ^= v0; v0 = FL_ROTL(v0, 32); \
        v2 += v3; v3 = FL_ROTL(v3, 16); v3 ^= v2; \
        v0 += v3; v3 = FL_ROTL(v3, 21); v3 ^= v0; \
        v2 += v1; v1 = FL_ROTL(v1, 17); v1 ^= v2; v2 = FL_ROTL(v2, 32);

    static inline uint64_t fl_word(const uint8_t *p) {
        return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24
            | (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 | (uint64_t)p[7] << 56;
    }

    static void fl_siphash(uint64_t k0, uint64_t k1, const uint8_t *p, size_t n, uint64_t *first, uint64_t *second) {
        uint64_t v0 = k0 ^ 0x736F6D6570736575ull, v1 = k1 ^ 0x646F72616E646F6Dull ^ 0xEE;
        uint64_t v2 = k0 ^ 0x6C7967656E657261ull, v3 = k1 ^ 0x7465646279746573ull;
        uint64_t last = (uint64_t)(n & 0xFF) << 56;
        const uint8_t *whole = p + (n - n % 8);
        for (; p < whole; p += 8) {
            uint64_t word = fl_word(p);
            v3 ^= word;
            FL_ROUND FL_ROUND
            v0 ^= word;
        }
        for (size_t i = 0; i < n % 8; i++) last |= (uint64_t)p[i] << (8 * i);
        v3 ^= last;
        FL_ROUND FL_ROUND
        v0 ^= last;
        v2 ^= 0xEE;
        FL_ROUND FL_ROUND FL_ROUND FL_ROUND
        *first = v0 ^ v1 ^ v2 ^ v3;
        v1 ^= 0xDD;
        FL_ROUND FL_ROUND FL_ROUND FL_ROUND
        *second = v0 ^ v1 ^ v2 ^ v3;
    }

    static inline int fl_subs_over(int64_t a, int64_t b, int64_t *d) { return __builtin_sub_overflow(a, b, d); }
    """
    ctypedef struct Slot "fl_slot":
        uint64_t first
        uint64_t second
        uint64_t offset
    uint64_t fl_word(const uint8_t *p) noexcept nogil
    void fl_siphash(
        uint64_t k0, uint64_t k1, const uint8_t *p, size_t n, uint64_t *first, uint64_t *second
    ) noexcept nogil
    bint fl_subs_over(int64_t a, int64_t b, int64_t *difference) noexcept nogil


cdef tuple _secret_halves(bytes secret):
    if len(secret) != 16:
        raise ValueError(f"a secret of {len(secret)} bytes, where 16 are needed")
    cdef const uint8_t *p = secret
    return fl_word(p), fl_word(p + 8)


def siphash128(secret, data):
    cdef Py_buffer view
    cdef uint64_t first = 0, second = 0, k0, k1
    k0, k1 = _secret_halves(bytes(secret))
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        fl_siphash(k0, k1, <const uint8_t *>view.buf, <size_t>view.len, &first, &second)
        return first, second
    finally:
        PyBuffer_Release(&view)


@cython.final
cdef class KeyMap:
    """The specification's map, its block outside of Python's memory: pages that no key reached are never touched."""

    cdef Slot *block
    cdef uint64_t k0, k1
    cdef readonly int64_t slots
    cdef readonly int64_t limit
    cdef int64_t used

    def __cinit__(self, slots, limit, secret):
        if not 0 < limit < slots or slots > INT64_MAX // SLOT_BYTES:
            raise ValueError(f"{limit} keys in {slots} slots")
        self.k0, self.k1 = _secret_halves(bytes(secret))
        self.slots = slots
        self.limit = limit
        self.used = 0
        self.block = <Slot *>calloc(<size_t>self.slots, sizeof(Slot))
        if self.block == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.block)

    def __len__(self):
        return self.used

    def put(self, key, int64_t offset):
        cdef Py_buffer view
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        try:
            return bool(_put(self, <const uint8_t *>view.buf, view.len, offset))
        finally:
            PyBuffer_Release(&view)

    def get(self, key):
        cdef Py_buffer view
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        try:
            return _get(self, <const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)


cdef inline Slot *_slot(
    KeyMap keys, const uint8_t *key, Py_ssize_t size, uint64_t *first, uint64_t *second
) noexcept nogil:
    """The key's slot, or the empty one where it belongs: there always is one, as ``limit`` is below ``slots``."""
    cdef Slot *end = keys.block + keys.slots
    cdef Slot *at
    fl_siphash(keys.k0, keys.k1, key, <size_t>size, first, second)
    at = keys.block + first[0] % <uint64_t>keys.slots
    while at.offset and not (at.first == first[0] and at.second == second[0]):
        at += 1
        if at == end:
            at = keys.block
    return at


cdef inline bint _put(KeyMap keys, const uint8_t *key, Py_ssize_t size, int64_t offset) noexcept nogil:
    cdef uint64_t first = 0, second = 0
    cdef Slot *at = _slot(keys, key, size, &first, &second)
    if not at.offset:
        if keys.used >= keys.limit:
            return False
        keys.used += 1
        at.first = first
        at.second = second
    if <uint64_t>offset + 1 > at.offset:
        at.offset = <uint64_t>offset + 1
    return True


cdef inline int64_t _get(KeyMap keys, const uint8_t *key, Py_ssize_t size) noexcept nogil:
    cdef uint64_t first = 0, second = 0
    return <int64_t>(_slot(keys, key, size, &first, &second).offset) - 1


# ---- records


include "walk.pxi"


def collect_keys(payload, header, KeyMap keys not None, int64_t start):
    cdef Py_buffer view
    cdef Walk w
    cdef Span s
    cdef int64_t count = max(0, header.record_count), full = -1, _n
    cdef bint sound = True
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _begin(&w, &view, header)
        if count > view.len // 7:
            validate_records(payload, header)
        with nogil:
            for _n in range(count):
                sound = _next(&w, &s)
                if not sound:
                    break
                if full < 0 and s.offset >= start and s.key_size >= 0:
                    if not _put(keys, w.p + s.key, s.key_size, s.offset):
                        full = s.offset
        _check_end(&w, sound, payload, header)
        return full
    finally:
        PyBuffer_Release(&view)


def record_keys(payload, header, int64_t start, Py_ssize_t most):
    cdef Py_buffer view
    cdef Walk w
    cdef Span s
    cdef int64_t count = max(0, header.record_count), _n
    cdef bint sound = True
    cdef list keys = []
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _begin(&w, &view, header)
        if count > view.len // 7:
            validate_records(payload, header)
        for _n in range(count):
            sound = _next(&w, &s)
            if not sound:
                break
            if s.offset >= start and len(keys) < most:
                keys.append((s.offset, None if s.key_size < 0 else (<const char *>w.p)[s.key:s.key + s.key_size]))
        _check_end(&w, sound, payload, header)
        return keys
    finally:
        PyBuffer_Release(&view)


def header_values(payload, header, str name):
    cdef Py_buffer view
    cdef Walk w
    cdef Span s
    cdef int64_t count = max(0, header.record_count), _n
    cdef bint sound = True
    cdef list values = []
    cdef bytes wanted = name.encode("ascii")
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _begin(&w, &view, header, wanted)
        if count > view.len // 7:
            validate_records(payload, header)
        for _n in range(count):
            sound = _next(&w, &s)
            if not sound:
                break
            if w.found:
                value = None if w.value_size < 0 else (<const char *>w.p)[w.value:w.value + w.value_size]
                values.append((s.offset, value))
        _check_end(&w, sound, payload, header)
        return values
    finally:
        PyBuffer_Release(&view)


cdef struct Choice:
    int64_t count
    int64_t largest
    int64_t nearest  # the smallest timestamp
    bint tombstone
    Py_ssize_t size  # bytes of the kept records as they are


cdef bint _choose(
    Walk *w, KeyMap keys, int64_t count, int64_t end, bint gone, uint8_t *kept, Choice *c
) noexcept nogil:
    cdef Span s
    cdef int64_t n
    cdef bint stays
    for n in range(count):
        if not _next(w, &s):
            return False
        stays = s.offset >= end or (
            s.key_size >= 0 and _get(keys, w.p + s.key, s.key_size) <= s.offset and (s.has_value or not gone)
        )
        kept[n] = stays
        if not stays:
            continue
        if not c.count or s.timestamp > c.largest:
            c.largest = s.timestamp
        if not c.count or s.timestamp < c.nearest:
            c.nearest = s.timestamp
        c.count += 1
        c.size += s.end - s.start
        if not s.has_value:
            c.tombstone = True
    return True


cdef Py_ssize_t _copy(
    Walk *w, int64_t count, const uint8_t *kept, uint8_t *out, bint moved, int64_t base
) noexcept nogil:
    """Write the kept records; with ``moved`` their timestamps are written against ``base``. Returns the bytes."""
    cdef Span s
    cdef uint8_t *to = out
    cdef uint64_t shift
    cdef int64_t n
    cdef Py_ssize_t rest
    for n in range(count):
        _next(w, &s)
        if not kept[n]:
            continue
        if not moved:
            memcpy(to, w.p + s.start, <size_t>(s.end - s.start))
            to += s.end - s.start
            continue
        shift = _zigzag(<int64_t>(<uint64_t>s.timestamp - <uint64_t>base))
        rest = s.end - s.rest
        to = _put_varint(to, _zigzag(1 + _varint_size(shift) + rest))
        to[0] = w.p[s.body]
        to = _put_varint(to + 1, shift)
        memcpy(to, w.p + s.rest, <size_t>rest)
        to += rest
    return to - out


def keep_records(payload, header, KeyMap keys not None, int64_t end, bint tombstones_gone, int64_t horizon):
    cdef Py_buffer view
    cdef Walk w
    cdef Choice c
    cdef int64_t count = max(0, header.record_count), base = header.base_timestamp, far = 0, near = 0
    cdef bint sound = True, moved = False
    cdef uint8_t *kept = NULL
    cdef uint8_t *out = NULL
    cdef Py_ssize_t size
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        if count > view.len // 7:
            validate_records(payload, header)
        kept = <uint8_t *>malloc(<size_t>max(count, 1))
        if kept == NULL:
            raise MemoryError()
        c.count = 0
        c.largest = c.nearest = 0
        c.tombstone = False
        c.size = 0
        _begin(&w, &view, header)
        with nogil:
            sound = _choose(&w, keys, count, end, tombstones_gone, kept, &c)
        _check_end(&w, sound, payload, header)
        if horizon >= 0 and c.tombstone:
            moved = not fl_subs_over(c.largest, horizon, &far) and not fl_subs_over(c.nearest, horizon, &near)
        if moved and horizon == base:
            moved = False
        if c.count == count and not moved:
            return Kept(None, c.count, base, header.max_timestamp)
        size = c.size + (c.count * 15 if moved else 0)  # a length of five bytes and a timestamp of ten
        out = <uint8_t *>malloc(<size_t>max(size, 1))
        if out == NULL:
            raise MemoryError()
        _begin(&w, &view, header)
        with nogil:
            size = _copy(&w, count, kept, out, moved, horizon)
        largest = c.largest if c.count and not header.is_log_append_time else header.max_timestamp
        return Kept(PyBytes_FromStringAndSize(<char *>out, size), c.count, horizon if moved else base, largest)
    finally:
        free(kept)
        free(out)
        PyBuffer_Release(&view)


# ---- positions of deduplicating topics


cdef inline int64_t _digits(const uint8_t *p, Py_ssize_t *end, int most) noexcept nogil:
    """The number that the digits before ``end`` say, which moves to the first; -1 for none, or more than ``most``."""
    cdef uint64_t value = 0, unit = 1
    cdef Py_ssize_t at = end[0]
    while at and 48 <= p[at - 1] <= 57:
        if end[0] - at == most:
            return -1
        at -= 1
        value += (p[at] - 48) * unit  # 19 digits fit into 64 bits
        unit *= 10
    if at == end[0] or value > <uint64_t>INT64_MAX:
        return -1
    end[0] = at
    return <int64_t>value


cdef struct Place:
    Py_ssize_t source_size  # the source id stands where the value begins
    int64_t position
    int64_t ordinal


cdef bint _place(Walk *w, Place *place) noexcept nogil:
    """What the one header of the last record says; False if there is no such header, or it says no position."""
    cdef const uint8_t *p = w.p + w.value
    cdef Py_ssize_t at = <Py_ssize_t>w.value_size
    if w.found != 1 or at < 5:
        return False
    place.ordinal = _digits(p, &at, 10)
    if place.ordinal < 0 or place.ordinal > INT32_MAX or not at or p[at - 1] != 58:
        return False
    at -= 1
    place.position = _digits(p, &at, 19)
    if place.position < 0 or place.position > INT64_MAX - 4096 or not at or p[at - 1] != 58:
        return False
    place.source_size = at - 1
    return 1 <= place.source_size <= 255


def read_positions(payload, header, bytes name not None):
    cdef Py_buffer view
    cdef Walk w
    cdef Span s
    cdef Place place
    cdef int64_t count = max(0, header.record_count), _n
    cdef bint sound = True
    cdef list found = []
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _begin(&w, &view, header, name)
        if count > view.len // 7:
            validate_records(payload, header)
        for _n in range(count):
            sound = _next(&w, &s)
            if not sound:
                break
            if not _place(&w, &place):
                found.append(None)
                continue
            source = PyBytes_FromStringAndSize(<const char *>w.p + w.value, place.source_size)
            found.append((source, place.position, place.ordinal))
        _check_end(&w, sound, payload, header)
        return found
    finally:
        PyBuffer_Release(&view)


def page_positions(positions):
    cdef dict pages = {}
    cdef int64_t position, ordinal, place
    cdef bytearray bits
    cdef set more
    for source, position, ordinal in positions:
        key = (source, position >> PAGE_SHIFT)
        found = pages.get(key)
        if found is None:
            found = pages[key] = (bytearray(PAGE_BYTES), set())
        bits, more = found
        place = position & ((1 << PAGE_SHIFT) - 1)
        if ordinal:
            more.add((place, ordinal))
        else:
            bits[place >> 3] |= <uint8_t>(1 << (place & 7))
    return [
        PagePositions(source, number, int.from_bytes(bits, "little"), frozenset(more))
        for (source, number), (bits, more) in pages.items()
    ]


cdef struct Page:
    Py_ssize_t source  # where its id stands in the payload
    Py_ssize_t source_size
    int64_t number
    uint8_t bits[PAGE_BYTES]


cdef struct Pages:
    Page *all
    Py_ssize_t used
    Py_ssize_t room
    Py_ssize_t most
    Py_ssize_t last  # the page of the record before


cdef Py_ssize_t _page_of(Pages *pages, const uint8_t *p, Py_ssize_t at, Place *place) except -2:
    """The index of the position's page, a new one if need be; -1 if there are too many."""
    cdef int64_t number = place.position >> PAGE_SHIFT
    cdef Py_ssize_t index = pages.last, _n
    cdef Page *page
    cdef Page *grown
    for _n in range(pages.used):
        page = &pages.all[index]
        if (
            page.number == number
            and page.source_size == place.source_size
            and memcmp(p + page.source, p + at, <size_t>place.source_size) == 0
        ):
            pages.last = index
            return index
        index = index + 1 if index + 1 < pages.used else 0
    if pages.used == pages.most:
        return -1
    if pages.used == pages.room:
        grown = <Page *>realloc(pages.all, <size_t>max(2, 2 * pages.room) * sizeof(Page))
        if grown == NULL:
            raise MemoryError()
        pages.all = grown
        pages.room = max(2, 2 * pages.room)
    page = &pages.all[pages.used]
    page.source = at
    page.source_size = place.source_size
    page.number = number
    memset(page.bits, 0, PAGE_BYTES)
    pages.last = pages.used
    pages.used += 1
    return pages.last


cdef bint _add_place(Pages *pages, const uint8_t *p, Py_ssize_t at, Place *place, dict more) except -1:
    """Note a position; False if it is there already, or if there are too many pages."""
    cdef Py_ssize_t index = _page_of(pages, p, at, place)
    cdef int64_t bit = place.position & ((1 << PAGE_SHIFT) - 1)
    cdef uint8_t *byte
    cdef set others
    if index < 0:
        return False
    if place.ordinal:
        others = more.setdefault(index, set())
        index = len(others)
        others.add((bit, place.ordinal))
        return len(others) > index
    byte = &pages.all[index].bits[bit >> 3]
    if byte[0] >> (bit & 7) & 1:
        return False
    byte[0] |= <uint8_t>(1 << (bit & 7))
    return True


cdef list _listed(Pages *pages, const uint8_t *p, dict more):
    cdef list found = []
    cdef Page *page
    cdef Py_ssize_t index
    cdef bytes source = None
    for index in range(pages.used):
        page = &pages.all[index]
        if (
            source is None
            or len(source) != page.source_size
            or memcmp(<const uint8_t *>source, p + page.source, <size_t>page.source_size)
        ):
            source = PyBytes_FromStringAndSize(<const char *>p + page.source, page.source_size)
        bits = int.from_bytes(PyBytes_FromStringAndSize(<const char *>page.bits, PAGE_BYTES), "little")
        found.append(PagePositions(source, page.number, bits, frozenset(more.get(index, ()))))
    return found


def gather_positions(payload, header, bytes name not None, Py_ssize_t most):
    cdef Py_buffer view
    cdef Walk w
    cdef Span s
    cdef Place place
    cdef Pages pages = Pages(NULL, 0, 0, most, 0)
    cdef int64_t count = max(0, header.record_count), largest = -1, _n
    cdef bint sound = True, plain = True
    cdef dict more = {}
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _begin(&w, &view, header, name)
        if count > view.len // 7:
            validate_records(payload, header)
        for _n in range(count):
            sound = _next(&w, &s)
            if not sound:
                break
            if s.timestamp > largest:
                largest = s.timestamp
            plain = plain and _place(&w, &place) and _add_place(&pages, w.p, w.value, &place, more)
        _check_end(&w, sound, payload, header)
        return Gathered(_listed(&pages, w.p, more), largest) if plain else None
    finally:
        free(pages.all)
        PyBuffer_Release(&view)


def leave_out(payload, header, set gone not None):
    cdef Py_buffer view
    cdef Walk w
    cdef Span s
    cdef int64_t count = max(0, header.record_count), n, kept = 0, largest = 0
    cdef bint sound = True
    cdef bytearray out = bytearray()
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _begin(&w, &view, header)
        if count > view.len // 7:
            validate_records(payload, header)
        for n in range(count):
            sound = _next(&w, &s)
            if not sound:
                break
            if n in gone:
                continue
            if not kept or s.timestamp > largest:
                largest = s.timestamp
            kept += 1
            out += PyBytes_FromStringAndSize(<const char *>w.p + s.start, s.end - s.start)
        _check_end(&w, sound, payload, header)
        if not kept or header.is_log_append_time:
            largest = header.max_timestamp
        return Kept(bytes(out), kept, header.base_timestamp, largest)
    finally:
        PyBuffer_Release(&view)
