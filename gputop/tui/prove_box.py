"""`p` in the why screen: try the cause that the diagnosis names, after a question, and show pair by pair how the job gets on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from threading import Event
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual.binding import Binding

from gputop.tui.box import Box, ConfirmScreen
from gputop.tui.draw import Line
from gputop.tui.feed import Context

if TYPE_CHECKING:
    from gputop.prove.change import Plan
    from gputop.prove.suspect import SuspectWatch, Suspicion
    from gputop.prove.trial import JobSample

POLL_S = 0.05  # s between two looks for a new frame: half a tick
STYLES = {"proved": "accent", "disproved": "warn", "undecided": "warn"}
ABOUT = "about 20 s, a minute at most; Esc ends it, and all is put back"


def why_not(context: Context) -> str:
    """Why no experiment can be begun from this screen; empty if one can."""
    if context.view.readonly:
        return "experiments are off: --readonly"
    if context.replay is not None or context.view.at_ns is not None:
        return "experiments are for the present: this is the past"
    return "experiments reach only processes of this machine" if context.look.remote else ""


class ProveScreen(Box):
    """One experiment, from its plan to its result. Closing the box ends it; all is put back."""

    TITLE = "prove it"
    BINDINGS = [Binding("p", "dismiss", "close", show=False)]
    REFRESH_S = 0.0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._over = Event()
        self._said: list[Line] = [[("looking for what can be tried …", "dim")]]

    def on_mount(self) -> None:
        """Plan in a thread: it reads /proc."""
        super().on_mount()
        if why := why_not(self.context):
            self._said = [[(why, "warn")]]
            self.refresh_text()
        else:
            self.work(self._plan, self._ask, self._fail)

    def on_unmount(self) -> None:
        """Closed: the thread ends the experiment at its next look."""
        self._over.set()

    def lines(self) -> Sequence[Line]:
        """Lines printed so far."""
        return self._said

    def content(self) -> Sequence[Line]:
        """Lines printed so far. They show nothing of the session, so its lock is not needed."""
        return self._said

    def _say(self, text: str, style: str = "") -> None:
        self._said = [*self._said, [(text, style)]]
        self.refresh_text()

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
            self._said = []
            self._say(found, "warn")
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
        self._said = [[(planned.says, "title")], [(ABOUT, "dim")], []]
        self.refresh_text()
        self.work(lambda: self._tried(watch, suspicion, planned), lambda line: self._say(*line), self._fail)

    def _tried(self, watch: SuspectWatch, suspicion: Suspicion, planned: Plan) -> Iterator[tuple[str, str]]:
        """The lines of the experiment, as they come."""
        from gputop.prove import running
        from gputop.prove.guardian import ExperimentEnding
        from gputop.prove.trial import Outcome, Pair, Trial
        from gputop.stream.marking import send_mark

        trial, ending = Trial(replace(suspicion.settings, pulse_s=planned.pulse_s), suspicion.case.cause), ExperimentEnding()
        for event in running.experiment(self._samples(watch, suspicion), planned, trial, send_mark, False, ending):
            if isinstance(event, Pair):
                yield running.pair_line(event, len(trial.pairs), trial.clock), ""
            elif isinstance(event, Outcome):
                yield "", ""
                yield running.told(planned.says, event), STYLES[event.result]
        yield ending.told, "warn" if ending.theirs or not ending.is_put_back else "dim"

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

    def _fail(self, why: str) -> None:
        self._say(why, "warn")
