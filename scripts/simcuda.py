"""Make the demo's simulated CUDA driver, gputop/data/cuda/*/libcuda.so.1, of the assembler source beside it.

    .venv/bin/python scripts/simcuda.py [OUT]

It needs llvm-mc, or for this machine's own architecture cc. The smallest shared object that a dynamic loader and gputop's ELF reader take:
the same source gives the same bytes with each assembler.
"""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "gputop" / "data" / "cuda"
MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_*
_NAME = b"libcuda.so.1"
_SECTIONS = (b".dynsym", b".dynstr", b".text", b".dynamic")
_PAGE = 0x10000  # the largest page size of both; the writable segment lies one further in memory
_SHT_PROGBITS, _SHT_SYMTAB = 1, 2
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14


def can_assemble(machine: str) -> bool:
    """Whether an assembler for ``machine`` is here."""
    return shutil.which("llvm-mc") is not None or (machine == platform.machine() and shutil.which("cc") is not None)


def library(machine: str) -> bytes:
    """The library for ``machine``."""
    with tempfile.TemporaryDirectory() as folder:
        target, source = Path(folder) / "a.o", SOURCES / f"{machine}.s"
        llvm = ["llvm-mc", f"--triple={machine}-linux-gnu", "--filetype=obj", "-o", str(target), str(source)]
        subprocess.run(llvm if shutil.which("llvm-mc") else ["cc", "-c", "-o", str(target), str(source)], check=True)
        code, functions = _assembled(target.read_bytes())
    return _linked(MACHINES[machine], code, functions)


def _assembled(data: bytes) -> tuple[bytes, list[tuple[bytes, int, int]]]:
    """The code of an object file, and its global functions: name, offset in the code, bytes."""
    head = struct.unpack_from("<QQQIHHHHHH", data, 24)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, head[2] + 64 * i) for i in range(head[8])]
    code = next(data[s[4] : s[4] + s[5]] for s in sections if s[1] == _SHT_PROGBITS and s[2] & 4)
    table = next(s for s in sections if s[1] == _SHT_SYMTAB)
    texts = sections[table[6]]
    names = data[texts[4] : texts[4] + texts[5]]
    symbols = list(struct.iter_unpack("<IBBHQQ", data[table[4] : table[4] + table[5]]))
    return code, sorted((names[at : names.index(b"\0", at)], value, size) for at, info, _, _, value, size in symbols if info >> 4 == 1)


def _linked(machine: int, code: bytes, functions: list[tuple[bytes, int, int]]) -> bytes:
    """ELF header, three segments, symbols, names, hash table, code; the dynamic section, which a loader writes to; section headers."""
    names = b"\0" + b"".join(name + b"\0" for name, _, _ in functions) + b"\0".join((_NAME, *_SECTIONS, b""))
    count = 1 + len(functions)
    symbols_at = 64 + 4 * 56
    names_at = symbols_at + 24 * count
    hash_at = -(-(names_at + len(names)) // 8) * 8
    code_at = -(-(hash_at + 4 * (3 + count)) // 16) * 16
    dynamic_at = -(-(code_at + len(code)) // 16) * 16
    sections_at = dynamic_at + 16 * 7
    symbols = bytes(24)
    for name, offset, size in functions:
        symbols += struct.pack("<IBBHQQ", names.index(name + b"\0"), 0x12, 0, 3, code_at + offset, size)
    chain = struct.pack(f"<{3 + count}I", 1, count, 1 if functions else 0, 0, *range(2, count), 0)  # one bucket
    dynamic = ((_DT_HASH, hash_at), (_DT_STRTAB, names_at), (_DT_SYMTAB, symbols_at), (_DT_STRSZ, len(names)), (_DT_SYMENT, 24),
               (_DT_SONAME, names.index(_NAME)), (0, 0))  # fmt: skip
    segments = (
        (1, 5, 0, 0, dynamic_at, _PAGE),  # PT_LOAD, read and execute
        (1, 6, dynamic_at, _PAGE + dynamic_at, 16 * 7, _PAGE),  # PT_LOAD, read and write
        (2, 6, dynamic_at, _PAGE + dynamic_at, 16 * 7, 8),  # PT_DYNAMIC
        (0x6474E551, 6, 0, 0, 0, 16),  # PT_GNU_STACK: not executable
    )
    sections = (  # type, flags, address, offset, size, link, info, alignment, entry
        (11, 2, symbols_at, symbols_at, 24 * count, 2, 1, 8, 24),
        (3, 2, names_at, names_at, len(names), 0, 0, 1, 0),
        (1, 6, code_at, code_at, len(code), 0, 0, 16, 0),
        (6, 3, _PAGE + dynamic_at, dynamic_at, 16 * 7, 2, 0, 8, 16),
    )
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, sections_at, 0, 64, 56, 4, 64, 5, 2)
    head += b"".join(struct.pack("<IIQQQQQQ", kind, flags, at, to, to, size, size, align) for kind, flags, at, to, size, align in segments)
    parts = ((symbols_at, symbols), (names_at, names), (hash_at, chain), (code_at, code),
             (dynamic_at, b"".join(struct.pack("<QQ", *entry) for entry in dynamic)))  # fmt: skip
    out = head
    for at, part in parts:
        out = out.ljust(at, b"\0") + part
    return out.ljust(sections_at, b"\0") + bytes(64) + b"".join(
        struct.pack("<IIQQQQIIQQ", names.index(name + b"\0"), *section) for name, section in zip(_SECTIONS, sections, strict=True)
    )


def main(out: Path) -> None:
    """Write each library that an assembler here can make."""
    for machine in filter(can_assemble, MACHINES):
        (out / machine).mkdir(parents=True, exist_ok=True)
        (out / machine / _NAME.decode()).write_bytes(library(machine))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES)
