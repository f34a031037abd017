"""What trees of strangers' processes cost the collector: ``python -m tests.bench.strangers_cost [RUN_S [screen]]``."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench.stage import stage
from tests.pty.terminal import Pty
from tests.pty.tree import usage
from tests.stubs.build import build

SOURCE = Path(__file__).parent.parent / "workloads" / "tree.c"
GPUTOP = str(Path(sys.executable).parent / "gputop")


class Scene(NamedTuple):
    """A tree as tests/workloads/tree.c makes it; the first of it holds a context on the GPU."""

    wide: int
    deep: int
    threads: int
    comm: str


SCENES = (
    Scene(4, 0, 1, "pt_data_worker"), Scene(3000, 0, 1, "pt_data_worker"), Scene(3000, 0, 1, "plain"), Scene(1, 1000, 1, "sh"),
    Scene(8, 0, 2500, "plain"),
)  # fmt: skip


@contextmanager
def tree(scene: Scene, life_s: int = 120) -> Iterator[int]:
    """The pid of its first process."""
    program = build(SOURCE, "train", program=True)
    command = [str(program), str(life_s), *map(str, scene[:3]), scene.comm]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "up\n"
            yield first.pid
        finally:
            first.kill()


def collect(env: dict[str, str], run_s: float, *options: str) -> tuple[float, float, float]:
    """Percent of a CPU while it begins (3 s), of ``run_s`` after that, and its memory in MiB."""
    with subprocess.Popen([GPUTOP, "collect", *options], stdout=subprocess.DEVNULL, env=env) as process:
        try:
            time.sleep(3)
            first = usage(process.pid)
            time.sleep(run_s)
            last = usage(process.pid)
        finally:
            process.terminate()
    return 100 * first.cpu_s / 3, 100 * (last.cpu_s - first.cpu_s) / run_s, last.pss_bytes / 2**20


def screen(env: dict[str, str], run_s: float) -> tuple[float, float, float]:
    """The same of the whole program in a terminal."""
    with Pty([GPUTOP], env=env) as terminal:
        time.sleep(4)
        first = usage(terminal.pid)
        time.sleep(run_s)
        last = usage(terminal.pid)
    return 100 * first.cpu_s / 4, 100 * (last.cpu_s - first.cpu_s) / run_s, last.pss_bytes / 2**20


def main(run_s: float, what: str) -> None:
    """Each scene, with eBPF and without."""
    rows = []
    for scene in SCENES:
        with tree(scene) as pid, stage(1, [pid]) as env:
            for options in ((), ("--no-ebpf",)) if what != "screen" else ((),):
                costs = screen(env, run_s) if what == "screen" else collect(env, run_s, *options)
                rows.append([str(tuple(scene)), "".join(options) or "eBPF", *(f"{cost:.1f}" for cost in costs)])
                print(*rows[-1], flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 8.0, sys.argv[2] if len(sys.argv) > 2 else "collect")
