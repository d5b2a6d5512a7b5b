// epoll with more than one of something: connections that want their turn, descriptors of
// other kinds, duplicates, instances in instances; and rings that come while it waits. B is
// the servant of waits.h.
#include "waits.h"
#include <sys/signalfd.h>
#include <sys/timerfd.h>

// --- turns ---

enum { BUSY = 8 };
static void fairness_one_at_a_time(int fd) {
    int fds[BUSY] = {fd}, turns[BUSY] = {0};
    ep = epoll_create1(0);
    for (int i = 0; i < BUSY; i++) {
        if (i) fds[i] = more(1);
        want(EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
        ask_for(SEND, i, 1);
        arrived(fds[i], 1);
    }
    for (int i = 0; i < 40 * BUSY; i++) {
        struct epoll_event event;
        if (epoll_wait(ep, &event, 1, 1000) != 1) die("epoll");
        turns[event.data.u64]++;
    }
    for (int i = 0; i < BUSY; i++) say("%d: %s", i, turns[i] >= 10 ? "its share" : "starved");
}
// Everything that the kernel shows has its turn beside rings that always have something.
static void fairness_of_others(int fd) {
    int fds[4] = {fd}, pipes[2], unix_fds[2], port, listener = listen_any(&port);
    ep = epoll_create1(0);
    for (int i = 0; i < 4; i++) {
        if (i) fds[i] = more(1);
        want(EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
        ask_for(SEND, i, 1);
        arrived(fds[i], 1);
    }
    int cold = more(0);
    ask_for(SEND, number_of_more, 1);
    arrived(cold, 1);
    struct itimerspec time = {.it_value.tv_nsec = 1};
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    timerfd_settime(timer, 0, &time, NULL);
    if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, unix_fds)) die("pipe");
    if (write(pipes[1], "x", 1) != 1 || write(unix_fds[1], "x", 1) != 1) die("write");
    int waiting = dial(port), others[] = {pipes[0], eventfd(1, 0), timer, unix_fds[0], listener, cold, pipes[1]};
    (void)waiting;
    int seen[11] = {0}, count = sizeof others / sizeof *others;
    for (int i = 0; i < count; i++) want(EPOLL_CTL_ADD, others[i], i == 6 ? EPOLLOUT : EPOLLIN, 4 + i);
    for (int i = 0; i < 600; i++) {
        struct epoll_event event;
        if (epoll_wait(ep, &event, 1, 1000) != 1) die("epoll");
        seen[event.data.u64]++;
    }
    for (int i = 0; i < 4 + count; i++) say("%d: %s", i, seen[i] ? "seen" : "starved");
}
// A program that does something between its waits, and has a connection by the kernel that always
// has something, is told of a ring's in its next wait all the same.
static void fairness_beside_the_kernel(int fd) {
    int cold = more(0);
    ep = epoll_create1(0);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, cold, EPOLLIN, 2);
    ask_for(SEND, 1, 1);
    arrived(cold, 1);
    for (int round = 0; round < 10; round++) {
        ask_for(SEND, 0, 1);
        arrived(fd, 1);
        int waits = 0, told = 0;
        while (!told) {
            struct epoll_event events[8];
            usleep(100);
            int count = epoll_wait(ep, events, 8, 1000);
            if (++waits > 100) die("starved");
            for (int i = 0; i < count; i++) told |= events[i].data.u64 == 1;
        }
        say("%d: told in wait %d", round, waits);
        get(fd, 1);
    }
}
// Idle connections, many of them, hide nobody: not the last, not the first.
static void fairness_beside_idle_ones(int fd) {
    enum { IDLE = 90 };
    int fds[IDLE] = {fd};
    ep = epoll_create1(0);
    for (int i = 0; i < IDLE; i++) {
        if (i) fds[i] = more(1);
        want(EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
    }
    struct epoll_event event;
    for (int i = 0; i < 200; i++)
        if (epoll_wait(ep, &event, 1, 0) != 0) die("epoll");
    for (int i = 0; i < IDLE; i += 7) {
        ask_for(SEND | (i % 2 ? LATER : 0), i, 1);
        if (epoll_wait(ep, &event, 1, 5000) != 1 || event.data.u64 != (uint64_t)i) die("epoll shows %lu for %d", event.data.u64, i);
        get(fds[i], 1);
    }
    say("all");
}
// One of many idle ones finds no room long after its last event: room is an edge for it, too.
static void fairness_room_of_an_idle_one(int fd) {
    enum { IDLE = 90, MIDDLE = 5 };
    int fds[IDLE] = {fd};
    ep = epoll_create1(0);
    for (int i = 0; i < IDLE; i++) {
        if (i) fds[i] = more(1);
        nonblocking(fds[i], 1);
        want(EPOLL_CTL_ADD, fds[i], EPOLLIN | EPOLLOUT | EPOLLET, i);
    }
    struct epoll_event event;
    for (int i = 0; i < 400; i++)
        if (epoll_wait(ep, &event, 1, 0) < 0) die("epoll");
    static char bytes[1 << 16];
    uint64_t sent = 0;
    for (int quiet = 0; quiet < 10;) {
        ssize_t now = send(fds[MIDDLE], bytes, sizeof bytes, 0);
        if (now > 0) sent += now, quiet = 0;
        else usleep(2000), quiet++;
    }
    if (epoll_wait(ep, &event, 1, 0) != 0) die("crammed, and %lu: %s", event.data.u64, bits(event.events));
    ask_for(RECEIVE, MIDDLE, sent);
    int count = epoll_wait(ep, &event, 1, 5000);
    say("%s of %d", count == 1 ? bits(event.events) : "nothing", count == 1 ? (int)event.data.u64 : -1);
}

// --- the order in one wait ---

enum { ORDERED = 6 };
static int ordered[ORDERED];
static void order(int fd) {
    ep = epoll_create1(0);
    for (int i = 0; i < ORDERED; i++) {
        ordered[i] = i ? more(1) : fd;
        want(EPOLL_CTL_ADD, ordered[i], EPOLLIN, i);
    }
}
static void come_to_all(void) {
    for (int i = 0; i < ORDERED; i++) {
        ask_for(SEND, i, 1);
        arrived(ordered[i], 1);
    }
}
static void show_nothing(void) {
    struct epoll_event event;
    if (epoll_wait(ep, &event, 1, 0) != 0) die("not empty");
}
static void show_order(const char *when, int room) {
    struct epoll_event events[ORDERED];
    char line[8 * ORDERED] = "";
    int count = epoll_wait(ep, events, room, 1000);
    for (int i = 0; i < count; i++) sprintf(line + strlen(line), " %d", (int)events[i].data.u64);
    say("%s:%s", when, line);
}
static void empty_all(void) {
    for (int i = 0; i < ORDERED; i++) drain(ordered[i]);
    show_nothing();
}
// As they became ready, and then as they were told of.
static void order_of_rings(int fd) {
    order(fd);
    for (int round = 0; round < 3; round++) {
        come_to_all();
        show_order("all", ORDERED);
        show_order("all again", ORDERED);
        empty_all();
    }
}
// What found no room is first in the next wait.
static void order_without_room(int fd) {
    order(fd);
    come_to_all();
    for (int round = 0; round < 5; round++) show_order("four of six", 4);
    for (int round = 0; round < 7; round++) show_order("one of six", 1);
}
// What was told of in the wait before is still in the kernel's list, and so before others.
static void order_of_the_last_one(int fd) {
    order(fd);
    for (int last = ORDERED - 1; last >= 0; last--) {
        come_to_all();
        empty_all();
        ask_for(SEND, last, 1);
        arrived(ordered[last], 1);
        show_order("one", ORDERED);
        drain(ordered[last]);
        come_to_all();
        struct epoll_event events[ORDERED];
        if (epoll_wait(ep, events, ORDERED, 1000) != ORDERED) die("not all");
        say("first %d", (int)events[0].data.u64);
        empty_all();
    }
}
// In the order of arrival, whatever was registered or told of before; what is told of at each level
// keeps its place, and a second byte does not take it away.
static void order_of_arrival_as(int fd, int how) {
    static const int orders[][ORDERED] = {{5, 3, 1, 0, 2, 4}, {2, 5, 0, 4, 1, 3}, {0, 1, 2, 3, 4, 5}, {4, 2, 0, 5, 3, 1}};
    order(fd);
    for (int i = 0; i < ORDERED; i++) want(EPOLL_CTL_MOD, ordered[i], how, i);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < ORDERED; i++) {
            ask_for(SEND, orders[round][i], 1);
            arrived(ordered[orders[round][i]], 1);
            // The first one again, behind each of the others.
            ask_for(SEND, orders[round][0], 1);
            arrived(ordered[orders[round][0]], i + 2);
        }
        show_order("four", 4);
        show_order("the rest, and again", ORDERED);
        if (!(how & EPOLLET)) show_order("again", ORDERED);
        empty_all();
    }
}
// With room for one, each has its turn, also beside those that get new bytes whenever they are told of.
static void order_in_turns_as(int fd, int how) {
    struct epoll_event event;
    char line[100] = "";
    order(fd);
    for (int i = 0; i < ORDERED; i++) want(EPOLL_CTL_MOD, ordered[i], how, i);
    come_to_all();
    for (int round = 0; round < 3 * ORDERED; round++) {
        if (epoll_wait(ep, &event, 1, 1000) != 1) die("epoll");
        int told = event.data.u64;
        sprintf(line + strlen(line), " %d", told);
        drain(ordered[told]);
        ask_for(SEND, told, 1);
        arrived(ordered[told], 1);
    }
    say("turns:%s", line);
}
static void order_in_turns(int fd) { order_in_turns_as(fd, EPOLLIN); }
static void order_in_turns_edges(int fd) { order_in_turns_as(fd, EPOLLIN | EPOLLET); }
// What is ready when it is armed again comes behind what was ready by then.
static void order_rearmed(int fd) {
    static const int rearmed[ORDERED] = {3, 1, 5, 0, 2, 4};
    order(fd);
    for (int i = 0; i < ORDERED; i++) {
        want(EPOLL_CTL_MOD, ordered[i], EPOLLIN | EPOLLONESHOT, i);
        ask_for(SEND, i, 2);
        arrived(ordered[i], 2);
    }
    for (int round = 0; round < 3; round++) {
        show_order("all", ORDERED);
        for (int i = 0; i < ORDERED; i++) {
            char byte;
            if (i % 2 && recv(ordered[rearmed[i]], &byte, 1, 0) != 1) die("recv");
            want(EPOLL_CTL_MOD, ordered[rearmed[i]], EPOLLIN | EPOLLONESHOT, rearmed[i]);
            if (i % 2) {
                ask_for(SEND, rearmed[i], 1);
                arrived(ordered[rearmed[i]], 2);
            }
        }
    }
    show_order("at last", ORDERED);
}
// What is deleted and added between two waits comes behind what was ready by then.
static void order_added_again(int fd) {
    order(fd);
    for (int round = 0; round < 3; round++) {
        come_to_all();
        show_order("all", ORDERED);
        for (int i = 1; i < ORDERED; i += 2) {
            want(EPOLL_CTL_DEL, ordered[i], 0, i);
            want(EPOLL_CTL_ADD, ordered[i], EPOLLIN, i);
        }
        show_order("some added again", ORDERED);
        show_order("again", ORDERED);
        empty_all();
    }
}
// What has something when it is added stands where it was added, whenever that came.
static void order_added_when_ready(int fd) {
    const int turn[ORDERED] = {3, 0, 5, 1, 4, 2};
    for (int i = 0; i < ORDERED; i++) ordered[i] = i ? more(1) : fd;
    come_to_all();
    ep = epoll_create1(0);
    for (int i = 0; i < ORDERED; i++) want(EPOLL_CTL_ADD, ordered[turn[i]], EPOLLIN, turn[i]);
    show_order("as added", ORDERED);
    show_order("again", ORDERED);
    empty_all();
}
static void order_of_arrival(int fd) { order_of_arrival_as(fd, EPOLLIN); }
static void order_of_arrival_edges(int fd) { order_of_arrival_as(fd, EPOLLIN | EPOLLET); }
// A connection without rings always has something, and the program takes its time between waits.
static void order_beside_the_kernel(int fd) {
    int port, listener = listen_any(&port), told[3] = {0};
    struct sockaddr_storage address;
    socklen_t length = place(me, port, &address);
    // Past the library, so that the other end has nobody to share rings with.
    long far = raw_syscall(SYS_socket, address.ss_family, SOCK_STREAM, 0, 0, 0, 0);
    if (raw_syscall(SYS_connect, far, (long)&address, length, 0, 0, 0)) die("connect");
    int near = accept(listener, NULL, NULL);
    if (raw_syscall(SYS_write, far, (long)"x", 1, 0, 0, 0) != 1) die("write");
    ep = watching(near, EPOLLIN, 2);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    come(fd, 1);
    for (int round = 0; round < 50; round++) {
        struct epoll_event events[4];
        usleep(200);
        int count = epoll_wait(ep, events, 4, 1000);
        for (int i = 0; i < count; i++) told[events[i].data.u64]++;
    }
    say("by the ring %d of 50, by the kernel %s", told[1], told[2] ? "too" : "never");
}

