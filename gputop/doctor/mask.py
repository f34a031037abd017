"""Frames without names of people, machines and programs: for a bug report that strangers may read.

Every text of a frame becomes a hash of itself, except the fields in `_RULES`: a field that is added later is hashed until it gets a rule.
Equal texts have equal hashes within one bundle, so processes stay distinct and roles are found as before. The key is thrown away.
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
_FLAGS = frozenset(("-m", "-c", "-u", "-E", "-I", "-P", "-S", "--multiprocessing-fork"))  # Python's, which distinguish roles
_STARTER = re.compile(r"from multiprocessing\.\w+ import \w+|compile_worker")
_SLICES = frozenset(("", ".", "..", "system.slice", "user.slice", "init.scope", "docker", "kubepods", "kubepods.slice", "slurm"))
# Values of variables: numbers, lists of numbers, switches, this host. Any other address is hashed.
_COLLECTIVE = re.compile(r"0x[0-9a-f]{1,16}|[A-Z][A-Za-z]{2,15}(?:_[A-Z]{2,6})?|LL(?:128)?|[A-Z]{4,8}", re.ASCII)  # ``AllReduce``, ``Ring``
_PLAIN = re.compile(r"(?!(\d+\.){3}\d+$)[\d,.-]*|127(\.\d+){3}|localhost|all|none|void|true|false", re.IGNORECASE)
_INTERFACE = re.compile(r"lo|(eth|ens|enp|eno|ib|bond|docker|wl)[a-z\d]*")  # network interfaces with a name of the kernel's
_RDMA_DEVICE = re.compile(r"((mlx4|mlx5|bnxt_re|hns|irdma|ionic|hfi1|efa|rdmap\d+s|rocep\d+s|ibp\d+s)_?\d+(f\d+)?)")  # with a driver's name
_RDMA = re.compile(_RDMA_DEVICE.pattern + r"/\d+")  # its ports
_LOOPBACK = re.compile(r"127(\.\d+){3}:\d+|\[::1\]:\d+|")  # where a server of this machine is asked
# Devices of file systems with a name of the kernel's; users name volumes and servers.
_DISK = re.compile(r"/dev/((sd|vd|xvd|hd)[a-z]+|nvme\d+n\d+|md|dm-|mmcblk\d+|loop)(p?\d+)?|overlay|tmpfs|rootfs")
_STOPS = r"\s\"'`,;:()\[\]{}<>|"  # characters that end a path without quotes
_QUOTED = r"(?<=(['\"`])/)(?:(?! /|\\?\1)[^\n])+(?=\\?\1)"
_WORD = rf" [^{_STOPS}/]+"
_BEHIND_BLANKS = rf"(?:{_WORD}){{1,5}}(?:/[^{_STOPS}]*|(?=:\s))|(?:{_WORD}){{0,4}}{_WORD}\.[A-Za-z]\w*(?![^{_STOPS}])"
_ABSOLUTE = re.compile(rf"(?<![\w~/.-])/(?!/)(?:{_QUOTED}|[^{_STOPS}]+(?:{_BEHIND_BLANKS})*(?<!\.))")
"""An absolute path in a message. A quoted one ends with its quote. Any other ends at a blank, unless up to five words behind it end with
a slash, a suffix or the colon of an error message: too many hashed words do no harm."""
_BLANK = "\0"  # stands for blanks in a path whose end is known, until it is hashed
_SYSTEMS_OWN = re.compile(
    r"/(usr|lib(32|64)?|s?bin|proc|sys|etc|dev(?!/shm/)|boot)(/.*)?|/(tmp|var(/tmp)?|run(/user(/\d+)?)?|opt|home|mnt)"
)
_COMMON_TAIL = re.compile(r"/(s?bin/[^/]+|lib\d*/python[\d.]+t?(/.*)?|(site|dist)-packages(/.*)?|gputop(-\d+)?(/.*)?)$")
_NUMBERS = re.compile(r"\b(int|float|bool|None|list|dict|Annotated|BOUNDED)\b|[\[\]|, ]")


class Mask:
    """The masking of one bundle, with a key of its own."""

    def __init__(self) -> None:
        self._key = os.urandom(16)
        self._uids: dict[int, int] = {0: 0}
        self._spaced = _spaced_paths()

    def header(self, header: Header) -> Header:
        """The header without the machine's name and boot id."""
        return msgspec.structs.replace(header, host=self.word(header.host), boot_id="")

    def frame(self, frame: Frame) -> Frame:
        """The frame without names. Stacks and traces are left out: they quote programs."""
        masked: Frame = self._struct(msgspec.structs.replace(frame, stacks=[], traces=[]))
        return masked

    def word(self, text: str) -> str:
        """A hash of a name. Names that gputop, PyTorch and the kernel give stay."""
        if not text or text in WELL_KNOWN or _PROGRAM.fullmatch(text):
            return text
        return "x" + hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=4, key=self._key).hexdigest()

    def file(self, text: str) -> str:
        """A hash of a file's name, with the suffix of scripts and libraries."""
        stem, dot, suffix = text.rpartition(".")
        return f"{self.word(stem)}.{suffix}" if dot and stem and suffix in ("py", "sh", "so") else self.word(text)

    def path(self, text: str) -> str:
        """The folder as one hash, and the file's name as another."""
        folder, slash, name = text.rpartition("/")
        return f"{self.word(folder)}{slash}{self.file(name)}"

    def argument(self, text: str) -> str:
        """One argument of a command line; an option becomes ``-`` and a hash."""
        if text in _FLAGS or text in WELL_KNOWN:
            return text
        if found := _STARTER.search(text):
            return f"{found[0]} {self.word(text)}"
        return f"-{self.word(text)}" if text.startswith("-") else self.path(text)

    def cgroup(self, text: str) -> str:
        """A cgroup's path, each part hashed by itself, which keeps the nesting."""
        return "/".join(part if part in _SLICES else self.word(part) for part in text.split("/"))

    def mount_point(self, text: str) -> str:
        """Mount point with its own names hashed; the system's folders stay."""
        return text if text == "/" or _SYSTEMS_OWN.fullmatch(text) else self.path(text)

    def uid(self, uid: int) -> int:
        """Root stays 0, other users become 1000, 1001 … in the order in which they are seen."""
        return self._uids.setdefault(uid, 999 + len(self._uids))

    def message(self, text: str) -> str:
        """A message of gputop's without the names of this machine, the user and the user's home, and with other folders hashed."""
        for path in self._spaced:
            text = text.replace(path, path.replace(" ", _BLANK))
        text = _ABSOLUTE.sub(lambda found: self._path_in_message(found[0].replace(_BLANK, " ")), text)
        for name, neutral in _own_names():
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", neutral, text)
        return text

    def _path_in_message(self, path: str) -> str:
        """Programs of a virtual environment and gputop's own files stay, for they matter in a report; the folder above them is hashed."""
        if _SYSTEMS_OWN.fullmatch(path.partition(" ")[0]) or (path, "~") in _own_names():
            return path
        tail = _COMMON_TAIL.search(path)
        return self.word(path[: tail.start()]) + tail[0] if tail else self.path(path)

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
        if value is None or (rule is Mask.word and not isinstance(value, str)):
            return value  # a number holds no name
        return rule(self, value)


