"""One set of stacks: all requested processes at once, with a deadline; a process that fails does not cost the others."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from gputop.model.frame import Stack
from gputop.sources import parse
from gputop.sources.files import read_once, read_text
from gputop.stacks import interpreter, kernel, pyspy
from gputop.stacks.frames import PythonThread, Unreadable
from gputop.stacks.layout import UPGRADE
from gputop.stacks.permission import why_not
from gputop.stacks.pyspy import BEYOND_PY_SPY
from gputop.stacks.source_line import add_sources
from gputop.system import crash
from gputop.system.errors import start_thread

TIMEOUT_S = 2.0  # s for a set
NATIVE_TIMEOUT_S = 10.0  # s for a set with native frames
_GRACE_S = 0.3  # s that readers get after the deadline to hand over their stacks
_BEYOND = "it has several interpreters, or no GIL, which py-spy cannot read"
_UNSTOPPABLE = frozenset("DTt")  # states of a thread on which ptrace hangs, or which refuses it
_PTHREAD_BYTES = 2048  # of ``struct pthread``: glibc and musl keep the thread id well within them


class StackSet(Struct, frozen=True):
    """Stacks taken together. ``paused``: pids that were stopped for it, for 1 ms, or about 20 ms with ``native``."""

    t_ns: int
    took_ns: int
    native: bool
    stacks: tuple[Stack, ...]
    paused: frozenset[int] = frozenset()


class _Order(Struct):
    """The arguments of one `capture`. Its readers fill ``paused``."""

    deadline: float
    native: bool
    waits: Mapping[int, str]
    incident: str
    root: str
    paused: set[int] = field(default_factory=set)


def capture(pids: Iterable[int], *, waits: Mapping[int, str] | None = None, native: bool = False, incident: str = "",
            timeout_s: float | None = None, root: str = "/") -> StackSet:  # fmt: skip
    """Take the stacks of ``pids`` within ``timeout_s``. Nothing that a process does raises.

    Each pid has at least one `Stack` in the result; ``error`` is why its Python stack could not be read. ``waits`` (pid -> words): the
    diagnosis's words for the wait of each main thread, put before the kernel's.
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
    """Read the processes in daemon threads, at most four per CPU; a thread that hangs is abandoned at the deadline."""
    import queue

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
            except Exception as error:  # noqa: BLE001 - its text stands next to the others' stacks
                stacks = [_failed(pid, f"could not be read: {crash.reason(error)}", order)]
            done.put((pid, stacks))

    threads = [start_thread(work, "stacks") for _ in range(min(len(pids), 4 * (os.cpu_count() or 1), 64))]
    if not any(threads):  # no more are allowed
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
    # A pause restarts system calls: after one, the main thread's view from before counts.
    views = [main if tid == pid and pid in order.paused else tid and kernel.view_thread(pid, tid, order.root) for tid in tids]
    stacks = [_stack(pid, thread, view or None, order) for thread, view in zip(threads, views, strict=True)]
    for stack in stacks:
        if stack.tid == pid and (stack.syscall, stack.wchan) != (main.syscall, main.wchan):
            stack.missing["moment"] = "it ran on while read: its Python and kernel stacks may be of different moments"
    for stack in stacks if without_native else ():
        stack.missing["native"] = without_native
    return sorted(stacks, key=lambda stack: stack.tid != pid) or [_failed(pid, "no Python thread runs in it yet", order, main)]


def _python(pid: int, order: _Order) -> tuple[list[PythonThread], str]:
    """The Python threads of a process, and why they lack the native frames that were requested."""
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
        # The stack changed while it was read: pause the process for a millisecond instead, if that is possible.
        if error.kind != "torn" or _unstoppable(pid, order.root):
            raise
    return _paused_dump(pid, order, native=False)


def _paused_dump(pid: int, order: _Order, native: bool) -> list[PythonThread]:
    order.paused.add(pid)
    try:
        return pyspy.dump(pid, order.deadline, pause=True, native=native)
    except Unreadable as error:
        if error.kind in BEYOND_PY_SPY:
            order.paused.discard(pid)  # py-spy gave up before it paused the process
        if error.kind == "timeout":
            _let_go_on(pid, order.root)
        raise


