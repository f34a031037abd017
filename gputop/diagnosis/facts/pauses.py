"""Pauses, where steps stop for a while, by three clocks; and the total of pauses that repeat.

`Breaks`  by a GPU's readings: after some steps of full work the GPU idles for the length of some steps, or works little for longer
`Quiet`   by CUDA calls: a trainer makes none after some quick steps
`Turns`   by workers: the ones that fed a busy GPU all rest, others work, and the GPU starves: an evaluation with its own loader
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from gputop.diagnosis.facts.proc import ProcFacts
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.model.frame import CudaCall

Span = tuple[int, int]  # (begin, end): CLOCK_MONOTONIC, ns


def length_s(spans: Iterable[Span], oldest_ns: int = 0) -> float:
    """Seconds of all spans together, as far as they lie after ``oldest_ns``."""
    return sum(until - max(since, oldest_ns) for since, until in spans) / 1e9


class _Break(Struct):
    since_ns: int
    until_ns: int
    lost_ns: float = 0.0
    resting_ns: int = 0  # length of the present stretch without work
    still_ns: int = 0  # longest stretch without work; a step that waits has many short ones, one after each kernel
    sunk_ns: int = 0

    def extend(self, util: float, ns: int) -> None:
        self.until_ns += ns
        self.lost_ns += (1.0 - util) * ns
        self.resting_ns = self.resting_ns + ns if util < policy.LITTLE else 0
        self.still_ns = max(self.still_ns, self.resting_ns)
        self.sunk_ns += ns if util < policy.FIFTH else 0

    @property
    def counts(self) -> bool:
        return self.lost_ns >= policy.LOST_NS and self.still_ns >= policy.STILL_NS

    @property
    def has_sunk(self) -> bool:
        return self.sunk_ns >= policy.PAUSE_S * 1e9


class Breaks:
    """Breaks of one GPU that reach into the window."""

    def __init__(self) -> None:
        self._last_ns = self._full_ns = 0
        self._open: _Break | None = None
        self._breaks: list[_Break] = []

    def note(self, util: float, t_ns: int) -> None:
        """Take in the utilization, 0..1, of the time since the reading before."""
        ns, self._last_ns = t_ns - (self._last_ns or t_ns), t_ns
        if not 0 <= ns <= policy.READING_NS:
            self._breaks = [one for one in self._breaks if one is not self._open]
            self._full_ns, self._open = 0, None
        elif util >= 1.0 - policy.LOST:
            self._full_ns, self._open = self._full_ns + ns, None
        else:
            if self._open is None and self._full_ns >= policy.BREAK_NS:
                self._open = _Break(t_ns - ns, t_ns - ns)
                self._breaks.append(self._open)
            self._full_ns = 0
            if self._open is not None:
                self._open.extend(util, ns)

    def lost_s(self, oldest_ns: int) -> float:
        """Seconds of work lost in breaks since ``oldest_ns``."""
        return _lost_s((one for one in self._since(oldest_ns) if one.counts), oldest_ns)

    def dips_s(self, oldest_ns: int) -> float:
        """Seconds of work lost after full work, also in dips too short to be breaks."""
        return _lost_s(self._since(oldest_ns), oldest_ns)

    def sunk_s(self, oldest_ns: int) -> float:
        """Seconds of work lost in stretches with little work."""
        return _lost_s((one for one in self._since(oldest_ns) if one.has_sunk), oldest_ns)

    def spans(self, oldest_ns: int) -> list[Span]:
        """Breaks, and stretches with little work, that reach into the window."""
        return [(one.since_ns, one.until_ns) for one in self._since(oldest_ns) if one.counts or one.has_sunk]

    def _since(self, oldest_ns: int) -> list[_Break]:
        self._breaks = [one for one in self._breaks if one.until_ns > oldest_ns]
        return self._breaks


def _lost_s(breaks: Iterable[_Break], oldest_ns: int) -> float:
    parts = ((one.lost_ns, one.until_ns - max(one.since_ns, oldest_ns), one.until_ns - one.since_ns) for one in breaks)
    return sum(lost_ns * inside_ns / max(1, ns) for lost_ns, inside_ns, ns in parts) / 1e9


class Quiet:
    """Stretches of one trainer without CUDA calls. (A GPU's readings, each a mean of up to a second, may not show such a pause.)

    With many trainers calls are read seldom, so the time between two readings proves nothing: a reading in between must have found no call.
    """

    def __init__(self) -> None:
        self._last_ns = self._still_ns = 0  # when the last call was seen, and the last reading without a call
        self._counts: dict[str, int] = {}
        self._made: dict[str, int] = {}  # calls since the last stretch
        self._spans: list[Span] = []

    def note(self, call: CudaCall, t_ns: int) -> None:
        """Take in a call's counter at ``t_ns``, and whether such a call is in flight then."""
        before, self._counts[call.call] = self._counts.get(call.call), call.count
        if before == call.count and not call.inflight_ns:
            return
        if self._is_long(t_ns):
            self._spans += self._open(t_ns)
            self._made.clear()
        self._made[call.call] = self._made.get(call.call, 0) + call.count - (before or call.count)
        self._last_ns = t_ns

    def end_reading(self, t_ns: int) -> None:
        """Note that all calls of the reading at ``t_ns`` are in."""
        self._still_ns = t_ns if self._last_ns < t_ns else self._still_ns

    def spans(self, oldest_ns: int, now_ns: int) -> list[Span]:
        """Stretches without calls that reach into the window."""
        self._spans = [span for span in self._spans if span[1] > oldest_ns]
        return [*self._spans, *(span for span in self._open(now_ns) if now_ns > oldest_ns)]

    def _is_long(self, t_ns: int) -> bool:
        return t_ns - self._last_ns >= policy.LOST_NS and self._still_ns > self._last_ns > 0

    def _open(self, t_ns: int) -> list[Span]:
        """The stretch that lasts until ``t_ns``, if it is long and follows enough steps. Steps are counted by copies to the GPU, which each
        step makes, else by the rarest call."""
        copies = [made for call, made in self._made.items() if "HtoD" in call and made]
        steps = max(copies, default=min((made for made in self._made.values() if made), default=0))
        return [(self._last_ns, t_ns)] if steps >= policy.OFTEN and self._is_long(t_ns) else []


class Turns:
    """Spans in which one trainer turned from the workers that feed its steps to others. A worker that loads for both never rests."""

    def __init__(self) -> None:
        self._feeders = self._at_work = frozenset[int]()  # pids of workers that fed its steps, and of workers at work now
        self._since_ns = 0  # since when exactly these workers have been at work
        self._turns: list[Span] = []

    def note(self, workers: Sequence[ProcFacts], idle: float, t_ns: int) -> None:
        """Take in the state of the workers, and ``idle``, the share of the window in which the GPUs idle."""
        at_work = frozenset(worker.pid for worker in workers if worker.run >= policy.HARDLY and worker.still_s < policy.PAUSE_S)
        if at_work != self._at_work:
            self._at_work, self._since_ns = at_work, t_ns
        if idle <= policy.TENTH and at_work and t_ns - self._since_ns >= policy.STEADY_NS:
            self._feeders = at_work
        elif idle >= policy.FIFTH and at_work and self._feeders and not at_work & self._feeders:
            rests_s = [worker.still_s for worker in workers if worker.pid in self._feeders]  # if all have ended, the beginning is unknown
            if self._turns and t_ns - self._turns[-1][1] < policy.PAUSE_S * 1e9:
                self._turns[-1] = self._turns[-1][0], t_ns
            elif rests_s:
                self._turns.append((t_ns - round(min(rests_s) * 1e9), t_ns))

    def spans(self, oldest_ns: int, now_ns: int) -> list[Span]:
        """Turns to other workers that reach into the window."""
        self._turns = [turn for turn in self._turns if turn[1] > oldest_ns]
        return [turn for turn in self._turns if now_ns - turn[0] <= policy.WARM_UP_NS]


class Repeated(Struct, frozen=True):
    """Total of one trainer's pauses. A single pause is no fault, but together they may be worth winning back."""

    count: int
    each_s: float  # mean
    share: float
    seconds: float  # since the first began

    def told(self) -> str:
        """The sentence for evidence and headline."""
        return filled(
            "{} pauses of {:.1f} s each took {:.0f}% of the last {:.0f} s", self.count, self.each_s, 100 * self.share, self.seconds
        )


def merged(spans: Iterable[Span], now_ns: int) -> list[Span]:
    """The spans in order, without spans that began too long ago. One pause that several clocks show becomes one span."""
    found: list[Span] = []
    for since, until in sorted(span for span in spans if span[0] > now_ns - policy.REMEMBERED_NS):
        if found and since <= found[-1][1] + policy.BREAK_NS:
            found[-1] = found[-1][0], max(found[-1][1], until)
        else:
            found.append((since, until))
    return found


def repeated(pauses: list[Span], now_ns: int) -> Repeated | None:
    """Total of the pauses, which are in order and apart; None if they are few, or take little."""
    if len(pauses) < policy.OFTEN:
        return None
    taken_s, first_ns, last_ns = length_s(pauses), pauses[0][0], pauses[-1][0]
    # Share from the first beginning to the last; it falls with time if no further pause begins.
    share = min(length_s(pauses[:-1]) * 1e9 / (last_ns - first_ns), taken_s * 1e9 / (now_ns - first_ns))
    return Repeated(len(pauses), taken_s / len(pauses), share, (now_ns - first_ns) / 1e9) if share >= policy.QUARTER else None
