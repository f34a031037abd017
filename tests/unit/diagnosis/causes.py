"""A scene for each face of each cause: its mechanism, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.diagnosis.scene import AWAIT, CHILD, DISK, FUTEX, HIDDEN, ON_CPU, QUEUE, SLEEP, SOCKET, TURN, Proc, Scene, training


def starved(util: float = 30.0, workers: int = 2, **worker: object) -> Scene:
    """A trainer that polls for its next batch."""
    scene = training(workers, util, **worker)
    scene.procs[100].looks = [QUEUE]
    return scene


def alone(util: float, run: float, looks: list[dict], threads: dict[int, tuple[float, float]] | None = None, **gpu: object) -> Scene:
    """A trainer whose two workers are ahead."""
    scene = training(util=util, run=0.1)
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].threads = run, looks, threads or {}
    scene.gpus[0] |= gpu
    return scene


def cpu_contention() -> Scene:
    scene = starved(run=0.3, wait=0.7, looks=[ON_CPU])
    scene.cpu_busy = [1.0] * 4
    return scene.add(Proc(900, comm="fluent-bit", cmdline=["/bin/fluent-bit"], run=2.0, looks=[ON_CPU]))


def hidden_contention() -> Scene:
    """Nothing of the waits can be read: counters, the GPU and the strangers must do."""
    scene = cpu_contention()
    scene.procs[100].looks = [HIDDEN]
    return scene


def probed_contention() -> Scene:
    """Strangers hold little of the CPUs over all, but the probe saw them run in the workers' place."""
    scene = starved(workers=4, run=0.4, wait=0.5, looks=[ON_CPU])
    scene.cpu_busy, scene.probed = [1.0] * 4, True
    scene.preempts = {(101, 900): 0.4, (102, 900): 0.4, (103, 900): 0.2, (104, 900): 0.3}
    return scene.add(Proc(900, comm="backup", cmdline=["/bin/backup"], run=0.5, looks=[ON_CPU]))


