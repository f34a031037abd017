"""Private names of Textual and Rich stand in `gputop/tui/terminal.py` alone, and the screen works where a newer Textual has others."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import textual
from textual.widget import Widget

from gputop.tui import terminal
from tests.pty.conftest import assert_left_as_found, clean
from tests.pty.terminal import Terminal

ROOT = Path(__file__).resolve().parent.parent.parent
PLACE = ROOT / "gputop" / "tui" / "terminal.py"
LIBRARIES = ("textual", "rich")
SCREEN_FILES = sorted(path for path in (ROOT / "gputop" / "tui").rglob("*.py") if path != PLACE)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of every import from Textual or Rich."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            yield from ((node.module or "", one.name) for one in node.names)
        elif isinstance(node, ast.Import):
            yield from ((one.name, one.asname or one.name) for one in node.names if one.name.split(".")[0] in LIBRARIES)


def uses(source: str) -> list[str]:
    """Private imports from Textual and Rich, private names of anything but ``self``, and what is set in these libraries."""
    tree = ast.parse(source)
    imported = {name for _, name in imports(tree)}
    found = [f"{module}.{name}" for module, name in imports(tree) if any(map(is_private, [*module.split("."), name]))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) not in ("self", "cls"):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and ast.unparse(node.value).split(".")[0] in imported:
            found.append(f"{ast.unparse(node)} = …")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr") and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(str(name.value)):
                found.append(ast.unparse(node))
    return found


@cache
def names_of(cls: type) -> set[str]:
    """Private names that a class defines, or sets on itself."""
    tree = ast.parse(Path(inspect.getfile(cls)).read_text(encoding="utf-8"))
    (body,) = (one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == cls.__name__)
    found = {one.name for one in body.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))}
    assigned = [one for statement in body.body if isinstance(statement, (ast.Assign, ast.AnnAssign)) for one in ast.walk(statement)]
    found |= {one.id for one in assigned if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    stored = (one for one in ast.walk(body) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    found |= {one.attr for one in stored if ast.unparse(one.value) == "self"}
    return {name for name in found if is_private(name)}


def overrides(cls: type) -> set[str]:
    """Private names of a class of ours that its bases in Textual and Rich have, too."""
    theirs = [base for base in cls.__mro__ if base.__module__.split(".")[0] in LIBRARIES]
    return names_of(cls) & {name for base in theirs for name in names_of(base)} if theirs else set()


def our_classes() -> list[type]:
    modules = [importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in SCREEN_FILES]
    return [one for module in modules for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]


@pytest.mark.parametrize("path", SCREEN_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_file_uses_one(path: Path) -> None:
    assert uses(path.read_text()) == []


def test_no_file_outside_the_screen_does_either() -> None:
    others = [path for path in (ROOT / "gputop").rglob("*.py") if path not in SCREEN_FILES and path != PLACE]
    found = {str(path): [one for one in imports(ast.parse(path.read_text())) if any(map(is_private, one))] for path in others}
    assert {path: names for path, names in found.items() if names} == {}


def test_no_other_class_overrides_one() -> None:
    classes = our_classes()
    assert len(classes) > 40
    assert {one.__name__: found for one in classes if (found := overrides(one))} == {}


class _Hooked(Widget):
    """What is not allowed elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self._dirty_regions = set()

    def _on_mount(self) -> None: ...


def test_what_it_looks_for_is_found() -> None:
    bad = """
from textual._xterm_parser import XTermParser
from textual.keys import _character_to_key
import rich.console
from textual.app import App
App.run = print
app._driver.write("x")
getattr(app, "_driver")
self._ours = 1
"""
    assert len(uses(bad)) == 5
    assert overrides(_Hooked) == {"_dirty_regions", "_on_mount"}
    assert len(set(re.findall(r"\._[a-z_]+", PLACE.read_text()))) > 20


def test_the_pinned_version_was_tried() -> None:
    (pinned,) = re.findall(r'"textual==([^"]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned in terminal.TRIED


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Textual of another version, in which every private name that gputop uses is called otherwise."""
    folder = tmp_path_factory.mktemp("newer")
    shutil.copytree(Path(textual.__file__).parent, folder / "textual", ignore=shutil.ignore_patterns("__pycache__"))
    meta = folder / "textual-99.0.dist-info" / "METADATA"
    meta.parent.mkdir()
    meta.write_text("Metadata-Version: 2.1\nName: textual\nVersion: 99.0\n")
    used = {name for module, name in imports(ast.parse(PLACE.read_text())) for name in [*module.split("."), name] if is_private(name)}
    used |= {node.attr for node in ast.walk(ast.parse(PLACE.read_text())) if isinstance(node, ast.Attribute) and is_private(node.attr)}
    used |= {node.name for node in ast.walk(ast.parse(PLACE.read_text())) if isinstance(node, ast.FunctionDef) and is_private(node.name)}
    pattern = re.compile(rf"\b_({'|'.join(sorted(name[1:] for name in used))})\b")
    for path in (folder / "textual").rglob("*.py"):
        text = pattern.sub(r"_newer_\1", path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
        if pattern.fullmatch(path.stem):
            path.rename(path.with_stem(f"_newer{path.stem}"))
    return folder


@pytest.mark.parametrize("renamed", [False, True])
def test_by_textual_alone_every_screen_works(newer: Path, tmp_path: Path, renamed: bool) -> None:
    path = f"{newer}:{ROOT}" if renamed else str(ROOT)
    env = clean({"PATH": "/usr/bin:/bin", "PYTHONPATH": path} | ({} if renamed else {"GPUTOP_TEXTUAL_ONLY": "1"}), tmp_path)
    said = "import textual, gputop.tui.terminal as t; print(textual.__version__, t.TEXTUAL_ONLY)"
    known = subprocess.run([sys.executable, "-c", said], env=env, capture_output=True, text=True, check=True).stdout.split()
    assert known == ["99.0" if renamed else textual.__version__, "True"]
    with Terminal([sys.executable, "-m", "gputop", "replay", "--sample"], env=env, cwd=tmp_path, columns=140, lines=40) as screen:
        screen.wait_text("REPLAY", "util")
        for keys, shown in (("?", "keys and signs"), ("e", "severity"), ("z", "source:"), ("w", "took CPU"), ("s", "stacks:")):
            screen.send(keys)
            screen.wait_text(shown)
            screen.send("\x1b")
            screen.wait_for(lambda shown=shown: shown not in screen.text(), "the dashboard again")
        screen.send("q")
        assert screen.exit_code() == 0
        assert_left_as_found(screen)
