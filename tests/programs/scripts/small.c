// A small server and client, as busybox has them, to be built with any libc: one program, of which
// the first word says what it is.
//   small serve PORT            gives back what it gets, on any number of connections, until SIGTERM
//   small ask HOST PORT ROUNDS  sends as many messages, of 1 to 100,000 bytes, and compares
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define CONNECTIONS 64
#define LONGEST 100000

static void die(const char *what) {
    perror(what);
    exit(1);
}
static void send_all(int fd, const char *bytes, size_t count) {
    for (ssize_t sent; count; bytes += sent, count -= sent)
        if ((sent = write(fd, bytes, count)) < 0) die("write");
}
static struct addrinfo *resolve(const char *host, const char *port, int flags) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = flags}, *found;
    int error = getaddrinfo(host, port, &hints, &found);
    if (error) fprintf(stderr, "%s\n", gai_strerror(error)), exit(1);
    return found;
}

static volatile sig_atomic_t ended, ticks;
static void end(int number) {
    (void)number;
    ended = 1;
}
static void tick(int number) {
    (void)number;
    ticks++;
}

static void serve(const char *port) {
    static struct pollfd entries[CONNECTIONS + 1];
    static char bytes[LONGEST];
    struct sigaction action = {.sa_handler = end};
    sigset_t none, term;
    sigemptyset(&none);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    // It is let in only while nothing else is done.
    if (sigaction(SIGTERM, &action, NULL) || sigprocmask(SIG_BLOCK, &term, NULL)) die("signals");
    struct addrinfo *name = resolve(NULL, port, AI_PASSIVE);
    int one = 1, count = 1;
    entries[0] = (struct pollfd){.fd = socket(AF_INET, SOCK_STREAM, 0), .events = POLLIN};
    setsockopt(entries[0].fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(entries[0].fd, name->ai_addr, name->ai_addrlen) || listen(entries[0].fd, 16)) die("listen");
    while (!ended) {
        if (ppoll(entries, count, NULL, &none) < 0) {
            if (errno == EINTR) continue;
            die("ppoll");
        }
        for (int i = 1; i < count; i++) {
            if (!entries[i].revents) continue;
            ssize_t got = read(entries[i].fd, bytes, sizeof bytes);
            if (got > 0) {
                send_all(entries[i].fd, bytes, got);
                continue;
            }
            close(entries[i].fd);
            entries[i--] = entries[--count];
        }
        if (entries[0].revents && count <= CONNECTIONS) entries[count++] = (struct pollfd){.fd = accept(entries[0].fd, NULL, NULL), .events = POLLIN};
    }
}

static void ask(const char *host, const char *port, int rounds) {
    static char out[LONGEST], in[LONGEST];
    struct addrinfo *name = resolve(host, port, 0);
    int fd = socket(name->ai_family, name->ai_socktype, name->ai_protocol);
    if (connect(fd, name->ai_addr, name->ai_addrlen)) die("connect");
    // Handlers run in the middle of it.
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    struct itimerval often = {.it_interval.tv_usec = 1000, .it_value.tv_usec = 1000};
    if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &often, NULL)) die("timer");
    long total = 0;
    for (int round = 0; round < rounds; round++) {
        size_t count = 1 + (size_t)rand() % (round % 8 ? 1000 : LONGEST);
        for (size_t i = 0; i < count; i++) out[i] = (char)rand();
        send_all(fd, out, count);
        // A handler may end the wait for all of it (man 2 recv).
        for (size_t got = 0; got < count;) {
            ssize_t now = recv(fd, in + got, count - got, MSG_WAITALL);
            if (now <= 0) die("recv");
            got += now;
        }
        if (memcmp(in, out, count)) die("other bytes");
        total += count;
    }
    printf("%ld bytes\n", total);
}

int main(int count, char **words) {
    if (count == 3 && !strcmp(words[1], "serve")) serve(words[2]);
    else if (count == 5 && !strcmp(words[1], "ask")) ask(words[2], words[3], atoi(words[4]));
    else return 2;
    return 0;
}
