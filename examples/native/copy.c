// A file to another domain, by loans: `copy take PORT FILE` there, `copy DOMAIN PORT FILE` here.
#include <err.h>
#include <fcntl.h>
#include <fordway.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 64 * 1024 };

static void take(int fd, int file) {
    const void *shown;
    size_t count;
    while ((shown = fordway_peek(fd, &count))) {
        // Once: a far end that cheats could change the bytes between two looks.
        ssize_t written = write(file, shown, count);
        if (written <= 0 || fordway_release(fd, (size_t)written)) err(1, "write");
    }
}

int main(int count, char **words) {
    if (count != 4) errx(2, "copy take PORT FILE, or copy DOMAIN PORT FILE");
    struct fordway_address address = {FORDWAY_ANY, (uint16_t)atoi(words[2])};
    int fd = fordway_socket(FORDWAY_STREAM);
    if (!strcmp(words[1], "take")) {
        int file = open(words[3], O_WRONLY | O_CREAT | O_TRUNC, 0644), from;
        if (fordway_bind(fd, &address) || fordway_listen(fd, 1)) err(1, "listen");
        if (file < 0 || (from = fordway_accept(fd, NULL)) < 0) err(1, "%s", words[3]);
        take(from, file);
        return 0;
    }
    if (fordway_domain(words[1], &address.domain) || fordway_connect(fd, &address)) err(1, "%s", words[1]);
    int file = open(words[3], O_RDONLY);
    for (ssize_t length = 1; length > 0;) {
        // The file is read right into what the far end reads.
        void *room = fordway_reserve(fd, PIECE_BYTES);
        if (!room || (length = read(file, room, PIECE_BYTES)) < 0) err(1, "%s", words[3]);
        if (fordway_commit(fd, (size_t)length)) err(1, "commit");
    }
    return fordway_close(fd);
}
