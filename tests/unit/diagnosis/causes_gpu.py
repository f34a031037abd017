"""Scenes of what a trainer does with its GPU: copies, waits, launches, clocks."""

from __future__ import annotations

from collections.abc import Callable

from gputop.model.frame import ThreadInfo
from tests.unit.diagnosis.causes import alone, starved
from tests.unit.diagnosis.scene import EPOLL, ON_CPU, QUEUE, READ, SLEEP, TURN, Proc, Scene, training


def transfer() -> Scene:
    return alone(30.0, 0.05, [SLEEP], pcie_rx_bytes_per_s=4e9)


def transfer_over_a_narrow_link() -> Scene:
    return alone(50.0, 0.5, [ON_CPU], pcie_rx_bytes_per_s=0.5e9, pcie_gen=3, pcie_width=1)


def probed_transfer() -> Scene:
    scene = alone(30.0, 0.6, [ON_CPU])
    scene.probed, scene.calls = True, {(100, "cuMemcpyHtoD_v2"): (10, 0.6, 4e9), (100, "cuStreamSynchronize"): (10, 0.3, 0)}
    return scene


def copies_that_count_as_work() -> Scene:
    """From pinned memory at the link's speed: NVML's utilization says 97 %, and kernels run a quarter of the time."""
    return alone(97.0, 0.05, [SLEEP], gr_active_pct=25.0, sm_active_pct=25.0, pcie_rx_bytes_per_s=40e9, pcie_gen=5, pcie_width=16)


def collating_before_light_kernels() -> Scene:
    """Its GPU draws little while it works, but is given few kernels: what the main thread does before them is what it waits for."""
    scene = alone(45.0, 0.97, [ON_CPU], power_w=90.0, power_limit_w=300.0).drop(101, 102)
    scene.probed, scene.calls, scene.launches = True, {(100, "cuStreamSynchronize"): (8, 0.43, 0)}, {100: 200.0}
    return scene


def collating_by_turns_with_light_kernels() -> Scene:
    """The same without probes, where it sleeps while the GPU works: who launches kernels does so while they run."""
    return alone(45.0, 0.54, [ON_CPU, SLEEP], power_w=90.0, power_limit_w=300.0).drop(101, 102)


def copies_over_one_lane() -> Scene:
    """The copies do not keep the calls, and the link's counter keeps time with the steps: it sees next to nothing of what they copy."""
    scene = training(util=33.0, run=0.1)
    scene.gpus[0] |= {"pcie_gen": 3, "pcie_width": 1, "pcie_width_max": 16, "pcie_rx_bytes_per_s": 2_000_000, "pcie_tx_bytes_per_s": 0}
    scene.procs[100].run, scene.procs[100].looks, scene.probed = 0.01, [EPOLL], True
    scene.calls = {(100, "cuMemcpyHtoDAsync_v2"): (6.6, 0.0002, 5.5e8), (100, "cuStreamSynchronize"): (6.6, 0.98, 0)}
    return scene


def small_pieces_one_by_one() -> Scene:
    """``piece.to("cuda")`` of what is not pinned copies, and waits for that copy: no storm of waits for kernels."""
    scene = alone(45.0, 0.9, [ON_CPU]).drop(101, 102)
    scene.probed = True
    scene.calls = {(100, "cuMemcpyHtoDAsync"): (5000, 0.15, 1e8), (100, "cuStreamSynchronize"): (5010, 0.6, 0)}
    return scene


def quick_steps_one_wait_each() -> Scene:
    """A wait for each copy, too; but longer than so few bytes take: it is for the step."""
    scene = alone(66.0, 0.37, [SLEEP]).drop(101, 102)
    scene.probed = True
    scene.calls = {(100, "cuMemcpyHtoDAsync"): (4360, 0.13, 2.2e6), (100, "cuStreamSynchronize"): (4360, 0.61, 0)}
    return scene


