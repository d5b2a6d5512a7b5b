// Up and down at every moment: under each kind of wait, with all queues full, in the middle
// of copies, with the other end stopped.
#include "try.h"
#include <sys/mman.h>

#define MESSAGES 300
static char buffer[8 << 20];
static size_t length_of(int i) { return 1 + i * 7919 % (i % 10 ? 300 : 9000); }

// What takes a connection off its rings.
enum { NOTHING, URGENT, SPLICE, DPRINTF, LOWAT, INLINE, PASS };
static void pass_to_ourselves(int fd) {
    int pair[2];
    char byte = 'x', control[CMSG_SPACE(sizeof fd)];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
    memset(control, 0, sizeof control);
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(pair[0], &message, 0) != 1) die("pass");
    close(pair[0]);
    close(pair[1]);
}
// Sends what it sends (so many bytes of the stream) from `offset` on.
static size_t act(int how, int fd, uint64_t offset) {
    char text[8];
    int pipes[2], large = 40000, on = 1;
    fill(text, offset, 7);
    switch (how) {
    case URGENT:
        // The urgent byte is none of the stream.
        if (send(fd, "!", 1, MSG_OOB) != 1) die("urgent");
        return 0;
    case SPLICE:
        if (pipe(pipes) || write(pipes[1], text, 7) != 7 || splice(pipes[0], NULL, fd, NULL, 7, 0) != 7) die("splice");
        return 7;
    case DPRINTF:
        // No zero bytes and no percent signs by this way: characters one by one.
        for (int i = 0; i < 7; i++) dprintf(fd, "%c", text[i]);
        return 7;
    case LOWAT:
        if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &large, sizeof large)) die("SO_RCVLOWAT");
        large = 1;
        if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &large, sizeof large)) die("SO_RCVLOWAT");
        return 0;
    case INLINE:
        if (setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on)) die("SO_OOBINLINE");
        return 0;
    case PASS:
        pass_to_ourselves(fd);
        return 0;
    }
    return 0;
}

// A waits in one way for all that comes, and answers.
static void await(int how, int fd, int ep) {
    struct epoll_event event;
    struct timeval time = {10, 0};
    int shown, count = 1;
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    if (how == 1) count = pollx(fd, POLLIN, 10000, &shown);
    if (how == 2) count = select(fd + 1, &in, NULL, NULL, &time);
    if (how == 3 || how == 4) count = epoll_wait(ep, &event, 1, 10000);
    if (count != 1) die("a wait of kind %d: %d", how, count);
}
static ssize_t get(int how, int fd, size_t size) {
    struct iovec part = {buffer, size};
    struct mmsghdr one = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    ssize_t got;
    switch (how) {
    case 5:
        return recv(fd, buffer, size, MSG_WAITALL);
    case 6:
        got = recv(fd, buffer, size, MSG_PEEK);
        return got > 0 ? recv(fd, buffer, got, 0) : got;
    case 7:
        got = recvmmsg(fd, &one, 1, 0, NULL);
        return got == 1 ? (ssize_t)one.msg_len : got;
    case 8:
        return readv(fd, &part, 1);
    default:
        return recv(fd, buffer, size, 0);
    }
}
static int a_acts, b_acts;
static void waiter(int fd, int how) {
    int ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | (how == 4 ? EPOLLET : 0)};
    uint64_t at = 0, sent = 0;
    if (how == 3 || how == 4) epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event);
    if (how == 4) nonblocking(fd, 1);
    if (how == 9) {
        struct timeval time = {10, 0};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    }
    for (int i = 0; i < MESSAGES; i++) {
        uint64_t end = at + length_of(i);
        if (i == 150 && (b_acts == SPLICE || b_acts == DPRINTF)) end += 7;
        while (at < end) {
            if (how != 4) await(how, fd, ep);
            ssize_t got = get(how, fd, end - at);
            if (got < 0 && how == 4 && errno == EAGAIN) {
                await(how, fd, ep);
                continue;
            }
            if (got <= 0) die("message %d: %s", i, outcome(got));
            check(buffer, at, got);
            at += got;
        }
        if (i == 200) sent += act(a_acts, fd, sent);
        send_all(fd, sent, 1, 1);
        sent++;
    }
    step();
    say("all there");
}
static void speaker(int fd) {
    uint64_t at = 0, got = 0;
    for (int i = 0; i < MESSAGES; i++) {
        // Long enough for the other end to fall asleep, now and then.
        if (i % 30 == 1) usleep(3000);
        if (i == 150) at += act(b_acts, fd, at);
        send_all(fd, at, length_of(i), 2500);
        at += length_of(i);
        size_t answer = 1 + (i == 200 && (a_acts == SPLICE || a_acts == DPRINTF) ? 7 : 0);
        recv_all(fd, got, answer, answer);
        got += answer;
    }
    step();
    say("all there");
}
#define WAIT(kind, number, name, a, b)                                        \
    static void name##_a(int fd) { a_acts = a, b_acts = b, waiter(fd, number); } \
    static void name##_b(int fd) { a_acts = a, b_acts = b, speaker(fd); }
