// Wrong pointers, lengths and counts of all kinds at every call that waits, asks or names, on
// connections with rings and without any: Linux judges them before it does anything.
#include "try.h"
#include <sys/resource.h>
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wstringop-overread"

#define PAGE 4096

// So many good bytes, and none behind them.
static char *edge(size_t good) {
    char *base = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + PAGE, PAGE, PROT_NONE)) die("mmap");
    return base + PAGE - good;
}
// A page that can be read, with these bytes at its beginning.
static void *readonly(const void *bytes, size_t count) {
    char *base = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) die("mmap");
    memcpy(base, bytes, count);
    if (mprotect(base, PAGE, PROT_READ)) die("mprotect");
    return base;
}

enum { KINDS = 5 };
static const char *const kinds[KINDS] = {"null", "unmapped", "short", "kernel", "odd"};
// `good` bytes can be had of the one that is short.
static void *bad(int kind, size_t good) {
    switch (kind) {
    case 0: return NULL;
    case 1: return edge(0);
    case 2: return edge(good);
    case 3: return (void *)-PAGE;
    default: return (void *)0x1234567890abcdef;
    }
}
#define EACH for (int kind = 0; kind < KINDS; kind++)
#define SHOW(what, call) say("%s %s: %s", what, kinds[kind], outcome(call))

// The result, and what has become of a length.
#define THEN(what, call, length) do { \
        long came = (call); \
        say("%s %s, %d", what, outcome(came), (int)(length)); \
    } while (0)

static void polls(int fd) {
    struct pollfd good = {.fd = fd, .events = POLLIN}, two[2] = {good, good};
    struct timespec none = {0};
    EACH SHOW("poll", poll(bad(kind, 4), 1, 0));
    EACH SHOW("poll of none", poll(bad(kind, 4), 0, 0));
    EACH SHOW("ppoll", ppoll(bad(kind, 4), 1, &none, NULL));
    EACH if (kind) SHOW("ppoll's mask", ppoll(&good, 1, &none, bad(kind, 4)));
    char *end = edge(sizeof good);
    memcpy(end, &good, sizeof good);
    say("poll at the edge %s", outcome(poll((void *)end, 1, 0)));
    say("poll beyond it %s", outcome(poll((void *)end, 2, 0)));
    say("read-only %s", outcome(poll(readonly(two, sizeof two), 2, 0)));
    char bytes[64];
    memcpy(bytes + 1, &good, sizeof good);
    int ready = poll((void *)(bytes + 1), 1, 0);
    memcpy(&good, bytes + 1, sizeof good);
    say("odd address %s %s", outcome(ready), bits(good.revents));
    struct timespec wrong = {.tv_nsec = 1000000000}, negative = {.tv_sec = -1};
    say("wrong times %s %s", outcome(ppoll(&good, 1, &wrong, NULL)), outcome(ppoll(&good, 1, &negative, NULL)));
    say("too many %s", outcome(poll(&good, 1 << 30, 0)));
    say("far too many %s", outcome(poll(&good, 1ul << 61, 0)));
    // As many as there may be descriptors, and one more.
    struct rlimit limit, small = {.rlim_cur = 300};
    if (getrlimit(RLIMIT_NOFILE, &limit)) die("limit");
    small.rlim_max = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &small)) die("limit");
    static struct pollfd many[301];
    for (int i = 0; i < 301; i++) many[i].fd = -1;
    many[299] = two[0];
    say("all %s", outcome(poll(many, 300, 1)));
    say("one more %s", outcome(poll(many, 301, 1)));
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("limit");
}

