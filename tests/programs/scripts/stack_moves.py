"""A server under a stack of its own that hands its connection on in every way, and its client, which knows each byte.

    stack_moves.py serve PORT | ask HOST PORT | go-on NUMBER
    stack_moves.py endure PORT | insist HOST PORT | killed PORT | bereaved HOST PORT | part PORT | parted HOST PORT
    stack_moves.py survive PORT | die HOST PORT
    stack_moves.py urge PORT | urged HOST PORT
    stack_moves.py crowd PORT

Both say nothing but how far they are. A wrong byte, or one too many, is an error. A client that has said "warm" goes on
when its standard input ends: its rings are looked at until then.
"""
import array
import fcntl
import os
import random
import resource
import select
import signal
import socket
import sys
import termios
import time

STEP = 150
POURED = 3000


def record(number):
    return random.Random(number).randbytes(random.Random(-number - 1).randrange(1, 6000))


def receive(connection, number):
    want = record(number)
    got = bytearray()
    while len(got) < len(want):
        more = connection.recv(len(want) - len(got))
        if not more:
            raise EOFError(f"the end, {len(got)} bytes into record {number}")
        got += more
    if got != want:
        at = next(i for i in range(len(want)) if got[i] != want[i])
        raise ValueError(f"record {number}: byte {at} of {len(want)} is wrong")


def answer(connection, step):
    for number in range(step * STEP, (step + 1) * STEP):
        receive(connection, number)
        connection.sendall(record(number + 1_000_000))


def ask(connection, step):
    for number in range(step * STEP, (step + 1) * STEP):
        connection.sendall(record(number))
        receive(connection, number + 1_000_000)


def pour(connection):
    """Many bytes at once, from the first on: rings come while some are on their way."""
    for number in range(POURED):
        connection.sendall(record(number + 2_000_000))


def drink(connection):
    for number in range(POURED):
        receive(connection, number + 2_000_000)


def looked_at():
    print("warm", flush=True)
    sys.stdin.readline()


def in_child(act):
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child


def waited(child):
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        raise RuntimeError(f"a child ended with {status}")


def passed(connection):
    """The same connection, as a message brings it."""
    near, far = socket.socketpair()
    with near, far, connection:
        near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))])
        _, [(_, _, data)], _, _ = far.recvmsg(1, socket.CMSG_LEN(4))
    return socket.socket(fileno=array.array("i", data)[0])


def serve(port):
    listener = socket.create_server(("", port))
    print("ready", flush=True)
    connection = listener.accept()[0]
    answer(connection, 0)
    # A child goes on with it, then this process again.
    waited(in_child(lambda: answer(connection, 1)))
    answer(connection, 2)
    # A child that has it and leaves it alone.
    idle = in_child(signal.pause)
    answer(connection, 3)
    os.kill(idle, signal.SIGKILL)
    os.waitpid(idle, 0)
    copy = connection.dup()
    connection.close()
    answer(copy, 4)
    again = passed(copy)
    answer(again, 5)
    # Another connection, which only an exec hands on.
    connection = listener.accept()[0]
    pour(connection)
    drink(connection)
    answer(connection, 0)
    again.close()
    listener.close()
    os.set_inheritable(connection.fileno(), True)
    os.execv(sys.executable, [sys.executable, __file__, "go-on", str(connection.fileno())])


def go_on(number):
    connection = socket.socket(fileno=number)
    answer(connection, 1)
    connection.shutdown(socket.SHUT_WR)
    if connection.recv(1) != b"":
        raise ValueError("a byte too many")
    print("done", flush=True)


def client(host, port):
    with socket.create_connection((host, port)) as connection:
        for step in range(6):
            ask(connection, step)
            print(step, flush=True)
            if step == 0:
                looked_at()
        with socket.create_connection((host, port)) as other:
            drink(other)
            pour(other)
            ask(other, 0)
            ask(other, 1)
            if other.recv(1) != b"":
                raise ValueError("a byte too many")
            other.shutdown(socket.SHUT_WR)
        if connection.recv(1) != b"":
            raise ValueError("a byte too many")
    print("done", flush=True)


