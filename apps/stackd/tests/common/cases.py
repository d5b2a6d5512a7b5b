"""What sockets do, one line a case. Run under a stack of its own, and on the kernel's: the lines are compared.

usage: cases.py FAR_SOCKET [WORDS]     the program's address is 10.70.0.5, the far end's 10.70.0.1
"""
import array, ctypes, errno, fcntl, hashlib, os, select, signal, socket, struct, subprocess, sys, threading, time

OWN, FAR, NOBODY = "10.70.0.5", "10.70.0.1", "10.70.99.99"
OWN6, FAR6 = "fd70::5", "fd70::1"
FIONREAD, SIOCOUTQ = 0x541B, 0x5411

told = socket.socket(socket.AF_UNIX)
told.connect(sys.argv[1])
lines = told.makefile("rwb")


def far(code):
    lines.write(repr(code).encode() + b"\n")
    lines.flush()
    return eval(lines.readline())


def e(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def take(count, from_socket):
    taken = b""
    while len(taken) < count:
        part = from_socket.recv(count - len(taken))
        if not part:
            break
        taken += part
    return taken


def shown(sock, events=select.POLLIN | select.POLLOUT | select.POLLRDHUP, wait_ms=0):
    poll = select.poll()
    poll.register(sock, events)
    mask = dict(poll.poll(wait_ms)).get(sock.fileno(), 0)
    names = ["IN", "OUT", "ERR", "HUP", "RDHUP"]
    return "|".join(n for n in names if mask & getattr(select, "POLL" + n)) or "-"


def number(sock, request):
    place = array.array("i", [0])
    fcntl.ioctl(sock, request, place)
    return place[0]


def until(test):
    for _ in range(30000):
        if test():
            return
        time.sleep(0.001)
    raise TimeoutError


def tcp(family=socket.AF_INET):
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(30)
    return sock


def udp(family=socket.AF_INET):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.settimeout(30)
    return sock


def blocking(sock):
    sock.setblocking(True)
    return sock


def listener(port, address="", family=socket.AF_INET, backlog=16):
    sock = tcp(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(backlog)
    return sock


def pair(port):
    """A connection that the far end has begun: ours, and c there."""
    with listener(port) as listens:
        far(f"c = socket.create_connection(('{OWN}', {port}), 30)")
        ours, _ = listens.accept()
    ours.settimeout(30)
    return ours


def to_far(port):
    """A connection that we have begun: ours, and d there."""
    far(f"l = socket.create_server(('', {port}), reuse_port=True)")
    ours = tcp()
    ours.connect((FAR, port))
    far("d = l.accept()[0]; d.settimeout(30); l.close()")
    return ours


def talked(ours):
    """The same connection after so many words that it has rings where there are any."""
    far("t = threading.Thread(target=lambda: [c.sendall(c.recv(1)) for _ in range(500)]); t.start()")
    for _ in range(500):
        ours.sendall(b"x")
        ours.recv(1)
    far("t.join()")
    return ours


CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def fresh():
    for make in (tcp, udp):
        for family in (socket.AF_INET, socket.AF_INET6):
            sock = make(family)
            get = lambda name: sock.getsockopt(socket.SOL_SOCKET, name)
            names = [socket.SO_TYPE, socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_ERROR, socket.SO_ACCEPTCONN]
            yield [get(name) for name in names], sock.getsockname(), e(sock.getpeername)
            yield e(sock.shutdown, socket.SHUT_WR), e(blocking(sock).recv, 1) if make is tcp else None


@case
def fresh_bytes():
    sock = tcp()
    blocking(sock)
    yield e(sock.send, b"x"), e(sock.recv, 1), e(sock.accept)
    yield e(udp().send, b"x"), e(blocking(udp()).accept), e(udp().listen, 1)


@case
def options():
    sock = tcp()
    get = lambda level, name: e(sock.getsockopt, level, name)
    set_ = lambda level, name, value: e(sock.setsockopt, level, name, value)
    S, T, P, V = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
    for name in ("TCP_NODELAY", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT", "TCP_DEFER_ACCEPT", "TCP_CORK"):
        number = getattr(socket, name)
        before = get(T, number)
        yield name, before, set_(T, number, 7), get(T, number)
    for name in ("SO_REUSEADDR", "SO_REUSEPORT", "SO_KEEPALIVE", "SO_BROADCAST", "SO_PRIORITY", "SO_OOBINLINE"):
        number = getattr(socket, name)
        yield name, get(S, number), set_(S, number, 5), get(S, number)
    yield set_(T, socket.TCP_KEEPIDLE, 0), set_(T, socket.TCP_KEEPCNT, 200), set_(T, 99, 1), get(T, 99)
    yield sock.getsockopt(S, socket.SO_LINGER, 8), set_(S, socket.SO_LINGER, struct.pack("ii", 1, 3)), sock.getsockopt(S, socket.SO_LINGER, 8)
    yield get(P, socket.IP_TOS), set_(P, socket.IP_TOS, 16), get(P, socket.IP_TOS), get(P, socket.IP_TTL), set_(V, socket.IPV6_V6ONLY, 1)
    four, six = udp(), tcp(socket.AF_INET6)
    for own, level, name, values in (
        (sock, P, socket.IP_TTL, (0, 1, 255, 256, -1, -2)), (sock, P, socket.IP_TOS, (3, 255, 256, -1, b"\x18")), (four, P, socket.IP_TOS, (3, 256, -1)),
        (six, V, socket.IPV6_UNICAST_HOPS, (0, 255, 256, -1, -2)), (six, V, socket.IPV6_TCLASS, (3, 255, 256, -1, -2)), (six, P, socket.IP_TTL, (9,)),
    ):
        yield level, name, e(own.getsockopt, level, name), [(e(own.setsockopt, level, name, value), e(own.getsockopt, level, name)) for value in values]
    yield set_(S, socket.SO_RCVTIMEO, struct.pack("ll", 1, 500000)), sock.getsockopt(S, socket.SO_RCVTIMEO, 16)
    yield set_(T, socket.TCP_NODELAY, b""), e(udp().setsockopt, T, socket.TCP_NODELAY, 1), e(udp().getsockopt, T, socket.TCP_NODELAY)
    yield six.getsockopt(V, socket.IPV6_V6ONLY), e(six.setsockopt, V, socket.IPV6_V6ONLY, 1), six.getsockopt(V, socket.IPV6_V6ONLY)
    sock.setsockopt(S, socket.SO_SNDBUF, 50000)
    yield sock.getsockopt(S, socket.SO_SNDBUF), len(sock.getsockopt(T, socket.TCP_INFO, 8)), sock.getsockopt(T, socket.TCP_INFO, 1)
    yield set_(T, socket.TCP_CONGESTION, b"nonesuch"), e(sock.getsockopt, S, socket.SO_TYPE, 2)


@case
def binds():
    first = tcp()
    yield e(first.bind, (OWN, 7001)), first.getsockname(), e(first.bind, (OWN, 7002)), shown(first) != "IN"
    second = tcp()
    yield e(second.bind, (OWN, 7001)), e(second.bind, ("", 7001)), e(second.bind, ("127.0.0.1", 7001)), e(second.bind, ("10.70.0.77", 0))
    for reuse in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        a, b, c = tcp(), tcp(), tcp()
        for sock in (a, b):
            sock.setsockopt(socket.SOL_SOCKET, reuse, 1)
        yield e(a.bind, ("", 7003)), e(b.bind, ("", 7003)), e(a.listen, 1), e(b.listen, 1), e(c.bind, ("", 7003))
    chosen = tcp()
    chosen.bind(("", 0))
    yield chosen.getsockname()[1] >= 32768
    six, four = tcp(socket.AF_INET6), tcp()
    yield e(six.bind, ("::", 7005)), e(four.bind, ("", 7005)), six.getsockname()[:2]
    six, four = tcp(socket.AF_INET6), tcp()
    six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    yield e(six.bind, ("::", 7006)), e(four.bind, ("", 7006)), e(six.listen, 4), e(four.listen, 4)
    yield e(six.setsockopt, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    u, v = udp(), udp()
    yield e(u.bind, ("", 7007)), e(v.bind, ("", 7007)), e(v.bind, (OWN, 7007)), e(v.bind, (OWN, 7008)), v.getsockname()
    closed = tcp()
    closed.bind(("", 7009))
    closed.close()
    yield e(tcp().bind, ("", 7009))


@case
def refused():
    sock = tcp()
    yield e(blocking(sock).connect, (FAR, 7)), e(sock.getpeername), sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    sock = tcp()
    sock.setblocking(False)
    yield sock.connect_ex((FAR, 7)) == errno.EINPROGRESS
    shown(sock, select.POLLOUT, 30000)
    yield shown(sock), errno.errorcode.get(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    yield e(sock.recv, 1), e(sock.send, b"x")
    sock = tcp()
    sock.setblocking(False)
    sock.connect_ex((FAR, 7))
    shown(sock, select.POLLOUT, 30000)
    yield errno.errorcode.get(sock.connect_ex((FAR, 7)))
    yield e(tcp().connect, ("127.0.0.1", 7)), e(tcp(socket.AF_INET6).connect, (FAR6, 7))


@case
def refused_and_again():
    sock = blocking(tcp())
    kept = [(6, socket.TCP_NODELAY, 1), (1, socket.SO_KEEPALIVE, 1), (6, socket.TCP_KEEPIDLE, 77), (1, socket.SO_LINGER, struct.pack("ii", 1, 9)),
        (1, socket.SO_RCVTIMEO, struct.pack("ll", 3, 0))]
    for option in kept:
        sock.setsockopt(*option)
    yield e(sock.connect, (FAR, 7))
    far("l = socket.create_server(('', 7011), reuse_port=True)")
    yield e(sock.connect, (FAR, 7011)), sock.getpeername()
    far("d = l.accept()[0]; l.close()")
    sock.sendall(b"again")
    yield far("take(5, d)"), [sock.getsockopt(level, name, 16) for level, name, _ in kept]


@case
def connects():
    far("l = socket.create_server(('', 7012), reuse_port=True)")
    sock = blocking(tcp())
    yield e(sock.connect, (FAR, 7012)), sock.getpeername(), sock.getsockname()[0], e(sock.connect, (FAR, 7012))
    yield far("d, n = l.accept(); (n[0], n[1])") in (None,), far("n") == sock.getsockname(), shown(sock)
    sock.close()
    yield far("d.recv(1)")
    sock = tcp()
    sock.bind((OWN, 7013))
    yield e(sock.connect, (FAR, 7012)), sock.getsockname(), far("l.accept()[1]")
    sock = tcp()
    sock.setblocking(False)
    yield errno.errorcode.get(sock.connect_ex((FAR, 7012)))
    yield shown(sock, select.POLLOUT, 30000), sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    yield sock.connect_ex((FAR, 7012)), errno.errorcode.get(sock.connect_ex((FAR, 7012)))
    yield e(sock.recv, 1), shown(sock), e(sock.listen, 1)
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    yield len(info), info[0]
    far("l.close()")


@case
def segments():
    """What a program cuts its datagrams by that asks a connection beside them (iperf3)."""
    T = socket.IPPROTO_TCP
    told = lambda sock: (sock.getsockopt(T, socket.TCP_MAXSEG), struct.unpack_from("I", sock.getsockopt(T, socket.TCP_INFO, 104), 16))
    yield tcp().getsockopt(T, socket.TCP_MAXSEG), listener(7024).getsockopt(T, socket.TCP_MAXSEG)
    yield told(pair(7015)), told(to_far(7016))
    far("l = socket.create_server(('', 7017), family=socket.AF_INET6)")
    six = tcp(socket.AF_INET6)
    six.connect((FAR6, 7017))
    yield told(six)
    far("l.close()")


@case
def paths():
    """Name servers set it, and stop where they cannot (unbound)."""
    P, V, MTU, MTU6 = socket.IPPROTO_IP, socket.IPPROTO_IPV6, 14, 24
    four, six = udp(), udp(socket.AF_INET6)
    yield [e(six.setsockopt, V, MTU6, value) for value in (1280, 1279, 1, 0, 70000)], e(six.getsockopt, V, MTU6)
    yield e(four.setsockopt, P, MTU, 1280), e(four.getsockopt, P, MTU), e(four.setsockopt, V, MTU6, 1280), e(four.getsockopt, V, MTU6)
    four.connect((FAR, 9))
    six.connect((FAR6, 9))
    yield four.getsockopt(P, MTU), six.getsockopt(V, MTU6), e(six.getsockopt, P, MTU)
    yield to_far(7018).getsockopt(P, MTU), e(listener(7019).getsockopt, P, MTU)


@case
def connects_by_epoll():
    far("l = socket.create_server(('', 7014), reuse_port=True)")
    epoll = select.epoll()
    sock = tcp()
    sock.setblocking(False)
    sock.connect_ex((FAR, 7014))
    epoll.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET | select.EPOLLRDHUP)
    yield [mask for _, mask in epoll.poll(30)] == [select.EPOLLOUT]
    yield epoll.poll(0)
    far("d = l.accept()[0]; d.sendall(b'one')")
    while not (events := epoll.poll(30)) or not events[0][1] & select.EPOLLIN:
        pass
    yield bool(events[0][1] & select.EPOLLIN), sock.recv(8), epoll.poll(0)
    far("d.sendall(b'two')")
    yield len(epoll.poll(30)), sock.recv(8)
    far("d.shutdown(socket.SHUT_WR)")
    yield bool(epoll.poll(30)[0][1] & select.EPOLLRDHUP), sock.recv(8), shown(sock)
    far("l.close()")


@case
def nobody():
    sock = blocking(tcp())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300000))
    yield e(sock.connect, (NOBODY, 80)), e(sock.getpeername), shown(sock)
    yield e(blocking(tcp()).connect, (NOBODY, 81))
    yield e(tcp().connect, ("198.51.100.1", 80))


@case
def accepts():
    listens = listener(7020)
    yield shown(listens), listens.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), listens.getsockname(), e(listens.getpeername)
    listens.setblocking(False)
    yield e(listens.accept), e(listens.recv, 1)
    far(f"c = socket.create_connection(('{OWN}', 7020)); c.sendall(b'early')")
    yield shown(listens, select.POLLIN, 30000)
    ours, name = listens.accept()
    yield name == tuple(far("c.getsockname()")), ours.getpeername() == name, ours.getsockname(), shown(ours, select.POLLIN, 30000), ours.recv(9)
    yield listens.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0], ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0]
    yield os.get_inheritable(ours.fileno()), ours.getblocking(), shown(listens)
    yield e(listens.connect, (FAR, 7)), e(listens.bind, ("", 0)), e(listens.listen, 5)
    listens.close()
    yield far(f"e(socket.create_connection, ('{OWN}', 7020))")


