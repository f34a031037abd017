"""The same of what is behind a wait: threads that somebody waits for, programs that feed him, a process that gives out a lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gputop.model.frame import ThreadInfo
from tests.unit.diagnosis.causes import alone, starved
from tests.unit.diagnosis.scene import (
    ACCEPT,
    AWAIT,
    DISK,
    EPOLL,
    ON_CPU,
    POLL_SOCKET,
    QUEUE,
    READ,
    READ_PIPE,
    SLEEP,
    SOCKET,
    TURN,
    Proc,
    Scene,
)

FLOCK = {"state": "S", "syscall": 73, "wchan": "locks_lock_inode_wait"}
POOL = {151 + i: (0.04, 0.0) for i in range(4)}


def threads_on_the_disk() -> Scene:
    """No workers: threads of the trainer read; one that collates waits for these by itself."""
    scene = alone(40.0, 0.02, [SLEEP, AWAIT], threads=POOL).drop(101, 102)
    scene.procs[100].thread_looks, scene.procs[100].read_bytes = [DISK, DISK, DISK, AWAIT], 20_000_000
    return scene


def threads_on_the_network() -> Scene:
    """They hardly ever deliver, so that the GPU is all but asleep: no server that merely waits to be asked."""
    scene = alone(6.0, 0.02, [AWAIT], threads=POOL).drop(101, 102)
    scene.procs[100].thread_looks = [SOCKET, SOCKET, ON_CPU, SOCKET]
    return scene


def threads_of_a_worker_on_the_network() -> Scene:
    return starved(workers=1, run=0.02, looks=[AWAIT], threads=POOL, thread_looks=[SOCKET])


def threads_with_time_limits_on_the_network() -> Scene:
    """Sockets with a time limit are polled, as an event loop's are."""
    return starved(workers=1, run=0.02, looks=[AWAIT], threads=POOL, thread_looks=[POLL_SOCKET], switches=50, thread_switches=20)


def locked_beside_a_heartbeat() -> Scene:
    """A thread of each worker hears from a tracker now and then, one hands out descriptors: neither is what its main thread waits for."""
    threads = {151: (0.01, 0.0), 152: (0.01, 0.0)}
    scene = starved(run=0.3, looks=[AWAIT], threads=threads, thread_looks=[POLL_SOCKET, ACCEPT], switches=50, thread_switches=2)
    scene.procs[102].threads = {153: (0.01, 0.0), 154: (0.01, 0.0)}
    return scene


def threads_of_a_worker_at_work() -> Scene:
    """They decode, without the GIL, on all CPUs there are."""
    scene = starved(workers=1, run=0.01, looks=[AWAIT], threads={151: (0.95, 0.03), 152: (0.95, 0.03)}, thread_looks=[ON_CPU])
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    return scene


def threads_that_are_waited_for_one_at_a_time() -> Scene:
    """Each worker hands a part of its work to a thread of its own, and goes on when that has done it."""
    scene = starved(run=0.45, looks=[ON_CPU, AWAIT], threads={151: (0.45, 0.05)}, thread_looks=[AWAIT, ON_CPU])
    scene.procs[102].threads = {152: (0.45, 0.05)}
    scene.cpus, scene.cpu_busy = 2, [0.95, 0.95]
    return scene


def threads_of_a_worker_in_turns() -> Scene:
    """Four that parse in Python: one CPU in all, and the other idles."""
    pool = {151 + i: (0.24, 0.02) for i in range(4)}
    scene = starved(workers=1, run=0.01, looks=[AWAIT], threads=pool, thread_looks=[ON_CPU, TURN, TURN, AWAIT])
    scene.cpus, scene.cpu_busy = 2, [0.5, 0.5]
    return scene


def small_kernels_backward() -> Scene:
    """Without probes: its main thread sleeps, for the GPU or for the thread that launches."""
    scene = undersized_beside_threads()
    scene.procs[100].info = {"uses_cuda": True, "threads": [ThreadInfo(151, "pt_autograd_0")]}
    return scene


def undersized_beside_threads() -> Scene:
    return alone(95.0, 0.1, [SLEEP], threads={151: (0.4, 0.0)}, sm_active_pct=5.0)


def programs_on_the_network() -> Scene:
    """Each worker reads what its own curl writes, which waits for its server."""
    scene = starved(run=0.03, looks=[READ_PIPE])
    curls = (Proc(900 + i, 101 + i, "curl", ["curl", "-s"], run=0.03, looks=[EPOLL]) for i in range(2))
    return scene.add(*curls)


