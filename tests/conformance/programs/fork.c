// Processes: who may use a connection after a fork, and what children do to descriptors.
#include "try.h"
#include <spawn.h>

#define MB (1 << 20)
extern char **environ;

// The child goes on with an inherited connection, bytes unread in both rings.
static void child_goes_on_a(int fd) {
    step();
    recv_all(fd, 0, 1000, 1000);
    send_all(fd, 0, 30000, 5000);
    pid_t child = fork();
    if (child == 0) {
        recv_all(fd, 1000, 99000, 7000);
        send_all(fd, 30000, 70000, 7000);
        _exit(0);
    }
    close(fd);
    reap(child, "child");
    step();
}
static void child_goes_on_b(int fd) {
    send_all(fd, 0, 50000, 5000);
    step();
    recv_all(fd, 0, 30000, 100);
    send_all(fd, 50000, 50000, 5000);
    recv_all(fd, 30000, 70000, 9000);
    drained(fd);
    say("all there");
    step();
}
// B reads nothing and looks at nothing until the child has sent.
static void child_goes_on_late_b(int fd) {
    send_all(fd, 0, 50000, 5000);
    step();
    send_all(fd, 50000, 50000, 5000);
    recv_all(fd, 0, 100000, 9000);
    drained(fd);
    say("all there");
    step();
}

// Parent and child take turns on one connection.
static void both_a(int fd) {
    int turn[2][2];
    char byte = 0;
    if (pipe(turn[0]) || pipe(turn[1])) die("pipe");
    pid_t child = fork();
    int mine = child == 0;
    for (int i = 0; i < 20; i++) {
        if (i % 2 == mine) {
            recv_all(fd, i * 1000, 1000, 1000);
            send_all(fd, i * 1000, 1000, 300);
            if (write(turn[1 - mine][1], &byte, 1) != 1) die("turn");
        } else if (read(turn[mine][0], &byte, 1) != 1) die("turn");
    }
    if (child == 0) _exit(0);
    reap(child, "child");
    // The sole holder again.
    recv_all(fd, 20000, 100, 100);
    send_all(fd, 20000, 100, 100);
    step();
}
static void both_b(int fd) {
    for (int i = 0; i < 20; i++) {
        send_all(fd, i * 1000, 1000, 400);
        recv_all(fd, i * 1000, 1000, 1000);
    }
    send_all(fd, 20000, 100, 100);
    recv_all(fd, 20000, 100, 100);
    step();
    say("all there");
}

// The child never touches it: exits, execs, closes its copy, or is killed.
static void untouched_a(int fd) {
    for (int how = 0; how < 5; how++) {
        pid_t child = fork();
        if (child == 0) {
            if (how == 0) _exit(0);
            if (how == 1) exit(0);
            if (how == 2) close(fd), _exit(0);
            if (how == 3) execl("/bin/true", "true", NULL);
            kill(getpid(), SIGKILL);
        }
        send_all(fd, how * 1000, 1000, 1000);
        reap(child, "child");
        recv_all(fd, how * 1000, 1000, 1000);
    }
    step();
    // After the exec of an image that kept the socket open, the kernel has it.
    say("all there");
}
static void untouched_b(int fd) {
    for (int how = 0; how < 5; how++) {
        recv_all(fd, how * 1000, 1000, 1000);
        send_all(fd, how * 1000, 1000, 1000);
    }
    step();
    say("all there");
}
// As redis saves: the child lives on, the parent goes on, on the ring.
static void saving_a(int fd) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    int gate[2];
    if (pipe(gate)) die("pipe");
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(gate[1]);
        if (read(gate[0], &byte, 1) != 0) _exit(1);
        _exit(0);
    }
    must_ring(fd, "while a child lives");
    char byte;
    recv_all(fd, 0, 100, 100);
    close(gate[1]);
    reap(child, "child");
    must_ring(fd, "after it");
    (void)byte;
    step();
}
static void saving_b(int fd) {
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    send_all(fd, 0, 100, 100);
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}

