// What the programs about datagrams share. Role A has the story; B is a servant that runs functions of this program
// when A asks, on up to 32 sockets of its own. Both say what they receive: length, content, sender, flags, control.
//
// A datagram of loopback lies in a queue of the sender's CPU until it is delivered. Hence a role that sends stays on
// one CPU: its datagrams arrive in order, whatever sockets they are for, and `fence` says that all have arrived.
#ifndef UDP_H
#define UDP_H
#include "try.h"
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <netinet/udp.h>
#include <sched.h>
#define HELPER __attribute__((unused)) static
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#define UDP_GRO 104
#endif
#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { PATIENCE_MS = 20000 };

// --- names ---

struct whom {
    struct sockaddr_storage at;
    socklen_t length;
};
HELPER struct whom spot(char role, int port) {
    struct whom whom;
    whom.length = place(role, port, &whom.at);
    return whom;
}
HELPER struct whom v4(const char *text, int port) {
    struct whom whom = {.length = sizeof(struct sockaddr_in)};
    struct sockaddr_in *four = (void *)&whom.at;
    *four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, text, &four->sin_addr) != 1) die("no address: %s", text);
    return whom;
}
HELPER struct whom v6(const char *text, int port) {
    struct whom whom = {.length = sizeof(struct sockaddr_in6)};
    struct sockaddr_in6 *six = (void *)&whom.at;
    *six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
    if (inet_pton(AF_INET6, text, &six->sin6_addr) != 1) die("no address: %s", text);
    return whom;
}
static const struct whom unspec = {.at.ss_family = AF_UNSPEC, .length = sizeof(struct sockaddr)};
HELPER int port_of(struct whom whom) { return ntohs(((struct sockaddr_in *)&whom.at)->sin_port); }
HELPER struct whom name_of(int fd) {
    struct whom whom = {.length = sizeof whom.at};
    if (getsockname(fd, (void *)&whom.at, &whom.length)) die("getsockname");
    return whom;
}
HELPER int is_six(void) { return spot('A', 0).at.ss_family == AF_INET6; }

// Ports differ from run to run: the transcript has words for them.
HELPER struct { int port; char word[16]; } words[64];
HELPER int words_count;
HELPER void called(int port, const char *word) {
    for (int i = 0; i < words_count; i++)
        if (words[i].port == port) {
            strcpy(words[i].word, word);
            return;
        }
    if (words_count == 64) die("too many words");
    words[words_count].port = port;
    strcpy(words[words_count++].word, word);
}
HELPER const char *word_of(int port) {
    for (int i = 0; i < words_count; i++)
        if (words[i].port == port) return words[i].word;
    return port ? "?" : "0";
}
// A group of this run's alone: who else of the host is in one changes who has its datagrams (IP_MULTICAST_ALL).
HELPER char own_group[16];
HELPER const char *address_of(int family, const void *address, char *text) {
    if (!inet_ntop(family, address, text, 64)) die("inet_ntop");
    return *own_group && !strcmp(text, own_group) ? "group" : text;
}
HELPER const char *who(struct whom whom) {
    static char text[4][128];
    static int next;
    char *line = text[next++ % 4], room[64];
    const char *address;
    struct sockaddr_in *four = (void *)&whom.at;
    struct sockaddr_in6 *six = (void *)&whom.at;
    if (whom.length == 0) return "nobody";
    if (whom.at.ss_family == AF_INET) address = address_of(AF_INET, &four->sin_addr, room);
    else if (whom.at.ss_family == AF_INET6) address = address_of(AF_INET6, &six->sin6_addr, room);
    else return "of no family";
    socklen_t right = whom.at.ss_family == AF_INET ? sizeof *four : sizeof *six;
    snprintf(line, sizeof *text, "%s:%s%s", address, word_of(port_of(whom)), whom.length == right ? "" : " (odd length)");
    return line;
}
HELPER void show_names(const char *what, int fd) {
    struct whom peer = {.length = sizeof peer.at};
    int result = getpeername(fd, (void *)&peer.at, &peer.length);
    say("%s: is %s, peer %s", what, who(name_of(fd)), result ? error_name(errno) : who(peer));
}

