"""AF_VSOCK between two domains, held against vsock(7) and linux/vm_sockets.h.

    vsock.py serve PORT              echoes what comes, until it is killed
    vsock.py records PORT            the same of SOCK_SEQPACKET, a record for a record
    vsock.py inherited FD CID PORT   says whether FD is a connected socket to there
    vsock.py echoes FD               echoes a record of SOCK_SEQPACKET
    vsock.py cases CID OWN PORT      prints a line for each case: "ok NAME", or "not ok NAME: why"
    vsock.py record-cases CID OWN PORT   the same of SOCK_SEQPACKET
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import random
import select
import socket
import struct
import subprocess
import sys
import termios
import threading

ANY = 0xFFFFFFFF
LOCAL = 1
BUFFER_SIZE = 0
GET_LOCAL_CID = 0x7B9
libc = ctypes.CDLL(None, use_errno=True)


def stream():
    return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)


def packets():
    return socket.socket(socket.AF_VSOCK, socket.SOCK_SEQPACKET)


def echo(connection):
    while data := connection.recv(1 << 20):
        connection.send(data) if connection.type == socket.SOCK_SEQPACKET else connection.sendall(data)
    connection.close()


def serve(port, made=stream):
    listener = made()
    listener.bind((ANY, port))
    listener.listen()
    print("listening", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echoes(fd):
    connection = socket.socket(fileno=fd)
    assert connection.type == socket.SOCK_SEQPACKET
    connection.send(connection.recv(1 << 20))


def inherited(fd, cid, port):
    connection = socket.socket(fileno=fd)
    is_it = connection.family == socket.AF_VSOCK and connection.getpeername() == (cid, port)
    sys.exit(0 if is_it else 1)


class Fails:
    """The call in it fails with this number."""

    def __init__(self, number):
        self.number = number

    def __enter__(self):
        pass

    def __exit__(self, _kind, error, _trace):
        assert error is not None, f"no {errno.errorcode[self.number]}"
        got = getattr(error, "errno", None)
        assert got == self.number, f"{error!r}, not {errno.errorcode[self.number]}"
        return True


def exactly(connection, count):
    data = b""
    while len(data) < count:
        data += (more := connection.recv(count - len(data)))
        assert more, "an early end"
    return data


def set_option(own, level, option, value):
    """Python's own takes numbers only."""
    if libc.setsockopt(own.fileno(), level, option, value, len(value)):
        raise OSError(ctypes.get_errno(), "setsockopt")


class Ends:
    made = staticmethod(stream)

    def __init__(self, cid, own, port):
        self.server, self.own = (cid, port), own

    def connected(self):
        connection = self.made()
        connection.connect(self.server)
        return connection

    def pair(self):
        """Both ends in this process."""
        listener = self.made()
        listener.bind((ANY, ANY))
        listener.listen()
        near = self.made()
        near.connect((LOCAL, listener.getsockname()[1]))
        return near, listener.accept()[0]

    def run(self):
        names = [name for name, _ in vars(type(self)).items() if not name.startswith("_")]
        for name in names:
            if name == "made":
                continue
            try:
                getattr(self, name)()
                print("ok", name, flush=True)
            except Exception as error:  # Each case is tried.
                print(f"not ok {name}: {error!r}", flush=True)


