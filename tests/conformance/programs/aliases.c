// The same calls under other names: fortified, doubly underlined, of old stdio, by syscall(2).
// Nothing goes past the ring, or the connection leaves it first.
#include "try.h"
#include <aio.h>
#ifdef __GLIBC__
#include <execinfo.h>
#endif
#include <wordexp.h>

extern int __dprintf_chk(int, int, const char *, ...);
extern int __vdprintf_chk(int, int, const char *, va_list);
extern int __dup2(int, int);
extern int __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
extern FILE *_IO_fdopen(int, const char *);
extern int _IO_fclose(FILE *);
extern FILE *_IO_popen(const char *, const char *);
#ifdef __GLIBC__
extern void __backtrace_symbols_fd(void *const *, int, int);
#endif

// The other role takes all there is, once it is all there.
static void all(int fd) {
    char bytes[256];
    step();
    size_t got = 0;
    for (ssize_t now; (now = recv(fd, bytes + got, sizeof bytes - got, 0)) != 0; got += now)
        if (now < 0) die("receive");
    say("%.*s", (int)got, bytes);
    step();
}
static void end(int fd) {
    shutdown(fd, SHUT_WR);
    step();
    step();
}

static void by_list(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    say("%s", outcome(__vdprintf_chk(fd, 1, format, list)));
    va_end(list);
}
static void printed(int fd) {
    must_ring(fd, "one");
    say("%s", outcome(__dprintf_chk(fd, 1, "-%d-", 2)));
    say("%s", outcome(write(fd, "3", 1)));
    by_list(fd, "-%d-", 4);
    say("%s", outcome(write(fd, "5", 1)));
    end(fd);
}
static void stream(int fd) {
    must_ring(fd, "one");
    int copy = dup(fd);
    FILE *file = _IO_fdopen(copy, "w");
    if (!file || fputs("-2-", file) < 0 || fflush(file)) die("stdio");
    say("%s", outcome(write(fd, "3", 1)));
    if (fputs("-4-", file) < 0) die("stdio");
    _IO_fclose(file);
    say("%s", outcome(write(fd, "5", 1)));
    end(fd);
}
// Shells that libc starts write to it.
static void shell(int fd) {
    if (dup2(fd, 7) != 7) die("dup2");
    close(fd);
    must_ring(7, "one");
    FILE *pipe = _IO_popen("printf %s -2- >&7", "r");
    if (!pipe || pclose(pipe)) die("popen");
    say("%s", outcome(write(7, "3", 1)));
    end(7);
}
static void substituted(int fd) {
    wordexp_t words;
    if (dup2(fd, 7) != 7) die("dup2");
    close(fd);
    must_ring(7, "one");
    if (wordexp("$(printf %s -2- >&7)", &words, 0)) die("wordexp");
    say("%s", outcome(write(7, "3", 1)));
    if (wordexp("`printf %s -4- >&7`", &words, 0)) die("wordexp");
    say("%s", outcome(write(7, "5", 1)));
    end(7);
}
#ifdef __GLIBC__ // musl has no backtraces
static void traced(int fd) {
    void *nowhere[1] = {NULL};
    must_ring(fd, "one");
    backtrace_symbols_fd(nowhere, 1, fd);
    say("%s", outcome(write(fd, "3", 1)));
    __backtrace_symbols_fd(nowhere, 1, fd);
    say("%s", outcome(write(fd, "5", 1)));
    end(fd);
}
#endif
static void asynchronous(int fd) {
    must_ring(fd, "one");
    struct aiocb block = {.aio_fildes = fd, .aio_buf = "-2-", .aio_nbytes = 3}, other = block;
    const struct aiocb *list[1] = {&block};
    struct aiocb *both[1] = {&other};
    if (aio_write(&block) || aio_suspend(list, 1, NULL)) die("aio");
    say("%s", outcome(aio_return(&block)));
    say("%s", outcome(write(fd, "3", 1)));
    other.aio_lio_opcode = LIO_WRITE;
    say("%s", outcome(lio_listio(LIO_WAIT, both, 1, NULL)));
    say("%s", outcome(write(fd, "5", 1)));
    end(fd);
}
static void copies(int fd) {
    if (__dup2(fd, 300) != 300) die("dup2");
    must_ring(300, "__dup2");
    if (syscall(SYS_dup2, 300, 301) != 301 || syscall(SYS_dup3, 301, 302, 0) != 302) die("dup");
    must_ring(302, "dup3");
    int low = syscall(SYS_dup, 302), high = syscall(SYS_fcntl, 302, F_DUPFD, 400);
    must_ring(low, "dup");
    must_ring(high, "fcntl");
    for (int i = 300; i <= 302; i++) close(i);
    syscall(SYS_close, high);
    must_ring(low, "the last but one");
    end(low);
}
// The program's standard output becomes the connection: libc writes there by itself.
static void standard(int fd) {
    int kept = dup(2);
    must_ring(fd, "one");
    if (dup2(fd, 2) != 2) die("dup2");
    say("%s", outcome(write(fd, "2", 1)));
    fprintf(stderr, "-3-");
    say("%s", outcome(write(fd, "4", 1)));
    fprintf(stderr, "-5");
    if (dup2(kept, 2) != 2) die("dup2");
    end(fd);
}
// A stream whose descriptor was made a socket behind its back is opened anew: what the
// descriptor is then is the file.
static void reopened(int fd) {
    char in[6] = "";
    must_ring(fd, "one");
    FILE *file = fopen("/dev/null", "r");
    if (!file || dup2(fd, fileno(file)) < 0) die("fopen");
    if (!freopen("/proc/self/comm", "r", file)) die("freopen");
    say("%s %.5s", outcome(read(fileno(file), in, 5)), in);
    must_ring(fd, "two");
    end(fd);
}

