"""Japanese text with one loader process that asks a segmenter of its own sentence by sentence, as over MeCab's pipe; a CPU idles."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_SEGMENTER = r"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>
enum { UNITS = 1 << 22, CLASSES = 512, LONGEST = 24, ROOM = 1 << 14 };
static uint32_t trie[UNITS];
static int16_t connection[CLASSES][CLASSES];
int main(void) {
    static char line[ROOM], out[2 * ROOM];
    static int cost[ROOM + LONGEST], from[ROOM + LONGEST], class[ROOM + LONGEST], cut[ROOM];
    uint32_t seed = 7;
    for (int i = 0; i < UNITS; i++) trie[i] = seed = seed * 1664525 + 1013904223;
    for (int i = 0; i < CLASSES * CLASSES; i++) (&connection[0][0])[i] = (int16_t)(trie[i] >> 20);
    while (fgets(line, ROOM, stdin)) {
        int length = (int)strcspn(line, "\n"), used = 0;
        for (int at = 1; at <= length; at++) cost[at] = INT32_MAX;
        for (int at = 0; at < length; at++) {
            uint32_t node = 0;
            for (int size = 1; size <= LONGEST && at + size <= length; size++) {
                node = trie[(node + (uint8_t)line[at + size - 1] * 40503u) >> 10];
                int word = node % CLASSES, sum = cost[at] + connection[class[at]][word] + 900 + (int)(node >> 21);
                if (sum < cost[at + size]) cost[at + size] = sum, from[at + size] = at, class[at + size] = word;
            }
        }
        memset(cut, 0, sizeof(int) * (size_t)length);
        for (int at = length; at > 0; at = from[at]) cut[at] = 1;
        for (int at = 0; at < length; at++) {
            if (cut[at]) out[used++] = ' ';
            out[used++] = line[at];
        }
        out[used++] = '\n';
        fwrite(out, 1, (size_t)used, stdout);
        fflush(stdout);
    }
}
"""
_NAME = "mecab"
_SENTENCES, _CHARACTERS_PER_BATCH = 1 << 14, 8000
_LETTERS = "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん日本東京学習機械翻訳"
_SHORT = 1.65
_LOADERS = max(1, cpus() // 2)


@cache
def segmenter() -> subprocess.Popen[bytes]:
    """This process's own."""
    program = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / _NAME
    return subprocess.Popen([program, "-O", "wakati"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def length(index: int) -> int:
    """Characters of a sentence."""
    return 40 + index * 7919 % 461


class Corpus(Dataset[torch.Tensor]):
    """Sentences as the hashes of their words."""

    def __len__(self) -> int:
        return _SENTENCES

    def __getitem__(self, index: int) -> torch.Tensor:
        sentence = "".join(random.Random(index).choices(_LETTERS, k=length(index)))
        process = segmenter()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(sentence.encode() + b"\n")
        process.stdin.flush()
        return torch.tensor([hash(word) % 32000 for word in process.stdout.readline().split()])


class ByLength(Sampler[list[int]]):
    """Sentences of about one length together: few long ones or many short ones, always as many characters."""

    def __iter__(self) -> Iterator[list[int]]:
        order = sorted(random.sample(range(_SENTENCES), _SENTENCES), key=length)
        batches: list[list[int]] = []
        while order:
            size = _CHARACTERS_PER_BATCH // length(order[0])
            batches.append(order[:size])
            order = order[size:]
        return iter(random.sample(batches, len(batches)))


def collate(sentences: list[torch.Tensor]) -> torch.Tensor:
    """Padded to the longest."""
    return torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True)


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    corpus, costs = Corpus(), []
    with segmenter():
        for batch in list(ByLength())[:9]:
            began = time.perf_counter()
            collate([corpus[index] for index in batch])
            costs.append(time.perf_counter() - began)
    segmenter.cache_clear()
    step = trainer.compute(sorted(costs)[4] * 1e3 / _LOADERS / _SHORT)
    workers = DataLoader(corpus, batch_sampler=ByLength(), num_workers=_LOADERS, collate_fn=collate, persistent_workers=True)
    trainer.fit(workers, step)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    subprocess.run(["cc", "-O2", "-x", "c", "-", "-o", str(running.folder / _NAME)], input=_SEGMENTER, text=True, check=True)
    yield


SCENARIO = Scenario(Label("input-bound", "too-few-workers"), train, prepare=prepare)