def loading_before_item() -> Scene:
    """`.item()` copies four bytes, and waits for the whole step: the GPU's time, not the copy's."""
    scene = alone(50.0, 0.45, [ON_CPU, SLEEP]).drop(101, 102)
    scene.probed, scene.calls = True, {(100, "cuMemcpyHtoDAsync_v2"): (10, 0.01, 2e6), (100, "cuMemcpyDtoH_v2"): (10, 0.5, 40)}
    return scene


def launching_short_kernels(per_s: float = 40_000.0) -> Scene:
    """They draw as much power as any, but each takes the host longer than the GPU."""
    scene = alone(35.0, 0.9, [ON_CPU])
    scene.probed, scene.launches = True, {100: per_s}
    scene.calls = {(100, "cuMemcpyHtoDAsync"): (25, 0.01, 2e6), (100, "cuStreamSynchronize"): (25, 0.02, 0)}
    return scene


def launching_few_kernels() -> Scene:
    """What takes its time is not the launching."""
    return launching_short_kernels(3000.0)


def computing_between_hand_overs() -> Scene:
    """Its many short sleeps take its batches: it is on a CPU while its GPU works, and so waits for it hardly ever."""
    scene = alone(32.0, 0.93, [ON_CPU] * 9 + [READ])
    scene.procs[100].switches = 450
    return scene


def reading_back() -> Scene:
    """Copies from the GPU that do take the time."""
    scene = alone(30.0, 0.1, [SLEEP])
    scene.probed, scene.calls = True, {(100, "cuMemcpyDtoH_v2"): (10, 0.65, 2e9)}
    return scene


def reading_back_for_histograms() -> Scene:
    """Gradients are copied from the GPU and looked at; the copies take little of their calls' time, which wait for the kernels before."""
    scene = alone(78.0, 0.95, [ON_CPU], pcie_gen=5, pcie_width=16)
    scene.probed, scene.calls = True, {
        (100, "cuMemcpyDtoHAsync_v2"): (190, 0.75, 170e6), (100, "cuMemcpyHtoDAsync_v2"): (21, 0.001, 3e6),
    }  # fmt: skip
    scene.hists = {(100, "cuMemcpyDtoHAsync_v2"): {35: (169, 0.02), 150: (21, 0.73)}}
    return scene


def optimizer_on_the_host() -> Scene:
    """Gradients come in large pieces, weights go back, and all CPUs work between; batches are ready."""
    scene = alone(35.0, 0.6, [ON_CPU], {150: (0.55, 0.02)})
    scene.probed, scene.calls = True, {(100, "cuStreamSynchronize"): (10, 0.3, 0)}
    scene.calls |= {(100, "cuMemcpyDtoHAsync_v2"): (40, 0.05, 4e8), (100, "cuMemcpyHtoDAsync_v2"): (50, 0.05, 4.2e8)}
    return scene


def optimizer_on_the_host_by_its_link() -> Scene:
    """The same without probes: one thread updates, after a backward pass."""
    scene = alone(40.0, 0.62, [ON_CPU, SLEEP], {150: (0.02, 0.0)}, pcie_rx_bytes_per_s=9e8, pcie_tx_bytes_per_s=8e8)
    scene.procs[100].info = {"uses_cuda": True, "threads": [ThreadInfo(150, "pt_autograd_0")]}
    return scene


def scoring_masks() -> Scene:
    """As much comes back as went there, but it is results that one thread scores."""
    scene = alone(35.0, 0.62, [ON_CPU])
    scene.probed, scene.calls = True, {(100, "cuStreamSynchronize"): (10, 0.3, 0)}
    scene.calls |= {(100, "cuMemcpyDtoHAsync_v2"): (10, 0.05, 4e8), (100, "cuMemcpyHtoDAsync_v2"): (10, 0.02, 4e8)}
    return scene


def updating_while_batches_are_late() -> Scene:
    """The optimizer works on the host, but what its GPU waits for are batches."""
    scene = optimizer_on_the_host()
    scene.gpus[0]["util_pct"] = 15.0
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].threads = 0.15, [QUEUE], {150: (0.3, 0.0)}
    scene.calls[100, "cuStreamSynchronize"] = (10, 0.1, 0)
    for pid in (101, 102):
        scene.procs[pid].run, scene.procs[pid].looks = 0.97, [ON_CPU]
    scene.cpus, scene.cpu_busy = 2, [1.0] * 2
    return scene


