// Threads that end, close and shut down what others sleep on: cancellation in each call,
// deferred and at any time, with cleanup handlers run and the connection as it was.
#include "try.h"
#include <semaphore.h>

static int fd_of_all, epoll_of_all, listener_of_all;
static volatile int tid, cleaned, before_it;
static void cleanup(void *argument) {
    (void)argument;
    cleaned++;
}

static char buffer[100], large[1 << 20];
static struct iovec part = {buffer, sizeof buffer};
static struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
static struct epoll_event event = {.events = EPOLLIN};
static fd_set set;

#define RECEIVERS(X) \
    X(read, read(fd_of_all, buffer, 100)) \
    X(recv, recv(fd_of_all, buffer, 100, 0)) \
    X(recvfrom, recvfrom(fd_of_all, buffer, 100, 0, NULL, NULL)) \
    X(recvmsg, recvmsg(fd_of_all, &message, 0)) \
    X(poll, poll(&(struct pollfd){.fd = fd_of_all, .events = POLLIN}, 1, -1)) \
    X(ppoll, ppoll(&(struct pollfd){.fd = fd_of_all, .events = POLLIN}, 1, NULL, NULL)) \
    X(select, select(fd_of_all + 1, &set, NULL, NULL, NULL)) \
    X(epoll_wait, epoll_wait(epoll_of_all, &event, 1, -1)) \
    X(epoll_pwait, epoll_pwait(epoll_of_all, &event, 1, -1, NULL))
#define SENDERS(X) \
    X(write, write(fd_of_all, buffer, 100)) \
    X(send, send(fd_of_all, buffer, 100, 0)) \
    X(sendmsg, sendmsg(fd_of_all, &message, 0)) \
    X(send_long, send(fd_of_all, large, sizeof large, 0))

