"""Make test data of a real GPU's recording: `python -m tests.device.keep FROM TO`. Only the training, the hogs of `story` and gputop stay,
without names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputop.doctor.mask import Mask
from gputop.model.frame import Frame, Header, Probes, ProcInfo
from gputop.model.roles import assign
from gputop.recording.chunks import Decoder
from gputop.recording.writer import Writer
from tests.device.story import HOG


def main() -> None:
    """Write what may be kept, and say how much that is."""
    source, target = map(Path, sys.argv[1:])
    items = list(Decoder().feed(source.read_bytes()))
    header = next(item for item in items if isinstance(item, Header))
    frames = [item for item in items if isinstance(item, Frame)]
    ours, mask = _ours(frames), Mask()
    target.unlink(missing_ok=True)
    writer = Writer(str(target), replace(header, host="gpu-node", boot_id="", kernel="6.8.0"))
    for frame in frames:
        writer.add(_neutral(mask.frame(_without_others(frame, ours)), ours))
    writer.close()
    target.chmod(0o644)
    print(f"{target}: {len(frames)} frames, {target.stat().st_size >> 10} KB, pids {sorted(ours)}")


def _ours(frames: list[Frame]) -> dict[int, list[str]]:
    """Pid of each that stays -> its command line from now on."""
    infos = {info.pid: info for frame in frames for info in frame.infos}
    users = frozenset(proc.pid for frame in frames for gpu in frame.gpus for proc in gpu.procs or ())
    roles = {pid: role for pid, role in assign(infos, users).items() if pid in users or role.trainer_pid in users}  # not who forked them
    training = {pid: ["python", "/home/me/train.py"] for pid, role in roles.items() if role.kind in ("trainer", "worker")}
    watching = {pid: ["gputop", "record"] for pid, info in infos.items() if "gputop" in info.cmdline}
    hogs = {pid: ["python", "/home/me/simulate.py"] for pid, info in infos.items() if info.cmdline[-1:] == [HOG]}
    return watching | training | hogs


def _without_others(frame: Frame, ours: dict[int, Any]) -> Frame:
    probes = frame.probes
    return replace(
        frame, procs=[one for one in frame.procs if one.pid in ours], infos=[one for one in frame.infos if one.pid in ours],
        gone=[pid for pid in frame.gone if pid in ours], probes=None if probes is None else _probed(probes, ours),
    )  # fmt: skip


def _probed(probes: Probes, ours: dict[int, Any]) -> Probes:
    return replace(
        probes, threads=[one for one in probes.threads if one.pid in ours],
        preempts=[one for one in probes.preempts if one.culprit_pid in ours],
        wakeups=[one for one in probes.wakeups if one.waker_pid in ours or one.waker_pid == 0],
    )  # fmt: skip


def _neutral(frame: Frame, ours: dict[int, list[str]]) -> Frame:
    """Hashes say nothing: a process is told by what it is here for."""
    return replace(frame, infos=[_renamed(info, ours[info.pid]) for info in frame.infos])


def _renamed(info: ProcInfo, cmdline: list[str]) -> ProcInfo:
    return replace(info, cmdline=cmdline, exe=f"/usr/bin/{cmdline[0]}", user="me", uid=1000)


if __name__ == "__main__":
    main()
