"""Answers each frame (length as 4 bytes, payload) with its SHA-256 and the payload.

echo_server.py threads|selectors|asyncio PORT
"""
import asyncio
import hashlib
import selectors
import signal
import socket
import struct
import sys
import threading

HEAD = struct.Struct("!I")


def answer(payload):
    return hashlib.sha256(payload).digest() + payload


def with_threads(port):
    def serve(sock):
        with sock, sock.makefile("rb") as frames:
            while len(head := frames.read(HEAD.size)) == HEAD.size:
                sock.sendall(answer(frames.read(*HEAD.unpack(head))))

    with socket.create_server(("0.0.0.0", port)) as listener:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=serve, args=(sock,), daemon=True).start()


def with_selectors(port):
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("0.0.0.0", port))
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)

    def receive(sock, received, to_send):
        try:
            piece = sock.recv(65536)
        except BlockingIOError:
            return True
        received += piece
        while len(received) >= HEAD.size:
            end = HEAD.size + HEAD.unpack_from(received)[0]
            if len(received) < end:
                break
            to_send += answer(bytes(received[HEAD.size:end]))
            del received[:end]
        return piece != b""

    def send(sock, to_send):
        try:
            del to_send[:sock.send(to_send)]
        except BlockingIOError:
            pass

    while True:
        for key, events in selector.select():
            if key.data is None:
                sock, _ = listener.accept()
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_READ, (bytearray(), bytearray()))
                continue
            received, to_send = key.data
            alive = True
            if events & selectors.EVENT_READ:
                alive = receive(key.fileobj, received, to_send)
            if to_send and alive:
                send(key.fileobj, to_send)
            if alive:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if to_send else 0)
                selector.modify(key.fileobj, wanted, key.data)
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def with_asyncio(port):
    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readexactly(HEAD.size)
                writer.write(answer(await reader.readexactly(*HEAD.unpack(head))))
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    async def main():
        server = await asyncio.start_server(serve, "0.0.0.0", port)
        await server.serve_forever()

    asyncio.run(main())


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ways = {"threads": with_threads, "selectors": with_selectors, "asyncio": with_asyncio}
ways[sys.argv[1]](int(sys.argv[2]))
