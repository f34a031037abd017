"""The parts of `tests.device`: each gives commands, with a name and a limit in seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tests.device.labels import JOBS

Command = tuple[str, list[str], float]
_PYTHON = sys.executable
_GPUTOP = [_PYTHON, "-m", "gputop"]
_LOOK = """
uname -a; nvidia-smi; nvidia-smi -q | head -250; cat /proc/driver/nvidia/version; ls -l /dev/nvidia* /sys/kernel/btf/vmlinux
cat /proc/self/status | grep -i -E "cap|seccomp"; mount | grep -E "cgroup|tracefs|debugfs"; ls /sys/kernel/tracing | head -3
zcat /proc/config.gz | grep -E "BPF|UPROBE|SCHEDSTAT|TASK_DELAY|PSI|DEBUG_INFO_BTF=|KPROBES=|IKHEADERS"
cat /proc/self/cgroup; cat /proc/pressure/cpu; cat /proc/sys/kernel/perf_event_paranoid /proc/sys/kernel/task_delayacct
lscpu | head -30; nproc; free -g; ulimit -a | head -20
"""


def _shell(name: str, text: str, limit_s: float = 30) -> Command:
    return name, ["bash", "-c", text], limit_s


def look(_: Path, __: str) -> list[Command]:
    """The machine."""
    return [_shell("look", _LOOK)]


def facts(_: Path, rounds: str) -> list[Command]:
    """NVML's answers and their cost, idle and beside work."""
    command = [_PYTHON, "-m", "tests.device.facts", "--rounds", rounds or "30"]
    return [("facts-idle", command, 40), ("facts-busy", [_PYTHON, "-m", "tests.device.busy", *command], 60)]


def first(_: Path, __: str) -> list[Command]:
    """What a person types first."""
    return [
        ("doctor", [*_GPUTOP, "doctor"], 40),
        ("once", [*_GPUTOP, "--once"], 20),
        ("json", [*_GPUTOP, "--once", "--json"], 20),
        _shell("times", f"for i in 1 2 3 4 5; do time {_PYTHON} -m gputop --once --json >/dev/null; done 2>&1 | grep real", 30),
    ]


def truth(_: Path, flags: str) -> list[Command]:
    """Known work beside what is said of it."""
    return [("truth", [_PYTHON, "-m", "tests.device.truth", *flags.split()], 80)]


def gpm(_: Path, __: str) -> list[Command]:
    """All of its metrics over known work."""
    return [("gpm", ["env", "GPUTOP_PHASE_S=2.5", _PYTHON, "-m", "tests.device.gpm"], 60)]


def jobs(out: Path, names: str) -> list[Command]:
    """Real training, recorded as a user would, and explained."""
    commands: list[Command] = []
    for name in names.split(",") if names else JOBS:
        path = out / f"{name}.gputop"
        train = [_PYTHON, "-m", "tests.device.jobs", name, "--seconds", "9"]
        commands.append((f"job-{name}", [*_GPUTOP, "record", "-o", str(path), "--", *train], 60))
        commands.append((f"explain-{name}", [*_GPUTOP, "explain", str(path), "--last", "8s"], 20))
    return commands


def refresh(_: Path, __: str) -> list[Command]:
    """How often the driver's numbers change, and what asking costs."""
    return [("refresh", [_PYTHON, "-m", "tests.device.refresh"], 80)]


def bare(_: Path, names: str) -> list[Command]:
    """The jobs with nobody watching: what watching costs them."""
    return [(f"bare-{name}", [_PYTHON, "-m", "tests.device.jobs", name, "--seconds", "9"], 40) for name in names.split(",")]


def workloads(out: Path, names: str) -> list[Command]:
    """The labelled workloads with real kernels."""
    folder = str(out / "workloads")
    record = [_PYTHON, "-m", "tests.corpus.accuracy", "--record", "--at", folder, "--seconds", "6", "--others", "14"]
    judge = [_PYTHON, "-m", "tests.corpus.accuracy", "--at", folder, "--wrong", "--reveal"]
    return [("workloads", [*record, "--only", *names.split(",")], 280), ("judged", judge, 60)]


def complaints(out: Path, names: str) -> list[Command]:
    """What people complain of, forked from one process that has imported everything."""
    command = [_PYTHON, "-m", "tests.device.complaints", str(out), *(names.split(",") if names else [])]
    return [("complaints", command, 330)]


def screen(out: Path, short: str) -> list[Command]:
    """Start, key and running cost of the screen beside nvitop."""
    return [("screen", [_PYTHON, "-m", "tests.device.busy", _PYTHON, "-m", "tests.device.screen", str(out), short], 120)]


def story(out: Path, _: str) -> list[Command]:
    """A training that goes wrong and right again, for tests and pictures."""
    path = str(out / "story.gputop")
    return [("story", [_PYTHON, "-m", "tests.device.story", str(out)], 120), ("explain-story", [*_GPUTOP, "explain", path], 20)]


def proved(_: Path, __: str) -> list[Command]:
    """A cause proved by trial, beside the gain by hand."""
    return [("proved", [_PYTHON, "-m", "tests.device.proved"], 140)]


PARTS: dict[str, Callable[[Path, str], list[Command]]] = {
    one.__name__: one for one in (look, first, facts, refresh, truth, gpm, jobs, bare, workloads, complaints, screen, story, proved)
}
