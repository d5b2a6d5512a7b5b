// Moving bytes: every call that sends or receives, and the move in mid-stream.
#include "try.h"

#define MB (1 << 20)

// Both directions at once, pieces of all sizes, by non-blocking calls and poll.
static void pump(int fd, uint64_t count) {
    static char out[100000], in[100000];
    uint64_t sent = 0, got = 0;
    nonblocking(fd, 1);
    while (sent < count || got < count) {
        int shown, want = (got < count ? POLLIN : 0) | (sent < count ? POLLOUT : 0);
        if (pollx(fd, want, 10000, &shown) != 1) die("pump: poll at %lu sent, %lu got", sent, got);
        if (shown & POLLIN) {
            size_t piece = 1 + chance(sizeof in);
            ssize_t now = recv(fd, in, piece < count - got ? piece : count - got, 0);
            if (now == 0 || (now < 0 && errno != EAGAIN)) die("pump: receive");
            if (now > 0) check(in, got, now), got += now;
        }
        if (shown & POLLOUT) {
            size_t piece = 1 + chance(chance(4) ? 3000 : sizeof out);
            if (piece > count - sent) piece = count - sent;
            fill(out, sent, piece);
            ssize_t now = send(fd, out, piece, 0);
            if (now == 0 || (now < 0 && errno != EAGAIN)) die("pump: send");
            if (now > 0) sent += now;
        }
    }
    nonblocking(fd, 0);
}

static void midstream(int fd) {
    // The kernel's queues are filled in both directions before anybody reads.
    static char out[4096];
    uint64_t sent = 0, got = 0;
    nonblocking(fd, 1);
    while (sent < 300000) {
        fill(out, sent, sizeof out);
        ssize_t now = send(fd, out, sizeof out, 0);
        if (now <= 0) break;
        sent += now;
    }
    step();
    tell(sent);
    uint64_t theirs = hear();
    nonblocking(fd, 0);
    while (got < theirs) {
        static char in[5000];
        ssize_t now = recv(fd, in, sizeof in < theirs - got ? sizeof in : theirs - got, 0);
        if (now <= 0) die("midstream: receive");
        check(in, got, now);
        got += now;
        // One byte against each piece that was read, so that calls of both kinds alternate.
        fill(out, sent, 1);
        if (send(fd, out, 1, 0) != 1) die("midstream: send");
        sent++;
    }
    step();
    tell(sent);
    theirs = hear();
    recv_all(fd, got, theirs - got, 777);
    step();
    pump(fd, 8 * MB);
    must_ring(fd, "after the move");
    char last;
    if (recv(fd, &last, 1, 0) != 1) die("last");
    say("all there");
}

static void midstream_threads_sender(int fd) { send_all(fd, 0, 24 * MB, 60000); }
static void *sender_thread(void *fd) {
    midstream_threads_sender(*(int *)fd);
    return NULL;
}
// A thread blocks in receive while another sends on the same socket, from the first byte on.
static void both_threads(int fd) {
    pthread_t thread;
    pthread_create(&thread, NULL, sender_thread, &fd);
    recv_all(fd, 0, 24 * MB, 50000);
    pthread_join(thread, NULL);
    say("all there");
}

static void *reader_thread(void *fd) {
    for (int i = 0; i < 200; i++) {
        char byte;
        if (recv(*(int *)fd, &byte, 1, 0) != 1) die("reader");
        if (byte != (char)i) die("reader: %d instead of %d", byte, i);
    }
    return NULL;
}
// The reader sleeps in the kernel when the other thread's sends bring the channel.
static void reader_first(int fd) {
    pthread_t thread;
    pthread_create(&thread, NULL, reader_thread, &fd);
    usleep(20000);
    for (int i = 0; i < 200; i++) {
        char byte = i;
        if (send(fd, &byte, 1, 0) != 1) die("send");
        if (i > 100) usleep(100);
    }
    pthread_join(thread, NULL);
    step();
    say("all there");
}

