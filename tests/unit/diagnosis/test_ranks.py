"""Which trainers are ranks of one training, and whom the others wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gputop.model.roles import ENV_OF_INTEREST
from tests.unit.diagnosis.causes import ranks_of_mpi, straggling, straggling_gpu, straggling_gpu_of_spawned_ranks
from tests.unit.diagnosis.causes_behind import lock_between_trainers, sorted_by_length
from tests.unit.diagnosis.causes_gpu import small_kernels, undersized, undersized_by_power
from tests.unit.diagnosis.scene import AWAIT, DISK, EPOLL, ON_CPU, QUEUE, SLEEP, SOCKET, Proc, Scene, training


@pytest.mark.parametrize(
    ("rank", "size"), [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
                       ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"), ("SLURM_PROCID", "SLURM_NTASKS")],
)  # fmt: skip
def test_the_ranks_of_a_training_are_told_by_whatever_launched_them(rank: str, size: str):
    assert {rank, size} <= set(ENV_OF_INTEREST)
    scene = straggling()
    for number, pid in enumerate((100, 200)):
        scene.procs[pid].info["env"] = {rank: str(number), size: "2"}
        scene.procs[pid].ppid = 10 + number
    assert scene.play(6).engine.verdict.cause == "straggler-rank"


def test_ranks_may_have_arguments_of_their_own():
    scene = straggling()
    for number, pid in enumerate((100, 200)):
        scene.procs[pid].cmdline = ["python", "train.py", f"--local_rank={number}"]
    assert scene.play(6).engine.verdict.cause == "straggler-rank"


def test_two_trainings_of_one_script_are_two():
    scene = straggling()
    for number, pid in enumerate((100, 200)):
        scene.add(Proc(pid + 1000, run=0.05, looks=[SLEEP], info={"uses_cuda": True, "env": scene.procs[pid].info["env"]}))
        scene.procs[pid + 1000].cmdline = ["python", "train.py", "--seed", "2"]
        scene.gpus[2 + number] = {"util_pct": 99.0, "sm_active_pct": 95.0, "pids": [pid + 1000]}
    facts = scene.play(6).engine.facts
    assert facts is not None
    assert {job.trainer.pid: sorted(job.ranks.kin) for job in facts.jobs} == {
        100: [100, 200], 200: [100, 200], 1100: [1100, 1200], 1200: [1100, 1200],
    }  # fmt: skip
    assert {job.trainer.pid for job in facts.jobs if job.ranks.straggler is not None} == {100, 200}


@pytest.mark.parametrize(("port", "uid"), [("29501", 1000), ("29500", 1001)])
def test_two_trainings_that_differ_only_in_where_they_meet_or_in_their_user_are_two(port: str, uid: int):
    """One script, one size, one command line, as two containers with the same image have them."""
    scene = straggling()
    for number, pid in enumerate((100, 200)):
        env = scene.procs[pid].info["env"] | {"MASTER_ADDR": "127.0.0.1"}
        scene.procs[pid].info |= {"env": env | {"MASTER_PORT": "29500"}, "uid": 1000}
        scene.add(Proc(pid + 1000, run=0.05, looks=[SLEEP], info={"uses_cuda": True, "uid": uid, "env": env | {"MASTER_PORT": port}}))
        scene.procs[pid + 1000].cmdline = scene.procs[pid].cmdline
        scene.gpus[2 + number] = {"util_pct": 99.0, "sm_active_pct": 95.0, "pids": [pid + 1000]}
    facts = scene.play(6).engine.facts
    assert facts is not None
    assert {job.trainer.pid: sorted(job.ranks.kin) for job in facts.jobs} == {
        100: [100, 200], 200: [100, 200], 1100: [1100, 1200], 1200: [1100, 1200],
    }  # fmt: skip
    assert {job.trainer.pid for job in facts.jobs if job.ranks.straggler is not None} == {100, 200}


def test_a_straggler_counts_the_seconds_of_all_gpus_it_keeps_waiting():
    scene = sorted_by_length().play(12)
    assert scene.engine.incidents[0].headline.startswith("2 GPUs lost ")


def test_a_straggler_that_waits_for_its_worker_is_told_what_that_does():
    scene = straggling()
    scene.procs[200].run, scene.procs[200].looks = 0.1, [QUEUE]
    scene.add(Proc(201, 200, comm="pt_data_worker", start_ticks=50_100, run=0.9, looks=[ON_CPU]))
    verdict = scene.play(12).engine.verdict
    assert verdict.cause == "straggler-rank"
    assert "waiting-data 90% of the time (its 1 worker is running 90%), with 1 other rank waiting for it" in verdict.detail
    assert verdict.fixes[0].command == "DataLoader(..., num_workers=2)"
    assert verdict.fixes[-1].command == "gputop stacks 200 201"


def test_who_keeps_a_stragglers_worker_from_running_is_named():
    scene = straggling()
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    scene.procs[200].run, scene.procs[200].looks = 0.1, [QUEUE]
    scene.add(Proc(201, 200, comm="pt_data_worker", start_ticks=50_100, run=0.2, wait=0.75, looks=[ON_CPU]))
    scene.add(Proc(900, comm="foam", cmdline=["/bin/foam"], run=1.6, looks=[ON_CPU]))
    verdict = scene.play(12).engine.verdict
    assert verdict.cause == "straggler-rank"
    assert "foam (900) took 1.6 CPUs in that time" in verdict.detail
    assert [culprit.pid for culprit in verdict.culprits] == [200, 900]
    assert "900" in verdict.fixes[0].command


def test_trainings_that_do_not_step_alike_are_no_ranks():
    scene = straggling_gpu_of_spawned_ranks((14.0, 11.0)).play(6)
    assert (scene.engine.verdict.symptom, scene.engine.incidents) == ("healthy", [])


def test_a_rank_that_sleeps_on_a_lock_of_its_own_while_the_other_spins_makes_that_one_no_straggler():
    scene = sorted_by_length().drop(200, 201)
    del scene.gpus[1]
    scene.gpus[2] |= {"util_pct": 99.0, "sm_active_pct": 20.0}
    assert scene.play(5).engine.verdict.trainer_pid != 300


def test_ranks_that_wait_for_one_lock_in_turns_have_no_straggler():
    scene = sorted_by_length()
    for gpu in scene.gpus.values():
        gpu["util_pct"] = 45.0
    scene.procs[300].looks = scene.procs[100].looks[::-1]
    assert scene.play(5).engine.verdict.cause != "straggler-rank"


def test_a_rank_whose_clocks_somebody_set_is_the_straggler_though_it_draws_little():
    """The others sleep in a collective of the host until it is done."""
    scene = sorted_by_length()
    for gpu in scene.gpus.values():
        gpu |= {"power_limit_w": 350.0, "sm_clock_mhz": 1755, "sm_clock_max_mhz": 1755}
        gpu["power_w"] = 166.0 if gpu["util_pct"] < 90.0 else 124.0
        gpu |= {"throttle_mask": 0x2, "sm_clock_mhz": 765} if gpu["util_pct"] >= 90.0 else {}
        gpu.pop("sm_active_pct", None)
    verdict = scene.play(8).engine.verdict
    assert verdict.cause == "straggler-rank"
    assert verdict.detail.endswith("; GPU 2 runs at 765 of 1755 MHz: app clocks")
    assert verdict.fixes[0].command.startswith("sudo nvidia-smi -i 2 -rgc")


def test_ranks_whose_workers_all_wait_for_the_disk_have_no_straggler():
    """Now one comes later, now the other: each would lose most of it without the other, too."""
    scene = straggling()
    for pid, queue in ((100, 2), (200, 3)):
        scene.gpus[pid // 100 - 1] = {"util_pct": 28.0, "pids": [pid]}
        scene.procs[pid].run, scene.procs[pid].looks = 0.02, [QUEUE] * queue + [SOCKET] * (4 - queue)
        worker = {"comm": "pt_data_worker", "start_ticks": 50_100, "looks": [DISK], "read_bytes": 15_000_000}
        scene.add(*(Proc(pid + 1 + i, pid, **worker) for i in range(2)))
    assert scene.play(8).engine.verdict.cause == "disk-io"


def standing(there: Sequence[int], env: dict[str, str], gpus: int = 4, sm_active: float = 5.0) -> Scene:
    """Ranks that spin in a collective."""
    scene = training().drop(100, 101, 102)
    for index in range(gpus):
        users = [200 + index] if index in there else []
        scene.gpus[index] = {"util_pct": 99.0 if users else 0.0, "sm_active_pct": sm_active if users else 0.0, "pids": users}
    for rank in there:
        told = {name: value.format(rank=rank) for name, value in env.items()}
        scene.add(Proc(200 + rank, 10, run=0.99, looks=[ON_CPU], switches=0, info={"uses_cuda": True, "env": told}))
    return scene


BY_HAND = {"RANK": "{rank}", "WORLD_SIZE": "4"}
TORCHRUN = {"RANK": "{rank}", "LOCAL_RANK": "{rank}", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SLURM = {"SLURM_PROCID": "{rank}", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}


@pytest.mark.parametrize(
    ("there", "env", "gpus", "says"),
    [([0, 1, 3], BY_HAND, 4, "rank 2 of its training has"), ([0, 1, 2], BY_HAND, 4, "rank 3 of its training has"),
     ([1], BY_HAND, 4, "ranks 0, 2, 3 of its training have"),
     ([0, 1, 2], TORCHRUN, 4, "rank 3 of its training has"), ([0, 2, 3], SLURM, 8, "rank 1 of its training has")],
)  # fmt: skip
def test_a_rank_that_is_gone_is_what_the_others_wait_for(there: list[int], env: dict[str, str], gpus: int, says: str):
    engine = standing(there, env, gpus).play(6).engine
    assert (engine.verdict.symptom, engine.verdict.cause) == ("straggler", "straggler-rank")
    assert says in engine.verdict.detail
    [incident] = engine.incidents
    assert incident.headline.startswith("GPU 1 lost " if len(there) == 1 else f"{len(there)} GPUs lost ")


def test_a_rank_of_another_training_does_not_stand_in_for_one_that_is_gone():
    elsewhere = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    scene = standing([0, 1, 3], {**BY_HAND, **elsewhere, "MASTER_PORT": "29500"})
    scene.add(Proc(302, 10, run=0.5, looks=[ON_CPU], info={"uses_cuda": True, "env": {"RANK": "2", "WORLD_SIZE": "4", **elsewhere}}))
    assert "rank 2 of its training has no process" in scene.play(6).engine.verdict.detail


@pytest.mark.parametrize(
    ("there", "env", "sm_active"),
    [([0, 1, 2, 3], BY_HAND, 5.0), ([0, 1, 3], BY_HAND, 90.0), ([0, 1, 2, 3], TORCHRUN, 5.0), ([0, 1, 2, 3], SLURM, 5.0),
     ([0, 1, 2], {}, 5.0)],
)  # fmt: skip
def test_nobody_is_missed_who_is_there_or_on_another_node(there: list[int], env: dict[str, str], sm_active: float):
    """Nor while the others work."""
    assert standing(there, env, sm_active=sm_active).play(6).engine.verdict.cause != "straggler-rank"


def test_a_rank_that_is_dead_and_not_yet_waited_for_is_gone_too():
    scene = standing([0, 1, 2, 3], BY_HAND)
    scene.procs[202].looks, scene.procs[202].run, scene.gpus[2]["pids"] = [{"state": "Z"}], 0.0, []
    assert "rank 2 of its training has no process" in scene.play(6).engine.verdict.detail


@pytest.mark.parametrize(("run", "gone"), [(0.0, True), (0.6, False)])
def test_who_ends_after_the_others_does_not_wait_for_them(run: float, gone: bool):
    """It sums up on the host and sleeps, or writes its weights and sends them somewhere."""
    scene = standing([0, 1, 2, 3], BY_HAND, sm_active=90.0).play(6).drop(202)
    for pid in (200, 201, 203):
        scene.procs[pid].looks, scene.procs[pid].run, scene.procs[pid].switches = [SOCKET], run, 0
    for gpu in scene.gpus.values():
        gpu["util_pct"], gpu["sm_active_pct"] = 0.0, 0.0
    assert ("has no process on this host any more" in scene.play(8).engine.verdict.detail) == gone


@pytest.mark.parametrize("size", ["²", "-4", "four", "9" * 5000, ""], ids=["superscript", "negative", "word", "endless", "empty"])
def test_a_size_that_is_no_number_is_none(size: str):
    """Anybody sets these; and with another variable that holds one, that one counts."""
    assert standing([0, 1, 3], {"RANK": "{rank}", "WORLD_SIZE": size}).play(6).engine.verdict.trainer_pid == 200
    scene = standing([0, 1, 3], {"RANK": "{rank}", "WORLD_SIZE": "²", "PMI_SIZE": "4"})
    assert "rank 2 of its training has" in scene.play(6).engine.verdict.detail


@pytest.mark.parametrize("systems", [(0.4, 0.02), (0.02, 0.4), (0.4, 0.02, 0.4, 0.4)], ids=["two", "the first", "of four"])
def test_who_spins_in_a_barrier_waits_and_the_rank_that_works_is_named(systems: tuple[float, ...]) -> None:
    verdict, late = ranks_of_mpi(*systems).play(6).engine.verdict, systems.index(0.02)
    assert (verdict.symptom, verdict.cause) == ("straggler", "straggler-rank")
    assert (verdict.trainer_pid, verdict.culprits[0].pid) == (100 + late, 100 + late)
    assert {victim.pid for victim in verdict.victims} == {100 + rank for rank in range(len(systems)) if rank != late}


@pytest.mark.parametrize("systems", [(0.05, 0.05), (0.4, 0.4), (0.3, 0.35)], ids=["both work", "both spin", "nearly"])
def test_of_ranks_that_are_alike_none_is_late(systems: tuple[float, ...]) -> None:
    assert ranks_of_mpi(*systems).play(6).engine.verdict.cause != "straggler-rank"


RANKS = [
    {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
    {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "7"},
    {"PMI_RANK": "0", "PMI_SIZE": "4"},
    {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "9"},
]


@pytest.mark.parametrize("env", RANKS, ids=lambda env: next(iter(env)))
@pytest.mark.parametrize("make", [undersized, undersized_by_power, small_kernels])
def test_a_rank_whose_gpu_may_wait_for_others_is_not_told_to_take_more_work(make: Callable[[], Scene], env: dict[str, str]):
    """A collective's kernel runs on few SMs until the last rank, here one elsewhere, arrives. It is no known fault, and no loss less."""
    alone, rank = make(), make()
    rank.procs[100].info["env"] = env
    known, told = alone.play(12).engine, rank.play(12).engine
    assert known.verdict.cause in ("undersized-work", "small-kernels")
    assert (told.verdict.symptom, told.verdict.cause, told.verdict.severity) == ("comm-bound", "unexplained", "info")
    assert "seems to wait for other ranks" in told.verdict.headline
    assert not any("batch" in fix.text or "model" in fix.text for fix in told.verdict.fixes)
    assert told.ledger.gpu_lost_s == pytest.approx(known.ledger.gpu_lost_s, rel=0.02)
    assert {incident.severity for incident in told.incidents} <= {"info"}


