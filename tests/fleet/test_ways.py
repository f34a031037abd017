"""Ways to a machine: the commands that they make, and streams that come as text."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop.fleet.as_text import FromLines, to_lines
from gputop.fleet.asking import NodeAnswer
from gputop.fleet.link import UP
from gputop.fleet.links import Links
from gputop.fleet.targets import targets
from gputop.model.frame import Frame, Header
from gputop.recording.reader import Recording
from gputop.stream.playback import PlayedClock, read_clock
from gputop.stream.played import PlayedStream
from gputop.stream.reach import WAYS, Target
from gputop.system.errors import UserError
from tests.fleet.fakes import wait_for
from tests.wait import until

SAMPLE = str(Path(__file__).parent.parent.parent / "gputop" / "data" / "sample.gputop")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@settings(deadline=None)
@given(st.binary(max_size=5000), st.lists(st.integers(1, 900), max_size=20))
def test_a_stream_comes_whole_through_lines_of_text(data: bytes, cuts: list[int]) -> None:
    text = b"slurmstepd: warning\n" + b"".join(b"12: " + line + b"\n" for line in to_lines(data).splitlines()) + b"gp !!\n"
    assert max(map(len, text.splitlines())) < 900
    reader, found = FromLines(), b""
    for size in cuts:
        found += reader.feed(text[:size])
        text = text[size:]
    assert found + reader.feed(text) == data


def test_ssh_asks_nobody_and_gives_up_in_time() -> None:
    argv = Target("ana@node1").argv("collect", "--summary")
    assert argv[0] == "ssh"
    assert {"-oBatchMode=yes", "-oConnectTimeout=5", "-oServerAliveInterval=2", "-oServerAliveCountMax=3"} < set(argv)
    assert argv[-4:] == ["ana@node1", "gputop", "collect", "--summary"]


def test_a_job_is_reached_by_steps_beside_its_own(programs: Path) -> None:
    program(programs, "squeue", f'echo "$@" > {programs}/asked; echo "node[01-02,05]"')
    found = targets(job="4711")
    assert [(one.host, one.way, one.within) for one in found] == [(f"node{n}", "srun", "4711") for n in ("01", "02", "05")]
    assert "--jobs=4711" in (programs / "asked").read_text()
    argv = found[0].argv("collect")
    assert argv[:2] == ["srun", "--jobid=4711"]
    assert {"--overlap", "--nodelist=node01"} < set(argv)
    assert [one.way for one in targets(job="4711", way="ssh")] == ["ssh"] * 3


def test_the_job_that_this_runs_in(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs, "squeue", "echo node7")
    with pytest.raises(UserError, match="needs a number"):
        targets(job="")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert [(one.host, one.within) for one in targets(job="")] == [("node7", "12")]


def test_pods_are_found_by_their_labels(programs: Path) -> None:
    program(programs, "kubectl", f'echo "$@" > {programs}/asked; printf "pod/train-0\\npod/train-1\\n"')
    found = targets(pods="app=train", namespace="ml")
    assert [one.argv("collect") for one in found] == [
        ["kubectl", "exec", "--stdin", "--namespace=ml", f"train-{i}", "--", "gputop", "collect"] for i in (0, 1)
    ]
    assert "--selector=app=train" in (programs / "asked").read_text()


REFUSED = [
    ({"job": "-oops"}, "no number of a job"),
    ({"job": "1; reboot"}, "no number of a job"),
    ({"pods": "--all"}, "no selector"),
    ({"pods": "app=a", "namespace": "--kubeconfig=x"}, "no name of a namespace"),
    ({"job": "13"}, "squeue: slurm_load_jobs error: Invalid job id"),
    ({"pods": "app=none"}, "no pod with app=none runs"),
]


@pytest.mark.parametrize(("asked", "why"), REFUSED)
def test_what_is_not_to_be_had_is_told_in_a_line(asked: dict[str, str], why: str, programs: Path) -> None:
    program(programs, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    program(programs, "kubectl", "exit 0")
    with pytest.raises(UserError) as refused:
        targets(**asked)  # type: ignore[arg-type]
    assert why in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_step_writes_lines(programs: Path) -> None:
    """srun's output is text; the node writes it so by itself."""
    import sys

    program(programs, "srun", f'until [ "$1" = gputop ]; do shift; done; shift; exec {sys.executable} -m gputop "$@"')
    links = Links([Target("node1", "srun", "4711")], flags=["--no-ebpf"])
    try:
        wait_for(links, "node1", lambda node: node.state == UP and node.summary.node.cpu is not None)
    finally:
        links.close()


