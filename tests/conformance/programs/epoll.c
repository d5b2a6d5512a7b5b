// epoll(7) of one connection: edges, levels, one shots, masks, ends, errors.
// B is the servant of waits.h.
#include "waits.h"

// --- edges ---

static void et_new_without_drain(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    show_epoll("idle", 0);
    for (int i = 0; i < 5; i++) {
        come(fd, 1);
        show_epoll("new", 1000);
        show_epoll("nothing new", 0);
    }
    say("%s", get(fd, 100));
}
static void et_partial_read(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    come(fd, 10);
    show_epoll("new", 1000);
    for (int i = 0; i < 3; i++) {
        say("%s", get(fd, 2));
        show_epoll("partly read", 0);
    }
    come(fd, 1);
    show_epoll("more", 1000);
    say("%s", get(fd, 100));
    show_epoll("all read", 0);
}
static void et_out_after_eagain(int fd) {
    ep = watching(fd, EPOLLOUT | EPOLLET, 1);
    show_epoll("new", 0);
    put(fd, "x");
    ask(RECEIVE, 1);
    show_epoll("sent and taken", 0);
    uint64_t sent = stuff(fd);
    show_epoll("full", 0);
    ask(RECEIVE, sent);
    show_epoll("room", 5000);
    show_epoll("nothing new", 0);
    put(fd, "x");
    ask(RECEIVE, 1);
    show_epoll("sent and taken", 0);
}
static void et_data_shows_out(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    show_epoll("new", 0);
    come(fd, 1);
    show_epoll("data", 1000);
    show_epoll("nothing new", 0);
}
static void et_mod_rearms(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    come(fd, 3);
    show_epoll("new", 1000);
    for (int i = 2; i < 5; i++) {
        want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, i);
        show_epoll("armed anew", 0);
        show_epoll("nothing new", 0);
    }
    drain(fd);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 9);
    show_epoll("armed anew, empty", 0);
}
static void et_becomes_level(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    come(fd, 3);
    show_epoll("edge", 1000);
    show_epoll("edge", 0);
    want(EPOLL_CTL_MOD, fd, EPOLLIN, 2);
    show_epoll("level", 0);
    show_epoll("level", 0);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET, 3);
    show_epoll("edge", 0);
    show_epoll("edge", 0);
}
static void et_add_finds_data(int fd) {
    come(fd, 3);
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    show_epoll("added", 1000);
    show_epoll("nothing new", 0);
    want(EPOLL_CTL_DEL, fd, 0, 0);
    show_epoll("removed", 0);
    want(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, 2);
    show_epoll("added again", 1000);
    show_epoll("nothing new", 0);
}
static void et_peek(int fd) {
    char bytes[10];
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    come(fd, 3);
    show_epoll("new", 1000);
    say("peek %s", outcome(recv(fd, bytes, 10, MSG_PEEK)));
    show_epoll("peeked", 0);
    come(fd, 1);
    show_epoll("more", 1000);
    say("peek %s", outcome(recv(fd, bytes, 10, MSG_PEEK)));
}
static void et_eof(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
    come(fd, 2);
    show_epoll("data", 1000);
    ask(SHUT, 0);
    no_longer_established(fd);
    show_epoll("end", 1000);
    show_epoll("nothing new", 0);
    say("%s", get(fd, 10));
    say("'%s'", get(fd, 10));
    show_epoll("nothing new", 0);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 2);
    show_epoll("armed anew", 0);
}
// One descriptor, two instances, each with edges of its own.
static void et_two_epolls(int fd) {
    int one = watching(fd, EPOLLIN | EPOLLOUT | EPOLLET, 1), two = watching(fd, EPOLLIN | EPOLLOUT | EPOLLET, 2);
    show_in("one", one, 0);
    show_in("two", two, 0);
    come(fd, 1);
    show_in("one", one, 1000);
    come(fd, 1);
    show_in("one", one, 1000);
    show_in("two", two, 1000);
    show_in("one", one, 0);
    show_in("two", two, 0);
    drain(fd);
    uint64_t sent = stuff(fd);
    show_in("one full", one, 0);
    show_in("two full", two, 0);
    ask(RECEIVE, sent);
    show_in("one", one, 5000);
    show_in("two", two, 5000);
    show_in("one", one, 0);
    show_in("two", two, 0);
}
// One connection, registered twice by two descriptors.
static void et_two_descriptors(int fd) {
    int copy = dup(fd);
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    want(EPOLL_CTL_ADD, copy, EPOLLIN | EPOLLET, 2);
    show_epoll("idle", 0);
    come(fd, 1);
    show_epoll("both", 1000);
    show_epoll("nothing new", 0);
    want(EPOLL_CTL_MOD, copy, EPOLLIN, 3);
    show_epoll("one by level", 0);
    show_epoll("one by level", 0);
    want(EPOLL_CTL_DEL, fd, 0, 0);
    come(fd, 1);
    show_epoll("one is left", 1000);
}
static void et_many_writes_one_edge(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLET, 1);
    for (int i = 0; i < 20; i++) come(fd, 100);
    show_epoll("new", 1000);
    show_epoll("nothing new", 0);
    say("%s", outcome((long)strlen(get(fd, 4000))));
    show_epoll("all read", 0);
}