class Cases(Ends):

    # Sockets and names.

    def it_says_what_it_is(self):
        own = stream()
        asked = [socket.SO_DOMAIN, socket.SO_TYPE, socket.SO_PROTOCOL]
        said = [own.getsockopt(socket.SOL_SOCKET, option) for option in asked]
        assert said == [socket.AF_VSOCK, socket.SOCK_STREAM, 0], said

    def without_a_name_it_has_none(self):
        assert stream().getsockname() == (ANY, ANY)
        with Fails(errno.ENOTCONN):
            stream().getpeername()

    def a_port_of_its_own_choice(self):
        own = stream()
        own.bind((ANY, ANY))
        assert 1023 < own.getsockname()[1] < ANY

    def a_port_that_is_asked_for(self):
        own = stream()
        own.bind((self.own, 6001))
        assert own.getsockname() == (self.own, 6001)

    def a_port_is_had_once(self):
        first, second = stream(), stream()
        first.bind((ANY, 6002))
        with Fails(errno.EADDRINUSE):
            second.bind((ANY, 6002))
        second.bind((ANY, 6007))
        assert second.getsockname() == (self.own, 6007)

    def a_server_begins_again(self):
        for _ in range(2):
            listener = stream()
            listener.bind((ANY, 6008))
            listener.listen()
            near = stream()
            near.connect((self.own, 6008))
            # The end that closes first is what TCP remembers.
            listener.accept()[0].close()
            assert near.recv(1) == b""
            near.close()
            other = stream()
            with Fails(errno.EADDRINUSE):
                other.bind((ANY, 6008))
            listener.close()

    def what_is_local_stays_so(self):
        listener = stream()
        listener.bind((LOCAL, 6030))
        assert listener.getsockname() == (LOCAL, 6030)
        listener.listen()
        near = stream()
        near.connect((LOCAL, 6030))
        far, who = listener.accept()
        assert near.getpeername() == far.getsockname() == (LOCAL, 6030)
        assert who == near.getsockname() == far.getpeername()
        near.sendall(b"in")
        assert exactly(far, 2) == b"in"
        with Fails(errno.ECONNREFUSED):
            stream().connect((self.own, 6030))
        outer = stream()
        outer.bind((LOCAL, ANY))
        with Fails(errno.ENETUNREACH):
            outer.connect(self.server)

    def nobody_listens_without_a_port(self):
        with Fails(errno.EINVAL):
            stream().listen()

    def a_long_name_is_refused(self):
        own = stream()
        name = struct.pack("=HHII116x", socket.AF_VSOCK, 0, 6009, ANY) + bytes(1)
        for call in (libc.bind, libc.connect):
            for length in (len(name), -1):
                assert call(own.fileno(), name, length) == -1
                assert ctypes.get_errno() == errno.EINVAL

    def a_name_is_given_once(self):
        own = stream()
        own.bind((ANY, 6003))
        with Fails(errno.EINVAL):
            own.bind((ANY, 6004))

    def another_ones_name_is_not_to_be_had(self):
        with Fails(errno.EADDRNOTAVAIL):
            stream().bind((self.server[0], 6005))

    def a_port_beyond_those_of_tcp_is_not_available(self):
        with Fails(errno.EADDRNOTAVAIL):
            stream().bind((ANY, 70000))

    def a_short_name_is_refused(self):
        own = stream()
        name = struct.pack("=HHII", socket.AF_VSOCK, 0, 6006, ANY)
        with Fails(errno.EINVAL):
            own_bind = libc.bind(own.fileno(), name, len(name))
            if own_bind:
                raise OSError(ctypes.get_errno(), "bind")

    def a_bad_pointer_is_refused(self):
        own, length = stream(), ctypes.c_uint32(16)
        for call in (libc.bind, libc.connect):
            assert call(own.fileno(), ctypes.c_void_p(8), 16) == -1
            assert ctypes.get_errno() == errno.EFAULT
        assert libc.getsockname(own.fileno(), ctypes.c_void_p(8), ctypes.byref(length)) == -1
        assert ctypes.get_errno() == errno.EFAULT

    def a_name_of_another_family_is_refused(self):
        own = stream()
        name = struct.pack("=HH12x", socket.AF_UNIX, 0)
        assert libc.connect(own.fileno(), name, len(name)) == -1
        assert ctypes.get_errno() in (errno.EINVAL, errno.EAFNOSUPPORT)

    def a_small_room_gets_the_beginning_of_a_name(self):
        own, room, length = stream(), (ctypes.c_uint8 * 16)(*[7] * 16), ctypes.c_uint32(4)
        assert libc.getsockname(own.fileno(), room, ctypes.byref(length)) == 0
        assert length.value == 16 and bytes(room[:2]) == struct.pack("=H", socket.AF_VSOCK)
        assert bytes(room[4:]) == bytes([7] * 12)

    def the_own_cid_is_told(self):
        with open("/dev/null") as any_file:
            cid = fcntl.ioctl(any_file, GET_LOCAL_CID, bytes(4))
        assert struct.unpack("=I", cid) == (self.own,)
        assert libc.ioctl(-1, GET_LOCAL_CID, bytes(4)) == -1
        assert ctypes.get_errno() == errno.EBADF

    # Connections.

    def both_ends_know_each_other(self):
        near, far = self.pair()
        assert near.getpeername() == far.getsockname()
        assert near.getsockname() == far.getpeername()
        assert near.getsockname()[0] == self.own

    def accept_tells_who_came(self):
        listener = stream()
        listener.bind((ANY, 6010))
        listener.listen()
        near = stream()
        near.connect((self.own, 6010))
        _, who = listener.accept()
        assert who == near.getsockname()
        near = stream()
        near.connect((self.own, 6010))
        assert libc.accept(listener.fileno(), None, None) >= 0

    def the_far_domain_is_reached(self):
        connection = self.connected()
        assert connection.getpeername() == self.server
        assert connection.getsockname()[0] == self.own
        connection.sendall(b"ford")
        assert exactly(connection, 4) == b"ford"

    def nobody_listens(self):
        with Fails(errno.ECONNREFUSED):
            stream().connect((self.server[0], 6011))
        with Fails(errno.ECONNREFUSED):
            stream().connect((self.server[0], 70000))

    def there_is_no_such_domain(self):
        with Fails(errno.EHOSTUNREACH):
            stream().connect((200, 6012))

    def it_connects_once(self):
        connection = self.connected()
        with Fails(errno.EISCONN):
            connection.connect(self.server)

    def a_connect_that_does_not_wait(self):
        connection = stream()
        connection.setblocking(False)
        with Fails(errno.EINPROGRESS):
            connection.connect(self.server)
        assert select.select([], [connection], [], 10)[1] == [connection]
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0

    def a_refusal_that_is_not_waited_for(self):
        connection = stream()
        connection.setblocking(False)
        with Fails(errno.EINPROGRESS):
            connection.connect((self.server[0], 6013))
        select.select([], [connection], [], 10)
        said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        assert said == errno.ECONNREFUSED

    def an_accept_that_does_not_wait(self):
        listener = stream()
        listener.bind((ANY, ANY))
        listener.listen()
        listener.setblocking(False)
        with Fails(errno.EAGAIN):
            listener.accept()

    def fifty_at_once(self):
        all_of_them = [self.connected() for _ in range(50)]
        for number, connection in enumerate(all_of_them):
            connection.sendall(str(number).encode())
        for number, connection in enumerate(all_of_them):
            text = str(number).encode()
            assert exactly(connection, len(text)) == text

    # Bytes.

    def ten_megabytes_come_back(self):
        connection, sent, come = self.connected(), hashlib.sha256(), hashlib.sha256()

        def send():
            for _ in range(160):
                part = os.urandom(65536)
                sent.update(part)
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        while data := connection.recv(1 << 20):
            come.update(data)
        sender.join()
        assert sent.digest() == come.digest()

    def in_parts(self):
        near, far = self.pair()
        assert near.sendmsg([b"a", b"bc", b"", b"def"]) == 6
        first, rest = bytearray(2), bytearray(10)
        count, _, _, _ = far.recvmsg_into([first, rest])
        assert (count, first, rest[:4]) == (6, b"ab", b"cdef")

    def a_look_leaves_it_there(self):
        near, far = self.pair()
        near.sendall(b"once")
        assert far.recv(10, socket.MSG_PEEK) == b"once"
        assert far.recv(10) == b"once"
        with Fails(errno.EAGAIN):
            far.recv(10, socket.MSG_DONTWAIT)

    def all_of_it_is_waited_for(self):
        near, far = self.pair()
        threading.Thread(target=lambda: [near.sendall(bytes(1000)) for _ in range(100)]).start()
        assert far.recv(100_000, socket.MSG_WAITALL) == bytes(100_000)

    def a_half_is_shut(self):
        near, far = self.pair()
        near.sendall(b"last")
        near.shutdown(socket.SHUT_WR)
        assert exactly(far, 4) == b"last" and far.recv(1) == b""
        far.sendall(b"words")
        assert exactly(near, 5) == b"words"
        with Fails(errno.EPIPE):
            near.send(b"x")

    def what_was_not_read_resets(self):
        near, far = self.pair()
        near.sendall(b"unread")
        assert select.select([far], [], [], 10)[0]
        far.close()
        with Fails(errno.ECONNRESET):
            near.recv(1)

    def a_wait_has_an_end(self):
        near, _far = self.pair()
        set_option(near, socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 20_000))
        with Fails(errno.EAGAIN):
            near.recv(1)

    def it_is_ready_when_it_is(self):
        near, far = self.pair()
        poll, epoll = select.poll(), select.epoll()
        poll.register(far, select.POLLIN)
        epoll.register(far, select.EPOLLIN | select.EPOLLET)
        assert not poll.poll(0) and not epoll.poll(0)
        near.sendall(b"x")
        assert poll.poll(10_000) == [(far.fileno(), select.POLLIN)]
        assert epoll.poll(10) == [(far.fileno(), select.EPOLLIN)]
        assert epoll.poll(0) == []
        assert select.select([far], [], [], 0)[0] == [far]

    # Processes.

    def a_copy_is_the_same(self):
        connection = self.connected()
        copy = connection.dup()
        connection.close()
        assert copy.getpeername() == self.server
        copy.sendall(b"copy")
        assert exactly(copy, 4) == b"copy"

    def a_child_goes_on_with_it(self):
        connection = self.connected()
        connection.sendall(b"parent")
        assert exactly(connection, 6) == b"parent"
        child = os.fork()
        if child == 0:
            connection.sendall(b"child")
            os._exit(0 if exactly(connection, 5) == b"child" else 1)
        assert os.waitpid(child, 0)[1] == 0

    def an_image_inherits_it(self):
        connection = self.connected()
        fd = connection.fileno()
        words = [sys.executable, __file__, "inherited", fd, *self.server]
        ended = subprocess.run([str(word) for word in words], pass_fds=[fd])
        assert ended.returncode == 0

    def it_goes_by_message(self):
        connection = self.connected()
        near, far = socket.socketpair()
        socket.send_fds(near, [b"x"], [connection.fileno()])
        _, fds, _, _ = socket.recv_fds(far, 1, 1)
        passed = socket.socket(fileno=fds[0])
        assert passed.family == socket.AF_VSOCK and passed.getpeername() == self.server
        passed.sendall(b"passed")
        assert exactly(connection, 6) == b"passed"

    # Options, and who is not concerned.

    def buffers_have_sizes(self):
        own = stream()
        set_option(own, socket.AF_VSOCK, BUFFER_SIZE, struct.pack("=Q", 1 << 20))
        with Fails(errno.EINVAL):
            set_option(own, socket.AF_VSOCK, BUFFER_SIZE, struct.pack("=I", 1 << 20))
        with Fails(errno.ENOPROTOOPT):
            set_option(own, socket.AF_VSOCK, 99, struct.pack("=Q", 1))

    def tcp_is_what_it_was(self):
        for family, name in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            listener = socket.create_server((name, 0), family=family)
            near = socket.create_connection(listener.getsockname()[:2])
            far, who = listener.accept()
            assert who == near.getsockname() and far.family == family
            assert near.getpeername() == listener.getsockname()
            assert far.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == family

    def who_comes_to_a_server_of_tcp_is_of_tcp(self):
        listener = socket.create_server(("::", 0), family=socket.AF_INET6)
        near = stream()
        near.connect((self.own, listener.getsockname()[1]))
        far, who = listener.accept()
        assert far.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET6
        assert who == far.getpeername() and len(far.getsockname()) == 4

    def a_call_that_works_leaves_errno(self):
        own = stream()
        ctypes.set_errno(0)
        name = struct.pack("=HHIIxxxx", socket.AF_VSOCK, 0, ANY, ANY)
        assert libc.bind(own.fileno(), name, len(name)) == 0
        name = struct.pack("=HHIIxxxx", socket.AF_VSOCK, 0, self.server[1], self.server[0])
        assert libc.connect(own.fileno(), name, len(name)) == 0
        assert ctypes.get_errno() == 0

    def a_port_of_tcp_is_another(self):
        own, other = stream(), socket.socket()
        own.bind((ANY, 6020))
        own.listen()
        other.bind(("0.0.0.0", 6020))
        other.listen()


