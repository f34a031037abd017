"""Names of a trainer's container and pod, from files of the machine.

A thread reads them, so no beat waits: a file system may hang, and a runtime's file may be large. No runtime is asked through its socket,
for that takes the rights of root. Where the names stand:

    /var/log/containers, /var/log/pods   kubelet's names of log files, readable for all users on most nodes
    the command line of conmon           Podman's and CRI-O's monitor, the parent of the container's first process, readable for all users
    a runtime's file of the container    Docker, containerd, CRI-O; for root
    its service account's namespace      a file in the container, for whoever may read the process
    HOSTNAME                             in a pod without another name
"""

from __future__ import annotations

import os
import queue
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice, pairwise
from typing import Any

import msgspec

from gputop.model.frame import SECOND_NS, Names, ProcInfo
from gputop.model.identity import BY_HOSTNAME, CgroupIdentity, identity_in_mounts, identity_in_paths
from gputop.sources import parse
from gputop.sources.files import mounted, why
from gputop.sources.procfs.packages import TORCH, packages
from gputop.system.decoding import BROKEN
from gputop.system.errors import start_thread

RETRY_NS = 60 * SECOND_NS  # ns after which names that were not found are looked for again; a choice
ONCE_S = 0.3  # s that a single look (`--once`) waits for them; a choice
MOST_KEPT = 1024  # containers with kept names
MOST_ENTRIES = 16_384  # entries looked at of a folder of logs; a node runs some hundred pods
CONFIG_BYTES = 1 << 20  # bytes of a runtime's file of one container, 10 to 50 KB as a rule
ABOVE = 32  # most ancestors among which conmon is looked for: a shell, a launcher, the container's init

_NAMED = re.compile(r"[A-Za-z0-9][\w.-]{0,252}")  # what runtimes and Kubernetes allow as a name
_LOG = re.compile(r"([^_]+)_([^_]+)_(.+)-([0-9a-f]{64})\.log")  # POD_NAMESPACE_CONTAINER-ID.log
_ANNOTATIONS = {
    "container": ("io.kubernetes.cri.container-name", "io.kubernetes.container.name", "nerdctl/name"),
    "pod": ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
    "namespace": ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"),
    "pod_uid": ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"),
}  # fmt: skip
"""Field of `Names` -> annotations or labels of containerd, CRI-O, Docker and nerdctl that hold it."""
_TASKS = "run/containerd/io.containerd.runtime.v2.task"
_CONFIGS = (
    ("containerd", f"{_TASKS}/k8s.io/{{}}/config.json"), ("containerd", f"{_TASKS}/default/{{}}/config.json"),
    ("Docker", "var/lib/docker/containers/{}/config.v2.json"),
    ("CRI-O", "run/containers/storage/overlay-containers/{}/userdata/config.json"),
    ("CRI-O", "var/lib/containers/storage/overlay-containers/{}/userdata/config.json"),
)  # fmt: skip
"""(runtime, its file of a container)"""
_SERVICE_ACCOUNT = ("run", "secrets", "kubernetes.io", "serviceaccount")


class _Labelled(msgspec.Struct):
    Labels: dict[str, Any] | None = None


class _Config(msgspec.Struct):
    """An OCI config.json, or Docker's config.v2.json."""

    annotations: dict[str, Any] | None = None
    Name: str = ""
    Config: _Labelled | None = None


