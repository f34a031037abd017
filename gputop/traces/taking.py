"""Traces of running jobs: asked for, waited for, and moved to where the user wants them."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice

from msgspec import Struct

from gputop.system.errors import Unavailable, UserError
from gputop.system.output import create, write_all
from gputop.system.text import clean
from gputop.traces import dynolog, inject
from gputop.traces.environment import PREFIX, Job, OnSharedSocket, job_of, make_folder, opened, remove, state_of
from gputop.traces.events import MOST_BYTES, Events
from gputop.traces.kineto import Answered, Asked, Desk, config

ASKS_WITHIN_S = 7.0  # s: a job asks each second, or by Kineto's default each 5 s
ALL_START_S = 2.0  # s from the first answer to the begin of a trace by time: by then each rank has asked
BEGINS_WITHIN_S = 4.0  # s from the answer until the job reports that it traces, 2 as measured: Kineto drops a start that it finds too near
_LOOK_S = 0.05  # s between looks for a finished file
_PIECE_BYTES = 1 << 20
_EMPTY_BYTES = 1 << 13  # of a file without events, at most: torch 2.13 writes 900
MOST_TRIES = 3
_MOST_ASKED = 256  # questions of one folder that are answered between two looks (a choice)
_MOST_NAMES = 4096  # files of a folder that are looked at (a choice)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Wanted(Struct, frozen=True):
    """What is asked for. ``seconds``: how long the trace is."""

    seconds: float = 1.0
    with_stack: bool = False
    timeout_s: float = 60.0  # from the answer to the whole file
    inject: bool = False  # processes without Kineto's variables run a script: see `gputop.traces.inject`


class Taken(Struct, frozen=True):
    """One job's trace: its file, or why there is none and what to do."""

    pid: int
    file: str | None
    took_s: float
    error: str | None = None


class _Case:
    """One job that is asked. ``state`` goes from ``waits`` over ``answered`` and ``runs`` to ``ended``. ``desk``: None where dynolog, or a
    script in the job, was asked, by ``again``; ``failed``: reports why that gave up."""

    def __init__(self, job: Job, folder: int, desk: Desk | None, mark: str) -> None:
        self.job, self.folder, self.desk, self.mark = job, folder, desk, mark
        self.again: Callable[[], None] | None = None
        self.failed: Callable[[], str] = str
        self.advice = "ask for a shorter one, by --seconds"
        self.state = "waits"
        self.answered_s = 0.0
        self.was_busy = False
        self.tries = 0
        self.result: Taken | None = None

    def found(self) -> str | None:
        """The name of the finished file in the job's folder."""
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in islice(entries, _MOST_NAMES):
                if entry.name.startswith(self.mark) and entry.name.endswith(".json"):
                    return entry.name
        return None


def take(pids: Iterable[int], wanted: Wanted, name_of: Callable[[int], str], notify: Callable[[str], None] = lambda _: None) -> list[Taken]:
    """Ask each process for a trace, and wait. ``name_of``: pid to the path of a new file. One answer a process, in their order; nothing is
    raised for a job that cannot be asked or does not answer. Raises UserError for a file that cannot be written.
    """
    began_s, mark = time.monotonic(), f"{PREFIX}{os.urandom(4).hex()}"
    done: dict[int, Taken] = {}
    cases: dict[int, _Case] = {}
    chosen = list(dict.fromkeys(pids))
    with ExitStack() as stack:
        desks: dict[tuple[int, int], tuple[int, Desk]] = {}
        for pid in chosen:
            found = _begun(pid, desks, mark, stack, wanted)
            if isinstance(found, Taken):
                done[pid] = found
            else:
                cases[pid] = found
        if cases:
            _attend(cases, {desk.fileno(): desk for _, desk in desks.values()}, wanted, mark, began_s, notify)
        for pid, case in cases.items():
            done[pid] = _result(case, name_of, round(time.monotonic() - began_s, 2))
    return [done[pid] for pid in chosen]


def _begun(pid: int, desks: dict[tuple[int, int], tuple[int, Desk]], mark: str, stack: ExitStack, wanted: Wanted) -> _Case | Taken:
    """The case of a process, at the desk of its folder, which is opened once, or of another way; or why there is none."""
    job = None
    try:
        job = job_of(pid)
        folder = stack.enter_context(opened(job))
        seen = os.fstat(folder)
        if (key := (seen.st_dev, seen.st_ino)) not in desks:
            desks[key] = folder, stack.enter_context(Desk(job, folder))
    except Unavailable as why:
        try:
            return _otherwise(pid, job, why, mark, stack, wanted)
        except Unavailable as other:
            return Taken(pid, None, 0.0, f"{other.reason}: {other.remedy}" if other.remedy else other.reason)
    except OSError as error:  # no more descriptors
        return Taken(pid, None, 0.0, f"process {pid} cannot be asked: {error.strerror}")
    return _Case(job, *desks[key], f"{mark}-{pid}_")


