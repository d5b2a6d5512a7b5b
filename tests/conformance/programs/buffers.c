// Buffers: bad ones (EFAULT), edges of iovecs, none at all; and the program's own SIGSEGV.
#include "try.h"
#include <setjmp.h>
#include <sys/mman.h>

#define PAGE 4096
#define TWENTY "0123456789abcdefghij"
#define KERNEL_POINTER ((void *)-PAGE)
#define ODD_POINTER ((void *)0x1234567890abcdef)

// So many good bytes, and none behind them.
static char *edge(size_t good) {
    size_t pages = (good + PAGE - 1) / PAGE * PAGE;
    char *base = mmap(NULL, pages + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + pages, PAGE, PROT_NONE)) die("mmap");
    return base + pages - good;
}
static char *unmapped(void) { return edge(0); }
static char *readonly(void) {
    char *base = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) die("mmap");
    return base;
}

// B takes all there is and shows it.
static void sink_b(int fd) {
    static char all[2 << 20];
    size_t got = 0;
    for (ssize_t now; (now = recv(fd, all + got, sizeof all - got, 0)) != 0; got += now)
        if (now < 0) die("receive");
    if (got < 100) say("%zu %.*s", got, (int)got, all);
    else check(all, 0, got), say("a prefix");
    step();
}
static void done_a(int fd) {
    say("send %s", outcome(send(fd, "good", 4, 0)));
    shutdown(fd, SHUT_WR);
    step();
}
// B sends twenty bytes at once.
static void twenty_b(int fd) {
    if (send(fd, TWENTY, 20, 0) != 20) die("send");
    step();
    step();
}
static void twenty_a(int fd) {
    step();
    settle(fd, 20);
}
static void rest(int fd) {
    char all[64] = "";
    ssize_t got = recv(fd, all, 63, MSG_DONTWAIT);
    say("left %s %.*s", outcome(got), got > 0 ? (int)got : 0, all);
    step();
}

