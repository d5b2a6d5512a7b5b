// One socket, several holders: descriptors, processes, images, threads (man 2 dup, fork, execve, man 7 unix: SCM_RIGHTS).
// What is in its queue is there for whoever asks first, and once.
#include "udp.h"
#include <spawn.h>

static void letters(const char *word, int count) {
    for (int i = 0; i < count; i++) {
        char text[64];
        sprintf(text, "%s %d", word, i);
        b_put(0, an, text);
    }
    fence();
}

// --- descriptors ---

static void copies(int fd) {
    (void)fd;
    begin();
    int two = dup(a), three = fcntl(a, F_DUPFD, 100), four = fcntl(a, F_DUPFD_CLOEXEC, 100), five = dup3(a, 70, O_CLOEXEC);
    letters("letter", 7);
    show("first", a);
    show("second", two);
    show_in("look", three, 100, MSG_PEEK);
    show("third", four);
    show("fourth", five);
    close(a);
    show("fifth", two);
    close(four);
    put(three, bn, "by the third");
    b_show("came", 0);
    nonblocking(two, 1);
    show("sixth", five);
    show("seventh", three);
    show_in("none", three, 100, 0);
    close(two);
    close(three);
    letters("the last holder", 1);
    show("came", five);
    close(five);
    b_connect(0, an);
    b_put(0, peer, "nobody has it");
    b_show_none("refused", 0);
}
static void number_again(int fd) {
    (void)fd;
    begin();
    letters("of the old one", 3);
    int number = a;
    close(a);
    int fresh = datagram(an.at.ss_family);
    say("the same number %d", fresh == number);
    say("bind %s", outcome(bind_to(fresh, an)));
    show_none("nothing of the old one", fresh);
    letters("of the new one", 2);
    show_all("came", fresh);
}
static void put_over(int fd) {
    (void)fd;
    begin();
    int other = bound_for_both(spot('A', 0), "other");
    letters("lost", 2);
    b_put(0, name_of(other), "of the other");
    fence();
    say("%s", outcome(dup2(other, a) == a ? 0 : -1));
    show_names("now", a);
    close(other);
    show("came", a);
    b_connect(0, an);
    b_put(0, peer, "nobody has that name");
    b_show_none("refused", 0);
}
static void stdio(int fd) {
    char line[64];
    (void)fd;
    begin_connected();
    say("dprintf %d", dprintf(a, "letter number %d", 7));
    b_show("came", 0);
    FILE *in = fdopen(dup(a), "r"), *out = fdopen(dup(a), "w");
    fprintf(out, "in %s", "two ");
    fprintf(out, "parts");
    fflush(out);
    b_show("came", 0);
    b_put(0, peer, "a line and ");
    b_put(0, peer, "its end");
    fence();
    say("%zu %.*s", fread(line, 1, 18, in), 18, line);
    fclose(in);
    fclose(out);
    b_put(0, peer, "still open");
    show("came", a);
}

// --- processes ---

