"""`gputop stacks` as people run it, and a real trainer under it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputop.commands import stacks
from gputop.stacks.capture import capture
from gputop.stacks.frames import parse
from gputop.stacks.lines import TextLine, coloured, plain
from gputop.stacks.sampling import by_line, sample
from gputop.system.colour import painted
from tests.require import require
from tests.stacks.conftest import Target
from tests.wait import PATIENCE_S, until

Start = Callable[..., Target]


def name_of(pid: int) -> str:
    path = Path(f"/proc/{pid}/comm")
    return path.read_text().strip() if path.exists() else ""


def gputop(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gputop", "stacks", *arguments], capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture
def sleeper(start: Start) -> int:
    pid = start("sleeping").pid
    until(lambda: any(parse(line).name == "sleeping" for stack in capture([pid]).stacks for line in stack.python[:1]))
    return pid


def test_text_names_line_wait_and_how_it_was_taken(sleeper: int) -> None:
    done = gputop(str(sleeper))
    assert done.returncode == 0, done.stderr
    assert "none paused" in done.stdout.splitlines()[0]
    assert f"process {sleeper}: time.sleep ← sleeping stalled.py:" in done.stdout
    assert "time.sleep(600)" in done.stdout
    assert "sleeping: clock_nanosleep" in done.stdout or "sleeping: nanosleep" in done.stdout


def test_colour_changes_no_text_and_long_sentences_are_broken() -> None:
    told = {"wait": "    " + "word " * 30, "frame": "    " + "f" * 99, "own": "x\x1b[2J", "blank": ""}
    lines = [TextLine(kind, text) for kind, text in told.items()]
    shown = list(coloured(lines, 60))
    assert "".join(painted(line, on=False) for line in shown if line[0][1] == "warn").split() == ["word"] * 30
    assert [len(painted(line, on=False)) for line in shown if line[0][1] == ""] == [103, 0]
    assert max(len(painted(line, on=False)) for line in shown if line[0][1] == "warn") <= 60
    assert not any("\x1b" in text for line in shown for text, _ in line)
    assert plain(lines[1:]) == "".join(f"{painted(line, on=False)}\n" for line in coloured(lines[1:], 60))


def test_json_holds_stacks_and_groups(sleeper: int) -> None:
    answer = json.loads(gputop(str(sleeper), "--json").stdout)
    assert answer["schema"] == 1
    assert (answer["native"], answer["paused"]) == (False, [])
    assert answer["stacks"][0]["pid"] == sleeper
    assert answer["groups"][0]["members"][0]["pid"] == sleeper


def test_native_pauses_and_says_so(sleeper: int) -> None:
    answer = json.loads(gputop(str(sleeper), "--native", "--json").stdout)
    assert answer["paused"] == [sleeper]
    assert any(".so" in line for line in answer["stacks"][0]["python"])


def test_files_for_other_tools(sleeper: int, tmp_path: Path) -> None:
    assert gputop(str(sleeper), "--folded", "-o", str(tmp_path / "folded")).returncode == 0
    line = (tmp_path / "folded").read_text().splitlines()[0]
    assert line.startswith(f"MainThread {sleeper};<module> (")
    assert line.endswith(" 1")
    assert (tmp_path / "folded").stat().st_mode & 0o777 == 0o600
    document = json.loads(gputop(str(sleeper), "--speedscope", "-o", "-").stdout)
    files = {frame["name"]: frame.get("file") for frame in document["shared"]["frames"]}
    assert files["sleeping"] == str(Path(__file__).parent / "stalled.py")


def test_what_is_in_the_way_of_its_file_is_said_at_once(sleeper: int, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = gputop(str(sleeper), "--duration", "10m", "-o", str(tmp_path / "mine"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "exists already" in done.stderr
    assert (tmp_path / "mine").read_text() == "mine"


def test_partial_success_is_success_and_none_is_1(sleeper: int) -> None:
    some = gputop(str(sleeper), "4194000")
    assert (some.returncode, some.stderr) == (0, "gputop: there is no process 4194000\n")
    assert "1 stack of 1 process" in some.stdout


@pytest.mark.parametrize("how", [[], ["--json"], ["--duration", "5"], ["--off-cpu"]], ids=" ".join)
def test_a_process_that_is_not_there_is_said_at_once(how: list[str]) -> None:
    none = gputop("4194000", *how)
    assert (none.returncode, none.stdout, none.stderr) == (1, "", "gputop: there is no process 4194000\n")


def test_a_kernel_stack_is_a_stack_too() -> None:
    if os.geteuid() or name_of(2) != "kthreadd":
        pytest.skip("only root may read it, and in a pid namespace of its own there is none")
    done = gputop("2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "kernel: kthreadd" in done.stdout


WRONG = (["x"], ["-1"], ["0"], ["1", "--json", "--folded"], ["1", "--duration", "0"], ["1", "--native", "--duration", "2"])


@pytest.mark.parametrize("wrong", WRONG, ids=" ".join)
def test_wrong_usage_is_2_in_one_line(wrong: list[str]) -> None:
    done = gputop(*wrong)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


TRAINER = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, i):
        time.sleep(30)
        return torch.zeros(1)

if __name__ == "__main__":
    loader = iter(DataLoader(Slow(), batch_size=1, num_workers=2))
    print("ready", flush=True)
    for batch in loader:
        pass
"""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    require("torch")
    path = tmp_path_factory.mktemp("trainer") / "train.py"
    path.write_text(TRAINER)
    target = Target(sys.executable, "-W", "ignore", str(path))
    yield target
    os.killpg(target.pid, 9)
    target.process.communicate()


def names(pid: int) -> list[str]:
    return [parse(line).name.rpartition(".")[2] for stack in capture([pid]).stacks if stack.tid == pid for line in stack.python]


def test_a_trainer_in_next_and_its_workers_in_getitem(trainer: Target) -> None:
    until(lambda: "__next__" in names(trainer.pid))
    done = gputop()
    assert done.returncode == 0, done.stderr
    assert "__next__ ← <module> train.py:16" in done.stdout
    assert "workers: time.sleep ← " in done.stdout
    assert "__getitem__ train.py:10" in done.stdout


def test_the_time_of_its_main_thread_by_line(trainer: Target) -> None:
    until(lambda: "__next__" in names(trainer.pid))
    first = by_line(sample(trainer.pid, 1))[0]
    assert (first.place, first.call.rpartition(".")[2]) == ("train.py:16", "__next__")
    assert first.share > 0.9
    done = gputop(str(trainer.pid), "--duration", "1")
    assert done.returncode == 0, done.stderr
    assert "train.py:16" in done.stdout
    assert "for batch in loader:" in done.stdout


def test_who_has_ended_is_called_by_his_number(sleeper: int) -> None:
    names = stacks._names([sleeper, 1 << 30], {})
    assert names[sleeper].strip("?")
    assert names[1 << 30] == f"process {1 << 30}"
