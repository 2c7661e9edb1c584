"""Walking the records of a batch without the interpreter's lock: included by the kernels that look at whole batches.

A record that is not sound ends the walk; ``validate_records`` then says what is wrong with it. Include varints first.
"""

cdef extern from *:
    """
    #include <stdint.h>
    static inline int fl_adds_over(int64_t a, int64_t b, int64_t *sum) { return __builtin_add_overflow(a, b, sum); }
    """
    bint fl_adds_over(int64_t a, int64_t b, int64_t *total) noexcept nogil

cdef Py_ssize_t RELEASE_GIL_FROM = 256 * 1024


cdef struct Walk:
    const uint8_t *p
    Py_ssize_t size
    Py_ssize_t position
    int64_t base_offset
    int64_t base_timestamp
    int64_t previous
    int32_t last
    bint named  # a header's name has bytes that may be no UTF-8
    const uint8_t *wanted  # the name of a header that is looked for, ASCII, or NULL
    Py_ssize_t wanted_size
    int64_t found  # how many headers of the last record have that name
    Py_ssize_t value  # where the value of the last of them begins
    int64_t value_size


cdef struct Span:
    Py_ssize_t start
    Py_ssize_t body
    Py_ssize_t rest
    Py_ssize_t end
    Py_ssize_t key
    Py_ssize_t key_size
    bint has_value
    Py_ssize_t value
    Py_ssize_t value_size
    int64_t timestamp
    int64_t offset


cdef inline bint _signed(
    const uint8_t *p, Py_ssize_t *position, Py_ssize_t end, int bits, int64_t *value
) noexcept nogil:
    cdef uint64_t found = 0
    if _read_varint(p, position, end, bits, &found):
        return False
    value[0] = <int64_t>(found >> 1) ^ -<int64_t>(found & 1)
    return True


cdef inline bint _run(
    const uint8_t *p, Py_ssize_t *position, Py_ssize_t end, Py_ssize_t *start, int64_t *size
) noexcept nogil:
    if not _signed(p, position, end, 32, size):
        return False
    start[0] = position[0]
    if size[0] == -1:
        return True
    if size[0] < 0 or size[0] > end - position[0]:
        return False
    position[0] += <Py_ssize_t>size[0]
    return True


cdef bint _next(Walk *w, Span *s) noexcept nogil:
    """The next record; False if it isn't one."""
    cdef const uint8_t *p = w.p
    cdef Py_ssize_t at = w.position, stop, start = 0, i
    cdef int64_t length = 0, delta = 0, size = 0, names = 0, _n
    s.start = at
    if not _signed(p, &at, w.size, 32, &length) or length < 6 or length > w.size - at:
        return False
    s.body = at
    stop = at + <Py_ssize_t>length
    at += 1
    if not _signed(p, &at, stop, 64, &delta) or fl_adds_over(w.base_timestamp, delta, &s.timestamp):
        return False
    s.rest = at
    if not _signed(p, &at, stop, 32, &delta) or delta < 0 or delta > w.last or delta <= w.previous:
        return False
    w.previous = delta
    s.offset = w.base_offset + delta
    if not _run(p, &at, stop, &s.key, &size):
        return False
    s.key_size = <Py_ssize_t>size
    if not _run(p, &at, stop, &s.value, &size):
        return False
    s.has_value = size >= 0
    s.value_size = <Py_ssize_t>size
    if not _signed(p, &at, stop, 32, &names) or names < 0 or names > (stop - at) // 2:
        return False
    w.found = 0
    for _n in range(names):
        if not _run(p, &at, stop, &start, &size) or size < 0:
            return False
        if w.wanted != NULL and size == w.wanted_size and memcmp(p + start, w.wanted, <size_t>size) == 0:
            w.found += 1
            if not _run(p, &at, stop, &w.value, &w.value_size):
                return False
            continue
        for i in range(start, start + <Py_ssize_t>size):
            if p[i] >= 0x80:
                w.named = True
                break
        if not _run(p, &at, stop, &start, &size):
            return False
    s.end = stop
    w.position = stop
    return at == stop


cdef int _begin(Walk *w, Py_buffer *view, header, bytes wanted=None) except -1:
    w.p = <const uint8_t *>view.buf
    w.size = view.len
    w.position = 0
    w.base_offset = header.base_offset
    w.base_timestamp = header.base_timestamp
    w.previous = -1
    w.last = header.last_offset_delta
    w.named = False
    w.wanted = NULL
    w.wanted_size = 0
    if wanted is not None:
        w.wanted = wanted
        w.wanted_size = len(wanted)
    w.found = 0
    w.value = 0
    w.value_size = -1
    return 0


cdef int _check_end(Walk *w, bint sound, payload, header) except -1:
    """After a walk: raise what the specification raises for this payload, if it is not sound."""
    if not sound or w.position != w.size or w.named:
        validate_records(payload, header)
        if not sound or w.position != w.size:
            raise CorruptBatch("records that can't be read", w.position)
    return 0
