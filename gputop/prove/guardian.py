"""`Guard`, around one experiment, and the guardian process that undoes it when gputop dies.

The guardian has a session of its own and ignores the signals that end a terminal's programs. It holds the journal, with its lock, and the
read end of a pipe. When the pipe ends gputop has ended, and unless it sent `OVER` before, the guardian undoes what the journal names.
gputop in turn watches the guardian, and undoes at once when that one dies. If both die the journal remains
(`gputop.prove.journal.leftovers`).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from gputop.prove import host
from gputop.prove import journal as journals
from gputop.prove.change import STOPPED, Plan, Record, is_new, read_value, send_signal_to, write_value
from gputop.prove.fuse import Fuse
from gputop.prove.processes import cmdline_of, read_processes, uids_of, why_no_pids
from gputop.prove.reach import strangers
from gputop.prove.subjects import find

if TYPE_CHECKING:
    import subprocess

SILENT_S = 60.0  # s without a word of gputop while a change is on, after which the guardian undoes it: gputop was stopped (a choice)
SPEAK_S = 15.0  # s between two words of gputop, as long as its experiment goes on (a choice)
UNDO_S = 60.0  # s that the guardian tries to undo what the kernel refuses at first (a choice)
END_S, ASK_S = 2.0, 0.05  # s that is waited for a guardian's end, for it holds the lock, too; and between two tries (guess)
READY_S = 20.0  # s that the guardian may take to start: a loaded machine (guess)
PASSES = 5  # rounds that look for new threads and children (guess)
ON, OFF, OVER = b"1", b"0", b"2"  # what gputop sends to the guardian
ALL_BACK, FAILED, BUT_THEIRS = 0, 1, 3  # exit codes of the guardian: all was put back; not all; all but what another program has changed
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2)


class ExperimentEnding(Struct):
    """State in which an experiment left things, for a report, also after an exception."""

    is_kept: bool = False  # whether the changes stay, for good
    is_put_back: bool = False  # whether all reads as before, but for `theirs`
    theirs: list[str] = []  # what another program has changed since, in words: it is left as it is

    @property
    def told(self) -> str:
        """A line for the user: whether all is put back, and what another program has changed since."""
        left = f"; {journals.left_line(self.theirs)}" if self.theirs else ""
        return ("all is put back" if self.is_put_back else "its guardian process puts everything back") + left


class Guard:
    """A context manager around one `Plan`. All methods raise OSError with one line; then all is put back."""

    def __init__(self, plan: Plan, *, agreed: bool = False, ending: ExperimentEnding | None = None) -> None:
        """``agreed``: the user was asked about ``plan.others`` and agreed."""
        self.plan = plan
        self.ending = ending if ending is not None else ExperimentEnding()
        self.is_on = False
        self.lost = ""  # why the experiment cannot go on; all was put back then
        self._agreed = agreed
        self._lock = threading.RLock()
        self._since_ticks = 0  # start of the experiment, in clock ticks since boot
        self._known: dict[journals.Subject, Record] = {}  # what the journal holds
        self._others = frozenset(one.pid for one in plan.others)
        self._theirs: dict[journals.Subject, str] = {}  # what another program has changed while it was on, in words
        self._read = set[tuple[str, str]]()  # (setting, value) that is read after it was set, where it is another one
        self._is_heard = True  # whether the experiment has gone on since gputop last spoke
        self._journal: journals.Journal | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._pipe = -1
        self._only = -1
        self._fuse: Fuse | None = None

    def __enter__(self) -> Guard:
        """Prepare: nothing is changed yet."""
        if self.plan.others and not self._agreed:
            raise OSError(f"no experiment: {', '.join(map(str, self.plan.others))} of another user: agree to that first")
        if problem := why_no_pids():
            raise OSError(f"no experiment: {problem}")
        try:
            self._only = _take_lock()
            _refuse_leftovers()
            self._journal = journals.create(self.plan.says)
            self._since_ticks = self._journal.read()[0].since_ticks
            self._start_guardian()
            if any(change.setting == "state" and change.new == STOPPED for change in self.plan.changes):
                self._fuse = Fuse()
        except BaseException:
            if self._journal is not None:
                self._journal.remove()
            self._release()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def on(self) -> None:
        """Make the changes, also of threads and processes that are new since the last time."""
        with self._lock:
            self.check()
            try:
                self._tell(ON)
                self._apply()
                self.is_on = self._is_heard = True
            except OSError as error:
                self._undo()
                raise OSError(f"{self.plan.says}: {error.strerror or error}") from None

    def off(self) -> None:
        """Undo the changes; `on` may follow."""
        with self._lock:
            self._undo_all()
            self.check()
            self._tell(OFF)

    def beat(self) -> None:
        """The experiment goes on. A change that is on without it for `SPEAK_S` and `SILENT_S` is undone: gputop hangs at a terminal."""
        self._is_heard = True

    def check(self) -> None:
        """Raise the OSError that `on` would raise because the guardian died."""
        if self._journal is None:
            raise OSError("the experiment has ended")
        if not self.lost and self._guardian is not None and self._guardian.poll() is not None:
            self._give_up()
        if self.lost:
            raise OSError(self.lost)

    def keep(self) -> None:
        """Leave the changes on, for good."""
        with self._lock:
            if not self.plan.may_keep:
                raise OSError(f"{self.plan.says}: this cannot be kept")
            if not self.is_on:
                self.on()
            self.check()
            self._tell(OVER)
            assert self._journal is not None
            self.ending.is_kept = True
            self._journal.remove()
            self._release()

    def close(self) -> None:
        """Undo all, unless it is kept, and end the guardian."""
        with self._lock:
            if self._journal is None:
                return
            try:
                self._undo_all()
                self.ending.is_put_back = True
                with suppress(OSError):  # it has died: nothing is left to undo
                    os.write(self._pipe, OVER)
                self._journal.remove()
            finally:
                self._release()

    def _apply(self) -> None:
        """Write the old values of new subjects, then change them; again for the ones that began since."""
        assert self._journal is not None
        applied = set[journals.Subject]()
        for _pass in range(PASSES):
            self._refuse_strangers()
            present = find(self.plan.changes, self._others)
            found = [one for one in present if one.subject not in applied and one.subject not in self._theirs and not self._is_heir(one)]
            if not found:
                break
            new = [record for record in found if self._is_news(record)]
            self._journal.append(new)
            self._known.update((record.subject, record) for record in new)
            if self._fuse is not None:
                self._fuse.arm([record for record in self._known.values() if record.old != STOPPED])
            for record in found:
                applied.add(record.subject)
                with suppress(ProcessLookupError, FileNotFoundError):
                    write_value(record, record.new)
            self._read_back(found)
        if not applied:
            raise OSError("another program has changed it" if self._theirs else "it has ended")
        if self._fuse is not None:
            self._fuse.check()

    def _refuse_strangers(self) -> None:
        """Raise OSError if a changed group or session has a process that the user was not asked about."""
        shared = [change for change in self.plan.changes if change.target is None or change.setting == "autogroup"]
        if shared and (found := strangers(shared, read_processes(), {one.pid: one.start_ticks for one in self.plan.others})):
            raise OSError(f"{found[0]}, which you were not asked about, has joined: try again")

    def _read_back(self, found: list[Record]) -> None:
        """Journal each value that reads differently from what was set, such as a mask cut by a cpuset."""
        assert self._journal is not None
        others = []
        for record in found:
            with suppress(ProcessLookupError, FileNotFoundError):
                value = read_value(record)
                if record.setting != "state" and not is_new(record, value):  # a signal takes a moment
                    others.append(replace(self._known[record.subject], new=value))
                    self._read.add((record.setting, value))
        self._journal.append(others)
        self._known.update((record.subject, record) for record in others)

    def _is_heir(self, record: Record) -> bool:
        """True if a thread has the value from a parent that has just been changed: `journals.undo` finds it."""
        has_it = is_new(record, record.old) or (record.setting, record.old) in self._read
        return has_it and record.subject not in self._known and record.tid_ticks >= self._since_ticks

    def _is_news(self, record: Record) -> bool:
        """True if a record's old value is not in the journal yet, or another program changed it while the experiment was off."""
        known = self._known.get(record.subject)
        return known is None or (known.old != record.old and not is_new(known, record.old))

    def _undo(self, try_s: float = journals.TRY_S) -> list[str]:
        """Undo the changes; returns a line about each that could not be put back. Values that another program has changed are left
        alone."""
        was_on, self.is_on = self.is_on, False
        if not self._known or self._journal is None:
            return []
        undone = journals.undo(self._since_ticks, list(self._known.values()), try_s)
        if was_on:
            self._theirs |= undone.theirs
            self.ending.theirs = list(self._theirs.values())
        if self._fuse is not None:
            self._fuse.disarm()
        return undone.failed

    def _undo_all(self) -> None:
        if failed := self._undo():
            raise OSError(f"{self.plan.says}: not put back yet: {failed[0]}; the guardian goes on trying for {UNDO_S:.0f} s")

    def _give_up(self) -> None:
        """The guardian has ended: it died, or has undone all because gputop was stopped."""
        with self._lock:
            if not self.lost and self._journal is not None:
                code = self._guardian.poll() if self._guardian is not None else None
                failed = [] if code in (ALL_BACK, BUT_THEIRS) else self._undo()
                self.is_on = False
                if not failed:
                    self._known.clear()  # what is changed from now on others change
                    self.ending.is_put_back = True
                put_back = f"not all is put back: {failed[0]}" if failed else self.ending.told
                put_back += "; values that another program has changed are left as they are" if code == BUT_THEIRS else ""
                self.lost = f"{self.plan.says}: the experiment is over, for its guardian process has ended; {put_back}"

    def _start_guardian(self) -> None:
        import subprocess

        from gputop.system.errors import start_thread
        from gputop.system.program import argv_of

        assert self._journal is not None
        read_end, self._pipe = os.pipe()
        passed = (read_end, self._journal.fd, self._only)
        try:
            self._guardian = subprocess.Popen(
                argv_of("gputop.prove.guardian", str(read_end), str(self._journal.fd), self._journal.path, str(SILENT_S)),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
                pass_fds=passed,
            )  # fmt: skip
        except OSError as error:
            raise OSError(f"no experiment: its guardian cannot be started: {error.strerror}") from None
        finally:
            os.close(read_end)
        answers = self._guardian.stdout
        assert answers is not None
        if not select.select([answers], [], [], READY_S)[0] or answers.read(1) != ON:
            raise OSError("no experiment: its guardian did not start")
        self._watcher = start_thread(self._watch, "gputop-guardian")
        if self._watcher is None:
            raise OSError("no experiment: no more threads are allowed here")

    def _watch(self) -> None:
        """Wait for the end of the guardian, and undo at once if the experiment was not over. Send the guardian signs of life."""
        assert self._guardian is not None
        assert self._guardian.stdout is not None
        with self._guardian.stdout as answers:
            while not select.select([answers], [], [], SPEAK_S)[0]:
                with self._lock, suppress(OSError):
                    if self.is_on and self._is_heard:
                        self._tell(ON)
                        self._is_heard = False
            self._guardian.wait()
        self._give_up()

    def _tell(self, what: bytes) -> None:
        try:
            os.write(self._pipe, what)
        except OSError:
            self._give_up()
            raise OSError(self.lost) from None

    def _release(self) -> None:
        """Let go of the guardian, which ends if nothing is left to undo, of the journal and of the lock."""
        import subprocess

        is_over = self._journal is None or self._journal.removed
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._journal is not None:
            os.close(self._journal.fd)
            self._journal = None
        if self._fuse is not None:
            self._fuse.close()
            self._fuse = None
        if self._only >= 0:
            os.close(self._only)
            self._only = -1
        if self._guardian is not None and is_over:
            with suppress(subprocess.TimeoutExpired):
                self._guardian.wait(END_S)
            if self._watcher is None and self._guardian.stdout is not None:
                self._guardian.stdout.close()  # else the watcher waits at it