_Rule = Callable[[Mask, Any], Any]


def _keep_if(pattern: re.Pattern[str]) -> _Rule:
    """A rule that keeps texts of this form and hashes the others."""
    return lambda mask, text: text if pattern.fullmatch(text) else mask.word(text)


def _keep(_mask: Mask, text: Any) -> Any:
    return text


_RULES: dict[str, _Rule] = {
    "ProcInfo.uid": Mask.uid, "ProcInfo.cmdline": Mask.argument, "ProcInfo.exe": Mask.path, "ProcInfo.cgroup": Mask.cgroup,
    "ProcInfo.cpu_cgroup": Mask.cgroup, "ProcInfo.other_cgroups": Mask.cgroup, "Names.missing": Mask.message,
    "ProcInfo.env": _keep_if(_PLAIN), "ProcInfo.wait_unreadable": Mask.message, "CgroupSample.path": Mask.cgroup,
    "CgroupSample.quota_path": Mask.cgroup, "CgroupSample.mem_limit_path": Mask.cgroup,
    "ReadLimit.path": Mask.cgroup, "NetSample.name": _keep_if(_INTERFACE), "Nic.name": _keep_if(_INTERFACE),
    "RdmaPort.name": _keep_if(_RDMA), "RdmaPort.interface": _keep_if(_INTERFACE), "RdmaPort.missing": Mask.message,
    "ProcSample.wire_interface": _keep_if(_INTERFACE), "Serving.address": _keep_if(_LOOPBACK), "Serving.problem": Mask.message,
    "Transport.variables": _keep_if(_PLAIN), "Transport.devices": _keep_if(_RDMA_DEVICE),
    **dict.fromkeys((f"Collective.{name}" for name in ("comm", "coll", "algo", "proto")), _keep_if(_COLLECTIVE)),
    "FileSystem.path": Mask.mount_point, "FileSystem.device": _keep_if(_DISK), "SourceState.reason": Mask.message,
    "SourceState.remedy": Mask.message, "SourceState.detail": Mask.message,
    **dict.fromkeys((
        "ProcInfo.cpus_allowed", "ProcInfo.libs", "ProcInfo.sockets", "Names.runtime", "Transport.library", "Transport.version",
        "Transport.configured", "Transport.missing", "Names.pod_by", "ProcSample.state",
        "ProcSample.wchan", "ProcSample.kernel_stack",
        "ThreadSample.state", "ThreadSample.wchan", "Met.state", "Met.wchan", "SchedThread.state", "CudaCall.call", "ThreadCalls.call",
        "Wakeup.kind", "Probes.map_used", "Probes.map_size", "Probes.lost",
        "CgroupSample.cpuset", "ReadLimit.device", "DiskSample.name", "RdmaPort.driver", "RdmaPort.link", "RdmaPort.state",
        "FileSystem.kind", "Hardware.missing", "Gpu.name",
        "Gpu.pci_bus_id", "Gpu.near_cpus", "Gpu.architecture", "Gpu.compute_mode", "Gpu.fabric_state", "Gpu.fabric_health", "Gpu.missing",
        "GpuProc.kind",
        "DriverError.kind", "DriverError.device", "DriverError.text",
        "MigInstance.profile", "MigInstance.missing", "SourceState.name", "SourceState.state",
        "Serving.family", "Serving.engine",
    ), _keep),
}  # fmt: skip
"""Field -> its rule, where that is not `Mask.word`. `_keep` is for words of the kernel, the driver and gputop."""


