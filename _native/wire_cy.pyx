# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The fast twin of ``wire_py``: same functions, results and errors. Bounds are checked by hand, in every read."""

import uuid

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject_GenericSetAttr
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from fleetlog._native.byte_reader import ReplacedText
from fleetlog._native.errors import LooseMessage, MalformedMessage
from fleetlog._native.wire_py import (
    MAX_ASKED,
    MAX_OBJECTS,
    MAX_RUN_PARTS,
    MAX_TAGS,
    NO_HIGH_WATERMARK,
    NO_OPERATIONS,
    FetchAnswer,
    FetchAnswerPart,
    FetchOutcome,
    FetchPart,
    FetchRequest,
    FetchRun,
    MetadataPartition,
    NodeEndpoint,
    ProduceOutcome,
    ProducePart,
    ProduceRequest,
    ProduceRun,
    RequestHeader,
    Slice,
)

include "varints.pxi"
include "bytes.pxi"
include "named.pxi"
include "wire_fields.pxi"

__all__ = [
    "MAX_ASKED",
    "MAX_OBJECTS",
    "MAX_TAGS",
    "NO_HIGH_WATERMARK",
    "NO_OPERATIONS",
    "FetchAnswer",
    "FetchAnswerPart",
    "FetchOutcome",
    "FetchPart",
    "FetchRequest",
    "FetchRun",
    "MetadataPartition",
    "NodeEndpoint",
    "ProduceOutcome",
    "ProducePart",
    "ProduceRequest",
    "ProduceRun",
    "RequestHeader",
    "Slice",
    "decode_fetch",
    "decode_fetch_response",
    "decode_fetch_run",
    "decode_produce",
    "decode_produce_run",
    "encode_fetch_answer",
    "encode_fetch_request",
    "encode_fetch_response",
    "encode_metadata_topic",
    "encode_produce_response",
    "encode_produce_run",
    "join_metadata",
    "parse_request_header",
]

from fleetlog._native.wire_tuples import LARGEST_FETCH_RUN as _LARGEST_FETCH_RUN

cdef Py_ssize_t LARGEST_FETCH_RUN = _LARGEST_FETCH_RUN
cdef int64_t WATERMARK_NONE = NO_HIGH_WATERMARK


cdef struct RequestHead:
    int16_t key, version
    int32_t correlation_id
    const uint8_t *client_id
    Py_ssize_t client_id_size


cdef int _read_header(Reader *r, RequestHead *head) except -1:
    """Up to the client id, which is not looked at."""
    cdef const uint8_t *at
    cdef int16_t length
    if r.end < 10:
        raise MalformedMessage(f"a frame of {r.end} bytes has no header")
    at = _take(r, 10)
    head.key, head.version = <int16_t>_u16(at), <int16_t>_u16(at + 2)
    head.correlation_id = <int32_t>_u32(at + 4)
    length = <int16_t>_u16(at + 8)
    if length < -1:
        raise MalformedMessage(f"client id of {length} bytes")
    head.client_id_size = length if length > 0 else 0
    head.client_id = _take(r, length) if length > 0 else NULL
    return 0


def parse_request_header(frame, dict flexible_from):
    cdef Py_buffer view
    cdef Reader r
    cdef RequestHead head
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        r.p = <const uint8_t *>view.buf
        r.pos = 0
        r.end = view.len
        r.budget = MAX_OBJECTS
        r.replaced = False
        _read_header(&r, &head)
        client_id = _text(&r, head.client_id, head.client_id_size) if head.client_id_size else ""
        if r.replaced:
            client_id = str(client_id)
        first = flexible_from.get(head.key)
        if first is not None and 0 <= head.version >= <int>first:
            _skip_tags(&r)
        header = new(RequestHeader, (head.key, head.version, head.correlation_id, client_id, r.pos))
        if r.replaced:
            raise LooseMessage("client id is not UTF-8", header)
        return header
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t _pass_records(Reader *r, bint flexible) except -2:
    """Skip the records; returns their size, -1 for null."""
    cdef int64_t size = _uvarint(r) - 1 if flexible else <int32_t>_u32(_take(r, 4))
    if size < -1:
        raise MalformedMessage(f"records of {size} bytes")
    if size > 0:
        _take(r, size)
    return <Py_ssize_t>size


