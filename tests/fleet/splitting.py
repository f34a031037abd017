"""One recording of several ranks as if each had run on a host of its own: what a node without the others would have seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from gputop.diagnosis import Engine
from gputop.model.board import Board
from gputop.model.frame import Frame, Gpu, Header, Probes

Item = Header | Frame


def by_rank(items: Sequence[Item]) -> dict[int, list[Item]]:
    """Trainer -> the stream of its host: its own processes and GPUs, and all that belongs to no trainer."""
    families = Families()
    for _ in families.through(items):
        pass
    return families.apart(items)


class Families:
    """Pid of every process that was ever of a trainer, or below one -> the trainer."""

    def __init__(self) -> None:
        self.found: dict[int, int] = {}

    def through(self, items: Sequence[Item]) -> Iterator[Engine]:
        """Yields the engine over all ranks after each of its looks, and learns from it who belongs to whom."""
        engine, board, found = Engine(), Board(), self.found
        for item in items:
            if isinstance(item, Header):
                board = board.with_header(item)
                continue
            board.fold(item)
            if engine.follow(board, item):
                for pid, role in engine.roles.items():
                    if role.kind == "trainer":
                        found[pid] = pid
                    elif role.trainer_pid is not None:
                        found[pid] = role.trainer_pid
                assert engine.facts is not None
                found |= {pid: trainer for pid, trainer in engine.facts.family.items() if pid not in found}
                yield engine
            for info in item.infos:
                if info.pid not in found and info.ppid in found:
                    found[info.pid] = found[info.ppid]

    def apart(self, items: Sequence[Item]) -> dict[int, list[Item]]:
        """Trainer -> the stream of its host."""
        apart: dict[int, list[Item]] = {}
        for trainer in sorted(set(self.found.values())):
            others = frozenset(pid for pid, whose in self.found.items() if whose != trainer)
            gpus = _gpus_of(trainer, items)
            apart[trainer] = [
                _without(item, others, gpus) if isinstance(item, Frame) else replace(item, host=f"h{trainer}") for item in items
            ]
        return apart


def _gpus_of(trainer: int, items: Sequence[Item]) -> frozenset[int]:
    return frozenset(
        gpu.index for item in items if isinstance(item, Frame) for gpu in item.gpus if any(proc.pid == trainer for proc in gpu.procs or ())
    )


def _without(frame: Frame, others: frozenset[int], gpus: frozenset[int]) -> Frame:
    """The frame as a host saw it on which these processes do not run."""
    return replace(
        frame, gpus=[_alone(gpu, others) for gpu in frame.gpus if gpu.index in gpus],
        procs=[one for one in frame.procs if one.pid not in others], infos=[one for one in frame.infos if one.pid not in others],
        gone=[pid for pid in frame.gone if pid not in others], sampled=[one for one in frame.sampled if one.pid not in others],
        met=[one for one in frame.met if one.pid not in others], stacks=[one for one in frame.stacks if one.pid not in others],
        probes=_probes_without(frame.probes, others), readings=[one for one in frame.readings if one.index in gpus],
    )  # fmt: skip


def _alone(gpu: Gpu, others: frozenset[int]) -> Gpu:
    return gpu if gpu.procs is None else replace(gpu, procs=[proc for proc in gpu.procs if proc.pid not in others])


def _probes_without(probes: Probes | None, others: frozenset[int]) -> Probes | None:
    """Who is woken from another host is woken by an interrupt: the network's."""
    if probes is None:
        return None
    away = {thread.tid for thread in probes.threads if thread.pid in others} | others
    return replace(
        probes, threads=[one for one in probes.threads if one.pid not in others],
        preempts=[one for one in probes.preempts if one.culprit_pid not in others and one.victim_tid not in away],
        wakeups=[replace(one, waker_tid=0, waker_pid=0) if one.waker_pid in others else one
                 for one in probes.wakeups if one.wakee_tid not in away],
        calls=[one for one in probes.calls if one.pid not in others],
        thread_calls=[one for one in probes.thread_calls if one.pid not in others],
        launches=[one for one in probes.launches if one.pid not in others],
    )  # fmt: skip
