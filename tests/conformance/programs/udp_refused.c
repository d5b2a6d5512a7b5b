// What ICMP tells of datagrams that found nobody: the error of a connected socket, and the queue of errors
// (man 7 udp, man 7 ip, IP_RECVERR).
#include "udp.h"

static struct whom none;
static int level_of_errors(void) { return is_six() ? SOL_IPV6 : SOL_IP; }
static int wants_errors(void) { return is_six() ? IPV6_RECVERR : IP_RECVERR; }

// A's socket has a peer, talked to it, and now sends to nobody.
static void refused(void) {
    int shown;
    begin();
    none = nobody('B');
    must_connect(a, none);
    put(a, peer, "to nobody");
    if (pollx(a, 0, PATIENCE_MS, &shown) != 1) die("no error comes");
}
#define REFUSED(call) \
    static void refused_##call(int fd) { \
        (void)fd; \
        refused(); \
        for (int i = 0; i < 2; i++) { \
            ssize_t got = by_##call(a, space, 100, MSG_DONTWAIT); \
            say(#call " %s", outcome(got)); \
            if (!i) nonblocking(a, 1); \
        } \
        say("error %s", socket_error(a)); \
    }
CALLS_THAT_RECEIVE(REFUSED)
#undef REFUSED
#define REFUSED(call) \
    static void refused_##call(int fd) { \
        (void)fd; \
        refused(); \
        say(#call " %s", outcome(by_##call(a, "x", 1, NULL))); \
        say("error %s", socket_error(a)); \
        must_connect(a, bn); \
        say("to somebody %s", outcome(by_##call(a, "x", 1, NULL))); \
        b_show("came, and only this", 0); \
        b_show_none("none", 0); \
    }
CALLS_THAT_SEND(REFUSED)
static void shows(int fd) {
    (void)fd;
    refused();
    show_poll("refused", a, ALL);
    show_poll("asked for nothing", a, 0);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(a, &in);
    fd_set out = in, bad = in;
    struct timeval no_time = {0};
    say("select %d, in %d", select(a + 1, &in, &out, &bad, &no_time), !!FD_ISSET(a, &in));
    say("out %d, except %d", !!FD_ISSET(a, &out), !!FD_ISSET(a, &bad));
    say("to read %d", queued(a, FIONREAD));
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, a, &event)) die("epoll_ctl");
    for (int i = 0; i < 2; i++) {
        int count = epoll_wait(epoll, &event, 1, 0);
        say("epoll %d %s", count, bits(count ? event.events : 0));
    }
    say("SO_ERROR %s", socket_error(a));
    say("again %s", socket_error(a));
    show_poll("then", a, ALL);
    put(a, peer, "once more");
    int count = epoll_wait(epoll, &event, 1, PATIENCE_MS);
    say("an edge %d %s", count, bits(event.events));
}
// The error comes before what lies in the queue.
static void before_data(int fd) {
    (void)fd;
    begin();
    b_put(0, an, "early");
    fence();
    must_connect(a, nobody('B'));
    put(a, peer, "to nobody");
    fence();
    show_poll("both", a, POLLIN);
    for (int i = 0; i < 3; i++) show_in("take", a, 100, MSG_DONTWAIT);
}
static void not_without_a_peer(int fd) {
    int shown;
    (void)fd;
    begin();
    none = nobody('B');
    put(a, none, "to nobody");
    fence();
    say("shown %d, error %s", pollx(a, POLLIN, 0, &shown), socket_error(a));
    show_none("nothing", a);
    put(a, bn, "to somebody");
    b_show("came", 0);
    must_connect(a, bn);
    say("sendto nobody %s", outcome(send_to(a, none, "x")));
    fence();
    say("that is not the peer's: %s", socket_error(a));
    show_none("nothing", a);
}
static void *sends_once_asleep(void *sleeper) {
    asleep(getpid(), *(pid_t *)sleeper);
    put(a, peer, "to nobody");
    return NULL;
}
static void wakes(int fd) {
    pthread_t thread;
    pid_t self = getpid();
    (void)fd;
    begin();
    must_connect(a, nobody('B'));
    pthread_create(&thread, NULL, sends_once_asleep, &self);
    show_in("woken", a, 100, 0);
    pthread_join(thread, NULL);
    int shown;
    pthread_create(&thread, NULL, sends_once_asleep, &self);
    int count = pollx(a, POLLIN, PATIENCE_MS, &shown);
    say("poll %d %s", count, bits(shown));
    pthread_join(thread, NULL);
}
// A peer that closes is gone for those who know it; whoever takes its port, is the peer.
static void peer_closes(int fd) {
    int shown;
    (void)fd;
    begin();
    struct whom at = b_open_at(1, spot('B', own_port("b1")));
    talk(a, an, 1, at);
    must_connect(a, at);
    b_put(1, an, "last words");
    b_close(1);
    put(a, peer, "to one who is gone");
    if (pollx(a, 0, PATIENCE_MS, &shown) != 1) die("no error comes");
    show_in("take", a, 100, MSG_DONTWAIT);
    show_in("take", a, 100, MSG_DONTWAIT);
    b_open_at(1, at);
    put(a, peer, "to the next");
    b_show("came", 1);
    b_put(1, an, "of the next");
    show("came", a);
}
static int64_t do_close_full(const struct order *o) {
    arrived(theirs[o->which]);
    return close(theirs[o->which]);
}
// What a peer has not read is lost without a word.
static void peer_closes_unread(int fd) {
    (void)fd;
    begin();
    struct whom at = b_open(1);
    talk(a, an, 1, at);
    must_connect(a, at);
    put(a, peer, "unread");
    ask(do_close_full, (struct order){.which = 1});
    fence();
    say("no word %s", socket_error(a));
    put(a, peer, "more");
    fence();
    say("now %s", socket_error(a));
}
static void several(int fd) {
    struct iovec part = {"x", 1};
    struct mmsghdr messages[4];
    (void)fd;
    refused();
    for (int i = 0; i < 4; i++) messages[i] = (struct mmsghdr){.msg_hdr = letter_of(&part, 1, NULL)};
    say("sendmmsg %s", outcome(sendmmsg(a, messages, 4, 0)));
    fence();
    say("error %s", socket_error(a));
    struct mmsghdr in[2] = {{.msg_hdr = {.msg_iov = &(struct iovec){space, 100}, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &(struct iovec){space, 100}, .msg_iovlen = 1}}};
    put(a, peer, "once more");
    fence();
    say("recvmmsg %s", outcome(recvmmsg(a, in, 2, MSG_DONTWAIT, NULL)));
    say("again %s", outcome(recvmmsg(a, in, 2, MSG_DONTWAIT, NULL)));
}