@case
def accept_ends():
    listens = listener(7021)
    threading.Timer(0.2, lambda: listens.shutdown(socket.SHUT_RDWR)).start()
    yield e(blocking(listens).accept)
    listens = listener(7022)
    listens.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 200000))
    blocking(listens)
    yield e(socket.socket._accept, listens)


@case
def half_closes():
    ours = pair(7030)
    ours.sendall(b"question")
    ours.shutdown(socket.SHUT_WR)
    yield far("take(99, c)"), e(ours.send, b"x"), shown(ours)
    far("c.sendall(b'answer'); c.close()")
    yield take(99, ours), ours.recv(1), shown(ours)
    ours = pair(7031)
    far("c.sendall(b'all'); c.shutdown(socket.SHUT_WR)")
    yield take(99, ours), shown(ours)
    ours.sendall(b"still")
    yield far("take(5, c)")
    ours.close()
    yield far("c.recv(1)")
    ours = pair(7032)
    ours.shutdown(socket.SHUT_RD)
    yield ours.recv(1), shown(ours)
    ours.sendall(b"on")
    yield far("take(2, c)")


@case
def shut_behind_the_far_end():
    ours = pair(7033)
    far("c.sendall(b'x'); c.shutdown(socket.SHUT_WR)")
    shown(ours, select.POLLRDHUP, 30000)
    ours.shutdown(socket.SHUT_WR)
    yield far("c.recv(1)"), take(9, ours), e(ours.recv, 1), e(ours.recv, 1)
    yield ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    ours = pair(7034)
    ours.shutdown(socket.SHUT_RDWR)
    yield e(ours.recv, 1), e(ours.recv, 1), ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), e(ours.send, b"x")
    ours = pair(7035)
    far("c.close()")
    shown(ours, select.POLLRDHUP, 30000)
    ended = "sent"
    for _ in range(64):
        ended = e(ours.sendall, bytes(1 << 16))
        if ended is not None:
            break
    yield ended in ("EPIPE", "ECONNRESET")
    ours = pair(7037)
    far("c.close()")
    shown(ours, select.POLLRDHUP, 30000)
    ours.sendall(b"x")
    shown(ours, 0, 30000)
    yield e(ours.recv, 1), [ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for _ in range(2)], e(ours.recv, 1)


