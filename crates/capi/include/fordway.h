// Sockets between domains (docs/native-api.md). Made by ./x native; the source is crates/capi/src/c.rs.

#ifndef FORDWAY_H
#define FORDWAY_H

#include <stddef.h>
#include <stdint.h>
#include <poll.h>









// Bytes, in order.
#define FORDWAY_STREAM 1

// Messages of up to 65,507 bytes, each for itself; also to all domains.
#define FORDWAY_DATAGRAM 2

// Messages of up to 1 MiB, in order.
#define FORDWAY_SEQPACKET 5

// The own domain, by loopback.
#define FORDWAY_LOCAL 1

// The host, at the far end of an uplink.
#define FORDWAY_HOST 2

// All domains of the network; datagrams only.
#define FORDWAY_BROADCAST 4294967294

// To bind to: each address of the own domain.
#define FORDWAY_ANY 4294967295

// Longest message of a SEQPACKET socket.
#define FORDWAY_MESSAGE_BYTES_MAX (1 << 20)

// The end of a socket.
struct fordway_address {
  // The domain's number.
  uint32_t domain;
  // The port.
  uint16_t port;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// A new socket: FORDWAY_STREAM, FORDWAY_DATAGRAM or FORDWAY_SEQPACKET.
int fordway_socket(int kind);

// Gives it an address of the own domain, FORDWAY_ANY or a port.
int fordway_bind(int fd, const struct fordway_address *address);

// Lets others connect; so many may wait for fordway_accept.
int fordway_listen(int fd, int backlog);

// The next connection; whose it is, unless `from` is NULL.
int fordway_accept(int fd, struct fordway_address *from);

// Connects to a domain's port; of datagrams: names whom fordway_send and fordway_recv are about.
int fordway_connect(int fd, const struct fordway_address *address);

// Sends to the far end. Of a message all or nothing is taken, of a stream what there is room for. Flags: MSG_DONTWAIT.
ptrdiff_t fordway_send(int fd,
                       const void *bytes,
                       size_t length,
                       int flags);

// The same to a domain's port, of datagrams.
ptrdiff_t fordway_sendto(int fd,
                         const void *bytes,
                         size_t length,
                         int flags,
                         const struct fordway_address *to);

// Receives: a message, or of a stream what there is; 0 is the end. Flags: MSG_DONTWAIT; MSG_TRUNC: the length of
// the whole message is returned, also where it was cut.
ptrdiff_t fordway_recv(int fd,
                       void *buffer,
                       size_t length,
                       int flags);

// The same; who has sent a datagram, unless `from` is NULL.
ptrdiff_t fordway_recvfrom(int fd,
                           void *buffer,
                           size_t length,
                           int flags,
                           struct fordway_address *from);

// poll(2): POLLIN, POLLOUT and their kin. Descriptors of other kinds may stand beside sockets.
int fordway_poll(struct pollfd *entries, size_t count, int timeout_ms);

// Whether calls give EAGAIN instead of sleeping (1, 0).
int fordway_set_nonblocking(int fd, int nonblocking);

// Sends what is left of what was accepted by calls that did not sleep; EAGAIN: there is no room for all of it.
int fordway_flush(int fd);

// Ends the socket.
int fordway_close(int fd);

// The own address.
int fordway_local(int fd, struct fordway_address *address);

// That of the far end.
int fordway_peer(int fd, struct fordway_address *address);

// Looks a domain up by its name, or by its number in digits; EHOSTUNREACH: there is none.
int fordway_domain(const char *name, uint32_t *domain);

// The number of the own domain.
int fordway_own_domain(uint32_t *domain);

// Lends room for `bytes` that are to be sent, of the ring if there is one, until fordway_commit.
void *fordway_reserve(int fd, size_t bytes);

// Sends the first `bytes` of what was lent; all of them are taken. 0: nothing of a stream, and the loan is over.
int fordway_commit(int fd,
                   size_t bytes);

// Ends a loan of fordway_reserve; nothing is sent.
int fordway_cancel(int fd);

// Lends what is to be received next, until fordway_release: a message, or what there is of a stream. NULL with errno 0
// is the end. A hostile far end may change the bytes at any time: copy what you have to trust.
const void *fordway_peek(int fd,
                         size_t *bytes);

// Receives the first `bytes` of a stream, or the message, that was lent; the loan is over.
int fordway_release(int fd, size_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FORDWAY_H */
