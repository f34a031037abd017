"""Roles of processes: trainers with their ranks, loader workers, helpers. A process without a role is a bystander.

Roles follow from identities alone (`gputop.model.frame.ProcInfo`): GPU contexts, parents and children, and the names that
`multiprocessing` and the frameworks give to children. A worker's identity depends on its start method:

    fork         the trainer's own child with the trainer's command line (it maps libcuda too, without using it)
    spawn        the trainer's child, ``python -c "from multiprocessing.spawn import spawn_main; …" --multiprocessing-fork``
    forkserver   a grandchild, through ``python -c "from multiprocessing.forkserver import main; …"``

PyTorch 2 names a worker's main thread ``pt_data_worker`` in all three; older versions and other loaders do not.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from gputop.model.frame import ProcInfo
from gputop.system.text import clean

RANK_VARIABLES = (
    "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "JAX_PROCESS_ID", "SLURM_PROCID", "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
)  # fmt: skip
"""Environment variables in which a launcher gives the rank, global ranks before local ones."""
SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "JAX_NUM_PROCESSES", "SLURM_NTASKS")
"""Environment variables in which a launcher gives the number of ranks."""
ENV_OF_INTEREST = (
    *RANK_VARIABLES, *SIZE_VARIABLES, "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "CUDA_LAUNCH_BLOCKING",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "JAX_COORDINATOR_ADDRESS", "PMIX_NAMESPACE",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "SLURMD_NODENAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID",
    "SLURM_HET_JOB_ID", "SLURM_HET_JOB_OFFSET", "POD_NAME", "POD_NAMESPACE",
    "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "container",
)  # fmt: skip
"""The environment variables that frames keep: ranks, devices, thread counts, and where a job runs; nothing secret."""
PIN_THREAD = "pt_data_pin"  # comm of PyTorch's pin-memory thread in a trainer
TORCH_PREFIX = "pt_"  # beginning of the names that PyTorch gives its threads
COMM_BYTES = 15  # most bytes of a comm (TASK_COMM_LEN of the kernel, less the end)
_INTERPRETERS = ("python", "pypy")
TORCH_WORKER = "pt_data_worker"  # comm of a PyTorch 2 DataLoader worker
EARLIER_TICKS, LATER_TICKS = 5, 30  # clock ticks (10 ms): a spawned worker starts this much before or after another of its loader (guess)
LOADER_GAP_TICKS = 200  # clock ticks: forked workers that start further apart belong to two loaders (guess)
MOST_TRAINERS = 256  # per host, in NVML's order: the largest hosts have 16 GPUs of 7 MIG devices each (guess)
MOST_WORKERS = 1024  # per trainer, the oldest first: more than any host has CPUs (guess)
_LOADERS = ("grain", "dali", "tensorflow", "torch")  # words of `ProcInfo.libs` that name the loader, the most specific first
_WATCHERS = frozenset((
    "nvidia-smi", "nvtop", "nvitop", "gpustat", "nv-hostengine", "dcgm-exporter", "dcgmi", "nvidia-persiste", "nvidia-powerd",
    "nvidia-cuda-mps", "Xorg", "Xwayland", "gnome-shell", "gputop", "gputop.collector", "all-smi", "btop", "dcgmproftester",
))  # fmt: skip
"""Programs that hold /dev/nvidia* or map libcuda to watch or to draw, not to train."""
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "horovodrun", "torchelastic")
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_SHELL_COMMAND = re.compile("-[a-zA-Z]*c")  # a shell's option -c, alone or joined with others (``-lc``): commands follow, no script
_VALUED_OF_PYTHON = frozenset(("-W", "-X", "--check-hash-based-pycs"))  # options of which the next word is the value
_VALUED_OF_SHELLS = frozenset(("-o", "-O", "--rcfile", "--init-file"))
_NAMELESS_PATHS = ("/dev/fd/", "/proc/")  # a script read from there has no name
COMPILES = "torch.compile"  # label of helpers that compile kernels: the process pool of torch's inductor and its children
MANAGER = "manager"  # label of a helper that serves others, a thread each: `multiprocessing.Manager`
_KTHREADD = "kthreadd"  # comm of pid 2, the parent of the kernel's threads
WELL_KNOWN = frozenset((*_WATCHERS, *_LAUNCHERS, TORCH_WORKER, PIN_THREAD, _KTHREADD))  # program names that identify no person
Contexts = Mapping[int, Mapping[int, int]]  # pid -> GPU index -> size class of its context, see `gputop.model.board.Board.contexts`
SMALLER_BITS = 2  # size classes (powers of two) by which a helper's context is smaller than its trainer's: under half of it (guess)
MOST_LEVELS = 8  # of workers that start workers
MOST_TRAITS = 1024  # programs with their command lines, of which what roles ask is remembered: 0.3 KB each


class Role(Struct, frozen=True):
    """The part that a process plays in a training on this host."""

    kind: str
    """``trainer``, ``worker`` or ``helper`` (forkserver, resource tracker, launcher, children of workers, other processes that feed it)."""
    trainer_pid: int | None = None  # the trainer that it belongs to (a trainer: itself); None for an orphaned worker and a launcher
    rank: int | None = None
    index: int | None = None  # a worker's number among its trainer's workers, oldest first
    loader: str = ""
    """The loader of a worker, or of a trainer's own threads: ``torch``, ``grain``, ``tensorflow``, ``dali`` or ``multiprocessing``."""
    label: str = ""  # ``train.py rank 0``, ``worker 2``
    part: str = ""  # what it does in the job: a word of `gputop.findings.verdict.PARTS`; empty while that is not known


