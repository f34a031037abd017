"""Who loads for a trainer without being its worker: actors of somebody else, and programs of its own that its threads read from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.unit.diagnosis.causes import alone
from tests.unit.diagnosis.scene import AWAIT, DISK, FUTEX, ON_CPU, POLL_SOCKET, QUEUE, READ, READ_PIPE, SLEEP, SOCKET, Proc, Scene


def actors() -> Scene:
    """Processes of somebody else's decode for it, all the time, and answer at sockets: the probe saw who ends its waits."""
    scene = alone(45.0, 0.02, [SLEEP, READ, READ]).drop(101, 102)
    scene.cpus, scene.cpu_busy, scene.probed, scene.wakeups = 2, [1.0, 1.0], True, {(100, 900): 0.3, (100, 901): 0.3}
    return scene.add(*(Proc(900 + i, comm="actor", cmdline=["/bin/actor"], run=0.97, looks=[ON_CPU]) for i in range(2)))


def crowding_actors() -> Scene:
    """Twice as many as there are CPUs, all of them at work: each waits for its like."""
    scene = actors()
    for actor in (scene.procs[900], scene.procs[901]):
        actor.run, actor.wait = 0.5, 0.48
    return scene.add(*(replace(scene.procs[900], pid=pid) for pid in (902, 903)))


def throttled_actors() -> Scene:
    """They are in a control group of their own, which may use too little; one of them is always ahead, and never waited for."""
    scene = actors()
    scene.wakeups, scene.cgroups = {(100, 900): 0.5}, {"/service": {"quota_cpus": 0.3, "throttled": 0.95}}
    for actor in (scene.procs[900], scene.procs[901]):
        actor.run, actor.wait, actor.info = 0.15, 0.8, {"cgroup": "/service"}
    return scene


def throttled_readers() -> Scene:
    """The one who wakes the trainer waits for its children, who may use too little."""
    scene = throttled_actors()
    scene.procs[900].run, scene.procs[900].wait, scene.procs[900].looks = 0.01, 0.03, [READ]
    scene.procs[901].run, scene.procs[901].wait, scene.procs[901].ppid = 0.15, 0.8, 900
    scene.procs[901].comm, scene.procs[901].cmdline = "reader", ["/bin/reader"]
    return scene


def actors_behind_samples_in_step() -> Scene:
    """Each sample meets the trainer in its wait for the GPU, though it waits as long for them."""
    scene = actors()
    scene.procs[100].looks, scene.calls = [SLEEP], {(100, "cuStreamSynchronize"): (30, 0.45, 0)}
    return scene


def actors_seen_at_the_other_end() -> Scene:
    """No probe: they hold the sockets that the trainer reads from."""
    scene = actors()
    scene.probed, scene.wakeups = False, {}
    scene.procs[100].info["other_ends"] = [900, 901]
    return scene


def throttled_programs() -> Scene:
    """Threads of the trainer read what two programs of its own send, which it put into a group with a small quota."""
    scene = alone(45.0, 0.02, [FUTEX]).drop(101, 102)
    scene.probed, scene.wakeups, scene.cgroups = True, {(100, 100): 0.5}, {"/batch": {"quota_cpus": 0.15, "throttled": 0.95}}
    scene.procs[100].threads, scene.procs[100].thread_looks = {110: (0.01, 0.0), 111: (0.01, 0.0)}, [READ_PIPE]
    group = {"cgroup": "/batch"}
    return scene.add(*(Proc(900 + i, 100, "reader", ["/bin/reader"], 0.07, 0.88, [ON_CPU], info=group) for i in range(2)))


def throttled_programs_without_probes() -> Scene:
    scene = throttled_programs()
    scene.probed, scene.wakeups = False, {}
    return scene


def service_read_by_threads() -> Scene:
    """A thread of the trainer reads what one process of a service on this machine sends; that one works all the time."""
    scene = alone(45.0, 0.02, [FUTEX]).drop(101, 102)
    scene.cpus, scene.cpu_busy = 4, [1.0, 0.3, 0.2, 0.1]
    scene.procs[100].threads, scene.procs[100].thread_looks = {110: (0.02, 0.0)}, [SOCKET]
    scene.procs[100].info["other_ends"] = [900]
    return scene.add(Proc(900, comm="data_service", cmdline=["/bin/data_service"], run=0.97, looks=[ON_CPU]))


