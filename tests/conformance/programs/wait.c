// Waiting by epoll in all its modes, and what it shows at each moment of longer stories.
#include "waits.h"

static void level_a(int fd) {
    ep = epoll_create1(0);
    want(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 7);
    show_epoll("new", 0);
    show_epoll("new again", 5000);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP, 8);
    show_epoll("idle", 0);
    show_epoll("idle", 30);
    step();
    show_epoll("wakes", 5000);
    show_epoll("again", 5000);
    say("%s", get(fd, 2));
    show_epoll("rest", 5000);
    say("%s", get(fd, 10));
    show_epoll("empty", 20);
    want(EPOLL_CTL_MOD, fd, EPOLLOUT, 9);
    show_epoll("out", 5000);
    step();
    settle(fd, 2);
    show_epoll("data, not asked for", 20);
    want(EPOLL_CTL_MOD, fd, 0, 9);
    show_epoll("nothing asked", 20);
    want(EPOLL_CTL_MOD, fd, EPOLLIN, 10);
    show_epoll("asked", 20);
    want(EPOLL_CTL_DEL, fd, 0, 0);
    show_epoll("removed", 20);
    struct epoll_event event = {.events = EPOLLIN};
    say("mod %s", outcome(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event)));
    say("del %s", outcome(epoll_ctl(ep, EPOLL_CTL_DEL, fd, &event)));
    want(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT, 11);
    say("add %s", outcome(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)));
    show_epoll("added again", 20);
    say("%s", get(fd, 10));
    uint64_t sent = stuff(fd);
    show_epoll("full", 20);
    tell(sent);
    hear();
    show_epoll("room", 5000);
    step();
    nonblocking(fd, 0);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP, 12);
    step();
    no_longer_established(fd);
    show_epoll("end", 5000);
    say("%s", get(fd, 10));
    show_epoll("end", 5000);
    say("'%s'", get(fd, 10));
    show_epoll("end", 5000);
    want(EPOLL_CTL_MOD, fd, 0, 12);
    show_epoll("end, nothing asked", 20);
    shutdown(fd, SHUT_WR);
    show_epoll("both", 5000);
    close(fd);
    show_epoll("closed", 20);
    step();
}
static void level_b(int fd) {
    step();
    usleep(30000);
    put(fd, "abcd");
    step();
    put(fd, "ef");
    recv_all(fd, 0, hear(), 30000);
    tell(0);
    step();
    put(fd, "gh");
    shutdown(fd, SHUT_WR);
    step();
    step();
}

static void edge_a(int fd) {
    ep = epoll_create1(EPOLL_CLOEXEC);
    nonblocking(fd, 1);
    want(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 7);
    show_epoll("new", 0);
    show_epoll("nothing new", 20);
    step();
    show_epoll("wakes", 5000);
    show_epoll("nothing new", 20);
    say("%s", get(fd, 2));
    show_epoll("partly read, nothing new", 20);
    step();
    show_epoll("more", 5000);
    show_epoll("nothing new", 20);
    say("%s", get(fd, 100));
    say("%s", get(fd, 100));
    show_epoll("empty, nothing new", 20);
    put(fd, "x");
    show_epoll("sent, nothing new", 20);
    step();
    // Room shows only after a send that found none.
    show_epoll("read by the peer, nothing new", 20);
    uint64_t sent = stuff(fd);
    show_epoll("full", 20);
    tell(sent);
    hear();
    show_epoll("room", 5000);
    show_epoll("nothing new", 20);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 8);
    show_epoll("armed anew", 20);
    show_epoll("nothing new", 20);
    step();
    step();
    no_longer_established(fd);
    show_epoll("data and end", 5000);
    show_epoll("nothing new", 20);
    say("%s", get(fd, 100));
    say("'%s'", get(fd, 100));
    show_epoll("nothing new", 20);
    shutdown(fd, SHUT_WR);
    show_epoll("both", 5000);
    show_epoll("nothing new", 20);
    step();
}
static void edge_b(int fd) {
    char byte;
    step();
    usleep(30000);
    put(fd, "abcd");
    step();
    put(fd, "ef");
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
    recv_all(fd, 0, hear(), 30000);
    tell(0);
    step();
    put(fd, "gh");
    shutdown(fd, SHUT_WR);
    step();
    step();
}

