"""The pages of docs/causes: one for each cause, from its judge's docstring, the tables of advice and of experiments, a run that has it, and
causes.yaml, which holds what only a person can write.
"""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml
from msgspec.structs import replace

from gputop.diagnosis.causes import advice, judges
from gputop.diagnosis.facts.kinds import Kind
from gputop.findings import message, policy
from gputop.findings.explanation import Episode, Explanation
from gputop.findings.lanes import LANES_OF_CAUSE
from gputop.findings.trouble import heading
from gputop.findings.verdict import GPU_GROWTH, GROWTHS, LINK_ERRORS, OWN_CAUSES, SLOWER, UNCOSTED
from gputop.model.fields import FIELDS
from gputop.prove.interventions import NONE, interventions
from gputop.stream.following import Following
from gputop.system.colour import painted

PROSE = Path(__file__).with_name("causes.yaml")
NAMES = tuple(cause for cause in OWN_CAUSES if cause != "none")
FOLDER = "docs/causes"
WIDTH = 84  # columns of a printed explanation: as many as the site has room for
BESIDE = {"hung-worker": "gputop.diagnosis.hangs", **dict.fromkeys(GROWTHS, "gputop.diagnosis.forecast.growth"),
          LINK_ERRORS: "gputop.diagnosis.badlinks", SLOWER: "gputop.diagnosis.slower"}
"""Cause -> module that tells it beside its judge's file."""
_BOTH, _OF_GPU = "_evidence", "_of_gpu"  # statements of the growths' module: of both growths, of a GPU's memory alone
_HOLES = {
    "pid": "PID", "pids": "PIDS", "pids,": "PIDS", "targets": "PIDS", "cpus": "CPUS", "d": "N", "file": "FILE", "command": "…",
    "own": "NAME",
}  # fmt: skip
"""Kind of a hole in a template (gputop.findings.sentence) -> what stands for it."""
_ROOMS = ("gputop.diagnosis", "gputop.diagnosis.facts", "gputop.diagnosis.graph", "gputop.findings")


class Told(NamedTuple):
    """What a cause's file says of it."""

    what: str
    costs: str
    seen: str
    abstains: str


@cache
def prose() -> dict[str, dict[str, Any]]:
    """Cause -> its part of causes.yaml. SystemExit for a cause without one, or a part without a cause."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(PROSE.read_text(encoding="utf-8"))
    if set(found) != set(NAMES):
        wrong = ", ".join(sorted(set(found) ^ set(NAMES)))
        raise SystemExit(f"{PROSE.name} and gputop.findings.verdict.OWN_CAUSES differ in {wrong}: each cause needs its words there")
    return found


def pages() -> Iterator[tuple[str, str]]:
    """(path, text) of each page, the list of all first."""
    yield f"{FOLDER}/index.md", _index()
    for cause in NAMES:
        yield f"{FOLDER}/{cause}.md", _page(cause)


def _index() -> str:
    rows = [f"| [`{cause}`]({cause}.md) | {_cell(told(cause).what)} |" for cause in NAMES]
    return "\n".join([
        "# Causes", "",
        _folded(
            "The words that gputop has for what takes GPU time, each with a page: what it means, how it looks, the evidence, what to do, "
            "how to prove it, and what looks alike. `gputop explain`, the box of `e`, alerts and Prometheus' rules lead to the page; JSON "
            "has its address as `help_url`. How a cause is found: [diagnosis](../diagnosis.md). How often: [accuracy](../accuracy.md)."
        ),
        "",
        "| cause | what it is |", "|---|---|", *rows, "",
    ])  # fmt: skip


def _page(cause: str) -> str:
    found, words = told(cause), prose()[cause]
    costs = f" {found.costs[:1].upper()}{found.costs[1:]}" if found.costs else ""
    parts = [
        f"# {cause}", _folded(f"**{_sentence(found.what)}**{costs}"), _folded(words["meaning"]),
        "## How it looks", _folded(words["looks"]), *_lanes(cause), *_shown(cause),
        "## Evidence", *_evidence(cause), _folded(f"*Seen*: {found.seen}"), _folded(f"*Not this cause*: {found.abstains}"), *_where(cause),
        "## What to do", *_fixes(cause),
        "## Prove it", *_proof(cause),
        "## What looks alike", "\n".join(_alike(words["alike"])),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


# what the diagnosis says of itself


def _file_of(cause: str) -> ModuleType | None:
    name = f"gputop.diagnosis.causes.{cause.replace('-', '_')}"
    return importlib.import_module(name) if find_spec(name) else None


@cache
def _statements(cause: str) -> tuple[ast.stmt, ...]:
    """The code that tells a cause: statements of its file, and of the module beside it."""
    beside = [importlib.import_module(BESIDE[cause])] if cause in BESIDE else []
    modules = [one for one in (_file_of(cause), *beside) if one is not None]
    found = [stmt for one in modules for stmt in ast.parse(Path(str(one.__file__)).read_text(encoding="utf-8")).body]
    if cause == GPU_GROWTH:
        return tuple(one for one in found if _name_of(one) in (_BOTH, _OF_GPU))
    return tuple(one for one in found if cause not in GROWTHS or _name_of(one) != _OF_GPU)


def _name_of(statement: ast.stmt) -> str:
    """The name that a statement binds; empty for others."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return str(getattr(statement, "name", ""))