// --- sockets ---

HELPER int datagram(int family) {
    int fd = socket(family, SOCK_DGRAM, 0);
    if (fd < 0) die("socket");
    return fd;
}
HELPER int bind_to(int fd, struct whom whom) { return bind(fd, (void *)&whom.at, whom.length); }
HELPER int connect_to(int fd, struct whom whom) { return connect(fd, (void *)&whom.at, whom.length); }
HELPER int bound(struct whom whom, const char *word) {
    int fd = datagram(whom.at.ss_family);
    if (bind_to(fd, whom)) die("bind %s", who(whom));
    called(port_of(name_of(fd)), word);
    return fd;
}
HELPER void must_connect(int fd, struct whom whom) {
    if (connect_to(fd, whom)) die("connect %s", who(whom));
}
HELPER int set_at(int fd, int level, int option, int value) { return setsockopt(fd, level, option, &value, sizeof value); }
HELPER void set(int fd, int level, int option, int value) {
    if (set_at(fd, level, option, value)) die("option %d of level %d", option, level);
}
HELPER int get(int fd, int level, int option) {
    int value = -1;
    socklen_t length = sizeof value;
    if (getsockopt(fd, level, option, &value, &length)) die("getsockopt %d of level %d", option, level);
    return value;
}
HELPER const char *socket_error(int fd) {
    int error = get(fd, SOL_SOCKET, SO_ERROR);
    return error ? error_name(error) : "none";
}
HELPER void set_time(int fd, int option, int ms) {
    struct timeval time = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    if (setsockopt(fd, SOL_SOCKET, option, &time, sizeof time)) die("set a time-out");
}
HELPER int readable(int fd) {
    int shown;
    return pollx(fd, POLLIN, 0, &shown);
}
HELPER void arrived(int fd) {
    int shown;
    if (pollx(fd, POLLIN, PATIENCE_MS, &shown) != 1) die("nothing arrives");
}
HELPER void show_poll(const char *what, int fd, int events) {
    int shown, count = pollx(fd, events, 0, &shown);
    say("%s: %d %s", what, count, bits(shown));
}
#define ALL (POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLRDNORM | POLLWRNORM)
HELPER int queued(int fd, int request) {
    int count = -1;
    if (ioctl(fd, request, &count)) die("ioctl");
    return count;
}
HELPER cpu_set_t all_cpus;
HELPER void stay(void) {
    cpu_set_t one;
    if (sched_getaffinity(0, sizeof all_cpus, &all_cpus)) die("sched_getaffinity");
    int cpu = sched_getcpu();
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (cpu < 0 || sched_setaffinity(0, sizeof one, &one)) die("sched_setaffinity");
}

HELPER void roam(void) {
    if (sched_setaffinity(0, sizeof all_cpus, &all_cpus)) die("sched_setaffinity");
}

// --- what came ---

