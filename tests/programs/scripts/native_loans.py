"""Loans of the native API in Python: `native_loans.py serve PORT` gives each message back, `native_loans.py DOMAIN PORT`
tries what may and what may not be done with them. It prints `ok` and a name for each case."""
import errno
import gc
import sys

import fordway

ROUNDS = 2000
LENGTHS = (1, 64, 3000, 65536, 1 << 20)


def serve(port):
    with fordway.Socket(fordway.SEQPACKET) as socket:
        socket.bind((fordway.ANY, port))
        socket.listen()
        while True:
            with socket.accept()[0] as asker:
                while (shown := asker.peek()) is not None:
                    with shown, asker.reserve(len(shown)) as room:
                        room[:] = shown
                        length = len(shown)
                    asker.release()
                    asker.commit(length)


def asked(where):
    socket = fordway.Socket(fordway.SEQPACKET)
    socket.connect(where)
    return socket


def exchange(socket, message):
    with socket.reserve(len(message)) as room:
        room[:] = message
    socket.commit(len(message))
    with socket.peek() as shown:
        assert shown.readonly and bytes(shown) == message, len(message)
    socket.release()


def raised(kind, call, number=None):
    try:
        call()
    except kind as error:
        assert number is None or error.errno == number, error
    else:
        raise AssertionError(f"{call} raised no {kind}")


def whole(where):
    """Each byte of messages of all lengths, by the kernel at first and by rings then."""
    with asked(where) as socket:
        for round in range(ROUNDS):
            length = LENGTHS[round % len(LENGTHS)] if round % 20 == 0 else round
            exchange(socket, bytes((round + place) % 251 for place in range(min(length, 5000))) * (length // 5000 or 1))


def views(where):
    """While any view lives, the loan does not end."""
    with asked(where) as socket:
        room = socket.reserve(10)
        part = room[2:5]
        room.release()
        raised(BufferError, lambda: socket.commit(10))
        raised(BufferError, socket.cancel)
        raised(OSError, lambda: socket.reserve(1), errno.EBUSY)
        raised(OSError, lambda: socket.send(b"other"), errno.EBUSY)
        part[:] = b"abc"
        del part
        socket.commit(5)
        shown = socket.peek()
        kept = memoryview(shown).cast("c")
        shown.release()
        raised(BufferError, socket.release)
        raised(OSError, lambda: socket.recv(1), errno.EBUSY)
        assert bytes(kept[2:5]) == b"abc"
        raised(TypeError, lambda: kept.__setitem__(0, b"x"))
        kept.release()
        socket.release()
        raised(OSError, lambda: socket.commit(1), errno.EINVAL)
        raised(OSError, socket.release, errno.EINVAL)


def given_back(where):
    """What is cancelled is not sent; what is longer than the room is refused."""
    with asked(where) as socket:
        socket.reserve(100).release()
        socket.cancel()
        socket.reserve(100).release()
        raised(OSError, lambda: socket.commit(101), errno.EINVAL)
        exchange(socket, b"the first that is sent")


def outlived(where):
    """A view is good for as long as it lives, also behind the end of its socket."""
    for end in (lambda socket: socket.close(), lambda socket: None):
        socket = asked(where)
        for _ in range(20):
            exchange(socket, b"rings")
        socket.send(b"shown at the end")
        room, shown = socket.reserve(1 << 16), socket.peek()
        end(socket)
        del socket
        gc.collect()
        room[:] = bytes(1 << 16)
        assert bytes(shown) == b"shown at the end"
        # With them the connection ends, and the service goes on.
        del room, shown


where, port = sys.argv[1:]
if where == "serve":
    serve(int(port))
for case in (whole, views, given_back, outlived):
    case((where, int(port)))
    print("ok", case.__name__)