def _take_lock() -> int:
    """The descriptor of the host's lock. Raises OSError if another experiment holds it, whoever's it is."""
    try:
        lock = host.open_lock()
    except OSError as error:
        raise OSError(f"no experiment: there is no lock for it on this machine: {error.strerror}") from None
    try:
        until = time.monotonic() + END_S
        while not host.is_locked(lock):
            if time.monotonic() > until:
                raise OSError(f"no experiment: another one is under way on this machine{_holders_line(lock)}; try again when it is over")
            time.sleep(ASK_S)
        if journals.in_use():
            raise OSError("no experiment: an earlier one is just being put back; try again when that is over")
    except BaseException:
        os.close(lock)
        raise
    return lock


def _holders_line(lock: int) -> str:
    names = [f"{pid} of uid {min(uids)}" for pid in host.holders(lock) if (uids := _uids(pid))]
    return f" (process {', '.join(names[:1])})" if names else ""


def _uids(pid: int) -> frozenset[int]:
    try:
        return uids_of(pid)
    except ProcessLookupError:
        return frozenset()


def _refuse_leftovers() -> None:
    """Raise OSError if something is left behind."""
    for left in journals.leftovers():
        problem = left.problem or f"an earlier one was left behind ({left.says}): gputop prove --undo puts it back"
        raise OSError(f"no experiment: {problem}")


