// Ends: shutdown, close, death, reset; on each side, with bytes under way or not.
#include "try.h"

static void put(int fd, const char *text) {
    if (send(fd, text, strlen(text), 0) != (ssize_t)strlen(text)) die("send");
}
static char buffer[1 << 20];
static void show_recv(const char *when, int fd) {
    ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    if (got > 0 && got < 100) say("%s: %ld %.*s", when, (long)got, (int)got, buffer);
    else say("%s: %s", when, outcome(got));
}
static void show_send(const char *when, int fd) { say("%s: send %s", when, outcome(send(fd, "s", 1, MSG_NOSIGNAL))); }
static void show_poll(const char *when, int fd) {
    int shown, count = pollx(fd, POLLIN | POLLOUT | POLLRDHUP, 3000, &shown);
    say("%s: poll %d %s", when, count, bits(shown));
}
static void show_error(const char *when, int fd) {
    int error = -1;
    socklen_t length = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    say("%s: SO_ERROR %s", when, error ? error_name(error) : "0");
}
// The kernel needs a moment for what it answers to a send, the broker for a death.
static void a_moment(void) { usleep(30000); }

// Half-close each way, with bytes before it.
static void half_a(int fd) {
    put(fd, "last words");
    shutdown(fd, SHUT_WR);
    say("send %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
    step();
    recv_all(fd, 0, 3000000, 100000);
    drained(fd);
    show_recv("again", fd);
    show_poll("both", fd);
    step();
}
static void half_b(int fd) {
    step();
    show_recv("words", fd);
    show_recv("end", fd);
    show_recv("end", fd);
    send_all(fd, 0, 3000000, 70000);
    say("sent");
    shutdown(fd, SHUT_WR);
    step();
}

// Many bytes, then close: all of them arrive, then the end.
static void eof_a(int fd) {
    send_all(fd, 0, 1 << 20, 4096);
    close(fd);
    step();
}
static void eof_b(int fd) {
    recv_all(fd, 0, 1 << 20, 10000);
    drained(fd);
    drained(fd);
    say("all and the end");
    close(fd);
    step();
}
// The sender is long gone when the receiver starts.
static void eof_late_a(int fd) {
    send_all(fd, 0, 4000, 1000);
    close(fd);
    tell(0);
}
static void eof_late_b(int fd) {
    hear();
    wait_dead();
    show_poll("data and end", fd);
    recv_all(fd, 0, 4000, 3000);
    drained(fd);
    say("all and the end");
}

// Close with bytes unread: the other end is reset.
static void unread_a(int fd) {
    step();
    settle(fd, 5);
    put(fd, "abc");
    step();
    close(fd);
    step();
    step();
}
// A connection after a reset: what is unread is gone, the error is told once.
static void show_reset(const char *when, int fd) {
    show_poll(when, fd);
    show_recv("before", fd);
    show_recv("error", fd);
    show_recv("after", fd);
    show_poll("after", fd);
    show_send("after", fd);
}
static void unread_b(int fd) {
    put(fd, "12345");
    step();
    step();
    step();
    no_longer_established(fd);
    show_reset("reset", fd);
    step();
}
static void unread_send_b(int fd) {
    put(fd, "12345");
    step();
    step();
    step();
    no_longer_established(fd);
    show_send("first", fd);
    show_send("second", fd);
    show_recv("data", fd);
    show_recv("then", fd);
    step();
}
static void unread_error_b(int fd) {
    put(fd, "12345");
    step();
    step();
    step();
    no_longer_established(fd);
    show_error("first", fd);
    show_error("second", fd);
    show_recv("data", fd);
    show_recv("then", fd);
    step();
}

// By nothing but reads that may not wait.
static void reading(int fd) {
    no_longer_established(fd);
    for (int i = 0; i < 3; i++) {
        ssize_t got = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
        say("read %s", outcome(got));
    }
}
static void unread_reading_b(int fd) {
    put(fd, "12345");
    step();
    step();
    step();
    reading(fd);
    step();
}
static void eof_reading_a(int fd) {
    put(fd, "abc");
    close(fd);
    step();
    step();
}
static void eof_reading_b(int fd) {
    step();
    reading(fd);
    step();
}
// B fills the path and leaves its ring: what lies there, and has no room in the kernel, is A's to
// drain. It is unread all the same.
static void leave_full(int fd) {
    int small = 4096, on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small)) die("SO_SNDBUF");
    nonblocking(fd, 1);
    while (send(fd, buffer, sizeof buffer, 0) > 0) {}
    nonblocking(fd, 0);
    // Only the kernel has the time of bytes.
    if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on)) die("SO_TIMESTAMP");
}
static void left_unread_a(int fd) {
    int on = 1;
    // A reset throws away what Nagle's algorithm holds back (RFC 896).
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) die("TCP_NODELAY");
    unread_a(fd);
}
static void left_unread_b(int fd) {
    leave_full(fd);
    step();
    step();
    step();
    no_longer_established(fd);
    show_reset("reset", fd);
    step();
}

