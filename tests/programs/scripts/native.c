// The native API in C: cases of our own between two domains. `native serve PORT` echoes; `native cases SERVER PORT [rings]`
// says of each case whether it went well. With `rings`, loans have to be memory of the shim's.
#include <errno.h>
#include <fcntl.h>
#include <fordway.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STREAM, PACKETS, DATAGRAMS, NOBODY };
static int port;
static uint32_t server;
static int rings;

#define CHECK(what) do { if (!(what)) { \
    printf("bad %s:%d: %s (%s)\n", __func__, __LINE__, #what, strerror(errno)); fflush(stdout); exit(1); } } while (0)
#define FAILS(call, error) do { errno = 0; long result_ = (long)(call); CHECK(result_ == -1 && errno == (error)); } while (0)

static void fill(unsigned char *bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)(seed * 31 + i * 7 + (i >> 8));
}

static int is_filled(const unsigned char *bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != (unsigned char)(seed * 31 + i * 7 + (i >> 8))) return 0;
    return 1;
}

// Whether the shim has lent it: memory that is a file's.
static int in_ring(const void *place) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[500];
    int found = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx", &begin, &end) == 2 && begin <= (unsigned long)place && (unsigned long)place < end)
            found = strstr(line, "memfd") != NULL;
    }
    fclose(maps);
    return found;
}

static int connected(int kind, int service) {
    int fd = fordway_socket(kind);
    struct fordway_address to = {server, (uint16_t)(port + service)};
    CHECK(fd >= 0);
    CHECK(fordway_connect(fd, &to) == 0);
    return fd;
}

static int listening(int kind, int service) {
    int fd = fordway_socket(kind);
    struct fordway_address any = {FORDWAY_ANY, (uint16_t)(port + service)};
    CHECK(fd >= 0);
    CHECK(fordway_bind(fd, &any) == 0);
    if (kind != FORDWAY_DATAGRAM) CHECK(fordway_listen(fd, 128) == 0);
    return fd;
}

static void *echo_stream(void *argument) {
    int fd = (int)(long)argument;
    static _Thread_local char buffer[100000];
    long count;
    while ((count = fordway_recv(fd, buffer, sizeof buffer, 0)) > 0)
        for (long at = 0, sent; at < count; at += sent)
            if ((sent = fordway_send(fd, buffer + at, (size_t)(count - at), 0)) < 0) { fordway_close(fd); return NULL; }
    fordway_close(fd);
    return NULL;
}

// By loans in both directions.
static void *echo_packets(void *argument) {
    int fd = (int)(long)argument;
    size_t count;
    const void *shown;
    while ((shown = fordway_peek(fd, &count))) {
        void *room = fordway_reserve(fd, count);
        if (!room) break;
        memcpy(room, shown, count);
        if (fordway_release(fd, count) || fordway_commit(fd, count)) break;
    }
    fordway_close(fd);
    return NULL;
}

static void *echo_datagrams(void *argument) {
    int fd = (int)(long)argument;
    static char buffer[70000];
    struct fordway_address from;
    for (;;) {
        long count = fordway_recvfrom(fd, buffer, sizeof buffer, 0, &from);
        if (count < 0) return NULL;
        fordway_sendto(fd, buffer, (size_t)count, 0, &from);
    }
}

struct service { int fd; void *(*echo)(void *); };

static void *accept_all(void *argument) {
    struct service *service = argument;
    for (;;) {
        pthread_t thread;
        int fd = fordway_accept(service->fd, NULL);
        CHECK(fd >= 0);
        CHECK(pthread_create(&thread, NULL, service->echo, (void *)(long)fd) == 0);
        pthread_detach(thread);
    }
}

static void serve(void) {
    static struct service packets;
    pthread_t threads[2];
    packets = (struct service){listening(FORDWAY_SEQPACKET, PACKETS), echo_packets};
    int datagrams = listening(FORDWAY_DATAGRAM, DATAGRAMS);
    struct service streams = {listening(FORDWAY_STREAM, STREAM), echo_stream};
    pthread_create(&threads[0], NULL, accept_all, &packets);
    pthread_create(&threads[1], NULL, echo_datagrams, (void *)(long)datagrams);
    accept_all(&streams);
}

