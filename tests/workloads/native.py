"""Programs in C, for workloads that are no Python: built with `native.h` and the CUDA runtime; a trainer goes on as one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from tests.stubs import cuda
from tests.workloads import cgroup, simgpu
from tests.workloads.gpu import KERNELS
from tests.workloads.runner import Running

_INCLUDE = Path(__file__).parent


def missing() -> str:
    """Why nothing can be built here, empty if it can."""
    return "" if shutil.which("cc") else "no C compiler"


@contextmanager
def built(running: Running, **sources: str) -> Iterator[None]:
    """A program in the workload's folder for each name and its C source."""
    for name, source in sources.items():
        target = running.folder / name
        target.with_suffix(".c").write_text(f'#include "native.h"\n{source}')
        library = KERNELS or str(cuda.runtime())
        flags = ["-O2", "-g", "-Wall", "-Werror", f"-I{_INCLUDE}", "-pthread"]
        subprocess.run(["cc", *flags, "-o", str(target), str(target.with_suffix(".c")), library, "-lm"], check=True)
    yield


def folder() -> Path:
    """The workload's, from within a trainer."""
    return Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])


def become(command: str) -> NoReturn:
    """Go on as the program that ``command`` begins with, as a launcher's `exec` does: pid, session and standard output stay."""
    argv = command.split()
    simgpu.leave()
    os.execv(folder() / argv[0], argv)


def hand(end: IO[bytes], fd: int) -> None:
    """Let the program that `become` begins find ``end`` as its descriptor ``fd``.

    Where it has that number already, dup2 leaves the descriptor as it is, and exec would close it.
    """
    os.dup2(end.fileno(), fd)
    os.set_inheritable(fd, True)


def start(command: str, **more: object) -> subprocess.Popen[bytes]:
    """The program that ``command`` begins with, as a child."""
    argv = command.split()
    return subprocess.Popen(argv, executable=folder() / argv[0], **more)  # type: ignore[call-overload, no-any-return]


@contextmanager
def beside(running: Running, command: str, group: Path | None = None) -> Iterator[None]:
    """The program that ``command`` begins with, in a session of its own that is no child of the trainer, from its beginning in a control
    ``group`` if there is one."""
    running.env["GPUTOP_WORKLOAD_FOLDER"] = str(running.folder)
    argv, more = command.split(), {"preexec_fn": partial(cgroup.add, group, [0])} if group else {}
    with running.child(argv, executable=running.folder / argv[0], **more) as process:
        (running.folder / f"{argv[0]}.pid").write_text(str(process.pid))
        yield


@contextmanager
def blamed(running: Running, name: str, raised: str) -> Iterator[None]:
    """The flag ``raised``, from which on the program ``name``, one of `beside`, is to blame."""
    running.blame(int((running.folder / f"{name}.pid").read_text()), name)
    with flag(running, raised):
        yield
    running.account()


@contextmanager
def flag(running: Running, name: str = "slow") -> Iterator[None]:
    """From now on the programs find that the file ``name`` is there (`raised` of native.h)."""
    (running.folder / name).touch()
    yield


def remove_semaphores(kept: Path) -> None:
    """Remove the System V semaphores whose id a program has written into the file ``kept``: they outlive it."""
    if kept.exists():
        subprocess.run(["ipcrm", "-s", kept.read_text()], check=False, stderr=subprocess.DEVNULL)