HELPER const char *content(const void *bytes, size_t count) {
    static char text[2][128];
    static int next;
    char *line = text[next++ % 2];
    const unsigned char *source = bytes;
    int is_text = count <= 64;
    uint64_t hash = 14695981039346656037ull;
    for (size_t i = 0; i < count; i++) {
        is_text = is_text && source[i] >= ' ' && source[i] < 127;
        hash = (hash ^ source[i]) * 1099511628211ull;
    }
    if (is_text) snprintf(line, sizeof *text, "'%.*s'", (int)count, (const char *)bytes);
    else snprintf(line, sizeof *text, "#%016lx", (unsigned long)hash);
    return line;
}
HELPER const char *flag_words(int flags) {
    static char line[128];
    static const struct { int flag; const char *word; } known[] = {
        {MSG_TRUNC, " TRUNC"}, {MSG_CTRUNC, " CTRUNC"}, {MSG_ERRQUEUE, " ERRQUEUE"}, {MSG_EOR, " EOR"}, {MSG_OOB, " OOB"}};
    *line = 0;
    for (size_t i = 0; i < COUNT(known); i++)
        if (flags & known[i].flag) strcat(line, known[i].word), flags &= ~known[i].flag;
    if (flags & ~MSG_CMSG_CLOEXEC) sprintf(line + strlen(line), " flags %x", flags);
    return line;
}
HELPER void one_control(char *line, size_t room, struct cmsghdr *c) {
    void *data = CMSG_DATA(c);
    size_t size = c->cmsg_len - CMSG_LEN(0);
    int value = 0;
    memcpy(&value, data, size < sizeof value ? size : sizeof value);
    char one[64], two[64];
    struct whom whom = {.length = sizeof(struct sockaddr_in)};
    switch (c->cmsg_level << 16 | c->cmsg_type) {
    case SOL_IP << 16 | IP_PKTINFO: {
        struct in_pktinfo *info = data;
        snprintf(line, room, " [to %s at %s on %d]", address_of(AF_INET, &info->ipi_addr, one),
                 address_of(AF_INET, &info->ipi_spec_dst, two), info->ipi_ifindex);
        break;
    }
    case SOL_IPV6 << 16 | IPV6_PKTINFO: {
        struct in6_pktinfo *info = data;
        snprintf(line, room, " [to %s on %u]", address_of(AF_INET6, &info->ipi6_addr, one), info->ipi6_ifindex);
        break;
    }
    case SOL_IP << 16 | IP_ORIGDSTADDR:
        memcpy(&whom.at, data, sizeof(struct sockaddr_in));
        snprintf(line, room, " [first to %s]", who(whom));
        break;
    case SOL_SOCKET << 16 | SCM_TIMESTAMP: case SOL_SOCKET << 16 | SCM_TIMESTAMPNS:
        snprintf(line, room, " [%s %zu%s]", c->cmsg_type == SCM_TIMESTAMP ? "us" : "ns", size, value ? "" : " never");
        break;
    case SOL_IP << 16 | IP_RECVERR: case SOL_IPV6 << 16 | IPV6_RECVERR: {
        struct sock_extended_err *error = data;
        memcpy(&whom.at, SO_EE_OFFENDER(error), sizeof(struct sockaddr_in));
        if (c->cmsg_level == SOL_IPV6) memcpy(&whom.at, SO_EE_OFFENDER(error), whom.length = sizeof(struct sockaddr_in6));
        snprintf(line, room, " [%s origin %d type %d code %d info %u by %s]", error_name(error->ee_errno), error->ee_origin,
                 error->ee_type, error->ee_code, error->ee_info, who(whom));
        break;
    }
    default: snprintf(line, room, " [%d.%d %zu:%d]", c->cmsg_level, c->cmsg_type, size, value);
    }
}
// The whole of an answer: what recvmsg wrote where, and nothing beside it.
HELPER unsigned char space[1 << 17];
HELPER void say_message(const char *what, ssize_t got, struct msghdr *message) {
    char line[600] = "";
    struct whom from = {.length = message->msg_namelen};
    size_t room = message->msg_iov->iov_len, have = (size_t)got < room ? (size_t)got : room;
    if (message->msg_name) memcpy(&from.at, message->msg_name, sizeof from.at);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c))
        one_control(line + strlen(line), sizeof line - strlen(line), c);
    const unsigned char *bytes = message->msg_iov->iov_base;
    for (size_t i = have; i < room + 16; i++)
        if (bytes[i] != 0xa5) die("%s: byte %zu written, of %zu", what, i, have);
    say("%s: %ld %s from %s%s%s", what, (long)got, content(bytes, have), message->msg_name ? who(from) : "-",
        flag_words(message->msg_flags), line);
}
HELPER ssize_t show_room(const char *what, int fd, size_t room, int flags, size_t control_room) {
    static char control[4096] __attribute__((aligned(8)));
    struct whom from = {0};
    struct iovec part = {space, room};
    struct msghdr message = {.msg_name = &from.at, .msg_namelen = sizeof from.at, .msg_iov = &part, .msg_iovlen = 1,
                             .msg_control = control_room ? control : NULL, .msg_controllen = control_room};
    memset(space, 0xa5, room + 16);
    ssize_t got = recvmsg(fd, &message, flags);
    if (got < 0) say("%s: %s", what, error_name(errno));
    else say_message(what, got, &message);
    return got;
}
HELPER ssize_t show_in(const char *what, int fd, size_t room, int flags) { return show_room(what, fd, room, flags, 4096); }
// A datagram that is there, or comes.
HELPER void show(const char *what, int fd) {
    arrived(fd);
    show_in(what, fd, 70000, 0);
}
HELPER void show_none(const char *what, int fd) { show_in(what, fd, 70000, MSG_DONTWAIT); }
HELPER void show_all(const char *what, int fd) {
    for (int i = 0; i < 1000 && readable(fd); i++)
        if (show_in(what, fd, 70000, MSG_DONTWAIT) < 0) break;
}

