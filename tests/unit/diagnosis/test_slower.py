"""A run that is slower than before, or than its last runs: what is told of it, when, beside what, and when nothing is said."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gputop.agents.diagnose import details
from gputop.cli import main
from gputop.diagnosis.slower import MOST_LISTED
from gputop.findings.runs import Run, arguments_of, differences
from gputop.findings.trouble import costs_time, notice
from gputop.findings.verdict import SLOWER, Incident
from gputop.model.frame import Header
from gputop.recording.writer import Writer
from gputop.stream import runs
from gputop.stream.command import Command
from gputop.stream.following import Following
from gputop.stream.kept import FindingsRecorder
from gputop.stream.reader import Loop
from gputop.stream.recorder import Recorder
from gputop.stream.stalled import Unwatched
from tests.streams import Given
from tests.unit.diagnosis.scene import Proc, Scene, training

STEPS = 20.0  # a second
DT_S = 2.0  # from one frame to the next
COPY, WAIT = "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"


def machine() -> Scene:
    """A healthy training whose steps are counted."""
    scene = training(run=0.3)
    scene.probed = True
    scene.gpus[0] |= {"name": "NVIDIA H200", "power_limit_w": 700.0, "pcie_width": 16}
    return paced(scene, STEPS)


def paced(scene: Scene, per_s: float, bytes_each: int = 1_000_000) -> Scene:
    scene.calls |= {(100, COPY): (per_s, 0.01, int(per_s * bytes_each)), (100, WAIT): (per_s, 0.3, 0)}
    return scene


def slowed(by: float = 0.2, before_s: int = 200, after_s: int = 130, happens: Callable[[Scene], object] = lambda _: None) -> Scene:
    scene = machine().play(before_s, DT_S)
    happens(scene)
    return paced(scene, STEPS / (1 + by)).play(after_s, DT_S)


def slower() -> Scene:
    """A run that is a quarter slower, without any cause."""
    return slowed(0.25)


def capped() -> Scene:
    """A run that is a quarter slower from when its GPU may draw less power."""
    return slowed(0.25, happens=lambda scene: scene.gpus[0].update(power_limit_w=400.0))


def told(scene: Scene) -> list[Incident]:
    return [one for one in scene.engine.incidents if one.cause == SLOWER]


def numbers(one: Incident) -> dict[str, float | None]:
    return {item.metric: item.value for item in one.evidence if item.metric != "changed"}


def changes(one: Incident) -> list[str]:
    return [item.text for item in one.evidence if item.metric == "changed"]


def run(step_ms: float = 50.0, start: float = 1000.0, **more: object) -> Run:
    made = Run(
        start_unix_s=start, end_unix_s=start + 600, pid=9, program="train.py", arguments="", world=1, gpu="NVIDIA H200", gpus=1, torch="",
        step_ms=step_ms, stretches_ms=[step_ms] * 4, gpu_total_s=600.0, gpu_lost_s=1.0, by_cause={}, setting={"kernel": "6.1"},
    )  # fmt: skip
    return replace(made, **more)


def test_a_run_that_is_slower_since_a_moment_is_an_incident_without_any_cause() -> None:
    scene = slowed(0.25)
    [one] = told(scene)
    assert (one.trainer_pid, one.severity, one.end_ns, one.lost_s, one.gpu) == (100, "medium", None, 0.0, None)
    assert abs(one.start_ns - scene.board.header.t_ns - 200e9) <= 5e9
    found = numbers(one)
    assert found["slower_pct"] == pytest.approx(25, abs=2)
    assert found["step_before_ms"] == pytest.approx(50, rel=0.03)
    assert found["step_ms"] == pytest.approx(62.5, rel=0.03)
    assert "25 % slower" in one.headline
    assert "since" in one.headline
    assert [victim.pid for victim in one.victims] == [100]
    assert not costs_time(one)
    assert scene.engine.explain().verdict.cause == "none"
    assert notice(scene.engine.incidents, scene.engine.verdict) == (one.headline, one.severity)


def test_a_second_slowdown_is_told_beside_the_first_which_is_told_again_when_the_second_ends() -> None:
    scene = paced(slowed(0.2, after_s=400), STEPS / 1.5).play(200, DT_S)
    first, second = told(scene)
    assert numbers(second)["slower_pct"] == pytest.approx(25, abs=2)
    assert abs(second.start_ns - scene.board.header.t_ns - 600e9) <= 5e9
    assert (first.end_ns, second.end_ns) == (second.start_ns, None)
    again = told(paced(scene, STEPS / 1.2).play(120, DT_S))[2:]
    assert second.end_ns is not None
    assert [abs(one.start_ns - first.start_ns) <= 5e9 and one.end_ns is None for one in again] == [True]


def test_it_ends_when_the_steps_come_as_before() -> None:
    scene = paced(slowed(0.2), STEPS).play(100, DT_S)
    [one] = told(scene)
    assert one.end_ns is not None
    assert 330e9 <= one.end_ns - scene.board.header.t_ns <= 420e9


@pytest.mark.parametrize("make", [
    lambda: machine().play(330, DT_S),
    lambda: slowed(-0.2),
    lambda: slowed(0.01),
    lambda: paced(machine().play(200, DT_S), STEPS / 1.3, bytes_each=1_300_000).play(130, DT_S),
    lambda: slowed(0.3, after_s=40),
])  # fmt: skip
def test_nothing_is_told_of_a_steady_run_a_faster_one_more_work_or_a_moment(make: Callable[[], Scene]) -> None:
    assert told(make()) == []


def test_a_run_is_told_slower_than_its_last_ones_from_three_on() -> None:
    past = [run(ms, 1000.0 * i) for i, ms in enumerate((49.9, 50.1, 50.0, 50.2, 49.8))]
    scene = machine()
    scene.engine.slowdowns.past = past
    [one] = told(paced(scene, STEPS / 1.18).play(200, DT_S))
    assert "18 % slower" in one.headline
    assert "last 5 runs" in one.headline
    assert "earlier runs" not in one.detail, "what the last stretch showed stands while the next is short"
    assert numbers(one)["usual_step_ms"] == pytest.approx(50, rel=0.01)
    few = machine()
    few.engine.slowdowns.past = past[:2]
    assert told(paced(few, STEPS / 1.18).play(200, DT_S)) == []


@pytest.mark.parametrize("other", [
    {"gpu": "NVIDIA A100"}, {"user": "bob"}, {"world": 8}, {"arguments": "batch=64"}, {"program": "other.py"}, {"gpus": 2},
    {"stretches_ms": [None, None, 50.0]}, {"start_unix_s": 4e9, "end_unix_s": 4e9 + 5},
])  # fmt: skip
def test_it_is_never_compared_with_runs_of_another_kind_or_time(other: dict[str, object]) -> None:
    scene = machine()
    scene.engine.slowdowns.past = [run(40.0, 1000.0 * i, **other) for i in range(6)]
    assert told(scene.play(200, DT_S)) == []


def test_runs_whose_steps_copy_other_bytes_did_other_work() -> None:
    """A batch size in a file that was edited shows in no argument."""
    for bytes_each, is_told in ((1_000_000, True), (1_050_000, False), (1_180_000, False), (500_000, False)):
        scene = machine()
        scene.engine.slowdowns.past = [run(50.0, 1000.0 * i, stretches_bytes=[1e6] * 4) for i in range(4)]
        assert bool(told(paced(scene, STEPS / 1.18, bytes_each).play(200, DT_S))) == is_told, bytes_each
        [row] = scene.engine.runs()[1]
        assert row.stretches_bytes[0] == pytest.approx(bytes_each, rel=0.01)


def test_another_torch_is_named() -> None:
    scene = machine()
    scene.engine.slowdowns.past = [run(40.0, 1000.0 * i, torch="2.4.1") for i in range(4)]
    [one] = told(scene.play(200, DT_S))
    assert "2.4.1" in one.detail


def test_both_are_told_as_one_with_the_moment_and_the_runs() -> None:
    scene = machine()
    scene.engine.slowdowns.past = [run(50.0, 1000.0 * i) for i in range(5)]
    paced(scene.play(200, DT_S), STEPS / 1.25).play(130, DT_S)
    [one] = told(scene)
    assert "last 5 runs, since" in one.headline


def test_what_changed_then_is_listed_and_never_called_the_cause() -> None:
    def cap(scene: Scene) -> None:
        scene.gpus[0]["power_limit_w"] = 400.0
        scene.add(Proc(900, comm="backup.sh", cmdline=["backup.sh"], run=2.0))

    [one] = told(slowed(0.2, happens=cap))
    listed = changes(one)
    assert any("GPU 0 may draw 400 W instead of 700" in text for text in listed)
    assert any("backup.sh (900) began to take" in text for text in listed)
    assert one.culprits == []
    assert [changes(other) for other in told(slowed(0.2))] == [[]]


def test_an_agent_is_told_what_changed_too() -> None:
    [episode] = [one for one in capped().engine.explain().incidents if one.cause == SLOWER]
    assert any("GPU 0 may draw 400 W" in line for line in details(episode)["evidence_untrusted"])


def test_of_two_hundred_changes_of_that_minute_those_are_listed_that_explain_most() -> None:
    def much(scene: Scene) -> None:
        scene.gpus[0] |= {"power_limit_w": 400.0, "util_pct": 60.0}
        for pid in (101, 102):
            scene.procs[pid].wait = 0.7
        scene.add(Proc(900, comm="stress", cmdline=["stress"], run=30.0))
        for i in range(200):
            scene.add(Proc(1000 + i, comm=f"job{i}", cmdline=[f"job{i}"], run=0.1, write_bytes=80_000_000))

    [one] = told(slowed(0.4, happens=much))
    listed = changes(one)
    assert len(listed) == MOST_LISTED
    assert "stress (900) began" in listed[0], listed
    assert numbers(one)["changed_besides"] == pytest.approx(202 - MOST_LISTED, abs=2)


def test_a_change_long_before_is_not_listed() -> None:
    scene = machine().play(60, DT_S)
    scene.gpus[0]["power_limit_w"] = 400.0
    paced(scene.play(140, DT_S), STEPS / 1.3).play(130, DT_S)
    [one] = told(scene)
    assert changes(one) == []


def test_what_a_change_could_cause_comes_first_where_the_ledger_rose() -> None:
    """GPUs rest while a stranger takes the workers' CPUs: that has a mechanism, a power limit has none for it."""
    def steal(scene: Scene) -> None:
        scene.gpus[0] |= {"power_limit_w": 650.0, "util_pct": 60.0}
        for pid in (101, 102):
            scene.procs[pid].wait = 0.7
        scene.add(Proc(900, comm="stress", cmdline=["stress"], run=3.0))

    [one] = told(slowed(0.4, happens=steal))
    listed = changes(one)
    assert listed, one.evidence
    assert {"stress" in text for text in listed if "took" in text and "of what was lost more" in text} <= {True}


