"""CONTRIBUTING's "How to add", followed to the letter in a copy of the tree.

Paths, registries and registry lines are read out of the document; only the bodies of the new modules stand here. So a paragraph that no
longer fits the code fails.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.stage import stage
from tests.wait import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def paragraph(title: str) -> str:
    """The text of one recipe, its lines joined."""
    found = re.search(rf"^\*\*{re.escape(title)}\.\*\* (.*?)\n\n", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found, f"CONTRIBUTING.md has no paragraph {title!r}"
    return " ".join(found[1].split())


class Tree:
    """A copy of the package in which one recipe is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "gputop", folder / "gputop")  # with bytecode, which holds for what stays as it was

    def follow(self, recipe: str, body: str, **names: str) -> None:
        """Write the module that the recipe names, with ``body``, and add the recipe's lines to its registries; ``names`` fill ``<…>``."""
        text = paragraph(recipe)
        for name, value in names.items():
            text = text.replace(f"<{name}>", value)
        new = [path for path in re.findall(r"[Ww]rite `(gputop/[\w/]+\.py)`", text) if not (self.folder / path).exists()]
        if new:
            (self.folder / new[0]).write_text(body)
        else:  # the recipe extends a module
            (path,) = re.findall(r"in `(gputop/[\w/]+\.py)`", text)
            self._extend(path, body)
        lines = re.findall(r"[Aa]dd `([^`]+)` to `(gputop(?:\.\w+)+)`", text)
        assert lines, f"{recipe!r} names no registry"
        for line, registry in lines:
            self._add_line(line, registry)

    def _extend(self, path: str, body: str) -> None:
        """Put ``body`` before the registry at the end of a module."""
        file = self.folder / path
        *_, last = [node for node in ast.parse(file.read_text()).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        lines = file.read_text().splitlines()
        lines[last.end_lineno : last.end_lineno] = ["", "", *body.splitlines()]
        file.write_text("\n".join(lines) + "\n")

    def _add_line(self, line: str, registry: str) -> None:
        """Put ``line`` at the end of a tuple or dict, given as ``gputop.module.NAME``."""
        module, _, name = registry.rpartition(".")
        path = self.folder / f"{module.replace('.', '/')}.py"
        file = path if path.exists() else path.with_suffix("") / "__init__.py"
        text = file.read_text()
        (value,) = [
            node.value
            for node in ast.parse(text).body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            and name in [target.id for target in (node.targets if isinstance(node, ast.Assign) else [node.target]) if hasattr(target, "id")]
        ]
        assert isinstance(value, (ast.Tuple, ast.Dict)), f"{registry} is no tuple or dict"
        lines = text.splitlines()
        assert value.end_lineno is not None
        assert value.end_col_offset is not None
        last = lines[value.end_lineno - 1]
        before, after = last[: value.end_col_offset - 1].rstrip(), last[value.end_col_offset - 1 :]
        elements = value.values if isinstance(value, ast.Dict) else value.elts
        comma = "" if not before.strip() or before.endswith(",") or not elements else ","
        lines[value.end_lineno - 1] = f"{before}{comma} {line}, {after}" if before.strip() else f"    {line},\n{last}"
        file.write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str, **variables: str) -> str:
        """Standard output of ``python ARGUMENTS`` with this package instead of the installed one."""
        environ = {**os.environ, "PYTHONPATH": str(self.folder), "TERM": "xterm-256color", "PYTHONDONTWRITEBYTECODE": "1", **variables}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def gputop(self, *arguments: str) -> str:
        """Standard output of a command."""
        return self.run("-m", "gputop", *arguments)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_source(tree: Tree) -> None:
    body = '''
"""A source for a test."""

from gputop.model.frame import Frame, Mark, SourceState
from gputop.sources import Beat, Settings


class FortyTwo:
    """Marks each beat."""

    name = "fortytwo"

    def __init__(self, settings: Settings) -> None:
        self.root = settings.root

    def open(self) -> SourceState:
        """It can always be opened."""
        return SourceState(self.name, "ok", detail={"answer": "42"})

    def read(self, beat: Beat, frame: Frame) -> None:
        """One marker a beat."""
        frame.marks.append(Mark(beat.t_ns, "fortytwo"))

    def close(self) -> None:
        """Nothing to close."""
'''
    tree.follow("A source", body, name="fortytwo", Class="FortyTwo")
    told = json.loads(tree.gputop("--once", "--json", "--no-ebpf"))
    assert told["sources"]["fortytwo"]["state"] == "ok"


