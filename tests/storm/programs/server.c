// The server of the storm of threads: each connection's bytes go back, by threads of one of seven kinds.
//
//   main thread: accept ─► welcome ─┬─► a thread of its own (BLOCKING)
//                                   ├─► `list`, over which pollers poll (POLLING) and visitors go (VISITED)
//                                   └─► one or two epoll instances, at which five threads wait
//
// A connection's lock is held by the thread that serves it, and is taken before `list_lock`. Connections are never
// freed, so that a thread that is told of one late finds it closed.
#include "threads.h"

enum { THREADS = 5, POLLERS = 3, POLL_MS = 20 };
// Connections at one time; the client has two in each thread at most.
enum { LIST_MAX = 512 };

struct connection {
    struct step step;
    pthread_mutex_t lock;
    int fd;
    int open;
};
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct connection *list[LIST_MAX]; // what pollers and visitors look at
static int listed;
static atomic_long accepted, live;
static int instances[2];

static void leave(struct connection *c)
{
    pthread_mutex_lock(&list_lock);
    for (int i = 0; i < listed; i++)
        if (list[i] == c)
            list[i] = list[--listed];
    pthread_mutex_unlock(&list_lock);
    c->open = 0;
    c->step.what = NULL;
    sure(close(c->fd));
    live--;
}

// Only a client that closes with bytes unread may reset a connection.
static void may_be_reset(const char *call, int fd)
{
    if (client_kind != CLOSED || (errno != ECONNRESET && errno != EPIPE))
        fail("%s on %d", call, fd);
}

enum moved { NOTHING, SOME, ENDED };

// One receive, and all of it is sent back.
static enum moved echo(struct connection *c)
{
    char bytes[PIECE_BYTES];
    doing(&c->step, "recv", c->fd);
    ssize_t count = recv(c->fd, bytes, sizeof bytes, 0);
    if (count < 0 && errno == EAGAIN && server_kind != BLOCKING) {
        doing(&c->step, "waiting since recv gave EAGAIN", c->fd);
        return NOTHING;
    }
    if (count < 0)
        may_be_reset("recv", c->fd);
    if (count <= 0)
        return ENDED;
    for (ssize_t sent = 0; sent < count;) {
        doing(&c->step, "send", c->fd);
        ssize_t more = send(c->fd, bytes + sent, count - sent, MSG_NOSIGNAL);
        if (more > 0) {
            sent += more;
        } else if (errno == EAGAIN && server_kind != BLOCKING) {
            await(&c->step, "poll for room", c->fd, POLLOUT);
        } else {
            may_be_reset("send", c->fd);
            return ENDED;
        }
    }
    doing(&c->step, "waiting since an echo", c->fd);
    return SOME;
}

static void *serve_blocking(void *argument)
{
    struct connection *c = argument;
    while (echo(c) == SOME) {}
    leave(c);
    return NULL;
}

// A connection was reported. Levels are shown again, so that who finds another thread there may go on.
static void reported(struct connection *c)
{
    int edges = server_kind == EDGES || server_kind == VISITED;
    if (edges)
        pthread_mutex_lock(&c->lock);
    else if (pthread_mutex_trylock(&c->lock)) {
        errno = 0;
        if (server_kind == ONESHOT)
            fail("two threads were told of connection %d", c->fd);
        return;
    }
    enum moved moved = NOTHING;
    int open = c->open;
    if (open)
        do moved = echo(c); while (edges && moved == SOME);
    if (moved == ENDED)
        leave(c);
    pthread_mutex_unlock(&c->lock);
    if (server_kind == ONESHOT && open && moved != ENDED) {
        struct epoll_event again = {EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, {.ptr = c}};
        sure(epoll_ctl(instances[0], EPOLL_CTL_MOD, c->fd, &again));
    }
}

static void *serve_events(void *instance)
{
    for (;;) {
        struct epoll_event events[6];
        int count = wait_events(*(int *)instance, events, 6, -1);
        for (int i = 0; i < count; i++)
            reported(events[i].data.ptr);
    }
    return NULL;
}

// Each poller looks at all connections, also at those that others close meanwhile.
static void *serve_polled(void *number)
{
    for (;;) {
        struct connection *looked_at[LIST_MAX];
        struct pollfd shown[LIST_MAX];
        pthread_mutex_lock(&list_lock);
        int count = listed;
        for (int i = 0; i < count; i++) {
            looked_at[i] = list[i];
            shown[i] = (struct pollfd){list[i]->fd, POLLIN, 0};
        }
        pthread_mutex_unlock(&list_lock);
        struct timespec limit = {0, POLL_MS * 1000000};
        if ((long)number == 0) {
            sure(poll(shown, count, POLL_MS));
        } else if ((long)number == 1) {
            sure(ppoll(shown, count, &limit, NULL));
        } else {
            fd_set readable;
            FD_ZERO(&readable);
            int end = 0;
            for (int i = 0; i < count; i++) {
                FD_SET(shown[i].fd, &readable);
                end = shown[i].fd >= end ? shown[i].fd + 1 : end;
            }
            if (pselect(end, &readable, NULL, NULL, &limit, NULL) < 0) {
                if (errno != EBADF)
                    fail("pselect");
                continue;
            }
            for (int i = 0; i < count; i++)
                shown[i].revents = FD_ISSET(shown[i].fd, &readable);
        }
        for (int i = 0; i < count; i++)
            if (shown[i].revents & ~POLLNVAL)
                reported(looked_at[i]);
    }
    return NULL;
}

