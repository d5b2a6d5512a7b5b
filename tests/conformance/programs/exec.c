// Images that take a process's place with a connection open: bytes lie unread in both
// rings, and none may be lost, doubled or late.
#include "try.h"
#include <spawn.h>
#include <sys/stat.h>

extern char **environ;

static char *words[] = {"plain", "7", "1000", "99000", "30000", "70000", NULL};
static char *bare[] = {NULL};

// What A does before, what the image goes on with, and what B sees of both.
static void before(int fd) {
    step();
    recv_all(fd, 0, 1000, 1000);
    send_all(fd, 0, 30000, 5000);
    if (dup2(fd, 7) != 7) die("dup2");
    close(fd);
}
static void goes_on_b(int fd) {
    send_all(fd, 0, 50000, 5000);
    step();
    recv_all(fd, 0, 30000, 100);
    send_all(fd, 50000, 50000, 5000);
    recv_all(fd, 30000, 70000, 9000);
    drained(fd);
    say("all there");
}

// Each way to exec.
static void execl_a(int fd) { before(fd); execl(beside("plain"), "plain", "7", "1000", "99000", "30000", "70000", NULL); die("exec"); }
static void execle_a(int fd) { before(fd); execle(beside("plain"), "plain", "7", "1000", "99000", "30000", "70000", NULL, environ); die("exec"); }
static void execlp_a(int fd) { before(fd); execlp(beside("plain"), "plain", "7", "1000", "99000", "30000", "70000", NULL); die("exec"); }
static void execv_a(int fd) { before(fd); execv(beside("plain"), words); die("exec"); }
static void execvp_a(int fd) { before(fd); execvp(beside("plain"), words); die("exec"); }
static void execve_a(int fd) { before(fd); execve(beside("plain"), words, environ); die("exec"); }
static void execvpe_a(int fd) { before(fd); execvpe(beside("plain"), words, environ); die("exec"); }
static void fexecve_a(int fd) { before(fd); fexecve(open(beside("plain"), O_RDONLY | O_CLOEXEC), words, environ); die("exec"); }
static void execveat_a(int fd) { before(fd); execveat(AT_FDCWD, beside("plain"), words, environ, 0); die("exec"); }
static void raw_execve_a(int fd) { before(fd); syscall(SYS_execve, beside("plain"), words, environ); die("exec"); }
static void raw_execveat_a(int fd) { before(fd); syscall(SYS_execveat, AT_FDCWD, beside("plain"), words, environ, 0); die("exec"); }
// Without a word of environment: the image is not preloaded.
static void wiped_a(int fd) { before(fd); execve(beside("plain"), words, bare); die("exec"); }
static void static_a(int fd) { before(fd); execv(beside("plain-static"), words); die("exec"); }
static void musl_a(int fd) {
    before(fd);
    // Where musl-gcc was missing when this was built, a static image stands in.
    if (access(beside("plain-musl"), X_OK)) fprintf(stderr, "skipped: no musl-gcc (apt install musl-tools); a static image stands in\n");
    else execv(beside("plain-musl"), words);
    execv(beside("plain-static"), words);
    die("exec");
}
// A program of another user's: the loader takes no LD_PRELOAD there.
static void setuid_a(int fd) {
    char path[64];
    before(fd);
    snprintf(path, sizeof path, "/tmp/fordway-try-setuid-%d", getpid());
    int from = open(beside("plain"), O_RDONLY), to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    if (from < 0 || to < 0 || copy_file_range(from, NULL, to, NULL, 1 << 28, 0) <= 0) die("copy");
    if (fchown(to, 65534, -1)) fprintf(stderr, "skipped: only root can make a program that is another user's\n");
    else if (fchmod(to, 04755)) die("chmod");
    close(from);
    close(to);
    int image = open(path, O_RDONLY | O_CLOEXEC | O_PATH);
    unlink(path);
    fexecve(image, words, environ);
    die("exec");
}
static void script_a(int fd) {
    before(fd);
    setenv("PLAIN", beside("plain"), 1);
    execlp("sh", "sh", "-c", "exec \"$PLAIN\" 7 1000 99000 30000 70000", NULL);
    die("exec");
}
// Of two numbers the exec closes the one by which the connection was made.
static void second_number_a(int fd) {
    step();
    recv_all(fd, 0, 1000, 1000);
    send_all(fd, 0, 30000, 5000);
    if (dup2(fd, 7) != 7 || fcntl(fd, F_SETFD, FD_CLOEXEC)) die("dup2, fcntl");
    execv(beside("plain"), words);
    die("exec");
}
// From another thread than the first, while a third one sleeps on the connection.
static void *sleeping_thread(void *fd) {
    char byte;
    if (recv((long)fd, &byte, 1, MSG_PEEK) < 0) die("receive");
    pause();
    return NULL;
}
static void *exec_thread(void *unused) {
    (void)unused;
    execv(beside("plain"), words);
    die("exec");
    return NULL;
}
static void thread_a(int fd) {
    pthread_t threads[2];
    before(fd);
    pthread_create(threads, NULL, sleeping_thread, (void *)7L);
    pthread_create(threads + 1, NULL, exec_thread, NULL);
    pause();
}

