"""Who is who, by identities alone."""

from __future__ import annotations

import ast
import inspect
import random
import time
from collections.abc import Collection

import pytest

from gputop.model import roles
from gputop.model.frame import ProcInfo

PYTHON = "/usr/bin/python3.11"
TRAIN = ["python", "train.py", "--epochs", "3"]
SPAWN = ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)", "--multiprocessing-fork"]
FORKSERVER = ["python", "-c", "from multiprocessing.forkserver import main; main(4, 5, ['__main__'], **{})"]
TRACKER = ["python", "-c", "from multiprocessing.resource_tracker import main;main(9)"]
COMPILER = ["python", "/venv/lib/python3.12/site-packages/torch/_inductor/compile_worker/__main__.py", "--workers=16"]
TORCH = "pt_data_worker"


def info(pid: int, ppid: int = 1, comm: str = "python", cmdline: list[str] | None = None, **more: object) -> ProcInfo:
    """A process; older pids are older processes."""
    facts: dict = {"exe": PYTHON, "start_ticks": pid} | more
    return ProcInfo(pid, facts.pop("start_ticks"), ppid=ppid, comm=comm, cmdline=TRAIN if cmdline is None else cmdline, **facts)


Held = dict[int, dict[int, float]]
"""Pid -> GPU -> GiB that its context holds there."""


def assigned(*infos: ProcInfo, gpu: Collection[int] | None = None, held: Held | None = None) -> dict[int, roles.Role]:
    contexts = {pid: {index: int(gib * 2**30).bit_length() for index, gib in on.items()} for pid, on in (held or {}).items()}
    return roles.assign({one.pid: one for one in infos}, frozenset(gpu or held or ()), contexts)


def kinds(*infos: ProcInfo, gpu: Collection[int] | None = None, held: Held | None = None) -> dict[int, str]:
    return {pid: role.kind for pid, role in assigned(*infos, gpu=gpu, held=held).items()}


def test_forked_torch_workers_are_numbered_by_age():
    found = assigned(
        info(10, uses_cuda=True),
        info(12, 10, TORCH, start_ticks=900, uses_cuda=True), info(14, 10, TORCH, start_ticks=800, uses_cuda=True), gpu={10},
    )  # fmt: skip
    assert found[10] == roles.Role("trainer", 10, None, None, "", "train.py")
    assert (found[14].index, found[12].index) == (0, 1)
    assert found[12] == roles.Role("worker", 10, None, 1, "torch", "worker 1")
    assert roles.hot(found) == {10, 12, 14}


def test_the_workers_of_a_second_loader_have_numbers_of_their_own():
    """As a traceback names them: those of a validation set that live on, and those that each epoch starts anew."""
    later = 600
    found = assigned(
        info(100, libs=["torch"]), *(info(101 + i, 100, "pt_data_worker", start_ticks=500 + i) for i in range(2)),
        *(info(111 + i, 100, "pt_data_worker", start_ticks=500 + later + i) for i in range(2)), gpu={100},
    )  # fmt: skip
    assert [found[pid].label for pid in (101, 102, 111, 112)] == ["worker 0", "worker 1", "loader 2 worker 0", "loader 2 worker 1"]
    assert [found[pid].index for pid in (101, 102, 111, 112)] == [0, 1, 2, 3]


def test_torch_compiles_pool_and_what_that_runs_belong_to_the_trainer():
    pool = info(11, 10, cmdline=COMPILER), info(12, 11, cmdline=COMPILER), info(13, 12, "ptxas", ["/bin/ptxas", "-v"], exe="/bin/ptxas")
    found = assigned(info(10, uses_cuda=True), *pool, info(14, 10, TORCH, uses_cuda=True), gpu={10})
    assert {pid: role.kind for pid, role in found.items()} == {10: "trainer", 11: "helper", 12: "helper", 13: "helper", 14: "worker"}
    assert {found[pid].label for pid in (11, 12, 13)} == {roles.COMPILES}
    assert roles.hot(found) == {10, 14}


