"""Sessions made up frame by frame, with the noise of real ones: counters that run, sleep, come and go."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gputop.model.frame import (
    CpuSample,
    CudaCall,
    DiskSample,
    Frame,
    Gpu,
    GpuProc,
    Header,
    Host,
    LaunchRate,
    MainSamples,
    Mark,
    Preempt,
    Probes,
    ProcInfo,
    ProcSample,
    Psi,
    SchedThread,
    SelfCost,
    SourceState,
    ThreadCalls,
    ThreadInfo,
    ThreadSample,
    Wakeup,
)
from gputop.recording.writer import Writer

MS = 1_000_000
SECOND = 1_000_000_000
START_NS = 86_400 * SECOND
HEADER = Header(gputop="0.1", host="node7", kernel="6.18", t_ns=START_NS, unix_ns=1_790_000_000 * SECOND, cpus=16)


def record(path: Path, frames: Iterable[Frame], header: Header = HEADER, close: bool = True) -> Writer:
    """A recording of these; the writer, which goes on where it is not closed."""
    writer = Writer(str(path), header)
    for frame in frames:
        writer.add(frame)
    if close:
        writer.close()
    return writer


@dataclass
class _Proc:
    """A process that is on a CPU for ``share`` of the time: 1 spins, 0 sleeps."""

    pid: int
    share: float
    threads: int
    cpu_ns: int = 0
    delay_ns: int = 0
    vol: int = 0
    invol: int = 0
    slices: int = 0
    rss: int = 900 << 20
    faults: int = 0
    read: int = 0
    others: list[list[int]] = field(default_factory=list)

    def run(self, rng: random.Random, dt_ns: int) -> None:
        self.share = min(1.0, max(0.02, self.share + rng.gauss(0, 0.02))) if self.share else 0.0
        if not self.share:
            return
        self.cpu_ns += int(dt_ns * self.share * rng.uniform(0.9, 1))
        self.delay_ns += int(dt_ns * (1 - self.share) * rng.random() * 0.3)
        vol, invol = rng.randrange(12), rng.randrange(5)
        self.vol, self.invol, self.slices = self.vol + vol, self.invol + invol, self.slices + vol + invol
        self.rss += rng.choice((0, 0, 4096, 8192, -4096))
        self.faults += rng.randrange(40)
        self.read += rng.choice((0, 0, 0, 131072, 602112))
        for other in self.others[: 1 + self.threads // 4]:
            other[0] += int(dt_ns * 0.1 * rng.random())
            other[1] += int(dt_ns * 0.01 * rng.random())
            other[2] += rng.randrange(6)


class Session:
    """``gpus`` trainers with their workers, and bystanders, ``procs`` processes in all; half of the workers are busy."""

    def __init__(self, gpus: int = 1, procs: int = 10, threads: int = 8, seed: int = 1, probes: bool = True) -> None:
        self.rng = random.Random(seed)
        self.gpus, self.probes = gpus, probes
        self.procs = [self._proc(i, threads) for i in range(procs)]
        self.hot = self.procs[: max(gpus, procs * 9 // 10)]
        self.seq, self.t_ns = 0, START_NS
        self.energy = [10_000_000 * (i + 1) for i in range(gpus)]
        self.counts: dict[tuple[int, ...], list[int]] = {}

    def _proc(self, i: int, threads: int) -> _Proc:
        proc = _Proc(3000 + i * 7, (0.9, 0.5, 0.2, 0.0)[i % 4] if i >= self.gpus else 0.95, threads if i < self.gpus else 2)
        proc.cpu_ns, proc.vol = self.rng.randrange(1 << 42), self.rng.randrange(1 << 20)
        proc.others = [[self.rng.randrange(1 << bits) for bits in (40, 34, 16)] for _ in range(proc.threads - 1)]
        return proc

    def frames(self, count: int, interval_ns: int = 100 * MS, key_every: int = 100) -> Iterator[Frame]:
        """The next ``count`` frames."""
        for _ in range(count):
            yield self.frame(interval_ns, self.seq % key_every == 0)

    def frame(self, interval_ns: int, key: bool) -> Frame:
        self.t_ns += interval_ns
        now = self.t_ns + self.rng.randrange(200_000)
        for proc in self.procs:
            proc.run(self.rng, interval_ns)
        slow = key or self.seq % 10 == 0
        frame = Frame(self.seq, now, late_ns=now - self.t_ns, key=key)
        frame.gpus = [self._gpu(i, now, key, slow) for i in range(self.gpus)]
        frame.procs = [self._sample(proc, now) for proc in (self.procs if slow else self.hot)]
        frame.infos = [self._info(proc) for proc in self.procs] if key else []
        frame.host = self._host(now, slow)
        frame.probes = self._probes(now) if self.probes else None
        frame.sampled = [] if self.probes or not (key or self.seq % 4 == 1) else [self._sampled(proc) for proc in self.procs[: self.gpus]]
        frame.sources = [SourceState("nvml", "ok", detail={"driver": "580.95"}), SourceState("ebpf", "ok")] if key else []
        frame.cost = SelfCost(self.seq * 2_000_000, 60 << 20) if slow else None
        if self.seq % 250 == 249:
            frame.marks = [Mark(now, f"epoch {self.seq // 250}")]
        self.seq += 1
        return frame

    def _gpu(self, i: int, now: int, key: bool, slow: bool) -> Gpu:
        rng, power = self.rng, self.rng.randrange(80_000, 700_000)
        self.energy[i] += power // 10_000
        values: dict[str, object] = {
            "util_pct": float(rng.choice((0, 31, 97, 98, 100))), "util_t_ns": now - rng.randrange(100 * MS),
            "mem_util_pct": float(rng.randrange(40)), "mem_used_bytes": 62 << 30, "power_w": power / 1000, "power_instant": True,
            "energy_mj": self.energy[i], "sm_clock_mhz": rng.choice((1980, 1980, 1755)), "mem_clock_mhz": 3201, "throttle_mask": 0,
            "nvml_ns": self.seq * 900_000 + rng.randrange(90_000), "nvml_calls": self.seq * 8,
        }  # fmt: skip
        if slow:
            values |= {"temp_c": float(rng.randrange(50, 60)), "pcie_rx_bytes": self.seq * 30_000_000 + rng.randrange(10_000_000)}
            values["procs"] = [GpuProc(3000 + i * 7, mem_bytes=60 << 30, sm_pct=float(rng.randrange(100)))]
        if key:
            values |= {"name": "NVIDIA H200", "uuid": f"GPU-{i:032x}", "mem_total_bytes": 141 << 30}
            values["missing"] = {"fan_pct": "not supported"}
        return Gpu(i, now, **values)  # type: ignore[arg-type]

    def _info(self, proc: _Proc) -> ProcInfo:
        return ProcInfo(
            proc.pid, proc.pid * 31, ppid=3000, uid=1000, user="ann", comm="python3", exe="/usr/bin/python3.11",
            cmdline=["python3", "train.py", "--config", f"configs/vit_{proc.pid % 3}.yaml"], cgroup="/user.slice/user-1000.slice",
            cpus_allowed="0-15", env={"RANK": str(proc.pid % 8), "WORLD_SIZE": "8"}, libs=["torch"],
            threads=[ThreadInfo(proc.pid + t, "pt_main_thread" if not t else f"pt_data_pin_{t}") for t in range(proc.threads)],
        )  # fmt: skip

    def _sample(self, proc: _Proc, now: int) -> ProcSample:
        threads = [ThreadSample(proc.pid, proc.cpu_ns, proc.delay_ns, proc.slices, "R" if proc.share > 0.5 else "S", proc.vol, proc.invol)]
        threads += [ThreadSample(proc.pid + 1 + t, a, b, c, "S", c, 0) for t, (a, b, c) in enumerate(proc.others)]
        ticks = proc.cpu_ns // (10 * MS) * (10 * MS)
        processor = self.rng.randrange(16) if proc.share else 3
        return ProcSample(
            proc.pid, proc.pid * 31, now, "R" if proc.share > 0.5 else "S", ticks, ticks // 10, proc.rss, proc.threads, proc.cpu_ns,
            proc.delay_ns, proc.slices, proc.vol, proc.invol, proc.faults, 0, None, proc.read, 0, processor,
            -1 if proc.share > 0.5 else 232, 5, None if proc.share > 0.5 else "ep_poll", None,
            threads if proc in self.hot else [], None, proc.read * 3,
        )  # fmt: skip

    def _host(self, now: int, slow: bool) -> Host:
        ticks = self.seq * 10 * MS
        busy = [CpuSample(c, ticks * (c % 4) // 10 * 10, ticks // 100, ticks // 2, 0, 0, 0) for c in range(16)]
        ctxt, running = self.seq * 3000 + self.rng.randrange(900), self.rng.randrange(9)
        if not slow:
            return Host(now, busy, ctxt=ctxt, procs_running=running, psi=Psi(self.seq * 10_007))
        return Host(
            now, busy, ctxt=ctxt, procs_running=running, load1=3.5 + self.rng.randrange(9) / 100, mem_total_bytes=512 << 30,
            mem_available_bytes=(200 << 30) + self.rng.randrange(1 << 20) * 4096,
            disks=[DiskSample("nvme0n1", self.seq, self.seq * 4096, self.seq, 0, 0, 0, self.seq)],
        )  # fmt: skip

    def _count(self, *key: int) -> list[int]:
        cell = self.counts.setdefault(key, [0, 0])
        if self.rng.random() < 0.6:
            cell[0] += self.rng.randrange(1, 20)
            cell[1] += self.rng.randrange(9 * MS)
        return cell

    def _sampled(self, proc: _Proc) -> MainSamples:
        met = proc.cpu_ns // 2_000_000
        return MainSamples(proc.pid, proc.cpu_ns // 4, proc.cpu_ns // 9, proc.cpu_ns // 90, proc.cpu_ns // 70, met // 30, met, met // 2)

    def _probes(self, now: int) -> Probes:
        busy = [proc for proc in self.hot if proc.share]
        threads = [
            SchedThread(p.pid, p.pid, p.cpu_ns, p.delay_ns, p.delay_ns // 2, p.cpu_ns // 3, 0, p.vol, p.invol, self.rng.randrange(9 * MS),
                        {b: (p.vol >> (b - 14)) for b in range(14, 22)})
            for p in busy
        ]  # fmt: skip
        preempts = [Preempt(p.pid, 812, 812, self._count(p.pid, 1)[1], self._count(p.pid, 1)[0]) for p in busy[:10]]
        wakeups = [Wakeup(3000, p.pid, p.pid, *self._count(p.pid, 2), 7, "pipe", timed=True) for p in busy[:20]]
        wakeups += [
            Wakeup(p.pid, 3000, 3000, *self._count(p.pid, 5), 202, "futex", 0x7F38AB4F9970 + (p.pid << 12), shared=True) for p in busy[:10]
        ]
        own = [ThreadCalls(p.pid + thread, "cuStreamSynchronize", p.pid, *self._count(p.pid, 6 + thread))
               for p in self.procs[: self.gpus] for thread in (0, 9)]  # fmt: skip
        calls = [CudaCall(p.pid, call, *self._count(p.pid, n), self.rng.randrange(9 * MS), {17: self._count(p.pid, n)[0]})
                 for p in self.procs[: self.gpus] for n, call in ((3, "cuStreamSynchronize"), (4, "cuMemcpyHtoDAsync_v2"))]  # fmt: skip
        told = self.seq % 20 == 7 or self.seq % 100 == 0
        launches = [LaunchRate(p.pid, 900.0 + 10 * (self.seq // 20) + p.pid) for p in self.procs[: self.gpus]] if told else []
        used, size = {"threads": len(threads)}, {"threads": 16384}
        return Probes(now, threads, preempts, wakeups, calls, map_used=used, map_size=size, launches=launches, thread_calls=own)
