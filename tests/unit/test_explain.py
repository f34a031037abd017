"""`explain` and `diff` over a recording made by hand: the contract, the words, the exit codes."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputop.cli import main
from gputop.findings.explanation import Booked, Explanation, from_elsewhere
from gputop.findings.text import diff_lines, explain_lines
from gputop.findings.verdict import page_of
from gputop.model.frame import Names
from gputop.recording.format import pack_end, pack_frames, pack_header
from gputop.system.colour import painted
from tests.tui import scene
from tests.unit.diagnosis.causes import starved
from tests.unit.diagnosis.scene import ON_CPU, Scene, training


def record(path: Path, starving: bool, ticks: int = 200) -> str:
    """A stream on disk, as `gputop collect > FILE` writes it."""
    header, *frames = scene.frames(ticks, starving)
    stream = pack_header(header) + b"".join(pack_frames([frame]) for frame in frames)  # type: ignore[arg-type, list-item]
    path.write_bytes(stream + pack_end(frames[-1].t_ns))
    return str(path)


@pytest.fixture
def starving(tmp_path: Path) -> str:
    return record(tmp_path / "before.gputop", starving=True)


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    return record(tmp_path / "after.gputop", starving=False)


def explain(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    assert main(["explain", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_json_keeps_the_contract(starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = explain(capsys, starving)
    assert found["schema"] == 1
    verdict, ledger, incidents = found["verdict"], found["ledger"], found["incidents"]
    assert isinstance(verdict, dict)
    assert isinstance(ledger, dict)
    assert isinstance(incidents, list)
    assert (verdict["symptom"], verdict["cause"]) != ("healthy", "none")
    assert abs(sum(ledger["by_cause"].values()) - ledger["gpu_lost_s"]) < 0.01
    keys = {"id", "start_unix_s", "end_unix_s", "symptom", "cause", "severity", "confidence", "trainer_pid", "victims"}
    keys |= {"culprits", "evidence", "fixes"}
    assert incidents
    assert all(keys <= incident.keys() for incident in incidents)


def test_trainers_are_told_with_whose_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = starved(run=0.3, wait=0.7, looks=[ON_CPU])
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "bert-0", "MASTER_PORT": "29500", "SLURM_JOB_ID": "4711"}
    scene.procs[100].info |= {"user": "ana", "cgroup": f"/docker/{'3f2a' * 16}", "env": env, "names": Names(pod="b\x1b[2J", namespace="ml")}
    frames = [scene.next_frame(0.2) for _ in range(60)]
    path = tmp_path / "job.gputop"
    path.write_bytes(pack_header(scene.board.header) + b"".join(pack_frames([frame]) for frame in frames))
    [trainer] = explain(capsys, str(path))["trainers"]  # type: ignore[misc]
    assert (trainer["pid"], trainer["rank"], trainer["name"]) == (100, 0, "train.py rank 0")
    ledger = explain(capsys, str(path))["ledger"]
    assert trainer["ledger"]["by_cause"] == pytest.approx(ledger["by_cause"], abs=0.002), "one trainer: the node's is its"
    assert trainer["ledger"]["gpu_lost_s"] == pytest.approx(ledger["gpu_lost_s"], abs=0.002)
    assert main(["query", str(path), "SELECT trainer_pid, label, rank, user, slurm_job_id, cause, lost_s > 0 FROM ledger", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)[0].values())[:5] == [100, "train.py rank 0", 0, "ana", "4711"]
    whose = trainer["identity"]
    assert (whose["container_runtime"], whose["slurm_job_id"], whose["training"]) == ("Docker", "4711", "bert-0:29500 × 2")
    assert whose["missing"]["slurm_step"]
    assert main(["explain", str(path)]) == 0
    assert "train.py rank 0 (100): ml/b·[2J, training bert-0:29500 × 2, user ana" in capsys.readouterr().out


def test_a_cause_leads_to_its_page(starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = explain(capsys, starving)
    page = page_of(found["verdict"]["cause"])  # type: ignore[index, call-overload]
    assert page.endswith("/causes/cpu-contention/")
    assert found["verdict"]["help_url"] == found["incidents"][0]["help_url"] == page  # type: ignore[index, call-overload]
    assert main(["explain", starving]) == 0
    assert page in capsys.readouterr().out


def test_the_page_of_a_foreign_explanation_is_our_own(starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = msgspec.convert(explain(capsys, starving), Explanation)
    lies = [msgspec.structs.replace(one, help_url="https://lies.example/") for one in found.incidents]
    foreign = msgspec.structs.replace(
        found, verdict=msgspec.structs.replace(found.verdict, help_url="https://lies.example/"), incidents=lies
    )
    text = "\n".join(painted(line, on=False) for line in explain_lines(from_elsewhere(foreign)))
    assert "lies.example" not in text
    assert page_of(found.verdict.cause) in text
    assert {one.help_url for one in from_elsewhere(foreign).incidents} == {page_of("cpu-contention")}


@pytest.mark.parametrize("cause", ["none", "of-a-plug-in"])
def test_what_has_no_page_leads_nowhere(cause: str, starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert page_of(cause) == ""
    found = msgspec.convert(explain(capsys, starving), Explanation)
    plain = msgspec.structs.replace(found, verdict=msgspec.structs.replace(found.verdict, help_url=page_of(cause)))
    assert "causes/" not in "\n".join(painted(line, on=False) for line in explain_lines(plain))


def probed(path: Path, made: Scene, steps_per_s: float, gpu_wait: float) -> str:
    """The same of a training whose CUDA calls are probed."""
    made.probed, copies = True, (steps_per_s, 0.01, 10_000_000)
    made.calls = {(100, "cuMemcpyHtoDAsync_v2"): copies, (100, "cuStreamSynchronize"): (steps_per_s, gpu_wait, 0)}
    frames = [made.next_frame(0.2) for _ in range(60)]
    path.write_bytes(pack_header(made.board.header) + b"".join(pack_frames([frame]) for frame in frames))
    return str(path)


def test_the_step_and_the_workers_time_are_told_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = probed(tmp_path / "before.gputop", starved(run=0.3, wait=0.7, looks=[ON_CPU]), 5.0, 0.3)
    after = probed(tmp_path / "after.gputop", training(util=95.0, run=0.1), 10.0, 0.9)
    found, well = explain(capsys, before), explain(capsys, after)
    verdict, workers = found["verdict"], found["workers"]
    assert isinstance(verdict, dict)
    assert isinstance(workers, dict)
    assert sum(workers.values()) == pytest.approx(1.0, abs=0.001)
    assert verdict["steps_per_s"] == pytest.approx(5.0, rel=0.05)
    assert sum(verdict["step_ms"].values()) == pytest.approx(1000 / verdict["steps_per_s"], rel=0.01)
    assert main(["explain", before]) == 0
    first = next(iter(workers))
    words = capsys.readouterr().out
    assert f"{verdict['steps_per_s']:.2f} steps a second" in words
    assert f"workers: {first} {100 * workers[first]:.0f}%" in words
    assert main(["diff", before, after]) == 0
    rows = capsys.readouterr().out
    assert f"  {first:<28}{100 * workers[first]:>10.1f} %{100 * well['workers'].get(first, 0.0):>10.1f} %" in rows  # type: ignore[attr-defined]
    assert "  input wait" in rows


def test_bunches_of_batches_are_no_steps(starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its GPU works by the rhythm in which several workers deliver."""
    verdict = explain(capsys, starving)["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["steps_per_s"], verdict["step_ms"]) == (None, None)


def test_only_the_stretch_that_is_asked_for(starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole, part = explain(capsys, starving), explain(capsys, starving, "--since", "8")
    totals = [found["ledger"]["gpu_total_s"] for found in (whole, part)]  # type: ignore[index]
    assert totals[1] < totals[0]


@pytest.mark.parametrize("flags", [["--from", "1000000000"], ["--until", "0"]])
def test_a_stretch_in_which_nothing_was_recorded_is_said(flags: list[str], starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", starving, *flags]) == 2
    assert "nothing was recorded in that stretch: this recording goes from " in capsys.readouterr().err


@pytest.mark.parametrize("until", ["2", "3"])
def test_a_stretch_that_ends_before_it_begins_is_said(until: str, starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", starving, "--from", "3", "--until", until]) == 2
    assert f"--until {until} is not after --from 3: this recording goes from " in capsys.readouterr().err


@pytest.mark.parametrize("clock", ["25:00", "03:60", "03:12:60", "nan"])
def test_what_is_no_clock_time_is_said(clock: str, starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", starving, "--from", clock]) == 2
    assert f"{clock!r} is no time" in capsys.readouterr().err


def test_fail_on_is_for_scripts(starving: str, healthy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", starving, "--fail-on", "low"]) == 3
    assert main(["explain", healthy, "--fail-on", "low"]) == 0
    assert "starving" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [((), 19.9), (("--until", "12.3s"), 12.3), (("--from", "3.2s", "--until", "9.9s"), 6.7), (("--last", "7.7"), 7.7)],
)
def test_every_second_that_is_asked_for_is_counted(
    starving: str, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], seconds: float
):
    found = explain(capsys, starving, *flags)
    assert found["ledger"]["gpu_total_s"] == pytest.approx(seconds, abs=0.11)  # type: ignore[index]


def test_what_an_incident_costs_to_the_end_is_counted_to_the_end(starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it stands from the start on there are not two sums."""
    found = explain(capsys, starving, "--until", "12.3s")
    ledger, [incident] = found["ledger"], found["incidents"]  # type: ignore[misc]
    assert incident["gpu_lost_s"] == pytest.approx(ledger["by_cause"][incident["cause"]], abs=0.05)
    assert f" of {ledger['gpu_total_s']:.1f} s: " in incident["headline"]


def test_text_says_verdict_ledger_and_plot(starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", starving, "--plot"]) == 0
    text = capsys.readouterr().out
    assert "GPU time lost" in text
    assert "GPU utilization" in text
    assert "\x1b" not in text


def test_what_has_not_ended_went_on_to_the_end_or_goes_on_while_the_file_grows(starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    for locked, said in ((False, "to the end"), (True, "still going on")):
        with open(starving, "rb") as file:
            if locked:
                fcntl.flock(file, fcntl.LOCK_EX)
            assert main(["explain", starving]) == 0
        assert f" {said}  ▲ input-bound" in capsys.readouterr().out


def test_the_recording_that_comes_along_is_explained(starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(capsys, "--sample")["verdict"]["cause"] == "cpu-contention"  # type: ignore[index]
    assert main(["explain", "--sample", starving]) == 2
    assert "name a FILE or --sample" in capsys.readouterr().err


def test_standard_input_is_no_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "-"]) == 1
    assert "gputop replay -" in capsys.readouterr().err


def test_diff_tells_nothing_of_what_is_nothing(starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (explain(capsys, starving) for _ in range(2))
    for found, shares in ((before, (1e-4, 0.1004)), (after, (0.0, 0.1))):
        ledger: Any = found["ledger"]
        ledger["by_cause"] |= {cause: share * ledger["gpu_total_s"] for cause, share in zip(("disk-io", "network-io"), shares, strict=True)}
    told = diff_lines(("a", "b"), *(msgspec.convert(found, Explanation) for found in (before, after)))
    lines = [painted(line, on=False) for line in told]
    assert not [line for line in lines if "disk-io" in line or "-0.0" in line]
    assert next(line.split() for line in lines if "network-io" in line) == ["network-io", "10.0", "%", "10.0", "%", "+0.0"]


def test_diff_shows_what_the_fix_changed(starving: str, healthy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", starving, healthy]) == 0
    text = capsys.readouterr().out
    assert "share of GPU time lost" in text
    assert "incidents" in text


@pytest.mark.parametrize("what", ["missing", "directory", "noise"])
def test_bad_files_are_one_line(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / what
    if what == "directory":
        path.mkdir()
    elif what == "noise":
        path.write_bytes(b"no recording at all" * 9000)
    assert main(["explain", str(path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_shares_are_absent_without_a_gpu() -> None:
    ledger = Booked(None, None, {}, [], None)
    assert ledger.lost_share is None
    assert ledger.cause_shares == {}


@pytest.mark.parametrize(("until", "told"), [("1.5", True), ("4", False)])
def test_a_stretch_that_is_too_short_to_judge_is_told(starving: str, until: str, told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", starving, "--from", "1", "--until", until]) == 0
    assert ("0.5 s are too short to judge" in capsys.readouterr().err) == told
    assert main(["explain", starving, "--from", "1", "--until", until, "--json"]) == 0
    assert ("0.5 s are too short to judge" in capsys.readouterr().err) == told


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--from, --until: only with a FILE"),
        (["FILE", "--gpu", "0", "--interval", "1", "--no-ebpf", "--sudo"], "--gpu, --interval, --no-ebpf, --sudo: only without a FILE"),
        (["FILE", "--json", "--plot"], "not allowed with"),
        ([""], "cannot open a file without a name"),
    ],
)
def test_what_would_do_nothing_is_refused(flags: list[str], said: str, starving: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A shell variable that is not set does not mean this machine."""
    argv = [starving if flag == "FILE" else flag for flag in flags] or ["--from", "3", "--until", "50%"]
    assert main(["explain", *argv]) == (1 if argv == [""] else 2)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_last_and_since_are_one(starving: str, healthy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(capsys, starving, "--last", "8s") == explain(capsys, starving, "--since", "8")
    said = []
    for flag in ("--last", "--since"):
        assert main(["diff", starving, healthy, flag, "8"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_diff_tells_what_is_wrong_with_either(flags: list[str], starving: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = record(tmp_path / "short.gputop", starving=False, ticks=8)
    whole, holed = Path(starving).read_bytes(), tmp_path / "holed.gputop"
    holed.write_bytes(whole[: len(whole) // 2] + bytes(99) + whole[len(whole) // 2 + 99 :])
    assert main(["diff", str(holed), short, *flags]) == 0
    said = capsys.readouterr()
    assert [line.split(": ")[1] for line in said.err.splitlines()] == [str(holed), short]
    assert "0.7 s are too short to judge" in said.err
    assert not flags or json.loads(said.out)["schema"] == 1


def test_diff_says_in_which_of_the_two_a_time_is_none(starving: str, healthy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", starving, healthy, "--from", "epoch 9"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"gputop: {starving}: ")
    assert said.count("\n") == 1


def paused(path: Path) -> str:
    """Ten seconds of full work, two in which the trainer saves its weights, four of work."""
    made = training(util=99.0)
    trainer, frames = made.procs[100], []
    for seconds, util, run, written in ((10, 99.0, 0.3, 0), (2, 0.0, 0.9, 300_000_000), (4, 99.0, 0.3, 0)):
        made.gpus[0]["util_pct"], trainer.run, trainer.write_bytes = util, run, written
        frames += [made.next_frame(0.2) for _ in range(5 * seconds)]
    path.write_bytes(pack_header(made.board.header) + b"".join(pack_frames([frame]) for frame in frames))
    return str(path)


def test_what_was_before_a_stretch_is_known_and_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pause right at its beginning is one, though no steady work is seen before it there."""
    path = paused(tmp_path / "saved.gputop")
    found: dict[str, Any] = explain(capsys, path, "--last", "6s")
    assert [one["cause"] for one in found["incidents"]] == ["pause"]
    assert found["incidents"][0]["start_unix_s"] >= 1_700_000_009.7
    assert found["ledger"]["gpu_total_s"] == pytest.approx(6.0, abs=0.3)
    assert found["ledger"]["gpu_lost_s"] == pytest.approx(2.0, abs=0.3)
    worked: dict[str, Any] = explain(capsys, path, "--last", "3s")
    assert (worked["verdict"]["symptom"], worked["incidents"]) == ("healthy", [])
