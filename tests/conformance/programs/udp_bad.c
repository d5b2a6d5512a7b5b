// Calls that cannot be right: memory that is not there, lengths, descriptors, options (ERRORS of each manual page).
// A datagram that finds no memory is gone; the socket is well afterwards.
#include "udp.h"

static char *edge; // where memory ends
static void *gone;
static void begin_bad(void) {
    begin();
    edge = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (edge == MAP_FAILED || munmap(edge + 4096, 4096)) die("mmap");
    gone = edge += 4096;
}
static void two(void) {
    b_put(0, an, "spoilt datagram");
    b_put(0, an, "the next");
    fence();
}
static void into_nothing(int fd) {
    static const struct { const char *call; receiver *receive; } calls[] = {
#define ROW(call) {#call, by_##call},
        CALLS_THAT_RECEIVE(ROW)
#undef ROW
    };
    (void)fd;
    begin_bad();
    for (size_t i = 0; i < COUNT(calls); i++) {
        for (int good = 0; good < 12; good += 5) {
            two();
            say("%s, of which %d are there: %s", calls[i].call, good, outcome(calls[i].receive(a, edge - good, 100, MSG_DONTWAIT)));
            show_all("left", a);
        }
        if (strncmp(calls[i].call, "read", 4)) {
            two();
            say("%s looks: %s", calls[i].call, outcome(calls[i].receive(a, gone, 100, MSG_PEEK)));
            show_all("left", a);
        }
        b_put(0, an, "it fits");
        fence();
        say("%s at the edge: %s", calls[i].call, outcome(calls[i].receive(a, edge - 7, 7, 0)));
        say("error %s", socket_error(a));
    }
}
static void out_of_nothing(int fd) {
    static const struct { const char *call; sender *send_by; } calls[] = {
#define ROW(call) {#call, by_##call},
        CALLS_THAT_SEND(ROW)
#undef ROW
    };
    (void)fd;
    begin_bad();
    must_connect(a, bn);
    for (size_t i = 0; i < COUNT(calls); i++) {
        for (int good = 0; good < 30; good += 10) say("%s, of which %d are there: %s", calls[i].call, good, outcome(calls[i].send_by(a, edge - good, 30, NULL)));
        memcpy(edge - 4, "well", 4);
        say("%s at the edge: %s", calls[i].call, outcome(calls[i].send_by(a, edge - 4, 4, NULL)));
        b_show("came", 0);
        b_show_none("no more", 0);
        say("error %s", socket_error(a));
    }
}
// Names that find no room: the datagram is taken all the same.
static void names(int fd) {
    static const int lengths[] = {-1, 0, 1, 4, 8, 16, 20, 28, 100, 200};
    (void)fd;
    begin_bad();
    unsigned char unlike = 0xa5; // no byte of the name that will be written, whichever port it has
    while (memchr(&bn.at, unlike, sizeof bn.at)) unlike++;
    for (size_t i = 0; i < COUNT(lengths); i++) {
        struct whom from;
        memset(&from, unlike, sizeof from);
        from.length = lengths[i];
        two();
        say("%d: %s", lengths[i], outcome(recvfrom(a, space, 100, 0, (void *)&from.at, &from.length)));
        int written = sizeof from.at;
        while (written && ((unsigned char *)&from.at)[written - 1] == unlike) written--;
        say("length %d, written %d", (int)from.length, written);
        show_all("left", a);
    }
    static const struct { int name, length; } rows[] = {{0, 1}, {1, 0}, {2, 1}, {1, 2}, {0, 0}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct whom from = {.length = sizeof from.at};
        void *name = rows[i].name == 2 ? gone : rows[i].name ? &from.at : NULL, *length = rows[i].length == 2 ? gone : rows[i].length ? &from.length : NULL;
        two();
        say("row %zu: %s", i, outcome(recvfrom(a, space, 100, 0, name, length)));
        show_all("left", a);
    }
    say("sendto %s", outcome(sendto(a, "x", 1, 0, gone, 16)));
    say("connect %s, bind %s", outcome(connect(a, gone, 16)), outcome(bind(a, gone, 16)));
    say("of a negative length %s, of a great one %s", outcome(sendto(a, "x", 1, 0, (void *)&bn.at, -1)), outcome(sendto(a, "x", 1, 0, (void *)&bn.at, 1000)));
    b_show_none("nothing left", 0);
}
static void messages(int fd) {
    char control[64];
    struct iovec part = {space, 100}, lost = {gone, 100};
    (void)fd;
    begin_bad();
    lost.iov_base = gone;
    const struct { const char *what; struct msghdr message; } rows[] = {
        {"no parts", {0}},
        {"parts that are not there", {.msg_iov = gone, .msg_iovlen = 1}},
        {"too many parts", {.msg_iov = &part, .msg_iovlen = 1025}},
        {"a part that is not there", {.msg_iov = &lost, .msg_iovlen = 1}},
        {"a name that is not there", {.msg_iov = &part, .msg_iovlen = 1, .msg_name = gone, .msg_namelen = 28}},
        {"a negative name", {.msg_iov = &part, .msg_iovlen = 1, .msg_name = space, .msg_namelen = -1}},
        {"no name, with a length", {.msg_iov = &part, .msg_iovlen = 1, .msg_namelen = 28}},
        {"no control data, with a length", {.msg_iov = &part, .msg_iovlen = 1, .msg_controllen = 64}},
        {"flags", {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = 64, .msg_flags = -1}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct msghdr message = rows[i].message;
        two();
        ssize_t got = judged_recvmsg(a, &message, 0);
        say("%s: %s", rows[i].what, outcome(got));
        if (got >= 0) say("flags%s, name %u, control %zu", flag_words(message.msg_flags), message.msg_namelen, (size_t)message.msg_controllen);
        show_all("left", a);
    }
    set(a, SOL_SOCKET, SO_TIMESTAMP, 1);
    two();
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = gone, .msg_controllen = 64};
    say("control data that find no memory: %s", outcome(judged_recvmsg(a, &message, 0)));
    set(a, SOL_SOCKET, SO_TIMESTAMP, 0);
    show_all("left", a);
    two();
    say("no message: %s, %s", outcome(judged_recvmsg(a, NULL, 0)), outcome(judged_recvmsg(a, gone, 0)));
    show_all("left", a);
    say("none to send: %s, %s", outcome(judged_sendmsg(a, NULL, 0)), outcome(judged_sendmsg(a, gone, 0)));
    message = letter_of(&part, 1, &bn);
    message.msg_control = gone;
    message.msg_controllen = 64;
    say("control data that are not there: %s", outcome(judged_sendmsg(a, &message, 0)));
    message.msg_controllen = 1 << 30;
    say("too many of them: %s", outcome(judged_sendmsg(a, &message, 0)));
    b_show_none("nothing came", 0);
}
// In the middle: the count of those that went well, and the error for who asks next.
static void some_bad(int fd) {
    static char bytes[3][100];
    struct iovec parts[3];
    struct mmsghdr many[3];
    (void)fd;
    begin_bad();
    for (int bad = 0; bad < 3; bad++) {
        for (int i = 0; i < 3; i++) {
            parts[i] = (struct iovec){i == bad ? gone : bytes[i], 100};
            many[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1}, .msg_len = 77};
        }
        two();
        two();
        say("%d is bad: %s", bad, outcome(judged_recvmmsg(a, many, 3, MSG_DONTWAIT, NULL)));
        say("%u %u %u", many[0].msg_len, many[1].msg_len, many[2].msg_len);
        for (int i = 0; i < 2; i++) say("error %s", socket_error(a));
        show_all("left", a);
        for (int i = 0; i < 3; i++) many[i].msg_hdr = letter_of(&parts[i], 1, &bn);
        say("sendmmsg: %s", outcome(sendmmsg(a, many, 3, 0)));
        say("error %s", socket_error(a));
        for (int i = 0; i < bad; i++) b_show("came", 0);
        b_show_none("no more", 0);
    }
    two();
    say("no memory for any: %s", outcome(judged_recvmmsg(a, gone, 3, MSG_DONTWAIT, NULL)));
    say("error %s", socket_error(a));
    show_all("left", a);
}
static void lengths(int fd) {
    (void)fd;
    begin_bad();
    volatile size_t all = -1; // the compiler knows that these are wrong
    volatile int less = -1;
    two();
    say("recv %s", outcome(recv(a, space, all, 0)));
    say("read %s", outcome(read(a, space, all)));
    show_all("left", a);
    must_connect(a, bn);
    static const size_t sizes[] = {65536, 1 << 20, 1ul << 31, 1ul << 32, (size_t)-1};
    for (size_t i = 0; i < COUNT(sizes); i++) say("%zu: send %s, write %s", sizes[i], outcome(send(a, space, sizes[i], 0)), outcome(write(a, space, sizes[i])));
    struct iovec parts[2] = {{space, (size_t)-1}, {space, 10}};
    say("writev %s", outcome(writev(a, parts, 2)));
    say("readv %s", outcome(readv(a, parts, 2)));
    say("of -1 parts: %s, %s", outcome(writev(a, parts, less)), outcome(readv(a, parts, less)));
    b_show_none("nothing came", 0);
}
static void descriptors(int fd) {
    (void)fd;
    begin_bad();
    int closed = dup(a), file = memfd_create("try", 0);
    close(closed);
    int fds[] = {-1, closed, 100000, file};
    struct mmsghdr many = {0};
    struct msghdr message = {0};
    for (size_t i = 0; i < COUNT(fds); i++) {
        int n = fds[i];
        say("%zu: recv %s, recvfrom %s", i, outcome(recv(n, space, 1, 0)), outcome(recvfrom(n, space, 1, 0, NULL, NULL)));
        say("recvmsg %s, recvmmsg %s", outcome(recvmsg(n, &message, 0)), outcome(recvmmsg(n, &many, 1, 0, NULL)));
        say("send %s, sendto %s", outcome(send(n, "x", 1, 0)), outcome(send_to(n, bn, "x")));
        say("sendmsg %s, sendmmsg %s", outcome(sendmsg(n, &message, 0)), outcome(sendmmsg(n, &many, 1, 0)));
        say("connect %s, bind %s, shutdown %s", outcome(connect_to(n, bn)), outcome(bind_to(n, bn)), outcome(shutdown(n, SHUT_RDWR)));
        say("option %s", outcome(set_at(n, SOL_SOCKET, SO_RCVBUF, 1)));
    }
    put(a, bn, "well");
    b_show("came", 0);
}
static void options(int fd) {
    static const struct { const char *word; int level, option; } rows[] = {
        {"SO_TYPE", SOL_SOCKET, SO_TYPE}, {"SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR}, {"SO_BROADCAST", SOL_SOCKET, SO_BROADCAST},
        {"SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT}, {"SO_SNDLOWAT", SOL_SOCKET, SO_SNDLOWAT}, {"SO_NO_CHECK", SOL_SOCKET, SO_NO_CHECK},
        {"SO_PRIORITY", SOL_SOCKET, SO_PRIORITY}, {"SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE}, {"SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE},
        {"SO_RXQ_OVFL", SOL_SOCKET, SO_RXQ_OVFL}, {"SO_BUSY_POLL", SOL_SOCKET, SO_BUSY_POLL}, {"SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN},
        {"UDP_CORK", IPPROTO_UDP, UDP_CORK}, {"UDP_SEGMENT", IPPROTO_UDP, UDP_SEGMENT}, {"UDP_GRO", IPPROTO_UDP, UDP_GRO},
        {"UDP_ENCAP", IPPROTO_UDP, UDP_ENCAP}, {"of UDP, 77", IPPROTO_UDP, 77}, {"of TCP, 1", IPPROTO_TCP, 1}, {"of none, 1", 77, 1}};
    (void)fd;
    begin();
    for (size_t i = 0; i < COUNT(rows); i++) {
        for (socklen_t room = 0; room < 12; room += 3) {
            unsigned char bytes[16];
            socklen_t length = room;
            memset(bytes, 0xa5, sizeof bytes);
            int result = getsockopt(a, rows[i].level, rows[i].option, bytes, &length);
            say("%s, room for %u: %s, %u %s", rows[i].word, room, outcome(result), length, content(bytes, sizeof bytes));
        }
        int on = 1;
        say("set %s, in a byte %s", outcome(set_at(a, rows[i].level, rows[i].option, 0)), outcome(setsockopt(a, rows[i].level, rows[i].option, &on, 1)));
    }
    say("IP_MTU without a peer %d", getsockopt(a, SOL_IP, IP_MTU, space, &(socklen_t){4}) < 0);
    say("FIONREAD to nowhere %s", outcome(ioctl(a, FIONREAD, NULL)));
    say("no such request %s", outcome(ioctl(a, 0x12345678, space)));
    put(a, bn, "well");
    b_show("came", 0);
}

const struct test_case cases[] = {
    CASE(into_nothing), CASE(out_of_nothing), CASE(names), CASE(messages), CASE(some_bad), CASE(lengths), CASE(descriptors),
    CASE(options),
    {0},
};
