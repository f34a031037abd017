"""This program: its version, its folder, how it starts itself, and what `gputop --version` prints."""

from __future__ import annotations

import os
import sys

__version__ = "0.1.0"
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # of the package gputop, with data/ and probes/
_PACKAGES = ("textual", "nvidia-ml-py", "msgspec", "zstandard", "py-spy", "psutil")  # those whose versions a bug report needs
_RUN_MODULE = "import sys; del sys.path[0]; from runpy import run_module; run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def argv_of(module: str, *arguments: str, has_safe_path: bool = sys.version_info >= (3, 11)) -> list[str]:
    """The command that runs ``module`` as ``python -m`` does, with this interpreter, but imports nothing from the current folder.

    Another user may own that folder. Python 3.11 has ``-P`` for this.
    """
    return [sys.executable, *(("-P", "-m") if has_safe_path else ("-c", _RUN_MODULE)), module, *arguments]


def report() -> str:
    """What `gputop --version` prints: the version, then the environment that a bug report needs, nothing private."""
    import platform

    lines = [
        f"gputop {__version__}",
        f"python       {platform.python_version()} ({platform.python_implementation()}, {platform.machine()})",
        f"kernel       {platform.release()}",
        f"system       {_distribution()}",
        f"driver       {_driver()}",
        f"bcc          {_bcc()}",
        f"terminal     TERM={os.environ.get('TERM', '')} COLORTERM={os.environ.get('COLORTERM', '')} LANG={os.environ.get('LANG', '')}",
        *(f"{name:<13}{_package(name)}" for name in _PACKAGES),
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
    """From /proc/driver/nvidia/version: NVML would start the driver, and may hang."""
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
