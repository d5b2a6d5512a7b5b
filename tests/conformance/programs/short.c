// short CLIENT_PATH WAY: a server of short connections, and their client, which is started with
// FORDWAY_PATH=CLIENT_PATH. Each says how many bytes it sent, and how many of them by the kernel.
// WAY is how the server waits: sleep (in recv), poll or epoll. "self": both ends in one thread.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONNECTIONS = 20, ROUNDS = 2 };

static unsigned long all, by_kernel;

static void die(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

// Past the library, which adds its own.
static long kernel_info(int fd, struct tcp_info *info, socklen_t *length) {
    long result;
    register long r10 __asm__("r10") = (long)info;
    register long r8 __asm__("r8") = (long)length;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_getsockopt), "D"(fd), "S"(IPPROTO_TCP), "d"(TCP_INFO), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
}
static void leave(int fd) {
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    if (kernel_info(fd, &info, &length)) exit(2);
    by_kernel += info.tcpi_bytes_sent + info.tcpi_notsent_bytes;
    close(fd);
}

static void put(int fd, const char *what) {
    if (send(fd, what, 4, MSG_NOSIGNAL) != 4) die("send");
    all += 4;
}
static int get(int fd, int flags) {
    char bytes[4];
    ssize_t got = recv(fd, bytes, 4, flags);
    if (got < 0) die("recv");
    return got == 4;
}

static int reach(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    return fd;
}

static void ask(int port) {
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = reach(port);
        for (int round = 0; round < ROUNDS; round++) {
            put(fd, "ask");
            if (!get(fd, MSG_WAITALL)) die("no answer");
        }
        leave(fd);
    }
    printf("client: %lu bytes, %lu by the kernel\n", all, by_kernel);
}

static void await(int fd, const char *way) {
    if (!strcmp(way, "poll")) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        if (poll(&entry, 1, -1) != 1) die("poll");
    } else if (!strcmp(way, "epoll")) {
        struct epoll_event event = {.events = EPOLLIN};
        int epoll = epoll_create1(0);
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) || epoll_wait(epoll, &event, 1, -1) != 1) die("epoll");
        close(epoll);
    }
}

static void serve(int listener, const char *way) {
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
        for (;;) {
            await(fd, way);
            if (!get(fd, MSG_WAITALL)) break;
            put(fd, "yes");
        }
        leave(fd);
    }
}

int main(int count, char **arguments) {
    if (count != 3) return 9;
    if (arguments[1][0] == '@') {
        ask(atoi(arguments[1] + 1));
        return 0;
    }
    alarm(60);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 8) || getsockname(listener, (struct sockaddr *)&address, &length)) die("listen");
    if (!strcmp(arguments[2], "self")) {
        int near = reach(ntohs(address.sin_port)), far = accept(listener, NULL, NULL);
        put(near, "ask");
        if (!get(far, 0)) die("nothing came");
        put(far, "yes");
        if (!get(near, 0)) die("no answer");
        leave(near);
        leave(far);
        printf("both: %lu bytes, %lu by the kernel\n", all, by_kernel);
        return 0;
    }
    fflush(stdout);
    pid_t client = fork();
    if (client == 0) {
        char port[8];
        snprintf(port, sizeof port, "@%d", ntohs(address.sin_port));
        close(listener);
        setenv("FORDWAY_PATH", arguments[1], 1);
        execl("/proc/self/exe", "short", port, arguments[2], NULL);
        _exit(8);
    }
    serve(listener, arguments[2]);
    int status;
    if (waitpid(client, &status, 0) != client) die("waitpid");
    printf("server: %lu bytes, %lu by the kernel\n", all, by_kernel);
    return status != 0;
}
