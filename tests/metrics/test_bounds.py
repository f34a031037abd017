"""How many series there are, whatever happens on a node."""

from __future__ import annotations

import time

import pytest

from gputop.metrics import registry
from gputop.metrics.metered import Metered
from gputop.metrics.prometheus import Pages
from gputop.metrics.registry import MOST_SERIES
from gputop.metrics.totals import MOST_TRAINERS
from tests.metrics.made import played, series, server_of
from tests.unit.diagnosis.scene import FUTEX, Proc

SERVER_SERIES, SERVER_BYTES = 700, 70_000  # of 8 GPUs and 8 ranks
SCRAPE_S = 0.010  # s of CPU


def test_a_server_of_eight_ranks():
    metered = played(server_of(8, 8), Metered(), 6)
    told = series(metered)
    assert 500 < len(told) <= SERVER_SERIES
    text, _ = Pages(metered).page()
    assert len(text) <= SERVER_BYTES
    costs = []
    for _ in range(10):
        pages, began_s = Pages(metered), time.process_time()
        pages.page()
        costs.append(time.process_time() - began_s)
    assert min(costs) <= SCRAPE_S
    began_s = time.process_time()
    for _ in range(100):
        pages.page()
    assert time.process_time() - began_s < 0.05, "one reading is put into words once"


def test_five_hundred_trainers():
    metered = played(server_of(16, 500, workers=0), Metered(with_dcgm=True), 3)
    told = series(metered)
    assert len(told) <= MOST_SERIES
    names = {name.partition('trainer="')[2].partition('"')[0] for name in told if name.startswith("gputop_trainer_gpu_seconds_total")}
    assert len(names) == MOST_TRAINERS + 1
    assert "other" in names


@pytest.mark.parametrize("order", [1, -1], ids=["as listed", "the other way round"])
def test_a_crowd_of_gpus_is_cut_and_told(order, monkeypatch):
    monkeypatch.setattr(registry, "METRICS", registry.METRICS[::order])
    told = series(played(server_of(128, 8, workers=0), Metered(), 2))
    assert len(told) == MOST_SERIES
    assert told["gputop_self_series_dropped"] > 1000


def restart(scene, number: int) -> None:
    """Every rank ends and comes again under other pids, and in another job of Slurm."""
    for pid in list(scene.procs):
        scene.drop(pid)
    fresh = server_of(2, 2, first_pid=1000 * (number + 2))
    for proc in fresh.procs.values():
        proc.info.get("env", {})["SLURM_JOB_ID"] = str(4700 + number)
    scene.add(*fresh.procs.values())
    for index, gpu in fresh.gpus.items():
        scene.gpus[index]["pids"] = gpu["pids"]


def test_a_hundred_restarts_make_no_new_series():
    scene, metered = server_of(2, 2), Metered()
    before = series(played(scene, metered, 8))
    known = {name for name in before if "_info" not in name and "_incidents" not in name}
    for number in range(100):
        restart(scene, number)
        now = series(played(scene, metered, 3))
        assert {name for name in now if "_info" not in name and "_incidents" not in name} <= known
        assert [name for name, value in before.items() if "_total" in name and now[name] < value] == []
        before = now
    assert sum("slurm_job_id=" in name for name in before) == 2
    assert len(metered.totals._booked) <= 4, "nothing is kept of those that are gone"


def test_two_jobs_of_one_script_keep_apart():
    scene = server_of(4, 2)
    for rank in range(2):
        env = {"RANK": str(rank), "WORLD_SIZE": "2"}
        scene.add(Proc(7000 + rank, ppid=3, run=0.2, looks=[FUTEX], info={"uses_cuda": True, "env": env}))
        scene.gpus[2 + rank]["pids"] = [7000 + rank]
    metered = played(scene, Metered(), 4)
    assert set(metered.totals.trainers) == {"train.py rank 0", "train.py rank 1", "train.py rank 0 GPU 2", "train.py rank 1 GPU 3"}