@case
def shut_with_much_unread():
    ours = pair(7036)
    # More than the pair holds, until no more goes.
    far("c.settimeout(0.3); rest = 0")
    yield far("[rest for _ in range(99) if c.sendall(bytes(1 << 16))]")
    ours.shutdown(socket.SHUT_RDWR)
    far("c.settimeout(30)")
    yield far("c.recv(1)"), len(ours.recv(9)), ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


@case
def resets():
    RESET = "c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); c.close()"
    ours = pair(7040)
    far(RESET)
    shown(ours, select.POLLIN, 30000)
    yield e(ours.recv, 1), e(ours.recv, 1), e(ours.send, b"x"), e(ours.getpeername)
    ours = pair(7041)
    far("c.sendall(b'last')")
    shown(ours, select.POLLIN, 30000)
    far(RESET)
    shown(ours, select.POLLRDHUP, 30000)
    yield e(ours.send, b"x"), e(ours.send, b"x")
    ours = pair(7042)
    far(RESET)
    shown(ours, select.POLLIN, 30000)
    yield errno.errorcode.get(ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), e(ours.recv, 1)
    ours = pair(7043)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ours.close()
    yield far("e(c.recv, 1)")
    ours = pair(7044)
    far("c.sendall(b'never read')")
    shown(ours, select.POLLIN, 30000)
    ours.close()
    yield far("e(c.recv, 1)")


