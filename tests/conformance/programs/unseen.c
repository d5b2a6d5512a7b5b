// A program that sends past the library while its ring is in use: by an inlined system call, by
// what dlsym finds in libc itself. The far end gets the bytes in their order, or a reset.
#include "try.h"
#include <dlfcn.h>

static void inlined(int fd, const char *bytes) {
    if (raw_syscall(SYS_write, fd, (long)bytes, strlen(bytes), 0, 0, 0) < 0) die("write");
}
static void found(int fd, const char *bytes) {
    static ssize_t (*real)(int, const void *, size_t, int);
    if (!real) real = (__typeof__(real))dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "send");
    if (!real || real(fd, bytes, strlen(bytes), MSG_NOSIGNAL) < 0) die("send");
}
typedef void sender(int fd, const char *bytes);

static void ring(int fd, const char *bytes) {
    ssize_t sent = send(fd, bytes, strlen(bytes), MSG_NOSIGNAL);
    // A far end that has found it out has reset the connection.
    if (sent < 0 && errno != EPIPE && errno != ECONNRESET) die("send");
}

// A takes what there is up to the end, and judges it.
enum { BLOCKING, POLL, EPOLL };
static void take(int fd, int how, const char *expected) {
    char got[256] = "";
    size_t count = 0;
    ssize_t now = 0;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET}, shown;
    if (how == EPOLL && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    if (how != BLOCKING) nonblocking(fd, 1);
    while (count < sizeof got - 1) {
        now = recv(fd, got + count, sizeof got - 1 - count, 0);
        if (now < 0 && errno == EAGAIN) {
            struct pollfd entry = {.fd = fd, .events = POLLIN};
            if (how == POLL && poll(&entry, 1, 10000) != 1) die("poll");
            if (how == EPOLL && epoll_wait(epoll, &shown, 1, 10000) != 1) die("epoll_wait");
            continue;
        }
        if (now <= 0) break;
        count += now;
    }
    int error = errno;
    if (now < 0 && error != ECONNRESET) die("receive: %s", error_name(error));
    if (now == 0 && strcmp(got, expected)) die("in silence: %s instead of %s", got, expected);
    if (by_kernel && now < 0) die("a reset on the kernel path");
    say("in order, or reset");
    close(epoll);
}

#define READERS(name) \
    static void name##_blocking(int fd) { name##_a(fd, BLOCKING); } \
    static void name##_poll(int fd) { name##_a(fd, POLL); } \
    static void name##_epoll(int fd) { name##_a(fd, EPOLL); }

// All of it is there before A looks.
static void heap_a(int fd, int how) {
    step(); // the last byte of the warming-up has been received
    step();
    take(fd, how, "xkyKz");
    step();
}
static void heap(int fd, sender *past) {
    step();
    ring(fd, "x");
    past(fd, "k");
    ring(fd, "y");
    past(fd, "K");
    ring(fd, "z");
    shutdown(fd, SHUT_WR);
    step();
    step();
}
static void heap_inlined(int fd) { heap(fd, inlined); }
static void heap_found(int fd) { heap(fd, found); }
READERS(heap)

// A takes each before the next is sent, as far as it can tell.
static void turns_a(int fd, int how) {
    step(); // as in `heap_a`
    take(fd, how, "xkyKz");
    step();
}
static void turns(int fd) {
    const char *const all[] = {"x", "k", "y", "K", "z"};
    step();
    for (int i = 0; i < 5; i++) {
        (i % 2 ? inlined : ring)(fd, all[i]);
        usleep(20000);
    }
    shutdown(fd, SHUT_WR);
    step();
}
READERS(turns)

// The first that is sent goes past, and nothing else: its place is known.
static void first_a(int fd) {
    char in[2] = "";
    // Empty reads until the library has asked the kernel.
    nonblocking(fd, 1);
    for (int i = 0; i < 20; i++)
        if (recv(fd, in, 1, 0) >= 0) die("nothing was sent");
    nonblocking(fd, 0);
    step();
    say("recv %s", outcome(recv(fd, in, 1, 0)));
    say("%s", in);
    step();
    say("recv %s", outcome(recv(fd, in, 1, 0)));
    say("%s", in);
    step();
    drained(fd);
}
static void first_b(int fd) {
    step();
    inlined(fd, "k");
    step();
    ring(fd, "y");
    step();
    shutdown(fd, SHUT_WR);
}

// For the test that looks at the reason.
static void told_a(int fd) {
    char in[3];
    ssize_t now = 1;
    step();
    step();
    for (size_t got = 0; got < 3 && now > 0; got += now) now = recv(fd, in + got, 3 - got, 0);
    say("%s", now > 0 || errno == ECONNRESET ? "in order, or reset" : error_name(errno));
    hold();
    step();
}
static void told_b(int fd) {
    step(); // the last byte of the warming-up has been received
    ring(fd, "x");
    inlined(fd, "k");
    ring(fd, "y");
    step();
    step();
}

const struct test_case cases[] = {
    {"heap-blocking", WARM, heap_blocking, heap_inlined},
    {"heap-poll", WARM, heap_poll, heap_inlined},
    {"heap-epoll", WARM, heap_epoll, heap_inlined},
    {"heap-found", WARM, heap_blocking, heap_found},
    {"turns-blocking", WARM, turns_blocking, turns},
    {"turns-poll", WARM, turns_poll, turns},
    {"turns-epoll", WARM, turns_epoll, turns},
    {"first", WARM, first_a, first_b},
    {"told", WARM, told_a, told_b},
    {0},
};