// The child's image and the parent use the connection in turn.
static void run(const char *image, char **list) {
    pid_t child = fork();
    if (child == 0) {
        execv(beside(image), list);
        _exit(99);
    }
    reap(child, image);
}
static void both_images_a(int fd) {
    dup2(fd, 7);
    char *first[] = {"plain", "7", "0", "1000", "0", "1000", NULL};
    char *third[] = {"plain", "7", "2000", "1000", "2000", "1000", NULL};
    run("plain", first);
    recv_all(fd, 1000, 1000, 300);
    send_all(fd, 1000, 1000, 300);
    run("plain-static", third);
    recv_all(fd, 3000, 1000, 300);
    send_all(fd, 3000, 1000, 300);
    step();
}
static void both_images_b(int fd) {
    for (int i = 0; i < 4; i++) {
        send_all(fd, i * 1000, 1000, 700);
        recv_all(fd, i * 1000, 1000, 700);
    }
    say("all there");
    step();
}
// A child of system() and of popen() writes to it.
static void system_a(int fd) {
    dup2(fd, 7);
    close(fd);
    must_ring(7, "before it");
    if (system("echo one >&7")) die("system");
    if (send(7, "two\n", 4, 0) != 4) die("send");
    step();
}
static void popen_a(int fd) {
    dup2(fd, 7);
    close(fd);
    must_ring(7, "before it");
    FILE *pipe = popen("cat >&7", "w");
    if (!pipe || fputs("one\n", pipe) < 0 || pclose(pipe)) die("popen");
    if (send(7, "two\n", 4, 0) != 4) die("send");
    step();
}
static void system_b(int fd) {
    char text[16] = "";
    if (recv(fd, text, 9, MSG_WAITALL) != 9) die("receive");
    say("%s", text);
    step();
}
// A file action puts the connection under descriptors 0 and 1 of a filter.
static void spawn_filter_a(int fd) {
    char *cat[] = {"cat", NULL};
    pid_t child;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    posix_spawn_file_actions_addclose(&actions, fd);
    if (posix_spawnp(&child, "cat", &actions, NULL, cat, environ)) die("spawn");
    close(fd);
    reap(child, "cat");
    step();
}
static void filter_b(int fd) {
    for (int i = 0; i < 20; i++) {
        send_all(fd, i * 3000, 3000, 1000);
        recv_all(fd, i * 3000, 3000, 3000);
    }
    shutdown(fd, SHUT_WR);
    drained(fd);
    say("filtered");
    step();
}
// File actions that have nothing to do with it leave it on the ring.
static void spawn_others_a(int fd) {
    char *nothing[] = {"true", NULL};
    pid_t child;
    posix_spawn_file_actions_t actions;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 9, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, 9, 10);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    if (posix_spawnp(&child, "true", &actions, NULL, nothing, environ)) die("spawn");
    reap(child, "true");
    must_ring(fd, "after it");
    step();
}
static void one_byte_b(int fd) {
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}
// A vfork child puts it under 0 and 1, as Python and others do.
static void vfork_filter_a(int fd) {
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        execlp("cat", "cat", NULL);
        _exit(99);
    }
    close(fd);
    reap(child, "cat");
    step();
}

