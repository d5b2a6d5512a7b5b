// Handlers that jump out of calls that do not sleep, handlers that run in a close that waits, and children that return from
// the handler in which they were forked: what the library knows is still what the kernel knows.
#include "handlers.h"
#include <setjmp.h>

static sigjmp_buf jump;
static void jumping_handler(int signal) {
    (void)signal;
    seen++;
    siglongjmp(jump, 1);
}
static void soon(int us) {
    struct itimerval once = {.it_value.tv_usec = us};
    if (setitimer(ITIMER_REAL, &once, NULL)) die("setitimer");
}

// B sends a byte for each word, and says when the kernel or the ring has it.
static void servant_b(int fd) {
    while (hear()) {
        if (send(fd, "x", 1, 0) != 1) die("send");
        tell(1);
    }
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}
// Out of epoll_ctl: whatever it has come to, the instance tells of what comes next.
static void ctl_a(int fd) {
    int ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    handle(SIGALRM, 0, jumping_handler);
    for (volatile int i = 0; i < 300; i++) {
        if (!sigsetjmp(jump, 1)) {
            soon(1 + i % 80);
            for (;;) {
                epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event);
                epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event);
                epoll_ctl(ep, EPOLL_CTL_DEL, fd, &event);
            }
        }
        if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) && errno != EEXIST) die("ADD");
        if (epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event)) die("MOD");
        tell(1), hear();
        char byte;
        struct epoll_event told = {0};
        if (epoll_wait(ep, &told, 1, 10000) != 1 || told.data.u64 != 7) die("round %d: not told", i);
        if (recv(fd, &byte, 1, 0) != 1) die("receive");
        if (epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL)) die("DEL");
    }
    tell(0);
    say("jumped %d", (int)seen);
    must_ring(fd, "after the jumps");
    step();
}

// Out of close: the descriptor is open, and the connection is whole, or it is closed, and the peer is told.
enum { CLOSES = 60 };
static void closes_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    handle(SIGALRM, 0, jumping_handler);
    for (volatile int i = 0; i < CLOSES; i++) {
        volatile int fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
        warm(fd, 0);
        if (!sigsetjmp(jump, 1)) {
            soon(1 + i);
            for (volatile uint32_t spin = chance(40000); spin; spin--) {}
            close(fd);
            for (;;) pause();
        }
        int is_open = fcntl(fd, F_GETFD) >= 0;
        tell(is_open);
        if (is_open) {
            char byte;
            must_ring(fd, "after a jump");
            if (recv(fd, &byte, 1, 0) != 1) die("round %d: receive", i);
            close(fd);
        }
        hear();
    }
    say("jumped %d", (int)seen);
    step();
}
static void closes_b(int unused) {
    (void)unused;
    int port = hear();
    for (int i = 0; i < CLOSES; i++) {
        char byte;
        int fd = dial(port);
        warm(fd, 1);
        if (hear()) {
            if (recv(fd, &byte, 1, 0) != 1) die("round %d: receive", i);
            if (send(fd, "x", 1, 0) != 1) die("send");
        }
        long end = recv(fd, &byte, 1, 0);
        if (end) die("round %d: end %s", i, outcome(end));
        close(fd);
        tell(1);
    }
    step();
}

// Out of waits for many descriptors: no memory is left behind.
enum { MANY = 100, JUMPS = 150 };
static long pages(void) {
    char text[64] = {0};
    int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0) die("statm");
    close(file);
    return atol(text);
}
static void many(int fd, int selects) {
    struct pollfd entries[MANY];
    fd_set all;
    FD_ZERO(&all);
    for (int i = 0; i < MANY; i++) {
        int copy = i && selects ? dup(fd) : i ? -1 : fd;
        entries[i] = (struct pollfd){.fd = copy, .events = POLLIN};
        if (copy >= 0) FD_SET(copy, &all);
    }
    handle(SIGUSR1, 0, jumping_handler);
    tell(getpid());
    volatile long before = 0;
    for (volatile int i = 0; i < JUMPS; i++) {
        if (sigsetjmp(jump, 1)) continue;
        if (i == 20) before = pages();
        tell(1);
        fd_set set = all;
        if (selects) select(FD_SETSIZE, &set, NULL, NULL, NULL);
        else poll(entries, MANY, -1);
        die("not jumped");
    }
    long more = pages() - before;
    if (more > 50) die("%ld pages more", more);
    say("jumped %d", (int)seen);
    tell(0);
    recv_all(fd, 0, 100000, 10000);
    must_ring(fd, "after the jumps");
    step();
}
static void many_poll_a(int fd) { many(fd, 0); }
static void many_select_a(int fd) { many(fd, 1); }
static void many_b(int fd) {
    pid_t pid = hear();
    while (hear()) {
        asleep(pid, pid);
        if (kill(pid, SIGUSR1)) die("kill");
    }
    send_all(fd, 0, 100000, 10000);
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}

