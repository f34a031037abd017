"""Root only where it is needed: ask sudo beforehand, and become the invoking user afterwards."""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from gputop.sources.ebpf import uprobe
from gputop.sources.rights import CAP_BPF, CAP_KILL, CAP_PERFMON, CAP_SETGID, CAP_SETUID, capabilities
from gputop.system.errors import UserError
from gputop.system.text import clean

_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 4, 8, 24, 28, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
_SECBIT_NO_SETUID_FIXUP = 4  # capabilities outlast a change of user (capabilities(7))
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159}.get(platform.machine(), -1)
_CAPABILITY_VERSION_3 = 0x20080522
_ANY = 0xFFFFFFFF  # ids have 32 bits
_CAPABILITIES = 64
"""As many as the kernel's masks have bits."""
_T = TypeVar("_T")


def authorize_sudo() -> bool:
    """Let sudo ask for the password, on this terminal, before a screen is drawn; True once it needs no more asking.

    Raises UserError where there is no sudo.
    """
    import subprocess

    try:
        return subprocess.run(["sudo", "-v"], check=False).returncode == 0
    except OSError as error:
        raise UserError(f"sudo: {error.strerror}: run gputop as root, or leave --sudo out to go on without eBPF") from None


def invoking_user() -> tuple[int, int] | None:
    """(uid, gid) of who typed ``sudo gputop``; None where we are not root or root typed it. Raises UserError where that is no id."""
    if os.geteuid() != 0 or not os.environ.get("SUDO_UID"):
        return None
    uid, gid = _id("SUDO_UID"), _id("SUDO_GID")
    return (uid, gid) if uid else None


def _id(name: str) -> int:
    """What sudo leaves in that variable. To the kernel the largest number means nobody's."""
    text = os.environ.get(name, "")
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) >= _ANY:
        raise UserError(f"{name}={clean(text)!r} is no id as sudo sets it: unset SUDO_UID to go on as root", code=2)
    return int(text)


def drop_to_invoking_user(keep_probing: bool = False, sealed: bool = False) -> bool:
    """Become the user who typed ``sudo gputop``, for good; False where there is nobody to become.

    With ``keep_probing`` (the collector) CAP_BPF and CAP_PERFMON are kept, as far as we have them: old kernels want them to
    read maps, all of them to attach to a trainer that starts later. Everything else of root goes. ``sealed``: no program that we start can
    get more than that either, not even by sudo. Raises OSError.
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
        raise OSError(1, "root could not be left")
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    _take_environment(uid)
    return True


def start_as(user: tuple[int, int], keep: int, start: Callable[..., _T]) -> _T:
    """What ``start`` gives, which begins a program: as ``user`` (uid, gid), in no other group, with what we have of the capabilities
    ``keep``, and nothing by which it could get more.

    ``start`` is given what `subprocess.Popen` is to be told for it. It runs in a thread that ends after it, for capabilities are a
    thread's own, and need no code between fork and exec. Raises OSError.
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
            # Python 3.12.0 takes no groups at all for groups that nobody asked to change.
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
    """This thread has ``kept`` for the programs that it starts, and ``meanwhile`` until these run."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0) != 0:
        kept = 0  # without CAP_SETPCAP they end with root: what needs none is done all the same
    _seal(libc, kept)
    _set_capabilities(libc, kept | meanwhile, kept)
    for number in range(_CAPABILITIES):
        if kept >> number & 1 and libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


@contextmanager
def as_invoking_user() -> Iterator[int]:
    """After `sudo gputop`: files and sockets that are made meanwhile belong to who typed it, and are reached by that user's rights alone.

    Whole processes change (all threads do), so this is for moments. Gives the uid that we act as.
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
    """Let this thread of root's, and no other, find and open from now on what that user may; whether that could be done.

    The kernel then decides of each folder on the way, by its access lists too. Root's processes can still be looked at (CAP_SYS_PTRACE).
    """
    libc = ctypes.CDLL(None)
    try:  # os.setgroups would change all threads
        uprobe.call(_SYS_SETGROUPS, len(groups), (ctypes.c_uint32 * len(groups))(*groups))
    except OSError:
        return False
    libc.setfsgid(ctypes.c_uint32(gid))
    libc.setfsuid(ctypes.c_uint32(uid))
    # They tell what was before, and take no -1.
    return (libc.setfsgid(-1) & _ANY, libc.setfsuid(-1) & _ANY) == (gid, uid)


def _take_environment(uid: int) -> None:
    """Who one is and where one's files are, as a login says it: root's own directories are not the user's."""
    for name in [name for name in os.environ if name.startswith("XDG_") and name.endswith(("_HOME", "_DIR"))]:
        with suppress(OSError):
            if os.path.isabs(os.environ[name]) and _owner(os.environ[name]) != uid:
                del os.environ[name]
    with suppress(KeyError):
        found = pwd.getpwuid(uid)
        os.environ.update(HOME=found.pw_dir, USER=found.pw_name, LOGNAME=found.pw_name, SHELL=found.pw_shell)


def _owner(path: str) -> int:
    """Who owns it; nobody's number where one may not look."""
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
    """No program that is started from here gets more than ``kept``, by setuid bits or by file capabilities."""
    for number in range(_CAPABILITIES):
        if not kept >> number & 1:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _set_capabilities(libc: ctypes.CDLL, bits: int, inheritable: int = 0) -> None:
    """capset(2): effective and permitted as ``bits``. Raises OSError."""
    low, high = bits & 0xFFFFFFFF, bits >> 32
    passed_on = inheritable & 0xFFFFFFFF, inheritable >> 32
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(low, low, passed_on[0], high, high, passed_on[1])
    if libc.capset(header, data) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
