// Memory: the library's regions are large and sparse. None of that is in a program's core dump,
// locked by its mlockall, in the way of its malloc, or more than its cgroup can give.
#include "try.h"
#include <sys/resource.h>
#include <sys/stat.h>

static void echoes_a(int fd) {
    for (int i = 0; i < 100; i++) {
        char byte = i, back;
        if (send(fd, &byte, 1, 0) != 1 || recv(fd, &back, 1, 0) != 1 || back != byte) die("echo");
    }
}
static void echoes_b(int fd) {
    char byte;
    while (recv(fd, &byte, 1, 0) == 1) send(fd, &byte, 1, 0);
    step();
}

// Large mappings that a core dump would have: "dd" of VmFlags leaves a mapping out (proc(5)).
static void dump_a(int fd) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512], name[512] = "";
    unsigned long kb = 0;
    int count = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            strcpy(name, line);
            kb = (to - from) / 1024;
        } else if (!strncmp(line, "VmFlags:", 8) && kb > 1 << 20 && !strstr(line, " dd")) {
            fprintf(stderr, "in a core dump: %s", name);
            count++;
        }
    }
    fclose(maps);
    say("%d large mappings in a core dump", count);
    close(fd);
    step();
}
static void dump_b(int fd) {
    echoes_b(fd);
}

// In kB, by a line of /proc/self/status.
static long status_kb(const char *what) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[512];
    long kb = -1;
    while (fgets(line, sizeof line, status)) {
        if (!strncmp(line, what, strlen(what))) kb = atol(line + strlen(what));
    }
    fclose(status);
    return kb;
}

// Links that are made when all that is mapped later is locked.
static void locked_a(int unused) {
    (void)unused;
    if (mlockall(MCL_FUTURE)) die("mlockall");
    int fd = meet();
    warm(fd, 0);
    echoes_a(fd);
    say("locked %s", status_kb("VmLck:") < 1 << 20 ? "little" : "much");
    say("resident %s", status_kb("VmRSS:") < 1 << 20 ? "little" : "much");
    close(fd);
    step();
}
static void locked_b(int unused) {
    (void)unused;
    int fd = meet();
    warm(fd, 1);
    echoes_b(fd);
}

// A program with a limited address space has it for itself.
static void space_a(int unused) {
    (void)unused;
    struct rlimit limit = {6ul << 30, 6ul << 30};
    if (setrlimit(RLIMIT_AS, &limit)) die("setrlimit");
    int fd = meet();
    echoes_a(fd);
    void *block = malloc(3ul << 30);
    say("malloc %s", block ? "ok" : "fails");
    echoes_a(fd);
    free(block);
    close(fd);
    step();
}
static void space_b(int unused) {
    (void)unused;
    echoes_b(meet());
}

// Slow readers: what is sent ahead to them is memory of the sender's cgroup.
enum { READERS = 40 };
static const char *const groups[][2] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
    {"/sys/fs/cgroup", "memory.max"},
};
static void write_to(const char *dir, const char *file, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) die(path);
    close(fd);
}
static void slow_a(int unused) {
    (void)unused;
    char dir[100] = "", pid[20];
    int version = 0;
    for (; version < 2; version++) {
        snprintf(dir, sizeof dir, "%s/fordway-test-%d", groups[version][0], getpid());
        char path[300];
        snprintf(path, sizeof path, "%s/%s", dir, groups[version][1]);
        if (!mkdir(dir, 0755) && !access(path, W_OK)) break;
        rmdir(dir);
    }
    if (version < 2) {
        write_to(dir, groups[version][1], "50331648");
        snprintf(pid, sizeof pid, "%d", getpid());
        write_to(dir, "cgroup.procs", pid);
    } else {
        fprintf(stderr, "NOT TRIED: no memory cgroup can be made\n");
    }
    int port, listener = listen_any(&port), fds[READERS];
    tell(port);
    for (int i = 0; i < READERS; i++) {
        fds[i] = accept(listener, NULL, NULL);
        warm(fds[i], 0);
    }
    for (int i = 0; i < READERS; i++) cram(fds[i]);
    say("alive");
    for (int i = 0; i < READERS; i++) close(fds[i]);
    if (version < 2) {
        write_to(groups[version][0], "cgroup.procs", pid);
        rmdir(dir);
    }
    step();
}
static void slow_b(int unused) {
    (void)unused;
    int port = hear(), fds[READERS];
    for (int i = 0; i < READERS; i++) {
        fds[i] = dial(port);
        warm(fds[i], 1);
    }
    step();
}

const struct test_case cases[] = {
    {"dump", WARM, dump_a, dump_b},
    {"locked", NONE, locked_a, locked_b},
    {"space", NONE, space_a, space_b},
    {"slow_readers", NONE, slow_a, slow_b},
    {0},
};
