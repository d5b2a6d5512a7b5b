"""Stores values in memcached by UDP, reads each back and compares it; four threads, each with a socket of its own.

memcached_datagrams.py HOST PORT

A datagram begins with a frame of 8 bytes: number of the request, number of the datagram, how many they are, nothing
(memcached's doc/protocol.txt, "UDP protocol"). A request is one datagram.
"""
import os
import socket
import struct
import sys
import threading

SIZES = [1, 100, 1300, 30_000]
ROUNDS = 1500
THREADS = 4
FRAME = struct.Struct("!HHHH")


def ask(sock, number, request):
    """The whole answer."""
    sock.send(FRAME.pack(number, 0, 1, 0) + request)
    parts, total = {}, 1
    while len(parts) < total:
        answer = sock.recv(65536)
        of, part, total, _ = FRAME.unpack_from(answer)
        assert (of, part in parts) == (number, False), f"{of} for {number}, part {part}"
        parts[part] = answer[FRAME.size :]
    return b"".join(parts[part] for part in range(total))


def work(thread, failures):
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((sys.argv[1], int(sys.argv[2])))
            # Nothing is lost here: one request at a time fits into any buffer.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 10, 0))
            for turn in range(ROUNDS):
                key = b"key-%d-%d" % (thread, turn % 7)
                value = os.urandom(SIZES[turn % len(SIZES)])
                store = b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value)
                assert ask(sock, turn * 2, store) == b"STORED\r\n"
                expected = b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(value), value)
                assert ask(sock, turn * 2 + 1, b"get %s\r\n" % key) == expected, "another value"
    except BaseException as failure:
        failures.append(f"thread {thread}: {failure!r}")
        raise


failures = []
threads = [threading.Thread(target=work, args=(thread, failures)) for thread in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit("\n".join(failures) if failures else print("ok"))
