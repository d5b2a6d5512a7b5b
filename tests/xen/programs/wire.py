"""wire.py FILE ADDRESS: what the server's TCP looks like in a capture (pcap, Ethernet).

Looked at, for each connection to port 80: the handshake's options (MSS, and window
scale and SACK when the client offers them), sequence numbers without gaps and without
data sent twice (nothing was lost here), acknowledgements of data only that was sent, a
FIN from each side, no reset. And for the closed port 81: a reset that acknowledges."""
import socket
import struct
import sys

data = open(sys.argv[1], "rb").read()
server = socket.inet_aton(sys.argv[2])
order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
at, packets = 24, []
while at + 16 <= len(data):
    kept, = struct.unpack(order + "8xI4x", data[at:at + 16])
    packets.append(data[at + 16:at + 16 + kept])
    at += 16 + kept

FIN, SYN, RST, ACK = 1, 2, 4, 16
faults, flows = [], {}


def options_of(head):
    found, at = {}, 20
    while at < len(head):
        kind = head[at]
        if kind == 0:
            break
        if kind == 1:
            at += 1
            continue
        found[kind] = head[at + 2:at + head[at + 1]]
        at += max(2, head[at + 1])
    return found


for packet in packets:
    if packet[12:14] != b"\x08\x00" or packet[23] != 6:
        continue
    ip = packet[14:]
    words = (ip[0] & 15) * 4
    total, = struct.unpack("!H", ip[2:4])
    segment = ip[words:total]
    ours, theirs = struct.unpack("!HH", segment[:4])
    sequence, acknowledged = struct.unpack("!II", segment[4:12])
    offset, flags = (segment[12] >> 4) * 4, segment[13]
    length = total - words - offset
    from_server = ip[12:16] == server
    key = (ours, theirs) if from_server else (theirs, ours)
    flow = flows.setdefault(key, {"syn": None, "next": None, "fins": set(), "bytes": 0,
                                  "client_next": 0, "resets": 0, "acks": 0})
    if not from_server:
        if flags & SYN:
            flow["offered"] = options_of(segment[:offset])
        flow["client_next"] = sequence + length + bool(flags & (SYN | FIN)) & 0xffffffff
        if flags & FIN:
            flow["fins"].add("client")
        continue
    if flags & RST:
        flow["resets"] += 1
        if key[0] != 80 and not flags & ACK:
            faults.append(f"{key}: a reset of a closed port without ACK")
        continue
    if flags & SYN:
        flow["syn"] = options_of(segment[:offset])
        flow["next"] = sequence + 1 & 0xffffffff
        continue
    if flow["next"] is None:
        faults.append(f"{key}: data before the handshake")
        continue
    if acknowledged - flow["client_next"] & 0xffffffff not in (0,) and \
            acknowledged - flow["client_next"] & 0x80000000 == 0:
        faults.append(f"{key}: acknowledges what was not sent")
    if length and sequence != flow["next"]:
        faults.append(f"{key}: sequence {sequence} where {flow['next']} was due")
    if length:
        flow["next"] = sequence + length & 0xffffffff
        flow["bytes"] += length
    else:
        flow["acks"] += 1
    if flags & FIN:
        flow["fins"].add("server")

served = [flow for key, flow in flows.items() if key[0] == 80]
if len(served) != 4:
    faults.append(f"{len(served)} connections instead of 4")
for flow in served:
    if flow["syn"] is None or 2 not in flow["syn"]:
        faults.append("SYN-ACK without MSS")
        continue
    for kind, name in ((3, "window scale"), (4, "SACK permitted")):
        if kind in flow["offered"] and kind not in flow["syn"]:
            faults.append(f"SYN-ACK does not take {name}")
    if flow["fins"] != {"client", "server"} and not flow["resets"]:
        faults.append(f"FIN only of {flow['fins']}")
    if flow["resets"]:
        faults.append("a reset in a connection that ended well")
closed = [flow for key, flow in flows.items() if key[0] == 81]
if len(closed) != 1 or closed[0]["resets"] != 1:
    faults.append("the closed port did not answer by one reset")
for flow in served:
    print(f"{flow['bytes']} bytes, {flow['acks']} acknowledgements without data, options {sorted(flow['syn'] or {})}")
for fault in faults:
    print("FAILED:", fault)
sys.exit(bool(faults))
