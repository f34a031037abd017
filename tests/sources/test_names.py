"""Names behind ids: of containers and pods, from made-up files of a machine, from real control groups, and never in a beat."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.model.frame import Names, ProcInfo
from gputop.model.identity import Identity, identity_of
from gputop.sources.procfs import names
from gputop.sources.procfs.names import NameReader
from tests.wait import until

ID, UID = "3f2a" * 16, "12345678-1234-1234-1234-123456789abc"
POD = f"/kubepods/burstable/pod{UID}/{ID}"
K8S = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


class Machine:
    """A root folder with one process, 7, whose parent is 5."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file("proc/7/environ", "HOME=/root\0HOSTNAME=bert-0-host\0")
        self.file("proc/7/mountinfo", "")
        for pid, inode in (("self", 1), ("7", 2)):
            (root / f"proc/{pid}/ns").mkdir(parents=True, exist_ok=True)
            os.symlink(f"net:[{inode}]", root / f"proc/{pid}/ns/net")

    def file(self, path: str, text: str) -> Path:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        return self.root / path

    def read(self, cgroup: str, **env: str) -> Identity:
        info = ProcInfo(7, 1, ppid=5, uid=0, user="root", cgroup=cgroup, env=env)
        found = NameReader(f"{self.root}/")._names(info)
        self.names = found
        return identity_of(replace(info, names=found))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_kubelets_logs_of_containers(machine: Machine) -> None:
    machine.file(f"var/log/containers/bert-0_ml_train-main-{ID}.log", "")
    machine.file(f"var/log/containers/other_ml_train-{'a' * 64}.log", "")
    found = machine.read(POD)
    assert (found.pod, found.namespace, found.container, found.pod_by) == ("bert-0", "ml", "train-main", "/var/log/containers")
    assert (machine.names.missing, machine.names.net_ns) == ({}, 2)


def test_kubelets_logs_of_pods(machine: Machine) -> None:
    machine.file(f"var/log/pods/ml_bert-0_{UID}/train/0.log", "")
    found = machine.read(POD, POD_NAME="lies", POD_NAMESPACE="lies")
    assert (found.pod, found.namespace, found.container, found.pod_by) == ("bert-0", "ml", "train", "/var/log/pods")
    machine.file(f"var/log/pods/ml_bert-0_{UID}/sidecar/0.log", "")
    found = machine.read(POD)
    assert (found.pod, found.container, found.missing["container"]) == ("bert-0", None, "no file of its runtime names it")


@pytest.mark.parametrize(
    ("path", "config", "runtime", "told"),
    [
        ("run/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json", {"ociVersion": "1.1", "annotations": {
            "io.kubernetes.cri.container-name": "train", "io.kubernetes.cri.sandbox-name": "bert-0",
            "io.kubernetes.cri.sandbox-namespace": "ml"}}, "containerd", ("bert-0", "ml", "train")),
        ("var/lib/docker/containers/{}/config.v2.json", {"ID": ID, "Name": "/trainer", "Config": {"Image": "x", "Labels": {}}}, "Docker",
         (None, None, "trainer")),
        ("var/lib/docker/containers/{}/config.v2.json", {"Name": "/k8s_train_bert-0_ml", "Config": {"Labels": {
            "io.kubernetes.container.name": "train", "io.kubernetes.pod.name": "bert-0", "io.kubernetes.pod.namespace": "ml"}}}, "Docker",
         ("bert-0", "ml", "train")),
        ("run/containers/storage/overlay-containers/{}/userdata/config.json", {"annotations": {
            "io.kubernetes.container.name": "train", "io.kubernetes.pod.name": "bert-0", "io.kubernetes.pod.namespace": "ml"}}, "CRI-O",
         ("bert-0", "ml", "train")),
    ],
)  # fmt: skip
def test_a_runtimes_file_of_the_container(machine: Machine, path: str, config: object, runtime: str, told: tuple[str | None, ...]) -> None:
    machine.file(path.format(ID), json.dumps(config))
    found = machine.read(f"/training/{ID}")
    assert (found.container_runtime, (found.pod, found.namespace, found.container)) == (runtime, told)


