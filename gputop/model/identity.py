"""Owner of a process: its container, pod, Slurm job and user; and the training that it is a rank of. Pure.

A container's runtime and id, a pod's uid and a Slurm job stand in the path of a control group (`identity_in_paths`). Names that stand only
in files of the machine (`gputop.model.frame.Names`) are read by `gputop.sources.procfs.names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from msgspec import Struct, structs

from gputop.model.frame import Names, ProcInfo
from gputop.model.roles import SIZE_VARIABLES, number_in, program_name, rank_of
from gputop.system.text import clean

SHARED = 512  # paths whose parse is kept: hundreds of processes stand in one control group
SHORT_ID = 12  # characters of a container's id on the screen, as docker ps shows it
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
    (re.compile(rf"/io\.containerd\.[\w.]+/containers/{_ID}/"), "containerd"),
    (re.compile(r"/io\.containerd\.[\w.]+/(sandboxes)/"), "containerd"),  # with the id of the pod's sandbox, not of this container
)  # (part of a mount's root with the container's id, its runtime); inside a container's cgroup namespace the cgroup's path is ``/``
_UID = rf"({_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32}})"  # the second is a static pod's
_POD = re.compile(rf"(?:^|[/-])pods?[/]?{_UID}(?=[./:]|$)")
_QOS = re.compile(r"kubepods[^:]*?(burstable|besteffort)")
_SLURM = re.compile(
    r"(?:^|/)(?:slurm[^/]*|[^/]*slurmstepd\.scope)(?:/uid_\d+)?/job_(?P<job>\d+)(?:/step_(?P<step>[^/]+))?(?:/(?:user/)?task_(?P<task>\d+))?"
)  # cgroup v1: /slurm/uid_1000/job_4/step_0/task_1; with several slurmd on a host /slurm_NODE/…, NODE_slurmstepd.scope
_STEPS = {"4294967290": "interactive", "4294967291": "batch", "4294967292": "extern"}  # slurm.h: SLURM_*_STEP, as some versions print them
BY_HOSTNAME = "HOSTNAME"  # value of `Names.pod_by`
_CLOSED = "cannot be read: it belongs to another user"
_NO_RUN = ("", "none")  # values of TORCHELASTIC_RUN_ID without a meaning: torchrun without --rdzv-id
_LOOPBACK = re.compile(r"localhost(\.localdomain)?|127(\.\d+){3}|0\.0\.0\.0|\[?::1?\]?", re.IGNORECASE)  # addresses of one host alone


class CgroupIdentity(Struct, frozen=True):
    """Identity in the paths of a process's control groups; a field is empty if they do not have it."""

    runtime: str = ""
    container_id: str = ""
    pod_uid: str = ""
    qos: str = ""  # ``guaranteed``, ``burstable`` or ``besteffort``
    slurm_job: str = ""
    slurm_step: str = ""  # a number, or ``batch``, ``extern``, ``interactive``
    slurm_task: str = ""


