"""An agent without a model: it follows the steps of `gputop skill`, and counts what that costs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputop.model.frame import Frame, Header
from gputop.recording.writer import Writer
from tests.corpus import accuracy, runs, split
from tests.corpus.runs import Run

MOST_CALLS, MOST_TOKENS, CHARS_A_TOKEN = 3, 2_000, 4
DEMOS = Path(__file__).with_name("data")
SEED = "agents 2026-11-28"  # of the lot: it was drawn once, before any of these were asked
OF_EACH_HALF = 20

Ask = Callable[[str, dict[str, Any]], dict[str, Any]]


@dataclass
class Asked:
    """What it cost to find a cause."""

    symptom: str | None = None
    cause: str | None = None
    calls: int = 0
    chars: int = 0
    seconds: float = 0.0
    fixes: list[dict[str, str]] = field(default_factory=list)
    culprits: list[dict[str, Any]] = field(default_factory=list)
    lost_share: float | None = None

    @property
    def tokens(self) -> int:
        return -(-self.chars // CHARS_A_TOKEN)


def find_cause(ask: Ask, target: str) -> Asked:
    """Steps 1 and 2 of the skill: diagnose, and the call in `next` as long as no cause is named."""
    asked, began = Asked(), time.perf_counter()
    tool, arguments = "diagnose", {"target": target}
    while tool == "diagnose" and asked.calls < MOST_CALLS:
        found = ask(tool, arguments)
        asked.calls += 1
        asked.chars += len(json.dumps(found, separators=(",", ":"), ensure_ascii=False)) + len(json.dumps(arguments))
        asked.symptom, asked.cause = found["symptom"], found["cause"]
        asked.fixes, asked.culprits, asked.lost_share = found["fixes"], found["culprits"], found["lost_share"]
        following = found["next"] or {"tool": "", "arguments": {}}
        if following["arguments"] == arguments or asked.symptom is not None:
            break
        tool, arguments = following["tool"], following["arguments"]
    asked.seconds = time.perf_counter() - began
    return asked


def lot() -> list[tuple[Path, str]]:
    """40 labelled runs, by lot 20 of each half, and the mode of each, by lot, too."""
    chosen: list[tuple[Path, str]] = []
    for half in split.HALVES:
        files = sorted(accuracy.DATA.glob("*.xz"), key=lambda path: _drawn(path.stem))
        names = [path for path in files if split.half_of(path.stem) == half][:OF_EACH_HALF]
        chosen += [(path, "eBPF" if int(_drawn(f"{path.stem} mode"), 16) % 2 else "/proc") for path in names]
    return chosen


def _drawn(word: str) -> str:
    return hashlib.sha256(f"{SEED} {word}".encode()).hexdigest()


def demos() -> Iterator[Path]:
    """The kept recordings of `gputop demo`'s scenarios."""
    yield from sorted(DEMOS.glob("*.xz"))


def written(run: Run, mode: str, folder: Path) -> str:
    """A labelled run as a recording, under a name that does not tell what it is."""
    path = str(folder / f"{hashlib.sha256(f'{run.workload} {mode}'.encode()).hexdigest()[:8]}.gputop")
    header, *frames = run.items(mode)
    assert isinstance(header, Header)
    writer = Writer(path, header)
    for frame in frames:
        assert isinstance(frame, Frame)
        writer.add(frame)
    writer.close()
    return path


def load(path: Path, mode: str) -> tuple[Run, str]:
    """The run, and its mode or the one that it has."""
    run = runs.load(path)
    return run, mode if mode in run.streams else next(iter(run.streams))