def sync_storm() -> Scene:
    scene = alone(60.0, 0.4, [ON_CPU, SLEEP])
    scene.procs[100].switches = 4000
    return scene


def probed_sync_storm() -> Scene:
    scene = alone(60.0, 0.95, [ON_CPU])
    scene.probed, scene.calls = True, {(100, "cuStreamSynchronize"): (3000, 0.5, 0)}
    return scene


def sync_storm_on_a_busy_host() -> Scene:
    """Half of the time lies in the run queue, a little after each of thousands of wake-ups."""
    scene = sync_storm()
    scene.gpus[0]["util_pct"], scene.procs[100].run, scene.procs[100].wait, scene.cpu_busy = 30.0, 0.2, 0.5, [1.0] * 4
    return scene.add(Proc(900, comm="hog", cmdline=["/bin/hog"], run=2.5, looks=[ON_CPU]))


def probed_items() -> Scene:
    """`.item()`: a copy of four bytes, and the wait is inside it."""
    scene = alone(60.0, 0.4, [ON_CPU])
    copies = {(100, "cuMemcpyDtoHAsync_v2"): (1500, 0.5, 6000), (100, "cuMemcpyHtoDAsync_v2"): (15, 0.01, 1e7)}
    scene.probed, scene.calls = True, copies | {(100, "cuStreamSynchronize"): (1500, 0.05, 0)}
    return scene


def probed_sync_per_layer() -> Scene:
    """Slow turns, but fifty of them in a step."""
    scene = alone(55.0, 0.45, [ON_CPU])
    calls = {(100, "cuStreamSynchronize"): (370, 0.55, 0), (100, "cuMemcpyHtoDAsync_v2"): (8, 0.001, 8e6)}
    scene.probed, scene.calls = True, calls
    return scene


def probed_clipping() -> Scene:
    """An `.item()` for each small tensor of a step, behind the one that waits for the whole step."""
    scene = alone(50.0, 0.15, [ON_CPU])
    scene.probed, scene.calls = True, {(100, "cuStreamSynchronize"): (3063, 0.75, 0), (100, "cuMemcpyHtoDAsync_v2"): (13, 0.001, 8e6)}
    scene.hists = {(100, "cuStreamSynchronize"): {40: (3050, 0.42), 150: (13, 0.33)}}
    return scene


def probed_metrics() -> Scene:
    """As many calls, but the first of a step waits for the GPU and the others find it done: the trainer computes between them."""
    scene = probed_sync_per_layer()
    scene.hists = {(100, "cuStreamSynchronize"): {40: (362, 0.004), 150: (8, 0.546)}}
    return scene


def counting_hits() -> Scene:
    """`if best[i] == i` of each sample: one wait for the step's work, then hundreds that find the only kernel before them done."""
    scene = alone(66.0, 0.98, [ON_CPU])
    scene.probed, scene.launches = True, {100: 19_300.0}
    scene.calls = {(100, "cuStreamSynchronize"): (19_650, 0.74, 0), (100, "cuMemcpyDtoHAsync_v2"): (19_650, 0.05, 19_650)}
    scene.hists = {(100, "cuStreamSynchronize"): {35: (19_640, 0.1), 150: (13, 0.64)}}
    return scene


def answering_token_by_token() -> Scene:
    """A generating model reads each token back, and finds its GPU done long since: it is late by the kernels before that. What it copies
    on the GPU nobody waits for."""
    scene = alone(23.0, 0.99, [ON_CPU])
    scene.probed, scene.launches = True, {100: 50_000.0}
    scene.calls = {
        (100, "cuStreamSynchronize"): (410, 0.003, 0), (100, "cuMemcpyDtoHAsync_v2"): (390, 0.004, 3000),
        (100, "cuMemcpyDtoDAsync"): (1560, 0.01, 7e7), (100, "cuMemcpyHtoDAsync_v2"): (18, 0.001, 2e4),
    }  # fmt: skip
    return scene


