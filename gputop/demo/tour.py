"""The tour: captions over the live screen, and the keys that each speaks of."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.pilot import Pilot

SCENARIO = "cpu-contention"
STEPS: tuple[tuple[str, tuple[str, ...], float], ...] = (  # (caption, keys, seconds to read it)
    ("A training job on a simulated GPU; its loader workers are real. Top line: what gputop can see here. Below: the verdict.", (), 5.0),
    ("Now two agents take the CPUs. Watch the GPU's lane and the workers' lanes: one time axis.", (), 9.0),
    ("The GPU starves, and the second line says which processes cause it and how much CPU they took.", (), 8.0),
    ("e: why. The evidence with its numbers, and the commands that fix it.", ("e",), 9.0),
    ("Esc closes it.", ("escape",), 2.0),
    ("s: stacks. What each stalled process is doing at this moment, down to the line.", ("s",), 9.0),
    ("Esc closes it.", ("escape",), 2.0),
    ("space pauses, ← goes back in time: the whole screen shows the moment under the cursor.", ("space", *["left"] * 12), 8.0),
    ("space follows again. R saves the last ten minutes to a file, after the fact; r records from now on.", ("space",), 8.0),
    ("? lists every key; q quits. On a GPU server just type: gputop", (), 12.0),
)


async def guide(pilot: Pilot[Any]) -> None:
    """Show the captions and press the keys; returns at once when the user quits."""
    for caption, keys, seconds in STEPS:
        for key in keys:
            if pilot.app.is_running:
                await pilot.press(key)
        pilot.app.notify(caption, title="tour", timeout=seconds)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not pilot.app.is_running:
                return
            await asyncio.sleep(0.1)