static unsigned char out[1 << 20], in[1 << 20];

// Sends and gets back so many bytes of a stream.
static void rounds(int fd, size_t count, unsigned seed) {
    fill(out, count, seed);
    CHECK(fordway_send(fd, out, count, 0) == (long)count);
    for (size_t at = 0; at < count;) {
        long got = fordway_recv(fd, in + at, count - at, 0);
        CHECK(got > 0);
        at += (size_t)got;
    }
    CHECK(is_filled(in, count, seed));
}

// Room that is lent; of a ring, if there are any, which a connection gets after some calls.
static unsigned char *lent(int fd, size_t count) {
    struct timespec begin, now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &begin) == 0);
    for (unsigned seed = 0;; seed++) {
        unsigned char *room = fordway_reserve(fd, count);
        CHECK(room);
        if (!rings || in_ring(room)) return room;
        CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec - begin.tv_sec < 20);
        CHECK(fordway_cancel(fd) == 0);
        rounds(fd, 1000, seed);
    }
}

static void names(void) {
    uint32_t own, number, no;
    char digits[20];
    struct fordway_address address;
    CHECK(fordway_own_domain(&own) == 0 && own != server && own > FORDWAY_HOST);
    snprintf(digits, sizeof digits, "%u", server);
    CHECK(fordway_domain(digits, &number) == 0 && number == server);
    FAILS(fordway_domain("no-such-domain", &no), EHOSTUNREACH);
    int fd = connected(FORDWAY_STREAM, STREAM);
    CHECK(fordway_peer(fd, &address) == 0 && address.domain == server && address.port == port);
    CHECK(fordway_local(fd, &address) == 0 && address.domain == own);
    CHECK(fordway_close(fd) == 0);
    FAILS(fordway_close(fd), EBADF);
    FAILS(fordway_socket(77), EPROTONOSUPPORT);
    fd = fordway_socket(FORDWAY_STREAM);
    FAILS(fordway_connect(fd, &(struct fordway_address){0, 1}), EHOSTUNREACH);
    FAILS(fordway_connect(fd, &(struct fordway_address){server, (uint16_t)(port + NOBODY)}), ECONNREFUSED);
    FAILS(fordway_bind(fd, &(struct fordway_address){server, 0}), EADDRNOTAVAIL);
    FAILS(fordway_send(fd, out, 1, MSG_OOB), EOPNOTSUPP);
    fordway_close(fd);
}

static void stream(void) {
    int fd = connected(FORDWAY_STREAM, STREAM);
    for (unsigned i = 0; i < 400; i++) rounds(fd, 50000, i);
    fordway_close(fd);
}

static void packets(void) {
    int fd = connected(FORDWAY_SEQPACKET, PACKETS);
    static const size_t sizes[] = {1, 4, 1000, 65532, 65536, 300000, sizeof out};
    for (unsigned i = 0; i < 300; i++) {
        size_t count = sizes[i % 7];
        fill(out, count, i);
        CHECK(fordway_send(fd, out, count, 0) == (long)count);
        CHECK(fordway_recv(fd, in, sizeof in, 0) == (long)count && is_filled(in, count, i));
    }
    // Nothing in between is the next one's.
    CHECK(fordway_send(fd, "first one", 9, 0) == 9 && fordway_send(fd, "second", 6, 0) == 6);
    CHECK(fordway_send(fd, "third", 5, 0) == 5 && fordway_send(fd, "", 0, 0) == 0);
    CHECK(fordway_recv(fd, in, 5, MSG_TRUNC) == 9 && !memcmp(in, "first", 5));
    CHECK(fordway_recv(fd, in, 3, 0) == 3 && !memcmp(in, "sec", 3));
    CHECK(fordway_recv(fd, in, 100, MSG_TRUNC) == 5 && fordway_recv(fd, in, 100, 0) == 0);
    FAILS(fordway_send(fd, out, sizeof out + 1, 0), EMSGSIZE);
    FAILS(fordway_recv(fd, in, 1, MSG_DONTWAIT), EAGAIN);
    fordway_close(fd);
}

