"""One file for a bug report: the doctor's findings, facts of the machine, and ten seconds of frames. Names are hashed unless the user
wants them kept."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct, structs

from gputop.doctor.checks import Bundle, Part
from gputop.doctor.mask import Mask
from gputop.model.board import Board
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.sources import simulated
from gputop.sources.ebpf import helper
from gputop.sources.files import read_text
from gputop.system import config, crash, screenstate
from gputop.system.errors import UserError
from gputop.system.output import create
from gputop.system.privilege import as_invoking_user, capabilities, in_container, in_initial_pid_namespace
from gputop.system.program import argv_of, report
from gputop.system.text import clean

SECONDS = 10.0  # of recording in the bundle
_PATIENCE_S = 60.0  # s that the recorder may take for them
_SETTINGS = (  # under /proc/sys: they decide what the kernel lets gputop read
    "kernel/perf_event_paranoid", "kernel/unprivileged_bpf_disabled", "kernel/bpf_stats_enabled", "kernel/yama/ptrace_scope",
    "kernel/kptr_restrict", "kernel/sched_schedstats", "kernel/task_delayacct", "kernel/pid_max", "net/core/bpf_jit_enable",
    "fs/pipe-user-pages-soft",
)  # fmt: skip
_VARIABLES = ("TERM", "COLORTERM", "TERM_PROGRAM", "LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR", "TEXTUAL_COLOR_SYSTEM")  # with their values
_PRESENT = ("TMUX", "STY", "SSH_CONNECTION", "KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID", "VIRTUAL_ENV", "CONDA_PREFIX")  # set or not
_MASKED = """Hashed, by a key that is thrown away: names of this machine, its users, folders and processes, and command lines.
Left out: texts of config.toml, all stacks. gputop doctor --bundle --with-names keeps them all.
"""
_NAMED = "Names and command lines of all users' processes are in it as they were read (--with-names).\n"


class BundleFile(Struct, frozen=True):
    """A file in the bundle."""

    name: str
    about: str
    data: bytes


def write(path: str, findings: dict[str, str], with_names: bool) -> Bundle:
    """Write the bundle, mode 0600; returns what is in it. ``findings`` are the doctor's own files, name -> text. Raises UserError."""
    with as_invoking_user():
        fd = create(path)
    with os.fdopen(fd, "wb") as file:
        try:
            parts = list(_parts(findings, with_names))
            _pack(file, [BundleFile("README.txt", "what is inside", _contents(parts, with_names).encode()), *parts])
        except BaseException:
            with as_invoking_user():
                os.unlink(path)
            raise
    return Bundle(clean(path), [Part(part.name, len(part.data), part.about) for part in parts])


def _parts(findings: dict[str, str], with_names: bool) -> Iterator[BundleFile]:
    """The files but README.txt; texts masked by the same key as the frames."""
    mask = Mask()
    with tempfile.TemporaryDirectory(prefix="gputop-") as folder:
        recorded = _Recorded(folder, None if with_names else mask)
        errors = "\n".join(filter(None, (crash.read_log().strip(), recorded.words.strip())))
        texts = [
            ("version.txt", "gputop --version", report()),
            *((name, f"gputop doctor, as {'JSON' if name.endswith('json') else 'text'}", text) for name, text in findings.items()),
            ("machine.txt", "kernel, BTF, limits, hardware, terminal", facts()),
            ("config.json", "settings, and how the screen was left", _configuration(with_names)),
            ("sources.json", "each source with its reason, and gputop's own cost", recorded.summary()),
            ("errors.txt", "gputop's last own errors; they may quote its input", errors or "none"),
        ]
        for name, about, text in texts:
            yield BundleFile(name, about, (text if with_names else mask.message(text)).encode())
        if data := recorded.data():
            yield BundleFile("recording.gputop", f"{SECONDS:.0f} seconds: gputop replay recording.gputop", data)