// A's child, which ends with what it does.
static pid_t child_of(void (*does)(void)) {
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        does();
        _exit(0);
    }
    return pid;
}
static void takes_two(void) {
    for (int i = 0; i < 2; i++) show("child", a);
}
static void child_takes(int fd) {
    (void)fd;
    begin();
    letters("before", 3);
    reap(child_of(takes_two), "child");
    letters("after", 3);
    show("parent", a);
    reap(child_of(takes_two), "child");
    show_all("parent", a);
}
static void answers(void) {
    put(a, bn, "by the child");
    show_names("child", a);
}
static void child_sends(int fd) {
    (void)fd;
    begin();
    reap(child_of(answers), "child");
    b_show("came", 0);
    put(a, bn, "by the parent");
    b_show("came", 0);
    letters("to both", 1);
    show("parent", a);
}
static void connects(void) { must_connect(a, bn); }
static void child_connects(int fd) {
    (void)fd;
    begin();
    b_open(1);
    reap(child_of(connects), "child");
    show_names("parent", a);
    b_put(1, an, "of another");
    b_put(0, an, "of the peer");
    fence();
    show_all("parent", a);
    say("send %s", outcome(send(a, "to the peer", 11, 0)));
    b_show("came", 0);
}
static int go[2], done[2];
static void signal_by(int *pipe_ends) {
    if (write(pipe_ends[1], "x", 1) != 1) die("pipe");
}
static void await(int *pipe_ends) {
    char byte;
    if (read(pipe_ends[0], &byte, 1) != 1) die("pipe");
}
static void keeps(void) {
    show_all("child", a);
    signal_by(done);
    await(go);
    show_all("child", a);
    put(a, bn, "by the child");
}
// The socket lives as long as one has it.
static void child_keeps(int fd) {
    (void)fd;
    begin();
    if (pipe(go) || pipe(done)) die("pipe");
    letters("before", 2);
    pid_t child = child_of(keeps);
    await(done);
    close(a);
    int other = datagram(an.at.ss_family);
    say("still taken %s", outcome(bind_to(other, an)));
    letters("while the child has it", 2);
    signal_by(go);
    reap(child, "child");
    b_show("came", 0);
    say("free %s", outcome(bind_to(other, an)));
    show_none("as new", other);
}
static void by_turns(void) {
    for (int i = 0; i < 20; i++) {
        await(go);
        show("child", a);
        signal_by(done);
    }
}
static void takes_turns(int fd) {
    (void)fd;
    begin();
    if (pipe(go) || pipe(done)) die("pipe");
    pid_t child = child_of(by_turns);
    for (int i = 0; i < 20; i++) {
        letters("letter", 2);
        signal_by(go);
        await(done);
        show("parent", a);
    }
    reap(child, "child");
}
static int *counts;
static void takes_until_end(int who) {
    static int last = -1;
    for (;;) {
        int number;
        ssize_t got = recv(a, space, 100, 0);
        if (got < 0) die("receive");
        space[got] = 0;
        if (!strcmp((char *)space, "end")) return;
        if (sscanf((char *)space, "letter %d", &number) != 1) die("%s", space);
        if (number <= last) die("%d after %d, by %d", number, last, who);
        last = number;
        __atomic_fetch_add(&counts[number], 1, __ATOMIC_SEQ_CST);
    }
}
static void child_takes_all(void) { takes_until_end(1); }
enum { LETTERS = 150 };
static void once_each(void) {
    int wrong = 0;
    for (int i = 0; i < LETTERS; i++) wrong += counts[i] != 1;
    say("not once: %d", wrong);
}
static void share_counts(void) {
    counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED) die("mmap");
}
// Both sleep for the same queue: each datagram is one's, and what one has comes in order.
static void both_wait(int fd) {
    (void)fd;
    begin();
    share_counts();
    roam();
    pid_t children[2] = {child_of(child_takes_all), child_of(child_takes_all)};
    for (int i = 0; i < 2; i++) asleep(children[i], children[i]);
    letters("letter", LETTERS);
    for (int i = 0; i < 2; i++) b_put(0, an, "end");
    for (int i = 0; i < 2; i++) reap(children[i], "child");
    once_each();
    show_none("no more", a);
}

// --- images ---

