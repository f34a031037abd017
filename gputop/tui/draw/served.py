"""What the row of a serving job shows in place of steps and workers: queue, requests, tokens a second, time to the first token.

They are the numbers of its lanes at that moment, and so of its verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from gputop.model.board import Board
from gputop.model.fields import FIRST_TOKEN, OF_SERVERS, RUNNING, TOKENS, WAITING
from gputop.model.roles import Role
from gputop.stream.session import Session
from gputop.tui.draw import Span
from gputop.tui.draw.columns import TableColumn
from gputop.tui.draw.lanes import short, value_at

SERVES = "SERVES"  # the fact without which the columns have nothing to show
FROM_WIDTH = 120  # columns of a terminal from which on they are there; in a narrower one the words stand behind the name


class ServedNow(Struct, frozen=True):
    """The requests of one server, its models and engines together. None: its page has no such metric."""

    waiting: float | None
    running: float | None
    tokens_per_s: float | None
    first_token_p99_ms: float | None

    def words(self) -> str:
        """``5 wait 11 run 560 tok/s TTFT 980 ms``"""
        parts = (
            (self.waiting, "{} wait"), (self.running, "{} run"), (self.tokens_per_s, "{} tok/s"), (self.first_token_p99_ms, "TTFT {} ms"),
        )  # fmt: skip
        return " ".join(form.format(short(value)) for value, form in parts if value is not None)


def served_at(session: Session, t_ns: int | None, newer: Board, roles: Mapping[int, Role]) -> dict[int, ServedNow]:
    """Pid of the first process on a GPU of each server -> its requests at ``t_ns`` (None is now). ``newer``: the board then."""
    at_ns, history = session.now_ns if t_ns is None else t_ns, session.history
    known = {subject for field, subject in history.series if field in OF_SERVERS}
    if not known:
        return {}
    from gputop.model.engines import top_of

    first: dict[int, int] = {}
    for pid in sorted(pid for pid, role in roles.items() if role.kind == "trainer"):
        top = top_of(newer.infos, pid)
        if top is not None and top[1] in known:
            first.setdefault(top[1], pid)
    found: dict[int, ServedNow] = {}
    for server, pid in first.items():
        read = (value_at((field, server), history, at_ns) for field in (WAITING, RUNNING, TOKENS, FIRST_TOKEN))
        values = [None if value != value else value for value in read]
        if any(value is not None for value in values):
            found[pid] = ServedNow(*values)
    return found


def _cell(name: str, unit: str = "") -> Callable[..., Span]:
    def cell(row: object, _view: object) -> Span:
        served = getattr(row, "served", None)
        value = None if served is None else getattr(served, name)
        return ("" if served is None else "–", "dim") if value is None else (f"{short(value)}{unit}", "")

    return cell


COLUMNS = (
    TableColumn("QUEUE", 6, _cell("waiting"), FROM_WIDTH, needs=SERVES, help="of an inference server: requests that wait"),
    TableColumn("REQ", 5, _cell("running"), FROM_WIDTH, needs=SERVES, help="requests that it works on"),
    TableColumn("TOK/S", 6, _cell("tokens_per_s"), FROM_WIDTH, needs=SERVES, help="tokens that it generates a second"),
    TableColumn("TTFT", 8, _cell("first_token_p99_ms", "ms"), FROM_WIDTH, needs=SERVES, help="time to the first token, 99th percentile"),
)
