"""Who is who: trainers, their ranks and loader workers, helpers; every process not named here is a bystander.

Only identities decide (`gputop.model.frame.ProcInfo`): which processes have a GPU context, who is whose child, what
`multiprocessing` and the frameworks call their children. How a worker looks depends on how it was started:

    fork         the trainer's own child with the trainer's command line (it maps libcuda too, without using it)
    spawn        the trainer's child, ``python -c "from multiprocessing.spawn import spawn_main; …" --multiprocessing-fork``
    forkserver   a grandchild, through ``python -c "from multiprocessing.forkserver import main; …"``

PyTorch 2 names the worker's main thread ``pt_data_worker`` in all three; older versions and other loaders do not.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Container, Iterator, Mapping, Sequence

from msgspec import Struct

from gputop.model.environment import RANK_VARIABLES, number_in
from gputop.model.frame import ProcInfo
from gputop.system.text import clean

PIN_THREAD = "pt_data_pin"
TORCH_WORKER = "pt_data_worker"
BEFORE_TICKS, BEHIND_TICKS = 5, 30
"""Clock ticks (of 10 ms) by which spawned workers of one loader start before and behind one another."""
APART_TICKS = 200
"""So far apart no two forked workers of one loader start."""
MOST_TRAINERS = 256  # on one host, those that NVML lists before others: the largest have 16 GPUs of 7 MIG devices each (guess)
MOST_WORKERS = 1024  # of one trainer, the oldest; more than any host has CPUs (guess)
_LOADERS = ("grain", "dali", "tensorflow", "torch")
# They hold /dev/nvidia* or map libcuda to watch or to draw, not to train.
_WATCHERS = frozenset((
    "nvidia-smi", "nvtop", "nvitop", "gpustat", "nv-hostengine", "dcgm-exporter", "dcgmi", "nvidia-persiste", "nvidia-powerd",
    "nvidia-cuda-mps", "Xorg", "Xwayland", "gnome-shell", "gputop", "all-smi", "btop", "dcgmproftester",
))  # fmt: skip
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "horovodrun", "torchelastic")
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_COMMAND = re.compile("-[a-zA-Z]*c")
"""The option of a shell that says that no script follows but commands, alone or with others."""
_WITH_VALUE = frozenset(("-W", "-X", "-o", "-O", "--rcfile", "--init-file"))
"""Options of Python and of shells behind which a word of theirs stands."""
_DESCRIPTORS = ("/dev/fd/", "/proc/")
"""A script read from there has no name."""
COMPILES = "torch.compile"
"""Label of helpers that compile kernels: the pool of torch's inductor and what that runs."""
_KTHREADD = "kthreadd"
"""Parent of the kernel's own threads, always pid 2."""
WELL_KNOWN = frozenset((*_WATCHERS, *_LAUNCHERS, TORCH_WORKER, PIN_THREAD, _KTHREADD))
"""Names by which roles are found: they belong to nobody."""


Contexts = Mapping[int, Mapping[int, int]]
"""Pid -> GPU -> bits of the bytes that its context holds there: `gputop.model.board.Board.contexts`."""
LESSER_BITS = 2
"""By so many powers of two a context is smaller than another, at least: half of its bytes, and mostly a quarter and less."""
MOST_LEVELS = 8
"""Of workers that start workers."""


class Role(Struct, frozen=True):
    """What a process is to the training on this host."""

    kind: str
    """``trainer``, ``worker`` or ``helper`` (forkserver, resource tracker, launcher, a worker's own children, who else feeds it)."""
    trainer_pid: int | None = None
    """The trainer it belongs to, itself for a trainer; None for an orphaned worker and for a launcher."""
    rank: int | None = None
    index: int | None = None
    """Number of a worker among its trainer's, by age."""
    loader: str = ""
    """``torch``, ``grain``, ``tensorflow``, ``dali`` or ``multiprocessing`` for workers; a trainer's own threads' loader otherwise."""
    label: str = ""
    """``train.py rank 0``, ``worker 2``."""


