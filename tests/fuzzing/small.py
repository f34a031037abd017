"""Smaller readers: settings, the last screen, markers, NCCL's answers, journals of experiments, libraries and memory of other users."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import socket
import struct
import threading
import time
import zlib
from contextlib import suppress
from functools import cache
from io import FileIO
from pathlib import Path
from unittest import mock

import msgspec

from gputop import cli
from gputop.findings import intervals
from gputop.findings import runs as known
from gputop.model.frame import Frame, Mark
from gputop.prove.change import DEVICE, FILE, SETTINGS, Record
from gputop.prove.journal import Damaged, Journal, JournalHeader
from gputop.recording.chunks import Decoder
from gputop.recording.format import pack_frames, pack_header
from gputop.sources import elf, marks
from gputop.stacks import interpreter, nccl
from gputop.stacks.frames import MAX_FRAMES, MAX_THREADS, Unreadable
from gputop.stacks.interpreter import Interpreter
from gputop.stream import runs
from gputop.system import config, screenstate
from gputop.system.errors import Unavailable, UserError
from tests.fuzzing.kind import Kind, changed_json, changed_text, changed_within, in_pieces, is_harmless
from tests.recording import fuzz, made
from tests.stacks import ras

# settings

_CONFIGS = (
    'interval = 0.2\nno-ebpf = true\ntheme = "x"\n\n[keys]\npause = "space,p"\nquit = "q"\n\n[alerts]\nsinks = ["bell", "https://x.y/z"]\n',
    "[alerts]\nseverity = 'low'\n", "window = 60\nsort = 'cpu'\ngpu = 0\n", "[keys]\n",
    "duration = 1979-05-27T07:32:00Z\nalerts.sinks = ['bell']\n",
    'keys = 1\nalerts = "x"\n', "light = true\nascii = false\nuser = 'ana'\npid = 12\n", "interval = inf\n[alerts]\nsinks = [[1]]\n",
)  # fmt: skip
_TOML = (
    "[[a]]", "a.b.c = 1", "'''", '"""', "0x_1", "= ", "[keys.x]", "+nan", "1e400", "x = {", "{a={a={a=", "[" * 3000, "a." * 5000,
    "\\U00110000", "x = " + "[" * 3000, "x = " + "{a=" * 3000,
)  # fmt: skip


def configs(rng: random.Random) -> bytes:
    """A config.toml."""
    text = rng.choice(_CONFIGS)
    for _ in range(rng.choice((0, 1, 3))):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(_TOML) + text[at:]
    data = changed_text(rng, text)
    return data.decode("utf-8", "replace").encode("utf-16") if rng.random() < 0.05 else data


def configs_drive(path: str) -> None:
    """`gputop config`, the keys, the alerts, and what starts with it."""
    with mock.patch.dict(os.environ, {"GPUTOP_CONFIG": path}):
        for what in ("print", "validate"):
            assert cli.main(["config", what]) in (0, 1, 2)
        for read in (config.key_map, config.alerts):
            with suppress(UserError):
                read()


def screens(rng: random.Random) -> bytes:
    """A screen.json."""
    if rng.random() < 0.05:
        return b'{"x": ' + rng.choice((b"[", b'{"a":')) * rng.choice((900, 9000))
    return changed_json(rng, msgspec.to_builtins(screenstate.Saved(60, "cpu", True, False, "gputop-dark")))


def screens_drive(path: str) -> None:
    """It is read, or the defaults are."""
    with mock.patch.object(screenstate, "path", return_value=path):
        screenstate.load()


# markers


def markers(rng: random.Random) -> bytes:
    """A message of `gputop mark`."""
    if rng.random() < 0.05:
        return b"\x93\0\xa0" + b"\x91" * rng.choice((900, 1900)) + b"\xc0"
    one = marks.pack_mark(Mark(rng.choice((0, 1, time.monotonic_ns(), (1 << 63) - 1)), rng.choice(("epoch 3", "\x1b[2J\u202e", "é" * 200))))
    return rng.choice((fuzz.changed_bytes, fuzz.changed_value, fuzz.changed_value))(rng, one)


def markers_drive(path: str) -> None:
    """A marker that is taken is harmless, and a recording holds it."""
    mark = marks.unpack_mark(Path(path).read_bytes()[: marks.MAX_BYTES])
    if mark is None:
        return
    assert is_harmless(mark.text)
    assert len(mark.text) <= marks.MAX_TEXT
    now = time.monotonic_ns()
    kept = mark if now - marks.LATEST_NS < mark.t_ns <= now else Mark(now, mark.text)
    frame = Frame(0, made.START_NS, key=True, marks=[kept])
    decoder = Decoder()
    assert decoder.feed(pack_header(made.HEADER) + pack_frames([frame]))[1:] == [frame]