// inetd: accept, the connection as 0 and 1, a filter.
static void inetd(int unused, int warmed) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    int fd = accept(listener, NULL, NULL);
    if (warmed) warm(fd, 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd, 0), dup2(fd, 1);
        closefrom(3);
        execlp("cat", "cat", NULL);
        _exit(99);
    }
    close(fd);
    reap(child, "cat");
    step();
}
static void inetd_a(int unused) { inetd(unused, 0); }
static void inetd_warm_a(int unused) { inetd(unused, 1); }
static void inetd_b(int unused) {
    (void)unused;
    filter_b(dial(hear()));
}
static void inetd_warm_b(int unused) {
    (void)unused;
    int fd = dial(hear());
    warm(fd, 1);
    filter_b(fd);
}
// A connection that is neither read nor written by A: the client waits for the image's word.
static void inetd_speaks_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    int fd = accept(listener, NULL, NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd, 0), dup2(fd, 1);
        execlp("sh", "sh", "-c", "echo hello; read word; echo bye $word", NULL);
        _exit(99);
    }
    close(fd);
    reap(child, "sh");
    step();
}
static void inetd_speaks_b(int unused) {
    (void)unused;
    int fd = dial(hear());
    char text[32] = "";
    if (recv(fd, text, 6, MSG_WAITALL) != 6 || send(fd, "friend\n", 7, 0) != 7) die("talk");
    if (recv(fd, text + 6, 11, MSG_WAITALL) != 11) die("receive");
    drained(fd);
    say("%s", text);
    step();
}

// The listener is what the image inherits: as systemd hands it over, or as descriptor 0.
static void serve(int listener) {
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) die("accept");
    warm(fd, 0);
    must_ring(fd, "by the new image");
    recv_all(fd, 0, 100000, 9000);
    send_all(fd, 0, 100000, 9000);
    step();
}
static void again(const char *name) {
    execl("/proc/self/exe", "exec", name, "A", NULL);
    die("exec");
}
static void activation_a(int unused) {
    (void)unused;
    const char *count = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    if (count) {
        if (atoi(count) != 1 || atoi(pid) != getpid()) die("LISTEN_FDS");
        serve(3);
        return;
    }
    int port, listener = listen_any(&port);
    char text[32];
    tell(port);
    if (listener != 3) dup2(listener, 3), close(listener);
    snprintf(text, sizeof text, "%d", getpid());
    setenv("LISTEN_FDS", "1", 1);
    setenv("LISTEN_PID", text, 1);
    again("activation");
}
static void listener_high_a(int unused) {
    (void)unused;
    if (getenv("STAGE")) {
        serve(40);
        return;
    }
    int port, listener = listen_any(&port);
    tell(port);
    dup2(listener, 40), close(listener);
    setenv("STAGE", "2", 1);
    again("listener_high");
}
// Bound by one image, it listens in the next (python's uvicorn --workers).
static void listens_later_a(int unused) {
    (void)unused;
    const int bound = 90;
    if (getenv("STAGE")) {
        if (listen(bound, 5)) die("listen");
        struct sockaddr_storage address;
        socklen_t length = sizeof address;
        if (getsockname(bound, (void *)&address, &length)) die("getsockname");
        tell(ntohs(((struct sockaddr_in *)&address)->sin_port));
        serve(bound);
        return;
    }
    struct sockaddr_storage address;
    socklen_t length = place(me, 0, &address);
    int fd = socket(address.ss_family, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (void *)&address, length)) die("bind");
    if (dup2(fd, bound) != bound) die("dup2");
    close(fd);
    setenv("STAGE", "2", 1);
    again("listens_later");
}
// A listener that came in a message.
static void listener_passed_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port), pair[2];
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = {0};
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    tell(port);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
    control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &listener, sizeof listener);
    if (sendmsg(pair[0], &message, 0) != 1 || recvmsg(pair[1], &message, 0) != 1) die("message");
    close(listener);
    memcpy(&listener, CMSG_DATA(&control.header), sizeof listener);
    serve(listener);
}
static void served_b(int unused) {
    (void)unused;
    int fd = dial(hear()), byte = 0;
    warm(fd, 1);
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    send_all(fd, 0, 100000, 9000);
    recv_all(fd, 0, 100000, 9000);
    say("served");
    step();
}
// The same image again, with a connection: the bytes go on, and new connections have rings.
static void reload_a(int unused) {
    (void)unused;
    if (getenv("STAGE")) {
        recv_all(7, 1000, 99000, 5000);
        send_all(7, 1000, 99000, 5000);
        int port, listener = listen_any(&port);
        tell(port);
        int fd = accept(listener, NULL, NULL);
        warm(fd, 0);
        must_ring(fd, "by the new image");
        step();
        return;
    }
    int fd = meet();
    warm(fd, 0);
    recv_all(fd, 0, 1000, 1000);
    send_all(fd, 0, 1000, 1000);
    dup2(fd, 7), close(fd);
    setenv("STAGE", "2", 1);
    again("reload");
}
static void reload_b(int unused) {
    (void)unused;
    int fd = meet();
    char byte;
    warm(fd, 1);
    send_all(fd, 0, 100000, 5000);
    recv_all(fd, 0, 100000, 5000);
    int other = dial(hear());
    warm(other, 1);
    if (recv(other, &byte, 1, 0) != 1) die("receive");
    say("all there");
    step();
}

