"""Findings in traces whose shares are known, and in damaged and hostile ones."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from gputop.findings.traces import checks, lines
from gputop.model.trace import Launched, TracedJob
from gputop.system.errors import UserError
from gputop.traces import reading
from gputop.traces.reading import read
from tests.traces.made import BASE_NS, event, kineto, launched, training, write


@pytest.fixture(params=["kineto", "one line", "a list", "gzip"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A trace of ten steps, in each layout that is met."""
    events = training()
    text = kineto(events)
    if request.param == "one line":
        text = json.dumps({"baseTimeNanoseconds": BASE_NS, "traceEvents": events})
    elif request.param == "a list":
        text = json.dumps(events)
    elif request.param == "gzip":
        packed = tmp_path / "trace.json.gz"
        packed.write_bytes(gzip.compress(text.encode()))
        return str(packed)
    return write(tmp_path / "trace.json", text)


def test_shares_are_those_of_the_steps(path: str) -> None:
    found = read(path, 7)
    assert (found.steps, found.left_out) == (10, "")
    whole_us = 10 * 10_000.0 - 300.0  # the last step ends with its `.item()`
    assert found.span_ns == round(1000 * whole_us)
    assert found.loader_wait_pct == pytest.approx(100 * 60_000 / whole_us, abs=0.01)
    assert found.sync_pct == pytest.approx(100 * 20_500 / whole_us, abs=0.01)
    assert found.copy_pct == pytest.approx(100 * 10_000 / whole_us, abs=0.01)
    assert found.optimizer_pct == pytest.approx(100 * 3000 / whole_us, abs=0.01)
    assert found.gpu_busy_pct == pytest.approx(100 * (9800 + 26_000) / whole_us, abs=0.1)


def test_kernels_collectives_copies_and_calls_are_named(path: str) -> None:
    found = read(path)
    assert [(one.name[:5], one.count, one.mean_ns) for one in found.kernels] == [("sgemm", 10, 2_000_000), ("ncclD", 10, 600_000)]
    assert [(one.name, one.count, one.total_ns) for one in found.exposed] == [("AllReduce", 10, 6_000_000)]
    [copies] = found.copies
    assert (copies.direction, copies.memory, copies.count, copies.bytes) == ("HtoD", "pageable", 10, 40 << 20)
    assert [(one.name, one.count) for one in found.sync_calls] == [(".item()", 10)]
    own = {one.name: one.total_ns for one in found.operators}
    assert own["aten::mm"] == 800_000
    assert own["aten::linear"] == 200_000  # without what it calls


def test_the_gpus_idle_time_is_split_by_what_the_host_did(path: str) -> None:
    found = read(path)
    assert found.idle is not None
    assert found.gpu_busy_pct is not None
    told = [getattr(found.idle, name) for name in found.idle.__struct_fields__]
    assert sum(told) + found.gpu_busy_pct == pytest.approx(100.0, abs=0.1)
    assert found.idle.loader_pct == max(told)


def test_a_collective_beside_kernels_is_not_exposed(tmp_path: Path) -> None:
    events = [*launched("sgemm", 0, 10, 1000, 1), *launched("ncclDevKernel_ReduceScatter_Sum", 5, 200, 1000, 2)]
    [one] = read(write(tmp_path / "t.json", kineto(events))).exposed
    assert (one.name, one.total_ns) == ("ReduceScatter", 190_000)


def test_launches_are_booked_to_the_users_own_line(tmp_path: Path) -> None:
    events = [event("python_function", "train.py(12): step", 0, 1000)]
    events.append(event("python_function", "torch/nn/modules/linear.py(1): forward", 5, 900))
    events += [one for i in range(5) for one in launched("k", 10 + 100 * i, 20 + 100 * i, 5, i)]
    found = read(write(tmp_path / "t.json", kineto(events)))
    assert [(one.name, one.count) for one in found.launches] == [("train.py(12): step", 5)]
    assert "launches" not in found.missing


