// Many datagrams: in one call (man 2 sendmmsg, man 2 recvmmsg), in order, from several, and when there is no room.
#include "udp.h"

enum { MANY = 8, ROOM = 64 };
static struct mmsghdr messages[MANY];
static struct iovec parts[MANY];
static struct whom names[MANY];
static char bytes[MANY][ROOM];

static void clear(void) {
    memset(bytes, 0xa5, sizeof bytes);
    for (int i = 0; i < MANY; i++) {
        parts[i] = (struct iovec){bytes[i], ROOM};
        messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1, .msg_name = &names[i].at, .msg_namelen = sizeof names[i].at}, .msg_len = 77};
    }
}
static void show_many(const char *what, int count) {
    say("%s: %s", what, outcome(count));
    for (int i = 0; i < MANY; i++) {
        unsigned length = messages[i].msg_len;
        if (length == 77) continue; // nobody has written here
        names[i].length = messages[i].msg_hdr.msg_namelen;
        say("%d: %u %s from %s%s", i, length, content(bytes[i], length < parts[i].iov_len ? length : parts[i].iov_len), who(names[i]), flag_words(messages[i].msg_hdr.msg_flags));
    }
}
static void letters(int count) {
    for (char text[] = "a letter"; count--; text[0]++) b_put(0, an, text);
    fence();
}
static void take(const char *what, int count, int flags, long seconds, long nanoseconds) {
    struct timespec time = {seconds, nanoseconds};
    clear();
    show_many(what, recvmmsg(a, messages, count, flags, seconds < 0 ? NULL : &time));
    if (seconds >= 0) say("time left %d", time.tv_sec || time.tv_nsec);
}
static void takes_what_is_there(int fd) {
    (void)fd;
    begin();
    letters(3);
    take("five, not waiting", 5, MSG_DONTWAIT, -1, 0);
    take("none", 5, MSG_DONTWAIT, -1, 0);
    letters(3);
    take("two of three", 2, 0, -1, 0);
    take("one, waiting for one", 5, MSG_WAITFORONE, -1, 0);
    take("of no messages", 0, 0, -1, 0);
}
// The time is looked at after each datagram: one comes for no time at all.
static void takes_in_time(int fd) {
    (void)fd;
    begin();
    letters(4);
    take("for no time", 3, 0, 0, 0);
    take("for long", 3, 0, 20, 0);
    letters(2);
    take("for a negative time", 2, 0, 20, -1);
    take("for odd nanoseconds", 2, 0, 20, 1000000000);
    show_all("left", a);
}
static void takes_cut(int fd) {
    (void)fd;
    begin();
    letters(4);
    clear();
    for (int i = 0; i < 4; i++) parts[i].iov_len = i * 4;
    show_many("cut", recvmmsg(a, messages, 4, 0, NULL));
    letters(2);
    clear();
    for (int i = 0; i < 2; i++) parts[i].iov_len = 3;
    show_many("with MSG_TRUNC", recvmmsg(a, messages, 2, MSG_TRUNC, NULL));
    letters(2);
    take("looked at twice", 2, MSG_PEEK, -1, 0);
    show_all("left", a);
}
static void takes_and_waits(int fd) {
    (void)fd;
    begin();
    b_put_later(0, an, "late");
    take("waiting for one", 4, MSG_WAITFORONE, -1, 0);
    hear();
    letters(1);
    b_put_later(0, an, "last");
    take("one there, one late", 2, 0, -1, 0);
    hear();
    set_time(a, SO_RCVTIMEO, 30);
    letters(2);
    take("two, then the time-out", 4, 0, -1, 0);
    take("the time-out", 4, 0, -1, 0);
}
static int put_many(int count, const struct whom *to, const char *(*text_of)(int)) {
    for (int i = 0; i < count; i++) {
        parts[i] = (struct iovec){(void *)text_of(i), strlen(text_of(i))};
        messages[i] = (struct mmsghdr){.msg_hdr = letter_of(&parts[i], 1, to + (to->length ? i : 0)), .msg_len = 77};
    }
    int sent = sendmmsg(a, messages, count, 0);
    say("sent %s", outcome(sent));
    for (int i = 0; i < count; i++) say("%d: %u", i, messages[i].msg_len);
    return sent;
}
static const char *a_text(int i) {
    static const char *texts[] = {"zero", "", "two", "three", "four", "five", "six", "seven"};
    return texts[i];
}
static void gives_to_several(int fd) {
    struct whom to[MANY];
    (void)fd;
    begin();
    struct whom other = b_open(1);
    for (int i = 0; i < MANY; i++) to[i] = i % 3 ? bn : other;
    put_many(MANY, to, a_text);
    fence();
    for (int i = 0; i < MANY; i++) b_show(i % 3 ? "zero" : "one", i % 3 ? 0 : 1);
    must_connect(a, other);
    put_many(3, &peer, a_text);
    for (int i = 0; i < 3; i++) b_show("connected", 1);
    say("of none %s", outcome(sendmmsg(a, messages, 0, 0)));
}
static const char *too_long(int i) {
    static char text[70000];
    memset(text, 'x', sizeof text - 1);
    return i == 2 ? text : a_text(i);
}
// What fails in the middle is told of by the count, at the beginning by the error.
static void gives_a_part(int fd) {
    struct whom to[MANY];
    (void)fd;
    begin();
    for (int i = 0; i < MANY; i++) to[i] = bn;
    put_many(5, to, too_long);
    b_show("came", 0);
    b_show("came", 0);
    b_show_none("no more", 0);
    say("of that one %s", outcome(sendmmsg(a, messages + 2, 3, 0)));
    b_show_none("nothing", 0);
    say("error %s", socket_error(a));
    to[1].length = 3;
    put_many(3, to, a_text);
    b_show("came", 0);
    b_show_none("no more", 0);
}
static int64_t do_put_many(const struct order *o) {
    for (int i = 0; i < o->number; i++) {
        char text[sizeof o->text + 16];
        sprintf(text, "%s %d", o->text, i);
        put(theirs[o->which], o->whom, text);
    }
    return 0;
}
static void b_put_many(int which, struct whom to, const char *word, int count) {
    struct order with = letter(which, to, word);
    with.number = count;
    ask(do_put_many, with);
}
static void in_order(int fd) {
    (void)fd;
    begin();
    for (int round = 0; round < 5; round++) {
        b_put_many(0, an, "letter", 60);
        fence();
        show_all("in order", a);
    }
}
static int64_t do_put_by_turns(const struct order *o) {
    for (int i = 0; i < 40; i++) {
        char text[64];
        sprintf(text, "by %d, %d", i * 7 % o->number, i);
        put(theirs[i * 7 % o->number], o->whom, text);
    }
    return 0;
}
// Several sockets send to one: it has them as they were sent, whoever did it.
static void by_turns(int fd) {
    (void)fd;
    begin();
    for (int i = 1; i < 5; i++) talk(a, an, i, b_open(i));
    fence();
    for (int i = 1; i < 5; i++) ask(do_drain, (struct order){.which = i});
    for (int round = 0; round < 3; round++) {
        ask(do_put_by_turns, (struct order){.number = 5, .whom = an});
        fence();
        show_all("one", a);
    }
}
// One socket sends to several: each has its own, in order.
static void to_several(int fd) {
    int fds[4];
    (void)fd;
    begin();
    for (int i = 0; i < 4; i++) fds[i] = bound_for_both(spot('A', 0), "more");
    for (int round = 0; round < 10; round++)
        for (int i = 0; i < 4; i++) {
            char text[32];
            sprintf(text, "for %d, %d", i, round);
            b_put(0, name_of(fds[i]), text);
        }
    fence();
    for (int i = 3; i >= 0; i--) show_all("came", fds[i]);
    show_none("not here", a);
}
// What finds no room is lost: the newest, silently. What is there stays, and with room there is more.
static int prefix(const char *word, int from) {
    int next = 0;
    char right[64];
    for (; readable(from); next++) {
        ssize_t got = recv(from, space, sizeof space, MSG_DONTWAIT);
        int length = sprintf(right, "%s %d", word, next);
        if (got != length || memcmp(space, right, length)) die("after %d: %.*s", next, (int)got, space);
    }
    return next;
}
static void full(int fd) {
    (void)fd;
    begin();
    set(a, SOL_SOCKET, SO_RCVBUF, 8192);
    b_put_many(0, an, "first", 1000);
    fence();
    show_poll("full", a, ALL);
    say("to read %d, error %s", queued(a, FIONREAD), socket_error(a));
    int there = prefix("first", a);
    say("some %d, not all %d", there > 0, there < 1000);
    b_put_many(0, an, "second", 3);
    fence();
    say("then %d", prefix("second", a));
}
// The kernel counts a datagram by the memory that it takes.
static void full_count(int fd) {
    static const int sizes[] = {1, 100, 1000, 5000};
    (void)fd;
    begin();
    say("at first %d", get(a, SOL_SOCKET, SO_RCVBUF));
    for (size_t i = 0; i < COUNT(sizes); i++) {
        static const int rooms[] = {1, 5000, 40000};
        for (size_t k = 0; k < COUNT(rooms); k++) {
            set(a, SOL_SOCKET, SO_RCVBUF, rooms[k]);
            for (int n = 0; n < 120; n++) b_fill(0, an, n, sizes[i]);
            fence();
            int count = 0;
            while (recv(a, space, sizeof space, MSG_DONTWAIT) > 0) count++;
            say("%d of %d bytes into %d", count, sizes[i], get(a, SOL_SOCKET, SO_RCVBUF));
        }
    }
}
// Room comes back by reading; the receiver takes one, and one more fits.
static void full_moves(int fd) {
    (void)fd;
    begin();
    set(a, SOL_SOCKET, SO_RCVBUF, 4608);
    for (int i = 0; i < 60; i++) b_fill(0, an, i, 600);
    fence();
    int before = 0, after = 0;
    char byte;
    while (recv(a, &byte, 1, MSG_DONTWAIT) > 0) before++;
    for (int i = 0; i < 60; i++) b_fill(0, an, i, 600);
    fence();
    while (recv(a, &byte, 1, MSG_DONTWAIT) > 0) after++;
    say("as many as before %d", before == after && before > 0);
}
static void full_and_others(int fd) {
    (void)fd;
    begin();
    int other = bound_for_both(spot('A', 0), "other");
    set(a, SOL_SOCKET, SO_RCVBUF, 1);
    b_put_many(0, an, "full", 300);
    b_put(0, name_of(other), "for the other");
    fence();
    show("has room", other);
    say("sends, too: %s", outcome(send_to(a, bn, "out")));
    b_show("came", 0);
    say("full some %d", prefix("full", a) > 0);
}
// SO_RXQ_OVFL counts what was lost.
static void lost(int fd) {
    (void)fd;
    begin();
    set(a, SOL_SOCKET, SO_RXQ_OVFL, 1);
    set(a, SOL_SOCKET, SO_RCVBUF, 1);
    b_put(0, an, "before");
    fence();
    show("before", a);
    for (int i = 0; i < 50; i++) b_put(0, an, "x");
    fence();
    int count = 0;
    while (recv(a, space, sizeof space, MSG_DONTWAIT) > 0) count++;
    b_put(0, an, "after");
    arrived(a);
    char control[64];
    struct iovec part = {space, 100};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(a, &message, 0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    unsigned told = 0;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) memcpy(&told, CMSG_DATA(c), sizeof told);
    say("%s, told of all that were lost %d", content(space, got), (int)told == 50 - count && told > 0);
}
static void small_sndbuf(int fd) {
    static char out[65507];
    (void)fd;
    begin();
    set(a, SOL_SOCKET, SO_SNDBUF, 1);
    say("SO_SNDBUF %d", get(a, SOL_SOCKET, SO_SNDBUF));
    static const int sizes[] = {1, 4000, 5000, 20000, 65507};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        fill(out, i, sizes[i]);
        ssize_t sent = sendto(a, out, sizes[i], MSG_DONTWAIT, (void *)&bn.at, bn.length);
        say("%d: %s", sizes[i], outcome(sent));
        if (sent >= 0) b_show("came", 0);
    }
}
static void buffer_sizes(int fd) {
    static const int sizes[] = {0, 1, 1000, 2304, 4608, 100000, 200000, -1};
    (void)fd;
    begin();
    for (size_t i = 0; i < COUNT(sizes); i++) {
        say("%d: %s, %s", sizes[i], outcome(set_at(a, SOL_SOCKET, SO_RCVBUF, sizes[i])), outcome(set_at(a, SOL_SOCKET, SO_SNDBUF, sizes[i])));
        say("then %d, %d", get(a, SOL_SOCKET, SO_RCVBUF), get(a, SOL_SOCKET, SO_SNDBUF));
    }
}

const struct test_case cases[] = {
    CASE(takes_what_is_there), CASE(takes_in_time), CASE(takes_cut), CASE(takes_and_waits), CASE(gives_to_several),
    CASE(gives_a_part), CASE(in_order), CASE(by_turns), CASE(to_several), CASE(full), CASE(full_count), CASE(full_moves),
    CASE(full_and_others), CASE(lost), CASE(small_sndbuf), CASE(buffer_sizes),
    {0},
};