class _Recorded:
    """Ten seconds that `gputop record` recorded, masked unless ``mask`` is None."""

    def __init__(self, folder: str, mask: Mask | None) -> None:
        raw, masked = os.path.join(folder, "raw"), os.path.join(folder, "masked")
        self.words = _record(raw)
        self._path = raw
        self._board = Board()
        self._lateness_ns: list[int] = []
        if os.path.exists(raw):
            self._read(raw, masked, mask)

    def summary(self) -> str:
        """Sources, own cost and lateness of the frames as JSON."""
        board, cost = self._board, self._board.cost
        span_s = max(1, board.t_ns - board.header.t_ns) / 1e9
        late = sorted(self._lateness_ns)
        summed = {
            "sources": [structs.asdict(source) for source in board.sources.values()],
            "cost": structs.asdict(cost) if cost else None, "collector_cpu_pct": round(cost.cpu_ns / span_s / 1e7, 2) if cost else None,
            "frames": len(late), "seconds": round(span_s, 2), "late_ns_p50": late[len(late) // 2] if late else None,
            "late_ns_max": late[-1] if late else None,
        }  # fmt: skip
        return json.dumps(summed, indent=2) + "\n"

    def data(self) -> bytes:
        """The recording's bytes, empty if it could not be made."""
        return Path(self._path).read_bytes() if os.path.exists(self._path) else b""

    def _read(self, raw: str, masked: str, mask: Mask | None) -> None:
        try:
            with Recording(raw) as recording:
                self._board = Board(header=recording.header)
                writer = None if mask is None else Writer(masked, mask.header(recording.header))
                for frame in recording.frames():
                    self._board.fold(frame)
                    self._lateness_ns.append(frame.late_ns)
                    if writer is not None and mask is not None:
                        writer.add(mask.frame(frame))
                if writer is not None:
                    writer.close()
        except UserError as error:
            self.words += str(error)
        self._path = raw if mask is None else masked


def _record(path: str) -> str:
    """Record with the default settings, for the user's may be faulty; gives the error, empty if it worked."""
    command = argv_of("gputop", "record", "-o", path, "--duration", str(SECONDS), "--no-auto-stacks", "--no-auto-trace")
    # The folder belongs to root: without SUDO_UID the recorder stays root.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(config.PREFIX) or name == simulated.VARIABLE}
    environment = {name: value for name, value in kept.items() if name != "SUDO_UID"} | {"GPUTOP_CONFIG": os.devnull}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"gputop record --duration {SECONDS:.0f} did not end within {_PATIENCE_S:.0f} s"
    return done.stdout + done.stderr if done.returncode else ""


def _configuration(with_names: bool) -> str:
    """Numbers, switches and the key map; other texts are left out unless ``with_names``."""
    try:
        values = config.settings()
    except UserError as error:
        said: dict[str, object] = {"cannot be read": str(error)}
    else:
        said = {name: one.value if with_names or _is_harmless(name, one.value) else "(a text, left out)" for name, one in values.items()}
    return json.dumps({"config": said, "screen": structs.asdict(screenstate.load())}, indent=2)


def _is_harmless(name: str, value: object) -> bool:
    """True if a setting holds no name: a number, a switch or a key."""
    return isinstance(value, (bool, int, float)) or name.startswith(f"{config.KEYS}.")


def _contents(parts: list[BundleFile], with_names: bool) -> str:
    listed = "".join(f"  {part.name:<18}{len(part.data):>8} bytes  {part.about}\n" for part in parts)
    return f"A bug report by gputop doctor --bundle, {time.strftime('%Y-%m-%d %H:%M %z')}.\n\n{listed}\n{_NAMED if with_names else _MASKED}"


def _pack(file: io.BufferedWriter, parts: list[BundleFile]) -> None:
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for part in parts:
            entry = tarfile.TarInfo(f"gputop-bundle/{part.name}")
            entry.size, entry.mode, entry.mtime = len(part.data), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(part.data))


def facts(root: str = "/") -> str:
    """Kernel, BTF, settings, hardware and terminal, one fact a line: name and value, or that it is absent."""
    return "".join(f"{name:<34}{value}\n" for name, value in (*_kernel(root), *_settings(root), *_hardware(root), *_terminal()))


def _kernel(root: str) -> Iterator[tuple[str, object]]:
    yield "kernel", platform.release()
    yield "architecture", platform.machine()
    yield "capabilities (effective)", f"{capabilities(root):#x}"
    yield "uid is 0", os.geteuid() == 0
    yield "in a container", in_container(root)
    yield "initial pid namespace", in_initial_pid_namespace()
    yield "lockdown", helper.lockdown(root)
    yield "security modules", read_text(root, "sys/kernel/security/lsm").strip() or "cannot be read"
    yield "/sys/kernel/btf/vmlinux", _or_error(lambda path: f"{os.stat(path).st_size} bytes", root, "sys/kernel/btf/vmlinux")
    for folder in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
        yield f"/{folder}", _or_error(lambda path: f"{len(os.listdir(path))} events of sched", root, f"{folder}/events/sched")
    yield "cgroups", "v2" if os.path.exists(os.path.join(root, "sys/fs/cgroup/cgroup.controllers")) else "v1, or none"


def _settings(root: str) -> Iterator[tuple[str, object]]:
    for name in _SETTINGS:
        yield name.replace("/", "."), read_text(root, f"proc/sys/{name}").strip() or "absent"
    for line in read_text(root, "proc/self/limits").splitlines():
        if line.startswith(("Max locked memory", "Max open files")):
            yield line[:26].strip(), " ".join(line[26:].split())


def _hardware(root: str) -> Iterator[tuple[str, object]]:
    lines = (line.partition(":") for line in read_text(root, "proc/cpuinfo").splitlines())
    cpu = {name.strip(): value.strip() for name, _, value in lines}
    arm = ", ".join(f"{name} {cpu[name]}" for name in ("CPU implementer", "CPU part") if name in cpu)
    yield "processor", cpu.get("model name") or arm or "cannot be read"
    yield "CPUs", f"{os.cpu_count()}, allowed for gputop {len(os.sched_getaffinity(0))}"
    yield "memory", read_text(root, "proc/meminfo").partition("\n")[0].partition(":")[2].strip()
    yield "NVIDIA devices", sum(path.name[6:].isdigit() for path in Path(root, "dev").glob("nvidia*")) or "none"
    yield "NVIDIA driver", read_text(root, "proc/driver/nvidia/version").partition("\n")[0] or "none"
    yield "load", read_text(root, "proc/loadavg").strip()


def _terminal() -> Iterator[tuple[str, object]]:
    size = shutil.get_terminal_size()
    yield "terminal", f"{size.columns}x{size.lines}, in {sys.stdin.isatty()}, out {sys.stdout.isatty()}, {sys.stdout.encoding}"
    for name in _VARIABLES:
        yield name, os.environ.get(name, "not set")
    for name in _PRESENT:
        yield name, "set" if name in os.environ else "not set"


def _or_error(look: Callable[[str], str], root: str, path: str) -> str:
    """Result of ``look`` for a path, or the system's error."""
    try:
        return look(os.path.join(root, path))
    except OSError as error:
        return str(error.strerror)