def _unstoppable(pid: int, root: str) -> str:
    """Why the process may not be paused with ptrace now; empty if it may."""
    views = (kernel.view_thread(pid, tid, root) for tid in kernel.thread_list(pid, root))
    stuck = next((view for view in views if view is not None and view.state in _UNSTOPPABLE), None)
    return f"cannot be paused for native frames: thread {stuck.tid} is in state {stuck.state}" if stuck else ""


def _let_go_on(pid: int, root: str) -> None:
    """Continue a process that py-spy, killed between attach and detach, left stopped. It was not stopped before."""
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
    """The Python that a process maps although it is not recognized as Python, with a remedy; empty if it maps none."""
    import re

    found = re.search(r"/(?:lib)?python(\d\.\d+)(t?)[^/\n]*$", read_text(root, f"proc/{pid}/maps"), re.MULTILINE)
    if found is None:
        return ""
    return f"Python {found[1]}{found[2]} that exports no symbols, or is newer than what reads it: `{UPGRADE}`"


def _stack(pid: int, thread: PythonThread, view: kernel.KernelView | None, order: _Order) -> Stack:
    lines = [line.text for line in thread.frames]
    error = "" if lines else "no Python frame: the thread is starting, ending or between calls"
    stack = _of_view(pid, view, order, name=thread.name, python=lines, gil=thread.gil, error=error)
    if view is None:
        stack.missing["kernel"] = "the thread ended, or its id is unknown"
    return stack


def _failed(pid: int, reason: str, order: _Order, view: kernel.KernelView | None = None) -> Stack:
    return _of_view(pid, view, order, main=True, error=reason)


def _of_view(pid: int, view: kernel.KernelView | None, order: _Order, *, name: str = "", python: list[str] | None = None,
             gil: bool = False, main: bool = False, error: str = "") -> Stack:  # fmt: skip
    """A thread's Python frames and kernel view as one `Stack`."""
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


def thread_ids(pid: int, threads: Sequence[PythonThread], root: str = "/") -> list[int | None]:
    """The kernel's id of each Python thread, None if unknown.

    Python 3.11 and later keep the native id of a thread, numbered by its own pid namespace. Older ones keep the address of its ``struct
    pthread``, in which libc keeps the id. The main thread's id is the pid.
    """
    inner = _inner_tids(pid, root)
    known = [inner.get(thread.tid, thread.tid if thread.tid in inner.values() else None) if thread.tid else None for thread in threads]
    if None in known:
        found = _from_pthreads(pid, [thread.pthread for thread in threads], inner, root)
        known = [tid if tid is not None else found.get(thread.pthread) for tid, thread in zip(known, threads, strict=True)]
    return [pid if tid is None and thread.name == "MainThread" else tid for tid, thread in zip(known, threads, strict=True)]


def _inner_tids(pid: int, root: str) -> dict[int, int]:
    """Thread id in the process's own namespace -> thread id here (NSpid of /proc/PID/task/TID/status)."""
    base = os.path.join(root, "proc", str(pid))
    try:
        tids = [int(name) for name in os.listdir(f"{base}/task")]
        if len(_ns_ids(f"{base}/status")) < 2:
            return {tid: tid for tid in tids}
    except OSError:
        return {}
    return {ids[-1]: tid for tid in tids if (ids := _ns_ids(f"{base}/task/{tid}/status"))}


def _ns_ids(path: str) -> list[int]:
    """The ids in NSpid of a status file, outermost namespace first; empty if the thread has ended."""
    return list(map(int, parse.status_line(read_once(path, 16_384) or b"", b"NSpid").split()))


def _from_pthreads(pid: int, pthreads: Sequence[int], inner: dict[int, int], root: str) -> dict[int, int]:
    """pthread address -> thread id here, from the one offset at which each ``struct pthread`` holds a different id of this process."""
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
    """The 32-bit words at ``address``; fewer if the mapping ends."""
    try:
        data = os.pread(memory, _PTHREAD_BYTES, address)
    except (OSError, OverflowError):
        return ()
    return struct.unpack(f"={len(data) // 4}I", data[: len(data) // 4 * 4])
