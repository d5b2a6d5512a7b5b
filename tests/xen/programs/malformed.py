"""malformed.py INTERFACE ADDRESS MAC SEED COUNT: frames that nobody should send.

Whole frames of many kinds are made, then cut, lengthened, or changed in a few bytes;
some lie about their own lengths. Nothing is expected but that the receiver lives."""
import random
import socket
import struct
import sys

interface, address, mac, seed, count = sys.argv[1:]
dice = random.Random(int(seed))
port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
port.bind((interface, 0))
source_mac = port.getsockname()[4]
to = bytes.fromhex(mac.replace(":", ""))
here, there = socket.inet_aton("10.0.0.1"), socket.inet_aton(address)


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def ethernet(kind, payload):
    target = dice.choice([to, to, to, b"\xff" * 6, b"\x01\x00\x5e\x00\x00\x01", bytes(6)])
    return target + source_mac + struct.pack("!H", kind) + payload


def ip4(protocol, payload, fragment=0, options=b"", version=4, length=None):
    words = 5 + len(options) // 4
    total = words * 4 + len(payload) if length is None else length
    source = dice.choice([here, here, there, b"\xff" * 4, bytes(4), b"\x7f\0\0\1"])
    head = struct.pack("!BBHHHBBH4s4s", version << 4 | words, 0, total & 0xffff,
                       dice.randrange(65536), fragment, 64, protocol, 0, source, there) + options
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return ethernet(0x0800, head + payload)


def with_checksum(protocol, segment, at):
    pseudo = here + there + struct.pack("!BBH", 0, protocol, len(segment))
    value = checksum(pseudo + segment)
    return segment[:at] + struct.pack("!H", value) + segment[at + 2:]


def tcp():
    options = dice.choice([b"", b"\x02\x04\x05\xb4", b"\x02\x00\x00\x00", b"\x05\xff" + bytes(2),
                           b"\x08\x0a" + bytes(10), b"\x03\x03\xff\x01", bytes(40), b"\x02\x04\0\0"])
    offset = dice.choice([5 + len(options) // 4] * 4 + [0, 15])
    head = struct.pack("!HHIIBBHHH", dice.randrange(65536), dice.choice([80, 80, 81, 0]),
                       dice.randrange(1 << 32), dice.randrange(1 << 32), offset << 4,
                       dice.randrange(256), dice.choice([0, 1, 65535]), 0, dice.randrange(65536))
    return ip4(6, with_checksum(6, head + options + dice.randbytes(dice.choice([0, 1, 1000])), 16))


def udp():
    payload = dice.randbytes(dice.choice([0, 1, 8, 1000]))
    length = dice.choice([8 + len(payload)] * 3 + [0, 7, 65535])
    head = struct.pack("!HHHH", dice.randrange(65536), dice.choice([53, 67, 68, 6379, 9]), length, 0)
    return ip4(17, with_checksum(17, head + payload, 6))


def icmp():
    body = struct.pack("!BBHI", dice.choice([0, 3, 5, 8, 11, 12, 200]), dice.randrange(16), 0,
                       dice.randrange(1 << 32)) + dice.randbytes(dice.choice([0, 3, 28, 1400]))
    return ip4(1, body[:2] + struct.pack("!H", checksum(body)) + body[4:])


def arp():
    return ethernet(0x0806, struct.pack("!HHBBH", dice.choice([1, 1, 6]), dice.choice([0x0800, 0x86dd]),
                                        dice.choice([6, 6, 0, 255]), dice.choice([4, 4, 0, 255]),
                                        dice.choice([1, 2, 3, 0xffff]))
                    + dice.randbytes(6) + dice.choice([there, dice.randbytes(4)])
                    + dice.randbytes(6) + there + dice.randbytes(dice.choice([0, 18])))


def fragments():
    offset = dice.choice([0x2000, 0x2001, 0x3fff, 0x1fff, 0x2000 | dice.randrange(8192)])
    return ip4(dice.choice([1, 6, 17]), dice.randbytes(dice.choice([1, 8, 1400])), fragment=offset)


def ip4_odd():
    return ip4(dice.randrange(256), dice.randbytes(40), options=dice.choice([b"", bytes(4), b"\x07\xff\xff\xff"]),
               version=dice.choice([0, 4, 4, 6, 15]), length=dice.choice([None, 0, 19, 20, 65535]))


def ip6():
    head = struct.pack("!IHBB", 6 << 28, dice.choice([0, 8, 40, 65535]),
                       dice.choice([0, 6, 17, 43, 44, 58, 59, 60]), 255)
    return ethernet(0x86dd, head + dice.randbytes(16) + dice.randbytes(16)
                    + dice.randbytes(dice.choice([0, 8, 40, 1000])))


def noise():
    return ethernet(dice.choice([0x0800, 0x0806, 0x86dd, 0x8100, 0x88a8, 0, dice.randrange(65536)]),
                    dice.randbytes(dice.choice([0, 1, 20, 46, 1500])))


def damaged(frame):
    frame = bytearray(frame)
    for _ in range(dice.choice([0, 0, 1, 3])):
        if len(frame) > 14:
            frame[dice.randrange(14, len(frame))] = dice.randrange(256)
    if dice.random() < 0.2:
        del frame[dice.randrange(14, len(frame) + 1):]
    return bytes(frame[:1514])


for _ in range(int(count)):
    make = dice.choice([tcp, tcp, udp, icmp, arp, fragments, ip4_odd, ip6, noise])
    try:
        port.send(damaged(make()))
    except OSError as error:
        # The device refuses frames that are too short, and may be full.
        if error.errno not in (22, 105, 90):
            raise
print(f"{count} malformed frames sent, seed {seed}")
