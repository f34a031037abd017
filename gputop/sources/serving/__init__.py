"""Inference servers' own metrics: requests, queue, tokens, latencies, once a second from the engine's page.

An engine is found from its process on a GPU: up to the engine's topmost process, down to all that it started, and to the port at which it
takes requests. Nothing else is asked. Each server is asked in a thread of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gputop.model.engines import families
from gputop.model.frame import SECOND_NS, Frame, ProcInfo, SourceState
from gputop.sources import Beat, Settings
from gputop.system.text import counted

if TYPE_CHECKING:
    from gputop.model.serving import Serving
    from gputop.sources.serving.asking import Asking, AskingFamily

FIND_NS = SECOND_NS // 2  # ns between two searches for engines, where processes changed
MOST_SERVERS = 8  # that are asked; more are named in the source's state
ONCE_S = 0.8  # s that a single look waits for the first page


class ServingSource:
    """Adds to ``frame.servings`` the pages that came since the beat before."""

    name = "serving"

    def __init__(self, settings: Settings) -> None:
        self._proc = os.path.join(settings.root, "proc/")
        self._urls, self._is_single = settings.serving, settings.everyone
        self._infos: dict[int, ProcInfo] = {}
        self._starts: tuple[frozenset[int], frozenset[int]] = frozenset(), frozenset()  # processes on GPUs; trainers
        self._is_due, self._due_ns = False, 0
        self._asked: dict[int, AskingFamily] = {}  # topmost process of an engine -> its server
        self._given: list[Asking] = []
        self._sent: dict[Asking, object] = {}  # the page that was last sent of each
        self._unasked = 0  # engines beyond `MOST_SERVERS`
        self._state: SourceState | None = None
        self._at_rest = SourceState(self.name, "ok")  # while nobody is asked

    def open(self) -> SourceState:
        """Begin to ask the servers whose addresses were given."""
        if self._urls:
            from gputop.sources.serving.asking import AskingAddress

            self._given = [AskingAddress(url, self._proc) for url in self._urls]
            for one in self._given:
                one.start()
        self._state = self._at_rest
        return self._state

    def read(self, beat: Beat, frame: Frame) -> None:
        """Follow the processes of engines; take the pages that have come."""
        starts = beat.gpu_pids, beat.trainers
        if frame.infos or frame.gone or starts != self._starts:
            for pid in frame.gone:
                self._infos.pop(pid, None)
            self._infos |= {info.pid: info for info in frame.infos}
            self._is_due, self._starts = True, starts
        if self._is_due and beat.t_ns >= self._due_ns:
            self._is_due, self._due_ns = False, beat.t_ns + FIND_NS
            self._find()
        asking = self._all()
        for one in asking:
            if self._is_single:
                one.answered.wait(ONCE_S)
            page = one.read
            if beat.key or self._sent.get(one) is not page:
                self._sent[one] = page
                frame.servings.extend(page)
        state = self._state_now() if asking else self._at_rest
        if state != self._state:
            self._state = state
            beat.changed.append(state)

    def close(self) -> None:
        """End all asking."""
        for one in self._all():
            one.stop()

    def _all(self) -> list[Asking]:
        return [*self._asked.values(), *self._given]

    def _find(self) -> None:
        """Begin to ask the engines that came, and end with those that are gone."""
        found = families(self._infos, self._starts[0] | self._starts[1])
        for top in self._asked.keys() - found.keys():
            gone = self._asked.pop(top)
            gone.stop()
            self._sent.pop(gone, None)
        self._unasked = 0
        for top, family in found.items():
            if (known := self._asked.get(top)) is not None:
                known.family = family
            elif len(self._asked) >= MOST_SERVERS:
                self._unasked += 1
            else:
                from gputop.sources.serving.asking import AskingFamily

                one = AskingFamily(family, self._proc)
                if one.start():
                    self._asked[top] = one

    def _state_now(self) -> SourceState:
        """How its servers answer; what stands in the way of the first that does not."""
        detail = dict[str, str]()
        for one in self._asked.values():
            page = next(iter(one.read), None)
            how = "not asked yet" if page is None else page.problem or f"asked at {page.address}"
            detail[f"{one.family.engine.title} ({one.family.top})"] = how
        failing = next((one for one in self._all() if one.problem), None)
        if failing is not None:
            name = next((one.family.engine.title for one in self._asked.values() if one is failing), _address(failing.read))
            return SourceState(self.name, "partial", f"{name}: {failing.problem}", failing.remedy, detail)
        if self._unasked:
            more = counted(self._unasked, "more engine")
            return SourceState(self.name, "partial", f"{more}: {MOST_SERVERS} are asked", "", detail)
        return SourceState(self.name, "ok", detail=detail)


def _address(page: object) -> str:
    servings: list[Serving] = list(page) if isinstance(page, (list, tuple)) else []
    return servings[0].address if servings else ""
