// What goes beside a datagram: addresses, hops, service, times (man 7 ip, man 7 ipv6, man 7 socket), and segments
// (man 7 udp). Over loopback of both families.
#include "udp.h"

static struct whom six_a, six_b; // A's socket s, B's socket 1
static int s;
static void begin_six(void) {
    begin();
    six_b = b_open_at(1, v6("::1", 0));
    s = bound_for_both(v6("::1", 0), "six");
    six_a = name_of(s);
    talk(s, six_a, 1, six_b);
    fence();
    ask(do_drain, (struct order){.which = 1});
}
static void one_more(const char *what) {
    b_put(0, an, "four");
    show(what, a);
}
static void one_more_six(const char *what) {
    b_put(1, six_a, "six");
    show(what, s);
}
// A message with one piece of control data.
static ssize_t send_with(int fd, struct whom to, const void *bytes, size_t count, int level, int type, const void *data, size_t size) {
    char control[128] __attribute__((aligned(8))) = {0};
    struct iovec part = {(void *)bytes, count};
    struct msghdr message = letter_of(&part, 1, &to);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(size), .cmsg_level = level, .cmsg_type = type};
    memcpy(CMSG_DATA(c), data, size);
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}
static ssize_t send_value(int fd, struct whom to, int level, int type, int value) {
    return send_with(fd, to, "with", 4, level, type, &value, sizeof value);
}

