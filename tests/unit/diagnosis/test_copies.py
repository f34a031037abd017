"""Time in copies beside a GPU that runs nothing is the copy's own, however fast its link is."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gputop.diagnosis.facts.facts import CallFacts
from gputop.diagnosis.facts.points import copied_beside, facts_of
from gputop.findings.verdict import Verdict
from gputop.model.frame import CudaCall
from tests.unit.diagnosis.causes import alone
from tests.unit.diagnosis.scene import DISK, EPOLL, FUTEX, HIDDEN, ON_CPU, QUEUE, SLEEP, TURN, Proc, Scene

SYNC = (100, "cuStreamSynchronize")
LINKS = (None, (1, 1), (3, 1), (3, 16), (4, 16), (5, 16), (6, 16))  # (PCIe generation, lanes): 0.25 to 121 GB/s
SENDS = ("cuMemcpyHtoDAsync", "cuMemcpyHtoD_v2", "cuMemcpy")
RETURNS = ("cuMemcpyDtoHAsync", "cuMemcpyDtoH_v2")


def copying(call: str, moved: float, link: tuple[int, int] | None, util: float = 5.0, inside: float = 0.64) -> Scene:
    """It spends 64 % of its time in copies, and waits for the kernels in between as long as these run."""
    scene = alone(util, 0.95, [ON_CPU])
    scene.gpus[0] |= {} if link is None else {"pcie_gen": link[0], "pcie_width": link[1]}
    scene.probed, scene.calls = True, {(100, call): (20, inside, round(moved)), SYNC: (10, min(util / 100, 0.9 - inside), 0)}
    return scene


def asleep(scene: Scene, look: dict) -> Scene:
    """The same from pinned memory: the main thread sleeps in the copy."""
    scene.procs[100].run, scene.procs[100].looks = 0.3, [ON_CPU, look, look]
    return scene


def told(verdict: Verdict, metric: str) -> object:
    return next((one.value for one in verdict.evidence if one.metric == metric), None)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("call", [*SENDS, *RETURNS])
def test_copies_beside_an_idle_gpu_are_named_at_any_speed(call: str, link: tuple[int, int] | None):
    for moved, look in ((1e6, ON_CPU), (1e8, EPOLL), (1e9, HIDDEN), (3e9, TURN), (2e10, ON_CPU)):
        scene = copying(call, moved, link)
        verdict = (scene if look is ON_CPU else asleep(scene, look)).play(4).engine.verdict
        assert (verdict.symptom, verdict.cause) == ("transfer-bound", "h2d-transfer"), (moved, look)
        assert told(verdict, "copy_pct") == pytest.approx(64.0, abs=6.0), (moved, look)


@pytest.mark.parametrize("util", [0.0, 20.0, 36.0, 45.0])
@pytest.mark.parametrize("exact", [False, True])
def test_so_they_are_where_kernels_run_between_them(util: float, exact: bool):
    """A wait for the kernels is over when they are: the rest of what the GPU lost lies in the copies."""
    scene = copying("cuMemcpyHtoDAsync", 2e8, (5, 16), util, min(0.64, 0.95 - util / 100))
    scene.gpus[0] |= {"gr_active_pct": util, "sm_active_pct": 0.9 * util} if exact else {}
    scene.gpus[0]["util_pct"] = util
    assert scene.play(1).play(4).engine.verdict.cause == "h2d-transfer"


@pytest.mark.parametrize("workers", [(), (101, 102)])
def test_and_without_workers(workers: tuple[int, ...]):
    scene = copying("cuMemcpyHtoDAsync", 2e8, (5, 16)).drop(*({101, 102} - {*workers}))
    assert scene.play(4).engine.verdict.cause == "h2d-transfer"


@pytest.mark.parametrize("look", [HIDDEN, FUTEX, EPOLL])
def test_sleep_in_copies_is_no_wait_for_workers_that_work(look: dict):
    scene = asleep(copying("cuMemcpyHtoDAsync", 2e10, (5, 16)), look)
    for pid in (101, 102):
        scene.procs[pid].run, scene.procs[pid].looks = 0.7, [ON_CPU, ON_CPU, QUEUE]
    assert scene.play(4).engine.verdict.cause == "h2d-transfer"
    scene.calls = {(100, "cuMemcpyHtoDAsync"): (20, 0.01, 2e7), SYNC: (10, 0.04, 0)}
    assert scene.play(4).engine.verdict.symptom == "input-bound"


def test_a_copy_that_crawls_is_told_with_its_link():
    verdict = copying("cuMemcpyHtoDAsync", 6.4e8, (5, 16)).play(4).engine.verdict
    assert told(verdict, "copy_pace_bytes_per_s") == pytest.approx(1e9, rel=0.1)
    assert told(verdict, "link_bytes_per_s") == pytest.approx(63e9, rel=0.01)
    assert "at 1.0 GB/s of the 63.0 GB/s that its link carries" in verdict.detail
    assert "others copy over its link" in verdict.fixes[-1].text
    quick = copying("cuMemcpyHtoDAsync", 2e10, (5, 16)).play(4).engine.verdict
    assert "that its link carries" not in quick.detail
    assert "others copy" not in str(quick.fixes)


def test_page_faults_that_bring_in_what_is_copied_are_told():
    scene = copying("cuMemcpyHtoDAsync", 6.4e8, (5, 16))
    scene.procs[100].minflt = 120_000
    verdict = scene.play(4).engine.verdict
    assert told(verdict, "page_faults_per_s") == pytest.approx(120_000, rel=0.1)
    assert "one buffer again and again" in verdict.fixes[0].text
    scene.procs[100].minflt = 10_000
    assert told(scene.play(4).engine.verdict, "page_faults_per_s") is None


@pytest.mark.parametrize("link", LINKS)
def test_a_small_copy_behind_kernels_waits_for_these(link: tuple[int, int] | None):
    scene = copying("cuMemcpyHtoD_v2", 2e6, link, util=97.0, inside=0.8)
    state = scene.play(6).engine.states[100]
    assert state.fractions.get("transfer", 0.0) < 0.1
    assert state.fractions["waiting-gpu"] > 0.6


def test_who_is_kept_from_its_cpu_in_a_copy_does_not_copy_meanwhile():
    scene = copying("cuMemcpyHtoDAsync", 1e8, (5, 16))
    scene.procs[100].run, scene.procs[100].wait, scene.cpu_busy = 0.35, 0.6, [1.0] * 4
    scene.add(Proc(900, comm="hog", cmdline=["/bin/hog"], run=3.5, looks=[ON_CPU]))
    assert scene.play(4).engine.verdict.cause == "cpu-contention"


def test_nor_who_waits_for_the_disk_that_has_what_is_copied():
    """Pages of a file that is mapped come from the disk while they are copied."""
    scene = copying("cuMemcpyHtoDAsync", 1e8, (5, 16))
    scene.procs[100].run, scene.procs[100].looks, scene.procs[100].uninterruptible = 0.3, [ON_CPU, DISK, DISK], 0.6
    scene.procs[100].read_bytes, scene.procs[100].majflt = 100_000_000, 500
    assert scene.play(4).engine.verdict.cause == "disk-io"


def test_nor_who_is_stopped_in_a_copy():
    scene = copying("cuMemcpyHtoDAsync", 1e6, (5, 16))
    scene.procs[100].run, scene.procs[100].looks = 0.3, [ON_CPU, {"state": "T"}, {"state": "T"}]
    assert scene.play(4).engine.verdict.cause != "h2d-transfer"


def calls(copy: float = 0.0, slow: float = 0.0, sync: float = 0.0) -> CallFacts:
    """Shares of the window in quick copies, in what is slow of others, and in waits for the GPU."""
    return CallFacts(2.5, sync=sync + slow, copy=copy, slow=slow)


@pytest.mark.parametrize(
    ("before", "idle", "copy", "sync"),
    [
        (calls(slow=0.6), 1.0, 0.6, 0.0),
        (calls(slow=0.6), 0.7, 0.3, 0.3),  # of these 0.3 it may have waited for the kernels
        (calls(slow=0.6, sync=0.3), 0.7, 0.6, 0.3),  # but not twice
        (calls(slow=0.6), 0.3, 0.0, 0.6),
        (calls(copy=0.2, slow=0.6, sync=0.1), 1.0, 0.8, 0.1),
        (calls(slow=2.0, sync=0.5), 0.6, 1.5, 1.0),  # two threads and a half may wait for the same kernels
        (calls(copy=0.3, sync=0.6), 0.9, 0.3, 0.6),  # no copy was slow
    ],
)
def test_what_slow_copies_take_beyond_the_kernels_is_their_own(before: CallFacts, idle: float, copy: float, sync: float):
    after = copied_beside(before, idle)
    assert (after.copy, after.sync) == pytest.approx((copy, sync))
    assert after.copy + after.sync == pytest.approx(before.copy + before.sync)


SECOND = 1_000_000_000


def test_a_copy_that_lasts_longer_than_the_window_counts_before_it_returns():
    """10 GB in 5 s: neither its time nor its bytes are counted until then."""
    name = "cuMemcpyHtoDAsync"
    at = [
        CudaCall(1, name, 7, SECOND, 0, bytes=100, inflight_ns=0),
        CudaCall(1, name, 7, SECOND, 0, bytes=100, inflight_ns=2 * SECOND),
        CudaCall(1, name, 7, SECOND, 0, bytes=100, inflight_ns=4 * SECOND),
        CudaCall(1, name, 8, 6 * SECOND, 0, bytes=10_000_000_100, inflight_ns=0),
    ]
    found = [facts_of({name: older}, {name: newer}, 2 * SECOND) for older, newer in pairwise(at)]
    inside = [None if one is None else one.copy + one.sync for one in found]
    assert inside == pytest.approx([1.0, 1.0, 0.5])
    assert {None if one is None else one.copy_bytes_per_s for one in found} == {None}  # how fast it was in the window is not known
    assert found[0] is not None
    assert copied_beside(found[0], 1.0).copy == pytest.approx(1.0)


def test_a_wait_that_goes_on_counts_when_it_returns():
    older, newer = (CudaCall(1, SYNC[1], 3, 0, 0, inflight_ns=ns) for ns in (0, SECOND))
    found = facts_of({SYNC[1]: older}, {SYNC[1]: newer}, SECOND)
    assert found is not None
    assert (found.sync, found.copy) == (0.0, 0.0)


def test_reading_back_over_a_fast_link_is_no_wait_for_kernels_that_do_not_run():
    """1 GB/s over 63 GB/s looks like a copy that waits; nothing ran that it could have waited for."""
    verdict = copying("cuMemcpyDtoH_v2", 6.4e8, (5, 16)).play(4).engine.verdict
    assert "copies from the GPU" in verdict.headline
    assert told(verdict, "copied_bytes_per_s") == pytest.approx(6.4e8, rel=0.1)


def test_sleeping_beside_an_idle_gpu_is_no_copy():
    scene = alone(5.0, 0.05, [SLEEP])
    scene.probed, scene.calls = True, {(100, "cuMemcpyHtoDAsync"): (20, 0.02, 1e8), SYNC: (20, 0.05, 0)}
    assert scene.play(4).engine.verdict.cause != "h2d-transfer"