def endure(port):
    """Serves anew whenever its connection is broken off by its own stack, until a connection ends well."""
    while True:
        try:
            listener = socket.create_server(("", port))
        except OSError as error:
            # A stack that has ended is started again.
            print(error, file=sys.stderr, flush=True)
            time.sleep(0.05)
            continue
        with listener:
            print("ready", flush=True)
            connection = listener.accept()[0]
            with connection:
                try:
                    answer(connection, 0)
                    print("warm", flush=True)
                    # The stack is killed while this waits.
                    while connection.recv(1000):
                        pass
                    print("done", flush=True)
                    return
                except ConnectionError as error:
                    print(f"broken: {type(error).__name__}", flush=True)


def insist(host, port):
    """Once with a connection that breaks, once with one that does not."""
    for breaks in (True, False):
        connection = connected(host, port)
        with connection:
            ask(connection, 0)
            looked_at()
            if breaks:
                # A stack that is gone answers nothing, or that it knows of no such connection: asked again and again, it does.
                while True:
                    try:
                        connection.sendall(b"x")
                    except ConnectionError:
                        break
                    time.sleep(0.01)
    print("done", flush=True)


def connected(host, port):
    while True:
        try:
            connection = socket.create_connection((host, port), 1)
            connection.settimeout(None)
            return connection
        except OSError:
            time.sleep(0.05)


