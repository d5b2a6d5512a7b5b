// What programs see of signals and of their own handlers, however they install them.
#include "handlers.h"
#include <sys/signalfd.h>
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

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
    delivered(pid, SIGUSR1);
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
        halt(pid);
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
