// Descriptors: copied, replaced, closed in every order, used up.
#include "try.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

// One byte there and back by any descriptor: which must go by the ring, and did.
static int answers;
static void ask(int fd, const char *what) {
    uint64_t before = kernel_sent(fd);
    char byte = answers;
    if (send(fd, &byte, 1, 0) != 1) die("%s: send", what);
    if (!by_kernel && kernel_sent(fd) != before) die("%s: not on the ring", what);
    char back;
    if (recv(fd, &back, 1, 0) != 1 || back != byte) die("%s: answer", what);
    answers++;
}
static void echo(int fd) {
    char buffer[4096];
    ssize_t got;
    while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0) send(fd, buffer, got, MSG_NOSIGNAL);
    say("end %s", outcome(got));
}

static void copies_a(int fd) {
    ask(fd, "first");
    int two = dup(fd);
    ask(two, "dup");
    close(fd);
    ask(two, "the copy left");
    int three = dup2(two, 20);
    ask(three, "dup2");
    close(two);
    ask(three, "dup2 left");
    int four = fcntl(three, F_DUPFD, 30);
    int five = fcntl(three, F_DUPFD_CLOEXEC, 30);
    ask(four, "F_DUPFD");
    ask(five, "F_DUPFD_CLOEXEC");
    int six = dup3(five, 40, O_CLOEXEC);
    close(three), close(four), close(five);
    ask(six, "dup3 left");
    say("same %d", dup2(six, six) == six);
    ask(six, "onto itself");
    say("dup3 same %s", outcome(dup3(six, six, 0)));
    // Onto each other: the socket under both, then over a file.
    int file = memfd_create("try", 0);
    say("over a file %d", dup2(six, file) == file);
    ask(file, "over a file");
    close(six);
    ask(file, "only there");
    // A bad source leaves the target as it is.
    say("bad %s", outcome(dup2(999, file)));
    ask(file, "still there");
    // A file over one of two copies, then over the last.
    int seven = dup(file), null = open("/dev/null", O_RDWR);
    dup2(null, file);
    ask(seven, "the other copy");
    dup2(null, seven);
    step();
}
// What the kernel refuses leaves the targets as they are.
static void refused_a(int fd) {
    int file = open("/dev/null", O_RDWR), at = dup2(fd, 100);
    struct rlimit before, low;
    close(fd);
    say("flags %s", outcome(dup3(file, at, O_NONBLOCK)));
    ask(at, "after dup3 with flags that it does not have");
    say("bad %s", outcome(dup3(999, at, O_CLOEXEC)));
    ask(at, "after dup3 of none");
    say("both %s", outcome(dup3(999, at, O_NONBLOCK)));
    if (getrlimit(RLIMIT_NOFILE, &before)) die("getrlimit");
    low = before;
    low.rlim_cur = at;
    if (setrlimit(RLIMIT_NOFILE, &low)) die("setrlimit");
    say("dup2 beyond %s", outcome(dup2(file, at)));
    say("dup3 beyond %s", outcome(dup3(file, at, 0)));
    if (setrlimit(RLIMIT_NOFILE, &before)) die("setrlimit");
    ask(at, "after a copy beyond the limit");
    say("range %s", outcome(close_range(3, ~0u, 0x100)));
    ask(at, "after close_range with flags that it does not have");
    say("backwards %s", outcome(close_range(200, 100, 0)));
    ask(at, "after close_range backwards");
    if (dup3(file, at, 0) != at) die("dup3");
    step();
}
static void copies_b(int fd) {
    echo(fd);
    step();
}
// Options set by one copy hold for the other.
static void shared_flags_a(int fd) {
    int two = dup(fd);
    char byte;
    nonblocking(two, 1);
    say("recv %s", outcome(recv(fd, &byte, 1, 0)));
    nonblocking(fd, 0);
    struct timeval time = {0, 50000};
    setsockopt(two, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    say("recv %s", outcome(recv(fd, &byte, 1, 0)));
    int on = 1;
    ioctl(two, FIONBIO, &on);
    say("recv %s", outcome(recv(fd, &byte, 1, 0)));
    shutdown(two, SHUT_WR);
    close(two);
    step();
}

// Numbers are used again, for sockets and for other things.
static void numbers_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    int fd = accept(listener, NULL, NULL);
    warm(fd, 0);
    ask(fd, "first");
    close(fd);
    int file = memfd_create("try", 0);
    say("file %d", file == fd);
    if (write(file, "0123456789", 10) != 10) die("write");
    char buffer[32] = "";
    lseek(file, 0, SEEK_SET);
    say("read %s %s", outcome(read(file, buffer, 32)), buffer);
    close(file);
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    say("pipe %d", pipes[0] == fd);
    if (write(pipes[1], "abc", 3) != 3) die("write");
    memset(buffer, 0, 32);
    say("read %s %s", outcome(read(pipes[0], buffer, 32)), buffer);
    close(pipes[0]);
    step();
    for (int i = 0; i < 20; i++) {
        int next = accept(listener, NULL, NULL);
        warm(next, 0);
        ask(next, "another");
        if (i % 3 == 0) dup2(pipes[1], next);
        close(next);
    }
    say("twenty");
    step();
}
static void numbers_b(int unused) {
    (void)unused;
    int port = hear();
    int fd = dial(port);
    warm(fd, 1);
    echo(fd);
    close(fd);
    step();
    for (int i = 0; i < 20; i++) {
        fd = dial(port);
        warm(fd, 1);
        char byte;
        while (recv(fd, &byte, 1, 0) > 0) send(fd, &byte, 1, MSG_NOSIGNAL);
        close(fd);
    }
    step();
}

