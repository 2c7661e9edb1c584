/* The load generator: prebuilt frames over plain sockets, one thread, epoll.
 *
 *   generator PLAN     runs the plan, prints one JSON object
 *
 * A plan is lines of words:
 *   warmup SECONDS | measure SECONDS | drain SECONDS | pid PID
 *   flow NAME HOST PORT CONNECTIONS closed DEPTH FRAMES   each connection keeps DEPTH requests under way
 *   flow NAME HOST PORT CONNECTIONS open RATE FRAMES      RATE requests/s by the clock, whatever the answers do
 * FRAMES is a file made by perf/frames.py. Connection i starts with frame i; a frame with a fetch offset stays with its
 * connection, which moves the offset on by what the answers bring.
 *
 * Latency is counted from the moment a request was due (open) or sent (closed): a server that stalls delays what
 * should have been sent meanwhile, and that is counted (no coordinated omission). What an answer brings beyond its
 * first bytes is dropped in the kernel (MSG_TRUNC), so that the generator costs little.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "histogram.h"
#include "proc.h"

enum { MAX_FLOWS = 16, MAX_PIDS = 16, MAX_IOV = 64, HEAD = 192, BUFFER = 1 << 18, EVENTS = 1024, ERRORS = 128 };

/* One request. Positions are relative to the frame, or to the answer behind its length; 0 means there is none. */
struct frame {
    uint32_t size, error_at, records_at, offset_at, batch_bytes, batch_records;
    uint64_t payload, wrap;
    uint8_t *bytes;
};

struct flow {
    char name[64];
    struct sockaddr_in address;
    int connections, depth;
    double rate;
    struct frame *frames;
    int frame_count;
    int64_t due, step;
    int next;
    uint64_t requests, answered_bytes, payload, unanswered, errors[ERRORS];
    struct histogram latency;
};

struct connection {
    struct flow *flow;
    int fd, wants_write, closed;
    uint32_t frame;           /* the next one to send */
    uint8_t *own;             /* a private copy of the frame, where its fetch offset moves */
    int64_t *times;           /* when requests were due or sent: a ring */
    uint32_t room, head, sent_to, tail; /* head: oldest unanswered; sent_to: first unsent; tail: next free */
    uint32_t partial;         /* bytes of the request at sent_to that are sent */
    uint32_t answering;       /* frame of the oldest unanswered request */
    uint32_t have;            /* bytes of the answer's head that are here */
    uint64_t skip;            /* bytes of the answer still to be dropped */
    uint8_t bytes[HEAD];
};

static double warmup_s = 1, measure_s = 3, drain_s = 5;
static int pids[MAX_PIDS], pid_count, flow_count, connection_count, epoll_fd;
static struct flow *flows[MAX_FLOWS];
static struct connection *connections;
static int64_t window_start, window_end;
static uint64_t closed_by_peer;

static void die(const char *what) {
    fprintf(stderr, "generator: %s: %s\n", what, strerror(errno));
    exit(2);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* ---- the plan */

static void read_frames(struct flow *flow, const char *path) {
    FILE *file = fopen(path, "rb");
    uint32_t count;
    if (!file || fread(&count, 4, 1, file) != 1) die(path);
    flow->frames = calloc(count, sizeof *flow->frames);
    flow->frame_count = (int)count;
    for (uint32_t i = 0; i < count; i++) {
        struct frame *frame = &flow->frames[i];
        if (fread(frame, 1, 40, file) != 40) die(path);
        frame->bytes = malloc(frame->size);
        if (fread(frame->bytes, 1, frame->size, file) != frame->size) die(path);
    }
    fclose(file);
}

static void read_flow(const char *words) {
    char host[64], mode[16], path[1024];
    int port;
    double amount;
    struct flow *flow = calloc(1, sizeof *flow);
    if (flow_count == MAX_FLOWS ||
        sscanf(words, "%63s %63s %d %d %15s %lf %1023s", flow->name, host, &port, &flow->connections, mode, &amount, path) != 7)
        die(words);
    flow->address.sin_family = AF_INET;
    flow->address.sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, host, &flow->address.sin_addr) != 1) die(host);
    if (!strcmp(mode, "closed")) flow->depth = (int)amount;
    else flow->rate = amount, flow->step = (int64_t)(1e9 / amount);
    read_frames(flow, path);
    connection_count += flow->connections;
    flows[flow_count++] = flow;
}