// Close-on-exec: the peer reads what was sent, then the end.
static void cloexec_a(int fd) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    send_all(fd, 0, 30000, 5000);
    execlp("true", "true", NULL);
    die("exec");
}
static void range_cloexec_a(int fd) {
    if (close_range(3, ~0u, CLOSE_RANGE_CLOEXEC)) die("close_range");
    send_all(fd, 0, 30000, 5000);
    say("open %d", fcntl(fd, F_GETFD));
    execlp("true", "true", NULL);
    die("exec");
}
static void cloexec_b(int fd) {
    recv_all(fd, 0, 30000, 9000);
    drained(fd);
    say("the end");
}
// A failed exec takes nothing away.
static void failed_a(int fd) {
    for (int i = 0; i < 3; i++) {
        recv_all(fd, i * 1000, 1000, 1000);
        send_all(fd, i * 1000, 1000, 1000);
        say("exec %s", outcome(execl("/nowhere", "nowhere", NULL)));
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    say("exec %s", outcome(execl("/dev/null", "null", NULL)));
    recv_all(fd, 3000, 1000, 1000);
    send_all(fd, 3000, 1000, 1000);
    step();
}

const struct test_case cases[] = {
    {"execl", WARM, execl_a, goes_on_b},
    {"execle", WARM, execle_a, goes_on_b},
    {"execlp", WARM, execlp_a, goes_on_b},
    {"execv", WARM, execv_a, goes_on_b},
    {"execvp", WARM, execvp_a, goes_on_b},
    {"execve", WARM, execve_a, goes_on_b},
    {"execvpe", WARM, execvpe_a, goes_on_b},
    {"fexecve", WARM, fexecve_a, goes_on_b},
    {"execveat", WARM, execveat_a, goes_on_b},
    {"raw_execve", WARM, raw_execve_a, goes_on_b},
    {"raw_execveat", WARM, raw_execveat_a, goes_on_b},
    {"wiped", WARM, wiped_a, goes_on_b},
    {"static", WARM, static_a, goes_on_b},
    {"static_cold", COLD, static_a, goes_on_b},
    {"musl", WARM, musl_a, goes_on_b},
    {"setuid", WARM, setuid_a, goes_on_b},
    {"script", WARM, script_a, goes_on_b},
    {"second_number", WARM, second_number_a, goes_on_b},
    {"thread", WARM, thread_a, goes_on_b},
    {"both_images", WARM, both_images_a, both_images_b},
    {"system", WARM, system_a, system_b},
    {"popen", WARM, popen_a, system_b},
    {"spawn_filter", WARM, spawn_filter_a, filter_b},
    {"spawn_others", WARM, spawn_others_a, one_byte_b},
    {"vfork_filter", WARM, vfork_filter_a, filter_b},
    {"inetd", NONE, inetd_a, inetd_b},
    {"inetd_warm", NONE, inetd_warm_a, inetd_warm_b},
    {"inetd_speaks", NONE, inetd_speaks_a, inetd_speaks_b},
    {"activation", NONE, activation_a, served_b},
    {"listener_high", NONE, listener_high_a, served_b},
    {"listens_later", NONE, listens_later_a, served_b},
    {"listener_passed", NONE, listener_passed_a, served_b},
    {"reload", NONE, reload_a, reload_b},
    {"cloexec", WARM, cloexec_a, cloexec_b},
    {"range_cloexec", WARM, range_cloexec_a, cloexec_b},
    {"failed", WARM, failed_a, both_images_b},
    {0},
};
