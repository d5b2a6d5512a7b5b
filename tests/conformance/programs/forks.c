// Servers that fork again and again: nothing that a fork uses up may end in anything but the
// kernel path, and once the children are dead, new connections have rings again. B is the
// servant of waits.h.
#include "waits.h"

#define CHILDREN 24

static int gate[2];
static void open_gate(void) {
    if (pipe(gate)) die("pipe");
}
// Until the parent opens the gate, or is gone.
static void behind_gate(void) {
    char byte;
    close(gate[1]);
    if (read(gate[0], &byte, 1)) _exit(1);
}
static pid_t forked(void) {
    pid_t pid = fork();
    if (pid < 0) die("fork");
    return pid;
}
static void ended_well(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child || status) die("child: %x", status);
}
// The server is told of a byte on connection `which`, and takes it.
static void served(int fd, unsigned which, unsigned how, const char *when, int round) {
    struct epoll_event events[4];
    ask_for(how, which, 1);
    for (int tries = 0;; tries++) {
        int count = epoll_wait(ep, events, 4, 10000);
        if (count < 1) die("%s %d: connection %u is not told of", when, round, which);
        for (int i = 0; i < count; i++)
            if (events[i].data.u64 == which) {
                if (*get(fd, 1) < 'a') die("%s %d: no byte", when, round);
                return;
            }
        if (tries > 1000) die("%s %d: only others are told of", when, round);
    }
}
// A new connection has rings, and the instance tells of what they bring.
static void new_one_has_rings(const char *when) {
    int fd = more(1);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, number_of_more);
    for (int i = 0; i < 5; i++) served(fd, number_of_more, SEND, when, i);
    must_ring(fd, when);
    say("%s: on rings", when);
}

