"""The guide of `gputop demo`, in the line above the keys: what happens, which key to press now, and a tick at each that was pressed.

It waits for the key that it asks for; Tab goes on without it. While it waits for one that needs the trouble, the trouble lasts, up to
`gputop.demo.stage.MOST_TROUBLE_S`; then it comes again. At last it names the commands for the user's own node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from gputop.demo.scenarios import Scenario
from gputop.model.stream import EXPERIMENT_BEGINS
from gputop.sources import simulated
from gputop.system.install import FROM_HERE, OWN_NODE

if TYPE_CHECKING:
    from gputop.prove.applying import AppliedFix
    from gputop.stream.session import Session

NEWS_NS = 3_000_000_000  # ns that news stays before the key to press
RESULT_NS = 7_000_000_000  # ns that the end of an experiment, or of a measurement, stays: time to read it
HOLD_NS = 3_000_000_000  # ns that the trouble goes on after the last sign that it is needed
SKIP = "app.focus_next"  # Textual's action of Tab, on each of its screens
ONWARD = f"on your node: {OWN_NODE}; from here: {FROM_HERE}; q quits"
UNPROBED = "SIM sync is the simulated CUDA's; as root, it is measured; q quits"  # where no probes run

BOX, QUESTION = "box", "question"  # what lies over the dashboard

Line = list[tuple[str, str]]  # (text, style of the screen)


class Step(Struct, frozen=True):
    """A key to press."""

    key: str
    action: str  # the screen's, without its arguments; of ``x`` the fix must be in force
    words: str
    in_trouble: bool = False  # whether it is pressed while something is wrong


WHY = Step("e", "explain", "press e: why, the way to the cause and what ends it", True)
STACKS = Step("s", "stacks", "press s: what the job does now, to the line", True)
APPLY = Step("x", "apply", "press x, then y: do what the line with ► says", True)
COPY = Step("c", "copy_fix", "press c: copy the fix, a person's work", True)
UNDO = Step("u", "undo_fix", "press u: put it back, the trouble returns", True)
BACK = Step("←", "scrub", "press ← some times: the screen goes back in time")


def steps_of(scenario: Scenario, can_apply: bool = True) -> tuple[Step, ...]:
    """The keys of a scenario: only what comes from outside can be ended from the screen."""
    if scenario.cause == "none":
        return WHY, BACK
    return (WHY, APPLY, UNDO, BACK) if scenario.turns and can_apply else (WHY, STACKS, COPY, BACK)


class Guide:
    """The guide through one scenario on one screen. Its line has at most 78 columns."""

    def __init__(self, scenario: Scenario, words: memoryview[int], can_apply: bool = True) -> None:
        """``words``: the simulated GPU's memory; ``can_apply``: whether fixes may be applied from the screen."""
        self._scenario, self._words = scenario, words
        self._steps = steps_of(scenario, can_apply)
        self._at = 0  # index of the step that is waited for
        self._done: set[str] = set()  # keys of steps that were made
        self._found: dict[int, int] = {}  # when an act began -> when its cause was found in it
        self._told: tuple[str, int] = ("", 0)  # what a fix brought, and when that was first known
        self._is_applied = False

    def did(self, action: str) -> None:
        """The user has done an action of the screen: tick it; Tab goes on without the one that is asked for."""
        name = action.partition("(")[0].removeprefix("screen.")
        if action == SKIP:
            self._at += 1
        elif name != APPLY.action and (name != UNDO.action or self._is_applied):
            self._tick(name)
        self._pass_done()

    def _tick(self, action: str) -> None:
        self._done |= {step.key for step in self._steps if step.action == action}

    def _pass_done(self) -> None:
        while self._at < len(self._steps) and self._steps[self._at].key in self._done:
            self._at += 1

    def line(self, session: Session, applied: AppliedFix | None = None, over: str = "") -> Line:
        """The line for this moment; the session is locked. ``over``: what lies over the dashboard, `BOX`, `QUESTION` or nothing."""
        self._is_applied = applied is not None and applied.since_ns > 0
        if self._is_applied:
            self._tick(APPLY.action)
            self._pass_done()
        act, now = self._words[simulated.ACT], session.now_ns
        step = self._steps[self._at] if self._at < len(self._steps) else None
        words = "the demo has ended: q quits" if act == simulated.END else self._words_of(session, applied, act, step, now)
        if act == simulated.TROUBLE and (self._is_applied or (step is not None and step.in_trouble)):
            self._words[simulated.ACT_HOLD] = now + HOLD_NS
        asked = step is not None and words == step.words
        if asked and over:
            words = "y does it, n does not" if over == QUESTION else "Esc closes this box"
        ticks: Line = []
        for one in self._steps:
            is_next = step is one and asked
            mark, style = ("✓", "good") if one.key in self._done else ("▸", "accent") if is_next else (" ", "dim")
            ticks.append((f"{mark}{one.key} ", style))
        skip = [("  Tab skips", "dim")] if asked else []
        return [(" ▶ ", "title"), *(ticks if words not in (ONWARD, UNPROBED) else []), (words, "title"), *skip]

    def _words_of(self, session: Session, applied: AppliedFix | None, act: int, step: Step | None, now: int) -> str:
        since, until = self._words[simulated.ACT_SINCE], self._words[simulated.ACT_UNTIL]
        is_healthy = session.engine.verdict.symptom == "healthy"
        if told := self._experiment(session, since, now):
            return told
        if act == simulated.CALM:
            state = "healthy: the GPU is kept fed" if is_healthy else "gputop finds the training's processes"
            return f"{state}. Trouble begins in {_seconds(until - now)}"
        if act == simulated.OVER and (now - since < NEWS_NS or not is_healthy):
            return "the trouble is over: the GPU comes back"
        if act == simulated.OVER and step is not None and step.in_trouble and step is not WHY:
            return f"trouble begins again in {_seconds(until - now)}; then {step.key}"
        if act in (simulated.TROUBLE, simulated.STEADY) and (told := self._looks(session, since, now)):
            return told
        if applied is not None and (told := self._effect(session, applied, now)):
            return told
        if step is not None:
            return step.words
        return self._onward(session, now)

    def _experiment(self, session: Session, since: int, now: int) -> str:
        """Words on an experiment in this act, or on its end a moment ago; else empty."""
        told = [mark for mark in session.marks if mark.t_ns >= since]  # an earlier one is about other trouble
        about = [mark for mark in told if mark.experiment or mark.text.startswith(EXPERIMENT_BEGINS)]
        if about and not about[-1].experiment:
            self._words[simulated.ACT_HOLD] = now + HOLD_NS
            return "an experiment: the cause off and on, its effect measured"
        return about[-1].experiment if about and now - about[-1].t_ns < RESULT_NS else ""

    def _looks(self, session: Session, since: int, now: int) -> str:
        """Words until the cause is found, and a moment after that; else empty."""
        verdict, scenario = session.engine.verdict, self._scenario
        if (verdict.symptom, verdict.cause) == (scenario.symptom, scenario.cause) or verdict.cause in scenario.also:
            self._found.setdefault(since, now)
        if self._is_applied:
            return ""
        if (found := self._found.get(since)) is None:
            return f"{scenario.summary}: gputop looks"
        if now - found < NEWS_NS:
            cause = verdict.cause if verdict.cause in scenario.also else scenario.cause
            what = f"{cause} found" if cause != "none" else "found healthy"
            return f"{what} after {_seconds(found - since)}: see line 2"
        return ""

    def _effect(self, session: Session, applied: AppliedFix, now: int) -> str:
        """Words on the fix that has just been applied: until its effect is known, and a moment after that; else empty."""
        from gputop.prove.applying import told

        if not self._is_applied:
            return ""
        pace = applied.pace(session)
        effect = told(applied.before, pace) if pace is not None else ""
        if not effect:
            return "applied: its effect is measured"
        if not self._told[0]:
            self._told = effect, now
        return effect if now - self._told[1] < RESULT_NS else ""

    def _onward(self, session: Session, now: int) -> str:
        ebpf = session.board.sources.get("ebpf")
        is_probed = ebpf is not None and ebpf.state == "ok"
        return ONWARD if is_probed or now // RESULT_NS % 3 else UNPROBED


def _seconds(ns: int) -> str:
    return f"{max(1, round(ns / 1e9))} s"
