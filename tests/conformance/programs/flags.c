// Flags, options, counts, time-outs; several messages at once.
#include "try.h"
#include <linux/sockios.h>
#include <sys/mman.h>

static char buffer[4 << 20];
static void put(int fd, const char *text) {
    if (send(fd, text, strlen(text), 0) != (ssize_t)strlen(text)) die("send");
}
static void show(const char *what, int fd, size_t count, int flags) {
    ssize_t got = recv(fd, buffer, count, flags);
    say("%s: %s %.*s", what, outcome(got), got > 0 && got < 100 ? (int)got : 0, buffer);
}
static int readable(int fd, int ms) {
    int shown;
    return pollx(fd, POLLIN, ms, &shown);
}
static void set_time(int fd, int option, int ms) {
    struct timeval time = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    if (setsockopt(fd, SOL_SOCKET, option, &time, sizeof time)) die("set a time-out");
}
static int set(int fd, int option, int value) { return setsockopt(fd, SOL_SOCKET, option, &value, sizeof value); }
static int get(int fd, int level, int option) {
    int value = -1;
    socklen_t length = sizeof value;
    if (getsockopt(fd, level, option, &value, &length)) die("getsockopt");
    return value;
}
static int queued(int fd, int request) {
    int count = -1;
    if (ioctl(fd, request, &count)) die("ioctl");
    return count;
}

