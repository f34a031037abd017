"""Prove a cause: switch it off and on again in turn, compare the job's pace pair by pair, and put everything back.

It changes the priority, CPU mask or limits of the processes that it names first, for a few seconds at a time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from gputop.commands.options import ask_sudo, duration, number, process_id, sampling_argv
from gputop.system.console import notify, show, write
from gputop.system.errors import UserError
from gputop.system.text import clean, counted

if TYPE_CHECKING:
    from gputop.findings.verdict import WhatIf
    from gputop.model.frame import Frame, Header
    from gputop.prove.change import Plan
    from gputop.prove.running import Proof
    from gputop.prove.suspect import SuspectWatch, Suspicion
    from gputop.prove.trial import Outcome, TrialSettings
    from gputop.stream.reader import Loop

WAKE_S = 5.0  # s for a guardian that was stopped to undo all (guess)
WAIT_S, SILENT_S = 0.2, 15.0  # s between looks at an experiment; s without a frame, after which the collector is given up
NOTHING = "nothing to prove"  # a reason that begins so is no failure
EXAMPLES = """examples:
  gputop prove                            try what the diagnosis suspects
  gputop prove 3821 --pairs 8             one trainer, with more pairs
  gputop prove --cause cpu-contention     this cause, instead of the diagnosis'
  gputop prove --yes --keep --json        for a script; the fix stays if it is proved
  gputop prove --undo                     put back what a killed gputop left changed
