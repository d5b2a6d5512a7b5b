// What the server and the client of the storm of threads share; `threads.c` tells what they are.
#ifndef THREADS_H
#define THREADS_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>


enum { PIECE_BYTES = 8192, STEP_LIMIT_MS = 20000 };
enum { BLOCKING, POLLING, ONESHOT, EDGES, VISITED, INSTANCES, DUPLICATE, SERVER_KINDS };
enum { MIXED, NONBLOCKING, REPLACED, HALF_CLOSED, CLOSED, CLIENT_KINDS };
extern int server_kind, client_kind, forks;

// What a thread of the client does now, or what was done last for a connection of the server.
struct step {
    const char *_Atomic what; // NULL: nothing is under way
    _Atomic int fd;
    _Atomic long since_ms;
    struct step *next;
};
void watch_step(struct step *step); // from now on; it is never freed
void doing(struct step *step, const char *what, int fd);
void await(struct step *step, const char *what, int fd, short events); // returns when poll shows one of them

_Noreturn void fail(const char *format, ...);
int sure_at(const char *file, int line, int result);
#define sure(call) sure_at(__FILE__, __LINE__, call) // a call that may not fail
int wait_events(int instance, struct epoll_event *events, int room, int timeout_ms);
long now_ms(void);
void start(void *(*run)(void *), void *argument); // a thread that nobody joins

void serve(void);
void run_clients(int port, double seconds);
#endif
