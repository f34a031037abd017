"""Checks of what works on this machine: each reports OK, or what is missing and the command that fixes it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from threading import Thread

from msgspec import UNSET, Struct, UnsetType, to_builtins
from msgspec.structs import force_setattr

from gputop.model.board import Board, GpuBoard
from gputop.model.fields import cpu_words, speed_words
from gputop.model.frame import SILENT, Frame, SourceState
from gputop.sources import Beat, Settings, Source, Unavailable, perf
from gputop.sources.ebpf import helper, loader
from gputop.sources.ebpf.btf import BtfError, task_layout
from gputop.sources.ebpf.helper import find_python
from gputop.sources.ebpf.source import EbpfSource
from gputop.sources.files import read_text
from gputop.sources.hardware import read_hardware
from gputop.sources.nics import Ports
from gputop.sources.nvml import NvmlSource
from gputop.sources.nvml.fabric import HEALTHY
from gputop.sources.nvml.gpm import FIRST
from gputop.sources.procfs.source import hidden_processes
from gputop.stacks.permission import yama_scope
from gputop.system.console import charset, takes_unicode
from gputop.system.priority import BEAT, MOST_SHARE, raise_priority
from gputop.system.privilege import CAP_SYS_ADMIN, capabilities, in_initial_pid_namespace, may_ptrace
from gputop.system.text import clean, counted

SCHEMA = 1
_OPEN_TO_ALL = "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf; then reboot"
_FABRIC_LOG = "sudo systemctl status nvidia-fabricmanager; sudo dmesg | grep -i sxid: reports of the switches"
_GPU_PATIENCE_S = 2.0  # s for the first GPU to answer; a choice
_PROBES_PATIENCE_S = 15.0  # s for bcc to be imported, and for the probes to load; a slow machine took 6
_FIND_BCC = "import runpy, sys; m = runpy.run_path(sys.argv[1]); b = m['import_bcc'](); print(b.__version__, b.__file__)"


class DoctorCheck(Struct, frozen=True):
    """One finding. ``state``: ``ok``, ``limited`` (works, with less) or ``missing``."""

    id: str
    title: str
    state: str
    detail: str
    remedy: str | None = None  # the command or step that fixes it; None where nothing is to be fixed
    required: bool = False  # gputop cannot watch GPUs without it

    def __post_init__(self) -> None:
        if self.remedy == "":  # a source's, which has none
            force_setattr(self, "remedy", None)


class Part(Struct, frozen=True):
    """One file of a bundle."""

    name: str
    bytes: int
    about: str


class Bundle(Struct, frozen=True):
    """The bundle of `gputop doctor --bundle`."""

    path: str
    parts: list[Part]


class Doctor(Struct, frozen=True):
    """Output of `gputop doctor --json`."""

    schema: int
    ok: bool
    checks: list[DoctorCheck]
    bundle: Bundle | UnsetType = UNSET

    def json(self) -> str:
        """The object, indented."""
        return json.dumps(to_builtins(self), indent=2, ensure_ascii=False)  # not msgspec's: a name may have bytes that are no UTF-8


def works(checks: list[DoctorCheck]) -> bool:
    """True if gputop can watch GPUs here."""
    return not any(check.required and check.state == "missing" for check in checks)


# NVML and GPM


def gpu_checks(root: str) -> list[DoctorCheck]:
    """NVML, opened as the source opens it; GPM, once a GPU has answered; the NVLink fabric."""
    source = NvmlSource(Settings(root=root, everyone=True))
    try:
        state = source.open()
    except Unavailable as why:
        return [
            DoctorCheck("nvml", "NVML", "missing", why.reason, why.remedy, required=True),
            DoctorCheck("gpm", "GPM", "missing", "needs NVML"),
            DoctorCheck("fabric", "fabric", "missing", "needs NVML"),
        ]
    try:
        facts = ", ".join(f"{name} {value}" for name, value in state.detail.items() if value)
        nvml = DoctorCheck("nvml", "NVML", "ok" if state.state == "ok" else "limited", state.reason or facts, state.remedy, required=True)
        readings = _Readings(source, int(state.detail.get("gpus", 1)))
        return [nvml, _gpm(readings, root), _fabric(readings)]
    finally:
        source.close()


class _Readings:
    """Readings of the GPUs so far."""

    def __init__(self, source: Source, gpus: int) -> None:
        self.board, self.gpus = Board(), gpus
        self._source, self._seq = source, 0

    def until(self, is_enough: Callable[[Board], bool]) -> None:
        """Read until there is enough, or for `_GPU_PATIENCE_S`."""
        deadline = time.monotonic() + _GPU_PATIENCE_S
        while time.monotonic() < deadline and not is_enough(self.board):
            now = time.monotonic_ns()
            frame = Frame(self._seq, now, key=self._seq == 0)
            self._source.read(Beat(now, self._seq, self._seq == 0), frame)
            self.board.fold(frame)
            self._seq += 1
            time.sleep(0.05)

    def reasons(self, name: str) -> dict[int, str]:
        """GPU -> why a field has no value."""
        return {index: gpu.missing[name] for index, gpu in self.board.gpus.items() if name in gpu.missing}


def _gpm(readings: _Readings, root: str) -> DoctorCheck:
    """Read until one GPU gives its SM activity, or each has a reason why not that further readings will not change."""

    def has_value(board: Board) -> bool:
        return any("sm_active_pct" in gpu.values for gpu in board.gpus.values())

    def is_known(board: Board) -> bool:
        reasons = readings.reasons("sm_active_pct")
        return has_value(board) or (len(reasons) >= readings.gpus and not any(map(_may_pass, reasons.values())))

    readings.until(is_known)
    if has_value(readings.board):
        return DoctorCheck("gpm", "GPM", "ok", "SM, tensor and DRAM activity are read")
    missing = next(iter(readings.reasons("sm_active_pct").values()), "no GPU gave a figure")
    is_for_root = "RmProfilingAdminOnly: 1" in read_text(root, "proc/driver/nvidia/params")
    return DoctorCheck("gpm", "GPM", "limited", missing, _OPEN_TO_ALL if is_for_root and os.geteuid() else "")


def _fabric(readings: _Readings) -> DoctorCheck:
    """The NVLink fabric (NVSwitch, NVL72), of each GPU that does not stand well in it, or why there is none."""

    def stands(gpu: GpuBoard) -> str:
        return ", ".join(filter(None, (clean(gpu.text("fabric_state"), 80), clean(gpu.text("fabric_health"), 200))))

    def is_known(board: Board) -> bool:
        return len(board.gpus) >= readings.gpus and all("fabric_state" in gpu.values | gpu.missing for gpu in board.gpus.values())

    readings.until(is_known)
    found = {index: stands(gpu) for index, gpu in readings.board.gpus.items() if "fabric_state" in gpu.values}
    if not found:
        why = next(iter(readings.reasons("fabric_state").values()), "no GPU gave an answer")
        return DoctorCheck("fabric", "fabric", "ok", f"none: {clean(why, 200)}")
    sound = {"completed", f"completed, {HEALTHY}"}
    if sick := [f"GPU {index}: {words}" for index, words in sorted(found.items()) if words not in sound]:
        return DoctorCheck("fabric", "fabric", "limited", "; ".join(sick), _FABRIC_LOG)
    return DoctorCheck("fabric", "fabric", "ok", min(found.values()))


def _may_pass(reason: str) -> bool:
    """The first reading has no interval yet, and a silent driver may answer."""
    return reason == FIRST or reason.startswith(SILENT)


# what /proc gives without privilege, stacks of other processes, the terminal


def host_checks(root: str) -> list[DoctorCheck]:
    """schedstat, pressure, delay accounting, clock, priority, pid namespace, hardware, others' processes, Yama, py-spy."""
    first = [_schedstat(root), _pressure(root), _delays(root), _clock(root), _priority(), _pid_namespace(), _hardware(root)]
    return [*first, *([_processes(root)] if in_initial_pid_namespace() else []), _yama(root), _py_spy()]


