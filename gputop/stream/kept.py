"""Findings of the diagnosis, kept at the end of a recording while it is made: hours are explained at once.

Judging a recording again takes seconds an hour. That is done all the same where only a part is asked for, where the recorder was
killed, and where the rules have changed since (`rules`).
"""

from __future__ import annotations

import zlib
from collections import deque
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gputop import diagnosis, findings
from gputop.diagnosis import Engine
from gputop.findings.explanation import MOST_TRAINED, Booked, Episode, Explanation, Trained, booked, from_elsewhere
from gputop.findings.runs import Run
from gputop.findings.sentence import pack, unpack
from gputop.findings.trouble import gpu_about
from gputop.findings.verdict import CAUSES as KNOWN_CAUSES
from gputop.findings.verdict import SEVERITIES, SYMPTOMS, Ledger, total
from gputop.model import roles
from gputop.model.ranges import Ns
from gputop.recording.reader import Recording
from gputop.stream.following import Following
from gputop.stream.judged import judged
from gputop.system.decoding import BROKEN
from gputop.system.plugins import CAUSES, plugins
from gputop.system.program import __version__

LATE_NS = 12_000_000_000
"""A recording that is begun from the screen begins with the last key frame: so much, at most, before it is judged for it."""
SHORT_NS = 30_000_000_000  # a shorter recording is judged again in a second
REST_SHARE = 1 / 2  # of the judged time: a longer rest is judged together with it
SAME_S = 15.0  # after the findings, in which an incident of the same cause goes on: an engine takes so long to see it again
UNJUDGED_NS = 3_000_000_000  # its last frames may come after the engine's last feed


class FindingsBlock(msgspec.Struct, frozen=True):
    """The payload of a findings block: msgpack with texts as own templates and facts (`gputop.findings.sentence`)."""

    rules: int  # by which it was judged
    start_ns: Ns
    end_ns: Ns  # the engine was fed from here to there
    explanation: Explanation  # as `Engine.found` gives it


class FindingsRecorder:
    """Collects an engine's findings, from now on or of the last ``keep_ns``."""

    def __init__(self, engine: Engine, keep_ns: int | None = None) -> None:
        self._engine, self._keep_ns = engine, keep_ns
        self._starts = deque([(engine.fed_ns, engine.ledger)])

    def tell(self) -> bytes:
        """The findings so far, packed."""
        now_ns = self._engine.fed_ns
        if self._keep_ns is not None:
            self._starts.append((now_ns, self._engine.ledger))
            while self._starts[1][0] <= now_ns - self._keep_ns:
                self._starts.popleft()
        start_ns, before = self._starts[0]
        return pack(FindingsBlock(rules(), start_ns, now_ns, self._engine.found(start_ns, before)))


def rules() -> int:
    """A number that changes with any rule of the diagnosis: the CRC-32 of its source, or of the version where that cannot be read, and of
    the plug-ins that judge with it.
    """
    plugged = repr(plugins(CAUSES)).encode() if plugins(CAUSES) else b""
    try:
        files = [Path(roles.__file__), *(file for room in (diagnosis, findings) for file in sorted(Path(room.__path__[0]).rglob("*.py")))]
        return zlib.crc32(b"".join(file.read_bytes() for file in files) + plugged)
    except OSError:
        return zlib.crc32(__version__.encode() + plugged)


def explanation(recording: Recording, start_ns: int = 0, end_ns: int = 1 << 63, with_rest: bool = False) -> Explanation | None:
    """Findings about a whole long ``recording`` by today's rules; None if they are not known, or only a part is asked for.

    ``with_rest``: if the findings lack the last part, as while the recording grows or after a kill, that part is judged now.
    """
    if recording.end_ns - recording.start_ns <= SHORT_NS or start_ns > recording.start_ns or end_ns <= recording.end_ns:
        return None
    payload = recording.findings()
    try:
        found = unpack(payload, FindingsBlock) if payload else None
    except BROKEN:
        return None
    if found is None or found.rules != rules() or found.start_ns - recording.start_ns > LATE_NS:
        return None
    if not found.start_ns <= found.end_ns <= recording.end_ns + UNJUDGED_NS:
        return None
    if not _has_known_words(found.explanation):
        return None
    found = replace(found, explanation=from_elsewhere(found.explanation))
    rest_ns = recording.end_ns - found.end_ns
    if rest_ns > (REST_SHARE * (found.end_ns - recording.start_ns) if with_rest else UNJUDGED_NS):
        return None
    recording.verify()  # losses since then are reported all the same
    return found.explanation if rest_ns <= UNJUDGED_NS else _with_rest(found, recording)


