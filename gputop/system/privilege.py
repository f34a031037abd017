"""Privileges of this process: capabilities(7), containers, pid namespaces, sudo, and how root is dropped."""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from gputop.system.errors import UserError
from gputop.system.text import clean

CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_NICE = 5, 6, 7, 19, 21, 23  # linux/capability.h
CAP_PERFMON, CAP_BPF = 38, 39
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # inode of the pid namespace of the kernel and its drivers (PROC_PID_INIT_INO)

# linux/prctl.h and linux/securebits.h
_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 4, 8, 24, 28, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
_SECBIT_NO_SETUID_FIXUP = 4  # capabilities outlast a change of user (capabilities(7))
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159}.get(platform.machine(), -1)  # system call number
_CAPABILITY_VERSION_3 = 0x20080522
_ANY = 0xFFFFFFFF  # uids and gids have 32 bits; setresuid(2) takes all bits set for "leave it"
_CAPABILITIES = 64  # bits in the kernel's capability masks
_T = TypeVar("_T")


def capabilities(root: str = "/", which: str = "CapEff") -> int:
    """This process's capabilities as a bit mask (/proc/self/status): the effective ones, or with ``CapBnd`` those it could ever get."""
    with suppress(OSError), open(os.path.join(root, "proc/self/status"), encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(f"{which}:"):
                return int(line.split()[1], 16)
    return 0


def may_ptrace(root: str = "/") -> bool:
    """True if this process has CAP_SYS_PTRACE, which is needed to read the waits of other users' processes and of containers."""
    return bool(capabilities(root) >> CAP_SYS_PTRACE & 1)


def in_initial_pid_namespace() -> bool:
    """True if the pids in /proc are the kernel's own, which eBPF probes report."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return True


def in_container(root: str = "/") -> bool:
    """True if a container engine started this process, by the marks that Docker, Podman, systemd-nspawn and Kubernetes leave."""
    marks = (os.path.exists(os.path.join(root, name)) for name in (".dockerenv", "run/.containerenv"))
    return any(marks) or "KUBERNETES_SERVICE_HOST" in os.environ or "container" in os.environ


def authorize_sudo() -> bool:
    """Let sudo ask for the password on this terminal, before a screen is drawn; True if sudo accepted it.

    Raises UserError if sudo is not installed.
    """
    import subprocess

    try:
        return subprocess.run(["sudo", "-v"], check=False).returncode == 0
    except OSError as error:
        raise UserError(f"sudo: {error.strerror}: run gputop as root, or leave --sudo out to go on without eBPF") from None


def invoking_user() -> tuple[int, int] | None:
    """(uid, gid) of the user who typed ``sudo gputop``; None if this process is not root, or root typed it.

    Raises UserError if SUDO_UID or SUDO_GID is not an id.
    """
    if os.geteuid() != 0 or not os.environ.get("SUDO_UID"):
        return None
    uid, gid = _id("SUDO_UID"), _id("SUDO_GID")
    return (uid, gid) if uid else None


def _id(name: str) -> int:
    """The id in the environment variable ``name``. Raises UserError if its text is no id."""
    text = os.environ.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) >= _ANY:
        raise UserError(f"{name}={clean(text)!r} is no id as sudo sets it: unset SUDO_UID to go on as root", code=2)
    return int(text)


def drop_to_invoking_user(keep_probing: bool = False, sealed: bool = False) -> bool:
    """Become the user who typed ``sudo gputop``, for good; False if there is no such user.

    ``keep_probing`` (the collector) keeps CAP_BPF and CAP_PERFMON if the process has them: old kernels demand them to read
    maps, all kernels to attach to a trainer that starts later. All other privileges of root go. ``sealed``: programs
    started later cannot get more either, not even by sudo. Raises OSError.
    """
    user = invoking_user()
    if user is None:
        return False
    kept = capabilities() & (1 << CAP_BPF | 1 << CAP_PERFMON) if keep_probing else 0
    uid, gid = user
    libc = ctypes.CDLL(None, use_errno=True)
    if kept:
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    if sealed:
        _seal(libc, kept)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    os.setgroups(_groups(uid, gid))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _set_capabilities(libc, kept)
    if os.getresuid() != (uid, uid, uid) or capabilities() & ~kept:
        raise OSError(1, "root could not be dropped")
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    _take_environment(uid)
    return True


def start_as(user: tuple[int, int], keep: int, start: Callable[..., _T]) -> _T:
    """Call ``start``, which begins a program, and return its result.

    The program runs as ``user`` (uid, gid), in that group alone, with those capabilities of ``keep`` that this process has,
    and cannot gain more. ``start`` receives the keyword arguments for `subprocess.Popen`. It runs in a thread of its own:
    capabilities belong to a thread, and so no code has to run between fork and exec. Raises OSError.
    """
    import threading

    have, needed = capabilities(), 1 << CAP_SETUID | 1 << CAP_SETGID | 1 << CAP_KILL
    if needed & ~have:
        raise PermissionError(1, "another user's program needs CAP_SETUID, CAP_SETGID and CAP_KILL")
    done: list[_T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            _prepare(have & keep, have & needed)
            # Python 3.12.0 takes an empty list of groups for "leave the groups as they are".
            done.append(start(user=user[0], group=user[1], extra_groups=[user[1]]))
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            failed.append(error)

    thread = threading.Thread(target=work, name="start-as")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def _prepare(kept: int, meanwhile: int) -> None:
    """Leave this thread the capabilities ``kept`` to pass on to programs, and ``meanwhile`` for its own use."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0) != 0:
        kept = 0  # without CAP_SETPCAP capabilities end with root; the program runs without them
    _seal(libc, kept)
    _set_capabilities(libc, kept | meanwhile, kept)
    for number in range(_CAPABILITIES):
        if kept >> number & 1 and libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


@contextmanager
def as_invoking_user() -> Iterator[int]:
    """Act as the user who typed ``sudo gputop``, so that files and sockets belong to that user; yields the uid.

    All threads of the process change, so keep it short.
    """
    user = invoking_user()
    if user is None:
        yield os.geteuid()
        return
    groups, group = os.getgroups(), os.getegid()
    try:
        os.setgroups(_groups(*user))
        os.setegid(user[1])
        os.seteuid(user[0])
        yield user[0]
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def take_file_rights(uid: int, gid: int, groups: Sequence[int]) -> bool:
    """Limit this thread of root to the files that a user may open; False if the kernel refuses.

    The kernel then checks every folder of a path, access lists included. CAP_SYS_PTRACE stays.
    """
    libc = ctypes.CDLL(None)
    if libc.syscall(_SYS_SETGROUPS, len(groups), (ctypes.c_uint32 * len(groups))(*groups)) != 0:  # os.setgroups changes all threads
        return False
    libc.setfsgid(ctypes.c_uint32(gid))
    libc.setfsuid(ctypes.c_uint32(uid))
    # Both return the previous id; -1 changes nothing.
    return (libc.setfsgid(-1) & _ANY, libc.setfsuid(-1) & _ANY) == (gid, uid)


def _take_environment(uid: int) -> None:
    """Set HOME, USER and the like as a login does, and remove root's XDG directories."""
    for name in [name for name in os.environ if name.startswith("XDG_") and name.endswith(("_HOME", "_DIR"))]:
        with suppress(OSError):
            if os.path.isabs(os.environ[name]) and _owner(os.environ[name]) != uid:
                del os.environ[name]
    with suppress(KeyError):
        found = pwd.getpwuid(uid)
        os.environ.update(HOME=found.pw_dir, USER=found.pw_name, LOGNAME=found.pw_name, SHELL=found.pw_shell)


def _owner(path: str) -> int:
    """uid of the file's owner; -1 if it may not be looked at."""
    try:
        return os.stat(path).st_uid
    except PermissionError:
        return -1


def _groups(uid: int, gid: int) -> list[int]:
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return [gid]


def _seal(libc: ctypes.CDLL, kept: int) -> None:
    """Bound the capabilities of programs started from here to ``kept``, whatever their setuid bits and file capabilities."""
    for number in range(_CAPABILITIES):
        if not kept >> number & 1:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _set_capabilities(libc: ctypes.CDLL, bits: int, inheritable: int = 0) -> None:
    """capset(2): ``bits`` are effective and permitted. Raises OSError."""
    low, high = bits & 0xFFFFFFFF, bits >> 32
    passed_on = inheritable & 0xFFFFFFFF, inheritable >> 32
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(low, low, passed_on[0], high, high, passed_on[1])
    if libc.capset(header, data) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
