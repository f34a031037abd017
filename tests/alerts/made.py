"""Incidents and alerts made by hand."""

from __future__ import annotations

from msgspec.structs import replace

from gputop.alerts.alert import BEGIN, Alert, made
from gputop.alerts.sender import Sender
from gputop.findings.verdict import Culprit, Incident, Victim
from gputop.model.frame import SECOND_NS, Header, ProcInfo
from gputop.stream.following import Following

INCIDENT = Incident(
    id=1, start_ns=10 * SECOND_NS, end_ns=None, symptom="input-bound", cause="cpu-contention", severity="medium", confidence=0.9,
    trainer_pid=3821, gpu=0, lost_s=3.4567, headline="GPU 0 lost 3.5 of 5.0 s: train.py (3821) waits for its data",
    detail="hog (903) took 1.4 of 4 CPUs", victims=[Victim(3840, "worker", "worker 0")], culprits=[Culprit(903, "hog", 1.4)], evidence=[],
    fixes=[],
)  # fmt: skip


def incident(number: int = 1, **changed: object) -> Incident:
    return replace(INCIDENT, id=number, **changed)


def following() -> Following:
    """A stream with a trainer."""
    one = Following()
    one.restate(Header(host="node7", t_ns=0, unix_ns=1_000 * SECOND_NS))
    one.board.t_ns = 20 * SECOND_NS
    one.board.infos[3821] = ProcInfo(3821, 7, 1, comm="python", cmdline=["python", "train.py", "--api-key=hunter2"])
    return one


def alert(event: str = BEGIN, times: int = 1, number: int = 1, **changed: object) -> Alert:
    return made(event, incident(number, **changed), following(), times)


def put(sender: Sender, event: str = BEGIN, number: int = 1, clock_ns: int = 0, **changed: object) -> None:
    """Give a sender an alert; ``clock_ns``: by which the machine's wall clock was found to be later than the first time."""
    one, stream = incident(number, **changed), following()
    stream.restate(replace(stream.header or Header(), unix_ns=1_000 * SECOND_NS + clock_ns))
    sender.put(made(event, one, stream), one.key)
