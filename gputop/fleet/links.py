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
import random
import re
import selectors
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf, isfinite
from typing import IO

from msgspec import Struct

from gputop.fleet.asking import MOST_ANSWER_BYTES, Answer, Ask, pack_ask, read_answer
from gputop.fleet.lines import FromLines
from gputop.fleet.summary import Summary, read_summary, summarize
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.recording.budget import Budget
from gputop.recording.chunks import Decoder
from gputop.recording.format import KIND_ANSWER, KIND_FRAMES, KIND_SUMMARY, Head, VersionError
from gputop.stream.child import END_S, LAST_WORDS_BYTES, LAST_WORDS_S, MOST_LOST_BYTES, NOT_FOUND, PIPE_BYTES, widen
from gputop.stream.following import Following
from gputop.stream.kept import rules
from gputop.stream.reach import Target
from gputop.stream.restarts import RESTART_S, STEADY_S
from gputop.system import crash
from gputop.system.errors import UserError, starting
from gputop.system.text import clean, one_line

CONNECTING, UP, SILENT, DOWN = "connecting", "up", "silent", "down"
REFUSED, MISSING, NEWER = "refused", "missing", "newer"
"""A node's states. ``silent``: the link stands and nothing comes. ``refused``: sshd, or a jump host, took no more connections.
``missing``: no gputop is found there. ``newer``: the gputop there speaks a newer format. All but the first two have a reason."""

RECORDED = "recorded"  # the note of a node that is a recording
FAN_OUT = 8  # links that connect at once; sshd's MaxStartups 10:30:100 drops some from 10 on (measured: of 64 by 8 none, by 16 some)
TRIES = 3  # in a row that sshd may refuse before it is told
SILENT_S = 3.0  # s without a summary; they come each second
HUNG_S = 20.0  # s without a summary, after which the link is made anew: ssh itself gives up after 6 to 8 s (a choice)
ANSWER_S = 15.0  # s for a new link to bring its header: ssh gives up after 5 s, gputop starts in 1 s, on a busy node in 5 (guess)
LATELY_S = 600.0  # s since a node was up, during which it is tried every `RETURN_S` (a choice)
RETURN_S = 3.0  # s; with ssh's 5 s for a try, and 1 s to begin, it is seen within 10 s of its return
SKEW_NS = 60 * SECOND_NS  # over which the least difference of clocks is looked for
SKEW_TOLD_S = 1.0  # s of skew, from which it is told
MOST_JUDGED = 16  # nodes with an old gputop that are judged here, at 1.5 % of a core each
MOST_ANSWERED_BYTES = 64 << 20  # of all pieces of an answer; ten minutes are 40 MiB at most (`gputop.recording.ring`)
LINK_SHARE = 0.25  # CPU seconds per second that one node's stream may cost here; beyond, it is left unread for a while
SLICE_S = 0.05  # s of CPU after which the next node has its turn
MOST_OVER_S = 30.0  # s for which judging a node may cost all that it may; then it is left alone for a while
FULL_S = 0.05  # s until somebody who had no room for more frames is asked again
WAKE_S = 0.25  # s between looks at what is due
GATHER_S = 0.05  # s in which what comes is read together: with 64 nodes a third less CPU (measured)
_UNKNOWN_OPTION = "unrecognized arguments: --summary"  # argparse, of a gputop that has no summaries; its exit code is 2
_CHATTER = "Warning: Permanently added"  # what ssh says beside the reason
_NOT_REACHED = re.compile(r"^(?:channel \d+: open failed|Stdio forwarding request failed): (.+)$", re.MULTILINE)
"""What ssh prints where a jump host does not reach the node: over a connection of its own, or over a shared one (ControlMaster)."""
_AT_LIMIT = ("kex_exchange_identification", "ssh_exchange_identification", "Connection closed by UNKNOWN", "exceeded MaxStartups")


class NodeState(Struct, frozen=True):
    """State of a node's link now."""

    target: Target
    state: str  # `CONNECTING`, `UP`, …
    reason: str = ""  # why it is not up, in a line
    since_s: float = 0.0  # for how long it has been in this state, seconds
    next_s: float | None = None  # until the next try; None: it is tried now, or up
    summary: Summary | None = None  # the newest; it stays when the node is gone
    age_s: float | None = None  # since that one came
    skew_s: float | None = None  # its wall clock behind ours, seconds, delay of the link included; None: not known yet
    notes: tuple[str, ...] = ()  # ``judged by 0.3.1``, ``judged here``, ``clock 2.1 s behind``

    @property
    def host(self) -> str:
        return self.target.host


def _has_always_room() -> bool:
    return True


