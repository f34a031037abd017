"""What the eBPF probes need, and whether they load."""

from __future__ import annotations

import os
import subprocess
import time

from gputop.doctor import Check
from gputop.model.frame import Frame, SourceState
from gputop.sources import Beat, Settings, Unavailable, perf
from gputop.sources.ebpf import helper, loader
from gputop.sources.ebpf.btf import BtfError, task_layout
from gputop.sources.ebpf.helper import find_python
from gputop.sources.ebpf.source import EbpfSource
from gputop.sources.files import read_text
from gputop.system.privilege import CAP_SYS_ADMIN, capabilities

_PATIENCE_S = 15.0  # s for bcc to be imported, and for the probes to load; a slow machine took 6
_FIND_BCC = "import runpy, sys; m = runpy.run_path(sys.argv[1]); b = m['import_bcc'](); print(b.__version__, b.__file__)"


def checks(root: str) -> list[Check]:
    """Capabilities, bcc, BTF, tracefs, perf_event_paranoid, sampling (which needs no probes), and loading the probes for a moment."""
    btf = _btf(root)
    return [_capabilities(root), _bcc(root), btf, _tracefs(root, btf.state == "ok"), _paranoid(root), _sampling(root), _load(root)]


def _capabilities(root: str) -> Check:
    if helper.may_load(capabilities(root)):
        return Check("capabilities", "capabilities", "ok", "CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN")
    return Check("capabilities", "capabilities", "missing", "no CAP_BPF and CAP_PERFMON: /proc only", helper.privilege(root))


def _bcc(root: str) -> Check:
    """The bcc that the loader would import, found by the loader's own search."""
    python = find_python()
    if not python:
        return Check("bcc", "bcc", "missing", "there is no system Python", helper.install_bcc(root))
    command = [python, "-I", "-c", _FIND_BCC, os.path.abspath(loader.__file__)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        return Check("bcc", "bcc", "missing", f"importing it took more than {_PATIENCE_S:.0f} s", helper.install_bcc(root))
    if done.returncode == 0:
        version, _, path = done.stdout.strip().partition(" ")
        return Check("bcc", "bcc", "ok", f"{version} in {os.path.dirname(path)}")
    why = (done.stderr.strip().splitlines() or ["it cannot be imported"])[-1].removeprefix("Failure: ")
    return Check("bcc", "bcc", "missing", why, helper.install_bcc(root))


def _btf(root: str) -> Check:
    started = time.monotonic()
    try:
        task_layout(os.path.join(root, "sys/kernel/btf/vmlinux"))
    except BtfError as error:
        return Check("btf", "BTF", "limited", f"{error}: plain tracepoints, which cost more", "a kernel with CONFIG_DEBUG_INFO_BTF")
    return Check("btf", "BTF", "ok", f"read in {(time.monotonic() - started) * 1e3:.0f} ms")


def _tracefs(root: str, have_btf: bool) -> Check:
    """Plain tracepoints need it, which are used only without BTF."""
    for folder in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
        if os.path.isdir(os.path.join(root, folder, "events/sched")):
            return Check("tracefs", "tracefs", "ok", "/" + folder)
    detail = "not mounted, or not readable by this user"
    if have_btf:
        return Check("tracefs", "tracefs", "ok", f"{detail}; not needed with BTF")
    return Check("tracefs", "tracefs", "missing", detail, loader.MOUNT_TRACEFS)


def _paranoid(root: str) -> Check:
    """Before Linux 6.6 uprobes are perf events, which this setting keeps for CAP_SYS_ADMIN."""
    level = read_text(root, "proc/sys/kernel/perf_event_paranoid").strip() or "unknown"
    if capabilities(root) >> CAP_SYS_ADMIN & 1 or helper.may_load(capabilities(root)):
        return Check("perf-event-paranoid", "perf_event_paranoid", "ok", f"{level}, and gputop is privileged")
    return Check("perf-event-paranoid", "perf_event_paranoid", "limited", f"{level}: probes need privilege", helper.privilege(root))


def _sampling(root: str) -> Check:
    """perf's samples of what the trainers' main threads do on a CPU."""
    try:
        perf.PerfSource(Settings(root=root)).open()
        perf.check()
    except Unavailable as why:
        return Check("sampling", "sampling", "limited", why.reason, why.remedy)
    return Check("sampling", "sampling", "ok", "spinning waits and launches are seen without probes, too")


def _load(root: str) -> Check:
    """Load the probes as the collector does, and unload them."""
    source = EbpfSource(Settings(root=root))
    try:
        state = _wait(source, source.open())
    except Unavailable as why:
        return Check("probes", "probes", "missing", why.reason, why.remedy)
    finally:
        source.close()
    if state.state == "unavailable":
        return Check("probes", "probes", "missing", state.reason, "" if state.remedy == "gputop doctor" else state.remedy)
    ready = f"loaded and attached in {state.detail.get('ready_ms', '?')} ms, {state.detail.get('tracepoints', '')} tracepoints"
    return Check("probes", "probes", "ok" if state.state == "ok" else "limited", state.reason or ready, state.remedy)


def _wait(source: EbpfSource, state: SourceState) -> SourceState:
    """The source's last state, once it is ready or the patience ends."""
    deadline = time.monotonic() + _PATIENCE_S
    seq = 0
    while not source.ready and time.monotonic() < deadline:
        time.sleep(0.02)
        beat = Beat(time.monotonic_ns(), seq, key=True)
        source.read(beat, Frame(seq, beat.t_ns, key=True))
        state, seq = beat.changed[-1], seq + 1
    return state
