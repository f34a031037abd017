"""The doctor's findings on made-up machines, and how they are told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gputop.commands import doctor
from gputop.doctor import bundle, checks
from gputop.doctor.checks import Doctor, DoctorCheck, works
from gputop.doctor.traces import trace_check
from gputop.sources.ebpf.source import LEAST_THREADS, room_for_threads
from gputop.sources.procfs import source
from gputop.system.colour import painted
from gputop.traces.askable import why_not
from gputop.traces.environment import CLIENT
from tests.sources.fake_nics import HNS, MLX5, FakeNics

CHECKS = [
    DoctorCheck("nvml", "NVML", "ok", "driver 580", required=True),
    DoctorCheck("bcc", "bcc", "missing", "no \x1b[31mbcc", "apt install python3-bpfcc"),
    DoctorCheck("clock", "clock", "limited", "hpet", "boot with tsc=reliable"),
]


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def found(checks: list[DoctorCheck], name: str) -> DoctorCheck:
    return next(check for check in checks if check.id == name)


def test_only_what_is_required_and_missing_stops_the_main_job() -> None:
    assert works(CHECKS)
    assert not works([DoctorCheck("nvml", "NVML", "missing", "no driver", required=True)])


def test_text_has_a_line_a_check_and_the_remedy_under_it() -> None:
    lines = doctor.as_text(CHECKS).splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [["✓", "NVML", "OK"], ["✗", "bcc", "missing"]]
    assert lines[2].strip() == "→ apt install python3-bpfcc"
    assert "\x1b" not in "".join(lines)
    assert "".join(painted(line, on=True) for line in doctor.lines(CHECKS[:2], unicode=False, width=0)).replace("·", "").isascii()


def test_it_keeps_the_width_of_the_terminal_and_no_word_is_broken() -> None:
    long = DoctorCheck("nvml", "NVML", "missing", "no NVIDIA driver: libnvidia-ml.so.1 is not found " * 3, "start it with --gpus all")
    lines = [painted(line, on=False) for line in doctor.lines([long], unicode=True, width=80)]
    assert max(map(len, lines)) <= 80
    told = [word for line in lines[: lines.index("")] for word in line.split() if word not in ("✗", "NVML", "missing", "→")]
    assert told == [*long.detail.split(), *(long.remedy or "").split()]


def test_it_sums_up_what_can_be_done_and_what_would_sharpen_it() -> None:
    def told(*states: tuple[str, str, bool, str]) -> dict[str, str]:
        checks = [DoctorCheck(id, id, state, "why not", remedy, required) for id, state, required, remedy in states]
        return dict(text.partition(": ")[::2] for text, _ in doctor.summary(checks))

    well = told(("nvml", "ok", True, ""), ("schedstat", "ok", True, ""))
    assert well == {"can watch GPUs": "yes", "can tell causes": "yes"}
    lacking = [(name, "limited", False, "do it") for name in ("bcc", "btf", "colours")]
    less = told(("schedstat", "ok", True, ""), *lacking)
    assert less["can tell causes"] == "yes"
    assert less["2 things would sharpen it"] == "bcc, btf"
    blind = told(("nvml", "missing", True, "a driver"), ("schedstat", "missing", True, "a kernel"))
    assert blind["can watch GPUs"] == blind["can tell causes"] == "no (why not)"


def test_json_names_every_check_and_null_is_no_remedy() -> None:
    said = json.loads(Doctor(1, True, CHECKS).json())
    assert (said["schema"], said["ok"]) == (1, True)
    assert [(check["id"], check["state"], check["remedy"]) for check in said["checks"]] == [
        ("nvml", "ok", None), ("bcc", "missing", "apt install python3-bpfcc"), ("clock", "limited", "boot with tsc=reliable"),
    ]  # fmt: skip


@pytest.mark.parametrize(("uid", "shown", "state", "detail"), [
    (0, True, "ok", "everything that /proc has, of all users"),
    (1000, True, "limited", "of other users' processes no I/O, libraries, waits"),
    (1000, False, "limited", "other users' processes are hidden: /proc is mounted with hidepid"),
])  # fmt: skip
def test_how_much_is_seen_of_other_users_processes(
    uid: int, shown: bool, state: str, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, answer in (("in_initial_pid_namespace", True), ("may_ptrace", True)):
        monkeypatch.setattr(source, name, lambda answer=answer: answer)
    monkeypatch.setattr(checks, "in_initial_pid_namespace", lambda: True)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    put(tmp_path, "proc/1/stat" if shown else "proc/77/stat", "1 (init) S")
    check = found(checks.host_checks(str(tmp_path)), "processes")
    assert (check.state, check.detail) == (state, detail)
    assert check.remedy == (None if state == "ok" else "run gputop as root to see them")


@pytest.mark.parametrize(
    ("scope", "uid", "state", "remedy"),
    [
        ("0", 1000, "ok", ""), ("1", 1000, "limited", "sudo sysctl kernel.yama.ptrace_scope=0"),
        ("3", 1000, "limited", ""),  # it cannot be undone before the next boot
        ("0", 0, "limited", "start the container with --cap-add SYS_PTRACE"),
    ],
)  # fmt: skip
def test_yama(scope: str, uid: int, state: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    put(tmp_path, "proc/self/status", "CapEff:\t0000000000000000\n")
    put(tmp_path, "proc/sys/kernel/yama/ptrace_scope", scope)
    check = found(checks.host_checks(str(tmp_path)), "yama")
    assert (check.state, check.remedy or "") == (state, remedy)


def test_a_slow_clock_and_missing_pressure_are_said(tmp_path: Path) -> None:
    put(tmp_path, "sys/devices/system/clocksource/clocksource0/current_clocksource", "acpi_pm\n")
    put(tmp_path, "proc/self/schedstat", "0 0 0\n")
    told = checks.host_checks(str(tmp_path))
    assert found(told, "clock").state == "limited"
    assert found(told, "pressure").remedy == "boot with psi=1"
    assert found(told, "schedstat").state == "missing"


def test_rdma_ports_are_told_by_driver_with_what_they_do_not_count(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/status", "")
    fake = FakeNics(tmp_path)
    fake.port("mlx5_0", "mlx5_core", MLX5)
    fake.port("mlx5_1", "mlx5_core", MLX5, rate="200 Gb/sec (4X HDR)")
    fake.port("hns_0", "hns3", HNS, link="Ethernet", rate="100 Gb/sec (4X EDR)")
    detail = checks._hardware(str(tmp_path)).detail
    assert "1 RDMA port of hns3 up to 100 Gbit/s, bytes not counted, 2 RDMA ports of mlx5_core up to 400 Gbit/s" in detail


def test_delays_that_the_kernel_does_not_measure_are_said(tmp_path: Path) -> None:
    assert found(checks.host_checks(str(tmp_path)), "delays").state == "ok"
    put(tmp_path, "proc/sys/kernel/task_delayacct", "0\n")
    assert found(checks.host_checks(str(tmp_path)), "delays").remedy == "sudo sysctl kernel.task_delayacct=1"


def test_without_btf_tracefs_is_needed(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/status", "CapEff:\t0000000000000000\n")
    told = checks.probe_checks(str(tmp_path))
    assert found(told, "btf").state == "limited"
    assert (found(told, "tracefs").remedy or "").startswith("mount -t tracefs")
    assert found(told, "probes").state == "missing"


@pytest.mark.parametrize(
    ("uid", "bounds", "remedy"),
    [
        (1000, "000001ffffffffff", "gputop --sudo"), (1000, "00000000a80425fb", "start the container with --user 0 --cap-add"),
        (0, "00000000a80425fb", "start the container with --cap-add"),
    ],
)  # fmt: skip
def test_without_privilege_the_remedy_fits_the_place(
    uid: int, bounds: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    put(tmp_path, "proc/self/status", f"CapEff:\t0000000000000000\nCapBnd:\t{bounds}\n")
    told = checks.probe_checks(str(tmp_path))
    assert {(found(told, name).remedy or "").startswith(remedy) for name in ("capabilities", "perf-event-paranoid", "probes")} == {True}


@pytest.mark.parametrize(
    ("term", "colorterm", "state"),
    [("xterm-256color", "truecolor", "ok"), ("xterm-256color", "", "ok"), ("xterm", "", "limited"), ("dumb", "", "limited")],
)
def test_colours(monkeypatch: pytest.MonkeyPatch, term: str, colorterm: str, state: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLORTERM", colorterm)
    assert checks.terminal_checks()[0].state == state


@pytest.mark.parametrize(
    ("threads", "cpus", "room"),
    [(200, 2, LEAST_THREADS), (10_000, 2, 32768), (8_192, 2, 16384), (200, 96, 32768), (10_000_000, 2, 131072)],
)
def test_maps_have_room_for_twice_the_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: int, cpus: int, room: int) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    put(tmp_path, "proc/loadavg", f"0.1 0.2 0.3 2/{threads} 4711\n")
    assert room_for_threads(str(tmp_path)) == room


@pytest.mark.parametrize(
    ("cpuinfo", "said"),
    [
        ("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nflags\t\t: fpu\n", "A CPU @ 2 GHz"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n", "CPU implementer 0x41, CPU part 0xd4f"),
    ],
)
def test_the_processor_of_x86_and_of_arm(tmp_path: Path, cpuinfo: str, said: str) -> None:
    put(tmp_path, "proc/cpuinfo", cpuinfo)
    assert next(line for line in bundle.facts(str(tmp_path)).splitlines() if line.startswith("processor")).endswith(f"  {said}")


def torch_process(root: Path, pid: int, parent: int = 1, libs: str = "libtorch_cpu.so", **environ: str) -> None:
    """A process with torch, in a folder like /proc."""
    put(root, f"proc/{pid}/maps", f"7f00-7f01 r-xp 00000000 00:00 1 /venv/lib/{libs}\n")
    put(root, f"proc/{pid}/stat", f"{pid} (python) S {parent} {' '.join(['0'] * 48)}")
    put(root, f"proc/{pid}/environ", "\0".join(f"{name}={value}" for name, value in environ.items()))
    (root / f"proc/{pid}/fd").mkdir()


def test_it_names_who_can_be_asked_for_a_trace_and_why_not(tmp_path: Path) -> None:
    put(tmp_path, "proc/net/unix", "Num RefCount Protocol Flags Type St Inode Path\n")
    assert trace_check(str(tmp_path), why_not).state == "ok"
    ready = {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": "/run/gputop"}
    torch_process(tmp_path, 10, **ready)
    torch_process(tmp_path, 11, parent=10, **ready)  # forked from it: a worker of its loader
    torch_process(tmp_path, 12, libs="libc.so.6")
    put(tmp_path, "proc/net/unix", f"0: 2 0 0 2 1 777 /run/gputop/{CLIENT}{'a' * 36}\n")
    (tmp_path / "proc/10/fd/5").symlink_to("socket:[777]")
    found = trace_check(str(tmp_path), why_not)
    assert (found.state, found.remedy) == ("ok", None)
    assert "1 torch process can be asked for a trace (10)" in found.detail
    torch_process(tmp_path, 20)
    torch_process(tmp_path, 30, KINETO_USE_DAEMON="1")
    torch_process(tmp_path, 40, **ready)
    found = trace_check(str(tmp_path), why_not)
    assert found.state == "limited"
    assert "3 torch processes cannot" in found.detail
    assert all(words in found.detail for words in ("process 20", "any local user may command", "process 40 has not imported torch"))
    assert "gputop run" in (found.remedy or "")
