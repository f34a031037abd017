"""Processes and threads read from a made /proc."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from gputop.model.frame import Frame
from gputop.sources import Beat, Settings, Unavailable, files, parse, waits
from gputop.sources.parse import PAGE_BYTES
from gputop.sources.procfs import ProcfsSource, threads
from gputop.sources.procfs import source as procfs_source
from gputop.sources.procfs.process import LONG_AFTER, LONG_RESTS_S, LONGEST_AFTER, LONGEST_RESTS_S, RESTS_AFTER, RESTS_S, SLIGHT_NS
from gputop.sources.procfs.source import TITLE_REFRESH_S, TOGETHER
from gputop.sources.procfs.threads import FOLLOWED, RESTING_READ
from tests.sources.fake_proc import FakeProc, Reader, info, sample
from tests.wait import until


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    fake = FakeProc(tmp_path)
    fake.process(100, utime=3, stime=4)
    return fake


def test_first_frame_tells_who_and_how_much(reader: Reader) -> None:
    frame = reader.beat()
    got, who = sample(frame, 100), info(frame, 100)
    assert (got.utime_ns, got.stime_ns, got.children_ns, got.rss_bytes) == (30_000_000, 40_000_000, 10_000_000, 100 * PAGE_BYTES)
    assert (got.oncpu_ns, got.run_delay_ns, got.timeslices, got.vol, got.invol) == (1, 2, 3, 11, 22)
    assert (got.minflt, got.majflt, got.processor, got.state, got.num_threads) == (31, 7, 2, "S", 1)
    assert (got.read_bytes, got.write_bytes, got.rchar_bytes) == (4096, 8192, 7)
    assert (got.syscall, got.wchan, got.threads) == (None, None, [])
    assert (who.uid, who.user, who.comm, who.cmdline, who.ppid) == (1000, "ada", "python", ["python", "train.py"], 1)
    assert (who.cgroup, who.cpus_allowed, who.ns_pid, who.start_ticks) == ("/job", "0-3", None, 500)


def test_no_proc_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="proc"):
        ProcfsSource(Settings(root=str(tmp_path))).open()


def test_cold_once_a_second_hot_every_tick(proc: FakeProc, reader: Reader) -> None:
    for pid in range(100, 120):
        proc.process(pid, oncpu=RAN_NS)
    reader.beat()
    frames = reader.second(hot={105})
    counts = {pid: sum(p.pid == pid for frame in frames for p in frame.procs) for pid in range(100, 120)}
    assert counts.pop(105) == 10
    assert set(counts.values()) == {1}
    assert max(len(frame.procs) for frame in frames) <= 5


def test_a_tick_that_looks_at_trainers_is_asked_for_ahead_of_the_beat(proc: FakeProc, reader: Reader) -> None:
    """Of those after the first second, and no other: the counters that the rest read have no phase."""
    asked, changed = [], []
    for number in range(30):
        asked.append(reader.source.is_read_ahead(Beat(reader.t_ns, number, False, hot=frozenset({100}))))
        proc.counters(100, oncpu=10 + number, utime=number)
        changed.append(sample(reader.beat({100}, key=not number), 100).utime_ns == number * 10_000_000)
    assert asked[:11] == [False] * 11
    assert asked[12:] == changed[12:]
    assert sum(asked) == 9
    key = [reader.source.is_read_ahead(Beat(reader.t_ns, 30, True, hot=frozenset(hot))) for hot in ((100,), (), (100, 101))]
    assert key == [True, False, False]


def test_a_crowd_is_read_seldom_and_nothing_of_it_is_forgotten(proc: FakeProc, reader: Reader) -> None:
    crowd = set(range(101, 121))
    for pid in crowd:
        proc.process(pid)
        for tid in range(100 * pid, 100 * pid + 30 * (pid < 103)):
            proc.thread(pid, tid)
        proc.counters(pid, threads=31 if pid < 103 else 1)
    reader.beat()
    for _ in range(30):
        reader.second(hot=crowd)
    for pid in crowd:
        proc.write(f"proc/{pid}/cgroup", "0::/moved\n")
        proc.counters(pid, oncpu=10**9, threads=31 if pid < 103 else 1)
        proc.write(f"proc/{pid}/io", "rchar: 7\nwchar: 0\nsyscr: 1\nsyscw: 0\nread_bytes: 77\nwrite_bytes: 0\n")
    first, *seconds = [reader.second(hot=crowd) for _ in range(8)]
    frames = [frame for second in (first, *seconds) for frame in second]
    assert {sum(p.pid == pid for frame in frames for p in frame.procs) for pid in crowd} == {20}
    assert {sum(p.pid in crowd for p in frame.procs) for frame in frames} == {0, len(crowd)}
    assert {i.pid for frame in frames for i in frame.infos if i.cgroup == "/moved"} == crowd
    assert {p.pid for frame in seconds[0] for p in frame.procs if p.read_bytes == 77} == crowd
    threads = {t.tid for frame in first + seconds[0] for p in frame.procs if p.pid in (101, 102) for t in p.threads}
    assert threads == {101, 102, *range(10100, 10130), *range(10200, 10230)}


def test_a_large_crowd_is_not_read_in_one_tick(proc: FakeProc, reader: Reader) -> None:
    crowd = set(range(101, 102 + TOGETHER))
    for pid in crowd:
        proc.process(pid)
    reader.beat()
    reader.second(hot=crowd)
    frames = [frame for _ in range(2) for frame in reader.second(hot=crowd)]
    assert {sum(p.pid == pid for frame in frames for p in frame.procs) for pid in crowd} == {5}
    assert max(sum(p.pid in crowd for p in frame.procs) for frame in frames) < 0.65 * len(crowd)


def test_what_a_trainer_read_before_it_rested_is_told(proc: FakeProc, reader: Reader) -> None:
    reader.beat({100})
    reader.second(hot={100})
    proc.counters(100, oncpu=5, slices=4)
    proc.write("proc/100/io", "rchar: 7\nwchar: 0\nsyscr: 1\nsyscw: 0\nread_bytes: 77\nwrite_bytes: 0\n")
    assert sample(reader.second(hot={100}), 100).read_bytes == 77


def test_few_trainers_among_many_workers_are_read_more_often(proc: FakeProc, reader: Reader) -> None:
    crowd = set(range(101, 121))
    for pid in crowd:
        proc.process(pid)
    reader.beat()
    reader.second(hot=crowd, gpu_pids={101, 102})
    frames = [frame for _ in range(2) for frame in reader.second(hot=crowd, gpu_pids={101, 102})]
    counts = {pid: sum(p.pid == pid for frame in frames for p in frame.procs) for pid in crowd}
    assert (counts.pop(101), counts.pop(102)) == (10, 10)
    assert set(counts.values()) == {5}


def test_key_frame_restates_all(proc: FakeProc, reader: Reader) -> None:
    for pid in range(101, 110):
        proc.process(pid)
    reader.beat()
    reader.beat()
    frame = reader.beat(key=True)
    assert {i.pid for i in frame.infos} == {p.pid for p in frame.procs} == set(range(100, 110))
    assert len(frame.procs) == len(frame.infos) == 10


def test_hot_process_tells_its_wait_and_threads(proc: FakeProc, reader: Reader) -> None:
    proc.thread(100, 131, state="D", oncpu=50)
    proc.counters(100, threads=2)
    reader.beat()
    frame = reader.beat(hot={100})
    got = sample(frame, 100)
    if waits.TIMEOUTS.get(232):
        assert (got.syscall, got.syscall_arg, got.wchan) == (232, 1000, "ep_poll")
    assert [(t.tid, t.oncpu_ns, t.state, t.vol, t.invol) for t in got.threads] == [(100, 1, "S", 11, 22), (131, 50, "D", 5, 6)]
    assert [(t.tid, t.comm) for t in info(frame, 100).threads] == [(131, "pt_data_pin")]
    assert sample(reader.second(), 100).threads == []


def test_switches_are_read_again_when_schedstat_moves(proc: FakeProc, reader: Reader) -> None:
    reader.beat()
    reader.second(hot={100})
    proc.identity(100, vol=99)
    assert sample(reader.second(hot={100}), 100).vol == 11
    proc.counters(100, oncpu=2)
    assert sample(reader.second(hot={100}), 100).vol == 99


def test_switches_are_read_once_more_after_it_left_the_cpu(proc: FakeProc, reader: Reader) -> None:
    """Schedstat is complete a moment before status is."""
    reader.beat()
    reader.second(hot={100})
    proc.counters(100, oncpu=2)
    reader.beat(hot={100})
    reader.beat(hot={100})  # in one of the two its status was read
    proc.identity(100, vol=99)
    assert sample(reader.second(hot={100}), 100).vol == 99


def test_a_thread_that_waits_for_a_cpu_is_seen_though_its_schedstat_rests(proc: FakeProc, reader: Reader) -> None:
    proc.thread(100, 131)
    proc.counters(100, threads=2)
    reader.beat()
    reader.beat(hot={100})
    proc.thread(100, 131, state="R")
    assert sample(reader.second(hot={100}), 100).threads[1].state == "R"


def test_new_and_ended_threads_within_a_second(proc: FakeProc, reader: Reader) -> None:
    reader.beat()
    reader.second(hot={100})
    proc.thread(100, 140)
    proc.counters(100, threads=2)
    frames = reader.second(hot={100})
    assert [t.tid for t in sample(frames, 100).threads] == [100, 140]
    (proc.root / "proc/100/task/140/schedstat").unlink()
    for name in ("comm", "stat", "status"):
        (proc.root / f"proc/100/task/140/{name}").unlink()
    (proc.root / "proc/100/task/140").rmdir()
    proc.counters(100, threads=1)
    frames = reader.second(hot={100})
    assert [t.tid for t in sample(frames, 100).threads] == [100]
    assert info(frames, 100).threads == []


def test_resting_threads_are_read_seldom_and_in_key_frames(proc: FakeProc, reader: Reader) -> None:
    for tid in range(200, 240):
        proc.thread(100, tid)
    proc.counters(100, threads=41)
    reader.beat()
    for _ in range(12):
        reader.second(hot={100})
    frames = reader.second(hot={100})
    assert all(len(sample(frame, 100).threads) <= 16 for frame in frames)
    assert {t.tid for frame in frames for t in sample(frame, 100).threads} == {100, *range(200, 240)}
    assert len(sample(reader.beat(hot={100}, key=True), 100).threads) == 41
    proc.thread(100, 239, oncpu=77, slices=9)
    reader.second(hot={100})
    awake = [frame for frame in reader.second(hot={100}) if any(t.tid == 239 for t in sample(frame, 100).threads)]
    assert len(awake) == 10


def test_more_threads_than_are_followed(proc: FakeProc, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    switches = parse.switches
    monkeypatch.setattr(parse, "switches", lambda status: read.append(status) or switches(status))
    for tid in range(200, 300):
        proc.thread(100, tid)
    proc.counters(100, threads=101)
    reader.beat()
    for step in range(30):
        for tid in range(200, 300):
            proc.write(f"proc/100/task/{tid}/schedstat", f"{step * 100 + 2} 0 {step + 2}\n")
        read.clear()
        got = sample(reader.beat(hot={100}), 100)
        assert len(got.threads) <= 1 + 64 + 4
        assert len(read) <= 65
    assert got.unfollowed == 100 - 64


def test_hostile_name_and_long_command_line(proc: FakeProc, reader: Reader) -> None:
    proc.process(7, comm=") R 9 (\x1b[2J[red]", cmdline=b"\xff\x80x\0" + b"a" * 70_000)
    frame = reader.beat()
    who = info(frame, 7)
    assert who.comm == ") R 9 (\x1b[2J[red]"
    assert sample(frame, 7).state == "S"
    assert sum(map(len, who.cmdline)) <= 4096
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(who), type=type(who)) == who


def test_environment_keeps_only_what_is_of_interest(proc: FakeProc, reader: Reader) -> None:
    proc.process(7, environ=b"AWS_SECRET=x\0LOCAL_RANK=3\0RANK=\xff\0CUDA_VISIBLE_DEVICES=" + b"0," * 5000 + b"\0broken\0")
    env = info(reader.beat(), 7).env
    assert set(env) == {"LOCAL_RANK", "RANK", "CUDA_VISIBLE_DEVICES"}
    assert env["LOCAL_RANK"] == "3"
    assert len(env["CUDA_VISIBLE_DEVICES"]) == 256


def test_container_pid_and_v1_cgroup(proc: FakeProc, reader: Reader) -> None:
    proc.process(7, cgroup="9:name=systemd:/a\n4:memory:/mem\n2:cpu,cpuacct:/docker/x\n0::/unified\n")
    proc.identity(7, ns="\t1")
    who = info(reader.beat(), 7)
    assert (who.cgroup, who.ns_pid) == ("/docker/x", 1)


@pytest.mark.parametrize(("age_s", "known"), [(0.5, "/job"), (2.5, "/job/shipper"), (4.5, "/job")])
def test_a_process_is_looked_at_again_when_it_has_settled(
    proc: FakeProc, reader: Reader, monkeypatch: pytest.MonkeyPatch, age_s: float, known: str
) -> None:
    """It was moved into its cgroup after its start; those who are older are asked once a minute, at another second than these."""
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: round(1e12 + age_s * 1e9))
    proc.process(107, start=round(1e12) // parse.NS_PER_CLOCK_TICK)
    reader.beat()
    proc.write("proc/107/cgroup", "0::/job/shipper\n")
    infos = [i for frame in reader.second() for i in frame.infos if i.pid == 107]
    assert (infos[-1].cgroup if infos else "/job") == known


def test_pid_given_away_again_within_a_tick(proc: FakeProc, reader: Reader) -> None:
    reader.beat()
    proc.process(100, comm="other", cmdline=b"other\0", start=900)
    frame = reader.beat(hot={100})
    assert frame.gone == [100]
    assert info(frame, 100).comm == "other"
    assert sample(frame, 100).start_ticks == 900
    assert [p.start_ticks for f in reader.second() for p in f.procs] == [900]


def test_births_and_deaths(proc: FakeProc, reader: Reader) -> None:
    reader.beat()
    proc.process(300)
    proc.born(300)
    frames = reader.second()
    assert info(frames[:5], 300).pid == 300
    proc.vanish(300)
    proc.born(301)
    frames = reader.second()
    assert [pid for frame in frames for pid in frame.gone] == [300]
    assert 300 not in {p.pid for p in reader.beat(key=True).procs}


def test_a_new_process_is_read_once_it_has_lived_a_moment_and_threads_are_none(proc: FakeProc, reader: Reader) -> None:
    """Most of a shell's children have ended by then: 4246, whose folder is gone, is never read at all."""
    reader.beat()
    reader.beat()  # libraries are read after the first frame
    proc.process(4244)
    proc.process(4245)
    proc.process(4246)
    proc.write("proc/4245/status", (proc.root / "proc/4245/status").read_text().replace("Tgid:\t4245", "Tgid:\t4244"))
    proc.born(4250)
    frames = [reader.beat()]
    proc.vanish(4246)
    frames += [reader.beat() for _ in range(4)]
    seen = [[p.pid for p in frame.procs if p.pid > 4000] for frame in frames]
    assert seen[:3] == [[], [], []]
    assert seen[3:] in ([[4244], []], [[], [4244]])
    assert [i.pid for frame in frames for i in frame.infos if i.pid > 4000] == [4244]
    assert not any(frame.gone for frame in frames)


