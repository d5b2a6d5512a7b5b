// The neighbour: round trips of 64 bytes, each checked, until stdin ends. For each line
// "LEAST" on stdin it prints a line of what it saw since the last, as soon as those are so
// many: "COUNT P50_US P99_US MAX_US".
//   ping HOST PORT
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 64, SAMPLES_MAX = 1 << 22 };

static uint32_t samples_ns[SAMPLES_MAX];

static int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return x < y ? -1 : x > y;
}

static void report(size_t count)
{
	qsort(samples_ns, count, sizeof *samples_ns, compare);
	if (count == 0)
		samples_ns[0] = 0;
	printf("%zu %.1f %.1f %.1f\n", count, samples_ns[count / 2] / 1e3,
	       samples_ns[count * 99 / 100] / 1e3, samples_ns[count ? count - 1 : 0] / 1e3);
	fflush(stdout);
}

static void all(ssize_t (*move)(int, void *, size_t, int), int fd, char *bytes, int flags)
{
	for (size_t done = 0; done < MESSAGE_BYTES;) {
		ssize_t moved = move(fd, bytes + done, MESSAGE_BYTES - done, flags);
		if (moved <= 0) {
			perror("ping");
			exit(1);
		}
		done += moved;
	}
}

static ssize_t send_some(int fd, void *bytes, size_t count, int flags)
{
	return send(fd, bytes, count, flags);
}

int main(int count, char **arguments)
{
	if (count != 3)
		return 2;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(atoi(arguments[2])) };
	inet_pton(AF_INET, arguments[1], &name.sin_addr);
	if (connect(fd, (struct sockaddr *)&name, sizeof name)) {
		perror("connect");
		return 1;
	}
	int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
	size_t seen = 0, least = SIZE_MAX;
	int64_t looked_ns = 0;
	for (uint64_t number = 1;; number++) {
		char sent[MESSAGE_BYTES], got[MESSAGE_BYTES];
		for (size_t i = 0; i < MESSAGE_BYTES / 8; i++)
			((uint64_t *)sent)[i] = number * 0x9e3779b97f4a7c15u + i;
		int64_t start_ns = now_ns();
		all(send_some, fd, sent, MSG_NOSIGNAL);
		all(recv, fd, got, 0);
		int64_t end_ns = now_ns();
		if (memcmp(sent, got, MESSAGE_BYTES) != 0) {
			fprintf(stderr, "ping: other bytes than were sent\n");
			return 1;
		}
		if (seen < SAMPLES_MAX)
			samples_ns[seen++] = end_ns - start_ns;
		if (seen >= least) {
			report(seen);
			seen = 0;
			least = SIZE_MAX;
		}
		if (end_ns - looked_ns < 1000000)
			continue;
		looked_ns = end_ns;
		char line[16] = "";
		ssize_t asked = read(0, line, sizeof line - 1);
		if (asked == 0)
			return 0;
		if (asked > 0)
			least = strtoull(line, NULL, 10);
	}
}
