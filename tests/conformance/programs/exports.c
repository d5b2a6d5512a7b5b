// A program that has functions of its own under libc's names, exports them, and goes on by the
// next library's form of each, as Erlang's machine does with sigaction: that form is ours.
#include "try.h"
#include <dlfcn.h>

// The next function of this name behind the program's own.
#define NEXT(name, type) \
    static __typeof__(type) next; \
    if (!next) next = (__typeof__(type))dlsym(RTLD_NEXT, name); \
    entered++;

static __thread unsigned entered;

#define VISIBLE __attribute__((visibility("default")))

extern ssize_t __read(int, void *, size_t);
extern ssize_t __write(int, const void *, size_t);
extern ssize_t __send(int, const void *, size_t, int);
extern int __close(int);
extern int __sigaction(int, const struct sigaction *, struct sigaction *);
extern int __poll(struct pollfd *, nfds_t, int);
extern int __fcntl(int, int, ...);
#ifndef __GLIBC__
// musl has no such forms: the next function of the plain name.
#define THEIRS(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define __read THEIRS(read)
#define __write THEIRS(write)
#define __send THEIRS(send)
#define __close THEIRS(close)
#define __sigaction THEIRS(sigaction)
#define __poll THEIRS(poll)
#define __fcntl THEIRS(fcntl)
typedef int request;
#else
typedef unsigned long request;
#endif

VISIBLE ssize_t read(int fd, void *buffer, size_t count) { entered++; return __read(fd, buffer, count); }
VISIBLE ssize_t write(int fd, const void *buffer, size_t count) { entered++; return __write(fd, buffer, count); }
VISIBLE ssize_t send(int fd, const void *buffer, size_t count, int flags) { entered++; return __send(fd, buffer, count, flags); }
VISIBLE int close(int fd) { entered++; return __close(fd); }
VISIBLE int sigaction(int number, const struct sigaction *new, struct sigaction *old) { entered++; return __sigaction(number, new, old); }
VISIBLE int poll(struct pollfd *fds, nfds_t count, int time) { entered++; return __poll(fds, count, time); }
VISIBLE int fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    long argument = va_arg(list, long);
    va_end(list);
    entered++;
    return __fcntl(fd, command, argument);
}

typedef ssize_t (*passing)(int, struct msghdr *, int);
typedef int (*numbers)(int, int, int);
typedef int (*controlling)(int, int, int, struct epoll_event *);
typedef sighandler_t (*handling)(int, sighandler_t);

VISIBLE ssize_t recv(int fd, void *buffer, size_t count, int flags) {
#ifdef __GLIBC__
    NEXT("__recv_chk", ssize_t (*)(int, void *, size_t, size_t, int))
    return next(fd, buffer, count, count, flags);
#else
    NEXT("recv", ssize_t (*)(int, void *, size_t, int))
    return next(fd, buffer, count, flags);
#endif
}
VISIBLE ssize_t recvfrom(int fd, void *buffer, size_t count, int flags, struct sockaddr *name, socklen_t *length) {
#ifdef __GLIBC__
    NEXT("__recvfrom_chk", ssize_t (*)(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *))
    return next(fd, buffer, count, count, flags, name, length);
#else
    NEXT("recvfrom", ssize_t (*)(int, void *, size_t, int, struct sockaddr *, socklen_t *))
    return next(fd, buffer, count, flags, name, length);
#endif
}
VISIBLE ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    NEXT("recvmsg", passing)
    return next(fd, message, flags);
}
VISIBLE ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    NEXT("sendmsg", passing)
    return next(fd, (struct msghdr *)message, flags);
}
VISIBLE int dup2(int old, int new) {
    NEXT("dup2", numbers)
    return next(old, new, 0);
}
VISIBLE int dup3(int old, int new, int flags) {
    NEXT("dup3", numbers)
    return next(old, new, flags);
}
VISIBLE int epoll_create1(int flags) {
    NEXT("epoll_create1", numbers)
    return next(flags, 0, 0);
}
VISIBLE int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
    NEXT("epoll_ctl", controlling)
    return next(epoll, operation, fd, event);
}
#ifdef __GLIBC__
VISIBLE int close_range(unsigned first, unsigned last, int flags) {
    NEXT("close_range", numbers)
    return next(first, last, flags);
}
#endif
VISIBLE sighandler_t signal(int number, sighandler_t handler) {
    NEXT("signal", handling)
    return next(number, handler);
}
VISIBLE int ioctl(int fd, request number, ...) {
    va_list list;
    va_start(list, number);
    long argument = va_arg(list, long);
    va_end(list);
    NEXT("ioctl", int (*)(int, request, long))
    return next(fd, number, argument);
}

// Says what came of a call, and how often the program's own functions ran in it: once.
#define ONCE(call) ({ \
    entered = 0; \
    long result_ = (long)(call); \
    int error_ = errno; \
    unsigned entered_ = entered; \
    say("%s: %s, %u", #call, outcome_(result_, error_), entered_); \
    result_; })

static void bytes(int fd) {
    char in[4];
    struct iovec part = {"m", 1}, room = {in, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1}, taken = {.msg_iov = &room, .msg_iovlen = 1};
    int queued = 0;
    step();
    ONCE(send(fd, "s", 1, 0));
    ONCE(write(fd, "w", 1));
    ONCE(sendmsg(fd, &message, 0));
    ONCE(send(fd, "r", 1, 0));
    step();
    settle(fd, 4);
    ONCE(ioctl(fd, FIONREAD, &queued));
    ONCE(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1));
    ONCE(recv(fd, in, 1, 0));
    ONCE(read(fd, in, 1));
    ONCE(recvmsg(fd, &taken, 0));
    ONCE(recvfrom(fd, in, 1, 0, NULL, NULL));
    must_ring(fd, "behind all");
    step();
}

static int handled;
static void handler(int number) { handled += number; }

static void signals(int fd) {
    struct sigaction action = {.sa_handler = handler}, old = {0};
    ONCE(sigaction(SIGUSR1, &action, &old));
    say("before: %s", old.sa_handler == SIG_DFL ? "default" : "another");
    ONCE(sigaction(SIGUSR1, NULL, &old));
    say("now: %s", old.sa_handler == handler ? "the program's" : "another");
    say("signal: %s", signal(SIGUSR2, handler) == SIG_DFL ? "default" : "another");
    raise(SIGUSR1);
    raise(SIGUSR2);
    say("handled %d", handled);
    step();
    must_ring(fd, "beside handlers");
    step();
}

static void descriptors(int fd) {
    int epoll = epoll_create1(0), copy = 300;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7}, shown = {0};
    say("add %s", outcome(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)));
    step();
    must_ring(fd, "an event");
    say("wait %s", outcome(epoll_wait(epoll, &shown, 1, -1)));
    say("%s of %lu", bits(shown.events), (unsigned long)shown.data.u64);
    ONCE(dup2(fd, copy));
    ONCE(dup3(fd, copy + 1, O_CLOEXEC));
    ONCE(fcntl(copy, F_GETFD));
    ONCE(fcntl(fd, F_DUPFD, copy + 2) - copy);
    must_ring(copy, "by a copy");
    must_ring(copy + 2, "by another");
    ONCE(close(copy));
    ONCE(close_range(copy + 1, copy + 2, 0));
    must_ring(fd, "behind the copies");
    step();
}

const struct test_case cases[] = {
    {"bytes", WARM, bytes, bytes},
    {"signals", WARM, signals, signals},
    {"descriptors", WARM, descriptors, descriptors},
    {0},
};
