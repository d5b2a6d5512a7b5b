"""The far ends of udp.py's cases, each a process of its own, and who starts them.

A far end's standard input is the connection of the case that wants it. It first says its process and its port there.
`echo` then sends back what comes, `count` counts, and `hands` does what it is told, a line for each: name of the
method, what it takes; the answer is a line, too.
"""

import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys

# Room for any datagram.
ROOM = 65_536
FILLING = random.Random(1).randbytes(4096)
# Datagrams that a sender may have under way: far fewer than a receiver's buffer holds.
WINDOW = 64
# How often the counting end says how far it has come, in datagrams.
ACKNOWLEDGE = 32


def udp(family=socket.AF_INET):
    return socket.socket(family, socket.SOCK_DGRAM)


def numbered(number, size=64):
    """A datagram whose every byte follows from its number and size."""
    begin = number % 2048
    return struct.pack("=Q", number) + FILLING[begin : begin + size - 8]


def bound(host, port, options=()):
    own = udp(socket.AF_INET6 if ":" in host else socket.AF_INET)
    for level, name, value in options:
        own.setsockopt(level, name, value)
    own.bind((host, port))
    return own


def tell(control, answer):
    control.sendall(json.dumps(answer).encode() + b"\n")


def line_of(control):
    """A byte at a time: what comes behind it is for another reader."""
    line = b""
    while not line.endswith(b"\n"):
        byte = control.recv(1)
        if not byte:
            return None
        line += byte
    return json.loads(line)


def answer(own, data, who):
    while True:
        try:
            return own.sendto(data, who)
        except BlockingIOError:
            select.select([], [own], [])
        except ConnectionRefusedError:
            return None


def waiting(own, way):
    """Returns when there is something."""
    if way == "select":
        return lambda: select.select([own], [], [])
    if way == "poll":
        poll = select.poll()
        poll.register(own, select.POLLIN)
        return poll.poll
    epoll = select.epoll()
    epoll.register(own, select.EPOLLIN | (select.EPOLLET if way == "edge" else 0))
    return epoll.poll


def echo(control, way, host, port):
    own = bound(host, port)
    tell(control, [os.getpid(), own.getsockname()[1]])
    while way == "plain":
        data, who = own.recvfrom(ROOM)
        own.sendto(data, who)
    while way == "message":
        data, _, _, who = own.recvmsg(ROOM, 256)
        own.sendmsg([data[:3], data[3:]], [], 0, who)
    own.setblocking(False)
    wait = waiting(own, way)
    while True:
        wait()
        try:
            # What is triggered by level has to be told again of what is left.
            answer(own, *own.recvfrom(ROOM))
            while way == "edge":
                answer(own, *own.recvfrom(ROOM))
        except BlockingIOError:
            pass


def count(control, total):
    """Counts to `total`, and says what of it is amiss."""
    own = bound("0.0.0.0", 0)
    # Nothing for so long: what is under way may be lost.
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 200_000))
    tell(control, [os.getpid(), own.getsockname()[1]])
    counts = {"lost": 0, "late": 0, "twice": 0, "wrong": 0}
    room, missing = bytearray(ROOM), set()
    following = said = 0
    said_again, who = True, None
    while following <= total:
        try:
            size, who = own.recvfrom_into(room)
        except BlockingIOError:
            if not said_again:
                own.sendto(struct.pack("=Q", said), who)
                said_again = True
            continue
        (number,) = struct.unpack_from("=Q", room)
        if room[:size] != numbered(number):
            counts["wrong"] += 1
            continue
        if number >= following:
            missing.update(range(following, number))
            following = number + 1
        elif number in missing:
            missing.remove(number)
            counts["late"] += 1
        else:
            counts["twice"] += 1
        if following - said >= ACKNOWLEDGE:
            said, said_again = following, False
            own.sendto(struct.pack("=Q", said), who)
    counts["lost"] = len(missing)
    tell(control, [counts])


