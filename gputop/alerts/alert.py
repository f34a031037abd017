"""Contents of an alert, the same for every sink. Names are cleaned; command lines and environments are never in it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from gputop.findings import message
from gputop.findings.explanation import Episode, episode
from gputop.findings.sentence import plain
from gputop.findings.trouble import heading, is_fault
from gputop.findings.verdict import SEVERITIES, Incident, best_fix
from gputop.model.frame import SECOND_NS, Header
from gputop.model.roles import program_name
from gputop.stream.following import Following
from gputop.system.colour import Line
from gputop.system.text import clean

SCHEMA = 1
MOST_TEXT = 500  # characters of any text of others; a headline has about 200 (a choice)
MOST_LISTED = 16  # entries of any list: victims, culprits, evidence (a choice)
BEGIN, END = "begin", "end"
MINUTE_NS = 60 * SECOND_NS
QUIET_NS = 10 * MINUTE_NS  # between two alerts about an incident that comes and goes (a choice)


class Alert(Struct, frozen=True):
    """Alert that a webhook gets, and a command on its standard input (`gputop watch --alert`)."""

    schema: int
    event: str  # `BEGIN` or `END`
    text: str  # one line for people
    host: str
    trainer: str  # its program and rank; empty if it is not known
    times: int  # how often such an incident has come since the last alert about one
    incident: Episode

    @property
    def facts(self) -> dict[str, str]:
        """Name -> value, of what short forms show: a chat's fields, the variables of a command. What is not known is left out."""
        one, fix = self.incident, best_fix(self.incident.fixes)
        facts = {
            "host": self.host, "severity": one.severity, "symptom": one.symptom, "cause": one.cause, "trainer": self.trainer,
            "trainer_pid": one.trainer_pid, "gpu": one.gpu, "times": self.times if self.times > 1 else None, "gpu_lost_s": one.gpu_lost_s,
            "culprits": ", ".join(f"{who.name} ({who.pid})" for who in one.culprits), "help_url": one.help_url,
            "fix": None if fix is None or fix.look else fix.command or fix.text,
        }  # fmt: skip
        return {name: str(value) for name, value in facts.items() if value not in (None, "")}


class IncidentFilter:
    """Decides which incidents are reported: of at least a severity, once when they have reached it and once when they have ended; never a
    pause."""

    def __init__(self, severity: str) -> None:
        self._least = SEVERITIES.index(severity)
        self._told: dict[tuple[int, int], Incident] = {}  # `Incident.key` -> reported and not over

    def news(self, incidents: list[Incident]) -> list[tuple[str, Incident]]:
        """(`BEGIN` or `END`, incident) since the last call."""
        lasting = {one.key: one for one in incidents if one.end_ns is None}
        over = [self._told.pop(key) for key in list(self._told) if key not in lasting]
        begun = {key: one for key, one in lasting.items() if key not in self._told and self._counts(one)}
        self._told |= begun
        return [*((END, one) for one in over), *((BEGIN, one) for one in begun.values())]

    def _counts(self, one: Incident) -> bool:
        return is_fault(one) and SEVERITIES.index(one.severity) >= self._least


