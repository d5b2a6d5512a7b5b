#include "try.h"
#include <sched.h>

char me = '-';
int by_kernel;
static int by_stack;
static const char *name = "?";

void say(const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    if (write(1, line, length) != length) _exit(99);
}

void die(const char *format, ...) {
    char line[1024];
    int error = errno;
    int length = snprintf(line, sizeof line, "%s %c: ", name, me);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - length, format, arguments);
    va_end(arguments);
    length += snprintf(line + length, sizeof line - length, " (errno %s)\n", error_name(error));
    if (write(2, line, length) != length) _exit(99);
    _exit(3);
}

static void exchange(const void *out, void *in, size_t count) {
    if (out && write(0, out, count) != (ssize_t)count) die("the other role is gone");
    for (size_t done = 0; in && done < count;) {
        ssize_t got = read(0, (char *)in + done, count - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) die("the other role is gone");
        done += got;
    }
}

void tell(uint64_t value) { exchange(&value, NULL, sizeof value); }

uint64_t hear(void) {
    uint64_t value;
    exchange(NULL, &value, sizeof value);
    return value;
}

void step(void) {
    static uint64_t number;
    tell(++number);
    uint64_t other = hear();
    if (other != number) die("out of step: %lu, other %lu", number, other);
}

void wait_dead(void) {
    char byte;
    while (1) {
        ssize_t got = read(0, &byte, 1);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) return;
        if (got < 0 && errno == EINTR) continue;
        die("the other role lives");
    }
}

socklen_t place(char role, int port, struct sockaddr_storage *at) {
    const char *text = getenv(role == 'A' ? "TRY_A" : "TRY_B");
    struct sockaddr_in *four = (void *)at;
    struct sockaddr_in6 *six = (void *)at;
    memset(at, 0, sizeof *at);
    if (text && strchr(text, ':')) {
        *six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
        if (inet_pton(AF_INET6, text, &six->sin6_addr) != 1) die("no address: %s", text);
        return sizeof *six;
    }
    *four = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, text ? text : "127.0.0.1", &four->sin_addr) != 1) die("no address: %s", text);
    return sizeof *four;
}

int listen_any(int *port) {
    struct sockaddr_storage address;
    socklen_t length = place(me, 0, &address);
    int fd = socket(address.ss_family, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (void *)&address, length) || listen(fd, 512)) die("listen");
    if (getsockname(fd, (void *)&address, &length)) die("getsockname");
    *port = ntohs(((struct sockaddr_in *)&address)->sin_port); // where IPv6 has it, too
    return fd;
}

int dial(int port) {
    struct sockaddr_storage address;
    socklen_t length = place('A', port, &address);
    int fd = socket(address.ss_family, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (void *)&address, length)) die("connect");
    return fd;
}

int meet(void) {
    if (me == 'B') return dial(hear());
    int port, listener = listen_any(&port);
    tell(port);
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) die("accept");
    close(listener);
    return fd;
}

// What the kernel knows of a connection; or the stack that serves this program, which the kernel knows nothing of.
static struct tcp_info tcp_info(int fd) {
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    long failed = by_stack ? getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length)
                           : raw_syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, (long)&info, (long)&length, 0);
    if (failed) die("TCP_INFO");
    return info;
}

uint64_t kernel_sent(int fd) {
    struct tcp_info info = tcp_info(fd);
    return info.tcpi_bytes_sent + info.tcpi_notsent_bytes;
}

static int tcp_state(int fd) {
    struct tcp_info info = tcp_info(fd);
    return info.tcpi_state;
}

void no_longer_established(int fd) {
    for (int round = 0; tcp_state(fd) == 1 /* TCP_ESTABLISHED */; round++) {
        if (round > 5000) die("the connection stays established");
        usleep(1000);
    }
}

