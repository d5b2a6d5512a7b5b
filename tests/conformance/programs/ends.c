// More ends: resets with bytes under way, lingering, halves and ends in every order, death
// at random moments.
#include "try.h"

static char buffer[4 << 20];
static void put(int fd, size_t count) {
    fill(buffer, 0, count);
    if (send(fd, buffer, count, 0) != (ssize_t)count) die("send");
}
static void show_recv(const char *when, int fd) {
    ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    say("%s: %s", when, outcome(got));
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
static void linger(int fd, int seconds) {
    struct linger value = {1, seconds};
    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &value, sizeof value)) die("SO_LINGER");
}
// All that is there up to the end: a right prefix; and what the end is.
static void take_all(int fd, uint64_t most) {
    uint64_t at = 0;
    ssize_t got;
    while ((got = recv(fd, buffer, 30000, 0)) > 0) {
        check(buffer, at, got);
        at += got;
    }
    say("%s, then %s", at == most ? "all" : at < most ? "a prefix" : "too much", outcome(got));
}
static void reset_now(int fd) {
    linger(fd, 0);
    close(fd);
}

// A sends and resets; how much of it arrives is nobody's to say once it is much.
static void reset_small_a(int fd) {
    put(fd, 5000);
    step();
    reset_now(fd);
    step();
    step();
}
static void reset_small_b(int fd) {
    step();
    settle(fd, 5000);
    step();
    no_longer_established(fd);
    take_all(fd, 5000);
    show_recv("then", fd);
    show_send("then", fd);
    step();
}
static void reset_large_a(int fd) {
    put(fd, 1000000);
    reset_now(fd);
    step();
    step();
}
static void reset_large_b(int fd) {
    step();
    no_longer_established(fd);
    uint64_t at = 0;
    ssize_t got;
    while ((got = recv(fd, buffer, 30000, 0)) > 0) {
        check(buffer, at, got);
        at += got;
    }
    say("at most all %d, then %s", at <= 1000000, outcome(got));
    show_recv("then", fd);
    step();
}
static void reset_asleep_a(int fd) {
    step();
    usleep(30000);
    reset_now(fd);
    step();
}
static void reset_recv_b(int fd) {
    step();
    show_recv("slept", fd);
    show_recv("then", fd);
    step();
}
static void reset_poll_b(int fd) {
    step();
    int shown, count = pollx(fd, POLLIN, 5000, &shown);
    say("slept: %d %s", count, bits(shown));
    show_error("then", fd);
    show_recv("then", fd);
    step();
}
static void reset_quiet_b(int fd) {
    step();
    int shown, count = pollx(fd, 0, 5000, &shown);
    say("slept: %d %s", count, bits(shown));
    show_send("then", fd);
    show_send("then", fd);
    step();
}
static void reset_epoll_b(int fd) {
    int ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event);
    step();
    int count = epoll_wait(ep, &event, 1, 5000);
    say("slept: %d %s", count, bits(event.events));
    show_recv("then", fd);
    show_recv("then", fd);
    step();
}
static void reset_full_b(int fd) {
    step();
    ssize_t now;
    while ((now = send(fd, buffer, 100000, MSG_NOSIGNAL)) > 0) {}
    say("at last %d", now < 0 && (errno == ECONNRESET || errno == EPIPE));
    show_send("then", fd);
    step();
}
// Unread on both sides when A closes.
static void unread_both_a(int fd) {
    put(fd, 3000);
    step();
    settle(fd, 2000);
    close(fd);
    step();
    step();
}
static void unread_both_b(int fd) {
    put(fd, 2000);
    step();
    settle(fd, 3000);
    step();
    no_longer_established(fd);
    take_all(fd, 3000);
    show_recv("then", fd);
    show_send("then", fd);
    show_poll("then", fd);
    step();
}
static void unread_read_a(int fd) {
    step();
    settle(fd, 2000);
    recv_all(fd, 0, 2000, 2000);
    close(fd);
    step();
    step();
}
static void unread_read_b(int fd) {
    put(fd, 2000);
    step();
    step();
    no_longer_established(fd);
    show_recv("end", fd);
    show_error("then", fd);
    step();
}
static void unread_peeked_a(int fd) {
    step();
    settle(fd, 10);
    say("peek %s", outcome(recv(fd, buffer, 5000, MSG_PEEK)));
    close(fd);
    step();
    step();
}
// FIN and RST one behind the other.
static void fin_reset_a(int fd) {
    put(fd, 1000);
    shutdown(fd, SHUT_WR);
    step();
    step();
    reset_now(fd);
    step();
    step();
}
static void fin_reset_b(int fd) {
    step();
    recv_all(fd, 0, 1000, 1000);
    show_recv("end", fd);
    step();
    step();
    int shown;
    say("reset: %d", pollx(fd, 0, 3000, &shown));
    say("%s", bits(shown));
    show_error("reset", fd);
    show_send("then", fd);
    show_recv("then", fd);
    step();
}
static void fin_reset_unread_b(int fd) {
    step();
    step();
    step();
    int shown;
    say("reset: %d", pollx(fd, 0, 3000, &shown));
    show_recv("data", fd);
    show_recv("then", fd);
    show_recv("then", fd);
    step();
}
static void reset_fin_b(int fd) {
    shutdown(fd, SHUT_WR);
    step();
    settle(fd, 5000);
    step();
    no_longer_established(fd);
    int shown;
    say("reset: %d", pollx(fd, 0, 3000, &shown));
    take_all(fd, 5000);
    show_recv("then", fd);
    step();
}
static void both_close(int fd) {
    put(fd, 100);
    step();
    settle(fd, 100);
    recv_all(fd, 0, 100, 100);
    step();
    say("close %s", outcome(close(fd)));
    step();
}
static void both_shut(int fd) {
    put(fd, 100);
    shutdown(fd, SHUT_WR);
    recv_all(fd, 0, 100, 100);
    drained(fd);
    step();
    show_poll("both", fd);
    show_send("then", fd);
    say("close %s", outcome(close(fd)));
    step();
}