static void packet_info(int fd) {
    (void)fd;
    begin();
    int wild = bound_for_both(v4("0.0.0.0", 0), "wild");
    set(wild, SOL_IP, IP_PKTINFO, 1);
    static const char *names[] = {"127.0.0.1", "127.0.0.2", "127.1.2.3"};
    for (int i = 0; i < 3; i++) {
        b_put(0, v4(names[i], port_of(name_of(wild))), names[i]);
        show("came", wild);
    }
    set(a, SOL_IP, IP_PKTINFO, 1);
    one_more("bound");
    must_connect(a, bn);
    one_more("connected");
    set(a, SOL_IP, IP_PKTINFO, 0);
    one_more("not any more");
}
static void sent_from(int fd) {
    (void)fd;
    begin();
    int wild = bound_for_both(v4("0.0.0.0", 0), "wild");
    static const char *names[] = {"127.0.0.5", "127.0.0.6", "0.0.0.0", "192.0.2.1"};
    for (size_t i = 0; i < COUNT(names); i++) {
        struct in_pktinfo info = {0};
        inet_pton(AF_INET, names[i], &info.ipi_spec_dst);
        ssize_t sent = send_with(wild, bn, names[i], 9, SOL_IP, IP_PKTINFO, &info, sizeof info);
        say("from %s: %s", names[i], outcome(sent));
        if (sent > 0) b_show("came", 0);
    }
    struct in_pktinfo info = {.ipi_ifindex = 12345};
    say("from no device: %s", outcome(send_with(wild, bn, "x", 1, SOL_IP, IP_PKTINFO, &info, sizeof info)));
}
static void packet_info_six(int fd) {
    (void)fd;
    begin_six();
    int wild = bound_for_both(v6("::", 0), "wild");
    set(wild, SOL_IPV6, IPV6_RECVPKTINFO, 1);
    b_put(1, v6("::1", port_of(name_of(wild))), "by six");
    show("came", wild);
    b_put(0, v4("127.0.0.4", port_of(name_of(wild))), "by four");
    show("came", wild);
    set(s, SOL_IPV6, IPV6_RECVPKTINFO, 1);
    one_more_six("bound");
    struct in6_pktinfo info = {.ipi6_addr = in6addr_loopback};
    say("from ::1 %s", outcome(send_with(wild, six_b, "from", 4, SOL_IPV6, IPV6_PKTINFO, &info, sizeof info)));
    b_show("came", 1);
    info.ipi6_addr.s6_addr[3] = 9;
    say("from elsewhere %s", outcome(send_with(wild, six_b, "from", 4, SOL_IPV6, IPV6_PKTINFO, &info, sizeof info)));
}
static void hops(int fd) {
    (void)fd;
    begin_six();
    set(a, SOL_IP, IP_RECVTTL, 1);
    set(s, SOL_IPV6, IPV6_RECVHOPLIMIT, 1);
    one_more("as ever");
    one_more_six("as ever");
    b_set(0, SOL_IP, IP_TTL, 7);
    b_set(1, SOL_IPV6, IPV6_UNICAST_HOPS, 9);
    one_more("set");
    one_more_six("set");
    b_set(0, SOL_IP, IP_TTL, 1);
    one_more("one");
    b_set(0, SOL_IP, IP_TTL, -1);
    one_more("as ever");
    say("IP_TTL %d, 0 %s, 256 %s", get(a, SOL_IP, IP_TTL), outcome(set_at(a, SOL_IP, IP_TTL, 0)), outcome(set_at(a, SOL_IP, IP_TTL, 256)));
}
static void hops_of_one(int fd) {
    (void)fd;
    begin_six();
    b_set(0, SOL_IP, IP_RECVTTL, 1);
    b_set(1, SOL_IPV6, IPV6_RECVHOPLIMIT, 1);
    static const int values[] = {1, 33, 255, 256, -1, 0};
    for (size_t i = 0; i < COUNT(values); i++) {
        ssize_t four = send_value(a, bn, SOL_IP, IP_TTL, values[i]), six = send_value(s, six_b, SOL_IPV6, IPV6_HOPLIMIT, values[i]);
        say("%d: %s, %s", values[i], outcome(four), outcome(six));
        if (four > 0) b_show("four", 0);
        if (six > 0) b_show("six", 1);
    }
    put(a, bn, "as ever");
    b_show("four", 0);
}
static void service(int fd) {
    (void)fd;
    begin_six();
    set(a, SOL_IP, IP_RECVTOS, 1);
    set(s, SOL_IPV6, IPV6_RECVTCLASS, 1);
    one_more("as ever");
    one_more_six("as ever");
    b_set(0, SOL_IP, IP_TOS, 0x10);
    b_set(1, SOL_IPV6, IPV6_TCLASS, 0x20);
    one_more("set");
    one_more_six("set");
    b_set(0, SOL_IP, IP_TOS, 0xb9);
    one_more("with bits of ECN");
    b_set(0, SOL_IP, IP_RECVTOS, 1);
    b_set(1, SOL_IPV6, IPV6_RECVTCLASS, 1);
    say("%s, %s", outcome(send_value(a, bn, SOL_IP, IP_TOS, 0x28)), outcome(send_value(s, six_b, SOL_IPV6, IPV6_TCLASS, 0x3c)));
    b_show("of one", 0);
    b_show("of one", 1);
    put(a, bn, "as ever");
    b_show("four", 0);
    say("too large %s", outcome(send_value(a, bn, SOL_IP, IP_TOS, 256)));
}
static void times(int fd) {
    (void)fd;
    begin_six();
    for (int i = 0; i < 2; i++) {
        set(a, SOL_SOCKET, i ? SO_TIMESTAMPNS : SO_TIMESTAMP, 1);
        set(s, SOL_SOCKET, i ? SO_TIMESTAMPNS : SO_TIMESTAMP, 1);
        one_more("time");
        one_more_six("time");
        show_none("none", a);
    }
    say("SO_TIMESTAMP %d, SO_TIMESTAMPNS %d", get(a, SOL_SOCKET, SO_TIMESTAMP), get(a, SOL_SOCKET, SO_TIMESTAMPNS));
    set(a, SOL_SOCKET, SO_TIMESTAMPNS, 0);
    one_more("not any more");
}
// The one that came later came no earlier, and none before it was sent.
static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}
static int64_t time_told(void) {
    char control[64];
    struct timespec told;
    struct iovec part = {space, 100};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(a, &message, MSG_DONTWAIT) != 3 || !CMSG_FIRSTHDR(&message)) die("receive");
    memcpy(&told, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof told);
    return told.tv_sec * 1000000000ll + told.tv_nsec;
}
static void times_grow(int fd) {
    int64_t before, there, one, two;
    (void)fd;
    begin();
    set(a, SOL_SOCKET, SO_TIMESTAMPNS, 1);
    // The kernel begins to note when a datagram comes a while after a socket of the host has asked: on a busy host
    // that was seconds. Till then the time is that of the read. Either is right, but not one of each.
    for (int round = 0; round < 200; round++) {
        before = now_ns();
        b_put(0, an, "one");
        b_put(0, an, "two");
        fence();
        there = now_ns();
        usleep(1000);
        one = time_told(), two = time_told();
        if (one <= there) break;
    }
    say("in order %d, not before it was sent %d, not in the future %d", one <= two, before <= one, two <= now_ns());
    struct timeval last;
    say("SIOCGSTAMP %s", outcome(ioctl(a, SIOCGSTAMP, &last)));
}
static void where_to(int fd) {
    (void)fd;
    begin();
    set(a, SOL_IP, IP_RECVORIGDSTADDR, 1);
    one_more("first to");
    b_fill(0, an, 1, 3000);
    show("longer", a);
}
// All at once, in the kernel's order; and looked at, cut, by the other calls.
static void all_at_once(int fd) {
    (void)fd;
    begin();
    set(a, SOL_IP, IP_RECVTOS, 1);
    set(a, SOL_IP, IP_PKTINFO, 1);
    set(a, SOL_IP, IP_RECVORIGDSTADDR, 1);
    set(a, SOL_SOCKET, SO_TIMESTAMP, 1);
    set(a, SOL_IP, IP_RECVTTL, 1);
    one_more("all");
    b_put(0, an, "x");
    arrived(a);
    show_in("looked at", a, 10, MSG_PEEK);
    show_in("taken", a, 10, 0);
    for (int room = 0; room < 130; room += 10) {
        b_put(0, an, "cut");
        arrived(a);
        char what[32];
        sprintf(what, "room for %d", room);
        show_room(what, a, 100, 0, room);
    }
    b_put(0, an, "by recvfrom");
    arrived(a);
    say("%s", outcome(by_recvfrom(a, space, 100, 0)));
    for (int i = 0; i < 3; i++) b_put(0, an, "several");
    fence();
    struct mmsghdr messages[3];
    static char control[3][256] __attribute__((aligned(8)));
    static unsigned char bytes[3][64];
    struct iovec parts[3];
    struct whom names[3];
    memset(bytes, 0xa5, sizeof bytes);
    for (int i = 0; i < 3; i++) {
        parts[i] = (struct iovec){bytes[i], 40};
        messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1, .msg_control = control[i], .msg_controllen = i * 60, .msg_name = &names[i].at, .msg_namelen = sizeof names[i].at}};
    }
    say("recvmmsg %s", outcome(recvmmsg(a, messages, 3, 0, NULL)));
    for (int i = 0; i < 3; i++) say_message("one", messages[i].msg_len, &messages[i].msg_hdr);
}
static void bad_control(int fd) {
    (void)fd;
    begin();
    int value = 1;
    say("another type %s", outcome(send_with(a, bn, "another", 7, SOL_IP, 99, &value, sizeof value)));
    say("another level %s", outcome(send_with(a, bn, "level", 5, 77, 1, &value, sizeof value)));
    say("of IPv6 %s", outcome(send_with(a, bn, "six", 3, SOL_IPV6, IPV6_HOPLIMIT, &value, sizeof value)));
    say("too short %s", outcome(send_with(a, bn, "short", 5, SOL_IP, IP_TTL, &value, 1)));
    say("rights %s", outcome(send_with(a, bn, "rights", 6, SOL_SOCKET, SCM_RIGHTS, &value, sizeof value)));
    char odd[32] __attribute__((aligned(8))) = {0};
    struct iovec part = {"odd", 3};
    struct msghdr message = letter_of(&part, 1, &bn);
    message.msg_control = odd;
    message.msg_controllen = 32;
    for (int length = 0; length < 60; length += 15) {
        ((struct cmsghdr *)(void *)odd)->cmsg_len = length;
        say("of length %d %s", length, outcome(sendmsg(a, &message, 0)));
    }
    fence();
    put(a, bn, "end");
    for (int i = 0; i < 3; i++) b_show("came", 0);
    ask(do_drain, (struct order){0});
}