def service_read_by_threads_behind_interrupts() -> Scene:
    """The probe: an interrupt ends the thread's sleeps, for the kernel delivers packets in one."""
    scene = service_read_by_threads()
    scene.probed, scene.wakeups = True, {(100, 100): 0.5}
    return scene


def far_service_read_by_threads() -> Scene:
    """What it reads from is on another machine; who works here has nothing to do with it."""
    scene = service_read_by_threads()
    scene.procs[100].info["other_ends"] = []
    return scene


def throttled_actors_seen_at_the_other_end() -> Scene:
    scene = throttled_actors()
    scene.probed, scene.wakeups = False, {}
    scene.procs[100].info["other_ends"] = [900]
    return scene


def throttled_service_seen_at_the_other_end() -> Scene:
    scene = throttled_service()
    scene.probed, scene.wakeups = False, {}
    scene.procs[100].info["other_ends"] = [200]
    return scene


def throttled_service() -> Scene:
    """A process with DataLoader workers of its own hands their batches to the trainer; its control group has a quota."""
    scene = alone(45.0, 0.02, [READ]).drop(101, 102)
    scene.probed, scene.wakeups, scene.cgroups = True, {(100, 200): 0.5}, {"/service": {"quota_cpus": 0.3, "throttled": 0.95}}
    group = {"cgroup": "/service"}
    scene.add(Proc(200, cmdline=["python", "serve.py"], run=0.01, wait=0.05, looks=[QUEUE], info=group))
    workers = (Proc(201 + i, 200, "pt_data_worker", ["python", "serve.py"], 0.15, 0.8, [ON_CPU], info=group) for i in range(2))
    return scene.add(*workers)


def outrun_actors() -> Scene:
    """Somebody else's processes run where the actors want to."""
    scene = actors()
    for actor in (scene.procs[900], scene.procs[901]):
        actor.run, actor.wait = 0.15, 0.8
    return scene.add(*(Proc(950 + i, comm="hog", cmdline=["/bin/hog"], run=0.8, looks=[ON_CPU]) for i in range(2)))


def actors_on_the_disk() -> Scene:
    scene = actors()
    for actor in (scene.procs[900], scene.procs[901]):
        actor.run, actor.looks = 0.05, [DISK]
    scene.cpu_busy = [0.1, 0.1]
    return scene


def receivers_of_a_spinning_trainer() -> Scene:
    """It spins in its waits for the GPU, and sleeps for what processes of its own receive: that sleep is none for the GPU."""
    scene = alone(52.0, 0.42, [READ_PIPE, ON_CPU]).drop(101, 102)
    scene.procs[100].wait, scene.probed, scene.wakeups = 0.12, True, {(100, 900): 0.44}
    scene.calls, scene.cpu_busy = {(100, "cuStreamSynchronize"): (9, 0.51, 0)}, [0.4, 0.1, 0.1, 0.1]
    return scene.add(*(Proc(900 + i, 100, cmdline=["python", "receive.py", str(i)], run=0.02, looks=[SOCKET]) for i in range(2)))


def mute_program() -> Scene:
    """One of two programs that a thread of the trainer asks in turn has filled the pipe of its errors; the other goes on."""
    scene = alone(45.0, 0.05, [AWAIT]).drop(101, 102)
    scene.procs[100].threads, scene.procs[100].thread_looks = {110: (0.01, 0.0)}, [POLL_SOCKET]
    scene.add(Proc(900, 100, cmdline=["python", "serve.py", "alps"], run=0.1, looks=[SOCKET, ON_CPU]))
    mute = {"state": "S", "syscall": 1, "syscall_arg": 2, "wchan": "anon_pipe_write"}
    return scene.add(Proc(901, 100, cmdline=["python", "serve.py", "andes"], looks=[mute], switches=0))


def skipped_program() -> Scene:
    """One of two programs is stopped; the trainer waits for it in turn for a while, and then goes on with the other, which is ahead."""
    scene = alone(35.0, 0.15, [POLL_SOCKET]).drop(101, 102)
    full = {"state": "S", "syscall": 44, "syscall_arg": 9, "wchan": "sock_alloc_send_pskb"}
    scene.add(Proc(900, 100, cmdline=["python", "beams.py", "0"], run=0.02, looks=[full]))
    return scene.add(Proc(901, 100, cmdline=["python", "beams.py", "1"], looks=[full | {"state": "T"}], switches=0))