def test_spawned_torch_workers_and_their_tracker():
    found = assigned(info(10, uses_cuda=True), info(11, 10, cmdline=TRACKER), info(12, 10, TORCH, SPAWN), gpu={10})
    assert {pid: role.kind for pid, role in found.items()} == {10: "trainer", 11: "helper", 12: "worker"}
    assert roles.hot(found) == {10, 12}


def test_a_spawned_worker_still_importing_is_one_already():
    found = assigned(info(10, uses_cuda=True, libs=["torch"]), info(12, 10, cmdline=SPAWN), gpu={10})
    assert found[12] == roles.Role("worker", 10, None, 0, "torch", "worker 0")


@pytest.mark.parametrize(("start_ticks", "kind"), [(899, "worker"), (920, "worker"), (700, "helper"), (2000, "helper")])
def test_beside_named_workers_one_that_started_with_them_still_starts(start_ticks: int, kind: str):
    named = info(12, 10, TORCH, SPAWN, start_ticks=900)
    assert kinds(info(10, uses_cuda=True), named, info(13, 10, cmdline=SPAWN, start_ticks=start_ticks), gpu={10})[13] == kind


@pytest.mark.parametrize("comm", [TORCH, "python"])
def test_forkserver_workers_are_grandchildren(comm: str):
    found = assigned(
        info(10, uses_cuda=True, libs=["torch"]), info(11, 10, cmdline=FORKSERVER), info(12, 11, comm, FORKSERVER),
        info(13, 11, comm, FORKSERVER), info(14, 10, cmdline=TRACKER), gpu={10},
    )  # fmt: skip
    assert {pid: role.kind for pid, role in found.items()} == {10: "trainer", 11: "helper", 12: "worker", 13: "worker", 14: "helper"}
    assert found[13].trainer_pid == 10


def test_old_torch_forks_children_with_the_same_command_line():
    found = assigned(info(10, uses_cuda=True, libs=["torch"]), info(12, 10, uses_cuda=True), gpu={10})
    assert found[12] == roles.Role("worker", 10, None, 0, "torch", "worker 0")


@pytest.mark.parametrize("lib", ["grain", "dali", "tensorflow"])
def test_other_loaders_forked_workers(lib: str):
    found = assigned(info(10, uses_cuda=True, libs=[lib, "torch"]), info(12, 10), gpu={10})
    assert found[12].loader == lib


def test_plain_multiprocessing():
    found = assigned(info(10, uses_cuda=True), info(12, 10), info(13, 10, cmdline=SPAWN), gpu={10})
    assert {found[12].loader, found[13].loader} == {"multiprocessing"}


@pytest.mark.parametrize("cmdline", [TRAIN, SPAWN], ids=["fork", "spawn"])
def test_a_manager_loads_nothing(cmdline: list[str]):
    """It is started as loaders are, and told by what it does; it is read as they are, for the lock that it may give out."""
    found = assigned(info(1), info(2, 1, cmdline=cmdline, serves=True), info(3, 1, cmdline=cmdline), info(4, 1, cmdline=cmdline), gpu=[1])
    assert [(pid, role.kind, role.label) for pid, role in sorted(found.items())][1:] == [
        (2, "helper", "manager"), (3, "worker", "worker 0"), (4, "worker", "worker 1"),
    ]  # fmt: skip
    assert roles.hot(found) == {1, 2, 3, 4}


def test_a_torch_worker_that_shares_descriptors_loads():
    """A thread of it hands them out to who connects."""
    assert kinds(info(1), info(2, 1, comm=TORCH, serves=True), gpu=[1])[2] == "worker"


def test_a_dead_worker_not_yet_waited_for_is_still_a_worker():
    found = assigned(info(10, uses_cuda=True, libs=["torch"]), info(12, 10, cmdline=[], exe=""), info(13, 10, "sh", [], exe=""), gpu={10})
    assert found[12].kind == "worker"
    assert 13 not in found


def test_beside_named_workers_a_forked_twin_is_a_helper():
    assert kinds(info(10, uses_cuda=True), info(12, 10, TORCH), info(13, 10), gpu={10})[13] == "helper"


def test_programs_that_a_worker_starts_belong_to_it_and_those_of_the_trainer_to_nobody():
    ffmpeg, make = info(13, 12, "ffmpeg", ["ffmpeg", "-i"]), info(14, 10, "make", ["make"])
    found = kinds(info(10, uses_cuda=True), info(12, 10, TORCH), ffmpeg, make, gpu={10})
    assert found == {10: "trainer", 12: "worker", 13: "helper"}


