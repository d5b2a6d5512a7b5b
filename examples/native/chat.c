// A chat of all domains: `chat PORT NAME`. Each line goes to all; what others say is printed.
#include <err.h>
#include <fordway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count != 3) errx(2, "chat PORT NAME");
    struct fordway_address any = {FORDWAY_ANY, (uint16_t)atoi(words[1])}, all = any, from;
    uint32_t own;
    int fd = fordway_socket(FORDWAY_DATAGRAM);
    all.domain = FORDWAY_BROADCAST;
    if (fordway_bind(fd, &any) || fordway_own_domain(&own)) err(1, "bind");
    struct pollfd waits[] = {{0, POLLIN, 0}, {fd, POLLIN, 0}};
    char line[900], said[1000];
    setvbuf(stdin, NULL, _IONBF, 0);
    while (fordway_poll(waits, 2, -1) > 0) {
        if (waits[1].revents) {
            long length = fordway_recvfrom(fd, said, sizeof said, 0, &from);
            if (length >= 0 && from.domain != own) printf("%.*s\n", (int)length, said);
            fflush(stdout);
        }
        if (waits[0].revents) {
            if (!fgets(line, sizeof line, stdin)) break;
            line[strcspn(line, "\n")] = 0;
            int length = snprintf(said, sizeof said, "%s: %s", words[2], line);
            if (fordway_sendto(fd, said, (size_t)length, 0, &all) < 0) err(1, "send");
        }
    }
    return fordway_close(fd);
}
