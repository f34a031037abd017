"""A bound for all files of a name: ticks around incidents stay, what is older goes, and the files can be read all the while."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gputop import cli
from gputop.model.frame import Frame, Header, Mark
from gputop.recording import keep
from gputop.recording.format import MINUTES, SECONDS, TICKS
from gputop.recording.keep import Keeping, Sized, chosen
from gputop.recording.reader import Recording
from gputop.recording.scan import Contents
from gputop.system import clock
from gputop.system.errors import UserError
from tests.recording.made import HEADER, SECOND, START_NS, Session
from tests.wait import PATIENCE_S

INCIDENT, MARKED, COUNTED = (1400, 1420), 2600, 4000  # s since the start
MARKERS = {MARKED: "here", COUNTED: "step 1200"}
ROOT = Path(__file__).parents[2]
BOUND = 1_250_000
COUNT = 12_000  # frames, of half a second


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is synchronized, and as late as can be."""
    monkeypatch.setattr(keep, "PAUSE_S", 0.0)
    monkeypatch.setattr(keep, "is_synchronized", lambda: True)
    monkeypatch.setattr(keep, "time_ns", lambda: 1 << 62)


def told() -> bytes:
    """Findings with an incident."""
    start, end = (HEADER.unix_ns / 1e9 + at for at in INCIDENT)
    return msgspec.msgpack.encode({"explanation": {"incidents": [{"start_unix_s": start, "end_unix_s": end}]}})


def keeping(path: Path, header: Header = HEADER, bound: int = BOUND, keep_s: int = 20_000) -> Keeping:
    return Keeping(str(path), header, max_bytes=bound, keep_ns=keep_s * SECOND, begin=lambda: told)


