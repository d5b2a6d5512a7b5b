"""clients.py ADDRESS: HTTP clients that are bad, slow or eager, and what they must get."""
import socket
import sys

ADDRESS = sys.argv[1]


def talk(sent, half_close=True):
    with socket.create_connection((ADDRESS, 80), timeout=30) as connection:
        connection.settimeout(60)
        connection.sendall(sent)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        got = b""
        try:
            while part := connection.recv(65536):
                got += part
        except ConnectionResetError:
            pass
        return got


def expect(what, got, status):
    head = got.split(b"\r\n", 1)[0]
    if not head.startswith(b"HTTP/1.1 %d" % status):
        sys.exit(f"FAILED: {what}: {head!r} instead of {status}")


expect("no HTTP", talk(b"\x16\x03\x01\x02\x00 garbage\r\n\r\n"), 400)
expect("no host", talk(b"GET / HTTP/1.1\r\n\r\n"), 400)
expect("a head without end", talk(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: " + b"y" * 100000), 431)
expect("a head that does not come", talk(b"GET / HTTP/1.1\r\nHost", half_close=False), 408)
request = b"GET /1k HTTP/1.1\r\nHost: a\r\n\r\n"
last = b"GET /1k HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
got = talk(request * 19 + last, half_close=False)
if got.count(b"HTTP/1.1 200") != 20 or len(got) < 20 * 1024:
    sys.exit(f"FAILED: 20 pipelined requests, {got.count(b'HTTP/1.1 200')} replies")
with open("/job/www/1k", "rb") as file:
    if got.count(file.read()) != 20:
        sys.exit("FAILED: pipelined replies are not what was asked for")
print("bad clients got what they must get")
