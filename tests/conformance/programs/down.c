// Back to the kernel path, with bytes under way in both directions, and up again.
#include "try.h"
#include <sys/mman.h>

#define MB (1 << 20)

static void send_now(int fd, uint64_t offset, uint64_t count) { send_all(fd, offset, count, 7000); }

// Where a program beside this one lies.
static void become(const char *name, int fd, long read_from, long read_count, long send_from, long send_count) {
    char words[5][32];
    snprintf(words[0], 32, "%d", fd);
    snprintf(words[1], 32, "%ld", read_from);
    snprintf(words[2], 32, "%ld", read_count);
    snprintf(words[3], 32, "%ld", send_from);
    snprintf(words[4], 32, "%ld", send_count);
    execl(beside(name), name, words[0], words[1], words[2], words[3], words[4], NULL);
    die("exec %s", name);
}

// A's process goes on as another image. Bytes lie unread in both rings.
#define EXEC_A(function, image)                                   \
    static void function(int fd) {                                \
        step();                                                   \
        recv_all(fd, 0, 1000, 1000);                              \
        send_now(fd, 0, 30000);                                   \
        step();                                                   \
        become(image, fd, 1000, 199000, 30000, 500000);           \
    }
EXEC_A(exec_static_a, "plain-static")
EXEC_A(exec_preloaded_a, "plain")
static void exec_b(int fd) {
    send_now(fd, 0, 40000);
    step();
    step();
    // While the other end becomes another program.
    send_now(fd, 40000, 160000);
    recv_all(fd, 0, 530000, 60000);
    drained(fd);
    say("all there");
}
// B sleeps while A changes: epoll, poll, recv each have to serve A.
static void exec_wait_b(int fd, int how) {
    send_now(fd, 0, 40000);
    step();
    step();
    int ep = epoll_create1(0), shown;
    struct epoll_event event = {.events = EPOLLIN};
    char byte;
    recv_all(fd, 0, 30000, 30000);
    if (how == 0) epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event);
    uint64_t sent = 40000;
    while (sent < 200000) {
        char block[10000];
        fill(block, sent, sizeof block);
        if (how == 0) epoll_wait(ep, &event, 1, 5);
        else if (how == 1) pollx(fd, POLLIN, 5, &shown);
        else recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (send(fd, block, sizeof block, 0) != sizeof block) die("send");
        sent += sizeof block;
    }
    if (how == 0) epoll_wait(ep, &event, 1, 5000);
    else if (how == 1) pollx(fd, POLLIN, 5000, &shown);
    recv_all(fd, 30000, 500000, 60000);
    drained(fd);
    say("all there");
}
static void exec_epoll_b(int fd) { exec_wait_b(fd, 0); }
static void exec_poll_b(int fd) { exec_wait_b(fd, 1); }
static void exec_recv_b(int fd) { exec_wait_b(fd, 2); }

// A hands the socket to a process that never had the shim's memory of it.
static void pass(int through, int fd) {
    char byte = 'x', control[CMSG_SPACE(sizeof fd)];
    struct iovec part = {&byte, 1};
    struct msghdr message;
    // What lies between the fields says nothing.
    memset(control, 0xa5, sizeof control);
    memset(&message, 0xa5, sizeof message);
    message.msg_name = NULL;
    message.msg_namelen = 0;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    message.msg_flags = 0;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(through, &message, 0) != 1) die("pass");
}
static int take(int through) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(through, &message, 0) != 1) die("take");
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}
static void passed_a(int unused) {
    (void)unused;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
    pid_t child = fork();
    if (child == 0) {
        int fd = take(pair[1]);
        recv_all(fd, 1000, 199000, 10000);
        send_now(fd, 30000, 500000);
        _exit(0);
    }
    int fd = meet(), status;
    warm(fd, 0);
    step();
    recv_all(fd, 0, 1000, 1000);
    send_now(fd, 0, 30000);
    step();
    pass(pair[0], fd);
    close(fd);
    waitpid(child, &status, 0);
    say("child %d", status);
}
static void passed_b(int unused) {
    (void)unused;
    int fd = meet();
    warm(fd, 1);
    exec_b(fd);
}

