"""What a GPU that nobody simulates would say: the NVML stub reads it from a file, and the trainer whether there is anything in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.workloads.runner import Running

Step = Callable[[object], None]
_VARIABLE = "GPUTOP_NVML_CONTROL"


def from_the_start(words: str = "") -> Callable[[Running], AbstractContextManager[None]]:
    """A scenario's ``prepare``: the stub says ``words`` (its own lines), at first nothing else than it simulates where there are none."""

    @contextmanager
    def prepare(running: Running) -> Iterator[None]:
        _file(running).write_text(words)
        running.env[_VARIABLE] = str(_file(running))
        yield

    return prepare


@contextmanager
def saying(running: Running, words: str) -> Iterator[None]:
    """The stub says ``words`` until the context ends."""
    draft = running.folder / "nvml.new"
    for text in (words, ""):
        draft.write_text(text)
        draft.replace(_file(running))
        if text:
            yield


def is_told() -> bool:
    """Whether it says anything now; for the trainer, which inherits the environment."""
    return Path(os.environ[_VARIABLE]).stat().st_size > 0


def held(free: Step, slow: Step) -> Step:
    """``free``, and ``slow`` while the stub says that something holds the clocks down."""
    return lambda batch: (slow if is_told() else free)(batch)


def _file(running: Running) -> Path:
    return running.folder / "nvml"
