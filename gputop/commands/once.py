"""`gputop --once` and `--json`: the live view for scripts, and where no screen can be shown."""

from __future__ import annotations

import argparse
import importlib
import select
import sys
import time
from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gputop.commands.options import RECORDER, ask_sudo, check_chosen, leave_root, sampling_settings, stream_argv
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.system.colour import trimmed
from gputop.system.console import draws_ascii, notify, show, write

if TYPE_CHECKING:
    from gputop.model.roles import Role
    from gputop.stream.child import ChildStream
    from gputop.stream.session import Session
    from gputop.stream.snapshot import Snapshot
    from gputop.tui.draw import Line, Span
    from gputop.tui.draw.view import View

LOOK_S = 0.1  # s of a look at least: two readings make a rate
LINE_S = 3.0  # s of a look for --line: a window of the diagnosis, which is 2.5 s, and its first reading
LONG_S = 2.0  # s; a longer look is announced


def run(args: argparse.Namespace) -> int:
    """Print one object, line or screen, or with --json alone an object for every tick, with --line alone a line whenever it changes."""
    check_chosen(args)
    if not args.once:
        ask_sudo(args)
    if args.once and args.interval > LONG_S and sys.stderr.isatty():
        notify(f"looking for about {args.interval:g} s …")
    if args.line:
        return _print_lines(args)
    if args.once and args.json:
        return _print_look(look(args), args)
    if args.json:
        return _print_stream(_stream(args), args)
    return _print_screen(look(args), args)


def look(args: argparse.Namespace, least_s: float = LOOK_S) -> Iterator[Header | Frame]:
    """The header and frames of one interval, at least ``least_s``: collected in this process, or by the collector of another machine."""
    look_s = max(least_s, args.interval)
    if args.host is None:
        return iter(_collected(args, 1 + ceil(look_s / args.interval)))
    return _first(_stream(args), round(look_s * SECOND_NS))


def _first(items: Iterator[Header | Frame], look_ns: int) -> Iterator[Header | Frame]:
    """Items until ``look_ns`` have passed since the first frame, which is off the beat, half an interval or more before the next.

    The clock of another machine may stand still: twice that by this one's, and `LONG_S`, is the most.
    """
    since_ns, last_s = None, float("inf")
    for item in items:
        yield item
        if isinstance(item, Frame):
            if since_ns is None:
                since_ns, last_s = item.t_ns, time.monotonic() + 2 * look_ns / SECOND_NS + LONG_S
            if item.t_ns - since_ns >= look_ns or time.monotonic() > last_s:
                return


def _stream(args: argparse.Namespace) -> Iterator[Header | Frame]:
    """The stream of a collector of its own, without end."""
    from gputop.stream.child import ChildStream

    if args.host is not None:
        leave_root(*RECORDER)
    stream = ChildStream(stream_argv(args))
    leave_root(*RECORDER)
    return _live_items(stream)


def _collected(args: argparse.Namespace, ticks: int) -> list[Header | Frame]:
    from gputop.collector.beat import Collector, make_header

    settings = replace(sampling_settings(args), everyone=not args.line, ebpf=False)
    items: list[Header | Frame] = [make_header(settings)]

    class Keep:
        def send(self, frame: Frame) -> bool:
            items.append(frame)
            return True

    def wait(seconds: float) -> None:
        until = time.monotonic() + seconds
        for module in ("diagnosis", *(["stream.snapshot"] if args.json else ["tui.draw.edges", "tui.draw.gpus", "tui.draw.table"])):
            importlib.import_module(f"gputop.{module}")  # needed next; the collector waits for its beat anyway
        time.sleep(max(0.0, until - time.monotonic()))

    Collector(settings, Keep()).run(ticks, wait)
    return items


def _live_items(stream: ChildStream) -> Iterator[Header | Frame]:
    from gputop.stream.reader import Loop
    from gputop.stream.restarts import LastingStream

    with Loop(LastingStream(stream), drain_s=0.0) as loop:
        yield from loop.live_items()


def _print_stream(items: Iterator[Header | Frame], args: argparse.Namespace) -> int:
    from gputop.stream.snapshot import Snapshots

    snapshots = Snapshots()
    for item in items:
        snapshots.take(item)
        if isinstance(item, Frame):
            _print_object(snapshots.now(partial(_only, args)))
    return 0


