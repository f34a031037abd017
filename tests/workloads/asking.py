"""Clients of an inference server: real HTTP, each asks again when it has its answer.

`python -m tests.workloads.asking FOLDER PORT ASK`, where ASK is an `Ask` in JSON. Flags in the folder: `slow`, they ask for what
``then`` has; `quiet`, they ask no more; `bursts`, all ask for a while, and then none does.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tests.workloads import program, tokens
from tests.workloads.runner import Running

PORT = "GPUTOP_HTTP_PORT"


class Tokenizer(Protocol):
    """One of `tokens`."""

    def __init__(self, folder: Path) -> None: ...

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Text:
    """A request: a prompt of a ``kind`` (`tokens.TEXTS`), of so many characters, or as long as takes ``cpu_ms`` of a CPU to make tokens of;
    and an answer of half as many tokens up to ``answer``."""

    answer: int
    characters: int = 0
    cpu_ms: float = 0.0
    kind: str = "prose"

    def sized(self, tokenizer: Tokenizer) -> Text:
        """With its characters."""
        return self if self.characters else replace(self, characters=tokens.characters_for(self.cpu_ms, tokenizer.encode, self.kind))


@dataclass(frozen=True, slots=True)
class Ask:
    """What all clients do. ``bursts``: seconds of requests and of none."""

    clients: int
    first: Text
    then: Text | None = None
    path: str = "/v1/completions"
    bursts: tuple[float, float] = (1.0, 2.0)
    called: str = "locust"


@contextmanager
def asked(running: Running, ask: Ask, tokenizer: type[Tokenizer] = tokens.Fast) -> Iterator[str]:
    """A tokenizer's file, a port for the server, which is given, and clients, in a session of their own and outside of the workload's
    control group."""
    tokens.learn(running.folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        running.env[PORT] = str(free.getsockname()[1])
    used = tokenizer(running.folder)
    ask = replace(ask, first=ask.first.sized(used), then=ask.then and ask.then.sized(used))
    command = [sys.executable, "-m", "tests.workloads.asking", str(running.folder), running.env[PORT], json.dumps(asdict(ask))]
    with running.child(command):
        yield running.env[PORT]


def _ask_for_ever(folder: Path, port: int, number: int, ask: dict[str, Any]) -> None:
    draw, began_s = random.Random(number), time.monotonic()
    asking_s, silent_s = ask["bursts"]
    while True:
        past_s = (time.monotonic() - began_s) % (asking_s + silent_s)
        if (folder / "quiet").exists() or ((folder / "bursts").exists() and past_s > asking_s):
            time.sleep(0.05)
            continue
        text = ask["then"] if ask["then"] and (folder / "slow").exists() else ask["first"]
        prompt = tokens.TEXTS[text["kind"]](text["characters"], draw)
        body = json.dumps({"prompt": prompt, "max_tokens": draw.randint(-(-text["answer"] // 2), text["answer"]), "stream": True})
        connection = http.client.HTTPConnection("127.0.0.1", port)
        with suppress(OSError, http.client.HTTPException):
            connection.request("POST", ask["path"], body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            for _line in answer:
                pass
            if answer.status == 200:
                continue
        connection.close()
        time.sleep(0.1)  # it does not listen yet, or not any more


def _main(folder: str, port: str, text: str) -> None:
    program.end_with_parent()
    ask = json.loads(text)
    program.called(ask["called"])
    for number in range(ask["clients"]):
        threading.Thread(target=_ask_for_ever, args=(Path(folder), int(port), number, ask), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    _main(*sys.argv[1:])
