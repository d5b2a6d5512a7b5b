"""A chat of all domains: `chat.py PORT NAME`. Each line goes to all; what others say is printed."""
import sys
import threading

import fordway


def listen(socket):
    own = fordway.own_domain()
    while True:
        said, (domain, _) = socket.recvfrom(1000)
        if domain != own:
            print(said.decode(), flush=True)


port, name = int(sys.argv[1]), sys.argv[2]
socket = fordway.Socket(fordway.DATAGRAM)
socket.bind((fordway.ANY, port))
threading.Thread(target=listen, args=[socket], daemon=True).start()
for line in sys.stdin:
    socket.sendto(f"{name}: {line.rstrip()}".encode(), (fordway.BROADCAST, port))
