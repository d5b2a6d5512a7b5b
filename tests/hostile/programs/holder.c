// Holds the lock of a connected socket until its stdin ends: send(2) copies a page under that
// lock, and the page is not there (userfaultfd). Passes the socket over stdin, a UNIX socket,
// once the kernel waits for the page. Ends with 77 if there is no userfaultfd.
//   holder HOST PORT
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096 };

static int socket_fd;
static char *page;

static void *sends(void *nothing)
{
	send(socket_fd, page, PAGE_BYTES, MSG_NOSIGNAL);
	return nothing;
}

static void pass(int fd)
{
	char byte = 0;
	struct iovec part = { &byte, 1 };
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof fd)];
	} control = { .header = { CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS } };
	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof control.space };
	if (sendmsg(STDIN_FILENO, &message, 0) != 1)
		exit(1);
}

int main(int count, char **arguments)
{
	if (count != 3)
		return 2;
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(atoi(arguments[2])) };
	inet_pton(AF_INET, arguments[1], &name.sin_addr);
	socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(socket_fd, (struct sockaddr *)&name, sizeof name))
		return 1;
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	if (faults < 0 || ioctl(faults, UFFDIO_API, &api))
		return 77;
	page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register range = { .range = { (unsigned long)page, PAGE_BYTES },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	if (ioctl(faults, UFFDIO_REGISTER, &range))
		return 77;
	pthread_t thread;
	if (pthread_create(&thread, NULL, sends, NULL))
		return 1;
	// From here on the lock is held.
	struct uffd_msg fault;
	if (read(faults, &fault, sizeof fault) != sizeof fault)
		return 1;
	pass(socket_fd);
	char byte;
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	return 0;
}