// --- other descriptors beside a connection on rings ---

// A connection that was told of by the kernel's word, and by nothing since, gets a ring: it keeps
// its place. When that is cannot be chosen, so several get theirs in turn.
static void told_in_order(int count, const int numbers[2], const int fds[2]) {
    // What has a ring and what has none need not come by the same wait.
    for (int told = 0; told < count;) {
        struct epoll_event events[8];
        char byte;
        int found = epoll_wait(ep, events, 8, 1000);
        if (found <= 0) die("epoll");
        for (int i = 0; i < found; i++, told++) {
            if (told == count || events[i].data.u64 != (uint64_t)numbers[told]) die("not in the order of arrival");
            if (recv(fds[told], &byte, 1, 0) != 1) die("receive");
        }
    }
}
static void order_of_a_new_ring(int fd) {
    ep = epoll_create1(0);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 0);
    for (int i = 1; i <= 10; i++) {
        int late = more(0), number = number_of_more;
        want(EPOLL_CTL_ADD, late, EPOLLIN, i);
        for (int round = 0; round < 6; round++) {
            ask_for(SEND, number, 1);
            arrived(late, 1);
            told_in_order(1, (int[2]){i}, (int[2]){late});
            ask_for(SEND, number, 1);
            arrived(late, 1);
            ask_for(SEND, 0, 1);
            arrived(fd, 1);
            told_in_order(2, (int[2]){i, 0}, (int[2]){late, fd});
        }
    }
    say("in order");
}
static void beside_timer_and_event(int fd) {
    struct itimerspec time = {.it_value.tv_nsec = 20000000};
    int timer = timerfd_create(CLOCK_MONOTONIC, 0), event = eventfd(0, EFD_NONBLOCK);
    uint64_t count = 5;
    ep = watching(fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, timer, EPOLLIN, 2);
    want(EPOLL_CTL_ADD, event, EPOLLIN | EPOLLET, 3);
    timerfd_settime(timer, 0, &time, NULL);
    show_epoll("timer", 5000);
    if (read(timer, &count, 8) != 8) die("read");
    show_epoll("idle", 0);
    if (write(event, &count, 8) != 8) die("write");
    show_epoll("event", 5000);
    show_epoll("nothing new", 0);
    if (write(event, &count, 8) != 8) die("write");
    come(fd, 1);
    show_together("both", 2);
    show_epoll("the socket", 0);
}
static void beside_pipe_ends(int fd) {
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    ep = watching(fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, pipes[0], EPOLLIN, 2);
    want(EPOLL_CTL_ADD, pipes[1], EPOLLOUT | EPOLLET, 3);
    show_epoll("room", 0);
    if (write(pipes[1], "x", 1) != 1) die("write");
    show_epoll("data", 0);
    close(pipes[1]);
    show_epoll("data and end", 0);
    char byte;
    if (read(pipes[0], &byte, 1) != 1) die("read");
    show_epoll("end", 0);
    come(fd, 1);
    show_together("end, and the socket", 2);
}
static void beside_listener(int fd) {
    int port, listener = listen_any(&port);
    nonblocking(listener, 1);
    ep = watching(fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, listener, EPOLLIN | EPOLLET, 2);
    show_epoll("idle", 0);
    int one = dial(port), two = dial(port);
    show_epoll("connections", 1000);
    show_epoll("nothing new", 0);
    say("accept %d", accept(listener, NULL, NULL) >= 0);
    say("accept %d", accept(listener, NULL, NULL) >= 0);
    say("accept %s", outcome(accept(listener, NULL, NULL)));
    come(fd, 1);
    show_epoll("the socket", 1000);
    close(one), close(two);
}
static void beside_signalfd(int fd) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, 0);
    ep = watching(fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, signals, EPOLLIN, 2);
    show_epoll("idle", 0);
    kill(getpid(), SIGUSR2);
    show_epoll("signal", 1000);
    come(fd, 1);
    show_together("both", 2);
}

