"""Whose a process is, through a file: names, paths and environment are recorded, and SQL has them as columns."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gputop import cli
from gputop.model.frame import Frame, Names, ProcInfo, ProcSample
from gputop.model.identity import FIELDS, identity_of
from gputop.recording.reader import Recording
from tests.recording.made import HEADER, MS, START_NS, record

ID, UID = "3f2a" * 16, "12345678-1234-1234-1234-123456789abc"
PATH = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope"
ENV = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "bert-0", "MASTER_PORT": "29500", "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
TRAINER = ProcInfo(
    7, 1, uid=1000, user="ana", comm="python", cmdline=["python", "train.py"], cgroup=PATH, env=ENV, uses_cuda=True, libs=["cuda"],
    other_cgroups=["/slurm/uid_1000/job_4711/step_0/task_1"],
    names=Names(container="train", pod="bert-1", namespace="ml", pod_by="/var/log/pods", missing={"net_ns": "permission denied"}),
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    procs = [ProcSample(pid, 1, START_NS, "R", 0, 0, 0, 1) for pid in (7, 9)]
    frames = [Frame(i, START_NS + i * 100 * MS, key=not i, infos=[] if i else [TRAINER, ProcInfo(9, 1, comm="sh")], procs=procs)
              for i in range(20)]  # fmt: skip
    record(tmp_path / "job.gputop", frames)
    return str(tmp_path / "job.gputop")


def test_it_is_recorded_as_it_was_read(path: str) -> None:
    infos = [info for frame in Recording(Path(path)).frames() for info in frame.infos if info.pid == 7]
    assert infos
    assert all(info == TRAINER for info in infos)


def test_the_columns_of_process(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", path, "SELECT * FROM process ORDER BY pid", "--json"]) == 0
    trainer, shell = json.loads(capsys.readouterr().out)
    whose = identity_of(TRAINER, HEADER.host)
    assert {name: trainer[name] for name in FIELDS if trainer[name] is not None} == whose.known()
    assert (trainer["namespace"], trainer["pod"], trainer["container"], trainer["pod_qos"]) == ("ml", "bert-1", "train", "burstable")
    assert (trainer["slurm_job_id"], trainer["slurm_task"], trainer["training"]) == ("4711", "1", "bert-0:29500 × 2")
    assert json.loads(trainer["unidentified"]) == whose.missing
    assert (shell["container"], shell["unidentified"]) == (None, None)
    assert cli.main(["query", path, "SELECT name FROM process WHERE slurm_job_id = '4711'", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "python"}]


def test_an_identity_of_an_older_gputop_is_read() -> None:
    """It had neither names nor paths of other hierarchies."""
    old = msgspec.msgpack.encode({"pid": 7, "start_ticks": 1, "cgroup": f"/docker/{ID}", "env": {"RANK": "0"}})
    found = identity_of(msgspec.msgpack.decode(old, type=ProcInfo))
    assert (found.container_id, found.missing["container"]) == (ID, "not read yet")
