"""Reading from untrusted bytes: included by the kernels that walk records. Every read compares with the end."""

cdef extern from *:
    """
    #include <stdint.h>
    static inline int fl_add_overflows(int64_t a, int64_t b, int64_t *sum) { return __builtin_add_overflow(a, b, sum); }
    static inline int fl_sub_overflows(int64_t a, int64_t b, int64_t *d) { return __builtin_sub_overflow(a, b, d); }
    """
    bint fl_add_overflows(int64_t a, int64_t b, int64_t *total) noexcept nogil
    bint fl_sub_overflows(int64_t a, int64_t b, int64_t *difference) noexcept nogil

cdef Py_ssize_t MIN_RECORD = 7  # length, attributes, two deltas, key and value lengths, header count: a byte each


cdef struct Cursor:
    const uint8_t *p
    Py_ssize_t position
    Py_ssize_t end


cdef inline int64_t _varint(Cursor *c, int bits) except? -0x7FFFFFFFFFFFFFFE:
    """A zig-zag varint of at most ``bits`` bits (32 or 64). Most are a byte long: those are read in place."""
    cdef uint8_t byte
    if c.position < c.end:
        byte = c.p[c.position]
        if byte < 0x80:
            c.position += 1
            return (byte >> 1) ^ -<int64_t>(byte & 1)
    return _long_varint(c, bits)


cdef int64_t _long_varint(Cursor *c, int bits) except? -0x7FFFFFFFFFFFFFFE:
    cdef uint64_t value = 0
    cdef int wrong = _read_varint(c.p, &c.position, c.end, bits, &value)
    if wrong:
        raise CorruptBatch(VARINT_ERRORS[wrong], c.position)
    return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)


cdef inline Py_ssize_t _span(Cursor *c, Py_ssize_t *start) except -2:
    """Length of a nullable byte run (-1 for null); ``start`` is where it begins."""
    cdef int64_t length = _varint(c, 32)
    if length == -1:
        return -1
    if length < 0 or length > c.end - c.position:
        raise CorruptBatch(f"a length of {length} does not fit", c.position)
    start[0] = c.position
    c.position += <Py_ssize_t>length
    return <Py_ssize_t>length


cdef inline int _open(Cursor *c, const uint8_t *p, Py_ssize_t size, int64_t count) except -1:
    """Stand before the first of ``count`` records, if so many can be there."""
    if count > size // MIN_RECORD:
        raise CorruptBatch(f"{count} records cannot fit into {size} bytes", 0)
    c.p = p
    c.position = 0
    c.end = size
    return 0


cdef inline Py_ssize_t _begin(Cursor *c) except -1:
    """Enter a record: read length and attributes, bound the cursor to it, return where it ends."""
    cdef int64_t length = _varint(c, 32)
    cdef Py_ssize_t stop
    if length < MIN_RECORD - 1 or length > c.end - c.position:
        raise CorruptBatch(f"a record of {length} bytes does not fit", c.position)
    stop = c.position + <Py_ssize_t>length
    c.end = stop
    c.position += 1
    return stop


cdef inline int64_t _timestamp(Cursor *c, int64_t base) except? -0x7FFFFFFFFFFFFFFD:
    cdef int64_t found = 0
    if fl_add_overflows(base, _varint(c, 64), &found):
        raise CorruptBatch("a timestamp does not fit into 64 bits", c.position)
    return found


cdef inline int64_t _delta(Cursor *c, int32_t last) except -1:
    cdef int64_t delta = _varint(c, 32)
    if delta < 0 or delta > last:
        raise CorruptBatch(f"offset delta {delta} is outside 0..{last}", c.position)
    return delta


cdef inline int64_t _headers(Cursor *c, Py_ssize_t stop) except -1:
    cdef int64_t count = _varint(c, 32)
    if count < 0 or count > (stop - c.position) // 2:
        raise CorruptBatch(f"{count} headers cannot fit", c.position)
    return count


cdef inline int _end(Cursor *c, Py_ssize_t stop, Py_ssize_t end) except -1:
    """Leave a record; ``end`` is the payload's."""
    if c.position != stop:
        raise CorruptBatch(f"{stop - c.position} bytes are left over in a record", c.position)
    c.end = end
    return 0


cdef inline int _end_payload(Cursor *c) except -1:
    if c.position != c.end:
        raise CorruptBatch(f"{c.end - c.position} bytes are left over after the records", c.position)
    return 0


cdef int _check_name(const uint8_t *p, Py_ssize_t start, Py_ssize_t length) except -1:
    cdef Py_ssize_t i
    for i in range(start, start + length):
        if p[i] >= 0x80:
            try:
                (<const char *>p)[start:start + length].decode("utf-8")
            except UnicodeDecodeError:
                raise CorruptBatch("a header name is not UTF-8", start) from None
            return 0
    return 0