# NCCL

_REPORTS = (ras.HEALTHY, ras.LATE, ras.GONE, ras.EARLY)


def reports(rng: random.Random) -> bytes:
    """What listens on NCCL's port says, from the first line on."""
    text = rng.choice(_REPORTS)
    if rng.random() < 0.2:
        lines = text.splitlines(keepends=True)
        at = rng.randrange(len(lines))
        lines[at:at] = [rng.choice((lines[at], "Rank 1 -- ", "x" * 500 + "\n", " ", "  Rank 17 reported " + "-- " * 50 + "\n"))] * 5000
        text = "".join(lines)
    data = changed_text(rng, text) if rng.random() < 0.85 else fuzz.changed_bytes(rng, text.encode())
    return rng.choice((b"SERVER PROTOCOL 2\nOK\n", b"SERVER PROTOCOL 2\nOK\n", b"SERVER PROTOCOL 2\n", b"SSH-2.0\n", b"")) + data


def reports_drive(path: str) -> None:
    """A report within bounds whose texts are harmless, or a reason."""
    data = Path(path).read_bytes()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sends = threading.Thread(target=_send, args=(theirs, data), daemon=True)
        sends.start()
        found, reason = None, ""
        try:
            found = nccl.read_report(nccl._converse(ours, time.monotonic() + 5))
        except Unavailable as error:
            reason = error.reason
        ours.shutdown(socket.SHUT_RDWR)
        sends.join()
    assert is_harmless(reason), reason
    if found is None:
        assert reason
        return
    assert nccl.unpack_report(nccl.pack_report(found)) == found
    for line in nccl.told(found):
        assert is_harmless(line.text), line.text
    assert len(found.ranks) <= nccl.MOST_RANKS
    assert len(found.lines) <= nccl.MOST_LINES