static void prepare(int fd) {
    fd_of_all = fd;
    epoll_of_all = epoll_create1(0);
    if (epoll_ctl(epoll_of_all, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    FD_ZERO(&set);
    FD_SET(fd, &set);
}
static void wait_for(volatile int *word) {
    while (!*word) usleep(100);
}
static void join(pthread_t thread) {
    void *result;
    if (pthread_join(thread, &result)) die("join");
    say("%s, cleaned %d", result == PTHREAD_CANCELED ? "cancelled" : "returned", cleaned);
}
// The connection is as it was: bytes come and go by the ring.
static void still_good(int fd) {
    tell(1);
    recv_all(fd, 0, 100000, 10000);
    must_ring(fd, "after it");
    step();
}
static void good_b(int fd) {
    hear();
    send_all(fd, 0, 100000, 10000);
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}
static void good_after_room_b(int fd) {
    static char all[1 << 20];
    hear();
    for (int quiet = 0; quiet < 20;) {
        if (recv(fd, all, sizeof all, MSG_DONTWAIT) > 0) quiet = 0;
        else usleep(1000), quiet++;
    }
    tell(1);
    good_b(fd);
}

enum { DEFERRED, ANY_TIME };
static void sleeper(int kind, long (*call)(void)) {
    pthread_setcanceltype(kind == ANY_TIME ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED, NULL);
    pthread_cleanup_push(cleanup, NULL);
    tid = syscall(SYS_gettid);
    while (call() > 0 || errno == EINTR) {}
    pthread_cleanup_pop(0);
}
static void cancel_asleep(void *(*body)(void *)) {
    pthread_t thread;
    tid = 0;
    pthread_create(&thread, NULL, body, NULL);
    wait_for(&tid);
    asleep(getpid(), tid);
    pthread_cancel(thread);
    join(thread);
}

#define THREADS(name, call) \
    static long name##_call(void) { return call; } \
    static void *name##_deferred(void *unused) { (void)unused; sleeper(DEFERRED, name##_call); return NULL; } \
    static void *name##_any(void *unused) { (void)unused; sleeper(ANY_TIME, name##_call); return NULL; }
#define RECEIVER(name, call) THREADS(name, call) \
    static void name##_a(int fd) { prepare(fd); cancel_asleep(name##_deferred); still_good(fd); } \
    static void name##_any_a(int fd) { prepare(fd); cancel_asleep(name##_any); still_good(fd); }
#define SENDER(name, call) THREADS(name, call) \
    static void name##_a(int fd) { prepare(fd); cram(fd); cancel_asleep(name##_deferred); tell(1); hear(); still_good(fd); } \
    static void name##_any_a(int fd) { prepare(fd); cram(fd); cancel_asleep(name##_any); tell(1); hear(); still_good(fd); }
RECEIVERS(RECEIVER)
SENDERS(SENDER)

// accept: what comes later is somebody else's.
static long accept_call(void) { return accept(listener_of_all, NULL, NULL); }
static void *accept_thread(void *unused) { (void)unused; sleeper(DEFERRED, accept_call); return NULL; }
static void accept_a(int unused) {
    (void)unused;
    int port;
    listener_of_all = listen_any(&port);
    cancel_asleep(accept_thread);
    tell(port);
    int fd = accept(listener_of_all, NULL, NULL);
    warm(fd, 0);
    step();
}
static void accept_b(int unused) {
    (void)unused;
    warm(dial(hear()), 1);
    step();
}
// On the kernel path, before there is a channel: it may rise all the same.
static void cold_a(int fd) {
    prepare(fd);
    for (int i = 0; i < 5; i++) cancel_asleep(recv_deferred);
    tell(1);
    warm(fd, 0);
    must_ring(fd, "after it");
    step();
}
static void cold_b(int fd) {
    hear();
    warm(fd, 1);
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}
// More often than there are doorbells.
static void often_a(int fd) {
    prepare(fd);
    for (int i = 0; i < 150; i++) {
        pthread_t thread;
        tid = 0;
        pthread_create(&thread, NULL, i % 3 == 0 ? recv_deferred : i % 3 == 1 ? poll_deferred : epoll_wait_deferred, NULL);
        wait_for(&tid);
        asleep(getpid(), tid);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
    say("cleaned %d", cleaned);
    still_good(fd);
}

// Cancelled before the call (and at no other point before it): it takes nothing, though
// there is something to take.
static volatile int go;
static void wait_to_go(void) {
    while (!go) __asm__ volatile("pause");
}
static void *late_recv(void *unused) {
    (void)unused;
    pthread_cleanup_push(cleanup, NULL);
    wait_to_go();
    recv(fd_of_all, buffer, 100, 0);
    before_it = 1;
    pthread_cleanup_pop(0);
    return NULL;
}
static void *late_send(void *unused) {
    (void)unused;
    pthread_cleanup_push(cleanup, NULL);
    wait_to_go();
    send(fd_of_all, "x", 1, 0);
    before_it = 1;
    pthread_cleanup_pop(0);
    return NULL;
}
static void *late_poll(void *unused) {
    (void)unused;
    pthread_cleanup_push(cleanup, NULL);
    wait_to_go();
    poll(&(struct pollfd){.fd = fd_of_all, .events = POLLOUT}, 1, -1);
    before_it = 1;
    pthread_cleanup_pop(0);
    return NULL;
}
static void *late_epoll(void *unused) {
    (void)unused;
    pthread_cleanup_push(cleanup, NULL);
    wait_to_go();
    epoll_wait(epoll_of_all, &event, 1, -1);
    before_it = 1;
    pthread_cleanup_pop(0);
    return NULL;
}
static void *late_close(void *unused) {
    (void)unused;
    pthread_cleanup_push(cleanup, NULL);
    wait_to_go();
    close(fd_of_all);
    before_it = 1;
    pthread_cleanup_pop(0);
    return NULL;
}
static void late(int fd, void *(*body)(void *)) {
    prepare(fd);
    step();
    pthread_t thread;
    pthread_create(&thread, NULL, body, NULL);
    pthread_cancel(thread);
    go = 1;
    join(thread);
    say("went on %d", before_it);
    // All of it is still there.
    recv_all(fd, 0, 5, 5);
    still_good(fd);
}
static void late_recv_a(int fd) { late(fd, late_recv); }
static void late_send_a(int fd) { late(fd, late_send); }
static void late_poll_a(int fd) { late(fd, late_poll); }
static void late_epoll_a(int fd) { late(fd, late_epoll); }
static void late_close_a(int fd) { late(fd, late_close); }
static void late_b(int fd) {
    send_all(fd, 0, 5, 5);
    step();
    good_b(fd);
}

// A thread that never sleeps, under traffic in both directions, is cancelled all the same.
static void *echo(void *unused) {
    (void)unused;
    char byte;
    pthread_cleanup_push(cleanup, NULL);
    while (recv(fd_of_all, &byte, 1, 0) == 1 && send(fd_of_all, &byte, 1, 0) == 1) before_it++;
    pthread_cleanup_pop(0);
    return NULL;
}
static void *echo_any(void *unused) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    return echo(unused);
}
static void traffic(int fd, void *(*body)(void *)) {
    fd_of_all = fd;
    pthread_t thread;
    pthread_create(&thread, NULL, body, NULL);
    step();
    while (before_it < 1000) usleep(100);
    pthread_cancel(thread);
    join(thread);
    // Another thread serves it from here on: the connection's locks are free.
    char byte;
    nonblocking(fd, 1);
    recv(fd, &byte, 1, 0);
    send(fd, &byte, 1, 0);
    nonblocking(fd, 0);
    shutdown(fd, SHUT_RDWR);
    step();
}
static void traffic_a(int fd) { traffic(fd, echo); }
static void traffic_any_a(int fd) { traffic(fd, echo_any); }
static void traffic_b(int fd) {
    char byte = 'x';
    step();
    // Some bytes are always on their way.
    for (int i = 0; i < 20; i++) if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1) die("send");
    while (recv(fd, &byte, 1, 0) == 1 && send(fd, &byte, 1, MSG_NOSIGNAL) == 1) {}
    step();
}
// Who has forbidden it is not cancelled, asleep or not.
static void *forbidding(void *unused) {
    (void)unused;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cleanup_push(cleanup, NULL);
    tid = syscall(SYS_gettid);
    long got = recv(fd_of_all, buffer, 1, 0);
    say("recv %s", outcome(got));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}
static void forbidden_a(int fd) {
    prepare(fd);
    pthread_t thread;
    pthread_create(&thread, NULL, forbidding, NULL);
    wait_for(&tid);
    asleep(getpid(), tid);
    pthread_cancel(thread);
    usleep(5000);
    asleep(getpid(), tid);
    tell(1);
    join(thread);
    still_good(fd);
}
static void forbidden_b(int fd) {
    hear();
    if (send(fd, "x", 1, 0) != 1) die("send");
    good_b(fd);
}
// Cleanup handlers use the connection: they say good-bye on it.
static void saying(void *unused) {
    (void)unused;
    cleaned++;
    if (send(fd_of_all, "bye", 3, 0) != 3) die("send in cleanup");
}
static void *saying_thread(void *unused) {
    (void)unused;
    pthread_cleanup_push(cleanup, NULL);
    pthread_cleanup_push(saying, NULL);
    tid = syscall(SYS_gettid);
    recv(fd_of_all, buffer, 100, 0);
    pthread_cleanup_pop(0);
    pthread_cleanup_pop(0);
    return NULL;
}
static void saying_a(int fd) {
    prepare(fd);
    cancel_asleep(saying_thread);
    still_good(fd);
}
static void saying_b(int fd) {
    if (recv(fd, buffer, 3, MSG_WAITALL) != 3 || memcmp(buffer, "bye", 3)) die("receive");
    good_b(fd);
}
// A thread may also leave out of a handler or simply end; others go on.
static void leaving_handler(int signal) {
    (void)signal;
    pthread_exit(PTHREAD_CANCELED);
}
static void exit_a(int fd) {
    prepare(fd);
    struct sigaction action = {.sa_handler = leaving_handler};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t thread;
    pthread_create(&thread, NULL, recv_deferred, NULL);
    wait_for(&tid);
    asleep(getpid(), tid);
    pthread_kill(thread, SIGUSR1);
    join(thread);
    still_good(fd);
}

// Another thread closes or shuts down what this one sleeps on.
static volatile long result;
static volatile int error;
static int shown;
static void *receiving(void *unused) {
    (void)unused;
    tid = syscall(SYS_gettid);
    result = recv(fd_of_all, buffer, 100, 0);
    error = errno;
    return NULL;
}
static void *sending(void *unused) {
    (void)unused;
    tid = syscall(SYS_gettid);
    result = send(fd_of_all, buffer, 100, MSG_NOSIGNAL);
    error = errno;
    return NULL;
}
static void *polling(void *unused) {
    (void)unused;
    tid = syscall(SYS_gettid);
    result = pollx(fd_of_all, POLLIN | POLLRDHUP, -1, &shown);
    return NULL;
}
static pthread_t start_asleep(int fd, void *(*body)(void *)) {
    pthread_t thread;
    prepare(fd);
    pthread_create(&thread, NULL, body, NULL);
    wait_for(&tid);
    asleep(getpid(), tid);
    return thread;
}
static void shut(int fd, void *(*body)(void *), int how) {
    pthread_t thread = start_asleep(fd, body);
    say("shutdown %s", outcome(shutdown(fd, how)));
    pthread_join(thread, NULL);
    say("%ld %s", result, result < 0 ? error_name(error) : "");
    step();
}
static void shut_recv_a(int fd) { shut(fd, receiving, SHUT_RD); }
static void shut_recv_both_a(int fd) { shut(fd, receiving, SHUT_RDWR); }
static void shut_poll_a(int fd) { shut(fd, polling, SHUT_RDWR), say("shown %s", bits(shown)); }
static void shut_send_a(int fd) { cram(fd); shut(fd, sending, SHUT_WR); }
static void shut_send_both_a(int fd) { cram(fd); shut(fd, sending, SHUT_RDWR); }
static void idle_b(int fd) {
    (void)fd;
    step();
}
// A close alone wakes nobody: the sleeper keeps the socket until something comes.
static void close_how(int fd, int how) {
    pthread_t thread = start_asleep(fd, receiving);
    if (how == 0) say("close %s", outcome(close(fd)));
    if (how == 1) say("dup2 %d", dup2(2, fd) == fd);
    if (how == 2) say("close_range %s", outcome(close_range(fd, fd, 0)));
    asleep(getpid(), tid);
    // The number is free, or another one's, at once.
    if (how != 1) say("free %d", dup(2) == fd);
    tell(1);
    pthread_join(thread, NULL);
    say("%ld %s", result, result < 0 ? error_name(error) : "");
    tell(1);
    step();
}
static void close_recv_a(int fd) { close_how(fd, 0); }
static void dup2_recv_a(int fd) { close_how(fd, 1); }
static void close_range_recv_a(int fd) { close_how(fd, 2); }
static void close_recv_b(int fd) {
    hear();
    int shown;
    say("no end yet %d", pollx(fd, POLLIN, 20, &shown));
    if (send(fd, "abc", 3, 0) != 3) die("send");
    hear();
    drained(fd);
    say("the end");
    step();
}
// A sleeping send, too: its bytes still go.
static void close_send_a(int fd) {
    cram(fd);
    pthread_t thread = start_asleep(fd, sending);
    say("close %s", outcome(close(fd)));
    tell(1);
    pthread_join(thread, NULL);
    say("%ld", result);
    step();
}
static void close_send_b(int fd) {
    static char all[1 << 20];
    hear();
    ssize_t got;
    while ((got = recv(fd, all, sizeof all, 0)) > 0) {}
    say("the end %s", outcome(got));
    step();
}

// Many threads, one socket: records of 4096 bytes do not mix; each byte goes to one reader.
// (With its buffer full, Linux mixes them: no more are on their way than fit.)
enum { WRITERS = 8, BYTES = 4096, RECORDS = 200, FIT = 12 };
static sem_t room;
static void *writer(void *who) {
    char record[BYTES];
    memset(record, 'a' + (long)who, BYTES);
    for (int i = 0; i < RECORDS; i++) {
        sem_wait(&room);
        if (write(fd_of_all, record, BYTES) != BYTES) die("write");
    }
    return NULL;
}
static void writers_a(int fd) {
    pthread_t threads[WRITERS];
    fd_of_all = fd;
    sem_init(&room, 0, FIT);
    for (long i = 0; i < WRITERS; i++) pthread_create(threads + i, NULL, writer, (void *)i);
    for (int i = 0; i < WRITERS * RECORDS; i++) {
        char byte;
        if (recv(fd, &byte, 1, 0) != 1) die("receive");
        sem_post(&room);
    }
    for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
    step();
}
static void writers_b(int fd) {
    static char record[BYTES];
    int counts[WRITERS] = {0};
    for (int i = 0; i < WRITERS * RECORDS; i++) {
        if (recv(fd, record, BYTES, MSG_WAITALL) != BYTES) die("receive");
        for (int j = 1; j < BYTES; j++) if (record[j] != record[0]) die("records are mixed");
        counts[record[0] - 'a']++;
        if (send(fd, "a", 1, 0) != 1) die("send");
    }
    for (int i = 0; i < WRITERS; i++) if (counts[i] != RECORDS) die("%d of %d", counts[i], i);
    say("whole");
    step();
}
static uint64_t sum, count;
static void *reader(void *unused) {
    unsigned char bytes[700];
    ssize_t got;
    (void)unused;
    while ((got = read(fd_of_all, bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i < got; i++) __atomic_add_fetch(&sum, bytes[i], __ATOMIC_RELAXED), __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    if (got) die("read");
    return NULL;
}
static void readers_a(int fd) {
    pthread_t threads[WRITERS];
    fd_of_all = fd;
    for (int i = 0; i < WRITERS; i++) pthread_create(threads + i, NULL, reader, NULL);
    for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
    say("%lu bytes, sum %lu", count, sum);
    step();
}
static void readers_b(int fd) {
    uint64_t all = 0;
    static unsigned char bytes[1 << 20];
    fill(bytes, 0, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) all += bytes[i];
    send_all(fd, 0, sizeof bytes, 5000);
    shutdown(fd, SHUT_WR);
    say("sum %lu", all);
    step();
}

#define ROWS(b, name) {#name, WARM, name##_a, b}, {#name "_any_time", WARM, name##_any_a, b},
#define RECEIVER_ROWS(name, call) ROWS(good_b, name)
#define SENDER_ROWS(name, call) ROWS(good_after_room_b, name)
const struct test_case cases[] = {
    RECEIVERS(RECEIVER_ROWS)
    SENDERS(SENDER_ROWS)
    {"accept", NONE, accept_a, accept_b},
    {"cold", COLD, cold_a, cold_b},
    {"often", WARM, often_a, good_b},
    {"late_recv", WARM, late_recv_a, late_b},
    {"late_send", WARM, late_send_a, late_b},
    {"late_poll", WARM, late_poll_a, late_b},
    {"late_epoll", WARM, late_epoll_a, late_b},
    {"late_close", WARM, late_close_a, late_b},
    {"traffic", WARM, traffic_a, traffic_b},
    {"traffic_any_time", WARM, traffic_any_a, traffic_b},
    {"forbidden", WARM, forbidden_a, forbidden_b},
    {"saying", WARM, saying_a, saying_b},
    {"exit_in_handler", WARM, exit_a, good_b},
    {"shut_recv", WARM, shut_recv_a, idle_b},
    {"shut_recv_both", WARM, shut_recv_both_a, idle_b},
    {"shut_poll", WARM, shut_poll_a, idle_b},
    {"shut_send", WARM, shut_send_a, idle_b},
    {"shut_send_both", WARM, shut_send_both_a, idle_b},
    {"close_recv", WARM, close_recv_a, close_recv_b},
    {"dup2_recv", WARM, dup2_recv_a, close_recv_b},
    {"close_range_recv", WARM, close_range_recv_a, close_recv_b},
    {"close_send", WARM, close_send_a, close_send_b},
    {"writers", WARM, writers_a, writers_b},
    {"readers", WARM, readers_a, readers_b},
    {0},
};