static void linger_a(int fd) {
    struct linger zero = {1, 0};
    step();
    settle(fd, 0);
    put(fd, "abc");
    step();
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &zero, sizeof zero);
    close(fd);
    step();
    step();
}
static void linger_b(int fd) {
    step();
    step();
    step();
    no_longer_established(fd);
    show_poll("reset", fd);
    show_recv("before", fd);
    show_recv("error", fd);
    show_recv("after", fd);
    show_send("after", fd);
    step();
}

// The peer closes, nothing unread: the first send goes, the second fails.
static void sigpipe_a(int fd) {
    step();
    close(fd);
    step();
    step();
}
static volatile int pipes;
static void on_pipe(int signal) { (void)signal; pipes++; }
static void sigpipe_b(int fd) {
    struct sigaction action = {.sa_handler = on_pipe};
    sigaction(SIGPIPE, &action, NULL);
    step();
    step();
    no_longer_established(fd);
    say("first %s", outcome(send(fd, "x", 1, 0)));
    a_moment();
    say("second %s", outcome(send(fd, "x", 1, 0)));
    say("signals %d", pipes);
    say("third %s", outcome(write(fd, "x", 1)));
    say("signals %d", pipes);
    say("quiet %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
    say("signals %d", pipes);
    show_recv("receive", fd);
    show_poll("then", fd);
    step();
}
static void sigpipe_death_b(int fd) {
    step();
    step();
    no_longer_established(fd);
    for (int i = 0; i < 10; i++) {
        if (write(fd, "x", 1) != 1) die("write");
        a_moment();
    }
}
static void sigpipe_death_a(int fd) {
    step();
    close(fd);
    step();
    wait_dead();
    say("dead");
}

// kill -9 of A, at different moments; B must see what the kernel would show.
static void kill_clean_a(int fd) {
    put(fd, "abc");
    step();
    (void)fd;
    kill(getpid(), SIGKILL);
}
static void kill_clean_b(int fd) {
    step();
    wait_dead();
    no_longer_established(fd);
    a_moment();
    show_poll("dead", fd);
    show_recv("before", fd);
    show_recv("end", fd);
    show_recv("end", fd);
    show_poll("end", fd);
    show_send("first", fd);
    a_moment();
    show_send("second", fd);
    show_poll("then", fd);
}
static void kill_unread_a(int fd) {
    put(fd, "abc");
    step();
    settle(fd, 5);
    kill(getpid(), SIGKILL);
}
static void kill_unread_b(int fd) {
    put(fd, "12345");
    step();
    wait_dead();
    no_longer_established(fd);
    a_moment();
    show_reset("dead", fd);
}
static void kill_left_unread_b(int fd) {
    leave_full(fd);
    step();
    wait_dead();
    no_longer_established(fd);
    a_moment();
    show_reset("dead", fd);
}
// A has answered the wish to leave the rings when it dies.
static void kill_served_a(int fd) {
    int shown;
    step();
    for (int i = 0; i < 5; i++) {
        pollx(fd, POLLIN, 20, &shown);
        if (recv(fd, buffer, 1, MSG_PEEK | MSG_DONTWAIT) != 1) die("nothing");
    }
    kill(getpid(), SIGKILL);
}
static void kill_served_b(int fd) {
    leave_full(fd);
    step();
    wait_dead();
    no_longer_established(fd);
    a_moment();
    show_recv("error", fd);
    show_recv("after", fd);
    show_poll("after", fd);
}
static void kill_left_unread_send_b(int fd) {
    leave_full(fd);
    step();
    wait_dead();
    no_longer_established(fd);
    a_moment();
    show_send("first", fd);
    show_send("second", fd);
    show_recv("before", fd);
    show_recv("after", fd);
}
static void kill_unread_send_b(int fd) {
    put(fd, "12345");
    step();
    wait_dead();
    no_longer_established(fd);
    a_moment();
    show_send("first", fd);
    show_send("second", fd);
    show_recv("before", fd);
    show_recv("after", fd);
}
static void kill_unread_error_b(int fd) {
    put(fd, "12345");
    step();
    wait_dead();
    no_longer_established(fd);
    a_moment();
    show_error("first", fd);
    show_error("second", fd);
    show_recv("before", fd);
    show_recv("after", fd);
}
// The survivor sleeps when the other end dies.
static void kill_later(int fd, int unread) {
    step();
    if (unread) settle(fd, unread);
    pid_t survivor = hear();
    asleep(survivor, survivor);
    kill(getpid(), SIGKILL);
}
static void kill_later_a(int fd) { kill_later(fd, 0); }
static void kill_later_unread_a(int fd) { kill_later(fd, 5); }
static void kill_in_recv_b(int fd) {
    step();
    tell(getpid());
    show_recv("slept", fd);
}
static void kill_in_recv_unread_b(int fd) {
    put(fd, "12345");
    step();
    tell(getpid());
    show_recv("slept", fd);
    show_recv("then", fd);
}
static void kill_in_poll_b(int fd) {
    int shown;
    step();
    tell(getpid());
    int count = pollx(fd, POLLIN, 5000, &shown);
    say("slept: %d %s", count, bits(shown));
    show_recv("then", fd);
}
static void kill_in_poll_quiet_b(int fd) {
    int shown;
    put(fd, "12345");
    step();
    tell(getpid());
    int count = pollx(fd, 0, 5000, &shown);
    say("slept: %d %s", count, bits(shown));
    show_recv("then", fd);
}
static int epoll_with(int fd, uint32_t events) {
    int ep = epoll_create1(0);
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    return ep;
}
static void kill_in_epoll_b(int fd) {
    struct epoll_event event;
    int ep = epoll_with(fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
    step();
    tell(getpid());
    int count = epoll_wait(ep, &event, 1, 5000);
    say("slept: %d %s", count, bits(event.events));
    count = epoll_wait(ep, &event, 1, 30);
    say("then: %d", count);
    show_recv("then", fd);
}

// A blocking sender with all queues full; A reads a little, then closes or dies.
static void full_a_close(int fd) {
    step();
    usleep(100000);
    close(fd);
    step();
}
static void full_a_kill(int fd) {
    (void)fd;
    step();
    usleep(100000);
    kill(getpid(), SIGKILL);
}
// A reset, of which an earlier call may have told already.
static void at_last(ssize_t result) { say("at last %d", result < 0 && (errno == EPIPE || errno == ECONNRESET)); }
static void full_b(int fd) {
    uint64_t sent = 0;
    step();
    for (;;) {
        ssize_t now = send(fd, buffer, 50000, MSG_NOSIGNAL);
        if (now < 0) {
            at_last(now);
            break;
        }
        sent += now;
        if (sent > 1u << 30) die("nobody stops the sender");
    }
    show_send("then", fd);
    show_recv("then", fd);
}
static void full_close_b(int fd) { full_b(fd); step(); }
static void full_write_b(int fd) {
    signal(SIGPIPE, SIG_IGN);
    step();
    ssize_t now;
    while ((now = write(fd, buffer, sizeof buffer)) > 0) {}
    at_last(now);
}
static void full_sendfile_b(int fd) {
    FILE *file = tmpfile();
    if (fwrite(buffer, 1, sizeof buffer, file) != sizeof buffer || fflush(file)) die("file");
    signal(SIGPIPE, SIG_IGN);
    step();
    ssize_t now;
    do {
        off_t offset = 0;
        now = sendfile(fd, fileno(file), &offset, sizeof buffer);
    } while (now > 0);
    at_last(now);
}
// Non-blocking senders that wait for room by poll, select, epoll (level, edge).
static void full_wait_b(int fd, int how) {
    int ep = how >= 2 ? epoll_with(fd, EPOLLOUT | (how == 3 ? EPOLLET : 0)) : -1;
    uint64_t sent = 0, start = now_ms();
    nonblocking(fd, 1);
    step();
    for (;;) {
        ssize_t now = send(fd, buffer, 50000, MSG_NOSIGNAL);
        if (now > 0) { sent += now; continue; }
        if (errno != EAGAIN) {
            at_last(now);
            break;
        }
        int shown, count;
        struct epoll_event event;
        fd_set out;
        FD_ZERO(&out);
        FD_SET(fd, &out);
        struct timeval time = {5, 0};
        if (how == 0) count = pollx(fd, POLLOUT, 5000, &shown);
        else if (how == 1) count = select(fd + 1, NULL, &out, NULL, &time);
        else count = epoll_wait(ep, &event, 1, 5000);
        if (count != 1) die("nobody wakes the sender: %d", count);
        if (now_ms() - start > 10000) die("no end");
    }
}
static void full_poll_b(int fd) { full_wait_b(fd, 0); }
static void full_select_b(int fd) { full_wait_b(fd, 1); }
static void full_level_b(int fd) { full_wait_b(fd, 2); }
static void full_edge_b(int fd) { full_wait_b(fd, 3); }
static void full_poll_close_b(int fd) { full_wait_b(fd, 0); step(); }
static void full_edge_close_b(int fd) { full_wait_b(fd, 3); step(); }

// The peer has shut its sending half, then dies while we send.
static void shut_then_kill_a(int fd) {
    shutdown(fd, SHUT_WR);
    step();
    usleep(100000);
    kill(getpid(), SIGKILL);
}
static void shut_then_kill_b(int fd) {
    step();
    no_longer_established(fd);
    show_recv("end", fd);
    ssize_t now;
    while ((now = send(fd, buffer, 50000, MSG_NOSIGNAL)) > 0) {}
    say("at last %s", outcome(now));
}

static void *shutter(void *argument) {
    usleep(50000);
    shutdown(*(int *)argument, SHUT_RDWR);
    return NULL;
}
// A thread shuts the socket down while another sleeps in receive.
static void shutdown_wakes_a(int fd) {
    pthread_t thread;
    pthread_create(&thread, NULL, shutter, &fd);
    show_recv("woken", fd);
    pthread_join(thread, NULL);
    show_send("then", fd);
    step();
}
static void shutdown_wakes_b(int fd) {
    show_recv("end", fd);
    step();
}
static void shut_rd_a(int fd) {
    step();
    settle(fd, 3);
    say("shutdown %s", outcome(shutdown(fd, SHUT_RD)));
    show_poll("shut", fd);
    show_recv("data", fd);
    show_recv("end", fd);
    put(fd, "still");
    step();
    step();
    settle(fd, 3);
    show_recv("late data", fd);
    show_recv("end", fd);
    step();
}
static void shut_rd_b(int fd) {
    put(fd, "abc");
    step();
    step();
    settle(fd, 5);
    show_recv("still", fd);
    put(fd, "def");
    step();
    step();
}

// What comes behind a shutdown of the receiving half is received all the same: by calls that
// may wait and by those that may not, by waits, and more than a ring takes at first.
static void shut_rd_more_a(int fd) {
    static char bytes[200000];
    int ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    say("shutdown %s", outcome(shutdown(fd, SHUT_RD)));
    int count = epoll_wait(ep, &event, 1, 3000);
    say("epoll %d %s", count, bits(event.events));
    for (int round = 0; round < 8; round++) {
        int flags = round % 2 ? MSG_DONTWAIT : 0;
        say("nothing: %s", outcome(recv(fd, bytes, 1, flags)));
        step();
        settle(fd, 10);
        say("peeked: %s", outcome(recv(fd, bytes, 100, flags | MSG_PEEK)));
        say("whole: %s", outcome(recv(fd, bytes, 100, flags | MSG_WAITALL)));
    }
    while (epoll_wait(ep, &event, 1, 0) == 1) {}
    step();
    count = epoll_wait(ep, &event, 1, 3000);
    say("epoll %d %s", count, bits(event.events));
    size_t got = 0;
    for (int round = 0; got < sizeof bytes; round++) {
        ssize_t now = recv(fd, bytes + got, sizeof bytes - got, 0);
        if (now < 0 || round > 20000) die("received %lu", got);
        if (now == 0) usleep(500);
        got += now;
    }
    check(bytes, 0, sizeof bytes);
    show_recv("end", fd);
    step();
}
static void shut_rd_more_b(int fd) {
    for (int round = 0; round < 8; round++) {
        step();
        put(fd, "0123456789");
    }
    step();
    send_all(fd, 0, 200000, 200000);
    step();
}

// Exit without close is a close.
static void exit_a(int fd) {
    put(fd, "bye");
    exit(0);
}
static void exit_b(int fd) {
    wait_dead();
    show_recv("bye", fd);
    show_recv("end", fd);
}
static void exit_unread_a(int fd) {
    step();
    settle(fd, 5);
    exit(0);
}
static void exit_unread_b(int fd) {
    put(fd, "12345");
    step();
    wait_dead();
    no_longer_established(fd);
    show_recv("reset", fd);
}

// Closed right after its first call, which offers it; its far end closes, and the number goes to
// another connection at once: that one is quiet, and the only one that is watched.
static void offered_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), false_reports = 0;
    int watcher = epoll_create1(0);
    for (int round = 0; round < 300; round++) {
        int near[2], far[2];
        for (int one = 0; one < 2; one++) {
            near[one] = dial(port);
            if ((far[one] = accept(listener, 0, 0)) < 0) die("accept");
            struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = one};
            if (epoll_ctl(watcher, EPOLL_CTL_ADD, near[one], &event)) die("epoll_ctl");
            if (one == 0) {
                put(near[0], "x");
                close(near[0]);
                put(far[0], "y");
                close(far[0]);
            }
        }
        struct epoll_event event;
        false_reports += epoll_wait(watcher, &event, 1, 0) != 0;
        close(near[1]);
        close(far[1]);
    }
    say("%d false reports", false_reports);
    close(watcher);
    close(listener);
}
static void offered_b(int unused) { (void)unused; }