def test_half_vanished_entries_do_no_harm(proc: FakeProc, reader: Reader) -> None:
    proc.process(300)
    (proc.root / "proc/300/stat").write_text("")
    proc.process(301)
    (proc.root / "proc/301/stat").write_text("301 (x")
    (proc.root / "proc/302").mkdir()
    proc.process(303)
    for name in ("cmdline", "cgroup", "status", "schedstat", "io", "environ", "maps"):
        (proc.root / f"proc/303/{name}").unlink()
    frame = reader.beat()
    assert {p.pid for p in frame.procs} == {100, 303}
    got = sample(frame, 303)
    assert (got.oncpu_ns, got.vol, got.read_bytes) == (None, None, None)
    for _ in range(3):
        reader.second(hot={300, 301, 302, 303})
    proc.counters(300)
    assert sample(reader.beat(hot={300}), 300).start_ticks == 500


def test_exec_tells_the_identity_anew(proc: FakeProc, reader: Reader) -> None:
    proc.counters(100, stack=1)
    reader.beat()
    proc.write("proc/100/cmdline", b"python\0eval.py\0")
    proc.counters(100, stack=2, oncpu=9)
    assert info(reader.second(), 100).cmdline == ["python", "eval.py"]


def test_a_sleeper_whose_wait_is_refused_says_so_after_an_exec_too(proc: FakeProc, reader: Reader) -> None:
    """A refusal is forgotten at an exec: a process that sleeps from then on is asked again, though its counters stand still."""
    refused = proc.root / "proc/100/syscall"
    refused.unlink()
    refused.mkdir()
    reader.beat()
    assert info(reader.beat(hot={100}), 100).wait_unreadable == "is a directory"
    proc.counters(100, stack=4096, slices=4)
    news = [one.wait_unreadable for _ in range(20) for one in reader.beat(hot={100}).infos if one.pid == 100]
    assert news[-1] == "is a directory"
    assert sample(reader.beat(hot={100}), 100).syscall is None