class Hands:
    """Sockets by name. Datagrams are written in hexadecimal digits."""

    def __init__(self):
        self.sockets = {}
        self.given = []

    def open(self, name, host, port, options):
        own = self.sockets[name] = bound(host, port, options)
        return own.getsockname()[1]

    def close(self, name):
        return self.sockets.pop(name).close()

    def option(self, name, level, option, value):
        return self.sockets[name].setsockopt(level, option, value)

    def connect(self, name, host, port):
        return self.sockets[name].connect((host, port))

    def send(self, name, data, host, port):
        return self.sockets[name].sendto(bytes.fromhex(data), (host, port))

    def _one(self, name):
        data, who = self.sockets[name].recvfrom(ROOM)
        return data.hex(), who

    def take(self, name, count):
        return [self._one(name) for _ in range(count)]

    def first(self, names, ms):
        """The first that has something, and what."""
        wanted = [self.sockets[name] for name in names]
        ready = select.select(wanted, [], [], ms / 1000)[0]
        name = names[wanted.index(ready[0])] if ready else None
        return [name, self._one(name)[0] if name else ""]

    def drain(self, name, ms):
        """All that comes, until there was silence for so long."""
        own, taken = self.sockets[name], []
        while select.select([own], [], [], ms / 1000)[0]:
            taken.append(self._one(name))
        return taken

    def message(self, name):
        data, said, flags, _ = self.sockets[name].recvmsg(ROOM, 512)
        return data.hex(), [(level, kind, what.hex()) for level, kind, what in said], flags

    def echo(self, name, count):
        """So many."""
        own = self.sockets[name]
        for _ in range(count):
            data, who = own.recvfrom(ROOM)
            own.sendto(data, who)

    def echo_until(self, name, last):
        """Until this one, which is not sent back."""
        own = self.sockets[name]
        while True:
            data, who = own.recvfrom(ROOM)
            if data.hex() == last:
                return None
            own.sendto(data, who)

    def give(self, name):
        """Another process echoes on it from now on; this one has it no more."""
        near, far = socket.socketpair()
        fd = far.fileno()
        words = [sys.executable, sys.argv[0], "given", str(fd)]
        self.given.append(subprocess.Popen(words, pass_fds=[fd]))
        far.close()
        own = self.sockets.pop(name)
        socket.send_fds(near, [b"x"], [own.fileno()])
        own.close()
        # It has it.
        return near.recv(1).hex()


def hands(control):
    it = Hands()
    tell(control, [os.getpid(), 0])
    while words := line_of(control):
        try:
            tell(control, getattr(it, words[0])(*words[1:]))
        except Exception as error:
            tell(control, {"error": repr(error)})


def given(fd):
    channel = socket.socket(fileno=int(fd))
    _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    own = socket.socket(fileno=fds[0])
    channel.send(b"x")
    while True:
        data, who = own.recvfrom(ROOM)
        own.sendto(data, who)


def serve(port):
    """A far end is the first of a process group, which ends as a whole."""
    started = {}
    listener = socket.create_server(("0.0.0.0", int(port)))

    def kill(pid):
        os.killpg(pid, signal.SIGKILL)
        started.pop(pid).wait()

    def end(_signal, _frame):
        for pid in list(started):
            kill(pid)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        control, _ = listener.accept()
        words = line_of(control)
        if not words:
            pass
        elif words[0] == "kill":
            # Twice is no error: a case has killed it, and its end does.
            if words[1] in started:
                kill(words[1])
            tell(control, True)
        else:
            argv = [sys.executable, sys.argv[0], "far", json.dumps(words)]
            process = subprocess.Popen(argv, stdin=control, start_new_session=True)
            started[process.pid] = process
        control.close()


def far(words):
    kind, *words = json.loads(words)
    control = socket.socket(fileno=0)
    try:
        {"echo": echo, "count": count, "hands": hands}[kind](control, *words)
    except Exception as error:
        tell(control, {"error": repr(error)})


def main(role, *words):
    {"serve": serve, "far": far, "given": given}[role](*words)