enum { HANDED = 50 };
static void image(void) {
    a = HANDED;
    int open = fcntl(a, F_GETFD);
    say("image: descriptor %s", outcome(open));
    if (open < 0) return;
    if (readable(a)) show_in("image", a, 100, 0);
    struct whom from = {.length = sizeof from.at};
    arrived(a);
    ssize_t got = recvfrom(a, space, 100, 0, (void *)&from.at, &from.length);
    say("image: %s", content(space, got));
    put(a, from, "by the image");
    say("image: peer %s", outcome(getpeername(a, (void *)&from.at, &from.length)));
}
static void image_or_servant(int fd) {
    if (me == 'C') image();
    else servant(fd);
}
#define IMAGE(name) {#name, NONE, name, image_or_servant}
static const char *image_of;
static char *const *image_words(void) {
    static char *words[] = {"image", NULL, "C", NULL};
    words[1] = (char *)image_of;
    return words;
}
static void executes(void) {
    execv("/proc/self/exe", image_words());
    die("execv");
}
static void begin_image(const char *name, int flags) {
    image_of = name;
    begin();
    if (dup3(a, HANDED, flags) != HANDED) die("dup3");
    letters("early", 2);
}
static void executed(int fd) {
    (void)fd;
    begin_image("executed", 0);
    reap(child_of(executes), "image");
    b_show("came", 0);
    letters("late", 1);
    show_all("parent", a);
}
static void executed_alone(int fd) {
    (void)fd;
    begin_image("executed_alone", 0);
    must_connect(a, bn);
    pid_t child = child_of(executes);
    close(a);
    close(HANDED);
    reap(child, "image");
    b_show("came", 0);
    b_connect(0, an);
    b_put(0, peer, "nobody has it");
    b_show_none("refused", 0);
}
static void closed_by_exec(int fd) {
    (void)fd;
    begin_image("closed_by_exec", O_CLOEXEC);
    fcntl(a, F_SETFD, FD_CLOEXEC);
    reap(child_of(executes), "image");
    show_all("parent", a);
    int born = socket(an.at.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    say("born so %d, %d", fcntl(born, F_GETFD), !!(fcntl(born, F_GETFL) & O_NONBLOCK));
}
static void spawned(int fd) {
    extern char **environ;
    pid_t child;
    (void)fd;
    begin_image("spawned", 0);
    if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, image_words(), environ)) die("posix_spawn");
    reap(child, "image");
    b_show("came", 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    close(HANDED);
    posix_spawn_file_actions_adddup2(&actions, a, HANDED);
    letters("again", 2);
    if (posix_spawn(&child, "/proc/self/exe", &actions, NULL, image_words(), environ)) die("posix_spawn");
    reap(child, "image");
    b_show("came", 0);
    show_all("parent", a);
}
static void vforked(int fd) {
    (void)fd;
    begin_image("vforked", 0);
    image_words();
    pid_t child = vfork();
    if (child == 0) {
        execv("/proc/self/exe", image_words());
        _exit(9);
    }
    reap(child, "image");
    b_show("came", 0);
    letters("late", 1);
    show_all("parent", a);
}

// --- passed on ---

static int64_t do_be_given(const struct order *o) {
    char byte, control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(0, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) die("nothing is given");
    memcpy(&theirs[o->which], CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return 0;
}
// B's socket `which` is this one from now on.
static void give(int fd, int which) {
    char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof fd);
    order(do_be_given, (struct order){.which = which});
    if (sendmsg(0, &message, 0) != 1) die("give");
    hear();
}
static void passed(int fd) {
    (void)fd;
    begin();
    letters("early", 3);
    show("mine", a);
    give(a, 5);
    b_show("given", 5);
    show("mine", a);
    b_put(5, bn, "by who was given it");
    b_show("came", 0);
    letters("late", 2);
    b_show("given", 5);
    show("mine", a);
    put(a, bn, "by me");
    b_show("came", 0);
}
static void passed_away(int fd) {
    (void)fd;
    begin_connected();
    letters("early", 2);
    give(a, 5);
    close(a);
    for (int i = 0; i < 2; i++) b_show("given", 5);
    b_put(5, peer, "still connected");
    b_show("came", 0);
    b_put(0, peer, "and back");
    b_show("given", 5);
    b_close(5);
    b_put(0, peer, "nobody has it");
    b_show_none("refused", 0);
}
static void passed_unused(int fd) {
    (void)fd;
    begin_bare();
    an = spot('A', 0);
    a = bound_for_both(an, "a");
    an = name_of(a);
    bn = b_open(0);
    give(a, 5);
    close(a);
    for (int i = 0; i < 12; i++) {
        b_put(0, an, "there");
        b_show("given", 5);
        b_put(5, bn, "and back");
        b_show("came", 0);
    }
}

// --- threads ---

