// kill -9 in the middle of a copy: a thread of A sends from, or receives into, memory that is
// not there (userfaultfd(2)), and A dies when the kernel says that it waits for it. On the
// ring, it holds the connection's lock then; in the kernel, the socket's.
#include "try.h"
#include <dirent.h>
#include <linux/userfaultfd.h>

enum { PAGE = 4096, LONG = 6000 };
static char buffer[1 << 20];
static int connection, faults = -1;
static char *hole; // Its first page is there, the next one is not.

static void make_hole(void) {
    struct uffdio_api api = {.api = UFFD_API};
    faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    // Without privilege only the program's own touches can be trapped: those of the ring.
    if (faults < 0 && errno == EPERM) faults = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api)) die("userfaultfd");
    hole = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (hole == MAP_FAILED) die("mmap");
    memset(hole, 'h', PAGE);
    struct uffdio_register missing = {.range = {(unsigned long)hole + PAGE, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(faults, UFFDIO_REGISTER, &missing)) die("UFFDIO_REGISTER");
}
static void *sends(void *nothing) {
    send(connection, hole, LONG, MSG_NOSIGNAL);
    die("the copy ended");
    return nothing;
}
static void *receives(void *nothing) {
    recv(connection, hole, LONG, 0);
    die("the copy ended");
    return nothing;
}
// Returns when the thread is in the middle of its copy.
static void copy(int fd, void *(*work)(void *)) {
    pthread_t thread;
    struct uffd_msg message;
    connection = fd;
    make_hole();
    pthread_create(&thread, NULL, work, NULL);
    if (read(faults, &message, sizeof message) != sizeof message) die("no fault");
    if (message.event != UFFD_EVENT_PAGEFAULT) die("event %d", message.event);
}

static void put(int fd, const char *text) {
    if (send(fd, text, strlen(text), 0) != (ssize_t)strlen(text)) die("send");
}
static void show_recv(const char *when, int fd) {
    ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    if (got > 0 && got < 100) say("%s: %ld %.*s", when, (long)got, (int)got, buffer);
    else say("%s: %s", when, outcome(got));
}
static void show_send(const char *when, int fd) { say("%s: send %s", when, outcome(send(fd, "s", 1, MSG_NOSIGNAL))); }
static void show_poll(const char *when, int fd) {
    int shown, count = pollx(fd, POLLIN | POLLOUT | POLLRDHUP, 3000, &shown);
    say("%s: poll %d %s", when, count, bits(shown));
}