def terminal_checks() -> list[DoctorCheck]:
    """Colours and Unicode of the terminal, by the environment."""
    return [_colours(), _unicode()]


def _schedstat(root: str) -> DoctorCheck:
    text = read_text(root, "proc/self/schedstat").split()
    if len(text) == 3 and any(word != "0" for word in text):
        return DoctorCheck("schedstat", "schedstat", "ok", "run-queue delay of every thread, without privilege")
    why = "this kernel keeps no run-queue delay"
    return DoctorCheck("schedstat", "schedstat", "missing", why, "a kernel with CONFIG_SCHED_INFO", required=True)


def _pressure(root: str) -> DoctorCheck:
    if read_text(root, "proc/pressure/cpu"):
        return DoctorCheck("pressure", "pressure", "ok", "stalls of CPU, memory and I/O")
    return DoctorCheck("pressure", "pressure", "limited", "no /proc/pressure", "boot with psi=1")


def _delays(root: str) -> DoctorCheck:
    """Kernels before 5.14 always account, and have no switch for it."""
    if read_text(root, "proc/sys/kernel/task_delayacct").strip() != "0":
        return DoctorCheck("delays", "block I/O delay", "ok", "of every process (DISK%)")
    why = "not measured (DISK%): kernel.task_delayacct is 0"
    return DoctorCheck("delays", "block I/O delay", "limited", why, "sudo sysctl kernel.task_delayacct=1")


