// What waits tell of datagrams: poll, select, epoll by level and by edge, time-outs, and counts (man 7 epoll, man 7 udp).
#include "udp.h"

static int ep;
static void watch(int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)) die("EPOLL_CTL_ADD");
}
static void arm(int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    if (epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event)) die("EPOLL_CTL_MOD");
}
static void told(const char *what, int timeout_ms) {
    struct epoll_event events[16];
    int count = epoll_wait(ep, events, 16, timeout_ms);
    char line[256] = "";
    for (int i = 0; i < count; i++) sprintf(line + strlen(line), " %lu:%s", (unsigned long)events[i].data.u64, bits(events[i].events));
    say("%s: %s%s", what, outcome(count), line);
}
static void begin_watch(uint32_t events) {
    begin();
    ep = epoll_create1(0);
    watch(a, events, 1);
}
static void letters(int count) {
    while (count--) b_put(0, an, "letter");
    fence();
}
static void take(void) {
    if (recv(a, space, 100, MSG_DONTWAIT) < 0) die("take");
}

static void by_poll(int fd) {
    static const int asked[] = {0, POLLIN, POLLOUT, POLLRDNORM, POLLPRI, POLLRDBAND, ALL, -1};
    (void)fd;
    begin();
    for (int queue = 0; queue < 3; queue++) {
        if (queue) letters(1);
        for (size_t i = 0; i < COUNT(asked); i++) show_poll("shown", a, asked[i] < 0 ? ALL | POLLRDBAND | POLLWRBAND | POLLHUP | POLLERR : asked[i]);
    }
    for (int i = 0; i < 2; i++) {
        take();
        show_poll("taken one", a, ALL);
    }
}
static void by_select(int fd) {
    (void)fd;
    begin();
    for (int queue = 0; queue < 2; queue++) {
        if (queue) letters(1);
        for (int mask = 0; mask < 8; mask++) {
            fd_set in, none;
            struct timeval no_time = {0};
            struct timespec none_either = {0};
            FD_ZERO(&none);
            FD_ZERO(&in);
            FD_SET(a, &in);
            fd_set out = mask & 2 ? in : none, bad = mask & 4 ? in : none;
            if (!(mask & 1)) in = none;
            fd_set again = in;
            int count = select(a + 1, &in, &out, &bad, &no_time);
            say("%d: %d in %d out %d except %d", mask, count, !!FD_ISSET(a, &in), !!FD_ISSET(a, &out), !!FD_ISSET(a, &bad));
            say("pselect %d", pselect(a + 1, &again, NULL, NULL, &none_either, NULL));
        }
    }
}
// Each wait that sleeps is woken by a datagram.
#define WAITS(X) \
    X(poll, poll(&(struct pollfd){.fd = a, .events = POLLIN}, 1, -1)) \
    X(ppoll, ppoll(&(struct pollfd){.fd = a, .events = POLLIN}, 1, &(struct timespec){20, 0}, NULL)) \
    X(select, select(a + 1, &in, NULL, NULL, NULL)) \
    X(pselect, pselect(a + 1, &in, NULL, NULL, &(struct timespec){20, 0}, NULL)) \
    X(epoll_wait, epoll_wait(ep, &event, 1, -1)) \
    X(epoll_pwait, epoll_pwait(ep, &event, 1, 20000, NULL)) \
    X(epoll_pwait2, epoll_pwait2(ep, &event, 1, &(struct timespec){20, 0}, NULL))
#define WOKEN(name, call) \
    static void woken_##name(int fd) { \
        struct epoll_event event; \
        fd_set in; \
        (void)fd; \
        begin_watch(EPOLLIN); \
        for (int i = 0; i < 3; i++) { \
            (void)event; \
            FD_ZERO(&in); \
            FD_SET(a, &in); \
            b_put_later(0, an, i == 1 ? "" : "late"); \
            say(#name " %s", outcome(call)); \
            hear(); \
            show_in("came", a, 100, MSG_DONTWAIT); \
        } \
    }
WAITS(WOKEN)
#define WOKEN_CALL(call) \
    static void woken_##call(int fd) { \
        (void)fd; \
        begin(); \
        for (int i = 0; i < 3; i++) { \
            b_put_later(0, an, i == 1 ? "" : "late"); \
            ssize_t got = by_##call(a, space, 100, i == 2 ? MSG_WAITALL : 0); \
            say(#call " %s %s", outcome(got), content(space, got > 0 ? got : 0)); \
            hear(); \
        } \
    }
