"""Which CUDA function a thread is in, by its instruction and what its stack returns to: no unwinding, and no symbols but exported ones.

A return address within an exported function stands on the stack of whoever has called it; the one nearest to the top counts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from gputop.sources.ebpf import elf

SYNC, COPY, LAUNCH, OTHER, UNKNOWN, ELSEWHERE = "sync", "copy", "launch", "other", "unknown", ""
_LIBRARY = re.compile(r"/lib(?:cuda|cudart)\.so[.\d]*( \(deleted\))?$")
_PREFIX = re.compile(rb"cu(?:da)?[A-Z]")
_KINDS = (
    (SYNC, re.compile(r"cu(?:da)?(?:\w*Synchronize|EventQuery|StreamQuery|Memcpy\w*DtoH)")),
    (COPY, re.compile(r"cu(?:da)?Memcpy")),
    (LAUNCH, re.compile(r"cu(?:da)?(?:Launch|GraphLaunch)")),
)
_WORD_BYTES, _LOW = 8, 3
"""Of an address, and of those the low ones in which addresses of one mapping differ."""


class Code(NamedTuple):
    """Executable pages of one of these libraries."""

    start: int
    end: int
    offset: int
    path: str


class Places:
    """Those of one process."""

    def __init__(self, code: list[Code]) -> None:
        """Raises elf.NotElf, or OSError where a file cannot be read."""
        self._starts: list[int] = []
        self._ends: list[tuple[int, str]] = []
        for start, end, kind in sorted(found for one in code for found in _functions(one)):
            self._starts.append(start)
            self._ends.append((end, kind))
        self._code = [(one.start, one.end) for one in code]
        # Addresses of one mapping share their upper bytes: what might be one is found by a search, the others are never looked at.
        tops = {top.to_bytes(_WORD_BYTES - _LOW, "little") for one in code for top in range(one.start >> 24, (one.end - 1 >> 24) + 1)}
        self._likely = re.compile(b"|".join(map(re.escape, sorted(tops)))) if tops else None

    def kind(self, instruction: int, stack: bytes) -> str:
        """`SYNC`, `COPY`, `LAUNCH` or `OTHER` of a call under way, `UNKNOWN` within the libraries, `ELSEWHERE`."""
        found = self._at(instruction)
        if found or self._likely is None:
            return found
        for match in self._likely.finditer(stack):
            at = match.start() - _LOW
            # What returns to an address has called just before it: a function's beginning is a pointer to that function.
            if at >= 0 and at % _WORD_BYTES == 0 and (found := self._at(int.from_bytes(stack[at : at + _WORD_BYTES], "little") - 1)):
                return found
        return UNKNOWN if any(start <= instruction < end for start, end in self._code) else ELSEWHERE

    def _at(self, address: int) -> str:
        i = bisect_right(self._starts, address) - 1
        if i < 0 or address >= self._ends[i][0]:
            return ELSEWHERE
        return self._ends[i][1]


def _functions(code: Code) -> list[tuple[int, int, str]]:
    found = []
    for offset, size, name in elf.functions(code.path, _PREFIX):
        start = code.start + offset - code.offset
        if code.start <= start < code.end:
            found.append((start, start + size, next((kind for kind, wanted in _KINDS if wanted.match(name)), OTHER)))
    return found


def code_of(pid: int) -> list[Code]:
    """Where ``pid`` maps them; OSError where its maps cannot be read."""
    base = f"/proc/{pid}"
    found = [one for one in elf.mappings(base) if "x" in one.permissions and _LIBRARY.search(one.name)]
    return [Code(*one.addresses, one.offset, elf.mapped_path(base, one.span, one.name)) for one in found]
