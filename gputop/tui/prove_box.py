"""`p`: try the cause that the diagnosis names, after a question, show pair by pair how the job gets on, and keep what is proved."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from threading import Event
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from textual.binding import Binding

from gputop.tui import clipboard
from gputop.tui.box import CLOSE_KEY, Box, ConfirmScreen
from gputop.tui.canvas import Note
from gputop.tui.draw import Line, edges
from gputop.tui.feed import Context

if TYPE_CHECKING:
    from gputop.prove.change import Plan
    from gputop.prove.guardian import ExperimentEnding
    from gputop.prove.running import KeptGain, Proof
    from gputop.prove.suspect import SuspectWatch, Suspicion
    from gputop.prove.trial import JobSample, Outcome, Trial

POLL_S = 0.05  # s between two looks for a new frame: half a tick
ABOUT = "about 20 s, a minute at most; Esc ends it, and all is put back"
KEEP_KEY: edges.Key = ("k", "keep it", "keep")
COPY_KEY: edges.Key = ("c", "copy the command", "copy")
SAVE_KEY: edges.Key = ("R", "save the evidence", "save")
UNDO_KEY: edges.Key = ("u", "undo", "undo")
END_KEY: edges.Key = ("Esc", "end it, all is put back", "dismiss")
LEAVE_KEY: edges.Key = ("Esc", "as it was", "dismiss")


def why_not(context: Context) -> str:
    """Why no experiment can be begun from this screen; empty if one can."""
    if context.view.readonly:
        return "experiments are off: --readonly"
    if context.replay is not None or context.view.at_ns is not None:
        return "experiments are for the present: this is the past"
    if context.fixing is not None and context.fixing.applied is not None:
        return "a fix is applied: u undoes it, then its cause can be tried"
    return "experiments reach only processes of this machine" if context.look.remote else ""


class Tried(Struct):
    """The experiment in the box."""

    watch: SuspectWatch
    suspicion: Suspicion
    planned: Plan
    trial: Trial
    ending: ExperimentEnding
    shown: Outcome  # as far as it has come; it has a result at the end
    began_s: float  # by time.monotonic
    is_over: bool = False  # whether it has ended, and all is put back or being put back by its guardian

    @property
    def may_keep(self) -> bool:
        """Whether the change may stay, now that it is proved."""
        return self.is_over and self.shown.result == "proved" and self.planned.may_keep


class ProveScreen(Box):
    """One experiment, from its plan to its result. Closing the box ends it; all is put back, unless `k` applied the proved fix."""

    TITLE = "prove it"
    NAME = ("p", "prove")
    BINDINGS = [
        Binding("p", "dismiss", "close", show=False),
        Binding("k", "keep", "keep the proved fix"),
        Binding("c", "copy", "copy the command of the fix"),
        Binding("R", "save", "save the evidence"),
        Binding("u", "undo", "undo the kept fix"),
    ]
    REFRESH_S = 0.5

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._over = Event()
        self._told: list[Line] = [[("looking for what can be tried …", "dim")]]  # below the picture
        self._tried: Tried | None = None
        self._is_kept = False
        self._note = Note()

    def on_mount(self) -> None:
        """Plan in a thread: it reads /proc."""
        super().on_mount()
        if why := why_not(self.context):
            self._told = [[(why, "warn")]]
            self.refresh_text()
        else:
            self.work(self._plan, self._ask, self._fail)

    def on_unmount(self) -> None:
        """Closed: the thread ends the experiment at its next look."""
        self._over.set()

    # what is shown

    @property
    def first_line(self) -> str:
        """A note, else the title, with the pair that is being measured."""
        from gputop.tui.draw import proof

        if self._note.text:
            return self._note.text
        made = self._tried
        if made is None:
            return self.TITLE
        if made.is_over and not made.shown.result:
            return self.TITLE
        return proof.title(self.TITLE, made.shown, made.trial.settings.looks, time.monotonic() - made.began_s, self.text_width)

    def content(self) -> Sequence[Line]:
        """The picture; the session is locked only for the pace of a fix that is kept."""
        return self.lines()

    def lines(self) -> Sequence[Line]:
        """The picture of the experiment, and what is told about it."""
        from gputop.tui.draw import proof

        made, fixing = self._tried, self.context.fixing
        if made is None:
            return self._told
        on = made.trial.on if not (made.is_over or made.shown.result) else None
        lines = [*proof.picture(made.suspicion.case, made.planned, made.shown, on, self.text_width), *self._told]
        if self._is_kept and fixing is not None:
            with self.session.lock:
                lines.append(fixing.lines() or [("the fix is not in force any more", "warn")])
        if made.is_over:
            keys = "  ".join(f"[{key}] {word}" for key, word, _ in self.FOOTER)
            lines += [[], [(keys, "accent")]]
        return lines

    def _tell(self, text: str, style: str = "") -> None:
        self._told = [*self._told, [(text, style)]]
        self.refresh_text()

    def _fail(self, why: str) -> None:
        if self._tried is not None:
            self._tried.is_over = True
            self._choose_keys()
        self._tell(why, "warn")

    def _choose_keys(self) -> None:
        """Name the keys that do something now."""
        made = self._tried
        if made is None:
            keys = [CLOSE_KEY]
        elif not made.is_over:
            keys = [END_KEY]
        elif self._is_kept:
            keys = [UNDO_KEY, COPY_KEY, SAVE_KEY, CLOSE_KEY]
        elif made.may_keep:
            keys = [KEEP_KEY, COPY_KEY, SAVE_KEY, LEAVE_KEY]
        else:
            keys = [*([COPY_KEY] if made.shown.result == "proved" else []), *([SAVE_KEY] if made.shown.result else []), CLOSE_KEY]
        self.take_keys(keys)

    # plan, ask, try

    def _plan(self) -> Iterator[tuple[SuspectWatch, Suspicion, Plan] | str]:
        from gputop.findings.outlook import sentence
        from gputop.prove.change import Refusal
        from gputop.prove.running import planned_for
        from gputop.prove.suspect import SuspectWatch

        watch = SuspectWatch()
        with self.session.lock:
            watch.following = self.session.following
            found = watch.suspicion_now()
        if isinstance(found, str):
            yield found
            return
        planned = planned_for(found.case)
        if not isinstance(planned, Refusal):
            yield watch, found, planned
            return
        with self.session.lock:
            prediction = sentence(watch.predictions())
        yield ". ".join(filter(None, [f"{found.case.trainer}: {planned.reason}", prediction]))

    def _ask(self, found: tuple[SuspectWatch, Suspicion, Plan] | str) -> None:
        if isinstance(found, str):
            self._told = []
            self._tell(found, "warn")
            return
        watch, suspicion, planned = found
        from gputop.prove import reach

        names = [planned.says, f"for {suspicion.case.cause} at {suspicion.case.trainer}", ABOUT]
        names += [reach.summed(planned.reached), *map(reach.line, planned.reached)] if planned.reached else []
        question = ConfirmScreen("Switch this on and off in turn?", names)
        self.app.push_screen(question, lambda yes: self._begin(watch, suspicion, planned, yes))

    def _begin(self, watch: SuspectWatch, suspicion: Suspicion, planned: Plan, yes: bool | None) -> None:
        if not yes:
            self.dismiss()
            return
        from gputop.prove.guardian import ExperimentEnding
        from gputop.prove.trial import Trial

        trial = Trial(replace(suspicion.settings, pulse_s=planned.pulse_s), suspicion.case.cause)
        made = Tried(watch, suspicion, planned, trial, ExperimentEnding(), trial.so_far(), time.monotonic())
        self._tried, self._told = made, [[(ABOUT, "dim")]]
        self._choose_keys()
        self.refresh_text()
        self.work(lambda: self._try(made), self._show, self._fail)

    def _try(self, made: Tried) -> Iterator[Outcome | None]:
        """The experiment as far as it has come, with each pair and with its result; None once it has ended."""
        from gputop.prove import running
        from gputop.prove.trial import Outcome
        from gputop.stream.marking import send_mark

        taken = self._samples(made.watch, made.suspicion)
        for event in running.experiment(taken, made.planned, made.trial, send_mark, False, made.ending):
            yield event if isinstance(event, Outcome) else made.trial.so_far()
        yield None

    def _show(self, shown: Outcome | None) -> None:
        made = self._tried
        assert made is not None
        if shown is not None:
            made.shown, self._told = shown, [] if shown.result else self._told
        else:
            made.is_over = True
            self._choose_keys()
            self._tell(made.ending.told, "warn" if made.ending.theirs or not made.ending.is_put_back else "dim")
        self.refresh_text()

    def _samples(self, watch: SuspectWatch, suspicion: Suspicion) -> Iterator[JobSample]:
        """Yield samples of the trainer from the session's frames, until the box or the screen is closed."""
        last_ns = 0
        while not self._over.is_set() and not self.context.feed.closing.is_set():
            with self.session.lock:
                watch.following = self.session.following
                sample = watch.sample(suspicion.case.trainer) if self.session.now_ns > last_ns else None
                last_ns = self.session.now_ns
            if sample is not None:
                yield sample
            else:
                time.sleep(POLL_S)

    # after the result: keep, undo, copy, save

    def action_keep(self) -> None:
        """Apply the proved fix, so that it stays; `u` undoes it as long as gputop runs."""
        made, fixing = self._tried, self.context.fixing
        if made is None or fixing is None or not made.may_keep or self._is_kept or fixing.is_busy:
            self._answer(self._why_not_kept())
            return
        from gputop.prove.applying import Pace
        from gputop.prove.trial import GPU_WORK, STEPS

        per_min = made.shown.mean(on=False, metric=STEPS)
        per_s = None if per_min is None else per_min / 60.0
        before = Pace(per_s, made.shown.mean(on=False, metric=GPU_WORK), made.shown.served(on=False))
        case = made.suspicion.case
        fixing.start(
            lambda: fixing.apply(made.planned, case.trainer, case.cause, stays=True, before=before),
            lambda told: self.tell(self._show_kept, str(told)), lambda why: self.tell(self._answer, why),
        )  # fmt: skip
        self._answer("being applied …")

    def _why_not_kept(self) -> str:
        made = self._tried
        if made is None or not made.is_over:
            return "nothing is proved yet"
        if self._is_kept or (self.context.fixing is not None and self.context.fixing.is_busy):
            return "it is kept: u undoes it"
        return "what is proved can be kept" if made.shown.result != "proved" else f"{made.planned.intervention} is for experiments alone"

    def _show_kept(self, told: str) -> None:
        self._is_kept, self._told = True, []
        self._choose_keys()
        self._answer(told)

    def action_undo(self) -> None:
        """Undo the kept fix."""
        fixing = self.context.fixing
        if not self._is_kept or fixing is None or fixing.is_busy:
            self._answer("nothing is kept: nothing is to be undone")
            return
        fixing.start(fixing.undo, lambda told: self.tell(self._show_undone, str(told)), lambda why: self.tell(self._answer, why))

    def _show_undone(self, told: str) -> None:
        self._is_kept, self._told = False, [[(told, "dim")]]
        self._choose_keys()
        self.refresh_text()

    def action_copy(self) -> None:
        """Copy the command that does by hand what was proved."""
        from gputop.prove.advised import command_of

        made = self._tried
        if made is None or not made.is_over or made.shown.result != "proved":
            self._answer("nothing is proved: there is no command to copy")
            return
        command = command_of(made.planned)
        self._answer(clipboard.copy_nth(self.app, [command] if command else [], 1))

    def action_save(self) -> None:
        """Write the object of `gputop prove --json` to a file in the working directory, in a thread."""
        made = self._tried
        if made is None or not made.is_over or not made.shown.result:
            self._answer("there is no result to save yet")
        else:
            self.work(lambda: iter([self._write(self._evidence(made))]), self._answer, self._answer)

    def _evidence(self, made: Tried) -> Proof:
        from gputop.prove.running import proof

        with self.session.lock:
            kept, no_clock = self._kept_gain(made.shown), made.watch.missing_clock()
        return proof(made.suspicion.case, made.planned, made.shown, kept, no_clock, made.ending.theirs)

    def _kept_gain(self, outcome: Outcome) -> KeptGain | None:
        """The pace since the fix was kept; None if it is not. Hold the session's lock."""
        from gputop.model.frame import SECOND_NS
        from gputop.prove.running import kept_gain

        fixing = self.context.fixing
        if not self._is_kept or fixing is None or fixing.applied is None:
            return None
        applied = fixing.applied
        pace = applied.pace(self.session)
        value = None if pace is None else pace.value(outcome.metric)
        return kept_gain(outcome, (self.session.now_ns - applied.since_ns) / SECOND_NS, value)

    @staticmethod
    def _write(found: Proof) -> str:
        """Write it; the line for the user. Raises UserError."""
        import msgspec

        from gputop.system.output import create, unused

        path = unused(f"gputop-proof-{time.strftime('%Y%m%d-%H%M%S')}", ".json")
        with os.fdopen(create(path), "wb") as file:
            file.write(msgspec.json.encode(found) + b"\n")
        return f"saved the evidence: {path}"

    def _answer(self, text: str) -> None:
        self._note.show(text)
        self.refresh_text()