// A length of which the upper half counts, too; where libc is musl, that half is padding.
static void long_control(int fd) {
    (void)fd;
    begin();
    char odd[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec part = {"odd", 3};
    struct msghdr message = letter_of(&part, 1, &bn);
    message.msg_control = odd;
    message.msg_controllen = sizeof odd;
    *(struct cmsghdr *)(void *)odd = (struct cmsghdr){.cmsg_level = SOL_IP, .cmsg_type = IP_TOS};
    for (uint64_t high = 0; high < 3; high++) {
        uint64_t length = high << 32 | CMSG_LEN(sizeof(int));
        memcpy(odd, &length, sizeof length);
        say("%d and more %s", (int)high, outcome(sendmsg(a, &message, 0)));
        fence();
        say("%d came", (int)ask(do_drain, (struct order){0}));
    }
}
// A message that cannot be written is left out, and the datagram comes all the same.
static void room_that_ends(int fd) {
    (void)fd;
    begin();
    int of_both = bound_for_both(spot('A', 0), "told");
    struct whom name = name_of(of_both);
    set(of_both, SOL_IP, IP_PKTINFO, 1);
    set(of_both, SOL_IP, IP_RECVTTL, 1);
    for (int i = 0; i < 20; i++) {
        b_put(0, name, "first");
        arrived(of_both);
        show_in("first", of_both, 100, 0);
        put(of_both, bn, "x");
        usleep(700);
    }
    long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE)) die("pages");
    for (int can = 0; can <= 72; can += 4) {
        char bytes[16];
        struct iovec part = {bytes, sizeof bytes};
        struct whom from = {0};
        struct msghdr message = {.msg_name = &from.at, .msg_namelen = sizeof from.at, .msg_iov = &part, .msg_iovlen = 1,
                                 .msg_control = pages + page - can, .msg_controllen = 72};
        b_put(0, name, "odd");
        arrived(of_both);
        ssize_t got = recvmsg(of_both, &message, 0);
        say("%d: %s, %d of control%s", can, outcome(got), (int)message.msg_controllen, flag_words(message.msg_flags));
    }
    show_none("no more", of_both);
}

