// Datagrams as they are sent are as they are received: content, length, sender, by each call (man 7 udp, man 2 recv).
#include "udp.h"

static const int lengths[] = {0, 1, 7, 100, 1472, 1473, 9000, 65507};

// Each call that receives, with room enough and without: what finds none is lost.
static void received_by(const char *call, receiver *receive) {
    begin_connected();
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (int less = -1; less < 2; less++) {
            int room = lengths[i] - less;
            if (room < 0) continue;
            memset(space, 0xa5, sizeof space);
            b_fill(0, peer, i * 100000, lengths[i]);
            b_put(0, peer, "next");
            fence();
            ssize_t got = receive(a, space, room, 0);
            say("%s %d into %d: %s %s, beyond %x", call, lengths[i], room, outcome(got), content(space, got > 0 ? got : 0), space[room]);
            // No room at all is no receive to read(2) and readv(2): the datagram stays.
            show_all("left", a);
        }
}
#define RECEIVED(call) static void received_by_##call(int fd) { (void)fd; received_by(#call, by_##call); }
CALLS_THAT_RECEIVE(RECEIVED)

// Each call that sends, to a name and to whom the socket is connected to.
static void sent_by(const char *call, sender *send_by, int takes_a_name) {
    static unsigned char bytes[65508];
    begin();
    for (int connected = !takes_a_name; connected < 2; connected++) {
        if (connected) must_connect(a, bn);
        for (size_t i = 0; i < COUNT(lengths); i++) {
            fill(bytes, i * 100000, lengths[i]);
            ssize_t sent = send_by(a, bytes, lengths[i], connected ? NULL : &bn);
            say("%s %d: %s", call, lengths[i], outcome(sent));
            put(a, connected ? peer : bn, "next");
            // write(2) of nothing may send nothing.
            b_show(call, 0);
            if (lengths[i] || call[0] != 'w') b_show("next", 0);
            else b_show_none("next", 0);
        }
    }
}
#define SENT(call) static void sent_by_##call(int fd) { (void)fd; sent_by(#call, by_##call, !strncmp(#call, "sendto", 6) || !strncmp(#call, "sendm", 5)); }
CALLS_THAT_SEND(SENT)

