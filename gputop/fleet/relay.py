"""Many nodes by one link: a relay on a login node links to them, and says over one stream what each of them says and how its link is.

    gputop --host 'node[01-64]' --through login01      ssh login01 gputop collect --summary --host node01,node02,…

The relay's stream is a node's: its own summary each second is its pulse. Beside it stand a block of kind 11 for each host with news
(`Told`), answers, whose numbers tell of which host they are, and a block of kind 12 for each frame of a node that is opened or recorded
(`Passed`).
Questions name the host. So links, their states and retries are those of `gputop.fleet.links` on the relay, and the viewer has one ssh.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputop.fleet.asking import MOST_ANSWER_BYTES, MOST_LINE_BYTES, Answer, Ask, AskLines, pack_answer
from gputop.fleet.links import CONNECTING, STATES, UP, Links, NodeState
from gputop.fleet.node import Out
from gputop.fleet.summary import NAME, TEXT, Summary, pack_summary, read_summary, summary_payload
from gputop.model.frame import Frame, Header
from gputop.model.ranges import Bits, Seconds, Skew, fitted
from gputop.recording.chunks import Decoder, pack_alone
from gputop.recording.format import BROKEN, KIND_PASSED, KIND_TOLD, Head, flags_of, pack, pack_end, pack_frames, pack_header, restated
from gputop.stream.kept import rules
from gputop.stream.reach import Target
from gputop.system.program import __version__, return_pages
from gputop.system.text import clean

TELL_S = 0.5  # s between two looks at the links: nodes speak each second, and a row is 2 s old at most
LOOK_S = 0.25  # s between looks for answers
MOST_SAVES = 4  # nodes that send their last ten minutes at once; up to 40 MiB each wait here
MOST_NOTES = 4  # of a host
MOST_WAITING_BYTES = 64 << 20  # of frames and answers that wait for the viewer; more frames are dropped and counted
LEAST_TOGETHER, MOST_TOGETHER = 4, 64  # frames of a block that are compressed (a choice)
MOST_TOGETHER_BYTES = MOST_ANSWER_BYTES >> 1  # of such a block's msgpack: the viewer opens no larger ones
PAGES_S = 10.0  # s between two times that unused memory is given back


class Told(Struct, frozen=True, omit_defaults=True):
    """How a node's link is, and the newest that the node said; what `NodeState` says."""

    host: str
    state: str
    reason: str = ""
    since_s: Seconds = 0.0
    next_s: Seconds | None = None
    age_s: Seconds | None = None
    skew_s: Skew | None = None  # its clock behind the relay's
    notes: tuple[str, ...] = ()
    summary: bytes = b""  # as `summary_payload`; empty: no newer one
    run: Bits = 0  # of the relay: another number is one that began anew


class Passed(Struct, frozen=True, array_like=True):
    """A header, or a frame."""

    host: str
    block: bytes


_encode = msgspec.msgpack.Encoder().encode
_told_decoder = msgspec.msgpack.Decoder(Told)
_passed_decoder = msgspec.msgpack.Decoder(Passed)


# on the login node