#define BAD_SEND(name, pointer, count)                              \
    static void name(int fd) {                                      \
        say("send %s", outcome(send(fd, pointer, count, 0)));       \
        say("write %s", outcome(write(fd, pointer, count)));        \
        done_a(fd);                                                 \
    }
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wstringop-overread"
#pragma GCC diagnostic ignored "-Warray-bounds"
BAD_SEND(send_null_a, NULL, 10)
BAD_SEND(send_kernel_a, KERNEL_POINTER, 10)
BAD_SEND(send_odd_a, ODD_POINTER, 10)
BAD_SEND(send_unmapped_a, unmapped(), 10)
BAD_SEND(send_edge_a, edge(50), 100)
BAD_SEND(send_pages_a, edge(3 * PAGE), 3 * PAGE + 1)
BAD_SEND(send_none_a, NULL, 0)
BAD_SEND(send_fits_a, memset(edge(8), 'x', 8), 8)
static void write_huge_a(int fd) {
    volatile size_t all = -1;
    say("write %s", outcome(write(fd, "x", all)));
    all = SIZE_MAX / 2 + 1;
    say("write %s", outcome(write(fd, "x", all)));
    done_a(fd);
}
// A hole far behind: what was copied before counts.
static void send_hole_a(int fd) {
    char *big = edge(512 << 10);
    fill(big, 0, 512 << 10);
    ssize_t sent = send(fd, big, 1 << 20, 0);
    say("some %d", sent > 0 && sent <= 512 << 10);
    say("then %s", outcome(send(fd, big + (512 << 10), 10, 0)));
    shutdown(fd, SHUT_WR);
    step();
}
// A page of a file that is not there: SIGBUS, for the program itself.
static void send_beyond_a(int fd) {
    int file = memfd_create("try", 0);
    if (ftruncate(file, PAGE)) die("ftruncate");
    char *base = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    say("send %s", outcome(send(fd, base + PAGE, 10, 0)));
    say("send %s", outcome(send(fd, base + PAGE - 5, 10, 0)));
    done_a(fd);
}
static void writev_bad_a(int fd) {
    struct iovec parts[3] = {{"0123456789", 10}, {unmapped(), 10}, {"abc", 3}};
    say("second %s", outcome(writev(fd, parts, 3)));
    parts[1] = (struct iovec){KERNEL_POINTER, 10};
    say("kernel's %s", outcome(writev(fd, parts, 3)));
    parts[1] = (struct iovec){KERNEL_POINTER, 0};
    say("kernel's, none %s", outcome(writev(fd, parts, 3)));
    done_a(fd);
}
static void writev_empty_bad_a(int fd) {
    struct iovec parts[3] = {{"ab", 2}, {NULL, 0}, {"cd", 2}};
    say("null, none %s", outcome(writev(fd, parts, 3)));
    parts[1].iov_base = unmapped();
    say("unmapped, none %s", outcome(writev(fd, parts, 3)));
    done_a(fd);
}
static void bad_array_a(int fd) {
    say("writev %s", outcome(writev(fd, (void *)unmapped(), 2)));
    say("writev %s", outcome(writev(fd, KERNEL_POINTER, 2)));
    say("writev %s", outcome(writev(fd, NULL, 1)));
    say("writev none %s", outcome(writev(fd, NULL, 0)));
    struct iovec *last = (void *)edge(sizeof *last);
    *last = (struct iovec){"xy", 2};
    say("writev %s", outcome(writev(fd, last, 2)));
    say("writev %s", outcome(writev(fd, last, 1)));
    say("sendmsg %s", outcome(judged_sendmsg(fd, NULL, 0)));
    say("sendmsg %s", outcome(judged_sendmsg(fd, (void *)unmapped(), 0)));
    struct msghdr message = {.msg_iov = (void *)unmapped(), .msg_iovlen = 1};
    say("sendmsg %s", outcome(sendmsg(fd, &message, 0)));
    done_a(fd);
}
static void sendmmsg_bad_a(int fd) {
    struct iovec good = {"ab", 2}, bad = {unmapped(), 2};
    struct mmsghdr several[3] = {{.msg_hdr = {.msg_iov = &good, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &bad, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &good, .msg_iovlen = 1}}};
    say("second %s", outcome(sendmmsg(fd, several, 3, 0)));
    say("first %s", outcome(sendmmsg(fd, several + 1, 2, 0)));
    say("none %s", outcome(sendmmsg(fd, several, 0, 0)));
    say("null %s", outcome(sendmmsg(fd, NULL, 1, 0)));
    done_a(fd);
}
static void sendfile_bad_a(int fd) {
    FILE *file = tmpfile();
    fputs("content", file), fflush(file);
    off_t offset = -5;
    say("offset %s", outcome(sendfile(fd, fileno(file), (void *)unmapped(), 3)));
    say("negative %s", outcome(sendfile(fd, fileno(file), &offset, 3)));
    int pipes[2];
    if (pipe(pipes) || write(pipes[1], "pipe", 4) != 4) die("pipe");
    offset = 0;
    say("pipe %s", outcome(sendfile(fd, pipes[0], NULL, 3)));
    say("pipe with offset %s", outcome(sendfile(fd, pipes[0], &offset, 3)));
    say("itself %s", outcome(sendfile(fd, fd, NULL, 3)));
    say("none %s", outcome(sendfile(fd, fileno(file), &offset, 0)));
    say("write-only %s", outcome(sendfile(fd, pipes[1], NULL, 3)));
    done_a(fd);
}

#define BAD_RECV(name, pointer, count)                              \
    static void name(int fd) {                                      \
        twenty_a(fd);                                               \
        say("peek %s", outcome(recv(fd, pointer, count, MSG_PEEK))); \
        say("read %s", outcome(read(fd, pointer, count)));          \
        say("recv %s", outcome(recv(fd, pointer, count, MSG_DONTWAIT))); \
        rest(fd);                                                   \
    }
