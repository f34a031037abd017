"""May probes run here? Facts of this machine and this process, each with what would mend it."""

from __future__ import annotations

import os

from gputop.sources import Unavailable
from gputop.sources.ebpf.handover import find_python

CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 21, 38, 39
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_INSTALL = {
    "debian": "apt install python3-bpfcc", "ubuntu": "apt install python3-bpfcc", "fedora": "dnf install python3-bcc",
    "rhel": "dnf install python3-bcc", "arch": "pacman -S python-bcc", "suse": "zypper install python3-bcc",
}  # fmt: skip


def capabilities(root: str = "/") -> int:
    """This process's effective capabilities, as bits (CapEff of /proc/self/status)."""
    for line in read_text(root, "proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def may_load(bits: int) -> bool:
    """CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON."""
    return bool(bits >> CAP_SYS_ADMIN & 1 or (bits >> CAP_BPF & 1 and bits >> CAP_PERFMON & 1))


def in_initial_pid_namespace() -> bool:
    """Whether /proc's pids are the kernel's own, which the probes speak of."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return True


def lockdown(root: str = "/") -> str:
    """``none``, ``integrity`` or ``confidentiality``; the last forbids probes to read kernel memory."""
    text = read_text(root, "sys/kernel/security/lockdown")
    return text.partition("[")[2].partition("]")[0] or "none"


def in_container(root: str = "/") -> bool:
    """Whether a container engine started us, by the marks that Docker, Podman, systemd-nspawn and Kubernetes leave."""
    marks = (os.path.exists(os.path.join(root, name)) for name in (".dockerenv", "run/.containerenv"))
    return any(marks) or "KUBERNETES_SERVICE_HOST" in os.environ or "container" in os.environ


def privilege(root: str = "/") -> str:
    """What gives us the right to load probes. Root without it is a container's."""
    if os.geteuid() == 0:
        return "start the container with --cap-add SYS_ADMIN --cap-add SYS_PTRACE"
    return "start the container with --user 0 --cap-add SYS_ADMIN --cap-add SYS_PTRACE" if in_container(root) else "gputop --sudo"


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


def read_text(root: str, path: str) -> str:
    """A small file's text, empty where it cannot be read."""
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
