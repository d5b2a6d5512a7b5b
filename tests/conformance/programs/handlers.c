// Signal handlers: what they may do, and when they run.
#include "handlers.h"
#include <setjmp.h>

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
// The first CPU that it may use, or the second, if there is one: who has its peer on its own does not spin.
static void stay_on(int number) {
    cpu_set_t set, one;
    if (sched_getaffinity(0, sizeof set, &set)) die("sched_getaffinity");
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set) && number-- >= 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
        }
    if (sched_setaffinity(0, sizeof one, &one)) die("sched_setaffinity");
}
// Out of a receive at any moment, also while it spins: a connection that is closed then has ended.
static void jump_early_a(int fd) {
    stay_on(0);
    warm(fd, 0);
    handle(SIGALRM, 0, jumping_handler);
    for (volatile int i = 0; i < 400; i++) {
        char byte;
        if (sigsetjmp(jump, 1)) continue;
        struct itimerval soon = {.it_value.tv_usec = 1 + i % 60};
        setitimer(ITIMER_REAL, &soon, NULL);
        recv(fd, &byte, 1, 0);
        die("not jumped");
    }
    say("jumped %d", (int)seen);
    close(fd);
    tell(1);
    step();
}
static void jump_early_b(int fd) {
    char byte;
    stay_on(1);
    warm(fd, 1);
    hear();
    say("received %d", (int)recv(fd, &byte, 1, 0));
    step();
}
// Out of a call that moves many bytes, which has slept and goes on: also then a connection that is closed has ended.
static void jump_within(int fd, int sends) {
    static char bytes[MB];
    handle(SIGALRM, 0, jumping_handler);
    for (volatile int i = 0; i < 400; i++) {
        if (sigsetjmp(jump, 1)) continue;
        struct itimerval soon = {.it_value.tv_usec = 1 + i * 7 % 500};
        setitimer(ITIMER_REAL, &soon, NULL);
        while ((sends ? send(fd, bytes, MB, 0) : recv(fd, bytes, MB, MSG_WAITALL)) > 0) continue;
        die("not jumped");
    }
    say("jumped %d", (int)seen);
    close(fd);
    step();
}
static void jump_within_recv_a(int fd) { jump_within(fd, 0); }
static void jump_within_send_a(int fd) { jump_within(fd, 1); }
static void jump_within_recv_b(int fd) {
    static char bytes[20000];
    while (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0) continue;
    say("ended");
    step();
}
static void jump_within_send_b(int fd) {
    static char bytes[20000];
    while (recv(fd, bytes, sizeof bytes, 0) > 0) continue;
    say("ended");
    step();
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
    {"check_and_sleep_cold", COLD, check_and_sleep_a, idle_b},
    {"check_and_poll", WARM, check_and_poll_a, idle_b},
    {"check_and_epoll", WARM, check_and_epoll_a, idle_b},
    {"jump_recv", WARM, jump_recv_a, jumps_b},
    {"jump_poll", WARM, jump_poll_a, jumps_b},
    {"jump_select", WARM, jump_select_a, jumps_b},
    {"jump_epoll", WARM, jump_epoll_a, jumps_b},
    {"jump_send", WARM, jump_send_a, jumps_b},
    {"jump_accept", WARM, jump_accept_a, jumps_b},
    {"jump_stack", WARM, jump_stack_a, jumps_b},
    {"jump_early", WARM, jump_early_a, jump_early_b},
    {"jump_within_recv", WARM, jump_within_recv_a, jump_within_recv_b},
    {"jump_within_send", WARM, jump_within_send_a, jump_within_send_b},
    {"jump_cold", COLD, jump_cold_a, jump_cold_b},
    {0},
};
