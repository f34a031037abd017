"""Sentences of verdicts in less room."""

from __future__ import annotations

import pytest

from gputop.diagnosis.facts.facts import Taker
from gputop.diagnosis.facts.takers import names_of
from gputop.findings.explanation import brief, without_pids

TAKERS = "python (21859, 21860, 21861 and 4 more), metrics-agent (29981), log-shipper (29980)"


def test_further_pids_go_first() -> None:
    assert brief(TAKERS, 80) == "python (21859 and 6 more), metrics-agent (29981), log-shipper (29980)"
    assert brief(TAKERS, 60) == "python (21859 and 6 more) and 2 more"
    assert brief("evil (903), short-lived processes took 2.4", 30) == "evil (903) and others took 2.4"
    assert brief("a (1), b (2), others took 2.4 of 4", 30) == "a (1) and others took 2.4 of 4"


def test_the_names_that_verdicts_list_can_be_shortened() -> None:
    takers = [Taker(pid, name, 1.0) for name, pids in (("cc1plus", range(100, 109)), ("rsync", [7])) for pid in pids]
    told = ", ".join(names_of(takers))
    assert told == "cc1plus (100, 101, 102, 103, 104 and 4 more), rsync (7)"
    assert brief(told, 40) == "cc1plus (100 and 8 more), rsync (7)"
    assert brief(told, 34) == "cc1plus (100 and 8 more) and 1 more"
    assert without_pids(brief(told, 34)) == "cc1plus and 1 more"


@pytest.mark.parametrize("starts", ["and the gputop it starts", "and what it starts", "and the cc1 they start"])
def test_what_somebody_starts_goes_with_his_name(starts: str):
    assert brief(f"hog (1), bash (2) {starts} took 2.0 of 2 cores", 40) == "hog (1) and 1 more took 2.0 of 2 cores"
    assert brief(f"bash (2) {starts}, hog (1), rsync (3) took 2.0", 50) == f"bash (2) {starts} and 2 more took 2.0"


def test_several_of_one_name_start_programs_together():
    shells = [Taker(pid, "bash", 1.0, spawns=True, started={pid + 1: ("cc1", 5)}) for pid in (10, 20)]
    assert names_of(shells) == ["bash (10, 20) and the cc1 they start"]
    assert names_of(shells[:1]) == ["bash (10) and the cc1 it starts"]
    assert names_of([Taker(30, "cron", 1.0, spawns=True)]) == ["cron (30) and what it starts"]
