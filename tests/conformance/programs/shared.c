// epoll instances that several threads wait in, and that processes share since a fork.
// B is the servant of waits.h.
#include "waits.h"

// --- threads ---

struct waiting { pthread_t thread; int epoll, time_ms, count; struct epoll_event event; };
static void *wait_thread(void *argument) {
    struct waiting *waiting = argument;
    waiting->count = epoll_wait(waiting->epoll, &waiting->event, 1, waiting->time_ms);
    return NULL;
}
static void begin(struct waiting *waiting, int epoll, int time_ms) {
    *waiting = (struct waiting){.epoll = epoll, .time_ms = time_ms};
    if (pthread_create(&waiting->thread, NULL, wait_thread, waiting)) die("thread");
}
static int end_of(struct waiting *waiting) {
    pthread_join(waiting->thread, NULL);
    return waiting->count;
}
static void nothing(int signal) { (void)signal; }
// How many of the threads, which wait long, are told: the first, and who else is within some time behind it.
static int told_soon(struct waiting *waiting, int count, int soon_ms) {
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGUSR1, &action, NULL);
    int told = -1, sum = 0;
    for (int tries = 0; told < 0; tries++) {
        for (int i = 0; i < count && told < 0; i++)
            if (pthread_tryjoin_np(waiting[i].thread, NULL) == 0) told = i;
        if (tries > 20000) die("nobody is told");
        usleep(1000);
    }
    usleep(soon_ms * 1000);
    for (int i = 0; i < count; i++) {
        while (i != told && pthread_tryjoin_np(waiting[i].thread, NULL)) {
            pthread_kill(waiting[i].thread, SIGUSR1);
            usleep(1000);
        }
        sum += waiting[i].count > 0;
    }
    return sum;
}
// The thread sleeps, most likely. A case must hold if it does not, too.
static void let_sleep(void) { usleep(20000); }

