// Parents, children and other processes that get a connection: by fork, or by SCM_RIGHTS.
#include "try.h"

static int turn[2];
static void hand_over(void) {
    char byte = 0;
    if (write(turn[1], &byte, 1) != 1) die("turn");
}
static void take_over(void) {
    char byte;
    if (read(turn[0], &byte, 1) != 1) die("turn");
}

// Both read: each byte goes to one of them. Both write: records stay whole.
enum { RECORD = 200, RECORDS = 300 };
static void readers_a(int fd) {
    uint64_t *counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    step();
    pid_t child = fork();
    unsigned char bytes[500];
    ssize_t got;
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
        for (ssize_t i = 0; i < got; i++) __atomic_add_fetch(counts, bytes[i], __ATOMIC_RELAXED), __atomic_add_fetch(counts + 1, 1, __ATOMIC_RELAXED);
    if (child == 0) _exit(got ? 1 : 0);
    reap(child, "child");
    say("%lu bytes, sum %lu", counts[1], counts[0]);
    step();
}
static void readers_b(int fd) {
    uint64_t all = 0;
    static unsigned char bytes[300000];
    fill(bytes, 0, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) all += bytes[i];
    send_all(fd, 0, 100000, 5000);
    step();
    send_all(fd, 100000, 200000, 5000);
    shutdown(fd, SHUT_WR);
    say("sum %lu", all);
    step();
}
static void writers_a(int fd) {
    char record[RECORD];
    pid_t child = fork();
    memset(record, child ? 'p' : 'c', RECORD);
    for (int i = 0; i < RECORDS; i++) if (send(fd, record, RECORD, 0) != RECORD) die("send");
    if (child == 0) _exit(0);
    reap(child, "child");
    step();
}
static void writers_b(int fd) {
    char record[RECORD];
    int children = 0;
    for (int i = 0; i < 2 * RECORDS; i++) {
        if (recv(fd, record, RECORD, MSG_WAITALL) != RECORD) die("receive");
        for (int j = 1; j < RECORD; j++) if (record[j] != record[0]) die("records are mixed");
        children += record[0] == 'c';
    }
    say("%d of the child's", children);
    step();
}
// One reads, the other writes.
static void halves_a(int fd) {
    pid_t child = fork();
    if (child == 0) {
        recv_all(fd, 0, 3000000, 30000);
        _exit(0);
    }
    send_all(fd, 0, 3000000, 30000);
    reap(child, "child");
    step();
}
static void *halves_sender(void *fd) {
    send_all(*(int *)fd, 0, 3000000, 30000);
    return NULL;
}
static void halves_b(int fd) {
    pthread_t thread;
    pthread_create(&thread, NULL, halves_sender, &fd);
    recv_all(fd, 0, 3000000, 30000);
    pthread_join(thread, NULL);
    say("all there");
    step();
}
// The child shuts the connection down, for both.
static void child_shuts_a(int fd) {
    pid_t child = fork();
    if (child == 0) {
        send_all(fd, 0, 1000, 1000);
        shutdown(fd, SHUT_WR);
        _exit(0);
    }
    reap(child, "child");
    say("send %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
    recv_all(fd, 0, 1000, 1000);
    drained(fd);
    step();
}
static void child_shuts_b(int fd) {
    recv_all(fd, 0, 1000, 1000);
    drained(fd);
    send_all(fd, 0, 1000, 1000);
    close(fd);
    say("the end");
    step();
}
// The parent closes; the child has no end before it closes too.
static void parent_closes_a(int fd) {
    if (pipe(turn)) die("pipe");
    pid_t child = fork();
    if (child == 0) {
        take_over();
        send_all(fd, 0, 5000, 1000);
        recv_all(fd, 0, 5000, 1000);
        _exit(0);
    }
    close(fd);
    tell(1);
    hear();
    hand_over();
    reap(child, "child");
    step();
}
static void parent_closes_b(int fd) {
    int shown;
    hear();
    say("no end yet %d", pollx(fd, POLLIN | POLLRDHUP, 20, &shown));
    tell(1);
    recv_all(fd, 0, 5000, 1000);
    send_all(fd, 0, 5000, 1000);
    drained(fd);
    say("the end");
    step();
}
// A child that used it and is gone: the parent goes on, as often as that happens.
static void in_turn_a(int fd) {
    for (int i = 0; i < 10; i += 2) {
        pid_t child = fork();
        if (child == 0) {
            recv_all(fd, i * 1000, 1000, 400);
            send_all(fd, i * 1000, 1000, 400);
            _exit(0);
        }
        reap(child, "child");
        recv_all(fd, (i + 1) * 1000, 1000, 400);
        send_all(fd, (i + 1) * 1000, 1000, 400);
    }
    step();
}
static void in_turn_b(int fd) {
    for (int i = 0; i < 10; i++) {
        send_all(fd, i * 1000, 1000, 300);
        recv_all(fd, i * 1000, 1000, 300);
    }
    say("all there");
    step();
}
// A grandchild goes on alone, its parent and grandparent gone (daemon(3) does this once).
static void orphaned_a(int fd) {
    send_all(fd, 0, 10000, 3000);
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0) {
            send_all(fd, 10000, 10000, 3000);
            recv_all(fd, 0, 20000, 3000);
            tell(9);
            _exit(0);
        }
        _exit(0);
    }
    close(fd);
    reap(child, "child");
    pause();
}
static void orphaned_b(int fd) {
    recv_all(fd, 0, 20000, 7000);
    send_all(fd, 0, 20000, 7000);
    drained(fd);
    if (hear() != 9) die("hear");
    say("the end");
    tell(1);
    _exit(0);
}
static void orphaned_role_a(int fd) {
    pid_t child = fork();
    if (child == 0) orphaned_a(fd);
    close(fd);
    hear();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}