// --- registrations that come early, and that outlive their descriptor ---

static void add_before_connect(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    struct sockaddr_storage address;
    socklen_t length = place(me, port, &address);
    int fd = socket(address.ss_family, SOCK_STREAM, 0);
    ep = watching(fd, EPOLLIN | EPOLLOUT, 1);
    show_epoll("unconnected", 0);
    say("connect %s", outcome(connect(fd, (void *)&address, length)));
    show_epoll("connected", 0);
    int far = accept(listener, NULL, NULL);
    for (int i = 0; i < 50; i++) {
        put(far, "x");
        struct epoll_event event;
        want(EPOLL_CTL_MOD, fd, EPOLLIN, 2);
        if (epoll_wait(ep, &event, 1, 5000) != 1 || event.events != EPOLLIN) die("epoll %d", i);
        get(fd, 1);
        want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT | EPOLLET, 3);
        put(fd, "y");
        if (*get(far, 1) != 'y') die("receive");
    }
    talk(fd, far);
}
static void add_before_listen(int unused) {
    (void)unused;
    struct sockaddr_storage address;
    socklen_t length = place(me, 0, &address);
    int fd = socket(address.ss_family, SOCK_STREAM, 0);
    ep = watching(fd, EPOLLIN, 1);
    show_epoll("unbound", 0);
    if (bind(fd, (void *)&address, length) || getsockname(fd, (void *)&address, &length) || listen(fd, 5)) die("listen");
    show_epoll("listening", 0);
    int near = dial(ntohs(((struct sockaddr_in *)&address)->sin_port));
    show_epoll("a connection", 1000);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 2);
    show_epoll("edge", 1000);
    show_epoll("nothing new", 0);
    say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0)));
    int far = accept(fd, NULL, NULL);
    put(near, "x");
    say("%s", get(far, 1));
}
static void close_takes_it_out(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLOUT, 1);
    show_epoll("open", 0);
    come(fd, 1);
    close(fd);
    show_epoll("closed", 0);
    say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0)));
    show_epoll("closed", 20);
}
static void close_with_a_duplicate(int fd) {
    int copy = dup(fd);
    ep = watching(fd, EPOLLIN, 1);
    close(fd);
    come(copy, 1);
    show_epoll("still there", 1000);
    say("mod %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLOUT, 1)));
    say("by the duplicate %s", outcome(ctl(ep, EPOLL_CTL_DEL, copy, 0, 0)));
    say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, copy, EPOLLIN, 2)));
    show_epoll("twice", 1000);
    say("%s", get(copy, 10));
    show_epoll("idle", 0);
    close(copy);
    show_epoll("gone", 0);
}
static void close_of_the_duplicate(int fd) {
    int copy = dup(fd);
    ep = watching(copy, EPOLLIN, 2);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    close(copy);
    come(fd, 1);
    show_epoll("both still", 1000);
    want(EPOLL_CTL_DEL, fd, 0, 0);
    show_epoll("the closed one still", 1000);
}
static void number_used_again(int fd) {
    int second = more(1);
    ep = watching(second, EPOLLIN, 1);
    ask_for(SEND, 1, 1);
    arrived(second, 1);
    show_epoll("first", 1000);
    close(second);
    int third = more(1);
    say("same number %d", third == second);
    show_epoll("not added", 0);
    say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, third, EPOLLIN, 2)));
    show_epoll("idle", 0);
    ask_for(SEND, 2, 1);
    arrived(third, 1);
    show_epoll("second", 1000);
    (void)fd;
}
// The last descriptor of a registered socket is closed in the very moment in which it is offered,
// and the peer ends it: nothing of it may be told, least of all as the next registration's.
static void taken_over_at_once(int fd) {
    int port, listener = listen_any(&port), false_ones = 0;
    int idle = dial(port), idle_far = accept(listener, NULL, NULL);
    ep = watching(fd, EPOLLIN, 0);
    for (int round = 0; round < 300; round++) {
        struct epoll_event events[4];
        int near = dial(port), far = accept(listener, NULL, NULL);
        want(EPOLL_CTL_ADD, near, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 1);
        put(far, "x");
        put(near, "y");
        if (*get(near, 1) != 'x' || *get(far, 1) != 'y') die("receive");
        put(far, "unread");
        close(near);
        close(far);
        want(EPOLL_CTL_ADD, idle, EPOLLIN | EPOLLRDHUP, 2);
        for (int look = 0; look < 3; look++) {
            int count = epoll_wait(ep, events, 4, look == 2);
            if (count < 0) die("epoll_wait");
            false_ones += count != 0;
        }
        want(EPOLL_CTL_DEL, idle, 0, 0);
    }
    say("told of what is not: %d", false_ones);
    close(idle_far);
}
static void pass_descriptor(int by, int fd) {
    char space[CMSG_SPACE(sizeof fd)];
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(by, &message, 0) != 1) die("sendmsg");
}
// As `close_with_a_duplicate`, and the number is another registered socket's when the first
// connection leaves its rings.
static void closed_number_used_again(int fd) {
    int copy = dup(fd), second = more(1);
    ep = watching(fd, EPOLLIN, 1);
    close(fd);
    if (dup2(second, fd) != fd) die("dup2");
    close(second);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 2);
    // One that is passed leaves its rings.
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
    pass_descriptor(pair[0], copy);
    come_anyhow(copy, 1);
    show_epoll("the first", 1000);
    say("%s", get(copy, 10));
    show_epoll("idle", 20);
    ask_for(SEND, 1, 1);
    arrived(fd, 1);
    show_epoll("the second", 1000);
    say("%s", get(fd, 10));
    come_anyhow(copy, 1);
    show_epoll("the first", 1000);
    say("%s", get(copy, 10));
    ask_for(SHUT, 1, 0);
    no_longer_established(fd);
    show_epoll("the end of the second", 1000);
    show_epoll("the end of the second", 1000);
}
static void dup2_over_a_registered_one(int fd) {
    int second = more(1);
    ep = watching(second, EPOLLIN, 1);
    ask_for(SEND, 1, 1);
    arrived(second, 1);
    show_epoll("registered", 1000);
    if (dup2(fd, second) != second) die("dup2");
    show_epoll("overwritten", 0);
    say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, second, 0, 0)));
    say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, second, EPOLLIN, 2)));
    come(fd, 1);
    show_epoll("the other connection", 1000);
}

