// How connections come about on the near side: connect(2) in all its phases, SO_ERROR,
// names, IPv6. B is the servant of waits.h, unless it has a role of its own.
#include "waits.h"

// --- without blocking ---

static void nonblocking_phases(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), fd = stream(SOCK_NONBLOCK);
    show_poll("new", fd, ALL, 0);
    say("first %s", outcome(connect_to(fd, port)));
    show_poll("connected", fd, ALL, 5000);
    say("error %s", socket_error(fd));
    say("second %s", outcome(connect_to(fd, port)));
    say("third %s", outcome(connect_to(fd, port)));
    say("recv %s", get(fd, 1));
    int far = accept(listener, NULL, NULL);
    nonblocking(fd, 0);
    talk(fd, far);
    say("fourth %s", outcome(connect_to(fd, port)));
    talk(far, fd);
}
static void nonblocking_in_epoll(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), fd = stream(SOCK_NONBLOCK);
    ep = watching(fd, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    show_epoll("new", 0);
    say("connect %s", outcome(connect_to(fd, port)));
    show_epoll("connected", 5000);
    show_epoll("nothing new", 0);
    int far = accept(listener, NULL, NULL);
    put(far, "x");
    arrived(fd, 1);
    show_epoll("data", 5000);
    say("%s", get(fd, 10));
}
static void nonblocking_send_at_once(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), fd = stream(SOCK_NONBLOCK);
    say("connect %s", outcome(connect_to(fd, port)));
    show_poll("room", fd, POLLOUT, 5000);
    say("send %s", outcome(send(fd, "abc", 3, 0)));
    int far = accept(listener, NULL, NULL);
    say("%s", get(far, 10));
    nonblocking(fd, 0);
    talk(far, fd);
}
static void nonblocking_refused(int unused) {
    (void)unused;
    int fd = stream(SOCK_NONBLOCK);
    ep = watching(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1);
    say("connect %s", outcome(connect_to(fd, dead_port())));
    show_poll("refused", fd, ALL, 5000);
    show_epoll("refused", 0);
    say("error %s", socket_error(fd));
    say("error again %s", socket_error(fd));
    show_poll("fetched", fd, ALL, 0);
    say("recv '%s'", get(fd, 1));
    say("send %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
}
static void refused_shows_at_the_next_call(int unused) {
    (void)unused;
    static const char *calls[] = {"recv", "send", "connect", "shutdown", "getpeername"};
    for (int i = 0; i < 5; i++) {
        int fd = stream(SOCK_NONBLOCK), port = dead_port(), shown;
        struct sockaddr_in name;
        socklen_t length = sizeof name;
        if (connect_to(fd, port) != -1 || errno != EINPROGRESS) die("connect");
        pollx(fd, POLLOUT, 5000, &shown);
        long result = i == 0 ? recv(fd, &shown, 1, 0) : i == 1 ? send(fd, "x", 1, MSG_NOSIGNAL) : i == 2 ? connect_to(fd, port)
            : i == 3 ? shutdown(fd, SHUT_WR) : getpeername(fd, (void *)&name, &length);
        say("%s: %s", calls[i], outcome(result));
        say("then %s", socket_error(fd));
        close(fd);
    }
}

// Calls before connect: they fail, and nothing is held against the connection for it.
static void nonblocking_early_calls(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), fd = stream(SOCK_NONBLOCK);
    for (int i = 0; i < 5; i++) {
        say("recv %s", get(fd, 1));
        say("send %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
    }
    say("connect %s", outcome(connect_to(fd, port)));
    show_poll("connected", fd, POLLOUT, 5000);
    nonblocking(fd, 0);
    talk(fd, accept(listener, NULL, NULL));
}

// --- with blocking ---

static void refused(int unused) {
    (void)unused;
    int fd = stream(0);
    say("connect %s", outcome(connect_to(fd, dead_port())));
    say("error %s", socket_error(fd));
    say("send %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
    say("recv '%s'", get(fd, 1));
}
// The socket of a refused connection may try again (linux; not everywhere).
static void refused_then_accepted(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), fd = stream(0);
    for (int i = 0; i < 3; i++) say("refused %s", outcome(connect_to(fd, dead_port())));
    say("connect %s", outcome(connect_to(fd, port)));
    talk(fd, accept(listener, NULL, NULL));
}
static void connected_already(int fd) {
    int port, listener = listen_any(&port);
    (void)listener;
    say("elsewhere %s", outcome(connect_to(fd, port)));
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    getpeername(fd, (void *)&name, &length);
    say("there %s", outcome(connect(fd, (void *)&name, length)));
    say("listen %s", outcome(listen(fd, 5)));
    say("bind %s", outcome(bind(fd, (void *)&name, length)));
    say("accept %s", outcome(accept(fd, NULL, NULL)));
    say("error %s", socket_error(fd));
    must_ring(fd, "after them");
    ask(RECEIVE, 1);
    come(fd, 1);
    say("%s", get(fd, 1));
}
static void not_connected(int unused) {
    (void)unused;
    int fd = stream(0);
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    say("send %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
    say("recv %s", get(fd, 1));
    say("shutdown %s", outcome(shutdown(fd, SHUT_RDWR)));
    say("getpeername %s", outcome(getpeername(fd, (void *)&name, &length)));
    say("accept %s", outcome(accept(fd, NULL, NULL)));
    say("error %s", socket_error(fd));
    show_poll("poll", fd, ALL, 0);
}
static void odd_addresses(int unused) {
    (void)unused;
    int fd = stream(0);
    struct sockaddr_in address = local(dead_port());
    struct sockaddr unix_address = {.sa_family = AF_UNIX};
    say("short %s", outcome(connect(fd, (void *)&address, 8)));
    say("family %s", outcome(connect(fd, &unix_address, sizeof unix_address)));
    address.sin_addr.s_addr = htonl(INADDR_BROADCAST);
    say("broadcast %s", outcome(connect(fd, (void *)&address, sizeof address)));
    say("no socket %s", outcome(connect(0x7ffff, (void *)&address, sizeof address)));
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    say("a pipe %s", outcome(connect(pipes[0], (void *)&address, sizeof address)));
}
// connect to no address (AF_UNSPEC) dissolves a connection; the socket can have another one.
static void dissolved(int fd) {
    struct sockaddr nothing = {.sa_family = AF_UNSPEC};
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    int port, listener = listen_any(&port);
    say("dissolve %s", outcome(connect(fd, &nothing, sizeof nothing)));
    say("getpeername %s", outcome(getpeername(fd, (void *)&name, &length)));
    say("send %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
    say("recv %s", get(fd, 1));
    say("connect %s", outcome(connect_to(fd, port)));
    int far = accept(listener, NULL, NULL);
    put(fd, "abc");
    say("%s", get(far, 10));
    talk(fd, far);
}
static void dissolved_b(int fd) { say("recv %s", get(fd, 1)); }
// A socket that is connected to itself.
static void to_itself(int unused) {
    (void)unused;
    int fd = stream(0);
    struct sockaddr_in address = local(0);
    socklen_t length = sizeof address;
    if (bind(fd, (void *)&address, length) || getsockname(fd, (void *)&address, &length)) die("bind");
    say("connect %s", outcome(connect(fd, (void *)&address, length)));
    for (int i = 0; i < 30; i++) {
        put(fd, "abc");
        if (strcmp(get(fd, 10), "abc")) die("round %d", i);
    }
    shutdown(fd, SHUT_WR);
    say("'%s'", get(fd, 10));
}

// --- names ---

static void names_of(const char *when, int fd) {
    struct sockaddr_storage own = {0}, far = {0};
    socklen_t own_length = sizeof own, far_length = sizeof far;
    int own_result = getsockname(fd, (void *)&own, &own_length), error = errno, far_result = getpeername(fd, (void *)&far, &far_length);
    char own_text[64] = "-", far_text[64] = "-";
    const void *own_place = own.ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&own)->sin6_addr : (void *)&((struct sockaddr_in *)&own)->sin_addr;
    const void *far_place = far.ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&far)->sin6_addr : (void *)&((struct sockaddr_in *)&far)->sin_addr;
    if (!own_result) inet_ntop(own.ss_family, own_place, own_text, sizeof own_text);
    if (!far_result) inet_ntop(far.ss_family, far_place, far_text, sizeof far_text);
    say("%s: %s %d %s | %s %d %s", when, own_result ? error_name(error) : "0", (int)own_length, own_text, far_result ? error_name(errno) : "0", (int)far_length, far_text);
}
static void names_in_each_phase(int fd) {
    int port, listener = listen_any(&port), own = stream(0);
    names_of("new", own);
    names_of("listening", listener);
    connect_to(own, port);
    names_of("connected", own);
    int far = accept(listener, NULL, NULL);
    names_of("accepted", far);
    close(far);
    no_longer_established(own);
    names_of("half closed", own);
    close(listener);
    names_of("on rings", fd);
    shutdown(fd, SHUT_WR);
    names_of("shut", fd);
    ask(CLOSE, 0);
    int shown;
    pollx(fd, 0, 5000, &shown);
    names_of("over", fd);
}
static void names_match(int fd) {
    struct sockaddr_in own, far;
    socklen_t length = sizeof own;
    getsockname(fd, (void *)&own, &length);
    getpeername(fd, (void *)&far, &length);
    tell(own.sin_port), tell(far.sin_port);
    say("%d", (int)length);
}
static void names_match_b(int fd) {
    struct sockaddr_in own, far;
    socklen_t length = sizeof own;
    getsockname(fd, (void *)&own, &length);
    getpeername(fd, (void *)&far, &length);
    if (hear() != far.sin_port || hear() != own.sin_port) die("names do not match");
    say("%d", (int)length);
}
// Own address and port are chosen before connect.
static void bound_before_connect(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), fd = stream(0);
    struct sockaddr_in name = local(0);
    socklen_t length = sizeof name;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    if (bind(fd, (void *)&name, length)) die("bind");
    say("connect %s", outcome(connect_to(fd, port)));
    int far = accept(listener, NULL, NULL);
    names_of("near", fd);
    names_of("far", far);
    talk(fd, far);
}