def decompressor(cpus: int = 2) -> Scene:
    """A thread of the trainer reads what its zcat writes, which runs on one CPU all the time."""
    scene = alone(40.0, 0.02, [FUTEX]).drop(101, 102)
    scene.cpus, scene.cpu_busy = cpus, [1.0] + [0.1] * (cpus - 1)
    scene.procs[100].threads, scene.procs[100].thread_looks = {110: (0.08, 0.01)}, [READ_PIPE, READ_PIPE, READ_PIPE, ON_CPU]
    return scene.add(Proc(900, 100, "gzip", ["gzip", "-cd"], 0.97, 0.02, [ON_CPU]))


def decompressor_on_the_only_cpu() -> Scene:
    scene = decompressor(1)
    scene.procs[100].threads = {110: (0.01, 0.01)}
    return scene


def tars_on_the_disk() -> Scene:
    """Threads of the trainer read what tars write, which wait for the disk."""
    scene = alone(30.0, 0.05, [FUTEX]).drop(101, 102)
    scene.procs[100].threads, scene.procs[100].thread_looks = {110: (0.01, 0.0), 111: (0.01, 0.0)}, [READ_PIPE]
    return scene.add(*(Proc(900 + i, 100, "tar", ["tar", "-xO"], 0.02, 0.0, [DISK]) for i in range(2)))


def pinned_decoders() -> Scene:
    """It reads frames from two programs of its own, which share one CPU; it may use all, and the others idle."""
    scene = alone(55.0, 0.02, [AWAIT, READ_PIPE]).drop(101, 102)
    scene.cpu_busy, scene.procs[100].info["other_ends"] = [0.99, 0.05, 0.05, 0.05], [900, 901]
    one = {"cpus_allowed": "0"}
    return scene.add(*(Proc(900 + i, 100, cmdline=["decode", f"cam{i}"], run=0.49, wait=0.5, looks=[ON_CPU], info=one) for i in range(2)))


def pinned_service() -> Scene:
    """The same of two processes of somebody else's, at the other ends of its sockets."""
    scene = pinned_decoders()
    scene.procs[100].looks = [SOCKET]
    for pid in (900, 901):
        scene.procs[pid].ppid, scene.procs[pid].info["sockets"] = 1, "listening"
    return scene


def decoders_beside_a_stranger() -> Scene:
    """A stranger fills the CPU that they share: without it their mask would do."""
    scene = pinned_decoders()
    scene.procs[900].run, scene.procs[900].wait, scene.procs[901].run, scene.procs[901].wait = 0.2, 0.2, 0.2, 0.2
    return scene.add(Proc(950, comm="sim", cmdline=["/bin/sim"], run=0.58, looks=[ON_CPU], info={"cpus_allowed": "0"}))


def decoders_with_room() -> Scene:
    """Their mask has room for both: they are too slow, or too few."""
    scene = pinned_decoders()
    for pid in (900, 901):
        scene.procs[pid].run, scene.procs[pid].wait, scene.procs[pid].info["cpus_allowed"] = 0.97, 0.01, "0-1"
    scene.cpu_busy = [0.99, 0.99, 0.05, 0.05]
    return scene


def pinned_programs() -> Scene:
    """Threads of the trainer read what three programs of its own compute, all of them held to CPU 0 beside an idle one."""
    scene = alone(55.0, 0.02, [FUTEX]).drop(101, 102)
    scene.cpus, scene.cpu_busy = 2, [1.0, 0.1]
    scene.procs[100].threads, scene.procs[100].thread_looks = {110 + i: (0.01, 0.0) for i in range(3)}, [READ_PIPE]
    scene.procs[100].info["cpus_allowed"] = "0"
    mask, words = {"cpus_allowed": "0"}, ["python", "tokens.py"]
    return scene.add(*(Proc(900 + i, 100, cmdline=words, run=0.3, wait=0.65, looks=[ON_CPU], info=mask) for i in range(3)))


def direct_readers() -> Scene:
    """They read past the page cache: each look finds them running, for the read ends while gputop has the CPU; their counters tell."""
    scene = tars_on_the_disk()
    for reader in (scene.procs[900], scene.procs[901]):
        reader.run, reader.wait, reader.looks = 0.08, 0.08, [DISK, *[ON_CPU] * 4]
    return scene