def _clock(root: str) -> DoctorCheck:
    """CLOCK_MONOTONIC's resolution and clock source. HPET and ACPI timers are read over a bus, which makes each reading slow."""
    source = read_text(root, "sys/devices/system/clocksource/clocksource0/current_clocksource").strip() or "unknown"
    resolution_ns = time.clock_getres(time.CLOCK_MONOTONIC) * 1e9
    detail = f"{source}, {resolution_ns:.0f} ns"
    if resolution_ns > 1000:
        return DoctorCheck("clock", "clock", "limited", detail, "a kernel with high-resolution timers")
    if source in ("hpet", "acpi_pm", "refined-jiffies"):
        return DoctorCheck("clock", "clock", "limited", f"{detail}: slow to read", "boot with tsc=reliable, if the CPUs' TSCs are in step")
    return DoctorCheck("clock", "clock", "ok", detail)


def _priority() -> DoctorCheck:
    """The priority that the collector's beat would get. A thread asks for it and ends, so that this process keeps its own."""
    reached: list[str] = []
    asking = Thread(target=lambda: reached.append(raise_priority(BEAT)))
    asking.start()
    asking.join()
    if reached[0].startswith("ordinary"):
        return DoctorCheck("priority", "priority", "limited", f"{reached[0]}; frames are late while many processes are busy", "sudo gputop")
    detail = f"{reached[0]}: frames are on time even with busy processes; given up while the collector takes {MOST_SHARE:.0%} of a CPU"
    return DoctorCheck("priority", "priority", "ok", detail)


def _hardware(root: str) -> DoctorCheck:
    """The facts that the stream carries. The bundle holds this text, so interfaces, volumes and servers are not named in it."""
    hardware = read_hardware()
    speeds = sorted({nic.speed_mbit for nic in hardware.nics or () if nic.is_up and nic.speed_mbit}, reverse=True)
    network = "network up to " + speed_words(speeds[0]) if speeds else "no speed of the network"
    kinds = sorted({one.kind for one in hardware.file_systems or ()})
    parts = cpu_words(hardware), network, _rdma(root), ", ".join(kinds)
    return DoctorCheck("hardware", "hardware", "ok", "; ".join(filter(None, parts)))


def _rdma(root: str) -> str:
    """The RDMA ports by driver, and what these do not count; empty without any."""
    ports = Ports(root.rstrip("/") + "/")
    found = ports.read(0)
    ports.close()
    parts = []
    for driver in sorted({port.driver for port in found}):
        own = [port for port in found if port.driver == driver]
        rate = max((port.rate_mbit or 0 for port in own), default=0)
        words = f"{counted(len(own), 'RDMA port')} of {driver or 'an unknown driver'}" + (f" up to {speed_words(rate)}" if rate else "")
        parts.append(words + (", bytes not counted" if all(port.rx_bytes is None for port in own) else ""))
    return ", ".join(parts)


