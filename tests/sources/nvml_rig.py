"""The NVML stub under a test's control, and an NvmlSource whose frames are folded into a board."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

from gputop.model.board import Board, GpuBoard
from gputop.model.frame import Frame
from gputop.sources import Beat, Settings
from gputop.sources.nvml import NvmlSource
from gputop.sources.nvml import binding as nvml
from tests.stubs.build import build
from tests.wait import PATIENCE_S

STUB = Path(__file__).parents[1] / "stubs" / "nvml" / "nvml.c"
INTERVAL_NS = 20_000_000


def stub(*flags: str) -> Path:
    """The compiled stub library."""
    return build(STUB, "libnvidia-ml.so.1", *flags)


def load(library: Path) -> None:
    """Make gputop use ``library`` in this process."""
    nvml.nvmlLib = ctypes.CDLL(str(library))


class Rig:
    """One test's GPUs: ``set`` says what they are like, ``until`` reads frames until the board shows something."""

    def __init__(self, folder: Path) -> None:
        self.control = folder / "gpus.conf"
        self.log = folder / "calls.log"
        self.board = Board()
        self.frames: list[Frame] = []
        self.changed: list[object] = []
        self._sources: list[NvmlSource] = []
        self._seq = 0

    def set(self, *lines: str) -> None:
        """Replace the control file."""
        draft = self.control.with_suffix(".new")
        draft.write_text("\n".join(lines) + "\n")
        draft.replace(self.control)

    def source(self, interval_ns: int = INTERVAL_NS, gpus: frozenset[int] | None = None, look: bool = False) -> NvmlSource:
        """A source that is closed when the test ends, for a single ``look`` or to be watched."""
        source = NvmlSource(Settings(interval_ns=interval_ns, gpus=gpus, everyone=look))
        self._sources.append(source)
        return source

    def opened(self, interval_ns: int = INTERVAL_NS, gpus: frozenset[int] | None = None) -> NvmlSource:
        """The same, open."""
        source = self.source(interval_ns, gpus)
        source.open()
        return source

    def read(self, source: NvmlSource, key: bool = False) -> Frame:
        """One beat."""
        frame = Frame(self._seq, time.monotonic_ns(), key=key)
        beat = Beat(frame.t_ns, self._seq, key)
        source.read(beat, frame)
        self._seq += 1
        self.changed += beat.changed
        self.frames.append(frame)
        self.board.fold(frame)
        return frame

    def until(self, source: NvmlSource, condition: Callable[[Board], object]) -> None:
        """Beat until ``condition`` holds of the board; fails after `PATIENCE_S`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.read(source)
            try:
                if condition(self.board):
                    return
            except KeyError:
                pass
            assert time.monotonic() < deadline, {index: (gpu.values, gpu.missing) for index, gpu in self.board.gpus.items()}
            time.sleep(INTERVAL_NS / 1e9)

    def gpu(self, index: int = 0) -> GpuBoard:
        """The board's GPU."""
        return self.board.gpus[index]

    def calls(self, kind: str, gpu: int | None = None) -> list[int]:
        """When the stub was asked ``kind``, CLOCK_MONOTONIC ns; needs ``log`` in the control file."""
        rows = [line.split() for line in self.log.read_text().splitlines()]
        return [int(row[2]) for row in rows if row[0] == kind and gpu in (None, int(row[1]))]

    def close(self) -> None:
        """Close all sources."""
        for source in self._sources:
            source.close()
