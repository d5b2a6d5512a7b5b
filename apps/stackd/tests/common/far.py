"""The far end of cases.py: carries out what it is told, by a UNIX socket, one line of Python and one line of answer each."""
import errno, hashlib, os, select, socket, struct, sys, threading, time

place = globals()


def e(call, *arguments):
    """What a call gives, or the name of its errno."""
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def take(count, from_socket):
    """Exactly so many bytes, or what there was before the end."""
    taken = b""
    while len(taken) < count:
        part = from_socket.recv(count - len(taken))
        if not part:
            break
        taken += part
    return taken


def sha_of(from_socket):
    """The sum of all bytes up to the end."""
    sum_ = hashlib.sha256()
    while part := from_socket.recv(1 << 20):
        sum_.update(part)
    return sum_.hexdigest()


def marks(raw, text):
    """TOS and TTL of the next packet of IPv4 that ends so."""
    while True:
        packet = raw.recv(1 << 16)
        if packet.endswith(text):
            return packet[1], packet[8]


def serve(client):
    lines = client.makefile("rwb")
    for line in lines:
        code = eval(line)
        try:
            try:
                result = eval(code, place)
            except SyntaxError:
                exec(code, place)
                result = None
        except OSError as error:
            result = errno.errorcode.get(error.errno, str(error))
        except Exception as error:
            result = repr(error)
        lines.write(repr(result).encode() + b"\n")
        lines.flush()


listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(8)
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
