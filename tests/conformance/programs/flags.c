// Flags, options, counts, time-outs, urgent data.
#include "flags.h"
#include <linux/sockios.h>
#include <sys/mman.h>

// What a program can count.
static struct tcp_info info(int fd) {
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length)) die("TCP_INFO");
    return info;
}
static uint64_t net_sent(struct tcp_info now) { return now.tcpi_bytes_sent - now.tcpi_bytes_retrans; }
static void acked(int fd, struct tcp_info before, uint64_t count) {
    for (int i = 0; info(fd).tcpi_bytes_acked - before.tcpi_bytes_acked < count; i++) {
        if (i > 3000) die("never acknowledged: %lu", (long)(info(fd).tcpi_bytes_acked - before.tcpi_bytes_acked));
        usleep(1000);
    }
}
static void count(int fd, int reads) {
    struct tcp_info before = info(fd);
    step();
    send_all(fd, 0, 1000, 300);
    acked(fd, before, 1000);
    step();
    settle(fd, 1000);
    struct tcp_info now = info(fd);
    say("sent %lu, received %lu, not sent %u", (long)(net_sent(now) - net_sent(before)),
        (long)(now.tcpi_bytes_received - before.tcpi_bytes_received), now.tcpi_notsent_bytes);
    for (int i = 0; queued(fd, SIOCOUTQ) && i < 1000; i++) usleep(1000);
    say("queued %d, not sent %d, to read %d", queued(fd, SIOCOUTQ), queued(fd, SIOCOUTQNSD), queued(fd, SIOCINQ));
    step();
    if (reads) recv_all(fd, 0, 1000, 700);
    now = info(fd);
    say("received %lu", (long)(now.tcpi_bytes_received - before.tcpi_bytes_received));
    step();
}
static void count_both(int fd) { count(fd, 1); }
static void count_unread(int fd) { count(fd, 0); }
// How long ago bytes moved: not longer than since they were asked for, and no less than since
// they were found to have moved. `slack_ms`: the kernel counts by its own clock.
static void last(int fd) {
    enum { slack_ms = 20, quiet_ms = 300 };
    char byte;
    step();
    for (int round = 0; round < 3; round++) {
        usleep(quiet_ms * 1000);
        step();
        uint64_t begin = now_ms();
        if (send(fd, "l", 1, 0) != 1 || recv(fd, &byte, 1, 0) != 1) die("exchange");
        // The peer's byte may have left before ours came, and acknowledge nothing.
        for (int i = 0; queued(fd, SIOCOUTQ) && i < 1000; i++) usleep(1000);
        struct tcp_info now = info(fd);
        uint64_t found = now_ms(), most = found - begin + slack_ms;
        if (now.tcpi_last_data_recv > most) die("received %u ms ago, of %lu", now.tcpi_last_data_recv, most);
        if (now.tcpi_last_data_sent > most) die("sent %u ms ago, of %lu", now.tcpi_last_data_sent, most);
        if (now.tcpi_last_ack_recv > most) die("acknowledged %u ms ago, of %lu", now.tcpi_last_ack_recv, most);
        step();
        usleep(quiet_ms * 1000);
        uint64_t least = now_ms() - found - slack_ms;
        now = info(fd);
        if (now.tcpi_last_data_recv < least) die("received %u ms ago, not %lu", now.tcpi_last_data_recv, least);
        if (now.tcpi_last_data_sent < least) die("sent %u ms ago, not %lu", now.tcpi_last_data_sent, least);
    }
    say("as it was");
    step();
}
// The peer reads nothing until all is full.
static void count_full_a(int fd) {
    struct tcp_info before = info(fd);
    step();
    uint64_t sent = 0;
    nonblocking(fd, 1);
    for (int quiet = 0; quiet < 10;) {
        fill(buffer, sent, 100000);
        ssize_t now = send(fd, buffer, 100000, 0);
        if (now > 0) sent += now, quiet = 0;
        else usleep(1000), quiet++;
    }
    say("queued %d, not sent %d", queued(fd, SIOCOUTQ) > 0, info(fd).tcpi_notsent_bytes > 0);
    tell(sent);
    hear();
    acked(fd, before, sent);
    say("all sent %d", net_sent(info(fd)) - net_sent(before) == sent);
    for (int i = 0; queued(fd, SIOCOUTQ) && i < 1000; i++) usleep(1000);
    say("queued %d, not sent %d", queued(fd, SIOCOUTQ), info(fd).tcpi_notsent_bytes);
    step();
}
static void count_full_b(int fd) {
    struct tcp_info before = info(fd);
    step();
    uint64_t all = hear();
    recv_all(fd, 0, all, 70000);
    say("all received %d", info(fd).tcpi_bytes_received - before.tcpi_bytes_received == all);
    tell(0);
    step();
}
// From the connection's first byte on, over the way up; then over the way down.
static void count_moves(int fd) {
    uint64_t sent = 0, got = 0;
    struct tcp_info before = {0};
    for (int i = 0; i < 200; i++) {
        if (i == 100 && me == 'A') {
            int pipes[2];
            if (pipe(pipes)) die("pipe");
            if (write(pipes[1], buffer, 77) != 77 || splice(pipes[0], NULL, fd, NULL, 77, 0) != 77) die("splice");
            sent += 77;
        }
        size_t mine = 100 + i;
        send_all(fd, sent, mine, 64);
        sent += mine;
        for (size_t want = 100 + i + (i == 100 && me == 'B' ? 77 : 0); want;) {
            ssize_t now = recv(fd, buffer, want, 0);
            if (now <= 0) die("receive");
            want -= now, got += now;
        }
    }
    acked(fd, before, sent);
    step();
    struct tcp_info now = info(fd);
    say("sent %d, received %d", net_sent(now) - net_sent(before) == sent, now.tcpi_bytes_received - before.tcpi_bytes_received == got);
    step();
}
static void info_short_a(int fd) {
    unsigned char bytes[256];
    static const socklen_t lengths[] = {0, 1, 8, 124, 130, 146, 200, 204};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        socklen_t length = lengths[i];
        memset(bytes, 0xa5, sizeof bytes);
        int result = getsockopt(fd, IPPROTO_TCP, TCP_INFO, bytes, &length);
        int beyond = 0;
        for (size_t at = lengths[i]; at < sizeof bytes; at++) beyond += bytes[at] != 0xa5;
        say("%u: %s, %u, beyond %d", lengths[i], outcome(result), length, beyond);
    }
    say("bad %s", outcome(getsockopt(fd, IPPROTO_TCP, TCP_INFO, bytes, NULL)));
    step();
}
static void step_b(int fd) {
    (void)fd;
    step();
}