BAD_RECV(recv_null_a, NULL, 10)
BAD_RECV(recv_kernel_a, KERNEL_POINTER, 10)
BAD_RECV(recv_odd_a, ODD_POINTER, 10)
BAD_RECV(recv_unmapped_a, unmapped(), 10)
BAD_RECV(recv_readonly_a, readonly(), 10)
BAD_RECV(recv_over_a, edge(10), 20)
BAD_RECV(recv_fits_a, edge(4), 4)
BAD_RECV(recv_unreached_a, edge(20), 100)
// Nothing is there: the buffer is not looked at.
static void recv_empty_a(int fd) {
    say("empty %s", outcome(recv(fd, NULL, 10, MSG_DONTWAIT)));
    say("empty %s", outcome(recv(fd, unmapped(), 10, MSG_DONTWAIT)));
    say("empty, kernel's %s", outcome(recv(fd, KERNEL_POINTER, 10, MSG_DONTWAIT)));
    step();
    twenty_a(fd);
    rest(fd);
}
static void recv_empty_b(int fd) {
    step();
    twenty_b(fd);
}
// The call waits first, and finds out then.
static void recv_waits_a(int fd) {
    tell(getpid());
    say("recv %s", outcome(recv(fd, unmapped(), 10, 0)));
    step();
    rest(fd);
}
static void recv_waits_b(int fd) {
    pid_t pid = hear();
    asleep(pid, pid);
    twenty_b(fd);
}
static void waitall_part_a(int fd) {
    step();
    settle(fd, 10);
    char *buffer = edge(10);
    tell(getpid());
    say("waitall %s", outcome(recv(fd, buffer, 20, MSG_WAITALL)));
    say("%.10s", buffer);
    rest(fd);
}
static void waitall_part_b(int fd) {
    if (send(fd, TWENTY, 10, 0) != 10) die("send");
    step();
    pid_t pid = hear();
    asleep(pid, pid);
    if (send(fd, TWENTY + 10, 10, 0) != 10) die("send");
    step();
}
static void trunc_a(int fd) {
    twenty_a(fd);
    say("trunc %s", outcome(recv(fd, NULL, 5, MSG_TRUNC)));
    say("trunc %s", outcome(recv(fd, unmapped(), 5, MSG_TRUNC)));
    say("trunc, kernel's %s", outcome(recv(fd, KERNEL_POINTER, 5, MSG_TRUNC)));
    say("trunc peek %s", outcome(recv(fd, NULL, 5, MSG_TRUNC | MSG_PEEK)));
    rest(fd);
}
static void readv_bad_a(int fd) {
    char good[10] = "";
    struct iovec parts[3] = {{good, 10}, {unmapped(), 10}, {good, 10}};
    twenty_a(fd);
    say("second %s", outcome(readv(fd, parts, 3)));
    parts[1].iov_base = KERNEL_POINTER;
    say("kernel's %s", outcome(readv(fd, parts, 3)));
    say("array %s", outcome(readv(fd, (void *)unmapped(), 1)));
    say("message %s", outcome(judged_recvmsg(fd, (void *)unmapped(), 0)));
    struct msghdr message = {.msg_iov = (void *)unmapped(), .msg_iovlen = 1};
    say("parts %s", outcome(recvmsg(fd, &message, 0)));
    rest(fd);
}
// The bad part lies behind what there is.
static void readv_unreached_a(int fd) {
    char good[30] = "";
    struct iovec parts[2] = {{good, 30}, {unmapped(), 10}};
    twenty_a(fd);
    say("readv %s %s", outcome(readv(fd, parts, 2)), good);
    rest(fd);
}
static void recvfrom_bad_a(int fd) {
    char buffer[5];
    struct sockaddr_in from;
    twenty_a(fd);
    say("without length %s", outcome(recvfrom(fd, buffer, 5, 0, (void *)&from, NULL)));
    socklen_t length = 77;
    say("without name %s", outcome(recvfrom(fd, buffer, 5, 0, NULL, &length)));
    say("length %u", length);
    say("bad length %s", outcome(recvfrom(fd, buffer, 5, 0, (void *)&from, (void *)unmapped())));
    say("bad name %s", outcome(recvfrom(fd, buffer, 2, 0, (void *)unmapped(), &length)));
    say("length %u", length);
    rest(fd);
}
// What a message header says afterwards, and that a failed call leaves it alone.
static void header_a(int fd) {
    char buffer[5], control[64];
    struct sockaddr_in from;
    struct iovec part = {buffer, 5};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = &from, .msg_namelen = sizeof from, .msg_control = control, .msg_controllen = 64, .msg_flags = 123};
    say("%s", outcome(recvmsg(fd, &message, MSG_DONTWAIT)));
    say("%u %zu %d", message.msg_namelen, message.msg_controllen, message.msg_flags);
    step();
    twenty_a(fd);
    say("%s", outcome(recvmsg(fd, &message, MSG_CMSG_CLOEXEC)));
    say("%u %zu %x", message.msg_namelen, message.msg_controllen, message.msg_flags);
    message.msg_name = NULL;
    message.msg_namelen = 99;
    say("%s", outcome(recvmsg(fd, &message, 0)));
    say("%u %zu %x", message.msg_namelen, message.msg_controllen, message.msg_flags);
    rest(fd);
}
static void header_b(int fd) {
    step();
    twenty_b(fd);
}
// What lies between the fields of a message (musl's have padding there) says nothing.
static void fill_message(struct msghdr *message, struct iovec *part) {
    memset(message, 0xa5, sizeof *message);
    message->msg_name = NULL;
    message->msg_namelen = 0;
    message->msg_iov = part;
    message->msg_iovlen = 1;
    message->msg_control = NULL;
    message->msg_controllen = 0;
    message->msg_flags = 0;
}
static void padding_a(int fd) {
    char in[5];
    struct iovec room = {in, 5}, word = {"hello", 5};
    struct msghdr message;
    fill_message(&message, &word);
    say("sendmsg %s", outcome(sendmsg(fd, &message, 0)));
    struct mmsghdr two[2];
    for (int i = 0; i < 2; i++) fill_message(&two[i].msg_hdr, &word);
    say("sendmmsg %s", outcome(sendmmsg(fd, two, 2, 0)));
    step();
    twenty_a(fd);
    fill_message(&message, &room);
    say("recvmsg %s %.5s", outcome(recvmsg(fd, &message, 0)), in);
    for (int i = 0; i < 2; i++) fill_message(&two[i].msg_hdr, &room);
    say("recvmmsg %s %.5s", outcome(recvmmsg(fd, two, 2, 0, NULL)), in);
    rest(fd);
}
static void padding_b(int fd) {
    char in[16] = "";
    if (recv(fd, in, 15, MSG_WAITALL) != 15) die("receive");
    say("%s", in);
    step();
    twenty_b(fd);
}
static void ioctl_bad_a(int fd) {
    twenty_a(fd);
    say("FIONREAD %s", outcome(ioctl(fd, FIONREAD, unmapped())));
    say("SIOCOUTQ %s", outcome(ioctl(fd, TIOCOUTQ, unmapped())));
    say("FIONREAD %s", outcome(ioctl(fd, FIONREAD, KERNEL_POINTER)));
    say("FIONREAD %s", outcome(ioctl(fd, FIONREAD, NULL)));
    rest(fd);
}