// A container's filter that is older than the call.
static void without_close_range(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) die("filter: %s", error_name(errno));
}
// Everything closed, as daemons do; a new connection goes by the ring all the same.
static void close_all(int how) {
    if (how == 0) close_range(3, ~0u, 0);
    if (how == 1) closefrom(3);
    if (how == 2) for (int fd = 3; fd < sysconf(_SC_OPEN_MAX); fd++) close(fd);
    if (how == 3) close_range(3, ~0u, CLOSE_RANGE_UNSHARE);
    if (how == 4) for (int fd = 3; fd < 20000; fd++) syscall(SYS_close, fd);
    if (how == 5) syscall(SYS_close_range, 3, ~0u, 0);
    if (how == 6) {
        without_close_range();
        closefrom(3);
    }
}
static void closing_a(int unused) {
    (void)unused;
    for (int how = 0; how < 7; how++) {
        int port, listener = listen_any(&port);
        tell(port);
        int fd = accept(listener, NULL, NULL);
        warm(fd, 0);
        ask(fd, "before");
        close_all(how);
        say("closed %s", outcome(fcntl(fd, F_GETFD)));
        step();
    }
}
static void closing_b(int unused) {
    (void)unused;
    for (int how = 0; how < 7; how++) {
        int fd = dial(hear());
        warm(fd, 1);
        echo(fd);
        close_all(how);
        say("closed %s", outcome(fcntl(fd, F_GETFD)));
        step();
    }
}

// A program that wipes its environment, as nginx does.
static void wiped_a(int unused) {
    (void)unused;
    extern char **environ;
    for (char **word = environ; *word; word++) memset(*word, 'x', strlen(*word));
    clearenv();
    int fd = meet();
    warm(fd, 0);
    ask(fd, "wiped");
    close(fd);
    step();
}
static void wiped_b(int unused) {
    (void)unused;
    int fd = meet();
    warm(fd, 1);
    echo(fd);
    step();
}

// Descriptors run out: the error is the program's own, and nothing is lost.
static void exhausted_a(int fd) {
    struct rlimit limit = {64, 64};
    int shown;
    // A first sleep costs descriptors, at both ends: they have been asleep before.
    pid_t other = hear();
    asleep(other, other);
    pollx(fd, POLLIN, 20, &shown);
    ask(fd, "before");
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
    int count = 0, last = -1, next;
    while ((next = open("/dev/null", O_RDONLY)) >= 0) count++, last = next;
    say("open %s, last %d", error_name(errno), last);
    ask(fd, "with none left");
    int ep = epoll_create1(0);
    say("epoll %s", outcome(ep));
    say("poll %d", pollx(fd, POLLIN, 20, &shown));
    ask(fd, "after a poll");
    close(fd);
    say("freed %d", open("/dev/null", O_RDONLY) == fd);
    step();
    (void)count;
}
// Without a sleep before: whether the ring can be kept is a matter of luck, the bytes are not.
static void exhausted_early_a(int fd) {
    struct rlimit limit = {64, 64};
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
    while (open("/dev/null", O_RDONLY) >= 0) {}
    say("open %s", error_name(errno));
    for (int i = 0; i < 50; i++) {
        char byte = i, back;
        if (i % 10 == 0) usleep(1000);
        if (send(fd, &byte, 1, 0) != 1) die("send");
        if (recv(fd, &back, 1, 0) != 1 || back != byte) die("answer");
    }
    close(fd);
    step();
}
static void exhausted_b(int fd) {
    tell(getpid());
    echo(fd);
    step();
}

static void exhausted_early_b(int fd) {
    echo(fd);
    step();
}

