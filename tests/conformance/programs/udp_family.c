// Both families with one socket (man 7 ipv6: IPV6_V6ONLY), broadcast and groups (man 7 ip), all over loopback.
#include "udp.h"

static int dual, port;
static int six(int only) {
    int fd = datagram(AF_INET6);
    set(fd, SOL_IPV6, IPV6_V6ONLY, only);
    return fd;
}
// A's socket of both families at all addresses; B has one of each.
static void begin_dual(void) {
    begin();
    b_open_at(6, v6("::1", 0));
    port = own_port("dual");
    dual = six(0);
    if (bind_to(dual, v6("::", port))) die("bind");
}
static void takes_both(int fd) {
    (void)fd;
    begin_dual();
    show_names("wild", dual);
    // One after the other: between two senders there is no order.
    for (int i = 0; i < 6; i++) {
        b_put(i & 1 ? 6 : 0, i & 1 ? v6("::1", port) : v4("127.0.0.1", port), i & 1 ? "by six" : "by four");
        fence();
        show_all("came", dual);
    }
}
static void answers_both(int fd) {
    (void)fd;
    begin_dual();
    for (int i = 0; i < 6; i++) {
        struct whom from = {.length = sizeof from.at};
        b_put(i & 1 ? 0 : 6, i & 1 ? v4("127.0.0.1", port) : v6("::1", port), "a question");
        arrived(dual);
        recvfrom(dual, space, 100, 0, (void *)&from.at, &from.length);
        put(dual, from, "an answer");
        b_show("came", i & 1 ? 0 : 6);
    }
}
static void connects_to_mapped(int fd) {
    (void)fd;
    begin_dual();
    must_connect(dual, v6("::ffff:127.0.0.1", port_of(bn)));
    show_names("mapped", dual);
    put(dual, peer, "to four");
    b_show("came", 0);
    b_put(0, v4("127.0.0.1", port), "of the peer");
    b_put(6, v6("::1", port), "of another");
    fence();
    show_all("came", dual);
    say("to six %s", outcome(send_to(dual, v6("::1", port_of(bn)), "x")));
    say("AF_UNSPEC %s", outcome(connect_to(dual, unspec)));
    show_names("let go", dual);
    b_put(6, v6("::1", port), "of another");
    fence();
    show_all("came", dual);
}
static void name_of_four(int fd) {
    (void)fd;
    begin_dual();
    say("sendto %s", outcome(send_to(dual, v4("127.0.0.1", port_of(bn)), "four's name")));
    fence();
    ask(do_drain, (struct order){0});
    say("connect %s", outcome(connect_to(dual, v4("127.0.0.1", port_of(bn)))));
    show_names("then", dual);
    int four = datagram(AF_INET);
    say("six's name: sendto %s", outcome(send_to(four, v6("::1", port), "x")));
    say("connect %s, bind %s", outcome(connect_to(four, v6("::1", port))), outcome(bind_to(four, v6("::1", 0))));
    say("mapped: sendto %s", outcome(send_to(four, v6("::ffff:127.0.0.1", port), "x")));
}
static void six_only(int fd) {
    (void)fd;
    begin();
    b_open_at(6, v6("::1", 0));
    port = own_port("six");
    int only = six(1);
    if (bind_to(only, v6("::", port))) die("bind");
    b_connect(0, v4("127.0.0.1", port));
    b_put(0, peer, "nobody is there");
    b_put(6, v6("::1", port), "by six");
    fence();
    show_all("came", only);
    b_show_none("refused", 0);
    say("to four %s", outcome(send_to(only, v6("::ffff:127.0.0.1", port_of(bn)), "x")));
    say("connect to four %s", outcome(connect_to(only, v6("::ffff:127.0.0.1", port_of(bn)))));
    say("too late %s", outcome(set_at(only, SOL_IPV6, IPV6_V6ONLY, 0)));
    say("bind to four %s", outcome(bind_to(six(1), v6("::ffff:127.0.0.1", port + 1))));
}
static void side_by_side(int fd) {
    (void)fd;
    begin();
    b_open_at(6, v6("::1", 0));
    port = own_port("both");
    for (int only = 0; only < 2; only++) {
        int one = six(only), four = datagram(AF_INET);
        if (bind_to(one, v6("::", port))) die("bind");
        int result = bind_to(four, v4("0.0.0.0", port));
        say("only %d: four %s", only, outcome(result));
        if (!result) {
            b_put(0, v4("127.0.0.1", port), "by four");
            b_put(6, v6("::1", port), "by six");
            fence();
            show_all("four", four);
            show_all("six", one);
        }
        close(one);
        close(four);
    }
    int mapped = six(0);
    say("mapped %s", outcome(bind_to(mapped, v6("::ffff:127.0.0.1", port))));
    show_names("is", mapped);
    b_put(0, v4("127.0.0.1", port), "by four");
    show("came", mapped);
    put(mapped, v6("::ffff:127.0.0.1", port_of(bn)), "an answer");
    b_show("came", 0);
    say("to six %s", outcome(send_to(mapped, v6("::1", port), "x")));
}
static void four_before_dual(int fd) {
    (void)fd;
    begin();
    b_open_at(6, v6("::1", 0));
    port = own_port("both");
    int one = six(0), four = datagram(AF_INET);
    set(one, SOL_SOCKET, SO_REUSEADDR, 1);
    set(four, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind_to(one, v6("::", port)) || bind_to(four, v4("0.0.0.0", port))) die("bind");
    for (int round = 0; round < 2; round++) {
        // One after the other: between two senders there is no order.
        b_put(0, v4("127.0.0.1", port), "by four");
        fence();
        show_all("to four", round ? one : four);
        b_put(6, v6("::1", port), "by six");
        fence();
        show_all("to six", one);
        if (!round) close(four);
    }
}
static void sixes(int fd) {
    (void)fd;
    begin();
    struct whom other = b_open_at(6, v6("::1", 0));
    int one = bound_for_both(v6("::1", 0), "one");
    talk(one, name_of(one), 6, other);
    fence();
    ask(do_drain, (struct order){.which = 6});
    must_connect(one, other);
    show_names("connected", one);
    static char bytes[65528];
    static const int sizes[] = {0, 1, 1500, 65507, 65508, 65527, 65528};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        fill(bytes, i, sizes[i]);
        ssize_t sent = send(one, bytes, sizes[i], 0);
        say("%d: %s", sizes[i], outcome(sent));
        if (sent >= 0) b_show("came", 6);
    }
    b_close(6);
    put(one, peer, "to nobody");
    fence();
    say("error %s", socket_error(one));
    struct whom scoped = v6("::1", port_of(bn));
    ((struct sockaddr_in6 *)&scoped.at)->sin6_scope_id = 77;
    ((struct sockaddr_in6 *)&scoped.at)->sin6_flowinfo = htonl(0x12345);
    say("with a scope %s", outcome(send_to(one, scoped, "x")));
    struct whom old = v6("::1", port_of(bn));
    old.length = 24;
    say("of RFC 2133 %s", outcome(connect_to(one, old)));
}