#define WAITS(kind, number)                                   \
    WAIT(kind, number, kind##_up, NOTHING, NOTHING)           \
    WAIT(kind, number, kind##_urgent, NOTHING, URGENT)        \
    WAIT(kind, number, kind##_splice, SPLICE, NOTHING)        \
    WAIT(kind, number, kind##_both, LOWAT, DPRINTF)
WAITS(recv, 0)
WAITS(poll, 1)
WAITS(select, 2)
WAITS(level, 3)
WAITS(edge, 4)
WAITS(all, 5)
WAITS(peek, 6)
WAITS(many, 7)
WAITS(parts, 8)
WAITS(time, 9)

// All that goes in is in when one end acts.
static uint64_t stuff(int fd) {
    uint64_t sent = 0;
    nonblocking(fd, 1);
    for (int quiet = 0; quiet < 5;) {
        fill(buffer, sent, 100000);
        ssize_t now = send(fd, buffer, 100000, 0);
        if (now > 0) sent += now, quiet = 0;
        else usleep(2000), quiet++;
    }
    nonblocking(fd, 0);
    return sent;
}
// Whoever acts waits for the stopped one sooner or later: in what it does, or for the answer.
static void *continuer(void *pid) {
    asleep(getpid(), getpid());
    kill(*(pid_t *)pid, SIGCONT);
    return NULL;
}
// B fills the stream and acts; A reads all only then, and what B sends behind it. A may be
// stopped before the stream is full, or then.
static void full_b(int fd, int how, int when) {
    pid_t pid = hear();
    pthread_t thread;
    uint64_t sent = 0;
    if (when == 1) halt(pid);
    // An urgent byte needs room as any other.
    if (how == SPLICE || how == DPRINTF || how == URGENT) send_all(fd, 0, sent = 40000, 9000);
    else sent = stuff(fd);
    if (when == 2) halt(pid);
    if (when) pthread_create(&thread, NULL, continuer, &pid);
    sent += act(how, fd, sent);
    tell(sent);
    send_all(fd, sent, 100000, 10000);
    recv_all(fd, 0, 1000, 1000);
    if (when) pthread_join(thread, NULL);
    step();
    say("all there");
}
static void full_a(int fd) {
    tell(getpid());
    uint64_t there = hear();
    recv_all(fd, 0, there + 100000, 30000);
    send_all(fd, 0, 1000, 100);
    step();
    say("all there");
}
#define FULL(name, how)                                             \
    static void full_##name##_b(int fd) { full_b(fd, how, 0); }     \
    static void stopped_##name##_b(int fd) { full_b(fd, how, 1); }  \
    static void halted_##name##_b(int fd) { full_b(fd, how, 2); }
FULL(urgent, URGENT)
FULL(splice, SPLICE)
FULL(dprintf, DPRINTF)
FULL(lowat, LOWAT)
FULL(inline, INLINE)
FULL(pass, PASS)

// The reader acts, with much unread; B sends on meanwhile.
static void reader_acts_a(int fd, int how) {
    step();
    recv_all(fd, 0, 1000, 1000);
    act(how, fd, 0);
    step();
    uint64_t all = hear();
    recv_all(fd, 1000, all - 1000, 40000);
    step();
    say("all there");
}
static void reader_acts_b(int fd) {
    uint64_t sent = 1500000;
    send_all(fd, 0, sent, 30000);
    step();
    // This end is in the library now and then, as any program is.
    for (int i = 0; i < 200; i++) {
        send_all(fd, sent, 100, 100);
        sent += 100;
        if (i % 20 == 0) usleep(1000);
    }
    int shown;
    step();
    pollx(fd, POLLIN, 50, &shown);
    tell(sent);
    step();
    say("all there");
}
#define READER(name, how) \
    static void reader_##name##_a(int fd) { reader_acts_a(fd, how); }
READER(lowat, LOWAT)
READER(inline, INLINE)
READER(pass, PASS)

// Threads copy in both directions when a third one acts.
static int copy_fd, copy_how;
static void *copier(void *unused) {
    send_all(copy_fd, 0, 12 << 20, 70000);
    return unused;
}
static void *actor(void *unused) {
    usleep(500 + chance(3000));
    act(copy_how, copy_fd, 0);
    return unused;
}
static void copies(int fd, int how) {
    pthread_t threads[2];
    copy_fd = fd, copy_how = how;
    pthread_create(threads, NULL, copier, NULL);
    pthread_create(threads + 1, NULL, actor, NULL);
    recv_all(fd, 0, 12 << 20, 60000);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    step();
    say("all there");
}
static void copies_none(int fd) { copies(fd, NOTHING); }
static void copies_urgent(int fd) { copies(fd, URGENT); }
static void copies_lowat(int fd) { copies(fd, LOWAT); }
static void copies_inline(int fd) { copies(fd, INLINE); }
static void copies_pass(int fd) { copies(fd, PASS); }

// Urgent data before there is a channel.
static void early_urgent(int fd) {
    char byte;
    if (send(fd, "!", 1, MSG_OOB) != 1) die("urgent");
    for (int i = 0; i < 100; i++) {
        if (me == 'B' && send(fd, "b", 1, 0) != 1) die("send");
        if (recv(fd, &byte, 1, 0) != 1) die("receive");
        if (byte != (me == 'A' ? 'b' : 'a')) die("%c came", byte);
        if (me == 'A' && send(fd, "a", 1, 0) != 1) die("send");
    }
    step();
    say("all there");
}
// What lay in the ring when its writer left it is there for a program without the library.
static void left_behind_a(int fd) {
    step();
    recv_all(fd, 0, 1000, 1000);
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    if (length < 0) die("readlink");
    path[length] = 0;
    strcpy(strrchr(path, '/') + 1, "plain-static");
    char number[32];
    snprintf(number, 32, "%d", fd);
    execl(path, "plain", number, "1000", "59000", "0", "5000", NULL);
    die("exec");
}
static void left_behind(int fd, int how) {
    send_all(fd, 0, 50000, 5000);
    uint64_t at = 50000;
    at += act(how, fd, at);
    send_all(fd, at, 60000 - at, 3000);
    step();
    recv_all(fd, 0, 5000, 5000);
    drained(fd);
    say("all there");
}
static void left_dprintf_b(int fd) { left_behind(fd, DPRINTF); }
static void left_splice_b(int fd) { left_behind(fd, SPLICE); }
static void left_inline_b(int fd) { left_behind(fd, INLINE); }
static void left_nothing_b(int fd) { left_behind(fd, NOTHING); }

#define ROW(kind)                                                     \
    {#kind "_up", COLD, kind##_up_a, kind##_up_b},                    \
        {#kind "_urgent", WARM, kind##_urgent_a, kind##_urgent_b},    \
        {#kind "_splice", WARM, kind##_splice_a, kind##_splice_b},    \
        {#kind "_both", WARM, kind##_both_a, kind##_both_b},
#define FULL_ROW(name)                                                \
    {"full_" #name, WARM, full_a, full_##name##_b},                   \
        {"full_" #name "_cold", COLD, full_a, full_##name##_b},       \
        {"stopped_" #name, WARM, full_a, stopped_##name##_b},         \
        {"halted_" #name, WARM, full_a, halted_##name##_b},

const struct test_case cases[] = {
    ROW(recv) ROW(poll) ROW(select) ROW(level) ROW(edge) ROW(all) ROW(peek) ROW(many) ROW(parts) ROW(time)
    FULL_ROW(urgent) FULL_ROW(splice) FULL_ROW(dprintf) FULL_ROW(lowat) FULL_ROW(inline) FULL_ROW(pass)
    {"reader_lowat", WARM, reader_lowat_a, reader_acts_b},
    {"reader_inline", WARM, reader_inline_a, reader_acts_b},
    {"reader_pass", WARM, reader_pass_a, reader_acts_b},
    {"copies_none", COLD, copies_none, copies_none},
    {"copies_urgent", WARM, copies_urgent, copies_urgent},
    {"copies_urgent_cold", COLD, copies_urgent, copies_urgent},
    {"copies_lowat", WARM, copies_lowat, copies_lowat},
    {"copies_lowat_cold", COLD, copies_lowat, copies_lowat},
    {"copies_inline", WARM, copies_inline, copies_inline},
    {"copies_inline_cold", COLD, copies_inline, copies_inline},
    {"copies_pass", WARM, copies_pass, copies_pass},
    {"copies_pass_cold", COLD, copies_pass, copies_pass},
    {"early_urgent", COLD, early_urgent, early_urgent},
    {"left_nothing", WARM, left_behind_a, left_nothing_b},
    {"left_dprintf", WARM, left_behind_a, left_dprintf_b},
    {"left_splice", WARM, left_behind_a, left_splice_b},
    {"left_inline", WARM, left_behind_a, left_inline_b},
    {0},
};
