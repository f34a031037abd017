"""`x` on the dashboard: apply the fix on the line after a question, follow its effect; `u` undoes it, the end too unless `k` keeps it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING

from gputop.model.frame import SECOND_NS
from gputop.stream.session import Session
from gputop.system import crash
from gputop.system.errors import UserError, starting
from gputop.tui.draw import Line

if TYPE_CHECKING:
    from gputop.prove.applying import AppliedFix, Pace
    from gputop.prove.change import Plan, Refusal, TargetProcess
    from gputop.stream.offer import Offer

END_S = 10.0  # s that the end of the screen waits for a fix that is just being applied; its guardian undoes it in any case
Planned = tuple["Plan | Refusal", "TargetProcess | None"]


class Fixing:
    """The fix that is applied from this screen, at most one; keys come in the screen's thread, changes are made in others."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._applied: AppliedFix | None = None
        self._thread: Thread | None = None

    @property
    def applied(self) -> AppliedFix | None:
        """The fix in force; None without one."""
        return self._applied

    @property
    def is_busy(self) -> bool:
        """Whether one is being planned, applied or undone."""
        return self._thread is not None and self._thread.is_alive()

    def plan(self, offer: Offer) -> Planned:
        """What the offer's command changes, and at which trainer."""
        from gputop.prove.advised import plan_of
        from gputop.prove.change import Refusal
        from gputop.prove.suspect import SuspectWatch

        watch = SuspectWatch()
        with self._session.lock:
            watch.following = self._session.following
            found = watch.suspicion_of(offer.verdict)
        if isinstance(found, str):
            return Refusal(found), None
        return plan_of(offer.command, found.case, dict(offer.started)), found.case.trainer

    def apply(self, planned: Plan, trainer: TargetProcess, cause: str, stays: bool = False, before: Pace | None = None) -> str:
        """Apply a plan that the user agreed to; a line for the user. Raises OSError.

        ``stays``: also when gputop ends; ``before``: the job's pace without it, where an experiment has measured it.
        """
        from gputop.prove.applying import AppliedFix

        with self._session.lock:
            starts = [one.start_ns for one in self._session.engine.incidents if one.end_ns is None and one.cause == cause]
        made = AppliedFix(planned, trainer, stays)
        self._applied = made
        try:
            made.begin(self._session, max(starts, default=0), before)
        except BaseException:
            self._applied = None
            raise
        return "applied: u undoes it, " + ("else it stays when gputop ends" if stays else "k keeps it when gputop ends")

    def undo(self) -> str:
        """Put it back; a line for the user. Raises OSError."""
        made, self._applied = self._applied, None
        return made.undo() if made is not None else "no fix is applied"

    def keep_up(self) -> str:
        """The fix goes on; a line for the user if it ended by itself. Called a few times a second."""
        made = self._applied
        if made is None or self.is_busy:
            return ""
        made.beat()
        with self._session.lock:
            lives = made.targets_live(self._session)
        if lives and not made.lost:
            return ""
        self._applied = None
        lost = made.lost or "what the fix changed has ended"
        made.undo()
        return lost

    def start(self, job: Callable[[], object], done: Callable[[object], object], fail: Callable[[str], object]) -> None:
        """Do a job in a thread, as the screen never waits; ``done`` and ``fail`` are called in that thread."""
        def work() -> None:
            try:
                found = job()
            except Exception as error:  # noqa: BLE001 - the screen shows it; a thread's own traceback would tear it
                fail(crash.reason(error))
            else:
                done(found)

        try:
            with starting():
                self._thread = Thread(target=work, name="fix", daemon=True)
                self._thread.start()
        except UserError as error:
            fail(str(error))

    def close(self) -> None:
        """The screen ends: put everything back, but what `k` keeps."""
        if self._thread is not None:
            self._thread.join(END_S)
        made, self._applied = self._applied, None
        if made is not None:
            try:
                made.end()
            except OSError:
                return  # its guardian goes on trying

    def lines(self) -> Line | None:
        """The line of the fix in force; None without one. Hold the session's lock."""
        made = self._applied
        if made is None or not made.since_ns:
            return None
        from gputop.prove.applying import told  # half a megabyte, which no screen without a fix needs

        seconds = (self._session.now_ns - made.since_ns) // SECOND_NS
        pace = made.pace(self._session)
        effect = told(made.before, pace) or "its effect cannot be measured" if pace else "measuring its effect"
        return [(" ✓ ", "good"), (f"applied {seconds} s ago: {effect}", "good")]
