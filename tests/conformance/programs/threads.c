// Threads: more of them than doorbells, on one socket together, cancelled.
#include "try.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define THREADS 100
#define ROUNDS 30

static void *echo_thread(void *argument) {
    int fd = (long)argument;
    char buffer[1000];
    ssize_t got;
    while ((got = recv(fd, buffer, sizeof buffer, 0)) > 0)
        if (send(fd, buffer, got, 0) != got) die("send");
    if (got < 0) die("receive");
    close(fd);
    return NULL;
}
static void hundred_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(threads + i, NULL, echo_thread, (void *)(long)accept(listener, NULL, NULL))) die("thread");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    say("served");
}
static void *asking_thread(void *argument) {
    int fd = dial((long)argument);
    for (int i = 0; i < ROUNDS; i++) {
        send_all(fd, i * 100, 100, 100);
        recv_all(fd, i * 100, 100, 100);
    }
    close(fd);
    return NULL;
}
static void hundred_b(int unused) {
    (void)unused;
    long port = hear();
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(threads + i, NULL, asking_thread, (void *)port);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    say("answered");
}
// The same, asked one after the other while all the others sleep: nobody is forgotten.
static void sleepers_b(int unused) {
    (void)unused;
    long port = hear();
    int fds[THREADS];
    for (int i = 0; i < THREADS; i++) fds[i] = dial(port);
    for (int round = 0; round < 12; round++)
        for (int i = 0; i < THREADS; i++) {
            send_all(fds[i], round * 10, 10, 10);
            recv_all(fds[i], round * 10, 10, 10);
        }
    // They sleep by now; one that is forgotten hangs, which ends the case.
    usleep(100000);
    for (int i = 0; i < THREADS; i++) {
        send_all(fds[i], 120, 10, 10);
        recv_all(fds[i], 120, 10, 10);
    }
    for (int i = 0; i < THREADS; i++) close(fds[i]);
    say("answered");
}
// All asleep: what does that cost?
static void idle_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        int fd = accept(listener, NULL, NULL);
        if (pthread_create(threads + i, NULL, echo_thread, (void *)(long)fd)) die("thread");
    }
    step();
    struct rusage before, after;
    usleep(300000); // the last news of doorbells
    getrusage(RUSAGE_SELF, &before);
    usleep(1000000);
    getrusage(RUSAGE_SELF, &after);
    long us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
              after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec - before.ru_stime.tv_usec;
    if (us > 20000 || after.ru_nvcsw - before.ru_nvcsw > 20) die("asleep for a second, but %ld us of work and %ld switches", us, after.ru_nvcsw - before.ru_nvcsw);
    step();
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    say("served");
}
static void idle_b(int unused) {
    (void)unused;
    long port = hear();
    int fds[THREADS];
    for (int i = 0; i < THREADS; i++) {
        fds[i] = dial(port);
        for (int round = 0; round < 12; round++) {
            send_all(fds[i], round * 10, 10, 10);
            recv_all(fds[i], round * 10, 10, 10);
        }
    }
    step();
    step();
    for (int i = 0; i < THREADS; i++) close(fds[i]);
}

// Records of several threads on one socket stay whole.
#define RECORD 1000
static void *record_thread(void *argument) {
    int fd = (long)argument & 0xffff, who = (long)argument >> 16;
    char record[RECORD];
    memset(record, 'a' + who, sizeof record);
    for (int i = 0; i < 500; i++)
        if (send(fd, record, sizeof record, 0) != sizeof record) die("send");
    return NULL;
}
static void records_a(int fd) {
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) pthread_create(threads + i, NULL, record_thread, (void *)(i << 16 | fd));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    step();
}
static void records_b(int fd) {
    int counts[4] = {0};
    for (int i = 0; i < 2000; i++) {
        char record[RECORD];
        if (recv(fd, record, sizeof record, MSG_WAITALL) != sizeof record) die("receive");
        for (int j = 1; j < RECORD; j++)
            if (record[j] != record[0]) die("records are mixed");
        counts[record[0] - 'a']++;
    }
    say("%d %d %d %d", counts[0], counts[1], counts[2], counts[3]);
    step();
}
// Several threads receive on one socket: each byte goes to one of them.
static uint64_t received;
static void *share_thread(void *argument) {
    char buffer[100];
    ssize_t got;
    while ((got = recv((long)argument, buffer, sizeof buffer, 0)) > 0) __atomic_add_fetch(&received, got, __ATOMIC_SEQ_CST);
    return NULL;
}
static void share_a(int fd) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(threads + i, NULL, share_thread, (void *)(long)fd);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    say("%lu", received);
    step();
}
static void share_b(int fd) {
    for (int i = 0; i < 1000; i++) {
        send_all(fd, 0, 37, 37);
        if (i % 50 == 0) usleep(1000);
    }
    shutdown(fd, SHUT_WR);
    step();
}