def decode_produce(int version, body, int64_t budget=MAX_ASKED):
    cdef Py_buffer view
    cdef Reader r
    cdef bint flexible = version >= 9
    cdef int64_t _t, _p
    cdef Py_ssize_t size
    cdef const uint8_t *at
    cdef int32_t acks, timeout_ms, index
    cdef list parts = []
    frame = memoryview(body)
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        r.p = <const uint8_t *>view.buf
        r.pos = 0
        r.end = view.len
        r.budget = budget
        r.replaced = False
        transactional_id = _string(&r, flexible) if version >= 3 else None
        at = _take(&r, 6)
        acks = <int16_t>_u16(at)
        timeout_ms = <int32_t>_u32(at + 2)
        for _t in range(_count(&r, flexible, 3)):
            name = topic_id = None
            if version >= 13:
                topic_id = _topic_id(&r)
            else:
                name = _name(&r, flexible)
            for _p in range(_count(&r, flexible, 5)):
                index = <int32_t>_u32(_take(&r, 4))
                size = _pass_records(&r, flexible)
                records = frame[r.pos - size:r.pos] if size >= 0 else None
                parts.append(new(ProducePart, (name, topic_id, index, records)))
                if flexible:
                    _skip_tags(&r)
            if flexible:
                _skip_tags(&r)
        if flexible:
            _skip_tags(&r)
        return _whole(&r, new(ProduceRequest, (transactional_id, acks, timeout_ms, parts)))
    finally:
        PyBuffer_Release(&view)


cdef struct Head:
    const uint8_t *frame
    Py_ssize_t size
    const uint8_t *tail
    Py_ssize_t tail_size


cdef struct RunKind:
    int16_t version
    int16_t acks
    int32_t timeout_ms


cdef tuple _run_head(Reader *r, int lowest, int highest, RunKind *kind):
    """Read a Produce up to the size of its only partition's records: its transactional id and that partition.

    None if it makes no run.
    """
    cdef const uint8_t *at = _take(r, 10)
    cdef int16_t version = <int16_t>_u16(at + 2), length = <int16_t>_u16(at + 8)
    cdef bint flexible = version >= 9
    if _u16(at) or version < lowest or version < 3 or version > highest or length < -1:
        return None
    if length > 0:
        at = _take(r, length)
        try:
            PyUnicode_DecodeUTF8(<char *>at, length, NULL)
        except UnicodeDecodeError:
            return None
    if flexible:
        _skip_tags(r)
    r.budget = MAX_OBJECTS
    transactional_id = _string(r, flexible)
    at = _take(r, 6)
    kind.version = version
    kind.acks = <int16_t>_u16(at)
    kind.timeout_ms = <int32_t>_u32(at + 2)
    if (kind.acks != -1 and kind.acks != 1) or _count(r, flexible, 3) != 1:
        return None
    name = topic_id = None
    if version >= 13:
        topic_id = _topic_id(r)
    else:
        name = _name(r, flexible)
    if _count(r, flexible, 5) != 1 or r.replaced:
        return None
    return transactional_id, new(ProducePart, (name, topic_id, <int32_t>_u32(_take(r, 4)), None))


cdef int _run_tail(Reader *r, bint flexible) except -1:
    """Skip the fields after the records."""
    if flexible:
        _skip_tags(r)
        _skip_tags(r)
        _skip_tags(r)
    _finish(r)
    return 0


cdef inline bint _same_head(Head *known, const uint8_t *frame, Py_ssize_t size) noexcept nogil:
    """Whether a frame begins like a known one, except for its correlation id."""
    if size < known.size or memcmp(frame, known.frame, 4):
        return False
    return memcmp(frame + 8, known.frame + 8, <size_t>known.size - 8) == 0


cdef inline bint _has_codec(const uint8_t *batch, Py_ssize_t size) noexcept nogil:
    return size >= 61 and batch[22] & 7 != 0


