"""Off-CPU kernel stacks of real processes, and how they are shown."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gputop.sources import Unavailable
from gputop.stacks import kernel, on_demand, on_demand_loader
from gputop.stacks.lines import offcpu_lines, to_folded
from gputop.stacks.on_demand import OffCpu, OffCpuStack
from tests.require import require
from tests.stacks.conftest import Target
from tests.stacks.test_command import gputop
from tests.wait import PATIENCE_S, until

Start = Callable[..., Target]


def sleeping_in(pid: int, call: str) -> bool:
    view = kernel.view_thread(pid, pid)
    return view is not None and call in view.syscall


def test_waits_are_summed_and_one_that_outlasts_the_watch_is_there_too(start: Start) -> None:
    require("ebpf")
    ticking, asleep = start("ticking").pid, start("waiting_for_pipe").pid
    until(lambda: sleeping_in(asleep, "read"))
    found = on_demand.watch_off_cpu([ticking, asleep], 1.0)
    assert found.lost == 0
    assert 0.9 < found.seconds < 5
    in_sleep = [one for one in found.stacks if one.pid == ticking and any("nanosleep" in name for name in one.frames)]
    assert all(one.frames[0] not in ("schedule", "__schedule") for one in in_sleep)
    short = [one for one in in_sleep if one.why == "sleeping"]  # a busy machine also takes the CPU from it on its way to sleep
    assert sum(one.times for one in short) > 20
    assert 0.1e9 < sum(one.ns for one in short) < found.seconds * 1.1e9
    (long,) = [one for one in found.stacks if one.pid == asleep]
    assert (long.times, long.ns, long.why) == (0, round(found.seconds * 1e9), "sleeping")
    assert any("pipe" in name for name in long.frames)


def test_without_btf_the_plain_tracepoint_serves(start: Start) -> None:
    require("ebpf")
    if not Path("/sys/kernel/tracing/events/sched/sched_switch/id").exists():
        pytest.skip("tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing")
    pid = start("ticking").pid
    request = {"probe": "offcpu", "probes": on_demand.PROBES, "btf": "/none", "pids": [pid], "seconds": 1.0}
    request["ebpf"] = str(Path(on_demand.loader.__file__).parent)
    command = [on_demand.find_python(), "-I", on_demand_loader.__file__, json.dumps(request)]
    answer = json.loads(subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=True).stdout)
    assert any("nanosleep" in name for row in answer["rows"] for name in row[5]), answer
    assert all(row[0] == pid for row in answer["rows"])


def test_the_command_gives_text_json_and_folded(start: Start) -> None:
    require("ebpf")
    pid = str(start("ticking").pid)
    text = gputop(pid, "--off-cpu", "--duration", "1")
    assert text.returncode == 0, text.stderr
    assert f"stalled.py ({pid}): main thread off the CPU" in text.stdout
    assert "nanosleep" in text.stdout
    answer = json.loads(gputop(pid, "--off-cpu", "--duration", "1", "--json").stdout)
    assert answer["off_cpu"]["stacks"][0]["pid"] == int(pid)
    assert f"sleeping {pid};" in gputop(pid, "--off-cpu", "--duration", "1", "--folded").stdout


def test_without_privilege_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "capabilities", lambda _root="/": 0)
    monkeypatch.setattr(on_demand.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(on_demand, "in_container", lambda _root="/": False)
    with pytest.raises(Unavailable, match="needs root") as refused:
        on_demand.watch_off_cpu([os.getpid()], 1.0)
    assert refused.value.remedy == f'`sudo "$(command -v gputop)" stacks {os.getpid()} --off-cpu`'


_DIES = "sys.exit('/virtual/main.c:3:1: error: unknown type\\nFailed')"
_ANSWERS = "print('main.c:3:1: error: unknown type', file=sys.stderr); print('{\"error\": \"Exception: Failed to compile\"}')"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (_DIES, "failed: /virtual/main.c:3:1: error: unknown type"),
        (_ANSWERS, "Exception: Failed to compile (main.c:3:1: error: unknown type)"),
        ("sys.exit(7)", "its helper ended with status 7"),
    ],
)
def test_what_the_helper_printed_is_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "helper.py").write_text(f"import sys\n{script}\n")
    monkeypatch.setattr(on_demand_loader, "__file__", str(tmp_path / "helper.py"))
    monkeypatch.setattr(on_demand.helper, "check", lambda *_, **__: None)
    monkeypatch.setattr(on_demand, "capabilities", lambda _root="/": -1)
    with pytest.raises(Unavailable) as failed:
        on_demand.watch_off_cpu([os.getpid()], 0.0)
    assert failed.value.reason.endswith(said)


def test_lines_speak_of_main_threads_and_of_what_is_lost() -> None:
    found = OffCpu(
        (
            OffCpuStack(7, 8, "sleeping", 2_000_000_000, 0, ("futex_wait",)),
            OffCpuStack(7, 7, "uninterruptible", 1_000_000_000, 311, ("folio_wait_bit_common", "filemap_read")),
            OffCpuStack(7, 7, "preempted", 500_000_000, 9, ()),
        ),
        2.0, 3,
    )  # fmt: skip
    texts = [line.text for line in offcpu_lines(found, {7: "worker 0"})]
    assert texts[0] == "worker 0 (7): main thread off the CPU 75 % of 2.0 s"
    assert texts[1].split(maxsplit=5) == ["50.0", "%", "uninterruptible", "311", "times", "folio_wait_bit_common ← filemap_read"]
    assert texts[2].endswith("ready to run, had no CPU")
    assert texts[-1].startswith("3 waits found no room")
    assert to_folded(on_demand.weigh_off_cpu(found.stacks[1:2])) == "uninterruptible 7;filemap_read;folio_wait_bit_common 1000000000\n"
