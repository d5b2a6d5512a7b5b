// poll(2), ppoll, select and pselect: what they show, for how long they wait.
// Roles named `servant` are those of waits.h.
#include "waits.h"
#include <sys/resource.h>

// --- poll ---

static void poll_same_twice(int fd) {
    struct pollfd entries[] = {{.fd = fd, .events = POLLIN}, {.fd = fd, .events = POLLOUT}, {.fd = fd, .events = 0}};
    say("idle %s: %s", outcome(poll(entries, 3, 0)), bits(entries[1].revents));
    come(fd, 1);
    say("data %s: %s %s %s", outcome(poll(entries, 3, 1000)), bits(entries[0].revents), bits(entries[1].revents), bits(entries[2].revents));
}
static void poll_ignores_negative(int fd) {
    struct pollfd entries[] = {{.fd = -1, .events = POLLIN, .revents = 77}, {.fd = fd, .events = POLLIN, .revents = 77}, {.fd = ~5, .events = POLLIN, .revents = 77}};
    say("idle %s: %d %d %d", outcome(poll(entries, 3, 0)), entries[0].revents, entries[1].revents, entries[2].revents);
    come(fd, 1);
    entries[0].revents = 77;
    say("data %s: %d %d %d", outcome(poll(entries, 3, 1000)), entries[0].revents, entries[1].revents, entries[2].revents);
    entries[1].fd = -fd;
    say("none %s", outcome(poll(entries, 3, 0)));
}
static void poll_shows_what_is_not_open(int fd) {
    struct pollfd entries[] = {{.fd = 555, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    for (int i = 0; i < 2; i++) {
        say("%s: %s %s", outcome(poll(entries, 2, -1)), bits(entries[0].revents), bits(entries[1].revents));
        come(fd, 1);
    }
    close(fd);
    say("%s: %s %s", outcome(poll(entries, 2, -1)), bits(entries[0].revents), bits(entries[1].revents));
}
static void poll_each_bit(int fd) {
    static const short wanted[] = {0, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM, POLLRDBAND, POLLWRBAND, POLLPRI, POLLRDHUP, POLLIN | POLLRDNORM, POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM, -1};
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) show_poll(bits(wanted[i]), fd, wanted[i], 0);
        if (round == 0) come(fd, 1);
        if (round == 1) {
            ask(SHUT, 0);
            no_longer_established(fd);
        }
    }
}
static void poll_times(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    struct timespec time = {0, 30000000}, bad = {0, -1};
    uint64_t start = now_ms();
    say("now %s", outcome(poll(&entry, 1, 0)));
    say("30 ms %s", outcome(poll(&entry, 1, 30)));
    if (now_ms() - start < 29) die("too early");
    start = now_ms();
    say("30 ms %s", outcome(ppoll(&entry, 1, &time, NULL)));
    if (now_ms() - start < 29) die("too early");
    say("kept %ld", time.tv_nsec);
    say("bad %s", outcome(ppoll(&entry, 1, &bad, NULL)));
    bad = (struct timespec){0, 1000000000};
    say("bad %s", outcome(ppoll(&entry, 1, &bad, NULL)));
    bad = (struct timespec){-1, 0};
    say("bad %s", outcome(ppoll(&entry, 1, &bad, NULL)));
    ask(SEND | LATER, 1);
    say("for ever %s", outcome(poll(&entry, 1, -7)));
    get(fd, 10);
    ask(SEND | LATER, 1);
    say("for ever %s", outcome(ppoll(&entry, 1, NULL, NULL)));
}
static void poll_too_many(int fd) {
    struct rlimit limit = {64, 64};
    struct pollfd entries[65] = {{.fd = fd, .events = POLLOUT}};
    for (int i = 1; i < 65; i++) entries[i].fd = -1;
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    limit.rlim_max = before.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
    say("65 %s", outcome(poll(entries, 65, 0)));
    say("64 %s", outcome(poll(entries, 64, 0)));
    entries[0].events = POLLIN;
    ask(SEND | LATER, 1);
    say("64, asleep %s", outcome(poll(entries, 64, 5000)));
    setrlimit(RLIMIT_NOFILE, &before);
    say("65 %s", outcome(poll(entries, 65, 0)));
}
static void poll_beside_others(int fd) {
    int pipes[2], event = eventfd(0, 0);
    uint64_t one = 1;
    if (pipe(pipes)) die("pipe");
    struct pollfd entries[] = {{.fd = pipes[0], .events = POLLIN}, {.fd = fd, .events = POLLIN}, {.fd = event, .events = POLLIN}, {.fd = pipes[1], .events = POLLIN}};
    say("idle %s", outcome(poll(entries, 4, 0)));
    if (write(event, &one, 8) != 8) die("write");
    say("event %s", outcome(poll(entries, 4, 1000)));
    come(fd, 1);
    for (int i = 0; i < 40; i++)
        if (poll(entries, 4, 1000) != 2 || !entries[1].revents || !entries[2].revents) die("both, %d", i);
    close(pipes[1]);
    entries[3].fd = -1;
    say("three %s: %s", outcome(poll(entries, 4, 1000)), bits(entries[0].revents));
}
static void poll_out_of_a_full_one(int fd) {
    uint64_t sent = stuff(fd);
    show_poll("full", fd, POLLOUT | POLLIN, 0);
    show_poll("full", fd, POLLOUT | POLLIN, 20);
    ask(RECEIVE | LATER, sent);
    show_poll("room", fd, POLLOUT | POLLIN, 5000);
    put(fd, "x");
    say("sent");
}
static void poll_reset(int fd) {
    ask(RESET | LATER, 0);
    show_poll("reset", fd, POLLIN, 5000);
    show_poll("reset", fd, ALL, 5000);
    show_poll("nothing asked", fd, 0, 5000);
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    say("%s", error_name(error));
    show_poll("fetched", fd, ALL, 5000);
}
static void poll_own_half_shut(int fd) {
    shutdown(fd, SHUT_RD);
    show_poll("receiving", fd, ALL, 1000);
    shutdown(fd, SHUT_WR);
    show_poll("both", fd, ALL, 1000);
    say("'%s'", get(fd, 10));
    show_poll("both", fd, 0, 1000);
}
// Where TCP_INFO says that the peer has shut its side, poll says so too.
static void poll_end_behind_its_state(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    for (int i = 0; i < 200; i++) {
        int near = dial(port), far = accept(listener, NULL, NULL), shown;
        if (near < 0 || far < 0) die("connection %d", i);
        shutdown(near, SHUT_WR);
        no_longer_established(far);
        int count = pollx(far, POLLIN | POLLRDHUP, 0, &shown);
        if (count != 1 || shown != (POLLIN | POLLRDHUP)) die("connection %d shows %s", i, bits(shown));
        close(near);
        close(far);
    }
    say("the end, always");
}
// Two threads wait for one connection: both are told.
static int waited_for;
static void *poll_thread(void *unused) {
    (void)unused;
    int shown;
    long count = pollx(waited_for, POLLIN, 5000, &shown);
    return (void *)(long)(count == 1 && shown == POLLIN);
}
static void poll_by_two_threads(int fd) {
    pthread_t threads[2];
    waited_for = fd;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 2; i++) pthread_create(threads + i, NULL, poll_thread, NULL);
        ask(SEND | (round % 2 ? LATER : 0), 1);
        for (int i = 0; i < 2; i++) {
            void *told;
            pthread_join(threads[i], &told);
            if (!told) die("thread %d was not told in round %d", i, round);
        }
        get(fd, 10);
    }
    say("both, always");
}
static void *epoll_thread(void *unused) {
    (void)unused;
    struct epoll_event event;
    return (void *)(long)(epoll_wait(ep, &event, 1, 5000) == 1);
}
static void poll_beside_an_epoll(int fd) {
    pthread_t threads[2];
    waited_for = fd;
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    for (int round = 0; round < 20; round++) {
        pthread_create(threads, NULL, poll_thread, NULL);
        pthread_create(threads + 1, NULL, epoll_thread, NULL);
        ask(SEND | (round % 2 ? LATER : 0), 1);
        for (int i = 0; i < 2; i++) {
            void *told;
            pthread_join(threads[i], &told);
            if (!told) die("waiter %d was not told in round %d", i, round);
        }
        get(fd, 10);
    }
    say("both, always");
}
// The connection gets its rings while poll is what waits for it.
static void upgrade_under_poll(int fd) {
    for (int i = 0; another_round(fd, i); i++) {
        ask(SEND | (i % 3 ? 0 : LATER), 1);
        int shown;
        if (pollx(fd, POLLIN, 5000, &shown) != 1 || shown != POLLIN) die("poll at %d", i);
        if (*get(fd, 1) != 'a' + i % 26) die("byte %d", i);
        if (pollx(fd, POLLIN, 0, &shown) != 0) die("nothing at %d", i);
    }
    say("all");
}
static void upgrade_under_select(int fd) {
    for (int i = 0; another_round(fd, i); i++) {
        ask(SEND | (i % 3 ? 0 : LATER), 1);
        fd_set in, out;
        FD_ZERO(&in);
        FD_ZERO(&out);
        FD_SET(fd, &in);
        FD_SET(fd, &out);
        struct timeval time = {5, 0};
        if (select(fd + 1, &in, NULL, NULL, &time) != 1) die("select at %d", i);
        if (select(fd + 1, NULL, &out, NULL, &time) != 1) die("select for room at %d", i);
        if (*get(fd, 1) != 'a' + i % 26) die("byte %d", i);
    }
    say("all");
}
// A thread sleeps in poll, on the kernel's socket, while another moves the bytes.
static void *mover(void *fd) {
    for (int i = 0; i < 200; i++) {
        ask(SEND, 1);
        if (recv((int)(long)fd, &(char){0}, 1, 0) != 1) die("mover");
    }
    return NULL;
}
static void upgrade_beside_a_sleeping_poll(int fd) {
    pthread_t thread;
    pthread_create(&thread, NULL, mover, (void *)(long)fd);
    for (int i = 0; i < 40; i++) {
        int shown, count = pollx(fd, POLLRDHUP, 5, &shown);
        if (count) die("poll shows %s", bits(shown));
    }
    pthread_join(thread, NULL);
    ask(SHUT | LATER, 0);
    show_poll("end", fd, POLLRDHUP, 5000);
}

