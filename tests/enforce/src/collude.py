"""One of two colluding ends: its half of a connection that the rules forbid, with a
handshake that no packet of the fabric made.

The far end's address lies on this domain's own loopback (its root put it there), so
both ends of a connection between the two names are made here. The outer one has this
domain's address; the far domain's program makes its mirror image. What arrives at
another socket than the inner one has passed by rings.

    collude.py OWN_IP OWN_PORT FAR_IP FAR_PORT accept|connect

It prints `up`, and for each line of its standard input `own` or `foreign`: whose byte
came in. (Python, because its calls are libc's: the library sees them.)
"""
import socket
import sys

ROUNDS = 12  # until both ends have offered
PATIENCE_S = 2  # a byte that has not come in by then went elsewhere

own, far = [(sys.argv[at], int(sys.argv[at + 1])) for at in (1, 3)]
accepts = sys.argv[5] == "accept"
client, server = (far, own) if accepts else (own, far)
listener = socket.create_server(server)
connected = socket.create_connection(server, source_address=client)
accepted, _ = listener.accept()
outer, inner = (accepted, connected) if accepts else (connected, accepted)


def comes(end):
    try:
        return end.recv(1) == b"x"
    except TimeoutError:
        return False


def round_trip():
    outer.sendall(b"x")
    if not comes(inner):
        return False
    inner.sendall(b"x")
    return comes(outer)


for end in (outer, inner):
    end.settimeout(PATIENCE_S)
for _ in range(ROUNDS):
    if not round_trip():
        break
print("up", flush=True)
for _ in sys.stdin:
    print("own" if round_trip() else "foreign", flush=True)