class RecordCases(Ends):
    """SOCK_SEQPACKET. The oracle is net/vmw_vsock/af_vsock.c with the kernel's loopback transport."""

    made = staticmethod(packets)

    def it_says_what_it_is(self):
        near, far = self.pair()
        for own in (packets(), near, far):
            asked = [socket.SO_DOMAIN, socket.SO_TYPE, socket.SO_PROTOCOL]
            said = [own.getsockopt(socket.SOL_SOCKET, option) for option in asked]
            assert said == [socket.AF_VSOCK, socket.SOCK_SEQPACKET, 0], said
        assert near.getpeername() == far.getsockname() and near.getpeername()[0] == self.own

    def records_stay_apart(self):
        near, far = self.pair()
        for text in (b"a", b"bc", b"def"):
            assert near.send(text) == len(text)
        assert [far.recv(100) for _ in range(3)] == [b"a", b"bc", b"def"]
        with Fails(errno.EAGAIN):
            far.recv(1, socket.MSG_DONTWAIT)

    def what_is_cut_is_gone(self):
        near, far = self.pair()
        near.send(b"abcdef")
        near.send(b"next")
        data, _, flags, _ = far.recvmsg(3)
        assert (data, flags & socket.MSG_TRUNC) == (b"abc", socket.MSG_TRUNC)
        data, _, flags, _ = far.recvmsg(4)
        assert (data, flags & socket.MSG_TRUNC) == (b"next", 0)

    def the_whole_length_is_told(self):
        near, far = self.pair()
        for _ in range(2):
            near.send(b"abcdef")
        room = ctypes.create_string_buffer(b"zzzzzz", 6)
        assert libc.recv(far.fileno(), room, 2, socket.MSG_TRUNC) == 6
        assert room.raw == b"abzzzz"
        assert libc.recv(far.fileno(), room, 6, 0) == 6 and room.raw == b"abcdef"

    def a_mark_goes_along(self):
        near, far = self.pair()
        near.send(b"one", socket.MSG_EOR)
        near.send(b"two")
        assert [far.recvmsg(9)[2] & socket.MSG_EOR for _ in range(2)] == [socket.MSG_EOR, 0]

    def a_look_leaves_it_there(self):
        near, far = self.pair()
        near.send(b"once")
        near.send(b"more")
        data, _, flags, _ = far.recvmsg(2, 0, socket.MSG_PEEK)
        assert (data, flags & socket.MSG_TRUNC) == (b"on", socket.MSG_TRUNC)
        assert [far.recv(9, socket.MSG_PEEK), far.recv(9), far.recv(9)] == [b"once", b"once", b"more"]

    def nothing_is_no_record(self):
        near, far = self.pair()
        assert near.send(b"") == 0
        near.send(b"x")
        assert libc.recv(far.fileno(), ctypes.create_string_buffer(1), 0, 0) == 0
        assert far.recv(9) == b"x"

    def all_of_it_is_one_record(self):
        near, far = self.pair()
        near.send(b"ab")
        near.send(b"cd")
        assert far.recv(4, socket.MSG_WAITALL) == b"ab"

    def in_parts(self):
        near, far = self.pair()
        assert near.sendmsg([b"a", b"bc", b"", b"def"]) == 6
        first, rest = bytearray(2), bytearray(10)
        count, _, flags, _ = far.recvmsg_into([first, rest])
        assert (count, first, rest[:4], flags) == (6, b"ab", b"cdef", 0)
        assert os.writev(near.fileno(), [b"x"] * 700) == 700
        assert os.readv(far.fileno(), [bytearray(1) for _ in range(699)] + [(last := bytearray(9))]) == 700
        assert last == b"x" + bytes(8)

    def by_read_and_write(self):
        near, far = self.pair()
        assert os.write(near.fileno(), b"abc") == 3 and os.write(near.fileno(), b"d") == 1
        assert os.read(far.fileno(), 2) == b"ab" and os.read(far.fileno(), 2) == b"d"

    def a_record_is_too_long(self):
        near, far = self.pair()
        longest = os.urandom(128 * 1024)
        with Fails(errno.EMSGSIZE):
            near.send(longest + b"x")
        threading.Thread(target=near.send, args=(longest,)).start()
        assert far.recv(1 << 20) == longest

    def a_name_beside_it_is_refused(self):
        near, _far = self.pair()
        with Fails(errno.EISCONN):
            near.sendto(b"x", self.server)
        with Fails(errno.EOPNOTSUPP):
            near.send(b"x", socket.MSG_OOB)
        with Fails(errno.EOPNOTSUPP):
            near.recv(1, socket.MSG_OOB)

    def a_bad_pointer_takes_nothing(self):
        near, far = self.pair()
        assert libc.send(near.fileno(), ctypes.c_void_p(8), 10, 0) == -1
        assert ctypes.get_errno() == errno.EFAULT
        near.send(b"good")
        assert libc.recv(far.fileno(), ctypes.c_void_p(8), 10, 0) == -1
        assert ctypes.get_errno() == errno.EFAULT
        assert far.recv(10) == b"good"

    def a_half_is_shut(self):
        near, far = self.pair()
        near.send(b"la")
        near.send(b"st")
        near.shutdown(socket.SHUT_WR)
        assert [far.recv(9) for _ in range(4)] == [b"la", b"st", b"", b""]
        far.send(b"words")
        assert near.recv(9) == b"words"
        with Fails(errno.EPIPE):
            near.send(b"x")

    def the_end_comes_behind_all(self):
        near, far = self.pair()
        for number in range(100):
            near.send(bytes([number]) * (number + 1))
        near.close()
        for number in range(100):
            assert far.recv(1000) == bytes([number]) * (number + 1)
        assert far.recv(1000) == b""

    def it_is_ready_when_it_is(self):
        near, far = self.pair()
        poll, epoll = select.poll(), select.epoll()
        poll.register(far, select.POLLIN)
        epoll.register(far, select.EPOLLIN | select.EPOLLET)
        assert not poll.poll(0) and not epoll.poll(0)
        near.send(b"x")
        near.send(b"y")
        assert poll.poll(10_000) == [(far.fileno(), select.POLLIN)]
        assert epoll.poll(10) == [(far.fileno(), select.EPOLLIN)]
        assert far.recv(9) == b"x" and select.select([far], [], [], 0)[0] == [far]
        assert far.recv(9) == b"y" and not poll.poll(0)
        near.send(b"z")
        assert epoll.poll(10) == [(far.fileno(), select.EPOLLIN)]

    def what_is_next_is_told(self):
        near, far = self.pair()
        near.send(b"abc")
        near.send(b"de")
        assert poll_in(far)
        assert struct.unpack("i", fcntl.ioctl(far, termios.FIONREAD, bytes(4))) == (3,)

    def a_full_way_takes_all_or_nothing(self):
        near, far = self.pair()
        near.setblocking(False)
        sent = 0
        record = os.urandom(100_000)
        try:
            while sent < 1000:
                assert near.send(record) == len(record)
                sent += 1
        except BlockingIOError:
            pass
        assert 0 < sent < 1000
        for _ in range(sent):
            assert far.recv(1 << 20) == record
        assert select.select([], [near], [], 10)[1] == [near]
        near.send(b"again")
        assert far.recv(9) == b"again"

    def a_wait_has_an_end(self):
        near, far = self.pair()
        set_option(near, socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 20_000))
        with Fails(errno.EAGAIN):
            near.recv(1)
        set_option(near, socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("=qq", 0, 20_000))
        with Fails(errno.EAGAIN):
            while True:
                near.send(bytes(100_000))

    def buffers_have_no_say(self):
        near, far = self.pair()
        for end in (near, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        record = os.urandom(120_000)
        threading.Thread(target=near.send, args=(record,)).start()
        assert far.recv(1 << 20) == record

    def the_far_domain_answers(self):
        connection = self.connected()
        assert connection.getpeername() == self.server
        for size in (1, 3, 4096, 65_536, 131_072, 2):
            record = os.urandom(size)
            connection.send(record)
            assert connection.recv(1 << 20) == record

    def two_thousand_of_all_sizes_come_back(self):
        connection = self.connected()
        sizes = [random.choice((1, 2, 7, 100, 1000, 10_000, 70_000)) for _ in range(2000)]
        seed = os.urandom(131_072)

        def send():
            for size in sizes:
                assert connection.send(seed[:size]) == size

        sender = threading.Thread(target=send)
        sender.start()
        for size in sizes:
            assert connection.recv(1 << 20) == seed[:size]
        sender.join()

    def threads_take_whole_ones(self):
        """Four that send, four that take, at one pair of ends."""
        near, far = self.pair()
        taken = [[] for _ in range(4)]

        def send(name):
            for number in range(300):
                near.send(bytes([name]) * (1 + number * 37 % 5000))

        def take(into):
            while record := far.recv(1 << 20):
                assert record == record[:1] * len(record)
                into.append((record[0], len(record)))

        senders = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        takers = [threading.Thread(target=take, args=(into,)) for into in taken]
        for thread in senders + takers:
            thread.start()
        for thread in senders:
            thread.join()
        near.shutdown(socket.SHUT_WR)
        for thread in takers:
            thread.join()
        expected = [(name, 1 + number * 37 % 5000) for name in range(4) for number in range(300)]
        assert sorted(sum(taken, [])) == sorted(expected)

    def relatives_take_whole_ones(self):
        """Parent and child send and take by the same socket."""
        connection = self.connected()
        connection.send(b"first")
        assert connection.recv(9) == b"first"
        for _ in range(10):
            connection.send(b"warm")
            assert connection.recv(9) == b"warm"
        child = os.fork()
        letter = b"p" if child else b"c"
        for number in range(200):
            connection.send(letter * (1 + number * 61 % 3000))
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        come = [connection.recv(1 << 20) for _ in range(400)]
        assert all(record == record[:1] * len(record) for record in come)
        for letter in (b"p", b"c"):
            sizes = [len(record) for record in come if record[:1] == letter]
            assert sizes == [1 + number * 61 % 3000 for number in range(200)], letter

    def children_share_the_work(self):
        """Three processes take from one socket; each record goes to one of them, whole."""
        near, far = self.pair()
        results, end = os.pipe()
        children = []
        for _ in range(3):
            if not (child := os.fork()):
                near.close()
                while record := far.recv(1 << 20):
                    os.write(end, struct.pack("=BI", record == record[:1] * len(record), len(record)))
                os._exit(0)
            children.append(child)
        far.close()
        os.close(end)
        for number in range(300):
            near.send(b"r" * (1 + number * 53 % 2000))
        near.close()
        sizes = []
        while told := os.read(results, 5):
            whole, size = struct.unpack("=BI", told)
            assert whole
            sizes.append(size)
        assert sorted(sizes) == sorted(1 + number * 53 % 2000 for number in range(300))
        for child in children:
            assert os.waitpid(child, 0)[1] == 0

    def a_copy_is_the_same(self):
        connection = self.connected()
        copy = connection.dup()
        connection.send(b"one")
        connection.send(b"two")
        assert copy.type == socket.SOCK_SEQPACKET
        assert [copy.recv(9), connection.recv(9)] == [b"one", b"two"]
        connection.close()
        copy.send(b"three")
        assert copy.recv(9) == b"three"

    def an_image_inherits_it(self):
        connection = self.connected()
        for _ in range(10):
            connection.send(b"warm")
            assert connection.recv(9) == b"warm"
        record = os.urandom(5000)
        connection.send(record)
        connection.send(b"behind")
        assert poll_in(connection)
        fd = connection.fileno()
        words = [sys.executable, __file__, "echoes", str(fd)]
        assert subprocess.run(words, pass_fds=[fd]).returncode == 0
        assert [connection.recv(1 << 20) for _ in range(2)] == [b"behind", record]

    def it_goes_by_message(self):
        connection = self.connected()
        near, far = socket.socketpair()
        for _ in range(10):
            connection.send(b"warm")
            assert connection.recv(9) == b"warm"
        connection.send(b"before")
        socket.send_fds(near, [b"x"], [connection.fileno()])
        _, fds, _, _ = socket.recv_fds(far, 1, 1)
        passed = socket.socket(fileno=fds[0])
        assert passed.type == socket.SOCK_SEQPACKET
        passed.send(b"passed")
        assert [passed.recv(9), connection.recv(9)] == [b"before", b"passed"]

    def what_would_show_lengths_is_refused(self):
        near, _far = self.pair()
        with open("/proc/self/exe", "rb") as file:
            with Fails(errno.EINVAL):
                os.sendfile(near.fileno(), file.fileno(), 0, 100)
        reader, writer = os.pipe()
        os.write(writer, b"x")
        with Fails(errno.EINVAL):
            os.splice(reader, near.fileno(), 1)
        libc.fdopen.restype = ctypes.c_void_p
        assert not libc.fdopen(near.fileno(), b"r") and ctypes.get_errno() == errno.EINVAL

    def what_is_no_record_ends_it(self):
        """Of a peer that speaks TCP: a length that none has, and a record that ends in the middle."""
        listener = packets()
        listener.bind((ANY, 6040))
        listener.listen()
        for text in (bytes(4), b"\xff\xff\xff\x7f", b"\x05\0\0\0half", b"\x05\0"):
            near = socket.create_connection((f"fd56:534f:434b::{self.own:x}", 6040))
            far, _ = listener.accept()
            near.sendall(b"\x02\0\0\x80ok" + text)
            near.shutdown(socket.SHUT_WR)
            data, _, flags, _ = far.recvmsg(9)
            assert (data, flags) == (b"ok", socket.MSG_EOR)
            with Fails(errno.ECONNRESET):
                far.recv(9)

    def messages_in_one_call(self):
        near, far = self.pair()
        assert far.gettimeout() is None
        for text in (b"a", b"bb"):
            near.send(text)
        first, second = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
        parts = [IoVec(ctypes.addressof(room), 8) for room in (first, second)]
        heads = (MMsgHdr * 3)()
        for head, part in zip(heads, parts):
            head.iov, head.iovlen = ctypes.pointer(part), 1
        assert libc.recvmmsg(far.fileno(), heads, 2, 0, None) == 2
        assert [heads[0].length, heads[1].length] == [1, 2]
        assert [first.value, second.value] == [b"a", b"bb"]


class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class MMsgHdr(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.POINTER(IoVec)),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("length", ctypes.c_uint32),
    ]


def poll_in(end):
    return select.select([end], [], [], 10)[0]


role, *numbers = sys.argv[1:]
numbers = [int(number) for number in numbers]
roles = {
    "cases": lambda *numbers: Cases(*numbers).run(),
    "record-cases": lambda *numbers: RecordCases(*numbers).run(),
    "records": lambda port: serve(port, packets),
    "serve": serve,
    "inherited": inherited,
    "echoes": echoes,
}
roles[role](*numbers)