def killed(port):
    """Is killed with bytes unread, rings in use."""
    listener = socket.create_server(("", port))
    print("ready", flush=True)
    connection = listener.accept()[0]
    answer(connection, 0)
    connection.sendall(b"now")
    select.select([connection], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def bereaved(host, port):
    """The client of one that is killed."""
    with socket.create_connection((host, port)) as connection:
        ask(connection, 0)
        if connection.recv(3, socket.MSG_WAITALL) != b"now":
            raise ValueError("another word")
        looked_at()
        connection.sendall(b"never read")
        try:
            raise ValueError(f"no reset, but {connection.recv(1)}")
        except ConnectionResetError:
            print("done", flush=True)


def die(host, port):
    """A client that is killed with bytes unread, rings in use."""
    with socket.create_connection((host, port)) as connection:
        answer(connection, 0)
        looked_at()
        connection.sendall(b"now")
        select.select([connection], [], [])
        os.kill(os.getpid(), signal.SIGKILL)


def survive(port):
    """The server of one that is killed: the reset is known by its error, too, and once."""
    listener = socket.create_server(("", port))
    print("ready", flush=True)
    connection = listener.accept()[0]
    ask(connection, 0)
    if connection.recv(3, socket.MSG_WAITALL) != b"now":
        raise ValueError("another word")
    connection.sendall(b"never read")
    try:
        raise ValueError(f"no reset, but {connection.recv(1)}")
    except ConnectionResetError:
        pass
    if connection.recv(1) != b"":
        raise ValueError("a byte too many")
    print("done", flush=True)


WAYS = ("close", "linger", "both", "moved")
# More than the pair's kernel queue takes, in a ring.
MUCH = random.Random(7).randbytes(600_000)


def part(port):
    """Ends in each way, with bytes unread in the ring and some just sent."""
    listener = socket.create_server(("", port))
    print("ready", flush=True)
    for way in WAYS:
        connection = listener.accept()[0]
        answer(connection, 0)
        # What comes now is not read, or late.
        select.select([connection], [], [])
        if way == "moved":
            drained_late(connection)
            continue
        connection.sendall(b"last")
        if way == "linger":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if way == "both":
            connection.shutdown(socket.SHUT_RDWR)
            if connection.recv(99) != b"never read":
                raise ValueError("what was unread is gone")
        connection.close()
    print("done", flush=True)


def drained_late(connection):
    """Leaves the ring with more in it than the kernel has room for, and reads only after the far end has ended."""
    unread = array.array("i", [0])
    while unread[0] < len(MUCH) // 2:
        fcntl.ioctl(connection, termios.FIONREAD, unread)
    connection = passed(connection)
    connection.sendall(b"last")
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll(300)
    got = bytearray()
    while more := connection.recv(1 << 16):
        got += more
    if got != MUCH:
        raise ValueError(f"{len(got)} bytes of {len(MUCH)}")
    connection.close()


def parted(host, port):
    """The far end of one that ends in each way."""
    for way in WAYS:
        with socket.create_connection((host, port)) as connection:
            ask(connection, 0)
            looked_at()
            connection.sendall(MUCH if way == "moved" else b"never read")
            if connection.recv(4, socket.MSG_WAITALL) != b"last":
                raise ValueError(f"{way}: the last word is lost")
            if way == "moved":
                connection.shutdown(socket.SHUT_WR)
            try:
                end = connection.recv(1)
            except ConnectionResetError:
                end = "a reset"
            if end != (b"" if way in ("both", "moved") else "a reset"):
                raise ValueError(f"{way}: {end}")
            print(way, flush=True)
    print("done", flush=True)


def send_urgent(connection, number):
    """A record with an urgent byte in its midst."""
    whole = record(number)
    connection.sendall(whole[:len(whole) // 2])
    connection.send(b"!", socket.MSG_OOB)
    connection.sendall(whole[len(whole) // 2:])


def receive_urgent(connection, number):
    want, got = record(number), bytearray()
    if select.select([], [], [connection], 60)[2] != [connection]:
        raise ValueError("no urgent byte shows")
    while len(got) < len(want) // 2:
        got += connection.recv(len(want))
    if len(got) != len(want) // 2:
        raise ValueError(f"a receive of {len(got)} bytes goes over the mark")
    if connection.recv(1, socket.MSG_OOB) != b"!":
        raise ValueError("another urgent byte")
    while len(got) < len(want):
        got += connection.recv(len(want) - len(got))
    if got != want:
        raise ValueError("wrong bytes beside the urgent one")


def urge(port):
    """Urgent bytes both ways, rings in use before the first."""
    with socket.create_server(("", port)) as listener:
        print("ready", flush=True)
        with listener.accept()[0] as connection:
            connection.settimeout(60)
            answer(connection, 0)
            receive_urgent(connection, 900)
            send_urgent(connection, 901)
            answer(connection, 1)
    print("done", flush=True)


def urged(host, port):
    with socket.create_connection((host, port), 60) as connection:
        ask(connection, 0)
        looked_at()
        send_urgent(connection, 900)
        receive_urgent(connection, 901)
        ask(connection, 1)
    print("done", flush=True)


def crowd(port):
    """Connections of a program with itself."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    listener = socket.create_server(("", port))
    held = []
    for _ in range(2000):
        held.append(socket.create_connection(("127.0.0.1", port)))
        held.append(listener.accept()[0])
    print("ready", flush=True)
    signal.pause()


match sys.argv[1:]:
    case ["serve", port]:
        serve(int(port))
    case ["ask", host, port]:
        client(host, int(port))
    case ["go-on", number]:
        go_on(int(number))
    case ["endure", port]:
        endure(int(port))
    case ["insist", host, port]:
        insist(host, int(port))
    case ["killed", port]:
        killed(int(port))
    case ["bereaved", host, port]:
        bereaved(host, int(port))
    case ["survive", port]:
        survive(int(port))
    case ["die", host, port]:
        die(host, int(port))
    case ["part", port]:
        part(int(port))
    case ["parted", host, port]:
        parted(host, int(port))
    case ["urge", port]:
        urge(int(port))
    case ["urged", host, port]:
        urged(host, int(port))
    case ["crowd", port]:
        crowd(int(port))
