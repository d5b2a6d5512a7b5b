// What only the kernel's socket does: signals at input, counts and time stamps beside bytes, a
// place to peek at, other protocols above. A connection that has it is the kernel's, in full.
#include "try.h"

static volatile int signalled;
static void on_signal(int number) {
    (void)number;
    signalled = 1;
}
static void await_signal(void) {
    for (int round = 0; !signalled; round++) {
        if (round > 5000) die("no signal came");
        usleep(1000);
    }
    say("signalled");
}

// B sends a byte, A answers with one; as often as A wants.
static void answer(int fd) {
    char byte;
    while (recv(fd, &byte, 1, 0) == 1)
        if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1) break;
    step();
}
static void send_one(int fd, const char *byte) {
    if (send(fd, byte, 1, 0) != 1) die("send");
}
static void end(int fd) {
    shutdown(fd, SHUT_WR);
    step();
}

static void asynchronous(int fd, int by_ioctl) {
    char byte;
    int on = 1;
    signal(SIGIO, on_signal);
    if (fcntl(fd, F_SETOWN, getpid())) die("F_SETOWN");
    if (by_ioctl ? ioctl(fd, FIOASYNC, &on) : fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC)) die("O_ASYNC");
    for (int i = 0; i < 4; i++) {
        signalled = 0;
        send_one(fd, "a");
        await_signal();
        if (recv(fd, &byte, 1, 0) != 1) die("receive");
    }
    end(fd);
}
static void by_fcntl(int fd) { asynchronous(fd, 0); }
static void by_ioctl(int fd) { asynchronous(fd, 1); }

// Sends bytes until something comes beside an answer: time stamps begin some time after they
// were asked for.
static void show(int fd, int level, int type) {
    for (int round = 0; round < 20000; round++) {
        char byte, room[256];
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
        send_one(fd, "a");
        if (recvmsg(fd, &message, 0) != 1) die("receive");
        struct cmsghdr *found = CMSG_FIRSTHDR(&message);
        if (found && found->cmsg_level == level && found->cmsg_type == type) {
            say("%d bytes beside it", (int)(found->cmsg_len - CMSG_LEN(0)));
            return;
        }
        usleep(1000);
    }
    die("nothing comes beside a byte");
}
static void control(int fd, int level, int option, int type) {
    int on = 1;
    if (setsockopt(fd, level, option, &on, sizeof on)) die("setsockopt");
    for (int i = 0; i < 4; i++) show(fd, level, type);
    end(fd);
}
static void inq(int fd) { control(fd, IPPROTO_TCP, TCP_INQ, TCP_CM_INQ); }
static void stamps(int fd) { control(fd, SOL_SOCKET, SO_TIMESTAMP, SCM_TIMESTAMP); }
static void nanostamps(int fd) { control(fd, SOL_SOCKET, SO_TIMESTAMPNS, SCM_TIMESTAMPNS); }

// Set before the connection was accepted.
static void inherited_a(int fd) {
    int port, on = 1, listener = listen_any(&port);
    if (setsockopt(listener, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on)) die("setsockopt");
    tell(port);
    fd = accept(listener, NULL, NULL);
    for (int i = 0; i < 12; i++) show(fd, SOL_SOCKET, SCM_TIMESTAMPNS);
    end(fd);
}
static void inherited_b(int fd) {
    fd = dial(hear());
    answer(fd);
}

static void send_twelve(int fd) {
    if (send(fd, "abcdefghijkl", 12, 0) != 12) die("send");
}
static void twelve(int fd) {
    send_twelve(fd);
    step();
    step();
}
static void asked(int fd) {
    step();
    send_twelve(fd);
    step();
}
static void peeks(int fd) {
    char in[5] = "";
    int offset = 0;
    say("set %s", outcome(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset)));
    step();
    settle(fd, 12);
    for (int i = 0; i < 2; i++) {
        ssize_t got = recv(fd, in, 4, MSG_PEEK);
        say("%s %s", outcome(got), in);
    }
    ssize_t got = recv(fd, in, 4, 0);
    say("%s %s", outcome(got), in);
    got = recv(fd, in, 4, MSG_PEEK);
    say("%s %s", outcome(got), in);
    step();
}
// The far end waits for a byte meanwhile.
static void waits(int fd) {
    char byte;
    send_twelve(fd);
    say("%s", outcome(recv(fd, &byte, 1, 0)));
    step();
}
static void piped(int fd) {
    char in[16] = "";
    int pipes[2];
    settle(fd, 12);
    if (pipe(pipes)) die("pipe");
    ssize_t moved = sendfile(pipes[1], fd, NULL, 4);
    say("sendfile %s", outcome(moved));
    moved = splice(fd, NULL, pipes[1], NULL, 4, 0);
    say("splice %s", outcome(moved));
    moved = read(pipes[0], in, sizeof in - 1);
    say("%s %s", outcome(moved), in);
    send_one(fd, "a");
    step();
}
static void above(int fd) {
    char in[13] = "";
    step();
    settle(fd, 12);
    say("no such %s", outcome(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "none", 4)));
    say("%s", outcome(recv(fd, in, 12, MSG_WAITALL)));
    say("%s", in);
    uint64_t before = kernel_sent(fd);
    send_one(fd, "a");
    say("%s", by_kernel || kernel_sent(fd) != before ? "kernel" : "ring");
    step();
}

const struct test_case cases[] = {
    {"fcntl", WARM, by_fcntl, answer},
    {"ioctl", WARM, by_ioctl, answer},
    {"inq", WARM, inq, answer},
    {"stamps", WARM, stamps, answer},
    {"nanostamps", WARM, nanostamps, answer},
    {"inherited", NONE, inherited_a, inherited_b},
    {"peeks", WARM, peeks, asked},
    {"piped", WARM, piped, waits},
    {"above", WARM, above, twelve},
    {0},
};
