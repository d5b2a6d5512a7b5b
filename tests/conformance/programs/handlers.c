// Signal handlers: what they may do, when they run, and what programs see of them.
#include "try.h"
#include <setjmp.h>
#include <sys/signalfd.h>
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define MB (1 << 20)

static volatile sig_atomic_t seen;
static int handler_fd;
static void nothing(int signal) { (void)signal, seen++; }
static void handle(int signal, int flags, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    if (sigaction(signal, &action, NULL)) die("sigaction");
}
static void tick(int us) {
    struct itimerval often = {{0, us}, {0, us}};
    if (setitimer(ITIMER_REAL, &often, NULL)) die("setitimer");
}

// A timer at 1 kHz through transfers in both directions; each call may be ended or go on.
static void *sender(void *fd) {
    send_all(*(int *)fd, 0, 30 * MB, 50000);
    return NULL;
}
static void exchange_all(int fd) {
    pthread_t thread;
    pthread_create(&thread, NULL, sender, &fd);
    recv_all(fd, 0, 30 * MB, 40000);
    pthread_join(thread, NULL);
}
static void timer(int fd, int flags) {
    handle(SIGALRM, flags, nothing);
    tick(1000);
    exchange_all(fd);
    tick(0);
    say("all there, handled %d", seen > 0);
    step();
}
static void timer_ends_a(int fd) { timer(fd, 0); }
static void timer_restarts_a(int fd) { timer(fd, SA_RESTART); }
static void exchange_b(int fd) {
    exchange_all(fd);
    say("all there");
    step();
}

