// Who may have a name, and who of those that have one gets a datagram (man 7 ip, man 7 socket: SO_REUSEADDR, SO_REUSEPORT).
// All on loopback, whose addresses are 127.0.0.0/8.
#include "udp.h"

static int port;
static struct whom at(const char *text) { return v4(text, port); }
static void start(void) {
    begin();
    port = own_port("port");
}
static int socket_with(int option) {
    int fd = datagram(AF_INET);
    if (option) set(fd, SOL_SOCKET, option, 1);
    return fd;
}
static int bound_with(int option, const char *text) {
    int fd = socket_with(option);
    if (bind_to(fd, at(text))) die("bind %s", text);
    return fd;
}
static const char *shown_as(int option) { return option == SO_REUSEADDR ? "SO_REUSEADDR" : option ? "SO_REUSEPORT" : "nothing"; }

// Every pair of options and of addresses.
static void two_of_a_name(int fd) {
    static const int options[] = {0, SO_REUSEADDR, SO_REUSEPORT};
    static const char *names[] = {"127.0.0.1", "127.0.0.2", "0.0.0.0"};
    (void)fd;
    start();
    for (size_t i = 0; i < 3 * 3; i++)
        for (size_t k = 0; k < 3 * 3; k++) {
            int first = bound_with(options[i % 3], names[i / 3]), second = socket_with(options[k % 3]);
            int result = bind_to(second, at(names[k / 3]));
            say("%s with %s, %s with %s: %s", names[i / 3], shown_as(options[i % 3]), names[k / 3], shown_as(options[k % 3]), outcome(result));
            close(first);
            close(second);
        }
}
static void once_only(int fd) {
    (void)fd;
    start();
    say("again %s", outcome(bind_to(a, at("127.0.0.1"))));
    say("to what it has %s", outcome(bind_to(a, an)));
    int one = datagram(AF_INET);
    say("not ours %s", outcome(bind_to(one, at("192.0.2.1"))));
    say("another family %s", outcome(bind_to(one, v6("::1", port))));
    struct whom odd = at("0.0.0.0");
    odd.at.ss_family = AF_UNSPEC;
    say("no family, no address %s", outcome(bind_to(one, odd)));
    show_names("is", one);
    int two = datagram(AF_INET);
    odd = at("127.0.0.1");
    odd.at.ss_family = AF_UNSPEC;
    say("no family, an address %s", outcome(bind_to(two, odd)));
    say("a broadcast address %s", outcome(bind_to(two, at("127.255.255.255"))));
    show_names("is", two);
    int three = datagram(AF_INET);
    say("a group's address %s", outcome(bind_to(three, v4("224.1.2.3", port + 1))));
}
static void free_at_once(int fd) {
    (void)fd;
    start();
    for (int i = 0; i < 20; i++) {
        int one = bound_with(0, "127.0.0.1");
        talk(one, at("127.0.0.1"), 0, bn);
        b_put(0, at("127.0.0.1"), "unread");
        fence();
        close(one);
    }
    int last = bound_with(0, "127.0.0.1");
    show_none("what came for others is gone", last);
    b_put(0, at("127.0.0.1"), "for the last");
    show("came", last);
}
// The more a socket's name says, the more it is meant.
static void most_specific(int fd) {
    (void)fd;
    start();
    int wild = bound_with(SO_REUSEADDR, "0.0.0.0"), one = bound_with(SO_REUSEADDR, "127.0.0.1"), two = bound_with(SO_REUSEADDR, "127.0.0.2");
    for (int round = 0; round < 3; round++) {
        static const char *names[] = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};
        for (int i = 0; i < 3; i++) b_put(0, at(names[i]), names[i]);
        fence();
        show_all("wild", wild);
        if (round < 2) show_all("one", one);
        show_all("two", two);
        if (round == 1) close(one);
    }
}
static void specific_is_born_later(int fd) {
    (void)fd;
    start();
    int wild = bound_with(SO_REUSEADDR, "0.0.0.0");
    talk(wild, at("127.0.0.1"), 0, bn);
    b_put(0, at("127.0.0.1"), "before");
    fence();
    int one = bound_with(SO_REUSEADDR, "127.0.0.1");
    b_put(0, at("127.0.0.1"), "while there is one");
    fence();
    show_all("one", one);
    show_none("no more", one);
    close(one);
    b_put(0, at("127.0.0.1"), "after");
    fence();
    show_all("wild", wild);
}
// A socket with a peer is meant by what that peer sends, one without by all else.
static void connected_first(int fd) {
    (void)fd;
    start();
    struct whom other = b_open(1);
    int without = bound_with(SO_REUSEADDR, "127.0.0.1"), with = bound_with(SO_REUSEADDR, "127.0.0.1");
    must_connect(with, bn);
    for (int round = 0; round < 3; round++) {
        if (round == 1) must_connect(with, other);
        if (round == 2) must_connect(with, unspec);
        b_put(0, at("127.0.0.1"), "of 0");
        b_put(1, at("127.0.0.1"), "of 1");
        fence();
        show_all("without a peer", without);
        show_all("with a peer", with);
    }
}
// How a server keeps a socket for each of its clients.
static void socket_for_each(int fd) {
    int fds[4], server;
    struct whom clients[4];
    (void)fd;
    start();
    server = bound_with(SO_REUSEADDR, "127.0.0.1");
    for (int i = 0; i < 4; i++) {
        clients[i] = b_open(i + 1);
        b_connect(i + 1, at("127.0.0.1"));
        b_put(i + 1, peer, "hello");
        show("to the server", server);
        fds[i] = bound_with(SO_REUSEADDR, "127.0.0.1");
        must_connect(fds[i], clients[i]);
        put(fds[i], peer, "welcome");
        b_show("client", i + 1);
    }
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 4; i++) {
            b_put(4 - i, peer, round & 1 ? "odd" : "even");
            fence();
        }
    for (int i = 0; i < 4; i++) show_all("own", fds[i]);
    show_none("server", server);
    for (int i = 0; i < 4; i++) close(fds[i]);
    b_put(1, peer, "as a stranger");
    show("server", server);
}
static void last_of_equals(int fd) {
    (void)fd;
    start();
    int fds[3];
    for (int i = 0; i < 3; i++) fds[i] = bound_with(SO_REUSEADDR, "127.0.0.1");
    for (int left = 3; left; left--) {
        b_put(0, at("127.0.0.1"), "one");
        fence();
        for (int i = 0; i < left; i++) say("%d of %d has %d", i, left, readable(fds[i]));
        for (int i = 0; i < left; i++) show_all("took", fds[i]);
        close(fds[left - 1]);
    }
}