def decode_produce_run(data, Py_ssize_t start, Py_ssize_t end, int lowest, int highest, Py_ssize_t most):
    cdef Py_buffer view
    cdef Reader r
    cdef Head heads[16]
    cdef RunKind first = RunKind(0, 0, 0), kind = RunKind(0, 0, 0)
    cdef list parts = [], batches = [], groups = [], correlation_ids = [], ends = []
    cdef const uint8_t *frame
    cdef Py_ssize_t size, held, group, head, _turn, known = 0, last = -1, count = 0, behind
    cdef bint compressed
    cdef tuple read
    transactional_id = None
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or end > view.len:
            raise ValueError("outside of the buffer")
        r.replaced = False
        while end - start >= 4 and (count < most or not count):
            frame = <const uint8_t *>view.buf + start + 4
            size = <int32_t>_u32(frame - 4)
            if size < 0 or size > end - start - 4:
                break
            r.p = frame
            r.pos = 0
            r.end = size
            r.budget = MAX_OBJECTS
            group = -1
            for _turn in range(known):  # most likely the one after the last
                last = last + 1 if last + 1 < known else 0
                if _same_head(&heads[last], frame, size):
                    group = last
                    break
            try:
                if group >= 0:
                    r.pos = heads[group].size
                    held = _pass_records(&r, first.version >= 9)
                    behind = r.pos
                    if size - behind != heads[group].tail_size or (
                        memcmp(frame + behind, heads[group].tail, <size_t>(size - behind))
                    ):
                        _run_tail(&r, first.version >= 9)
                else:
                    read = _run_head(&r, lowest, highest, &kind)
                    if read is None:
                        break
                    if count == 0:
                        first = kind
                        transactional_id = read[0]
                    elif kind.version != first.version or kind.acks != first.acks or (
                        kind.timeout_ms != first.timeout_ms or read[0] != transactional_id
                    ):
                        break
                    part = read[1]
                    head = r.pos
                    held = _pass_records(&r, first.version >= 9)
                    behind = r.pos
                    _run_tail(&r, first.version >= 9)
                    if held > 0 and not (count and _has_codec(frame + behind - held, held)):
                        group = _index_of(parts, part)
                        if group < 0 and known == MAX_RUN_PARTS:
                            break
                        if group < 0:
                            group = known
                            known += 1
                            parts.append(part)
                            batches.append([])
                            heads[group] = Head(frame, head, frame + behind, size - behind)
                        last = group
            except MalformedMessage:
                break
            if held <= 0:
                break
            compressed = _has_codec(frame + behind - held, held)
            if compressed and count:
                break
            start += 4
            (<list>batches[group]).append(data[start + behind - held:start + behind])
            start += size
            groups.append(group)
            correlation_ids.append(<int32_t>_u32(frame + 4))
            ends.append(start)
            count += 1
            if compressed:
                break
        if not count:
            return None
        return new(
            ProduceRun,
            (
                first.version, first.acks, first.timeout_ms, transactional_id, parts, batches, groups, correlation_ids,
                ends,
            ),
        )
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t _index_of(list parts, object part):
    cdef Py_ssize_t n
    for n in range(len(parts)):
        if parts[n] == part:
            return n
    return -1


def decode_fetch_run(data, Py_ssize_t start, Py_ssize_t end, int lowest, int highest, Py_ssize_t most):
    cdef Py_buffer view
    cdef Py_ssize_t size
    cdef Reader r
    cdef RequestHead head
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if end > view.len:
            end = view.len
        if start < 0 or end - start < 4 or most < 1:
            return None
        r.p = <const uint8_t *>view.buf + start + 4
        size = <int32_t>_u32(r.p - 4)
        if not 0 <= size <= end - start - 4 or size > LARGEST_FETCH_RUN:
            return None
        r.pos = 0
        r.end = size
        r.budget = MAX_ASKED
        r.replaced = False
        try:
            _read_header(&r, &head)
            if head.key != 1 or not lowest <= head.version <= highest:
                return None
            if head.client_id_size:
                _text(&r, head.client_id, head.client_id_size)
            if head.version >= 12:
                _skip_tags(&r)
            request = _read_fetch(&r, head.version)
        except MalformedMessage:
            return None
        return new(FetchRun, (request, head.version, [head.correlation_id], [start + 4 + size]))
    finally:
        PyBuffer_Release(&view)


def decode_fetch(int version, body, int64_t budget=MAX_ASKED):
    cdef Py_buffer view
    cdef Reader r
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        r.p = <const uint8_t *>view.buf
        r.pos = 0
        r.end = view.len
        r.budget = budget
        r.replaced = False
        return _read_fetch(&r, version)
    finally:
        PyBuffer_Release(&view)


