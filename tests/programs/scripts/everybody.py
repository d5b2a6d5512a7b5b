"""Broadcasts. `hear PORT`: checks each one, and acknowledges it to its sender. `speak ADDRESS PORT OWN`: broadcasts from its port OWN as
the lines of its input say, each time awaits the acknowledgements, and prints which of them the kernel has carried. If the two
ports are the same, it hears itself as well.

    say COUNT BYTES RECEIVERS       so many, each of which so many receivers acknowledge
    settle RECEIVERS                the same until the kernel carries none of them
    reach RECEIVERS                 the same until one more than acknowledged them does
    lost                            how many were lost, by what receivers say
"""

import hashlib
import socket
import struct
import sys

# Number, whether the kernel's count is wanted.
HEAD = struct.Struct("!QB")
# Number, broadcasts that were lost, datagrams that the kernel has given to the receiver's domain.
ANSWER = struct.Struct("!QQQ")
ROOM = 1 << 16
PATIENCE_S = 20
SETTLE_MAX = 20_000
SETTLED = 50


def body(number, count):
    digest = hashlib.blake2b(str(number).encode()).digest()
    return (digest * (count // len(digest) + 1))[:count]


def kernels(word):
    """A count of the kernel's of this domain's datagrams."""
    names, values = [line.split() for line in open("/proc/net/snmp") if line.startswith("Udp:")]
    return int(values[names.index(word)])


def hear(port):
    near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    near.bind(("", port))
    speakers = {}
    while True:
        message, speaker = near.recvfrom(ROOM)
        number, asks = HEAD.unpack_from(message)
        assert message[HEAD.size :] == body(number, len(message) - HEAD.size), f"{number} is another"
        last, lost = speakers.get(speaker, (number - 1, 0))
        assert number > last, f"{number} behind {last}"
        lost += number - last - 1
        speakers[speaker] = number, lost
        count = kernels("InDatagrams") if asks else 0
        near.sendto(ANSWER.pack(number, lost, count), speaker)


class Speaker:
    def __init__(self, address, port, own):
        self.hears_itself = own == port
        self.lost = {}
        self.all = (address, port)
        self.number = 0
        self.near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self.near.settimeout(PATIENCE_S)
        self.near.bind(("", own))

    def one(self, count, receivers, asks):
        """Broadcasts one; who has had it, with what the kernel has counted there."""
        self.number += 1
        message = HEAD.pack(self.number, asks) + body(self.number, count)
        assert self.near.sendto(message, self.all) == len(message)
        heard = {}
        awaits_own = self.hears_itself
        while awaits_own or len(heard) < receivers:
            try:
                answer, receiver = self.near.recvfrom(ROOM)
            except TimeoutError:
                sys.exit(f"{self.number} was heard by {sorted(heard)} alone")
            if self.hears_itself and answer == message:
                assert awaits_own, f"{self.number} came back twice"
                awaits_own = False
                continue
            number, lost, kernels_count = ANSWER.unpack(answer)
            if number >= self.first:
                self.answered.add(receiver[0])
            if number == self.number:
                assert receiver not in heard, f"{receiver} had {number} twice"
                heard[receiver] = kernels_count
                self.lost[receiver[0]] = lost
        return heard

    def say(self, count, size, receivers):
        """How many datagrams the kernel has sent for the speaker, and given to receivers."""
        before_out, before = kernels("OutDatagrams"), None
        self.first, self.answered = self.number + 1, set()
        for index in range(count):
            heard = self.one(size, receivers, index in (0, count - 1))
            before = before or heard
        by_kernel = sum(heard[receiver] - before.get(receiver, 0) for receiver in heard)
        return kernels("OutDatagrams") - before_out, by_kernel

    def settle(self, receivers):
        for _ in range(SETTLE_MAX // SETTLED):
            own = SETTLED if self.hears_itself else 0
            if self.say(SETTLED, 100, receivers) == (own, 0):
                return
        sys.exit("the kernel goes on carrying broadcasts")

    def reach(self, receivers):
        for _ in range(SETTLE_MAX // SETTLED):
            self.say(SETTLED, 100, receivers - 1)
            if len(self.answered) == receivers:
                return
        sys.exit(f"only {sorted(self.answered)} are reached")


def speak(*words):
    speaker = Speaker(*words)
    for line in sys.stdin:
        word, *numbers = line.split()
        numbers = [int(number) for number in numbers]
        if word == "settle":
            speaker.settle(*numbers)
            print("settled", speaker.number, flush=True)
        elif word == "reach":
            speaker.reach(*numbers)
            print("reached", speaker.number, flush=True)
        elif word == "lost":
            print("lost", sum(speaker.lost.values()), flush=True)
        else:
            out, into = speaker.say(*numbers)
            heard = " ".join(sorted(speaker.answered))
            print(f"said {speaker.number}: {out} sent, {into} received by the kernel; heard by {heard}", flush=True)


match sys.argv[1:]:
    case ["hear", port]:
        hear(int(port))
    case ["speak", address, port, own]:
        speak(address, int(port), int(own))