def assign(infos: Mapping[int, ProcInfo], gpu_pids: frozenset[int], contexts: Contexts | None = None) -> dict[int, Role]:
    """pid -> role, for every process that has one.

    ``gpu_pids`` are the pids that NVML lists. They prove a GPU context where the whole machine is visible; in a container they may be
    another namespace's (`is_foreign_list`), and are then ignored. ``contexts`` decides which of two processes with contexts serves the
    other, see `_Assignment._has_smaller_context`.
    """
    return _Assignment(infos, gpu_pids, contexts or {}).roles()


DECISIVE = ("start_ticks", "ppid", "comm", "cmdline", "exe", "env", "uses_cuda", "libs", "other_ends", "read_by", "serves")
"""Fields of a process's identity by which roles are assigned."""


def is_alike(before: ProcInfo, after: ProcInfo) -> bool:
    """True if the identities of one process differ in nothing by which roles are assigned: only in its affinity, say."""
    return all(getattr(before, field) == getattr(after, field) for field in DECISIVE)


def may_differ(changed: Iterable[ProcInfo], infos: Mapping[int, ProcInfo], roles: Mapping[int, Role], gpu_pids: frozenset[int]) -> bool:
    """False if `assign` still gives ``roles``: none of the processes that came, changed or ended has a part in a job.

    ``changed``: their identities before and after, where there is one. On a busy host short programs come and go all the time.
    """
    near: set[int] = set()
    for info in changed:
        if info.pid in gpu_pids or info.uses_cuda or info.comm in (TORCH_WORKER, _KTHREADD) or info.pid in roles or info.ppid in roles:
            return True
        if "grain" in info.libs or (info.cmdline and (_is_spawned(info) or _is_forkserving(info) or _is_launcher(info))):
            return True
        near = near or set(_around(infos, roles))
        if info.pid in near:
            return True
    return False


def _around(infos: Mapping[int, ProcInfo], roles: Iterable[int]) -> Iterator[int]:
    """Processes without a role by which those with one are recognized: their parents, also of a forkserver, and whom they are connected
    to."""
    for info in (one for pid in roles if (one := infos.get(pid)) is not None):
        yield info.ppid
        if (parent := infos.get(info.ppid)) is not None:
            yield parent.ppid
        yield from info.other_ends
        yield from info.read_by


def is_whole_machine(infos: Mapping[int, ProcInfo]) -> bool:
    """True if the pids belong to the host's namespace, which the driver uses too: only there are the kernel's threads visible."""
    kthreadd = infos.get(2)
    return kthreadd is not None and (kthreadd.comm, kthreadd.ppid, kthreadd.cmdline) == (_KTHREADD, 0, [])