// B connects, ends a connection, or sends by one without rings, and then sends by the ring: what it
// did first is told first, or with it. Nobody waits meanwhile; the machine may be late for once.
enum { ORDERS = 240 };
static void order_of(int listener, int fd, int by_poll, int others[2], int late[3]) {
    static const char *const kinds[] = {"connections", "ends", "bytes by the kernel"};
    for (int round = 0; round < ORDERS; round++) {
        int kind = round % 3, first_was_told = 0, wanted = kind ? others[kind - 1] : listener;
        tell(round);
        hear();
        for (int told = 0; !told;) {
            int shown[2] = {0, 0};
            if (by_poll) {
                struct pollfd entries[] = {{.fd = wanted, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
                // The listener is not ours: only sockets with rings are looked at without the kernel.
                if (poll(entries, 2, 10000) < 1) die("poll");
                for (int i = 0; i < 2; i++) shown[i] = entries[i].revents != 0;
            } else {
                struct epoll_event events[16];
                int count = epoll_wait(ep, events, 16, 10000);
                if (count < 1) die("epoll_wait");
                for (int i = 0; i < count; i++)
                    if (events[i].data.u64 < 2) shown[events[i].data.u64 == 1] = 1;
            }
            first_was_told |= shown[0];
            told = shown[1];
        }
        late[kind] += !first_was_told;
        if (*get(fd, 1) != 'r') die("no byte");
        if (kind == 0) {
            int new = accept(listener, NULL, NULL);
            if (new < 0) die("accept");
            close(new);
        } else {
            char bytes[8];
            if (recv(wanted, bytes, sizeof bytes, 0) < 0) die("receive");
        }
        // A new one for the one that has ended.
        if (kind == 1) {
            if (!by_poll) want(EPOLL_CTL_DEL, wanted, 0, 0);
            close(wanted);
            tell(0);
            others[0] = accept(listener, NULL, NULL);
            if (others[0] < 0) die("accept");
            if (!by_poll) want(EPOLL_CTL_ADD, others[0], EPOLLIN, 0);
        }
    }
    for (int kind = 0; kind < 3; kind++)
        say("%s: %s", kinds[kind], late[kind] * 20 <= ORDERS / 3 ? "in order" : "behind what came later");
}
static void first_things_first(int fd, int by_poll) {
    int port, listener = listen_any(&port), others[2], late[3] = {0};
    tell(port);
    for (int i = 0; i < 2; i++) others[i] = accept(listener, NULL, NULL);
    ep = epoll_create1(0);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    want(EPOLL_CTL_ADD, listener, EPOLLIN, 0);
    for (int i = 0; i < 2; i++) want(EPOLL_CTL_ADD, others[i], EPOLLIN, 0);
    order_of(listener, fd, by_poll, others, late);
}
static void in_order_by_epoll(int fd) { first_things_first(fd, 0); }
static void in_order_by_poll(int fd) { first_things_first(fd, 1); }
static void in_order_b(int fd) {
    int port = hear(), others[2] = {dial(port), dial(port)};
    for (int round = 0; round < ORDERS; round++) {
        int kind = round % 3, new = -1;
        if (hear() != (uint64_t)round) die("out of step");
        if (kind == 0) new = dial(port);
        if (kind == 1) close(others[0]);
        // Past the library, so that it stays without rings.
        if (kind == 2 && raw_syscall(SYS_write, others[1], (long)"k", 1, 0, 0, 0) != 1) die("write");
        put(fd, "r");
        tell(0);
        if (kind == 0) close(new);
        if (kind == 1) {
            hear();
            others[0] = dial(port);
        }
    }
}

// More instances than there are doorbells, and than the kernel lets watch one (fs/eventpoll.c).
enum { INSTANCES = 301 };
static void many_instances_a(int unused) {
    static int fds[INSTANCES], instances[INSTANCES];
    int port, listener = listen_any(&port);
    struct epoll_event event;
    (void)unused;
    tell(port);
    for (int i = 0; i < INSTANCES; i++) {
        fds[i] = accept(listener, NULL, NULL);
        instances[i] = watching(fds[i], EPOLLIN, i);
        for (int j = 0; j < 30; j++) {
            if (*get(fds[i], 1) != 'x') die("no byte of %d", i);
            put(fds[i], "y");
        }
    }
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < INSTANCES; i++) {
            tell(i);
            if (epoll_wait(instances[i], &event, 1, 10000) != 1) die("instance %d is not told, round %d", i, round);
            if (*get(fds[i], 1) != 'x') die("no byte");
        }
    say("all are told");
}
static void many_instances_b(int unused) {
    static int fds[INSTANCES];
    int port = hear();
    (void)unused;
    for (int i = 0; i < INSTANCES; i++) {
        fds[i] = dial(port);
        // By rings soon, if there is a bell left for the instance.
        for (int j = 0; j < 30; j++) {
            put(fds[i], "x");
            if (*get(fds[i], 1) != 'y') die("no answer");
        }
    }
    for (int i = 0; i < 2 * INSTANCES; i++) {
        uint64_t which = hear();
        // The waiter sleeps, most likely.
        usleep(2000);
        put(fds[which], "x");
    }
}

// --- instances in instances ---

static void nested_follows_the_level(int fd) {
    int inner = watching(fd, EPOLLIN, 1);
    ep = watching(inner, EPOLLIN, 2);
    for (int round = 0; round < 3; round++) {
        show_epoll("idle", 0);
        come_anyhow(fd, 2);
        show_epoll("outer", 1000);
        show_epoll("outer", 1000);
        say("%s", get(fd, 1));
        show_epoll("partly read", 1000);
        if (round == 1) show_in("inner", inner, 0);
        say("%s", get(fd, 1));
    }
    show_epoll("read past the inner one", 20);
    show_in("inner", inner, 0);
}
static void nested_edges(int fd) {
    int inner = watching(fd, EPOLLIN | EPOLLET, 1);
    ep = watching(inner, EPOLLIN | EPOLLET, 2);
    show_epoll("idle", 0);
    for (int round = 0; round < 3; round++) {
        come_anyhow(fd, 1);
        show_epoll("outer", 1000);
        show_epoll("nothing new", 20);
        show_in("inner", inner, 0);
        show_in("inner", inner, 0);
        show_epoll("nothing new", 20);
    }
}
static void nested_three_deep(int fd) {
    int inner = watching(fd, EPOLLIN, 1), middle = watching(inner, EPOLLIN, 2);
    ep = watching(middle, EPOLLIN, 3);
    show_epoll("idle", 0);
    ask(SEND_ANYHOW | LATER, 1);
    show_epoll("outer", 5000);
    show_in("middle", middle, 1000);
    show_in("inner", inner, 1000);
    show_epoll("outer", 1000);
    get(fd, 1);
    show_in("inner", inner, 20);
    show_in("middle", middle, 20);
    show_epoll("outer", 20);
    ask(SEND_ANYHOW | LATER, 1);
    int shown;
    say("poll %d", pollx(ep, POLLIN, 5000, &shown));
}
static void nested_member_comes_later(int fd) {
    int inner = epoll_create1(0);
    ep = watching(inner, EPOLLIN, 2);
    come_anyhow(fd, 1);
    show_epoll("empty", 0);
    say("add %s", outcome(ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN, 1)));
    show_epoll("with a member", 1000);
    say("del %s", outcome(ctl(inner, EPOLL_CTL_DEL, fd, 0, 0)));
    show_epoll("without", 20);
    say("add %s", outcome(ctl(inner, EPOLL_CTL_ADD, fd, EPOLLRDHUP, 1)));
    show_epoll("nothing of it", 20);
    say("mod %s", outcome(ctl(inner, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP, 1)));
    show_epoll("with a member", 1000);
    close(inner);
    show_epoll("closed", 20);
}
static void nested_in_two(int fd) {
    int inner = watching(fd, EPOLLIN, 1), one = watching(inner, EPOLLIN, 2), two = watching(inner, EPOLLIN | EPOLLET, 3);
    come_anyhow(fd, 1);
    show_in("one", one, 1000);
    show_in("two", two, 1000);
    show_in("one", one, 1000);
    show_in("two", two, 20);
    show_in("inner", inner, 1000);
    get(fd, 1);
    show_in("one", one, 20);
}
static void nested_loops(int fd) {
    int chain[8], one = watching(fd, EPOLLIN, 1), two = watching(one, EPOLLIN, 1);
    say("a loop %s", outcome(ctl(one, EPOLL_CTL_ADD, two, EPOLLIN, 1)));
    say("itself %s", outcome(ctl(one, EPOLL_CTL_ADD, one, EPOLLIN, 1)));
    // An instance with a connection, in others: five deep is too deep.
    chain[0] = two;
    for (int i = 1; i < 8; i++) {
        chain[i] = epoll_create1(0);
        int result = ctl(chain[i], EPOLL_CTL_ADD, chain[i - 1], EPOLLIN, 1);
        say("%d deep %s", i + 2, outcome(result));
        if (result) break;
    }
    come_anyhow(fd, 1);
    show_in("outermost but one", chain[1], 1000);
}

