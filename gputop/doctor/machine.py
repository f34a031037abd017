"""Facts of kernel, BTF, bcc, terminal and limits, as lines of text for a bug report."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator

from gputop.sources import rights
from gputop.sources.ebpf import access

_SETTINGS = (
    "kernel/perf_event_paranoid", "kernel/unprivileged_bpf_disabled", "kernel/bpf_stats_enabled", "kernel/yama/ptrace_scope",
    "kernel/kptr_restrict", "kernel/sched_schedstats", "kernel/task_delayacct", "kernel/pid_max", "net/core/bpf_jit_enable",
    "fs/pipe-user-pages-soft",
)  # fmt: skip
"""Under /proc/sys: what decides which of our readings the kernel allows."""
_VARIABLES = ("TERM", "COLORTERM", "TERM_PROGRAM", "LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR", "TEXTUAL_COLOR_SYSTEM")
_PRESENT = ("TMUX", "STY", "SSH_CONNECTION", "KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID", "VIRTUAL_ENV", "CONDA_PREFIX")


def facts(root: str = "/") -> str:
    """A line a fact: name, then what was read, or that it is absent."""
    return "".join(f"{name:<34}{value}\n" for name, value in (*_kernel(root), *_settings(root), *_hardware(root), *_terminal()))


def _kernel(root: str) -> Iterator[tuple[str, object]]:
    yield "kernel", platform.release()
    yield "architecture", platform.machine()
    yield "capabilities (effective)", f"{rights.capabilities(root):#x}"
    yield "uid is 0", os.geteuid() == 0
    yield "in a container", rights.in_container(root)
    yield "initial pid namespace", rights.in_initial_pid_namespace()
    yield "lockdown", access.lockdown(root)
    yield "security modules", rights.read_text(root, "sys/kernel/security/lsm").strip() or "cannot be read"
    yield "/sys/kernel/btf/vmlinux", _size(root, "sys/kernel/btf/vmlinux")
    for folder in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
        yield f"/{folder}", _listed(root, f"{folder}/events/sched")
    yield "cgroups", "v2" if os.path.exists(os.path.join(root, "sys/fs/cgroup/cgroup.controllers")) else "v1, or none"


def _settings(root: str) -> Iterator[tuple[str, object]]:
    for name in _SETTINGS:
        yield name.replace("/", "."), rights.read_text(root, f"proc/sys/{name}").strip() or "absent"
    for line in rights.read_text(root, "proc/self/limits").splitlines():
        if line.startswith(("Max locked memory", "Max open files")):
            yield line[:26].strip(), " ".join(line[26:].split())


def _hardware(root: str) -> Iterator[tuple[str, object]]:
    lines = (line.partition(":") for line in rights.read_text(root, "proc/cpuinfo").splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines}
    arm = ", ".join(f"{name} {said[name]}" for name in ("CPU implementer", "CPU part") if name in said)
    yield "processor", said.get("model name") or arm or "cannot be read"
    yield "CPUs", f"{os.cpu_count()}, ours {len(os.sched_getaffinity(0))}"
    yield "memory", rights.read_text(root, "proc/meminfo").partition("\n")[0].partition(":")[2].strip()
    yield "NVIDIA devices", sum(name.removeprefix("nvidia").isdigit() for name in _names(root, "dev")) or "none"
    yield "NVIDIA driver", rights.read_text(root, "proc/driver/nvidia/version").partition("\n")[0] or "none"
    yield "load", rights.read_text(root, "proc/loadavg").strip()


def _terminal() -> Iterator[tuple[str, object]]:
    size = shutil.get_terminal_size()
    yield "terminal", f"{size.columns}x{size.lines}, in {sys.stdin.isatty()}, out {sys.stdout.isatty()}, {sys.stdout.encoding}"
    for name in _VARIABLES:
        yield name, os.environ.get(name, "not set")
    for name in _PRESENT:
        yield name, "set" if name in os.environ else "not set"


def _size(root: str, path: str) -> str:
    try:
        return f"{os.stat(os.path.join(root, path)).st_size} bytes"
    except OSError as error:
        return str(error.strerror)


def _listed(root: str, path: str) -> str:
    try:
        return f"{len(os.listdir(os.path.join(root, path)))} events of sched"
    except OSError as error:
        return str(error.strerror)


def _names(root: str, path: str) -> list[str]:
    try:
        return os.listdir(os.path.join(root, path))
    except OSError:
        return []