def programs_on_the_disk() -> Scene:
    """Each worker reads what its own gzip writes. One is ahead with its worker, and of each kind one just ended: a life's CPU at once."""
    scene = starved(run=0.02, looks=[READ_PIPE], workers=3)
    scene.procs[101].looks = [QUEUE]
    gzips = [Proc(900 + i, 101 + i, "gzip", ["gzip", "-dc"], run=0.05, looks=[DISK]) for i in range(3)]
    gzips[0].looks = [{"state": "S", "syscall": 1, "wchan": "anon_pipe_write"}]
    scene.add(*gzips).play(8).drop(900, 901, 902)
    for i in range(3):
        scene.procs[101 + i].children = 8 * 0.05 / 0.2
    scene.add(*(replace(gzip, pid=gzip.pid + 10) for gzip in gzips)).play(0.2)
    for i in range(3):
        scene.procs[101 + i].children = 0.0
    return scene


def program_of_the_trainer_on_the_disk() -> Scene:
    """Started by a shell."""
    scene = alone(40.0, 0.02, [READ_PIPE]).drop(101, 102)
    shell = Proc(900, 100, "sh", ["sh", "-c", "cat data | unpack"], looks=[{"state": "S", "syscall": 61}])
    return scene.add(shell, Proc(901, 900, "cat", ["cat", "data"], run=0.03, looks=[DISK]))


def metrics_over_the_network() -> Scene:
    """After each step the script posts its loss and waits for the answer, while its workers are ahead."""
    return alone(40.0, 0.02, [SLEEP, SOCKET])


def images_to_the_disk() -> Scene:
    """After each step the script writes, and waits until it is on the disk."""
    scene = alone(40.0, 0.02, [SLEEP, DISK])
    scene.procs[100].write_bytes = 3_000_000
    return scene


def lock_of_a_manager() -> Scene:
    """The lock is a process's: the workers wait for its answer at a socket, and one of them runs at a time."""
    scene = starved(workers=4, run=0.24, looks=[READ, READ, READ, ON_CPU])
    return scene.add(Proc(900, 100, cmdline=["python", "-c", "--multiprocessing-fork"], run=0.04, looks=[READ]))


def lock_of_a_replay_buffer() -> Scene:
    """Trainer and actors are clients of a Manager's lock and list: a thread of its server stands for each who waits."""
    scene = starved(util=25.0, workers=0)
    scene.procs[100].looks, scene.procs[100].run = [READ], 0.03
    scene.add(*(Proc(101 + i, 100, start_ticks=50_100 + i, run=0.16, looks=[READ]) for i in range(4)))
    server = scene.procs[101]
    server.run, server.looks, server.threads = 0.0, [AWAIT], {150 + i: (0.05, 0.02) for i in range(5)}
    server.thread_looks = [ACCEPT, AWAIT, AWAIT, AWAIT, READ]
    return scene


def known_manager_of_a_replay_buffer() -> Scene:
    """The same server once it is known to be one: no actor."""
    scene = lock_of_a_replay_buffer()
    scene.procs[101].info["serves"] = True
    return scene


def queue_of_a_manager() -> Scene:
    """Two loaders wait for a slow store, and hand over through a Manager's queue; its threads wait for them."""
    scene = starved(util=15.0, workers=0)
    scene.procs[100].looks, scene.procs[100].run = [READ], 0.03
    scene.add(*(Proc(102 + i, 100, start_ticks=50_101 + i, run=0.02, looks=[SLEEP, SLEEP, SLEEP, SLEEP, READ]) for i in range(2)))
    server = Proc(101, 100, start_ticks=50_100, run=0.0, looks=[AWAIT], threads={150 + i: (0.01, 0.0) for i in range(4)})
    server.thread_looks, server.info = [ACCEPT, READ, READ, READ], {"serves": True}
    return scene.add(server)


