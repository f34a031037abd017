"""Finds the processes that share a System V semaphore with one that sleeps in semop(2).

The kernel has no list of them. It keeps the process that last changed each semaphore of a set (semctl GETPID): of one that counts, whoever
posts it or waits for its counterpart in the same set. Where the sleeper takes a semaphore with SEM_UNDO, that process holds it: such a
semaphore is given back when its holder ends, which makes no sense for one that counts. Numbers of processes are those of our own pid
namespace, and sets those of our own IPC namespace.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress
from functools import cache

from msgspec import Struct

from gputop.sources.waits import bytes_at

MOST_SEMAPHORES = 32  # of a set that are asked for; others are passed over (guess)
_GETPID, _IPC_STAT, _NSEMS_OFFSET, _SEMID_BYTES = 11, 2, 80, 104  # linux/sem.h; sem_nsems in semid64_ds of 64-bit Linux
_SEMBUF = struct.Struct("=Hhh")  # number, operation, flags
_UNDO = 0x1000  # SEM_UNDO


class Sleep(Struct, frozen=True):
    """What one process sleeps at."""

    number: int  # of the semaphore in its set
    takes: bool  # it wants to lower the semaphore and have that undone at its end: a lock
    users: tuple[int, ...]  # pids of others that last changed semaphores of the set
    holder: int  # the one of them that last changed this semaphore; 0: none did


def sleep_of(folder: str, pid: int, semid: int, operations: int) -> Sleep | None:
    """What the process under ``folder`` of /proc sleeps at, by the first two arguments of its system call; None if that cannot be read."""
    data = bytes_at(operations, _SEMBUF.size, folder)
    if not data or not _is_ours(folder):
        return None
    number, operation, flags = _SEMBUF.unpack(data)
    last = _last_pids(semid)
    if not last:
        return None
    users = tuple(dict.fromkeys(one for one in last if one not in (0, pid)))
    holder = last[number] if number < len(last) and last[number] != pid else 0
    return Sleep(number, operation < 0 and bool(flags & _UNDO), users, holder)


def _is_ours(folder: str) -> bool:
    with suppress(OSError):
        return os.stat(folder + "ns/ipc").st_ino == os.stat("/proc/self/ns/ipc").st_ino
    return False


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _last_pids(semid: int) -> list[int]:
    """The process that last changed each semaphore of a set; 0: none has, or it is in no namespace of ours. Empty: no such set."""
    room = ctypes.create_string_buffer(_SEMID_BYTES)
    if _libc().semctl(semid, 0, _IPC_STAT, room) < 0:
        return []
    count = int(struct.unpack_from("=Q", room.raw, _NSEMS_OFFSET)[0])
    return [max(0, _libc().semctl(semid, number, _GETPID, 0)) for number in range(min(count, MOST_SEMAPHORES))]