def test_changed_affinity_is_noticed(proc: FakeProc, reader: Reader) -> None:
    reader.beat()
    proc.identity(100, allowed="0")
    frames = [frame for _ in range(4) for frame in reader.second(hot={100})]
    assert info(frames, 100).cpus_allowed == "0"


def test_changed_affinity_of_what_feeds_a_trainer_is_noticed_as_soon(proc: FakeProc, reader: Reader) -> None:
    for pid in (500, 510, 520):
        proc.process(pid)
    told = {"hot": {100}, "wakers": {500}, "programs": {510}}
    reader.beat(**told)
    for pid in (500, 510, 520):
        proc.identity(pid, allowed="0")
    frames = [reader.beat(**told) for _ in range(40)]
    assert {one.pid: one.cpus_allowed for frame in frames for one in frame.infos if one.cpus_allowed == "0"} == {500: "0", 510: "0"}


def test_a_title_that_a_process_gives_itself_is_noticed(proc: FakeProc, reader: Reader) -> None:
    """Its command line is looked at more seldom than its affinity."""
    reader.beat()
    proc.write("proc/100/cmdline", b"train: rank 3\0")
    frames = [frame for _ in range(TITLE_REFRESH_S + 1) for frame in reader.second(hot={100})]
    assert info(frames, 100).cmdline == ["train: rank 3"]


