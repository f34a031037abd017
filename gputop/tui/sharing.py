"""`y`: the page of an incident, written to the working directory, its path copied."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread
from time import strftime
from typing import TYPE_CHECKING

from gputop.model.frame import SECOND_NS
from gputop.recording.ring import write_blocks
from gputop.system import crash
from gputop.system.errors import starting
from gputop.system.output import create, unused

if TYPE_CHECKING:
    from collections.abc import Callable

    from gputop.stream.session import Session

BEFORE_S, AFTER_S = 10, 5  # s of the page before an incident and after it: what was usual, and whether it is usual again
EXPORT_S = 120.0  # s for the page, which takes one or two


def span_of(session: Session, at_ns: int) -> tuple[int, int, str]:
    """(first s, last s, cause) of the page, in whole seconds after the start of the last ten minutes: the incident that lasts at a moment,
    else the last one that began before; everything, and no cause, without one."""
    start_ns, end_ns = session.ring.start_ns, session.ring.end_ns
    begun = [one for one in session.engine.incidents if one.start_ns <= at_ns and (one.end_ns is None or one.end_ns > start_ns)]
    whole = max(1, -(-(end_ns - start_ns) // SECOND_NS))
    if not begun:
        return 0, whole, ""
    found = max(begun, key=lambda one: (one.end_ns is None or one.end_ns >= at_ns, one.start_ns))
    last_ns = end_ns if found.end_ns is None else found.end_ns
    first_s = max(0, (found.start_ns - start_ns) // SECOND_NS - BEFORE_S)
    return first_s, max(first_s + 1, min(whole, (last_ns - start_ns) // SECOND_NS + AFTER_S)), found.cause


def share(session: Session, at_ns: int, done: Callable[[str, str], None]) -> None:
    """Write the page in a thread, by a process of its own: judging ten minutes would hold up the screen. ``done`` is called in that thread
    with the path, empty if there is none, and a line with the outcome. Raises UserError if no thread can be started."""
    with session.lock:
        header, blocks, end_ns = session.ring.for_a_file()
        first_s, last_s, cause = span_of(session, at_ns)

    def write() -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="gputop-") as folder:
                recording, page = str(Path(folder, "shared.gputop")), unused(f"gputop-{strftime('%Y%m%d-%H%M%S')}", ".html")
                write_blocks(recording, create(recording), header, blocks, end_ns)
                command = [sys.executable, "-P", "-m", "gputop", "export", recording, "--to", "html", "-o", page]
                command += ["--from", f"{first_s}s", "--until", f"{last_s}s"]
                ran = subprocess.run(command, capture_output=True, text=True, timeout=EXPORT_S, check=False)
            if ran.returncode:
                done("", (ran.stderr.strip().splitlines() or ["the page could not be written"])[-1])
            else:
                done(str(Path(page).resolve()), f"wrote {page}{f', of {cause}' if cause else ''}")
        except Exception as error:  # noqa: BLE001 - the screen goes on, and shows it
            done("", crash.reason(error))

    with starting():
        Thread(target=write, name="share").start()


