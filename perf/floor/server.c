/* The floor: the least that a server of Produce and Fetch can do on this machine.
 *
 *   server PORT DIRECTORY      serves on 127.0.0.1 until it is killed
 *
 * Produce 11: receive, compare the checksum (CRC-32C, by instruction where there is one), set the offset, one write, answer. Fetch 12: the
 * answer's head and one sendfile. One topic, partitions 0 to 63, batches that are all alike; nothing is checked that
 * the load generator cannot get wrong, nothing is kept but each partition's end. What a broker costs beyond this is
 * its own.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

enum { PARTITIONS = 64, RECEIVE = 2 << 20, ANSWERS = 1 << 16, EVENTS = 256 };

struct partition {
    int file;
    int64_t end, size, batch_bytes, batch_records;
};

struct connection {
    int fd;
    size_t have, out;
    int file, writing;
    off_t position;
    size_t left;
    uint8_t in[RECEIVE], answers[ANSWERS];
};

static struct partition partitions[PARTITIONS];
static const char *directory;
static int epoll_fd;

static void die(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(2);
}

static int64_t big_endian(const uint8_t *bytes, int size) {
    int64_t value = 0;
    while (size--) value = value << 8 | *bytes++;
    return value;
}

static uint8_t *put(uint8_t *at, int64_t value, int size) {
    for (int i = size - 1; i >= 0; i--, value >>= 8) at[i] = (uint8_t)value;
    return at + size;
}

static uint64_t unsigned_varint(const uint8_t **at) {
    uint64_t value = 0;
    int shift = 0;
    do value |= (uint64_t)(**at & 0x7f) << shift, shift += 7;
    while (*(*at)++ & 0x80);
    return value;
}

static uint8_t *put_varint(uint8_t *at, uint64_t value) {
    for (; value > 0x7f; value >>= 7) *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

#ifdef __SSE4_2__
static uint32_t crc32c(const uint8_t *bytes, size_t size) {
    uint64_t crc = 0xffffffff;
    for (; size >= 8; size -= 8, bytes += 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    while (size--) crc = _mm_crc32_u8((uint32_t)crc, *bytes++);
    return ~(uint32_t)crc;
}
#else
static uint32_t crc32c(const uint8_t *bytes, size_t size) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t c = n;
            for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
            table[n] = c;
        }
    uint32_t crc = 0xffffffff;
    while (size--) crc = crc >> 8 ^ table[(crc ^ *bytes++) & 0xff];
    return ~crc;
}
#endif

static struct partition *find(int64_t number) {
    struct partition *partition = &partitions[number % PARTITIONS];
    if (!partition->file) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%d.log", directory, (int)(number % PARTITIONS));
        partition->file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (partition->file < 0) die(path);
    }
    return partition;
}

/* Head of an answer with one topic and one partition, up to the partition's number. */
static uint8_t *begin(uint8_t *at, const uint8_t *request, const uint8_t *topic, size_t topic_size, int fetch) {
    memcpy(at + 4, request + 8, 4); /* correlation id */
    at[8] = 0;
    at += 9;
    if (fetch) at = put(at, 0, 10); /* throttle, error, session */
    *at++ = 2;
    *at++ = (uint8_t)(topic_size + 1);
    memcpy(at, topic, topic_size);
    at += topic_size;
    *at++ = 2;
    return at;
}

static void produce(struct connection *connection, const uint8_t *request, const uint8_t *body) {
    const uint8_t *at = body + 1 + 2 + 4 + 1; /* no transactional id, acks, timeout, one topic */
    size_t topic_size = unsigned_varint(&at) - 1;
    const uint8_t *topic = at;
    at += topic_size + 1;
    int64_t number = big_endian(at, 4), error = 0;
    at += 4;
    size_t size = unsigned_varint(&at) - 1;
    uint8_t *batch = (uint8_t *)at;
    struct partition *partition = find(number);
    int64_t first = partition->end;
    if ((uint32_t)big_endian(batch + 17, 4) != crc32c(batch + 21, size - 21)) error = 2;
    else {
        put(batch, first, 8);
        if (write(partition->file, batch, size) != (ssize_t)size) die("write");
        partition->batch_bytes = (int64_t)size;
        partition->batch_records = big_endian(batch + 57, 4);
        partition->end += partition->batch_records;
        partition->size += (int64_t)size;
    }
    uint8_t *answer = connection->answers + connection->out;
    uint8_t *end = begin(answer, request, topic, topic_size, 0);
    end = put(end, number, 4);
    end = put(end, error, 2);
    end = put(end, first, 8);
    end = put(end, -1, 8);
    end = put(end, 0, 8);
    *end++ = 1; /* no record errors */
    end = put(end, 0, 1 + 1 + 1 + 4 + 1); /* no message, tags, tags, throttle, tags */
    put(answer, end - answer - 4, 4);
    connection->out += (size_t)(end - answer);
}

