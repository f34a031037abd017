"""Words of a path, and of the gain without its cause; how sure a path is. `gputop.diagnosis.graph.walk` builds the steps."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.findings import policy
from gputop.findings.verdict import PathStep
from gputop.system.text import figure

INFERRED = 0.5  # weight of an inferred step in `confidence`, where a measured one has 1 (guess)
_OF_ITS_OWN = ("straggler-rank", "hung-worker")  # causes with culprits that are parts of the job itself
_VERBS = {  # state -> (present, past)
    "waits": ("waits", "waited"),
    "runs": ("runs", "ran"),
    "runnable": ("is runnable", "was runnable"),
    "throttled": ("is throttled", "was throttled"),
    "disk": ("waits for the disk", "waited for the disk"),
    "memory": ("waits for memory", "waited for memory"),
    "network": ("waits for the network", "waited for the network"),
    "copies": ("copies", "copied"),
    "sleeps": ("sleeps", "slept"),
    "stopped": ("is stopped", "was stopped"),
    "still": ("does not move", "did not move"),
    "starts": ("starts", "started"),
    "holds": ("holds it", "held it"),
    "light": ("runs kernels on few SMs", "ran kernels on few SMs"),
    "lost": ("is lost", "was lost"),
    "slowed": ("runs at lowered clocks", "ran at lowered clocks"),
}
_BEFORE_ON = {
    "waits": " for ", "runnable": ", behind ", "throttled": " by ", "disk": ", at ", "network": ", at ", "copies": " over ",
}  # fmt: skip


def confidence(path: Sequence[PathStep]) -> float:
    """Measured part of a path, 0.5 to 1: the mean of its steps, an inferred one counted half, each weighted by its share of the window. 1
    for an empty path."""
    whole, sure, share = 0.0, 0.0, 1.0
    for step in path:
        share *= step.share
        whole += share
        sure += share * (1.0 if step.measured else INFERRED)
    return sure / whole if whole > 0.0 else 1.0


def certainty(margin: float) -> float:
    """Share of right causes that hold ``margin`` more of the loss than the next one, unexplained loss included
    (measured on the learn half of the corpus, with margins of 0, 0.2, 0.4 and above: 0.35, 0.65, 0.9, 0.97)."""
    return min(1.0, max(0.0, 0.4 + 1.2 * margin))


def who(pid: int | None, name: str) -> str:
    """``worker 2 (833)``."""
    return name if pid is None else f"{name} ({pid})"


def sentence(path: Sequence[PathStep]) -> str:
    """``train.py (812) waits 62 % of the time for worker 2 (833), which was runnable 71 % of that, behind fluent-bit (903)``."""
    text = ""
    for i, step in enumerate(path):
        follows = i > 0 and path[i - 1].on.startswith(who(step.pid, step.name))
        subject = who(step.pid, step.name) if i == 0 else ", which" if follows else f"; {who(step.pid, step.name)}"
        text += f"{subject} {_does(step, i, was=i > 0)}"
    return text


def tree(path: Sequence[PathStep]) -> list[tuple[str, str]]:
    """(indent, line) of each step, each deeper than the one before it."""
    lines = (f"{'└ ' if i else ''}{who(step.pid, step.name)} {_does(step, i, was=False)}" for i, step in enumerate(path))
    return [(" " * (2 * i - 2), line) for i, line in enumerate(lines)]


def amount(seconds: float) -> str:
    """``0``, ``<0.1``, ``3.4``, ``58``: seconds, such as lost GPU time, with a decimal while that matters."""
    if 0.0 < seconds < 0.05:
        return "<0.1"
    return f"{seconds:.{int(0.0 < seconds < 9.95)}f}"


def lost_of(lost_s: float, total_s: float) -> str:
    """``19.0 of 45.2 GPU seconds``, as every surface prints a ledger."""
    return f"{lost_s:.1f} of {total_s:.1f} GPU seconds"


def reading(value: float, unit: str) -> str:
    """``76 %``, ``2.31 ms``: a number of the evidence. Shares are whole, as in sentences and tables."""
    return f"{value:.{int(abs(value) < 9.95)}f} %" if unit == "%" else f"{figure(value)} {unit}".rstrip()


def factor(speedup_max: float | None) -> str:
    """``up to 1.74×``; empty if unknown, or if two digits show no gain."""
    if speedup_max is None or speedup_max < 1.0 + policy.TRIFLE:
        return ""
    return f"up to {speedup_max:.{2 if speedup_max < 2 else 1 if speedup_max < 10 else 0}f}×"


def without(cause: str, culprits: Sequence[str], gpu_s: float | None, speedup_max: float | None) -> str:
    """``without fluent-bit (903): up to 1.74× as fast; 12 GPU s would come back``; empty if the gain is unknown.

    ``culprits``: the processes to blame, as `who` names them.
    """
    if not gpu_s:
        return ""
    others = [] if cause in _OF_ITS_OWN else culprits
    whom = f"{others[0]} and {len(others) - 1} more" if len(others) > 1 else others[0] if others else cause
    bound = f"{told} as fast; " if (told := factor(speedup_max)) else ""
    return f"without {whom}: {bound}{amount(gpu_s)} GPU s would come back"


def _does(step: PathStep, depth: int, was: bool) -> str:
    does, did = _VERBS[step.state]
    verb = f"{'' if step.measured else 'probably '}{did if was else does}"
    on = f"{_BEFORE_ON.get(step.state, ', at ')}{step.on}" if step.on else ""
    return f"{verb} {100 * step.share:.0f} % of {'that' if depth else 'the time'}{on}"