// --- the queue of errors ---

static void queue(int fd) {
    (void)fd;
    begin();
    set(a, level_of_errors(), wants_errors(), 1);
    none = nobody('B');
    put(a, none, "to nobody");
    fence();
    say("a send fails first: %s", outcome(send_to(a, none, "not sent")));
    put(a, none, "to nobody again");
    fence();
    say("whoever it is to: %s", outcome(send_to(a, bn, "not sent")));
    put(a, bn, "to somebody");
    put(a, none, "to nobody once more");
    fence();
    show_poll("errors", a, ALL);
    show_in("a receive fails first", a, 100, MSG_DONTWAIT);
    show_in("once", a, 100, MSG_DONTWAIT);
    show_in("error", a, 100, MSG_ERRQUEUE);
    show_in("error, cut", a, 5, MSG_ERRQUEUE);
    show_in("error", a, 100, MSG_ERRQUEUE);
    show_in("no more", a, 100, MSG_ERRQUEUE);
    show_poll("then", a, ALL);
    say("error %s", socket_error(a));
    b_show("came", 0);
}
static void queue_of_peer(int fd) {
    (void)fd;
    begin();
    set(a, level_of_errors(), wants_errors(), 1);
    must_connect(a, nobody('B'));
    put(a, peer, "one");
    fence();
    say("send %s", outcome(send(a, "two", 3, 0)));
    say("send %s", outcome(send(a, "three", 5, 0)));
    fence();
    show_in("error", a, 100, MSG_ERRQUEUE);
    show_poll("more of them", a, POLLIN);
    show_in("error", a, 100, MSG_ERRQUEUE | MSG_DONTWAIT);
    show_in("no more", a, 100, MSG_ERRQUEUE);
    say("error %s", socket_error(a));
}
static void queue_and_data(int fd) {
    (void)fd;
    begin();
    set(a, level_of_errors(), wants_errors(), 1);
    put(a, nobody('B'), "to nobody");
    b_put(0, an, "data");
    fence();
    show_poll("both", a, POLLIN);
    show_in("error", a, 100, MSG_ERRQUEUE);
    show_in("data", a, 100, MSG_DONTWAIT);
    show_in("none", a, 100, MSG_DONTWAIT);
    set(a, level_of_errors(), wants_errors(), 0);
    put(a, nobody('B'), "to nobody");
    fence();
    show_in("not any more", a, 100, MSG_ERRQUEUE);
}
// What is too long is told of by the queue as well.
static void queue_of_own(int fd) {
    static char out[70000];
    (void)fd;
    begin();
    set(a, level_of_errors(), wants_errors(), 1);
    say("too long %s", outcome(sendto(a, out, sizeof out, 0, (void *)&bn.at, bn.length)));
    int mtu_option = is_six() ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER;
    set(a, level_of_errors(), mtu_option, IP_PMTUDISC_DO);
    say("in one piece %s", outcome(sendto(a, out, 65507, 0, (void *)&bn.at, bn.length)));
    show_poll("then", a, ALL);
    for (int i = 0; i < 2; i++) show_in("error", a, 0, MSG_ERRQUEUE);
}
static void queue_without_asking(int fd) {
    (void)fd;
    refused();
    show_in("empty", a, 100, MSG_ERRQUEUE);
    say("error %s", socket_error(a));
}

const struct test_case cases[] = {
#define ROW(call) CASE(refused_##call),
    CALLS_THAT_RECEIVE(ROW) CALLS_THAT_SEND(ROW)
#undef ROW
    CASE(shows), CASE(before_data), CASE(not_without_a_peer), CASE(wakes), CASE(peer_closes), CASE(peer_closes_unread),
    CASE(several), CASE(queue), CASE(queue_of_peer), CASE(queue_and_data), CASE(queue_of_own), CASE(queue_without_asking),
    {0},
};