static void libc_daemon_a(int fd) {
    if (pipe(turn)) die("pipe");
    recv_all(fd, 0, 1000, 1000);
    pid_t child = fork();
    if (child == 0) {
        if (daemon(1, 1)) _exit(9);
        recv_all(fd, 1000, 9000, 3000);
        send_all(fd, 0, 10000, 3000);
        hand_over();
        _exit(0);
    }
    close(fd);
    reap(child, "daemon");
    take_over();
    step();
}
static void libc_daemon_b(int fd) {
    send_all(fd, 0, 10000, 3000);
    recv_all(fd, 0, 10000, 3000);
    drained(fd);
    say("the end");
    step();
}
// Forks that libc does not announce (clone, _Fork, the bare call): the child only exits.
static void quiet_fork_a(int fd) {
    for (int how = 0; how < 3; how++) {
        pid_t child = how == 0 ? _Fork() : how == 1 ? syscall(SYS_fork) : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) raw_syscall(SYS_exit_group, 0, 0, 0, 0, 0, 0);
        reap(child, "child");
        send_all(fd, how * 1000, 1000, 500);
        recv_all(fd, how * 1000, 1000, 500);
    }
    step();
}
static void quiet_fork_b(int fd) {
    for (int how = 0; how < 3; how++) {
        recv_all(fd, how * 1000, 1000, 500);
        send_all(fd, how * 1000, 1000, 500);
    }
    say("all there");
    step();
}
// A child forked by one thread, while another one sleeps on the connection.
static void *receiving(void *fd) {
    recv_all(*(int *)fd, 0, 5000, 5000);
    return NULL;
}
static void beside_sleeper_a(int fd) {
    pthread_t thread;
    pthread_create(&thread, NULL, receiving, &fd);
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        reap(child, "child");
        tell(i);
    }
    pthread_join(thread, NULL);
    say("received");
    step();
}
static void beside_sleeper_b(int fd) {
    for (int i = 0; i < 5; i++) {
        hear();
        send_all(fd, i * 1000, 1000, 1000);
    }
    step();
}
// A child makes connections of its own, which have rings, beside the inherited one.
static void own_a(int fd) {
    int port, listener = listen_any(&port);
    tell(port);
    pid_t child = fork();
    if (child == 0) {
        int new = accept(listener, NULL, NULL);
        warm(new, 0);
        must_ring(new, "the child's own");
        recv_all(new, 0, 50000, 5000);
        _exit(0);
    }
    reap(child, "child");
    must_ring(fd, "the parent's");
    step();
}
static void own_b(int fd) {
    int new = dial(hear());
    char byte;
    warm(new, 1);
    if (recv(new, &byte, 1, 0) != 1) die("receive");
    send_all(new, 0, 50000, 5000);
    drained(new);
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}
// Workers that are forked before there are connections; some die, new ones take their place.
static void worker(int listener) {
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        char kind;
        if (recv(fd, &kind, 1, 0) != 1) _exit(1);
        if (kind == 'q') _exit(0);
        if (kind == 'k') kill(getpid(), SIGKILL);
        warm(fd, 0);
        must_ring(fd, "a worker");
        recv_all(fd, 0, 20000, 5000);
        send_all(fd, 0, 20000, 5000);
        drained(fd);
        close(fd);
    }
}
static void respawn_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), killed = 0;
    for (int i = 0; i < 2; i++) if (fork() == 0) worker(listener);
    tell(port);
    for (int left = 2; left;) {
        int status;
        pid_t child = waitpid(-1, &status, 0);
        if (child < 0) die("wait");
        if (!WIFSIGNALED(status)) left--;
        else if (killed++, fork() == 0) worker(listener);
    }
    say("killed %d", killed);
}
static void respawn_b(int unused) {
    (void)unused;
    int port = hear();
    char byte;
    for (int i = 0; i < 12; i++) {
        int fd = dial(port);
        if (i % 4 == 3) {
            if (send(fd, "k", 1, 0) != 1 || recv(fd, &byte, 1, 0) > 0) die("kill");
            close(fd);
            continue;
        }
        if (send(fd, "w", 1, 0) != 1) die("send");
        warm(fd, 1);
        if (recv(fd, &byte, 1, 0) != 1) die("receive");
        send_all(fd, 0, 20000, 7000);
        recv_all(fd, 0, 20000, 7000);
        close(fd);
    }
    for (int i = 0; i < 2; i++) {
        int fd = dial(port);
        if (send(fd, "q", 1, 0) != 1) die("send");
        recv(fd, &byte, 1, 0);
        close(fd);
    }
    say("served");
}

