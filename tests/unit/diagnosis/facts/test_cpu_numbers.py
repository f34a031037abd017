"""Two numberings of CPUs: nobody is blamed for a CPU that only has the same number."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.diagnosis.facts.hosts import RENUMBERED
from gputop.model.frame import Host, SourceState
from gputop.model.machine import parse_cpus
from gputop.sources.host import cpu_fields, mounted_over
from tests.unit.diagnosis.causes import affinity, starved
from tests.unit.diagnosis.scene import ON_CPU, SLEEP, Proc, Scene

HOGS = (900, 901, 902, 903)


def job_among_hogs(mask: str, processor: int, cpus: int = 1) -> Scene:
    """A job and four hogs on the CPUs of a ``mask``, of which /proc/stat shows as many from 0 on; all of them busy."""
    scene = starved(workers=1, run=0.15, wait=0.8, looks=[ON_CPU])
    scene.cpus, scene.cpu_busy = cpus, [1.0] * cpus
    for pid in (100, 101):
        scene.procs[pid].info["cpus_allowed"], scene.procs[pid].processor = mask, processor
    for pid in HOGS:
        hog = Proc(pid, comm="backup-agent", cmdline=["backup-agent"], run=0.2, wait=0.8, looks=[ON_CPU], processor=processor)
        hog.info["cpus_allowed"] = mask
        scene.add(hog)
    return scene


def innocent(pid: int, processor: int, mask: str, run: float = 0.9) -> Proc:
    return Proc(pid, comm="render", cmdline=["render"], run=run, looks=[ON_CPU], processor=processor, info={"cpus_allowed": mask})


def blamed(scene: Scene) -> set[int]:
    """Whoever is named: as a culprit, in words or in a command."""
    verdict = scene.engine.verdict
    told = [verdict.headline, verdict.detail, *(fix.command + fix.text for fix in verdict.fixes), *(one.text for one in verdict.evidence)]
    numbers = {int(word) for word in re.findall(r"\d+", " ".join(told))}
    return ({culprit.pid for culprit in verdict.culprits} | numbers) & scene.procs.keys() - {100, 101}


@pytest.mark.parametrize(("mask", "processor", "cpus"), [("1", 1, 1), ("3", 3, 1), ("40", 40, 1), ("2-5", 4, 4), ("4-5,9", 9, 3)])
def test_under_lxcfs_those_are_blamed_who_took_the_jobs_cpus(mask: str, processor: int, cpus: int) -> None:
    """The innocent runs on a CPU of the host that has the number of one in the container's /proc/stat."""
    scene = job_among_hogs(mask, processor, cpus)
    scene.add(innocent(950, 0, "0"), innocent(951, 0, f"0-{processor}"))
    if cpus > 1:
        for pid in HOGS:
            scene.procs[pid].run = 0.9
    scene.play(8)
    assert scene.engine.verdict.cause == "cpu-contention"
    assert blamed(scene) == set(HOGS)
    assert "short-lived" not in scene.engine.verdict.detail
    assert scene.engine.facts is not None
    assert (scene.engine.facts.host.renumbered, scene.engine.facts.host.busy) == (True, {})


def test_what_the_collector_found_mounted_there_is_believed() -> None:
    """All CPUs are allowed, and who runs is on one that /proc/stat has, too: the quota of the container is what it shows."""
    scene = job_among_hogs("0-63", 1, 2)
    scene.add(innocent(950, 5, "0-63"))
    scene.board.sources["host"] = SourceState("host", "partial", detail={RENUMBERED: "lxcfs"})
    scene.play(6)
    assert scene.engine.facts is not None
    assert scene.engine.facts.host.renumbered


def test_who_runs_on_a_cpu_that_is_not_there_shows_it_too() -> None:
    scene = job_among_hogs("0-63", 17, 4).play(6)
    assert scene.engine.facts is not None
    assert scene.engine.facts.host.renumbered


def _ordinary(scene: Scene, seconds: float = 6.0) -> bool:
    scene.play(seconds)
    assert scene.engine.facts is not None
    return not scene.engine.facts.host.renumbered and bool(scene.engine.facts.host.busy)


def test_a_machine_that_could_have_more_cpus_is_an_ordinary_one() -> None:
    """Its masks are of all that may ever be plugged in."""
    scene = affinity()
    for pid in (100, 900):
        scene.add(Proc(pid, run=0.01, looks=[SLEEP], processor=0, info={"cpus_allowed": "0-127", "uses_cuda": True}))
    assert _ordinary(scene)
    assert scene.engine.verdict.cause == "affinity"


def test_a_cpu_that_is_switched_off_while_we_watch_makes_no_other_numbers() -> None:
    """Who sleeps was there last, and one that was held there alone is a thread of the kernel's."""
    scene = job_among_hogs("0-3", 2, 4)
    scene.add(Proc(950, comm="sleeper", cmdline=["sleeper"], looks=[SLEEP], processor=3), Proc(2, 0, "kthreadd", []))
    scene.add(Proc(951, 2, "cpuhp/3", [], looks=[SLEEP], processor=3, info={"cpus_allowed": "3"}))
    assert _ordinary(scene)
    scene.cpus, scene.cpu_busy = 3, [1.0] * 3
    for pid in (100, 101, *HOGS):
        scene.procs[pid].info["cpus_allowed"] = "0-3"
    assert _ordinary(scene, 12.0)


