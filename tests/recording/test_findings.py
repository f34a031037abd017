"""What the diagnosis said as a recording was made: kept at its end, and told instead of judging anew where that is the same."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gputop.cli import main
from gputop.diagnosis.model import PathStep
from gputop.diagnosis.report import Explanation
from gputop.model.frame import Frame, Header
from gputop.recording.reader import Recording
from gputop.recording.writer import NO_LIMIT, Rotation, Writer
from gputop.session import findings
from gputop.session.session import Session
from gputop.session.stalled import Unwatched
from gputop.session.survey import survey
from gputop.system.errors import UserError
from gputop.tui.feed import Recorder
from tests.tui import scene

TICKS = 3200
"""More than five minutes: shorter ones are judged anew, frame by frame."""


@pytest.fixture(scope="module")
def stream() -> tuple[Header, list[Frame]]:
    header, *frames = scene.frames(TICKS, starving=True)
    assert isinstance(header, Header)
    return header, [frame for frame in frames if isinstance(frame, Frame)]


@pytest.fixture(scope="module")
def made(stream: tuple[Header, list[Frame]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording as `gputop record` makes it."""
    path = tmp_path_factory.mktemp("findings") / "run.gputop"
    record(path, stream, NO_LIMIT)
    return path


def record(path: Path, stream: tuple[Header, list[Frame]], max_bytes: int) -> None:
    header, frames = stream
    diagnosis = Unwatched(None)
    diagnosis.following.restate(header)
    files = Rotation(str(path), header, max_bytes, 0, lambda: findings.Recorder(diagnosis.following.engine).tell)
    for frame in frames:
        diagnosis.judge_frame(frame)
        files.add(frame)
    files.close()