// SCM_RIGHTS.
static void pass(int over, const int *fds, int count) {
    char byte = 'f', space[CMSG_SPACE(sizeof(int) * 16)];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int) * count), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), fds, sizeof(int) * count);
    if (sendmsg(over, &message, 0) != 1) die("pass");
}
static int taken(int from, int *fds) {
    char byte, space[CMSG_SPACE(sizeof(int) * 16)];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message)) die("take");
    int count = (CMSG_FIRSTHDR(&message)->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), count * sizeof(int));
    return count;
}
static pid_t start_taker(const char *image, int wiped, int *over) {
    static char *words[] = {"plain", "@9", "1000", "99000", "30000", "70000", NULL}, *none[] = {NULL};
    extern char **environ;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) die("socketpair");
    pid_t child = fork();
    if (child == 0) {
        dup2(pair[1], 9);
        execve(beside(image), words, wiped ? none : environ);
        _exit(99);
    }
    close(pair[1]);
    *over = pair[0];
    return child;
}
// To a program with the library and to such without, with bytes in both rings.
static void to_image(int fd, const char *image, int wiped, int keep) {
    int over;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    pid_t child = start_taker(image, wiped, &over);
    step();
    recv_all(fd, 0, 1000, 1000);
    send_all(fd, 0, 30000, 5000);
    pass(over, &fd, 1);
    if (!keep) close(fd);
    reap(child, "taker");
    if (keep) {
        // It is still ours, too.
        send_all(fd, 100000, 1000, 1000);
        recv_all(fd, 100000, 1000, 1000);
        close(fd);
    }
    step();
}
static void to_aware_a(int fd) { to_image(fd, "plain", 0, 0); }
static void to_unaware_a(int fd) { to_image(fd, "plain", 1, 0); }
static void to_static_a(int fd) { to_image(fd, "plain-static", 0, 0); }
static void to_both_a(int fd) { to_image(fd, "plain", 1, 1); }
static void pass_b(int fd) {
    send_all(fd, 0, 50000, 5000);
    step();
    recv_all(fd, 0, 30000, 100);
    send_all(fd, 50000, 50000, 5000);
    recv_all(fd, 30000, 70000, 9000);
    drained(fd);
    say("all there");
    step();
}
static void pass_both_b(int fd) {
    send_all(fd, 0, 50000, 5000);
    step();
    recv_all(fd, 0, 30000, 100);
    send_all(fd, 50000, 51000, 5000);
    recv_all(fd, 30000, 71000, 9000);
    drained(fd);
    say("all there");
    step();
}
// Several in one message, among other descriptors, to a child that was forked before.
enum { COUNT = 5 };
static void several_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), pair[2], fds[COUNT + 2];
    tell(port);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
    pid_t child = fork();
    if (child == 0) {
        int got[16], count = taken(pair[1], got);
        if (count != COUNT + 2) die("%d taken", count);
        for (int i = 0; i < COUNT; i++) {
            recv_all(got[i + 1], 0, 10000, 3000);
            send_all(got[i + 1], 0, 10000, 3000);
        }
        _exit(0);
    }
    fds[0] = open("/dev/null", O_RDONLY);
    for (int i = 0; i < COUNT; i++) fds[i + 1] = accept(listener, NULL, NULL), warm(fds[i + 1], 0);
    fds[COUNT + 1] = dup(2);
    pass(pair[0], fds, COUNT + 2);
    for (int i = 0; i < COUNT + 2; i++) close(fds[i]);
    reap(child, "child");
    step();
}
static void several_b(int unused) {
    (void)unused;
    int port = hear(), fds[COUNT];
    for (int i = 0; i < COUNT; i++) fds[i] = dial(port), warm(fds[i], 1), send_all(fds[i], 0, 10000, 1000);
    // It sleeps for all of them: each may have to be served.
    struct pollfd entries[COUNT];
    for (int i = 0; i < COUNT; i++) entries[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    uint64_t at[COUNT] = {0};
    for (int left = COUNT; left;) {
        if (poll(entries, COUNT, 15000) <= 0) die("poll");
        for (int i = 0; i < COUNT; i++) {
            char bytes[4000];
            if (!entries[i].revents) continue;
            ssize_t got = recv(fds[i], bytes, sizeof bytes, 0);
            if (got < 0) die("receive");
            check(bytes, at[i], got);
            at[i] += got;
            if (got == 0) entries[i].fd = -1, left--;
        }
    }
    for (int i = 0; i < COUNT; i++) if (at[i] != 10000) die("%lu of %d", at[i], i);
    say("all there");
    step();
}
// To oneself: another number of the same socket.
static void to_self_a(int fd) {
    int pair[2], got[16];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) die("socketpair");
    step();
    recv_all(fd, 0, 1000, 1000);
    pass(pair[0], &fd, 1);
    if (taken(pair[1], got) != 1) die("take");
    recv_all(got[0], 1000, 1000, 500);
    send_all(fd, 0, 1000, 500);
    send_all(got[0], 1000, 1000, 500);
    close(fd);
    recv_all(got[0], 2000, 1000, 500);
    close(got[0]);
    step();
}
static void to_self_b(int fd) {
    send_all(fd, 0, 3000, 3000);
    step();
    recv_all(fd, 0, 2000, 700);
    drained(fd);
    say("the end");
    step();
}
// On its way, the socket has no descriptor at all; what is sent to it meanwhile waits.
static void in_flight_a(int fd) {
    int pair[2], got[16];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
    send_all(fd, 0, 1000, 1000);
    pass(pair[0], &fd, 1);
    close(fd);
    step();
    step();
    if (taken(pair[1], got) != 1) die("take");
    recv_all(got[0], 0, 20000, 5000);
    send_all(got[0], 1000, 1000, 1000);
    close(got[0]);
    step();
}
static void in_flight_b(int fd) {
    step();
    send_all(fd, 0, 20000, 5000);
    step();
    recv_all(fd, 0, 2000, 700);
    drained(fd);
    say("the end");
    step();
}
// Never taken: the peer sees the end when the message is thrown away.
static void lost_a(int fd) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
    pass(pair[0], &fd, 1);
    close(fd);
    step();
    step();
    close(pair[0]), close(pair[1]);
    step();
}
static void lost_b(int fd) {
    int shown;
    step();
    say("no end yet %d", pollx(fd, POLLIN | POLLRDHUP, 20, &shown));
    step();
    step();
    drained(fd);
    say("the end");
}
// A listener: who takes it has rings on what it accepts.
static void listener_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
    pid_t child = fork();
    if (child == 0) {
        int got[16];
        close(listener);
        if (taken(pair[1], got) != 1) die("take");
        int fd = accept(got[0], NULL, NULL);
        recv_all(fd, 0, 50000, 5000);
        send_all(fd, 0, 50000, 5000);
        _exit(0);
    }
    pass(pair[0], &listener, 1);
    close(listener);
    tell(port);
    reap(child, "child");
    step();
}
static void listener_b(int unused) {
    (void)unused;
    int fd = dial(hear());
    send_all(fd, 0, 50000, 5000);
    recv_all(fd, 0, 50000, 5000);
    drained(fd);
    say("served");
    step();
}
// By sendmmsg, and by the bare call through syscall().
static void other_calls_a(int fd, int raw) {
    int pair[2], got[16];
    char byte = 'f', space[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space}};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message.msg_hdr);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
    step();
    if (raw ? syscall(SYS_sendmsg, pair[0], &message.msg_hdr, 0) != 1 : sendmmsg(pair[0], &message, 1, 0) != 1) die("pass");
    close(fd);
    if (taken(pair[1], got) != 1) die("take");
    recv_all(got[0], 0, 3000, 500);
    send_all(got[0], 0, 2000, 500);
    close(got[0]);
    step();
}
static void sendmmsg_a(int fd) { other_calls_a(fd, 0); }
static void raw_sendmsg_a(int fd) { other_calls_a(fd, 1); }