static void fetch(struct connection *connection, const uint8_t *request, const uint8_t *body) {
    const uint8_t *at = body + 4 * 4 + 1 + 4 + 4 + 1;
    size_t topic_size = unsigned_varint(&at) - 1;
    const uint8_t *topic = at;
    at += topic_size + 1;
    int64_t number = big_endian(at, 4), offset = big_endian(at + 8, 8), wanted = big_endian(at + 28, 4);
    struct partition *partition = find(number);
    int64_t position = offset / partition->batch_records * partition->batch_bytes;
    int64_t left = partition->size - position;
    size_t size = (size_t)((wanted < left ? wanted : left) / partition->batch_bytes * partition->batch_bytes);
    uint8_t *answer = connection->answers + connection->out;
    uint8_t *end = begin(answer, request, topic, topic_size, 1);
    end = put(end, number, 4);
    end = put(end, 0, 2);
    end = put(end, partition->end, 8);
    end = put(end, partition->end, 8);
    end = put(end, 0, 8);
    *end++ = 1; /* no aborted transactions */
    end = put(end, -1, 4);
    end = put_varint(end, size + 1);
    /* the last tags belong behind the records; in front of them they keep the count right and nobody looks */
    put(answer, end - answer - 4 + (int64_t)size, 4);
    connection->out += (size_t)(end - answer);
    connection->file = partition->file;
    connection->position = position;
    connection->left = size;
}

static void watch(struct connection *connection, int write) {
    if (connection->writing == write) return;
    struct epoll_event event = {.events = write ? EPOLLOUT : EPOLLIN, .data.ptr = connection};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->fd, &event);
    connection->writing = write;
}

/* Send what waits; 0 if the peer is gone. */
static int leave(struct connection *connection) {
    size_t done = 0;
    while (done < connection->out) {
        ssize_t sent = send(connection->fd, connection->answers + done, connection->out - done,
                            MSG_NOSIGNAL | (connection->left ? MSG_MORE : 0));
        if (sent < 0 && errno == EAGAIN) break;
        if (sent < 0) return 0;
        done += (size_t)sent;
    }
    memmove(connection->answers, connection->answers + done, connection->out - done);
    connection->out -= done;
    while (!connection->out && connection->left) {
        ssize_t sent = sendfile(connection->fd, connection->file, &connection->position, connection->left);
        if (sent < 0 && errno == EAGAIN) break;
        if (sent <= 0) return 0;
        connection->left -= (size_t)sent;
    }
    watch(connection, connection->out || connection->left);
    return 1;
}

static int serve(struct connection *connection) {
    ssize_t count = recv(connection->fd, connection->in + connection->have, RECEIVE - connection->have, 0);
    if (count < 0 && errno == EAGAIN) return 1;
    if (count <= 0) return 0;
    connection->have += (size_t)count;
    size_t done = 0;
    while (connection->have - done >= 4 && connection->out < ANSWERS - 512 && !connection->left) {
        uint8_t *request = connection->in + done;
        size_t size = (size_t)big_endian(request, 4) + 4;
        if (size > RECEIVE) return 0;
        if (size > connection->have - done) break;
        const uint8_t *body = request + 14 + big_endian(request + 12, 2) + 1; /* behind client id and tags */
        if (big_endian(request + 4, 2) == 0) produce(connection, request, body);
        else fetch(connection, request, body);
        done += size;
    }
    memmove(connection->in, connection->in + done, connection->have - done);
    connection->have -= done;
    return leave(connection);
}

static void accept_one(int listener) {
    int one = 1;
    struct connection *connection = malloc(sizeof *connection);
    connection->have = connection->out = connection->left = 0;
    connection->writing = 0;
    connection->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (connection->fd < 0) die("accept");
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, connection->fd, &event)) die("epoll_ctl");
}

int main(int count, char **words) {
    if (count != 3) {
        fprintf(stderr, "usage: server PORT DIRECTORY\n");
        return 2;
    }
    directory = words[2];
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[1]))};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    int near = 100 * 1024;  // its reader is on this host: what is sent is still in the cache when that takes it
    setsockopt(listener, SOL_SOCKET, SO_SNDBUF, &near, sizeof near);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024)) die("listen");
    epoll_fd = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[EVENTS];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(epoll_fd, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            struct connection *connection = events[i].data.ptr;
            if (!connection) accept_one(listener);
            else if (!(events[i].events & EPOLLOUT ? leave(connection) : serve(connection))) {
                close(connection->fd);
                free(connection);
            }
        }
    }
}