@case
def last_words():
    for number_, talks in enumerate((lambda ours: ours, talked)):
        # Those before a close that resets arrive.
        ours = talks(pair(7045 + number_))
        far("c.sendall(b'never read')")
        shown(ours, select.POLLIN, 30000)
        ours.sendall(b"last")
        ours.close()
        yield far("e(take, 4, c)"), far("e(c.recv, 1)")
        ours = talks(pair(7047 + number_))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ours.sendall(b"last")
        ours.close()
        yield far("e(take, 4, c)"), far("e(c.recv, 1)")
        # What is unread when both ways are shut resets nothing.
        ours = talks(pair(7051 + number_))
        far("c.sendall(b'never read')")
        shown(ours, select.POLLIN, 30000)
        ours.sendall(b"last")
        ours.shutdown(socket.SHUT_RDWR)
        yield far("e(take, 9, c)"), take(9, ours), far("e(c.recv, 1)")


@case
def looks():
    ours = pair(7050)
    far("c.sendall(b'0123456789')")
    shown(ours, select.POLLIN, 30000)
    yield ours.recv(4, socket.MSG_PEEK), number(ours, FIONREAD), ours.recv(4), ours.recvfrom(2), ours.recvmsg(9)[:3]
    yield e(blocking(ours).recv, 1, socket.MSG_DONTWAIT), number(ours, FIONREAD)
    blocking(ours)
    far("threading.Timer(0.1, c.sendall, (b'abc',)).start(); c.sendall(b'xyz')")
    yield ours.recv(6, socket.MSG_WAITALL)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100000))
    yield e(blocking(ours).recv, 1)
    one, two = bytearray(3), bytearray(9)
    far("c.sendall(b'vector')")
    shown(ours, select.POLLIN, 30000)
    yield ours.recvmsg_into([one, two])[0], bytes(one), bytes(two[:3]), ours.sendmsg([b"par", b"ts"]), far("take(5, c)")
    while number(ours, SIOCOUTQ):
        pass
    yield e(ours.send, b""), e(ours.sendto, b"named", ("1.2.3.4", 5)), far("take(5, c)[-5:]")


@case
def fills():
    ours = pair(7060)
    ours.setblocking(False)
    sent, sum_ = 0, hashlib.sha256()
    block = os.urandom(65536)
    while True:
        count = e(ours.send, block)
        if count == "EAGAIN":
            if shown(ours, select.POLLOUT, 300) == "-":
                break
            continue
        sum_.update(block[:count])
        sent += count
    yield shown(ours), sent > 65536
    far("h = []; t = threading.Thread(target=lambda: h.append(sha_of(c))); t.start()")
    yield shown(ours, select.POLLOUT, 30000)
    ours.close()
    far("t.join()")
    yield far("h[0]") == sum_.hexdigest()


@case
def much():
    size = 50_000_000
    far("import hashlib, random; b = random.Random(5).randbytes(50_000_000)")
    ours = pair(7061)
    far("t = threading.Thread(target=lambda: (c.sendall(b), c.shutdown(1))); t.start()")
    sum_, got = hashlib.sha256(), 0
    while part := ours.recv(1 << 18):
        sum_.update(part)
        got += len(part)
    yield got, sum_.hexdigest() == far("hashlib.sha256(b).hexdigest()")
    far("h = []; t = threading.Thread(target=lambda: h.append(sha_of(c))); t.start()")
    import random
    bytes_ = random.Random(6).randbytes(size)
    blocking(ours).sendall(bytes_)
    ours.close()
    far("t.join()")
    yield far("h[0]") == hashlib.sha256(bytes_).hexdigest()


@case
def datagrams():
    far("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('', 7070)); u.settimeout(30)")
    sock = udp()
    yield shown(sock), sock.sendto(b"hello", (FAR, 7070)), sock.getsockname()[0], sock.getsockname()[1] >= 32768
    yield far("m, a = u.recvfrom(99); m"), far("u.sendto(b'reply', a)")
    yield far("(m, a[0])"), far("u.sendto(b'reply', a)"), shown(sock, select.POLLIN, 30000), number(sock, FIONREAD), sock.recvfrom(99)
    far("u.sendto(b'truncated', a); u.sendto(b'', a); u.sendto(b'next', a)")
    take_ = lambda *a: e(sock.recvmsg, *a)
    yield sock.recv(5)
    yield take_(4, 0, socket.MSG_TRUNC)[0:1], take_(9)[0], e(blocking(sock).recv, 1, socket.MSG_DONTWAIT)
    far("u.sendto(b'peeked', a)")
    yield sock.recv(3, socket.MSG_PEEK), sock.recv(99), e(sock.send, b"x")
    yield e(sock.sendto, bytes(65507), (FAR, 7070)), far("len(u.recv(99999))"), e(sock.sendto, bytes(65508), (FAR, 7070))
    yield e(sock.sendto, b"", (FAR, 7070)), far("u.recv(9)"), e(sock.sendto, b"x", (FAR, 0))
    far("u.close()")


@case
def datagrams_before_a_close():
    far("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('', 7073)); u.settimeout(30)")
    sock = udp()
    for _ in range(150):
        sock.sendto(b"one", (FAR, 7073))
    sock.close()
    yield far("sum(len(u.recv(9)) for _ in range(150))")
    # Also of who has not read all that came.
    sock = udp()
    sock.bind(("", 7078))
    far(f"u.sendto(b'unread', ('{OWN}', 7078))")
    select.select([sock], [], [], 30)
    for _ in range(150):
        sock.sendto(b"one", (FAR, 7073))
    sock.close()
    yield far("sum(len(u.recv(9)) for _ in range(150))")
    far("u.close()")


