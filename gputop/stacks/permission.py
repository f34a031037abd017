"""Why a process's stack may not be read, and the command that fixes it."""

from __future__ import annotations

import os
from contextlib import suppress

from gputop.sources.files import read_text
from gputop.system.privilege import in_container, may_ptrace

SUDO = 'sudo "$(command -v gputop)" stacks'  # in remedies: the command as root; sudo's PATH may lack gputop
_AT_BOOT = "`echo kernel.yama.ptrace_scope=1 | sudo tee /etc/sysctl.d/99-ptrace.conf`"


def why_not(pid: int, root: str = "/") -> str:
    """Why this process may not read ``pid``, with the command that fixes it."""
    scope = yama_scope(root)
    if scope >= 3:
        return f"not permitted: kernel.yama.ptrace_scope is 3, which forbids it to all users until the next boot; {_AT_BOOT}, then reboot"
    if os.geteuid() == 0 and not may_ptrace(root):
        return "not permitted: root without CAP_SYS_PTRACE; start the container with `--cap-add SYS_PTRACE`"
    if os.geteuid() == 0:
        return "not permitted, even for root here: it has privileges that this container has not"
    as_root = "start the container with `--user 0 --cap-add SYS_PTRACE`" if in_container(root) else f"`{SUDO} {pid}`"
    with suppress(OSError):
        if (owner := os.stat(os.path.join(root, "proc", str(pid))).st_uid) != os.geteuid():
            return f"not permitted: it belongs to {_user_name(owner)}; {as_root}"
    if scope == 2:
        return f"not permitted: kernel.yama.ptrace_scope is 2; {as_root}"
    if scope == 1:
        return f"not permitted: kernel.yama.ptrace_scope is 1; {as_root}, or `sudo sysctl kernel.yama.ptrace_scope=0`"
    return f"not permitted: it has other privileges than you, or has made itself unreadable; {as_root}"


def yama_scope(root: str = "/") -> int:
    """kernel.yama.ptrace_scope; 0 if the kernel has no Yama."""
    return int(read_text(root, "proc/sys/kernel/yama/ptrace_scope") or 0)


def _user_name(uid: int) -> str:
    """The name of ``uid``, or ``uid N``."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
