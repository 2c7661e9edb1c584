"""The one varint of the compiled kernels, read and written; its twin is in ``byte_reader``. Include it first."""

cdef tuple VARINT_ERRORS = ("", "a varint is cut off", "a varint is too long", "a varint is too large")
cdef enum:
    CUT_OFF = 1
    TOO_LONG = 2
    TOO_LARGE = 3


cdef inline int _read_varint(
    const uint8_t *p, Py_ssize_t *position, Py_ssize_t end, int bits, uint64_t *value
) noexcept nogil:
    """Read an unsigned varint of at most ``bits`` bits (32 or 64); 0, or which of ``VARINT_ERRORS`` is wrong."""
    cdef uint64_t found = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        if position[0] >= end:
            return CUT_OFF
        byte = p[position[0]]
        position[0] += 1
        if shift == 63 and (byte & 0x7E) and byte < 0x80:
            return TOO_LARGE
        found |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            return TOO_LONG
    if bits == 32 and found >> 32:
        return TOO_LARGE
    value[0] = found
    return 0


cdef inline uint8_t *_put_varint(uint8_t *p, uint64_t v) noexcept nogil:
    """Write an unsigned varint; returns where it ends."""
    while v > 0x7F:
        p[0] = <uint8_t>((v & 0x7F) | 0x80)
        p += 1
        v >>= 7
    p[0] = <uint8_t>v
    return p + 1


cdef inline int _varint_size(uint64_t v) noexcept nogil:
    cdef int n = 1
    while v > 0x7F:
        v >>= 7
        n += 1
    return n


cdef inline uint64_t _zigzag(int64_t v) noexcept nogil:
    return (<uint64_t>v << 1) ^ <uint64_t>(v >> 63)
