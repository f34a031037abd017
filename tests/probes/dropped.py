"""Load the probes as root, become the invoking user, follow a trainer of that user: prints what is left, as JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from gputop.system.privilege import capabilities, drop_to_invoking_user
from tests.probes.conftest import HERE, Beaten


def main() -> None:
    keep, library = sys.argv[1] == "keep", sys.argv[2]
    one = Beaten()
    one.until_loaded()
    dropped = drop_to_invoking_user(keep_probing=keep)
    command = ["/usr/bin/python3", str(HERE / "load.py"), "cuda", library]  # ours may lie where only root may look
    trainer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdout.readline()
    answer(trainer, "cuLaunchKernel 1 0")
    one.hot = frozenset({trainer.pid})
    one.until(lambda: one.states[-1].detail.get("libcuda") == "1" or one.states[-1].reason, "attached, or said why not")
    answer(trainer, "cuCtxSynchronize 5 0")
    one.beat_for(0.5)
    call = one.board.calls.get((trainer.pid, "cuCtxSynchronize"))
    trainer.stdin.close()
    trainer.wait()
    print(json.dumps({
        "dropped": dropped, "uid": os.getuid(), "groups": os.getgroups(), "capabilities": capabilities(), "threads": len(one.board.threads),
        "calls": call.count if call else 0, "state": one.states[-1].state, "reason": one.states[-1].reason, "remedy": one.states[-1].remedy,
    }))  # fmt: skip
    one.source.close()


def answer(trainer: subprocess.Popen[str], line: str) -> None:
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdin.write(line + "\n")
    trainer.stdin.flush()
    trainer.stdout.readline()


if __name__ == "__main__":
    main()
