"""Dumps of torch's flight recorder, asked of the ranks of a job that runs or hangs.

NCCL's process group makes a named pipe for each rank, ``<TORCH_NCCL_DEBUG_INFO_PIPE_FILE><rank>.pipe``, and looks at it once a second; a
byte in it has the recorder written to ``<TORCH_FR_DUMP_TEMP_FILE><rank>``, and the training goes on (torch/csrc/distributed/c10d/
ProcessGroupNCCL.hpp). The thread that does so runs on while the main thread hangs. gloo records as well, but has no pipe.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable
from contextlib import suppress

from gputop.model.flight import Flight, FlightRank
from gputop.model.roles import SIZE_VARIABLES, number_in
from gputop.sources import parse
from gputop.sources.files import open_files
from gputop.stacks.lines import TextLine
from gputop.stacks.permission import why_not
from gputop.system.errors import Unavailable
from gputop.system.text import clean
from gputop.traces.environment import DUMP_NAMES, ENVIRON_BYTES, FLIGHT, HOW, MOST_FILES, PIPE, eldest_holders, state_of
from gputop.traces.flight import MOST_BYTES, TOO_LARGE, Dump, judged, read_dump

WITHIN_S = 10.0  # s: a rank looks at its pipe each second, then writes at most some MB
MOST_RANKS = 256  # that are asked together: more than a machine has GPUs
_LOOK_S = 0.1  # s between two looks for finished files
_WANTED = frozenset(name.encode() for name in (PIPE, *DUMP_NAMES, *SIZE_VARIABLES))
_PIPE = re.compile(r"(\d{1,6})\.pipe(?: \(deleted\))?\Z")
_DEFAULT = "/tmp/nccl_trace_rank_"  # of the dumps of torch before 2.9, where the environment names none
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class _RankRecorder:
    """A rank's recorder. Raises Unavailable with the reason why it cannot be asked, OSError if it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._uid = os.stat(f"/proc/{pid}").st_uid
        except OSError:
            raise Unavailable(f"process {pid} has ended") from None
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = parse.environ(file.read(ENVIRON_BYTES), _WANTED)
        except OSError:
            raise Unavailable(why_not(pid)) from None
        self.stem = environ.get(PIPE, "")
        if not self.stem:
            raise Unavailable(f"process {pid} was started without {PIPE}", HOW)
        self.world = number_in(environ, SIZE_VARIABLES) or 0
        self.pipe, self.rank = self._pipe()
        prefix = next((value for name in DUMP_NAMES if (value := environ.get(name))), _DEFAULT)
        self._path = f"/proc/{pid}/root{prefix}{self.rank}"
        self._is_ours = os.path.basename(prefix) == FLIGHT and self._uid == os.geteuid()  # gputop set the variable: no other reads it
        self._before = self._seen()
        self._size = -1

    def _pipe(self) -> tuple[str, int]:
        """Descriptor of the pipe in the process, and the rank in its name."""
        for number, link in open_files(f"/proc/{self.pid}/", MOST_FILES):
            if link.startswith(self.stem) and (named := _PIPE.fullmatch(link[len(self.stem) :])):
                return number, int(named[1])
        why = "it has no pipe for its flight recorder: NCCL makes one once a process group begins (torch 2.5 or later), gloo none"
        raise Unavailable(why, "gputop stacks shows where it stands")

    def _seen(self) -> tuple[int, int, int]:
        with suppress(OSError):
            seen = os.lstat(self._path)
            return seen.st_ino, seen.st_mtime_ns, seen.st_size
        return 0, 0, 0

    def ask(self) -> None:
        """Write a byte to the pipe, by the process's own descriptor: no path can lead elsewhere. Raises Unavailable, OSError."""
        pipe = os.open(f"/proc/{self.pid}/fd/{self.pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            seen = os.fstat(pipe)
            if not stat.S_ISFIFO(seen.st_mode) or seen.st_uid != self._uid:
                raise Unavailable("its flight recorder's pipe is none, or belongs to another user")
            os.write(pipe, b"1")
        finally:
            os.close(pipe)

    def dump(self, is_last: bool) -> Dump | None:
        """The dump, once it is whole; None while there is none. Raises Unavailable if the last try finds one that cannot be read."""
        now = self._seen()
        if now == self._before:
            return None
        if now[2] > MOST_BYTES:  # it never becomes one, so it is not read again and again
            raise Unavailable(TOO_LARGE)
        if now[2] != self._size and not is_last:  # it still grows
            self._size = now[2]
            return None
        try:
            found = read_dump(self._content(), self.rank, now[1])
            if self._is_ours:
                with suppress(OSError):
                    os.unlink(self._path)
            return found
        except (OSError, Unavailable) as error:
            if not is_last:
                return None
            raise Unavailable(f"its dump cannot be read: {error.strerror if isinstance(error, OSError) else error.reason}") from None

    def _content(self) -> bytes:
        with open(os.open(self._path, os.O_RDONLY | _FLAGS), "rb") as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode) or seen.st_uid != self._uid:
                raise Unavailable("it is no file of its own")
            return file.read(MOST_BYTES + 1)


