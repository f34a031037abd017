"""Whose a process is: its container, pod, Slurm job and user; and which training it is a rank of. Pure.

A container's runtime and id, a pod's uid and a Slurm job stand in the path of a control group (`told_by`). Names that only files of the
machine tell (`gputop.model.frame.Names`) are read by `gputop.sources.procfs.names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from msgspec import Struct, structs

from gputop.model.frame import ProcInfo
from gputop.model.roles import SIZE_VARIABLES, number_in, program_name, rank_of
from gputop.system.text import clean

SHARED = 512  # paths whose parse is kept: hundreds of processes stand in one control group
MOST_CHARS = 128  # characters of one name: Kubernetes allows 63 or 253, Docker any number; a choice

_HEX = "[0-9a-f]"
_ID = rf"({_HEX}{{12,64}})"
_CONTAINERS = (
    (re.compile(rf"docker-{_ID}\.scope"), "Docker"),
    (re.compile(rf"cri-containerd-{_ID}\.scope"), "containerd"),
    (re.compile(rf"(?:.*:)?cri-containerd:{_ID}"), "containerd"),
    (re.compile(rf"nerdctl-{_ID}\.scope"), "containerd"),
    (re.compile(rf"crio-{_ID}(?:\.scope)?"), "CRI-O"),
    (re.compile(rf"libpod-(?:payload-)?{_ID}(?:\.scope)?"), "Podman"),
    (re.compile(r"lxc\.payload\.(.+)"), "LXC"),
)  # (a folder of a path, with the container's id; its runtime)
_BARE_ID = re.compile(rf"{_HEX}{{64}}")  # a folder that is nothing but an id: the driver cgroupfs
_PARENTS = {"docker": "Docker", "lxc": "LXC", "lxc.payload": "LXC"}  # folder above a container's -> its runtime
_MACHINE = re.compile(r"(?:machine-(?!qemu|libvirt|lxc|libpod)|systemd-nspawn@)(.+?)\.(?:scope|service)")
_MOUNTS = (
    (re.compile(rf"/docker/containers/{_ID}/"), "Docker"),
    (re.compile(rf"/containers/storage/overlay-containers/{_ID}/"), "Podman"),
    (re.compile(rf"/io\.containerd\.[\w.]+/(?:sandboxes|containers)/{_ID}/"), "containerd"),
)  # (part of a mount's root with the container's id, its runtime); inside a container's cgroup namespace the cgroup's path is ``/``
_UID = rf"({_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32}})"  # the second is a static pod's
_POD = re.compile(rf"(?:^|[/-])pods?[/]?{_UID}(?=[./:]|$)")
_QOS = re.compile(r"kubepods[^:]*?(burstable|besteffort)")
_SLURM = re.compile(
    r"(?:^|/)(?:slurm[^/]*|[^/]*slurmstepd\.scope)(?:/uid_\d+)?/job_(?P<job>\d+)(?:/step_(?P<step>[^/]+))?(?:/(?:user/)?task_(?P<task>\d+))?"
)  # cgroup v1: /slurm/uid_1000/job_4/step_0/task_1; with several slurmd on a host /slurm_NODE/…, NODE_slurmstepd.scope
_STEPS = {"4294967290": "interactive", "4294967291": "batch", "4294967292": "extern"}  # slurm.h: SLURM_*_STEP, as some versions print them
_NO_RUN = ("", "none")  # values of TORCHELASTIC_RUN_ID that say nothing: torchrun without --rdzv-id
_LOOPBACK = re.compile(r"localhost(\.localdomain)?|127(\.\d+){3}|0\.0\.0\.0|\[?::1?\]?", re.IGNORECASE)  # addresses of one host alone


class Told(Struct, frozen=True):
    """What the paths of a process's control groups tell; empty where they tell nothing."""

    runtime: str = ""
    container_id: str = ""
    pod_uid: str = ""
    qos: str = ""  # ``guaranteed``, ``burstable`` or ``besteffort``
    slurm_job: str = ""
    slurm_step: str = ""  # a number, or ``batch``, ``extern``, ``interactive``
    slurm_task: str = ""


class JobKey(Struct, frozen=True, array_like=True, order=True):
    """What the ranks of one training have in common, on all hosts."""

    name: str  # where they meet: ``abc@node1:29500``, ``node1:29500``, ``slurm 4711.0``; else the program
    size: int  # number of ranks
    is_certain: bool = True  # False: two trainings of one program and size look the same

    def __str__(self) -> str:
        return f"{'' if self.is_certain else '~'}{self.name} × {self.size}"


@lru_cache(maxsize=SHARED)
def told_by(*paths: str) -> Told:
    """What these paths tell: of each part the first that tells it; in a path the innermost container."""
    found = Told()
    for path in paths:
        if path in ("", "/"):
            continue
        runtime, container_id = _container(path)
        pod, slurm = _POD.search(path), _SLURM.search(path)
        parts = {"runtime": runtime, "container_id": container_id} if container_id and not found.container_id else {}
        if pod and not found.pod_uid:
            qos = _QOS.search(path)
            parts |= {"pod_uid": pod[1].replace("_", "-"), "qos": qos[1] if qos else "guaranteed" if "kubepods" in path else ""}
        if slurm and not found.slurm_job:
            step = slurm["step"] or ""
            parts |= {"slurm_job": slurm["job"], "slurm_step": _STEPS.get(step, step), "slurm_task": slurm["task"] or ""}
        found = structs.replace(found, **parts) if parts else found
    return found


