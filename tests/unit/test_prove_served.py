"""The pace of an inference server, by its pages: before and after a fix that is applied from the screen."""

from __future__ import annotations

import pytest

from gputop.diagnosis.facts.serving import ServerFacts
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Header, Serving
from gputop.prove.applying import Pace, told
from gputop.prove.served import between, pages_of, together


def page(t_s: float, tokens: int | None, first_token: dict[int, int] | None = None, **values: object) -> Serving:
    got = {"generated_tokens": tokens, "first_token": first_token or {}}
    return Serving(5, "127.0.0.1:8000", t_ns=round(t_s * SECOND_NS), **got | values)  # type: ignore[arg-type]


def test_the_pages_of_a_process_on_a_gpu_are_its_servers() -> None:
    board = Board(Header(t_ns=1, unix_ns=1, cpus=2))
    silent = Serving(5, "127.0.0.1:8000", model="b", t_ns=2, problem="it answers 404")
    board.fold(Frame(1, 2, servings=[Serving(5, "127.0.0.1:8000", model="a", t_ns=2, running=1), silent]))
    servers = {6: ServerFacts("vllm", "vLLM", (), top=5), 7: ServerFacts("vllm", "vLLM", (), top=8)}
    assert [one.model for one in pages_of(board, servers, 6)] == ["a"], "a page without values is none"
    assert pages_of(board, servers, 7) == pages_of(board, servers, 9) == ()


def test_models_and_engines_of_a_server_are_one() -> None:
    older = [page(1, 100, {100_000: 1}, model="a"), page(1, 50, model="b"), page(1, 9, model="gone")]
    newer = [page(3, 300, {100_000: 4, 500_000: 1}, model="a"), page(3, 150, model="b"), page(3, 7, model="new")]
    found = between(older, newer)
    assert found is not None
    assert (found.seconds, found.generated_tokens, found.first_token) == (2.0, 300, {100_000: 3, 500_000: 1})
    both = together([found, None, found])
    assert both is not None
    assert (both.value("tokens"), both.first_token) == (150.0, {100_000: 6, 500_000: 2})
    assert together([None]) is None


@pytest.mark.parametrize("newer", [page(1, 100), page(2, 3)])
def test_what_did_not_grow_is_no_stretch(newer: Serving) -> None:
    """The same page once more; a server that was started again."""
    assert between([page(1, 100)], [newer]) is None


def test_the_line_of_an_applied_fix_has_tokens_and_times_to_the_first_one() -> None:
    slow = between([page(0, 0)], [page(4, 800, {2_000_000: 5})])
    fast = between([page(9, 0)], [page(13, 2400, {250_000: 20})])
    line = told(Pace(9.0, 30.0, slow), Pace(12.0, 80.0, fast))
    assert line == "200 → 600 tokens/s, 3×, first token 1 → 0.12 s (p99 2 → 0.25 s), GPU 30 → 80 %"
    assert told(Pace(9.0, 30.0), Pace(12.0, 80.0, fast)).startswith("9 → 12 steps/s"), "no page before: by its steps, as a training"