// --- segments ---

static char long_one[60000];
static int64_t do_show_several(const struct order *o) {
    for (int i = 0; i < o->number; i++) show(o->text, theirs[o->which]);
    return 0;
}
static void b_show_several(const char *what, int count) {
    struct order with = letter(0, peer, what);
    with.number = count;
    ask(do_show_several, with);
    b_show_none("no more", 0);
}
// One call, several datagrams.
static void segments(int fd) {
    static const struct { int size, count; } rows[] = {{1000, 3000}, {1000, 3001}, {1000, 999}, {1000, 1000}, {1400, 50000}, {500, 32000}, {500, 32001},
                                                       {1, 10}, {1, 70}, {30000, 60000}, {0, 2000}, {1472, 4000}};
    (void)fd;
    begin();
    fill(long_one, 0, sizeof long_one);
    for (size_t i = 0; i < COUNT(rows); i++) {
        say("set %d %s", rows[i].size, outcome(set_at(a, IPPROTO_UDP, UDP_SEGMENT, rows[i].size)));
        ssize_t sent = sendto(a, long_one, rows[i].count, 0, (void *)&bn.at, bn.length);
        say("%d in pieces of %d: %s", rows[i].count, get(a, IPPROTO_UDP, UDP_SEGMENT), outcome(sent));
        if (sent > 0) b_show_several("piece", rows[i].size ? (rows[i].count + rows[i].size - 1) / rows[i].size : 1);
    }
    say("too large %s, below nothing %s", outcome(set_at(a, IPPROTO_UDP, UDP_SEGMENT, 70000)), outcome(set_at(a, IPPROTO_UDP, UDP_SEGMENT, -1)));
}
static void segments_of_one(int fd) {
    (void)fd;
    begin();
    fill(long_one, 3, sizeof long_one);
    static const uint16_t sizes[] = {600, 1000, 2500, 5000};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        say("%s", outcome(send_with(a, bn, long_one, 2500, SOL_UDP, UDP_SEGMENT, &sizes[i], sizeof sizes[i])));
        b_show_several("piece", (2500 + sizes[i] - 1) / sizes[i]);
    }
    put(a, bn, "whole");
    b_show_several("whole", 1);
    int size = 600;
    say("of a wrong size %s", outcome(send_with(a, bn, long_one, 2500, SOL_UDP, UDP_SEGMENT, &size, sizeof size)));
}
// A receiver that asks for it has the pieces in one, with their size.
static void together(int fd) {
    static const struct { int size, count; } rows[] = {{1000, 3000}, {1000, 2500}, {1000, 1000}, {1000, 1001}, {1400, 50000}, {0, 2000}};
    (void)fd;
    begin();
    b_set(0, IPPROTO_UDP, UDP_GRO, 1);
    fill(long_one, 5, sizeof long_one);
    for (size_t i = 0; i < COUNT(rows); i++) {
        set(a, IPPROTO_UDP, UDP_SEGMENT, rows[i].size);
        say("%s", outcome(sendto(a, long_one, rows[i].count, 0, (void *)&bn.at, bn.length)));
        b_show_several("came", 1);
    }
    for (int i = 0; i < 3; i++) put(a, bn, "apart");
    b_show_several("sent apart", 3);
    b_set(0, IPPROTO_UDP, UDP_GRO, 0);
    set(a, IPPROTO_UDP, UDP_SEGMENT, 1000);
    say("%s", outcome(sendto(a, long_one, 3000, 0, (void *)&bn.at, bn.length)));
    b_show_several("not any more", 3);
}
static void together_cut(int fd) {
    (void)fd;
    begin();
    int with = bound(spot('A', 0), "with");
    struct whom name = name_of(with);
    set(with, IPPROTO_UDP, UDP_GRO, 1);
    set(a, IPPROTO_UDP, UDP_SEGMENT, 1000);
    fill(long_one, 5, sizeof long_one);
    for (int i = 0; i < 3; i++) {
        say("%s", outcome(sendto(a, long_one, 3500, 0, (void *)&name.at, name.length)));
        arrived(with);
        if (i == 1) show_in("looked at", with, 5000, MSG_PEEK);
        say("to read %d", queued(with, FIONREAD));
        show_in("cut", with, i == 2 ? 5000 : 1500, i == 0 ? MSG_TRUNC : 0);
    }
    show_none("no more", with);
    say("error %s", socket_error(a));
}

const struct test_case cases[] = {
    CASE(packet_info), CASE(sent_from), CASE(packet_info_six), CASE(hops), CASE(hops_of_one), CASE(service), CASE(times),
    CASE(times_grow), CASE(where_to), CASE(all_at_once), CASE(bad_control), CASE(long_control), CASE(room_that_ends), CASE(segments), CASE(segments_of_one),
    CASE(together), CASE(together_cut),
    {0},
};
