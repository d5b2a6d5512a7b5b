// What the programs about flags, options and counts share: short ways to call, and role B
// as a servant.
#ifndef FLAGS_H
#define FLAGS_H
#include "try.h"
#define HELPER __attribute__((unused)) static

HELPER char buffer[4 << 20];
HELPER void put(int fd, const char *text) {
    if (send(fd, text, strlen(text), 0) != (ssize_t)strlen(text)) die("send");
}
HELPER void show(const char *what, int fd, size_t count, int flags) {
    ssize_t got = recv(fd, buffer, count, flags);
    say("%s: %s %.*s", what, outcome(got), got > 0 && got < 100 ? (int)got : 0, buffer);
}
HELPER int readable(int fd, int ms) {
    int shown;
    return pollx(fd, POLLIN, ms, &shown);
}
HELPER void set_time(int fd, int option, int ms) {
    struct timeval time = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    if (setsockopt(fd, SOL_SOCKET, option, &time, sizeof time)) die("set a time-out");
}
HELPER int set(int fd, int option, int value) { return setsockopt(fd, SOL_SOCKET, option, &value, sizeof value); }
HELPER int get(int fd, int level, int option) {
    int value = -1;
    socklen_t length = sizeof value;
    if (getsockopt(fd, level, option, &value, &length)) die("getsockopt");
    return value;
}
HELPER int queued(int fd, int request) {
    int count = -1;
    if (ioctl(fd, request, &count)) die("ioctl");
    return count;
}

// B sends five bytes at each word of A, ten words at most, and ends at 0.
HELPER void fives_b(int fd) {
    for (int i = 0; hear(); i++) {
        if (i >= 10) die("too many words");
        put(fd, "abcde");
        tell(0);
    }
    shutdown(fd, SHUT_WR);
    step();
}
HELPER void five(int fd, int there) {
    tell(1);
    hear();
    settle(fd, there);
}
// As `five`, twice, a while after the call that follows has begun.
HELPER pthread_t later_thread;
HELPER void *later(void *unused) {
    usleep(40000);
    tell(1);
    hear();
    usleep(10000);
    tell(1);
    hear();
    return unused;
}
HELPER void five_later(void) { pthread_create(&later_thread, NULL, later, NULL); }
HELPER void over(int fd) {
    tell(0);
    step();
    while (recv(fd, buffer, sizeof buffer, 0) > 0) {}
}
HELPER void low(int fd, int count) {
    if (set(fd, SO_RCVLOWAT, count)) die("SO_RCVLOWAT");
}
HELPER void drain_b(int fd) {
    uint64_t all = hear(), got = 0;
    while (got < all) {
        ssize_t now = recv(fd, buffer, sizeof buffer, 0);
        if (now <= 0) die("receive");
        got += now;
    }
    say("no more %d, %s", got == all, outcome(recv(fd, buffer, 1, MSG_DONTWAIT)));
    step();
}
#endif