static void *thread_takes(void *unused) {
    for (int last = -1;;) {
        char text[64];
        int number;
        ssize_t got = recv(a, text, sizeof text - 1, 0);
        if (got < 0) die("receive");
        text[got] = 0;
        if (!strcmp(text, "end")) return unused;
        if (sscanf(text, "letter %d", &number) != 1 || number <= last) die("%s after %d", text, last);
        last = number;
        __atomic_fetch_add(&counts[number], 1, __ATOMIC_SEQ_CST);
    }
}
enum { THREADS = 4 };
static void threads_take(int fd) {
    pthread_t threads[THREADS];
    (void)fd;
    begin();
    share_counts();
    roam();
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, thread_takes, NULL);
    letters("letter", LETTERS);
    for (int i = 0; i < THREADS; i++) b_put(0, an, "end");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    once_each();
    show_none("no more", a);
}
static int64_t do_count(const struct order *o) {
    static int seen[THREADS * LETTERS];
    for (int i = 0; i < o->number; i++) {
        int thread, number;
        char text[64];
        arrived(theirs[o->which]);
        ssize_t got = recv(theirs[o->which], text, sizeof text - 1, 0);
        text[got < 0 ? 0 : got] = 0;
        if (sscanf(text, "%d of %d", &number, &thread) != 2 || seen[thread * LETTERS + number]++) die("%s", text);
    }
    say("each once");
    return 0;
}
static void *thread_gives(void *argument) {
    for (int i = 0; i < 40; i++) {
        char text[64];
        sprintf(text, "%d of %ld", i, (long)argument);
        put(a, bn, text);
    }
    return NULL;
}
static void threads_give(int fd) {
    pthread_t threads[THREADS];
    (void)fd;
    begin();
    roam();
    order(do_count, (struct order){.number = THREADS * 40});
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, thread_gives, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    hear();
    b_show_none("no more", 0);
}
static int64_t do_echo(const struct order *o) {
    for (int i = 0; i < o->number; i++) {
        ssize_t got = recv(theirs[0], space, 100, 0);
        if (got < 0 || send(theirs[0], space, got, 0) != got) die("echo");
    }
    return 0;
}
static void *thread_asks(void *unused) {
    for (int i = 0; i < LETTERS; i++) {
        char text[64];
        sprintf(text, "letter %d", i);
        put(a, peer, text);
    }
    return unused;
}
// One sends while the other receives.
static void both_ways(int fd) {
    pthread_t thread;
    (void)fd;
    begin_connected();
    order(do_echo, (struct order){.number = LETTERS});
    pthread_create(&thread, NULL, thread_asks, NULL);
    for (int i = 0; i < LETTERS; i++) {
        char right[64];
        int length = sprintf(right, "letter %d", i);
        arrived(a);
        ssize_t got = recv(a, space, 100, 0);
        if (got != length || memcmp(space, right, got)) die("%s, not %s", space, right);
    }
    pthread_join(thread, NULL);
    say("all in order %ld", (long)hear());
    show_none("no more", a);
}
static pid_t sleeper;
static void *thread_sleeps(void *unused) {
    __atomic_store_n(&sleeper, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    ssize_t got = recv(a, space, 100, 0);
    say("the sleeper has %s", content(space, got > 0 ? got : 0));
    return unused;
}
// A call that sleeps keeps the socket, though its number is gone.
static void closed_meanwhile(int fd) {
    pthread_t thread;
    (void)fd;
    begin();
    pthread_create(&thread, NULL, thread_sleeps, NULL);
    while (!__atomic_load_n(&sleeper, __ATOMIC_SEQ_CST)) sched_yield();
    asleep(getpid(), sleeper);
    say("close %s", outcome(close(a)));
    say("read %s", outcome(read(a, space, 100)));
    b_put(0, an, "for the sleeper");
    pthread_join(thread, NULL);
    int fresh = datagram(an.at.ss_family);
    say("free %s", outcome(bind_to(fresh, an)));
}

const struct test_case cases[] = {
    CASE(copies), CASE(number_again), CASE(put_over), CASE(stdio), CASE(child_takes), CASE(child_sends), CASE(child_connects),
    CASE(child_keeps), CASE(takes_turns), CASE(both_wait), IMAGE(executed), IMAGE(executed_alone), IMAGE(closed_by_exec),
    IMAGE(spawned), IMAGE(vforked), CASE(passed), CASE(passed_away), CASE(passed_unused), CASE(threads_take),
    CASE(threads_give), CASE(both_ways), CASE(closed_meanwhile),
    {0},
};
