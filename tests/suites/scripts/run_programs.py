"""Runs the test programs of a library or server and writes one line a test, as run_tests.py does.

    run_programs.py [--without NAME]... libuv|libevent|libzmq|redis RESULTS DIR [WORD...]

DIR is what fetch-suite built. A test has a process of its own, so that one that hangs or dies
costs no other its verdict; redis' runner takes a file of tests, one a WORD. Elsewhere WORDs are
the beginnings of the names of the tests that are wanted.
"""

import argparse
import glob
import itertools
import os
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

# A test's own limit; what hangs, fails.
LIMIT_S = 60
# The same for a file of redis' tests.
LIMIT_OF_FILE_S = 400
# As many tests of libevent.
AT_ONCE = 4
# How libevent may wait: what is switched off for it, and what it is told.
BACKENDS = {
    "epoll": {},
    "changelist": {"EVENT_EPOLL_USE_CHANGELIST": "1"},
    "poll": {"EVENT_NOEPOLL": "1"},
    "select": {"EVENT_NOEPOLL": "1", "EVENT_NOPOLL": "1"},
}


def run(argv, limit, **more):
    """Exit status (None: it hung) and what it wrote. Nothing that it started outlives it."""
    program = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        **more,
    )
    try:
        text, _ = program.communicate(timeout=limit)
        status = program.returncode
    except subprocess.TimeoutExpired:
        status, text = None, "it hung"
    try:
        os.killpg(program.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if status is None:
        program.communicate()
    return status, text


class Book:
    """One line a test."""

    def __init__(self, options):
        self.file = open(options.results, "w", buffering=1)
        self.options = options

    def wanted(self, name):
        words = self.options.words
        return name not in self.options.without and (
            not words or any(name.startswith(word) for word in words)
        )

    def start(self, name):
        self.file.write(f"started {name}\n")

    def note(self, name, verdict, text=""):
        self.file.write(f"{verdict} {name}\n")
        if verdict == "failed":
            print(f"---- {name}\n{text}", flush=True)


def libuv(book):
    source = book.options.dir
    program = os.path.join(source, "build/uv_run_tests")
    environment = dict(os.environ, UV_RUN_AS_ROOT="1")
    _, names = run([program, "--list"], LIMIT_S, env=environment)
    # A name, and its helpers' in brackets.
    for name in filter(book.wanted, re.findall(r"^\w+", names, re.MULTILINE)):
        book.start(name)
        status, text = run([program, name], LIMIT_S, cwd=source, env=environment)
        skipped = re.search(r"^ok .*# SKIP", text, re.MULTILINE)
        verdict = "skipped" if skipped else "passed" if status == 0 else "failed"
        book.note(name, verdict, text)


def libevent(book):
    program = os.path.join(book.options.dir, "build/bin/regress")
    _, text = run([program, "--list-tests"], LIMIT_S)
    names = re.findall(r"^    (\S+/\S+)$", text, re.MULTILINE)

    def play(backend, test):
        name = f"{backend} {test}"
        if not book.wanted(name):
            return
        book.start(name)
        environment = dict(os.environ, **BACKENDS[backend])
        status, text = run([program, test], LIMIT_S, env=environment)
        skipped = "SKIPPED" in text or "DISABLED" in text
        verdict = "failed" if status != 0 else "skipped" if skipped else "passed"
        book.note(name, verdict, text)

    # Its ports are the kernel's choice, and most of its tests wait for time to pass.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda pair: play(*pair), itertools.product(BACKENDS, names)))


def libzmq(book):
    for program in sorted(glob.glob(os.path.join(book.options.dir, "build/bin/test_*"))):
        name = os.path.basename(program)
        if not book.wanted(name):
            continue
        book.start(name)
        status, text = run([program], LIMIT_S)
        # unity's lines: file, line, test, verdict, reason.
        for test, word in re.findall(r"^[^:\n]*:\d+:(\w+):(PASS|FAIL|IGNORE)", text, re.MULTILINE):
            verdict = {"PASS": "passed", "FAIL": "failed", "IGNORE": "skipped"}[word]
            book.note(f"{name} {test}", verdict)
        book.note(name, "passed" if status in (0, 77) else "failed", text)


def redis(book):
    options = book.options
    for file in options.words:
        book.start(file)
        argv = ["./runtest", "--single", file, "--clients", "1"]
        for name in options.without:
            argv += ["--skiptest", name]
        status, text = run(argv, LIMIT_OF_FILE_S, cwd=options.dir)
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        for word, name in re.findall(r"^\[(ok|err|exception|ignore|skip)\]: (.*)$", text, re.MULTILINE):
            name = re.sub(r" \(\d+ ms\)$| in tests/\S+$", "", name)
            verdict = {"ok": "passed", "ignore": "skipped", "skip": "skipped"}.get(word, "failed")
            book.note(f"{file} {name}", verdict)
        book.note(file, "passed" if status == 0 else "failed", text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["libuv", "libevent", "libzmq", "redis"])
    parser.add_argument("results")
    parser.add_argument("dir")
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    book = Book(options)
    {"libuv": libuv, "libevent": libevent, "libzmq": libzmq, "redis": redis}[options.kind](book)
    print("end", file=book.file)


if __name__ == "__main__":
    main()
