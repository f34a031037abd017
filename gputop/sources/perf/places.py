"""Which CUDA function a thread is in: whom its stack returns to, up to the first exported function of libcuda or libcudart."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from gputop import elf
from gputop.sources.perf.event import Sample
from gputop.sources.perf.unwind import VDSO
from gputop.sources.perf.unwind import Row
from gputop.sources.perf.unwind import Unwinders

SYNC, COPY, LAUNCH, OTHER, UNKNOWN, ELSEWHERE = "sync", "copy", "launch", "other", "unknown", ""
_CUDA = re.compile(r"/lib(?:cuda|cudart)(?:[-.]\w+)?\.so[.\d]*( \(deleted\))?$")
"""Wheels bring a libcudart of their own, with a word in its name."""
_CALLED = re.compile(r"\[vdso\]$|/(?:ld-|lib(?:c|m|pthread|rt|dl|stdc\+\+|gcc_s)[-.])[^/]*$")
"""What they call; whoever else runs was not called by them."""
_PREFIX = re.compile(rb"cu(?:da)?[A-Z]")
_KINDS = (
    (SYNC, re.compile(r"cu(?:da)?(?:\w*Synchronize|EventQuery|StreamQuery|Memcpy\w*DtoH)")),
    (COPY, re.compile(r"cu(?:da)?Memcpy")),
    (LAUNCH, re.compile(r"cu(?:da)?(?:Launch|GraphLaunch)")),
)
_FRAMES = 32
"""Further up nobody looks."""


class Code(NamedTuple):
    """Executable pages of one of these libraries."""

    start: int
    end: int
    offset: int
    path: str
    cuda: bool


class Places:
    """Those of one process."""

    def __init__(self, code: list[Code], unwinders: Unwinders) -> None:
        """Raises elf.NotElf, or OSError where one of CUDA's libraries cannot be read."""
        self._functions = sorted(found for one in code if one.cuda for found in _functions(one))
        self._starts = [start for start, _, _ in self._functions]
        self._code = sorted(code)
        self._code_starts = [one.start for one in self._code]
        self._unwinders = {path: unwinders.of(path) for path in {one.path for one in code}}

    def kind(self, sample: Sample) -> str:
        """`SYNC`, `COPY`, `LAUNCH` or `OTHER` of a call under way, `UNKNOWN` within the libraries, `ELSEWHERE`."""
        here, top, met = sample.registers, sample.registers.sp, ELSEWHERE
        for _ in range(_FRAMES):
            code = self._code_at(here.pc)
            if code is None:
                break
            if code.cuda:
                if found := self._function_at(here.pc):
                    return found
                met = UNKNOWN
            row = self._row(code, here.pc)
            caller = here.caller(row, sample.stack, top) if row else None
            if caller is None:
                break
            here = caller
        return met

    def _row(self, code: Code, pc: int) -> Row | None:
        unwinder = self._unwinders[code.path]
        address = unwinder.virtual(pc - code.start + code.offset) if unwinder else None
        return unwinder.row(address) if unwinder and address is not None else None

    def _code_at(self, pc: int) -> Code | None:
        i = bisect_right(self._code_starts, pc) - 1
        return self._code[i] if i >= 0 and pc < self._code[i].end else None

    def _function_at(self, pc: int) -> str:
        i = bisect_right(self._starts, pc) - 1
        return self._functions[i][2] if i >= 0 and pc < self._functions[i][1] else ELSEWHERE


def _functions(code: Code) -> list[tuple[int, int, str]]:
    found = []
    for offset, size, name in elf.functions(code.path, _PREFIX):
        start = code.start + offset - code.offset
        if code.start <= start < code.end:
            found.append((start, start + size, next((kind for kind, wanted in _KINDS if wanted.match(name)), OTHER)))
    return found


def code_of(pid: int) -> list[Code]:
    """Where ``pid`` maps CUDA's libraries, and with them what these call; OSError where its maps cannot be read."""
    base = f"/proc/{pid}"
    found = [one for one in elf.mappings(base) if "x" in one.permissions and (_CUDA.search(one.name) or _CALLED.search(one.name))]
    if not any(_CUDA.search(one.name) for one in found):
        return []
    return [Code(*one.addresses, one.offset, _path(base, one), bool(_CUDA.search(one.name))) for one in found]


def _path(base: str, one: elf.Mapping) -> str:
    return one.name if one.name == VDSO else elf.mapped_path(base, one.span, one.name)
