"""A program in a real pseudo-terminal: what it writes, what a terminal shows of it, and the state it leaves the terminal in."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyte
from pyte.screens import wcwidth

from tests.wait import PATIENCE_S

# Private sequences pyte does not know (kitty keyboard, mode reports) would be drawn as text; only mode switches pass.
_PRIVATE = re.compile(rb"\x1b\[[<>=?][0-9;]*[$]?[A-Za-z]")
_MODE = re.compile(rb"\x1b\[\?([0-9;]+)([hl])")
_UNFINISHED = re.compile(rb"\x1b(\[[<>=?0-9;$]*)?$")
_LAST = b"\0"  # written behind all that a child has written

ALTERNATE_SCREEN = 1049
CURSOR = 25
MOUSE = frozenset({1000, 1002, 1003, 1006, 1015, 1016})
PASTE = 2004
FOCUS = 1004
ESC = "\x1b[27u"
"""Esc as terminals with kitty's keyboard protocol send it. A lone ``\\x1b`` is the key only where nothing follows for a while: a program
that stood still meanwhile reads it together with the next key, which would be Alt's then."""


def _waited_for_cpu_s(pid: int) -> float:
    """Seconds in which a process's main thread could have run, and others did (/proc/PID/schedstat); 0 where the kernel counts none."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Pty:
    """A child process with a pty of its own as its controlling terminal; a thread reads all that it writes.

    ``bytes_out`` and ``bursts`` (monotonic seconds, bytes) say how much it wrote and when; ``modes`` which private
    terminal modes (DECSET numbers) are on.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 160,
        lines: int = 48,
        env: Mapping[str, str] | None = None,
        ignore_hup: bool = False,
        cwd: Path | None = None,
    ) -> None:
        self.columns, self.lines = columns, lines
        self.modes = {CURSOR}
        self.bytes_out = 0
        self.after = b""
        """What was written since the alternate screen was left."""
        self.bursts: list[tuple[float, int]] = []
        self.reading = threading.Event()
        """Cleared, nothing is read: like a terminal behind a hanging connection."""
        self.reading.set()
        self._tail = b""
        self._awaits_last = False
        self._changed = threading.Condition()
        self._master, self.slave = pty.openpty()
        self._set_size()
        self.termios_before = termios.tcgetattr(self.slave)
        self.started = time.monotonic()
        self.process = self._spawn(command, env, ignore_hup, cwd)
        self._drainer = threading.Thread(target=self._drain, daemon=True)
        self._drainer.start()

    def _spawn(
        self, command: Sequence[str], env: Mapping[str, str] | None, ignore_hup: bool, cwd: Path | None
    ) -> subprocess.Popen[bytes]:
        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            if ignore_hup:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

        ends = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        return subprocess.Popen(command, **ends, env=env, cwd=cwd, start_new_session=True, preexec_fn=take_terminal)

    @property
    def pid(self) -> int:
        """The child's pid."""
        return self.process.pid

    def send(self, keys: str) -> None:
        """Type ``keys``."""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size; the kernel sends SIGWINCH to the foreground group."""
        self.columns, self.lines = columns, lines
        self._set_size()

    def hang_up(self) -> None:
        """Close the terminal, as a lost SSH connection does."""
        master, self._master = self._master, -1
        os.close(master)

    def wait_still(self, quiet_s: float = 0.6, timeout_s: float = PATIENCE_S) -> None:
        """Wait until nothing has been written for ``quiet_s``, in which the child did not have to wait for a CPU: it may have more to
        write."""
        seen, since_s, waited_s = -1, 0.0, 0.0

        def is_still() -> bool:
            nonlocal seen, since_s, waited_s
            if len(self.bursts) != seen:
                seen, since_s, waited_s = len(self.bursts), time.monotonic(), _waited_for_cpu_s(self.pid)
            return bool(seen) and time.monotonic() - since_s - (_waited_for_cpu_s(self.pid) - waited_s) > quiet_s

        self.wait_for(is_still, f"silence for {quiet_s} s", timeout_s)

    def wait_for(self, condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until ``condition`` holds, which is asked after each output; fails with the screen."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"not within {timeout_s} s: {what}\n{self.describe()}")
                self._changed.wait(min(left, 0.05))

    def exit_code(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit status, negative for a signal, once the process has ended and its output is read."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s\n{self.describe()}") from None
        if self._master >= 0 and self.reading.is_set():
            self._read_all()
        return code

    def _read_all(self) -> None:
        """Wait until all that the child has written is read: what is written into the terminal behind it has come, too."""
        with self._changed:
            self._awaits_last = True
        os.write(self.slave, _LAST)
        self.wait_for(lambda: not self._awaits_last, "the last of its output")

    def termios_now(self) -> list[object]:
        """The line settings now."""
        return termios.tcgetattr(self.slave)

    def describe(self) -> str:
        """What to show when a test fails."""
        return f"{self.bytes_out} bytes written, exit status {self.process.poll()}"

    def close(self) -> None:
        """End the child, whatever state it is in, and close the pty."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            self.hang_up()
        self._drainer.join(2)
        os.close(self.slave)

    def __enter__(self) -> Pty:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set_size(self) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", self.lines, self.columns, 0, 0))

    def _drain(self) -> None:
        while (master := self._master) >= 0:
            self.reading.wait(0.1)
            try:
                if not self.reading.is_set():
                    continue
                if not select.select([master], [], [], 0.1)[0]:
                    continue
                data = os.read(master, 1 << 16)
            except (OSError, ValueError):
                return
            with self._changed:
                if self._awaits_last and _LAST in data:
                    self._awaits_last = False
                    before, _, after = data.rpartition(_LAST)
                    data = before + after
                if data:
                    self._take(data)
                self._changed.notify_all()

    def _take(self, data: bytes) -> None:
        self.bytes_out += len(data)
        self.bursts.append((time.monotonic(), len(data)))
        data = self._tail + data
        cut = _UNFINISHED.search(data)
        self._tail = data[cut.start() :] if cut else b""
        data = data[: len(data) - len(self._tail)]
        _, left, after = data.rpartition(b"\x1b[?1049l")
        self.after = after if left else self.after + after
        for numbers, switch in _MODE.findall(data):
            for number in numbers.split(b";"):
                (self.modes.add if switch == b"h" else self.modes.discard)(int(number))
        self._show(data)

    def _show(self, data: bytes) -> None:
        """Take in what was written; a plain pty only counts it."""


