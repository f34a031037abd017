"""The table `member`: who is in a job's family, and what each does there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gputop.findings.verdict import COMPUTES, FEEDS, SERVES
from gputop.model.frame import Header
from gputop.recording.format import pack_end, pack_frames, pack_header
from gputop.recording.reader import Recording
from gputop.tables.load import TableLoader
from gputop.tables.schema import TABLES
from tests.unit.diagnosis.scene import START_S, Proc
from tests.unit.diagnosis.test_family import BEHIND, FRONT, GPU, READS_IT, RESTS, STRANGER, WORKS, behind_a_front

LATE = 302


def members(path: Path, *more: str) -> list[dict[str, Any]]:
    with Recording(str(path)) as recording:
        names = [column.name for column in TABLES["member"].columns]
        batches = list(TableLoader(recording, {"member": names} | {name: ["cause"] for name in more}).batches())
    return [dict(zip(names, row, strict=True)) for table, rows in batches if table == "member" for row in rows]


def test_each_process_of_the_family_stands_once_with_its_part(tmp_path: Path) -> None:
    scene = behind_a_front(RESTS, WORKS)
    header = Header(t_ns=START_S * 10**9, unix_ns=1_700_000_000 * 10**9, interval_ns=200_000_000, cpus=2)
    frames = [scene.next_frame(0.2) for _ in range(30)]
    scene.procs[FRONT].info = scene.procs[FRONT].info | {"other_ends": [GPU, BEHIND, LATE]}
    scene.add(Proc(LATE, comm="late", cmdline=["late"], info={"session": LATE}, **READS_IT))
    frames += [scene.next_frame(0.2) for _ in range(30)]
    frames[0].key = True
    data = pack_header(header) + b"".join(pack_frames([frame]) for frame in frames) + pack_end(frames[-1].t_ns)
    (tmp_path / "one.gputop").write_bytes(data)
    found = members(tmp_path / "one.gputop")
    parts = {GPU: COMPUTES, FRONT: SERVES, BEHIND: FEEDS, LATE: FEEDS}
    assert {row["pid"]: row["part"] for row in found} == parts
    assert len(found) == len(parts), "once each"
    assert STRANGER not in {row["pid"] for row in found}
    assert {row["trainer_pid"] for row in found} == {GPU}
    assert {row["pid"]: row["label"] for row in found}[FRONT] == "server front"
    seen = {row["pid"]: row["t_s"] for row in found}
    assert seen[LATE] >= 6.0 > seen[FRONT]
    assert found == members(tmp_path / "one.gputop", "ledger"), "also beside what is judged once for all"
