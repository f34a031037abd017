"""Whose a process is, and which training it is a rank of."""

from __future__ import annotations

import pytest

from gputop.model.frame import Names, ProcInfo
from gputop.model.identity import (
    FIELDS,
    CgroupIdentity,
    JobKey,
    identifying_paths,
    identity_in_mounts,
    identity_in_paths,
    identity_of,
    job_key,
)

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


POD = UID.replace("-", "_")
STATIC_POD = "5f8d3a1b2c3d4e5f6a7b8c9d0e1f2a3b"
USER = "/user.slice/user-1000.slice/user@1000.service/user.slice"
PATHS: list[tuple[str, CgroupIdentity]] = [
    # Docker: v1 and v2, drivers cgroupfs and systemd, rootless, in ECS, under a parent of one's own, Docker in Docker
    (f"/docker/{ID}", CgroupIdentity("Docker", ID)),
    (f"/system.slice/docker-{ID}.scope", CgroupIdentity("Docker", ID)),
    (f"{USER}/docker-{ID}.scope", CgroupIdentity("Docker", ID)),
    (f"/ecs/0a1b2c3d4e5f/{ID}", CgroupIdentity("Docker", ID)),
    (f"/ecstasks.slice/ecstasks-0a1b2c3d.slice/docker-{ID}.scope", CgroupIdentity("Docker", ID)),
    (f"/training/{ID}", CgroupIdentity("", ID)),
    (f"/docker/{'a' * 64}/docker/{ID}", CgroupIdentity("Docker", ID)),
    (f"/system.slice/docker-{'a' * 64}.scope/system.slice/docker-{ID}.scope/init", CgroupIdentity("Docker", ID)),
    # containerd: systemd, without SystemdCgroup, nerdctl
    (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD}.slice/cri-containerd-{ID}.scope",
     CgroupIdentity("containerd", ID, UID, "burstable")),
    (f"/system.slice/containerd.service/kubepods-besteffort-pod{POD}.slice:cri-containerd:{ID}",
    CgroupIdentity("containerd", ID, UID, "besteffort")),
    (f"/system.slice/nerdctl-{ID}.scope", CgroupIdentity("containerd", ID)),
    # Kubernetes: cgroupfs (which does not say the runtime), the three classes, static pods, kind, k3s, Docker below it, a pod's sandbox
    (f"/kubepods/pod{UID}/{ID}", CgroupIdentity("", ID, UID, "guaranteed")),
    (f"/kubepods/burstable/pod{UID}/{ID}", CgroupIdentity("", ID, UID, "burstable")),
    (f"/kubepods/besteffort/pod{STATIC_POD}/{ID}", CgroupIdentity("", ID, STATIC_POD, "besteffort")),
    (f"/kubepods.slice/kubepods-pod{POD}.slice/docker-{ID}.scope", CgroupIdentity("Docker", ID, UID, "guaranteed")),
    (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{POD}.slice/"
     f"cri-containerd-{ID}.scope", CgroupIdentity("containerd", ID, UID, "burstable")),
    (f"/system.slice/docker-{'a' * 64}.scope/kubelet/kubepods/pod{UID}/{ID}", CgroupIdentity("", ID, UID, "guaranteed")),
    (f"/system.slice/k3s.service/kubepods/burstable/pod{UID}/{ID}", CgroupIdentity("", ID, UID, "burstable")),
    (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD}.slice", CgroupIdentity("", "", UID, "burstable")),
    # CRI-O: systemd, cgroupfs, the newer subfolder; its monitor is in no container
    (f"/kubepods.slice/kubepods-pod{POD}.slice/crio-{ID}.scope", CgroupIdentity("CRI-O", ID, UID, "guaranteed")),
    (f"/kubepods/burstable/pod{UID}/crio-{ID}", CgroupIdentity("CRI-O", ID, UID, "burstable")),
    (f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD}.slice/crio-{ID}.scope/container",
     CgroupIdentity("CRI-O", ID, UID, "besteffort")),
    (f"/kubepods.slice/kubepods-pod{POD}.slice/crio-conmon-{ID}.scope", CgroupIdentity("", "", UID, "guaranteed")),
    # Podman: root and rootless, v1 and v2, cgroupfs, in a pod of Podman's, split, its monitor
    (f"/machine.slice/libpod-{ID}.scope", CgroupIdentity("Podman", ID)),
    (f"/machine.slice/libpod-{ID}.scope/container", CgroupIdentity("Podman", ID)),
    (f"/libpod_parent/libpod-{ID}", CgroupIdentity("Podman", ID)),
    (f"{USER}/libpod-{ID}.scope/container", CgroupIdentity("Podman", ID)),
    (f"/machine.slice/machine-libpod_pod_{'b' * 64}.slice/libpod-{ID}.scope", CgroupIdentity("Podman", ID)),
    (f"/system.slice/web.service/libpod-payload-{ID}", CgroupIdentity("Podman", ID)),
    (f"/machine.slice/libpod-conmon-{ID}.scope", CgroupIdentity()),
    # LXC, systemd-nspawn; a virtual machine is no container
    ("/lxc.payload.web/system.slice", CgroupIdentity("LXC", "web")), ("/lxc/web", CgroupIdentity("LXC", "web")),
    ("/machine.slice/machine-box\\x2d2.scope/payload", CgroupIdentity("systemd-nspawn", "box-2")),
    ("/machine.slice/systemd-nspawn@web.service/payload", CgroupIdentity("systemd-nspawn", "web")),
    ("/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt/emulator", CgroupIdentity()),
    # Slurm: v1, v2, several slurmd on a host, batch, extern, interactive, as numbers too; the step's own daemon; a container below a step
    ("/slurm/uid_1000/job_4711/step_0/task_3", CgroupIdentity(slurm_job="4711", slurm_step="0", slurm_task="3")),
    ("/slurm_node7/uid_1000/job_4711/step_batch", CgroupIdentity(slurm_job="4711", slurm_step="batch")),
    ("/slurm/uid_1000/job_4711/step_4294967290/task_0", CgroupIdentity(slurm_job="4711", slurm_step="interactive", slurm_task="0")),
    ("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3", CgroupIdentity(slurm_job="4711", slurm_step="0", slurm_task="3")),
    ("/system.slice/node7_slurmstepd.scope/job_4711/step_extern/user/task_special", CgroupIdentity(slurm_job="4711", slurm_step="extern")),
    ("/system.slice/slurmstepd.scope/job_4711/step_interactive/user/task_0",
     CgroupIdentity(slurm_job="4711", slurm_step="interactive", slurm_task="0")),
    ("/system.slice/slurmstepd.scope/job_4711/step_0/slurm", CgroupIdentity(slurm_job="4711", slurm_step="0")),
    (f"/system.slice/slurmstepd.scope/job_4711/step_2/user/task_1/libpod-{ID}.scope",
    CgroupIdentity("Podman", ID, "", "", "4711", "2", "1")),
    # nothing
    ("/", CgroupIdentity()), ("", CgroupIdentity()), ("/user.slice/user-1000.slice/session-2.scope", CgroupIdentity()),
    ("/../../..", CgroupIdentity()),
    ("/system.slice/job_12.service", CgroupIdentity()), ("/system.slice/docker.service", CgroupIdentity()),
    (f"/notes/{'3f2a' * 8}", CgroupIdentity()),
    ("/kubepods/burstable/podcast/x", CgroupIdentity()),
]  # fmt: skip