static void children_only_exit(int fd) {
    ep = watching(fd, EPOLLIN, 0);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = forked();
        if (!child) _exit(0);
        ended_well(child);
        served(fd, 0, SEND, "after child", i);
    }
    new_one_has_rings("after all");
}
static void children_live_at_the_same_time(int fd) {
    pid_t children[CHILDREN];
    ep = watching(fd, EPOLLIN, 0);
    open_gate();
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = forked();
        if (!children[i]) {
            behind_gate();
            _exit(0);
        }
        served(fd, 0, SEND, "beside child", i);
    }
    new_one_has_rings("beside all");
    close(gate[1]);
    for (int i = 0; i < CHILDREN; i++) ended_well(children[i]);
    new_one_has_rings("after all");
}
static void children_use_the_instance(int fd) {
    struct epoll_event event;
    ep = watching(fd, EPOLLIN, 0);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = forked();
        if (!child) _exit(epoll_wait(ep, &event, 1, 0) != 0);
        ended_well(child);
        served(fd, 0, SEND_ANYHOW, "after child", i);
        new_one_has_rings("after a child");
    }
}
static void children_wait_at_the_same_time(int fd) {
    pid_t children[CHILDREN];
    struct epoll_event event;
    ep = watching(fd, EPOLLIN, 0);
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = forked();
        if (!children[i])
            for (;;)
                if (epoll_wait(ep, &event, 1, 20) > 0) usleep(2000);
        served(fd, 0, SEND_ANYHOW, "beside child", i);
    }
    int second = more(0);
    want(EPOLL_CTL_ADD, second, EPOLLIN, 1);
    for (int i = 0; i < 5; i++) served(second, 1, SEND_ANYHOW, "beside all", i);
    for (int i = 0; i < CHILDREN; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < CHILDREN; i++) waitpid(children[i], NULL, 0);
    served(fd, 0, SEND_ANYHOW, "after all", 0);
    new_one_has_rings("after all");
}
// A child of a child uses the instance. What the parent registered since is unknown to both.
static void grandchild_uses_the_instance(int fd) {
    struct epoll_event event;
    int to_grandchild[2], done[2];
    char byte;
    ep = watching(fd, EPOLLIN, 0);
    if (pipe(to_grandchild) || pipe(done)) die("pipe");
    pid_t child = forked();
    if (!child) {
        pid_t grandchild = forked();
        if (!grandchild) {
            if (read(to_grandchild[0], &byte, 1) != 1) _exit(1);
            int count = epoll_wait(ep, &event, 1, 0);
            if (write(done[1], "x", 1) != 1 || read(to_grandchild[0], &byte, 1) != 1) _exit(2);
            _exit(count != 0);
        }
        ended_well(grandchild);
        _exit(0);
    }
    int second = more(1);
    want(EPOLL_CTL_ADD, second, EPOLLIN, 1);
    for (int i = 0; i < 3; i++) {
        pid_t other = forked();
        if (!other) _exit(0);
        ended_well(other);
    }
    if (write(to_grandchild[1], "x", 1) != 1 || read(done[0], &byte, 1) != 1) die("pipe");
    for (int i = 0; i < 5; i++) {
        served(second, 1, SEND_ANYHOW, "the second", i);
        served(fd, 0, SEND_ANYHOW, "the first", i);
    }
    if (write(to_grandchild[1], "x", 1) != 1) die("pipe");
    ended_well(child);
    new_one_has_rings("after all");
}
// Children that make instances and fork leave nothing behind that others would lack.
static void instances_of_the_dead(int fd) {
    (void)fd;
    for (int i = 0; i < 40; i++) {
        pid_t child = forked();
        if (!child) {
            for (int j = 0; j < 40; j++)
                if (epoll_create1(0) < 0) _exit(1);
            pid_t grandchild = forked();
            if (!grandchild) _exit(0);
            ended_well(grandchild);
            kill(getpid(), SIGKILL);
        }
        if (waitpid(child, NULL, 0) != child) die("child");
    }
    ep = epoll_create1(0);
    open_gate();
    pid_t child = forked();
    if (!child) {
        behind_gate();
        _exit(0);
    }
    new_one_has_rings("in an instance that is shared");
    close(gate[1]);
    ended_well(child);
}
// Threads register and close sockets all the time: a child finds its tables whole. Each child walks
// them, and ends.
static volatile int churning = 1;
static void *churn(void *argument) {
    int epolls[2] = {ep, epoll_create1(0)};
    (void)argument;
    while (churning) {
        int fds[4];
        for (int i = 0; i < 4; i++) {
            fds[i] = stream(0);
            for (int j = 0; j < 2; j++) ctl(epolls[j], EPOLL_CTL_ADD, fds[i], EPOLLIN | EPOLLET, 5);
        }
        for (int i = 0; i < 4; i++) close(fds[i]);
    }
    return NULL;
}
static void tables_are_whole_in_children(int fd) {
    enum { THREADS = 3, FORKS = 400 };
    pthread_t threads[THREADS];
    ep = epoll_create1(0);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(threads + i, NULL, churn, NULL)) die("thread");
    for (int i = 0; i < FORKS; i++) {
        pid_t child = forked();
        if (!child) {
            alarm(20);
            int mine = epoll_create1(0), fds[8];
            for (int j = 0; j < 8; j++) {
                fds[j] = stream(0);
                if (ctl(mine, EPOLL_CTL_ADD, fds[j], EPOLLIN, j)) _exit(1);
            }
            for (int j = 0; j < 8; j++)
                if (ctl(mine, EPOLL_CTL_DEL, fds[j], 0, 0)) _exit(2);
            close_range(3, 199, 0);
            _exit(0);
        }
        ended_well(child);
    }
    churning = 0;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    must_ring(fd, "after all");
    say("whole");
}

const struct test_case cases[] = {
    {"children_only_exit", WARM, children_only_exit, servant},
    {"children_live_at_the_same_time", WARM, children_live_at_the_same_time, servant},
    {"children_use_the_instance", WARM, children_use_the_instance, servant},
    {"children_wait_at_the_same_time", WARM, children_wait_at_the_same_time, servant},
    {"grandchild_uses_the_instance", WARM, grandchild_uses_the_instance, servant},
    {"instances_of_the_dead", WARM, instances_of_the_dead, servant},
    {"tables_are_whole_in_children", WARM, tables_are_whole_in_children, servant},
    {0},
};