static void pingpong_a(int fd) {
    uint64_t at = 0;
    for (int i = 0; i < 300; i++) {
        size_t size = i < 100 ? 1 + i : i * 700;
        recv_all(fd, at, size, 1 << 17);
        send_all(fd, at, size, 1 << 20);
        at += size;
    }
    say("done");
}
static void pingpong_b(int fd) {
    uint64_t at = 0;
    for (int i = 0; i < 300; i++) {
        size_t size = i < 100 ? 1 + i : i * 700;
        send_all(fd, at, size, 1 << 20);
        recv_all(fd, at, size, 1 << 20);
        at += size;
    }
    say("done");
}

// The last bytes before a close come with the first sends: upgraded or not, all arrive.
static void short_lived_a(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    for (int i = 0; i < 300; i++) {
        int fd = accept(listener, NULL, NULL);
        char buffer[64];
        for (int j = 0; j <= i % 12; j++) {
            if (recv(fd, buffer, 10, MSG_WAITALL) != 10 || memcmp(buffer, "0123456789", 10)) die("connection %d, message %d", i, j);
            if (send(fd, "abc", 3, 0) != 3) die("send");
        }
        drained(fd);
        close(fd);
    }
    say("all there");
}
static void short_lived_b(int unused) {
    (void)unused;
    int port = hear();
    for (int i = 0; i < 300; i++) {
        int fd = dial(port);
        char buffer[64];
        for (int j = 0; j <= i % 12; j++) {
            if (send(fd, "0123456789", 10, 0) != 10) die("send");
            if (recv(fd, buffer, 3, MSG_WAITALL) != 3 || memcmp(buffer, "abc", 3)) die("answer");
        }
        close(fd);
    }
    say("all there");
}

static void connect_twice_a(int fd) {
    char buffer[8];
    if (recv(fd, buffer, 5, MSG_WAITALL) != 5) die("receive");
    say("%.5s", buffer);
    warm(fd, 0);
    must_ring(fd, "connected twice");
    step();
}
static void connect_twice_b(int fd) {
    (void)fd;
    int port = hear();
    struct sockaddr_storage address;
    socklen_t length = place('A', port, &address);
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int result = connect(fd, (void *)&address, length), shown;
    say("connect %s", result < 0 && errno == EINPROGRESS ? "EINPROGRESS" : outcome(result));
    say("poll %d", pollx(fd, POLLOUT, 2000, &shown));
    // hiredis asks in this way whether it is connected.
    say("connect %s", outcome(connect(fd, (void *)&address, length)));
    say("connect %s", outcome(connect(fd, (void *)&address, length)));
    nonblocking(fd, 0);
    if (send(fd, "hello", 5, 0) != 5) die("send");
    warm(fd, 1);
    say("connect %s", outcome(connect(fd, (void *)&address, length)));
    char byte;
    if (recv(fd, &byte, 1, 0) != 1) die("receive");
    step();
}
static void connect_twice_accept(int unused) {
    (void)unused;
    int port, listener = listen_any(&port);
    tell(port);
    connect_twice_a(accept(listener, NULL, NULL));
}