@cache
def _fields(kind: type) -> list[tuple[str, _Rule]]:
    """The fields of a struct that hold text or have a rule, each with its rule."""
    named = ((name, f"{kind.__name__}.{name}", str(said)) for name, said in kind.__annotations__.items())
    return [(name, _RULES.get(key, Mask.word)) for name, key, said in named if key in _RULES or _NUMBERS.sub("", said)]


def _spaced_paths() -> list[str]:
    """Paths with blanks from the environment and sys.path, and their folders, longest first: if a message does not quote such a path, only
    this list shows where it ends."""
    parts = [part for value in os.environ.values() for part in (value, *value.split(os.pathsep))]
    paths = [PurePath(part) for part in (*parts, *sys.path, sys.prefix) if part.startswith("/") and " " in part]
    return sorted({str(one) for path in paths for one in (path, *path.parents) if " " in str(one)}, key=len, reverse=True)


@cache
def _own_names() -> list[tuple[str, str]]:
    """(name of this machine, its user or home, what replaces it), the longest first."""
    home = os.path.expanduser("~")
    names = {home: "~", os.path.realpath(home): "~", socket.gethostname(): "HOST", os.path.basename(home): "USER", _user(): "USER"}
    names = {name: neutral for name, neutral in names.items() if len(name) > 2 and name != "root"}
    return sorted(names.items(), key=lambda pair: -len(pair[0]))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
