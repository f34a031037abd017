"""Attach the programs of cuda.c to functions of a library, and programs of sched.c to tracepoints, without bcc.

Linux 6.6 and later take one uprobe_multi link for entries and one for returns (needs CAP_BPF and CAP_PERFMON; detaching takes 50 ms),
older ones two perf events per function (needs CAP_SYS_ADMIN). Closing the descriptors detaches. The library is given as a descriptor: the
kernel wants a path, and /proc/self/fd/N leads to the open inode and nowhere else.

Standard library only: if the collector has no privilege, `sudo python3 -I uprobe.py SOCKET` attaches and hands the links over as long as
the collector's socket is open.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import platform
import socket
import sys
from typing import Any

SYS_BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), -1)
SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}.get(platform.machine(), -1)
RAW_TRACEPOINT_OPEN, TRACEPOINT_EVENT = 17, 2  # bpf_cmd (linux/bpf.h); perf_type_id (linux/perf_event.h)
SET_BPF, ENABLE = 0x40042408, 0x2400  # PERF_EVENT_IOC_*
TRACEFS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
LINK_CREATE, ATTACH_PERF_EVENT, ATTACH_UPROBE_MULTI, MULTI_RETURN = 28, 41, 48, 1
CLOEXEC = 8
_PMU = "/sys/bus/event_source/devices/uprobe/"

_libc = ctypes.CDLL(None, use_errno=True)


class _MultiLink(ctypes.Structure):
    _fields_ = [
        ("program", ctypes.c_uint32), ("target", ctypes.c_uint32), ("attach_type", ctypes.c_uint32), ("link_flags", ctypes.c_uint32),
        ("path", ctypes.c_uint64), ("offsets", ctypes.c_uint64), ("ref_ctr_offsets", ctypes.c_uint64), ("cookies", ctypes.c_uint64),
        ("count", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("pid", ctypes.c_uint32), ("pad", ctypes.c_uint32),
    ]  # fmt: skip


class _PerfLink(ctypes.Structure):
    _fields_ = [
        ("program", ctypes.c_uint32), ("target", ctypes.c_uint32), ("attach_type", ctypes.c_uint32), ("link_flags", ctypes.c_uint32),
        ("cookie", ctypes.c_uint64),
    ]  # fmt: skip


class _RawTracepoint(ctypes.Structure):
    _fields_ = [("name", ctypes.c_uint64), ("program", ctypes.c_uint32), ("pad", ctypes.c_uint32)]


class _PerfEvent(ctypes.Structure):
    """perf_event_attr, version 1 (72 bytes): config1 is the path, config2 the offset."""

    _fields_ = [
        ("type", ctypes.c_uint32), ("size", ctypes.c_uint32), ("config", ctypes.c_uint64), ("period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64), ("read_format", ctypes.c_uint64), ("flags", ctypes.c_uint64), ("wakeup", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32), ("path", ctypes.c_uint64), ("offset", ctypes.c_uint64),
    ]  # fmt: skip


def attach(library: int, cookies: dict[int, int], programs: list[int], way: str) -> list[int]:
    """Attach at the file offsets of ``cookies`` (offset -> cookie); returns the links' descriptors. Raises OSError.

    ``programs``: that of entries, and that of returns if these are wanted. ``way``: how the loader loaded them, ``multi`` or ``perf``.
    Returns are attached first, so that every entry meets its return.
    """
    link, path, links = _attach_multi if way == "multi" else _attach_perf, _path(library), list[int]()
    try:
        for returns, program in reversed(list(enumerate(programs))):
            links += link(path, cookies, program, bool(returns))
    except OSError:
        for descriptor in links:
            os.close(descriptor)
        raise
    return links


def attach_tracepoints(programs: dict[str, int], raw: bool) -> list[int]:
    """Attach to tracepoints of the scheduler (name -> program); returns descriptors; closing them detaches. Raises OSError."""
    opened: list[int] = []
    try:
        for name, program in programs.items():
            if raw:
                text = ctypes.create_string_buffer(name.encode())
                link = _RawTracepoint(ctypes.addressof(text), program)
                opened.append(call(SYS_BPF, RAW_TRACEPOINT_OPEN, ctypes.byref(link), ctypes.sizeof(link)))
                continue
            folder = next((folder for folder in TRACEFS if os.path.isdir(folder + "/events/sched")), TRACEFS[0])
            with open(f"{folder}/events/sched/{name}/id", encoding="ascii") as file:
                event = _PerfEvent(type=TRACEPOINT_EVENT, size=72, config=int(file.read()), period=1, wakeup=1)
            opened.append(call(SYS_PERF_EVENT_OPEN, ctypes.byref(event), -1, 0, -1, CLOEXEC))
            fcntl.ioctl(opened[-1], SET_BPF, program)
            fcntl.ioctl(opened[-1], ENABLE, 0)
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return opened


def _path(library: int) -> str:
    return f"/proc/self/fd/{library}"


def takes_multi(program: int) -> bool:
    """True if the kernel has uprobe_multi links: if so it refuses / as a path, since that is no regular file."""
    try:
        _attach_multi("/", {0: 0}, program, False)
    except OSError as error:
        return error.errno == errno.EBADF
    return False


def _attach_multi(path: str, cookies: dict[int, int], program: int, returns: bool) -> list[int]:
    name = ctypes.create_string_buffer(os.fsencode(path))
    offsets = (ctypes.c_uint64 * len(cookies))(*cookies)
    values = (ctypes.c_uint64 * len(cookies))(*cookies.values())
    link = _MultiLink(program=program, attach_type=ATTACH_UPROBE_MULTI, path=ctypes.addressof(name), offsets=ctypes.addressof(offsets))
    link.cookies, link.count, link.flags = ctypes.addressof(values), len(cookies), MULTI_RETURN if returns else 0
    return [call(SYS_BPF, LINK_CREATE, ctypes.byref(link), ctypes.sizeof(link))]


def _attach_perf(path: str, cookies: dict[int, int], program: int, returns: bool) -> list[int]:
    with open(_PMU + "type", encoding="ascii") as file:
        kind = int(file.read())
    name = ctypes.create_string_buffer(os.fsencode(path))
    opened: list[int] = []
    try:
        for offset, cookie in cookies.items():
            event = _PerfEvent(type=kind, size=72, config=int(returns), path=ctypes.addressof(name), offset=offset)
            opened.append(call(SYS_PERF_EVENT_OPEN, ctypes.byref(event), -1, 0, -1, CLOEXEC))
            link = _PerfLink(program=program, target=opened[-1], attach_type=ATTACH_PERF_EVENT, cookie=cookie)
            opened.append(call(SYS_BPF, LINK_CREATE, ctypes.byref(link), ctypes.sizeof(link)))
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return opened


def call(number: int, *arguments: object) -> int:
    """The system call ``number``. Raises OSError."""
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def main() -> None:
    """Serve JSON requests with descriptors until the socket is closed; answer with the links.

    The descriptors belong to ``tracepoints``' programs, else to the library and one or two programs.
    """
    import json  # the collector imports this module, too, and mostly needs no JSON

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect("\0" + sys.argv[1])
        while True:
            message, descriptors = _receive(sock)
            if not message:
                return
            request = json.loads(message)
            try:
                answer, links = "", _attach_asked(request, descriptors)
            except OSError as error:
                answer, links = error.strerror or "failed", []
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", links))] if links else []
            sock.sendmsg([json.dumps({"error": answer}).encode()], rights)
            for descriptor in descriptors + links:
                os.close(descriptor)


def _attach_asked(request: dict[str, Any], descriptors: list[int]) -> list[int]:
    if "tracepoints" in request:
        return attach_tracepoints(dict(zip(request["tracepoints"], descriptors)), request["raw"])  # noqa: B905 - Python 3.8
    cookies = {int(offset): cookie for offset, cookie in request["cookies"].items()}
    return attach(descriptors[0], cookies, descriptors[1:], request["way"])


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """socket.recv_fds, which Python before 3.9 lacks."""
    descriptors = array.array("i")
    message, ancillary, _, _ = sock.recvmsg(1 << 20, socket.CMSG_SPACE(4 * descriptors.itemsize))
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    return message, descriptors.tolist()


if __name__ == "__main__":
    main()