def told(cause: str) -> Told:
    """The four parts of the docstring of a cause's file, with thresholds as numbers; of a cause without a judge those of causes.yaml."""
    words, module = prose()[cause], _file_of(cause)
    if "what" in words or module is None:
        return Told(words["what"], "", _plain(words["seen"]), _plain(words["abstains"]))
    text = " ".join((module.__doc__ or "").split())
    found = re.fullmatch(r"[\w-]+: (.*) Costs: (.*) Seen: (.*) Abstains: (.*)", text)
    if found is None:
        raise SystemExit(f"{module.__name__}: its docstring needs '{cause}: ', 'Costs: ', 'Seen: ' and 'Abstains: ', in this order")
    parts = (re.sub(r" \(`[a-z_.]+`\)", "", part) for part in found.groups())  # names of functions are for readers of the code
    return Told(*(re.sub(r"`(?:(\w+)\.)?(_?[A-Z][A-Z0-9_]+)`", lambda one: _value(one, module), part) for part in parts))


def _value(match: re.Match[str], module: ModuleType) -> str:
    """The number that a constant's name stands for."""
    where, name = match.groups()
    places: list[ModuleType] = [module, policy] if where is None else [_room_of(where)]
    value = next((getattr(place, name) for place in places if hasattr(place, name)), None)
    if not isinstance(value, (int, float)):
        return match.group(0)
    return f"{value / 1e9:g} s" if name.endswith("_NS") else f"{value:g}"


def _room_of(name: str) -> ModuleType:
    return importlib.import_module(next(f"{room}.{name}" for room in _ROOMS if find_spec(f"{room}.{name}")))


def _lanes(cause: str) -> list[str]:
    titles = [f"`{FIELDS[name].title}`" for name in LANES_OF_CAUSE.get(cause, ())]
    return [f"Lanes that stand on top while it lasts: {', '.join(titles)}."] if titles else []


def _where(cause: str) -> list[str]:
    """The leaves of the walk, and where metrics have the cause."""
    judge = next((one for one in judges() if one.cause == cause), None)
    leaves = ", ".join(f"{resource} × {holder}" for resource, holder in judge.rows) if judge else ""
    led = [f"[Leaves of the wait-for graph](../diagnosis.md#from-leaf-to-cause): {leaves}."] if leaves else []
    asked = f'gputop_incidents{{cause="{cause}"}}' if cause in UNCOSTED else (
        f'sum by (instance, trainer) (rate(gputop_trainer_gpu_lost_seconds_total{{cause="{cause}"}}[5m]))'
    )
    what = "Incidents of it that last" if cause in UNCOSTED else "GPUs lost to it"
    return [*led, f"{what}, in [metrics](../exporter.md):", f"```promql\n{asked}\n```"]


def _evidence(cause: str) -> list[str]:
    """The numbers that may stand behind it."""
    rows: dict[str, str] = {}
    told_here = prose()[cause].get("evidence", {})
    for made_by, args in _calls(cause):
        if made_by not in ("percent", "Evidence") or not isinstance(args[0], ast.Constant):
            continue
        name, unit = str(args[0].value), "%" if made_by == "percent" else str(getattr(args[2], "value", ""))
        if text := _cell(_literal(args[-1]) or told_here.get(name, "")):
            rows.setdefault(name, f"| `{name}` | {unit} | {text} |")
    return ["\n".join(["| metric | unit | what it is |", "|---|---|---|", *rows.values()])] if rows else []