def test_launches_of_a_rank_that_are_counted_are_its_own():
    """So many that launching takes all its time, whatever its GPU waits for."""
    scene = small_kernels()
    scene.procs[100].run, scene.probed = 0.9, True
    scene.procs[100].info["env"] = RANKS[0]
    scene.launches, scene.calls = {100: 36_000.0}, {(100, "cuLaunchKernel"): (36_000.0, 0.5, 0)}
    assert scene.play(12).engine.verdict.cause == "small-kernels"


@pytest.mark.parametrize("probed", [True, False])
@pytest.mark.parametrize("env", RANKS[:3], ids=lambda env: next(iter(env)))
def test_ranks_that_wait_for_one_another_in_turn_wait_for_what_lies_between_them(env: dict[str, str], probed: bool):
    """Each wakes the other, and none is late: neither a store nor a smaller job is blamed, and both are comm-bound."""
    gpu = {"util_pct": 45.0, "power_w": 300.0, "power_limit_w": 400.0}
    scene = Scene(gpus={0: gpu | {"pids": [100]}, 1: gpu | {"pids": [200]}}, probed=probed)
    for number, pid in enumerate((100, 200)):
        own = {name: str(number) if name.endswith("RANK") else value for name, value in env.items()}
        scene.add(Proc(pid, run=0.05, looks=[SOCKET], info={"uses_cuda": True, "env": own}))
    scene.wakeups = {(100, 200): 0.55, (200, 100): 0.55} if probed else {}
    verdict = scene.play(8).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("comm-bound", "unexplained")
    assert "waits for other ranks" in verdict.headline


