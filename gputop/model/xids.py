"""Xid errors: what each means and what to do, as gputop/data/xids.txt lists them."""

from __future__ import annotations

import os
from typing import NamedTuple

from gputop.system.program import FOLDER

RESET = "reset"  # the action after which a GPU works again, and not before
ACTIONS = {
    "watch": "nothing now; if it comes again, let the GPU be checked",
    "program": "look at the program: compute-sanitizer finds such errors",
    "restart": "start the program again; if it comes again, let the GPU be checked",
    RESET: "reset the GPU when no process uses it, else reboot",
    "reset-later": "reset the GPU when its work is done",
    "link": "reset the GPUs that the link joins when their work is done; if it comes again, let the link be checked",
    "service": "let the GPU be checked: power, slot, cooling, then the card itself",
    "asked": "do what the driver asks for (nvidia-smi -q: GPU Recovery Action)",
}
"""Word of the file -> advice."""
RECOVERIES = {1: "a reset", 2: "a reboot of the machine", 3: "to drain the GPU", 4: "to drain the GPU and reset it"}
"""nvmlDeviceGpuRecoveryAction -> what the driver asks for; 0 is nothing."""


class Xid(NamedTuple):
    """One kind of Xid error."""

    action: str  # a word of `ACTIONS`
    meaning: str


def _listed() -> dict[int, Xid]:
    with open(os.path.join(FOLDER, "data", "xids.txt"), encoding="utf-8") as file:
        rows = (line.rstrip("\n").split("\t") for line in file if not line.startswith("#"))
        return {int(number): Xid(action, meaning) for number, action, meaning in rows}


XIDS = _listed()
ENDING_XIDS = {number: xid.meaning for number, xid in XIDS.items() if xid.action == RESET}
"""Xid -> meaning, for Xids after which a GPU works only after a reset or a reboot: the immediate action in NVIDIA's catalog. Not of a link
(74, 136, 155), of one process or channel (48, 94, 109) and of spare memory rows (63, 64, 156)."""


def meaning_of(xid: float | None) -> str | None:
    """What an Xid means; None for one that is not listed."""
    found = None if xid is None else XIDS.get(int(xid))
    return None if found is None else found.meaning


def advice_on(xid: float | None) -> str | None:
    """What to do after an Xid; None for one that is not listed."""
    found = None if xid is None else XIDS.get(int(xid))
    return None if found is None else ACTIONS[found.action]
