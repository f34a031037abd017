"""The session of screenshots/demo.cast and demo.svg: the demo's story, from its recording. A training runs well; two agents take the CPUs,
and its workers starve; why; the stacks; an experiment proves the cause; the agents have gone, and it runs well again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apps
import film
from asciicast import Cast
from textual.pilot import Pilot

from gputop.commands.guide import Guide
from gputop.demo.scenarios import HOGS, SCENARIOS
from gputop.recording.reader import Recording
from gputop.sources import simulated
from gputop.stream.session import Session
from gputop.tui.app import GputopApp

SIZE = (100, 30)
RECORDING = str(Path(__file__).resolve().parent.parent / "screenshots" / "story.gputop")  # by scripts/sample.py --story
TITLE = "gputop demo: who takes the CPUs from the loader's workers"
_FROM_S, _STEP_S = 3.0, 0.5  # s: the first screen, and between two
_FAST = 3  # how many times as fast as it was the experiment, and what follows, are shown
_FIRST_S = 3.0  # s that the verdict is shown before the story begins
_READ_S, _WHY_S, _STACKS_S, _END_S = 4.5, 6.0, 5.0, 4.0  # s to look at the verdict, at both boxes, and at the end


async def cast() -> str:
    """The session as asciicast."""
    return (await _told()).text()


async def moving_picture() -> str:
    """The session as an animated SVG. First it shows what it leads to, the verdict: a page shows the first frame for a while."""
    out = await _told()
    found_s = out.chapters["e: why"] - _STEP_S
    verdict = next(screen for at, screen in reversed(out.frames) if at <= found_s)
    frames = [(0.0, verdict), *((at + _FIRST_S, screen) for at, screen in out.frames)]
    return film.film(frames, out.now_s + _FIRST_S, 0.0, *SIZE, TITLE)


async def _told() -> Cast:
    out, session, acts = Cast(*SIZE, TITLE), Session(), Acts()
    out.command("uvx gputop-ebpf demo")
    app, guide = apps.live(session), Guide(SCENARIOS["cpu-contention"], acts.words)
    app.context.look.guide = guide
    seconds = apps.fed(session, acts.end_s, RECORDING)
    found_s = read_s = 0.0
    async with app.run_test(size=SIZE) as pilot:
        out.marker("healthy")
        now = _FROM_S
        while now <= acts.end_s:
            next((second for second in seconds if second >= now), None)
            acts.play(now, session.now_ns)
            app.context.look.guide_line = guide.line(session)
            app.screen.drawing.redraw()  # type: ignore[attr-defined]
            await pilot.pause()
            _shoot(out, app, _STEP_S)
            if not found_s and now > acts.begin_s and session.engine.verdict.cause == "cpu-contention":
                found_s = now
                out.marker("found")
            if found_s and not read_s and now - found_s >= _READ_S:
                read_s = now
                await _open(out, app, pilot, "e", "e: why", _WHY_S)
                await _open(out, app, pilot, "s", "s: stacks", _STACKS_S)
                out.marker("proof")
            step_s = _STEP_S * _FAST if read_s else _STEP_S
            if now < acts.over_s <= now + step_s:
                out.marker("fixed")
            now += step_s
        out.wait(_END_S)
    return out


class Acts:
    """When the agents come, go and come again in the recording (s since its begin), and the memory in which the caption reads the act."""

    def __init__(self) -> None:
        with Recording(RECORDING) as recording:
            frames = list(recording.frames())
        start_ns = frames[0].t_ns
        came: dict[int, float] = {}
        for frame in frames:
            for info in frame.infos:
                if info.comm in HOGS:
                    came.setdefault(info.pid, (frame.t_ns - start_ns) / apps.SECOND)
        self.begin_s = min(came.values())
        self.over_s = next((frame.t_ns - start_ns) / apps.SECOND for frame in frames if came.keys() & set(frame.gone))
        self.end_s = min(at_s for at_s in came.values() if at_s > self.over_s)
        self.words = memoryview(bytearray(8 * simulated.HEAD)).cast("Q")

    def play(self, now_s: float, now_ns: int) -> None:
        """Say which act it is."""
        act, since_s, until_s = simulated.CALM, 0.0, self.begin_s
        if now_s >= self.over_s:
            act, since_s, until_s = simulated.OVER, self.over_s, self.end_s
        elif now_s >= self.begin_s:
            act, since_s, until_s = simulated.TROUBLE, self.begin_s, self.over_s
        self.words[simulated.ACT] = act
        self.words[simulated.ACT_SINCE], self.words[simulated.ACT_UNTIL] = (
            now_ns + int((at_s - now_s) * apps.SECOND) for at_s in (since_s, until_s)
        )


async def _open(out: Cast, app: GputopApp, pilot: Pilot[Any], key: str, label: str, seconds: float) -> None:
    out.marker(label)
    for pressed, shown_s in ((key, seconds), ("escape", 1.0)):
        await pilot.press(pressed)
        await pilot.pause()
        _shoot(out, app, shown_s)


def _shoot(out: Cast, app: GputopApp, seconds: float) -> None:
    """Show the present screen for ``seconds``."""
    update: Any = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    out.show([segment for strip in line for segment in strip] for line in update.strips)
    out.wait(seconds)