// The handler sends whole records on the connection whose send it interrupts.
#define RECORD 100
static void record_handler(int signal) {
    (void)signal;
    char record[RECORD];
    memset(record, 'h', RECORD);
    seen++;
    if (send(handler_fd, record, RECORD, 0) != RECORD) _exit(50);
}
static void records_a(int fd) {
    char record[RECORD], byte;
    memset(record, 'm', RECORD);
    handler_fd = fd;
    handle(SIGALRM, SA_RESTART, record_handler);
    tick(500);
    for (int i = 0; i < 20000; i++) {
        if (send(fd, record, RECORD, 0) != RECORD) die("send");
        if (i % 50 == 49 && recv(fd, &byte, 1, 0) != 1) die("receive");
    }
    tick(0);
    memset(record, 'e', RECORD);
    if (send(fd, record, RECORD, 0) != RECORD) die("send");
    say("handled %d", seen > 0);
    step();
}
static void records_b(int fd) {
    char record[RECORD];
    for (int i = 0;;) {
        if (recv(fd, record, RECORD, MSG_WAITALL) != RECORD) die("receive");
        for (int j = 1; j < RECORD; j++) if (record[j] != record[0]) die("records are mixed");
        if (record[0] == 'e') break;
        if (record[0] == 'm' && ++i % 50 == 0 && send(fd, "a", 1, 0) != 1) die("send");
    }
    say("whole");
    step();
}
// The handler takes bytes from the connection whose receive it interrupts: each byte goes to one of the two.
static volatile uint64_t taken, sum;
static void taking_handler(int signal) {
    (void)signal;
    unsigned char bytes[300];
    ssize_t got = recv(handler_fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && errno != EAGAIN) _exit(50);
    for (ssize_t i = 0; i < got; i++) sum += bytes[i];
    if (got > 0) taken += got, seen++;
}
static void taking_a(int fd) {
    unsigned char bytes[1000];
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    handler_fd = fd;
    handle(SIGALRM, SA_RESTART, taking_handler);
    tick(500);
    step();
    // The handler may take the last ones: no receive may sleep for bytes that do not come.
    struct timeval time = {0, 20000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    for (;;) {
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        sigprocmask(SIG_BLOCK, &set, NULL);
        for (ssize_t i = 0; i < got; i++) sum += bytes[i];
        if (got > 0) taken += got;
        if (taken == 4 * MB) break;
        sigprocmask(SIG_UNBLOCK, &set, NULL);
    }
    say("sum %lu", sum);
    tell(1);
    step();
}
static void taking_b(int fd) {
    step();
    uint64_t all = 0;
    static unsigned char bytes[4 * MB];
    fill(bytes, 0, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) all += bytes[i];
    for (int i = 0; i < 40; i++) {
        size_t from = i * sizeof bytes / 40, to = (i + 1) * sizeof bytes / 40;
        while (from < to) {
            ssize_t sent = send(fd, bytes + from, to - from, 0);
            if (sent <= 0) die("send");
            from += sent;
        }
        usleep(1000);
    }
    hear();
    say("sum %lu", all);
    step();
}
// The handler answers on another connection, while the first one's call goes on.
static void answering_handler(int signal) {
    (void)signal;
    char byte;
    seen++;
    if (send(handler_fd, "q", 1, 0) != 1 || recv(handler_fd, &byte, 1, 0) != 1) _exit(50);
}
static void answering_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    int fd = accept(listener, NULL, NULL);
    handler_fd = accept(listener, NULL, NULL);
    warm(fd, 0), warm(handler_fd, 0);
    handle(SIGALRM, SA_RESTART, answering_handler);
    tick(1000);
    recv_all(fd, 0, 20 * MB, 30000);
    tick(0);
    shutdown(handler_fd, SHUT_WR);
    say("handled %d", seen > 0);
    step();
}
static void *answer(void *argument) {
    int fd = *(int *)argument;
    char byte;
    while (recv(fd, &byte, 1, 0) == 1) if (send(fd, &byte, 1, 0) != 1) die("answer");
    return NULL;
}
static void answering_b(int unused) {
    (void)unused;
    int port = hear(), fd = dial(port), other = dial(port);
    warm(fd, 1), warm(other, 1);
    pthread_t thread;
    pthread_create(&thread, NULL, answer, &other);
    send_all(fd, 0, 20 * MB, 30000);
    pthread_join(thread, NULL);
    step();
}
// The handler copies and closes descriptors of the connection that is in use.
static void copying_handler(int signal) {
    (void)signal;
    int copy = dup(handler_fd);
    if (copy < 0 || close(copy)) _exit(50);
    seen++;
}
static void copying_a(int fd) {
    handler_fd = fd;
    handle(SIGALRM, SA_RESTART, copying_handler);
    tick(1000);
    exchange_all(fd);
    tick(0);
    must_ring(fd, "after it");
    say("handled %d", seen > 0);
    step();
}
static void copying_b(int fd) {
    exchange_all(fd);
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}
// The handler polls what is received from.
static void polling_handler(int signal) {
    (void)signal;
    int shown;
    if (pollx(handler_fd, POLLIN | POLLOUT, 0, &shown) < 0) _exit(50);
    seen++;
}
static void polling_a(int fd) {
    handler_fd = fd;
    handle(SIGALRM, SA_RESTART, polling_handler);
    tick(1000);
    exchange_all(fd);
    tick(0);
    say("handled %d", seen > 0);
    step();
}
// The handler forks, as those of crash reporters do.
static void forking_handler(int signal) {
    (void)signal;
    pid_t child = fork();
    int status;
    if (child == 0) _exit(0);
    if (child < 0 || waitpid(child, &status, 0) != child || status) _exit(50);
    seen++;
}
static void forking_a(int fd) {
    handler_fd = fd;
    handle(SIGALRM, SA_RESTART, forking_handler);
    tick(20000);
    exchange_all(fd);
    tick(0);
    say("handled %d", seen > 0);
    step();
}