HELPER ssize_t send_to(int fd, struct whom to, const char *text) {
    return sendto(fd, text, strlen(text), MSG_NOSIGNAL, to.length ? (void *)&to.at : NULL, to.length);
}
HELPER void put(int fd, struct whom to, const char *text) {
    if (send_to(fd, to, text) != (ssize_t)strlen(text)) die("send '%s' to %s", text, who(to));
}
static const struct whom peer = {.length = 0}; // whom the socket is connected to

// --- the servant ---

struct order {
    long deed;         // where its function lies from `servant` on
    int which, number; // a socket of B's, and what the deed makes of the number
    int level, option;
    struct whom whom;
    char text[80];
    pid_t pid;         // A's thread
};
typedef int64_t deed(const struct order *order); // at its end, A goes on with the result
HELPER int theirs[32];                           // B's
HELPER int a_fence, b_fence;
HELPER struct whom a_fence_name, b_fence_name;
HELPER void servant(int unused) {
    struct order order;
    (void)unused;
    for (int i = 0; i < 32; i++) theirs[i] = -1;
    stay();
    while (read(0, &order, sizeof order) == sizeof order) tell(((deed *)((char *)servant + order.deed))(&order));
}
HELPER void order(deed *what, struct order order) {
    order.deed = (char *)what - (char *)servant;
    order.pid = syscall(SYS_gettid);
    if (write(0, &order, sizeof order) != sizeof order) die("B is gone");
}
HELPER int64_t ask(deed *what, struct order with) {
    order(what, with);
    return hear();
}

static int64_t do_open(const struct order *o) {
    char word[16];
    snprintf(word, sizeof word, "b%d", o->which);
    theirs[o->which] = bound(o->whom, word);
    return port_of(name_of(theirs[o->which]));
}
// Socket number `which` of B.
HELPER struct whom b_open_at(int which, struct whom whom) {
    char word[16];
    int port = ask(do_open, (struct order){.which = which, .whom = whom});
    snprintf(word, sizeof word, "b%d", which);
    called(port, word);
    ((struct sockaddr_in *)&whom.at)->sin_port = htons(port);
    return whom;
}
HELPER struct whom b_open(int which) { return b_open_at(which, spot('B', 0)); }
static int64_t do_close(const struct order *o) { return close(theirs[o->which]); }
HELPER void b_close(int which) { ask(do_close, (struct order){.which = which}); }
static int64_t do_connect(const struct order *o) {
    must_connect(theirs[o->which], o->whom);
    return 0;
}
HELPER void b_connect(int which, struct whom whom) { ask(do_connect, (struct order){.which = which, .whom = whom}); }
static int64_t do_set(const struct order *o) {
    set(theirs[o->which], o->level, o->option, o->number);
    return 0;
}
HELPER void b_set(int which, int level, int option, int value) {
    ask(do_set, (struct order){.which = which, .level = level, .option = option, .number = value});
}
static int64_t do_put(const struct order *o) {
    put(theirs[o->which], o->whom, o->text);
    return 0;
}
static int64_t do_put_later(const struct order *o) {
    tell(0);
    asleep(o->level, o->pid);
    put(theirs[o->which], o->whom, o->text);
    return 0;
}
HELPER struct order letter(int which, struct whom to, const char *text) {
    struct order order = {.which = which, .whom = to};
    strcpy(order.text, text);
    return order;
}
HELPER void b_put(int which, struct whom to, const char *text) { ask(do_put, letter(which, to, text)); }
// Once this thread of A sleeps. `hear` returns when B has sent.
HELPER void b_put_later(int which, struct whom to, const char *text) {
    struct order order = letter(which, to, text);
    order.level = getpid();
    ask(do_put_later, order);
}
static int64_t do_fill(const struct order *o) {
    static char bytes[70000];
    fill(bytes, o->number, o->level);
    return sendto(theirs[o->which], bytes, o->level, 0, o->whom.length ? (void *)&o->whom.at : NULL, o->whom.length);
}
HELPER void b_fill(int which, struct whom to, int seed, int count) {
    if (ask(do_fill, (struct order){.which = which, .whom = to, .number = seed, .level = count}) != count) die("B sends %d", count);
}
static int64_t do_show(const struct order *o) {
    show(o->text, theirs[o->which]);
    return 0;
}
HELPER void b_show(const char *what, int which) { ask(do_show, letter(which, peer, what)); }
static int64_t do_show_none(const struct order *o) {
    show_none(o->text, theirs[o->which]);
    return 0;
}
static int64_t do_called(const struct order *o) {
    called(o->number, o->text);
    return 0;
}
// B has the same words for ports.
HELPER void both_call(int port, const char *word) {
    struct order order = letter(0, peer, word);
    order.number = port;
    called(port, word);
    ask(do_called, order);
}
HELPER int bound_for_both(struct whom whom, const char *word) {
    int fd = bound(whom, word);
    both_call(port_of(name_of(fd)), word);
    return fd;
}
static void take_one(int fd) {
    char byte;
    arrived(fd);
    if (recv(fd, &byte, 1, 0) != 1) die("fence");
}
static int64_t do_fence(const struct order *o) {
    (void)o;
    take_one(b_fence);
    put(b_fence, a_fence_name, "f");
    return 0;
}
// What either role sent before is where it is to be.
HELPER void fence(void) {
    put(a_fence, b_fence_name, "f");
    ask(do_fence, (struct order){0});
    take_one(a_fence);
}
HELPER void b_show_none(const char *what, int which) {
    fence();
    ask(do_show_none, letter(which, peer, what));
}

