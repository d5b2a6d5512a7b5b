// Traffic without end, for tests that do something to it meanwhile: blocks go there
// and back, every byte compared, until the driver's standard input ends.
#include "try.h"

static int is_over(void) {
    struct pollfd entry = {.fd = 200, .events = POLLIN};
    return raw_syscall(SYS_poll, (long)&entry, 1, 0, 0, 0, 0) == 1;
}

static void blocks_a(int fd) {
    uint64_t at = 0;
    for (int round = 0; !is_over(); round++) {
        size_t size = 1 + chance(round % 50 ? 2000 : 300000);
        tell(size);
        send_all(fd, at, size, 50000);
        recv_all(fd, at, size, 50000);
        at += size;
    }
    tell(0);
    step();
    say("all there");
}
static void blocks_b(int fd) {
    uint64_t at = 0, size;
    while ((size = hear())) {
        recv_all(fd, at, size, 40000);
        send_all(fd, at, size, 40000);
        at += size;
    }
    step();
    say("all there");
}

// The same by epoll, both directions at once.
static void streams(int fd) {
    static char out[50000], in[50000];
    uint64_t sent = 0, got = 0, end = UINT64_MAX;
    int ep = epoll_create1(0), over = 0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
    nonblocking(fd, 1);
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    for (int idle = 0; got < end || !over;) {
        int count = epoll_wait(ep, &event, 1, 100);
        idle = count == 0 ? idle + 1 : 0;
        if (!over && is_over()) {
            over = 1;
            shutdown(fd, SHUT_WR);
        }
        if (count < 0 || idle > 50) die("epoll %d at %lu sent, %lu got", count, sent, got);
        for (;;) {
            ssize_t now = recv(fd, in, sizeof in, 0);
            if (now < 0 && errno == EAGAIN) break;
            if (now < 0) die("receive");
            if (now == 0) { end = got; break; }
            check(in, got, now);
            got += now;
        }
        while (!over) {
            size_t piece = 1 + chance(sizeof out);
            fill(out, sent, piece);
            ssize_t now = send(fd, out, piece, MSG_NOSIGNAL);
            if (now < 0 && errno == EAGAIN) break;
            if (now < 0) die("send");
            sent += now;
            if (is_over()) break;
        }
    }
    tell(sent);
    if (hear() != got) die("not all came");
    step();
    say("all there");
}

const struct test_case cases[] = {
    {"blocks", WARM, blocks_a, blocks_b},
    {"streams", WARM, streams, streams},
    {"streams_cold", COLD, streams, streams},
    {0},
};