// B sends five bytes at each word of A, ten words at most, and ends at 0.
static void fives_b(int fd) {
    for (int i = 0; hear(); i++) {
        if (i >= 10) die("too many words");
        put(fd, "abcde");
        tell(0);
    }
    shutdown(fd, SHUT_WR);
    step();
}
static void five(int fd, int there) {
    tell(1);
    hear();
    settle(fd, there);
}
// As `five`, twice, a while after the call that follows has begun.
static pthread_t later_thread;
static void *later(void *unused) {
    usleep(40000);
    tell(1);
    hear();
    usleep(10000);
    tell(1);
    hear();
    return unused;
}
static void five_later(void) { pthread_create(&later_thread, NULL, later, NULL); }
static void over(int fd) {
    tell(0);
    step();
    while (recv(fd, buffer, sizeof buffer, 0) > 0) {}
}
static void low(int fd, int count) {
    if (set(fd, SO_RCVLOWAT, count)) die("SO_RCVLOWAT");
}

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
    show("waits", fd, 100, 0);
    pthread_join(later_thread, NULL);
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
static void drain_b(int fd) {
    uint64_t all = hear(), got = 0;
    while (got < all) {
        ssize_t now = recv(fd, buffer, sizeof buffer, 0);
        if (now <= 0) die("receive");
        got += now;
    }
    say("no more %d, %s", got == all, outcome(recv(fd, buffer, 1, MSG_DONTWAIT)));
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
    usleep(60000);
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

// Several messages at once.
static struct iovec parts[2000];
static struct mmsghdr several[2000];
static void prepare(int count, size_t each) {
    memset(several, 0, sizeof several);
    for (int i = 0; i < count; i++) {
        parts[i] = (struct iovec){buffer + i * each, each};
        several[i].msg_hdr = (struct msghdr){.msg_iov = parts + i, .msg_iovlen = 1};
    }
}
static void lengths(int count) {
    char line[200] = "";
    for (int i = 0; i < count; i++) sprintf(line + strlen(line), " %u", several[i].msg_len);
    say("lengths%s", line);
}
static void many_wait_a(int fd) {
    prepare(3, 5);
    five(fd, 5);
    five(fd, 10);
    five_later();
    say("waits %s", outcome(recvmmsg(fd, several, 3, 0, NULL)));
    lengths(3);
    pthread_join(later_thread, NULL);
    over(fd);
}
static void many_one_a(int fd) {
    prepare(3, 5);
    five_later();
    say("waits for one %s", outcome(recvmmsg(fd, several, 3, MSG_WAITFORONE, NULL)));
    lengths(3);
    pthread_join(later_thread, NULL);
    say("none %s", outcome(recvmmsg(fd, several, 3, MSG_WAITFORONE | MSG_DONTWAIT, NULL)));
    say("none asked %s", outcome(recvmmsg(fd, several, 0, 0, NULL)));
    over(fd);
}
static void many_time_a(int fd) {
    struct timespec time = {0, 20000000};
    prepare(4, 5);
    five(fd, 5);
    five_later();
    // The time is over while the second is waited for, and looked at behind it.
    say("by time %s", outcome(recvmmsg(fd, several, 4, 0, &time)));
    say("left %ld %ld", (long)time.tv_sec, time.tv_nsec);
    pthread_join(later_thread, NULL);
    five(fd, 5);
    time = (struct timespec){0, 0};
    say("no time %s", outcome(recvmmsg(fd, several, 4, 0, &time)));
    five(fd, 5);
    five(fd, 10);
    time = (struct timespec){100, 0};
    say("long time %s", outcome(recvmmsg(fd, several, 2, 0, &time)));
    say("left %d", time.tv_sec >= 90 && time.tv_sec < 100);
    over(fd);
}
static void many_bad_time_a(int fd) {
    struct timespec time = {0, 1000000000};
    prepare(2, 5);
    five(fd, 5);
    say("nanoseconds %s", outcome(recvmmsg(fd, several, 2, 0, &time)));
    time = (struct timespec){-1, 0};
    say("negative %s", outcome(recvmmsg(fd, several, 2, 0, &time)));
    say("bad %s", outcome(recvmmsg(fd, several, 2, 0, (void *)-4096l)));
    show("still there", fd, 10, MSG_DONTWAIT);
    over(fd);
}
static void many_end_a(int fd) {
    prepare(4, 5);
    five(fd, 5);
    tell(0);
    step();
    no_longer_established(fd);
    say("and the end %s", outcome(recvmmsg(fd, several, 4, 0, NULL)));
    lengths(4);
}
static void many_cold(int fd) {
    for (int i = 0; i < 60; i++) {
        prepare(3, 5);
        if (me == 'A' && sendmmsg(fd, several, 3, 0) != 3) die("sendmmsg");
        if (recvmmsg(fd, several, 3, 0, NULL) != 3) die("recvmmsg");
        if (me == 'B' && sendmmsg(fd, several, 3, 0) != 3) die("sendmmsg");
    }
    step();
    say("all there");
}
static void many_part_a(int fd) {
    uint64_t sent = 0;
    nonblocking(fd, 1);
    for (int quiet = 0; quiet < 10;) {
        prepare(3, 1 << 20);
        int now = sendmmsg(fd, several, 3, 0);
        if (now < 0) {
            if (errno != EAGAIN) die("sendmmsg");
            usleep(1000), quiet++;
            continue;
        }
        quiet = 0;
        for (int i = 0; i < now; i++) {
            sent += several[i].msg_len;
            if (i < now - 1 && several[i].msg_len != 1 << 20) die("a part before the last one");
        }
    }
    tell(sent);
    step();
}
static void many_1100_a(int fd) {
    prepare(1100, 3);
    say("1100 %s", outcome(sendmmsg(fd, several, 1100, 0)));
    tell(3072);
    step();
}

// preadv2 and pwritev2 on a socket.
static void preadv2_a(int fd) {
    struct iovec part = {buffer, 3};
    say("nothing %s", outcome(preadv2(fd, &part, 1, -1, RWF_NOWAIT)));
    five(fd, 5);
    say("%s", outcome(preadv2(fd, &part, 1, -1, 0)));
    say("%s", outcome(preadv2(fd, &part, 1, -1, RWF_NOWAIT)));
    say("offset %s", outcome(preadv2(fd, &part, 1, 0, 0)));
    say("preadv %s", outcome(preadv(fd, &part, 1, 0)));
    say("pread %s", outcome(pread(fd, buffer, 1, 0)));
    say("unknown %s", outcome(preadv2(fd, &part, 1, -1, 1 << 20)));
    over(fd);
}
static void pwritev2_a(int fd) {
    struct iovec two[2] = {{"ab", 2}, {"cde", 3}};
    say("%s", outcome(pwritev2(fd, two, 2, -1, 0)));
    say("%s", outcome(pwritev2(fd, two, 2, -1, RWF_NOWAIT)));
    say("offset %s", outcome(pwritev2(fd, two, 2, 0, 0)));
    say("pwritev %s", outcome(pwritev(fd, two, 2, 0)));
    say("pwrite %s", outcome(pwrite(fd, "x", 1, 0)));
    say("unknown %s", outcome(pwritev2(fd, two, 2, -1, 1 << 20)));
    shutdown(fd, SHUT_WR);
    step();
}
static void pwritev2_b(int fd) {
    ssize_t got = recv(fd, buffer, 10, MSG_WAITALL);
    say("%s %.10s", outcome(got), buffer);
    drained(fd);
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
    {"low_poll", WARM, low_poll_a, fives_b},
    {"low_select", WARM, low_select_a, fives_b},
    {"low_sleep", WARM, low_sleep_a, fives_b},
    {"low_level", WARM, low_level_a, fives_b},
    {"low_edge", WARM, low_edge_a, fives_b},
    {"low_recv", WARM, low_recv_a, fives_b},
    {"low_recv_cold", COLD, low_recv_a, fives_b},
    {"low_short", WARM, low_short_a, fives_b},
    {"low_time", WARM, low_time_a, fives_b},
    {"low_peek", WARM, low_peek_a, fives_b},
    {"low_end", WARM, low_end_a, fives_b},
    {"low_values", WARM, low_values_a, fives_b},
    {"low_large", WARM, low_large_a, low_large_b},
    {"low_cold", COLD, low_cold, low_cold},
    {"low_changes", WARM, low_changes_a, low_changes_b},
    {"low_changes_cold", COLD, low_changes_a, low_changes_b},
    {"count", WARM, count_both, count_both},
    {"count_unread", WARM, count_unread, count_unread},
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
    {"many_wait", WARM, many_wait_a, fives_b},
    {"many_one", WARM, many_one_a, fives_b},
    {"many_time", WARM, many_time_a, fives_b},
    {"many_bad_time", WARM, many_bad_time_a, fives_b},
    {"many_end", WARM, many_end_a, fives_b},
    {"many_cold", COLD, many_cold, many_cold},
    {"many_part", WARM, many_part_a, drain_b},
    {"many_1100", WARM, many_1100_a, drain_b},
    {"preadv2", WARM, preadv2_a, fives_b},
    {"pwritev2", WARM, pwritev2_a, pwritev2_b},
    {"options", WARM, options_a, options_b},
    {"control", WARM, control_a, control_b},
    {"long_writes", WARM, long_writes_a, long_writes_b},
    {"mark", WARM, mark_a, mark_b},
    {"mark_waitall", WARM, mark_a, mark_waitall_b},
    {"no_urgent", WARM, no_urgent_a, fives_b},
    {0},
};
