"""Processes to experiment on: they belong to the test, spin or sleep, and are gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from gputop.prove.change import Case, Plan, Record, TargetProcess
from gputop.prove.processes import read_process

ROOT = Path(__file__).parents[2]
SLEEPS = "import time; print(flush=True); time.sleep(600)"
THREADS = """
import os, threading, time
def run(nice):
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    if nice == 7:
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    time.sleep(600)
for nice in (3, 5, 7):
    threading.Thread(target=run, args=(nice,)).start()
time.sleep(.1)
print(flush=True)
time.sleep(600)
"""
STARTS_A_THREAD = """
import sys, threading, time
print(flush=True)
sys.stdin.readline()
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
time.sleep(600)
"""
BUILD = """
import os, time
print(flush=True)
while True:
    if os.fork() == 0:
        time.sleep(.2)
        os._exit(0)
    time.sleep(.02)
    os.waitpid(-1, os.WNOHANG)
"""
ORPHANS = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(flush=True)
while True:
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(20)
        os._exit(0)
    time.sleep(.05)
"""


@contextmanager
def started(code: str = SLEEPS, own_session: bool = False, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program in a process group of its own, once it has printed a line."""
    apart = {"start_new_session": True} if own_session else {"preexec_fn": os.setpgrp}
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, **apart, **more) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            yield child
        finally:
            for number in (signal.SIGKILL, signal.SIGCONT):
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, number)


@contextmanager
def running(code: str = SLEEPS, own_session: bool = False, **more: Any) -> Iterator[TargetProcess]:
    """The same, as a target."""
    with started(code, own_session, **more) as child:
        yield target(child.pid)


def target(pid: int) -> TargetProcess:
    proc = read_process(pid)
    return TargetProcess(proc.pid, proc.start_ticks, proc.comm)


def case(trainer: TargetProcess, *culprits: TargetProcess, cause: str = "cpu-contention") -> Case:
    """A job without workers."""
    return Case(cause, trainer, (trainer,), (trainer,), culprits)


def threads(pid: int) -> list[int]:
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except FileNotFoundError:
        return []


def group_members(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(ProcessLookupError):
                proc = read_process(int(name))
                if proc.group == group and not proc.ended:
                    found.append(proc.pid)
    return found


def settings(pid: int) -> dict[int, tuple[object, ...]]:
    """Of each thread all that an experiment may set: policy, priority, niceness, I/O class and level, CPUs."""
    import psutil

    found = {}
    for tid in threads(pid):
        with suppress(OSError, psutil.Error):
            policy = os.sched_getscheduler(tid), os.sched_getparam(tid).sched_priority, os.getpriority(os.PRIO_PROCESS, tid)
            found[tid] = (*policy, tuple(psutil.Process(tid).ionice()), tuple(sorted(os.sched_getaffinity(tid))))
    return found


@contextmanager
def holder(plan: Plan, on_s: float = 60.0, off_s: float = 0.01) -> Iterator[subprocess.Popen[bytes]]:
    """A gputop that holds the experiment, in a process of its own; its lines are ``on`` and ``off``."""
    command = [sys.executable, "-m", "tests.experiments.holder", str(on_s), str(off_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(msgspec.json.encode(plan) + b"\n")
            child.stdin.flush()
            assert child.stdout.readline() == b"on\n"
            yield child
        finally:
            child.kill()


def record_of(one: TargetProcess, setting: str, old: str, new: str) -> Record:
    """Of a process's main thread."""
    proc = read_process(one.pid)
    return Record(setting, new, old, one.pid, one.start_ticks, one.pid, one.start_ticks, proc.group, proc.session)
