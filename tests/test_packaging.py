"""What is shipped beside the code: the source distribution, the manual, completions, the unit and the recipe."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gputop.cli import make_parser
from gputop.commands.replay import sample
from gputop.recording.reader import Recording
from tests.require import require
from tests.stranger import nobodys_process

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "packaging/gputop-record.service"


def test_the_source_distribution_can_be_built_from(tmp_path: Path) -> None:
    """From what the container's recipe is given, too."""
    for line in (ROOT / ".dockerignore").read_text().splitlines()[1:]:
        path = ROOT / line.removeprefix("!")
        if path.is_dir():
            shutil.copytree(path, tmp_path / path.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, tmp_path)
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path / "dist", tmp_path]
    subprocess.run(build, check=True, timeout=120, capture_output=True)
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        carried = {name.partition("/")[2] for name in tar.getnames()}
    assert {"pyproject.toml", "gputop/cli.py", "gputop/data/sample.gputop", "gputop/data/completion.bash"} <= carried
    assert any(name.endswith("probes/sched.c") for name in carried)


def test_the_sample_is_small_simulated_and_private() -> None:
    assert Path(sample()).stat().st_size < 1 << 20
    with Recording(sample()) as recording:
        assert recording.header.simulated
        assert recording.header.host == "demo"
        assert not recording.problem
        users = {info.user for frame in recording.frames() for info in frame.infos}
    assert users == {"ada"}


def test_manual_and_completions_are_fresh() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/manual.py", "--check"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: make manual writes them anew"


def test_bash_completes_commands_and_flags() -> None:
    script = 'eval "$(cat "$1")"; COMP_WORDS=(gputop "${@:2}"); COMP_CWORD=$#; let COMP_CWORD-=1; _gputop; printf "%s\\n" "${COMPREPLY[@]}"'

    def completed(*words: str) -> set[str]:
        command = ["bash", "-c", script, "bash", str(ROOT / "gputop/data/completion.bash"), *words]
        return set(subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split())

    assert completed("rep") == {"replay"}
    assert {"--duration", "straggler"} <= completed("demo", "")
    assert "--once" in completed("--on")


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["-n"]), ("fish", ["--no-execute"])])
def test_other_shells_can_read_theirs(shell: str, check: list[str]) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    subprocess.run([shell, *check, ROOT / f"gputop/data/completion.{shell}"], check=True, timeout=20)


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return unit["Service"]


def test_the_unit_runs_a_command_that_exists() -> None:
    words = service()["ExecStart"].split()
    parser, _ = make_parser(words[1])
    args = parser.parse_args(words[2:])
    assert (args.keep, args.max_size) == (30 * 86_400, 1 << 30)


def test_the_unit_is_kept_from_what_it_does_not_need() -> None:
    """As systemd rates it: 10 is a service of root's without a sandbox. The rest is said in the unit."""
    require("systemd")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (level,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(level) <= 4.0, done.stdout


_ASKS_WHO_IS_AT_THE_OTHER_END = """
import os, socket
from gputop.sources.procfs.ends import unix_peer
one, other = socket.socketpair()
print(unix_peer(os.fstat(one.fileno()).st_ino) == os.fstat(other.fileno()).st_ino)
"""

_READS_A_LINE = """
import sys
from gputop.stacks.frames import Line
from gputop.stacks.source_line import read_lines
print(*read_lines([(int(sys.argv[1]), Line("f", sys.argv[2], 1))], timeout_s=20).values())
"""


def test_the_units_sandbox_lets_it_do_its_work(tmp_path: Path) -> None:
    """The probes are loaded, the beat has its place, and sockets' other ends are told, under its filters and capabilities."""
    require("systemd", "ebpf")
    inside = [sys.executable, "-m", "tests.sandbox", str(UNIT)]
    asks = [*inside, sys.executable, "-c", _ASKS_WHO_IS_AT_THE_OTHER_END]
    done = subprocess.run(asks, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True\n", done.stderr
    with nobodys_process() as stranger:
        reads = [*inside, sys.executable, "-c", _READS_A_LINE, str(stranger), "/etc/os-release"]
        done = subprocess.run(reads, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == Path("/etc/os-release").read_text().partition("\n")[0] + "\n", done.stderr
    path = tmp_path / "a.gputop"
    command = [*inside, sys.executable, "-m", "gputop", "record", "-o", str(path), "--duration", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with Recording(str(path)) as recording:
        states = {state.name: state for frame in recording.frames() for state in frame.sources}
    assert states["ebpf"].detail["tracepoints"] == "raw", states["ebpf"]
    assert states["beat"].detail["priority"].startswith("SCHED_RR")
    assert {states[name].state for name in ("procfs", "host", "cgroup", "marks")} == {"ok"}, states
