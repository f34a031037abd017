"""See gputop without a GPU: real processes, real trouble, and a SIMULATED GPU. Nothing is left behind."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from gputop.commands import live
from gputop.commands.goodbye import AT_HOME, add_goodbye, say_goodbye
from gputop.commands.options import NO_EBPF, SUDO, ask_sudo, duration, sampling_argv
from gputop.commands.screen import add_looks
from gputop.demo.scenarios import SCENARIOS, Scenario
from gputop.model.stream import EXPERIMENT_BEGINS
from gputop.sources import simulated
from gputop.system.console import show

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from gputop.stream.session import Session

TOUR = "tour"
EXAMPLES = (
    "".join(f"  {name:<20}{scenario.summary}\n" for name, scenario in SCENARIOS.items())
    + f"  {TOUR:<20}the first scenario, with captions that explain the screen\n"
    + """
examples:
  gputop demo slow-disk --plain --duration 60
"""
)
_LIVE_S, _PLAIN_S = 600.0, 30.0  # how long, with and without a screen
TOURED = "cpu-contention"  # the scenario of the tour
STEPS: tuple[tuple[str, tuple[str, ...], float], ...] = (  # (caption, keys, seconds to read it)
    ("A training job on a simulated GPU; its loader workers are real. Top line: what gputop can see here. Below: the verdict.", (), 8.0),
    ("Now two agents take the CPUs. Watch the GPU's lane and the workers' lanes: one time axis.", (), 9.0),
    ("The GPU starves, and the second line shows the processes that cause it and the CPU they took.", (), 6.0),
    ("e: why. The evidence with its numbers, and the commands that fix it.", ("e",), 9.0),
    ("Esc closes it.", ("escape",), 2.0),
    ("s: stacks. What each stalled process is doing at this moment, down to the line.", ("s",), 9.0),
    ("Esc closes it.", ("escape",), 2.0),
    ("space pauses, ← goes back in time: the whole screen shows the moment under the cursor.", ("space", *["left"] * 12), 8.0),
    ("space follows again. R saves the last ten minutes to a file, after the fact; r records from now on.", ("space",), 8.0),
    ("? lists every key; q quits. On a GPU server just type: gputop", (), 12.0),
)


NEWS_NS = 3_000_000_000  # ns that news stays before the key to press
HINT_NS = 7_000_000_000  # ns that a hint stays: time to read it and press
HOLD_NS = 3_000_000_000  # ns that the trouble goes on after the last sign of an experiment
NEEDS_ROOT = " (needs root)"  # in a summary, for the list
HINTS = (
    "e shows why: the path to the cause, and the commands that fix it",
    "s shows the stacks, taken by themselves when it began, to the line",
    "e, then p proves it: gputop holds the cause back in turns and measures",
)
AFTERWARDS = (
    "← goes back to the dip: the whole screen shows it then",
    "R saves the last 10 minutes: gputop replay, explain",
    "q quits. On a GPU server just type: gputop",
)
UNPROBED = "SIM sync: the simulated CUDA; as root, measured"  # a caption where no probes run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [*SCENARIOS, TOUR]
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
    with staged(TOURED if args.scenario == TOUR else args.scenario, seconds) as environment:
        os.environ.update(environment)
        if plain:
            ask_sudo(args)
            return _print_verdicts(args, seconds)
        if args.scenario == TOUR:
            return live.run(args, guide)
        words = simulated.open_path(environment[simulated.VARIABLE], writable=True)
        return live.run(args, caption=Story(SCENARIOS[args.scenario], words).caption)


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


class Story:
    """The caption of one scenario on one screen: at most 78 columns."""

    def __init__(self, scenario: Scenario, words: memoryview[int]) -> None:
        """``words``: the simulated GPU's memory."""
        self._scenario, self._words = scenario, words
        self._found: dict[int, int] = {}  # when an act began -> when its cause was found in it

    def caption(self, session: Session) -> str:
        """The line for this moment; the session is locked."""
        words, now = self._words, session.now_ns
        act, since, until = words[simulated.ACT], words[simulated.ACT_SINCE], words[simulated.ACT_UNTIL]
        is_healthy = session.engine.verdict.symptom == "healthy"
        if act == simulated.STEADY:
            return self._trouble(session, since, now)
        if act == simulated.CALM:
            state = "healthy: the workers keep the GPU fed" if is_healthy else "a training job starts, and gputop finds its processes"
            return f"1/4 {state}. Trouble begins in {_seconds(until - now)}"
        if act == simulated.TROUBLE:
            return self._trouble(session, since, now, "2/4 ", "3/4 ")
        if act == simulated.END:
            return "the demo has ended: q quits. On a GPU server just type: gputop"
        if now - since < NEWS_NS or not is_healthy:
            return "4/4 the trouble is over: the GPU comes back"
        ebpf = session.board.sources.get("ebpf")
        unprobed = () if ebpf is not None and ebpf.state == "ok" else (UNPROBED,)
        return f"4/4 {_turn(AFTERWARDS[:1] + unprobed + AFTERWARDS[1:], now - since - NEWS_NS)} (again in {_seconds(until - now)})"

    def _trouble(self, session: Session, since: int, now: int, before: str = "", after: str = "") -> str:
        """Caption while something is wrong since ``since``, or the cause is still to be found: what to look at and which key to press."""
        told = [mark for mark in session.marks if mark.t_ns >= since]  # an earlier one is about other trouble
        about = [mark for mark in told if mark.experiment or mark.text.startswith(EXPERIMENT_BEGINS)]
        if about and not about[-1].experiment:
            self._words[simulated.ACT_HOLD] = now + HOLD_NS
            return f"{after}an experiment: the cause is switched off and on, its effect measured"
        if about and now - about[-1].t_ns < HINT_NS:
            return f"{after}{about[-1].experiment}"
        verdict, scenario = session.engine.verdict, self._scenario
        if (verdict.symptom, verdict.cause) == (scenario.symptom, scenario.cause):
            self._found.setdefault(since, now)
        if (found := self._found.get(since)) is None:
            return f"{before}{scenario.summary.removesuffix(NEEDS_ROOT)}: gputop looks for it"
        if now - found < NEWS_NS:
            what = f"{scenario.cause} found" if scenario.cause != "none" else "found healthy"
            return f"{after}{what} after {_seconds(found - since)}: the top lines name it"
        hints = HINTS if scenario.turns else HINTS[:-1]  # a cause in the program itself is not switched off
        return f"{after}{_turn(hints if scenario.cause != 'none' else AFTERWARDS[1:], now - found - NEWS_NS)}"


def _turn(texts: tuple[str, ...], ns: int) -> str:
    """The text to show now; each stays for `HINT_NS`."""
    return texts[max(0, ns // HINT_NS) % len(texts)]


def _seconds(ns: int) -> str:
    return f"{max(1, round(ns / 1e9))} s"


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
