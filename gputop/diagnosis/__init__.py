"""Why the GPU waits: states, the wait-for chain, verdicts, ledger, incidents, fixes. Pure: boards in, words out."""

from gputop.diagnosis.engine import Engine
from gputop.findings.verdict import Incident, Ledger, ProcState, Verdict

__all__ = ["Engine", "Incident", "Ledger", "ProcState", "Verdict"]