// Messages of one byte: 'R' once the sender saw its last one go by the ring, 'k' before,
// 'D' when both have.
void warm(int fd, int first) {
    int on_ring = 0;
    for (int round = 0; round < 2000; round++) {
        char out = on_ring ? 'R' : 'k', in;
        if (!first) {
            if (recv(fd, &in, 1, 0) != 1) die("warm: receive");
            if (in == 'D') return;
        }
        uint64_t before = kernel_sent(fd);
        if (send(fd, &out, 1, 0) != 1) die("warm: send");
        on_ring = kernel_sent(fd) == before;
        if (first) {
            if (recv(fd, &in, 1, 0) != 1) die("warm: receive");
            if ((out == 'R' && in == 'R') || (by_kernel && round == 12)) {
                if (send(fd, "D", 1, 0) != 1) die("warm: send");
                return;
            }
        }
        if (round > 20) usleep(1000);
    }
    die("the connection was never upgraded");
}

const char *path_of(int fd, uint64_t before) {
    return by_kernel || kernel_sent(fd) == before ? "ring" : "kernel";
}

void must_ring(int fd, const char *what) {
    uint64_t before = kernel_sent(fd);
    if (send(fd, "r", 1, 0) != 1) die("%s: send", what);
    if (!by_kernel && kernel_sent(fd) != before) die("%s: not on the ring", what);
}

void settle(int fd, int count) {
    for (int round = 0;; round++) {
        int queued;
        if (ioctl(fd, FIONREAD, &queued) == 0 && queued >= count) return;
        if (round > 5000) die("%d bytes do not arrive", count);
        usleep(1000);
    }
}

void hold(void) {
    char byte;
    say("hold");
    // The driver's standard input, which the test holds the other end of.
    if (read(200, &byte, 1) < 0) die("hold");
}

uint64_t now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000ull + time.tv_nsec / 1000000;
}

const char *bits(uint32_t events) {
    static char text[8][128];
    static int next;
    static const struct { uint32_t bit; const char *word; } words[] = {
        {POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"}, {POLLHUP, "HUP"},
        {POLLNVAL, "NVAL"}, {POLLRDNORM, "RDNORM"}, {POLLWRNORM, "WRNORM"}, {POLLRDHUP, "RDHUP"}};
    char *line = text[next++ % 8];
    line[0] = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (events & words[i].bit) {
            if (line[0]) strcat(line, "|");
            strcat(line, words[i].word);
        }
    if (!line[0]) strcpy(line, "0");
    return line;
}

const char *error_name(int error) {
    const char *known = strerrorname_np(error);
    return known ? known : "?";
}

const char *outcome_(long result, int error) {
    static char text[8][64];
    static int next;
    char *line = text[next++ % 8];
    if (result >= 0) snprintf(line, 64, "%ld", result);
    else snprintf(line, 64, "%s", error_name(error));
    return line;
}

void nonblocking(int fd, int on) {
    int flags = fcntl(fd, F_GETFL);
    if (fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK)) die("F_SETFL");
}

int pollx(int fd, int events, int timeout_ms, int *shown) {
    struct pollfd entry = {.fd = fd, .events = events};
    int count = poll(&entry, 1, timeout_ms);
    *shown = entry.revents;
    return count;
}

static uint64_t word_at(uint64_t index) {
    uint64_t x = (index + 1) * 0x9e3779b97f4a7c15ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

void fill(void *buffer, uint64_t offset, size_t count) {
    unsigned char *target = buffer;
    for (size_t i = 0; i < count; i++) target[i] = word_at((offset + i) / 8) >> (offset + i) % 8 * 8;
}

void check(const void *buffer, uint64_t offset, size_t count) {
    const unsigned char *source = buffer;
    for (size_t i = 0; i < count; i++) {
        unsigned char right = word_at((offset + i) / 8) >> (offset + i) % 8 * 8;
        if (source[i] != right) {
            // Where does the byte come from? Look for the next eight around.
            for (int64_t d = -(8 << 20); d < 8 << 20; d++) {
                unsigned char expected[8];
                if ((int64_t)offset + (int64_t)i + d < 0 || count - i < 8) continue;
                fill(expected, offset + i + d, 8);
                if (!memcmp(expected, source + i, 8)) die("byte %lu is that of %+ld", offset + i, d);
            }
            die("byte %lu is wrong: %02x, not %02x", offset + i, source[i], right);
        }
    }
}

void send_all(int fd, uint64_t offset, uint64_t count, size_t piece) {
    char *buffer = malloc(piece);
    for (uint64_t done = 0; done < count;) {
        size_t want = count - done < piece ? count - done : piece;
        fill(buffer, offset + done, want);
        for (size_t sent = 0; sent < want;) {
            ssize_t now = send(fd, buffer + sent, want - sent, MSG_NOSIGNAL);
            if (now < 0 && errno == EINTR) continue;
            if (now <= 0) die("send at %lu", offset + done + sent);
            sent += now;
        }
        done += want;
    }
    free(buffer);
}

void recv_all(int fd, uint64_t offset, uint64_t count, size_t piece) {
    char *buffer = malloc(piece);
    for (uint64_t done = 0; done < count;) {
        size_t want = count - done < piece ? count - done : piece;
        ssize_t now = recv(fd, buffer, want, 0);
        if (now < 0 && errno == EINTR) continue;
        if (now <= 0) die("receive at %lu: %ld", offset + done, (long)now);
        check(buffer, offset + done, now);
        done += now;
    }
    free(buffer);
}

void drained(int fd) {
    char byte;
    ssize_t got = recv(fd, &byte, 1, 0);
    if (got != 0) die("no end of file: %s", outcome(got));
}

uint32_t chance(uint32_t below) {
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 32) % below;
}