static void oneshot_a(int fd) {
    ep = epoll_create(1);
    want(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, 7);
    show_epoll("idle", 20);
    step();
    show_epoll("wakes", 5000);
    show_epoll("spent", 20);
    step();
    settle(fd, 6);
    show_epoll("spent, more data", 20);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 8);
    show_epoll("armed", 20);
    show_epoll("spent", 20);
    say("%s", get(fd, 100));
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT | EPOLLONESHOT | EPOLLET, 9);
    show_epoll("armed for out", 20);
    show_epoll("spent", 20);
    step();
    settle(fd, 1);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 10);
    show_epoll("armed", 20);
    show_epoll("spent", 20);
    get(fd, 10);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 11);
    show_epoll("armed, empty", 20);
    step();
    no_longer_established(fd);
    show_epoll("closed", 5000);
    show_epoll("spent", 20);
    step();
}
static void oneshot_b(int fd) {
    step();
    usleep(30000);
    put(fd, "abcd");
    step();
    put(fd, "ef");
    step();
    put(fd, "g");
    step();
    close(fd);
    step();
}

// Registered before there is a channel; the channel comes while epoll is in use.
static void epoll_cold_a(int fd) {
    ep = epoll_create1(0);
    nonblocking(fd, 1);
    want(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 7);
    char buffer[64];
    uint64_t total = 0;
    while (1) {
        struct epoll_event event;
        int count = epoll_wait(ep, &event, 1, 5000);
        if (count != 1 || event.data.u64 != 7 || event.events & ~(EPOLLIN | EPOLLOUT)) die("epoll %d %s at %lu", count, bits(event.events), total);
        while (1) {
            ssize_t got = recv(fd, buffer, sizeof buffer, 0);
            if (got < 0) break;
            if (got == 0) die("end of file");
            check(buffer, total, got);
            total += got;
            if (send(fd, "a", 1, 0) != 1) die("send");
        }
        if (errno != EAGAIN) die("receive");
        if (total == 2000) break;
    }
    say("all there");
    step();
}
static void epoll_cold_b(int fd) {
    char byte;
    for (int i = 0; i < 2000; i++) {
        send_all(fd, i, 1, 1);
        if (i % 3 == 0 && recv(fd, &byte, 1, 0) != 1) die("receive");
    }
    step();
}

// Descriptors of other kinds in one epoll, beside sockets.
static void mixed_a(int fd) {
    int event_fd = eventfd(0, EFD_NONBLOCK), pipe_fds[2];
    if (pipe(pipe_fds)) die("pipe");
    ep = epoll_create1(0);
    want(EPOLL_CTL_ADD, event_fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, pipe_fds[0], EPOLLIN | EPOLLET, 2);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 3);
    show_epoll("idle", 10);
    uint64_t one = 1;
    if (write(event_fd, &one, 8) != 8) die("write");
    show_epoll("event", 1000);
    if (write(pipe_fds[1], "x", 1) != 1) die("write");
    show_epoll("event and pipe", 1000);
    if (read(event_fd, &one, 8) != 8) die("read");
    show_epoll("nothing", 10);
    step();
    show_epoll("socket", 5000);
    if (write(event_fd, &one, 8) != 8) die("write");
    // A busy socket must not hide the others for ever.
    int seen = 0;
    for (int i = 0; i < 100 && !seen; i++) {
        struct epoll_event events[8];
        int count = epoll_wait(ep, events, 8, 1000);
        for (int j = 0; j < count; j++) seen |= events[j].data.u64 == 1;
    }
    say("seen %d", seen);
    // Room for one at a time: both get their turn.
    int turns[4] = {0};
    for (int i = 0; i < 200; i++) {
        struct epoll_event event;
        if (epoll_wait(ep, &event, 1, 1000) != 1) die("epoll");
        turns[event.data.u64]++;
    }
    say("turns %d %d", turns[1] > 4, turns[3] > 4);
    step();
}
static void mixed_b(int fd) {
    step();
    put(fd, "abc");
    step();
}

