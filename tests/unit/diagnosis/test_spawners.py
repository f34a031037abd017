"""Who starts short-lived programs is to blame for what these take."""

from __future__ import annotations

import pytest

from gputop.diagnosis import Engine
from tests.unit.diagnosis.scene import ON_CPU, QUEUE, Proc, Scene, training

TICKS_PER_S, START_TICKS = 100, 100_000
"""START_TICKS is when scenes begin."""


def starved() -> Scene:
    scene = training().play(4)
    scene.gpus[0]["util_pct"], scene.cpu_busy = 20.0, [1.0] * scene.cpus
    for pid in (101, 102):
        scene.procs[pid].run, scene.procs[pid].wait, scene.procs[pid].looks = 0.3, 0.7, [ON_CPU]
    scene.procs[100].looks = [QUEUE]
    return scene


def build(scene: Scene, seconds: float, compilers: int = 3) -> Scene:
    """make (800) has a shell (801) run compilers of 0.6 s each, one after another on each of so many CPUs."""
    now = START_TICKS + round((scene.board.t_ns / 1e9 - 1000) * TICKS_PER_S)
    make = Proc(800, 1, "make", ["make", "-j"], start_ticks=now)
    scene.add(make, Proc(801, 800, "sh", ["sh", "-c", "cc1"], start_ticks=now))
    pid = 1000
    for _ in range(round(seconds / 0.6)):
        now = START_TICKS + round((scene.board.t_ns / 1e9 - 1000) * TICKS_PER_S)
        running = [Proc(pid + i, 801, "cc1", ["/usr/lib/cc1"], run=1.0, looks=[ON_CPU], start_ticks=now) for i in range(compilers)]
        pid += compilers
        scene.add(*running).play(0.6)
        scene.drop(*(one.pid for one in running))
        scene.reap(801, compilers * 0.6)
    return scene


def culprits(engine: Engine) -> list[tuple[int, str, float | None]]:
    [incident] = [one for one in engine.incidents if one.cause == "cpu-contention"]
    return [(one.pid, one.name, one.cpu_s) for one in incident.culprits]


def test_what_its_programs_take_is_the_starters():
    scene = build(starved(), 9)
    assert scene.engine.verdict.cause == "cpu-contention"
    assert "sh (801) and the cc1 it starts took 3." in scene.engine.verdict.detail
    [(pid, name, cpu_s)] = culprits(scene.engine)
    assert (pid, name, cpu_s) == (801, "sh", pytest.approx(27, rel=0.1))


def test_a_shell_that_ends_is_its_makes():
    scene = build(starved(), 6)
    took = scene.total(801)
    scene.drop(801)
    scene.reap(800, took)
    make = Proc(802, 800, "sh", ["sh", "-c", "cc1"], start_ticks=START_TICKS + 1000)
    scene.add(make)
    for _ in range(6):
        scene.reap(800, 1.5).play(0.5)
    assert "make (800) and the cc1 it starts" in scene.engine.verdict.detail


def test_a_hog_that_ends_is_not_its_shells():
    scene = starved().add(Proc(800, 1, "bash", ["-bash"]), Proc(900, 800, "hog", ["/bin/hog"], run=3.0, looks=[ON_CPU]))
    scene.play(8)
    took = scene.total(900)
    scene.drop(900)
    scene.reap(800, took)
    scene.add(Proc(901, 800, "hog", ["/bin/hog"], run=3.0, looks=[ON_CPU])).play(4)
    assert {name for _, name, _ in culprits(scene.engine)} == {"hog"}


def test_init_started_nobody():
    scene = starved().add(Proc(1, 0, "systemd", ["/sbin/init"]), Proc(900, 1, "hog", ["/bin/hog"], run=2.0, looks=[ON_CPU]))
    for _ in range(12):
        scene.reap(1, 1.0).play(0.5)
    assert {name for _, name, _ in culprits(scene.engine)} == {"hog"}


def test_a_hog_that_ends_is_not_the_shells_above_its_starter():
    """`bash -c "timeout 8 xz; sleep 40"`: the shell has become sleep when timeout is gone, and has waited for both."""
    scene = starved().add(
        Proc(800, 1, "bash", ["bash", "-c", "timeout 8 xz; sleep 40"]), Proc(899, 800, "timeout", ["timeout", "8", "xz"]),
        Proc(900, 899, "xz", ["/usr/bin/xz"], run=1.5, looks=[ON_CPU]),
    )  # fmt: skip
    scene.play(8)
    took = scene.total(900)
    scene.drop(899, 900)
    scene.procs[800].comm, scene.procs[800].cmdline = "sleep", ["sleep", "40"]
    scene.reap(800, took).play(2)
    assert {name for _, name, _ in culprits(scene.engine)} == {"xz"}
    assert all(not taker.spawns for taker in scene.engine.facts.takers)


def test_nobody_takes_more_than_there_is():
    scene = starved().add(Proc(800, 1, "sh", ["sh", "-c", "cc1"], start_ticks=START_TICKS))
    for _ in range(4):
        scene.reap(800, 3.5).play(0.5)
    assert max(taker.cores for taker in scene.engine.facts.takers) == scene.cpus
    assert "took 4.0 of 4 cores" in scene.engine.verdict.detail


def test_a_starter_whose_child_is_waited_for_by_init_took_no_less_than_nothing():
    scene = starved().add(Proc(800, 1, "sh", ["sh", "-c", "cc1"]), Proc(900, 800, "cc1", ["/usr/lib/cc1"], run=1.0, looks=[ON_CPU])).play(9)
    for _ in range(12):
        scene.reap(800, 0.8).play(0.4)
    assert 800 in {pid for pid, _, _ in culprits(scene.engine)}
    scene.drop(900).play(1)
    assert min(cpu_s or 0.0 for _, _, cpu_s in culprits(scene.engine)) > 0.0