// Numbers and lengths of parts.
static struct iovec many[1025];
static void parts_1024_a(int fd) {
    for (int i = 0; i < 1025; i++) many[i] = (struct iovec){"abcdefghij" + i % 10, i % 3 ? 0 : 1};
    say("1024 %s", outcome(writev(fd, many, 1024)));
    say("1025 %s", outcome(writev(fd, many, 1025)));
    struct msghdr message = {.msg_iov = many, .msg_iovlen = 1024};
    say("message 1024 %s", outcome(sendmsg(fd, &message, 0)));
    message.msg_iovlen = 1025;
    say("message 1025 %s", outcome(sendmsg(fd, &message, 0)));
    message.msg_iovlen = (__typeof__(message.msg_iovlen))SIZE_MAX;
    say("message -1 %s", outcome(sendmsg(fd, &message, 0)));
    step();
    step();
}
static void parts_1024_b(int fd) {
    static char one[1025];
    step();
    settle(fd, 684);
    for (int i = 0; i < 1025; i++) many[i] = (struct iovec){one + i, i % 2};
    say("1024 %s", outcome(readv(fd, many, 1024)));
    say("%c%c%c%c", one[1], one[3], one[5], one[1023]);
    say("1025 %s", outcome(readv(fd, many, 1025)));
    struct msghdr message = {.msg_iov = many, .msg_iovlen = 1025};
    say("message 1025 %s", outcome(recvmsg(fd, &message, 0)));
    message.msg_iovlen = 1024;
    say("message 1024 %s", outcome(recvmsg(fd, &message, MSG_DONTWAIT)));
    step();
}
static void lengths_a(int fd) {
    char buffer[64] = "";
    struct iovec parts[3] = {{buffer, 20}, {buffer, (size_t)-1}, {buffer, 5}};
    twenty_a(fd);
    say("negative %s", outcome(readv(fd, parts, 3)));
    parts[1].iov_len = 1ull << 62;
    say("too long %s", outcome(readv(fd, parts, 3)));
    parts[1].iov_len = 1ull << 40;
    say("overflow in parts %s", outcome(readv(fd, parts, 3)));
    rest(fd);
}
static void sum_a(int fd) {
    static char buffer[64];
    // More than one call can move: the sum is cut.
    struct iovec parts[4] = {{buffer, 10}, {buffer + 10, 0x7ffff000}, {buffer, 0x7ffff000}, {buffer, 0x7ffff000}};
    twenty_a(fd);
    say("readv %s %s", outcome(readv(fd, parts, 4)), buffer);
    rest(fd);
}
static void nothing_a(int fd) {
    struct iovec none[2] = {{"", 0}, {"", 0}};
    struct msghdr message = {.msg_iov = none, .msg_iovlen = 2};
    // Nothing is asked for, or nothing is there.
    say("readv %s", outcome(readv(fd, none, 2)));
    say("readv %s", outcome(readv(fd, none, 0)));
    say("read %s", outcome(read(fd, NULL, 0)));
    say("recvmsg %s", outcome(recvmsg(fd, &message, MSG_DONTWAIT)));
    say("writev %s", outcome(writev(fd, none, 2)));
    say("sendmsg %s", outcome(sendmsg(fd, &message, 0)));
    say("write %s", outcome(write(fd, NULL, 0)));
    say("sendto %s", outcome(sendto(fd, NULL, 0, 0, NULL, 0)));
    step();
    twenty_a(fd);
    say("recvmsg %s", outcome(recvmsg(fd, &message, 0)));
    say("recv %s", outcome(recv(fd, NULL, 0, 0)));
    rest(fd);
}
static void nothing_b(int fd) {
    step();
    twenty_b(fd);
}
static void nothing_shut_a(int fd) {
    struct iovec none[2] = {{"", 0}, {"", 0}};
    signal(SIGPIPE, SIG_IGN);
    shutdown(fd, SHUT_WR);
    say("writev %s", outcome(writev(fd, none, 2)));
    say("write %s", outcome(write(fd, NULL, 0)));
    say("send %s", outcome(send(fd, NULL, 0, MSG_NOSIGNAL)));
    say("bad send %s", outcome(send(fd, unmapped(), 5, MSG_NOSIGNAL)));
    step();
}

