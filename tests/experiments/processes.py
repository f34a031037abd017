"""Processes to experiment on: they belong to the test, spin or sleep, and are gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gputop.experiments.change import Case, Target
from gputop.experiments.processes import read_process

SLEEPS = "import time; time.sleep(600)"
THREADS = """
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
time.sleep(600)
"""
BUILD = "import subprocess, sys\nprint(flush=True)\nwhile True: subprocess.run([sys.executable, '-S', '-c', 'import time; time.sleep(.3)'])"
FORKS = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(flush=True)
while True:
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(1)
        os._exit(0)
    time.sleep(.02)
"""


@contextmanager
def running(code: str = SLEEPS, own_session: bool = False, **more: object) -> Iterator[Target]:
    """A Python program in a process group of its own; once it has printed a line, if it prints one."""
    group = {"start_new_session": True} if own_session else {"preexec_fn": os.setpgrp}
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, **group, **more)  # type: ignore[call-overload]
    try:
        if "print(" in code:
            child.stdout.readline()
        proc = read_process(child.pid)
        yield Target(proc.pid, proc.start_ticks, proc.comm)
    finally:
        for number in (signal.SIGKILL, signal.SIGCONT):
            with suppress(ProcessLookupError):
                os.killpg(child.pid, number)
        child.wait()
        child.stdout.close()


def case(trainer: Target, *culprits: Target, cause: str = "cpu-contention") -> Case:
    """A job without workers."""
    return Case(cause, trainer, (trainer,), (trainer,), culprits)
