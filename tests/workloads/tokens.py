"""A real tokenizer, byte-level BPE, that learns from the manual which Python carries, and texts to make tokens of.

`Fast` is the library's, in Rust; `Slow` is the same in pure Python, with a memory of the words that it has met, as `use_fast=False` has it.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

_VOCABULARY = 3000
_PIECES = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?[^\s\w]+| ?_+|\s+")
_TRIED = 20_000
"""Characters by which the speed of a tokenizer is measured."""


def missing() -> str:
    """Why there is no tokenizer here, empty if there is one."""
    return "" if importlib.util.find_spec("tokenizers") else "no tokenizers: pip install tokenizers"


def learn(folder: Path) -> None:
    """Write `tokenizer.json`, as a model's folder has it: takes a fifth of a second."""
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        topics.values(), trainers.BpeTrainer(vocab_size=_VOCABULARY, show_progress=False, initial_alphabet=alphabet)
    )
    made.save(str(folder / "tokenizer.json"))


class Fast:
    """The library's; Python's lock is free meanwhile."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids)
        return text


class Slow:
    """In Python, word by word."""

    def __init__(self, folder: Path) -> None:
        model = json.loads((folder / "tokenizer.json").read_text())["model"]
        merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
        self._rank = {pair: rank for rank, pair in enumerate(merges)}
        self._ids: dict[str, int] = model["vocab"]
        self._texts = {number: text for text, number in self._ids.items()}
        self._met: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in _PIECES.findall(text):
            if word not in self._met:
                self._met[word] = [self._ids[piece] for piece in self._merged(word)]
            ids += self._met[word]
        return ids

    def decode(self, ids: list[int]) -> str:
        return bytes(_byte_of()[sign] for number in ids for sign in self._texts[number]).decode(errors="replace")

    def _merged(self, word: str) -> list[str]:
        pieces = [_sign_of()[byte] for byte in word.encode()]
        never = len(self._rank)
        while len(pieces) > 1:
            ranks = [self._rank.get(pair, never) for pair in pairwise(pieces)]
            if (least := min(ranks)) == never:
                break
            at = ranks.index(least)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return pieces


@cache
def _sign_of() -> dict[int, str]:
    """The printable sign that stands for a byte in such a vocabulary."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    return {byte: chr(byte) for byte in own} | {byte: chr(256 + at) for at, byte in enumerate(others)}


@cache
def _byte_of() -> dict[str, int]:
    return {sign: byte for byte, sign in _sign_of().items()}


@cache
def _manual() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics.values())


def prose(characters: int, draw: random.Random) -> str:
    """A stretch of the manual, whose words a tokenizer has met."""
    at = draw.randrange(len(_manual()))
    return (_manual() * (2 + characters // len(_manual())))[at : at + characters]


def logs(characters: int, draw: random.Random) -> str:
    """Lines of a service's log, whose identifiers no tokenizer has met."""

    def identifier(length: int) -> str:
        return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=length))

    line = "04:{:02}:{:02}Z WARN pod={} trace={} upstream reset\n"
    lines = (line.format(draw.randrange(60), draw.randrange(60), identifier(20), identifier(32)) for _ in range(1 + characters // 89))
    return "".join(lines)[:characters]


TEXTS: dict[str, Callable[[int, random.Random], str]] = {"prose": prose, "logs": logs}


def characters_for(cpu_ms: float, encode: Callable[[str], object], kind: str) -> int:
    """How long a text of a ``kind`` must be to take ``cpu_ms`` on one of this host's CPUs."""
    encode(TEXTS[kind](_TRIED, random.Random(0)))
    text, began = TEXTS[kind](_TRIED, random.Random(1)), time.thread_time()
    encode(text)
    return int(cpu_ms / 1e3 * len(text) / (time.thread_time() - began))
