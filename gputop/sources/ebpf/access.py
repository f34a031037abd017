"""May probes run here? Facts of this machine and this process, each with what would mend it."""

from __future__ import annotations

import os

from gputop.sources import Unavailable
from gputop.sources.ebpf.handover import find_python
from gputop.sources.files import read_text
from gputop.system.privilege import CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, capabilities, in_initial_pid_namespace

_INSTALL = {
    "debian": "apt install python3-bpfcc", "ubuntu": "apt install python3-bpfcc", "fedora": "dnf install python3-bcc",
    "rhel": "dnf install python3-bcc", "arch": "pacman -S python-bcc", "suse": "zypper install python3-bcc",
}  # fmt: skip


def may_load(bits: int) -> bool:
    """CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON."""
    return bool(bits >> CAP_SYS_ADMIN & 1 or (bits >> CAP_BPF & 1 and bits >> CAP_PERFMON & 1))


def lockdown(root: str = "/") -> str:
    """``none``, ``integrity`` or ``confidentiality``; the last forbids probes to read kernel memory."""
    text = read_text(root, "sys/kernel/security/lockdown")
    return text.partition("[")[2].partition("]")[0] or "none"


def privilege(root: str = "/") -> str:
    """What gives us the right to load probes. Where even root has it not, we are in a container."""
    if os.geteuid() != 0 and may_load(capabilities(root, "CapBnd")):
        return "gputop --sudo"
    return f"start the container with {'--user 0 ' if os.geteuid() else ''}--cap-add SYS_ADMIN --cap-add SYS_PTRACE"


def install_bcc(root: str = "/") -> str:
    """The command that installs iovisor's bcc on this distribution."""
    for line in read_text(root, "etc/os-release").splitlines():
        key, _, value = line.partition("=")
        for word in value.strip('"').split() if key in ("ID", "ID_LIKE") else ():
            if word in _INSTALL:
                return _INSTALL[word]
    return "install your distribution's python3-bpfcc or python3-bcc"


def check(root: str, sudo: bool) -> None:
    """Raise Unavailable for what is certain to fail, before anything is started."""
    if not in_initial_pid_namespace():
        raise Unavailable("in a pid namespace of its own, whose pids the probes do not know", "start the container with --pid=host")
    if not find_python():
        raise Unavailable("there is no /usr/bin/python3 to run bcc in", install_bcc(root))
    if lockdown(root) == "confidentiality":
        raise Unavailable("the kernel is locked down (confidentiality)", "boot with lockdown=integrity")
    if not sudo and not may_load(capabilities(root)):
        raise Unavailable("needs root, or CAP_BPF and CAP_PERFMON", privilege(root))
