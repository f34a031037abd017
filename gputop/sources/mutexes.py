"""Finds the thread that holds the mutex or read-write lock at which another thread sleeps: glibc writes the holder's id into the lock.

Only the kernel knows that a thread sleeps, and at which address; only the memory there shows whose lock it is. Semaphores have no holder,
and neither have condition variables, Python's locks (`multiprocessing.Lock` is a semaphore), locks of Rust, Go and Abseil, and musl's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

Read = Callable[[int, int], bytes]
"""(address, number of bytes) -> these bytes of the sleeper's memory; empty if they cannot be read."""

_COMMAND = 0x7F  # FUTEX_CMD_MASK without the flags
_WAITS = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_LOCKS = (6, 13)  # FUTEX_LOCK_PI, FUTEX_LOCK_PI2: the kernel itself gives the lock to the next one
_TID, _WAITERS = 0x3FFF_FFFF, 0x8000_0000  # FUTEX_TID_MASK, FUTEX_WAITERS: the word of a robust or priority-inheriting mutex
_MUTEX, _RWLOCK = 2, 3  # value that a sleeper expects: a locked mutex with sleepers; 1 | PTHREAD_RWLOCK_FUTEX_USED
_ROBUST = 0x10  # PTHREAD_MUTEX_ROBUST_NORMAL_NP in a mutex's kind
_KINDS = 0x3F3  # all bits of a mutex's kind: type, robust, inherits, protects, shared between processes, with and without elision
_MUTEX_BYTES = 20  # of pthread_mutex_t: lock, count, owner, nusers, kind; 32 bits each on 64-bit machines (struct_mutex.h)
_SHARED = 1  # of a pthread_rwlock_t behind the writer's id: whether processes share it; it would be read as one where there is no writer
_RWLOCK_WORDS = 5  # words from one of the two futexes of a pthread_rwlock_t on, with its writer (struct_rwlock.h)


def sleeps_at_lock(operation: int, value: int) -> bool:
    """True if a futex call with these arguments may be a sleep at a lock that names its holder."""
    command = operation & _COMMAND
    return command in _LOCKS or (command in _WAITS and (value in (_MUTEX, _RWLOCK) or bool(value & _WAITERS)))


def holder(read: Read, address: int, operation: int, value: int) -> int:
    """Id of the thread that holds the lock, in the pid namespace of its process; 0 if the memory there is no lock, or a free one.

    ``operation`` and ``value`` are the futex call's arguments. The number is whatever stands there: ask whether such a thread lives.
    """
    command = operation & _COMMAND
    if command in _LOCKS:
        return _words(read(address, 4))[0] & _TID
    if command not in _WAITS:
        return 0
    if value == _RWLOCK:
        return _writer(_words(read(address, 4 * _RWLOCK_WORDS), _RWLOCK_WORDS))
    lock, _, owner, users, kind = _words(read(address, _MUTEX_BYTES), 5)
    if kind & ~_KINDS:
        return 0
    if value & _WAITERS:
        return lock & _TID if kind & _ROBUST else 0
    return owner if value == _MUTEX and lock in (1, _MUTEX) and users and not kind & _ROBUST else 0


def _writer(words: tuple[int, ...]) -> int:
    """The writer of a pthread_rwlock_t whose ``words`` begin at the futex of its phase, or at that of its writers: two words of padding
    lie between the latter and the writer's id."""
    at_phase, at_writers = not words[2] | words[3], not words[1] | words[2]
    found = words[4] if at_phase else words[3] if at_writers else 0
    return found if found > _SHARED else 0


def _words(data: bytes, count: int = 1) -> tuple[int, ...]:
    """So many 32-bit words, all 0 if there is no ``data``."""
    return struct.unpack(f"={count}I", data or bytes(4 * count))