// A child that execs a static image with the socket as its standard input and output.
static void exec_child_a(int fd) {
    step();
    recv_all(fd, 0, 1000, 1000);
    send_all(fd, 0, 30000, 5000);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd, 7);
        close(fd);
        execl(beside("plain-static"), "plain", "7", "1000", "99000", "30000", "70000", NULL);
        _exit(99);
    }
    close(fd);
    reap(child, "child");
    step();
}
// An exec that fails: the child goes on and ends; the parent keeps the connection.
static void failed_exec_a(int fd) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            execl("/nowhere", "nowhere", NULL);
            execlp("nowhere-at-all", "nowhere", NULL);
            _exit(7);
        }
        reap(child, "child");
    }
    pid_t child = fork();
    if (child == 0) {
        recv_all(fd, 0, 1000, 1000);
        send_all(fd, 0, 1000, 100);
        _exit(0);
    }
    reap(child, "child");
    send_all(fd, 1000, 1000, 100);
    recv_all(fd, 1000, 1000, 100);
    step();
}
static void failed_exec_b(int fd) {
    send_all(fd, 0, 1000, 1000);
    recv_all(fd, 0, 2000, 1000);
    send_all(fd, 1000, 1000, 1000);
    step();
    say("all there");
}

// A server that forks its workers first.
static void prefork_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            for (;;) {
                int fd = accept(listener, NULL, NULL);
                char kind;
                if (recv(fd, &kind, 1, 0) != 1) _exit(1);
                if (kind == 'q') _exit(0);
                warm(fd, 0);
                recv_all(fd, 0, 100000, 5000);
                must_ring(fd, "a worker");
                send_all(fd, 0, 100000, 5000);
                drained(fd);
                close(fd);
            }
        }
    }
    tell(port);
    for (int i = 0; i < 3; i++) reap(children[i], "worker");
}
static void prefork_b(int unused) {
    (void)unused;
    int port = hear();
    for (int i = 0; i < 12; i++) {
        int fd = dial(port);
        char byte;
        if (send(fd, "w", 1, 0) != 1) die("send");
        warm(fd, 1);
        send_all(fd, 0, 100000, 9000);
        if (recv(fd, &byte, 1, 0) != 1) die("receive");
        recv_all(fd, 0, 100000, 9000);
        close(fd);
    }
    for (int i = 0; i < 3; i++) {
        int fd = dial(port);
        if (send(fd, "q", 1, 0) != 1) die("send");
        char byte;
        recv(fd, &byte, 1, 0);
        close(fd);
    }
    say("served");
}
// A server that forks for each connection, after accept.
static void forking_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    for (int i = 0; i < 10; i++) {
        int fd = accept(listener, NULL, NULL);
        pid_t child = fork();
        if (child == 0) {
            close(listener);
            warm(fd, 0);
            recv_all(fd, 0, 100000, 5000);
            send_all(fd, 0, 100000, 5000);
            exit(0);
        }
        close(fd);
        reap(child, "child");
    }
}
static void forking_b(int unused) {
    (void)unused;
    int port = hear();
    for (int i = 0; i < 10; i++) {
        int fd = dial(port);
        warm(fd, 1);
        send_all(fd, 0, 100000, 9000);
        recv_all(fd, 0, 100000, 9000);
        drained(fd);
        close(fd);
    }
    say("served");
}

// daemon(3): the process that had the connection is gone, its grandchild has it.
static void daemon_a(int fd) {
    step();
    recv_all(fd, 0, 1000, 1000);
    send_all(fd, 0, 30000, 5000);
    if (fork()) _exit(0);
    setsid();
    if (fork()) _exit(0);
    usleep(50000);
    recv_all(fd, 1000, 99000, 7000);
    send_all(fd, 30000, 70000, 7000);
    step();
    _exit(0);
}
static void daemon_b(int fd) {
    send_all(fd, 0, 50000, 5000);
    step();
    recv_all(fd, 0, 30000, 100);
    send_all(fd, 50000, 50000, 5000);
    recv_all(fd, 30000, 70000, 9000);
    step();
    drained(fd);
    say("all there");
}

