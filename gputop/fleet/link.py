"""One node's link: the process that reaches it (ssh, srun, kubectl), what comes over it, and its state. `gputop.fleet.links` reads many."""

from __future__ import annotations

import os
import random
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from math import inf, isfinite
from typing import IO

from msgspec import Struct

from gputop.fleet.as_text import FromLines
from gputop.fleet.asking import MOST_ANSWER_BYTES, Ask, NodeAnswer, pack_ask, read_answer
from gputop.fleet.summary import Summary, read_summary, summarize
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.recording.budget import Budget
from gputop.recording.chunks import Decoder
from gputop.recording.format import KIND_ANSWER, KIND_FRAMES, KIND_SUMMARY, BlockHead, VersionError
from gputop.stream.child import END_S, LAST_WORDS_BYTES, MOST_LOST_BYTES, NOT_FOUND, widen
from gputop.stream.following import Following
from gputop.stream.reach import Target, file
from gputop.stream.restarts import RESTART_S, STEADY_S
from gputop.system.errors import UserError, starting
from gputop.system.text import clean, one_line

CONNECTING, UP, SILENT, DOWN = "connecting", "up", "silent", "down"
REFUSED, MISSING, NEWER = "refused", "missing", "newer"
"""A node's states. ``silent``: the link stands and nothing comes. ``refused``: sshd, or a jump host, took no more connections.
``missing``: no gputop is found there. ``newer``: the gputop there speaks a newer format. All but the first two have a reason."""
RECORDED = "recorded"  # the note of a node that is a recording
TRIES = 3  # in a row that sshd may refuse before it is reported
SILENT_S = 3.0  # s without a summary; they come each second
HUNG_S = 20.0  # s without a summary, after which the link is made again: ssh itself gives up after 6 to 8 s (a choice)
ANSWER_S = 15.0  # s for a new link to bring its header: ssh gives up after 5 s, gputop starts in 1 s, on a busy node in 5 (guess)
LATELY_S = 600.0  # s since a node was up, during which it is tried every `RETURN_S` (a choice)
RETURN_S = 3.0  # s; with ssh's 5 s for a try, and 1 s to begin, it is seen within 10 s of its return
SKEW_NS = 60 * SECOND_NS  # over which the least difference of clocks is looked for
SKEW_TOLD_S = 1.0  # s of skew, from which it is reported
MOST_ANSWERED_BYTES = 64 << 20  # of all pieces of an answer; ten minutes are 40 MiB at most (`gputop.recording.ring`)
LINK_SHARE = 0.25  # CPU seconds per second that one node's stream may cost here; beyond, it is left unread for a while
FULL_S = 0.05  # s until a reader that had no room for more frames is asked again
_UNKNOWN_OPTION = "unrecognized arguments: --summary"  # argparse, of a gputop that has no summaries; its exit code is 2
_CHATTER = "Warning: Permanently added"  # what ssh prints besides the reason
_NOT_REACHED = re.compile(r"^(?:channel \d+: open failed|Stdio forwarding request failed): (.+)$", re.MULTILINE)
"""Lines of ssh if a jump host does not reach the node: over a connection of its own, or over a shared one (ControlMaster)."""
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


class Link:
    """One node's process, and what came over it."""

    def __init__(self, target: Target, flags: tuple[str, ...]) -> None:
        target.argv()  # a wrong name is reported before anything starts
        self.target = target
        self._flags = flags
        self.child: subprocess.Popen[bytes] | None = None
        self.due_s = time.monotonic()
        self.last_words = b""
        self.is_old = False  # its gputop has no summaries
        self.is_fresh = False  # its first summary has just come
        self.is_tapped = False  # whether its frames are taken
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
        self._answers: list[NodeAnswer] = []

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
        """The newest summary that arrived since the last call; older ones are skipped. ValueError if it is not one."""
        payload, self._newest = self._newest, b""
        return read_summary(payload) if payload else None

    def take_answers(self) -> list[NodeAnswer]:
        """Answers that arrived since the last call; each is returned once."""
        answers, self._answers = self._answers, []
        return answers

    def _wants(self, head: BlockHead) -> bool:
        """True if a block was asked for. Frames without a reader are not even inflated."""
        if head.kind == KIND_FRAMES:
            return self.is_old or self.is_tapped
        if head.kind == KIND_ANSWER:
            return bool(self._asked)
        return head.kind == KIND_SUMMARY

    def _take_block(self, head: BlockHead, payload: bytes) -> None:
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
        """Text that the process wrote instead of a stream, or empty."""
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
        """Stop a link with a stream that no node would send."""
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
        """End the link's process, without waiting for it."""
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
            if ask.ask not in ("summary", "play") and self.child.stdout is not None:
                widen(self.child.stdout.fileno())  # much may come; a node that is asked nothing is read at 1.3 MB/s at most
        except OSError as error:
            return f"cannot ask it: {error.strerror}"
        return ""

    def _skew_s(self) -> float | None:
        if self.target.way == "file" and file.is_clocked(self.target.within):
            return None
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


def wait_for(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _reap(child: subprocess.Popen[bytes]) -> None:
    if wait_for(child, END_S) is None:
        child.kill()
        child.wait()


def _ended(code: int | None) -> str:
    if code is None:
        return "it has closed its output"
    return f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