// --- select ---

static void show_sets(const char *when, int result, int fd, const fd_set *in, const fd_set *out, const fd_set *except) {
    say("%s: %s %d %d %d", when, outcome(result), FD_ISSET(fd, in) != 0, FD_ISSET(fd, out) != 0, FD_ISSET(fd, except) != 0);
}
static void all_sets(int fd, fd_set *in, fd_set *out, fd_set *except) {
    FD_ZERO(in);
    FD_ZERO(out);
    FD_ZERO(except);
    FD_SET(fd, in), FD_SET(fd, out), FD_SET(fd, except);
}
static void select_counts_bits(int fd) {
    fd_set in, out, except;
    struct timeval time = {0, 0};
    for (int round = 0; round < 3; round++) {
        all_sets(fd, &in, &out, &except);
        show_sets("all", select(fd + 1, &in, &out, &except, &time), fd, &in, &out, &except);
        if (round == 0) come(fd, 1);
        if (round == 1) {
            ask(RESET, 0);
            no_longer_established(fd);
        }
    }
}
static void select_looks_below_n(int fd) {
    fd_set in, out, except;
    struct timeval time = {0, 0};
    come(fd, 1);
    for (int n = fd - 1; n <= fd + 2; n++) {
        all_sets(fd, &in, &out, &except);
        int count = select(n, &in, &out, &except, &time);
        say("%d: %s", n - fd, outcome(count));
    }
    say("none %s", outcome(select(0, NULL, NULL, NULL, &time)));
    say("negative %s", outcome(select(-1, &in, NULL, NULL, &time)));
    time.tv_usec = -1;
    say("time %s", outcome(select(fd + 1, &in, NULL, NULL, &time)));
    time = (struct timeval){-1, 0};
    say("time %s", outcome(select(fd + 1, &in, NULL, NULL, &time)));
    struct timespec bad = {0, 2000000000};
    say("time %s", outcome(pselect(fd + 1, &in, NULL, NULL, &bad, NULL)));
}
static void select_of_something_closed(int fd) {
    fd_set in;
    struct timeval time = {0, 0};
    int copy = dup(fd), pipes[2];
    if (pipe(pipes)) die("pipe");
    come(fd, 1);
    close(copy);
    for (int round = 0; round < 2; round++) {
        FD_ZERO(&in);
        FD_SET(copy, &in);
        if (round) FD_SET(fd, &in);
        say("closed: %s", outcome(select(30, &in, NULL, NULL, &time)));
        say("the set is as it was %d", FD_ISSET(copy, &in) != 0);
    }
}
static void select_time_left(int fd) {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    // More microseconds than a second has are seconds.
    struct timeval time = {1, 3500000};
    ask(SEND | LATER, 1);
    say("data %s", outcome(select(fd + 1, &in, NULL, NULL, &time)));
    say("left %d", time.tv_sec == 4 && time.tv_usec > 0);
    struct timespec spec = {3, 0};
    say("data %s", outcome(pselect(fd + 1, &in, NULL, NULL, &spec, NULL)));
    say("pselect leaves its time %ld %ld", (long)spec.tv_sec, spec.tv_nsec);
    get(fd, 1);
    time = (struct timeval){0, 10000};
    say("none %s", outcome(select(fd + 1, &in, NULL, NULL, &time)));
    say("left %ld %ld", (long)time.tv_sec, (long)time.tv_usec);
}
// The end of a connection is for those who want bytes or room.
static void select_what_is_over(int fd) {
    fd_set except;
    ask(RESET, 0);
    no_longer_established(fd);
    FD_ZERO(&except);
    FD_SET(fd, &except);
    struct timeval time = {0, 50000};
    say("none %s", outcome(select(fd + 1, NULL, NULL, &except, &time)));
    say("left %ld %ld", (long)time.tv_sec, (long)time.tv_usec);
}
static void select_high_descriptor(int fd) {
    fd_set in, out, except;
    struct timeval time = {0, 0};
    int high = fcntl(fd, F_DUPFD, 1000);
    if (high < 0) die("F_DUPFD");
    come(fd, 1);
    for (int i = 0; i < 2; i++) {
        all_sets(high, &in, &out, &except);
        FD_SET(fd, &in);
        show_sets("high", select(high + 1, &in, &out, &except, &time), high, &in, &out, &except);
        say("low %d", FD_ISSET(fd, &in) != 0);
        drain(fd);
    }
}
static void select_beside_others(int fd) {
    int pipes[2], port, listener = listen_any(&port);
    fd_set in, out;
    if (pipe(pipes)) die("pipe");
    if (write(pipes[1], "x", 1) != 1) die("write");
    for (int round = 0; round < 40; round++) {
        FD_ZERO(&in);
        FD_ZERO(&out);
        FD_SET(fd, &in), FD_SET(pipes[0], &in), FD_SET(pipes[1], &out), FD_SET(listener, &in);
        struct timeval time = {5, 0};
        int count = select(listener + 20, &in, &out, NULL, &time), expected = 2 + (round >= 10) + (round >= 20);
        if (count != expected) die("round %d: %s", round, outcome(count));
        if (round == 9) come(fd, 1);
        if (round == 19 && dial(port) < 0) die("dial");
    }
    say("all");
}

