// A service that is asked: `ask serve PORT`, and `ask DOMAIN PORT WORD...`, which prints an answer to each word.
// Messages are whole, and in order.
//   cc ask.c $(pkg-config --cflags --libs fordway-native) -o ask
#include <ctype.h>
#include <err.h>
#include <fordway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void answer(int asker) {
    char word[1000];
    long length;
    while ((length = fordway_recv(asker, word, sizeof word, 0)) > 0) {
        for (long i = 0; i < length; i++) word[i] = (char)toupper((unsigned char)word[i]);
        if (fordway_send(asker, word, (size_t)length, 0) < 0) break;
    }
    fordway_close(asker);
}

int main(int count, char **words) {
    if (count < 3) errx(2, "ask serve PORT, or ask DOMAIN PORT WORD...");
    struct fordway_address address = {FORDWAY_ANY, (uint16_t)atoi(words[2])};
    int fd = fordway_socket(FORDWAY_SEQPACKET);
    if (!strcmp(words[1], "serve")) {
        if (fordway_bind(fd, &address) || fordway_listen(fd, 16)) err(1, "listen");
        for (int asker; (asker = fordway_accept(fd, NULL)) >= 0;) answer(asker);
        err(1, "accept");
    }
    if (fordway_domain(words[1], &address.domain) || fordway_connect(fd, &address)) err(1, "%s", words[1]);
    for (int i = 3; i < count; i++) {
        char reply[1000];
        long length = -1;
        if (fordway_send(fd, words[i], strlen(words[i]), 0) >= 0)
            length = fordway_recv(fd, reply, sizeof reply, 0);
        if (length < 0) err(1, "%s", words[i]);
        printf("%.*s\n", (int)length, reply);
    }
    return fordway_close(fd);
}
