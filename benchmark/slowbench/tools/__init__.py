"""The tools of the table, and how each is started. `README.md` explains how to add one."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its adapter, and what it puts into the job."""

    name: str
    command: tuple[str, ...]
    """The adapter, a program; the pids of the trainers follow as its arguments."""
    instrument: str = ""
    """``MODULE:FUNCTION``, called in the job with its loader and its step, for a tool that works inside; see `tests/workloads/loop.py`."""
    install: str = ""
    """What to install where it is missing."""


def _python(name: str, module: str, *flags: str, instrument: bool = False, install: str = "") -> Tool:
    path = f"slowbench.tools.{module}"
    return Tool(name, (sys.executable, "-m", path, *flags), f"{path}:instrument" if instrument else "", install)


TOOLS = {
    tool.name: tool
    for tool in (
        _python("nvidia-smi", "nvidia_smi", install="nvidia-ml-py"),
        _python("py-spy", "py_spy", install="py-spy"),
        _python("gputop", "gputop", "--no-ebpf", install="gputop-ebpf"),
        _python("gputop-ebpf", "gputop", install="gputop-ebpf"),
        _python("gpuprof", "gpuprof", instrument=True, install="gpuprof"),
        _python("traceml", "traceml", instrument=True, install="traceml-ai"),
    )
}


def chosen(names: list[str]) -> list[Tool]:
    """Tools by their names, or ``NAME=COMMAND`` for one that is not listed. ValueError for a name that is unknown."""
    found = []
    for name in names or [*TOOLS]:
        called, is_other, command = name.partition("=")
        if not is_other and name not in TOOLS:
            raise ValueError(f"no tool {name!r}; there are {', '.join(TOOLS)}; NAME=COMMAND is another one")
        found.append(Tool(called, tuple(shlex.split(command))) if is_other else TOOLS[name])
    return found