// --- levels ---

static void lt_two_epolls(int fd) {
    int one = watching(fd, EPOLLIN, 1), two = watching(fd, EPOLLIN | EPOLLOUT, 2);
    show_in("one", one, 0);
    show_in("two", two, 0);
    come(fd, 3);
    for (int i = 0; i < 2; i++) {
        show_in("one", one, 1000);
        show_in("two", two, 1000);
    }
    if (ctl(one, EPOLL_CTL_DEL, fd, 0, 0)) die("del");
    show_in("one", one, 0);
    show_in("two", two, 0);
    drain(fd);
    show_in("two", two, 0);
}
static void lt_out_of_a_full_one(int fd) {
    uint64_t sent = stuff(fd);
    ep = watching(fd, EPOLLOUT, 1);
    show_epoll("full", 0);
    show_epoll("full", 20);
    ask(RECEIVE | LATER, sent);
    show_epoll("room", 5000);
    show_epoll("room", 5000);
}
static int room_by_poll(int fd) {
    int shown;
    return pollx(fd, POLLOUT, 0, &shown) == 1;
}
static int levels;
static int room_by_levels(int fd) {
    (void)fd;
    struct epoll_event event;
    return epoll_wait(levels, &event, 1, 0) == 1;
}
// Sends until there is no room to be told of; how much.
static uint64_t crowd(int fd, int (*has_room)(int)) {
    static char block[65536];
    uint64_t sent = 0;
    nonblocking(fd, 1);
    for (int rest = 0; rest < 20;) {
        if (!has_room(fd)) {
            rest = is_under_way(fd) ? 0 : rest + 1;
            if (by_kernel) usleep(2000);
            continue;
        }
        fill(block, sent, sizeof block);
        ssize_t now = send(fd, block, sizeof block, 0);
        if (now <= 0) die("send");
        sent += now;
        rest = 0;
    }
    return sent;
}
// Whoever asks before each send meets no EAGAIN: room is news all the same.
static void et_out_of_a_crowded_one(int fd) {
    uint64_t sent = crowd(fd, room_by_poll);
    ep = watching(fd, EPOLLOUT | EPOLLET, 1);
    show_epoll("crowded", 0);
    ask(RECEIVE, sent);
    show_epoll("room", 5000);
    show_epoll("nothing new", 0);
}
// Nor does it matter that others asked, and the item's own room was told of before.
static void et_out_beside_a_poll(int fd) {
    ep = watching(fd, EPOLLOUT | EPOLLET, 1);
    show_epoll("empty", 0);
    uint64_t sent = crowd(fd, room_by_poll);
    ask(RECEIVE, sent);
    show_epoll("room", 5000);
    show_epoll("nothing new", 0);
}
static void et_out_beside_levels(int fd) {
    ep = watching(fd, EPOLLOUT | EPOLLET, 1);
    show_epoll("empty", 0);
    levels = watching(fd, EPOLLOUT, 1);
    uint64_t sent = crowd(fd, room_by_levels);
    ask(RECEIVE, sent);
    show_epoll("room", 5000);
    show_epoll("nothing new", 0);
    close(levels);
}
static void masks_changed(int fd) {
    ep = watching(fd, 0, 1);
    show_epoll("nothing asked", 0);
    come(fd, 3);
    show_epoll("nothing asked", 0);
    static const uint32_t masks[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLRDHUP, EPOLLPRI, EPOLLRDNORM, EPOLLWRNORM, EPOLLIN | EPOLLRDNORM, EPOLLRDNORM | EPOLLWRNORM | EPOLLOUT, EPOLLRDBAND, EPOLLWRBAND, EPOLLMSG};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        want(EPOLL_CTL_MOD, fd, masks[i], i);
        show_epoll(bits(masks[i]), 0);
    }
    want(EPOLL_CTL_MOD, fd, EPOLLRDNORM | EPOLLET, 20);
    show_epoll("edge", 0);
    show_epoll("edge", 0);
}
static void data_is_kept(int fd) {
    struct epoll_event event = {.events = EPOLLOUT, .data.ptr = &event};
    ep = epoll_create1(0);
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)) die("add");
    struct epoll_event shown;
    say("wait %s", outcome(epoll_wait(ep, &shown, 1, 0)));
    say("pointer %d", shown.data.ptr == &event);
    static const uint64_t values[] = {0, ~0ull, 0x00000001fffffffeull, 0xfffffffffffffffeull, 1ull << 63};
    for (int i = 0; i < 5; i++) {
        event.data.u64 = values[i];
        epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event);
        epoll_wait(ep, &shown, 1, 0);
        say("%d", shown.data.u64 == values[i]);
    }
}