def _calls(cause: str) -> Iterator[tuple[str, list[ast.expr]]]:
    """(name, arguments) of each call of a plain name in a cause's code, in the order of its text."""
    for statement in _statements(cause):
        found = [one for one in ast.walk(statement) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
        for call in sorted(found, key=lambda one: (one.lineno, one.col_offset)):
            yield ast.unparse(call.func), [*call.args, *(word.value for word in call.keywords if word.arg == "look")]


def _literal(node: ast.expr) -> str | None:
    """The template or text of a node; None where it is made elsewhere."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "filled" and node.args:
        node = node.args[0]
    return _holed(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _holed(template: str) -> str:
    return re.sub(r"\{:?([^{}]*)\}", lambda hole: _HOLES.get(hole[1], "…"), template)


# what to do


def _fixes(cause: str) -> list[str]:
    """Advice by the kind of program, and what is made of observed facts."""
    out = []
    loading, computing = _fields(cause, advice.Loading, "loading"), _fields(cause, advice.Computing, "computing")
    if loading:
        rows = _advised([(kind.value, [getattr(ways, name) for name in loading]) for kind, ways in _last(advice.LOADING, Kind.UNKNOWN)])
        out.append("\n".join(["| program | what to do |", "|---|---|", *rows]))
    if computing:
        ordered = _last(advice.COMPUTING, advice.Framework.UNKNOWN)
        rows = _advised([(framework.value, [getattr(ways, name) for name in computing]) for framework, ways in ordered])
        out.append("\n".join(["| framework | what to do |", "|---|---|", *rows]))
    if fix := prose()[cause].get("fix"):
        out.insert(0, _folded(fix))
    if made := list(dict.fromkeys(_made(cause))):
        out += ["Made of what was observed, with the job's own pids, CPUs and files:", "\n".join(made)]
    return out or ["gputop changes nothing here: the page's last part names what else it may be."]


def _last(table: dict[Any, Any], plain: Any) -> list[tuple[Any, Any]]:
    """The rows of a table of advice, the one that is true of any program at the end."""
    return sorted(table.items(), key=lambda item: item[0] is plain)


def _advised(rows: Sequence[tuple[str, list[advice.Hints]]]) -> Iterator[str]:
    """A row for each program whose advice differs from any other's."""
    _, plain = rows[-1]
    for name, hints in rows:
        if hints != plain or name == "unknown":
            lines = [f"{one.text}: `{one.command}`" if one.command else one.text for way in hints for one in way]
            yield f"| {'any other' if name == 'unknown' else name} | {'<br>'.join(_cell(_holed(line)) for line in dict.fromkeys(lines))} |"


def _fields(cause: str, shape: type, maker: str) -> list[str]:
    """Fields of a table of advice that the cause's code reads, in the order of the table."""
    read: set[str] = set()
    for statement in _statements(cause):
        named = {  # variables that hold the answer of `advice.loading` or `advice.computing`
            target.id
            for node in ast.walk(statement) if isinstance(node, ast.Assign) and f"advice.{maker}(" in ast.unparse(node.value)
            for whole in node.targets for target in ast.walk(whole) if isinstance(target, ast.Name)
        }  # fmt: skip
        for node in ast.walk(statement):
            owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.Attribute) and (owner.startswith(f"advice.{maker}(") or owner in named or owner == "advice"):
                read.add(node.attr)
    return [name for name in shape.__struct_fields__ if name in read and name not in ("has_workers", "apart")]  # type: ignore[attr-defined]


def _made(cause: str) -> Iterator[str]:
    """A line for each fix whose template stands in a cause's code."""
    for made_by, args in _calls(cause):
        if made_by != "Fix" or not args or not (text := _literal(args[0])):
            continue
        is_look = isinstance(args[-1], ast.Constant) and args[-1].value is True
        command = _literal(args[1]) if len(args) - is_look > 1 else ""
        yield f"- {'*where to look*: ' if is_look else ''}{_plain(text)}{f': `{command}`' if command else ''}"


def _proof(cause: str) -> list[str]:
    """The experiments that serve it, or why there is none."""
    tried = [one for one in interventions() if cause in one.causes]
    if not tried:
        why = NONE[cause]
        return [
            _folded(f"No experiment: {_plain(why)}."), "Record before and after the change, and compare:",
            "```sh\ngputop diff before.gputop after.gputop\n```",
        ]  # fmt: skip
    shown = f"```sh\ngputop prove --cause {cause}    # or p on the screen; nothing stays changed\n```"
    lines = []
    for one in tried:
        text = " ".join((importlib.import_module(one.make.__module__).__doc__ or "").split())
        found = re.match(r"Change: (.*?) May be kept: (.*?) Right needed: (.*?) Undo: (.*)", text)
        if found is None:
            raise SystemExit(f"{one.make.__module__}: its docstring needs 'Change: ', 'May be kept: ', 'Right needed: ', 'Undo: '")
        change, kept, right, undo = found.groups()
        lines.append(f"- **{one.name}**: {_plain(change)} May be kept: {kept} Right needed: {right} Undo: {_plain(undo)}")
    first = "Tried in this order, until one can be made; how it is judged, and what is put back: [prove](../prove.md)."
    return [shown, first, "\n".join(_folded(line, "  ") for line in lines)]


