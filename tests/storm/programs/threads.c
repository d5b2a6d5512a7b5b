// A server and a client of many threads whose connections come and go. Every byte is compared.
//
//   threads server SERVER CLIENT FORKS                 says `listening PORT`; reads a number from its standard input,
//                                                      and ends when so many connections have come and all have ended
//   threads client SERVER CLIENT FORKS PORT SECONDS    says `CONNECTIONS MESSAGES BYTES` after so many seconds
//
//   client thread 0 ─┬─ connect, some messages, an end of its kind ──► server: each byte is sent back
//                ... │  (again and again)                              by threads of its kind (SERVER)
//   client thread 7 ─┘  (CLIENT)
//
// Both know both kinds, see `server_kinds` and `client_kinds`. With FORKS = 1 a thread of each program makes children,
// which end at once or become /bin/true. The programs use plain calls and know nothing of Fordway.
//
// Verdicts: a wrong byte, an error that the kernel would not give, an end too early, or a step that takes longer than
// STEP_LIMIT_MS ends the program with a line that says so. A step is what a thread of the client does, or what was done
// last for a connection of the server; a watchdog thread looks at all steps. Steps are never freed.
#include "threads.h"

enum { FORKS_EVERY_US = 3000, CHILD_STATUS = 5 };

static const char *const server_kinds[] = {
    "blocking",  // a thread for each connection
    "pollers",   // poll, ppoll and select in three threads, each over all connections
    "oneshot",   // EPOLLONESHOT, five threads at one instance
    "edges",     // EPOLLET, five threads at one instance
    "visited",   // the same, beside instances that come and go over the same connections
    "instances", // each connection in two instances, five threads at both
    "duplicate", // used by a dup'd number; the number that epoll knows is closed
};

static const char *const client_kinds[] = {
    "mixed",       // blocking
    "nonblocking", // connect and poll
    "replaced",    // dup2 over a live connection, which an epoll instance knows
    "half-closed", // shutdown(SHUT_WR), then the rest and the end are awaited
    "closed",      // by another thread while a receive sleeps
};

int server_kind, client_kind, forks;
static const char *program;

_Noreturn void fail(const char *format, ...)
{
    int error = errno;
    char line[500];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line, format, values);
    dprintf(2, "%s: %.*s (errno %s)\n", program, length, line, strerrorname_np(error));
    _exit(1);
}

int sure_at(const char *file, int line, int result)
{
    if (result < 0)
        fail("%s:%d", file, line);
    return result;
}

// A child that ends while posix_spawn has blocked SIGCHLD in its thread ends the waits of other threads: those of epoll,
// and receives with a time-out, whether the signal has a handler or not (linux: sig_ignored, and man 7 signal).
int wait_events(int instance, struct epoll_event *events, int room, int timeout_ms)
{
    int count;
    while ((count = epoll_wait(instance, events, room, timeout_ms)) < 0 && errno == EINTR && forks) {}
    return sure(count);
}

long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static struct step *_Atomic steps;

void doing(struct step *step, const char *what, int fd)
{
    step->since_ms = now_ms();
    step->fd = fd;
    step->what = what;
}

void watch_step(struct step *step)
{
    step->next = steps;
    while (!atomic_compare_exchange_weak(&steps, &step->next, step)) {}
}

static void *watchdog(void *unused)
{
    (void)unused;
    for (;; poll(NULL, 0, 500))
        for (struct step *step = steps; step; step = step->next) {
            const char *what = step->what;
            long took = now_ms() - step->since_ms;
            if (!what || took < STEP_LIMIT_MS)
                continue;
            struct pollfd shown = {step->fd, POLLIN | POLLOUT | POLLRDHUP, 0};
            poll(&shown, 1, 0);
            errno = 0;
            fail("HANGS in %s on %d for %ld ms; poll shows %x", what, shown.fd, took, shown.revents);
        }
    return NULL;
}

void start(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    sure(-pthread_create(&thread, &attributes, run, argument));
    pthread_attr_destroy(&attributes);
}

void await(struct step *step, const char *what, int fd, short events)
{
    doing(step, what, fd);
    struct pollfd shown = {fd, events, 0};
    if (sure(poll(&shown, 1, -1)) != 1 || shown.revents & POLLNVAL)
        fail("%s: poll shows %x", what, shown.revents);
}

static void *fork_beside(void *unused)
{
    (void)unused;
    struct step step = {0};
    watch_step(&step);
    char *const words[] = {"true", NULL};
    for (unsigned number = 0;; number++) {
        doing(&step, "a child", -1);
        pid_t child;
        if (number % 3 == 0) {
            if ((errno = posix_spawn(&child, "/bin/true", NULL, NULL, words, environ)))
                fail("posix_spawn");
        } else if ((child = sure(fork())) == 0) {
            if (number % 3 == 1)
                execv("/bin/true", words);
            _exit(CHILD_STATUS);
        }
        int status, expected = number % 3 == 2 ? CHILD_STATUS : 0;
        sure(waitpid(child, &status, 0));
        if (!WIFEXITED(status) || WEXITSTATUS(status) != expected)
            fail("child of kind %u ended with %x", number % 3, status);
        usleep(FORKS_EVERY_US);
    }
    return NULL;
}

static int kind_of(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    errno = 0;
    fail("there is no kind %s", name);
}

int main(int count, char **words)
{
    program = count > 1 ? words[1] : words[0];
    if (count < 5)
        fail("too few arguments");
    server_kind = kind_of(words[2], server_kinds, SERVER_KINDS);
    client_kind = kind_of(words[3], client_kinds, CLIENT_KINDS);
    forks = atoi(words[4]);
    signal(SIGPIPE, SIG_IGN);
    start(watchdog, NULL);
    if (forks)
        start(fork_beside, NULL);
    if (strcmp(words[1], "server") == 0)
        serve();
    if (count < 7)
        fail("too few arguments");
    run_clients(atoi(words[5]), atof(words[6]));
}
