"""Reads by what a rank's data may reach other ranks: its collective library, shared memory, RDMA devices, and variables that forbid them;
and how its training is divided, where its configuration files state that.

A thread reads the rank's maps, descriptors, environment and configuration, one rank at a time: the maps of a trainer take the kernel some
milliseconds.
What was found may change while the library connects its ranks, and hardly ever after that, so a rank is looked at ever more rarely.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from gputop.model.frame import SECOND_NS, Transport
from gputop.sources.elf import opened
from gputop.sources.files import open_files, read_list, read_once
from gputop.sources.procfs.configured import group_sizes
from gputop.sources.procfs.process import Process
from gputop.system.errors import start_thread
from gputop.system.text import clean

FIRST_NS, GROWTH, LONGEST_NS = 3 * SECOND_NS, 3, 120 * SECOND_NS  # ns until the second look at a rank, times that each delay grows, most ns
HANGS_NS, MOST_HUNG = 10 * SECOND_NS, 4  # ns without an answer of a rank's files, after which it is left; ranks left so (a choice)
SHARE = 0.0005  # of one CPU that looks after a rank's first take at most (guess)
MOST_RANKS = 16  # ranks that are looked at
MOST_VARIABLES, VALUE = 32, 128  # variables kept of one rank, and characters of a value
_MAPS_BYTES, _ENVIRON_BYTES, _CONFIG_BYTES = 8 << 20, 1 << 18, 1 << 14  # most bytes read of each file
_DESCRIPTORS = 4096  # descriptors looked at of one rank
_MOST_LISTED = 4096  # packages beside a library of a wheel that are looked at
_LIBRARY = re.compile(rb"(/[^\n]*/lib(nccl|rccl)\.so(?:\.(\d+(?:\.\d+){0,3}))?)(?: \(deleted\))?\n")
_WHEEL = re.compile(r"nvidia_nccl_cu\d+-(\d+\.\d+\.\d+)(?:\.post\d+)?\.dist-info")
_IN_WHEEL = "/nvidia/nccl/lib/"  # where the library of NVIDIA's wheel lies, below site-packages
_VARIABLE = re.compile(rb"(?:(?:NCCL|RCCL|GLOO)_[A-Z0-9_]{1,48}|FI_PROVIDER)")
_SHM = b"/dev/shm/nccl-"
_VERBS = re.compile(r"/dev/infiniband/(uverbs\d{1,4})")
_CONFIG = "etc/nccl.conf"


class Transports:
    """Fills `ProcInfo.transport` of trainers that are ranks."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._due: dict[int, tuple[Process, int, int]] = {}  # pid -> (its process, when to look again, delay after that)
        self._thread: threading.Thread | None = None
        self._found: tuple[Process, Transport, dict[str, int]] | None = None
        self._looked_at: tuple[Process, int] | None = None  # by the thread, and since when
        self._hung: list[Process] = []  # whose files never answered: a thread is left with each
        self._rest_ns = 0

    def read(self, t_ns: int, ranks: Iterable[Process]) -> Iterator[Process]:
        """Begin to look at the rank that is due; yields ranks of which something else is known now."""
        if self._thread is not None and self._thread.is_alive():
            if self._looked_at is None or t_ns - self._looked_at[1] <= HANGS_NS or len(self._hung) >= MOST_HUNG:
                return
            hung, self._thread = self._looked_at[0], None
            self._hung.append(hung)
            reason = f"its files have not answered for {HANGS_NS / 1e9:.0f} s"
            if hung.identity.change(transport=Transport(missing=dict.fromkeys(("library", "devices", "shm", "variables"), reason))):
                yield hung
        if self._found is not None:
            (process, transport, sizes), self._found = self._found, None
            if process.identity.change(transport=transport, group_sizes=sizes):
                yield process
        known = {process.pid: process for process in islice(ranks, MOST_RANKS) if process not in self._hung}
        self._due = {pid: entry for pid, entry in self._due.items() if known.get(pid) is entry[0]}
        for pid in known.keys() - self._due.keys():
            self._due[pid] = known[pid], 0, FIRST_NS
        first = min(self._due, key=lambda one: self._due[one][1], default=None)
        if first is None or t_ns < self._due[first][1] or (self._due[first][1] and t_ns < self._rest_ns):
            return
        process, _, delay_ns = self._due[first]
        self._due[first] = process, t_ns + delay_ns, min(LONGEST_NS, GROWTH * delay_ns)
        self._looked_at = process, t_ns
        self._thread = start_thread(self._look, "gputop-transport", process, t_ns)

    def _look(self, process: Process, t_ns: int) -> None:
        began_ns = time.thread_time_ns()
        found = process, look(self._root, process.folder), group_sizes(process.folder, process.identity.info.cmdline)
        if process in self._hung:  # it answered late, and another thread goes on
            return
        self._found = found
        self._rest_ns = t_ns + int((time.thread_time_ns() - began_ns) / SHARE)


