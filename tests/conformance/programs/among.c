// epoll with more than one of something: connections that want their turn, descriptors of
// other kinds, duplicates, instances in instances, threads, processes. B is the servant of waits.h.
#include "waits.h"
#include <sys/signalfd.h>
#include <sys/timerfd.h>

// --- turns ---

enum { BUSY = 8 };
static void fairness_one_at_a_time(int fd) {
    int fds[BUSY] = {fd}, turns[BUSY] = {0};
    ep = epoll_create1(0);
    for (int i = 0; i < BUSY; i++) {
        if (i) fds[i] = more(1);
        want(EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
        ask_for(SEND, i, 1);
        arrived(fds[i], 1);
    }
    for (int i = 0; i < 40 * BUSY; i++) {
        struct epoll_event event;
        if (epoll_wait(ep, &event, 1, 1000) != 1) die("epoll");
        turns[event.data.u64]++;
    }
    for (int i = 0; i < BUSY; i++) say("%d: %s", i, turns[i] >= 10 ? "its share" : "starved");
}
// Everything that the kernel shows has its turn beside rings that always have something.
static void fairness_of_others(int fd) {
    int fds[4] = {fd}, pipes[2], unix_fds[2], port, listener = listen_any(&port);
    ep = epoll_create1(0);
    for (int i = 0; i < 4; i++) {
        if (i) fds[i] = more(1);
        want(EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
        ask_for(SEND, i, 1);
        arrived(fds[i], 1);
    }
    int cold = more(0);
    ask_for(SEND, number_of_more, 1);
    arrived(cold, 1);
    struct itimerspec time = {.it_value.tv_nsec = 1};
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    timerfd_settime(timer, 0, &time, NULL);
    if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, unix_fds)) die("pipe");
    if (write(pipes[1], "x", 1) != 1 || write(unix_fds[1], "x", 1) != 1) die("write");
    int waiting = dial(port), others[] = {pipes[0], eventfd(1, 0), timer, unix_fds[0], listener, cold, pipes[1]};
    (void)waiting;
    int seen[11] = {0}, count = sizeof others / sizeof *others;
    for (int i = 0; i < count; i++) want(EPOLL_CTL_ADD, others[i], i == 6 ? EPOLLOUT : EPOLLIN, 4 + i);
    for (int i = 0; i < 600; i++) {
        struct epoll_event event;
        if (epoll_wait(ep, &event, 1, 1000) != 1) die("epoll");
        seen[event.data.u64]++;
    }
    for (int i = 0; i < 4 + count; i++) say("%d: %s", i, seen[i] ? "seen" : "starved");
}
// Idle connections, many of them, hide nobody: not the last, not the first.
static void fairness_beside_idle_ones(int fd) {
    enum { IDLE = 90 };
    int fds[IDLE] = {fd};
    ep = epoll_create1(0);
    for (int i = 0; i < IDLE; i++) {
        if (i) fds[i] = more(1);
        want(EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
    }
    struct epoll_event event;
    for (int i = 0; i < 200; i++)
        if (epoll_wait(ep, &event, 1, 0) != 0) die("epoll");
    for (int i = 0; i < IDLE; i += 7) {
        ask_for(SEND | (i % 2 ? LATER : 0), i, 1);
        if (epoll_wait(ep, &event, 1, 5000) != 1 || event.data.u64 != (uint64_t)i) die("epoll shows %lu for %d", event.data.u64, i);
        get(fds[i], 1);
    }
    say("all");
}

// --- other descriptors beside a connection on rings ---

static void beside_timer_and_event(int fd) {
    struct itimerspec time = {.it_value.tv_nsec = 20000000};
    int timer = timerfd_create(CLOCK_MONOTONIC, 0), event = eventfd(0, EFD_NONBLOCK);
    uint64_t count = 5;
    ep = watching(fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, timer, EPOLLIN, 2);
    want(EPOLL_CTL_ADD, event, EPOLLIN | EPOLLET, 3);
    timerfd_settime(timer, 0, &time, NULL);
    show_epoll("timer", 5000);
    if (read(timer, &count, 8) != 8) die("read");
    show_epoll("idle", 0);
    if (write(event, &count, 8) != 8) die("write");
    show_epoll("event", 5000);
    show_epoll("nothing new", 0);
    if (write(event, &count, 8) != 8) die("write");
    come(fd, 1);
    show_together("both", 2);
    show_epoll("the socket", 0);
}
static void beside_pipe_ends(int fd) {
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    ep = watching(fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, pipes[0], EPOLLIN, 2);
    want(EPOLL_CTL_ADD, pipes[1], EPOLLOUT | EPOLLET, 3);
    show_epoll("room", 0);
    if (write(pipes[1], "x", 1) != 1) die("write");
    show_epoll("data", 0);
    close(pipes[1]);
    show_epoll("data and end", 0);
    char byte;
    if (read(pipes[0], &byte, 1) != 1) die("read");
    show_epoll("end", 0);
    come(fd, 1);
    show_together("end, and the socket", 2);
}
static void beside_listener(int fd) {
    int port, listener = listen_any(&port);
    nonblocking(listener, 1);
    ep = watching(fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, listener, EPOLLIN | EPOLLET, 2);
    show_epoll("idle", 0);
    int one = dial(port), two = dial(port);
    show_epoll("connections", 1000);
    show_epoll("nothing new", 0);
    say("accept %d", accept(listener, NULL, NULL) >= 0);
    say("accept %d", accept(listener, NULL, NULL) >= 0);
    say("accept %s", outcome(accept(listener, NULL, NULL)));
    come(fd, 1);
    show_epoll("the socket", 1000);
    close(one), close(two);
}
static void beside_signalfd(int fd) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, 0);
    ep = watching(fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, signals, EPOLLIN, 2);
    show_epoll("idle", 0);
    kill(getpid(), SIGUSR2);
    show_epoll("signal", 1000);
    come(fd, 1);
    show_together("both", 2);
}

