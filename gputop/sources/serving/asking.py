"""Asks one server for its metrics once a second, in a thread of its own: however long it takes, no beat waits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event
from urllib.parse import urlsplit

from gputop.model.engines import FRONT, Engine, Family, engines
from gputop.model.serving import NOT_LISTENING, NOT_READY, TOO_SLOW, Serving
from gputop.sources import Unavailable, netns, start_thread
from gputop.sources.serving import http, place
from gputop.sources.serving.page import MetricsPage

EVERY_S = 1.0  # s between two readings of a page
LOOK_S = 0.4  # s between two looks whether it listens; a choice
RETRY_S = 5.0  # s until a page is asked for again that could not be read; a choice
_TOO_BUSY = "the process that takes requests has no time to answer: see what it does (gputop stacks)"
SHARE = 0.01  # most of one CPU that a server's page may take: a large one is read less often (guess)


class Asking:
    """One server. The beat's thread gives what it found, and takes what was read."""

    def __init__(self, pid: int, proc: str) -> None:
        self.read: Sequence[Serving] = ()  # the latest page; replaced, never changed
        self.problem = self.remedy = ""  # why its page is not read, and what to do; empty while nothing listens
        self.answered = Event()  # set with the first page, or the first reason why there is none
        self._pid, self._proc = pid, proc
        self._over = Event()

    def start(self) -> bool:
        """Begin; False if no more threads are allowed."""
        return start_thread(self._run, "gputop-serving") is not None

    def stop(self) -> None:
        """End, after a page that is being read."""
        self._over.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._over.wait(wait_s):
            began_s, cpu_s = time.monotonic(), time.thread_time()
            try:
                pause_s = self._ask()
            except Unavailable as why:
                self._publish([self._without_values(why.reason)], why.reason, why.remedy)
                pause_s = RETRY_S
            self.answered.set()
            pause_s = max(pause_s, (time.thread_time() - cpu_s) / SHARE)
            wait_s = max(0.0, began_s + pause_s - time.monotonic())

    def _ask(self) -> float:
        """Read the page if there is one; returns the s from its begin to the next. Raises Unavailable."""
        raise NotImplementedError

    def _without_values(self, problem: str) -> Serving:
        raise NotImplementedError

    def _publish(self, found: Sequence[Serving], problem: str = "", remedy: str = "") -> None:
        self.read, self.problem, self.remedy = found, problem, remedy

    def _page(self, host: str, port: int, path: str, address: str, known: Sequence[Engine]) -> list[Serving]:
        page = MetricsPage(known)
        for piece in http.get(host, port, path):
            page.feed(piece)
        found = page.end(self._pid, address, time.monotonic_ns())
        if not found:
            title = known[0].title if len(known) == 1 else "an engine that gputop knows"
            raise Unavailable(f"its page has no metrics of {title}")
        return found


class AskingFamily(Asking):
    """A server that was found by its processes. ``family`` is given anew when its processes change."""

    def __init__(self, family: Family, proc: str) -> None:
        super().__init__(family.top, proc)
        self.family = family
        self._place: place.Place | None = None
        self._space = 0  # network namespace in which this thread is
        self._has_served = False

    def _ask(self) -> float:
        family = self.family
        fronts = family.pids(FRONT)
        if not fronts:
            self._publish([self._without_values("none of its processes takes requests")])
            return RETRY_S
        self._enter(fronts[0])
        found = self._place
        if found is None or not place.is_still(self._proc, fronts[0], found):
            found = self._place = place.find(self._proc, family.engine, fronts, [family.top])
        if found is None:
            self._publish([self._without_values(NOT_LISTENING)])
            return LOOK_S
        try:
            self._publish(self._page(found.host, found.port, "/metrics", found.address, [family.engine]))
            self._has_served = True
        except Unavailable as why:
            if why.reason == http.UNAVAILABLE and not self._has_served:
                self._publish([self._without_values(NOT_READY)])
                return LOOK_S
            remedy = _TOO_BUSY if why.reason == TOO_SLOW else family.engine.off
            raise Unavailable(why.reason, why.remedy or remedy) from None
        return EVERY_S

    def _without_values(self, problem: str) -> Serving:
        address = "" if self._place is None else self._place.address
        return Serving(self._pid, address, family=self.family.engine.name, t_ns=time.monotonic_ns(), problem=problem)

    def _enter(self, pid: int) -> None:
        """Enter the network of a process, if it is another one."""
        space = netns.namespace(f"{self._proc}{pid}/")
        if not self._space:
            self._space = netns.namespace("/proc/thread-self/")
        if space and space != self._space:
            if not netns.enter(f"{self._proc}{pid}/ns/net", space):
                raise Unavailable("its network is its container's", "run gputop as root, or in the container")
            self._space = space


class AskingAddress(Asking):
    """A server whose address the user gave."""

    def __init__(self, url: str, proc: str) -> None:
        super().__init__(0, proc)
        self._host, self._port, self._path = parts_of(url)
        self._address = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    def _ask(self) -> float:
        self._publish(self._page(self._host, self._port, self._path, self._address, engines()))
        return EVERY_S

    def _without_values(self, problem: str) -> Serving:
        return Serving(0, self._address, t_ns=time.monotonic_ns(), problem=problem)


def parts_of(url: str) -> tuple[str, int, str]:
    """(host, port, path) of ``http://host:port[/path]``; the path is /metrics if none is given. ValueError for another text."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.port is None or parts.username or parts.query or parts.fragment:
        raise ValueError("write http://HOST:PORT, or http://HOST:PORT/metrics")
    if any(not 32 < ord(char) < 127 for char in parts.hostname + parts.path):
        raise ValueError("write http://HOST:PORT in ASCII")
    return parts.hostname, parts.port, parts.path if parts.path not in ("", "/") else "/metrics"