// From the first call on: bad and good calls in turns while the connection moves.
static void turns(int fd) {
    char *bad = unmapped(), buffer[10];
    for (int round = 0; round < 100; round++) {
        if (me == 'A') {
            if (send(fd, bad, 10, 0) != -1 || errno != EFAULT) die("bad send");
            if (send(fd, TWENTY, 10, 0) != 10) die("send");
        }
        ssize_t got = recv(fd, bad, 10, 0);
        if (got != -1 || errno != EFAULT) die("bad receive: %s", outcome(got));
        if (recv(fd, buffer, 10, MSG_WAITALL) != 10 || memcmp(buffer, TWENTY, 10)) die("receive");
        if (me == 'B' && send(fd, TWENTY, 10, 0) != 10) die("send");
    }
    step();
    say("all there");
}
static void *bad_reader(void *fd) {
    for (int i = 0; i < 2000; i++)
        if (recv(*(int *)fd, KERNEL_POINTER + 1, 5, MSG_DONTWAIT) != -1 || errno != EFAULT) die("kernel pointer");
    char *bad = unmapped();
    for (int i = 0; i < 2000; i++) {
        ssize_t got = recv(*(int *)fd, bad, 5, MSG_DONTWAIT);
        if (got != -1 || (errno != EFAULT && errno != EAGAIN)) die("bad receive");
    }
    return NULL;
}
// Threads with bad buffers beside one with a good one: no byte is lost.
static void beside_a(int fd) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(threads + i, NULL, bad_reader, &fd);
    recv_all(fd, 0, 4 << 20, 3000);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    say("all there");
    step();
}
static void beside_b(int fd) {
    send_all(fd, 0, 4 << 20, 5000);
    step();
}