class Relay:
    """Passes on what links say. `run` goes on until the reader leaves, or a signal comes (`stop`)."""

    def __init__(self, links: Links, asks: int, out: Out) -> None:
        """``asks``: descriptor of the questions."""
        self._links = links
        self._asks = asks
        self._out = out
        self._lines = AskLines()
        self._is_asked = True
        self._stopping = False
        self._run = time.time_ns()
        self._rules = rules()
        self._sent: dict[str, tuple[object, Summary | None]] = {}  # host -> what was told of it last
        self._numbers: dict[int, tuple[str, int]] = {}  # number of a question to a node -> its word, and the viewer's number
        self._saves: deque[Ask] = deque()
        self._passing: deque[tuple[str, Header | Frame]] = deque()  # by the thread of the links
        self._ready_r, self._ready_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def stop(self) -> None:
        """End with the next look."""
        self._stopping = True

    def run(self) -> None:
        """Raises `ReaderGone`."""
        try:
            self._go_on()
            self._out.put_answer(pack_end(0))
            self._out.flush()
        finally:
            self._links.close()

    def _go_on(self) -> None:
        told_s = pages_s = 0.0
        self._out.put_header(pack_header(Header(host=socket.gethostname(), boot_id=str(self._run), unix_ns=time.time_ns())))
        while not self._stopping:
            reads = [self._ready_r, *([self._asks] if self._is_asked else [])]
            ready, _, _ = select.select(reads, [self._out.fd] if self._out.waits else [], [], LOOK_S)
            if self._asks in ready:
                self._read_asks()
            if self._ready_r in ready:
                os.read(self._ready_r, 4096)
            self._pass_on()
            self._hand_answers()
            if (now := time.monotonic()) - told_s >= TELL_S:
                told_s = now
                self._tell()
            if now - pages_s >= PAGES_S:
                pages_s = now
                return_pages()
            self._out.flush()

    def _tell(self) -> None:
        """Its pulse, and the hosts with news."""
        own = Summary(
            gputop=__version__, rules=self._rules, host=socket.gethostname(), boot_id=str(self._run), unix_ns=time.time_ns(),
            cpu_ns=int(time.process_time() * 1e9), dropped=self._out.dropped,
        )  # fmt: skip
        self._out.put_summary(pack_summary(own))
        for host, state in self._links.poll().items():
            link = state.state, state.reason, state.notes, state.next_s is None
            before, summary = self._sent.get(host, (None, None))
            if link != before or state.summary is not summary:
                self._sent[host] = link, state.summary
                told = fitted(Told(
                    host, state.state, state.reason, state.since_s, state.next_s, state.age_s, state.skew_s, state.notes,
                    summary_payload(state.summary) if state.summary else b"", self._run,
                ))  # fmt: skip
                self._out.put_summary(pack(KIND_TOLD, _encode(told)), host)

    def _read_asks(self) -> None:
        data = os.read(self._asks, MOST_LINE_BYTES)
        self._is_asked = bool(data)
        for one in self._lines.feed(data):
            if isinstance(one, Answer):
                self._out.put_answer(pack_answer(one))
            elif one.host not in self._links.hosts:
                self._out.put_answer(pack_answer(Answer(one.id, one.ask, f"the relay has no host {clean(one.host, NAME)!r}")))
            elif one.ask == "save":
                self._saves.append(one)
            else:
                self._ask(one)

    def _ask(self, one: Ask) -> None:
        if one.ask == "frames":
            self._links.tap(one.host, None if one.back_s < 0 else lambda item: self._pass(one.host, item))
        number = self._links.ask(one.host, one.ask, pids=one.pids, at_unix_s=one.at_unix_s, back_s=one.back_s)
        self._numbers[number] = one.ask, one.id

    def _hand_answers(self) -> None:
        for _, answer in self._links.answers():
            word, number = self._numbers.get(answer.id, ("", 0))
            if not answer.more:
                self._numbers.pop(answer.id, None)
            if number:
                self._out.put_answer(pack_answer(replace(answer, id=number, ask=word)))
        while self._saves and sum(word == "save" for word, _ in self._numbers.values()) < MOST_SAVES:
            self._ask(self._saves.popleft())

    def _pass(self, host: str, item: Header | Frame) -> None:
        """Called in the thread of the links."""
        self._passing.append((host, item))
        try:
            os.write(self._ready_w, b"!")
        except BlockingIOError:
            pass

    def _pass_on(self) -> None:
        """Send what has come, frames of a host that came together as one block."""
        items = [self._passing.popleft() for _ in range(len(self._passing))]
        for (host, is_header), group in groupby(items, lambda one: (one[0], isinstance(one[1], Header))):
            found = [item for _, item in group]
            if is_header:
                blocks = [restated(item) for item in found if isinstance(item, Header)]
            else:
                frames = [item for item in found if isinstance(item, Frame)]
                blocks = [block for i in range(0, len(frames), MOST_TOGETHER) for block in _packed(frames[i : i + MOST_TOGETHER])]
            for block in blocks:
                if self._out.rest_bytes > MOST_WAITING_BYTES:
                    self._out.dropped += 1
                else:
                    self._out.put_answer(pack(KIND_PASSED, _encode(Passed(host, block))))


def _packed(frames: list[Frame]) -> list[bytes]:
    """Blocks; many frames, as of a node's past, are compressed."""
    if len(frames) < LEAST_TOGETHER:
        return [pack_frames(frames)]
    plain = _encode(frames)
    if len(plain) > MOST_TOGETHER_BYTES:
        half = len(frames) // 2
        return [*_packed(frames[:half]), *_packed(frames[half:])]
    return [pack_alone(plain, flags_of(frames), frames[0].t_ns)]


# for the viewer