// --- IPv6 ---

static int listen_six(int v6only, int *port) {
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 name = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    socklen_t length = sizeof name;
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only);
    if (fd < 0 || bind(fd, (void *)&name, length) || listen(fd, 5) || getsockname(fd, (void *)&name, &length)) die("listen");
    *port = ntohs(name.sin6_port);
    return fd;
}
static int dial_six(const char *address, int port) {
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 name = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    inet_pton(AF_INET6, address, &name.sin6_addr);
    if (fd < 0 || connect(fd, (void *)&name, sizeof name)) die("connect to %s", address);
    return fd;
}
static void six(int unused) {
    (void)unused;
    int port, listener = listen_six(1, &port), near = dial_six("::1", port), far = accept(listener, NULL, NULL), old = stream(0);
    names_of("near", near);
    names_of("far", far);
    say("of the old kind %s", outcome(connect_to(old, port)));
    talk(near, far);
    show_poll("near", near, ALL, 0);
    close(far);
    no_longer_established(near);
    say("'%s'", get(near, 1));
}
// An IPv4 client of an IPv6 listener: its address is mapped there.
static void mapped_at_the_server(int unused) {
    (void)unused;
    int port, listener = listen_six(0, &port), near = dial(port), far = accept(listener, NULL, NULL);
    names_of("near", near);
    names_of("far", far);
    talk(near, far);
}
static void mapped_at_the_client(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), near = dial_six("::ffff:127.0.0.1", port), far = accept(listener, NULL, NULL);
    names_of("near", near);
    names_of("far", far);
    talk(near, far);
}