// --- one shots ---

static void oneshot_hides_the_end(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, 1);
    come(fd, 2);
    show_epoll("shot", 1000);
    ask(CLOSE, 0);
    no_longer_established(fd);
    show_epoll("disarmed", 20);
    shutdown(fd, SHUT_WR);
    show_epoll("disarmed", 20);
    want(EPOLL_CTL_MOD, fd, EPOLLONESHOT, 2);
    show_epoll("armed for nothing", 1000);
    show_epoll("shot", 20);
}
static void oneshot_each_is_armed(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 1);
    for (int i = 0; i < 5; i++) {
        come(fd, 1);
        show_epoll("shot", 1000);
        come(fd, 1);
        show_epoll("disarmed", 0);
        want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, i);
    }
    show_epoll("armed, data", 0);
    drain(fd);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 8);
    show_epoll("armed, empty", 0);
    want(EPOLL_CTL_DEL, fd, 0, 0);
    want(EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLONESHOT, 9);
    show_epoll("added", 0);
    show_epoll("shot", 0);
}
// A child still has the socket: the kernel goes on with the registration.
static void oneshot_closed_beside_a_child(int fd) {
    int open[2];
    char byte;
    ep = watching(fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, 1);
    come(fd, 2);
    show_epoll("shot", 1000);
    drain(fd);
    if (pipe(open)) die("pipe");
    pid_t child = fork();
    if (child == 0) {
        close(open[1]);
        _exit(read(open[0], &byte, 1));
    }
    ask(CLOSE, 0);
    no_longer_established(fd);
    shutdown(fd, SHUT_WR);
    close(fd);
    show_epoll("closed", 20);
    close(open[1]);
    if (waitpid(child, NULL, 0) != child) die("child");
    show_epoll("gone", 20);
}
// What a child that does nothing else finds in the instance once it is told to look.
static pid_t looker(int go[2]) {
    struct epoll_event event;
    char byte;
    if (pipe(go)) die("pipe");
    pid_t child = fork();
    if (child == 0) {
        close(go[1]);
        if (read(go[0], &byte, 1) != 0) _exit(99);
        int count = epoll_wait(ep, &event, 1, 20);
        _exit(count < 0 ? 98 : count);
    }
    close(go[0]);
    return child;
}
static void look_of(const char *name, pid_t child, int go[2]) {
    int status;
    close(go[1]);
    if (waitpid(child, &status, 0) != child) die("child");
    say("%s: %d", name, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}
// Shot after one child was made, and before another: neither is told once more.
static void oneshot_shot_among_relatives(int fd) {
    int first[2], second[2];
    ep = watching(fd, EPOLLIN | EPOLLONESHOT, 1);
    pid_t before = looker(first);
    come(fd, 2);
    show_epoll("shot", 1000);
    drain(fd);
    pid_t after = looker(second);
    look_of("made after the shot", after, second);
    show_epoll("parent", 0);
    come_anyhow(fd, 2);
    look_of("made before the shot", before, first);
    show_epoll("still shot", 0);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 2);
    show_epoll("armed", 1000);
}
// Armed since the child was made, which looks first: the parent is told.
static void oneshot_armed_among_relatives(int fd) {
    int go[2];
    ep = watching(fd, EPOLLIN | EPOLLONESHOT, 1);
    come(fd, 2);
    show_epoll("shot", 1000);
    drain(fd);
    pid_t child = looker(go);
    want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 2);
    look_of("child", child, go);
    come_anyhow(fd, 2);
    show_epoll("armed", 1000);
    show_epoll("shot", 0);
}
// A child has armed it for itself; the parent, which has done nothing with the instance since,
// closes its descriptor.
static void oneshot_armed_by_a_child(int fd) {
    int go[2], done[2];
    char byte;
    ep = watching(fd, EPOLLIN | EPOLLONESHOT, 1);
    come(fd, 2);
    show_epoll("shot", 1000);
    drain(fd);
    if (pipe(go) || pipe(done)) die("pipe");
    pid_t child = fork();
    if (child == 0) {
        struct epoll_event event;
        if (epoll_wait(ep, &event, 1, 0) != 0) _exit(99);
        want(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT, 2);
        if (write(done[1], "x", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(98);
        int count = epoll_wait(ep, &event, 1, 1000);
        _exit(count == 1 ? (int)event.data.u64 : 97);
    }
    int status;
    if (read(done[0], &byte, 1) != 1) die("child");
    close(fd);
    ask(SEND_ANYHOW, 1);
    if (write(go[1], "x", 1) != 1 || waitpid(child, &status, 0) != child) die("child");
    say("child: %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}
static void oneshot_del_of_a_shot_one(int fd) {
    ep = watching(fd, EPOLLOUT | EPOLLONESHOT, 1);
    show_epoll("shot", 0);
    say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1)));
    say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0)));
    say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0)));
    say("mod %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLOUT, 0)));
}