def test_the_first_frame_has_who_is_on_the_gpus_and_the_rest_follows(
    proc: FakeProc, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs_source, "FIRST_NS", -1)  # no time for anybody else but one
    for pid in (500, 510, 520, 530):
        proc.process(pid)
    first = {one.pid for one in reader.beat(gpu_pids={510, 530}).procs}
    assert {510, 530} < first
    assert len(first) == 3
    assert first | {one.pid for one in reader.beat(gpu_pids={510, 530}).procs} >= {100, 500, 510, 520, 530}


def test_a_process_that_did_not_run_is_asked_its_state_now_and_then(proc: FakeProc, reader: Reader) -> None:
    reader.beat()
    proc.counters(100, state="R", rss=7)
    frames = [frame for _ in range(2 * LONGEST_RESTS_S) for frame in reader.second()]
    assert (sample(frames, 100).state, sample(frames, 100).rss_bytes) == ("R", 7 * PAGE_BYTES)


def test_kernel_threads_rename_themselves_without_noise(proc: FakeProc, reader: Reader) -> None:
    proc.process(9, comm="kworker/0:1-events", cmdline=b"", flags=0x208040)
    frame = reader.beat()
    assert info(frame, 9).cmdline == []
    reader.second()  # libraries are read after the first frame
    proc.counters(9, comm="kworker/0:1+mm", flags=0x208040, oncpu=9)
    assert all(not frame.infos for frame in reader.second())


