"""Big-endian numbers and a growing buffer: included by the kernels that write messages and batches."""

cdef inline uint16_t _u16(const uint8_t *p) noexcept nogil:
    return <uint16_t>((p[0] << 8) | p[1])


cdef inline uint32_t _u32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t _u64(const uint8_t *p) noexcept nogil:
    return (<uint64_t>_u32(p) << 32) | _u32(p + 4)


cdef inline void _put16(uint8_t *p, uint16_t v) noexcept nogil:
    p[0] = <uint8_t>(v >> 8)
    p[1] = <uint8_t>v


cdef inline void _put32(uint8_t *p, uint32_t v) noexcept nogil:
    p[0] = <uint8_t>(v >> 24)
    p[1] = <uint8_t>(v >> 16)
    p[2] = <uint8_t>(v >> 8)
    p[3] = <uint8_t>v


cdef inline void _put64(uint8_t *p, uint64_t v) noexcept nogil:
    _put32(p, <uint32_t>(v >> 32))
    _put32(p + 4, <uint32_t>v)


cdef struct Out:
    uint8_t *p
    Py_ssize_t used
    Py_ssize_t room


cdef inline int _need(Out *o, Py_ssize_t more) except -1:
    cdef Py_ssize_t room = o.room
    cdef void *grown
    if more <= room - o.used:
        return 0
    if more > <Py_ssize_t>(1 << 62) - o.used:
        raise MemoryError()
    while room < o.used + more:
        room = room * 2
    grown = PyMem_Realloc(o.p, <size_t>room)
    if grown == NULL:
        raise MemoryError()
    o.p = <uint8_t *>grown
    o.room = room
    return 0


cdef inline void _write_varint(Out *o, uint64_t v) noexcept nogil:
    o.used = _put_varint(o.p + o.used, v) - o.p