// 65,535 bytes less the headers that the length counts; a byte more is refused, and nothing leaves.
static void largest(int fd) {
    static char bytes[70000];
    (void)fd;
    begin_connected();
    int most = is_six() ? 65527 : 65507;
    static const struct { const char *call; sender *send_by; } calls[] = {
#define ROW(call) {#call, by_##call},
        CALLS_THAT_SEND(ROW)
#undef ROW
    };
    for (size_t i = 0; i < COUNT(calls); i++) {
        static const int over[] = {1, 0, 20, 40, 4000};
        for (size_t k = 0; k < COUNT(over); k++) {
            fill(bytes, i * 100 + k, most + over[k]);
            say("%s %d: %s", calls[i].call, most + over[k], outcome(calls[i].send_by(a, bytes, most + over[k], NULL)));
        }
        b_show("one came", 0);
        b_show_none("no more", 0);
        say("error %s", socket_error(a));
    }
}
static void cut(int fd) {
    (void)fd;
    begin();
    for (int room = 0; room <= 12; room += 3) {
        b_put(0, an, "0123456789");
        arrived(a);
        show_in("plain", a, room, 0);
        b_put(0, an, "0123456789");
        arrived(a);
        show_in("MSG_TRUNC", a, room, MSG_TRUNC);
    }
    b_put(0, an, "0123456789");
    arrived(a);
    say("to nowhere: %s", outcome(recv(a, NULL, 0, MSG_TRUNC)));
    show_none("the rest is lost", a);
}
static void peek(int fd) {
    (void)fd;
    begin();
    b_put(0, an, "first one");
    b_put(0, an, "second");
    arrived(a);
    static const struct { int room, flags; } looks[] = {
        {100, MSG_PEEK}, {100, MSG_PEEK | MSG_TRUNC}, {4, MSG_PEEK}, {4, MSG_PEEK | MSG_TRUNC}, {0, MSG_PEEK}, {0, MSG_PEEK | MSG_TRUNC},
        {9, MSG_PEEK | MSG_DONTWAIT}, {9, MSG_PEEK | MSG_WAITALL}};
    for (size_t i = 0; i < COUNT(looks); i++) show_in("look", a, looks[i].room, looks[i].flags);
    say("to read %d", queued(a, FIONREAD));
    show("take", a);
    show_in("look", a, 100, MSG_PEEK);
    show("take", a);
    show_in("nothing to look at", a, 100, MSG_PEEK | MSG_DONTWAIT);
}
// How programs learn the size of what comes.
static void peek_size(int fd) {
    (void)fd;
    begin();
    for (size_t i = 0; i < COUNT(lengths); i++) {
        b_fill(0, an, i, lengths[i]);
        arrived(a);
        say("size %s", outcome(recv(a, NULL, 0, MSG_PEEK | MSG_TRUNC)));
        ssize_t got = recv(a, space, sizeof space, 0);
        say("%s %s", outcome(got), content(space, got));
    }
}
static void peek_offset(int fd) {
    char in[8];
    (void)fd;
    begin();
    say("at first %d", get(a, SOL_SOCKET, SO_PEEK_OFF));
    say("set %s", outcome(set_at(a, SOL_SOCKET, SO_PEEK_OFF, 0)));
    b_put(0, an, "abcdefgh");
    b_put(0, an, "ijklmnop");
    fence();
    for (int i = 0; i < 6; i++) {
        ssize_t got = recv(a, in, 3, MSG_PEEK | MSG_DONTWAIT);
        say("look %s %.*s, then at %d", outcome(got), got > 0 ? (int)got : 0, in, get(a, SOL_SOCKET, SO_PEEK_OFF));
    }
    show("take", a);
    say("then at %d", get(a, SOL_SOCKET, SO_PEEK_OFF));
    say("off %s", outcome(set_at(a, SOL_SOCKET, SO_PEEK_OFF, -1)));
    show_in("look", a, 100, MSG_PEEK);
    show("take", a);
}
static void dontwait(int fd) {
    int on = 1;
    (void)fd;
    begin();
    show_in("by flag", a, 100, MSG_DONTWAIT);
    nonblocking(a, 1);
    show_in("by O_NONBLOCK", a, 100, 0);
    say("read %s", outcome(read(a, space, 100)));
    nonblocking(a, 0);
    if (ioctl(a, FIONBIO, &on)) die("FIONBIO");
    say("flag %d", !!(fcntl(a, F_GETFL) & O_NONBLOCK));
    show_in("by FIONBIO", a, 100, MSG_WAITALL);
    b_put(0, an, "here");
    arrived(a);
    show_in("there is one", a, 100, MSG_DONTWAIT);
    say("send %s", outcome(send_to(a, bn, "out")));
    b_show("came", 0);
    int born = socket(an.at.ss_family, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    show_in("born so", born, 100, 0);
}
// More than one datagram is never one answer.
static void waitall(int fd) {
    (void)fd;
    begin();
    b_put(0, an, "abc");
    b_put(0, an, "defgh");
    fence();
    show_in("first", a, 100, MSG_WAITALL);
    show_in("second", a, 2, MSG_WAITALL);
    show_none("none", a);
}
static void empty(int fd) {
    (void)fd;
    begin();
    for (int i = 0; i < 2; i++) b_put(0, an, "");
    b_put(0, an, "full");
    b_put(0, an, "");
    fence();
    show_poll("an empty one shows", a, POLLIN);
    say("to read %d", queued(a, FIONREAD));
    show_in("look", a, 100, MSG_PEEK);
    show("first", a);
    say("second: %s", outcome(recv(a, NULL, 0, 0)));
    say("to read %d", queued(a, FIONREAD));
    show("third", a);
    say("fourth by read: %s", outcome(read(a, space, 100)));
    show_none("none", a);
    say("send of nothing %s", outcome(sendto(a, NULL, 0, 0, (void *)&bn.at, bn.length)));
    b_show("empty", 0);
}
// recv into no room takes the datagram, read does not.
static void no_room(int fd) {
    (void)fd;
    begin();
    for (char name[] = "1"; *name <= '6'; ++*name) b_put(0, an, name);
    fence();
    say("read %s", outcome(read(a, space, 0)));
    say("readv %s", outcome(readv(a, &(struct iovec){space, 0}, 1)));
    say("readv of none %s", outcome(readv(a, NULL, 0)));
    show_in("look", a, 10, MSG_PEEK);
    say("recv %s", outcome(recv(a, space, 0, 0)));
    show_in("look", a, 10, MSG_PEEK);
    struct msghdr message = {0};
    say("recvmsg %s%s", outcome(recvmsg(a, &message, 0)), flag_words(message.msg_flags));
    show_all("left", a);
}
static void scattered(int fd) {
    static char bytes[3000];
    static struct iovec parts[1025];
    (void)fd;
    begin();
    fill(bytes, 0, sizeof bytes);
    static const int counts[] = {1, 2, 8, 9, 100, 1024, 1025};
    for (size_t i = 0; i < COUNT(counts); i++) {
        for (int k = 0; k < counts[i]; k++) parts[k] = (struct iovec){bytes + k * 2, k % 3};
        struct msghdr message = letter_of(parts, counts[i], &bn);
        ssize_t sent = sendmsg(a, &message, 0);
        say("of %d: %s", counts[i], outcome(sent));
        if (sent >= 0) b_show("came", 0);
    }
    for (size_t i = 0; i < COUNT(counts); i++) {
        memset(space, 0xa5, 3100);
        for (int k = 0; k < counts[i]; k++) parts[k] = (struct iovec){space + k * 2, k % 3};
        b_fill(0, an, i, 1030);
        arrived(a);
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = counts[i]};
        say("into %d: %s", counts[i], outcome(recvmsg(a, &message, 0)));
        say("%s%s", content(space, 3100), flag_words(message.msg_flags));
    }
    show_all("left", a);
}
// Pieces that are held back become one datagram, to the name of the first.
static void more(int fd) {
    (void)fd;
    begin();
    struct whom other = b_open(1);
    say("%s", outcome(sendto(a, "abc", 3, MSG_MORE, (void *)&bn.at, bn.length)));
    say("%s", outcome(sendto(a, "def", 3, MSG_MORE, (void *)&other.at, other.length)));
    b_show_none("not yet", 0);
    say("%s", outcome(sendto(a, "ghi", 3, 0, (void *)&bn.at, bn.length)));
    b_show("one", 0);
    b_show_none("the other has none", 1);
    must_connect(a, bn);
    say("%s", outcome(send(a, "jkl", 3, MSG_MORE)));
    say("%s", outcome(send(a, "", 0, 0)));
    b_show("one", 0);
}
static void cork(int fd) {
    (void)fd;
    begin_connected();
    set(a, IPPROTO_UDP, UDP_CORK, 1);
    put(a, peer, "abc");
    say("%s", outcome(write(a, "defg", 4)));
    b_show_none("not yet", 0);
    say("corked %d", get(a, IPPROTO_UDP, UDP_CORK));
    set(a, IPPROTO_UDP, UDP_CORK, 0);
    b_show("one", 0);
    set(a, IPPROTO_UDP, UDP_CORK, 1);
    set(a, IPPROTO_UDP, UDP_CORK, 0);
    b_show_none("of nothing comes nothing", 0);
}
// Flags that a datagram socket ignores, or refuses.
static void odd_flags(int fd) {
    static const struct { const char *word; int flag; } flags[] = {
        {"OOB", MSG_OOB}, {"DONTROUTE", MSG_DONTROUTE}, {"EOR", MSG_EOR}, {"CONFIRM", MSG_CONFIRM}, {"NOSIGNAL", MSG_NOSIGNAL},
        {"DONTWAIT", MSG_DONTWAIT}, {"WAITFORONE", MSG_WAITFORONE}, {"FASTOPEN", MSG_FASTOPEN}, {"ZEROCOPY", MSG_ZEROCOPY}};
    (void)fd;
    begin();
    for (size_t i = 0; i < COUNT(flags); i++) {
        ssize_t sent = sendto(a, flags[i].word, 3, flags[i].flag, (void *)&bn.at, bn.length);
        say("send %s: %s", flags[i].word, outcome(sent));
        if (sent >= 0) b_show("came", 0);
        b_put(0, an, flags[i].word);
        arrived(a);
        show_in("receive", a, 100, flags[i].flag & ~MSG_ERRQUEUE);
        while (readable(a)) show_none("left", a);
    }
}
static void zerocopy(int fd) {
    static char bytes[20000];
    (void)fd;
    begin();
    say("set %s", outcome(set_at(a, SOL_SOCKET, SO_ZEROCOPY, 1)));
    fill(bytes, 7, sizeof bytes);
    say("%s", outcome(sendto(a, bytes, sizeof bytes, MSG_ZEROCOPY, (void *)&bn.at, bn.length)));
    b_show("came", 0);
    int shown;
    say("told of %d", pollx(a, POLLERR, PATIENCE_MS, &shown));
    show_in("done", a, 100, MSG_ERRQUEUE);
}
// A long talk of any size, an answer to each.
static int64_t do_echo(const struct order *o) {
    static char bytes[70000];
    for (int i = 0; i < o->number; i++) {
        struct whom whom = {.length = sizeof whom.at};
        ssize_t got = recvfrom(theirs[o->which], bytes, sizeof bytes, 0, (void *)&whom.at, &whom.length);
        if (got < 0 || sendto(theirs[o->which], bytes, got, 0, (void *)&whom.at, whom.length) != got) die("echo");
    }
    return 0;
}
static void echoes(int fd) {
    static char bytes[70000];
    (void)fd;
    begin();
    order(do_echo, (struct order){.number = 400});
    for (int i = 0; i < 400; i++) {
        int size = i % 3 ? chance(1500) : chance(65508);
        fill(bytes, i * 100, size);
        if (sendto(a, bytes, size, 0, (void *)&bn.at, bn.length) != size) die("send");
        struct whom whom = {.length = sizeof whom.at};
        ssize_t got = recvfrom(a, space, sizeof space, 0, (void *)&whom.at, &whom.length);
        if (got != size || memcmp(space, bytes, size)) die("echo %d of %d: %ld", i, size, (long)got);
        if (i % 50 == 0) say("%d from %s", size, who(whom));
    }
    say("done %ld", (long)hear());
}
static void at_offset(int fd) {
    char in[8] = "";
    struct iovec out = {"abc", 3}, part = {in, 7};
    (void)fd;
    begin_connected();
    say("pwritev2 %s", outcome(pwritev2(a, &out, 1, -1, 0)));
    b_show("came", 0);
    say("pwritev2 at 0 %s", outcome(pwritev2(a, &out, 1, 0, 0)));
    say("preadv2 %s", outcome(preadv2(a, &part, 1, -1, RWF_NOWAIT)));
    b_put(0, peer, "xyz");
    arrived(a);
    say("preadv2 %s", outcome(preadv2(a, &part, 1, -1, RWF_NOWAIT)));
    say("%s; pread %s, lseek %s", in, outcome(pread(a, in, 7, 0)), outcome(lseek(a, 0, SEEK_CUR)));
}
static void spliced(int fd) {
    int pipes[2], file = memfd_create("try", 0);
    (void)fd;
    begin_connected();
    if (pipe(pipes) || write(file, "from a file", 11) != 11) die("pipe");
    off_t at = 0;
    say("sendfile %s", outcome(sendfile(a, file, &at, 11)));
    b_show("came", 0);
    if (write(pipes[1], "piped", 5) != 5) die("write");
    say("splice %s", outcome(splice(pipes[0], NULL, a, NULL, 5, 0)));
    b_show("came", 0);
    b_put(0, peer, "to a pipe");
    arrived(a);
    say("splice from it %s", outcome(splice(a, NULL, pipes[1], NULL, 100, SPLICE_F_NONBLOCK)));
    show_all("left", a);
}

const struct test_case cases[] = {
#define ROW(call) CASE(received_by_##call),
    CALLS_THAT_RECEIVE(ROW)
#undef ROW
#define ROW(call) CASE(sent_by_##call),
    CALLS_THAT_SEND(ROW)
#undef ROW
    CASE(largest), CASE(cut), CASE(peek), CASE(peek_size), CASE(peek_offset), CASE(dontwait), CASE(waitall), CASE(empty),
    CASE(no_room), CASE(scattered), CASE(more), CASE(cork), CASE(odd_flags), CASE(zerocopy), CASE(echoes), CASE(at_offset),
    CASE(spliced),
    {0},
};
