// Signals and waits: ppoll, pselect, epoll_pwait and epoll_pwait2 let a signal in, or shut it
// out, for exactly as long as they wait; every wait is ended by a handler.
#include "waits.h"

static volatile sig_atomic_t handled;
static void on_signal(int signal) { handled += signal == SIGUSR1; }
// SIGUSR1 has a handler, is blocked, and `none` is the mask that lets it in.
static sigset_t none;
static void prepare_signal(int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigset_t block;
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&none);
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    sigprocmask(SIG_BLOCK, &block, NULL);
}
static int is_pending(void) {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGUSR1);
}
static const struct timespec long_time = {5, 0}, short_time = {0, 20000000};

static void ppoll_lets_in_what_is_pending(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    prepare_signal(SA_RESTART);
    kill(getpid(), SIGUSR1);
    say("shut out %s, %d", outcome(ppoll(&entry, 1, &short_time, NULL)), handled);
    say("let in %s, %d", outcome(ppoll(&entry, 1, &long_time, &none)), handled);
    say("shut out again %d", is_pending());
    kill(getpid(), SIGUSR1);
    say("shut out again %d %d", is_pending(), handled);
    say("for no time %s, %d", outcome(ppoll(&entry, 1, &(struct timespec){0}, &none)), handled);
}
// What is ready goes before the signal, which stays pending.
static void ppoll_data_goes_first(int fd) {
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    struct pollfd entries[] = {{.fd = fd, .events = POLLIN}, {.fd = pipes[0], .events = POLLIN}};
    prepare_signal(0);
    come(fd, 1);
    kill(getpid(), SIGUSR1);
    for (int i = 0; i < 40; i++) {
        int count = ppoll(entries, 1 + i % 2, &long_time, &none);
        if (count != 1 || handled) die("round %d: %s, handled %d", i, outcome(count), handled);
    }
    say("pending %d", is_pending());
}
static void pselect_data_goes_first(int fd) {
    fd_set in;
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    prepare_signal(0);
    come(fd, 1);
    kill(getpid(), SIGUSR1);
    for (int i = 0; i < 40; i++) {
        FD_ZERO(&in);
        FD_SET(fd, &in);
        if (i % 2) FD_SET(pipes[0], &in);
        int count = pselect(30, &in, NULL, NULL, &long_time, &none);
        if (count != 1 || handled || !FD_ISSET(fd, &in)) die("round %d: %s, handled %d", i, outcome(count), handled);
    }
    say("pending %d", is_pending());
}
static void epoll_data_goes_first(int fd) {
    struct epoll_event event;
    prepare_signal(0);
    ep = watching(fd, EPOLLIN, 1);
    come(fd, 1);
    kill(getpid(), SIGUSR1);
    for (int i = 0; i < 40; i++) {
        int count = i % 2 ? epoll_pwait(ep, &event, 1, 5000, &none) : epoll_pwait2(ep, &event, 1, &long_time, &none);
        if (count != 1 || handled) die("round %d: %s, handled %d", i, outcome(count), handled);
    }
    say("pending %d", is_pending());
    get(fd, 1);
    say("empty, no time %s, %d", outcome(epoll_pwait(ep, &event, 1, 0, &none)), handled);
    say("empty %s, %d", outcome(epoll_pwait(ep, &event, 1, 5000, &none)), handled);
}
static void pselect_lets_in_what_is_pending(int fd) {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    prepare_signal(SA_RESTART);
    kill(getpid(), SIGUSR1);
    say("shut out %s, %d", outcome(pselect(fd + 1, &in, NULL, NULL, &short_time, NULL)), handled);
    FD_SET(fd, &in);
    say("let in %s, %d", outcome(pselect(fd + 1, &in, NULL, NULL, &long_time, &none)), handled);
    say("the set is as it was %d", FD_ISSET(fd, &in) != 0);
    say("shut out again %d", is_pending());
}
// A mask that shuts the signal out during the wait: data ends it, the handler runs behind it.
static void *signaller(void *argument) {
    usleep(20000);
    kill(getpid(), SIGUSR1);
    ask(SEND | LATER, 1);
    return argument;
}
static void masks_shut_out(int fd) {
    struct epoll_event event;
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    fd_set in;
    prepare_signal(0);
    sigset_t block;
    sigprocmask(SIG_SETMASK, NULL, &block);
    ep = watching(fd, EPOLLIN, 1);
    for (int how = 0; how < 4; how++) {
        pthread_t thread;
        // Only this thread may get it.
        pthread_create(&thread, NULL, signaller, NULL);
        sigprocmask(SIG_SETMASK, &none, NULL);
        FD_ZERO(&in);
        FD_SET(fd, &in);
        handled = 0;
        int count = how == 0 ? ppoll(&entry, 1, &long_time, &block)
            : how == 1 ? pselect(fd + 1, &in, NULL, NULL, &long_time, &block)
            : how == 2 ? epoll_pwait(ep, &event, 1, 5000, &block)
            : epoll_pwait2(ep, &event, 1, &long_time, &block);
        say("%s, handled behind it %d", outcome(count), handled);
        sigprocmask(SIG_SETMASK, &block, NULL);
        pthread_join(thread, NULL);
        get(fd, 1);
    }
}
// A signal ends each wait, whatever SA_RESTART says.
static void every_wait_is_interrupted(int fd) {
    struct epoll_event event;
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 20000}, {0, 20000}};
    setitimer(ITIMER_REAL, &often, NULL);
    ep = watching(fd, EPOLLIN, 1);
    struct timeval time = {5, 0};
    say("poll %s", outcome(poll(&entry, 1, 5000)));
    say("ppoll %s", outcome(ppoll(&entry, 1, NULL, NULL)));
    say("select %s", outcome(select(fd + 1, &in, NULL, NULL, &time)));
    say("time is left %d", time.tv_sec == 4);
    say("pselect %s", outcome(pselect(fd + 1, &in, NULL, NULL, NULL, NULL)));
    say("epoll_wait %s", outcome(epoll_wait(ep, &event, 1, -1)));
    say("epoll_pwait2 %s", outcome(epoll_pwait2(ep, &event, 1, NULL, NULL)));
}

