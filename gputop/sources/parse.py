"""The texts of /proc/PID as values. Raises ValueError or IndexError for a text that the kernel does not write."""

from __future__ import annotations

import os
from functools import lru_cache

import msgspec

CLOCK_TICK_HZ = os.sysconf("SC_CLK_TCK")
NS_PER_CLOCK_TICK = 1_000_000_000 // CLOCK_TICK_HZ
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

CMDLINE_BYTES = 4096  # most bytes kept of a command line
ENV_VALUE_CHARS = 256  # most characters kept of a variable's value
_KTHREAD = 0x0020_0000  # PF_KTHREAD (linux/sched.h)
SHARED = 512  # short texts that are cached: hundreds of processes run the same program in the same cgroup
SHARED_LONG = 32  # long command lines that are cached: more would take megabytes
SHORT_BYTES = 256  # most bytes of a short text


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
    children: int  # user and system time of the children that it has waited for, and of their children
    num_threads: int
    start_ticks: int
    rss: int
    stack: bytes  # startstack: changes by exec; 0 if we may not read it
    processor: int
    blkio_ticks: int
    session: int = 0
    policy: int = 0
    vsize: int = 0  # bytes of its address space
    exit_code: int | None = None  # a zombie's, as waitpid gives it; also 0 if we may not read it. None before Linux 3.5.


def stat(data: bytes) -> Stat:
    """/proc/PID/stat. The name may hold brackets and spaces: it ends at the last bracket."""
    end = data.rindex(b")")
    f = data[end + 2 :].split()
    return Stat(
        comm=data[data.index(b"(") + 1 : end], state=f[0].decode(), ppid=int(f[1]), kthread=bool(int(f[6]) & _KTHREAD),
        minflt=int(f[7]), majflt=int(f[9]), utime=int(f[11]), stime=int(f[12]), children=int(f[13]) + int(f[14]),
        num_threads=int(f[17]), start_ticks=int(f[19]), rss=int(f[21]), stack=f[25], processor=int(f[36]), blkio_ticks=int(f[39]),
        session=int(f[3]), policy=int(f[38]), vsize=int(f[20]), exit_code=int(f[49]) if f[0] == b"Z" and len(f) > 49 else None,
    )  # fmt: skip


def state(data: bytes) -> str:
    """The state letter of /proc/PID/task/TID/stat."""
    at = data.rindex(b")") + 2
    return data[at : at + 1].decode()


def schedstat(data: bytes) -> tuple[int, int, int]:
    """(ns on a CPU, ns runnable but not running, times it got a CPU) of /proc/PID/schedstat."""
    oncpu, delay, slices = data.split()
    return int(oncpu), int(delay), int(slices)


def switches(data: bytes) -> tuple[int, int]:
    """(voluntary, involuntary) context switches of /proc/PID/status."""
    return _number(data, b"\nvoluntary_ctxt_switches:\t"), _number(data, b"\nnonvoluntary_ctxt_switches:\t")


def _number(data: bytes, label: bytes) -> int:
    at = data.index(label) + len(label)
    return int(data[at : data.index(b"\n", at)])


def status_state(data: bytes) -> str:
    """The state letter of /proc/PID/status."""
    at = data.index(b"\nState:\t") + 8
    return data[at : at + 1].decode()


def status_line(data: bytes, label: bytes) -> bytes:
    """The text behind ``label`` (such as ``Uid``) in /proc/PID/status; empty if there is no such line."""
    at = data.find(b"\n" + label + b":\t")
    if at < 0:
        return b""
    at += len(label) + 3
    return data[at : data.find(b"\n", at)]


def anon_bytes(status: bytes) -> int | None:
    """RssAnon and VmSwap of /proc/PID/status; None for what has no memory of its own, and before Linux 4.5."""
    anon = _bytes(status, b"RssAnon")
    return None if anon is None else anon + (_bytes(status, b"VmSwap") or 0)


def shared_bytes(smaps_rollup: bytes) -> int | None:
    """Anonymous less Private_Dirty of /proc/PID/smaps_rollup; None if it has not both.

    Dirty pages of files and shared memory that only this process maps make it a little too small.
    """
    anon, private = _bytes(smaps_rollup, b"Anonymous"), _bytes(smaps_rollup, b"Private_Dirty")
    return None if anon is None or private is None else max(0, anon - private)


def _bytes(data: bytes, label: bytes) -> int | None:
    """Bytes in a line such as ``RssAnon: 67856 kB``; None if there is no such line."""
    at = data.find(b"\n" + label + b":")
    return None if at < 0 else 1024 * int(data[at + len(label) + 2 : data.index(b"kB", at)])


def io(data: bytes) -> tuple[int, int, int]:
    """(read_bytes, write_bytes, rchar) of /proc/PID/io."""
    f = data.split()
    return int(f[9]), int(f[11]), int(f[1])


def text(data: bytes) -> str:
    """Bytes of another process as valid text."""
    return _short_text(data) if len(data) <= SHORT_BYTES else _text(data)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def cmdline(data: bytes) -> list[str]:
    """The arguments, cut to `CMDLINE_BYTES` in all. Do not change the list: it is cached."""
    return _short_cmdline(data) if len(data) <= SHORT_BYTES else _long_cmdline(data)


def _cmdline(data: bytes) -> list[str]:
    data = data[:CMDLINE_BYTES].rstrip(b"\0")
    return [text(argument) for argument in data.split(b"\0")] if data else []


_short_text = lru_cache(maxsize=SHARED)(_text)
_short_cmdline = lru_cache(maxsize=SHARED)(_cmdline)
_long_cmdline = lru_cache(maxsize=SHARED_LONG)(_cmdline)


def environ(data: bytes, wanted: frozenset[bytes]) -> dict[str, str]:
    """The variables named in ``wanted`` of /proc/PID/environ."""
    found = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name in wanted:
            found[text(name)] = text(value[: 4 * ENV_VALUE_CHARS])[:ENV_VALUE_CHARS]
    return found


@lru_cache(maxsize=SHARED)
def cgroups(data: bytes) -> dict[str, str]:
    """/proc/PID/cgroup: controller -> path; the unified hierarchy has the empty name. Do not change the dict: it is cached."""
    paths = {}
    for line in data.splitlines():
        parts = line.split(b":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(b","):
                paths[text(controller)] = text(parts[2])
    return paths


def main_cgroup(paths: dict[str, str]) -> str:
    """The path in v1's cpu controller if there is one, else in the unified hierarchy; if that is the root, in another controller."""
    found = paths.get("cpu", paths.get("", ""))
    others = (paths.get(controller, "/") for controller in ("memory", "cpuset", "blkio")) if found == "/" else ()
    return next((path for path in others if path != "/"), found)


def busy_ns(stat: bytes) -> int | None:
    """CPU time of all CPUs that programs and the kernel used, from the first line of /proc/stat: user, nice and system. None without it."""
    name, *numbers = stat.partition(b"\n")[0].split()[:4] or [b""]
    try:
        return sum(map(int, numbers)) * NS_PER_CLOCK_TICK if name == b"cpu" and len(numbers) == 3 else None
    except ValueError:
        return None
