"""Files kept from every version open for ever, and files of versions to come as far as we understand them.

``data/`` is only ever added to: `python -m tests.recording.test_growth data/v2.1.gputop` writes the file of a new version.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputop.model.frame import FORMAT_MAJOR, FORMAT_MINOR, Frame
from gputop.recording.chunks import Decoder
from gputop.recording.format import FLAG_KEY, FLAG_PLAIN, KIND_FRAMES, KIND_HEADER, MAGIC, FormatError, pack, pack_frames, pack_header
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.tables.load import TableLoader
from gputop.tables.schema import TABLES
from tests.recording.made import HEADER, Session

DATA = Path(__file__).with_name("data")
KEPT = sorted(DATA.glob("*.gputop"))
JUDGED = ("incident", "ledger", "runs")  # tables of the diagnosis, which changes


def facts(path: Path) -> dict[str, Any]:
    """What must never change about a file, as plain values."""
    with Recording(str(path)) as recording:
        frames = list(recording.frames())
        board = recording.board_at(recording.end_ns)
        return {
            "header": msgspec.to_builtins(recording.header),
            "problem": recording.problem,
            "frames": len(frames),
            "marks": msgspec.to_builtins(recording.marks),
            "seqs": [frames[0].seq, frames[-1].seq],
            "procs": {str(pid): [p.t_ns, p.oncpu_ns, p.run_delay_ns, p.vol, p.state, len(p.threads)] for pid, p in board.procs.items()},
            "names": {str(pid): [info.comm, info.cmdline, info.env] for pid, info in board.infos.items()},
            "gpus": {str(i): [gpu.values["power_w"], gpu.values["energy_mj"], gpu.missing] for i, gpu in board.gpus.items()},
            "threads": {str(tid): [t.oncpu_ns, t.runnable_ns, t.vol, sum(t.hist.values())] for tid, t in board.threads.items()},
            "calls": {f"{pid} {call}": [c.count, c.total_ns, c.max_ns] for (pid, call), c in board.calls.items()},
            "rows": {name: count(recording, name) for name in TABLES if name not in JUDGED},
        }


def count(recording: Recording, table: str) -> int:
    return sum(1 for _, rows in TableLoader(recording, {table: ["t_ns"]}).batches() for _ in rows)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_files_of_every_version_say_what_they_said(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())
    found = json.loads(json.dumps(facts(path)))
    expected["rows"] = {table: rows for table, rows in expected["rows"].items() if table not in JUDGED}
    found["rows"] = {table: found["rows"][table] for table in expected["rows"]}  # tables that came since are in none
    assert {key: found[key] for key in expected} == expected


def test_this_version_has_a_file() -> None:
    assert DATA / f"v{FORMAT_MAJOR}.{FORMAT_MINOR}.gputop" in KEPT


def test_a_file_of_an_older_format_is_refused_in_a_line() -> None:
    with pytest.raises(FormatError, match=r"made by an older gputop .format 1, this one reads format 2.: open it with that gputop"):
        Recording(str(DATA / "old.v1.2"))


def as_maps(frames: list[Frame]) -> list[dict[str, Any]]:
    return list(msgspec.msgpack.decode(msgspec.msgpack.encode(frames)))


def test_a_newer_minor_version_is_read_as_far_as_it_is_understood(tmp_path: Path) -> None:
    frames = list(Session(1, 2).frames(20))
    header = msgspec.to_builtins(HEADER) | {"major": FORMAT_MAJOR, "minor": 9, "colour": "blue"}
    maps = as_maps(frames)
    for frame in maps:
        frame["weather"] = {"sky": [1, 2, 3]}
        for proc in frame["procs"]:
            proc += [None] * (28 - len(proc)) + ["a new field", 7]
        for gpu in frame["gpus"]:
            gpu["fans"] = [1, 2]
    encode = msgspec.msgpack.encode
    data = MAGIC + pack(KIND_HEADER, encode(header), t_ns=HEADER.t_ns)
    data += pack(200, b"a new kind") + pack(KIND_FRAMES, encode(maps), flags=FLAG_KEY | FLAG_PLAIN | 1 << 9)
    data += pack(KIND_FRAMES, b"a tier to come", tier=77, t_ns=frames[-1].t_ns) + pack(KIND_FRAMES, b"damaged") + pack_frames(frames[:1])
    decoder = Decoder()
    out = decoder.feed(data)
    assert decoder.header is not None
    assert decoder.header.host == HEADER.host
    assert out[1:] == [*frames, frames[0]]
    assert decoder.problem
    path = tmp_path / "newer.gputop"
    path.write_bytes(data)
    with Recording(str(path)) as recording:
        assert recording.header.minor == 9
        assert next(recording.frames()) == frames[0]


def test_an_older_minor_version_lacks_fields_that_are_then_absent() -> None:
    frames = list(Session(1, 2).frames(5))
    maps = as_maps(frames)
    for frame in maps:
        frame["procs"] = [proc[:11] for proc in frame["procs"]]
        frame.pop("cost", None)
    decoder = Decoder()
    out = decoder.feed(pack_header(HEADER) + pack(KIND_FRAMES, msgspec.msgpack.encode(maps), flags=FLAG_KEY | FLAG_PLAIN))
    assert all(isinstance(frame, Frame) and frame.procs[0].vol is None and frame.cost is None for frame in out[1:])
    assert len(out) == 6


def _keep(path: Path) -> None:
    writer = Writer(str(path), HEADER)
    for frame in Session(1, 3, threads=3, seed=8).frames(260):
        writer.add(frame)
    writer.close()
    path.with_suffix(".json").write_text(json.dumps(facts(path), indent=1) + "\n")


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