static void flags_a(int fd) {
    if (send(fd, "0123456789", 10, 0) != 10) die("send");
    step();
    step(); // B has read all
    if (send(fd, "abc", 3, 0) != 3) die("send");
    step();
    usleep(30000);
    if (send(fd, "defgh", 5, MSG_MORE) != 5) die("send");
    usleep(30000);
    if (send(fd, "ij", 2, 0) != 2) die("send");
    step();
    say("zero %s", outcome(send(fd, "", 0, 0)));
    say("zero %s", outcome(write(fd, "", 0)));
    step();
    if (send(fd, "xyz", 3, 0) != 3) die("send");
    close(fd);
    step();
}
static void flags_b(int fd) {
    char buffer[64] = "";
    step();
    settle(fd, 10);
    say("peek %s %.4s", outcome(recv(fd, buffer, 4, MSG_PEEK)), buffer);
    say("peek %s %.10s", outcome(recv(fd, buffer, 64, MSG_PEEK)), buffer);
    say("read %s %.3s", outcome(recv(fd, buffer, 3, 0)), buffer);
    say("peek %s %.7s", outcome(recv(fd, buffer, 64, MSG_PEEK | MSG_DONTWAIT)), buffer);
    say("trunc %s", outcome(recv(fd, buffer, 2, MSG_TRUNC)));
    say("trunc %s", outcome(recv(fd, NULL, 1, MSG_TRUNC)));
    say("read %s %.4s", outcome(recv(fd, buffer, 64, 0)), buffer);
    say("dontwait %s", outcome(recv(fd, buffer, 64, MSG_DONTWAIT)));
    say("dontwait peek %s", outcome(recv(fd, buffer, 64, MSG_DONTWAIT | MSG_PEEK)));
    say("zero read %s", outcome(read(fd, buffer, 0)));
    say("zero recv %s", outcome(recv(fd, buffer, 0, MSG_DONTWAIT)));
    step();
    step();
    memset(buffer, 0, sizeof buffer);
    say("waitall %s %s", outcome(recv(fd, buffer, 10, MSG_WAITALL)), buffer);
    step();
    say("zero recv %s", outcome(recv(fd, buffer, 0, MSG_DONTWAIT)));
    memset(buffer, 0, sizeof buffer);
    step();
    say("waitall %s %s", outcome(recv(fd, buffer, 10, MSG_WAITALL)), buffer);
    say("waitall %s", outcome(recv(fd, buffer, 10, MSG_WAITALL)));
    say("trunc %s", outcome(recv(fd, buffer, 10, MSG_TRUNC)));
    say("zero recv %s", outcome(recv(fd, buffer, 0, 0)));
    step();
}

static void peek_waitall_a(int fd) {
    if (send(fd, "abc", 3, 0) != 3) die("send");
    step();
    usleep(30000);
    if (send(fd, "defgh", 5, 0) != 5) die("send");
    step();
}
static void peek_waitall_b(int fd) {
    char buffer[64] = "";
    step();
    say("peek all %s %.8s", outcome(recv(fd, buffer, 8, MSG_PEEK | MSG_WAITALL)), buffer);
    say("read all %s %.8s", outcome(recv(fd, buffer, 8, MSG_WAITALL)), buffer);
    step();
}

static void set_timeout(int fd, int option, int ms) {
    struct timeval time = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    if (setsockopt(fd, SOL_SOCKET, option, &time, sizeof time)) die("set a time-out");
}
static void timeouts_a(int fd) {
    char buffer[64];
    set_timeout(fd, SO_RCVTIMEO, 150);
    uint64_t start = now_ms();
    say("recv %s", outcome(recv(fd, buffer, 64, 0)));
    uint64_t took = now_ms() - start;
    if (took < 140 || took > 1000) die("time-out after %lu ms", took);
    say("waitall %s", outcome(recv(fd, buffer, 64, MSG_WAITALL)));
    step();
    step();
    say("waitall %s", outcome(recv(fd, buffer, 64, MSG_WAITALL)));
    set_timeout(fd, SO_RCVTIMEO, 0);
    step();
    say("recv %s", outcome(recv(fd, buffer, 64, 0)));
    set_timeout(fd, SO_SNDTIMEO, 150);
    static char block[1 << 20];
    ssize_t sent, rounds = 0;
    start = now_ms();
    while ((sent = send(fd, block, sizeof block, 0)) > 0 && rounds < 100) rounds++, start = now_ms();
    say("send %s, some first %d", outcome(sent), rounds > 0);
    took = now_ms() - start;
    if (took < 140 || took > 1000) die("time-out after %lu ms", took);
    step();
}
static void timeouts_b(int fd) {
    step();
    if (send(fd, "abc", 3, 0) != 3) die("send");
    step();
    step();
    usleep(200000);
    if (send(fd, "de", 2, 0) != 2) die("send");
    step();
}

