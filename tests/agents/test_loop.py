"""An agent without a model finds causes in few questions, and closes the loop: a slow script is diagnosed, fixed, run again, compared."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from gputop.agents.places import Places
from gputop.demo.scenarios import SCENARIOS
from tests.agents import agent, closing, table
from tests.agents.table import Row
from tests.corpus import split
from tests.require import require

SLACK = 1.3  # tokens of an answer change a little with each word of the diagnosis; the page may not promise less than is needed
LEAST_RIGHT = {split.LEARN: 19, split.HOLD_OUT: 17}  # of 20 each, as the lot has it; `make accuracy` judges all 801


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Through a real server and the official client."""
    folder = tmp_path_factory.mktemp("demos")
    return asyncio.run(table.asked_about(((path, "eBPF") for path in agent.demos()), folder))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """The labelled runs of the lot, asked about in this process."""
    folder = tmp_path_factory.mktemp("lot")
    ask, rows = table.in_process(Places(folder=str(folder))), []
    for path, wanted in agent.lot():
        run, mode = agent.load(path, wanted)
        found = agent.find_cause(ask, agent.written(run, mode, folder))
        rows.append((path.stem, run.cause, found, (found.symptom, found.cause) == (run.symptom, run.cause)))
    return rows


def test_the_cause_of_every_demo_is_found(demos: list[Row]) -> None:
    assert {name for name, *_ in demos} == set(SCENARIOS)
    for name, cause, found, right in demos:
        assert right, (name, cause, found)
        assert found.calls <= agent.MOST_CALLS
        assert found.tokens <= agent.MOST_TOKENS


@pytest.mark.soak
def test_the_cause_of_labelled_runs_is_found(labelled: list[Row]) -> None:
    assert len(labelled) == 2 * agent.OF_EACH_HALF
    for half, least in LEAST_RIGHT.items():
        assert sum(right for name, _, _, right in labelled if split.half_of(name) == half) >= least, half
    for _, _, found, _ in labelled:
        assert found.calls <= agent.MOST_CALLS
        assert found.tokens <= agent.MOST_TOKENS


def said() -> dict[str, list[str]]:
    """First cell of a line of the page's table -> its other cells."""
    found = table.BLOCK.search(table.PAGE.read_text())
    assert found
    return {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in found[0].splitlines() if "|" in line}


def test_the_page_promises_no_more_of_the_demos(demos: list[Row]) -> None:
    promised = said()
    for name, cause, one, _ in demos:
        assert promised[name][0] == f"`{cause}`"
        assert int(promised[name][1]) >= one.calls
        assert int(promised[name][2]) * SLACK >= one.tokens


@pytest.mark.soak
def test_the_page_promises_no_more_of_labelled_runs(labelled: list[Row]) -> None:
    promised = said()
    for half in split.HALVES:
        rows = [(one, right) for name, _, one, right in labelled if split.half_of(name) == half]
        cells = promised[f"{len(rows)} by lot of `{half}`"]
        assert int(cells[0].split()[0]) <= sum(right for _, right in rows)
        assert int(cells[1]) >= max(one.calls for one, _ in rows)
        assert int(re.findall(r"\d+", cells[2])[-1]) * SLACK >= max(one.tokens for one, _ in rows)


@pytest.mark.soak
def test_a_slow_script_is_fixed_and_faster(tmp_path: Path) -> None:
    """The others of `closing.JOBS` want an idle host: `python -m tests.agents.table --loops`. Beside hogs this one would wait for a CPU."""
    require("torch")
    require("cc")
    found, compared = closing.close(table.in_process(Places()), tmp_path, "network-io", closing.undisturbed())
    assert found.cause == "network-io"
    assert '"num_workers": 1' not in (tmp_path / "train.py").read_text().replace("'", '"')
    assert compared["improved"], compared
    assert compared["after"]["lost_share"] < compared["before"]["lost_share"] - 0.1
