"""Resources of the host that some scenarios need: a file on a real disk, and control groups with a CPU quota or a slow disk."""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gputop.sources.simulated import GROUP
from gputop.system.errors import UserError

FILE_BYTES = 64 << 20
_RECORD_BYTES = 32 << 10
_CGROUPS = Path("/sys/fs/cgroup")
_DEVICES = Path("/sys/dev/block")
_PERIOD_US = 100_000  # the kernel's default period of a quota
_READ_V1 = "blkio.throttle.read_bps_device"


def make_file() -> int:
    """The descriptor of a file without a name, `FILE_BYTES` written to a disk, to be read with O_DIRECT. Raises UserError without such a
    disk."""
    in_memory = _in_memory()
    for folder in (tempfile.gettempdir(), "/var/tmp", os.getcwd(), os.path.expanduser("~")):
        fd = -1
        try:
            if os.stat(folder).st_dev in in_memory:
                continue
            fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
            _fill(fd)
            return fd
        except OSError:
            if fd >= 0:
                os.close(fd)
    raise UserError("slow-disk needs a file on a disk that allows direct reads, and none of /tmp, /var/tmp, here and ~ is: set TMPDIR")


def _in_memory() -> set[int]:
    """Devices of tmpfs and ramfs (/proc/self/mountinfo): newer kernels allow O_DIRECT on them too."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        mounts = [line.partition(" - ") for line in file]
    numbers = [mount.split()[2].split(":") for mount, _, kind in mounts if kind.startswith(("tmpfs ", "ramfs "))]
    return {os.makedev(int(major), int(minor)) for major, minor in numbers}


def _fill(fd: int) -> None:
    block = mmap.mmap(-1, 1 << 20)
    block.write(os.urandom(1 << 20))
    for _ in range(FILE_BYTES >> 20):
        os.write(fd, block)
    os.fsync(fd)


def read_records(fd: int, most: int, seconds: float) -> None:
    """Read at most so many small records all over the file, one after the other, for at most ``seconds``, as from a data set of many small
    files."""
    record, end = mmap.mmap(-1, _RECORD_BYTES), time.monotonic() + seconds
    while most > 0 and time.monotonic() < end:
        os.preadv(fd, [record], random.randrange(FILE_BYTES // _RECORD_BYTES) * _RECORD_BYTES)
        most -= 1


def quota_parent() -> Path:
    """Folder in which groups with a CPU quota can be made, of cgroup v1 or v2. Raises UserError without root, or without such a folder."""
    if os.geteuid() != 0:
        raise UserError("throttled makes a control group with a CPU quota, which needs root: sudo gputop demo throttled")
    for path in (_CGROUPS / "cpu", _CGROUPS / "cpu,cpuacct", _CGROUPS):
        if (path / "cpu.cfs_quota_us").exists() or _hands_on(path, "cpu"):
            return path
    raise UserError("throttled needs the cpu controller of cgroups, and this host does not offer it")


def read_limit_parent(fd: int) -> Path | None:
    """Folder in which groups can be made that read slowly from the disk of a file, of cgroup v1 or v2; None without root, or without such a
    folder."""
    if os.geteuid() != 0 or not device_of(fd):
        return None
    found = (_CGROUPS / "blkio", _CGROUPS)
    return next((path for path in found if (path / _READ_V1).exists() or _hands_on(path, "io")), None)


def device_of(fd: int) -> str:
    """The disk of a file as the kernel names it, ``MAJOR:MINOR``; empty where no one disk holds it (btrfs, a network)."""
    number = os.fstat(fd).st_dev
    place = _DEVICES / f"{os.major(number)}:{os.minor(number)}"
    if not place.exists():
        return ""
    whole = place.resolve().parent if (place / "partition").exists() else place
    return (whole / "dev").read_text().strip()


@contextmanager
def group_below(above: Path) -> Iterator[Path]:
    """An empty group, removed afterwards. Groups that killed demos left behind are removed too."""
    _sweep(above)
    path = above / f"{GROUP}{os.getpid()}"
    path.mkdir()
    try:
        yield path
    finally:
        _remove(path, above)


def set_quota(group: Path, cpus: float | None) -> None:
    """Limit a group to ``cpus`` CPUs; None is no limit."""
    quota_us = None if cpus is None else int(cpus * _PERIOD_US)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {_PERIOD_US}")
    else:
        (group / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))


def limit_reads(group: Path, device: str, bytes_per_s: int | None) -> None:
    """Limit what a group may read from a device; None is no limit."""
    if (group / _READ_V1).exists():
        (group / _READ_V1).write_text(f"{device} {bytes_per_s or 0}")
    else:
        (group / "io.max").write_text(f"{device} rbps={bytes_per_s or 'max'}")


def _hands_on(path: Path, controller: str) -> bool:
    control = path / "cgroup.subtree_control"
    return control.exists() and controller in control.read_text().split()


def _sweep(above: Path) -> None:
    for left in above.glob(f"{GROUP}*"):
        if not Path(f"/proc/{left.name.removeprefix(GROUP)}").exists():
            with suppress(OSError):
                left.rmdir()


def _remove(group: Path, above: Path) -> None:
    """Move the members up and remove the group. Members that are ending keep it for a moment, so this is tried for three seconds."""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        with suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                (above / "cgroup.procs").write_text(pid)
            group.rmdir()
            return
        time.sleep(0.02)