def is_foreign_list(infos: Mapping[int, ProcInfo], gpu_pids: frozenset[int]) -> bool:
    """True if NVML's pids belong to another pid namespace, so that equal pids here are a coincidence.

    Such a list misses the processes here that use CUDA, or names absent pids and none that may use CUDA.
    """
    if not gpu_pids or is_whole_machine(infos):
        return False
    present = gpu_pids & infos.keys()
    users = {pid for pid, info in infos.items() if info.uses_cuda and not _is_watcher(info)}
    misses, fits_none = len(present) < len(gpu_pids), all(infos[pid].uses_cuda is False for pid in present)
    return (misses and fits_none) or ((misses or fits_none) and bool(users) and not users & present)


def hot(roles: Mapping[int, Role]) -> frozenset[int]:
    """Pids of the trainers, their workers and managers: the collector reads these in every tick and per thread."""
    own = ((pid, role) for pid, role in roles.items() if role.trainer_pid is not None)
    return frozenset(pid for pid, role in own if role.kind != "helper" or role.label == MANAGER)


def without_workers(roles: Mapping[int, Role]) -> frozenset[int]:
    """Pids of the trainers that have no workers: other processes may load for them."""
    fed = {role.trainer_pid for role in roles.values() if role.kind == "worker"}
    return frozenset(pid for pid, role in roles.items() if role.kind == "trainer" and pid not in fed)


def children_of(infos: Mapping[int, ProcInfo], trainers: Collection[int]) -> frozenset[int]:
    """Pids of the trainers' children."""
    return frozenset(pid for pid, info in infos.items() if info.ppid in trainers) if trainers else frozenset()


def by_parent(infos: Mapping[int, ProcInfo]) -> dict[int, list[int]]:
    """Pid -> pids of its children."""
    found: dict[int, list[int]] = {}
    for pid, info in infos.items():
        found.setdefault(info.ppid, []).append(pid)
    return found


def _labels(workers: Sequence[tuple[ProcInfo, str]], parent: str) -> Iterator[str]:
    """Labels of workers in order of age, as a traceback names them: ``worker 2``, with several loaders ``loader 2 worker 0``.

    Torch forks all workers of a loader at once and numbers each loader's from 0. Spawned workers start one after the other, and pools
    replace theirs: these are numbered through. Processes of the script's own that gave themselves a title have it: ``actor 2``. ``parent``:
    comm of their trainer, which a fork has, too.
    """
    number, loaders, before = 0, 1, workers[0][0] if workers else None
    for worker, loader in workers:
        gap_ticks = 0 if before is None else worker.start_ticks - before.start_ticks
        if loader == "torch" and not _is_spawned(worker) and gap_ticks > LOADER_GAP_TICKS:
            number, loaders = 0, loaders + 1
        title = "" if loader == "torch" or worker.comm == parent else clean(_title(worker, _called(worker)), 32)
        yield f"{title or 'worker'} {number}" if loaders == 1 else f"loader {loaders} worker {number}"
        number, before = number + 1, worker