class Relayed:
    """Nodes that a relay links to; it is asked as `gputop.fleet.links.Links` is."""

    def __init__(self, targets: Sequence[Target], through: Target, flags: Sequence[str] = ()) -> None:
        for target in targets:
            target.argv()  # a wrong name is told before anything starts
        self._through = through
        self._targets = {target.host: target for target in targets}
        self._lock = threading.Lock()  # taken within that of the links, never around it
        self._told: dict[str, tuple[Told, Summary | None, float]] = {}  # host -> (what was told last, its newest summary, when)
        self._taps: dict[str, tuple[Callable[[Header | Frame], None], Decoder]] = {}
        self._hosts: dict[int, str] = {}  # number of a question -> its host
        self._run = 0
        self._is_anew = False  # the relay has begun anew, and knows of no taps
        names = ",".join(self._targets)  # no brackets: the words go through a shell there
        self._links = Links([through], [*flags, "--host", names], other=self._take)

    def poll(self) -> dict[str, NodeState]:
        """Each host's state now, in the order of the targets."""
        link, now = self._links.poll()[self._through.host], time.monotonic()
        with self._lock:
            lost, self._is_anew = list(self._taps) if self._is_anew else [], False
            self._taps |= {host: (self._taps[host][0], Decoder(most_bytes=MOST_ANSWER_BYTES)) for host in lost}
        for host in lost:
            self.ask(host, "frames")
        with self._lock:
            return {host: self._state(target, link, now) for host, target in self._targets.items()}

    def _state(self, target: Target, link: NodeState, now: float) -> NodeState:
        told, summary, came_s = self._told.get(target.host, (Told(target.host, CONNECTING), None, now))
        ago_s = now - came_s
        found = NodeState(
            target=target, state=told.state, reason=told.reason, since_s=told.since_s + ago_s,
            next_s=None if told.next_s is None else max(0.0, told.next_s - ago_s), summary=summary,
            age_s=None if told.age_s is None else told.age_s + ago_s,
            skew_s=None if told.skew_s is None else told.skew_s + (link.skew_s or 0.0), notes=told.notes,
        )  # fmt: skip
        if link.state == UP:
            return found
        reason = f"{self._through.host}: {link.reason}" if link.reason else ""
        return replace(found, state=link.state, reason=reason, since_s=link.since_s, next_s=link.next_s)

    def ask(self, host: str, what: str, *, pids: Iterable[int] = (), at_unix_s: float | None = None, back_s: float = 0.0) -> int:
        """As `Links.ask`."""
        number = self._links.ask(self._through.host, what, pids=pids, at_unix_s=at_unix_s, back_s=back_s, of=host)
        self._hosts[number] = host
        return number

    def answers(self) -> list[tuple[str, Answer]]:
        """As `Links.answers`."""
        found = []
        for _, answer in self._links.answers():
            host = self._hosts.get(answer.id) if answer.more else self._hosts.pop(answer.id, None)
            if host is not None:
                found.append((host, answer))
        return found

    def tap(self, host: str, take: Callable[[Header | Frame], None] | None, has_room: Callable[[], bool] | None = None) -> None:  # noqa: ARG002
        """As `Links.tap`, but the header comes once frames are asked for, and the stream of all hosts waits for nobody."""
        with self._lock:
            self._taps.pop(host, None)
            if take is not None:
                self._taps[host] = take, Decoder(most_bytes=MOST_ANSWER_BYTES)

    def close(self) -> None:
        """End the link."""
        self._links.close()

    def _take(self, head: Head, payload: bytes) -> None:
        """A block of the relay's stream. ValueError where it cannot be read."""
        try:
            if head.kind == KIND_TOLD:
                self._take_told(_told_decoder.decode(payload))
            elif head.kind == KIND_PASSED:
                self._take_passed(_passed_decoder.decode(payload))
        except BROKEN as error:
            raise ValueError(f"its relay cannot be read: {clean(str(error), NAME)}") from None

    def _take_told(self, told: Told) -> None:
        if told.state not in STATES:
            raise ValueError("its relay says what means nothing")
        if told.host not in self._targets:
            return
        told = replace(told, reason=clean(told.reason, TEXT), notes=tuple(clean(note, NAME) for note in told.notes[:MOST_NOTES]))
        newest = read_summary(told.summary) if told.summary else None  # the relay has read it before: one that cannot be is the relay's
        with self._lock:
            _, before, _ = self._told.get(told.host, (told, None, 0.0))
            self._told[told.host] = told, newest or before, time.monotonic()
            if told.run != self._run:
                self._run, self._is_anew = told.run, True

    def _take_passed(self, passed: Passed) -> None:
        with self._lock:
            found = self._taps.get(passed.host)
        if found is not None:
            take, decoder = found
            for item in decoder.feed(passed.block):  # one block, which the relay has opened before
                take(item)


def open_links(targets: Sequence[Target], flags: Sequence[str], through: str | None) -> Links | Relayed:
    """Links to these machines: from here, or from the login node ``through``."""
    return Links(targets, flags) if through is None else Relayed(targets, Target(through), flags)
