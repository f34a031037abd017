"""Frames in which nobody is named: for a bug report that a stranger may read.

Every text of a frame becomes a hash of itself, except those that `_RULES` names: a field that is added later is masked until
somebody has judged it. The same text becomes the same hash all over one bundle, so processes stay told apart and roles are
found as before; the key is thrown away.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import socket
import sys
from collections.abc import Callable
from functools import cache
from pathlib import PurePath
from typing import Any

import msgspec

from gputop.model.frame import Frame, Header
from gputop.model.roles import WELL_KNOWN

_PROGRAM = re.compile(r"(python|pypy)[\d.]*t?|pt_\w+|cuda-\w+|k(worker|softirqd|swapd|compactd)[\w/:+-]*|migration/\d+|rcu\w*")
_FLAGS = frozenset(("-m", "-c", "-u", "-E", "-I", "-P", "-S", "--multiprocessing-fork"))
_STARTER = re.compile(r"from multiprocessing\.\w+ import \w+|compile_worker")
_SLICES = frozenset(("", ".", "..", "system.slice", "user.slice", "init.scope", "docker", "kubepods", "kubepods.slice", "slurm"))
_PLAIN = re.compile(r"[\d,.-]*|all|none|void|true|false", re.IGNORECASE)
_INTERFACE = re.compile(r"lo|(eth|ens|enp|eno|ib|bond|docker|wl)[a-z\d]*")
_DISK = re.compile(r"/dev/((sd|vd|xvd|hd)[a-z]+|nvme\d+n\d+|md|dm-|mmcblk\d+|loop)(p?\d+)?|overlay|tmpfs|rootfs")
_STOPS = r"\s\"'`,;:()\[\]{}<>|"
_QUOTED = r"(?<=(['\"`])/)(?:(?! /|\\?\1)[^\n])+(?=\\?\1)"
_WORD = rf" [^{_STOPS}/]+"
_BEHIND_BLANKS = rf"(?:{_WORD}){{1,5}}(?:/[^{_STOPS}]*|(?=:\s))|(?:{_WORD}){{0,4}}{_WORD}\.[A-Za-z]\w*(?![^{_STOPS}])"
_ABSOLUTE = re.compile(rf"(?<![\w~/.-])/(?!/)(?:{_QUOTED}|[^{_STOPS}]+(?:{_BEHIND_BLANKS})*(?<!\.))")
"""A path: where it is quoted to the quote's end, else to a blank, unless it goes on behind that. It may where up to five words end with a
slash, a suffix, or the colon that messages have behind a path; that a few words too many are hashed does not matter."""
_BLANK = "\0"
"""In a path whose end is known, until it is hashed."""
_SYSTEMS_OWN = re.compile(
    r"/(usr|lib(32|64)?|s?bin|proc|sys|etc|dev(?!/shm/)|boot)(/.*)?|/(tmp|var(/tmp)?|run(/user(/\d+)?)?|opt|home|mnt)"
)
_EVERYBODYS_TAIL = re.compile(r"/(s?bin/[^/]+|lib\d*/python[\d.]+t?(/.*)?|(site|dist)-packages(/.*)?|gputop(-\d+)?(/.*)?)$")
_NUMBERS = re.compile(r"\b(int|float|bool|None|list|dict|Annotated|BOUNDED)\b|[\[\]|, ]")


class Mask:
    """One bundle's masking."""

    def __init__(self) -> None:
        self._key = os.urandom(16)
        self._uids: dict[int, int] = {0: 0}
        self._spaced = _spaced_paths()

    def header(self, header: Header) -> Header:
        """The header without the machine's name."""
        return msgspec.structs.replace(header, host=self.word(header.host), boot_id="")

    def frame(self, frame: Frame) -> Frame:
        """The frame without names; stacks, which quote programs, are left out."""
        masked: Frame = self._struct(msgspec.structs.replace(frame, stacks=[]))
        return masked

    def word(self, text: str) -> str:
        """A hash of it; what gputop itself or PyTorch calls so stays."""
        if not text or text in WELL_KNOWN or _PROGRAM.fullmatch(text):
            return text
        return "x" + hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=4, key=self._key).hexdigest()

    def file(self, text: str) -> str:
        """As `word`, with the suffix that tells a script from a program."""
        stem, dot, suffix = text.rpartition(".")
        return f"{self.word(stem)}.{suffix}" if dot and stem and suffix in ("py", "sh", "so") else self.word(text)

    def path(self, text: str) -> str:
        """Its folder as one hash, its last part as `file`."""
        folder, slash, name = text.rpartition("/")
        return f"{self.word(folder)}{slash}{self.file(name)}"

    def argument(self, text: str) -> str:
        """One word of a command line; of options nothing stays but that they are."""
        if text in _FLAGS or text in WELL_KNOWN:
            return text
        if found := _STARTER.search(text):
            return f"{found[0]} {self.word(text)}"
        return f"-{self.word(text)}" if text.startswith("-") else self.path(text)

    def cgroup(self, text: str) -> str:
        """Each part of its path by itself: the nesting matters."""
        return "/".join(part if part in _SLICES else self.word(part) for part in text.split("/"))

    def value(self, text: str) -> str:
        """Of an environment variable: numbers and lists of them stay."""
        return text if _PLAIN.fullmatch(text) else self.word(text)

    def interface(self, text: str) -> str:
        """Of the network, unless its name is everybody's."""
        return text if _INTERFACE.fullmatch(text) else self.word(text)

    def mount_point(self, text: str) -> str:
        """The system's own folders stay."""
        return text if text == "/" or _SYSTEMS_OWN.fullmatch(text) else self.path(text)

    def device(self, text: str) -> str:
        """Disks that the kernel names stay; volumes and servers, which users name, do not."""
        return text if _DISK.fullmatch(text) else self.word(text)

    def uid(self, uid: int) -> int:
        """Root stays, others are numbered as they come."""
        return self._uids.setdefault(uid, 999 + len(self._uids))

    def told(self, text: str) -> str:
        """What gputop itself says, without the names of this machine, its user and his folder, and of folders that are not the system's."""
        for path in self._spaced:
            text = text.replace(path, path.replace(" ", _BLANK))
        text = _ABSOLUTE.sub(lambda found: self._told_path(found[0].replace(_BLANK, " ")), text)
        for name, neutral in _own_names():
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", neutral, text)
        return text

    def _told_path(self, path: str) -> str:
        """Which program of a virtual environment, or line of our own, is what a report is about: only what lies above is hashed."""
        if _SYSTEMS_OWN.fullmatch(path.partition(" ")[0]) or (path, "~") in _own_names():
            return path
        tail = _EVERYBODYS_TAIL.search(path)
        return self.word(path[: tail.start()]) + tail[0] if tail else self.path(path)

    def _kept(self, text: Any) -> Any:
        return text

    def _struct(self, item: Any) -> Any:
        fields = ((name, getattr(item, name), rule) for name, rule in _fields(item.__class__))
        return msgspec.structs.replace(item, **{name: self._masked(value, rule) for name, value, rule in fields})

    def _masked(self, value: Any, rule: _Rule) -> Any:
        if isinstance(value, list):
            return [self._masked(one, rule) for one in value]
        if isinstance(value, dict):
            return {key: self._masked(one, rule) for key, one in value.items()}
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        return None if value is None else rule(self, value)


