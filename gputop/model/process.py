"""Processes and threads, from /proc, and their stacks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gputop.model.stream import BOUNDED


class ThreadInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A thread's identity (/proc/PID/task/TID/comm)."""

    tid: int
    comm: str


class Names(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Names in files of the machine, for a trainer's container and pod; a field without one is empty, with the reason in ``missing``."""

    container: str = ""  # the container's name
    pod: str = ""
    namespace: str = ""  # the pod's
    pod_by: str = ""  # where the pod's name stands; ``HOSTNAME`` may differ from it, as in an indexed job
    runtime: str = ""  # runtime, id and pod uid, where only its mounts or a file of the runtime tell them
    container_id: str = ""
    pod_uid: str = ""
    net_ns: int = 0  # inode of its network namespace (/proc/PID/ns/net); 0: the collector's own
    missing: dict[str, str] = {}  # field, or ``environment`` -> why it could not be read
    packages: dict[str, str] = {}  # versions of the packages that decide how long a step takes: ``torch``, ``CUDA of torch``


class Transport(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Means by which a rank's data may reach other ranks: what it maps, holds open and has as variables. Bytes are counted elsewhere."""

    library: str = ""  # collective library that it maps: ``nccl`` or ``rccl``; torch maps it whatever its process group uses
    version: str = ""  # of that: ``2.21.5``
    shm: int = 0  # mappings of /dev/shm/nccl-*, by which NCCL's ranks of one host exchange data
    devices: Annotated[list[str], BOUNDED] = []  # RDMA devices that it has open (/dev/infiniband/uverbs*): ``mlx5_0``
    variables: dict[str, str] = {}  # its NCCL_*, RCCL_* and GLOO_* variables, those of /etc/nccl.conf too
    configured: Annotated[list[str], BOUNDED] = []  # names of those that stand in /etc/nccl.conf alone
    lacks_devices: bool = False  # the host has RDMA devices, and /dev/infiniband is not there for it, as in a container
    shm_bytes: int | None = None  # size of its /dev/shm
    missing: dict[str, str] = {}  # field -> why it is not known


class ProcInfo(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A process's identity; comes when it is new, when it changes, and in key frames."""

    pid: int
    start_ticks: int  # /proc/PID/stat field 22 (clock ticks since boot); pid and start time identify a process
    ppid: int = 0
    uid: int | None = None
    user: str = ""
    comm: str = ""
    cmdline: Annotated[list[str], BOUNDED] = []  # /proc/PID/cmdline, bounded; empty for kernel threads and zombies
    exe: str = ""
    ns_pid: int | None = None  # its pid in its own namespace (NSpid of /proc/PID/status); None if that is ``pid``
    cgroup: str = ""  # path in the unified hierarchy, or in v1's cpu controller
    cpus_allowed: str = ""  # cpus_allowed_list of /proc/PID/status: ``0-3,8``
    env: dict[str, str] = {}  # its variables among `gputop.model.roles.ENV_OF_INTEREST`; empty if environ cannot be read
    uses_cuda: bool | None = None  # maps libcuda or holds /dev/nvidia*; None if that cannot be read
    libs: Annotated[list[str], BOUNDED] = []  # mapped libraries that show its kind: ``torch``, ``jax``, ``dali``, ``mpi`` …
    threads: Annotated[list[ThreadInfo], BOUNDED] = []  # its threads' names; for trainers and workers only
    wait_unreadable: str = ""  # why its syscall and wchan cannot be read; empty if they can
    sockets: str = ""
    """``listening`` (it, or a parent in its session, has a listening socket), ``connected`` (it has a connection, UNIX sockets aside, or
    reads from one that it made), ``none``; empty: unknown. Read for a trainer that sleeps in poll, or that has no workers and sleeps
    otherwise."""
    session: int = 0  # /proc/PID/stat field 6; 0: none, or not known
    cpu_cgroup: str = ""  # path in v1's cpu controller if ``cgroup`` is another controller's; otherwise empty
    policy: int = 0  # scheduling policy of its main thread (/proc/PID/stat field 41): 0 ordinary, 1 FIFO, 2 RR, 3 batch, 5 idle, 6 deadline
    other_ends: Annotated[list[int], BOUNDED] = []
    """Pids at the other ends of the pipes and sockets that its main thread reads or polls, or its other threads read, pids that map the
    memory with the futex in which its main thread sleeps, or use its System V semaphores, and daemons that may serve the files it waits for
    (FUSE); for a trainer without workers, and for these pids themselves."""
    read_by: list[int] = []
    """Pids at the other ends of the pipes, FIFOs and sockets to which its main thread waited to write; for a trainer."""
    other_cgroups: Annotated[list[str], BOUNDED] = []  # paths in other hierarchies that name a container, pod or Slurm job
    serves: bool = False
    """True for a child of a trainer that serves others: its main thread waits for the end, one thread for new connections, and one per
    client for that client's requests."""
    names: Names | None = None  # for a trainer; None while they are not read
    transport: Transport | None = None  # for a trainer that has peers; None while it is not read
    group_sizes: dict[str, int] = {}
    """Sizes of its training's groups of ranks (fields of `gputop.model.parallel.Parallel`) in the configuration files that its command line
    names; for a trainer that has peers."""


NOBODY = ProcInfo(0, 0)  # its empty lists are shared by all processes


class ThreadSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thread of a trainer, a worker or a process that feeds one (/proc/PID/task/TID/{schedstat,stat,status})."""

    tid: int
    oncpu_ns: int  # schedstat field 1, cumulative
    run_delay_ns: int  # schedstat field 2, cumulative: runnable and not running, cgroup throttling included
    timeslices: int  # schedstat field 3
    state: str | None = None
    vol: int | None = None
    invol: int | None = None
    syscall: int | None = None
    """Call, argument and wchan as in `ProcSample`, for a few working threads for which the main thread may wait."""
    syscall_arg: int | None = None
    wchan: str | None = None


class ProcSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One process at ``t_ns``. Counters are cumulative since it started.

    ``utime_ns``, ``stime_ns``, faults and ``rss_bytes`` are the whole process's (/proc/PID/stat). ``oncpu_ns``, ``run_delay_ns``,
    ``timeslices``, ``vol`` and ``invol`` are its main thread's (schedstat, status).
    """

    pid: int
    start_ticks: int
    t_ns: int
    state: str  # state of the main thread: R, S, D, T, t, Z, X or I
    utime_ns: int
    stime_ns: int
    rss_bytes: int
    num_threads: int
    oncpu_ns: int | None = None
    run_delay_ns: int | None = None
    timeslices: int | None = None
    vol: int | None = None
    invol: int | None = None
    minflt: int | None = None
    majflt: int | None = None
    blkio_delay_ns: int | None = None  # stat field 42; None if delay accounting is off or the value is garbage
    read_bytes: int | None = None  # /proc/PID/io read_bytes: from storage
    write_bytes: int | None = None
    processor: int | None = None  # the CPU that it last ran on
    syscall: int | None = None  # number of the system call in which the main thread sleeps; -1: it runs; None: not readable
    syscall_arg: int | None = None
    """The argument that distinguishes waits: poll's timeout in ms; futex's timeout (-1: none, 0: any); else the first argument, often a
    descriptor."""
    wchan: str | None = None
    swapin_delay_ns: int | None = None
    threads: Annotated[list[ThreadSample], BOUNDED] = []
    """Its threads, the main thread included; for trainers, workers, and processes that feed a trainer without workers."""
    kernel_stack: str | None = None
    rchar_bytes: int | None = None  # /proc/PID/io rchar: bytes of read calls, from pipes, sockets and the page cache too
    children_ns: int | None = None  # stat's cutime + cstime: CPU time of the children that it has waited for, and of theirs
    locked_by: int | None = None
    """Pid that holds the lock it waits for: an exclusive one on a file, which it asks for or has open (/proc/locks), for a trainer or
    worker that sleeps by a timer, or in fcntl or flock; or a mutex that it shares with that process, also for programs of theirs."""
    exit_code: int | None = None  # stat field 52 of a zombie: its wait status (0: success); None while it lives, or if not readable
    unfollowed: int = 0  # number of recently running threads that are too many to be in each sample: ``threads`` lacks their switches
    anon_bytes: int | None = None
    """Its anonymous memory, swapped or not (RssAnon + VmSwap of status), every 1.5 s; for a trainer or worker. After a fork parent and
    child both count what they share."""
    shared_bytes: int | None = None
    """The part of ``anon_bytes`` that it shares with other processes (smaps_rollup: Anonymous - Private_Dirty), read now and then; for a
    worker. None: not readable, or not read yet."""
    shared_futex: int | None = None
    """Which futex between processes its main thread sleeps in (a number for its place, the same in all processes); None: in none. For a
    trainer or worker."""
    wire_busy_ns: int | None = None
    """For so long the busiest of its TCP connections had sent what the other end had not acknowledged, though that end reads (tcp_info:
    tcpi_busy_time - tcpi_rwnd_limited), since it was first read; twice a second, of a trainer with other ranks, and of a process that
    feeds a trainer over connections of its own."""
    wire_sent_bytes: int | None = None  # over all its TCP connections, acknowledged (tcpi_bytes_acked)
    wire_received_bytes: int | None = None
    wire_retrans: int | None = None  # segments sent again (tcpi_total_retrans)
    wire_rtt_us: int | None = None  # smoothed round trip of the busiest connection
    wire_interface: str | None = None  # by which that one goes out: ``eth0``; its own address if no interface is known by that
    lock_tid: int | None = None
    """Thread that holds the mutex or read-write lock (glibc's) in which its main thread sleeps, one of its own or of ``locked_by``; None:
    in none, or its holder is not known. For a trainer, a worker, and programs of theirs."""
    wire_arriving_ns: int | None = None
    """For so long data kept arriving at one of its TCP connections, in large segments, since it was first read; twice a second, with the
    other fields ``wire_``, of a trainer with other ranks and of a process that feeds a trainer. Of one that listens these fields are of the
    connections that it made itself, and the time in which it awaited an answer of another host counts as well."""
    wire_own: str | None = None
    """Own address and port of the busiest connection, ``10.0.0.1:29500``: its two ends, on two hosts, are paired by these."""
    wire_peer: str | None = None  # address and port of its other end


class Met(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The wait of a process in some samples that are merged into a later one, see `ProcSample`."""

    pid: int
    times: int
    state: str
    syscall: int | None = None
    syscall_arg: int | None = None
    wchan: str | None = None


class Stack(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One thread's stack, taken at ``t_ns``; frames innermost first."""

    pid: int
    tid: int
    t_ns: int
    python: Annotated[list[str], BOUNDED] = []
    kernel: Annotated[list[str], BOUNDED] = []
    syscall: str = ""
    wchan: str = ""
    wait: str = ""  # what the thread waits for, in words
    error: str = ""  # why the stack could not be read; otherwise empty
    incident: str = ""
    thread: str = ""  # the thread's name: Python's, else the kernel's comm
    state: str = ""  # the thread's state at that moment: R, S, D, T, t or Z
    gil: bool = False  # whether it held the GIL
    missing: dict[str, str] = {}
    """Part (``kernel``, ``syscall``, ``native``) -> why it is missing; ``moment`` -> why the parts may be of different moments."""
    source: dict[str, str] = {}  # ``file:line`` -> the line's text, for frames of the user's own code