def test_a_field_of_a_frame(tree: Tree) -> None:
    """Old recordings open, and the new field travels through a recording."""
    text = paragraph("A field of a frame")
    (folder,) = re.findall(r"`(gputop/[\w/]+/)`", text)
    assert "with a default" in text
    files = [tree.folder / folder / name for name in re.findall(r"`(\w+\.py)`", text)]
    assert all(file.exists() for file in files)
    (file,) = [file for file in files if "class Host(" in file.read_text()]
    field = "    load1: float | None = None\n"
    file.write_text(file.read_text().replace(field, f"{field}    answer: int | None = None\n"))
    written = """
import sys
from gputop.commands.replay import sample
from gputop.model.frame import Host
from gputop.recording.reader import Recording
with Recording(sample()) as recording:
    hosts = [frame.host for frame in recording.frames() if frame.host is not None]
import msgspec
assert hosts and all(host.answer is None for host in hosts)
print(msgspec.msgpack.decode(msgspec.msgpack.encode(Host(1, answer=42)), type=Host).answer)
"""
    assert tree.run("-c", written).strip() == "42"


def test_an_nvml_reading(tree: Tree) -> None:
    """A collector before the stub library reads it."""
    text = paragraph("An NVML reading")
    (struct, model), (groups, module) = re.findall(r"`(\w+)` in `(gputop/[\w/]+\.py)`", text)
    model_file, module_file = tree.folder / model, tree.folder / module
    field = "    temp_c: float | None = None\n"
    assert f"class {struct}(" in model_file.read_text()
    model_file.write_text(model_file.read_text().replace(field, f"{field}    answer: int | None = None\n"))
    head, start, rest = module_file.read_text().partition(f"def {groups}(")
    before, first, after = rest.partition("    return [\n")
    line = '        single("answer", second, lambda: 42),\n'
    module_file.write_text(head + start + before + first + line + after)
    read = """
from gputop.collector.beat import Collector
from gputop.sources import Settings
answers = []
class Keep:
    def send(self, frame):
        answers.extend(gpu.answer for gpu in frame.gpus if gpu.answer is not None)
        return True
Collector(Settings(ebpf=False), Keep()).run(30)
print(sorted(set(answers)))
"""
    with stage(1, ()) as environ:
        stub = {name: environ[name] for name in ("LD_LIBRARY_PATH", "GPUTOP_NVML_CONTROL")}
        assert tree.run("-c", read, **stub).strip() == "[42]"


def test_a_lane(tree: Tree) -> None:
    """It stands on the live screen, with its values."""
    body = '''
def observe_answer(_board: Board, _frame: Frame, history: History) -> None:
    """The answer, each tick."""
    history.put("answer.pct", 0, 42.0)
'''
    tree.follow("A lane", body, id="answer.pct", title="answer", unit="%", observer="observe_answer")
    shown = tree.run("-c", _SCREEN)
    (row,) = [line for line in shown.splitlines() if "answer" in line]
    assert "42" in row
    assert set(row) & set("▁▂▃▄▅▆▇█")


_SCREEN = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import apps

async def shown():
    app = apps.live(apps.session_at(20))
    async with app.run_test(size=(120, 60)) as pilot:
        await pilot.pause()
        for strip in app.screen._compositor.render_strips():
            print("".join(segment.text for segment in strip))

asyncio.run(shown())
"""


def test_a_cause(tree: Tree) -> None:
    """It is one of the words, and its judge is asked."""
    body = '''
"""answer: a cause for a test."""

from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.causes import Finding, Judge


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    return Finding("42")


JUDGE = Judge("answer", "input-bound", _tell, rows=(("thread", "worker"),))
'''
    tree.follow("A cause", body, cause="answer", module="answer")
    known = """
from gputop.findings.verdict import CAUSES
from gputop.diagnosis.causes import judges
print("answer" in CAUSES, [judge.rows for judge in judges() if judge.cause == "answer"])
"""
    assert tree.run("-c", known).strip() == "True [(('thread', 'worker'),)]"


def test_an_intervention(tree: Tree) -> None:
    body = '''
"""Change: nothing. May be kept: no. Right needed: none. Undo: none."""

from gputop.prove.change import Case, Refusal
from gputop.prove.interventions import Intervention
from gputop.prove.scene import Scene


def _make(case: Case, scene: Scene) -> Refusal:
    return Refusal(f"{case.cause}: wait for 42")


INTERVENTION = Intervention("answer", ("sync-storm",), _make)
'''
    tree.follow("An intervention", body, module="answer")
    code = """