static void mod_wakes_a_sleeper(int fd) {
    struct waiting waiting;
    ep = watching(fd, EPOLLRDHUP, 1);
    static const uint32_t masks[] = {EPOLLOUT, EPOLLIN, EPOLLIN | EPOLLET, EPOLLOUT | EPOLLONESHOT};
    come(fd, 1);
    for (int i = 0; i < 4; i++) {
        want(EPOLL_CTL_MOD, fd, EPOLLRDHUP, 1);
        begin(&waiting, ep, 5000);
        let_sleep();
        want(EPOLL_CTL_MOD, fd, masks[i], i);
        say("%d", end_of(&waiting));
        say("%lu %s", waiting.event.data.u64, bits(waiting.event.events));
    }
}
static void add_wakes_a_sleeper(int fd) {
    struct waiting waiting;
    ep = epoll_create1(0);
    come(fd, 1);
    for (int i = 0; i < 4; i++) {
        begin(&waiting, ep, 5000);
        let_sleep();
        want(EPOLL_CTL_ADD, fd, i % 2 ? EPOLLIN | EPOLLET : EPOLLIN, i);
        say("%d", end_of(&waiting));
        say("%lu %s", waiting.event.data.u64, bits(waiting.event.events));
        want(EPOLL_CTL_DEL, fd, 0, 0);
    }
}
static void del_and_close_wake_nobody(int fd) {
    struct waiting waiting;
    ep = watching(fd, EPOLLIN, 1);
    begin(&waiting, ep, 100);
    want(EPOLL_CTL_DEL, fd, 0, 0);
    come(fd, 1);
    say("removed %d", end_of(&waiting));
    want(EPOLL_CTL_ADD, fd, EPOLLRDHUP, 1);
    begin(&waiting, ep, 100);
    let_sleep();
    close(fd);
    say("closed %d", end_of(&waiting));
}
// One edge is for one thread.
static void edge_is_for_one(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    for (int round = 0; round < 5; round++) {
        struct waiting waiting[3];
        for (int i = 0; i < 3; i++) begin(waiting + i, ep, 60000);
        if (round % 2) let_sleep();
        come(fd, 1);
        say("%d", told_soon(waiting, 3, 100));
    }
}
static void each_edge_has_its_thread(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    for (int round = 0; round < 20; round++) {
        struct waiting waiting[2];
        for (int i = 0; i < 2; i++) begin(waiting + i, ep, 5000);
        for (int i = 0; i < 2; i++) {
            // The second edge comes when the first was told: else both are one.
            come(fd, 1);
            int told = -1;
            for (int tries = 0; told < 0; tries++) {
                for (int j = 0; j < 2; j++)
                    if (waiting[j].thread && pthread_tryjoin_np(waiting[j].thread, NULL) == 0) told = j, waiting[j].thread = 0;
                if (tries > 5000) die("nobody was told in round %d", round);
                usleep(1000);
            }
        }
        drain(fd);
    }
    say("all");
}
static void shot_is_for_one(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLONESHOT, 0);
    for (int round = 0; round < 4; round++) {
        struct waiting waiting[4];
        for (int i = 0; i < 4; i++) begin(waiting + i, ep, 60000);
        come(fd, 1);
        come(fd, 1);
        say("%d", told_soon(waiting, 4, 100));
        drain(fd);
        want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, round);
    }
}
static void two_instances_two_threads(int fd) {
    int one = watching(fd, EPOLLIN | EPOLLET, 1), two = watching(fd, EPOLLIN, 2);
    for (int round = 0; round < 20; round++) {
        struct waiting first, second;
        begin(&first, one, 5000);
        begin(&second, two, 5000);
        if (round % 2) let_sleep();
        come(fd, 1);
        if (end_of(&first) != 1 || end_of(&second) != 1) die("round %d: %d %d", round, first.count, second.count);
        drain(fd);
    }
    say("both, always");
}
static void exclusive_wakes_somebody(int fd) {
    struct waiting waiting[3];
    int epolls[3];
    for (int i = 0; i < 3; i++) epolls[i] = watching(fd, EPOLLIN | EPOLLEXCLUSIVE, i);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 3; i++) begin(waiting + i, epolls[i], 60000);
        if (round % 2) let_sleep();
        come(fd, 1);
        told_soon(waiting, 3, 0);
        drain(fd);
    }
    say("somebody, always");
}
// More is ready than the first thread takes: the others get the rest.
static void rest_is_for_others(int fd) {
    int fds[4] = {fd};
    ep = epoll_create1(0);
    for (int i = 0; i < 4; i++) {
        if (i) fds[i] = more(1);
        want(EPOLL_CTL_ADD, fds[i], EPOLLIN | EPOLLET, i);
    }
    for (int round = 0; round < 10; round++) {
        struct waiting waiting[4];
        uint32_t seen = 0;
        for (int i = 0; i < 4; i++) begin(waiting + i, ep, 5000);
        if (round % 2) let_sleep();
        for (int i = 0; i < 4; i++) ask_for(SEND, i, 1);
        for (int i = 0; i < 4; i++) {
            if (end_of(waiting + i) != 1) die("thread %d in round %d", i, round);
            seen |= 1 << waiting[i].event.data.u64;
        }
        if (seen != 15) die("seen %x in round %d", seen, round);
        for (int i = 0; i < 4; i++) get(fds[i], 10);
    }
    say("all, always");
}
// A thread sleeps in an instance while its connection gets its rings by another thread.
static void rings_come_under_sleepers(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    for (int i = 0; another_round(fd, i); i++) {
        struct waiting waiting;
        begin(&waiting, ep, 5000);
        if (i % 10 == 0) let_sleep();
        ask(SEND, 1);
        if (end_of(&waiting) != 1) die("byte %d", i);
        drain(fd);
    }
    say("all");
}

// --- processes ---

static int to_child[2], to_parent[2];
static pid_t child_of(void) {
    if (pipe(to_child) || pipe(to_parent)) die("pipe");
    pid_t pid = fork();
    if (pid < 0) die("fork");
    return pid;
}
static void signal_to(int *way) {
    if (write(way[1], "x", 1) != 1) die("pipe");
}
static void wait_on(int *way) {
    char byte;
    if (read(way[0], &byte, 1) != 1) die("pipe");
}
static void ended_well(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child || status) die("child: %x", status);
}

