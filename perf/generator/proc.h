/* What the kernel counts about processes and about the machine, from /proc. */
#ifndef FLEETLOG_PERF_PROC_H
#define FLEETLOG_PERF_PROC_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* utime + stime of a process in seconds; -1 when it is gone. */
static double process_cpu(int pid) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    size_t size = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[size] = 0;
    char *after_name = strrchr(line, ')');
    unsigned long user, system;
    if (!after_name || sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        return -1;
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* A line of /proc/PID/status in KiB, such as "VmRSS:"; -1 when it is gone. */
static long process_kib(int pid, const char *field) {
    char path[64], line[256];
    long value = -1;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field))) {
            value = atol(line + strlen(field));
            break;
        }
    fclose(file);
    return value;
}

/* CPU seconds that all processes of the machine used since boot (not idle, not waiting for a disk). */
static double machine_busy(void) {
    unsigned long long field[8] = {0};
    FILE *file = fopen("/proc/stat", "r");
    if (!file) return 0;
    int found = fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", field, field + 1, field + 2, field + 3,
                       field + 4, field + 5, field + 6, field + 7);
    fclose(file);
    if (found != 8) return 0;
    return (double)(field[0] + field[1] + field[2] + field[5] + field[6] + field[7]) / (double)sysconf(_SC_CLK_TCK);
}

#endif
