"""The truth about each job as files, made of the jobs' labels in neutral words; half of them as hashes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slowbench import __version__, jobs
from slowbench.vocabulary import CAUSES, FROM_GPUTOP, FROM_GPUTOP_CAUSE, IDLE, NONE, WORKS

FOLDER = Path(__file__).parent / "truth"
SEALED = "sealed.json"
OPEN_HALF, SEALED_HALF = HALVES = ("open", "sealed")
START, DISTURBANCE = "start", "disturbance"  # onsets
MOST_OF_A_LABEL = {NONE: 6}  # jobs of one label in one half; any other cause has `_MOST`
_MOST = 2


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth about one job."""

    job: str
    symptom: str
    cause: str
    onset: str
    """``disturbance``: it begins while the tools watch; ``start``: the job has it from its start."""
    victims: tuple[str, ...]
    """``trainers`` or ``other ranks``; empty where nothing is wrong."""
    culprits: tuple[str, ...]
    """Names of the processes to blame; their pids are in the run."""
    fix: str

    @property
    def is_calm(self) -> bool:
        """Whether nothing slows the job: a tool that names a cause raises a false alarm."""
        return self.cause == NONE and self.symptom in (WORKS, IDLE)

    def text(self) -> str:
        """The file's content, which is what is hashed."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def made(job: str) -> Truth:
    """Make the truth of a job from its label."""
    what = jobs.scenario.load(job)
    symptom, cause = FROM_GPUTOP[what.label.symptom], FROM_GPUTOP_CAUSE[what.label.cause]
    victims = () if cause == NONE else ("other ranks",) if symptom == "waits-for-rank" else ("trainers",)
    onset = START if what.disturb is None else DISTURBANCE
    return Truth(job, symptom, cause, onset, victims, tuple(sorted(what.label.culprits)), CAUSES[cause][1])


def seal(truth: Truth, salt: str) -> str:
    """The hash that stands for a truth until its salt is published."""
    return hashlib.sha256(f"{salt}\n{truth.text()}".encode()).hexdigest()


def sealed(folder: Path = FOLDER) -> dict[str, Any]:
    """The file of hashes: release, jobs, and the salt once it is published."""
    found: dict[str, Any] = json.loads((folder / SEALED).read_text(encoding="utf-8"))
    return found


def halves(folder: Path = FOLDER) -> dict[str, str]:
    """Job -> its half."""
    return {
        **{path.stem: OPEN_HALF for path in sorted(folder.glob("*.json")) if path.name != SEALED},
        **dict.fromkeys(sealed(folder)["jobs"], SEALED_HALF),
    }


def faults(salt: str = "", folder: Path = FOLDER) -> list[str]:
    """Jobs whose label disagrees with the files; the sealed half is checked if the salt is known."""
    hashes = sealed(folder)
    known = jobs.scenario.names()
    gone = {job for job in halves(folder) if job not in known}
    found = [f"{job}: there is no such job; a new draw is needed (--draw)" for job in sorted(gone)]
    found += [
        f"{path.stem}: its file is not made of its label"
        for path in sorted(folder.glob("*.json"))
        if path.name != SEALED and path.stem not in gone and path.read_text(encoding="utf-8") != made(path.stem).text()
    ]
    if salt := salt or hashes["salt"]:
        kept = {job: value for job, value in hashes["jobs"].items() if job not in gone}
        found += [f"{job}: its label does not fit its seal" for job, value in kept.items() if seal(made(job), salt) != value]
    return found


def drawn(half_of: dict[str, str]) -> list[str]:
    """Jobs of a release: of each label and half the first few by the hash of their names, none that takes minutes."""
    counts: dict[tuple[str, str, str], int] = {}
    chosen = []
    for job in sorted(half_of, key=lambda name: hashlib.sha256(f"{__version__} {name}".encode()).digest()):
        what = jobs.scenario.load(job)
        if what.label.beside or what.least_s:
            continue
        truth = made(job)
        key = half_of[job], truth.symptom, truth.cause
        if counts.get(key, 0) < MOST_OF_A_LABEL.get(truth.cause, _MOST):
            counts[key] = counts.get(key, 0) + 1
            chosen.append(job)
    return sorted(chosen)


def rewrite(folder: Path = FOLDER) -> None:
    """Write the files of the open half anew, after a label has changed; a seal needs its salt, and a new release."""
    for path in folder.glob("*.json"):
        if path.name != SEALED:
            path.write_text(made(path.stem).text(), encoding="utf-8")


def write(half_of: dict[str, str], salt: str, folder: Path = FOLDER) -> None:
    """Draw the jobs of a release and write their files."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.json"):
        path.unlink()
    hashes = {}
    for job in drawn(half_of):
        if half_of[job] == OPEN_HALF:
            (folder / f"{job}.json").write_text(made(job).text(), encoding="utf-8")
        else:
            hashes[job] = seal(made(job), salt)
    (folder / SEALED).write_text(json.dumps({"release": __version__, "salt": "", "jobs": hashes}, indent=1) + "\n", encoding="utf-8")