"""
OUTCOMES = {"proved": "good", "disproved": "title"}  # result -> meaning of its line; else nothing is certain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", nargs="?", type=process_id, metavar="PID", help="the trainer; without it the one that loses most")
    parser.add_argument("--cause", metavar="X", help="try this cause; if the diagnosis names no culprit, the busiest processes are taken")
    parser.add_argument("--pairs", type=number(), metavar="N", help="pairs of off and on (4): 3 if it is clear, 8 if not")
    seconds = "seconds of an arm (3; up to 8 if steps are slow; of a server 5)"
    parser.add_argument("--seconds", type=duration("1s", "10m"), metavar="S", help=seconds)
    parser.add_argument("--keep", action="store_true", help="leave the fix in place if it is proved, and follow the job for a minute")
    parser.add_argument("--stop", action="store_true", help="culprits may be stopped, for a second at a time, where nothing gentler works")
    parser.add_argument("--yes", action="store_true", help="do not ask; processes of other users need --others, too")
    parser.add_argument("--others", action="store_true", help="with --yes, as root: nor for processes of other users")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--undo", action="store_true", help="put back what an experiment has left behind, and leave")
    parser.add_argument("--readonly", action="store_true", help="change nothing: print what would be tried")
    parser.add_argument("--no-ebpf", action="store_true", help="no eBPF probes: compare the GPU's work instead of steps")
    parser.add_argument("--sudo", action="store_true", help="load the eBPF probes through sudo; the rest runs as you")
    parser.set_defaults(interval=0.1, gpu=None, serving=None, no_serving=False)


def run(args: argparse.Namespace) -> int:
    """Run the experiment. Returns 0 if there is a result, or nothing is wrong; UserError if it could not be tried."""
    _check(args)
    if args.undo:
        return _undo()
    ask_sudo(args)
    from gputop.stream.child import ChildStream, collector_argv
    from gputop.stream.reader import Loop
    from gputop.stream.restarts import LastingStream

    with Loop(LastingStream(ChildStream(collector_argv(sampling_argv(args)))), drain_s=0.0, silent_s=SILENT_S) as loop:
        return _prove(args, loop)


def _check(args: argparse.Namespace) -> None:
    """Raise UserError for words that mean nothing."""
    from gputop.findings.verdict import CAUSES, UNCOSTED

    known = [cause for cause in CAUSES if cause not in (*UNCOSTED, "none", "unexplained")]
    if args.cause is not None and args.cause not in known:
        raise UserError(f"--cause {args.cause!r}: no cause; there are {', '.join(known)}", code=2)
    if args.readonly and (args.keep or args.undo):
        raise UserError("--readonly changes nothing: leave out --keep and --undo", code=2)
    if args.undo and any((args.pid, args.cause, args.pairs, args.seconds, args.keep, args.stop, args.yes, args.json)):
        raise UserError("--undo goes alone", code=2)
    if args.others and not args.yes:
        raise UserError("--others goes with --yes: without that you are asked", code=2)


def _undo() -> int:
    from gputop.prove.guardian import wake_guardians
    from gputop.prove.journal import in_use, of_others, undo_leftovers

    woken = wake_guardians()
    until = time.monotonic() + WAKE_S if woken else 0.0
    while in_use() and time.monotonic() < until:
        time.sleep(WAIT_S)
    is_under_way = in_use()
    lines = [f"a guardian process ({pid}) had been stopped: {'it goes on' if is_under_way else 'put back'}" for pid in woken]
    lines += undo_leftovers()
    is_done = all(": put back" in line for line in lines)
    lines = lines or ["an experiment is under way: it puts everything back itself" if is_under_way else "nothing to put back"]
    if whose := ", ".join(map(str, of_others())):
        lines.append(f"experiments of other users (uid {whose}), under way or left behind, are theirs and root's: sudo gputop prove --undo")
    show(lines)
    return 0 if is_done else 1


def _prove(args: argparse.Namespace, loop: Loop) -> int:
    from gputop.commands.live import left_behind
    from gputop.prove.change import Refusal
    from gputop.prove.running import planned_for
    from gputop.prove.suspect import SuspectWatch

    if told := left_behind():
        raise UserError(told)  # no other experiment is begun before
    watch = SuspectWatch(args.pid, args.cause)
    items = loop.live_items()
    if sys.stderr.isatty():
        notify("looking for what the job waits for …")
    found = _suspicion(items, watch)
    if isinstance(found, str):
        return _untried(args, found, None, code=0 if found.startswith(NOTHING) else 1)
    planned = planned_for(found.case, args.stop)
    if isinstance(planned, Refusal):
        return _untried(args, planned.reason, found, code=1, what_if=watch.predictions())
    if not found.named and found.case.culprits:
        notify(f"the diagnosis does not name {found.case.cause}: these are the busiest processes")
    if args.readonly:
        return _untried(args, f"would try: {planned.says}", found, code=0, planned=planned)
    if not _agreed(args, planned):
        return _untried(args, "not tried: the answer was no", found, code=1, planned=planned)
    return _try(args, items, watch, found, planned)


def _suspicion(items: Iterator[Header | Frame], watch: SuspectWatch) -> Suspicion | str:
    for item in items:
        if (found := watch.take(item)) is not None:
            return found
    raise AssertionError("the stream of a collector has no end")


def _untried(
    args: argparse.Namespace, reason: str, found: Suspicion | None, code: int, what_if: Sequence[WhatIf] = (), planned: Plan | None = None
) -> int:
    """Print why nothing was tried, what could be, and what changes would bring."""
    if args.json:
        from gputop.prove.running import untried

        cause, trainer = (found.case.cause, found.case.trainer.pid) if found is not None else (args.cause, args.pid)
        _write_json(untried(reason, cause, trainer, what_if, planned))
    elif found is None:
        _show(reason)
    else:
        from gputop.findings.outlook import sentence

        _show(f"{found.case.trainer}: {reason}", sentence(what_if), *_reached(planned))
    return code


def _reached(planned: Plan | None) -> list[str]:
    """The processes that a plan would change, as text: how many, then a line for each."""
    from gputop.prove import reach

    found = planned.reached if planned is not None else ()
    return [text for text in (reach.summed(found), *map(reach.line, found)) if text]


def _show(*lines: str, style: str = "") -> None:
    """Print the lines that are not empty, in the colour of a meaning; in a terminal they are wrapped between words."""
    show([(part, style)] for line in lines if line for part in (_whole_words(line, "") if sys.stdout.isatty() else [line]))


def _whole_words(text: str, indent: str) -> list[str]:
    """The text in lines of the terminal's width."""
    return textwrap.wrap(
        clean(text), max(20, shutil.get_terminal_size().columns), initial_indent=indent, subsequent_indent="  ", break_on_hyphens=False
    )  # fmt: skip