def lock_between_trainers() -> Scene:
    """Three ranks update one table in shared memory, from the lookup to the step: who has the semaphore wakes the next."""
    scene = Scene(gpus={i: {"util_pct": 35.0, "pids": [100 + 100 * i]} for i in range(3)})
    for rank in range(3):
        env = {"RANK": str(rank), "WORLD_SIZE": "3"}
        scene.add(Proc(100 + 100 * rank, run=0.03, looks=[AWAIT, AWAIT, EPOLL], info={"uses_cuda": True, "env": env}))
    scene.probed, pids = True, (100, 200, 300)
    scene.wakeups = {(one, other): 0.3 for one in pids for other in pids if one != other}
    scene.calls = {(pid, "cuStreamSynchronize"): (10, 0.33, 0) for pid in pids}
    return scene


def lock_of_a_file() -> Scene:
    """SQLite's: the workers sleep between two tries, and somebody else holds the file."""
    scene = starved(workers=3, run=0.02, looks=[SLEEP], locked_by=900)
    return scene.add(Proc(900, comm="label-tool", cmdline=["/bin/label-tool"], run=0.01, looks=[SLEEP]))


def lock_of_the_trainers_file() -> Scene:
    """It locks it in each step; a cache of its own keeps it out of it. It sleeps by a timer for its GPU, for which nobody's lock counts."""
    scene = alone(30.0, 0.02, [FLOCK | {"locked_by": 900}, FLOCK, FLOCK | {"locked_by": 900}, SLEEP])
    return scene.add(Proc(900, 100, comm="cache", cmdline=["/bin/cache"], run=0.01, looks=[SLEEP]))


def lock_of_the_trainers_file_and_its_waker() -> Scene:
    """The probe sees that the holder ends the waits, as one who feeds it would."""
    scene = lock_of_the_trainers_file()
    scene.probed, scene.wakeups, scene.futexes = True, {(100, 900): 0.6}, {(100, 900): 0x7A10}
    return scene


def lock_of_a_file_by_turns() -> Scene:
    """filelock's: each has it for a moment, so that readings often meet nobody."""
    scene = starved(workers=4, run=0.2)
    for i in range(4):
        held = [SLEEP | {"locked_by": 101 + other} for other in range(4) if other != i]
        scene.procs[101 + i].looks = [*held, *[SLEEP] * 6, ON_CPU]
    return scene


def asking_for_ever() -> Scene:
    """One worker looks again and again whether its shard is there; the others are ahead."""
    scene = starved(util=0.0, workers=3)
    scene.procs[102].looks = [SLEEP]
    return scene


def executors_thread() -> Scene:
    """What the workers have done a thread of the executor takes and hands to the main thread; they take turns at a lock of a file."""
    scene = starved(45.0, workers=3, run=0.15, looks=[FLOCK])
    scene.procs[100].looks, scene.procs[100].info["threads"] = [AWAIT], [ThreadInfo(100, "python"), ThreadInfo(150, "python")]
    scene.calls, scene.probed = {(100, "cuStreamSynchronize"): (10.0, 0.4, 0.0)}, True
    scene.wakeups = {(100, 100): 0.55, (150, 101): 0.3, (150, 102): 0.3, (150, 103): 0.2}
    return scene


def stopped_programs() -> Scene:
    """Two programs of the trainer's send it batches over sockets, until somebody stops them; a thread of its own reads."""
    scene = alone(100.0, 0.05, [AWAIT]).drop(101, 102).play(4)
    scene.gpus[0]["util_pct"], scene.procs[100].run = 0.0, 0.0
    return scene.add(*(Proc(900 + i, 100, cmdline=["python", "serve.py"], looks=[SOCKET | {"state": "T"}]) for i in range(2)))


def is_still() -> Scene:
    """A pool's process was killed and replaced: its batch never comes, and nobody has anything to do."""
    scene = starved(util=100.0, workers=0)
    scene.procs[100].looks, scene.probed, scene.wakeups = [AWAIT], True, {(100, 999): 0.0}
    scene.add(*(Proc(101 + i, 100, looks=[AWAIT], start_ticks=50_100 + i) for i in range(3))).play(4)
    for proc in scene.procs.values():
        proc.run, proc.switches = 0.0, 0
    scene.gpus[0]["util_pct"] = 0.0
    return scene


def nobody_has_moved_yet(later_ticks: int = 40) -> Scene:
    """The same of one that somebody looks at hours later, when nothing but their ages tells which of them replaces another."""
    scene = starved(util=0.0, workers=0)
    scene.procs[100].looks = [AWAIT]
    scene.add(*(Proc(101 + i, 100, looks=[AWAIT], start_ticks=50_100 + i) for i in range(3)))
    scene.add(Proc(104, 100, looks=[AWAIT], start_ticks=50_102 + later_ticks))
    for proc in scene.procs.values():
        proc.run, proc.switches = 0.0, 0
    return scene


