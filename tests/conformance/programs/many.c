// Several messages in one call, and calls with flags of their own.
#include "flags.h"

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
static volatile int has_returned;
static void *once_returned(void *unused) {
    usleep(40000);
    tell(1);
    hear();
    while (!has_returned) usleep(1000);
    tell(1);
    hear();
    return unused;
}
static void many_one_a(int fd) {
    prepare(3, 5);
    // A call that waited for the second message would wait for ever.
    pthread_create(&later_thread, NULL, once_returned, NULL);
    say("waits for one %s", outcome(recvmmsg(fd, several, 3, MSG_WAITFORONE, NULL)));
    has_returned = 1;
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

const struct test_case cases[] = {
    {"wait", WARM, many_wait_a, fives_b},
    {"one", WARM, many_one_a, fives_b},
    {"time", WARM, many_time_a, fives_b},
    {"bad_time", WARM, many_bad_time_a, fives_b},
    {"end", WARM, many_end_a, fives_b},
    {"cold", COLD, many_cold, many_cold},
    {"part", WARM, many_part_a, drain_b},
    {"1100", WARM, many_1100_a, drain_b},
    {"preadv2", WARM, preadv2_a, fives_b},
    {"pwritev2", WARM, pwritev2_a, pwritev2_b},
    {0},
};
