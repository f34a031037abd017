"""This program: its version, its folder, how it starts itself, its memory, and what `gputop --version` prints.

Long-running commands collect garbage rarely, and give freed memory back to the system.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import cache

TYPE_CHECKING = False  # typing's name for it; importing typing takes longer than all of this module
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"
DOCUMENTATION = "https://gputop-ebpf.github.io/gputop/"  # the site of docs/, as in pyproject.toml
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # of the package gputop, with data/ and probes/
_PACKAGES = ("textual", "msgspec", "zstandard", "py-spy", "psutil")  # packages with versions that a bug report needs
_RUN_MODULE = "import sys; del sys.path[0]; from runpy import run_module; run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # parameters of mallopt (malloc.h)
_LARGE_BYTES = 64 << 10  # blocks from this size on are mapped by themselves


def argv_of(module: str, *arguments: str, has_safe_path: bool = sys.version_info >= (3, 11)) -> list[str]:
    """The command that runs ``module`` as ``python -m`` does, with this interpreter, but imports nothing from the current folder.

    Another user may own that folder. Python 3.11 has ``-P`` for this.
    """
    return [sys.executable, *(("-P", "-m") if has_safe_path else ("-c", _RUN_MODULE)), module, *arguments]


def report() -> str:
    """Output of `gputop --version`: the version, then the environment that a bug report needs, nothing private."""
    import platform

    from gputop.system.plugins import GROUPS, plugins

    lines = [
        f"gputop {__version__}",
        f"python       {platform.python_version()} ({platform.python_implementation()}, {platform.machine()})",
        f"kernel       {platform.release()}",
        f"system       {_distribution()}",
        f"driver       {_driver()}",
        f"bcc          {_bcc()}",
        f"terminal     TERM={os.environ.get('TERM', '')} COLORTERM={os.environ.get('COLORTERM', '')} LANG={os.environ.get('LANG', '')}",
        *(f"{name:<13}{_package(name)}" for name in _PACKAGES),
        *(f"plug-in      {one.package}: {one.name} ({group})" for group in GROUPS for one in plugins(group)),
    ]
    return "\n".join(lines)


def _distribution() -> str:
    """PRETTY_NAME of /etc/os-release."""
    import platform

    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _driver() -> str:
    """Version of the driver, from /proc/driver/nvidia/version: NVML would start the driver, and may hang."""
    try:
        with open("/proc/driver/nvidia/version", encoding="ascii", errors="replace") as file:
            return file.readline().split(":", 1)[-1].strip()
    except OSError:
        return "no NVIDIA driver"


def _bcc() -> str:
    """The version of the distribution's bcc, which the probes' loader imports."""
    import glob
    import re

    for path in sorted(glob.glob("/usr/lib/python3*/**/bcc/version.py", recursive=True)):
        with open(path, encoding="ascii", errors="replace") as file:
            found = re.search(r"['\"]([\d.]+[^'\"]*)['\"]", file.read())
        return f"{found[1]} ({path})" if found else path
    return "not installed (apt install python3-bpfcc)"


def _package(name: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def calm_garbage_collection() -> None:
    """Make collections rare: nearly everything is freed by reference counting, and each collection costs milliseconds."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def return_freed_memory() -> None:
    """Let glibc use one heap for all threads, and mappings for large blocks, which go back to the system when freed.

    By default glibc keeps a heap per thread, and the memory of the largest block for ever. Threads of Python hold the GIL in turns anyway.
    Other C libraries have no mallopt and stay as they are.
    """
    mallopt = _libc_function("mallopt")
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGE_BYTES)


def return_pages() -> None:
    """Give the heap's unused pages back, for instance after a key frame; takes 0.1 ms."""
    trim = _libc_function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _libc_function(name: str) -> Any:
    """A function of the C library, None if it has none of this name."""
    import ctypes

    return getattr(ctypes.CDLL(None), name, None)
