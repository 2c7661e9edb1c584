/* Three things for the processes of one host, by LD_PRELOAD.
 *
 * CHAOS_CLOCK names a file of two 64-bit numbers that is mapped by both sides: an offset in nanoseconds by which
 * CLOCK_REALTIME is moved, and how many readings were answered with an offset other than zero. Nothing else is moved:
 * monotonic clocks, timers and futexes stay true, so Java and ZooKeeper live with it.
 *
 * CHAOS_HOST is the number of the host where the network is made of relays: what it connects to at 127.77.0.B stands for
 * it at 127.77.HOST.B.
 *
 * CHAOS_BUCKET is a directory; CHAOS_BUCKET_BOARD names a file of four 64-bit numbers: of a thousand calls that open,
 * link or remove a file in the directory so many fail with EIO, so many are done and fail nevertheless, each waits up to
 * so many microseconds; and how many calls that happened to. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *board;
static volatile int64_t *trouble;
static const char *bucket;
static size_t bucket_length;
static int host;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_connect)(int, const struct sockaddr *, socklen_t);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_BUCKET_BOARD");
    bucket = getenv("CHAOS_BUCKET");
    if (path != NULL && bucket != NULL) {
        int open_board = open(path, O_RDWR | O_CLOEXEC);
        void *shared = open_board < 0 ? MAP_FAILED : mmap(NULL, 32, PROT_READ | PROT_WRITE, MAP_SHARED, open_board, 0);
        if (open_board >= 0) close(open_board);
        bucket_length = strlen(bucket);
        if (shared != MAP_FAILED) trouble = shared;
    }
    path = getenv("CHAOS_CLOCK");
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_connect = dlsym(RTLD_NEXT, "connect");
    if (getenv("CHAOS_HOST") != NULL) host = atoi(getenv("CHAOS_HOST"));
    if (path == NULL) return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) board = mapped;
}

/* 0: the call goes on; 1: it fails; 2: it is done, and fails. */
static int fate(const char *path) {
    static __thread uint64_t state;
    if (trouble == NULL || path == NULL || strncmp(path, bucket, bucket_length) != 0) return 0;
    int64_t fails = trouble[0], loses = trouble[1], longest = trouble[2];
    if (fails == 0 && loses == 0 && longest == 0) return 0;
    if (state == 0) state = (uint64_t)(uintptr_t)&state ^ (uint64_t)getpid() << 32 ^ 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    if (longest > 0) usleep((useconds_t)(state / 1000 % (uint64_t)longest));
    int64_t drawn = (int64_t)(state % 1000);
    int chosen = drawn < fails ? 1 : drawn < fails + loses ? 2 : 0;
    if (chosen != 0 || longest > 0) __atomic_add_fetch(&trouble[3], 1, __ATOMIC_RELAXED);
    return chosen;
}

static int told(int chosen, int result) {
    if (chosen == 0) return result;
    errno = EIO;
    return -1;
}

int open64(const char *path, int flags, ...) {
    static int (*real)(const char *, int, ...);
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    if (real == NULL) real = dlsym(RTLD_NEXT, "open64");
    return fate(path) != 0 ? told(1, -1) : real(path, flags, mode);
}

DIR *opendir(const char *path) {
    static DIR *(*real)(const char *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "opendir");
    if (fate(path) == 0) return real(path);
    errno = EIO;
    return NULL;
}

int linkat(int from, const char *path, int to, const char *name, int flags) {
    static int (*real)(int, const char *, int, const char *, int);
    if (real == NULL) real = dlsym(RTLD_NEXT, "linkat");
    int chosen = fate(name);
    return told(chosen, chosen == 1 ? -1 : real(from, path, to, name, flags));
}

int link(const char *path, const char *name) {
    static int (*real)(const char *, const char *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "link");
    int chosen = fate(name);
    return told(chosen, chosen == 1 ? -1 : real(path, name));
}

int rename(const char *path, const char *name) {
    static int (*real)(const char *, const char *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "rename");
    int chosen = fate(name);
    return told(chosen, chosen == 1 ? -1 : real(path, name));
}

int unlink(const char *path) {
    static int (*real)(const char *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "unlink");
    int chosen = fate(path);
    return told(chosen, chosen == 1 ? -1 : real(path));
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (real_clock_gettime == NULL) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real_clock_gettime(clock, now);
    if (result == 0 && board != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t offset = board[0];
        if (offset != 0) {
            int64_t total = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + offset;
            now->tv_sec = total / 1000000000;
            now->tv_nsec = total % 1000000000;
            __atomic_add_fetch(&board[1], 1, __ATOMIC_RELAXED);
        }
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    if (result == 0) {
        now->tv_sec = exact.tv_sec;
        now->tv_usec = exact.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *where) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return (time_t)-1;
    if (where != NULL) *where = exact.tv_sec;
    return exact.tv_sec;
}

static void turn(unsigned char *address) {
    if (address[0] == 127 && address[1] == 77 && address[2] == 0 && address[3] != host) address[2] = (unsigned char)host;
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    if (real_connect == NULL) real_connect = dlsym(RTLD_NEXT, "connect");
    if (host != 0 && address != NULL && address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in turned;
        memcpy(&turned, address, sizeof turned);
        turn((unsigned char *)&turned.sin_addr);
        return real_connect(socket, (struct sockaddr *)&turned, sizeof turned);
    }
    if (host != 0 && address != NULL && address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
        struct sockaddr_in6 turned;
        memcpy(&turned, address, sizeof turned);
        if (IN6_IS_ADDR_V4MAPPED(&turned.sin6_addr)) turn(turned.sin6_addr.s6_addr + 12);
        return real_connect(socket, (struct sockaddr *)&turned, sizeof turned);
    }
    return real_connect(socket, address, length);
}
