"""Sends random frames over several connections to echo_server.py and compares the answers.

echo_client.py threads|selectors|asyncio HOST PORT
"""
import asyncio
import hashlib
import os
import selectors
import socket
import struct
import sys
import threading

SIZES = [0, 1, 100, 5000, 65_536, 700_000, 1_200_000]
ROUNDS = 2
CONNECTIONS = 4
ADDRESS = (sys.argv[2], int(sys.argv[3]))


def payloads():
    return [os.urandom(size) for _ in range(ROUNDS) for size in SIZES]


def frame(payload):
    return struct.pack("!I", len(payload)) + payload


def answer(payload):
    return hashlib.sha256(payload).digest() + payload


def with_threads():
    failures = []

    def talk(number):
        try:
            with socket.create_connection(ADDRESS) as sock, sock.makefile("rb") as answers:
                for payload in payloads():
                    sock.sendall(frame(payload))
                    expected = answer(payload)
                    assert answers.read(len(expected)) == expected, "another answer"
                sock.shutdown(socket.SHUT_WR)
                assert answers.read(1) == b"", "bytes after the last answer"
        except BaseException as failure:
            failures.append(f"connection {number}: {failure!r}")

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def with_selectors():
    selector = selectors.DefaultSelector()
    for _ in range(CONNECTIONS):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(ADDRESS)
        all_payloads = payloads()
        to_send = bytearray(b"".join(map(frame, all_payloads)))
        expected = b"".join(map(answer, all_payloads))
        selector.register(sock, selectors.EVENT_WRITE, (to_send, bytearray(), expected))
    while selector.get_map():
        for key, events in selector.select():
            to_send, received, expected = key.data
            sock = key.fileobj
            if events & selectors.EVENT_WRITE:
                try:
                    del to_send[:sock.send(to_send[:200_000])]
                except BlockingIOError:
                    pass
                # As soon as all is sent, "writable" would be true for ever.
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if to_send else 0)
                selector.modify(sock, wanted, key.data)
            if events & selectors.EVENT_READ:
                try:
                    piece = sock.recv(100_000)
                except BlockingIOError:
                    continue
                assert piece, "the server closed"
                received += piece
                if len(received) >= len(expected):
                    assert received == expected, "other answers"
                    selector.unregister(sock)
                    sock.close()


def with_asyncio():
    async def talk():
        reader, writer = await asyncio.open_connection(*ADDRESS)
        for payload in payloads():
            writer.write(frame(payload))
            await writer.drain()
            expected = answer(payload)
            assert await reader.readexactly(len(expected)) == expected, "another answer"
        writer.write_eof()
        assert await reader.read() == b"", "bytes after the last answer"
        writer.close()
        await writer.wait_closed()

    async def main():
        await asyncio.gather(*(talk() for _ in range(CONNECTIONS)))

    asyncio.run(main())


ways = {"threads": with_threads, "selectors": with_selectors, "asyncio": with_asyncio}
ways[sys.argv[1]]()
print("ok")