def assign(infos: Mapping[int, ProcInfo], gpu_pids: frozenset[int], contexts: Contexts | None = None) -> dict[int, Role]:
    """The role of every process that has one.

    ``gpu_pids`` are the processes NVML lists: proof where the whole machine is seen. In a container these are pids of another
    namespace, which shows in that they fit nobody who uses CUDA, and are then not believed.
    ``contexts`` tells which of two contexts serves the other, see `_Assignment._holds_little_beside`.
    """
    return _Assignment(infos, gpu_pids, contexts or {}).roles()


def is_whole_machine(infos: Mapping[int, ProcInfo]) -> bool:
    """Whether these pids are the kernel's own, which the driver speaks of too: only there are the kernel's threads seen."""
    kthreadd = infos.get(2)
    return kthreadd is not None and (kthreadd.comm, kthreadd.ppid, kthreadd.cmdline) == (_KTHREADD, 0, [])


def speaks_of_others(infos: Mapping[int, ProcInfo], gpu_pids: frozenset[int]) -> bool:
    """Whether NVML's pids are another namespace's, so that those that exist here too merely collide with ours: such a list misses
    processes that do use CUDA, or names some that are not here beside none that could."""
    if not gpu_pids or is_whole_machine(infos):
        return False
    present = gpu_pids & infos.keys()
    users = {pid for pid, info in infos.items() if info.uses_cuda and not _is_watcher(info)}
    misses, fits_none = len(present) < len(gpu_pids), all(infos[pid].uses_cuda is False for pid in present)
    return (misses and fits_none) or ((misses or fits_none) and bool(users) and not users & present)


def hot(roles: Mapping[int, Role]) -> frozenset[int]:
    """The pids to read in every tick and per thread: trainers and their workers."""
    return frozenset(pid for pid, role in roles.items() if role.kind != "helper" and role.trainer_pid is not None)


def alone(roles: Mapping[int, Role]) -> frozenset[int]:
    """The trainers that have no workers: others may load for them."""
    fed = {role.trainer_pid for role in roles.values() if role.kind == "worker"}
    return frozenset(pid for pid, role in roles.items() if role.kind == "trainer" and pid not in fed)


def children_of(infos: Mapping[int, ProcInfo], trainers: Collection[int]) -> frozenset[int]:
    """What these trainers started themselves."""
    return frozenset(pid for pid, info in infos.items() if info.ppid in trainers) if trainers else frozenset()


def _labels(workers: Sequence[tuple[ProcInfo, str]]) -> Iterator[str]:
    """How a traceback names them, which numbers each loader's workers anew: torch starts all of a loader's at once. Spawned ones, which are
    sent their dataset one after the other, and those of pools, which replace their workers, are counted through."""
    number, loaders, before = 0, 1, workers[0][0] if workers else None
    for worker, loader in workers:
        if before is not None and loader == "torch" and not _is_spawned(worker) and worker.start_ticks - before.start_ticks > APART_TICKS:
            number, loaders = 0, loaders + 1
        yield f"worker {number}" if loaders == 1 else f"loader {loaders} worker {number}"
        number, before = number + 1, worker