void reap(pid_t pid, const char *what) {
    int status;
    if (waitpid(pid, &status, 0) != pid) die("%s: wait", what);
    say("%s: %s %d", what, WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

const char *beside(const char *program) {
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    if (length < 0) die("readlink");
    path[length] = 0;
    strcpy(strrchr(path, '/') + 1, program);
    return path;
}

static void until_state(pid_t pid, pid_t tid, char state) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
    for (int round = 0, seen = 0; seen < 2; round++) {
        if (round > 20000) die("%d does not come to state %c", tid, state);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (length <= 0) die("%s", path);
        close(fd);
        text[length] = 0;
        seen = strrchr(text, ')')[2] == state ? seen + 1 : 0;
        usleep(500);
    }
}

void asleep(pid_t pid, pid_t tid) { until_state(pid, tid, 'S'); }

void delivered(pid_t pid, int number) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    for (int round = 0;; round++) {
        if (round > 20000) die("signal %d is not taken", number);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (length <= 0) die("%s", path);
        close(fd);
        text[length] = 0;
        char *pending = strstr(text, "ShdPnd:"), *blocked = strstr(text, "SigBlk:");
        if (!pending || !blocked) die("no ShdPnd, no SigBlk");
        uint64_t waits = strtoull(pending + 7, NULL, 16) & ~strtoull(blocked + 7, NULL, 16);
        if (!(waits >> (number - 1) & 1)) return;
        usleep(500);
    }
}

void halt(pid_t pid) {
    if (kill(pid, SIGSTOP)) die("SIGSTOP");
    until_state(pid, pid, 'T');
}

// Whether bytes are on their way that may make room when they arrive: the kernel keeps none
// back only once the peer's window is shut.
int is_under_way(int fd) {
    struct tcp_info info = tcp_info(fd);
    return info.tcpi_unacked || (info.tcpi_notsent_bytes && info.tcpi_snd_wnd);
}

void cram(int fd) {
    static char bytes[1 << 20];
    nonblocking(fd, 1);
    for (int quiet = 0, round = 0; quiet < 10; round++) {
        if (round > 10000) die("there is always room");
        if (send(fd, bytes, sizeof bytes, 0) > 0 || is_under_way(fd)) quiet = 0;
        else quiet++;
        usleep(2000);
    }
    nonblocking(fd, 0);
}

// Past every library.
long raw_syscall(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static void play(const struct test_case *found) {
    int fd = -1;
    if (found->prepare != NONE) fd = meet();
    if (found->prepare == WARM) warm(fd, me == 'B');
    (me == 'A' ? found->a : found->b)(fd);
}

// Across a veth a send buffer grows with what was acknowledged, on loopback it is at its largest at once. Cases that
// send much while nobody reads, or ask whether a write was cut, rest on the latter. Sockets made from now on have it.
static void make_room(void) {
    static const char sizes[] = "4096 4194304 4194304"; // least, first and most (man 7 tcp)
    int fd = open("/proc/sys/net/ipv4/tcp_wmem", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, sizes, sizeof sizes - 1) < 0) _exit(97);
    close(fd);
}

