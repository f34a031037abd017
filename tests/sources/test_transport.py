"""Means by which a rank may reach others: from a made /proc, and of a process of the test's own."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from gputop.model.frame import ProcInfo, Transport
from gputop.sources.procfs import transport
from gputop.sources.procfs.configured import FILE_BYTES, group_sizes
from gputop.sources.procfs.transport import MOST_VARIABLES, VALUE, look
from tests.sources.children import child
from tests.sources.test_procfs_real import Live
from tests.sources.test_procfs_real import live as live
from tests.wait import until


class FakeRank:
    """A process's folder below a made root, with a root folder of its own as in a container."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "proc/7"
        for name in ("fd", "root/dev/shm"):
            (self.folder / name).mkdir(parents=True)
        self.maps()
        self.environ()

    def maps(self, *paths: str) -> None:
        lines = "".join(f"7f0000000000-7f0000001000 r-xp 00000000 08:01 {i:<10} {path}\n" for i, path in enumerate(paths))
        (self.folder / "maps").write_text(f"{lines}7ffc0-7ffd0 rw-p 00000000 00:00 0 [stack]\n")

    def environ(self, **variables: str) -> None:
        (self.folder / "environ").write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in variables.items()))

    def opens(self, *links: str) -> None:
        for number, link in enumerate(links):
            (self.folder / "fd" / str(number)).symlink_to(link)

    def look(self) -> Transport:
        return look(f"{self.root}/", f"{self.folder}/")


@pytest.fixture
def rank(tmp_path: Path) -> FakeRank:
    return FakeRank(tmp_path)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5", ("nccl", "2.21.5")),
        ("/opt/conda/lib/libnccl.so.2.19.3 (deleted)", ("nccl", "2.19.3")),
        ("/opt/rocm/lib/librccl.so.1.0.60300", ("rccl", "1.0.60300")),
        ("/env/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", ("nccl", "2.27.3")),
        ("/other/site-packages/nvidia/nccl/lib/libnccl.so.2", ("nccl", "")),
        ("/usr/lib/libnccl-net.so", ("", "")),
        ("/home/me/libnccl.so.2.21.5.bak", ("", "")),
    ],
)  # fmt: skip
def test_the_library_and_its_version(rank: FakeRank, path: str, wanted: tuple[str, str]) -> None:
    (rank.folder / "root/env/lib/python3.11/site-packages/nvidia_nccl_cu12-2.27.3.dist-info").mkdir(parents=True)
    rank.maps("/usr/lib/libc.so.6", path)
    found = rank.look()
    assert (found.library, found.version) == wanted
    assert ("version" in found.missing) == (wanted == ("nccl", ""))


def test_shared_memory_and_devices(rank: FakeRank) -> None:
    rank.maps("/dev/shm/nccl-a1b2", "/dev/shm/nccl-c3d4 (deleted)", "/dev/shm/torch_7")
    rank.opens("/dev/infiniband/uverbs1", "/dev/infiniband/uverbs1", "/dev/infiniband/uverbs9", "/dev/infiniband/rdma_cm", "socket:[7]")
    verbs = rank.root / "sys/class/infiniband_verbs/uverbs1"
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text("mlx5_1\n")
    found = rank.look()
    assert (found.shm, found.devices) == (2, ["mlx5_1", "uverbs9"])
    assert found.lacks_devices, "the host has such devices, and its own /dev has none"
    (rank.folder / "root/dev/infiniband").mkdir()
    (rank.folder / "root/dev/infiniband/uverbs1").touch()
    assert not rank.look().lacks_devices
    assert found.shm_bytes == os.statvfs(rank.root).f_blocks * os.statvfs(rank.root).f_frsize


def test_variables_are_those_of_its_library_bounded_and_clean(rank: FakeRank) -> None:
    (rank.folder / "root/etc").mkdir()
    (rank.folder / "root/etc/nccl.conf").write_text("# all nodes\nNCCL_IB_DISABLE = 1\nNCCL_DEBUG=WARN\nPATH=/x\n")
    many = {f"NCCL_MADE_{i:03}": "1" for i in range(MOST_VARIABLES)}
    rank.environ(NCCL_DEBUG="INFO", GLOO_SOCKET_IFNAME="eth0", AWS_SECRET="hidden", NCCL_COMM_ID="\x1b[2J" + "y" * 999)
    found = rank.look()
    assert found.variables.keys() == {"NCCL_DEBUG", "GLOO_SOCKET_IFNAME", "NCCL_COMM_ID", "NCCL_IB_DISABLE"}
    assert (found.variables["NCCL_DEBUG"], found.variables["NCCL_IB_DISABLE"], found.configured) == ("INFO", "1", ["NCCL_IB_DISABLE"])
    assert "\x1b" not in found.variables["NCCL_COMM_ID"]
    assert len(found.variables["NCCL_COMM_ID"]) == VALUE
    rank.environ(**many)
    assert len(rank.look().variables) == MOST_VARIABLES


