"""How a training is divided over its ranks, from a rank's command line: Megatron, DeepSpeed, torchtitan, NeMo and others. Pure.

All of these number ranks alike: tensor parallel ranks are neighbours, then context parallel, then data parallel ones, and the stages of a
pipeline lie farthest apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

SHARED = 512  # command lines whose parse is kept
MOST_WORDS = 512  # of a command line that are looked at
_DIMENSIONS = {
    "tensor": "tp", "model": "tp", "tp": "tp", "autotp": "tp", "pipeline": "pp", "pipe": "pp", "pp": "pp", "context": "cp", "cp": "cp",
    "expert": "ep", "ep": "ep",
}  # fmt: skip
"""First word of an option -> dimension."""
_OPTION = re.compile(
    r"(?P<word>tensor|pipeline|context|expert|model|pipe)(_model)?_parallel(ism)?_(size|degree)|(?P<short>tp|pp|cp|ep|autotp)_(size|degree)"
)


class Parallel(Struct, frozen=True):
    """Sizes of a training's groups of ranks."""

    size: int  # ranks
    tp: int = 1  # tensor parallel
    pp: int = 1  # stages of the pipeline
    cp: int = 1  # context parallel
    ep: int = 1  # expert parallel: of the data parallel ranks

    @property
    def dp(self) -> int:
        """Data parallel: copies of the model."""
        return self.size // (self.tp * self.pp * self.cp)

    def stage_of(self, rank: int) -> int:
        """Number of a rank's stage, from 0."""
        return rank // (self.size // self.pp)


def parallel_of(words: Sequence[str], size: int) -> Parallel | None:
    """The sizes in a command line; None if it has none, or such as do not divide ``size`` ranks."""
    return _parallel_of(tuple(words[:MOST_WORDS]), size)


@lru_cache(maxsize=SHARED)
def _parallel_of(words: tuple[str, ...], size: int) -> Parallel | None:
    sizes = dict(_sizes(words))
    found = Parallel(size, **sizes)
    parts = found.tp * found.pp * found.cp
    return found if sizes and 0 < parts <= size and size % parts == 0 else None


def _sizes(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """(dimension, size) of each option: ``--NAME 4``, ``--NAME=4``, ``a.b.NAME=4``, ``++a.NAME=4``. The last one counts."""
    for word, after in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if not equals and not word.startswith("-"):
            continue
        option = _OPTION.fullmatch(name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower())
        text = value if equals else after
        if option is not None and text.isascii() and text.isdigit() and len(text) <= 6 and int(text) > 0:
            yield _DIMENSIONS[option["word"] or option["short"]], int(text)