// --- ends ---

static void rdhup_only(int fd) {
    ep = watching(fd, EPOLLRDHUP, 1);
    come(fd, 1);
    show_epoll("data", 0);
    ask(SHUT | LATER, 0);
    show_epoll("end", 5000);
    show_epoll("end", 0);
}
static void rdhup_is_not_asked(int fd) {
    ep = watching(fd, EPOLLIN, 1);
    ask(SHUT | LATER, 0);
    show_epoll("end", 5000);
    say("'%s'", get(fd, 10));
    show_epoll("end", 0);
    shutdown(fd, SHUT_WR);
    show_epoll("both", 1000);
    want(EPOLL_CTL_MOD, fd, 0, 2);
    show_epoll("nothing asked", 1000);
}
static void reset_by_the_peer(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1);
    show_epoll("new", 0);
    ask(RESET, 0);
    // Linux wakes for the error and for the end: both are there now.
    no_longer_established(fd);
    show_epoll("reset", 5000);
    show_epoll("nothing new", 0);
    want(EPOLL_CTL_MOD, fd, EPOLLIN, 2);
    show_epoll("level", 0);
    say("%s", get(fd, 10));
    show_epoll("fetched", 0);
    say("'%s'", get(fd, 10));
}
static void receiving_half_shut_here(int fd) {
    ep = watching(fd, EPOLLIN | EPOLLRDHUP, 1);
    shutdown(fd, SHUT_RD);
    show_epoll("shut", 1000);
    say("'%s'", get(fd, 10));
    shutdown(fd, SHUT_WR);
    show_epoll("both", 1000);
}