RAN_NS = 10**15  # of a process that has not rested all its life, whatever the host's uptime is


def read_in(seconds: list[list[Frame]], pid: int) -> list[int]:
    """How often ``pid`` was read in each second."""
    return [sum(p.pid == pid for frame in frames for p in frame.procs) for frames in seconds]


def _until(rested: int) -> int:
    """Seconds in which a process is read so often at rest, and some."""
    turns = min(rested, LONG_AFTER) - RESTS_AFTER, max(0, min(rested, LONGEST_AFTER) - LONG_AFTER)
    return RESTS_AFTER + 1 + RESTS_S * (turns[0] + 1) + LONG_RESTS_S * (turns[1] + 1)


def test_who_rests_is_read_every_third_second_and_ever_more_seldom(proc: FakeProc, reader: Reader) -> None:
    for pid in (7, 8):
        proc.process(pid, comm="kswapd0", cmdline=b"", flags=0x208040, oncpu=RAN_NS)
    proc.counters(100, oncpu=RAN_NS)
    reader.beat()
    long, longest = _until(LONG_AFTER), _until(LONGEST_AFTER)
    seconds = [reader.second() for _ in range(longest + 2 * LONGEST_RESTS_S)]
    for pid in (7, 8, 100):
        told = read_in(seconds, pid)
        assert told[: RESTS_AFTER + 1] == [1] * (RESTS_AFTER + 1)
        between = told[RESTS_AFTER + 1 : RESTS_AFTER + 1 + RESTS_S]
        assert sum(between) == 1
        assert sum(told[long : long + LONG_RESTS_S]) == 1
        assert [sum(told[-LONGEST_RESTS_S:]), sum(told[-2 * LONGEST_RESTS_S : -LONGEST_RESTS_S])] == [1, 1]
    assert len({tuple(read_in(seconds, pid)[RESTS_AFTER + 1 :]) for pid in (7, 8, 100)}) == 1, "in the same seconds"
    assert {p.pid for p in reader.beat(key=True).procs} == {7, 8, 100}


