"""What the cgroup, the mounts and the environment of a process tell: its container, its Slurm job, and which values are secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

HIDDEN = "(hidden)"
VALUE_CHARS = 2000  # characters of one variable shown; a choice
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR)|COOKIE|PRIVATE|SIGNATURE|WEBHOOK|CONNECTION_?STRING|SESSION_?ID"
    r"|(^|_)(PASS|DSN)(_|$)|_PWD$|KEY(S|_|$)",
    re.IGNORECASE,
)  # names of variables whose values are hidden. PWD, OLDPWD and GIT_AUTHOR_NAME are shown.
_IN_URL = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:@]*:(?!\d+/)[^\s@]+)(?=@)")
_IN_TEXT = re.compile(
    r"(?i)((?:pass(?:word|wd|phrase)?|pwd|token|secret|credentials?|cookie|(?:api|access|secret|account|private)[-_]?key|signature)"
    r"['\"]?\s*[=:]\s*|\b(?:bearer|basic)\s+)(?:\"[^\"]*\"|'[^']*'|[^\s&;,]+)"
)
_TOKENS = re.compile(
    r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|AKIA|ASIA|eyJ|npm_|pypi-|AIza|ya29\.)[\w.-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)  # tokens of GitHub, GitLab, Hugging Face, OpenAI, Slack, AWS, npm, PyPI and Google, a JWT, a PEM key

_ID = r"([0-9a-f]{12,64})"
_CGROUPS = (
    (re.compile(rf"/cri-containerd-{_ID}\.scope"), "containerd"),
    (re.compile(rf"cri-containerd:{_ID}"), "containerd"),
    (re.compile(rf"/crio-{_ID}"), "CRI-O"),
    (re.compile(rf"/libpod-(?:payload-)?{_ID}"), "Podman"),
    (re.compile(rf"/docker-{_ID}\.scope"), "Docker"),
    (re.compile(rf"/docker/{_ID}"), "Docker"),
    (re.compile(rf"/kubepods[^:]*/{_ID}(?:/|$)"), "Kubernetes"),
    (re.compile(r"/lxc(?:\.payload)?[./]([^/]+)"), "LXC"),
    (re.compile(r"/machine\.slice/(?:machine-|systemd-nspawn@)([^/]+?)\.(?:scope|service)"), "systemd-nspawn"),
)  # (part of a cgroup's path with the container's id, its runtime)
_MOUNTS = (
    (re.compile(rf"/docker/containers/{_ID}/"), "Docker"),
    (re.compile(rf"/containers/storage/overlay-containers/{_ID}/"), "Podman"),
    (re.compile(rf"/io\.containerd\.[\w.]+/(?:sandboxes|containers)/{_ID}/"), "containerd"),
)  # (part of a mount's root with the container's id, its runtime); inside a container's cgroup namespace the cgroup's path is ``/``
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_SLURM_CGROUP = re.compile(r"/job_(?P<job>\d+)(?:/step_(?P<step>[^/]+))?(?:/(?:user/)?task_(?P<task>\d+))?")
_SLURM = {
    "job": ("SLURM_JOB_ID", "SLURM_JOBID"), "array": ("SLURM_ARRAY_JOB_ID",), "array task": ("SLURM_ARRAY_TASK_ID",),
    "step": ("SLURM_STEP_ID", "SLURM_STEPID"), "rank": ("SLURM_PROCID",), "ranks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "local rank": ("SLURM_LOCALID",), "nodes": ("SLURM_JOB_NODELIST", "SLURM_NODELIST"), "node": ("SLURMD_NODENAME",),
    "name": ("SLURM_JOB_NAME",), "partition": ("SLURM_JOB_PARTITION",),
}  # fmt: skip
"""Fact -> the variables that tell it, the better one first."""
_SLURM_CHARS = 200  # characters of one of them


class Container(Struct, frozen=True):
    """The container around a process."""

    runtime: str
    id: str = ""
    pod: str = ""  # kubernetes' id of the pod


def container_of(cgroups: Sequence[str], roots: Sequence[str], environment: Mapping[str, str]) -> Container | None:
    """The container of a process with these cgroup paths, roots of mounts (mountinfo field 4) and environment; None where nothing tells of
    one."""
    everything = "\n".join((*cgroups, *roots))
    pod = found[1].replace("_", "-") if (found := _POD.search(everything)) else ""
    for texts, signs in ((cgroups, _CGROUPS), (roots, _MOUNTS)):
        for text in texts:
            for sign, runtime in signs:
                if found := sign.search(text):
                    return Container(runtime, found[1], pod)
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if name in environment:
            return Container("Apptainer", environment[name][:_SLURM_CHARS], pod)
    if pod or "KUBERNETES_SERVICE_HOST" in environment:
        return Container("Kubernetes", "", pod)
    return Container(environment["container"][:_SLURM_CHARS]) if environment.get("container") else None


def slurm_of(cgroups: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Facts of `_SLURM`, from the environment or, where that is closed or cleared, from the cgroup; empty outside Slurm."""
    told: dict[str, str] = {}
    for path in cgroups:
        if "slurm" in path and (found := _SLURM_CGROUP.search(path)):
            told.update({fact: value for fact, value in found.groupdict().items() if value})
    for fact, names in _SLURM.items():
        if value := next((environment[name] for name in names if environment.get(name)), ""):
            told[fact] = value[:_SLURM_CHARS]
    return told if "job" in told else {}


def masked(name: str, value: str) -> str:
    """The value as it is shown: hidden where the name looks secret, without passwords in URLs and tokens of well-known services."""
    if _SECRET_NAME.search(name):
        return HIDDEN if value else ""
    shown = value[: 2 * VALUE_CHARS]  # the expressions take a microsecond a character
    shown = _TOKENS.sub(HIDDEN, _IN_TEXT.sub(rf"\g<1>{HIDDEN}", _IN_URL.sub(HIDDEN, shown)))
    return shown if len(value) <= VALUE_CHARS else f"{shown[:VALUE_CHARS]} … ({len(value):,} characters)"
