"""The DataLoader sweep on real loaders: as fast as a loop by hand says, settings kept, nothing consumed, nothing left behind."""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

from gputop import sweep_loader
from gputop.diagnosis.facts import waits
from gputop.loader import sweep
from gputop.loader.bottleneck import IDLE, RUNNABLE, LoaderUsage, reason
from gputop.loader.loaders import Interrupts, Rebuilt, same_random_numbers
from gputop.loader.sweep import Point, Sweep, _judged, _SweepRun
from gputop.system.errors import UserError
from tests.require import require
from tests.wait import PATIENCE_S, until
from tests.workloads import cgroup

HERE = Path(__file__).parent
GPUTOP = [sys.executable, "-m", "gputop", "loader"]
CLOSE = 0.35  # off a loop by hand, on a busy machine; `make bench ARGS=loader` measures it


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """The module of data sets."""
    require("torch")
    return importlib.import_module("tests.experiments.loading")


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither a worker nor its shared memory."""
    pids: list[int] = []
    end = sweep.end_workers

    def spy(iterator: Any, workers: list[Any]) -> None:
        pids.extend(worker.pid for worker in workers)
        end(iterator, workers)

    monkeypatch.setattr(sweep, "end_workers", spy)
    yield
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    assert [name for name in os.listdir("/dev/shm") if name.startswith("torch_") and int(name.split("_")[1]) in pids] == []


def swept(loader: Any, workers: tuple[int, ...] = (0, 2), **options: Any) -> Sweep:
    """A short sweep."""
    return sweep_loader(loader, workers, **{"seconds": 0.2, **options})


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_it_measures_what_a_loop_by_hand_measures(made: ModuleType, workers: int) -> None:
    """Other load of the machine comes and goes, so they take turns, and the best of each is compared."""
    data = importlib.import_module("torch.utils.data")
    loader = data.DataLoader(made.Slow(), batch_size=4, shuffle=True, num_workers=workers)
    found, rates = list[Point](), list[float]()

    def are_alike() -> bool:
        found.append(swept(made.slow, (workers,), seconds=0.3).points[0])
        rates.append(made.by_hand(loader, 0.3))
        return max(point.batches_per_s or 0.0 for point in found) / max(rates) == pytest.approx(1.0, abs=CLOSE)

    until(are_alike)
    for point in found:
        assert point.batch_ms is not None
        assert point.batch_ms >= 1e3 * 4 * made.ITEM_S / max(1, workers) * (1 - CLOSE)
        assert point.slowest_ms is not None
        assert point.p99_ms is not None
        assert point.slowest_ms >= point.p99_ms > 0.0
        assert point.startup_s is not None
    assert max(point.shares.get(waits.TIMER, 0.0) for point in found) > 0.2, "items sleep; where others run, they are also kept from a CPU"


def test_work_on_the_cpu_is_told_from_sleep(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    (point,) = swept(data.DataLoader(made.Busy(), batch_size=4), (1,), seconds=0.5).points
    assert point.cpu_ms == pytest.approx(1e3 * 4 * made.ITEM_S, rel=0.4)
    assert point.shares.get(waits.ONCPU, 0.0) + point.shares.get(RUNNABLE, 0.0) > 0.7


def test_settings_are_kept(made: ModuleType) -> None:
    torch = importlib.import_module("torch")
    generator = torch.Generator()
    options = {
        "batch_size": 3, "drop_last": True, "collate_fn": made.joined, "pin_memory": True, "timeout": 7, "worker_init_fn": made.seeded,
        "prefetch_factor": 5, "persistent_workers": True, "multiprocessing_context": "spawn", "generator": generator, "shuffle": True,
    }  # fmt: skip
    loader = torch.utils.data.DataLoader(made.Slow(), num_workers=1, **options)
    ours = Rebuilt(loader, 4, skipped=0, patience_s=99.0).loader
    assert type(ours) is type(loader)
    assert ours.num_workers == 4
    assert ours.dataset is loader.dataset
    assert ours.multiprocessing_context.get_start_method() == "spawn"
    kept = {name: value for name, value in options.items() if name not in ("multiprocessing_context", "generator", "shuffle")}
    assert {name: getattr(ours, name) for name in kept} == kept
    assert ours.generator is not generator
    assert ours.generator.initial_seed() == generator.initial_seed()
    assert len(ours.batch_sampler) == len(loader.batch_sampler)
    alone = Rebuilt(loader, 0, skipped=0, patience_s=99.0).loader
    assert (alone.num_workers, alone.prefetch_factor, alone.persistent_workers, alone.timeout) == (0, None, False, 0)
    assert next(iter(alone)).shape == (3, 1)


def test_numbers_that_the_loader_has_no_setting_for(made: ModuleType) -> None:
    ours = Rebuilt(made.slow, 2, skipped=0, patience_s=99.0).loader
    assert (ours.prefetch_factor, ours.timeout, ours.persistent_workers) == (2, 99.0, False)


def test_the_original_is_as_it_was(made: ModuleType) -> None:
    torch = importlib.import_module("torch")
    data, generator = made.Slow(), torch.Generator().manual_seed(5)
    sampler = made.Pairs(1000)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, generator=generator)
    states = random.getstate(), torch.get_rng_state().tolist(), generator.get_state().tolist()
    swept(loader)
    assert (data.reads, data.kept, sampler.drawn, loader._iterator) == (0, {}, 0, None)
    assert (random.getstate(), torch.get_rng_state().tolist(), generator.get_state().tolist()) == states
    assert loader.num_workers == 0


def test_points_read_on_in_the_order_of_the_loader(made: ModuleType) -> None:
    torch = importlib.import_module("torch")
    loader = torch.utils.data.DataLoader(made.Slow(10), batch_size=2)
    batches = iter(Rebuilt(loader, 0, skipped=3, patience_s=9.0).loader)
    assert [next(batches)[0].item() for _ in range(4)] == [6.0, 8.0, 0.0, 2.0]


def test_a_stream_is_read_again_and_again(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    loader = data.DataLoader(made.Stream(24), batch_size=2, num_workers=1, persistent_workers=True)

    def has_its_pace() -> bool:
        point, two = swept(loader, (1, 2), seconds=0.4).points
        assert point.batches_per_s is not None
        assert two.batches_per_s is not None
        assert point.batches_per_s * 2 * made.ITEM_S < 1.1
        assert two.batches_per_s * made.ITEM_S < 1.1
        more_than_one_pass = point.batches > 12
        return more_than_one_pass and point.batches_per_s * 2 * made.ITEM_S > 0.25 and two.batches_per_s * made.ITEM_S > 0.25

    until(has_its_pace)


def test_epochs_too_short_for_a_warm_up_are_said(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    (point,) = swept(data.DataLoader(made.Stream(1), batch_size=1), (2,)).points
    assert point.batches_per_s
    assert "too short" in point.why


def test_workers_that_end_before_the_stretch_count_until_then(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    (point,) = swept(data.DataLoader(made.Stream(24), batch_size=2), (2,), seconds=0.4).points
    assert sum(point.shares.values()) == pytest.approx(1.0, abs=0.05)
    assert point.cpu_ms is not None
    assert point.cpu_ms > 0.0


def test_the_first_point_foretells_the_others(made: ModuleType) -> None:
    first, second, third = swept(made.slow, (1, 0, 3), seconds=0.4).points
    assert first.predicted_per_s is None
    assert second.predicted_per_s is not None
    assert second.predicted_per_s == pytest.approx(first.batches_per_s, rel=0.25)
    assert third.predicted_per_s is not None
    alone = first.batches_per_s or 0.0
    assert 0.75 * alone <= third.predicted_per_s <= 3.75 * alone, "three times as much, or less where other tests leave no CPU for three"
    assert third.predicted_low_per_s is not None
    assert third.predicted_high_per_s is not None
    assert third.predicted_low_per_s <= third.predicted_per_s <= third.predicted_high_per_s


def test_what_it_takes_to_pass_batches_on_is_foretold(made: ModuleType) -> None:
    """Items that cost nothing but are large: without workers there is nothing to pass on."""
    data = importlib.import_module("torch.utils.data")

    def is_foretold() -> bool:
        """Others may take the CPUs while one of the two is measured."""
        alone, one = swept(data.DataLoader(made.Large(), batch_size=4), (0, 1), seconds=0.4).points
        assert alone.batches_per_s is not None
        assert one.batches_per_s is not None
        assert one.predicted_per_s is not None
        return 0.25 < one.predicted_per_s / one.batches_per_s < 4.0 and alone.batches_per_s > 2.0 * one.predicted_per_s

    until(is_foretold)


def test_batches_shared_by_name_are_removed(made: ModuleType) -> None:
    """Under torch's other sharing strategy, batches that nobody fetched have names in /dev/shm until the process ends."""
    torch = importlib.import_module("torch")
    strategy = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        assert swept(torch.utils.data.DataLoader(made.Slow(), batch_size=2), (2,)).points[0].batches_per_s
    finally:
        torch.multiprocessing.set_sharing_strategy(strategy)