class Identity(Struct, frozen=True):
    """Owner of a process: user, container, pod, Slurm job, training. ``missing`` has the reason of each field that is None."""

    user: str | None = None
    container_runtime: str | None = None  # ``Docker``, ``containerd``, ``CRI-O``, ``Podman``, ``LXC``, ``Apptainer`` …
    container_id: str | None = None
    container: str | None = None  # its name
    pod: str | None = None
    pod_by: str | None = None  # where the pod's name stands: a variable, or a file of the machine
    namespace: str | None = None  # the pod's
    pod_uid: str | None = None
    pod_qos: str | None = None  # ``guaranteed``, ``burstable`` or ``besteffort``
    slurm_job_id: str | None = None
    slurm_step: str | None = None  # a number, or ``batch``, ``extern``, ``interactive``
    slurm_task: str | None = None  # the task's number on its node
    slurm_array: str | None = None  # ``4700_12``: task 12 of array 4700
    slurm_node: str | None = None  # the node as Slurm calls it
    training: str | None = None  # the training that it is a rank of, see `JobKey`
    missing: dict[str, str] = {}

    def known(self) -> dict[str, str]:
        """Field -> value, of the known fields."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    def brief(self) -> str:
        """The best short name: ``ml/bert-0``, ``slurm 4711.0``, the container; empty if none is known."""
        if self.pod:
            return f"{self.namespace}/{self.pod}" if self.namespace else self.pod
        if self.slurm_job_id:
            return f"slurm {self.slurm_array or self.slurm_job_id}{f'.{self.slurm_step}' if self.slurm_step else ''}"
        return self.container or (self.container_id or "")[:SHORT_ID]


FIELDS = tuple(name for name in Identity.__struct_fields__ if name != "missing")


class JobKey(Struct, frozen=True, array_like=True, order=True):
    """Key that the ranks of one training share, on all hosts."""

    name: str  # where they meet: ``abc@node1:29500``, ``node1:29500``, ``slurm 4711.0``; else the program
    size: int  # number of ranks
    is_certain: bool = True  # False: two trainings of one program and size look the same

    def __str__(self) -> str:
        return f"{'' if self.is_certain else '~'}{self.name} × {self.size}"


@lru_cache(maxsize=SHARED)
def identity_in_paths(*paths: str) -> CgroupIdentity:
    """Identity in these paths. The first path that has a part counts, and in a path the innermost container."""
    found = CgroupIdentity()
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


def in_pod(info: ProcInfo) -> bool:
    """True if a process runs in a pod, by its control group."""
    return bool(identity_in_paths(info.cgroup, info.cpu_cgroup).pod_uid)


def _container(path: str) -> tuple[str, str]:
    """(runtime, id) of the container in a path; the runtime is empty if the path lacks it, both if there is no container."""
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


def identity_in_mounts(roots: Iterable[str]) -> CgroupIdentity:
    """Identity in the roots of its mounts (mountinfo field 4), for a process whose control group's path a namespace hides."""
    found = CgroupIdentity()
    for root in roots:
        pod = _POD.search(root)
        if pod and not found.pod_uid:  # /var/lib/kubelet/pods/UID/etc-hosts
            found = structs.replace(found, pod_uid=pod[1])
        runtime, container_id = next(((runtime, sign[1]) for pattern, runtime in _MOUNTS if (sign := pattern.search(root))), ("", ""))
        if runtime and not found.container_id:
            found = structs.replace(found, runtime=runtime, container_id="" if container_id == "sandboxes" else container_id)
    return found


def identity_of(info: ProcInfo, host: str = "") -> Identity:
    """Owner of a process, from its control groups, its environment and the names that were read; cleaned and bounded. ``host`` as in
    `job_key`."""
    known = known_of(info, host)
    return Identity(**known, missing=_reasons(info, known))


def brief_of(info: ProcInfo) -> str:
    """`Identity.brief`, without the reasons: it is asked for each row of a table."""
    return Identity(**known_of(info), missing={}).brief()


