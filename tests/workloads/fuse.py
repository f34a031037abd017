"""A read-only FUSE file system with one file, `shard.bin`, served by a process in Python."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.workloads import native, program
from tests.workloads.runner import Running

BLOCK, BLOCKS = 128 << 10, 1 << 14
_LOOKUP, _GETATTR, _OPEN, _READ, _INIT = 1, 3, 14, 15, 26
_ROOT, _FILE = 1, 2
_READ_ONLY, _DETACH, _DIRECT_IO, _ENOSYS = 1, 2, 1, 38


def serve(mount: str, name: str, read: Callable[[int], bytes]) -> None:
    """Mount it and answer for ever. ``read``: so many bytes of the file; page cache and reads ahead are off."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if ctypes.CDLL(None).mount(name.encode(), mount.encode(), f"fuse.{name}".encode(), ctypes.c_ulong(_READ_ONLY), options):
        raise OSError("cannot mount")
    program.called(name)
    print("mounted", flush=True)
    while True:
        request = os.read(device, 1 << 18)
        _length, code, unique, node = struct.unpack_from("IIQQ", request)
        error, answer = 0, b""
        if code == _INIT:
            answer = struct.pack("4I2H2I36x", 7, 31, 0, 0, 12, 9, 1 << 17, 1)
        elif code == _LOOKUP:
            answer = struct.pack("4Q8x", _FILE, 1, 60, 60) + _attributes(_FILE)
        elif code == _GETATTR:
            answer = struct.pack("Q8x", 60) + _attributes(node)
        elif code == _OPEN:
            answer = struct.pack("QI4x", 0, _DIRECT_IO)
        elif code == _READ:
            answer = read(struct.unpack_from("I", request, 56)[0])
        else:
            error = -_ENOSYS
        with suppress(FileNotFoundError):  # nobody waits for an answer to this request
            os.write(device, struct.pack("IiQ", 16 + len(answer), error, unique) + answer)


def _attributes(node: int) -> bytes:
    """struct fuse_attr."""
    mode, size = (0o40755, 0) if node == _ROOT else (0o100444, BLOCKS * BLOCK)
    return struct.pack("3Q36x2I12xI4x", node, size, size >> 9, mode, 1, 1 << 17)


@contextmanager
def mounted(running: Running, mount: Callable[[str], object]) -> Iterator[None]:
    """``mount`` serves it, in a process of its own, at `bucket` in the workload's folder."""
    bucket = running.folder / "bucket"
    bucket.mkdir()
    try:
        with program.serving(running, mount, bucket):
            yield
    finally:
        ctypes.CDLL(None).umount2(str(bucket).encode(), _DETACH)


def missing() -> str:
    """Why nothing can be mounted here, empty if it can."""
    fuse = os.geteuid() == 0 and Path("/dev/fuse").exists()
    return native.missing() or ("" if fuse else "no root or no /dev/fuse")
