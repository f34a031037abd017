"""The texts of /proc/PID as values. Pure; ValueError or IndexError where a text is not what the kernel writes."""

from __future__ import annotations

import os
from functools import lru_cache

import msgspec

CLOCK_TICK_HZ = os.sysconf("SC_CLK_TCK")
NS_PER_CLOCK_TICK = 1_000_000_000 // CLOCK_TICK_HZ
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

CMDLINE_BYTES = 4096
"""A command line is cut to this."""
ENV_VALUE_CHARS = 256
_KTHREAD = 0x0020_0000
SHARED, SHARED_LONG, SHORT_BYTES = 512, 32, 256
"""So many texts are remembered, and of command lines longer than that so many: hundreds of processes run the same program in the same
cgroup, and where each has a long line of its own megabytes would be kept."""


class Stat(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """/proc/PID/stat; times in clock ticks, rss in pages."""

    comm: bytes
    state: str
    ppid: int
    kthread: bool
    minflt: int
    majflt: int
    utime: int
    stime: int
    children: int
    """User and system time of the children that it has waited for, and of theirs."""
    num_threads: int
    start_ticks: int
    rss: int
    stack: bytes
    """startstack: another one after an exec, 0 where we may not know."""
    processor: int
    blkio_ticks: int
    session: int = 0
    policy: int = 0
    exit_code: int | None = None
    """Of a zombie, as waitpid gives it; 0 also where we may not know. Kernels before 3.5 do not tell."""


def stat(data: bytes) -> Stat:
    """The name may hold anything, brackets and spaces too: what counts is the last bracket."""
    end = data.rindex(b")")
    f = data[end + 2 :].split()
    return Stat(
        data[data.index(b"(") + 1 : end], f[0].decode(), int(f[1]), bool(int(f[6]) & _KTHREAD), int(f[7]), int(f[9]), int(f[11]),
        int(f[12]), int(f[13]) + int(f[14]), int(f[17]), int(f[19]), int(f[21]), f[25], int(f[36]), int(f[39]), int(f[3]),
        int(f[38]), int(f[49]) if f[0] == b"Z" and len(f) > 49 else None,
    )  # fmt: skip


def state(data: bytes) -> str:
    """The state alone, of /proc/PID/task/TID/stat."""
    at = data.rindex(b")") + 2
    return data[at : at + 1].decode()


def schedstat(data: bytes) -> tuple[int, int, int]:
    """(ns on a CPU, ns runnable but not running, times it got a CPU)."""
    oncpu, delay, slices = data.split()
    return int(oncpu), int(delay), int(slices)


def switches(data: bytes) -> tuple[int, int]:
    """(voluntary, involuntary) context switches of a status text."""
    return _number(data, b"\nvoluntary_ctxt_switches:\t"), _number(data, b"\nnonvoluntary_ctxt_switches:\t")


def _number(data: bytes, label: bytes) -> int:
    at = data.index(label) + len(label)
    return int(data[at : data.index(b"\n", at)])


def status_state(data: bytes) -> str:
    """The state letter of a status text."""
    at = data.index(b"\nState:\t") + 8
    return data[at : at + 1].decode()


def status_line(data: bytes, label: bytes) -> bytes:
    """What stands behind ``label`` (such as ``Uid``) in a status text; empty where there is no such line."""
    at = data.find(b"\n" + label + b":\t")
    if at < 0:
        return b""
    at += len(label) + 3
    return data[at : data.find(b"\n", at)]


def io(data: bytes) -> tuple[int, int, int]:
    """(read_bytes, write_bytes, rchar) of /proc/PID/io."""
    f = data.split()
    return int(f[9]), int(f[11]), int(f[1])


def text(data: bytes) -> str:
    """Bytes of other people as text that msgpack can carry."""
    return _short_text(data) if len(data) <= SHORT_BYTES else _text(data)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def cmdline(data: bytes) -> list[str]:
    """The arguments, cut to `CMDLINE_BYTES` in all; not to be changed, for whoever runs the same gets the same list."""
    return _short_cmdline(data) if len(data) <= SHORT_BYTES else _long_cmdline(data)


def _cmdline(data: bytes) -> list[str]:
    data = data[:CMDLINE_BYTES].rstrip(b"\0")
    return [text(argument) for argument in data.split(b"\0")] if data else []


_short_text = lru_cache(maxsize=SHARED)(_text)
_short_cmdline = lru_cache(maxsize=SHARED)(_cmdline)
_long_cmdline = lru_cache(maxsize=SHARED_LONG)(_cmdline)


def environ(data: bytes, wanted: frozenset[bytes]) -> dict[str, str]:
    """The variables named in ``wanted``."""
    found = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name in wanted:
            found[text(name)] = text(value[: 4 * ENV_VALUE_CHARS])[:ENV_VALUE_CHARS]
    return found


@lru_cache(maxsize=SHARED)
def cgroups(data: bytes) -> dict[str, str]:
    """/proc/PID/cgroup: controller -> path; the unified hierarchy under the empty name. Not to be changed, see `cmdline`."""
    paths = {}
    for line in data.splitlines():
        parts = line.split(b":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(b","):
                paths[text(controller)] = text(parts[2])
    return paths


def main_cgroup(paths: dict[str, str]) -> str:
    """v1's cpu controller where there is one, otherwise the unified hierarchy; one that limits something else where that is the root."""
    found = paths.get("cpu", paths.get("", ""))
    others = (paths.get(controller, "/") for controller in ("memory", "cpuset", "blkio")) if found == "/" else ()
    return next((path for path in others if path != "/"), found)