// An epoll instance watched by another one, by poll and by select.
static void nested_a(int fd) {
    int inner = epoll_create1(0);
    ep = inner;
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 7);
    show_epoll("inner idle", 0);
    ep = epoll_create1(0);
    want(EPOLL_CTL_ADD, inner, EPOLLIN, 1);
    show_epoll("outer idle", 10);
    step();
    show_epoll("outer wakes", 3000);
    show_epoll("outer again", 3000);
    ep = inner;
    show_epoll("inner", 0);
    say("%s", get(fd, 10));
    show_epoll("inner empty", 10);
    step();
    int shown;
    say("poll %d", pollx(inner, POLLIN, 3000, &shown));
    show_epoll("inner", 0);
    say("%s", get(fd, 10));
    show_epoll("inner empty", 10);
    step();
    fd_set in;
    FD_ZERO(&in);
    FD_SET(inner, &in);
    struct timeval time = {3, 0};
    say("select %s", outcome(select(inner + 1, &in, NULL, NULL, &time)));
    show_epoll("inner", 0);
    step();
}
static void nested_b(int fd) {
    for (int i = 0; i < 3; i++) {
        step();
        usleep(30000);
        put(fd, "abc");
    }
    step();
}

// Eight threads wait in one epoll, each connection is served by whoever gets it.
#define CONNECTIONS 40
#define ROUNDS 300
static int served[CONNECTIONS], finished;
static uint64_t last_served_ms;
static void *server_thread(void *unused) {
    (void)unused;
    while (1) {
        struct epoll_event event;
        int count = epoll_wait(ep, &event, 1, 5000);
        if (count < 0 && errno == EINTR) continue;
        // One thread may have nothing to do for long; not all of them.
        if (count == 0 && now_ms() - __atomic_load_n(&last_served_ms, __ATOMIC_SEQ_CST) < 4000) continue;
        if (count != 1) die("epoll %d, finished %d", count, __atomic_load_n(&finished, __ATOMIC_SEQ_CST));
        __atomic_store_n(&last_served_ms, now_ms(), __ATOMIC_SEQ_CST);
        int fd = event.data.u64 >> 32, index = (int)event.data.u64;
        if (index == CONNECTIONS) return NULL;
        char buffer[100];
        ssize_t got = recv(fd, buffer, sizeof buffer, 0);
        if (got == 0) {
            close(fd);
            if (__atomic_add_fetch(&finished, 1, __ATOMIC_SEQ_CST) == CONNECTIONS) {
                int bell = eventfd(1, 0);
                want(EPOLL_CTL_ADD, bell, EPOLLIN, CONNECTIONS);
            }
            continue;
        }
        if (got < 0) die("receive");
        check(buffer, served[index], got);
        served[index] += got;
        if (send(fd, buffer, got, 0) != got) die("send");
        want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, (uint64_t)fd << 32 | index);
    }
}
static void eight_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    pthread_t threads[8];
    ep = epoll_create1(0);
    // Threads wait before there is anything to wait for.
    for (int i = 0; i < 8; i++) pthread_create(threads + i, NULL, server_thread, NULL);
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
        want(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, (uint64_t)fd << 32 | i);
    }
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    say("served");
}
static void *client_thread(void *argument) {
    int fd = dial((long)argument);
    for (int i = 0; i < ROUNDS; i++) {
        send_all(fd, i * 10, 10, 10);
        recv_all(fd, i * 10, 10, 10);
    }
    close(fd);
    return NULL;
}
static void eight_b(int unused) {
    (void)unused;
    long port = hear();
    pthread_t threads[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) pthread_create(threads + i, NULL, client_thread, (void *)port);
    for (int i = 0; i < CONNECTIONS; i++) pthread_join(threads[i], NULL);
    say("answered");
}