def test_a_data_set_in_a_data_set_stays_as_it_was(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    inner = made.Slow()
    swept(data.DataLoader(data.Subset(data.ConcatDataset([inner, inner]), range(100)), batch_size=2), (0,))
    assert (inner.reads, inner.kept) == (0, {})


def test_a_data_set_that_closes_something_is_not_copied(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    found = swept(data.DataLoader(made.Closing(), batch_size=2), (0, 1))
    assert "Closing cannot be copied" in found.notes[0]
    gc.collect()
    assert made.Closing.closed == 1  # its own end, once the loader is gone


def test_a_cpu_quota_is_told(made: ModuleType) -> None:
    if reason_ := cgroup.missing("cpu"):
        pytest.skip(reason_)
    data = importlib.import_module("torch.utils.data")
    with cgroup.group("cpu", "sweep") as path:
        cgroup.limit_cpu(path, 0.2)
        cgroup.add(path, [os.getpid()])
        found = swept(data.DataLoader(made.Busy(), batch_size=1), (2,), seconds=1.0)
        cgroup.limit_cpu(path, 8.0)
    assert found.cpus == 0.2
    assert "the CPU quota is used up" in found.points[0].why


def test_a_cpu_mask_is_what_can_be_used(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    allowed = os.sched_getaffinity(0)

    def is_told() -> bool:
        """Workers that wait for each other; a machine that stands still meanwhile has them all asleep."""
        found = swept(data.DataLoader(made.Busy(), batch_size=1), (3,), seconds=0.5)
        assert "on 1 CPU\n" in str(found)
        return re.search(r"[4-9]\d % runnable; all CPUs busy", found.points[0].why) is not None

    os.sched_setaffinity(0, {max(allowed)})
    try:
        until(is_told)
    finally:
        os.sched_setaffinity(0, allowed)


def test_numbers_that_were_cold_are_measured_again(made: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page cache was filled for those that came later."""
    made_of = {0: [Point(0, 10.0, is_cold=True), Point(0, 30.0)], 2: [Point(2, 30.0)]}
    monkeypatch.setattr(_SweepRun, "point", lambda _, workers: made_of[workers].pop(0))
    found = swept(made.slow)
    assert [point.batches_per_s for point in found.points] == [30.0, 30.0]
    assert found.notes[0] == "measured again, for they had read from storage: 0"


def test_all_cold_is_how_it_is(made: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set is larger than memory."""
    monkeypatch.setattr(_SweepRun, "point", lambda _, workers: Point(workers, 10.0, is_cold=True))
    found = swept(made.slow)
    assert found.notes == ()
    assert str(found).count("(cold)") == 2


def test_in_a_distributed_job_it_says_so(made: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "ranks", lambda: (3, 8))
    assert any(note.startswith("rank 3 of 8") for note in swept(made.slow, (0,)).notes)


def test_in_another_thread(made: ModuleType) -> None:
    found: list[Sweep] = []
    thread = threading.Thread(target=lambda: found.append(swept(made.slow)))
    thread.start()
    thread.join(PATIENCE_S)
    assert [bool(point.batches_per_s) for point in found[0].points] == [True, True]


@pytest.mark.usefixtures("made")
def test_random_states_of_numpy_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    state = [1]
    numpy = SimpleNamespace(random=SimpleNamespace(get_state=lambda: state[0], set_state=lambda value: state.__setitem__(0, value)))
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    with same_random_numbers():
        state[0] = random.randrange(10, 100)
    assert state == [1]


def test_an_error_of_one_number_is_a_point(made: ModuleType) -> None:
    torch = importlib.import_module("torch")
    data = made.Slow()
    loader = torch.utils.data.DataLoader(data, batch_size=2, worker_init_fn=lambda _: 1 / 0)
    alone, failed = swept(loader).points
    assert alone.batches_per_s
    assert failed.error == "failed: ZeroDivisionError: division by zero"
    assert failed.batches_per_s is None


def test_the_error_of_all_numbers_is_raised(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    with pytest.raises(ValueError, match="item 20 is"):
        swept(data.DataLoader(made.Broken(), batch_size=2))


def test_a_worker_that_hangs_ends_the_point(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out"):
        swept(data.DataLoader(made.Stuck(), batch_size=2), (2,), patience_s=0.5)
    assert time.monotonic() - began < 50.0


@pytest.mark.parametrize("workers", [(), (-1,), (True,), ("2",), (5000,)])
def test_numbers_that_make_no_sense(made: ModuleType, workers: Any) -> None:
    with pytest.raises(UserError, match="whole numbers from 0"):
        sweep_loader(made.slow, workers)


def test_what_is_no_loader() -> None:
    with pytest.raises(UserError, match="list is no torch"):
        sweep_loader([1, 2])


def test_a_sampler_that_can_be_read_once(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    with pytest.raises(UserError, match="list_iterator"):
        swept(data.DataLoader(made.Slow(), batch_sampler=iter([[0, 1]])))


def test_an_empty_loader(made: ModuleType) -> None:
    data = importlib.import_module("torch.utils.data")
    with pytest.raises(UserError, match="no batch"):
        swept(data.DataLoader(made.Slow(0), batch_size=2))


def test_a_loader_that_keeps_its_iterator_is_not_read(made: ModuleType) -> None:
    data = made.Slow()
    loader = made.KeepsIterator(data, batch_size=2)
    found = swept(loader, (0,))
    assert data.reads == 0
    assert "KeepsIterator keeps an iterator" in found.notes[0]
    assert next(iter(loader))[0].item() == 0.0


def test_names_are_cleaned(made: ModuleType) -> None:
    found = swept(made.hostile(), (0,))
    assert "\x1b" not in str(found)
    assert "Load·[2Jer of Da·]0;evil·ta, batch size 2" in str(found)


def test_the_json_has_its_fields(made: ModuleType) -> None:
    found = json.loads(swept(made.slow, (0,), batches=3).json())
    assert set(found) == {
        "loader", "data_set", "batch_size", "num_workers", "cpus", "points", "recommended_workers", "best_workers", "notes",
    }  # fmt: skip
    assert set(found["points"][0]) == set(Point.__struct_fields__)
    assert (found["points"][0]["workers"], found["points"][0]["batches"]) == (0, 3)


def points(*rates: tuple[int, float | None]) -> list[Point]:
    return [Point(workers, batches_per_s=rate, error="" if rate else "failed") for workers, rate in rates]


def test_the_smallest_number_near_the_best_is_recommended(made: ModuleType) -> None:
    run = _SweepRun(made.slow, Interrupts(), None, 1.0, 9.0)
    found = _judged(made.slow, points((0, 10.0), (2, 19.2), (4, 20.0), (8, None)), run)
    assert (found.recommended_workers, found.best_workers) == (2, 4)
    assert found.advice() == "num_workers=2: 19.2 batches/s, within 5 % of the best (4: 20); the 0 of today: 10"
    assert "→ 2" in str(found)
    assert "failed" in str(found)
    assert "batches per second over workers" in found.plot()


@pytest.mark.parametrize(
    ("usage", "shares", "consumer", "told"),
    [
        (LoaderUsage(busy_s=3.9, cpus_s=4.0, cpu_s=3.5), {waits.ONCPU: 0.5, RUNNABLE: 0.41}, 0.2, "workers 41 % runnable; all CPUs busy"),
        (LoaderUsage(busy_s=2.0, cpus_s=4.0, cpu_s=2.0), {waits.DISK: 0.6, waits.ONCPU: 0.4}, 0.2,
         "workers 60 % waiting for the disk; CPUs 50 % busy"),
        (LoaderUsage(), {IDLE: 0.9, waits.ONCPU: 0.1}, 0.97, "the consumer takes it all: 97 % of a CPU"),
        (LoaderUsage(periods=10, cut_periods=5), {RUNNABLE: 0.5, waits.ONCPU: 0.5}, 0.1, "the CPU quota is used up in 50 % of its periods"),
        (LoaderUsage(shm_used=0.97), {IDLE: 0.6, waits.ONCPU: 0.4}, 0.1, "workers 60 % idle; /dev/shm 97 % full"),
        (LoaderUsage(busy_s=1.0, cpus_s=4.0, cpu_s=1.0), {waits.ONCPU: 0.98}, 0.1, "workers 98 % on a CPU; CPUs 25 % busy"),
        (LoaderUsage(busy_s=4.0, cpus_s=4.0, cpu_s=1.0), {waits.ONCPU: 0.4, RUNNABLE: 0.6}, 0.1,
         "workers 60 % runnable; all CPUs busy, 75 % by others"),
    ],
)  # fmt: skip
def test_what_holds_it_back(usage: LoaderUsage, shares: dict[str, float], consumer: float, told: str) -> None:
    assert reason(2, usage, shares, consumer) == told


def test_storage_that_is_waited_for_makes_a_point_cold() -> None:
    usage = LoaderUsage(storage_bytes=10_000_000, read_bytes=20_000_000)
    assert usage.is_cold({waits.DISK: 0.2})
    assert not usage.is_cold({waits.TIMER: 0.9})
    assert not LoaderUsage(storage_bytes=4096, read_bytes=20_000_000).is_cold({waits.DISK: 0.2})


def test_gputop_itself_imports_next_to_nothing() -> None:
    """A training script that imports it pays 2 ms (5 on a busy machine)."""
    code = """
import sys, time
before, began = set(sys.modules), time.process_time()
import gputop
print(time.process_time() - began, *sorted(set(sys.modules) - before))"""
    command = [sys.executable, "-S", "-c", code]
    told = [subprocess.check_output(command, cwd=HERE.parent.parent, text=True, timeout=PATIENCE_S).split() for _ in range(3)]
    assert not {"torch", "msgspec", "typing", "re", "gputop.prove"} & set(told[0][1:])
    assert min(float(seconds) for seconds, *_ in told) < 0.01


def loader_command(*arguments: str, cwd: Path = HERE) -> subprocess.CompletedProcess[str]:
    """`gputop loader`."""
    return subprocess.run([*GPUTOP, *arguments], cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_table_that_is_too_wide_has_the_reasons_below_the_figures() -> None:
    points = tuple(Point(number, 10.0 * number, 1.0, 2.0, 3.0, 0.1, why="workers 51 % runnable; all CPUs busy") for number in (1, 12))
    table = Sweep("DataLoader", "ImageFolder", 64, 2, 4.0, points, 12, 12, ("other processes took up to 98 % of the CPUs, and more words",))
    wide, narrow = list(table.lines()), list(table.lines(80))
    assert wide[1].endswith("what holds it back")
    assert all(len(line) <= 80 for line in narrow)
    assert [line.strip() for line in narrow].count("workers 51 % runnable; all CPUs busy") == 2
    assert list(table.lines(len(max(wide, key=len)))) == wide
    assert all(len(line) <= 40 for line in list(table.lines(40)) if "%" in line)


@pytest.mark.usefixtures("made")
def test_the_command_prints_the_table() -> None:
    done = loader_command("loading.py:slow", "--workers", "0,2", "--seconds", "0.2", "--plot")
    assert done.returncode == 0, done.stderr
    assert "DataLoader of Slow, batch size 4" in done.stdout
    assert re.search(r"→ [02] ", done.stdout)  # which is faster in a fifth of a second is decided by who else is on the machine
    assert "batches per second over workers" in done.stdout
    assert "imported" not in done.stdout
    assert "imported" in done.stderr


@pytest.mark.soak
@pytest.mark.usefixtures("made")
def test_a_script_gets_its_arguments_and_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("LENGTH = 40\n")
    (tmp_path / "train.py").write_text(
        "import sys\nfrom beside import LENGTH\nfrom torch.utils.data import DataLoader\n"
        "class Set:\n    def __len__(self):\n        return LENGTH\n    def __getitem__(self, i):\n        return i\n"
        "class Here:\n    loader = DataLoader(Set(), batch_size=int(sys.argv[2]), num_workers=1, multiprocessing_context='spawn')\n"
    )
    done = loader_command("train.py:Here.loader", "--workers", "0,1", "--seconds", "0.2", "--json", "--", "--size", "5", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["batch_size"] == 5
    assert [point["error"] for point in found["points"]] == ["", ""]
    assert [point["measured_s"] >= 0.2 for point in found["points"]] == [True, True]  # a spawned worker imports torch first: not counted
    assert found["points"][1]["startup_s"] > 0.3


@pytest.mark.parametrize(
    ("script", "target", "told"),
    [
        ("", "train.py", "name the loader behind a colon, train.py:NAME: what a function"),
        ("", ":", "write SCRIPT:NAME"),
        ("", "train.nonesuch:loader", "there is no script and no module train.nonesuch"),
        ("", "nonesuch.train", "there is no script and no module nonesuch.train"),
        ("\n\nimport nonesuch", "train:loader", "train fails: ModuleNotFoundError: No module named 'nonesuch' (line 3)"),
        ("from .beside import x", "train.py:loader", "gputop loader -m train:NAME"),
        ("", "other.py:loader", "there is no script other.py"),
        ("x = 1", "train.py:loader", "train.py has no loader: what a function"),
        ("x = 1", "train.py:x", "int is no torch.utils.data.DataLoader"),
        ("def make():\n    return 1 // 0", "train.py:make",
         "make() of train.py fails: ZeroDivisionError: integer division or modulo by zero (line 2)"),
        ("import sys\nsys.exit(3)", "train.py:loader", "train.py ended itself with 3"),
        ("\nimport nonesuch", "train.py:loader", "train.py fails: ModuleNotFoundError: No module named 'nonesuch' (line 2)"),
        ("def f(:", "train.py:loader", "train.py fails: SyntaxError"),
        ("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "train.py:loader", "torch is not installed for"),
    ],
)  # fmt: skip
def test_a_wrong_target_is_one_line(tmp_path: Path, script: str, target: str, told: str) -> None:
    (tmp_path / "train.py").write_text(script)
    done = loader_command(target, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package whose training has relative imports, as `python -m jobs.vision.train` runs it; the folder that holds it."""
    (tmp_path / "jobs" / "vision").mkdir(parents=True)
    (tmp_path / "beside.py").write_text("LENGTH = 40\n")
    (tmp_path / "jobs" / "__init__.py").write_text("")
    (tmp_path / "jobs" / "base.py").write_text(
        "from beside import LENGTH\nclass Set:\n"
        "    def __len__(self):\n        return LENGTH\n    def __getitem__(self, i):\n        return i\n"
    )
    (tmp_path / "jobs" / "vision" / "__init__.py").write_text("")
    (tmp_path / "jobs" / "vision" / "train.py").write_text(
        "import sys\nfrom ..base import Set\nfrom torch.utils.data import DataLoader\n"
        "loader = DataLoader(Set(), batch_size=int(sys.argv[1]), num_workers=1, multiprocessing_context='spawn')\n"
        "def make():\n    return DataLoader(Set(), batch_size=int(sys.argv[1]))\n"
    )
    return tmp_path


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("target", "workers"),
    [(("jobs.vision.train:make",), "0"), pytest.param(("-m", "jobs.vision.train:loader"), "0,1", marks=pytest.mark.soak),
     pytest.param(("-m", "jobs.vision.train"), "0", marks=pytest.mark.soak),
     pytest.param(("jobs.vision.train",), "0", marks=pytest.mark.soak)],
)  # fmt: skip
def test_a_module_of_a_package(package: Path, target: tuple[str, ...], workers: str) -> None:
    done = loader_command(*target, "--workers", workers, "--seconds", "0.2", "--json", "--", "5", cwd=package)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["data_set"], found["batch_size"]) == ("Set", 5)
    assert {point["error"] for point in found["points"]} == {""}


@pytest.mark.usefixtures("made")
def test_a_script_of_a_package_is_told_its_module(package: Path) -> None:
    done = loader_command("jobs/vision/train.py:loader", cwd=package)
    assert (done.returncode, done.stdout) == (2, "")
    assert "gputop loader -m jobs.vision.train:NAME" in done.stderr


@pytest.mark.usefixtures("made")
def test_ctrl_c_leaves_nothing() -> None:
    before = set(os.listdir("/dev/shm"))
    with subprocess.Popen(
        [*GPUTOP, "loading.py:slow", "--workers", "3", "--seconds", "30"], cwd=HERE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            running = psutil.Process(process.pid)
            until(lambda: len(running.children()) == 3)
            workers = running.children()
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(timeout=PATIENCE_S) == 130
        finally:
            process.kill()
        assert [worker for worker in workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE] == []
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read().decode()
    mine = [name for name in set(os.listdir("/dev/shm")) - before if any(name.startswith(f"torch_{one.pid}_") for one in workers)]
    assert mine == []


def test_ctrl_c_in_a_session_leaves_nothing(made: ModuleType) -> None:
    """As in a notebook: the process goes on."""
    data = importlib.import_module("torch.utils.data")
    loader = data.DataLoader(made.Slow(), batch_size=1)
    with pytest.raises(KeyboardInterrupt):
        swept(loader, (0, 2), progress=lambda _: os.kill(os.getpid(), signal.SIGINT))


MOMENTS = (0.005, 0.06, 0.5, *(pytest.param(after_s, marks=pytest.mark.soak) for after_s in (0.01, 0.03, 0.1, 0.2)))


@pytest.mark.parametrize("after_s", MOMENTS)
def test_interrupted_at_any_moment(made: ModuleType, after_s: float) -> None:
    """While workers start, are read, or end: none stays, and nobody is deaf to Ctrl-C afterwards."""
    data = importlib.import_module("torch.utils.data")
    before, handler = psutil.Process().children(), signal.getsignal(signal.SIGINT)
    alarm = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    loader = data.DataLoader(made.Stream(6), batch_size=1)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        with pytest.raises(KeyboardInterrupt):
            swept(loader, (3,), seconds=20.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, alarm)
    assert psutil.Process().children() == before
    assert signal.getsignal(signal.SIGINT) is handler