const struct test_case cases[] = {
    {"readers", WARM, readers_a, readers_b},
    {"writers", WARM, writers_a, writers_b},
    {"halves", WARM, halves_a, halves_b},
    {"halves_cold", COLD, halves_a, halves_b},
    {"child_shuts", WARM, child_shuts_a, child_shuts_b},
    {"parent_closes", WARM, parent_closes_a, parent_closes_b},
    {"in_turn", WARM, in_turn_a, in_turn_b},
    {"orphaned", WARM, orphaned_role_a, orphaned_b},
    {"libc_daemon", WARM, libc_daemon_a, libc_daemon_b},
    {"quiet_fork", WARM, quiet_fork_a, quiet_fork_b},
    {"beside_sleeper", WARM, beside_sleeper_a, beside_sleeper_b},
    {"own", WARM, own_a, own_b},
    {"respawn", NONE, respawn_a, respawn_b},
    {"to_aware", WARM, to_aware_a, pass_b},
    {"to_unaware", WARM, to_unaware_a, pass_b},
    {"to_static", WARM, to_static_a, pass_b},
    {"to_both", WARM, to_both_a, pass_both_b},
    {"several", NONE, several_a, several_b},
    {"to_self", WARM, to_self_a, to_self_b},
    {"in_flight", WARM, in_flight_a, in_flight_b},
    {"lost", WARM, lost_a, lost_b},
    {"listener", NONE, listener_a, listener_b},
    {"sendmmsg", WARM, sendmmsg_a, to_self_b},
    {"raw_sendmsg", WARM, raw_sendmsg_a, to_self_b},
    {0},
};