@pytest.mark.parametrize(
    ("name", "told"), [("trainer", ("Podman", None, "trainer")), (f"k8s_train_bert-0_ml_{UID}_0", ("CRI-O", "bert-0", "train"))]
)
def test_the_monitor_of_podman_and_cri_o(machine: Machine, name: str, told: tuple[str, str | None, str]) -> None:
    """The container's first process stands between; nobody needs root for it."""
    stat = "5 (init) S 4 " + " ".join(["0"] * 48)
    machine.file("proc/5/stat", stat)
    machine.file("proc/5/cmdline", "/sbin/init\0")
    machine.file("proc/4/cmdline", "\0".join(["/usr/bin/conmon", "--api-version", "1", "-c", ID, "-u", ID, "-n", name, "--log-level", "x"]))
    found = machine.read(f"/training/{ID}")
    assert (found.container_runtime, found.pod, found.container) == told


def test_in_a_pod_whose_path_is_hidden(machine: Machine) -> None:
    """As where gputop and the job share a container: mounts tell the pod, a file in the container its namespace."""
    machine.file("proc/7/mountinfo", f"1 2 8:1 /var/lib/kubelet/pods/{UID}/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n")
    secrets = machine.root / "proc/7/root/run/secrets/kubernetes.io/serviceaccount"
    machine.file(str((secrets / "..2026/namespace").relative_to(machine.root)), "ml\n")
    os.symlink("..2026", secrets / "..data")
    os.symlink("..data/namespace", secrets / "namespace")
    found = machine.read("/", **K8S)
    assert (found.pod_uid, found.namespace, found.pod, found.pod_by) == (UID, "ml", "bert-0-host", "HOSTNAME")
    assert machine.read("/", **K8S, POD_NAME="bert-0").pod == "bert-0"


@pytest.mark.parametrize("target", ["/etc", "../../../../..", "."])
def test_a_containers_links_do_not_lead_out_of_it(machine: Machine, target: str) -> None:
    secrets = machine.root / "proc/7/root/run/secrets/kubernetes.io/serviceaccount"
    secrets.mkdir(parents=True)
    machine.file("namespace", "stolen")
    machine.file(str((secrets / "namespace").relative_to(machine.root)), "stolen")
    os.symlink(target, secrets / "..data")
    assert machine.read("/", **K8S).namespace is None
    (secrets / "..data").unlink()
    (secrets / "..data").mkdir()
    os.symlink(machine.root / "namespace", secrets / "..data" / "namespace")
    assert machine.read("/", **K8S).namespace is None


def test_what_is_no_file_and_no_json_and_no_name_is_passed_over(machine: Machine) -> None:
    path = f"var/lib/docker/containers/{ID}/config.v2.json"
    deep = '{"x": ' + "[" * 9000
    for text in ("", "{", deep, "[]", '{"Name": 5}', json.dumps({"Name": "/" + "a\x1b[2J"}), json.dumps({"Name": "/" + "a" * 300})):
        machine.file(path, text)
        found = machine.read(f"/docker/{ID}")
        assert (found.container, found.missing["container"]) == (None, "no file of its runtime names it"), text
    (machine.root / path).unlink()
    os.mkfifo(machine.root / path)
    os.mkfifo(machine.file("var/log/pods/x", "").with_name("fifo"))
    assert machine.read(f"/docker/{ID}").container is None


def test_what_only_root_may_read_is_the_reason(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, _size: int) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(names, "_bytes", refuse)
    found = machine.read(f"/docker/{ID}")
    assert found.missing["container"].startswith(f"needs root: {machine.root}/var/lib/docker/containers/{ID}/config.v2.json")
    assert found.missing["slurm_array"] == "its environment: permission denied"


