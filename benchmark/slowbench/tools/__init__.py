"""The tools of the table, and how each is started. `README.md` explains how to add one."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_MOST_BYTES = 1 << 20  # bytes of a file that is taken for a tool's script; an interpreter has more


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

    @property
    def digest(self) -> str:
        """Hash of the scripts that the command names, or of its module here, so that an edited tool is another one; empty without any."""
        modules = [_HERE / f"{word.rpartition('.')[2]}.py" for word in self.command if word.startswith(f"{__name__}.")]
        named = [path for path in map(Path, self.command[1 if modules else 0 :]) if path.is_file()]
        files = [path for path in (*modules, *named) if path.stat().st_size <= _MOST_BYTES]
        return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12] if files else ""

    def why_not(self) -> str:
        """Why its program cannot be started; empty if it can."""
        program = self.command[0] if self.command else ""
        if shutil.which(program):
            return ""
        return f"{program} is not executable: chmod +x {program}" if Path(program).is_file() else f"there is no program {program!r}"


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
    """Tools by their names, or ``NAME=COMMAND`` for one that is not listed. ValueError for a name or program that is unknown."""
    found = list[Tool]()
    for name in names or [*TOOLS]:
        called, is_other, command = name.partition("=")
        if not is_other and name not in TOOLS:
            raise ValueError(f"no tool {name!r}; there are {', '.join(TOOLS)}; NAME=COMMAND is another one")
        if not re.fullmatch(r"[\w.+-]+", called) or called in [tool.name for tool in found]:
            raise ValueError(f"{called!r} cannot be a tool's name here: letters, digits and -.+_, each name once")
        try:
            tool = Tool(called, tuple(shlex.split(command))) if is_other else TOOLS[name]
        except ValueError as error:
            raise ValueError(f"tool {called}: {error} in {command}") from None
        if why := tool.why_not():
            raise ValueError(f"tool {called}: {why}")
        found.append(tool)
    return found
