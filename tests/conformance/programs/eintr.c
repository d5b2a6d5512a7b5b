// EINTR and SA_RESTART, for each call that may sleep (man 7 signal): without a time-out,
// with one, and with handlers of both kinds installed.
#include "try.h"

static volatile sig_atomic_t seen;
static void handler(int signal) {
    int error = errno;
    (void)signal;
    seen++;
    tell(7);
    errno = error;
}
static void handle(int signal, int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    if (sigaction(signal, &action, NULL)) die("sigaction");
}

static char buffer[100];
static struct iovec part = {buffer, sizeof buffer};
static struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};

#define RECEIVERS(X) \
    X(read, read(fd, buffer, 100)) \
    X(readv, readv(fd, &part, 1)) \
    X(recv, recv(fd, buffer, 100, 0)) \
    X(recv_peek, recv(fd, buffer, 100, MSG_PEEK)) \
    X(recv_whole, recv(fd, buffer, 1, MSG_WAITALL)) \
    X(recvfrom, recvfrom(fd, buffer, 100, 0, NULL, NULL)) \
    X(recvmsg, recvmsg(fd, &message.msg_hdr, 0)) \
    X(recvmmsg, recvmmsg(fd, &message, 1, 0, NULL)) \
    X(poll, poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1)) \
    X(poll_timed, poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 15000)) \
    X(ppoll, ppoll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, NULL, NULL)) \
    X(select, select(fd + 1, &set, NULL, NULL, NULL)) \
    X(pselect, pselect(fd + 1, &set, NULL, NULL, NULL, NULL)) \
    X(epoll_wait, epoll_wait(epoll, &event, 1, -1)) \
    X(epoll_timed, epoll_wait(epoll, &event, 1, 15000)) \
    X(epoll_pwait, epoll_pwait(epoll, &event, 1, -1, NULL)) \
    X(epoll_pwait2, epoll_pwait2(epoll, &event, 1, NULL, NULL))
#define SENDERS(X) \
    X(write, write(fd, buffer, 100)) \
    X(writev, writev(fd, &part, 1)) \
    X(send, send(fd, buffer, 100, 0)) \
    X(sendto, sendto(fd, buffer, 100, 0, NULL, 0)) \
    X(sendmsg, sendmsg(fd, &message.msg_hdr, 0)) \
    X(sendmmsg, sendmmsg(fd, &message, 1, 0)) \
    X(sendfile, sendfile(fd, file, NULL, 100)) \
    X(poll_out, poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1))

static struct epoll_event event = {.events = EPOLLIN};
static fd_set set;
static int epoll, file;

// A's side of each case: the call, which B interrupts once it sleeps.
static void begin(int fd, int sends) {
    FD_ZERO(&set);
    FD_SET(fd, &set);
    epoll = epoll_create1(0);
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    file = memfd_create("try", 0);
    if (ftruncate(file, 100)) die("ftruncate");
    tell(getpid());
    tell(sends);
}
static void end(long result) {
    say("%s, handled %d", outcome(result), (int)seen);
    tell(1);
    hear();
    step();
}
// B's side: the signal, then, once A sleeps again (in the call or behind it), what the call waits for.
static void poke(int fd, int signal) {
    pid_t pid = hear();
    int sends = hear();
    asleep(pid, pid);
    if (signal == SIGSTOP) {
        halt(pid);
        if (kill(pid, SIGCONT)) die("SIGCONT");
    } else if (kill(pid, signal) || hear() != 7) {
        die("kill");
    }
    asleep(pid, pid);
    if (!sends && send(fd, "x", 1, 0) != 1) die("send");
    static char all[1 << 20];
    for (struct pollfd word = {.fd = 0, .events = POLLIN}; sends && poll(&word, 1, 0) == 0;)
        if (recv(fd, all, sizeof all, MSG_DONTWAIT) <= 0) usleep(500);
    hear();
    tell(1);
    step();
}
static void poke_b(int fd) { poke(fd, SIGUSR1); }
// No handler: the process is stopped in the call and continued (man 7 signal).
static void stop_b(int fd) { poke(fd, SIGSTOP); }
static void poke_other_b(int fd) { poke(fd, SIGUSR2); }

static void time_out(int fd, int option) {
    struct timeval time = {15, 0};
    if (setsockopt(fd, SOL_SOCKET, option, &time, sizeof time)) die("setsockopt");
}

#define RECEIVER(name, call) \
    static void name##_stopped_a(int fd) { begin(fd, 0); end(call); } \
    static void name##_ends_a(int fd) { handle(SIGUSR1, 0); begin(fd, 0); end(call); } \
    static void name##_restarts_a(int fd) { handle(SIGUSR1, SA_RESTART); begin(fd, 0); end(call); }
#define SENDER(name, call) \
    static void name##_stopped_a(int fd) { cram(fd); begin(fd, 1); end(call); } \
    static void name##_ends_a(int fd) { handle(SIGUSR1, 0); cram(fd); begin(fd, 1); end(call); } \
    static void name##_restarts_a(int fd) { handle(SIGUSR1, SA_RESTART); cram(fd); begin(fd, 1); end(call); }
RECEIVERS(RECEIVER)
SENDERS(SENDER)