def test_holes_in_the_numbers_are_cpus_that_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = job_among_hogs("4-7", 6, 4)
    told = scene._host

    def host(dt: float) -> Host:
        return replace(said := told(dt), cpus=[replace(sample, cpu=2 * sample.cpu) for sample in said.cpus or []])

    monkeypatch.setattr(scene, "_host", host)
    scene.add(innocent(950, 0, "0-3"), innocent(951, 2, "0-7"))
    assert _ordinary(scene)
    assert not {950, 951} & blamed(scene)


def test_who_was_met_on_other_cpus_than_a_pinned_jobs_took_nothing_of_these() -> None:
    scene = job_among_hogs("1", 1)
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    scene.add(innocent(950, 0, "0-1"))
    assert _ordinary(scene)
    assert scene.engine.verdict.cause == "cpu-contention"
    assert blamed(scene) == set(HOGS)


def test_who_wanders_took_what_it_took_where_it_was_met() -> None:
    """Each second elsewhere: half of its time was on the job's CPU."""
    scene = job_among_hogs("1", 1)
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    for pid in HOGS:
        del scene.procs[pid]
    scene.add(wanderer := innocent(950, 0, "0-1", run=0.9))
    for second in range(10):
        wanderer.processor = second % 2
        scene.play(1.0, step_s=0.5)
    assert scene.engine.facts is not None
    (taker,) = scene.engine.facts.takers
    assert sum(taker.where.values()) == pytest.approx(1.0)
    assert 0.3 < taker.where[1] < 0.7


def test_a_job_on_a_cpu_that_was_just_plugged_in_is_not_taken_for_one_on_all() -> None:
    """It has no figures yet: those who run elsewhere have nothing to do with it."""
    scene = job_among_hogs("0-3", 1, 4).play(4)
    for pid in (100, 101):
        scene.procs[pid].info["cpus_allowed"], scene.procs[pid].processor = "4", 4
    for pid in HOGS:
        del scene.procs[pid]
    scene.add(innocent(950, 2, "0-3"))
    scene.play(6)
    assert 950 not in blamed(scene)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}), ("", set()), ("x", set()), ("3-1", set()), ("5", {5}), ("0-1023", set(range(1024))),
        ("0-8191", set(range(8192))), ("0-99999999999", set(range(8192))), ("-1", set()), ("1,1,1", {1}), ("4-5,0-1", {4, 5}),
    ],
)  # fmt: skip
def test_lists_of_cpus(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


def test_a_list_that_a_recording_made_up_costs_nothing() -> None:
    began = time.process_time()
    for last in range(200):
        parse_cpus(",".join(["0-8191"] * 6000) + str(last))
        parse_cpus("0-9," * 10**6 + str(last))
    assert time.process_time() - began < 20.0


def test_a_machine_of_thousands_of_cpus_is_read_whole_and_a_cut_line_not_at_all() -> None:
    line = "cpu%d 10132153 290696 3084719 46828483 16683 0 25195 0 175628 0"
    text = "cpu  1 1 1 1 1 1 1 1 0 0\n" + "\n".join(line % cpu for cpu in range(4096)) + "\nctxt 5\n"
    assert [sample.cpu for sample in cpu_fields(text.encode())["cpus"]] == list(range(4096))
    cut = cpu_fields(text.encode()[:-200])["cpus"]
    assert all(sample.idle_ns == 46828483 * 10**7 for sample in cut)


@pytest.mark.parametrize(
    ("line", "is_over"),
    [
        ("36 30 0:45 /proc/stat /proc/stat rw,nosuid - fuse.lxcfs lxcfs rw", True),
        ("36 30 0:45 /sys/devices/system/cpu /sys/devices/system/cpu rw - fuse.lxcfs lxcfs rw", True),
        ("36 30 0:45 /sys/devices/system/cpu/online /sys/devices/system/cpu/online rw - fuse.lxcfs lxcfs rw", True),
        ("36 30 8:1 /tmp/x /proc/stat rw shared:1 - ext4 /dev/sda1 rw", True),
        ("36 30 0:45 /proc/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw", False),
        ("36 30 0:5 / /proc rw - proc proc rw", False),
        ("36 30 0:5 / /sys/devices/system/cpu rw - sysfs sysfs rw", False),
        ("garbage", False), ("", False), ("a b c d /proc/stat", True),
    ],
)  # fmt: skip
def test_what_is_mounted_over_the_kernels_numbers(tmp_path: Path, line: str, is_over: bool) -> None:
    (tmp_path / "mountinfo").write_text(f"{line}\n")
    assert bool(mounted_over(f"{tmp_path}/mountinfo")) is is_over


@pytest.mark.parametrize(("processor", "is_blamed"), [(0, False), (1, True)])
def test_who_starts_short_lived_programs_is_blamed_for_those_met_on_the_jobs_cpus(processor: int, is_blamed: bool) -> None:
    scene = job_among_hogs("1", 1)
    scene.cpus, scene.cpu_busy = 2, [1.0, 1.0]
    for pid in HOGS[2:]:
        del scene.procs[pid]
    scene.add(Proc(960, comm="make", cmdline=["make"], start_ticks=scene.ticks, processor=processor, info={"cpus_allowed": "0-1"}))
    for number in range(12):
        shell = Proc(1000 + number, 960, "cc1", ["cc1"], run=0.5, looks=[ON_CPU], start_ticks=scene.ticks, processor=processor)
        shell.info["cpus_allowed"] = "0-1"
        scene.add(shell).play(0.6).drop(shell.pid).reap(960, 0.3)
    scene.play(0.4)
    assert scene.engine.verdict.cause == "cpu-contention"
    assert blamed(scene) - {960} == set(HOGS[:2])
    assert (960 in blamed(scene)) is is_blamed