// Between the check and the sleep: whenever the signal comes within the call, the call ends.
// A thread sends it some time after it saw the call begin; what is lost, it sends again.
enum { TRIES = 300, WINDOW = 4000 };
static volatile int begun;
static volatile int ended, again;
static void *sniper(void *main_thread) {
    for (int i = 1; i <= TRIES; i++) {
        while (begun != i) __asm__ volatile("pause");
        uint32_t delay = chance(WINDOW);
        for (volatile uint32_t spin = 0; spin < delay; spin++) {}
        pthread_kill(*(pthread_t *)main_thread, SIGUSR1);
        for (int round = 0; ended != i; round++) {
            if (round == 500) pthread_kill(*(pthread_t *)main_thread, SIGUSR1), again++, round = 0;
            usleep(100);
        }
    }
    return NULL;
}
static void shot_at(int fd, int how) {
    handle(SIGUSR1, 0, nothing);
    pthread_t self = pthread_self(), thread;
    int ep = epoll_create1(0), shown;
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event);
    pthread_create(&thread, NULL, sniper, &self);
    for (int i = 1; i <= TRIES; i++) {
        char byte;
        begun = i;
        long result = how == 0 ? recv(fd, &byte, 1, 0) : how == 1 ? pollx(fd, POLLIN, -1, &shown) : epoll_wait(ep, &event, 1, -1);
        if (result != -1 || errno != EINTR) die("%ld", result);
        ended = i;
    }
    pthread_join(thread, NULL);
    // On Linux as well, a signal just before the call is lost, now and then.
    if (again > TRIES / 10) die("%d of %d signals did not end the call", again, TRIES);
    say("ended");
    step();
}
static void check_and_sleep_a(int fd) { shot_at(fd, 0); }
static void check_and_poll_a(int fd) { shot_at(fd, 1); }
static void check_and_epoll_a(int fd) { shot_at(fd, 2); }
static void idle_b(int fd) {
    (void)fd;
    step();
}

// Handlers that jump out of calls, more often than there are doorbells.
static sigjmp_buf jump;
static void jumping_handler(int signal) {
    (void)signal;
    seen++;
    siglongjmp(jump, 1);
}
enum { JUMPS = 150 };
enum { RECV, POLL, SELECT, EPOLL, SEND, ACCEPT };
static void jumps(int fd, int call, int on_stack) {
    static char stack[65536], bytes[MB];
    int ep = epoll_create1(0), port, listener = listen_any(&port), shown;
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    if (on_stack) sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    handle(SIGUSR1, on_stack ? SA_ONSTACK : 0, jumping_handler);
    tell(getpid());
    tell(call == SEND);
    fd_set set;
    FD_ZERO(&set);
    if (call == SEND) cram(fd);
    for (volatile int i = 0; i < JUMPS; i++) {
        if (sigsetjmp(jump, 1)) continue;
        tell(1);
        FD_SET(fd, &set);
        switch (call) {
        case RECV: recv(fd, bytes, 1, 0); break;
        case POLL: pollx(fd, POLLIN, -1, &shown); break;
        case SELECT: select(fd + 1, &set, NULL, NULL, NULL); break;
        case EPOLL: epoll_wait(ep, &event, 1, -1); break;
        case SEND: for (;;) send(fd, bytes, 100, 0);
        case ACCEPT: accept(listener, NULL, NULL); break;
        }
        die("not jumped");
    }
    say("jumped %d", (int)seen);
    tell(0);
    if (call == SEND) hear();
    int now = fd;
    if (now < 0) {
        tell(port);
        now = accept(listener, NULL, NULL);
        warm(now, 0);
    }
    recv_all(now, 0, 100000, 10000);
    must_ring(now, "after the jumps");
    step();
}
static void jumps_b(int fd) {
    pid_t pid = hear();
    int sends = hear();
    while (hear()) {
        asleep(pid, pid);
        if (kill(pid, SIGUSR1)) die("kill");
    }
    if (sends) {
        static char all[MB];
        for (int quiet = 0; quiet < 20;) {
            if (recv(fd, all, sizeof all, MSG_DONTWAIT) > 0) quiet = 0;
            else usleep(1000), quiet++;
        }
        tell(1);
    }
    send_all(fd, 0, 100000, 10000);
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}
static void jump_recv_a(int fd) { jumps(fd, RECV, 0); }
static void jump_poll_a(int fd) { jumps(fd, POLL, 0); }
static void jump_select_a(int fd) { jumps(fd, SELECT, 0); }
static void jump_epoll_a(int fd) { jumps(fd, EPOLL, 0); }
static void jump_send_a(int fd) { jumps(fd, SEND, 0); }
static void jump_accept_a(int fd) { jumps(fd, ACCEPT, 0); }
static void jump_stack_a(int fd) { jumps(fd, RECV, 1); }
// Out of receives on the kernel path: the connection may rise all the same.
static void jump_cold_a(int fd) {
    handle(SIGUSR1, 0, jumping_handler);
    tell(getpid());
    for (volatile int i = 0; i < 10; i++) {
        char byte;
        if (sigsetjmp(jump, 1)) continue;
        tell(1);
        recv(fd, &byte, 1, 0);
        die("not jumped");
    }
    tell(0);
    say("jumped %d", (int)seen);
    warm(fd, 0);
    must_ring(fd, "after the jumps");
    step();
}
static void jump_cold_b(int fd) {
    pid_t pid = hear();
    while (hear()) {
        asleep(pid, pid);
        if (kill(pid, SIGUSR1)) die("kill");
    }
    warm(fd, 1);
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}