def sampled(sync: float, copy: float, launch: float, waits_per_s: float, util: float = 50.0) -> Scene:
    """Without probes, and always on a CPU: samples tell what it does there."""
    scene = alone(util, 0.98, [ON_CPU])
    scene.sampled = {100: (sync, copy, launch, waits_per_s)}
    return scene


def sampled_storm() -> Scene:
    return sampled(0.5, 0.0, 0.02, 300.0)


def sampled_steps() -> Scene:
    """It waits as long, but for each step once: what it does between these keeps the GPU."""
    return sampled(0.5, 0.0, 0.0, 20.0)


def asking_a_program_each_step() -> Scene:
    """As loggers ask nvidia-smi, with its output captured: samples tell the waits for the GPU, and the rest it polls pipes."""
    scene = alone(58.0, 0.58, [ON_CPU] * 6 + [{"state": "S", "syscall": 7, "syscall_arg": -1}] * 4)
    scene.sampled, scene.procs[100].children = {100: (0.57, 0.0, 0.0, 9.0)}, 0.36
    return scene.play(1.0, 0.2)  # from its first step on, or these would be pauses


def sampled_computing() -> Scene:
    return sampled(0.0, 0.0, 0.0, 0.0)


def sampled_launches() -> Scene:
    return sampled(0.0, 0.0, 0.15, 0.0, util=35.0)


def sampled_copies() -> Scene:
    """From memory that is not pinned: the main thread copies itself."""
    scene = sampled(0.1, 0.6, 0.0, 20.0, util=30.0)
    scene.gpus[0] |= {"pcie_rx_bytes_per_s": 4e8}
    return scene


def sampled_beside_rollouts() -> Scene:
    """It spins while its GPU works, so what it sleeps is for its threads, of which one at a time plays."""
    threads = {151 + i: (0.147, 0.02) for i in range(6)}
    scene = alone(55.0, 0.38, [TURN], threads=threads).drop(101, 102)
    scene.procs[100].thread_looks, scene.procs[100].wait = [ON_CPU, TURN, TURN, TURN, TURN, TURN], 0.05
    scene.sampled = {100: (0.49, 0.0, 0.0, 150.0)}
    return scene


def sampled_launches_beside_copies() -> Scene:
    """Much comes over the link, but who was met computing was not met copying."""
    scene = sampled_launches()
    scene.gpus[0] |= {"pcie_rx_bytes_per_s": 1.2e9}
    return scene


def small_kernels() -> Scene:
    return alone(95.0, 0.6, [ON_CPU], sm_active_pct=5.0)


def undersized() -> Scene:
    return alone(97.0, 0.05, [SLEEP], sm_active_pct=9.0)


def undersized_by_power() -> Scene:
    return alone(97.0, 0.05, [SLEEP], power_w=90.0)


def hot_gpu() -> Scene:
    return alone(98.0, 0.05, [SLEEP], throttle_mask=0x20, sm_clock_mhz=800, sm_clock_max_mhz=1980, temp_c=89.0)


def gpu_with_set_clocks() -> Scene:
    """It draws little because of that, not because it has little to do."""
    clocks = {"sm_clock_mhz": 765, "sm_clock_max_mhz": 1755, "power_limit_w": 350.0, "power_limit_default_w": 350.0}
    return alone(98.0, 0.05, [SLEEP], throttle_mask=0x2, power_w=124.0, **clocks)


def capped_gpu() -> Scene:
    """Someone lowered the power limit."""
    clocks = {"sm_clock_mhz": 900, "sm_clock_max_mhz": 1980, "power_limit_default_w": 700.0}
    return alone(98.0, 0.05, [SLEEP], throttle_mask=0x4, power_w=390.0, **clocks)