CALLS_THAT_RECEIVE(WOKEN_CALL)

static void by_level(int fd) {
    (void)fd;
    begin_watch(EPOLLIN);
    told("idle", 0);
    letters(2);
    for (int i = 0; i < 2; i++) told("two", 0);
    take();
    told("one", 0);
    take();
    told("none", 0);
    letters(1);
    told("one", 0);
    arm(a, EPOLLOUT, 2);
    told("asked for room", 0);
    arm(a, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI, 3);
    told("asked for all", 0);
    arm(a, 0, 4);
    told("asked for nothing", 0);
}
// One edge for each datagram that comes, none for what is left.
static void by_edge(int fd) {
    (void)fd;
    begin_watch(EPOLLIN | EPOLLET);
    told("idle", 0);
    letters(1);
    for (int i = 0; i < 2; i++) told("one", 0);
    letters(1);
    for (int i = 0; i < 2; i++) told("one more", 0);
    take();
    told("taken one", 0);
    letters(3);
    for (int i = 0; i < 2; i++) told("three", 0);
    for (int i = 0; i < 4; i++) take();
    told("taken all", 0);
    b_put(0, an, "");
    fence();
    for (int i = 0; i < 2; i++) told("empty", 0);
    arm(a, EPOLLIN | EPOLLET, 2);
    told("armed", 0);
    show_in("looked at", a, 10, MSG_PEEK);
    told("looked at", 0);
    take();
}
static void by_edge_both(int fd) {
    (void)fd;
    begin_watch(EPOLLIN | EPOLLOUT | EPOLLET);
    for (int i = 0; i < 2; i++) told("room", 0);
    letters(1);
    for (int i = 0; i < 2; i++) told("one", 0);
    take();
    told("taken", 0);
    letters(1);
    show_none("came", a);
    told("taken before it was told", 0);
}
// A send of its own makes an edge as well: room has come back.
static void by_edge_own(int fd) {
    (void)fd;
    begin_watch(EPOLLIN | EPOLLOUT | EPOLLET);
    told("room", 0);
    letters(1);
    told("one", 0);
    for (int i = 0; i < 2; i++) {
        put(a, bn, "out");
        fence();
        told("sent", 0);
        told("again", 0);
    }
    arm(a, EPOLLIN | EPOLLET, 2);
    told("armed", 0);
    put(a, bn, "out");
    fence();
    told("sent", 0);
    ask(do_drain, (struct order){0});
}
static void once(int fd) {
    (void)fd;
    begin_watch(EPOLLIN | EPOLLONESHOT);
    letters(1);
    for (int i = 0; i < 2; i++) told("once", 0);
    letters(1);
    told("not armed", 0);
    arm(a, EPOLLIN | EPOLLONESHOT, 2);
    for (int i = 0; i < 2; i++) told("armed", 0);
    take();
    take();
    arm(a, EPOLLIN | EPOLLONESHOT | EPOLLET, 3);
    told("empty", 0);
    letters(1);
    for (int i = 0; i < 2; i++) told("by edge, once", 0);
}
// Registered while something is there; taken out; registered anew.
static void comes_and_goes(int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 7};
    (void)fd;
    begin();
    ep = epoll_create1(0);
    letters(1);
    watch(a, EPOLLIN | EPOLLET, 1);
    say("twice %s", outcome(epoll_ctl(ep, EPOLL_CTL_ADD, a, &event)));
    for (int i = 0; i < 2; i++) told("was there", 0);
    say("out %s", outcome(epoll_ctl(ep, EPOLL_CTL_DEL, a, NULL)));
    say("out again %s, changed %s", outcome(epoll_ctl(ep, EPOLL_CTL_DEL, a, NULL)), outcome(epoll_ctl(ep, EPOLL_CTL_MOD, a, &event)));
    letters(1);
    told("not in it", 0);
    watch(a, EPOLLIN | EPOLLET, 2);
    told("in it again", 0);
    int copy = dup(a);
    watch(copy, EPOLLIN, 3);
    close(a);
    told("a copy is open", 0);
    letters(1);
    told("both", 0);
    close(copy);
    told("all closed", 0);
}
// Those that were ready first are told of first; what one wait has no room for, the next has.
static void several(int fd) {
    int fds[6];
    struct epoll_event events[4];
    (void)fd;
    begin();
    ep = epoll_create1(0);
    for (int i = 0; i < 6; i++) {
        fds[i] = bound_for_both(spot('A', 0), "one");
        watch(fds[i], EPOLLIN | (i & 1 ? EPOLLET : 0), i);
    }
    static const int order[] = {3, 0, 5, 1, 4, 2};
    for (int i = 0; i < 6; i++) b_put(0, name_of(fds[order[i]]), "letter");
    fence();
    told("in the order of coming", 0);
    for (int round = 0; round < 3; round++) {
        int count = epoll_wait(ep, events, 2, 0);
        char line[64] = "";
        for (int i = 0; i < count; i++) sprintf(line + strlen(line), " %lu", (unsigned long)events[i].data.u64);
        say("two at most: %d%s", count, line);
    }
    for (int i = 0; i < 6; i++) show_all("took", fds[i]);
    told("none", 0);
}
// An outer wait may be told of an instance that has nothing, while its sockets leave their rings; not for ever, once
// somebody has looked into it.
static void outer_rests(const char *what, int inner) {
    struct epoll_event event;
    int count = 1, tries = 0;
    for (; tries < 2000 && (count = epoll_wait(ep, &event, 1, 0)) == 1; tries++) {
        if (epoll_wait(inner, &event, 1, 0)) die("the inner has something");
        usleep(1000);
    }
    say("%s: %s", what, outcome(count));
}
static void nested(int fd) {
    (void)fd;
    begin_watch(EPOLLIN);
    int inner = ep;
    ep = epoll_create1(0);
    watch(inner, EPOLLIN, 9);
    outer_rests("idle", inner);
    letters(1);
    told("one", 0);
    show_poll("the inner", inner, POLLIN);
    show_poll("the outer", ep, POLLIN);
    take();
    outer_rests("none", inner);
    b_put_later(0, an, "late");
    told("woken", 20000);
    hear();
}
// Somebody watches the instance when something is in it: it is told of until it is taken.
static void watched_late(int fd) {
    (void)fd;
    for (int outer = 0; outer < 2; outer++) {
        begin_watch(EPOLLIN);
        int inner = ep;
        letters(2);
        if (outer) {
            ep = epoll_create1(0);
            watch(inner, EPOLLIN, 9);
            told("the outer", 0);
        }
        show_poll("polled", inner, POLLIN);
        ep = inner;
        for (int left = 2; left; left--) {
            for (int i = 0; i < 2; i++) told("the inner", 20);
            take();
        }
        told("none", 0);
        show_poll("none", inner, POLLIN);
        b_put_later(0, an, "late");
        told("woken", 20000);
        hear();
        take();
    }
}
static void two_instances(int fd) {
    (void)fd;
    begin_watch(EPOLLIN);
    int first = ep;
    ep = epoll_create1(0);
    watch(a, EPOLLIN | EPOLLET, 2);
    letters(1);
    told("by edge", 0);
    told("by edge", 0);
    ep = first;
    told("by level", 0);
    take();
    told("none", 0);
}
static void timed(int fd) {
    (void)fd;
    begin_watch(EPOLLIN);
    told("no time", 0);
    told("some time", 3);
    int shown;
    say("poll %d", pollx(a, POLLIN, 3, &shown));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(a, &in);
    struct timeval time = {0, 3000};
    int count = select(a + 1, &in, NULL, NULL, &time);
    say("select %d, left %ld", count, time.tv_sec * 1000000l + time.tv_usec);
}
static void receive_time(int fd) {
    (void)fd;
    begin();
    set_time(a, SO_RCVTIMEO, 5);
    static const struct { const char *call; receiver *receive; } calls[] = {
#define ROW(call) {#call, by_##call},
        CALLS_THAT_RECEIVE(ROW)
#undef ROW
    };
    for (size_t i = 0; i < COUNT(calls); i++) say("%s %s", calls[i].call, outcome(calls[i].receive(a, space, 100, 0)));
    set_time(a, SO_RCVTIMEO, 20000);
    for (size_t i = 0; i < COUNT(calls); i++) {
        b_put_later(0, an, "late");
        say("%s %s", calls[i].call, outcome(calls[i].receive(a, space, 100, 0)));
        hear();
    }
    struct timeval time, bad = {0, 1000000};
    socklen_t length = sizeof time;
    if (getsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &time, &length)) die("SO_RCVTIMEO");
    say("is %ld.%06ld, of %u", (long)time.tv_sec, (long)time.tv_usec, length);
    say("odd %s", outcome(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &bad, sizeof bad)));
    set_time(a, SO_RCVTIMEO, 0);
    b_put_later(0, an, "late");
    show_in("for ever", a, 100, 0);
    hear();
}
static void send_time(int fd) {
    (void)fd;
    begin();
    set_time(a, SO_SNDTIMEO, 1);
    struct timeval time;
    socklen_t length = sizeof time;
    if (getsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &time, &length)) die("SO_SNDTIMEO");
    say("set %d", time.tv_sec || time.tv_usec);
    for (int i = 0; i < 20; i++) put(a, bn, "in time");
    for (int i = 0; i < 20; i++) b_show("came", 0);
}
// The size of the first datagram, not of all (man 7 udp).
static void counts(int fd) {
    static const int sizes[] = {100, 0, 1, 65507, 7};
    (void)fd;
    begin();
    say("at first %d", queued(a, FIONREAD));
    for (size_t i = 0; i < COUNT(sizes); i++) b_fill(0, an, i, sizes[i]);
    fence();
    for (size_t i = 0; i < COUNT(sizes); i++) {
        say("next %d", queued(a, SIOCINQ));
        say("took %s", outcome(recv(a, space, 50, MSG_DONTWAIT)));
    }
    say("at last %d", queued(a, FIONREAD));
}
static void out_queue(int fd) {
    (void)fd;
    begin();
    say("at first %d", queued(a, SIOCOUTQ));
    for (int i = 0; i < 20; i++) put(a, bn, "a letter");
    fence();
    say("delivered %d", queued(a, SIOCOUTQ));
    int unsent;
    say("SIOCOUTQNSD %s", outcome(ioctl(a, SIOCOUTQNSD, &unsent)));
    for (int i = 0; i < 20; i++) b_show("came", 0);
    show_poll("room", a, POLLOUT);
}
// A datagram socket does not wait for more.
static void low_mark(int fd) {
    (void)fd;
    begin_watch(EPOLLIN | EPOLLET);
    say("set %s", outcome(set_at(a, SOL_SOCKET, SO_RCVLOWAT, 1000)));
    say("is %d", get(a, SOL_SOCKET, SO_RCVLOWAT));
    letters(1);
    show_poll("less than that", a, POLLIN);
    told("epoll", 0);
    show_in("take", a, 100, 0);
    b_put_later(0, an, "late");
    show_in("woken", a, 100, MSG_WAITALL);
    hear();
}
// EPOLLEXCLUSIVE is as by level to one waiter, and cannot be changed.
static void exclusive(int fd) {
    (void)fd;
    begin();
    ep = epoll_create1(0);
    watch(a, EPOLLIN | EPOLLEXCLUSIVE, 1);
    letters(1);
    for (int i = 0; i < 2; i++) told("one", 0);
    struct epoll_event event = {.events = EPOLLIN};
    say("changed %s", outcome(epoll_ctl(ep, EPOLL_CTL_MOD, a, &event)));
    take();
    told("none", 0);
}

const struct test_case cases[] = {
    CASE(by_poll), CASE(by_select),
#define ROW(name, call) CASE(woken_##name),
    WAITS(ROW)
#undef ROW
#define ROW(call) CASE(woken_##call),
    CALLS_THAT_RECEIVE(ROW)
#undef ROW
    CASE(by_level), CASE(by_edge), CASE(by_edge_both), CASE(by_edge_own), CASE(once), CASE(comes_and_goes), CASE(several), CASE(nested), CASE(watched_late),
    CASE(two_instances), CASE(timed), CASE(receive_time), CASE(send_time), CASE(counts), CASE(out_queue), CASE(low_mark),
    CASE(exclusive),
    {0},
};