_Rule = Callable[[Mask, Any], Any]
_RULES: dict[str, _Rule] = {
    "ProcInfo.uid": Mask.uid, "ProcInfo.cmdline": Mask.argument, "ProcInfo.exe": Mask.path, "ProcInfo.cgroup": Mask.cgroup,
    "ProcInfo.cpu_cgroup": Mask.cgroup,
    "ProcInfo.env": Mask.value, "ProcInfo.wait_unreadable": Mask.told, "CgroupSample.path": Mask.cgroup,
    "CgroupSample.quota_path": Mask.cgroup, "CgroupSample.mem_limit_path": Mask.cgroup,
    "ReadLimit.path": Mask.cgroup, "NetSample.name": Mask.interface, "Nic.name": Mask.interface,
    "FileSystem.path": Mask.mount_point, "FileSystem.device": Mask.device, "SourceState.reason": Mask.told,
    "SourceState.remedy": Mask.told, "SourceState.detail": Mask.told,
    **dict.fromkeys((
        "ProcInfo.cpus_allowed", "ProcInfo.libs", "ProcInfo.sockets", "ProcSample.state", "ProcSample.wchan", "ProcSample.kernel_stack",
        "ThreadSample.state", "SchedThread.state", "CudaCall.call", "Probes.map_used", "Probes.map_size", "Probes.lost",
        "CgroupSample.cpuset", "ReadLimit.device", "DiskSample.name", "FileSystem.kind", "Hardware.missing", "Gpu.name",
        "Gpu.pci_bus_id", "Gpu.architecture", "Gpu.compute_mode", "Gpu.missing", "GpuProc.kind",
        "MigInstance.profile", "MigInstance.missing", "SourceState.name", "SourceState.state",
    ), Mask._kept),
}  # fmt: skip
"""Text that is not simply hashed; ``_kept`` is the kernel's, the driver's or our own vocabulary."""


@cache
def _fields(kind: type) -> list[tuple[str, _Rule]]:
    """The fields of a struct that hold more than numbers, or that have a rule."""
    named = ((name, f"{kind.__name__}.{name}", str(said)) for name, said in kind.__annotations__.items())
    return [(name, _RULES.get(key, Mask.word)) for name, key, said in named if key in _RULES or _NUMBERS.sub("", said)]


def _spaced_paths() -> list[str]:
    """The paths with blanks that this process was started with, and the folders that they are in, the longest first: in a text that does
    not quote them nothing else tells where they end."""
    parts = [part for value in os.environ.values() for part in (value, *value.split(os.pathsep))]
    paths = [PurePath(part) for part in (*parts, *sys.path, sys.prefix) if part.startswith("/") and " " in part]
    return sorted({str(one) for path in paths for one in (path, *path.parents) if " " in str(one)}, key=len, reverse=True)


@cache
def _own_names() -> list[tuple[str, str]]:
    """(what stands for this machine's owner, what is told instead), the longest first."""
    home = os.path.expanduser("~")
    names = {home: "~", os.path.realpath(home): "~", socket.gethostname(): "HOST", os.path.basename(home): "USER", _user(): "USER"}
    names = {name: neutral for name, neutral in names.items() if len(name) > 2 and name != "root"}
    return sorted(names.items(), key=lambda pair: -len(pair[0]))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
