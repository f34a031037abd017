"""BPF maps by bpf(2), without bcc: whole maps in one batch call into kept buffers, or single entries. Descriptors come from the loader."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from typing import NamedTuple

from gputop.sources.ebpf.uprobe import SYS_BPF

LOOKUP, UPDATE, INFO, LINK_CREATE, LOOKUP_BATCH, TAKE_BATCH, DELETE_BATCH = 1, 2, 15, 28, 24, 25, 27  # bpf_cmd (linux/bpf.h)
_ENOENT = 2

_libc = ctypes.CDLL(None, use_errno=True)


class _Element(ctypes.Structure):
    _fields_ = [
        ("fd", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("key", ctypes.c_uint64), ("value", ctypes.c_uint64), ("flags", ctypes.c_uint64),
    ]  # fmt: skip


class _Batch(ctypes.Structure):
    _fields_ = [
        ("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("keys", ctypes.c_uint64), ("values", ctypes.c_uint64),
        ("count", ctypes.c_uint32), ("fd", ctypes.c_uint32), ("element_flags", ctypes.c_uint64), ("flags", ctypes.c_uint64),
    ]  # fmt: skip


class _MapInfo(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_uint32), ("length", ctypes.c_uint32), ("info", ctypes.c_uint64)]


def bpf(command: int, attributes: ctypes.Structure) -> int:
    """bpf(2). Raises OSError."""
    result: int = _libc.syscall(SYS_BPF, command, ctypes.byref(attributes), ctypes.sizeof(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Shape(NamedTuple):
    """A map's sizes in bytes and its capacity in entries."""

    key_bytes: int
    value_bytes: int
    entries: int


class Map:
    """One map. `read` fills ``keys`` and ``values``, which are valid until the next `read`."""

    def __init__(self, fd: int, shape: Shape) -> None:
        self.fd = fd
        self.shape = shape
        self.used = 0  # entries at the last `read`
        self.keys = mmap.mmap(-1, shape.key_bytes * shape.entries)  # pages that were never filled take no memory
        self.values = mmap.mmap(-1, shape.value_bytes * shape.entries)
        self._key_address = _address(self.keys)
        self._value_address = _address(self.values)
        self._token = ctypes.create_string_buffer(max(8, shape.key_bytes))

    def read(self, take: bool = False) -> int:
        """Copy all entries, and with ``take`` delete them; returns their number. Raises OSError."""
        done, batch = 0, _Batch(fd=self.fd, end=ctypes.addressof(self._token))
        while done < self.shape.entries:
            batch.keys = self._key_address + done * self.shape.key_bytes
            batch.values = self._value_address + done * self.shape.value_bytes
            batch.count = self.shape.entries - done
            try:
                bpf(TAKE_BATCH if take else LOOKUP_BATCH, batch)
            except OSError as error:
                if error.errno != _ENOENT:
                    raise
                done += batch.count
                break
            done += batch.count
            batch.begin = batch.end
        self.used = done
        return done

    def words(self, count: int) -> memoryview:
        """The first ``count`` values as unsigned 64-bit words."""
        return memoryview(self.values)[: count * self.shape.value_bytes].cast("Q")

    def key_list(self, count: int) -> list[int]:
        """The first ``count`` keys as numbers of their size (4 or 8 bytes)."""
        keys = memoryview(self.keys)[: count * self.shape.key_bytes]
        return keys.cast("I").tolist() if self.shape.key_bytes == 4 else keys.cast("Q").tolist()

    def pair_list(self, count: int) -> list[tuple[int, int]]:
        """The first ``count`` keys of 16 bytes as two numbers each."""
        words = memoryview(self.keys)[: count * 16].cast("Q").tolist()
        return list(zip(words[::2], words[1::2], strict=True))

    def get(self, key: int) -> bytes:
        """Value of a key. Raises OSError if the map lacks it."""
        key_bytes, value = self._key(key), ctypes.create_string_buffer(self.shape.value_bytes)
        bpf(LOOKUP, _Element(fd=self.fd, key=ctypes.addressof(key_bytes), value=ctypes.addressof(value)))
        return value.raw

    def put(self, key: int, value: bytes) -> None:
        """Write one entry. Raises OSError, for instance if the map is full."""
        key_bytes, value_bytes = self._key(key), ctypes.create_string_buffer(value, self.shape.value_bytes)
        bpf(UPDATE, _Element(fd=self.fd, key=ctypes.addressof(key_bytes), value=ctypes.addressof(value_bytes)))

    def delete(self, keys: Iterable[int]) -> None:
        """Remove entries; a missing one is no error."""
        size = self.shape.key_bytes
        packed = ctypes.create_string_buffer(b"".join(key.to_bytes(size, "little") for key in keys))
        left, at = (len(packed) - 1) // size, ctypes.addressof(packed)
        while left:
            batch = _Batch(fd=self.fd, keys=at, count=left)
            try:
                bpf(DELETE_BATCH, batch)
                return
            except OSError:
                done = min(batch.count + 1, left)  # the call stops at a missing key
                left, at = left - done, at + done * size

    def _key(self, key: int) -> ctypes.Array[ctypes.c_char]:
        return ctypes.create_string_buffer(key.to_bytes(self.shape.key_bytes, "little"), self.shape.key_bytes)


def program_run_ns(fd: int) -> int:
    """CPU time of a program in ns (bpf_prog_info.run_time_ns); 0 if kernel.bpf_stats_enabled is 0. Raises OSError."""
    info = ctypes.create_string_buffer(256)
    bpf(INFO, _MapInfo(fd, len(info), ctypes.addressof(info)))
    return int.from_bytes(info.raw[192:200], "little")


def _address(buffer: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
