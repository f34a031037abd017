"""A package that adds a source, a cause and an export to gputop, as docs/plugins.md tells: the one that the tests install."""

from __future__ import annotations

from typing import Any

from gputop.diagnosis.causes import Finding, Judge, percent
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.verdict import Fix
from gputop.model.frame import Frame, Gpu, SourceState
from gputop.recording.reader import Recording
from gputop.sources import Beat, Settings
from gputop.system.output import create_file, whole_or_gone
from gputop.tables.exports import batches


class OtherGpu:
    """The GPUs of another vendor, in place of which this one is always busy."""

    name = "other-gpu"

    def __init__(self, settings: Settings) -> None:
        self._interval_ns = settings.interval_ns

    def open(self) -> SourceState:
        return SourceState(self.name, "ok")

    def read(self, beat: Beat, frame: Frame) -> None:
        identity = {"name": "Other 9000", "uuid": "other-9", "mem_total_bytes": 1 << 34} if beat.key else {}
        frame.gpus.append(Gpu(9, beat.t_ns, util_pct=100.0, missing={"power_w": "this vendor does not say"}, **identity))

    def close(self) -> None:
        pass


def _tell(_: WalkedJob, facts: WalkedFacts) -> Finding:
    agents = [taker for taker in facts.takers if taker.name.endswith(("-agent", "-shipper"))]
    return Finding(
        f"{len(agents)} agents took the CPUs", (percent("agents", sum(one.cores for one in agents), "CPUs"),),
        (Fix("Let the agents rest while a training runs", "systemctl stop agents.slice"),),
    )  # fmt: skip


NOISY_AGENTS = Judge("noisy-agents", "input-bound", _tell, rows=(("cpu", "stranger"),))
NO_JUDGE = "no judge"


def _fail(*_: Any) -> Any:
    raise ZeroDivisionError("not my day")


FAILS = Judge("always-fails", "input-bound", _fail, rows=(("cpu", "stranger"),), part=_fail)


def write_names(recording: Recording, output: str, start_ns: int, end_ns: int) -> None:
    """The names of the processes, one a line."""
    with whole_or_gone(output) as part:
        create_file(part)
        with open(part, "w", encoding="utf-8") as file:
            for _, rows in batches(recording, start_ns, end_ns, {"process": ["name"]}):
                file.writelines(f"{name}\n" for (name,) in rows)
