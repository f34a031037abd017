"""Rules for which processes an experiment may touch.

Own processes are allowed; other users' only as root, after a question that names them. Never PID 1, kernel threads, sshd, systemd's own,
gputop's own, or an ancestor of this process (its shell, terminal multiplexer, ssh session). Nothing with ``--readonly``. With the GPU of
`gputop demo`, the demo's own processes alone.
"""

from __future__ import annotations

import os

from gputop.prove.processes import KTHREADD, Proc, Table, ancestors, cmdline_of, descendants, read_processes, uids_of
from gputop.sources import simulated
from gputop.system.program import FOLDER

READONLY = "experiments are off: --readonly"
_SYSTEM = ("sshd", "systemd", "dbus-daemon", "dbus-broker", "init", "(sd-pam)")  # names, or beginnings of names, of what others stand on
STAGE = "gputop.demo.stage"  # module that a demo runs as its child (`gputop.demo.stage.staged`)
MOST_WORDS = 8  # of a command line, in which an interpreter's module or script stands, also behind sudo
_MODULE_AFTER = {"-m": 1, "-c": 2}  # option -> how many words later its module stands (`gputop.system.program.argv_of`)


def why_never(proc: Proc, table: Table) -> str:
    """The reason why no experiment may touch a process, as a predicate: ``is a kernel thread``; else empty."""
    if proc.pid == 1:
        return "is the first process"
    if proc.kthread or (proc.pid == KTHREADD and proc.ppid == 0):
        return "is a kernel thread"
    own = os.getpid()
    if proc.pid == own or _is_gputop(proc):
        return "is gputop's own"
    if proc.pid in ancestors(table, own):
        return "runs this terminal"
    if any(name == one or name.startswith((f"{one}-", f"{one}:")) for name in _names(proc) for one in _SYSTEM):
        return "is a part of the system"
    return ""


def stage(table: Table | None = None) -> frozenset[int] | None:
    """Pids of the observed demo: its trainers, and the processes that disturb them; None without a demo.

    Other processes are not the demo's, even if its terminal or script has started them as well. ``table``: the processes now.
    """
    path = os.environ.get(simulated.VARIABLE)
    if not path:
        return None
    words = path.split("/")  # /proc/PID/fd/NUMBER, of the demo itself
    demo = int(words[2]) if words[:2] == ["", "proc"] and len(words) > 3 and words[2].isascii() and words[2].isdecimal() else 0
    table = read_processes() if table is None else table
    stages = [proc.pid for proc in table.values() if proc.ppid == demo and _is_stage(proc)]
    return frozenset(proc.pid for proc in descendants(table, stages) if proc.pid not in stages)


def _is_stage(proc: Proc) -> bool:
    try:
        return STAGE in cmdline_of(proc.pid)[:MOST_WORDS]
    except ProcessLookupError:
        return False


def why_off_stage(pid: int, own: frozenset[int] | None) -> str:
    """The reason why a demo does not touch a process, as a predicate; empty if it may, or there is no demo. ``own``: see `stage`."""
    return "" if own is None or pid in own else "is not the demo's: a demo touches its own processes alone"


def is_own(proc: Proc) -> bool:
    """True if a process runs as this user, or as the user who typed sudo, and without another user's rights. Raises ProcessLookupError."""
    sudo = os.environ.get("SUDO_UID", "")
    mine = {int(sudo)} if os.geteuid() == 0 and sudo.isascii() and sudo.isdecimal() else {os.geteuid()}
    return uids_of(proc.pid) <= mine


def touchable(table: Table, root: Proc) -> list[Proc]:
    """The process and its descendants, as far as they may be touched and run with the same rights."""
    try:
        uids = uids_of(root.pid)
    except ProcessLookupError:
        return []
    return [proc for proc in descendants(table, [root.pid]) if not proc.ended and not why_never(proc, table) and _runs_as(proc, uids)]


def _runs_as(proc: Proc, uids: frozenset[int]) -> bool:
    try:
        return uids_of(proc.pid) == uids
    except ProcessLookupError:
        return False


def _names(proc: Proc) -> set[str]:
    """The process's name, and that of its program. A process may take a protected name, but that only protects it."""
    names = {proc.comm}
    try:
        names.add(os.path.basename(os.readlink(f"/proc/{proc.pid}/exe")))
    except OSError:
        pass
    return names


def _is_gputop(proc: Proc) -> bool:
    """``gputop``, ``python … /bin/gputop``, ``python -m gputop.…``, a file of the package; not what a demo puts on its stage."""
    try:
        words = cmdline_of(proc.pid)[:MOST_WORDS]
    except ProcessLookupError:
        return False
    modules = [words[at + skip] for at, word in enumerate(words) for skip in (_MODULE_AFTER.get(word, 0),) if 0 < skip < len(words) - at]
    if any(module == "gputop" or module.startswith("gputop.") for module in modules):
        return not modules[0].startswith("gputop.demo")
    is_run = any(os.path.basename(word) in ("gputop", "gputop-ebpf") for word in words[:2])
    files = [word for word in words if word.startswith(f"{FOLDER}/") and not word.startswith(f"{FOLDER}/demo/")]
    return is_run or bool(files)  # ``python3 -I …/loader.py``, ``sudo -n python3 …``