// Two threads sleep in one epoll; the one that wakes does not come back for long.
static int stuck_fd[2];
static int stuck_seen[2];
static void *stuck_thread(void *unused) {
    (void)unused;
    struct epoll_event event;
    if (epoll_wait(ep, &event, 1, 5000) != 1) die("a waiter was forgotten");
    int index = event.data.u64;
    __atomic_store_n(stuck_seen + index, 1, __ATOMIC_SEQ_CST);
    // Until the other thread has seen the other connection.
    for (int i = 0; !__atomic_load_n(stuck_seen + 1 - index, __ATOMIC_SEQ_CST); i++) {
        if (i > 3000) die("the other waiter was forgotten");
        usleep(1000);
    }
    return NULL;
}
static void stuck_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    ep = epoll_create1(0);
    for (int i = 0; i < 2; i++) {
        stuck_fd[i] = accept(listener, NULL, NULL);
        warm(stuck_fd[i], 0);
        want(EPOLL_CTL_ADD, stuck_fd[i], EPOLLIN | EPOLLET, i);
    }
    for (int together = 0; together < 2; together++) {
        pthread_t threads[2];
        stuck_seen[0] = stuck_seen[1] = 0;
        for (int i = 0; i < 2; i++) pthread_create(threads + i, NULL, stuck_thread, NULL);
        usleep(50000);
        tell(together);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        step();
        for (int i = 0; i < 2; i++) get(stuck_fd[i], 10);
    }
    say("both");
    step();
}
static void stuck_b(int unused) {
    (void)unused;
    int port = hear(), fds[2];
    for (int i = 0; i < 2; i++) fds[i] = dial(port), warm(fds[i], 1);
    for (int together = 0; together < 2; together++) {
        hear();
        for (int i = 0; i < 2; i++) {
            put(fds[i], "x");
            if (!together) usleep(20000);
        }
        step();
    }
    step();
}

// An idle process with a connection on the ring is not woken.
static long switches(void) {
    char line[256];
    long count = -1;
    FILE *file = fopen("/proc/thread-self/status", "r");
    while (fgets(line, sizeof line, file)) sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    fclose(file);
    return count;
}
static void idle_a(int fd) {
    ep = epoll_create1(0);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    step();
    struct epoll_event event;
    epoll_wait(ep, &event, 1, 50);
    long before = switches();
    if (epoll_wait(ep, &event, 1, 1500) != 0) die("epoll");
    if (switches() - before > 2) die("epoll was woken %ld times", switches() - before);
    int shown;
    pollx(fd, POLLIN, 50, &shown); // makes its doorbell known
    before = switches();
    if (pollx(fd, POLLIN, 1500, &shown) != 0) die("poll");
    if (switches() - before > 2) die("poll was woken %ld times", switches() - before);
    step();
}
static void idle_b(int fd) {
    char byte;
    struct timeval time = {0, 50000};
    step();
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    recv(fd, &byte, 1, 0);
    time = (struct timeval){1, 500000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    long before = switches();
    say("recv %s", outcome(recv(fd, &byte, 1, 0)));
    if (switches() - before > 3) die("recv was woken %ld times", switches() - before);
    step();
}

const struct test_case cases[] = {
    {"level", WARM, level_a, level_b},
    {"edge", WARM, edge_a, edge_b},
    {"oneshot", WARM, oneshot_a, oneshot_b},
    {"epoll_cold", COLD, epoll_cold_a, epoll_cold_b},
    {"mixed", WARM, mixed_a, mixed_b},
    {"nested", WARM, nested_a, nested_b},
    {"eight_threads", NONE, eight_a, eight_b},
    {"stuck", NONE, stuck_a, stuck_b},
    {"idle", WARM, idle_a, idle_b},
    {0},
};