// --- errors ---

static void errors_of_ctl(int fd) {
    int file = open("/proc/self/exe", O_RDONLY), other = epoll_create1(0), pipes[2];
    if (pipe(pipes)) die("pipe");
    ep = watching(fd, EPOLLIN, 1);
    say("add again %s", outcome(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLOUT, 2)));
    say("mod elsewhere %s", outcome(ctl(other, EPOLL_CTL_MOD, fd, EPOLLIN, 1)));
    say("del elsewhere %s", outcome(ctl(other, EPOLL_CTL_DEL, fd, EPOLLIN, 1)));
    say("not open %s", outcome(ctl(ep, EPOLL_CTL_ADD, 777, EPOLLIN, 1)));
    say("no epoll open %s", outcome(ctl(777, EPOLL_CTL_ADD, fd, EPOLLIN, 1)));
    say("no epoll %s", outcome(ctl(pipes[0], EPOLL_CTL_ADD, fd, EPOLLIN, 1)));
    say("a socket as epoll %s", outcome(ctl(fd, EPOLL_CTL_ADD, pipes[0], EPOLLIN, 1)));
    say("a socket in itself %s", outcome(ctl(fd, EPOLL_CTL_ADD, fd, EPOLLIN, 1)));
    say("a file %s", outcome(ctl(ep, EPOLL_CTL_ADD, file, EPOLLIN, 1)));
    say("itself %s", outcome(ctl(ep, EPOLL_CTL_ADD, ep, EPOLLIN, 1)));
    say("null %s", outcome(epoll_ctl(ep, EPOLL_CTL_MOD, fd, NULL)));
    say("null %s", outcome(epoll_ctl(other, EPOLL_CTL_ADD, fd, NULL)));
    say("operation %s", outcome(ctl(ep, 7, fd, EPOLLIN, 1)));
    say("operation %s", outcome(ctl(other, 7, fd, EPOLLIN, 1)));
    say("negative %s", outcome(ctl(-1, EPOLL_CTL_ADD, fd, EPOLLIN, 1)));
    say("negative %s", outcome(ctl(ep, EPOLL_CTL_ADD, -1, EPOLLIN, 1)));
    say("null for del %s", outcome(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL)));
    say("create %s", outcome(epoll_create(0)));
    say("create %s", outcome(epoll_create1(~0)));
}
static void errors_of_wait(int fd) {
    struct epoll_event events[2];
    struct timespec bad = {0, 1000000000};
    static volatile int counts[] = {0, -1, 0x7fffffff};
    ep = watching(fd, EPOLLOUT, 1);
    for (int i = 0; i < 3; i++) say("room for %d: %s", counts[i], outcome(epoll_wait(ep, events, counts[i], 0)));
    say("no epoll %s", outcome(epoll_wait(fd, events, 2, 0)));
    say("not open %s", outcome(epoll_wait(777, events, 2, 0)));
    say("time %s", outcome(epoll_pwait2(ep, events, 2, &bad, NULL)));
    bad.tv_nsec = -1;
    say("time %s", outcome(epoll_pwait2(ep, events, 2, &bad, NULL)));
    bad = (struct timespec){-1, 0};
    say("time %s", outcome(epoll_pwait2(ep, events, 2, &bad, NULL)));
    say("fine %s", outcome(epoll_wait(ep, events, 2, 0)));
}
static void errors_of_exclusive(int fd) {
    ep = epoll_create1(0);
    say("oneshot %s", outcome(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1)));
    say("rdhup %s", outcome(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP, 1)));
    say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET, 1)));
    say("mod %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 2)));
    say("mod %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLEXCLUSIVE, 3)));
    come(fd, 1);
    show_epoll("as it was added", 1000);
    show_epoll("nothing new", 0);
    say("del %s", outcome(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0)));
    say("oneshot %s", outcome(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 4)));
    say("mod %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, 2)));
    say("add %s", outcome(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 5)));
    say("mod %s", outcome(ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLEXCLUSIVE, 6)));
    show_epoll("as it was added", 1000);
    int inner = epoll_create1(0);
    say("an epoll %s", outcome(ctl(ep, EPOLL_CTL_ADD, inner, EPOLLIN | EPOLLEXCLUSIVE, 1)));
}

