"""Whose a process is, and which training it is a rank of."""

from __future__ import annotations

import pytest

from gputop.model.frame import Names, ProcInfo
from gputop.model.identity import JobKey, job_key

ID = "3f2a" * 16
UID = "12345678-1234-1234-1234-123456789abc"


def rank(number: int = 0, size: int = 8, cgroup: str = "/", names: Names | None = None, **env: str) -> ProcInfo:
    told = {"RANK": str(number), "WORLD_SIZE": str(size), **env}
    return ProcInfo(100 + number, 1, cmdline=["python", "train.py"], env=told, cgroup=cgroup, names=names)


STATIC = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
C10D = {"MASTER_ADDR": "Node1.cluster", "MASTER_PORT": "40123", "TORCHELASTIC_RUN_ID": "100"}


@pytest.mark.parametrize(
    ("info", "key"),
    [
        (rank(**C10D), "100@node1.cluster:40123 × 8"),
        (rank(**C10D, SLURM_JOB_ID="4711", SLURM_STEP_ID="0"), "100@node1.cluster:40123 × 8"),  # another node may be in no step
        (rank(**STATIC), "node7:29500 × 8"),
        (rank(**STATIC, cgroup=f"/docker/{ID}"), f"node7:29500 in {ID[:12]} × 8"),
        (rank(**STATIC, cgroup=f"/docker/{ID}", names=Names(net_ns=4026532)), "node7:29500 in net:4026532 × 8"),
        (rank(**STATIC, cgroup=f"/docker/{ID}", names=Names()), "node7:29500 × 8"),  # --network=host
        (rank(**STATIC, cgroup=f"/docker/{ID}", names=Names(missing={"net_ns": "permission denied"})), f"node7:29500 in {ID[:12]} × 8"),
        (rank(MASTER_ADDR="bert-master-0", MASTER_PORT="23456", POD_NAMESPACE="ml"), "ml/bert-master-0:23456 × 8"),
        (rank(TORCHELASTIC_RUN_ID="abc"), "abc × 8"),
        (rank(MASTER_ADDR="node1"), "~train.py × 8"),
        (rank(JAX_COORDINATOR_ADDRESS="10.0.0.1:1234"), "10.0.0.1:1234 × 8"),
        (rank(PMIX_NAMESPACE="3735224321", SLURM_JOB_ID="4711"), "3735224321 × 8"),
        (rank(SLURM_JOB_ID="4711", SLURM_STEP_ID="2"), "slurm 4711.2 × 8"),
        (rank(SLURM_JOB_ID="4711", SLURM_STEP_ID="4294967291"), "slurm 4711.batch × 8"),
        (rank(SLURM_JOB_ID="1", cgroup="/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3"), "slurm 4711.0 × 8"),
        (rank(SLURM_JOB_ID="4712", SLURM_HET_JOB_ID="4711", SLURM_STEP_ID="0"), "slurm 4711.0 × 8"),
        (rank(), "~train.py × 8"),
        (rank(MASTER_ADDR="a\x1b[2J" * 200, MASTER_PORT="1"), f"{('a·[2j' * 200)[:128]}:1 × 8"),
    ],
)  # fmt: skip
def test_the_key_of_a_training(info: ProcInfo, key: str) -> None:
    assert str(job_key(info, "node7")) == key


def test_who_is_no_rank_of_several_has_no_key() -> None:
    assert job_key(rank(size=1, **C10D)) is None
    assert job_key(ProcInfo(1, 1, env={"WORLD_SIZE": "8", **C10D})) is None
    assert job_key(ProcInfo(1, 1)) is None


def test_ranks_share_a_key_and_trainings_of_one_script_do_not() -> None:
    assert len({job_key(rank(number, **C10D), f"node{number}") for number in range(8)}) == 1
    assert len({job_key(rank(**{**STATIC, "MASTER_PORT": port}), host) for port in ("29500", "29501") for host in ("node1", "node2")}) == 4
    assert job_key(rank(size=8, **C10D)) != job_key(rank(size=16, **C10D))
    assert job_key(rank()) == JobKey("train.py", 8, is_certain=False) != JobKey("train.py", 8)