// Instances that are made over live connections, asked, and closed.
static void *visit(void *unused)
{
    (void)unused;
    for (;;) {
        int instance = sure(epoll_create1(EPOLL_CLOEXEC));
        struct connection *looked_at[LIST_MAX];
        pthread_mutex_lock(&list_lock);
        int count = listed;
        memcpy(looked_at, list, count * sizeof *list);
        pthread_mutex_unlock(&list_lock);
        for (int i = 0; i < count; i++) {
            struct connection *c = looked_at[i];
            struct epoll_event wanted = {EPOLLIN | EPOLLOUT, {.ptr = list}};
            pthread_mutex_lock(&c->lock);
            if (c->open)
                sure(epoll_ctl(instance, EPOLL_CTL_ADD, c->fd, &wanted));
            pthread_mutex_unlock(&c->lock);
        }
        struct epoll_event events[4];
        count = wait_events(instance, events, 4, 1);
        for (int i = 0; i < count; i++)
            if (events[i].data.ptr != list)
                fail("an event of another instance");
        sure(close(instance));
    }
    return NULL;
}

static void welcome(int fd)
{
    struct connection *c = calloc(1, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    c->fd = fd;
    c->open = 1;
    live++;
    accepted++;
    doing(&c->step, "waiting since accept", fd);
    watch_step(&c->step);
    pthread_mutex_lock(&c->lock);
    pthread_mutex_lock(&list_lock);
    if (listed == LIST_MAX)
        fail("more connections than the client has");
    list[listed++] = c;
    pthread_mutex_unlock(&list_lock);
    struct epoll_event wanted = {EPOLLIN | EPOLLRDHUP, {.ptr = c}};
    if (server_kind == EDGES || server_kind == VISITED)
        wanted.events |= EPOLLET;
    if (server_kind == ONESHOT)
        wanted.events |= EPOLLONESHOT;
    if (server_kind == DUPLICATE)
        c->fd = sure(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    pthread_mutex_unlock(&c->lock);
    // From here on another thread may serve it, and close it unless a second number is open.
    if (server_kind == BLOCKING) {
        start(serve_blocking, c);
    } else if (server_kind == INSTANCES) {
        pthread_mutex_lock(&c->lock);
        for (int i = 0; i < 2; i++)
            sure(epoll_ctl(instances[i], EPOLL_CTL_ADD, fd, &wanted));
        pthread_mutex_unlock(&c->lock);
    } else if (server_kind != POLLING) {
        sure(epoll_ctl(instances[0], EPOLL_CTL_ADD, fd, &wanted));
    }
    if (server_kind == DUPLICATE)
        sure(close(fd));
}

static void *end_server(void *unused)
{
    (void)unused;
    long expected;
    if (scanf("%ld", &expected) != 1)
        _exit(0);
    for (long until = now_ms() + STEP_LIMIT_MS + 2000; accepted != expected || live; poll(NULL, 0, 2))
        if (accepted > expected || now_ms() > until) // the watchdog names one that does not end, before
            fail("%ld of %ld connections came, %ld have not ended", accepted, expected, live);
    _exit(0);
}

void serve(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = sure(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sure(bind(listener, (struct sockaddr *)&address, length));
    sure(listen(listener, 1000));
    sure(getsockname(listener, (struct sockaddr *)&address, &length));
    printf("listening %d\n", ntohs(address.sin_port));
    fflush(stdout);
    start(end_server, NULL);
    for (int i = 0; i < 2; i++)
        instances[i] = sure(epoll_create1(EPOLL_CLOEXEC));
    for (long i = 0; server_kind == POLLING && i < POLLERS; i++)
        start(serve_polled, (void *)i);
    for (int i = 0; server_kind > POLLING && i < THREADS; i++)
        start(serve_events, &instances[server_kind == INSTANCES ? i % 2 : 0]);
    if (server_kind == VISITED)
        start(visit, NULL);
    for (;;)
        welcome(sure(accept4(listener, NULL, NULL, SOCK_CLOEXEC | (server_kind == BLOCKING ? 0 : SOCK_NONBLOCK))));
}

