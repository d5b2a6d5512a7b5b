// Signals, jumps and cancellation while a datagram is waited for (man 7 signal, man 7 pthreads).
#include "udp.h"
#include <setjmp.h>

static volatile sig_atomic_t seen;
static void handler(int number) {
    int error = errno;
    (void)number;
    seen++;
    tell(7);
    errno = error;
}
static void handle(int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    if (sigaction(SIGUSR1, &action, NULL)) die("sigaction");
}
// B interrupts A once it sleeps. If the call goes on after that, B sends, as it sleeps again.
static int64_t do_interrupt(const struct order *o) {
    tell(0);
    asleep(o->level, o->pid);
    if (syscall(SYS_tgkill, o->level, o->pid, SIGUSR1)) die("tgkill");
    if (o->number < 0) return 0;
    if (hear() != 7) die("no handler");
    if (o->number) {
        asleep(o->level, o->pid);
        put(theirs[0], o->whom, o->text);
    }
    return 0;
}
static void interrupt(int goes_on) {
    struct order with = letter(0, an, "late");
    with.number = goes_on;
    with.level = getpid();
    ask(do_interrupt, with);
}

static void receive_ends(const char *call, receiver *receive) {
    begin();
    for (int timed = 0; timed < 2; timed++) {
        if (timed) set_time(a, SO_RCVTIMEO, 20000);
        for (int flags = 0; flags < 2; flags++) {
            int goes_on = flags && !timed;
            handle(flags ? SA_RESTART : 0);
            interrupt(goes_on);
            ssize_t got = receive(a, space, 100, 0);
            say("%s%s%s: %s, handled %d", call, flags ? " SA_RESTART" : "", timed ? " SO_RCVTIMEO" : "", outcome(got), (int)seen);
            hear();
            b_put(0, an, "next");
            show("is whole", a);
        }
    }
}
#define ENDS(call) \
    static void interrupted_##call(int fd) { \
        (void)fd; \
        receive_ends(#call, by_##call); \
    }
CALLS_THAT_RECEIVE(ENDS)

static int ep;
static fd_set in;
static struct epoll_event event = {.events = EPOLLIN};
static struct pollfd entry;
#define WAITS(X) \
    X(poll, poll(&entry, 1, -1)) \
    X(ppoll, ppoll(&entry, 1, &(struct timespec){20, 0}, NULL)) \
    X(select, select(a + 1, &in, NULL, NULL, NULL)) \
    X(pselect, pselect(a + 1, &in, NULL, NULL, NULL, NULL)) \
    X(epoll_wait, epoll_wait(ep, &event, 1, 20000)) \
    X(epoll_pwait, epoll_pwait(ep, &event, 1, -1, NULL))
static void begin_waits(void) {
    begin();
    ep = epoll_create1(0);
    entry = (struct pollfd){.fd = a, .events = POLLIN};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, a, &event)) die("epoll_ctl");
}
// A wait ends whatever the handler's flags are.
#define ENDS_WAIT(name, call) \
    static void interrupted_##name(int fd) { \
        (void)fd; \
        begin_waits(); \
        for (int flags = 0; flags < 2; flags++) { \
            handle(flags ? SA_RESTART : 0); \
            FD_ZERO(&in); \
            FD_SET(a, &in); \
            interrupt(0); \
            const char *result = outcome(call); \
            say(#name " %s, handled %d", result, (int)seen); \
            hear(); \
            b_put(0, an, "next"); \
            show("came", a); \
        } \
    }
WAITS(ENDS_WAIT)