def hog_on_one_cpu() -> Scene:
    """A hog has one of two CPUs for itself; on the other, says the probe, the job's processes wait behind one another."""
    scene = starved(util=55.0, run=0.5, wait=0.5, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy, scene.probed = 2, [1.0, 1.0], True
    scene.preempts = {(101, 102): 0.45, (102, 101): 0.45, (101, 900): 0.05}
    return scene.add(Proc(900, comm="blender", cmdline=["/bin/blender"], run=0.9, looks=[ON_CPU]))


def storm() -> Scene:
    """Compilers that live too shortly for any sample: only the CPUs tell of them."""
    scene = starved(run=0.4, wait=0.6, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    return scene


def many_late_workers() -> Scene:
    """Six workers are all late behind a hog, but with their two CPUs to themselves none would be."""
    scene = starved(util=55.0, workers=6, run=0.16, wait=0.84, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    return scene.add(Proc(900, comm="java", cmdline=["/bin/java"], run=0.95, looks=[ON_CPU]))


def beside_another_training() -> Scene:
    """The CPUs are full of another training's workers."""
    scene = starved(run=0.3, wait=0.7, looks=[ON_CPU])
    scene.cpu_busy = [1.0] * 4
    scene.gpus[1] = {"util_pct": 97.0, "pids": [200]}
    scene.add(Proc(200, cmdline=["python", "other.py"], run=0.1, looks=[FUTEX], info={"uses_cuda": True}))
    return scene.add(*(Proc(201 + i, 200, "pt_data_worker", ["python", "other.py"], run=0.8, looks=[ON_CPU]) for i in range(4)))


def hog_inside_the_mask() -> Scene:
    """Held to two CPUs, which would do, if a hog were not held to one of them too."""
    scene = starved(util=60.0, run=0.5, wait=0.4, looks=[ON_CPU], info={"cpus_allowed": "0-1"})
    scene.cpu_busy = [1.0, 1.0, 0.1, 0.1]
    return scene.add(Proc(900, comm="miner", cmdline=["/bin/miner"], run=0.9, looks=[ON_CPU], info={"cpus_allowed": "0"}))


def oversubscription() -> Scene:
    scene = starved(workers=12, run=0.3, wait=0.7, looks=[ON_CPU])
    scene.cpu_busy = [1.0] * 4
    return scene


def crowded_beside_a_neighbour() -> Scene:
    """A stranger takes a part, but the job would lack CPUs without it too."""
    scene = oversubscription()
    return scene.add(Proc(900, comm="backup", cmdline=["/bin/backup"], run=0.8, looks=[ON_CPU]))


def crowded_by_threads() -> Scene:
    """Each worker waits at a barrier for compute threads of its own, and these for a CPU."""
    crowd = {200 + i: (0.45, 0.5) for i in range(8)}
    scene = starved(workers=1, run=0.2, wait=0.3, looks=[FUTEX], threads=crowd)
    scene.cpu_busy = [1.0] * 4
    return scene


def pools_beside_an_agent() -> Scene:
    """Each worker has a pool of four threads, and these wait for one another, not for the agent that takes a little beside them."""
    scene = starved(util=75.0, run=0.15, wait=0.3, looks=[FUTEX])
    for pid in (101, 102):
        scene.procs[pid].threads = {10 * pid + number: (0.35, 0.6) for number in range(4)}
    scene.cpu_busy, scene.probed, scene.preempts = [1.0] * 4, True, {(101, 102): 0.8, (102, 101): 0.8, (101, 900): 0.1}
    return scene.add(Proc(900, comm="agent", cmdline=["/bin/agent"], run=0.8, looks=[ON_CPU]))


def hogs_beside_pools() -> Scene:
    """The same pools, but it is hogs that have the CPUs."""
    scene = pools_beside_an_agent()
    for pid in (101, 102):
        scene.procs[pid].threads = {10 * pid + number: (0.15, 0.8) for number in range(4)}
    scene.procs[900].run, scene.preempts = 2.4, {(101, 102): 0.1, (102, 101): 0.1, (101, 900): 0.8, (102, 900): 0.8}
    return scene


def affinity() -> Scene:
    scene = starved(workers=4, run=0.24, wait=0.76, looks=[ON_CPU], info={"cpus_allowed": "3"})
    scene.cpu_busy = [0.05, 0.05, 0.05, 1.0]
    return scene


def pinned_by_hand() -> Scene:
    """The other CPUs are not idle, but the job's cgroup has them, and its fair share of them is lost."""
    scene = affinity()
    scene.cpu_busy, scene.cgroups = [0.97, 0.97, 0.97, 1.0], {"/job": {"cpuset": "0-3"}}
    return scene.add(*(Proc(900 + i, comm="sim", cmdline=["/bin/sim"], run=0.97, looks=[ON_CPU]) for i in range(3)))


def crowded_in_its_cpuset() -> Scene:
    """The same, held there by its cgroup: the others are for others."""
    scene = pinned_by_hand()
    scene.cgroups = {"/job": {"cpuset": "3"}}
    for cpu in range(3):
        scene.procs[900 + cpu].processor = cpu
    return scene


def throttled() -> Scene:
    scene = starved(run=0.2, wait=0.8, looks=[ON_CPU])
    scene.cpu_busy, scene.cgroups = [0.1] * 4, {"/job": {"quota_cpus": 0.5, "throttled": 0.95}}
    return scene


def too_few() -> Scene:
    scene = starved(workers=1, run=0.95, looks=[ON_CPU])
    scene.cpu_busy = [1.0, 0.1, 0.1, 0.1]
    return scene


def too_few_beside_neighbours() -> Scene:
    """No CPU idles, for others use those that one worker leaves."""
    scene = starved(workers=1, run=0.9, wait=0.1, looks=[ON_CPU])
    scene.cpu_busy = [1.0] * 4
    return scene.add(Proc(900, comm="sim", cmdline=["/bin/sim"], run=2.5, looks=[ON_CPU]))


def too_few_beside_spinning() -> Scene:
    """Two CPUs: one has the only worker, the other the trainer, which burns it while the GPU works."""
    scene = starved(60.0, workers=1, run=0.95, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy, scene.procs[100].run = 2, [0.95, 0.75], 0.58
    return scene


def too_few_beside_probed_spinning() -> Scene:
    scene = too_few_beside_spinning()
    scene.probed, scene.calls = True, {(100, "cuMemcpyHtoDAsync"): (10, 0.001, 2e6), (100, "cuCtxSynchronize"): (10, 0.57, 0)}
    scene.wakeups = {(100, 101): 0.4}
    return scene


def slow_transform() -> Scene:
    scene = starved(workers=4, run=0.93, wait=0.07, looks=[ON_CPU])
    scene.cpu_busy = [1.0] * 4
    return scene


def sleepy_transform() -> Scene:
    return starved(looks=[SLEEP])


def gil() -> Scene:
    scene = starved(workers=1, run=0.45, looks=[ON_CPU, TURN], threads={151: (0.5, 0.0)})
    scene.cpu_busy = [0.5, 0.5, 0.1, 0.1]
    return scene


def gil_in_trainer() -> Scene:
    """Its thread keeps the lock; what the main thread sleeps on its GPU must not hide what it sleeps on the lock."""
    return alone(45.0, 0.05, [SLEEP, FUTEX, SLEEP], threads={151: (0.9, 0.0)})


def gil_beside_spinning() -> Scene:
    """In its waits for the GPU the main thread burns a CPU of its own, without the GIL that its thread keeps."""
    scene = alone(22.0, 0.26, [TURN], threads={151: (0.93, 0.0)})
    scene.procs[100].switches = 240
    scene.probed, scene.calls = True, {(100, "cuMemcpyHtoDAsync"): (8, 0.002, 2e6), (100, "cuStreamSynchronize"): (8, 0.21, 0)}
    return scene


def prefetching_thread() -> Scene:
    """No workers, but a thread of the trainer that cannot keep up: the main thread sleeps until a batch is there, not 5 ms at a time."""
    scene = alone(40.0, 0.02, [SLEEP, FUTEX, FUTEX], threads={151: (0.97, 0.0)}).drop(101, 102)
    scene.procs[100].switches = 30
    return scene


def late_prefetching_thread() -> Scene:
    """The same thread keeps up while nobody takes its CPU."""
    scene = prefetching_thread()
    scene.procs[100].threads, scene.cpus, scene.cpu_busy = {151: (0.4, 0.5)}, 2, [1.0, 1.0]
    return scene.add(Proc(900, comm="updatedb", cmdline=["/bin/updatedb"], run=1.6, looks=[ON_CPU]))


def unseen_prefetching_thread() -> Scene:
    """Every sample meets the wait for the GPU; the probe knows who ended the other one."""
    scene = late_prefetching_thread()
    scene.procs[100].looks, scene.probed, scene.wakeups = [SLEEP], True, {(100, 100): 0.55}
    return scene


def hardly_prefetching_thread() -> Scene:
    """Its batches come so seldom that the GPU is all but asleep; who merely waits to be asked has no thread at work."""
    scene = prefetching_thread()
    scene.gpus[0]["util_pct"], scene.procs[100].looks = 5.0, [FUTEX]
    return scene


def backward_pass() -> Scene:
    """In quick steps its main thread waits for the thread of the backward pass, which launches: no lock that they take turns at."""
    return alone(60.0, 0.35, [ON_CPU, AWAIT], threads={151: (0.45, 0.0)})


def backward_pass_of_small_kernels() -> Scene:
    return alone(60.0, 0.35, [ON_CPU, AWAIT], threads={151: (0.45, 0.0)}, sm_active_pct=12.0)


def locks() -> Scene:
    return starved(workers=4, run=0.24, looks=[FUTEX, FUTEX, FUTEX, ON_CPU])


def disk() -> Scene:
    return starved(run=0.15, looks=[DISK], read_bytes=20_000_000)


def network() -> Scene:
    return starved(run=0.05, looks=[SOCKET])


def network_without_workers() -> Scene:
    return alone(40.0, 0.05, [SOCKET]).drop(101, 102)


def network_before_waits_that_spin() -> Scene:
    """It asks a store of features for each batch, and waits for its GPU on a CPU."""
    scene = alone(57.0, 0.57, [SOCKET]).drop(101, 102)
    scene.probed, scene.calls = True, {(100, "cuStreamSynchronize"): (12, 0.55, 0), (100, "cuMemcpyHtoDAsync_v2"): (12, 0.001, 7e6)}
    return scene


def programs() -> Scene:
    """Each sample is decoded by a program that the worker starts."""
    return starved(run=0.1, looks=[CHILD])


def captured_programs() -> Scene:
    """The same with their output captured: the worker polls pipes, and only what its ended children used tells it from the network."""
    return starved(run=0.05, looks=[{"state": "S", "syscall": 7, "syscall_arg": -1}], children=0.8)


def swapping() -> Scene:
    scene = starved(run=0.3, looks=[DISK], majflt=2000, read_bytes=8_000_000)
    scene.psi = {"memory_some_ns": 0.4, "memory_full_ns": 0.3}
    return scene


def thrashing() -> Scene:
    """No pressure stall information: faults that are refaults."""
    scene = starved(run=0.3, looks=[DISK], majflt=2000, read_bytes=8_000_000)
    scene.host = {"refaults": 5000}
    return scene


def mapped_file(pswpin: float = 3) -> Scene:
    """Records of a mapped file, a page a fault; refaults of what somebody's reclaim dropped long ago."""
    scene = starved(run=0.3, looks=[DISK], majflt=2000, read_bytes=8_190_000)
    scene.host = {"refaults": 5000, "pgscan": 0, "pswpin": pswpin}
    return scene


def swap_without_pressure() -> Scene:
    """No pressure stall information, and no refaults of files."""
    return mapped_file(pswpin=1900)


def reclaiming() -> Scene:
    """Direct reclaim looks like a busy worker."""
    scene = starved(run=0.9, system=0.8, looks=[ON_CPU])
    scene.psi = {"memory_some_ns": 0.6, "memory_full_ns": 0.5}
    return scene


def stopped() -> Scene:
    scene = starved(util=0.0, workers=4)
    scene.procs[102].looks, scene.procs[102].switches = [{"state": "T"}], 0
    return scene


def deadlocked() -> Scene:
    scene = starved(util=0.0, workers=4)
    scene.procs[102].looks, scene.procs[102].switches = [FUTEX], 0
    return scene


def preprocessing() -> Scene:
    return alone(40.0, 0.6, [ON_CPU])


def no_workers() -> Scene:
    scene = preprocessing()
    return scene.drop(101, 102)


def straggling() -> Scene:
    """Rank 1 computes between steps; rank 0's GPU spins in the collective."""
    spinning = {"util_pct": 99.0, "sm_active_pct": 45.0, "pids": [100]}
    scene = Scene(gpus={0: spinning, 1: {"util_pct": 40.0, "sm_active_pct": 40.0, "pids": [200]}})
    for rank, pid, run, looks in ((0, 100, 0.05, [SLEEP]), (1, 200, 0.6, [ON_CPU])):
        env = {"RANK": str(rank), "WORLD_SIZE": "2"}
        scene.add(Proc(pid, run=run, looks=looks, info={"uses_cuda": True, "env": env}))
    return scene


def ranks_of_mpi(*systems: float, minflt: int = 0) -> Scene:
    """Ranks of which MPI's launcher tells only their numbers, each on a CPU: so much of it in the kernel (`sched_yield`)."""
    scene = Scene()
    for rank, system in enumerate(systems):
        pid, env = 100 + rank, {"OMPI_COMM_WORLD_RANK": str(rank)}
        scene.gpus[rank] = {"util_pct": 42.0, "power_w": 250.0, "power_limit_w": 400.0, "pids": [pid]}
        info = {"uses_cuda": True, "env": env, "exe": "/opt/lbm", "libs": []}
        scene.add(Proc(pid, 50, "lbm", ["lbm", "channel.in"], run=0.99, system=system, minflt=minflt, looks=[ON_CPU], info=info))
    return scene


def spinning_in_a_barrier() -> Scene:
    """Rank 0 waits for rank 1, on a CPU."""
    return ranks_of_mpi(0.4, 0.02)


def page_faults_are_no_barrier() -> Scene:
    """Rank 0's time in the kernel is that of its page faults: it works as rank 1 does."""
    return ranks_of_mpi(0.4, 0.4, minflt=400_000)


def straggling_gpu() -> Scene:
    """Rank 1's kernels take longer; both GPUs are busy all the time, but rank 0's merely spins."""
    scene = straggling()
    scene.gpus[1] |= {"util_pct": 99.0, "sm_active_pct": 95.0}
    scene.procs[200].run, scene.procs[200].looks = 0.05, [SLEEP]
    return scene


def straggling_gpu_of_spawned_ranks(paces: tuple[float, float] = (14.0, 14.2)) -> Scene:
    """The same of ranks that one process spawned, whose environment does not say so: they step alike, and one GPU draws far more power."""
    scene = Scene()
    for i, (pid, power_w) in enumerate(((100, 265.0), (200, 345.0))):
        scene.gpus[i] = {"util_pct": 96.0, "power_w": power_w, "power_limit_w": 400.0, "pids": [pid]}
        spawned = ["python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"]
        scene.add(Proc(pid, 50, cmdline=spawned, run=0.05, looks=[SLEEP], info={"uses_cuda": True}))
        scene.calls |= {(pid, "cuStreamSynchronize"): (paces[i], 0.9, 0.0), (pid, "cuMemcpyHtoDAsync_v2"): (paces[i], 0.01, 1e6)}
    scene.probed = True
    return scene


def feeding_program() -> Scene:
    """A program that the trainer started and reads from."""
    scene = alone(8.0, 0.02, [{"state": "S", "syscall": 0, "wchan": "pipe_read"}]).drop(101, 102)
    return scene.add(Proc(900, ppid=100, comm="ffmpeg", cmdline=["ffmpeg"], run=1.0, looks=[ON_CPU]))


def feeding_program_that_it_feeds() -> Scene:
    """The same, and a thread of the trainer gives that program what it decompresses: several could share that."""
    scene = feeding_program()
    scene.procs[100].threads = {110: (0.02, 0.0)}
    scene.procs[100].thread_looks = [{"state": "S", "syscall": 1, "wchan": "pipe_write"}]
    return scene


def learner_and_actors(futex: int = 71) -> Scene:
    """A learner samples from a replay buffer under a lock (at futex 70); its actors, which hardly run, are met at ``futex``, or asleep."""
    scene = alone(25.0, 0.03, [AWAIT | {"shared_futex": 70}, AWAIT | {"shared_futex": 70}, SLEEP, AWAIT | {"shared_futex": 70}])
    scene.drop(101, 102)
    looks = [AWAIT | {"shared_futex": futex}, SLEEP, AWAIT | {"shared_futex": futex}, SLEEP, SLEEP]
    return scene.add(*(Proc(101 + i, ppid=100, run=0.02, looks=looks[i:] + looks[:i], start_ticks=50_100 + i) for i in range(4)))


def lock_of_a_sleeping_holder() -> Scene:
    """Both are met at one futex between processes: that is a lock, though who holds it sleeps."""
    return learner_and_actors(70)


def probed_lock_of_a_sleeping_holder() -> Scene:
    """Recorded without the samples: they wake each other at one futex."""
    scene = learner_and_actors()
    scene.probed, scene.calls = True, {(100, "cuStreamSynchronize"): (20.0, 0.24, 0)}
    scene.wakeups = {(100, 101 + i): 0.17 for i in range(4)} | {(101 + i, 100): 0.1 for i in range(4)}
    scene.futexes = dict.fromkeys(scene.wakeups, 0x7F00)
    return scene


def probed_queue() -> Scene:
    """They wake each other at two: the learner waits for what the actors make, who sleep."""
    scene = probed_lock_of_a_sleeping_holder()
    scene.futexes = {pair: 0x7F00 + (pair[0] == 100) for pair in scene.wakeups}
    return scene


EXPECTED: dict[Callable[[], Scene], tuple[str, str]] = {
    cpu_contention: ("input-bound", "cpu-contention"),
    hidden_contention: ("input-bound", "cpu-contention"),
    probed_contention: ("input-bound", "cpu-contention"),
    hog_on_one_cpu: ("input-bound", "cpu-contention"),
    storm: ("input-bound", "cpu-contention"),
    many_late_workers: ("input-bound", "cpu-contention"),
    beside_another_training: ("input-bound", "cpu-contention"),
    hog_inside_the_mask: ("input-bound", "cpu-contention"),
    oversubscription: ("input-bound", "worker-oversubscription"),
    crowded_beside_a_neighbour: ("input-bound", "worker-oversubscription"),
    crowded_by_threads: ("input-bound", "worker-oversubscription"),
    pools_beside_an_agent: ("input-bound", "worker-oversubscription"),
    hogs_beside_pools: ("input-bound", "cpu-contention"),
    affinity: ("input-bound", "affinity"),
    pinned_by_hand: ("input-bound", "affinity"),
    crowded_in_its_cpuset: ("input-bound", "worker-oversubscription"),
    throttled: ("input-bound", "cgroup-throttle"),
    too_few: ("input-bound", "too-few-workers"),
    too_few_beside_neighbours: ("input-bound", "too-few-workers"),
    too_few_beside_spinning: ("input-bound", "too-few-workers"),
    too_few_beside_probed_spinning: ("input-bound", "too-few-workers"),
    slow_transform: ("input-bound", "slow-transform"),
    sleepy_transform: ("input-bound", "slow-transform"),
    gil: ("input-bound", "gil-contention"),
    gil_in_trainer: ("wait-heavy", "gil-contention"),
    gil_beside_spinning: ("wait-heavy", "gil-contention"),
    backward_pass: ("input-bound", "main-thread-preprocessing"),
    backward_pass_of_small_kernels: ("busy-not-working", "small-kernels"),
    prefetching_thread: ("input-bound", "main-thread-preprocessing"),
    hardly_prefetching_thread: ("input-bound", "main-thread-preprocessing"),
    late_prefetching_thread: ("input-bound", "cpu-contention"),
    unseen_prefetching_thread: ("input-bound", "cpu-contention"),
    locks: ("input-bound", "lock-contention"),
    disk: ("input-bound", "disk-io"),
    network: ("input-bound", "network-io"),
    network_without_workers: ("input-bound", "network-io"),
    network_before_waits_that_spin: ("input-bound", "network-io"),
    programs: ("input-bound", "slow-transform"),
    captured_programs: ("input-bound", "slow-transform"),
    swapping: ("input-bound", "memory-pressure"),
    thrashing: ("input-bound", "memory-pressure"),
    mapped_file: ("input-bound", "disk-io"),
    swap_without_pressure: ("input-bound", "memory-pressure"),
    reclaiming: ("input-bound", "memory-pressure"),
    stopped: ("input-bound", "hung-worker"),
    deadlocked: ("input-bound", "hung-worker"),
    preprocessing: ("input-bound", "main-thread-preprocessing"),
    no_workers: ("input-bound", "main-thread-preprocessing"),
    straggling: ("straggler", "straggler-rank"),
    straggling_gpu_of_spawned_ranks: ("straggler", "straggler-rank"),
    straggling_gpu: ("straggler", "straggler-rank"),
    spinning_in_a_barrier: ("straggler", "straggler-rank"),
    page_faults_are_no_barrier: ("input-bound", "main-thread-preprocessing"),
    feeding_program: ("input-bound", "slow-transform"),
    feeding_program_that_it_feeds: ("input-bound", "too-few-workers"),
    lock_of_a_sleeping_holder: ("input-bound", "lock-contention"),
    probed_lock_of_a_sleeping_holder: ("input-bound", "lock-contention"),
    learner_and_actors: ("input-bound", "slow-transform"),
    probed_queue: ("input-bound", "slow-transform"),
}