class Links:
    """All links. Raises UserError if a target is no name of a machine, or no thread can be started."""

    def __init__(self, targets: Sequence[Target], flags: Sequence[str] = (), fan_out: int = FAN_OUT) -> None:
        """``flags`` are the collector's on each node."""
        self._rules = rules()
        self._links = {target.host: _Link(target, tuple(flags)) for target in targets}
        self._fan_out = fan_out
        self._lock = threading.Lock()
        self._asked: deque[tuple[_Link, Ask]] = deque()
        self._answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
        self._frames: dict[str, tuple[Callable[[Header | Frame], None], Callable[[], bool]]] = {}  # host -> who takes frames, and has room
        self._behind: set[_Link] = set()  # links with bytes that have not been taken in
        self._selector = selectors.DefaultSelector()
        self._wakes, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._closing = False
        self._last_id = 0
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

    def answers(self) -> list[tuple[str, Answer]]:
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

    def _run(self) -> None:
        try:
            while not self._closing:
                self._begin_due()
                for key, _ in self._selector.select(self._wait_s()):
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
                time.sleep(GATHER_S)
        except Exception as error:  # noqa: BLE001 - told on every row instead of a screen that stands still
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
        """Start the links whose time has come; the one that has waited longest goes first."""
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
    def _costs_its_row(self, link: _Link) -> Iterator[None]:
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
        link: _Link = key.data
        if link.child is None or key.fileobj not in link.pipes:
            return  # it was ended meanwhile
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

    def _take_in(self, link: _Link) -> None:
        """Take in what came over a link, block by block and outside of the lock: for `SLICE_S` at most, and within its budget. It is read
        again once all of that is taken in."""
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
        link.budget.spend(time.thread_time() - now_s)
        if link.is_old and link.budget.over_s > MOST_OVER_S:
            raise ValueError(f"to judge it takes more than {100 * LINK_SHARE:.0f}% of a CPU here: update its gputop")

    def _drop(self, link: _Link) -> None:
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
                self._answers.put((link.target.host, Answer(ask.id, ask.ask, error=why)))

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
            _wait(child, max(0.0, end - time.monotonic()))
        self._selector.close()
        os.close(self._wakes)


