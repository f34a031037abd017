"""The node's side: follows this machine's collector, writes a summary each second to standard output, answers questions from standard
input.

The collector stays a process of its own, so that no diagnosis delays its beat. A slow reader gets the newest summary, never a row of old
ones.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from gputop.findings import policy
from gputop.findings.policy import FEED_EVERY_NS
from gputop.findings.ranks import RankPace
from gputop.fleet.as_text import to_lines
from gputop.fleet.asking import ASKS, MOST_LINE_BYTES, PIECE_BYTES, Ask, AskLines, NodeAnswer, pack_answer
from gputop.fleet.summary import pack_summary, summarize
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.recording.format import pack_end, pack_frames, pack_header, restated
from gputop.recording.pipe import to_a_reader
from gputop.recording.ring import Ring, write_blocks
from gputop.stream.child import ChildStream
from gputop.stream.following import Following
from gputop.stream.kept import rules
from gputop.stream.played import PlayedStream
from gputop.stream.reader import Loop, Reader
from gputop.stream.restarts import LastingStream
from gputop.stream.stalled import waits
from gputop.system import crash
from gputop.system.errors import UserError, start_thread

MOST_FRAMES_BYTES = 8 << 20  # of frames that wait for a slow reader; more are dropped and counted, as `gputop collect` does
MOST_STACKS = 64  # processes of one answer, about 15 ms of CPU each
LATEST_S = 5.0  # s that stacks may be asked for in the future: all nodes of a job take theirs at one moment


class Out:
    """Standard output, written without waiting. First goes the newest summary; then frames and answers in their order."""

    def __init__(self, fd: int, is_lines: bool = False) -> None:
        """``is_lines``: write lines of text, see `gputop.fleet.as_text`."""
        self._is_lines = is_lines
        self.fd = fd
        self._writing = memoryview(b"")
        self._first: deque[bytes] = deque()  # headers
        self._summary = b""  # the newest, unless it has gone
        self._rest: deque[bytes] = deque()
        self.rest_bytes = 0  # of frames and answers that wait
        self.dropped = 0  # frames
        os.set_blocking(fd, False)

    @property
    def waits(self) -> bool:
        """True if data is to be written."""
        return bool(self._writing or self._first or self._summary or self._rest)

    def put_header(self, block: bytes) -> None:
        self._first.append(block)

    def put_summary(self, block: bytes) -> None:
        """Replace the summary that has not gone yet."""
        self._summary = block

    def put_frame(self, block: bytes) -> None:
        """Dropped where too much waits already."""
        if self.rest_bytes > MOST_FRAMES_BYTES:
            self.dropped += 1
        else:
            self.put_answer(block)

    def put_answer(self, block: bytes) -> None:
        self._rest.append(block)
        self.rest_bytes += len(block)

    def flush(self) -> None:
        """Write what the reader takes. Raises `ReaderGone`, or UserError if there is nowhere to write to."""
        with to_a_reader():
            while self._writing or self._next():
                self._writing = self._writing[os.write(self.fd, self._writing) :]

    def _next(self) -> bool:
        block = b""
        if self._first:
            block = self._first.popleft()
        elif self._summary:
            block, self._summary = self._summary, b""
        elif self._rest:
            block = self._rest.popleft()
            self.rest_bytes -= len(block)
        self._writing = memoryview(to_lines(block) if self._is_lines else block)
        return bool(block)


def moves(before: Mapping[int, RankPace], now: Mapping[int, RankPace]) -> bool:
    """True if a rank's pace has changed: the cause is then sought twice a second. Costs nothing while all is steady."""
    pairs = ((before.get(pid), pace) for pid, pace in now.items())
    return any(was is None or max(abs(is_.idle - was.idle), abs(is_.own_delay - was.own_delay)) >= policy.LITTLE for was, is_ in pairs)