def _otherwise(pid: int, job: Job | None, why: Unavailable, mark: str, stack: ExitStack, wanted: Wanted) -> _Case:
    """The case of a process that answers no desk: a dynolog is asked if it is there already, a script is injected if that is wanted. Raises
    Unavailable."""
    if isinstance(why, (OnSharedSocket, Answered)) and dynolog.owner() is not None:
        if job is None:
            assert isinstance(why, OnSharedSocket)
            if why.uid != os.geteuid():
                raise Unavailable(f"process {pid} is another user's: ask for its trace as that user")
            stack.callback(remove, path := make_folder())
            job = Job(pid, path, why.uid)
        case = _Case(job, stack.enter_context(opened(job)), None, f"{mark}-{pid}_")
        text = config(f"{job.folder}/{mark}-{pid}.json", wanted.seconds, 0, wanted.with_stack)
        case.again = partial(dynolog.ask, pid, job.uid, text)
    elif wanted.inject and job is None:
        one = inject.Injection(pid)
        case = _Case(one.job, stack.enter_context(opened(one.job)), None, f"{mark}-{pid}_")
        stack.callback(lambda: one.end(bool(case.result is None or one.failed() or not state_of(pid))))
        case.advice = "its main thread has not come back from a call, or the trace is too long"
        case.again = partial(one.begin, f"{mark}-{pid}_0.json", wanted.seconds, wanted.with_stack)
        case.failed = one.failed
    else:
        raise why
    case.again()
    case.state, case.answered_s, case.tries = "answered", time.monotonic(), 1 if job is not None else MOST_TRIES
    return case


def _attend(
    cases: dict[int, _Case], desks: dict[int, Desk], wanted: Wanted, mark: str, began_s: float, notify: Callable[[str], None]
) -> None:
    """Answer questions until each case has ended."""
    poller = select.poll()
    for number in desks:
        poller.register(number, select.POLLIN)
    start_unix_ms = 0
    while any(case.state != "ended" for case in cases.values()):
        poller.poll(1000 * _LOOK_S)
        for desk in desks.values():
            for asked in islice(iter(desk.next, None), _MOST_ASKED):
                case = cases.get(asked.pid)
                if case is None or case.state == "ended" or asked.uid != case.job.uid:
                    desk.answer(asked)
                    continue
                if case.state == "waits" and asked.idle and not start_unix_ms and len(cases) > 1:
                    start_unix_ms = round(1000 * (time.time() + ALL_START_S))
                _hear(case, asked, wanted, mark, start_unix_ms, notify)
        now = time.monotonic()
        for case in cases.values():
            _check(case, now, began_s, wanted)


def _hear(case: _Case, asked: Asked, wanted: Wanted, mark: str, start_unix_ms: int, notify: Callable[[str], None]) -> None:
    """Take one question of a job: it gets the configuration once, as soon as it is idle."""
    if case.state == "waits" and asked.idle:
        file = f"{case.job.folder}/{mark}-{case.job.pid}.json"
        text = config(file, wanted.seconds, 0 if case.tries else start_unix_ms, wanted.with_stack)
        if case.desk is not None and case.desk.answer(asked, text):
            case.state, case.answered_s = "answered", time.monotonic()
            case.tries += 1
        return
    if case.desk is not None:
        case.desk.answer(asked)
    if case.state == "waits":
        if not case.was_busy:
            notify(f"process {case.job.pid}: its own torch.profiler is at work, and goes first")
        case.was_busy = True
    elif not asked.idle:
        case.state = "runs"
    elif case.state == "answered" and case.tries < MOST_TRIES and _is_dropped(case, start_unix_ms):
        case.state = "waits"
    elif case.state == "runs" and case.found() is None:
        _end(case, "the trace was given up by torch: the script's own torch.profiler goes first")


def _is_dropped(case: _Case, start_unix_ms: int) -> bool:
    """True if a job that was answered should have begun long since, and is still idle."""
    starts_in_s = ALL_START_S if start_unix_ms and case.tries == 1 else 0.0
    return time.monotonic() - case.answered_s > BEGINS_WITHIN_S + starts_in_s


