"""A control group with a CPU quota, in whichever hierarchy the host has; needs root."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gputop.system.errors import UserError

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "gputop-demo-"
_PERIOD_US = 100_000


def parent() -> Path:
    """Where groups with a CPU quota can be made. Raises UserError where they cannot."""
    if os.geteuid() != 0:
        raise UserError("throttled makes a control group with a CPU quota, which needs root: sudo gputop demo throttled")
    for path in (_ROOT / "cpu", _ROOT / "cpu,cpuacct", _ROOT):
        if (path / "cpu.cfs_quota_us").exists() or _hands_on_cpu(path):
            return path
    raise UserError("throttled needs the cpu controller of cgroups, and this host does not offer it")


@contextmanager
def group() -> Iterator[Path]:
    """An empty group, and nobody in it afterwards; those that killed demos left are removed on the way."""
    above = parent()
    _sweep(above)
    path = above / f"{_PREFIX}{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        _empty(path, above)


def limit(path: Path, cpus: float | None) -> None:
    """A quota of so many CPUs, None for no limit."""
    quota_us = None if cpus is None else int(cpus * _PERIOD_US)
    if (path / "cpu.max").exists():
        (path / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {_PERIOD_US}")
    else:
        (path / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))


def _hands_on_cpu(path: Path) -> bool:
    control = path / "cgroup.subtree_control"
    return control.exists() and "cpu" in control.read_text().split()


def _sweep(above: Path) -> None:
    for left in above.glob(f"{_PREFIX}*"):
        if not Path(f"/proc/{left.name.removeprefix(_PREFIX)}").exists():
            with suppress(OSError):
                left.rmdir()


def _empty(path: Path, above: Path) -> None:
    """Members that end at this moment may keep the group for a while."""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        with suppress(OSError):
            for pid in (path / "cgroup.procs").read_text().split():
                (above / "cgroup.procs").write_text(pid)
            path.rmdir()
            return
        time.sleep(0.02)