def test_what_is_another_than_in_its_last_sound_run_is_listed_by_how_much_of_the_rise_it_could_have_caused() -> None:
    """The last run was slower itself, so that nothing has changed since then."""
    scene = machine()
    scene.board.header = replace(scene.board.header, kernel="6.8")
    sound, slow = {"kernel": "6.1", "CPUs that others take": "0"}, {"kernel": "6.8", "CPUs that others take": "3"}
    past = [run(50.0, 1000.0 * i, setting=sound) for i in range(4)]
    scene.engine.slowdowns.past = [*past, run(55.0, 9000.0, setting=slow, slower_pct=10.0)]
    scene.gpus[0]["util_pct"] = 60.0
    for pid in (101, 102):
        scene.procs[pid].wait = 0.7
    [one] = told(paced(scene.add(Proc(900, comm="stress", cmdline=["stress"], run=3.0)), STEPS / 1.4).play(200, DT_S))
    first, second = changes(one)
    assert "that was not slower: CPUs that others take 3 instead of 0; causes that it can have took 100 % of what was lost more" in first
    assert "kernel 6.8 instead of 6.1; nothing that it could cause took more" in second
    assert "cpu-contention takes" in one.detail


def test_a_run_that_ends_is_a_row_and_so_is_one_that_lasts() -> None:
    scene = slowed(0.2)
    [lasting] = scene.engine.runs()[1]
    assert (lasting.program, lasting.gpu, lasting.gpus, lasting.world) == ("train.py", "NVIDIA H200", 1, 1)
    assert lasting.step_ms == pytest.approx(50, rel=0.03)
    assert lasting.slower_pct == pytest.approx(20, abs=2)
    assert lasting.since_unix_s is not None
    scene.drop(100, 101, 102).play(12, DT_S)
    [ended], rest = scene.engine.runs()
    assert rest == []
    assert ended.stretches_ms[0] == pytest.approx(50, rel=0.03)
    assert ended.gpu_total_s == pytest.approx(330, abs=5)
    [one] = told(scene)
    assert one.end_ns is not None