def _check(case: _Case, now: float, began_s: float, wanted: Wanted) -> None:
    """End a case whose file is there, whose process has ended, or who has waited too long."""
    if case.state == "ended":
        return
    if (name := case.found()) is not None:
        if case.tries < MOST_TRIES and _is_empty(case, name):
            with suppress(OSError):
                os.unlink(name, dir_fd=case.folder)
            case.state = "waits"
            if case.again is not None:
                _ask_again(case, now)
            return
        case.state = "ended"
    elif failed := case.failed():
        _end(case, f"torch.profiler could not be started in it: {clean(failed, 200)}")
    elif state_of(case.job.pid) in ("", "Z", "X"):
        _end(case, "the process has ended before its trace was whole")
    elif case.state == "waits" and not case.tries and now - began_s > (wanted.timeout_s if case.was_busy else ASKS_WITHIN_S):
        _end(case, "its own torch.profiler is still at work" if case.was_busy else _why_silent(case.job.pid))
    elif case.answered_s and now - case.answered_s > wanted.timeout_s + wanted.seconds:
        _end(case, f"no trace within {wanted.timeout_s:g} s: {case.advice}")


def _ask_again(case: _Case, now: float) -> None:
    """Ask dynolog again, for the first trace of a process may be empty."""
    assert case.again is not None
    try:
        case.again()
    except Unavailable as why:
        _end(case, why.reason)
    else:
        case.state, case.answered_s, case.tries = "answered", now, case.tries + 1


def _is_empty(case: _Case, name: str) -> bool:
    """True for a trace without events: the first one of a process may end while Kineto still prepares itself."""
    with suppress(OSError, Unavailable), open(_opened(case, name), "rb") as file:
        if os.fstat(file.fileno()).st_size <= _EMPTY_BYTES:
            return next(iter(Events(file)), None) is None
    return False


def _result(case: _Case, name_of: Callable[[int], str], took_s: float) -> Taken:
    """What became of a case that has ended. Raises UserError for a file of ours that cannot be written."""
    pid, name = case.job.pid, case.found()
    if name is None:
        return case.result or Taken(pid, None, took_s, "its trace is not there")
    try:
        return Taken(pid, _moved(case, name, name_of(pid)), took_s)
    except Unavailable as why:
        return Taken(pid, None, took_s, why.reason)


def _end(case: _Case, why: str) -> None:
    case.state = "ended"
    case.result = Taken(case.job.pid, None, round(time.monotonic() - case.answered_s, 2) if case.answered_s else 0.0, why)


def _why_silent(pid: int) -> str:
    """Why a job that has the variables does not ask."""
    if state_of(pid) in ("T", "t"):
        return "it is stopped: let it go on first (kill -CONT)"
    return f"it has asked for nothing within {ASKS_WITHIN_S:g} s: it has not imported torch, or holds the interpreter"


def _opened(case: _Case, name: str) -> int:
    """A descriptor of a file that the job has written. Raises Unavailable, and OSError."""
    source = os.open(name, _READ, dir_fd=case.folder)
    seen = os.fstat(source)
    if stat.S_ISREG(seen.st_mode) and seen.st_uid == case.job.uid and seen.st_size <= MOST_BYTES:
        return source
    os.close(source)
    raise Unavailable(f"its trace is no file of its own, or is larger than {MOST_BYTES >> 20} MiB")


def _moved(case: _Case, name: str, path: str) -> str:
    """Move the finished file to ``path``, a new one. Raises Unavailable for what the job has written, UserError for ``path``."""
    try:
        source = _opened(case, name)
    except OSError as error:
        raise Unavailable(f"its trace cannot be read: {error.strerror}") from None
    try:
        _copy(source, path)
    finally:
        os.close(source)
        with suppress(OSError):
            os.unlink(name, dir_fd=case.folder)
    return path


def _copy(source: int, path: str) -> None:
    """Copy a file, which may still grow, to a new one; of a copy that fails nothing is left. Raises Unavailable, UserError."""
    target, size = create(path), 0
    try:
        while piece := os.read(source, _PIECE_BYTES):
            size += len(piece)
            if size > MOST_BYTES:
                raise Unavailable(f"its trace is larger than {MOST_BYTES >> 20} MiB")
            write_all(target, piece)
    except OSError as error:
        _remove(path)
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    except Unavailable:
        _remove(path)
        raise
    finally:
        os.close(target)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
