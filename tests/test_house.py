"""The house keeps its own rules: sizes, reasons beside dependencies, targets in the help, what the wheel carries."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.wait import PATIENCE_S

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "gputop").rglob("*.py"))
MAX_LINES = 600


def named(paths: Iterable[Path], wrong: Callable[[Path], bool]) -> list[str]:
    """Those of ``paths`` that are ``wrong``: a case for each would be a thousand tests."""
    return [str(path.relative_to(ROOT)) for path in paths if wrong(path)]


def test_a_module_fits_in_the_head() -> None:
    assert len(SOURCES) > 300
    assert named([*SOURCES, *(ROOT / "probes").rglob("*.[ch]")], lambda path: len(path.read_text().splitlines()) > MAX_LINES) == []


def test_every_module_says_what_it_is() -> None:
    assert named(SOURCES, lambda path: not ast.get_docstring(ast.parse(path.read_text()))) == []


def test_a_constant_has_one_value() -> None:
    """A second value for the same name holds for the functions above it, too."""

    def twice(path: Path) -> bool:
        targets = [target for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign) for target in node.targets]
        bound = [name for target in targets for name in getattr(target, "elts", [target])]
        names = [name.id for name in bound if isinstance(name, ast.Name) and name.id.isupper()]
        return len(names) != len(set(names))

    assert named(SOURCES, twice) == []


def test_every_dependency_has_its_reason() -> None:
    listed = re.findall(r'^    "[a-z-]+[=<>].*$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert len(listed) > 10
    assert [line for line in listed if "#" not in line and "pyarrow" not in line and not re.search(r'"(ruff|mypy)', line)] == []


def test_every_part_stands_in_the_table_of_folders() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## One way")[0]
    folders = [path for name in ("gputop", "tests") for path in (ROOT / name).iterdir() if path.is_dir()]
    parts = [path for path in (*(ROOT / "gputop").glob("*.py"), *folders) if not path.name.startswith("__")]
    assert len(parts) > 20
    assert [path.name for path in parts if not re.search(rf"[`/]{re.escape(path.name)}[`/]", table)] == []


def test_make_explains_each_target() -> None:
    listing = subprocess.run(["make", "-C", ROOT, "--no-print-directory"], capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"run", "test", "check", "bench"} <= set(targets)
    assert re.findall(r"^  make ([a-z-]+) ", listing, re.MULTILINE) == targets


def test_set_up_says_nothing_twice() -> None:
    """Set up as it is for these very tests, the script has nothing left to do and needs no network."""
    env = {"PATH": "/usr/bin:/bin", "VENV": str(Path(sys.executable).parent.parent)}
    if not list(Path(env["VENV"]).glob("ready-test-*")):
        pytest.skip("this environment was not made by scripts/setup")
    done = subprocess.run([ROOT / "scripts/setup", "test"], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout + done.stderr == ""


def test_the_picture_of_the_rooms_is_of_this_tree() -> None:
    command = [sys.executable, ROOT / "scripts/house.py", "--check"]
    assert subprocess.run(command, timeout=PATIENCE_S, check=False).returncode == 0, "make manual draws it anew"
