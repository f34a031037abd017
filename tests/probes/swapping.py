"""A stranger: maps the library LIBRARY as nobody, and for ever swaps its name with OTHER's, a link to VICTIM. Says "ready"."""

from __future__ import annotations

import ctypes
import os
import sys

NOBODY, EXCHANGE = 65534, 2


def main(library: str, other: str, victim: str) -> None:
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    ctypes.CDLL(library)
    os.symlink(victim, other)
    print("ready", flush=True)
    libc = ctypes.CDLL(None)
    while True:
        libc.renameat2(-100, library.encode(), -100, other.encode(), EXCHANGE)


if __name__ == "__main__":
    main(*sys.argv[1:])
