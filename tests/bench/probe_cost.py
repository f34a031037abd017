"""What the probes cost: ns of CPU per context switch beside bcc's own runqlat -P, reading the maps, loading, letting go.

`python -m tests.bench.probe_cost`, as root, with perf (linux-perf) and runqlat-bpfcc (bpfcc-tools). Both programs and none take
turns in one run; a switch's share of the wake-ups is in its cost. Quiet the machine first: neighbours show in the spread.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from gputop.model.frame import Frame
from gputop.sources import Beat, Settings
from gputop.sources.ebpf import btf
from gputop.sources.ebpf.source import EbpfSource
from tests.bench.figures import quantile, spread, table

LOOPS = 60_000
RUNQLAT = "/usr/sbin/runqlat-bpfcc"
_SETTLE_S = 1.0
_SCHED_H = """
#define TASK_RUNNING 0
#define __always_inline inline __attribute__((always_inline))
struct pid_namespace;
struct upid {{ int nr; struct pid_namespace *ns; }};
struct pid {{ unsigned int level; struct upid numbers[1]; }};
struct ns_common {{ unsigned int inum; }};
struct pid_namespace {{ struct ns_common ns; }};
struct task_struct {{ union {{
  struct {{ char pad0[{state}]; unsigned int __state; }};
  struct {{ char pad1[{pid}]; int pid, tgid; }};
  struct {{ char pad2[{thread_pid}]; struct pid *thread_pid; }};
}}; }};
"""


class Ticking:
    """The source, read in every tick as the collector does."""

    def __init__(self, hot: frozenset[int] = frozenset()) -> None:
        self.source = EbpfSource(Settings())
        self._hot = hot
        self._seq = 0
        started = time.monotonic()
        self.source.open()
        while not self.source.ready:
            time.sleep(0.002)
            self.tick()
        self.ready_s = time.monotonic() - started

    def tick(self) -> Frame:
        frame = Frame(self._seq, time.monotonic_ns(), key=self._seq % 100 == 0)
        self.source.read(Beat(frame.t_ns, self._seq, frame.key, hot=self._hot), frame)
        self._seq += 1
        return frame


@contextmanager
def our_probes(hot: frozenset[int] = frozenset()) -> Iterator[None]:
    """Attached, with nobody reading: what a switch costs is the programs'."""
    ticking = Ticking(hot)
    ticking.tick()
    try:
        yield
    finally:
        ticking.source.close()


@contextmanager
def runqlat() -> Iterator[None]:
    """bcc's runqlat -P; this kernel's few fields it needs come from BTF, so that no kernel headers are wanted."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "BCC_KERNEL_SOURCE": _header_tree(Path(folder)), "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen([RUNQLAT, "-P", "999"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            if not process.stdout.readline():
                assert process.stderr is not None
                raise RuntimeError(f"runqlat -P does not run: {process.stderr.read().decode()[-300:]}")
            try:
                yield
            finally:
                process.terminate()


def _header_tree(folder: Path) -> str:
    from gputop.sources.ebpf.source import PROBES

    shutil.copytree(Path(PROBES) / "include", folder / "include")
    with open(btf.VMLINUX, "rb") as file:
        types = btf.Btf(file.read(), "task_struct")
    offsets = {"state": "__state", "pid": "pid", "thread_pid": "thread_pid"}
    for name in ("uapi/linux/ptrace.h", "linux/nsproxy.h", "linux/pid_namespace.h", "linux/init_task.h"):
        (folder / "include" / name).touch()
    text = _SCHED_H.format(**{key: types.offset("task_struct", member) for key, member in offsets.items()})
    (folder / "include" / "linux" / "sched.h").write_text(text)
    return str(folder)


def switch_ns(loops: int) -> float:
    """CPU time per context switch of two processes that play ping-pong over a pipe on one CPU."""
    cpu = str(max(os.sched_getaffinity(0)))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["taskset", "-c", cpu, "perf", "bench", "sched", "pipe", "-l", str(loops)], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / (2 * loops) * 1e9


def paired(pairs: int, loops: int, variants: dict[str, Callable[[], AbstractContextManager[None]]]) -> dict[str, list[float]]:
    """Extra ns per switch of each variant over the run without anything just before it, in turns."""
    extra: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(pairs):
        for name, attach in variants.items():
            without = switch_ns(loops)
            with attach():
                time.sleep(_SETTLE_S)
                extra[name].append(switch_ns(loops) - without)
    return extra


def drain(threads: int, ticks: int) -> tuple[list[float], int]:
    """ms that reading the maps took in each tick while that many threads exist, and the entries read."""
    load = Path(__file__).parents[1] / "probes" / "load.py"
    command = [sys.executable, str(load), "threads", str(threads)]
    ticking = Ticking()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        crowd.stdout.readline()
        taken, used = [], 0
        for _ in range(ticks):
            time.sleep(0.1)
            probes = ticking.tick().probes
            if probes is not None:
                taken.append(probes.drain_ns / 1e6)
                used = max(used, probes.map_used.get("threads", 0))
        crowd.stdin.write("\n")
        crowd.stdin.flush()
    ticking.source.close()
    return taken, used


def loading(runs: int) -> tuple[list[float], list[float]]:
    """ms from opening to ready, and ms to detach."""
    ready, detach = [], []
    for _ in range(runs):
        ticking = Ticking()
        ready.append(ticking.ready_s * 1e3)
        started = time.monotonic()
        ticking.source.close()
        detach.append((time.monotonic() - started) * 1e3)
    return ready, detach


def report(pairs: int = 8, loops: int = LOOPS, threads: int = 10_000, ticks: int = 60) -> Iterator[str]:
    """The tables."""
    if os.geteuid() != 0 or shutil.which("perf") is None:
        yield "## Probes\n\nnot measured: needs root and perf (apt install linux-perf)"
        return
    variants: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "nothing (noise)": nullcontext, "gputop's probes": our_probes, "the same, a trainer followed": lambda: our_probes(frozenset({1})),
        "the same, of followed processes": lambda: our_probes(frozenset({os.getpid()})),  # children of hot processes are hot
    }  # fmt: skip
    if os.path.exists(RUNQLAT):
        variants["runqlat -P (bcc)"] = runqlat
    yield f"## Probes: extra CPU per context switch and its wake-ups ({pairs} pairs of {loops} loops, min/median/max)"
    yield table(["attached", "ns"], [[name, spread(values, 0)] for name, values in paired(pairs, loops, variants).items()])
    taken, used = drain(threads, ticks)
    ready, detach = loading(5)
    yield "## Probes: reading and loading (min/median/max)"
    yield table(
        ["what", "ms"],
        [
            [f"reading {used} threads in a tick", spread(taken, 2)],
            ["the same, 99th percentile", f"{quantile(taken, 0.99):.2f}"],
            ["ready after", spread(ready, 0)],
            ["detached after", spread(detach, 1)],
        ],
    )


if __name__ == "__main__":
    for paragraph in report():
        print(paragraph, end="\n\n", flush=True)
