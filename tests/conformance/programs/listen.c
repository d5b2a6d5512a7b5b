// How connections come about on the far side: accept(2), listen(2), shutdown of a listener,
// backlogs, SO_REUSEPORT. B is the servant of waits.h, unless it has a role of its own.
#include "waits.h"

static void accept_flags(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    static const int flags[] = {0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC};
    nonblocking(listener, 1);
    for (int i = 0; i < 4; i++) {
        int near = dial(port), far = accept4(listener, NULL, NULL, flags[i]);
        say("%d: %d %d", i, fcntl(far, F_GETFL) & O_NONBLOCK, fcntl(far, F_GETFD));
        if (flags[i] & SOCK_NONBLOCK) say("recv %s", get(far, 1));
        nonblocking(far, 0);
        talk(near, far);
        close(near), close(far);
    }
    say("other flags %s", outcome(accept4(listener, NULL, NULL, 1)));
    say("none waits %s", outcome(accept4(listener, NULL, NULL, SOCK_NONBLOCK)));
    say("none waits %s", outcome(accept(listener, NULL, NULL)));
}
static void accept_addresses(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    for (int i = 0; i < 3; i++) {
        int near = dial(port);
        struct sockaddr_storage name = {0};
        struct sockaddr_in right;
        socklen_t length = i == 0 ? sizeof name : i == 1 ? 4 : 0, right_length = sizeof right;
        int far = accept(listener, (void *)&name, &length);
        getsockname(near, (void *)&right, &right_length);
        say("%d: %d, length %d, same %d", i, far >= 0, (int)length, !memcmp(&name, &right, i == 0 ? length : i == 1 ? 4 : 0));
        close(near), close(far);
    }
    int near = dial(port);
    socklen_t length = -1;
    struct sockaddr_in name;
    say("negative %s", outcome(accept(listener, (void *)&name, &length)));
    close(near);
}
static void accepted_has_its_options(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), one = 1, value = 0;
    socklen_t length = sizeof value;
    setsockopt(listener, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct timeval time = {0, 30000};
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    int near = dial(port), far = accept(listener, NULL, NULL);
    getsockopt(far, SOL_SOCKET, SO_KEEPALIVE, &value, &length);
    say("keepalive %d", value);
    getsockopt(far, IPPROTO_TCP, TCP_NODELAY, &value, &length);
    say("nodelay %d", value);
    say("time-out %s", get(far, 1));
    talk(near, far);
    say("time-out %s", get(far, 1));
    say("accept, time-out %s", outcome(accept(listener, NULL, NULL)));
}
static void *accept_thread(void *listener) {
    int fd = accept((int)(long)listener, NULL, NULL);
    if (fd < 0) die("accept");
    warm(fd, 0);
    if (*get(fd, 1) != 'r') die("receive");
    close(fd);
    return NULL;
}
static void accept_by_threads_of(int listener, int count) {
    pthread_t threads[16];
    for (int i = 0; i < count; i++) pthread_create(threads + i, NULL, accept_thread, (void *)(long)listener);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}