cdef object _read_fetch(Reader *r, int version):
    cdef bint flexible = version >= 12
    cdef const uint8_t *at
    cdef int32_t replica_id = -1, max_wait_ms, min_bytes, max_bytes, session_id = 0, session_epoch = -1
    cdef int64_t replica_epoch = -1, _n, tag
    cdef int isolation_level
    cdef Py_ssize_t outer
    if version <= 14:
        replica_id = <int32_t>_u32(_take(r, 4))
    at = _take(r, 13)
    max_wait_ms = <int32_t>_u32(at)
    min_bytes = <int32_t>_u32(at + 4)
    max_bytes = <int32_t>_u32(at + 8)
    isolation_level = at[12] - 256 if at[12] >= 128 else at[12]
    if version >= 7:
        at = _take(r, 8)
        session_id = <int32_t>_u32(at)
        session_epoch = <int32_t>_u32(at + 4)
    parts = _fetch_parts(r, version, flexible)
    forgotten = _forgotten(r, version, flexible) if version >= 7 else []
    rack_id = _name(r, flexible) if version >= 11 else ""
    cluster_id = None
    if flexible:
        outer = r.end
        for _n in range(_tag_count(r)):
            tag = _enter_tag(r)
            if tag == 0:
                cluster_id = _string(r, True)
                _finish(r)
            elif tag == 1 and version >= 15:
                at = _take(r, 12)
                replica_id = <int32_t>_u32(at)
                replica_epoch = <int64_t>_u64(at + 4)
                _skip_tags(r)
                _finish(r)
            _leave_tag(r, outer)
    request = new(
        FetchRequest,
        (
            replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id,
            session_epoch, parts, forgotten, rack_id, cluster_id,
        ),
    )
    return _whole(r, request)


cdef list _fetch_parts(Reader *r, int version, bint flexible):
    cdef list parts = []
    cdef int64_t _t, _p
    cdef int32_t index, epoch, last_epoch, limit
    cdef int64_t offset, start, watermark
    cdef const uint8_t *at
    cdef int size = 32 if version >= 12 else 28 if version >= 9 else 24 if version >= 5 else 16
    for _t in range(_count(r, flexible, 3)):
        name = topic_id = None
        if version >= 13:
            topic_id = _topic_id(r)
        else:
            name = _name(r, flexible)
        for _p in range(_count(r, flexible, 16)):
            at = _take(r, size)
            epoch = last_epoch = -1
            start = -1
            index = <int32_t>_u32(at)
            at += 4
            if version >= 9:
                epoch = <int32_t>_u32(at)
                at += 4
            offset = <int64_t>_u64(at)
            at += 8
            if version >= 12:
                last_epoch = <int32_t>_u32(at)
                at += 4
            if version >= 5:
                start = <int64_t>_u64(at)
                at += 8
            limit = <int32_t>_u32(at)
            watermark = WATERMARK_NONE
            if flexible:
                watermark = _part_tags(r, version)
            parts.append(
                new(FetchPart, (name, topic_id, index, epoch, offset, last_epoch, start, limit, watermark))
            )
        if flexible:
            _skip_tags(r)
    return parts


cdef int64_t _part_tags(Reader *r, int version) except? -2:
    cdef int64_t _n, tag, watermark = WATERMARK_NONE
    cdef Py_ssize_t outer = r.end
    for _n in range(_tag_count(r)):
        tag = _enter_tag(r)
        if tag == 0 and version >= 17:
            _take(r, 16)
            _finish(r)
        elif tag == 1 and version >= 18:
            watermark = <int64_t>_u64(_take(r, 8))
            _finish(r)
        _leave_tag(r, outer)
    return watermark


cdef list _forgotten(Reader *r, int version, bint flexible):
    cdef list found = []
    cdef list indexes
    cdef int64_t _t, n, count
    cdef const uint8_t *at
    for _t in range(_count(r, flexible, 3)):
        topic = _topic_id(r) if version >= 13 else _name(r, flexible)
        count = _count(r, flexible, 4)
        indexes = []
        if count:
            at = _take(r, 4 * count)
            for n in range(count):
                indexes.append(<int32_t>_u32(at + 4 * n))
        found.append((topic, indexes))
        if flexible:
            _skip_tags(r)
    return found


# ---- writing --------------------------------------------------------------------------------------------------------


cdef int _add_topic(Out *o, tuple part, bint by_id, bint flexible) except -1:
    if by_id:
        _add_id(o, part[1])
    else:
        _add_string(o, part[0] or "", flexible)
    return 0