def beside_a_neighbour(own: float, theirs: float, util: float = 99.0, **neighbour: object) -> Scene:
    """A trainer with work for all of its GPU's time, and another person's process there: for each the per cent that its kernels ran."""
    scene = alone(util, 0.05, [SLEEP], sm_active_pct=90.0, pids=[100, 900], ran={100: own, 900: theirs}).drop(101, 102)
    info = {"uses_cuda": True, "libs": [], "user": "bob"}
    return scene.add(Proc(900, comm="whisper-cli", cmdline=["/usr/bin/whisper-cli"], run=0.1, looks=[SLEEP], info=info, **neighbour))


def gpu_by_turns() -> Scene:
    return beside_a_neighbour(50.0, 49.0)


def gpu_taken_at_times() -> Scene:
    """The neighbour has work for a quarter of the time only."""
    return beside_a_neighbour(74.0, 25.0)


def gpu_under_mps() -> Scene:
    """Kernels of both run at once: their shares add up to more than the time."""
    scene = beside_a_neighbour(95.0, 90.0)
    scene.gpus[0] |= {"kinds": {100: "C+M", 900: "C+M"}, "pids": [100, 800, 900]}
    return scene.add(Proc(800, comm="nvidia-cuda-mps", cmdline=["nvidia-cuda-mps-server"], info={"uses_cuda": True, "libs": []}))


def gpu_between_two_trainings() -> Scene:
    scene = gpu_by_turns().drop(900)
    return scene.add(Proc(900, cmdline=["python", "sweep.py"], run=0.05, looks=[SLEEP], info={"uses_cuda": True}))


def waiting_beside_a_neighbour() -> Scene:
    """Workers are late, and the neighbour uses the time: it takes nothing that the job had work for."""
    scene = starved(99.0, 2, run=0.95, looks=[ON_CPU])
    scene.gpus[0] |= {"pids": [100, 900], "ran": {100: 22.0, 900: 77.0}, "sm_active_pct": 90.0}
    return scene.add(Proc(900, comm="whisper-cli", cmdline=["/usr/bin/whisper-cli"], run=0.1, looks=[SLEEP], info={"libs": []}))


def one_lane_of_sixteen(**link: object) -> Scene:
    """A card in a mining riser: the bytes need a sixteenth of the time on its own link."""
    found = {"pcie_gen": 3, "pcie_gen_max": 3, "pcie_width": 1, "pcie_width_max": 16} | link
    return alone(35.0, 0.02, [SLEEP], pcie_rx_bytes_per_s=0.6e9, **found)


def older_generation_while_copying() -> Scene:
    return one_lane_of_sixteen(pcie_gen=1, pcie_gen_max=5, pcie_width=2, pcie_width_max=2)


def probed_copies_over_one_lane() -> Scene:
    scene = copies_over_one_lane()
    scene.calls = {(100, "cuMemcpyHtoDAsync_v2"): (6.6, 0.64, 5.5e8), (100, "cuStreamSynchronize"): (6.6, 0.33, 0)}
    return scene


NODE = {"numa_node": 1, "near_cpus": "2-3"}


def copying_pinned(gb_per_s: float, on: int, **gpu: object) -> Scene:
    """A host of two nodes of two CPUs, and copies from page-locked memory for half of the time; GPU 0 is attached to node 1.

    ``on``: the CPU that trainer and workers run on.
    """
    scene = alone(30.0, 0.6, [ON_CPU], **({"pcie_gen": 4, "pcie_width": 16} | NODE | gpu))
    scene.probed = True
    scene.calls = {(100, "cuMemcpyHtoD_v2"): (50, 0.6, round(0.6 * gb_per_s * 1e9)), (100, "cuStreamSynchronize"): (10, 0.3, 0)}
    for proc in scene.procs.values():
        proc.processor = on
    return scene


def copies_from_the_other_socket() -> Scene:
    return copying_pinned(8.0, on=0)


def as_slow_copies_beside_the_gpu() -> Scene:
    """Something else delays them: it is no distance."""
    return copying_pinned(8.0, on=3)


def pageable_copies_from_the_other_socket() -> Scene:
    """The distance has its part, but page-locked memory would gain more."""
    return copying_pinned(2.5, on=0)