def whose_log_nobody_reads(util: float = 90.0) -> Scene:
    """``train.py | less``: the pipe is full, and somebody is reading the first page."""
    scene = alone(util, 0.1, [SLEEP]).play(4 if util else 0)
    scene.gpus[0]["util_pct"], scene.procs[100].run, scene.procs[100].switches = 0.0, 0.0, 0
    scene.procs[100].looks = [{"state": "S", "syscall": 1, "syscall_arg": 1, "wchan": "anon_pipe_write"}]
    return scene


def whose_log_nobody_has_read_yet() -> Scene:
    return whose_log_nobody_reads(0.0)


def all_dead_before_anybody_looked() -> Scene:
    """The trainer of a home-made loader waits at its pipe for workers that were killed."""
    scene = starved(util=0.0, workers=0)
    scene.procs[100].looks = [READ_PIPE]
    scene.add(*(Proc(101 + i, 100, looks=[{"state": "Z"}], start_ticks=50_100 + i) for i in range(3)))
    for proc in scene.procs.values():
        proc.run, proc.switches = 0.0, 0
    return scene


def a_lock_file_of_a_dead_job() -> Scene:
    """One worker looks twenty times a second whether it has gone, since before anybody watched; the others have nothing to do."""
    scene = starved(util=0.0, workers=3, run=0.0, looks=[QUEUE])
    scene.procs[100].run, scene.procs[101].looks, scene.procs[101].run = 0.0, [SLEEP], 0.004
    return scene


def one_shard_on_a_slow_disk() -> Scene:
    """A home-made loader that keeps its order: one of four workers is late, and the others wait at their pipes to be asked again."""
    scene = starved(util=50.0, workers=0)
    scene.procs[100].looks = [EPOLL]
    idle = {"run": 0.03, "looks": [{"state": "S", "syscall": 0, "wchan": "pipe_read"}]}
    scene.add(*(Proc(101 + i, 100, start_ticks=50_100 + i, **idle) for i in range(3)))
    return scene.add(Proc(104, 100, start_ticks=50_104, run=0.03, looks=[DISK], read_bytes=5_000_000))


def few_shards() -> Scene:
    """One of four workers has work; a CPU idles, and the others have never had anything to do."""
    scene = starved(util=55.0, workers=4, switches=0)
    scene.procs[101].run, scene.procs[101].looks, scene.procs[101].switches = 0.97, [ON_CPU], 100
    scene.cpus, scene.cpu_busy = 2, [0.97, 0.1]
    return scene


def ended_shards() -> Scene:
    """The same where those whose part of the stream is at its end have ended, as torch's workers do; nobody has reaped them yet."""
    scene = few_shards()
    for pid in (102, 103, 104):
        scene.procs[pid].looks, scene.procs[pid].comm = [{"state": "Z", "exit_code": 0}], "pt_data_worker"
    return scene


def shards_that_look_for_their_trainer() -> Scene:
    """The same of workers that live on and wake every 5 s; others take most of the CPU that would be theirs."""
    scene = few_shards()
    for pid in (102, 103, 104):
        scene.procs[pid].switches, scene.procs[pid].run = 1, 0.001
    scene.cpu_busy = [0.97, 0.75]
    return scene


def crowd_by_turns() -> Scene:
    """All begin each short epoch at once, eight for each CPU, and then the CPUs idle."""
    scene = starved(util=60.0, workers=16, run=0.05, wait=0.35)
    scene.cpus, scene.cpu_busy = 2, [0.4, 0.4]
    return scene


def downloads_that_become_files() -> Scene:
    """A worker looks every few milliseconds whether the next shard is there; beside the thread that loads one waits to be asked."""
    pool = {151: (0.04, 0.0), 152: (0.01, 0.0)}
    return starved(run=0.05, looks=[SLEEP], threads=pool, thread_looks=[SOCKET, EPOLL])


def asynchronous_reads() -> Scene:
    """io_getevents, in which a worker may be interrupted: the probe counts that as plain sleep."""
    scene = starved(run=0.02, looks=[{"state": "S", "syscall": 208, "syscall_arg": 5, "wchan": "read_events"}], uninterruptible=0.01)
    scene.probed = True
    return scene