// The program's own faults, with and without a handler.
static sigjmp_buf out;
static volatile sig_atomic_t faults;
static void *volatile fault_address;
static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    faults++;
    fault_address = info->si_addr;
    siglongjmp(out, 1);
}
static void bad_calls(int fd) {
    say("send %s", outcome(send(fd, unmapped(), 5, 0)));
    say("recv %s", outcome(recv(fd, unmapped(), 5, 0)));
}
static void own_fault(void) {
    volatile char *where = unmapped();
    if (!sigsetjmp(out, 1)) {
        *where = 1;
        say("not reached");
    }
    say("faults %d, address %d", (int)faults, fault_address == where);
}
static void handler_before_a(int fd) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, was;
    sigaction(SIGSEGV, &action, &was);
    say("was default %d", was.sa_handler == SIG_DFL);
    warm(fd, 0);
    twenty_a(fd);
    bad_calls(fd);
    own_fault();
    bad_calls(fd);
    own_fault();
    sigaction(SIGSEGV, NULL, &was);
    say("own %d, flags %x", was.sa_sigaction == on_fault, was.sa_flags);
    rest(fd);
}
static void handler_before_b(int fd) {
    warm(fd, 1);
    twenty_b(fd);
}
static void handler_after_a(int fd) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_RESTART}, was;
    twenty_a(fd);
    bad_calls(fd);
    sigaction(SIGSEGV, NULL, &was);
    say("was default %d, flags %x", was.sa_handler == SIG_DFL, was.sa_flags);
    sigaction(SIGSEGV, &action, &was);
    say("was default %d", was.sa_handler == SIG_DFL);
    bad_calls(fd);
    own_fault();
    bad_calls(fd);
    was = (struct sigaction){.sa_handler = SIG_DFL};
    struct sigaction old;
    sigaction(SIGSEGV, &was, &old);
    say("own %d, flags %x", old.sa_sigaction == on_fault, old.sa_flags);
    bad_calls(fd);
    rest(fd);
}
static void simple_handler(int signal) {
    (void)signal;
    faults++;
    siglongjmp(out, 1);
}
static void handler_signal_a(int fd) {
    twenty_a(fd);
    say("was default %d", signal(SIGSEGV, simple_handler) == SIG_DFL);
    bad_calls(fd);
    for (int i = 0; i < 2; i++) {
        if (!sigsetjmp(out, 1)) *(volatile int *)unmapped() = 1;
        say("faults %d", (int)faults);
    }
    say("own %d", signal(SIGSEGV, SIG_IGN) == simple_handler);
    say("ignored %d", signal(SIGSEGV, SIG_DFL) == SIG_IGN);
    say("default %d", signal(SIGSEGV, SIG_DFL) == SIG_DFL);
    bad_calls(fd);
    rest(fd);
}
// A handler that is there once.
static void handler_once_a(int fd) {
    struct sigaction action = {.sa_handler = simple_handler, .sa_flags = SA_RESETHAND | SA_NODEFER}, was;
    twenty_a(fd);
    sigaction(SIGSEGV, &action, NULL);
    bad_calls(fd);
    bad_calls(fd);
    sigaction(SIGSEGV, NULL, &was);
    say("still own %d", was.sa_handler == simple_handler);
    if (!sigsetjmp(out, 1)) *(volatile int *)unmapped() = 1;
    say("faults %d", (int)faults);
    tell(0);
    // The second one ends it.
    *(volatile int *)unmapped() = 1;
}
static void handler_once_b(int fd) {
    if (send(fd, TWENTY, 20, 0) != 20) die("send");
    step();
    hear();
    wait_dead();
}
#define DIES(name, how)            \
    static void name(int fd) {     \
        twenty_a(fd);              \
        bad_calls(fd);             \
        tell(0);                   \
        how;                       \
        say("lives");              \
    }
