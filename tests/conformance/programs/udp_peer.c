// Sockets that have a peer: connect, once and again, its end, and whose datagrams come in (man 7 udp, man 2 connect).
#include "udp.h"

static struct whom other;
static void begin_with_other(void) {
    begin();
    other = b_open(1);
    talk(a, an, 1, other);
    fence();
    ask(do_drain, (struct order){.which = 1});
}
static void filters(int fd) {
    (void)fd;
    begin_with_other();
    must_connect(a, bn);
    show_names("connected", a);
    b_put(1, an, "from another");
    b_put(0, an, "from the peer");
    fence();
    show_all("came", a);
    b_put(1, an, "from another");
    fence();
    show_poll("nothing shows", a, POLLIN);
    show_none("nothing", a);
}
static void queued_before(int fd) {
    (void)fd;
    begin_with_other();
    b_put(1, an, "early");
    b_put(0, an, "early, from the peer");
    fence();
    must_connect(a, bn);
    b_put(1, an, "late");
    b_put(0, an, "late, from the peer");
    fence();
    show_all("came", a);
}
static void connects_again(int fd) {
    (void)fd;
    begin_with_other();
    must_connect(a, bn);
    put(a, peer, "to 0");
    b_put(0, an, "of the first peer");
    fence();
    must_connect(a, other);
    show_names("again", a);
    put(a, peer, "to 1");
    b_put(0, an, "too late");
    b_put(1, an, "of the second peer");
    fence();
    b_show("0", 0);
    b_show("1", 1);
    show_all("came", a);
    say("to the same %s", outcome(connect_to(a, other)));
    put(a, peer, "still");
    b_show("1", 1);
}
static void lets_go(int fd) {
    (void)fd;
    begin_with_other();
    must_connect(a, bn);
    b_put(0, an, "early");
    fence();
    say("AF_UNSPEC %s", outcome(connect_to(a, unspec)));
    show_names("let go", a);
    b_put(1, an, "from another");
    b_put(0, an, "from the peer");
    fence();
    show_all("came", a);
    say("send %s", outcome(send(a, "x", 1, 0)));
    say("sendto %s", outcome(send_to(a, other, "to whom I like")));
    b_show("came", 1);
    say("twice %s", outcome(connect_to(a, unspec)));
    say("and again %s", outcome(connect_to(a, other)));
    show_names("again", a);
}
// What connect has chosen, its end takes back; what bind has, stays.
static void lets_go_of_its_name(int fd) {
    (void)fd;
    begin();
    int one = datagram(an.at.ss_family);
    show_names("new", one);
    must_connect(one, bn);
    both_call(port_of(name_of(one)), "chosen");
    show_names("connected", one);
    talk(one, name_of(one), 0, bn);
    say("AF_UNSPEC %s", outcome(connect_to(one, unspec)));
    show_names("let go", one);
    struct whom all = an;
    if (is_six()) ((struct sockaddr_in6 *)&all.at)->sin6_addr = in6addr_any;
    else ((struct sockaddr_in *)&all.at)->sin_addr.s_addr = INADDR_ANY;
    ((struct sockaddr_in *)&all.at)->sin_port = htons(own_port("wild"));
    int two = bound_for_both(all, "wild");
    must_connect(two, bn);
    show_names("connected", two);
    say("AF_UNSPEC %s", outcome(connect_to(two, unspec)));
    show_names("let go", two);
    b_put(0, spot('A', port_of(name_of(two))), "still there");
    show("came", two);
}
static void sends_elsewhere(int fd) {
    (void)fd;
    begin_with_other();
    must_connect(a, bn);
    say("sendto another %s", outcome(send_to(a, other, "to 1")));
    say("sendto the peer %s", outcome(send_to(a, bn, "to 0")));
    say("sendto nobody %s", outcome(sendto(a, "none", 4, 0, NULL, 0)));
    say("sendto nobody, with a length %s", outcome(sendto(a, "none", 4, 0, NULL, other.length)));
    say("sendto of no length %s", outcome(sendto(a, "null", 4, 0, (void *)&other.at, 0)));
    say("sendmsg %s", outcome(by_sendmsg(a, "message", 7, &other)));
    show_names("the peer stays", a);
    b_put(1, an, "an answer that is not let in");
    fence();
    show_all("came", a);
    for (int i = 0; i < 2; i++) b_show("1", 1);
    b_show("0", 0);
    ask(do_drain, (struct order){0});
}
static void no_peer(int fd) {
    static const struct { const char *call; sender *send_by; } calls[] = {
#define ROW(call) {#call, by_##call},
        CALLS_THAT_SEND(ROW)
#undef ROW
    };
    (void)fd;
    begin();
    for (size_t i = 0; i < COUNT(calls); i++) say("%s %s", calls[i].call, outcome(calls[i].send_by(a, "x", 1, NULL)));
    say("error %s", socket_error(a));
    show_poll("as before", a, ALL);
    int fresh = datagram(an.at.ss_family);
    say("of a new one %s", outcome(send(fresh, "x", 1, 0)));
    show_names("new", fresh);
}
static void names_itself(int fd) {
    (void)fd;
    begin();
    int one = datagram(an.at.ss_family);
    put(one, bn, "hello");
    both_call(port_of(name_of(one)), "chosen");
    b_show("came", 0);
    struct whom name = name_of(one);
    say("a name for good %d, port %d", name.length == an.length, port_of(name) != 0);
    show_names("after sendto", one);
    b_put(0, spot('A', port_of(name)), "an answer");
    show("came", one);
    say("bind %s", outcome(bind_to(one, spot('A', 0))));
    int two = datagram(an.at.ss_family);
    set_time(two, SO_RCVTIMEO, 1);
    show_in("of no name yet", two, 10, 0);
    show_names("after recv", two);
}
static void to_itself(int fd) {
    (void)fd;
    begin();
    must_connect(a, an);
    show_names("its own peer", a);
    for (char text[] = "1"; *text <= '5'; ++*text) put(a, peer, text);
    b_put(0, an, "not let in");
    fence();
    show_all("came", a);
}
static void two_of_one_process(int fd) {
    (void)fd;
    begin();
    int other_fd = bound(spot('A', 0), "other");
    must_connect(a, name_of(other_fd));
    must_connect(other_fd, an);
    for (int i = 0; i < 30; i++) {
        put(a, peer, "there");
        show("one way", other_fd);
        put(other_fd, peer, "and back");
        show("the other way", a);
    }
}
// The peer's peer is somebody else: what it sends is its own affair.
static void one_sided(int fd) {
    (void)fd;
    begin_with_other();
    b_connect(0, other); // of B itself
    must_connect(a, bn);
    put(a, peer, "not let in");
    b_show_none("0", 0);
    say("error %s", socket_error(a));
    b_put(0, an, "let in");
    show("came", a);
}
static void bad_names(int fd) {
    struct whom bad[8];
    (void)fd;
    begin();
    for (int i = 0; i < 8; i++) bad[i] = bn;
    bad[0].length = 1;
    bad[1].length = 8;
    bad[2].length = bn.length - 1;
    bad[3].length = 200;
    bad[4].at.ss_family = AF_UNIX;
    bad[5].at.ss_family = 200;
    ((struct sockaddr_in *)&bad[6].at)->sin_port = 0;
    bad[7].at.ss_family = AF_UNSPEC;
    for (int i = 0; i < 8; i++) {
        if (i != 3) say("%d: sendto %s, sendmsg %s", i, outcome(send_to(a, bad[i], "x")), outcome(by_sendmsg(a, "x", 1, &bad[i])));
        if (i != 7 && i != 3) say("%d: bind %s", i, outcome(bind_to(a, bad[i])));
        if (i != 7 && i != 3) say("%d: connect %s", i, outcome(connect_to(a, bad[i])));
        show_names("then", a);
        connect_to(a, unspec);
    }
    say("too long: %s", outcome(sendto(a, "x", 1, 0, (void *)&bad[3].at, 200)));
}
static void no_streams(int fd) {
    (void)fd;
    begin();
    say("listen %s, accept %s", outcome(listen(a, 5)), outcome(accept(a, NULL, NULL)));
    say("type %d, protocol %d, listens %d", get(a, SOL_SOCKET, SO_TYPE), get(a, SOL_SOCKET, SO_PROTOCOL), get(a, SOL_SOCKET, SO_ACCEPTCONN));
    say("domain as made %d", get(a, SOL_SOCKET, SO_DOMAIN) == an.at.ss_family);
    say("TCP_NODELAY %s, SO_LINGER %s", outcome(set_at(a, IPPROTO_TCP, 1, 1)), outcome(setsockopt(a, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger))));
    say("at the mark %s", outcome(sockatmark(a)));
    put(a, bn, "still well");
    b_show("came", 0);
}

