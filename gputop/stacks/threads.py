"""From py-spy's names of a thread to the kernel's: thread ids across pid namespaces and Pythons older than 3.11."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from gputop.stacks.kernel import read_file
from gputop.stacks.python_thread import PythonThread

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
