// What the programs use and musl does not have: read in front of each of them (build.rs).
// Calls without a function of libc's are made by syscall(2), as programs for musl do it; fortified
// and old names stand for the plain ones.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define RWF_NOWAIT 8 // linux/fs.h
#define __dprintf_chk(fd, flag, ...) dprintf(fd, __VA_ARGS__)
#define __vdprintf_chk(fd, flag, format, list) vdprintf(fd, format, list)
#define __dup2 dup2
#define __select select
#define _IO_fdopen fdopen
#define _IO_fclose fclose
#define _IO_popen popen

#define OWN static inline __attribute__((unused))
OWN const char *strerrorname_np(int error) {
    static const struct {
        int error;
        const char *name;
    } known[] = {
#define NAME(error) {error, #error}
        NAME(EACCES), NAME(EADDRINUSE), NAME(EADDRNOTAVAIL), NAME(EAFNOSUPPORT), NAME(EAGAIN), NAME(EALREADY), NAME(EBADF),
        NAME(ECHILD), NAME(ECONNABORTED), NAME(ECONNREFUSED), NAME(ECONNRESET), NAME(EDESTADDRREQ), NAME(EEXIST), NAME(EFAULT),
        NAME(EFBIG), NAME(EHOSTUNREACH), NAME(EINPROGRESS), NAME(EINTR), NAME(EINVAL), NAME(EIO), NAME(EISCONN), NAME(ELOOP),
        NAME(EMFILE), NAME(EMSGSIZE), NAME(ENETUNREACH), NAME(ENFILE), NAME(ENOBUFS), NAME(ENODEV), NAME(ENOENT), NAME(ENOEXEC),
        NAME(ENOMEM), NAME(ENOPROTOOPT), NAME(ENOSPC), NAME(ENOSYS), NAME(ENOTCONN), NAME(ENOTDIR), NAME(ENOTSOCK), NAME(ENOTTY),
        NAME(ENXIO), NAME(EOPNOTSUPP), NAME(EPERM), NAME(EPIPE), NAME(EPROTO), NAME(ERANGE), NAME(ESPIPE), NAME(ESRCH),
        NAME(ETIMEDOUT), NAME(0),
#undef NAME
    };
    static char number[16];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].error == error) return known[i].name;
    snprintf(number, sizeof number, "%d", error);
    return number;
}
OWN const char *sigabbrev_np(int signal) {
    static char number[16];
    snprintf(number, sizeof number, "%d", signal);
    return number;
}
OWN int close_range(unsigned first, unsigned last, int flags) { return syscall(SYS_close_range, first, last, flags); }
OWN void closefrom(int first) { close_range(first, ~0u, 0); }
OWN int epoll_pwait2(int epoll, struct epoll_event *events, int count, const struct timespec *time, const sigset_t *mask) {
    return syscall(SYS_epoll_pwait2, epoll, events, count, time, mask, 8);
}
OWN int execveat(int dir, const char *path, char *const *words, char *const *variables, int flags) {
    return syscall(SYS_execveat, dir, path, words, variables, flags);
}
OWN ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return syscall(SYS_preadv2, fd, parts, count, offset, 0l, flags);
}
OWN ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return syscall(SYS_pwritev2, fd, parts, count, offset, 0l, flags);
}
OWN int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int first) {
    for (int fd = first; fd < 64; fd++) posix_spawn_file_actions_addclose(actions, fd);
    return 0;
}
OWN void (*sysv_signal(int number, void (*handler)(int)))(int) {
    struct sigaction new = {.sa_handler = handler, .sa_flags = SA_RESETHAND | SA_NODEFER}, old;
    return sigaction(number, &new, &old) ? SIG_ERR : old.sa_handler;
}