// A dies while it sends; B looks afterwards.
static void send_a(int fd) {
    put(fd, "abc");
    step();
    copy(fd, sends);
    kill(getpid(), SIGKILL);
}
static void send_unread_a(int fd) {
    put(fd, "abc");
    step();
    settle(fd, 5);
    copy(fd, sends);
    kill(getpid(), SIGKILL);
}
static void after(int fd) {
    wait_dead();
    no_longer_established(fd);
    show_recv("before", fd);
    show_recv("end", fd);
    show_recv("again", fd);
    show_poll("end", fd);
}
static void send_b(int fd) {
    step();
    after(fd);
}
static void send_unread_b(int fd) {
    put(fd, "12345");
    step();
    after(fd);
}
// The library's own socket to the broker; -1 on the kernel path.
static int control_socket(void) {
    DIR *open_files = by_kernel ? NULL : opendir("/proc/self/fd");
    int control = -1;
    for (struct dirent *entry; open_files && (entry = readdir(open_files));) {
        int type = 0, fd = atoi(entry->d_name);
        socklen_t length = sizeof type;
        raw_syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, (long)&type, (long)&length, 0);
        if (type == SOCK_SEQPACKET && fd > 2) control = fd;
    }
    if (control < 0 && !by_kernel) die("no control socket");
    return control;
}
static int has_mail(int control, int time_ms) {
    struct pollfd entry = {.fd = control, .events = POLLIN};
    return raw_syscall(SYS_poll, (long)&entry, 1, time_ms, 0, 0, 0) == 1;
}
// The word of shared memory by which the library notices mail: it counts the broker's packets.
static const volatile uint32_t *mailbox(void) {
    FILE *maps = by_kernel ? NULL : fopen("/proc/self/maps", "re");
    char line[512];
    unsigned long begin = 0;
    while (maps && !begin && fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:fordway-mailbox") && sscanf(line, "%lx", &begin) != 1) die("maps");
    if (maps) fclose(maps);
    if (!begin && !by_kernel) die("no mailbox");
    return (const volatile uint32_t *)begin;
}
// The library takes what the broker has said so far. What it has counted then, at least.
static uint32_t take_mail(int fd, int control) {
    for (char byte; has_mail(control, 0);) recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return *mailbox();
}
// Until the library has been told of the death, and has not taken it: the packet is there, and
// the word has moved since mail was taken, which the broker writes behind the packet.
static void mail_of_death(int fd, int control, uint32_t taken) {
    enum { PEER_GONE = 15 };  // fordway_abi::control::kind
    int others = 0;
    for (; has_mail(control, others ? 1000 : 10000); others++) {
        unsigned kind = 0;
        raw_syscall(SYS_recvfrom, control, (long)&kind, sizeof kind, MSG_PEEK | MSG_DONTWAIT, 0, 0);
        if (kind == PEER_GONE) {
            for (int round = 0; *mailbox() == taken; round++) {
                if (round > 10000) die("the word does not move");
                usleep(1000);
            }
            return;
        }
        // The death may be taken with other mail that comes before: then no more comes.
        taken = take_mail(fd, control);
    }
    if (!others) die("no mail");
}
static void send_unread_send_b(int fd) {
    put(fd, "12345");
    int control = control_socket();
    uint32_t taken = by_kernel ? 0 : take_mail(fd, control);
    step();
    wait_dead();
    no_longer_established(fd);
    if (!by_kernel) mail_of_death(fd, control, taken);
    show_send("first", fd);
    show_send("second", fd);
    show_recv("before", fd);
    show_recv("after", fd);
}
static void close_b(int fd) {
    put(fd, "12345");
    step();
    wait_dead();
    say("close %s", outcome(close(fd)));
}

// A dies while it receives: what it was about to take is unread.
static void receive_a(int fd) {
    put(fd, "abc");
    step();
    settle(fd, LONG);
    copy(fd, receives);
    kill(getpid(), SIGKILL);
}
static void receive_b(int fd) {
    send_all(fd, 0, LONG, LONG);
    step();
    after(fd);
}

// B sleeps when A dies in its copy.
static void asleep_a(int fd, void *(*work)(void *), int unread) {
    step();
    if (unread) settle(fd, unread);
    copy(fd, work);
    pid_t survivor = hear();
    asleep(survivor, survivor);
    kill(getpid(), SIGKILL);
}
static void asleep_send_a(int fd) { asleep_a(fd, sends, 0); }
static void asleep_receive_a(int fd) { asleep_a(fd, receives, LONG); }
static void in_recv_b(int fd) {
    step();
    tell(getpid());
    show_recv("slept", fd);
    show_recv("then", fd);
}
static void in_recv_unread_b(int fd) {
    send_all(fd, 0, LONG, LONG);
    in_recv_b(fd);
}
static void in_poll_b(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN | POLLRDHUP};
    step();
    tell(getpid());
    int count = poll(&entry, 1, 5000);
    say("slept: %d %s", count, bits(entry.revents));
    show_recv("then", fd);
}
static void in_epoll_b(int fd) {
    int ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    send_all(fd, 0, LONG, LONG);
    step();
    tell(getpid());
    int count = epoll_wait(ep, &event, 1, 5000);
    say("slept: %d %s", count, bits(event.events));
    show_recv("then", fd);
    show_recv("end", fd);
}
// B sleeps for room that A's dead thread would have made.
static void full_b(int fd) {
    ssize_t now;
    send_all(fd, 0, LONG, LONG);
    step();
    tell(getpid());
    while ((now = send(fd, buffer, 50000, MSG_NOSIGNAL)) > 0) {}
    say("at last %d", now < 0 && (errno == EPIPE || errno == ECONNRESET));
    show_send("then", fd);
    show_recv("then", fd);
}

// A child of A has the connection, too: it goes on with it.
static void heir_a(int fd, void *(*work)(void *), int unread) {
    int word[2];
    step();
    if (unread) settle(fd, unread);
    copy(fd, work);
    if (pipe(word)) die("pipe");
    if (fork() == 0) {
        char byte;
        close(word[1]);
        close(faults);
        // It ends when the parent does.
        if (read(word[0], &byte, 1) != 0) die("word");
        put(fd, "heir");
        char in[LONG + 5];
        size_t got = 0;
        while (got < (size_t)unread + 5) {
            ssize_t now = recv(fd, in + got, unread + 5 - got, 0);
            if (now <= 0) die("the heir received %ld", (long)now);
            got += now;
        }
        check(in, 0, unread);
        put(fd, memcmp(in + unread, "child", 5) ? "wrong" : "right");
        _exit(0);
    }
    close(word[0]);
    kill(getpid(), SIGKILL);
}
static void heir_send_a(int fd) { heir_a(fd, sends, 0); }
static void heir_receive_a(int fd) { heir_a(fd, receives, LONG); }
static void heir(int fd) {
    char in[9];
    step();
    recv(fd, in, 4, MSG_WAITALL);
    put(fd, "child");
    recv(fd, in + 4, 5, MSG_WAITALL);
    say("%.9s", in);
    show_recv("end", fd);
}
static void heir_receive_b(int fd) {
    send_all(fd, 0, LONG, LONG);
    heir(fd);
}

const struct test_case cases[] = {
    {"send", WARM, send_a, send_b},
    {"send_unread", WARM, send_unread_a, send_unread_b},
    {"send_unread_send", WARM, send_unread_a, send_unread_send_b},
    {"send_close", WARM, send_unread_a, close_b},
    {"receive", WARM, receive_a, receive_b},
    {"send_in_recv", WARM, asleep_send_a, in_recv_b},
    {"receive_in_recv", WARM, asleep_receive_a, in_recv_unread_b},
    {"send_in_poll", WARM, asleep_send_a, in_poll_b},
    {"receive_in_epoll", WARM, asleep_receive_a, in_epoll_b},
    {"receive_full", WARM, asleep_receive_a, full_b},
    {"heir_send", WARM, heir_send_a, heir},
    {"heir_receive", WARM, heir_receive_a, heir_receive_b},
    {0},
};
