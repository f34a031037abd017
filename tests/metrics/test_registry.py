"""The names of metrics, and that what they say is what `gputop explain` says."""

from __future__ import annotations

import re
from collections import deque

import pytest

from gputop.findings.verdict import total
from gputop.metrics.metered import Metered
from gputop.metrics.registry import COUNTER, METRICS, SUFFIXES
from gputop.metrics.totals import LOST_TO
from gputop.model.frame import Names, NetSample, RdmaPort
from gputop.stream.following import Following
from tests.corpus.accuracy import paths
from tests.corpus.runs import load
from tests.metrics.made import played, run_of, series, server_of, take, taken
from tests.unit.diagnosis.scene import training


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_name_says_type_and_unit(metric):
    assert metric.name.endswith("_total") == (metric.kind == COUNTER)
    stem = metric.name.removesuffix("_total")
    assert metric.unit in ("", *SUFFIXES), "a unit that is new stands in SUFFIXES of gputop/metrics/registry.py"
    assert stem.endswith(f"_{SUFFIXES[metric.unit]}") if metric.unit else not stem.endswith(tuple(SUFFIXES.values()))
    assert metric.help.endswith(".")
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in metric.labels)


def lost_by(metered: Metered) -> dict[str, float]:
    found = dict.fromkeys(LOST_TO, 0.0)
    for trainer in metered.totals.trainers.values():
        for cause, lost_s in trainer.lost_s.items():
            found[cause] += lost_s
    return found


@pytest.mark.parametrize("path", paths(half="learn")[::24], ids=lambda path: path.stem)
def test_lost_seconds_are_those_of_the_ledger(path):
    """Cause by cause, of runs of all kinds; a counter never goes back."""
    run = load(path)
    for mode in run.streams:
        items, following = run.items(mode), Following()
        deque(following.through(items), maxlen=0)
        ledger = following.engine.explain().ledger
        metered, before = Metered(), dict.fromkeys(LOST_TO, 0.0)
        for item in items:
            take(metered, item)
            now = lost_by(metered)
            assert all(now[cause] >= before[cause] for cause in LOST_TO)
            before = now
        metered.end()
        told = lost_by(metered)
        assert told == pytest.approx({**dict.fromkeys(LOST_TO, 0.0), **ledger.by_cause}, abs=0.02)
        assert sum(one.gpu_s for one in metered.totals.trainers.values()) == pytest.approx(ledger.gpu_total_s or 0.0, abs=0.02)


@pytest.mark.parametrize("workload", ["hung-worker", "hung-on-socket", "deadlocked-worker"])
def test_what_a_hang_took_is_never_told_as_another_cause(workload):
    """What was lost before it was known to be one is told late instead: a counter cannot be corrected."""
    metered = taken(run_of(workload))
    metered.end()
    lost = lost_by(metered)
    assert lost["hung-worker"] > 1.0
    assert lost["hung-worker"] == pytest.approx(total(metered.engine.settled()[1].values()).by_cause["hung-worker"], abs=0.02)


def test_what_is_not_measured_is_absent():
    metered = played(training(), Metered(), 5)
    told = series(metered)
    assert told['gputop_gpu_utilization_ratio{gpu="0",uuid=""}'] == 1.0
    assert not [name for name in told if "gr_active" in name or "temperature" in name or "nvlink" in name]


def test_every_cause_is_told_from_the_beginning_at_zero():
    """PromQL's increase() does not see the first value of a series."""
    told = series(played(training(), Metered(), 3))
    lost = {name: value for name, value in told.items() if name.startswith("gputop_trainer_gpu_lost_seconds_total")}
    assert len(lost) == len(LOST_TO)
    assert set(lost.values()) == {0.0}


def test_a_silent_collector_is_told_and_nothing_else_as_if_it_were_now(monkeypatch):
    metered = played(server_of(1, 1), Metered(), 3)
    monkeypatch.setattr("gputop.metrics.metered.SILENT_S", -1e9)
    told = series(metered)
    assert told['gputop_node_up_sources{source="collector",state="unavailable"}'] == 1.0
    assert not [name for name in told if name.startswith(("gputop_gpu", "gputop_trainer"))]


def test_levels_hold_one_another():
    names = {level: set(series(played(server_of(2, 2), Metered(level), 4))) for level in ("node", "gpu", "trainer")}
    assert names["node"] < names["gpu"] < names["trainer"]
    assert not [name for name in names["gpu"] if "trainer" in name]


def test_users_can_be_left_out():
    assert any('user="ana"' in name for name in series(played(server_of(1, 1), Metered(), 4)))
    assert not any("ana" in name for name in series(played(server_of(1, 1), Metered(with_users=False), 4)))