static void selects(int fd) {
    struct timeval none = {0};
    struct timespec none_too = {0};
    fd_set set;
    EACH if (kind) {
        FD_ZERO(&set);
        FD_SET(fd, &set);
        SHOW("select to read", select(fd + 1, bad(kind, 4), NULL, NULL, &none));
        SHOW("select to write", select(fd + 1, NULL, bad(kind, 4), NULL, &none));
        SHOW("select for more", select(fd + 1, &set, NULL, bad(kind, 4), &none));
        SHOW("pselect's mask", pselect(fd + 1, &set, NULL, NULL, &none_too, bad(kind, 4)));
    }
    FD_ZERO(&set);
    FD_SET(fd, &set);
    say("read-only %s", outcome(select(fd + 1, readonly(&set, sizeof set), NULL, NULL, &none)));
    say("negative %s", outcome(select(-1, &set, NULL, NULL, &none)));
    struct timeval wrong = {.tv_sec = -1}, wrong_too = {.tv_usec = -1}, long_one = {.tv_usec = 2000000};
    say("wrong times %s %s", outcome(select(fd + 1, &set, NULL, NULL, &wrong)), outcome(select(fd + 1, &set, NULL, NULL, &wrong_too)));
    struct timespec never = {.tv_nsec = -1};
    say("and %s", outcome(pselect(fd + 1, &set, NULL, NULL, &never, NULL)));
    say("a long one %s", outcome(select(fd + 1, &set, NULL, NULL, &long_one)));
    char *end = edge(sizeof(long));
    memcpy(end, &(long){1l << fd}, sizeof(long));
    say("at the edge %s", outcome(select(fd + 1, (void *)end, NULL, NULL, &none)));
    // Counts beyond the set: behind it lies what is not descriptors.
    static unsigned char wide[65536 / 8];
    for (int count = 64; count <= 65536; count *= 2) {
        memset(wide, 0xff, sizeof wide);
        memset(wide, 0, 64);
        FD_SET(fd, (fd_set *)wide);
        int result = select(count, (fd_set *)wide, NULL, NULL, &none), kept = 1;
        for (size_t i = 64; i < sizeof wide; i++) kept &= wide[i] == 0xff;
        say("%d: %s, %s, %s", count, outcome(result), FD_ISSET(fd, (fd_set *)wide) ? "shown" : "not shown",
            kept ? "the rest is left" : "the rest is changed");
    }
    // In the table, but not open; and a high one that is.
    FD_ZERO(&set);
    FD_SET(fd, &set);
    FD_SET(150, &set);
    say("closed %s", outcome(select(1024, &set, NULL, NULL, &none)));
    if (dup2(fd, 700) != 700) die("dup2");
    memset(&set, 0, sizeof set);
    FD_SET(700, &set);
    int ready = select(1024, &set, NULL, NULL, &none);
    say("high %s %d", outcome(ready), !!FD_ISSET(700, &set));
    close(700);
    FD_SET(700, &set);
    say("closed %s", outcome(select(1024, &set, NULL, NULL, &none)));
}

static void epolls(int fd) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 9}, shown[4];
    struct timespec none = {0}, wrong = {.tv_nsec = -1};
    EACH SHOW("add", epoll_ctl(epoll, EPOLL_CTL_ADD, fd, bad(kind, 4)));
    say("empty %s", outcome(epoll_wait(epoll, NULL, 1, 0)));
    say("add %s", outcome(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, readonly(&event, sizeof event))));
    EACH SHOW("mod", epoll_ctl(epoll, EPOLL_CTL_MOD, fd, bad(kind, 4)));
    EACH SHOW("wait", epoll_wait(epoll, bad(kind, 4), 1, 0));
    EACH SHOW("pwait", epoll_pwait(epoll, bad(kind, 4), 1, 0, NULL));
    EACH if (kind) SHOW("pwait's mask", epoll_pwait(epoll, shown, 1, 0, bad(kind, 4)));
    EACH SHOW("pwait2", epoll_pwait2(epoll, bad(kind, 4), 1, &none, NULL));
    EACH if (kind) SHOW("pwait2's time", epoll_pwait2(epoll, shown, 1, bad(kind, 4), NULL));
    EACH if (kind) SHOW("pwait2's mask", epoll_pwait2(epoll, shown, 1, &none, bad(kind, 4)));
    say("wrong time %s", outcome(epoll_pwait2(epoll, shown, 1, &wrong, NULL)));
    say("read-only %s", outcome(epoll_wait(epoll, readonly(shown, sizeof shown), 4, 0)));
    say("counts %s %s %s", outcome(epoll_wait(epoll, shown, 0, 0)), outcome(epoll_wait(epoll, shown, -1, 0)),
        outcome(epoll_wait(epoll, shown, 1 << 30, 0)));
    // Room for one event, and none for those that do not come.
    struct epoll_event *end = (void *)edge(sizeof *end);
    int count = epoll_wait(epoll, end, 100, 0);
    say("at the edge %s %s of %d", outcome(count), bits(end->events), (int)end->data.u64);
    count = epoll_wait(epoll, shown, 4, 0);
    say("still there %s %s of %d", outcome(count), bits(shown->events), (int)shown->data.u64);
    EACH SHOW("delete", epoll_ctl(epoll, EPOLL_CTL_DEL, fd, kind ? bad(kind, 4) : &event));
    close(epoll);
}