// A thread is cancelled while it sleeps in each kind of wait.
static int cancel_ep;
static void *cancelled_thread(void *argument) {
    int fd = (long)argument & 0xffff, how = (long)argument >> 16, shown;
    char byte;
    struct epoll_event event;
    if (how == 0) recv(fd, &byte, 1, 0);
    if (how == 1) pollx(fd, POLLIN, -1, &shown);
    if (how == 2) epoll_wait(cancel_ep, &event, 1, -1);
    if (how == 3) read(fd, &byte, 1);
    return NULL;
}
static void cancel_a(int fd) {
    cancel_ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(cancel_ep, EPOLL_CTL_ADD, fd, &event);
    for (long how = 0; how < 4; how++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, cancelled_thread, (void *)(how << 16 | fd));
        usleep(30000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        say("%ld cancelled %d", how, result == PTHREAD_CANCELED);
    }
    step();
    recv_all(fd, 0, 1000, 100);
    send_all(fd, 0, 1000, 100);
    step();
}
static void cancel_b(int fd) {
    step();
    send_all(fd, 0, 1000, 100);
    recv_all(fd, 0, 1000, 100);
    step();
}

// A thread polls sockets of which one gets its channel by another thread's doing.
static int poll_fds[2];
static void *late_sender(void *unused) {
    (void)unused;
    usleep(20000);
    for (int i = 0; i < 20; i++) {
        if (send(poll_fds[1], "x", 1, 0) != 1) die("send");
        usleep(2000);
    }
    return NULL;
}
static void late_channel_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    for (int i = 0; i < 2; i++) poll_fds[i] = accept(listener, NULL, NULL);
    warm(poll_fds[0], 0);
    pthread_t thread;
    pthread_create(&thread, NULL, late_sender, NULL);
    for (int got = 0; got < 100;) {
        struct pollfd entries[2] = {{.fd = poll_fds[0], .events = POLLIN}, {.fd = poll_fds[1], .events = POLLIN}};
        if (poll(entries, 2, 5000) <= 0) die("poll after %d", got);
        char buffer[100];
        ssize_t now = recv(poll_fds[1], buffer, 100, 0);
        if (now <= 0) die("receive");
        got += now;
    }
    pthread_join(thread, NULL);
    say("all there");
    step();
}
static void late_channel_b(int unused) {
    (void)unused;
    int port = hear(), fds[2];
    for (int i = 0; i < 2; i++) fds[i] = dial(port);
    warm(fds[0], 1);
    for (int i = 0; i < 20; i++) {
        char byte;
        if (recv(fds[1], &byte, 1, 0) != 1) die("receive");
        send_all(fds[1], i * 5, 5, 5);
    }
    step();
}

