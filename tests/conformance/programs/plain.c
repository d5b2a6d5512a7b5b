// plain FD READ_FROM READ_COUNT SEND_FROM SEND_COUNT: a program that was handed a
// connected socket (with @FD: gets it by the UNIX socket FD). Reads and checks a part of
// the stream, then sends one.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int take(int from) {
    char byte, space[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    int fd;
    if (recvmsg(from, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) exit(13);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static unsigned char byte_at(uint64_t offset) {
    uint64_t x = (offset / 8 + 1) * 0x9e3779b97f4a7c15ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    return (x ^ x >> 32) >> offset % 8 * 8;
}

int main(int count, char **arguments) {
    if (count != 6) return 9;
    int fd = arguments[1][0] == '@' ? take(atoi(arguments[1] + 1)) : atoi(arguments[1]);
    uint64_t at = atoll(arguments[2]), left = atoll(arguments[3]);
    static unsigned char buffer[5000];
    while (left) {
        ssize_t got = read(fd, buffer, left < sizeof buffer ? left : sizeof buffer);
        if (got <= 0) return 10;
        for (ssize_t i = 0; i < got; i++)
            if (buffer[i] != byte_at(at + i)) {
                fprintf(stderr, "plain: byte %llu is wrong\n", (unsigned long long)(at + i));
                return 11;
            }
        at += got;
        left -= got;
    }
    at = atoll(arguments[4]), left = atoll(arguments[5]);
    while (left) {
        size_t piece = left < sizeof buffer ? left : sizeof buffer;
        for (size_t i = 0; i < piece; i++) buffer[i] = byte_at(at + i);
        ssize_t sent = write(fd, buffer, piece);
        if (sent <= 0) return 12;
        at += sent;
        left -= sent;
    }
    printf("plain done\n");
    fflush(stdout);
    return 0;
}
