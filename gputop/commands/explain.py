"""Explain a recording, or without FILE this machine now: the verdict, lost GPU time by cause, incidents with evidence and fixes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from gputop.commands.options import RECORDER, add_sampling, ask_sudo, leave_root, sampling_argv
from gputop.commands.span import add_span, read_by, span
from gputop.findings.explanation import Dated, Episode, Explanation
from gputop.findings.verdict import SEVERITIES
from gputop.model.board import Board
from gputop.stream.following import Following
from gputop.system.console import notify, show, write
from gputop.system.errors import UserError
from gputop.system.text import clean

EXAMPLES = """examples:
  gputop explain                          look for 10 s, then explain
  gputop explain --sample                 the recording that comes with gputop
  gputop explain run.gputop --last 2m     the last two minutes of a recording
  gputop explain run.gputop --from "epoch 3" --until "epoch 4"
  gputop explain --json --fail-on medium  for CI: exit code 3 where something is wrong
"""
LIVE_S = 10.0  # of this machine, without --last
LEAST_S = 2.0  # of a recording; the diagnosis needs so much
FAILED_ON = 3  # exit code
_OF_A_FILE = {"from_": None, "until": None, "fine": False}  # flags for recordings only -> their default
_OF_A_LOOK = {"gpu": None, "interval": 0.1, "no_ebpf": False, "sudo": False}  # flags for this machine only -> their default


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="a recording, or files of a rotation; without it this machine for --last (10s)"
    )
    parser.add_argument("--sample", action="store_true", help="the recording that comes with gputop")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument("--plot", action="store_true", help="GPU utilization over time, with the incidents")
    parser.add_argument("--fail-on", choices=SEVERITIES, metavar="SEVERITY", help="exit 3 for an incident of at least this severity")
    add_span(parser)
    add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation. Returns 3 where --fail-on is met."""
    if args.sample:
        from gputop.commands.replay import sample

        if args.files:
            raise UserError("name a FILE or --sample (see gputop explain --help)", code=2)
        args.files = [sample()]
    _check(args)
    found = explained(args.files, args, with_points=args.plot) if args.files else _live(args)
    if args.json:
        import msgspec

        write(msgspec.json.encode(found.explanation) + b"\n")
    else:
        from gputop.findings.text import dated_lines, explain_lines, plot, without_colour

        dated = dated_lines("experiments", found.experiments)
        dated += dated_lines("NCCL's reports on ranks that hung", found.explanation.nccl or ())
        show([*explain_lines(found.explanation, found.ongoing), *dated])
        if args.plot:
            picture = plot(found.points, found.explanation.incidents)
            write(f"{picture if sys.stdout.isatty() else without_colour(picture)}\n")
    for line in found.problems:
        notify(line)
    return FAILED_ON if _met(args.fail_on, found.explanation.incidents) else 0


def _check(args: argparse.Namespace) -> None:
    """Raise UserError for flags that have no effect."""
    idle, when = (_OF_A_LOOK, "without") if args.files else (_OF_A_FILE, "with")
    given = [f"--{name.strip('_').replace('_', '-')}" for name, absent in idle.items() if getattr(args, name) != absent]
    if given:
        raise UserError(f"{', '.join(given)}: only {when} a FILE (see gputop explain --help)", code=2)


class ExplainedStretch(Struct):
    """The explanation of a stretch of frames."""

    explanation: Explanation
    points: list[tuple[float, float]] = field(default_factory=list)  # (unix seconds, mean utilization of the GPUs in %), about one a second
    problems: list[str] = field(default_factory=list)
    ongoing: bool = True  # whether more frames may follow
    experiments: list[Dated] = field(default_factory=list)  # of a recording: how they ended


def explained(paths: Sequence[str], args: argparse.Namespace, with_points: bool = False) -> ExplainedStretch:
    """Explain the stretch of a recording that the flags choose. UserError if it cannot be read."""
    from gputop.recording.format import TIER_NAMES
    from gputop.recording.parts import open_recording
    from gputop.stream.judged import judged
    from gputop.stream.kept import explanation

    with open_recording(paths) as recording:
        start, end = span(args, recording)
        kept = explanation(recording, start, end, with_rest=True) if not with_points and not args.fine else None
        found = ExplainedStretch(kept) if kept is not None else judge(one := Following(), judged(one, recording, start, end, args.fine))
        if kept is not None:
            found.explanation = replace(found.explanation, judged_by="recorder")
            found.problems.append("these are the recorder's findings; --fine judges every tick again")
        else:
            read_by(args, recording, start, end)
            tier = TIER_NAMES[max(recording.tiers_between(start, end, recording.tier))]
            found.explanation = replace(found.explanation, judged_by="explain", read_at=tier)
        seconds = (min(end, recording.end_ns) - start) / 1e9
        if seconds + 2 * recording.header.interval_ns / 1e9 < LEAST_S:
            found.problems.append(f"{seconds:.2g} s are too short to judge, ask for {LEAST_S:g} s or more")
        within = [(recording.header.unix_ns_of(mark.t_ns) / 1e9, mark) for mark in recording.marks if start <= mark.t_ns < end]
        found.experiments = [Dated(unix_s, mark.experiment) for unix_s, mark in within if mark.experiment]
        if said := [Dated(round(unix_s, 3), clean(mark.nccl)) for unix_s, mark in within if mark.nccl]:
            found.explanation = replace(found.explanation, nccl=said)
        gaps = [mark.text for mark in recording.marks if mark.gap_reason and start <= mark.t_ns < end]
        if gaps:
            found.problems.append(f"{len(gaps)} gaps, the first: {gaps[0]}" if len(gaps) > 1 else gaps[0])
        if recording.problem:
            found.problems.append(recording.problem)
        found.ongoing = recording.growing and end > recording.end_ns
        return found


def _live(args: argparse.Namespace) -> ExplainedStretch:
    from gputop.stream.child import ChildStream, collector_argv
    from gputop.stream.reader import Look, Loop
    from gputop.stream.restarts import LastingStream

    ask_sudo(args)
    seconds = LIVE_S if args.last is None else args.last
    if sys.stderr.isatty():
        notify(f"looking for {seconds:g} s …")
    stream = LastingStream(ChildStream(collector_argv(sampling_argv(args))))
    with Loop(stream, Look(seconds), drain_s=0.0) as loop:
        leave_root(*RECORDER)
        return judge(one := Following(), one.through(loop.live_items()))


def judge(following: Following, fed: Iterable[Board]) -> ExplainedStretch:
    """Feed its engine to the end of ``fed``; the explanation."""
    points: list[tuple[float, float]] = []
    for board in fed:
        _add_point(points, board)
    return ExplainedStretch(following.engine.explain(), points)


def _add_point(points: list[tuple[float, float]], board: Board) -> None:
    known = [value for gpu in board.gpus.values() if (value := gpu.number("util_pct")) is not None]
    if known:
        points.append((board.header.unix_ns_of(board.t_ns) / 1e9, sum(known) / len(known)))


def _met(severity: str | None, incidents: Iterable[Episode]) -> bool:
    if severity is None:
        return False
    least = SEVERITIES.index(severity)
    return any(SEVERITIES.index(one.severity) >= least for one in incidents)