// --- longer stories ---

static void poll_a(int fd) {
    show_poll("idle", fd, ALL, 0);
    show_poll("idle in", fd, POLLIN, 30);
    step();
    show_poll("wakes", fd, POLLIN, 5000);
    show_poll("all", fd, ALL, 5000);
    say("%s", get(fd, 2));
    show_poll("rest", fd, ALL, 5000);
    say("%s", get(fd, 100));
    show_poll("empty", fd, POLLIN, 0);
    step();
    struct pollfd several[4] = {{.fd = -1, .events = POLLIN}, {.fd = 0, .events = POLLIN}, {.fd = fd, .events = POLLIN}, {.fd = 999, .events = POLLIN}};
    int count = poll(several, 4, 5000);
    tell(0);
    say("several %d: %s %s %s %s", count, bits(several[0].revents), bits(several[1].revents), bits(several[2].revents), bits(several[3].revents));
    count = poll(several, 3, 5000);
    while (count == 1) count = poll(several, 3, 5000); // either may be first
    hear();
    say("several %d: %s %s %s", count, bits(several[0].revents), bits(several[1].revents), bits(several[2].revents));
    get(fd, 10);
    count = poll(several + 2, 1, 20);
    say("several %d: %s", count, bits(several[2].revents));
    uint64_t start = now_ms();
    poll(several, 1, 60);
    if (now_ms() - start < 55) die("too early");
    start = now_ms();
    poll(several + 2, 1, 60);
    if (now_ms() - start < 55) die("too early");
    step();
    // Room.
    uint64_t sent = stuff(fd);
    show_poll("full", fd, ALL, 0);
    show_poll("full", fd, POLLOUT, 30);
    tell(sent);
    show_poll("room", fd, POLLOUT, 5000);
    nonblocking(fd, 0);
    step();
    no_longer_established(fd);
    show_poll("peer shut", fd, POLLIN | POLLRDHUP, 5000);
    show_poll("peer shut", fd, POLLOUT, 5000);
    step();
    show_poll("data and end", fd, ALL, 5000);
    say("%s", get(fd, 10));
    show_poll("end", fd, ALL, 5000);
    say("%s", get(fd, 10));
    show_poll("end", fd, POLLIN, 5000);
    shutdown(fd, SHUT_WR);
    show_poll("both shut", fd, POLLIN, 5000);
    show_poll("both shut", fd, 0, 5000);
    show_poll("both shut", fd, ALL, 5000);
    step();
}
static void poll_b(int fd) {
    step();
    usleep(30000);
    put(fd, "abcd");
    step();
    hear();
    put(fd, "x");
    tell(0);
    step();
    recv_all(fd, 0, hear(), 30000);
    step();
    put(fd, "yz");
    shutdown(fd, SHUT_WR);
    step();
    step();
}