def look(root: str, folder: str) -> Transport:
    """What a process's files show; ``folder`` is its /proc/PID/."""
    missing = dict[str, str]()
    maps = read_list(folder + "maps", _MAPS_BYTES)
    library, version, shm = "", "", 0
    if maps is None:
        missing["library"] = missing["shm"] = "its maps are not readable: another user's process"
    else:
        shm = maps.count(_SHM)
        library, version = _library(maps, folder)
        if library and not version:
            missing["version"] = "neither its file nor a package beside it has it"
    devices, reason = _devices(root, folder)
    if reason:
        missing["devices"] = reason
    variables, configured, reason = _variables(folder)
    if reason:
        missing["variables"] = reason
    return Transport(
        library=library, version=version, shm=shm, devices=devices, variables=variables, configured=configured,
        lacks_devices=_lacks_devices(root, folder), shm_bytes=_shm_bytes(folder), missing=missing,
    )  # fmt: skip


def _library(maps: bytes, folder: str) -> tuple[str, str]:
    """(name, version) of the collective library that is mapped; empty if none is, or if its version is unknown."""
    found = _LIBRARY.search(maps)
    if found is None:
        return "", ""
    name, numbers = found[2].decode(), (found[3] or b"").decode()
    if numbers.count(".") >= 2:
        return name, numbers
    packages, inside, _ = os.fsdecode(found[1]).rpartition(_IN_WHEEL)
    with suppress(OSError, ValueError):  # ValueError: no path
        if inside:
            with os.scandir(f"{folder}root{packages}") as entries:
                found_here = (_WHEEL.fullmatch(one.name) for one in islice(entries, _MOST_LISTED))
                return name, next((wheel[1] for wheel in found_here if wheel), "")
    return name, ""


def _devices(root: str, folder: str) -> tuple[list[str], str]:
    """(RDMA devices that it has open, why they are not known)."""
    found = set[str]()
    try:
        for _, link in open_files(folder, _DESCRIPTORS):
            if verbs := _VERBS.fullmatch(link):
                name = read_once(f"{root}sys/class/infiniband_verbs/{verbs[1]}/ibdev", 64) or verbs[1].encode()
                found.add(clean(name.decode("utf-8", "replace").strip(), 64))
    except OSError:
        return [], "its descriptors are not readable: another user's process"
    return sorted(found), ""


def _variables(folder: str) -> tuple[dict[str, str], list[str], str]:
    """(variables of the library, names of those that stand in /etc/nccl.conf, why its environment is not known)."""
    environ = read_once(folder + "environ", _ENVIRON_BYTES)
    own = dict(_pairs((environ or b"").split(b"\0")))
    config = {name: value for name, value in _pairs(_config(f"{folder}root/{_CONFIG}").split(b"\n")) if name not in own}
    both = dict(sorted((own | config).items())[:MOST_VARIABLES])
    return both, sorted(config.keys() & both.keys()), "its environment is not readable: another user's process" if environ is None else ""


def _config(path: str) -> bytes:
    """A file of settings; empty without one. Its owner might put a pipe there, at which a reader waits, or a device, at any moment."""
    with suppress(OSError), opened(path) as file:
        return file.read(_CONFIG_BYTES) or b""
    return b""


def _pairs(entries: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        name, equals, value = entry.partition(b"=")
        if equals and _VARIABLE.fullmatch(name.strip()):
            yield name.strip().decode(), clean(value[: 4 * VALUE].decode("utf-8", "replace").strip(), VALUE)


def _lacks_devices(root: str, folder: str) -> bool:
    """True if the host has RDMA devices, and the process, as one in a container, has no files for them."""
    if not any(map(os.path.isdir, (f"{root}dev/infiniband", f"{root}sys/class/infiniband_verbs"))):
        return False
    with suppress(OSError):
        return not os.listdir(f"{folder}root/dev/infiniband")
    return os.path.isdir(f"{folder}root/dev")


def _shm_bytes(folder: str) -> int | None:
    """Size of its /dev/shm; None if unknown."""
    with suppress(OSError):
        size = os.statvfs(f"{folder}root/dev/shm")
        return size.f_blocks * size.f_frsize
    return None
