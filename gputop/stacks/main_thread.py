"""Where the time of main threads goes: their lines by sampling and, where eBPF may be used, which of them called CUDA's synchronizes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from gputop.stacks import callers
from gputop.stacks.callers import CudaLine
from gputop.stacks.folded import Weighted
from gputop.stacks.python_thread import Unreadable
from gputop.stacks.sampling import LineShare, by_line, sample
from gputop.system import crash
from gputop.system.errors import NO_MORE_THREADS


class MainThread(Struct, frozen=True):
    """One process's main thread over some seconds."""

    pid: int
    stacks: list[Weighted]
    cuda: list[CudaLine]
    """Counted and timed call by call, longest first."""
    no_cuda: str
    """Why there is nothing in ``cuda``, and the command that mends it; empty where the calls were watched."""

    @property
    def shares(self) -> list[LineShare]:
        """Its samples by line of the user's own code, most first."""
        return by_line(self.stacks)


def watch(pids: Sequence[int], duration_s: float) -> tuple[list[MainThread], dict[int, str]]:
    """All of ``pids`` at the same time, and why some have no sample."""
    import threading

    sampled: dict[int, list[Weighted]] = {}
    failed: dict[int, str] = {}
    cuda: dict[int, list[CudaLine]] = {}
    no_cuda: dict[int, str] = {}

    def sample_one(pid: int) -> None:
        try:
            sampled[pid] = sample(pid, duration_s)
        except Unreadable as error:
            failed[pid] = error.reason
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are sampled
            failed[pid] = f"could not be sampled: {crash.reason(error)}"
        if not sampled.get(pid, True):
            del sampled[pid]
            failed[pid] = "no sample of its main thread"

    def watch_cuda() -> None:
        try:
            lines, missing = callers.watch(pids, duration_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the samples are told
            lines, missing = {}, dict.fromkeys(pids, crash.reason(error))
        cuda.update(lines)
        no_cuda.update(missing)

    work = [threading.Thread(target=sample_one, args=(pid,), daemon=True, name="sample") for pid in pids]
    work.append(threading.Thread(target=watch_cuda, daemon=True, name="callers"))
    started: list[threading.Thread] = []
    for thread in work:
        with suppress(RuntimeError):  # no more are allowed
            thread.start()
            started.append(thread)
    for thread in started:
        thread.join()
    if len(started) < len(work):
        failed.update((pid, NO_MORE_THREADS) for pid in pids if pid not in sampled and pid not in failed)
    return [MainThread(pid, sampled[pid], cuda.get(pid, []), no_cuda.get(pid, "")) for pid in pids if pid in sampled], failed