@case
def datagrams_unread():
    # A connection is served meanwhile, so that each datagram has come when its answer has.
    beside = blocking(pair(7075))
    beside.settimeout(30)
    sock = udp()
    sock.bind(("", 7076))
    far("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(30)")
    answered = 0
    for first in range(0, 3200, 32):
        far(f"[u.sendto(b'%08d' % i + bytes(992), ('{OWN}', 7076)) for i in range({first}, {first + 32})]; c.sendall(b'x')")
        beside.sendall(beside.recv(1))
        answered += far("take(1, c)") == b"x"
    yield answered
    # What found no room is lost, and nothing else.
    sock.setblocking(False)
    got = []
    while (message := e(sock.recv, 2000)) != "EAGAIN":
        got.append(message)
    yield 16 < len(got) < 3200, got == [b"%08d" % i + bytes(992) for i in range(len(got))]
    far(f"u.sendto(b'next', ('{OWN}', 7076))")
    sock.settimeout(30)
    message, name = sock.recvfrom(9)
    yield message, name[0], sock.sendto(b"back", name), far("u.recv(9)")
    far("u.close()")


@case
def datagrams_connected():
    far("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('', 7071)); u.settimeout(30)")
    far("w = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
    sock = udp()
    sock.bind(("", 7072))
    yield e(sock.connect, (FAR, 7071)), sock.getpeername(), sock.getsockname(), sock.send(b"direct"), far("u.recvfrom(9)")
    far(f"w.sendto(b'foreign', ('{OWN}', 7072)); u.sendto(b'own', ('{OWN}', 7072))")
    yield sock.recvfrom(99)
    yield sock.sendmsg([b"a", b"b"]), far("u.recv(9)"), e(sock.sendto, b"else", (FAR, 7071)), far("u.recv(9)")
    two = udp()
    two.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    yield e(two.bind, ("", 7072))
    blocking(sock)
    os.write(sock.fileno(), b"written")
    yield far("u.recv(9)"), far(f"u.sendto(b'read', ('{OWN}', 7072))"), os.read(sock.fileno(), 9)
    far("u.close()")


@case
def marked():
    P = socket.IPPROTO_IP
    # Somebody has the port: of what is refused the kernel tells only so often.
    far("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('', 7073))")
    far("r = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP); r.settimeout(30)")
    far("t = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP); t.settimeout(30)")
    sock = udp()
    for ttl, tos in ((64, 0), (9, 16), (200, 255)):
        sock.setsockopt(P, socket.IP_TTL, ttl)
        sock.setsockopt(P, socket.IP_TOS, tos)
        yield sock.sendto(b"marked by UDP", (FAR, 7073)), far("marks(r, b'marked by UDP')")
    far("l = socket.create_server(('', 7074))")
    sock = blocking(tcp())
    sock.setsockopt(P, socket.IP_TTL, 33)
    sock.connect((FAR, 7074))
    yield sock.send(b"first"), far("marks(t, b'first')")
    sock.setsockopt(P, socket.IP_TOS, 0x48)
    sock.setsockopt(P, socket.IP_TTL, 34)
    yield sock.send(b"second"), far("marks(t, b'second')")
    far("l.close(); r.close(); t.close(); u.close()")


@case
def datagrams_refused():
    sock = udp()
    blocking(sock)
    sock.settimeout(20)
    sock.connect((FAR, 7079))
    sock.send(b"to nobody")
    yield e(sock.recv, 9)
    sock.setblocking(False)
    yield e(sock.recv, 9), sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    sock.send(b"once more")
    yield select.select([sock], [], [], 20)[0] == [sock]
    yield sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), e(sock.recv, 9)
    sock.send(b"and looked at")
    select.select([sock], [], [], 20)
    yield e(sock.recv, 9, socket.MSG_PEEK), e(sock.recv, 9)
    far("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('', 7079)); u.settimeout(30)")
    sock.send(b"somebody")
    yield far("u.recvfrom(99)[0]"), far("u.close()")
    # Who is not connected hears nothing.
    two = udp()
    two.setblocking(False)
    two.sendto(b"to nobody", (FAR, 7079))
    sock.send(b"to nobody")
    select.select([sock], [], [], 20)
    yield e(two.recv, 9), two.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


@case
def datagrams_beside():
    far("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(30)")
    sock = udp()
    sock.setsockopt(socket.IPPROTO_IP, 8, 1)
    sock.bind(("", 7073))
    far(f"u.sendto(b'x', ('{OWN}', 7073))")
    bytes_, beside, flags, name = sock.recvmsg(99, 99)
    yield bytes_, [(level, kind, data[4:]) for level, kind, data in beside], flags, name[0]
    info = struct.pack("I4s4s", 0, socket.inet_aton(OWN), bytes(4))
    yield sock.sendmsg([b"back"], [(0, 8, info)], 0, name), far("u.recvfrom(9)")
    # Of interfaces, lo alone has the same number here and there.
    is_lo = lambda sock, at: [struct.unpack_from("I", data, at)[0] == 1 for _, _, data in sock.recvmsg(99, 99)[1]]
    far(f"u.sendto(b'x', ('{OWN}', 7073))")
    yield is_lo(sock, 0), udp().sendto(b"x", ("127.0.0.1", 7073)), is_lo(sock, 0)
    sock = udp(socket.AF_INET6)
    sock.setsockopt(socket.IPPROTO_IPV6, 49, 1)
    sock.bind(("::", 7088))
    far(f"u.sendto(b'x', ('{OWN}', 7088))")
    yield is_lo(sock, 16), [(udp(socket.AF_INET6).sendto(b"x", (to, 7088)), is_lo(sock, 16)) for to in ("::1", "::ffff:127.0.0.1")]