static void vectors_a(int fd) {
    struct iovec parts[5] = {{"ab", 2}, {"", 0}, {"cde", 3}, {"fghij", 5}, {"k", 1}};
    say("writev %s", outcome(writev(fd, parts, 5)));
    say("writev none %s", outcome(writev(fd, parts, 0)));
    volatile int odd = -1;
    say("writev -1 %s", outcome(writev(fd, parts, odd)));
    odd = 2000;
    say("writev 2000 %s", outcome(writev(fd, parts, odd)));
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    say("sendmsg %s", outcome(sendmsg(fd, &message, 0)));
    struct mmsghdr several[3] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = 2}}, {.msg_hdr = {.msg_iov = parts + 4, .msg_iovlen = 1}}};
    say("sendmmsg %s", outcome(sendmmsg(fd, several, 3, 0)));
    say("%u %u %u", several[0].msg_len, several[1].msg_len, several[2].msg_len);
    struct sockaddr_in nowhere = {.sin_family = AF_INET, .sin_port = htons(9)};
    say("sendto %s", outcome(sendto(fd, "lm", 2, 0, (void *)&nowhere, sizeof nowhere)));
    step();
    step();
    static char big[1 << 20];
    fill(big, 0, sizeof big);
    struct iovec pieces[64];
    size_t at = 0;
    for (int i = 0; i < 64; i++) pieces[i] = (struct iovec){big + at, i < 63 ? 1000 + i * 37 : 0}, at += pieces[i].iov_len;
    size_t done = 0;
    while (done < at) {
        struct iovec rest[64];
        int count = 0;
        size_t skip = done;
        for (int i = 0; i < 64; i++) {
            if (skip >= pieces[i].iov_len) { skip -= pieces[i].iov_len; continue; }
            rest[count++] = (struct iovec){(char *)pieces[i].iov_base + skip, pieces[i].iov_len - skip};
            skip = 0;
        }
        ssize_t now = writev(fd, rest, count);
        if (now <= 0) die("writev");
        done += now;
    }
    tell(at);
    step();
}
static void vectors_b(int fd) {
    step();
    char a[4] = "", b[8] = "", c[64] = "";
    settle(fd, 29);
    struct iovec parts[3] = {{a, 3}, {b, 7}, {c, 63}};
    say("readv %s %s %s", outcome(readv(fd, parts, 2)), a, b);
    struct sockaddr_storage from;
    char control[256];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3, .msg_name = &from, .msg_namelen = sizeof from, .msg_control = control, .msg_controllen = sizeof control, .msg_flags = -1};
    memset(a, 0, sizeof a), memset(b, 0, sizeof b);
    say("recvmsg %s %s %s %s", outcome(recvmsg(fd, &message, 0)), a, b, c);
    say("%d %zu %x", message.msg_namelen, message.msg_controllen, message.msg_flags);
    step();
    uint64_t total = hear();
    static char big[1 << 20];
    for (size_t done = 0; done < total;) {
        struct iovec in[3] = {{big + done, 7}, {big + done + 7, 1}, {big + done + 8, 4000}};
        ssize_t now = readv(fd, in, 3);
        if (now <= 0) die("readv");
        done += now;
    }
    check(big, 0, total);
    step();
    say("checked");
}

static void recvmmsg_a(int fd) {
    if (send(fd, "0123456789", 10, 0) != 10) die("send");
    step();
    step();
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    char buffer[8];
    say("recvfrom %s", outcome(recvfrom(fd, buffer, 8, 0, (void *)&from, &length)));
    say("length %d", length);
    length = sizeof from;
    say("getpeername %s %d", outcome(getpeername(fd, (void *)&from, &length)), length);
    step();
}
static void recvmmsg_b(int fd) {
    step();
    settle(fd, 10);
    char a[4] = "", b[4] = "", c[8] = "", d[8] = "";
    struct iovec parts[4] = {{a, 3}, {b, 3}, {c, 8}, {d, 8}};
    struct mmsghdr several[4];
    memset(several, 0, sizeof several);
    for (int i = 0; i < 4; i++) several[i].msg_hdr.msg_iov = parts + i, several[i].msg_hdr.msg_iovlen = 1;
    say("recvmmsg %s %s %s %.4s", outcome(recvmmsg(fd, several, 4, MSG_DONTWAIT, NULL)), a, b, c);
    say("%u %u %u", several[0].msg_len, several[1].msg_len, several[2].msg_len);
    say("recvmmsg %s", outcome(recvmmsg(fd, several, 4, MSG_DONTWAIT, NULL)));
    step();
    if (send(fd, "abc", 3, 0) != 3) die("send");
    step();
}