// What a signal carries arrives, in order, also if it came at a bad moment.
static volatile int values, disorder;
static void value_handler(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (info->si_code != SI_QUEUE || info->si_value.sival_int != values || info->si_uid != getuid()) disorder++;
    values++;
}
static void values_a(int fd) {
    struct sigaction action = {.sa_sigaction = value_handler, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGRTMIN + 3, &action, NULL);
    tell(getpid());
    recv_all(fd, 0, 20 * MB, 1000);
    while (values < 1000) usleep(1000);
    say("values %d, in disorder %d", values, disorder);
    step();
}
static void *queue_values(void *pid) {
    for (int i = 0; i < 1000; i++) {
        while (sigqueue(*(pid_t *)pid, SIGRTMIN + 3, (union sigval){.sival_int = i})) usleep(100);
        if (i % 4 == 0) usleep(50);
    }
    return NULL;
}
static void values_b(int fd) {
    pid_t pid = hear();
    pthread_t thread;
    pthread_create(&thread, NULL, queue_values, &pid);
    send_all(fd, 0, 20 * MB, 1000);
    pthread_join(thread, NULL);
    step();
}
// Two signals at once, of which one blocks the other while its handler runs.
static volatile int inside, nested;
static void first_handler(int signal) {
    (void)signal;
    if (inside) nested++;
    inside = 1;
    char byte = 'x';
    if (send(handler_fd, &byte, 0, 0) != 0) _exit(50);
    inside = 0;
    seen++;
}
static void masks_a(int fd) {
    handler_fd = fd;
    struct sigaction action = {.sa_handler = first_handler, .sa_flags = SA_RESTART};
    sigaddset(&action.sa_mask, SIGUSR1);
    sigaddset(&action.sa_mask, SIGALRM);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    tick(500);
    tell(getpid());
    recv_all(fd, 0, 20 * MB, 1000);
    tick(0);
    sigset_t now;
    sigprocmask(SIG_BLOCK, NULL, &now);
    say("nested %d, blocked after it %d %d", nested, sigismember(&now, SIGUSR1), sigismember(&now, SIGTERM));
    tell(1);
    step();
}
static void masks_b(int fd) {
    pid_t pid = hear();
    for (int i = 0; i < 2000; i++) {
        send_all(fd, i * 10 * (MB / 1000), 10 * (MB / 1000), 5000);
        if (kill(pid, SIGUSR1)) die("kill");
    }
    send_all(fd, 2000 * 10 * (MB / 1000), 20 * MB - 2000 * 10 * (MB / 1000), 5000);
    hear();
    step();
}
// A handler that is good for one signal installs itself again (System V).
static void once_handler(int signal) {
    sysv_signal(signal, once_handler);
    seen++;
}
static void once_a(int fd) {
    sysv_signal(SIGCHLD, once_handler);
    tell(getpid());
    recv_all(fd, 0, 20 * MB, 1000);
    hear();
    say("still there %d", sysv_signal(SIGCHLD, SIG_DFL) == once_handler);
    step();
}
static void once_b(int fd) {
    pid_t pid = hear();
    for (int i = 0; i < 2000; i++) {
        send_all(fd, i * 10 * (MB / 1000), 10 * (MB / 1000), 5000);
        if (kill(pid, SIGCHLD)) die("kill");
    }
    send_all(fd, 2000 * 10 * (MB / 1000), 20 * MB - 2000 * 10 * (MB / 1000), 5000);
    // The last of them has come before what is sent now is read.
    usleep(10000);
    tell(1);
    step();
}
// One that is not installed again leaves the default: here, to be ignored.
static void reset_a(int fd) {
    handle(SIGURG, SA_RESETHAND, nothing);
    tell(getpid());
    recv_all(fd, 0, 20 * MB, 1000);
    struct sigaction now;
    sigaction(SIGURG, NULL, &now);
    say("handled %d, left %d", (int)seen, now.sa_handler == SIG_DFL);
    step();
}
static void reset_b(int fd) {
    pid_t pid = hear();
    for (int i = 0; i < 2000; i++) {
        send_all(fd, i * 10 * (MB / 1000), 10 * (MB / 1000), 5000);
        if (kill(pid, SIGURG)) die("kill");
    }
    send_all(fd, 2000 * 10 * (MB / 1000), 20 * MB - 2000 * 10 * (MB / 1000), 5000);
    step();
}

