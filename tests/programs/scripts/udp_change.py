"""UDP while something changes: receivers that come and go, descriptors that are copied, inherited and passed."""

import ctypes
import os
import socket
import struct
import subprocess
import sys

from udp_far import ROOM, numbered, udp
from udp_near import (
    WARM_ROUNDS,
    Near,
    ask,
    asks,
    asks_again,
    forked,
    in_time,
    is_refused,
    nothing,
    option,
)

libc = ctypes.CDLL(None, use_errno=True)
IP_RECVERR = 11  # ip(7)
REUSE_ADDRESS = option(socket.SOL_SOCKET, socket.SO_REUSEADDR)
REUSE_PORT = option(socket.SOL_SOCKET, socket.SO_REUSEPORT)


class Changes(Near):
    # Receivers that come and go.

    def it_connects_to_another_and_to_none(self):
        places = [self._echo(), self._echo()]
        near = udp()
        for rounds in (3, WARM_ROUNDS, WARM_ROUNDS):
            for where in places:
                near.connect(where)
                for number in range(rounds):
                    near.send(numbered(number))
                    assert near.recvfrom(ROOM) == (numbered(number), where)
        # Whom it is not connected to can be sent to, but not heard.
        near.sendto(b"unheard", places[0])
        ask(near, places[1])
        unspecified = struct.pack("=H14x", socket.AF_UNSPEC)
        assert libc.connect(near.fileno(), unspecified, len(unspecified)) == 0
        for where in places:
            asks(near, where, 100)

    def a_receiver_closes(self):
        for far, near, where in self._hands_of_both_ages():
            other = udp()
            self._warm(far, "it", other, where, 20)
            far.close("it")
            in_time("ECONNREFUSED", lambda: is_refused(near))
            # Who is not connected is told nothing (udp(7)).
            for _ in range(20):
                other.sendto(b"nobody", where)
            nothing(other)
            far.open("it", "0.0.0.0", where[1], [])
            for again in (near, other):
                far.say("echo_until", "it", b"end".hex())
                asks_again(again, where)
                again.sendto(b"end", where)
                far.answer()

    def a_receiver_is_killed(self):
        for far, near, _ in self._hands_of_both_ages():
            far.kill()
            in_time("ECONNREFUSED", lambda: is_refused(near))

    def a_receiver_is_killed_and_comes_again(self):
        for rounds in (3, WARM_ROUNDS):
            far = self._far("echo", "plain", "0.0.0.0", 0)
            where = (self._ip, far.port)
            one, two = udp(), udp()
            two.connect(where)
            for near in (one, two):
                asks(near, where, rounds)
            for _ in range(2):
                far.kill()
                one.sendto(b"into the void", where)
                far = self._far("echo", "plain", "0.0.0.0", where[1])
                for near in (one, two):
                    asks_again(near, where)

    def a_sender_ends_and_another_has_its_name(self):
        where, near = self._echo(), udp()
        near.bind(("", 0))
        name = near.getsockname()
        for _ in range(5):
            asks(near, where, WARM_ROUNDS)
            near.sendto(b"never read", where)
            near.close()
            near = udp()
            near.bind(name)
            # The answer to the one before it may come to this one.
            asks_again(near, where)

    def _goes_to(self, far, names, wanted, near, where):
        """Soon, and then all."""
        turn = 0

        def comes():
            nonlocal turn
            turn += 1
            near.sendto(b"%d" % turn, where)
            # What was sent before may stand before it.
            while (first := far.first(names, 20))[0]:
                if bytes.fromhex(first[1]) == b"%d" % turn:
                    return first[0] == wanted
            return False

        in_time(f"datagrams to {wanted}", comes)
        for number in range(50):
            near.sendto(numbered(number), where)
            assert far.first(names, 1000) == [wanted, numbered(number).hex()]

    def a_more_specific_socket_comes_and_goes(self):
        names = ["it", "own"]
        for far, near, where in self._hands_of_both_ages(REUSE_ADDRESS):
            for _ in range(2):
                far.open("own", self._ip, where[1], [REUSE_ADDRESS])
                self._goes_to(far, names, "own", near, where)
                self._warm(far, "own", near, where)
                far.close("own")
                self._goes_to(far, ["it"], "it", near, where)

    def a_connected_socket_takes_over(self):
        names = ["it", "own"]
        for far, near, where in self._hands_of_both_ages(REUSE_ADDRESS):
            other = udp()
            self._warm(far, "it", other, where)
            far.open("own", "0.0.0.0", where[1], [REUSE_ADDRESS])
            far.connect("own", *near.getsockname())
            self._goes_to(far, names, "own", near, where)
            self._goes_to(far, names, "it", other, where)
            self._warm(far, "own", near, where)

    def two_processes_share_a_port(self):
        fars = [self._far("hands") for _ in range(2)]
        port = fars[0].open("it", "0.0.0.0", 0, [REUSE_PORT])
        fars[1].open("it", "0.0.0.0", port, [REUSE_PORT])
        where, nears = (self._ip, port), [udp() for _ in range(16)]

        def owners():
            for number in range(12):
                for near in nears:
                    near.sendto(numbered(number), where)
            come = [far.drain("it", 100) for far in fars]
            by_near = {}
            for far, datagrams in enumerate(come):
                for data, who in datagrams:
                    by_near.setdefault((who[1], far), []).append(data)
            sent = [numbered(number).hex() for number in range(12)]
            assert all(got == sent for got in by_near.values()), "not once, or not in order"
            found = {port: far for port, far in by_near}
            assert len(found) == len(by_near) == len(nears), "not each at one socket"
            return found

        first = owners()
        for _ in range(3):
            assert owners() == first, "it changes without a cause"
        fars[1].close("it")
        for near in nears:
            self._goes_to(fars[0], ["it"], "it", near, where)

    def errors_are_queued(self):
        for far, near, _ in self._hands_of_both_ages():
            near.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            far.close("it")
            in_time("ECONNREFUSED", lambda: is_refused(near))
            _, said, flags, _ = near.recvmsg(ROOM, 512, socket.MSG_ERRQUEUE)
            assert flags & socket.MSG_ERRQUEUE
            kinds = [(level, kind) for level, kind, _ in said]
            assert (socket.IPPROTO_IP, IP_RECVERR) in kinds, kinds

    # Descriptors and processes.

    def copies_are_the_same(self):
        for near, where in self._nears():
            copy, other = near.dup(), udp()
            os.dup2(near.fileno(), other.fileno())
            near.sendto(b"by one", where)
            assert copy.recvfrom(ROOM) == (b"by one", where)
            near.close()
            for each in (copy, other):
                assert each.getsockname() == copy.getsockname()
                asks(each, where, 100)
            copy.close()
            asks(other, where, 100)

    def a_child_goes_on_with_it(self):
        for near, where in self._nears():
            for _ in range(2):
                forked(lambda: asks(near, where, 100))()
                asks(near, where, 100)

    def parent_and_child_both_send(self):
        for far, near, where in self._hands_of_both_ages():

            def send(letter):
                for number in range(100):
                    near.send(b"%s%03d" % (letter, number))

            far.say("take", "it", 200)
            wait = forked(lambda: send(b"c"))
            send(b"p")
            taken = far.answer()
            wait()
            assert {tuple(who) for _, who in taken} == {near.getsockname()}
            for letter in (b"c", b"p"):
                got = [bytes.fromhex(data) for data, _ in taken]
                got = [data for data in got if data[:1] == letter]
                assert got == [b"%s%03d" % (letter, number) for number in range(100)]
            self._warm(far, "it", near, where)

    def an_image_inherits_it(self):
        for near, where in self._nears():
            fd = near.fileno()
            words = [sys.executable, sys.argv[0], "asks", str(fd), *map(str, where), "100"]
            assert subprocess.run(words, pass_fds=[fd]).returncode == 0
            asks(near, where, 100)

    def it_goes_by_message_to_another_process(self):
        for far, near, where in self._hands_of_both_ages():
            far.give("it")
            asks_again(near, where)
            asks(near, where, WARM_ROUNDS)

    def eight_processes_ask_one_socket(self):
        for way in ("plain", "edge"):
            where = self._echo(way)
            waits = [forked(lambda: asks(udp(), where, WARM_ROUNDS)) for _ in range(8)]
            for wait in waits:
                wait()

    def a_program_without_the_library_joins_in(self):
        where, near = self._echo(), udp()
        bare = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        words = [sys.executable, sys.argv[0], "asks", "-1", *map(str, where), str(WARM_ROUNDS)]
        other = subprocess.Popen(words, env=bare)
        while other.poll() is None:
            asks(near, where, 50)
        assert other.returncode == 0