static void show_select(const char *when, int fd, int timeout_ms) {
    fd_set in, out, except;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&except);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    FD_SET(fd, &except);
    struct timeval time = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    int count = select(fd + 1, &in, &out, &except, &time);
    say("%s: %s %d %d %d", when, outcome(count), FD_ISSET(fd, &in), FD_ISSET(fd, &out), FD_ISSET(fd, &except));
}
static void select_a(int fd) {
    show_select("idle", fd, 0);
    step();
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    struct timeval time = {5, 0};
    say("wakes %s", outcome(select(fd + 1, &in, NULL, NULL, &time)));
    say("left %d", time.tv_sec == 4 && FD_ISSET(fd, &in));
    show_select("data", fd, 0);
    say("%s", get(fd, 10));
    time = (struct timeval){0, 40000};
    say("none %s", outcome(select(fd + 1, &in, NULL, NULL, &time)));
    say("left %ld %ld, set %d", (long)time.tv_sec, (long)time.tv_usec, FD_ISSET(fd, &in));
    struct timespec spec = {0, 40000000};
    FD_SET(fd, &in);
    say("none %s", outcome(pselect(fd + 1, &in, NULL, NULL, &spec, NULL)));
    uint64_t sent = stuff(fd);
    show_select("full", fd, 20);
    tell(sent);
    fd_set out;
    FD_ZERO(&out);
    FD_SET(fd, &out);
    say("room %s", outcome(select(fd + 1, NULL, &out, NULL, NULL)));
    step();
    show_select("end", fd, 5000);
    FD_ZERO(&in);
    FD_SET(150, &in);
    say("bad %s", outcome(select(151, &in, NULL, NULL, NULL)));
    step();
}
static void select_b(int fd) {
    step();
    usleep(30000);
    put(fd, "abcd");
    recv_all(fd, 0, hear(), 30000);
    shutdown(fd, SHUT_WR);
    step();
    step();
}

