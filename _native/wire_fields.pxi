"""The fields of Kafka's messages, read and written one by one, for ``wire_cy``; its twin uses ``wire_fields``."""

cdef object UUID = uuid.UUID
cdef object UNKNOWN_SAFETY = uuid.SafeUUID.unknown
cdef object new_object = object.__new__
cdef object int_of = int.from_bytes
cdef bytes NO_ID = b"\0" * 16
cdef uint32_t TAGS_MAX = MAX_TAGS
cdef Py_ssize_t MAX_STRING = 0x7FFF

# Making a UUID costs more than the rest of a partition; a broker sees the same few again and again.
cdef dict known_ids = {}
cdef Py_ssize_t KNOWN_IDS_MAX = 4096


cdef struct Reader:
    const uint8_t *p
    Py_ssize_t pos
    Py_ssize_t end
    int64_t budget
    bint replaced  # a string was not UTF-8


cdef inline const uint8_t *_take(Reader *r, int64_t size) except? NULL:
    if size < 0 or size > r.end - r.pos:
        raise MalformedMessage(f"needs {size} bytes at {r.pos}, has {r.end - r.pos}")
    r.pos += <Py_ssize_t>size
    return r.p + r.pos - size


cdef inline int64_t _uvarint(Reader *r) except -1:
    cdef uint64_t value = 0
    cdef int wrong = _read_varint(r.p, &r.pos, r.end, 32, &value)
    if wrong:
        raise MalformedMessage(VARINT_ERRORS[wrong])
    return <int64_t>value


cdef inline int _spend(Reader *r, int64_t objects) except -1:
    r.budget -= objects
    if r.budget < 0:
        raise MalformedMessage("decodes into too many objects")
    return 0


cdef object _string(Reader *r, bint flexible):
    cdef int64_t length
    cdef const uint8_t *at
    if flexible:
        length = _uvarint(r) - 1
    else:
        length = <int16_t>_u16(_take(r, 2))
    if length == -1:
        return None
    if length < 0 or length > MAX_STRING:
        raise MalformedMessage(f"a string of {length} bytes")
    return _text(r, _take(r, length), <Py_ssize_t>length)


cdef object _text(Reader *r, const uint8_t *at, Py_ssize_t size):
    try:
        return PyUnicode_DecodeUTF8(<char *>at, size, NULL)
    except UnicodeDecodeError:
        r.replaced = True
        return ReplacedText(PyUnicode_DecodeUTF8(<char *>at, size, "replace"))


cdef object _whole(Reader *r, object message):
    """The message; raises LooseMessage with it, if strings are not UTF-8 or bytes are left over."""
    if r.replaced:
        raise LooseMessage("a string is not UTF-8", message)
    if r.pos != r.end:
        raise LooseMessage(f"{r.end - r.pos} bytes left over", message)
    return message


cdef object _name(Reader *r, bint flexible):
    value = _string(r, flexible)
    if value is None:
        raise MalformedMessage("a name must not be null")
    return value


cdef int64_t _count(Reader *r, bint flexible, Py_ssize_t smallest) except -1:
    cdef int64_t count
    if flexible:
        count = _uvarint(r) - 1
    else:
        count = <int32_t>_u32(_take(r, 4))
    if count < 0:
        raise MalformedMessage("an array must not be null")
    if count > (r.end - r.pos) // smallest:
        raise MalformedMessage(f"an array claims {count} elements in {r.end - r.pos} bytes")
    _spend(r, count)
    return count


cdef int64_t _nullable_count(Reader *r, Py_ssize_t smallest) except -1:
    cdef int64_t count = _uvarint(r) - 1
    if count > (r.end - r.pos) // smallest:
        raise MalformedMessage(f"an array claims {count} elements in {r.end - r.pos} bytes")
    if count < 0:
        count = 0
    _spend(r, count)
    return count


