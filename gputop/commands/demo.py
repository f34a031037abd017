"""See gputop without a GPU: real processes, real trouble, a SIMULATED GPU, and which key to press. Nothing is left behind."""

from __future__ import annotations

import argparse
import os
import sys
import time

from gputop.commands import live
from gputop.commands.goodbye import AT_HOME, add_goodbye, say_goodbye
from gputop.commands.guide import Guide
from gputop.commands.options import NO_EBPF, SUDO, ask_sudo, duration, sampling_argv
from gputop.commands.screen import add_looks
from gputop.demo.scenarios import SCENARIOS
from gputop.sources import simulated
from gputop.system.console import show

EXAMPLES = (
    "".join(f"  {name:<20}{scenario.summary}{' (needs root)' if scenario.quota else ''}\n" for name, scenario in SCENARIOS.items())
    + """
examples:
  gputop demo slow-disk --plain --duration 60
"""
)
_LIVE_S, _PLAIN_S = 600.0, 30.0  # how long, with and without a screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [*SCENARIOS]
    parser.add_argument("scenario", nargs="?", default=names[0], choices=names, metavar="SCENARIO", help=f"a name from below ({names[0]})")
    parser.add_argument("--duration", type=duration("5s", "1h"), metavar="TIME", help="how long, 5s to 1h (10m; plain 30s)")
    parser.add_argument("--plain", action="store_true", help="no screen: print each new verdict")
    parser.add_argument("--no-ebpf", action="store_true", help=NO_EBPF)
    parser.add_argument("--sudo", action="store_true", help=SUDO)
    parser.add_argument("--readonly", action="store_true", help="no signals to processes, and no experiments")
    add_looks(parser)
    add_goodbye(parser)
    own, others = {action.dest for action in parser._actions}, argparse.ArgumentParser()
    live.add_arguments(others)
    parser.set_defaults(**{flag: value for flag, value in vars(others.parse_args([])).items() if flag not in own})
    parser.set_defaults(alert=[])  # what is staged raises no alert


def run(args: argparse.Namespace) -> int:
    """Run the scenario, on the screen or as lines."""
    from gputop.demo.stage import staged

    plain = args.plain or not (sys.stdin.isatty() and sys.stdout.isatty())
    seconds = args.duration or (_PLAIN_S if plain else _LIVE_S)
    with staged(args.scenario, seconds) as environment:
        os.environ.update(environment)
        if plain:
            ask_sudo(args)
            return _print_verdicts(args, seconds)
        words = simulated.open_path(environment[simulated.VARIABLE], writable=True)
        return live.run(args, Guide(SCENARIOS[args.scenario], words, not args.readonly))


def _print_verdicts(args: argparse.Namespace, seconds: float) -> int:
    """Print a line when the verdict changes."""
    from gputop.stream.child import ChildStream, collector_argv
    from gputop.stream.following import Following
    from gputop.stream.reader import Loop
    from gputop.stream.restarts import LastingStream

    following, told, began_s = Following(), ("", ""), time.monotonic()
    with Loop(LastingStream(ChildStream(collector_argv(sampling_argv(args)))), duration_s=seconds, drain_s=0.0) as loop:
        for _ in following.through(loop.items()):
            verdict = following.engine.verdict
            if (verdict.symptom, verdict.cause) != told:
                told = (verdict.symptom, verdict.cause)
                text = "; ".join(part for part in (verdict.headline, verdict.detail) if part)
                show([f"{time.monotonic() - began_s:5.1f} s  {verdict.symptom} · {verdict.cause}  {text}  [SIMULATED GPU]"])
    say_goodbye(args, following, began_s, AT_HOME)
    return 0