def test_nobody_waits_for_a_file_system_that_hangs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(NameReader, "_names", lambda _self, _info: let_go.wait(30) and Names())
    reader, info = NameReader(f"{machine.root}/"), ProcInfo(7, 1)
    started = time.monotonic()
    for beat in range(100):
        reader.ask(info, beat)
        assert list(reader.answers()) == []
    assert time.monotonic() - started < 5.0
    let_go.set()
    until(lambda: list(reader.answers()) == [(7, 1, Names())])
    reader.ask(replace(info, names=Names()), names.RETRY_NS * 2)
    assert reader._to_read.empty(), "what is whole is not read again"


CPU = Path("/sys/fs/cgroup/cpu")
FREEZER = Path("/sys/fs/cgroup/freezer")
UNIFIED = next((path for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if (path / "cgroup.procs").exists()), None)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


REAL = [
    (f"docker/{ID}", ("Docker", ID[:12])), (f"kubepods/burstable/pod{UID}/{ID}", (None, ID[:12])),
    (f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope/container", ("CRI-O", ID[:12])),
    (f"machine.slice/libpod-{ID}.scope/container", ("Podman", ID[:12])),
    ("system.slice/slurmstepd.scope/job_4711/step_0/user/task_1", (None, "slurm 4711.0")),
    ("slurm/uid_0/job_4711/step_batch", (None, "slurm 4711.batch")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "told"), REAL)
@pytest.mark.parametrize("hierarchy", [CPU, FREEZER, UNIFIED], ids=["v1 cpu", "v1 freezer", "v2"])
def test_real_control_groups(
    sleeper: subprocess.Popen[bytes], hierarchy: Path | None, path: str, told: tuple[str | None, str]
) -> None:
    """A process of ours in folders that are named like the real thing, read by the source itself."""
    if hierarchy is None or not os.access(hierarchy, os.W_OK) or not (hierarchy / "cgroup.procs").exists():
        pytest.skip("needs root and this hierarchy of control groups")
    made = []
    try:
        for folder in (*reversed((hierarchy / path).relative_to(hierarchy).parents), Path(path)):
            if not (hierarchy / folder).exists():
                (hierarchy / folder).mkdir()
                made.append(hierarchy / folder)
        (hierarchy / path / "cgroup.procs").write_text(str(sleeper.pid))
        info = _identity_of(sleeper.pid)
        found = identity_of(replace(info, names=NameReader("/")._names(info)))
        assert (found.container_runtime, found.brief()) == told
    finally:
        sleeper.kill()
        sleeper.wait()
        for folder in reversed(made):
            until(partial(_removed, folder))


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def _identity_of(pid: int) -> ProcInfo:
    from gputop.sources import parse
    from gputop.sources.procfs.identity import IdentityReader as Reader
    from gputop.sources.procfs.identity import Users

    stat = parse.stat(Path(f"/proc/{pid}/stat").read_bytes())
    return Reader(f"/proc/{pid}/", pid, Users("/")).read(stat)


TORCH = "/opt/venv/lib/python3.11/site-packages/torch"


@pytest.mark.parametrize(("text", "found"), [
    ("from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.5.1+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\n",
     {"torch": "2.5.1+cu124", "CUDA of torch": "12.4"}),
    ("__version__ = '2.6.0a0'\ncuda = None\n", {"torch": "2.6.0a0"}),
    ("__version__ = '\x1b[2J'\n", {}), ("", {}),
])  # fmt: skip
def test_the_version_of_torch_stands_beside_the_libraries_that_are_mapped(machine: Machine, text: str, found: dict[str, str]) -> None:
    machine.file("proc/7/maps", f"7f00-7f10 r-xp 00000000 08:01 1234 {TORCH}/lib/libtorch_cpu.so\n")
    machine.read("/")
    assert machine.names.packages == {}, "its version.py is not there"
    machine.file(f"proc/7/root{TORCH}/version.py", text)
    machine.read("/")
    assert machine.names.packages == found
    machine.file("proc/7/maps", "7f00-7f10 r-xp 00000000 08:01 1234 /usr/lib/libc.so.6\n")
    machine.read("/")
    assert machine.names.packages == {}
