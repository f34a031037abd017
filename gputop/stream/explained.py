"""Explanation of a stretch: the recorder's findings where they hold for it, else a new judgement of its frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from gputop.findings.explanation import Dated, Episode, Explanation
from gputop.findings.trouble import HUNG, STRAGGLER
from gputop.findings.verdict import Evidence
from gputop.model.board import Board
from gputop.recording.format import TIER_NAMES
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.stream.following import Following
from gputop.stream.judged import judged, tier_for, tier_words
from gputop.stream.kept import explanation
from gputop.stream.kept_traces import traces_in
from gputop.stream.moment import Span
from gputop.system.text import clean

LEAST_S = 2.0  # s of a recording; the diagnosis needs so much


class ExplainedStretch(Struct):
    """The explanation of a stretch of frames."""

    explanation: Explanation
    points: list[tuple[float, float]] = field(default_factory=list)  # (unix seconds, mean utilization of the GPUs in %), about one a second
    problems: list[str] = field(default_factory=list)
    ongoing: bool = True  # whether more frames may follow
    experiments: list[Dated] = field(default_factory=list)  # of a recording: how they ended
    board: Board | None = None  # at the end of the stretch; None for the recorder's findings, which read no frames


Watch = Callable[[Following], None]  # is called after each feed of the engine


def explain_files(paths: Sequence[str], span: Span, with_points: bool = False, watch: Watch | None = None) -> ExplainedStretch:
    """Explain a stretch of a recording or of the files of a rotation, which ``watch`` sees. Raises UserError if it cannot be read."""
    with open_recording(paths) as recording:
        start_ns, end_ns = span.of(recording)
        found = explain(recording, start_ns, end_ns, fine=span.fine, again=with_points, watch=watch)
        if found.board is None:
            found.explanation = replace(found.explanation, judged_by="recorder")
            found.problems.append("these are the recorder's findings; --fine judges every tick again")
        else:
            recording.tier = tier_for(start_ns, min(end_ns, recording.end_ns), span.fine)
            tier = TIER_NAMES[max(recording.tiers_between(start_ns, end_ns, recording.tier))]
            found.explanation = replace(found.explanation, judged_by="explain", read_at=tier)
            found.problems += filter(None, [tier_words(recording, start_ns, end_ns)])
        _add_marks(found, recording, start_ns, end_ns)
        found.ongoing = recording.growing and end_ns > recording.end_ns
        return found


def explain(
    recording: Recording, start_ns: int, end_ns: int, *, fine: bool = False, again: bool = False, watch: Watch | None = None
) -> ExplainedStretch:
    """Explain the frames with ``start_ns <= t_ns < end_ns``. ``fine``: judge every tick; ``again``: judge even what the recorder judged, as
    for a ``watch``."""
    kept = None if fine or again or watch else explanation(recording, start_ns, end_ns, with_rest=True)
    following = Following()
    found = judge(following, judged(following, recording, start_ns, end_ns, fine), watch) if kept is None else ExplainedStretch(kept)
    if traces := [job for _, job in traces_in(recording, start_ns, end_ns)]:
        found.explanation = replace(found.explanation, traces=traces)
    return found


def explain_now(argv: list[str], seconds: float, begun: Callable[[], None]) -> ExplainedStretch:
    """Explain the next ``seconds`` of this machine, by the collector ``argv``. ``begun`` is called once that has started.

    Raises UserError if the collector ends before.
    """
    from gputop.stream.child import ChildStream
    from gputop.stream.reader import Loop, TimeLimit
    from gputop.stream.restarts import LastingStream

    following = Following()
    with Loop(LastingStream(ChildStream(argv)), TimeLimit(seconds), drain_s=0.0) as loop:
        begun()
        return judge(following, following.through(loop.live_items()))


def judge(following: Following, fed: Iterable[Board], watch: Watch | None = None) -> ExplainedStretch:
    """Let the engine judge all of ``fed``, the boards that ``following`` yields."""
    points: list[tuple[float, float]] = []
    for board in fed:
        if watch is not None:
            watch(following)
        known = [value for gpu in board.gpus.values() if (value := gpu.number("util_pct")) is not None]
        if known:
            points.append((board.header.unix_ns_of(board.t_ns) / 1e9, sum(known) / len(known)))
    return ExplainedStretch(following.engine.explain(), points, board=following.board)


def _add_marks(found: ExplainedStretch, recording: Recording, start_ns: int, end_ns: int) -> None:
    """Add what markers report, and problems of the recording."""
    seconds = (min(end_ns, recording.end_ns) - start_ns) / 1e9
    if seconds + 2 * recording.header.interval_ns / 1e9 < LEAST_S:
        found.problems.append(f"{seconds:.2g} s are too short to judge, ask for {LEAST_S:g} s or more")
    within = [(recording.header.unix_ns_of(mark.t_ns) / 1e9, mark) for mark in recording.marks if start_ns <= mark.t_ns < end_ns]
    found.experiments = [Dated(unix_s, mark.experiment) for unix_s, mark in within if mark.experiment]
    if said := [Dated(round(unix_s, 3), clean(mark.nccl)) for unix_s, mark in within if mark.nccl]:
        found.explanation = replace(found.explanation, nccl=said)
    if dumped := [Dated(round(unix_s, 3), clean(mark.flight)) for unix_s, mark in within if mark.flight]:
        incidents = [_with_dumps(one, dumped) for one in found.explanation.incidents]
        found.explanation = replace(found.explanation, flight=dumped, incidents=incidents)
    gaps = [mark.text for _, mark in within if mark.gap_reason]
    if gaps:
        found.problems.append(f"{len(gaps)} gaps, the first: {gaps[0]}" if len(gaps) > 1 else gaps[0])
    if recording.problem:
        found.problems.append(recording.problem)


def _with_dumps(one: Episode, dumped: Sequence[Dated]) -> Episode:
    """The incident of ranks that hung, with the last dump in its time as evidence."""
    if one.cause not in (HUNG, STRAGGLER):
        return one
    within = [dump for dump in dumped if one.start_unix_s <= dump.unix_s <= (one.end_unix_s or dump.unix_s)]
    evidence = [Evidence("flight_recorder", None, "", f"torch's flight recorder: {within[-1].text}")] if within else []
    return replace(one, evidence=[*one.evidence, *evidence])