@pytest.mark.parametrize(("path", "told"), PATHS)
def test_what_the_path_of_a_control_group_tells(path: str, told: CgroupIdentity) -> None:
    assert identity_in_paths(path) == told


def test_the_fixtures_are_enough() -> None:
    assert sum(told != CgroupIdentity() for _, told in PATHS) >= 30


def test_slurms_job_may_stand_in_another_hierarchy_than_the_container() -> None:
    step = "/slurm/uid_0/job_4/step_1/task_0"
    paths = {"cpu": f"/docker/{ID}", "memory": f"/docker/{ID}", "freezer": step, "cpuset": step, "": "/user.slice", "pids": "/"}
    assert identifying_paths(paths, paths["cpu"]) == [step]
    assert identity_in_paths(paths["cpu"], step) == CgroupIdentity("Docker", ID, "", "", "4", "1", "0")
    assert identifying_paths({"": "/user.slice", "cpu": "/a"}, "/a") == []


def test_mounts_tell_where_a_namespace_hides_the_path() -> None:
    roots = ["/", f"/var/lib/kubelet/pods/{UID}/etc-hosts",
             f"/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/resolv.conf"]  # fmt: skip
    assert identity_in_mounts(roots) == CgroupIdentity("containerd", "", UID)
    assert identity_in_mounts([f"/var/lib/docker/containers/{ID}/hostname"]) == CgroupIdentity("Docker", ID)
    assert identity_in_mounts([f"/var/lib/containers/storage/overlay-containers/{ID}/userdata/hostname"]) == CgroupIdentity("Podman", ID)


def test_each_part_is_known_or_has_its_reason() -> None:
    infos = [
        ProcInfo(1, 1), rank(**C10D), rank(cgroup=f"/docker/{ID}"),
        rank(cgroup=PATHS[8][0], names=Names(missing={"container": "no right"})),
        ProcInfo(1, 1, uid=1001, env={"POD_NAME": "bert-0", "POD_NAMESPACE": "ml", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
        rank(SLURM_JOB_ID="4712", SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="12", SLURMD_NODENAME="n1", SLURM_STEP_ID="0"),
        rank(cgroup="/system.slice/slurmstepd.scope/job_5/step_batch/user/task_0", SLURM_JOB_ID="4"),
        rank(APPTAINER_CONTAINER="/images/torch\x1b[2J.sif"),
        rank(cgroup=f"/kubepods/pod{UID}/{ID}", POD_NAME="given", names=Names(pod="host-1", pod_by="HOSTNAME", runtime="containerd")),
        rank(cgroup=f"/kubepods/pod{UID}/{ID}", POD_NAME="given", names=Names(pod="bert-0", pod_by="/var/log/pods", namespace="ml")),
    ]  # fmt: skip
    found = [identity_of(info) for info in infos]
    for one in found:
        assert one.known().keys() | one.missing.keys() == set(FIELDS)
        assert not one.known().keys() & one.missing.keys()
        assert all(one.missing.values())
        assert "" not in one.known().values()
    assert [one.brief() for one in found] == [
        "", "", ID[:12], ID[:12], "ml/bert-0", "slurm 4700_12.0", "slurm 5.batch", "/images/torch·[2J.sif", "given", "ml/bert-0",
    ]  # fmt: skip
    assert found[3].missing["container"] == "no right"
    assert found[4].missing["user"] == "uid 1001 has no name on this machine"
    assert found[8].container_runtime == "containerd"
    assert found[9].pod_by == "/var/log/pods"


def test_a_closed_environment_is_the_reason() -> None:
    said = identity_of(rank(names=Names(missing={"environment": "permission denied"}))).missing
    assert said["slurm_job_id"] == "its control group names none, its environment: permission denied"
    other = identity_of(ProcInfo(1, 1, uid=1, uses_cuda=None))
    assert "another user" in other.missing["training"]