class Damper:
    """Decides which reports are sent: for an incident that recurs the first, then one each `QUIET_NS` with the number of times it has come.
    A worse one than was sent is not held back."""

    def __init__(self) -> None:
        self._known: dict[_Kind, _Sent] = {}
        self._begun: set[tuple[int, int]] = set()  # incidents with a sent begin

    def sent(self, news: list[tuple[str, Incident]], now_ns: int) -> list[tuple[str, Incident, int]]:
        """(`BEGIN` or `END`, incident, number of times it has come since the last alert about it)."""
        if any(now_ns < one.t_ns for one in self._known.values()):
            self._known.clear()  # another boot's clock
        found = [(event, one, times) for event, one in news if (times := (self._begins if event == BEGIN else self._ends)(one, now_ns))]
        return [*found, *self._due(now_ns)]

    def _begins(self, one: Incident, now_ns: int) -> int:
        kind, rank = _kind(one), SEVERITIES.index(one.severity)
        known = self._known.get(kind)
        if known is None or now_ns - known.t_ns >= QUIET_NS or rank > known.rank:
            times = 1 if known is None else known.held + 1
            self._known[kind] = _Sent(now_ns, rank, one)
            self._begun.add(one.key)
            return times
        known.held, known.last = known.held + 1, one
        return 0

    def _ends(self, one: Incident, _now_ns: int) -> int:
        was_sent = one.key in self._begun
        self._begun.discard(one.key)
        return int(was_sent)

    def _due(self, now_ns: int) -> Iterator[tuple[str, Incident, int]]:
        """Alerts that were held back for long enough. Kinds that have not recurred for as long are forgotten."""
        for kind, known in list(self._known.items()):
            if now_ns - known.t_ns < QUIET_NS:
                continue
            if not known.held:
                del self._known[kind]
                continue
            one, lasts = known.last, known.last.end_ns is None
            self._known[kind] = _Sent(now_ns, SEVERITIES.index(one.severity), one)
            if lasts:
                self._begun.add(one.key)
            yield BEGIN if lasts else END, one, known.held


_Kind = tuple[str, int | None, int | None]  # cause, trainer, and GPU without a trainer: two incidents with the same are one that recurs


def _kind(one: Incident) -> _Kind:
    return one.cause, one.trainer_pid, one.gpu if one.trainer_pid is None else None


class _Sent(Struct):
    """The last that was sent of a kind."""

    t_ns: int
    rank: int  # of its severity
    last: Incident  # such a one
    held: int = 0  # times that it came since


def made(event: str, incident: Incident, following: Following, times: int = 1) -> Alert:
    """The alert about an incident of a stream, as it stands now. ``times``: how often it has come since the last one was sent."""
    header = following.board.header
    if event == END and incident.end_ns is None:  # the job has ended with it
        incident = replace(incident, end_ns=following.board.t_ns)
    text, trainer = _text(event, incident, header, times), _trainer(incident, following)
    found = Alert(SCHEMA, event, text, header.host, trainer, times, episode(incident, header))
    return plain(found, lambda one: clean(one, MOST_TEXT), MOST_LISTED)


def lines(alert: Alert, width: int, before: str = "") -> Iterator[Line]:
    """Lines of an alert for a terminal: what began, with its fix, or what is over. ``before``: what stands before the first."""
    one = alert.incident
    what, often = heading(one.symptom, one, "←"), _often(alert.times)
    if alert.event == END:
        lasted_s = 0.0 if one.end_unix_s is None else one.end_unix_s - one.start_unix_s
        yield message.over(what, f"{alert.host}, over after {lasted_s:.0f} s{often}", before)
        return
    yield message.head(what, one.severity, f"{alert.host}, {one.severity}{often}", before)
    yield from message.wrapped(one.headline, width, "title")
    yield from message.wrapped(one.detail, width)
    if (fix := best_fix(one.fixes)) is not None:
        yield from message.fixes([fix], width)


def _trainer(incident: Incident, following: Following) -> str:
    info, role = following.board.infos.get(incident.trainer_pid or 0), following.engine.roles.get(incident.trainer_pid or 0)
    if info is None:
        return next((one.name for one in incident.victims if one.pid == incident.trainer_pid), "")
    return program_name(info) + (f" rank {role.rank}" if role is not None and role.rank is not None else "")


def _text(event: str, incident: Incident, header: Header, times: int) -> str:
    what = heading(incident.symptom, incident, "←")
    often = _often(times)
    if event == BEGIN:
        told = f"{incident.headline}. {incident.detail}" if incident.detail else incident.headline
        return clean(f"▲ {header.host}: {what} ({incident.severity}{often}): {told}", MOST_TEXT)
    seconds = ((incident.end_ns or incident.start_ns) - incident.start_ns) / 1e9
    return clean(f"✓ {header.host}: {what} is over after {seconds:.0f} s{often}: {incident.headline}", MOST_TEXT)


def _often(times: int) -> str:
    return f", {times} times in {QUIET_NS // MINUTE_NS} min" if times > 1 else ""
