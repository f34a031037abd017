"""Advice that can be made on a workload from outside: a line for a shell, the end of who is to blame, variables of a new start."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.workloads import runner
from tests.workloads.runner import Running
from tests.workloads.scenario import LOADER_VARIABLE

SHELL = re.compile(r"(?:echo|chrt|taskset|ionice|renice|kill|for p in|for pid in) .*")  # beginnings of commands that change a setting
_ENDS = re.compile(r"Have .* run on another host|Run .* outside of .*, or end it")  # advice that the processes to blame go elsewhere
_LOADER = re.compile(r"DataLoader\(\.\.\., (.*)\)")
_EXPORT = re.compile(r"export (.*)")
_PID = re.compile(r"(?:/proc/|-p |--pid (?:0 )?|\bp(?:id)? in |-CONT |-apc \S+ )((?:\d+[ ,]?)+)")
_GROUP = re.compile(r"/sys/fs/cgroup/\S+")


def is_own(command: str, running: Running) -> bool:
    """Whether a command touches the workload's processes and control groups alone."""
    own = {*runner.descendants([os.getpid()]), *running.culprits}
    pids = {int(pid) for found in _PID.findall(command) for pid in re.findall(r"\d+", found)}
    groups, pids = _GROUP.findall(command), pids - {0}  # chrt's priority
    return bool(pids or groups) and pids <= own and all("gputop-" in group for group in groups)


def ends_culprits(text: str) -> bool:
    """Whether advice is followed by ending the processes to blame."""
    return _ENDS.match(text) is not None


def environment_of(command: str) -> dict[str, str] | None:
    """Variables with which a job starts that follows the command; None if that is not enough."""
    if (found := _EXPORT.fullmatch(command)) is not None:
        return dict(one.split("=", 1) for one in shlex.split(found[1]) if "=" in one)
    if (found := _LOADER.fullmatch(command)) is None:
        return None
    arguments: dict[str, object] = {}
    for one in found[1].split(", "):
        name, value = one.split("=", 1)
        if not re.fullmatch(r"\d+|True|False", value):
            return None
        arguments[name] = {"True": True, "False": False}.get(value) if value in ("True", "False") else int(value)
    return {LOADER_VARIABLE: json.dumps(arguments)}


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """The environment with these variables, as it was afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
