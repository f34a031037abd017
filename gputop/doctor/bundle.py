"""One file for a bug report: what gputop found here, and ten seconds of what it saw. Nobody is named in it unless that is asked for."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from gputop.doctor.machine import facts
from gputop.doctor.mask import Mask
from gputop.model.board import Board
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.sources.ebpf.privilege import as_invoking_user
from gputop.system import config, crash
from gputop.system.errors import UserError
from gputop.system.output import create, unused
from gputop.system.program import argv_of, report

SECONDS = 10.0
_PATIENCE_S = 60.0
_MASKED = """Left out: names of this machine, its users and their folders, and what processes are called and were told; each is a
hash that means something within this file only; texts of config.toml; all stacks. gputop doctor --bundle --with-names keeps them.
"""
_NAMED = "Names and command lines of everybody's processes are in it as they were read (--with-names).\n"


class Part(Struct, frozen=True):
    """A file in the bundle."""

    name: str
    about: str
    data: bytes


def default_path() -> str:
    """In this folder, by the time of day."""
    return unused(time.strftime("gputop-bundle-%Y%m%d-%H%M%S"), ".tar.gz")


def write(path: str, findings: dict[str, str], with_names: bool) -> list[Part]:
    """Write the bundle, mode 0600, and give its parts. ``findings`` are the doctor's own files. UserError where it cannot be made."""
    with as_invoking_user():
        fd = create(path)
    with os.fdopen(fd, "wb") as file:
        try:
            parts = list(_parts(findings, with_names))
            _pack(file, [Part("README.txt", "what is inside", _contents(parts, with_names).encode()), *parts])
        except BaseException:
            with as_invoking_user():
                os.unlink(path)
            raise
    return parts


def _parts(findings: dict[str, str], with_names: bool) -> Iterator[Part]:
    """Text is masked as the frames are."""
    mask = Mask()
    with tempfile.TemporaryDirectory(prefix="gputop-") as folder:
        recorded = _Recorded(folder, None if with_names else mask)
        texts = [
            ("version.txt", "gputop --version", report()),
            *((name, f"gputop doctor, as {'JSON' if name.endswith('json') else 'text'}", text) for name, text in findings.items()),
            ("machine.txt", "kernel, BTF, limits, hardware, terminal", facts()),
            ("config.json", "config.toml, and the screen as it was left", _configuration(with_names)),
            ("sources.json", "each source with its reason, and what gputop itself cost", recorded.summary()),
            ("errors.txt", "gputop's last own errors; they may quote what it had read", _errors(recorded.words)),
        ]
        for name, about, text in texts:
            yield Part(name, about, (text if with_names else mask.told(text)).encode())
        if data := recorded.data():
            yield Part("recording.gputop", f"{SECONDS:.0f} seconds: gputop replay recording.gputop", data)


def _errors(words: str) -> str:
    return "\n".join(part for part in (crash.read_log().strip(), words.strip()) if part) or "none"


class _Recorded:
    """What `gputop record` saw, masked where there is a ``mask``."""

    def __init__(self, folder: str, mask: Mask | None) -> None:
        raw, masked = os.path.join(folder, "raw"), os.path.join(folder, "masked")
        self.words = _record(raw, folder)
        self._path = raw
        self._board = Board()
        self._lateness_ns: list[int] = []
        if os.path.exists(raw):
            self._read(raw, masked, mask)

    def summary(self) -> str:
        """Sources, cost and punctuality as JSON."""
        board, cost = self._board, self._board.cost
        span_s = max(1, board.t_ns - board.header.t_ns) / 1e9
        late = sorted(self._lateness_ns)
        cost_of = {name: getattr(cost, name) for name in cost.__struct_fields__} if cost else None
        said = {
            "sources": [{name: getattr(source, name) for name in source.__struct_fields__} for source in board.sources.values()],
            "cost": cost_of, "collector_cpu_pct": round(cost.cpu_ns / span_s / 1e7, 2) if cost else None,
            "frames": len(late), "seconds": round(span_s, 2), "late_ns_p50": late[len(late) // 2] if late else None,
            "late_ns_max": late[-1] if late else None,
        }  # fmt: skip
        return json.dumps(said, indent=2) + "\n"

    def data(self) -> bytes:
        """The recording's bytes; none where it could not be made."""
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


def _record(path: str, folder: str) -> str:
    """Record with everybody's defaults, so that a faulty config.toml does not stand in the way; what went wrong, or nothing."""
    command = argv_of("gputop", "record", "-o", path, "--duration", str(SECONDS), "--no-auto-stacks")
    # Without SUDO_UID it stays root, whose the folder is.
    environment = {name: value for name, value in os.environ.items() if name != "SUDO_UID"} | {"XDG_CONFIG_HOME": folder}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"gputop record --duration {SECONDS:.0f} did not end within {_PATIENCE_S:.0f} s"
    return done.stdout + done.stderr if done.returncode else ""


def _configuration(with_names: bool) -> str:
    """Numbers, switches and the key map; of other texts only that they are there."""
    try:
        said = {name: _value(value, with_names) for name, value in config.load().items()}
    except UserError as error:
        said = {"cannot be read": str(error)}
    screen = config.load_screen()
    return json.dumps({"config": said, "screen": {name: getattr(screen, name) for name in screen.__struct_fields__}}, indent=2)


def _value(value: object, with_names: bool) -> object:
    return value if with_names or not isinstance(value, str) else "(a text, left out)"


def _contents(parts: list[Part], with_names: bool) -> str:
    listed = "".join(f"  {part.name:<18}{len(part.data):>8} bytes  {part.about}\n" for part in parts)
    return f"A bug report by gputop doctor --bundle, {time.strftime('%Y-%m-%d %H:%M %z')}.\n\n{listed}\n{_NAMED if with_names else _MASKED}"


def _pack(file: io.BufferedWriter, parts: list[Part]) -> None:
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for part in parts:
            entry = tarfile.TarInfo(f"gputop-bundle/{part.name}")
            entry.size, entry.mode, entry.mtime = len(part.data), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(part.data))
