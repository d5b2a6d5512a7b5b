// Connections for `fordway ss` to show: each case leaves them as its name says, and keeps them
// so until the driver's standard input ends.
#include "try.h"

enum { ROUNDS = 20, BYTES = 100 };

// More calls than an offer takes, at both ends.
static void answer(int fd) {
    for (int i = 0; i < ROUNDS; i++) {
        recv_all(fd, i * BYTES, BYTES, BYTES);
        send_all(fd, i * BYTES, BYTES, BYTES);
    }
}
static void ask(int fd) {
    for (int i = 0; i < ROUNDS; i++) {
        send_all(fd, i * BYTES, BYTES, BYTES);
        recv_all(fd, i * BYTES, BYTES, BYTES);
    }
}
static void asks_b(int fd) {
    ask(fd);
    hold();
}
static int is_over(void) {
    struct pollfd entry = {.fd = 200, .events = POLLIN};
    return raw_syscall(SYS_poll, (long)&entry, 1, 0, 0, 0, 0) == 1;
}

// The child goes on; the parent keeps the connection and does nothing with it.
static void forked_a(int fd) {
    pid_t child = fork();
    if (child == 0) {
        answer(fd);
        hold();
        _exit(0);
    }
    reap(child, "child");
}
// Parent and child both go on.
static void twice_b(int fd) {
    for (int i = 0; i < ROUNDS * 2; i++) {
        // Whoever of the two takes it.
        char byte = i;
        if (send(fd, &byte, 1, 0) != 1 || recv(fd, &byte, 1, 0) != 1) die("turn");
    }
    hold();
}
static void bytes(int fd) {
    char byte;
    for (int i = 0; i < ROUNDS; i++)
        if (recv(fd, &byte, 1, 0) != 1 || send(fd, &byte, 1, 0) != 1) die("turn");
}
static void shared_a(int fd) {
    pid_t child = fork();
    bytes(fd);
    if (child == 0) {
        hold();
        _exit(0);
    }
    reap(child, "child");
}

// The parent closes it before the child, which does not use it, ends in each of several ways.
static void left_a(int unused) {
    (void)unused;
    for (int how = 0; how < 3; how++) {
        int fd = meet(), gate[2];
        char byte;
        warm(fd, 0);
        step();
        if (pipe(gate)) die("pipe");
        pid_t child = fork();
        if (child == 0) {
            close(gate[1]);
            if (read(gate[0], &byte, 1) != 0) _exit(1);
            if (how == 0) _exit(0);
            if (how == 1) execl("/bin/true", "true", NULL);
            kill(getpid(), SIGKILL);
        }
        close(fd);
        close(gate[0]);
        close(gate[1]);
        reap(child, "child");
        step();
    }
    hold();
}
static void left_b(int unused) {
    (void)unused;
    for (int how = 0; how < 3; how++) {
        int fd = meet();
        warm(fd, 1);
        step();
        drained(fd);
        close(fd);
        step();
    }
    hold();
}

// A process that was there before gets it by SCM_RIGHTS, as those of node's cluster do.
static void passed_a(int unused) {
    int pair[2];
    char byte = 'f', space[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    (void)unused;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) die("socketpair");
    pid_t child = fork();
    if (child == 0) {
        int fd;
        if (recvmsg(pair[1], &message, 0) != 1) die("take");
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        answer(fd);
        hold();
        _exit(0);
    }
    int fd = meet();
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof fd);
    if (sendmsg(pair[0], &message, 0) != 1) die("pass");
    close(fd);
    reap(child, "child");
}
static void meets_b(int unused) {
    (void)unused;
    asks_b(meet());
}

// Barred before it was ever offered.
static void urgent_a(int fd) {
    int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on)) die("SO_OOBINLINE");
    answer(fd);
    hold();
}

// The library does not see the reader, and the sender waits in the library.
static void watched_a(int fd) {
    char in[BYTES];
    for (long got = 0, now; got < BYTES; got += now)
        if ((now = raw_syscall(SYS_read, fd, (long)in, BYTES - got, 0, 0, 0)) <= 0) die("read");
    check(in, 0, BYTES);
    raw_syscall(SYS_read, 200, (long)in, 1, 0, 0, 0);
}
static void watched_b(int fd) {
    int shown;
    send_all(fd, 0, BYTES, BYTES);
    while (!is_over()) pollx(fd, POLLIN, 100, &shown);
}

const struct test_case cases[] = {
    {"forked", WARM, forked_a, asks_b},
    {"forked_both", WARM, shared_a, twice_b},
    {"forked_cold", COLD, forked_a, asks_b},
    {"left", NONE, left_a, left_b},
    {"passed", NONE, passed_a, meets_b},
    {"oob", COLD, urgent_a, asks_b},
    {"watchdog", WARM, watched_a, watched_b},
    {0},
};