cdef object _new_id(bytes raw):
    """A UUID without its constructor, which is Python and costs ten times as much."""
    found = new_object(UUID)
    PyObject_GenericSetAttr(found, "int", int_of(raw, "big"))
    PyObject_GenericSetAttr(found, "is_safe", UNKNOWN_SAFETY)
    return found


cdef object _topic_id(Reader *r):
    cdef const uint8_t *at = _take(r, 16)
    cdef bytes raw = PyBytes_FromStringAndSize(<const char *>at, 16)
    found = known_ids.get(raw)
    if found is None:
        found = _new_id(raw)
        if len(known_ids) >= KNOWN_IDS_MAX:
            known_ids.clear()
        known_ids[raw] = found
    return found


cdef int64_t _tag_count(Reader *r) except -1:
    cdef int64_t count = _uvarint(r)
    if count > TAGS_MAX:
        raise MalformedMessage(f"{count} tagged fields")
    _spend(r, count)
    return count


cdef int64_t _enter_tag(Reader *r) except -1:
    """Bound the reader to the next tagged field and return its tag."""
    cdef int64_t tag = _uvarint(r)
    cdef int64_t size = _uvarint(r)
    _take(r, size)
    r.end = r.pos
    r.pos -= <Py_ssize_t>size
    return tag


cdef inline void _leave_tag(Reader *r, Py_ssize_t outer) noexcept:
    r.pos = r.end
    r.end = outer


cdef int _skip_tags(Reader *r) except -1:
    cdef int64_t _n
    cdef Py_ssize_t outer = r.end
    for _n in range(_tag_count(r)):
        _enter_tag(r)
        _leave_tag(r, outer)
    return 0


cdef inline int _finish(Reader *r) except -1:
    if r.pos != r.end:
        raise MalformedMessage(f"{r.end - r.pos} bytes left over")
    return 0


cdef int _open(Out *o, Py_ssize_t room) except -1:
    o.used = 0
    o.room = room
    o.p = <uint8_t *>PyMem_Malloc(<size_t>room)
    if o.p == NULL:
        raise MemoryError()
    return 0


cdef inline int _add8(Out *o, uint8_t v) except -1:
    _need(o, 1)
    o.p[o.used] = v
    o.used += 1
    return 0


cdef inline int _add16(Out *o, int16_t v) except -1:
    _need(o, 2)
    _put16(o.p + o.used, <uint16_t>v)
    o.used += 2
    return 0


cdef inline int _add32(Out *o, int32_t v) except -1:
    _need(o, 4)
    _put32(o.p + o.used, <uint32_t>v)
    o.used += 4
    return 0


cdef inline int _add64(Out *o, int64_t v) except -1:
    _need(o, 8)
    _put64(o.p + o.used, <uint64_t>v)
    o.used += 8
    return 0


cdef inline int _add_raw(Out *o, const char *p, Py_ssize_t n) except -1:
    _need(o, n)
    memcpy(o.p + o.used, p, <size_t>n)
    o.used += n
    return 0


cdef inline int _add_uvarint(Out *o, uint64_t v) except -1:
    _need(o, 10)
    _write_varint(o, v)
    return 0


cdef inline int _add_count(Out *o, Py_ssize_t count, bint flexible) except -1:
    if flexible:
        return _add_uvarint(o, <uint64_t>(count + 1))
    return _add32(o, <int32_t>count)


cdef int _add_string(Out *o, object value, bint flexible) except -1:
    cdef Py_ssize_t size = -1
    cdef const char *p = NULL
    if value is not None:
        p = PyUnicode_AsUTF8AndSize(value, &size)
    if flexible:
        _add_uvarint(o, <uint64_t>(size + 1))
    else:
        _add16(o, <int16_t>size)
    if size > 0:
        _add_raw(o, p, size)
    return 0


cdef int _add_id(Out *o, object topic_id) except -1:
    cdef bytes raw = NO_ID if topic_id is None else topic_id.bytes
    return _add_raw(o, PyBytes_AS_STRING(raw), 16)