@case
def six():
    ours = tcp(socket.AF_INET6)
    far("l = socket.create_server(('::', 7080), family=socket.AF_INET6, dualstack_ipv6=True)")
    yield e(ours.connect, (FAR6, 7080)), ours.getpeername()[:2], ours.getsockname()[0], e(tcp(socket.AF_INET6).connect, ("::ffff:" + FAR, 7080))
    far("d = l.accept()[0]; l.accept()")
    ours.sendall(b"six")
    yield far("take(3, d)")
    far("l.close()")
    listens = listener(7081, "::", socket.AF_INET6)
    far(f"c = socket.create_connection(('{OWN}', 7081))")
    four, name = listens.accept()
    yield name[0], four.getsockname()[:2], four.getpeername()[0]
    far(f"c = socket.create_connection(('{OWN6}', 7081))")
    yield listens.accept()[1][0]
    sock = udp(socket.AF_INET6)
    far("u = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); u.bind(('', 7082)); u.settimeout(30)")
    yield sock.sendto(b"six", (FAR6, 7082)), far("m, a = u.recvfrom(9)"), far("u.sendto(m, a)"), sock.recvfrom(9)
    yield sock.sendto(b"four", ("::ffff:" + FAR, 7082)), far("m, a = u.recvfrom(9)"), far("a[0]")


@case
def families():
    one, all_ = listener(7083, "127.0.0.1"), tcp(socket.AF_INET6)
    yield far(f"e(socket.create_connection, ('{OWN}', 7083))")
    all_.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    all_.bind(("::", 7084))
    all_.listen(4)
    yield far(f"e(socket.create_connection, ('{OWN}', 7084))"), far(f"socket.create_connection(('{OWN6}', 7084)).getpeername()[1]")


@case
def inside():
    listens = listener(7090, "127.0.0.1")
    far_end = tcp()
    yield e(far_end.connect, ("127.0.0.1", 7090)), far_end.getsockname()[0]
    near, name = listens.accept()
    yield name == far_end.getsockname(), near.send(b"inside"), far_end.recv(9)
    far_end.close()
    yield near.recv(1)
    a, b = udp(), udp()
    a.bind(("127.0.0.1", 7091))
    yield b.sendto(b"u", ("127.0.0.1", 7091)), a.recv(9)
    six = listener(7092, "::1", socket.AF_INET6)
    yield e(tcp(socket.AF_INET6).connect, ("::1", 7092)), six.accept()[1][0], e(tcp().connect, (OWN, 7092))


@case
def copies():
    ours = pair(7100)
    copy = ours.dup()
    ours.close()
    copy.sendall(b"by a copy")
    yield far("take(9, c)")
    os.dup2(copy.fileno(), 50)
    copy.close()
    fifty = socket.socket(fileno=50)
    yield fifty.getpeername()[0], fifty.send(b"fifty"), far("take(5, c)"), fifty.family == socket.AF_INET
    fifty.close()
    yield far("c.recv(1)")


@case
def forks():
    listens = listener(7101)
    children = []
    for index in range(4):
        child = os.fork()
        if child == 0:
            ours, _ = listens.accept()
            ours.sendall(ours.recv(99).upper())
            own = socket.create_connection((FAR, 7102), 30)
            own.sendall(b"child")
            os._exit(0)
        children.append(child)
    far("l = socket.create_server(('', 7102), reuse_port=True)")
    yield far(f"[(x := socket.create_connection(('{OWN}', 7101), 30), x.sendall(b'fork'), x.recv(9))[2] for i in range(4)]")
    yield far("[l.accept()[0].recv(9) for i in range(4)]"), [os.waitpid(child, 0)[1] for child in children]
    far("l.close()")


INHERITS = """
import os, socket, sys
listens = socket.socket(fileno=int(sys.argv[1]))
listens.settimeout(30)
made = socket.socket(fileno=int(sys.argv[2]))
print(listens.getsockname(), listens.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), made.getpeername()[0], flush=True)
made.sendall(b"from the heir")
made.close()
ours, name = listens.accept()
print(name[0], ours.recv(99), flush=True)
ours.sendall(b"heir")
"""


@case
def executes():
    made = pair(7103)
    listens = listener(7104)
    numbers = [listens.fileno(), made.fileno()]
    heir = subprocess.Popen([sys.executable, "-c", INHERITS, *map(str, numbers)], pass_fds=numbers, stdout=subprocess.PIPE)
    listens.close()
    made.close()
    yield far("take(13, c)"), heir.stdout.readline(), far("c.recv(1)")
    yield far(f"(x := socket.create_connection(('{OWN}', 7104), 30), x.sendall(b'to the heir'), take(4, x))[2]")
    yield heir.stdout.read(), heir.wait()


@case
def passes():
    one, two = socket.socketpair()
    child = os.fork()
    if child == 0:
        one.close()
        _, fds, _, _ = socket.recv_fds(two, 9, 2)
        made, listens = (socket.socket(fileno=fd) for fd in fds)
        made.sendall(b"passed" + made.getpeername()[0].encode())
        made.close()
        listens.accept()[0].sendall(b"by him")
        os._exit(0)
    made, listens = pair(7105), blocking(listener(7106))
    socket.send_fds(one, [b"x"], [made.fileno(), listens.fileno()])
    made.close()
    listens.close()
    yield far("take(99, c)"), far(f"socket.create_connection(('{OWN}', 7106), 30).recv(9)")
    yield os.waitpid(child, 0)[1]


@case
def thousand():
    listens = listener(7110, backlog=1024)
    far("x = []; t = threading.Thread(target=lambda: x.extend(socket.create_connection(('%s', 7110), 60) for i in range(1000))); t.start()" % OWN)
    epoll, all_ = select.epoll(), {}
    for _ in range(1000):
        ours, _ = listens.accept()
        ours.setblocking(False)
        all_[ours.fileno()] = ours
        epoll.register(ours, select.EPOLLIN)
    far("t.join()")
    far("[s.sendall(b'%4d' % i) for i, s in enumerate(x)]")
    served = 0
    while served < 1000:
        for fd, _ in epoll.poll(30):
            all_[fd].sendall(all_[fd].recv(9))
            epoll.unregister(fd)
            served += 1
    yield far("sum(take(4, s) == b'%4d' % i for i, s in enumerate(x))")
    for ours in all_.values():
        ours.close()
    yield far("sum(s.recv(1) == b'' for s in x)"), far("[s.close() for s in x] and None")


@case
def queue():
    listens = listener(7111, backlog=4)
    far("x = [socket.socket() for i in range(4)]; [s.setblocking(False) for s in x]")
    far(f"[s.connect_ex(('{OWN}', 7111)) for s in x]")
    got = [listens.accept()[0] for _ in range(4)]
    for ours in got:
        ours.sendall(b"x")
    far("[s.setblocking(True) for s in x]")
    yield far("[take(1, s) for s in x]"), far("[s.close() for s in x] and None")