class _Link:
    """One node's process, and what came over it."""

    def __init__(self, target: Target, flags: tuple[str, ...]) -> None:
        target.argv()  # a wrong name is told before anything starts
        self.target = target
        self._flags = flags
        self.child: subprocess.Popen[bytes] | None = None
        self.due_s = time.monotonic()
        self.last_words = b""
        self.is_old = False  # its gputop has no summaries
        self.is_fresh = False  # its first summary has just come
        self.is_tapped = False  # whether somebody takes its frames
        self.is_full = False  # whether that one has no room now
        self.ended_s: float | None = None  # when it closed its output
        self.budget = Budget(LINK_SHARE)
        self._state, self._reason = CONNECTING, ""
        self._since_s = self._began_s = time.monotonic()
        self._failures = 0
        self._refusals = 0
        self._decoder = Decoder()
        self._summary: Summary | None = None
        self._came_s = 0.0
        self._lags: deque[tuple[int, float]] = deque()  # (our CLOCK_MONOTONIC in ns, seconds from its wall clock to ours)
        self._judge = Following(every_ns=SECOND_NS)
        self._lines: FromLines | None = None
        self._problem = ""
        self._newest = b""  # payload of a summary
        self._asked: dict[int, int] = {}  # number of an open question -> bytes of its answer so far
        self._answers: list[Answer] = []

    @property
    def is_connecting(self) -> bool:
        return self.child is not None and self._decoder.header is None

    @property
    def header(self) -> Header | None:
        """Header of the node's stream; None until it has arrived."""
        return self._decoder.header

    @property
    def pipes(self) -> list[IO[bytes]]:
        return [pipe for pipe in (self.child.stdout, self.child.stderr) if pipe] if self.child is not None else []

    def told(self, now: float, own_rules: int) -> NodeState:
        """State of the link, for other threads."""
        state, reason, since_s = self._state, self._reason, self._since_s
        if state == UP and now - self._came_s > SILENT_S:
            state, since_s = SILENT, self._came_s
            reason = f"no answer for {now - self._came_s:.0f} s"
        return NodeState(
            target=self.target, state=state, reason=reason, since_s=max(0.0, now - since_s),
            next_s=max(0.0, self.due_s - now) if self.child is None and isfinite(self.due_s) and state != CONNECTING else None,
            summary=self._summary, age_s=max(0.0, now - self._came_s) if self._summary is not None else None, skew_s=self._skew_s(),
            notes=self._notes(own_rules),
        )  # fmt: skip

    def start(self) -> None:
        """Start its process. Where that fails it is down."""
        self._decoder = Decoder(self._take_block, MOST_ANSWER_BYTES, self._wants)
        self._problem, self._newest, self.last_words, self.ended_s = "", b"", b"", None
        self.budget = Budget(LINK_SHARE)
        self._asked.clear()
        self._judge = Following(every_ns=SECOND_NS)
        self._began_s = time.monotonic()
        self._lines = FromLines() if self.target.is_lines else None
        words = ("collect", *(() if self.is_old else ("--summary",)), *(("--lines",) if self._lines else ()), *self._flags)
        try:
            with starting():
                self.child = subprocess.Popen(
                    self.target.argv(*words), stdin=subprocess.DEVNULL if self.is_old else subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, start_new_session=True, bufsize=0,
                )  # fmt: skip
        except UserError as error:
            self.stop(DOWN, str(error), self.pause_s())
            return
        for pipe in (self.child.stdin, self.child.stdout, self.child.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        if self.is_old and self.child.stdout is not None:
            widen(self.child.stdout.fileno())  # frames come, and a busy reader loses none

    @property
    def rest_s(self) -> float:
        """Seconds until it may be taken in again."""
        return max(self.budget.rest_s, FULL_S if self.is_full else 0.0)

    def push(self, data: bytes) -> None:
        """Feed bytes that have arrived; `next_block` decodes them."""
        self._decoder.push(self._lines.feed(data) if self._lines else data)

    def next_block(self) -> list[Header | Frame] | None:
        """Contents of the next block; None if none is complete. UserError or ValueError if a node may not send it."""
        items = self._decoder.next()
        if self._problem or self._decoder.lost_bytes > MOST_LOST_BYTES:
            raise ValueError(self._problem or "it sends no stream of gputop")
        if items and self._decoder.header is not None:
            self.budget.begin(self._decoder.header.interval_ns)
            self.budget.count(len(items))
        return items

    def judged(self, items: Iterable[Header | Frame]) -> Iterator[Summary]:
        """The summaries that an old gputop does not send, made of its frames."""
        if self.is_old:
            for board in self._judge.through(items):
                yield summarize(board, self._judge.engine)

    def newest_summary(self) -> Summary | None:
        """The newest summary that arrived since the last call; older ones are skipped. ValueError if it is none."""
        payload, self._newest = self._newest, b""
        return read_summary(payload) if payload else None

    def take_answers(self) -> list[Answer]:
        """Answers that arrived since the last call; each is returned once."""
        answers, self._answers = self._answers, []
        return answers

    def _wants(self, head: Head) -> bool:
        """Whether a block is anything that it was asked for. Frames that nobody takes are not even inflated."""
        if head.kind == KIND_FRAMES:
            return self.is_old or self.is_tapped
        if head.kind == KIND_ANSWER:
            return bool(self._asked)
        return head.kind == KIND_SUMMARY

    def _take_block(self, head: Head, payload: bytes) -> None:
        if head.kind == KIND_SUMMARY:
            self._newest = payload
        elif head.kind == KIND_ANSWER:
            try:
                answer = read_answer(payload)
            except ValueError as error:
                self._problem = str(error)
                return
            if answer.id not in self._asked:
                return
            self._asked[answer.id] += len(answer.data)
            if self._asked[answer.id] > MOST_ANSWERED_BYTES:
                self._problem = f"it answers with more than {MOST_ANSWERED_BYTES >> 20} MiB"
            if not answer.more:
                del self._asked[answer.id]
            self._answers.append(answer)

    def take_summary(self, summary: Summary) -> None:
        """Note that the node is up, and keep its newest summary."""
        now = time.monotonic()
        if self._state != UP:
            self._state, self._reason, self._since_s, self.is_fresh = UP, "", now, True
        self._summary, self._came_s, self._refusals = summary, now, 0
        self._lags.append((int(now * 1e9), time.time() - summary.unix_ns / 1e9))
        while self._lags[0][0] < self._lags[-1][0] - SKEW_NS:
            self._lags.popleft()

    def end(self, code: int | None) -> None:
        """Note that the process has closed its output: the reason, and the time of the next try. ``code``: its exit code; None if it has
        not ended."""
        assert self.child is not None
        if self.child.stderr is not None:
            try:
                self.last_words = (self.last_words + (self.child.stderr.read() or b""))[-LAST_WORDS_BYTES:]
            except (BlockingIOError, ValueError):
                pass
        text = self.last_words.decode(errors="replace")
        words = one_line(([line for line in text.splitlines() if line.strip() and not line.startswith(_CHATTER)] or [""])[-1])
        if code == 2 and _UNKNOWN_OPTION in text and not self.is_old:
            self.is_old = True
            self.stop(CONNECTING, "its gputop has no summaries: it is judged here", 0.0)
        elif code == NOT_FOUND:
            self.stop(MISSING, f"{words or 'gputop is not found there'}: install it into the PATH that commands have there", RESTART_S[-1])
        elif unreached := _NOT_REACHED.search(text):
            self.stop(DOWN, one_line(f"the jump host does not reach it: {unreached[1]}"), self.pause_s())
        elif any(sign in text for sign in _AT_LIMIT):
            self._end_refused(words)
        else:
            self.is_old = False  # it may be another one next time
            self.stop(DOWN, words or self._odd_beginning() or _ended(code), self.pause_s())

    def _odd_beginning(self) -> str:
        """Text that the process wrote instead of a stream; empty if there is none."""
        try:
            if self._decoder.header is None:
                self._decoder.finish()
        except UserError as error:
            return one_line(str(error)) if "empty" not in str(error) else ""
        return ""

    def _end_refused(self, words: str) -> None:
        """Note that sshd refused the link. sshd drops connections at random when too many begin at once, so only repeated refusals are
        reported."""
        self._refusals += 1
        if self._refusals < TRIES:
            self.stop(CONNECTING if self._state == CONNECTING else DOWN, words, random.uniform(0.3, 1.5))
        else:
            self.stop(REFUSED, f"refused by sshd, or by the jump host, which takes few connections at once: {words}", self.pause_s())

    def refuse(self, error: Exception) -> None:
        """Stop a link whose stream no node would send."""
        if isinstance(error, VersionError):
            self.stop(NEWER if "newer" in str(error) else DOWN, f"its stream was {error}", RESTART_S[-1])
        else:
            self.stop(DOWN, one_line(str(error)), RESTART_S[-1])

    def hangs(self, now: float) -> str:
        """The reason why the link must be started again; empty while it works."""
        if self._decoder.header is None:
            return f"no answer within {ANSWER_S:.0f} s" if now - self._began_s > ANSWER_S else ""
        if self.rest_s:
            return ""  # it is left unread
        heard_s = max(self._came_s, self._began_s)
        return f"no answer for {now - heard_s:.0f} s" if now - heard_s > HUNG_S else ""

    def pause_s(self) -> float:
        """Seconds until the next try, with jitter: many nodes that one switch took down come back together."""
        self._failures = 1 if time.monotonic() - self._began_s > STEADY_S else self._failures + 1
        was_up = self._summary is not None and time.monotonic() - self._came_s < LATELY_S
        longest_s = RETURN_S if was_up else RESTART_S[-1]
        if self.target.way == "file":
            return RESTART_S[-1]  # nothing comes back before its hour
        return min(longest_s, RESTART_S[min(self._failures, len(RESTART_S)) - 1]) * random.uniform(0.75, 1.25)

    def stop(self, state: str, reason: str, pause_s: float | None) -> None:
        """End its process, if there is one; try again in ``pause_s``, None: never."""
        self.kill()
        now = time.monotonic()
        if self._state != state:
            self._since_s = self._came_s if self._state == UP else now
        self._state, self._reason = state, reason
        self.due_s = now + pause_s if pause_s is not None else inf

    def kill(self) -> None:
        """End its process; nobody waits for one that does not."""
        child, self.child = self.child, None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        if child.poll() is None:
            child.terminate()
            threading.Thread(target=_reap, args=(child,), daemon=True, name="reap").start()

    def send(self, ask: Ask) -> str:
        """Send a question; why it could not be sent."""
        if self.is_old:
            return "its gputop is too old to be asked: update it there"
        if self.child is None or self.child.stdin is None or self._state != UP:
            return self._reason or "it is not connected yet"
        try:
            os.write(self.child.stdin.fileno(), pack_ask(ask))
            self._asked[ask.id] = 0
            if ask.ask != "summary" and self.child.stdout is not None:
                widen(self.child.stdout.fileno())  # much may come; a node that is asked nothing is read at 1.3 MB/s at most
        except OSError as error:
            return f"cannot ask it: {error.strerror}"
        return ""

    def _skew_s(self) -> float | None:
        return min(lag for _, lag in self._lags) if self._lags else None

    def _notes(self, own_rules: int) -> tuple[str, ...]:
        if self._summary is None:
            return ()
        if self.target.way == "file":
            return (RECORDED,)
        notes = ["judged here: update gputop there"] if self.is_old else []
        if not self.is_old and self._summary.rules != own_rules:
            notes.append(f"judged by {clean(self._summary.gputop) or 'another gputop'}")
        skew_s = self._skew_s()
        if skew_s is not None and abs(skew_s) > SKEW_TOLD_S:
            notes.append(f"clock {abs(skew_s):.1f} s {'behind' if skew_s > 0 else 'ahead'}")
        return tuple(notes)


def _wait(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _reap(child: subprocess.Popen[bytes]) -> None:
    if _wait(child, END_S) is None:
        child.kill()
        child.wait()


def _ended(code: int | None) -> str:
    if code is None:
        return "it writes no more"
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
