"""`gputop diff` of several runs, and with --fail-if-slower: the interval, the answers, what disturbs them, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import msgspec
import pytest

from gputop.cli import main
from gputop.findings.compared import NOT_SLOWER, SLOWER, UNDECIDED, JobRun, MeasuredRun, Slower, compared
from gputop.recording.format import pack_end, pack_frames, pack_header
from gputop.stream import paces
from gputop.stream.moment import Span
from gputop.stream.paces import IS_SERVED, NO_CALLS, NOT_PROBED, measured
from tests.corpus.accuracy import DATA
from tests.corpus.runs import load
from tests.unit.diagnosis.causes import starved
from tests.unit.diagnosis.scene import ON_CPU, Proc, Scene, training

JOB = "train.py"


def job(per_s: float, noise: float = 0.0, lot: Random | None = None, **lost: float) -> JobRun:
    """A run of ten stretches; ``lost``: cause -> lost share."""
    chosen = lot or Random(7)
    paces = [per_s * (1.0 + chosen.gauss(0.0, noise)) for _ in range(10)]
    return JobRun(paces, steps=1000.0, lost={cause.replace("_", "-"): share for cause, share in lost.items()})


def run_of(one: JobRun, path: str = "a", **facts: object) -> MeasuredRun:
    return MeasuredRun(path, {JOB: one}, ("H100",), "node1", 8, **facts)  # type: ignore[arg-type]


def one_change(before: list[MeasuredRun], after: list[MeasuredRun], limit: float = 5.0) -> Slower:
    found = compared(before, after, limit)
    assert len(found.jobs) == 1
    return found


def change(before: list[JobRun], after: list[JobRun]) -> tuple[float, float, float]:
    """How much longer a step takes, in per cent, and the interval."""
    found = compared([run_of(one) for one in before], [run_of(one) for one in after], None).jobs[0]
    assert found.change_pct is not None
    assert found.low_pct is not None
    assert found.high_pct is not None
    return found.change_pct, found.low_pct, found.high_pct


@pytest.mark.parametrize(("pace", "answer"), [(10.0, NOT_SLOWER), (12.0, NOT_SLOWER), (9.52, UNDECIDED), (9.3, UNDECIDED), (8.5, SLOWER)])
def test_one_run_a_side_decides_what_is_clear(pace: float, answer: str) -> None:
    found = one_change([run_of(job(10.0))], [run_of(job(pace))])
    assert found.answer == answer
    assert bool(found.reason) == (answer == UNDECIDED)


def test_more_runs_decide_what_one_run_leaves_open() -> None:
    paces = ((10.0, 10.03, 9.98, 10.01, 10.02, 9.99), (9.3, 9.32, 9.29, 9.31, 9.28, 9.3))
    before, after = ([run_of(job(pace)) for pace in side] for side in paces)
    assert one_change(before[:1], after[:1]).answer == UNDECIDED
    assert one_change(before, after).answer == SLOWER


def test_runs_that_differ_among_each_other_show_less() -> None:
    steady = change([job(p) for p in (10.0, 10.01, 9.99)], [job(p) for p in (9.0, 9.01, 8.99)])
    shaky = change([job(p) for p in (10.0, 11.0, 9.1)], [job(p) for p in (9.0, 10.2, 8.0)])
    assert shaky[2] - shaky[1] > 4 * (steady[2] - steady[1])
    assert steady[1] > 5.0 > shaky[1]
    within = change([job(10.0, noise=0.1)], [job(9.0, noise=0.1)])
    calm = change([job(10.0)], [job(9.0)])
    assert within[2] - within[1] > calm[2] - calm[1]


@pytest.mark.parametrize("runs", [1, 3])
def test_chance_alone_is_hardly_ever_called_slower(runs: int) -> None:
    """The interval holds the truth in about 95 of 100 cases, for runs that differ by a per cent."""
    lot, wrong, alarms = Random(3), 0, 0
    for _ in range(400):
        sides = [[job(10.0 * (1.0 + lot.gauss(0.0, 0.01)), 0.02, lot) for _ in range(runs)] for _ in range(2)]
        _mean, low, high = change(*sides)
        wrong += not low <= 0.0 <= high
        alarms += low > 5.0
    assert wrong <= 0.08 * 400
    assert alarms == 0


@pytest.mark.parametrize("noises", [(0.03, 0.005), (0.005, 0.03), (0.01, 0.01)])
def test_three_runs_against_five_of_another_noise_keep_the_stated_rate(noises: tuple[float, float]) -> None:
    """Where a step really takes 5 % longer, one of forty comparisons may say more, and one less."""
    lot, wrong, more = Random(5), 0, 0
    for _ in range(300):
        sides = [[job(pace * (1.0 + lot.gauss(0.0, noise)), 2 * noise, lot) for _ in range(count)]
                 for pace, noise, count in zip((10.5, 10.0), noises, (3, 5), strict=True)]  # fmt: skip
        _mean, low, high = change(*sides)
        wrong += not low <= 5.0 <= high
        more += low > 5.0
    assert wrong <= 0.1 * 300
    assert more <= 0.055 * 300


def test_six_per_cent_is_hardly_ever_called_not_slower() -> None:
    lot = Random(6)
    answers = [
        one_change(*([run_of(job(pace * (1.0 + lot.gauss(0.0, 0.01)), 0.02, lot)) for _ in range(count)]
                     for pace, count in ((10.6, 3), (10.0, 5)))).answer
        for _ in range(200)
    ]  # fmt: skip
    assert answers.count(NOT_SLOWER) <= 0.02 * 200
    assert answers.count(UNDECIDED) >= 0.8 * 200


@pytest.mark.parametrize("slower_pct", [3, 8, 15, 40])
def test_the_parts_sum_to_the_change(slower_pct: int) -> None:
    after = 10.0 / (1.0 + slower_pct / 100)
    share = 1.0 - 0.9 / (1.0 + slower_pct / 100)
    found = one_change([run_of(job(10.0, disk_io=0.1))], [run_of(job(after, disk_io=share))]).jobs[0]
    assert found.change_pct == pytest.approx(slower_pct, abs=0.05)
    assert sum(part.change_pct for part in found.parts) == pytest.approx(slower_pct, abs=0.05)
    assert found.parts[0].part == "disk-io"
    assert next(part.change_pct for part in found.parts if part.part == "work") == pytest.approx(0.0, abs=0.05)


def test_what_a_neighbour_took_is_no_reason_to_fail() -> None:
    calm, taken = job(10.0, cpu_contention=0.0), job(8.0, cpu_contention=0.2)
    found = one_change([run_of(calm)], [run_of(taken, neighbours={"cpu-contention": ["fluent-bit"]})])
    assert found.answer == UNDECIDED
    assert "fluent-bit" in found.reason
    assert found.jobs[0].noise[0].kind == "neighbours"
    hidden = one_change([run_of(taken)], [run_of(job(8.0))])
    assert hidden.answer == UNDECIDED, "a neighbour of the runs before hides that it is slower"
    assert "before" in hidden.reason
    both = one_change([run_of(calm)], [run_of(job(6.0, cpu_contention=0.1))])
    assert both.answer == SLOWER, "much more than the neighbour took"


def test_a_disk_is_a_neighbours_only_where_somebody_is_blamed() -> None:
    sides = [run_of(job(10.0, disk_io=0.0))], [run_of(job(8.0, disk_io=0.2))]
    assert one_change(*sides).answer == SLOWER
    sides[1][0].neighbours = {"disk-io": ["restic"]}
    assert one_change(*sides).answer == UNDECIDED


def test_lower_clocks_and_stolen_time_are_named() -> None:
    cool, hot = run_of(job(10.0), clock_mhz=1980.0), run_of(job(8.5), clock_mhz=1680.0)
    found = one_change([cool], [hot])
    assert (found.answer, found.jobs[0].noise[0].kind) == (UNDECIDED, "clocks")
    assert one_change([cool], [run_of(job(8.5), clock_mhz=1980.0)]).answer == SLOWER
    quiet = run_of(job(10.0, slow_transform=0.1), stolen=0.0)
    stolen = one_change([quiet], [run_of(job(8.5, slow_transform=0.235), stolen=0.3)])
    assert (stolen.answer, stolen.jobs[0].noise[0].kind) == (UNDECIDED, "steal")


def test_stolen_time_and_lower_clocks_disturb_a_job_without_a_ledger() -> None:
    """Nothing splits its step, so all of the change may be theirs; a CPU of which a third is stolen takes one and a half times as long."""
    quiet, after = run_of(JobRun([10.0] * 10, steps=1000.0), stolen=0.0, clock_mhz=1980.0), JobRun([7.2] * 10, steps=1000.0)
    stolen = one_change([quiet], [run_of(after, stolen=1 / 3, clock_mhz=1980.0)])
    assert (stolen.answer, [one.kind for one in stolen.jobs[0].noise]) == (UNDECIDED, ["steal"])
    assert stolen.jobs[0].noise[0].change_pct == pytest.approx(38.9, abs=0.1)
    slow = one_change([quiet], [run_of(after, stolen=0.0, clock_mhz=1600.0)])
    assert (slow.answer, [one.kind for one in slow.jobs[0].noise]) == (SLOWER, ["clocks"])
    assert one_change([quiet], [run_of(after, stolen=0.1, clock_mhz=1980.0)]).answer == SLOWER, "much more than was stolen"


def test_runs_of_two_models_on_both_sides_are_no_comparison() -> None:
    old, new = (msgspec.structs.replace(run_of(job(pace)), gpus=(gpu,)) for pace, gpu in ((8.0, "A100"), (10.0, "H100")))
    assert one_change([new, new, old], [new, old, old]).answer == UNDECIDED


def test_runs_of_unequal_lengths_are_told() -> None:
    short, long = JobRun([10.0] * 10, steps=200.0), JobRun([10.0] * 10, steps=6000.0)
    found = one_change([run_of(short)], [run_of(long), run_of(short)])
    assert found.differs[0].startswith("seconds of steps: 20 before, 20 to 600 after")
    assert found.answer == NOT_SLOWER
    assert one_change([run_of(short)], [run_of(short)]).differs == []


def test_another_gpu_is_no_comparison_and_another_host_is_told() -> None:
    other = msgspec.structs.replace(run_of(job(8.0)), gpus=("A100",))
    found = one_change([run_of(job(10.0))], [other])
    assert found.answer == UNDECIDED
    assert "A100" in found.differs[0]
    moved = msgspec.structs.replace(run_of(job(8.0)), host="node2")
    assert one_change([run_of(job(10.0))], [moved]).differs == ["host: node1 before, node2 after"]


def test_jobs_are_paired_by_name_and_the_worst_one_counts() -> None:
    before, after = MeasuredRun("a", {"a.py": job(10.0), "b.py": job(10.0)}), MeasuredRun("b", {"a.py": job(10.0), "b.py": job(8.0)})
    assert compared([before], [after], 5.0).answer == SLOWER
    renamed = compared([MeasuredRun("a", {"old.py": job(10.0)})], [MeasuredRun("b", {"new.py": job(10.0)})], 5.0)
    assert (renamed.answer, renamed.jobs[0].name) == (NOT_SLOWER, "new.py")
    assert renamed.differs == ["program: old.py before, new.py after"]
    nothing = compared([before], [MeasuredRun("b", {"c.py": job(10.0)})], 5.0)
    assert (nothing.answer, nothing.jobs) == (UNDECIDED, [])
    assert nothing.reason


@pytest.mark.parametrize("one", [JobRun([10.0], steps=100.0), JobRun([1.0] * 10, steps=4.0), JobRun(why_not="not seen"), JobRun([0.0] * 5)])
def test_without_a_pace_it_is_undecided(one: JobRun) -> None:
    found = one_change([run_of(job(10.0))], [run_of(one, "b")])
    assert found.answer == UNDECIDED
    assert found.reason.startswith("b: ")
    assert found.runs[1].steps_per_s is None


def recorded(path: Path, made: Scene, steps_per_s: float, seconds: float = 20.0, probed: bool = True) -> str:
    """A recording of a job whose CUDA calls are probed."""
    made.probed = probed
    for pid, proc in made.procs.items():
        if proc.info.get("uses_cuda"):
            made.calls[pid, "cuMemcpyHtoDAsync_v2"] = (steps_per_s, 0.01, 10_000_000)
            made.calls[pid, "cuStreamSynchronize"] = (steps_per_s, 0.3, 0)
    frames = [made.next_frame(0.2) for _ in range(round(seconds / 0.2))]
    path.write_bytes(pack_header(made.board.header) + b"".join(pack_frames([frame]) for frame in frames) + pack_end(frames[-1].t_ns))
    return str(path)


def working() -> Scene:
    return training(util=95.0, run=0.1)


def with_hog() -> Scene:
    scene = starved(run=0.3, wait=0.7, looks=[ON_CPU], util=70.0)
    scene.cpu_busy = [1.0] * 4
    return scene.add(Proc(900, comm="fluent-bit", cmdline=["/bin/fluent-bit"], run=2.0, looks=[ON_CPU]))


def test_exit_codes_of_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fast, alike = (recorded(tmp_path / name, working(), pace) for name, pace in (("a", 10.0), ("b", 10.05)))
    slow = recorded(tmp_path / "c", working(), 8.0)
    unseen = recorded(tmp_path / "d", working(), 8.0, probed=False)
    hogged = recorded(tmp_path / "e", with_hog(), 7.4)
    limit = ["diff", "--fail-if-slower", "5%"]
    assert main([*limit, fast, alike]) == 0
    assert main([*limit, fast, slow]) == 1
    assert "SLOWER by more than 5 %" in capsys.readouterr().out
    assert main([*limit, fast, unseen]) == 4
    assert "record it as root" in capsys.readouterr().out
    assert main([*limit, fast, hogged]) == 4
    assert "fluent-bit" in capsys.readouterr().out
    assert main([*limit, fast, alike, "--", slow, slow]) == 1
    assert main(["diff", fast, alike, "--", slow, slow]) == 0, "without a limit there is nothing to fail"
    capsys.readouterr()
    assert main([*limit, fast, str(tmp_path / "missing")]) == 4
    assert capsys.readouterr().err.count("\n") == 1
    with monkeypatch.context() as broken:
        broken.setattr(paces, "measured", lambda *_: {}["a bug"])
        assert main([*limit, fast, fast]) == 4, "an error of gputop's own says nothing of the runs"
    assert main([*limit, fast]) == 2
    assert main(["diff", fast, alike, slow]) == 2
    assert main([*limit, fast, "--", slow, "--json"]) == main([*limit, fast, "--", slow, "--", slow]) == 2
    assert main(["diff", "--fail-if-slower", "five", fast, slow]) == 2


def kept(path: Path, workload: str, mode: str = "eBPF") -> str:
    """A labelled run of real processes as a recording."""
    header, *frames = load(DATA / f"{workload}.xz").items(mode)
    stream = pack_header(header) + b"".join(pack_frames([frame]) for frame in frames)  # type: ignore[arg-type, list-item]
    path.write_bytes(stream + pack_end(frames[-1].t_ns))  # type: ignore[union-attr]
    return str(path)


def test_real_runs(tmp_path: Path) -> None:
    fast, pinned = (measured(kept(tmp_path / name, name), Span())[0] for name in ("healthy-fast", "affinity"))
    unseen, _problems = measured(kept(tmp_path / "unseen", "healthy-fast", "/proc"), Span())
    same = compared([fast, fast, fast], [fast, fast, fast], 5.0)
    assert (same.answer, same.jobs[0].change_pct) == (NOT_SLOWER, 0.0)
    found = compared([fast], [pinned], 5.0)
    assert found.answer == SLOWER
    assert max(found.jobs[0].parts, key=lambda part: part.change_pct if part.part != "work" else 0.0).part == "affinity"
    assert compared([fast], [unseen], 5.0).answer == UNDECIDED


def test_a_pace_that_is_not_the_programs_own_has_its_reason(tmp_path: Path) -> None:
    """A server's is that of its clients, also where CUDA calls show its passes; a job on the CPUs makes no such calls."""
    server = measured("screenshots/serving.gputop", Span())[0]
    assert {one.missing() for one in server.jobs.values()} == {IS_SERVED}
    on_cpus = starved(run=0.3, wait=0.7, looks=[ON_CPU])
    on_cpus.gpus.clear()
    for proc in on_cpus.procs.values():
        proc.info.pop("uses_cuda", None)
    for probed, reason in ((True, NO_CALLS), (False, NOT_PROBED)):
        found, _problems = measured(recorded(tmp_path / f"cpu{probed}", on_cpus, 10.0, probed=probed), Span())
        assert [one.missing() for one in found.jobs.values()] == [reason]


