"""`gputop pick`: GPUs without work, by the NVML stub."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gputop.commands.pick import pick, states
from gputop.model.board import Board
from gputop.model.frame import Frame, Gpu, GpuProc
from gputop.system.errors import UserError
from tests.bench.stage import stage
from tests.pty.conftest import GPUTOP, clean
from tests.require import require
from tests.wait import PATIENCE_S

QUIET = ("util 0", "util_low 0", "mem_used_mib 4")
GIB = 1 << 30
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Sets up GPUs by lines of the stub's control file; gives what runs `gputop pick ARGUMENTS…` there."""
    require("cc")
    with ExitStack() as kept:

        def made(gpus: int, *settings: str) -> Run:
            env = clean(kept.enter_context(stage(gpus, [], *QUIET, *settings)), tmp_path)
            env.pop("CUDA_VISIBLE_DEVICES", None)

            def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
                words = [GPUTOP, "pick", *arguments]
                return subprocess.run(words, env=env | more, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

            return run

        yield made


def holds(gpu: int, mib: int) -> tuple[str, str]:
    """This process holds memory of a GPU, and runs nothing."""
    return f"gpu{gpu}.procs {os.getpid()}:{mib}:0", f"gpu{gpu}.mem_used_mib {mib}"


def works(gpu: int) -> tuple[str, str]:
    return f"gpu{gpu}.util 70", f"gpu{gpu}.util_low 70"


def test_unused_ones_come_first_and_held_ones_only_where_their_memory_will_do(machine: Callable[..., Run]) -> None:
    run = machine(4, *holds(0, 20_000), *works(1))
    assert run("2").stdout == "CUDA_VISIBLE_DEVICES=2,3\n"
    three = run("3", "--free", "40G")
    assert three.stdout == "CUDA_VISIBLE_DEVICES=0,2,3\n"
    (line,) = three.stderr.splitlines()
    assert f"({os.getpid()})" in line
    assert "GPU 0 held" in line
    without = run("3")
    assert (without.returncode, without.stdout) == (1, "")
    (line,) = without.stderr.splitlines()
    assert [word in line for word in ("0 held by", "1 busy (70 %)", "2 unused", "3 unused")] == [True] * 4
    assert run("3", "--free", "130G").returncode == 1, "the held one has less"
    assert run("4", "--free", "1G").returncode == 1, "the busy one is never picked"


def test_of_equal_ones_the_emptiest_is_picked(machine: Callable[..., Run]) -> None:
    run = machine(3, "gpu0.mem_used_mib 90", "gpu1.mem_used_mib 8", "gpu2.mem_used_mib 30")
    assert run().stdout == "CUDA_VISIBLE_DEVICES=1\n"
    assert run("2", "--gpu", "0,2").stdout == "CUDA_VISIBLE_DEVICES=0,2\n"


def test_only_what_a_scheduler_has_given_is_picked(machine: Callable[..., Run]) -> None:
    run = machine(4)
    assert run("2", CUDA_VISIBLE_DEVICES="1, 3").stdout == "CUDA_VISIBLE_DEVICES=1,3\n"
    more = run("3", CUDA_VISIBLE_DEVICES="1,3")
    assert more.returncode == 1
    assert "0 not in CUDA_VISIBLE_DEVICES" in more.stderr
    assert run(CUDA_VISIBLE_DEVICES="").returncode == 1, "none is given"


def test_a_gpu_that_its_compute_mode_closes_is_left_out(machine: Callable[..., Run]) -> None:
    """2: prohibited, 3: one process alone, as the driver numbers them."""
    run = machine(3, "gpu0.compute_mode 2", "gpu1.compute_mode 3", *holds(1, 20_000))
    assert run("--free", "1G").stdout == "CUDA_VISIBLE_DEVICES=2\n"
    assert run("2", "--free", "1G").returncode == 1


def test_gpus_of_different_models_are_numbered_by_their_bus(machine: Callable[..., Run]) -> None:
    run = machine(2, "gpu1.name NVIDIA L4")
    assert run().stdout == "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0\n"
    assert run(CUDA_DEVICE_ORDER="PCI_BUS_ID").stdout == "CUDA_VISIBLE_DEVICES=0\n"


@pytest.mark.parametrize("way", ["--run", "--"])
def test_a_command_runs_with_the_variable_and_with_its_own_words(machine: Callable[..., Run], way: str) -> None:
    run = machine(3, *works(0))
    program = "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES'], *sys.argv[1:]); sys.exit(7)"
    done = run("2", way, sys.executable, "-c", program, "--free", "--", "1")
    assert (done.returncode, done.stdout, done.stderr) == (7, "1,2 --free -- 1\n", "")


def test_a_command_is_not_run_where_there_are_too_few(machine: Callable[..., Run], tmp_path: Path) -> None:
    run = machine(1, *works(0))
    assert run("--run", "touch", str(tmp_path / "ran")).returncode == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [(["--run"], 2, "--run needs a command"), (["0"], 2, "'0' is no number"), (["--free", "x"], 2, "is no size"),
     (["--run", "no-such-program"], 127, "cannot run no-such-program")],
)  # fmt: skip
def test_wrong_usage_is_one_line(machine: Callable[..., Run], arguments: list[str], code: int, part: str) -> None:
    done = machine(1)(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    assert part in line


def test_without_a_driver_it_names_the_reason(machine: Callable[..., Run]) -> None:
    done = machine(1)(LD_LIBRARY_PATH="")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("gputop: no GPU to pick: ")


def board_of(*gpus: Gpu) -> Board:
    board = Board()
    board.fold(Frame(0, 1, key=True, gpus=list(gpus)))
    return board


def gpu(index: int, **values: object) -> Gpu:
    known = {"util_pct": 0.0, "mem_used_bytes": 4 << 20, "mem_total_bytes": 80 * GIB, "procs": [], "uuid": f"GPU-{index}f00-aa"}
    return Gpu(index, 1, **known | values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "word"),
    [({"lost": True}, "lost"), ({"mig_mode": True, "mig": []}, "MIG"), ({"compute_mode": "Prohibited"}, "closed"),
     ({"needs_reset": True}, "reset"),
     ({"compute_mode": "Exclusive Process", "procs": [GpuProc(7, "C", GIB)]}, "alone"),
     ({"util_pct": None, "procs": None, "missing": {"util_pct": "x", "procs": "x"}}, "not measured")],
)  # fmt: skip
def test_a_gpu_that_nothing_can_run_on_is_not_picked(values: dict[str, object], word: str) -> None:
    found = states(board_of(gpu(0, **values), gpu(1)), {1: 0.0} if "util_pct" in values else {0: 0.0, 1: 0.0}, {})
    assert word in found[0].told()
    assert [one.gpu for one in pick(found, 1, GIB)] == [1]
    with pytest.raises(UserError, match="1 of 2 GPUs is"):
        pick(found, 2, GIB)


def test_memory_without_a_process_is_somebodys_and_what_draws_holds_nothing() -> None:
    """A container's driver lists no processes of others; a display server computes nothing."""
    found = states(board_of(gpu(0, mem_used_bytes=9 * GIB), gpu(1, procs=[GpuProc(7, "G", 4 << 20)])), {0: 0.0, 1: 0.0}, {})
    assert "cannot be seen" in found[0].told()
    assert [one.gpu for one in pick(found, 1, None)] == [1]
    with pytest.raises(UserError):
        pick(found, 2, None)


def test_free_memory_that_is_not_known_is_not_enough() -> None:
    found = states(board_of(gpu(0, mem_used_bytes=None)), {0: 0.0}, {})
    assert [one.gpu for one in pick(found, 1, None)] == [0]
    with pytest.raises(UserError, match="unknown"):
        pick(found, 1, GIB)


def test_a_uuid_names_a_gpu_as_cuda_reads_it() -> None:
    found = states(board_of(gpu(0), gpu(1)), {0: 0.0, 1: 0.0}, {"CUDA_VISIBLE_DEVICES": "GPU-1f0"})
    assert [one.gpu for one in pick(found, 1, None)] == [1]
