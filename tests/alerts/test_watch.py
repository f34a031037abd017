"""gputop watch: exit codes, whose incidents count, a command's life beside it, and a whole run on a demo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop import cli
from gputop.alerts.watching import Descendants, Starving
from gputop.commands import watch
from gputop.demo.stage import staged
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Header, ProcInfo
from gputop.system.errors import UserError
from tests.alerts.made import incident
from tests.recording.test_record import takes
from tests.unit.diagnosis.scene import Scene, training
from tests.unit.diagnosis.test_engine import contended
from tests.wait import PATIENCE_S, until

GPUTOP = [sys.executable, "-m", "gputop", "watch", "--no-ebpf"]


def lasting(number: int, start_s: float, last_s: float, **changed: object):  # type: ignore[no-untyped-def]
    return incident(number, start_ns=round(start_s * SECOND_NS), last_ns=round(last_s * SECOND_NS), **changed)


# for how long


def test_a_job_has_starved_once_it_did_for_the_time() -> None:
    starving = Starving("medium", 30 * SECOND_NS)
    assert starving.look([lasting(1, 10, 39)]) is None
    assert starving.look([one := lasting(1, 10, 40)]) is one


def test_an_incident_that_lasts_because_it_may_come_back_adds_nothing() -> None:
    starving = Starving("medium", 30 * SECOND_NS)
    for _now_s in range(38, 44):
        assert starving.look([lasting(1, 10, 38)]) is None


@pytest.mark.parametrize("changed", [{"severity": "low"}, {"cause": "pause", "severity": "high"}, {"trainer_pid": None}, {"last_ns": 0}])
def test_what_is_below_the_severity_or_no_jobs_starving_does_not_count(changed: dict[str, object]) -> None:
    starving = Starving("medium", 30 * SECOND_NS)
    one = lasting(1, 10, 99)
    for name, value in changed.items():
        setattr(one, name, value)
    assert starving.look([one]) is None


def test_a_job_whose_cause_changes_starves_on_and_another_job_has_a_time_of_its_own() -> None:
    starving = Starving("medium", 30 * SECOND_NS)
    assert starving.look([lasting(1, 10, 25)]) is None
    assert starving.look([lasting(1, 10, 25, end_ns=25 * SECOND_NS), lasting(2, 24, 39, cause="disk-io")]) is None
    assert starving.look([lasting(3, 20, 45, trainer_pid=7), lasting(2, 24, 39, cause="disk-io")]) is None
    found = starving.look([lasting(2, 24, 41, cause="disk-io"), lasting(3, 20, 41, trainer_pid=7)])
    assert found is not None
    assert found.id == 2


def test_after_a_break_the_time_begins_anew() -> None:
    starving = Starving("medium", 30 * SECOND_NS)
    starving.look([lasting(1, 10, 35)])
    starving.look([lasting(1, 10, 35, end_ns=35 * SECOND_NS)])
    assert starving.look([lasting(2, 60, 85)]) is None


# whose


def test_the_family_is_the_command_and_what_it_started_also_once_parents_are_gone() -> None:
    board, family = Board(), Descendants()
    for pid, ppid in ((50, 1), (51, 50), (52, 51), (60, 1)):
        board.infos[pid] = ProcInfo(pid, ppid=ppid, start_ticks=pid)
    assert [family.has(board, pid, 50) for pid in (50, 51, 52, 60, None)] == [True, True, True, False, False]
    del board.infos[51]
    board.infos[52] = ProcInfo(52, ppid=1, start_ticks=52)
    assert family.has(board, 52, 50)
    del board.infos[52]
    assert family.has(board, 52, 50)
    board.infos[52] = ProcInfo(52, ppid=1, start_ticks=9999)
    assert not family.has(board, 52, 50), "another has its pid"


# runs on frames made by hand


class Made:
    """A stream of a scene's frames, as fast as they are read; after them the time stands still."""

    trouble, why, silent_s, due_s = "", "", 0.0, float("inf")

    def __init__(self, scene: Scene, seconds: float, begin: Callable[[], None] = lambda: None, over: Path | None = None) -> None:
        """``over``: a file that is made when all is read."""
        self._scene, self._left, self._begin, self._over = scene, round(10 * seconds), begin, over
        self._told = False

    @property
    def waits(self) -> bool:
        return self._left > 0

    def read(self, wait_s: float) -> list[Header | Frame]:
        if not self._told:
            self._told = True
            frame = self._scene.next_frame(0.1)
            frame.key = True
            return [self._scene.board.header, frame]
        if not self._left:
            if self._over is not None:
                self._over.touch()
            time.sleep(wait_s)
            return []
        self._begin()
        self._left -= 1
        frame = self._scene.next_frame(0.1)
        frame.key = True
        return [frame]

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """Nothing."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`gputop watch` on a scene."""

    def start(stream: Made, *arguments: str) -> int:
        monkeypatch.setattr("gputop.stream.child.ChildStream", lambda *_: None)
        monkeypatch.setattr("gputop.stream.restarts.LastingStream", lambda *_: stream)
        monkeypatch.setattr("signal.signal", lambda *_: None)
        parser, _ = cli.make_parser("watch")
        try:
            return watch.run(parser.parse_args(arguments))
        finally:
            signal.set_wakeup_fd(-1)

    return start


def until_there(path: Path) -> str:
    """What a shell does until there is such a file."""
    return f"until [ -e {path} ]; do sleep 0.05; done"