cdef int _add_endpoints_tag(Out *o, object endpoints) except -1:
    """A section of one tagged field, tag 0."""
    cdef Out inner
    _open(&inner, 256)
    try:
        _add_uvarint(&inner, <uint64_t>(len(endpoints) + 1))
        for node_id, host, port, rack in endpoints:
            _add32(&inner, node_id)
            _add_string(&inner, host, True)
            _add32(&inner, port)
            _add_string(&inner, rack, True)
            _add8(&inner, 0)
        _add8(o, 1)
        _add8(o, 0)
        _add_uvarint(o, <uint64_t>inner.used)
        _add_raw(o, <char *>inner.p, inner.used)
    finally:
        PyMem_Free(inner.p)
    return 0


cdef int _add_leader_tag(Out *o, uint8_t tag, object leader) except -1:
    _add8(o, tag)
    _add8(o, 9)
    _add32(o, leader[0])
    _add32(o, leader[1])
    return _add8(o, 0)


cdef list _groups(object parts):
    """Neighbours of one topic, as the request had them: lists of (part, outcome)."""
    cdef list groups = [], members = None
    cdef tuple pair, part, last = None
    if type(parts) is list and len(<list>parts) == 1:
        return [parts]
    for pair in parts:
        part = <tuple>pair[0]
        if last is None or not (
            (part[0] is last[0] or part[0] == last[0]) and (part[1] is last[1] or part[1] == last[1])
        ):
            members = []
            groups.append(members)
            last = part
        members.append(pair)
    return groups


cdef int _add_produce_body(
    Out *o, int version, list groups, int32_t throttle_ms, object endpoints, Py_ssize_t *last_at
) except -1:
    """The body of a Produce response; sets the position of the last partition's outcome."""
    cdef bint flexible = version >= 9
    cdef list members
    cdef tuple pair
    _add_count(o, len(groups), flexible)
    for members in groups:
        pair = <tuple>members[0]
        _add_topic(o, <tuple>pair[0], version >= 13, flexible)
        _add_count(o, len(members), flexible)
        for pair in members:
            last_at[0] = o.used
            _add_produce_outcome(o, version, (<tuple>pair[0])[2], <tuple>pair[1])
        if flexible:
            _add8(o, 0)
    if version >= 1:
        _add32(o, throttle_ms)
    if flexible:
        if endpoints and version >= 10:
            _add_endpoints_tag(o, endpoints)
        else:
            _add8(o, 0)
    return 0


def encode_produce_response(int version, parts, int32_t throttle_ms=0, endpoints=()):
    cdef Out o
    cdef Py_ssize_t last_at = 0
    cdef list groups = _groups(parts)
    _open(&o, 256)
    try:
        _add_produce_body(&o, version, groups, throttle_ms, endpoints, &last_at)
        return PyBytes_FromStringAndSize(<char *>o.p, o.used)
    finally:
        PyMem_Free(o.p)


cdef bytes _run_answer(int version, tuple part, int64_t log_start, Py_ssize_t *offset_at):
    """A whole response with holes for correlation id and base offset; sets the position of the latter."""
    cdef Out o
    _open(&o, 256)
    try:
        _add32(&o, 0)
        _add32(&o, 0)
        if version >= 9:
            _add8(&o, 0)
        _add_produce_body(&o, version, [[(part, (0, 0, -1, log_start, (), None, None))]], 0, (), offset_at)
        offset_at[0] += 6  # behind the partition and the error
        _put32(o.p, <uint32_t>(o.used - 4))
        return PyBytes_FromStringAndSize(<char *>o.p, o.used)
    finally:
        PyMem_Free(o.p)


cdef tuple _fields(object named):
    """A named tuple as a plain tuple, whose items are read without a lookup."""
    if not isinstance(named, tuple):
        raise TypeError("a run is a tuple")
    return <tuple>named


def encode_produce_run(run, log_starts, admitted):
    cdef tuple fields = _fields(run)
    cdef int version = fields[0]
    cdef list parts = fields[4], groups = fields[6], correlation_ids = fields[7], models = []
    cdef Py_ssize_t offsets_at[16]
    cdef Py_ssize_t taken[16]
    cdef Py_ssize_t n, size, group
    cdef bytes model
    cdef Out o
    if not len(parts) == len(log_starts) == len(admitted) <= MAX_RUN_PARTS:
        raise ValueError("a run without its partitions")
    if len(groups) != len(correlation_ids):
        raise ValueError("a run with requests of no partition")
    for n in range(len(parts)):
        models.append(_run_answer(version, <tuple>parts[n], log_starts[n], &offsets_at[n]))
        taken[n] = 0
    _open(&o, 1024)
    try:
        for n in range(len(groups)):
            group = groups[n]
            if group < 0 or group >= len(models):
                raise ValueError("a request of no partition")
            model = models[group]
            size = PyBytes_GET_SIZE(model)
            _need(&o, size)
            memcpy(o.p + o.used, PyBytes_AS_STRING(model), <size_t>size)
            _put32(o.p + o.used + 4, <uint32_t><int32_t>correlation_ids[n])
            _put64(o.p + o.used + offsets_at[group], <uint64_t><int64_t>admitted[group][taken[group]][0])
            taken[group] += 1
            o.used += size
        return PyBytes_FromStringAndSize(<char *>o.p, o.used)
    finally:
        PyMem_Free(o.p)