// A registration is added, changed and deleted in one thread while another reads the mail that
// makes its connection fast: no call finds less than the program has made.
#define CHURNERS 12
static void *churned_thread(void *argument) {
    for (int i = 0; i < ROUNDS; i++) {
        int fd = accept((long)argument, NULL, NULL);
        if (fd < 0) die("accept");
        echo_thread((void *)(long)fd);
    }
    return NULL;
}
static void churn_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    pthread_t threads[CHURNERS];
    for (int i = 0; i < CHURNERS; i++) pthread_create(threads + i, NULL, churned_thread, (void *)(long)listener);
    for (int i = 0; i < CHURNERS; i++) pthread_join(threads[i], NULL);
    say("served");
}
static void *churning_thread(void *argument) {
    int instance = epoll_create1(0);
    for (int i = 0; i < ROUNDS; i++) {
        int fd = dial((long)argument);
        for (int round = 0; round < 12; round++) {
            struct epoll_event event = {.events = EPOLLOUT, .data.fd = fd};
            send_all(fd, round * 10, 10, 10);
            for (int change = 0; change < 20; change++) {
                event.events = EPOLLOUT;
                if (epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event)) die("ADD %d: %s", round, error_name(errno));
                event.events = EPOLLIN;
                if (epoll_ctl(instance, EPOLL_CTL_MOD, fd, &event)) die("MOD %d: %s", round, error_name(errno));
                if (change == 19 && (epoll_wait(instance, &event, 1, 20000) != 1 || event.data.fd != fd)) die("no event %d", round);
                if (epoll_ctl(instance, EPOLL_CTL_DEL, fd, &event)) die("DEL %d: %s", round, error_name(errno));
            }
            recv_all(fd, round * 10, 10, 10);
        }
        close(fd);
    }
    close(instance);
    return NULL;
}
static void churn_b(int unused) {
    (void)unused;
    long port = hear();
    pthread_t threads[CHURNERS];
    for (int i = 0; i < CHURNERS; i++) pthread_create(threads + i, NULL, churning_thread, (void *)port);
    for (int i = 0; i < CHURNERS; i++) pthread_join(threads[i], NULL);
    say("answered");
}

// Connections come and go in many threads of both ends, so that numbers and entries are another
// connection's at once, while other threads read the mail about those that went. Each event is one
// thread's alone (EPOLLONESHOT), and each byte the right one.
#define WORKERS 6
#define GUESTS 8
#define VISITS 2000
#define WORDS_MAX 1000
static int lobby;
static void watch(int instance, int operation, int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, .data.fd = fd};
    if (epoll_ctl(instance, operation, fd, &event)) die("epoll_ctl %d: %s", operation, error_name(errno));
}
static void *working_thread(void *argument) {
    int instance = (long)argument;
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(instance, &event, 1, -1) != 1) die("wait");
        int fd = event.data.fd;
        if (fd == lobby) {
            int guest = accept4(lobby, NULL, NULL, SOCK_NONBLOCK);
            if (guest >= 0) watch(instance, EPOLL_CTL_ADD, guest);
            watch(instance, EPOLL_CTL_MOD, lobby);
            continue;
        }
        char words[WORDS_MAX];
        ssize_t got = recv(fd, words, sizeof words, 0);
        if (got > 0 && send(fd, words, got, 0) != got) die("send: %s", error_name(errno));
        if (got == 0) {
            close(fd);
        } else {
            if (got < 0 && errno != EAGAIN) die("receive: %s", error_name(errno));
            watch(instance, EPOLL_CTL_MOD, fd);
        }
    }
    return NULL;
}
static void visits_a(int unused) {
    (void)unused;
    int port, instance = epoll_create1(0);
    lobby = listen_any(&port);
    nonblocking(lobby, 1);
    watch(instance, EPOLL_CTL_ADD, lobby);
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) pthread_create(threads + i, NULL, working_thread, (void *)(long)instance);
    tell(port);
    step();
    say("served");
}
static void *visiting_thread(void *argument) {
    unsigned seed = (long)argument;
    for (int i = 0; i < VISITS; i++) {
        int fd = dial((long)argument >> 8);
        int rounds = rand_r(&seed) % 10;
        uint64_t at = 0;
        for (int round = 0; round < rounds; round++) {
            int count = 1 + rand_r(&seed) % WORDS_MAX;
            send_all(fd, at, count, count);
            recv_all(fd, at, count, count);
            at += count;
        }
        close(fd);
    }
    return NULL;
}
static void visits_b(int unused) {
    (void)unused;
    long port = hear();
    pthread_t threads[GUESTS];
    for (long i = 0; i < GUESTS; i++) pthread_create(threads + i, NULL, visiting_thread, (void *)(port << 8 | i));
    for (int i = 0; i < GUESTS; i++) pthread_join(threads[i], NULL);
    say("answered");
    step();
}