// Children in borrowed memory close and copy descriptors as they like.
static void vfork_a(int fd) {
    int ep = epoll_create1(0), listener_port, listener = listen_any(&listener_port);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    for (int i = 0; i < 3; i++) {
        pid_t child = vfork();
        if (child == 0) {
            if (i == 0) for (int other = 3; other < 64; other++) close(other);
            if (i == 1) close_range(3, ~0u, 0);
            if (i == 2) {
                close(fd);
                dup(2);
                dup2(2, ep);
                fcntl(2, F_DUPFD, listener);
                close(listener);
            }
            execl("/bin/true", "true", NULL);
            _exit(99);
        }
        reap(child, "vforked");
        must_ring(fd, "after a vfork");
        if (epoll_wait(ep, &event, 1, 5000) != 1 || event.data.u64 != 5) die("epoll");
        recv_all(fd, i, 1, 1);
    }
    tell(listener_port);
    int new = accept(listener, NULL, NULL);
    warm(new, 0);
    must_ring(new, "accepted after a vfork");
    step();
    say("all there");
}
static void vfork_b(int fd) {
    char byte;
    for (int i = 0; i < 3; i++) {
        if (recv(fd, &byte, 1, 0) != 1) die("receive");
        send_all(fd, i, 1, 1);
    }
    int new = dial(hear());
    warm(new, 1);
    if (recv(new, &byte, 1, 0) != 1) die("receive");
    step();
}
static void spawn_a(int fd) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    pid_t child;
    char *words[] = {"true", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, fd);
    posix_spawn_file_actions_adddup2(&actions, 2, 9);
    if (posix_spawn(&child, "/bin/true", &actions, NULL, words, environ)) die("spawn");
    reap(child, "spawned");
    must_ring(fd, "after a spawn");
    if (system("true")) die("system");
    must_ring(fd, "after system");
    FILE *pipe = popen("echo word", "r");
    char word[32] = "";
    if (!pipe || !fgets(word, sizeof word, pipe)) die("popen");
    say("%s%d", word, pclose(pipe));
    must_ring(fd, "after popen");
    step();
}
static void spawn_b(int fd) {
    recv_all(fd, 0, 0, 1);
    char bytes[3];
    if (recv(fd, bytes, 3, MSG_WAITALL) != 3) die("receive");
    step();
}
// The socket becomes a spawned static program's standard input.
static void spawn_with_a(int fd) {
    step();
    recv_all(fd, 0, 1000, 1000);
    send_all(fd, 0, 30000, 5000);
    pid_t child;
    char *words[] = {"plain", "7", "1000", "99000", "30000", "70000", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 7);
    if (posix_spawn(&child, beside("plain-static"), &actions, NULL, words, environ)) die("spawn");
    close(fd);
    reap(child, "spawned");
    step();
}

// Traffic in both directions while children come and go all the time.
static void *pump_thread(void *argument) {
    send_all(*(int *)argument, 0, 40 * MB, 20000);
    return NULL;
}
static void *forking_thread(void *stop) {
    while (!__atomic_load_n((int *)stop, __ATOMIC_SEQ_CST)) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        int status;
        waitpid(child, &status, 0);
        usleep(2000);
    }
    return NULL;
}
static void storm_a(int fd) {
    pthread_t sender, forker;
    int stop = 0;
    pthread_create(&sender, NULL, pump_thread, &fd);
    pthread_create(&forker, NULL, forking_thread, &stop);
    recv_all(fd, 0, 40 * MB, 30000);
    pthread_join(sender, NULL);
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(forker, NULL);
    step();
    say("all there");
}
static void storm_b(int fd) {
    pthread_t sender;
    pthread_create(&sender, NULL, pump_thread, &fd);
    recv_all(fd, 0, 40 * MB, 30000);
    pthread_join(sender, NULL);
    step();
    say("all there");
}

const struct test_case cases[] = {
    {"child_goes_on", WARM, child_goes_on_a, child_goes_on_b},
    {"child_goes_on_late", WARM, child_goes_on_a, child_goes_on_late_b},
    {"both", WARM, both_a, both_b},
    {"untouched", WARM, untouched_a, untouched_b},
    {"saving", WARM, saving_a, saving_b},
    {"exec_child", WARM, exec_child_a, child_goes_on_b},
    {"failed_exec", WARM, failed_exec_a, failed_exec_b},
    {"prefork", NONE, prefork_a, prefork_b},
    {"forking", NONE, forking_a, forking_b},
    {"daemon", WARM, daemon_a, daemon_b},
    {"vfork", WARM, vfork_a, vfork_b},
    {"spawn", WARM, spawn_a, spawn_b},
    {"spawn_with", WARM, spawn_with_a, child_goes_on_b},
    {"storm", WARM, storm_a, storm_b},
    {"storm_cold", COLD, storm_a, storm_b},
    {0},
};