def test_a_recording_is_played_as_a_node_of_now() -> None:
    links = Links([Target("past", "file", SAMPLE)])
    try:
        node = wait_for(links, "past", lambda node: node.state == UP and node.summary.ranks)
        assert node.skew_s == pytest.approx(0.0, abs=1.0)
        links.ask("past", "frames")
        taken: list[object] = []
        links.tap("past", taken.append)
        until(lambda: taken)
        asked = {links.ask("past", "stacks", pids=[os.getpid()]), links.ask("past", "nccl")}
        found: list[NodeAnswer] = []
        until(lambda: found.extend(one for _, one in links.answers() if one.id in asked) or len(found) == 2)
        assert {one.error for one in found} == {"it is a recording: its processes have ended"}
    finally:
        links.close()


def begin_of(path: str) -> float:
    with Recording(path) as recording:
        return recording.unix_ns_of(recording.start_ns) / 1e9


def test_a_recording_by_a_clock_keeps_its_times_stands_and_goes_on() -> None:
    began_s = begin_of(SAMPLE)
    clock = PlayedClock(time.time(), began_s + 20.0, 0.0)
    target = Target("past", "file", f"{clock.text}:{SAMPLE}")
    links = Links([target])
    try:
        node = wait_for(links, "past", lambda node: node.state == UP and node.summary.unix_ns / 1e9 > began_s + 18.8)
        assert node.skew_s is None
        assert node.summary.unix_ns / 1e9 <= began_s + 20.0
        until(lambda: links.poll()["past"].age_s > 0.5)
        until(lambda: links.poll()["past"].age_s < 0.5)  # it says so again while it stands
        assert links.poll()["past"].summary.unix_ns == node.summary.unix_ns
        links.play([target], PlayedClock(time.time(), began_s + 20.0, 8.0))
        wait_for(links, "past", lambda node: node.summary.unix_ns / 1e9 > began_s + 28.0)
    finally:
        links.close()


def test_frames_come_by_the_clock_as_it_is_changed() -> None:
    began_s = begin_of(SAMPLE)
    stream = PlayedStream(SAMPLE, clock=PlayedClock(time.time(), began_s + 5.0, 0.0))

    def newest_s() -> float:
        for item in stream.read(0.05) or ():
            if isinstance(item, Frame):
                came.append(header.unix_ns_of(item.t_ns) / 1e9 - began_s)
        return came[-1] if came else 0.0

    try:
        came = list[float]()
        (header,) = (item for item in stream.read(0.0) or () if isinstance(item, Header))
        until(lambda: newest_s() > 4.8)
        assert newest_s() <= 5.0
        stream.play(PlayedClock(time.time(), began_s + 5.0, 16.0))
        until(lambda: newest_s() > 12.0)
        stream.play(PlayedClock(time.time(), began_s + 61.5, 0.0))  # it ends at 61 s
        until(lambda: newest_s() > 60.5)
        assert stream.read(0.0) is not None, "its last moment stays while the clock stands"
        assert came == sorted(came)
        stream.play(PlayedClock(time.time(), began_s + 70.0, 1.0))
        until(lambda: stream.read(0.0) is None)
    finally:
        stream.close()


@pytest.mark.parametrize("text", ["1,2", "1,2,65", "-1,2,1", "1,2,nan", "a,b,c", ""])
def test_another_text_is_no_clock(text: str) -> None:
    clock = PlayedClock(1764374400.25, 1700000000.125, 0.25)
    assert read_clock(clock.text) == clock
    with pytest.raises(ValueError, match="is no clock"):
        read_clock(text)


def test_a_clock_stands_until_its_moment_and_then_runs() -> None:
    clock = PlayedClock(100.0, 5000.0, 4.0)
    assert [clock.at(wall_s) for wall_s in (99.0, 100.0, 102.5)] == [5000.0, 5000.0, 5010.0]
    assert (clock.wait_s(5010.0, 100.5), clock.wait_s(4000.0, 0.0)) == (2.0, 0.0)
    assert PlayedClock(100.0, 5000.0, 0.0).wait_s(5000.1, 900.0) is None


def test_every_way_has_its_file() -> None:
    assert {name for name in WAYS if Target("node1", name, "1").argv("collect")} == set(WAYS)


@pytest.mark.parametrize(("into_s", "now"), [(3600.0, "12:30"), (-3600.0, "10:30"), (86_400.0, "11:30")])
def test_a_recording_of_other_hours_says_which_it_covers(into_s: float, now: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    with Recording(SAMPLE) as recording:
        begin_s = recording.unix_ns_of(recording.start_ns) / 1e9
    monkeypatch.setattr(time, "localtime", lambda unix_s: time.gmtime(unix_s - begin_s + 86_400 * 20_000 + 11.5 * 3600 + 30))
    with pytest.raises(UserError) as told:
        PlayedStream(SAMPLE, time.time() - begin_s - into_s)
    assert "its recording covers" in str(told.value)
    assert "11:30–" in str(told.value)
    assert str(told.value).endswith(now)