// --- descriptors of instances ---

static void instance_duplicated(int fd) {
    ep = watching(fd, EPOLLIN, 1);
    int copy = dup(ep), third = fcntl(ep, F_DUPFD_CLOEXEC, 50), second = more(1);
    come(fd, 1);
    show_in("copy", copy, 1000);
    show_in("third", third, 1000);
    say("add by the copy %s", outcome(ctl(copy, EPOLL_CTL_ADD, second, EPOLLIN, 2)));
    say("add again %s", outcome(ctl(ep, EPOLL_CTL_ADD, second, EPOLLIN, 2)));
    ask_for(SEND, 1, 1);
    arrived(second, 1);
    show_together("both", 2);
    close(ep);
    ep = copy;
    show_together("the first closed", 2);
    get(fd, 1);
    ask(SEND | LATER, 1);
    want(EPOLL_CTL_DEL, second, 0, 0);
    show_epoll("new", 5000);
    int last = dup2(copy, 60);
    close(copy), close(third);
    get(fd, 1);
    ask(SEND | LATER, 1);
    show_in("the last one", last, 5000);
    say("closed %s", outcome(ctl(copy, EPOLL_CTL_ADD, second, EPOLLIN, 2)));
    close(last);
    get(fd, 1);
    must_ring(fd, "at the end");
}
static void instance_overwritten(int fd) {
    int second = more(1), other = watching(second, EPOLLIN, 2);
    ep = watching(fd, EPOLLIN, 1);
    int number = ep;
    come(fd, 1);
    ask_for(SEND, 1, 1);
    arrived(second, 1);
    if (dup2(other, ep) != ep) die("dup2");
    show_epoll("the other instance", 1000);
    say("not in it %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 1)));
    close(ep);
    show_in("the other instance", other, 1000);
    ep = epoll_create1(0);
    say("same number %d", ep == number);
    show_epoll("new", 0);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 3);
    show_epoll("its own member", 1000);
}