def dead_game() -> Scene:
    """Of environments in lockstep with games one waits for ever for its own; the trainer reads at its pipe, and all others at theirs."""
    scene = starved(util=100.0, workers=0)
    scene.procs[100].looks = [READ]
    scene.add(*(Proc(101 + i, 100, looks=[AWAIT if i == 2 else READ], start_ticks=50_100 + i) for i in range(4))).play(4)
    for proc in scene.procs.values():
        proc.run, proc.switches = 0.0, 0
    scene.gpus[0]["util_pct"] = 0.0
    return scene


def ranks_on_one_cpu() -> Scene:
    """Two ranks and their workers were bound to CPU 0, and CPU 1 idles; strangers take a little of both."""
    scene = Scene(cpus=2, cpu_busy=[1.0, 0.1])
    for rank, pid in enumerate((100, 200)):
        env = {"RANK": str(rank), "WORLD_SIZE": "2"}
        scene.gpus[rank] = {"util_pct": 70.0, "pids": [pid]}
        scene.add(Proc(pid, run=0.02, wait=0.05, looks=[QUEUE], info={"uses_cuda": True, "env": env, "cpus_allowed": "0"}))
        worker = {"run": 0.45, "wait": 0.54, "looks": [ON_CPU], "info": {"cpus_allowed": "0"}}
        scene.add(Proc(pid + 1, pid, comm="pt_data_worker", start_ticks=50_100, **worker))
    return scene


def sorted_by_length() -> Scene:
    """Rank 2 has all the long recordings; the others sleep in gloo's all-reduce until it arrives."""
    scene = Scene()
    for rank, pid in enumerate((100, 200, 300)):
        env, late = {"RANK": str(rank), "WORLD_SIZE": "3"}, rank == 2
        scene.gpus[rank] = {"util_pct": 97.0 if late else 35.0, "pids": [pid]}
        looks = [SLEEP] if late else [AWAIT, AWAIT, SLEEP]
        scene.add(Proc(pid, run=0.02, looks=looks, info={"uses_cuda": True, "env": env}))
        scene.add(Proc(pid + 1, pid, comm="pt_data_worker", start_ticks=50_100, run=0.03))
    return scene


def sums_over_sockets() -> Scene:
    """The ranks themselves send one another what is to be summed: rank 0 reads from rank 1, which has twice as much to do."""
    scene = Scene()
    for rank, pid in enumerate((100, 200)):
        env = {"RANK": str(rank), "WORLD_SIZE": "2"}
        scene.gpus[rank] = {"util_pct": 97.0 if rank else 45.0, "pids": [pid]}
        scene.add(Proc(pid, run=0.04, looks=[SLEEP] if rank else [SOCKET], info={"uses_cuda": True, "env": env}))
    return scene


def compactor() -> Scene:
    """Samplers of a home-made loader share a lock file with somebody who has it most of the time; the trainer reads their pipe."""
    flock = {"state": "S", "syscall": 73, "syscall_arg": 2, "wchan": "locks_lock_inode_wait", "locked_by": 900}
    scene = starved(workers=0, util=35.0)
    scene.procs[100].looks = [READ_PIPE]
    scene.add(*(Proc(101 + i, 100, start_ticks=50_100 + i, run=0.05, wait=0.04, looks=[flock]) for i in range(4)))
    return scene.add(Proc(900, comm="compactd", cmdline=["compactd"], run=0.03, looks=[SLEEP]))


def decoders_in_turns() -> Scene:
    """A pool of the trainer's that parses in Python: whose turn it is finds a CPU busy for a moment, as eight that wake all the time do."""
    pool = {151 + i: (0.11, 0.08) for i in range(8)}
    scene = alone(27.0, 0.01, [AWAIT], threads=pool).drop(101, 102)
    scene.procs[100].wait, scene.procs[100].thread_looks = 0.08, [ON_CPU, TURN, TURN, AWAIT]
    scene.cpus, scene.cpu_busy = 2, [0.7, 0.7]
    return scene


def server_in_turns() -> Scene:
    """A home-made server of clips, whose main thread waits for its decoders; these wait for the GIL, which a fifth one has."""
    scene = starved(util=15.0, workers=0)
    scene.procs[100].looks = [READ]
    pool = {151: (0.93, 0.02)} | {152 + i: (0.02, 0.02) for i in range(4)}
    scene.add(Proc(101, 100, start_ticks=50_100, looks=[AWAIT], threads=pool, thread_looks=[ON_CPU, TURN, TURN, TURN, AWAIT]))
    scene.cpus, scene.cpu_busy = 2, [0.5, 0.5]
    return scene


