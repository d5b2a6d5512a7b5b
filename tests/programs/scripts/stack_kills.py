"""A server that echoes, and clients of it that know each byte.

    stack_kills.py serve PORT
    stack_kills.py insist HOST PORT    asks on and on, over new connections where one broke; for each line it is told, it says
                                       when it was served by a connection that it has asked since, "served NUMBER"
    stack_kills.py steady HOST PORT    one connection, which may not break, until its input ends
"""
import os
import socket
import sys
import threading

PIECE = 20_000


def echo(connection):
    try:
        while got := connection.recv(65536):
            connection.sendall(got)
    except OSError:
        pass
    connection.close()


def serve(port):
    listener = socket.create_server(("", port), backlog=64)
    print("ready", flush=True)
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()


def ask(connection):
    sent = os.urandom(PIECE)
    connection.sendall(sent)
    got = bytearray()
    while len(got) < PIECE:
        more = connection.recv(PIECE - len(got))
        if not more:
            raise ConnectionError("the end")
        got += more
    if got != sent:
        print("another byte came back", file=sys.stderr, flush=True)
        os._exit(1)


def insist(address):
    told = threading.Semaphore(1)
    ended = threading.Event()

    def listen():
        for _ in sys.stdin:
            told.release()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    connection, number, wanted = None, 0, 0
    while not ended.is_set():
        while told.acquire(blocking=False):
            wanted += 1
        try:
            if connection is None:
                connection = socket.create_connection(address, 0.5)
            ask(connection)
        except OSError:
            if connection is not None:
                connection.close()
            connection = None
            continue
        while number < wanted:
            print("served", number, flush=True)
            number += 1


def steady(address):
    ended = threading.Event()

    def listen():
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    with socket.create_connection(address) as connection:
        ask(connection)
        print("served", flush=True)
        while not ended.is_set():
            ask(connection)


match sys.argv[1:]:
    case ["serve", port]:
        serve(int(port))
    case ["insist", host, port]:
        insist((host, int(port)))
    case ["steady", host, port]:
        steady((host, int(port)))