// SO_LINGER with a time: what has arrived is not waited for.
static void linger_a(int fd) {
    put(fd, 20000);
    linger(fd, 15);
    uint64_t start = now_ms();
    say("close %s", outcome(close(fd)));
    if (now_ms() - start > 5000) die("the close took %lu ms", now_ms() - start);
    step();
}
static void linger_b(int fd) {
    step();
    take_all(fd, 20000);
    show_recv("then", fd);
}
static void linger_nonblocking_a(int fd) {
    nonblocking(fd, 1);
    linger_a(fd);
}
static void linger_unread_a(int fd) {
    step();
    settle(fd, 10);
    linger(fd, 2);
    say("close %s", outcome(close(fd)));
    step();
    step();
}
static void linger_unread_b(int fd) {
    put(fd, 10);
    step();
    step();
    no_longer_established(fd);
    show_recv("reset", fd);
    show_recv("then", fd);
    step();
}
static void linger_exit_a(int fd) {
    put(fd, 20000);
    linger(fd, 15);
    exit(0);
}
static void linger_exit_b(int fd) {
    wait_dead();
    take_all(fd, 20000);
}

// shutdown in odd ways.
static void odd_a(int fd) {
    volatile int how = 7;
    say("how %s", outcome(shutdown(fd, how)));
    how = -1;
    say("how %s", outcome(shutdown(fd, how)));
    say("write %s", outcome(shutdown(fd, SHUT_WR)));
    say("again %s", outcome(shutdown(fd, SHUT_WR)));
    show_send("then", fd);
    say("read %s", outcome(shutdown(fd, SHUT_RD)));
    show_recv("then", fd);
    say("both %s", outcome(shutdown(fd, SHUT_RDWR)));
    step();
    step();
    show_poll("then", fd);
    step();
}
static void odd_b(int fd) {
    step();
    show_recv("end", fd);
    shutdown(fd, SHUT_WR);
    step();
    say("again %s", outcome(shutdown(fd, SHUT_RDWR)));
    step();
}
static void after_reset_a(int fd) {
    step();
    reset_now(fd);
    step();
    step();
}
static void after_reset_b(int fd) {
    step();
    step();
    no_longer_established(fd);
    say("shutdown %s", outcome(shutdown(fd, SHUT_WR)));
    show_recv("then", fd);
    say("shutdown %s", outcome(shutdown(fd, SHUT_RDWR)));
    say("close %s", outcome(close(fd)));
    step();
}
// The half is shut with the stream full of bytes nobody has read.
static void full_shut_a(int fd) {
    uint64_t sent = 0;
    nonblocking(fd, 1);
    for (int quiet = 0; quiet < 5;) {
        fill(buffer, sent, 100000);
        ssize_t now = send(fd, buffer, 100000, 0);
        if (now > 0) sent += now, quiet = 0;
        else usleep(2000), quiet++;
    }
    say("shutdown %s", outcome(shutdown(fd, SHUT_WR)));
    tell(sent);
    step();
}
static void full_close_a(int fd) {
    uint64_t sent = 0;
    nonblocking(fd, 1);
    for (int quiet = 0; quiet < 5;) {
        fill(buffer, sent, 100000);
        ssize_t now = send(fd, buffer, 100000, 0);
        if (now > 0) sent += now, quiet = 0;
        else usleep(2000), quiet++;
    }
    say("close %s", outcome(close(fd)));
    tell(sent);
    step();
}
static void full_end_b(int fd) {
    take_all(fd, hear());
    step();
}
// A descriptor's copy keeps the connection.
static void copy_a(int fd) {
    int copy = dup(fd);
    put(fd, 1000);
    close(fd);
    step();
    if (send(copy, "still", 5, 0) != 5) die("send");
    step();
    say("close %s", outcome(close(copy)));
    say("again %s", outcome(close(copy)));
    step();
}
static void copy_b(int fd) {
    recv_all(fd, 0, 1000, 1000);
    step();
    step();
    say("%s", outcome(recv(fd, buffer, 5, MSG_WAITALL)));
    show_recv("end", fd);
    step();
}
// SIGPIPE, or not, by each call.
static volatile sig_atomic_t pipes;
static void on_pipe(int signal) {
    (void)signal;
    pipes++;
}
static void broken_a(int fd) {
    struct sigaction action = {.sa_handler = on_pipe};
    sigaction(SIGPIPE, &action, NULL);
    shutdown(fd, SHUT_WR);
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr one = {.msg_hdr = message};
    FILE *file = tmpfile();
    fputs("content", file), fflush(file);
    off_t offset = 0;
    say("write %s, signals %d", outcome(write(fd, "x", 1)), (int)pipes);
    say("writev %s, signals %d", outcome(writev(fd, &part, 1)), (int)pipes);
    say("sendto %s, signals %d", outcome(sendto(fd, "x", 1, 0, NULL, 0)), (int)pipes);
    say("sendmsg %s, signals %d", outcome(sendmsg(fd, &message, 0)), (int)pipes);
    say("quiet sendmsg %s, signals %d", outcome(sendmsg(fd, &message, MSG_NOSIGNAL)), (int)pipes);
    say("sendmmsg %s, signals %d", outcome(sendmmsg(fd, &one, 1, 0)), (int)pipes);
    say("sendfile %s, signals %d", outcome(sendfile(fd, fileno(file), &offset, 5)), (int)pipes);
    say("at %ld", (long)offset);
    step();
}
static void just_step_b(int fd) {
    (void)fd;
    step();
}
// The sender is ended by a signal in the middle of a long write.
static void *killer(void *how) {
    usleep(50000);
    kill(getpid(), (long)how);
    return NULL;
}
static void ended_a(int fd, long how) {
    pthread_t thread;
    pthread_create(&thread, NULL, killer, (void *)how);
    for (uint64_t at = 0;; at += 1 << 20) {
        fill(buffer, at, 1 << 20);
        for (size_t done = 0; done < 1 << 20;) {
            ssize_t now = send(fd, buffer + done, (1 << 20) - done, 0);
            if (now <= 0) die("send");
            done += now;
        }
    }
}
static void killed_a(int fd) { ended_a(fd, SIGKILL); }
static void terminated_a(int fd) { ended_a(fd, SIGTERM); }
static void ended_b(int fd) {
    uint64_t at = 0;
    ssize_t got;
    while ((got = recv(fd, buffer, 1 + chance(200000), 0)) > 0) check(buffer, at, got), at += got;
    say("at last %s", outcome(got));
}
// Twenty processes die at random moments of traffic; their peer is told each time.
static void traffic(int fd, int how) {
    uint64_t sent = 0, got = 0;
    for (;;) {
        if (how != 1) {
            size_t size = 1 + chance(20000);
            fill(buffer, sent, size);
            ssize_t now = send(fd, buffer, size, MSG_NOSIGNAL | (how == 2 ? MSG_DONTWAIT : 0));
            if (now < 0 && errno != EAGAIN) return;
            if (now > 0) sent += now;
        }
        if (how != 0) {
            ssize_t now = recv(fd, buffer, 1 + chance(20000), how == 2 ? MSG_DONTWAIT : 0);
            if (now == 0 || (now < 0 && errno != EAGAIN)) return;
            if (now > 0) check(buffer, got, now), got += now;
        }
    }
}
static void deaths_a(int fd) {
    (void)fd;
    for (int i = 0; i < 20; i++) {
        int ready[2];
        char byte;
        if (pipe(ready)) die("pipe");
        pid_t pid = fork();
        if (pid == 0) {
            int own = meet();
            warm(own, 0);
            if (write(ready[1], "x", 1) != 1) die("write");
            traffic(own, i % 3 == 2 ? 2 : 1 - i % 3);
            _exit(0);
        }
        if (read(ready[0], &byte, 1) != 1) die("read");
        usleep(chance(4000));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        close(ready[0]);
        close(ready[1]);
    }
    say("done");
}
static void deaths_b(int fd) {
    (void)fd;
    for (int i = 0; i < 20; i++) {
        int own = meet();
        warm(own, 1);
        traffic(own, i % 3);
        int error = -1;
        socklen_t length = sizeof error;
        if (getsockopt(own, SOL_SOCKET, SO_ERROR, &error, &length)) die("SO_ERROR");
        close(own);
    }
    say("told of all");
}
// A program stopped with bytes for it, whose peer ends meanwhile.
static void *continuer(void *pid) {
    usleep(100000);
    kill(*(pid_t *)pid, SIGCONT);
    return NULL;
}
static void stopped_a(int fd) {
    tell(getpid());
    hear();
    take_all(fd, 200000);
    step();
}
static void stopped(int fd, int how) {
    pid_t pid = hear();
    pthread_t thread;
    send_all(fd, 0, 50000, 5000);
    halt(pid);
    pthread_create(&thread, NULL, continuer, &pid);
    send_all(fd, 50000, 150000, 5000);
    if (how == 0) close(fd);
    else shutdown(fd, SHUT_WR);
    tell(0);
    pthread_join(thread, NULL);
    step();
}
static void stopped_close_b(int fd) { stopped(fd, 0); }
static void stopped_shut_b(int fd) { stopped(fd, 1); }