// --- broadcast ---

static void broadcast(int fd) {
    (void)fd;
    begin();
    port = own_port("port");
    int wild = bound(v4("0.0.0.0", port), "port"), out = datagram(AF_INET);
    both_call(port, "port");
    say("not asked for: sendto %s", outcome(send_to(out, v4("127.255.255.255", port), "x")));
    say("connect %s", outcome(connect_to(out, v4("127.255.255.255", port))));
    say("to all %s", outcome(send_to(out, v4("255.255.255.255", port), "x")));
    fence();
    show_none("nothing", wild);
    set(out, SOL_SOCKET, SO_BROADCAST, 1);
    say("asked for %s", outcome(send_to(out, v4("127.255.255.255", port), "to everybody")));
    both_call(port_of(name_of(out)), "out");
    show("came", wild);
    say("connect %s", outcome(connect_to(out, v4("127.255.255.255", port))));
    say("send %s", outcome(send(out, "by the peer", 11, 0)));
    show("came", wild);
    b_put(0, v4("127.0.0.1", port_of(name_of(out))), "an answer that is not of that address");
    fence();
    show_none("nothing", out);
    set(out, SOL_SOCKET, SO_BROADCAST, 0);
    say("not any more %s", outcome(send(out, "x", 1, 0)));
    fence();
    show_all("came", wild);
}
// Each socket of the port has it that may: those of all addresses, and of that one.
static void broadcast_to_several(int fd) {
    static const char *names[] = {"0.0.0.0", "0.0.0.0", "127.255.255.255", "127.0.0.1"};
    int fds[4];
    (void)fd;
    begin();
    port = own_port("port");
    for (int i = 0; i < 4; i++) {
        fds[i] = datagram(AF_INET);
        set(fds[i], SOL_SOCKET, SO_REUSEADDR, 1);
        if (bind_to(fds[i], v4(names[i], port))) die("bind");
    }
    b_set(0, SOL_SOCKET, SO_BROADCAST, 1);
    b_put(0, v4("127.255.255.255", port), "to everybody");
    b_put(0, v4("127.0.0.1", port), "to one");
    fence();
    for (int i = 0; i < 4; i++) show_all(names[i], fds[i]);
}

