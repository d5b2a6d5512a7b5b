"""Many connections to one program, all of them open at once.

    stack_crowd.py serve PORT           an event loop that echoes; says how many connections it had at most when it is ended
    stack_crowd.py ask HOST PORT COUNT  each connection is asked when it is made, and again when all are there
"""
import resource
import select
import signal
import socket
import sys

DESCRIPTORS = 20_000


def serve(port):
    listener = socket.create_server(("", port), backlog=1024)
    listener.setblocking(False)
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    held, most = {}, 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("most", most, flush=True)))
    print("ready", flush=True)
    while True:
        for number, _ in epoll.poll():
            if number == listener.fileno():
                connection, _ = listener.accept()
                held[connection.fileno()] = connection
                epoll.register(connection, select.EPOLLIN)
                most = max(most, len(held))
            elif got := held[number].recv(4096):
                # A few bytes: there is room.
                held[number].sendall(got)
            else:
                epoll.unregister(number)
                held.pop(number).close()


def words(number, turn):
    return b"%d by %d." % (number, turn)


def receive(connection, wanted):
    got = b""
    while len(got) < len(wanted):
        more = connection.recv(len(wanted) - len(got))
        assert more, "the end"
        got += more
    assert got == wanted, (got, wanted)


def ask(address, count):
    held = []
    for number in range(count):
        held.append(socket.create_connection(address, 30))
        held[-1].sendall(words(number, 1))
        receive(held[-1], words(number, 1))
    print("all are there", flush=True)
    for number, connection in enumerate(held):
        connection.sendall(words(number, 2))
    for number, connection in enumerate(held):
        receive(connection, words(number, 2))
    print("done", flush=True)


resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
match sys.argv[1:]:
    case ["serve", port]:
        serve(int(port))
    case ["ask", host, port, count]:
        ask((host, int(port)), int(count))
