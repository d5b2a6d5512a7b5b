// Signals: which calls they end, which go on.
#include "try.h"

static volatile sig_atomic_t seen;
static void handler(int signal) {
    (void)signal;
    seen++;
}
static void handle(int signal, int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(signal, &action, NULL);
}
static char buffer[1 << 20];

// B interrupts A when it sleeps after each `tell`, and sends a byte when it sleeps again.
static void nagger_b(int fd) {
    pid_t pid = hear();
    for (;;) {
        uint64_t what = hear();
        if (what == 0) break;
        asleep(pid, pid);
        if (kill(pid, what & 0xff)) die("kill");
        delivered(pid, what & 0xff);
        asleep(pid, pid);
        if (what & 0x100 && send(fd, "x", 1, 0) != 1) die("send");
        if (what & 0x200) {
            static char all[1 << 20];
            nonblocking(fd, 1);
            for (int quiet = 0; quiet < 20;) {
                if (recv(fd, all, sizeof all, 0) > 0) quiet = 0;
                else usleep(2000), quiet++;
            }
            nonblocking(fd, 0);
        }
    }
    step();
}
#define INTERRUPT (SIGUSR1 | 0x100)

static void plain_a(int fd) {
    handle(SIGUSR1, 0);
    tell(getpid());
    tell(INTERRUPT);
    say("recv %s", outcome(recv(fd, buffer, 10, 0)));
    say("recv %s", outcome(recv(fd, buffer, 10, 0)));
    int shown;
    tell(INTERRUPT);
    say("poll %s", outcome(pollx(fd, POLLIN, 3000, &shown)));
    say("recv %s", outcome(recv(fd, buffer, 10, 0)));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    tell(INTERRUPT);
    say("select %s", outcome(select(fd + 1, &in, NULL, NULL, NULL)));
    say("recv %s", outcome(recv(fd, buffer, 10, 0)));
    int ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event);
    tell(INTERRUPT);
    say("epoll %s", outcome(epoll_wait(ep, &event, 1, -1)));
    say("recv %s", outcome(recv(fd, buffer, 10, 0)));
    // Part of it was there: that part is the result.
    tell(INTERRUPT);
    say("recv %s", outcome(recv(fd, buffer, 10, MSG_WAITALL)));
    struct timeval time = {2, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    if (recv(fd, buffer, 1, 0) != 1) die("receive");
    tell(INTERRUPT);
    say("recv with a time-out %s", outcome(recv(fd, buffer, 10, 0)));
    if (recv(fd, buffer, 1, 0) != 1) die("receive");
    say("signals %d", (int)seen);
    tell(0);
    step();
}
static void restart_a(int fd) {
    handle(SIGUSR1, SA_RESTART);
    tell(getpid());
    tell(INTERRUPT);
    say("recv %s", outcome(recv(fd, buffer, 10, 0)));
    tell(INTERRUPT);
    say("read %s", outcome(read(fd, buffer, 10)));
    int shown;
    tell(INTERRUPT);
    say("poll %s", outcome(pollx(fd, POLLIN, 3000, &shown)));
    say("recv %s", outcome(recv(fd, buffer, 10, 0)));
    int ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event);
    tell(INTERRUPT);
    say("epoll %s", outcome(epoll_wait(ep, &event, 1, -1)));
    say("recv %s", outcome(recv(fd, buffer, 10, 0)));
    struct timeval time = {2, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    tell(INTERRUPT);
    say("recv with a time-out %s", outcome(recv(fd, buffer, 10, 0)));
    if (recv(fd, buffer, 1, 0) != 1) die("receive");
    say("signals %d", (int)seen);
    tell(0);
    step();
}
// Handlers of both kinds: the one that ran decides.
static void mixed_a(int fd) {
    handle(SIGUSR1, SA_RESTART);
    handle(SIGUSR2, 0);
    tell(getpid());
    tell(INTERRUPT);
    say("restarting: recv %s", outcome(recv(fd, buffer, 10, 0)));
    tell(SIGUSR2 | 0x100);
    say("ending: recv %s", outcome(recv(fd, buffer, 10, 0)));
    if (recv(fd, buffer, 1, 0) != 1) die("receive");
    // Blocked and ignored signals end nothing.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    tell(SIGUSR2 | 0x100);
    say("blocked: recv %s", outcome(recv(fd, buffer, 10, 0)));
    signal(SIGUSR2, SIG_IGN);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    tell(SIGUSR2 | 0x100);
    say("ignored: recv %s", outcome(recv(fd, buffer, 10, 0)));
    say("signals %d", (int)seen);
    tell(0);
    step();
}
// signal(3) restarts; siginterrupt(3) takes that back.
static void bsd_a(int fd) {
    signal(SIGUSR1, handler);
    tell(getpid());
    tell(INTERRUPT);
    say("recv %s", outcome(recv(fd, buffer, 10, 0)));
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    siginterrupt(SIGUSR1, 1);
    tell(INTERRUPT);
    say("recv %s", outcome(recv(fd, buffer, 10, 0)));
    if (recv(fd, buffer, 1, 0) != 1) die("receive");
    tell(0);
    step();
}
// A sender that sleeps because nothing more goes in.
static void send_plain_a(int fd) {
    handle(SIGUSR1, 0);
    tell(getpid());
    cram(fd);
    tell(SIGUSR1 | 0x200);
    say("send %s", outcome(send(fd, buffer, 100, 0)));
    tell(0);
    step();
}
static void send_restart_a(int fd) {
    handle(SIGUSR1, SA_RESTART);
    tell(getpid());
    cram(fd);
    tell(SIGUSR1 | 0x200);
    say("send %s", outcome(send(fd, buffer, 100, 0)));
    say("signals %d", (int)seen);
    tell(0);
    step();
}
// A handler that itself sends on the connection whose receive it interrupts.
static int handler_fd;
static void sending_handler(int signal) {
    (void)signal;
    seen++;
    if (send(handler_fd, "s", 1, 0) != 1) _exit(50);
}
static void in_handler_a(int fd) {
    handler_fd = fd;
    struct sigaction action = {.sa_handler = sending_handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, NULL);
    uint64_t at = 0;
    while (at < 2000000) {
        ssize_t got = recv(fd, buffer, 3000, 0);
        if (got <= 0) die("receive %s", outcome(got));
        check(buffer, at, got);
        at += got;
        if (send(fd, "a", 1, 0) != 1) die("send");
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    say("handled %d", seen > 5);
    shutdown(fd, SHUT_WR);
    step();
}
static void in_handler_b(int fd) {
    for (uint64_t at = 0; at < 2000000; at += 1000) {
        send_all(fd, at, 1000, 1000);
        if (at % 100000 == 0) usleep(1500);
        while (recv(fd, buffer, 4096, MSG_DONTWAIT) > 0) {}
    }
    while (recv(fd, buffer, 4096, 0) > 0) {}
    say("sent");
    step();
}

const struct test_case cases[] = {
    {"plain", WARM, plain_a, nagger_b},
    {"restart", WARM, restart_a, nagger_b},
    {"mixed", WARM, mixed_a, nagger_b},
    {"bsd", WARM, bsd_a, nagger_b},
    {"send_plain", WARM, send_plain_a, nagger_b},
    {"send_restart", WARM, send_restart_a, nagger_b},
    {"in_handler", WARM, in_handler_a, in_handler_b},
    {0},
};