// Flags in combination.
static void peek_wrap_a(int fd) {
    static char again[70000];
    for (uint64_t at = 0, i = 0; i < 60; i++) {
        size_t size = 1 + i * 997 % 60000;
        tell(size);
        hear();
        settle(fd, size);
        for (ssize_t got = 0; got != (ssize_t)size;) {
            got = recv(fd, buffer, size, MSG_PEEK | MSG_WAITALL);
            if (got <= 0) die("peek %s", outcome(got));
            check(buffer, at, got);
        }
        if (recv(fd, again, size, MSG_WAITALL) != (ssize_t)size) die("receive");
        check(again, at, size);
        at += size;
    }
    tell(0);
    say("all there");
}
static void peek_wrap_b(int fd) {
    for (uint64_t at = 0, size; (size = hear()); at += size) {
        send_all(fd, at, size, 9000);
        tell(0);
    }
}
static void together_a(int fd) {
    five(fd, 5);
    show("peek, wait for all, do not wait", fd, 10, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT);
    show("wait for all, do not wait", fd, 10, MSG_WAITALL | MSG_DONTWAIT);
    show("nothing", fd, 10, MSG_WAITALL | MSG_DONTWAIT);
    five(fd, 5);
    say("peek and throw away: %s", outcome(recv(fd, NULL, 3, MSG_PEEK | MSG_TRUNC)));
    say("throw away: %s", outcome(recv(fd, NULL, 2, MSG_TRUNC)));
    show("rest", fd, 10, MSG_DONTWAIT);
    five(fd, 5);
    five_later();
    say("wait for all, throw away: %s", outcome(recv(fd, NULL, 10, MSG_TRUNC | MSG_WAITALL)));
    pthread_join(later_thread, NULL);
    settle(fd, 5);
    show("NOSIGNAL, CMSG_CLOEXEC", fd, 10, MSG_NOSIGNAL | MSG_CMSG_CLOEXEC);
    say("EOR, MORE, CONFIRM %s", outcome(send(fd, "xyz", 3, MSG_EOR | MSG_MORE | MSG_CONFIRM)));
    say("DONTROUTE %s", outcome(send(fd, "xyz", 3, MSG_DONTROUTE)));
    over(fd);
}
static void peek_end_a(int fd) {
    five(fd, 5);
    tell(0);
    step();
    no_longer_established(fd);
    show("peek", fd, 10, MSG_PEEK | MSG_WAITALL);
    show("all", fd, 10, MSG_WAITALL);
    show("peek", fd, 10, MSG_PEEK);
    show("throw away", fd, 10, MSG_TRUNC);
}
static void all_time_a(int fd) {
    set_time(fd, SO_RCVTIMEO, 80);
    five(fd, 5);
    show("part of all", fd, 10, MSG_WAITALL);
    show("none of all", fd, 10, MSG_WAITALL);
    five(fd, 5);
    show("peek at part of all", fd, 10, MSG_WAITALL | MSG_PEEK);
    show("all", fd, 5, MSG_WAITALL);
    over(fd);
}
static void send_time(int fd, int threads) {
    (void)threads;
    set_time(fd, SO_SNDTIMEO, 80);
    uint64_t sent = 0;
    for (int rounds = 0;; rounds++) {
        ssize_t now = send(fd, buffer, sizeof buffer, 0);
        if (now < 0) {
            say("at last %s, a part before %d", outcome(now), sent % sizeof buffer != 0 || sent > 0);
            break;
        }
        sent += now;
        if (rounds > 1000) die("no end");
    }
    tell(sent);
}
static void send_time_a(int fd) {
    send_time(fd, 0);
    step();
}
// Signals that meet a call with a part of its bytes.
static volatile sig_atomic_t seen;
static void handler(int signal) {
    (void)signal;
    seen++;
}
static void handle(int signal, int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(signal, &action, NULL);
}
static void *interrupter(void *thread) {
    asleep(getpid(), getpid());
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return NULL;
}
static void *interrupter_by_word(void *thread) {
    hear();
    return interrupter(thread);
}
static void part_and_signal(int fd, int flags, int other, int peek) {
    handle(SIGUSR1, flags);
    if (other) handle(SIGUSR2, flags ^ SA_RESTART);
    pthread_t self = pthread_self(), thread;
    five(fd, 5);
    pthread_create(&thread, NULL, interrupter, &self);
    show("part", fd, 10, MSG_WAITALL | peek);
    pthread_join(thread, NULL);
    say("signals %d", (int)seen);
    over(fd);
}
static void part_plain_a(int fd) { part_and_signal(fd, 0, 0, 0); }
static void part_restart_a(int fd) { part_and_signal(fd, SA_RESTART, 0, 0); }
static void part_mixed_a(int fd) { part_and_signal(fd, SA_RESTART, 1, 0); }
static void part_peek_a(int fd) { part_and_signal(fd, SA_RESTART, 0, MSG_PEEK); }
static void part_low_a(int fd) {
    low(fd, 10);
    part_and_signal(fd, SA_RESTART, 0, 0);
}
// A send that has gone in part when the signal comes.
static void part_send(int fd, int flags) {
    handle(SIGUSR1, flags);
    pthread_t self = pthread_self(), thread;
    uint64_t sent = 0;
    nonblocking(fd, 1);
    for (int quiet = 0; quiet < 10;) {
        ssize_t now = send(fd, buffer, 1 << 20, 0);
        if (now > 0) sent += now, quiet = 0;
        else usleep(1000), quiet++;
    }
    nonblocking(fd, 0);
    // B takes that much and no more; then the signal comes.
    tell(sent);
    pthread_create(&thread, NULL, interrupter_by_word, &self);
    static char huge[64 << 20];
    ssize_t now = send(fd, huge, sizeof huge, 0);
    say("a part %d", now > 0 && now < (ssize_t)sizeof huge);
    if (now > 0) sent += now;
    pthread_join(thread, NULL);
    say("signals %d", (int)seen);
    tell(sent);
    step();
}
static void part_send_plain_a(int fd) { part_send(fd, 0); }
static void part_send_restart_a(int fd) { part_send(fd, SA_RESTART); }
static void part_send_b(int fd) {
    uint64_t got = 0, first = hear();
    while (got < first) {
        ssize_t now = recv(fd, buffer, first - got < 100000 ? first - got : 100000, 0);
        if (now <= 0) die("receive");
        got += now;
    }
    tell(0);
    uint64_t all = hear();
    while (got < all) {
        ssize_t now = recv(fd, buffer, sizeof buffer, 0);
        if (now <= 0) die("receive");
        got += now;
    }
    say("no more %d", got == all);
    step();
}

