"""Everything that only a real GPU can show, part by part into a folder: `python -m tests.device OUT [PART …]`.

Each part has its own limit and its own file, and none stops the others: time on such a machine is dear. Needs torch, torchvision,
transformers and nvcc there; nothing of the GPU's settings is touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.device import parts

_LAST_LINES = 40


def run(name: str, command: list[str], limit_s: float, out: Path, env: dict[str, str]) -> None:
    """One command, its output into ``out``/NAME.txt and its last lines to ours."""
    began = time.monotonic()
    path = out / f"{name}.txt"
    with path.open("w") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        streams = {"stdout": file, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=env, start_new_session=True, **streams)  # type: ignore[call-overload]
        try:
            code: object = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = f"ended after {limit_s:g} s"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        file.write(f"\n[{name}: {code}, {time.monotonic() - began:.1f} s]\n")
    print("\n".join(path.read_text(errors="replace").splitlines()[-_LAST_LINES:]), flush=True)


def main() -> None:
    """Run the parts named, all of them where none is."""
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(parts.PARTS)
    out.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "GPUTOP_DEVICE_OUT": str(out)}
    for name in names:
        part, *arguments = name.split("=", 1)
        commands: Callable[[Path, str], list[tuple[str, list[str], float]]] = parts.PARTS[part]
        for label, command, limit_s in commands(out, arguments[0] if arguments else ""):
            run(label, command, limit_s, out, env)


if __name__ == "__main__":
    main()
