// What the programs about waiting and connecting share: short ways to say what a wait
// shows, and role B as a servant. In such a case only role A has a story; it has B send,
// receive and end by `ask`, which returns when B has done it (or, for `later`, is about
// to: A is asleep by then, or will find it done). B says nothing.
#ifndef WAITS_H
#define WAITS_H
#include "try.h"
#define HELPER __attribute__((unused)) static

// --- what is there ---

HELPER void put(int fd, const char *text) {
    if (send(fd, text, strlen(text), 0) != (ssize_t)strlen(text)) die("send");
}
// What a receive gives, as text: the bytes, or the name of the error.
HELPER const char *get(int fd, size_t count) {
    static char buffer[4096];
    ssize_t got = recv(fd, buffer, count, 0);
    if (got < 0) return error_name(errno);
    buffer[got] = 0;
    return buffer;
}
HELPER void drain(int fd) {
    char buffer[4096];
    while (recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) > 0) {}
    if (errno != EAGAIN) die("drain");
}
// So many bytes can be read, by whatever path they came.
HELPER void arrived(int fd, int count) {
    for (int round = 0; ; round++) {
        int queued = 0;
        if (ioctl(fd, FIONREAD, &queued) == 0 && queued >= count) return;
        if (round > 5000) die("%d of %d bytes arrive", queued, count);
        usleep(1000);
    }
}
// Fills the ring (or the kernel's queues) until nothing more goes in.
HELPER uint64_t stuff(int fd) {
    static char block[65536];
    uint64_t sent = 0;
    nonblocking(fd, 1);
    for (int rest = 0; rest < 20;) {
        fill(block, sent, sizeof block);
        ssize_t now = send(fd, block, sizeof block, 0);
        if (now > 0) { sent += now; rest = 0; continue; }
        if (errno != EAGAIN) die("stuff");
        // The kernel, or a stack, moves bytes on for a while.
        rest = is_under_way(fd) ? 0 : rest + 1;
        if (by_kernel) usleep(2000);
    }
    return sent;
}
HELPER void show_poll(const char *when, int fd, int events, int timeout_ms) {
    int shown, count = pollx(fd, events, timeout_ms, &shown);
    say("%s: %d %s", when, count, bits(shown));
}
#define ALL (POLLIN | POLLOUT | POLLRDHUP | POLLPRI | POLLRDNORM | POLLWRNORM)

// --- epoll ---

HELPER int ep;
HELPER void show_in(const char *when, int epoll, int timeout_ms) {
    struct epoll_event events[16];
    int count = epoll_wait(epoll, events, 16, timeout_ms);
    char line[512] = "";
    // In the order of their data: which one comes first is nobody's promise.
    for (uint64_t data = 0; data < 1000; data++)
        for (int i = 0; i < count; i++)
            if (events[i].data.u64 == data) {
                char one[64];
                snprintf(one, sizeof one, " %lu:%s", (unsigned long)data, bits(events[i].events));
                strcat(line, one);
            }
    say("%s: %s%s", when, outcome(count), line);
}
HELPER void show_epoll(const char *when, int timeout_ms) { show_in(when, ep, timeout_ms); }
// What so many of its descriptors show within some waits: one wait need not show all
// that is ready (rings and the kernel are asked in turns).
HELPER void show_together(const char *when, int wanted) {
    struct epoll_event events[16];
    uint32_t seen[16] = {0};
    int found = 0;
    for (int round = 0; round < 100 && found < wanted; round++) {
        int count = epoll_wait(ep, events, 16, 1000);
        if (count < 0) die("epoll_wait");
        for (int i = 0; i < count; i++) {
            found += !seen[events[i].data.u64];
            seen[events[i].data.u64] |= events[i].events;
        }
    }
    char line[512] = "";
    for (int data = 0; data < 16; data++)
        if (seen[data]) sprintf(line + strlen(line), " %d:%s", data, bits(seen[data]));
    say("%s:%s", when, line);
}
HELPER int ctl(int epoll, int operation, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(epoll, operation, fd, &event);
}
HELPER void want(int operation, int fd, uint32_t events, uint64_t data) {
    if (ctl(ep, operation, fd, events, data)) die("epoll_ctl");
}
// An epoll instance with one descriptor in it.
HELPER int watching(int fd, uint32_t events, uint64_t data) {
    int epoll = epoll_create1(0);
    if (epoll < 0 || ctl(epoll, EPOLL_CTL_ADD, fd, events, data)) die("epoll");
    return epoll;
}

// --- connections ---

HELPER struct sockaddr_in local(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
}
HELPER int connect_to(int fd, int port) {
    struct sockaddr_storage address;
    socklen_t length = place('A', port, &address);
    return connect(fd, (void *)&address, length);
}
HELPER int stream(int flags) {
    struct sockaddr_storage address;
    place('A', 0, &address);
    int fd = socket(address.ss_family, SOCK_STREAM | flags, 0);
    if (fd < 0) die("socket");
    return fd;
}
// A port at which nobody listens.
HELPER int dead_port(void) {
    int port, listener = listen_any(&port);
    close(listener);
    return port;
}
HELPER const char *socket_error(int fd) {
    int error = -1;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length)) return error_name(errno);
    return error ? error_name(error) : "none";
}
// A byte from one end to the other; whether it went by a ring.
HELPER int pass_on(int from, int to, const char *byte) {
    uint64_t before = kernel_sent(from);
    put(from, byte);
    if (*get(to, 1) != *byte) die("received another byte");
    return kernel_sent(from) == before;
}
// Both ends of a connection between two sockets of A: bytes go both ways until they go by rings.
HELPER void talk(int near, int far) {
    for (int i = 0; i < 2000; i++) {
        int rings = pass_on(near, far, "x") + pass_on(far, near, "y");
        if (rings == 2 || (by_kernel && i == 20)) return;
        if (i > 20) usleep(1000);
    }
    die("the connection was never upgraded");
}