ARGUMENTS = [
    ("--batch-size 64 --seed 3 --output-dir /tmp/x", "batch-size=64"),
    ("--seed=4 --batch_size=64", "batch-size=64"),
    ("--config conf/a.yaml --run-name r-2026-11-29", "config=a.yaml"),
    ("model=vit data.batch=8 hydra.run.dir=/x seed=1", "data.batch=8 model=vit"),
    ("--amp --resume last.ckpt --lr 3e-4 --api-key sk-123", "amp"),
    ("--data-path /mnt/9f86d081884c/imagenet", "data-path=imagenet"),
    ("train", "train"),
    ("--lora-rank 8 --num-classes 10 --output-dim 4 --local-attention", "local-attention lora-rank=8 num-classes=10 output-dim=4"),
    ("--key-size 2 --api-key 3 -n 5", "key-size=2 n=5"),
    ("--local-rank 0 --max_train_steps 100 --num-epochs 3 --steps 9 --nodelist a1 --device cuda:1 -o x", ""),
    ("--per_device_train_batch_size 4 --device 1", "per-device-train-batch-size=4"),
    ("--learningRate 1 --batchSize 8 --outputDir x", "batch-size=8"),
    ("--verbose a.yaml --quiet 1", "a.yaml"),
    ("experiment=vit --experiment first exp.name=b", "experiment=vit"),
    ("--max-tokens 16777216 --data 20261130 --cache /x/run_20261130_120000", "cache=run_# data=# max-tokens=16777216"),
    ("--data /tmp/tmpab12cd_z --init-method tcp://a:1 --dist-url b:2 --uuid c", "data=#"),
    ("--model 3f2b8c1e-1111-4222-8333-abcdefabcdef -- x", "model=# x"),
]