static void read_plan(const char *path) {
    char line[2048];
    FILE *file = fopen(path, "r");
    if (!file) die(path);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "warmup %lf", &warmup_s) == 1 || sscanf(line, "measure %lf", &measure_s) == 1 ||
            sscanf(line, "drain %lf", &drain_s) == 1)
            continue;
        if (!strncmp(line, "pid ", 4) && pid_count < MAX_PIDS) pids[pid_count++] = atoi(line + 4);
        else if (!strncmp(line, "flow ", 5)) read_flow(line + 5);
    }
    fclose(file);
}

/* ---- connections */

static void watch(struct connection *connection, int write) {
    struct epoll_event event = {.events = EPOLLIN | (write ? EPOLLOUT : 0), .data.ptr = connection};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->fd, &event)) die("epoll_ctl");
    connection->wants_write = write;
}

static void open_connection(struct connection *connection, struct flow *flow, int number) {
    int one = 1;
    connection->flow = flow;
    connection->frame = connection->answering = (uint32_t)(number % flow->frame_count);
    connection->room = flow->depth ? (uint32_t)flow->depth : 64;
    connection->times = malloc(connection->room * sizeof *connection->times);
    struct frame *frame = &flow->frames[connection->frame];
    if (frame->offset_at) {
        connection->own = malloc(frame->size);
        memcpy(connection->own, frame->bytes, frame->size);
    }
    connection->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connection->fd < 0) die("socket");
    if (connect(connection->fd, (struct sockaddr *)&flow->address, sizeof flow->address)) die("connect");
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(connection->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, connection->fd, &event)) die("epoll_ctl");
}

static void lose(struct connection *connection) {
    close(connection->fd);
    connection->closed = 1;
    closed_by_peer++;
    connection->flow->unanswered += connection->tail - connection->head;
}

/* ---- sending */

static void flush(struct connection *connection) {
    struct flow *flow = connection->flow;
    while (connection->sent_to != connection->tail && !connection->closed) {
        struct iovec parts[MAX_IOV];
        int count = 0;
        uint32_t skip = connection->partial, frame = connection->frame;
        for (uint32_t at = connection->sent_to; at != connection->tail && count < MAX_IOV; at++) {
            struct frame *next = &flow->frames[frame];
            uint8_t *bytes = connection->own ? connection->own : next->bytes;
            parts[count++] = (struct iovec){bytes + skip, next->size - skip};
            skip = 0;
            if (!connection->own) frame = (frame + 1) % (uint32_t)flow->frame_count;
        }
        ssize_t sent = writev(connection->fd, parts, count);
        if (sent < 0) {
            if (errno == EAGAIN) {
                if (!connection->wants_write) watch(connection, 1);
                return;
            }
            lose(connection);
            return;
        }
        for (int i = 0; i < count && sent; i++) {
            if ((size_t)sent < parts[i].iov_len) {
                connection->partial = flow->frames[connection->frame].size - (uint32_t)(parts[i].iov_len - (size_t)sent);
                break;
            }
            sent -= (ssize_t)parts[i].iov_len;
            connection->partial = 0;
            connection->sent_to++;
            if (!connection->own) connection->frame = (connection->frame + 1) % (uint32_t)flow->frame_count;
        }
    }
    if (connection->wants_write && !connection->closed) watch(connection, 0);
}

static void enqueue(struct connection *connection, int64_t when) {
    if (connection->closed) return;
    if (connection->tail - connection->head == connection->room) { /* open loop: the ring grows, nothing is left out */
        int64_t *larger = malloc(2 * connection->room * sizeof *larger);
        for (uint32_t at = connection->head; at != connection->tail; at++)
            larger[at % (2 * connection->room)] = connection->times[at % connection->room];
        free(connection->times);
        connection->times = larger;
        connection->room *= 2;
    }
    connection->times[connection->tail++ % connection->room] = when;
}

static void refill(struct connection *connection, int64_t now) {
    struct flow *flow = connection->flow;
    if (flow->depth && now < window_end)
        while (connection->tail - connection->head < (uint32_t)flow->depth) enqueue(connection, now);
    flush(connection);
}

/* Requests that are due by now; returns when the next one is. */
static int64_t issue(int64_t now) {
    int64_t next = INT64_MAX;
    int first = 0;
    for (int i = 0; i < flow_count; first += flows[i++]->connections) {
        struct flow *flow = flows[i];
        if (!flow->step) continue;
        while (flow->due <= now && flow->due < window_end) {
            struct connection *connection = &connections[first + flow->next];
            flow->next = (flow->next + 1) % flow->connections;
            enqueue(connection, flow->due);
            flush(connection);
            flow->due += flow->step;
        }
        if (flow->due < window_end && flow->due < next) next = flow->due;
    }
    return next;
}

/* ---- answers */