// --- from the first byte on: the rings come while epoll waits ---

// Exactly one event for each byte that comes; nothing beside it.
static void cold_edges(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    for (int i = 0; another_round(fd, i); i++) {
        struct epoll_event event;
        ask(SEND | (i % 10 ? 0 : LATER), 1);
        int count = epoll_wait(ep, &event, 1, 5000);
        if (count != 1 || event.events != EPOLLIN) die("byte %d: %s", i, outcome(count));
        // Bytes are left unread now and then.
        if (i % 3 == 0) drain(fd);
    }
    say("all");
}
static void cold_levels(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLOUT, 1);
    for (int i = 0; another_round(fd, i); i++) {
        // With room for two: nothing is told of twice.
        struct epoll_event events[2], event;
        come(fd, 1);
        want(EPOLL_CTL_MOD, fd, EPOLLIN, i);
        for (int again = 0; again < 2; again++) {
            if (epoll_wait(ep, events, 2, 5000) != 1) die("byte %d", i);
            event = events[0];
            if (event.events != EPOLLIN || event.data.u64 != (uint64_t)i) die("byte %d: %s", i, bits(event.events));
        }
        if (*get(fd, 1) != 'a' + i % 26) die("byte %d", i);
        if (epoll_wait(ep, &event, 1, 0) != 0) die("byte %d, read: %s", i, bits(event.events));
        want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, i);
        if (epoll_wait(ep, &event, 1, 5000) != 1 || event.events != EPOLLOUT) die("byte %d, room: %s", i, bits(event.events));
    }
    say("all");
}
static void cold_one_shots(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLONESHOT, 1);
    for (int i = 0; another_round(fd, i); i++) {
        struct epoll_event event;
        come(fd, 1);
        if (epoll_wait(ep, &event, 1, 5000) != 1 || event.events != EPOLLIN) die("byte %d", i);
        put(fd, "x");
        ask(RECEIVE, 1);
        come(fd, 1);
        if (epoll_wait(ep, &event, 1, i % 20 ? 0 : 5) != 0) die("byte %d, shot: %s", i, bits(event.events));
        drain(fd);
        want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 1);
        if (epoll_wait(ep, &event, 1, 0) != 0) die("byte %d, armed: %s", i, bits(event.events));
    }
    say("all");
}
static void cold_in_two(int fd) {
    int one = watching(fd, EPOLLIN | EPOLLET, 1), two = watching(fd, EPOLLIN, 2);
    for (int i = 0; another_round(fd, i); i++) {
        struct epoll_event event;
        ask(SEND | (i % 10 ? 0 : LATER), 1);
        if (epoll_wait(one, &event, 1, 5000) != 1 || event.data.u64 != 1) die("byte %d, first", i);
        if (epoll_wait(two, &event, 1, 5000) != 1 || event.data.u64 != 2) die("byte %d, second", i);
        drain(fd);
        if (epoll_wait(two, &event, 1, 0) != 0) die("byte %d, second, read", i);
    }
    say("all");
}
// The end comes while nothing, or little, has gone by rings.
static void cold_ends(int unused) {
    (void)unused;
    for (int i = 1; i <= 40; i++) {
        int fd = more(0);
        struct epoll_event event;
        ep = watching(fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
        for (int j = 0; j < i; j++) {
            ask_for(SEND, i, 1);
            if (epoll_wait(ep, &event, 1, 5000) != 1) die("byte %d of %d", j, i);
            get(fd, 1);
            put(fd, "x");
            ask_for(RECEIVE, i, 1);
        }
        ask_for(i % 2 ? CLOSE : CLOSE | LATER, i, 0);
        if (epoll_wait(ep, &event, 1, 5000) != 1 || event.events != (EPOLLIN | EPOLLRDHUP)) die("end after %d: %s", i, bits(event.events));
        if (*get(fd, 1)) die("no end of file after %d", i);
        close(fd), close(ep);
    }
    say("all");
}

const struct test_case cases[] = {
    {"fairness_one_at_a_time", WARM, fairness_one_at_a_time, servant},
    {"fairness_of_others", WARM, fairness_of_others, servant},
    {"fairness_beside_the_kernel", WARM, fairness_beside_the_kernel, servant},
    {"fairness_beside_idle_ones", WARM, fairness_beside_idle_ones, servant},
    {"fairness_room_of_an_idle_one", WARM, fairness_room_of_an_idle_one, servant},
    {"order_of_rings", WARM, order_of_rings, servant},
    {"order_of_arrival", WARM, order_of_arrival, servant},
    {"order_of_arrival_edges", WARM, order_of_arrival_edges, servant},
    {"order_in_turns", WARM, order_in_turns, servant},
    {"order_in_turns_edges", WARM, order_in_turns_edges, servant},
    {"order_rearmed", WARM, order_rearmed, servant},
    {"order_added_when_ready", WARM, order_added_when_ready, servant},
    {"order_added_again", WARM, order_added_again, servant},
    {"order_without_room", WARM, order_without_room, servant},
    {"order_of_the_last_one", WARM, order_of_the_last_one, servant},
    {"order_beside_the_kernel", WARM, order_beside_the_kernel, servant},
    {"order_of_a_new_ring", WARM, order_of_a_new_ring, servant},
    {"beside_timer_and_event", WARM, beside_timer_and_event, servant},
    {"beside_pipe_ends", WARM, beside_pipe_ends, servant},
    {"beside_listener", WARM, beside_listener, servant},
    {"beside_signalfd", WARM, beside_signalfd, servant},
    {"add_before_connect", NONE, add_before_connect, servant},
    {"add_before_listen", NONE, add_before_listen, servant},
    {"close_takes_it_out", WARM, close_takes_it_out, servant},
    {"close_with_a_duplicate", WARM, close_with_a_duplicate, servant},
    {"close_of_the_duplicate", WARM, close_of_the_duplicate, servant},
    {"number_used_again", WARM, number_used_again, servant},
    {"taken_over_at_once", WARM, taken_over_at_once, servant},
    {"closed_number_used_again", WARM, closed_number_used_again, servant},
    {"in_order_by_epoll", WARM, in_order_by_epoll, in_order_b},
    {"in_order_by_poll", WARM, in_order_by_poll, in_order_b},
    {"many_instances", NONE, many_instances_a, many_instances_b},
    {"dup2_over_a_registered_one", WARM, dup2_over_a_registered_one, servant},
    {"nested_follows_the_level", WARM, nested_follows_the_level, servant},
    {"nested_edges", WARM, nested_edges, servant},
    {"nested_three_deep", WARM, nested_three_deep, servant},
    {"nested_member_comes_later", WARM, nested_member_comes_later, servant},
    {"nested_in_two", WARM, nested_in_two, servant},
    {"nested_loops", WARM, nested_loops, servant},
    {"instance_duplicated", WARM, instance_duplicated, servant},
    {"instance_overwritten", WARM, instance_overwritten, servant},
    {"cold_edges", COLD, cold_edges, servant},
    {"cold_levels", COLD, cold_levels, servant},
    {"cold_one_shots", COLD, cold_one_shots, servant},
    {"cold_in_two", COLD, cold_in_two, servant},
    {"cold_ends", NONE, cold_ends, servant},
    {0},
};