@pytest.mark.parametrize(("words", "kept"), ARGUMENTS)
def test_arguments_that_matter(words: str, kept: str) -> None:
    assert arguments_of(words.split()) == kept


def test_arguments_are_bounded_and_alike_for_alike_ones() -> None:
    many = [f"--layer-{i}=x{'y' * 40}" for i in range(60)]
    assert len(arguments_of(many)) <= 256
    assert arguments_of(many) == arguments_of(list(reversed(many)))
    assert arguments_of(many) != arguments_of([*many[:-1], "--layer-59=other"])


def test_settings_that_differ_are_named_and_unknown_ones_are_not() -> None:
    then, now = run(setting={"kernel": "6.1", "driver": "550"}, torch="2.4"), run(setting={"kernel": "6.8", "CPUs": "8"}, torch="2.5")
    assert differences(now, then) == [("torch", "2.4", "2.5"), ("kernel", "6.1", "6.8")]
    assert differences(now, replace(then, torch="", setting={})) == []
    disks = [run(setting={"files on /data": str(files)}) for files in (100_000, 109_000, 120_000)]
    assert [len(differences(other, disks[0])) for other in disks] == [0, 0, 1]


def test_runs_are_kept_beside_the_recording_and_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, header = tmp_path / "node.2.gputop", Header(host="n", boot_id="b", unix_ns=10**18, t_ns=0)
    following = Following()
    following.restate(header)
    writer = Writer(str(path), header, FindingsRecorder(following.engine).tell)
    scene = machine()
    for _ in range(60):
        frame = replace(scene.next_frame(DT_S), key=True, ticks=1)
        following.take(frame)
        writer.add(frame)
    writer.close()
    kept = runs.KeptRuns(str(path), 30 * 86_400)
    assert kept.past == []
    kept.end(following.engine)
    kept.end(following.engine)
    assert kept.path == str(tmp_path / "node.runs.jsonl")
    with open(kept.path, "ab") as file:
        file.write(b'{"broken"\n' + msgspec.json.encode(run(51.0, 999.0 * 10**6, program="a\x1b[2J")) + b"\n")
    [other, own] = runs.read(kept.path)
    assert own.program == "train.py"
    assert "\x1b" not in other.program
    assert main(["query", str(path), "SELECT program, step_ms, gpu FROM runs ORDER BY end_unix_s", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2
    again = runs.KeptRuns(str(tmp_path / "node.gputop"), 3600)
    assert [one.program for one in again.past] == ["train.py"], "the other one ended too long before"
    assert [one.program for one in runs.read(kept.path)] == ["train.py"]


def test_a_kept_run_survives_a_line_that_was_cut_a_clock_that_ran_ahead_and_no_link_is_followed(tmp_path: Path) -> None:
    scene, following = machine(), Following()
    following.restate(scene.board.header)
    for _ in range(20):
        following.take(replace(scene.next_frame(DT_S), key=True, ticks=1))
    ahead, last = run(program="ahead"), run(program="last")
    ahead, last = replace(ahead, end_unix_s=4e9), replace(last, end_unix_s=time.time() - 9.0)
    place = tmp_path / "node.runs.jsonl"
    place.write_bytes(msgspec.json.encode(ahead) + b"\n" + msgspec.json.encode(replace(last, pid=7)) + b'\n{"start_unix')
    kept = runs.KeptRuns(str(tmp_path / "node.gputop"), 3600.0)
    assert {one.program for one in kept.past} == {"ahead", "last"}
    kept.end(following.engine)
    assert len(runs.read(str(place))) == 3
    for make in (lambda: os.symlink(tmp_path / "another's", place), lambda: os.mkfifo(place)):
        place.unlink()
        make()
        kept = runs.KeptRuns(str(tmp_path / "node.gputop"), 3600.0)
        kept.end(following.engine)
        assert "runs are not kept" in kept.problem
    assert not (tmp_path / "another's").exists()


def recorded(folder: Path, number: int, per_s: float, seconds: int) -> str:
    """A start of ``record --keep`` beside the earlier ones, in which a run makes so many steps a second."""
    scene = paced(machine(), per_s)
    header = replace(scene.board.header, host="n", boot_id=str(number), unix_ns=scene.board.header.unix_ns + number * 10**13)
    frames = [replace(scene.next_frame(DT_S), key=i % 10 == 0, ticks=1) for i in range(int(seconds / DT_S))]
    judging = Unwatched(None)
    recorder = Recorder(judging, Command([]), path=str(folder / "node.gputop"), max_bytes=1 << 30, keep_s=30 * 86_400.0)
    with Loop(Given([header, *frames]), judging, recorder) as loop:
        loop.run()
    return recorder.path


def test_a_recorder_keeps_each_run_and_finds_the_one_that_is_slower_and_so_does_who_explains_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        recorded(tmp_path, number, STEPS, 150)
    last = recorded(tmp_path, 4, STEPS / 1.2, 200)
    kept = runs.read(str(tmp_path / "node.runs.jsonl"))
    assert [one.slower_pct is None for one in kept] == [True] * 4 + [False]
    capsys.readouterr()
    for flags in ((), ("--fine",)):
        assert main(["explain", last, "--json", *flags]) == 0
        found = json.loads(capsys.readouterr().out)
        [one] = [one for one in found["incidents"] if one["cause"] == SLOWER]
        assert "last 4 runs" in one["headline"]
        assert found["runs"][0]["slower_pct"] == pytest.approx(20, abs=2)
    assert main(["query", last, "SELECT count(*) n, max(slower_pct) most FROM runs", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["n"] == 5
    assert main(["report", last, "--to", "md"]) == 0
    assert "1 of 1 run" in capsys.readouterr().out
    assert main(["report", last, "--to", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1


def test_no_file_and_no_recording_are_no_runs(tmp_path: Path) -> None:
    assert runs.read(str(tmp_path / "none.runs.jsonl")) == []
    (tmp_path / "folder.runs.jsonl").mkdir()
    assert runs.read(str(tmp_path / "folder.runs.jsonl")) == []
