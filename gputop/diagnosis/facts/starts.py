"""The begin of a training: the time before it is its start, which is no loss.

A GPU first works when a model is moved to it, and rests again while kernels are loaded, a graph is captured or a loader starts. The
first steps allocate memory on it: activations, an optimizer's states, the workspaces of the fastest kernels. While a compiler's threads
or torch.compile's processes work, the main thread does not move.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.findings import policy
from gputop.model.board import GpuBoard
from gputop.model.frame import ProcSample


class Start(Struct):
    """The start of one trainer. Times are CLOCK_MONOTONIC, ns."""

    born_ns: int
    after_ns: int  # work of its GPUs before that was for others, or brief
    first_ns: int = 0  # when one of its GPUs was first seen to work for it
    began_ns: int = 0  # when it began to train; 0 if before the first look
    held_bytes: float = 0.0
    blinked: bool = False  # its GPUs have once worked only briefly
    taken: int = 0  # looks, since it first had workers, in which a batch was taken
    made: dict[int, ProcSample] = field(default_factory=dict)  # pid -> sample of its workers at the last look
    alone: int = 0  # looks in which its GPUs worked without workers
    fed: bool = False  # its GPUs have worked while it had workers

    def is_by_itself(self, worked_ns: int, births: list[int], now_ns: int) -> bool:
        """True if the trainer's present workers have given it no batch yet, after steps without workers: a pool that evaluates or scores.
        ``births``: when they were born, ns."""
        if births:
            self.fed = self.fed or worked_ns > min(births) + policy.READING_NS
        elif now_ns - worked_ns < policy.READING_NS:
            self.alone += 1
        return bool(births) and not self.fed and self.alone >= policy.OFTEN

    def note_batches(self, trainer: ProcFacts, workers: list[ProcFacts], now_ns: int) -> None:
        """Count batches: taken one after another they are steps, whatever its GPU does, for the model may be on the CPUs.

        A batch is taken if a worker that had made its share works again, or if the trainer both waits for batches and computes. A start has
        only the first ones made, and then waits for the first, or for something else.
        """
        if self.first_ns:
            return
        before, self.made = self.made, {worker.pid: worker.newer for worker in workers}
        waited, least = trainer.kinds.get(waits.QUEUE, 0.0), policy.LOST
        waits_for_each = least <= waited <= 1.0 - least and trainer.run >= least
        made = (worker for worker in workers if worker.pid in before and _has_made(before[worker.pid], worker.newer))
        self.taken += any(waits_for_each or worker.kinds.get(waits.QUEUE, 0.0) >= policy.SOME for worker in made)
        if self.taken >= policy.OFTEN:
            self.first_ns, self.began_ns = now_ns, 0

    def note(self, worked_ns: int, held_bytes: float, still: bool, since_ns: int, now_ns: int, loading_ns: int = 0) -> None:
        """Take in when its GPUs last worked, the bytes it holds of their memory, whether its main thread stands still while its threads
        run, and since when it has had the workers that it waits for (``loading_ns``; 0 if it waits for something else)."""
        if not self.first_ns and worked_ns > self.after_ns:
            self.first_ns = now_ns
            self.began_ns = now_ns if now_ns - since_ns >= policy.STALE_NS else 0
        elif self._has_blinked(worked_ns, now_ns) and not 0 < loading_ns < self.first_ns - policy.STEADY_NS:  # otherwise it was a batch
            self.blinked, self.after_ns, self.first_ns, self.began_ns = True, worked_ns, 0, 0
        grew = held_bytes > (1.0 + policy.LITTLE) * self.held_bytes > 0
        warms_up = now_ns - max(self.born_ns, self.first_ns) < policy.WARM_UP_NS
        # A trainer at work at the first look compiles in the midst of training, unless it was born shortly before.
        compiles = still and (self.first_ns - since_ns >= policy.STALE_NS or now_ns - self.born_ns < policy.WARM_UP_NS)
        if self.first_ns and warms_up and (grew or compiles):
            self.began_ns = now_ns
        self.held_bytes = held_bytes if grew or not self.held_bytes else self.held_bytes

    def _has_blinked(self, worked_ns: int, now_ns: int) -> bool:
        seen = bool(self.began_ns) and not self.blinked
        return seen and worked_ns < self.first_ns + policy.STEADY_NS and now_ns - worked_ns >= policy.STEADY_NS

    def before_s(self, oldest_ns: int, now_ns: int) -> float | None:
        """Seconds of the window since ``oldest_ns`` that lie before it began to train; None while it starts."""
        if not self.first_ns:
            return None if now_ns - self.born_ns < policy.WARM_UP_NS else 0.0
        return None if self.began_ns == now_ns and self.first_ns < now_ns else max(0, self.began_ns - oldest_ns) / 1e9


def _has_made(before: ProcSample, now: ProcSample) -> bool:
    return (now.oncpu_ns or 0) - (before.oncpu_ns or 0) >= policy.BATCH_NS and now.vol != before.vol


def held_bytes(gpus: Iterable[GpuBoard]) -> dict[int, float]:
    """Pid -> bytes of the GPUs' memory that the process holds. The driver lists processes only now and then, but memory used at every tick:
    for a process that has a GPU to itself the latter is the newer value."""
    held: dict[int, float] = {}
    for gpu in gpus:
        own: dict[int, float] = {}
        for one in gpu.procs:
            own[one.pid] = own.get(one.pid, 0.0) + (one.mem_bytes or 0)
        computes = gpu.compute_pids
        for pid, told in own.items():
            alone = told > 0.0 and len(computes) == 1 and pid in computes and not gpu.values.get("mem_shared")
            held[pid] = held.get(pid, 0.0) + ((gpu.number("mem_used_bytes") or told) if alone else told)
    return held