def test_torchrun_is_a_launcher_and_its_children_are_ranks_before_they_touch_a_gpu():
    launcher = info(5, cmdline=["python", "/usr/bin/torchrun", "--nproc-per-node", "2", "train.py"])
    ranks = [info(10 + rank, 5, env={"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    found = assigned(launcher, *ranks)
    assert found[5].kind == "helper"
    assert [(found[10 + rank].kind, found[10 + rank].rank, found[10 + rank].label) for rank in range(2)] == [
        ("trainer", 0, "train.py rank 0"), ("trainer", 1, "train.py rank 1"),
    ]  # fmt: skip


def test_a_script_with_a_launchers_name_among_its_flags_is_no_launcher():
    found = kinds(info(10, cmdline=["python", "train.py", "--launcher", "deepspeed"], uses_cuda=True), gpu={10})
    assert found == {10: "trainer"}


@pytest.mark.parametrize(
    ("env", "rank"),
    [({"RANK": "3", "SLURM_PROCID": "0"}, 3), ({"OMPI_COMM_WORLD_RANK": "2"}, 2), ({"SLURM_PROCID": "7"}, 7), ({"LOCAL_RANK": "1"}, 1),
     ({"RANK": "x"}, None), ({"RANK": "²"}, None), ({}, None)],
)  # fmt: skip
def test_rank(env: dict[str, str], rank: int | None):
    assert assigned(info(10, uses_cuda=True, env=env), gpu={10})[10].rank == rank


def test_ranks_spawned_by_a_launching_script_are_trainers_with_their_own_workers():
    found = assigned(
        info(5, uses_cuda=False), info(10, 5, cmdline=SPAWN, uses_cuda=True), info(11, 5, cmdline=SPAWN, uses_cuda=True),
        info(20, 10, TORCH, SPAWN), info(21, 11, TORCH, SPAWN), gpu={10, 11},
    )  # fmt: skip
    assert {pid: role.kind for pid, role in found.items()} == {10: "trainer", 11: "trainer", 20: "worker", 21: "worker"}
    assert (found[20].trainer_pid, found[21].trainer_pid) == (10, 11)
    assert found[10].label == "train.py"


def test_who_has_imported_torch_and_started_the_ranks_trains_nothing():
    """The import alone maps libcuda. Until a rank is on a GPU, or where it has workers itself, nobody knows better."""
    ranks = [info(pid, 5, cmdline=SPAWN, uses_cuda=True) for pid in (10, 11)]
    starter, worker = info(5, uses_cuda=True), info(20, 10, TORCH, SPAWN)
    found = assigned(starter, *ranks, worker, gpu={10, 11})
    assert {pid: role.kind for pid, role in found.items()} == {5: "helper", 10: "trainer", 11: "trainer", 20: "worker"}
    assert (found[5].label, found[20].trainer_pid) == ("launcher", 10)
    assert kinds(starter, gpu={99})[5] == "trainer"
    assert kinds(starter, *ranks, gpu={5, 10, 11})[5] == "trainer"
    assert kinds(starter, *ranks, info(21, 5, TORCH), gpu={10, 11})[5] == "trainer"


def test_a_trainer_with_a_context_of_its_own_below_another():
    found = assigned(info(10, uses_cuda=True), info(11, 10, uses_cuda=True), info(12, 11, TORCH), gpu={10, 11})
    assert {pid: role.kind for pid, role in found.items()} == {10: "trainer", 11: "trainer", 12: "worker"}
    assert found[12].trainer_pid == 11


@pytest.mark.parametrize("start", ["spawn", "forkserver", "fork"])
def test_loaders_with_small_contexts_on_the_trainers_gpu_are_its_workers(start: str):
    server = info(11, 10, cmdline=FORKSERVER)
    cmdline, parent = {"spawn": (SPAWN, 10), "forkserver": (FORKSERVER, 11), "fork": (TRAIN, 10)}[start]
    loaders = [info(pid, parent, cmdline=cmdline, uses_cuda=True) for pid in (12, 13)]
    found = assigned(info(10, uses_cuda=True), server, *loaders, held={10: {0: 30.0}, 12: {0: 1.0}, 13: {0: 1.0}})
    assert {pid: found[pid].kind for pid in (10, 12, 13)} == {10: "trainer", 12: "worker", 13: "worker"}
    assert found[13].trainer_pid == 10


def test_what_a_loader_starts_is_its_own_though_it_holds_a_context():
    loader = info(12, 10, cmdline=SPAWN, uses_cuda=True)
    decoders = [info(pid, 12, cmdline=SPAWN, uses_cuda=True) for pid in (13, 14)]
    found = assigned(info(10, uses_cuda=True), loader, *decoders, held={10: {0: 30.0}, **{pid: {0: 0.8} for pid in (12, 13, 14)}})
    assert {pid: role.kind for pid, role in found.items()} == {10: "trainer", 12: "worker", 13: "helper", 14: "helper"}
    below_torchs = info(13, 12, cmdline=SPAWN, uses_cuda=True)
    assert kinds(info(10, uses_cuda=True), info(12, 10, TORCH, SPAWN), below_torchs, gpu={10})[13] == "helper"


@pytest.mark.parametrize(
    ("held", "why"),
    [({10: {0: 0.5}, 12: {0: 30.0}}, "a rank, whose launcher has touched the GPU"),
     ({10: {0: 0.5}, 12: {0: 0.5}}, "a rank that has just begun"),
     ({10: {0: 30.0}, 12: {1: 1.0}}, "an evaluation on a GPU of its own"),
     ({10: {0: 30.0}, 12: {0: 20.0}}, "an engine beside its trainer"),
     ({10: {0: 30.0}, 12: {0: 1.0, 1: 1.0}}, "one that computes on another GPU, too")],
)  # fmt: skip
def test_a_context_of_its_own_right_below_a_trainer_trains(held: Held, why: str):
    assert kinds(info(10, uses_cuda=True), info(12, 10, cmdline=SPAWN, uses_cuda=True), held=held) == {10: "trainer", 12: "trainer"}, why


def test_a_small_context_of_another_program_or_of_a_rank_serves_nobody():
    trainer, held = info(10, uses_cuda=True), {10: {0: 30.0}, 12: {0: 1.0}}
    assert kinds(trainer, info(12, 10, cmdline=["python", "evaluate.py"], uses_cuda=True), held=held)[12] == "trainer"
    assert kinds(trainer, info(12, 10, cmdline=SPAWN, uses_cuda=True, env={"RANK": "1"}), held=held)[12] == "trainer"
    assert kinds(trainer, info(12, 10, cmdline=SPAWN, uses_cuda=True), info(13, 12, TORCH, SPAWN), held=held)[12] == "trainer"
    assert kinds(trainer, info(12, 10, cmdline=SPAWN, uses_cuda=True), gpu={10, 12})[12] == "trainer"  # whose sizes are not known


@pytest.mark.parametrize("ends", [{"other_ends": [12]}, {"read_by": [12]}], ids=["a decoder", "an encoder"])
def test_one_at_the_other_end_of_the_trainers_pipe_serves_it(ends: dict[str, list[int]]):
    program = info(12, 10, cmdline=["decode", "-hwaccel", "cuda"], uses_cuda=True)
    assert kinds(info(10, uses_cuda=True, **ends), program, held={10: {0: 30.0}, 12: {0: 0.3}}) == {10: "trainer"}
    assert kinds(info(10, uses_cuda=True, **ends), program, held={10: {0: 30.0}, 12: {0: 20.0}})[12] == "trainer"  # an engine


def test_one_that_is_never_waited_for_serves_as_its_like_does():
    """Two loaders started by the script, each with a context; the first is always the later one, so only at its pipe the trainer waits."""
    trainer, held = info(10, uses_cuda=True, other_ends=[12]), {10: {0: 30.0}, 12: {0: 0.5}, 13: {0: 0.5}, 14: {0: 0.5}}
    loaders = [info(pid, 10, cmdline=["python", "load.py"], uses_cuda=True) for pid in (12, 13)]
    other = info(14, 10, cmdline=["python", "evaluate.py"], uses_cuda=True)
    assert kinds(trainer, *loaders, other, held=held) == {10: "trainer", 14: "trainer"}


def test_a_program_of_a_trainers_that_loads_the_library_alone_trains_nothing():
    program = info(11, 10, cmdline=["python", "lookup.py"], uses_cuda=True)
    assert kinds(info(10, uses_cuda=True), program, gpu={10}) == {10: "trainer"}
    assert kinds(info(10, uses_cuda=True), program, gpu={10, 11}) == {10: "trainer", 11: "trainer"}
    assert kinds(info(10, uses_cuda=True), program) == {10: "trainer", 11: "trainer"}  # where the driver's list tells nothing
    rank = info(12, 10, cmdline=["python", "ddp.py"], uses_cuda=True, env={"RANK": "1"})
    assert kinds(info(10, uses_cuda=True), rank, gpu={10})[12] == "trainer"  # before its first call


def test_without_a_gpu_the_workers_tell_the_trainer():
    assert kinds(info(10), info(12, 10, TORCH)) == {10: "trainer", 12: "worker"}
    assert kinds(info(10), info(11, 10, cmdline=FORKSERVER), info(12, 11, TORCH, FORKSERVER)) == {10: "trainer", 11: "helper", 12: "worker"}
    assert kinds(info(10), info(12, 10)) == {}


def test_a_pid_of_another_namespace_that_exists_here_too_is_not_believed():
    """Pid 1 of the container is not our init, which uses no CUDA, while somebody else does."""
    init = info(1, 0, "init", ["/sbin/init"], exe="/sbin/init", uses_cuda=False)
    assert kinds(init, info(40, uses_cuda=True), gpu={1}) == {40: "trainer"}


def test_where_the_whole_machine_is_seen_the_drivers_list_is_proof():
    kthreadd = info(2, 0, "kthreadd", [], exe="")
    listed, other = info(40, cmdline=["./train"], exe="/train", uses_cuda=False), info(50, uses_cuda=True)
    assert kinds(kthreadd, listed, other, gpu={40, 4242}) == {40: "trainer", 50: "trainer"}
    assert not roles.is_whole_machine({2: info(2, 0, "kthreadd", ["kthreadd"])})


def test_the_drivers_list_is_believed_where_nobody_seems_to_use_cuda():
    assert kinds(info(40, uses_cuda=False), gpu={40}) == {40: "trainer"}


def test_in_a_container_the_pids_of_another_namespace_are_not_believed():
    own = info(10, uses_cuda=True)
    stranger = info(77, comm="postgres", cmdline=["postgres"], exe="/usr/bin/postgres", uses_cuda=False)
    assert kinds(own, stranger, gpu={77, 4242}) == {10: "trainer"}


def test_a_list_that_names_strangers_and_nobody_who_could_use_a_gpu_is_not_believed():
    shell = info(77, comm="bash", cmdline=["bash"], exe="/usr/bin/bash", uses_cuda=False)
    assert kinds(shell, gpu={77, 4242}) == {}
    assert kinds(info(77, uses_cuda=None), gpu={77, 4242}) == {77: "trainer"}  # whose maps are not readable


def test_nvmls_list_is_believed_where_it_fits():
    assert kinds(info(10, uses_cuda=False), info(11, uses_cuda=None, cmdline=["java"], exe="/usr/bin/java"), gpu={10, 11}) == {
        10: "trainer", 11: "trainer",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("comm", "cmdline"),
    [("nvidia-smi", ["nvidia-smi", "dmon"]), ("nvitop", [PYTHON, "/usr/bin/nvitop"]), ("python3", [PYTHON, "-m", "gputop", "collect"]),
     ("python3", [PYTHON, "-P", "-m", "gputop.collector", "--no-ebpf"]),
     ("Xorg", ["/usr/lib/xorg/Xorg"]), ("nv-hostengine", ["nv-hostengine"])],
)  # fmt: skip
def test_watchers_are_no_trainers(comm: str, cmdline: list[str]):
    assert kinds(info(10, comm=comm, cmdline=cmdline, exe="" if comm != "python3" else PYTHON, uses_cuda=True), gpu={10}) == {}


def test_orphaned_workers_are_known_and_init_is_no_trainer():
    init = info(1, 0, "systemd", ["/sbin/init"], exe="/usr/lib/systemd/systemd")
    found = assigned(init, info(12, 1, TORCH), info(20, 1, cmdline=FORKSERVER), info(21, 20, TORCH, FORKSERVER))
    assert found[12] == roles.Role("worker", None, None, None, "torch", "orphaned worker")
    assert found[21].trainer_pid is None
    assert 1 not in found
    assert roles.hot(found) == set()


def test_who_has_no_workers_may_be_fed_by_what_it_started():
    infos = {one.pid: one for one in (info(10), info(11, 10, "reader", ["/bin/reader"]), info(20), info(21, 20, TORCH), info(30, 1))}
    found = roles.assign(infos, frozenset({10, 20}))
    assert roles.without_workers(found) == {10}
    assert roles.children_of(infos, roles.without_workers(found)) == {11}


@pytest.mark.parametrize(
    ("cmdline", "name"),
    [(["python", "-u", "/a/b/train.py", "x"], "train.py"), (["python", "-m", "pkg.train"], "pkg.train"), (["python", "-c", "x"], ""),
     (["python", "-W", "ignore::DeprecationWarning", "-X", "dev", "/a/train.py"], "train.py"),
     (["python", "-O", "train.py", "--batch", "8"], "train.py"),
     (["bash", "-e", "-o", "pipefail", "/ci/build.sh", "all"], "build.sh"), (["/bin/sh", "-ec", "true; true"], ""),
     (["/usr/bin/make", "-j8"], "make"), (["-bash"], "-bash"), (["bash", "/dev/fd/3"], ""),
     (["python"], ""), ([], ""), (["python", "\x1b[2J[red]"], "·[2J[red]")],
)  # fmt: skip
def test_program_name(cmdline: list[str], name: str):
    exe = "/usr/bin/python3" if not cmdline or cmdline[0] == "python" else ""
    assert roles.program_name(info(10, comm="python3" if name else "shown", cmdline=cmdline, exe=exe)) == (name or "shown")


@pytest.mark.parametrize(
    ("cmdline", "arguments"),
    [(["python", "-W", "ignore", "/a/train.py", "--batch", "8"], ["--batch", "8"]), (["python", "-O", "train.py", "x"], ["x"]),
     (["python", "-m", "pkg.train", "x"], ["x"]), (["python", "-c", "pass", "x"], ["x"]), (["train", "x"], ["x"]), (["python"], [])],
)  # fmt: skip
def test_arguments_stand_behind_the_script(cmdline: list[str], arguments: list[str]):
    assert roles.arguments_of(info(10, cmdline=cmdline, exe=cmdline[0])) == arguments


@pytest.mark.parametrize(
    ("comm", "cmdline", "name"),
    [
        ("VLLM::EngineCor", ["VLLM::EngineCore"], "VLLM::EngineCore"), ("ray::map_batche", ["ray::map_batches()"], "ray::map_batches()"),
        ("dqn-learner", ["python", "main.py"], "dqn-learner"), ("python3.11", ["/usr/bin/python3.11", "main.py"], "main.py"),
        ("main.py", ["python", "./main.py"], "main.py"), ("pt_main_thread", ["python", "train.py"], "train.py"),
        ("a_very_long_scr", ["python", "/opt/a_very_long_script.py"], "a_very_long_script.py"),
    ],
)  # fmt: skip
def test_a_process_has_the_title_that_it_gave_itself(comm: str, cmdline: list[str], name: str):
    process = info(10, comm=comm, cmdline=cmdline, exe="/usr/bin/python3.11")
    assert roles.program_name(process) == name
    assert roles.program_name(process, titled=False) in (name, "main.py", comm)


def test_processes_of_a_scripts_own_are_called_as_they_call_themselves():
    infos = {10: info(10, comm="learner")} | {pid: info(pid, 10, comm) for pid, comm in ((11, "actor"), (12, "actor"), (13, "learner"))}
    found = roles.assign(infos, frozenset({10}))
    assert [found[pid].label for pid in (11, 12, 13)] == ["actor 0", "actor 1", "worker 2"]


def test_who_has_a_blank_name_is_seen_all_the_same():
    assert [roles.program_name(info(10, comm=comm, cmdline=["  "])) for comm in ("shown", " ", "")] == ["shown", "?", "?"]


def test_a_thousand_processes_are_quick():
    crowd = [info(1000 + i, 1, f"proc{i}", [f"/usr/bin/proc{i}"], exe=f"/usr/bin/proc{i}") for i in range(900)]
    family = [info(10 + rank, uses_cuda=True) for rank in range(8)]
    workers = [info(100 + i, 10 + i % 8, TORCH) for i in range(92)]
    infos = {one.pid: one for one in (*crowd, *family, *workers)}
    best = min(_timed(infos) for _ in range(9))
    assert len(roles.assign(infos, frozenset(range(10, 18)))) == 100
    assert best < 0.02  # 2 ms is the aim on a quiet machine; ten times that is a mistake in the method


def _timed(infos: dict[int, ProcInfo]) -> float:
    began = time.thread_time()
    roles.assign(infos, frozenset(range(10, 18)))
    return time.thread_time() - began


def _machine(chance: random.Random, count: int) -> dict[int, ProcInfo]:
    """A machine of made-up processes, each the child of an earlier one or of init: trainers, workers, launchers, and many others."""
    infos = {1: info(1, 0, "init", [], exe="/sbin/init")}
    for pid in range(2, count):
        infos[pid] = _process(chance, pid, infos)
    return infos


def _process(chance: random.Random, pid: int, infos: dict[int, ProcInfo]) -> ProcInfo:
    comm, cmdline = chance.choice((
        ("python", TRAIN), ("python", SPAWN), ("python", FORKSERVER), ("python", TRACKER), ("python", COMPILER), (TORCH, TRAIN),
        ("bash", ["bash"]), ("torchrun", ["python", "/bin/torchrun", "train.py"]), ("cat", ["cat", "a"]), ("kthreadd", []),
        ("python", ["python", "other.py"]),
    ))  # fmt: skip
    ends = [other for other in infos if chance.random() < 0.05]
    return info(
        pid, chance.choice([*infos]), comm, cmdline, uses_cuda=chance.choice((None, False, False, True)),
        libs=chance.choice(([], ["grain"])), env=chance.choice(({}, {}, {"RANK": "1"})), other_ends=ends[:1], read_by=ends[1:2],
        exe=chance.choice((PYTHON, "/bin/x")), serves=chance.random() < 0.1, start_ticks=chance.randrange(40),
    )  # fmt: skip


def test_who_has_no_part_in_a_job_changes_no_role():
    spared = 0
    for seed in range(400):
        chance = random.Random(seed)
        infos = _machine(chance, chance.randrange(3, 16))
        gpu = frozenset(pid for pid in infos if chance.random() < 0.15)
        found = roles.assign(infos, gpu)
        for _ in range(12):
            after, pids = dict(infos), [chance.randrange(2, 18) for _ in range(chance.choice((1, 1, 2, 3)))]
            for pid in pids:
                if chance.random() < 0.4:
                    after.pop(pid, None)
                else:
                    after[pid] = _process(chance, pid, after)
            changed = [one for pid in pids for one in (infos.get(pid), after.get(pid)) if one is not None]
            differs = roles.may_differ(changed, after, found, gpu)
            assert differs or roles.assign(after, gpu) == found, (seed, infos, changed)
            spared += not differs
    assert spared > 400, "there was something to spare"


def test_roles_are_assigned_by_the_decisive_fields_alone():
    """Whoever makes roles read another field adds it there: else a change of it alone would change no role."""
    used = {node.attr for node in ast.walk(ast.parse(inspect.getsource(roles))) if isinstance(node, ast.Attribute)}
    assert used & set(ProcInfo.__struct_fields__) == {*roles.DECISIVE, "pid"}


def test_an_identity_that_differs_in_its_affinity_only_is_alike():
    assert roles.is_alike(info(7), info(7, cpus_allowed="0-3", cgroup="/job", sockets="none"))
    assert not roles.is_alike(info(7), info(7, other_ends=[9]))
    assert not roles.is_alike(info(7), info(7, ppid=2))
