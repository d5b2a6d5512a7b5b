"""UDP between two domains, held against udp(7), ip(7), recv(2) and epoll(7).

    udp.py serve PORT                      starts far ends for whoever asks at this TCP port, until it is ended
    udp.py cases IP IP6 PORT ECHO_PORT [NAME...]
                                           prints a line for each case: "ok NAME", or "FAIL NAME: why"

    cases ── ["hands"] ──► serve ── exec ──► far       a process for each far end
      │ ▲                                     │
      │ └───── lines of JSON, by TCP ─────────┘
      └─────── datagrams: what is tried ────► its sockets

Here are the cases of datagrams and calls; those where something changes are in udp_change.py, what they share in
udp_near.py, the far ends in udp_far.py. Much is tried twice: with sockets that have exchanged nothing yet, and with
sockets that have exchanged so much that their datagrams may go through rings. Nobody sleeps to wait for another
process: it waits for a datagram, or for a line. Each case has a limit.
"""

import array
import fcntl
import random
import select
import signal
import socket
import struct
import sys
import termios
import threading
import time

# Nothing is left beside the scripts.
sys.dont_write_bytecode = True

import udp_far
from udp_change import Changes
from udp_far import FILLING, ROOM, WINDOW, numbered, udp
from udp_near import CASE_S, WARM_ROUNDS, Near, ask, asks, nothing, option

# What Linux has and this Python does not name (ip(7), udp(7), linux/udp.h).
IP_PKTINFO, UDP_CORK, UDP_SEGMENT = 8, 1, 103
SO_TIMESTAMP = 29
ECHO_ROUNDS = 20_000
# The largest datagram of IPv4: 65,535 bytes less the headers of IP and UDP.
LARGEST = 65_507
STREAM, STREAM_S = 200_000, 60


