"""One set of stacks: every asked process at once, each with a deadline, the ones that fail beside those that do not."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, field

from gputop.model.frame import Stack
from gputop.stacks import interpreter, kernel, pyspy
from gputop.stacks.frames import PythonThread, Unreadable
from gputop.stacks.kernel import read_file
from gputop.stacks.layout import UPGRADE
from gputop.stacks.permission import why_not
from gputop.stacks.pyspy import BEYOND_PY_SPY
from gputop.stacks.source_line import add_sources
from gputop.system import crash

TIMEOUT_S = 2.0
NATIVE_TIMEOUT_S = 10.0
_GRACE_S = 0.3
"""What readers get beyond the deadline to hand over what they have."""
_BEYOND = "it has several interpreters, or no GIL, which py-spy cannot read"
_UNSTOPPABLE = frozenset("DTt")
"""ptrace would hang on, or be refused by, a thread in these states."""


class StackSet(Struct, frozen=True):
    """Stacks taken together. ``paused`` names the processes that were stopped for it, for a millisecond, or ~20 with ``native``."""

    t_ns: int
    took_ns: int
    native: bool
    stacks: tuple[Stack, ...]
    paused: frozenset[int] = frozenset()


class _Order(Struct):
    """What was asked of one capture; ``paused`` is filled by its readers."""

    deadline: float
    native: bool
    waits: Mapping[int, str]
    incident: str
    root: str
    paused: set[int] = field(default_factory=set)


def capture(pids: Iterable[int], *, waits: Mapping[int, str] | None = None, native: bool = False, incident: str = "",
            timeout_s: float | None = None, root: str = "/") -> StackSet:  # fmt: skip
    """The stacks of ``pids`` within ``timeout_s``; never raises for what a process does.

    Every pid has at least one `Stack` in the answer, its ``error`` set where its Python stack could not be read. ``waits``
    (pid -> words) is what the diagnosis knows of each main thread's wait; it comes before what the kernel says.
    """
    wanted = list(dict.fromkeys(pids))
    began = time.monotonic_ns()
    limit = timeout_s if timeout_s is not None else NATIVE_TIMEOUT_S if native else TIMEOUT_S
    order = _Order(time.monotonic() + limit, native, waits or {}, incident, root)
    taken = _side_by_side(wanted, order)
    stacks = [stack for pid in wanted for stack in taken.get(pid) or [_failed(pid, "timed out: it did not answer", order)]]
    add_sources(stacks, root)
    return StackSet(began, time.monotonic_ns() - began, native, tuple(stacks), frozenset(order.paused))


def _side_by_side(pids: list[int], order: _Order) -> dict[int, list[Stack]]:
    """Daemon threads read the processes, at most four per CPU at a time; one that hangs is left behind at the deadline."""
    import queue
    import threading

    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, list[Stack]]] = queue.SimpleQueue()
    for pid in pids:
        todo.put(pid)

    def work() -> None:
        while True:
            try:
                pid = todo.get_nowait()
            except queue.Empty:
                return
            try:
                stacks = _process(pid, order)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told beside the others' stacks
                stacks = [_failed(pid, f"could not be read: {crash.reason(error)}", order)]
            done.put((pid, stacks))

    started = 0
    for _ in range(min(len(pids), 4 * (os.cpu_count() or 1), 64)):
        with suppress(RuntimeError):  # no more are allowed: those that there are do all of it
            threading.Thread(target=work, daemon=True, name="stacks").start()
            started += 1
    if not started:
        work()
    taken: dict[int, list[Stack]] = {}
    while len(taken) < len(pids):
        try:
            pid, stacks = done.get(timeout=max(0.0, order.deadline + _GRACE_S - time.monotonic()))
        except queue.Empty:
            break
        taken[pid] = stacks
    return taken


def _process(pid: int, order: _Order) -> list[Stack]:
    main = kernel.view_thread(pid, pid, order.root)
    if main is None:
        return [_failed(pid, "gone: the process ended", order)]
    if main.state in "ZX":
        return [_failed(pid, kernel.STATES[main.state], order, main)]
    if main.kthread:
        return [_failed(pid, "not Python: a kernel thread", order, main)]
    try:
        threads, without_native = _python(pid, order)
    except Unreadable as error:
        return [_failed(pid, _reason(pid, error, order), order, main)]
    tids = thread_ids(pid, threads, order.root)
    # After a pause, the main thread as it was before it: a pause makes a system call restart.
    views = [main if tid == pid and pid in order.paused else _view(pid, tid, order) for tid in tids]
    stacks = [_stack(pid, thread, view, order) for thread, view in zip(threads, views, strict=True)]
    for stack in stacks:
        if stack.tid == pid and (stack.syscall, stack.wchan) != (main.syscall, main.wchan):
            stack.missing["moment"] = "it ran on meanwhile: its Python and its kernel stack need not belong together"
    for stack in stacks if without_native else ():
        stack.missing["native"] = without_native
    return sorted(stacks, key=lambda stack: stack.tid != pid) or [_failed(pid, "no Python thread runs in it yet", order, main)]


def _python(pid: int, order: _Order) -> tuple[list[PythonThread], str]:
    """Its Python threads, and why they have no native frames although these were asked for."""
    if interpreter.is_beyond_py_spy(pid, order.root):
        return interpreter.dump(pid, order.root), _BEYOND if order.native else ""
    why = _unstoppable(pid, order.root) if order.native else ""
    if order.native and not why:
        try:
            threads = _paused_dump(pid, order, native=True)
            if any(thread.frames for thread in threads):
                return threads, ""
            why = "py-spy found none"
        except Unreadable as error:
            if error.kind not in {"torn", *BEYOND_PY_SPY}:
                raise
            why = f"py-spy could not take them: {error.reason}"
    return _python_only(pid, order), why


def _python_only(pid: int, order: _Order) -> list[PythonThread]:
    try:
        return pyspy.dump(pid, order.deadline)
    except Unreadable as error:
        if error.kind in BEYOND_PY_SPY:
            return interpreter.dump(pid, order.root)
        # A stack that moved while it was read: stop it for a millisecond instead, where that can be done.
        if error.kind != "torn" or _unstoppable(pid, order.root):
            raise
    return _paused_dump(pid, order, native=False)


def _paused_dump(pid: int, order: _Order, native: bool) -> list[PythonThread]:
    order.paused.add(pid)
    try:
        return pyspy.dump(pid, order.deadline, pause=True, native=native)
    except Unreadable as error:
        if error.kind in BEYOND_PY_SPY:
            order.paused.discard(pid)  # it gave up before it stopped anything
        if error.kind == "timeout":
            _let_go_on(pid, order.root)
        raise


def _unstoppable(pid: int, root: str) -> str:
    """Why no thread of it may be stopped with ptrace now, empty where all may."""
    views = (kernel.view_thread(pid, tid, root) for tid in kernel.thread_list(pid, root))
    stuck = next((view for view in views if view is not None and view.state in _UNSTOPPABLE), None)
    return f"cannot be paused for native frames: thread {stuck.tid} is in state {stuck.state}" if stuck else ""


def _let_go_on(pid: int, root: str) -> None:
    """py-spy, killed between attach and detach, can leave its target stopped; it was not before, so it is ours to continue."""
    view = kernel.view_thread(pid, pid, root)
    if view is not None and view.state == "T":
        os.kill(pid, signal.SIGCONT)


def _reason(pid: int, error: Unreadable, order: _Order) -> str:
    if error.kind == "permission":
        return why_not(pid, order.root)
    if error.kind == "gone" and os.path.exists(os.path.join(order.root, "proc", str(pid), "task", str(pid))):
        return "ended, or became another program, while it was read"
    if error.kind == "not-python":
        return which_python(pid, order.root) or "not Python"
    return error.reason


def which_python(pid: int, root: str) -> str:
    """What kind of Python it is that is not recognised, from what it maps; empty where it maps none."""
    import re

    try:
        maps = kernel.read_file(os.path.join(root, "proc", str(pid), "maps"))
    except OSError:
        return ""
    found = re.search(r"/(?:lib)?python(\d\.\d+)(t?)[^/\n]*$", maps, re.MULTILINE)
    if found is None:
        return ""
    return f"Python {found[1]}{found[2]} that exports no symbols, or is newer than what reads it: `{UPGRADE}`"


def _view(pid: int, tid: int | None, order: _Order) -> kernel.KernelView | None:
    return None if tid is None else kernel.view_thread(pid, tid, order.root)


def _stack(pid: int, thread: PythonThread, view: kernel.KernelView | None, order: _Order) -> Stack:
    lines = [line.text for line in thread.frames]
    error = "" if lines else "no Python frame: the thread is starting, ending or between calls"
    stack = _of_view(pid, view, order, name=thread.name, python=lines, gil=thread.gil, error=error)
    if view is None:
        stack.missing["kernel"] = "the thread ended, or its id cannot be told"
    return stack


def _failed(pid: int, reason: str, order: _Order, view: kernel.KernelView | None = None) -> Stack:
    return _of_view(pid, view, order, main=True, error=reason)


def _of_view(pid: int, view: kernel.KernelView | None, order: _Order, *, name: str = "", python: list[str] | None = None,
             gil: bool = False, main: bool = False, error: str = "") -> Stack:  # fmt: skip
    """The two views of a thread as one `Stack`."""
    tid = view.tid if view else pid if main else 0
    words = [order.waits.get(pid, "") if tid == pid else "", kernel.wait_words(pid, view, order.root) if view else ""]
    return Stack(
        pid=pid,
        tid=tid,
        t_ns=time.monotonic_ns(),
        python=python or [],
        kernel=list(view.frames) if view else [],
        syscall=view.syscall if view else "",
        wchan=view.wchan if view else "",
        wait="; ".join(word for word in words if word),
        error=error,
        incident=order.incident,
        thread=name or (view.comm if view else ""),
        state=view.state if view else "",
        gil=gil,
        missing={"kernel" if part == "stack" else part: why for part, why in view.missing.items()} if view else {},
    )


_PTHREAD_BYTES = 2048
"""glibc and musl keep the thread id well inside the first 2 KiB of ``struct pthread``."""


def thread_ids(pid: int, threads: Sequence[PythonThread], root: str = "/") -> list[int | None]:
    """The kernel's id of each thread, None where it cannot be told.

    Python 3.11 and later keep their native id, as their own pid namespace numbers it. Older ones keep only the address of their
    ``struct pthread``, in which libc keeps the id; of those the main thread has the process's.
    """
    inner = _inner_tids(pid, root)
    known = [inner.get(thread.tid, thread.tid if thread.tid in inner.values() else None) if thread.tid else None for thread in threads]
    if None in known:
        found = _from_pthreads(pid, [thread.pthread for thread in threads], inner, root)
        known = [tid if tid is not None else found.get(thread.pthread) for tid, thread in zip(known, threads, strict=True)]
    return [pid if tid is None and thread.name == "MainThread" else tid for tid, thread in zip(known, threads, strict=True)]


def _inner_tids(pid: int, root: str) -> dict[int, int]:
    """Thread id as the process itself sees it -> ours (NSpid of /proc/PID/task/TID/status)."""
    base = os.path.join(root, "proc", str(pid))
    try:
        tids = [int(name) for name in os.listdir(f"{base}/task")]
        if len(_ns_ids(f"{base}/status")) < 2:
            return {tid: tid for tid in tids}
    except OSError:
        return {}
    return {ids[-1]: tid for tid in tids if (ids := _ns_ids(f"{base}/task/{tid}/status"))}


def _ns_ids(path: str) -> list[int]:
    """The ids in a status file's NSpid, outermost namespace first; empty if the thread is gone."""
    try:
        line = next((line for line in read_file(path).splitlines() if line.startswith("NSpid:")), "")
    except OSError:
        return []
    return [int(word) for word in line.split()[1:]]


def _from_pthreads(pid: int, pthreads: Sequence[int], inner: dict[int, int], root: str) -> dict[int, int]:
    """pthread address -> our thread id, by the one offset at which every ``struct pthread`` holds an id of this process, each another."""
    try:
        memory = os.open(os.path.join(root, "proc", str(pid), "mem"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        words = {pthread: found for pthread in pthreads if (found := _words(memory, pthread))}
    finally:
        os.close(memory)
    for column in zip(*words.values(), strict=False):
        if len(set(column)) == len(column) and inner.keys() >= set(column):
            return {pthread: inner[word] for pthread, word in zip(words, column, strict=True)}
    return {}


def _words(memory: int, address: int) -> tuple[int, ...]:
    """The 32-bit words at ``address``, as far as they are mapped."""
    try:
        data = os.pread(memory, _PTHREAD_BYTES, address)
    except (OSError, OverflowError):
        return ()
    return struct.unpack(f"={len(data) // 4}I", data[: len(data) // 4 * 4])