// More than there is room for, both ways, by calls that do not sleep.
static void torn(void) {
    int fd = connected(FORDWAY_SEQPACKET, PACKETS);
    unsigned sent = 0, got = 0;
    CHECK(fordway_set_nonblocking(fd, 1) == 0);
    for (;; sent++) {
        size_t count = (sent * 7919u) % 200000;
        fill(out, count, sent);
        if (fordway_send(fd, out, count, 0) < 0) break;
        CHECK(sent < 1000);
    }
    while (got < 3000) {
        struct pollfd entry = {fd, (short)(POLLIN | (sent < 3000 ? POLLOUT : 0)), 0};
        size_t count = (sent * 7919u) % 200000;
        fill(out, count, sent);
        if (sent < 3000 && sent - got < 200) {
            if (fordway_send(fd, out, count, 0) >= 0) sent++;
            else CHECK(errno == EAGAIN);
        } else if (fordway_flush(fd) < 0) CHECK(errno == EAGAIN);
        long length = fordway_recv(fd, in, sizeof in, 0);
        if (length < 0) { CHECK(errno == EAGAIN); CHECK(fordway_poll(&entry, 1, 10000) > 0); continue; }
        CHECK((size_t)length == (got * 7919u) % 200000 && is_filled(in, (size_t)length, got));
        got++;
    }
    FAILS(fordway_recv(fd, in, 1, 0), EAGAIN);
    fordway_close(fd);
}

static void datagrams(void) {
    int fd = fordway_socket(FORDWAY_DATAGRAM);
    struct fordway_address to = {server, (uint16_t)(port + DATAGRAMS)}, from;
    for (unsigned i = 0; i < 2000; i++) {
        size_t count = i % 5 ? 1000 : 60000;
        fill(out, count, i);
        CHECK(fordway_sendto(fd, out, count, 0, &to) == (long)count);
        CHECK(fordway_recvfrom(fd, in, 900, MSG_TRUNC, &from) == (long)count && is_filled(in, 900, i));
        CHECK(from.domain == server && from.port == to.port);
    }
    FAILS(fordway_sendto(fd, out, 65508, 0, &to), EMSGSIZE);
    to.domain = FORDWAY_BROADCAST;
    CHECK(fordway_sendto(fd, "all", 3, 0, &to) == 3);
    CHECK(fordway_recvfrom(fd, in, 10, 0, &from) == 3 && from.domain == server && !memcmp(in, "all", 3));
    to.domain = server;
    CHECK(fordway_connect(fd, &to) == 0);
    unsigned char *room = fordway_reserve(fd, 500);
    size_t count;
    fill(room, 500, 1);
    CHECK(fordway_commit(fd, 400) == 0);
    const unsigned char *shown = fordway_peek(fd, &count);
    CHECK(shown && count == 400 && is_filled(shown, 400, 1) && fordway_release(fd, 0) == 0);
    fordway_close(fd);
}

