"""Who called whom, by `.eh_frame`: beside what binutils reads in the same libraries, and of files that are damaged."""

from __future__ import annotations

import os
import platform
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop.sources import elf
from gputop.sources.elf import Read
from gputop.sources.perf.unwind import Machine, Registers, Unwinder, Unwinders, UnwindRow
from tests.require import require
from tests.stubs.build import build

LIBRARIES = Path(__file__).parents[1] / "stubs" / "cuda"
_X86 = Machine(sp=7, fp=6, ra=16, perf_mask=0)
_RECORD = re.compile(r" (?:CIE|FDE .*pc=[0-9a-f]+\.\.([0-9a-f]+))")
_LINE = re.compile(r"([0-9a-f]{16}) (.*)")


@pytest.fixture(scope="module")
def library() -> Path:
    require("cc")
    if platform.machine() != "x86_64":
        pytest.skip("other architectures name their registers otherwise")
    return build(LIBRARIES / "libcudart.c", "libcudart.so.12")


def told(library: Path) -> Iterator[tuple[int, int, dict[str, str]]]:
    """(first address, last address, columns) of each row that readelf prints."""
    text = subprocess.run(["readelf", "-wF", str(library)], capture_output=True, text=True, check=True).stdout
    end, heads, rows = 0, list[str](), list[tuple[int, dict[str, str]]]()
    for line in [*text.splitlines(), " CIE"]:
        if found := _RECORD.search(line):
            for i, (start, columns) in enumerate(rows):
                yield start, (rows[i + 1][0] if i + 1 < len(rows) else end) - 1, columns
            end, rows = int(found[1] or "0", 16), []
        elif line.strip().startswith("LOC"):
            heads = line.split()[1:]
        elif (found := _LINE.match(line)) and end:
            rows.append((int(found[1], 16), dict(zip(heads, found[2].split(), strict=True))))


def reads(image: bytes) -> Read:
    return lambda at, size: image[at : at + size]


def expected(columns: dict[str, str]) -> UnwindRow | None:
    if not (found := re.match(r"(rsp|rbp)\+(\d+)$", columns["CFA"])):
        return None
    fp = columns.get("rbp", "u")
    return UnwindRow(found[1] == "rbp", int(found[2]), int(fp[1:]) if fp.startswith("c") else None, int(columns["ra"][1:]))


@pytest.mark.parametrize("flags", [(), ("-fno-omit-frame-pointer",), ("-O0",), ("-Os", "-mavx")])
def test_each_row_is_read_as_binutils_reads_it(flags: tuple[str, ...], library: Path) -> None:
    path = build(LIBRARIES / "libcudart.c", "libcudart.so.12", *flags) if flags else library
    unwinder = Unwinder(reads(path.read_bytes()), _X86)
    rows = [(at, columns) for first, last, columns in told(path) if first <= last for at in (first, last)]
    assert len(rows) > 100
    assert {hex(at): unwinder.row(at) for at, _ in rows} == {hex(at): expected(columns) for at, columns in rows}


def test_records_that_name_who_cleans_up_are_read_too(cleaning: Path) -> None:
    unwinder = Unwinder(reads(cleaning.read_bytes()), _X86)
    rows = list(told(cleaning))
    assert "PLR" in subprocess.run(["readelf", "-wf", str(cleaning)], capture_output=True, text=True, check=True).stdout
    assert [unwinder.row(first) for first, _, _ in rows] == [expected(columns) for _, _, columns in rows]


def test_outside_all_functions_there_is_none(library: Path) -> None:
    unwinder = Unwinder(reads(library.read_bytes()), _X86)
    assert unwinder.row(0) is None
    assert unwinder.row(1 << 40) is None


