"""Writes the stream to a recording, with the findings of the diagnosis at its end."""

from __future__ import annotations

import re
import resource
import shlex
import time
from typing import TYPE_CHECKING

from gputop.model.frame import Frame, Header
from gputop.recording.lasting import Lasting
from gputop.recording.writer import NO_LIMIT, Rotation, Tell
from gputop.stream.reader import Reader
from gputop.system.console import notify
from gputop.system.text import counted

if TYPE_CHECKING:
    from gputop.stream.command import Command
    from gputop.stream.runs import KeptRuns
    from gputop.stream.stalled import Unwatched

NO_READING = "the collector gave no reading"


class Recorder(Reader):
    """Writes one recording; what ``judging``, a reader before this one, has found is its end."""

    def __init__(
        self, judging: Unwatched, command: Command, *, path: str | None = None, max_bytes: int | None = None, max_files: int = 0,
        keep_s: float | None = None,
    ) -> None:  # fmt: skip
        """``path`` None: a name of the host and the time. ``max_bytes`` of a file, ``max_files`` that are kept (0: all), or ``keep_s``:
        time that the whole recording covers, in ``max_bytes``."""
        self.problem = ""  # why the recording is incomplete
        self.path = ""  # of the last file with frames, once it is complete
        self._judging, self._command = judging, command
        self._path, self._max_bytes, self._max_files, self._keep_s = path, max_bytes, max_files, keep_s
        self._file: Lasting | None = None
        self._runs: KeptRuns | None = None

    def begin(self, header: Header) -> None:
        if self._file is None:
            self._file = self._create(header)
        else:
            self._file.restate(header)

    def take(self, frame: Frame) -> None:
        if self._file is not None:
            self._file.add(frame, self._judging.board)
        if self._runs is not None and self._judging.has_fed:
            self._runs.note(self._judging.engine)

    def miss(self, silent_s: float) -> None:
        if self._file is not None:
            self._file.miss(silent_s, NO_READING)

    def rest(self) -> float:
        """Seconds until the next block is nearly full."""
        return self._file.rotation.full_in_ns / 1e9 if self._file is not None else 0.0

    def discard(self) -> None:
        """Remove the new file: its name is free for the next try."""
        file, self._file = self._file, None
        if file is not None:
            file.rotation.discard()

    def end(self) -> None:
        """Complete the file, and print where it is and what is missing."""
        self.problem = self.loop.problem
        if self._file is None:
            return
        stream = self.loop.stream
        if why := self.problem or stream.trouble or (NO_READING if self.loop.silent_s else ""):
            self._file.miss(stream.silent_s, why)
        self._file.close()
        self._end_runs()
        rotation, missing = self._file.rotation, self._file.missing
        runs_on = "; the command runs on" if self._command.runs else ""
        if rotation.frames or not self.problem:
            told = f"{counted(rotation.frames, 'frame')} in {rotation.summary()}{f'; {missing}' if missing else ''}"
            self.path = rotation.writer.path if rotation.frames else ""
            shown = f": gputop explain {shlex.quote(rotation.writer.path)}" if rotation.frames else ""
            notify(f"{told}{shown}{runs_on}")
        if rotation.problem and not missing and not self.problem:
            notify(rotation.problem)
        self.problem = self.problem or rotation.problem or missing

    def _end_runs(self) -> None:
        """Keep the runs that last as they are now."""
        if self._runs is not None and not self._judging.problem:
            self._runs.end(self._judging.engine)
            if self._runs.problem:
                notify(self._runs.problem)

    def _create(self, header: Header) -> Lasting:
        host = re.sub(r"[^A-Za-z0-9._-]", "_", header.host) or "host"
        start = "" if self._keep_s else time.strftime("-%Y%m%d-%H%M%S")  # what is kept for longer than a start has one name
        path = f"gputop-{host}{start}.gputop" if self._path is None else self._path
        allowed, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        most = min(self._max_bytes or NO_LIMIT, NO_LIMIT if allowed == resource.RLIM_INFINITY else allowed)
        if self._keep_s:
            from gputop.recording.keep import Keeping
            from gputop.stream.runs import KeptRuns

            keep_ns = round(self._keep_s * 1e9)
            self._runs = KeptRuns(path, self._keep_s)
            self._judging.following.remember(self._runs.past)
            return Lasting(Keeping(path, header, max_bytes=most, keep_ns=keep_ns, begin=self._begin_account), notify)
        return Lasting(Rotation(path, header, most, self._max_files, self._begin_account), notify)

    def _begin_account(self) -> Tell | None:
        """Called when a file begins; the result gives its findings when the file ends."""
        from gputop.stream.kept import FindingsRecorder

        judging = self._judging
        if judging.problem:
            return None
        account = FindingsRecorder(judging.engine, round(self._keep_s * 1e9) if self._keep_s else None)
        return lambda: b"" if judging.problem else account.tell()