cdef int _add_produce_outcome(Out *o, int version, int32_t partition, tuple outcome) except -1:
    cdef bint flexible = version >= 9
    _add32(o, partition)
    _add16(o, outcome[0])
    _add64(o, outcome[1])
    if version >= 2:
        _add64(o, outcome[2])
    if version >= 5:
        _add64(o, outcome[3])
    if version >= 8:
        _add_count(o, len(outcome[4]), flexible)
        for index, message in outcome[4]:
            _add32(o, index)
            _add_string(o, message, flexible)
            if flexible:
                _add8(o, 0)
        _add_string(o, outcome[5], flexible)
    if flexible:
        if version >= 10 and outcome[6] is not None:
            _add8(o, 1)
            _add_leader_tag(o, 0, outcome[6])
        else:
            _add8(o, 0)
    return 0


def encode_fetch_answer(int version, int32_t correlation_id, parts, int32_t session_id=0, endpoints=()):
    cdef Out o
    cdef list chunks = []
    cdef Py_ssize_t size = -4
    _open(&o, 256)
    try:
        _add32(&o, 0)  # the size, known at the end
        _add32(&o, correlation_id)
        if version >= 12:
            _add8(&o, 0)
        size += _add_fetch_body(chunks, &o, version, parts, 0, 0, session_id, endpoints)
        head = chunks[0]
        for chunk in chunks:
            if type(chunk) is bytes:
                size += PyBytes_GET_SIZE(chunk)
        if size > 0x7FFFFFFF:
            raise OverflowError("an answer of more than 2 GiB")
        _put32(<uint8_t *>PyBytes_AS_STRING(head), <uint32_t>size)  # no other reference exists yet
        return chunks
    finally:
        PyMem_Free(o.p)


def encode_fetch_response(
    int version, parts, int32_t throttle_ms=0, int16_t error=0, int32_t session_id=0, endpoints=()
):
    cdef Out o
    cdef list chunks = []
    _open(&o, 256)
    try:
        _add_fetch_body(chunks, &o, version, parts, throttle_ms, error, session_id, endpoints)
        return chunks
    finally:
        PyMem_Free(o.p)


cdef Py_ssize_t _add_fetch_body(
    list chunks, Out *o, int version, parts, int32_t throttle_ms, int16_t error, int32_t session_id, endpoints
) except -1:
    """Returns the bytes of records."""
    cdef bint flexible = version >= 12
    cdef list groups = _groups(parts), members
    cdef tuple pair
    cdef Py_ssize_t size = 0
    _add32(o, throttle_ms)
    if version >= 7:
        _add16(o, error)
        _add32(o, session_id)
    _add_count(o, len(groups), flexible)
    for members in groups:
        pair = <tuple>members[0]
        _add_topic(o, <tuple>pair[0], version >= 13, flexible)
        _add_count(o, len(members), flexible)
        for pair in members:
            _add_fetch_outcome(chunks, o, version, (<tuple>pair[0])[2], <tuple>pair[1])
            size += <Py_ssize_t>(<tuple>pair[1])[6]
        if flexible:
            _add8(o, 0)
    if flexible:
        if endpoints and version >= 16:
            _add_endpoints_tag(o, endpoints)
        else:
            _add8(o, 0)
    chunks.append(PyBytes_FromStringAndSize(<char *>o.p, o.used))
    return size