static void count_only(int number) {
    (void)number;
    seen++;
}
// A signal that waits is let through by the wait's mask, but not where something is ready at once.
static void masked(int fd) {
    sigset_t none, one;
    (void)fd;
    begin_waits();
    signal(SIGUSR1, count_only);
    sigemptyset(&none);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigprocmask(SIG_BLOCK, &one, NULL);
    for (int ready = 0; ready < 2; ready++) {
        if (ready) b_put(0, an, "ready"), fence();
        for (int i = 0; i < 3; i++) {
            FD_ZERO(&in);
            FD_SET(a, &in);
            kill(getpid(), SIGUSR1);
            int count = i == 0 ? ppoll(&entry, 1, NULL, &none) : i == 1 ? pselect(a + 1, &in, NULL, NULL, NULL, &none) : epoll_pwait(ep, &event, 1, -1, &none);
            say("%d, ready %d: %s, handled %d", i, ready, outcome(count), (int)seen);
        }
    }
}
// A handler takes the datagram that the interrupted call waits for.
static void takes_in_handler(int number) {
    (void)number;
    int error = errno;
    ssize_t got = recv(a, space, 100, MSG_DONTWAIT);
    say("handler: %s", outcome(got));
    send_to(a, bn, "by the handler");
    errno = error;
    tell(7);
}
static void used_by_handler(int fd) {
    (void)fd;
    begin();
    struct sigaction action = {.sa_handler = takes_in_handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < 3; i++) {
        interrupt(1);
        show_in("the call", a, 100, 0);
        hear();
        b_show("came", 0);
    }
}
static sigjmp_buf back;
static void jumps(int number) {
    (void)number;
    siglongjmp(back, 1);
}
// Out of the call by a jump: what comes later is not lost.
static void jumped(int fd) {
    (void)fd;
    begin_waits();
    signal(SIGUSR1, jumps);
    for (volatile int i = 0; i < 3; i++) {
        if (!sigsetjmp(back, 1)) {
            interrupt(-1);
            if (i == 0) recv(a, space, 100, 0);
            else if (i == 1) poll(&entry, 1, -1);
            else epoll_wait(ep, &event, 1, -1);
            die("not interrupted");
        }
        hear();
        b_put(0, an, "next");
        show("came", a);
    }
}
static receiver *to_cancel;
static pid_t sleeper;
static void *sleeps(void *unused) {
    __atomic_store_n(&sleeper, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    if (to_cancel) to_cancel(a, space, 100, 0);
    else poll(&entry, 1, -1);
    return unused;
}
static void cancelled(int fd) {
    static const struct { const char *call; receiver *receive; } calls[] = {
#define ROW(call) {#call, by_##call},
        CALLS_THAT_RECEIVE(ROW)
#undef ROW
        {"poll", NULL}};
    (void)fd;
    begin_waits();
    for (size_t i = 0; i < COUNT(calls); i++) {
        pthread_t thread;
        void *result;
        to_cancel = calls[i].receive;
        sleeper = 0;
        pthread_create(&thread, NULL, sleeps, NULL);
        while (!__atomic_load_n(&sleeper, __ATOMIC_SEQ_CST)) sched_yield();
        asleep(getpid(), sleeper);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        say("%s cancelled %d", calls[i].call, result == PTHREAD_CANCELED);
        b_put(0, an, "not lost");
        show("came", a);
    }
}
// SIGIO for each datagram, or the signal that was asked for, with its descriptor.
static void told_by_signal(int fd) {
    sigset_t both;
    siginfo_t info;
    (void)fd;
    begin();
    sigemptyset(&both);
    sigaddset(&both, SIGIO);
    sigaddset(&both, SIGRTMIN + 3);
    sigprocmask(SIG_BLOCK, &both, NULL);
    struct timespec patience = {PATIENCE_MS / 1000, 0}, none = {0};
    if (fcntl(a, F_SETOWN, getpid()) || fcntl(a, F_SETFL, fcntl(a, F_GETFL) | O_ASYNC)) die("O_ASYNC");
    for (int i = 0; i < 4; i++) {
        if (i == 2 && fcntl(a, F_SETSIG, SIGRTMIN + 3)) die("F_SETSIG");
        b_put(0, an, "letter");
        int number = sigtimedwait(&both, &info, &patience);
        say("%s, of the socket %d, %s", number == SIGIO ? "SIGIO" : number == SIGRTMIN + 3 ? "SIGRTMIN" : "?", i >= 2 && info.si_fd == a,
            bits(i >= 2 ? info.si_band : 0));
        show("came", a);
        while (sigtimedwait(&both, &info, &none) > 0) {}
    }
    fcntl(a, F_SETFL, fcntl(a, F_GETFL) & ~O_ASYNC);
    b_put(0, an, "no signal");
    fence();
    say("then %s", outcome(sigtimedwait(&both, &info, &none)));
    show("came", a);
}
static int64_t do_stop_later(const struct order *o) {
    tell(0);
    asleep(o->level, o->pid);
    halt(o->level);
    put(theirs[0], o->whom, o->text);
    if (kill(o->level, SIGCONT)) die("SIGCONT");
    return 0;
}
// Stopped and continued while it sleeps; a datagram comes meanwhile.
static void stopped(int fd) {
    (void)fd;
    begin();
    struct order with = letter(0, an, "while it stood still");
    with.level = getpid();
    for (int i = 0; i < 3; i++) {
        ask(do_stop_later, with);
        show_in("came", a, 100, 0);
        hear();
    }
}

const struct test_case cases[] = {
#define ROW(call) CASE(interrupted_##call),
    CALLS_THAT_RECEIVE(ROW)
#undef ROW
#define ROW(name, call) CASE(interrupted_##name),
    WAITS(ROW)
#undef ROW
    CASE(masked), CASE(used_by_handler), CASE(jumped), CASE(cancelled), CASE(told_by_signal), CASE(stopped),
    {0},
};