def _alike(words: dict[str, str]) -> Iterator[str]:
    for other, how in words.items():
        yield _folded(f"- {f'[`{other}`]({other}.md)' if other in NAMES else f'**{other}**'}: {how}", "  ")


# an example


def _shown(cause: str) -> list[str]:
    """What `gputop explain` prints of a run that has it."""
    first = "A hand-made case:" if "scene" in prose()[cause] else "A recorded job that had it:"
    return [first, f"```text\n{chr(10).join(_printed(_worst(cause)))}\n```"]


@cache
def _worst(cause: str) -> Episode:
    """The worst incident of the cause in the run, or the scene, that causes.yaml names. SystemExit where it has another cause."""
    words = prose()[cause]
    found = SCENES[words["scene"]]() if "scene" in words else _of_run(words["run"])
    own = [one for one in found.incidents if one.cause == cause]
    if not own:
        raise SystemExit(f"{cause}: the example that {PROSE.name} names has another cause: {found.verdict.cause}")
    return max(own, key=lambda one: one.gpu_lost_s)


def _of_run(name: str) -> Explanation:
    from tests.corpus import split
    from tests.corpus.accuracy import paths
    from tests.corpus.runs import load

    [path] = paths([name], split.LEARN)
    following, run = Following(), load(path)
    deque(following.through(run.items("eBPF" if "eBPF" in run.streams else next(iter(run.streams)))), maxlen=0)
    return following.engine.explain()


def _links() -> Explanation:
    from tests.unit.diagnosis.test_badlinks import machine, trained_again

    return trained_again(machine(), 40, link=14).engine.explain()


def _slower() -> Explanation:
    from tests.unit.diagnosis.test_slower import capped

    found = capped().engine.explain()  # its moment, as clocks of any place would show it
    return replace(found, incidents=[replace(one, headline=_CLOCK.sub("14:03:07", one.headline)) for one in found.incidents])


def _lost() -> Explanation:
    from tests.unit.diagnosis.test_lost_gpus import lose, machine

    return lose(machine()).play(10).engine.explain()


def _unexplained() -> Explanation:
    from tests.unit.diagnosis.scene import training

    return training(util=5.0, workers=2).play(8).engine.explain()


def _gpu_growth() -> Explanation:
    from tests.unit.diagnosis.forecast.test_growth import GIB, MIB, live, machine, on_gpu

    scene = machine()
    scene.gpus[0]["held"] = {100: 60 * GIB}
    return live(scene.play(30, step_s=0.5), 30, on_gpu(scene, lambda second: 60 * GIB + second * 200 * MIB)).engine.explain()


def _numa() -> Explanation:
    from tests.unit.diagnosis.causes_gpu import copies_from_the_other_socket

    return copies_from_the_other_socket().play(10).engine.explain()


def _model_load() -> Explanation:
    from tests.unit.diagnosis.causes_serving import SERVED

    make = next(make for make, (_, cause) in SERVED.items() if cause == "model-load")
    return make().play(12).engine.explain()


_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
SCENES: dict[str, Callable[[], Explanation]] = {
    "lost": _lost, "links": _links, "unexplained": _unexplained, "gpu_growth": _gpu_growth, "model-load": _model_load, "numa": _numa,
    "slower": _slower,
}  # fmt: skip
"""Hand-made cases, for causes that no run of the corpus has."""


def _printed(one: Episode) -> Iterator[str]:
    """An incident's verdict, way, fixes and evidence, in the shape of `gputop explain`."""
    lines = (
        [message.head(heading(one.symptom, one, "←"), one.severity)],
        message.wrapped(one.headline, WIDTH), message.wrapped(one.detail, WIDTH), message.way(one.path, WIDTH),
        message.fixes(one.fixes, WIDTH), message.why(one.evidence, WIDTH),
    )  # fmt: skip
    yield from (painted(line, on=False).rstrip() for part in lines for line in part)


# Markdown


def _folded(text: str, indent: str = "") -> str:
    return textwrap.fill(" ".join(text.split()), 140, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _cell(text: str) -> str:
    """Text of a table's cell."""
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Text in one line, in which an angle bracket outside of code is no tag."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if i % 2 else re.sub("<(?!br>)", "&lt;", part) for i, part in enumerate(parts))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
