"""Instruction tuning on documents picked at random from one large JSON Lines file, on a volume of few operations a second."""

from __future__ import annotations

import json
import os
import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from torch.utils.data import Dataset

from tests.workloads import cgroup, slow_disk
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_FILE_BYTES = 384 << 20
_TOKENS, _BATCH = 7000, 96
_READS_PER_S = 220


class Documents(Dataset[torch.Tensor]):
    """Each line is found by its offset; a token is a byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offsets = array("q", path.with_suffix(".index").read_bytes())
        self.file: BinaryIO | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.file is None:
            self.file = self.path.open("rb")
        self.file.seek(self.offsets[index])
        text: str = json.loads(self.file.readline())["text"]
        return torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8)[:_TOKENS].int()


def train(trainer: Trainer) -> None:
    documents = Documents(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "documents.jsonl")
    trainer.fit(loader(documents, workers=3, start="spawn", batch=_BATCH, shuffle=True), trainer.compute_ahead(550, every=4))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    path, words, offsets = running.folder / "documents.jsonl", os.urandom(1 << 20).hex(), array("q")
    with path.open("w") as out:
        while (offset := out.tell()) < _FILE_BYTES:
            offsets.append(offset)
            at = random.randrange(len(words) // 2)
            json.dump({"id": len(offsets), "text": words[at : at + random.randrange(_TOKENS, 2 * _TOKENS)]}, out)
            out.write("\n")
        out.flush()
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    path.with_suffix(".index").write_bytes(offsets.tobytes())
    with cgroup.group("blkio", running.name) as group:
        key, word = ("io.max", "riops=") if cgroup.is_v2("blkio") else ("blkio.throttle.read_iops_device", "")
        (group / key).write_text(f"{cgroup.device_of(path)} {word}{_READS_PER_S}")
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(group)
        yield


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, prepare=prepare, needs=slow_disk.missing)