def _send(to: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        for piece in in_pieces(random.Random(len(data)), data):
            to.sendall(piece)
        to.shutdown(socket.SHUT_WR)


# journals


def journals(rng: random.Random) -> bytes:
    """A journal whose checks are mostly right."""
    entries: list[object] = [JournalHeader("nice 19 for hog", "b", "node7", 1, 100, 1.0)]
    entries += [Record("nice", "19", "0", 12, 5, 12), Record("file", "5000 100000", "max", path="/sys/fs/cgroup/a/cpu.max")]
    lines = []
    if rng.random() < 0.05:
        data = b'{"x": ' + b"[" * rng.choice((900, 9000)) + b"]"
        lines.append(b"%08x %s\n" % (zlib.crc32(data), data))
    for one in entries + entries[1:] * rng.choice((0, 1, 50)):
        value = msgspec.to_builtins(one)
        data = changed_json(rng, value).replace(b"\n", b" ") if rng.random() < 0.5 else json.dumps(value).encode()
        lines.append(b"%08x %s\n" % (zlib.crc32(data), data))
    return b"".join(lines) if rng.random() < 0.7 else fuzz.changed_bytes(rng, b"".join(lines))


def journals_drive(path: str) -> None:
    """It is read whole, or damaged."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with suppress(Damaged):
            _, records = Journal(path, fd).read()
            assert {one.setting for one in records} <= {FILE, DEVICE, *SETTINGS}
    finally:
        os.close(fd)


# libraries


@cache
def _library() -> bytes:
    """A small ELF file: a head, two segments, a symbol table and its names."""
    names = b"\0cudaLaunchKernel\0cuMemAlloc\0PyEval_Eval\0"
    rows = (0, 0, 0, 0, 0, 0), (1, 0x12, 0, 1, 0x1100, 64), (18, 0x12, 0, 1, 0x1200, 32), (29, 0x11, 0, 1, 0x1300, 8)
    symbols = b"".join(struct.pack("<IBBHQQ", *row) for row in rows)
    spans = (elf.LOAD, 5, 0, 0x1000, 0, 0x400, 0x400, 0), (elf.LOAD, 6, 0x400, 0x2000, 0, 9, 9, 0)
    program = b"".join(struct.pack("<IIQQQQQQ", *span) for span in spans)
    at = 64 + len(program)
    strings_at, sections_at = at + len(symbols), at + len(symbols) + len(names)
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 0, 0)
        for kind, offset, size, link in ((0, 0, 0, 0), (11, at, len(symbols), 2), (3, strings_at, len(names), 0))
    )
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 2, 64, 3, 0)
    return (head + program + symbols + names + sections).ljust(0x600, b"\0")


def libraries(rng: random.Random) -> bytes:
    """An ELF file with odd numbers in its tables."""
    data = bytearray(_library())
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(0, 700)
        number = rng.choice((0, 1, 0xFF, 0xFFFF, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, len(data), rng.getrandbits(64)))
        size = rng.choice((1, 2, 4, 8))
        data[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, "little")
    return bytes(data) if rng.random() < 0.7 else fuzz.changed_bytes(rng, bytes(data))


def libraries_drive(path: str) -> None:
    """Its symbols, or why there are none."""
    with FileIO(path) as file:
        for prefix in (rb"cu\w+", b""):
            with suppress(elf.NotElf):
                found = elf.functions(file, re.compile(prefix))
                assert len(found) <= elf.MOST_FOUND


# memory


def memories(rng: random.Random) -> bytes:
    """By what the memory of a Python program is changed: which of the reads, and to what."""
    words = [rng.choice((0, 1, 8, 1 << 31, 1 << 47, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, rng.getrandbits(64)))]
    words += [rng.choice((1, 3, 10, 100)), rng.randrange(100), rng.randrange(4)]
    return struct.pack("<QIII", *words)


def memories_drive(path: str) -> None:
    """This program's own frames, read through what was changed, or why there are none."""
    word, every, first, how = struct.unpack("<QIII", Path(path).read_bytes())
    real, reads, seen = Interpreter.read, itertools.count(1), list[bytes]()

    def read(python: Interpreter, address: int, count: int) -> bytes:
        data, number = real(python, address, count), next(reads)
        seen.append(data)
        if number <= first or number % every:
            return data
        if how == 0 and seen:
            return (seen[number // 2 % len(seen)] + data)[:count].ljust(count, b"\0")  # pointers that lead back
        at = 8 * (number % max(1, count // 8))
        changed = data[:at] + word.to_bytes(8, "little") + data[at + 8 :]
        return changed[:count] if how < 3 else bytes(count)

    with mock.patch.object(Interpreter, "read", read):
        try:
            threads = interpreter.dump(os.getpid())
        except Unreadable:
            return
    assert len(threads) <= MAX_THREADS
    assert all(len(one.frames) <= MAX_FRAMES for one in threads)


# runs


def kept_runs(rng: random.Random) -> bytes:
    """A file of runs beside a recording."""
    one = {
        "start_unix_s": 1.7e9, "end_unix_s": 1.7e9 + 600, "pid": 7, "program": "train.py", "arguments": "batch=64", "world": 1,
        "gpu": "H200", "gpus": 1, "torch": "2.5.1", "step_ms": 50.0,
        "stretches_ms": [50.0, None, 51.0], "stretches_bytes": [1e6, None, 1.1e6], "user": "ann", "gpu_total_s": 600.0, "gpu_lost_s": 3.0,
        "by_cause": {"disk-io": 3.0}, "setting": {"kernel": "6.1"}, "slower_pct": 18.0, "since_unix_s": 1.7e9 + 60,
    }  # fmt: skip
    lines = [json.dumps(changed_within(rng, json.loads(json.dumps(one))) if i else one) for i in range(rng.choice((1, 3, 30)))]
    return changed_text(rng, "\n".join(lines)) if rng.random() < 0.5 else "\n".join(lines).encode("utf-8", "surrogatepass")


def kept_runs_drive(path: str) -> None:
    """Read them, set a run beside them, and write those that are young."""
    beside = runs.path_beside(path)
    Path(beside).write_bytes(Path(path).read_bytes())
    found = runs.read(beside)
    for one in found:
        assert is_harmless(" ".join((one.user, one.program, one.arguments, one.gpu, one.torch, *one.setting, *one.setting.values())))
        now = intervals.level([-3.0, -3.01, -2.99, -3.0, -3.02, -3.0])
        assert now is not None
        known.usual(msgspec.structs.replace(one, start_unix_s=4e9, end_unix_s=4e9), 0, now, found)
        list(known.differences(one, found[0]))
    runs.KeptRuns(path, 60.0)


KINDS = (
    Kind("kept-runs", kept_runs, kept_runs_drive, 4),
    Kind("configs", configs, configs_drive, 6), Kind("screens", screens, screens_drive, 2), Kind("markers", markers, markers_drive, 4),
    Kind("nccl-reports", reports, reports_drive, 6), Kind("journals", journals, journals_drive, 4),
    Kind("libraries", libraries, libraries_drive, 4), Kind("memories", memories, memories_drive, 4),
)  # fmt: skip