def _print_lines(args: argparse.Namespace) -> int:
    """Print one line after a look, or else a line whenever it changes, once a second at most."""
    from gputop.findings.line import line_of
    from gputop.stream.following import Following

    following, told, due_ns = Following(), "", 0
    reader = select.poll()
    reader.register(1, 0)  # POLLERR and POLLHUP come unasked
    for item in look(args, LINE_S) if args.once else _stream(args):
        following.take(item)
        if args.once or following.board.t_ns < due_ns or following.engine.fed_ns == 0:
            continue
        if reader.poll(0):
            break  # the bar is gone; a line that does not change would never find out
        due_ns = following.board.t_ns + SECOND_NS
        text = line_of(following.board, following.engine.verdict).form(args.line, draws_ascii(args.ascii))
        if text != told:
            write(f"{text}\n")
        told = text
    if args.once:
        following.engine.feed(following.board)
        write(f"{line_of(following.board, following.engine.verdict).form(args.line, draws_ascii(args.ascii))}\n")
    return 0


def _print_look(items: Iterator[Header | Frame], args: argparse.Namespace) -> int:
    """Print one object, with rates over the whole look."""
    from gputop.stream import snapshot
    from gputop.stream.following import Following

    older, following = Board(), Following()
    for item in items:
        following.take(item)
        if isinstance(item, Frame) and older.seq < 0:
            older = following.board.counters()
    engine = following.engine
    engine.feed(following.board)
    board = following.board
    only, incidents = _only(args, board, engine.roles), snapshot.lasting(engine, board)
    servers = snapshot.servers_of(engine, board)
    _print_object(snapshot.take(older, board, engine.family, engine.states, only, incidents, servers))
    return 0


def _print_object(taken: Snapshot) -> None:
    import msgspec

    write(msgspec.json.encode(taken, enc_hook=str) + b"\n")


def _only(args: argparse.Namespace, board: Board, roles: dict[int, Role]) -> frozenset[int] | None:
    """The processes that --pid and --user ask for; None for all that a snapshot lists by itself."""
    if args.pid is None and args.user is None:
        return None
    found = frozenset(board.procs)
    if args.pid is not None:
        found = frozenset(p for p in found if p == args.pid or (p in roles and roles[p].trainer_pid == args.pid))
    if args.user is not None:
        found = frozenset(p for p in found if (info := board.infos.get(p)) and args.user in (info.user, str(info.uid)))
    return found


def _print_screen(items: Iterator[Header | Frame], args: argparse.Namespace) -> int:
    import shutil

    from gputop.stream.session import Session
    from gputop.tui.draw import ascii_line, safe_line
    from gputop.tui.draw.view import View

    session = Session()
    for item in items:
        session.ingest(item)
    session.engine.feed(session.board)
    size = shutil.get_terminal_size((120, 40))
    view = View(pid=args.pid, user=args.user, width=max(80, size.columns), height=10_000)
    plain = draws_ascii(args.ascii)
    lines = (ascii_line(line) if plain else safe_line(line) for line in page(session, view))
    show(trimmed(line) for line in lines)
    return 0


def page(session: Session, view: View, mode: Span = ("", "")) -> list[Line]:
    """One moment as lines: header with ``mode``, verdict, way to the cause, fix, GPUs and processes; it has no lanes."""
    from gputop.findings import message
    from gputop.findings.trouble import notice
    from gputop.findings.verdict import best_fix
    from gputop.tui.draw import gpus, table
    from gputop.tui.draw.edges import header_lines, verdict_lines
    from gputop.tui.draw.view import Axis

    older, newer = session.boards_around(None, 0)
    no_axis, drawer = Axis(1, 0, 0), table.TableDrawer()
    state = newer.sources.get("nvml")
    known = "unknown" if state is not None and state.state == "partial" else "none"
    verdict = session.engine.verdict
    noticed = notice(session.engine.incidents, verdict)
    absent: list[Line] = [[(f" GPU  {known}{f': {state.reason}' if state else ''}", "dim")]]
    return [
        *header_lines(session, view, mode, ""),
        *verdict_lines(verdict, view, keys=(), notice=noticed)[: 2 if verdict.detail or noticed[0] else 1],
        *message.way(verdict.path, view.width),
        *message.fixes([fix for fix in (best_fix(verdict.fixes),) if fix is not None], view.width),
        *(gpus.lines(newer, older, view, gpus.count(newer) + 1) if newer.gpus else absent),
        table.heading(view, 0),
        *(drawer.line(row, view, session.history, no_axis, None) for row in table.rows(session, view)),
    ]