const struct test_case cases[] = {
    {"half", WARM, half_a, half_b},
    {"eof", WARM, eof_a, eof_b},
    {"eof_late", WARM, eof_late_a, eof_late_b},
    {"unread", WARM, unread_a, unread_b},
    {"unread_send", WARM, unread_a, unread_send_b},
    {"unread_error", WARM, unread_a, unread_error_b},
    {"unread_reading", WARM, unread_a, unread_reading_b},
    {"eof_reading", WARM, eof_reading_a, eof_reading_b},
    {"left_unread", WARM, left_unread_a, left_unread_b},
    {"linger", WARM, linger_a, linger_b},
    {"sigpipe", WARM, sigpipe_a, sigpipe_b},
    {"sigpipe_death", WARM, sigpipe_death_a, sigpipe_death_b},
    {"kill_clean", WARM, kill_clean_a, kill_clean_b},
    {"kill_unread", WARM, kill_unread_a, kill_unread_b},
    {"kill_left_unread", WARM, kill_unread_a, kill_left_unread_b},
    {"kill_served", WARM, kill_served_a, kill_served_b},
    {"kill_left_unread_send", WARM, kill_unread_a, kill_left_unread_send_b},
    {"kill_unread_send", WARM, kill_unread_a, kill_unread_send_b},
    {"kill_unread_error", WARM, kill_unread_a, kill_unread_error_b},
    {"kill_in_recv", WARM, kill_later_a, kill_in_recv_b},
    {"kill_in_recv_unread", WARM, kill_later_unread_a, kill_in_recv_unread_b},
    {"kill_in_poll", WARM, kill_later_a, kill_in_poll_b},
    {"kill_in_poll_quiet", WARM, kill_later_unread_a, kill_in_poll_quiet_b},
    {"kill_in_epoll", WARM, kill_later_a, kill_in_epoll_b},
    {"full_close", WARM, full_a_close, full_close_b},
    {"full_kill", WARM, full_a_kill, full_b},
    {"full_write_kill", WARM, full_a_kill, full_write_b},
    {"full_sendfile_kill", WARM, full_a_kill, full_sendfile_b},
    {"full_poll_kill", WARM, full_a_kill, full_poll_b},
    {"full_select_kill", WARM, full_a_kill, full_select_b},
    {"full_level_kill", WARM, full_a_kill, full_level_b},
    {"full_edge_kill", WARM, full_a_kill, full_edge_b},
    {"full_poll_close", WARM, full_a_close, full_poll_close_b},
    {"full_edge_close", WARM, full_a_close, full_edge_close_b},
    {"shut_then_kill", WARM, shut_then_kill_a, shut_then_kill_b},
    {"shutdown_wakes", WARM, shutdown_wakes_a, shutdown_wakes_b},
    {"shut_rd", WARM, shut_rd_a, shut_rd_b},
    {"shut_rd_more", WARM, shut_rd_more_a, shut_rd_more_b},
    {"exit", WARM, exit_a, exit_b},
    {"exit_unread", WARM, exit_unread_a, exit_unread_b},
    {"offered", NONE, offered_a, offered_b},
    {0},
};