def test_it_ends_with_3_at_once_when_a_job_has_starved(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Made(contended(), 20), "--fail-on", "medium", "--for", "5s") == 3
    told = capsys.readouterr().out.splitlines()
    begun, starved = (i for i, line in enumerate(told) if line[9:10] == "▲")
    assert "▲ input-bound ← cpu-contention  (" in told[begun]
    assert "starved for 5 s  (medium, cpu-contention)" in told[starved]
    assert all("GPU 0 lost" in told[i + 1] for i in (begun, starved))
    assert any(line.startswith("  fix   ") for line in told[begun:starved]), "the fix stands where it begins"


def test_a_healthy_job_ends_with_0_after_the_time(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Made(training(run=0.2), 30), "--fail-on", "low", "--for", "2s", "--duration", "1s") == 0
    assert capsys.readouterr().out == ""


def test_a_command_runs_to_its_end_and_then_it_is_3(run: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    scene = contended()

    def adopt() -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        scene.procs[100].ppid = int(children[-1])

    over = tmp_path / "over"
    script = f"{until_there(over)}; echo done; touch {tmp_path}/done"
    code = run(Made(scene, 20, adopt, over), "--fail-on", "medium", "--for", "5s", "--", "sh", "-c", script)
    told = capfd.readouterr()
    assert code == 3
    assert told.out == "done\n"
    assert "▲" in told.err
    assert "starved for 5 s" in told.err
    assert "over after" in told.err, "the job is over, and so is its incident"
    assert (tmp_path / "done").exists()


def test_with_stop_the_command_is_ended(run: Callable[..., int], capfd: pytest.CaptureFixture[str]) -> None:
    scene = contended()

    def adopt() -> None:
        scene.procs[100].ppid = int(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[-1])

    began = time.monotonic()
    assert run(Made(scene, 60, adopt), "--fail-on", "medium", "--for", "5s", "--stop", "--", "sleep", "60") == 3
    assert time.monotonic() - began < 30
    assert "starved" in capfd.readouterr().err


@pytest.mark.parametrize(("argv", "code"), [([], 1), (["--", "sh", "-c", "sleep 0.5; exit 7"], 7)])
def test_a_bug_of_the_diagnosis_ends_the_watch_with_a_line(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], argv: list[str], code: int
) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("out of luck")

    monkeypatch.setattr("gputop.diagnosis.Engine.follow", fail)
    assert run(Made(contended(), 20), "--fail-on", "low", *argv) == code
    told = capfd.readouterr()
    assert told.err.count("out of luck") == 1
    assert told.err.count("nothing is watched any more") == 1


def test_others_are_no_concern_of_a_command(run: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = f"{until_there(tmp_path / 'over')}; exit 7"
    assert run(Made(contended(), 20, over=tmp_path / "over"), "--fail-on", "low", "--for", "2s", "--", "sh", "-c", script) == 7
    assert capfd.readouterr() == ("", "")


def test_a_commands_own_failure_comes_before_3(run: Callable[..., int], tmp_path: Path) -> None:
    scene = contended()

    def adopt() -> None:
        scene.procs[100].ppid = int(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[-1])

    script = f"{until_there(tmp_path / 'over')}; exit 7"
    assert run(Made(scene, 20, adopt, tmp_path / "over"), "--fail-on", "medium", "--for", "5s", "--", "sh", "-c", script) == 7


@pytest.mark.parametrize(
    "arguments",
    [["--stop"], ["--stop", "--fail-on", "low"], ["--host", "a", "--", "true"], ["--"], ["--alert", "pager"]],
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    parsed = cli.make_parser("watch")[0].parse_args
    with pytest.raises(UserError) as told:
        watch.run(parsed(arguments))
    assert told.value.code == 2


@pytest.mark.parametrize("command", ["live", "record"])
def test_several_machines_have_no_alerts_of_their_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--host", "a,b", "--alert", "bell"]) == 2
    assert "--alert is for one machine" in capsys.readouterr().err


# whole runs


def test_on_a_demo_it_tells_alerts_and_ends_with_3(tmp_path: Path) -> None:
    with staged("cpu-contention", 60) as environ:
        flags = [
            "--fail-on",
            "low",
            "--for",
            "4s",
            "--alert-on",
            "low",
            "--alert",
            f"exec:sh -c 'cat >> {tmp_path}/told'",
            "--duration",
            "50s",
        ]
        ended = subprocess.run([*GPUTOP, *flags], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 3, ended.stderr
    assert "starved for 4 s" in ended.stdout
    first = json.loads((tmp_path / "told").read_text().splitlines()[0])
    assert first["event"] == "begin"
    assert first["trainer"] == "train.py"


def test_a_signal_reaches_the_command_whose_code_is_passed_on() -> None:
    script = "trap 'exit 9' USR1; echo ready; while :; do sleep 0.1; done"
    child = subprocess.Popen([*GPUTOP, "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGUSR1)
    assert child.wait(PATIENCE_S) == 9


def test_a_signal_ends_it_without_a_command(tmp_path: Path) -> None:
    with (tmp_path / "err").open("w") as errors:
        child = subprocess.Popen([*GPUTOP], stdout=subprocess.DEVNULL, stderr=errors)
    until(lambda: len(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()) == 1)
    until(lambda: takes(child.pid, signal.SIGTERM))
    child.terminate()
    assert child.wait(PATIENCE_S) in (0, 128 + signal.SIGTERM)