def consumers_of_a_slow_broker() -> Scene:
    """Home-made: each waits for what a thread of its own receives, and hardly ever runs."""
    scene = starved(util=35.0, workers=0)
    scene.procs[100].looks = [AWAIT]
    for i in range(3):
        threads = {150 + 10 * i: (0.02, 0.0)}
        scene.add(Proc(101 + i, 100, start_ticks=50_100 + i, run=0.005, looks=[AWAIT], threads=threads, thread_looks=[SOCKET]))
    return scene


def two_of_three_hang() -> Scene:
    """In a loader that keeps no order one worker goes on."""
    scene = starved(util=45.0, workers=3, switches=0, looks=[EPOLL])
    scene.procs[101].run, scene.procs[101].looks, scene.procs[101].switches = 0.1, [EPOLL, ON_CPU], 200
    return scene


def one_of_a_ring_hangs() -> Scene:
    """Home-made loaders fill the slots of a ring; who is late is passed over after a while, so that the GPU is never quite idle."""
    scene = starved(util=20.0, workers=0)
    scene.procs[100].looks, scene.procs[100].run = [AWAIT], 0.1
    scene.add(*(Proc(101 + i, 100, start_ticks=50_100 + i, run=0.003, looks=[AWAIT]) for i in range(3)))
    scene.procs[102].run, scene.procs[102].looks, scene.procs[102].switches = 0.0, [SOCKET], 0
    return scene


def threads_that_fault() -> Scene:
    """Those of the trainer look rows up in a mapped table that is larger than its control group may hold."""
    scene = alone(10.0, 0.01, [AWAIT], threads={110: (0.1, 0.0), 111: (0.1, 0.0)}).drop(101, 102)
    scene.procs[100].thread_looks, scene.procs[100].majflt, scene.procs[100].info = [DISK, DISK, DISK, ON_CPU], 90, {"cgroup": "/job"}
    scene.cgroups = {"/job": {"mem_bytes": 200 << 20, "mem_limit_bytes": 200 << 20, "refaults": 20_000, "mem_file_bytes": 190 << 20}}
    return scene


def prefetcher_without_the_gil() -> Scene:
    """The main thread polls and keeps its averages in pure Python; the thread that loads mostly waits for its turn."""
    scene = alone(25.0, 0.94, [ON_CPU], threads={110: (0.08, 0.03)}).drop(101, 102)
    scene.procs[100].thread_looks, scene.probed = [TURN, TURN, ON_CPU], True
    scene.calls = {(100, "cuMemcpyHtoDAsync_v2"): (3.0, 0.001, 3e6)}
    return scene


def segmenter_of_one_worker() -> Scene:
    """It asks a program of its own sentence by sentence, which is always at work; three CPUs idle."""
    scene = starved(util=55.0, workers=1, run=0.08, looks=[READ_PIPE])
    scene.cpu_busy = [0.9, 0.1, 0.1, 0.1]
    return scene.add(Proc(900, 101, comm="mecab", cmdline=["mecab"], run=0.88, looks=[ON_CPU], start_ticks=50_200))


def detectors_kept_from_their_cpus() -> Scene:
    """Each worker's program computes as far as strangers let it."""
    scene = starved(run=0.02, looks=[READ_PIPE])
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    for i in range(2):
        scene.add(Proc(900 + i, 101 + i, comm="vad", cmdline=["vad"], run=0.3, wait=0.65, looks=[ON_CPU], start_ticks=50_200 + i))
    return scene.add(Proc(950, comm="updatedb", cmdline=["/bin/updatedb"], run=1.35, looks=[ON_CPU]))


def detectors_in_one_anothers_way() -> Scene:
    """The same without strangers: twice as many as CPUs."""
    scene = starved(workers=4, run=0.01, looks=[READ_PIPE])
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    for i in range(4):
        scene.add(Proc(900 + i, 101 + i, comm="vad", cmdline=["vad"], run=0.45, wait=0.5, looks=[ON_CPU], start_ticks=50_200 + i))
    return scene


