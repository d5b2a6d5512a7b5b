// Honest programs with UDP sockets.
//   datagrams echo block|epoll   echoes each datagram to its sender; says "port PORT"
//   datagrams ask HOST PORT      for each line "COUNT" on stdin so many round trips, each checked; then a line
//                                "ANSWERED LOST"; what takes 200 ms is lost
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER_BYTES = 65536, WORDS = 8, MESSAGE_BYTES = WORDS * 8 };

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static int echo(int waits_by_epoll)
{
	static char bytes[BUFFER_BYTES];
	int flags = waits_by_epoll ? SOCK_NONBLOCK : 0;
	int fd = socket(AF_INET, SOCK_DGRAM | flags, 0);
	struct sockaddr_in name = { .sin_family = AF_INET };
	socklen_t length = sizeof name;
	if (bind(fd, (struct sockaddr *)&name, length) || getsockname(fd, (struct sockaddr *)&name, &length))
		return fail("bind");
	int instance = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	if (epoll_ctl(instance, EPOLL_CTL_ADD, fd, &event))
		return fail("epoll_ctl");
	printf("port %d\n", ntohs(name.sin_port));
	fflush(stdout);
	for (;;) {
		length = sizeof name;
		ssize_t got = recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&name, &length);
		if (got < 0 && errno == EAGAIN) {
			if (epoll_wait(instance, &event, 1, -1) < 0)
				return fail("epoll_wait");
		} else if (got >= 0) {
			sendto(fd, bytes, got, 0, (struct sockaddr *)&name, length);
		} else if (errno != ECONNREFUSED) {
			return fail("recvfrom");
		}
	}
}

static int ask(const char *host, const char *port)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	inet_pton(AF_INET, host, &name.sin_addr);
	if (connect(fd, (struct sockaddr *)&name, sizeof name))
		return fail("connect");
	struct timeval patience = { .tv_usec = 200000 };
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	char line[32];
	for (uint64_t number = 0; fgets(line, sizeof line, stdin);) {
		long answered = 0, lost = 0;
		for (long left = atol(line); left > 0; left--) {
			uint64_t sent[WORDS], got[WORDS + 1];
			number++;
			for (size_t i = 0; i < WORDS; i++)
				sent[i] = i ? number * 0x9e3779b97f4a7c15u + i : number;
			if (send(fd, sent, MESSAGE_BYTES, 0) < 0 && errno != ECONNREFUSED)
				return fail("send");
			for (;;) {
				ssize_t count = recv(fd, got, sizeof got, 0);
				if (count < 0 && (errno == EAGAIN || errno == ECONNREFUSED)) {
					lost++;
					break;
				}
				if (count < 0)
					return fail("recv");
				// An answer to an earlier one that was given up.
				uint64_t of = got[0];
				for (size_t i = 1; i < WORDS; i++)
					if (count != MESSAGE_BYTES || of > number ||
					    got[i] != of * 0x9e3779b97f4a7c15u + i) {
						printf("wrong bytes\n");
						return 1;
					}
				if (of == number) {
					answered++;
					break;
				}
			}
		}
		printf("%ld %ld\n", answered, lost);
		fflush(stdout);
	}
	return 0;
}

int main(int count, char **arguments)
{
	if (count == 3 && !strcmp(arguments[1], "echo"))
		return echo(!strcmp(arguments[2], "epoll"));
	if (count == 4 && !strcmp(arguments[1], "ask"))
		return ask(arguments[2], arguments[3]);
	return 2;
}
