/* SOCK_SEQPACKET of AF_VSOCK in C: an echo by epoll, edge-triggered and without a sleep in a call, and a client that
 * compares each record.
 *
 *   records serve PORT          until it is killed
 *   records ask CID PORT COUNT  prints the bytes that came back
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define LONGEST (128 * 1024)
#define must(what) ((what) ? (void)0 : fail(#what, __LINE__))

static void fail(const char *what, int line)
{
	fprintf(stderr, "%d: %s: %s\n", line, what, strerror(errno));
	exit(1);
}

static int packets(void)
{
	int fd = socket(AF_VSOCK, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	must(fd >= 0);
	return fd;
}

static struct sockaddr_vm name(unsigned cid, unsigned port)
{
	struct sockaddr_vm name = { .svm_family = AF_VSOCK, .svm_cid = cid, .svm_port = port };
	return name;
}

/* What has been received and not sent yet, of a connection. */
struct end {
	int fd, is_pending, flags;
	ssize_t bytes;
	char record[LONGEST];
};

/* Echoes until there is nothing to receive, or no room; 0: it is over. */
static int echo(struct end *end)
{
	for (;;) {
		if (!end->is_pending) {
			struct iovec part = { end->record, sizeof(end->record) };
			struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
			end->bytes = recvmsg(end->fd, &message, 0);
			if (end->bytes <= 0)
				return end->bytes < 0 && errno == EAGAIN;
			must(!(message.msg_flags & MSG_TRUNC));
			end->flags = message.msg_flags & MSG_EOR;
			end->is_pending = 1;
		}
		ssize_t sent = send(end->fd, end->record, end->bytes, end->flags | MSG_NOSIGNAL);
		if (sent < 0)
			return errno == EAGAIN;
		must(sent == end->bytes);
		end->is_pending = 0;
	}
}

static void serve(unsigned port)
{
	struct sockaddr_vm own = name(VMADDR_CID_ANY, port);
	int listener = packets(), epoll = epoll_create1(0);
	must(bind(listener, (struct sockaddr *)&own, sizeof(own)) == 0 && listen(listener, 16) == 0);
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = NULL };
	must(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) == 0);
	for (;;) {
		must(epoll_wait(epoll, &event, 1, -1) == 1 || errno == EINTR);
		struct end *end = event.data.ptr;
		if (!end) {
			end = calloc(1, sizeof(*end));
			must(end && (end->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0);
			event.events = EPOLLIN | EPOLLOUT | EPOLLET;
			event.data.ptr = end;
			must(epoll_ctl(epoll, EPOLL_CTL_ADD, end->fd, &event) == 0);
		} else if (!echo(end)) {
			close(end->fd);
			free(end);
		}
	}
}

static unsigned next(unsigned *seed)
{
	*seed = *seed * 1664525u + 1013904223u;
	return *seed >> 8;
}

static void ask(unsigned cid, unsigned port, int count)
{
	static char sent[LONGEST], come[LONGEST + 1];
	struct sockaddr_vm server = name(cid, port), peer;
	socklen_t length = sizeof(peer);
	int fd = packets();
	must(connect(fd, (struct sockaddr *)&server, sizeof(server)) == 0);
	must(getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && peer.svm_cid == cid && peer.svm_port == port);
	unsigned seed = 1;
	long bytes = 0;
	for (int number = 0; number < count; number++) {
		unsigned size = number % 50 ? 1 + next(&seed) % 3000 : 1 + next(&seed) % LONGEST;
		for (unsigned at = 0; at < size; at++)
			sent[at] = next(&seed);
		/* In two parts, marked now and then, and cut now and then. */
		int flags = number % 3 ? 0 : MSG_EOR;
		size_t room = number % 7 ? sizeof(come) : size / 2 + 1;
		struct iovec parts[] = { { sent, size / 3 }, { sent + size / 3, size - size / 3 } };
		struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
		must(sendmsg(fd, &message, flags) == (ssize_t)size);
		struct pollfd wait = { fd, POLLIN, 0 };
		must(poll(&wait, 1, 20000) == 1);
		struct iovec part = { come, room };
		struct msghdr got = { .msg_iov = &part, .msg_iovlen = 1 };
		size_t copied = room < size ? room : size;
		must(recvmsg(fd, &got, MSG_TRUNC) == (ssize_t)size && !memcmp(sent, come, copied));
		must(!(got.msg_flags & MSG_TRUNC) == !(room < size) && (got.msg_flags & MSG_EOR) == flags);
		bytes += size;
	}
	/* Until then somebody looks at the connection. */
	must(getchar() == EOF);
	must(shutdown(fd, SHUT_WR) == 0 && recv(fd, come, sizeof(come), 0) == 0);
	printf("%ld\n", bytes);
}

int main(int count, char **words)
{
	if (count == 3 && !strcmp(words[1], "serve"))
		serve(atoi(words[2]));
	must(count == 5);
	ask(atoi(words[2]), atoi(words[3]), atoi(words[4]));
	return 0;
}