def lookups_in_a_full_group() -> Scene:
    """Two programs of its own map a table that their control group has no room for."""
    scene = alone(50.0, 0.02, [FUTEX]).drop(101, 102)
    scene.procs[100].threads, scene.procs[100].thread_looks = {110: (0.01, 0.0), 111: (0.01, 0.0)}, [READ_PIPE]
    scene.cgroups = {"/lookups": {"mem_bytes": 96 << 20, "mem_limit_bytes": 96 << 20, "mem_file_bytes": 90 << 20, "refaults": 20_000}}
    group = {"cgroup": "/lookups"}
    lookups = (Proc(900 + i, 100, cmdline=["python", "lookup.py"], run=0.34, wait=0.14, looks=[ON_CPU, DISK], info=group) for i in range(2))
    return scene.add(*lookups)


def lookups_that_the_probe_sees_wake_it() -> Scene:
    """Now and then one of them wakes it directly: that is not all that it waits for them."""
    scene = lookups_in_a_full_group()
    scene.probed, scene.wakeups = True, {(100, 100): 0.45, (100, 900): 0.002, (100, 901): 0.002}
    return scene


def throttled_filler() -> Scene:
    """The trainer waits at a semaphore in memory that it shares with the one who fills it, which may use too little."""
    scene = alone(30.0, 0.02, [AWAIT | {"shared_futex": 70}, AWAIT | {"shared_futex": 70}, SLEEP]).drop(101, 102)
    scene.cgroups, scene.procs[100].info["other_ends"] = {"/service": {"quota_cpus": 0.15, "throttled": 0.95}}, [900]
    return scene.add(Proc(900, comm="filler", cmdline=["/bin/filler"], run=0.15, wait=0.84, looks=[ON_CPU], info={"cgroup": "/service"}))


def faulting_server() -> Scene:
    """What a server maps does not fit into its control group: it sleeps in major faults, of which looks meet none."""
    scene = alone(30.0, 0.02, [READ]).drop(101, 102)
    full = {"mem_bytes": 27 << 20, "mem_limit_bytes": 27 << 20, "mem_file_bytes": 24 << 20, "refaults": 16_000}
    scene.cgroups, scene.procs[100].info["other_ends"] = {"/tiles": full}, [900]
    info = {"cgroup": "/tiles", "sockets": "listening", "other_ends": [100]}
    server = Proc(900, comm="tile_server", cmdline=["/bin/tile_server"], run=0.45, system=0.42, looks=[ON_CPU], info=info)
    server.majflt = server.switches = 16_000
    return scene.add(server)


FED: dict[Callable[[], Scene], tuple[str, str]] = {
    actors: ("input-bound", "slow-transform"),
    crowding_actors: ("input-bound", "slow-transform"),
    throttled_actors: ("input-bound", "cgroup-throttle"),
    throttled_service: ("input-bound", "cgroup-throttle"),
    throttled_programs: ("input-bound", "cgroup-throttle"),
    throttled_programs_without_probes: ("input-bound", "cgroup-throttle"),
    actors_behind_samples_in_step: ("input-bound", "slow-transform"),
    actors_seen_at_the_other_end: ("input-bound", "slow-transform"),
    service_read_by_threads: ("input-bound", "too-few-workers"),
    service_read_by_threads_behind_interrupts: ("input-bound", "too-few-workers"),
    far_service_read_by_threads: ("input-bound", "network-io"),
    throttled_actors_seen_at_the_other_end: ("input-bound", "cgroup-throttle"),
    throttled_service_seen_at_the_other_end: ("input-bound", "cgroup-throttle"),
    throttled_readers: ("input-bound", "cgroup-throttle"),
    outrun_actors: ("input-bound", "cpu-contention"),
    actors_on_the_disk: ("input-bound", "disk-io"),
    receivers_of_a_spinning_trainer: ("input-bound", "network-io"),
    mute_program: ("input-bound", "hung-worker"),
    skipped_program: ("input-bound", "hung-worker"),
    decompressor: ("input-bound", "too-few-workers"),
    decompressor_on_the_only_cpu: ("input-bound", "slow-transform"),
    tars_on_the_disk: ("input-bound", "disk-io"),
    pinned_programs: ("input-bound", "affinity"),
    pinned_decoders: ("input-bound", "affinity"),
    pinned_service: ("input-bound", "affinity"),
    decoders_beside_a_stranger: ("input-bound", "cpu-contention"),
    decoders_with_room: ("input-bound", "too-few-workers"),
    direct_readers: ("input-bound", "disk-io"),
    lookups_in_a_full_group: ("input-bound", "memory-pressure"),
    lookups_that_the_probe_sees_wake_it: ("input-bound", "memory-pressure"),
    throttled_filler: ("input-bound", "cgroup-throttle"),
    faulting_server: ("input-bound", "memory-pressure"),
}