// Urgent data in the middle of the stream.
static void urgent_a(int fd) {
    step();
    send_now(fd, 0, 20000);
    say("urgent %s", outcome(send(fd, "!", 1, MSG_OOB)));
    send_now(fd, 20000, 20000);
    recv_all(fd, 0, 100000, 9000);
    step();
}
static void urgent_b(int fd) {
    fd_set except;
    struct timeval time = {5, 0};
    char byte = 0;
    send_now(fd, 0, 50000);
    step();
    recv_all(fd, 0, 100, 100);
    FD_ZERO(&except);
    FD_SET(fd, &except);
    say("select %s", outcome(select(fd + 1, NULL, NULL, &except, &time)));
    say("urgent %s %c", outcome(recv(fd, &byte, 1, MSG_OOB)), byte);
    recv_all(fd, 100, 39900, 5000);
    send_now(fd, 50000, 50000);
    step();
}
static volatile sig_atomic_t urgent_signals;
static void on_urgent(int signal) {
    (void)signal;
    urgent_signals++;
}
static void urgent_signal_b(int fd) {
    signal(SIGURG, on_urgent);
    fcntl(fd, F_SETOWN, getpid());
    char byte = 0;
    send_now(fd, 0, 50000);
    step();
    for (int i = 0; i < 5000 && !urgent_signals; i++) usleep(1000);
    say("signals %d", (int)urgent_signals);
    say("urgent %s %c", outcome(recv(fd, &byte, 1, MSG_OOB)), byte);
    recv_all(fd, 0, 40000, 5000);
    send_now(fd, 50000, 50000);
    step();
}
static void inline_a(int fd) {
    int on = 1;
    say("inline %s", outcome(setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on)));
    step();
    step();
    char buffer[16] = "";
    usleep(20000);
    for (int got = 0; got < 5;) {
        ssize_t now = recv(fd, buffer + got, 5 - got, 0);
        if (now <= 0) die("receive");
        got += now;
    }
    say("%s", buffer);
    step();
}
static void inline_b(int fd) {
    step();
    if (send(fd, "ab", 2, 0) != 2 || send(fd, "!", 1, MSG_OOB) != 1 || send(fd, "cd", 2, 0) != 2) die("send");
    step();
    step();
}

// stdio on both ends, after the ring was used, with lines unread.
static void stdio_a(int fd) {
    char line[256];
    step();
    FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
    if (!in || !out) die("fdopen");
    for (int i = 0; i < 1000; i++) {
        if (!fgets(line, sizeof line, in)) die("fgets %d", i);
        int number;
        if (sscanf(line, "line %d", &number) != 1 || number != i) die("line %d: %s", i, line);
        fprintf(out, "answer %d\n", i);
    }
    fclose(out);
    say("lines");
    shutdown(fd, SHUT_WR);
    say("end %d", fgets(line, sizeof line, in) == NULL);
    fclose(in);
    step();
}
static void stdio_b(int fd) {
    char line[256];
    for (int i = 0; i < 300; i++) {
        int length = snprintf(line, sizeof line, "line %d\n", i);
        if (send(fd, line, length, 0) != length) die("send");
    }
    step();
    for (int i = 300; i < 1000; i++) dprintf(fd, "line %d\n", i);
    FILE *in = fdopen(dup(fd), "r");
    for (int i = 0; i < 1000; i++) {
        int number;
        if (!fgets(line, sizeof line, in) || sscanf(line, "answer %d", &number) != 1 || number != i) die("answer %d", i);
    }
    say("answers");
    say("end %d", fgets(line, sizeof line, in) == NULL);
    fclose(in);
    close(fd);
    step();
}
// One stream for both ways, which is written to before what lies in the ring is read.
static void stdio_both_a(int fd) {
    char line[64] = "";
    step();
    FILE *both = fdopen(fd, "r+");
    if (!both || fputs("answer\n", both) < 0 || fflush(both)) die("stdio");
    for (int i = 0; i < 2; i++) {
        if (!fgets(line, sizeof line, both)) die("fgets");
        say("%.4s", line);
    }
    fclose(both);
    step();
}
static void stdio_both_b(int fd) {
    char in[8] = "";
    if (send(fd, "one\ntwo\n", 8, 0) != 8) die("send");
    step();
    if (recv(fd, in, 7, MSG_WAITALL) != 7) die("receive");
    say("%.6s", in);
    step();
}
// The number of a descriptor that stdio closed is used again, for a file.
static void fclose_a(int fd) {
    FILE *in = fdopen(fd, "r");
    char line[64] = "";
    if (!fgets(line, sizeof line, in)) die("fgets");
    say("%s", line);
    fclose(in);
    int file = memfd_create("try", 0);
    say("same number %d", file == fd);
    if (write(file, "content", 7) != 7) die("write");
    lseek(file, 0, SEEK_SET);
    memset(line, 0, sizeof line);
    say("read %s %s", outcome(read(file, line, 64)), line);
    say("end %s", outcome(read(file, line, 64)));
    close(file);
    step();
}
static void fclose_b(int fd) {
    if (send(fd, "hello\nmore", 10, 0) != 10) die("send");
    step();
}

