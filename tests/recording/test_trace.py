"""The Chrome trace: sound by the Trace Event Format, true to the frames, on torch.profiler's clock; Perfetto reads it where it is."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import gputop
from gputop import cli
from gputop.model.frame import CudaCall, Frame, Probes
from gputop.system.errors import UserError
from gputop.tables import beside
from tests.recording.made import HEADER, MS, START_NS, Session, record
from tests.recording.test_columns import coarse
from tests.recording.test_query import ask

BASE_NS = HEADER.unix_ns - 86_400 * 10**9
TORCH = {
    "baseTimeNanoseconds": BASE_NS,
    "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 3000, "tid": 3000, "ts": 86_400_500_000.0, "dur": 1000.0}],
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Frame]]:
    path = tmp_path_factory.mktemp("trace") / "t.gputop"
    frames = [coarse(frame) for frame in Session(2, 6, threads=2).frames(300)]
    record(path, frames)
    return path, frames


@pytest.fixture(scope="module")
def thin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Frame]]:
    """As long as `session`, of a trainer alone: for what stands beside it."""
    path = tmp_path_factory.mktemp("trace") / "thin.gputop"
    made = Session(1, 1, threads=1, probes=False)
    frames = [coarse(frame) for frame in (*made.frames(1), *made.frames(30, interval_ns=1000 * MS, key_every=10))]
    record(path, frames)
    return path, frames


def export(path: Path, out: Path, *flags: str) -> list[dict[str, Any]]:
    assert cli.main(["export", str(path), "--to", "perfetto", "-o", str(out), *flags]) == 0
    trace = json.loads(out.read_text())
    return list(trace["traceEvents"])


def test_events_are_sound(session: tuple[Path, list[Frame]], tmp_path: Path) -> None:
    events = export(session[0], tmp_path / "out.json")
    assert {event["ph"] for event in events} == {"M", "C", "X", "i"}
    lanes = defaultdict(list)
    for event in events:
        assert isinstance(event["pid"], int)
        assert event["ts"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        if event["ph"] == "X":
            assert event["dur"] >= 0
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in lanes.values():
        for (_, end), (start, _) in zip(sorted(slices), sorted(slices)[1:], strict=False):
            assert start >= end - 0.5, "slices of one lane overlap"
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {event["pid"] for event in events} <= names.keys()
    assert {"GPU 0", "GPU 1"} <= set(names.values())


def test_counters_are_the_frames_readings_at_their_wall_clock_time(session: tuple[Path, list[Frame]], tmp_path: Path) -> None:
    path, frames = session
    events = export(path, tmp_path / "out.json")
    drawn = [(event["ts"], event["args"]["value"]) for event in events if event["name"] == "power_w" and event["pid"] % 10 == 0]
    read = [((gpu.t_ns - HEADER.t_ns + HEADER.unix_ns) / 1000, gpu.power_w) for frame in frames for gpu in frame.gpus if gpu.index == 0]
    assert drawn == read
    assert any(event["ph"] == "i" and event["name"] == "epoch 0" for event in events)


def test_a_stretch_begins_with_what_stood_there(session: tuple[Path, list[Frame]], tmp_path: Path) -> None:
    whole, part = export(session[0], tmp_path / "whole.json"), export(session[0], tmp_path / "part.json", "--from", "13")
    began = min(event["ts"] for event in part if event["ph"] == "C")
    first = {event["pid"]: event["ts"] for event in reversed(part) if event["ph"] == "X" and event["cat"] == "state"}
    assert first
    assert max(first.values()) < began + 3e6
    named = {event["pid"]: event["args"]["name"] for event in part if event["name"] == "process_name"}
    assert named == {event["pid"]: event["args"]["name"] for event in whole if event["name"] == "process_name"}


@pytest.mark.parametrize("zipped", [False, True])
def test_beside_a_torch_trace_both_stand_on_one_clock(session: tuple[Path, list[Frame]], tmp_path: Path, zipped: bool) -> None:
    torch = tmp_path / "torch.json"
    data = json.dumps(TORCH).encode()
    torch.write_bytes(gzip.compress(data) if zipped else data)
    events = export(session[0], tmp_path / "both.json", "--beside", str(torch))
    assert TORCH["traceEvents"][0] in events  # type: ignore[index]
    ticks = [event["ts"] for event in events if event["ph"] == "C" and event["pid"] == 3000]
    # The torch slice begins half a second after the recording does: the samples of that process lie around it.
    assert min(ticks) < 86_400_500_000.0 + 10_000 < max(ticks)
    assert min(ticks) == pytest.approx(86_400_000_000.0, abs=2e6)


def test_what_python_alone_takes_for_json_is_null_in_the_file(thin: tuple[Path, list[Frame]], tmp_path: Path) -> None:
    (tmp_path / "torch.json").write_text('{"traceEvents": [{"name": "x", "args": {"a": [NaN, 1e999, 2.5], "b": -Infinity}}]}')
    export(thin[0], tmp_path / "both.json", "--beside", str(tmp_path / "torch.json"))
    events = json.loads((tmp_path / "both.json").read_text(), parse_constant=pytest.fail)["traceEvents"]
    assert events[0] == {"name": "x", "args": {"a": [None, None, 2.5], "b": None}}


@pytest.mark.parametrize("zipped", [False, True])
def test_a_torch_trace_that_would_take_all_memory_is_refused(
    thin: tuple[Path, list[Frame]], tmp_path: Path, zipped: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, sizes = tmp_path / "torch.json", []
    monkeypatch.setattr(beside, "MOST_BYTES", 1 << 20)
    for size in (beside.MOST_BYTES, beside.MOST_BYTES + 1):
        data = json.dumps(TORCH).encode().ljust(size)
        torch.write_bytes(gzip.compress(data) if zipped else data)
        sizes.append(cli.main(["export", str(thin[0]), "--to", "perfetto", "--beside", str(torch), "-o", str(tmp_path / f"{size}")]))
    assert sizes == [0, 1]
    assert capsys.readouterr().err.splitlines()[-1] == f"gputop: {torch} holds more than 1 MiB: profile fewer steps, or look at it apart"


@pytest.mark.parametrize(
    "content",
    [
        "", "[1, 2]", '{"traceEvents": 3}', '{"traceEvents": {}}', "not json", "[" * 200_000, '{"baseTimeNanoseconds": 1e400}',
        '{"baseTimeNanoseconds": 1e26}',
    ],
)  # fmt: skip
def test_what_is_no_torch_trace_is_said(
    thin: tuple[Path, list[Frame]], tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torch.json").write_text(content)
    flags = ["--beside", str(tmp_path / "torch.json"), "-o", str(tmp_path / "out.json")]
    assert cli.main(["export", str(thin[0]), "--to", "perfetto", *flags]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def torch_trace(start_us: float, count: int = 40, base_ns: int | None = BASE_NS, **more: object) -> dict[str, Any]:
    """A trace of ``count`` slices, 10 ms apart, with their base behind them as Kineto writes it."""
    named = {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}}
    slices = [
        {"ph": "X", "cat": "kernel", "name": f"k{i} [inf, -nan]", "pid": 0, "tid": 7, "ts": start_us + i * 10_000, "dur": 5000.5,
         "args": {"dims": [[i, 2], []], "inputs": [{"id": i}]}}
        for i in range(count)
    ]  # fmt: skip
    return {"schemaVersion": 1, "traceEvents": [named, *slices], **({} if base_ns is None else {"baseTimeNanoseconds": base_ns}), **more}


DAY_US = 86_400e6  # from BASE_NS to where the recording begins
LASTED_US = 30e6  # of the recording


@pytest.mark.parametrize(
    ("trace", "spans", "is_relative"),
    [
        (torch_trace(1_600_000_000e6, base_ns=None), "2020-09-13 12:26:40 to 2020-09-13 12:26:40", False),  # absolute, another day
        (torch_trace(1e6), "to", False), (torch_trace(DAY_US + 2 * LASTED_US), "to", False), (torch_trace(DAY_US - 1e6), "to", False),
        (torch_trace(17.5, base_ns=None), "1970-01-01 00:00:00", True), (torch_trace(-5e6, base_ns=0), "after 1970", True),
        (torch_trace(9e17), "after 1970", False),
    ],
)  # fmt: skip
def test_a_trace_of_another_time_is_refused_with_both_spans(
    thin: tuple[Path, list[Frame]], tmp_path: Path, trace: dict[str, Any], spans: str, is_relative: bool,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    (tmp_path / "torch.json").write_text(json.dumps(trace))
    flags = ["--beside", str(tmp_path / "torch.json"), "-o", str(tmp_path / "both.json")]
    assert cli.main(["export", str(thin[0]), "--to", "perfetto", *flags]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    recorded = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(HEADER.unix_ns // 10**9))
    assert recorded in said
    assert spans in said
    assert ("baseTimeNanoseconds" in said) == is_relative
    assert not (tmp_path / "both.json").exists()


@pytest.mark.parametrize("start_us", [DAY_US - 200_000, DAY_US + LASTED_US - 200_000, DAY_US + 1e6])
def test_a_trace_that_overlaps_in_part_is_taken(thin: tuple[Path, list[Frame]], tmp_path: Path, start_us: float) -> None:
    (tmp_path / "torch.json").write_text(json.dumps(torch_trace(start_us)))
    events = export(thin[0], tmp_path / "both.json", "--beside", str(tmp_path / "torch.json"))
    assert sum(event["name"].startswith("k") and event.get("cat") == "kernel" for event in events) == 40


def test_the_stretch_that_is_exported_counts(thin: tuple[Path, list[Frame]], tmp_path: Path) -> None:
    (tmp_path / "torch.json").write_text(json.dumps(torch_trace(DAY_US + 1e6)))
    flags = ["--to", "perfetto", "--beside", str(tmp_path / "torch.json"), "-o", str(tmp_path / "both.json")]
    assert cli.main(["export", str(thin[0]), *flags, "--from", "10"]) == 1
    assert cli.main(["export", str(thin[0]), *flags, "--until", "10"]) == 0


def _cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "inf": (lambda data: data.replace(b'"dur": 5000.5', b'"dur": -nan', 3).replace(b"[4, 2]", b"[inf, -Infinity]"), 37, "3 events without"),
    "nan in args": (lambda data: data.replace(b"[4, 2]", b"[NaN, +inf, 2]"), 40, "number"),
    "byte": (lambda data: data.replace(b"k7 ", b"k\xff\xfe "), 40, "2 bytes"),
    "control": (lambda data: data.replace(b"k7 ", b"k\n\x01 "), 40, ""),
    "quote": (lambda data: data.replace(b'"k7 ', b'k7 '), 39, "1 damaged"),
    "brace": (lambda data: data.replace(b'"k7 ', b'"k7" }]} '), 39, "1 damaged"),
    "zeros": (lambda data: data[:2000] + bytes(1000) + data[3000:], 32, "1 damaged"),
    "cut": (_cut, 26, "end is missing"), "packed": (gzip.compress, 40, ""),
    "packed cut": (lambda data: _cut(gzip.compress(data, 0)), 26, "end is missing"),
    "packed broken": (lambda data: gzip.compress(data, 0)[:-8] + bytes(8), 40, "end is missing"),
}  # fmt: skip


SOON = ("inf", "byte", "quote", "cut", "packed broken")  # one of each kind of answer; the others are `make soak`


@pytest.mark.parametrize("damage", [pytest.param(name, marks=() if name in SOON else pytest.mark.soak) for name in DAMAGE])
def test_what_is_whole_of_a_damaged_trace_is_read(
    thin: tuple[Path, list[Frame]], tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, kept, told = DAMAGE[damage]
    whole = torch_trace(HEADER.unix_ns / 1000 + 1e6, base_ns=0)
    (tmp_path / "torch.json").write_bytes(change(json.dumps(whole).encode()))
    events = export(thin[0], tmp_path / "both.json", "--beside", str(tmp_path / "torch.json"))
    found = [event for event in events if event.get("cat") == "kernel"]
    assert kept - 1 <= len(found) <= kept + 1, len(found)
    sound = [event for event in found if event in whole["traceEvents"]]
    assert len(sound) >= kept - 2
    lines = capsys.readouterr().err.splitlines()
    assert [told in line for line in lines[:-1]] == ([True] if told else [])


def test_a_cut_trace_whose_clock_is_lost_is_refused_and_says_so(
    thin: tuple[Path, list[Frame]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "torch.json").write_bytes(_cut(json.dumps(torch_trace(DAY_US + 1e6)).encode()))
    flags = ["--beside", str(tmp_path / "torch.json"), "-o", str(tmp_path / "both.json")]
    assert cli.main(["export", str(thin[0]), "--to", "perfetto", *flags]) == 1
    assert "baseTimeNanoseconds" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("piece", [',{"a', '[{"a":', '[{"', '\\"', '"', ",", '{"ph":1},', "inf,", "[", '{"ph":"X","ts":inf},'])
def test_no_text_takes_longer_than_its_length(tmp_path: Path, piece: str) -> None:
    (tmp_path / "torch.json").write_text('{"traceEvents":[' + piece * ((1 << 20) // len(piece)))
    began = time.process_time()
    with suppress(UserError):
        beside.read_trace(str(tmp_path / "torch.json"))
    assert time.process_time() - began < 10


def test_perfettos_trace_processor_reads_it(session: tuple[Path, list[Frame]], tmp_path: Path) -> None:
    shell = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if shell is None:
        pytest.skip("trace_processor_shell is not installed: https://get.perfetto.dev/trace_processor")
    export(session[0], tmp_path / "out.json")
    (tmp_path / "q.sql").write_text("SELECT count(*) FROM counter; SELECT name, value FROM stats WHERE severity = 'error' AND value > 0;")
    done = subprocess.run([shell, "-q", str(tmp_path / "q.sql"), str(tmp_path / "out.json")], capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[1]) > 1000
    assert "json" not in done.stdout


def test_incidents_are_those_of_the_table(session: tuple[Path, list[Frame]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = Path(gputop.__file__).parent / "data" / "sample.gputop"
    for path, flags in ((session[0], []), (sample, []), (sample, ["--from", "5"])):
        out = tmp_path / f"{path.name}{len(flags)}.json"
        drawn = [event for event in export(path, out, *flags) if event.get("cat") == "incident"]
        rows = ask(str(path), "SELECT unix_s, dt_s, headline, lost_s FROM incident", *flags, capsys=capsys)
        assert rows
        assert [event["args"]["headline"] for event in drawn] == [row["headline"] for row in rows]
        assert [event["args"]["lost_s"] for event in drawn] == [row["lost_s"] for row in rows]
        assert [event["ts"] / 1e6 for event in drawn] == pytest.approx([row["unix_s"] for row in rows], abs=1e-6)
        assert [event["dur"] / 1e6 for event in drawn] == pytest.approx([row["dt_s"] for row in rows], abs=1e-6)


def test_a_call_is_drawn_in_every_tick_in_which_the_table_counts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first of a process that begins to call later, too."""
    frames = [Frame(i, START_NS + i * 100 * MS, key=not i, probes=Probes(START_NS + i * 100 * MS)) for i in range(30)]
    for i in range(15, 20):
        told = CudaCall(7, "cuCtxSynchronize", 2 * (i - 14), (i - 14) * MS, MS)
        frames[i].probes = Probes(frames[i].t_ns, calls=[told])
    record(tmp_path / "calls.gputop", frames)
    rows = ask(str(tmp_path / "calls.gputop"), "SELECT mean_ms * 1000 us FROM sync WHERE calls > 0", capsys=capsys)
    events = export(tmp_path / "calls.gputop", tmp_path / "calls.json")
    assert [event["args"]["value"] for event in events if event["name"] == "cuCtxSynchronize mean us"] == [500] * 5
    assert [row["us"] for row in rows] == [500] * 5


