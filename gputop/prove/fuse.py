"""The fuse: a process of its own that lets stopped processes go on 1.5 s after it was armed, whatever happens to gputop and the guardian.

It is armed before a process is stopped. `Fuse` talks to it by lines: the processes (``pid start_ticks``, comma between two), or an empty
one to let them go on now. It answers each with a byte, another one if it cannot hold them all. At the end of its input it lets them go on,
too, and ends. It imports little.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gputop.prove.processes import pidfd_of, read_process

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable

    from gputop.prove.change import Record

BURNS_S = 1.5  # s after which they go on; a pulse is 1 s long (`gputop.prove.interventions.stop`)
LATE_S = 1.0  # s from arming to the last SIGSTOP after which they go on at once: the fuse might have burnt before (guess)
READY_S = 20.0  # s that it may take to start, or to answer: a loaded machine (guess)
END_S = 2.0  # s that is waited for its end (guess)
DONE, FAILED = b".", b"!"


class Fuse:
    """The fuse, seen from the experiment. Raises OSError."""

    def __init__(self) -> None:
        import subprocess

        from gputop.system.program import argv_of

        self._child: subprocess.Popen[bytes] = subprocess.Popen(
            argv_of("gputop.prove.fuse"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/",
            start_new_session=True, bufsize=0,
        )  # fmt: skip
        self._armed_s: float | None = None  # when it was armed (`time.monotonic`); None if it is not
        self._wait()

    def arm(self, records: Iterable[Record]) -> None:
        """Name the processes that are about to be stopped; more may follow."""
        if self._armed_s is None:
            self._armed_s = time.monotonic()
        self._say(",".join(f"{record.pid} {record.start_ticks}" for record in records))

    def check(self) -> None:
        """Raise OSError if stopping them took so long that the fuse may have burnt before: they go on."""
        if self._armed_s is None or time.monotonic() - self._armed_s > LATE_S:
            raise OSError("this machine is too slow for it")

    def disarm(self) -> None:
        """Let them go on, if they are not already."""
        self._armed_s = None
        with suppress(OSError):
            self._say("")

    def close(self) -> None:
        """Let them go on, and end it."""
        import subprocess

        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(END_S)

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n".encode())
        self._wait()

    def _wait(self) -> None:
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], READY_S)[0] or self._child.stdout.read(1) != DONE:
            raise OSError("the fuse, which lets stopped processes go on, does not answer, or can hold no more of them (ulimit -n)")


class Armed:
    """Stopped processes that will be continued when the fuse burns, held by pidfd if the kernel has them."""

    def __init__(self) -> None:
        self._until = 0.0
        self._held: dict[tuple[int, int], int | None] = {}  # (pid, start time) -> pidfd

    @property
    def left_s(self) -> float | None:
        """s until it burns; None if it is not armed."""
        return max(0.0, self._until - time.monotonic()) if self._held else None

    def hold(self, line: str) -> None:
        """Hold the processes of a line, unless their pids were reused. Raises OSError if no more files can be opened."""
        if not self._held:
            self._until = time.monotonic() + BURNS_S
        for words in filter(None, line.split(",")):
            pid, start_ticks = map(int, words.split())
            if (pid, start_ticks) not in self._held:
                with suppress(ProcessLookupError):
                    self._hold(pid, start_ticks)

    def _hold(self, pid: int, start_ticks: int) -> None:
        descriptor, is_same = pidfd_of(pid), False
        try:
            is_same = read_process(pid).start_ticks == start_ticks
        finally:
            if is_same:
                self._held[pid, start_ticks] = descriptor
            elif descriptor is not None:
                os.close(descriptor)

    def burn(self) -> None:
        """Let them go on."""
        for (pid, _start_ticks), descriptor in self._held.items():
            with suppress(OSError):
                if descriptor is None:
                    os.kill(pid, signal.SIGCONT)
                else:
                    signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            if descriptor is not None:
                os.close(descriptor)
        self._held = {}


def main() -> None:
    """Read lines from standard input until its end."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError, ValueError):  # a file for each process that it holds
        _soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    armed, rest = Armed(), b""
    with suppress(OSError):
        os.write(1, DONE)
        while True:
            if not select.select([0], [], [], armed.left_s)[0]:
                armed.burn()
                continue
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                os.write(1, DONE if _obey(armed, line.decode()) else FAILED)
    armed.burn()


def _obey(armed: Armed, line: str) -> bool:
    """Do what a line asks; returns whether that succeeded."""
    try:
        if line:
            armed.hold(line)
        else:
            armed.burn()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
