# cython: language_level=3, boundscheck=False, wraparound=False
"""The fast twin of ``files_py``."""

import os

from libc.stdint cimport int64_t

from fleetlog._native.files_py import MAPPED_BELOW, MAPPED_FROM, SliceGone
from fleetlog._native.io_py import FilePart

include "named.pxi"

__all__ = ["MAPPED_BELOW", "MAPPED_FROM", "FileSlice", "OpenFile", "SliceGone"]

cdef int64_t FROM = MAPPED_FROM, BELOW = MAPPED_BELOW


cdef class OpenFile:
    cdef public int fd, pins
    cdef public bint removed, recently_used

    def __init__(self):
        self.fd = -1

    def opened(self):
        raise NotImplementedError

    def close(self):
        raise NotImplementedError

    def failure(self, wrong):
        raise NotImplementedError

    @property
    def pinned(self):
        return self.pins > 0

    cdef int descriptor(self) except -1:
        self.recently_used = True
        if self.fd < 0:
            self.fd = self.opened()
        return self.fd

    def fileno(self):
        return self.descriptor()

    def read(self, int64_t position, int64_t length):
        cdef int fd = self.descriptor()
        try:
            data = os.pread(fd, length, position)
            while len(data) < length:
                more = os.pread(fd, length - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as wrong:
            raise self.failure(wrong) from wrong
        return data

    cdef int pin(self) except -1:
        self.descriptor()
        self.pins += 1
        return 0

    cdef int unpin(self) except -1:
        if self.pins <= 0:
            raise AssertionError("released more often than retained")
        self.pins -= 1
        if self.pins == 0 and self.removed:
            self.close()
        return 0

    def retain(self):
        self.pin()

    def release(self):
        self.unpin()


cdef class FileSlice:
    cdef readonly object file
    cdef public int64_t position, length
    cdef object cuts
    cdef Py_ssize_t cuts_before
    cdef int references

    def __init__(self, file, int64_t position, int64_t length, cuts=()):
        self.cuts = cuts
        self.cuts_before = len(cuts)
        self.file = file
        self.position = position
        self.length = length
        if isinstance(file, OpenFile):
            (<OpenFile>file).pin()
        else:
            file.retain()
        self.references = 1

    cdef int check(self) except -1:
        if len(self.cuts) > self.cuts_before and min(self.cuts[self.cuts_before :]) < self.position + self.length:
            raise SliceGone(f"{self.file.path}: {self.length} bytes at {self.position} were truncated away")
        return 0

    cdef int let_go(self) except -1:
        if isinstance(self.file, OpenFile):
            (<OpenFile>self.file).unpin()
        else:
            self.file.release()
        return 0

    def fileno(self):
        self.check()
        return self.file.fileno()

    def part(self, int64_t position, int64_t length):
        self.check()
        mapping = self.file.window(position) if FROM <= length < BELOW else None
        fd = (<OpenFile>self.file).descriptor() if isinstance(self.file, OpenFile) else self.file.fileno()
        return new(FilePart, (fd, position, length, mapping))

    def read(self):
        self.check()
        data = self.file.read(self.position, self.length)
        if len(data) != self.length:
            raise SliceGone(f"{self.file.path}: {self.length} bytes at {self.position} were truncated away")
        return data

    def retain(self):
        self.references += 1
        return self

    def release(self):
        self.references -= 1
        if self.references == 0:
            self.let_go()

    def __del__(self):
        # A reader that ends without releasing must not keep a deleted segment's space for ever.
        if self.references > 0:
            self.references = 0
            self.let_go()

    def __repr__(self):
        return f"FileSlice({self.file.path!r}, {self.position}, {self.length})"