cdef int _add_fetch_outcome(list chunks, Out *o, int version, int32_t partition, tuple outcome) except -1:
    cdef bint flexible = version >= 12
    _add32(o, partition)
    _add16(o, outcome[0])
    _add64(o, outcome[1])
    _add64(o, outcome[2])
    if version >= 5:
        _add64(o, outcome[3])
    aborted = outcome[4]
    if aborted is None:
        _add_count(o, -1, flexible)
    else:
        _add_count(o, len(aborted), flexible)
        for producer_id, first_offset in aborted:
            _add64(o, producer_id)
            _add64(o, first_offset)
            if flexible:
                _add8(o, 0)
    if version >= 11:
        _add32(o, outcome[9])
    _add_count(o, outcome[6], flexible)
    if outcome[5]:
        chunks.append(PyBytes_FromStringAndSize(<char *>o.p, o.used))
        chunks.extend(outcome[5])
        o.used = 0
    if flexible:
        diverging, leader = outcome[7], outcome[8]
        _add8(o, <uint8_t>((diverging is not None) + (leader is not None)))
        if diverging is not None:
            _add8(o, 0)
            _add8(o, 13)
            _add32(o, diverging[0])
            _add64(o, diverging[1])
            _add8(o, 0)
        if leader is not None:
            _add_leader_tag(o, 1, leader)
    return 0


# ---- the follower's side of Fetch -----------------------------------------------------------------------------------


def encode_fetch_request(
    int version, *, int32_t replica_id, int64_t replica_epoch, int32_t max_wait_ms, int32_t min_bytes,
    int32_t max_bytes, int32_t session_id, int32_t session_epoch, parts, forgotten=(), rack_id="",
    int isolation_level=0,
):
    cdef Out o
    cdef list groups = [], members = None
    cdef tuple part
    cdef object last = None, one
    cdef int64_t watermark
    for one in parts:
        part = <tuple>one
        if members is None or not (part[1] is last or part[1] == last):
            members = []
            groups.append(members)
            last = part[1]
        members.append(part)
    _open(&o, 128 + 48 * len(parts))
    try:
        if version <= 14:
            _add32(&o, replica_id)
        _add32(&o, max_wait_ms)
        _add32(&o, min_bytes)
        _add32(&o, max_bytes)
        _add8(&o, <uint8_t>isolation_level)
        _add32(&o, session_id)
        _add32(&o, session_epoch)
        _add_count(&o, len(groups), True)
        for members in groups:
            _add_id(&o, (<tuple>members[0])[1])
            _add_count(&o, len(members), True)
            for one in members:
                part = <tuple>one
                _add32(&o, part[2])
                _add32(&o, part[3])
                _add64(&o, part[4])
                _add32(&o, part[5])
                _add64(&o, part[6])
                _add32(&o, part[7])
                watermark = part[8]
                if version >= 18 and watermark != WATERMARK_NONE:
                    _add8(&o, 1)
                    _add8(&o, 1)
                    _add8(&o, 8)
                    _add64(&o, watermark)
                else:
                    _add8(&o, 0)
            _add8(&o, 0)
        _add_count(&o, len(forgotten), True)
        for topic_id, indexes in forgotten:
            _add_id(&o, topic_id)
            _add_numbers(&o, indexes, True)
            _add8(&o, 0)
        _add_string(&o, rack_id, True)
        if version >= 15 and (replica_id != -1 or replica_epoch != -1):
            _add8(&o, 1)
            _add8(&o, 1)
            _add8(&o, 13)
            _add32(&o, replica_id)
            _add64(&o, replica_epoch)
        _add8(&o, 0)
        return PyBytes_FromStringAndSize(<char *>o.p, o.used)
    finally:
        PyMem_Free(o.p)


def decode_fetch_response(int version, body, int64_t budget=MAX_OBJECTS):
    cdef Py_buffer view
    cdef Reader r
    cdef const uint8_t *at
    cdef int32_t throttle_ms, session_id
    cdef int16_t error
    cdef int64_t _t, _p
    cdef list parts = []
    assert 13 <= version <= 18, "a follower's fetch goes by topic id"
    frame = memoryview(body)
    nothing = frame[:0]
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        r.p = <const uint8_t *>view.buf
        r.pos = 0
        r.end = view.len
        r.budget = budget
        r.replaced = False
        at = _take(&r, 10)
        throttle_ms = <int32_t>_u32(at)
        error = <int16_t>_u16(at + 4)
        session_id = <int32_t>_u32(at + 6)
        for _t in range(_count(&r, True, 18)):
            topic_id = _topic_id(&r)
            for _p in range(_count(&r, True, 37)):
                parts.append(_answer_part(&r, frame, nothing, topic_id))
            _skip_tags(&r)
        _skip_tags(&r)
        _finish(&r)
        return FetchAnswer(throttle_ms, error, session_id, parts)
    finally:
        PyBuffer_Release(&view)


