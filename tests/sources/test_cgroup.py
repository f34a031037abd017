"""Quota, throttling, memory and pressure of cgroups: made trees of v1, v2 and both, and a real quota."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop.model.frame import CgroupSample, Frame, Psi, ReadLimit
from gputop.sources import Settings, Unavailable
from gputop.sources.cgroup import CGROUPS, CgroupSource
from tests.sources.fake_proc import TICK_NS, FakeProc, Reader
from tests.wait import PATIENCE_S

V2 = "31 23 0:28 {root} /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "3{n} 31 0:2{n} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
STAT = "usage_usec 9\nnr_periods {}\nnr_throttled {}\nthrottled_usec {}\n"
PSI = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"


def cgroups(frame: Frame) -> dict[str, CgroupSample]:
    assert frame.host is not None
    return {sample.path: sample for sample in frame.host.cgroups or []}


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def reader(fake: FakeProc, mountinfo: str, own: str = "0::/\n") -> Reader:
    fake.write("proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n" + mountinfo)
    fake.write("proc/self/cgroup", own)
    (fake.root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    return Reader(CgroupSource(Settings(root=str(fake.root))))


def write_v2(fake: FakeProc) -> str:
    base = "sys/fs/cgroup/kube/pod/"
    fake.write(base + "cpu.max", "max 100000\n")
    fake.write("sys/fs/cgroup/kube/cpu.max", "150000 100000\n")
    fake.write("sys/fs/cgroup/kube/cpu.stat", STAT.format(40, 7, 900))
    fake.write(base + "cpu.stat", STAT.format(0, 0, 0))
    fake.write(base + "memory.current", "4000\n")
    fake.write(base + "memory.max", "max\n")
    fake.write("sys/fs/cgroup/kube/memory.current", "5000\n")
    fake.write("sys/fs/cgroup/kube/memory.high", "9000\n")
    fake.write("sys/fs/cgroup/kube/memory.max", "10000\n")
    fake.write(base + "memory.stat", "anon 1\nfile 200\nworkingset_refault_anon 4\n")
    fake.write("sys/fs/cgroup/kube/memory.stat", "anon 1\nfile 300\nworkingset_refault_anon 4\nworkingset_refault_file 5\n")
    fake.write(base + "cpuset.cpus.effective", "0-3,8\n")
    for kind, numbers in {"cpu": (1, 2), "io": (3, 4), "memory": (5, 6)}.items():
        fake.write(f"{base}{kind}.pressure", PSI.format(*numbers))
    return base


def test_v2_takes_the_tightest_limits_on_the_path(fake: FakeProc) -> None:
    write_v2(fake)
    fake.write("proc/7/cgroup", "0::/kube/pod\n")
    got = cgroups(reader(fake, V2.format(root="/")).beat({7}))["/kube/pod"]
    assert got == CgroupSample(
        "/kube/pod", 2, quota_cpus=1.5, quota_path="/kube", nr_periods=40, nr_throttled=7, throttled_ns=900_000, cpuset="0-3,8",
        mem_bytes=5000, mem_limit_bytes=9000, mem_limit_path="/kube", mem_file_bytes=300, refaults=9, psi=Psi(1000, 3000, 4000, 5000, 6000),
    )  # fmt: skip


@pytest.mark.parametrize("who", ["wakers", "programs"])
def test_who_feeds_a_trainer_is_looked_after_too(fake: FakeProc, who: str) -> None:
    write_v2(fake)
    fake.write("proc/7/cgroup", "0::/\n")
    fake.write("proc/8/cgroup", "0::/kube/pod\n")
    it = reader(fake, V2.format(root="/"))
    assert "/kube/pod" not in cgroups(it.beat({7}))
    assert cgroups(it.beat({7}, **{who: {8}}))["/kube/pod"].quota_cpus == 1.5


def test_throttling_five_times_a_second_memory_once(fake: FakeProc) -> None:
    write_v2(fake)
    fake.write("proc/7/cgroup", "0::/kube/pod\n")
    it = reader(fake, V2.format(root="/"))
    it.beat({7})
    fake.write("sys/fs/cgroup/kube/cpu.stat", STAT.format(41, 8, 950))
    fake.write("sys/fs/cgroup/kube/memory.current", "6000\n")
    frames = [frame for frame in it.second({7}) if frame.host]
    assert len(frames) == 5
    assert cgroups(frames[0])["/kube/pod"].throttled_ns == 950_000
    assert [cgroups(frame)["/kube/pod"].mem_bytes for frame in frames] == [5000] * 4 + [6000]


def test_v1_reads_each_controller_where_it_is(fake: FakeProc) -> None:
    mounts = "".join(V1.format(n=n, name=name) for n, name in enumerate(("cpu,cpuacct", "memory", "cpuset")))
    fake.write("proc/7/cgroup", "4:memory:/mem/a\n3:cpuset:/set\n2:cpu,cpuacct:/work\n1:name=systemd:/x\n")
    cpu = "sys/fs/cgroup/cpu,cpuacct/work/"
    fake.write(cpu + "cpu.cfs_quota_us", "50000\n")
    fake.write(cpu + "cpu.cfs_period_us", "100000\n")
    fake.write(cpu + "cpu.stat", "nr_periods 4\nnr_throttled 3\nthrottled_time 123456789\n")
    fake.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    fake.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    memory = "sys/fs/cgroup/memory/mem/a/"
    fake.write(memory + "memory.usage_in_bytes", "77\n")
    fake.write(memory + "memory.limit_in_bytes", "9223372036854771712\n")
    fake.write(memory + "memory.stat", "cache 1\ntotal_cache 20\nworkingset_refault_file 1\ntotal_workingset_refault_file 30\n")
    fake.write("sys/fs/cgroup/cpuset/set/cpuset.effective_cpus", "1\n")
    got = cgroups(reader(fake, mounts, "2:cpu,cpuacct:/\n").beat({7}))
    assert got["/work"] == CgroupSample(
        "/work", 1, quota_cpus=0.5, nr_periods=4, nr_throttled=3, throttled_ns=123456789, cpuset="1", mem_bytes=77,
        mem_file_bytes=20, refaults=30,
    )  # fmt: skip
    assert got["/"].quota_cpus is None


def test_v1_tells_cgroups_apart_that_limit_memory_alone(fake: FakeProc) -> None:
    mounts = "".join(V1.format(n=n, name=name) for n, name in enumerate(("cpu,cpuacct", "memory")))
    for pid, name, limit in ((7, "a", 1000), (8, "b", 2000)):
        fake.write(f"proc/{pid}/cgroup", f"4:memory:/{name}/in\n2:cpu,cpuacct:/\n1:name=systemd:/\n")
        fake.write(f"sys/fs/cgroup/memory/{name}/memory.usage_in_bytes", f"{limit - 1}\n")
        fake.write(f"sys/fs/cgroup/memory/{name}/memory.limit_in_bytes", f"{limit}\n")
        fake.write(f"sys/fs/cgroup/memory/{name}/in/memory.usage_in_bytes", "5\n")
    fake.write("sys/fs/cgroup/cpu,cpuacct/cpu.stat", STAT.format(0, 0, 0))
    got = cgroups(reader(fake, mounts, "2:cpu,cpuacct:/\n").beat({7, 8}))
    limits = {path: (sample.mem_bytes, sample.mem_limit_bytes, sample.mem_limit_path) for path, sample in got.items()}
    assert limits == {"/a/in": (999, 1000, "/a"), "/b/in": (1999, 2000, "/b"), "/": (None, None, None)}


def test_v2_tells_the_tightest_limit_of_reading(fake: FakeProc) -> None:
    write_v2(fake)
    fake.write("sys/fs/cgroup/kube/pod/io.max", "8:0 rbps=max wbps=1000 riops=max wiops=max\n8:16 rbps=9000 wbps=max riops=120 wiops=max\n")
    fake.write("sys/fs/cgroup/kube/io.max", "8:0 rbps=5000 wbps=max riops=max wiops=max\n")
    fake.write("proc/7/cgroup", "0::/kube/pod\n")
    got = cgroups(reader(fake, V2.format(root="/")).beat({7}))["/kube/pod"]
    assert got.read_limit == ReadLimit("/kube", "8:0", 5000)


def test_v1_tells_cgroups_apart_that_limit_reading_alone(fake: FakeProc) -> None:
    mounts = "".join(V1.format(n=n, name=name) for n, name in enumerate(("cpu,cpuacct", "blkio")))
    fake.write("proc/7/cgroup", "4:blkio:/slow\n2:cpu,cpuacct:/\n")
    fake.write("sys/fs/cgroup/cpu,cpuacct/cpu.stat", STAT.format(0, 0, 0))
    fake.write("sys/fs/cgroup/blkio/slow/blkio.throttle.read_bps_device", "")
    fake.write("sys/fs/cgroup/blkio/slow/blkio.throttle.read_iops_device", "254:0 220\n")
    got = cgroups(reader(fake, mounts, "2:cpu,cpuacct:/\n").beat({7}))
    assert {path: sample.read_limit for path, sample in got.items()} == {"/slow": ReadLimit("/slow", "254:0", None, 220), "/": None}


def test_mount_that_shows_a_part_of_the_hierarchy(fake: FakeProc) -> None:
    fake.write("sys/fs/cgroup/cpu.max", "200000 100000\n")
    fake.write("proc/7/cgroup", "0::/docker/abc\n")
    got = cgroups(reader(fake, V2.format(root="/docker/abc"), "0::/docker/abc\n").beat({7}))
    assert {path: sample.quota_cpus for path, sample in got.items()} == {"/docker/abc": 2.0}


@pytest.mark.parametrize("path", ["/../other", "/elsewhere", "/docker/abcd"])
def test_what_lies_outside_is_left_out_with_the_reason(fake: FakeProc, path: str) -> None:
    fake.write("proc/7/cgroup", f"0::{path}\n")
    it = reader(fake, V2.format(root="/docker/abc"), "0::/docker/abc\n")
    got = cgroups(it.beat({7}))
    assert set(got) == {"/docker/abc"}
    assert [(state.state, path in state.reason) for state in it.last.changed] == [("partial", True)]
    it.second({7})
    it.second()
    fake.vanish(7)
    states = [state for _ in range(12) for state in (it.beat() and it.last.changed)]
    assert not [state for state in states if state.state != "ok"]


@pytest.mark.parametrize("every", [1, 2, 4])
def test_a_job_that_is_moved_is_found_again_however_seldom_it_is_looked_at(fake: FakeProc, every: int) -> None:
    for name in ("a", "b"):
        fake.write(f"sys/fs/cgroup/{name}/cpu.stat", STAT.format(0, 0, 0))
    for pid in (7, 8):
        fake.write(f"proc/{pid}/cgroup", "0::/a\n")
    it = reader(fake, V2.format(root="/"))
    it.beat({7, 8})
    for pid in (7, 8):
        fake.write(f"proc/{pid}/cgroup", "0::/b\n")
    for _ in range(4):
        it.t_ns += every * 1_000_000_000 - TICK_NS
        last = it.beat({7, 8})
    assert set(cgroups(last)) == {"/", "/b"}


def test_how_many_cgroups_are_left_out_is_said(fake: FakeProc) -> None:
    for pid in range(1, CGROUPS + 3):
        fake.write(f"proc/{pid}/cgroup", f"0::/{pid}\n")
        fake.write(f"sys/fs/cgroup/{pid}/cpu.stat", STAT.format(0, 0, 0))
    it = reader(fake, V2.format(root="/"))
    assert len(cgroups(it.beat(set(range(1, CGROUPS + 3))))) == CGROUPS
    assert [(state.state, state.reason) for state in it.last.changed] == [("partial", "3 cgroups are left out: at most 64 are read")]


def test_a_cgroup_that_is_removed_does_no_harm_and_may_come_back(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.pread

    def read_unless_gone(descriptor: int, count: int, offset: int) -> bytes:
        """As the kernel does with descriptors of a removed cgroup's files."""
        if str(fake.root / "gone") in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return read(descriptor, count, offset)

    write_v2(fake)
    fake.write("proc/7/cgroup", "0::/kube/pod\n")
    it = reader(fake, V2.format(root="/"))
    assert cgroups(it.beat({7}))["/kube/pod"].mem_bytes == 5000
    (fake.root / "sys/fs/cgroup/kube").rename(fake.root / "gone")
    monkeypatch.setattr(os, "pread", read_unless_gone)
    for _ in range(3):
        it.second({7})
    assert cgroups(it.beat({7}, key=True))["/kube/pod"].mem_bytes is None
    write_v2(fake)
    fake.write("sys/fs/cgroup/kube/memory.current", "7000\n")
    assert cgroups(it.beat({7}, key=True))["/kube/pod"].mem_bytes == 7000
    (fake.root / "sys/fs/cgroup/kube").rename(fake.root / "gone/again")  # removed and made anew between two readings
    write_v2(fake)
    fake.write("sys/fs/cgroup/kube/memory.current", "9000\n")
    assert cgroups(it.beat({7}, key=True))["/kube/pod"].mem_bytes == 9000
    it.source.close()
    assert not [name for name in os.listdir("/proc/self/fd") if str(fake.root) in _link(name)]