class _Assignment:
    """One run of `assign`: the family tree, then trainers, then everybody below them."""

    def __init__(self, infos: Mapping[int, ProcInfo], gpu_pids: frozenset[int], contexts: Contexts) -> None:
        self.infos = infos
        self.contexts = contexts
        self.loading: set[int] = set()
        """Candidates that load for a trainer above them."""
        self.children: dict[int, list[ProcInfo]] = {}
        for info in infos.values():
            self.children.setdefault(info.ppid, []).append(info)
        self.listed = frozenset() if speaks_of_others(infos, gpu_pids) else gpu_pids & infos.keys()

    def roles(self) -> dict[int, Role]:
        trainers = self._trainers()
        found = {pid: self._trainer_role(self.infos[pid]) for pid in trainers}
        for pid in trainers:
            self._add_family(pid, found)
        for info in self.infos.values():
            if info.pid in found:
                continue
            if info.comm == TORCH_WORKER and info.cmdline:  # a dead one has none
                found[info.pid] = Role("worker", loader="torch", label="orphaned worker")
            elif self._is_launcher(info):
                found[info.pid] = Role("helper", label="launcher")
        return found

    def _trainers(self) -> list[int]:
        """In order of age, so that a trainer comes before those it started."""
        candidates = [info for info in self.infos.values() if self._may_train(info)]
        candidates.sort(key=lambda info: (info.start_ticks, info.pid))
        trainers: dict[int, None] = {}
        for info in candidates:
            above = self._trainer_above(info, trainers)
            if above is not None and self._works_for(info, above):
                self.loading.add(info.pid)
            else:
                trainers[info.pid] = None
        return sorted(trainers, key=lambda pid: pid not in self.listed)[:MOST_TRAINERS] if len(trainers) > MOST_TRAINERS else list(trainers)

    def _trainer_above(self, info: ProcInfo, trainers: Container[int]) -> ProcInfo | None:
        """The trainer that started it, or that has who started it as a worker."""
        above = self._starter(info)
        for _ in range(MOST_LEVELS):
            if above is None or above.pid in trainers or not (above.comm == TORCH_WORKER or above.pid in self.loading):
                break
            above = self._starter(above)
        return above if above is not None and above.pid in trainers else None

    def _may_train(self, info: ProcInfo) -> bool:
        if not info.cmdline or info.comm == TORCH_WORKER:
            return False
        if not (info.pid in self.listed or info.uses_cuda or self._started_as_rank(info) or self._feeds_from_workers(info)):
            return False
        return not (_is_watcher(info) or _is_service(info) or self._is_launcher(info) or self._is_forkserver(info))

    def _is_launcher(self, info: ProcInfo) -> bool:
        """By its name; or it has imported what computes, and started who does so in its place (`torch.multiprocessing.spawn`, a sweep)."""
        if _is_launcher(info) or info.pid in self.listed or not info.uses_cuda:
            return _is_launcher(info)
        return any(child.pid in self.listed for child in self._offspring(info)) and not self._feeds_from_workers(info)

    def _started_as_rank(self, info: ProcInfo) -> bool:
        """A launcher's child with a rank: a trainer even before it touches the GPU."""
        if not info.env or rank_of(info) is None:
            return False
        parent = self.infos.get(info.ppid)
        return parent is not None and _is_launcher(parent) and _is_python(info)

    def _feeds_from_workers(self, info: ProcInfo) -> bool:
        """Has DataLoader workers: a trainer also where there is no GPU (or not yet a context on it)."""
        for child in self.children.get(info.pid, ()):
            if child.comm == TORCH_WORKER and _own_child(info, child):
                return True
            if self._is_forkserver(child) and any(g.comm == TORCH_WORKER for g in self.children.get(child.pid, ())):
                return _own_child(info, child)
            if "grain" in info.libs and _is_spawned(child):
                return True
        return False

    def _works_for(self, info: ProcInfo, trainer: ProcInfo) -> bool:
        """Whether a candidate loads for the trainer above it: it only inherited libcuda by fork, was spawned and has no context, or has one
        that serves that trainer's; a program of its own also must be at the other end of what the trainer reads or writes.

        Whoever has loader workers itself, or a rank and a context, trains.
        """
        if self._feeds_from_workers(info):
            return False
        if info.pid in self.listed:
            kin = _is_spawned(info) or _is_forkserving(info) or info.cmdline == trainer.cmdline or _is_at_its_end(info, trainer)
            return kin and rank_of(info) is None and self._holds_little_beside(info.pid, trainer.pid)
        if trainer.pid in self.listed and rank_of(info) is None:
            return True  # it merely loads the library: what one module imports, another need not use
        return info.cmdline == trainer.cmdline or (_is_spawned(info) and not self._lists_nobody_else(info))

    def _holds_little_beside(self, pid: int, trainer: int) -> bool:
        """It decodes or transforms on that trainer's GPUs, and holds little there: a rank, an engine or an evaluation has a GPU of its own,
        or holds as much as who started it."""
        own, beside = self.contexts.get(pid, {}), self.contexts.get(trainer, {})
        return bool(own) and all(bits + LESSER_BITS <= beside.get(gpu, 0) for gpu, bits in own.items())

    def _lists_nobody_else(self, info: ProcInfo) -> bool:
        """A spawned child that uses CUDA is a rank where its starter has no context (`torch.multiprocessing.spawn`)."""
        parent = self._starter(info)
        return bool(info.uses_cuda) and parent is not None and not (parent.uses_cuda or parent.pid in self.listed)

    def _starter(self, info: ProcInfo) -> ProcInfo | None:
        """Who started it: its parent, or through a forkserver that one's parent."""
        parent = self.infos.get(info.ppid)
        return self.infos.get(parent.ppid) if parent is not None and self._is_forkserver(parent) else parent

    def _is_forkserver(self, info: ProcInfo) -> bool:
        parent = self.infos.get(info.ppid)
        return _is_forkserving(info) and info.comm != TORCH_WORKER and not (parent is not None and _is_forkserving(parent))

    def _trainer_role(self, info: ProcInfo) -> Role:
        rank = rank_of(info)
        program = self._program(info)
        label = program if rank is None else f"{program} rank {rank}"
        return Role(
            kind="trainer", trainer_pid=info.pid, rank=rank, index=None, loader=next((lib for lib in _LOADERS if lib in info.libs), ""),
            label=label,
        )

    def _program(self, info: ProcInfo) -> str:
        parent = self._starter(info)
        if _is_spawned(info) and parent is not None:
            return program_name(parent)
        return program_name(info)

    def _add_family(self, trainer_pid: int, found: dict[int, Role]) -> None:
        """Workers and helpers of one trainer, down to their own children."""
        trainer = self.infos[trainer_pid]
        workers: list[tuple[ProcInfo, str]] = []
        offspring = self._offspring(trainer)
        births = sorted(child.start_ticks for child in offspring if child.comm == TORCH_WORKER)
        for child in offspring:
            if child.pid in found:
                continue
            loader = self._loader_of(child, trainer, births)
            if loader:
                workers.append((child, loader))
            elif _is_service(child) or self._is_forkserver(child) or child.cmdline == trainer.cmdline or _is_spawned(child):
                found[child.pid] = Role("helper", trainer_pid, label=COMPILES if _compiles(child) else "helper")
                if _compiles(child):
                    self._add_descendants([child.pid], trainer_pid, found, COMPILES)
        workers.sort(key=lambda pair: (pair[0].start_ticks, pair[0].pid))
        found |= {child.pid: Role("helper", trainer_pid, label="helper") for child, _loader in workers[MOST_WORKERS:]}
        del workers[MOST_WORKERS:]
        for index, ((worker, loader), label) in enumerate(zip(workers, _labels(workers), strict=True)):
            found[worker.pid] = Role(kind="worker", trainer_pid=trainer_pid, rank=None, index=index, loader=loader, label=label)
        self._add_descendants([worker.pid for worker, _loader in workers], trainer_pid, found, "worker's child")

    def _offspring(self, trainer: ProcInfo) -> list[ProcInfo]:
        """Its children, a forkserver's counted as its own."""
        own = self.children.get(trainer.pid, [])
        return own + [grandchild for child in own if self._is_forkserver(child) for grandchild in self.children.get(child.pid, ())]

    def _loader_of(self, child: ProcInfo, trainer: ProcInfo, births: Sequence[int]) -> str:
        """Which loader's worker it is, empty where it is none. Beside named torch workers, whose ``births`` are in order (clock ticks), an
        unnamed one is a helper, unless it starts."""
        if child.comm == TORCH_WORKER:
            return "torch"
        if _is_service(child) or self._is_forkserver(child) or not (_is_defunct(child, trainer) or _forked_or_spawned(child, trainer)):
            return ""
        if births:
            return "torch" if _is_starting(child, births) else ""
        return next((lib for lib in _LOADERS if lib in trainer.libs), "multiprocessing")

    def _add_descendants(self, pids: list[int], trainer_pid: int, found: dict[int, Role], label: str) -> None:
        """All below ``pids`` that have no role yet. Each is looked at once, however deep they are nested, and in a ring of parents too."""
        role = Role("helper", trainer_pid, label=label)
        due = list(pids)
        while due:
            below = [child.pid for child in self.children.get(due.pop(), ()) if child.pid not in found]
            found.update(dict.fromkeys(below, role))
            due += below


