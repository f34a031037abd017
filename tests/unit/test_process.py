"""What Enter reads of a process: the kernel's texts as values, secrets hidden, containers and Slurm jobs told."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gputop.sources.closeup import process
from gputop.sources.closeup.process import Limit, OpenSocket, ProcessDetails
from gputop.sources.closeup.surroundings import HIDDEN, Container, container_of, masked, slurm_of
from gputop.sources.files import mounted
from gputop.system.text import ranges
from gputop.tui import details as drawn
from tests.wait import PATIENCE_S, until

ID = "3f2a" * 16


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_TOKEN", "hf_x", HIDDEN), ("WANDB_API_KEY", "1", HIDDEN), ("apikey", "1", HIDDEN), ("MYSQL_PWD", "1", HIDDEN),
        ("PGPASSWORD", "1", HIDDEN), ("DB_PASS", "1", HIDDEN), ("AWS_SECRET_ACCESS_KEY", "1", HIDDEN), ("SESSION_COOKIE", "1", HIDDEN),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/x.json", HIDDEN), ("HTTP_AUTH", "1", HIDDEN), ("SENTRY_DSN", "1", HIDDEN), ("TOKEN", "", ""),
        ("PWD", "/data", "/data"), ("OLDPWD", "/", "/"), ("GIT_AUTHOR_NAME", "ada", "ada"), ("KEYBOARD", "us", "us"), ("PASSAGE", "1", "1"),
        ("URL", "postgres://ada:p@ss@db/x", f"postgres://{HIDDEN}@db/x"), ("URL", "https://h:80/@scope", "https://h:80/@scope"),
        ("URL", "redis://:a/b@db", f"redis://{HIDDEN}@db"), ("X", "host=db password='a b' user=x", f"host=db password={HIDDEN} user=x"),
        ("X", "https://h/?token=abc&n=1", f"https://h/?token={HIDDEN}&n=1"),
        ("X", "Authorization: Bearer abc", f"Authorization: Bearer {HIDDEN}"),
        ("X", "ghp_abcdefgh1234", HIDDEN), ("X", "-----BEGIN RSA PRIVATE KEY-----\nabc\n", HIDDEN),
    ],
)  # fmt: skip
def test_secrets_are_hidden_by_name_and_in_values(name: str, value: str, shown: str) -> None:
    assert masked(name, value) == shown


def test_a_long_value_is_cut_and_says_how_long_it_was() -> None:
    assert masked("X", "a" * 50_000).endswith("… (50,000 characters)")


@pytest.mark.parametrize(
    ("cgroup", "root", "environment", "container"),
    [
        (f"/system.slice/docker-{ID}.scope", "", {}, Container("Docker", ID)), (f"/docker/{ID}", "", {}, Container("Docker", ID)),
        (f"/machine.slice/libpod-{ID}.scope/container", "", {}, Container("Podman", ID)),
        (f"/kubepods.slice/kubepods-pod12345678_1234_1234_1234_123456789abc.slice/cri-containerd-{ID}.scope", "", {},
         Container("containerd", ID, "12345678-1234-1234-1234-123456789abc")),
        (f"/kubepods/besteffort/pod12345678-1234-1234-1234-123456789abc/{ID}", "", {},
         Container("Kubernetes", ID, "12345678-1234-1234-1234-123456789abc")),
        ("/lxc.payload.web/system.slice", "", {}, Container("LXC", "web")), ("/machine.slice/machine-box.scope", "", {},
         Container("systemd-nspawn", "box")),
        ("/", f"/var/lib/docker/containers/{ID}/hostname", {}, Container("Docker", ID)),
        ("/", "/", {"SINGULARITY_CONTAINER": "/img.sif"}, Container("Apptainer", "/img.sif")),
        ("/", "/", {"container": "oci"}, Container("oci")),
        ("/user.slice/user-1000.slice/session-2.scope", "/", {}, None),
    ],
)  # fmt: skip
def test_containers_are_told_by_cgroup_mounts_and_environment(
    cgroup: str, root: str, environment: dict[str, str], container: Container | None
) -> None:
    assert container_of([cgroup], [root], environment) == container


def test_a_slurm_job_is_told_by_its_environment_or_its_cgroup() -> None:
    environment = {"SLURM_JOB_ID": "47", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "16", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert slurm_of([], environment) == {"job": "47", "step": "0", "rank": "3", "ranks": "16", "nodes": "n[1-2]"}
    assert slurm_of(["/system.slice/slurmstepd.scope/job_48/step_batch/user/task_1"], {}) == {"job": "48", "step": "batch", "task": "1"}
    assert slurm_of(["/slurm_n7/uid_1000/job_48/step_2"], {}) == {"job": "48", "step": "2"}
    assert slurm_of(["/user.slice"], {"SLURM_PROCID": "1"}) == {}


def test_limits_have_their_units_and_unlimited_is_none() -> None:
    text = Path("/proc/self/limits").read_text()
    limits = {limit.name: limit for limit in process.limits_of(text)}
    assert limits["Max open files"].unit == "files"
    assert limits["Max stack size"].unit == "bytes"
    assert len(limits) == len(text.splitlines()) - 1
    line = f"{'Max realtime timeout':<26}{'unlimited':<21}{'1000':<21}{'us':<10}"
    assert process.limits_of(f"Limit\n{line}\n") == [Limit("Max realtime timeout", None, 1000, "us")]


def test_sockets_of_the_kernels_tables() -> None:
    sockets = {11: 3, 12: 4, 13: 5}
    line = b"  0: 0100007F:1F90 0200007F:0050 01 00000010:00000400 00:00000000 00000000  1000        0 11 1 0000 20 4 30 10 -1"
    assert process.inet_socket("tcp", line, sockets) == OpenSocket(3, "tcp", "127.0.0.1:8080", "127.0.0.2:80", "established", 16, 1024)
    assert process.inet_socket("tcp", line, sockets) is None, "its inode is taken out"
    unix = b"0000000000000000: 00000002 00000000 00010000 0001 01 12 /run/a b\n"
    assert process.unix_socket("unix", unix, sockets) == OpenSocket(4, "unix stream", "/run/a b", "", "listen")
    assert sockets == {13: 5}
    assert process.address("00000000000000000000000001000000:0016") == "[::1]:22"


@pytest.mark.parametrize(
    ("target", "kind"),
    [("socket:[1]", "socket"), ("pipe:[1]", "pipe"), ("anon_inode:[eventpoll]", "other"), ("/memfd:x (deleted)", "memory"),
     ("/dev/nvidia0", "device"), ("/dev/shm/torch_1", "memory"), ("/data/a.tar", "file")],
)  # fmt: skip
def test_descriptors_are_told_apart_by_what_they_lead_to(target: str, kind: str) -> None:
    assert process.kind_of(target) == kind


def test_a_mount_point_with_blanks(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_bytes(rb"36 35 98:0 /a\040b /My\040Data rw shared:1 - nfs4 filer:/export rw")
    (mount,) = mounted(str(tmp_path / "mountinfo"))
    assert (mount.root, mount.point, process.mount_words(mount)) == ("/a b", "/My Data", "nfs4 filer:/export at /My Data")


def test_cpus_as_taskset_takes_them() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def _fake(folder: Path, pid: int, ticks: int) -> None:
    (folder / f"{pid}").mkdir(parents=True)
    fields = ["S", "1", "1", "1", "0", "-1", "0", *["0"] * 10, "1", "0", str(ticks), "0", "0", *["0"] * 30]
    (folder / f"{pid}/stat").write_text(f"{pid} (a) b) {' '.join(fields)}")


def test_a_part_on_which_the_kernel_hangs_hides_no_other(tmp_path: Path) -> None:
    """As a process does whose memory is locked: its environment cannot be read, its limits can."""
    pid = os.getpid()
    _fake(tmp_path, pid, 77)
    (tmp_path / f"{pid}/limits").write_text(Path("/proc/self/limits").read_text())
    os.mkfifo(tmp_path / f"{pid}/environ")
    seen: list[ProcessDetails] = []
    thread = threading.Thread(target=lambda: seen.extend(process.read(pid, 77, str(tmp_path))), daemon=True)
    thread.start()
    until(lambda: seen and seen[-1].missing.get("connections"))
    assert seen[-1].limits
    assert seen[-1].priority
    assert not seen[-1].is_whole
    assert seen[-1].environment is None
    with open(tmp_path / f"{pid}/environ", "w"):  # the kernel answers at last, and has nothing to say
        pass
    thread.join(PATIENCE_S)
    assert seen[-1].is_whole
    assert "empty" in seen[-1].missing["environment"]


def test_a_text_that_is_not_understood_costs_its_own_part_only(tmp_path: Path) -> None:
    pid = os.getpid()
    _fake(tmp_path, pid, 77)
    (tmp_path / f"{pid}/limits").write_text(Path("/proc/self/limits").read_text())
    (tmp_path / f"{pid}/fd").mkdir()
    (tmp_path / f"{pid}/fd/3").symlink_to("socket:[none]")
    *_, found = process.read(pid, 77, str(tmp_path))
    assert "cannot read" in found.missing["descriptors"]
    assert found.limits
    assert found.is_whole


def test_a_reused_pid_gives_nothing_of_the_other_process(tmp_path: Path) -> None:
    _fake(tmp_path, os.getpid(), 78)
    (details,) = process.read(os.getpid(), 77, str(tmp_path))
    assert details.is_whole
    assert "another" in details.gone
    assert drawn.sections(details) == []
    assert "another" in "".join(text for line in drawn.facts(details, 4) for text, _ in line)


def test_a_pid_that_is_reused_while_it_is_read_keeps_what_was_its_own(tmp_path: Path) -> None:
    pid = os.getpid()
    _fake(tmp_path, pid, 77)
    (tmp_path / f"{pid}/limits").write_text(Path("/proc/self/limits").read_text())
    parts = process.read(pid, 77, str(tmp_path))
    found = [next(parts) for _ in range(3)]
    assert found[-1].limits
    stat = tmp_path / f"{pid}/stat"
    stat.write_text(stat.read_text().replace(" 77 ", " 99 "))
    (last,) = parts
    assert last.gone
    assert last.limits
    assert last.environment is None
    assert [section.name for section in drawn.sections(last)] == ["limits"]