static void loans(void) {
    int fd = connected(FORDWAY_STREAM, STREAM);
    unsigned by_ring = 0, shown_by_ring = 0;
    fordway_cancel((lent(fd, 1), fd));
    for (unsigned i = 0; i < 300; i++) {
        size_t length = i % 3 ? 40000 : 64, count;
        unsigned char *room = fordway_reserve(fd, length);
        CHECK(room);
        by_ring += (unsigned)in_ring(room);
        fill(room, length, i);
        FAILS(fordway_send(fd, "x", 1, 0), EBUSY);
        CHECK(fordway_reserve(fd, 1) == NULL && errno == EBUSY);
        CHECK(fordway_commit(fd, length) == 0);
        for (size_t at = 0; at < length; at += count) {
            const unsigned char *shown = fordway_peek(fd, &count);
            CHECK(shown);
            FAILS(fordway_recv(fd, in, 1, 0), EBUSY);
            shown_by_ring += (unsigned)in_ring(shown);
            if (count > 1000 && i % 2) count = 1000;
            memcpy(in + at, shown, count);
            CHECK(fordway_release(fd, count) == 0);
        }
        CHECK(is_filled(in, length, i));
    }
    fprintf(stderr, "%u rooms and %u sights of 300 by rings\n", by_ring, shown_by_ring);
    CHECK(!rings || (by_ring > 200 && shown_by_ring > 200));
    FAILS(fordway_commit(fd, 1), EINVAL);
    FAILS(fordway_release(fd, 1), EINVAL);
    size_t count;
    shutdown(fd, SHUT_WR);
    errno = 1;
    CHECK(fordway_peek(fd, &count) == NULL && errno == 0);
    fordway_close(fd);
}

// The connection leaves its rings while memory of both is lent.
static void loans_and_leaving(void) {
    int fd = connected(FORDWAY_STREAM, STREAM), on = 1;
    size_t count, length = 30000;
    unsigned char *room = lent(fd, length);
    fill(room, length, 1);
    CHECK(fordway_commit(fd, length) == 0);
    // All of it is there.
    while (recv(fd, in, length, MSG_PEEK) < (long)length) usleep(1000);
    const unsigned char *shown = fordway_peek(fd, &count);
    CHECK(shown && (!rings || in_ring(shown)));
    room = fordway_reserve(fd, length);
    CHECK(room && (!rings || in_ring(room)));
    fill(room, length / 2, 2);
    if (rings) { CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EBUSY); }
    setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on);
    fill(room + length / 2, length - length / 2, 3);
    usleep(300000);
    CHECK(is_filled(shown, count, 1));
    CHECK(fordway_commit(fd, length) == 0);
    CHECK(fordway_release(fd, count) == 0);
    for (size_t at = count; at < 2 * length; ) {
        long got = fordway_recv(fd, in + at, 2 * length - at, 0);
        CHECK(got > 0);
        at += (size_t)got;
    }
    CHECK(is_filled(in + length, length / 2, 2) && is_filled(in + length + length / 2, length - length / 2, 3));
    for (unsigned i = 0; i < 50; i++) rounds(fd, 10000, i);
    CHECK(in_ring(room = fordway_reserve(fd, 1)) == 0);
    fordway_close(fd);
}

// Other connections, which take the memory that is free, for long enough that a far end sees its bytes unread. What was
// lent is written to meanwhile, and must be nobody else's.
static void others(unsigned char *room, size_t length) {
    int all[60];
    struct timespec begin, now;
    for (int i = 0; i < 60; i++) all[i] = connected(FORDWAY_STREAM, STREAM);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        for (unsigned i = 0; i < 60; i++) {
            fill(room, length, i + 1);
            rounds(all[i], 5000, i);
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 400);
    for (int i = 0; i < 60; i++) fordway_close(all[i]);
}

// The socket goes, or its rings, while room is lent.
enum way { CLOSED, DISSOLVED, LEFT };
static void loans_and_end(enum way way) {
    int fd = connected(FORDWAY_STREAM, STREAM), on = 1;
    size_t length = 50000;
    unsigned char *room = lent(fd, length);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    if (way == CLOSED) CHECK(close(fd) == 0);
    if (way == DISSOLVED) CHECK(connect(fd, &none, sizeof none) == 0);
    if (way == LEFT) CHECK(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0);
    others(room, length);
    if (way == CLOSED) return;  // Its number may be another's by now.
    if (way == DISSOLVED) CHECK(fordway_cancel(fd) == 0);
    if (way == LEFT) {
        fill(room, length, 77);
        CHECK(fordway_commit(fd, length) == 0);
        for (size_t at = 0; at < length;) {
            long got = fordway_recv(fd, in + at, length - at, 0);
            CHECK(got > 0);
            at += (size_t)got;
        }
        CHECK(is_filled(in, length, 77));
        rounds(fd, length, 78);
    }
    CHECK(fordway_close(fd) == 0);
}
static void loans_and_close(void) { loans_and_end(CLOSED); }
static void loans_and_dissolving(void) { loans_and_end(DISSOLVED); }
static void loans_and_way_back(void) { loans_and_end(LEFT); }

