"""What /proc/locks says, line by line."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

from gputop.sources.procfs.files import Descriptors
from gputop.sources.procfs.locks import Held
from gputop.sources.procfs.locks import Locks
from gputop.sources.procfs.locks import parse_locks

TEXT = """1: POSIX  ADVISORY  WRITE 812 08:01:99 0 EOF
1: -> POSIX  ADVISORY  WRITE 900 08:01:99 0 EOF
1: -> POSIX  ADVISORY  READ  901 08:01:99 0 EOF
2: FLOCK  ADVISORY  READ  700 00:1a:5 0 EOF
3: OFDLCK ADVISORY  WRITE -1 08:01:7 0 EOF
3: -> FLOCK  ADVISORY  WRITE 902 08:01:7 0 EOF
4: FLOCK  ADVISORY  WRITE 701 00:1a:6 0 EOF
"""


def test_exclusive_locks_with_their_holders_and_who_waits_for_them():
    assert parse_locks(TEXT) == Held({"08:01:99": 812, "00:1a:6": 701}, {900: 812, 901: 812})


def test_a_reader_keeps_a_writer_waiting():
    text = "1: FLOCK  ADVISORY  READ 700 00:1a:5 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 702 00:1a:5 0 EOF\n"
    assert parse_locks(text) == Held({}, {702: 700})


def test_more_locks_than_a_page_holds(tmp_path: Path):
    """The kernel gives /proc/locks a page at a time."""
    with ExitStack() as stack:
        files = [stack.enter_context(open(tmp_path / str(i), "w")) for i in range(200)]
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX)
        inodes = {os.fstat(file.fileno()).st_ino for file in files}
        held = Locks("/proc/", Descriptors()).held(1)
        assert inodes <= {int(name.rpartition(":")[2]) for name, pid in held.by_file.items() if pid == os.getpid()}


def test_what_is_no_such_line_is_left_out():
    assert parse_locks("\n1:\n1: ->\nx y z\n1: POSIX ADVISORY WRITE ten 08:01:99 0 EOF\n1: LEASE  ACTIVE\n") == Held()
