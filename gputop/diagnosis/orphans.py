"""Workers that outlived their trainer: they hold memory, GPU memory or CPUs, and no trainer will ever take their batches.

torch's workers check every five seconds that their parent lives; one that is stopped, or blocked in its own code, never does.
"""

from __future__ import annotations

from msgspec import Struct, field

from gputop.diagnosis.facts.facts import Taker
from gputop.diagnosis.graph.shell import kill
from gputop.diagnosis.incidents import Incidents
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Evidence, Fix, Incident, Verdict, Victim
from gputop.model.board import Board
from gputop.model.roles import Role, program_name


class _Orphan(Struct):
    first_ns: int
    incident: Incident | None = None


class Orphans(Struct):
    """One incident for each orphaned worker that holds something, from when it was first seen without a trainer until it ends."""

    known: dict[int, _Orphan] = field(default_factory=dict)

    @property
    def incidents(self) -> list[Incident]:
        """Incidents of the orphans that are alive."""
        return [orphan.incident for orphan in self.known.values() if orphan.incident is not None]

    def note(self, board: Board, roles: dict[int, Role], takers: list[Taker], incidents: Incidents) -> None:
        """Take in the board; new incidents are appended to ``incidents``."""
        present = {pid for pid, role in roles.items() if role.kind == "worker" and role.trainer_pid is None and pid in board.procs}
        for pid in [pid for pid in self.known if pid not in present]:
            gone = self.known.pop(pid).incident
            if gone is not None:
                gone.end_ns = board.t_ns
        for pid in present:
            orphan = self.known.setdefault(pid, _Orphan(board.t_ns))
            if orphan.incident is None and board.t_ns - orphan.first_ns >= policy.PATIENCE_NS:
                orphan.incident = _incident(board, pid, takers, orphan.first_ns)
                if orphan.incident is not None:
                    incidents.append(orphan.incident)

    def verdict(self) -> Verdict | None:
        """The verdict for a host without a training: the first orphan's incident; None without one."""
        first = next(iter(self.incidents), None)
        if first is None:
            return None
        return Verdict(
            symptom=first.symptom, cause=first.cause, gpu=first.gpu, lost_pct=None, headline=first.headline, detail=first.detail,
            severity=first.severity, confidence=first.confidence, evidence=tuple(first.evidence), fixes=tuple(first.fixes), culprits=(),
            victims=tuple(first.victims),
        )  # fmt: skip


def _incident(board: Board, pid: int, takers: list[Taker], first_ns: int) -> Incident | None:
    """The incident of an orphaned worker; None if it holds nothing of note."""
    info, cores = board.infos[pid], next((taker.cores for taker in takers if taker.pid == pid), 0.0)
    place, gpu, held = _held(board, pid)
    if gpu is None and not info.uses_cuda and cores < policy.TENTH:
        return None
    memory = (
        filled("{:.1f} GiB of GPU {}", held / 2**30, place)
        if held
        else filled("memory of GPU {}", place)
        if gpu is not None
        else "a GPU's device files"
    )
    holds = memory if gpu is not None or info.uses_cuda else filled("{:.1f} CPUs", cores)
    evidence = [
        Evidence("gpu_mem_bytes", held, "B", "held on a GPU, as the driver lists it"),
        Evidence("rss_bytes", float(board.procs[pid].rss_bytes), "B", "of the host's memory"),
        Evidence("cpu_cores", round(cores, 2), "CPUs", "it runs on"),
    ]
    return Incident(
        id=0, start_ns=first_ns, end_ns=None, symptom="idle", cause="hung-worker", severity="low", confidence=0.9, trainer_pid=None,
        gpu=gpu, lost_s=0.0, headline=filled("worker {} has outlived its trainer and holds {}", pid, holds),
        detail=filled("{} ({}): its parent has ended, it has not", program_name(info), pid),
        victims=[Victim(pid, "worker", "orphaned worker")], culprits=[], evidence=evidence,
        fixes=[Fix("No process will take its batches: end it", kill([pid]))],
    )  # fmt: skip


def _held(board: Board, pid: int) -> tuple[str, int | None, float | None]:
    """(GPU's name, GPU's index, bytes held) of the GPU on which the driver lists the process; ("", None, None) without one."""
    for index, gpu in board.gpus.items():
        for proc in gpu.procs:
            if proc.pid == pid:
                return gpu.place(proc.gpu_instance), index, None if proc.mem_bytes is None else float(proc.mem_bytes)
    return "", None, None