def _link(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def test_no_hierarchy(fake: FakeProc) -> None:
    with pytest.raises(Unavailable, match="mounted"):
        reader(fake, "")


@pytest.fixture
def throttled() -> Iterator[tuple[int, Path]]:
    """A child that spins for at most ten seconds in a real v1 cgroup of a fifth of a CPU."""
    folder = Path(f"/sys/fs/cgroup/cpu/gputop-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "cpu.cfs_period_us").write_text("20000")
        (folder / "cpu.cfs_quota_us").write_text("4000")
    except OSError as error:
        pytest.skip(f"needs root and a v1 cpu controller: {error}")
    pid = os.fork()
    if not pid:
        signal.alarm(round(3 * PATIENCE_S))
        while True:
            pass
    (folder / "cgroup.procs").write_text(str(pid))
    yield pid, folder
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
            break
        except OSError:
            time.sleep(0.01)


def test_a_real_quota_throttles(throttled: tuple[int, Path]) -> None:
    pid, folder = throttled
    source = CgroupSource(Settings())
    it = Reader(source)
    path = f"/{folder.name}"
    first = cgroups(it.beat({pid}))[path]
    assert (first.quota_cpus, first.version, first.quota_path) == (0.2, 1, None)
    deadline = time.monotonic() + PATIENCE_S
    last = first
    while (last.nr_throttled or 0) < (first.nr_throttled or 0) + 5 and time.monotonic() < deadline:
        time.sleep(0.02)
        last = cgroups(it.beat({pid}, key=True))[path]
    assert (last.nr_throttled or 0) >= (first.nr_throttled or 0) + 5
    assert (last.throttled_ns or 0) > (first.throttled_ns or 0) + 10_000_000
    source.close()
