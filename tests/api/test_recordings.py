"""`gputop.open`: the recording as objects, equal to what the commands print of it."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import gputop
from gputop.api.recordings import OpenRecording
from gputop.commands.replay import sample
from tests.require import require

DOCS = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
FOREIGN = ("pytorch_lightning", "transformers")
"""Examples of these stand in `tests/api/trainings.py`, which runs them."""


@pytest.fixture(scope="module")
def recording() -> Iterator[OpenRecording]:
    with gputop.open(sample()) as opened:
        yield opened


def test_explain_is_what_the_command_prints(recording: OpenRecording, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from gputop.cli import main

    assert main(["explain", str(sample()), "--json", "--from", "10s", "--until", "20s"]) == 0
    printed = json.loads(capsysbinary.readouterr().out)
    found = recording.explain("10s", recording.start_unix_s + 20)
    assert json.loads(msgspec.json.encode(found)).items() <= printed.items()
    assert found.verdict.cause == "cpu-contention"
    assert 0 < (found.ledger.gpu_total_s or 0) < 12


def test_rows_are_dicts_and_only_select_is_asked(recording: OpenRecording) -> None:
    rows = recording.query("SELECT pid, role, name, 1 pid FROM process WHERE role = 'trainer'")
    assert rows == [{"pid": rows[0]["pid"], "role": "trainer", "name": rows[0]["name"], "pid_2": 1}]
    start = recording.start_unix_s
    (first,) = recording.query("SELECT min(unix_s) low, max(unix_s) high FROM gpu", start + 10, start + 12)
    assert start + 9.9 < first["low"] < first["high"] < start + 12.1
    with pytest.raises(gputop.Error, match="SELECT"):
        recording.query("DELETE FROM gpu")
    before = time.monotonic()
    with pytest.raises(gputop.Error, match="0\\.2 s"):
        recording.query("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", timeout=0.2)
    assert time.monotonic() - before < 30, "the process goes on"


def test_series_are_what_was_measured(recording: OpenRecording, monkeypatch: pytest.MonkeyPatch) -> None:
    require("trainers")  # numpy comes with them
    import numpy as np

    util = recording.series("gpu.util_pct")
    assert isinstance(util.values, np.ndarray)
    assert len(util.values) == len(util.unix_s) > 100
    (known,) = recording.query("SELECT avg(util_pct) mean, max(util_pct) high FROM gpu")
    assert (float(np.mean(util.values)), max(util.values)) == (pytest.approx(known["mean"], abs=5), known["high"])
    part = recording.series("gpu.util_pct", start="10s", end="20s")
    inside = (util.unix_s >= recording.start_unix_s + 10) & (util.unix_s < recording.start_unix_s + 20)  # type: ignore[operator]
    assert list(part.values) == list(util.values[inside])  # type: ignore[call-overload]
    host = recording.series("cpu.busy_pct", end="5s").values
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert recording.series("cpu.busy_pct", end="5s").values == list(host)
    assert recording.series("gpu.util_pct", gpu=7, end="5s").values == []
    with pytest.raises(ValueError, match=r"gpu\.util_pct"):
        recording.series("gpu.speed")


def test_frames_and_bounds(recording: OpenRecording) -> None:
    frames = [*recording.frames(end="2s")]
    assert len(frames) == 20
    assert all(frame.procs for frame in frames)
    assert recording.end_unix_s - recording.start_unix_s > 30
    assert (recording.host, recording.problem) == ("demo", "")
    assert all(mark.unix_s > recording.start_unix_s for mark in recording.marks)
    for start, end in (("30s", "10s"), (recording.end_unix_s + 5, None), ("no such marker", None), (float("nan"), None),
                       (float("-inf"), None)):  # fmt: skip
        with pytest.raises(gputop.Error):
            recording.explain(start, end)
    with pytest.raises(gputop.Error, match="No such file"):
        gputop.open("/no/such/file.gputop")


def test_the_examples_of_the_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, as a reader would type them. `watch` is the real one, without probes."""
    blocks = re.findall(r"^```python\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    (tmp_path / "run.gputop").symlink_to(sample())
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {"train": lambda: time.sleep(0.2)}
    for block in blocks:
        code = compile(
            block.replace("watch()", "watch(ebpf=False)").replace('"medium")', '"medium", ebpf=False)'), "docs/python.md", "exec"
        )
        if not any(name in block for name in FOREIGN):
            exec(code, known)
    printed = capsys.readouterr().out
    assert "cpu-contention" in printed


def test_the_docs_tell_of_all_that_is_public() -> None:
    for name in ("watch", "open", "mark", "sweep_loader", "Error"):
        assert f"gputop.{name}" in DOCS