@case
def shared_port():
    both = [tcp(), tcp()]
    for sock in both:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("", 7112))
        sock.listen(64)
        sock.setblocking(False)
    far(f"x = [socket.create_connection(('{OWN}', 7112), 30) for i in range(40)]")
    counts = [0, 0]
    while sum(counts) < 40:
        select.select(both, [], [], 30)
        for index, sock in enumerate(both):
            counts[index] += e(sock.accept) != "EAGAIN"
    yield all(counts), sum(counts)


@case
def by_number():
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(41, 2, 1, 0)
    far("l = socket.create_server(('', 7120), reuse_port=True)")
    name = struct.pack("!HH4s8x", 0, 7120, socket.inet_aton(FAR))
    name = struct.pack("H", 2) + name[2:]
    yield libc.syscall(42, fd, name, 16)
    far("d = l.accept()[0]; l.close()")
    yield libc.syscall(1, fd, b"numbers", 7), far("take(7, d)"), far("d.sendall(b'back')")
    room = ctypes.create_string_buffer(9)
    # A length that is none of memory.
    yield libc.write(fd, bytes(1 << 20), ctypes.c_size_t(-1)), errno.errorcode.get(ctypes.get_errno())
    yield libc.read(fd, room, ctypes.c_size_t(-1)), errno.errorcode.get(ctypes.get_errno())
    yield libc.syscall(0, fd, room, 9), room.value, libc.syscall(3, fd)


@case
def threads():
    listens = blocking(listener(7121))
    sums = []

    def serve():
        ours, _ = listens.accept()
        sums.append(len(take(1 << 20, ours)))
        ours.sendall(b"done")

    all_ = [threading.Thread(target=serve) for _ in range(8)]
    for thread in all_:
        thread.start()
    far(f"x = [socket.create_connection(('{OWN}', 7121), 30) for i in range(8)]")
    far("[s.sendall(bytes(1 << 20)) for s in x]")
    yield far("[take(4, s) for s in x]")
    for thread in all_:
        thread.join()
    yield sums


@case
def urgent():
    OOB, SIOCATMARK = socket.MSG_OOB, 0x8905
    urgent_of = lambda sock: (select.select([], [], [sock], 30)[2] == [sock], number(sock, SIOCATMARK))
    far("fcntl, array = __import__('fcntl'), __import__('array')")
    far_urgent = "a = array.array('i', [0]); p = select.select([], [], [c], 30)[2] == [c]; fcntl.ioctl(c, 0x8905, a)"
    ours = blocking(pair(7131))
    yield e(ours.recv, 1, OOB), number(ours, SIOCATMARK), e(ours.send, b"", OOB)
    # There, twice: the mark, the byte, what comes behind it.
    for text in (b"!", b"xyz"):
        yield ours.sendall(b"ab"), e(ours.send, text, OOB), ours.sendall(b"cd")
        far(far_urgent)
        yield far("p, a[0], take(%d, c)" % (1 + len(text)))
        far("fcntl.ioctl(c, 0x8905, a)")
        yield far("a[0], c.recv(1, socket.MSG_OOB), e(c.recv, 1, socket.MSG_OOB), take(2, c)")
    # Here, read and not read.
    for reads in (True, False):
        far("c.sendall(b'ab'); c.send(b'!', socket.MSG_OOB); c.sendall(b'cd')")
        yield urgent_of(ours), take(2, ours), number(ours, SIOCATMARK)
        if reads:
            yield ours.recvmsg(9, 0, OOB), e(ours.recv, 1, OOB)
        yield take(2, ours), number(ours, SIOCATMARK), e(ours.recv, 1, OOB)
    # Of two, the first is an ordinary one.
    far("c.sendall(b'a'); c.send(b'1', socket.MSG_OOB); c.sendall(b'b'); c.send(b'2', socket.MSG_OOB); c.sendall(b'c')")
    until(lambda: ours.recv(9, socket.MSG_PEEK) == b"a1b")
    yield urgent_of(ours)[0], take(3, ours), ours.recv(1, OOB), take(1, ours)
    # With a signal.
    came = []
    signal.signal(signal.SIGURG, lambda *_: came.append(1))
    fcntl.fcntl(ours, fcntl.F_SETOWN, os.getpid())
    far("c.send(b'!', socket.MSG_OOB)")
    until(lambda: came)
    yield urgent_of(ours)[0], ours.recv(1, OOB), came
    # One of the stream.
    with listener(7132) as listens:
        listens.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        far(f"c = socket.create_connection(('{OWN}', 7132), 30)")
        inherits, _ = listens.accept()
    blocking(inherits)
    far("c.sendall(b'ab'); c.send(b'!', socket.MSG_OOB); c.sendall(b'cd')")
    yield inherits.getsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE), urgent_of(inherits), inherits.recv(9), number(inherits, SIOCATMARK)
    yield e(inherits.recv, 1, OOB), take(3, inherits)
    ours = to_far(7133)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    far("d.sendall(b'ab'); d.send(b'!', socket.MSG_OOB); d.close()")
    yield urgent_of(ours)[0], take(9, ours)


@case
def files():
    ours = pair(7122)
    with open("/proc/self/exe", "rb") as file:
        count = os.sendfile(ours.fileno(), file.fileno(), 0, 5000)
        yield count, far("take(5000, c)[:4]")
    stream = ours.makefile("rwb")
    far("c.sendall(b'a line\\n')")
    yield stream.readline()
    stream.write(b"buffered")
    stream.flush()
    yield far("take(8, c)")