// A handler forks within a receive. The child returns from it, as its parent does, and goes on with the library.
static volatile pid_t child = -1;
static void forking_handler(int signal) {
    (void)signal;
    child = fork();
}
static void fork_in_receive(int fd) {
    char byte;
    handle(SIGUSR1, 0, forking_handler);
    tell(getpid());
    long result = recv(fd, &byte, 1, 0);
    if (result != -1 || errno != EINTR || child < 0) die("%ld", result);
}
static void ended_well(void) {
    int status;
    if (waitpid(child, &status, 0) != child) die("waitpid");
    say("child %x", status);
    step();
}
// Both close it: the peer is told, although the child lives. And the child's new connection has rings.
static void fork_close_a(int fd) {
    fork_in_receive(fd);
    close(fd);
    if (child) return ended_well();
    int now = meet();
    warm(now, 0);
    recv_all(now, 0, 100000, 10000);
    must_ring(now, "in the child");
    _exit(0);
}
static void fork_close_b(int fd) {
    char byte;
    pid_t pid = hear();
    asleep(pid, pid);
    if (kill(pid, SIGUSR1)) die("kill");
    say("end %s", outcome(recv(fd, &byte, 1, 0)));
    int now = meet();
    warm(now, 1);
    send_all(now, 0, 100000, 10000);
    if (recv(now, &byte, 1, 0) != 1) die("receive");
    step();
}
// The child goes on alone with a connection that has had no rings: it gets some.
static void fork_rise_a(int fd) {
    int gate[2];
    char byte;
    if (pipe(gate)) die("pipe");
    fork_in_receive(fd);
    if (child) {
        close(fd);
        close(gate[0]), close(gate[1]);
        return ended_well();
    }
    close(gate[1]);
    if (read(gate[0], &byte, 1)) die("gate");
    tell(1);
    warm(fd, 0);
    must_ring(fd, "in the child");
    _exit(0);
}
static void fork_rise_b(int fd) {
    char byte;
    pid_t pid = hear();
    asleep(pid, pid);
    if (kill(pid, SIGUSR1)) die("kill");
    hear();
    warm(fd, 1);
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}
// The parent goes on with its rings' connection, beside a child that returned and lives.
static void fork_on_a(int fd) {
    int gate[2];
    char byte;
    if (pipe(gate)) die("pipe");
    fork_in_receive(fd);
    if (!child) {
        close(gate[1]);
        if (read(gate[0], &byte, 1)) die("gate");
        _exit(0);
    }
    tell(1);
    recv_all(fd, 0, 1000, 100);
    close(gate[1]);
    ended_well();
}
static void fork_on_b(int fd) {
    pid_t pid = hear();
    asleep(pid, pid);
    if (kill(pid, SIGUSR1)) die("kill");
    hear();
    for (int i = 0; i < 1000; i += 100) {
        asleep(pid, pid);
        send_all(fd, i, 100, 100);
    }
    step();
}

// In a close that waits: the peer's ring was given back with more in it than the kernel has room for. The peer
// takes nothing before the handler has run.
static volatile uint64_t filled;
static void telling_handler(int signal) {
    (void)signal;
    seen++;
    tell(filled);
}
static void small_buffers(int fd) {
    int bytes = 8192;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes)) die("SO_SNDBUF");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes)) die("SO_RCVBUF");
}
static void close_waits(int fd, int other) {
    char piece[4000];
    long count;
    small_buffers(fd);
    do {
        fill(piece, filled, sizeof piece);
        count = send(fd, piece, sizeof piece, MSG_DONTWAIT);
        if (count > 0) filled += count;
    } while (count > 0);
    if (errno != EAGAIN) die("send");
    tell(1);
    if (recv(fd, piece, 1, 0) != 1) die("receive");
    handle(SIGALRM, SA_RESTART, telling_handler);
    soon(200000);
    if (other < 0) close(fd);
    else if (dup2(other, fd) != fd) die("dup2");
    while (!seen) usleep(1000);
    step();
}
static void close_waits_a(int fd) { close_waits(fd, -1); }
static void dup2_waits_a(int fd) { close_waits(fd, open("/dev/null", O_RDONLY)); }
static void close_waits_b(int fd) {
    small_buffers(fd);
    hear();
    int kept = dup(2);
    if (dup2(fd, 2) != 2 || dup2(kept, 2) != 2) die("dup2");
    if (send(fd, "x", 1, 0) != 1) die("send");
    recv_all(fd, 0, hear(), 4000);
    drained(fd);
    say("all there");
    step();
}

const struct test_case cases[] = {
    {"close_waits", WARM, close_waits_a, close_waits_b},
    {"dup2_waits", WARM, dup2_waits_a, close_waits_b},
    {"ctl", WARM, ctl_a, servant_b},
    {"close", NONE, closes_a, closes_b},
    {"many_poll", WARM, many_poll_a, many_b},
    {"many_select", WARM, many_select_a, many_b},
    {"fork_close", WARM, fork_close_a, fork_close_b},
    {"fork_close_cold", COLD, fork_close_a, fork_close_b},
    {"fork_rise", COLD, fork_rise_a, fork_rise_b},
    {"fork_on", WARM, fork_on_a, fork_on_b},
    {0},
};
