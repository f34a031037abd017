"""The NVML source where the driver is absent, old, slow, failing or hanging, and GPUs come and go."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from threading import Lock, Thread

import pytest

from gputop.doctor.checks import gpu_checks
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS
from gputop.sources import Unavailable
from gputop.sources.nvml import binding as nvml
from gputop.sources.nvml import driver, fast, groups
from gputop.sources.nvml.driver import why
from gputop.sources.nvml.gpu import NEVER_READ, READ_FIELDS, WatchedGpu
from gputop.sources.nvml.poller import PollThreads
from gputop.system.errors import NO_MORE_THREADS, UserError
from tests.sources.nvml_rig import INTERVAL_NS, Rig, load, stub


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("DRIVER_NOT_LOADED", "not loaded"),
        ("LIB_RM_VERSION_MISMATCH", "version mismatch"),
        ("NO_PERMISSION", "no permission"),
        ("UNKNOWN", "does not start"),
    ],
)
def test_a_driver_that_does_not_start_says_why(rig: Rig, fault: str, reason: str) -> None:
    rig.set(f"error.Init {fault}")
    with pytest.raises(Unavailable) as caught:
        rig.opened()
    assert reason in caught.value.reason
    assert caught.value.remedy


def test_a_driver_that_is_too_old_to_be_started_says_so(rig: Rig) -> None:
    load(stub("-DNVML_OLDEST_DRIVER"))
    with pytest.raises(Unavailable) as caught:
        rig.opened()
    assert caught.value.reason == "the NVIDIA driver is too old: its NVML lacks functions that every reading needs"
    assert "newer driver" in caught.value.remedy


@pytest.mark.parametrize(("user", "words"), [(0, "not even for root"), (1000, "the driver reserves it for root")])
def test_whom_a_permission_is_denied(user: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert why(nvml.NVMLError(nvml.NVML_ERROR_NO_PERMISSION)).text.startswith(f"no permission: {words}")


def test_no_library() -> None:
    code = "from gputop.sources.nvml import NvmlSource; from gputop.sources import Settings; NvmlSource(Settings()).open()"
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False, cwd=Path(__file__).parents[2])
    if run.returncode == 0:
        pytest.skip("this machine has an NVIDIA driver")
    assert "Unavailable: no NVIDIA driver: libnvidia-ml.so.1 is not found" in run.stderr


def test_no_gpu(rig: Rig) -> None:
    rig.set("gpus 0")
    with pytest.raises(Unavailable, match="finds no GPU"):
        rig.opened()


@pytest.mark.parametrize(("asked", "words"), [
    ({7}, "no GPU 7: this machine has GPU 0 to 1"), (range(8, 99), "no GPU 8 … 98: "),
    ({0, 5}, "no GPU 5: "), (range(1, 4), "no GPU 2, 3: "),
])  # fmt: skip
def test_a_gpu_that_is_asked_for_and_not_there_is_the_users_to_mend(rig: Rig, asked: Iterable[int], words: str) -> None:
    rig.set("gpus 2")
    with pytest.raises(UserError, match=words):
        rig.opened(gpus=frozenset(asked))


def test_that_it_is_not_there_may_be_known_late(rig: Rig) -> None:
    rig.set("gpus 2", "hang.Init 1000")
    source = rig.opened(gpus=frozenset({7}))
    with pytest.raises(UserError, match="no GPU 7"):
        rig.until(source, lambda _: False)


def test_a_driver_that_appears_later_is_used(rig: Rig) -> None:
    rig.set("error.Init DRIVER_NOT_LOADED")
    source = rig.source()
    with pytest.raises(Unavailable):
        source.open()
    rig.set("gpus 1", "util 12")
    assert source.open().state == "ok"
    rig.until(source, lambda board: board.gpus[0].values["util_pct"] == 12.0)


def test_a_driver_that_takes_its_time_to_start_holds_nobody_up(rig: Rig) -> None:
    rig.set("gpus 1", "util 12", "hang.Init 600000")
    source = rig.source()
    state = source.open()
    assert (state.state, state.reason) == ("partial", "the driver has not answered yet")
    rig.set("gpus 1", "util 12")
    rig.until(source, lambda board: board.gpus[0].values["util_pct"] == 12.0)
    rig.until(source, lambda _: any(changed.state == "ok" for changed in rig.changed))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("NOT_SUPPORTED", "not supported on this GPU"),
        ("NO_PERMISSION", "no permission"),
        ("UNKNOWN", "the driver failed"),
        ("FUNCTION_NOT_FOUND", "too old"),
    ],
)
def test_a_call_that_fails_costs_its_own_fields_only(rig: Rig, code: str, reason: str) -> None:
    rig.set("gpus 1", "util 70", f"error.*Clock* {code}", f"error.Temperature {code}", f"error.ComputeRunningProcesses {code}")
    source = rig.opened()
    rig.until(source, lambda board: {"sm_clock_mhz", "throttle_mask", "temp_c", "procs"} <= set(board.gpus[0].missing))
    for field in ("sm_clock_mhz", "mem_clock_mhz", "sm_clock_max_mhz", "throttle_mask", "temp_c", "procs"):
        assert reason in rig.gpu().missing[field]
        assert field not in rig.gpu().values
    assert rig.gpu().values["util_pct"] == 70.0


def test_what_is_not_supported_is_asked_seldom(rig: Rig) -> None:
    rig.set("gpus 1", f"log {rig.log}", "error.ClockInfo NOT_SUPPORTED", "error.TotalEnergyConsumption NO_PERMISSION")
    source = rig.opened()
    rig.until(source, lambda _: len(rig.calls("UtilizationRates")) > 60)
    ticks = rig.calls("UtilizationRates")
    asked_again = (ticks[-1] - ticks[0]) // 5_000_000_000  # only on a machine so busy that the ticks took that long
    assert len(rig.calls("ClockInfo")) <= 2 * (1 + asked_again)  # SM and memory
    assert len(rig.calls("TotalEnergyConsumption")) <= 1 + asked_again


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's node, which a cgroup refuses."""
    opens = os.open

    def open_(path: str | Path, *arguments: int, **named: int) -> int:
        if str(path).endswith("nvidiactl"):
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        return opens(path, *arguments, **named)

    monkeypatch.setattr(os, "open", open_)