// --- registrations that come early, and that outlive their descriptor ---

static void add_before_connect(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), fd = socket(AF_INET, SOCK_STREAM, 0);
    ep = watching(fd, EPOLLIN | EPOLLOUT, 1);
    show_epoll("unconnected", 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    say("connect %s", outcome(connect(fd, (void *)&address, sizeof address)));
    show_epoll("connected", 0);
    int far = accept(listener, NULL, NULL);
    for (int i = 0; i < 50; i++) {
        put(far, "x");
        struct epoll_event event;
        want(EPOLL_CTL_MOD, fd, EPOLLIN, 2);
        if (epoll_wait(ep, &event, 1, 5000) != 1 || event.events != EPOLLIN) die("epoll %d", i);
        get(fd, 1);
        want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT | EPOLLET, 3);
        put(fd, "y");
        if (*get(far, 1) != 'y') die("receive");
    }
    if (!by_kernel) must_ring(fd, "after an early registration");
    say("all");
}
static void add_before_listen(int unused) {
    (void)unused;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    ep = watching(fd, EPOLLIN, 1);
    show_epoll("unbound", 0);
    if (bind(fd, (void *)&address, length) || getsockname(fd, (void *)&address, &length) || listen(fd, 5)) die("listen");
    show_epoll("listening", 0);
    int near = dial(ntohs(address.sin_port));
    show_epoll("a connection", 1000);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 2);
    show_epoll("edge", 1000);
    show_epoll("nothing new", 0);
    say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0)));
    int far = accept(fd, NULL, NULL);
    put(near, "x");
    say("%s", get(far, 1));
}
static void close_takes_it_out(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLOUT, 1);
    show_epoll("open", 0);
    come(fd, 1);
    close(fd);
    show_epoll("closed", 0);
    say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0)));
    show_epoll("closed", 20);
}
static void close_with_a_duplicate(int fd) {
    int copy = dup(fd);
    ep = watching(fd, EPOLLIN, 1);
    close(fd);
    come(copy, 1);
    show_epoll("still there", 1000);
    say("mod %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLOUT, 1)));
    say("by the duplicate %s", outcome(ctl(ep, EPOLL_CTL_DEL, copy, 0, 0)));
    say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, copy, EPOLLIN, 2)));
    show_epoll("twice", 1000);
    say("%s", get(copy, 10));
    show_epoll("idle", 0);
    close(copy);
    show_epoll("gone", 0);
}
static void close_of_the_duplicate(int fd) {
    int copy = dup(fd);
    ep = watching(copy, EPOLLIN, 2);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    close(copy);
    come(fd, 1);
    show_epoll("both still", 1000);
    want(EPOLL_CTL_DEL, fd, 0, 0);
    show_epoll("the closed one still", 1000);
}
static void number_used_again(int fd) {
    int second = more(1);
    ep = watching(second, EPOLLIN, 1);
    ask_for(SEND, 1, 1);
    arrived(second, 1);
    show_epoll("first", 1000);
    close(second);
    int third = more(1);
    say("same number %d", third == second);
    show_epoll("not added", 0);
    say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, third, EPOLLIN, 2)));
    show_epoll("idle", 0);
    ask_for(SEND, 2, 1);
    arrived(third, 1);
    show_epoll("second", 1000);
    (void)fd;
}
static void dup2_over_a_registered_one(int fd) {
    int second = more(1);
    ep = watching(second, EPOLLIN, 1);
    ask_for(SEND, 1, 1);
    arrived(second, 1);
    show_epoll("registered", 1000);
    if (dup2(fd, second) != second) die("dup2");
    show_epoll("overwritten", 0);
    say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, second, 0, 0)));
    say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, second, EPOLLIN, 2)));
    come(fd, 1);
    show_epoll("the other connection", 1000);
}

const struct test_case cases[] = {
    {"fairness_one_at_a_time", WARM, fairness_one_at_a_time, servant},
    {"fairness_of_others", WARM, fairness_of_others, servant},
    {"fairness_beside_idle_ones", WARM, fairness_beside_idle_ones, servant},
    {"beside_timer_and_event", WARM, beside_timer_and_event, servant},
    {"beside_pipe_ends", WARM, beside_pipe_ends, servant},
    {"beside_listener", WARM, beside_listener, servant},
    {"beside_signalfd", WARM, beside_signalfd, servant},
    {"add_before_connect", NONE, add_before_connect, servant},
    {"add_before_listen", NONE, add_before_listen, servant},
    {"close_takes_it_out", WARM, close_takes_it_out, servant},
    {"close_with_a_duplicate", WARM, close_with_a_duplicate, servant},
    {"close_of_the_duplicate", WARM, close_of_the_duplicate, servant},
    {"number_used_again", WARM, number_used_again, servant},
    {"dup2_over_a_registered_one", WARM, dup2_over_a_registered_one, servant},
    {0},
};