def _container(path: str) -> tuple[str, str]:
    """(runtime, id); the runtime is empty where the path does not say it, both where there is no container."""
    folders = path.split("/")
    for i in range(len(folders) - 1, 0, -1):
        folder, above = folders[i], folders[i - 1]
        for sign, runtime in _CONTAINERS:
            if found := sign.fullmatch(folder):
                return runtime, found[1]
        if _BARE_ID.fullmatch(folder):
            return _PARENTS.get(above, "Docker" if folders[1] == "ecs" else ""), folder
        if above in ("lxc", "lxc.payload"):
            return "LXC", folder
        if above == "machine.slice" and (found := _MACHINE.fullmatch(folder)):
            return "systemd-nspawn", re.sub(r"\\x([0-9a-f]{2})", lambda code: chr(int(code[1], 16)), found[1])
    return "", ""


def told_by_mounts(roots: Iterable[str]) -> Told:
    """What the roots of its mounts (mountinfo field 4) tell, where the control group's path is hidden by a namespace."""
    found = Told()
    for root in roots:
        pod = _POD.search(root)
        if pod and not found.pod_uid:  # /var/lib/kubelet/pods/UID/etc-hosts
            found = structs.replace(found, pod_uid=pod[1])
        container = next(((sign[1], runtime) for pattern, runtime in _MOUNTS if (sign := pattern.search(root))), None)
        if container and not found.container_id:
            found = structs.replace(found, container_id=container[0], runtime=container[1])
    return found


def job_key(info: ProcInfo, host: str = "") -> JobKey | None:
    """The training that a process is a rank of; None where its environment names no rank of several.

    ``host`` is where it runs: a rendezvous at ``localhost`` is one of that host, and there of that network namespace. Slurm's step counts
    where nothing tells of a rendezvous, since ranks that ssh or mpirun started on other nodes are in no step, or in another one.
    """
    size = number_in(info.env, SIZE_VARIABLES) or 0
    if rank_of(info) is None or size <= 1:
        return None
    name = _rendezvous(info, host) or _env(info, "PMIX_NAMESPACE") or _slurm_step(info)
    return JobKey(name, size) if name else JobKey(program_name(info), size, is_certain=False)


def _rendezvous(info: ProcInfo, host: str) -> str:
    """``run@address:port``, or what there is of it."""
    run = _env(info, "TORCHELASTIC_RUN_ID")
    address, port = _env(info, "MASTER_ADDR").lower(), _env(info, "MASTER_PORT")
    if not (address and port):
        address, _, port = _env(info, "JAX_COORDINATOR_ADDRESS").lower().rpartition(":")
    met = ""
    if address and port:
        met = f"{address}:{port}"
        if _LOOPBACK.fullmatch(address):
            met = f"{clean(host, MOST_CHARS) or 'localhost'}:{port}{_network(info)}"
        elif space := _env(info, "POD_NAMESPACE"):
            met = f"{space}/{met}"  # the names of services are those of one namespace
    run = "" if run.lower() in _NO_RUN else run
    return f"{run}@{met}" if run and met else run or met


def _network(info: ProcInfo) -> str:
    """In which network namespace a loopback address is, where that is not the collector's; by its container where it cannot be read."""
    if info.names is not None and "net_ns" not in info.names.missing:
        return f" in net:{info.names.net_ns}" if info.names.net_ns else ""
    told = told_by(info.cgroup, *info.other_cgroups)
    inside = told.pod_uid or told.container_id
    return f" in {inside[:12]}" if inside else ""


def _slurm_step(info: ProcInfo) -> str:
    told = told_by(info.cgroup, *info.other_cgroups)
    job = _env(info, "SLURM_HET_JOB_ID") or told.slurm_job or _env(info, "SLURM_JOB_ID")
    step = told.slurm_step or _step_in(info)
    return f"slurm {job}{f'.{step}' if step else ''}" if job else ""


def _step_in(info: ProcInfo) -> str:
    step = _env(info, "SLURM_STEP_ID")
    return _STEPS.get(step, step)


def _env(info: ProcInfo, *names: str) -> str:
    """The first of these variables that is set, cleaned and bounded."""
    return clean(next((value for name in names if (value := info.env.get(name, "").strip())), ""), MOST_CHARS)


def paths_that_tell(paths: Mapping[str, str], known: str) -> list[str]:
    """Of the paths of all hierarchies those that tell what ``known`` does not: Slurm's job may stand in v1's freezer alone."""
    found: list[str] = []
    told = told_by(known)
    for path in dict.fromkeys(paths.values()):
        if (more := told_by(known, *found, path)) != told:
            found, told = [*found, path], more
    return found