@cache
def made(count: int) -> list[Frame]:
    session, frames = Session(1, 3, threads=2, probes=False), list[Frame]()
    for frame in session.frames(count, SECOND // 2, key_every=20):
        at = (frame.t_ns - START_NS) // SECOND
        frame.marks = [Mark(frame.t_ns, MARKERS[at])] if at in MARKERS and not frames[-1].marks else []
        frames.append(frame)
    return frames


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour and two thirds, of which the file could hold half of one."""
    path = tmp_path_factory.mktemp("keep") / "node.gputop"
    pytest.MonkeyPatch().setattr(keep, "PAUSE_S", 0.0)
    files = keeping(path)
    sizes, passes = [], 0
    for frame in made(COUNT):
        files.add(frame)
        if frame.key:
            sizes.append(sum(one.stat().st_size for one in path.parent.iterdir()))
            passes += len(sizes) > 1 and sizes[-1] < sizes[-2]
    files.close()
    assert max(sizes) <= BOUND
    assert passes >= 3
    return path


def seconds_of(path: Path, tier: int) -> list[tuple[float, int]]:
    """(seconds since the start, ticks) of each frame."""
    with Recording(str(path)) as recording:
        return [((frame.t_ns - START_NS) / SECOND, frame.ticks) for frame in recording.frames(tier=tier)]


@pytest.mark.soak
def test_what_is_near_an_incident_or_a_marker_keeps_its_ticks(kept: Path) -> None:
    found = seconds_of(kept, TICKS)
    for start, end in (INCIDENT, (MARKED, MARKED)):
        near = [ticks for at, ticks in found if start - 30 <= at <= end + 30]
        assert len(near) >= 2 * (end - start + 60) - 2
        assert set(near) == {1}
    assert max(ticks for at, ticks in found if 3500 < at < 4500) > 50
    assert max(ticks for at, ticks in found if COUNTED - 30 <= at <= COUNTED + 30) > 50, "a marker that counts steps is no event"
    assert [ticks for at, ticks in found if at > 5950][-50:] == [1] * 50


@pytest.mark.parametrize("tier", [TICKS, SECONDS, MINUTES])
@pytest.mark.soak
def test_every_moment_is_told_once_and_in_order(kept: Path, tier: int) -> None:
    times = [at for at, ticks in seconds_of(kept, tier) if ticks]
    assert times[0] <= 61
    assert max(b - a for a, b in pairwise(times)) <= 66
    assert times == sorted(set(times))


@pytest.mark.soak
def test_seconds_are_read_where_they_are(kept: Path) -> None:
    with Recording(str(kept)) as recording:
        for chunk in recording.chunks(TICKS):
            here = [one for one in recording.chunks(SECONDS) if one.tier == SECONDS and one.chunk.t_ns <= chunk.t_ns <= one.chunk.last_ns]
            assert chunk.tier != TICKS or here or chunk.t_ns > recording.end_ns - 70 * SECOND


@pytest.mark.soak
def test_the_file_is_whole(kept: Path) -> None:
    with Recording(str(kept)) as recording:
        for tier in (TICKS, SECONDS, MINUTES):
            list(recording.frames(tier=tier))
        recording.verify()
        assert recording.problem == ""
        assert [(mark.t_ns - START_NS) // SECOND for mark in recording.marks] == sorted(MARKERS)
        assert recording.findings() == told()
    assert [one.name for one in kept.parent.iterdir()] == [kept.name]


@pytest.mark.soak
def test_an_index_tells_what_the_blocks_do(kept: Path) -> None:
    fd, size = os.open(kept, os.O_RDONLY), kept.stat().st_size
    indexed, scanned = Contents.load(fd, size), Contents()
    scanned.extend(fd, size)
    os.close(fd)
    for tier in (SECONDS, MINUTES):
        assert {chunk.offset for chunk in indexed.chunks[tier]} == {chunk.offset for chunk in scanned.chunks[tier]}
        assert {chunk.last_ns for chunk in indexed.chunks[tier]} == {chunk.last_ns for chunk in scanned.chunks[tier]}
    assert [chunk.t_ns for chunk in indexed.chunks[TICKS]] == [chunk.t_ns for chunk in scanned.chunks[TICKS]]


@pytest.mark.soak
def test_any_moment_can_be_gone_to(kept: Path) -> None:
    with Recording(str(kept)) as recording:
        for at in range(100, 6000, 333):
            board = recording.board_at(START_NS + at * SECOND)
            assert set(board.procs) == {3000, 3007, 3014}
            assert START_NS + (at - 70) * SECOND <= board.t_ns <= START_NS + at * SECOND


@pytest.mark.soak
def test_it_is_explained_and_asked(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", str(kept), "--json"]) == 0
    assert cli.main(["query", str(kept), "SELECT count(*) n FROM gap WHERE dt_s > 70"]) == 0
    assert "0" in capsys.readouterr().out


@pytest.mark.soak
def test_what_is_too_old_goes(tmp_path: Path) -> None:
    files = keeping(tmp_path / "a.gputop", bound=1 << 30, keep_s=8000)
    for frame in Session(1, 1, threads=1, probes=False).frames(COUNT // 4, 4 * SECOND, key_every=5):
        files.add(frame)
    files.close()
    first = seconds_of(tmp_path / "a.gputop", TICKS)[0][0]
    assert 4000 - 3700 < first < 4000 + 300  # minutes go by the hour


@pytest.mark.soak
def test_a_start_goes_on_beside_older_files_and_thins_them(kept: Path, tmp_path: Path) -> None:
    shutil.copy(kept, tmp_path / "node.gputop")
    shutil.copy(kept, tmp_path / "other.gputop")
    (tmp_path / "node.gputop.unfinished").write_bytes(b"left over")
    (tmp_path / "node.3.gputop").write_text("no recording")
    later = 40_000 * SECOND
    header = msgspec.structs.replace(HEADER, boot_id="another", unix_ns=HEADER.unix_ns + later)
    files = keeping(tmp_path / "node.gputop", header, bound=kept.stat().st_size * 5 // 4, keep_s=80_000)
    for frame in made(1500):
        files.add(frame)
    files.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["node.3.gputop", "node.4.gputop", "node.gputop", "other.gputop"]
    total = sum(one.stat().st_size for one in tmp_path.glob("node*"))
    assert total < kept.stat().st_size * 5 // 4
    assert (tmp_path / "node.gputop").stat().st_size < kept.stat().st_size * 2 // 3
    with Recording(str(tmp_path / "node.gputop")) as old:
        assert sum(frame.ticks == 1 for frame in old.frames(START_NS + 1370 * SECOND, START_NS + 1450 * SECOND)) >= 158
        assert old.problem == ""
        assert old.findings() == told()
    files = keeping(tmp_path / "node.gputop", header, keep_s=25_000)  # the first ended too long ago
    for frame in made(COUNT):
        if frame.t_ns < START_NS + 3500 * SECOND:
            files.add(frame)
            assert (tmp_path / "node.gputop").exists()  # an hour before anything goes for its age
    for frame in made(COUNT)[7500:7700]:
        files.add(frame)
    files.close()
    assert sorted(one.name for one in tmp_path.glob("node*")) == ["node.3.gputop", "node.4.gputop", "node.5.gputop"]


DAY = 24 * 3600 * SECOND
HOURLY = 12  # frames of `hours` in an hour


def starts(folder: Path, days: Iterable[float], **more: Any) -> set[str]:
    """One start after the other of 100 s each, with the clock so many days ahead of `HEADER`'s; the files that are left."""
    for number, ahead in enumerate(days):
        header = msgspec.structs.replace(HEADER, boot_id=str(ahead), unix_ns=HEADER.unix_ns + int(ahead * DAY))
        files = keeping(folder / "node.gputop", header, bound=1 << 30, keep_s=30 * DAY // SECOND)
        for frame in made(200) if number < len(list(days)) - 1 else more.get("last", made(200)):
            files.add(frame)
        files.close()
    return {one.name for one in folder.iterdir()}


def hours(count: int) -> Iterator[Frame]:
    """Frames of so many hours, a key frame each 300 s."""
    session = Session(1, 1, threads=1, probes=False)
    yield from session.frames(count * HOURLY, 300 * SECOND, key_every=1)


ALL = {"node.gputop", *(f"node.{number}.gputop" for number in range(2, 6))}


@pytest.mark.soak
def test_a_clock_that_jumped_ahead_makes_nothing_older(tmp_path: Path) -> None:
    """A wrong clock at boot, even for days, and though the kernel calls it synchronized."""
    assert starts(tmp_path, [0, 10, 20, 25, 25 + 40], last=hours(60)) == ALL


def test_what_a_wrong_clock_dated_goes_no_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start after the one with the wrong clock has the right one: 20 and 25 days, and what is dated 1970, are not too old."""
    monkeypatch.setattr(keep, "time_ns", lambda: HEADER.unix_ns + 26 * DAY)
    assert starts(tmp_path, [0, 20, 60, -20_000, 25], last=hours(20)) == ALL


def test_a_step_an_hour_at_most(tmp_path: Path) -> None:
    """Long off, files are too old by their own clocks: each hour takes a 32nd of the time to keep at most, the first none."""
    days = [0, 0.5, 1.5, 2.5, 50, 90]
    left = [len(starts(tmp_path / str(count), days, last=hours(count))) for count in (1, 2, 3, 4) if not (tmp_path / str(count)).mkdir()]
    assert left == [6, 4, 3, 2]


@pytest.mark.soak
def test_an_unsynchronized_clock_takes_nothing_for_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "is_synchronized", lambda: False)
    assert starts(tmp_path, [0, 50, 100, 101, 102], last=hours(30)) == ALL


def test_a_recorder_says_that_the_clock_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "is_synchronized", lambda: False)
    files = keeping(tmp_path / "a.gputop", bound=1 << 30, keep_s=8000)
    for frame in hours(3):
        files.add(frame)
    assert "until the kernel calls the clock synchronized" in files.summary()
    monkeypatch.setattr(keep, "is_synchronized", lambda: True)
    for frame in list(hours(4))[-HOURLY:]:
        files.add(frame)
    assert "synchronized" not in files.summary()
    files.close()


def test_the_kernel_is_asked_whether_the_clock_is_synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    said = subprocess.run(["adjtimex", "--print"], capture_output=True, text=True, check=False) if shutil.which("adjtimex") else None
    assert clock.is_synchronized() in ((said.returncode == 0,) if said else (True, False))
    for answer, is_sure in ((0, True), (3, True), (5, False), (-1, False)):
        libc = SimpleNamespace(adjtimex=lambda _timex, answer=answer: answer)
        monkeypatch.setattr(clock.ctypes, "CDLL", lambda *_, libc=libc, **__: libc)
        assert clock.is_synchronized() is is_sure


def test_many_starts_leave_so_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "MOST_FILES", 4)
    for i in range(9):
        header = msgspec.structs.replace(HEADER, boot_id=str(i), unix_ns=HEADER.unix_ns + i * 1000 * SECOND)
        files = keeping(tmp_path / "node.gputop", header)
        for frame in made(100):
            files.add(frame)
        files.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"node.{i}.gputop" for i in range(6, 10)]


def test_a_file_that_another_recorder_writes_is_left_alone(tmp_path: Path) -> None:
    other = keeping(tmp_path / "node.gputop")
    for frame in made(3000):
        other.add(frame)
    other.flush()
    before = (tmp_path / "node.gputop").read_bytes()
    files = keeping(tmp_path / "node.gputop", bound=len(before) * 5 // 4)
    for frame in made(1000):
        files.add(frame)
    assert (tmp_path / "node.gputop").read_bytes() == before
    files.close()
    other.close()


@pytest.mark.soak
def test_a_copy_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, bound = tmp_path / "node.gputop", 300_000
    real, refused = keep.copied, []

    def full(*where: int) -> object:
        refused.append(where)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keep, "copied", full)
    files = keeping(path, bound=bound)
    frames = iter(made(COUNT))
    with pytest.raises(UserError, match="No space left"):  # noqa: PT012
        for frame in frames:
            files.add(frame)
    assert len(refused) > 3
    assert files.writer.size < bound
    assert [one.name for one in tmp_path.iterdir()] == ["node.gputop"]
    with Recording(str(path)) as recording:
        assert len(list(recording.frames())) == files.frames
        assert not recording.missing
    monkeypatch.setattr(keep, "copied", real)
    files.resume(next_file=False)
    next(frame for frame in frames if frame.key)
    for frame in frames:
        files.add(frame)
    assert path.stat().st_size < bound * keep.START + 50_000
    files.close()


def test_it_is_closed_in_the_middle_of_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "PAUSE_S", 60.0)
    files = keeping(tmp_path / "node.gputop", bound=400_000)
    monkeypatch.setattr(keep, "GROWTH", 1.0)
    for frame in made(12_000):
        files.add(frame)
        if files._pass:
            break
    files.close()
    assert [one.name for one in tmp_path.iterdir()] == ["node.gputop"]
    with Recording(str(tmp_path / "node.gputop")) as recording:
        assert len(list(recording.frames())) == files.frames < 12_000
        assert recording.problem == ""
        assert recording.findings() == told()


KILLED = """
import os, sys, time
from pathlib import Path
from gputop.recording import keep
from tests.recording.test_keep import keeping, made

keep.PAUSE_S, keep.GROWTH, folder = 0.0, 1.0, Path(sys.argv[1])
os.fsync = lambda fd: time.sleep(60)
files = keeping(folder / "node.gputop", bound=400_000)
for frame in made(12_000):
    files.add(frame)
    if files._pass and (folder / "node.gputop.unfinished").exists():
        files.flush()
        print(files.frames, flush=True)
        os.kill(os.getpid(), 9)
"""


@pytest.mark.soak
def test_a_reader_goes_on_in_the_new_file(tmp_path: Path) -> None:
    files, seen = keeping(tmp_path / "node.gputop", bound=400_000), list[int]()
    frames = iter(made(6000))
    files.add(next(frames))
    files.flush()
    inodes = set()
    with Recording(str(tmp_path / "node.gputop")) as recording:
        for i, frame in enumerate(frames):
            files.add(frame)
            if i % 40 == 0:
                files.flush()
                assert recording.growing
                recording.refresh()
                last = seen[-1] if seen else -1
                seen += [one.seq for one in recording.frames(recording.end_ns - 21 * SECOND) if one.seq > last]
                inodes.add((tmp_path / "node.gputop").stat().st_ino)
        files.close()
        recording.refresh()
        assert not recording.growing
        assert recording.problem == ""
    assert len(inodes) > 1
    assert seen == list(range(seen[-1] + 1))


def test_a_kill_during_a_pass_loses_nothing(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT)
    assert run.returncode == -9, run.stderr
    with Recording(str(tmp_path / "node.gputop")) as recording:
        assert len(list(recording.frames())) == int(run.stdout) > 500
        assert recording.findings() == told()
    assert (tmp_path / "node.gputop.unfinished").exists()
    files = keeping(tmp_path / "node.gputop")
    files.add(made(1)[0])
    files.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["node.2.gputop", "node.gputop"]


HOUR = 3600 * SECOND


def sized(hour: int, tier: int, size: int = 10, is_told: bool = True, is_open: bool = False) -> Sized:
    return Sized(0, 100 * hour + tier, tier, HOUR * hour, HOUR * hour + SECOND, size, is_told, is_open)


def left(chunks: list[Sized], target: int, since: int = 0) -> set[tuple[int, int]]:
    spans = [(2 * HOUR, 2 * HOUR + SECOND)]
    return {(one.start_ns // HOUR, one.tier) for one in chosen(chunks, spans, 8 * HOUR + SECOND, since * HOUR, target)}


def test_what_goes_first() -> None:
    chunks = [sized(hour, tier) for hour in range(1, 9) for tier in (TICKS, SECONDS, MINUTES)]
    assert len(left(chunks, 240)) == 24
    assert (1, TICKS) not in left(chunks, 230)
    assert {hour for hour, tier in left(chunks, 180) if tier == TICKS} == {2, 8}
    assert {one for one in left(chunks, 120) if one[1] != MINUTES} == {(2, TICKS), (2, SECONDS), (8, TICKS), (8, SECONDS)}
    assert {tier for _, tier in left(chunks, 80)} == {MINUTES}
    assert {hour for hour, _ in left(chunks, 240, since=5)} == {5, 6, 7, 8}


def test_what_no_coarser_tier_tells_goes_last_and_what_grows_never() -> None:
    chunks = [sized(1, TICKS, is_told=False), sized(2, MINUTES), sized(3, TICKS), sized(3, MINUTES), sized(4, SECONDS, is_open=True)]
    assert left(chunks, 40) == {(1, TICKS), (2, MINUTES), (3, MINUTES), (4, SECONDS)}
    assert left(chunks, 20) == {(1, TICKS), (4, SECONDS)}
    assert left(chunks, 0, since=7) == {(4, SECONDS)}


def test_of_a_long_incident_the_beginning_and_the_end_stay() -> None:
    chunks = [Sized(0, at, TICKS, at * SECOND, (at + 10) * SECOND, 1, True, False) for at in range(0, 9000, 10)]
    stay = [one.offset for one in chosen(chunks, [(1000 * SECOND, 4000 * SECOND)], 99_000 * SECOND, 0, 140)]
    assert {970, 1320, 3680, 4020} <= set(stay)
    assert not any(1400 < at < 3600 for at in stay)


def test_flags_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--keep", "30d"], ["--keep", "30d", "--max-size", "1G", "--max-files", "3"], ["--keep", "1d", "--max-size", "9M"]):
        assert cli.main(["record", *flags]) == 2
        assert "--keep needs --max-size" in capsys.readouterr().err


def test_the_recorder_starts_beside_what_it_has_recorded(tmp_path: Path) -> None:
    for i in (1, 2):
        record = [sys.executable, "-m", "gputop", "record", "-o", str(tmp_path / "node.gputop"), "--keep", "30d", "--max-size", "1G"]
        run = subprocess.run([*record, "--no-ebpf", "--duration", "2"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert run.returncode == 0, run.stderr
        assert ("of earlier starts" in run.stderr) == (i == 2)
    for name in ("node.gputop", "node.2.gputop"):
        with Recording(str(tmp_path / name)) as recording:
            assert recording.problem == ""
            assert recording._contents.chunks[MINUTES]
