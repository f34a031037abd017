"""How much /proc shows of the machine's other processes, and what would show the rest."""

from __future__ import annotations

import os

from gputop.system.privilege import in_initial_pid_namespace, may_ptrace


def sight(root: str = "/") -> tuple[str, str]:
    """What is hidden, and what would show it; both empty where nothing is."""
    if not in_initial_pid_namespace():
        return "the machine's other processes are hidden: this pid namespace is a container's own", "start the container with --pid=host"
    if os.geteuid() == 0:
        return _of_root()
    if not os.path.exists(os.path.join(root, "proc/1/stat")):
        return "other users' processes are hidden: /proc is mounted with hidepid", "run gputop as root to see them"
    return "of other users' processes no I/O, libraries, waits", "run gputop as root to see them"


def _of_root() -> tuple[str, str]:
    if may_ptrace():
        return "", ""
    reason = "of processes outside this container no I/O, libraries, waits: no CAP_SYS_PTRACE"
    return reason, "start the container with --cap-add SYS_PTRACE"
