// The client of the storm of threads: eight threads that connect, talk, and end the connection in one of five ways.
//
// Byte AT of the stream with SEED is `content(SEED, AT)`: a byte that is lost, doubled or another connection's is seen
// where it comes back.
#include "threads.h"

enum { THREADS = 8, STREAM_BYTES = 1 << 18, CLOSED_RECEIVE_MS = 30 };
// Numbers of connections that another thread closes: each thread has a range, so that no number is used by another one.
enum { OWN_NUMBERS = 500, OWN_NUMBERS_EACH = 64 };

// A connection whose bytes come back: both directions carry the same stream.
struct stream {
    int fd;
    int blocking;
    unsigned seed;
    size_t at; // all bytes before it have come back
};
static int port;
static long end_ms;
static atomic_ulong connections, messages, bytes_sent, next_seed;
static _Thread_local unsigned dice;
static _Thread_local int thread_number;
static _Thread_local struct step *mine;

static unsigned below(unsigned bound)
{
    return rand_r(&dice) % bound;
}

static unsigned char content(unsigned seed, size_t at)
{
    return (((unsigned)at * 0x9E3779B1u) ^ (seed * 0x85EBCA6Bu)) * 2654435761u >> 24;
}

static void fill(unsigned char *bytes, const struct stream *s, size_t at, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = content(s->seed, at + i);
}

static void check(const unsigned char *bytes, const struct stream *s, size_t at, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != content(s->seed, at + i)) {
            errno = 0;
            fail("WRONG byte %zu on %d, byte %zu of %zu received", at + i, s->fd, i, count);
        }
}

static struct stream dial(int blocking)
{
    struct sockaddr_in address = {AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {0}};
    // Some go to children that become another program.
    int keep = forks && below(4) == 0;
    int type = SOCK_STREAM | (blocking ? 0 : SOCK_NONBLOCK) | (keep ? 0 : SOCK_CLOEXEC);
    struct stream s = {sure(socket(AF_INET, type, 0)), blocking, next_seed++, 0};
    doing(mine, "connect", s.fd);
    if (connect(s.fd, (struct sockaddr *)&address, sizeof address)) {
        if (blocking || errno != EINPROGRESS)
            fail("connect");
        await(mine, "poll for the connection", s.fd, POLLOUT);
        socklen_t length = sizeof errno;
        int error = 0;
        sure(getsockopt(s.fd, SOL_SOCKET, SO_ERROR, &error, &length));
        if ((errno = error))
            fail("connect, by SO_ERROR");
    }
    connections++;
    return s;
}

// A piece in three parts.
static struct msghdr parts(struct iovec vector[3], unsigned char *bytes, size_t count)
{
    size_t third = count / 3;
    for (int i = 0; i < 3; i++)
        vector[i] = (struct iovec){bytes + i * third, i < 2 ? third : count - 2 * third};
    return (struct msghdr){.msg_iov = vector, .msg_iovlen = 3};
}

static void send_all(struct stream *s, size_t count)
{
    unsigned char bytes[PIECE_BYTES];
    struct iovec vector[3];
    for (size_t at = s->at, end = s->at + count; at < end;) {
        size_t piece = end - at < sizeof bytes ? end - at : sizeof bytes;
        struct msghdr message = parts(vector, bytes, piece);
        fill(bytes, s, at, piece);
        doing(mine, "send", s->fd);
        ssize_t sent;
        switch (below(4)) {
        case 0: sent = send(s->fd, bytes, piece, 0); break;
        case 1: sent = sendmsg(s->fd, &message, 0); break;
        case 2: sent = writev(s->fd, vector, 3); break;
        default: sent = send(s->fd, bytes, piece, MSG_DONTWAIT);
        }
        if (sent < 0 && errno == EAGAIN)
            await(mine, "poll for room", s->fd, POLLOUT);
        else if (sent <= 0)
            fail("send on %d at byte %zu gave %zd", s->fd, at, sent);
        else
            at += sent;
    }
    messages++;
    bytes_sent += count;
}

static void receive_all(struct stream *s, size_t count)
{
    unsigned char bytes[PIECE_BYTES];
    struct iovec vector[3];
    for (size_t end = s->at + count; s->at < end;) {
        size_t piece = end - s->at < sizeof bytes ? end - s->at : sizeof bytes;
        struct msghdr message = parts(vector, bytes, piece);
        doing(mine, "receive", s->fd);
        ssize_t came;
        int call = below(6);
        switch (call) {
        case 0: came = recv(s->fd, bytes, piece, 0); break;
        case 1: came = recvmsg(s->fd, &message, 0); break;
        case 2: came = readv(s->fd, vector, 3); break;
        case 3: came = recv(s->fd, bytes, piece, MSG_PEEK); break;
        case 4: came = recv(s->fd, bytes, piece, MSG_WAITALL); break;
        default: came = recv(s->fd, bytes, piece, MSG_DONTWAIT);
        }
        if (came < 0 && errno == EAGAIN) {
            await(mine, "poll for bytes", s->fd, POLLIN);
            continue;
        }
        if (came <= 0)
            fail("receive (kind %d) on %d at byte %zu of %zu gave %zd", call, s->fd, s->at, end, came);
        if (call == 4 && s->blocking && (size_t)came != piece)
            fail("MSG_WAITALL on %d: %zd of %zu", s->fd, came, piece);
        check(bytes, s, s->at, came);
        if (call != 3)
            s->at += came;
    }
}

static void exchange(struct stream *s, size_t count)
{
    send_all(s, count);
    receive_all(s, count);
}