def recorded() -> list[int]:
    """Pids of the processes here whose flight recorder can be asked; forked children, which hold the pipe too, are left out."""
    return eldest_holders(lambda link: link.startswith("/") and _PIPE.search(link) is not None)


def ask(pids: Iterable[int], timeout_s: float = WITHIN_S) -> list[Flight]:
    """Ask each rank for a dump, and judge the dumps of each job together; empty if no process was started with a recorder's pipe. Takes up
    to ``timeout_s``."""
    jobs: dict[str, list[_RankRecorder]] = {}
    failed: list[FlightRank] = []
    for pid in list(dict.fromkeys(pids))[:MOST_RANKS]:
        one = _asked(pid)
        if isinstance(one, FlightRank):
            failed.append(one)
        elif one is not None:
            jobs.setdefault(one.stem, []).append(one)
    if not jobs:
        return [judged({}, failed)] if failed else []
    deadline = time.monotonic() + timeout_s
    return [_of_job(ranks, failed if i == 0 else [], deadline) for i, ranks in enumerate(jobs.values())]


def _asked(pid: int) -> _RankRecorder | FlightRank | None:
    """The recorder of a rank, once it was asked, or why it cannot be; None for a process that was started without one's pipe."""
    try:
        one = _RankRecorder(pid)
        one.ask()
    except Unavailable as why:
        return None if why.remedy == HOW else FlightRank(None, pid, error=f"{why.reason}: {why.remedy}" if why.remedy else why.reason)
    except OSError as error:
        return FlightRank(None, pid, error=f"its flight recorder cannot be asked: {error.strerror}")
    return one


def _of_job(waiting: list[_RankRecorder], failed: list[FlightRank], deadline: float) -> Flight:
    dumps: dict[int, Dump] = {}
    ranks: dict[int, FlightRank] = {}
    world = max(one.world for one in waiting)
    silent = list(waiting)
    while silent:
        is_last = time.monotonic() >= deadline
        for one in list(silent):
            try:
                dump = one.dump(is_last)
            except Unavailable as why:
                ranks[one.rank] = FlightRank(one.rank, one.pid, error=why.reason)
                silent.remove(one)
                continue
            if dump is not None:
                dumps[one.rank] = dump
                ranks[one.rank] = FlightRank(one.rank, one.pid, dump.version, len(dump.calls))
                silent.remove(one)
        if is_last or not silent:
            break
        time.sleep(_LOOK_S)
    for one in silent:
        ranks[one.rank] = FlightRank(one.rank, one.pid, error=_why_silent(one.pid))
    return judged(dumps, [*(ranks[rank] for rank in sorted(ranks)), *failed], world)


def _why_silent(pid: int) -> str:
    if (state := state_of(pid)) in ("T", "t"):
        return "it is stopped, and dumps nothing"
    return "it has dumped nothing: its NCCL monitor is off (TORCH_NCCL_ENABLE_MONITORING=0), or hangs, too" if state else "it has ended"


def answers(pids: Iterable[int]) -> list[str]:
    """The answers of the jobs of these processes, a sentence each; empty where no recorder can be asked, or nothing stands."""
    return [clean(one.words) for one in ask(pids) if one.stops]


def text_lines(pids: Iterable[int]) -> list[TextLine]:
    """`answers` as lines that stand before stacks."""
    lines = [TextLine("own", f"torch's flight recorder: {words}") for words in answers(pids)]
    return [*lines, TextLine("blank", "")] if lines else []
