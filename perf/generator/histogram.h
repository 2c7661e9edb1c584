/* Counts of durations in log-linear buckets, the layout of HdrHistogram: every bucket is at most 1/1024 wide. */
#ifndef FLEETLOG_PERF_HISTOGRAM_H
#define FLEETLOG_PERF_HISTOGRAM_H

#include <stdint.h>
#include <stdio.h>

enum { LINEAR = 2048, HALF = 1024, BUCKETS = LINEAR + HALF * 53 };

struct histogram {
    uint64_t counts[BUCKETS];
    uint64_t total;
};

static inline unsigned bucket_of(uint64_t value) {
    if (value < LINEAR) return (unsigned)value;
    unsigned shift = 63 - (unsigned)__builtin_clzll(value) - 10;
    return LINEAR + (shift - 1) * HALF + (unsigned)((value >> shift) - HALF);
}

/* The largest value of a bucket: what a percentile reports, never less than what was measured. */
static inline uint64_t bucket_top(unsigned index) {
    if (index < LINEAR) return index;
    unsigned shift = (index - LINEAR) / HALF + 1;
    uint64_t mantissa = (index - LINEAR) % HALF + HALF;
    return ((mantissa + 1) << shift) - 1;
}

static inline void record(struct histogram *histogram, uint64_t value) {
    histogram->counts[bucket_of(value)]++;
    histogram->total++;
}

/* [[nanoseconds, count], ...] of the buckets that hold something. */
static inline void print_histogram(FILE *out, const struct histogram *histogram) {
    const char *comma = "";
    fputc('[', out);
    for (unsigned index = 0; index < BUCKETS; index++)
        if (histogram->counts[index]) {
            fprintf(out, "%s[%llu,%llu]", comma, (unsigned long long)bucket_top(index),
                    (unsigned long long)histogram->counts[index]);
            comma = ",";
        }
    fputc(']', out);
}

#endif
