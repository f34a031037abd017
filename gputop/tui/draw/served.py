"""What the row of a serving job shows in place of steps and workers: queue, requests, tokens a second, time to the first token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gputop.model.board import Board
from gputop.model.roles import Role
from gputop.model.serving import SPAN_NS, ServingNow, serving_now, total_of, worst_of
from gputop.stream.session import Session
from gputop.system.text import figure
from gputop.tui.draw import Span
from gputop.tui.draw.columns import TableColumn

SERVES = "SERVES"  # the fact without which the columns have nothing to show
FROM_WIDTH = 120  # columns of a terminal from which on they are there; in a narrower one the words stand behind the name


class ServedNow(Struct, frozen=True):
    """The requests of one server, its models and engines together. None: its page has no such metric."""

    waiting: float | None
    running: float | None
    tokens_per_s: float | None
    first_token_p99_s: float | None

    def words(self) -> str:
        """``5 wait 11 run 560 tok/s TTFT 0.98 s``"""
        parts = (
            (self.waiting, "{:.0f} wait"), (self.running, "{:.0f} run"),
            (_short(self.tokens_per_s), "{} tok/s"), (_short(self.first_token_p99_s), "TTFT {} s"),
        )  # fmt: skip
        return " ".join(form.format(value) for value, form in parts if value is not None)


def _short(value: float | None) -> str | None:
    return None if value is None else figure(value, 2 if value < 10.0 else 3)


def served_at(session: Session, t_ns: int | None, newer: Board, roles: Mapping[int, Role]) -> dict[int, ServedNow]:
    """Pid of the first process on a GPU of each server -> its requests at ``t_ns`` (None is now). ``newer``: the board then."""
    if not newer.servings:
        return {}
    from gputop.model.engines import top_of

    at_ns = session.now_ns if t_ns is None else t_ns
    older = session.board_at(max(session.oldest_ns, at_ns - SPAN_NS)).servings
    pages: dict[int, list[ServingNow]] = {}
    for key, page in newer.servings.items():
        if not page.problem:
            pages.setdefault(page.pid, []).append(serving_now(older.get(key), page))
    first: dict[int, int] = {}
    for pid in sorted(pid for pid, role in roles.items() if role.kind == "trainer"):
        top = top_of(newer.infos, pid)
        if top is not None and top[1] in pages:
            first.setdefault(top[1], pid)
    return {pid: _together(pages[top]) for top, pid in first.items()}


def _together(pages: Sequence[ServingNow]) -> ServedNow:
    waiting, running, tokens = (total_of(pages, name) for name in ("waiting", "running", "generated_tokens_per_s"))
    return ServedNow(waiting, running, tokens, worst_of(pages, "first_token_p99_s"))


def _cell(name: str, unit: str = "") -> Callable[..., Span]:
    def cell(row: object, _view: object) -> Span:
        served = getattr(row, "served", None)
        value = None if served is None else getattr(served, name)
        return ("" if served is None else "–", "dim") if value is None else (f"{_short(value)}{unit}", "")

    return cell


COLUMNS = (
    TableColumn("QUEUE", 6, _cell("waiting"), FROM_WIDTH, needs=SERVES, help="of an inference server: requests that wait"),
    TableColumn("REQ", 5, _cell("running"), FROM_WIDTH, needs=SERVES, help="requests that it works on"),
    TableColumn("TOK/S", 6, _cell("tokens_per_s"), FROM_WIDTH, needs=SERVES, help="tokens that it generates a second"),
    TableColumn("TTFT", 6, _cell("first_token_p99_s", "s"), FROM_WIDTH, needs=SERVES, help="time to the first token, 99th percentile"),
)