from gputop.prove.change import Case, TargetProcess
from gputop.prove.interventions import plan
nobody = TargetProcess(1, 0, "init")
print(plan(Case("sync-storm", nobody, (), (), ())).reason)
"""
    assert tree.run("-c", code) == "sync-storm: wait for 42\n"


def test_a_command(tree: Tree) -> None:
    body = '''
"""Print the answer."""

import argparse

from gputop.system.console import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument("--twice", action="store_true", help="print it twice")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    show(["42"] * (1 + args.twice))
    return 0
'''
    recipe = paragraph("A command").replace("<what it does>", "print the answer")
    assert "print the answer" in recipe
    tree.follow("A command", body, name="answer", **{"what it does": "print the answer"})
    assert "print the answer" in tree.gputop("--help")
    assert tree.gputop("answer", "--twice") == "42\n42\n"


def test_a_reader_of_the_stream(tree: Tree) -> None:
    body = '''
"""Prints how many frames came, and the cause that the diagnosis names."""

from gputop.stream.reader import Reader


class Counting(Reader):
    def __init__(self, judging):
        self.frames, self.judging = 0, judging

    def take(self, frame):
        assert self.judging.board.seq == frame.seq, "the diagnosis has taken it before"
        self.frames += 1

    def is_over(self):
        return self.frames == 5

    def end(self):
        print(self.frames, self.judging.engine.verdict.cause)
'''
    text = paragraph("A reader of the stream")
    room = re.findall(r"`(gputop/[\w/]+)/\w+\.py`", text)[0]
    (tree.folder / room / "counting.py").write_text(body)
    base, judging = (re.findall(rf"`(gputop[\w.]+)\.({name})`", text)[0] for name in ("Reader", "Unwatched"))
    assert base == ("gputop.stream.reader", "Reader")
    code = f"""
from {judging[0]} import {judging[1]}
from {base[0]} import Loop
from gputop.stream.child import ChildStream, collector_argv
from gputop.stream.restarts import LastingStream
from {room.replace("/", ".")}.counting import Counting
stream = LastingStream(ChildStream(collector_argv(["--no-ebpf", "--interval", "0.05"])))
judging = Unwatched(None)
with Loop(stream, judging, Counting(judging), drain_s=0.0) as loop:
    loop.run()
"""
    assert tree.run("-c", code).split()[0] == "5"


def test_an_export(tree: Tree) -> None:
    body = '''
"""The number of rows per table, as text."""

import os
from collections import Counter

from gputop.recording.reader import Recording
from gputop.system.output import create
from gputop.tables.exports import batches


def write(recording: Recording, output: str, start_ns: int, end_ns: int) -> None:
    """Write the counts."""
    counts = Counter()
    for table, rows in batches(recording, start_ns, end_ns):
        counts[table] += len(rows)
    with os.fdopen(create(output), "w") as file:
        file.writelines(f"{table} {count}\\n" for table, count in counts.items())
'''
    tree.follow("An export", body, format="counts")
    assert "counts" in tree.gputop("export", "--help")
    sample = str(tree.folder / "gputop" / "data" / "sample.gputop")
    tree.gputop("export", sample, "--to", "counts", "-o", str(tree.folder / "counts.txt"), "--last", "5")
    assert re.search(r"^gpu [1-9]", (tree.folder / "counts.txt").read_text(), re.MULTILINE)


def test_a_tool_for_agents(tree: Tree) -> None:
    """Its schemas are those of the structs that its `run` is annotated with."""
    body = '''
"""Tool `echo`: how much is asked for."""

from __future__ import annotations

from gputop.agents.answer import Answer, Asked
from gputop.agents.places import Places

SAYS = "How much is asked for."


class EchoQuestion(Asked):
    times: int = 1


class EchoAnswer(Answer):
    repeated: int


def run(places: Places, asked: EchoQuestion) -> EchoAnswer:
    return EchoAnswer(target=asked.target, repeated=asked.times)
'''
    tree.follow("A tool for agents", body, tool="echo", Tool="Echo")
    program = (
        "import json, threading, types; from gputop.agents import tools; places = types.SimpleNamespace(lock=threading.Lock())\n"
        "print(json.dumps([tools.TOOLS[-1], tools.definition('echo'), tools.call(places, 'echo', {'times': 3})]))"
    )
    name, definition, answer = json.loads(tree.run("-c", program))
    assert name == definition["name"] == "echo"
    assert definition["input"]["properties"]["times"] == {"type": "integer", "default": 1}
    assert set(definition["output"]["required"]) == {"target", "repeated"}
    assert answer["repeated"] == 3


def test_every_recipe_names_what_exists() -> None:
    """Paths and dotted names of the whole document, but for those that a newcomer makes."""
    paths = re.findall(r"`((?:gputop|tests|probes|packaging|scripts)/[\w./-]*)`", DOCUMENT)
    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / path).exists()] == []
    inside = re.findall(r"`(\w+)` in `(gputop/[\w/]+\.py)`", DOCUMENT)
    assert len(inside) > 1
    assert [(name, path) for name, path in inside if not re.search(rf"^(?:def|class) {name}\b", (ROOT / path).read_text(), re.M)] == []
    names = re.findall(r"`(gputop(?:\.\w+)+)`", DOCUMENT)
    assert len(names) > 6
    assert [name for name in names if not _exists(name)] == []


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, or a name at the top of one."""
    as_path = ROOT / name.replace(".", "/")
    if as_path.with_suffix(".py").exists() or as_path.is_dir():
        return True
    module, _, last = name.rpartition(".")
    path = ROOT / module.replace(".", "/")
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    return file.exists() and re.search(rf"^(?:def |class )?{last}\b", file.read_text(), re.MULTILINE) is not None