const struct test_case cases[] = {
    {"et_new_without_drain", WARM, et_new_without_drain, servant},
    {"et_partial_read", WARM, et_partial_read, servant},
    {"et_out_after_eagain", WARM, et_out_after_eagain, servant},
    {"et_data_shows_out", WARM, et_data_shows_out, servant},
    {"et_mod_rearms", WARM, et_mod_rearms, servant},
    {"et_becomes_level", WARM, et_becomes_level, servant},
    {"et_add_finds_data", WARM, et_add_finds_data, servant},
    {"et_peek", WARM, et_peek, servant},
    {"et_eof", WARM, et_eof, servant},
    {"et_two_epolls", WARM, et_two_epolls, servant},
    {"et_two_descriptors", WARM, et_two_descriptors, servant},
    {"et_many_writes_one_edge", WARM, et_many_writes_one_edge, servant},
    {"lt_two_epolls", WARM, lt_two_epolls, servant},
    {"et_out_of_a_crowded_one", WARM, et_out_of_a_crowded_one, servant},
    {"et_out_beside_a_poll", WARM, et_out_beside_a_poll, servant},
    {"et_out_beside_levels", WARM, et_out_beside_levels, servant},
    {"lt_out_of_a_full_one", WARM, lt_out_of_a_full_one, servant},
    {"masks_changed", WARM, masks_changed, servant},
    {"data_is_kept", WARM, data_is_kept, servant},
    {"oneshot_hides_the_end", WARM, oneshot_hides_the_end, servant},
    {"oneshot_each_is_armed", WARM, oneshot_each_is_armed, servant},
    {"oneshot_closed_beside_a_child", WARM, oneshot_closed_beside_a_child, servant},
    {"oneshot_shot_among_relatives", WARM, oneshot_shot_among_relatives, servant},
    {"oneshot_armed_among_relatives", WARM, oneshot_armed_among_relatives, servant},
    {"oneshot_armed_by_a_child", WARM, oneshot_armed_by_a_child, servant},
    {"oneshot_del_of_a_shot_one", WARM, oneshot_del_of_a_shot_one, servant},
    {"rdhup_only", WARM, rdhup_only, servant},
    {"rdhup_is_not_asked", WARM, rdhup_is_not_asked, servant},
    {"reset_by_the_peer", WARM, reset_by_the_peer, servant},
    {"receiving_half_shut_here", WARM, receiving_half_shut_here, servant},
    {"errors_of_ctl", WARM, errors_of_ctl, servant},
    {"errors_of_wait", WARM, errors_of_wait, servant},
    {"errors_of_exclusive", WARM, errors_of_exclusive, servant},
    {0},
};