// The same by threads that all poll all guests: a number that one of them asks about may be closed
// meanwhile by another, and be a new guest's at once. What was shown of the former is not its.
#define SEATS 1024
static struct seat {
    pthread_mutex_t taken;
    int guest;
} seats[SEATS];
static void *polling_thread(void *unused) {
    static _Thread_local struct pollfd asked[SEATS];
    for (;;) {
        int count = 0;
        for (int fd = 0; fd < SEATS; fd++)
            if (__atomic_load_n(&seats[fd].guest, __ATOMIC_SEQ_CST)) asked[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        if (poll(asked, count, 20) < 0) die("poll: %s", error_name(errno));
        for (int i = 0; i < count; i++) {
            int fd = asked[i].fd;
            if (!(asked[i].revents & ~POLLNVAL) || pthread_mutex_trylock(&seats[fd].taken)) continue;
            if (seats[fd].guest) {
                char words[WORDS_MAX];
                ssize_t got = recv(fd, words, sizeof words, 0);
                if (got > 0 && send(fd, words, got, 0) != got) die("send: %s", error_name(errno));
                if (got < 0 && errno != EAGAIN) die("receive: %s", error_name(errno));
                if (got == 0) {
                    __atomic_store_n(&seats[fd].guest, 0, __ATOMIC_SEQ_CST);
                    close(fd);
                }
            }
            pthread_mutex_unlock(&seats[fd].taken);
        }
    }
    return unused;
}
static void *seating_thread(void *listener) {
    for (;;) {
        int guest = accept4((long)listener, NULL, NULL, SOCK_NONBLOCK);
        if (guest < 0) die("accept: %s", error_name(errno));
        if (guest >= SEATS) die("no seat");
        pthread_mutex_lock(&seats[guest].taken);
        __atomic_store_n(&seats[guest].guest, 1, __ATOMIC_SEQ_CST);
        pthread_mutex_unlock(&seats[guest].taken);
    }
    return NULL;
}
static void seats_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    for (int i = 0; i < SEATS; i++) pthread_mutex_init(&seats[i].taken, NULL);
    pthread_t thread;
    for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, polling_thread, NULL);
    pthread_create(&thread, NULL, seating_thread, (void *)(long)listener);
    tell(port);
    step();
    say("served");
}

