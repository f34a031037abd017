"""What `gputop prove` asks before it changes anything, whom it suspects, and what it leaves to the user."""

from __future__ import annotations

import argparse
import io
import sys

import pytest
from msgspec.structs import replace

from gputop.commands.prove import _agreed
from gputop.findings.verdict import Culprit
from gputop.model.board import Board
from gputop.prove.change import Plan, Reached, TargetProcess
from gputop.prove.suspect import SuspectWatch, Suspicion
from gputop.system.errors import UserError
from tests.unit.diagnosis.causes import cpu_contention
from tests.unit.diagnosis.causes_gpu import copies_from_the_other_socket
from tests.unit.diagnosis.scene import ON_CPU, Proc, Scene, training

OWN = Plan("nice", "hog (8) to niceness 19", (), may_keep=True)
OTHERS = Plan("nice", "hog (8) to niceness 19", (), may_keep=True, others=(TargetProcess(8, 1, "hog"),))
STEP_S = 0.2  # s between two frames


class Terminal(io.StringIO):
    """Standard input with somebody in front of it."""

    def isatty(self) -> bool:
        return True


def asked(monkeypatch: pytest.MonkeyPatch, plan: Plan, yes: bool, typed: str | None, others: bool = False) -> bool:
    """The answer; ``typed`` is None without a terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO() if typed is None else Terminal(typed))
    return _agreed(argparse.Namespace(yes=yes, others=others), plan)


@pytest.mark.parametrize(("typed", "agrees"), [("y\n", True), ("YES\n", True), ("\n", False), ("yep\n", False), ("", False)])
def test_only_yes_is_yes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, agrees: bool) -> None:
    assert asked(monkeypatch, OWN, yes=False, typed=typed) is agrees
    assert "hog (8) to niceness 19" in capsys.readouterr().err


def test_yes_skips_the_question_for_own_processes_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(monkeypatch, OWN, yes=True, typed=None)
    assert not asked(monkeypatch, OTHERS, yes=True, typed="n\n")
    assert "of other users: hog (8)" in capsys.readouterr().err


def test_a_script_says_that_processes_of_others_may_be_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, OTHERS, yes=True, typed=None, others=True)
    assert asked(monkeypatch, OWN, yes=True, typed=None, others=True)


def test_a_question_names_all_in_whole_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    others = tuple(TargetProcess(pid, 1, "\x1b[2Jhog") for pid in range(1000, 1200))
    reached = tuple(Reached(one, "bob", "nice 19", True, False, 0.5) for one in others)
    plan = Plan("nice", "a-name-with-hyphens (8) to niceness 19", (), may_keep=True, others=others, reached=reached)
    assert asked(monkeypatch, plan, yes=False, typed="y\n")
    said = capsys.readouterr().err
    assert "\x1b" not in said
    lines = [line for line in said.splitlines() if line.startswith("  bob  ")]
    assert len(lines) == len(others)
    assert "200 processes change:" in " ".join(said.split())
    assert "50 % CPU nice 19" in " ".join(said.split())
    assert "  a-name-with-hyphens (8) to\n" in said


@pytest.mark.parametrize(("plan", "yes", "remedy"), [(OWN, False, "--yes"), (OTHERS, True, "--yes --others")])
def test_without_a_terminal_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch, plan: Plan, yes: bool, remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        asked(monkeypatch, plan, yes, typed=None)


def watched(scene: Scene, pid: int | None = None, cause: str | None = None, seconds: float = 25.0) -> tuple[Suspicion | str, float]:
    """What comes of watching a scene, and after how many seconds."""
    watch = SuspectWatch(pid, cause)
    watch.following.board = Board(header=scene.board.header)
    for tick in range(int(seconds / STEP_S)):
        if (found := watch.take(scene.next_frame(STEP_S))) is not None:
            return found, tick * STEP_S
    raise AssertionError("nothing came of it")


def test_the_suspicion_is_the_verdicts_with_trainer_workers_and_culprits() -> None:
    found, seconds = watched(cpu_contention())
    assert isinstance(found, Suspicion)
    assert (found.case.cause, found.case.trainer.pid, found.named) == ("cpu-contention", 100, True)
    assert [str(one) for one in found.case.culprits] == ["fluent-bit (900)"]
    assert {one.pid for one in found.case.victims} < {one.pid for one in found.case.family} == {100, 101, 102}
    assert seconds < 6.0


@pytest.mark.parametrize(("count", "culprits"), [(5, 5), (40, 40)])
def test_more_of_a_program_than_the_diagnosis_names_are_tried_together(count: int, culprits: int) -> None:
    scene = cpu_contention()
    scene.procs[900].run = 0.0
    for pid in range(1000, 1000 + count):
        scene.add(Proc(pid, comm="cc1", cmdline=["/usr/lib/cc1"], run=2.0 / count, looks=[ON_CPU], info={"session": 77}))
    scene.add(Proc(1999, comm="cc1", cmdline=["/usr/lib/cc1"], run=0.0, info={"session": 78}))
    found, _seconds = watched(scene)
    assert isinstance(found, Suspicion)
    assert sum(one.name == "cc1" for one in found.case.culprits) == culprits
    assert 1999 not in {one.pid for one in found.case.culprits}


@pytest.mark.parametrize(("scene", "cpus"), [(copies_from_the_other_socket(), {2, 3}), (cpu_contention(), set())], ids=["known", "unknown"])
def test_the_case_has_the_cpus_near_its_gpus(scene: Scene, cpus: set[int]) -> None:
    found, _seconds = watched(scene)
    assert isinstance(found, Suspicion)
    assert found.case.near_cpus == cpus


def test_of_a_healthy_job_there_is_nothing_to_prove() -> None:
    found, seconds = watched(training(util=97.0, run=0.2))
    assert isinstance(found, str)
    assert found.startswith("nothing to prove")
    assert seconds < 10.0


@pytest.mark.parametrize(("cores", "culprits"), [(0.05, [900]), (0.4, [900, 901])])
def test_who_takes_hardly_anything_stays_out(cores: float, culprits: list[int]) -> None:
    """A tenth of what the largest takes is the least."""
    found, _seconds = watched(cpu_contention().add(Proc(901, comm="cron", cmdline=["/usr/sbin/cron"], run=cores, looks=[ON_CPU])))
    assert isinstance(found, Suspicion)
    assert sorted(one.pid for one in found.case.culprits) == culprits


def test_a_crowd_counts_together() -> None:
    scene, watch = cpu_contention(), SuspectWatch()
    for pid in range(1000, 1030):
        scene.add(Proc(pid, comm="cc1", cmdline=["/usr/lib/cc1"], run=0.06, looks=[ON_CPU], info={"session": 77}))
    scene.play(6.0)
    watch.following.board, watch.following.engine = scene.board, scene.engine
    taken = (*(Culprit(pid, "cc1", 0.06) for pid in range(1000, 1030)), Culprit(900, "fluent-bit", 0.1))
    assert watch._notable(replace(scene.engine.verdict, cause="cpu-contention", culprits=taken)) == [*range(1000, 1030)]


def test_many_equal_ones_in_sessions_of_their_own_are_all_large() -> None:
    scene, watch = cpu_contention(), SuspectWatch()
    for pid in range(1000, 1012):
        scene.add(Proc(pid, comm="bowtie2", cmdline=["bowtie2"], run=0.16, looks=[ON_CPU], info={"session": pid}))
    scene.play(6.0)
    watch.following.board, watch.following.engine = scene.board, scene.engine
    taken = tuple(Culprit(pid, "bowtie2", 0.4) for pid in range(1000, 1012))
    assert watch._notable(replace(scene.engine.verdict, cause="cpu-contention", culprits=taken)) == [*range(1000, 1012)]


@pytest.mark.parametrize(("cause", "culprits"), [("cpu-contention", ["boinc (901)"]), ("disk-io", []), ("affinity", [])])
def test_a_cause_that_is_asked_for_gets_the_busiest_processes(cause: str, culprits: list[str]) -> None:
    scene = training(util=97.0, run=0.2).add(Proc(901, comm="boinc", cmdline=["/usr/bin/boinc"], run=0.8), Proc(902, comm="cron", run=0.01))
    found, _seconds = watched(scene, cause=cause)
    assert isinstance(found, Suspicion)
    assert (found.named, [str(one) for one in found.case.culprits]) == (False, culprits)


def test_a_process_that_is_no_trainer_is_told() -> None:
    found, _seconds = watched(cpu_contention(), pid=900)
    assert found == "process 900 is no trainer that gputop sees: it has no GPU context, or has ended"


def test_at_the_moment_shown_it_is_the_verdict_as_it_stands() -> None:
    scene, watch = cpu_contention(), SuspectWatch()
    watch.following.board, watch.following.engine = scene.board, scene.engine
    assert watch.suspicion_now() == "nothing to prove: the diagnosis names no cause at this moment"
    scene.play(6.0)
    watch.following.board, watch.following.engine = scene.board, scene.engine
    found = watch.suspicion_now()
    assert isinstance(found, Suspicion)
    assert found.case.culprits[0].pid == 900
    assert not watch.sample(found.case.trainer).gone
    assert watch.sample(TargetProcess(100, 7, "another")).gone
