"""Who a process is: what changes only by exec, prctl, taskset or a move to another cgroup."""

from __future__ import annotations

import os

import msgspec

from gputop.model.frame import ProcInfo
from gputop.model.roles import ENV_OF_INTEREST
from gputop.sources import parse
from gputop.sources.files import read_once
from gputop.sources.procfs.users import Users

_WANTED = frozenset(name.encode() for name in ENV_OF_INTEREST)
_ENVIRON_BYTES = 262_144


class Identity:
    """What is told of a process, and where it is read."""

    __slots__ = ("_folder", "_users", "info")

    def __init__(self, folder: str, pid: int, users: Users) -> None:
        self.info = ProcInfo(pid, 0)
        self._folder = folder
        self._users = users

    def read(self, stat: parse.Stat) -> ProcInfo:
        """Everything anew: it is new, or ran another program."""
        status = read_once(self._folder + "status", 16_384) or b""
        uid = _uid(status)
        self.info = msgspec.structs.replace(
            self.info,
            start_ticks=stat.start_ticks,
            ppid=stat.ppid,
            session=stat.session,
            policy=stat.policy,
            uid=uid,
            user="" if uid is None else self._users.name(uid),
            comm=parse.text(stat.comm),
            cmdline=self._cmdline(stat),
            exe="" if stat.kthread else self._exe(),
            ns_pid=_ns_pid(status, self.info.pid),
            **self._groups(),
            cpus_allowed=parse.text(parse.status_line(status, b"Cpus_allowed_list")),
            env={} if stat.kthread else self._env(),
        )
        return self.info

    def refresh(self, stat: parse.Stat, status: bytes, titled: bool) -> bool:
        """Look again at what changes without an exec, at the command line, for which the kernel looks into its memory, only where
        ``titled``; whether anything did change."""
        uid = _uid(status)
        found = {
            "ppid": stat.ppid,
            "session": stat.session,
            "policy": stat.policy,
            "uid": uid,
            "user": "" if uid is None else self._users.name(uid),
            "cmdline": self._cmdline(stat) if titled else self.info.cmdline,
            "cpus_allowed": parse.text(parse.status_line(status, b"Cpus_allowed_list")),
            **self._groups(),
        }
        return self.change(**found)

    def change(self, **found: object) -> bool:
        """Take over fields; whether any differs from what it was."""
        if all(getattr(self.info, name) == value for name, value in found.items()):
            return False
        self.info = msgspec.structs.replace(self.info, **found)
        return True

    def _cmdline(self, stat: parse.Stat) -> list[str]:
        """A zombie has none any more: the one it had stands."""
        if stat.kthread or stat.state in "ZX":
            return self.info.cmdline
        return parse.cmdline(read_once(self._folder + "cmdline", parse.CMDLINE_BYTES) or b"")

    def _groups(self) -> dict[str, str]:
        paths = parse.cgroups(read_once(self._folder + "cgroup", 8192) or b"")
        cgroup, cpu_cgroup = parse.main_cgroup(paths), paths.get("cpu", "")
        return {"cgroup": cgroup, "cpu_cgroup": "" if cpu_cgroup == cgroup else cpu_cgroup}

    def _exe(self) -> str:
        try:
            return parse.text(os.readlink(os.fsencode(self._folder + "exe")))
        except OSError:
            return ""

    def _env(self) -> dict[str, str]:
        return parse.environ(read_once(self._folder + "environ", _ENVIRON_BYTES) or b"", _WANTED)


def _uid(status: bytes) -> int | None:
    """The effective uid."""
    fields = parse.status_line(status, b"Uid").split()
    return int(fields[1]) if len(fields) > 1 else None


def _ns_pid(status: bytes, pid: int) -> int | None:
    """Its pid in the innermost namespace, where that is another number or another namespace than ours."""
    pids = parse.status_line(status, b"NSpid").split()
    return int(pids[-1]) if len(pids) > 1 or (pids and int(pids[-1]) != pid) else None