// A reader that the library does not see: bare system calls. B waits in the library.
static void bare_reader(int fd, int how) {
    char buffer[4096];
    for (uint64_t at = 0; at < 40;) {
        long got;
        if (how == 0) {
            got = raw_syscall(SYS_read, fd, (long)buffer, sizeof buffer, 0, 0, 0);
        } else {
            struct pollfd entry = {.fd = fd, .events = POLLIN};
            if (raw_syscall(SYS_poll, (long)&entry, 1, 5000, 0, 0, 0) != 1) die("nothing came by the kernel");
            got = recv(fd, buffer, sizeof buffer, 0);
        }
        if (got <= 0) die("read %ld", got);
        check(buffer, at, got);
        at += got;
        if (send(fd, "a", 1, 0) != 1) die("send");
    }
    step();
    say("all there");
}
static void bare_read_a(int fd) { bare_reader(fd, 0); }
static void bare_poll_a(int fd) { bare_reader(fd, 1); }
static void bare_b(int fd, int how) {
    int ep = epoll_create1(0), shown;
    struct epoll_event event = {.events = EPOLLIN};
    if (how == 1) epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event);
    for (int i = 0; i < 4; i++) {
        char byte;
        uint64_t start = now_ms();
        send_all(fd, i * 10, 10, 10);
        if (how == 1 && epoll_wait(ep, &event, 1, 5000) != 1) die("no answer");
        if (how == 2 && pollx(fd, POLLIN, 5000, &shown) != 1) die("no answer");
        if (recv(fd, &byte, 1, 0) != 1) die("receive");
        if (now_ms() - start > 1500) die("an answer took %lu ms", now_ms() - start);
    }
    step();
    say("all there");
}
static void bare_recv_b(int fd) { bare_b(fd, 0); }
static void bare_epoll_b(int fd) { bare_b(fd, 1); }
static void bare_poll_b(int fd) { bare_b(fd, 2); }
// Bare from the first byte: its reads are never expected in the ring. B does not wait at all.
static void bare_cold_a(int fd) {
    char buffer[4096];
    for (uint64_t at = 0; at < 2000;) {
        long got = raw_syscall(SYS_read, fd, (long)buffer, sizeof buffer, 0, 0, 0);
        if (got <= 0) die("read");
        check(buffer, at, got);
        at += got;
        send_all(fd, at, 1, 1);
    }
    step();
    say("all there");
}
static void bare_cold_b(int fd) {
    for (int i = 0; i < 200; i++) send_all(fd, i * 10, 10, 10);
    step();
    say("all there");
}

// Up and down and up again: each round ends on the kernel path by a reader unseen,
// and starts anew by ordinary traffic.
static void cycles_a(int fd) {
    uint64_t at = 0;
    char buffer[64];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 300; i++) {
            recv_all(fd, at, 20, 20);
            send_all(fd, at, 20, 20);
            at += 20;
        }
        for (int got = 0; got < 20;) {
            long now = raw_syscall(SYS_read, fd, (long)buffer, 20 - got, 0, 0, 0);
            if (now <= 0) die("read");
            check(buffer, at, now);
            got += now, at += now;
        }
        send_all(fd, at - 20, 20, 20);
    }
    step();
    say("all there");
}
static void cycles_b(int fd) {
    uint64_t at = 0;
    for (int round = 0; round < 3; round++)
        for (int i = 0; i <= 300; i++) {
            send_all(fd, at, 20, 20);
            recv_all(fd, at, 20, 20);
            at += 20;
        }
    step();
    say("all there");
}

