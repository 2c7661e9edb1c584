# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The fast twin of ``batch_py``: same functions, results and errors. Bounds are checked by hand, in every read."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cimport cython

from fleetlog._native.batch_py import Admitted
from fleetlog._native.batch_py import BatchHeader as HeaderTuple
from fleetlog._native.batch_py import Record
from fleetlog._native.errors import CorruptBatch

include "varints.pxi"
include "bytes.pxi"
include "named.pxi"
include "records.pxi"

HEADER_SIZE = 61
cdef tuple HEADER_FIELDS = HeaderTuple._fields

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    #include <string.h>

    static uint32_t fl_table[8][256];
    static int fl_hardware = 0;

    /* The instruction takes three cycles but starts every cycle: so three stretches at once, joined by linearity. A
       checksum moves over N zero bytes by a fixed linear map, kept as four tables of 256 for each of two N. */
    enum { FL_SHORT = 256, FL_LONG = 4096 };
    static uint32_t fl_short[4][256], fl_long[4][256];

    static void fl_shift_setup(uint32_t table[4][256], size_t zeros) {
        uint32_t bit[32];
        for (int b = 0; b < 32; b++) {
            uint32_t c = (uint32_t)1 << b;
            for (size_t n = 0; n < zeros; n++) c = (c >> 8) ^ fl_table[0][c & 0xFF];
            bit[b] = c;
        }
        for (int k = 0; k < 4; k++)
            for (uint32_t v = 0; v < 256; v++) {
                uint32_t c = 0;
                for (int b = 0; b < 8; b++) if (v >> b & 1) c ^= bit[8 * k + b];
                table[k][v] = c;
            }
    }

    static inline uint32_t fl_shift(uint32_t table[4][256], uint32_t c) {
        return table[0][c & 0xFF] ^ table[1][(c >> 8) & 0xFF] ^ table[2][(c >> 16) & 0xFF] ^ table[3][c >> 24];
    }

    static void fl_crc_setup(void) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t c = n;
            for (int k = 0; k < 8; k++) c = (c & 1) ? (c >> 1) ^ 0x82F63B78u : c >> 1;
            fl_table[0][n] = c;
        }
        for (uint32_t n = 0; n < 256; n++)
            for (int k = 1; k < 8; k++)
                fl_table[k][n] = (fl_table[k - 1][n] >> 8) ^ fl_table[0][fl_table[k - 1][n] & 0xFF];
    #if defined(__x86_64__)
        __builtin_cpu_init();
        fl_hardware = __builtin_cpu_supports("sse4.2") != 0;
        fl_shift_setup(fl_short, FL_SHORT);
        fl_shift_setup(fl_long, FL_LONG);
    #endif
    }

    static uint32_t fl_crc_software(uint32_t crc, const uint8_t *p, size_t n) {
        while (n >= 8) {
            uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
            crc = fl_table[7][low & 0xFF] ^ fl_table[6][(low >> 8) & 0xFF] ^ fl_table[5][(low >> 16) & 0xFF]
                ^ fl_table[4][low >> 24] ^ fl_table[3][p[4]] ^ fl_table[2][p[5]] ^ fl_table[1][p[6]]
                ^ fl_table[0][p[7]];
            p += 8;
            n -= 8;
        }
        while (n--) crc = (crc >> 8) ^ fl_table[0][(crc ^ *p++) & 0xFF];
        return crc;
    }

    #if defined(__x86_64__)
    __attribute__((target("sse4.2")))
    static inline uint32_t fl_three(uint32_t crc, const uint8_t *p, size_t stretch, uint32_t table[4][256]) {
        uint64_t a = crc, b = 0, c = 0, x, y, z;
        for (const uint8_t *end = p + stretch; p < end; p += 8) {
            memcpy(&x, p, 8);
            memcpy(&y, p + stretch, 8);
            memcpy(&z, p + 2 * stretch, 8);
            a = __builtin_ia32_crc32di(a, x);
            b = __builtin_ia32_crc32di(b, y);
            c = __builtin_ia32_crc32di(c, z);
        }
        return fl_shift(table, fl_shift(table, (uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
    }

    __attribute__((target("sse4.2")))
    static uint32_t fl_crc_hardware(uint32_t crc, const uint8_t *p, size_t n) {
        uint64_t c;
        for (; n >= 3 * FL_LONG; p += 3 * FL_LONG, n -= 3 * FL_LONG) crc = fl_three(crc, p, FL_LONG, fl_long);
        for (; n >= 3 * FL_SHORT; p += 3 * FL_SHORT, n -= 3 * FL_SHORT) crc = fl_three(crc, p, FL_SHORT, fl_short);
        c = crc;
        while (n >= 8) {
            uint64_t word;
            memcpy(&word, p, 8);
            c = __builtin_ia32_crc32di(c, word);
            p += 8;
            n -= 8;
        }
        crc = (uint32_t)c;
        while (n--) crc = __builtin_ia32_crc32qi(crc, *p++);
        return crc;
    }
    #endif

    static uint32_t fl_crc32c(uint32_t value, const uint8_t *p, size_t n) {
        uint32_t crc = ~value;
    #ifdef FLEETLOG_PLANTED_OVERREAD /* tests/native/sanitize.sh must see this */
        *(volatile const uint8_t *)(p + n);
    #endif
    #if defined(__x86_64__)
        if (fl_hardware) return ~fl_crc_hardware(crc, p, n);
    #endif
        return ~fl_crc_software(crc, p, n);
    }
    """
    void fl_crc_setup() noexcept nogil
    uint32_t fl_crc32c(uint32_t value, const uint8_t *p, size_t n) noexcept nogil
    uint32_t fl_crc_software(uint32_t crc, const uint8_t *p, size_t n) noexcept nogil

fl_crc_setup()

cdef Py_ssize_t HEADER = 61
cdef Py_ssize_t LENGTH_END = 12
cdef object make_record = Record._make
# Above this a checksum may let other threads run: the switch costs more than a small batch.
cdef Py_ssize_t RELEASE_GIL_FROM = 256 * 1024


cdef uint32_t _checksum(const uint8_t *p, Py_ssize_t n, uint32_t value):
    cdef uint32_t crc
    if n < RELEASE_GIL_FROM:
        return fl_crc32c(value, p, <size_t>n)
    with nogil:
        crc = fl_crc32c(value, p, <size_t>n)
    return crc


def crc32c(data, unsigned int value=0):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return _checksum(<const uint8_t *>view.buf, view.len, value)
    finally:
        PyBuffer_Release(&view)


def crc32c_without_instruction(data):
    """The checksum as machines without a CRC instruction compute it (for the tests)."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return <uint32_t>~fl_crc_software(0xFFFFFFFF, <const uint8_t *>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)


@cython.final
@cython.freelist(64)
cdef class BatchHeader:
    """The specification's named tuple without a Python object for each field."""

    cdef readonly int64_t base_offset
    cdef readonly int32_t batch_length
    cdef readonly int32_t partition_leader_epoch
    cdef readonly int8_t magic
    cdef readonly uint32_t crc
    cdef readonly int16_t attributes
    cdef readonly int32_t last_offset_delta
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly int32_t record_count

    def __init__(
        self, int64_t base_offset, int32_t batch_length, int32_t partition_leader_epoch, int8_t magic, uint32_t crc,
        int16_t attributes, int32_t last_offset_delta, int64_t base_timestamp, int64_t max_timestamp,
        int64_t producer_id, int16_t producer_epoch, int32_t base_sequence, int32_t record_count,
    ):
        self.base_offset = base_offset
        self.batch_length = batch_length
        self.partition_leader_epoch = partition_leader_epoch
        self.magic = magic
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.record_count = record_count

    @property
    def size(self):
        return <int64_t>self.batch_length + LENGTH_END

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self):
        return self.attributes & 0x07

    @property
    def is_log_append_time(self):
        return (self.attributes & 0x08) != 0

    @property
    def is_transactional(self):
        return (self.attributes & 0x10) != 0

    @property
    def is_control(self):
        return (self.attributes & 0x20) != 0

    @property
    def last_sequence(self):
        cdef int64_t last = <int64_t>self.base_sequence + self.last_offset_delta
        if self.base_sequence < 0:
            return self.base_sequence
        return last if last <= 2147483647 else last - 2147483648

    def _fields_in_order(self):
        return (
            self.base_offset, self.batch_length, self.partition_leader_epoch, self.magic, self.crc, self.attributes,
            self.last_offset_delta, self.base_timestamp, self.max_timestamp, self.producer_id, self.producer_epoch,
            self.base_sequence, self.record_count,
        )

    def _replace(self, **fields):
        return BatchHeader(**{**dict(zip(HEADER_FIELDS, self._fields_in_order())), **fields})

    def __iter__(self):
        return iter(self._fields_in_order())

    def __len__(self):
        return len(HEADER_FIELDS)

    def __getitem__(self, index):
        return self._fields_in_order()[index]

    def __eq__(self, other):
        if isinstance(other, (BatchHeader, HeaderTuple)):
            return self._fields_in_order() == tuple(other)
        return NotImplemented

    def __hash__(self):
        return hash(self._fields_in_order())

    def __reduce__(self):
        return BatchHeader, self._fields_in_order()

    def __repr__(self):
        return repr(HeaderTuple._make(self._fields_in_order()))


cdef BatchHeader _header(const uint8_t *base, Py_ssize_t size, Py_ssize_t position):
    """BatchHeader of the bytes at ``position``, or raise as the specification does."""
    cdef const uint8_t *p
    cdef int32_t length, delta, count
    cdef int64_t offset, last = 0
    cdef BatchHeader header
    if position < 0 or size - position < HEADER:
        raise CorruptBatch("a batch header needs 61 bytes", position)
    p = base + position
    if p[16] != 2:
        raise CorruptBatch(f"magic {p[16]} is not 2", position)
    length = <int32_t>_u32(p + 8)
    delta = <int32_t>_u32(p + 23)
    count = <int32_t>_u32(p + 57)
    if length < HEADER - LENGTH_END:
        raise CorruptBatch(f"batch length {length} is too small", position)
    if delta < 0:
        raise CorruptBatch(f"last offset delta {delta} is negative", position)
    if count < 0:
        raise CorruptBatch(f"record count {count} is negative", position)
    offset = <int64_t>_u64(p)
    if fl_add_overflows(offset, delta, &last):
        raise CorruptBatch("the last offset does not fit into 64 bits", position)
    header = BatchHeader.__new__(BatchHeader)
    header.base_offset = offset
    header.batch_length = length
    header.partition_leader_epoch = <int32_t>_u32(p + 12)
    header.magic = 2
    header.crc = _u32(p + 17)
    header.attributes = <int16_t>_u16(p + 21)
    header.last_offset_delta = delta
    header.base_timestamp = <int64_t>_u64(p + 27)
    header.max_timestamp = <int64_t>_u64(p + 35)
    header.producer_id = <int64_t>_u64(p + 43)
    header.producer_epoch = <int16_t>_u16(p + 51)
    header.base_sequence = <int32_t>_u32(p + 53)
    header.record_count = count
    return header


def parse_header(buf, Py_ssize_t position=0):
    cdef Py_buffer view
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        return _header(<const uint8_t *>view.buf, view.len, position)
    finally:
        PyBuffer_Release(&view)


cdef int _check_batch(const uint8_t *p, Py_ssize_t room, Py_ssize_t position) except -1:
    """The batch at ``p``, whose header is one, is wholly in ``room`` bytes and its checksum holds; or raise."""
    cdef Py_ssize_t size = <Py_ssize_t><int32_t>_u32(p + 8) + LENGTH_END
    cdef Py_ssize_t payload = size - HEADER
    cdef uint32_t found, stored = _u32(p + 17), count = _u32(p + 57)
    if size > room:
        raise CorruptBatch(f"batch of {size} bytes is cut at {room}", position)
    if (p[22] & 7) == 0 and <Py_ssize_t>count > payload // MIN_RECORD:
        raise CorruptBatch(f"{count} records cannot fit into {payload} bytes", position)
    found = _checksum(p + 21, size - 21, 0)
    if found != stored:
        raise CorruptBatch(f"checksum {found:#010x} is not the header's {stored:#010x}", position)
    return 0


def validate_batch(buf, Py_ssize_t position=0):
    cdef Py_buffer view
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        header = _header(<const uint8_t *>view.buf, view.len, position)
        _check_batch(<const uint8_t *>view.buf + position, view.len - position, position)
        return header
    finally:
        PyBuffer_Release(&view)


def scan(buf, Py_ssize_t start=0, Py_ssize_t end=-1):
    cdef Py_buffer view
    cdef Py_ssize_t stop, position, size
    cdef const uint8_t *base
    cdef list found = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        stop = view.len if end < 0 or end > view.len else end
        position = start
        while stop - position >= HEADER:
            header = _header(base, view.len, position)
            size = <Py_ssize_t><int32_t>_u32(base + position + 8) + LENGTH_END
            if size > stop - position:
                break
            found.append((position, header))
            position += size
        return found
    finally:
        PyBuffer_Release(&view)


def walk(buf, int64_t limit, int64_t offset):
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef int64_t position = 0, size, passed = -1, first = -1, last = 0
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        while view.len - position >= HEADER:
            p = <const uint8_t *>view.buf + position
            size = <int64_t><int32_t>_u32(p + 8) + LENGTH_END
            if (
                p[16] != 2 or size < HEADER or <int32_t>_u32(p + 23) < 0 or <int32_t>_u32(p + 57) < 0
                or fl_add_overflows(<int64_t>_u64(p), <int32_t>_u32(p + 23), &last)
            ):
                break
            if not position:
                first = last
            if position + size > limit or last >= offset:
                return first, position, passed, <int64_t>_u64(p), last, size
            position += size
            passed = last + 1
        if not position:
            _header(<const uint8_t *>view.buf, view.len, 0)  # which raises
        return first, position, passed, -1, -1, 0
    finally:
        PyBuffer_Release(&view)


def index_floor(data, int64_t base_offset, Py_ssize_t field, int64_t wanted):
    cdef Py_buffer view
    cdef Py_ssize_t low = 0, high, middle
    cdef const uint8_t *entry
    assert field == 0 or field == 4
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        high = view.len // 8
        while low < high:
            middle = (low + high) >> 1
            if <int32_t>_u32(<const uint8_t *>view.buf + middle * 8 + field) <= wanted:
                low = middle + 1
            else:
                high = middle
        if not low:
            return base_offset, 0
        entry = <const uint8_t *>view.buf + 8 * low - 8
        return base_offset + <int32_t>_u32(entry), <int32_t>_u32(entry + 4)
    finally:
        PyBuffer_Release(&view)


def stamp(buf, Py_ssize_t position, int64_t base_offset, int32_t leader_epoch, int64_t log_append_time_ms=-1):
    cdef Py_buffer view
    cdef uint8_t *p
    cdef Py_ssize_t size
    PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
    try:
        if position < 0 or view.len - position < HEADER:
            raise CorruptBatch("a batch header needs 61 bytes", position)
        p = <uint8_t *>view.buf + position
        size = <Py_ssize_t><int32_t>_u32(p + 8) + LENGTH_END
        if log_append_time_ms >= 0 and (size < HEADER or size > view.len - position):
            raise CorruptBatch(f"batch of {size} bytes is cut at {view.len - position}", position)
        _put64(p, <uint64_t>base_offset)
        _put32(p + 12, <uint32_t>leader_epoch)
        if log_append_time_ms >= 0:
            _put16(p + 21, _u16(p + 21) | 0x08)
            _put64(p + 35, <uint64_t>log_append_time_ms)
            _put32(p + 17, _checksum(p + 21, size - 21, 0))
    finally:
        PyBuffer_Release(&view)


# ---- records --------------------------------------------------------------------------------------------------------

cdef inline object _take(Cursor *c):
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t length = _span(c, &start)
    if length < 0:
        return None
    return PyBytes_FromStringAndSize(<const char *>c.p + start, length)


def decode_records(payload, header):
    cdef Py_buffer view
    cdef Cursor c
    cdef int64_t count = header.record_count, base_offset = header.base_offset
    cdef int32_t last = header.last_offset_delta
    cdef int64_t _number, _h, names
    cdef Py_ssize_t stop, start = 0, length
    cdef int64_t base_timestamp = header.base_timestamp
    cdef object appended = header.max_timestamp if header.is_log_append_time else None
    cdef list records = []
    cdef list headers
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _open(&c, <const uint8_t *>view.buf, view.len, count)
        for _number in range(count):
            stop = _begin(&c)
            timestamp = _timestamp(&c, base_timestamp)
            offset = base_offset + _delta(&c, last)
            key = _take(&c)
            value = _take(&c)
            names = _headers(&c, stop)
            if names == 0:
                pairs = ()
            else:
                headers = []
                for _h in range(names):
                    length = _span(&c, &start)
                    if length < 0:
                        raise CorruptBatch("a header without a name", c.position)
                    try:
                        name = (<const char *>c.p)[start:start + length].decode("utf-8")
                    except UnicodeDecodeError:
                        raise CorruptBatch("a header name is not UTF-8", start) from None
                    headers.append((name, _take(&c)))
                pairs = tuple(headers)
            _end(&c, stop, view.len)
            records.append(make_record((offset, timestamp if appended is None else appended, key, value, pairs)))
        _end_payload(&c)
        return records
    finally:
        PyBuffer_Release(&view)


def find_timestamp(payload, header, int64_t wanted, int64_t begin):
    cdef Py_buffer view
    cdef Cursor c
    cdef int64_t count = header.record_count, base_offset = header.base_offset, base_timestamp = header.base_timestamp
    cdef int32_t last = header.last_offset_delta
    cdef bint stamped = header.is_log_append_time
    cdef int64_t appended = header.max_timestamp, timestamp, offset, _number
    cdef Py_ssize_t stop
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _open(&c, <const uint8_t *>view.buf, view.len, count)
        for _number in range(count):
            stop = _begin(&c)
            timestamp = _timestamp(&c, base_timestamp)
            if stamped:
                timestamp = appended
            offset = base_offset + _delta(&c, last)
            if timestamp >= wanted and offset >= begin:
                return offset, timestamp
            c.position = stop
            c.end = view.len
        _end_payload(&c)
        return None
    finally:
        PyBuffer_Release(&view)


def oldest_timestamp(payload, header):
    cdef Py_buffer view
    cdef Cursor c
    cdef int64_t count = header.record_count, base_timestamp = header.base_timestamp
    cdef int64_t oldest = 0x7FFFFFFFFFFFFFFF, timestamp, _number
    cdef Py_ssize_t stop
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _open(&c, <const uint8_t *>view.buf, view.len, count)
        for _number in range(count):
            stop = _begin(&c)
            timestamp = _timestamp(&c, base_timestamp)
            if timestamp != -1 and timestamp < oldest:
                oldest = timestamp
            c.position = stop
            c.end = view.len
        _end_payload(&c)
        return oldest
    finally:
        PyBuffer_Release(&view)


cdef int _walk(
    const uint8_t *p, Py_ssize_t size, int64_t base_timestamp, int32_t last, int64_t count, int64_t *largest,
    bint *keyed,
) except -1:
    """All records of a payload; sets the largest timestamp and whether every record has a key, or raises."""
    cdef Cursor c
    cdef int64_t _number, _h, names, delta, previous = -1, timestamp
    cdef Py_ssize_t stop, length, start = 0
    largest[0] = -1
    keyed[0] = True
    _open(&c, p, size, count)
    for _number in range(count):
        stop = _begin(&c)
        timestamp = _timestamp(&c, base_timestamp)
        if timestamp > largest[0]:
            largest[0] = timestamp
        delta = _delta(&c, last)
        if delta <= previous:
            raise CorruptBatch(f"offset delta {delta} after {previous}", c.position)
        previous = delta
        if _span(&c, &start) < 0:
            keyed[0] = False
        _span(&c, &start)
        names = _headers(&c, stop)
        for _h in range(names):
            length = _span(&c, &start)
            if length < 0:
                raise CorruptBatch("a header without a name", c.position)
            _check_name(c.p, start, length)
            _span(&c, &start)
        _end(&c, stop, size)
    _end_payload(&c)
    return 0


def longest_record(payload, header):
    cdef Py_buffer view
    cdef Cursor c
    cdef int64_t count = header.record_count, _number
    cdef Py_ssize_t stop, longest = 0
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _open(&c, <const uint8_t *>view.buf, view.len, count)
        for _number in range(count):
            stop = _begin(&c)
            longest = max(longest, stop - c.position + 1)  # with the attributes
            c.position = stop
            c.end = view.len
        _end_payload(&c)
        return longest
    finally:
        PyBuffer_Release(&view)


def validate_records(payload, header):
    cdef Py_buffer view
    cdef int64_t largest = -1
    cdef bint keyed = True
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        _walk(
            <const uint8_t *>view.buf, view.len, header.base_timestamp, header.last_offset_delta, header.record_count,
            &largest, &keyed,
        )
        return largest, keyed
    finally:
        PyBuffer_Release(&view)


cdef struct Sequences:
    int64_t producer_id  # of the fields below; -1: none
    int64_t epoch
    bint open
    bint first  # nothing is known of the producer
    uint32_t last


cdef struct Taken:
    int64_t last_offset
    int64_t largest
    int64_t producer_id
    int64_t producer_epoch
    int64_t last_sequence
    int64_t attributes


cdef int _known(object producers, dict seen, Sequences *s, int64_t producer_id, bint unknown) except -1:
    """Look a producer up; 0 if nothing of it can be admitted."""
    cdef tuple batches
    cdef int64_t last = -1, other, epoch
    if s.producer_id >= 0:
        seen[s.producer_id] = s.last
        s.producer_id = -1
    known = producers.get(producer_id)
    s.first = known is None
    if s.first:
        return unknown and producer_id not in seen
    batches = <tuple?>known.batches
    epoch = known.epoch
    if not batches or epoch < 0:
        return 0
    last = batches[len(batches) - 1].last_sequence
    if last < 0:
        return 0
    for batch in batches:
        other = batch.last_sequence
        if ((last - other) & 0x7FFFFFFF) >= 0x40000000:
            return 0
    s.epoch = epoch
    s.open = known.txn_first_offset >= 0
    s.last = <uint32_t>seen.get(producer_id, last)
    s.producer_id = producer_id
    return 1


cdef int _admit(
    uint8_t *p, Py_ssize_t size, int64_t base_offset, int32_t leader_epoch, int64_t latest, int64_t max_records,
    object producers, bint transactional, bint unknown, dict seen, Sequences *s, Taken *taken, bint walked,
) except -1:
    """Check and stamp one batch; 0 if it needs a closer look. ``walked``: its records were, ``largest`` is known."""
    cdef int32_t delta, count
    cdef uint32_t sequence = 0
    cdef int64_t producer_id, epoch = -1
    cdef uint16_t attributes
    cdef bint keyed = True
    if p[16] != 2 or <Py_ssize_t><int32_t>_u32(p + 8) + LENGTH_END != size:
        return 0
    delta = <int32_t>_u32(p + 23)
    count = <int32_t>_u32(p + 57)
    attributes = _u16(p + 21)
    producer_id = <int64_t>_u64(p + 43)
    if _u64(p) or count <= 0 or delta != count - 1:
        return 0
    if count > max_records or fl_add_overflows(base_offset, delta, &taken.last_offset):
        return 0
    if producer_id == -1:
        if attributes:
            return 0
    else:
        if producer_id < 0 or (attributes and (attributes != 0x10 or not transactional)):
            return 0
        epoch = <int16_t>_u16(p + 51)
        sequence = _u32(p + 53)
        if producer_id == s.producer_id:
            s.first = False
        elif not _known(producers, seen, s, producer_id, unknown):
            return 0
        if s.first:
            if attributes or epoch < 0 or sequence > 0x7FFFFFFF:
                return 0
        elif epoch != s.epoch or (attributes != 0) != s.open or sequence != ((s.last + 1) & 0x7FFFFFFF):
            return 0
    try:
        _check_batch(p, size, 0)
        if not walked:
            taken.largest = -1
            _walk(p + HEADER, size - HEADER, <int64_t>_u64(p + 27), delta, count, &taken.largest, &keyed)
    except CorruptBatch:
        return 0
    if taken.largest != <int64_t>_u64(p + 35) or taken.largest > latest:
        return 0
    _put64(p, <uint64_t>base_offset)
    _put32(p + 12, <uint32_t>leader_epoch)
    taken.producer_id = producer_id
    taken.producer_epoch = epoch
    taken.attributes = attributes
    taken.last_sequence = -1
    if producer_id != -1:
        if s.first:
            s.producer_id = producer_id
            s.epoch = epoch
            s.open = False
        s.last = (sequence + <uint32_t>delta) & 0x7FFFFFFF
        taken.last_sequence = s.last
    return 1


cdef inline int _set(object record, Py_ssize_t n, object value) except -1:
    Py_INCREF(value)
    PyTuple_SET_ITEM(record, n, value)
    return 0


cdef object _admitted(int64_t base_offset, int64_t size, Taken *t):
    """The record, without a call of its constructor."""
    cdef object made = PyType_GenericAlloc(<PyTypeObject *>Admitted, 8)
    _set(made, 0, base_offset)
    _set(made, 1, t.last_offset)
    _set(made, 2, t.largest)
    _set(made, 3, size)
    _set(made, 4, t.producer_id)
    _set(made, 5, t.producer_epoch)
    _set(made, 6, t.last_sequence)
    _set(made, 7, t.attributes)
    return made


def admit(
    batches, int64_t base_offset, int32_t leader_epoch, int64_t latest, int64_t max_records, int64_t max_bytes,
    int64_t room, producers, bint transactional, bint unknown, walked=None
):
    cdef Py_buffer view
    cdef int ready
    cdef Sequences s = Sequences(-1, -1, False, False, 0)
    cdef Taken t = Taken(0, 0, 0, 0, 0, 0)
    cdef dict seen = {}
    cdef list admitted = []
    cdef Py_ssize_t produced = 0
    for batch in batches:
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            ready = 0
            if not view.readonly and HEADER <= view.len <= max_bytes and view.len <= room:
                if walked is not None:
                    t.largest = walked[len(admitted)]
                ready = _admit(
                    <uint8_t *>view.buf, view.len, base_offset, leader_epoch, latest, max_records, producers,
                    transactional, unknown, seen, &s, &t, walked is not None,
                )
            if not ready:
                break
            room -= view.len
            produced += t.producer_id != -1
            admitted.append(_admitted(base_offset, view.len, &t))
        finally:
            PyBuffer_Release(&view)
        if t.last_offset == INT64_MAX:
            break
        base_offset = t.last_offset + 1
    return admitted, produced


def index_entries(
    batches, int64_t position, int64_t since, int64_t interval, int64_t largest, int64_t largest_offset
):
    cdef list entries = []
    cdef tuple fields
    cdef int64_t timestamp, size
    for batch in batches:
        fields = _as_tuple(batch)
        timestamp = fields[2]
        size = fields[3]
        if timestamp > largest:
            largest = timestamp
            largest_offset = fields[1]
        if since > interval:
            entries.append((fields[1], position, largest, largest_offset))
            since = 0
        since += size
        position += size
    return entries, since, largest, largest_offset


cdef inline tuple _as_tuple(object named):
    """A named tuple as what it is underneath: its items are found at once."""
    if not isinstance(named, Admitted) or len(<tuple>named) != 8:
        raise TypeError("not an Admitted")
    return <tuple>named


cdef inline Py_ssize_t _run_size(bytes value) noexcept:
    if value is None:
        return 1
    return _varint_size(_zigzag(PyBytes_GET_SIZE(value))) + PyBytes_GET_SIZE(value)


cdef inline void _write_run(Out *o, bytes value) noexcept:
    cdef Py_ssize_t n
    if value is None:
        o.p[o.used] = 1
        o.used += 1
        return
    n = PyBytes_GET_SIZE(value)
    _write_varint(o, _zigzag(n))
    memcpy(o.p + o.used, PyBytes_AS_STRING(value), <size_t>n)
    o.used += n


cdef bytes _bytes(object value):
    return None if value is None else bytes(value)


cdef int _encode(Out *o, object records, int64_t base_offset, int64_t base_timestamp) except -1:
    cdef int64_t offset, timestamp = 0, delta, number = 0
    cdef Py_ssize_t size
    cdef bytes key, value
    cdef list pairs
    for record in records:
        offset = record[0]
        if fl_sub_overflows(record[1], base_timestamp, &timestamp):
            raise ValueError("a timestamp is too far from the batch's")
        key = _bytes(record[2])
        value = _bytes(record[3])
        delta = number if offset < 0 else offset - base_offset
        if delta < 0 or delta > 2147483647:
            raise ValueError(f"offset {offset} is too far from the batch's {base_offset}")
        pairs = [(name.encode(), _bytes(text)) for name, text in record[4]]
        size = 1 + _varint_size(_zigzag(timestamp)) + _varint_size(_zigzag(delta)) + _run_size(key) + _run_size(value)
        size += _varint_size(_zigzag(len(pairs)))
        for name, text in pairs:
            size += _run_size(<bytes>name) + _run_size(<bytes>text)
        _need(o, size + 10)
        _write_varint(o, _zigzag(size))
        o.p[o.used] = 0
        o.used += 1
        _write_varint(o, _zigzag(timestamp))
        _write_varint(o, _zigzag(delta))
        _write_run(o, key)
        _write_run(o, value)
        _write_varint(o, _zigzag(len(pairs)))
        for name, text in pairs:
            _write_run(o, <bytes>name)
            _write_run(o, <bytes>text)
        number += 1
    return 0


cdef bytes _encoded(object records, int64_t base_offset, int64_t base_timestamp, Py_ssize_t front):
    """``front`` zero bytes and then the payload."""
    cdef Out o
    o.room = front + 1024
    o.used = front
    o.p = <uint8_t *>PyMem_Malloc(<size_t>o.room)
    if o.p == NULL:
        raise MemoryError()
    try:
        _encode(&o, records, base_offset, base_timestamp)
        return PyBytes_FromStringAndSize(<char *>o.p, o.used)
    finally:
        PyMem_Free(o.p)


def encode_records(records, int64_t base_offset, int64_t base_timestamp):
    return _encoded(records, base_offset, base_timestamp, 0)


def encode_batch(
    records,
    *,
    int64_t base_offset=0,
    int32_t leader_epoch=-1,
    int16_t attributes=0,
    int64_t producer_id=-1,
    int16_t producer_epoch=-1,
    int32_t base_sequence=-1,
    compress=None,
):
    cdef uint8_t *p
    cdef bytes out, payload
    cdef int64_t base_timestamp, last, count
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0].timestamp
    if compress is None:
        out = _encoded(records, base_offset, base_timestamp, HEADER)
    else:
        payload = compress(_encoded(records, base_offset, base_timestamp, 0))
        out = PyBytes_FromStringAndSize(NULL, HEADER + PyBytes_GET_SIZE(payload))
        memcpy(PyBytes_AS_STRING(out) + HEADER, PyBytes_AS_STRING(payload), <size_t>PyBytes_GET_SIZE(payload))
    count = len(records)
    last = records[len(records) - 1].offset
    p = <uint8_t *>PyBytes_AS_STRING(out)  # no other reference to these bytes exists yet
    _put64(p, <uint64_t>base_offset)
    _put32(p + 8, <uint32_t>(PyBytes_GET_SIZE(out) - LENGTH_END))
    _put32(p + 12, <uint32_t>leader_epoch)
    p[16] = 2
    _put16(p + 21, <uint16_t>attributes)
    _put32(p + 23, <uint32_t>(count - 1 if last < 0 else last - base_offset))
    _put64(p + 27, <uint64_t>base_timestamp)
    _put64(p + 35, <uint64_t><int64_t>max([record.timestamp for record in records]))
    _put64(p + 43, <uint64_t>producer_id)
    _put16(p + 51, <uint16_t>producer_epoch)
    _put32(p + 53, <uint32_t>base_sequence)
    _put32(p + 57, <uint32_t>count)
    _put32(p + 17, _checksum(p + 21, PyBytes_GET_SIZE(out) - 21, 0))
    return out


def control_batch(
    *,
    bint commit,
    int64_t producer_id,
    int16_t producer_epoch,
    int32_t coordinator_epoch,
    int64_t timestamp,
    int64_t base_offset=0,
    int32_t leader_epoch=-1,
):
    key = b"\0\0\0\1" if commit else b"\0\0\0\0"
    value = b"\0\0" + int(coordinator_epoch).to_bytes(4, "big", signed=True)
    return encode_batch(
        [Record(-1, timestamp, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=0x30,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