class NameReader:
    """Reads names in a thread of its own, which ends when no trainer is left to ask for."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._due_ns: dict[int, tuple[int, int]] = {}  # pid -> (start_ticks, when to ask again)
        self._to_read: queue.SimpleQueue[ProcInfo] = queue.SimpleQueue()
        self._read: queue.SimpleQueue[tuple[int, int, Names]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._kept: dict[str, Names] = {}  # container id -> its known names

    def ask(self, info: ProcInfo, t_ns: int) -> None:
        """Ask for the names of a trainer, if that is due."""
        start_ticks, due_ns = self._due_ns.get(info.pid, (-1, 0))
        has_all = info.names is not None and not info.names.missing and (TORCH not in info.libs or bool(info.names.packages))
        if start_ticks == info.start_ticks and (t_ns < due_ns or has_all):
            return
        self._due_ns[info.pid] = info.start_ticks, t_ns + RETRY_NS
        self._to_read.put(info)
        if self._thread is None or not self._thread.is_alive():
            self._thread = start_thread(self._work, "gputop-names")

    def answers(self) -> Iterator[tuple[int, int, Names]]:
        """(pid, start_ticks, names) that were read since the last call."""
        with suppress(queue.Empty):
            while True:
                yield self._read.get_nowait()

    def wait(self) -> None:
        """Wait until all are read, `ONCE_S` at most."""
        if self._thread is not None:
            self._thread.join(ONCE_S)

    def forget(self, pid: int) -> None:
        """Forget a process that has ended."""
        self._due_ns.pop(pid, None)

    def _work(self) -> None:
        with suppress(queue.Empty):
            while True:
                info = self._to_read.get_nowait()
                self._read.put((info.pid, info.start_ticks, self._names(info)))

    def _names(self, info: ProcInfo) -> Names:
        reading = _NameLookup(self._root, info)
        container_id = reading.told.container_id
        if not container_id or container_id not in self._kept:
            reading.read_container()
            if container_id and not reading.missing.keys() & {"container", "pod", "namespace"}:
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                self._kept[container_id] = Names(**reading.found)
        else:
            kept = self._kept[container_id]
            reading.found |= {name: getattr(kept, name) for name in ("container", "pod", "namespace", "pod_by", "runtime", "pod_uid")}
        return msgspec.structs.replace(reading.names(), packages=packages(f"{self._root}proc/{info.pid}/"))


class _NameLookup:
    """The reading of one process's names."""

    def __init__(self, root: str, info: ProcInfo) -> None:
        self._root, self._info = root, info
        self._folder = f"{root}proc/{info.pid}/"
        self.found: dict[str, Any] = {}
        self.missing: dict[str, str] = {}
        self._net_ns = self._read_net_ns()
        self._hostname = self._read_hostname()
        self.told = self._read_identity()
        self._refused = ""  # the first file that only root may read

    def names(self) -> Names:
        return Names(**{name: value for name, value in self.found.items() if value}, net_ns=self._net_ns, missing=self.missing)

    def read_container(self) -> None:
        """Container, pod and namespace, by the files that hold them; each one missing gets its reason."""
        told = self.told
        if told.container_id:
            self._look(self._in_container_logs, self._at_conmon, self._in_configs)
        if told.pod_uid or self.found.get("pod_uid"):
            self._look(self._in_pod_logs)
        in_pod = bool(told.pod_uid or self.found.get("pod_uid") or "KUBERNETES_SERVICE_HOST" in self._info.env)
        if in_pod:
            self._look(self._in_service_account, self._by_hostname)
        refused = f"needs root: {self._refused}" if self._refused else ""
        wanted = [("container", "no file of its runtime names it")] if told.container_id else []
        wanted += [(name, "neither kubelet's logs nor its runtime nor its environment name it") for name in ("pod", "namespace") if in_pod]
        self.missing |= {name: refused or reason for name, reason in wanted if not self.found.get(name)}

    def _look(self, *places: Callable[[], dict[str, str]]) -> None:
        """Take from each place what is not known yet."""
        for place in places:
            try:
                told = place()
            except PermissionError as error:
                self._refused = self._refused or f"{error.filename}: {why(error)}"
                continue
            except (OSError, *BROKEN):  # not there, or not what this runtime writes
                continue
            for name, value in told.items():
                if value and _NAMED.fullmatch(value) is None and name not in ("pod_by", "runtime"):
                    continue
                if name == "pod_by" and self.found.get("pod_by"):
                    continue
                self.found[name] = self.found.get(name) or value

    def _in_container_logs(self) -> dict[str, str]:
        folder = f"{self._root}var/log/containers"
        for name in _entries(folder):
            if name.endswith(f"-{self.told.container_id}.log") and (found := _LOG.fullmatch(name)):
                return {"pod": found[1], "namespace": found[2], "container": found[3], "pod_by": "/var/log/containers"}
        return {}

    def _in_pod_logs(self) -> dict[str, str]:
        folder, uid = f"{self._root}var/log/pods", self.told.pod_uid or self.found["pod_uid"]
        for name in _entries(folder):
            namespace, _, rest = name.partition("_")
            pod, _, own = rest.rpartition("_")
            if own == uid and pod and namespace:
                containers = list(_entries(f"{folder}/{name}"))
                alone = containers[0] if len(containers) == 1 and self.told.container_id else ""
                return {"pod": pod, "namespace": namespace, "container": alone, "pod_by": "/var/log/pods"}
        return {}

    def _at_conmon(self) -> dict[str, str]:
        """Names from ``conmon … -c ID … -n NAME``, a parent of the container; CRI-O's are ``k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT``."""
        if self.told.runtime not in ("Podman", "CRI-O", ""):
            return {}
        pid = self._info.ppid
        for _ in range(ABOVE):
            if pid <= 1:
                break
            words = parse.cmdline(_bytes(f"{self._root}proc/{pid}/cmdline", parse.CMDLINE_BYTES))
            if words and words[0].rpartition("/")[2] == "conmon" and self.told.container_id in words:
                name = next((value for option, value in pairwise(words) if option in ("-n", "--name")), "")
                parts = name.split("_")
                if parts[0] == "k8s" and len(parts) == 6:
                    return {"container": parts[1], "pod": parts[2], "namespace": parts[3], "pod_uid": parts[4], "pod_by": "conmon",
                            "runtime": "CRI-O"}  # fmt: skip
                return {"container": name, "runtime": "Podman"}
            pid = parse.stat(_bytes(f"{self._root}proc/{pid}/stat", 4096)).ppid
        return {}

    def _in_configs(self) -> dict[str, str]:
        refused: PermissionError | None = None
        for runtime, path in _CONFIGS:
            if self.told.runtime not in (runtime, ""):
                continue
            try:
                config = msgspec.json.decode(_bytes(self._root + path.format(self.told.container_id), CONFIG_BYTES), type=_Config)
            except PermissionError as error:
                refused = refused or error
                continue
            except (OSError, *BROKEN):
                continue
            told = {**(config.annotations or {}), **((config.Config.Labels if config.Config else None) or {})}
            found = {field: next((str(told[one]) for one in names if told.get(one)), "") for field, names in _ANNOTATIONS.items()}
            pod_by = runtime if found["pod"] else ""
            return {**found, "container": found["container"] or config.Name.removeprefix("/"), "runtime": runtime, "pod_by": pod_by}
        if refused is not None:
            raise refused
        return {}

    def _in_service_account(self) -> dict[str, str]:
        """Namespace from the container's service account. Of its links only those without a slash are followed: none must lead to a file of
        the host."""
        for above in ((), ("var",)):
            with suppress(FileNotFoundError, NotADirectoryError):
                return {"namespace": _text_inside(f"{self._folder}root", (*above, *_SERVICE_ACCOUNT))}
        return {}

    def _by_hostname(self) -> dict[str, str]:
        """A pod in the network of the host has the host's name, unless gputop runs in that pod."""
        if self._info.env.get("POD_NAME") or (not self._net_ns and "KUBERNETES_SERVICE_HOST" not in os.environ):
            return {}
        return {"pod": self._hostname, "pod_by": BY_HOSTNAME} if self._hostname else {}

    def _read_net_ns(self) -> int:
        """The inode of its network namespace; 0 if it is gputop's own, or not readable."""
        try:
            own, its = (os.readlink(f"{folder}ns/net") for folder in (f"{self._root}proc/self/", self._folder))
        except OSError as error:
            self.missing["net_ns"] = why(error)
            return 0
        return 0 if own == its else int(its.partition("[")[2].rstrip("]") or 0)

    def _read_hostname(self) -> str:
        try:
            data = _bytes(f"{self._folder}environ", 1 << 18)
        except OSError as error:
            self.missing["environment"] = why(error)
            return ""
        return parse.environ(data, frozenset((b"HOSTNAME",))).get("HOSTNAME", "")

    def _read_identity(self) -> CgroupIdentity:
        """Read container, pod and Slurm job from the process's control groups; if a namespace hides these, from its mounts."""
        told = identity_in_paths(self._info.cgroup, *self._info.other_cgroups)
        if told.container_id or self._info.cgroup not in ("", "/"):
            return told
        path = f"{self._folder}mountinfo"
        try:
            _bytes(path, 64)  # `mounted` gives no reason
        except OSError as error:
            self.missing["mounts"] = why(error)
            return told
        seen = identity_in_mounts(mount.root for mount in mounted(path))
        self.found = {"container_id": seen.container_id, "runtime": seen.runtime, "pod_uid": seen.pod_uid}
        return msgspec.structs.replace(told, container_id=seen.container_id, runtime=seen.runtime, pod_uid=told.pod_uid or seen.pod_uid)


def _entries(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in islice(entries, MOST_ENTRIES))


def _bytes(path: str, size: int) -> bytes:
    """The first ``size`` bytes of an ordinary file. Raises OSError; a FIFO or device raises it at once."""
    return _read(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), size)


def _read(fd: int, size: int) -> bytes:
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError("not an ordinary file")
        data = b""
        while len(data) < size and (part := os.read(fd, size - len(data))):
            data += part
        return data
    finally:
        os.close(fd)


def _text_inside(root: str, folders: tuple[str, ...]) -> str:
    """``..data/namespace`` in a folder of a container, as kubelet lays it out."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(root, flags)
    try:
        for name in (*folders, ""):
            below = name or os.readlink("..data", dir_fd=fd)
            if "/" in below or below in (".", ".."):
                raise OSError("a link that leads elsewhere")
            fd, above = os.open(below, flags | os.O_NOFOLLOW, dir_fd=fd), fd
            os.close(above)
        file = os.open("namespace", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        return parse.text(_read(file, 64)).strip()
    finally:
        os.close(fd)