// A server waits for edges, and other instances with the same connections come and go beside it:
// what these were shown first, the first one is told too.
static int first_instance;
static void *edge_thread(void *unused) {
    for (;;) {
        struct epoll_event event;
        if (epoll_wait(first_instance, &event, 1, -1) != 1) die("wait");
        int fd = event.data.fd;
        pthread_mutex_lock(&seats[fd].taken);
        char words[WORDS_MAX];
        ssize_t got = 1;
        while (seats[fd].guest && got > 0) {
            got = recv(fd, words, sizeof words, 0);
            if (got > 0 && send(fd, words, got, 0) != got) die("send: %s", error_name(errno));
            if (got < 0 && errno != EAGAIN) die("receive: %s", error_name(errno));
        }
        if (seats[fd].guest && got == 0) {
            seats[fd].guest = 0;
            close(fd);
        }
        pthread_mutex_unlock(&seats[fd].taken);
    }
    return unused;
}
static void *beside_thread(void *unused) {
    for (;;) {
        int instance = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
        for (int fd = 0; fd < 64; fd++) {
            pthread_mutex_lock(&seats[fd].taken);
            if (seats[fd].guest && epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event)) die("add: %s", error_name(errno));
            pthread_mutex_unlock(&seats[fd].taken);
        }
        if (epoll_wait(instance, &event, 1, 1) < 0) die("wait beside");
        close(instance);
    }
    return unused;
}
static void *edges_accept_thread(void *listener) {
    for (;;) {
        int fd = accept4((long)listener, NULL, NULL, SOCK_NONBLOCK);
        if (fd < 0) die("accept: %s", error_name(errno));
        if (fd >= SEATS) die("no seat");
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.fd = fd};
        pthread_mutex_lock(&seats[fd].taken);
        seats[fd].guest = 1;
        if (epoll_ctl(first_instance, EPOLL_CTL_ADD, fd, &event)) die("add: %s", error_name(errno));
        pthread_mutex_unlock(&seats[fd].taken);
    }
    return NULL;
}
static void edges_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    for (int i = 0; i < SEATS; i++) pthread_mutex_init(&seats[i].taken, NULL);
    first_instance = epoll_create1(0);
    pthread_t thread;
    for (int i = 0; i < 5; i++) pthread_create(&thread, NULL, edge_thread, NULL);
    pthread_create(&thread, NULL, beside_thread, NULL);
    pthread_create(&thread, NULL, edges_accept_thread, (void *)(long)listener);
    tell(port);
    step();
    say("served");
}
static void *parting_thread(void *argument) {
    unsigned seed = (long)argument;
    for (int i = 0; i < VISITS; i++) {
        int fd = dial((long)argument >> 8);
        int rounds = rand_r(&seed) % 10;
        for (int round = 0; round < rounds; round++) {
            send_all(fd, round * 500, 500, 500);
            recv_all(fd, round * 500, 500, 500);
        }
        char word;
        if (shutdown(fd, SHUT_WR) || recv(fd, &word, 1, 0)) die("no end: %s", error_name(errno));
        close(fd);
    }
    return NULL;
}
static void partings_b(int unused) {
    (void)unused;
    long port = hear();
    pthread_t threads[GUESTS];
    for (long i = 0; i < GUESTS; i++) pthread_create(threads + i, NULL, parting_thread, (void *)(port << 8 | i));
    for (int i = 0; i < GUESTS; i++) pthread_join(threads[i], NULL);
    say("answered");
    step();
}

// A thread spawns a program and is held up just when it asks whether a connection stays open over
// that (a filter for the system call, and a signal). Meanwhile the connection and another one are
// closed, and two new ones have their numbers: the library's table gives the entry of the last one
// closed first, the kernel the lowest number. What lies in a ring goes to its own reader.
static int held_fd, held[2], release[2];
static void held_up(int number, siginfo_t *unused, void *context) {
    static int times;
    char byte = 'h';
    (void)number, (void)unused;
    if (!times++) {
        raw_syscall(SYS_write, held[1], (long)&byte, 1, 0, 0, 0);
        raw_syscall(SYS_read, release[0], (long)&byte, 1, 0, 0, 0);
    }
    // The flags: stays open.
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 0;
}
static void *spawning_thread(void *unused) {
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOWED_UNLESS(value, ahead) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, ahead)
    struct sock_filter filter[] = {
        LOAD(nr), ALLOWED_UNLESS(SYS_fcntl, 5),
        LOAD(args[1]), ALLOWED_UNLESS(F_GETFD, 3),
        LOAD(args[0]), ALLOWED_UNLESS(held_fd, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    struct sigaction action = {.sa_sigaction = held_up, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGSYS, &action, NULL)) die("sigaction");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) die("filter: %s", error_name(errno));
    // What is done for a spawn is done for one that fails, too; no child has the numbers then.
    pid_t child;
    char *words[] = {"none", NULL};
    if (posix_spawn(&child, "/none", NULL, NULL, words, environ) != ENOENT) die("spawn");
    if (write(held[1], "n", 1) != 1) die("write");
    return unused;
}
static void spawn_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), fds[2];
    tell(port);
    for (int i = 0; i < 2; i++) warm(fds[i] = accept(listener, NULL, NULL), 0);
    step();
    for (int i = 0; i < 2; i++) close(fds[i]);
    for (int i = 0; i < 2; i++) warm(fds[i] = accept(listener, NULL, NULL), 0);
    step();
    for (int i = 0; i < 2; i++) {
        recv_all(fds[i], i * 5000, 3000, 1000);
        drained(fds[i]);
    }
    say("each its own");
    step();
}
static void spawn_b(int unused) {
    (void)unused;
    int port = hear(), old[2], new[2];
    char word;
    pthread_t thread;
    if (pipe2(held, O_CLOEXEC) || pipe2(release, O_CLOEXEC)) die("pipe");
    for (int i = 0; i < 2; i++) warm(old[i] = dial(port), 1);
    held_fd = old[0];
    pthread_create(&thread, NULL, spawning_thread, NULL);
    if (read(held[0], &word, 1) != 1) die("read");
    if (!by_kernel && word != 'h') die("nobody asked for the flags: hold the thread up elsewhere");
    for (int i = 0; i < 2; i++) close(old[i]);
    step();
    for (int i = 0; i < 2; i++) {
        warm(new[i] = dial(port), 1);
        if (new[i] != old[i]) die("not the same number");
    }
    send_all(new[1], 5000, 3000, 1000);
    if (write(release[1], "g", 1) != 1) die("write");
    pthread_join(thread, NULL);
    send_all(new[0], 0, 3000, 1000);
    for (int i = 0; i < 2; i++) shutdown(new[i], SHUT_WR);
    step();
    step();
}