static int64_t do_begin(const struct order *o) {
    a_fence_name = o->whom;
    b_fence = bound(spot('B', 0), "fence");
    return port_of(name_of(b_fence));
}
// For roles that meet by fences and by what they open.
HELPER void begin_bare(void) {
    stay();
    a_fence = bound(spot('A', 0), "fence");
    a_fence_name = name_of(a_fence);
    b_fence_name = spot('B', ask(do_begin, (struct order){.whom = a_fence_name}));
}
HELPER void talk_back(int fd, struct whom mine, int which) {
    char byte;
    ask(do_put, letter(which, mine, "y"));
    arrived(fd);
    if (recv(fd, &byte, 1, 0) != 1 || byte != 'y') die("talk");
}
// Two sockets have sent to each other for a while: if they ever are to use shared memory, they do now.
HELPER void talk(int fd, struct whom mine, int which, struct whom other) {
    for (int i = 0; i < 12; i++) {
        put(fd, other, "x");
        talk_back(fd, mine, which);
    }
}
static int64_t do_drain(const struct order *o) {
    int count = 0;
    char byte;
    while (recv(theirs[o->which], &byte, 1, MSG_DONTWAIT) >= 0) count++;
    return count;
}
HELPER int a;           // A's socket
HELPER struct whom an, bn; // its name, and that of B's socket 0
HELPER void begin(void) {
    begin_bare();
    a = bound_for_both(spot('A', 0), "a");
    an = name_of(a);
    bn = b_open(0);
    talk(a, an, 0, bn);
    fence();
    if (ask(do_drain, (struct order){0}) != 12) die("12 datagrams were sent");
    // A channel takes some messages of the broker's, which a role reads when it calls; and a ring is entered by who has
    // not just sent by the kernel.
    for (int i = 0; i < 8; i++) {
        usleep(700);
        put(a, bn, "x");
        while (ask(do_drain, (struct order){0}) != 1) {}
        talk_back(a, an, 0);
    }
    usleep(2000);
}
// As `begin`, and both are connected.
HELPER void begin_connected(void) {
    begin();
    must_connect(a, bn);
    b_connect(0, an);
}
// A port that the kernel gives to nobody who asks for none: no other run has it by chance. To bind, or to be refused at.
HELPER int own_port(const char *word) {
    static int used;
    int port = 10000 + (getpid() * 8 + used++) % 22000;
    both_call(port, word);
    return port;
}
HELPER struct whom nobody(char role) { return spot(role, own_port("nobody")); }