def program_name(info: ProcInfo) -> str:
    """What people call the process: ``a.py`` for ``python -u a.py``, ``a.sh`` for ``bash a.sh``, a module for ``-m``, else its comm;
    ``?`` where these are blank."""
    called = info.cmdline[0].rpartition("/")[2] if info.cmdline else ""
    if _is_python(info):
        name = _script(info.cmdline[1:])
    elif called in _SHELLS:
        name = _script(["-c" if _COMMAND.fullmatch(word) else word for word in info.cmdline[1:]])
    else:
        name = called
    return clean(name.strip(), 32) or clean(info.comm.strip(), 32) or "?"


def _script(words: list[str]) -> str:
    """The program among an interpreter's arguments, empty where they name none."""
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, "")
        elif word == "-m":
            return next(rest, "")
        elif word == "-c":
            return ""
        elif not word.startswith("-"):
            return "" if word.startswith(_DESCRIPTORS) else word.rpartition("/")[2]
    return ""


def is_made_anew(info: ProcInfo) -> bool:
    """`multiprocessing` started it with an interpreter of its own: what it is for does not show before it has a name."""
    return _is_spawned(info) and not _is_service(info)


def pin_thread(info: ProcInfo) -> int | None:
    """The tid of a trainer's pin-memory thread, None where it has none."""
    return next((thread.tid for thread in info.threads if thread.comm == PIN_THREAD), None)