def serve_node(stream: ChildStream | PlayedStream, asks: int, out: Out) -> None:
    """Serve one node until a signal. Raises `ReaderGone` once the reader leaves, UserError if the collector ends. ``asks``: descriptor of
    the questions."""
    played = stream if isinstance(stream, PlayedStream) else None
    node = NodeServer(asks, out, played)
    with Loop(LastingStream(stream), node, drain_s=0.0) as loop:
        loop.listen()
        loop.run()
        if loop.stream.trouble:
            raise UserError(loop.stream.why if played else f"the collector ended: {loop.stream.why}")
        node.finish()


class NodeServer(Reader):
    """One node: summaries, frames and answers of the stream that it takes."""

    def __init__(self, asks: int, out: Out, played: PlayedStream | None = None) -> None:
        """``asks``: descriptor of the questions; ``played``: the stream, if it is a recording."""
        self._asks = asks
        self._out = out
        self._played = played
        self._lines = AskLines()
        self._is_asked = True  # until the end of the questions
        self._following = Following(every_ns=SECOND_NS)
        self._paces: dict[int, RankPace] = {}  # pid of a rank -> its pace in the last summary
        self._ring: Ring | None = None
        self._rules = rules()
        self._said_ns = 0
        self._told, self._told_s = b"", 0.0  # the last summary, and when it was put out (CLOCK_MONOTONIC)
        self._spent_s = 0.0  # CPU seconds of this process that are reported
        self._sends_frames = False
        self._done: deque[NodeAnswer] = deque()  # by threads
        self._done_r, self._done_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def begin(self, header: Header) -> None:
        self._out.put_header(pack_header(header) if self._ring is None else restated(header))
        self._following.restate(header)
        if self._ring is None:
            self._ring = Ring(header)
        self._ring.restate(header)

    def take(self, frame: Frame) -> None:
        assert self._ring is not None
        self._ring.add(frame)
        if self._sends_frames:
            self._out.put_frame(pack_frames([frame]))
        if self._following.take(frame) or not self._said_ns:
            self._say()

    def rest(self) -> float:
        if self._played is not None and self._played.clock.speed < 1.0 and time.monotonic() - self._told_s >= 1.0:
            self._put(self._told)  # it is there, though its time stands or is slow
        self._out.flush()
        return 0.0

    def descriptors(self) -> tuple[Sequence[int], Sequence[int]]:
        return [self._done_r, *([self._asks] if self._is_asked else [])], [self._out.fd] if self._out.waits else []

    def serve(self, ready: Iterable[int]) -> None:
        if self._asks in ready:
            self._read_asks()
        if self._done_r in ready:
            self._hand_over()
        self._out.flush()

    def finish(self) -> None:
        """Write that the stream ends here."""
        self._out.put_answer(pack_end(self._following.board.t_ns))
        self._out.flush()

    def _say(self) -> None:
        """The summary of now."""
        spent_s = time.process_time()
        summary = summarize(self._following.board, self._following.engine, self._rules)
        took_s, self._spent_s = spent_s - self._spent_s, spent_s
        paces = {rank.pid: rank.pace for rank in summary.ranks if rank.pace is not None}
        self._following.every_ns = FEED_EVERY_NS if moves(self._paces, paces) else SECOND_NS
        self._paces = paces
        own = int(spent_s * 1e9)
        self._put(pack_summary(msgspec.structs.replace(
            summary, cpu_ns=summary.cpu_ns + own, took_s=round(took_s, 4), dropped=summary.dropped + self._out.dropped
        )))  # fmt: skip
        self._said_ns = self._following.board.t_ns

    def _put(self, summary: bytes) -> None:
        self._told, self._told_s = summary, time.monotonic()
        if summary:
            self._out.put_summary(summary)

    def _play(self, ask: Ask) -> None:
        if self._played is None or ask.clock is None:
            self._reply(NodeAnswer(ask.id, ask.ask, "no recording is played here, or no clock is given"))
            return
        self._played.play(ask.clock)
        self._reply(NodeAnswer(ask.id, ask.ask))

    def _read_asks(self) -> None:
        data = os.read(self._asks, MOST_LINE_BYTES)
        self._is_asked = bool(data)
        for one in self._lines.feed(data):
            if isinstance(one, NodeAnswer):
                self._reply(one)
            else:
                self._answer(one)

    def _answer(self, ask: Ask) -> None:
        if ask.ask not in ASKS:
            self._reply(NodeAnswer(ask.id, ask.ask, f"no question: {ask.ask!r}; there are {', '.join(ASKS)}"))
        elif not self._said_ns:
            self._reply(NodeAnswer(ask.id, ask.ask, "nothing was read yet"))
        elif ask.ask in ("stacks", "nccl") and self._played:
            self._reply(NodeAnswer(ask.id, ask.ask, "it is a recording: its processes have ended"))  # others here may have their numbers
        elif ask.ask == "play":
            self._play(ask)
        elif ask.ask == "summary":
            self._say()
            self._reply(NodeAnswer(ask.id, ask.ask))
        elif ask.ask == "frames":
            self._answer_frames(ask)
        elif ask.ask == "save":
            self._in_thread(ask, self._save())
        elif ask.ask == "nccl":
            self._in_thread(ask, self._ask_nccl(ask))
        else:
            self._in_thread(ask, self._take_stacks(ask))

    def _answer_frames(self, ask: Ask) -> None:
        """Send the kept frames from the key frame before the moment asked for, and from now on every new one."""
        self._sends_frames = ask.back_s >= 0
        if self._ring is not None and self._sends_frames:
            for block in self._ring.sealed(self._ring.end_ns - int(ask.back_s * SECOND_NS)):
                self._out.put_answer(block.read())  # as it is kept: a fifth of the bytes of frames, and nothing to encode
        self._reply(NodeAnswer(ask.id, ask.ask))

    def _reply(self, answer: NodeAnswer) -> None:
        self._out.put_answer(pack_answer(answer, self._following.board.t_ns))

    def _in_thread(self, ask: Ask, work: Callable[[], bytes]) -> None:
        """Answer with the bytes that ``work`` returns, in pieces."""

        def run() -> None:
            try:
                data, error = work(), ""
            except UserError as failed:
                data, error = b"", str(failed)
            except Exception as failed:  # noqa: BLE001 - its text is the answer
                data, error = b"", crash.reason(failed)
            pieces = [data[i : i + PIECE_BYTES] for i in range(0, max(1, len(data)), PIECE_BYTES)]
            now = time.time()
            self._done += [NodeAnswer(ask.id, ask.ask, error, piece, piece is not pieces[-1], now) for piece in pieces]
            os.write(self._done_w, b"!")

        if start_thread(run, "answer") is None:
            self._reply(NodeAnswer(ask.id, ask.ask, "no more threads are allowed there"))

    def _hand_over(self) -> None:
        os.read(self._done_r, 4096)
        while self._done:
            self._reply(self._done.popleft())

    def _take_stacks(self, ask: Ask) -> Callable[[], bytes]:
        words = waits(self._following.board, self._following.engine.roles, self._following.engine.states, self._following.engine.verdict)
        pids = (ask.pids or sorted(self._following.engine.standing))[:MOST_STACKS]

        def take() -> bytes:
            from gputop.stacks.capture import capture

            if ask.at_unix_s is not None:
                time.sleep(min(LATEST_S, max(0.0, ask.at_unix_s - time.time())))
            return msgspec.msgpack.encode(capture(pids, waits=words).stacks)

        return take

    def _ask_nccl(self, ask: Ask) -> Callable[[], bytes]:
        pids = ask.pids or sorted(self._following.engine.standing)

        def read() -> bytes:
            from gputop.stacks import nccl

            return nccl.pack_report(nccl.ask(pids))

        return read

    def _save(self) -> Callable[[], bytes]:
        assert self._ring is not None
        header, blocks, end_ns = self._ring.for_a_file()

        def save() -> bytes:
            with os.fdopen(os.memfd_create("gputop", os.MFD_CLOEXEC), "rb") as file:
                write_blocks("the answer", os.dup(file.fileno()), header, blocks, end_ns)
                file.seek(0)
                return file.read()

        return save