static void interrupted(int signal) { (void)signal; }
// The mask of ppoll, pselect and epoll_pwait holds during the wait, and only then.
static void masks_a(int fd) {
    struct sigaction action = {.sa_handler = interrupted};
    sigaction(SIGUSR1, &action, NULL);
    sigset_t block, none;
    sigemptyset(&none);
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    sigprocmask(SIG_BLOCK, &block, NULL);
    kill(getpid(), SIGUSR1);
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    struct timespec time = {3, 0}, shortly = {0, 30000000};
    say("blocked %s", outcome(ppoll(&entry, 1, &shortly, NULL)));
    say("open %s", outcome(ppoll(&entry, 1, &time, &none)));
    kill(getpid(), SIGUSR1);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    say("blocked %s", outcome(pselect(fd + 1, &in, NULL, NULL, &shortly, NULL)));
    FD_SET(fd, &in);
    say("open %s", outcome(pselect(fd + 1, &in, NULL, NULL, &time, &none)));
    kill(getpid(), SIGUSR1);
    ep = epoll_create1(0);
    want(EPOLL_CTL_ADD, fd, EPOLLIN, 1);
    struct epoll_event event;
    say("blocked %s", outcome(epoll_wait(ep, &event, 1, 30)));
    say("open %s", outcome(epoll_pwait(ep, &event, 1, 3000, &none)));
    kill(getpid(), SIGUSR1);
    say("open %s", outcome(epoll_pwait2(ep, &event, 1, &time, &none)));
    step();
    step();
    settle(fd, 1);
    // Data is there: the signal stays pending.
    kill(getpid(), SIGUSR1);
    say("data %s", outcome(epoll_pwait(ep, &event, 1, 3000, &none)));
    sigset_t pending;
    sigpending(&pending);
    say("pending %d", sigismember(&pending, SIGUSR1));
    step();
}
static void masks_b(int fd) {
    step();
    put(fd, "x");
    step();
    step();
}

const struct test_case cases[] = {
    {"masks", WARM, masks_a, masks_b},
    {"ppoll_lets_in_what_is_pending", WARM, ppoll_lets_in_what_is_pending, servant},
    {"ppoll_data_goes_first", WARM, ppoll_data_goes_first, servant},
    {"pselect_data_goes_first", WARM, pselect_data_goes_first, servant},
    {"epoll_data_goes_first", WARM, epoll_data_goes_first, servant},
    {"pselect_lets_in_what_is_pending", WARM, pselect_lets_in_what_is_pending, servant},
    {"masks_shut_out", WARM, masks_shut_out, servant},
    {"every_wait_is_interrupted", WARM, every_wait_is_interrupted, servant},
    {0},
};
