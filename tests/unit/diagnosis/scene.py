"""Hand-made boards: a scene says what each process does per second of time, and plays it into a Board."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gputop.diagnosis import Engine
from gputop.model import collective
from gputop.model.board import Board
from gputop.model.collective import Collective
from gputop.model.frame import (
    CgroupSample,
    CpuSample,
    CudaCall,
    Frame,
    Gpu,
    GpuProc,
    Hardware,
    Header,
    Host,
    LaunchRate,
    MainSamples,
    Nic,
    Preempt,
    Probes,
    ProcInfo,
    ProcSample,
    Psi,
    RdmaPort,
    SchedThread,
    Serving,
    ThreadCalls,
    ThreadSample,
    Wakeup,
)
from gputop.model.serving import COUNTERS

TRAIN = ["python", "train.py"]
QUEUE = {"state": "S", "syscall": 7, "syscall_arg": 5000}
FUTEX = {"state": "S", "syscall": 202, "syscall_arg": 1}
TURN = {"state": "S", "syscall": 202, "syscall_arg": 0}
AWAIT = {"state": "S", "syscall": 202, "syscall_arg": -1}
SLEEP = {"state": "S", "syscall": 230, "syscall_arg": 0}
ON_CPU = {"state": "R", "syscall": -1}
DISK = {"state": "D", "syscall": 17, "wchan": "folio_wait_bit_common"}
CHILD = {"state": "S", "syscall": 61}
EPOLL = {"state": "S", "syscall": 281, "syscall_arg": 5}
SOCKET = {"state": "S", "syscall": 45, "syscall_arg": 9, "wchan": "wait_woken"}
POLL_SOCKET = {"state": "S", "syscall": 7, "syscall_arg": 30_000, "wchan": "poll_schedule_timeout.constprop.0"}
ACCEPT = {"state": "S", "syscall": 288, "syscall_arg": 20, "wchan": "__skb_wait_for_more_packets"}
READ_PIPE = {"state": "S", "syscall": 0, "wchan": "pipe_read"}
READ = {"state": "S", "syscall": 0, "syscall_arg": 5, "wchan": "unix_stream_data_wait"}
HIDDEN = {"state": "S"}
START_S = 1000


@dataclass
class Proc:
    """One process: what it is, and what it does per second."""

    pid: int
    ppid: int = 1
    comm: str = "python"
    cmdline: list[str] = field(default_factory=lambda: list(TRAIN))
    run: float = 0.0
    wait: float = 0.0
    looks: list[dict] = field(default_factory=lambda: [QUEUE])
    """Samples, taken in turn."""
    system: float = 0.0
    """Part of ``run`` spent in the kernel."""
    threads: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Other threads: tid -> (run, wait)."""
    thread_looks: list[dict] = field(default_factory=list)
    """What these were met at, the first by one, the next by another."""
    thread_switches: int | None = None
    """Per second, of each of these; None: as ``switches``."""
    read_bytes: int = 0
    write_bytes: int = 0
    majflt: int = 0
    minflt: int = 0
    switches: int = 100
    info: dict = field(default_factory=dict)
    start_ticks: int = 50_000
    uninterruptible: float | None = None
    children: float = 0.0
    """CPU of programs that it ran and waited for."""
    processor: int | None = None
    locked_by: int | None = None
    grows_bytes: int = 0
    """Of memory, per second."""
    anon_bytes: int | None = None
    """Anonymous memory, and how much of it is shared; a test sets them anew as time passes."""
    shared_bytes: int | None = None
    wire: tuple[float, float, float] | None = None
    """Of a rank: share of the time in which data are on the wire; MB/s sent and received."""
    arriving: float | None = None
    """Of a feeder: share of the time in which data keep arriving at its connections."""
    interface: str = "eth0"
    """The network interface of that."""
    ends: tuple[str, str] | None = None
    """Own address and port of that, and those of its other end."""


