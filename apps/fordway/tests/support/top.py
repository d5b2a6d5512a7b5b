"""Plays `fordway top` on a terminal of its own, as a shell would, and looks at what stands there."""

import fcntl, os, pty, re, select, signal, struct, subprocess, sys, termios, time

FORDWAY = sys.argv[1:]
LIMIT_S = 30


class Terminal:
    """As much of one as it takes: cursor, erasing, alternate screen."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        self.cells, self.at, self.rest = {}, (0, 0), ""
        self.modes = {"1049": False, "25": True}
        self.resize(80, 24)

    def resize(self, columns, lines):
        self.size = (columns, lines)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def hear(self):
        """Takes what is written; false if nothing comes."""
        if not select.select([self.master], [], [], 0.2)[0]:
            return False
        self.rest += os.read(self.master, 65536).decode(errors="replace")
        token = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b])")
        while found := token.match(self.rest):
            self.rest = self.rest[found.end():]
            values, what, letter = found.groups()
            if letter:
                self.cells[self.at] = letter
                self.at = (self.at[0], self.at[1] + 1)
            elif what == "H":
                line, column = (values or "1;1").split(";")
                self.at = (int(line) - 1, int(column) - 1)
            elif what == "J":
                self.cells = {}
            elif what in "hl":
                self.modes[values.strip("?")] = what == "h"
                if values == "?1049":
                    self.cells = {}
        return True

    def text(self):
        columns, lines = self.size
        rows = ["".join(self.cells.get((y, x), " ") for x in range(columns)) for y in range(lines)]
        return "\n".join(row.rstrip() for row in rows)

    def until(self, what, is_so):
        end = time.monotonic() + LIMIT_S
        while not is_so(self.text()):
            assert time.monotonic() < end, f"{what}:\n{self.text()}\n{self.modes} {self.rest!r}"
            self.hear()

    def shows(self, text):
        self.until(text, lambda screen: text in screen)

    def press(self, keys):
        os.write(self.master, keys.encode())

    def is_as_before(self):
        while self.hear():
            pass
        assert self.modes["25"] and not self.modes["1049"], self.modes
        assert termios.tcgetattr(self.slave) == self.before, "the terminal's settings"

    def start(self):
        def in_front():
            os.setpgrp()
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, os.getpgrp())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)

        self.before = termios.tcgetattr(self.slave)
        line = FORDWAY + ["top", "--interval", "0.2"]
        ends = dict.fromkeys(["stdin", "stdout", "stderr"], self.slave)
        self.program = subprocess.Popen(line, preexec_fn=in_front, **ends)
        self.shows("connections by TX/s")
        assert not termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO)
        assert self.modes["1049"] and not self.modes["25"]


def fordway(*line):
    subprocess.run(FORDWAY + list(line), check=True, stdout=subprocess.DEVNULL)


# It waits for the program's end, too.
signal.alarm(5 * LIMIT_S)
os.setsid()
terminal = Terminal()
fcntl.ioctl(terminal.slave, termios.TIOCSCTTY, 0)

# Keys, and a terminal that becomes smaller and larger.
terminal.start()
terminal.press("?")
terminal.shows("choose a row")
# The last line is drawn last; a letter right behind Escape would be another key.
terminal.shows("Esc back")
terminal.press("\x1b")
terminal.shows("connections by TX/s")
terminal.press("d")
terminal.shows("\nhost ")
terminal.press("/nobody\r")
terminal.shows('with "nobody"')
assert "\nhost " not in terminal.text()
terminal.press("/\x1b")
terminal.shows("\nhost ")
for size in [(40, 10), (20, 5), (3, 1), (100, 30)]:
    terminal.resize(*size)
    status = "domains by TX/s; ? help, q leave"[: size[0]].rstrip()
    terminal.until(size, lambda screen: screen.split("\n")[-1].startswith(status))
    assert terminal.text().count(status) == 1, "what a larger screen has left"

# It is stopped, and goes on; by the signal and by the key.
for stop in [lambda: terminal.program.send_signal(signal.SIGTSTP), lambda: terminal.press("\x1a")]:
    stop()
    assert os.WIFSTOPPED(os.waitpid(terminal.program.pid, os.WUNTRACED)[1])
    terminal.is_as_before()
    terminal.program.send_signal(signal.SIGCONT)
    terminal.shows("\nhost ")
    assert terminal.modes["1049"]

# The broker goes, and comes back.
fordway("down")
terminal.shows("trying again")
fordway("up", "--detach")
terminal.shows("domains by TX/s")

# However it ends, the terminal is as it was.
terminal.press("q")
assert terminal.program.wait(LIMIT_S) == 0
terminal.is_as_before()
terminal.start()
terminal.press("\x03")
assert terminal.program.wait(LIMIT_S) == 0
terminal.is_as_before()
for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
    terminal.start()
    terminal.program.send_signal(number)
    assert terminal.program.wait(LIMIT_S) == -number
    terminal.is_as_before()
print("played")