// --- shutdown ---

static int piped;
static void on_pipe(int number) {
    (void)number;
    piped++;
}
static void no_more_sends(int fd) {
    (void)fd;
    begin_connected();
    signal(SIGPIPE, on_pipe);
    say("shutdown %s", outcome(shutdown(a, SHUT_WR)));
    say("send %s, SIGPIPE %d", outcome(send(a, "x", 1, 0)), piped);
    say("MSG_NOSIGNAL %s, SIGPIPE %d", outcome(send(a, "x", 1, MSG_NOSIGNAL)), piped);
    say("write %s, SIGPIPE %d", outcome(write(a, "x", 1)), piped);
    say("sendto %s, SIGPIPE %d", outcome(sendto(a, "x", 1, 0, (void *)&bn.at, bn.length)), piped);
    struct iovec part = {"x", 1};
    struct mmsghdr message = {.msg_hdr = letter_of(&part, 1, NULL)};
    say("sendmmsg %s, SIGPIPE %d", outcome(sendmmsg(a, &message, 1, 0)), piped);
    show_poll("shut", a, ALL);
    b_put(0, an, "still let in");
    show("came", a);
    b_show_none("the peer sees nothing", 0);
}
static void no_more_receives(int fd) {
    (void)fd;
    begin_connected();
    b_put(0, an, "early");
    b_put(0, an, "early too");
    fence();
    say("shutdown %s", outcome(shutdown(a, SHUT_RD)));
    show_poll("shut", a, ALL);
    for (int i = 0; i < 4; i++) show_in("take", a, 100, MSG_DONTWAIT);
    for (int i = 0; i < 2; i++) show_in("waiting", a, 100, 0);
    b_put(0, an, "late");
    fence();
    show_in("late", a, 100, 0);
    show_in("then", a, 100, 0);
    say("read %s", outcome(read(a, space, 100)));
    say("send %s", outcome(send(a, "out", 3, 0)));
    b_show("came", 0);
}
static void no_more_at_all(int fd) {
    (void)fd;
    begin_connected();
    say("oddly %s", outcome(shutdown(a, 7)));
    for (int i = 0; i < 2; i++) say("shutdown %s", outcome(shutdown(a, SHUT_RDWR)));
    show_poll("shut", a, ALL);
    show_in("take", a, 100, 0);
    say("send %s, error %s", outcome(send(a, "x", 1, MSG_NOSIGNAL)), socket_error(a));
    show_names("shut", a);
    say("connect again %s", outcome(connect_to(a, bn)));
    say("send %s", outcome(send(a, "x", 1, MSG_NOSIGNAL)));
    show_poll("then", a, ALL);
}
// Without a peer it fails, and has its effect all the same.
static void shut_without_a_peer(int fd) {
    (void)fd;
    begin();
    say("SHUT_RD %s", outcome(shutdown(a, SHUT_RD)));
    show_poll("then", a, ALL);
    show_in("take", a, 100, MSG_DONTWAIT);
    b_put(0, an, "late");
    fence();
    show_in("take", a, 100, MSG_DONTWAIT);
    say("SHUT_WR %s", outcome(shutdown(a, SHUT_WR)));
    say("send %s", outcome(sendto(a, "x", 1, MSG_NOSIGNAL, (void *)&bn.at, bn.length)));
    show_poll("then", a, ALL);
}
static void *shuts(void *sleeper) {
    asleep(getpid(), *(pid_t *)sleeper);
    if (shutdown(a, SHUT_RD)) die("shutdown");
    return NULL;
}
static void shut_wakes(int fd) {
    pthread_t thread;
    pid_t self = getpid();
    (void)fd;
    begin_connected();
    pthread_create(&thread, NULL, shuts, &self);
    show_in("woken", a, 100, 0);
    pthread_join(thread, NULL);
}

const struct test_case cases[] = {
    CASE(filters), CASE(queued_before), CASE(connects_again), CASE(lets_go), CASE(lets_go_of_its_name), CASE(sends_elsewhere),
    CASE(no_peer), CASE(names_itself), CASE(to_itself), CASE(two_of_one_process), CASE(one_sided), CASE(bad_names),
    CASE(no_streams), CASE(no_more_sends), CASE(no_more_receives), CASE(no_more_at_all), CASE(shut_without_a_peer),
    CASE(shut_wakes),
    {0},
};