// A wait over many descriptors at once, more than fit on the stack.
static void many_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    enum { COUNT = 100 };
    struct pollfd entries[COUNT];
    for (int i = 0; i < COUNT; i++) {
        entries[i] = (struct pollfd){.fd = accept(listener, NULL, NULL), .events = POLLIN};
        if (i % 10 == 0) warm(entries[i].fd, 0);
    }
    for (int round = 0; round < COUNT; round++) {
        int chosen = hear(), count = poll(entries, COUNT, 3000);
        if (count != 1 || entries[chosen].revents != POLLIN) die("poll %d, %d shows %s", count, chosen, bits(entries[chosen].revents));
        char byte;
        if (recv(entries[chosen].fd, &byte, 1, 0) != 1) die("receive");
        step();
    }
    say("all");
}
static void many_b(int unused) {
    (void)unused;
    int port = hear(), fds[100];
    for (int i = 0; i < 100; i++) {
        fds[i] = dial(port);
        if (i % 10 == 0) warm(fds[i], 1);
    }
    for (int round = 0; round < 100; round++) {
        int chosen = round * 7 % 100;
        tell(chosen);
        if (round % 2) usleep(2000);
        put(fds[chosen], "x");
        step();
    }
    say("all");
}

const struct test_case cases[] = {
    {"poll", WARM, poll_a, poll_b},
    {"select", WARM, select_a, select_b},
    {"many", NONE, many_a, many_b},
    {"poll_same_twice", WARM, poll_same_twice, servant},
    {"poll_ignores_negative", WARM, poll_ignores_negative, servant},
    {"poll_shows_what_is_not_open", WARM, poll_shows_what_is_not_open, servant},
    {"poll_each_bit", WARM, poll_each_bit, servant},
    {"poll_times", WARM, poll_times, servant},
    {"poll_too_many", WARM, poll_too_many, servant},
    {"poll_beside_others", WARM, poll_beside_others, servant},
    {"poll_out_of_a_full_one", WARM, poll_out_of_a_full_one, servant},
    {"poll_reset", WARM, poll_reset, servant},
    {"poll_own_half_shut", WARM, poll_own_half_shut, servant},
    {"poll_end_behind_its_state", WARM, poll_end_behind_its_state, servant},
    {"poll_by_two_threads", WARM, poll_by_two_threads, servant},
    {"poll_beside_an_epoll", WARM, poll_beside_an_epoll, servant},
    {"upgrade_under_poll", COLD, upgrade_under_poll, servant},
    {"upgrade_under_select", COLD, upgrade_under_select, servant},
    {"upgrade_beside_a_sleeping_poll", COLD, upgrade_beside_a_sleeping_poll, servant},
    {"select_counts_bits", WARM, select_counts_bits, servant},
    {"select_looks_below_n", WARM, select_looks_below_n, servant},
    {"select_of_something_closed", WARM, select_of_something_closed, servant},
    {"select_time_left", WARM, select_time_left, servant},
    {"select_what_is_over", WARM, select_what_is_over, servant},
    {"select_high_descriptor", WARM, select_high_descriptor, servant},
    {"select_beside_others", WARM, select_beside_others, servant},
    {0},
};