class _Assignment:
    """One run of `assign`: the process tree, then the trainers, then the processes below them."""

    def __init__(self, infos: Mapping[int, ProcInfo], gpu_pids: frozenset[int], contexts: Contexts) -> None:
        self.infos = infos
        self.contexts = contexts
        self.loading: set[int] = set()  # candidates for trainers that load for a trainer above them
        self.children: dict[int, list[ProcInfo]] = {}
        for info in infos.values():
            self.children.setdefault(info.ppid, []).append(info)
        self.listed = frozenset() if is_foreign_list(infos, gpu_pids) else gpu_pids & infos.keys()

    def roles(self) -> dict[int, Role]:
        trainers = self._trainers()
        found = {pid: self._trainer_role(self.infos[pid]) for pid in trainers}
        for pid in trainers:
            self._add_family(pid, found)
        for info in self.infos.values():
            if info.pid in found:
                continue
            if info.comm == TORCH_WORKER and info.cmdline:  # a zombie has none
                found[info.pid] = Role("worker", loader="torch", label="orphaned worker")
            elif self._is_launcher(info):
                found[info.pid] = Role("helper", label="launcher")
        return found

    def _trainers(self) -> list[int]:
        """Pids of the trainers, oldest first, so that a trainer comes before the processes that it started."""
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
        """The trainer that started the process, directly or through workers; None if none did."""
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
        """True if its name is a launcher's, or it maps libcuda, has no context, and a child has one (`torch.multiprocessing.spawn`)."""
        if _is_launcher(info) or info.pid in self.listed or not info.uses_cuda:
            return _is_launcher(info)
        return any(child.pid in self.listed for child in self._offspring(info)) and not self._feeds_from_workers(info)

    def _started_as_rank(self, info: ProcInfo) -> bool:
        """True if the process is a launcher's child with a rank: a trainer even before it uses the GPU."""
        if not info.env or rank_of(info) is None:
            return False
        parent = self.infos.get(info.ppid)
        return parent is not None and _is_launcher(parent) and is_python(info)

    def _feeds_from_workers(self, info: ProcInfo) -> bool:
        """True if the process has loader workers, which makes it a trainer even without a GPU context."""
        for child in self.children.get(info.pid, ()):
            if child.comm == TORCH_WORKER and _own_child(info, child):
                return True
            if self._is_forkserver(child) and any(g.comm == TORCH_WORKER for g in self.children.get(child.pid, ())):
                return _own_child(info, child)
            if "grain" in info.libs and _is_spawned(child):
                return True
        return False

    def _works_for(self, info: ProcInfo, trainer: ProcInfo) -> bool:
        """True if a candidate loads for the trainer above it.

        It does if it inherited libcuda by fork, if it was spawned and has no context, or if its context is the smaller one; another program
        with a context must also hold the other end of a pipe or socket that the trainer waits at. A process with loader workers of its own,
        or with a rank and a context, trains.
        """
        if self._feeds_from_workers(info):
            return False
        if info.pid in self.listed:
            related = _is_spawned(info) or _is_forkserving(info) or info.cmdline == trainer.cmdline or self._is_connected(info, trainer)
            return related and rank_of(info) is None and self._has_smaller_context(info.pid, trainer.pid)
        if trainer.pid in self.listed and rank_of(info) is None:
            return True  # it maps the library only because a module imports it
        return info.cmdline == trainer.cmdline or (_is_spawned(info) and not self._uses_cuda_alone(info))

    def _is_connected(self, info: ProcInfo, trainer: ProcInfo) -> bool:
        """True if the process holds the other end of a pipe or socket at which the trainer's main thread waits, as a decoder does. Its
        siblings with the same command count too: they may be ahead, so that nothing waits for them."""
        ends = {*trainer.other_ends, *trainer.read_by}
        alike = (one for pid in ends if (one := self.infos.get(pid)) is not None)
        return info.pid in ends or any(one.ppid == info.ppid and one.cmdline == info.cmdline for one in alike)

    def _has_smaller_context(self, pid: int, trainer: int) -> bool:
        """True if the process has contexts only on the trainer's GPUs, each much smaller than the trainer's: it decodes or transforms
        there.

        A rank, an engine or an evaluation has a GPU of its own, or as large a context as its parent.
        """
        own, beside = self.contexts.get(pid, {}), self.contexts.get(trainer, {})
        return bool(own) and all(bits + SMALLER_BITS <= beside.get(gpu, 0) for gpu, bits in own.items())

    def _uses_cuda_alone(self, info: ProcInfo) -> bool:
        """True if the process uses CUDA and its parent does not, which makes it a rank (`torch.multiprocessing.spawn`)."""
        parent = self._starter(info)
        return bool(info.uses_cuda) and parent is not None and not (parent.uses_cuda or parent.pid in self.listed)

    def _starter(self, info: ProcInfo) -> ProcInfo | None:
        """Parent of the process, or the parent of the forkserver that forked it."""
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
        """Add the workers and helpers of one trainer, and their children, to ``found``."""
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
                label = COMPILES if _compiles(child) else MANAGER if child.serves else "helper"
                found[child.pid] = Role("helper", trainer_pid, label=label)
                if _compiles(child):
                    self._add_descendants([child.pid], trainer_pid, found, COMPILES)
        workers.sort(key=lambda pair: (pair[0].start_ticks, pair[0].pid))
        found |= {child.pid: Role("helper", trainer_pid, label="helper") for child, _loader in workers[MOST_WORKERS:]}
        del workers[MOST_WORKERS:]
        for index, ((worker, loader), label) in enumerate(zip(workers, _labels(workers, trainer.comm), strict=True)):
            found[worker.pid] = Role(kind="worker", trainer_pid=trainer_pid, rank=None, index=index, loader=loader, label=label)
        self._add_descendants([worker.pid for worker, _loader in workers], trainer_pid, found, "worker's child")

    def _offspring(self, trainer: ProcInfo) -> list[ProcInfo]:
        """Children of the trainer and of its forkservers."""
        own = self.children.get(trainer.pid, [])
        return own + [grandchild for child in own if self._is_forkserver(child) for grandchild in self.children.get(child.pid, ())]

    def _loader_of(self, child: ProcInfo, trainer: ProcInfo, births: Sequence[int]) -> str:
        """Name of the loader that the child works for; empty if it is no worker.

        ``births``: start times (clock ticks, sorted) of the trainer's named torch workers. If there are any, an unnamed child is a helper,
        unless it is a torch worker that still starts.
        """
        if child.comm == TORCH_WORKER:
            return "torch"
        if _is_service(child) or self._is_forkserver(child) or not (_is_defunct(child, trainer) or _forked_or_spawned(child, trainer)):
            return ""
        if births:
            return "torch" if _is_starting(child, births) else ""
        return next((lib for lib in _LOADERS if lib in trainer.libs), "multiprocessing")

    def _add_descendants(self, pids: list[int], trainer_pid: int, found: dict[int, Role], label: str) -> None:
        """Give ``label`` to all descendants of ``pids`` that have no role yet; each is visited once, also in a cycle of parents."""
        role = Role("helper", trainer_pid, label=label)
        due = list(pids)
        while due:
            below = [child.pid for child in self.children.get(due.pop(), ()) if child.pid not in found]
            found.update(dict.fromkeys(below, role))
            due += below