static int64_t big_endian(const uint8_t *bytes, int size) {
    int64_t value = 0;
    while (size--) value = value << 8 | *bytes++;
    return value;
}

/* Move the fetch offset on by the whole batches of an answer; how many bytes of records it has. */
static uint64_t advance(struct connection *connection, struct frame *frame, const uint8_t *answer) {
    uint64_t size = 0;
    int shift = 0;
    const uint8_t *at = answer + frame->records_at;
    do size |= (uint64_t)(*at & 0x7f) << shift, shift += 7;
    while (*at++ & 0x80 && shift < 35);
    size = size ? size - 1 : 0; /* a compact length counts one more */
    uint64_t offset = (uint64_t)big_endian(connection->own + frame->offset_at, 8);
    offset += size / frame->batch_bytes * frame->batch_records;
    if (frame->wrap && offset >= frame->wrap) offset = 0;
    for (int i = 7; i >= 0; i--, offset >>= 8) connection->own[frame->offset_at + i] = (uint8_t)offset;
    return size;
}

static void answered(struct connection *connection, const uint8_t *answer, uint32_t size, int64_t now) {
    struct flow *flow = connection->flow;
    struct frame *frame = &flow->frames[connection->answering];
    uint32_t error = size < frame->error_at + 2 ? ERRORS : (uint32_t)big_endian(answer + frame->error_at, 2);
    uint64_t payload = frame->payload;
    if (frame->records_at) payload = error ? 0 : advance(connection, frame, answer);
    else connection->answering = (connection->answering + 1) % (uint32_t)flow->frame_count;
    int64_t since = connection->times[connection->head++ % connection->room];
    int64_t counted = flow->depth ? now : since; /* by the answer if closed, by the due time if open */
    if (counted < window_start || counted >= window_end) return;
    flow->requests++;
    flow->answered_bytes += size + 4;
    flow->payload += payload;
    if (error) flow->errors[error < ERRORS ? error : 0]++; /* 0: no code that Kafka has, or no room for one */
    record(&flow->latency, (uint64_t)(now > since ? now - since : 0));
}

/* How much of an answer must be seen before it can be judged. */
static uint32_t head_size(struct connection *connection) {
    struct frame *frame = &connection->flow->frames[connection->answering];
    return frame->records_at ? frame->records_at + 5 : frame->error_at + 2;
}

/* Take received bytes in: 0 if an answer makes no sense. */
static int take(struct connection *connection, const uint8_t *data, size_t count, int64_t now) {
    while (count) {
        if (connection->skip) {
            size_t step = count < connection->skip ? count : connection->skip;
            connection->skip -= step, data += step, count -= step;
            continue;
        }
        if (connection->head == connection->sent_to) return 0;
        uint32_t wanted = 4 + head_size(connection);
        if (connection->have >= 4) {
            uint32_t size = (uint32_t)big_endian(connection->bytes, 4);
            if (wanted > size + 4) wanted = size + 4;
        }
        size_t step = wanted - connection->have < count ? wanted - connection->have : count;
        if (connection->have < 4 && step > 4 - connection->have) step = 4 - connection->have;
        memcpy(connection->bytes + connection->have, data, step);
        connection->have += (uint32_t)step, data += step, count -= step;
        if (connection->have < wanted || connection->have <= 4) continue;
        uint32_t size = (uint32_t)big_endian(connection->bytes, 4);
        connection->skip = size + 4 - connection->have;
        memset(connection->bytes + connection->have, 0, HEAD - connection->have);
        answered(connection, connection->bytes + 4, size, now);
        connection->have = 0;
    }
    return 1;
}

static void receive(struct connection *connection, uint8_t *buffer, int64_t now) {
    for (;;) {
        int dropping = connection->skip > 4096;
        size_t room = dropping ? connection->skip : BUFFER;
        ssize_t count = recv(connection->fd, buffer, room, dropping ? MSG_TRUNC : 0);
        if (count < 0 && errno == EAGAIN) break;
        if (count <= 0) {
            lose(connection);
            return;
        }
        if (dropping) connection->skip -= (uint64_t)count;
        else if (!take(connection, buffer, (size_t)count, now)) {
            fprintf(stderr, "generator: an answer nobody asked for\n");
            lose(connection);
            return;
        }
        if ((size_t)count < room) break;
    }
    refill(connection, now);
}

/* ---- the run */

struct reading {
    double busy, self, cpu[MAX_PIDS];
};