def test_the_host_its_disks_and_processes_on_gpus_are_drawn_by_the_second(session: tuple[Path, list[Frame]], tmp_path: Path) -> None:
    path, frames = session
    events = export(path, tmp_path / "out.json")
    drawn = {name: [event for event in events if event["name"] == name] for name in
             ("CPUs user", "disk nvme0n1 read bytes/s", "memory available bytes", "GPU 0 SM %", "kernel launches/s")}  # fmt: skip
    hosts = [frame.host for frame in frames if frame.host]
    span_s = (hosts[-1].t_ns - hosts[0].t_ns) / 1e9
    used_s = sum(last.user_ns - first.user_ns for last, first in zip(hosts[-1].cpus or (), hosts[0].cpus or (), strict=True)) / 1e9
    values = [event["args"]["value"] for event in drawn["CPUs user"]]
    assert sum(values) / len(values) == pytest.approx(used_s / span_s, rel=0.05)
    assert all(event["args"]["value"] == pytest.approx(40_960, rel=0.01) for event in drawn["disk nvme0n1 read bytes/s"])
    available = [frame.host.mem_available_bytes for frame in frames if frame.host and frame.host.mem_available_bytes]
    assert [event["args"]["value"] for event in drawn["memory available bytes"]] == available
    listed = [proc.sm_pct for frame in frames for gpu in frame.gpus for proc in gpu.procs or () if gpu.index == 0]
    shown = [event["args"]["value"] for event in drawn["GPU 0 SM %"]]
    assert shown == [value for value, before in zip(listed, [None, *listed], strict=False) if value != before]
    assert {event["pid"] for event in drawn["GPU 0 SM %"] + drawn["kernel launches/s"]} == {3000, 3007}