def program_name(info: ProcInfo, titled: bool = True) -> str:
    """The process's name on the screen: the title that it gave itself (``VLLM::EngineCore``), ``a.py`` for ``python -u a.py``, ``a.sh`` for
    ``bash a.sh``, the module of ``-m``, else the program or comm; ``?`` if these are blank. Not ``titled``: alike for all
    processes of one program, whatever each calls itself."""
    called = _called(info)
    if is_python(info):
        name = (_title(info, called) if titled else "") or _script(info.cmdline[1:], _VALUED_OF_PYTHON)[0]
    elif called in _SHELLS:
        name = _script(["-c" if _SHELL_COMMAND.fullmatch(word) else word for word in info.cmdline[1:]], _VALUED_OF_SHELLS)[0]
    else:
        name = called
    return clean(name.strip(), 32) or clean(info.comm.strip(), 32) or "?"


def arguments_of(info: ProcInfo) -> list[str]:
    """The words behind the script or module of a Python process; of another one behind its program's name."""
    return _script(info.cmdline[1:], _VALUED_OF_PYTHON)[1] if is_python(info) else info.cmdline[1:]


def _called(info: ProcInfo) -> str:
    """The program's name in the command line; empty without one."""
    return info.cmdline[0].rpartition("/")[2] if info.cmdline else ""


def _title(info: ProcInfo, called: str) -> str:
    """The title that a Python process gave itself, in place of its command line (setproctitle) or as its comm (prctl); empty without one.
    Names given by PyTorch to its threads, or by the kernel, are no titles."""
    if called and not called.startswith(_INTERPRETERS):
        return called
    given = (*_INTERPRETERS, TORCH_PREFIX, called[:COMM_BYTES], info.exe.rpartition("/")[2][:COMM_BYTES])
    named_itself = bool(called) and bool(info.comm) and not info.comm.startswith(tuple(filter(None, given)))
    return info.comm if named_itself and info.comm not in {word.rpartition("/")[2][:COMM_BYTES] for word in info.cmdline} else ""


def _script(words: list[str], valued: frozenset[str]) -> tuple[str, list[str]]:
    """(script or module among an interpreter's arguments, empty if they name none; the words behind it)."""
    rest = iter(words)
    for word in rest:
        if word in valued:
            next(rest, "")
        elif word == "-m":
            return next(rest, ""), [*rest]
        elif word == "-c":
            return "", [*rest][1:]
        elif not word.startswith("-"):
            return "" if word.startswith(_NAMELESS_PATHS) else word.rpartition("/")[2], [*rest]
    return "", []