static void child_waits(int fd) {
    ep = watching(fd, EPOLLIN, 1);
    come(fd, 1);
    show_epoll("parent", 1000);
    get(fd, 1);
    pid_t child = child_of();
    if (!child) {
        show_epoll("child, idle", 0);
        signal_to(to_parent);
        show_epoll("child", 5000);
        show_epoll("child again", 0);
        say("%s", get(fd, 10));
        show_epoll("child, read", 20);
        _exit(0);
    }
    wait_on(to_parent);
    ask(SEND_ANYHOW | LATER, 3);
    ended_well(child);
    show_epoll("parent, idle", 20);
    come_anyhow(fd, 1);
    show_epoll("parent", 1000);
}
// Bytes that came before the fork, by the ring, while B is busy elsewhere.
static void child_finds_data(int fd) {
    ep = watching(fd, EPOLLIN, 1);
    come(fd, 3);
    pid_t child = child_of();
    if (!child) {
        show_epoll("child", 5000);
        say("%s", get(fd, 2));
        show_epoll("partly read", 5000);
        signal_to(to_parent);
        wait_on(to_child);
        show_epoll("read by the parent", 20);
        _exit(0);
    }
    wait_on(to_parent);
    show_epoll("parent", 5000);
    say("%s", get(fd, 10));
    signal_to(to_child);
    ended_well(child);
    show_epoll("parent, read", 20);
    come_anyhow(fd, 1);
    show_epoll("parent, more", 5000);
}
static void child_and_parent_wait(int fd) {
    ep = watching(fd, EPOLLIN, 1);
    pid_t child = child_of();
    struct epoll_event event;
    for (int round = 0; round < 5; round++) {
        if (!child) {
            signal_to(to_parent);
            if (epoll_wait(ep, &event, 1, 5000) != 1) die("the child is not told in round %d", round);
            signal_to(to_parent);
            wait_on(to_child);
            continue;
        }
        wait_on(to_parent);
        ask(SEND_ANYHOW | LATER, 1);
        if (epoll_wait(ep, &event, 1, 5000) != 1) die("the parent is not told in round %d", round);
        wait_on(to_parent);
        get(fd, 1);
        signal_to(to_child);
    }
    if (!child) _exit(0);
    ended_well(child);
    say("both, always");
}
static void child_removes(int fd) {
    ep = watching(fd, EPOLLIN, 1);
    pid_t child = child_of();
    if (!child) {
        say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0)));
        say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0)));
        _exit(0);
    }
    ended_well(child);
    come_anyhow(fd, 1);
    show_epoll("removed", 20);
    say("mod %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 2)));
    say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 3)));
    show_epoll("added", 1000);
}
static void child_changes(int fd) {
    ep = watching(fd, EPOLLIN, 1);
    pid_t child = child_of();
    if (!child) {
        say("mod %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT, 2)));
        say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 3)));
        _exit(0);
    }
    ended_well(child);
    show_epoll("parent", 1000);
    come_anyhow(fd, 1);
    show_epoll("parent", 1000);
    say("mod %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 4)));
    show_epoll("parent", 1000);
    show_epoll("nothing new", 20);
}
static void child_adds(int fd) {
    int second = more(1), pipes[2];
    if (pipe(pipes)) die("pipe");
    ep = watching(fd, EPOLLIN, 1);
    pid_t child = child_of();
    if (!child) {
        say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, second, EPOLLIN, 2)));
        say("add a pipe %s", outcome(ctl(ep, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 3)));
        _exit(0);
    }
    ended_well(child);
    show_epoll("idle", 20);
    ask_for(SEND_ANYHOW, 1, 1);
    arrived(second, 1);
    show_epoll("the child's", 1000);
    if (write(pipes[1], "x", 1) != 1) die("write");
    come_anyhow(fd, 1);
    show_together("all", 3);
    say("add again %s", outcome(ctl(ep, EPOLL_CTL_ADD, second, EPOLLIN, 2)));
    say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, second, 0, 0)));
}
// A child that does not use the instance takes no rings from its parent.
static void child_does_not_care(int fd) {
    ep = watching(fd, EPOLLIN, 1);
    for (int how = 0; how < 3; how++) {
        pid_t child = child_of();
        if (!child) {
            if (how == 1) close(ep);
            if (how == 2) close(fd), close(ep);
            wait_on(to_child);
            _exit(0);
        }
        for (int i = 0; i < 20; i++) {
            ask(SEND | (i % 5 ? 0 : LATER), 1);
            struct epoll_event event;
            if (epoll_wait(ep, &event, 1, 5000) != 1) die("epoll, %d", how);
            get(fd, 1);
        }
        must_ring(fd, "beside a child");
        ask(RECEIVE, 1);
        signal_to(to_child);
        ended_well(child);
    }
    say("on rings, always");
}
static void child_has_its_own(int fd) {
    ep = watching(fd, EPOLLIN, 1);
    pid_t child = child_of();
    if (!child) {
        close(ep);
        ep = watching(fd, EPOLLIN | EPOLLET, 2);
        signal_to(to_parent);
        show_epoll("child", 5000);
        say("%s", get(fd, 10));
        show_epoll("nothing new", 20);
        _exit(0);
    }
    wait_on(to_parent);
    ask(SEND_ANYHOW | LATER, 3);
    ended_well(child);
    come_anyhow(fd, 1);
    show_epoll("parent", 1000);
}
// What the parent added later, on rings, is not lost to a child that waits beside it.
static void parent_goes_on_beside_a_waiting_child(int fd) {
    struct epoll_event event;
    ep = watching(fd, EPOLLRDHUP, 1);
    pid_t child = child_of();
    if (!child) {
        wait_on(to_child);
        for (int i = 0; i < 100; i++) epoll_wait(ep, &event, 1, 5);
        _exit(0);
    }
    int second = more(1);
    want(EPOLL_CTL_ADD, second, EPOLLIN, 2);
    for (int i = 0; i < 60; i++) {
        if (i == 10) signal_to(to_child);
        ask_for(SEND_ANYHOW | (i % 3 ? 0 : LATER), 1, 1);
        if (epoll_wait(ep, &event, 1, 5000) != 1 || event.data.u64 != 2) die("the parent is not told, %d", i);
        get(second, 1);
    }
    ended_well(child);
    say("all");
}
static void threads_of_the_parent_sleep(int fd) {
    struct waiting waiting[3];
    ep = watching(fd, EPOLLIN, 1);
    for (int i = 0; i < 3; i++) begin(waiting + i, ep, 5000);
    let_sleep();
    pid_t child = child_of();
    if (!child) {
        struct epoll_event event;
        signal_to(to_parent);
        if (epoll_wait(ep, &event, 1, 5000) != 1) die("the child is not told");
        signal_to(to_parent);
        _exit(0);
    }
    wait_on(to_parent);
    ask(SEND_ANYHOW | LATER, 1);
    for (int i = 0; i < 3; i++)
        if (end_of(waiting + i) != 1) die("thread %d is not told: %d", i, waiting[i].count);
    wait_on(to_parent);
    ended_well(child);
    say("all");
}
// A child goes on alone: a parent has no descriptors any more when its children are given to another one (linux: do_exit).
static void outlive_the_parent(void) {
    pid_t parent = getpid();
    if (fork()) _exit(0);
    while (getppid() == parent) usleep(100);
}
// The parent is gone: the instance is the child's, and what it adds has rings.
static void child_inherits(int fd) {
    ep = watching(fd, EPOLLIN, 1);
    outlive_the_parent();
    setsid();
    outlive_the_parent();
    come_anyhow(fd, 1);
    show_epoll("old", 5000);
    say("%s", get(fd, 10));
    int second = more(1);
    want(EPOLL_CTL_ADD, second, EPOLLIN | EPOLLET, 2);
    for (int i = 0; i < 20; i++) {
        struct epoll_event event;
        ask_for(SEND | (i % 3 ? 0 : LATER), 1, 1);
        if (epoll_wait(ep, &event, 1, 5000) != 1 || event.data.u64 != 2) die("new, %d", i);
        get(second, 1);
    }
    must_ring(second, "in an inherited instance");
    say("new, on rings");
}
static void empty_instance_inherited(int unused) {
    (void)unused;
    ep = epoll_create1(0);
    outlive_the_parent();
    for (int i = 1; i <= 3; i++) {
        int fd = more(1);
        want(EPOLL_CTL_ADD, fd, EPOLLIN, i);
        ask_for(SEND, i, 1);
        show_epoll("new", 5000);
        get(fd, 1);
        must_ring(fd, "in an inherited instance");
    }
}