def explain(capsys: pytest.CaptureFixture[str], *flags: str) -> Explanation:
    assert main(["explain", *flags, "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=Explanation)


def kept(path: Path) -> Explanation | None:
    with Recording(str(path)) as recording:
        return findings.explanation(recording)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever judges a recording anew says so, and fails."""

    def refuse(*_: object) -> None:
        raise UserError("judged anew")

    monkeypatch.setattr("gputop.session.following.Following.through", refuse)


@pytest.fixture
def short_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings of any length are explained by what was kept."""
    monkeypatch.setattr(findings, "SHORT_NS", 0)


@pytest.mark.usefixtures("unread")
def test_a_long_recording_is_explained_by_what_was_said_as_it_was_made(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(capsys, str(made)) == kept(made)
    assert main(["explain", str(made), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["judged_by"] == "recorder"
    assert main(["explain", str(made)]) == 0
    assert "input-bound" in capsys.readouterr().out.lower()


def test_judging_it_anew_says_the_same(made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told = explain(capsys, str(made))
    monkeypatch.setattr(findings, "rules", lambda: 1)
    anew = explain(capsys, str(made))
    assert [found.verdict.symptom for found in (told, anew)] == ["input-bound"] * 2
    assert anew.verdict.cause == told.verdict.cause
    lost = [found.ledger.gpu_lost_s for found in (told, anew)]
    assert lost[0] == pytest.approx(lost[1], rel=0.05)


@pytest.mark.parametrize("flags", [["--since", "310"], ["--until", "310"], ["--from", "2"], ["--plot"]])
@pytest.mark.usefixtures("unread")
def test_a_part_of_it_is_judged_anew(flags: list[str], made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(made), *flags]) == 1
    assert "judged anew" in capsys.readouterr().err


@pytest.mark.usefixtures("unread")
def test_other_rules_judge_it_anew(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    known = findings.rules()
    monkeypatch.setattr(findings, "rules", lambda: known + 1)
    assert main(["explain", str(made)]) == 1
    assert "judged anew" in capsys.readouterr().err


@pytest.mark.usefixtures("short_too")
def test_a_recorder_that_was_killed_has_told_nothing(stream: tuple[Header, list[Frame]], tmp_path: Path) -> None:
    header, frames = stream
    writer = Writer(str(tmp_path / "killed.gputop"), header, lambda: b"never asked")
    for frame in frames[:400]:
        writer.add(frame)
    assert kept(tmp_path / "killed.gputop") is None
    writer.close()


def test_what_was_killed_is_told_with_the_rest_judged_anew(
    stream: tuple[Header, list[Frame]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gputop.recording.writer.FINDINGS_NS", 240 * 10**9)
    monkeypatch.setattr("gputop.recording.writer.INDEX_EVERY", 4)
    record(tmp_path / "whole.gputop", stream, NO_LIMIT)
    header, frames = stream
    diagnosis = Unwatched(None)
    diagnosis.following.restate(header)
    writer = Writer(str(tmp_path / "killed.gputop"), header, findings.Recorder(diagnosis.following.engine).tell)
    for frame in frames:
        diagnosis.judge_frame(frame)
        writer.add(frame)
    writer.flush()  # and no more: it grows, as it does where the recorder was killed
    with Recording(str(tmp_path / "killed.gputop")) as recording:
        assert findings.explanation(recording) is None
        found = msgspec.msgpack.decode(recording.findings() or b"")
        assert 240 * 10**9 <= found["end_ns"] - header.t_ns < 310 * 10**9
    whole, killed = (explain(capsys, str(tmp_path / f"{name}.gputop")) for name in ("whole", "killed"))
    assert [one.cause for one in killed.incidents] == [one.cause for one in whole.incidents]
    assert killed.verdict.cause == whole.verdict.cause
    for name in ("gpu_total_s", "gpu_lost_s"):
        assert getattr(killed.ledger, name) == pytest.approx(getattr(whole.ledger, name), rel=0.05)
    assert killed.ledger.by_cause.keys() == whole.ledger.by_cause.keys()
    assert sum(killed.workers.values()) == pytest.approx(1.0, abs=0.01)
    for found in (killed, whole):
        told, regain = found.verdict, found.ledger.regain[0]
        assert (told.regain_gpu_s, told.speedup_max) == (regain.regain_gpu_s, regain.speedup_max)
        known = [one.factor for one in found.what_if if one.factor is not None]  # of the rest `assumes` says why it is not known
        assert known
        assert known == sorted(known, reverse=True)
    [joined], [one] = killed.incidents, whole.incidents
    assert joined.regain_gpu_s == pytest.approx(one.regain_gpu_s, rel=0.05)
    assert joined.speedup_max >= 0.95 * one.speedup_max  # type: ignore[operator]
    writer.close()


def test_of_a_time_to_keep_only_that_is_told(stream: tuple[Header, list[Frame]]) -> None:
    header, frames = stream
    diagnosis = Unwatched(None)
    diagnosis.following.restate(header)
    whole, last = findings.Recorder(diagnosis.following.engine), findings.Recorder(diagnosis.following.engine, 60 * 10**9)
    for i, frame in enumerate(frames):
        diagnosis.judge_frame(frame)
        if i % 300 == 299:
            last.tell()
    lost = [msgspec.msgpack.decode(one.tell())["explanation"]["ledger"]["gpu_total_s"] for one in (whole, last)]
    assert lost[0] == pytest.approx(320, rel=0.1)
    assert 60 <= lost[1] <= 95


@pytest.mark.usefixtures("unread")
def test_sql_tells_of_the_same_incidents(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = kept(made)
    assert known is not None
    assert main(["query", str(made), "SELECT id, cause, lost_s, t_s, regain_gpu_s, speedup_max, path FROM incident", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["id"], row["cause"], row["lost_s"]) for row in rows] == [
        (one.id, one.cause, one.gpu_lost_s) for one in known.incidents
    ]
    assert all(0.0 <= row["t_s"] < TICKS / 10 for row in rows)
    for row, one in zip(rows, known.incidents, strict=True):
        assert (row["regain_gpu_s"], row["speedup_max"]) == (one.regain_gpu_s, one.speedup_max)
        assert msgspec.json.decode(row["path"], type=list[PathStep]) == one.path != []


@pytest.mark.parametrize("damage", ["payload", "head", "no findings"])
def test_damaged_findings_are_none(damage: str, made: Path, tmp_path: Path) -> None:
    with Recording(str(made)) as recording:
        at = recording._contents.findings
    data = bytearray(made.read_bytes())
    data[at + {"payload": 40, "head": 9, "no findings": 4}[damage]] ^= 0x10
    (tmp_path / "flipped.gputop").write_bytes(data)
    assert kept(tmp_path / "flipped.gputop") is None


def test_made_up_findings_are_none(stream: tuple[Header, list[Frame]], tmp_path: Path) -> None:
    header, frames = stream
    for i, told in enumerate((b"\x93\x01", b"\xc0", b"\x81\xa5rules\xa1x", b"\x91" * 5000)):
        writer = Writer(str(tmp_path / f"{i}.gputop"), header, lambda told=told: told)  # type: ignore[misc]
        writer.add(frames[0])
        writer.close()
        assert kept(tmp_path / f"{i}.gputop") is None


@pytest.mark.usefixtures("short_too")
def test_findings_with_an_unknown_severity_are_none(stream: tuple[Header, list[Frame]], made: Path, tmp_path: Path) -> None:
    known = kept(made)
    assert known is not None
    for severity in ("high", "terrible", "high\n"):
        known.incidents[0] = replace(known.incidents[0], severity=severity)
        told = msgspec.msgpack.encode(findings.Findings(findings.rules(), stream[0].t_ns, 1 << 62, known))
        path = tmp_path / f"{severity!r}.gputop"
        writer = Writer(str(path), stream[0], lambda told=told: told)  # type: ignore[misc]
        for frame in stream[1][:2]:
            writer.add(frame)
        writer.close()
        assert (kept(path) is not None) == (severity == "high")


def test_the_replay_knows_its_incidents_at_once(made: Path) -> None:
    first, *later = survey([str(made)])
    known = kept(made)
    assert known is not None
    assert [episode.id for episode in first.episodes] == [one.id for one in known.incidents] != []
    with Recording(str(made)) as recording:
        assert all(recording.start_ns <= episode.start_ns < recording.end_ns for episode in first.episodes)
    assert not any(found.episodes for found in later)
    assert later[-1].ledger is not None


def test_the_replay_finds_what_comes_while_its_file_grows(stream: tuple[Header, list[Frame]], tmp_path: Path) -> None:
    (header, frames), path = stream, tmp_path / "growing.gputop"
    writer = Writer(str(path), header)
    for frame in frames[:50]:
        writer.add(frame)
    news = survey([str(path)])
    early = [next(news)]
    for frame in frames[50:600]:
        writer.add(frame)
    while early[-1].until_ns < frames[550].t_ns:
        early.append(next(news))
    writer.close()
    late = list(news)
    assert any(found.episodes for found in early)
    assert late[-1].until_ns == frames[599].t_ns


@pytest.mark.usefixtures("short_too")
def test_each_file_of_a_rotation_tells_of_its_own_time(stream: tuple[Header, list[Frame]], made: Path, tmp_path: Path) -> None:
    record(tmp_path / "run.gputop", stream, made.stat().st_size // 2)
    told = [found for path in tmp_path.iterdir() if (found := kept(path)) is not None]
    whole = kept(made)
    assert whole is not None
    assert len(told) == len(list(tmp_path.iterdir())) >= 2
    parts = [found.ledger.gpu_lost_s or 0.0 for found in told]
    assert min(parts) > 0.0
    assert sum(parts) == pytest.approx(whole.ledger.gpu_lost_s, rel=0.03)


@pytest.mark.usefixtures("short_too")
def test_a_recording_begun_on_the_screen_tells_of_the_time_since(stream: tuple[Header, list[Frame]], tmp_path: Path) -> None:
    header, frames = stream
    session, recorder = Session(), Recorder()
    session.ingest(header)
    for i, frame in enumerate(frames[:600]):
        if i == 300:
            recorder.start(str(tmp_path / "r.gputop"), session)
        session.ingest(frame)
        recorder.take(frame)
    recorder.stop()
    told = kept(tmp_path / "r.gputop")
    assert told is not None
    assert told.ledger.gpu_total_s == pytest.approx(30.0, rel=0.2)
