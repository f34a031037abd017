"""Links to many nodes: one process each (ssh, srun, kubectl), all read by one thread. The newest summary of a node wins.

    links = Links([Target("node01"), Target("node02")])
    while …: states = links.poll()                      host -> `NodeState`, at once
    links.ask("node01", "stacks", pids=[3821])          the answer comes with `answers`
    links.close()

A node speaks for itself alone: what comes over a link is the link's host's, whatever name it gives itself.
"""

from __future__ import annotations

import os
import queue
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from gputop.fleet.asking import Ask, NodeAnswer
from gputop.fleet.link import DOWN, LINK_SHARE, Link, NodeState, wait_for
from gputop.model.frame import Frame, Header
from gputop.stream.child import END_S, LAST_WORDS_BYTES, LAST_WORDS_S, PIPE_BYTES
from gputop.stream.kept import rules
from gputop.stream.playback import PlayedClock
from gputop.stream.reach import Target
from gputop.stream.restarts import RESTART_S
from gputop.system import crash
from gputop.system.errors import UserError, starting

FAN_OUT = 8  # links that connect at once; sshd's MaxStartups 10:30:100 drops some from 10 on (measured: of 64 by 8 none, by 16 some)
MOST_JUDGED = 16  # nodes with an old gputop that are judged here, at 1.5 % of a core each
SLICE_S = 0.05  # s of CPU after which the next node has its turn
MOST_OVER_S = 30.0  # s for which judging a node may cost all that it may; then it is left alone for a while
WAKE_S = 0.25  # s between looks at what is due
GATHER_S = 0.05  # s in which what comes is read together: with 64 nodes a third less CPU (measured)


def _has_always_room() -> bool:
    return True