static int file_with(size_t count) {
    FILE *file = tmpfile();
    char *content = malloc(count);
    fill(content, 0, count);
    if (fwrite(content, 1, count, file) != count || fflush(file)) die("write a file");
    free(content);
    return fileno(file);
}
static void sendfile_a(int fd) {
    int file = file_with(3 * MB);
    off_t offset = 1000;
    say("sendfile %s", outcome(sendfile(fd, file, &offset, 5000)));
    say("at %ld, position %d", (long)offset, lseek(file, 0, SEEK_CUR) == 3 * MB);
    lseek(file, 6000, SEEK_SET);
    say("sendfile %s", outcome(sendfile(fd, file, NULL, 4000)));
    say("position %ld", (long)lseek(file, 0, SEEK_CUR));
    offset = 3 * MB - 10;
    say("over the end %s", outcome(sendfile(fd, file, &offset, 100)));
    say("at %ld", (long)offset);
    say("at the end %s", outcome(sendfile(fd, file, &offset, 100)));
    say("bad %s", outcome(sendfile(fd, -1, &offset, 100)));
    offset = 0;
    while (offset < 3 * MB) {
        ssize_t now = sendfile(fd, file, &offset, 3 * MB - offset);
        if (now <= 0) die("sendfile at %ld", (long)offset);
    }
    step();
    // Non-blocking, mixed with sends.
    nonblocking(fd, 1);
    offset = 0;
    while (offset < 2 * MB) {
        ssize_t now = sendfile(fd, file, &offset, 2 * MB - offset);
        if (now > 0) continue;
        if (now == 0 || errno != EAGAIN) die("sendfile at %ld", (long)offset);
        int shown;
        if (pollx(fd, POLLOUT, 5000, &shown) != 1) die("poll");
    }
    nonblocking(fd, 0);
    static char block[4096];
    for (int i = 0; i < 100; i++) {
        fill(block, i * 8192, 4096);
        if (send(fd, block, 4096, MSG_MORE) != 4096) die("send");
        offset = i * 8192 + 4096;
        for (size_t left = 4096; left;) {
            ssize_t now = sendfile(fd, file, &offset, left);
            if (now <= 0) die("sendfile at %ld", (long)offset);
            left -= now;
        }
    }
    shutdown(fd, SHUT_WR);
    step();
}
static void sendfile_b(int fd) {
    recv_all(fd, 1000, 5000, 5000);
    recv_all(fd, 6000, 4000, 4000);
    recv_all(fd, 3 * MB - 10, 10, 10);
    recv_all(fd, 0, 3 * MB, 70000);
    step();
    recv_all(fd, 0, 2 * MB, 3000);
    recv_all(fd, 0, 8192 * 100, 30000);
    drained(fd);
    step();
}
// From the first call on, before there is a channel, and again while it comes.
static void sendfile_cold_a(int fd) {
    int file = file_with(4 * MB);
    for (int round = 0; round < 40; round++) {
        char byte;
        off_t offset = round * 100000;
        while (offset < (round + 1) * 100000) {
            ssize_t now = sendfile(fd, file, &offset, (round + 1) * 100000 - offset);
            if (now <= 0) die("sendfile");
        }
        if (recv(fd, &byte, 1, 0) != 1) die("receive");
    }
    step();
    say("done");
}
static void sendfile_cold_b(int fd) {
    for (int round = 0; round < 40; round++) {
        recv_all(fd, round * 100000, 100000, 20000);
        if (send(fd, "x", 1, 0) != 1) die("send");
    }
    step();
}

