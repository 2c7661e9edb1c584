/* A disk whose fsync is slow, for one process, by LD_PRELOAD. SLOW_DISK names a file with a 64-bit number that is mapped
 * by both sides: microseconds by which each fsync and fdatasync takes longer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile int64_t *board;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SLOW_DISK");
    if (path == NULL) return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) board = mapped;
}

static int delayed(const char *name, int file) {
    if (board != NULL && board[0] > 0) usleep((useconds_t)board[0]);
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(file);
}

int fsync(int file) { return delayed("fsync", file); }

int fdatasync(int file) { return delayed("fdatasync", file); }