def test_waits_are_booked_to_the_users_own_line(tmp_path: Path) -> None:
    events = [event("python_function", "train.py(31): accuracy", 0, 500), event("python_function", "train.py(12): step", 600, 300)]
    events += [event("python_function", "torch/_tensor.py(9): item", at, 90) for at in (10, 200, 700)]
    events += [event("cuda_runtime", "cudaStreamSynchronize", at + 5, 80) for at in (10, 200, 700)]
    found = read(write(tmp_path / "t.json", kineto(events)))
    assert [(one.name, one.count, one.total_ns) for one in found.sync_lines] == [
        ("train.py(31): accuracy", 2, 160_000), ("train.py(12): step", 1, 80_000),
    ]  # fmt: skip
    without = read(write(tmp_path / "t.json", kineto([one for one in events if one["cat"] != "python_function"])))
    assert (without.sync_lines, "--with-stack" in without.missing["sync_lines"]) == ([], True)


ELEMENT_WISE, REDUCES = "void at::native::vectorized_elementwise_kernel<4>(int)", "void at::native::reduce_kernel<512>(float)"


@pytest.mark.parametrize(("names", "fusible"), [
    ([ELEMENT_WISE] * 4, 3), ([ELEMENT_WISE, "sgemm", REDUCES, "sgemm"], 0),
    ([ELEMENT_WISE, REDUCES, "sgemm", ELEMENT_WISE, ELEMENT_WISE], 2),
    (["sgemm"] * 5, 0), (["triton_poi_fused_add_0"] * 3, 0),
])  # fmt: skip
def test_runs_of_kernels_that_could_be_one_are_counted(tmp_path: Path, names: list[str], fusible: int) -> None:
    events = [one for i, name in enumerate(names) for one in launched(name, 100 * i, 100 * i + 10, 5, i)]
    random.Random(1).shuffle(events)
    found = read(write(tmp_path / "t.json", kineto(events)))
    assert found.launched == Launched(len(names), fusible, 0)
    graphs = [*events, *(event("cuda_runtime", "cudaGraphLaunch", 1000 + i, 1) for i in range(2))]
    assert read(write(tmp_path / "t.json", kineto(graphs))).launched == Launched(len(names), fusible, 2)


def test_without_kernels_the_gpus_values_have_a_reason(tmp_path: Path) -> None:
    found = read(write(tmp_path / "t.json", kineto([event("cpu_op", "aten::mm", 0, 5)])))
    assert found.gpu_busy_pct is found.idle is None
    assert "CUPTI" in found.missing["gpu_busy_pct"]
    assert found.sync_pct is None
    assert [one.part for one in checks(found, {"waiting-data": 0.1, "transfer": 0.1, "waiting-gpu": 0.3})] == ["loader"]


def test_a_loop_that_loads_itself_does_not_wait(tmp_path: Path) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events = [event("user_annotation", name, 0, 600), event("cpu_op", "mm", 600, 400)]
    found = read(write(tmp_path / "t.json", kineto(events)))
    assert (found.loader_wait_pct, found.loading_pct) == (0.0, 60.0)
    [loading] = checks(found, {"computing": 0.65, "blocked": 0.35})
    assert (loading.part, loading.gputop_pct, loading.agrees) == ("loading", 65.0, True)
    # What it computes besides is no disagreement; what it does not compute cannot be loading.
    assert [[one.agrees for one in checks(found, {"computing": share})] for share in (0.95, 0.45)] == [[True], [False]]


@pytest.mark.parametrize("content", ["", "{}", '{"traceEvents": []}', "[1, 2]", "\x00\xff", '{"traceEvents": [{"ph": "X"', "[" * 5000])
def test_a_file_that_is_no_trace_gets_one_line(tmp_path: Path, content: str) -> None:
    with pytest.raises(UserError, match="is no trace"):
        read(write(tmp_path / "t.json", content))