def test_who_rested_all_its_life_is_read_as_seldom_from_the_first_reading_on(proc: FakeProc, reader: Reader) -> None:
    """Unless it runs just now, ran more, or has just been started; and unless it is a trainer's child."""
    young = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10_000_000
    proc.process(200, state="R")
    proc.process(300, oncpu=RAN_NS)
    proc.process(400, threads=3, utime=RAN_NS // 10_000_000)
    proc.process(500, start=young)
    proc.process(900, start=young - 1_500)
    proc.process(600, threads=3)
    proc.process(700, ppid=800)
    proc.process(800)
    reader.beat({800})
    seconds = [reader.second({800}) for _ in range(LONGEST_RESTS_S)]
    told = {pid: read_in(seconds, pid) for pid in range(100, 1000, 100)}
    assert {pid for pid, times in told.items() if sum(times) == 1} == {100, 600}
    assert sum(told[900][:LONG_RESTS_S]) == 1, "its life was shorter"
    assert sum(told[900]) == LONGEST_RESTS_S // LONG_RESTS_S
    assert {pid for pid, times in told.items() if times[:2] == [1, 1]} >= {200, 300, 400, 500}
    assert all(told[700][1:])


def test_who_rested_all_its_life_is_read_at_once_when_it_runs(proc: FakeProc, reader: Reader) -> None:
    seconds = []
    for second in range(5):
        proc.write("proc/stat", f"cpu  {100 * second} 0 0 100 0 0 0 0 0 0\n")
        proc.counters(100, oncpu=1 + second * 10**9)
        seconds.append(reader.second())
    assert all(read_in(seconds, 100)[2:])


def resting(proc: FakeProc, reader: Reader, busy_ticks: int = 0) -> None:
    """Beat until process 100 rests long; the CPUs do ``busy_ticks`` more in each second than its processes."""
    for second in range(_until(LONGEST_AFTER)):
        proc.write("proc/stat", f"cpu  {second * busy_ticks} 0 0 100 0 0 0 0 0 0\n")
        reader.second()


def test_who_runs_again_is_read_at_once_though_it_rested(proc: FakeProc, reader: Reader) -> None:
    resting(proc, reader)
    proc.counters(100, oncpu=300_000_001)
    proc.write("proc/stat", "cpu  20 0 10 100 0 0 0 0 0 0\n")
    seconds = [reader.second() for _ in range(4)]
    assert sample(seconds[1], 100).oncpu_ns == 300_000_001
    assert all(read_in(seconds, 100)[:2]), "and each second again"


def test_who_runs_a_little_is_read_at_the_usual_time(proc: FakeProc, reader: Reader) -> None:
    resting(proc, reader)
    proc.counters(100, oncpu=20_000_000)
    proc.write("proc/stat", "cpu  2 0 0 100 0 0 0 0 0 0\n")
    assert sum(read_in([reader.second() for _ in range(LONGEST_RESTS_S)], 100)) >= 1


def test_who_runs_a_little_in_each_second_is_read_within_nine(proc: FakeProc, reader: Reader) -> None:
    resting(proc, reader)
    seconds = []
    for second in range(1, 2 * LONG_RESTS_S + 1):
        proc.counters(100, oncpu=20_000_000 * second)
        proc.write("proc/stat", f"cpu  {2 * second} 0 0 100 0 0 0 0 0 0\n")
        seconds.append(reader.second())
    assert all(read_in(seconds, 100)[LONG_RESTS_S:])


def test_who_rests_and_becomes_another_program_is_read_within_nine_seconds(proc: FakeProc, reader: Reader) -> None:
    resting(proc, reader)
    while reader.seq // 10 % LONGEST_RESTS_S != 1:  # long before it is read in any case
        reader.second()
    proc.counters(100, comm="sleep", oncpu=900, stack=77)
    proc.write("proc/100/cmdline", b"sleep\0inf\0")
    assert info([frame for _ in range(LONG_RESTS_S) for frame in reader.second()], 100).cmdline == ["sleep", "inf"]


def test_who_rests_has_its_switches_and_io_read_after_it_ran_enough(proc: FakeProc, reader: Reader) -> None:
    """Its state and its time on a CPU are read each time, so that a stopped process is seen."""
    resting(proc, reader)
    io = "rchar: 9\nwchar: 0\nsyscr: 1\nsyscw: 0\nread_bytes: 5000\nwrite_bytes: 9000\ncancelled_write_bytes: 0\n"
    for oncpu, vol, read in ((SLIGHT_NS // 2, 11, 4096), (SLIGHT_NS + 2, 33, 5000)):
        proc.counters(100, oncpu=oncpu, state="T", rss=200)
        proc.identity(100, vol=33)
        proc.write("proc/100/io", io)
        one = sample([frame for _ in range(LONGEST_RESTS_S) for frame in reader.second()], 100)
        assert (one.oncpu_ns, one.state, one.rss_bytes, one.vol, one.read_bytes) == (oncpu, "T", 200 * PAGE_BYTES, vol, read)


def test_who_is_adopted_by_a_trainer_rests_no_longer(proc: FakeProc, reader: Reader) -> None:
    proc.process(200, ppid=300)
    reader.second({100})
    proc.counters(200, ppid=100, oncpu=3)
    assert sum(read_in([reader.second({100}) for _ in range(LONGEST_RESTS_S)], 200)) >= 1
    assert all(read_in([reader.second({100}) for _ in range(3)], 200)[1:])


def test_proc_is_listed_when_somebody_came_or_ended(proc: FakeProc, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = list[str]()
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
    folder = str(proc.root / "proc") + "/"
    for _ in range(12):
        reader.second()
    assert listed.count(folder) <= 4
    proc.vanish(100)
    gone = reader.second() + reader.second()
    assert [pid for frame in gone for pid in frame.gone] == [100]


def test_children_of_a_trainer_never_rest(proc: FakeProc, reader: Reader) -> None:
    proc.process(200, ppid=100)
    resting(proc, reader)
    seconds = [reader.second({100}) for _ in range(4)]
    assert all(read_in(seconds, 200)[1:]), "from the next second on"


def test_work_that_nobody_explains_wakes_those_that_rest_once(proc: FakeProc, reader: Reader) -> None:
    """It is of processes that live for less than a second, or that may not be seen; more of it does again."""
    resting(proc, reader, busy_ticks=80)
    before = int((proc.root / "proc/stat").read_text().split()[1])
    told = []
    for second in range(1, LONGEST_RESTS_S + 1):
        proc.write("proc/stat", f"cpu  {before + 80 * second} 0 0 100 0 0 0 0 0 0\n")
        told.append(reader.second())
    assert sum(read_in(told, 100)) == 1
    proc.counters(100, oncpu=900_000_000)
    proc.write("proc/stat", f"cpu  {before + 80 * LONGEST_RESTS_S + 170} 0 0 100 0 0 0 0 0 0\n")
    assert sample([frame for _ in range(2) for frame in reader.second()], 100).oncpu_ns == 900_000_000


@pytest.mark.parametrize("threads", [1, 3])
def test_who_wakes_is_soon_read_though_what_others_do_hides_it(proc: FakeProc, reader: Reader, threads: int) -> None:
    """Of work that comes and goes by a half, three tenths of a CPU more stand out in no total."""
    proc.counters(100, threads=threads)
    for pid in (200, 300):
        proc.process(pid, threads=threads)
    resting(proc, reader, busy_ticks=80)
    busy = int((proc.root / "proc/stat").read_text().split()[1])
    seconds = []
    for second in range(1, LONG_RESTS_S + 1):
        proc.write("proc/stat", f"cpu  {busy + 110 * second} 0 0 100 0 0 0 0 0 0\n")
        proc.counters(100, threads=threads, utime=30 * second, oncpu=300_000_000 * second)
        proc.counters(200, threads=threads, oncpu=second + 1)  # it turns over
        seconds.append(reader.second())
    assert any(read_in(seconds, 100)[: RESTS_S + 1]), "and each second again"
    assert all(read_in(seconds, 100)[RESTS_S + 1 :])
    assert not all(read_in(seconds, 200)[RESTS_S + 1 :])


def test_threads_beside_the_main_one_count_as_its_work(proc: FakeProc, reader: Reader) -> None:
    ran = RAN_NS // 10_000_000
    proc.counters(100, threads=3, utime=ran)
    seconds = []
    for second in range(12):
        proc.counters(100, threads=3, utime=ran + 5 * second)
        seconds.append(reader.second())
    assert read_in(seconds, 100)[1:] == [1] * 11


def test_garbage_in_the_delay_field(proc: FakeProc, reader: Reader) -> None:
    proc.counters(100, blkio=2**62, oncpu=RAN_NS)
    assert sample(reader.beat(), 100).blkio_delay_ns is None
    proc.counters(100, blkio=12, oncpu=RAN_NS + 9)
    assert sample(reader.second(), 100).blkio_delay_ns == 120_000_000
    proc.write("proc/sys/kernel/task_delayacct", "0\n")
    reader.beat(key=True)
    assert "task_delayacct=1" in reader.last.changed[0].detail["blkio_delay_ns"]
    assert sample(reader.second(), 100).blkio_delay_ns is None


def test_few_descriptors_are_enough(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LIMIT", files.RESERVE + 10)
    for pid in range(100, 131):
        proc.process(pid, oncpu=RAN_NS)
    source = ProcfsSource(Settings(root=str(proc.root)))
    reader = Reader(source)
    reader.beat()
    for _ in range(3):
        frames = reader.second(hot=set(range(100, 110)))
        assert {p.pid for frame in frames for p in frame.procs} == set(range(100, 131))
        assert source._pool.kept <= 10
    source.close()
    assert source._pool.kept == 0


def allow_no_time(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read everybody, however long it takes here, and let each later tick read as little as it ever does, as after the first seconds."""
    monkeypatch.setattr(procfs_source, "FIRST_NS", 1 << 60)
    reader.beat()
    monkeypatch.setattr(procfs_source, "EARLY_S", -1)
    monkeypatch.setattr(reader.source, "_budget_ns", 0)


def test_whom_a_tick_has_no_time_for_is_read_in_the_next_ones(proc: FakeProc, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the hot and of the others some are read however short the time is, and all of them in turn."""
    pids = set(range(200, 320))
    for pid in pids:
        proc.process(pid, oncpu=RAN_NS)
    proc.born(320)
    allow_no_time(reader, monkeypatch)
    hot = set(range(200, 240))
    reader.beat(hot)
    frames = [reader.beat(hot) for _ in range(40 + len(pids))]
    read = [[sample.pid for sample in frame.procs] for frame in frames if not frame.key]
    assert {len(set(told) & hot) for told in read} == {1}
    assert max(len(set(told) - hot) for told in read) <= 16
    assert {pid for told in read for pid in told} - {100} == pids  # 100 has rested all its life, and is read every 27 s
    assert [told.pop(0) for told in read[:40]] != [read[0]] * 40


def test_who_has_waited_longest_is_read_first(proc: FakeProc, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(200, 240):
        proc.process(pid)
    proc.born(240)
    allow_no_time(reader, monkeypatch)
    hot = set(range(200, 240))
    reader.beat(hot)
    told = [next(sample.pid for sample in reader.beat(hot, key=False).procs if sample.pid in hot) for _ in range(90)]
    assert sorted(told[:40]) == sorted(hot)
    assert {told.count(pid) for pid in hot} <= {2, 3}


def test_who_ends_while_it_waits_to_be_read_is_gone(proc: FakeProc, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    hot = set(range(200, 240))
    for pid in hot:
        proc.process(pid)
    proc.born(240)
    allow_no_time(reader, monkeypatch)
    reader.beat(hot)
    for pid in hot:
        proc.vanish(pid)
    gone = {pid for _ in range(20) for pid in reader.beat(key=False).gone}
    assert gone == hot


def test_of_a_process_with_thousands_of_threads_some_are_read_each_time_and_all_in_turn(proc: FakeProc, reader: Reader) -> None:
    proc.counters(100, threads=401)
    for tid in range(1000, 1400):
        proc.thread(100, tid)
    reader.beat({100})
    for _ in range(60):
        reader.beat({100}, key=False)
    read = [{thread.tid for thread in sample(reader.beat({100}, key=False), 100).threads} for _ in range(30)]
    assert max(map(len, read)) <= FOLLOWED + RESTING_READ + 1
    assert set().union(*read) == {100, *range(1000, 1400)}
    restated = sample(reader.beat({100}, key=True), 100).threads
    assert {thread.tid for thread in restated} == {100, *range(1000, 1400)}
    assert len(restated) == 401


def test_threads_are_not_listed_anew_as_long_as_their_number_stays(
    proc: FakeProc, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Of more threads than are followed the known ones are always fewer than there are."""
    proc.counters(100, threads=threads.LISTED + 500)
    proc.thread(100, 1000)
    listed: list[str] = []
    monkeypatch.setattr(threads.Threads, "_list", lambda self: listed.append(self._folder))
    for _ in range(20):
        reader.beat({100}, key=False)
    assert len(listed) == 2


def test_a_trainers_names_come_in_a_later_frame_and_paths_that_tell_more_at_once(proc: FakeProc, reader: Reader) -> None:
    container, step = f"/docker/{'3f2a' * 16}", "/slurm/uid_0/job_4/step_1/task_0"
    proc.process(7, cgroup=f"6:freezer:{step}\n2:cpu,cpuacct:{container}\n0::/\n")
    proc.write(f"var/lib/docker/containers/{'3f2a' * 16}/config.v2.json", '{"Name": "/trainer"}')
    first = reader.beat()
    assert (info(first, 7).cgroup, info(first, 7).other_cgroups, info(first, 7).names) == (container, [step], None)
    frames = [reader.beat({7}, trainers={7})]

    def is_named() -> bool:
        frames.append(reader.beat({7}, trainers={7}))
        return any(one.pid == 7 and one.names for frame in frames for one in frame.infos)

    until(is_named)
    names = info(frames, 7).names
    assert names is not None
    assert names.container == "trainer"
    assert info(reader.beat(key=True), 7).names == names
    assert info(reader.beat(key=True), 100).names is None, "nobody asks for those of others"
