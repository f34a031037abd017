"""Make gputop/data/sample.gputop: `gputop demo` recorded for a minute, with only the demo's own processes and neutral names in it. With
``--story`` screenshots/story.gputop, in which the cause is proved besides. The host must be idle, and gputop root.

    .venv/bin/python scripts/sample.py [--story] [OUT]

All measurements stay. Processes that are not the demo's are left out; host, user and paths are renamed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from gputop.demo.scenarios import HOGS
from gputop.demo.stage import staged
from gputop.model.frame import Frame, Header, ProcInfo
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.sources import simulated

SCENARIO, SECONDS = "cpu-contention", 62
PROVE_AFTER_S = 13.0  # s: some seconds after the trouble begins
TROUBLE_AFTER_S = 4  # s of it after the experiment
_ROOT = str(Path(__file__).resolve().parent.parent)
_PATHS = {f"{_ROOT}/gputop/demo/": "/home/ada/", _ROOT: "/home/ada", sys.base_prefix: "/usr", tempfile.gettempdir(): "/tmp"}


def record(path: str, proved: bool) -> None:
    """Record the demo to ``path``. With ``proved`` the trouble lasts until an experiment has proved the cause, and some seconds more."""
    with staged(SCENARIO, SECONDS + 5) as environment:
        command = [sys.executable, "-m", "gputop", "record", "-o", path, "--duration", str(SECONDS)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as recorder:
            if proved:
                _prove_cause(environment)
            if recorder.wait():
                sys.exit("gputop record failed")


def _prove_cause(environment: dict[str, str]) -> None:
    words = simulated.open_path(environment[simulated.VARIABLE], writable=True)
    time.sleep(PROVE_AFTER_S)
    words[simulated.ACT_HOLD] = time.monotonic_ns() + SECONDS * 10**9
    planned = _prove(environment, "--readonly")
    is_safe = set(re.findall(r"([\w.-]+) \(\d+\)", planned)) == {"train.py", *HOGS}
    told = _prove(environment, "--yes") if is_safe else ""
    words[simulated.ACT_HOLD] = time.monotonic_ns() + TROUBLE_AFTER_S * 10**9
    if ": proved" not in told:
        sys.exit(f"the host must be idle, and gputop root: {planned} {told}")


def _prove(environment: dict[str, str], how: str) -> str:
    """What `gputop prove` says."""
    command = [sys.executable, "-m", "gputop", "prove", how]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True).stdout


def family(frames: list[Frame]) -> set[int]:
    """Pids of this process's descendants in the whole recording."""
    parents = {info.pid: info.ppid for frame in frames for info in frame.infos}
    found, more = {os.getpid()}, {os.getpid()}
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return found


def stripped(frame: Frame, kept: set[int]) -> Frame:
    """The frame without other processes."""
    probes = frame.probes
    if probes is not None:
        known = {thread.tid for thread in probes.threads if thread.pid in kept} | kept | {0}
        probes = msgspec.structs.replace(
            probes,
            threads=[thread for thread in probes.threads if thread.pid in kept],
            preempts=[one for one in probes.preempts if one.victim_tid in known and one.culprit_pid in kept | {0}],
            wakeups=[one for one in probes.wakeups if one.wakee_tid in known and one.waker_pid in kept | {0}],
            calls=[call for call in probes.calls if call.pid in kept],
        )
    host = frame.host
    if host is not None:
        host = msgspec.structs.replace(host, disks=[], nets=[], cgroups=None)
    return msgspec.structs.replace(
        frame, probes=probes, host=host, procs=[proc for proc in frame.procs if proc.pid in kept],
        infos=[_neutral(info) for info in frame.infos if info.pid in kept], gone=[pid for pid in frame.gone if pid in kept],
    )  # fmt: skip


def renamed(frame: Frame) -> Frame:
    """The frame with neutral paths, in stacks and states too."""
    data = msgspec.json.encode(frame)
    for path, neutral in _PATHS.items():
        data = data.replace(path.encode(), neutral.encode())
    return msgspec.json.decode(data, type=Frame)


def _neutral(info: ProcInfo) -> ProcInfo:
    cmdline = [re.sub(r".*/bin/python[\d.]*$", "python", arg) for arg in info.cmdline]
    return msgspec.structs.replace(info, uid=1000, user="ada", cmdline=cmdline, exe="/usr/bin/python3", cgroup="/", cpu_cgroup="")


def main(out: str, proved: bool) -> None:
    """Record, clean, write."""
    with tempfile.TemporaryDirectory(prefix="gputop-") as folder:
        raw = os.path.join(folder, "raw.gputop")
        record(raw, proved)
        with Recording(raw) as recording:
            frames = list(recording.frames())
            header: Header = recording.header
    kept = family(frames) - {os.getpid()}
    Path(out).unlink(missing_ok=True)
    writer = Writer(out, msgspec.structs.replace(header, host="demo", kernel=header.kernel.partition("-")[0], boot_id="", pid_namespace=0))
    for frame in frames:
        writer.add(renamed(stripped(frame, kept)))
    writer.close()
    os.chmod(out, 0o644)


if __name__ == "__main__":
    told = sys.argv[1:]
    usual = "screenshots/story.gputop" if "--story" in told else "gputop/data/sample.gputop"
    main(next((one for one in told if one != "--story"), os.path.join(_ROOT, usual)), "--story" in told)