// The far end takes back what is shown and not received, and sends it by the kernel.
static void loans_and_withdrawal(void) {
    int fd = connected(FORDWAY_STREAM, STREAM);
    size_t length = 30000, count;
    static unsigned char scratch[1000];
    fordway_cancel((lent(fd, 1), fd));
    fill(out, length, 9);
    CHECK(fordway_send(fd, out, length, 0) == (long)length);
    while (recv(fd, in, length, MSG_PEEK) < (long)length) usleep(1000);
    const unsigned char *shown = fordway_peek(fd, &count);
    CHECK(shown && (!rings || in_ring(shown)));
    others(scratch, sizeof scratch);
    CHECK(is_filled(shown, count, 9));
    CHECK(fordway_release(fd, 100) == 0);
    for (size_t at = 100; at < length;) {
        long got = fordway_recv(fd, in + at, length - at, 0);
        CHECK(got > 0);
        at += (size_t)got;
    }
    fill(out, length, 9);
    CHECK(!memcmp(in + 100, out + 100, length - 100));
    rounds(fd, length, 10);
    fordway_close(fd);
}

// A child uses the connection: it goes to the kernel path. What was lent stays the parent's.
static void loans_and_fork(void) {
    int fd = connected(FORDWAY_STREAM, STREAM), status;
    size_t length = 20000;
    unsigned char *room = lent(fd, length);
    fill(room, length, 5);
    pid_t child = fork();
    if (child == 0) {
        fordway_cancel(fd);
        send(fd, "child", 5, 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(fordway_commit(fd, length) == 0);
    for (size_t at = 0; at < length + 5; ) {
        long got = fordway_recv(fd, in + at, length + 5 - at, 0);
        CHECK(got > 0);
        at += (size_t)got;
    }
    CHECK(!memcmp(in, "child", 5) && is_filled(in + 5, length, 5));
    fordway_close(fd);
}

static void *sends(void *argument) {
    int fd = (int)(long)argument;
    static _Thread_local unsigned char bytes[20000];
    for (unsigned i = 0; i < 500; i++) {
        bytes[0] = (unsigned char)(i % 50);
        fill(bytes + 1, 1 + i % 19000, bytes[0]);
        CHECK(fordway_send(fd, bytes, 2 + i % 19000, 0) > 0);
    }
    return NULL;
}

static void threads(void) {
    int fd = connected(FORDWAY_SEQPACKET, PACKETS);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, sends, (void *)(long)fd);
    for (int i = 0; i < 1500; i++) {
        long got = fordway_recv(fd, in, sizeof in, 0);
        CHECK(got >= 2 && is_filled(in + 1, (size_t)got - 1, in[0]));
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    fordway_close(fd);
}

#define CASE(name) {#name, name}
static const struct { const char *name; void (*play)(void); } cases[] = {
    CASE(names), CASE(stream), CASE(packets), CASE(torn), CASE(datagrams), CASE(threads), CASE(loans),
    CASE(loans_and_leaving), CASE(loans_and_close), CASE(loans_and_dissolving),
    CASE(loans_and_way_back), CASE(loans_and_withdrawal), CASE(loans_and_fork),
};

int main(int count, char **words) {
    signal(SIGPIPE, SIG_DFL);
    if (count == 3 && !strcmp(words[1], "serve")) {
        port = atoi(words[2]);
        serve();
    }
    CHECK(count >= 4 && fordway_domain(words[2], &server) == 0);
    port = atoi(words[3]);
    rings = count > 4 && !strcmp(words[4], "rings");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        alarm(100);
        cases[i].play();
        printf("ok %s\n", cases[i].name);
        fflush(stdout);
    }
    return 0;
}
