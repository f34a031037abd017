"""The closed loop: a scratch training script is slow, the agent finds out why, applies the fix, runs it again, and compares."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agents.agent import Ask, Asked, find_cause
from tests.wait import PATIENCE_S
from tests.workloads import environment

SECONDS = 4.0  # s of training
RECORDED_S = 300.0  # s for a recording, ten times and more what it takes on a quiet machine
LATENCY_S = 0.025  # s of an answer of the store
SCRIPT = '''"""A training script."""
import sys

from torch.utils.data import DataLoader

from tests.workloads.data import Images
from tests.workloads.loop import Trainer
from tests.workloads.scenarios.network_latency import Far

LOADER = {loader}

trainer = Trainer(float(sys.argv[1]))
trainer.fit(DataLoader({data}, batch_size=4, **LOADER), trainer.compute({step_ms}))
'''
IDLE = re.compile(r"chrt --idle --all-tasks --pid 0 \d+|for pid in [\d ]+; do chrt --idle --all-tasks --pid 0 \$pid; done")
HOG = "import threading\nfor _ in range(2):\n    threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()"


@dataclass
class Job:
    """A script that somebody wants to be faster: how it is started, and who else runs."""

    folder: Path
    loader: dict[str, Any]
    data: str
    step_ms: float = 30.0
    launcher: list[str] = field(default_factory=list)
    hogs: list[subprocess.Popen[bytes]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def record(self, name: str) -> str:
        """Train once beside `gputop record`; the recording."""
        script, path = self.folder / "train.py", self.folder / f"{name}.gputop"
        script.write_text(SCRIPT.format(loader=self.loader, data=self.data, step_ms=self.step_ms))
        command = [*self.launcher, sys.executable, str(script), str(SECONDS)]
        argv = [sys.executable, "-m", "gputop", "record", "--no-ebpf", "-o", str(path), "--", *command]
        env = {**environment.make(self.folder), "PYTHONWARNINGS": "ignore", **self.env}
        subprocess.run(argv, env=env, check=True, timeout=RECORDED_S, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return str(path)


def with_loader_arguments(job: Job, found: Asked) -> bool:
    """Give the DataLoader what the fix says: ``DataLoader(..., num_workers=2)``."""
    for fix in found.fixes:
        if match := re.fullmatch(r"DataLoader\(\.\.\., (.+)\)", fix["command_untrusted"]):
            [call] = [node for node in ast.walk(ast.parse(f"f({match[1]})")) if isinstance(node, ast.Call)]
            job.loader |= {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
            return True
    return False


def with_idle_culprits(job: Job, found: Asked) -> bool:
    """Let the culprits that are the agent's own run only when nobody else wants the CPU."""
    ours, chosen = {one.pid for one in job.hogs}, set[int]()
    for fix in found.fixes:
        if IDLE.fullmatch(fix["command_untrusted"]):
            chosen |= {int(word) for word in re.findall(r"\b[1-9]\d+\b", fix["command_untrusted"])} & ours
    for pid in chosen:  # what is to be run was told by others: the agent says it anew
        subprocess.run(["chrt", "--idle", "--all-tasks", "--pid", "0", str(pid)], check=True, timeout=PATIENCE_S)
    return bool(chosen)


def with_all_cpus(job: Job, found: Asked) -> bool:
    """Start it on the CPUs that the fix names."""
    for fix in found.fixes:
        if match := re.search(r"taskset -apc ([\d,-]+) ", fix["command_untrusted"]):
            job.launcher = ["taskset", "-c", match[1]]
            return True
    return False


FIXES: dict[str, Callable[[Job, Asked], bool]] = {
    "main-thread-preprocessing": with_loader_arguments, "too-few-workers": with_loader_arguments, "network-io": with_loader_arguments,
    "cpu-contention": with_idle_culprits, "affinity": with_all_cpus,
}  # fmt: skip
"""Step 3 of the skill: cause -> how its fix is applied."""


@contextmanager
def slow_jobs(folder: Path, name: str) -> Iterator[Job]:
    """A job that is slow for this cause."""
    with ExitStack() as stack:
        if name == "network-io":
            yield Job(folder, {"num_workers": 1}, "Far(0.3)", env={"GPUTOP_STORE_PORT": stack.enter_context(_far_store())})
        elif name == "main-thread-preprocessing":
            yield Job(folder, {"num_workers": 0}, "Images(cpu_ms=8)")
        elif name == "affinity":
            yield Job(folder, {"num_workers": 2}, "Images(cpu_ms=10)", launcher=["taskset", "-c", "0"])
        else:
            job = Job(folder, {"num_workers": 2}, "Images(cpu_ms=8)")
            (folder / "log-shipper.py").write_text(HOG)
            for _ in range(2):
                hog = subprocess.Popen([sys.executable, str(folder / "log-shipper.py")])
                stack.callback(hog.wait)
                stack.callback(hog.kill)
                job.hogs.append(hog)
            yield job


@contextmanager
def _far_store() -> Iterator[str]:
    """A store whose answers take long; its port."""

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1)
            time.sleep(LATENCY_S)
            connection.sendall(bytes(20_000))

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield str(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


JOBS = ("network-io", "main-thread-preprocessing", "cpu-contention", "affinity")


def undisturbed() -> list[str]:
    """What starts a job that others on the host do not slow down: at the lowest real-time priority, where that is allowed."""
    launcher = ["chrt", "--rr", "1"]
    with suppress(OSError):
        if subprocess.run([*launcher, "true"], check=False, capture_output=True, timeout=PATIENCE_S).returncode == 0:
            return launcher
    return []


def close(ask: Ask, folder: Path, name: str, launcher: Sequence[str] = ()) -> tuple[Asked, dict[str, Any]]:
    """The whole loop; what was found, and the comparison. AssertionError where there is no fix to apply. ``launcher``: starts the job."""
    with slow_jobs(folder, name) as job:
        job.launcher = [*launcher, *job.launcher]
        before = job.record("before")
        found = find_cause(ask, before)
        assert found.cause in FIXES, (found.symptom, found.cause)
        assert FIXES[found.cause](job, found), found.fixes
        after = job.record("after")
        return found, ask("compare", {"before": before, "after": after})
