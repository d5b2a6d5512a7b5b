// client PORT ROUNDS: asks an echo server; says how many answers came, and the error
// that ended it. With 0 rounds it says what a receive does. Needs nothing but POSIX: it is also built statically and with musl.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 3) return 9;
    int fd = socket(AF_INET, SOCK_STREAM, 0), round = 0, rounds = atoi(arguments[2]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(atoi(arguments[1]))};
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) return 10;
    if (rounds == 0) {
        ssize_t got = recv(fd, arguments[1], 1, 0);
        printf("%zd: %s\n", got, strerror(got < 0 ? errno : 0));
        return 0;
    }
    for (; round < rounds; round++) {
        char buffer[32], answer[32];
        int length = snprintf(buffer, sizeof buffer, "%d", round);
        if (send(fd, buffer, length, 0) != length || recv(fd, answer, length, MSG_WAITALL) != length) {
            printf("%d: %s\n", round > 0, strerror(errno));
            return 0;
        }
        if (memcmp(buffer, answer, length)) return 11;
        if (round > 20) usleep(20000);
    }
    printf("all\n");
    return 0;
}