// A table that is small from the start, and cannot be made larger by who may not: the program
// can open as many files as without the library.
static void count_opens(int fd) {
    int count = 0;
    while (open("/dev/null", O_RDONLY) >= 0) count++;
    say("open %s, %d times", error_name(errno), count);
    char byte = 7, back = 0;
    if (send(fd, &byte, 1, 0) != 1 || recv(fd, &back, 1, 0) != 1 || back != byte) die("echo");
    close(fd);
    step();
}
static void limited_a(int unused) {
    (void)unused;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 300;
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
    int fd = meet(), shown;
    warm(fd, 0);
    pid_t other = hear();
    asleep(other, other);
    pollx(fd, POLLIN, 20, &shown);
    ask(fd, "before");
    count_opens(fd);
}
static void limited_b(int unused) {
    (void)unused;
    int fd = meet();
    warm(fd, 1);
    exhausted_b(fd);
}
static void limited_nobody_a(int unused) {
    (void)unused;
    struct rlimit limit = {300, 300};
    if (setrlimit(RLIMIT_NOFILE, &limit) || setresuid(65534, 65534, 65534)) die("limits");
    int fd = meet(), shown;
    for (int i = 0; i < 50; i++) {
        char byte = i, back;
        if (i % 10 == 0) pollx(fd, POLLIN, 1, &shown);
        if (send(fd, &byte, 1, 0) != 1 || recv(fd, &back, 1, 0) != 1 || back != byte) die("echo");
    }
    count_opens(fd);
}
static void limited_nobody_b(int unused) {
    (void)unused;
    exhausted_early_b(meet());
}

// More connections than one page of anything.
static void many_a(int unused) {
    (void)unused;
    enum { COUNT = 300 };
    static int fds[COUNT];
    int port, listener = listen_any(&port);
    tell(port);
    for (int i = 0; i < COUNT; i++) fds[i] = accept(listener, NULL, NULL), warm(fds[i], 0);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < COUNT; i++) ask(fds[i], "one of many");
    for (int i = 0; i < COUNT; i += 2) close(fds[i]);
    for (int i = 1; i < COUNT; i += 2) ask(fds[i], "the other half");
    for (int i = 1; i < COUNT; i += 2) close(fds[i]);
    say("all");
    step();
}
static void many_b(int unused) {
    (void)unused;
    enum { COUNT = 300 };
    static int fds[COUNT];
    int port = hear(), left = COUNT, ep = epoll_create1(0);
    for (int i = 0; i < COUNT; i++) {
        fds[i] = dial(port);
        warm(fds[i], 1);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &event)) die("epoll_ctl");
    }
    while (left) {
        struct epoll_event events[16];
        int count = epoll_wait(ep, events, 16, 5000);
        if (count <= 0) die("epoll");
        for (int i = 0; i < count; i++) {
            char byte;
            ssize_t got = recv(events[i].data.fd, &byte, 1, 0);
            if (got == 1) send(events[i].data.fd, &byte, 1, MSG_NOSIGNAL);
            else close(events[i].data.fd), left--;
        }
    }
    say("all");
    step();
}

// Churn: short connections by the hundred, nothing is left of them.
static int open_fds(void) {
    int count = 0;
    for (int fd = 0; fd < 70000; fd++) count += raw_syscall(SYS_fcntl, fd, F_GETFD, 0, 0, 0, 0) >= 0;
    return count;
}
static void churn_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), before = 0;
    tell(port);
    for (int i = 0; i < 400; i++) {
        int fd = accept(listener, NULL, NULL);
        warm(fd, 0);
        close(fd);
        if (i == 20) before = open_fds();
    }
    say("left over %d", open_fds() - before);
    step();
}
static void churn_b(int unused) {
    (void)unused;
    int port = hear(), before = 0;
    for (int i = 0; i < 400; i++) {
        int fd = dial(port);
        warm(fd, 1);
        close(fd);
        if (i == 20) before = open_fds();
    }
    say("left over %d", open_fds() - before);
    step();
}

const struct test_case cases[] = {
    {"copies", WARM, copies_a, copies_b},
    {"refused", WARM, refused_a, copies_b},
    {"shared_flags", WARM, shared_flags_a, copies_b},
    {"numbers", NONE, numbers_a, numbers_b},
    {"closing", NONE, closing_a, closing_b},
    {"wiped", NONE, wiped_a, wiped_b},
    {"exhausted", WARM, exhausted_a, exhausted_b},
    {"exhausted_early", WARM, exhausted_early_a, exhausted_early_b},
    {"limited", NONE, limited_a, limited_b},
    {"limited_nobody", NONE, limited_nobody_a, limited_nobody_b},
    {"many", NONE, many_a, many_b},
    {"churn", NONE, churn_a, churn_b},
    {0},
};
