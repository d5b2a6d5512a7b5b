"""Counts by the statsd client of PyPI; compares with what the server, a collectd, has counted; prints "ok".

statsd_client.py HOST PORT SOCKET DIRECTORY     SOCKET: of its plugin unixsock, DIRECTORY: of its plugin csv

A gauge behind each round says when the server has read the round: no more lies in a buffer than fits there.
"""
import glob
import socket
import sys
import time

import statsd

ROUNDS = 200
OF_A_ROUND = 50
COUNTERS = 7
LIMIT_S = 30
HOST, PORT, SOCKET, DIRECTORY = sys.argv[1:]


class Server:
    """Asked by its plugin unixsock (collectd-unixsock(5))."""

    def __init__(self):
        link = socket.socket(socket.AF_UNIX)
        link.connect(SOCKET)
        self.lines = link.makefile("rw")

    def value(self, name):
        """As the last interval has it; none, if nothing has come."""
        self.lines.write(f"GETVAL server/statsd/{name}\n")
        self.lines.flush()
        count = int(self.lines.readline().split()[0])
        values = [self.lines.readline() for _ in range(max(count, 0))]
        return float(values[0].split("=")[1]) if values else None


def counted(name):
    """What a counter has come to; a line of the file is a time and that."""
    for file in glob.glob(f"{DIRECTORY}/server/statsd/derive-{name}-*"):
        with open(file) as lines:
            return int(lines.read().splitlines()[-1].split(",")[1])
    return None


def wait(what, is_there):
    until = time.monotonic() + LIMIT_S
    while not is_there():
        assert time.monotonic() < until, what()
        time.sleep(0.001)


server = Server()
client = statsd.StatsClient(HOST, int(PORT))
sums = {f"of_things_that_are_counted_{number}": 0 for number in range(COUNTERS)}
names = list(sums)
for turn in range(1, ROUNDS + 1):
    for number in range(turn, turn + OF_A_ROUND):
        name = names[number % COUNTERS]
        client.incr(name, number)
        sums[name] += number
    client.gauge("rounds", turn)
    wait(lambda: f"round {turn} does not come", lambda: server.value("gauge-rounds") == turn)
client.gauge("rounds", -1, delta=True)
wait(lambda: "the change does not come", lambda: server.value("gauge-rounds") == ROUNDS - 1)
for name, total in sums.items():
    wait(lambda: f"{name}: {counted(name)} of {total}", lambda: counted(name) == total)
print("ok")