// A program sees its own handlers, whatever the library does.
struct kernel_action {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};
static void asked_a(int fd) {
    struct sigaction set = {.sa_handler = nothing, .sa_flags = SA_RESTART | SA_NODEFER}, now;
    sigaddset(&set.sa_mask, SIGTERM);
    say("sigaction %s", outcome(sigaction(SIGUSR1, &set, NULL)));
    sigaction(SIGUSR1, NULL, &now);
    say("handler %d, flags %x, mask %d %d", now.sa_handler == nothing, now.sa_flags & ~0x04000000, sigismember(&now.sa_mask, SIGTERM), sigismember(&now.sa_mask, SIGHUP));
    struct sigaction with = {.sa_sigaction = value_handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &with, &now);
    say("before it %d, flags %x", now.sa_handler == nothing, now.sa_flags & ~0x04000000);
    say("signal %d", signal(SIGUSR1, nothing) == with.sa_handler);
    sigaction(SIGUSR1, NULL, &now);
    say("flags of signal %x, masks itself %d", now.sa_flags & ~0x04000000, sigismember(&now.sa_mask, SIGUSR1));
    say("siginterrupt %d", siginterrupt(SIGUSR1, 1));
    sigaction(SIGUSR1, NULL, &now);
    say("flags %x", now.sa_flags & ~0x04000000);
    signal(SIGUSR1, nothing);
    sigaction(SIGUSR1, NULL, &now);
    say("flags of signal behind it %x", now.sa_flags & ~0x04000000);
    say("sysv_signal %d", sysv_signal(SIGUSR1, once_handler) == nothing);
    sigaction(SIGUSR1, NULL, &now);
    say("flags of it %x", now.sa_flags & ~0x04000000);
    say("sigset %d", sigset(SIGUSR1, nothing) == once_handler);
    say("held %d", sigset(SIGUSR1, SIG_HOLD) == nothing);
    say("let go %d", sigset(SIGUSR1, nothing) == SIG_HOLD);
    sigignore(SIGUSR1);
    say("ignored %d", signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    say("no signal %s", signal(65, nothing) == SIG_ERR ? error_name(errno) : "set");
    say("kill %s", signal(SIGKILL, nothing) == SIG_ERR ? error_name(errno) : "set");
    say("none %s", outcome(sigaction(0, &set, NULL)));
    struct kernel_action raw = {.handler = nothing, .flags = SA_RESTART}, raw_now;
    say("rt_sigaction %s", outcome(syscall(SYS_rt_sigaction, SIGUSR2, &raw, NULL, 8)));
    syscall(SYS_rt_sigaction, SIGUSR2, NULL, &raw_now, 8);
    say("raw %d, flags %lx", raw_now.handler == nothing, raw_now.flags);
    say("wrong size %s", outcome(syscall(SYS_rt_sigaction, SIGUSR2, &raw, NULL, 4)));
    (void)fd;
    step();
}
// A handler by the bare system call decides about a restart as well.
extern void raw_return(void);
__asm__("raw_return: mov $15, %eax\n syscall"); // rt_sigreturn
static void raw_a(int fd, int flags, int inlined) {
    struct kernel_action action = {.handler = nothing, .flags = flags | 0x04000000, .restorer = raw_return};
    long done = inlined ? raw_syscall(SYS_rt_sigaction, SIGUSR1, (long)&action, 0, 8, 0, 0) : syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8);
    if (done) die("rt_sigaction");
    tell(getpid());
    char byte;
    long result = recv(fd, &byte, 1, 0);
    say("%s", outcome(result));
    tell(1);
    if (result < 0 && recv(fd, &byte, 1, 0) != 1) die("receive");
    say("handled %d", (int)seen);
    step();
}
static void raw_ends_a(int fd) { raw_a(fd, 0, 0); }
static void raw_restarts_a(int fd) { raw_a(fd, SA_RESTART, 0); }
static void inlined_ends_a(int fd) { raw_a(fd, 0, 1); }
static void inlined_restarts_a(int fd) { raw_a(fd, SA_RESTART, 1); }
static void raw_b(int fd) {
    pid_t pid = hear();
    asleep(pid, pid);
    if (kill(pid, SIGUSR1)) die("kill");
    usleep(20000);
    asleep(pid, pid);
    if (send(fd, "x", 1, 0) != 1) die("send");
    hear();
    step();
}
// The older ways to install handlers.
static void install_a(int fd, int way) {
    if (way == 0) signal(SIGUSR1, nothing);
    if (way == 1) sysv_signal(SIGUSR1, nothing);
    if (way == 2) sigset(SIGUSR1, nothing);
    if (way == 3) signal(SIGUSR1, nothing), siginterrupt(SIGUSR1, 1);
    tell(getpid());
    char byte;
    long result = recv(fd, &byte, 1, 0);
    say("%s", outcome(result));
    tell(1);
    if (result < 0 && recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}
static void signal_a(int fd) { install_a(fd, 0); }
static void sysv_a(int fd) { install_a(fd, 1); }
static void sigset_a(int fd) { install_a(fd, 2); }
static void siginterrupt_a(int fd) { install_a(fd, 3); }

// Children: handlers go over fork, not over exec; a vfork child's own are its own.
static void inherit_a(int fd) {
    handle(SIGUSR1, 0, nothing);
    pid_t child = fork();
    if (child == 0) {
        raise(SIGUSR1);
        _exit(seen == 1 ? 0 : 1);
    }
    reap(child, "forked");
    child = vfork();
    if (child == 0) {
        signal(SIGUSR1, SIG_DFL);
        signal(SIGUSR2, nothing);
        _exit(0);
    }
    reap(child, "vforked");
    struct sigaction now;
    sigaction(SIGUSR1, NULL, &now);
    say("its own %d", now.sa_handler == nothing);
    sigaction(SIGUSR2, NULL, &now);
    say("the other %d", now.sa_handler == SIG_DFL);
    raise(SIGUSR1);
    say("handled %d", (int)seen);
    child = fork();
    if (child == 0) {
        execlp("sh", "sh", "-c", "kill -USR1 $$", NULL);
        _exit(99);
    }
    reap(child, "exec");
    fcntl(fd, F_SETFD, 0);
    step();
}

// Programs that wait for signals otherwise: signalfd beside sockets, and a thread in sigwait.
static void signalfd_a(int fd) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int signals = signalfd(-1, &set, 0), ep = epoll_create1(0), count = 0, bytes = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event);
    event.data.fd = signals;
    epoll_ctl(ep, EPOLL_CTL_ADD, signals, &event);
    tell(getpid());
    while (count < 20 || bytes < 2000) {
        struct epoll_event events[2];
        int ready = epoll_wait(ep, events, 2, 5000);
        if (ready <= 0) die("epoll %s", outcome(ready));
        for (int i = 0; i < ready; i++) {
            char buffer[10];
            struct signalfd_siginfo info;
            if (events[i].data.fd == signals) {
                if (read(signals, &info, sizeof info) != sizeof info || info.ssi_signo != SIGUSR1) die("signalfd");
                count++;
                tell(1);
            } else {
                ssize_t got = recv(fd, buffer, sizeof buffer, 0);
                if (got <= 0) die("receive");
                bytes += got;
            }
        }
    }
    say("%d signals, %d bytes", count, bytes);
    step();
}
static void signalfd_b(int fd) {
    pid_t pid = hear();
    for (int i = 0; i < 20; i++) {
        if (kill(pid, SIGUSR1)) die("kill");
        send_all(fd, 0, 100, 10);
        hear();
    }
    step();
}
static volatile int waited;
static void *sigwait_thread(void *set) {
    for (int signal; waited < 50;) {
        if (sigwait(set, &signal)) die("sigwait");
        waited++;
        tell(1);
    }
    return NULL;
}
static void sigwait_a(int fd) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, sigwait_thread, &set);
    tell(getpid());
    recv_all(fd, 0, 5000000, 7000);
    pthread_join(thread, NULL);
    say("waited %d", waited);
    step();
}
static void sigwait_b(int fd) {
    pid_t pid = hear();
    for (int i = 0; i < 50; i++) {
        if (kill(pid, SIGUSR1)) die("kill");
        send_all(fd, i * 100000, 100000, 5000);
        hear();
    }
    step();
}
// Stopped and let go on: a receive without a time-out does not notice.
static void stopped_a(int fd) {
    tell(getpid());
    char byte;
    say("recv %s", outcome(recv(fd, &byte, 1, 0)));
    int shown;
    tell(1);
    int count = pollx(fd, POLLIN, -1, &shown);
    say("poll %s %s", outcome(count), bits(shown));
    step();
}
static void stopped_b(int fd) {
    pid_t pid = hear();
    for (int i = 0; i < 2; i++) {
        asleep(pid, pid);
        kill(pid, SIGSTOP);
        usleep(5000);
        kill(pid, SIGCONT);
        asleep(pid, pid);
        if (send(fd, "x", 1, 0) != 1) die("send");
        if (i == 0) hear();
    }
    step();
}
// libc's own signal, for the ids of all threads, ends nothing.
static void *id_thread(void *argument) {
    char byte;
    long result = recv(*(int *)argument, &byte, 1, 0);
    say("recv %s", outcome(result));
    return NULL;
}
static volatile int id_tid;
static void *id_main(void *fd) {
    id_tid = syscall(SYS_gettid);
    return id_thread(fd);
}
static void ids_a(int fd) {
    pthread_t thread;
    pthread_create(&thread, NULL, id_main, &fd);
    while (!id_tid) usleep(100);
    for (int i = 0; i < 10; i++) {
        asleep(getpid(), id_tid);
        if (setgid(getgid())) die("setgid");
    }
    tell(1);
    pthread_join(thread, NULL);
    step();
}
static void ids_b(int fd) {
    hear();
    if (send(fd, "x", 1, 0) != 1) die("send");
    step();
}
// A signal to one thread ends that thread's call only.
static volatile int tids[3], results[3];
static void *one_thread(void *argument) {
    long self = (long)argument;
    char byte;
    tids[self] = syscall(SYS_gettid);
    results[self] = recv(handler_fd, &byte, 1, 0) == 1 ? 1 : -errno;
    return NULL;
}
static void one_of_many_a(int fd) {
    handler_fd = fd;
    handle(SIGUSR1, 0, nothing);
    pthread_t threads[3];
    for (long i = 0; i < 3; i++) pthread_create(threads + i, NULL, one_thread, (void *)i);
    for (int i = 0; i < 3; i++) {
        while (!tids[i]) usleep(100);
        asleep(getpid(), tids[i]);
    }
    pthread_kill(threads[1], SIGUSR1);
    pthread_join(threads[1], NULL);
    say("%s", error_name(-results[1]));
    tell(1);
    pthread_join(threads[0], NULL);
    pthread_join(threads[2], NULL);
    say("%d %d, handled %d", results[0], results[2], (int)seen);
    step();
}
static void one_of_many_b(int fd) {
    hear();
    if (send(fd, "xy", 2, 0) != 2) die("send");
    step();
}
// SIGPIPE comes to the thread that writes, with a handler or without.
static void broken_pipe_a(int fd) {
    handle(SIGPIPE, 0, nothing);
    tell(1);
    hear();
    no_longer_established(fd);
    long result;
    while ((result = send(fd, "x", 1, 0)) == 1) usleep(1000);
    if (errno == ECONNRESET) result = send(fd, "x", 1, 0);
    say("%s, handled %d", outcome(result), (int)seen);
    result = send(fd, "x", 1, MSG_NOSIGNAL);
    say("%s, handled %d", outcome(result), (int)seen);
    signal(SIGPIPE, SIG_DFL);
    send(fd, "x", 1, 0);
    die("alive");
}
static void broken_pipe_b(int fd) {
    hear();
    close(fd);
    tell(1);
    wait_dead();
}