// Each call that sends, by its number.
static void sending(int fd) {
    struct iovec parts[2] = {{"b", 1}, {"c", 1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr messages[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
    uint64_t before = kernel_sent(fd);
    say("write %s", outcome(syscall(SYS_write, fd, "a", 1)));
    say("writev %s", outcome(syscall(SYS_writev, fd, parts, 2)));
    say("pwritev2 %s", outcome(syscall(SYS_pwritev2, fd, parts, 2, -1l, -1l, 0)));
    say("sendto %s", outcome(syscall(SYS_sendto, fd, "d", 1, 0, NULL, 0)));
    say("sendmsg %s", outcome(syscall(SYS_sendmsg, fd, &message, 0)));
    say("sendmmsg %s %u %u", outcome(syscall(SYS_sendmmsg, fd, messages, 2, 0)), messages[0].msg_len, messages[1].msg_len);
    say("%s", path_of(fd, before));
    end(fd);
}
static void twelve(int fd) {
    if (send(fd, "abcdefghijkl", 12, 0) != 12) die("send");
    step();
    step();
}
// Each call that receives, by its number, after each call that waits.
static void receiving(int fd) {
    char in[4] = "";
    struct iovec parts[2] = {{in, 1}, {in + 1, 1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr messages[1] = {{.msg_hdr = message}};
    step();
    settle(fd, 12);
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    struct timespec time = {.tv_sec = 5};
    struct timeval val = {.tv_sec = 5};
    say("poll %s", outcome(syscall(SYS_poll, &entry, 1, 5000)));
    say("ppoll %s", outcome(syscall(SYS_ppoll, &entry, 1, &time, NULL, 0)));
    say("of five seconds %s", time.tv_sec == 4 && time.tv_nsec ? "some are left" : "another number is left");
    time = (struct timespec){.tv_sec = 5};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    say("select %s", outcome(syscall(SYS_select, fd + 1, &set, NULL, NULL, &val)));
    say("of five seconds %s", val.tv_sec == 4 && val.tv_usec ? "some are left" : "another number is left");
    val = (struct timeval){.tv_sec = 5};
    say("__select %s", outcome(__select(fd + 1, &set, NULL, NULL, &val)));
    say("pselect6 %s", outcome(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &time, NULL)));
    say("of five seconds %s", time.tv_sec == 4 && time.tv_nsec ? "some are left" : "another number is left");
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5}, shown;
    int epoll = syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
    say("epoll_ctl %s", outcome(syscall(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, &event)));
    say("epoll_wait %s", outcome(syscall(SYS_epoll_wait, epoll, &shown, 1, 5000)));
    say("epoll_pwait %s", outcome(syscall(SYS_epoll_pwait, epoll, &shown, 1, 5000, NULL, 8)));
    say("epoll_pwait2 %s", outcome(syscall(SYS_epoll_pwait2, epoll, &shown, 1, NULL, NULL, 8)));
    say("a mask of another size %s", outcome(syscall(SYS_epoll_pwait, epoll, &shown, 1, 0, &set, 4)));
    close(epoll);
    say("read %s %.1s", outcome(syscall(SYS_read, fd, in, 1)), in);
    say("readv %s %.2s", outcome(syscall(SYS_readv, fd, parts, 2)), in);
    say("preadv2 %s %.2s", outcome(syscall(SYS_preadv2, fd, parts, 2, -1l, -1l, 0)), in);
    say("recvfrom %s %.1s", outcome(syscall(SYS_recvfrom, fd, in, 1, 0, NULL, NULL)), in);
    say("recvmsg %s %.2s", outcome(syscall(SYS_recvmsg, fd, &message, 0)), in);
    say("recvmmsg %s %.2s", outcome(syscall(SYS_recvmmsg, fd, messages, 1, 0, NULL)), in);
    int queued = 0;
    say("ioctl %s", outcome(syscall(SYS_ioctl, fd, FIONREAD, &queued)));
    say("%d left", queued);
    must_ring(fd, "behind all");
    step();
}
// Pointers that libc would follow, and the kernel judges.
static void judged(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    void *bad[] = {(void *)16, (void *)-4096l, (void *)0x1234567890abcdef};
    for (int i = 0; i < 3; i++) {
        say("ppoll's time %s", outcome(syscall(SYS_ppoll, &entry, 1, bad[i], NULL, 8)));
        say("select's %s", outcome(syscall(SYS_select, fd + 1, &set, NULL, NULL, bad[i])));
        say("pselect6's %s", outcome(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, bad[i], NULL)));
        say("its mask %s", outcome(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, NULL, bad[i])));
    }
    must_ring(fd, "behind all");
    step();
}

const struct test_case cases[] = {
    {"printed", WARM, printed, all},
    {"stream", WARM, stream, all},
    {"shell", WARM, shell, all},
    {"substituted", WARM, substituted, all},
#ifdef __GLIBC__
    {"traced", WARM, traced, all},
#endif
    {"asynchronous", WARM, asynchronous, all},
    {"copies", WARM, copies, all},
    {"standard", WARM, standard, all},
    {"reopened", WARM, reopened, all},
    {"sending", WARM, sending, all},
    {"receiving", WARM, receiving, twelve},
    {"judged", WARM, judged, judged},
    {0},
};
