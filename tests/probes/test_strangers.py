"""What a stranger can make root's probes do: nothing to files of others, whatever it calls them and puts in their place."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from io import FileIO
from itertools import pairwise
from pathlib import Path

import pytest

from gputop.sources import elf
from gputop.sources.ebpf import cuda, libcuda, uprobe
from gputop.sources.ebpf.budget import Linker, ProbeBudget
from gputop.sources.ebpf.cuda import Attacher
from tests.probes.conftest import HERE, Beaten
from tests.probes.swapping import NOBODY
from tests.probes.test_cuda import Trainer, attach, counted, libraries, work
from tests.require import require
from tests.stubs.build import build

Make = Callable[..., Beaten]
Run = Callable[..., subprocess.Popen[str]]
VICTIM = "int first(int x) { return x + 1; }\nint second(int x) { int s = 0; for (int i = 0; i < x; i++) s += i * i; return s; }\n"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Nobody's, where everybody may look."""
    require("ebpf", "cc")
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        own = Path(name) / "own"
        own.mkdir()
        os.chown(own, NOBODY, NOBODY)
        yield own


class Victim:
    """A library of root's that this process maps: its code as it is now, beside what it was."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.parent / "libvictim.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-o", str(self.path), "-"], input=VICTIM, text=True, check=True)
        self.library = ctypes.CDLL(str(self.path))
        self.start = ctypes.cast(self.library.first, ctypes.c_void_p).value or 0
        self.start -= self.start % 4096
        self.clean = self.code()

    def code(self) -> bytes:
        return ctypes.string_at(self.start, 4096)


def own_library(folder: Path, name: str = "libcuda.so.1") -> Path:
    path = folder / name
    shutil.copy(build(HERE / "libcuda.c", "libcuda.so.1"), path)
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o755)
    return path


@pytest.mark.soak
def test_a_path_that_is_swapped_all_the_time_leads_to_nobody_else(beaten: Make, run: Run, folder: Path) -> None:
    victim, library = Victim(folder), own_library(folder)
    stranger = run(library, folder / "libcuda.so.2", victim.path, path=HERE / "swapping.py")
    assert stranger.stdout is not None
    assert stranger.stdout.readline() == "ready\n"
    one = beaten()
    one.until_loaded()
    for _ in range(40):
        one.hot ^= {stranger.pid}  # who comes anew is looked at at once
        one.beat_for(0.1)
        assert victim.code() == victim.clean


def test_what_is_probed_is_what_was_read_whatever_stands_at_its_path_by_then(
    beaten: Make, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, library = Victim(folder), own_library(folder)
    one, trainer, read = beaten(), Trainer(run, library), libcuda.points

    def read_and_swap(file: object) -> libcuda.ProbePoints:
        found = read(file)  # type: ignore[arg-type]
        library.unlink(missing_ok=True)
        library.symlink_to(victim.path)
        return found

    monkeypatch.setattr(libcuda, "points", read_and_swap)
    one.until_loaded()
    attach(one, trainer)
    trainer.call("cuCtxSynchronize", 5, 0)
    counted(one, trainer.pid, "cuCtxSynchronize", 5)
    assert victim.code() == victim.clean


def test_what_is_written_into_between_is_left_and_read_anew(
    beaten: Make, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = own_library(folder)
    one, trainer, read, times = beaten(), Trainer(run, library), libcuda.points, list[int]()

    def read_and_write(file: object) -> libcuda.ProbePoints:
        found = read(file)  # type: ignore[arg-type]
        times.append(1)
        if len(times) == 1:
            with library.open("ab") as end:
                end.write(b"x")
        return found

    monkeypatch.setattr(libcuda, "points", read_and_write)
    one.until_loaded()
    trainer.call("cuLaunchKernel", 1, 0)
    one.hot = frozenset({trainer.pid})
    one.until(lambda: "it was changed while it was read" in one.states[-1].reason, "said")
    one.until(lambda: libraries(one) == 1 and one.states[-1].state == "ok", "probed as it is now")
    assert len(times) == 2


@pytest.mark.parametrize("way", ["bind", "hard link"])
def test_a_file_of_roots_under_another_name_is_not_touched(beaten: Make, folder: Path, way: str) -> None:
    """Who maps a file names it: in a mount namespace of its own anybody may put any file in any place."""
    victim, library = Victim(folder), folder / "libcuda.so.1"
    code = f"import ctypes, time\nctypes.CDLL({str(library)!r})\nprint('ready', flush=True)\ntime.sleep(60)\n"
    command = ["/usr/bin/python3", "-c", code]
    if way == "bind":
        library.touch()
        mount = f'mount --bind {victim.path} {library} && exec "$@"'
        nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        command = [*nobody, "unshare", "-Urm", "sh", "-c", mount, "sh", *command]
    else:
        os.link(victim.path, library)
    one = beaten()
    one.until_loaded()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as stranger:
        try:
            assert stranger.stdout is not None
            if stranger.stdout.readline() != "ready\n":
                pytest.skip("no user namespaces here")
            one.hot = frozenset({stranger.pid})
            one.until(lambda: "it exports no synchronize or memcpy function" in one.states[-1].reason, "looked at")
        finally:
            stranger.kill()
    assert victim.code() == victim.clean
    assert libraries(one) == 0


def test_a_pipe_in_a_librarys_place_keeps_nobody(beaten: Make, run: Run, folder: Path) -> None:
    library = own_library(folder)
    one, trainer = beaten(), Trainer(run, library)
    one.until_loaded()
    trainer.call("cuLaunchKernel", 1, 0)
    library.rename(folder / "libcuda.so.9")
    os.mkfifo(library)
    attach(one, trainer)
    trainer.call("cuCtxSynchronize", 3, 0)
    counted(one, trainer.pid, "cuCtxSynchronize", 3)


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Each process maps a library of its own; those that were attached to."""
    attached: list[int] = []

    def attach_to(library: int, *_: object) -> list[int]:
        attached.append(library)
        return [os.open(os.devnull, os.O_RDONLY)]

    def path(pid: int) -> str:
        (tmp_path / str(pid)).touch()
        return str(tmp_path / str(pid))

    monkeypatch.setattr(libcuda, "mapped_code_kib", lambda *_: 2948)
    monkeypatch.setattr(libcuda, "find", lambda pid, _: [elf.Mapping("1000-2000", "r-xp", 0, "0:0", "1", path(pid))])
    monkeypatch.setattr(libcuda, "opened", lambda _, one, __: elf.opened(one.name))
    monkeypatch.setattr(libcuda, "points", lambda _: libcuda.ProbePoints([], []))
    monkeypatch.setattr(uprobe, "attach", attach_to)
    monkeypatch.setattr(cuda, "_owner", lambda pid, _: pid // 1000)
    return attached


def test_one_user_has_so_many_libraries_probed_and_more_are_said(probed: list[int]) -> None:
    attacher = Attacher(ProbeBudget(Linker([0, 1, 2], "multi", False)))
    before = len(os.listdir("/proc/self/fd"))
    mine, others = frozenset(range(1000, 1900)), frozenset(range(5000, 5004))
    work(attacher, (mine, frozenset()), *[(mine | others, frozenset[int]())] * 12)
    assert len(attacher.libraries) == len(probed) == cuda.MOST_OF_ONE + len(others), "others have theirs"
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * len(attacher.libraries) + 2
    assert set(attacher.failures.values()) == {"the limit of probed libraries is reached (16 of one user, 64 in all)"}
    work(attacher, (others, frozenset()))
    assert attacher.failures == {}
    attacher.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_what_nobody_maps_any_more_makes_room(probed: list[int]) -> None:
    attacher = Attacher(ProbeBudget(Linker([0, 1, 2], "multi", False)))
    asked = [(frozenset(range(first, first + 10)), frozenset[int]()) for first in range(1000, 1500, 10)]
    work(attacher, *asked)
    assert len(probed) == 500
    assert attacher.failures == {}
    assert len(attacher.libraries) <= cuda.MOST_OF_ONE
    attacher.close()


def test_in_all_so_many_are_probed(probed: list[int]) -> None:
    attacher = Attacher(ProbeBudget(Linker([0, 1, 2], "multi", False)))
    work(attacher, (frozenset(range(1000, 100_000, 1000)), frozenset()))
    assert len(probed) == len(attacher.libraries) == cuda.MOST
    attacher.close()


def test_looks_take_a_share_of_the_time_and_everybody_has_a_turn(probed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes five times as long as there is time in a second is followed by four without any."""
    rounds: list[int] = []

    def costly(_: FileIO) -> libcuda.ProbePoints:
        rounds.append(attacher._round)
        until = time.thread_time() + 5 * cuda.LOOK_S
        while time.thread_time() < until:
            pass
        return libcuda.ProbePoints([], [])

    monkeypatch.setattr(cuda, "LOOK_S", 0.01)
    monkeypatch.setattr(libcuda, "points", costly)
    attacher = Attacher(ProbeBudget(Linker([0, 1, 2], "multi", False)))
    pids = frozenset(range(1000, 1005))
    work(attacher, *[(pids, frozenset[int]())] * 60)
    assert attacher._pauses.keys() == pids
    attacher.close()
    assert len(probed) == 5
    assert min(after - before for before, after in pairwise(rounds)) >= 5


def test_names_of_calls_are_cudas_own(folder: Path) -> None:
    """They are told, in a table of names that is kept."""
    code = "int cuCtxSynchronize(void) { return 0; }\n" + "".join(f"int cuMemcpyX{i}(void) {{ return 0; }}\n" for i in range(500))
    path = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-x", "c", "-o", str(path), "-"], input=code, text=True, check=True)
    with elf.opened(str(path)) as file:
        assert [one.call for one in libcuda.points(file).functions] == ["cuCtxSynchronize"]
    code = "".join(f"int cuCtxSynchronize_v{i}{suffix}(void) {{ return 0; }}\n" for i in range(10) for suffix in ("", "_ptsz", "_ptds"))
    code += "".join(f"int cuMemcpy{kind}{way}_v{i}{suffix}(void) {{ return 0; }}\n" for kind in ("HtoD", "DtoH", "DtoD", "2D", "3D")
                    for way in ("", "Async") for i in range(10) for suffix in ("", "_ptsz", "_ptds"))  # fmt: skip
    subprocess.run(["cc", "-shared", "-x", "c", "-o", str(path), "-"], input=code, text=True, check=True)
    with elf.opened(str(path)) as file, pytest.raises(libcuda.NoFunctions, match="more of these functions"):
        libcuda.points(file)