def test_damage_costs_only_what_it_hits(tmp_path: Path) -> None:
    text = kineto(training(200))
    random.seed(5)
    for _ in range(60):
        damaged = list(text)
        for _ in range(random.randint(1, 5)):
            damaged[random.randrange(len(text))] = random.choice('"{}[],:x\x00\n9')
        try:
            found = read(write(tmp_path / "t.json", "".join(damaged)[: random.randrange(len(text))]))
        except UserError:
            continue
        assert found.events <= 200 * 12


def test_odd_values_are_left_out(tmp_path: Path) -> None:
    events = [*training(1), {**event("kernel", "x", 0, 0), "ts": "soon"}, {**event("kernel", "x", 0, 0), "dur": -5.0}, 7, None,
              {**event("kernel", "\x1b[31mred\x1b[0m" * 90, 8000, 1), "args": {"correlation": "x"}}]  # fmt: skip
    text = json.dumps({"traceEvents": [*events, event("kernel", "\x1b[31mred", 8000, 1)]})
    found = read(write(tmp_path / "t.json", text))
    assert "of another shape" in found.left_out
    assert not any("\x1b" in one.name or len(one.name) > reading.MOST_CHARS for one in found.kernels)


def test_names_and_events_without_end_take_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with path.open("w") as file:
        file.write('{"traceEvents": [\n')
        for i in range(60_000):
            file.write(f'  {{\n    "ph": "X", "cat": "kernel", "name": "kernel{i}{"x" * 200}", "ts": {i}, "dur": 1\n  }},\n')
        file.write('  {"ph": "X"}]}')
    tracemalloc.start()
    found = read(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.kernels[0].name == "others"
    assert peak < 40 << 20


@pytest.mark.parametrize(("ts", "dur"), [(1e308, 1.0), (-1e300, 5.0), (5.0, 1e300), (0.0, 1e18)])
def test_times_beyond_any_clock_are_left_out(tmp_path: Path, ts: float, dur: float) -> None:
    found = read(write(tmp_path / "t.json", kineto([*training(1), event("kernel", "x", ts, dur)])))
    assert found.events == len(training(1))


def test_threads_and_copies_without_end_take_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with path.open("w") as file:
        file.write('{"traceEvents": [\n')
        for i in range(40_000):
            file.write(f'  {{\n    "ph": "X", "cat": "cpu_op", "tid": {i}, "ts": {i}, "dur": 1\n  }},\n')
        for i in range(200):
            name = f"Memcpy {'x' * 20_000}{i}"
            file.write(f'  {{\n    "ph": "X", "cat": "gpu_memcpy", "name": "{name}", "ts": {i}, "dur": 1, "args": {{"bytes": 4}}\n  }},\n')
        file.write('  {"ph": "X"}]}')
    tracemalloc.start()
    found = read(str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(len(one.direction) for one in found.copies) <= 20
    assert peak < 25 << 20


def test_agreement_is_by_points_of_the_steps_time(path: str) -> None:
    found = read(path)
    told = {one.part: one.agrees for one in checks(found, {"waiting-data": 0.55, "waiting-gpu": 0.35, "transfer": 0.1})}
    assert told == {"loader": True, "sync": False, "copy": True}
    # To torch a wait goes on while its thread wants a CPU: 60 % may be 30 % and a part of the 25 %, but not of 15 %.
    assert [checks(found, {"waiting-data": 0.3, "runnable": share})[0].agrees for share in (0.25, 0.15)] == [None, False]
    assert not checks(found, {"waiting-data": 0.75, "runnable": 0.25})[0].agrees
    assert {one.agrees for one in checks(found, {})} == {None}
    text = "\n".join("".join(part for part, _ in line) for line in lines([TracedJob(7, "train.py", 1.0, found, checks(found, {}))], 100))
    assert "60 % the loop waited for its loader" in text
    assert "HtoD pageable" in text
