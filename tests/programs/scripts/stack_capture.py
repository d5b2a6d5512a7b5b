"""A server under a stack of its own, and a client by the kernel that shows each kind of packet to whoever captures.

    stack_capture.py serve PORT | ask HOST PORT

The client says "warm" once its first connection was used, and goes on when its standard input ends. Both hold every byte to be the
right one. Nobody listens at PORT + 1.
"""
import errno
import random
import socket
import sys
import threading

MB = 1 << 20
FAMILIES = [(socket.AF_INET, 8), (socket.AF_INET6, 2)]
WARM = 40
SHORT = 20
# The longer ones go in fragments.
DATAGRAMS = [0, 1, 2, 3, 64, 1471, 1472, 1473, 4000, 30001] * 6


def block(number, length=MB):
    return random.Random(number).randbytes(length)


def receive(connection, number, length=MB):
    want, got = block(number, length), bytearray()
    while len(got) < length:
        more = connection.recv(min(length - len(got), 1 << 18))
        if not more:
            raise EOFError(f"the end, {len(got)} bytes into block {number}")
        got += more
    if got != want:
        raise ValueError(f"block {number} is wrong")


def ended(connection):
    if connection.recv(1):
        raise ValueError("a byte too many")


def exchange(connection, first, blocks):
    """Both ways at once, then one after the other."""
    here, far = first

    def send(numbers):
        for number in numbers:
            connection.sendall(block(number))

    sender = threading.Thread(target=send, args=([here + number for number in range(blocks)],))
    sender.start()
    for number in range(blocks):
        receive(connection, far + number)
    sender.join()
    for turn in sorted(first):
        if turn == here:
            send([here + blocks])
        else:
            receive(connection, far + blocks)


def talk(connection, asks):
    for number in range(WARM):
        if asks:
            connection.sendall(block(number, 100))
            receive(connection, -number - 1, 100)
        else:
            receive(connection, number, 100)
            connection.sendall(block(-number - 1, 100))


def echo(port):
    far = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    far.bind(("::", port))
    while True:
        datagram, sender = far.recvfrom(1 << 16)
        far.sendto(datagram[::-1], sender)


def serve(port):
    threading.Thread(target=echo, args=(port,), daemon=True).start()
    listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    print("ready", flush=True)
    for _, blocks in FAMILIES:
        connection, _ = listener.accept()
        with connection:
            talk(connection, asks=False)
            exchange(connection, (2000, 1000), blocks)
            ended(connection)
        for number in range(SHORT):
            connection, _ = listener.accept()
            with connection:
                receive(connection, number, 2000)
                connection.sendall(block(number, 3000))
                if number % 2:
                    ended(connection)
    print("done", flush=True)
    sys.stdin.readline()


def datagrams(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as near:
        near.connect(address)
        near.settimeout(5)
        for number, length in enumerate(DATAGRAMS):
            sent = block(number, length)
            for _ in range(5):
                near.send(sent)
                try:
                    while near.recv(1 << 16) != sent[::-1]:
                        pass
                    break
                except TimeoutError:
                    pass
            else:
                raise TimeoutError(f"datagram {number} of {length} bytes")


def refused(family, kind, address):
    with socket.socket(family, kind) as near:
        near.settimeout(30)
        try:
            near.connect(address)
            near.send(b"anybody?")
            near.recv(1)
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return
            raise
    raise ValueError("somebody is there")


def ask(host, port):
    for family, blocks in FAMILIES:
        address = socket.getaddrinfo(host, port, family)[0][4]
        nobody = (address[0], port + 1) + address[2:]
        with socket.socket(family) as connection:
            connection.connect(address)
            talk(connection, asks=True)
            if family == socket.AF_INET:
                print("warm", flush=True)
                sys.stdin.readline()
            exchange(connection, (1000, 2000), blocks)
        for number in range(SHORT):
            with socket.socket(family) as connection:
                connection.connect(address)
                connection.sendall(block(number, 2000))
                receive(connection, number, 3000)
                if not number % 2:
                    ended(connection)
        datagrams(family, address)
        refused(family, socket.SOCK_STREAM, nobody)
        refused(family, socket.SOCK_DGRAM, nobody)
    print("done", flush=True)


match sys.argv[1:]:
    case ["serve", port]:
        serve(int(port))
    case ["ask", host, port]:
        ask(host, int(port))
    case _:
        sys.exit(__doc__)
