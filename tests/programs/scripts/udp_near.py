"""The near end of udp.py's cases: how a far end is had, how it is asked, and how long anything may take."""

import json
import os
import select
import signal
import socket
import sys
import time

from udp_far import ROOM, numbered, udp

# Rounds after which a pair of sockets has had its chance of rings.
WARM_ROUNDS = 500
# How soon a change of the receivers must have been seen.
CHANGE_S = 1.0
CASE_S = 20


class Far:
    """A far end, which does what its methods' names say (udp_far.py)."""

    def __init__(self, serve, *words):
        self.serve = serve
        self.control = socket.create_connection(serve)
        self.lines = self.control.makefile("r")
        self.say(*words)
        self.pid, self.port = self.answer()

    def say(self, *words):
        self.control.sendall(json.dumps(words).encode() + b"\n")

    def answer(self):
        answer = json.loads(self.lines.readline() or '{"error": "the far end is gone"}')
        assert not isinstance(answer, dict), answer["error"]
        return answer

    def __getattr__(self, name):
        def call(*words):
            self.say(name, *words)
            return self.answer()

        return call

    def kill(self):
        """With SIGKILL; returns when it is gone."""
        with socket.create_connection(self.serve) as control:
            control.sendall(json.dumps(["kill", self.pid]).encode() + b"\n")
            assert control.makefile("r").readline() == "true\n"


class Late(Exception):
    pass


def late(_signal, _frame):
    raise Late("it takes too long")


def ask(near, where, data=b"ford"):
    """There and back."""
    near.sendto(data, where)
    got, who = near.recvfrom(ROOM)
    assert got == data, f"{len(got)} bytes {got[:16]!r} for {len(data)} bytes {data[:16]!r}"
    assert who[:2] == where[:2], f"{who} answers for {where}"


def asks(near, where, rounds):
    for number in range(rounds):
        ask(near, where, numbered(number))


def nothing(near):
    try:
        got = near.recv(ROOM, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return
    raise AssertionError(f"{len(got)} bytes {got[:16]!r}, where there is nothing")


def in_time(what, attempt):
    """Tries until it is true; not for longer than a change may take to be seen."""
    end = time.monotonic() + CHANGE_S
    while not attempt():
        assert time.monotonic() < end, f"{what}: not within {CHANGE_S} s"


def is_refused(near):
    try:
        near.send(b"anyone")
        select.select([near], [], [], 0.02)
        near.recv(ROOM, socket.MSG_DONTWAIT)
    except ConnectionRefusedError:
        return True
    except BlockingIOError:
        pass
    return False


def asks_again(near, where):
    """Somebody answers soon, and then always."""
    turn = 0

    def is_answered():
        nonlocal turn
        turn += 1
        try:
            near.sendto(b"again %d" % turn, where)
            return select.select([near], [], [], 0.02)[0] and near.recv(ROOM)
        except ConnectionRefusedError:
            return False

    in_time("an answer", is_answered)
    near.sendto(b"last", where)
    # Answers to what was asked before stand before it.
    while near.recv(ROOM) != b"last":
        pass
    asks(near, where, 200)


def forked(work):
    """A child that does this; the function that waits for it."""
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_REAL, CASE_S)
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(f"a child: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)

    def wait():
        assert os.waitpid(child, 0)[1] == 0, "a child has failed"

    return wait


def option(level, name, value=1):
    return [level, name, value]


class Near:
    """What the cases have in common. Their names do not begin with a line."""

    def __init__(self, ip, ip6, port, echo_port, *wanted):
        self._ip, self._ip6, self._port, self._echo_port = ip, ip6, int(port), int(echo_port)
        self._wanted, self._fars = wanted, []

    def _far(self, *words):
        far = Far((self._ip, self._port), *words)
        self._fars.append(far)
        return far

    def _echo(self, way="plain", host="0.0.0.0", port=0):
        """Where there is somebody who echoes."""
        return self._ip6 if ":" in host else self._ip, self._far("echo", way, host, port).port

    def _nears(self, way="plain"):
        """Two sockets and where to ask: one that is new, and one that has gone on for a while."""
        where = self._echo(way)
        for rounds in (0, WARM_ROUNDS):
            near = udp()
            asks(near, where, rounds)
            yield near, where

    def _hands(self, *options, host="0.0.0.0"):
        """A far end with a socket that is called "it", and where that is."""
        far = self._far("hands")
        port = far.open("it", host, 0, options)
        return far, (self._ip6 if ":" in host else self._ip, port)

    def _warm(self, far, name, near, where, rounds=WARM_ROUNDS):
        far.say("echo", name, rounds)
        asks(near, where, rounds)
        far.answer()

    def _hands_of_both_ages(self, *options):
        for rounds in (0, WARM_ROUNDS):
            far, where = self._hands(*options)
            near = udp()
            near.connect(where)
            self._warm(far, "it", near, where, rounds)
            yield far, near, where

    def _run(self):
        signal.signal(signal.SIGALRM, late)
        names = [name for name in vars(type(self)) if not name.startswith("_")]
        for name in [name for name in names if name in (self._wanted or names)]:
            signal.setitimer(signal.ITIMER_REAL, CASE_S)
            try:
                try:
                    getattr(self, name)()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, CASE_S)
                    while self._fars:
                        self._fars.pop().kill()
                print("ok", name, flush=True)
            except Exception as error:  # Each case is tried.
                at = error.__traceback__
                while at.tb_next and at.tb_next.tb_frame.f_code is not late.__code__:
                    at = at.tb_next
                where = f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}"
                why = " ".join(repr(error).split())[:300]
                print(f"FAIL {name}: {why} at {where}", flush=True)
            signal.setitimer(signal.ITIMER_REAL, 0)