def test_a_pipe_in_place_of_settings_is_not_waited_for(rank: FakeRank) -> None:
    (rank.folder / "root/etc").mkdir()
    os.mkfifo(rank.folder / "root/etc/nccl.conf")
    assert rank.look().variables == {}


def test_what_may_not_be_read_has_a_reason(rank: FakeRank) -> None:
    for name in ("maps", "environ"):
        (rank.folder / name).unlink()
    (rank.folder / "fd").rmdir()
    found = rank.look()
    assert found.missing.keys() == {"library", "shm", "devices", "variables"}


def test_ranks_are_looked_at_in_turn_and_a_lone_trainer_is_not(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_NS", 100_000_000)
    monkeypatch.setattr(transport, "SHARE", 1.0)
    path = tmp_path / "libnccl.so.2.21.5"
    path.write_bytes(bytes(mmap.PAGESIZE))

    def maps_it() -> None:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            time.sleep(60)

    with child(maps_it) as one, child(lambda: time.sleep(60)) as two:
        found = dict[int, Transport]()

        def both(frame: object) -> bool:
            found.update({info.pid: info.transport for info in frame.infos if info.transport is not None})  # type: ignore[attr-defined]
            return found.keys() >= {one, two} and bool(found[one].library)

        live.until(both, {one, two})
        assert (found[one].version, found[two].library) == ("2.21.5", "")
    monkeypatch.setattr(transport, "look", lambda *_: pytest.fail("it has no peers"))
    with child(lambda: time.sleep(60)) as alone:
        for _ in range(3):
            live.beat({alone})


class _Identity:
    def __init__(self) -> None:
        self.info, self.changes = ProcInfo(1, 1), list[dict[str, Any]]()

    def change(self, **found: Any) -> bool:
        self.changes.append(found)
        return True


class _Rank:
    """As much of a process as is looked at."""

    def __init__(self, pid: int) -> None:
        self.pid, self.folder, self.identity = pid, f"/proc/{pid}/", _Identity()


def test_a_rank_whose_files_never_answer_keeps_nobody_from_being_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those on a file system of the job's own, which may hang on purpose."""
    answers = Event()

    def look(_root: str, folder: str) -> Transport:
        if folder == "/proc/1/":
            answers.wait(60)
        return Transport("nccl", folder)

    monkeypatch.setattr(transport, "look", look)
    looked, ranks, now = transport.Transports("/"), [_Rank(1), _Rank(2)], [0]

    def read() -> list[Any]:
        now[0] += transport.HANGS_NS // 4
        return [*looked.read(now[0], ranks)]  # type: ignore[arg-type]

    try:
        until(lambda: read() and any("transport" in one for one in ranks[1].identity.changes))
        [hung] = ranks[0].identity.changes
        assert "not answered" in hung["transport"].missing["library"]
        answers.set()
        for _ in range(8):
            read()
        assert len(ranks[0].identity.changes) == 1, "what comes late is dropped"
    finally:
        answers.set()


# how its training is divided, by its configuration files


def test_configuration_files_are_found_as_the_rank_finds_them(rank: FakeRank, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (rank.folder / "cwd").symlink_to(tmp_path / "job")
    (tmp_path / "job/a.toml").write_text("[parallelism]\ntensor_parallel_degree = 2\n")
    (rank.folder / "root/b.yaml").write_text("pipeline_model_parallel_size: 4\ntp_size: 8\n")
    folder = f"{rank.folder}/"
    assert group_sizes(folder, ["python", "t.py", "--job.config_file", "./a.toml"]) == {"tp": 2}
    assert group_sizes(folder, ["python", "t.py", "--config=/b.yaml", "a.toml"]) == {"pp": 4, "tp": 2}
    assert group_sizes(folder, ["python", "t.py", "/a.toml", "--config", "missing.json"]) == {}


def test_a_configuration_file_that_is_none_is_left(rank: FakeRank, tmp_path: Path) -> None:
    (rank.folder / "cwd").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
    (tmp_path / "huge.toml").write_bytes(b"\n" * FILE_BYTES + b"tp_size = 2\n")
    words = ["t.py", "pipe.toml", "folder.toml", "loop.toml", "huge.toml"]
    assert group_sizes(f"{rank.folder}/", words) == {}
    assert group_sizes(f"{rank.folder}/", ["t.py", "a\0b.toml", "x" * 4000 + ".toml"]) == {}


def test_a_file_of_the_kernels_is_left(rank: FakeRank, tmp_path: Path) -> None:
    """Reading one may take from it: /proc/kmsg, trace_pipe."""
    (rank.folder / "cwd").symlink_to(tmp_path)
    own = Path("/proc/self/comm")
    (tmp_path / "own.toml").symlink_to(own)
    before = own.read_text()
    own.write_text("tp_size = 4")
    try:
        assert group_sizes(f"{rank.folder}/", ["t.py", "own.toml"]) == {}
    finally:
        own.write_text(before)
