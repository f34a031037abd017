"""What `gputop --version` tells: enough of the environment for a bug report, and nothing private."""

from __future__ import annotations

import os
import platform
from importlib import metadata

from gputop import __version__

_PACKAGES = ("textual", "nvidia-ml-py", "msgspec", "zstandard", "py-spy")


def report() -> str:
    """The version in the first line, then what it runs on."""
    lines = [
        f"gputop {__version__}",
        f"python       {platform.python_version()} ({platform.python_implementation()}, {platform.machine()})",
        f"kernel       {platform.release()}",
        f"system       {_system()}",
        f"driver       {_driver()}",
        f"bcc          {_bcc()}",
        f"terminal     TERM={os.environ.get('TERM', '')} COLORTERM={os.environ.get('COLORTERM', '')} LANG={os.environ.get('LANG', '')}",
        *(f"{name:<13}{_package(name)}" for name in _PACKAGES),
    ]
    return "\n".join(lines)


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _driver() -> str:
    """The kernel module's own word: asking NVML would start the driver, and may hang."""
    try:
        with open("/proc/driver/nvidia/version", encoding="ascii", errors="replace") as file:
            return file.readline().split(":", 1)[-1].strip()
    except OSError:
        return "no NVIDIA driver"


def _bcc() -> str:
    """The distribution's, which the probes' loader uses."""
    import glob
    import re

    for path in sorted(glob.glob("/usr/lib/python3*/**/bcc/version.py", recursive=True)):
        with open(path, encoding="ascii", errors="replace") as file:
            found = re.search(r"['\"]([\d.]+[^'\"]*)['\"]", file.read())
        return f"{found[1]} ({path})" if found else path
    return "not installed (apt install python3-bpfcc)"


def _package(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
