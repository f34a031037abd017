"""How a training is divided over its ranks, from a rank's command line, and configuration files that it names (TOML, YAML, JSON): Megatron,
DeepSpeed, torchtitan, NeMo, torchtune, axolotl and others. Pure.

All of these number ranks alike: tensor parallel ranks are neighbours, then context parallel, then data parallel ones, and the stages of a
pipeline lie farthest apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct

from gputop.model.ranges import Ranks

STAGE, REPLICA, EXPERT, CONTEXT, TENSOR = "stage", "replica", "expert", "context", "tensor"
PARTS = (STAGE, REPLICA, EXPERT, CONTEXT, TENSOR)
"""Kinds of parts of a training whose ranks may all be late alike. REPLICA: a copy of the model, with all its stages. EXPERT, CONTEXT,
TENSOR: all ranks that hold the same experts, part of each sequence, or slice of each layer."""
SHARED = 512  # command lines whose parse is kept
MOST_WORDS = 512  # of a command line that are looked at
MOST_FILES = 4  # configuration files of a command line that are looked at
DIMENSIONS = ("tp", "pp", "cp", "ep")  # fields of `Parallel`
_DIMENSIONS = {
    "tensor": "tp", "model": "tp", "tp": "tp", "autotp": "tp", "pipeline": "pp", "pipe": "pp", "pp": "pp", "context": "cp", "cp": "cp",
    "expert": "ep", "ep": "ep",
}  # fmt: skip
"""First word of an option -> dimension."""
_OPTION = re.compile(
    r"(?:parallelism_config_)?(?:(?P<word>tensor|pipeline|context|expert|model|pipe)(?:_model)?_parallel(?:ism)?_(?:size|degree|dim)"
    r"|(?P<short>tp|pp|cp|ep|autotp)_(?:size|degree))"
)
_FILE = re.compile(r".{1,4096}\.(toml|ya?ml|json)", re.IGNORECASE | re.DOTALL)
_SETTING = re.compile(rb"(?<![\w.-])([A-Za-z_][\w.-]{1,63})[\"']?[ \t]*[:=][ \t]*[\"']?(\d{1,6})[\"']?[ \t\r]*(?=[,}\n#]|$)")
_COMMENT = re.compile(rb"(^|\s)#[^\n]*")


class Parallel(Struct, frozen=True, omit_defaults=True, gc=False):
    """Sizes of a training's groups of ranks. Any node may have sent them: see `is_sound`."""

    size: Ranks  # ranks
    tp: Ranks = 1  # tensor parallel
    pp: Ranks = 1  # stages of the pipeline
    cp: Ranks = 1  # context parallel
    ep: Ranks = 1  # expert parallel: of the data parallel ranks

    @property
    def is_sound(self) -> bool:
        """True if the sizes divide the ranks."""
        parts = self.tp * self.pp * self.cp
        return min(self.tp, self.pp, self.cp, self.ep) > 0 and parts <= self.size and self.size % parts == 0

    @property
    def dp(self) -> int:
        """Data parallel: copies of the model."""
        return self.size // (self.tp * self.pp * self.cp)

    def count(self, part: str) -> int:
        """Number of parts of a kind, a word of `PARTS`."""
        if part == EXPERT:
            return self.ep if self.dp * self.cp % self.ep == 0 else 1
        return {STAGE: self.pp, REPLICA: self.dp, CONTEXT: self.cp, TENSOR: self.tp}[part]

    def part_of(self, part: str, rank: int) -> int:
        """Number of the part of a kind that a rank belongs to, from 0."""
        each = {STAGE: self.size // self.pp, REPLICA: self.tp * self.cp, EXPERT: self.tp, CONTEXT: self.tp, TENSOR: 1}[part]
        return rank // each % self.count(part)

    def groups_of(self, rank: int) -> tuple[tuple[str, int, int], ...]:
        """Names of the groups of a rank whose ranks do the same work, and wait for one another: tensor, context and data parallel."""
        each, copies = self.tp * self.cp, self.size // self.pp
        return (
            (TENSOR, rank // self.tp, 0), (CONTEXT, rank // each, rank % self.tp), (REPLICA, rank // copies, rank % each),
        )  # fmt: skip


def parallel_of(words: Sequence[str], size: int, configured: Mapping[str, int] | None = None) -> Parallel | None:
    """The sizes in a command line, and those in its configuration files (``configured``: `sizes_in`) that it does not overrule; None if
    there are none, or such as do not divide ``size`` ranks."""
    return _parallel_of(tuple(words[:MOST_WORDS]), size, tuple(sorted((configured or {}).items())))


@lru_cache(maxsize=SHARED)
def _parallel_of(words: tuple[str, ...], size: int, configured: tuple[tuple[str, int], ...]) -> Parallel | None:
    sizes = {name: count for name, count in configured if name in DIMENSIONS} | dict(_sizes(words))
    found = Parallel(size, **sizes)
    return found if sizes and found.is_sound else None


def files_of(words: Sequence[str]) -> list[str]:
    """Paths of the configuration files that a command line names: ``--config a.toml``, ``--config=a.yaml``, ``train a.yml``."""
    values = (word.partition("=")[2] if "=" in word else word for word in words[1:MOST_WORDS])
    return list(dict.fromkeys(value for value in values if _FILE.fullmatch(value) and not value.startswith("-")))[:MOST_FILES]


def sizes_in(data: bytes) -> dict[str, int]:
    """Dimension -> size of the settings in a configuration file. One that it states twice, and differently, is left out: it may be meant
    for another program, such as the one that generates."""
    found: dict[str, set[int]] = {}
    for name, value in _SETTING.findall(_COMMENT.sub(b"", data)):
        dimension = _dimension(name.decode())
        if dimension is not None and int(value) > 0:
            found.setdefault(dimension, set()).add(int(value))
    return {dimension: min(values) for dimension, values in found.items() if len(values) == 1}


def _dimension(name: str) -> str | None:
    """``tp`` of ``--parallelism.tensor_parallel_degree``; None for an option of another kind."""
    option = _OPTION.fullmatch(name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower())
    return None if option is None else _DIMENSIONS[option["word"] or option["short"]]


def _sizes(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """(dimension, size) of each option: ``--NAME 4``, ``--NAME=4``, ``a.b.NAME=4``, ``++a.NAME=4``. The last one counts."""
    for word, after in pairwise((*words, "")):
        name, equals, value = word.partition("=")
        if not equals and not word.startswith("-"):
            continue
        text = value if equals else after
        if text.isascii() and text.isdigit() and len(text) <= 6 and int(text) > 0 and (dimension := _dimension(name)) is not None:
            yield dimension, int(text)
