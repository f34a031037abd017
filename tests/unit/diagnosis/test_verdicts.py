"""Each cause is named from a scene that shows its mechanism; what is no trouble is not called one."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

from gputop.diagnosis.causes import Judge, judges
from gputop.diagnosis.causes.loaders import LOADERS
from gputop.findings.text import explain_lines
from gputop.findings.verdict import CAUSES, GPU_LOST, SYMPTOMS, TRAINER_STATES, UNCOSTED, WORKER_STATES
from gputop.model.frame import ReadLimit
from gputop.stream.session import STATE_WORDS
from tests.unit.diagnosis.causes import alone, beside_another_training, cpu_contention, starved, storm, thrashing, throttled
from tests.unit.diagnosis.causes_behind import FLOCK, dead_game, lock_of_a_file, lock_of_the_trainers_file, programs_on_the_disk
from tests.unit.diagnosis.scene import DISK, EPOLL, FUTEX, HIDDEN, ON_CPU, QUEUE, SLEEP, SOCKET, START_S, Proc, Scene, training


def respawning() -> Scene:
    """New workers every two seconds, busy starting; the trainer waits for them most of the time."""
    scene = starved(util=80.0, run=0.9, looks=[ON_CPU]).play(3)
    for epoch in range(1, 6):
        for pid in [pid for pid in scene.procs if pid != 100]:
            scene.drop(pid)
        like = {"ppid": 100, "comm": "pt_data_worker", "start_ticks": 60_000 + epoch, "run": 0.9, "looks": [ON_CPU]}
        born = [Proc(1000 * epoch + i, **like) for i in range(2)]
        scene.gpus[0]["util_pct"] = 0.0
        scene.add(*born).play(1.4)
        scene.gpus[0]["util_pct"] = 80.0
        scene.play(0.6)
    return scene


def test_respawned_workers():
    verdict = respawning().engine.verdict
    assert (verdict.symptom, verdict.cause) == ("input-bound", "worker-respawn")
    assert "persistent_workers=True" in verdict.fixes[0].command


def test_between_two_sets_of_workers_the_next_one_is_as_large_as_those_before():
    scene = respawning()
    for pid in [pid for pid in scene.procs if pid != 100]:
        scene.drop(pid)
    verdict = scene.play(0.4).engine.verdict
    assert verdict.cause == "worker-respawn"
    assert "num_workers=2," in verdict.fixes[0].command


def test_a_narrow_link_is_told_with_its_lanes():
    scene = alone(50.0, 0.5, [ON_CPU], pcie_rx_bytes_per_s=0.5e9, pcie_gen=3, pcie_width=1, pcie_width_max=16).play(6)
    assert scene.engine.verdict.cause == "pcie-degraded"
    assert "GPU 0 has 1 of its 16 PCIe lanes" in scene.engine.verdict.fixes[0].text


@pytest.mark.parametrize(
    ("version", "limit", "says", "command"),
    [
        (2, ReadLimit("/job", "8:0", 20_000_000), "may read 20.0 MB/s from device 8:0", "echo '8:0 rbps=max' > /sys/fs/cgroup/job/io.max"),
        (1, ReadLimit("/job", "8:0", None, 220), "may read 220 times a second",
         "echo '8:0 0' > /sys/fs/cgroup/blkio/job/blkio.throttle.read_iops_device"),
    ],
)  # fmt: skip
def test_a_limit_of_reading_is_told_and_how_to_lift_it(version: int, limit: ReadLimit, says: str, command: str):
    scene = starved(run=0.15, looks=[DISK], read_bytes=20_000_000)
    scene.cgroups = {"/job": {"read_limit": limit, "version": version}}
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "disk-io"
    assert says in verdict.detail
    assert verdict.fixes[0].command == command


@pytest.mark.parametrize(("limit_bytes", "cause"), [(22_000_000, "disk-io"), (90_000_000, "lock-contention")])
def test_who_waits_for_the_one_that_reads_at_the_limit_waits_for_the_disk(limit_bytes: int, cause: str):
    scene = starved(run=0.02, looks=[FUTEX, FUTEX, FUTEX, DISK], read_bytes=10_000_000)
    scene.cgroups = {"/job": {"read_limit": ReadLimit("/job", "8:0", limit_bytes)}}
    assert scene.play(6).engine.verdict.cause == cause


def test_respawned_workers_that_import_for_long():
    """Three seconds on their CPUs, until they have their name: no transform of theirs is slow."""
    spawn = {"ppid": 100, "cmdline": ["python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"]}
    scene = starved(util=100.0, run=0.1).play(4)
    for epoch in range(1, 4):
        for pid in [pid for pid in scene.procs if pid != 100]:
            scene.drop(pid)
        born = [Proc(1000 * epoch + i, start_ticks=60_000 + 500 * epoch + i, run=0.95, looks=[ON_CPU], **spawn) for i in range(2)]
        scene.gpus[0]["util_pct"] = 0.0
        scene.add(*born).play(3)
        for worker in born:
            worker.comm, worker.run, worker.looks = "pt_data_worker", 0.1, [QUEUE]
        scene.gpus[0]["util_pct"] = 100.0
        scene.play(2)
    assert {incident.cause for incident in scene.engine.incidents} == {"worker-respawn"}
    assert scene.engine.ledger.by_cause["worker-respawn"] > 0.9 * scene.engine.ledger.gpu_lost_s


def test_respawned_workers_that_then_keep_up_are_neither_slow_nor_too_few():
    """The GPU waited for their first batches alone, which the window remembers when they are no longer young."""
    scene = starved(util=95.0, run=0.4).play(4)
    for epoch in range(1, 4):
        for pid in [pid for pid in scene.procs if pid != 100]:
            scene.drop(pid)
        like = {"ppid": 100, "comm": "pt_data_worker", "start_ticks": 60_000 + 600 * epoch}
        born = [Proc(1000 * epoch + i, run=0.88, looks=[ON_CPU], **like) for i in range(2)]
        scene.gpus[0]["util_pct"] = 5.0
        scene.add(*born).play(2.6)
        for worker in born:
            worker.run = 0.5
        scene.gpus[0]["util_pct"] = 95.0
        scene.play(4)
    assert {incident.cause for incident in scene.engine.incidents} == {"worker-respawn"}


def test_where_gpm_tells_no_more_nvml_counts():
    scene = alone(97.0, 0.05, [SLEEP], gr_active_pct=25.0, sm_active_pct=25.0, pcie_rx_bytes_per_s=40e9, pcie_gen=5, pcie_width=16).play(6)
    assert scene.engine.verdict.symptom == "transfer-bound"
    del scene.gpus[0]["gr_active_pct"]
    scene.gpus[0]["sm_active_pct"] = 90.0
    scene.play(8)
    assert scene.engine.verdict.symptom == "healthy"


def healthy_scenes() -> list[tuple[str, Scene]]:
    asleep = training(util=99.0, workers=8)
    spinning = alone(99.0, 1.0, [ON_CPU])
    busy_workers = training(util=97.0, workers=2, run=0.9, looks=[ON_CPU])
    unreadable = training(util=99.0, workers=4, run=0.2, looks=[HIDDEN])
    neighbours = training(util=98.0, workers=2, run=0.3, wait=0.3)
    neighbours.add(Proc(900, comm="hog", cmdline=["hog"], run=2.0, looks=[ON_CPU]))
    young = training(util=0.0, workers=2, run=0.9, looks=[ON_CPU])
    young.procs[100].start_ticks, young.procs[100].looks = 99_500, [QUEUE]
    clocks = {"throttle_mask": 0x4, "sm_clock_mhz": 1400, "sm_clock_max_mhz": 1980, "power_limit_default_w": 400.0}
    working = alone(96.0, 0.3, [ON_CPU], sm_active_pct=70.0, **clocks)
    scenes = {"asleep": asleep, "spinning": spinning, "busy workers": busy_workers, "unreadable": unreadable, "neighbours": neighbours,
              "starting": young, "power capped by its own work": working}  # fmt: skip
    return list(scenes.items())


@pytest.mark.parametrize(("name", "scene"), healthy_scenes(), ids=[name for name, _ in healthy_scenes()])
def test_healthy_stays_healthy(name: str, scene: Scene):
    scene.play(20)
    assert scene.engine.verdict.cause == "none"
    assert scene.engine.verdict.symptom == ("idle" if name == "starting" else "healthy")
    assert scene.engine.incidents == []
    assert not any(state.starving for state in scene.engine.states.values())


def test_a_screen_has_a_word_for_every_state():
    assert set(STATE_WORDS) >= {*WORKER_STATES, *TRAINER_STATES}


def test_every_cause_has_one_judge_and_every_judge_a_word_of_the_list():
    causes = [judge.cause for judge in judges()]
    assert sorted(causes) == sorted(set(CAUSES) - {"none", "unexplained", *UNCOSTED})
    assert {judge.symptom for judge in judges()} <= set(SYMPTOMS)
    rows = Counter(row for judge in judges() for row in judge.rows)
    assert {row for row, times in rows.items() if times > 1} == set(LOADERS), (
        "a leaf is one cause's, but for work of loaders: another cause needs a leaf of its own, to which a price moves its part"
    )
    assert {judge.cause for judge in judges() if not judge.rows} == {GPU_LOST}, "no walk begins at a GPU that is lost"


@pytest.mark.parametrize("judge", judges(), ids=lambda judge: judge.cause)
def test_every_cause_explains_itself_in_four_parts(judge: Judge):
    text = sys.modules[judge.tell.__module__].__doc__ or ""
    heads = [judge.cause, "Costs", "Seen", "Abstains"]
    assert [line.partition(":")[0] for line in text.splitlines() if line.startswith(tuple(f"{head}: " for head in heads))] == heads


def server(util: float = 12.0) -> Scene:
    """A process with a context on GPU 0 that waits for requests."""
    scene = training(util=util).drop(101, 102)
    scene.procs[100].looks, scene.procs[100].run = [EPOLL, EPOLL, EPOLL, SLEEP], 0.02
    return scene


@pytest.mark.parametrize("util", [0.0, 12.0, 30.0])
def test_a_server_between_requests_is_idle_and_not_ill(util: float):
    scene = server(util).play(60)
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("idle", "none")
    assert scene.engine.incidents == []
    assert scene.engine.explain().ledger.gpu_lost_s is None


def test_what_a_brake_costs_is_counted_from_the_clock_before_it():
    """A card works below its highest clock by its nature; where nobody saw that, the highest counts."""
    scene = alone(98.0, 0.05, [SLEEP], throttle_mask=0x4, sm_clock_mhz=2500, sm_clock_max_mhz=3100, power_limit_default_w=300.0)
    braked = {"throttle_mask": 0x8, "sm_clock_mhz": 1250}
    scene.gpus[0] |= {"power_limit_w": 300.0}
    scene.play(5)
    scene.gpus[0] |= braked
    verdict = scene.play(5).engine.verdict
    assert (verdict.cause, verdict.lost_pct) == ("gpu-throttle", pytest.approx(51, abs=2))
    scene = alone(98.0, 0.05, [SLEEP], sm_clock_max_mhz=3100, **braked)
    assert scene.play(5).engine.verdict.lost_pct == pytest.approx(60.5, abs=2)


def beside_a_store(grows_bytes: int, own_bytes: int, ppid: int = 1) -> Scene:
    """A job short of memory, and somebody who holds more and more."""
    scene = thrashing()
    scene.procs[101].grows_bytes = own_bytes
    return scene.add(Proc(900, ppid, comm="vineyardd", cmdline=["/bin/vineyardd"], looks=[EPOLL], grows_bytes=grows_bytes)).play(5)


def test_who_has_grown_is_blamed_for_the_memory_that_a_job_lacks():
    verdict = beside_a_store(50_000_000, 1_000_000).engine.verdict
    assert (verdict.cause, [(culprit.pid, culprit.name) for culprit in verdict.culprits]) == ("memory-pressure", [(900, "vineyardd")])
    assert "outside of the job grew vineyardd (900) by" in verdict.detail
    assert any(fix.command == "ps -o pid,ppid,rss,args -p 900" for fix in verdict.fixes)


def test_who_was_born_meanwhile_held_nothing_before():
    scene = thrashing().play(3)
    scene.add(Proc(900, comm="vineyardd", cmdline=["/bin/vineyardd"], looks=[EPOLL], start_ticks=(START_S + 3) * 100)).play(3)
    assert [culprit.pid for culprit in scene.engine.verdict.culprits] == [900]


@pytest.mark.parametrize("scene", [(50_000_000, 90_000_000), (5_000_000, 0), (50_000_000, 1_000_000, 100)])
def test_not_so_who_has_grown_less_than_the_job_or_hardly_or_belongs_to_it(scene: tuple[int, ...]):
    verdict = beside_a_store(*scene).engine.verdict
    assert (verdict.cause, verdict.culprits) == ("memory-pressure", ())


@pytest.mark.parametrize(("cgroup", "blamed"), [("/job/sidecar", [900]), ("/system", [])])
def test_of_a_control_group_that_is_full_only_who_is_inside_is_blamed(cgroup: str, blamed: list[int]):
    scene = thrashing()
    scene.cgroups = {"/job": {"mem_bytes": 260e6, "mem_limit_bytes": 270e6, "mem_file_bytes": 250e6, "refaults": 3000.0}}
    grower = Proc(900, comm="cache", cmdline=["/bin/cache"], looks=[EPOLL], grows_bytes=50_000_000, info={"cgroup": cgroup})
    verdict = scene.add(grower).play(5).engine.verdict
    assert (verdict.cause, [culprit.pid for culprit in verdict.culprits]) == ("memory-pressure", blamed)
    assert any(fix.text.startswith("Or read less: 250 of its 270 MB") for fix in verdict.fixes)


def test_who_took_less_than_a_tenth_of_what_a_full_group_has_is_innocent():
    scene = thrashing()
    scene.cgroups = {"/job": {"mem_bytes": 3.95e9, "mem_limit_bytes": 4e9, "mem_file_bytes": 3e9, "refaults": 3000.0}}
    grower = Proc(900, comm="cache", cmdline=["/bin/cache"], looks=[EPOLL], grows_bytes=50_000_000, info={"cgroup": "/job/sidecar"})
    verdict = scene.add(grower).play(5).engine.verdict
    assert (verdict.cause, verdict.culprits) == ("memory-pressure", ())


def test_of_a_job_that_stands_still_the_one_that_waits_for_something_else_is_named():
    assert "worker 2 (103) is waiting for a lock, unlike the others" in dead_game().play(5).engine.verdict.detail


def test_what_a_servers_threads_wait_for_is_their_clients_business():
    scene = server(30.0)
    scene.procs[100].looks, scene.procs[100].info = [EPOLL], {"uses_cuda": True, "sockets": "listening"}
    scene.procs[100].threads, scene.procs[100].thread_looks = {151: (0.01, 0.0)}, [SOCKET]
    assert (scene.play(30).engine.verdict.symptom, scene.engine.verdict.cause) == ("idle", "none")
    assert scene.engine.incidents == []


@pytest.mark.parametrize(("sockets", "verdict"), [("connected", ("input-bound", "network-io")), ("none", ("idle", "none"))])
def test_an_event_loop_whom_nobody_can_ask_waits_for_whom_it_asked(sockets: str, verdict: tuple[str, str]):
    scene = server(30.0)
    scene.procs[100].looks, scene.procs[100].info = [EPOLL], {"uses_cuda": True, "sockets": sockets}
    assert (scene.play(10).engine.verdict.symptom, scene.engine.verdict.cause) == verdict


def test_its_idle_children_are_no_loader_that_hangs():
    scene = server(30.0)
    scene.procs[100].looks = [EPOLL]
    for pid, look in ((101, SLEEP), (102, FUTEX)):
        scene.add(Proc(pid, ppid=100, run=0.001, looks=[look], switches=0, start_ticks=50_100))
    scene.play(30)
    assert {role.kind for pid, role in scene.engine.roles.items() if pid != 100} == {"worker"}
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("idle", "none")
    assert scene.engine.incidents == []


def test_an_idle_context_does_not_hide_a_training_in_trouble():
    scene = cpu_contention()
    scene.gpus[1] = {"util_pct": 0.0, "pids": [500]}
    scene.add(Proc(500, cmdline=["python", "-m", "ipykernel"], looks=[EPOLL], info={"uses_cuda": True}, start_ticks=20_000)).play(8)
    assert (scene.engine.verdict.cause, scene.engine.verdict.trainer_pid) == ("cpu-contention", 100)
    assert [incident.trainer_pid for incident in scene.engine.incidents] == [100]


@pytest.mark.parametrize("cmdline", [["python", "other.py"], ["python", "-c", "from multiprocessing.spawn import spawn_main"]])
def test_another_training_is_named_as_the_one_that_takes_the_cpus(cmdline: list[str]):
    scene = beside_another_training()
    for pid in range(201, 205):
        scene.procs[pid].cmdline = cmdline
    verdict = scene.play(8).engine.verdict
    assert {culprit.pid for culprit in verdict.culprits} == {201, 202, 203, 204}
    assert "pt_data_worker of other.py (201, 202, 203, 204)" in verdict.detail


@pytest.mark.parametrize(("uid", "by_root"), [(1000, False), (1001, True)])
def test_two_trainings_get_cpus_of_their_own_and_none_loses_its_priority(uid: int, by_root: bool):
    scene = beside_another_training()
    for proc in scene.procs.values():
        proc.info = {**proc.info, "uid": uid if proc.pid >= 200 else 1000}
    first, *others = scene.play(8).engine.verdict.fixes
    masks = re.findall(r"for p in ([\d ]+); do taskset -apc (\S+) \$p", first.command)
    assert masks == [("100 101 102", "0-1"), ("200 201 202 203 204", "2-3")]
    assert first.command.startswith("sudo") == by_root
    assert not any(word in fix.command for fix in (first, *others) for word in ("chrt", "CPUWeight", "cpu.weight", "autogroup"))


def test_a_stranger_beside_two_trainings_still_yields():
    scene = beside_another_training()
    scene.add(Proc(900, comm="java", cmdline=["/bin/java"], run=0.9, looks=[ON_CPU]))
    commands = [fix.command for fix in scene.play(8).engine.verdict.fixes]
    assert "chrt --idle --all-tasks --pid 0 900" in commands
    assert not any("chrt" in command and "200" in command for command in commands)


def test_what_nobody_could_name_is_said_to_be_short_lived():
    verdict = storm().play(8).engine.verdict
    assert verdict.culprits == ()
    assert "short-lived processes took 1.1 of 2 cores" in verdict.detail


def test_of_dozens_that_take_the_cpus_some_are_named_and_none_is_called_short_lived():
    scene = starved(run=0.3, wait=0.7, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy = 16, [1.0] * 16
    for pid in range(900, 948):
        scene.add(Proc(pid, comm="solver", cmdline=["/bin/solver"], run=0.3, looks=[ON_CPU]))
    scene.play(8)
    assert "more), others took" in scene.engine.verdict.detail
    lines = [text.strip() for line in explain_lines(scene.engine.explain()) for text, style in line if style == "culprit"]
    assert len(lines) == 9
    assert lines[-1].startswith("4 more, ")


def test_who_copies_at_the_speed_of_the_link_is_not_told_to_pin_his_memory():
    pinned = alone(97.0, 0.05, [SLEEP], gr_active_pct=25.0, pcie_rx_bytes_per_s=40e9, pcie_gen=5, pcie_width=16).play(6)
    pageable = alone(25.0, 0.9, [ON_CPU], gr_active_pct=20.0, pcie_rx_bytes_per_s=8e9, pcie_gen=5, pcie_width=16).play(6)
    told = [[fix.command for fix in scene.engine.verdict.fixes if "pin_memory" in fix.command] for scene in (pinned, pageable)]
    assert [len(commands) for commands in told] == [0, 1]
    assert pinned.engine.verdict.fixes[0].command.startswith("with torch.cuda.stream(")


def test_imports_and_weights_that_take_minutes_are_a_start_and_no_fault():
    scene = alone(0.0, 1.0, [ON_CPU]).drop(101, 102)
    scene.procs[100].start_ticks = scene.ticks
    scene.play(90)
    verdict = scene.engine.verdict
    assert (verdict.symptom, verdict.cause) == ("idle", "none")
    assert "is starting for 90 s now" in verdict.headline
    assert not scene.engine.incidents
    assert not scene.engine.explain().ledger.gpu_lost_s, "there is no GPU time to lose yet"
    scene.play(230)
    assert scene.engine.verdict.cause == "main-thread-preprocessing"


def test_without_a_gpu_only_the_host_is_spoken_of():
    scene = cpu_contention()
    scene.gpus = {}
    scene.play(5)
    verdict = scene.engine.verdict
    assert (verdict.symptom, verdict.cause, verdict.gpu, verdict.lost_pct) == ("input-bound", "cpu-contention", None, None)
    assert "host side only" in verdict.headline
    assert scene.engine.explain().ledger.gpu_lost_s is None


@pytest.mark.parametrize(
    ("look", "uses_cuda", "state"), [(FUTEX, True, "waiting-gpu"), (EPOLL, None, "waiting-gpu"), (FUTEX, False, "blocked")]
)
def test_a_wait_that_may_be_for_a_gpu_nobody_measures_is_no_trouble(look: dict, uses_cuda: bool | None, state: str):
    scene = training()
    scene.gpus = {}
    scene.procs[100].looks, scene.procs[100].info = [look], {"uses_cuda": uses_cuda}
    verdict = scene.play(6).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("idle" if uses_cuda is False else "healthy", "none")
    assert verdict.headline == "train.py (100) computes 10% of the time; no GPU is measured (host side only)"
    assert scene.engine.states[100].state == state
    assert scene.engine.incidents == []


def test_an_empty_machine_is_idle():
    scene = Scene(procs={900: Proc(900, comm="sshd", cmdline=["sshd"])}).play(3)
    assert (scene.engine.verdict.symptom, scene.engine.verdict.cause) == ("idle", "none")
    assert scene.engine.explain().incidents == []


def test_a_gpu_that_is_no_longer_read_is_not_judged():
    scene = cpu_contention().play(5)
    scene.gpus = {}
    scene.play(6)
    assert scene.engine.verdict.cause == "none"
    assert "no fresh reading" in scene.engine.verdict.headline


@pytest.mark.parametrize(("run", "probed", "says"), [(1.0, False, True), (0.8, False, False), (1.0, True, False)])
def test_a_main_thread_that_never_sleeps_may_spin_in_waits_for_its_gpu(run: float, probed: bool, says: bool):
    scene = training(util=40.0)
    scene.procs[100].run, scene.procs[100].looks = run, [ON_CPU, ON_CPU, ON_CPU, ON_CPU, FUTEX] if run < 1.0 else [ON_CPU]
    if probed:
        scene.probed, scene.calls[100, "cudaMemcpyAsync HtoD"] = True, (10, 0.01, 1000)
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "main-thread-preprocessing"
    assert ("spin" in verdict.detail, any(fix.command == "sudo gputop" for fix in verdict.fixes)) == (says, says)
    assert (verdict.confidence <= 0.5) == says


def test_programs_are_told_by_all_samples_and_what_was_seen_of_their_lives():
    scene = programs_on_the_disk()
    verdicts = [scene.play(0.2).engine.verdict for _ in range(20)]
    assert {verdict.cause for verdict in verdicts} == {"disk-io"}
    assert verdicts[-1].evidence[0].value == 100, "one that waits for its reader is late for nothing"


def test_all_of_a_crowd_are_blamed_and_the_first_told():
    scene = cpu_contention().drop(900)
    scene.add(*(Proc(900 + i, comm="postgres", cmdline=["postgres"], run=0.4, looks=[ON_CPU]) for i in range(8)))
    verdict = scene.play(6).engine.verdict
    assert sorted(culprit.pid for culprit in verdict.culprits) == list(range(900, 908))
    assert "and 3 more) took" in verdict.detail
    assert len(verdict.fixes) == 1
    assert all(f" {900 + i}" in verdict.fixes[0].command for i in range(8))


def test_who_else_uses_up_the_quota_is_blamed():
    scene = throttled()
    scene.add(Proc(900, comm="rsync", cmdline=["rsync"], run=0.2, info={"cgroup": "/job/exec"}))
    scene.add(Proc(901, comm="xz", cmdline=["xz"], run=0.3, info={"cgroup": "/jobs"})).play(6)
    verdict, facts = scene.engine.verdict, scene.engine.facts
    assert facts is not None
    blamed = [(culprit.pid, culprit.name, culprit.cpu_s) for culprit in verdict.culprits]
    assert blamed == [(900, "rsync", pytest.approx(0.2 * facts.seconds, rel=0.1))]
    assert "rsync (900) in the same group took 0.2" in verdict.detail
    assert verdict.fixes[0].command.endswith("-p 900")


def test_who_holds_the_lock_of_a_file_is_named():
    verdict = lock_of_a_file().play(6).engine.verdict
    assert "label-tool (900) held it in 100% of the samples" in verdict.detail
    assert [(culprit.pid, culprit.name) for culprit in verdict.culprits] == [(900, "label-tool")]


def test_who_holds_the_lock_of_a_file_that_the_trainer_itself_wants_is_named():
    verdict = lock_of_the_trainers_file().play(6).engine.verdict
    assert verdict.detail.startswith("the main thread of train.py (100) waited for the lock of a file ")
    assert [(culprit.pid, culprit.name) for culprit in verdict.culprits] == [(900, "cache")]
    assert [victim.pid for victim in verdict.victims] == [100]
    assert verdict.fixes[-1].command == "gputop stacks 900 --duration 5"
    scene = alone(30.0, 0.02, [FLOCK, FLOCK, FLOCK, SLEEP | {"locked_by": 900}])  # someone's, but not what it waits for
    assert scene.play(6).engine.verdict.cause == "unexplained"


def test_of_a_pinned_jobs_cpu_others_took_what_its_workers_left():
    """They run on both, and one of them may not run there at all."""
    scene = starved(run=0.2, wait=0.75, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    for pid in (101, 102):
        scene.procs[pid].info["cpus_allowed"] = "1"
    scene.procs[100].run = 0.0
    scene.add(Proc(900, comm="hog", cmdline=["/bin/hog"], run=1.0, looks=[ON_CPU], processor=1))
    scene.add(Proc(901, comm="render", cmdline=["/bin/render"], run=0.3, looks=[ON_CPU], info={"cpus_allowed": "0"}))
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "cpu-contention"
    assert "hog (900) took 0.6 of 1 core" in verdict.detail
    assert [culprit.name for culprit in verdict.culprits] == ["hog"]