static struct reading read_cpu(void) {
    struct reading reading = {.busy = machine_busy()};
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    reading.self = (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
                   (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    for (int i = 0; i < pid_count; i++) reading.cpu[i] = process_cpu(pids[i]);
    return reading;
}

static uint64_t under_way(void) {
    uint64_t count = 0;
    for (int i = 0; i < connection_count; i++)
        if (!connections[i].closed) count += connections[i].tail - connections[i].head;
    return count;
}

static void report(struct reading *before, struct reading *after, double seconds) {
    const char *comma = "";
    printf("{\"seconds\":%.6f,\"closed\":%llu,\"self_cpu_s\":%.6f,\"machine_busy_s\":%.3f,\"processes\":[", seconds,
           (unsigned long long)closed_by_peer, after->self - before->self, after->busy - before->busy);
    for (int i = 0; i < pid_count; i++, comma = ",")
        printf("%s{\"pid\":%d,\"cpu_s\":%.3f,\"rss_kib\":%ld,\"peak_kib\":%ld}", comma, pids[i],
               after->cpu[i] - before->cpu[i], process_kib(pids[i], "RssAnon:"), process_kib(pids[i], "VmHWM:"));
    printf("],\"flows\":[");
    for (int i = 0; i < flow_count; i++) {
        struct flow *flow = flows[i];
        printf("%s{\"name\":\"%s\",\"requests\":%llu,\"payload_bytes\":%llu,\"answered_bytes\":%llu,\"unanswered\":%llu,"
               "\"errors\":{", i ? "," : "", flow->name, (unsigned long long)flow->requests,
               (unsigned long long)flow->payload, (unsigned long long)flow->answered_bytes,
               (unsigned long long)flow->unanswered);
        comma = "";
        for (int code = 0; code < ERRORS; code++)
            if (flow->errors[code]) printf("%s\"%d\":%llu", comma, code, (unsigned long long)flow->errors[code]), comma = ",";
        printf("},\"latency_ns\":");
        print_histogram(stdout, &flow->latency);
        printf("}");
    }
    printf("]}\n");
}

static void wait_for_events(int64_t until, int64_t now, uint8_t *buffer) {
    struct epoll_event events[EVENTS];
    int64_t wait = until > now ? until - now : 0;
    struct timespec timeout = {wait / 1000000000, wait % 1000000000};
    int count = epoll_pwait2(epoll_fd, events, EVENTS, &timeout, NULL);
    if (count < 0 && errno != EINTR) die("epoll_pwait2");
    for (int i = 0; i < count; i++) {
        struct connection *connection = events[i].data.ptr;
        if (connection->closed) continue;
        if (events[i].events & EPOLLOUT) flush(connection);
        if (!connection->closed && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(connection, buffer, now_ns());
    }
}

static void run(void) {
    uint8_t *buffer = malloc(BUFFER);
    struct reading before = {0}, after = {0};
    int64_t start = now_ns(), opened = 0, closed_at = 0;
    window_start = start + (int64_t)(warmup_s * 1e9);
    window_end = window_start + (int64_t)(measure_s * 1e9);
    int64_t give_up = window_end + (int64_t)(drain_s * 1e9);
    for (int i = 0; i < flow_count; i++) flows[i]->due = start;
    for (int i = 0; i < connection_count; i++) refill(&connections[i], start);
    for (int64_t now = start;; now = now_ns()) {
        if (!opened && now >= window_start) before = read_cpu(), opened = now_ns();
        if (!closed_at && now >= window_end) after = read_cpu(), closed_at = now_ns();
        int64_t due = issue(now); /* before the end is looked at: all that was due in the window, also if it is over */
        if (closed_at && (now >= give_up || !under_way())) break;
        if (closed_by_peer == (uint64_t)connection_count) break;
        int64_t edge = opened ? closed_at ? now + 20000000 : window_end : window_start;
        wait_for_events(due < edge ? due : edge, now_ns(), buffer);
    }
    if (!closed_at) after = read_cpu(), closed_at = now_ns();
    for (int i = 0; i < connection_count; i++)
        if (!connections[i].closed) connections[i].flow->unanswered += connections[i].tail - connections[i].head;
    report(&before, &after, (double)(closed_at - opened) / 1e9);
}

int main(int count, char **words) {
    if (count != 2) {
        fprintf(stderr, "usage: generator PLAN\n");
        return 2;
    }
    prctl(PR_SET_TIMERSLACK, 1UL);
    read_plan(words[1]);
    epoll_fd = epoll_create1(0);
    connections = calloc((size_t)connection_count, sizeof *connections);
    for (int i = 0, at = 0; i < flow_count; i++)
        for (int number = 0; number < flows[i]->connections; number++)
            open_connection(&connections[at++], flows[i], number);
    run();
    return 0;
}
