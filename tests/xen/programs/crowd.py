"""crowd.py ADDRESS PORT COUNT: so many connections at a time, each of which is served twice."""
import socket
import sys

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
REQUEST = b"GET /index.html HTTP/1.1\r\nHost: a\r\n\r\n"
with open("/job/www/index.html", "rb") as file:
    BODY = file.read()

connections = []
for number in range(count):
    try:
        connections.append(socket.create_connection((address, port), timeout=10))
    except OSError as error:
        sys.exit(f"FAILED: after {number} connections: {error}")
for turn in range(2):
    for connection in connections:
        connection.sendall(REQUEST)
    for connection in connections:
        got = b""
        while not got.endswith(BODY):
            part = connection.recv(4096)
            if not part:
                sys.exit(f"FAILED: the connection ended after {got!r}")
            got += part
for connection in connections:
    connection.close()
print(f"{count} connections at a time, all served twice")
