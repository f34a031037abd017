"""Prometheus text of the Inspector: means of each kind of collective since its dump before, 30 s or more apart.

Each GPU has a file, ``nccl_inspector_metrics_UUID.prom``. Until v4.x a line is of the latest collective of a communicator, which it names
with the rank; since v5 of all of one name, by ranges of sizes. How many there were, and who came last, stands in neither.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from gputop.sources import Unavailable
from gputop.sources.elf import opened
from gputop.sources.files import open_files
from gputop.sources.inspector_lines import MOST_KINDS, MOST_MB_PER_S, MOST_RANK, MOST_US, WORD, Operation
from gputop.system.text import clean

FRESH_S = 90.0  # s since the last dump, after which its means are old: dumps are 30 s apart at least (a choice)
TEXT_BYTES, MOST_DESCRIPTORS = 1 << 18, 4096  # most bytes read of a file; descriptors looked at of one rank
MOST_TEXTS = 64  # files of a folder that are looked at
_FILE = re.compile(r"nccl_inspector_metrics_[\w-]{1,64}\.prom")
_LINE = re.compile(rb"nccl_(p2p_|collective_)?(bus_bandwidth_gbs|exec_time_microseconds)\{([^{}\n]{1,1024})\} ([0-9.e+]{1,24})\n")
_LABEL = re.compile(rb'([a-z0-9_]{1,32})="([^"\n]{0,256})"')
_GPU = re.compile(rb'gpu(?:_device_id)?="GPU(\d{1,4})"')
_SIZE = re.compile(r"(\d{1,7}(?:\.\d{1,2})?)([KMGT]?)B")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Text:
    """The file of one rank."""

    def __init__(self, folder: str, uid: int) -> None:
        self._proc, self._uid = folder, uid
        self._known: tuple[int, int, int] = (0, 0, 0)  # inode, size and time of change of what was read last
        self._found: list[Operation] = []

    def read(self, dumps: int, local_rank: str, now_s: float) -> list[Operation]:
        """The means of the latest dump; ``dumps``: descriptor of the Inspector's folder. Raises Unavailable."""
        try:
            fd = self._open(dumps, local_rank)
        except OSError as error:
            raise Unavailable(f"its Inspector's folder: {(error.strerror or str(error)).lower()}") from None
        try:
            status = os.fstat(fd)
            known = status.st_ino, status.st_size, status.st_mtime_ns
            if now_s - status.st_mtime_ns / 1e9 > FRESH_S:
                raise Unavailable(f"its Inspector has written nothing for {now_s - status.st_mtime_ns / 1e9:.0f} s")
            if known != self._known:
                self._known, self._found = known, list(operations(os.pread(fd, TEXT_BYTES, 0)))
            return self._found
        except OSError as error:
            raise Unavailable(f"its file: {(error.strerror or str(error)).lower()}") from None
        finally:
            os.close(fd)

    def _open(self, dumps: int, local_rank: str) -> int:
        """Open the rank's file, one of its own user: the one that it has open itself, else that of the GPU of its local rank."""
        with suppress(OSError):
            for descriptor, link in open_files(self._proc, MOST_DESCRIPTORS):
                if _FILE.fullmatch(link.rpartition("/")[2]):
                    with opened(f"{self._proc}fd/{descriptor}") as file:
                        if os.fstat(file.fileno()).st_uid == self._uid:
                            return os.dup(file.fileno())
        found = [fd for fd in self._in(dumps) if self._is_of(fd, local_rank)]
        for fd in found[1:]:
            os.close(fd)
        if len(found) == 1:
            return found[0]
        if found:
            os.close(found[0])
            raise Unavailable("several files of its Inspector may be its own", "NCCL_INSPECTOR_PROM_DUMP=0")
        raise Unavailable("its Inspector has written no text for this GPU yet")

    def _in(self, dumps: int) -> Iterator[int]:
        with os.scandir(dumps) as entries:
            names = [entry.name for entry in islice(entries, MOST_DESCRIPTORS) if _FILE.fullmatch(entry.name)]
        for name in names[:MOST_TEXTS]:
            with suppress(OSError):
                yield os.open(name, _FLAGS, dir_fd=dumps)

    def _is_of(self, fd: int, local_rank: str) -> bool:
        """True for a file of the rank's user that has lines of that GPU; else it is closed."""
        status = os.fstat(fd)
        with suppress(OSError):
            if stat.S_ISREG(status.st_mode) and status.st_uid == self._uid:
                gpu = _GPU.search(os.pread(fd, TEXT_BYTES, 0))
                if gpu is not None and (not local_rank or gpu[1].decode() == local_rank):
                    return True
        os.close(fd)
        return False


def operations(data: bytes) -> Iterator[Operation]:
    """One for each kind of collective of each communicator: of the sizes that it has, the one that takes longest."""
    values: dict[tuple[str, bytes], dict[str, float]] = {}
    for part, what, labels, number in _LINE.findall(data):
        with suppress(ValueError):
            values.setdefault(("p2p" if part == b"p2p_" else "coll", labels), {})[what.decode()] = float(number)
    longest: dict[tuple[str, str], Operation] = {}
    for (kind, labels), found in values.items():
        one = _operation(kind, labels, found)
        if one is not None and (one.us or 0) >= (longest.get((one.comm, one.coll), one).us or 0):
            longest[one.comm, one.coll] = one
    yield from list(longest.values())[:MOST_KINDS]


def _operation(kind: str, labels: bytes, found: dict[str, float]) -> Operation | None:
    label = {name.decode(): clean(value.decode("utf-8", "replace"), WORD) for name, value in _LABEL.findall(labels)}
    coll = label.get("p2p_operation" if kind == "p2p" else "collective", "")
    name = label.get("comm_name", "")
    comm = label.get("comm_id") or name
    if not coll or not comm:
        return None
    algo, _, proto = label.get("algo_proto", "").partition("_")
    size = _SIZE.fullmatch(label.get("message_size", ""))
    us = _rounded(found.get("exec_time_microseconds"), MOST_US, 1)
    return Operation(
        comm, coll, "" if name == "unknown" else name, rank=_count(label.get("rank", "")), ranks=_count(label.get("nranks", "")),
        nodes=_count(label.get("n_nodes", "")), sn=None, size_bytes=None if size is None else round(float(size[1]) * _UNITS[size[2]]),
        us=us, busbw_mb_per_s=_rounded(found.get("bus_bandwidth_gbs"), MOST_MB_PER_S, 1000),
        algo=algo, proto=proto.upper(), is_mean=True,
    )  # fmt: skip


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 8 and int(text) <= MOST_RANK else None


def _rounded(value: float | None, most: int, factor: int) -> int | None:
    return None if value is None or not 0 <= value * factor <= most else round(value * factor)
