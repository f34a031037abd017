"""``exec:COMMAND``: a command of the user's, with the alert as JSON on its standard input and in GPUTOP_* variables.

No shell reads the command, unless it names one (``exec:sh -c '…'``): names of other people's processes are in the variables.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress

import msgspec

from gputop.alerts.alert import Alert
from gputop.alerts.sinks import Refused
from gputop.system.errors import UserError, not_run
from gputop.system.priority import ordinary_priority

LIMIT_S = 10.0  # s that the command may run; then it is killed with all of its group (a choice)
LAST_WORDS = 200  # characters of its standard error that an error quotes


class Command:
    """Runs the command for each alert, one after the other; again if it fails."""

    def __init__(self, argv: list[str]) -> None:
        self.name = f"exec:{argv[0]}"
        self._argv = argv

    def send(self, alert: Alert) -> None:
        import tempfile

        with tempfile.TemporaryFile() as words:  # no pipe: something that it leaves running may hold it for ever
            child = self._start(variables(alert), words.fileno())
            assert child.stdin is not None
            with suppress(BrokenPipeError), child.stdin as pipe:  # it need not read it
                pipe.write(msgspec.json.encode(alert) + b"\n")  # a pipe holds 64 KB, which is more
            try:
                code = child.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                raise OSError(f"it took longer than {LIMIT_S:g} s and was killed") from None
            if code:
                words.seek(0)
                last = (words.read(1 << 16).decode(errors="replace").strip().splitlines() or [""])[-1][:LAST_WORDS]
                raise OSError(f"it ended with exit code {code}{f': {last}' if last else ''}")

    def _start(self, given: dict[str, str], errors: int) -> subprocess.Popen[bytes]:
        try:
            with ordinary_priority():
                return subprocess.Popen(
                    self._argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
                    env=os.environ | given,
                )  # fmt: skip
        except OSError as error:
            kind = Refused if isinstance(error, FileNotFoundError | PermissionError) else OSError
            raise kind(error.errno, not_run(error)) from None


def make(text: str) -> Command:
    """The sink. UserError if the text is no command, or its program is not found."""
    try:
        argv = shlex.split(text.partition(":")[2])
    except ValueError as error:
        raise UserError(f"--alert {text[:60]!r}: {str(error).lower()}", code=2) from None
    if not argv or not shutil.which(argv[0]):
        raise UserError(f"--alert {text[:60]!r}: there is no such command", code=2)
    return Command(argv)


def variables(alert: Alert) -> dict[str, str]:
    """GPUTOP_EVENT, GPUTOP_TEXT, GPUTOP_HOST, GPUTOP_CAUSE …; nothing of an earlier alert's is left over."""
    facts = {f"GPUTOP_{name.upper()}": value for name, value in alert.facts.items()}
    return {"GPUTOP_TRAINER": "", "GPUTOP_TRAINER_PID": "", "GPUTOP_EVENT": alert.event, "GPUTOP_TEXT": alert.text, **facts}

