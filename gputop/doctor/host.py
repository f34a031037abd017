"""What /proc gives without privilege, what reading other processes' stacks needs, and what the terminal can draw."""

from __future__ import annotations

import os
import time
from threading import Thread

from gputop.doctor import Check
from gputop.model.hardware import cpu_words, speed_words
from gputop.sources.files import read_text
from gputop.sources.procfs.source import hidden_processes
from gputop.stacks.permission import yama_scope
from gputop.system.console import charset, takes_unicode
from gputop.system.priority import BEAT, MOST_SHARE, raise_priority
from gputop.system.privilege import in_initial_pid_namespace, may_ptrace


def checks(root: str) -> list[Check]:
    """schedstat, pressure, delay accounting, clock, priority, pid namespace, hardware, others' processes, Yama, py-spy."""
    first = [_schedstat(root), _pressure(root), _delays(root), _clock(root), _priority(), _pid_namespace(), _hardware()]
    return [*first, *([_processes(root)] if in_initial_pid_namespace() else []), _yama(root), _py_spy()]


def terminal_checks() -> list[Check]:
    """Colours and Unicode, by what the environment says of the terminal."""
    return [_colours(), _unicode()]


def _schedstat(root: str) -> Check:
    text = read_text(root, "proc/self/schedstat").split()
    if len(text) == 3 and any(word != "0" for word in text):
        return Check("schedstat", "schedstat", "ok", "run-queue delay of every thread, without privilege")
    why = "this kernel keeps no run-queue delay"
    return Check("schedstat", "schedstat", "missing", why, "a kernel with CONFIG_SCHED_INFO", required=True)


def _pressure(root: str) -> Check:
    if read_text(root, "proc/pressure/cpu"):
        return Check("pressure", "pressure", "ok", "stalls of CPU, memory and I/O")
    return Check("pressure", "pressure", "limited", "no /proc/pressure", "boot with psi=1")


def _delays(root: str) -> Check:
    """Kernels before 5.14 always account, and have no switch for it."""
    if read_text(root, "proc/sys/kernel/task_delayacct").strip() != "0":
        return Check("delays", "block I/O delay", "ok", "of every process (DISK%)")
    why = "not measured (DISK%): kernel.task_delayacct is 0"
    return Check("delays", "block I/O delay", "limited", why, "sudo sysctl kernel.task_delayacct=1")


def _clock(root: str) -> Check:
    """CLOCK_MONOTONIC's resolution and clock source. HPET and ACPI timers are read over a bus, which makes each reading slow."""
    source = read_text(root, "sys/devices/system/clocksource/clocksource0/current_clocksource").strip() or "unknown"
    resolution_ns = time.clock_getres(time.CLOCK_MONOTONIC) * 1e9
    detail = f"{source}, {resolution_ns:.0f} ns"
    if resolution_ns > 1000:
        return Check("clock", "clock", "limited", detail, "a kernel with high-resolution timers")
    if source in ("hpet", "acpi_pm", "refined-jiffies"):
        return Check("clock", "clock", "limited", f"{detail}: slow to read", "boot with tsc=reliable, if the CPUs' TSCs are in step")
    return Check("clock", "clock", "ok", detail)


def _priority() -> Check:
    """The priority that the collector's beat would get. A thread asks for it and ends, so that this process keeps its own."""
    reached: list[str] = []
    asking = Thread(target=lambda: reached.append(raise_priority(BEAT)))
    asking.start()
    asking.join()
    if reached[0].startswith("ordinary"):
        return Check("priority", "priority", "limited", f"{reached[0]}; beside many busy processes frames come late", "sudo gputop")
    detail = f"{reached[0]}: frames come in time beside busy processes; given up while the collector takes {MOST_SHARE:.0%} of a CPU"
    return Check("priority", "priority", "ok", detail)


def _hardware() -> Check:
    """The facts that the stream carries. The bundle holds this text, so interfaces, volumes and servers are not named in it."""
    from gputop.sources.hardware import read_hardware

    *_, hardware = read_hardware()
    if hardware.threads is None:
        return Check("hardware", "hardware", "limited", hardware.missing["threads"], "install gputop again with its dependencies")
    speeds = sorted({nic.speed_mbit for nic in hardware.nics or () if nic.is_up and nic.speed_mbit}, reverse=True)
    network = "network up to " + speed_words(speeds[0]) if speeds else "no speed of the network"
    kinds = sorted({one.kind for one in hardware.file_systems or ()})
    return Check("hardware", "hardware", "ok", "; ".join(filter(None, (cpu_words(hardware), network, ", ".join(kinds)))))


def _pid_namespace() -> Check:
    if in_initial_pid_namespace():
        return Check("pid-namespace", "pid namespace", "ok", "the machine's own")
    why = "a container's own: the machine's other processes are hidden, and pids from NVML and the probes do not match"
    return Check("pid-namespace", "pid namespace", "limited", why, "start the container with --pid=host")


def _processes(root: str) -> Check:
    hidden, remedy = hidden_processes(root)
    return Check("processes", "processes", "limited" if hidden else "ok", hidden or "everything that /proc has, of all users", remedy)


def _yama(root: str) -> Check:
    scope = yama_scope(root)
    if os.geteuid() == 0 and not may_ptrace(root):
        detail = "root without CAP_SYS_PTRACE: no stacks of processes outside this container"
        return Check("yama", "Yama", "limited", detail, "start the container with --cap-add SYS_PTRACE")
    if scope == 0 or may_ptrace(root):
        return Check("yama", "Yama", "ok", f"ptrace_scope {scope}: stacks can be read")
    remedy = "" if scope == 3 else "sudo sysctl kernel.yama.ptrace_scope=0"
    detail = f"ptrace_scope {scope}: no stacks of processes that gputop did not start" + (", until the next boot" if scope == 3 else "")
    return Check("yama", "Yama", "limited", detail, remedy)


def _py_spy() -> Check:
    from gputop.stacks.pyspy import binary

    path = binary()
    if path is None or not os.access(path, os.X_OK):
        return Check("py-spy", "py-spy", "limited", "Python stacks of 3.8 to 3.14 only, and no native frames", "pip install py-spy")
    return Check("py-spy", "py-spy", "ok", path)


def _colours() -> Check:
    term, depth = os.environ.get("TERM", ""), os.environ.get("COLORTERM", "")
    if os.environ.get("NO_COLOR"):
        return Check("colours", "colours", "ok", "off: NO_COLOR is set")
    if term in ("", "dumb"):
        return Check("colours", "colours", "limited", f"TERM is {term or 'not set'}", "export TERM=xterm-256color")
    if depth in ("truecolor", "24bit") or "direct" in term:
        return Check("colours", "colours", "ok", f"{term}, 24-bit")
    if "256color" in term:
        return Check("colours", "colours", "ok", f"{term}, 256 colours")
    return Check("colours", "colours", "limited", f"{term}: 16 colours or fewer", "export TERM=xterm-256color")


def _unicode() -> Check:
    if takes_unicode():
        return Check("unicode", "Unicode", "ok", "UTF-8")
    return Check("unicode", "Unicode", "limited", f"the locale is {charset()}, so ASCII is drawn", "export LC_ALL=C.UTF-8, or --no-ascii")