class Cases(Near):
    # There and back.

    def contents_of_all_sizes_come_back(self):
        where = self._echo(port=self._echo_port)
        near, sizes = udp(), random.Random(2)
        for number in range(ECHO_ROUNDS):
            ask(near, where, numbered(number, sizes.randint(8, 1400)))

    def connected(self):
        for near, where in self._nears():
            near.connect(where)
            assert near.getpeername() == where
            stranger = udp()
            for number in range(100):
                stranger.sendto(b"stranger", near.getsockname())
                near.send(numbered(number))
                assert near.recv(ROOM) == numbered(number)
            nothing(near)

    def _burst(self, way):
        for near, where in self._nears(way):
            for turn in range(100):
                sent = [numbered(turn * 8 + number, 8 + number) for number in range(8)]
                for data in sent:
                    near.sendto(data, where)
                assert [near.recv(ROOM) for _ in sent] == sent

    def a_server_with_level_triggered_epoll(self):
        self._burst("level")

    def a_server_with_edge_triggered_epoll(self):
        self._burst("edge")

    def a_server_with_poll(self):
        self._burst("poll")

    def a_server_with_select(self):
        self._burst("select")

    def a_server_with_messages(self):
        self._burst("message")

    def two_sockets_of_one_process(self):
        far, where = self._hands()
        other = (self._ip, far.open("other", "0.0.0.0", 0, []))
        near = udp()
        for rounds in (0, WARM_ROUNDS):
            self._warm(far, "it", near, where, rounds)
            self._warm(far, "other", near, other, rounds)
            for _ in range(20):
                near.sendto(b"one", where)
                near.sendto(b"two", other)
                for name, data in (("other", b"two"), ("it", b"one")):
                    [(got, who)] = far.take(name, 1)
                    assert (bytes.fromhex(got), who[1]) == (data, near.getsockname()[1])

    def one_socket_talks_to_two(self):
        places, near = [self._echo(), self._echo("edge")], udp()
        for number in range(WARM_ROUNDS):
            for where in places:
                ask(near, where, numbered(number))

    # One call.

    def a_look_leaves_it_there(self):
        for near, where in self._nears():
            near.sendto(b"once", where)
            for flags in (socket.MSG_PEEK, socket.MSG_PEEK, 0):
                assert near.recvfrom(ROOM, flags) == (b"once", where)
            nothing(near)
            ask(near, where)

    def a_short_room_gets_the_beginning(self):
        for near, where in self._nears():
            for _ in range(4):
                near.sendto(b"datagrams", where)
            near.sendto(b"next", where)
            room = bytearray(4)
            # The last word: whether the whole length is asked for (recv(2), MSG_TRUNC).
            assert near.recv_into(room, 4, socket.MSG_TRUNC | socket.MSG_PEEK) == 9
            assert near.recv_into(room, 4, socket.MSG_TRUNC) == 9 and room == b"data"
            assert near.recv_into(room, 4) == 4 and room == b"data"
            data, _, flags, who = near.recvmsg(4)
            assert (data, who) == (b"data", where) and flags & socket.MSG_TRUNC
            data, _, flags, _ = near.recvmsg(9)
            assert data == b"datagrams" and not flags & socket.MSG_TRUNC
            assert near.recv(ROOM) == b"next"
            nothing(near)

    def it_is_sent_and_received_in_parts(self):
        for near, where in self._nears():
            assert near.sendmsg([b"a", b"bc", b"", b"def"], [], 0, where) == 6
            first, rest = bytearray(2), bytearray(10)
            count, _, _, who = near.recvmsg_into([first, rest])
            assert (count, first, rest[:4], who) == (6, b"ab", b"cdef", where)

    def nothing_is_there(self):
        for near, where in self._nears():
            nothing(near)
            near.sendto(b"soon", where)
            select.select([near], [], [])
            assert near.recv(ROOM, socket.MSG_DONTWAIT) == b"soon"
            nothing(near)

    def empty_datagrams(self):
        for near, where in self._nears():
            for data in (b"", b"between", b"", b""):
                near.sendto(data, where)
            for data in (b"", b"between", b"", b""):
                assert select.select([near], [], [])[0] == [near]
                assert near.recvfrom(ROOM) == (data, where)
            nothing(near)

    def large_datagrams(self):
        for near, where in self._nears():
            for size in (1, 1472, 1473, 9000, 1, 60_000, LARGEST, 1):
                ask(near, where, (FILLING * 20)[:size])
            try:
                near.sendto(bytes(LARGEST + 1), where)
                raise AssertionError("more than a datagram may have")
            except OSError as error:
                assert error.errno == 90, error  # EMSGSIZE
            ask(near, where)

    def the_size_of_the_next_one_is_told(self):
        for near, where in self._nears():
            size = array.array("i", [7])
            fcntl.ioctl(near, termios.FIONREAD, size)
            assert size[0] == 0
            near.sendto(b"three", where)
            near.sendto(b"four", where)
            for data in (b"three", b"four"):
                select.select([near], [], [])
                fcntl.ioctl(near, termios.FIONREAD, size)
                assert size[0] == len(data), size
                assert near.recv(ROOM) == data

    def parts_are_held_back(self):
        for near, where in self._nears():
            near.connect(where)
            near.send(b"one, ", socket.MSG_MORE)
            near.send(b"two")
            assert near.recv(ROOM) == b"one, two"
            near.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1)
            near.send(b"three, ")
            near.send(b"four")
            near.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 0)
            assert near.recv(ROOM) == b"three, four"

    def one_call_is_cut_into_many(self):
        for near, where in self._nears():
            near.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 100)
            near.sendto(FILLING[:950], where)
            got = [near.recv(ROOM) for _ in range(10)]
            assert b"".join(got) == FILLING[:950] and len(got[0]) == 100 and len(got[9]) == 50

    # Waiting.

    def a_wait_has_an_end(self):
        for near, where in self._nears():
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 100_000))
            begin = time.monotonic()
            try:
                raise AssertionError(near.recv(ROOM))
            except BlockingIOError:
                assert 0.09 < time.monotonic() - begin < CASE_S
            ask(near, where)

    def a_signal_ends_a_wait(self):
        class Signal(Exception):
            pass

        def handler(_signal, _frame):
            raise Signal

        for near, where in self._nears():
            before = signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            try:
                raise AssertionError(near.recv(ROOM))
            except Signal:
                pass
            finally:
                signal.signal(signal.SIGALRM, before)
                signal.setitimer(signal.ITIMER_REAL, CASE_S)
            ask(near, where)

    def it_is_ready_when_it_is(self):
        for near, where in self._nears():
            poll, level, edge = select.poll(), select.epoll(), select.epoll()
            poll.register(near, select.POLLIN)
            level.register(near, select.EPOLLIN)
            edge.register(near, select.EPOLLIN | select.EPOLLET)
            told = [(near.fileno(), select.EPOLLIN)]
            assert not poll.poll(0) and not level.poll(0) and not edge.poll(0)
            near.sendto(b"one", where)
            assert edge.poll(10) == told and edge.poll(0) == []
            assert poll.poll(0) == told and level.poll(0) == told and level.poll(0) == told
            assert select.select([near], [], [], 0)[0] == [near]
            # Each arrival is an edge, also where something is left.
            near.sendto(b"two", where)
            assert edge.poll(10) == told and edge.poll(0) == []
            assert near.recv(ROOM) == b"one" and level.poll(0) == told
            assert near.recv(ROOM) == b"two" and level.poll(0) == []
            assert not poll.poll(0) and not select.select([near], [], [], 0)[0]
            level.modify(near, select.EPOLLIN | select.EPOLLONESHOT)
            near.sendto(b"three", where)
            assert level.poll(10) == told and level.poll(0) == []
            level.modify(near, select.EPOLLIN | select.EPOLLONESHOT)
            assert level.poll(0) == told
            level.modify(near, select.EPOLLOUT)
            assert level.poll(0) == [(near.fileno(), select.EPOLLOUT)]

    def _wakes(self, wait):
        """Who sleeps in this is woken by a datagram."""
        for far, near, _ in self._hands_of_both_ages():
            got = []

            def receive():
                wait(near)
                got.append(near.recv(ROOM))

            for number in range(20):
                thread = threading.Thread(target=receive, daemon=True)
                thread.start()
                state = f"/proc/self/task/{thread.native_id}/stat"
                while open(state).read().rsplit(") ", 1)[1][0] != "S":
                    pass
                far.send("it", numbered(number).hex(), *near.getsockname())
                thread.join()
                assert got.pop() == numbered(number)

    def who_sleeps_in_recv_is_woken(self):
        self._wakes(lambda near: None)

    def who_sleeps_in_poll_is_woken(self):
        def wait(near):
            poll = select.poll()
            poll.register(near, select.POLLIN)
            poll.poll()

        self._wakes(wait)

    def who_sleeps_in_select_is_woken(self):
        self._wakes(lambda near: select.select([near], [], []))

    def who_sleeps_in_epoll_is_woken(self):
        def wait(near):
            with select.epoll() as epoll:
                epoll.register(near, select.EPOLLIN)
                epoll.poll()

        self._wakes(wait)

    def an_epoll_instance_is_polled(self):
        for near, where in self._nears():
            instance, outer = select.epoll(), select.poll()
            instance.register(near, select.EPOLLIN)
            near.sendto(b"ford", where)
            # It is there before anybody watches the instance.
            assert near.recv(ROOM, socket.MSG_PEEK) == b"ford"
            outer.register(instance, select.POLLIN)
            assert outer.poll(CASE_S * 1000) == [(instance.fileno(), select.POLLIN)]
            told = [(near.fileno(), select.EPOLLIN)]
            assert instance.poll(0) == told
            assert near.recv(ROOM) == b"ford"
            assert instance.poll(0) == []
            near.sendto(b"ford", where)
            # An outer wait may end early, as any that the library's bell ends.
            assert outer.poll(CASE_S * 1000) == [(instance.fileno(), select.POLLIN)]
            assert instance.poll(CASE_S) == told
            assert near.recv(ROOM) == b"ford"

    def a_thread_waits_while_another_sends(self):
        for near, where in self._nears():
            got, one = [], threading.Semaphore(0)

            def receive():
                for _ in range(300):
                    got.append(near.recv(ROOM))
                    one.release()

            thread = threading.Thread(target=receive, daemon=True)
            thread.start()
            for number in range(300):
                near.sendto(numbered(number), where)
                one.acquire()
            thread.join()
            assert got == [numbered(number) for number in range(300)]

    # Order, and what is too much.

    def numbered_datagrams_keep_their_order(self):
        signal.setitimer(signal.ITIMER_REAL, STREAM_S)
        far = self._far("count", STREAM)
        near, acknowledged, before = udp(), 0, None
        near.connect((self._ip, far.port))
        # One more than are counted: behind it nothing is missing any more.
        for number in range(STREAM + 1):
            while number - acknowledged >= WINDOW:
                (got,) = struct.unpack("=Q", near.recv(8))
                # Said twice: nothing comes any more, what was under way is lost.
                acknowledged, before = number if got == before else got, got
            near.send(numbered(number))
        [counts] = far.answer()
        # The window fits into the receiver's buffer, so nothing may be lost.
        assert not any(counts.values()), counts

    def a_sender_that_is_too_fast_does_not_wait(self):
        for far, near, where in self._hands_of_both_ages():
            count = 5000
            begin = time.monotonic()
            for number in range(count):
                near.send(numbered(number))
            assert time.monotonic() - begin < 5
            got = [bytes.fromhex(data) for data, _ in far.drain("it", 100)]
            numbers = [struct.unpack("=Q", data[:8])[0] for data in got]
            assert got == [numbered(number) for number in numbers]
            assert numbers == sorted(set(numbers)), "twice, or out of order"
            assert len(numbers) >= 50 and numbers[:50] == list(range(50)), numbers[:50]
            self._warm(far, "it", near, where, 50)

    # What is said of a datagram.

    def _said(self, far, level, kind):
        data, said, _ = far.message("it")
        found = [bytes.fromhex(what) for at, which, what in said if (at, which) == (level, kind)]
        assert len(found) == 1, f"{said} of {data}"
        return found[0]

    def packet_information(self):
        asked = option(socket.IPPROTO_IP, IP_PKTINFO)
        for asks_first in (True, False):
            for far, near, _ in self._hands_of_both_ages(*([asked] if asks_first else [])):
                if not asks_first:
                    far.option("it", *asked)
                for _ in range(20):
                    near.send(b"where")
                    said = self._said(far, socket.IPPROTO_IP, IP_PKTINFO)
                    index, _, to = struct.unpack("=I4s4s", said)
                    assert index and to == socket.inet_aton(self._ip), said

    def a_timestamp(self):
        asked = option(socket.SOL_SOCKET, SO_TIMESTAMP)
        for asks_first in (True, False):
            for far, near, _ in self._hands_of_both_ages(*([asked] if asks_first else [])):
                if not asks_first:
                    far.option("it", *asked)
                for _ in range(20):
                    before = time.time()
                    near.send(b"when")
                    said = self._said(far, socket.SOL_SOCKET, SO_TIMESTAMP)
                    seconds, micros = struct.unpack("=qq", said)
                    # The kernel's clock of the packet, and Python's: the same but for rounding.
                    assert -0.01 < seconds + micros / 1e6 - before < 5

    # IPv6.

    def ipv6(self):
        where = self._echo(host="::")
        for rounds in (20, WARM_ROUNDS):
            near = udp(socket.AF_INET6)
            near.connect(where)
            asks(near, where, rounds)
        large = udp(socket.AF_INET6)
        for size in (1452, 1453, 65_000, 0, LARGEST):
            ask(large, where, (FILLING * 20)[:size])

    def a_server_of_both_families(self):
        far, (_, port) = self._hands(option(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0), host="::")
        for rounds in (0, WARM_ROUNDS):
            for family, ip in ((socket.AF_INET, self._ip), (socket.AF_INET6, self._ip6)):
                near = udp(family)
                near.connect((ip, port))
                self._warm(far, "it", near, (ip, port), rounds)
                near.send(b"who")
                name = near.getsockname()[0]
                name = name if family == socket.AF_INET6 else "::ffff:" + name
                [(data, who)] = far.take("it", 1)
                assert (bytes.fromhex(data), who[0]) == (b"who", name), who


def main(role, *words):
    if role == "cases":
        for cases in (Cases, Changes):
            cases(*words)._run()
    elif role == "asks":
        fd, ip, port, rounds = words
        near = udp() if fd == "-1" else socket.socket(fileno=int(fd))
        asks(near, (ip, int(port)), int(rounds))
    else:
        udp_far.main(role, *words)


main(*sys.argv[1:])