static int unread(int fd) {
    int count = -1;
    if (ioctl(fd, FIONREAD, &count)) die("FIONREAD");
    return count;
}
static void fionread_a(int fd) {
    say("%d", unread(fd));
    step();
    step();
    settle(fd, 100);
    say("%d", unread(fd));
    char buffer[100];
    if (recv(fd, buffer, 30, 0) != 30) die("receive");
    say("%d", unread(fd));
    if (recv(fd, buffer, 30, MSG_PEEK) != 30) die("receive");
    say("%d", unread(fd));
    if (recv(fd, buffer, 100, 0) != 70) die("receive");
    say("%d", unread(fd));
    step();
    step();
    settle(fd, 10);
    say("closed %d", unread(fd));
    step();
}
static void fionread_b(int fd) {
    char buffer[100] = {0};
    step();
    if (send(fd, buffer, 100, 0) != 100) die("send");
    step();
    step();
    int count = -1;
    for (int i = 0; i < 100 && count; i++) {
        if (ioctl(fd, TIOCOUTQ, &count)) die("SIOCOUTQ");
        if (count) usleep(1000);
    }
    say("out %d", count);
    if (send(fd, buffer, 10, 0) != 10) die("send");
    close(fd);
    step();
    step();
}
// FIONREAD with bytes in the kernel and in the ring at once, and exact reads of what it says.
static void fionread_move_a(int fd) {
    uint64_t got = 0;
    static char buffer[1 << 20];
    while (got < 400000) {
        int count = unread(fd), shown;
        if (count == 0) {
            if (pollx(fd, POLLIN, 5000, &shown) != 1) die("poll");
            continue;
        }
        ssize_t now = recv(fd, buffer, count, MSG_DONTWAIT | MSG_WAITALL);
        if (now <= 0) die("FIONREAD said %d: %s", count, outcome(now));
        check(buffer, got, now);
        got += now;
        if (send(fd, "x", 1, 0) != 1) die("send");
    }
    say("all");
    step();
}
static void fionread_move_b(int fd) {
    send_all(fd, 0, 400000, 1000);
    char buffer[1000];
    step();
    while (recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) > 0) {}
}

static void lowat_a(int fd) {
    int low = 10, shown;
    char buffer[64];
    say("set %s", outcome(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low)));
    step();
    step();
    say("poll %d", pollx(fd, POLLIN, 50, &shown));
    step();
    say("poll %d", pollx(fd, POLLIN, 2000, &shown));
    say("recv %s", outcome(recv(fd, buffer, 64, 0)));
    step();
}
static void lowat_b(int fd) {
    step();
    if (send(fd, "12345", 5, 0) != 5) die("send");
    step();
    step();
    if (send(fd, "1234567", 7, 0) != 7) die("send");
    step();
}

static void pump_both(int fd) {
    pump(fd, 30 * MB);
    must_ring(fd, "pump");
    step();
    say("done");
}

// What the kernel holds back for more to come must not wait once the ring goes on.
static void corked_a(int fd) {
    int on = 1;
    uint64_t sent = 0, before;
    if (setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on)) die("TCP_CORK");
    step();
    for (int round = 0;; round++) {
        char block[100];
        before = kernel_sent(fd);
        fill(block, sent, sizeof block);
        if (send(fd, block, sizeof block, 0) != sizeof block) die("send");
        sent += sizeof block;
        if (by_kernel ? round == 50 : kernel_sent(fd) == before) break;
        if (round > 2000) die("never on the ring");
        usleep(1000);
    }
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length)) die("TCP_INFO");
    if (!by_kernel && info.tcpi_notsent_bytes) die("%u bytes are held back", info.tcpi_notsent_bytes);
    tell(sent);
    step();
}
static void corked_b(int fd) {
    char block[1000];
    uint64_t got = 0;
    int told = 0;
    step();
    while (!told) {
        ssize_t now = recv(fd, block, sizeof block, MSG_DONTWAIT);
        if (now > 0) {
            check(block, got, now);
            got += now;
        }
        told = pollx(0, POLLIN, 1, &told);
    }
    recv_all(fd, got, hear() - got, 1000);
    say("all there");
    step();
}

// What the program has set it reads back, whoever keeps it; a cork holds nothing back for long.
static void corks_a(int fd) {
    char block[100];
    for (int round = 0; round < 4; round++) {
        for (int on = 1; on >= 0; on--) {
            int now = -1;
            socklen_t length = sizeof now;
            if (setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on)) die("TCP_CORK");
            if (getsockopt(fd, IPPROTO_TCP, TCP_CORK, &now, &length)) die("TCP_CORK?");
            say("%d: set %d, is %d", round, on, now);
            if (on) {
                fill(block, round * sizeof block, sizeof block);
                if (send(fd, block, sizeof block, 0) != sizeof block) die("send");
            }
        }
        step();
    }
    say("no value %s", outcome(setsockopt(fd, IPPROTO_TCP, TCP_CORK, NULL, sizeof(int))));
    int short_one = 1;
    say("short value %s", outcome(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &short_one, 1)));
}
static void corks_b(int fd) {
    for (int round = 0; round < 4; round++) {
        recv_all(fd, round * 100, 100, 100);
        step();
    }
}