// Has calls of the calling thread held up until somebody answers them ([`answer`]): those of system
// call `number`, if `fd` is not below 0 with this first argument. What shows them.
static int hold_calls(int number, int fd) {
    struct sock_filter filter[] = {
        LOAD(nr), ALLOWED_UNLESS(number, 3),
        LOAD(args[0]), ALLOWED_UNLESS(fd, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    // Whatever the argument.
    if (fd < 0) filter[3] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 0);
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) die("no new privileges");
    int shown = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (shown < 0) die("filter");
    return shown;
}
// The next one of these calls is made.
static void answer(int shown) {
    struct seccomp_notif call = {0};
    if (raw_syscall(SYS_ioctl, shown, SECCOMP_IOCTL_NOTIF_RECV, (long)&call, 0, 0, 0)) die("no call");
    struct seccomp_notif_resp made = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    if (raw_syscall(SYS_ioctl, shown, SECCOMP_IOCTL_NOTIF_SEND, (long)&made, 0, 0, 0)) die("no answer");
}
// Which of two descriptors shows something first, past the library: it may wait for a thread that is held up.
static int first_of(int one, int two) {
    struct pollfd entries[2] = {{.fd = one, .events = POLLIN}, {.fd = two, .events = POLLIN}};
    if (raw_syscall(SYS_poll, (long)entries, 2, 20000, 0, 0, 0) <= 0) die("nothing comes");
    return entries[0].revents ? one : two;
}

