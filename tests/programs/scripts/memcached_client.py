"""Stores values in memcached by four threads, reads each back and compares it.

memcached_client.py HOST PORT
"""
import os
import socket
import sys
import threading

SIZES = [1, 100, 4096, 70_000, 500_000]
ROUNDS = 60
THREADS = 4


def work(number, failures):
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as sock:
            answers = sock.makefile("rb")
            for turn in range(ROUNDS):
                key = b"key-%d-%d" % (number, turn % 7)
                value = os.urandom(SIZES[turn % len(SIZES)])
                sock.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
                assert answers.readline() == b"STORED\r\n"
                sock.sendall(b"get %s\r\n" % key)
                assert answers.readline() == b"VALUE %s 0 %d\r\n" % (key, len(value))
                assert answers.read(len(value) + 2) == value + b"\r\n", "another value"
                assert answers.readline() == b"END\r\n"
    except BaseException as failure:
        failures.append(f"thread {number}: {failure!r}")
        raise


failures = []
threads = [threading.Thread(target=work, args=(number, failures)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit("\n".join(failures) if failures else print("ok"))