class Links:
    """All links. Raises UserError if a target is no name of a machine, or no thread can be started."""

    def __init__(self, targets: Sequence[Target], flags: Sequence[str] = (), fan_out: int = FAN_OUT) -> None:
        """``flags`` are the collector's on each node."""
        self._rules = rules()
        self._links = {target.host: Link(target, tuple(flags)) for target in targets}
        self._fan_out = fan_out
        self._lock = threading.Lock()
        self._asked: deque[tuple[Link, Ask]] = deque()
        self._answers: queue.SimpleQueue[tuple[str, NodeAnswer]] = queue.SimpleQueue()
        self._frames: dict[str, tuple[Callable[[Header | Frame], None], Callable[[], bool]]] = {}  # host -> (take, has room)
        self._behind: set[Link] = set()  # links with bytes that have not been taken in
        self._selector = selectors.DefaultSelector()
        self._wakes, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._closing = False
        self._last_id = 0
        self._clock: PlayedClock | None = None  # by which recordings are played; None: by the one that they were started with
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)
        with starting():
            self._thread.start()

    def poll(self) -> dict[str, NodeState]:
        """Each host's state now, in the order of the targets."""
        now = time.monotonic()
        with self._lock:
            return {host: link.told(now, self._rules) for host, link in self._links.items()}

    def ask(self, host: str, what: str, *, pids: Iterable[int] = (), at_unix_s: float | None = None, back_s: float = 0.0) -> int:
        """Ask a node for something (`gputop.fleet.asking`); the number of the question. A node that is not up answers with an error."""
        with self._lock:
            self._last_id += 1
            self._asked.append((self._links[host], Ask(self._last_id, what, list(pids), at_unix_s, back_s)))
        self._rouse()
        return self._last_id

    def play(self, targets: Sequence[Target], clock: PlayedClock) -> None:
        """Let the nodes, which are recordings, go on by a clock; ``targets`` are where one that has to be started again begins."""
        with self._lock:
            self._clock = clock
            for target in targets:
                self._links[target.host].target = target
                self._last_id += 1
                self._asked.append((self._links[target.host], Ask(self._last_id, "play", clock=clock)))
        self._rouse()

    def answers(self) -> list[tuple[str, NodeAnswer]]:
        """(host, answer) of all that came since the last call."""
        found = []
        while not self._answers.empty():
            found.append(self._answers.get())
        return found

    def tap(self, host: str, take: Callable[[Header | Frame], None] | None, has_room: Callable[[], bool] | None = None) -> None:
        """Call ``take`` with the node's header, now, and in the thread of the links with each frame that it sends after ``ask(host,
        "frames")``; a new link repeats that question by itself. None: stop. While ``has_room`` returns False, nothing is read from the
        node."""
        with self._lock:
            self._frames.pop(host, None)
            if take is not None:
                self._frames[host] = take, has_room or _has_always_room
                if (header := self._links[host].header) is not None:
                    take(header)

    def close(self) -> None:
        """End all links and their processes."""
        self._closing = True
        self._rouse()
        self._thread.join(2 * END_S)

    def _rouse(self) -> None:
        try:
            os.write(self._wake, b"!")
        except (BlockingIOError, BrokenPipeError):
            pass

    def _step(self, wait_s: Callable[[], float]) -> None:
        """Do what is due: begin links, take in what comes within ``wait_s``, ask, and end."""
        self._begin_due()
        for key, _ in self._selector.select(wait_s()):
            if key.fd == self._wakes:
                os.read(self._wakes, 4096)
            else:
                self._read(key)
        for link in list(self._behind):
            with self._costs_its_row(link):
                self._take_in(link)
        self._send_asked()
        self._end_ended()
        self._end_hung()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._step(self._wait_s)
                time.sleep(GATHER_S)
        except Exception as error:  # noqa: BLE001 - shown on every row instead of a screen that stands still
            why = crash.reason(error)
            with self._lock:
                for link in self._links.values():
                    link.stop(DOWN, why, None)
        finally:
            self._stop_all()

    def _wait_s(self) -> float:
        now = time.monotonic()
        due = [link.due_s - now for link in self._links.values() if link.child is None]
        if any(link.ended_s is not None for link in self._links.values() if link.child is not None):
            return 0.0  # its process is about to end
        rests = [link.rest_s for link in self._behind]
        return min([WAKE_S, *rests, *(max(0.0, left) for left in due if self._has_room() or left > 0.0)])

    def _has_room(self) -> bool:
        return sum(link.is_connecting for link in self._links.values()) < self._fan_out

    def _begin_due(self) -> None:
        """Start the links that are due, the longest waiting first."""
        now = time.monotonic()
        for link in sorted((one for one in self._links.values() if one.child is None and one.due_s <= now), key=lambda one: one.due_s):
            if not self._has_room():
                return
            with self._lock:
                judged = sum(other.is_old for other in self._links.values() if other.child is not None)
                if link.is_old and judged >= MOST_JUDGED:
                    link.stop(DOWN, f"its gputop is too old to judge itself, as those of {MOST_JUDGED} others: update it", RESTART_S[-1])
                    continue
                link.start()
            for pipe in link.pipes:
                self._selector.register(pipe, selectors.EVENT_READ, link)

    @contextmanager
    def _costs_its_row(self, link: Link) -> Iterator[None]:
        """Within the block, an error ends this link, with the reason, and no other link."""
        try:
            yield
        except (UserError, ValueError) as error:
            with self._lock:
                self._drop(link)
                link.refuse(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours that one node's stream meets
            why = crash.reason(error)
            with self._lock:
                self._drop(link)
                link.stop(DOWN, why, RESTART_S[-1])

    def _read(self, key: selectors.SelectorKey) -> None:
        link: Link = key.data
        if link.child is None or key.fileobj not in link.pipes:
            return  # it was ended since
        try:
            data = os.read(key.fd, PIPE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(key.fileobj)
        if key.fileobj is link.child.stderr:
            link.last_words = (link.last_words + data)[-LAST_WORDS_BYTES:]
        elif not data:
            link.ended_s = time.monotonic()
        else:
            link.push(data)
            self._behind.add(link)
            self._selector.unregister(key.fileobj)

    def _take_in(self, link: Link) -> None:
        """Take in what came over a link, block by block and outside of the lock: for `SLICE_S` at most, and within its budget. The link is
        read again once all is taken in."""
        take, has_room = self._frames.get(link.target.host, (None, _has_always_room))
        link.is_tapped, link.is_full = take is not None, False
        began_s = now_s = time.thread_time()
        while link.child is not None and not link.budget.rest_s and now_s - began_s < SLICE_S:
            if not has_room():
                link.is_full = True
                break
            items = link.next_block()
            if items is None:
                self._behind.discard(link)
                self._selector.register(link.pipes[0], selectors.EVENT_READ, link)
                break
            for summary in link.judged(items):
                with self._lock:
                    link.take_summary(summary)
            if take is not None:
                for item in items:
                    take(item)
            before_s, now_s = now_s, time.thread_time()
            link.budget.spend(now_s - before_s)
        if (newest := link.newest_summary()) is not None:
            with self._lock:
                link.take_summary(newest)
        for answer in link.take_answers():
            self._answers.put((link.target.host, answer))
        if link.is_fresh:
            link.is_fresh = False
            if take is not None:
                link.send(Ask(0, "frames"))
            if self._clock is not None:
                link.send(Ask(0, "play", clock=self._clock))
        link.budget.spend(time.thread_time() - now_s)
        if link.is_old and link.budget.over_s > MOST_OVER_S:
            raise ValueError(f"to judge it takes more than {100 * LINK_SHARE:.0f}% of a CPU here: update its gputop")

    def _drop(self, link: Link) -> None:
        self._behind.discard(link)
        for pipe in link.pipes:
            with suppress(KeyError, ValueError):  # it was at its end, or is closed
                self._selector.unregister(pipe)

    def _end_ended(self) -> None:
        """End the links that have closed their output, once their processes have ended; a process that does not end is given
        `LAST_WORDS_S`."""
        for link in self._links.values():
            if link.child is not None and link.ended_s is not None and link not in self._behind:
                code = link.child.poll()
                if code is not None or time.monotonic() - link.ended_s > LAST_WORDS_S:
                    with self._lock:
                        self._drop(link)
                        link.end(code)

    def _send_asked(self) -> None:
        while self._asked:
            link, ask = self._asked.popleft()
            if why := link.send(ask):
                self._answers.put((link.target.host, NodeAnswer(ask.id, ask.ask, error=why)))

    def _end_hung(self) -> None:
        now = time.monotonic()
        for link in self._links.values():
            if link.child is not None and (why := link.hangs(now)):
                with self._lock:
                    self._drop(link)
                    link.stop(DOWN, why, link.pause_s())

    def _stop_all(self) -> None:
        children = [link.child for link in self._links.values() if link.child is not None]
        for link in self._links.values():
            self._drop(link)
            link.kill()
        end = time.monotonic() + END_S
        for child in children:
            wait_for(child, max(0.0, end - time.monotonic()))
        self._selector.close()
        os.close(self._wakes)
