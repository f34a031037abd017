"""Which CUDA function a thread is in: its stack is unwound up to an exported function of libcuda or libcudart."""

from __future__ import annotations

import re
from bisect import bisect_right
from io import FileIO
from typing import NamedTuple

from gputop.sources import elf
from gputop.sources.perf.event import Sample
from gputop.sources.perf.unwind import VDSO, Row, Unwinder, Unwinders

SYNC, COPY, LAUNCH, OTHER, UNKNOWN, ELSEWHERE = "sync", "copy", "launch", "other", "unknown", ""  # kinds of places
_CUDA = re.compile(r"/lib(?:cuda|cudart)(?:[-.]\w+)?\.so[.\d]*( \(deleted\))?$")
"""Wheels bring their own libcudart, with a hash in its name."""
_CALLED = re.compile(r"\[vdso\]$|/(?:ld-|lib(?:c|m|pthread|rt|dl|stdc\+\+|gcc_s)[-.])[^/]*$")
"""Libraries that these call; code of any other library was not called by them."""
_NAMES = re.compile(f"{_CUDA.pattern}|{_CALLED.pattern}")
_PREFIX = re.compile(rb"cu(?:da)?[A-Z]")
_KINDS = (
    (SYNC, re.compile(r"cu(?:da)?(?:\w*Synchronize|EventQuery|StreamQuery|Memcpy\w*DtoH)")),
    (COPY, re.compile(r"cu(?:da)?Memcpy")),
    (LAUNCH, re.compile(r"cu(?:da)?(?:Launch|GraphLaunch)")),
)
_FRAMES = 32  # most frames that are unwound
MOST_FILES, MOST_CODE = 24, 128  # files of these libraries in one process, and executable mappings; usually 8 of each


class Code(NamedTuple):
    """Executable pages of one of these libraries."""

    start: int
    end: int
    offset: int
    name: str
    file: FileIO | None  # none for the vDSO
    cuda: bool


class Places:
    """The places of one process."""

    def __init__(self, code: list[Code], unwinders: Unwinders) -> None:
        """Raises elf.NotElf, or OSError if one of CUDA's libraries cannot be read."""
        self._functions = sorted(found for one in code if one.cuda for found in _functions(one, unwinders))
        self._starts = [start for start, _, _ in self._functions]
        self._code = [(one._replace(file=None), unwinders.of(one.file)) for one in sorted(code)]  # the files are closed
        self._starts_of_code = [one.start for one, _ in self._code]

    def kind(self, sample: Sample) -> str:
        """`SYNC`, `COPY`, `LAUNCH` or `OTHER` within such a call, `UNKNOWN` if the stack ends within the libraries, `ELSEWHERE`."""
        here, top, met = sample.registers, sample.registers.sp, ELSEWHERE
        for _ in range(_FRAMES):
            code, unwinder = self._code_at(here.pc)
            if code is None:
                break
            if code.cuda:
                if found := self._function_at(here.pc):
                    return found
                met = UNKNOWN
            row = _row(code, unwinder, here.pc)
            caller = here.caller(row, sample.stack, top) if row else None
            if caller is None:
                break
            here = caller
        return met

    def _code_at(self, pc: int) -> tuple[Code | None, Unwinder | None]:
        i = bisect_right(self._starts_of_code, pc) - 1
        return self._code[i] if i >= 0 and pc < self._code[i][0].end else (None, None)

    def _function_at(self, pc: int) -> str:
        i = bisect_right(self._starts, pc) - 1
        return self._functions[i][2] if i >= 0 and pc < self._functions[i][1] else ELSEWHERE


def _row(code: Code, unwinder: Unwinder | None, pc: int) -> Row | None:
    address = unwinder.virtual(pc - code.start + code.offset) if unwinder else None
    return unwinder.row(address) if unwinder and address is not None else None


def _functions(code: Code, unwinders: Unwinders) -> list[tuple[int, int, str]]:
    found = []
    for offset, size, name in unwinders.functions(code.file, _PREFIX) if code.file else ():
        start = code.start + offset - code.offset
        if code.start <= start < code.end:
            found.append((start, start + size, next((kind for kind, wanted in _KINDS if wanted.match(name)), OTHER)))
    return found


def code_of(pid: int) -> list[Code]:
    """Where ``pid`` maps CUDA's libraries and those that they call; empty if it maps none of CUDA's. Raises OSError."""
    base = f"/proc/{pid}"
    named = [(not _CUDA.search(one.name), one) for one in elf.mappings(base) if "x" in one.permissions and _NAMES.search(one.name)]
    named = sorted(named)[:MOST_CODE]
    if not named or named[0][0]:
        return []
    files: dict[tuple[str, str], FileIO | None] = {}
    code = []
    for called, one in named:
        try:
            if one.file not in files and len(files) < MOST_FILES:
                files[one.file] = None if one.name == VDSO else elf.open_mapped(base, one)
        except OSError:
            if not called:
                raise
        if one.file in files:
            start, end = one.addresses
            code.append(Code(start=start, end=end, offset=one.offset, name=one.name, file=files[one.file], cuda=not called))
    return code
