"""See gputop without a GPU: real processes, real trouble, and a SIMULATED GPU. Nothing is left behind."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from gputop.commands.options import NO_EBPF, SUDO, ask_sudo, duration, sampling_argv
from gputop.commands.screen import add_looks
from gputop.demo.scenarios import SCENARIOS
from gputop.model.frame import Frame
from gputop.system.console import show

if TYPE_CHECKING:
    from textual.pilot import Pilot

TOUR = "tour"
EXAMPLES = (
    "".join(f"  {name:<20}{scenario.summary}\n" for name, scenario in SCENARIOS.items())
    + f"  {TOUR:<20}the first scenario, with captions that explain the screen\n"
    + """
examples:
  gputop demo tour
  gputop demo slow-disk --plain --duration 60
"""
)
_LIVE_S, _PLAIN_S = 600.0, 30.0  # how long, with and without a screen
TOURED = "cpu-contention"  # the scenario of the tour
STEPS: tuple[tuple[str, tuple[str, ...], float], ...] = (  # (caption, keys, seconds to read it)
    ("A training job on a simulated GPU; its loader workers are real. Top line: what gputop can see here. Below: the verdict.", (), 5.0),
    ("Now two agents take the CPUs. Watch the GPU's lane and the workers' lanes: one time axis.", (), 9.0),
    ("The GPU starves, and the second line says which processes cause it and how much CPU they took.", (), 8.0),
    ("e: why. The evidence with its numbers, and the commands that fix it.", ("e",), 9.0),
    ("Esc closes it.", ("escape",), 2.0),
    ("s: stacks. What each stalled process is doing at this moment, down to the line.", ("s",), 9.0),
    ("Esc closes it.", ("escape",), 2.0),
    ("space pauses, ← goes back in time: the whole screen shows the moment under the cursor.", ("space", *["left"] * 12), 8.0),
    ("space follows again. R saves the last ten minutes to a file, after the fact; r records from now on.", ("space",), 8.0),
    ("? lists every key; q quits. On a GPU server just type: gputop", (), 12.0),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [*SCENARIOS, TOUR]
    parser.add_argument("scenario", nargs="?", default=names[0], choices=names, metavar="SCENARIO", help=f"a name from below ({names[0]})")
    parser.add_argument("--duration", type=duration("5s", "1h"), metavar="TIME", help="how long, 5s to 1h (10m; plain 30s)")
    parser.add_argument("--plain", action="store_true", help="no screen: print each new verdict")
    parser.add_argument("--no-ebpf", action="store_true", help=NO_EBPF)
    parser.add_argument("--sudo", action="store_true", help=SUDO)
    parser.add_argument("--readonly", action="store_true", help="no signals to processes, and no experiments")
    add_looks(parser)
    parser.set_defaults(interval=0.1, gpu=None, host=None, hosts=None, pid=None, user=None, once=False, json=False, no_auto_stacks=False)
    parser.set_defaults(job=None, pods=None, alert=[], alert_on=None)  # one machine; what is staged is told to nobody


def run(args: argparse.Namespace) -> int:
    """Run the scenario, on the screen or as lines."""
    from gputop.demo.stage import staged

    plain = args.plain or not (sys.stdin.isatty() and sys.stdout.isatty())
    seconds = args.duration or (_PLAIN_S if plain else _LIVE_S)
    with staged(TOURED if args.scenario == TOUR else args.scenario, seconds) as environment:
        os.environ.update(environment)
        if plain:
            ask_sudo(args)
            return _print_verdicts(sampling_argv(args), seconds)
        from gputop.commands import live

        return live.run(args, guide if args.scenario == TOUR else None)


async def guide(pilot: Pilot[Any]) -> None:
    """Show the captions and press the keys; returns at once when the user quits."""
    import asyncio

    for caption, keys, seconds in STEPS:
        for key in keys:
            if pilot.app.is_running:
                await pilot.press(key)
        pilot.app.notify(caption, title="tour", timeout=seconds)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not pilot.app.is_running:
                return
            await asyncio.sleep(0.1)


def _print_verdicts(flags: list[str], seconds: float) -> int:
    """Print a line when the verdict changes."""
    from contextlib import closing

    from gputop.session.child import ChildStream, collector_argv
    from gputop.session.session import Session

    session, told, began = Session(), ("", ""), time.monotonic()
    with closing(ChildStream(collector_argv(flags))) as stream:
        while time.monotonic() - began < seconds and (items := stream.read(0.2)) is not None:
            for item in items:
                session.ingest(item)
                verdict = session.engine.verdict
                if isinstance(item, Frame) and (verdict.symptom, verdict.cause) != told:
                    told = (verdict.symptom, verdict.cause)
                    text = "; ".join(part for part in (verdict.headline, verdict.detail) if part)
                    show([f"{time.monotonic() - began:5.1f} s  {verdict.symptom} · {verdict.cause}  {text}  [SIMULATED GPU]"])
    return 0
