"""What a query makes of ticks: readings that came in one of them, and where they begin and end."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputop.model.frame import Frame, Gpu, ProcSample
from gputop.recording.format import pack_frames, pack_header
from tests.recording.made import HEADER, MS, START_NS, record
from tests.recording.test_query import ask


def test_several_readings_of_a_gpu_in_one_tick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tick that is late holds all that was read meanwhile: what counters grew by is summed up, of the rest the last value stands."""
    frames = [Frame(i, START_NS + i * 100 * MS, key=not i) for i in range(6)]
    read_ns = START_NS
    for frame, readings in zip(frames, (1, 1, 4, 0, 1, 2), strict=True):
        for _ in range(readings):
            read_ns += 50 * MS
            part = (read_ns - START_NS) // MS
            frame.gpus.append(Gpu(0, read_ns, util_pct=float(part), pcie_rx_bytes=part << 20, energy_mj=part * 1000, nvml_ns=part * MS))
            frame.gpus.append(Gpu(0, read_ns, temp_c=50.0, nvml_ns=part * MS + MS))
    record(tmp_path / "late.gputop", frames)
    rows = ask(str(tmp_path / "late.gputop"), "SELECT util_pct, pcie_rx_bytes >> 20 rx, energy_j, nvml_s, temp_c FROM gpu", capsys=capsys)
    assert [row["rx"] for row in rows] == [None, 50, 200, 50, 100]
    assert [row["energy_j"] for row in rows] == [None, 50.0, 200.0, 50.0, 100.0]
    assert [row["nvml_s"] for row in rows] == [pytest.approx(s) for s in (0.001, 0.05, 0.2, 0.05, 0.1)]
    assert [row["util_pct"] for row in rows] == [50.0, 100.0, 300.0, 350.0, 450.0]


@pytest.mark.parametrize("flags", [[], ["--from", "0%"], ["--last", "1h"]], ids=" ".join)
def test_the_first_tick_of_a_stream_that_was_kept(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `R` and `gputop collect > FILE` keep them: with its frames' own times, which rows have rounded down."""
    frames = [Frame(i, START_NS + i * 100 * MS + 6543, missed=int(i == 1), key=not i, gpus=[Gpu(0, 0, util_pct=9.0)]) for i in range(3)]
    path = tmp_path / "kept.gputop"
    path.write_bytes(pack_header(HEADER) + b"".join(pack_frames([frame]) for frame in frames))
    assert ask(str(path), "SELECT t_s FROM gpu", *flags, capsys=capsys) == [{"t_s": 0.0}, {"t_s": 0.1}, {"t_s": 0.2}]
    assert [row["t_s"] for row in ask(str(path), "SELECT t_s FROM gap", *flags, capsys=capsys)] == [0.0]


@pytest.mark.parametrize("last", [7, 10, 13])
def test_what_a_process_did_up_to_its_last_reading_is_told(last: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before, in and behind a key frame, which tells of everybody, read anew or not."""

    def stood(tick: int) -> ProcSample:
        return ProcSample(8, 1, START_NS + tick * 100 * MS, "R", tick * 10 * MS, 0, 0, 1)

    frames = [Frame(i, START_NS + i * 100 * MS, key=i % 10 == 0, gone=[8] if i == 16 else []) for i in range(20)]
    for i in {0, 4, last}:
        frames[i].procs = [stood(i)]
    frames[10].procs = [stood(min(last, 10))]
    record(tmp_path / "ended.gputop", frames)
    rows = ask(str(tmp_path / "ended.gputop"), "SELECT round(t_s * 10) tick, cpu_s FROM proc", capsys=capsys)
    assert rows[-1]["tick"] == last
    assert sum(row["cpu_s"] or 0 for row in rows) == pytest.approx(last * 1e-2)


def test_a_key_frame_of_a_whole_second_loses_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A frame that stands for a second has processes that were read up to a second before; one that was not read then is restated."""
    frames = []
    for i in range(30):
        t_ns = START_NS + i * 1000 * MS
        procs = [ProcSample(7, 1, t_ns - 700 * MS * (i > 0), "S", 0, 0, 0, 1, vol=5 * i, invol=0)]
        procs.append(ProcSample(8, 1, START_NS + min(i, 15) * 1000 * MS, "S", 0, 0, 0, 1, vol=min(i, 15), invol=0))
        frames.append(Frame(i, t_ns, key=i % 10 == 0, procs=procs if i <= 15 or i % 10 == 0 else procs[:1]))
    record(tmp_path / "seconds.gputop", frames)
    rows = ask(str(tmp_path / "seconds.gputop"), "SELECT pid, count(*) n, sum(vol) vol FROM proc GROUP BY pid", capsys=capsys)
    assert [(row["pid"], row["n"], row["vol"]) for row in rows] == [(7, 30, 5 * 29), (8, 16, 15)]
