"""How a program of gputop's ends: its exit code, and errors in one line."""

from __future__ import annotations

from collections.abc import Callable

from gputop.system import crash
from gputop.system.console import clean_errors, discard_output, notify, replace_closed
from gputop.system.errors import UserError
from gputop.system.program import calm_garbage_collection


def run_program(work: Callable[[], int], is_own: bool = True) -> int:
    """Do the work, print its error, and return the exit code. ``is_own``: the process runs nothing else."""
    replace_closed()
    if is_own:
        calm_garbage_collection()  # while modules are imported there is nothing to collect, and looking for it takes 6 % of a single look
        clean_errors()
        crash.watch_threads(notify)
    code = _outcome(work)
    if failed := crash.last_words():
        notify(failed)
        return 1
    return code


def _outcome(work: Callable[[], int]) -> int:
    try:
        return work()
    except UserError as error:
        notify(str(error))
        return error.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        discard_output()
        return 0
    except Exception as error:  # noqa: BLE001 - a bug: one line for the user, and a file with the traceback
        crash.end_with(error)
        return 1
