"""py-spy with a written rule: twice a second the stacks of the trainer and of its children, and where most of the last twenty stand.

A frame is read as people do: by its file, its function, and in a worker the line of the source, for calls of C have no frame.
"""

from __future__ import annotations

import json
import linecache
import re
import shutil
import subprocess
import sys
from collections import Counter, deque
from pathlib import Path
from typing import Any

from slowbench.adapter import answer, every, ready

_PY_SPY = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
_MAIN = (  # what a frame ``FILE:FUNCTION`` of the trainer's main thread means, innermost first: symptom, cause
    (re.compile(r"_utils/fetch\.py:fetch"), ("waits-for-input", "preparation-in-trainer")),
    (re.compile(r"/dataloader\.py:"), ("waits-for-input", "")),
    (re.compile(r"distributed.*:(all_reduce|all_gather|broadcast|barrier|recv|send|wait)$"), ("waits-for-network", "slow-network")),
    (re.compile(r":(copy_in|to|cuda|pin_memory)$"), ("waits-for-copies", "slow-copies")),
    (re.compile(r":(synchronize|item|cpu|copy_out)$"), ("works", "none")),
    (re.compile(r":(save|_save|fsync|evaluate|validate)$"), ("nothing-to-do", "planned-pause")),
)
_LINES = (  # what a worker does, by the line of the source where it stands: cause
    (re.compile(r"\b(acquire|flock|lockf)\b|\bwith .*lock"), "lock"),
    (re.compile(r"\b(recv\w*|urlopen|getresponse|connect|requests\.\w+|sock\w*\.\w+)\("), "slow-remote-data"),
    (re.compile(r"\b(read\w*|p?readv?|open\w*|seek|np\.load|memmap)\("), "slow-disk"),
)


def _threads(pid: int) -> list[dict[str, Any]]:
    """The threads of a process, main thread first; none where it cannot be read."""
    command = [_PY_SPY, "dump", "--pid", str(pid), "--json", "--nonblocking"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    found = json.loads(done.stdout) if done.returncode == 0 else []
    return sorted(found, key=lambda thread: thread.get("thread_name") != "MainThread")


def _frames(thread: dict[str, Any]) -> list[str]:
    return [f"{frame['filename']}:{frame['name'].removesuffix('.<locals>.<listcomp>').rpartition('.')[2]}" for frame in thread["frames"]]


def _trainer(pid: int) -> tuple[str, str]:
    """Symptom and cause of one look at a trainer."""
    for thread in _threads(pid)[:1]:
        for frame in _frames(thread):
            for pattern, meaning in _MAIN:
                if pattern.search(frame):
                    return meaning
        return ("waits-for-host", "preparation-in-trainer") if thread["active"] else ("unknown", "")
    return "unknown", ""


def _worker(pid: int) -> str:
    """Cause of one look at a worker; empty where it waits for work, or cannot be read."""
    for thread in _threads(pid)[:1]:
        if not any("/fetch.py:" in frame for frame in _frames(thread)) and not thread["active"]:  # not at a sample
            return ""
        for frame in thread["frames"][:2]:
            line = linecache.getline(frame["filename"], frame["line"])
            if found := next((cause for pattern, cause in _LINES if pattern.search(line)), ""):
                return found
        return "slow-preparation" if thread["active"] else ""
    return ""


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return []


def main() -> None:
    """Watch the first trainer and its first four children."""
    pid = int(sys.argv[1])
    version = subprocess.run([_PY_SPY, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    ready(version, ["root"])
    trainer: deque[tuple[str, str]] = deque(maxlen=20)
    workers: deque[str] = deque(maxlen=40)
    for _ in every(0.5):
        trainer.append(_trainer(pid))
        (symptom, cause), count = Counter(trainer).most_common(1)[0]
        if symptom == "waits-for-input" and not cause:
            workers += [_worker(child) for child in _children(pid)[:4]]
            cause = Counter(one for one in workers if one).most_common(1)[0][0] if any(workers) else ""
        if count >= 0.4 * len(trainer):
            advice = "look at the functions on the stacks" if symptom not in ("works", "nothing-to-do") else ""
            answer(symptom, cause or "unknown", advice=advice)
        else:
            answer()


if __name__ == "__main__":
    main()
