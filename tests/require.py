"""Parts a test may need: missing, the test is skipped and says why, unless GPUTOP_REQUIRE names the part: then it fails."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest


def _torch() -> str:
    return "" if importlib.util.find_spec("torch") else "torch is not installed: pip install torch==2.13.0"


def _trainers() -> str:
    missing = [name for name in ("pytorch_lightning", "transformers", "accelerate") if not importlib.util.find_spec(name)]
    return f"{', '.join(missing)} not installed: scripts/setup test brings them" if missing else ""


def _cc() -> str:
    return "" if shutil.which("cc") else "no C compiler: apt install gcc"


def _ebpf() -> str:
    if os.geteuid() != 0:
        return "not root"
    probe = subprocess.run(["/usr/bin/python3", "-c", "from bcc import BPF"], capture_output=True, text=True, check=False)
    return "" if probe.returncode == 0 else "bcc is missing: apt install python3-bpfcc"


def _net() -> str:
    if os.geteuid() != 0:
        return "not root"
    if not shutil.which("ip"):
        return "no ip: apt install iproute2"
    name = f"gputop-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.stderr.strip()


def _ssh() -> str:
    return "" if os.path.exists("/usr/sbin/sshd") and shutil.which("ssh") else "no sshd or no ssh: apt install openssh-server"


def _slurm() -> str:
    missing = [tool for tool in ("slurmctld", "slurmd", "munged") if not shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin")]
    return f"no {', '.join(missing)}: apt install slurm-wlm" if missing else ""


def _systemd() -> str:
    return "" if shutil.which("systemd-analyze") else "no systemd-analyze: apt install systemd"


def _nvitop() -> str:
    return "" if importlib.util.find_spec("nvitop") else "nvitop is not installed: pip install nvitop==1.7.2"


def _nvtop() -> str:
    return "" if shutil.which("nvtop") else "no nvtop: apt install nvtop (Debian keeps it in contrib)"


def _prometheus() -> str:
    missing = [tool for tool in ("prometheus", "promtool", "prometheus-alertmanager") if not shutil.which(tool)]
    return f"no {', '.join(missing)}: scripts/setup test brings them" if missing else ""


def _victoria() -> str:
    return "" if shutil.which("victoria-metrics") else "no victoria-metrics: scripts/setup test brings that of Debian 13"


def _browser() -> str:
    if not any(shutil.which(name) for name in BROWSERS):
        return "no Chromium: apt install chromium-headless-shell"
    return "" if importlib.util.find_spec("axe_playwright_python") else "no axe: pip install --no-deps axe-playwright-python==0.1.8"


BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")  # programs that speak Chromium's DevTools protocol
PYTHONS = ("3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t")
"""Versions of the interpreters whose stacks are read; a ``t`` is a build without GIL."""


_OURS = f"{sys.version_info.major}.{sys.version_info.minor}{getattr(sys, 'abiflags', '').strip('dm')}"


def pythons_here() -> list[str]:
    """The versions that can be tested: those that are here, and those that GPUTOP_REQUIRE names, here or not."""
    asked = os.environ.get("GPUTOP_REQUIRE", "").split(",")
    return [version for version in PYTHONS if pythons(version) or f"python{version}" in asked]


def pythons(version: str) -> list[Path]:
    """The interpreters of ``version`` here: the distribution's (Debian's are static and stripped), pyenv's, in /opt, on PATH."""
    name, number = f"python{version}", version.removesuffix("t")
    found = [*Path.home().glob(f".pyenv/versions/{number}.*/bin/{name}"), *Path("/opt").glob(f"*/bin/{name}"), Path("/usr/bin", name)]
    beside = shutil.which(name)
    found += [Path(beside)] if beside and "/shims/" not in beside else []
    found += [Path(sys.executable)] if version == _OURS else []
    return sorted({path.resolve() for path in found if path.exists()})


def _python(version: str) -> str:
    return "" if pythons(version) else f"no python{version} in /usr/bin, /opt/*/bin, ~/.pyenv/versions or on PATH"


_PARTS: dict[str, Callable[[], str]] = {"torch": _torch, "cc": _cc, "ebpf": _ebpf, "systemd": _systemd, "nvitop": _nvitop, "nvtop": _nvtop}
_PARTS |= {"prometheus": _prometheus, "victoria": _victoria, "trainers": _trainers}
_PARTS |= {"browser": _browser}
_PARTS |= {"net": _net, "ssh": _ssh, "slurm": _slurm}
_PARTS |= {f"python{version}": partial(_python, version) for version in PYTHONS}


def lacks(part: str) -> str:
    """Why the part is missing here; empty if it is here."""
    return _PARTS[part]()


def require(*parts: str) -> None:
    """Skip the calling test, or fail it where GPUTOP_REQUIRE asks for the part, if one of ``parts`` is missing."""
    asked = os.environ.get("GPUTOP_REQUIRE", "").split(",")
    for part in parts:
        reason = _PARTS[part]()
        if reason:
            (pytest.fail if part in asked else pytest.skip)(f"needs {part}: {reason}")
