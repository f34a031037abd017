"""Libraries of strangers: which file is opened, how much is read of it, and what becomes of it meanwhile."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputop.sources import elf
from tests.require import require
from tests.stubs.build import build
from tests.wait import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "probes" / "libcuda.c"
CU = re.compile(b"cu")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    require("cc")
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(build(SOURCE, "libcuda.so.1").read_bytes())
    return path


def with_sections(image: bytes, change: Callable[[int, list[int]], None]) -> bytearray:
    """A copy whose section headers ``change`` has been at: (number, fields)."""
    changed = bytearray(image)
    (at,), (count,) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<H", image, 60)
    for number in range(count):
        fields = list(struct.unpack_from("<IIQQQQIIQQ", image, at + 64 * number))
        change(number, fields)
        struct.pack_into("<IIQQQQIIQQ", changed, at + 64 * number, *fields)
    return changed


@pytest.mark.parametrize("section", ["symbols", "strings"])
def test_sizes_that_a_sparse_file_tells_are_not_believed(library: Path, section: str) -> None:
    """3 GB without a block on the disk: believed, they took as much memory, and more."""

    def swell(_: int, fields: list[int]) -> None:
        if fields[1] == (11 if section == "symbols" else 3):
            fields[5] = 3 << 30

    library.write_bytes(with_sections(library.read_bytes(), swell))
    os.truncate(library, 4 << 30)
    assert read_in_a_child(library, 256 << 20) == "NotElf: its tables are larger than 16 MiB"


def test_many_sections_together_are_bounded(library: Path) -> None:
    image = bytearray(library.read_bytes())
    at = len(image)
    table = next(at for at in sections(image) if at[1] == 11)
    table = (*table[:5], 1 << 20, *table[6:])
    image += struct.pack("<IIQQQQIIQQ", *table) * 60_000
    struct.pack_into("<Q", image, 40, at)
    struct.pack_into("<H", image, 60, 60_000)
    library.write_bytes(image)
    assert read_in_a_child(library, 256 << 20).startswith("NotElf: ")


def sections(image: bytes | bytearray) -> Iterator[tuple[int, ...]]:
    (at,), (count,) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<H", image, 60)
    return struct.iter_unpack("<IIQQQQIIQQ", bytes(image[at : at + 64 * count]))


_CHILD = """
import re, resource, sys
from gputop.sources import elf
from gputop.sources.ebpf import libcuda
from gputop.sources.perf.unwind import Unwinders
import os
grown = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (grown, grown))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for path in sys.stdin.read().splitlines():
    with elf.opened(path) as file:
        try:
            Unwinders().of(file)
            said = f"{len(elf.exports(file, elf.FUNCTION, re.compile(b'cu')).symbols)} symbols"
            said = f"{len(libcuda.points(file).functions)} functions"
        except (elf.NotElf, libcuda.NoFunctions) as error:
            said = f"{type(error).__name__}: {error}"
    print(said, flush=True)
"""


def read_in_a_child(path: Path, more_bytes: int) -> str:
    """What reading it says, in a process that may take so many bytes and 20 s of CPU for it."""
    return read_all_in_a_child([path], more_bytes)[0]


def read_all_in_a_child(paths: list[Path], more_bytes: int) -> list[str]:
    command = [sys.executable, "-c", _CHILD, str(more_bytes)]
    text = "\n".join(map(str, paths))
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout.splitlines()


_CUT = """
import os, re, sys
from gputop.sources import elf
file, read = elf.opened(sys.argv[1]), os.pread
def cut(descriptor, size, at):
    found = read(descriptor, size, at)
    os.truncate(sys.argv[1], 100)
    return found
os.pread = cut
try:
    elf.exports(file, elf.FUNCTION, re.compile(b"cu"))
except elf.NotElf as error:
    print(error)