// A connection has two numbers, and the peer leaves in its ring what a thread, which sleeps in a
// receive by the first one, has to send by the kernel. That number is closed by another thread.
static int numbered[2], sends_held, yields_held, receiver_tid;
static void ended(int unused) { (void)unused; }
static void *receiving_thread(void *holds) {
    char byte;
    if (holds) sends_held = hold_calls(SYS_sendto, numbered[0]);
    receiver_tid = gettid();
    if (write(held[1], "r", 1) != 1) die("write");
    // A signal ends it. That the number is not the connection's any more by then is no matter here.
    if (recv(numbered[0], &byte, 1, 0) > 0) die("a byte of nobody's");
    return NULL;
}
static pthread_t receiver(int fd, int holds) {
    struct sigaction action = {.sa_handler = ended};
    pthread_t thread;
    char byte;
    if (pipe2(held, O_CLOEXEC) || sigaction(SIGUSR1, &action, NULL)) die("pipe, sigaction");
    numbered[0] = fd;
    numbered[1] = dup(fd);
    if (pthread_create(&thread, NULL, receiving_thread, holds ? held : NULL)) die("thread");
    if (read(held[0], &byte, 1) != 1) die("read");
    asleep(getpid(), receiver_tid);
    return thread;
}
// Returns when a thread receives by the kernel from `number` (man 5 proc_pid_syscall).
static void receives_by(int tid, int number) {
    char path[64], line[256];
    long call, first;
    do {
        usleep(1000);
        snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
        FILE *file = fopen(path, "r");
        if (!file || !fgets(line, sizeof line, file)) die(path);
        fclose(file);
    } while (sscanf(line, "%ld %lx", &call, &first) != 2 || call != SYS_recvmsg || first != number);
}
static void end_receiver(pthread_t thread) {
    while (pthread_tryjoin_np(thread, NULL)) {
        pthread_kill(thread, SIGUSR1);
        usleep(1000);
    }
}
static void numbers_a(int fd) {
    step();
    // libc's streams use this one past the library: the ring is given back to its writer.
    int kept = dup(2);
    if (dup2(fd, 2) != 2 || dup2(kept, 2) != 2) die("dup2");
    recv_all(fd, 0, 3000, 1000);
    step();
    recv_all(fd, 3000, 1000, 1000);
    drained(fd);
    say("all there");
    step();
}
static void numbers_end(pthread_t thread) {
    step();
    end_receiver(thread);
    send_all(numbered[1], 3000, 1000, 1000);
    shutdown(numbered[1], SHUT_WR);
    step();
}
// ... just when the thread has read it: it waits in its send, and the closing thread for it.
static void *closing_thread(void *unused) {
    yields_held = hold_calls(SYS_sched_yield, -1);
    if (write(held[1], "r", 1) != 1) die("write");
    // Who waits for a lock gives way now and then.
    close(numbered[0]);
    if (write(held[1], "c", 1) != 1) die("write");
    return unused;
}
static void closed_b(int fd) {
    pthread_t thread = receiver(fd, 1), closer;
    char byte;
    int other[2];
    send_all(fd, 0, 3000, 1000);
    step();
    if (!by_kernel) first_of(sends_held, sends_held);
    pthread_create(&closer, NULL, closing_thread, NULL);
    if (raw_syscall(SYS_read, held[0], (long)&byte, 1, 0, 0, 0) != 1) die("read");
    first_of(yields_held, held[0]);
    if (raw_syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, (long)other, 0, 0)) die("socketpair");
    // The calls fail from here on, which nobody asks about.
    raw_syscall(SYS_close, yields_held, 0, 0, 0, 0, 0);
    if (!by_kernel) answer(sends_held);
    if (!by_kernel && other[0] == fd) die("another socket has the number by which the library sends");
    pthread_join(closer, NULL);
    numbers_end(thread);
}
// ... while the thread sleeps: another socket has the number before it wakes.
static void slept_b(int fd) {
    pthread_t thread = receiver(fd, 0);
    int other[2];
    send_all(fd, 0, 3000, 1000);
    close(fd);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, other) || other[0] != fd) die("not the same number");
    step();
    // The other role's step comes when it has all of the bytes.
    if (first_of(other[1], 0) == other[1]) die("bytes of the connection in another socket");
    if (!by_kernel) {
        // The thread goes on in the kernel: not by the number that it began with, which has a byte.
        if (write(other[1], "n", 1) != 1) die("write");
        receives_by(receiver_tid, numbered[1]);
    }
    numbers_end(thread);
}

