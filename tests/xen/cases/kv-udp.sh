kv
cat >/tmp/udp.py <<'PROGRAM'
import socket
import sys

port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.settimeout(5)
port.connect(("10.0.0.4", 6379))
for sent, expected in [(b"SET u 5\r\n", b"+OK\r\n"), (b"INCR u\r\n", b":6\r\n"),
                       (b"*2\r\n$3\r\nGET\r\n$1\r\nu\r\n", b"$1\r\n6\r\n"),
                       (b"SET long " + b"x" * 1200 + b"\r\n", b"+OK\r\n"),
                       (b"GET long\r\n", b"$1200\r\n" + b"x" * 1200 + b"\r\n"),
                       (b"NOSUCH\r\n", b"-ERR")]:
    port.send(sent)
    got = port.recv(65536)
    if not got.startswith(expected):
        sys.exit(f"FAILED: {sent!r} is answered {got!r}")
print("datagrams are answered")
PROGRAM
python3 /tmp/udp.py
expect 'what came by UDP, over TCP' "$(timeout 20 redis-cli -h 10.0.0.4 GET u)" = 6