// B has one byte for A, and nothing to do.
static void byte_b(int fd) {
    if (send(fd, "x", 1, 0) != 1) die("send");
    step();
    step();
    drained(fd);
}
#define WITH_BYTE(name) \
    static void name##_a(int fd) { \
        step(); \
        settle(fd, 1); \
        name(fd); \
        char byte; \
        say("the byte %s", outcome(recv(fd, &byte, 1, 0))); \
        step(); \
    }
WITH_BYTE(polls)
WITH_BYTE(selects)
WITH_BYTE(epolls)

// Without any connection: a pipe.
#define PLAIN(name) \
    static void name##_plain(int fd) { \
        int pipes[2]; \
        (void)fd; \
        if (pipe(pipes) || write(pipes[1], "x", 1) != 1) die("pipe"); \
        name(pipes[0]); \
    }
PLAIN(polls)
PLAIN(selects)
PLAIN(epolls)

static void names_b(int fd) {
    char in[256];
    step();
    if (send(fd, "0123456789abcdefghij", 20, 0) != 20) die("send");
    step();
    step();
    shutdown(fd, SHUT_WR);
    ssize_t count = recv(fd, in, sizeof in, MSG_WAITALL);
    say("%.*s", (int)count, in);
}
static void names_a(int fd) {
    char in[4];
    struct sockaddr_in name = {.sin_family = AF_INET};
    struct sockaddr_storage large;
    socklen_t length = sizeof name;
    struct iovec part = {in, 1}, out = {"m", 1};
    step();
    step();
    settle(fd, 20);
    memset(&large, 0, sizeof large);
    EACH if (kind) SHOW("length", recvfrom(fd, in, 1, 0, (void *)&name, bad(kind, 2)));
    say("no length %s", outcome(recvfrom(fd, in, 1, 0, (void *)&name, NULL)));
    length = -1;
    THEN("negative", recvfrom(fd, in, 1, 0, (void *)&name, &length), length);
    length = 5;
    THEN("bad name", recvfrom(fd, in, 1, 0, bad(1, 0), &length), length);
    length = -1;
    THEN("no name", recvfrom(fd, in, 1, 0, NULL, &length), length);
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = &name, .msg_namelen = -1};
    THEN("recvmsg", recvmsg(fd, &message, 0), message.msg_namelen);
    message.msg_name = NULL;
    THEN("without", recvmsg(fd, &message, 0), message.msg_namelen);
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_name = edge(0), .msg_namelen = 16};
    THEN("bad name", recvmsg(fd, &message, 0), message.msg_namelen);
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = edge(0), .msg_controllen = 16};
    THEN("bad control", recvmsg(fd, &message, 0), message.msg_controllen);
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1 << 20};
    say("parts %s", outcome(recvmsg(fd, &message, 0)));
    say("readv %s %s", outcome(readv(fd, &part, -1)), outcome(readv(fd, &part, 1 << 20)));
    EACH SHOW("recvmsg", judged_recvmsg(fd, bad(kind, 20), 0));
    EACH if (kind) SHOW("time of recvmmsg", judged_recvmmsg(fd, bad(1, 0), 1, MSG_DONTWAIT, bad(kind, 4)));

    EACH if (kind) SHOW("name", sendto(fd, "t", 1, 0, bad(kind, 2), sizeof name));
    say("negative %s", outcome(sendto(fd, "t", 1, 0, (void *)&name, -1)));
    say("long %s", outcome(sendto(fd, "t", 1, 0, (void *)&large, sizeof large + 1)));
    say("largest %s", outcome(sendto(fd, "1", 1, 0, (void *)&large, sizeof large)));
    say("any %s", outcome(sendto(fd, "2", 1, 0, (void *)&name, sizeof name)));
    say("none %s", outcome(sendto(fd, "3", 1, 0, NULL, -1)));
    say("empty %s", outcome(sendto(fd, "4", 1, 0, bad(1, 0), 0)));
    message = (struct msghdr){.msg_iov = &out, .msg_iovlen = 1, .msg_name = &name, .msg_namelen = -1};
    say("sendmsg %s", outcome(sendmsg(fd, &message, 0)));
    message.msg_namelen = 1000;
    say("long %s", outcome(sendmsg(fd, &message, 0)));
    message.msg_name = edge(0);
    say("bad %s", outcome(sendmsg(fd, &message, 0)));
    message.msg_name = NULL;
    message.msg_namelen = -1;
    say("none %s", outcome(sendmsg(fd, &message, 0)));
    EACH SHOW("sendmsg", judged_sendmsg(fd, bad(kind, 20), 0));
    step();
    char left[64];
    say("left %s", outcome(recv(fd, left, sizeof left, MSG_WAITALL)));
}
static void options(int fd) {
    char value[256];
    socklen_t length;
    int queued;
    EACH SHOW("FIONREAD", ioctl(fd, FIONREAD, bad(kind, 2)));
    EACH SHOW("FIONBIO", ioctl(fd, FIONBIO, bad(kind, 2)));
    EACH SHOW("SIOCOUTQ", ioctl(fd, TIOCOUTQ, bad(kind, 2)));
    say("%s", outcome(ioctl(fd, FIONREAD, &queued)));
    EACH SHOW("TCP_CORK", setsockopt(fd, IPPROTO_TCP, 3, bad(kind, 2), 4));
    EACH if (kind) SHOW("SO_RCVTIMEO", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, bad(kind, 2), 16));
    EACH {
        length = 4;
        SHOW("SO_ERROR", getsockopt(fd, SOL_SOCKET, SO_ERROR, bad(kind, 2), &length));
        length = sizeof value;
        SHOW("TCP_INFO", getsockopt(fd, IPPROTO_TCP, TCP_INFO, bad(kind, 100), &length));
        SHOW("its length", getsockopt(fd, IPPROTO_TCP, TCP_INFO, value, bad(kind, 2)));
    }
    length = 4;
    say("read-only %s", outcome(getsockopt(fd, SOL_SOCKET, SO_ERROR, readonly(value, 4), &length)));
    EACH if (kind) SHOW("offset", sendfile(fd, 1, bad(kind, 4), 1));
    EACH if (kind) SHOW("name", connect(fd, bad(kind, 1), 16));
    step();
}

