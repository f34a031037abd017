"""The emulator that the other tests look at shows what pyte's own screen shows."""

from __future__ import annotations

import random

import pyte
import pytest

from tests.pty.terminal import Emulated

WRITTEN = (
    "a", "é", "漢", "e\u0301", "\u0301", "── ", "\n", "\r", "\x1b[K", "\x1b[2J", "\x1b[3P", "\x1b[2@", "\x1b[L", "\x1b[M", "\x1b[2X",
    "\x1b[2;1H", "\x1b[5;9H", "\x1b[3;19H", "\x1bM", "\x1b[2;4r", "\x1b[r",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_pytes_whatever_is_written(seed: int) -> None:
    chance, alike = random.Random(seed), 0
    own, known = Emulated(20, 6), pyte.Screen(20, 6)
    streams = [pyte.Stream(screen) for screen in (own, known)]
    for step in range(300):
        text = "".join(chance.choices(WRITTEN, k=5))
        for stream in streams:
            stream.feed(text)
        if step % 50 == 49:
            lines, columns = chance.randint(3, 8), chance.randint(10, 25)
            for screen in (own, known):
                screen.resize(lines, columns)
        try:
            expected = known.display
        except IndexError:  # pyte has no row where half of a wide character was written over
            continue
        assert own.display == expected
        alike += 1
    assert alike > 200