#define BOTH(name, a, b) {#name, WARM, a, b}, {#name "_cold", COLD, a, b}
const struct test_case cases[] = {
    BOTH(reset_small, reset_small_a, reset_small_b),
    BOTH(reset_large, reset_large_a, reset_large_b),
    BOTH(reset_recv, reset_asleep_a, reset_recv_b),
    BOTH(reset_poll, reset_asleep_a, reset_poll_b),
    BOTH(reset_quiet, reset_asleep_a, reset_quiet_b),
    BOTH(reset_epoll, reset_asleep_a, reset_epoll_b),
    BOTH(reset_full, reset_asleep_a, reset_full_b),
    BOTH(unread_both, unread_both_a, unread_both_b),
    BOTH(unread_read, unread_read_a, unread_read_b),
    BOTH(unread_peeked, unread_peeked_a, linger_unread_b),
    BOTH(fin_reset, fin_reset_a, fin_reset_b),
    BOTH(fin_reset_unread, fin_reset_a, fin_reset_unread_b),
    BOTH(reset_fin, reset_small_a, reset_fin_b),
    BOTH(both_close, both_close, both_close),
    BOTH(both_shut, both_shut, both_shut),
    BOTH(linger, linger_a, linger_b),
    BOTH(linger_nonblocking, linger_nonblocking_a, linger_b),
    BOTH(linger_unread, linger_unread_a, linger_unread_b),
    BOTH(linger_exit, linger_exit_a, linger_exit_b),
    BOTH(odd, odd_a, odd_b),
    BOTH(after_reset, after_reset_a, after_reset_b),
    BOTH(full_shut, full_shut_a, full_end_b),
    BOTH(full_close, full_close_a, full_end_b),
    BOTH(copy, copy_a, copy_b),
    BOTH(broken, broken_a, just_step_b),
    BOTH(killed, killed_a, ended_b),
    BOTH(terminated, terminated_a, ended_b),
    BOTH(stopped_close, stopped_a, stopped_close_b),
    BOTH(stopped_shut, stopped_a, stopped_shut_b),
    {"deaths", NONE, deaths_a, deaths_b},
    {0},
};