def _pid_namespace() -> DoctorCheck:
    if in_initial_pid_namespace():
        return DoctorCheck("pid-namespace", "pid namespace", "ok", "the machine's own")
    why = "a container's own: the machine's other processes are hidden, and pids from NVML and the probes do not match"
    return DoctorCheck("pid-namespace", "pid namespace", "limited", why, "start the container with --pid=host")


def _processes(root: str) -> DoctorCheck:
    hidden, remedy = hidden_processes(root)
    return DoctorCheck("processes", "processes", "limited" if hidden else "ok", hidden or "everything that /proc has, of all users", remedy)


def _yama(root: str) -> DoctorCheck:
    scope = yama_scope(root)
    if os.geteuid() == 0 and not may_ptrace(root):
        detail = "root without CAP_SYS_PTRACE: no stacks of processes outside this container"
        return DoctorCheck("yama", "Yama", "limited", detail, "start the container with --cap-add SYS_PTRACE")
    if scope == 0 or may_ptrace(root):
        return DoctorCheck("yama", "Yama", "ok", f"ptrace_scope {scope}: stacks can be read")
    remedy = "" if scope == 3 else "sudo sysctl kernel.yama.ptrace_scope=0"
    detail = f"ptrace_scope {scope}: no stacks of processes that gputop did not start" + (", until the next boot" if scope == 3 else "")
    return DoctorCheck("yama", "Yama", "limited", detail, remedy)


def _py_spy() -> DoctorCheck:
    from gputop.stacks.pyspy import binary

    path = binary()
    if path is None or not os.access(path, os.X_OK):
        return DoctorCheck("py-spy", "py-spy", "limited", "Python stacks of 3.8 to 3.14 only, and no native frames", "pip install py-spy")
    return DoctorCheck("py-spy", "py-spy", "ok", path)


def _colours() -> DoctorCheck:
    term, depth = os.environ.get("TERM", ""), os.environ.get("COLORTERM", "")
    if os.environ.get("NO_COLOR"):
        return DoctorCheck("colours", "colours", "ok", "off: NO_COLOR is set")
    if term in ("", "dumb"):
        return DoctorCheck("colours", "colours", "limited", f"TERM is {term or 'not set'}", "export TERM=xterm-256color")
    if depth in ("truecolor", "24bit") or "direct" in term:
        return DoctorCheck("colours", "colours", "ok", f"{term}, 24-bit")
    if "256color" in term:
        return DoctorCheck("colours", "colours", "ok", f"{term}, 256 colours")
    return DoctorCheck("colours", "colours", "limited", f"{term}: 16 colours or fewer", "export TERM=xterm-256color")


def _unicode() -> DoctorCheck:
    if takes_unicode():
        return DoctorCheck("unicode", "Unicode", "ok", "UTF-8")
    return DoctorCheck(
        "unicode", "Unicode", "limited", f"the locale is {charset()}, so ASCII is drawn", "export LC_ALL=C.UTF-8, or --no-ascii"
    )


# what the eBPF probes need, and whether they load


def probe_checks(root: str) -> list[DoctorCheck]:
    """Capabilities, bcc, BTF, tracefs, perf_event_paranoid, sampling (which needs no probes), and loading the probes for a moment."""
    btf = _btf(root)
    return [_capabilities(root), _bcc(root), btf, _tracefs(root, btf.state == "ok"), _paranoid(root), _sampling(root), _load(root)]


def _capabilities(root: str) -> DoctorCheck:
    if helper.may_load(capabilities(root)):
        return DoctorCheck("capabilities", "capabilities", "ok", "CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN")
    return DoctorCheck("capabilities", "capabilities", "missing", "no CAP_BPF and CAP_PERFMON: /proc only", helper.privilege(root))