def is_spawned_child(info: ProcInfo) -> bool:
    """True if `multiprocessing` spawned it with a new interpreter: its purpose does not show before it has named itself."""
    return _is_spawned(info) and not _is_service(info)


def is_unnamed_child(info: ProcInfo) -> bool:
    """True if `multiprocessing` made it by spawn or forkserver, and it has not named itself."""
    return is_spawned_child(info) or _is_forkserving(info)


def rank_of(info: ProcInfo) -> int | None:
    """Rank in the process's environment, or None."""
    return number_in(info.env, RANK_VARIABLES)


def number_in(env: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Number in the first variable that holds one; None without one. At most nine digits are read: any program may set them."""
    for name in names:
        value = env.get(name)
        if value and value.isascii() and value.isdigit():
            return int(value[:9])
    return None


def is_python(info: ProcInfo) -> bool:
    """True if the process's program is a Python interpreter."""
    name = (info.exe or (info.cmdline[0] if info.cmdline else "")).rpartition("/")[2]
    return name.startswith(_INTERPRETERS)


def _is_defunct(child: ProcInfo, trainer: ProcInfo) -> bool:
    """True if the child is a zombie of a fork: it has no command line any more, and still the trainer's comm."""
    return not child.cmdline and child.comm == trainer.comm


def _forked_or_spawned(child: ProcInfo, trainer: ProcInfo) -> bool:
    return child.cmdline == trainer.cmdline or _is_spawned(child) or child.ppid != trainer.pid


def _is_starting(child: ProcInfo, births: Sequence[int]) -> bool:
    """True if the child started together with workers that have their names: it still imports torch and takes its name later."""
    if not (_is_spawned(child) or _is_forkserving(child)):
        return False
    first = bisect_left(births, child.start_ticks - LATER_TICKS)
    return first < len(births) and births[first] <= child.start_ticks + EARLIER_TICKS


def _own_child(parent: ProcInfo, child: ProcInfo) -> bool:
    """True if ``parent`` really started it: an orphan is reparented to init or a subreaper."""
    if child.cmdline == parent.cmdline:
        return True
    if parent.exe and child.exe:
        return parent.exe == child.exe
    return is_python(parent)


class _Traits(Struct, frozen=True, gc=False):
    """What a process's program and command line say; they stay the same while its identity is looked at again and again."""

    is_spawned: bool
    is_forkserving: bool  # a forkserver, or forked from one with its command line
    is_watcher: bool
    is_launcher: bool
    is_service: bool  # started by a library for itself
    compiles: bool  # of torch.compile's process pool, which runs compilers


@lru_cache(maxsize=MOST_TRAITS)
def _traits(exe: str, comm: str, words: tuple[str, ...]) -> _Traits:
    name = program_name(ProcInfo(0, 0, exe=exe, comm=comm, cmdline=list(words)), titled=False)
    code = "\0".join(words[1:8]) if len(words) > 2 else ""
    compiles = any("compile_worker" in word for word in words[:4])
    return _Traits(
        is_spawned="--multiprocessing-fork" in words or "multiprocessing.spawn import" in code,
        is_forkserving="multiprocessing.forkserver import" in code,
        is_watcher=comm in _WATCHERS or name in _WATCHERS,
        is_launcher=len(words) > 1 and name in _LAUNCHERS,
        is_service=compiles or any(f"multiprocessing.{what} import" in code for what in ("resource_tracker", "semaphore_tracker")),
        compiles=compiles,
    )


def _of(info: ProcInfo) -> _Traits:
    return _traits(info.exe, info.comm, tuple(info.cmdline))


def _is_spawned(info: ProcInfo) -> bool:
    return _of(info).is_spawned


def _is_forkserving(info: ProcInfo) -> bool:
    return bool(info.cmdline) and _of(info).is_forkserving


def _is_watcher(info: ProcInfo) -> bool:
    return _of(info).is_watcher


def _is_service(info: ProcInfo) -> bool:
    """True if a library started it for itself: it loads no data."""
    return info.serves or _of(info).is_service


def _compiles(info: ProcInfo) -> bool:
    return _of(info).compiles


def _is_launcher(info: ProcInfo) -> bool:
    return len(info.cmdline) > 1 and _of(info).is_launcher