def _agreed(args: argparse.Namespace, planned: Plan) -> bool:
    """Ask, and name each process that is changed. --yes answers for the user's own processes, with --others also for other
    users' processes. UserError without a terminal to ask at."""
    from gputop.prove.change import named

    if args.yes and (args.others or not planned.others):
        return True
    whose = f", and so {counted(len(planned.others), 'process')} of other users: {named(planned.others)}" if planned.others else ""
    if not sys.stdin.isatty():
        remedy = f"give --yes{' --others' if planned.others else ''} to try it without a question, --readonly to see all processes"
        raise UserError(f"it would change {planned.says}{whose}: {remedy}")
    notify("to try, on and off in turn; all is put back:")
    said = [part for text in (planned.says + whose, *_reached(planned)) for part in _whole_words(text, "  ")]
    sys.stderr.write("\n".join([*said, "try it? [y/N] "]))
    sys.stderr.flush()
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise


def _try(args: argparse.Namespace, items: Iterator[Header | Frame], watch: SuspectWatch, found: Suspicion, planned: Plan) -> int:
    from gputop.prove import running
    from gputop.prove.guardian import ExperimentEnding
    from gputop.prove.suspect import samples
    from gputop.prove.trial import Outcome, Pair, Trial
    from gputop.stream.marking import send_mark

    trial = Trial(_settings(args, found.settings, planned), found.case.cause)
    taken = samples(items, watch, found.case.trainer, time.monotonic_ns())
    kept, ending = None, ExperimentEnding()
    events = running.experiment(taken, planned, trial, send_mark, args.keep, ending)
    try:
        with closing(events):  # all is put back at once, whatever ends this: Ctrl-C, or a closed pipe
            for event in events:
                if isinstance(event, Pair):
                    line, style = running.pair_line(event, len(trial.pairs), trial.so_far()), ""
                elif isinstance(event, Outcome):
                    line, style = running.told(planned.says, event), OUTCOMES.get(event.result, "warn")
                else:
                    kept, line, style = event, running.followed_line(event), ""
                if not args.json:
                    _show(line, style=style)
                if isinstance(event, Outcome) and _stays(args, planned, event) and sys.stderr.isatty():
                    notify("the fix stays; the job is followed for a minute …")
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        notify(f"broken off: {'the fix stays' if _stays(args, planned, trial.outcome) and ending.is_kept else ending.told}")
        raise
    except OSError as error:
        raise UserError(error.strerror or str(error)) from None
    outcome = trial.outcome
    assert outcome is not None
    if ending.theirs and kept is None:
        notify(ending.told)
    if args.keep and kept is None:
        notify("the fix is not kept" + ("" if planned.may_keep else f": {planned.intervention} is for experiments alone"))
    if args.json:
        _write_json(running.proof(found.case, planned, outcome, kept, watch.missing_clock(), ending.theirs))
    return 1 if outcome.result == "undecided" else 0


def _settings(args: argparse.Namespace, usual: TrialSettings, planned: Plan) -> TrialSettings:
    """The settings that are asked for; the limit of time leaves room for more, or longer, arms."""
    from msgspec.structs import replace

    from gputop.prove.trial import LONGER

    settings = replace(usual, pairs=args.pairs or usual.pairs, pulse_s=planned.pulse_s)
    if args.seconds:
        settings = replace(settings, seconds=args.seconds, most_s=0.0)
    if args.pairs or args.seconds:
        arm_s = settings.settle_s + max(settings.seconds, settings.most_s)
        settings = replace(settings, limit_s=max(settings.limit_s, 2 * LONGER * settings.pairs * arm_s))
    return settings


def _stays(args: argparse.Namespace, planned: Plan, outcome: Outcome | None) -> bool:
    return bool(args.keep) and planned.may_keep and outcome is not None and outcome.result == "proved"


def _write_json(found: Proof) -> None:
    import msgspec

    write(msgspec.json.encode(found) + b"\n")
