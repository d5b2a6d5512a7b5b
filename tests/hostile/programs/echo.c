// The victim: echoes what it gets, and says how each connection ended ("end ERRNO").
//   echo epoll    one thread, edge-triggered epoll, non-blocking sockets
//   echo threads  a thread for each connection, blocking calls
//   echo instances  as threads, each with an epoll instance of its own
//   echo exec     as epoll; when stdin ends it becomes true(1), with its connections open
// Its descriptor 2 is a file of data, as in a daemon that has closed its stderr: whatever is
// written there is said ("wrote BYTES").
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 64 * 1024, EVENTS = 64, DESCRIPTORS = 65536 };

struct pending {
	size_t at, end;
	char bytes[BUFFER_BYTES];
};

static struct pending *pendings[DESCRIPTORS];

static void ended(int fd, int error)
{
	free(pendings[fd]);
	pendings[fd] = NULL;
	close(fd);
	struct stat data;
	if (fstat(STDERR_FILENO, &data) || data.st_size != 0)
		printf("wrote %ld\n", (long)data.st_size);
	printf("end %d\n", error);
}

// Echoes until there is nothing to read, or no room to write. False: the connection is over.
static bool turn(int fd)
{
	struct pending *pending = pendings[fd];
	for (;;) {
		while (pending->at != pending->end) {
			ssize_t sent = send(fd, pending->bytes + pending->at,
					    pending->end - pending->at, MSG_NOSIGNAL);
			if (sent < 0 && (errno == EAGAIN || errno == EINTR))
				return true;
			if (sent < 0) {
				ended(fd, errno);
				return false;
			}
			pending->at += sent;
		}
		ssize_t got = recv(fd, pending->bytes, BUFFER_BYTES, 0);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (got <= 0) {
			ended(fd, got < 0 ? errno : 0);
			return false;
		}
		pending->at = 0;
		pending->end = got;
	}
}

static void by_epoll(int listener, bool execs)
{
	int epoll = epoll_create1(EPOLL_CLOEXEC), cloexec = execs ? 0 : SOCK_CLOEXEC;
	struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };
	epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
	event.data.fd = STDIN_FILENO;
	if (execs)
		epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &event);
	for (;;) {
		struct epoll_event events[EVENTS];
		int count = epoll_wait(epoll, events, EVENTS, -1);
		for (int i = 0; i < count; i++) {
			int fd = events[i].data.fd;
			if (fd == STDIN_FILENO) {
				// What comes meanwhile stays unread.
				usleep(100 * 1000);
				execlp("true", "true", NULL);
			}
			if (fd != listener) {
				// Who is gone half and takes nothing is let go, as by many servers.
				if (turn(fd) && events[i].events & EPOLLRDHUP)
					ended(fd, 0);
				continue;
			}
			fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | cloexec);
			if (fd < 0)
				continue;
			pendings[fd] = calloc(1, sizeof *pendings[fd]);
			event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
			event.data.fd = fd;
			epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
		}
	}
}

static void *serve(void *argument)
{
	int fd = (int)(long)argument;
	while (turn(fd))
		;
	return NULL;
}

static void *serve_by_epoll(void *argument)
{
	int fd = (int)(long)argument, epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET };
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	do
		epoll_wait(epoll, &event, 1, -1);
	while (turn(fd));
	close(epoll);
	return NULL;
}

static void by_threads(int listener, bool instances)
{
	int flags = SOCK_CLOEXEC | (instances ? SOCK_NONBLOCK : 0);
	for (;;) {
		int fd = accept4(listener, NULL, NULL, flags);
		if (fd < 0)
			continue;
		pendings[fd] = calloc(1, sizeof *pendings[fd]);
		pthread_t thread;
		void *(*body)(void *) = instances ? serve_by_epoll : serve;
		if (pthread_create(&thread, NULL, body, (void *)(long)fd) == 0)
			pthread_detach(thread);
	}
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	int data = memfd_create("data", MFD_CLOEXEC);
	if (data < 0 || dup2(data, STDERR_FILENO) < 0)
		return 1;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int one = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	struct sockaddr_in name = { .sin_family = AF_INET };
	socklen_t length = sizeof name;
	if (bind(listener, (struct sockaddr *)&name, length) || listen(listener, 1024))
		return 1;
	getsockname(listener, (struct sockaddr *)&name, &length);
	printf("port %d\n", ntohs(name.sin_port));
	bool instances = count > 1 && strcmp(arguments[1], "instances") == 0;
	if (instances || (count > 1 && strcmp(arguments[1], "threads") == 0))
		by_threads(listener, instances);
	else
		by_epoll(listener, count > 1 && strcmp(arguments[1], "exec") == 0);
}
