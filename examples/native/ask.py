"""A service that is asked: `ask.py serve PORT`, and `ask.py DOMAIN PORT WORD...`, which prints an answer to each word.
Messages are whole, and in order."""
import sys
import threading

import fordway


def answer(asker):
    with asker:
        while word := asker.recv(1000):
            asker.send(word.upper())


where, port, *words = sys.argv[1:]
with fordway.Socket(fordway.SEQPACKET) as socket:
    if where == "serve":
        socket.bind((fordway.ANY, int(port)))
        socket.listen()
        while True:
            asker, _ = socket.accept()
            threading.Thread(target=answer, args=[asker], daemon=True).start()
    socket.connect((where, int(port)))
    for word in words:
        socket.send(word.encode())
        print(socket.recv(1000).decode())