def test_a_caller_is_where_the_row_says() -> None:
    stack = b"".join(word.to_bytes(8, "little") for word in (1, 0x7000, 0x402001, 3))
    here = Registers(0x401000, 0x5000, 0x5010)
    assert here.caller(UnwindRow(False, 24, -16, -8), stack, 0x5000) == Registers(0x402000, 0x5018, 0x7000)
    assert here.caller(UnwindRow(True, 8, None, -8), stack, 0x5000) == Registers(0x402000, 0x5018, 0x5010)
    assert here.caller(UnwindRow(False, 64, None, -8), stack, 0x5000) is None, "the stack was not taken so far"
    assert here.caller(UnwindRow(True, -64, None, -8), stack, 0x5000) is None, "callers lie above"
    signed = Registers(0x401000, 0x5000, 0x5010, 0x7F << 56 | 0x402005)
    assert signed.caller(UnwindRow(False, 0, None, None), stack, 0x5000) == Registers(0x402004, 0x5000, 0x5010)
    assert here.caller(UnwindRow(False, 0, None, None), stack, 0x5000) is None, "it has no register that tells"


def test_the_kernels_own_library_is_read_from_memory() -> None:
    unwinders = Unwinders()
    assert (found := unwinders.of(None)) is not None
    assert unwinders.of(None) is found


def test_a_file_is_read_once_and_again_when_it_has_changed(library: Path, tmp_path: Path) -> None:
    unwinders, one, other = Unwinders(), tmp_path / "one", tmp_path / "other"
    one.write_bytes(library.read_bytes())
    other.hardlink_to(one)
    assert unwinders.of(elf.opened(str(one))) is unwinders.of(elf.opened(str(other))) is not None
    changed = tmp_path / "changed"
    changed.write_bytes(b"\x7fELF")
    changed.replace(one)
    assert unwinders.of(elf.opened(str(one))) is None
    (tmp_path / "empty").touch()
    assert unwinders.of(elf.opened(str(tmp_path / "empty"))) is None


def test_a_pipe_in_a_librarys_place_keeps_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "libcuda.so.1")
    with pytest.raises(OSError, match="no regular file"):
        elf.opened(str(tmp_path / "libcuda.so.1"))


def test_a_file_that_is_cut_meanwhile_tells_nothing_more(library: Path, tmp_path: Path) -> None:
    """Mapped, it would end us (SIGBUS)."""
    path = tmp_path / "library"
    path.write_bytes(library.read_bytes())
    assert (unwinder := Unwinders().of(elf.opened(str(path)))) is not None
    addresses = [first for first, _, _ in told(library)]
    assert any(unwinder.row(address) for address in addresses[: len(addresses) // 2])
    os.truncate(path, 64)
    assert not any(unwinder.row(address) for address in addresses[len(addresses) // 2 + 10 :])


CLEANING = """
void drop(char **);
int cuLaunchKernel(int (*call)(char *)) { __attribute__((cleanup(drop))) char *room = 0; return call(room) + 1; }
"""
"""Its records name who cleans up, as C++'s do."""


@pytest.fixture(scope="module")
def cleaning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("cc")
    source = tmp_path_factory.mktemp("cleaning") / "cleaning.c"
    source.write_text(CLEANING)
    return build(source, "libcuda.so.1", "-fexceptions")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_raises_what_is_said_and_nothing_else(library: Path, cleaning: Path, data: st.DataObject) -> None:
    image = bytearray(data.draw(st.sampled_from([library, cleaning])).read_bytes())
    ((_, header, size),) = elf.segments(reads(bytes(image)), elf.EH_FRAME)
    place = st.one_of(st.integers(0, 1000), st.integers(header, header + 8 * size))
    for _ in range(data.draw(st.integers(1, 8))):
        image[min(data.draw(place), len(image) - 1)] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(image)), st.integers(0, len(image))))
    with open(os.memfd_create("damaged"), "wb+", buffering=0) as file:
        file.write(image[:end])
        try:
            unwinder = Unwinder(lambda at, count: os.pread(file.fileno(), count, at), _X86)
        except (OSError, OverflowError, struct.error, elf.NotElf):
            return
        for address in range(0x1000, 0x8000, 97):
            unwinder.row(address)