@case
def interrupted():
    ours = blocking(pair(7123))
    signal.signal(signal.SIGALRM, lambda *_: None)
    libc = ctypes.CDLL(None, use_errno=True)
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    room = ctypes.create_string_buffer(9)
    yield libc.recv(ours.fileno(), room, 9, 0), errno.errorcode[ctypes.get_errno()]
    sock = blocking(tcp())
    name = struct.pack("H", 2) + struct.pack("!H4s8x", 80, socket.inet_aton("10.70.99.98"))
    yield libc.connect(sock.fileno(), name, 16), errno.errorcode[ctypes.get_errno()]
    signal.setitimer(signal.ITIMER_REAL, 0)
    ours.close()
    signal.signal(signal.SIGPIPE, lambda *_: caught.append(1))
    caught, ours = [], pair(7124)
    ours.shutdown(socket.SHUT_WR)
    yield e(os.write, ours.fileno(), b"x"), len(caught), e(ours.send, b"x", socket.MSG_NOSIGNAL), len(caught)


@case
def groups():
    L, IF, TTL, LOOP, JOIN, LEAVE, PORT = socket.IPPROTO_IP, 32, 33, 34, 35, 36, 7150
    group = lambda last, at=OWN: socket.inet_aton(f"239.70.1.{last}") + socket.inet_aton(at)
    name = ("239.70.1.2", PORT)
    one, two = udp(), udp()
    for sock in (one, two):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", PORT))
        sock.setsockopt(L, 49, 0)
    bad = [group(2), socket.inet_aton(FAR) * 2, group(2, "10.1.2.3"), group(2)[:7]]
    yield [e(one.setsockopt, L, JOIN, value) for value in [group(2)] + bad]
    far(f"""m = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); m.settimeout(30); m.bind(('', {PORT}))
for o, v in (({JOIN}, '239.70.1.2'), ({IF}, None)):
    m.setsockopt(0, o, (socket.inet_aton(v) if v else b'') + socket.inet_aton('{FAR}'))
m.setsockopt(0, {TTL}, 5); m.setsockopt(0, {LOOP}, 0)""")
    one.setsockopt(L, 8, 1)
    one.setsockopt(L, 12, 1)

    def came():
        data, beside, flags, whence = one.recvmsg(100, 200)
        # The number of an interface is not the same here and there.
        return data, [(kind, value[4:] if kind == 8 else value) for _, kind, value in beside], flags, whence

    far(f"m.sendto(b'to one', {name})")
    yield came(), shown(two)
    yield [e(two.setsockopt, L, IF, value) for value in (b"123", socket.inet_aton("10.1.2.3"), socket.inet_aton(OWN))]
    yield two.getsockopt(L, IF, 4)
    yield [(e(two.setsockopt, L, o, v), two.getsockopt(L, o)) for o, v in ((TTL, 256), (TTL, 0), (TTL, -1), (LOOP, 2), (49, 2), (TTL, 4))]
    two.sendto(b"ours", name)
    yield came(), far("m.recvfrom(100)")
    two.setsockopt(L, LOOP, 0)
    two.sendto(b"not back", name)
    yield far("m.recvfrom(100)")
    far(f"m.sendto(b'behind', {name})")
    yield one.recv(100), [e(one.setsockopt, L, LEAVE, group(2)) for _ in range(2)]
    many = [e(one.setsockopt, L, JOIN, group(last)) for last in range(100, 121)]
    yield many.count(None), many[-1], e(tcp().setsockopt, L, JOIN, group(2)), e(one.getsockopt, L, JOIN)
    own = udp()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    yield e(own.bind, ("239.70.1.7", PORT)), own.getsockname(), e(own.setsockopt, L, JOIN, group(7))
    far(f"m.sendto(b'of its name', ('239.70.1.7', {PORT})); m.sendto(b'no', ('{OWN}', {PORT}))")
    yield own.recv(100), shown(own), two.recv(100) if shown(two) != "-" else one.recv(100)


@case
def groups_six():
    V6, HOPS, LOOP, JOIN, LEAVE, PORT = socket.IPPROTO_IPV6, 18, 19, 20, 21, 7151
    group = lambda last, index=0: socket.inet_pton(socket.AF_INET6, f"ff05::70:{last}") + struct.pack("I", index)
    any_ = lambda last: struct.pack("I4xHHI", 0, 10, 0, 0) + group(last)[:16] + bytes(104)
    six = udp(socket.AF_INET6)
    six.bind(("", PORT))
    yield [e(six.setsockopt, V6, o, v) for o, v in ((JOIN, group(2)), (JOIN, group(2)), (JOIN, group(2)[:19]), (JOIN, group(3, 99)),
                                                    (JOIN, bytes(20)), (LEAVE, group(9)), (42, any_(2)), (42, any_(4)), (45, any_(4)), (45, any_(4)))]
    yield [(e(six.setsockopt, V6, o, v), six.getsockopt(V6, o)) for o, v in ((HOPS, 256), (HOPS, -1), (HOPS, 3), (LOOP, 2), (LOOP, 0), (17, 99), (17, 0))]
    for option in (49, 51):
        six.setsockopt(V6, option, 1)
    far(f"""m6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); m6.settimeout(30); m6.bind(('', {PORT}))
m6.setsockopt(41, 17, socket.if_nametoindex('f0')); m6.setsockopt(41, {HOPS}, 7); m6.setsockopt(41, {LOOP}, 0)
m6.setsockopt(41, {JOIN}, {group(2)!r})""")
    # A kernel's device that was just made hears groups of IPv6 a moment later.
    for _ in range(30):
        far(f"m6.sendto(b'to six', ('ff05::70:2', {PORT}))")
        if select.select([six], [], [], 1)[0]:
            break
    data, beside, flags, whence = six.recvmsg(100, 200)
    yield data, [(kind, value[:16]) for _, kind, value in beside], flags, whence[:2]
    six.sendto(b"ours", ("ff05::70:2", PORT))
    yield far("m6.recvfrom(100)")[0], shown(six), e(six.setsockopt, V6, LEAVE, group(2))


for name, function in CASES.items():
    if len(sys.argv) > 2 and name not in sys.argv[2:]:
        continue
    step, began = 0, time.monotonic()
    try:
        for result in function():
            print(f"{name}.{step}: {result!r}", flush=True)
            step += 1
    except Exception as error:
        print(f"{name}.{step}: failed: {error!r}", flush=True)
    print(f"{name}: {time.monotonic() - began:.2f} s", file=sys.stderr, flush=True)