// --- a group that shares a name ---

enum { MEMBERS = 4, LETTERS = 100 };
// Takes all that the group has; each letter is to come once, and those of one sender to one member in order.
static int holder[8];
static void forget(void) {
    for (int i = 0; i < 8; i++) holder[i] = -1;
}
static int take_once(int *fds, int members, int letters, int senders) {
    static int seen[8][1000];
    int count = 0, moved = 0;
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < members; i++) {
        int last[8];
        for (int s = 0; s < 8; s++) last[s] = -1;
        while (readable(fds[i])) {
            int sender, number;
            ssize_t got = recv(fds[i], space, 100, 0);
            if (got < 0) die("receive");
            space[got] = 0;
            if (sscanf((char *)space, "%d of %d", &number, &sender) != 2 || sender >= senders || number >= letters) die("%s", space);
            if (seen[sender][number]++) die("twice: %s", space);
            if (number <= last[sender]) die("%d after %d", number, last[sender]);
            last[sender] = number;
            if (holder[sender] >= 0 && holder[sender] != i) moved = 1;
            holder[sender] = i;
            count++;
        }
    }
    say("%d letters of %d, each once; senders that change their member %d", count, letters * senders, moved);
    return count;
}
static int64_t do_write_letters(const struct order *o) {
    for (int i = 0; i < o->number; i++)
        for (int sender = 0; sender < o->level; sender++) {
            char text[32];
            sprintf(text, "%d of %d", i, sender);
            put(theirs[sender], o->whom, text);
        }
    return 0;
}
static void group(int *fds) {
    start();
    for (int i = 0; i < MEMBERS; i++) fds[i] = bound_with(SO_REUSEPORT, "127.0.0.1");
    for (int i = 1; i < 8; i++) b_open(i);
    forget();
}
static void letters(void) {
    ask(do_write_letters, (struct order){.whom = at("127.0.0.1"), .number = LETTERS / 4, .level = 8});
    fence();
}
static void shared(int fd) {
    int fds[MEMBERS];
    (void)fd;
    group(fds);
    letters();
    take_once(fds, MEMBERS, LETTERS / 4, 8);
    // The same senders find the same members again.
    letters();
    take_once(fds, MEMBERS, LETTERS / 4, 8);
}
static void member_leaves(int fd) {
    int fds[MEMBERS];
    (void)fd;
    group(fds);
    for (int left = MEMBERS; left; left--) {
        forget();
        letters();
        take_once(fds, left, LETTERS / 4, 8);
        close(fds[left - 1]);
    }
}
static void member_joins(int fd) {
    int fds[MEMBERS];
    (void)fd;
    group(fds);
    for (int i = 1; i < MEMBERS; i++) close(fds[i]);
    for (int i = 1; i <= MEMBERS; i++) {
        forget();
        letters();
        take_once(fds, i, LETTERS / 4, 8);
        if (i < MEMBERS) fds[i] = bound_with(SO_REUSEPORT, "127.0.0.1");
    }
}
// A member with a peer has its peer's, and no others.
static void member_connects(int fd) {
    int fds[MEMBERS];
    (void)fd;
    group(fds);
    must_connect(fds[2], bn);
    letters();
    int count = 0;
    while (readable(fds[2])) {
        struct whom from = {.length = sizeof from.at};
        ssize_t got = recvfrom(fds[2], space, 100, 0, (void *)&from.at, &from.length);
        if (got < 0 || port_of(from) != port_of(bn)) die("from %s", who(from));
        count++;
    }
    say("of the peer %d", count);
    take_once(fds, MEMBERS, LETTERS / 4, 8);
}
static void processes_share(int fd) {
    int fds[2], lines[2];
    (void)fd;
    start();
    fds[0] = bound_with(SO_REUSEPORT, "127.0.0.1");
    for (int i = 1; i < 8; i++) b_open(i);
    if (pipe(lines)) die("pipe");
    pid_t child = fork();
    if (child == 0) {
        close(fds[0]);
        int own = bound_with(SO_REUSEPORT, "127.0.0.1");
        if (write(lines[1], "x", 1) != 1) _exit(1);
        // Each letter that the child has goes back to A's first socket, with its words.
        for (int open = 1; open;) {
            arrived(own);
            ssize_t got = recv(own, space, 100, 0);
            space[got] = 0;
            open = strcmp((char *)space, "end") != 0;
            if (open) put(own, an, (char *)space);
        }
        _exit(0);
    }
    char byte;
    if (read(lines[0], &byte, 1) != 1) die("the child");
    letters();
    int count = 0;
    for (struct pollfd both[] = {{.fd = fds[0], .events = POLLIN}, {.fd = a, .events = POLLIN}}; count < LETTERS / 4 * 8;) {
        if (poll(both, 2, PATIENCE_MS) < 1) die("%d letters came", count);
        for (int i = 0; i < 2; i++)
            if (both[i].revents && recv(both[i].fd, space, 100, 0) > 0) count++;
    }
    // The kernel chooses by the sender, whose ports are chance: whose they were is not told.
    say("%d letters", count);
    close(fds[0]);
    b_put(0, at("127.0.0.1"), "end");
    reap(child, "child");
    show_none("nothing twice", a);
}