// ... while a thread sleeps in sendfile, of which nothing has gone yet: libc's goes on with it, not by
// the number that it began with.
#define FILE_BYTES 3000
static int filed;
static void *filing_thread(void *unused) {
    receiver_tid = gettid();
    if (write(held[1], "r", 1) != 1) die("write");
    if (sendfile(numbered[0], filed, NULL, FILE_BYTES) != FILE_BYTES) die("sendfile");
    if (write(held[1], "s", 1) != 1) die("write");
    return unused;
}
static void filed_a(int fd) {
    step();
    int kept = dup(2);
    if (dup2(fd, 2) != 2 || dup2(kept, 2) != 2) die("dup2");
    recv_all(fd, 0, hear(), 1000);
    drained(fd);
    say("all there");
    step();
}
static void filed_b(int fd) {
    pthread_t thread;
    char bytes[FILE_BYTES], byte;
    uint64_t sent = 0;
    int other[2];
    ssize_t went;
    do {
        fill(bytes, sent, sizeof bytes);
        went = send(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        sent += went > 0 ? went : 0;
    } while (went > 0);
    if (errno != EAGAIN) die("send");
    fill(bytes, sent, sizeof bytes);
    filed = memfd_create("file", 0);
    if (write(filed, bytes, sizeof bytes) != sizeof bytes || lseek(filed, 0, SEEK_SET)) die("file");
    numbered[0] = fd;
    numbered[1] = dup(fd);
    if (pipe2(held, O_CLOEXEC) || pthread_create(&thread, NULL, filing_thread, NULL)) die("thread");
    if (read(held[0], &byte, 1) != 1) die("read");
    asleep(getpid(), receiver_tid);
    close(fd);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, other) || other[0] != fd) die("not the same number");
    step();
    tell(sent + FILE_BYTES);
    if (first_of(other[1], held[0]) == other[1]) die("bytes of the connection in another socket");
    pthread_join(thread, NULL);
    shutdown(numbered[1], SHUT_WR);
    step();
}

// ... while a thread, which reads that the connection has got a channel, is about to ask the kernel
// about it by that number: another connection has it then, of which it says something else.
static int asks_held;
static void *warming_thread(void *unused) {
    // By the kernel nobody answers: nothing is held up then.
    asks_held = by_kernel ? -1 : hold_calls(SYS_fcntl, numbered[0]);
    if (write(held[1], "r", 1) != 1) die("write");
    warm(numbered[1], 1);
    return unused;
}
static void *sending_thread(void *listener) {
    int fd = accept((long)listener, NULL, NULL);
    send_all(fd, 0, 3000, 1000);
    drained(fd);
    return NULL;
}
static void paired_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    pthread_t sender;
    tell(port);
    int fd = accept(listener, NULL, NULL);
    if (pthread_create(&sender, NULL, sending_thread, (void *)(long)listener)) die("thread");
    warm(fd, 0);
    recv_all(fd, 0, 3000, 1000);
    send_all(fd, 5000, 3000, 1000);
    drained(fd);
    pthread_join(sender, NULL);
    say("each its own");
    step();
}
static void paired_b(int unused) {
    (void)unused;
    int port = hear();
    char byte;
    pthread_t thread;
    if (pipe2(held, O_CLOEXEC)) die("pipe");
    numbered[0] = dial(port);
    numbered[1] = dup(numbered[0]);
    if (pthread_create(&thread, NULL, warming_thread, NULL) || read(held[0], &byte, 1) != 1) die("thread");
    if (!by_kernel) first_of(asks_held, asks_held);
    close(numbered[0]);
    int other = dial(port);
    if (other != numbered[0]) die("not the same number");
    recv_all(other, 0, 3000, 3000);
    if (!by_kernel) answer(asks_held);
    // The calls fail from here on, which nobody asks about.
    close(asks_held);
    pthread_join(thread, NULL);
    send_all(numbered[1], 0, 3000, 1000);
    recv_all(numbered[1], 5000, 3000, 1000);
    shutdown(numbered[1], SHUT_WR);
    close(other);
    step();
}

const struct test_case cases[] = {
    {"hundred", NONE, hundred_a, hundred_b},
    {"sleepers", NONE, hundred_a, sleepers_b},
    {"idle", NONE, idle_a, idle_b},
    {"records", WARM, records_a, records_b},
    {"share", WARM, share_a, share_b},
    {"cancel", WARM, cancel_a, cancel_b},
    {"late_channel", NONE, late_channel_a, late_channel_b},
    {"visits", NONE, visits_a, visits_b},
    {"seats", NONE, seats_a, visits_b},
    {"edges", NONE, edges_a, partings_b},
    {"register", NONE, churn_a, churn_b},
    {"spawn", NONE, spawn_a, spawn_b},
    {"closed_number", WARM, numbers_a, closed_b},
    {"slept_number", WARM, numbers_a, slept_b},
    {"filed_number", WARM, filed_a, filed_b},
    {"paired_number", NONE, paired_a, paired_b},
    {0},
};
