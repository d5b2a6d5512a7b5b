"""The two ends of a work of datagrams there and back, as micro/end.rs has them, in Python.

end serve|drive --at=ADDRESS:PORT --size=BYTES [--seconds=S] [--cpu-of=PID...]
"""
import json
import os
import socket
import struct
import sys
import time

words = [word[2:].split("=", 1) for word in sys.argv if word.startswith("--")]
options = dict(words)
host, port = options["at"].split(":")
size = int(options["size"])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def reach():
    """Until the serving end is there, and answers."""
    sock.connect((host, int(port)))
    # A timeout of Python's own would ask poll before each call.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 250_000))
    until = time.monotonic() + 10
    while True:
        try:
            sock.send(b"")
            return sock.recv(size)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.002)


def cpu_s():
    """Of this process and of those that it was told of (/proc/PID/schedstat: nanoseconds come first)."""
    total_s = time.process_time()
    for pid in (value for name, value in words if name == "cpu-of"):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                total_s += int(file.read().split()[0]) / 1e9
    return total_s


def round_trip(message):
    begun = time.perf_counter_ns()
    sock.send(message)
    assert len(sock.recv(size)) == size
    return time.perf_counter_ns() - begun


if "serve" in sys.argv:
    sock.bind((host, int(port)))
    while True:
        sock.sendto(*sock.recvfrom(size))
reach()
message = bytes([7]) * size
for _ in range(1000):
    round_trip(message)
length_s, times, cpu_before_s, begun = float(options["seconds"]), [], cpu_s(), time.monotonic()
while time.monotonic() < begun + length_s:
    times.append(round_trip(message))
seconds, used_s = time.monotonic() - begun, cpu_s() - cpu_before_s
times.sort()
figures = {"count": len(times), "bytes": len(times) * size, "seconds": seconds, "cpu_s": used_s}
for name, share in (("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999)):
    figures[name] = times[int(len(times) * share)]
print(json.dumps(figures))