// splice out of and into the socket; a zero-copy send.
static void splice_a(int fd) {
    int pipes[2];
    static char buffer[65536];
    if (pipe(pipes)) die("pipe");
    step();
    recv_all(fd, 0, 1000, 1000);
    for (uint64_t at = 1000; at < 50000;) {
        ssize_t now = splice(fd, NULL, pipes[1], NULL, 50000 - at, 0);
        if (now <= 0) die("splice");
        for (ssize_t done = 0; done < now;) {
            ssize_t got = read(pipes[0], buffer, sizeof buffer);
            check(buffer, at + done, got);
            done += got;
        }
        at += now;
    }
    send_now(fd, 0, 1000);
    fill(buffer, 1000, 4000);
    if (write(pipes[1], buffer, 4000) != 4000) die("write");
    for (int left = 4000; left;) {
        ssize_t now = splice(pipes[0], NULL, fd, NULL, left, 0);
        if (now <= 0) die("splice");
        left -= now;
    }
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
    fill(buffer, 5000, 20000);
    say("zero copy %s", outcome(send(fd, buffer, 20000, MSG_ZEROCOPY)));
    step();
    say("done");
}
static void splice_b(int fd) {
    send_now(fd, 0, 20000);
    step();
    send_now(fd, 20000, 30000);
    recv_all(fd, 0, 25000, 3000);
    step();
    say("done");
}

// Long traffic in both directions; the test takes it down meanwhile.
static void long_both(int fd) {
    static char out[30000], in[30000];
    uint64_t sent = 0, got = 0, count = 300 * MB;
    nonblocking(fd, 1);
    say("hold");
    while (sent < count || got < count) {
        int shown, want = (got < count ? POLLIN : 0) | (sent < count ? POLLOUT : 0);
        if (pollx(fd, want, 10000, &shown) != 1) die("poll at %lu sent, %lu got", sent, got);
        if (shown & POLLIN) {
            ssize_t now = recv(fd, in, sizeof in < count - got ? sizeof in : count - got, 0);
            if (now == 0 || (now < 0 && errno != EAGAIN)) die("receive");
            if (now > 0) check(in, got, now), got += now;
        }
        if (shown & POLLOUT) {
            size_t piece = sizeof out < count - sent ? sizeof out : count - sent;
            fill(out, sent, piece);
            ssize_t now = send(fd, out, piece, 0);
            if (now == 0 || (now < 0 && errno != EAGAIN)) die("send");
            if (now > 0) sent += now;
        }
    }
    step();
    say("all there");
}

const struct test_case cases[] = {
    {"exec_static", WARM, exec_static_a, exec_b},
    {"exec_preloaded", WARM, exec_preloaded_a, exec_b},
    {"exec_static_epoll", WARM, exec_static_a, exec_epoll_b},
    {"exec_static_poll", WARM, exec_static_a, exec_poll_b},
    {"exec_static_recv", WARM, exec_static_a, exec_recv_b},
    {"passed", NONE, passed_a, passed_b},
    {"urgent", WARM, urgent_a, urgent_b},
    {"urgent_signal", WARM, urgent_a, urgent_signal_b},
    {"inline", WARM, inline_a, inline_b},
    {"stdio", WARM, stdio_a, stdio_b},
    {"stdio_both", WARM, stdio_both_a, stdio_both_b},
    {"fclose", WARM, fclose_a, fclose_b},
    {"bare_read_recv", WARM, bare_read_a, bare_recv_b},
    {"bare_read_epoll", WARM, bare_read_a, bare_epoll_b},
    {"bare_read_poll", WARM, bare_read_a, bare_poll_b},
    {"bare_poll_recv", WARM, bare_poll_a, bare_recv_b},
    {"bare_poll_epoll", WARM, bare_poll_a, bare_epoll_b},
    {"bare_cold", COLD, bare_cold_a, bare_cold_b},
    {"cycles", WARM, cycles_a, cycles_b},
    {"splice", WARM, splice_a, splice_b},
    {"long_both", WARM, long_both, long_both},
    {0},
};