@pytest.mark.parametrize(("locks", "cause"), [((70, 70, 70), "lock-contention"), ((70, 71, 72), "unexplained")], ids=["one lock", "three"])
def test_ranks_that_samples_meet_at_one_lock_in_shared_memory_wait_for_each_other(locks: tuple[int, ...], cause: str) -> None:
    """Without the probe nobody knows who wakes them. Each at a place of its own waits for something else."""
    scene = lock_between_trainers()
    scene.probed, scene.wakeups, scene.calls = False, {}, {}
    for rank, futex in enumerate(locks):
        held = AWAIT | {"shared_futex": futex}
        scene.procs[100 + 100 * rank].looks = [held, held, EPOLL]
    assert (scene.play(6).engine.verdict.symptom, scene.engine.verdict.cause) == ("wait-heavy", cause)


def pipeline(works: dict[int, float], command: str = "--pipeline-model-parallel-size 2") -> Scene:
    """Four ranks, two stages: GPUs that are busy all the time, of which so much works."""
    scene = Scene()
    for rank in range(4):
        pid, env = 100 * (rank + 1), {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
        scene.gpus[rank] = {"util_pct": 99.0, "sm_active_pct": works.get(rank, 45.0), "pids": [pid]}
        info = {"uses_cuda": True, "env": env}
        scene.add(Proc(pid, cmdline=["python", "train.py", *command.split()], run=0.05, looks=[SLEEP], info=info))
    return scene


def test_a_stage_whose_ranks_are_all_late_has_more_to_do_and_no_rank_is_to_blame() -> None:
    verdict = pipeline({2: 95.0, 3: 95.0}).play(8).engine.verdict
    assert (verdict.symptom, verdict.cause, verdict.culprits) == ("straggler", "straggler-rank", ())
    assert verdict.detail.startswith("stage 2 of 2 (ranks 2, 3) takes longer")
    assert {victim.pid for victim in verdict.victims} == {100, 200}
    assert not any("stacks" in fix.command for fix in verdict.fixes)


@pytest.mark.parametrize("command", ["--pipeline-model-parallel-size 2", ""])
def test_a_rank_that_is_later_than_the_other_of_its_stage_is_to_blame(command: str) -> None:
    verdict = pipeline({3: 95.0}, command).play(8).engine.verdict
    assert (verdict.cause, [culprit.pid for culprit in verdict.culprits]) == ("straggler-rank", [400])


def divided(works: dict[int, float], command: str, ranks: int = 8, configured: dict[str, int] | None = None) -> Scene:
    """Ranks of one host: GPUs that are busy all the time, of which so much works."""
    scene = Scene()
    for rank in range(ranks):
        pid, env = 100 * (rank + 1), {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "h", "MASTER_PORT": "1"}
        scene.gpus[rank] = {"util_pct": 99.0, "sm_active_pct": works.get(rank, 45.0), "pids": [pid]}
        info = {"uses_cuda": True, "env": env, "group_sizes": configured or {}}
        scene.add(Proc(pid, cmdline=["python", "train.py", *command.split()], run=0.05, looks=[SLEEP], info=info))
    return scene


@pytest.mark.parametrize(
    ("command", "late", "starts"),
    [
        ("--tensor-model-parallel-size 2", (4, 5), "data-parallel replica 3 of 4 (ranks 4, 5) takes longer"),
        ("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", (2, 3, 6, 7), "data-parallel replica 2 of 2"),
        ("--tensor-model-parallel-size 2 --expert-model-parallel-size 2", (2, 3, 6, 7), "expert-parallel part 2 of 2"),
        ("--tp-size 2", (0, 2, 4, 6), "tensor-parallel part 1 of 2"),
        ("--cp-size 4", (3, 7), "context-parallel part 4 of 4"),
    ],
)  # fmt: skip
def test_a_part_whose_ranks_are_all_late_has_more_to_do(command: str, late: tuple[int, ...], starts: str) -> None:
    verdict = divided(dict.fromkeys(late, 90.0), command).play(8).engine.verdict
    assert (verdict.symptom, verdict.cause, verdict.culprits) == ("straggler", "straggler-rank", ())
    assert verdict.detail.startswith(starts)
    assert {victim.pid for victim in verdict.victims} == {100 * (rank + 1) for rank in range(8) if rank not in late}
    assert not any("stacks" in fix.command for fix in verdict.fixes)


def test_sizes_that_only_a_configuration_file_states_count_too() -> None:
    scene = divided({4: 90.0, 5: 90.0}, "--job.config_file llama.toml", configured={"tp": 2})
    assert scene.play(8).engine.verdict.detail.startswith("data-parallel replica 3 of 4")


@pytest.mark.parametrize("command", ["--tp-size 2", "--tp-size 4", "--tp-size 2 --pp-size 2", "--pp-size 4", "--cp-size 2 --ep-size 2"])
@pytest.mark.parametrize("late", [0, 3, 6])
def test_a_rank_that_is_later_than_all_of_its_groups_is_to_blame(command: str, late: int) -> None:
    verdict = divided({late: 90.0}, command).play(8).engine.verdict
    assert (verdict.cause, [culprit.pid for culprit in verdict.culprits]) == ("straggler-rank", [100 * (late + 1)])


def test_a_rank_of_a_light_stage_that_is_late_there_is_to_blame() -> None:
    """Though ranks of the heavy stage work as much: these always do."""
    heavy = dict.fromkeys((4, 5, 6, 7), 62.0)
    assert divided(heavy, "--pp-size 2").play(8).engine.verdict.cause == "none"
    verdict = divided(heavy | {1: 68.0}, "--pp-size 2").play(8).engine.verdict
    assert (verdict.cause, [culprit.pid for culprit in verdict.culprits]) == ("straggler-rank", [200])


def test_ranks_of_a_tensor_parallel_group_that_are_about_as_late_have_no_culprit() -> None:
    assert divided({6: 66.0, 7: 58.0}, "--tp-size 2").play(8).engine.verdict.culprits == ()


# uneven data


def at_clocks(scene: Scene, *clocks_mhz: int) -> Scene:
    for gpu, clock_mhz in zip(scene.gpus.values(), clocks_mhz, strict=True):
        gpu |= {"sm_clock_mhz": clock_mhz, "sm_clock_max_mhz": 1980}
    return scene


@pytest.mark.parametrize("make", [straggling_gpu, sorted_by_length], ids=["spins", "sleeps"])
def test_a_rank_whose_gpu_is_as_fast_as_the_others_has_more_data(make: Callable[[], Scene]) -> None:
    scene = make()
    verdict = at_clocks(scene, *[1980] * len(scene.gpus)).play(8).engine.verdict
    assert verdict.cause == "straggler-rank"
    assert "its data are uneven" in verdict.detail
    assert not verdict.fixes[0].look
    assert {one.metric: one.value for one in verdict.evidence}["peer_sm_clock_mhz"] == 1980


@pytest.mark.parametrize("clock_mhz", [1755, 1410])
def test_a_rank_whose_gpu_is_slower_has_no_uneven_data(clock_mhz: int) -> None:
    verdict = at_clocks(straggling_gpu(), 1980, clock_mhz).play(8).engine.verdict
    assert verdict.cause == "straggler-rank"
    assert f"it runs at {clock_mhz} MHz, theirs at 1980" in verdict.detail
    assert "uneven" not in verdict.detail


def test_without_clocks_nothing_is_said_of_them() -> None:
    scene = straggling_gpu()
    scene.gpus[1] |= {"sm_clock_mhz": 1980, "sm_clock_max_mhz": 1980}
    detail = scene.play(8).engine.verdict.detail
    assert "uneven" not in detail
    assert "MHz" not in detail


def by_turns(late: Sequence[int], ranks: int = 2) -> Scene:
    """Each is late for 4 s."""
    scene = divided({}, "", ranks)
    for one in late:
        for rank, gpu in scene.gpus.items():
            gpu["sm_active_pct"] = 90.0 if rank == one else 45.0
        scene.play(4)
    return scene


@pytest.mark.parametrize(("late", "ranks"), [((0, 1, 0, 1, 0), 2), ((3, 0, 2, 3, 1), 4)])
def test_ranks_that_are_late_by_turns_have_uneven_data(late: Sequence[int], ranks: int) -> None:
    verdict = by_turns(late, ranks).engine.verdict
    assert (verdict.symptom, verdict.cause, verdict.culprits) == ("straggler", "straggler-rank", ())
    numbers = ", ".join(map(str, sorted(set(late))))
    assert verdict.detail.startswith(f"now one rank is late, now another (ranks {numbers}): their data are uneven")


@pytest.mark.parametrize("late", [(1, 1, 1, 1, 1), (0, 1, 1, 1, 1)])
def test_a_rank_that_stays_late_is_named(late: Sequence[int]) -> None:
    assert [culprit.pid for culprit in by_turns(late).engine.verdict.culprits] == [200]