// --- from where ---

static void source(int fd) {
    (void)fd;
    start();
    int wild = bound_with(SO_REUSEADDR, "0.0.0.0");
    b_put(0, at("127.0.0.9"), "asked at 9");
    show("came", wild);
    put(wild, bn, "answered by the first address");
    b_show("came", 0);
    int nine = bound_with(SO_REUSEADDR, "127.0.0.10");
    put(nine, bn, "answered by 10");
    b_show("came", 0);
    int chosen = datagram(AF_INET);
    must_connect(chosen, v4("127.0.0.7", port_of(bn)));
    both_call(port_of(name_of(chosen)), "chosen");
    show_names("to 7", chosen);
    say("send %s", outcome(send(chosen, "x", 1, 0)));
    fence();
    say("nobody is at 7: %s", socket_error(chosen));
    must_connect(chosen, v4("0.0.0.0", port_of(bn)));
    show_names("to no address", chosen);
    put(chosen, peer, "to no address");
    b_show("came", 0);
    put(a, v4("0.0.0.0", port_of(bn)), "sendto no address");
    b_show("came", 0);
}
static void device(int fd) {
    (void)fd;
    start();
    int one = datagram(AF_INET);
    say("lo %s", outcome(setsockopt(one, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3)));
    say("none %s", outcome(setsockopt(one, SOL_SOCKET, SO_BINDTODEVICE, "nosuch", 7)));
    if (bind_to(one, at("127.0.0.1"))) die("bind");
    b_put(0, at("127.0.0.1"), "by lo");
    show("came", one);
    put(one, bn, "by lo");
    b_show("came", 0);
}

const struct test_case cases[] = {
    CASE(two_of_a_name), CASE(once_only), CASE(free_at_once), CASE(most_specific), CASE(specific_is_born_later),
    CASE(connected_first), CASE(socket_for_each), CASE(last_of_equals), CASE(shared), CASE(member_leaves), CASE(member_joins),
    CASE(member_connects), CASE(processes_share), CASE(source), CASE(device),
    {0},
};