cdef object _answer_part(Reader *r, object frame, object nothing, object topic_id):
    cdef const uint8_t *at = _take(r, 30)
    cdef int32_t partition = <int32_t>_u32(at)
    cdef int16_t error = <int16_t>_u16(at + 4)
    cdef int64_t watermark = <int64_t>_u64(at + 6)
    cdef int64_t stable = <int64_t>_u64(at + 14)
    cdef int64_t start = <int64_t>_u64(at + 22)
    cdef int32_t preferred
    cdef int64_t _n, size, tag
    cdef Py_ssize_t outer, after
    for _n in range(_nullable_count(r, 17)):
        _take(r, 16)
        _skip_tags(r)
    preferred = <int32_t>_u32(_take(r, 4))
    size = max(0, _uvarint(r) - 1)
    _take(r, size)
    after = r.pos
    diverging = leader = None
    outer = r.end
    for _n in range(_tag_count(r)):
        tag = _enter_tag(r)
        if tag == 0:
            at = _take(r, 12)
            diverging = None if <int32_t>_u32(at) < 0 else (<int32_t>_u32(at), <int64_t>_u64(at + 4))
            _skip_tags(r)
            _finish(r)
        elif tag == 1:
            at = _take(r, 8)
            leader = None if <int32_t>_u32(at + 4) < 0 else (<int32_t>_u32(at), <int32_t>_u32(at + 4))
            _skip_tags(r)
            _finish(r)
        _leave_tag(r, outer)
    records = frame[after - size:after] if size else nothing
    return new(
        FetchAnswerPart,
        (topic_id, partition, error, watermark, stable, start, diverging, leader, preferred, records)
    )


# ---- Metadata, in parts that can be kept ----------------------------------------------------------------------------


cdef int _add_numbers(Out *o, object numbers, bint flexible) except -1:
    _add_count(o, len(numbers), flexible)
    for number in numbers:
        _add32(o, number)
    return 0


def encode_metadata_topic(
    int version, int16_t error, name, topic_id, bint internal, partitions, int32_t authorized_operations=NO_OPERATIONS
):
    cdef Out o
    cdef bint flexible = version >= 9
    _open(&o, 1024)
    try:
        _add16(&o, error)
        _add_string(&o, name, flexible)
        if version >= 10:
            _add_id(&o, topic_id)
        if version >= 1:
            _add8(&o, internal)
        _add_count(&o, len(partitions), flexible)
        for problem, index, leader, epoch, replicas, in_sync, offline in partitions:
            _add16(&o, problem)
            _add32(&o, index)
            _add32(&o, leader)
            if version >= 7:
                _add32(&o, epoch)
            _add_numbers(&o, replicas, flexible)
            _add_numbers(&o, in_sync, flexible)
            if version >= 5:
                _add_numbers(&o, offline, flexible)
            if flexible:
                _add8(&o, 0)
        if version >= 8:
            _add32(&o, authorized_operations)
        if flexible:
            _add8(&o, 0)
        return PyBytes_FromStringAndSize(<char *>o.p, o.used)
    finally:
        PyMem_Free(o.p)


def join_metadata(
    int version, brokers, cluster_id, int32_t controller_id, topics, int32_t throttle_ms=0,
    int32_t cluster_authorized_operations=NO_OPERATIONS, int16_t error=0,
):
    cdef Out o
    cdef bint flexible = version >= 9
    cdef bytes topic
    _open(&o, 4096)
    try:
        if version >= 3:
            _add32(&o, throttle_ms)
        _add_count(&o, len(brokers), flexible)
        for node_id, host, port, rack in brokers:
            _add32(&o, node_id)
            _add_string(&o, host, flexible)
            _add32(&o, port)
            if version >= 1:
                _add_string(&o, rack, flexible)
            if flexible:
                _add8(&o, 0)
        if version >= 2:
            _add_string(&o, cluster_id, flexible)
        if version >= 1:
            _add32(&o, controller_id)
        _add_count(&o, len(topics), flexible)
        for topic in topics:
            _add_raw(&o, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
        if 8 <= version <= 10:
            _add32(&o, cluster_authorized_operations)
        if version >= 13:
            _add16(&o, error)
        if flexible:
            _add8(&o, 0)
        return PyBytes_FromStringAndSize(<char *>o.p, o.used)
    finally:
        PyMem_Free(o.p)