const struct test_case cases[] = {
    {"nonblocking_phases", NONE, nonblocking_phases, servant},
    {"nonblocking_in_epoll", NONE, nonblocking_in_epoll, servant},
    {"nonblocking_send_at_once", NONE, nonblocking_send_at_once, servant},
    {"nonblocking_early_calls", NONE, nonblocking_early_calls, servant},
    {"nonblocking_refused", NONE, nonblocking_refused, servant},
    {"refused_shows_at_the_next_call", NONE, refused_shows_at_the_next_call, servant},
    {"refused", NONE, refused, servant},
    {"refused_then_accepted", NONE, refused_then_accepted, servant},
    {"connected_already", WARM, connected_already, servant},
    {"not_connected", NONE, not_connected, servant},
    {"odd_addresses", NONE, odd_addresses, servant},
    {"dissolved", WARM, dissolved, dissolved_b},
    {"to_itself", NONE, to_itself, servant},
    {"names_in_each_phase", WARM, names_in_each_phase, servant},
    {"names_match", WARM, names_match, names_match_b},
    {"bound_before_connect", NONE, bound_before_connect, servant},
    {"six", NONE, six, servant},
    {"mapped_at_the_server", NONE, mapped_at_the_server, servant},
    {"mapped_at_the_client", NONE, mapped_at_the_client, servant},
    {0},
};