def rank_of(info: ProcInfo) -> int | None:
    """The rank that its launcher gave it, None where there is none."""
    return number_in(info.env, RANK_VARIABLES)


def _is_python(info: ProcInfo) -> bool:
    name = (info.exe or (info.cmdline[0] if info.cmdline else "")).rpartition("/")[2]
    return name.startswith(("python", "pypy"))


def _is_defunct(child: ProcInfo, trainer: ProcInfo) -> bool:
    """A dead child not yet waited for: it has lost its command line, not its name, which a fork took from the trainer."""
    return not child.cmdline and child.comm == trainer.comm


def _forked_or_spawned(child: ProcInfo, trainer: ProcInfo) -> bool:
    return child.cmdline == trainer.cmdline or _is_spawned(child) or child.ppid != trainer.pid


def _is_starting(child: ProcInfo, births: Sequence[int]) -> bool:
    """Made in one go with workers that have their name already: it still imports torch, and takes the name then."""
    if not (_is_spawned(child) or _is_forkserving(child)):
        return False
    first = bisect_left(births, child.start_ticks - BEHIND_TICKS)
    return first < len(births) and births[first] <= child.start_ticks + BEFORE_TICKS


def _own_child(parent: ProcInfo, child: ProcInfo) -> bool:
    """Still with the process that started it, not reparented to init or a subreaper."""
    if child.cmdline == parent.cmdline:
        return True
    if parent.exe and child.exe:
        return parent.exe == child.exe
    return _is_python(parent)


def _is_at_its_end(info: ProcInfo, trainer: ProcInfo) -> bool:
    """Of a pipe or socket that the trainer's main thread waits at, such as a decoder's that it started."""
    return info.pid in trainer.other_ends or info.pid in trainer.read_by


def _is_spawned(info: ProcInfo) -> bool:
    return "--multiprocessing-fork" in info.cmdline or _runs(info, "multiprocessing.spawn import")


def _is_forkserving(info: ProcInfo) -> bool:
    """A forkserver, or a worker forked from one and still carrying its command line."""
    return _runs(info, "multiprocessing.forkserver import")


def _is_watcher(info: ProcInfo) -> bool:
    return info.comm in _WATCHERS or program_name(info) in _WATCHERS


def _is_service(info: ProcInfo) -> bool:
    """Started by a library for its own needs: loads no data."""
    return (
        _runs(info, "multiprocessing.resource_tracker import")
        or _runs(info, "multiprocessing.semaphore_tracker import")
        or _compiles(info)
    )


def _compiles(info: ProcInfo) -> bool:
    """The pool of torch.compile, whose processes run compilers."""
    return any("compile_worker" in arg for arg in info.cmdline[:4])


def _runs(info: ProcInfo, code: str) -> bool:
    return len(info.cmdline) > 2 and any(code in arg for arg in info.cmdline[1:8])


def _is_launcher(info: ProcInfo) -> bool:
    return len(info.cmdline) > 1 and program_name(info) in _LAUNCHERS
