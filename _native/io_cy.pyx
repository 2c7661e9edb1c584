# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The fast twin of ``io_py``. The worker's thread is plain C: it never waits for the interpreter."""

import errno
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t

from fleetlog._native.io_py import SEND_LIMIT, SMALL, FilePart, Sent, Stop

include "named.pxi"

__all__ = ["SEND_LIMIT", "SMALL", "DiskWorker", "FilePart", "Mapping", "Sent", "Stop", "send_slices"]

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <errno.h>
    #include <fcntl.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/eventfd.h>
    #include <sys/mman.h>
    #include <sys/sendfile.h>
    #include <sys/socket.h>
    #include <sys/stat.h>
    #include <sys/types.h>
    #include <sys/uio.h>
    #include <unistd.h>

    #ifndef RWF_NOWAIT
    #define RWF_NOWAIT 0x00000008
    #endif

    enum { FL_RUNS = 64, FL_GATHER = 256 * 1024, FL_PROBES = 4, FL_AHEAD = 1024 * 1024 };
    enum { FL_WINDOW = 8 * 1024 * 1024 };
    static int64_t fl_page = 4096;
    static uint8_t *fl_scratch = NULL;
    typedef struct iovec fl_iovec;

    /* Exactly these bytes from memory: 0, or an errno; EAGAIN: they are not there, EIO: the file ends before. */
    static int fl_read_cached(int fd, uint8_t *to, size_t length, int64_t position) {
        size_t done = 0;
        int flags = RWF_NOWAIT;
        while (done < length) {
            struct iovec one = {to + done, length - done};
            ssize_t n = preadv2(fd, &one, 1, (off_t)(position + (int64_t)done), flags);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EOPNOTSUPP && flags) { flags = 0; continue; }
            if (n < 0) return errno;
            if (n == 0) return EIO;
            done += (size_t)n;
        }
        return 0;
    }

    static int fl_probe(int fd, int64_t position, int64_t length) {
        uint8_t byte;
        for (int k = 0; k < FL_PROBES; k++) {
            struct iovec one = {&byte, 1};
            int64_t at = position + (length - 1) * k / (FL_PROBES - 1);
            if (preadv2(fd, &one, 1, (off_t)at, RWF_NOWAIT) < 0 && errno != EOPNOTSUPP && errno != EINTR) return errno;
        }
        return 0;
    }

    static void fl_setup(void) { fl_page = (int64_t)sysconf(_SC_PAGESIZE); }

    static void *fl_map(int fd, int64_t position, size_t length) {
        void *base = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, (off_t)position);
        return base == MAP_FAILED ? NULL : base;
    }

    /* Whether all pages of a mapped range are in the page cache: 0, EAGAIN if not, or another errno. */
    static int fl_resident(const uint8_t *base, int64_t start, int64_t end) {
        static unsigned char pages[FL_WINDOW / 4096];
        int64_t begin = start / fl_page * fl_page;
        size_t count = (size_t)((end - begin + fl_page - 1) / fl_page);
        if (mincore((void *)(base + begin), (size_t)(end - begin), pages)) return errno;
        for (size_t k = 0; k < count; k++)
            if (!(pages[k] & 1)) return EAGAIN;
        return 0;
    }

    static int64_t fl_size(int fd) {
        struct stat found;
        return fstat(fd, &found) ? -1 : (int64_t)found.st_size;
    }

    static ssize_t fl_sendmsg(int fd, struct iovec *runs, size_t count, int more) {
        struct msghdr message;
        ssize_t n;
        memset(&message, 0, sizeof message);
        message.msg_iov = runs;
        message.msg_iovlen = count;
        do n = sendmsg(fd, &message, MSG_NOSIGNAL | (more ? MSG_MORE : 0)); while (n < 0 && errno == EINTR);
        return n < 0 ? -errno : n;
    }

    static ssize_t fl_sendfile(int fd, int source, int64_t position, size_t length) {
        off_t at = (off_t)position;
        ssize_t n;
        do n = sendfile(fd, source, &at, length); while (n < 0 && errno == EINTR);
        return n < 0 ? -errno : n;
    }

    /* ---- the worker ---- */

    typedef struct fl_job {
        struct fl_job *next;
        int fd;
        int64_t position, length, result;
        uint64_t id;
    } fl_job;

    typedef struct {
        pthread_t thread;
        pthread_mutex_t lock;
        pthread_cond_t wake;
        fl_job *first, **last; /* waiting */
        fl_job *done, **done_last;
        int stop, event;
        uint8_t *buffer;
    } fl_worker;

    static int64_t fl_read_ahead(fl_worker *w, fl_job *j) {
        int64_t done = 0;
        while (done < j->length) {
            size_t part = j->length - done < FL_AHEAD ? (size_t)(j->length - done) : FL_AHEAD;
            ssize_t n = pread(j->fd, w->buffer, part, (off_t)(j->position + done));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) return -errno;
            if (n == 0) break;
            done += n;
        }
        return done;
    }

    static void *fl_run(void *argument) {
        fl_worker *w = argument;
        uint64_t one = 1;
        pthread_mutex_lock(&w->lock);
        for (;;) {
            fl_job *j;
            while (!w->first && !w->stop) pthread_cond_wait(&w->wake, &w->lock);
            j = w->first;
            if (!j) break;
            w->first = j->next;
            if (!w->first) w->last = &w->first;
            j->next = NULL;
            pthread_mutex_unlock(&w->lock);
            j->result = fl_read_ahead(w, j);
            pthread_mutex_lock(&w->lock);
            *w->done_last = j;
            w->done_last = &j->next;
            if (write(w->event, &one, 8) != 8) { /* the counter is full: it is readable anyway */ }
        }
        pthread_mutex_unlock(&w->lock);
        return NULL;
    }

    static fl_worker *fl_start(int event) {
        fl_worker *w = calloc(1, sizeof *w);
        sigset_t all, before;
        int rc;
        if (!w) return NULL;
        w->buffer = malloc(FL_AHEAD);
        w->event = event;
        w->last = &w->first;
        w->done_last = &w->done;
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->wake, NULL);
        sigfillset(&all); /* signals are for the interpreter's threads */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        rc = w->buffer ? pthread_create(&w->thread, NULL, fl_run, w) : ENOMEM;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (rc) {
            free(w->buffer);
            free(w);
            errno = rc;
            return NULL;
        }
        return w;
    }

    static int fl_submit(fl_worker *w, int fd, int64_t position, int64_t length, uint64_t id) {
        fl_job *j = calloc(1, sizeof *j);
        if (!j) return -1;
        j->fd = fd;
        j->position = position;
        j->length = length;
        j->id = id;
        pthread_mutex_lock(&w->lock);
        *w->last = j;
        w->last = &j->next;
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->lock);
        return 0;
    }

    static fl_job *fl_take(fl_worker *w) {
        fl_job *found;
        pthread_mutex_lock(&w->lock);
        found = w->done;
        w->done = NULL;
        w->done_last = &w->done;
        pthread_mutex_unlock(&w->lock);
        return found;
    }

    static void fl_stop(fl_worker *w) {
        pthread_mutex_lock(&w->lock);
        w->stop = 1;
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }

    static void fl_free(fl_worker *w) {
        while (w->done) {
            fl_job *j = w->done;
            w->done = j->next;
            free(j);
        }
        pthread_mutex_destroy(&w->lock);
        pthread_cond_destroy(&w->wake);
        free(w->buffer);
        free(w);
    }
    """
    ctypedef struct fl_iovec:
        void *iov_base
        size_t iov_len
    ctypedef struct fl_job:
        fl_job *next
        int64_t result
        uint64_t id
    ctypedef struct fl_worker:
        pass
    enum:
        FL_RUNS
        FL_GATHER
        FL_WINDOW
        EAGAIN
    uint8_t *fl_scratch
    int64_t fl_page
    void fl_setup() nogil
    void *fl_map(int fd, int64_t position, size_t length) nogil
    int munmap(void *base, size_t length) nogil
    int fl_resident(const uint8_t *base, int64_t start, int64_t end) nogil
    int64_t fl_size(int fd) nogil
    int fl_read_cached(int fd, uint8_t *to, size_t length, int64_t position) nogil
    int fl_probe(int fd, int64_t position, int64_t length) nogil
    ssize_t fl_sendmsg(int fd, fl_iovec *runs, size_t count, int more) nogil
    ssize_t fl_sendfile(int fd, int source, int64_t position, size_t length) nogil
    fl_worker *fl_start(int event) nogil
    int fl_submit(fl_worker *w, int fd, int64_t position, int64_t length, uint64_t id) nogil
    fl_job *fl_take(fl_worker *w) nogil
    void fl_stop(fl_worker *w) nogil
    void fl_free(fl_worker *w) nogil

from libc.stdlib cimport free, malloc

fl_setup()
fl_scratch = <uint8_t *>malloc(FL_GATHER)
if fl_scratch == NULL:
    raise MemoryError

cdef int64_t SMALL_PART = SMALL
cdef int64_t SENDFILE_MAX = 4 * 1024 * 1024
cdef list spare = []  # one _Gathered: clearing six KiB for each call costs more than using them
cdef object DONE = Stop.DONE
cdef object SOCKET = Stop.SOCKET
cdef object DISK = Stop.DISK
cdef object LIMIT = Stop.LIMIT


cdef int _failed(int number) except -1:
    if number == errno.EIO or number == errno.EFAULT:  # a mapped page that its file no longer has
        number = errno.EIO
        raise OSError(number, "a file part lies behind the end of its file, or the disk failed")
    raise OSError(number, os.strerror(number))


cdef class Mapping:
    """A window of a file in the address space. Only the kernel reads it."""

    cdef uint8_t *base
    cdef readonly int64_t position
    cdef readonly int64_t length

    def __cinit__(self, int fd, int64_t position, int64_t length):
        self.base = NULL
        self.position = position
        self.length = length
        if position < 0 or position % fl_page or not 0 < length <= FL_WINDOW:
            raise ValueError(f"no window: {length} bytes at {position}")
        self.base = <uint8_t *>fl_map(fd, position, <size_t>length)
        if self.base == NULL:
            raise OSError("a file could not be mapped")

    def __dealloc__(self):
        self.close()

    cpdef close(self):
        """Unmap it; parts that name it are sent by sendfile."""
        if self.base != NULL:
            munmap(self.base, <size_t>self.length)
            self.base = NULL

    cdef int64_t covered(self, int64_t position, int64_t length):
        """How many of these bytes are in the window, from the first."""
        if self.base == NULL or position < self.position:
            return 0
        return max(0, min(length, self.position + self.length - position))


cdef class _Gathered:
    """Byte runs for one sendmsg: bytes of the chunks, what is mapped, or what was read into the scratch space."""

    cdef fl_iovec runs[64]
    cdef Py_buffer views[64]
    cdef int count
    cdef int held
    cdef Py_ssize_t size
    cdef bint missed
    cdef Py_ssize_t index  # the byte behind the runs is chunks[index][offset:]
    cdef int64_t offset

    def __cinit__(self):
        self.count = 0
        self.held = 0

    cdef void release(self) noexcept:
        cdef int n
        for n in range(self.held):
            PyBuffer_Release(&self.views[n])
        self.held = self.count = 0
        self.size = 0
        self.missed = False

    def __dealloc__(self):
        self.release()

    cdef int add(self, const void *base, int64_t length) except -1:
        self.runs[self.count].iov_base = <void *>base
        self.runs[self.count].iov_len = <size_t>length
        self.size += <Py_ssize_t>length
        self.count += 1
        return 0

    cdef int collect(self, object chunks, Py_ssize_t index, Py_ssize_t total, int64_t offset) except -1:
        cdef Py_ssize_t room = FL_GATHER
        self.release()
        self.index, self.offset = index, offset
        while self.index < total and self.count < FL_RUNS:
            chunk = chunks[self.index]
            if isinstance(chunk, tuple):
                if not self.part(<tuple>chunk, &room):
                    break
            else:
                PyObject_GetBuffer(chunk, &self.views[self.held], PyBUF_SIMPLE)
                self.held += 1
                self.add(self.views[self.held - 1].buf, self.views[self.held - 1].len)
            self.index += 1
            self.offset = 0
        return 0

    cdef bint part(self, tuple chunk, Py_ssize_t *room) except -1:
        """Whether all of the file part is among the runs now, and more may follow."""
        cdef int source = chunk[0], problem
        cdef int64_t position = <int64_t>chunk[1] + self.offset, length = <int64_t>chunk[2] - self.offset, covered = 0
        cdef Mapping mapping = <Mapping?>chunk[3] if chunk[3] is not None else None
        cdef uint8_t *at
        if mapping is not None:
            covered = mapping.covered(position, length)
        if covered:
            at = mapping.base + (position - mapping.position)
            problem = fl_resident(mapping.base, position - mapping.position, position - mapping.position + covered)
            if problem == EAGAIN and position + covered > fl_size(source):
                problem = errno.EIO
        elif length > SMALL_PART or length > room[0] or self.offset:
            return False
        else:
            at = fl_scratch + (FL_GATHER - room[0])
            problem = fl_read_cached(source, at, <size_t>length, position)
            room[0] -= <Py_ssize_t>length
        if problem == EAGAIN:
            self.missed = True
            return False
        if problem:
            _failed(problem)
        self.add(at, covered or length)
        if covered and covered < length:
            self.offset += covered
            return False
        return True


cdef object _sent(Py_ssize_t sent, object stop):
    return new(Sent, (sent, stop))


def send_slices(int fd, chunks, Py_ssize_t limit=SEND_LIMIT):
    cdef _Gathered gathered = spare.pop() if spare else _Gathered()
    try:
        return _send(fd, chunks, limit, gathered)
    finally:
        gathered.release()
        if not spare:
            spare.append(gathered)


cdef object _send(int fd, object chunks, Py_ssize_t limit, _Gathered gathered):
    cdef Py_ssize_t sent = 0, index = 0, total = len(chunks)
    cdef int64_t offset = 0, position, length, part
    cdef ssize_t count
    cdef int source, problem
    while index < total:
        if sent >= limit:
            return _sent(sent, LIMIT)
        gathered.collect(chunks, index, total, offset)
        if gathered.count:
            index, offset = gathered.index, gathered.offset
            count = fl_sendmsg(fd, gathered.runs, <size_t>gathered.count, not gathered.missed and index < total)
            if count == -EAGAIN:
                return _sent(sent, SOCKET)
            if count < 0:
                _failed(<int>-count)
            sent += count
            if count < gathered.size:
                return _sent(sent, SOCKET)
        elif not gathered.missed:
            source, position, length, _ = chunks[index]
            part = min(length - offset, SENDFILE_MAX)
            problem = fl_probe(source, position + offset, part)
            if problem == EAGAIN:
                return _sent(sent, DISK)
            if problem:
                _failed(problem)
            count = fl_sendfile(fd, source, position + offset, <size_t>part)
            if count == -EAGAIN:
                return _sent(sent, SOCKET)
            if count == 0:
                _failed(errno.EIO)
            if count < 0:
                _failed(<int>-count)
            sent += count
            offset += count
            if offset == length:
                index += 1
                offset = 0
        if gathered.missed:
            return _sent(sent, DISK)
    return _sent(sent, DONE)


cdef class DiskWorker:
    """A thread that waits for the disk, and an eventfd that becomes readable when it has done something."""

    cdef fl_worker *worker
    cdef int event
    cdef uint64_t next_id
    cdef dict tokens
    cdef readonly Py_ssize_t pending

    def __cinit__(self):
        self.worker = NULL
        self.pending = 0
        self.next_id = 0
        self.tokens = {}
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.worker = fl_start(self.event)
        if self.worker == NULL:
            os.close(self.event)
            raise OSError("a thread for the disk could not be started")

    def __dealloc__(self):
        if self.worker != NULL:
            with nogil:
                fl_stop(self.worker)
            fl_free(self.worker)
            self.worker = NULL
            os.close(self.event)

    def fileno(self):
        """The eventfd, for a loop's add_reader."""
        return self.event

    def read_ahead(self, int fd, int64_t position, int64_t length, token=None):
        """Bring a range into the page cache; the caller keeps ``fd`` open until its completion."""
        if self.worker == NULL:
            raise RuntimeError("the disk worker is closed")
        if fl_submit(self.worker, fd, position, length, self.next_id) < 0:
            raise MemoryError
        self.tokens[self.next_id] = token
        self.next_id += 1
        self.pending += 1

    def completions(self):
        """(token, result) of the reads done since the last call: their bytes, or minus the errno."""
        cdef list found = []
        cdef fl_job *job
        cdef fl_job *after
        if self.worker == NULL:
            return found
        try:
            os.eventfd_read(self.event)
        except BlockingIOError:
            pass
        job = fl_take(self.worker)
        while job != NULL:
            after = job.next
            found.append((self.tokens.pop(job.id), job.result))
            free(job)
            job = after
        self.pending -= len(found)
        return found

    def close(self):
        """Finish the queued reads, end the thread and close the eventfd; completions not taken are lost."""
        if self.worker != NULL:
            with nogil:
                fl_stop(self.worker)
            fl_free(self.worker)
            self.worker = NULL
            self.tokens.clear()
            os.close(self.event)
