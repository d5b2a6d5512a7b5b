"""Runs the cases of /job/list one after another and tells the host about each, by
frames on the second serial port (their reader is src/frames.rs)."""
import glob
import json
import os
import signal
import subprocess
import threading
import time
import zlib

OUTPUT_BYTES_MAX = 200_000
BEAT_S = 5
PORT = open("/dev/ttyS1", "wb", buffering=0)
PORT_LOCK = threading.Lock()


def frame(**fields):
    text = json.dumps(fields).encode()
    line = b"\nFW1 %08x %s\n" % (zlib.crc32(text), text)
    with PORT_LOCK:
        while line:
            line = line[PORT.write(line):]


def text_of(path, at_most):
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - at_most))
            return file.read().decode(errors="replace")
    except OSError as error:
        return str(error)


def said(command):
    try:
        done = subprocess.run(command, shell=True, timeout=10, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired:
        return "(no answer in time)"


def busiest():
    """Processes of dom0 by the CPU time that they have taken: who hangs, in the kernel or outside."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = []
    for path in glob.glob("/proc/[0-9]*"):
        try:
            with open(path + "/stat") as file:
                name, rest = file.read().rsplit(")", 1)
            with open(path + "/cmdline") as file:
                command = file.read().replace("\0", " ")
            words = rest.split()
            user, kernel = int(words[11]) / ticks, int(words[12]) / ticks
            found.append((user + kernel, user, words[0], command or name.split("(", 1)[1]))
        except OSError:
            pass  # It has ended.
    found.sort(reverse=True)
    return "\n".join("%8.2f s, %.2f s user, %s %s" % one for one in found[:12])


def diagnosis(processes):
    parts = ["-- xl list", said("xl list"),
             "-- dom0, by CPU time", processes,
             "-- xl dmesg", said("xl dmesg -c"),
             "-- dmesg", said("dmesg | tail -n 15"),
             "-- xenstore", said("xenstore-ls -f /local/domain | grep -E 'backend/.*(/state|hotplug)|device/.*/state'")]
    for log in sorted(glob.glob("/var/log/xen/console/guest-*"), key=os.path.getmtime)[-4:]:
        parts += ["-- " + log, text_of(log, 3000)]
    return "\n".join(parts)


def destroy_guests():
    for line in said("xl list").splitlines()[1:]:
        name, domain = line.split()[:2]
        if domain != "0":
            said("xl destroy " + domain)


def run(case):
    path = "/tmp/output"
    script = f"set -eu -o pipefail; cd /job; . /job/functions; . {case['script']}"
    with open(path, "wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(["bash", "-c", script], stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            status = process.wait(timeout=case["limit_s"])
        except subprocess.TimeoutExpired:
            status = 124
        seconds = time.monotonic() - started
        processes = busiest() if status != 0 else ""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    found = ""
    if status != 0:
        found = diagnosis(processes)
        # The next case shall find nothing of this one.
        destroy_guests()
    # A case killed by a signal is told as shells do.
    status = 128 - status if status < 0 else status
    frame(kind="case", name=case["name"], status=status, seconds=seconds,
          output=text_of(path, OUTPUT_BYTES_MAX), diagnosis=found)


def beat():
    """A case that keeps the machine busy may take minutes of the host's: we live."""
    while True:
        time.sleep(BEAT_S)
        frame(kind="beat")


def main():
    threading.Thread(target=beat, daemon=True).start()
    with open("/proc/uptime") as uptime:
        frame(kind="up", uptime_s=float(uptime.read().split()[0]))
    with open("/job/list") as file:
        cases = json.load(file)
    # What Xen said while it booted has nothing to do with the cases.
    said("xl dmesg -c")
    for case in cases:
        frame(kind="begin", name=case["name"])
        run(case)
    for path in sorted(glob.glob("/job/out/*")):
        with open(path, "rb") as file:
            frame(kind="file", name=os.path.basename(path), hex=file.read().hex())
    frame(kind="end")
    # Until the port has taken all of it.
    subprocess.run(["stty", "-F", "/dev/ttyS1", "raw"])
    time.sleep(1)


main()
