"""A container as lxcfs shows it: ``with inside(cpu) as through`` gives the command that runs another one there.

A mount namespace whose /proc/stat has one CPU, which it calls cpu0, and a process that may run on that CPU only, whatever its number.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EVERY_S = 0.04
BYTES = 4000
_ENTER = "mount --make-rprivate / && mount --bind {stat} /proc/stat && mount --bind {online} /sys/devices/system/cpu/online && exec \"$@\""


@contextmanager
def inside(cpu: int) -> Iterator[list[str]]:
    """Needs root."""
    with tempfile.TemporaryDirectory(prefix="gputop-lxcfs-") as folder:
        stat, online, over = Path(folder, "stat"), Path(folder, "online"), threading.Event()
        _show(stat, cpu)
        online.write_text("0\n")
        showing = threading.Thread(target=_keep_showing, args=(stat, cpu, over))
        showing.start()
        try:
            yield ["unshare", "-m", "sh", "-c", _ENTER.format(stat=stat, online=online), "sh", "taskset", "-c", str(cpu)]
        finally:
            over.set()
            showing.join()


def may_unshare() -> bool:
    """Whether mounts of one's own can be made here."""
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


def _keep_showing(stat: Path, cpu: int, over: threading.Event) -> None:
    while not over.wait(EVERY_S):
        _show(stat, cpu)


def _show(stat: Path, cpu: int) -> None:
    """Written in place and at once, for it is mounted."""
    lines = Path("/proc/stat").read_text().splitlines()
    own = next(line.partition(" ")[2] for line in lines if line.startswith(f"cpu{cpu} "))
    rest = "".join(f"{line[:200].rstrip()}\n" for line in lines if not line.startswith("cpu"))
    with stat.open("r+b" if stat.exists() else "wb", buffering=0) as file:
        file.write(f"cpu  {own}\ncpu0 {own}\n{rest}".encode().ljust(BYTES, b"\n"))