GPU_SIDE: dict[Callable[[], Scene], tuple[str, str]] = {
    transfer: ("transfer-bound", "h2d-transfer"),
    transfer_over_a_narrow_link: ("transfer-bound", "h2d-transfer"),
    probed_transfer: ("transfer-bound", "h2d-transfer"),
    copies_that_count_as_work: ("transfer-bound", "h2d-transfer"),
    copies_over_one_lane: ("transfer-bound", "pcie-degraded"),
    probed_copies_over_one_lane: ("transfer-bound", "pcie-degraded"),
    one_lane_of_sixteen: ("transfer-bound", "pcie-degraded"),
    older_generation_while_copying: ("transfer-bound", "pcie-degraded"),
    copies_from_the_other_socket: ("transfer-bound", "numa-remote"),
    as_slow_copies_beside_the_gpu: ("transfer-bound", "h2d-transfer"),
    pageable_copies_from_the_other_socket: ("transfer-bound", "h2d-transfer"),
    quick_steps_one_wait_each: ("wait-heavy", "sync-storm"),
    small_pieces_one_by_one: ("transfer-bound", "h2d-transfer"),
    collating_before_light_kernels: ("input-bound", "main-thread-preprocessing"),
    collating_by_turns_with_light_kernels: ("input-bound", "main-thread-preprocessing"),
    loading_before_item: ("input-bound", "main-thread-preprocessing"),
    launching_short_kernels: ("wait-heavy", "small-kernels"),
    launching_few_kernels: ("input-bound", "main-thread-preprocessing"),
    computing_between_hand_overs: ("input-bound", "main-thread-preprocessing"),
    reading_back: ("transfer-bound", "h2d-transfer"),
    optimizer_on_the_host: ("wait-heavy", "host-optimizer"),
    optimizer_on_the_host_by_its_link: ("wait-heavy", "host-optimizer"),
    scoring_masks: ("input-bound", "main-thread-preprocessing"),
    updating_while_batches_are_late: ("input-bound", "slow-transform"),
    reading_back_for_histograms: ("input-bound", "main-thread-preprocessing"),
    sync_storm: ("wait-heavy", "sync-storm"),
    probed_sync_storm: ("wait-heavy", "sync-storm"),
    sync_storm_on_a_busy_host: ("wait-heavy", "sync-storm"),
    probed_items: ("wait-heavy", "sync-storm"),
    probed_sync_per_layer: ("wait-heavy", "sync-storm"),
    probed_clipping: ("wait-heavy", "sync-storm"),
    sampled_storm: ("wait-heavy", "sync-storm"),
    sampled_steps: ("input-bound", "main-thread-preprocessing"),
    asking_a_program_each_step: ("input-bound", "main-thread-preprocessing"),
    sampled_computing: ("input-bound", "main-thread-preprocessing"),
    sampled_launches: ("wait-heavy", "small-kernels"),
    sampled_beside_rollouts: ("input-bound", "gil-contention"),
    sampled_launches_beside_copies: ("wait-heavy", "small-kernels"),
    sampled_copies: ("transfer-bound", "h2d-transfer"),
    counting_hits: ("wait-heavy", "sync-storm"),
    answering_token_by_token: ("wait-heavy", "small-kernels"),
    probed_metrics: ("input-bound", "main-thread-preprocessing"),
    small_kernels: ("busy-not-working", "small-kernels"),
    undersized: ("busy-not-working", "undersized-work"),
    undersized_by_power: ("busy-not-working", "undersized-work"),
    hot_gpu: ("compute-bound", "gpu-throttle"),
    gpu_with_set_clocks: ("compute-bound", "gpu-throttle"),
    capped_gpu: ("compute-bound", "gpu-throttle"),
    gpu_by_turns: ("wait-heavy", "gpu-shared"),
    gpu_taken_at_times: ("wait-heavy", "gpu-shared"),
    gpu_under_mps: ("wait-heavy", "gpu-shared"),
    gpu_between_two_trainings: ("wait-heavy", "gpu-shared"),
}
