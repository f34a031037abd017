"""Facts are built in stages and immutable afterwards: nobody fills in what another stage has made."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from msgspec import Struct

import gputop.diagnosis
from gputop.diagnosis.facts import facts, proc
from tests.unit.diagnosis.scene import training

ROOM = Path(gputop.diagnosis.__file__).parent
STRUCTS = [one for module in (facts, proc) for one in vars(module).values() if isinstance(one, type) and issubclass(one, Struct)]


@pytest.mark.parametrize("struct", [one for one in STRUCTS if one.__module__.startswith(facts.__package__)])
def test_a_fact_is_frozen(struct: type[Struct]) -> None:
    assert struct.__struct_config__.frozen


def test_who_assigns_to_a_fact_is_refused() -> None:
    job = training().play(2).engine.facts.jobs[0]
    with pytest.raises(AttributeError):
        job.data = 1.0
    with pytest.raises(AttributeError):
        job.trainer.state = job.trainer.state


def test_nobody_goes_around_that() -> None:
    texts = {path.relative_to(ROOM).as_posix(): path.read_text() for path in ROOM.rglob("*.py")}
    assert [name for name, text in texts.items() if "force_setattr" in text] == ["causes/__init__.py"], "of what was never a fact"
    assert [name for name, text in texts.items() if re.search(r"\.memo\.", text)] == ["facts/capacity.py"]
    named = r"\b(?:job|trainer|worker|proc|gpu|facts|host)\.\w+"
    filled = named + r"(?:\[[^\]]+\] (?:[+|-]?=) |\.(?:append|extend|update|pop|clear|setdefault)\()"
    assert [(name, found) for name, text in texts.items() for found in re.findall(filled, text) if "facts.memo" not in found] == []


def test_no_share_is_a_threshold_of_one_module() -> None:
    """Thresholds stand in `policy`, each once; what is left bounds memory or sets a pace, in whole numbers. The prediction has numbers of
    its model, which no verdict hangs on."""
    paths = [*sorted(ROOM.rglob("*.py")), ROOM.parent / "findings/path.py", ROOM.parent / "findings/ranks.py"]
    files = [path for path in paths if path.stem not in ("policy", "pipeline", "whatif")]
    nodes = [(path.stem, node) for path in files for node in ast.parse(path.read_text()).body]
    named = [(stem, node) for stem, node in nodes if isinstance(node, ast.Assign)]
    floats = [(stem, node) for stem, node in named if any(isinstance(getattr(one, "value", 0), float) for one in ast.walk(node.value))]
    found = [f"{stem}.{ast.unparse(node.targets[0])}" for stem, node in floats]
    assert sorted(found) == ["path.INFERRED", "trend._MAD", "wakes.LEAST"], "a weight, a fact of statistics, what is too little to tell"