DIES(dies_fault_a, *(volatile int *)unmapped() = 1)
DIES(dies_null_a, *(volatile int *)8 = 1)
DIES(dies_raise_a, raise(SIGSEGV))
DIES(dies_bus_a, kill(getpid(), SIGBUS))
static void ignored_a(int fd) {
    signal(SIGSEGV, SIG_IGN);
    warm(fd, 0);
    raise(SIGSEGV);
    kill(getpid(), SIGSEGV);
    say("lives");
    must_ring(fd, "ignored");
    step();
}
static void ignored_b(int fd) {
    warm(fd, 1);
    step();
}
static volatile sig_atomic_t waits;
static void on_sent(int signal) {
    (void)signal;
    waits++;
}
// A SIGSEGV that was sent runs the program's handler, also in the middle of a copy.
static void sent_a(int fd) {
    struct sigaction action = {.sa_handler = on_sent, .sa_flags = SA_RESTART};
    sigaction(SIGSEGV, &action, NULL);
    tell(getpid());
    recv_all(fd, 0, 8 << 20, 3000);
    tell(0);
    hear();
    say("handled %d", waits > 0);
}
static void sent_b(int fd) {
    pid_t pid = hear();
    for (uint64_t at = 0; at < 8 << 20; at += 1 << 16) {
        kill(pid, SIGSEGV);
        send_all(fd, at, 1 << 16, 5000);
    }
    hear();
    tell(0);
}

const struct test_case cases[] = {
    {"send_null", WARM, send_null_a, sink_b},
    {"send_kernel", WARM, send_kernel_a, sink_b},
    {"send_odd", WARM, send_odd_a, sink_b},
    {"send_unmapped", WARM, send_unmapped_a, sink_b},
    {"send_edge", WARM, send_edge_a, sink_b},
    {"send_pages", WARM, send_pages_a, sink_b},
    {"send_none", WARM, send_none_a, sink_b},
    {"send_fits", WARM, send_fits_a, sink_b},
    {"write_huge", WARM, write_huge_a, sink_b},
    {"send_hole", WARM, send_hole_a, sink_b},
    {"send_beyond", WARM, send_beyond_a, sink_b},
    {"writev_bad", WARM, writev_bad_a, sink_b},
    {"writev_empty_bad", WARM, writev_empty_bad_a, sink_b},
    {"bad_array", WARM, bad_array_a, sink_b},
    {"sendmmsg_bad", WARM, sendmmsg_bad_a, sink_b},
    {"sendfile_bad", WARM, sendfile_bad_a, sink_b},
    {"recv_null", WARM, recv_null_a, twenty_b},
    {"recv_kernel", WARM, recv_kernel_a, twenty_b},
    {"recv_odd", WARM, recv_odd_a, twenty_b},
    {"recv_unmapped", WARM, recv_unmapped_a, twenty_b},
    {"recv_readonly", WARM, recv_readonly_a, twenty_b},
    {"recv_over", WARM, recv_over_a, twenty_b},
    {"recv_fits", WARM, recv_fits_a, twenty_b},
    {"recv_unreached", WARM, recv_unreached_a, twenty_b},
    {"recv_empty", WARM, recv_empty_a, recv_empty_b},
    {"recv_waits", WARM, recv_waits_a, recv_waits_b},
    {"waitall_part", WARM, waitall_part_a, waitall_part_b},
    {"trunc", WARM, trunc_a, twenty_b},
    {"readv_bad", WARM, readv_bad_a, twenty_b},
    {"readv_unreached", WARM, readv_unreached_a, twenty_b},
    {"recvfrom_bad", WARM, recvfrom_bad_a, twenty_b},
    {"header", WARM, header_a, header_b},
    {"padding", WARM, padding_a, padding_b},
    {"ioctl_bad", WARM, ioctl_bad_a, twenty_b},
    {"parts_1024", WARM, parts_1024_a, parts_1024_b},
    {"lengths", WARM, lengths_a, twenty_b},
    {"sum", WARM, sum_a, twenty_b},
    {"nothing", WARM, nothing_a, nothing_b},
    {"nothing_shut", WARM, nothing_shut_a, sink_b},
    {"turns", COLD, turns, turns},
    {"beside", WARM, beside_a, beside_b},
    {"handler_before", COLD, handler_before_a, handler_before_b},
    {"handler_after", WARM, handler_after_a, twenty_b},
    {"handler_signal", WARM, handler_signal_a, twenty_b},
    {"handler_once", WARM, handler_once_a, handler_once_b},
    {"dies_fault", WARM, dies_fault_a, handler_once_b},
    {"dies_null", WARM, dies_null_a, handler_once_b},
    {"dies_raise", WARM, dies_raise_a, handler_once_b},
    {"dies_bus", WARM, dies_bus_a, handler_once_b},
    {"ignored", COLD, ignored_a, ignored_b},
    {"sent", WARM, sent_a, sent_b},
    {0},
};