// Options read back while rings are in use.
static void options_a(int fd) {
    int on = 1;
    struct linger linger = {1, 7};
    say("%d", set(fd, SO_SNDBUF, 20000));
    say("SNDBUF %d", get(fd, SOL_SOCKET, SO_SNDBUF));
    say("%d", set(fd, SO_RCVBUF, 30000));
    say("RCVBUF %d", get(fd, SOL_SOCKET, SO_RCVBUF));
    say("%d", setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    say("NODELAY %d", get(fd, IPPROTO_TCP, TCP_NODELAY));
    say("%d", set(fd, SO_KEEPALIVE, 1));
    say("KEEPALIVE %d", get(fd, SOL_SOCKET, SO_KEEPALIVE));
    say("%d", setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    socklen_t length = sizeof linger;
    linger = (struct linger){0, 0};
    say("%d", getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &length));
    say("LINGER %d %d", linger.l_onoff, linger.l_linger);
    say("ERROR %d, TYPE %d", get(fd, SOL_SOCKET, SO_ERROR), get(fd, SOL_SOCKET, SO_TYPE));
    say("bad %s", outcome(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &on, 1)));
    say("unknown %s", outcome(setsockopt(fd, SOL_SOCKET, 9999, &on, sizeof on)));
    must_ring(fd, "options");
    send_all(fd, 0, 1 << 20, 30000);
    step();
}
static void options_b(int fd) {
    set(fd, SO_RCVBUF, 100000);
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    recv_all(fd, 0, 1 << 20, 30000);
    step();
    say("all there");
}
static void control_a(int fd) {
    char control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec part = {"abc", 3};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = 9999};
    say("unknown %s", outcome(sendmsg(fd, &message, 0)));
    header->cmsg_level = IPPROTO_IP;
    say("of another level %s", outcome(sendmsg(fd, &message, 0)));
    header->cmsg_len = 3;
    say("too short %s", outcome(sendmsg(fd, &message, 0)));
    message.msg_controllen = 2;
    say("cut %s", outcome(sendmsg(fd, &message, 0)));
    shutdown(fd, SHUT_WR);
    step();
}
static void control_b(int fd) {
    show("came", fd, 100, MSG_WAITALL);
    step();
}

