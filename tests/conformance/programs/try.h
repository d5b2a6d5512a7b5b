// Small programs that try one thing each, on the kernel path and on the fast path.
//
// A case has two roles, A (which accepts) and B (which connects), each a process
// of its own, started by a third (`PROGRAM SCENARIO`). The roles keep in step over a
// UNIX socket on descriptor 0 (`step`, `tell`, `hear`), and write what they saw to
// descriptor 1 (`say`): two paths that behave alike give the same text. Nothing else
// is open, so that a case may close what it likes.
//
// The roles are in one network, and meet on loopback; or each in a domain's (TRY_NETNS_A, TRY_NETNS_B), and
// they meet at the domains' addresses (TRY_A, TRY_B), of either family.
#ifndef TRY_H
#define TRY_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef void role(int fd);

// How the framework prepares the connection that a role is given.
enum { WARM, COLD, NONE };

struct test_case {
    const char *name;
    int prepare;
    role *a, *b;
};
extern const struct test_case cases[];

extern char me;             // 'A' or 'B'
extern int by_kernel;       // this run is the oracle: --path kernel

void say(const char *format, ...);           // a line of the transcript
void die(const char *format, ...);           // the case failed
void step(void);                             // both roles are here
void tell(uint64_t value);                   // to the other role ...
uint64_t hear(void);                         // ... which waits for it
void wait_dead(void);                        // the other role's process has ended
int listen_any(int *port);
socklen_t place(char role, int port, struct sockaddr_storage *at); // 127.0.0.1, or the address of the role's domain
int dial(int port);                          // blocking connect to what A's listen_any gave
int meet(void);                              // one connection between the roles
void warm(int fd, int first);                // until both directions use rings
void no_longer_established(int fd);          // a FIN or RST of the other end has come
uint64_t kernel_sent(int fd);                // bytes that this end gave to the kernel
void must_ring(int fd, const char *what);    // the next send of one byte goes by the ring
const char *path_of(int fd, uint64_t before); // "ring" or "kernel", for bytes sent since
void settle(int fd, int count);               // so many bytes have arrived (the kernel may take its time)
void hold(void);                             // until the test has looked (`fordway ss`)
uint64_t now_ms(void);
const char *bits(uint32_t events);           // poll and epoll bits as words
const char *error_name(int error);
// The result, or the name of the error.
#define outcome(result) ({ long result_ = (result); outcome_(result_, errno); })
const char *outcome_(long result, int error);
void nonblocking(int fd, int on);
int pollx(int fd, int events, int timeout_ms, int *shown);
void fill(void *buffer, uint64_t offset, size_t count);       // the stream's content
void check(const void *buffer, uint64_t offset, size_t count);
void send_all(int fd, uint64_t offset, uint64_t count, size_t piece);
void recv_all(int fd, uint64_t offset, uint64_t count, size_t piece);
void drained(int fd);                        // end of file comes next
uint32_t chance(uint32_t below);             // repeatable
void reap(pid_t pid, const char *what);      // says how a child ended
const char *beside(const char *name);        // path of another compiled program
void asleep(pid_t pid, pid_t tid);           // until that thread sleeps in the kernel
void delivered(pid_t pid, int number);       // until that signal, sent to the process, has come, or is blocked
void halt(pid_t pid);                        // SIGSTOP, until it has stopped
int is_under_way(int fd);                    // bytes that may make room when they arrive
void cram(int fd);                          // sends until nothing more goes in
long raw_syscall(long number, long a, long b, long c, long d, long e, long f);

// Of messages that cannot be read. musl looks at them before the kernel does.
#ifdef __GLIBC__
#define judged_sendmsg sendmsg
#define judged_recvmsg recvmsg
#define judged_recvmmsg recvmmsg
#else
#define judged_sendmsg(...) syscall(SYS_sendmsg, __VA_ARGS__)
#define judged_recvmsg(...) syscall(SYS_recvmsg, __VA_ARGS__)
#define judged_recvmmsg(...) syscall(SYS_recvmmsg, __VA_ARGS__)
#endif
#endif
