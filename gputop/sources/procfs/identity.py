"""Identity of a process: what changes only by exec, prctl, taskset or a move to another cgroup; and the names of users."""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from functools import lru_cache

import msgspec

from gputop.model.identity import identifying_paths
from gputop.model.process import NOBODY, ProcInfo
from gputop.model.roles import ENV_OF_INTEREST
from gputop.sources import parse
from gputop.sources.files import read_once
from gputop.system.errors import start_thread

_WANTED = frozenset(name.encode() for name in ENV_OF_INTEREST)
_ENVIRON_BYTES = 262_144  # most bytes read of a process's environment


class IdentityReader:
    """The identity of one process, read from ``folder``."""

    __slots__ = ("_folder", "_users", "info")

    def __init__(self, folder: str, pid: int, users: Users) -> None:
        self.info = msgspec.structs.replace(NOBODY, pid=pid)
        self._folder = folder
        self._users = users

    def read(self, stat: parse.Stat) -> ProcInfo:
        """Read everything: the process is new, or runs another program."""
        status = read_once(self._folder + "status", 16_384) or b""
        self.change(
            start_ticks=stat.start_ticks, comm=parse.text(stat.comm), cmdline=self._cmdline(stat), ns_pid=_ns_pid(status, self.info.pid),
            exe="" if stat.kthread else self._exe(), env={} if stat.kthread else self._env(), **self._changing(stat, status),
        )  # fmt: skip
        return self.info

    def refresh(self, stat: parse.Stat, status: bytes, titled: bool) -> bool:
        """Read again what changes without an exec; True if anything changed.

        The command line is read only if ``titled``: for it the kernel looks into the process's memory.
        """
        return self.change(cmdline=self._cmdline(stat) if titled else self.info.cmdline, **self._changing(stat, status))

    def _changing(self, stat: parse.Stat, status: bytes) -> dict[str, object]:
        """The fields that change without an exec, but the command line."""
        uids = parse.status_line(status, b"Uid").split()
        uid = int(uids[1]) if len(uids) > 1 else None  # the effective one
        cgroup, cpu_cgroup, others = _cgroups(read_once(self._folder + "cgroup", 8192) or b"")
        return {
            "ppid": stat.ppid, "session": stat.session, "policy": stat.policy,
            "uid": uid, "user": "" if uid is None else self._users.name(uid),
            "cpus_allowed": parse.text(parse.status_line(status, b"Cpus_allowed_list")), "cgroup": cgroup,
            "cpu_cgroup": cpu_cgroup, "other_cgroups": others,
        }  # fmt: skip

    def change(self, **found: object) -> bool:
        """Set fields; True if any differs from before."""
        changed = {name: value for name, value in found.items() if getattr(self.info, name) != value}
        if changed:
            self.info = msgspec.structs.replace(self.info, **changed)
        return bool(changed)

    def _cmdline(self, stat: parse.Stat) -> list[str]:
        """A zombie has no command line: it keeps the last one."""
        if stat.kthread or stat.state in "ZX":
            return self.info.cmdline
        return parse.cmdline(read_once(self._folder + "cmdline", parse.CMDLINE_BYTES) or b"")

    def _exe(self) -> str:
        try:
            return parse.text(os.readlink(os.fsencode(self._folder + "exe")))
        except OSError:
            return ""

    def _env(self) -> dict[str, str]:
        return parse.environ(read_once(self._folder + "environ", _ENVIRON_BYTES) or b"", _WANTED)


@lru_cache(maxsize=parse.SHARED)
def _cgroups(data: bytes) -> tuple[str, str, list[str]]:
    """(``cgroup``, ``cpu_cgroup``, ``other_cgroups``) of a `ProcInfo`. Do not change the list: it is cached."""
    paths = parse.cgroups(data)
    cgroup, cpu_cgroup = parse.main_cgroup(paths), paths.get("cpu", "")
    return cgroup, "" if cpu_cgroup == cgroup else cpu_cgroup, identifying_paths(paths, cgroup)


def _ns_pid(status: bytes, pid: int) -> int | None:
    """Pid of the process in its own pid namespace; None if the namespace is ours and the number is the same."""
    pids = parse.status_line(status, b"NSpid").split()
    return int(pids[-1]) if len(pids) > 1 or (pids and int(pids[-1]) != pid) else None


class Users:
    """uid -> name: from /etc/passwd, else from the name service, which a thread asks, since LDAP may take seconds.

    ``resolved`` counts late answers, so that a caller notices them.
    """

    def __init__(self, root: str) -> None:
        self._names = _passwd(root + "etc/passwd")
        self._ask = root == "/"
        self._asked: set[int] = set()
        self._to_ask: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        """One for all names, since a user may own 65,536 uids. It ends when none is left to ask for: a thread from before privileges were
        dropped would keep them."""
        self.resolved = 0

    def name(self, uid: int) -> str:
        """Name of a user; empty while it is unknown, and for a user without a name."""
        name = self._names.get(uid, "")
        if not name and self._ask:
            if uid not in self._asked:
                self._asked.add(uid)
                self._to_ask.put(uid)
            if not self._to_ask.empty() and (self._thread is None or not self._thread.is_alive()):
                self._thread = start_thread(self._resolve, "gputop-users")
        return name

    def _resolve(self) -> None:
        import pwd

        with suppress(queue.Empty):
            while True:
                uid = self._to_ask.get_nowait()
                with suppress(KeyError, OSError):
                    self._names[uid] = pwd.getpwuid(uid).pw_name
                    self.resolved += 1


def _passwd(path: str) -> dict[int, str]:
    names: dict[int, str] = {}
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            parts = line.split(":")
            if len(parts) > 2 and parts[2].isdecimal():
                names.setdefault(int(parts[2]), parts[0])
    return names