// What more is said to follow comes all the same, and before what follows: bytes, the end.
static void more_a(int fd) {
    char block[300];
    uint64_t sent = 0;
    for (int round = 0; round < 4; round++) {
        fill(block, sent, sizeof block);
        if (send(fd, block, 100, MSG_MORE) != 100) die("send");
        if (round % 2) {
            if (write(fd, block + 100, 100) != 100) die("write");
        } else {
            step(); // B has the first part
            if (send(fd, block + 100, 100, 0) != 100) die("send");
        }
        struct iovec part = {block + 200, 100};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (sendmsg(fd, &message, MSG_MORE) != 100) die("sendmsg");
        sent += sizeof block;
        if (round == 3) shutdown(fd, SHUT_WR);
        step();
    }
}
static void more_b(int fd) {
    char byte;
    for (int round = 0; round < 4; round++) {
        int first = round % 2 ? 0 : 100;
        recv_all(fd, round * 300, first, 50);
        if (first) step();
        recv_all(fd, round * 300 + first, 300 - first, 50);
        if (round == 3) say("then %s", outcome(recv(fd, &byte, 1, 0)));
        step();
    }
}

// Both send as much as a socket takes at least before they read, in pieces that fill a ring exactly; one kind of program
// asks for room once a send found none, the other one before each send.
enum { PIECES = 17 };
static void await_room(int fd, int piece) {
    int shown;
    if (pollx(fd, POLLOUT, 10000, &shown) != 1) die("no room in piece %d", piece);
}
static void both_ahead(int fd, int asks_first) {
    char piece[4096];
    nonblocking(fd, 1);
    for (int i = 0; i < PIECES; i++) {
        fill(piece, i * sizeof piece, sizeof piece);
        for (size_t done = 0; done < sizeof piece;) {
            if (asks_first) await_room(fd, i);
            long count = send(fd, piece + done, sizeof piece - done, 0);
            if (count < 0 && errno != EAGAIN) die("send");
            if (count < 0) await_room(fd, i);
            if (count > 0) done += count;
        }
    }
    step();
    nonblocking(fd, 0);
    recv_all(fd, 0, PIECES * sizeof piece, 3000);
    must_ring(fd, "behind them");
    if (recv(fd, piece, 1, 0) != 1) die("receive");
    step();
}
static void both_first(int fd) { both_ahead(fd, 0); }
static void both_asking(int fd) { both_ahead(fd, 1); }

const struct test_case cases[] = {
    {"both_first", WARM, both_first, both_first},
    {"both_asking", WARM, both_asking, both_asking},
    {"corked", COLD, corked_a, corked_b},
    {"corks", WARM, corks_a, corks_b},
    {"more", WARM, more_a, more_b},
    {"midstream", COLD, midstream, midstream},
    {"both_threads", COLD, both_threads, both_threads},
    {"reader_first", COLD, reader_first, reader_first},
    {"pingpong", COLD, pingpong_a, pingpong_b},
    {"pump", WARM, pump_both, pump_both},
    {"short_lived", NONE, short_lived_a, short_lived_b},
    {"connect_twice", NONE, connect_twice_accept, connect_twice_b},
    {"flags", WARM, flags_a, flags_b},
    {"peek_waitall", WARM, peek_waitall_a, peek_waitall_b},
    {"timeouts", WARM, timeouts_a, timeouts_b},
    {"vectors", WARM, vectors_a, vectors_b},
    {"recvmmsg", WARM, recvmmsg_a, recvmmsg_b},
    {"sendfile", WARM, sendfile_a, sendfile_b},
    {"sendfile_cold", COLD, sendfile_cold_a, sendfile_cold_b},
    {"fionread", WARM, fionread_a, fionread_b},
    {"fionread_move", COLD, fionread_move_a, fionread_move_b},
    {"lowat", WARM, lowat_a, lowat_b},
    {0},
};