const struct test_case cases[] = {
    {"mod_wakes_a_sleeper", WARM, mod_wakes_a_sleeper, servant},
    {"add_wakes_a_sleeper", WARM, add_wakes_a_sleeper, servant},
    {"del_and_close_wake_nobody", WARM, del_and_close_wake_nobody, servant},
    {"edge_is_for_one", WARM, edge_is_for_one, servant},
    {"each_edge_has_its_thread", WARM, each_edge_has_its_thread, servant},
    {"shot_is_for_one", WARM, shot_is_for_one, servant},
    {"two_instances_two_threads", WARM, two_instances_two_threads, servant},
    {"exclusive_wakes_somebody", WARM, exclusive_wakes_somebody, servant},
    {"rest_is_for_others", WARM, rest_is_for_others, servant},
    {"rings_come_under_sleepers", COLD, rings_come_under_sleepers, servant},
    {"child_waits", WARM, child_waits, servant},
    {"child_finds_data", WARM, child_finds_data, servant},
    {"child_and_parent_wait", WARM, child_and_parent_wait, servant},
    {"child_removes", WARM, child_removes, servant},
    {"child_changes", WARM, child_changes, servant},
    {"child_adds", WARM, child_adds, servant},
    {"child_does_not_care", WARM, child_does_not_care, servant},
    {"child_has_its_own", WARM, child_has_its_own, servant},
    {"parent_goes_on_beside_a_waiting_child", WARM, parent_goes_on_beside_a_waiting_child, servant},
    {"threads_of_the_parent_sleep", WARM, threads_of_the_parent_sleep, servant},
    {"child_inherits", WARM, child_inherits, servant},
    {"empty_instance_inherited", NONE, empty_instance_inherited, servant},
    {0},
};
