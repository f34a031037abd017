"""What a serving job's row shows where a training has its arguments: requests, queue, tokens a second, time to the first token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gputop.model.board import Board
from gputop.model.roles import Role
from gputop.model.serving import SPAN_NS, ServingNow, serving_now
from gputop.stream.session import Session
from gputop.system.text import figure


def served_at(session: Session, t_ns: int | None, newer: Board, roles: Mapping[int, Role]) -> dict[int, str]:
    """Pid of the first process on a GPU of each server -> its requests in words, at ``t_ns`` (None is now). ``newer``: the board then."""
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
    return {pid: _words(pages[top]) for top, pid in first.items()}


def _words(pages: Sequence[ServingNow]) -> str:
    """``20+4 req 312 tok/s 0.9 s``: waiting and running requests, tokens a second, 99th percentile of the time to the first token."""
    waiting, running, tokens = (_total(pages, name) for name in ("waiting", "running", "generated_tokens_per_s"))
    late = max((one.first_token_p99_s for one in pages if one.first_token_p99_s is not None), default=None)
    parts = [
        "" if running is None else f"{running:.0f} run", "" if waiting is None else f"{waiting:.0f} wait",
        "" if tokens is None else f"{figure(tokens, 3)} tok/s", "" if late is None else f"TTFT {figure(late, 2)} s",
    ]  # fmt: skip
    return " ".join(filter(None, parts))


def _total(pages: Sequence[ServingNow], name: str) -> float | None:
    known = [value for one in pages if (value := getattr(one, name)) is not None]
    return sum(known) if known else None