@dataclass
class Scene:
    """A machine. ``play`` goes on from where the last one ended."""

    procs: dict[int, Proc] = field(default_factory=dict)
    gpus: dict[int, dict] = field(default_factory=dict)
    cpus: int = 4
    cpu_busy: list[float] | None = None
    stolen: float = 0.0
    """Of each CPU's busy time, by the hypervisor."""
    psi: dict[str, float] = field(default_factory=dict)
    cgroups: dict[str, dict] = field(default_factory=dict)
    calls: dict[tuple[int, str], tuple[float, float, int]] = field(default_factory=dict)
    """(pid, call) -> count, seconds inside, bytes, each per second."""
    thread_calls: dict[tuple[int, str], float] = field(default_factory=dict)
    """(tid, call) -> seconds inside per second, of those ``calls``."""
    counted_share: float = 1.0
    hists: dict[tuple[int, str], dict[int, tuple[float, float]]] = field(default_factory=dict)
    """(pid, call) -> bucket -> calls and seconds, each per second."""
    launches: dict[int, float] = field(default_factory=dict)
    """pid -> kernels per second."""
    preempts: dict[tuple[int, int], float] = field(default_factory=dict)
    wakeups: dict[tuple[int, int], float] = field(default_factory=dict)
    """(tid that slept, tid that woke it) -> share of the time slept until then."""
    futexes: dict[tuple[int, int], int] = field(default_factory=dict)
    """The same -> address of the futex at which it slept."""
    waits_at: dict[tuple[int, int], str] = field(default_factory=dict)
    """The same -> kind of what it slept at, such as ``filesystem``, if that is no futex."""
    host: dict[str, float] = field(default_factory=dict)
    """Other counters of Host, per second."""
    gauges: dict[str, int] = field(default_factory=dict)
    """Fields of Host that count nothing."""
    ports: dict[str, dict] = field(default_factory=dict)
    """Name of an RDMA port -> its fields; ``mb_per_s``: what it sends and receives, None: its driver counts packets alone."""
    nics: list[Nic] = field(default_factory=list)
    probed: bool = False
    server: dict = field(default_factory=dict)
    """Page of vLLM's API server: gauges, and counters (`gputop.model.serving.COUNTERS`) per second; ``pid``: the topmost process."""
    collectives: list[dict] = field(default_factory=list)
    """Fields of Collective; counters (`gputop.model.collective.COUNTERS`) per second."""
    sampled: dict[int, tuple[float, float, float, float]] = field(default_factory=dict)
    """pid -> share of the time that its main thread spins in waits, copies and launches; waits per second."""
    board: Board = field(default_factory=lambda: Board(Header(t_ns=START_S * 10**9, unix_ns=1_700_000_000 * 10**9, cpus=4)))
    engine: Engine = field(default_factory=Engine)
    _totals: dict = field(default_factory=dict)
    _seq: int = 0
    _t_ns: int = START_S * 10**9

    def add(self, *procs: Proc) -> Scene:
        self.procs |= {proc.pid: proc for proc in procs}
        return self

    def drop(self, *pids: int) -> Scene:
        for pid in pids:
            del self.procs[pid]
        return self

    def reap(self, pid: int, cpu_s: float) -> Scene:
        """``pid`` has waited for a child that took so much CPU, with its own children."""
        self._add((pid, "children"), cpu_s * 1e9)
        return self

    def add_cpu(self, pid: int, cpu_s: float) -> Scene:
        """``pid`` has taken so much CPU more."""
        self._add((pid, "utime"), cpu_s * 1e9)
        return self

    @property
    def ticks(self) -> int:
        """Now, as the start of a process is told."""
        return self._t_ns // 10**7

    def total(self, pid: int) -> float:
        """CPU seconds of a process and of the children that it has waited for."""
        return sum(self._totals.get((pid, what), 0.0) for what in ("utime", "stime", "children")) / 1e9

    def play(self, seconds: float, step_s: float = 0.2) -> Scene:
        """Let time pass and feed the engine at each step."""
        for _ in range(round(seconds / step_s)):
            self.board.fold(self.next_frame(step_s))
            self.engine.feed(self.board)
        return self

    def play_tenths(self, change: Callable[[int], object], seconds: float) -> Scene:
        """Let time pass in ticks of 0.1 s, each after ``change`` of its number: the engine looks at each, and is fed with every fifth."""
        for i in range(round(10 * seconds)):
            change(i)
            frame = self.next_frame(0.1)
            self.board.fold(frame)
            self.engine.look(frame)
            if i % 5 == 4:
                self.engine.feed(self.board)
        return self

    def next_frame(self, dt: float) -> Frame:
        """What a collector would send so much later."""
        self._t_ns += round(dt * 1e9)
        self._seq += 1
        return self.frame(dt)

    def frame(self, dt: float) -> Frame:
        gone = [pid for pid in self.board.procs if pid not in self.procs]
        return Frame(
            self._seq, self._t_ns, gone=gone, gpus=[self._gpu(index, values, dt) for index, values in self.gpus.items()],
            infos=[self._info(proc) for proc in self.procs.values()], procs=[self._sample(proc, dt) for proc in self.procs.values()],
            host=self._host(dt), probes=self._probes(dt) if self.probed else None,
            sampled=[self._met(pid, dt) for pid in self.sampled], servings=[self._page(dt)] if self.server else [],
            collectives=[self._collective(one, dt) for one in self.collectives],
        )  # fmt: skip

    def _collective(self, one: dict, dt: float) -> Collective:
        grown = {name: self._add((one["pid"], one["coll"], name), one[name] * dt) for name in collective.COUNTERS if name in one}
        return Collective(t_ns=self._t_ns, **one | grown)

    def _page(self, dt: float) -> Serving:
        values = {name: self._add(("served", name), value * dt) if name in COUNTERS else value for name, value in self.server.items()}
        return Serving(address="127.0.0.1:8000", family="vllm", model="tiny", t_ns=self._t_ns, **values)

    def _met(self, pid: int, dt: float) -> MainSamples:
        """As every half millisecond shows it in a quarter of the time."""
        *shares, waits = self.sampled[pid]
        watched_s = dt / 4
        spent = (self._add((pid, "met", i), share * watched_s * 1e9) for i, share in enumerate(shares))
        waiting = self._add((pid, "waiting"), 2000 * shares[0] * watched_s)
        met = self._add((pid, "met"), 2000 * self.procs[pid].run * watched_s)
        begun = self._add((pid, "waits"), waits * watched_s)
        return MainSamples(pid, self._add((pid, "watched"), watched_s * 1e9), *spent, begun, met, waiting)

    def _add(self, key: tuple, amount: float) -> int:
        self._totals[key] = self._totals.get(key, 0.0) + amount
        return round(self._totals[key])

    def _gpu(self, index: int, values: dict, dt: float) -> Gpu:
        pids, held = values.get("pids", []), values.get("held", {})
        energy = self._add(("energy", index), 1000 * dt * values["power_w"]) if "power_w" in values else None
        ran, kinds = values.get("ran", {}), values.get("kinds", {})
        plain = {"procs": [GpuProc(pid, kinds.get(pid, "C"), mem_bytes=held.get(pid), sm_pct=ran.get(pid)) for pid in pids]}
        own = ("pids", "held", "ran", "kinds", "nvlink_mb_per_s", "pcie_mb_per_s", "c2c_mb_per_s")
        plain |= {name: value for name, value in values.items() if name not in own}
        for link in ("nvlink", "pcie", "c2c"):
            if f"{link}_mb_per_s" in values:
                moved = self._add((link, index), 1e6 * dt * values[f"{link}_mb_per_s"])
                plain |= {f"{link}_rx_bytes": moved, f"{link}_tx_bytes": moved}
        return Gpu(index, self._t_ns, energy_mj=energy, **plain)

    def _info(self, proc: Proc) -> ProcInfo:
        facts = {"exe": "/usr/bin/python3", "cpus_allowed": f"0-{self.cpus - 1}", "cgroup": "/job", "libs": ["torch"]} | proc.info
        return ProcInfo(proc.pid, proc.start_ticks, ppid=proc.ppid, comm=proc.comm, cmdline=proc.cmdline, **facts)

    def _sample(self, proc: Proc, dt: float) -> ProcSample:
        pid, ns = proc.pid, dt * 1e9
        look = proc.looks[self._seq % len(proc.looks)]
        everyone = {pid: (proc.run, proc.wait)} | proc.threads
        threads = [
            ThreadSample(tid, self._add((tid, "run"), run * ns), self._add((tid, "wait"), wait * ns), self._add((tid, "slices"), 9 * dt),
                         "S", self._add((tid, "vol"), _switches(proc, i) * dt), 0, **_wait(proc, i))
            for i, (tid, (run, wait)) in enumerate(everyone.items())
        ]  # fmt: skip
        ran = sum(run for run, _ in everyone.values())
        return ProcSample(
            pid, proc.start_ticks, self._t_ns, look["state"], self._add((pid, "utime"), (ran - proc.system) * ns),
            self._add((pid, "stime"), proc.system * ns), (1 << 30) + self._add((pid, "rss"), proc.grows_bytes * dt),
            len(everyone), threads[0].oncpu_ns, threads[0].run_delay_ns,
            threads[0].timeslices, threads[0].vol, 0, minflt=self._add((pid, "minflt"), proc.minflt * dt),
            majflt=self._add((pid, "majflt"), proc.majflt * dt),
            read_bytes=self._add((pid, "read"), proc.read_bytes * dt), write_bytes=self._add((pid, "write"), proc.write_bytes * dt),
            processor=proc.processor,
            syscall=look.get("syscall"), syscall_arg=look.get("syscall_arg"), wchan=look.get("wchan"), threads=threads,
            children_ns=self._add((pid, "children"), proc.children * ns), locked_by=look.get("locked_by", proc.locked_by),
            exit_code=look.get("exit_code"), anon_bytes=proc.anon_bytes, shared_bytes=proc.shared_bytes,
            shared_futex=look.get("shared_futex"), lock_tid=look.get("lock_tid"), **self._wire(proc, dt),
        )  # fmt: skip

    def _wire(self, proc: Proc, dt: float) -> dict:
        arriving = {}
        if proc.arriving is not None:
            arriving = {"wire_arriving_ns": self._add((proc.pid, "arriving"), 1e9 * dt * proc.arriving)}
        if proc.wire is None:
            return arriving
        busy, *moved = proc.wire
        sent, received = (self._add((proc.pid, name), 1e6 * dt * rate) for name, rate in zip(("sent", "received"), moved, strict=True))
        return {
            "wire_busy_ns": self._add((proc.pid, "wire"), 1e9 * dt * busy), "wire_sent_bytes": sent, "wire_received_bytes": received,
            "wire_retrans": 0, "wire_rtt_us": 60_000, "wire_interface": proc.interface, **arriving,
            **(dict(zip(("wire_own", "wire_peer"), proc.ends, strict=True)) if proc.ends else {}),
        }  # fmt: skip

    def _host(self, dt: float) -> Host:
        busy = self.cpu_busy if self.cpu_busy is not None else [0.5] * self.cpus
        cpus = [
            CpuSample(i, self._add(("cpu", i), share * (1 - self.stolen) * dt * 1e9), 0,
                      self._add(("idle", i), (1 - share) * dt * 1e9), 0, 0, self._add(("steal", i), share * self.stolen * dt * 1e9))
            for i, share in enumerate(busy)
        ]  # fmt: skip
        psi = Psi(*(self._add(("psi", name), self.psi.get(name, 0.0) * dt * 1e9) for name in Psi.__struct_fields__))
        cgroups = [
            CgroupSample(path, values.get("version", 2), values.get("quota_cpus"), self._add((path, "periods"), 10 * dt),
                         self._add((path, "throttled"), 10 * dt * values.get("throttled", 0.0)),
                         self._add((path, "ns"), values.get("throttled", 0.0) * dt * 1e9), mem_bytes=values.get("mem_bytes"),
                         mem_limit_bytes=values.get("mem_limit_bytes"), cpuset=values.get("cpuset"),
                         read_limit=values.get("read_limit"), mem_file_bytes=values.get("mem_file_bytes"),
                         refaults=self._add((path, "refaults"), values.get("refaults", 0.0) * dt))
            for path, values in self.cgroups.items()
        ]  # fmt: skip
        others = {name: self._add(("host", name), rate * dt) for name, rate in self.host.items()}
        if self.ports:
            others["rdma"] = [self._port(name, dict(fields), dt) for name, fields in self.ports.items()]
        if self.nics:
            others["hardware"] = Hardware(nics=self.nics)
        return Host(self._t_ns, cpus, psi=psi, cgroups=cgroups or None, **others, **self.gauges)

    def _port(self, name: str, fields: dict, dt: float) -> RdmaPort:
        moved = fields.pop("mb_per_s", 0.0)
        count = None if moved is None else self._add(("port", name), 1e6 * dt * moved)
        packets = self._add(("packets", name), dt * fields.pop("packets_per_s", 0.0))
        plain = {"state": "ACTIVE", "link": "InfiniBand", "rate_mbit": 400_000} | fields
        return RdmaPort(name, rx_bytes=count, tx_bytes=count, rx_packets=packets, tx_packets=packets, **plain)

    def _probes(self, dt: float) -> Probes:
        ns = dt * 1e9
        threads = []
        for proc in self.procs.values():
            for tid, (run, wait) in ({proc.pid: (proc.run, proc.wait)} | proc.threads).items():
                stuck = proc.uninterruptible or 0.0
                threads.append(SchedThread(
                    tid, proc.pid, self._add((tid, "p.run"), run * ns), self._add((tid, "p.wait"), wait * ns), 0,
                    self._add((tid, "p.sleep"), (1 - run - wait - stuck) * ns), self._add((tid, "p.stuck"), stuck * ns), 0, 0, 0,
                ))  # fmt: skip
        return Probes(
            self._t_ns, threads,
            [Preempt(victim, by, by, self._add(("pre", victim, by), share * ns), 1) for (victim, by), share in self.preempts.items()],
            [Wakeup(wakee, by, self._process_of(by), 1, self._add(("wake", wakee, by), share * ns), **self._futex(wakee, by))
             for (wakee, by), share in self.wakeups.items()],
            [CudaCall(pid, call, self._add(("n", pid, call), count * dt), self._add(("t", pid, call), inside * ns), 0,
                      bytes=self._add(("b", pid, call), moved * dt), share=self.counted_share, **self._hist(pid, call, dt))
             for (pid, call), (count, inside, moved) in self.calls.items()],
            thread_calls=[ThreadCalls(tid, call, self._process_of(tid), 1, self._add(("tt", tid, call), inside * ns))
                          for (tid, call), inside in self.thread_calls.items()],
            launches=[LaunchRate(pid, per_s) for pid, per_s in self.launches.items()],
        )  # fmt: skip

    def _futex(self, wakee: int, by: int) -> dict[str, Any]:
        address = self.futexes.get((wakee, by))
        if (kind := self.waits_at.get((wakee, by))) is not None:
            return {"kind": kind, "uninterruptible": True}
        return {} if address is None else {"kind": "futex", "address": address}

    def _process_of(self, tid: int) -> int:
        return next((proc.pid for proc in self.procs.values() if tid in proc.threads), tid)

    def _hist(self, pid: int, call: str, dt: float) -> dict[str, dict[int, int]]:
        buckets = self.hists.get((pid, call), {})
        return {
            "hist": {b: self._add(("hn", pid, call, b), count * dt) for b, (count, _) in buckets.items()},
            "sums": {b: self._add(("hs", pid, call, b), inside * dt * 1e9) for b, (_, inside) in buckets.items()},
        }


def _wait(proc: Proc, i: int) -> dict:
    """What the i-th thread was met at; nobody asks the main thread, who is 0."""
    look = proc.thread_looks[(i - 1) % len(proc.thread_looks)] if i and proc.thread_looks else {}
    return {name: look.get(name) for name in ("syscall", "syscall_arg", "wchan")}


def training(workers: int = 2, util: float = 100.0, **worker: object) -> Scene:
    """A trainer on GPU 0 with alike torch workers; both do nothing until told."""
    scene = Scene(gpus={0: {"util_pct": util, "power_w": 300.0, "power_limit_w": 400.0, "pids": [100]}})
    scene.add(Proc(100, run=0.1, looks=[FUTEX], info={"uses_cuda": True}))
    for i in range(workers):
        scene.add(Proc(101 + i, ppid=100, comm="pt_data_worker", start_ticks=50_100 + i, **worker))
    return scene


def _switches(proc: Proc, i: int) -> int:
    return proc.switches if i == 0 or proc.thread_switches is None else proc.thread_switches