"""


def test_a_library_that_is_cut_while_it_is_read_ends_nobody(library: Path) -> None:
    """Mapped, it would kill who reads it (SIGBUS)."""
    done = subprocess.run(
        [sys.executable, "-c", _CUT, str(library)], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "the file is cut short\n")


def mutated(image: bytes, seed: int) -> bytes:
    """Damage where it is believed: the head, the headers of sections and segments, symbols, `.eh_frame_hdr`; and a file that is cut."""
    import random

    chance = random.Random(seed)
    changed = bytearray(image)
    (programs, table) = struct.unpack_from("<QQ", image, 32)
    symbols = next(section for section in sections(image) if section[1] == 11)
    ((_, header, size),) = elf.segments(lambda at, count: image[at : at + count], elf.EH_FRAME)
    places = [(16, 48), (programs, 56 * 8), (table, 64 * 24), (symbols[4], symbols[5]), (header, size), (symbols[4], symbols[5])]
    values = [0, 1, 0x7F, 0xFF, 0xFFFF, 1 << 31, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    for _ in range(chance.randint(1, 6)):
        at, length = chance.choice(places)
        width = chance.choice([1, 2, 4, 8])
        place = at + chance.randrange(length) // width * width
        value = chance.choice([*values, chance.getrandbits(64), chance.randrange(len(image))]) & ((1 << 8 * width) - 1)
        changed[place : place + width] = value.to_bytes(width, "little")
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.1 else changed)


def test_no_damage_costs_more_than_a_bounded_look(library: Path, tmp_path: Path) -> None:
    image, paths = library.read_bytes(), []
    for seed in range(2000):
        paths.append(tmp_path / f"{seed}")
        paths[-1].write_bytes(mutated(image, seed))
        if seed % 3 == 0:
            os.truncate(paths[-1], 1 << 40)
    said = read_all_in_a_child(paths, 192 << 20)
    assert len(said) == len(paths)
    assert {line.partition(":")[0] for line in said} >= {"NotElf", "NoFunctions"}
    assert any(line.endswith("functions") for line in said)


def mapped(path: Path) -> elf.Mapping:
    """This process's mapping of it, made here; left to the process's end."""
    descriptor = os.open(path, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap(None, ctypes.c_size_t(4096), 5, 2, descriptor, ctypes.c_long(0))
    inode = str(os.fstat(descriptor).st_ino)
    os.close(descriptor)
    return next(one for one in elf.mappings("/proc/self") if one.inode == inode)


def may_follow_mappings() -> bool:
    one = next(one for one in elf.mappings("/proc/self") if one.inode != "0")
    start, end = one.addresses
    try:
        os.readlink(f"/proc/self/map_files/{start:x}-{end:x}")
        return os.geteuid() == 0
    except OSError:
        return False


@pytest.mark.parametrize("name", ["libcuda.so.1", "lib cuda.so", "lib\ncuda.so", "lib\rcuda.so", "lib (deleted)", "größe.so", "a\\012b.so"])
def test_what_is_opened_is_what_is_mapped(library: Path, name: str) -> None:
    path = library.rename(library.with_name(name))
    one = mapped(path)
    with elf.open_mapped("/proc/self", one) as file:
        assert str(os.fstat(file.fileno()).st_ino) == one.inode


@pytest.mark.parametrize("swap", ["another file", "a link", "a pipe", "nothing"])
def test_whatever_takes_its_place_is_not_opened(library: Path, swap: str) -> None:
    if not may_follow_mappings():
        pytest.skip("needs root, who may follow a mapping to its file")
    one = mapped(library)
    library.rename(library.with_name("elsewhere"))
    take_its_place(library, swap)
    with elf.open_mapped("/proc/self", one) as file:
        assert str(os.fstat(file.fileno()).st_ino) == one.inode


def take_its_place(library: Path, swap: str) -> None:
    if swap == "another file":
        library.write_bytes(b"\x7fELF")
    elif swap == "a link":
        library.symlink_to("/bin/sh")
    elif swap == "a pipe":
        os.mkfifo(library)


@pytest.mark.parametrize("swap", ["another file", "a link", "a pipe", "nothing"])
def test_who_may_not_follow_mappings_is_told_so(library: Path, swap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, real = mapped(library), elf.opened
    library.rename(library.with_name("elsewhere"))
    take_its_place(library, swap)

    def refuse(path: str) -> object:
        if "map_files" in path:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return real(path)

    monkeypatch.setattr(elf, "opened", refuse)
    with pytest.raises(OSError, match=r"only root can open|no regular file|No such file"):
        elf.open_mapped("/proc/self", one)


def test_a_program_at_a_low_address_is_found_by_its_mapping() -> None:
    """maps writes 00400000, map_files 400000."""
    if not may_follow_mappings():
        pytest.skip("needs root, who may follow a mapping to its file")
    require("cc")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "low"
        code = b"int getchar(void); int main(void) { return getchar(); }"
        subprocess.run(["cc", "-no-pie", "-x", "c", "-o", str(program), "-"], input=code, check=True)
        with subprocess.Popen([str(program)], stdin=subprocess.PIPE) as process:
            found: list[elf.Mapping] = []
            until(lambda: found.extend(one for one in elf.mappings(f"/proc/{process.pid}") if one.name == str(program)) or found)
            assert found[0].span.startswith("00400000")
            program.unlink()
            with elf.open_mapped(f"/proc/{process.pid}", found[0]) as file:
                assert os.pread(file.fileno(), 4, 0) == b"\x7fELF"
            process.kill()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a device"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open a device can do things."""
    path = tmp_path / "libcuda.so.1"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    flags, real = list[int](), os.open
    monkeypatch.setattr(os, "open", lambda name, how, *rest, **named: flags.append(how) or real(name, how, *rest, **named))
    with pytest.raises(OSError, match="no regular file"):
        elf.opened(str(path))
    assert all(how & os.O_PATH for how in flags)


def test_a_carriage_return_in_a_name_makes_no_line(library: Path) -> None:
    forged = "x\r7f0000000000-7f0000001000 r-xp 00000000 08:01 123 .libcuda.so.1"
    one = mapped(library.rename(library.with_name(forged)))
    assert one.name.endswith(forged)
    assert not any(one.inode == "123" for one in elf.mappings("/proc/self"))


def test_functions_outside_the_code_have_no_place(library: Path) -> None:
    """A probe there would change data of all that map it."""
    found = elf.exports(elf.opened(str(library)), elf.FUNCTION, CU)
    assert {found.code_offset(address) is not None for address in found.symbols.values()} == {True}
    data = next(load for load in found.loads if load not in found.code)
    assert found.code_offset(data[0]) is None
