"""The engine that is shaped like vLLM: what its batch does, without a GPU."""

from __future__ import annotations

import queue

from tests.workloads.served import Batch


def batch(requests: int, room: int, most: int = 64, answer: int = 50) -> Batch:
    asked: queue.Queue[dict[str, int]] = queue.Queue()
    for number in range(requests):
        asked.put({"id": number, "prompt": 100, "answer": answer})
    made = Batch(room, most)
    made.take(asked)
    return made


def test_requests_run_together_until_each_has_its_answer() -> None:
    made = batch(3, 10_000, answer=2)
    assert made.step()["running"] == 3
    told = made.step()
    assert (told["done"], told["running"], told["waiting"], told["preemptions"]) == ([0, 1, 2], 0, 0, 0)
    assert (told["steps"], told["step_tokens"]) == (2, 306)


def test_without_room_some_wait_and_some_are_pushed_out() -> None:
    made = batch(6, 420)
    assert (made.step()["running"], made.step()["waiting"]) == (4, 2)
    told = [made.step() for _ in range(10)][-1]
    assert told["preemptions"] == 1
    assert told["waiting"] == 3
    assert told["kv"] <= 1.0