// With a time-out, no handler lets a call go on.
#define TIMED(X) X(recv) X(read) X(recvmsg)
#define TIMED_RECEIVER(name) \
    static void name##_timed_stopped_a(int fd) { time_out(fd, SO_RCVTIMEO); name##_stopped_a(fd); } \
    static void name##_timed_ends_a(int fd) { time_out(fd, SO_RCVTIMEO); name##_ends_a(fd); } \
    static void name##_timed_restarts_a(int fd) { time_out(fd, SO_RCVTIMEO); name##_restarts_a(fd); }
TIMED(TIMED_RECEIVER)
#define TIMED_OUT(X) X(send) X(write) X(sendmsg)
#define TIMED_SENDER(name) \
    static void name##_timed_stopped_a(int fd) { time_out(fd, SO_SNDTIMEO); name##_stopped_a(fd); } \
    static void name##_timed_ends_a(int fd) { time_out(fd, SO_SNDTIMEO); name##_ends_a(fd); } \
    static void name##_timed_restarts_a(int fd) { time_out(fd, SO_SNDTIMEO); name##_restarts_a(fd); }
TIMED_OUT(TIMED_SENDER)

// Handlers of both kinds: the one that ran decides.
static void both(void) { handle(SIGUSR1, SA_RESTART), handle(SIGUSR2, 0); }
static void recv_both_a(int fd) { both(); begin(fd, 0); end(recv(fd, buffer, 100, 0)); }
static void send_both_a(int fd) { both(); cram(fd); begin(fd, 1); end(send(fd, buffer, 100, 0)); }

// accept, before and with a time-out: the connection comes after the signal.
static void accept_with(int flags, int timed) {
    int port, listener = listen_any(&port);
    if (timed) time_out(listener, SO_RCVTIMEO);
    handle(SIGUSR1, flags);
    tell(port);
    tell(getpid());
    int fd = accept(listener, NULL, NULL);
    say("%s, handled %d", fd < 0 ? outcome(fd) : "accepted", (int)seen);
    if (fd < 0) fd = accept(listener, NULL, NULL);
    warm(fd, 0);
    step();
}
static void accept_ends_a(int unused) { (void)unused; accept_with(0, 0); }
static void accept_restarts_a(int unused) { (void)unused; accept_with(SA_RESTART, 0); }
static void accept_timed_a(int unused) { (void)unused; accept_with(SA_RESTART, 1); }
static void accept_b(int unused) {
    (void)unused;
    int port = hear();
    pid_t pid = hear();
    asleep(pid, pid);
    if (kill(pid, SIGUSR1) || hear() != 7) die("kill");
    asleep(pid, pid);
    warm(dial(port), 1);
    step();
}

// connect to a listener whose queue is full: A waits for an answer to its SYN.
static void connect_with(int flags) {
    struct sockaddr_storage address;
    socklen_t far = place('B', hear(), &address); // it is B that listens
    int fd = socket(address.ss_family, SOCK_STREAM, 0);
    handle(SIGUSR1, flags);
    tell(getpid());
    const char *result = outcome(connect(fd, (void *)&address, far));
    say("%s, handled %d", result, (int)seen);
    tell(1);
    // Interrupted or not, the connection comes to be.
    int shown, error;
    socklen_t length = sizeof error;
    pollx(fd, POLLOUT, -1, &shown);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length)) die("SO_ERROR");
    say("%s %d", bits(shown), error);
    warm(fd, 0);
    step();
}
static void connect_ends_a(int unused) { (void)unused; connect_with(0); }
static void connect_restarts_a(int unused) { (void)unused; connect_with(SA_RESTART); }
static void connect_b(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    if (listen(listener, 0)) die("listen");
    int first = dial(port);
    tell(port);
    pid_t pid = hear();
    asleep(pid, pid);
    if (kill(pid, SIGUSR1) || hear() != 7) die("kill");
    asleep(pid, pid);
    close(accept(listener, NULL, NULL));
    int fd = accept(listener, NULL, NULL);
    hear();
    warm(fd, 1);
    close(first);
    step();
}

#define RECEIVER_ROWS(name, call) {#name "_stopped", WARM, name##_stopped_a, stop_b}, {#name "_ends", WARM, name##_ends_a, poke_b}, {#name "_restarts", WARM, name##_restarts_a, poke_b},
#define TIMED_ROWS(name) {#name "_timed_stopped", WARM, name##_timed_stopped_a, stop_b}, {#name "_timed_ends", WARM, name##_timed_ends_a, poke_b}, {#name "_timed_restarts", WARM, name##_timed_restarts_a, poke_b},
const struct test_case cases[] = {
    RECEIVERS(RECEIVER_ROWS)
    SENDERS(RECEIVER_ROWS)
    TIMED(TIMED_ROWS)
    TIMED_OUT(TIMED_ROWS)
    {"recv_both_restarts", WARM, recv_both_a, poke_b},
    {"recv_both_ends", WARM, recv_both_a, poke_other_b},
    {"send_both_restarts", WARM, send_both_a, poke_b},
    {"send_both_ends", WARM, send_both_a, poke_other_b},
    {"accept_ends", NONE, accept_ends_a, accept_b},
    {"accept_restarts", NONE, accept_restarts_a, accept_b},
    {"accept_timed", NONE, accept_timed_a, accept_b},
    {"connect_ends", NONE, connect_ends_a, connect_b},
    {"connect_restarts", NONE, connect_restarts_a, connect_b},
    {0},
};
