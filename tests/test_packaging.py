"""What is shipped beside the code: the source distribution, the manual, completions, the unit and the recipe."""

from __future__ import annotations

import configparser
import gzip
import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gputop.cli import COMMANDS, make_parser
from gputop.commands.replay import sample
from gputop.recording.reader import Recording
from gputop.system.program import __version__
from gputop.system.shipped import FILES, text_of
from tests.require import require
from tests.stranger import nobodys_process
from tests.wait import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
UNIT = ROOT / "packaging/gputop-record.service"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an sdist, and of the wheel that was built from it; made from what the container's recipe is given, without network."""
    folder = tmp_path_factory.mktemp("built")
    for line in (ROOT / ".dockerignore").read_text().splitlines()[1:]:
        path = ROOT / line.removeprefix("!")
        if path.is_dir():
            shutil.copytree(path, folder / path.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "completion.*sh"))
        else:
            shutil.copy(path, folder)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder]
    subprocess.run(build, check=True, timeout=PATIENCE_S, capture_output=True)
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel's content."""
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as packed:
        packed.extractall(built / "wheel")
    return built / "wheel"


def test_the_source_distribution_has_what_is_built(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        carried = {name.partition("/")[2] for name in tar.getnames()}
    data = {"sample.gputop", "cuda/aarch64.s", "cuda/aarch64/libcuda.so.1"}
    assert {"pyproject.toml", "setup.py", "gputop/cli.py", *(f"gputop/data/{name}" for name in data)} <= carried
    assert any(name.endswith("probes/sched.c") for name in carried)


def test_the_wheel_carries_everything(wheel: Path) -> None:
    sources = [*(ROOT / "gputop").rglob("*.py"), *(ROOT / "gputop").rglob("*.tcss"), ROOT / "gputop" / "py.typed"]
    wanted = {str(path.relative_to(ROOT)) for path in sources}
    wanted.add("gputop/data/agents.md")
    wanted |= {f"gputop/{path.relative_to(ROOT)}" for path in (ROOT / "probes").rglob("*") if path.is_file()}
    carried = {str(path.relative_to(wheel)) for path in wheel.rglob("*") if path.is_file()}
    assert wanted - carried == set()
    versioned = f"gputop_ebpf-{__version__}"
    assert {name.split("/")[0] for name in carried} == {"gputop", f"{versioned}.dist-info", f"{versioned}.data"}


NOT_SHIPPED = {
    "Containerfile": "builds from a clone", "conda/recipe.yaml": "builds from a release",
    "prometheus/rules.test.yml": "a test of the rules",
}  # fmt: skip


def test_each_file_for_other_programs_is_in_the_wheel_or_has_a_reason(wheel: Path) -> None:
    there = {str(path.relative_to(ROOT / "packaging")) for path in (ROOT / "packaging").rglob("*") if path.is_file()}
    assert there == FILES.keys() | NOT_SHIPPED.keys()
    for name in FILES:
        assert (wheel / "gputop/packaging" / name).read_bytes() == (ROOT / "packaging" / name).read_bytes()


@pytest.fixture(scope="module", params=["home", "opt"])
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The command of the wheel, in a folder as pipx makes it and linked from another; it lies where this machine has room for tests."""
    folder = tmp_path_factory.mktemp(request.param)
    script = folder / "venvs/gputop-ebpf/bin/gputop"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(wheel)!r})\nfrom gputop.__main__ import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    link = folder / "bin/gputop"
    link.parent.mkdir()
    link.symlink_to(script)
    return link


def files(command: Path, *arguments: str, cwd: Path) -> str:
    """What `gputop files` prints, started by its name as a shell does."""
    environ = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        ["gputop", "files", *arguments], env=environ, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_are_listed_printed_and_copied(installed: Path, tmp_path: Path) -> None:
    listed = [line.split()[0] for line in files(installed, cwd=tmp_path).splitlines()]
    assert listed == list(FILES)
    for name in listed:
        told = files(installed, name, cwd=tmp_path)
        files(installed, os.path.basename(name), "-o", str(tmp_path), cwd=tmp_path)
        copy = tmp_path / os.path.basename(name)
        assert copy.read_text() == told
        assert copy.stat().st_mode & 0o777 == 0o644
        if not name.endswith(".service"):
            assert told == (ROOT / "packaging" / name).read_text()


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".service")])
def test_a_unit_starts_the_gputop_that_wrote_it(installed: Path, tmp_path: Path, name: str) -> None:
    unit = files(installed, name, cwd=tmp_path)
    (started,) = set(re.findall(r"^(?:ExecStart=| {2})(\S*gputop) (?:record|exporter|report) ", unit, re.MULTILINE))
    assert started == str(installed)
    assert "/usr/local" not in unit
    assert "PrivateTmp=yes" not in unit or not str(tmp_path).startswith("/tmp/"), "its sandbox would hide the program"
    require("systemd")
    (tmp_path / name).write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / name)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "line", "kept"),
    [("/home/ada/.local/bin/gputop", "ProtectHome", "read-only"), ("/opt/pipx/bin/gputop", "ProtectHome", "yes"),
     ("/root/.local/bin/gputop", "ProtectHome", "read-only"), ("/var/tmp/v/bin/gputop", "PrivateTmp", "no")],
)  # fmt: skip
def test_a_sandbox_does_not_hide_the_program(command: str, line: str, kept: str) -> None:
    assert f"\n{line}={kept}\n" in text_of("gputop-report.service", command)


def test_the_wheel_has_the_manual_completions_and_both_scripts(wheel: Path) -> None:
    (share,), (info,) = wheel.glob("*.data/data/share"), wheel.glob("*.dist-info")
    page = (share / "man/man1/gputop.1").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"gputop {name}" not in page] == []
    assert "fail\\-on" in page
    completions, vendor = "bash-completion/completions/gputop", "fish/vendor_completions.d/gputop.fish"
    for shell, name in {"bash": completions, "zsh": "zsh/site-functions/_gputop", "fish": vendor}.items():
        assert (share / name).read_bytes() == (wheel / f"gputop/data/completion.{shell}").read_bytes()
    scripts = configparser.ConfigParser()
    scripts.read(info / "entry_points.txt")
    assert dict(scripts["console_scripts"]) == dict.fromkeys(("gputop", "gputop-ebpf"), "gputop.__main__:main")
    environ = {**os.environ, "PYTHONPATH": str(wheel), "PYTHONDONTWRITEBYTECODE": "1"}
    prints = [sys.executable, "-m", "gputop", "completion", "fish"]
    done = subprocess.run(prints, env=environ, cwd=wheel, capture_output=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == (wheel / "gputop/data/completion.fish").read_bytes()


def test_pypi_shows_the_readme_with_absolute_links(wheel: Path) -> None:
    (info,) = wheel.glob("*.dist-info")
    head, _, text = (info / "METADATA").read_text(encoding="utf-8").partition("\n\n")
    (home,) = re.findall(r"^Project-URL: Source, (https://\S+)$", head, re.MULTILINE)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert pictures
    assert [link for link in pictures if not (ROOT / link.removeprefix(f"{home}/raw/main/")).is_file()] == []


def test_the_sample_is_small_simulated_and_private() -> None:
    assert Path(sample()).stat().st_size < 1 << 20
    with Recording(sample()) as recording:
        assert recording.header.simulated
        assert recording.header.host == "demo"
        assert not recording.problem
        users = {info.user for frame in recording.frames() for info in frame.infos}
    assert users == {"ada"}


def test_bash_completes_commands_flags_and_files(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "run.gputop").touch()
    script = """
source "$1"; cd "$2"; COMP_WORDS=(gputop "${@:3}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_gputop gputop "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"; printf "%s\\n" "${COMPREPLY[@]}"
"""

    def completed(*words: str) -> set[str]:
        command = ["bash", "-c", script, "bash", str(wheel / "gputop/data/completion.bash"), str(tmp_path), *words]
        return set(subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout.split())

    assert completed("rep") >= {"replay"}
    assert {"slow-disk", "straggler"} <= completed("demo", "")
    assert completed("--on") == {"--once"}
    assert completed("record", "--du") == {"--duration"}
    assert completed("replay", "ru") == {"run.gputop"}


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["-n"]), ("fish", ["--no-execute"])])
def test_other_shells_can_read_theirs(shell: str, check: list[str], wheel: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    subprocess.run([shell, *check, wheel / f"gputop/data/completion.{shell}"], check=True, timeout=PATIENCE_S)


def test_the_debian_package_is_installed_and_runs(built: Path, tmp_path: Path) -> None:
    """Into an empty system below a folder, where nothing of this environment is seen; the real dpkg says whether it could be here."""
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    if not shutil.which("dpkg-deb") or not Path(python).exists():
        pytest.skip(f"no dpkg, or no {python}")
    (path,) = built.glob("*.whl")
    make = [sys.executable, ROOT / "scripts/deb.py", path, "-o", tmp_path]
    subprocess.run(make, check=True, timeout=PATIENCE_S, capture_output=True)
    (package,), root = tmp_path.glob("*.deb"), tmp_path / "root"
    for name in ("info", "updates", "status"):
        place = root / "var/lib/dpkg" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch() if name == "status" else place.mkdir()
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(tmp_path)}
    subprocess.run(["dpkg", "--dry-run", "--install", package], env=environ, check=True, timeout=PATIENCE_S, capture_output=True)
    force = ["--force-not-root", "--force-depends", f"--root={root}"]
    subprocess.run(["dpkg", *force, "--install", package], env=environ, check=True, timeout=PATIENCE_S, capture_output=True)
    home = root / "usr/lib/gputop"
    assert (root / "usr/bin/gputop").resolve() == home / "bin/gputop"
    assert (home / "bin/gputop").read_text().startswith("#!/usr/lib/gputop/bin/python\n")
    asked = ["-I", home / "bin/gputop", "query", sample(), "SELECT count(*) > 0 AS some FROM gpu", "--csv"]
    done = subprocess.run([home / "bin/python", *asked], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.split() == ["some", "1"], done.stderr
    said = subprocess.run([home / "bin/python", "-I", "-c", "import gputop, textual; print(gputop.__file__, textual.__file__)"],
                          env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout  # fmt: skip
    assert said.count(str(home / "lib")) == 2
    assert not tomllib.loads((root / "etc/gputop/config.toml").read_text())
    assert "ExecStart=/usr/bin/gputop record" in (root / "usr/lib/systemd/system/gputop-record.service").read_text()
    assert b"gputop record" in gzip.decompress((root / "usr/share/man/man1/gputop.1.gz").read_bytes())


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
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
    done = subprocess.run(asks, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "True\n", done.stderr
    with nobodys_process() as stranger:
        reads = [*inside, sys.executable, "-c", _READS_A_LINE, str(stranger), "/etc/os-release"]
        done = subprocess.run(reads, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == Path("/etc/os-release").read_text().partition("\n")[0] + "\n", done.stderr
    path = tmp_path / "a.gputop"
    command = [*inside, sys.executable, "-m", "gputop", "record", "-o", str(path), "--duration", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    with Recording(str(path)) as recording:
        states = {state.name: state for frame in recording.frames() for state in frame.sources}
    assert states["ebpf"].detail["tracepoints"] == "raw", states["ebpf"]
    assert states["beat"].detail["priority"].startswith("SCHED_RR")
    assert {states[name].state for name in ("procfs", "host", "cgroup", "marks")} == {"ok"}, states
