"""clock.py FILE: compiled rules on standard output, with the time of a second ago, UTC, in the place of
the beginning of 2033. `meta time` is kept in nanoseconds, the highest byte first."""
import struct
import sys
import time

MARK_S = 1988150400  # 2033-01-01 00:00:00 UTC
HEADER_BYTES = 16

with open(sys.argv[1], "rb") as file:
    packed = file.read()
mark = struct.pack(">Q", MARK_S * 10**9)
if packed.count(mark) != 1:
    sys.exit("clock.py: the time is there %d times" % packed.count(mark))
rules = packed[HEADER_BYTES:].replace(mark, struct.pack(">Q", int(time.time() - 1) * 10**9))
# FNV-1a, as crates/filter/src/rules/packed.rs has it.
total = 0x811C9DC5
for byte in rules:
    total = (total ^ byte) * 0x01000193 % 2**32
sys.stdout.buffer.write(packed[:HEADER_BYTES - 4] + struct.pack("<I", total) + rules)