// rt_sigaction as the kernel has it.
static void actions(int fd) {
    unsigned long old[4];
    (void)fd;
    EACH if (kind) SHOW("new", syscall(SYS_rt_sigaction, SIGUSR1, bad(kind, 8), NULL, 8));
    EACH if (kind) SHOW("old", syscall(SYS_rt_sigaction, SIGUSR1, NULL, bad(kind, 8), 8));
    say("size %s %s", outcome(syscall(SYS_rt_sigaction, SIGUSR1, NULL, old, 4)),
        outcome(syscall(SYS_rt_sigaction, SIGUSR1, edge(0), old, 4)));
    say("none %s", outcome(syscall(SYS_rt_sigaction, 65, NULL, old, 8)));
}

const struct test_case cases[] = {
    {"polls", WARM, polls_a, byte_b},
    {"selects", WARM, selects_a, byte_b},
    {"epolls", WARM, epolls_a, byte_b},
    {"polls-cold", COLD, polls_a, byte_b},
    {"selects-cold", COLD, selects_a, byte_b},
    {"epolls-cold", COLD, epolls_a, byte_b},
    {"polls-plain", NONE, polls_plain, polls_plain},
    {"selects-plain", NONE, selects_plain, selects_plain},
    {"epolls-plain", NONE, epolls_plain, epolls_plain},
    {"names", WARM, names_a, names_b},
    {"options", WARM, options, options},
    {"actions", NONE, actions, actions},
    {0},
};