// --- calls that receive and send, each in one form ---

#define CALLS_THAT_RECEIVE(X) X(read) X(readv) X(recv) X(recvfrom) X(recvmsg) X(recvmmsg)
typedef ssize_t receiver(int fd, void *bytes, size_t room, int flags);
HELPER ssize_t by_read(int fd, void *bytes, size_t room, int flags) { (void)flags; return read(fd, bytes, room); }
HELPER ssize_t by_readv(int fd, void *bytes, size_t room, int flags) {
    struct iovec parts[2] = {{bytes, room / 3}, {(char *)bytes + room / 3, room - room / 3}};
    (void)flags;
    return readv(fd, parts, 2);
}
HELPER ssize_t by_recv(int fd, void *bytes, size_t room, int flags) { return recv(fd, bytes, room, flags); }
HELPER ssize_t by_recvfrom(int fd, void *bytes, size_t room, int flags) {
    struct whom whom = {.length = sizeof whom.at};
    return recvfrom(fd, bytes, room, flags, (void *)&whom.at, &whom.length);
}
HELPER ssize_t by_recvmsg(int fd, void *bytes, size_t room, int flags) {
    struct iovec parts[3] = {{bytes, room / 2}, {NULL, 0}, {(char *)bytes + room / 2, room - room / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    return recvmsg(fd, &message, flags);
}
HELPER ssize_t by_recvmmsg(int fd, void *bytes, size_t room, int flags) {
    struct iovec part = {bytes, room};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    int count = recvmmsg(fd, &message, 1, flags, NULL);
    return count < 1 ? count : (ssize_t)message.msg_len;
}
#define CALLS_THAT_SEND(X) X(write) X(writev) X(send) X(sendto) X(sendmsg) X(sendmmsg)
typedef ssize_t sender(int fd, const void *bytes, size_t count, const struct whom *to);
HELPER ssize_t by_write(int fd, const void *bytes, size_t count, const struct whom *to) { (void)to; return write(fd, bytes, count); }
HELPER ssize_t by_writev(int fd, const void *bytes, size_t count, const struct whom *to) {
    struct iovec parts[2] = {{(void *)bytes, count / 3}, {(char *)bytes + count / 3, count - count / 3}};
    (void)to;
    return writev(fd, parts, 2);
}
HELPER ssize_t by_send(int fd, const void *bytes, size_t count, const struct whom *to) { (void)to; return send(fd, bytes, count, MSG_NOSIGNAL); }
HELPER ssize_t by_sendto(int fd, const void *bytes, size_t count, const struct whom *to) {
    return sendto(fd, bytes, count, MSG_NOSIGNAL, to && to->length ? (void *)&to->at : NULL, to ? to->length : 0);
}
HELPER struct msghdr letter_of(struct iovec *parts, int count, const struct whom *to) {
    return (struct msghdr){.msg_iov = parts, .msg_iovlen = count, .msg_name = to && to->length ? (void *)&to->at : NULL,
                           .msg_namelen = to ? to->length : 0};
}
HELPER ssize_t by_sendmsg(int fd, const void *bytes, size_t count, const struct whom *to) {
    struct iovec parts[3] = {{(void *)bytes, count / 2}, {NULL, 0}, {(char *)bytes + count / 2, count - count / 2}};
    struct msghdr message = letter_of(parts, 3, to);
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}
HELPER ssize_t by_sendmmsg(int fd, const void *bytes, size_t count, const struct whom *to) {
    struct iovec part = {(void *)bytes, count};
    struct mmsghdr message = {.msg_hdr = letter_of(&part, 1, to)};
    int sent = sendmmsg(fd, &message, 1, MSG_NOSIGNAL);
    return sent < 1 ? sent : (ssize_t)message.msg_len;
}

#define CASE(name) {#name, NONE, name, servant}
#endif