def _bcc(root: str) -> DoctorCheck:
    """The bcc that the loader would import, found by the loader's own search."""
    python = find_python()
    if not python:
        return DoctorCheck("bcc", "bcc", "missing", "there is no system Python", helper.install_bcc(root))
    command = [python, "-I", "-c", _FIND_BCC, os.path.abspath(loader.__file__)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBES_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return DoctorCheck("bcc", "bcc", "missing", f"importing it took more than {_PROBES_PATIENCE_S:.0f} s", helper.install_bcc(root))
    if done.returncode == 0:
        version, _, path = done.stdout.strip().partition(" ")
        return DoctorCheck("bcc", "bcc", "ok", f"{version} in {os.path.dirname(path)}")
    why = (done.stderr.strip().splitlines() or ["it cannot be imported"])[-1].removeprefix("Failure: ")
    return DoctorCheck("bcc", "bcc", "missing", why, helper.install_bcc(root))


def _btf(root: str) -> DoctorCheck:
    started = time.monotonic()
    try:
        task_layout(os.path.join(root, "sys/kernel/btf/vmlinux"))
    except BtfError as error:
        return DoctorCheck("btf", "BTF", "limited", f"{error}: plain tracepoints, which cost more", "a kernel with CONFIG_DEBUG_INFO_BTF")
    return DoctorCheck("btf", "BTF", "ok", f"read in {(time.monotonic() - started) * 1e3:.0f} ms")


def _tracefs(root: str, have_btf: bool) -> DoctorCheck:
    """Plain tracepoints need it, which are used only without BTF."""
    for folder in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
        if os.path.isdir(os.path.join(root, folder, "events/sched")):
            return DoctorCheck("tracefs", "tracefs", "ok", "/" + folder)
    detail = "not mounted, or not readable by this user"
    if have_btf:
        return DoctorCheck("tracefs", "tracefs", "ok", f"{detail}; not needed with BTF")
    return DoctorCheck("tracefs", "tracefs", "missing", detail, loader.MOUNT_TRACEFS)


def _paranoid(root: str) -> DoctorCheck:
    """Check perf_event_paranoid: before Linux 6.6 uprobes are perf events, which this setting can restrict to CAP_SYS_ADMIN."""
    level = read_text(root, "proc/sys/kernel/perf_event_paranoid").strip() or "unknown"
    if capabilities(root) >> CAP_SYS_ADMIN & 1 or helper.may_load(capabilities(root)):
        return DoctorCheck("perf-event-paranoid", "perf_event_paranoid", "ok", f"{level}, and gputop is privileged")
    return DoctorCheck("perf-event-paranoid", "perf_event_paranoid", "limited", f"{level}: probes need privilege", helper.privilege(root))


def _sampling(root: str) -> DoctorCheck:
    """perf's samples of what the trainers' main threads do on a CPU."""
    try:
        perf.PerfSource(Settings(root=root)).open()
        perf.check()
    except Unavailable as why:
        return DoctorCheck("sampling", "sampling", "limited", why.reason, why.remedy)
    return DoctorCheck("sampling", "sampling", "ok", "spinning waits and launches are seen without probes, too")


def _load(root: str) -> DoctorCheck:
    """Load the probes as the collector does, and unload them."""
    source = EbpfSource(Settings(root=root))
    try:
        state = _wait(source, source.open())
    except Unavailable as why:
        return DoctorCheck("probes", "probes", "missing", why.reason, why.remedy)
    finally:
        source.close()
    if state.state == "unavailable":
        return DoctorCheck("probes", "probes", "missing", state.reason, "" if state.remedy == "gputop doctor" else state.remedy)
    ready = f"loaded and attached in {state.detail.get('ready_ms', '?')} ms, {state.detail.get('tracepoints', '')} tracepoints"
    return DoctorCheck("probes", "probes", "ok" if state.state == "ok" else "limited", state.reason or ready, state.remedy)


def _wait(source: EbpfSource, state: SourceState) -> SourceState:
    """The source's last state, once it is ready or the patience ends."""
    deadline = time.monotonic() + _PROBES_PATIENCE_S
    seq = 0
    while not source.ready and time.monotonic() < deadline:
        time.sleep(0.02)
        beat = Beat(time.monotonic_ns(), seq, key=True)
        source.read(beat, Frame(seq, beat.t_ns, key=True))
        state, seq = beat.changed[-1], seq + 1
    return state
