"""Tool `prove`: an experiment, by a `gputop prove` of its own, which puts everything back. Only where the server allows experiments."""

from __future__ import annotations

import signal
from typing import Any

from gputop.agents.answer import Answer, Asked, all_untrusted
from gputop.agents.places import LIVE, Places
from gputop.system.errors import UserError
from gputop.system.program import argv_of

SAYS = (
    "Prove a suspected cause on this machine: it is switched off and on in turn, the job's pace compared, and all put back. Takes about a "
    "minute, in which it changes priorities, CPU masks or limits of your processes. keep: leave a proved fix in place."
)
WHOLE_S = 180.0  # s; 8 pairs of arms of 8 s take 130


class ProveQuestion(Asked):
    trainer_pid: int | None = None
    cause: str = ""
    keep: bool = False


class ProveAnswer(Answer):
    result_untrusted: dict[str, Any] = {}


def run(places: Places, asked: ProveQuestion) -> ProveAnswer:
    if (asked.target or LIVE) != LIVE:
        raise UserError("experiments are for 'live', this machine")
    words = [*([str(asked.trainer_pid)] if asked.trainer_pid else []), *(["--cause", asked.cause] if asked.cause else [])]
    argv = argv_of("gputop", "prove", *words, "--yes", "--json", *(["--keep"] if asked.keep else []))
    too_long = f"the experiment took more than {WHOLE_S:g} s and was ended; its guardian puts everything back"
    return ProveAnswer(target=LIVE, result_untrusted=all_untrusted(places.children.last_object(argv, signal.SIGINT, WHOLE_S, too_long)))