// --- the servant ---

enum { SEND = 1, SEND_ANYHOW, RECEIVE, SHUT, CLOSE, RESET, DIAL, DIAL_COLD, WARM_UP };
#define LATER 64u
#define LATER_MS 20

// Has B do something with its connection number `which` (0: the one that the case began with).
HELPER uint64_t ask_for(unsigned what, unsigned which, uint64_t count) {
    tell((uint64_t)what << 56 | (uint64_t)which << 40 | count);
    return hear();
}
HELPER void ask(unsigned what, uint64_t count) { ask_for(what, 0, count); }
HELPER void come_by(unsigned how, int fd, int count) {
    int before = 0;
    if (ioctl(fd, FIONREAD, &before)) die("FIONREAD");
    ask(how, count);
    arrived(fd, before + count);
}
// B sends so many bytes, by the ring if there is one by now, and they are here.
HELPER void come(int fd, int count) { come_by(SEND, fd, count); }
// The same where rings need not be used: several watch, or hold, the connection.
HELPER void come_anyhow(int fd, int count) { come_by(SEND_ANYHOW, fd, count); }

// Whether round `i` of a case that begins without rings is to be played: a hundred and more, and
// until B has received by a ring. Sends the byte that tells.
HELPER int another_round(int fd, int i) {
    static int on_rings;
    if (i) {
        uint64_t before = kernel_sent(fd);
        put(fd, "x");
        on_rings = kernel_sent(fd) == before;
        ask(RECEIVE, 1);
    }
    if (i == 5000) die("the connection was never upgraded");
    return i < 150 || (!by_kernel && !on_rings);
}

HELPER int listener_of_more = -1, port_of_more, number_of_more;
// One connection more. On a case that begins without one the first is number 1.
HELPER int more(int on_rings) {
    if (listener_of_more < 0) listener_of_more = listen_any(&port_of_more);
    tell((uint64_t)(on_rings ? DIAL : DIAL_COLD) << 56 | (uint64_t)++number_of_more << 40 | port_of_more);
    int fd = accept(listener_of_more, NULL, NULL);
    if (fd < 0) die("accept");
    if (on_rings) warm(fd, 0);
    hear();
    return fd;
}

#define SERVANT_FDS 256
HELPER void servant_does(int *fds, const char *on_rings, unsigned what, unsigned which, uint64_t count) {
    static uint64_t sent[SERVANT_FDS];
    int fd = fds[which];
    static char bytes[1 << 16];
    switch (what) {
    case SEND: case SEND_ANYHOW: {
        uint64_t before = kernel_sent(fd);
        for (uint64_t i = 0; i < count; i++) bytes[i] = 'a' + sent[which]++ % 26;
        if (send(fd, bytes, count, MSG_NOSIGNAL) != (ssize_t)count && what == SEND) die("servant: send");
        if (what == SEND && on_rings[which] && !by_kernel && kernel_sent(fd) != before) die("servant: not on the ring");
        break;
    }
    case RECEIVE:
        for (uint64_t done = 0; done < count;) {
            ssize_t now = recv(fd, bytes, count - done < sizeof bytes ? count - done : sizeof bytes, 0);
            if (now <= 0) die("servant: receive %ld after %lu of %lu", (long)now, done, count);
            done += now;
        }
        break;
    case SHUT: if (shutdown(fd, SHUT_WR)) die("servant: shutdown"); break;
    case RESET: {
        struct linger linger = {1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    } // fall through
    case CLOSE: if (close(fd)) die("servant: close"); break;
    case DIAL: case DIAL_COLD:
        fds[which] = dial(count);
        if (what == DIAL) warm(fds[which], 1);
        break;
    case WARM_UP: warm(fd, 1); break;
    default: die("servant: %u?", what);
    }
}
HELPER void servant(int fd) {
    static int fds[SERVANT_FDS];
    static char on_rings[SERVANT_FDS];
    uint64_t order;
    fds[0] = fd;
    // Of the case's own connection nobody told: it shows by its first byte.
    uint64_t before = fd < 0 ? 0 : kernel_sent(fd);
    on_rings[0] = before != 0;
    while (read(0, &order, sizeof order) == sizeof order) {
        unsigned what = order >> 56, which = order >> 40 & 0xffff;
        uint64_t count = order & 0xffffffffff;
        if (what & LATER) {
            tell(0);
            usleep(LATER_MS * 1000);
        }
        servant_does(fds, on_rings, what & ~LATER, which, count);
        if ((what & ~LATER) == DIAL || what == WARM_UP) on_rings[which] = 1;
        if (!(what & LATER)) tell(0);
    }
}
#endif