static pid_t start(const char *self, const char *role, int sync, int output) {
    pid_t pid = fork();
    if (pid) return pid;
    // Between domains each role has its own.
    const char *netns = getenv(*role == 'A' ? "TRY_NETNS_A" : "TRY_NETNS_B");
    if (netns) {
        int fd = open(netns, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || setns(fd, CLONE_NEWNET)) _exit(97);
        close(fd);
        make_room();
    }
    // Not close-on-exec: these two, and the standard input of the whole for `hold`.
    dup2(0, 200);
    dup2(sync, 0);
    dup2(output, 1);
    execl(self, self, name, role, NULL);
    _exit(98);
}

static void show(char role, FILE *output, int status) {
    char *line = NULL;
    size_t room = 0;
    rewind(output);
    while (getline(&line, &room, output) > 0) printf("%c: %s", role, line);
    free(line);
    if (WIFSIGNALED(status)) printf("%c: killed by %s\n", role, sigabbrev_np(WTERMSIG(status)));
    else if (WEXITSTATUS(status)) printf("%c: status %d\n", role, WEXITSTATUS(status));
}

static void where(pid_t pid) {
    char command[256];
    snprintf(command, sizeof command,
             "for t in /proc/%d/task/*; do echo \"$t $(cat $t/syscall) $(cat $t/wchan)\"; done; ls -l /proc/%d/fd", pid, pid);
    fflush(stdout);
    int status = system(command);
    (void)status;
}

int main(int count, char **arguments) {
    by_kernel = getenv("TRY_KERNEL") != NULL;
    by_stack = getenv("FORDWAY_STACK") != NULL;
    if (count < 2) {
        for (const struct test_case *s = cases; s->name; s++) puts(s->name);
        return 0;
    }
    name = arguments[1];
    const struct test_case *found = cases;
    while (found->name && strcmp(found->name, name)) found++;
    if (!found->name) die("no such case");
    if (count == 3) {
        me = arguments[2][0];
        play(found);
        return 0;
    }

    int sync[2];
    FILE *outputs[2] = {tmpfile(), tmpfile()};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sync)) die("socketpair");
    pid_t pids[2];
    int statuses[2], ended[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        fcntl(fileno(outputs[i]), F_SETFD, FD_CLOEXEC);
        pids[i] = start("/proc/self/exe", i ? "B" : "A", sync[i], fileno(outputs[i]));
    }
    close(sync[0]);
    close(sync[1]);
    uint64_t limit = now_ms() + 60000;
    int hung = 0, held = 0;
    while (!ended[0] || !ended[1]) {
        for (int i = 0; i < 2; i++)
            if (!ended[i] && waitpid(pids[i], &statuses[i], WNOHANG) == pids[i]) {
                ended[i] = 1;
                // Who failed leaves the other one waiting.
                if (WIFEXITED(statuses[i]) && WEXITSTATUS(statuses[i]) && limit > now_ms() + 1000) limit = now_ms() + 1000;
            }
        // A role that holds is for the test to see at once.
        for (int i = 0; i < 2; i++) {
            char tail[6] = "";
            int fd = fileno(outputs[i]);
            off_t size = lseek(fd, 0, SEEK_END);
            if (size >= 5 && pread(fd, tail, 5, size - 5) == 5 && !strcmp(tail, "hold\n") && !(held & 1 << i)) {
                held |= 1 << i;
                printf("holding %c %d\n", "AB"[i], pids[i]);
                fflush(stdout);
            }
        }
        if (!ended[0] || !ended[1]) {
            if (now_ms() > limit) {
                hung = 1;
                for (int i = 0; i < 2; i++)
                    if (!ended[i]) {
                        printf("%c: hangs\n", "AB"[i]);
                        where(pids[i]);
                        kill(pids[i], SIGKILL);
                    }
                limit += 1000000;
            }
            usleep(1000);
        }
    }
    show('A', outputs[0], statuses[0]);
    show('B', outputs[1], statuses[1]);
    return hung ? 4 : 0;
}
