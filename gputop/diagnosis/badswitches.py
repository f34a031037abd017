"""link-errors of NVSwitches: SXids that the driver reports in the kernel's log while gputop watches.

They are never the verdict, as the other link-errors (`gputop.diagnosis.badlinks`) are not: jobs that a fatal one ends hang or die by
themselves. A fatal one lasts until all GPUs behind the switch, and the switch, are reset.
"""

from __future__ import annotations

from msgspec import Struct, field

from gputop.diagnosis.incidents import Incidents, begun
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import LINK_ERRORS, Evidence, Fix, Incident
from gputop.model.board import Board
from gputop.model.driverlog import SXID, DriverError

_LOOK = Fix("See the reports of driver and switches", "sudo dmesg | grep -iE 'nvlink|sxid|xid' | tail -20", look=True)
_FATAL = (
    Fix("Drain the node and end the jobs on its GPUs: they cannot reach one another by this switch any more"),
    Fix("Then reset all GPUs with their switches, once no process uses one; where that fails, reboot", "sudo nvidia-smi --gpu-reset"),
    Fix("If it comes again, let the switch's board, its GPUs and their seat be checked"),
)
_HARMLESS = (Fix("Nothing now: the switch has corrected it. If it comes again and again, let link and switch be checked"),)


class BadSwitches(Struct):
    """One incident for each NVSwitch that reports errors, which names the worst and latest, until none has come for a minute."""

    known: dict[str, Incident] = field(default_factory=dict)  # by the switch's PCI address

    def begin(self) -> None:
        """Go on watching; errors that last get new incidents."""
        self.known.clear()

    def note(self, board: Board, incidents: Incidents) -> None:
        """Take in the board: incidents begin, change and end."""
        by_switch: dict[str, list[DriverError]] = {}
        for one in board.driver_errors.values():
            if one.kind == SXID and not one.old:
                by_switch.setdefault(one.device, []).append(one)
        for device, errors in by_switch.items():
            recent = [one for one in errors if one.fatal or one.t_ns > board.t_ns - policy.LINKS_NS]
            if recent and device not in self.known:
                self.known[device] = begun(LINK_ERRORS, min(one.t_ns for one in recent))
                incidents.append(self.known[device])
            if recent:
                _tell(self.known[device], device, recent)
        for device in [device for device, incident in self.known.items() if not _lasts(by_switch.get(device, ()), board.t_ns)]:
            incident = self.known.pop(device)
            incident.end_ns = max(incident.start_ns, *(one.t_ns for one in by_switch.get(device, ())))


def _lasts(errors: list[DriverError] | tuple[()], t_ns: int) -> bool:
    return any(one.fatal or one.t_ns > t_ns - policy.LINKS_NS for one in errors)


def _tell(incident: Incident, device: str, errors: list[DriverError]) -> None:
    worst = max(errors, key=lambda one: (bool(one.fatal), one.t_ns))
    where = filled("link {} of NVSwitch {}", worst.link, device) if worst.link is not None else filled("NVSwitch {}", device)
    grave = "a fatal error" if worst.fatal else "an error that is not fatal"
    incident.headline = filled("{} has {}, SXid {}: {}", where, grave, worst.number, worst.text or "without a word of the driver")
    incident.severity = "high" if worst.fatal or incident.severity == "high" else "low"
    links = sorted({one.link for one in errors if one.link is not None} - {worst.link})
    incident.detail = filled("reported {} times since the boot", worst.times) if worst.times > 1 else filled("reported once since the boot")
    if links:
        incident.detail += filled("; links with errors beside it: {:cpus}", ",".join(map(str, links)))
    incident.evidence = [
        Evidence("sxid", float(worst.number), "", "is the number of the error, by the kernel's log"),
        Evidence("sxids", float(sum(one.times for one in errors)), "", "errors of the switch since the boot"),
    ]
    incident.fixes = [*(_FATAL if worst.fatal else _HARMLESS), _LOOK]