// Long writes of several threads at once, for which there is room: none is cut by another.
#define LONG 200000
static void *long_writer(void *argument) {
    int fd = *(int *)argument;
    static char letters[4][LONG];
    static int next;
    int mine = __atomic_fetch_add(&next, 1, __ATOMIC_SEQ_CST) % 4;
    memset(letters[mine], 'a' + mine, LONG);
    if (write(fd, letters[mine], LONG) != LONG) die("write");
    return NULL;
}
static void long_writes_a(int fd) {
    for (int round = 0; round < 5; round++) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(threads + i, NULL, long_writer, &fd);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        step();
    }
    step();
}
static void long_writes_b(int fd) {
    int turns = 0;
    for (int round = 0; round < 5; round++) {
        step();
        for (size_t got = 0; got < 4 * LONG;) {
            ssize_t now = recv(fd, buffer + got, 4 * LONG - got, 0);
            if (now <= 0) die("receive");
            got += now;
        }
        for (int i = 1; i < 4 * LONG; i++) turns += buffer[i] != buffer[i - 1];
    }
    say("turns %d", turns);
    step();
}

// Urgent data: the mark stays where it is in the stream.
static void mark_a(int fd) {
    step();
    put(fd, "before");
    if (send(fd, "!", 1, MSG_OOB) != 1) die("urgent");
    put(fd, "after");
    step();
    step();
}
static void mark_b(int fd) {
    char urgent = '?';
    struct pollfd entry = {.fd = fd, .events = POLLPRI};
    step();
    step();
    say("PRI %d", poll(&entry, 1, 3000));
    settle(fd, 6);
    say("at the mark %d", sockatmark(fd));
    show("up to it", fd, 100, 0);
    say("at the mark %d", sockatmark(fd));
    say("urgent %s %c", outcome(recv(fd, &urgent, 1, MSG_OOB)), urgent);
    say("again %s", outcome(recv(fd, &urgent, 1, MSG_OOB)));
    show("behind it", fd, 5, MSG_WAITALL);
    say("at the mark %d", sockatmark(fd));
    step();
}
static void mark_waitall_b(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLPRI};
    step();
    step();
    say("PRI %d", poll(&entry, 1, 3000));
    settle(fd, 6);
    show("up to it", fd, 11, MSG_WAITALL);
    int at = -1;
    say("SIOCATMARK %s %d", outcome(ioctl(fd, SIOCATMARK, &at)), at);
    show("behind it", fd, 5, MSG_WAITALL);
    step();
}
static void no_urgent_a(int fd) {
    char byte;
    say("none %s", outcome(recv(fd, &byte, 1, MSG_OOB)));
    say("at the mark %d", sockatmark(fd));
    five(fd, 5);
    say("none %s", outcome(recv(fd, &byte, 1, MSG_OOB)));
    say("at the mark %d", sockatmark(fd));
    must_ring(fd, "no urgent data");
    over(fd);
}

