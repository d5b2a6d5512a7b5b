// SO_RCVLOWAT: who is told, and who sleeps on, while fewer bytes are there.
#include "flags.h"

static void low_poll_a(int fd) {
    low(fd, 10);
    five(fd, 5);
    say("5: %d", readable(fd, 20));
    five(fd, 10);
    say("10: %d", readable(fd, 2000));
    show("three", fd, 3, 0);
    say("7: %d", readable(fd, 20));
    five(fd, 12);
    say("12: %d", readable(fd, 2000));
    say("FIONREAD %d", queued(fd, FIONREAD));
    over(fd);
}
static void low_select_a(int fd) {
    fd_set in;
    low(fd, 10);
    five(fd, 5);
    FD_ZERO(&in);
    FD_SET(fd, &in);
    say("5: %d", select(fd + 1, &in, NULL, NULL, &(struct timeval){0, 20000}));
    five(fd, 10);
    FD_ZERO(&in);
    FD_SET(fd, &in);
    say("10: %d", select(fd + 1, &in, NULL, NULL, &(struct timeval){2, 0}));
    over(fd);
}
static void low_sleep_a(int fd) {
    low(fd, 10);
    five(fd, 5);
    five_later();
    say("10: %d", readable(fd, 2000));
    pthread_join(later_thread, NULL);
    settle(fd, 15);
    say("FIONREAD %d", queued(fd, FIONREAD));
    over(fd);
}
static void low_epoll(int fd, uint32_t how) {
    int ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | how};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    low(fd, 10);
    five(fd, 5);
    say("5: %d", epoll_wait(ep, &event, 1, 20));
    five(fd, 10);
    say("10: %d", epoll_wait(ep, &event, 1, 2000));
    show("all", fd, 100, MSG_DONTWAIT);
    five(fd, 5);
    say("5: %d", epoll_wait(ep, &event, 1, 20));
    low(fd, 1);
    say("lowered: %d", epoll_wait(ep, &event, 1, 2000));
    over(fd);
}
static void low_level_a(int fd) { low_epoll(fd, 0); }
static void low_edge_a(int fd) { low_epoll(fd, EPOLLET); }
static void low_recv_a(int fd) {
    low(fd, 10);
    five(fd, 5);
    five_later();
    // A reader that is late finds what comes after the ten, too.
    show("waits", fd, 10, 0);
    pthread_join(later_thread, NULL);
    settle(fd, 5);
    show("rest", fd, 100, MSG_DONTWAIT);
    over(fd);
}
static void low_short_a(int fd) {
    low(fd, 10);
    five(fd, 5);
    show("asks for less", fd, 3, 0);
    show("does not wait", fd, 100, MSG_DONTWAIT);
    show("nothing", fd, 100, MSG_DONTWAIT);
    over(fd);
}
static void low_time_a(int fd) {
    low(fd, 10);
    set_time(fd, SO_RCVTIMEO, 80);
    five(fd, 5);
    show("part", fd, 100, 0);
    show("nothing", fd, 100, 0);
    over(fd);
}
static void low_peek_a(int fd) {
    low(fd, 10);
    five(fd, 5);
    five_later();
    show("peek", fd, 10, MSG_PEEK);
    pthread_join(later_thread, NULL);
    settle(fd, 15);
    show("read", fd, 100, 0);
    over(fd);
}
static void low_end_a(int fd) {
    low(fd, 10);
    five(fd, 5);
    tell(0);
    say("end: %d", readable(fd, 2000));
    step();
    show("part", fd, 100, 0);
    show("end", fd, 100, 0);
}
static void low_values_a(int fd) {
    static const int values[] = {0, 1, 100, 32768, 32769, 1 << 20, -1, 1};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        int result = set(fd, SO_RCVLOWAT, values[i]);
        say("%d: %d, %d", values[i], result, get(fd, SOL_SOCKET, SO_RCVLOWAT));
    }
    five(fd, 5);
    say("5: %d", readable(fd, 2000));
    over(fd);
}
static void low_large_a(int fd) {
    low(fd, 100000);
    step();
    settle(fd, 50000);
    say("50000: %d", readable(fd, 20));
    step();
    settle(fd, 110000);
    say("110000: %d", readable(fd, 2000));
    recv_all(fd, 0, 110000, 30000);
    step();
}
static void low_large_b(int fd) {
    send_all(fd, 0, 50000, 10000);
    step();
    step();
    send_all(fd, 50000, 60000, 10000);
    step();
}
static void low_cold(int fd) {
    low(fd, 3);
    for (int i = 0; i < 60; i++) {
        if (me == 'A') put(fd, "12345");
        if (recv(fd, buffer, 5, MSG_WAITALL) != 5) die("receive");
        if (me == 'B') put(fd, "12345");
    }
    step();
    say("all there");
}
// Set anew again and again while bytes come.
static void low_changes_a(int fd) {
    uint64_t at = 0;
    for (int i = 1; at < 2000000; i++) {
        low(fd, 1 + i % 40 * 100);
        ssize_t got = recv(fd, buffer, 3000, 0);
        if (got <= 0) die("receive");
        check(buffer, at, got);
        at += got;
    }
    say("all there");
    step();
}
static void low_changes_b(int fd) {
    send_all(fd, 0, 2004000, 1700);
    step();
}

const struct test_case cases[] = {
    {"poll", WARM, low_poll_a, fives_b},
    {"select", WARM, low_select_a, fives_b},
    {"sleep", WARM, low_sleep_a, fives_b},
    {"level", WARM, low_level_a, fives_b},
    {"edge", WARM, low_edge_a, fives_b},
    {"recv", WARM, low_recv_a, fives_b},
    {"recv_cold", COLD, low_recv_a, fives_b},
    {"short", WARM, low_short_a, fives_b},
    {"time", WARM, low_time_a, fives_b},
    {"peek", WARM, low_peek_a, fives_b},
    {"end", WARM, low_end_a, fives_b},
    {"values", WARM, low_values_a, fives_b},
    {"large", WARM, low_large_a, low_large_b},
    {"cold", COLD, low_cold, low_cold},
    {"changes", WARM, low_changes_a, low_changes_b},
    {"changes_cold", COLD, low_changes_a, low_changes_b},
    {0},
};