static void exchange_some(struct stream *s, int rounds)
{
    for (int i = 0; i < rounds; i++)
        exchange(s, 1 + below(i % 5 == 0 ? 9000 : 300));
}

// More than the buffers hold, in both directions at once.
static void exchange_stream(struct stream *s)
{
    unsigned char bytes[PIECE_BYTES];
    size_t sent = s->at, end = s->at + STREAM_BYTES;
    while (s->at < end) {
        await(mine, "poll for room or bytes", s->fd, POLLIN | (sent < end ? POLLOUT : 0));
        if (sent < end) {
            size_t piece = end - sent < sizeof bytes ? end - sent : sizeof bytes;
            fill(bytes, s, sent, piece);
            ssize_t more = send(s->fd, bytes, piece, MSG_DONTWAIT);
            if (more < 0 && errno != EAGAIN)
                fail("send of a stream on %d at byte %zu", s->fd, sent);
            sent += more > 0 ? more : 0;
        }
        ssize_t came = recv(s->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (came == 0 || (came < 0 && errno != EAGAIN))
            fail("recv of a stream on %d at byte %zu gave %zd", s->fd, s->at, came);
        check(bytes, s, s->at, came > 0 ? came : 0);
        s->at += came > 0 ? came : 0;
    }
    bytes_sent += STREAM_BYTES;
}

static void end_half_closed(struct stream *s)
{
    size_t rest = below(3) * below(5000);
    if (rest)
        send_all(s, rest);
    sure(shutdown(s->fd, SHUT_WR));
    receive_all(s, rest);
    char byte;
    ssize_t came;
    while (doing(mine, "recv for the end", s->fd), (came = recv(s->fd, &byte, 1, 0)) < 0 && errno == EAGAIN)
        await(mine, "poll for the end", s->fd, POLLIN);
    if (came)
        fail("recv gave %zd for the end after byte %zu on %d", came, s->at, s->fd);
    sure(close(s->fd));
}

static void *close_it(void *argument)
{
    struct stream *s = argument;
    if (s->seed % 2)
        usleep(s->seed % 300);
    else
        sched_yield();
    sure(close(s->fd));
    return NULL;
}

// Linux lets a receive that sleeps go on; one that comes after the close has no descriptor.
static void end_closed(struct stream *s)
{
    int own = OWN_NUMBERS + thread_number * OWN_NUMBERS_EACH;
    int number = sure(fcntl(s->fd, F_DUPFD_CLOEXEC, own));
    sure(close(s->fd));
    s->fd = number;
    struct timeval limit = {0, CLOSED_RECEIVE_MS * 1000};
    sure(setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    unsigned char bytes[512];
    int answered = below(2);
    if (answered)
        send_all(s, sizeof bytes);
    struct stream theirs = *s;
    pthread_t closer;
    sure(-pthread_create(&closer, NULL, close_it, &theirs));
    doing(mine, "recv beside close", s->fd);
    ssize_t came = recv(s->fd, bytes, sizeof bytes, 0);
    int interrupted = came < 0 && errno == EINTR && forks; // see `wait_events`
    if (came == 0 || (came < 0 && errno != EAGAIN && errno != EBADF && !interrupted) || (came > 0 && !answered))
        fail("recv beside close on %d gave %zd", s->fd, came);
    check(bytes, s, s->at, came > 0 ? came : 0);
    doing(mine, "join of the closer", s->fd);
    pthread_join(closer, NULL);
}

// The number of the first connection becomes the second one's, also for epoll.
static void end_replaced(struct stream *first, int rounds)
{
    struct stream second = dial(1);
    exchange_some(&second, rounds);
    int instance = sure(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {EPOLLIN, {.u64 = 1}};
    sure(epoll_ctl(instance, EPOLL_CTL_ADD, first->fd, &event));
    sure(dup2(second.fd, first->fd));
    event.data.u64 = 2;
    sure(epoll_ctl(instance, EPOLL_CTL_ADD, first->fd, &event));
    sure(close(second.fd));
    second.fd = first->fd;
    for (int i = 0; i < rounds; i++) {
        size_t count = 1 + below(800);
        send_all(&second, count);
        doing(mine, "epoll_wait", second.fd);
        if (wait_events(instance, &event, 1, -1) != 1 || event.data.u64 != 2)
            fail("an event of what dup2 has closed");
        receive_all(&second, count);
    }
    sure(close(second.fd));
    if (wait_events(instance, &event, 1, 0))
        fail("an event of what is closed");
    sure(close(instance));
}

static void *run_client(void *number)
{
    static struct step own[THREADS];
    thread_number = (int)(long)number;
    dice = getpid() + 7919 * thread_number;
    watch_step(mine = &own[thread_number]);
    while (now_ms() < end_ms) {
        int rounds = below(25);
        int blocking = client_kind == HALF_CLOSED ? (int)below(2) : client_kind != NONBLOCKING;
        struct stream s = dial(blocking);
        exchange_some(&s, rounds);
        if (client_kind < REPLACED && below(20) == 0)
            exchange_stream(&s);
        switch (client_kind) {
        case REPLACED: end_replaced(&s, rounds); break;
        case HALF_CLOSED: end_half_closed(&s); break;
        case CLOSED: end_closed(&s); break;
        default: sure(close(s.fd));
        }
    }
    mine->what = NULL;
    return NULL;
}

void run_clients(int server_port, double seconds)
{
    port = server_port;
    end_ms = now_ms() + (long)(seconds * 1000);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        sure(-pthread_create(&threads[i], NULL, run_client, (void *)i));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%lu %lu %lu\n", connections, messages, bytes_sent);
    fflush(stdout);
    _exit(0); // beside the thread that makes children
}