const struct test_case cases[] = {
    {"count", WARM, count_both, count_both},
    {"count_unread", WARM, count_unread, count_unread},
    {"last", WARM, last, last},
    {"count_full", WARM, count_full_a, count_full_b},
    {"count_moves", COLD, count_moves, count_moves},
    {"info_short", WARM, info_short_a, step_b},
    {"peek_wrap", WARM, peek_wrap_a, peek_wrap_b},
    {"together", WARM, together_a, fives_b},
    {"peek_end", WARM, peek_end_a, fives_b},
    {"all_time", WARM, all_time_a, fives_b},
    {"send_time", WARM, send_time_a, drain_b},
    {"part_plain", WARM, part_plain_a, fives_b},
    {"part_restart", WARM, part_restart_a, fives_b},
    {"part_mixed", WARM, part_mixed_a, fives_b},
    {"part_peek", WARM, part_peek_a, fives_b},
    {"part_low", WARM, part_low_a, fives_b},
    {"part_send_plain", WARM, part_send_plain_a, part_send_b},
    {"part_send_restart", WARM, part_send_restart_a, part_send_b},
    {"options", WARM, options_a, options_b},
    {"control", WARM, control_a, control_b},
    {"long_writes", WARM, long_writes_a, long_writes_b},
    {"mark", WARM, mark_a, mark_b},
    {"mark_waitall", WARM, mark_a, mark_waitall_b},
    {"no_urgent", WARM, no_urgent_a, fives_b},
    {0},
};
