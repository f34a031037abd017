"""Fine-tuning on chats: to learn which tokens the assistant wrote, workers render and tokenise a chat again up to each of its turns."""

from __future__ import annotations

import random
import re
import zlib
from typing import TypedDict

import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus

_VOCABULARY, _IGNORED = 128_256, -100
_CHATS_PER_CPU, _STEP_MS = 12, 25
_TURNS = range(16, 24)
_WORDS = ("the", "model's", "answer,", "of", "course,", "depends", "on", "3", "things:", "what", "you", "ask;", "how", "(mostly)", "luck.")
_PIECES = re.compile(r"<\|\w+\|>|'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?\d{1,3}| ?[^\sA-Za-z\d]+|\s+")
_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor -%}"""


class Message(TypedDict):
    """One turn of a chat."""

    role: str
    content: str


class Chats(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Tokens and labels of chats; only what the assistant wrote is learnt."""

    def __init__(self) -> None:
        self.template = ImmutableSandboxedEnvironment(trim_blocks=True).from_string(_TEMPLATE)
        self.contents = [" ".join(random.choices(_WORDS, k=random.randint(20, 90))) for _ in range(500)]

    def __len__(self) -> int:
        return 1 << 18

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        chat = self.chat(random.Random(index))
        tokens: list[int] = []
        labels: list[int] = []
        for turns, message in enumerate(chat, 1):
            tokens = self.tokenise(chat[:turns])
            new = tokens[len(labels) :]
            labels += new if message["role"] == "assistant" else [_IGNORED] * len(new)
        return torch.tensor(tokens), torch.tensor(labels)

    def chat(self, dice: random.Random) -> list[Message]:
        """The user and the assistant in turn."""
        contents = dice.choices(self.contents, k=dice.choice(_TURNS))
        return [{"role": "assistant" if number % 2 else "user", "content": content} for number, content in enumerate(contents)]

    def tokenise(self, chat: list[Message]) -> list[int]:
        """`apply_chat_template`."""
        return [zlib.crc32(piece.encode()) % _VOCABULARY for piece in _PIECES.findall(self.template.render(messages=chat))]


def pad(chats: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Tokens and labels of a batch, as long as its longest chat."""
    tokens, labels = zip(*chats, strict=True)
    return torch.stack([pad_sequence(list(tokens), True), pad_sequence(list(labels), True, _IGNORED)])


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Chats(), workers=cpus(), batch=_CHATS_PER_CPU * cpus(), collate_fn=pad, shuffle=True), trainer.compute(_STEP_MS))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