// --- groups ---

static int member_of(int join, int fd, const char *group) {
    struct ip_mreqn request = {.imr_ifindex = 1}; // loopback's, which every network has first
    inet_pton(AF_INET, group, &request.imr_multiaddr);
    return setsockopt(fd, SOL_IP, join ? IP_ADD_MEMBERSHIP : IP_DROP_MEMBERSHIP, &request, sizeof request);
}
static int64_t do_by_loopback(const struct order *o) {
    struct ip_mreqn request = {.imr_ifindex = 1};
    if (setsockopt(theirs[o->which], SOL_IP, IP_MULTICAST_IF, &request, sizeof request)) die("IP_MULTICAST_IF");
    return 0;
}
static int fds[3];
static void begin_group(void) {
    begin();
    port = own_port("group");
    sprintf(own_group, "239.%d.%d.%d", getpid() >> 16 & 255, getpid() >> 8 & 255, getpid() & 255);
    for (int i = 0; i < 3; i++) {
        fds[i] = datagram(AF_INET);
        set(fds[i], SOL_SOCKET, SO_REUSEADDR, 1);
        if (bind_to(fds[i], v4("0.0.0.0", port))) die("bind");
    }
    ask(do_by_loopback, (struct order){0});
}
static void to_group(const char *group, const char *what) {
    b_put(0, v4(group, port), what);
    fence();
    for (int i = 0; i < 3; i++) {
        char text[16];
        sprintf(text, "%d", i);
        show_all(text, fds[i]);
    }
}
static void groups(int fd) {
    (void)fd;
    begin_group();
    to_group(own_group, "nobody is in it");
    for (int i = 0; i < 2; i++) say("join %s", outcome(member_of(1, fds[0], own_group)));
    for (int i = 0; i < 3; i++) set(fds[i], SOL_IP, IP_MULTICAST_ALL, 0);
    to_group(own_group, "for one");
    say("join %s", outcome(member_of(1, fds[2], own_group)));
    to_group(own_group, "for two");
    to_group("238.5.6.8", "for another group");
    set(fds[1], SOL_IP, IP_MULTICAST_ALL, 1);
    to_group(own_group, "for two, and one who takes all");
    for (int i = 0; i < 2; i++) say("leave %s", outcome(member_of(0, fds[0], own_group)));
    to_group(own_group, "for one, and one who takes all");
    close(fds[2]);
    fds[2] = datagram(AF_INET);
    to_group(own_group, "nobody is in it");
    say("no group %s", outcome(member_of(1, fds[0], "127.0.0.1")));
}
// Whether a sender's own host hears it, and how far it goes.
static void group_loop(int fd) {
    (void)fd;
    begin_group();
    for (int i = 0; i < 2; i++) member_of(1, fds[i], own_group);
    b_set(0, SOL_IP, IP_MULTICAST_TTL, 3);
    set(fds[0], SOL_IP, IP_RECVTTL, 1);
    set(fds[1], SOL_IP, IP_PKTINFO, 1);
    to_group(own_group, "heard");
    b_set(0, SOL_IP, IP_MULTICAST_LOOP, 0);
    to_group(own_group, "perhaps not heard");
    b_set(0, SOL_IP, IP_MULTICAST_LOOP, 1);
    b_connect(0, v4(own_group, port));
    b_put(0, peer, "by the peer");
    fence();
    for (int i = 0; i < 3; i++) show_all("came", fds[i]);
    b_put(0, v4("127.0.0.1", port), "to one of them");
    fence();
    for (int i = 0; i < 3; i++) show_all("came", fds[i]);
}
static void group_name(int fd) {
    (void)fd;
    begin_group();
    int own = datagram(AF_INET);
    set(own, SOL_SOCKET, SO_REUSEADDR, 1);
    say("bind %s", outcome(bind_to(own, v4(own_group, port))));
    say("join %s", outcome(member_of(1, own, own_group)));
    to_group(own_group, "to the group");
    b_put(0, v4("127.0.0.1", port), "not to the group");
    fence();
    show_all("the group's own", own);
    for (int i = 0; i < 3; i++) show_all("came", fds[i]);
}
static int64_t do_put_anyhow(const struct order *o) {
    say("send %s", outcome(send_to(theirs[o->which], o->whom, o->text)));
    return 0;
}
static int64_t do_six_by_loopback(const struct order *o) {
    set(theirs[o->which], SOL_IPV6, IPV6_MULTICAST_IF, 1);
    return 0;
}
static void group_six(int fd) {
    (void)fd;
    begin();
    port = own_port("group");
    b_open_at(6, v6("::1", 0));
    ask(do_six_by_loopback, (struct order){.which = 6});
    for (int i = 0; i < 3; i++) {
        fds[i] = six(1);
        set(fds[i], SOL_SOCKET, SO_REUSEADDR, 1);
        if (bind_to(fds[i], v6("::", port))) die("bind");
    }
    struct ipv6_mreq request = {.ipv6mr_interface = 1};
    inet_pton(AF_INET6, "ff01::77", &request.ipv6mr_multiaddr);
    for (int round = 0; round < 4; round++) {
        ssize_t result = 0;
        if (round == 1 || round == 2) result = setsockopt(fds[round], SOL_IPV6, IPV6_JOIN_GROUP, &request, sizeof request);
        if (round == 3) result = setsockopt(fds[1], SOL_IPV6, IPV6_LEAVE_GROUP, &request, sizeof request);
        for (int i = 0; round < 1 && i < 3; i++) set(fds[i], SOL_IPV6, IPV6_MULTICAST_ALL, 0);
        say("round %d: %s", round, outcome(result));
        // Loopback has a route for groups of IPv6 in few networks.
        ask(do_put_anyhow, letter(6, v6("ff01::77", port), "to the group"));
        fence();
        for (int i = 0; i < 3; i++) show_all("came", fds[i]);
    }
}

const struct test_case cases[] = {
    CASE(takes_both), CASE(answers_both), CASE(connects_to_mapped), CASE(name_of_four), CASE(six_only), CASE(side_by_side),
    CASE(four_before_dual), CASE(sixes), CASE(broadcast), CASE(broadcast_to_several), CASE(groups), CASE(group_loop),
    CASE(group_name), CASE(group_six),
    {0},
};
