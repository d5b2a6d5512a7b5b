"""A file to another domain: `copy.py take PORT FILE` there, `copy.py DOMAIN PORT FILE` here."""
import sys

import fordway

PIECE_BYTES = 1 << 16

where, port, name = sys.argv[1:]
with fordway.Socket(fordway.STREAM) as socket:
    if where == "take":
        socket.bind((fordway.ANY, int(port)))
        socket.listen(1)
        with socket.accept()[0] as sender, open(name, "wb") as file:
            while piece := sender.recv(PIECE_BYTES):
                file.write(piece)
    else:
        socket.connect((where, int(port)))
        with open(name, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                while piece:
                    piece = piece[socket.send(piece):]
