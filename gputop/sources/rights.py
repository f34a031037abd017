"""What this process may do, and whether a container is around it."""

from __future__ import annotations

import os

CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 5, 6, 7, 19, 21, 38, 39
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the one that the kernel and its drivers count pids in (PROC_PID_INIT_INO)."""


def capabilities(root: str = "/", which: str = "CapEff") -> int:
    """This process's capabilities, as bits (/proc/self/status): the effective ones, or those of CapBnd that it could ever get."""
    for line in read_text(root, "proc/self/status").splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1], 16)
    return 0


def may_ptrace(root: str = "/") -> bool:
    """CAP_SYS_PTRACE: to read of other users' processes, and of other containers', what they wait for."""
    return bool(capabilities(root) >> CAP_SYS_PTRACE & 1)


def in_initial_pid_namespace() -> bool:
    """Whether /proc's pids are the kernel's own, which the probes speak of."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return True


def in_container(root: str = "/") -> bool:
    """Whether a container engine started us, by the marks that Docker, Podman, systemd-nspawn and Kubernetes leave."""
    marks = (os.path.exists(os.path.join(root, name)) for name in (".dockerenv", "run/.containerenv"))
    return any(marks) or "KUBERNETES_SERVICE_HOST" in os.environ or "container" in os.environ


def read_text(root: str, path: str) -> str:
    """A small file's text, empty where it cannot be read."""
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
