"""A made /proc (and /sys) under a temporary root: as the kernel would write it, with what a test wants in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from gputop.model.frame import Frame, ProcInfo, ProcSample
from gputop.sources import Beat, Source
from gputop.sources.procfs import ProcfsSource

TICK_NS = 100_000_000


class FakeProc:
    """Holds the root; its methods write what the kernel would show."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.threads, self.last_pid = 100, 4242
        self.born(self.last_pid)
        self.write("proc/stat", "cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 10 2 10 100 5 1 2 3 0 0\nintr 5 0\nctxt 777\nprocs_running 3\n")
        self.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n")

    def write(self, path: str, data: str | bytes) -> Path:
        """Write a file in place, so that descriptors kept on it see the new text."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data.encode() if isinstance(data, str) else data)
        return file

    def folder(self, pid: int, tid: int | None = None) -> str:
        return f"proc/{pid}/" if tid is None else f"proc/{pid}/task/{tid}/"

    def process(self, pid: int, *, comm: str = "python", cmdline: bytes = b"python\0train.py\0", uid: int = 1000, cgroup: str = "0::/job\n",
                environ: bytes = b"", maps: str = "", allowed: str = "0-3", **counters: object) -> None:
        """A process with one thread."""
        base = self.folder(pid)
        self.counters(pid, comm=comm, **counters)
        self.write(base + "cmdline", cmdline)
        self.write(base + "cgroup", cgroup)
        self.write(base + "environ", environ)
        self.write(base + "maps", maps)
        self.identity(pid, comm, uid, allowed)
        self.write(base + "io", "rchar: 7\nwchar: 0\nsyscr: 1\nsyscw: 0\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n")
        self.write(base + "syscall", "232 0x4 0x7f00 0x20 0x3e8 0x0 0x0 0x7ffe 0x7f01\n")
        self.write(base + "wchan", "ep_poll")
        (self.root / base / "task" / str(pid)).mkdir(parents=True, exist_ok=True)

    def counters(self, pid: int, *, comm: str = "python", state: str = "S", ppid: int = 1, utime: int = 0, stime: int = 0, threads: int = 1,
                 start: int = 500, rss: int = 100, blkio: int = 0, flags: int = 0x400000, oncpu: int = 1, delay: int = 2, slices: int = 3,
                 stack: int = 0, vsize: int = 1_000_000) -> None:  # fmt: skip
        """/proc/PID/stat and schedstat."""
        text = stat(pid, comm, state, ppid, utime, stime, threads, start, rss, blkio, flags, stack, vsize=vsize)
        self.write(self.folder(pid) + "stat", text)
        self.write(self.folder(pid) + "schedstat", f"{oncpu} {delay} {slices}\n")

    def identity(self, pid: int, comm: str = "python", uid: int = 1000, allowed: str = "0-3", vol: int = 11, invol: int = 22,
                 ns: str = "") -> None:  # fmt: skip
        """/proc/PID/status."""
        self.write(self.folder(pid) + "status", status(comm, "S", uid, allowed, vol, invol, f"{pid}{ns}"))

    def thread(self, pid: int, tid: int, *, comm: str = "pt_data_pin", state: str = "S", oncpu: int = 1, delay: int = 0, slices: int = 1,
               vol: int = 5, invol: int = 6) -> None:  # fmt: skip
        """A thread besides the main one; stat's num_threads is the caller's."""
        base = self.folder(pid, tid)
        self.write(base + "comm", comm + "\n")
        self.write(base + "schedstat", f"{oncpu} {delay} {slices}\n")
        self.write(base + "stat", stat(tid, comm, state))
        self.write(base + "status", status(comm, state, 1000, "0-3", vol, invol, str(tid)))

    def born(self, last_pid: int) -> None:
        """What tells a reader that pids were given out."""
        self.last_pid = last_pid
        self.write("proc/loadavg", f"0.50 0.40 0.30 1/{self.threads} {last_pid}\n")

    def vanish(self, pid: int) -> None:
        shutil.rmtree(self.root / self.folder(pid))
        self.threads -= 1
        self.born(self.last_pid)


def stat(pid: int, comm: str = "python", state: str = "S", ppid: int = 1, utime: int = 0, stime: int = 0, threads: int = 1,
         start: int = 500, rss: int = 100, blkio: int = 0, flags: int = 0x400000, stack: int = 0, children: int = 0,
         vsize: int = 1_000_000) -> str:  # fmt: skip
    head = f"{pid} ({comm}) {state} {ppid} 1 1 0 -1 {flags} 31 0 7 0 {utime} {stime} {children} 1 20 0 {threads} 0 {start} {vsize} {rss}"
    return f"{head} 18446744073709551615 1 1 {stack} 0 0 0 0 0 0 0 0 0 17 2 0 0 {blkio} 0 0 0 0 0 0 0 0 0 0\n"


def status(comm: str, state: str, uid: int, allowed: str, vol: int, invol: int, ns_pid: str) -> str:
    uids = "\t".join([str(uid)] * 4)
    return (
        f"Name:\t{comm}\nUmask:\t0022\nState:\t{state} (sleeping)\nTgid:\t{ns_pid.split()[0]}\n"
        f"Uid:\t{uids}\nNSpid:\t{ns_pid}\nCpus_allowed:\tf\n"
        f"Cpus_allowed_list:\t{allowed}\nvoluntary_ctxt_switches:\t{vol}\nnonvoluntary_ctxt_switches:\t{invol}\nx86_Thread_features:\t\n"
    )


class Reader:
    """Beats a source, 100 ms apart by the clock it makes up."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.state = source.open()
        if isinstance(source, ProcfsSource):  # a made file may cost many times what one of /proc does
            source._budget_ns = 1 << 60
        self.seq = -1
        self.t_ns = 10**12

    def beat(
        self, hot: set[int] | None = None, key: bool | None = None, gpu_pids: set[int] | None = None, wakers: set[int] | None = None,
        programs: set[int] | None = None, trainers: set[int] | None = None,
    ) -> Frame:
        self.seq += 1
        self.t_ns += TICK_NS
        key = self.seq == 0 if key is None else key
        frame = Frame(self.seq, self.t_ns, key=key)
        told = {"wakers": frozenset(wakers or ()), "programs": frozenset(programs or ()), "trainers": frozenset(trainers or ())}
        self.last = Beat(self.t_ns, self.seq, key, frozenset(gpu_pids or ()), frozenset(hot or ()), **told)
        self.source.read(self.last, frame)
        return frame

    def second(self, hot: set[int] | None = None, gpu_pids: set[int] | None = None) -> list[Frame]:
        return [self.beat(hot, gpu_pids=gpu_pids) for _ in range(10)]


def sample(frames: Frame | list[Frame], pid: int) -> ProcSample:
    """The latest sample of ``pid``."""
    frames = [frames] if isinstance(frames, Frame) else frames
    return [proc for frame in frames for proc in frame.procs if proc.pid == pid][-1]


def info(frames: Frame | list[Frame], pid: int) -> ProcInfo:
    """The latest identity of ``pid``."""
    frames = [frames] if isinstance(frames, Frame) else frames
    return [info for frame in frames for info in frame.infos if info.pid == pid][-1]