static void accept_by_threads(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    accept_by_threads_of(listener, 8);
    say("all");
}
static void accept_by_threads_b(int unused) {
    (void)unused;
    int port = hear();
    for (int i = 0; i < 8; i++) {
        int fd = dial(port);
        warm(fd, 1);
        must_ring(fd, "one of many");
        close(fd);
    }
}
static void nothing(int signal) { (void)signal; }
static void accept_interrupted(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    struct itimerval often = {{0, 20000}, {0, 20000}};
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    say("interrupted %s", outcome(accept(listener, NULL, NULL)));
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    struct timeval time = {0, 100000};
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    say("with a time-out %s", outcome(accept(listener, NULL, NULL)));
}
static void shutdown_of_a_listener(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), fd = stream(0);
    ep = watching(listener, EPOLLIN, 1);
    show_poll("listening", listener, ALL, 0);
    say("write half %s", outcome(shutdown(listener, SHUT_WR)));
    int near = dial(port);
    say("still accepts %d", accept(listener, NULL, NULL) >= 0);
    say("shutdown %s", outcome(shutdown(listener, SHUT_RD)));
    show_poll("shut", listener, ALL, 0);
    show_epoll("shut", 0);
    say("accept %s", outcome(accept(listener, NULL, NULL)));
    say("connect %s", outcome(connect_to(fd, port)));
    say("listen again %s", outcome(listen(listener, 5)));
    // At a port of the kernel's choice: the first one was, too.
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    getsockname(listener, (void *)&name, &length);
    int again = dial(ntohs(name.sin_port)), far = accept(listener, NULL, NULL);
    talk(again, far);
    close(near);
}
static void closed_with_one_waiting(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), near = dial(port);
    put(near, "abc");
    close(listener);
    show_poll("gone", near, ALL, 5000);
    say("%s", get(near, 10));
    say("'%s'", get(near, 10));
}
// What the far end did before accept: bytes, an end of file, a reset.
static void waiting_ones_keep_what_came(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    struct linger at_once = {1, 0};
    for (int how = 0; how < 3; how++) {
        int near = dial(port);
        put(near, "abc");
        if (how == 2) setsockopt(near, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        if (how) close(near);
        int far = accept(listener, NULL, NULL);
        if (how) no_longer_established(far);
        say("%d: %s", how, get(far, 10));
        if (how) say("then '%s'", get(far, 10));
        close(far);
    }
}
static void listen_odd(int unused) {
    (void)unused;
    int fd = stream(0), other = stream(0), pipes[2];
    struct sockaddr_in name = local(0);
    socklen_t length = sizeof name;
    if (pipe(pipes)) die("pipe");
    say("unbound %s", outcome(listen(fd, 5)));
    say("has a port %d", getsockname(fd, (void *)&name, &length) == 0 && name.sin_port != 0);
    say("twice %s", outcome(listen(fd, 1)));
    say("bind again %s", outcome(bind(fd, (void *)&name, length)));
    name = local(ntohs(name.sin_port));
    say("port in use %s", outcome(bind(other, (void *)&name, length)));
    say("connect %s", outcome(connect_to(fd, dead_port())));
    say("send %s", outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
    say("recv %s", get(fd, 1));
    say("a pipe %s", outcome(listen(pipes[0], 5)));
    say("not open %s", outcome(listen(777, 5)));
}
// A full backlog: more connects hang, and go on once there is room.
static void backlog_full(int unused) {
    (void)unused;
    int listener = stream(0), fds[4], hanging = -1, hangs = 0;
    struct sockaddr_in name = local(0);
    socklen_t length = sizeof name;
    if (bind(listener, (void *)&name, length) || listen(listener, 0) || getsockname(listener, (void *)&name, &length)) die("listen");
    for (int i = 0; i < 4; i++) {
        int shown;
        fds[i] = stream(SOCK_NONBLOCK);
        if (connect_to(fds[i], ntohs(name.sin_port)) == 0 || errno != EINPROGRESS) die("connect");
        // There is room for the first.
        if (pollx(fds[i], POLLOUT, i ? 100 : 5000, &shown) == 0) hangs++, hanging = fds[i];
    }
    say("hanging %d", hangs);
    show_poll("hanging", hanging, ALL, 0);
    say("connect %s", outcome(connect_to(hanging, ntohs(name.sin_port))));
    say("send %s", outcome(send(hanging, "x", 1, MSG_NOSIGNAL)));
    say("recv %s", get(hanging, 1));
    say("error %s", socket_error(hanging));
    ep = watching(hanging, EPOLLOUT | EPOLLET, 1);
    show_epoll("hanging", 0);
    // Each accept makes room for one; they come when their SYN is sent again.
    for (int i = 0; i < 4; i++) {
        int far = accept(listener, NULL, NULL);
        if (far < 0) die("accept");
        close(far);
    }
    show_epoll("connected", 10000);
}
static void send_time_out_of_connect(int unused) {
    (void)unused;
    int listener = stream(0), shown;
    struct sockaddr_in name = local(0);
    socklen_t length = sizeof name;
    if (bind(listener, (void *)&name, length) || listen(listener, 0) || getsockname(listener, (void *)&name, &length)) die("listen");
    int first = dial(ntohs(name.sin_port)), fd = stream(0);
    struct timeval time = {0, 50000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    say("connect %s", outcome(connect_to(fd, ntohs(name.sin_port))));
    say("again %s", outcome(connect_to(fd, ntohs(name.sin_port))));
    struct itimerval soon = {{0, 20000}, {0, 20000}};
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGALRM, &action, NULL);
    int second = stream(0);
    setitimer(ITIMER_REAL, &soon, NULL);
    say("interrupted %s", outcome(connect_to(second, ntohs(name.sin_port))));
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    say("goes on: %d", pollx(second, POLLOUT, 0, &shown));
    close(first);
}

// --- one port, several listeners ---

static int listen_shared(int port, int shares) {
    int fd = stream(0);
    struct sockaddr_in name = local(port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &shares, sizeof shares);
    if (bind(fd, (void *)&name, sizeof name) || listen(fd, 64)) return -1;
    return fd;
}
static void reuseport_needs_both(int unused) {
    (void)unused;
    int port, plain = listen_any(&port);
    say("one wants %s", outcome(listen_shared(port, 1)));
    close(plain);
    int first = listen_shared(0, 1);
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    getsockname(first, (void *)&name, &length);
    say("the other does not %s", outcome(listen_shared(ntohs(name.sin_port), 0)));
    say("both %d", listen_shared(ntohs(name.sin_port), 1) >= 0);
}
// Serves whoever comes, in a process of its own: echoes until the end of file.
static void serve(int listener, int on_rings) {
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) _exit(1);
        char byte;
        int carried = 0;
        while (recv(fd, &byte, 1, 0) == 1) {
            uint64_t before = kernel_sent(fd);
            if (byte == 'p') byte = on_rings ? 'r' : 'k'; // Which worker is it?
            if (send(fd, &byte, 1, 0) != 1) _exit(1);
            carried = kernel_sent(fd) == before;
        }
        // A worker without the shim never has rings, one with it does in the end.
        if (!by_kernel && carried != on_rings) _exit(2);
        close(fd);
    }
}
enum { WORKERS = 3 };
// Three workers on one port, the last of which runs without the shim.
static void reuseport_workers(int unused) {
    (void)unused;
    int listeners[WORKERS];
    pid_t workers[WORKERS];
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    for (int i = 0; i < WORKERS; i++) {
        listeners[i] = listen_shared(i ? ntohs(name.sin_port) : 0, 1);
        if (listeners[i] < 0 || getsockname(listeners[i], (void *)&name, &length)) die("listen");
    }
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = fork();
        if (workers[i]) continue;
        for (int j = 0; j < WORKERS; j++)
            if (j != i) close(listeners[j]);
        close(0);
        if (i < WORKERS - 1) serve(listeners[i], 1);
        // By an exec, without the library.
        dup2(listeners[i], 0);
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", "listen", "reuseport_workers", "C", NULL);
        _exit(9);
    }
    for (int i = 0; i < WORKERS; i++) close(listeners[i]);
    tell(ntohs(name.sin_port));
    step();
    for (int i = 0; i < WORKERS; i++) {
        int status;
        kill(workers[i], SIGTERM);
        if (waitpid(workers[i], &status, 0) != workers[i]) die("wait");
        say("worker: signal %d", WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status));
    }
}
static void reuseport_workers_b(int unused) {
    (void)unused;
    if (me == 'C') serve(0, 0);
    int port = hear(), seen[2] = {0};
    // The kernel spreads them by a hash of the names: go on until both kinds were met often.
    for (int i = 0; i < 400 && (seen[0] < 5 || seen[1] < 5); i++) {
        int fd = dial(port);
        put(fd, "p");
        int kind = *get(fd, 1) == 'r';
        seen[kind]++;
        for (int j = 0; j < 200; j++) {
            uint64_t before = kernel_sent(fd);
            put(fd, "x");
            if (*get(fd, 1) != 'x') die("echo");
            if (kind && j > 20 && kernel_sent(fd) == before) break;
            if (!kind && j > 20) break;
            if (kind && j > 20) usleep(1000);
        }
        if (kind && !by_kernel) must_ring(fd, "to a worker with the shim"), get(fd, 1);
        close(fd);
    }
    say("with %d, without %d", seen[1] >= 5, seen[0] >= 5);
    step();
}

const struct test_case cases[] = {
    {"accept_flags", NONE, accept_flags, servant},
    {"accept_addresses", NONE, accept_addresses, servant},
    {"accepted_has_its_options", NONE, accepted_has_its_options, servant},
    {"accept_by_threads", NONE, accept_by_threads, accept_by_threads_b},
    {"accept_interrupted", NONE, accept_interrupted, servant},
    {"shutdown_of_a_listener", NONE, shutdown_of_a_listener, servant},
    {"closed_with_one_waiting", NONE, closed_with_one_waiting, servant},
    {"waiting_ones_keep_what_came", NONE, waiting_ones_keep_what_came, servant},
    {"listen_odd", NONE, listen_odd, servant},
    {"backlog_full", NONE, backlog_full, servant},
    {"send_time_out_of_connect", NONE, send_time_out_of_connect, servant},
    {"reuseport_needs_both", NONE, reuseport_needs_both, servant},
    {"reuseport_workers", NONE, reuseport_workers, reuseport_workers_b},
    {0},
};