def probed_detectors_in_one_anothers_way() -> Scene:
    """The probe sees the workers wait behind the detectors, which are the job's own; a stranger takes next to nothing."""
    scene = detectors_in_one_anothers_way()
    scene.probed, scene.preempts = True, {(101 + i, 900 + (i + 1) % 4): 0.4 for i in range(4)}
    return scene.add(Proc(950, comm="cron", cmdline=["/bin/cron"], run=0.03, looks=[ON_CPU]))


BEHIND: dict[Callable[[], Scene], tuple[str, str]] = {
    threads_on_the_disk: ("input-bound", "disk-io"),
    threads_on_the_network: ("input-bound", "network-io"),
    threads_of_a_worker_on_the_network: ("input-bound", "network-io"),
    threads_with_time_limits_on_the_network: ("input-bound", "network-io"),
    locked_beside_a_heartbeat: ("input-bound", "lock-contention"),
    threads_of_a_worker_at_work: ("input-bound", "slow-transform"),
    threads_of_a_worker_in_turns: ("input-bound", "gil-contention"),
    small_kernels_backward: ("busy-not-working", "small-kernels"),
    undersized_beside_threads: ("busy-not-working", "undersized-work"),
    programs_on_the_disk: ("input-bound", "disk-io"),
    programs_on_the_network: ("input-bound", "network-io"),
    program_of_the_trainer_on_the_disk: ("input-bound", "disk-io"),
    metrics_over_the_network: ("input-bound", "network-io"),
    images_to_the_disk: ("input-bound", "disk-io"),
    lock_of_a_manager: ("input-bound", "lock-contention"),
    known_manager_of_a_replay_buffer: ("input-bound", "lock-contention"),
    queue_of_a_manager: ("input-bound", "slow-transform"),
    lock_of_a_replay_buffer: ("input-bound", "lock-contention"),
    lock_between_trainers: ("wait-heavy", "lock-contention"),
    lock_of_a_file: ("input-bound", "lock-contention"),
    lock_of_the_trainers_file: ("wait-heavy", "lock-contention"),
    lock_of_the_trainers_file_and_its_waker: ("wait-heavy", "lock-contention"),
    lock_of_a_file_by_turns: ("input-bound", "lock-contention"),
    asking_for_ever: ("input-bound", "hung-worker"),
    threads_that_are_waited_for_one_at_a_time: ("input-bound", "slow-transform"),
    executors_thread: ("input-bound", "lock-contention"),
    stopped_programs: ("input-bound", "hung-worker"),
    is_still: ("input-bound", "hung-worker"),
    nobody_has_moved_yet: ("input-bound", "hung-worker"),
    all_dead_before_anybody_looked: ("input-bound", "hung-worker"),
    whose_log_nobody_reads: ("wait-heavy", "hung-worker"),
    whose_log_nobody_has_read_yet: ("wait-heavy", "hung-worker"),
    a_lock_file_of_a_dead_job: ("input-bound", "hung-worker"),
    one_shard_on_a_slow_disk: ("input-bound", "disk-io"),
    few_shards: ("input-bound", "too-few-workers"),
    ended_shards: ("input-bound", "too-few-workers"),
    shards_that_look_for_their_trainer: ("input-bound", "too-few-workers"),
    crowd_by_turns: ("input-bound", "worker-oversubscription"),
    downloads_that_become_files: ("input-bound", "network-io"),
    asynchronous_reads: ("input-bound", "disk-io"),
    dead_game: ("input-bound", "hung-worker"),
    ranks_on_one_cpu: ("input-bound", "affinity"),
    sorted_by_length: ("straggler", "straggler-rank"),
    sums_over_sockets: ("straggler", "straggler-rank"),
    compactor: ("input-bound", "lock-contention"),
    decoders_in_turns: ("input-bound", "gil-contention"),
    server_in_turns: ("input-bound", "gil-contention"),
    consumers_of_a_slow_broker: ("input-bound", "network-io"),
    two_of_three_hang: ("input-bound", "hung-worker"),
    one_of_a_ring_hangs: ("input-bound", "hung-worker"),
    threads_that_fault: ("input-bound", "memory-pressure"),
    prefetcher_without_the_gil: ("input-bound", "gil-contention"),
    segmenter_of_one_worker: ("input-bound", "too-few-workers"),
    detectors_kept_from_their_cpus: ("input-bound", "cpu-contention"),
    detectors_in_one_anothers_way: ("input-bound", "worker-oversubscription"),
    probed_detectors_in_one_anothers_way: ("input-bound", "worker-oversubscription"),
}
