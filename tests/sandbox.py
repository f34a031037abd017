"""Run a command as systemd would run it under a unit's filter of system calls, capabilities and read-only kernel files.

    python -m tests.sandbox UNIT COMMAND…        as root; needs systemd-analyze and libseccomp

What the unit says of files and namespaces is taken over as far as a test can: /sys, /proc/sys and control groups read-only, no
/proc/kallsyms, no /dev/kmsg. Exits 127 where a part is not to be had.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ALLOW, ERRNO_EPERM = 0x7FFF0000, 0x00050001
CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18
NO_NEW_PRIVS, CAPBSET_DROP = 38, 24
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
READ_ONLY = ("/sys", "/proc/sys", "/proc/irq", "/proc/bus")
HIDDEN = ("/proc/kallsyms", "/proc/kcore", "/dev/kmsg", "/proc/kmsg")


def directives(unit: Path) -> dict[str, list[str]]:
    """Of [Service]: name -> its values, in order."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def calls(group: str) -> Iterator[str]:
    """The system calls of a name or a set such as ``@system-service``."""
    if not group.startswith("@"):
        yield group
        return
    listed = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", group], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines()[1:]:
        word = line.strip()
        if word and not word.startswith("#"):
            yield from calls(word)


def allowed(filters: list[str]) -> set[str]:
    """What is left by several ``SystemCallFilter=``: the first decides whether they allow, a ``~`` takes away."""
    left: set[str] = set(calls("@default"))
    for value in filters:
        named = {call for group in value.lstrip("~").split() for call in calls(group)}
        left = left - named if value.startswith("~") else left | named
    return left


def restrict(unit: Path) -> None:
    """This process and its children, for good."""
    said = directives(unit)
    libc, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libseccomp.so.2", use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    libc.unshare(CLONE_NEWNS)
    libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    for path in filter(os.path.exists, READ_ONLY):
        libc.mount(path.encode(), path.encode(), None, MS_BIND | MS_REC, None)
        libc.mount(None, path.encode(), None, MS_BIND | MS_REMOUNT | MS_RDONLY, None)
    for path in filter(os.path.exists, HIDDEN):
        libc.mount(b"/dev/null", path.encode(), None, MS_BIND, None)
    rules = ctypes.c_void_p(seccomp.seccomp_init(ERRNO_EPERM))
    for name in sorted(allowed(said["SystemCallFilter"])):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0 and name != "socket":
            seccomp.seccomp_rule_add(rules, ALLOW, number, 0)
    families = said["RestrictAddressFamilies"][0].split()
    for family in families:
        compare = _Compare(0, 4, FAMILIES[family], 0)  # SCMP_CMP_EQ
        seccomp.seccomp_rule_add_array(rules, ALLOW, seccomp.seccomp_syscall_resolve_name(b"socket"), 1, ctypes.byref(compare))
    # A capability, by its number, is one that the unit's list has not.
    names = [f"CAP_{name}" for name in _CAPABILITIES]
    for number, name in enumerate(names):
        if name not in said["CapabilityBoundingSet"][0].split():
            libc.prctl(CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    if seccomp.seccomp_load(rules) != 0:
        sys.exit(127)


class _Compare(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


_CAPABILITIES = [
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT",
    "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE",
    "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
    "PERFMON", "BPF", "CHECKPOINT_RESTORE",
]  # fmt: skip
"""By their numbers (linux/capability.h)."""


if __name__ == "__main__":
    restrict(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