def test_jobs_and_pods_stand_in_the_info_alone():
    scene = server_of(1, 1)
    path = "/kubepods.slice/kubepods-pod0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0.slice/cri-containerd-" + 8 * "0123abcd" + ".scope"
    scene.procs[1000].info |= {"cgroup": path, "names": Names(container="main", pod="train-0", namespace="ml")}
    scene.procs[1000].info["env"]["SLURM_JOB_ID"] = "4711"
    told = [name for name in series(played(scene, Metered(), 4)) if "train-0" in name or "4711" in name]
    assert len(told) == 1
    assert told[0].startswith("gputop_trainer_info{")
    assert {'container="main"', 'namespace="ml"', 'pod="train-0"', 'slurm_job_id="4711"'} <= set(re.split("[{},]", told[0]))


def test_names_from_elsewhere_are_harmless():
    scene = server_of(1, 1)
    scene.procs[1000].cmdline = ["python", "<script>\x1b[31m{{evil}}\n\u202e.py"]
    scene.procs[1000].info["env"] = {"RANK": "0", "SLURM_JOB_ID": '7`"\\\n' + 500 * "x"}
    text = "".join(series(played(scene, Metered(), 4)))
    assert not re.search("[<>\x1b`\u202e]|{{|x{90}", text)


def test_memory_of_a_gpu_that_shares_the_hosts_is_marked():
    scene = server_of(2, 1)
    scene.gpus[1]["mem_shared"] = True
    told = series(played(scene, Metered(with_dcgm=True), 4))
    assert [name.partition(",")[0] for name in told if "memory_shared" in name] == ['gputop_gpu_memory_shared{gpu="1"']
    assert sum(name.startswith("gputop_gpu_memory_used_bytes") for name in told) == 2
    assert sum(name.startswith("DCGM_FI_DEV_FB_USED") for name in told) == 1, "it has no frame buffer"


def test_ports_have_rates_errors_and_congestion_as_far_as_their_driver_counts():
    scene, mark = server_of(1, 1), '"><script>'
    scene.gauges["rdma"] = [
        RdmaPort("mlx5_0/1", "mlx5_core", "InfiniBand", "ACTIVE", "ib0", 400_000, rx_bytes=4000, ecn_marked=7, flaps=2, retrans=0),
        RdmaPort(f"hns{mark}/1", "hns3", "Ethernet", "DOWN", rx_packets=9),
    ]
    scene.gauges["nets"] = [NetSample("eth0", 0, 0, 0, 0, flaps=3), NetSample("docker0", 0, 0, 0, 0)]
    told = series(played(scene, Metered(), 4))
    own = 'device="mlx5_0",port="1"'
    assert told[f"gputop_rdma_link_rate_bytes_per_second{{{own}}}"] == 50e9
    assert told[f"gputop_rdma_receive_bytes_total{{{own}}}"] == 4000
    assert told['gputop_rdma_congestion_packets_total{device="mlx5_0",kind="ecn_marked",port="1"}'] == 7
    assert told['gputop_rdma_link_flaps_total{device="mlx5_0",kind="flaps",port="1"}'] == 2
    assert told[f"gputop_rdma_retransmits_total{{{own}}}"] == 0
    assert told['gputop_rdma_port_info{device="mlx5_0",driver="mlx5_core",interface="ib0",link="InfiniBand",port="1"}'] == 1
    assert [value for name, value in told.items() if name.startswith("gputop_rdma_port_up")] == [1, 0]
    assert {name: value for name, value in told.items() if "network_link_flaps" in name} == {
        'gputop_network_link_flaps_total{interface="eth0"}': 3
    }
    assert len([name for name in told if name.startswith("gputop_rdma") and "hns" in name]) == 2
    assert not any("<script>" in name for name in told)


def test_dcgms_names_stand_beside_ours():
    told = series(played(server_of(1, 1), Metered(with_dcgm=True), 4))
    own = 'DCGM_FI_DEV_FB_USED{Hostname="",UUID="GPU-00000000-3c1a-4b7e-9d52-0123456789ab",device="nvidia0",gpu="0",'
    assert told[own + 'modelName="NVIDIA H100 80GB HBM3",pci_bus_id="00000000:1B:00.0"}'] == 60 * 1024


def test_what_a_counter_does_not_have_yet_is_told_beside_it():
    """A job that stands, until that is known to be a hang."""
    metered, waits = Metered(), [0.0]
    for item in run_of("hung-worker"):
        take(metered, item)
        for one in metered.totals.trainers.values():
            assert sum(one.lost_s.values()) + one.unsure_s == pytest.approx(metered.engine.ledger.gpu_lost_s, abs=0.05)
            waits.append(one.unsure_s)
    assert max(waits) > 2.0
    told = series(metered)
    assert told['gputop_trainer_gpu_lost_unsure_seconds{trainer="train.py GPU 0"}'] == waits[-1] == 0.0
    assert told['gputop_trainer_gpu_lost_seconds_total{cause="hung-worker",trainer="train.py GPU 0"}'] > 4.0