class Emulated(pyte.Screen):
    """A screen of pyte's whose rows are put together anew only where something was written: tests read them after each output."""

    def __init__(self, columns: int, lines: int) -> None:
        self._shown: list[str] = []
        super().__init__(columns, lines)

    @property
    def display(self) -> list[str]:
        """The rows as pyte has them: a wide character takes the cell behind it, too."""
        if len(self._shown) != self.lines:
            self._shown = [""] * self.lines
            self.dirty.update(range(self.lines))
        for y in {*self.dirty, *(y - 1 for y in self.dirty)}:  # an accent at a line's begin belongs to the line above
            if 0 <= y < self.lines:
                self._shown[y] = self._row(y)
        self.dirty.clear()
        return list(self._shown)

    def _row(self, y: int) -> str:
        line = self.buffer[y]
        cells = [line[x].data for x in range(self.columns)]
        text = "".join(cells)
        wide = {character for character in {*text} if wcwidth(character) == 2}
        return "".join(cell for before, cell in zip(["", *cells[:-1]], cells, strict=True) if before[:1] not in wide) if wide else text


class Terminal(Pty):
    """A pty whose output also goes through a terminal emulator."""

    def __init__(self, command: Sequence[str], *, columns: int = 160, lines: int = 48, **options: object) -> None:
        self.screen = Emulated(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._is_shown = True
        super().__init__(command, columns=columns, lines=lines, **options)  # type: ignore[arg-type]

    def resize(self, columns: int, lines: int) -> None:
        """Resize the emulator too."""
        with self._changed:
            self.screen.resize(lines, columns)
            super().resize(columns, lines)

    def blank(self) -> None:
        """Forget what stands there, so that only what is written from now on is seen."""
        with self._changed:
            self.screen.erase_in_display(2)

    def stop_showing(self) -> None:
        """Only count what is written from now on: emulating costs more CPU than most programs take to write it."""
        self._is_shown = False

    def rows(self) -> list[str]:
        """The screen, a text per line."""
        with self._changed:
            return list(self.screen.display)

    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(row.rstrip() for row in self.rows())

    def wait_text(self, *wanted: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all of ``wanted`` stand on the screen."""
        self.wait_for(lambda: all(w in self.text() for w in wanted), f"on screen: {wanted}", timeout_s)

    def press(self, keys: str, shown: str, timeout_s: float = PATIENCE_S) -> None:
        """Type ``keys`` until the pattern ``shown`` stands on the screen: a question takes no key in its first moment."""
        self._type_until(keys, lambda: re.search(shown, self.text()), shown, timeout_s)

    def leave(self, shown: str) -> None:
        """Press Esc until the text ``shown`` has left the screen."""
        self._type_until(ESC, lambda: shown not in self.text(), f"no {shown}", PATIENCE_S)

    def _type_until(self, keys: str, condition: Callable[[], object], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}\n{self.describe()}"
            self.send(keys)
            with suppress(AssertionError):
                self.wait_for(condition, what, 3.0)

    def describe(self) -> str:
        """The screen, framed."""
        return f"{super().describe()}\n" + "\n".join(f"|{row}|" for row in self.rows())

    def _show(self, data: bytes) -> None:
        if self._is_shown:
            self._stream.feed(_PRIVATE.sub(lambda m: m[0] if _MODE.fullmatch(m[0]) else b"", data))