def _has_known_words(found: Explanation) -> bool:
    """True if incidents and trainers' ledgers have only known words, as in a file written by these rules."""
    causes = {cause for one in found.trainers if one.ledger for cause in one.ledger.by_cause} | {one.cause for one in found.incidents}
    known = all(one.symptom in SYMPTOMS and one.severity in SEVERITIES for one in found.incidents)
    return known and causes <= set(KNOWN_CAUSES)


def _with_rest(found: FindingsBlock, recording: Recording) -> Explanation:
    """The findings, followed by findings about the rest; with the verdict of the part that lost more."""
    following = Following()
    deque(judged(following, recording, found.end_ns + 1, recording.end_ns + 1), maxlen=0)
    before, after = found.explanation, following.engine.explain()
    incidents, first_id = list(before.incidents), max((one.id for one in before.incidents), default=0) + 1
    until_s = recording.unix_ns_of(found.end_ns) / 1e9
    opened = {_incident_key(one): i for i, one in enumerate(incidents) if one.end_unix_s is None}
    for i in opened.values():
        incidents[i] = replace(incidents[i], end_unix_s=round(until_s, 3))
    for number, one in enumerate(after.incidents):
        i = opened.pop(_incident_key(one), -1) if one.start_unix_s - until_s < SAME_S else -1
        if i >= 0:
            incidents[i] = _joined(incidents[i], one)
        else:
            incidents.append(replace(one, id=first_id + number))
    share = (found.end_ns - recording.start_ns) / (recording.end_ns - recording.start_ns)
    lost = [one.ledger.gpu_lost_s or 0.0 for one in (before, after)]
    ledger, more = booked(total(map(_unrounded, (before.ledger, after.ledger)))), after if lost[1] > lost[0] else before
    regain = next((one for one in ledger.regain if one.cause == more.verdict.cause), None)
    gpu_s = None if regain is None else regain.regain_gpu_s
    bounds = [one.verdict.speedup_max for one in (before, after) if one.verdict.cause == more.verdict.cause]
    bound = max((one for one in bounds if one is not None), default=None)
    return Explanation(
        schema=before.schema, verdict=replace(more.verdict, regain_gpu_s=gpu_s, speedup_max=bound), ledger=ledger,
        workers={
            word: round(share * before.workers.get(word, 0.0) + (1 - share) * after.workers.get(word, 0.0), 4)
            for word in {**before.workers, **after.workers}
        },
        incidents=incidents, what_if=more.what_if, trainers=_trainers(before.trainers, after.trainers)[-MOST_TRAINED:],
        runs=_runs(before, after),
    )  # fmt: skip


def _runs(before: Explanation, after: Explanation) -> list[Run] | UnsetType:
    """Runs of two parts; one that was seen in both stands as the first knew it, to the end of the second."""
    known = [[] if one.runs is UNSET else one.runs for one in (before, after)]
    ends = {one.process: one.end_unix_s for one in known[1]}
    first = [replace(one, end_unix_s=ends.pop(one.process, one.end_unix_s)) for one in known[0]]
    both = [*first, *(one for one in known[1] if one.process in ends)]
    return both[-MOST_TRAINED:] or UNSET


def _incident_key(one: Episode) -> tuple[str, int | None]:
    """Key of an incident that continues in the next part: its cause, and the GPU that it is about."""
    return one.cause, gpu_about(one, one.gpu)


def _unrounded(told: Booked) -> Ledger:
    return Ledger(told.gpu_total_s or 0.0, told.gpu_lost_s or 0.0, dict(told.by_cause), told.gpu_idle_s or 0.0)


def _trainers(before: list[Trained], after: list[Trained]) -> list[Trained]:
    """Trainers of two parts of a recording, each once, with the GPU time that it lost in both."""
    found = {(one.pid, one.name): one for one in before}
    for one in after:
        if (was := found.get((one.pid, one.name))) is not None:
            known = [part.ledger for part in (was, one)]
            whole = total(part for part in known if isinstance(part, Ledger))
            one = replace(one, ledger=UNSET if UNSET in known else whole.rounded() if whole.gpu_total_s else None)
        found[one.pid, one.name] = one
    return list(found.values())


def _joined(before: Episode, after: Episode) -> Episode:
    """One incident made of its two parts. The greater of two upper bounds holds for both."""
    bounds = [one.speedup_max for one in (before, after) if one.speedup_max is not None]
    regain = [one.regain_gpu_s for one in (before, after) if one.regain_gpu_s is not None]
    return replace(
        before, end_unix_s=after.end_unix_s, gpu_lost_s=round(before.gpu_lost_s + after.gpu_lost_s, 3),
        regain_gpu_s=round(sum(regain), 3) if regain else None, speedup_max=max(bounds, default=None),
    )  # fmt: skip
