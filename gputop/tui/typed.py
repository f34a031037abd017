"""What is typed, one key after the other: each goes where the one before it has led.

A key passes from who has the focus up to the application, whose action may ask for another focus or a screen, all of it by messages.
The next one, in the same read of a terminal that is pasted to, driven by a program or far away, would overtake that, and letters meant
for a line be commands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from textual.events import Event, Key, Paste

if TYPE_CHECKING:
    from textual.app import App
    from textual.message_pump import MessagePump

PATIENCE_S = 0.5
"""For a screen or widget to take its messages: one that is just going takes none, and must not hold the keys."""


MOST_WAITING = 1000
"""Keys that wait: more at once nobody types."""


class Typed:
    """Holds keys and pastes back until those before them are done with."""

    def __init__(self, app: App[int]) -> None:
        self._app = app
        self._waiting: deque[Event] = deque()
        self._turn: Event | None = None
        """The one that is under way."""
        self._delivery: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether all that was typed has done what it does."""
        return self._delivery is None or self._delivery.done()

    @property
    def is_full(self) -> bool:
        """Whether no more can wait."""
        return len(self._waiting) >= MOST_WAITING

    def holds(self, event: Event) -> bool:
        """Whether it has to wait; it comes again when it is its turn."""
        if event is self._turn or event.is_forwarded or not isinstance(event, (Key, Paste)):
            return False
        if isinstance(event, Key) and event.key == "ctrl+c":
            self._waiting.clear()  # whoever ends the program waits for nothing that was typed before
        if not self.is_full:
            self._waiting.append(event)
        if self.is_done:
            self._delivery = asyncio.create_task(self._deliver(), name="typed")
        return True

    async def _deliver(self) -> None:
        while self._waiting:
            self._turn = self._waiting.popleft()
            self._app.post_message(self._turn)
            await self._settle()

    async def _settle(self) -> None:
        """Until the key has gone its way and its action is done, then until the messages of that action are."""
        await self._pass(self._app)
        for _ in range(2):
            for pump in (self._app.focused or self._app.screen).ancestors_with_self:
                await self._pass(pump)

    async def _pass(self, pump: MessagePump) -> None:
        """Until it has taken the messages that it has now."""
        passed = asyncio.Event()
        if pump.call_later(passed.set):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(passed.wait(), PATIENCE_S)
