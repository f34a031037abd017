"""Hand-made frames of a training job: two GPUs, a trainer with four starving workers, and a process that hogs a CPU."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gputop.model.frame import (
    CpuSample,
    Frame,
    Gpu,
    GpuProc,
    Header,
    Host,
    ProcInfo,
    ProcSample,
    Psi,
    SelfCost,
    SourceState,
    ThreadInfo,
    ThreadSample,
)
from gputop.stream.session import Session

TICK_NS = 100_000_000
START_NS = 1_000_000_000_000
UNIX_NS = 1_795_000_000_000_000_000
GIB = 1 << 30
TRAINER, WORKERS, HOG = 3821, (3840, 3841, 3842, 3843), 903
HOSTILE = "evil\x1b[2J[red]\u202ename"

HEADER = Header(gputop="0", host="node7", kernel="6.18", boot_id="b", t_ns=START_NS, unix_ns=UNIX_NS, interval_ns=TICK_NS, cpus=4)
COMMAND = ["python", "train.py", "--epochs", "3"]


def frames(count: int, starving: bool = True, gpus: int = 2) -> Iterator[Header | Frame]:
    """The header and ``count`` frames."""
    yield HEADER
    for i in range(count):
        yield _frame(i, starving, gpus)


def session(count: int = 100, starving: bool = True, gpus: int = 2) -> Session:
    """A session that has seen the stream."""
    seen = Session()
    for item in frames(count, starving, gpus):
        seen.ingest(item)
    return seen


def ranks(count: int, late: int | None = None, ticks: int = 100) -> Session:
    """A session of a training with a rank on each of ``count`` GPUs; the others wait for the rank ``late`` from the 40th tick on."""
    seen = Session()
    for item in of_ranks(count, late, ticks):
        seen.ingest(item)
    return seen


def of_ranks(count: int, late: int | None = None, ticks: int = 100) -> Iterator[Header | Frame]:
    """The stream of `ranks`."""
    yield msgspec.structs.replace(HEADER, cpus=4 * count)
    for i in range(ticks):
        yield rank_frame(i, count, late if i >= 40 else None)


def rank_frame(i: int, count: int, late: int | None) -> Frame:
    """One frame of a training with a rank on each GPU."""
    t_ns = START_NS + i * TICK_NS
    key = i % 100 == 0
    frame = Frame(i, t_ns, key=key)
    busy = {rank: 97.0 if late is None else 61.0 + i % 5 if rank == late else 33.0 + (i + rank) % 6 for rank in range(count)}
    gpus = [_gpu(rank, t_ns, busy[rank], key) for rank in range(count)]
    procs = {rank: [GpuProc(TRAINER + rank, mem_bytes=(50 + rank) * GIB, sm_pct=31.0)] for rank in range(count)}
    frame.gpus = [msgspec.structs.replace(gpu, procs=procs[gpu.index]) if key else gpu for gpu in gpus]
    frame.procs = [_rank(i, t_ns, rank, late) for rank in range(count)]
    frame.host = Host(t_ns, cpus=[CpuSample(c, i * 90_000_000, i * 5_000_000, i * 5_000_000, 0, 0, 0) for c in range(4 * count)])
    if key:
        frame.infos = [
            ProcInfo(
                TRAINER + rank, 100, 1, 1000, "ada", "python", COMMAND, uses_cuda=True, libs=["torch", "cuda"], cpus_allowed="0-3",
                env={"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "node7", "MASTER_PORT": "29500"},
                threads=[ThreadInfo(TRAINER + rank, "python")],
            )
            for rank in range(count)
        ]  # fmt: skip
        frame.sources = [SourceState("nvml", "ok", detail={"driver": "580.95.05", "cuda": "13.0"})]
    return frame


def _rank(i: int, t_ns: int, rank: int, late: int | None) -> ProcSample:
    """A main thread that works, or sleeps on a socket; the late one works all the time."""
    pid = TRAINER + rank
    if rank == late:
        return _sample(pid, 100, i, t_ns, "R", 92_000_000, 1_000_000, 1, 3, syscall=-1)
    return _sample(pid, 100, i, t_ns, "S", 30_000_000, 1_000_000, 12, 1, syscall=7, syscall_arg=5000)


def _frame(i: int, starving: bool, gpus: int) -> Frame:
    t_ns = START_NS + i * TICK_NS
    key = i % 100 == 0
    frame = Frame(i, t_ns, key=key)
    busy = 15.0 if starving and i % 10 >= 4 else 96.0
    frame.gpus = [_gpu(index, t_ns, busy, key) for index in range(gpus)]
    frame.procs = [_trainer(i, t_ns), *(_worker(i, t_ns, n, starving) for n in range(4)), _hog(i, t_ns)]
    frame.host = Host(
        t_ns, cpus=[CpuSample(c, i * 90_000_000, i * 5_000_000, i * 5_000_000, 0, 0, 0) for c in range(4)],
        psi=Psi(i * 60_000_000, i * 1_000_000, 0, 0, 0),
    )  # fmt: skip
    if key:
        frame.infos = _infos()
        frame.sources = [
            SourceState("nvml", "ok", detail={"driver": "580.95.05", "cuda": "13.0"}),
            SourceState("ebpf", "unavailable", "needs CAP_BPF", "sudo gputop"),
        ]
        frame.cost = SelfCost(i * 1_500_000, 20 << 20)
    return frame


def _gpu(index: int, t_ns: int, util: float, key: bool) -> Gpu:
    power = 180 + 4.5 * util
    if not key:
        return Gpu(index, t_ns, util_pct=util, util_t_ns=t_ns, power_w=power, power_instant=True, sm_active_pct=util * 0.6)
    procs = [GpuProc(TRAINER, mem_bytes=62 * GIB, sm_pct=31.0)] if index == 0 else []
    return Gpu(
        index, t_ns, name="NVIDIA H200", uuid=f"GPU-{index}", util_pct=util, util_t_ns=t_ns, power_w=power, power_instant=True,
        sm_active_pct=util * 0.6, mem_used_bytes=62 * GIB, mem_total_bytes=141 * GIB, power_limit_w=700.0, temp_c=54.0,
        sm_clock_mhz=1980, mem_clock_mhz=3201, throttle_mask=4 if index else 0, pcie_rx_bytes=t_ns // 300, pcie_tx_bytes=t_ns // 3000,
        procs=procs, missing={"fan_pct": "not supported on this GPU"},
    )  # fmt: skip


def _infos() -> list[ProcInfo]:
    trainer = ProcInfo(
        TRAINER, 100, 1, 1000, "ada", "python", COMMAND, uses_cuda=True, libs=["torch", "cuda"], cpus_allowed="0-3",
        env={"RANK": "0", "WORLD_SIZE": "1"}, threads=[ThreadInfo(TRAINER, "python")],
    )  # fmt: skip
    workers = [
        ProcInfo(pid, 200 + n, TRAINER, 1000, "ada", "pt_data_worker", COMMAND, uses_cuda=True, libs=["torch", "cuda"], cpus_allowed="0-3",
                 threads=[ThreadInfo(pid, "pt_data_worker")])
        for n, pid in enumerate(WORKERS)
    ]  # fmt: skip
    return [trainer, *workers, ProcInfo(HOG, 50, 1, 0, "root", HOSTILE[:15], [HOSTILE], cpus_allowed="0-3")]


def _sample(pid: int, ticks: int, i: int, t_ns: int, state: str, on: int, wait: int, vol: int, invol: int, **more: object) -> ProcSample:
    thread = ThreadSample(pid, on * i, wait * i, (vol + invol) * i, state, vol * i, invol * i)
    return ProcSample(
        pid, ticks, t_ns, state, on * i * 9 // 10, on * i // 10, 2 * GIB, 1, on * i, wait * i, (vol + invol) * i, vol * i, invol * i,
        0, 0, None, 0, 0, 1, threads=[thread], **more,  # type: ignore[arg-type]
    )  # fmt: skip


def _trainer(i: int, t_ns: int) -> ProcSample:
    return _sample(TRAINER, 100, i, t_ns, "S", 20_000_000, 2_000_000, 12, 1, syscall=7, syscall_arg=5000)


def _worker(i: int, t_ns: int, n: int, starving: bool) -> ProcSample:
    if starving:
        return _sample(WORKERS[n], 200 + n, i, t_ns, "R", 30_000_000, 65_000_000, 5, 30, syscall=-1)
    return _sample(WORKERS[n], 200 + n, i, t_ns, "S", 5_000_000, 100_000, 9, 0, syscall=7, syscall_arg=5000)


def _hog(i: int, t_ns: int) -> ProcSample:
    sample = _sample(HOG, 50, i, t_ns, "R", 92_000_000, 8_000_000, 0, 20)
    return ProcSample(*(getattr(sample, name) for name in sample.__struct_fields__[:8]))
