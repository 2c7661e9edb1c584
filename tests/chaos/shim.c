/* Moves CLOCK_REALTIME of one process, and nothing else: monotonic clocks, timers and futexes stay true, so Java and
 * ZooKeeper live with it. LD_PRELOAD it with CHAOS_CLOCK naming a file of two 64-bit numbers that is mapped by both
 * sides: the offset in nanoseconds, and how many readings were answered with an offset other than zero. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *board;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (path == NULL) return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) board = mapped;
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