const struct test_case cases[] = {
    {"timer_ends", WARM, timer_ends_a, exchange_b},
    {"timer_restarts", WARM, timer_restarts_a, exchange_b},
    {"timer_cold", COLD, timer_ends_a, exchange_b},
    {"records", WARM, records_a, records_b},
    {"taking", WARM, taking_a, taking_b},
    {"answering", NONE, answering_a, answering_b},
    {"copying", WARM, copying_a, copying_b},
    {"polling", WARM, polling_a, exchange_b},
    {"forking", WARM, forking_a, exchange_b},
    {"check_and_sleep", WARM, check_and_sleep_a, idle_b},
    {"check_and_poll", WARM, check_and_poll_a, idle_b},
    {"check_and_epoll", WARM, check_and_epoll_a, idle_b},
    {"jump_recv", WARM, jump_recv_a, jumps_b},
    {"jump_poll", WARM, jump_poll_a, jumps_b},
    {"jump_select", WARM, jump_select_a, jumps_b},
    {"jump_epoll", WARM, jump_epoll_a, jumps_b},
    {"jump_send", WARM, jump_send_a, jumps_b},
    {"jump_accept", WARM, jump_accept_a, jumps_b},
    {"jump_stack", WARM, jump_stack_a, jumps_b},
    {"jump_cold", COLD, jump_cold_a, jump_cold_b},
    {"values", WARM, values_a, values_b},
    {"masks", WARM, masks_a, masks_b},
    {"once", WARM, once_a, once_b},
    {"reset", WARM, reset_a, reset_b},
    {"asked", WARM, asked_a, idle_b},
    {"raw_ends", WARM, raw_ends_a, raw_b},
    {"raw_restarts", WARM, raw_restarts_a, raw_b},
    {"inlined_ends", WARM, inlined_ends_a, raw_b},
    {"inlined_restarts", WARM, inlined_restarts_a, raw_b},
    {"signal", WARM, signal_a, raw_b},
    {"sysv", WARM, sysv_a, raw_b},
    {"sigset", WARM, sigset_a, raw_b},
    {"siginterrupt", WARM, siginterrupt_a, raw_b},
    {"inherit", WARM, inherit_a, idle_b},
    {"signalfd", WARM, signalfd_a, signalfd_b},
    {"sigwait", WARM, sigwait_a, sigwait_b},
    {"stopped", WARM, stopped_a, stopped_b},
    {"ids", WARM, ids_a, ids_b},
    {"one_of_many", WARM, one_of_many_a, one_of_many_b},
    {"broken_pipe", WARM, broken_pipe_a, broken_pipe_b},
    {0},
};