@pytest.mark.parametrize(("seconds", "names"), [(1.0, {JOB}), (8.0, {JOB, "other.py"})])
def test_a_program_that_ran_for_a_moment_beside_a_job_is_not_compared(tmp_path: Path, seconds: float, names: set[str]) -> None:
    scene = working().add(Proc(200, cmdline=["python", "other.py"], run=0.1, info={"uses_cuda": True}))
    scene.gpus[1] = dict(scene.gpus[0], pids=[200])
    path = Path(recorded(tmp_path / "one", scene, 10.0, seconds=seconds))
    scene.drop(200).gpus[1]["pids"] = []
    frames = [scene.next_frame(0.2) for _ in range(200)]
    begin = path.read_bytes()[: -len(pack_end(frames[0].t_ns))]
    path.write_bytes(begin + b"".join(pack_frames([one]) for one in frames) + pack_end(frames[-1].t_ns))
    found, _problems = measured(str(path), Span())
    assert set(found.jobs) == names


def test_jobs_of_one_name_that_run_at_once_are_not_mixed(tmp_path: Path) -> None:
    scene = working().add(Proc(200, run=0.1, info={"uses_cuda": True}))
    scene.gpus[1] = dict(scene.gpus[0], pids=[200])
    found, _problems = measured(recorded(tmp_path / "two", scene, 10.0), Span())
    assert "at once" in found.jobs[JOB].missing()


def test_the_json_has_its_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast, slow = (recorded(tmp_path / name, working(), pace) for name, pace in (("a", 10.0), ("b", 8.0)))
    assert main(["diff", "--fail-if-slower", "5", "--json", fast, slow]) == 1
    found = msgspec.json.decode(out := capsys.readouterr().out, type=Slower)
    assert json.loads(msgspec.json.encode(found)) == json.loads(out)
    [job_] = found.jobs
    assert (found.answer, found.limit_pct, job_.name) == (SLOWER, 5.0, JOB)
    assert job_.change_pct == pytest.approx(25.0, abs=2.0)
    assert job_.low_pct is not None
    assert job_.low_pct < 25.0 < (job_.high_pct or 0.0)
    assert [(run.side, round(run.steps_per_s or 0.0)) for run in found.runs] == [("before", 10), ("after", 8)]