def known_of(info: ProcInfo, host: str = "") -> dict[str, str]:
    """The known fields of `identity_of`, without the reasons for the missing ones."""
    told, names = identity_in_paths(info.cgroup, *info.other_cgroups), info.names or Names()
    pod, pod_by = _pod(info, names)
    image = _env(info, "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
    array, task = _env(info, "SLURM_ARRAY_JOB_ID"), _env(info, "SLURM_ARRAY_TASK_ID")
    job = told.slurm_job or _env(info, "SLURM_JOB_ID")
    found = {
        "user": info.user,
        "container_runtime": told.runtime or names.runtime or ("Apptainer" if image else _env(info, "container")),
        "container_id": told.container_id or names.container_id,
        "container": names.container or image,
        "pod": pod, "pod_by": pod_by if pod else "",
        "namespace": names.namespace or _env(info, "POD_NAMESPACE"),
        "pod_uid": told.pod_uid or names.pod_uid,
        "pod_qos": told.qos,
        "slurm_job_id": job,
        "slurm_step": (told.slurm_step or _step_in(info)) if job else "",
        "slurm_task": told.slurm_task,
        "slurm_array": f"{array}_{task}" if array and task else "",
        "slurm_node": _env(info, "SLURMD_NODENAME"),
        "training": str(key) if (key := job_key(info, host)) else "",
    }  # fmt: skip
    return {name: clean(value, MOST_CHARS) for name, value in found.items() if value}


def _pod(info: ProcInfo, names: Names) -> tuple[str, str]:
    """(name of the pod, where that stands): a file of the machine is surest, a host name may differ from it."""
    given = _env(info, "POD_NAME")
    if names.pod and (names.pod_by != BY_HOSTNAME or not given):
        return names.pod, names.pod_by
    return given, "POD_NAME"


def _reasons(info: ProcInfo, known: Mapping[str, str]) -> dict[str, str]:
    """Field -> why it is not known."""
    names = info.names
    unread = "not read yet" if names is None else ""
    closed = names.missing.get("environment", "") if names else _CLOSED if info.uses_cuda is None and not info.env else ""
    mounts = unread or (names.missing.get("mounts", "") if names else "")
    in_container = "container_id" in known or "container" in known or "container_runtime" in known
    in_pod = "pod_uid" in known or "pod" in known or "KUBERNETES_SERVICE_HOST" in info.env
    hidden = mounts if info.cgroup in ("", "/") else ""
    outside = f"its control group names none, its mounts: {hidden}" if hidden else "neither control group nor mounts name one"
    unset = f"its environment: {closed}" if closed else "its environment does not name one"
    no_job = f"its control group names none, {unset}" if closed else "neither control group nor environment name one"
    reasons = {
        "user": "not read yet" if info.uid is None else f"uid {info.uid} has no name on this machine",
        "container_runtime": "its control group's path does not show which" if in_container else outside,
        "container_id": "only its environment names a container" if in_container else outside,
        "container": (unread or _missing(names, "container", "no file of its runtime names it")) if in_container else outside,
        "pod": (unread or _missing(names, "pod", unset)) if in_pod else outside,
        "namespace": (unread or _missing(names, "namespace", unset)) if in_pod else outside,
        "pod_uid": "neither control group nor mounts name it" if in_pod else outside,
        "pod_qos": "its control group's path does not show it" if in_pod else outside,
        "slurm_job_id": no_job,
        "slurm_step": (unset if closed else "neither control group nor environment name it") if "slurm_job_id" in known else no_job,
        "slurm_task": "its control group's path does not show it" if "slurm_job_id" in known else no_job,
        "slurm_array": unset, "slurm_node": unset,
        "training": f"its environment: {closed}" if closed else "its environment names no rank of several",
    }  # fmt: skip
    reasons["pod_by"] = reasons["pod"]
    return {name: reasons[name] for name in FIELDS if name not in known}


def _missing(names: Names | None, field: str, otherwise: str) -> str:
    return (names.missing.get(field, "") if names else "") or otherwise


def job_key(info: ProcInfo, host: str = "") -> JobKey | None:
    """The training that a process is a rank of; None if its environment names no rank of several.

    ``host``: the host where it runs; a rendezvous at ``localhost`` belongs to that host, and there to that network namespace. Slurm's step
    counts only if no rendezvous is known: ranks that ssh or mpirun started on other nodes are in no step, or in another one.
    """
    size = number_in(info.env, SIZE_VARIABLES) or 0
    if rank_of(info) is None or size <= 1:
        return None
    name = _rendezvous(info, host) or _env(info, "PMIX_NAMESPACE") or _slurm_step(info)
    return JobKey(name, size) if name else JobKey(program_name(info, titled=False), size, is_certain=False)


def _rendezvous(info: ProcInfo, host: str) -> str:
    """``run@address:port``, as far as known."""
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
    """Text that names the network namespace of a loopback address, or its container if the namespace cannot be read; empty for the
    collector's own."""
    if info.names is not None and "net_ns" not in info.names.missing:
        return f" in net:{info.names.net_ns}" if info.names.net_ns else ""
    told = identity_in_paths(info.cgroup, *info.other_cgroups)
    inside = told.pod_uid or told.container_id
    return f" in {inside[:12]}" if inside else ""


def _slurm_step(info: ProcInfo) -> str:
    told = identity_in_paths(info.cgroup, *info.other_cgroups)
    job = _env(info, "SLURM_HET_JOB_ID") or told.slurm_job or _env(info, "SLURM_JOB_ID")
    step = told.slurm_step or _step_in(info)
    return f"slurm {job}{f'.{step}' if step else ''}" if job else ""


def _step_in(info: ProcInfo) -> str:
    step = _env(info, "SLURM_STEP_ID")
    return _STEPS.get(step, step)


def _env(info: ProcInfo, *names: str) -> str:
    """Value of the first variable that is set, cleaned and bounded; empty without one."""
    env = info.env
    value = next((value for name in names if name in env and (value := env[name].strip())), "")
    return clean(value, MOST_CHARS) if value else ""


def identifying_paths(paths: Mapping[str, str], known: str) -> list[str]:
    """Paths of all hierarchies that add something to what ``known`` holds: Slurm's job may stand in v1's freezer alone."""
    found: list[str] = []
    told = identity_in_paths(known)
    for path in dict.fromkeys(paths.values()):
        if (more := identity_in_paths(known, *found, path)) != told:
            found, told = [*found, path], more
    return found