@pytest.mark.parametrize("said", ["UNKNOWN", "NO_PERMISSION", "DRIVER_NOT_LOADED"])
@pytest.mark.usefixtures("refused")
def test_a_container_that_has_lost_its_gpus_says_so(rig: Rig, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a daemon-reload on the host does."""
    monkeypatch.setenv("container", "docker")
    rig.set(f"error.Init {said}")
    with pytest.raises(Unavailable) as caught:
        rig.opened()
    assert "the container has lost its GPUs: its cgroup refuses /dev/nvidiactl" in caught.value.reason
    assert "nvidia-ctk system create-dev-char-symlinks --create-all" in caught.value.remedy


@pytest.mark.usefixtures("refused")
def test_a_unit_that_may_not_use_the_driver(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "in_container", lambda _root: False)  # the tests may run in one
    rig.set("error.Init UNKNOWN")
    with pytest.raises(Unavailable, match="cgroup of this process refuses") as caught:
        rig.opened()
    assert "DeviceAllow=char-nvidia* rw" in caught.value.remedy


def test_an_unknown_error_in_a_container_names_what_it_is_mostly(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("container", "podman")
    rig.set("error.Init UNKNOWN")
    [check, gpm, *_] = gpu_checks("/")
    assert (check.state, check.required, gpm.state) == ("missing", True, "missing")
    assert "Unknown Error" in check.detail
    assert "daemon-reload" in check.detail
    assert "start the container again" in check.remedy


@pytest.mark.parametrize("said", ["DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH", "NO_PERMISSION"])
def test_what_else_ails_in_a_container_keeps_its_own_reason(rig: Rig, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("container", "docker")
    rig.set(f"error.Init {said}")
    with pytest.raises(Unavailable) as caught:
        rig.opened()
    assert "daemon-reload" not in caught.value.reason


def test_everything_not_supported(rig: Rig) -> None:
    rig.set("gpus 1", "error.* NOT_SUPPORTED")
    source = rig.opened()
    rig.until(source, lambda board: {"util_pct", "power_w", "procs", "temp_c", "remapped_rows"} <= set(board.gpus[0].missing))
    of_host = {"mem_used_bytes", "mem_total_bytes", "mem_shared"}
    assert not set(rig.gpu().values) - {"lost", "nvml_ns", "nvml_calls"} - of_host


def test_a_fifth_of_all_calls_failing_leaves_gaps_only(rig: Rig) -> None:
    rig.set("gpus 2", "util 70", "error.* 20%UNKNOWN")
    source = rig.opened()
    rig.until(source, lambda board: {"power_w", "temp_c", "procs"} <= set(board.gpus[0].values) & set(board.gpus[1].values))
    for _ in range(30):
        rig.read(source)
        time.sleep(0.02)
    got = [gpu.power_w for frame in rig.frames[-30:] for gpu in frame.gpus if gpu.util_pct is not None]
    assert len([power for power in got if power is not None]) > len(got) / 3


def test_a_lost_gpu_leaves_the_others_alone_and_is_picked_up_when_it_returns(rig: Rig) -> None:
    rig.set("gpus 2", "util 30")
    source = rig.opened()
    rig.until(source, lambda board: board.gpus[1].values["util_pct"] == 30.0)
    rig.set("gpus 2", "util 40", "gpu1.lost 1")
    rig.until(source, lambda board: board.gpus[1].values.get("lost") is True and board.gpus[0].values["util_pct"] == 40.0)
    assert "util_pct" not in rig.gpu(1).values
    assert all(rig.gpu(1).missing[field].startswith("GPU lost") for field in READ_FIELDS)
    rig.until(source, lambda _: any(changed.state == "partial" and "GPU 1: GPU lost" in changed.reason for changed in rig.changed))
    rig.set("gpus 2", "util 50")
    rig.until(source, lambda board: board.gpus[1].values.get("util_pct") == 50.0 and "temp_c" in board.gpus[1].values)
    assert rig.gpu(1).values["lost"] is False
    rig.until(source, lambda _: rig.changed[-1].state == "ok")
    # GPM has something to say with its second sample only.
    rig.until(source, lambda board: not [reason for reason in board.gpus[1].missing.values() if reason.startswith("GPU lost")])


def test_a_gpu_of_which_every_call_fails_is_told_by_the_source_until_it_answers(rig: Rig) -> None:
    rig.set("gpus 2", "util 30")
    source = rig.opened()
    rig.until(source, lambda board: {"util_pct", "temp_c"} <= set(board.gpus[1].values))
    rig.set("gpus 2", "util 30", "gpu1.error.* UNKNOWN")
    rig.until(source, lambda _: rig.changed and rig.changed[-1].state == "partial")
    assert rig.changed[-1].reason == "GPU 1: the driver failed: Unknown Error"
    rig.set("gpus 2", "util 30", "gpu1.error.UtilizationRates UNKNOWN", "gpu1.error.Samples UNKNOWN")
    rig.until(source, lambda board: rig.changed[-1].state == "ok" and "util_pct" in board.gpus[1].missing)


def test_what_a_lost_gpu_held_is_given_back(rig: Rig) -> None:
    rig.set("gpus 1", f"log {rig.log}")
    source = rig.opened()
    rig.until(source, lambda _: rig.calls("GpmMetricsGet") and rig.calls("EventSetWait"))
    rig.set("gpus 1", f"log {rig.log}", "lost 1")
    rig.until(source, lambda board: board.gpus[0].values.get("lost") is True)
    rig.set("gpus 1", f"log {rig.log}")
    rig.until(source, lambda _: len(rig.calls("GpmSampleAlloc")) == 4 and len(rig.calls("EventSetCreate")) == 2)
    assert (len(rig.calls("GpmSampleFree")), len(rig.calls("EventSetFree"))) == (2, 1)


@pytest.mark.parametrize("loss", [("lost 1",), ("error.* RESET_REQUIRED", "error.HandleByIndex RESET_REQUIRED")])
def test_the_xid_that_a_gpu_is_lost_for_is_told(rig: Rig, loss: tuple[str, ...]) -> None:
    rig.set("gpus 1", f"log {rig.log}")
    source = rig.opened()
    rig.until(source, lambda _: rig.calls("EventSetWait"))
    rig.set("gpus 1", f"log {rig.log}", *loss, "xid 79")
    rig.until(source, lambda board: board.gpus[0].values.get("lost") is True and board.gpus[0].values["xid"] == 79)
    rig.set("gpus 1", f"log {rig.log}", "xid 79")
    rig.until(source, lambda board: board.gpus[0].values["lost"] is False and len(rig.calls("EventSetCreate")) == 2)
    assert rig.gpu().values["xid"] == 79


def test_an_xid_that_ends_a_gpu_is_not_hidden_by_those_that_follow_and_stands_until_the_gpu_answers_anew(rig: Rig) -> None:
    rig.set("gpus 1", f"log {rig.log}")
    source = rig.opened()
    rig.until(source, lambda board: board.gpus[0].values.get("needs_reset") is False)
    for xid, needs_reset in ((31, False), (95, True), (45, True)):
        rig.set("gpus 1", f"log {rig.log}", f"xid {xid}")
        asked = len(rig.calls("EventSetWait"))
        rig.until(source, lambda _, asked=asked: len(rig.calls("EventSetWait")) > asked + 2)  # type: ignore[misc]
        rig.until(source, lambda board, told=needs_reset: board.gpus[0].values["needs_reset"] is told)  # type: ignore[misc]
    assert rig.gpu().values["xid"] == 95
    rig.set("gpus 1", f"log {rig.log}", "xid 45", "lost 1")
    rig.until(source, lambda board: board.gpus[0].values.get("lost") is True)
    assert "needs_reset" not in rig.gpu().values
    rig.set("gpus 1", f"log {rig.log}", "xid 45")
    rig.until(source, lambda board: board.gpus[0].values.get("needs_reset") is False)
    assert (rig.gpu().values["lost"], rig.gpu().values["xid"]) == (False, 95)


def test_whether_a_gpu_is_there_is_not_known_while_its_calls_fail_or_hang(rig: Rig) -> None:
    rig.set("gpus 2", "util 30")
    source = rig.opened()
    rig.until(source, lambda board: all(gpu.values.get("lost") is False and "util_pct" in gpu.values for gpu in board.gpus.values()))
    rig.set("gpus 2", "util 30", "gpu1.error.* UNKNOWN")
    rig.until(source, lambda board: "the driver failed" in board.gpus[1].missing.get("lost", ""))
    assert (rig.gpu(0).lost, rig.gpu(1).lost) == (False, None)
    rig.set("gpus 2", "util 30")
    rig.until(source, lambda board: board.gpus[1].values.get("lost") is False)
    rig.set("gpus 2", "util 30", "gpu1.hang.UtilizationRates 600000")
    rig.until(source, lambda board: board.gpus[1].missing.get("lost", "").startswith("the driver has not answered"))
    assert rig.gpu(1).lost is None
    assert (rig.gpu(1).silent_s or 0.0) >= 1.0
    rig.set("gpus 2", "util 30")
    rig.until(source, lambda board: board.gpus[1].values.get("lost") is False)
    assert rig.gpu(1).silent_s is None


def test_nobody_claims_that_there_was_no_xid_on_a_gpu_that_was_lost_from_the_start(rig: Rig) -> None:
    rig.set("gpus 2", "util 30", "gpu1.lost 1")
    source = rig.opened()
    rig.until(source, lambda board: board.gpus[1].values.get("lost") is True and "util_pct" in board.gpus[0].values)
    assert rig.gpu(1).missing["xid"].startswith("GPU lost")
    rig.set("gpus 2", "util 30")
    rig.until(source, lambda board: board.gpus[1].values.get("needs_reset") is False)
    assert "xid" not in rig.gpu(1).missing


def test_the_xid_of_a_gpu_that_is_back_at_once_is_told_before_its_events_are_freed(rig: Rig) -> None:
    rig.set("gpus 1")
    source, gpu = rig.opened(), WatchedGpu(0, INTERVAL_NS, *(PollThreads(Lock(), period_ns=SECOND_NS) for _ in range(2)))
    assert gpu._attach(SECOND_NS)
    gpu._poll_slow(SECOND_NS)
    gpu._lose("GPU lost", lost=True)
    rig.set("gpus 1", "xid 79", "util 40")
    rig.until(source, lambda board: board.gpus[0].values["util_pct"] == 40.0)
    assert gpu._attach(10 * SECOND_NS)
    gpu._poll_slow(10 * SECOND_NS)
    assert {"xid": 79} in [report.values for report in gpu.polls]


def test_a_gpu_that_is_added_is_read_too(rig: Rig) -> None:
    rig.set("gpus 1")
    source = rig.opened()
    rig.until(source, lambda board: "util_pct" in board.gpus[0].values)
    rig.set("gpus 2", "util 8")
    rig.until(source, lambda board: board.gpus[1].values.get("util_pct") == 8.0)


def test_one_gpu_that_hangs_stalls_neither_the_others_nor_the_reader(rig: Rig) -> None:
    rig.set("gpus 3", "util 5")
    source = rig.opened()
    rig.until(source, lambda board: {0, 1, 2} <= set(board.gpus) and "util_pct" in board.gpus[2].values)
    hang_from_ns = time.monotonic_ns()
    rig.set("gpus 3", "util 6", "gpu1.hang.UtilizationRates 600000")
    rig.until(source, lambda board: board.gpus[1].missing.get("util_pct"))  # a reader that waited would wait until the test fails
    assert "has not answered for" in rig.gpu(1).missing["util_pct"]
    assert rig.gpu(0).read_ns["util_pct"] > hang_from_ns + 500_000_000
    assert rig.gpu(2).values["util_pct"] == 6.0
    assert "temp_c" in rig.gpu(1).values  # its other poller goes on
    rig.set("gpus 3", "util 6")
    rig.until(source, lambda board: board.gpus[1].values.get("util_pct") == 6.0)
    assert "util_pct" not in rig.gpu(1).missing


@pytest.mark.parametrize("fault", ["delay.* 1200000", "hang.FieldValues 8000"])
def test_what_was_read_before_a_hang_does_not_pass_for_current(rig: Rig, fault: str) -> None:
    """It is dropped after a second or two; the bound leaves a busy machine room, and is well below what the driver takes."""
    rig.set("gpus 1", "util 5", "sm_clock 1000")
    source = rig.opened()
    rig.until(source, lambda board: {"util_pct", "power_w", "sm_clock_mhz", "temp_c"} <= set(board.gpus[0].values))
    rig.set("gpus 1", "util 6", "sm_clock 1500", fault)
    told: set[object] = set()

    def is_over(board: Board) -> bool:
        gpu = board.gpus[0]
        current = {"util_pct", "mem_used_bytes", "sm_clock_mhz"} & gpu.values.keys()
        old_s = {field: (board.t_ns - gpu.read_ns[field]) / 1e9 for field in current}
        assert all(age_s < 7.0 for age_s in old_s.values()), old_s
        told.update({gpu.values.get("util_pct"), gpu.values.get("sm_clock_mhz"), gpu.missing.get("util_pct")})
        return {6.0, 1500, "the driver has not answered for 1 s"} <= told

    rig.until(source, is_over)


def test_a_hanging_slow_call_leaves_the_quick_ones_their_beat(rig: Rig) -> None:
    rig.set("gpus 1", f"log {rig.log}", "hang.ComputeRunningProcesses 2500")
    source = rig.opened()
    rig.until(source, lambda board: "not answered for 1 s" in board.gpus[0].missing.get("procs", ""))
    hung_ns = rig.calls("ComputeRunningProcesses")[0]
    during = [t for t in rig.calls("UtilizationRates") if hung_ns < t < hung_ns + 1_000_000_000]
    assert len(during) > 3
    rig.until(source, lambda board: "procs" in board.gpus[0].values)


def test_a_slow_call_is_asked_for_less_often_and_said_so(rig: Rig) -> None:
    rig.set("gpus 1", f"log {rig.log}", "delay.CurrentClocksEventReasons 15000")
    source = rig.opened()
    rig.until(source, lambda _: any("throttle_mask every 0.3 s" in changed.detail.get("slowed", "") for changed in rig.changed))
    seen = len(rig.calls("CurrentClocksEventReasons"))
    rig.until(source, lambda _: len(rig.calls("CurrentClocksEventReasons")) > seen + 3)
    calls = rig.calls("CurrentClocksEventReasons")[seen:]
    assert all(later - sooner > 200_000_000 for sooner, later in pairwise(calls)), calls


def test_an_old_driver(rig: Rig) -> None:
    load(stub("-DNVML_OLD_DRIVER"))
    rig.set("gpus 1", "util 33", "mem_used_mib 100", "mem_reserved_mib 50", "throttle 4", "power_mw 90000", "procs 4242:7:9:C", "temp 51")
    source = rig.opened()
    rig.until(source, lambda board: {"procs", "temp_c"} <= set(board.gpus[0].values) and "remapped_rows" in board.gpus[0].missing)
    got = rig.gpu().values
    assert (got["util_pct"], got["power_w"], got["power_instant"], got["throttle_mask"]) == (33.0, 90.0, False, 4)
    assert got["mem_used_bytes"] == 150 << 20
    reason = "the driver is too old for it; it is counted as used"
    assert rig.gpu().missing["mem_reserved_bytes"] == reason
    assert "the driver is too old for it" in rig.gpu().missing["sm_active_pct"]
    assert "too old" in rig.gpu().missing["remapped_rows"]
    assert (got["procs"][0].pid, got["procs"][0].sm_pct) == (4242, 9.0)


def test_memory_is_read_in_one_way_though_that_fails_for_a_while(rig: Rig) -> None:
    plain = ("gpus 1", "mem_used_mib 100", "mem_reserved_mib 50")
    rig.set(*plain)
    source = rig.opened()
    rig.until(source, lambda board: "mem_used_bytes" in board.gpus[0].values)
    rig.set(*plain, "error.MemoryInfo UNKNOWN")
    rig.until(source, lambda board: board.gpus[0].missing.get("mem_used_bytes") == "the driver failed: Unknown Error")
    rig.set("gpus 1", "mem_used_mib 101", "mem_reserved_mib 50")
    rig.until(source, lambda board: board.gpus[0].values.get("mem_used_bytes") == 101 << 20)
    told = {gpu.mem_used_bytes for frame in rig.frames for gpu in frame.gpus if gpu.mem_used_bytes is not None}
    assert told == {100 << 20, 101 << 20}
    assert "mem_reserved_bytes" not in rig.gpu().missing


def test_memory_counted_in_the_old_way_says_why(rig: Rig) -> None:
    rig.set("gpus 1", "mem_used_mib 100", "mem_reserved_mib 50", "error.MemoryInfo TIMEOUT")
    source = rig.opened()
    rig.until(source, lambda board: board.gpus[0].values.get("mem_used_bytes") == 150 << 20)
    assert rig.gpu().missing["mem_reserved_bytes"] == "the driver timed out; it is counted as used"


UNIFIED = ("gpus 1", "error.MemoryInfo NOT_SUPPORTED", "error.MemoryInfo_v1 NOT_SUPPORTED")


def test_a_gpu_without_memory_of_its_own_has_the_hosts(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 127600748 kB\nMemFree: 9 kB\nMemAvailable: 118566368 kB\n")
    monkeypatch.setattr(fast, "MEMINFO", str(meminfo))
    rig.set(*UNIFIED, "procs 4242:7:9:C")
    rig.until(rig.opened(), lambda board: board.gpus[0].values.get("mem_shared") and board.gpus[0].values.get("procs"))
    got = rig.gpu().values
    assert (got["mem_total_bytes"], got["mem_used_bytes"]) == (127600748 << 10, (127600748 - 118566368) << 10)
    assert got["procs"][0].mem_bytes == 7 << 20, "what a process holds is the driver's word"
    assert rig.gpu().missing["mem_reserved_bytes"] == "not supported on this GPU; the GPU shares the host's memory"


@pytest.mark.parametrize("said", ["UNKNOWN", "TIMEOUT", "NO_PERMISSION", "GPU_IS_LOST"])
def test_no_other_failure_makes_the_hosts_memory_a_gpus(rig: Rig, said: str) -> None:
    rig.set("gpus 1", f"error.MemoryInfo {said}", f"error.MemoryInfo_v1 {said}")
    rig.until(rig.opened(), lambda board: "mem_used_bytes" in board.gpus[0].missing)
    assert not {"mem_used_bytes", "mem_shared"} & rig.gpu().values.keys()


def test_nor_does_mig_or_a_host_that_does_not_say(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.set(*UNIFIED, "mig 1g.11gb:7:10000:3000:14:42")
    rig.until(rig.opened(), lambda board: board.gpus[0].values.get("mig_mode") and "mem_used_bytes" in board.gpus[0].missing)
    assert "mem_used_bytes" not in rig.gpu().values
    (tmp_path / "meminfo").write_text("MemTotal: 127600748 kB\n")
    monkeypatch.setattr(fast, "MEMINFO", str(tmp_path / "meminfo"))
    rig.set(*UNIFIED)
    rig.until(rig.opened(), lambda board: board.gpus[0].missing.get("mem_used_bytes") == "not supported on this GPU")


def test_process_shares_that_cannot_be_told_are_absent(rig: Rig) -> None:
    rig.set("gpus 1", "procs 4242:7:9:C", "error.ProcessUtilization NOT_SUPPORTED")
    source = rig.opened()
    rig.until(source, lambda board: board.gpus[0].values["procs"])
    assert rig.gpu().values["procs"][0].sm_pct is None
    assert rig.gpu().missing["procs.sm_pct"] == "not supported on this GPU"


@pytest.mark.parametrize("call", ["HandleByIndex", "UtilizationRates", "ComputeRunningProcesses"])
def test_a_look_that_ends_before_the_answer_comes_has_the_reasons(rig: Rig, call: str) -> None:
    rig.set("gpus 2", f"gpu1.hang.{call} 1500")
    source = rig.source()
    state = source.open()
    rig.read(source, key=True)
    assert (state.state, state.reason) == ("partial", "GPU 1 does not answer")
    gpu = rig.gpu(1)
    unexplained = {*READ_FIELDS, "lost"} - set(gpu.values) - set(gpu.missing)
    assert unexplained == {field for field in READ_FIELDS if field not in {*rig.gpu(0).values, *rig.gpu(0).missing}}
    assert any(reason.startswith("the driver has not answered for 0.") for reason in gpu.missing.values())
    rig.until(source, lambda board: {"util_pct", "pcie_rx_bytes", "procs", "remapped_rows"} <= set(board.gpus[1].values))
    assert not [field for field, reason in rig.gpu(1).missing.items() if "has not answered" in reason]


def test_the_first_sample_of_gpm_says_that_a_second_is_needed(rig: Rig) -> None:
    rig.set("gpus 1")
    source = rig.opened(interval_ns=10_000_000_000)
    rig.read(source, key=True)
    assert "two samples" in rig.gpu().missing["sm_active_pct"]


def test_a_gpu_that_hangs_from_the_start(rig: Rig) -> None:
    rig.set("gpus 2", "util 9", "gpu1.hang.HandleByIndex 600000")
    source = rig.source()
    state = source.open()
    assert state.reason == "GPU 1 does not answer"
    rig.until(source, lambda board: "has not answered" in board.gpus[1].missing.get("util_pct", ""))
    assert rig.gpu(0).values["util_pct"] == 9.0
    rig.set("gpus 2", "util 9")
    rig.until(source, lambda board: board.gpus[1].values.get("util_pct") == 9.0)


def test_a_gpu_that_may_not_be_used(rig: Rig) -> None:
    rig.set("gpus 2", "util 9", "gpu1.error.HandleByIndex NO_PERMISSION")
    source = rig.opened()
    rig.until(source, lambda board: "no permission" in board.gpus[1].missing["util_pct"])
    assert "lost" not in rig.gpu(1).values
    assert all("no permission" in rig.gpu(1).missing[field] for field in (*NEVER_READ, "lost"))
    rig.until(source, lambda board: board.gpus[0].values["util_pct"] == 9.0)


def test_who_a_gpu_is_may_be_unknown_for_a_reason(rig: Rig) -> None:
    rig.set("gpus 1", "error.UUID UNKNOWN", "error.SystemDriverVersion UNKNOWN", "error.SystemCudaDriverVersion UNKNOWN")
    source = rig.source()
    state = source.open()
    rig.until(source, lambda board: "name" in board.gpus[0].values)
    assert rig.gpu().missing["uuid"] == "the driver failed: Unknown Error"
    assert state.detail["unknown"] == "driver, cuda (the driver failed: Unknown Error)"
    assert "library" in state.detail


def test_who_a_gpu_is_is_asked_again_when_the_driver_failed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_LONGEST_NS", SECOND_NS)
    rig.set("gpus 1", f"log {rig.log}", "error.Name UNKNOWN", "error.UUID TIMEOUT")
    source = rig.opened()
    rig.until(source, lambda board: {"name", "uuid"} <= board.gpus[0].missing.keys())
    rig.set("gpus 1", f"log {rig.log}")
    rig.until(source, lambda board: {"name", "uuid"} <= board.gpus[0].values.keys())
    assert not {"name", "uuid"} & rig.gpu().missing.keys()
    assert len(rig.calls("PciInfo")) == 2  # for its name, and for its place in sysfs


def test_the_longer_rows_of_a_few_drivers_are_read(rig: Rig) -> None:
    listed = [(4242, 7), (4243, 9), (4244, 11)]
    rig.set("gpus 1", "long_procs 1", "procs " + ", ".join(f"{pid}:{mib}" for pid, mib in listed))
    source = rig.opened()
    rig.until(source, lambda board: board.gpus[0].procs)
    assert [(proc.pid, proc.mem_bytes, proc.gpu_instance) for proc in rig.gpu().procs] == [(pid, mib << 20, None) for pid, mib in listed]


def test_one_link_that_is_refused_leaves_the_others(rig: Rig) -> None:
    rig.set("gpus 2", "nvlinks 6", "nvlinks_refused 6", "gpu1.nvlinks_refused 18", "nvlink_broken 1", "nvlink_absent 2")
    source = rig.opened()
    rig.until(source, lambda board: "nvlink_links" in board.gpus[0].values and "nvlink_links" in board.gpus[1].missing)
    assert rig.gpu(0).values["nvlink_links"] == 4
    assert "nvlink_tx_bytes" in rig.gpu(0).values
    assert rig.gpu(1).missing["nvlink_links"] == "not supported on this GPU"


@pytest.mark.parametrize("trouble", ["lost 1", "hang.*RunningProcesses 2500"])
def test_who_computed_on_a_gpu_is_known_while_that_is_silent(rig: Rig, trouble: str) -> None:
    healthy = ("gpus 1", "util 40", "procs 4242:7:9:C, 4243:7:0:G")
    rig.set(*healthy)
    source = rig.opened()
    rig.until(source, lambda board: board.gpus[0].procs)
    rig.set(*healthy, trouble)
    rig.until(source, lambda board: "procs" in board.gpus[0].missing)
    rig.read(source, key=True)
    assert not rig.gpu().procs
    assert rig.board.compute_pids == {4242}
    assert 4242 in source.pids
    rig.set("gpus 1", "util 40", "procs 4244:7:9:C")
    rig.until(source, lambda board: board.gpus[0].procs)
    assert rig.board.compute_pids == {4244}


@pytest.mark.parametrize("refused", ["nvml-0", "nvml-1", "nvml-1-slow"])
def test_a_gpu_that_can_have_no_thread_says_so_and_the_others_are_read(rig: Rig, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    start, number = Thread.start, int(refused[5])

    def start_others(thread: Thread) -> None:
        if thread.name == refused:
            raise RuntimeError("can't start new thread")
        start(thread)

    rig.set("gpus 2", "temp 50")
    monkeypatch.setattr(Thread, "start", start_others)
    source = rig.opened()
    rig.until(source, lambda board: board.gpus[1 - number].values["temp_c"] == 50 and "temp_c" in board.gpus[number].missing)
    assert rig.gpu(number).missing["temp_c"] == NO_MORE_THREADS
    assert ("util_pct" in rig.gpu(number).values) == refused.endswith("slow")
    monkeypatch.undo()
    monkeypatch.setenv("GPUTOP_NVML_CONTROL", str(rig.control))
    rig.until(source, lambda board: board.gpus[number].values["temp_c"] == 50)
    assert "util_pct" in rig.gpu(number).values
