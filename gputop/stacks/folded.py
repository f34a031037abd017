"""Stacks for other tools: folded lines (flame-graph scripts) and speedscope's JSON, and files of them.

A weighted stack is ``(frames outermost first, weight)``; the first frame says whose it is.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence

from gputop.model.frame import Stack
from gputop.stacks.frames import parse
from gputop.system.errors import UserError
from gputop.system.output import create, whole_or_gone
from gputop.system.text import clean

Weighted = tuple[tuple[str, ...], int]


def weigh(stacks: Iterable[Stack]) -> list[Weighted]:
    """One set of stacks, each counted once; kernel frames lie on the Python ones and end in ``_[k]``, by which scripts colour them."""
    counted = Counter(_frames(stack) for stack in stacks if stack.python or stack.kernel)
    return list(counted.items())


def _frames(stack: Stack) -> tuple[str, ...]:
    whose = f"{stack.thread} {stack.tid}" if stack.tid else f"{stack.thread} of {stack.pid}"
    return (whose, *reversed(stack.python), *(f"{name}_[k]" for name in reversed(stack.kernel)))


def to_folded(weighted: Iterable[Weighted]) -> str:
    """``outermost;…;innermost weight``, a line per stack."""
    return "".join(";".join(clean(frame).replace(";", ",") for frame in frames) + f" {weight}\n" for frames, weight in weighted)


def to_speedscope(weighted: Sequence[Weighted], name: str, unit: str = "none") -> dict[str, object]:
    """A document for https://www.speedscope.app (its file-format-schema.json): one sampled profile. ``unit``: none or nanoseconds."""
    index: dict[str, int] = {}
    samples = [[index.setdefault(frame, len(index)) for frame in frames] for frames, _ in weighted]
    weights = [weight for _, weight in weighted]
    profile = {
        "type": "sampled", "name": name, "unit": unit, "startValue": 0, "endValue": sum(weights), "samples": samples, "weights": weights,
    }  # fmt: skip
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [_described(frame) for frame in index]},
        "profiles": [profile],
        "name": name,
        "exporter": "gputop",
    }


def _described(frame: str) -> dict[str, object]:
    line = parse(frame)
    described: dict[str, object] = {"name": clean(line.name)}
    if line.file:
        described["file"] = clean(line.file)
    if line.line:
        described["line"] = line.line
    return described


def save(path: str, text: str) -> None:
    """Write a new file that only its owner may read. Raises UserError."""
    try:
        with whole_or_gone(path) as part, os.fdopen(create(part), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"cannot write {clean(path)}: {error.strerror}") from error
