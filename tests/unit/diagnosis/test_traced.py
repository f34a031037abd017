"""What torch's own trace does to a verdict: it makes it surer or less so, names kernels and calls, explains what nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gputop.diagnosis.facts.traced import kernel_name
from gputop.findings import policy
from gputop.findings.verdict import Verdict
from gputop.model.frame import Frame
from gputop.model.trace import Idle, Launched, Named, TraceCheck, TracedJob, TraceReading
from gputop.stream.kept_traces import join
from tests.unit.diagnosis.causes import cpu_contention
from tests.unit.diagnosis.causes_gpu import small_kernels, sync_storm
from tests.unit.diagnosis.causes_handmade import loop_in_a_thread
from tests.unit.diagnosis.scene import Scene

LONG_NS = 1_000_000_000


def reading(**fields: Any) -> TraceReading:
    """A trace of one second and ten steps."""
    plain: dict[str, Any] = {one: [] for one in ("kernels", "operators", "exposed", "copies", "sync_calls", "launches")}
    plain |= {"file": "gputop-trace-100-140355.json", "pid": 100, "bytes": 1, "events": 9, "start_unix_ns": None, "span_ns": LONG_NS,
              "steps": 10, "gpu_busy_pct": None, "idle": None, "loader_wait_pct": 0.0, "loading_pct": 0.0, "optimizer_pct": 0.0,
              "sync_pct": 0.0, "copy_pct": 0.0, "missing": {}, "left_out": ""}  # fmt: skip
    return TraceReading(**plain | fields)


def named(name: str, count: int, total_ns: int) -> Named:
    return Named(name, count, total_ns, 100 * total_ns / LONG_NS, total_ns // count)


def traced(scene: Scene, found: TraceReading | None, *checks: TraceCheck) -> Scene:
    """The scene, in which a trace of its trainer is taken now."""
    frame = scene.next_frame(0.2)
    scene.board.fold(frame)
    join(frame, scene.board, [TracedJob(100, "train.py", 1.0, found, list(checks), None if found else "it is stopped")])
    scene.engine.feed(scene.board)
    return scene


def check(part: str, trace_pct: float, gputop_pct: float | None) -> TraceCheck:
    return TraceCheck(part, trace_pct, gputop_pct, None if gputop_pct is None else abs(trace_pct - gputop_pct) <= 10.0)


def told(verdict: Verdict) -> dict[str, tuple[float | None, str]]:
    return {one.metric: (one.value, one.text) for one in verdict.evidence if one.metric.startswith("trace_")}


@pytest.mark.parametrize(("checks", "change"), [
    ([check("loader", 57.0, 55.0), check("sync", 40.0, 5.0)], 1),  # what the cause is not about does not count
    ([check("loader", 12.0, 55.0)], -1),
    ([check("loader", 57.0, None)], 0),
    ([check("copy", 2.0, 2.0)], 0),
])  # fmt: skip
def test_the_share_of_the_cause_makes_the_verdict_surer_or_less_sure(checks: list[TraceCheck], change: int) -> None:
    without, scene = cpu_contention().play(6), traced(cpu_contention().play(5.8), reading(), *checks)
    before, after = without.engine.verdict, scene.engine.verdict
    assert (before.cause, after.cause) == ("cpu-contention", "cpu-contention")
    sure, now = before.confidence, after.confidence
    assert (now > sure) - (now < sure) == change
    if change > 0:
        assert 1.0 - now == pytest.approx(policy.DOUBT_LEFT * (1.0 - sure), abs=0.011)
        assert "torch's own trace: 57% loader, gputop: 55%" in after.detail
        assert "disagree" in told(after)["trace_sync_pct"][1]
    elif change < 0:
        assert now == pytest.approx(policy.DOUBT_LEFT * sure, abs=0.011)
        assert "which disagree" in after.detail
    assert set(told(after)) == {f"trace_{one.part}_pct" for one in checks}
    [incident] = [one for one in scene.play(3).engine.incidents if one.cause == after.cause]
    assert {one.metric for one in incident.evidence} >= set(told(after))
    assert incident.confidence == scene.engine.verdict.confidence


@pytest.mark.parametrize("how", ["no trace", "too old", "ended"])
def test_a_trace_that_does_not_stand_changes_nothing(how: str) -> None:
    scene = traced(cpu_contention().play(5.8), None if how == "no trace" else reading(), check("loader", 1.0, 55.0))
    if how == "too old":
        [(pid, (t_ns, job))] = scene.board.traces.items()
        scene.board.traces = {pid: (t_ns - policy.TRACE_STANDS_NS - 1, job)}
    elif how == "ended":
        scene.board.fold(Frame(99, scene.board.t_ns, gone=[100]))
        assert not scene.board.traces
        scene.board.fold(scene.next_frame(0.2))
    verdict = scene.play(2).engine.verdict
    assert verdict.cause == "cpu-contention"
    assert not told(verdict)


def test_small_kernels_are_named_with_what_would_be_saved() -> None:
    element_wise = "void at::native::vectorized_elementwise_kernel<4, X>(int, X)"
    kernels = [named("ampere_sgemm_128x64_nn", 20, 9_000_000), named(element_wise, 380, 10**6)]
    found = reading(kernels=kernels, launched=Launched(400, 360, 0))
    verdict = traced(small_kernels().play(5.8), found).engine.verdict
    assert verdict.cause == "small-kernels"
    count, names = told(verdict)["trace_kernels_per_step"]
    assert (count, told(verdict)["trace_fusible_per_step"][0]) == (40.0, 36.0)
    assert "38 × vectorized_elementwise_kernel, 2 × ampere_sgemm_128x64_nn" in names
    assert "CUDA graph" in told(verdict)["trace_fusible_per_step"][1]
    graphs = traced(small_kernels().play(5.8), replace(found, launched=Launched(400, 0, 3), steps=0)).engine.verdict
    assert told(graphs)["trace_kernels"][0] == 400
    assert "already" in told(graphs)["trace_fusible"][1]


def test_a_storm_has_its_call_and_with_stacks_its_line() -> None:
    calls = [named(".item()", 900, 300_000_000), named("nonzero()", 100, 100_000_000)]
    found = reading(sync_calls=calls, sync_lines=[named("train.py(31): accuracy", 900, 300_000_000)])
    verdict = traced(sync_storm().play(5.8), found, check("sync", 40.0, 45.0)).engine.verdict
    assert verdict.cause == "sync-storm"
    assert ".item() waits most in train.py(31): accuracy" in verdict.detail
    rate, names = told(verdict)["trace_waits_per_s"]
    assert (rate, names.partition(": ")[2]) == (1000.0, ".item() 75%, nonzero() 25%")
    assert "train.py" not in traced(sync_storm().play(5.8), replace(found, sync_lines=[])).engine.verdict.detail


def waiting_somehow() -> Scene:
    """Half of the time its GPU has nothing to do, and nobody is seen to keep the main thread."""
    return loop_in_a_thread(switches=2)


BUSY = {"gpu_busy_pct": 50.0, "kernels": [named("sgemm", 100, 500_000_000)]}


@pytest.mark.parametrize(("fields", "cause"), [
    ({"idle": Idle(sync_pct=45.0, host_pct=5.0), "sync_calls": [named(".item()", 800, 450_000_000)]}, "sync-storm"),
    ({"idle": Idle(sync_pct=45.0, host_pct=5.0), "sync_calls": [named(".item()", 10, 450_000_000)]}, "unexplained"),  # once a step
    ({"idle": Idle(launch_pct=10.0, host_pct=40.0), "launched": Launched(10_000, 9000, 0)}, "small-kernels"),
    ({"idle": Idle(host_pct=50.0), "launched": Launched(100, 0, 0)}, "unexplained"),  # whatever it does, it is no launching
    ({"idle": Idle(copy_pct=40.0, host_pct=10.0)}, "h2d-transfer"),
    ({"idle": Idle(copy_pct=4.0, host_pct=2.0)}, "unexplained"),  # of a time in which hardly anything was lost
])  # fmt: skip
def test_what_nothing_else_explains_may_be_explained_by_the_trace(fields: dict[str, Any], cause: str) -> None:
    assert waiting_somehow().play(6).engine.verdict.cause == "unexplained"
    verdict = traced(waiting_somehow().play(5.8), reading(**BUSY | fields)).engine.verdict
    assert verdict.cause == cause
    if cause == "unexplained":
        assert "torch's own trace explains nothing either, dearest kernel sgemm" in verdict.detail
        assert told(verdict)["trace_gpu_busy_pct"][0] == 50.0
        assert verdict.confidence == 0.3
    else:
        assert verdict.path


def test_what_gputop_knows_is_not_given_to_the_trace() -> None:
    busy = reading(**BUSY, idle=Idle(copy_pct=50.0))
    assert traced(sync_storm().play(5.8), busy).engine.verdict.cause == "sync-storm"
    assert traced(cpu_contention().play(5.8), busy).engine.verdict.cause == "cpu-contention"


@pytest.mark.parametrize(("name", "short"), [
    ("void at::native::(anonymous namespace)::layer_norm_kernel<float>(int)", "layer_norm_kernel"), ("ampere_sgemm", "ampere_sgemm"),
    ("triton_poi_fused_add_0", "triton_poi_fused_add_0"), ("<>", "<>"), ("aten::mm", "mm"), (".item()", ".item()"),
    ("void cutlass::Kernel2<cutlass_80_tensorop>(Params)", "Kernel2"), ("nonzero()", "nonzero()"),
])  # fmt: skip
def test_kernels_are_called_as_people_call_them(name: str, short: str) -> None:
    assert kernel_name(name) == short


def test_where_both_may_be_right_the_confidence_stays() -> None:
    scene = traced(cpu_contention().play(5.8), reading(), TraceCheck("loader", 57.0, 35.0, None))
    assert scene.engine.verdict.confidence == cpu_contention().play(6).engine.verdict.confidence
    assert "besides waits for a CPU" in told(scene.engine.verdict)["trace_loader_pct"][1]


def test_the_share_beside_a_trace_is_of_the_last_seconds() -> None:
    engine = cpu_contention().play(30).engine
    [state] = [one for one in engine.states.values() if one.pid == 100]
    shares = engine.shares_of(100)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["waiting-data"] == pytest.approx(state.fractions["waiting-data"], abs=0.05)
    assert engine.shares_of(101) == {}
