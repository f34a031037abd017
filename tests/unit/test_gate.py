"""The gate of `make bench ARGS=gate`: what fails a change, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.bench import gate
from tests.pty.tree import spent


def _pairs(*figures: tuple[float, float], figure: str = "CPU % of a core") -> list[dict[str, dict[str, float]]]:
    return [{"base": {figure: base}, "gputop": {figure: new}, "nvitop": {"CPU % of a core": 4.0}} for base, new in figures]


@pytest.mark.parametrize(
    ("found", "fails"),
    [
        (_pairs((4.0, 4.5), (4.0, 4.5), (4.0, 4.5), (4.0, 3.0), (4.0, 3.0)), True),  # three of five agree
        (_pairs((4.0, 9.0), (4.0, 9.0), (4.0, 4.3), (4.0, 4.3), (4.0, 4.3)), False),  # two outliers
        (_pairs((4.0, 4.39), (5.0, 5.4), (6.0, 6.5)), False),
        (_pairs((40.0, 41.3), (41.0, 42.3), (40.0, 40.1), figure="PSS MiB"), True),
        (_pairs((0.2, 0.23), (0.3, 0.34), (0.2, 0.2), figure="first values s"), True),
    ],
)
def test_most_pairs_decide(found: list[dict[str, dict[str, float]]], fails: bool) -> None:
    assert bool(gate.failures("2 GPUs", found)) is fails


def test_a_figure_that_only_one_tool_has_fails_nothing() -> None:
    found: list[dict[str, dict[str, float]]] = [{"base": {}, "gputop": {"once CPU s": 9.0}}]
    assert gate.failures("8 GPUs", found) == []


def test_rows_show_medians_and_the_share_of_nvitop() -> None:
    rows = list(gate.rows_of(gate.SCENES["2 GPUs"], _pairs((4.0, 3.0), (5.0, 2.0), (6.0, 4.0))))
    assert [row[1] for row in rows] == ["base", "gputop", "nvitop"]
    assert "5.00 (4.00 to 6.00)" in rows[0]
    assert rows[1][-1] == "0.75"


def test_the_page_keeps_everything_but_the_last_table() -> None:
    page = f"# Cost\n{gate.BEGIN}old\n{gate.END}more\n"
    written = gate.with_table(page, "| new |", "abc", 5, 7.0)
    assert written.startswith("# Cost\n")
    assert written.endswith("more\n")
    assert "| new |" in written
    assert "old" not in written
    assert gate.with_table(written, "| new |", "abc", 5, 7.0) == written


def test_the_page_in_the_tree_has_room_for_the_table() -> None:
    assert gate.BEGIN in gate.PAGE.read_text()
    assert gate.END in gate.PAGE.read_text()


def test_a_commit_that_git_does_not_have_is_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    recorded = tmp_path / "base.txt"
    recorded.write_text("0123456789ab\n")
    monkeypatch.setattr(gate, "RECORDED", recorded)
    (said,) = gate.report(page=None)
    assert said.startswith("not compared")


def test_cpu_is_counted_by_thread_in_nanoseconds() -> None:
    import os
    import time

    before, _ = spent([os.getpid()])
    until = time.thread_time_ns() + 20_000_000
    while time.thread_time_ns() < until:
        pass
    after, _ = spent([os.getpid()])
    used: Mapping[int, int] = {tid: ns - before.get(tid, 0) for tid, ns in after.items()}
    assert used[os.getpid()] >= 19_000_000