def wake_guardians() -> list[int]:
    """Continue stopped guardians if this user may undo their journals: they then undo them. Returns their pids."""
    woken, folders = [], {folder.path: folder.uid for folder in host.folders()}
    for proc in read_processes().values():
        with suppress(ProcessLookupError, PermissionError):
            words = cmdline_of(proc.pid) if proc.state == "T" else []
            owners = {folders[os.path.dirname(word)] for word in words if os.path.dirname(word) in folders}
            if __name__ in words and owners == uids_of(proc.pid):
                send_signal_to(proc.pid, proc.start_ticks, signal.SIGCONT)
                woken.append(proc.pid)
    return woken


def main(arguments: list[str]) -> None:
    """The guardian: wait for the end of the pipe, then undo what the journal names, unless that is over. See `ALL_BACK`."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    pipe, journal = int(arguments[0]), journals.Journal(arguments[2], int(arguments[1]))
    os.write(1, ON)  # standard output stays open: gputop learns by its end that the guardian has died
    until, said = None, b""
    while True:
        left_s = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([pipe], [], [], left_s)[0]:
            break
        told = os.read(pipe, 4096)
        if not told:
            break
        said = told[-1:]
        until = time.monotonic() + float(arguments[3]) if said == ON else None
    undone = journals.Undone() if said == OVER else journal.undo(UNDO_S)
    if undone.failed:
        sys.exit(FAILED)
    journal.remove()
    if undone.theirs:
        sys.exit(BUT_THEIRS)


if __name__ == "__main__":
    main(sys.argv[1:])
